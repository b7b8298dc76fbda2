"""Locks, semaphores, places in a queue and stored results over `dibs serve`.

Call dibs on a key: one caller runs, and all others wait their turn, do something else, or get
the same answer. It needs the standard library only.

    keys = dibs.connect()                                  # DIBS_SERVER, or unix:/run/dibs/dibs.sock
    with keys.lock("invoice 42", wait=30) as lease:
        lease.check()                                      # raises dibs.Lost
    receipt = keys.once("order-17", charge, keep="24h")

Durations are seconds, a text such as "1h30m", or a datetime.timedelta. Keys are str or bytes.
`keys.aio` has the same calls for asyncio.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .aio import AsyncClient
from .client import Client
from .errors import (Busy, Closed, Done, Error, Forbidden, Full, Held, Holder, Lost, Mismatch, NotKept, Overloaded, Refused, Remembered, TooLarge,
                     Unauthorized, Unavailable, Unknown, Unrecorded, WrongTransaction)
from .hooks import Event
from .lease import AsyncLease, Lease
from .once import OnceResult
from .options import MIN_TTL, PLACE, RETENTION, TIMEOUT, TTL, Duration, Options

__version__ = "0.0.0"

__all__ = [
    "connect", "Client", "Lease", "AsyncClient", "AsyncLease", "Options", "Event", "Holder", "OnceResult",
    "Error", "Held", "Lost", "Done", "Mismatch", "Unknown", "Unavailable", "Busy", "Full", "TooLarge", "Refused", "Unauthorized",
    "Forbidden", "Overloaded", "Remembered", "NotKept", "Unrecorded", "WrongTransaction", "Closed",
    "TTL", "MIN_TTL", "RETENTION", "PLACE", "TIMEOUT",
]

for _public in [value for value in list(globals().values()) if isinstance(value, type) and value.__module__.startswith(__name__)]:
    _public.__module__ = __name__  # tracebacks and texts say dibs.Held


def connect(url: str | None = None, *, ttl: Duration = TTL, timeout: Duration = TIMEOUT, namespace: str = "",
            label: str | None = None, schema: str = "public", prefix: str = "dibs", secret_keys: bool = False,
            on_event: Callable[[Event], None] | None = None) -> Client:
    """Return a client of the servers at the URL:

        unix:/run/dibs/dibs.sock, http+unix:/run/dibs/dibs.sock    a Unix socket
        http://127.0.0.1:7331
        https://:TOKEN@dibs.internal                     with a credential
        https://:TOKEN@a.internal,b.internal:8443        several servers of one store

    The default is the variable DIBS_SERVER, or unix:/run/dibs/dibs.sock. It does not connect yet. The
    other arguments are those of Client. Make one client for the program: it is safe for threads,
    and after a fork parent and child may both use it.
    """
    if url is None:
        url = os.environ.get("DIBS_SERVER") or "unix:/run/dibs/dibs.sock"
    return Client(url, ttl=ttl, timeout=timeout, namespace=namespace, label=label, schema=schema, prefix=prefix,
                  secret_keys=secret_keys, on_event=on_event)
