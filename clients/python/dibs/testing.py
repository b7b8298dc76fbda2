"""Tests of code that uses dibs, without a server, a thread or a sleep.

    keeper = dibs.testing.Keeper()
    keys = keeper.connect()                    # a Client
    keeper.held_by_another("invoice 42")       # keys.lock("invoice 42", wait=0) raises Held
    keeper.lose("invoice 42")                  # the lease of a client is lost now
    keeper.advance(3600)                       # an hour passes
    with keeper.away(): ...                    # no server answers

The client is the real one. The keeper replaces its servers, and has its own time. advance moves it, and
a caller that waits for a key that nobody in this process can release: its wait passes at once. A wait for the lease of another thread or task is a real one.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .address import Address
from .attempt import Attempt, Settings
from .client import Client
from .clock import Clock
from .errors import Error, Held, Unavailable
from .keeper import Key, Store
from .options import Duration, read_seconds
from .process import Process, called
from .step import Answer, Ask, Pause
from .wire import Response

if TYPE_CHECKING:
    import asyncio

NAME = "unix:/dibs/testing"


class Time(Clock):
    """The time of a keeper."""

    def __init__(self) -> None:
        self.moment = 1_000_000.0

    def now(self) -> float:
        return self.moment


class Keeper:
    """Keeps keys for the clients of a test."""

    def __init__(self) -> None:
        self._time = Time()
        self._store = Store(self._time)
        self._away = self._working = False
        self._changed = threading.Condition(threading.RLock())
        self._sleepers: list[Callable[[], None]] = []  # wakes the tasks that wait
        self._processes: list[InProcess] = []

    def connect(self, **options: Any) -> Client:
        """Return a client of this keeper. The options are those of dibs.connect."""
        return TestClient(self, **options)

    def held_by_another(self, key: str | bytes, seconds: Duration | None = None, namespace: str = "") -> None:
        """Let another caller hold the key, until release, or for so long. It raises Held if the key is held."""
        with self._changed:
            self._work()
            if not self._store.take(Key.of(key, namespace), None if seconds is None else read_seconds(seconds, "seconds")):
                raise Held(f"dibs: the key {key!r} is held", key=key)

    def release(self, key: str | bytes, namespace: str = "") -> None:
        """Release the key that is held_by_another."""
        with self._changed:
            self._store.give_back(Key.of(key, namespace))
            self._change()

    def lose(self, key: str | bytes, namespace: str = "") -> None:
        """Take the lease of the key away, as `dibs release` does. Its client notices now."""
        with self._changed:
            self._work()
            tokens = self._store.take_away(Key.of(key, namespace))
            for process in self._processes:
                lost = [attempt for attempt in process.renewer.attempts() if attempt.token in tokens]
                if lost:
                    process.renewer._renew(lost, process.timeout)
            self._change()

    def abandoned(self, key: str | bytes, progress: bytes | None = None, at_most_once: bool = False, namespace: str = "") -> None:
        """Let another process have died while it held the key."""
        with self._changed:
            self._work()
            self._store.abandon(Key.of(key, namespace), progress, at_most_once)

    def holds(self, key: str | bytes, namespace: str = "") -> bool:
        """Report whether a caller holds the key."""
        with self._changed:
            self._work()
            return self._store.is_held(Key.of(key, namespace))

    def advance(self, seconds: Duration) -> None:
        """Let time pass. Leases are renewed meanwhile, unless the keeper is away."""
        with self._changed:
            ends = self._time.moment + read_seconds(seconds, "seconds")
            while True:
                self._work()
                due = min((process.due() for process in self._processes), default=ends)
                if due >= ends:
                    break
                self._time.moment = max(due, self._time.moment + 0.001)
            self._time.moment = max(ends, self._time.moment)
            self._work()
            self._change()

    def away(self) -> Away:
        """Let no server answer, until back, or while a with block runs."""
        self._away = True
        return Away(self)

    def back(self) -> None:
        self._away = False

    # What a client asks.

    def _work(self) -> None:
        """Do what is due in the background."""
        if self._working:
            return
        self._working = True
        try:
            for process in self._processes:
                process.work()
        finally:
            self._working = False

    def _change(self) -> None:
        """Wake those that wait."""
        self._changed.notify_all()
        sleepers, self._sleepers = self._sleepers, []
        for wake in sleepers:
            wake()

    def _answer(self, verb: str, element: dict[str, Any], owner: Any = None) -> Answer:
        with self._changed:
            self._work()
            if self._away:
                raise Unavailable("dibs: the server is away, says the test")
            sent = self._time.moment
            answer = self._store.answer(verb, element, owner)
            if verb == "settle":
                self._change()
            return Answer(answer, sent, False)

    def _passes(self, attempt: Attempt, ends: float) -> bool:
        """Let time pass for a caller that waits, or report that another one of this process can release the key."""
        key = Key(attempt.namespace, attempt.raw)
        if self._store.can_be_released(key, owner_here()):
            return False
        renewed = {other.token for process in self._processes for other in process.renewer.attempts() if other.renewed and other._limit == math.inf}
        if attempt.wait is None and self._store.next_expiry(key, {attempt.token, *renewed}) is None:
            raise RuntimeError(f"dibs.testing: the wait for the key {attempt.shown()} would never end, because no thread or task of "
                               "this process can release it; give it a wait")
        until = self._store.next_expiry(key, {attempt.token})
        self.advance(max(min(ends, until or ends) - self._time.moment, 0.001))
        return True


class Away:
    """The block in which no server answers."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._keeper.back()


