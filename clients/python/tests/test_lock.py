import datetime
import math
import pickle
import queue
import time
import unittest
import warnings

import support
from support import Case, wait

import dibs


class LockTest(Case):
    def test_a_block_holds_the_key(self):
        with self.keys.lock(self.key, ttl=600) as lease:
            self.assertIs(lease, lease.check())
            self.assertTrue(lease.held)
            self.assertGreater(lease.fence, 0)
            self.assertEqual(1, lease.attempt)
            entry = self.server.entry(self.key)
            self.assertEqual("held", entry["state"])
            self.assertEqual(lease.id, entry["runs"][0]["id"])
        self.assertTrue(self.server.free(self.key))
        self.assertFalse(lease.held)

    def test_a_held_key_is_an_answer(self):
        other = self.connect()
        with self.keys.lock(self.key, ttl=600):
            error = self.refused(dibs.Held, keys=other, wait=0)
            self.assertEqual(self.key, error.key)
            self.assertGreater(error.left, 500)
            self.assertIn(f'"{self.key}"', str(error))
            error = self.refused(dibs.Held, keys=other, wait=0.05)
            self.assertGreaterEqual(error.waited, 0.05)
            wait("the place is given back", lambda: self.server.waiters(self.key) == 0)
            self.assertTrue(self.keys.held(self.key))
        self.assertFalse(self.keys.held(self.key))

    def test_waiting_for_oneself_is_refused_at_once(self):
        with self.keys.lock(self.key):
            self.refused(dibs.Held)
            self.refused(dibs.Held, self.key.encode())
        with self.keys.lock(self.key, permits=2), self.keys.lock(self.key, permits=2):
            self.refused(dibs.Held, permits=2)

    def test_a_key_may_be_bytes(self):
        key = b"\xff\x00key"
        with self.keys.lock(key) as lease:
            self.assertEqual(key, lease.key)
        with self.keys.lock("é"):
            self.refused(dibs.Held, "é".encode(), keys=self.connect(), wait=0)

    def test_a_lock_is_entered_once(self):
        lock = self.keys.lock(self.key)
        with lock, self.assertRaises(RuntimeError):
            lock.__enter__()
        with self.assertRaises(RuntimeError):
            lock.__enter__()

    # The ways out of a block.

    def test_return_break_continue_and_exceptions(self):
        def returning():
            with self.keys.lock(self.key, ttl=600):
                return 8
        self.assertEqual(8, returning())
        self.assertTrue(self.server.free(self.key))
        for way in ("break", "continue"):
            for _ in range(1):
                with self.keys.lock(self.key, ttl=600):
                    if way == "break":
                        break
                    continue
            self.assertTrue(self.server.free(self.key))
        for kind in (KeyError, KeyboardInterrupt, SystemExit):
            with self.assertRaises(kind), self.keys.lock(self.key, ttl=600):
                raise kind
            self.assertTrue(self.server.free(self.key))

    def test_a_generator_that_is_closed_releases(self):
        def pages():
            with self.keys.lock(self.key, ttl=600):
                yield 1
        opened = pages()
        next(opened)
        self.assertFalse(self.server.free(self.key))
        opened.close()
        self.assertTrue(self.server.free(self.key))

    def test_the_ends_of_a_program_release(self):
        for way in ("sys.exit(3)", "raise KeyError", "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
                    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"):
            with self.subTest(way):
                script = self.script(f"""
                    sys.stderr = open(os.devnull, "w")
                    with dibs.connect().lock({self.key!r}, ttl=600):
                        print("held")
                        {way}
                """)
                self.assertEqual("held", script.line())
                script.ended()
                self.assertFree()

    def test_a_waiter_that_is_interrupted_leaves_the_queue(self):
        with self.keys.lock(self.key, ttl=600):
            script = self.script(f"""
                try:
                    with dibs.connect().lock({self.key!r}, ttl=600): pass
                except KeyboardInterrupt:
                    print("interrupted")
            """)
            wait("it waits", lambda: self.server.waiters(self.key) == 1)
            script.strike(support.signal.SIGINT)
            self.assertEqual("interrupted", script.line())
            script.ended()
            wait("its place is gone", lambda: self.server.waiters(self.key) == 0)
        self.assertFree()

    def test_the_caller_s_timeout_in_a_waiter_is_the_caller_s(self):
        """A signal handler that raises TimeoutError, which is an OSError like those of sockets."""
        with self.keys.lock(self.key, ttl=600):
            script = self.script(f"""
                def ring(*_): raise TimeoutError("mine")
                signal.signal(signal.SIGALRM, ring)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                try:
                    with dibs.connect().lock({self.key!r}, ttl=600): pass
                except TimeoutError as e:
                    print(e)
            """)
            self.assertEqual("mine", script.line())
            script.ended()
            wait("its place is gone", lambda: self.server.waiters(self.key) == 0)

    # Leases.

    def test_a_lease_is_renewed(self):
        lease = self.keys.acquire(self.key, ttl=3)
        support.wait_renewed(lease)
        lease.release()

    def test_all_leases_that_are_due_are_renewed_in_one_call(self):
        class Counting:
            """Stands for a server: it notes how many leases each call renews. Its first call waits."""

            def __init__(self):
                self.calls, self.go = queue.SimpleQueue(), queue.SimpleQueue()

            def call_all(self, verb, elements, timeout):
                self.calls.put(len(elements))
                if self.go is not None:
                    self.go.get()
                    self.go = None
                return [dibs.step.Answer({}, dibs.clock.now(), False)] * len(elements)
        counting = Counting()
        renewer = dibs.renewer.Renewer(dibs.clock.CLOCK, counting.call_all, 5)
        running = support.thread(renewer.run)

        def add(i):
            attempt = self.keys._attempt(f"{self.key}{i}", ttl=600)
            attempt.pid = support.os.getpid()
            attempt.grant(dibs.step.Answer({"fence": "1"}, dibs.clock.now() - 300, False))
            renewer.add(attempt)
        add(0)
        self.assertEqual(1, counting.calls.get(timeout=support.LIMIT))
        for i in range(1, 6):
            add(i)
        counting.go.put(1)
        self.assertEqual(5, counting.calls.get(timeout=support.LIMIT))
        renewer.stop()
        running.join()

    def test_a_block_whose_lease_was_taken_away_ends_with_lost(self):
        with self.assertRaises(dibs.Lost), self.keys.lock(self.key, ttl=600) as lease:
            self.server.take(lease)
        with self.assertRaises(KeyError), self.keys.lock(self.key, ttl=600) as lease:
            self.server.take(lease)
            raise KeyError
        with self.assertRaises(dibs.Lost):
            for _ in range(1):
                with self.keys.lock(self.key, ttl=600) as lease:
                    self.server.take(lease)
                    break

    def test_a_lease_that_nobody_has_is_abandoned(self):
        lease = self.keys.acquire(self.key, ttl=600)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            del lease
        self.assertEqual([RuntimeWarning], [w.category for w in said])
        with self.keys.lock(self.key, wait=support.LIMIT) as lease:
            self.assertEqual(2, lease.attempt)

    def test_no_text_shows_a_token_and_a_record_is_bytes(self):
        lease = self.keys.acquire(self.key)
        self.assertNotIn(lease._attempt.token, repr(lease))
        self.assertRaises(TypeError, lease.complete, "text")
        lease.release()

    @unittest.skipUnless(hasattr(time, "CLOCK_BOOTTIME"), "only Linux has the clock")
    def test_the_clock_runs_while_the_machine_is_suspended(self):
        self.assertEqual((time.clock_gettime, (time.CLOCK_BOOTTIME,)), (dibs.clock.now.func, dibs.clock.now.args))

    def test_durations(self):
        for value, seconds in ((2, 2), (0.5, 0.5), ("90s", 90), ("1h30m", 5400), ("20ms", 0.02), (datetime.timedelta(minutes=2), 120)):
            self.assertAlmostEqual(seconds, dibs.options.read_seconds(value, "it"))

    def test_arguments_are_refused_by_name(self):
        for options, kind, name in (
                ({"ttl": 0.001}, ValueError, "ttl"), ({"ttl": "1 hour"}, ValueError, "ttl"), ({"ttl": True}, TypeError, "ttl"),
                ({"wait": -1}, ValueError, "wait"), ({"wait": math.nan}, ValueError, "wait"), ({"permits": 0}, ValueError, "permits"),
                ({"weight": 2}, ValueError, "weight"), ({"fingerprint": "x"}, ValueError, "fingerprint"),
                ({"stop_timeout": 20}, ValueError, "stop_timeout"), ({"wiat": 1}, TypeError, "wiat"), ({"token": "0" * 32}, TypeError, "token"),
                ({"max_age": 1}, TypeError, "max_age")):
            with self.subTest(options), self.assertRaisesRegex(kind, name):
                self.keys.lock(self.key, **options)
        for key, kind in ((None, TypeError), (42, TypeError), ("", ValueError), (b"", ValueError), ("x" * 513, ValueError),
                          ("\ud800", ValueError)):
            with self.subTest(key), self.assertRaises(kind):
                self.keys.lock(key)

    def test_errors_can_be_pickled(self):
        """multiprocessing and job queues send them."""
        sent = pickle.loads(pickle.dumps(dibs.Held("held", key="k", left=1.5, ahead=2, waited=3.0)))
        self.assertEqual(("held", "k", 1.5, 2, 3.0), (str(sent), sent.key, sent.left, sent.ahead, sent.waited))
        for kind in vars(dibs).values():
            if isinstance(kind, type) and issubclass(kind, dibs.Error):
                self.assertIs(kind, type(pickle.loads(pickle.dumps(kind("text", key="k")))))


if __name__ == "__main__":
    unittest.main()
