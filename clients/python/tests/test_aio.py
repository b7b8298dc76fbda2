import asyncio
import math
import unittest

import support
from support import Case

import dibs


class AsyncTest(Case):
    """asyncio: the calls, and tasks that are cancelled."""

    def run_async(self, main):
        async def limited():
            return await asyncio.wait_for(main, support.LIMIT)
        return asyncio.run(limited())

    async def waits(self, count=1):
        """Wait until so many wait for the key."""
        for _ in range(support.LIMIT * 200):
            if await asyncio.to_thread(self.server.waiters, self.key) == count:
                return
            await asyncio.sleep(0.005)
        self.fail(f"{count} do not wait")

    def test_a_block_holds_the_key(self):
        async def main():
            async with self.keys.aio.lock(self.key, ttl=600) as lease:
                self.assertIs(lease, lease.check())
                self.assertTrue(lease.held)
                self.assertGreater(lease.fence, 0)
                self.assertEqual((self.key, 600, 1, None), (lease.key, lease.ttl, lease.attempt, lease.progress))
                self.assertEqual(lease.id, self.server.entry(self.key)["runs"][0]["id"])
                self.assertTrue(await self.keys.aio.held(self.key))
                self.assertGreater(lease.left, 500)
                self.assertIn("held", repr(lease))
                await lease.save(b"x")
            self.assertTrue(self.server.free(self.key))
            self.assertFalse(await self.keys.aio.held(self.key))
        self.run_async(main())

    def test_settlements_of_two_tasks_that_are_refused_leave_the_lease_as_it_was(self):
        server = self.serve("--max-body", "64KiB")
        keys = self.connect(server.url)

        async def main():
            lease = await keys.aio.acquire(self.key, ttl=600)
            for failed in await asyncio.gather(*(lease.complete(b"x" * 100_000) for _ in range(2)), return_exceptions=True):
                self.assertIsInstance(failed, dibs.Refused)
            self.assertTrue(lease.held)
            server.take(lease)
            with self.assertRaises(dibs.Lost):
                await lease.release()
        self.run_async(main())

    def test_tasks_have_the_key_in_order_of_arrival(self):
        async def main():
            order, tasks = [], []

            async def work(i):
                async with self.keys.aio.lock(self.key):
                    order.append(i)
            holder = await self.keys.aio.acquire(self.key)
            for i in range(50):
                tasks.append(asyncio.create_task(work(i)))
                if i < 3:
                    await self.waits(i + 1)
            await self.waits(50)
            await holder.release()
            await asyncio.gather(*tasks)
            self.assertEqual([0, 1, 2], order[:3])
            self.assertEqual(list(range(50)), sorted(order))
        self.run_async(main())

    def test_a_task_that_waits_for_itself_is_refused_and_another_is_not(self):
        async def main():
            async def other():
                async with self.keys.aio.lock(self.key):
                    return "other"
            go = asyncio.Event()

            async def outside():
                await go.wait()
                return await other()
            task = asyncio.create_task(outside())
            async with self.keys.aio.lock(self.key):
                for mine in (other(), asyncio.create_task(other()), asyncio.gather(other())):
                    with self.assertRaises(dibs.Held):
                        await mine
                go.set()
                await self.waits()
            self.assertEqual("other", await task)
        self.run_async(main())

    def test_a_waiter_that_is_cancelled_leaves_the_queue(self):
        async def main():
            async def work():
                async with self.keys.aio.lock(self.key, ttl=600):
                    self.fail("it is locked")
            holder = await self.keys.aio.acquire(self.key, ttl=600)
            task = asyncio.create_task(work())
            await self.waits()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await self.waits(0)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.create_task(work()), 0.2)
            await self.waits(0)
            await holder.release()
        self.run_async(main())
        self.assertFree()

    def test_a_block_that_is_cancelled_releases(self):
        async def main():
            held = asyncio.Event()

            async def work():
                async with self.keys.aio.lock(self.key, ttl=600):
                    held.set()
                    await asyncio.sleep(600)
            task = asyncio.create_task(work())
            await held.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(self.server.free(self.key))
        self.run_async(main())

    def test_a_task_is_cancelled_at_each_step(self):
        """A task is cancelled after each number of steps of the loop, with its calls done or not."""
        async def steps(i):
            key = f"{self.key}/{i % 4}"
            if i % 4 == 0:
                async with self.keys.aio.lock(key, ttl=600) as lease:
                    await lease.save(b"x")
            elif i % 4 == 1:
                lease = await self.keys.aio.acquire(key, ttl=600)
                await lease.release()
            elif i % 4 == 2:
                await self.keys.aio.once(f"{key}/{i}", lambda: asyncio.sleep(0, 1), ttl=600)
            else:
                ticket = await self.keys.aio.reserve(key, ttl=600)
                try:
                    async with self.keys.aio.redeem(ticket, ttl=600):
                        pass
                finally:
                    await asyncio.to_thread(self.keys.cancel, ticket)

        async def main():
            for i in range(80):
                task = asyncio.create_task(steps(i))
                for _ in range(i // 4):
                    await asyncio.sleep(0.0005)
                task.cancel()
                try:
                    await task
                except (asyncio.CancelledError, dibs.Lost):
                    pass
        self.run_async(main())
        for i in range(4):
            self.assertFree(f"{self.key}/{i}")
        for i in range(2, 80, 4):
            self.assertFree(f"{self.key}/2/{i}")

    def test_a_loop_that_ends_leaves_nothing(self):
        async def main():
            async def work():
                async with self.keys.aio.lock(self.key, ttl=600):
                    await asyncio.sleep(600)
            tasks = [asyncio.create_task(work()) for _ in range(3)]
            await self.waits(2)
            return tasks
        self.run_async(main())
        self.assertFree()

    def test_the_end_of_the_program_settles_what_was_cancelled(self):
        script = self.script(f"""
            import asyncio
            async def main():
                async with dibs.connect().aio.lock({self.key!r}, ttl=600):
                    print("held")
                    await asyncio.sleep(600)
            try:
                asyncio.run(main())
            except KeyboardInterrupt:
                print("interrupted")
        """)
        self.assertEqual("held", script.line())
        script.strike(support.signal.SIGINT)
        self.assertEqual("interrupted", script.line())
        script.ended()
        self.assertFree()

    def test_a_lost_lease(self):
        async def main():
            with self.assertRaises(dibs.Lost):
                async with self.keys.aio.lock(self.key, ttl=600) as lease:
                    self.server.take(lease)
            with self.assertRaises(KeyError):
                async with self.keys.aio.lock(self.key, ttl=600) as lease:
                    self.server.take(lease)
                    raise KeyError
        self.run_async(main())

    def test_ends(self):
        async def main():
            aio = self.keys.aio
            await (await aio.acquire(self.key)).abandon()
            lease = await aio.acquire(self.key)
            self.assertEqual(2, lease.attempt)
            await lease.undo()
            lease = await aio.acquire(self.key)
            await lease.complete(b"record", keep=60)
            with self.assertRaises(dibs.Done):
                await aio.acquire(self.key, max_age=math.inf)
            with self.assertRaises(TypeError):
                aio.lock(self.key, wiat=1)
            lock = aio.lock(self.key)
            async with lock:
                with self.assertRaises(RuntimeError):
                    await lock.__aenter__()
        self.run_async(main())

    def test_once(self):
        async def main():
            runs = []

            async def run():
                runs.append(1)
                await asyncio.sleep(0.05)
                return {"a": 1}

            async def fail(lease):
                raise KeyError(lease.held)
            once = self.keys.aio.once
            self.assertEqual([{"a": 1}] * 5, await asyncio.gather(*(once(self.key, run) for _ in range(5))))
            self.assertEqual([1], runs)
            self.assertEqual({"a": 1}, await asyncio.to_thread(self.keys.once, self.key, self.fail))
            for error in (KeyError, dibs.Remembered):
                with self.assertRaises(error):
                    await once(f"{self.key}/e", fail, remember=KeyError, pass_lease=True)
            with self.assertRaises(dibs.NotKept):
                await once(f"{self.key}/n", lambda: asyncio.sleep(0, object()))
        self.run_async(main())

    def test_tickets(self):
        async def main():
            aio = self.keys.aio
            first, second = await aio.reserve(self.key), await aio.reserve(self.key)
            with self.assertRaises(dibs.Held):
                async with aio.redeem(second, wait=0):
                    self.fail("it is locked")
            await aio.prolong(first, ttl="2h")
            await aio.cancel(first)
            async with aio.redeem(second):
                pass
        self.run_async(main())
        self.assertFree()


if __name__ == "__main__":
    unittest.main()
