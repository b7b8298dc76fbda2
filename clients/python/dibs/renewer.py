"""Renews leases in the background."""

from __future__ import annotations

import math

from .attempt import Attempt
from .clock import Bell, Clock
from .errors import Error
from .options import to_ms
from .servers import CallAll
from .step import problem_of

MOST = 512  # leases in a call


class Renewer:
    """Renews the leases of a process: one thread, and one call for all that are due.

    It has no lock, because a signal handler may raise anywhere in a caller: what callers do is one
    step of a dict.
    """

    def __init__(self, clock: Clock, call_all: CallAll, timeout: float) -> None:
        self._clock, self._call_all, self._timeout = clock, call_all, timeout
        self._attempts: dict[str, Attempt] = {}
        self._bell = Bell()
        self._stopped = False
        self._wakes = math.inf  # when the thread looks again by itself; inf: it looks now, or has nothing

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt.token] = attempt
        if attempt.due < self._wakes:
            self._bell.ring()

    def remove(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.token, None)

    def attempts(self) -> list[Attempt]:
        return list(self._attempts.values())

    def stop(self) -> None:
        self._stopped = True
        self._bell.ring()

    def run(self) -> None:
        while not self._stopped:
            self._wakes = self.work()
            self._bell.wait(self._wakes - self._clock.now())
            self._wakes = math.inf

    def work(self) -> float:
        """Renew what is due, and return when the next is."""
        while True:
            due, patience, wakes = self._look()
            if not due or self._stopped:
                return wakes
            for i in range(0, len(due), MOST):
                self._renew(due[i:i + MOST], patience)

    def _look(self) -> tuple[list[Attempt], float, float]:
        """Return what is due now or soon, how long it may take, and when the next is due."""
        now = self._clock.now()
        live = []
        for attempt in self.attempts():
            if attempt.settled or attempt.lost or attempt.overdue():
                self.remove(attempt)
                attempt.tell_lost()
            else:
                live.append(attempt)
        first = min((a.due for a in live), default=math.inf)
        if first > now:
            return [], 0.0, first
        patience = min(self._timeout, min(a.ttl for a in live) / 3)
        return [a for a in live if a.due <= now + a.ttl / 15], patience, first

    def _renew(self, attempts: list[Attempt], patience: float) -> None:
        outcomes = self._call_all("renew", [{**a.named(), "ttl_ms": to_ms(a.ttl)} for a in attempts], patience)
        for attempt, outcome in zip(attempts, outcomes):
            kind, _ = problem_of(outcome)
            if kind is None and not isinstance(outcome, Error):
                attempt.trust(outcome.sent)
            elif kind != "lost" or not attempt.lose():
                attempt.later()  # it is tried again until the lease is no longer trusted
