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
from typing import TYPE_CHECKING

from . import clock
from .clock import Bell
from .errors import Error, Unavailable, as_silent
from .servers import Servers
from .step import Answer, Ask

if TYPE_CHECKING:
    import asyncio

    from .undo import Undoer

MOST = 1024  # elements of a call
BYTES = 1 << 18  # of the data in them
SLOW = 0.1  # a batch that takes longer holds up no others


class Item:
    """One element on its way through a batch."""

    def __init__(self, ask: Ask, timeout: float) -> None:
        self.verb, self.element, self.ends = ask.verb, ask.element, clock.now() + timeout
        # A large record would hold up the others, and a namespace that is refused would refuse them.
        self.group = ask.verb, ask.element.get("namespace"), "max_age_ms" in ask.element
        self.size = len(ask.element.get("data", "")) + len(ask.element.get("progress", ""))
        self.outcome: Answer | Error | None = None
        self.sent = self.done = self.left = False
        self.bell: Bell | None = None  # of a thread
        self.future: asyncio.Future[Answer] | None = None  # of a task
        self.timer: asyncio.TimerHandle | None = None
        ask.attempt.item = self

    def result(self) -> Answer:
        assert self.outcome is not None
        if isinstance(self.outcome, Error):
            raise self.outcome
        return self.outcome

    def leave(self) -> bool:
        """Take it back, and report whether it is under way: then what it asks for may be done later."""
        self.left = True
        return self.sent and not self.done

    def late(self) -> Error:
        """Take it back because its time is over."""
        return as_silent(Unavailable(f"dibs: {self.verb}: no server answered in time"), self.leave())

    def tell(self, future: asyncio.Future[Answer]) -> None:
        """Give the task its result."""
        if future.done() or self.outcome is None:
            return
        if isinstance(self.outcome, Error):
            future.set_exception(self.outcome)
        else:
            future.set_result(self.outcome)


class Alone:
    """Ends with the frame of a caller that sends alone, wherever that is interrupted."""

    __slots__ = ("__weakref__",)


NOBODY = weakref.ref(Alone())


class Batcher:
    """Makes calls of one element each, or of many."""

    def __init__(self, servers: Servers, undoer: Undoer, timeout: float) -> None:
        self._servers, self._undoer, self._timeout = servers, undoer, timeout
        self._queue: collections.deque[Item] = collections.deque()
        self._bell = Bell()
        self._alone = NOBODY
        self._since: dict[int, float] = {}  # by thread: since when its batch is under way
        self._rings: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()  # the loops that will ring
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._bell.ring()

    def ask(self, ask: Ask) -> Answer:
        timeout = self._timeout if ask.timeout is None else ask.timeout
        if self._queue or self._since or self._alone() is not None:
            return self._wait(Item(ask, timeout))
        alone = Alone()
        self._alone = weakref.ref(alone)
        try:
            answers, sent, again = self._servers.call(ask.verb, [ask.element], timeout=timeout)
            return Answer(answers[0], sent, again)
        finally:
            self._alone = NOBODY

    def _wait(self, item: Item) -> Answer:
        item.bell = Bell()
        self._queue.append(item)
        self._bell.ring()
        if self._stopped:
            self._hurry(item)
        while not item.done:
            left = item.ends - clock.now()
            if left <= 0:
                late = item.late()
                if item.outcome is None:
                    raise late
                break
            if not item.bell.wait(min(left, SLOW)):
                self._hurry(item)
        return item.result()

    async def ask_async(self, ask: Ask) -> Answer:
        import asyncio  # here, because it takes longer than all else
        item = Item(ask, self._timeout if ask.timeout is None else ask.timeout)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        item.future = future
        item.timer = loop.call_later(SLOW, self._look, loop, item)
        self._queue.append(item)
        if self._stopped:
            self._hurry(item)
        elif loop not in self._rings:  # once for all tasks that ask now
            self._rings.add(loop)
            loop.call_soon(self._ring, loop)
        try:
            return await future
        finally:
            item.timer.cancel()

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._rings.discard(loop)
        self._bell.ring()

    def _look(self, loop: asyncio.AbstractEventLoop, item: Item) -> None:
        """See to the item of a task that has no answer yet."""
        left, future = item.ends - clock.now(), item.future
        if left <= 0 and future is not None:
            late = item.late()
            item.outcome = item.outcome or late  # the answer may have come just now
            item.tell(future)
        elif not item.done:
            self._hurry(item)
            item.timer = loop.call_later(min(left, SLOW), self._look, loop, item)

    def _hurry(self, item: Item) -> None:
        """Send what waits behind a batch that takes long, or for a thread that has ended."""
        now = clock.now()
        last = max(list(self._since.values()), default=-math.inf if self._stopped else now)
        if not item.sent and now - last >= SLOW:
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
            items = self._take()
            if items:
                self._since[me] = clock.now()
            self._since.pop(-1, None)
            if not items:
                return
            try:
                self._send(items)
            finally:
                del self._since[me]

    def _take(self) -> list[Item]:
        items: list[Item] = []
        others: list[Item] = []
        size = 0
        while len(items) < MOST:
            try:
                item = self._queue.popleft()
            except IndexError:
                break
            if items and (item.group != items[0].group or size + item.size > BYTES):
                others.append(item)
                continue
            item.sent = True  # before the look at left, and leave looks in the other order
            if item.left:
                self._finish([item])
            else:
                items.append(item)
                size += item.size
        self._queue.extendleft(reversed(others))
        return items

    def _send(self, items: list[Item]) -> None:
        timeout = max(item.ends for item in items) - clock.now()
        outcomes = self._servers.call_all(items[0].verb, [item.element for item in items], timeout)
        for item, outcome in zip(items, outcomes):
            item.outcome = outcome
        self._finish(items)

    def _finish(self, items: list[Item]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Item, asyncio.Future[Answer]]]] = {}
        for item in items:
            item.done = True
            if item.bell is not None:
                item.bell.ring()
            elif item.future is not None:
                loops.setdefault(item.future.get_loop(), []).append((item, item.future))
                item.future = None  # if the loop is closed nothing keeps the task, so that its claim is undone
        for loop, told in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell_all, told)
        if any(item.left for item in items):
            self._undoer.look()


def tell_all(told: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
    for item, future in told:
        item.tell(future)
