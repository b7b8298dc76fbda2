"""dibs.testing, and that it does what a server does."""

import asyncio
import contextlib
import hashlib
import math
import threading
import unittest
import warnings

import support
from support import Case, wait

import dibs
import dibs.testing


class Table:
    """The cases. Each runs with a server and with the keeper of dibs.testing."""

    def refuses(self, kind, call, *args, **options):
        with self.assertRaises(kind) as caught:
            call(*args, **options)
        return caught.exception

    def lock(self, keys=None, **options):
        with (keys or self.keys).lock(self.key, **options) as lease:
            return lease.check()

    def test_a_lock_is_held_and_released(self):
        with self.keys.lock(self.key, ttl=600) as lease:
            self.assertTrue(lease.held and self.keys.held(self.key))
            self.assertEqual(1, lease.attempt)
            first = lease.fence
        self.assertFalse(lease.held or self.keys.held(self.key))
        with self.keys.lock(self.key) as lease:
            self.assertGreater(lease.fence, first)

    def test_held_by_another(self):
        with self.by_another():
            error = self.refuses(dibs.Held, self.lock, wait=0)
            self.assertEqual((self.key, 0), (error.key, round(error.waited)))
            self.assertGreaterEqual(self.refuses(dibs.Held, self.lock, wait=0.05).waited, 0.05)
            self.assertEqual("another", error.holder().label)
            self.assertTrue(self.keys.held(self.key))
        self.lock(wait=0)
        self.assertIsNone(error.holder())

    def test_a_lease_of_another_client(self):
        lease = self.other.acquire(self.key, ttl=600)
        self.refuses(dibs.Held, self.lock, wait=0)
        self.refuses(dibs.Held, self.lock, wait=0.02)
        lease.release()
        self.lock(wait=10)  # the place of the call before may not be undone yet

    def test_what_an_abandoned_lease_leaves(self):
        self.keys.acquire(self.key, permits=2).abandon()
        lease = self.keys.acquire(self.key, permits=2, fingerprint="a" * 64)
        self.assertEqual(2, lease.attempt)
        lease.abandon()
        self.refuses(dibs.Mismatch, self.lock, fingerprint="b" * 64)
        self.lock(fingerprint="A" * 64)
        self.keys.acquire(self.key, at_most_once=True).abandon()
        self.refuses(dibs.Unknown, self.lock)

    def test_a_fingerprint_of_zeros_is_none(self):
        lease = self.keys.acquire(self.key, fingerprint="0" * 64)
        self.refuses(dibs.Held, self.lock, wait=0, fingerprint="b" * 64)
        lease.release()

    def test_a_wait_that_another_thread_ends(self):
        lease = self.other.acquire(self.key, ttl=600)
        waiter = support.thread(self.lock)
        self.waits()
        lease.release()
        waiter.join()

    def test_threads_take_their_turns(self):
        lease, order = self.other.acquire(self.key, ttl=600), []

        def work(i):
            with self.keys.lock(self.key):
                order.append(i)
        threads = []
        for i in range(3):
            threads.append(support.thread(lambda i=i: work(i)))
            self.waits(i + 1)
        lease.release()
        for each in threads:
            each.join()
        self.assertEqual([0, 1, 2], order)

    def test_tasks(self):
        async def main():
            inside = []

            async def work():
                async with self.keys.aio.lock(self.key, ttl=600):
                    inside.append(1)
                    await asyncio.sleep(0)
                    self.assertEqual(1, len(inside))
                    inside.pop()
                return await self.keys.aio.once(f"{self.key}/once", one)

            async def one():
                return 1
            self.assertEqual([1] * 5, await asyncio.wait_for(asyncio.gather(*(work() for _ in range(5))), support.LIMIT))
            async with self.keys.aio.lock(self.key):
                with self.assertRaises(dibs.Held):
                    await self.keys.aio.acquire(self.key)
        asyncio.run(main())

    def test_a_task_that_is_cancelled_leaves_nothing(self):
        async def main():
            holder = await self.other.aio.acquire(self.key, ttl=600)
            task = asyncio.create_task(self.keys.aio.acquire(self.key, ttl=600))
            await asyncio.to_thread(self.waits)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await holder.release()
        asyncio.run(main())
        self.keys.flush(support.LIMIT)
        self.lock(wait=0)

    def test_lost(self):
        with self.assertRaises(dibs.Lost), self.keys.lock(self.key, ttl=600) as lease:
            self.lose()
            self.assertRaises(dibs.Lost, lease.save, b"x")
            self.assertRaises(dibs.Lost, lease.check)
            self.assertFalse(lease.held)
        lease = self.keys.acquire(self.key, ttl=600)
        self.lose()
        for end in (lambda: lease.complete(b"record"), lease.release):
            self.assertRaises(dibs.Lost, end)

    def test_a_process_died(self):
        self.died(b"half")
        with self.keys.lock(self.key) as lease:
            self.assertEqual((2, b"half"), (lease.attempt, lease.progress))
        with self.keys.lock(self.key) as lease:
            self.assertEqual((1, None), (lease.attempt, lease.progress))

    def test_an_outcome_is_unknown(self):
        self.keys.acquire(self.key, at_most_once=True).abandon()
        self.assertRegex(self.refuses(dibs.Unknown, self.lock, at_most_once=True).id, r"\A[a-z2-7]{16}\Z")
        self.assertEqual("unknown", self.state())

    def test_undo_and_abandon(self):
        lease = self.keys.acquire(self.key)
        lease.abandon()
        self.keys.acquire(self.key).undo()
        self.assertEqual(2, self.lock().attempt)

    def test_once(self):
        runs = []
        for replayed in (False, True, True):
            result = self.keys.once(self.key, lambda: runs.append(1) or (1, "é"), with_origin=True)
            self.assertEqual(([1, "é"], replayed), result)
        self.assertEqual([1], runs)
        with self.assertRaises(KeyError):
            self.keys.once(f"{self.key}/e", {}.__getitem__, pass_lease=True, remember=KeyError)
        self.refuses(dibs.Remembered, self.keys.once, f"{self.key}/e", lambda: 1)
        self.refuses(dibs.NotKept, self.keys.once, f"{self.key}/n", object)
        self.refuses(dibs.Unrecorded, self.keys.once, f"{self.key}/n", lambda: 1)

    def test_records(self):
        a, b = (hashlib.sha256(t).hexdigest() for t in (b"a", b"b"))
        self.keys.acquire(self.key, fingerprint=a).complete(b"\xff")
        done = self.refuses(dibs.Done, self.keys.acquire, self.key, max_age=math.inf)
        self.assertEqual((b"\xff", 0), (done.record, round(done.age / 60)))
        self.refuses(dibs.Mismatch, self.keys.acquire, self.key, max_age=math.inf, fingerprint=b)
        with self.keys.lock(self.key, fingerprint=a):
            self.refuses(dibs.Mismatch, self.other.acquire, self.key, fingerprint=b, wait=0)

    def test_a_record_after_a_lock(self):
        self.keys.acquire(self.key).complete(b"record")
        self.lock()
        self.assertEqual(self.record_is_left, self.has_record())

    def test_a_semaphore(self):
        with self.keys.lock(self.key, permits=3), self.other.lock(self.key, permits=3):
            self.refuses(dibs.Held, self.lock, permits=3, weight=2, wait=0)
            self.lock(permits=3, wait=0)

    def test_tickets(self):
        first, second = self.keys.reserve(self.key), self.keys.reserve(self.key)
        redeem = lambda ticket, **options: self.keys.redeem(ticket, **options).__enter__()  # noqa: E731
        self.refuses(dibs.Held, redeem, second, wait=0)
        self.refuses(dibs.Held, self.lock, wait=0)
        with self.keys.redeem(first) as lease:
            lease.undo()
        self.refuses(dibs.Held, redeem, second, wait=0)
        self.keys.prolong(first, ttl="2h")
        with self.keys.redeem(first):
            self.refuses(dibs.Held, redeem, second, wait=0)
        self.refuses(dibs.Lost, self.keys.cancel, first)
        self.keys.cancel(second)
        self.lock(wait=0)

    def test_a_lease_that_nobody_has(self):
        lease = self.keys.acquire(self.key, ttl=600)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del lease
        self.keys.flush(support.LIMIT)
        self.assertEqual(2, self.lock(wait=0).attempt)

    def test_time_passes(self):
        self.keys.once(self.key, lambda: 1, keep=0.2)
        lease = self.keys.acquire(f"{self.key}/l", ttl=0.2, renew=False)
        kept = self.keys.acquire(f"{self.key}/r", ttl=600)
        self.passes(0.3)
        self.assertEqual(2, self.keys.once(self.key, lambda: 2))
        self.assertRaises(dibs.Lost, lease.check)
        self.assertEqual(2, self.keys.acquire(f"{self.key}/l").attempt)
        kept.release()

    def test_the_server_is_away(self):
        lease = self.keys.acquire(self.key, ttl=600)
        with self.is_away():
            self.refuses(dibs.Unavailable, self.keys.acquire, f"{self.key}/2", wait=0)
            self.refuses(dibs.Unavailable, lease.save, b"x")
            self.assertTrue(lease.held)
        lease.release()
        self.keys.acquire(f"{self.key}/2", wait=0).release()

    def test_the_client_is_closed(self):
        holder = self.other.acquire(self.key, ttl=600)
        waiter = support.thread(lambda: self.refuses(dibs.Closed, self.lock))
        self.waits()
        self.keys.close()
        waiter.join()
        self.refuses(dibs.Closed, self.lock)
        holder.release()

    record_is_left = True

    def has_record(self):
        try:
            self.other.acquire(self.key, max_age=math.inf).release()
            return False
        except dibs.Done:
            return True


