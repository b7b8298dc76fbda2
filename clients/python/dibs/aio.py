"""The client for asyncio."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from . import claim
from .block import AsyncBlock, waits_for_itself
from .core import Core
from .lease import AsyncLease
from .once import once
from .options import PLACE, RETENTION, Duration, Key, Options, Remember, read_keep
from .step import Steps, T
from .ticket import read_ticket
from .transaction import first_of, psycopg_connection, reserves_in

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient:
    """A Client for asyncio: `keys.aio`. The arguments, results and errors are those of Client.

    A task that is cancelled leaves nothing behind: what it held or waited for is settled in the
    background.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def _run(self, steps: Steps[T]) -> T:
        return await self._core._here().run_async(steps)

    def lock(self, key: Key, **options: Unpack[Options]) -> AsyncBlock:
        """Hold the key while an async with block runs; see Client.lock. It knows the tasks apart."""
        return AsyncBlock(self._core, self._core._asked(key, options), AsyncLease, options)

    async def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True,
                      **options: Unpack[Options]) -> AsyncLease:
        """Take the key and return its lease; see Client.acquire."""
        lease = AsyncLease(self._core, self._core._asked(key, options, max_age=max_age))
        try:
            waits_for_itself(lease._attempt)
            await self._run(claim.take(self._core, lease._attempt, renew))
            return lease
        except BaseException:
            self._core._give_up(lease._attempt)
            raise

    async def once(self, key: Key, fn: Callable[..., Awaitable[Any]], *, keep: Duration = RETENTION, max_age: Duration | None = None,
                   remember: Remember = (), rerun: bool = False, pass_lease: bool = False, with_origin: bool = False, in_: Any = None,
                   **options: Unpack[Options]) -> Any:
        """Await fn() under the key unless that was done before, and return its result; see Client.once."""
        connection = None if in_ is None else psycopg_connection(in_)
        attempt = self._core._asked(key, options, max_age=math.inf if max_age is None else max_age)

        def run(lease: AsyncLease) -> Any:
            return fn(lease) if pass_lease else fn()
        result = await self._run(once(self._core, attempt, AsyncLease, run, connection, read_keep(keep), remember, rerun))
        return result if with_origin else result.value

    async def reserve(self, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, fingerprint: str | None = None,
                      label: str | None = None) -> str:
        """Take a place in the key's queue and return its ticket; see Client.reserve."""
        attempt = self._core._attempt(key, grace=grace, fingerprint=fingerprint, label=label, place_ttl=ttl)
        try:
            return await self._run(claim.reserve(self._core, attempt))
        except BaseException:
            self._core._give_up(attempt)
            raise

    async def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction, with an asynchronous cursor; see Client.reserve_in."""
        attempt = self._core._attempt(key, grace=grace, label=label, place_ttl=ttl)
        with reserves_in(attempt, await self._run(claim.namespace_of(self._core, key))) as statement:
            await cursor.execute(*statement)
        return str(first_of(await cursor.fetchone()))

    async def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now; see Client.prolong."""
        await self._run(claim.prolong(self._core, ticket, ttl, grace))

    def redeem(self, ticket: str, *, grace: Duration | None = None, **options: Unpack[Options]) -> AsyncBlock:
        """Hold the key while an async with block runs at a reserved place; see Client.redeem."""
        token, namespace, key = read_ticket(ticket)
        return AsyncBlock(self._core, self._core._asked(key, options, namespace=namespace, place=token, grace=grace), AsyncLease)

    async def cancel(self, ticket: str) -> None:
        """Give a reserved place back; see Client.cancel."""
        await self._run(claim.cancel(self._core, ticket))

    async def held(self, key: Key) -> bool:
        """Report whether a caller holds the key; see Client.held."""
        return await self._run(claim.held(self._core, key))
