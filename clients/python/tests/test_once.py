import asyncio
import datetime
import decimal
import hashlib
import json
import math
import os
import queue
import subprocess
import time
import unittest
from unittest import mock

import support
from support import Case

import dibs


def never():
    raise AssertionError("it runs")


class Refuses(dict):
    """A result that says why it cannot be stored."""

    def __init__(self, why):
        self._why = why

    def items(self):
        raise ValueError(self._why)


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

    # Results that cannot be stored: the function ran, and only its record failed.

    def no_json(self):
        loop, deep = [], []
        loop.append(loop)
        for _ in range(100_000):
            deep = [deep]

        class Broken(dict):
            def items(self):
                raise KeyError("broken")
        return (object(), math.nan, {"a": [-math.inf]}, b"bytes", {1: 2}, [{None: 1}], {"a": {True: 1}}, "\ud800", {1, 2}, loop, deep,
                datetime.date.today(), datetime.datetime.now(), decimal.Decimal(1), 10 ** 5000, (i for i in ()), Broken(a=1))

    def test_what_is_no_json_does_not_run_again(self):
        for i, value in enumerate(self.no_json()):
            for at_most_once in (False, True):
                key = f"{self.key}/{i}/{at_most_once}"
                with self.subTest(type(value), at_most_once=at_most_once):
                    with self.assertRaisesRegex(dibs.NotKept, "later callers get an error") as caught:
                        self.keys.once(key, lambda: value, at_most_once=at_most_once)
                    self.assertIs(value, caught.exception.result)
                    self.assertFalse(caught.exception.rerun)
                    self.assertIsNotNone(caught.exception.__cause__)
                    for keys in (self.keys, self.connect()):
                        with self.assertRaisesRegex(dibs.Unrecorded, "ran before.*dibs resolve --result") as caught:
                            keys.once(key, never, at_most_once=at_most_once)
                        self.assertEqual(key, caught.exception.key)
                        self.assertIn(f'"{key}"', str(caught.exception))

    def test_the_record_is_the_same_in_all_languages(self):
        for why, text in (("é \ud800" * 500, 500), ("dibs: why", "why")):
            with self.assertRaises(dibs.NotKept):
                self.keys.once(f"{self.key}/{text}", lambda: Refuses(why))
            with self.assertRaises(dibs.Done) as caught:
                self.keys.acquire(f"{self.key}/{text}", max_age=math.inf)
            record = json.loads(caught.exception.record)
            self.assertEqual(["not_kept"], list(record))
            self.assertTrue(record["not_kept"] == text or 490 < len(record["not_kept"].encode()) <= text)

    def test_an_operator_resolves_it(self):
        for how, left in ((["--result", "[17]"], [17]), (["--rerun"], "again")):
            key = f"{self.key} {how[0]}"
            self.assertRaises(dibs.NotKept, self.keys.once, key, object)
            subprocess.run([os.environ["DIBS_PROGRAM"], "resolve", "--yes", "--store", self.server.store, *how, key], check=True, capture_output=True)
            self.assertEqual(left, self.keys.once(key, lambda: "again"))

    def test_it_is_kept_as_long_as_a_result(self):
        self.assertRaises(dibs.NotKept, self.keys.once, self.key, object, keep=0.001)
        support.wait("the next one runs", lambda: self.runs_again(self.key))

    def runs_again(self, key):
        try:
            return self.keys.once(key, lambda: True)
        except dibs.Unrecorded:
            return False

    def test_with_rerun_the_next_caller_runs(self):
        for value in self.no_json():
            with self.subTest(type(value)), self.assertRaisesRegex(dibs.NotKept, "the next caller runs again") as caught:
                self.keys.once(self.key, lambda: value, rerun=True, at_most_once=True)
            self.assertTrue(caught.exception.rerun)
            self.assertTrue(self.server.free(self.key))
        self.assertEqual(1, self.keys.once(self.key, lambda: 1))

    def test_what_is_too_large_does_not_run_again(self):
        """The server may answer before it has read all, and close the connection."""
        small, tcp = self.serve("--max-body", "2048"), self.serve(listen="127.0.0.1:0")
        for server, size in ((small, 3 << 10), (self.server, 20 << 20), (tcp, 20 << 20)):
            keys = self.connect(server.url, timeout=support.LIMIT)
            for what, fn in (("result", lambda: "x" * size), ("error", lambda: self.fails("x" * size))):
                key = f"{self.key} {what} {size}"
                with self.subTest(key):
                    self.assertRaises(dibs.NotKept, keys.once, key, fn, remember=KeyError)
                    self.assertRaises(dibs.Unrecorded, keys.once, key, never)
        keys = self.connect(small.url)
        self.assertRaises(dibs.NotKept, keys.once, self.key, lambda: "x" * 4096, rerun=True)
        self.assertEqual(1, keys.once(self.key, lambda: 1))

    def fails(self, text):
        raise KeyError(text)

    def test_a_store_that_takes_no_record_at_all(self):
        """With at_most_once the outcome is then unknown. Otherwise the next caller runs."""
        for answer in (support.element("full"), support.problem("503 Service Unavailable", "store-unavailable")):
            line = support.Line(self.server)
            self.addCleanup(line.close)
            keys = self.connect(line.url)
            for at_most_once in (False, True):
                key = f"{self.key} {at_most_once} {len(answer)}"

                def run(line=line, answer=answer):
                    line.says["settle"] = answer, False
                    return 1
                with mock.patch.object(dibs.step.Tries, "next", support.once), self.assertRaises(dibs.NotKept) as caught:
                    keys.once(key, run, at_most_once=at_most_once, ttl=600)
                line.says.clear()
                self.assertEqual(not at_most_once, caught.exception.rerun)
                keys.flush(support.LIMIT)
                if at_most_once:
                    self.assertRaises(dibs.Unknown, self.keys.once, key, never, at_most_once=True)
                else:
                    self.assertEqual(2, self.keys.once(key, lambda: 2))

    def test_a_coroutine_has_not_run(self):
        async def charge():
            self.fail("it runs")
        self.assertRaisesRegex(TypeError, "keys.aio.once", self.keys.once, self.key, charge)
        self.assertEqual(1, self.keys.once(self.key, lambda: 1))

    def test_the_same_in_asyncio(self):
        async def main():
            aio = self.keys.aio
            for options, then in (({}, dibs.Unrecorded), ({"at_most_once": True}, dibs.Unrecorded), ({"rerun": True}, None)):
                key = f"{self.key} {options}"
                with self.assertRaises(dibs.NotKept) as caught:
                    await aio.once(key, lambda: math.nan, **options)
                self.assertEqual((then is None, True), (caught.exception.rerun, math.isnan(caught.exception.result)))
                if then:
                    with self.assertRaises(then):
                        await aio.once(key, never)
                else:
                    self.assertEqual(1, await aio.once(key, lambda: 1))
            with self.assertRaises(dibs.NotKept):
                await aio.once(f"{self.key} error", lambda: self.fails("x" * (20 << 20)), remember=KeyError)
            with self.assertRaises(dibs.Unrecorded):
                await aio.once(f"{self.key} error", never)
        asyncio.run(asyncio.wait_for(main(), support.LIMIT))

    def test_a_record_that_is_not_of_once(self):
        for record in (b"no json", b"[1]", b"{}"):
            self.keys.acquire(self.key).complete(record)
            self.assertRaises(dibs.Refused, self.keys.once, self.key, never)

    def test_a_record_of_another_key_inside_is_the_caller_s(self):
        self.keys.acquire(f"{self.key}/2").complete(b"record")
        with self.assertRaises(dibs.Done):
            self.keys.once(self.key, lambda: self.keys.acquire(f"{self.key}/2", max_age=math.inf))
        self.assertFree()

    def test_a_lost_lease_stores_nothing(self):
        self.assertRaises(dibs.Lost, self.keys.once, self.key, self.server.take, pass_lease=True, ttl=600)
        self.assertEqual(2, self.keys.once(self.key, lambda: 2))

    def test_arguments(self):
        self.assertRaises(ValueError, self.keys.once, self.key, never, keep=0)
        self.assertRaises(ValueError, self.keys.once, self.key, never, permits=2)
        self.assertRaises(TypeError, self.keys.once, self.key, never, retention=5)


