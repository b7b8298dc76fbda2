import unittest
from unittest import mock

import support
from support import Case, Line, http, problem

import dibs

# What may come of a settlement that is sent: the answer (None: it is lost), whether the server does
# the call, the error, and whether the lease may have ended.
PAGE = "text/html"
ENDS = {
    "the answer is lost": (None, True, dibs.Unavailable, True),
    "the store does not answer": (problem("503 Service Unavailable", "store-unavailable"), True, dibs.Unavailable, True),
    "a proxy does not get the answer": (http("502 Bad Gateway", PAGE, "<p>"), True, dibs.Unavailable, True),
    "a proxy answers": (http("200 OK", PAGE, "<p>"), True, dibs.Refused, True),
    "a proxy knows no such page": (http("404 Not Found", PAGE, "<p>"), True, dibs.Refused, True),
    "the answer is another program's": (http("200 OK", "application/json", '{"answers": []}'), True, dibs.Refused, True),
    "the server is stopping": (problem("503 Service Unavailable", "stopping"), False, dibs.Unavailable, False),
    "the credential is refused": (problem("401 Unauthorized", "unauthorized"), False, dibs.Unauthorized, False),
    "a bound is reached": (problem("429 Too Many Requests", "overloaded"), False, dibs.Overloaded, False),
}
CALLS = {
    "complete": lambda lease: lease.complete(b"record"),
    "abandon": lambda lease: lease.abandon(),
    "undo": lambda lease: lease.undo(),
}