class ServerTest(Table, Case):
    """The cases with a server."""

    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.keys, self.other = self.connect(self.server.url), self.connect(self.server.url)

    @contextlib.contextmanager
    def by_another(self):
        with self.connect(self.server.url, label="another").lock(self.key, ttl=600):
            yield

    def waits(self, count=1):
        wait("it waits", lambda: self.server.waiters(self.key) == count)

    def lose(self):
        for run in self.server.entry(self.key)["runs"]:
            self.server.ask("POST /v1/keys/release", support.json.dumps({"key": self.key, "id": run["id"]}).encode())
        for attempt in list(self.keys._process.renewer._attempts.values()):
            self.keys._process.renewer._renew([attempt], support.LIMIT)

    def died(self, progress):
        lease = self.other.acquire(self.key)
        lease.save(progress)
        lease.abandon()

    def state(self):
        return self.server.entry(self.key)["state"]

    def passes(self, seconds):
        ends = support.time.monotonic() + seconds
        wait("the time has passed", lambda: support.time.monotonic() > ends)

    @contextlib.contextmanager
    def is_away(self):
        self.server.kill()
        yield
        self.server.start()


class KeeperTest(Table, unittest.TestCase):
    """The cases without one."""

    def setUp(self):
        self.keeper = dibs.testing.Keeper()
        self.keys, self.other = self.keeper.connect(), self.keeper.connect()
        self.key = self.id()
        before = threading.enumerate()
        self.addCleanup(lambda: self.assertEqual([], [each for each in threading.enumerate() if each not in before and each.name.startswith("dibs")]))

    @contextlib.contextmanager
    def by_another(self):
        self.keeper.held_by_another(self.key)
        yield
        self.keeper.release(self.key)

    def waits(self, count=1):
        wait("it waits", lambda: len(self.keeper._store._entry(dibs.testing.Key.of(self.key, "")).places) == count)

    def lose(self):
        self.keeper.lose(self.key)

    def died(self, progress):
        self.keeper.abandoned(self.key, progress)

    def state(self):
        return "unknown"

    def passes(self, seconds):
        self.keeper.advance(seconds)

    def is_away(self):
        return self.keeper.away()

    # What only the keeper has.

    def test_a_lease_is_renewed_while_time_passes(self):
        with self.keys.lock(self.key) as lease:
            self.keeper.advance(86_400)
            self.assertTrue(lease.held and self.keeper.holds(self.key))
        self.assertFalse(self.keeper.holds(self.key))

    def test_a_lease_is_lost_if_the_server_is_away_for_too_long(self):
        events = []
        keys = self.keeper.connect(on_event=lambda event: events.append(event.kind))
        with self.assertRaises(dibs.Lost), keys.lock(self.key, ttl=30):
            self.keeper.away()
            self.keeper.advance(31)
            self.keeper.back()
        self.assertEqual(["acquired", "lost"], events)

    def test_a_lease_is_lost_at_once(self):
        with self.assertRaises(dibs.Lost), self.keys.lock(self.key) as lease:
            self.keeper.lose(self.key)
            self.assertFalse(lease.held)
            lease.check()

    def test_a_wait_takes_the_time_of_the_keeper(self):
        self.keeper.held_by_another(self.key, seconds=600)
        lease = self.keys.acquire(self.key)
        self.assertEqual(2, lease.attempt)
        lease.release()
        self.keeper.held_by_another(self.key)
        self.assertAlmostEqual(3600, self.refuses(dibs.Held, self.lock, wait="1h").waited, delta=1)
        self.assertRaisesRegex(RuntimeError, "would never end", self.lock)
        self.assertRaises(AssertionError, self.keeper.held_by_another, self.key)
        with self.assertRaisesRegex(RuntimeError, "would never end"):
            asyncio.run(self.keys.aio.acquire(self.key))

    def test_a_server_that_is_away_for_a_while_is_waited_for(self):
        self.keeper.away()
        self.refuses(dibs.Unavailable, self.lock)
        self.keeper.back()
        self.lock()

    def test_a_lease_expires_after_a_long_time_without_renewals(self):
        lease = self.keys.acquire(self.key, ttl=30, renew=False)
        self.keeper.advance(31)
        self.assertFalse(lease.held)
        self.assertEqual(2, self.lock().attempt)