class TicketTest(Case):
    def test_a_place_is_prolonged(self):
        ticket = self.keys.reserve(self.key, ttl=600, grace=60)
        self.keys.prolong(ticket, ttl="2h")
        self.assertGreater(self.server.entry(self.key)["places"][0]["left_ms"], 3_600_000)
        self.keys.cancel(ticket)

    def test_a_place_that_can_never_be_redeemed_is_given_back(self):
        a, b = (hashlib.sha256(t).hexdigest() for t in (b"a", b"b"))
        with self.keys.lock(self.key, fingerprint=a, ttl=600):
            other = self.connect()
            with self.assertRaises(dibs.Mismatch), other.redeem(other.reserve(self.key), fingerprint=b):
                self.fail("it is locked")
        self.assertFree()

    def test_other_texts_are_refused(self):
        ticket = self.keys.reserve(self.key)
        for text in (None, "", "dibs1", f"{ticket}=", f"{ticket}.", ticket.replace("dibs1", "dibs2"), f" {ticket}", f"{ticket}\n",
                     ".".join(["dibs1", "AAAA", *ticket.split(".")[2:]]), ticket + "é"):
            with self.subTest(text), self.assertRaises(ValueError):
                self.keys.redeem(text, wait=0)
        self.keys.cancel(ticket)


if __name__ == "__main__":
    unittest.main()