class UnansweredTest(Case):
    """Settlements that are sent and not answered."""

    def setUp(self):
        super().setUp()
        self.line = Line(self.server)
        self.addCleanup(self.line.close)
        self.over = self.connect(self.line.url)
        once = mock.patch.object(dibs.step.Tries, "next", support.once)
        once.start()
        self.addCleanup(once.stop)

    def fails(self, end, call, lease):
        answer, done, kind, _ = ENDS[end]
        if answer is None:
            self.line.cut("settle", 2)
        else:
            self.line.says["settle"] = answer, done
        with self.assertRaises(kind) as caught:
            call(lease)
        self.assertEqual(1, str(caught.exception).count("dibs: "))
        self.line.says.clear()
        self.line.cut("settle", 0)

    def test_the_lease_is_not_trusted_if_it_may_have_ended(self):
        for end, (_, done, _, doubt) in ENDS.items():
            for name, call in CALLS.items():
                with self.subTest(end, call=name):
                    lease = self.over.acquire(f"{self.key} {end} {name}", ttl=600)
                    self.fails(end, call, lease)
                    if doubt:
                        for look in (lease.check, lambda: lease.fence, lambda: lease.save(b"progress")):
                            self.assertRaisesRegex(dibs.Lost, f"its {name} was sent and not answered; call {name} again", look)
                        lease._process.renewer._renew([lease._attempt], support.LIMIT)
                    self.assertEqual((not doubt, 600 if doubt else 0), (lease.held, 600 if lease.left == 0 else 0))
                    call(lease)
                    self.assertEqual(done, doubt)
                    self.assertRaisesRegex(dibs.Lost, "it was settled", lease.check)
                    if name == "complete":
                        self.assertRaises(dibs.Done, self.keys.acquire, lease.key, max_age="1h")

    def test_a_renewal_does_not_restore_trust(self):
        """The call did not reach the server, so the lease stands, and is renewed."""
        lease = self.over.acquire(self.key, ttl=600)
        self.line.says["settle"] = http("502 Bad Gateway", PAGE, "<p>"), False
        self.assertRaises(dibs.Unavailable, lease.complete, b"record")
        self.line.says.clear()
        before = lease._attempt.trusted
        lease._process.renewer._renew([lease._attempt], support.LIMIT)
        self.assertGreater(lease._attempt.trusted, before)
        self.assertRaisesRegex(dibs.Lost, "not answered", lease.check)
        lease.complete(b"record")
        self.assertRaises(dibs.Done, self.keys.acquire, self.key, max_age="1h")

    def test_the_store_decides_what_is_repeated(self):
        for name, call in CALLS.items():
            with self.subTest(name):
                lease = self.over.acquire(f"{self.key} {name}", ttl=600)
                self.line.says["settle"] = http("502 Bad Gateway", PAGE, "<p>"), False
                self.assertRaises(dibs.Unavailable, call, lease)
                self.line.says.clear()
                self.server.take(lease)
                if name == "complete":  # a record may be written twice, so this is certain
                    self.assertRaises(dibs.Lost, call, lease)
                    self.assertRaises(dibs.Lost, call, lease)
                else:
                    call(lease)
                self.assertFalse(lease.held)

    def test_a_record_is_found_after_the_time_of_its_lease(self):
        now, moved = dibs.clock.now, 0
        lease = self.over.acquire(self.key, ttl=600)
        self.fails("the answer is lost", CALLS["complete"], lease)
        with mock.patch.object(dibs.clock, "now", lambda: now() + moved):
            moved = 700
            self.assertRaises(dibs.Lost, lease.check)
            lease.complete(b"record")

    def test_what_a_stopping_server_refused_was_not_done(self):
        """So the same call at another one is not a repeated one."""
        lease, ticket = self.over.acquire(self.key, ttl=600), self.over.reserve(f"{self.key}/2")
        self.server.take(lease)
        self.keys.cancel(ticket)

        def next_try(_, error):
            if not self.line.says:
                raise error
            self.line.says.clear()
            return dibs.step.Pause(0)
        for call in (lease.release, lambda: self.over.cancel(ticket)):
            self.line.says["settle"] = problem("503 Service Unavailable", "stopping"), False
            with mock.patch.object(dibs.step.Tries, "next", next_try):
                self.assertRaises(dibs.Lost, call)

    def test_the_end_of_a_block_says_it(self):
        for end, (_, _, _, doubt) in ENDS.items():
            with self.subTest(end):
                key, said = f"{self.key} {end}", None
                try:
                    with self.over.lock(key, ttl=600) as lease:
                        self.fails(end, CALLS["complete"], lease)
                except dibs.Lost as e:
                    said = str(e)
                if doubt:
                    self.assertRegex(said, "may have ended while its block ran: its complete was sent and not answered")
                else:
                    self.assertIsNone(said)
                self.assertFree(key)

    def test_the_end_of_a_block_makes_an_abandon_or_undo_again(self):
        for name, number in (("abandon", 2), ("undo", 1)):
            with self.subTest(name):
                key = f"{self.key} {name}"
                with self.assertRaises(dibs.Lost), self.over.lock(key, ttl=600) as lease:
                    self.line.says["settle"] = http("502 Bad Gateway", PAGE, "<p>"), False
                    self.assertRaises(dibs.Unavailable, CALLS[name], lease)
                    self.line.says.clear()
                with self.keys.lock(key) as lease:
                    self.assertEqual(number, lease.attempt)

    def test_a_result_that_may_be_stored(self):
        self.line.cut("settle", 2)
        with self.assertRaises(dibs.NotKept) as caught:
            self.over.once(self.key, lambda: 1)
        self.assertEqual(1, str(caught.exception).count("dibs: "))
        self.assertEqual(1, self.keys.once(self.key, lambda: 2))

    def test_a_server_that_is_away_did_nothing(self):
        lease = self.over.acquire(self.key, ttl=600)
        self.line.close()
        for call in CALLS.values():
            self.assertRaises(dibs.Unavailable, call, lease)
            self.assertTrue(lease.held)
        self.assertRaises(dibs.Unavailable, lease.release)
        self.assertFalse(lease.held)

    def test_what_another_server_lost_is_lost(self):
        """A server that is away does not make its call a repeated one."""
        a = self.serve(listen="127.0.0.1:0")
        b = self.serve(listen="127.0.0.1:0", store=a.store)
        keys = self.connect(f"{a.url},{b.host}")
        for end in ("release", "cancel"):
            with self.subTest(end):
                if end == "release":
                    call, lease = (lease := keys.acquire(self.key, ttl=600)).release, lease
                    b.take(lease)
                else:
                    ticket = keys.reserve(self.key)
                    self.connect(b.url).cancel(ticket)
                    call = lambda: keys.cancel(ticket)  # noqa: E731
                a.kill()
                self.assertRaises(dibs.Lost, call)
                a.start(a.host)
                keys._here().servers._current = 0


if __name__ == "__main__":
    unittest.main()
