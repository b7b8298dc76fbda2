"""The client."""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import sys
import threading
import time
import random
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import clock
from .address import Address
from .aio import AsyncClient
from .attempt import Attempt
from .block import Block, waits_for_itself
from .clock import Tries
from .errors import (Busy, Closed, Done, Error, Mismatch, Overloaded, Unavailable, error_of, gone, problem_of, refusal)
from .lease import PATIENCE, Lease
from .once import keep_result, kept_error, kept_result, read_record, remembers, returned
from .options import (PLACE, RETENTION, TIMEOUT, TTL, Duration, Key, Options, Remember, b64, interval, printable, read_age, read_place_ttl,
                      read_retention, read_seconds, read_ttl, to_ms)
from .process import Process, lock, processes
from .ticket import read_ticket, write_ticket
from .transaction import first_of, function_error, psycopg_connection, run_in
from .undo import FROZEN

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Unpack

WAITER_TTL = 10.0  # how long a waiter's place outlasts its last question
POLL = 20.0  # the longest call that waits


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
                 label: str | None = None, schema: str = "public", prefix: str = "dibs") -> None:
        self._address = Address(url)
        self._ttl = read_ttl(ttl)
        self._timeout = read_seconds(timeout, "timeout")
        if self._timeout == 0:
            raise ValueError("dibs: timeout is 0; it must be more")
        self._namespace, self._own = namespace, namespace or None
        self._schema, self._prefix = schema, prefix
        self._label = os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else "") if label is None else label
        self._closed = False
        self._local: Process | None = None
        self._silent: dict[str, float] = {}  # by the token of a reserved place: when it sent the last claim that was not answered
        self._mine = threading.local()  # the leases of this thread's blocks
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], weakref.WeakSet[Lease]] = weakref.WeakKeyDictionary()

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
        """
        return Block(self, self._asked(key, options))

    def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True, **options: Unpack[Options]) -> Lease:
        """Take the key like lock and return the Lease, which is renewed until it is settled.

        max_age (math.inf: any) accepts a record up to that age: acquire then raises Done. With
        renew=False the lease lasts for its ttl. A lease that nobody has any more is abandoned.
        """
        lease = Lease(self, self._asked(key, options, max_age=read_age(max_age)))
        try:
            self._take(lease, self._of_thread(), renew)
            return lease
        except BaseException:
            lease._attempt.give_up()
            raise

    def once(self, key: Key, fn: Callable[..., Any], *, keep: Duration = RETENTION, max_age: Duration | None = None,
             remember: Remember = (), rerun: bool = False, pass_lease: bool = False, in_: Any = None, **options: Unpack[Options]) -> Any:
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
        pass_lease: fn gets the lease as its argument.

        in_: a connection of psycopg or psycopg2 to the PostgreSQL database of the store, outside of a
        transaction. fn then runs in a transaction on it, which commits together with the result. So a
        crash leaves both or neither, and fn has its effect exactly once. An error rolls back; errors
        of the driver are for the caller, who calls once again after a conflict. A result that cannot be
        stored rolls back, too.

        The other arguments and errors are those of lock. If fn ran and its result could not be
        stored (it is not JSON, or too large), once raises NotKept.
        """
        retention = read_retention(keep)
        connection = None if in_ is None else psycopg_connection(in_)
        attempt = self._asked(key, options, max_age=math.inf if max_age is None else read_age(max_age))

        def run(lease: Lease) -> Any:
            return returned(fn(lease) if pass_lease else fn())
        with contextlib.ExitStack() as stack:
            try:
                lease = stack.enter_context(Block(self, attempt))
            except Done as done:
                return read_record(done, attempt)
            if connection is not None:
                return run_in(connection, lease, lambda: run(lease), retention, remember)
            try:
                result = run(lease)
            except Exception as e:
                if remembers(remember, e):
                    keep_result(lease, kept_error(e), retention, rerun)
                raise
            kept = kept_result(result)
            keep_result(lease, kept, retention, rerun)
            return kept.value

    def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction of the application: it exists when the transaction commits.

        See reserve. For the cursor and its errors see Lease.complete_in.
        """
        attempt = self._attempt(key, grace=grace, label=label, place_ttl=read_place_ttl(ttl))
        with self._reserves_in(attempt, self._namespace_of(attempt)) as statement:
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
            ticket = self._reserve(lease)
            return ticket
        except BaseException:
            lease._attempt.give_up()  # nobody has its ticket
            raise

    def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now, with this grace.

        A place that has ended is reserved again, at the end of the queue.
        """
        token, namespace, key = read_ticket(ticket)
        self._here().undoer.claims(token)
        self._ask_place(self._attempt(key, namespace=namespace, token=token, grace=grace, place_ttl=read_place_ttl(ttl)))

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
        token, namespace, key = read_ticket(ticket)
        attempt = self._attempt(key, namespace=namespace, token=token)
        tries = Tries(self._timeout)
        repeated = False
        while True:
            try:
                answers, _, again = self._here().call("settle", {"settlements": [{**attempt.named(), "outcome": "release"}]}, 1)
                kind, detail = problem_of(answers[0])
                if kind in (None, "lost"):
                    self._here().undoer.settled(attempt.named(), self._silent.get(token, -math.inf))
                if kind is not None and not (kind == "lost" and (again or repeated)):
                    raise error_of(kind, detail, attempt)
                return
            except (Unavailable, Busy, Overloaded) as e:
                repeated = repeated or e._unanswered
                if not tries.again():
                    raise

    def held(self, key: Key) -> bool:
        """Report whether a caller holds the key, or comes before a new one. It changes nothing."""
        attempt = self._attempt(key)
        answer = self._ask_retrying(attempt, "look")
        if answer.get("state") not in ("held", "free"):
            raise refusal(attempt, answer)
        return answer["state"] == "held"

    def flush(self, limit: Duration | None = None) -> bool:
        """Wait until what is undone in the background is done, for at most limit (default: timeout).

        At the end of the program it is called by itself. It reports whether all is done.
        """
        seconds = self._timeout if limit is None else read_seconds(limit, "limit")
        local = self._local
        return local is None or local.pid != os.getpid() or local.undoer.flush(seconds)

    def close(self) -> None:
        """Settle what is to be undone, for at most the timeout, and close the connections.

        Callers that wait get Closed. Leases that are held are not renewed any more.
        """
        local = self._local
        if not self._closed and local is not None and local.pid == os.getpid():
            self._closed = True
            local.cut()
            local.undoer.flush(self._timeout)
            local.stop()
        self._closed = True

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        local = getattr(self, "_local", None)
        if local is not None and not _finalizing() and local.pid == os.getpid():
            local.stop()

    def __repr__(self) -> str:  # shows no token
        return f"<dibs.Client {','.join(map(str, self._address.servers))}>"

    def _here(self) -> Process:
        """Return what the client has in this process."""
        if self._closed:
            raise Closed("dibs: the client is closed")
        local = self._local
        if local is None or local.pid != os.getpid():
            with lock:
                local = self._local
                if local is None or local.pid != os.getpid():
                    local = Process(self._address, self._timeout)
                    processes.add(local)
                    local.start()
                    self._local = local
        return local

    def _of_thread(self) -> weakref.WeakSet[Lease]:
        """Return the leases of this thread's blocks."""
        mine: weakref.WeakSet[Lease] | None = getattr(self._mine, "leases", None)
        if mine is None:
            mine = self._mine.leases = weakref.WeakSet()
        return mine

    def _of_task(self) -> weakref.WeakSet[Lease]:
        """Return the leases of this task's blocks."""
        import asyncio
        task = asyncio.current_task()
        return weakref.WeakSet() if task is None else self._tasks.setdefault(task, weakref.WeakSet())

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
        asked = {
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
            raise ValueError("dibs: fingerprint is no SHA-256 in 64 hexadecimal digits, such as hashlib.sha256(data).hexdigest()")
        attempt = Attempt(key, self._namespace if namespace is None else namespace, asked)
        attempt.place_silent = self._silent.get(place or "", -math.inf)
        return attempt

    def _take(self, lease: Lease, mine: weakref.WeakSet[Lease], renew: bool = True) -> None:
        """Take the lease, or raise and leave nothing of it behind."""
        attempt = lease._attempt
        local = attempt.local = self._here()
        waits_for_itself(attempt, mine)
        try:
            local.waits.add(attempt)
            answer, sent = self._wait(local, attempt)
            attempt.grant(answer, sent)
            if renew:
                local.renewer.add(attempt)
            if attempt.given_up:
                raise gone(attempt)
        except BaseException as e:
            attempt.give_up()
            if attempt.place and isinstance(e, Mismatch):  # the place could never be redeemed
                local.undoer.settle(attempt, {"outcome": "release"}, place=True)
            raise
        finally:
            local.waits.discard(attempt)
            if local.closing:
                local.undoer.look()

    def _wait(self, local: Process, attempt: Attempt) -> tuple[dict[str, Any], float]:
        """Ask until the attempt is granted, refused or given up, and return the answer and when the
        claim was sent.
        """
        start = heard = clock.now()
        once = attempt.wait == 0
        ends = math.inf if attempt.wait is None else start + attempt.wait
        poll, pause = 0.0, 0.01
        while True:
            if attempt.given_up:
                raise gone(attempt)
            self._here()
            try:
                answer, sent = self._ask(local, attempt, "try" if once else "queue", poll)
                heard = clock.now()  # busy, too, is an answer
                kind, detail = problem_of(answer)
                if kind is not None:
                    raise error_of(kind, detail, attempt)
                pause = 0.01
                state = answer.get("state")
                if state == "granted":
                    # The trust counts from when the claim was sent. If that was long ago, the same
                    # claim is sent again: it gets the same lease, for a whole TTL.
                    if poll == 0 or heard - sent < attempt.ttl / 20:
                        return answer, sent
                    poll = 0.0
                    continue
                if state != "held" or once or heard >= ends:
                    raise refusal(attempt, answer, heard - start)
                poll = min(ends - heard, POLL)
            except (Unavailable, Busy, Overloaded) as e:
                self._here()
                if poll and isinstance(e, Unavailable):
                    heard = clock.now()  # until then the server waited on purpose
                pause = min(pause * 2, 1.0)
                rest = pause * random.uniform(0.5, 1.0)
                if clock.now() + rest > (start + 1.0 if once else min(heard + PATIENCE, ends)):
                    raise
                time.sleep(rest)
                if not isinstance(e, Overloaded):
                    poll = 0.0

    def _ask(self, local: Process, attempt: Attempt, mode: str, poll: float) -> tuple[dict[str, Any], float]:
        """Send the claim once and note what it may have at the store."""
        before = attempt.open, attempt.silent
        attempt.open, attempt.silent = True, clock.now()
        body: dict[str, Any] = {"claims": [attempt.wire(mode)]}
        if poll > 0:
            body["wait_ms"] = to_ms(poll)
        try:
            answers, sent, silent = local.call("claim", body, 1, wait=poll)
        except Error as e:
            if not e._unanswered:  # nothing was done
                attempt.open, attempt.silent = before
            raise
        answer = answers[0]
        attempt.open = answer.get("state") == "granted" or answer.get("queued") is True or "error" in answer
        if not silent:
            attempt.silent = before[1]
        return answer, sent

    def _ask_retrying(self, attempt: Attempt, mode: str) -> dict[str, Any]:
        """Ask once, and again for a second if the server is away."""
        tries = Tries(1.0)
        local = attempt.local = self._here()
        while True:
            try:
                answer, _ = self._ask(local, attempt, mode, 0.0)
                kind, detail = problem_of(answer)
                if kind is not None:
                    raise error_of(kind, detail, attempt)
                return answer
            except (Unavailable, Busy, Overloaded):
                if not tries.again():
                    raise

    def _ask_place(self, attempt: Attempt) -> None:
        """Reserve a place."""
        try:
            answer = self._ask_retrying(attempt, "reserve")
        finally:
            if attempt.silent > -math.inf:
                self._silent[attempt.token] = attempt.silent
                for token, silent in list(self._silent.items()):
                    if silent < clock.now() - FROZEN:
                        self._silent.pop(token, None)
        if answer.get("state") != "held" or not answer.get("queued"):
            raise refusal(attempt, answer)

    def _namespace_of(self, attempt: Attempt) -> str:
        """Return the namespace of a key: if the credential decides it, the server says it."""
        if self._own is None:
            self._own = self._ask_retrying(self._attempt(attempt.key), "look").get("namespace") or ""
        return self._own

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

    def _reserve(self, lease: Lease) -> str:
        """Reserve a place and return its ticket, or raise and leave nothing of it behind."""
        attempt = lease._attempt
        try:
            self._ask_place(attempt)
            ticket = write_ticket(attempt)
            if attempt.given_up:
                raise gone(attempt)
            attempt.settled = True  # its end is that of the ticket
            return ticket
        except BaseException:
            attempt.give_up()
            raise
