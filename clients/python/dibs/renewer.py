"""Renews leases in the background."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import clock
from .clock import Bell
from .errors import problem_of
from .options import to_ms

if TYPE_CHECKING:
    from .attempt import Attempt
    from .process import Process

MAX_ELEMENTS = 512  # of a call


class Renewer:
    """Renews the leases of a process: one thread, and one call for all that are due.

    It has no lock, because a signal handler may raise anywhere in a caller: what callers do is one
    step of a dict.
    """

    def __init__(self, local: Process, timeout: float) -> None:
        self._local, self._timeout = local, timeout
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

    def stop(self) -> None:
        self._stopped = True
        self._bell.ring()

    def run(self) -> None:
        while not self._stopped:
            due, patience, wakes = self._look()
            if due:
                for i in range(0, len(due), MAX_ELEMENTS):
                    self._renew(due[i:i + MAX_ELEMENTS], patience)
                continue
            self._wakes = wakes
            self._bell.wait(wakes - clock.now())
            self._wakes = math.inf

    def _look(self) -> tuple[list[Attempt], float, float]:
        """Return what is due now or soon, how long it may take, and when the next is due."""
        now = clock.now()
        live = []
        for attempt in list(self._attempts.values()):
            if attempt.settled or attempt.lost or attempt.overdue(now):
                self.remove(attempt)
            else:
                live.append(attempt)
        first = min((a.due for a in live), default=math.inf)
        if first > now:
            return [], 0.0, first
        patience = min(self._timeout, min(a.ttl for a in live) / 3)
        return [a for a in live if a.due <= now + a.ttl / 15], patience, first

    def _renew(self, attempts: list[Attempt], patience: float) -> None:
        body = {"renewals": [{**a.named(), "ttl_ms": to_ms(a.ttl)} for a in attempts]}
        try:
            answers, sent, _ = self._local.call("renew", body, len(attempts), timeout=patience)
        except Exception:
            for attempt in attempts:  # it is tried again until the lease is no longer trusted
                attempt.later()
            return
        for attempt, answer in zip(attempts, answers):
            kind = problem_of(answer)[0]
            if kind is None:
                attempt.trust(sent)
            elif kind != "lost" or not attempt.lose():
                attempt.later()
