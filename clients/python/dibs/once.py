"""The record that once leaves behind: the same as in the Go library."""

from __future__ import annotations

import contextlib
import functools
import json
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from .attempt import Attempt
from .block import Hold
from .core import Core
from .errors import (Busy, Done, Error, Lost, NotKept, Overloaded, Refused, Remembered, TooLarge, Unavailable, Unrecorded,
                     WrongTransaction, plain)
from .lease import BaseLease, L
from .options import Remember
from .step import Call, Steps
from .transaction import begin


class OnceResult(NamedTuple):
    """A result of once, and whether an earlier call has made it: what with_origin=True returns."""

    value: Any
    replayed: bool


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
            raise Unrecorded(f"dibs: the function of once for the key {attempt.shown()} ran before, and its result could not be stored: "
                             f"{body['not_kept']}. dibs resolve --result gives callers a result, and --rerun lets the next one run",
                             key=attempt.key) from None
        if "value" in body:
            return body["value"]
    raise Refused(f"dibs: the record of the key {attempt.shown()} is not one of once", key=attempt.key) from None


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


def once(core: Core, attempt: Attempt, kind: type[L], fn: Callable[[L], Any], connection: Any, retention: float, remember: Remember,
         rerun: bool) -> Steps[OnceResult]:
    """Run fn under the key unless that was done before."""
    hold = Hold(core, attempt, kind)
    lease = hold.begin()
    try:
        yield from hold.enter(lease)
    except Done as done:
        return OnceResult(read_record(done, attempt), True)
    try:
        if connection is not None:
            kept = yield from run_in(connection, lease, functools.partial(fn, lease), retention, remember)
        else:
            kept = yield from run(lease, functools.partial(fn, lease), retention, remember, rerun)
    except GeneratorExit:  # nobody takes steps any more
        lease._hand_over({"outcome": "release"})
        raise
    except BaseException as e:
        yield from hold.leave(e)
        raise
    yield from hold.leave(None)
    return OnceResult(kept.value, False)


def run(lease: BaseLease, fn: Callable[[], Any], retention: float, remember: Remember, rerun: bool) -> Steps[Kept]:
    """Run the function of once, and store its result."""
    try:
        result = yield Call(fn)
    except Exception as e:
        if remembers(remember, e):
            yield from keep_result(lease, kept_error(e), retention, rerun)
        raise
    kept = kept_result(result)
    yield from keep_result(lease, kept, retention, rerun)
    return kept


def run_in(connection: Any, lease: BaseLease, fn: Callable[[], Any], retention: float, remember: Remember) -> Steps[Kept]:
    """Run the function of once in a transaction that settles the lease."""
    kept: Kept | None = None
    settled = False
    try:
        back = yield from begin(connection, lease._attempt)
        try:
            kept = kept_result((yield Call(fn)))
            if kept.why is not None:  # which rolls the transaction back
                raise rolled_back(lease, kept.why, kept.result) from kept.why
            with lease._settles_in(kept.record, retention, "marked") as statement:
                yield Call(functools.partial(back.cursor.execute, *statement))
            settled = True
            yield from back.commit()
        except BaseException as e:
            yield from back.roll_back(e)
            raise
    except Exception as e:
        if not settled and remembers(remember, e):
            yield from keep_result(lease, kept_error(e), retention, True)
        if isinstance(e, TooLarge) and kept is not None:
            raise rolled_back(lease, e, kept.result) from e
        if kept is None or not settled or not (yield from lease._find_out(kept.record, retention)):
            raise
    lease._committed()
    return kept


def keep_result(lease: BaseLease, kept: Kept, retention: float, rerun: bool) -> Steps[None]:
    """Store what the function of once did, or raise NotKept.

    If the result cannot be stored, a record says that the function ran, unless rerun is set.
    """
    why, note = kept.why, kept.record
    if why is None:
        try:
            return (yield from lease._complete(kept.record, retention))
        except Lost:
            raise
        except Error as e:
            why, note = e, not_kept(e)
    if not rerun:
        rerun = not (yield from note_run(lease, why, note, retention))
    raise not_stored(lease, why, kept.result, rerun) from why


def note_run(lease: BaseLease, why: Exception, record: bytes, retention: float) -> Steps[bool]:
    """Leave the record that says that the function ran, and report whether nobody runs it again."""
    if not isinstance(why, (Unavailable, Busy, Overloaded)):
        try:
            yield from lease._complete(record, retention)
            return True
        except Lost:
            raise
        except Error:
            pass
    if not lease._attempt.at_most_once:
        return False
    with contextlib.suppress(Error):  # it is done in the background
        yield from lease._release("abandon")
    return True


def rolled_back(lease: BaseLease, why: Exception, result: Any) -> NotKept:
    return not_stored(lease, why, result, True, ", its transaction was rolled back")


def not_stored(lease: BaseLease, why: Exception, result: Any, rerun: bool, how: str = "") -> NotKept:
    then = "the next caller runs again" if rerun else "later callers get an error that says so"
    return NotKept(f"dibs: the result for the key {lease._attempt.shown()} could not be stored{how}, and {then}: {plain(why)}",
                   key=lease.key, result=result, rerun=rerun)
