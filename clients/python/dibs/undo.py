"""Settles in the background, by token, what no caller uses any more."""

from __future__ import annotations

import collections
import contextlib
import math
import random
import time
from typing import TYPE_CHECKING, Any

from . import clock
from .clock import Bell
from .errors import problem_of

if TYPE_CHECKING:
    from .attempt import Attempt
    from .process import Process

FROZEN = 300.0  # how long a server may be frozen, and then carry out a claim that it did not answer


MAX_ELEMENTS = 512  # of a call


class Entry:
    """What is to be settled in the background: first a settlement, if one is due, and then undos of
    the same token until a moment, because a claim that no server answered may be carried out late.
    """

    def __init__(self, named: dict[str, Any], settlement: dict[str, Any] | None, expires: float, until: float) -> None:
        self.token = named["token"]
        self.settlement = {**named, **(settlement or {"outcome": "undo"})}
        self.expires, self.until = expires, until
        self.first = settlement is not None
        self.due, self.pause = clock.now(), 1.0
        if not self.first:
            self.again()

    def again(self) -> bool:
        """Say when the token is undone next, and report whether it is."""
        self.first = False
        self.settlement = {**self.settlement, "outcome": "undo"}
        self.due, self.pause = clock.now() + self.pause, min(self.pause * 2, 15.0)
        return self.due <= self.until


class Undoer:
    """Settles in the background, by token, what no caller uses any more."""

    def __init__(self, local: Process, timeout: float) -> None:
        self._local, self._timeout = local, timeout
        self._mail: collections.deque[Entry | Bell | str] = collections.deque()
        self._bell = Bell()
        self._entries: list[Entry] = []
        self._flushes: list[Bell] = []
        self._stopped = self._ended = False

    def settle(self, attempt: Attempt, settlement: dict[str, Any], place: bool = False) -> None:
        """Settle the attempt, or the place that it redeems, in the background."""
        expires = clock.now() + max(attempt.ttl, attempt.place_ttl) + self._timeout
        silent = attempt.place_silent if place else attempt.silent
        self._put(Entry(attempt.named(attempt.place if place else None), settlement, expires, silent + FROZEN))

    def settled(self, named: dict[str, Any], silent: float) -> None:
        """Note that a token was settled. silent is when it sent the last claim that was not answered."""
        if clock.now() + 1 <= silent + FROZEN:
            self._put(Entry(named, None, math.inf, silent + FROZEN))

    def claims(self, token: str) -> None:
        """Note that a token claims again: it is not undone any more."""
        self._put(token)

    def flush(self, limit: float) -> bool:
        """Wait until everything was settled once, or for so many seconds."""
        done = Bell()
        self._put(done)
        return self._ended or done.wait(limit)

    def stop(self) -> None:
        """End the thread when everything was settled once."""
        self._stopped = True
        self._bell.ring()

    def look(self) -> None:
        """Say that a caller does not wait any more."""
        self._bell.ring()

    def _put(self, item: Entry | Bell | str) -> None:
        try:
            self._mail.append(item)
        finally:
            self._bell.ring()

    def run(self) -> None:
        pause = 0.02
        while self._collect():
            if self._settle():
                pause = 0.02
            else:
                pause = min(pause * 2, 1.0)
                time.sleep(pause * random.uniform(0.5, 1.0))
        self._local.ended()
        self._ended = True
        self._take_mail()
        for done in self._flushes:
            done.ring()

    def _take_mail(self) -> None:
        while self._mail:
            item = self._mail.popleft()
            if isinstance(item, Bell):
                self._flushes.append(item)
            elif isinstance(item, str):
                self._entries = [entry for entry in self._entries if entry.first or entry.token != item]
            else:
                self._entries.append(item)

    def _collect(self) -> bool:
        """Wait until something is due, and report whether there is more to do."""
        while True:
            stopped = self._stopped
            self._take_mail()
            waits = self._local.closing and self._local.waits and not stopped
            if not waits and not any(entry.first for entry in self._entries):
                for done in self._flushes:
                    done.ring()
                self._flushes.clear()
                if stopped:
                    return False
            left = min((entry.due for entry in self._entries), default=math.inf) - clock.now()
            if left <= 0:
                return True
            self._bell.wait(left)

    def _settle(self) -> bool:
        """Settle what is due in one call, and report whether the servers answered."""
        now = clock.now()
        due = [entry for entry in self._entries if entry.due <= now][:MAX_ELEMENTS]
        answers: list[dict[str, Any]] = []
        with contextlib.suppress(Exception):
            answers, _, _ = self._local.call("settle", {"settlements": [entry.settlement for entry in due]}, len(due))
        now = clock.now()
        ended = set()
        for i, entry in enumerate(due):
            kind = problem_of(answers[i])[0] if answers else "busy"
            if not entry.first or kind in (None, "lost"):
                if not entry.again():
                    ended.add(id(entry))
            elif kind != "busy" or now >= entry.expires:
                ended.add(id(entry))
        self._entries = [entry for entry in self._entries if id(entry) not in ended]
        return bool(answers)
