"""The functions of the store in the application's PostgreSQL database."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

from .attempt import Attempt
from .errors import Error, Forbidden, Lost, Refused, TooLarge, WrongTransaction
from .options import b64, interval
from .step import Call, Steps


@contextlib.contextmanager
def function(function: str, attempt: Attempt) -> Iterator[str]:
    """Give the name of a function of the store, and read the errors of its call."""
    schema, prefix = attempt.settings.schema, attempt.settings.prefix
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, f"{prefix}_{function}"))
    try:
        yield name.replace("%", "%%")
    except Exception as e:
        error = function_error(e, name, attempt)
        if error is None:
            raise
        raise error from e


@contextlib.contextmanager
def reserves_in(attempt: Attempt, namespace: str) -> Iterator[tuple[str, list[Any]]]:
    """Give the statement that reserves a place in a transaction, and read its errors."""
    grace = None if attempt.grace is None else interval(attempt.grace)
    owner = f"{str(attempt.owner['host']).replace(' ', '_')} {attempt.owner['pid']} {attempt.owner['label']}".encode()[:255]
    values = [b64(attempt.raw), interval(attempt.place_ttl), grace, namespace, b64(owner)]
    with function("reserve_in", attempt) as name:
        yield f"SELECT {name}(%s::text, %s::text::interval, %s::text::interval, %s::text, %s::text, 'base64')", values


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
    key, digest = attempt.key, attempt.shown()
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


def begin(connection: Any, attempt: Attempt) -> Steps[Transaction]:
    """Begin a transaction of its own."""
    require_idle(connection, attempt)
    begun = Transaction(connection, attempt)
    try:
        if begun.explicit:
            yield Call(functools.partial(begun.cursor.execute, "BEGIN"))
        yield Call(functools.partial(begun.cursor.execute, "SET LOCAL dibs.run = 'on'"))
    except BaseException as e:
        yield from begun.roll_back(e)
        raise
    return begun


class Transaction:
    """The transaction in which a lease is settled."""

    def __init__(self, connection: Any, attempt: Attempt) -> None:
        self._connection, self._attempt = connection, attempt
        self.explicit, self.cursor = connection.autocommit, connection.cursor()

    def commit(self) -> Steps[None]:
        """Commit the transaction in which the lease was settled, and no other.

        PostgreSQL answers COMMIT with success if something else has ended the transaction or has failed
        in it since then, and drivers do not look. The drivers that begin transactions by themselves do
        not notice a COMMIT that is a statement, so such a connection is left in a new one.
        """
        statements = (f"DO $$BEGIN IF current_setting('dibs.run', true) IS DISTINCT FROM '{self._attempt.id}' THEN "
                      f"RAISE EXCEPTION USING ERRCODE = 'DIBS2', MESSAGE = '{ENDED}'; END IF; END$$; COMMIT" + ("" if self.explicit else "; BEGIN"))
        try:
            yield Call(functools.partial(self.cursor.execute, statements))
        except Exception as e:
            if sqlstate(e) != "DIBS2":
                raise
            raise WrongTransaction(f"{ENDED}. Something else has used the connection meanwhile; give once one of its own",
                                   key=self._attempt.key) from e
        if not self.explicit:
            yield Call(self._connection.rollback)

    def roll_back(self, error: BaseException) -> Steps[None]:
        """Roll back after an error."""
        back = functools.partial(self.cursor.execute, "ROLLBACK") if self.explicit else self._connection.rollback
        with contextlib.suppress(Exception):  # a connection that broke has no transaction
            if not isinstance(error, GeneratorExit):
                yield Call(back)
            elif inspect.iscoroutine(result := back()):  # nobody takes steps any more
                result.close()


def require_idle(connection: Any, attempt: Attempt) -> None:
    if connection.info.transaction_status != 0:  # IDLE
        raise WrongTransaction("dibs: the connection is in a transaction already; once begins and commits its own, so call it outside, "
                               "or use complete_in", key=attempt.key)