class KeyTest(unittest.TestCase):
    """Answers of a server that depend on moments, asked of the keeper alone."""

    def setUp(self):
        self.time = dibs.testing.Time()
        self.store = dibs.keeper.Store(self.time)

    def claim(self, token, mode, **more):
        element = {"key": "k", "token": token, "mode": mode, "ttl_ms": 600_000, "place_ttl_ms": 600_000, **more}
        return self.store.answer("claim", element, None)["state"]

    def settle(self, token, outcome="release"):
        return self.store.answer("settle", {"key": "k", "token": token, "outcome": outcome}, None)

    def test_a_waiter_at_a_reserved_place_keeps_it(self):
        self.assertEqual("granted", self.claim("aa", "try"))
        self.assertEqual("held", self.claim("bb", "reserve", grace_ms=200))
        self.assertEqual("held", self.claim("cc", "queue", **{"from": "bb"}))
        self.settle("aa")
        self.assertEqual("held", self.claim("dd", "try"))
        self.time.moment += 1
        self.assertEqual("held", self.claim("dd", "try"))
        self.assertEqual({}, self.settle("bb"))

    def test_a_waiter_keeps_its_place_when_the_reserved_one_is_new(self):
        self.assertEqual("granted", self.claim("aa", "try"))
        self.assertEqual("held", self.claim("bb", "reserve", place_ttl_ms=200))
        self.assertEqual("held", self.claim("cc", "queue", **{"from": "bb"}))
        self.time.moment += 1
        self.assertEqual("held", self.claim("bb", "reserve"))
        self.settle("aa")
        self.assertEqual("granted", self.claim("cc", "queue", **{"from": "bb"}))


if __name__ == "__main__":
    unittest.main()
