"""The client."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from . import claim
from .aio import AsyncClient
from .attempt import Settings
from .block import Block, F, decorated, reads_key, waits_for_itself
from .core import Core
from .hooks import Hook
from .lease import Lease
from .once import once, returned
from .options import PLACE, RETENTION, TIMEOUT, TTL, Duration, Key, Options, Remember, printable, read_keep, read_seconds, read_ttl
from .ticket import read_ticket
from .transaction import first_of, psycopg_connection, reserves_in

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(Core):
    """Takes, waits for, renews and settles leases. Make one with connect.

    A client has these defaults: the ttl of its leases, the timeout of one call, the namespace of
    its keys (default: the server's or the credential's), and a label that tells operators what the
    keys are held for (default: the program's name). For complete_in, reserve_in and once with in_,
    schema and prefix are those of the store's URL.
    """

    def __init__(self, url: str, *, ttl: Duration = TTL, timeout: Duration = TIMEOUT, namespace: str = "",
                 label: str | None = None, schema: str = "public", prefix: str = "dibs", secret_keys: bool = False,
                 on_event: Hook | None = None) -> None:
        if label is None:
            label = os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else "")
        super().__init__(url, Settings(read_ttl(ttl), read_seconds(timeout, "timeout", 0.001), namespace, printable(label), schema, prefix,
                                       secret_keys, on_event))

    @property
    def timeout(self) -> float:
        """How long one call may take in all, in seconds. A call that waits may take as long as it waits, too."""
        return self._settings.timeout

    @property
    def namespace(self) -> str:
        """The namespace of the keys."""
        return self._settings.namespace

    @property
    def aio(self) -> AsyncClient:
        """The same client for asyncio."""
        return AsyncClient(self)

    def lock(self, key: Key, **options: Unpack[Options]) -> Block:
        """Hold the key while a with block runs. Callers get it in the order in which they arrive.

            with keys.lock("invoice 42", wait=30) as lease:
                ...

        The options are those of Options. Every way out of the block releases the key. If the lease
        was lost, the block ends with Lost, unless it raised. A caller that already holds the key in
        this thread gets Held at once, because its wait would never end. The with statement also
        raises Mismatch, Unknown, Unavailable, Busy, Full, Refused and its kinds, and Closed.

        It is a decorator, too, for functions and for coroutine functions. {name} in the key is the
        argument of that name:

            @keys.lock("report {day}", wait=0)
            def report(day): ...
        """
        return Block(self, self._asked(key, options), Lease, options)

    def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True, **options: Unpack[Options]) -> Lease:
        """Take the key like lock and return the Lease, which is renewed until it is settled.

        max_age (math.inf: any) accepts a record up to that age: acquire then raises Done. With
        renew=False the lease lasts for its ttl. A lease that nobody has any more is abandoned.
        """
        lease = Lease(self, self._asked(key, options, max_age=max_age))
        try:
            waits_for_itself(lease._attempt)
            self._run(claim.take(self, lease._attempt, renew))
            return lease
        except BaseException:
            self._give_up(lease._attempt)
            raise

    @overload
    def once(self, key: Key, fn: None = None, *, keep: Duration = RETENTION, max_age: Duration | None = None, remember: Remember = (),
             rerun: bool = False, pass_lease: bool = False, with_origin: bool = False, in_: Any = None,
             **options: Unpack[Options]) -> Callable[[F], F]: ...

    @overload
    def once(self, key: Key, fn: Callable[..., Any], *, keep: Duration = RETENTION, max_age: Duration | None = None, remember: Remember = (),
             rerun: bool = False, pass_lease: bool = False, with_origin: bool = False, in_: Any = None,
             **options: Unpack[Options]) -> Any: ...

    def once(self, key: Key, fn: Callable[..., Any] | None = None, *, keep: Duration = RETENTION, max_age: Duration | None = None,
             remember: Remember = (), rerun: bool = False, pass_lease: bool = False, with_origin: bool = False, in_: Any = None,
             **options: Unpack[Options]) -> Any:
        """Run fn under the key unless that was done before, and return its result.

        All callers get it: those that call while it runs wait, and those that call later get the
        stored one until keep is over (default: 24 hours), in any process. The result is stored as
        JSON, so every caller gets what JSON makes of it: tuples are lists.

        max_age: the age up to which a stored result is returned. Default: any.
        remember: an exception class, a tuple of them, or a function that is given the exception.
        Such errors are stored like a result; later callers get Remembered. Default: none, and the
        next caller runs.
        rerun: lets the next caller run if fn ran and its result could not be stored, for a fn that may
        run twice. Default: later callers get Unrecorded until keep is over, because fn had its effect.
        pass_lease: fn gets the lease as its first argument.
        with_origin: returns an OnceResult, whose replayed says whether the result is an earlier one.

        Without fn it is a decorator, for functions and for coroutine functions. {name} in the key is
        the argument of that name:

            @keys.once("order {id}")
            def charge(id): ...

        in_: a connection of psycopg or psycopg2 to the PostgreSQL database of the store, outside of a
        transaction. fn then runs in a transaction on it, which commits together with the result. So a
        crash leaves both or neither, and fn has its effect exactly once. An error rolls back; errors
        of the driver are for the caller, who calls once again after a conflict. A result that cannot be
        stored rolls back, too.

        The other arguments and errors are those of lock. If fn ran and its result could not be
        stored (it is not JSON, or too large), once raises NotKept.
        """
        if fn is None:
            self._asked(key, options)  # so that the decoration refuses them
            return self._once_decorator(key, {"keep": keep, "max_age": max_age, "remember": remember, "rerun": rerun, "pass_lease": pass_lease,
                                              "with_origin": with_origin, "in_": in_, **options})
        function, connection = fn, None if in_ is None else psycopg_connection(in_)
        attempt = self._asked(key, options, max_age=math.inf if max_age is None else max_age)

        def run(lease: Lease) -> Any:
            return returned(function(lease) if pass_lease else function())
        result = self._run(once(self, attempt, Lease, run, connection, read_keep(keep), remember, rerun))
        return result if with_origin else result.value

    def _once_decorator(self, key: Key, options: Any) -> Callable[[F], F]:
        def decorate(fn: F) -> F:
            key_of = reads_key(key, fn)

            def on(once: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
                return lambda args, named: once(key_of((None, *args) if options["pass_lease"] else args, named),
                                                lambda *lease: fn(*lease, *args, **named), **options)
            return decorated(fn, on(self.once), on(self.aio.once))
        return decorate

    def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction of the application: it exists when the transaction commits.

        See reserve. For the cursor and its errors see Lease.complete_in.
        """
        attempt = self._attempt(key, grace=grace, label=label, place_ttl=ttl)
        with reserves_in(attempt, self._run(claim.namespace_of(self, key))) as statement:
            cursor.execute(*statement)
        return str(first_of(cursor.fetchone()))

    def reserve(self, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, fingerprint: str | None = None,
                label: str | None = None) -> str:
        """Take a place in the key's queue without waiting there, and return its ticket.

        It is a text to keep secret, for redeem in any process. The place lasts for ttl (default: 7
        days). Until it is redeemed or has ended, no caller behind it gets the key, but a free key
        waits for it for at most grace (default: as long as the place lasts).
        """
        attempt = self._attempt(key, grace=grace, fingerprint=fingerprint, label=label, place_ttl=ttl)
        try:
            ticket = self._run(claim.reserve(self, attempt))
            return ticket
        except BaseException:
            self._give_up(attempt)  # nobody has its ticket
            raise

    def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now, with this grace.

        A place that has ended is reserved again, at the end of the queue.
        """
        self._run(claim.prolong(self, ticket, ttl, grace))

    def redeem(self, ticket: str, *, grace: Duration | None = None, **options: Unpack[Options]) -> Block:
        """Hold the key while a with block runs at a reserved place, like lock.

        If it gives up waiting, the place stays and can be redeemed again. If the place has ended,
        wait=0 takes the key if it is free, and a caller that waits joins the queue at the end. The
        end of the block ends the place. grace limits how long the place keeps others from a free key
        if this process dies.
        """
        token, namespace, key = read_ticket(ticket)
        return Block(self, self._asked(key, options, namespace=namespace, place=token, grace=grace), Lease)

    def cancel(self, ticket: str) -> None:
        """Give a reserved place back. It raises Lost if the place had ended before."""
        self._run(claim.cancel(self, ticket))

    def held(self, key: Key) -> bool:
        """Report whether a caller holds the key, or comes before a new one. It changes nothing."""
        return self._run(claim.held(self, key))

    def flush(self, limit: Duration | None = None) -> bool:
        """Wait until what is undone in the background is done, for at most limit (default: timeout).

        At the end of the program it is called by itself. It reports whether all is done.
        """
        seconds = self._settings.timeout if limit is None else read_seconds(limit, "limit")
        process = self._process
        return process is None or process.pid != os.getpid() or process.flush(seconds)

    def close(self) -> None:
        """Settle what is to be undone, for at most the timeout, and close the connections.

        Callers that wait get Closed. Leases that are held are not renewed any more.
        """
        process = self._process
        if not self._closed and process is not None and process.pid == os.getpid():
            self._closed = True
            process.cut()
            process.flush(self._settings.timeout)
            process.stop()
        self._closed = True

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        process = getattr(self, "_process", None)
        if process is not None and not _finalizing() and process.pid == os.getpid():
            process.stop()

    def __repr__(self) -> str:  # shows no token
        return f"<dibs.Client {','.join(map(str, self._address.servers))}>"
