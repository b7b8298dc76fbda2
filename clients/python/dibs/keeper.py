"""The keys of dibs.testing: what a store does, in memory."""

from __future__ import annotations

import base64
import math
import secrets
import urllib.parse
from typing import Any, NamedTuple

from .attempt import id_of
from .clock import Clock
from .options import b64


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
    def __init__(self, token: str, expires: float, fence: int, element: dict[str, Any], owner: Any) -> None:
        self.token, self.expires, self.fence, self.owner = token, expires, fence, owner
        self.weight, self.place = element.get("weight", 1), element.get("from")
        self.permits = element.get("permits", 1)
        self.fingerprint, self.at_most_once = element.get("fingerprint"), element.get("at_most_once", False)
        self.who = element.get("owner", {})
        self.progress: str | None = None


class Place(Held):
    def __init__(self, token: str, expires: float, grace: float, owner: Any) -> None:
        self.token, self.expires, self.owner = token, expires, owner
        self.waits_until = grace  # how long it may keep others from a free key


class Record(NamedTuple):
    data: str
    at: float
    expires: float
    token: str
    fingerprint: str | None


class Entry:
    """What there is of one key."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.places: list[Place] = []
        self.record: Record | None = None
        self.fence = 0
        self.attempts = 0  # abandoned in a row
        self.progress: str | None = None
        self.unknown = ""  # the ID of the lease whose outcome is unknown


class Store:
    """The keys."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Key, Entry] = {}

    def _entry(self, key: Key) -> Entry:
        """Return the entry, after what has expired is gone."""
        now = self._clock.now()
        entry = self._entries.setdefault(key, Entry())
        for lease in [lease for lease in entry.leases if lease.expires <= now]:
            self._abandon(entry, lease)
        entry.places = [place for place in entry.places if place.expires > now]
        if entry.record is not None and entry.record.expires <= now:
            entry.record = None
        return entry

    @staticmethod
    def _abandon(entry: Entry, lease: Lease) -> None:
        entry.leases.remove(lease)
        if lease.permits == 1:
            entry.attempts += 1
            entry.progress = lease.progress or entry.progress
            entry.unknown = id_of(lease.token) if lease.at_most_once else entry.unknown

    # What a test does.

    def take(self, key: Key, seconds: float | None) -> bool:
        entry = self._entry(key)
        if entry.leases:
            return False
        expires = math.inf if seconds is None else self._clock.now() + seconds
        entry.fence += 1
        entry.leases.append(Lease(secrets.token_hex(16), expires, entry.fence, {"owner": {"host": "elsewhere", "pid": 1, "label": "another"}}, None))
        return True

    def give_back(self, key: Key) -> None:
        entry = self._entry(key)
        entry.leases = [lease for lease in entry.leases if lease.owner is not None]

    def take_away(self, key: Key) -> set[str]:
        entry = self._entry(key)
        tokens = {lease.token for lease in entry.leases}
        entry.leases.clear()
        return tokens

    def abandon(self, key: Key, progress: bytes | None, at_most_once: bool) -> None:
        self.take(key, None)
        entry = self._entry(key)
        lease = entry.leases[-1]
        lease.at_most_once, lease.progress = at_most_once, None if progress is None else b64(progress)
        self._abandon(entry, lease)

    def is_held(self, key: Key) -> bool:
        return bool(self._entry(key).leases)

    def can_be_released(self, key: Key, owner: Any) -> bool:
        """Report whether another thread or task of this process holds the key, or comes first."""
        entry = self._entry(key)
        everything: list[Held] = [*entry.leases, *entry.places]
        for held in everything:
            if held.owner is not None and held.owner != owner and held.owner[0].is_alive() and (held.owner[1] is None or not held.owner[1].done()):
                return True
        return False

    def next_expiry(self, key: Key, token: str) -> float | None:
        """Return when the next lease or place of others ends by itself."""
        entry = self._entry(key)
        everything: list[Held] = [*entry.leases, *entry.places]
        moments = [held.expires for held in everything if held.token != token]
        return min((moment for moment in moments if moment < math.inf), default=None)

    def entry(self, path: str) -> dict[str, Any]:
        """Return what a server lists of a key."""
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query, encoding="latin-1")
        entry = self._entry(Key(asked.get("namespace", [""])[0], asked["key"][0].encode("latin-1")))
        return {"runs": [{"id": id_of(lease.token), "owner": lease.who} for lease in entry.leases]}

    # What a client asks.

    def answer(self, verb: str, element: dict[str, Any], owner: Any) -> dict[str, Any]:
        entry = self._entry(Key.of_element(element))
        lease = next((lease for lease in entry.leases if lease.token == element["token"]), None)
        if verb == "claim":
            return {"namespace": element.get("namespace", ""), **self._claim(entry, lease, element, owner)}
        if verb == "settle":
            return self._settle(entry, lease, element)
        if lease is None:
            return {"error": {"type": "lost", "detail": "the token does not hold the key"}}
        lease.expires = self._clock.now() + element["ttl_ms"] / 1000
        lease.progress = element.get("progress", lease.progress)
        return {}

    def _claim(self, entry: Entry, lease: Lease | None, element: dict[str, Any], owner: Any) -> dict[str, Any]:
        now, mode, token = self._clock.now(), element["mode"], element["token"]
        if lease is not None:
            lease.expires = now + element["ttl_ms"] / 1000
            return self._granted(entry, lease)
        mine, record = element.get("fingerprint"), entry.record
        age = math.inf if record is None else (now - record.at) * 1000
        if record is not None and mode != "reserve" and age <= element.get("max_age_ms", -1):
            if mine and record.fingerprint and mine != record.fingerprint:
                return {"state": "mismatch"}
            return {"state": "done", "record": {"data": record.data, "age_ms": int(age)}}
        if mine and any(other.fingerprint not in (None, mine) for other in entry.leases):
            return {"state": "mismatch"}
        if entry.unknown and element.get("at_most_once"):
            return {"state": "unknown", "id": entry.unknown}
        at = element.get("from") or token
        place = next((place for place in entry.places if place.token == at), None)
        if mode == "reserve" or (place is None and mode == "queue"):
            place = place or Place(at, 0.0, 0.0, None if mode == "reserve" else owner)
            entry.places = entry.places if place in entry.places else [*entry.places, place]
        if place is not None and mode in ("reserve", "queue") and place.token == token:
            place.expires = now + element["place_ttl_ms"] / 1000
            place.waits_until = now + element["grace_ms"] / 1000 if "grace_ms" in element else math.inf
        ahead = len(entry.places) if place is None else entry.places.index(place)
        first = [other for other in entry.places[:ahead] if other.waits_until > now or entry.leases]
        room = sum(lease.weight for lease in entry.leases) + element.get("weight", 1) <= element.get("permits", 1)
        same = all(lease.permits == element.get("permits", 1) for lease in entry.leases)
        free = room and same and not first
        if mode == "look":
            return {"state": "free" if free else "held"}
        if mode != "reserve" and free:
            entry.fence += 1
            granted = Lease(token, now + element["ttl_ms"] / 1000, entry.fence, element, owner)
            entry.leases.append(granted)
            entry.places = [other for other in entry.places if other.token != token]
            return self._granted(entry, granted)
        left = min((lease.expires for lease in entry.leases), default=now) - now
        queued = mode == "reserve" or (mode == "queue" and place is not None)
        return {"state": "held", "left_ms": int(min(left, 1e9) * 1000), "ahead": len(first), "queued": queued}

    @staticmethod
    def _granted(entry: Entry, lease: Lease) -> dict[str, Any]:
        progress = {} if entry.progress is None else {"progress": entry.progress}
        return {"state": "granted", "fence": str(lease.fence), "attempt": entry.attempts + 1, **progress}

    def _settle(self, entry: Entry, lease: Lease | None, element: dict[str, Any]) -> dict[str, Any]:
        token, outcome = element["token"], element["outcome"]
        if lease is None:
            places = len(entry.places)
            entry.places = [place for place in entry.places if place.token != token]
            again = outcome == "keep" and entry.record is not None and entry.record.token == token
            if len(entry.places) < places and outcome != "keep" or again:
                return {}
            return {"error": {"type": "lost", "detail": "the token does not hold the key"}}
        if outcome == "abandon":
            self._abandon(entry, lease)
            return {}
        entry.leases.remove(lease)
        if outcome == "undo":
            return {}
        entry.attempts, entry.progress, entry.unknown = 0, None, ""
        entry.places = [place for place in entry.places if place.token != lease.place]
        if outcome == "keep":
            now = self._clock.now()
            entry.record = Record(element["data"], now, now + element["retention_ms"] / 1000, token, lease.fingerprint)
        return {}
