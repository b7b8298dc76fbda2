"""The right to a key."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .attempt import CLEAN, Attempt
from .clock import Tries
from .errors import Busy, Error, Lost, Overloaded, Unavailable, error_of, problem_of
from .options import RETENTION, Duration, Key, b64, interval, read_retention, to_ms
from .step import Answer, Ask, Pause, Steps, T

if TYPE_CHECKING:
    from .client import Client

PATIENCE = 10.0  # how long what was waited or worked for is asked again


CALLS = {"keep": "complete", "release": "release", "abandon": "abandon", "undo": "undo"}  # by their outcome


class Lease:
    """The right to a key until it is settled or lost.

    It is renewed in the background. Its methods are safe for threads. A process that was forked
    does not own it. A lease that nobody has any more is abandoned, so keep it in a variable.
    """

    __slots__ = ("_client", "_attempt", "__weakref__")

    def __init__(self, client: Client, attempt: Attempt) -> None:
        self._client, self._attempt = client, attempt

    @property
    def key(self) -> Key:
        """The key that is held."""
        return self._attempt.key

    @property
    def ttl(self) -> float:
        """The TTL in seconds."""
        return self._attempt.ttl

    @property
    def attempt(self) -> int:
        """1 plus the number of leases in a row that were abandoned before this one."""
        return self._attempt.attempt

    @property
    def progress(self) -> bytes | None:
        """What the holders that were abandoned before this one saved last, or None."""
        return self._attempt.progress

    @property
    def held(self) -> bool:
        """Whether the lease is held and trusted."""
        return self._attempt.held()

    @property
    def fence(self) -> int:
        """The fencing token: it rises with every grant of the key.

        A resource that remembers the highest fence and refuses lower ones is safe from a holder
        that was stopped for longer than its lease. It raises Lost like check.
        """
        self.check()
        assert self._attempt.fence is not None
        return self._attempt.fence

    @property
    def left(self) -> float:
        """The seconds for which the lease can still be trusted unless it is renewed."""
        return max(self._attempt.trusted - self._attempt.clock.now(), 0.0) if self.held else 0.0

    @property
    def id(self) -> str:
        """The public name of this lease, which operators see."""
        return self._attempt.id

    def check(self) -> Lease:
        """Return the lease, and raise Lost if it is not held any more.

        It looks at the clock, so it also knows when the process was stopped for longer than the
        lease.
        """
        if not self._attempt.held():
            raise self._lost()
        return self

    def save(self, progress: bytes) -> None:
        """Keep progress (at most 1 MiB) with the lease and renew it.

        The next holder gets it if this one does not settle. It raises Lost, Unavailable or another
        Error.
        """
        self._run(self._save(progress))

    def _save(self, progress: bytes) -> Steps[None]:
        self.check()
        attempt = self._attempt
        element = {**attempt.named(), "ttl_ms": to_ms(attempt.ttl), "progress": b64(progress)}
        answer: Answer = yield Ask("renew", element, attempt, timeout=min(self._client.timeout, self.left))
        kind, detail = problem_of(answer.element)
        if kind is None:
            attempt.trust(answer.sent)
        elif kind == "lost":
            attempt.lose()
            raise self._lost()
        else:
            raise error_of(kind, detail, attempt)

    def _run(self, steps: Steps[T]) -> T:
        assert self._attempt.process is not None
        return self._attempt.process.run(steps)

    def release(self) -> None:
        """End the lease and leave nothing behind.

        It does nothing if the lease was settled before. It raises Lost when the lease was lost. It
        raises Unavailable, Busy or another Error when the server did not do it; the lease is then
        released in the background.
        """
        self._run(self._release("release"))

    def _release(self, outcome: str) -> Steps[None]:
        """End the lease now or in the background."""
        try:
            yield from self._settle({"outcome": outcome}, self._client.timeout)
        except Lost:
            raise
        except Error:
            self._attempt.hand_over({"outcome": outcome})
            raise

    def complete(self, data: bytes, keep: Duration = RETENTION) -> None:
        """End the lease and leave data behind as the key's record, for keep (default: 24 hours).

        It raises Lost, and then nothing is written. After Busy or Full the lease is still held:
        call complete again, or release. After Unavailable the record may be written, so the lease
        is not trusted any more: call complete again, and the store decides.
        """
        self._run(self._complete(data, read_retention(keep)))

    def _complete(self, data: bytes, retention: float) -> Steps[None]:
        return self._settle(self._record(data, retention), PATIENCE)

    def complete_in(self, cursor: Any, data: bytes | None, keep: Duration = RETENTION) -> None:
        """End the lease in a transaction of the application, in the PostgreSQL database of the store.

        What the transaction writes and the record are both committed, or neither is. Call it as the
        last statement of the transaction. cursor is one of psycopg, psycopg2 or Django, or any whose
        parameters are %s. With None for data it leaves no record, as release.

        The lease has ended when the transaction commits. If it is rolled back, the lease is still
        held. The end of the block of lock settles it in both cases; a lease of acquire needs release
        after the transaction, which does nothing if it committed.

        It raises Lost, WrongTransaction (the transaction has written nothing, or there is none),
        Refused (the database has no such store), Forbidden (the role may not call the function) and
        the errors of the driver. Let them roll the transaction back.
        """
        with self._settles_in(data, read_retention(keep), "written") as statement:
            cursor.execute(*statement)

    def abandon(self) -> None:
        """End the lease as if its holder had crashed: the next holder learns of it."""
        self._run(self._abandon())

    def _abandon(self) -> Steps[None]:
        return self._settle({"outcome": "abandon"}, self._client.timeout)

    def undo(self) -> None:
        """End the lease as if it had not been granted, for a holder that has done nothing.

        A reserved place can then be redeemed again.
        """
        self._run(self._undo())

    def _undo(self) -> Steps[None]:
        return self._settle({"outcome": "undo"}, self._client.timeout)

    def __repr__(self) -> str:  # shows no token
        return f"<dibs.Lease {self._attempt.shown()} {'held' if self.held else 'ended'}>"

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and hasattr(self, "_attempt"):
            self._attempt.dropped()

    def _record(self, data: bytes, retention: float) -> dict[str, Any]:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"dibs: a record is bytes, not {type(data).__name__}")
        if self._attempt.permits > 1:
            raise ValueError("dibs: a key with more than one permit cannot have a record")
        return {"outcome": "keep", "data": b64(data), "retention_ms": to_ms(retention)}

    @contextlib.contextmanager
    def _settles_in(self, data: bytes | None, retention: float, proof: str) -> Iterator[tuple[str, list[Any]]]:
        """Give the statement that settles in a transaction, and read its errors.

        Until the transaction commits the lease is held, and then a renewal finds none, which is no
        loss.
        """
        attempt = self._attempt
        record = None if data is None else self._record(data, retention)["data"]
        self.check()
        values = [b64(attempt.raw), attempt.token, record, interval(retention), attempt.own_namespace, proof]
        try:
            with self._client._function("settle_in", attempt) as name:
                attempt.in_transaction = True
                call = f"{name}(%s::text, %s::text, %s::text, %s::text::interval, %s::text, 'base64', %s::text)"
                # The mark is that of the run until then. It is set after the call, which reads it.
                yield "SELECT " + (call if proof == "written" else f"set_config('dibs.run', CASE WHEN {call} IS NULL THEN '' ELSE '{self.id}' END, true)"), values
        except Lost:
            attempt.lost = True
            self._renewed_no_more()
            raise

    def _committed(self) -> None:
        """Note that the transaction in which the lease was settled is committed."""
        self._attempt.settled = True
        self._renewed_no_more()
        self._attempt.ended(True)

    def _renewed_no_more(self) -> None:
        if self._attempt.process is not None:
            self._attempt.process.renewer.remove(self._attempt)

    def _find_out(self, record: bytes, retention: float) -> Steps[bool]:
        """Find out whether the transaction was committed that settled the lease with this record, if
        its answer did not arrive. A lease that can be released was not settled, and cannot be any
        more. The store accepts a record again from the token that has left it. If the servers do not
        say it, the next call of once finds it out.
        """
        try:
            done = not (yield from self._accepts({"outcome": "release"})) and (yield from self._accepts(self._record(record, retention)))
        except Error:
            return False
        self._committed()
        return done

    def _accepts(self, settlement: dict[str, Any]) -> Steps[bool]:
        attempt, tries = self._attempt, Tries(self._attempt.clock, PATIENCE)
        while True:
            try:
                answer: Answer = yield Ask("settle", {**attempt.named(), **settlement}, attempt)
                kind, detail = problem_of(answer.element)
                if kind is not None and kind != "lost":
                    raise error_of(kind, detail, attempt)
                return kind is None
            except (Unavailable, Busy, Overloaded):
                pause = tries.next()
                if pause is None:
                    raise
            yield Pause(pause)

    def _lost(self) -> Lost:
        attempt, why = self._attempt, ""
        if attempt.settled:
            why = ": it was settled"
        elif attempt.foreign():
            why = ": it belongs to the process that forked this one"
        elif attempt.unanswered and not attempt.lost:
            call = CALLS[attempt.unanswered]
            why = f", or may be: its {call} was sent and not answered; call {call} again, and the store decides"
        return Lost(f"dibs: the lease of the key {attempt.shown()} is lost{why}", key=self.key)

    def _hand_over(self, settlement: dict[str, Any]) -> None:
        """Settle the lease in the background, unless it was settled."""
        if not self._attempt.settled and not self._attempt.lost and not self._attempt.foreign():
            self._attempt.hand_over(settlement)

    def _finish(self) -> Steps[Lost | None]:
        """End the lease of a block, and return the error if it was lost while its block ran.

        An abandon or undo that was not answered is made again.
        """
        attempt, doubt = self._attempt, None
        if not attempt.foreign():  # a lock may be held forever in a process that was forked
            with attempt.settling:
                doubt = None if attempt.settled else attempt.unanswered
        why = f"may have ended while its block ran: its {CALLS[doubt]} was sent and not answered" if doubt else "was lost while its block ran"
        lost = Lost(f"dibs: the lease of the key {attempt.shown()} {why}", key=self.key)
        if attempt.foreign():
            return None if attempt.settled else lost
        try:
            yield from self._release(doubt if doubt and doubt != "keep" else "release")
        except Lost:
            attempt.tell_lost()
            return lost
        except Error:
            pass  # it is released in the background, and the block must not run again
        return lost if doubt else None

    def _settle(self, settlement: dict[str, Any], patience: float) -> Steps[None]:
        attempt = self._attempt
        if attempt.foreign():
            raise self._lost()
        assert attempt.process is not None
        try:
            with attempt.settling:
                if attempt.settled:
                    return
                nested, attempt.under_way = attempt.under_way, True
                try:
                    yield from self._settle_now(settlement, patience, nested)
                finally:
                    attempt.under_way = nested
        except Error:
            raise
        except BaseException:
            attempt.hand_over(settlement)  # a signal handler raised
            raise

    def _settle_now(self, settlement: dict[str, Any], patience: float, nested: bool) -> Steps[None]:
        """Settle the lease. nested says that a signal handler settles it while its thread does."""
        attempt = self._attempt
        assert attempt.process is not None
        outcome = settlement["outcome"]
        if attempt.lost or (attempt.overdue(self._attempt.clock.now()) and attempt.unanswered != outcome and not attempt.in_transaction):
            # What the store still has of it is abandoned, as it would be when it expires.
            attempt.process.undoer.settle(attempt, {"outcome": "abandon"})
            attempt.lost = True
            attempt.process.renewer.remove(attempt)
            attempt.tell_lost()
            raise self._lost()
        tries = Tries(attempt.clock, patience)
        while True:
            before, attempt.unanswered = attempt.unanswered, attempt.unanswered or outcome
            again = False
            try:
                answer: Answer = yield Ask("settle", {**attempt.named(), **settlement}, attempt)
                again = answer.again
                kind, detail = problem_of(answer.element)
                if kind is not None and kind != "lost":
                    raise error_of(kind, detail, attempt)
                break
            except Error as e:
                if not (again or e._unanswered):
                    attempt.unanswered = before  # nothing was done
                pause = tries.next() if isinstance(e, (Unavailable, Busy, Overloaded)) else None
                if pause is None:
                    raise
            yield Pause(pause)
        # The same record may be written twice. Any other end that was done before is a loss to the
        # store, and none to the holder.
        done = again or before == outcome or attempt.in_transaction or nested or attempt.settled
        lost = kind == "lost" and (outcome == "keep" or not done)
        if lost or attempt.lost or (attempt.overdue(self._attempt.clock.now()) and not attempt.in_transaction):
            attempt.lost = True
        else:
            attempt.settled = True
        attempt.process.renewer.remove(attempt)
        attempt.ended(kind is None and outcome in CLEAN)
        if lost:
            attempt.tell_lost()
            raise self._lost()
