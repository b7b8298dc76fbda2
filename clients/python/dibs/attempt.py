"""One attempt to hold a key."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import secrets
import threading
import warnings
from typing import TYPE_CHECKING, Any

from .clock import CLOCK, Clock
from .hooks import SILENT, Hooks
from .options import Key, b64, to_ms

if TYPE_CHECKING:
    from .batch import Item
    from .process import Process

ANY_AGE_MS = 9_223_372_036_854  # accepts a record of any age


CLEAN = ("release", "keep")  # the outcomes that end a reserved place


def id_of(token: str) -> str:
    """Return the public name of a lease, which operators see."""
    return base64.b32encode(hashlib.sha256(b"dibs claim id\0" + bytes.fromhex(token)).digest()[:10]).decode().lower()


class Attempt:
    """One attempt to hold a key: what its caller asks for, what its token may have at the store,
    and the lease if it was granted. The threads of the process share it; a caller has it by a
    Lease.
    """

    def __init__(self, key: Key, namespace: str, options: dict[str, Any], clock: Clock = CLOCK, hooks: Hooks = SILENT, secret: bool = False) -> None:
        self.key, self.namespace, self._options = key, namespace, options
        self.clock, self.hooks, self._secret = clock, hooks, secret
        self.raw = key.encode() if isinstance(key, str) else key
        self.token: str = options["token"] or secrets.token_hex(16)
        self.ttl: float = options["ttl"]
        self.place_ttl: float = options["place_ttl"]
        self.wait: float | None = options["wait"]
        self.permits: int = options["permits"]
        self.weight: int = options["weight"]
        self.at_most_once: bool = options["at_most_once"]
        self.place: str | None = options["place"]  # the token of the reserved place that it redeems
        self.stop_timeout = max(options["stop_timeout"] or 0.0, self.ttl / 50 + 0.001)
        self.process: Process | None = None
        self.open = False  # the token may have a lease or a place
        self.silent = -math.inf  # when it last sent a claim that was not answered, and may be carried out late
        self.place_silent = -math.inf  # the same of its place
        self.given_up = False  # its caller went away
        self.item: Item | None = None  # its claim or settlement in a batch
        # The lease.
        self.fence: int | None = None
        self.attempt = 1
        self.progress: bytes | None = None
        self.trusted = -math.inf
        self.due = math.inf
        self.limit = math.inf
        self.settled = self.lost = False
        self.unanswered: str | None = None  # the outcome of a settlement that was sent and not answered
        self.settling = threading.RLock()  # held while a settlement is under way; a signal handler may settle meanwhile
        self.under_way = False  # the thread that holds settling has begun a settlement
        self.in_transaction = False  # a transaction settles it, or did
        self.own_namespace = ""  # that of the key, as the server says
        self.told = False  # that it was lost

    def shown(self) -> str:
        """Return the name of the key in messages: its digest if keys are secret."""
        if self._secret:
            return self.digest()
        return json.dumps(self.key, ensure_ascii=False) if isinstance(self.key, str) else repr(self.key)

    @property
    def id(self) -> str:
        return id_of(self.token)

    def digest(self) -> str:
        return hashlib.sha256(self.namespace.encode() + b"\0" + self.raw).hexdigest()[:12]

    def named(self, token: str | None = None) -> dict[str, Any]:
        """Return an element of a call, which names the key and the token."""
        element: dict[str, Any] = {}
        try:
            element["key"] = self.raw.decode()
        except UnicodeDecodeError:
            element["key_b64"] = b64(self.raw)
        if self.namespace:
            element["namespace"] = self.namespace
        element["token"] = token or self.token
        return element

    def wire(self, mode: str) -> dict[str, Any]:
        """Return the element of a claim."""
        o = self._options
        element = {**self.named(), "mode": mode, "ttl_ms": to_ms(self.ttl), "owner": o["owner"]}
        if mode != "try":
            element["place_ttl_ms"] = to_ms(o["place_ttl"])
        if self.permits != 1:
            element["permits"] = self.permits
        if self.weight != 1:
            element["weight"] = self.weight
        if self.place:
            element["from"] = self.place
        if o["grace"] is not None:
            element["grace_ms"] = to_ms(o["grace"])
        if o["fingerprint"]:
            element["fingerprint"] = o["fingerprint"]
        if o["max_age"] is not None:
            element["max_age_ms"] = ANY_AGE_MS if o["max_age"] == math.inf else to_ms(o["max_age"])
        if self.at_most_once:
            element["at_most_once"] = True
        return element

    def grant(self, answer: dict[str, Any], sent: float) -> None:
        self.attempt = answer.get("attempt", 1)
        self.progress = base64.b64decode(answer["progress"]) if answer.get("progress") is not None else None
        if self._options["max_lifetime"] is not None:
            self.limit = sent + self._options["max_lifetime"]
        self.own_namespace = answer.get("namespace") or ""
        self.trust(sent)
        self.fence = int(answer["fence"])

    def trust(self, sent: float) -> None:
        """Extend the trust: the server confirmed the lease in answer to what was sent then."""
        self.trusted = min(max(self.trusted, sent + self.ttl - self.stop_timeout), self.limit)
        self.due = sent + self.ttl / 3

    def later(self) -> None:
        """Say when a renewal that failed is sent again."""
        self.due = self.clock.now() + max(self.ttl / 15, 0.001)

    def overdue(self, now: float) -> bool:
        return now >= self.trusted

    def foreign(self) -> bool:
        """Report whether it belongs to the process that forked this one."""
        return self.process is None or self.process.pid != os.getpid()

    def live(self) -> bool:
        """Report whether it may hold the key."""
        return not self.settled and not self.lost and self.fence is not None and not self.overdue(self.clock.now()) and not self.foreign()

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
        if not self.settled and not self.told:
            self.told = True
            self.hooks.tell("lost", self)

    def tell_undone(self, outcome: str) -> None:
        """Say that what nobody settled was settled in the background."""
        self.hooks.tell("undone", self, outcome=outcome)

    # An end is noted after it was handed over, never before: an exception between the two has it
    # settled twice, which does no harm.

    def hand_over(self, settlement: dict[str, Any]) -> None:
        """Settle the lease in the background."""
        assert self.process is not None
        self.process.undoer.settle(self, settlement)
        if self.place and settlement["outcome"] in CLEAN:
            self.process.undoer.settled(self.named(self.place), self.place_silent)
        self.settled = True
        self.process.renewer.remove(self)

    def ended(self, clean: bool) -> None:
        """Note that the token was settled, and cleanly, which ends the reserved place that it redeems."""
        assert self.process is not None
        self.process.undoer.settled(self.named(), self.silent)
        self.silent = -math.inf
        if clean and self.place:
            self.process.undoer.settled(self.named(self.place), self.place_silent)

    def give_up(self) -> None:
        """Undo in the background what the token may have, for a caller that never got the lease. It
        may be called twice: by the thread that asks, and by the task that went away.
        """
        self.given_up = True
        if self.process is None or self.foreign():
            return
        if self.open:
            self.process.undoer.settle(self, {"outcome": "undo"})
            self.open = False
        self.settled = True
        self.process.renewer.remove(self)

    def dropped(self) -> None:
        """End what is left when nobody has the Lease any more."""
        if self.settled or self.process is None or self.foreign():
            return
        if self.lost:
            self.ended(False)
        elif self.fence is None:
            self.give_up()
        elif self.overdue(self.clock.now()):
            self.ended(False)
        else:
            self.hand_over({"outcome": "abandon"})
            warnings.warn(f"dibs: nobody has the lease of the key {self.shown()} any more and it was not settled, so it is abandoned; "
                          "keep it in a variable, or use keys.lock", RuntimeWarning, stacklevel=3)
