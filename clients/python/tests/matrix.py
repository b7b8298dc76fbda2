"""The kill matrix: what happens to a process at each step of each call. For nightly runs; the cheap
part of it is in the tests beside this file.
"""

import os
import random
import signal
import threading
import unittest

import support
from interrupt import Interrupts
from support import Case, wait

import dibs

# What a process does when it is struck. It says its pid, and stays there.
STEPS = {
    "inside a block": """
        with keys.lock(KEY, ttl=2):
            print(os.getpid()); time.sleep(600)""",
    "waiting": """
        say_soon()
        with keys.lock(KEY, ttl=2): time.sleep(600)""",
    "inside once": """
        keys.once(KEY, lambda: (print(os.getpid()), time.sleep(600)), ttl=2)""",
    "with a lease of its own": """
        lease = keys.acquire(KEY, ttl=2)
        print(os.getpid()); time.sleep(600)""",
    "redeeming": """
        with keys.redeem(keys.reserve(KEY, grace=2), ttl=2, grace=1):
            print(os.getpid()); time.sleep(600)""",
    "before a reserved place is redeemed": """
        keys.reserve(KEY, grace=1)
        print(os.getpid()); time.sleep(600)""",
    "in a forked child": """
        with keys.lock(KEY, ttl=2): pass
        if not os.fork():
            with keys.lock(KEY, ttl=2):
                print(os.getpid()); time.sleep(600)
        os.wait()""",
    "in a child of multiprocessing": """
        import multiprocessing
        keys.held(KEY)
        def work():
            with keys.lock(KEY, ttl=2):
                print(os.getpid(), flush=True); time.sleep(600)
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()""",
    "in a task of asyncio": """
        import asyncio
        async def main():
            async with keys.aio.lock(KEY, ttl=2):
                print(os.getpid()); await asyncio.sleep(600)
        asyncio.run(main())""",
    "waiting in a task of asyncio": """
        import asyncio
        say_soon()
        async def main():
            async with keys.aio.lock(KEY, ttl=2): await asyncio.sleep(600)
        asyncio.run(main())""",
    "anywhere": """
        say_soon()
        while True:
            with keys.lock(KEY, ttl=2): pass""",
}

BEGIN = """
        import random, textwrap
        KEY = {key!r}
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        keys = dibs.connect()
        def say_soon():
            threading.Timer(random.random() * 0.3, lambda: print(os.getpid())).start()
"""


class Matrix(Interrupts, Case):
    def test_processes_that_are_struck(self):
        for step, text in STEPS.items():
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP):
                with self.subTest(step=step, signal=number.name):
                    self.key = f"{self.id()} {step} {number.name}"
                    self.strike(text, number)

    def strike(self, text, number):
        """Require that the key can be had again."""
        blocker = self.keys.acquire(self.key, ttl=600) if "    say_soon()\n        with" in text or "    say_soon()\n        async" in text else None
        script = self.script(BEGIN.format(key=self.key) + text)
        try:
            script.strike(number, int(script.line()))
            if blocker:
                blocker.release()
            with self.keys.lock(self.key, wait=support.LIMIT) as lease:
                lease.check()
        finally:
            script.close()

    def test_a_killed_waiter_is_passed_over(self):
        def after():
            with self.keys.lock(self.key):
                return "after"
        with self.keys.lock(self.key, ttl=600):
            script = self.script(f"with dibs.connect().lock({self.key!r}, ttl=600): time.sleep(600)")
            wait("it waits", lambda: self.server.waiters(self.key) == 1)
            script.strike(signal.SIGKILL)
            wait("the server noticed", lambda: self.server.waiters(self.key) == 0)
            waiter = support.thread(after)
            wait("another waits", lambda: self.server.waiters(self.key) == 1)
        self.assertEqual("after", waiter.join())

    def test_a_grant_at_the_end_of_a_long_poll_lasts_a_whole_ttl(self):
        def left():
            with self.keys.lock(self.key, ttl=4) as lease:
                return lease.check().left
        with self.keys.lock(self.key, ttl=600):
            waiter = support.thread(left)
            support.time.sleep(5)
        self.assertGreater(waiter.join(), 0)

    def test_interrupts_everywhere(self):
        """As test_interrupt, in the functions of the standard library too."""
        for work in ("lock", "once", "reserve", "redeem"):
            with self.subTest(work):
                self.strike_each(work, everywhere=True)

    def test_signals_at_random(self):
        """Signals whose handler raises strike a process again and again: nothing is left behind."""
        seed = int(os.environ.get("SEED") or random.randrange(1 << 30))
        script = self.script(f"""
            import random
            keys, rng, key = dibs.connect(), random.Random({seed}), {self.key!r}
            class Struck(Exception): pass
            def strike(*_):
                global armed
                armed = False  # the loop ends even if Python drops what is raised, as in a finalizer
                raise Struck
            def step(i):
                if i % 3 == 0:
                    with keys.lock(key, ttl=600) as lease: lease.check()
                elif i % 3 == 1:
                    keys.once(f"{{key}}/{{i}}", lambda: 1, ttl=600)
                else:
                    keys.acquire(key, ttl=600).release()
            signal.signal(signal.SIGALRM, strike)
            for i in range(2000):
                armed = True
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.000001 + rng.random() * 0.005)
                    while armed: step(i)
                except (Struck, dibs.NotKept):  # while the result becomes JSON, what is raised says that it cannot
                    pass
            print(keys.flush({support.LIMIT}))
            sys.stdin.readline()  # the end of the program does not wait for the second undo of a claim that may come late
        """)
        self.assertEqual("True", support.thread(script._process.stdout.readline).join(600).decode().strip(), f"SEED={seed}")
        wait(lambda: f"the key is free (SEED={seed}), and not {self.server.entry(self.key)}", lambda: self.server.free(self.key))
        script.tell()
        self.assertEqual(0, script.ended())

    def test_servers_that_are_killed_in_turn(self):
        """Two servers share a store, and one after the other is killed: no lease is lost, none is
        granted twice, and no caller sees an error.
        """
        servers = [self.serve(listen="127.0.0.1:0")]
        servers.append(self.serve(listen="127.0.0.1:0", store=servers[0].store))
        keys = self.connect(f"{servers[0].url},{servers[1].host}")
        inside, together, stop = [], [], threading.Event()

        def work():
            while not stop.is_set():
                with keys.lock(self.key, ttl=60) as lease:
                    inside.append(1)
                    together.append(len(inside))
                    support.time.sleep(0.001)
                    inside.pop()
                    lease.check()
        threads = [support.thread(work) for _ in range(6)]
        for i in range(8):
            before, server = len(together), servers[i % 2]
            server.kill()
            wait("the other server continues", lambda: len(together) > before + 5)
            server.start(server.host)
        stop.set()
        for each in threads:
            each.join()
        self.assertEqual({1}, set(together))
        self.assertFree(server=servers[0])


if __name__ == "__main__":
    unittest.main()
