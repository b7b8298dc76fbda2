"""The keys of dibs.testing: what a store does, in memory."""

from __future__ import annotations

import base64
import math
import secrets
import threading
import urllib.parse
from typing import Any, NamedTuple

from .attempt import id_of
from .clock import Clock
from .options import b64

REMEMBERED = 86_400.0  # how long an abandoned lease is remembered
LOST = {"error": {"type": "lost", "detail": "the token does not hold the key"}}


class Key(NamedTuple):
    namespace: str
    raw: bytes

    @classmethod
    def of(cls, key: str | bytes, namespace: str) -> Key:
        return cls(namespace, key.encode() if isinstance(key, str) else key)

    @classmethod
    def of_element(cls, element: dict[str, Any]) -> Key:
        raw = base64.b64decode(element["key_b64"]) if "key_b64" in element else element["key"].encode()
        return cls(element.get("namespace", ""), raw)


class Held:
    """A lease or a place: its token, when it ends by itself, and the thread and task that have it."""

    token: str
    expires: float
    owner: Any


class Lease(Held):
    def __init__(self, element: dict[str, Any], expires: float, owner: Any) -> None:
        self.token, self.expires, self.owner = element["token"], expires, owner
        self.weight, self.permits = element.get("weight", 1), element.get("permits", 1)
        self.fingerprint, self.at_most_once = element.get("fingerprint"), element.get("at_most_once", False)
        self.who = element.get("owner", {})
        self.number: int | None = None  # that of the place that it was taken from
        self.fence, self.attempt = 0, 1
        self.inherited: str | None = None  # the progress of those before it
        self.progress: str | None = None


class Place(Held):
    """A place has a number in the queue. A waiter at a reserved place has the same one."""

    def __init__(self, token: str, number: int, reserved: bool) -> None:
        self.token, self.number, self.reserved = token, number, reserved
        self.grace = self.asked = 0.0


class Record(NamedTuple):
    data: str
    at: float
    expires: float
    token: str
    fingerprint: str | None