class TestClient(Client):
    __test__ = False  # it is none of pytest's

    def __init__(self, keeper: Keeper, **options: Any) -> None:
        super().__init__(NAME, **options)
        self._keeper, self._settings = keeper, self._settings._replace(clock=keeper._time)

    def _new_process(self) -> Process:
        return InProcess(self._keeper, self._settings)


class InProcess(Process):
    """Asks the keeper. What its threads would do is done in between."""

    def __init__(self, keeper: Keeper, settings: Settings) -> None:
        super().__init__(Address(NAME), settings)
        self._keeper = keeper

    def start(self) -> None:
        self._keeper._processes.append(self)

    def flush(self, limit: float) -> bool:
        with self._keeper._changed:
            self._keeper._work()
        return not any(entry.first for entry in self.undoer._entries)

    def cut(self) -> None:
        self.closing = True
        with self._keeper._changed:
            self._keeper._change()

    def due(self) -> float:
        return min(min((a.due for a in self.renewer.attempts()), default=float("inf")), self.undoer.next() or float("inf"))

    def work(self) -> None:
        self.renewer.work()
        while (due := self.undoer.next()) is not None and due <= self.clock.now():
            if not self.undoer.work():
                break

    def call_all(self, verb: str, elements: list[dict[str, Any]], timeout: float | None = None) -> list[Answer | Error]:
        if self._keeper._away:
            return [Unavailable("dibs: the server is away, says the test") for _ in elements]
        return [Answer(self._keeper._store.answer(verb, element, None), self.clock.now(), False) for element in elements]

    def get(self, path: str) -> Response:
        response = Response()
        response.status, response.kind = 200, "application/jsonl"
        with self._keeper._changed:
            response.body = json.dumps(self._keeper._store.entry(path)).encode()
        return response

    def take(self, step: Any) -> Any:
        if isinstance(step, Pause):
            return self._keeper.advance(step.seconds)
        if not isinstance(step, Ask):
            return called(step)
        ends = self.clock.now() + step.wait
        with self._keeper._changed:
            while True:
                answer = self._keeper._answer(step.verb, step.element, owner_here())
                if answer.element.get("state") != "held" or self.clock.now() >= ends:
                    return answer
                left = ends - self.clock.now()
                if not self._keeper._passes(self._waiter(step), ends) and not self._keeper._changed.wait(left):
                    self._keeper.advance(left)  # the others did nothing for so long
                if self.closing:
                    raise Unavailable("dibs: the client is closed")

    def _waiter(self, step: Ask) -> Attempt:
        return next(attempt for attempt in self.waits if attempt.asked is step)

    async def take_async(self, step: Any) -> Any:
        import asyncio
        if not isinstance(step, Ask):
            result = self.take(step)
            if not isinstance(step, Pause):
                return await result if hasattr(result, "__await__") else result
            return await asyncio.sleep(0)
        ends = self.clock.now() + step.wait
        loop = asyncio.get_running_loop()
        while True:
            changed = asyncio.Event()
            with self._keeper._changed:
                answer = self._keeper._answer(step.verb, step.element, owner_here())
                if answer.element.get("state") != "held" or self.clock.now() >= ends:
                    return answer
                left, passes = ends - self.clock.now(), self._keeper._passes(self._waiter(step), ends)
                if not passes:
                    self._keeper._sleepers.append(functools.partial(wake, loop, changed))
            if not passes:
                try:
                    await asyncio.wait_for(changed.wait(), left)
                except asyncio.TimeoutError:
                    self._keeper.advance(left)
            if self.closing:
                raise Unavailable("dibs: the client is closed")


def wake(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    loop.call_soon_threadsafe(changed.set)


def owner_here() -> tuple[threading.Thread, Any]:
    """Return the thread and the task that ask."""
    import asyncio
    try:
        return threading.current_thread(), asyncio.current_task()
    except RuntimeError:
        return threading.current_thread(), None
