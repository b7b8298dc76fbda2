"""What is asked at the same time goes in one call, and none waits for others.

A call that is alone leaves at once, on its caller's thread. What is asked while one is under way is
the next batch, which a thread sends. That is a thread of its own because a signal handler can
interrupt a caller that sends, and make a call itself: it would wait for itself. Tasks of asyncio
always use that thread.
"""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import clock
from .clock import Bell
from .errors import Error, Unavailable, as_silent
from .servers import Servers
from .step import Answer, Ask

if TYPE_CHECKING:
    import asyncio

MOST = 1024  # elements of a call
BYTES = 1 << 18  # of the data in them
SLOW = 0.1  # a batch that takes longer holds up no others


def group_of(ask: Ask) -> Any:
    """Return what is the same in all of a call: a namespace that is refused would refuse the others, and a
    large record would hold them up."""
    return ask.verb, ask.element.get("namespace"), "max_age_ms" in ask.element


def size_of(ask: Ask) -> int:
    return len(ask.element.get("data", "")) + len(ask.element.get("progress", ""))


def late(ask: Ask) -> Error:
    """Take it back because its time is over."""
    return as_silent(Unavailable(f"dibs: {ask.verb}: no server answered in time"), ask.leave())


def tell(ask: Ask, future: asyncio.Future[Answer]) -> None:
    """Give the task its result."""
    if future.done() or ask.outcome is None:
        return
    if isinstance(ask.outcome, Error):
        future.set_exception(ask.outcome)
    else:
        future.set_result(ask.outcome)


class Batcher:
    """Makes calls of one element each, or of many."""

    def __init__(self, servers: Servers, timeout: float, came_late: Callable[[], None]) -> None:
        self._servers, self._timeout = servers, timeout
        self._came_late = came_late  # called after a batch in which an answer has no caller any more
        self._queue: collections.deque[Ask] = collections.deque()
        self._bell = Bell()
        self._alone = False  # a caller sends its call itself
        self._since: dict[int, float] = {}  # by thread: since when its batch is under way
        self._rings: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()  # the loops that will ring
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._bell.ring()

    def ask(self, ask: Ask) -> Answer:
        if self._queue or self._since or self._alone:
            return self._wait(ask)
        try:
            self._alone = True
            return self._servers.call(ask.verb, [ask.element], timeout=ask.timeout)[0]
        finally:
            self._alone = False

    def _put(self, ask: Ask) -> None:
        ask.ends = clock.now() + (self._timeout if ask.timeout is None else ask.timeout)
        self._queue.append(ask)
        if self._stopped:
            self._hurry(ask)

    def _wait(self, ask: Ask) -> Answer:
        bell = ask.bell = Bell()
        self._put(ask)
        self._bell.ring()
        while not ask.done:
            left = ask.ends - clock.now()
            if left <= 0:
                error = late(ask)
                ask.outcome = ask.outcome or error  # the answer may have come just now
                break
            if not bell.wait(min(left, SLOW)):
                self._hurry(ask)
        assert ask.outcome is not None
        if isinstance(ask.outcome, Error):
            raise ask.outcome
        return ask.outcome

    async def ask_async(self, ask: Ask) -> Answer:
        import asyncio  # here, because it takes longer than all else
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        ask.future = future
        ask.timer = loop.call_later(SLOW, self._look, loop, ask)
        self._put(ask)
        if loop not in self._rings:  # once for all tasks that ask now
            self._rings.add(loop)
            loop.call_soon(self._ring, loop)
        try:
            return await future
        finally:
            ask.timer.cancel()

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._rings.discard(loop)
        self._bell.ring()

    def _look(self, loop: asyncio.AbstractEventLoop, ask: Ask) -> None:
        """See to a task that has no answer yet."""
        left, future = ask.ends - clock.now(), ask.future
        if left <= 0 and future is not None:
            error = late(ask)
            ask.outcome = ask.outcome or error  # the answer may have come just now
            tell(ask, future)
        elif not ask.done:
            self._hurry(ask)
            ask.timer = loop.call_later(min(left, SLOW), self._look, loop, ask)

    def _hurry(self, ask: Ask) -> None:
        """Send what waits behind a batch that takes long, or for a thread that has ended."""
        now = clock.now()
        last = max(list(self._since.values()), default=-math.inf if self._stopped else now)
        if not ask.sent and now - last >= SLOW:
            more = threading.Thread(target=self._drain, name="dibs batch", daemon=True)
            self._since[-1] = now  # so that no other caller starts one
            try:
                more.start()
            except RuntimeError:  # the program ends, and no thread begins any more
                self._drain()

    def run(self) -> None:
        while not self._stopped:
            self._bell.wait(math.inf)
            self._drain()

    def _drain(self) -> None:
        me = threading.get_ident()
        while True:
            time.sleep(0)  # callers that were just answered ask first, and their next calls join this batch
            asks = self._take()
            if asks:
                self._since[me] = clock.now()
            self._since.pop(-1, None)
            if not asks:
                return
            try:
                timeout = max(ask.ends for ask in asks) - clock.now()
                outcomes = self._servers.call_all(asks[0].verb, [ask.element for ask in asks], timeout)
                for ask, outcome in zip(asks, outcomes):
                    ask.outcome = outcome
                self._finish(asks)
            finally:
                del self._since[me]

    def _take(self) -> list[Ask]:
        asks: list[Ask] = []
        others: list[Ask] = []
        size, group = 0, None
        while len(asks) < MOST:
            try:
                ask = self._queue.popleft()
            except IndexError:
                break
            if asks and (group_of(ask) != group or size + size_of(ask) > BYTES):
                others.append(ask)
                continue
            ask.sent = True  # before the look at left, and leave looks in the other order
            if ask.left:
                self._finish([ask])
            else:
                asks.append(ask)
                size, group = size + size_of(ask), group_of(ask)
        self._queue.extendleft(reversed(others))
        return asks

    def _finish(self, asks: list[Ask]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Ask, asyncio.Future[Answer]]]] = {}
        for ask in asks:
            ask.done = True
            if ask.bell is not None:
                ask.bell.ring()
            elif ask.future is not None:
                loops.setdefault(ask.future.get_loop(), []).append((ask, ask.future))
                ask.future = None  # if the loop is closed nothing keeps the task, so that its claim is undone
        for loop, told in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell_all, told)
        if any(ask.left for ask in asks):
            self._came_late()


def tell_all(told: list[tuple[Ask, asyncio.Future[Answer]]]) -> None:
    for ask, future in told:
        tell(ask, future)
