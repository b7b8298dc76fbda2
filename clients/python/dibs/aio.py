"""The client for asyncio."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .attempt import Attempt
from .block import USED
from .errors import Done, Error, TooLarge
from .lease import PATIENCE, Lease
from .once import Kept, keep_result, kept_error, kept_result, read_record, remembers
from .options import PLACE, RETENTION, Duration, Key, Options, Remember, read_age, read_place_ttl, read_retention
from .ticket import read_ticket
from .transaction import async_transaction, first_of, kept_in, psycopg_connection, rolled_back

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Unpack

    from .client import Client

T = TypeVar("T")

# For asyncio, each call runs in a thread of its own: waiters would use up those of a pool, and a
# release would wait behind them. A call whose task is cancelled goes on, and what it gets is
# settled in the background.

async def in_thread(work: Callable[[], T]) -> T:
    import asyncio  # here, because it takes longer than all else of this file
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as e:
            error = e
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="dibs call", daemon=True).start()
    return await future


async def end(lease: Lease, settlement: dict[str, Any], work: Callable[[], T]) -> T:
    """End a lease in a thread. If the task is cancelled, that is done in the background."""
    try:
        return await in_thread(work)
    except Error:
        raise
    except BaseException:
        lease._hand_over(settlement)
        raise


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
        await in_thread(lambda: self._lease.save(progress))

    async def release(self) -> None:
        """End the lease; see Lease.release."""
        await end(self._lease, {"outcome": "release"}, self._lease.release)

    async def complete(self, data: bytes, keep: Duration = RETENTION) -> None:
        """End the lease and leave data behind; see Lease.complete."""
        settlement = self._lease._record(data, read_retention(keep))
        await end(self._lease, settlement, lambda: self._lease._settle(settlement, PATIENCE))

    async def complete_in(self, cursor: Any, data: bytes | None, keep: Duration = RETENTION) -> None:
        """End the lease in a transaction, with an asynchronous cursor; see Lease.complete_in."""
        with self._lease._settles_in(data, read_retention(keep), "written") as statement:
            await cursor.execute(*statement)

    async def abandon(self) -> None:
        """End the lease as if its holder had crashed; see Lease.abandon."""
        await end(self._lease, {"outcome": "abandon"}, self._lease.abandon)

    async def undo(self) -> None:
        """End the lease as if it had not been granted; see Lease.undo."""
        await end(self._lease, {"outcome": "undo"}, self._lease.undo)

    def __repr__(self) -> str:
        return repr(self._lease)


class AsyncBlock:
    """Holds a key while an async with block runs."""

    def __init__(self, client: Client, attempt: Attempt) -> None:
        self._client, self._attempt = client, attempt
        self._lease: Lease | None = None

    async def __aenter__(self) -> AsyncLease:
        if self._lease is not None:
            raise RuntimeError(USED)
        self._lease = lease = Lease(self._client, self._attempt)
        try:
            mine = self._client._of_task()
            await in_thread(lambda: self._client._take(lease, mine))
            mine.add(lease)
            lease.check()
            return AsyncLease(lease)
        except BaseException:
            self._attempt.give_up()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        lease = self._lease
        assert lease is not None
        self._client._of_task().discard(lease)
        lost = await end(lease, {"outcome": "release"}, lease._finish)
        if lost and kind is None:
            raise lost


class AsyncClient:
    """A Client for asyncio: `keys.aio`. The arguments, results and errors are those of Client.

    A task that is cancelled leaves nothing behind: what it held or waited for is settled in the
    background.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def lock(self, key: Key, **options: Unpack[Options]) -> AsyncBlock:
        """Hold the key while an async with block runs; see Client.lock. It knows the tasks apart."""
        return AsyncBlock(self._client, self._client._asked(key, options))

    async def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True,
                      **options: Unpack[Options]) -> AsyncLease:
        """Take the key and return its lease; see Client.acquire."""
        client = self._client
        lease = Lease(client, client._asked(key, options, max_age=read_age(max_age)))
        try:
            mine = client._of_task()
            await in_thread(lambda: client._take(lease, mine, renew))
            return AsyncLease(lease)
        except BaseException:
            lease._attempt.give_up()
            raise

    async def once(self, key: Key, fn: Callable[..., Awaitable[Any]], *, keep: Duration = RETENTION, max_age: Duration | None = None,
                   remember: Remember = (), rerun: bool = False, pass_lease: bool = False, in_: Any = None, **options: Unpack[Options]) -> Any:
        """Await fn() under the key unless that was done before, and return its result; see Client.once."""
        client, retention = self._client, read_retention(keep)
        connection = None if in_ is None else psycopg_connection(in_)
        attempt = client._asked(key, options, max_age=math.inf if max_age is None else read_age(max_age))
        async with contextlib.AsyncExitStack() as stack:
            try:
                shown = await stack.enter_async_context(AsyncBlock(client, attempt))
            except Done as done:
                return read_record(done, attempt)
            lease = shown._lease

            async def keep(kept: Kept, rerun: bool) -> None:
                settlement = {"outcome": "release"} if kept.why and rerun else lease._record(kept.record, retention)
                await end(lease, settlement, lambda: keep_result(lease, kept, retention, rerun))

            async def run() -> Any:
                result = fn(shown) if pass_lease else fn()
                return await result if isinstance(result, Awaitable) else result

            kept: Kept | None = None
            settled = False
            try:
                if connection is None:
                    result = await run()
                else:
                    async with async_transaction(connection, lease) as cursor:
                        kept = kept_in(lease, await run())
                        with lease._settles_in(kept.record, retention, "marked") as statement:
                            await cursor.execute(*statement)
                        settled = True
            except Exception as e:
                if not settled and remembers(remember, e):
                    await keep(kept_error(e), rerun or connection is not None)
                if isinstance(e, TooLarge) and kept is not None:
                    raise rolled_back(lease, e, kept.result) from e
                if kept is None or not settled or not await in_thread(lambda: lease._find_out(kept.record, retention)):
                    raise
            if kept is not None:
                lease._committed()
            else:
                kept = kept_result(result)
                await keep(kept, rerun)
            return kept.value

    async def reserve(self, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, fingerprint: str | None = None,
                      label: str | None = None) -> str:
        """Take a place in the key's queue and return its ticket; see Client.reserve."""
        lease = self._client._reservation(key, ttl, grace, fingerprint, label)
        try:
            return await in_thread(lambda: self._client._reserve(lease))
        except BaseException:
            lease._attempt.give_up()
            raise

    async def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction, with an asynchronous cursor; see Client.reserve_in."""
        client = self._client
        attempt = client._attempt(key, grace=grace, label=label, place_ttl=read_place_ttl(ttl))
        with client._reserves_in(attempt, await in_thread(lambda: client._namespace_of(attempt))) as statement:
            await cursor.execute(*statement)
        return str(first_of(await cursor.fetchone()))

    async def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now; see Client.prolong."""
        await in_thread(lambda: self._client.prolong(ticket, ttl=ttl, grace=grace))

    def redeem(self, ticket: str, *, grace: Duration | None = None, **options: Unpack[Options]) -> AsyncBlock:
        """Hold the key while an async with block runs at a reserved place; see Client.redeem."""
        token, namespace, key = read_ticket(ticket)
        return AsyncBlock(self._client, self._client._asked(key, options, namespace=namespace, place=token, grace=grace))

    async def cancel(self, ticket: str) -> None:
        """Give a reserved place back; see Client.cancel."""
        await in_thread(lambda: self._client.cancel(ticket))

    async def held(self, key: Key) -> bool:
        """Report whether a caller holds the key; see Client.held."""
        return await in_thread(lambda: self._client.held(key))
