"""The errors, and how answers become errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .options import Key

E = TypeVar("E", bound="Error")


class Error(Exception):
    """The class of all errors of this library, except ValueError and TypeError.

    key is the key of the call, or None. The message names it, or has its digest if the client has
    secret_keys.
    """

    key: Key | None
    _unanswered = False  # the call was sent, and no server said what became of it

    def __init__(self, message: str, *, key: Key | None = None) -> None:
        super().__init__(message)
        self.key = key


class Holder(NamedTuple):
    """What operators see of a holder: where it runs, what it holds the key for, and the lease's public name."""

    host: str
    pid: int
    label: str
    id: str


class Held(Error):
    """Another caller holds the key or comes before this one.

    It is an answer: the caller neither holds the key nor has a place in its queue. left is the
    seconds until the first lease of the key expires unless it is renewed. ahead is how many places
    at most come first. waited is how long the caller waited, in seconds.
    """

    def __init__(self, message: str, *, key: Key | None = None, left: float = 0.0, ahead: int = 0, waited: float = 0.0) -> None:
        super().__init__(message, key=key)
        self.left, self.ahead, self.waited = left, ahead, waited
        self._look: Callable[[], Holder | None] | None = None

    def holder(self) -> Holder | None:
        """Ask the server who holds the key now.

        It returns None if nobody does, or if the credential may not look. It raises Unavailable.
        """
        return self._look() if self._look is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {**self.__dict__, "_look": None}  # that has the client


class Lost(Error):
    """The lease expired or was taken away, or the call that ends it was not answered.

    So another caller may hold the key.
    """


class Done(Error):
    """A record answers the claim (acquire with max_age).

    record is what the holder left. age is its age in seconds.
    """

    def __init__(self, message: str, *, key: Key | None = None, record: bytes = b"", age: float = 0.0) -> None:
        super().__init__(message, key=key)
        self.record, self.age = record, age


class Mismatch(Error):
    """The key is in use, or was used, with another fingerprint."""


class Unknown(Error):
    """An earlier attempt with at_most_once ended without an outcome. An operator must resolve it.

    id names the attempt.
    """

    def __init__(self, message: str, *, key: Key | None = None, id: str = "") -> None:
        super().__init__(message, key=key)
        self.id = id


class Unavailable(Error):
    """No server answered, or the store did not.

    The call may or may not have happened. A claim is then undone in the background, again and again
    for 5 minutes, because a server that was stopped may carry it out late.
    """


class Busy(Error):
    """The store was busy with the key. Nothing was done, and asking again may help."""


class Full(Error):
    """The store has reached one of its limits. Nothing was done."""


class TooLarge(Full):
    """The store never takes data of that size. Nothing was done."""


class Refused(Error):
    """The server refused the whole call, and nothing was done; or it is not dibs serve.

    If another program answers, a server behind it may have done the call. A claim is then undone
    in the background.
    """


class Unauthorized(Refused):
    """The URL has no token, or one that the server does not know."""


class Forbidden(Refused):
    """The credential does not have the role, or the call names another namespace."""


class Overloaded(Refused):
    """A bound of the server is reached. Asking again may help."""


class Remembered(Error):
    """The function of an earlier call of once failed with an error that is remembered.

    The message is that of the error.
    """


class NotKept(Error):
    """The function of once ran in this call, but its result could not be stored.

    result is what the function returned. The cause says why. rerun says that the next caller runs
    again: because of rerun=True, because the transaction of in_ was rolled back, or because the
    store did not answer or is full. Otherwise later callers get Unrecorded; with at_most_once they
    get Unknown if the store did not answer or is full.
    """

    def __init__(self, message: str, *, key: Key | None = None, result: Any = None, rerun: bool = False) -> None:
        super().__init__(message, key=key)
        self.result, self.rerun = result, rerun


class Unrecorded(Error):
    """An earlier call of once ran its function, but the result could not be stored.

    An operator gives callers the result with `dibs resolve KEY --result JSON`, or lets the next one
    run with `dibs resolve KEY --rerun`. After keep, the next caller runs.
    """


class WrongTransaction(Error):
    """The connection is not in the transaction that the lease is to end with. Nothing was settled.

    Or something else has ended the transaction of once before its COMMIT.
    """


class Closed(Error):
    """The client was closed."""


def as_silent(error: E, sent: bool = True) -> E:
    """Return the error of a call that no server answered. sent says whether a server may have got it."""
    error._unanswered = sent
    return error


def copy_of(error: Error) -> Error:
    """Return a copy for one of several callers, because each adds where it was raised."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def plain(message: object) -> str:
    """Return a message that stands inside another one."""
    return str(message).removeprefix("dibs: ")
