import contextlib
import gc
import hashlib
import unittest
from unittest import mock

import support
from support import Case, Line

import dibs


class LateTest(Case):
    """Claims that a frozen server carries out after their caller has got its answer elsewhere."""

    def setUp(self):
        super().setUp()
        self.well = self.serve(listen="127.0.0.1:0", store=self.server.store)
        self.line = Line(self.server, tcp=True)
        self.addCleanup(self.line.close)
        self.over = self.connect(f"{self.line.url},{self.well.host}", timeout=2)

    @contextlib.contextmanager
    def frozen(self):
        """Hold the claims of the block back, which the other server answers."""
        self.over._here().servers._current = 0
        self.line.frozen = "claim"
        yield
        self.assertEqual(1, self.over._here().servers._current)

    def ends(self):
        """Return ways to take and to settle a key. Each takes it while the first server is frozen."""
        over = self.over

        def lock():
            with self.frozen(), over.lock(self.key, ttl=600):
                pass

        def error():
            with contextlib.suppress(KeyError), self.frozen(), over.lock(self.key, ttl=600):
                raise KeyError

        def complete():
            with self.frozen():
                over.acquire(self.key, ttl=600).complete(b"record", keep=0.001)

        def undo():
            with self.frozen():
                over.acquire(self.key, ttl=600).undo()

        def lost():
            with self.frozen():
                lease = over.acquire(self.key, ttl=600)
            self.server.take(lease)
            self.assertRaises(dibs.Lost, lease.release)

        def dropped():
            with self.frozen():
                lease = over.acquire(self.key, ttl=600)
            self.server.take(lease)
            with contextlib.suppress(dibs.Lost):
                lease.save(b"progress")
            self.assertTrue(lease._attempt.lost)
            del lease
            gc.collect()

        def background():
            with self.frozen():
                lease = over.acquire(self.key, ttl=600)
            lease._hand_over({"outcome": "release"})
            over.flush(support.LIMIT)

        def cancel():
            with self.frozen():
                ticket = over.reserve(self.key)
            over.cancel(ticket)

        def cancelled_before():
            with self.frozen():
                ticket = over.reserve(self.key)
            self.keys.cancel(ticket)
            self.assertRaises(dibs.Lost, over.cancel, ticket)

        def redeem():
            with self.frozen():
                ticket = over.reserve(self.key)
            with over.redeem(ticket, ttl=600):
                pass

        def redeem_in_the_background():
            with self.frozen():
                ticket = over.reserve(self.key)
            block = over.redeem(ticket, ttl=600)
            block.__enter__()._hand_over({"outcome": "release"})
            over.flush(support.LIMIT)

        def redeem_late():
            ticket = over.reserve(self.key)
            with self.frozen(), over.redeem(ticket, ttl=600):
                pass

        def held():
            with self.keys.lock(self.key, ttl=600), self.assertRaises(dibs.Held), self.frozen():
                over.acquire(self.key, ttl=600, wait=0.01)
            over.flush(support.LIMIT)
        return (lock, error, complete, undo, lost, dropped, background, cancel, cancelled_before, redeem, redeem_in_the_background,
                redeem_late, held)

    def test_what_is_carried_out_after_the_end_is_undone(self):
        for end in self.ends():
            with self.subTest(end.__name__):
                self.key = f"{self.id()} {end.__name__}"
                end()
                answers = self.line.deliver()
                self.assertIn(b"answers", answers[-1])
                self.line._held.clear()
                self.assertFree()

    def test_a_claim_that_no_server_answered_is_undone_more_than_once(self):
        keys = self.connect(self.line.url, timeout=0.3)
        self.line.frozen = "claim"
        self.refused(dibs.Unavailable, keys=keys, ttl=600, wait=0)
        support.wait("it is undone twice", lambda: self.line.calls["settle"] > 1)
        self.assertIn(b"granted", self.line.deliver()[-1])
        self.assertFree()

    def test_the_undos_end_after_five_minutes(self):
        moment = [1000.0]
        with mock.patch.object(dibs.clock, "now", lambda: moment[0]):
            attempt, pauses = self.keys._attempt(self.key), []
            attempt.silent = 1000
            entry = dibs.undo.Entry(attempt, {"outcome": "release"})
            self.assertEqual(("release", 1000), (entry.settlement["outcome"], entry.due))
            while entry.again():
                pauses.append(entry.due - 1000)
                moment[0] = entry.due
                self.assertEqual("undo", entry.settlement["outcome"])
        self.assertEqual([1, 3, 7, 15, *range(30, 301, 15)], pauses)

    def test_no_undo_of_a_claim_that_was_answered_or_is_long_ago(self):
        undoer = self.over._here().undoer
        with self.over.lock(self.key):
            pass
        now = dibs.clock.now
        with self.frozen():
            lease = self.over.acquire(self.key, ttl=6000)
        with mock.patch.object(dibs.clock, "now", lambda: now() + 301):
            lease.release()
            self.over.flush(support.LIMIT)
        self.assertEqual([], undoer._entries)

    def test_flush_and_close_do_not_wait_for_it(self):
        with self.frozen(), self.over.lock(self.key):
            pass
        self.assertTrue(self.over.flush(support.LIMIT))
        self.assertEqual(1, len(self.over._here().undoer._entries))
        with self.frozen():
            lease = self.over.acquire(f"{self.key}/2", ttl=600)
        lease._hand_over({"outcome": "release"})
        self.assertTrue(self.over.flush(support.LIMIT))
        self.assertEqual(2, len(self.over._here().undoer._entries))
        self.over.close()
        support.wait("its thread ends", lambda: self.over._process.undoer._ended)

    def test_a_place_that_is_reserved_again_stays(self):
        with self.frozen():
            ticket = self.over.reserve(self.key)
        self.over.cancel(ticket)
        self.over.flush(support.LIMIT)
        self.assertEqual(1, len(self.over._here().undoer._entries))
        self.over.prolong(ticket)
        self.over.flush(support.LIMIT)
        self.assertEqual([], self.over._here().undoer._entries)
        self.assertEqual(1, self.server.entry(self.key)["reserved"])
        self.over.cancel(ticket)
        self.assertEqual(1, self.over.flush(support.LIMIT) and len(self.over._here().undoer._entries))

    def test_a_place_that_is_kept_is_not_undone(self):
        with self.frozen():
            ticket = self.over.reserve(self.key)
        with self.over.redeem(ticket, ttl=600) as lease:
            lease.undo()
        self.over.flush(support.LIMIT)
        self.assertEqual([], self.over._here().undoer._entries)
        self.over.cancel(ticket)

    def test_a_place_that_can_never_be_redeemed(self):
        a, b = (hashlib.sha256(t).hexdigest() for t in (b"a", b"b"))
        with self.keys.lock(self.key, fingerprint=a, ttl=600):
            with self.frozen():
                ticket = self.over.reserve(self.key)
            with self.assertRaises(dibs.Mismatch), self.over.redeem(ticket, fingerprint=b):
                self.fail("it is locked")
            self.over.flush(support.LIMIT)
            self.line.deliver()
        self.assertFree()

    def test_a_server_that_wakes_carries_no_claim_out(self):
        """It sees that its caller has gone, and that the time of the call is over."""
        with self.frozen(), self.over.lock(self.key, ttl=600):
            self.assertRegex(self.line._held[0].decode(), r'"timeout_ms":\d{3,4}}$')

    # What is trusted counts from the sending, however late the answer comes.

    def test_a_lease_is_trusted_from_when_its_call_was_sent(self):
        now, moved = dibs.clock.now, [0]
        line = Line(self.server)
        self.addCleanup(line.close)
        keys = self.connect(line.url, timeout=1000)

        def late():
            moved[0] += 100
        with mock.patch.object(dibs.clock, "now", lambda: now() + moved[0]):
            line.before["claim"] = late
            lease = keys.acquire(self.key, ttl=600)
            self.assertLess(lease.left, 500)
            line.before = {"renew": late}
            for renew in (lambda: lease.save(b"progress"), lambda: keys._here().renewer._renew([lease._attempt], 1000)):
                before = lease._attempt.trusted
                renew()
                self.assertGreater(lease._attempt.trusted, before)
                self.assertLess(lease.left, 500)
            line.before.clear()
            lease.release()


if __name__ == "__main__":
    unittest.main()
