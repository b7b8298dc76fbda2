"""What happens to keys, for logs and metrics: the logger "dibs", and a function of the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from .options import Key

logger = logging.getLogger("dibs")
logger.addHandler(logging.NullHandler())

TEXTS = {
    "acquired": (logging.DEBUG, "acquired the key %(key)s"),
    "waited": (logging.INFO, "acquired the key %(key)s after waiting %(seconds).3f s"),
    "skipped": (logging.INFO, "skipped: another holder has the lock for the key %(key)s"),
    "lost": (logging.WARNING, "the lease of the key %(key)s is lost"),
    "undone": (logging.INFO, "the lease or place of the key %(key)s was settled in the background: %(outcome)s"),
    "unavailable": (logging.WARNING, "no server answers for the key %(key)s: %(error)s"),
}


class Event(NamedTuple):
    """What happened to a key.

    kind: acquired, waited (acquired after a wait), skipped (another holder has the key), lost, undone
    (settled in the background, because its caller was interrupted or no server answered) or unavailable.
    id is that of the lease. seconds is how long the caller waited. outcome is that of undone.
    """

    kind: str
    key: Key
    id: str
    seconds: float = 0.0
    outcome: str = ""
    error: Exception | None = None


Hook = Callable[[Event], None]
