import asyncio
import contextlib
import hashlib
import math
import os
import subprocess
import unittest
from unittest import mock

import support
from support import Case

import dibs

DATABASE = os.environ.get("DIBS_DATABASE")


@unittest.skipUnless(DATABASE, "DIBS_DATABASE is not set")
class TransactionTest(Case):
    """Leases that end with a transaction of the application, on PostgreSQL.

    DIBS_DATABASE is the URL of a database that the tests may fill. They need psycopg 3.
    """

    @classmethod
    def setUpClass(cls):
        global psycopg
        import psycopg
        store = f"{DATABASE}&schema=leases"
        subprocess.run([os.environ["DIBS_PROGRAM"], "migrate", "--store", store], check=True, stdout=subprocess.DEVNULL)
        with psycopg.connect(DATABASE) as connection:
            connection.execute("""
                CREATE TABLE effects (id text NOT NULL); CREATE ROLE app LOGIN;
                CREATE ROLE nobody LOGIN; GRANT USAGE ON SCHEMA leases TO nobody;
                GRANT INSERT, SELECT ON effects TO app; GRANT USAGE ON SCHEMA leases TO app;
                GRANT EXECUTE ON FUNCTION leases.dibs_settle_in, leases.dibs_reserve_in TO app""")
        connection.close()
        tokens = f"{support.folder()}/tokens"
        with open(tokens, "w") as file:
            print("shop", hashlib.sha256(b"secret").hexdigest(), "shop", "use", file=file)
        # Two servers of one store. With a credential the server decides the namespace.
        cls.plain = support.Server(store=store)
        cls.guarded = support.Server("--tokens", tokens, store=store, listen="127.0.0.1:0")

    def setUp(self):
        super().setUp()
        self.server = self.plain
        self.keys = self.connect(self.plain.url, schema="leases")
        self.app = self.open()

    def open(self, role="app", **options):
        connection = psycopg.connect(DATABASE.replace("//postgres@", f"//{role}@"), **options)
        self.addCleanup(connection.close)
        return connection

    @contextlib.contextmanager
    def transaction(self, connection=None):
        """Give a cursor in a transaction that has written the effect of the test."""
        with (connection or self.app).transaction(), (connection or self.app).cursor() as cursor:
            cursor.execute("INSERT INTO effects VALUES (%s)", [self.key])
            yield cursor

    def effect(self, connection=None):
        (connection or self.app).execute("INSERT INTO effects VALUES (%s)", [self.key])

    def effects(self):
        with self.open(autocommit=True) as other:
            return other.execute("SELECT count(*) FROM effects WHERE id = %s", [self.key]).fetchone()[0]

    def record(self, key=None):
        try:
            self.keys.acquire(key or self.key, wait=0, max_age=math.inf).release()
        except dibs.Done as done:
            return done.record

    def test_the_effect_and_the_record_are_committed_together(self):
        with self.keys.lock(self.key) as lease, self.transaction() as cursor:
            lease.complete_in(cursor, b"\xff\\'\0%s", keep="1h")
        self.assertEqual((1, b"\xff\\'\0%s"), (self.effects(), self.record()))

    def test_a_transaction_that_is_rolled_back_leaves_nothing_and_may_be_made_again(self):
        with self.keys.lock(self.key) as lease:
            with self.assertRaises(KeyError), self.transaction() as cursor:
                lease.complete_in(cursor, b"record")
                raise KeyError
            self.assertEqual(0, self.effects())
            with self.transaction() as cursor:
                lease.complete_in(cursor, b"record")
        self.assertEqual((1, b"record"), (self.effects(), self.record()))

    def test_a_rolled_back_transaction_gives_the_key_back(self):
        with self.assertRaises(KeyError), self.keys.lock(self.key, ttl=600) as lease, self.transaction() as cursor:
            lease.complete_in(cursor, b"record")
            raise KeyError
        self.assertEqual((0, None), (self.effects(), self.record()))
        self.assertFree()

    def test_without_data_it_releases(self):
        with self.keys.lock(self.key, ttl=600) as lease, self.transaction() as cursor:
            lease.complete_in(cursor, None)
        self.assertEqual((1, None), (self.effects(), self.record()))

    def test_a_lease_without_a_block_is_released_after_the_transaction(self):
        lease = self.keys.acquire(self.key, ttl=600)
        with self.transaction() as cursor:
            lease.complete_in(cursor, b"record")
        lease._process.renewer._renew([lease._attempt], support.LIMIT)
        self.assertTrue(lease.held)  # what the renewal found is not a loss
        lease.release()
        self.assertEqual(b"record", self.record())

    def test_a_waiter_without_a_limit_outlasts_a_transaction(self):
        """A transaction that has settled the lease keeps the key's rows busy. That is an answer to the waiter."""
        now, error_of, busy = dibs.clock.now, dibs.attempt.Attempt.error_of, []

        def answered(attempt, answer):
            error = error_of(attempt, answer)
            if error is not None and attempt.fence is None:  # it is the waiter's
                busy.append(type(error))  # the clock moves on with each
            return error
        other = self.connect(self.plain.url)
        with mock.patch.object(dibs.clock, "now", lambda: now() + 8 * len(busy)), \
                mock.patch.object(dibs.attempt.Attempt, "error_of", answered), mock.patch.object(dibs.claim, "POLL", 0.1):
            lease = self.keys.acquire(self.key, ttl=60_000)
            waiter = support.thread(lambda: other.acquire(self.key, ttl=60_000))
            support.wait("it waits", lambda: self.server.waiters(self.key) == 1)
            with self.transaction() as cursor:
                lease.complete_in(cursor, None)
                support.wait("it was busy twice", lambda: len(busy) > 1 or not waiter.is_alive())
            waiter.join().release()
            lease.release()
        self.assertEqual({dibs.Busy}, set(busy))

    def test_a_lost_lease_rolls_back(self):
        with self.assertRaises(dibs.Lost), self.keys.lock(self.key, ttl=600) as lease:
            self.server.take(lease)
            with self.transaction() as cursor:
                lease.complete_in(cursor, b"record")
        self.assertEqual((0, None), (self.effects(), self.record()))

    def test_what_is_refused(self):
        for role, options, kind, said in (
                ("app", {"schema": "leases"}, dibs.WrongTransaction, "written nothing"), ("app", {"schema": "information_schema"}, dibs.Refused, "dibs migrate"),
                ("app", {"schema": "no%s"}, dibs.Refused, 'no function "no%s"'), ("app", {"schema": "leases", "prefix": "old"}, dibs.Refused, "old_settle"),
                ("nobody", {"schema": "leases"}, dibs.Forbidden, "GRANT")):
            with self.subTest(said):
                keys, connection = self.connect(self.plain.url, **options), self.open(role, autocommit=True)
                with self.assertRaisesRegex(kind, said) as caught, keys.lock(self.key) as lease, connection.cursor() as cursor:
                    lease.complete_in(cursor, b"record")
                self.assertEqual(1, str(caught.exception).count("dibs: "))
        with self.keys.lock(self.key) as lease, self.app.cursor() as cursor:
            self.assertRaises(TypeError, lease.complete_in, cursor, "text")
        with self.keys.lock(f"{self.key}/2", permits=2) as lease, self.app.cursor() as cursor:
            self.assertRaises(ValueError, lease.complete_in, cursor, b"record")
        self.assertFree()

    def test_errors_of_django(self):
        """Its errors have those of psycopg as their cause."""
        class Wrapper:
            def __init__(self, cursor):
                self._cursor = cursor

            def execute(self, *args):
                try:
                    self._cursor.execute(*args)
                except psycopg.Error as e:
                    raise RuntimeError("django") from e
        with self.assertRaisesRegex(dibs.Lost, "settled before"), self.keys.lock(self.key) as lease:
            self.server.take(lease)
            with self.transaction() as cursor:
                lease.complete_in(Wrapper(cursor), b"record")

    def test_the_credential_decides_the_namespace(self):
        keys = self.connect(self.guarded.url.replace("://", "://:secret@"), schema="leases")
        with keys.lock(self.key) as lease, self.transaction() as cursor:
            lease.complete_in(cursor, b"record")
        self.assertRaises(dibs.Done, keys.acquire, self.key, max_age=math.inf)
        with self.transaction() as cursor:
            ticket = keys.reserve_in(cursor, f"{self.key}/2")
        self.refused(dibs.Held, f"{self.key}/2", keys=keys, wait=0)
        with keys.redeem(ticket, wait=0):
            pass

    def test_a_place_in_a_transaction(self):
        from psycopg.rows import dict_row
        self.app.row_factory = dict_row
        with self.transaction() as cursor:
            ticket = self.keys.reserve_in(cursor, self.key, ttl="1h", grace=60, label="later")
        self.assertEqual(1, self.server.entry(self.key)["reserved"])
        self.refused(dibs.Held, wait=0)
        with self.keys.redeem(ticket):
            pass
        with self.assertRaises(KeyError), self.transaction() as cursor:
            self.keys.reserve_in(cursor, self.key)
            raise KeyError
        self.assertFree()

    # once with in_, on connections that begin transactions by themselves and on others.

    def test_once_in_a_transaction(self):
        for autocommit in (False, True):
            with self.subTest(autocommit=autocommit):
                app, runs = self.open(autocommit=autocommit), []

                def run(key, app=app, runs=runs):
                    runs.append(key)
                    app.execute("INSERT INTO effects VALUES (%s)", [key])
                    return {"id": (17,)}
                key = self.key = f"{self.key}/{autocommit}"
                for _ in range(2):
                    self.assertEqual({"id": [17]}, self.keys.once(key, lambda: run(key), keep="1h", in_=app))
                self.assertEqual((1, 1), (len(runs), self.effects()))
                self.assertEqual(True, self.keys.once(f"{key}/nothing written", lambda lease: lease.held, in_=app, pass_lease=True))
                self.assertEqual(0, app.info.transaction_status)

    def test_an_error_of_once_rolls_back(self):
        for autocommit in (False, True):
            app = self.open(autocommit=autocommit)

            def fails(error, app=app):
                self.effect(app)
                raise error
            for error in (KeyError("declined"), KeyboardInterrupt()):
                self.assertRaises(type(error), self.keys.once, self.key, lambda e=error: fails(e), in_=app)
            self.assertRaises(dibs.NotKept, self.keys.once, self.key, lambda: self.effect(app) or object(), in_=app)
            key = f"{self.key}/{autocommit}"
            self.assertRaises(KeyError, self.keys.once, key, lambda: fails(KeyError("declined")), in_=app, remember=KeyError)
            self.assertRaises(dibs.Remembered, self.keys.once, key, self.fail, in_=app)
            self.assertEqual((0, 0), (self.effects(), app.info.transaction_status))
        self.assertFree()

    def test_a_result_that_cannot_be_stored_rolls_back(self):
        """So nothing was done, and the next caller runs."""
        for result in ("x" * (65 << 20), math.nan):
            with self.assertRaisesRegex(dibs.NotKept, "rolled back, and the next caller runs again") as caught:
                self.keys.once(self.key, lambda result=result: self.effect() or result, in_=self.app, at_most_once=True)
            self.assertTrue(caught.exception.rerun)
            self.assertEqual((0, 0), (self.effects(), self.app.info.transaction_status))
        with self.assertRaises(dibs.TooLarge), self.keys.lock(self.key) as lease, self.transaction() as cursor:
            lease.complete_in(cursor, b"x" * (65 << 20))
        self.assertEqual(1, self.keys.once(self.key, lambda: 1, in_=self.app))

    def test_once_wants_its_own_transaction(self):
        def commits():
            self.effect()
            self.app.commit()
            self.effect()
        with self.assertRaisesRegex(dibs.WrongTransaction, "function of once begins and ends none"):
            self.keys.once(self.key, commits, in_=self.app, remember=Exception)
        self.assertEqual(1, self.effects())  # which the function committed itself
        with self.assertRaisesRegex(dibs.WrongTransaction, "already"), self.app.transaction():
            self.keys.once(self.key, self.fail, in_=self.app)
        self.assertRaises(TypeError, self.keys.once, self.key, self.fail, in_=object())
        self.assertFree()

    def test_the_answer_to_commit_is_lost(self):
        """The connection breaks at COMMIT: after it was carried out, or before."""
        for before in (False, True):
            with self.subTest(before=before):
                key, app = f"{self.key}/{before}", self.open()
                self.at_commit(app, lambda app=app: app.close(), before)
                if before:
                    self.assertRaises(psycopg.OperationalError, self.keys.once, key, lambda: "result", in_=app)
                else:
                    self.assertEqual("result", self.keys.once(key, lambda: "result", in_=app))
                self.assertEqual("again" if before else "result", self.keys.once(key, lambda: "again", in_=self.app))

    def at_commit(self, app, act, before=True):
        """Do something on the connection before or after once commits."""
        class Cursor(app.cursor_factory):
            def execute(self, query, *args, **options):
                commits = "COMMIT" in query
                if commits and before:
                    act()
                super().execute(query, *args, **options)
                if commits and not before:
                    act()
                return self
        app.cursor_factory = Cursor

    def test_a_transaction_that_something_else_ends_before_its_commit(self):
        """PostgreSQL answers COMMIT with ROLLBACK in a failed transaction, and with COMMIT in another one."""
        def fails(app):
            with contextlib.suppress(psycopg.Error), psycopg.Cursor(app) as cursor:
                cursor.execute("SELECT 1/0")

        def rolls_back(app):
            psycopg.Cursor(app).execute("ROLLBACK")

        def begins_again(app):
            rolls_back(app)
            psycopg.Cursor(app).execute("BEGIN; INSERT INTO effects VALUES ('another')")

        def commits(app):
            psycopg.Cursor(app).execute("COMMIT")
        for autocommit in (False, True):
            for end, kind in ((fails, psycopg.errors.InFailedSqlTransaction), (rolls_back, dibs.WrongTransaction),
                              (begins_again, dibs.WrongTransaction), (commits, None)):
                with self.subTest(end.__name__, autocommit=autocommit):
                    key, app = f"{self.key}/{end.__name__}/{autocommit}", self.open(autocommit=autocommit)
                    factory = app.cursor_factory

                    def run(key=key, app=app):
                        app.execute("INSERT INTO effects VALUES (%s)", [key])
                        return "result"
                    self.at_commit(app, lambda app=app, end=end: end(app))
                    if kind is None:  # it is committed
                        self.assertEqual("result", self.keys.once(key, run, in_=app))
                    else:
                        self.assertRaises(kind, self.keys.once, key, run, in_=app, ttl=600)
                    self.assertEqual(0, app.info.transaction_status)
                    app.cursor_factory = factory
                    for _ in range(8):  # psycopg prepares what it is often given
                        self.assertEqual("result", self.keys.once(key, run, in_=app, wait=0))
                        self.assertEqual("other", self.keys.once(f"{key}/{_}", lambda: "other", in_=app))
                    with self.open(autocommit=True) as other:
                        self.assertEqual((1,), other.execute("SELECT count(*) FROM effects WHERE id = %s", [key]).fetchone())
                        self.assertEqual((0,), other.execute("SELECT count(*) FROM effects WHERE id = 'another'").fetchone())

    def test_a_statement_of_another_task_before_the_commit(self):
        async def main(autocommit, statement, kind):
            app = await psycopg.AsyncConnection.connect(DATABASE.replace("//postgres@", "//app@"), autocommit=autocommit)
            async with app:
                async def other():
                    with contextlib.suppress(psycopg.Error):
                        await app.execute(statement)

                async def run(task=None):
                    await app.execute("INSERT INTO effects VALUES (%s)", [self.key])
                    if task:
                        others.append(asyncio.create_task(task()))  # it comes after the settlement
                    return "result"
                others = []
                with self.assertRaises(kind):
                    await self.keys.aio.once(self.key, lambda: run(other), in_=app, ttl=600)
                await others[0]
                self.assertEqual((0, 0), (self.effects(), app.info.transaction_status))
                self.assertEqual("result", await self.keys.aio.once(self.key, run, in_=app, wait=0))
                self.assertEqual(1, self.effects())
        for autocommit in (False, True):
            for statement, kind in (("SELECT 1/0", psycopg.errors.InFailedSqlTransaction), ("ROLLBACK", dibs.WrongTransaction)):
                with self.subTest(statement, autocommit=autocommit):
                    self.key = f"{self.key}/{statement}"
                    asyncio.run(asyncio.wait_for(main(autocommit, statement, kind), support.LIMIT))

    def test_asyncio(self):
        async def main():
            connection = await psycopg.AsyncConnection.connect(DATABASE.replace("//postgres@", "//app@"))
            async with connection:
                async with self.keys.aio.lock(self.key) as lease, connection.transaction(), connection.cursor() as cursor:
                    await cursor.execute("INSERT INTO effects VALUES (%s)", [self.key])
                    await lease.complete_in(cursor, b"record")
                async with connection.transaction(), connection.cursor() as cursor:
                    return await self.keys.aio.reserve_in(cursor, f"{self.key}/2")
        ticket = asyncio.run(asyncio.wait_for(main(), support.LIMIT))
        self.assertEqual((1, b"record"), (self.effects(), self.record()))
        with self.keys.redeem(ticket, wait=0):
            pass

    def test_once_of_asyncio(self):
        async def main(autocommit):
            aio, begun = self.keys.aio, asyncio.Event()
            app = await psycopg.AsyncConnection.connect(DATABASE.replace("//postgres@", "//app@"), autocommit=autocommit)

            async def run(error=None):
                await app.execute("INSERT INTO effects VALUES (%s)", [self.key])
                if error:
                    raise error
                return {"id": 17}

            async def stop():
                await run()
                begun.set()
                await asyncio.sleep(600)
            async with app:
                self.assertEqual(True, await aio.once(f"{self.key}/nothing written", lambda lease: lease.held, in_=app, pass_lease=True))
                with self.assertRaises(KeyError):
                    await aio.once(self.key, lambda: run(KeyError("declined")), in_=app)
                with self.assertRaises(KeyError):
                    await aio.once(f"{self.key}/2", lambda: run(KeyError("declined")), in_=app, remember=KeyError)
                with self.assertRaises(dibs.Remembered):
                    await aio.once(f"{self.key}/2", stop, in_=app)
                task = asyncio.create_task(aio.once(self.key, stop, in_=app))
                await begun.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertEqual((0, 0), (self.effects(), app.info.transaction_status))
                for _ in range(2):
                    self.assertEqual({"id": 17}, await aio.once(self.key, run, in_=app))
                self.assertEqual(1, self.effects())
                async with app.transaction():
                    with self.assertRaises(dibs.WrongTransaction):
                        await aio.once(f"{self.key}/3", stop, in_=app)

                class Cursor(app.cursor_factory):
                    async def execute(self, query, *args, **options):
                        await super().execute(query, *args, **options)
                        if "COMMIT" in query:
                            await app.close()
                            raise psycopg.OperationalError("cut")
                        return self
                app.cursor_factory = Cursor
                self.assertEqual({"id": 17}, await aio.once(f"{self.key}/4", run, in_=app))
        for autocommit in (False, True):
            with self.subTest(autocommit=autocommit):
                self.key = f"{self.key}/{autocommit}"
                asyncio.run(asyncio.wait_for(main(autocommit), support.LIMIT))


if __name__ == "__main__":
    unittest.main()
