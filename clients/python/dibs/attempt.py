"""One attempt to hold a key."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import secrets
import socket
import threading
from typing import Any, NamedTuple

from .clock import CLOCK, Clock
from .errors import Busy, Error, Full, Lost, Refused, TooLarge, plain
from .hooks import TEXTS, Event, Hook, logger
from .options import TIMEOUT, TTL, Duration, Key, b64, printable, read_age, read_key, read_seconds, read_ttl, to_ms
from .step import Answer, Ask, problem_of

ANY_AGE_MS = 9_223_372_036_854  # accepts a record of any age
WAITER_TTL = 10.0  # how long a waiter's place outlasts its last question
HOST = socket.gethostname().encode(errors="replace").decode()
ERRORS: dict[str | None, type[Error]] = {"lost": Lost, "busy": Busy, "full": Full, "too_large": TooLarge}


def id_of(token: str) -> str:
    """Return the public name of a lease, which operators see."""
    return base64.b32encode(hashlib.sha256(b"dibs claim id\0" + bytes.fromhex(token)).digest()[:10]).decode().lower()


class Settings(NamedTuple):
    """What a client was given: see connect."""

    ttl: float = TTL
    timeout: float = TIMEOUT
    namespace: str = ""
    label: str = ""
    schema: str = "public"
    prefix: str = "dibs"
    secret_keys: bool = False
    hook: Hook | None = None
    clock: Clock = CLOCK


class Attempt:
    """One attempt to hold a key: what its caller asks for, what its token may have at the store,
    and the lease if it was granted. The threads of the process share it; a caller has it by a
    Lease.
    """

    def __init__(self, settings: Settings, key: Key, *, ttl: Duration | None = None, wait: Duration | None = None, permits: int = 1,
                 weight: int = 1, fingerprint: str | None = None, at_most_once: bool = False, stop_timeout: Duration | None = None,
                 max_lifetime: Duration | None = None, label: str | None = None, max_age: Duration | None = None, grace: Duration | None = None,
                 place_ttl: Duration = WAITER_TTL, place: str | None = None, token: str | None = None, namespace: str | None = None) -> None:
        self.settings, self.clock, self.key, self.raw = settings, settings.clock, key, read_key(key)
        self.namespace = settings.namespace if namespace is None else namespace
        self.token = token or secrets.token_hex(16)
        self.ttl = settings.ttl if ttl is None else read_ttl(ttl)
        self.wait = None if wait is None else read_seconds(wait, "wait")
        stop = 0.0 if stop_timeout is None else read_seconds(stop_timeout, "stop_timeout")
        self._max_lifetime = math.inf if max_lifetime is None else read_seconds(max_lifetime, "max_lifetime")
        self.grace = None if grace is None else read_seconds(grace, "grace")
        self._max_age = read_age(max_age)
        self.place_ttl = read_seconds(place_ttl, "ttl", 0.001)
        if stop > self.ttl / 2:
            raise ValueError(f"dibs: stop_timeout is {stop_timeout!r}; it must be at most half of the ttl of {self.ttl}")
        if not isinstance(permits, int) or not 1 <= permits <= 65_536:
            raise ValueError(f"dibs: permits is {permits!r}; it must be 1 to 65536")
        if not isinstance(weight, int) or not 1 <= weight <= permits:
            raise ValueError(f"dibs: weight is {weight!r}; it must be 1 to permits")
        if permits > 1 and (at_most_once or max_age is not None):
            raise ValueError("dibs: permits cannot be more than 1 together with at_most_once or max_age")
        if fingerprint is not None and not re.fullmatch("[0-9A-Fa-f]{64}", fingerprint):
            raise ValueError("dibs: fingerprint is not a SHA-256 in 64 hexadecimal digits, such as hashlib.sha256(data).hexdigest()")
        self.permits, self.weight, self._fingerprint, self.at_most_once = permits, weight, fingerprint, at_most_once
        self.owner = {"host": HOST, "pid": os.getpid(), "label": settings.label if label is None else printable(label)}
        self.place = place  # the token of the reserved place that it redeems
        self._stop = max(stop, self.ttl / 50 + 0.001)
        # What it has at the store.
        self.pid: int | None = None  # of the process that asks
        self.daemon = False  # a daemon thread asks, which may still run at the end of the program
        self.open = False  # the token may have a lease or a place
        self.silent = -math.inf  # when it last sent a claim that was not answered, and may be carried out late
        self.place_silent = -math.inf  # the same of its place
        self.asked: Ask | None = None
        # The lease.
        self.fence: int | None = None
        self.attempt = 1
        self.progress: bytes | None = None
        self.trusted = -math.inf
        self.due = self._limit = math.inf
        self.renewed = True
        self.settled = self.lost = False
        self.doubts: list[str] = []  # the outcomes of settlements that were sent and not answered
        self.settling = threading.RLock()  # held while a settlement is under way; a signal handler or another task may settle meanwhile
        self.under_way = 0  # settlements of the thread that holds settling: its own, of a signal handler, of its tasks
        self.in_transaction = False  # a transaction settles it, or did
        self.own_namespace = ""  # that of the key, as the server says
        self._told = False  # that it was lost

    def shown(self) -> str:
        """Return the name of the key in messages: its digest if keys are secret."""
        if self.settings.secret_keys:
            return hashlib.sha256(self.namespace.encode() + b"\0" + self.raw).hexdigest()[:12]
        return json.dumps(self.key, ensure_ascii=False) if isinstance(self.key, str) else repr(self.key)

    @property
    def id(self) -> str:
        return id_of(self.token)

    def ask(self, verb: str, more: dict[str, Any], wait: float = 0.0, timeout: float | None = None) -> Ask:
        """Return the step that asks for something of the key."""
        self.asked = Ask(verb, {**self.named(), **more}, wait, timeout)
        return self.asked

    def named(self, token: str | None = None) -> dict[str, Any]:
        """Return an element of a call, which names the key and the token."""
        element: dict[str, Any] = {"token": token or self.token}
        try:
            element["key"] = self.key if isinstance(self.key, str) else self.key.decode()
        except UnicodeDecodeError:
            element["key_b64"] = b64(self.raw)
        if self.namespace:
            element["namespace"] = self.namespace
        return element

    def claim(self, mode: str) -> dict[str, Any]:
        """Return what a claim says of it."""
        element: dict[str, Any] = {"mode": mode, "ttl_ms": to_ms(self.ttl), "owner": self.owner}
        if mode != "try":
            element["place_ttl_ms"] = to_ms(self.place_ttl)
        if self.permits != 1:
            element["permits"] = self.permits
        if self.weight != 1:
            element["weight"] = self.weight
        if self.place:
            element["from"] = self.place
        if self.grace is not None:
            element["grace_ms"] = to_ms(self.grace)
        if self._fingerprint:
            element["fingerprint"] = self._fingerprint
        if self._max_age is not None:
            element["max_age_ms"] = ANY_AGE_MS if self._max_age == math.inf else to_ms(self._max_age)
        if self.at_most_once:
            element["at_most_once"] = True
        return element

    def error_of(self, answer: Answer) -> Error | None:
        """Return the error of an element."""
        kind, detail = problem_of(answer)
        if kind is None:
            return None
        return ERRORS.get(kind, Refused)(f"dibs: the key {self.shown()}: {plain(detail or kind)}", key=self.key)

    def known(self, answer: Answer) -> bool:
        """Report whether the server knows the token. It raises any other error of the element."""
        error = self.error_of(answer)
        if error is not None and not isinstance(error, Lost):
            raise error
        return error is None

    def grant(self, answer: Answer) -> None:
        element = answer.element
        self.attempt = element.get("attempt", 1)
        self.progress = base64.b64decode(element["progress"]) if element.get("progress") is not None else None
        self._limit = answer.sent + self._max_lifetime
        self.own_namespace = element.get("namespace") or ""
        self.trust(answer.sent)
        self.fence = int(element["fence"])

    def trust(self, sent: float) -> None:
        """Extend the trust: the server confirmed the lease in answer to what was sent then."""
        self.trusted = min(max(self.trusted, sent + self.ttl - self._stop), self._limit)
        self.due = sent + self.ttl / 3 if self.renewed else math.inf

    def later(self) -> None:
        """Say when a renewal that failed is sent again."""
        self.due = self.clock.now() + max(self.ttl / 15, 0.001)

    def overdue(self) -> bool:
        return self.clock.now() >= self.trusted

    def foreign(self) -> bool:
        """Report whether it belongs to the process that forked this one."""
        return self.pid != os.getpid()

    def live(self) -> bool:
        """Report whether it may hold the key."""
        return not self.settled and not self.lost and self.fence is not None and not self.overdue() and not self.foreign()

    @property
    def unanswered(self) -> str | None:
        """The outcome of the first settlement that was sent and not answered."""
        return self.doubts[0] if self.doubts else None

    def held(self) -> bool:
        return self.unanswered is None and self.live()

    def lose(self) -> bool:
        """Note that the server does not know the lease. While a settlement is under way, or if one
        may have been done, that says nothing, and lose returns False.
        """
        if self.unanswered or self.in_transaction or not self.settling.acquire(blocking=False):
            return False
        try:
            self.lost = self.lost or not self.settled
        finally:
            self.settling.release()
        self.tell_lost()
        return True

    def tell_lost(self) -> None:
        """Say that the lease was lost, once, unless it was settled."""
        if not self.settled and not self._told:
            self._told = True
            self.tell("lost")

    def tell(self, kind: str, seconds: float = 0.0, outcome: str = "", error: Exception | None = None) -> None:
        """Tell the log and the hook what happened."""
        level, text = TEXTS[kind]
        if logger.isEnabledFor(level):
            logger.log(level, text, {"key": self.shown(), "seconds": seconds, "outcome": outcome, "error": error})
        if self.settings.hook is None:
            return
        try:
            self.settings.hook(Event(kind, self.key, self.id, seconds, outcome, error))
        except Exception:  # what it does must not change what becomes of the key
            logger.exception("the hook failed")
