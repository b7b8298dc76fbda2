"""The client."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import os
import re
import socket
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from . import claim
from .address import Address
from .aio import AsyncClient
from .attempt import Attempt
from .block import Block, F, reads_key, waits_for_itself
from .clock import CLOCK, Clock
from .errors import Closed, Holder
from .hooks import Hook, Hooks
from .lease import Lease
from .once import once, returned
from .options import (PLACE, RETENTION, TIMEOUT, TTL, Duration, Key, Options, Remember, b64, interval, printable, read_age, read_place_ttl,
                      read_retention, read_seconds, read_ttl)
from .process import Process, begin
from .step import Steps
from .ticket import read_ticket
from .transaction import first_of, function_error, psycopg_connection

if TYPE_CHECKING:
    from typing_extensions import Unpack

WAITER_TTL = 10.0  # how long a waiter's place outlasts its last question
OPTIONS = tuple(Options.__annotations__)
HOST = socket.gethostname().encode(errors="replace").decode()


class Client:
    """Takes, waits for, renews and settles leases. Make one with connect.

    A client has these defaults: the ttl of its leases, the timeout of one call, the namespace of
    its keys (default: the server's or the credential's), and a label that tells operators what the
    keys are held for (default: the program's name). For complete_in, reserve_in and once with in_,
    schema and prefix are those of the store's URL.
    """

    def __init__(self, url: str, *, ttl: Duration = TTL, timeout: Duration = TIMEOUT, namespace: str = "",
                 label: str | None = None, schema: str = "public", prefix: str = "dibs", secret_keys: bool = False,
                 on_event: Hook | None = None) -> None:
        self._clock: Clock = CLOCK
        self._hooks = Hooks(on_event)
        self._secret_keys = secret_keys
        self._address = Address(url)
        self._ttl = read_ttl(ttl)
        self._timeout = read_seconds(timeout, "timeout")
        if self._timeout == 0:
            raise ValueError("dibs: timeout is 0; it must be more")
        self._namespace, self._own = namespace, namespace or None
        self._schema, self._prefix = schema, prefix
        self._label = os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else "") if label is None else label
        self._closed = False
        self._process: Process | None = None
        self._silent: dict[str, float] = {}  # by the token of a reserved place: when it sent the last claim that was not answered

    @property
    def timeout(self) -> float:
        """How long one call may take in all, in seconds. A call that waits may take as long as it waits, too."""
        return self._timeout

    @property
    def namespace(self) -> str:
        """The namespace of the keys."""
        return self._namespace

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
        return Block(self, self._asked(key, options), options)

    def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True, **options: Unpack[Options]) -> Lease:
        """Take the key like lock and return the Lease, which is renewed until it is settled.

        max_age (math.inf: any) accepts a record up to that age: acquire then raises Done. With
        renew=False the lease lasts for its ttl. A lease that nobody has any more is abandoned.
        """
        lease = Lease(self, self._asked(key, options, max_age=read_age(max_age)))
        try:
            self._here().run(self._acquire(lease, renew))
            return lease
        except BaseException:
            lease._attempt.give_up()
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
        function, retention = fn, read_retention(keep)
        connection = None if in_ is None else psycopg_connection(in_)
        attempt = self._asked(key, options, max_age=math.inf if max_age is None else read_age(max_age))

        def run(lease: Lease) -> Any:
            return returned(function(lease) if pass_lease else function())
        result = self._here().run(once(self, attempt, run, connection, retention, remember, rerun))
        return result if with_origin else result.value

    def _once_decorator(self, key: Key, options: Any) -> Callable[[F], F]:
        def decorate(fn: F) -> F:
            key_of = reads_key(key, fn)

            def bound(args: tuple[Any, ...], named: dict[str, Any]) -> Callable[..., Any]:
                return lambda *lease: fn(*lease, *args, **named)

            def key_for(args: tuple[Any, ...], named: dict[str, Any]) -> Key:
                return key_of((None, *args) if options["pass_lease"] else args, named)

            if inspect.iscoroutinefunction(fn):
                @functools.wraps(fn)
                async def once_async(*args: Any, **named: Any) -> Any:
                    return await self.aio.once(key_for(args, named), bound(args, named), **options)
                return once_async  # type: ignore[return-value]

            @functools.wraps(fn)
            def once_sync(*args: Any, **named: Any) -> Any:
                return self.once(key_for(args, named), bound(args, named), **options)
            return once_sync  # type: ignore[return-value]
        return decorate

    def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction of the application: it exists when the transaction commits.

        See reserve. For the cursor and its errors see Lease.complete_in.
        """
        attempt = self._attempt(key, grace=grace, label=label, place_ttl=read_place_ttl(ttl))
        with self._reserves_in(attempt, self._here().run(claim.namespace_of(self, key))) as statement:
            cursor.execute(*statement)
        return str(first_of(cursor.fetchone()))

    def reserve(self, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, fingerprint: str | None = None,
                label: str | None = None) -> str:
        """Take a place in the key's queue without waiting there, and return its ticket.

        It is a text to keep secret, for redeem in any process. The place lasts for ttl (default: 7
        days). Until it is redeemed or has ended, no caller behind it gets the key, but a free key
        waits for it for at most grace (default: as long as the place lasts).
        """
        lease = self._reservation(key, ttl, grace, fingerprint, label)
        try:
            ticket = self._here().run(claim.reserve(self, lease))
            return ticket
        except BaseException:
            lease._attempt.give_up()  # nobody has its ticket
            raise

    def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now, with this grace.

        A place that has ended is reserved again, at the end of the queue.
        """
        self._here().run(self._prolong(ticket, ttl, grace))

    def _prolong(self, ticket: str, ttl: Duration, grace: Duration | None) -> Steps[None]:
        token, namespace, key = read_ticket(ticket)
        attempt = self._attempt(key, namespace=namespace, token=token, grace=grace, place_ttl=read_place_ttl(ttl))
        self._here().undoer.claims(token)
        return claim.ask_place(self, attempt)

    def redeem(self, ticket: str, *, grace: Duration | None = None, **options: Unpack[Options]) -> Block:
        """Hold the key while a with block runs at a reserved place, like lock.

        If it gives up waiting, the place stays and can be redeemed again. If the place has ended,
        wait=0 takes the key if it is free, and a caller that waits joins the queue at the end. The
        end of the block ends the place. grace limits how long the place keeps others from a free key
        if this process dies.
        """
        token, namespace, key = read_ticket(ticket)
        return Block(self, self._asked(key, options, namespace=namespace, place=token, grace=grace))

    def cancel(self, ticket: str) -> None:
        """Give a reserved place back. It raises Lost if the place had ended before."""
        self._here().run(self._cancel(ticket))

    def _cancel(self, ticket: str) -> Steps[None]:
        token, namespace, key = read_ticket(ticket)
        return claim.cancel(self, self._attempt(key, namespace=namespace, token=token))

    def held(self, key: Key) -> bool:
        """Report whether a caller holds the key, or comes before a new one. It changes nothing."""
        return self._here().run(claim.held(self, key))

    def _acquire(self, lease: Lease, renew: bool) -> Steps[None]:
        waits_for_itself(self, lease._attempt)
        return claim.take(self, lease, renew)

    def _holder_of(self, attempt: Attempt) -> Holder | None:
        """Return who holds the key of an attempt: see Held.holder."""
        asked: dict[str, Any] = {"key": attempt.raw, **({"namespace": attempt.namespace} if attempt.namespace else {})}
        response = self._here().get(f"/v1/keys?{urllib.parse.urlencode(asked)}")
        if response.status != 200 or response.kind != "application/jsonl" or not response.body.strip():
            return None
        for lease in json.loads(response.body).get("runs") or []:
            owner = lease.get("owner") or {}
            return Holder(owner.get("host", ""), owner.get("pid", 0), owner.get("label", ""), lease.get("id", ""))
        return None

    def flush(self, limit: Duration | None = None) -> bool:
        """Wait until what is undone in the background is done, for at most limit (default: timeout).

        At the end of the program it is called by itself. It reports whether all is done.
        """
        seconds = self._timeout if limit is None else read_seconds(limit, "limit")
        process = self._process
        return process is None or process.pid != os.getpid() or process.undoer.flush(seconds)

    def close(self) -> None:
        """Settle what is to be undone, for at most the timeout, and close the connections.

        Callers that wait get Closed. Leases that are held are not renewed any more.
        """
        process = self._process
        if not self._closed and process is not None and process.pid == os.getpid():
            self._closed = True
            process.cut()
            process.undoer.flush(self._timeout)
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

    def _here(self) -> Process:
        """Return what the client has in this process."""
        if self._closed:
            raise Closed("dibs: the client is closed")
        process = self._process
        return process if process is not None and process.pid == os.getpid() else begin(self)

    def _new_process(self) -> Process:
        return Process(self._address, self._timeout, self._clock)

    def _asked(self, key: Key, options: Any, **more: Any) -> Attempt:
        """Return the attempt of a caller's options, and of what the method adds."""
        unknown = ", ".join(name for name in options if name not in OPTIONS)
        if unknown:
            raise TypeError(f"dibs: unknown argument: {unknown}; there are {', '.join(OPTIONS)}")
        return self._attempt(key, **options, **more)

    def _attempt(self, key: Key, *, ttl: Duration | None = None, wait: Duration | None = None, permits: int = 1, weight: int = 1,
                 fingerprint: str | None = None, at_most_once: bool = False, stop_timeout: Duration | None = None,
                 max_lifetime: Duration | None = None, label: str | None = None, max_age: float | None = None, grace: Duration | None = None,
                 place_ttl: float = WAITER_TTL, place: str | None = None, token: str | None = None, namespace: str | None = None) -> Attempt:
        """Validate what the caller asks for."""
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"dibs: a key is a str or bytes, not {type(key).__name__}")
        try:
            size = len(key.encode() if isinstance(key, str) else key)
        except UnicodeEncodeError:
            raise ValueError("dibs: the key is a str that UTF-8 does not have") from None
        if not 1 <= size <= 512:
            raise ValueError(f"dibs: the key has {size} bytes; it must have 1 to 512")
        asked: dict[str, Any] = {
            "ttl": self._ttl if ttl is None else read_ttl(ttl), "wait": None if wait is None else read_seconds(wait, "wait"),
            "permits": permits, "weight": weight, "fingerprint": fingerprint, "at_most_once": at_most_once,
            "stop_timeout": None if stop_timeout is None else read_seconds(stop_timeout, "stop_timeout"),
            "max_lifetime": None if max_lifetime is None else read_seconds(max_lifetime, "max_lifetime"),
            "max_age": max_age, "grace": None if grace is None else read_seconds(grace, "grace"), "place_ttl": place_ttl, "place": place, "token": token,
            "owner": {"host": HOST, "pid": os.getpid(), "label": printable(self._label if label is None else label)},
        }
        if (asked["stop_timeout"] or 0) > asked["ttl"] / 2:
            raise ValueError(f"dibs: stop_timeout is {stop_timeout!r}; it must be at most half of the ttl of {asked['ttl']}")
        if not isinstance(permits, int) or not 1 <= permits <= 65_536:
            raise ValueError(f"dibs: permits is {permits!r}; it must be 1 to 65536")
        if not isinstance(weight, int) or not 1 <= weight <= permits:
            raise ValueError(f"dibs: weight is {weight!r}; it must be 1 to permits")
        if permits > 1 and (at_most_once or max_age is not None):
            raise ValueError("dibs: permits cannot be more than 1 together with at_most_once or max_age")
        if fingerprint is not None and not re.fullmatch("[0-9A-Fa-f]{64}", fingerprint):
            raise ValueError("dibs: fingerprint is not a SHA-256 in 64 hexadecimal digits, such as hashlib.sha256(data).hexdigest()")
        attempt = Attempt(key, self._namespace if namespace is None else namespace, asked, self._clock, self._hooks, self._secret_keys)
        attempt.place_silent = self._silent.get(place or "", -math.inf)
        return attempt

    @contextlib.contextmanager
    def _reserves_in(self, attempt: Attempt, namespace: str) -> Iterator[tuple[str, list[Any]]]:
        """Give the statement that reserves a place in a transaction, and read its errors."""
        grace, owner = attempt._options["grace"], attempt._options["owner"]
        text = f"{owner['host'].replace(' ', '_')} {owner['pid']} {owner['label']}".encode()[:255]
        values = [b64(attempt.raw), interval(attempt.place_ttl), None if grace is None else interval(grace), namespace, b64(text)]
        with self._function("reserve_in", attempt) as name:
            yield f"SELECT {name}(%s::text, %s::text::interval, %s::text::interval, %s::text, %s::text, 'base64')", values

    @contextlib.contextmanager
    def _function(self, function: str, attempt: Attempt) -> Iterator[str]:
        """Give the name of a function of the store, and read the errors of its call."""
        name = ".".join('"' + part.replace('"', '""') + '"' for part in (self._schema, f"{self._prefix}_{function}"))
        try:
            yield name.replace("%", "%%")
        except Exception as e:
            error = function_error(e, name, attempt)
            if error is None:
                raise
            raise error from e

    def _reservation(self, key: Key, ttl: Duration, grace: Duration | None, fingerprint: str | None, label: str | None) -> Lease:
        return Lease(self, self._attempt(key, grace=grace, fingerprint=fingerprint, label=label, place_ttl=read_place_ttl(ttl)))
