import asyncio
import gc
import threading
import unittest
from unittest import mock

import support
from support import Case, Line, wait

import dibs


class BatchTest(Case):
    """What is asked at the same time goes in one call."""

    def setUp(self):
        super().setUp()
        self.line = Line(self.server)
        self.addCleanup(self.line.close)
        self.over = self.connect(self.line.url, timeout=support.LIMIT)
        self.over.held(self.key)  # the connection is there
        self.line.calls.clear()
        self.go = threading.Event()
        self.addCleanup(self.go.set)

    def hold_back(self, verb="claim", calls=1000):
        """Let the next calls of the verb wait for go."""
        left = [calls]

        def before():
            left[0] -= 1
            if left[0] >= 0:
                self.go.wait(support.LIMIT)
        self.line.before[verb] = before

    def close_over(self):
        """Close the client, and wait until its threads have ended."""
        def threads():
            return {t for t in threading.enumerate() if t.name == "dibs settlements"}
        before = len(threads())
        self.over.close()
        wait("its threads have ended", lambda: len(threads()) < before)

    def locks(self, indexes, over=None):
        def lock(i):
            with (over or self.over).lock(f"{self.key}/{i}", wait=0, ttl=600) as lease:
                return lease.fence
        return [support.thread(lambda i=i: lock(i)) for i in indexes]

    @mock.patch.object(dibs.batch, "SLOW", support.LIMIT)
    def test_threads(self):
        self.hold_back()
        threads = self.locks([0])
        wait("one is alone", lambda: self.line.calls["claim"] == 1)
        threads += self.locks(range(1, 20))
        wait("the next one leaves at once", lambda: self.line.calls["claim"] == 2)
        wait("the others are asked", lambda: len(self.over._here().claims._queue) >= 1)
        self.go.set()
        for each in threads:
            self.assertGreater(each.join(), 0)
        self.assertLess(self.line.calls["claim"], 15)
        for i in range(20):
            self.assertFree(f"{self.key}/{i}")

    @mock.patch.object(dibs.batch, "SLOW", support.LIMIT)
    def test_tasks(self):
        self.hold_back()

        async def main():
            async def lock(i):
                async with self.over.aio.lock(f"{self.key}/{i}", ttl=600) as lease:
                    lease.check()
            tasks = [asyncio.create_task(lock(i)) for i in range(64)]
            await asyncio.sleep(0)
            self.go.set()  # all have asked, because a task that starts asks at once
            await asyncio.gather(*tasks)
        asyncio.run(asyncio.wait_for(main(), support.LIMIT))
        self.assertLessEqual(self.line.calls["claim"], 2)
        self.assertLess(self.line.calls["settle"], 20)

    def test_a_call_that_takes_long_holds_up_no_others(self):
        self.hold_back(calls=2)
        slow = self.locks([0, 1])
        wait("two are under way", lambda: self.line.calls["claim"] == 2)
        with self.over.lock(f"{self.key}/other", wait=0) as lease:
            lease.check()

        async def other():
            async with self.over.aio.lock(f"{self.key}/task", wait=0) as lease:
                lease.check()
        asyncio.run(asyncio.wait_for(other(), support.LIMIT))
        self.assertFalse(self.go.is_set())
        self.go.set()
        for each in slow:
            each.join()

    def test_each_caller_has_its_own_time(self):
        over = self.connect(self.line.url, timeout=0.3)
        self.hold_back()
        alone = self.locks([0])[0]
        wait("one is alone", lambda: self.line.calls["claim"] == 1)
        self.refused(dibs.Unavailable, f"{self.key}/2", keys=over, wait=0, ttl=600)

        async def task():
            async with over.aio.lock(f"{self.key}/3", wait=0, ttl=600):
                self.fail("it is locked")
        with self.assertRaises(dibs.Unavailable):
            asyncio.run(task())
        self.go.set()
        alone.join()
        for i in (2, 3):
            self.assertFree(f"{self.key}/{i}")

    @mock.patch.object(dibs.batch, "SLOW", support.LIMIT)
    def test_what_one_is_refused_for_refuses_no_other(self):
        """The whole call is too large for this server."""
        server = self.serve("--max-body", "1024")
        self.line.close()
        self.line = Line(server)
        self.addCleanup(self.line.close)
        over = self.connect(self.line.url, timeout=support.LIMIT)
        self.hold_back(calls=2)
        threads = self.locks([0, 1], over)
        wait("two are under way", lambda: self.line.calls["claim"] == 2)
        threads += self.locks(range(2, 12), over)
        wait("the others wait", lambda: len(over._here().claims._queue) == 10)
        self.go.set()
        for each in threads:
            self.assertGreater(each.join(), 0)

    def test_an_error_is_each_caller_s_own(self):
        self.hold_back()
        self.line.says["claim"] = support.problem("401 Unauthorized", "unauthorized"), False
        threads = [support.thread(lambda: self.refused(dibs.Unauthorized, keys=self.over, wait=0)) for _ in range(8)]
        wait("they are asked", lambda: self.line.calls["claim"] >= 1)
        self.go.set()
        errors = [each.join() for each in threads]
        self.assertEqual(8, len({id(error) for error in errors}))

    def test_the_undo_of_a_claim_that_is_under_way_comes_after_it(self):
        self.hold_back()

        async def main():
            async def lock():
                async with self.over.aio.lock(self.key, ttl=600):
                    self.fail("it is locked")
            task = asyncio.create_task(lock())
            await asyncio.to_thread(wait, "it is under way", lambda: self.line.calls["claim"] == 1)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        asyncio.run(asyncio.wait_for(main(), support.LIMIT))
        undoer = self.over._process.undoer
        wait("the undo waits", lambda: undoer._entries)
        self.assertFalse(self.over.flush(0.05))
        self.assertEqual(0, self.line.calls["settle"])
        self.go.set()
        self.assertTrue(self.over.flush(support.LIMIT))
        self.assertTrue(self.server.free(self.key))

    def test_a_claim_whose_loop_was_closed_is_undone(self):
        self.hold_back()

        async def lock():
            async with self.over.aio.lock(self.key, ttl=600):
                self.fail("it is locked")
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # it says that the task was destroyed
        loop.create_task(lock())
        loop.run_until_complete(asyncio.to_thread(wait, "it is under way", lambda: self.line.calls["claim"] == 1))
        loop.close()
        self.go.set()
        wait("it is granted", lambda: not self.server.free(self.key))

        def undone():
            gc.collect()
            return self.server.free(self.key)
        wait("it is undone", undone)

    def test_leases_that_outlive_their_client_end_at_once(self):
        release = threading.Barrier(9)

        def hold(i):
            with self.over.lock(f"{self.key}/{i}", ttl=600):
                release.wait(support.LIMIT)
                release.wait(support.LIMIT)
        threads = [support.thread(lambda i=i: hold(i)) for i in range(8)]
        release.wait(support.LIMIT)
        self.close_over()
        release.wait(support.LIMIT)
        for each in threads:
            each.join()
        for i in range(8):
            self.assertTrue(self.server.free(f"{self.key}/{i}"))

    def test_a_task_leaves_a_closed_client_at_once(self):
        async def main():
            async with self.over.aio.lock(self.key, ttl=600):
                await asyncio.to_thread(self.close_over)
        asyncio.run(main())
        self.assertTrue(self.server.free(self.key))

    def test_a_task_leaves_a_closed_client_when_the_program_ends(self):
        self.over = self.connect(timeout=support.LIMIT)

        async def main():
            lease = await self.over.aio.acquire(self.key, ttl=600)
            await asyncio.to_thread(self.close_over)
            with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                await lease.release()
        asyncio.run(main())
        self.assertTrue(self.server.free(self.key))

    def test_a_claim_that_was_not_sent_is_never_sent(self):
        self.hold_back(calls=2)
        with mock.patch.object(dibs.batch, "SLOW", support.LIMIT):
            threads = self.locks([0, 1])
            wait("two are under way", lambda: self.line.calls["claim"] == 2)

            async def main():
                async def lock():
                    async with self.over.aio.lock(f"{self.key}/never", ttl=600):
                        self.fail("it is locked")
                task = asyncio.create_task(lock())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            asyncio.run(main())
            self.go.set()
            for each in threads:
                each.join()
            wait("the queue is empty", lambda: not self.over._here().claims._queue)
            self.over.flush(support.LIMIT)
        self.assertEqual(2, self.line.calls["claim"])


if __name__ == "__main__":
    unittest.main()
