"""What a call consists of: steps, which a thread takes one after the other, or a task of asyncio.

Each call is written once, as a generator of steps. Process runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .attempt import Attempt

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Ask(NamedTuple):
    """Asks the servers. Its result is an Answer.

    wait is how long the server may take on purpose. timeout bounds the rest; None: the client's.
    """

    verb: str
    element: dict[str, Any]
    attempt: Attempt
    wait: float = 0.0
    timeout: float | None = None


class Answer(NamedTuple):
    """What a server answered: when the call was sent, and whether it was sent before and not answered,
    so that it may have been done then."""

    element: dict[str, Any]
    sent: float
    again: bool


class Pause(NamedTuple):
    """Waits for so many seconds."""

    seconds: float


class Call(NamedTuple):
    """Calls a function of the caller. A task awaits what can be awaited."""

    fn: Callable[[], Any]
