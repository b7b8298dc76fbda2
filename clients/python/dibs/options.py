"""What callers may say, and how it is read."""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Callable
from typing import TypedDict

Key = str | bytes
Duration = int | float | str | datetime.timedelta
Remember = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


TTL = 30.0  # the default TTL of a lease, in seconds
MIN_TTL = 0.01  # the shortest TTL
RETENTION = 86_400.0  # the default of keep
PLACE = 7 * 86_400.0  # the default TTL of a reserved place
TIMEOUT = 5.0  # the default timeout of a call


class Options(TypedDict, total=False):
    """What lock, acquire, once and redeem take.

    wait: how long to wait before Held is raised; 0: not at all. Default: without limit.
    ttl: of the lease. Default: that of the client, 30 seconds. It is renewed until it is settled.
    permits, weight: how many permits the key has, and how many the lease takes. Default: 1.
    fingerprint: the SHA-256, in 64 hexadecimal digits, of what is asked under the key.
    at_most_once: refuses to run again after a holder that ended without an outcome.
    stop_timeout: how long the lease ends before another caller can get the key.
    max_lifetime: how long the lease may last in all.
    label: what operators see.
    """

    wait: Duration | None
    ttl: Duration | None
    permits: int
    weight: int
    fingerprint: str | None
    at_most_once: bool
    stop_timeout: Duration | None
    max_lifetime: Duration | None
    label: str | None


UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_seconds(value: Duration, name: str, least: float = 0.0) -> float:
    """Read a duration: a number of seconds, a timedelta, or a text such as "24h" or "1h30m"."""
    if isinstance(value, datetime.timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        if not re.fullmatch(r"([0-9]+(\.[0-9]+)?(ms|s|m|h))+", value):
            raise ValueError(f'dibs: {name} is {value!r}; a duration is a number of seconds, or a text such as "90s" or "1h30m"')
        number = sum(float(n) * UNITS[unit] for n, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"dibs: {name} is {value!r}; it must be a duration, in seconds")
    if not math.isfinite(number) or number < least:
        raise ValueError(f"dibs: {name} is {value!r}; it must be finite and at least {least:g} seconds")
    return number


def read_ttl(value: Duration) -> float:
    return read_seconds(value, "ttl", MIN_TTL)


def read_keep(value: Duration) -> float:
    return read_seconds(value, "keep", 0.001)


def read_age(value: Duration | None) -> float | None:
    return value if value is None or value == math.inf else read_seconds(value, "max_age")  # type: ignore[return-value]


def read_key(key: Key) -> bytes:
    """Return the bytes of a key."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"dibs: a key is a str or bytes, not {type(key).__name__}")
    try:
        raw = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise ValueError("dibs: the key is a str that UTF-8 does not have") from None
    if not 1 <= len(raw) <= 512:
        raise ValueError(f"dibs: the key has {len(raw)} bytes; it must have 1 to 512")
    return raw


def printable(label: str) -> str:
    return str(label).encode(errors="replace").decode()[:100]


def to_ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def interval(seconds: float) -> str:
    return f"{math.ceil(seconds * 1_000_000)} microseconds"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