class Entry:
    """What there is of one key, by the same rules as in a store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.leases: list[Lease] = []
        self.places: list[Place] = []
        self._record: Record | None = None
        self._abandoned: Lease | None = None
        self._idle_since: float | None = None  # since when the key has been free for a reserved place
        self._number = self._fence = 0

    def advance(self) -> None:
        """End what has expired."""
        now = self._clock.now()
        self.places = [place for place in self.places if place.expires > now]
        for lease in sorted((lease for lease in self.leases if lease.expires <= now), key=lambda lease: lease.expires):
            if lease.owner is None:
                self.finish(lease, "release", {})  # the other holder gives it back
            else:
                self.abandon(lease, lease.expires)
        gone = self._abandoned
        if gone is not None and not gone.at_most_once and gone.expires + REMEMBERED <= now:
            self._abandoned = None
        self._front()

    def claim(self, element: dict[str, Any], owner: Any) -> dict[str, Any]:
        mode, token = element["mode"], element["token"]
        held = self.lease(token)
        if held is not None:
            return self._again(held, element)
        own = next((place for place in self.places if place.token == token), None)
        at = own or next((place for place in self.places if place.reserved and place.token == element.get("from")), None)
        refusal = self._refused(element)
        if refusal is not None:
            if mode != "look" and refusal["state"] != "unknown":
                self._leave(own)
            return refusal
        front, room = self._front(), self._room(element)
        first = front is None or (at is not None and at.number <= front.number)
        turn = first and room and not (at is not None and any(lease.number == at.number for lease in self.leases))
        if mode == "look":
            return {"state": "free", "queued": at is not None} if turn else self._held(at)
        if mode == "reserve":
            return self._held(self._join(element, own, own, None))
        if turn:
            return self._take(element, own, at, owner)
        if room and front is not None and front.reserved and not first and self._idle_since is None:
            self._idle_since = self._clock.now()
        return self._held(self._join(element, own, at, owner) if mode == "queue" else at)

    def renew(self, element: dict[str, Any]) -> dict[str, Any]:
        held = self.lease(element["token"])
        if held is None:
            return LOST
        held.expires = self._clock.now() + element["ttl_ms"] / 1000
        held.progress = element.get("progress", held.progress)
        return {}

    def settle(self, element: dict[str, Any]) -> dict[str, Any]:
        token, outcome = element["token"], element["outcome"]
        held = self.lease(token)
        if held is not None:
            self.finish(held, outcome, element)
            return {}
        if outcome == "keep":
            record = self._record
            return {} if record is not None and record.token == token and record.expires > self._clock.now() else LOST
        own = next((place for place in self.places if place.token == token), None)
        self._leave(own)
        return LOST if own is None else {}

    def lease(self, token: str) -> Lease | None:
        return next((lease for lease in self.leases if lease.token == token), None)

    def add(self, lease: Lease) -> None:
        """Grant a lease."""
        self._fence += 1
        lease.fence = self._fence
        if self._abandoned is not None:
            lease.attempt, lease.inherited = self._abandoned.attempt + 1, self._abandoned.inherited
        self.leases.append(lease)

    def abandon(self, lease: Lease, at: float) -> None:
        self.leases.remove(lease)
        before = self._abandoned
        lease.attempt = 1 if before is None else before.attempt + 1
        lease.inherited = lease.progress or (None if before is None else before.inherited)
        lease.expires, lease.number = at, None
        self._abandoned = lease

    def finish(self, lease: Lease, outcome: str, element: dict[str, Any]) -> None:
        now = self._clock.now()
        if outcome == "abandon":
            self.abandon(lease, now)
            return
        self.leases.remove(lease)
        if outcome == "undo":
            return
        if outcome == "keep":
            self._record = Record(element["data"], now, now + element.get("retention_ms", 86_400_000) / 1000, lease.token, lease.fingerprint)
        self.places = [place for place in self.places if place.number != lease.number]
        self._abandoned = None

    def ends_of(self, place: Place) -> float:
        """Return when a place ends by itself: a reserved one when the key has waited for its grace."""
        if place.reserved and place.grace > 0 and self._idle_since is not None:
            return min(place.expires, max(self._idle_since, place.asked) + place.grace)
        return place.expires

    def _leave(self, place: Place | None) -> None:
        self.places = [other for other in self.places if other is not place]

    def _front(self) -> Place | None:
        """Return the first place that keeps others from the key. Reserved places whose grace is over end."""
        while True:
            if not self.places:
                self._idle_since = None
            taken = {lease.number for lease in self.leases}
            found = next((place for place in self.places if place.number not in taken), None)
            if found is None or self.ends_of(found) > self._clock.now():
                return found
            self._leave(found)

    def _room(self, element: dict[str, Any]) -> bool:
        permits = element.get("permits", 1)
        used = sum(lease.weight for lease in self.leases)
        return all(lease.permits == permits for lease in self.leases[:1]) and bool(used + element.get("weight", 1) <= permits)

    def _again(self, held: Lease, element: dict[str, Any]) -> dict[str, Any]:
        """Answer a token that has a lease."""
        if element["mode"] == "look":
            return {"state": "free"}
        if element["mode"] != "reserve":
            held.expires = self._clock.now() + element["ttl_ms"] / 1000
        return granted(held)

    def _refused(self, element: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a claim that gets neither the key nor a place."""
        now, record = self._clock.now(), self._record
        max_age = element.get("max_age_ms", 0)
        if record is not None and (record.expires <= now or max_age == 0 or (now - record.at) * 1000 > max_age):
            record = None
        there: list[Lease | Record | None] = [*self.leases, self._abandoned, record]
        if any(other is not None and differ(other.fingerprint, element.get("fingerprint")) for other in there):
            return {"state": "mismatch"}
        if record is not None:
            return {"state": "done", "record": {"data": record.data, "age_ms": int((now - record.at) * 1000)}}
        if self._abandoned is not None and self._abandoned.at_most_once:
            return {"state": "unknown", "id": id_of(self._abandoned.token)}
        return None

    def _take(self, element: dict[str, Any], own: Place | None, at: Place | None, owner: Any) -> dict[str, Any]:
        if own is not None and not own.reserved:
            self._leave(own)
        there = [] if at is None else [place for place in self.places if place.number == at.number]
        for place in there:
            if place.reserved and element.get("grace_ms", 0) > 0:
                place.grace = element["grace_ms"] / 1000
        self._idle_since = None
        lease = Lease(element, self._clock.now() + element["ttl_ms"] / 1000, owner)
        lease.number = there[0].number if there else None
        self.add(lease)
        return granted(lease)

    def _join(self, element: dict[str, Any], own: Place | None, at: Place | None, owner: Any) -> Place:
        """Return the token's own place, or a new one at the number of at, or at the end."""
        reserved, now = element["mode"] == "reserve", self._clock.now()
        if own is None or own.reserved != reserved:
            self._leave(own)
            if at is None:
                self._number = max([self._number, *(place.number for place in self.places)]) + 1
            own = Place(element["token"], self._number if at is None else at.number, reserved)
            own.owner = owner
            self.places = sorted([*self.places, own], key=lambda place: (place.number, place.reserved))
        own.expires, own.grace, own.asked = now + element["place_ttl_ms"] / 1000, element.get("grace_ms", 0) / 1000, now
        return own

    def _held(self, place: Place | None) -> dict[str, Any]:
        before = {other.number for other in self.places if place is None or other.number < place.number}
        before -= {lease.number for lease in self.leases if lease.number is not None}
        now = self._clock.now()
        left = min((lease.expires for lease in self.leases), default=now) - now
        return {"state": "held", "left_ms": int(min(left, 1e9) * 1000), "ahead": len(before), "queued": place is not None}


