"""A with block that holds a key, and the decorators."""

from __future__ import annotations

import contextvars
import functools
import inspect
import re
import string
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from .attempt import Attempt
from .claim import take
from .core import Core
from .errors import Held, Lost
from .lease import AsyncLease, BaseLease, L, Lease
from .options import Key
from .step import Steps

F = TypeVar("F", bound=Callable[..., Any])

USED = "dibs: a lock is entered once; call lock or redeem again for each with statement"

# The leases of the blocks that the caller is in. A task has those of the block that started it.
_held: contextvars.ContextVar[tuple[weakref.ref[BaseLease], ...]] = contextvars.ContextVar("dibs held", default=())


class Hold(Generic[L]):
    """Holds a key while code runs."""

    def __init__(self, core: Core, attempt: Attempt, kind: type[L], options: Any = None) -> None:
        self._core, self._attempt, self._kind, self._options = core, attempt, kind, options
        self._lease: L | None = None

    def begin(self) -> L:
        """Make the lease, which owns the attempt before it is sent."""
        if self._lease is not None:
            raise RuntimeError(USED)
        self._lease = self._kind(self._core, self._attempt)
        return self._lease

    def enter(self, lease: L) -> Steps[L]:
        try:
            waits_for_itself(self._attempt)
            yield from take(self._core, self._attempt)
            _held.set((*(other for other in _held.get() if is_live(other)), weakref.ref(lease)))
            return lease.check()
        except BaseException:
            self._core._give_up(self._attempt)
            raise

    def leave(self, error: BaseException | None) -> Steps[None]:
        """End the lease. If it was lost, that is raised, unless the block has raised an error."""
        lease = self._lease
        assert lease is not None
        try:
            _held.set(tuple(ref for ref in _held.get() if ref() not in (None, lease)))
            lost: Lost | None = yield from lease._finish()
        except BaseException:
            lease._hand_over({"outcome": "release"})
            raise
        if lost and error is None:
            raise lost

    def __call__(self, fn: F) -> F:
        """Hold the key while a function runs, as a decorator: see Client.lock."""
        if self._options is None:
            raise TypeError("dibs: only lock is a decorator")
        core, options, key_of = self._core, self._options, reads_key(self._attempt.key, fn)

        def locked(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            with Block(core, core._asked(key_of(args, named), options), Lease):
                return fn(*args, **named)

        async def locked_async(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            async with AsyncBlock(core, core._asked(key_of(args, named), options), AsyncLease):
                return await fn(*args, **named)
        return decorated(fn, locked, locked_async)


class Block(Hold[Lease]):
    """The block of a with statement."""

    def __enter__(self) -> Lease:
        lease = self.begin()
        try:
            return self._core._run(self.enter(lease))
        except BaseException:
            self._core._give_up(self._attempt)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._lease is not None
        try:
            self._lease._run(self.leave(error))
        except Lost:
            raise
        except BaseException:
            self._lease._hand_over({"outcome": "release"})
            raise


class AsyncBlock(Hold[AsyncLease]):
    """The block of an async with statement."""

    async def __aenter__(self) -> AsyncLease:
        lease = self.begin()
        try:
            return await self._core._here().run_async(self.enter(lease))
        except BaseException:
            self._core._give_up(self._attempt)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._lease is not None
        await self._lease._run(self.leave(error))


def is_live(ref: weakref.ref[BaseLease]) -> bool:
    lease = ref()
    return lease is not None and lease._attempt.live()


def waits_for_itself(attempt: Attempt) -> None:
    """Refuse a wait for a key that the caller itself holds."""
    if attempt.wait == 0:
        return
    mine = [lease._attempt for lease in (ref() for ref in _held.get()) if lease is not None]
    held = [a for a in mine if a.settings is attempt.settings and a.raw == attempt.raw and a.namespace == attempt.namespace and a.live()]
    if not held or (all(a.permits == attempt.permits for a in held) and sum(a.weight for a in held) + attempt.weight <= attempt.permits):
        return
    raise Held(f"dibs: the key {attempt.shown()} is held by the caller itself, and waiting would never end", key=attempt.key)


def decorated(fn: F, call: Callable[[tuple[Any, ...], dict[str, Any]], Any], call_async: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> F:
    """Return the function with each call made by call, or by call_async if it is a coroutine function."""
    if inspect.iscoroutinefunction(fn):
        @functools.wraps(fn)
        async def wrapped_async(*args: Any, **named: Any) -> Any:
            return await call_async(args, named)
        return wrapped_async  # type: ignore[return-value]

    @functools.wraps(fn)
    def wrapped(*args: Any, **named: Any) -> Any:
        return call(args, named)
    return wrapped  # type: ignore[return-value]


def reads_key(template: Key, fn: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Key]:
    """Return what makes the key of a call: {name} in the template is the argument of that name."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"dibs: {fn.__qualname__} is a generator, which runs after its call; use a with statement in it")
    if isinstance(template, bytes):
        return lambda args, named: template
    text = template
    signature = inspect.signature(fn)
    extra = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
    for _, field, _, _ in string.Formatter().parse(template):
        name = None if field is None else re.split(r"[.\[]", field)[0]
        if name is not None and name not in signature.parameters and not (extra and name.isidentifier()):
            raise TypeError(f"dibs: the key {template!r} names {{{field}}}, and {fn.__qualname__} has no such parameter")

    def key_of(args: tuple[Any, ...], named: dict[str, Any]) -> Key:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for name in extra:
            values.update(values.pop(name))
        try:
            return text.format_map(values)
        except KeyError as e:
            raise TypeError(f"dibs: the key {template!r} names {{{e.args[0]}}}, and the call of {fn.__qualname__} has no such argument") from None
    return key_of
