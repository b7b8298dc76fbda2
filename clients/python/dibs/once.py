"""The record that once leaves behind: the same as in the Go library."""

from __future__ import annotations

import contextlib
import json
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from .attempt import Attempt
from .errors import (Busy, Done, Error, Lost, NotKept, Overloaded, Refused, Remembered, Unavailable, Unrecorded, WrongTransaction,
                     plain)
from .lease import PATIENCE
from .options import Remember

if TYPE_CHECKING:
    from .lease import Lease

class Kept(NamedTuple):
    """What a run of once leaves behind."""

    record: bytes
    value: Any  # what later callers get
    result: Any  # what the function returned
    why: Exception | None = None  # the result cannot be stored, and the record says why


def kept_result(result: Any) -> Kept:
    try:
        check_keys(result)
        record = json.dumps({"value": result}, ensure_ascii=False, allow_nan=False).encode()
        return Kept(record, json.loads(record)["value"], result)
    except Exception as e:
        return Kept(not_kept(e), None, result, e)


def kept_error(error: Exception) -> Kept:
    try:
        return Kept(json.dumps({"error": str(error)}, ensure_ascii=False).encode(errors="replace"), None, None)
    except Exception as e:
        return Kept(not_kept(e), None, None, e)


def not_kept(why: Exception) -> bytes:
    """Return the record of a run that was done, and whose result cannot be stored."""
    text = plain(why).encode(errors="replace")[:500].decode(errors="ignore")
    return json.dumps({"not_kept": text}, ensure_ascii=False).encode()


def check_keys(value: Any) -> None:
    """Refuse what json would turn into a text."""
    if isinstance(value, dict):
        for key, element in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of a dict in the result is of type {type(key).__name__}, not str")
            check_keys(element)
    elif isinstance(value, (list, tuple)):
        for element in value:
            check_keys(element)


def read_record(done: Done, attempt: Attempt) -> Any:
    body = None
    with contextlib.suppress(ValueError):
        body = json.loads(done.record)
    if isinstance(body, dict):
        if isinstance(body.get("error"), str):
            raise Remembered(body["error"], key=attempt.key) from None
        if isinstance(body.get("not_kept"), str):
            raise Unrecorded(f"dibs: the function of once for the key {attempt.digest()} ran before, and its result could not be stored: "
                             f"{body['not_kept']}. dibs resolve --result gives callers a result, and --rerun lets the next one run",
                             key=attempt.key) from None
        if "value" in body:
            return body["value"]
    raise Refused(f"dibs: the record of the key {attempt.digest()} is not one of once", key=attempt.key) from None


def remembers(remember: Remember, error: Exception) -> bool:
    if isinstance(error, (NotKept, Lost, WrongTransaction)):
        return False
    if isinstance(remember, (type, tuple)):
        return isinstance(error, remember)
    return bool(remember(error))


def returned(result: Any) -> Any:
    """Refuse a coroutine that nobody awaits: the function has not run."""
    if isinstance(result, types.CoroutineType):
        result.close()
        raise TypeError("dibs: the function of once is a coroutine function; use keys.aio.once")
    return result


def keep_result(lease: Lease, kept: Kept, retention: float, rerun: bool) -> None:
    """Store what the function of once did, or raise NotKept.

    If the result cannot be stored, a record says that the function ran, unless rerun is set.
    """
    why, note = kept.why, kept.record
    if why is None:
        try:
            return lease._settle(lease._record(kept.record, retention), PATIENCE)
        except Lost:
            raise
        except Error as e:
            why, note = e, not_kept(e)
    if not rerun:
        rerun = not note_run(lease, why, note, retention)
    raise not_stored(lease, why, kept.result, rerun) from why


def note_run(lease: Lease, why: Exception, record: bytes, retention: float) -> bool:
    """Leave the record that says that the function ran, and report whether nobody runs it again."""
    if not isinstance(why, (Unavailable, Busy, Overloaded)):
        try:
            lease._settle(lease._record(record, retention), PATIENCE)
            return True
        except Lost:
            raise
        except Error:
            pass
    if not lease._attempt.at_most_once:
        return False
    with contextlib.suppress(Error):  # it is done in the background
        lease._release("abandon")
    return True


def not_stored(lease: Lease, why: Exception, result: Any, rerun: bool, how: str = "") -> NotKept:
    then = "the next caller runs again" if rerun else "later callers get an error that says so"
    return NotKept(f"dibs: the result for the key {lease._attempt.digest()} could not be stored{how}, and {then}: {plain(why)}",
                   key=lease.key, result=result, rerun=rerun)
