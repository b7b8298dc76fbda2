import hashlib
import math
import queue
import time
import unittest

import support
from support import Case

import dibs


def never():
    raise AssertionError("it runs")


class OnceTest(Case):
    def test_later_callers_get_the_stored_result(self):
        value, stored = {"id": 17, "list": (None, True, 1.5, "é")}, {"id": 17, "list": [None, True, 1.5, "é"]}
        self.assertEqual(stored, self.keys.once(self.key, lambda: value, keep="1h"))
        self.assertEqual(stored, self.connect().once(self.key, never))
        for result in (None, False, "", 0):
            self.assertEqual(result, self.keys.once(f"{self.key}/{result!r}", lambda: result))
            self.assertEqual(result, self.keys.once(f"{self.key}/{result!r}", never))

    def test_callers_at_once_run_it_once(self):
        runs = queue.SimpleQueue()

        def run():
            runs.put(1)
            time.sleep(0.05)
            return "result"
        threads = [support.thread(lambda: self.keys.once(self.key, run)) for _ in range(5)]
        self.assertEqual(["result"] * 5, [each.join() for each in threads])
        self.assertEqual(1, runs.qsize())

    def test_the_function_may_have_the_lease(self):
        self.assertEqual([True, 1], self.keys.once(self.key, lambda lease: (lease.held, lease.attempt), pass_lease=True))

    def test_an_error_is_not_stored_unless_it_is_to_be_remembered(self):
        def declined():
            raise KeyError("declined")
        self.assertRaises(KeyError, self.keys.once, self.key, declined)
        self.assertRaises(KeyError, self.keys.once, self.key, declined, remember=IndexError)
        for i, remember in enumerate((KeyError, (IndexError, LookupError), lambda e: "declined" in str(e))):
            self.assertRaises(KeyError, self.keys.once, f"{self.key}/{i}", declined, remember=remember)
            with self.assertRaises(dibs.Remembered) as caught:
                self.keys.once(f"{self.key}/{i}", never)
            self.assertEqual("'declined'", str(caught.exception))
        self.assertEqual(1, self.keys.once(self.key, lambda: 1))

    def test_what_is_no_json_is_not_kept(self):
        loop = []
        loop.append(loop)
        for value in (object(), math.nan, b"bytes", {1: 2}, [{None: 1}], "\ud800", {1, 2}, loop):
            with self.subTest(type(value)), self.assertRaises(dibs.NotKept) as caught:
                self.keys.once(self.key, lambda: value)
            self.assertIs(value, caught.exception.result)
            self.assertIsNotNone(caught.exception.__cause__)
            self.assertTrue(self.server.free(self.key))
        self.assertEqual(1, self.keys.once(self.key, lambda: 1))

    def test_a_record_that_is_not_of_once(self):
        for record in (b"no json", b"[1]", b"{}"):
            self.keys.acquire(self.key).complete(record)
            self.assertRaises(dibs.Refused, self.keys.once, self.key, never)

    def test_a_record_of_another_key_inside_is_the_caller_s(self):
        self.keys.acquire(f"{self.key}/2").complete(b"record")
        with self.assertRaises(dibs.Done):
            self.keys.once(self.key, lambda: self.keys.acquire(f"{self.key}/2", max_age=math.inf))
        self.assertFree()

    def test_another_fingerprint(self):
        a, b = (hashlib.sha256(t).hexdigest() for t in (b"a", b"b"))
        self.keys.once(self.key, lambda: 1, fingerprint=a)
        self.assertRaises(dibs.Mismatch, self.keys.once, self.key, never, fingerprint=b)

    def test_a_lost_lease_stores_nothing(self):
        self.assertRaises(dibs.Lost, self.keys.once, self.key, self.server.take, pass_lease=True, ttl=600)
        self.assertEqual(2, self.keys.once(self.key, lambda: 2))

    def test_arguments(self):
        self.assertRaises(ValueError, self.keys.once, self.key, never, keep=0)
        self.assertRaises(ValueError, self.keys.once, self.key, never, permits=2)
        self.assertRaises(TypeError, self.keys.once, self.key, never, retention=5)


class TicketTest(Case):
    def redeem(self, ticket, **options):
        with self.keys.redeem(ticket, **options) as lease:
            return lease.key

    def test_a_ticket_keeps_its_place(self):
        first, second = self.keys.reserve(self.key), self.keys.reserve(self.key)
        self.assertRaises(dibs.Held, self.redeem, second, wait=0)
        self.refused(dibs.Held, wait=0)
        self.assertEqual(self.key, self.redeem(first))
        self.assertEqual(self.key, self.redeem(second))
        self.assertFree()

    def test_a_block_that_undoes_keeps_the_place(self):
        ticket, later = self.keys.reserve(self.key), self.keys.reserve(self.key)
        with self.keys.redeem(ticket) as lease:
            lease.undo()
        self.assertRaises(dibs.Held, self.redeem, later, wait=0)
        self.redeem(ticket)
        self.redeem(later)
        self.assertFree()

    def test_cancel_and_prolong(self):
        ticket = self.keys.reserve(self.key, ttl=600, hold=60)
        self.keys.prolong(ticket, ttl="2h")
        self.assertGreater(self.server.entry(self.key)["places"][0]["left_ms"], 3_600_000)
        self.keys.cancel(ticket)
        self.assertRaises(dibs.Lost, self.keys.cancel, ticket)
        self.assertTrue(self.server.free(self.key))

    def test_a_place_that_can_never_be_redeemed_is_given_back(self):
        a, b = (hashlib.sha256(t).hexdigest() for t in (b"a", b"b"))
        self.keys.once(self.key, lambda: 1, fingerprint=a)
        ticket = self.keys.reserve(f"{self.key}/2")
        with self.keys.lock(f"{self.key}/3", fingerprint=a, ttl=600):
            ticket = self.connect().reserve(f"{self.key}/3")
            other = self.connect()
            with self.assertRaises(dibs.Mismatch), other.redeem(ticket, fingerprint=b):
                self.fail("it is locked")
        self.assertFree(f"{self.key}/3")

    def test_other_texts_are_refused(self):
        ticket = self.keys.reserve(self.key)
        for text in (None, "", "dibs1", f"{ticket}=", f"{ticket}.", ticket.replace("dibs1", "dibs2"), f" {ticket}", f"{ticket}\n",
                     ".".join(["dibs1", "AAAA", *ticket.split(".")[2:]]), ticket + "é"):
            with self.subTest(text), self.assertRaises(ValueError):
                self.keys.redeem(text, wait=0)
        self.keys.cancel(ticket)


if __name__ == "__main__":
    unittest.main()
