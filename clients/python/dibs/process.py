"""What a client has in one process, forks, and the end of the program."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
import time
from typing import Any

from .address import Address
from .attempt import Attempt, Settings
from .batch import Batcher
from .errors import Error
from .renewer import Renewer
from .servers import Servers
from .step import Answer, Ask, Call, Pause, Steps, T
from .undo import Undoer
from .wire import Response

CLEAN = ("release", "keep")  # the outcomes that end a reserved place


class Process:
    """Connections, and the threads that renew, settle in the background and send batches."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self.pid = os.getpid()
        self.clock, self.timeout = settings.clock, settings.timeout
        self.servers = Servers(address, self.timeout)
        self.waits: set[Attempt] = set()  # of callers that wait for a key
        self.closing = False
        self.renewer = Renewer(self.clock, self.call_all, self.timeout)
        self.undoer = Undoer(self.clock, self.call_all, self.timeout, lambda: self.closing and bool(self.waits))
        self.claims = Batcher(self.servers, self.timeout, self.undoer.look)
        self.ends = Batcher(self.servers, self.timeout, self.undoer.look)  # settlements, and renewals with progress

    def start(self) -> None:
        processes.add(self)
        for name, run in (("dibs undoer", self._undo), ("dibs renewer", self.renewer.run),
                          ("dibs claims", self.claims.run), ("dibs settlements", self.ends.run)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        """End the threads: the undoer when it has settled what it has."""
        self.renewer.stop()
        self.claims.stop()
        self.ends.stop()
        self.undoer.stop()

    def end(self) -> None:
        """End one that nobody has used."""
        self.stop()
        processes.discard(self)

    def _undo(self) -> None:
        self.undoer.run()
        processes.discard(self)
        self.servers.close()

    def flush(self, limit: float) -> bool:
        """Wait at most limit seconds until everything was settled once, and report whether it was."""
        return self.undoer.flush(limit)

    def cut(self) -> None:
        """End the calls that wait."""
        self.closing = True
        self.servers.cut()

    def call_all(self, verb: str, elements: list[dict[str, Any]], timeout: float | None = None) -> list[Answer | Error]:
        """Make a call of one of the threads."""
        return self.servers.call_all(verb, elements, timeout)

    def get(self, path: str) -> Response:
        """Ask for a page."""
        return self.servers.get(path)

    # The ends of an attempt. An end is noted after it was handed over, never before: an exception between
    # the two has it settled twice, which does no harm.

    def hand_over(self, attempt: Attempt, settlement: dict[str, Any]) -> None:
        """Settle the lease in the background."""
        self.undoer.settle(attempt, settlement)
        if attempt.place and settlement["outcome"] in CLEAN:
            self.undoer.settled(attempt, place=True)
        attempt.settled = True
        self.renewer.remove(attempt)

    def ended(self, attempt: Attempt, outcome: str) -> None:
        """Note that the token was settled. A clean end is that of the reserved place that it redeems, too."""
        self.undoer.settled(attempt)
        attempt.silent = float("-inf")
        if attempt.place and outcome in CLEAN:
            self.undoer.settled(attempt, place=True)
        self.renewer.remove(attempt)

    def give_up(self, attempt: Attempt) -> None:
        """Undo in the background what the token may have, for a caller that never got the lease."""
        if attempt.open:
            self.undoer.settle(attempt, {"outcome": "undo"})
            attempt.open = False
        attempt.settled = True
        self.renewer.remove(attempt)

    # The steps of a call.

    def run(self, steps: Steps[T]) -> T:
        """Take the steps on this thread."""
        try:
            step = next(steps)
            while True:
                try:
                    while True:
                        step = steps.send(self.take(step))
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                except BaseException as e:
                    step = steps.throw(e)
        except StopIteration as stop:
            last: T = stop.value
            return last
        finally:
            steps.close()

    async def run_async(self, steps: Steps[T]) -> T:
        """Take the steps in this task."""
        try:
            step = next(steps)
            while True:
                try:
                    while True:
                        step = steps.send(await self.take_async(step))
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                except BaseException as e:
                    step = steps.throw(e)
        except StopIteration as stop:
            last: T = stop.value
            return last
        finally:
            steps.close()

    def take(self, step: Any) -> Any:
        if isinstance(step, Ask):
            if step.wait:
                return self.servers.call(step.verb, [step.element], step.wait, step.timeout)[0]
            return (self.claims if step.verb == "claim" else self.ends).ask(step)
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        return called(step)

    async def take_async(self, step: Any) -> Any:
        if isinstance(step, Ask):
            if step.wait:
                from .poll import poll
                return await poll(self.servers, step, self.timeout if step.timeout is None else step.timeout)
            return await (self.claims if step.verb == "claim" else self.ends).ask_async(step)
        if isinstance(step, Pause):
            import asyncio
            return await asyncio.sleep(step.seconds)
        result = called(step)
        return await result if inspect.isawaitable(result) else result


def called(step: Call) -> Any:
    """Call the function of the caller. Its StopIteration would end the steps, and is an error as in any generator."""
    try:
        return step.fn()
    except StopIteration as e:
        raise RuntimeError("the function raised StopIteration") from e


lock = threading.RLock()  # a signal handler may make a call while its thread makes its first one
processes: set[Process] = set()  # of the clients of this process, until their threads have ended


def forked() -> None:
    """In a process that was forked: close the connections of its parent."""
    global lock
    lock = threading.RLock()
    for process in list(processes):
        process.servers.abandon()
    processes.clear()


def flush_all() -> None:
    """At the end of the program, settle in the background what no thread can settle any more."""
    ends = time.monotonic() + 2.0
    for process in list(processes):
        for attempt in process.renewer.attempts():
            if not attempt.daemon and attempt.live():
                process.hand_over(attempt, {"outcome": "abandon"})
        process.flush(max(ends - time.monotonic(), 0.0))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)
atexit.register(flush_all)
