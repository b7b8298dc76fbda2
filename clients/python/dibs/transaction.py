"""The functions of the store in the application's PostgreSQL database."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from .attempt import Attempt
from .errors import Error, Forbidden, Lost, NotKept, Refused, TooLarge, WrongTransaction
from .once import Kept, keep_result, kept_error, kept_result, not_stored, remembers
from .options import Remember

if TYPE_CHECKING:
    from .lease import Lease

def sqlstate(error: Exception) -> str | None:
    state = None
    for e in (error, error.__cause__):  # Django's errors have the driver's as their cause
        state = state or getattr(e, "sqlstate", None) or getattr(e, "pgcode", None)
    return state


def function_error(error: Exception, name: str, attempt: Attempt) -> Error | None:
    """Return the error of a call of a function, or None if it is the driver's."""
    state, detail = sqlstate(error), None
    for e in (error, error.__cause__):
        detail = detail or getattr(getattr(e, "diag", None), "message_detail", None)
    line = (str(error).splitlines() or [""])[0]
    key, digest = attempt.key, attempt.digest()
    if state == "DIBS1":
        return Lost(f"dibs: the lease of the key {digest} is lost: {detail}", key=key)
    if state == "DIBS2":
        return WrongTransaction(f"{line}. Begin a transaction, write in it, and settle the key {digest} as its last statement; "
                                "the function of once begins and ends none", key=key)
    if state == "22023" and re.search(r"\b(record|data)\b.* bytes", line):
        return TooLarge(f"{line} (the key {digest})", key=key)
    if state in ("42883", "3F000"):
        return Refused(f"dibs: this database has no function {name} of this version. Name the store's schema= and prefix= when you connect, "
                       f"or run dibs migrate ({line})", key=key)
    if state == "42501":
        return Forbidden(f"dibs: the role may not call {name}: GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION ({line})", key=key)
    return None


def first_of(row: Any) -> Any:
    return row[0] if isinstance(row, (tuple, list)) else next(iter(row.values()))


def psycopg_connection(connection: Any) -> Any:
    """Require a connection of psycopg."""
    if not hasattr(getattr(connection, "info", None), "transaction_status"):
        raise TypeError(f"dibs: in_ is a {type(connection).__name__}; it must be a connection of psycopg or psycopg2. "
                        "For others there is complete_in")
    return connection


ENDED = "dibs: the transaction that settled the key ended before its COMMIT"


@contextlib.contextmanager
def commits(lease: Lease, explicit: bool) -> Iterator[str]:
    """Give the statements that commit the transaction in which the lease was settled, and no other.

    PostgreSQL answers COMMIT with success if something else has ended the transaction or has failed
    in it since then, and drivers do not look. The drivers that begin transactions by themselves do
    not notice a COMMIT that is a statement, so such a connection is left in a new one.
    """
    try:
        yield (f"DO $$BEGIN IF current_setting('dibs.run', true) IS DISTINCT FROM '{lease.id}' THEN "
               f"RAISE EXCEPTION USING ERRCODE = 'DIBS2', MESSAGE = '{ENDED}'; END IF; END$$; COMMIT" + ("" if explicit else "; BEGIN"))
    except Exception as e:
        if sqlstate(e) != "DIBS2":
            raise
        raise WrongTransaction(f"{ENDED}. Something else has used the connection meanwhile; give once one of its own", key=lease.key) from e


@contextlib.contextmanager
def transaction(connection: Any, lease: Lease) -> Iterator[Any]:
    """Give a cursor in a transaction of its own, which is committed if it has settled the lease, or
    rolled back after an error.
    """
    require_idle(connection, lease)
    explicit, cursor = connection.autocommit, connection.cursor()
    try:
        if explicit:
            cursor.execute("BEGIN")
        cursor.execute("SET LOCAL dibs.run = 'on'")
        yield cursor
        with commits(lease, explicit) as statements:
            cursor.execute(statements)
        if not explicit:
            connection.rollback()
    except BaseException:
        with contextlib.suppress(Exception):  # a connection that broke has no transaction
            cursor.execute("ROLLBACK") if explicit else connection.rollback()
        raise


@contextlib.asynccontextmanager
async def async_transaction(connection: Any, lease: Lease) -> AsyncIterator[Any]:
    """As transaction, on an asynchronous connection."""
    require_idle(connection, lease)
    explicit, cursor = connection.autocommit, connection.cursor()
    try:
        if explicit:
            await cursor.execute("BEGIN")
        await cursor.execute("SET LOCAL dibs.run = 'on'")
        yield cursor
        with commits(lease, explicit) as statements:
            await cursor.execute(statements)
        if not explicit:
            await connection.rollback()
    except BaseException:
        with contextlib.suppress(Exception):
            await (cursor.execute("ROLLBACK") if explicit else connection.rollback())
        raise


def require_idle(connection: Any, lease: Lease) -> None:
    if connection.info.transaction_status != 0:  # IDLE
        raise WrongTransaction("dibs: the connection is in a transaction already; once begins and commits its own, so call it outside, "
                               "or use complete_in", key=lease.key)


def kept_in(lease: Lease, result: Any) -> Kept:
    """Return what a transaction stores. If it cannot be stored, NotKept rolls the transaction back."""
    kept = kept_result(result)
    if kept.why is not None:
        raise rolled_back(lease, kept.why, result) from kept.why
    return kept


def rolled_back(lease: Lease, why: Exception, result: Any) -> NotKept:
    return not_stored(lease, why, result, True, ", its transaction was rolled back")


def run_in(connection: Any, lease: Lease, run: Callable[[], Any], retention: float, remember: Remember) -> Any:
    """Run the function of once in a transaction that settles the lease, and return its result."""
    kept: Kept | None = None
    settled = False
    try:
        with transaction(connection, lease) as cursor:
            kept = kept_in(lease, run())
            with lease._settles_in(kept.record, retention, "marked") as statement:
                cursor.execute(*statement)
            settled = True
    except Exception as e:
        if not settled and remembers(remember, e):
            keep_result(lease, kept_error(e), retention, True)
        if isinstance(e, TooLarge) and kept is not None:
            raise rolled_back(lease, e, kept.result) from e
        if kept is None or not settled or not lease._find_out(kept.record, retention):
            raise
    assert kept is not None
    lease._committed()
    return kept.value
