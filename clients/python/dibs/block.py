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
from typing import TYPE_CHECKING, Any, TypeVar

from .attempt import Attempt
from .claim import take
from .errors import Held, Lost
from .lease import Lease
from .options import Key
from .step import Steps

if TYPE_CHECKING:
    from .client import Client

F = TypeVar("F", bound=Callable[..., Any])

USED = "dibs: a lock is entered once; call lock or redeem again for each with statement"

# The leases of the blocks that the caller is in. A task has those of the block that started it.
_held: contextvars.ContextVar[tuple[weakref.ref[Lease], ...]] = contextvars.ContextVar("dibs held", default=())


class Hold:
    """Holds a key while code runs."""

    def __init__(self, client: Client, attempt: Attempt, options: Any = None) -> None:
        self._client, self._attempt, self._options = client, attempt, options
        self._lease: Lease | None = None

    def begin(self) -> Lease:
        """Make the lease, which owns the attempt before it is sent."""
        if self._lease is not None:
            raise RuntimeError(USED)
        self._lease = Lease(self._client, self._attempt)
        return self._lease

    def enter(self, lease: Lease) -> Steps[None]:
        try:
            waits_for_itself(self._client, self._attempt)
            yield from take(self._client, lease)
            _held.set((*(other for other in _held.get() if is_live(other)), weakref.ref(lease)))
            lease.check()
        except BaseException:
            self._attempt.give_up()
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
        client, options, key_of = self._client, self._options, reads_key(self._attempt.key, fn)

        if inspect.iscoroutinefunction(fn):
            @functools.wraps(fn)
            async def locked_async(*args: Any, **named: Any) -> Any:
                async with client.aio.lock(key_of(args, named), **options):
                    return await fn(*args, **named)
            return locked_async  # type: ignore[return-value]

        @functools.wraps(fn)
        def locked(*args: Any, **named: Any) -> Any:
            with client.lock(key_of(args, named), **options):
                return fn(*args, **named)
        return locked  # type: ignore[return-value]


class Block(Hold):
    """The block of a with statement."""

    def __enter__(self) -> Lease:
        lease = self.begin()
        try:
            self._client._here().run(self.enter(lease))
            return lease
        except BaseException:
            self._attempt.give_up()
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


def is_live(ref: weakref.ref[Lease]) -> bool:
    lease = ref()
    return lease is not None and lease._attempt.live()


def waits_for_itself(client: Client, attempt: Attempt) -> None:
    """Refuse a wait for a key that the caller itself holds."""
    if attempt.wait == 0:
        return
    leases = [lease for lease in (ref() for ref in _held.get()) if lease is not None and lease._client is client]
    held = [a for a in (lease._attempt for lease in leases) if a.raw == attempt.raw and a.namespace == attempt.namespace and a.live()]
    if not held or (all(a.permits == attempt.permits for a in held) and sum(a.weight for a in held) + attempt.weight <= attempt.permits):
        return
    raise Held(f"dibs: the key {attempt.shown()} is held by the caller itself, and waiting would never end", key=attempt.key)


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
