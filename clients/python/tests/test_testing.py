"""dibs.testing: what test_table.py does not say."""

import asyncio
import threading
import unittest

import support
from support import wait

import dibs
import dibs.testing


class KeeperTest(unittest.TestCase):
    def setUp(self):
        self.keeper = dibs.testing.Keeper()
        self.keys, self.other = self.keeper.connect(), self.keeper.connect()
        self.key = self.id()
        before = threading.enumerate()
        self.addCleanup(lambda: self.assertEqual([], [each for each in threading.enumerate() if each not in before and each.name.startswith("dibs")]))

    def waits(self):
        wait("it waits", lambda: len(self.keeper._store._entry(dibs.testing.Key.of(self.key, "")).places) == 1)

    def lock(self, **options):
        with self.keys.lock(self.key, **options) as lease:
            return lease.check()

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
        self.keeper.held_by_another(self.key, seconds="10m")
        lease = self.keys.acquire(self.key)
        self.assertEqual(1, lease.attempt)
        lease.release()
        lease = self.keys.acquire(self.key)  # which is renewed, and nobody but this thread can release it
        self.assertRaisesRegex(RuntimeError, "would never end", self.other.acquire, self.key)
        lease.release()
        lease = self.keys.acquire(self.key, renew=False)  # which ends by itself
        self.other.acquire(self.key).release()
        self.assertFalse(lease.held)
        self.keeper.held_by_another(self.key)
        with self.assertRaises(dibs.Held) as held:
            self.lock(wait="1h")
        self.assertAlmostEqual(3600, held.exception.waited, delta=1)
        self.assertRaisesRegex(RuntimeError, "would never end", self.lock)
        with self.assertRaisesRegex(RuntimeError, "would never end"):
            asyncio.run(self.keys.aio.acquire(self.key))

    def test_a_wait_for_another_thread_is_a_real_one(self):
        lease = support.thread(lambda: self.keys.acquire(self.key)).join()  # the thread has ended, and this one has its lease
        before = self.keeper._time.now()
        waiter = support.thread(lambda: self.other.acquire(self.key))
        self.waits()
        self.assertEqual(before, self.keeper._time.now())
        lease.release()
        lease = waiter.join()
        with self.assertRaises(dibs.Held):
            support.thread(lambda: self.lock(wait=0.05)).join()
        lease.release()

    def test_a_server_that_is_away_for_a_while_is_waited_for(self):
        self.keeper.away()
        self.assertRaises(dibs.Unavailable, self.lock)
        self.keeper.back()
        self.lock()


if __name__ == "__main__":
    unittest.main()
