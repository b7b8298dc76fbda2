"""Time: the clock of leases, and a bell that wakes a thread."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable

# The clock of Linux that runs while the machine is suspended, and elsewhere the monotonic one.
now: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Clock:
    """The clock of a client. That of dibs.testing is paused until it is moved."""

    def now(self) -> float:
        return now()


CLOCK = Clock()


class Bell:
    """Wakes a thread. It may be rung by a finalizer, at any moment: no caller ever waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it rings, or for this many seconds, and report whether it rang."""
        return self._lock.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