def differ(a: str | None, b: str | None) -> bool:
    """Report whether both are fingerprints, which zeros are not, and not the same."""
    return bool((a or "").strip("0") and (b or "").strip("0") and str(a).lower() != str(b).lower())


def lives(thread: threading.Thread, task: Any) -> bool:
    """Report whether what a thread or task took can be given back: what took it may have ended, and the main thread has it now."""
    return (thread.is_alive() and (task is None or not task.done())) or threading.current_thread() is not threading.main_thread()


def granted(lease: Lease) -> dict[str, Any]:
    progress = {} if lease.inherited is None else {"progress": lease.inherited}
    return {"state": "granted", "fence": str(lease.fence), "attempt": lease.attempt, **progress}


class Store:
    """The keys."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Key, Entry] = {}

    def _entry(self, key: Key) -> Entry:
        """Return the entry, after what has expired is gone."""
        entry = self._entries.setdefault(key, Entry(self._clock))
        entry.advance()
        return entry

    # What a test does.

    def take(self, key: Key, seconds: float | None) -> bool:
        entry = self._entry(key)
        if entry.leases:
            return False
        expires = math.inf if seconds is None else self._clock.now() + seconds
        entry.add(Lease({"token": secrets.token_hex(16), "owner": {"host": "elsewhere", "pid": 1, "label": "another"}}, expires, None))
        return True

    def give_back(self, key: Key) -> None:
        entry = self._entry(key)
        for lease in [lease for lease in entry.leases if lease.owner is None]:
            entry.finish(lease, "release", {})

    def take_away(self, key: Key) -> set[str]:
        entry = self._entry(key)
        tokens = {lease.token for lease in entry.leases}
        for lease in list(entry.leases):
            entry.finish(lease, "release", {})
        return tokens

    def abandon(self, key: Key, progress: bytes | None, at_most_once: bool) -> None:
        self.take(key, None)
        entry = self._entry(key)
        lease = entry.leases[-1]
        lease.at_most_once, lease.progress = at_most_once, None if progress is None else b64(progress)
        entry.abandon(lease, self._clock.now())

    def is_held(self, key: Key) -> bool:
        return bool(self._entry(key).leases)

    def can_be_released(self, key: Key, owner: Any) -> bool:
        """Report whether another thread or task of this process holds the key, or comes first."""
        entry = self._entry(key)
        everything: list[Held] = [*entry.leases, *entry.places]
        for held in everything:
            if held.owner is not None and held.owner != owner and lives(*held.owner):
                return True
        return False

    def next_expiry(self, key: Key, without: set[str]) -> float | None:
        """Return when the next lease or place of other tokens ends by itself."""
        entry = self._entry(key)
        moments = [lease.expires for lease in entry.leases if lease.token not in without]
        moments += [entry.ends_of(place) for place in entry.places if place.token not in without]
        return min((moment for moment in moments if moment < math.inf), default=None)

    def entry(self, path: str) -> dict[str, Any]:
        """Return what a server lists of a key."""
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query, encoding="latin-1")
        entry = self._entry(Key(asked.get("namespace", [""])[0], asked["key"][0].encode("latin-1")))
        return {"runs": [{"id": id_of(lease.token), "owner": lease.who} for lease in entry.leases]}

    # What a client asks.

    def answer(self, verb: str, element: dict[str, Any], owner: Any) -> dict[str, Any]:
        entry = self._entry(Key.of_element(element))
        if verb == "claim":
            return {"namespace": element.get("namespace", ""), **entry.claim(element, owner)}
        return entry.settle(element) if verb == "settle" else entry.renew(element)
