import asyncio
import logging
import pickle
import unittest

import support
from support import Case

import dibs


class HooksTest(Case):
    """Logs, events, the names of keys in messages, and who holds a key."""

    def setUp(self):
        super().setUp()
        self.events = []
        self.told = self.connect(on_event=self.events.append)

    def kinds(self):
        return [event.kind for event in self.events]

    def test_events(self):
        with self.told.lock(self.key) as lease:
            pass
        self.assertEqual([("acquired", self.key, lease.id)], [event[:3] for event in self.events])
        with self.keys.lock(self.key, ttl=600):
            self.refused(dibs.Held, keys=self.told, wait=0)
            waiter = support.thread(lambda: self.told.acquire(self.key))
            support.wait("it waits", lambda: self.server.waiters(self.key) == 1)
        waiter.join().release()
        self.assertEqual(["acquired", "skipped", "waited"], self.kinds())
        self.assertIsInstance(self.events[1].error, dibs.Held)
        lease = self.told.acquire(self.key, ttl=600)
        self.server.take(lease)
        self.assertRaises(dibs.Lost, lease.release)
        self.assertRaises(dibs.Lost, lease.release)
        self.assertEqual(["acquired", "lost"], self.kinds()[3:])
        del lease
        with self.assertWarns(RuntimeWarning):
            self.told.acquire(self.key, ttl=600)
        self.told.flush(support.LIMIT)
        self.assertEqual(("undone", "abandon"), (self.events[-1].kind, self.events[-1].outcome))

    def test_a_renewal_that_finds_the_lease_lost(self):
        lease = self.told.acquire(self.key, ttl=600)
        self.server.take(lease)
        lease._process.renewer._renew([lease._attempt], support.LIMIT)
        self.assertEqual(["acquired", "lost"], self.kinds())

    def test_no_server(self):
        keys = dibs.connect("unix:/nowhere/dibs.sock", on_event=self.events.append)
        self.refused(dibs.Unavailable, keys=keys, wait=0)
        self.assertEqual(["unavailable"], self.kinds())

    def test_a_hook_that_fails_changes_nothing(self):
        def fails(event):
            raise KeyError
        with self.assertLogs("dibs", "ERROR"), self.connect(on_event=fails).lock(self.key) as lease:
            lease.check()

    def test_the_log(self):
        with self.assertLogs("dibs", "DEBUG") as logs, self.keys.lock(self.key):
            self.refused(dibs.Held, keys=self.connect(), wait=0)
        self.assertEqual([f'DEBUG:dibs:acquired the key "{self.key}"',
                          f'INFO:dibs:skipped: another holder has the lock for the key "{self.key}"'], logs.output)
        self.assertEqual([logging.NullHandler], [type(handler) for handler in logging.getLogger("dibs").handlers])

    def test_secret_keys(self):
        secret = self.connect(secret_keys=True)
        with self.keys.lock(self.key), self.assertLogs("dibs", "INFO") as logs:
            for keys, shown in ((self.connect(), True), (secret, False)):
                error = self.refused(dibs.Held, keys=keys, wait=0)
                self.assertEqual((shown, self.key), (f'"{self.key}"' in str(error), error.key))
        self.assertEqual([True, False], [self.key in line for line in logs.output])

    def test_a_key_of_bytes_in_a_message(self):
        with self.keys.lock(b"\xff"):
            self.assertIn(r"b'\xff'", str(self.refused(dibs.Held, b"\xff", keys=self.connect(), wait=0)))

    def test_who_holds_the_key(self):
        with self.connect(label="the holder").lock(self.key) as lease:
            error = self.refused(dibs.Held, wait=0)
            holder = error.holder()
            self.assertEqual(("the holder", support.os.getpid(), lease.id), (holder.label, holder.pid, holder.id))
            self.assertIsNone(pickle.loads(pickle.dumps(error)).holder())
        self.assertIsNone(error.holder())


class DecoratorTest(Case):
    def test_lock(self):
        @self.keys.lock(self.key + " {day} {kind}", wait=0)
        def report(day, *, kind="daily"):
            """Make a report."""
            self.assertTrue(self.keys.held(f"{self.key} {day} {kind}"))
            return day
        self.assertEqual(("report", "Make a report."), (report.__name__, report.__doc__))
        self.assertEqual([3, 4], [report(3), report(day=4)])
        with self.connect().lock(f"{self.key} 5 daily"):
            self.assertRaises(dibs.Held, report, 5)
            self.assertEqual(5, report(5, kind="weekly"))

    def test_lock_of_a_coroutine_function(self):
        @self.keys.lock(self.key + " {order.id}")
        async def send(order):
            return await self.keys.aio.held(f"{self.key} 7")

        @self.keys.aio.lock(self.key)
        async def other():
            return await self.keys.aio.held(self.key)

        class Order:
            id = 7
        self.assertEqual([True, True], [asyncio.run(send(Order())), asyncio.run(other())])

    def test_once(self):
        runs = []

        @self.keys.once(self.key + " {id}", keep="1h")
        def charge(id, amount=1):
            runs.append(id)
            return {"charged": amount}

        @self.keys.once(self.key + " {id}", pass_lease=True, with_origin=True)
        async def other(lease, id):
            runs.append(lease.held)
            return 8
        self.assertEqual([{"charged": 5}, {"charged": 5}, {"charged": 1}], [charge(1, 5), charge(1, 6), charge(id=2)])
        self.assertEqual([1, 2], runs)
        self.assertEqual([dibs.OnceResult(8, False), (8, True)], [asyncio.run(other(3)), asyncio.run(other(3))])
        self.assertEqual([1, 2, True], runs)

    def test_methods(self):
        keys, key = self.keys, self.key

        class Service:
            name = "shop"

            @keys.once(key + " {self.name} {id}")
            def run(self, id):
                return self.name
        self.assertEqual(("shop", "shop"), (Service().run(1), keys.once(f"{key} shop 1", lambda: 1 / 0)))

    def test_what_is_missing(self):
        for template in ("order {id}", "order {}", "order {0}"):
            with self.assertRaisesRegex(TypeError, "has no such parameter"):
                self.keys.once(template)(lambda ident: 1)
        with self.assertRaisesRegex(TypeError, "wiat"):
            self.keys.once("order", wiat=1)
        with self.assertRaisesRegex(TypeError, "generator"):
            @self.keys.lock("order")
            def pages():
                yield 1
        with self.assertRaisesRegex(TypeError, "only lock"):
            self.keys.redeem(self.keys.reserve(self.key))(print)

        @self.keys.lock("order {id}")
        def anything(**named):
            return named
        self.assertEqual({"id": 1}, anything(id=1))
        self.assertRaisesRegex(TypeError, "names {id}", anything, other=1)

    def test_with_origin(self):
        self.assertEqual(dibs.OnceResult(1, False), self.keys.once(self.key, lambda: 1, with_origin=True))
        again = self.keys.once(self.key, lambda: 2, with_origin=True)
        self.assertEqual((1, True), (again.value, again.replayed))


if __name__ == "__main__":
    unittest.main()
