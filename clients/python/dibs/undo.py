"""Settles in the background, by token, what no caller uses any more."""

from __future__ import annotations

import collections
import math
import random
import time
from collections.abc import Callable
from typing import Any

from .attempt import Attempt
from .clock import Bell, Clock
from .errors import Error
from .servers import CallAll
from .step import problem_of

FROZEN = 300.0  # how long a server may be frozen, and then carry out a claim that it did not answer
MOST = 512  # settlements in a call


class Entry:
    """What is to be settled in the background: first a settlement, if one is due, and then undos of
    the same token until a moment, because a claim that no server answered may be carried out late.
    """

    def __init__(self, attempt: Attempt, settlement: dict[str, Any] | None, expires: float = math.inf, place: bool = False) -> None:
        self.attempt, self.expires, self.first = attempt, expires, settlement is not None
        named = attempt.named(attempt.place if place else None)
        self.token = named["token"]
        self.settlement = {**named, **(settlement or {"outcome": "undo"})}
        self._until = (attempt.place_silent if place else attempt.silent) + FROZEN
        self._due, self.pause = attempt.clock.now(), 1.0
        # A claim that is under way in a batch must not be carried out after the undo.
        self._after = attempt.asked if self.first and attempt.asked is not None and attempt.asked.leave() else None
        if not self.first:
            self.again()

    @property
    def due(self) -> float:
        return math.inf if self._after is not None and not self._after.done else self._due

    def again(self) -> bool:
        """Say when the token is undone next, and report whether it is."""
        self.first = False
        self.settlement = {**self.settlement, "outcome": "undo"}
        self._due, self.pause = self.attempt.clock.now() + self.pause, min(self.pause * 2, 15.0)
        return self._due <= self._until


class Undoer:
    """Settles in the background, by token, what no caller uses any more."""

    def __init__(self, clock: Clock, call_all: CallAll, timeout: float, waits: Callable[[], bool]) -> None:
        self._clock, self._call_all, self._timeout = clock, call_all, timeout
        self._waits = waits  # whether a caller that waits may still give up, and have something to undo
        self._mail: collections.deque[Entry | Bell | str] = collections.deque()
        self._bell = Bell()
        self._entries: list[Entry] = []
        self._flushes: list[Bell] = []
        self._stopped = self._ended = False

    def settle(self, attempt: Attempt, settlement: dict[str, Any], place: bool = False) -> None:
        """Settle the attempt, or the place that it redeems, in the background."""
        expires = self._clock.now() + max(attempt.ttl, attempt.place_ttl) + self._timeout
        self._put(Entry(attempt, settlement, expires, place))

    def settled(self, attempt: Attempt, place: bool = False) -> None:
        """Note that the token was settled, or that of the place. If its claim may come late, it is undone again."""
        if self._clock.now() + 1 <= (attempt.place_silent if place else attempt.silent) + FROZEN:
            self._put(Entry(attempt, None, place=place))

    def claims(self, token: str) -> None:
        """Note that a token claims again: it is not undone any more."""
        self._put(token)

    def flush(self, limit: float) -> bool:
        """Wait at most limit seconds until everything was settled once."""
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
            left = wakes - self._clock.now()
            if left > 0:
                self._bell.wait(left)
            elif self.work():
                pause = 0.02
            else:
                pause = min(pause * 2, 1.0)
                time.sleep(pause * random.uniform(0.5, 1.0))
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
        if (stopped or not self._waits()) and not any(entry.first for entry in self._entries):
            for done in self._flushes:
                done.ring()
            self._flushes.clear()
            if stopped:
                return None
        return min((entry.due for entry in self._entries), default=math.inf)

    def work(self) -> bool:
        """Settle what is due in one call, and report whether the servers answered."""
        now = self._clock.now()
        due = [entry for entry in self._entries if entry.due <= now][:MOST]
        outcomes = self._call_all("settle", [entry.settlement for entry in due], None)
        now = self._clock.now()
        ended = set()
        for entry, outcome in zip(due, outcomes):
            kind, _ = problem_of(outcome)
            if not entry.first or kind in (None, "lost"):
                if entry.first:
                    entry.attempt.tell("undone", outcome=entry.settlement["outcome"])
                if not entry.again():
                    ended.add(id(entry))
            elif kind != "busy" or now >= entry.expires:
                ended.add(id(entry))
        self._entries = [entry for entry in self._entries if id(entry) not in ended]
        return not all(isinstance(outcome, Error) for outcome in outcomes)
