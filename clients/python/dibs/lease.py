"""The right to a key."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .attempt import Attempt
from .claim import PATIENCE
from .core import Core
from .errors import Error, Lost
from .options import RETENTION, Duration, Key, b64, interval, read_keep, to_ms
from .process import Process
from .step import Answer, Steps, T, Tries
from .transaction import function

L = TypeVar("L", bound="BaseLease")

CALLS = {"keep": "complete", "release": "release", "abandon": "abandon", "undo": "undo"}  # by their outcome


class BaseLease:
    """What Lease and AsyncLease share: what they say, and the steps that they take."""

    __slots__ = ("_core", "_attempt", "__weakref__")

    def __init__(self, core: Core, attempt: Attempt) -> None:
        self._core, self._attempt = core, attempt

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

    def check(self: L) -> L:
        """Return the lease, and raise Lost if it is not held any more.

        It looks at the clock, so it also knows when the process was stopped for longer than the
        lease.
        """
        if not self._attempt.held():
            raise self._lost()
        return self

    def __repr__(self) -> str:  # shows no token
        return f"<dibs.{type(self).__name__} {self._attempt.shown()} {'held' if self.held else 'ended'}>"

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and hasattr(self, "_attempt"):
            self._dropped()

    def _dropped(self) -> None:
        """End what is left when nobody has the lease any more."""
        attempt = self._attempt
        if attempt.settled or attempt.foreign():
            return
        if attempt.fence is None:
            self._process.give_up(attempt)
        elif attempt.lost or attempt.overdue():
            self._process.ended(attempt, "")
        else:
            self._process.hand_over(attempt, {"outcome": "abandon"})
            warnings.warn(f"dibs: nobody has the lease of the key {attempt.shown()} any more and it was not settled, so it is abandoned; "
                          "keep it in a variable, or use keys.lock", RuntimeWarning, stacklevel=3)

    @property
    def _process(self) -> Process:
        assert self._core._process is not None
        return self._core._process

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

    def _save(self, progress: bytes) -> Steps[None]:
        self.check()
        attempt = self._attempt
        more = {"ttl_ms": to_ms(attempt.ttl), "progress": b64(progress)}
        answer: Answer = yield attempt.ask("renew", more, timeout=min(self._process.timeout, self.left))
        if not attempt.known(answer):
            attempt.lose()
            raise self._lost()
        attempt.trust(answer.sent)

    def _release(self, outcome: str = "release") -> Steps[None]:
        """End the lease now or in the background."""
        try:
            yield from self._end(outcome)
        except Lost:
            raise
        except Error:
            self._process.hand_over(self._attempt, {"outcome": outcome})
            raise

    def _end(self, outcome: str) -> Steps[None]:
        return self._settle({"outcome": outcome}, self._process.timeout)

    def _complete(self, data: bytes, retention: float) -> Steps[None]:
        return self._settle(self._record(data, retention), PATIENCE)

    def _record(self, data: bytes, retention: float) -> dict[str, Any]:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"dibs: a record is bytes, not {type(data).__name__}")
        if self._attempt.permits > 1:
            raise ValueError("dibs: a key with more than one permit cannot have a record")
        return {"outcome": "keep", "data": b64(data), "retention_ms": to_ms(retention)}

    def _hand_over(self, settlement: dict[str, Any]) -> None:
        """Settle the lease in the background, unless it was settled."""
        if not self._attempt.settled and not self._attempt.lost and not self._attempt.foreign():
            self._process.hand_over(self._attempt, settlement)

    def _finish(self) -> Steps[Lost | None]:
        """End the lease of a block, and return the error if it was lost while its block ran.

        An abandon or undo that was not answered is made again.
        """
        attempt = self._attempt
        if attempt.foreign():  # a lock may be held forever in a process that was forked
            return None if attempt.settled else self._lost_in_block(None)
        with attempt.settling:
            doubt = attempt.unanswered  # before the look at settled, because a signal handler may settle between the two
            doubt = None if attempt.settled else doubt
        try:
            yield from self._release(doubt if doubt and doubt != "keep" else "release")
        except Lost:
            attempt.tell_lost()
            return self._lost_in_block(doubt)
        except Error:
            pass  # it is released in the background, and the block must not run again
        return self._lost_in_block(doubt) if doubt else None

    def _lost_in_block(self, doubt: str | None) -> Lost:
        why = f"may have ended while its block ran: its {CALLS[doubt]} was sent and not answered" if doubt else "was lost while its block ran"
        return Lost(f"dibs: the lease of the key {self._attempt.shown()} {why}", key=self.key)

    def _settle(self, settlement: dict[str, Any], patience: float) -> Steps[None]:
        attempt = self._attempt
        if attempt.foreign():
            raise self._lost()
        try:
            with attempt.settling:
                if attempt.settled:
                    return
                attempt.under_way += 1
                try:
                    yield from self._settle_now(settlement, patience, attempt.under_way > 1)
                finally:
                    attempt.under_way -= 1
        except Error:
            raise
        except BaseException:
            self._process.hand_over(attempt, settlement)  # a signal handler raised
            raise

    def _settle_now(self, settlement: dict[str, Any], patience: float, nested: bool) -> Steps[None]:
        """Settle the lease. nested says that another settlement of this thread is under way."""
        attempt, process = self._attempt, self._process
        outcome = settlement["outcome"]
        if attempt.lost or (attempt.overdue() and attempt.unanswered != outcome and not attempt.in_transaction):
            # What the store still has of it is abandoned, as it would be when it expires.
            process.undoer.settle(attempt, {"outcome": "abandon"})
            attempt.lost = True
            process.renewer.remove(attempt)
            attempt.tell_lost()
            raise self._lost()
        tries = Tries(attempt.clock, patience)
        while True:
            before, again = attempt.unanswered, False
            attempt.doubts.append(outcome)
            try:
                answer: Answer = yield attempt.ask("settle", settlement)
                again = answer.again
                known = attempt.known(answer)
                break
            except Error as e:
                if not (again or e._unanswered):
                    attempt.doubts.remove(outcome)  # nothing was done
                pause = tries.next(e)
            yield pause
        # The same record may be written twice. Any other end that was done before is a loss to the
        # store, and none to the holder.
        done = again or before == outcome or attempt.in_transaction or nested or attempt.settled
        lost = not known and (outcome == "keep" or not done)
        if lost or attempt.lost or (attempt.overdue() and not attempt.in_transaction):
            attempt.lost = True
        else:
            attempt.settled = True
        process.ended(attempt, outcome if known else "")
        if lost:
            attempt.tell_lost()
            raise self._lost()

    # In a transaction of the application.

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
            with function("settle_in", attempt) as name:
                attempt.in_transaction = True
                call = f"{name}(%s::text, %s::text, %s::text, %s::text::interval, %s::text, 'base64', %s::text)"
                # The mark is that of the run until then. It is set after the call, which reads it.
                yield "SELECT " + (call if proof == "written" else f"set_config('dibs.run', CASE WHEN {call} IS NULL THEN '' ELSE '{self.id}' END, true)"), values
        except Lost:
            attempt.lost = True
            self._process.renewer.remove(attempt)
            raise

    def _committed(self) -> None:
        """Note that the transaction in which the lease was settled is committed."""
        self._attempt.settled = True
        self._process.ended(self._attempt, "keep")

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
                return attempt.known((yield attempt.ask("settle", settlement)))
            except Error as e:
                pause = tries.next(e)
            yield pause


class Lease(BaseLease):
    """The right to a key until it is settled or lost.

    It is renewed in the background. Its methods are safe for threads. A process that was forked
    does not own it. A lease that nobody has any more is abandoned, so keep it in a variable.
    """

    __slots__ = ()

    def save(self, progress: bytes) -> None:
        """Keep progress (at most 1 MiB) with the lease and renew it.

        The next holder gets it if this one does not settle. It raises Lost, Unavailable or another
        Error.
        """
        self._run(self._save(progress))

    def release(self) -> None:
        """End the lease and leave nothing behind.

        It does nothing if the lease was settled before. It raises Lost when the lease was lost. It
        raises Unavailable, Busy or another Error when the server did not do it; the lease is then
        released in the background.
        """
        self._run(self._release())

    def complete(self, data: bytes, keep: Duration = RETENTION) -> None:
        """End the lease and leave data behind as the key's record, for keep (default: 24 hours).

        It raises Lost, and then nothing is written. After Busy or Full the lease is still held:
        call complete again, or release. After Unavailable the record may be written, so the lease
        is not trusted any more: call complete again, and the store decides.
        """
        self._run(self._complete(data, read_keep(keep)))

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
        with self._settles_in(data, read_keep(keep), "written") as statement:
            cursor.execute(*statement)

    def abandon(self) -> None:
        """End the lease as if its holder had crashed: the next holder learns of it."""
        self._run(self._end("abandon"))

    def undo(self) -> None:
        """End the lease as if it had not been granted, for a holder that has done nothing.

        A reserved place can then be redeemed again.
        """
        self._run(self._end("undo"))

    def _run(self, steps: Steps[T]) -> T:
        return self._process.run(steps)


class AsyncLease(BaseLease):
    """A Lease for asyncio: what calls the server is awaited, and the rest is the same."""

    __slots__ = ()

    async def save(self, progress: bytes) -> None:
        """Keep progress with the lease; see Lease.save."""
        await self._run(self._save(progress))

    async def release(self) -> None:
        """End the lease; see Lease.release."""
        await self._run(self._release())

    async def complete(self, data: bytes, keep: Duration = RETENTION) -> None:
        """End the lease and leave data behind; see Lease.complete."""
        await self._run(self._complete(data, read_keep(keep)))

    async def complete_in(self, cursor: Any, data: bytes | None, keep: Duration = RETENTION) -> None:
        """End the lease in a transaction, with an asynchronous cursor; see Lease.complete_in."""
        with self._settles_in(data, read_keep(keep), "written") as statement:
            await cursor.execute(*statement)

    async def abandon(self) -> None:
        """End the lease as if its holder had crashed; see Lease.abandon."""
        await self._run(self._end("abandon"))

    async def undo(self) -> None:
        """End the lease as if it had not been granted; see Lease.undo."""
        await self._run(self._end("undo"))

    async def _run(self, steps: Steps[T]) -> T:
        return await self._process.run_async(steps)
