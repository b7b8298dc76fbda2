"""Settles in the background, by token, what no caller uses any more."""

from __future__ import annotations

import collections
import math
import random
import time
from typing import TYPE_CHECKING, Any

from .clock import Bell, Clock
from .errors import Error, problem_of

if TYPE_CHECKING:
    from .attempt import Attempt
    from .batch import Item
    from .process import Process

FROZEN = 300.0  # how long a server may be frozen, and then carry out a claim that it did not answer
MOST = 512  # settlements in a call


class Entry:
    """What is to be settled in the background: first a settlement, if one is due, and then undos of
    the same token until a moment, because a claim that no server answered may be carried out late.
    """

    def __init__(self, clock: Clock, named: dict[str, Any], settlement: dict[str, Any] | None, expires: float, until: float,
                 attempt: Attempt | None = None) -> None:
        self._clock, self.attempt = clock, attempt
        self.token = named["token"]
        self.settlement = {**named, **(settlement or {"outcome": "undo"})}
        self.expires, self.until = expires, until
        self.first = settlement is not None
        self.after: Item | None = None  # the claim that is under way in a batch: it must not be carried out after the undo
        self._due, self.pause = clock.now(), 1.0
        if not self.first:
            self.again()

    @property
    def due(self) -> float:
        return math.inf if self.after is not None and not self.after.done else self._due

    def again(self) -> bool:
        """Say when the token is undone next, and report whether it is."""
        self.first = False
        self.settlement = {**self.settlement, "outcome": "undo"}
        self._due, self.pause = self._clock.now() + self.pause, min(self.pause * 2, 15.0)
        return self._due <= self.until


class Undoer:
    """Settles in the background, by token, what no caller uses any more."""

    def __init__(self, process: Process, timeout: float) -> None:
        self._process, self._timeout = process, timeout
        self._mail: collections.deque[Entry | Bell | str] = collections.deque()
        self._bell = Bell()
        self._entries: list[Entry] = []
        self._flushes: list[Bell] = []
        self._stopped = self._ended = False

    def settle(self, attempt: Attempt, settlement: dict[str, Any], place: bool = False) -> None:
        """Settle the attempt, or the place that it redeems, in the background."""
        clock = self._process.clock
        expires = clock.now() + max(attempt.ttl, attempt.place_ttl) + self._timeout
        silent = attempt.place_silent if place else attempt.silent
        entry = Entry(clock, attempt.named(attempt.place if place else None), settlement, expires, silent + FROZEN, attempt)
        if attempt.item is not None and attempt.item.leave():
            entry.after = attempt.item
        self._put(entry)

    def settled(self, named: dict[str, Any], silent: float) -> None:
        """Note that a token was settled. silent is when it sent the last claim that was not answered."""
        if self._process.clock.now() + 1 <= silent + FROZEN:
            self._put(Entry(self._process.clock, named, None, math.inf, silent + FROZEN))

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
        while (wakes := self.next()) is not None:
            left = wakes - self._process.clock.now()
            if left > 0:
                self._bell.wait(left)
            elif self.work():
                pause = 0.02
            else:
                pause = min(pause * 2, 1.0)
                time.sleep(pause * random.uniform(0.5, 1.0))
        self._process.ended()
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

    def next(self) -> float | None:
        """Return when something is due, or None if nothing is left to do."""
        stopped = self._stopped
        self._take_mail()
        waits = self._process.closing and self._process.waits and not stopped
        if not waits and not any(entry.first for entry in self._entries):
            for done in self._flushes:
                done.ring()
            self._flushes.clear()
            if stopped:
                return None
        return min((entry.due for entry in self._entries), default=math.inf)

    def work(self) -> bool:
        """Settle what is due in one call, and report whether the servers answered."""
        now = self._process.clock.now()
        due = [entry for entry in self._entries if entry.due <= now][:MOST]
        outcomes = self._process.call_all("settle", [entry.settlement for entry in due])
        now = self._process.clock.now()
        ended = set()
        for entry, outcome in zip(due, outcomes):
            kind = "busy" if isinstance(outcome, Error) else problem_of(outcome.element)[0]
            if not entry.first or kind in (None, "lost"):
                if entry.first and entry.attempt is not None:
                    entry.attempt.tell_undone(entry.settlement["outcome"])
                if not entry.again():
                    ended.add(id(entry))
            elif kind != "busy" or now >= entry.expires:
                ended.add(id(entry))
        self._entries = [entry for entry in self._entries if id(entry) not in ended]
        return not all(isinstance(outcome, Error) for outcome in outcomes)
