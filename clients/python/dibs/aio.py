"""The client for asyncio."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import claim
from .block import Hold
from .lease import Lease
from .once import once
from .options import PLACE, RETENTION, Duration, Key, Options, Remember, read_age, read_place_ttl, read_retention
from .step import Steps, T
from .ticket import read_ticket
from .transaction import first_of, psycopg_connection

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import Client


class AsyncLease:
    """A Lease for asyncio: what calls the server is awaited, and the rest is the same."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def key(self) -> Key:
        """The key that is held."""
        return self._lease.key

    @property
    def ttl(self) -> float:
        """The TTL in seconds."""
        return self._lease.ttl

    @property
    def attempt(self) -> int:
        """1 plus the number of leases in a row that were abandoned before this one."""
        return self._lease.attempt

    @property
    def progress(self) -> bytes | None:
        """What the holders that were abandoned before this one saved last, or None."""
        return self._lease.progress

    @property
    def held(self) -> bool:
        """Whether the lease is held and trusted."""
        return self._lease.held

    @property
    def fence(self) -> int:
        """The fencing token. It raises Lost like check."""
        return self._lease.fence

    @property
    def left(self) -> float:
        """The seconds for which the lease can still be trusted unless it is renewed."""
        return self._lease.left

    @property
    def id(self) -> str:
        """The public name of this lease, which operators see."""
        return self._lease.id

    def check(self) -> AsyncLease:
        """Return the lease, and raise Lost if it is not held any more."""
        self._lease.check()
        return self

    async def save(self, progress: bytes) -> None:
        """Keep progress with the lease; see Lease.save."""
        await self._run(self._lease._save(progress))

    async def release(self) -> None:
        """End the lease; see Lease.release."""
        await self._run(self._lease._release("release"))

    async def complete(self, data: bytes, keep: Duration = RETENTION) -> None:
        """End the lease and leave data behind; see Lease.complete."""
        await self._run(self._lease._complete(data, read_retention(keep)))

    async def complete_in(self, cursor: Any, data: bytes | None, keep: Duration = RETENTION) -> None:
        """End the lease in a transaction, with an asynchronous cursor; see Lease.complete_in."""
        with self._lease._settles_in(data, read_retention(keep), "written") as statement:
            await cursor.execute(*statement)

    async def abandon(self) -> None:
        """End the lease as if its holder had crashed; see Lease.abandon."""
        await self._run(self._lease._abandon())

    async def undo(self) -> None:
        """End the lease as if it had not been granted; see Lease.undo."""
        await self._run(self._lease._undo())

    async def _run(self, steps: Steps[T]) -> T:
        process = self._lease._attempt.process
        assert process is not None
        return await process.run_async(steps)

    def __repr__(self) -> str:
        return repr(self._lease)


class AsyncBlock(Hold):
    """The block of an async with statement."""

    async def __aenter__(self) -> AsyncLease:
        lease = self.begin()
        try:
            await self._client._here().run_async(self.enter(lease))
            return AsyncLease(lease)
        except BaseException:
            self._attempt.give_up()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._lease is not None
        await AsyncLease(self._lease)._run(self.leave(error))


class AsyncClient:
    """A Client for asyncio: `keys.aio`. The arguments, results and errors are those of Client.

    A task that is cancelled leaves nothing behind: what it held or waited for is settled in the
    background.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _run(self, steps: Steps[T]) -> T:
        return await self._client._here().run_async(steps)

    def lock(self, key: Key, **options: Unpack[Options]) -> AsyncBlock:
        """Hold the key while an async with block runs; see Client.lock. It knows the tasks apart."""
        return AsyncBlock(self._client, self._client._asked(key, options), options)

    async def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True,
                      **options: Unpack[Options]) -> AsyncLease:
        """Take the key and return its lease; see Client.acquire."""
        lease = Lease(self._client, self._client._asked(key, options, max_age=read_age(max_age)))
        try:
            await self._run(self._client._acquire(lease, renew))
            return AsyncLease(lease)
        except BaseException:
            lease._attempt.give_up()
            raise

    async def once(self, key: Key, fn: Callable[..., Awaitable[Any]], *, keep: Duration = RETENTION, max_age: Duration | None = None,
                   remember: Remember = (), rerun: bool = False, pass_lease: bool = False, with_origin: bool = False, in_: Any = None,
                   **options: Unpack[Options]) -> Any:
        """Await fn() under the key unless that was done before, and return its result; see Client.once."""
        retention = read_retention(keep)
        connection = None if in_ is None else psycopg_connection(in_)
        attempt = self._client._asked(key, options, max_age=math.inf if max_age is None else read_age(max_age))

        def run(lease: Lease) -> Any:
            return fn(AsyncLease(lease)) if pass_lease else fn()
        result = await self._run(once(self._client, attempt, run, connection, retention, remember, rerun))
        return result if with_origin else result.value

    async def reserve(self, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, fingerprint: str | None = None,
                      label: str | None = None) -> str:
        """Take a place in the key's queue and return its ticket; see Client.reserve."""
        lease = self._client._reservation(key, ttl, grace, fingerprint, label)
        try:
            return await self._run(claim.reserve(self._client, lease))
        except BaseException:
            lease._attempt.give_up()
            raise

    async def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction, with an asynchronous cursor; see Client.reserve_in."""
        client = self._client
        attempt = client._attempt(key, grace=grace, label=label, place_ttl=read_place_ttl(ttl))
        with client._reserves_in(attempt, await self._run(claim.namespace_of(client, key))) as statement:
            await cursor.execute(*statement)
        return str(first_of(await cursor.fetchone()))

    async def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now; see Client.prolong."""
        await self._run(self._client._prolong(ticket, ttl, grace))

    def redeem(self, ticket: str, *, grace: Duration | None = None, **options: Unpack[Options]) -> AsyncBlock:
        """Hold the key while an async with block runs at a reserved place; see Client.redeem."""
        token, namespace, key = read_ticket(ticket)
        return AsyncBlock(self._client, self._client._asked(key, options, namespace=namespace, place=token, grace=grace))

    async def cancel(self, ticket: str) -> None:
        """Give a reserved place back; see Client.cancel."""
        await self._run(self._client._cancel(ticket))

    async def held(self, key: Key) -> bool:
        """Report whether a caller holds the key; see Client.held."""
        return await self._run(claim.held(self._client, key))
