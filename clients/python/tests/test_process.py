import os
import signal
import unittest

import support
from support import Case


class ProcessTest(Case):
    """Processes that are killed, stopped and forked."""

    def test_a_stopped_process_finds_its_lease_lost(self):
        script = self.script(f"""
            try:
                with dibs.connect().lock({self.key!r}, ttl=3) as lease:
                    print("held")
                    sys.stdin.readline()
                    for name, look in (("check", lease.check), ("fence", lambda: lease.fence)):
                        try:
                            look()
                            print("trusted")
                        except dibs.Lost:
                            print(name)
                print("trusted")
            except dibs.Lost:
                print("lost")
        """)
        self.assertEqual("held", script.line())
        script.strike(signal.SIGSTOP)
        with self.keys.lock(self.key) as lease:
            self.assertEqual(2, lease.attempt)
            script.tell()
            script.strike(signal.SIGCONT)
            self.assertEqual(["check", "fence", "lost"], [script.line() for _ in range(3)])
            script.ended()
            lease.check()

    def test_a_killed_process_leaves_an_abandoned_lease(self):
        script = self.script(f"""
            with dibs.connect().lock({self.key!r}, ttl=3):
                print("held")
                time.sleep(600)
        """)
        self.assertEqual("held", script.line())
        script.strike(signal.SIGKILL)
        with self.keys.lock(self.key) as lease:
            self.assertEqual(2, lease.attempt)

    def test_a_lease_that_is_held_at_the_end_of_the_program(self):
        """It is abandoned, because nobody can settle it any more. What a daemon thread holds stays, because it may still run."""
        script = self.script(f"""
            keys, held = dibs.connect(), threading.Event()
            lease = keys.acquire({self.key!r}, ttl=600)
            def acquire():
                global other
                other = keys.acquire({self.key + "/thread"!r}, ttl=600, renew=False)
            threading.Thread(target=acquire).start()
            def work():
                with keys.lock({self.key + "/daemon"!r}, ttl=600):
                    held.set()
                    time.sleep(600)
            threading.Thread(target=work, daemon=True).start()
            held.wait()
        """)
        self.assertEqual(0, script.ended())
        for key in (self.key, f"{self.key}/thread"):
            self.assertEqual(2, self.keys.acquire(key, wait=0).attempt)
        self.assertTrue(self.server.entry(f"{self.key}/daemon")["runs"])

    def test_a_forked_child_owns_no_lease_of_its_parent(self):
        script = self.script(f"""
            keys = dibs.connect()
            with keys.lock({self.key!r}, ttl=600) as lease:
                if not os.fork():
                    for use in (lease.check, lease.release, lambda: lease.fence):
                        try:
                            use()
                            print("used")
                        except dibs.Lost:
                            print("lost")
                    del lease
                    with keys.lock({self.key + "/child"!r}, ttl=600) as mine:
                        print(mine.held)
                    os._exit(0)
                os.wait()
                print(lease.id)
                sys.stdin.readline()
        """)
        self.assertEqual(["lost", "lost", "lost", "True"], [script.line() for _ in range(4)])
        self.assertEqual(script.line(), self.server.entry(self.key)["runs"][0]["id"])
        script.tell()
        self.assertEqual(0, script.ended())
        self.assertFree()
        self.assertFree(f"{self.key}/child")

    def test_a_child_that_leaves_its_parents_block_changes_nothing(self):
        script = self.script(f"""
            try:
                with dibs.connect().lock({self.key!r}, ttl=600) as lease:
                    if pid := os.fork():
                        os.waitpid(pid, 0)
                        print(lease.held)
            except dibs.Lost:
                print("the child's block ends with Lost")
        """)
        self.assertEqual(["the child's block ends with Lost", "True"], [script.line() for _ in range(2)])
        self.assertEqual(0, script.ended())
        self.assertFree()

    def test_a_child_starts_its_own_renewer(self):
        script = self.script(f"""
            keys = dibs.connect()
            keys.acquire({self.key + "/parent"!r}, ttl=600).release()  # the parent has threads and connections
            if not os.fork():
                lease = keys.acquire({self.key!r}, ttl=3)
                last = lease.left
                while (left := lease.check().left) <= last:
                    last = left
                    time.sleep(0.005)
                print("renewed")
                lease.release()
                os._exit(0)
            os.wait()
        """)
        self.assertEqual("renewed", script.line())
        script.ended()
        self.assertFree()

    def test_what_a_child_waits_for_is_undone_at_its_end(self):
        """The end of a child of multiprocessing runs no end of the program before Python 3.13."""
        script = self.script(f"""
            keys = dibs.connect()
            keys.held({self.key!r})
            if not os.fork():
                try:
                    with keys.lock({self.key!r}, wait=600): pass
                except KeyboardInterrupt:
                    print(keys.flush())
                    os._exit(0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("forked")
            os.wait()
        """)
        with self.keys.lock(self.key, ttl=600):
            self.assertEqual("forked", script.line())
            support.wait("it waits", lambda: self.server.waiters(self.key) == 1)
            os.killpg(script.pid, signal.SIGINT)
            self.assertEqual("True", script.line())
            self.assertEqual(0, self.server.waiters(self.key))

    def test_processes_of_multiprocessing(self):
        for method in ("fork", "spawn"):
            path = f"{support.folder()}/main.py"
            with open(path, "w") as main:
                main.write(MULTIPROCESSING)
            script = self.script(f"os.execv(sys.executable, [sys.executable, '-u', {path!r}, {method!r}, {self.key!r}])")
            self.assertEqual("3 results, 1 value", script.line())
            self.assertEqual(0, script.ended())

    def test_a_server_in_two_processes_over_one_connection(self):
        """Parent and children use connections of their own, after the parent had one."""
        script = self.script(f"""
            keys = dibs.connect()
            keys.held({self.key!r})
            children = []
            for c in range(2):
                children.append(os.fork())
                if not children[-1]:
                    for i in range(20):
                        with keys.lock(f"{self.key}/{{c}}/{{i}}") as lease:
                            lease.check()
                    os._exit(0)
            for i in range(20):
                with keys.lock(f"{self.key}/p/{{i}}") as lease:
                    lease.check()
            print([os.waitpid(child, 0)[1] for child in children])
        """)
        self.assertEqual("[0, 0]", script.line())

    def test_a_child_has_no_socket_of_its_parent(self):
        """A child that outlives its parent would keep the server from noticing the parent's end."""
        script = self.script(f"""
            import stat
            keys = dibs.connect()
            keys.held({self.key!r})
            waiter = threading.Thread(target=lambda: keys.acquire({self.key!r}, ttl=600), daemon=True)
            waiter.start()
            sys.stdin.readline()
            def is_socket(file):
                try:
                    return stat.S_ISSOCK(os.fstat(file).st_mode)
                except OSError:
                    return False
            def sockets():
                return sum(map(is_socket, range(256)))
            print(sockets() > 0)
            if not os.fork():
                print(sockets())
                os._exit(0)
            os.wait()
        """)
        with self.keys.lock(self.key, ttl=600):
            support.wait("it waits", lambda: self.server.waiters(self.key) == 1)
            script.tell()
            self.assertEqual(["True", "0"], [script.line() for _ in range(2)])
            script.ended()


MULTIPROCESSING = """
import multiprocessing, sys
import dibs

keys = dibs.connect()

def once(_):
    return keys.once(sys.argv[2], lambda: 1)

if __name__ == "__main__":
    keys.held("used before the fork")
    with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:
        results = pool.map(once, range(3))
    print(len(results), "results,", len(set(results)), "value")
"""


if __name__ == "__main__":
    unittest.main()
