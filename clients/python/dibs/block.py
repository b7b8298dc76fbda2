"""A with block that holds a key."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING

from .attempt import Attempt
from .errors import Held
from .lease import Lease

if TYPE_CHECKING:
    from .client import Client

USED = "dibs: a lock is entered once; call lock or redeem again for each with statement"


class Block:
    """Holds a key while a with block runs."""

    def __init__(self, client: Client, attempt: Attempt) -> None:
        self._client, self._attempt = client, attempt
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise RuntimeError(USED)
        self._lease = lease = Lease(self._client, self._attempt)
        try:
            mine = self._client._of_thread()
            self._client._take(lease, mine)
            mine.add(lease)
            lease.check()
            return lease
        except BaseException:
            self._attempt.give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        lease = self._lease
        assert lease is not None
        try:
            self._client._of_thread().discard(lease)
            lost = lease._finish()
        except BaseException:
            lease._hand_over({"outcome": "release"})
            raise
        if lost and kind is None:
            raise lost


def waits_for_itself(attempt: Attempt, mine: weakref.WeakSet[Lease]) -> None:
    """Refuse a wait for a key that the caller itself holds."""
    if attempt.wait == 0:
        return
    held = [a for a in (lease._attempt for lease in mine) if a.raw == attempt.raw and a.namespace == attempt.namespace and a.live()]
    if not held or (all(a.permits == attempt.permits for a in held) and sum(a.weight for a in held) + attempt.weight <= attempt.permits):
        return
    raise Held(f"dibs: the key {attempt.digest()} is held by the caller itself, and waiting would never end", key=attempt.key)
