"""What a call consists of: steps, which a thread takes one after the other, or a task of asyncio.

Each call is written once, as a generator of steps. Process runs it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .clock import Bell, Clock
from .errors import Busy, Error, Overloaded, Unavailable

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Answer(NamedTuple):
    """What a server answered: when the call was sent, and whether it was sent before and not answered,
    so that it may have been done then."""

    element: dict[str, Any]
    sent: float
    again: bool


class Ask:
    """Asks the servers. Its result is an Answer.

    wait is how long the server may take on purpose. timeout bounds the rest; None: the client's.
    """

    sent = done = left = False  # in a batch: it is under way, was answered, and nobody waits for it any more
    outcome: Answer | Error | None = None
    ends: float
    bell: Bell | None = None  # of a thread
    future: asyncio.Future[Answer] | None = None  # of a task
    timer: asyncio.TimerHandle

    def __init__(self, verb: str, element: dict[str, Any], wait: float = 0.0, timeout: float | None = None) -> None:
        self.verb, self.element, self.wait, self.timeout = verb, element, wait, timeout

    def leave(self) -> bool:
        """Take it back, and report whether it is under way: then what it asks for may be done later."""
        self.left = True
        return self.sent and not self.done


class Pause(NamedTuple):
    """Waits for some seconds."""

    seconds: float


class Tries:
    """Paces the tries of one call: pauses double from 20 ms to 1 s, half of each is random."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock, self._ends, self._pause = clock, clock.now() + patience, 0.01

    def next(self, error: Error) -> Pause:
        """Return the pause before the next try, or raise the error if there is none."""
        self._pause = min(self._pause * 2, 1.0)
        seconds = self._pause * random.uniform(0.5, 1.0)
        if not isinstance(error, (Unavailable, Busy, Overloaded)) or self._clock.now() + seconds > self._ends:
            raise error
        return Pause(seconds)


class Call(NamedTuple):
    """Calls a function of the caller. A task awaits what can be awaited."""

    fn: Callable[[], Any]


def problem_of(outcome: Answer | Error) -> tuple[str | None, str | None]:
    """Return the type and the detail of an element's error. No answer is as good as a busy store."""
    if isinstance(outcome, Error):
        return "busy", None
    error = outcome.element.get("error")
    return (error.get("type"), error.get("detail")) if isinstance(error, dict) else (None, None)
