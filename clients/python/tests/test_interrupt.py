import unittest

import support
import dibs
from interrupt import Interrupts, Strike


class InterruptTest(Interrupts, support.Case):
    """Ctrl-C, and signal handlers that raise, at each point of this library."""

    def test_lock(self):
        self.assertGreater(self.strike_each("lock"), 100)

    def test_redeem(self):
        self.strike_each("redeem")

    def test_once(self):
        self.strike_each("once")

    def test_reserve(self):
        self.strike_each("reserve")

    def test_the_first_call(self):
        """A client whose threads were just starting can be used, and leaves no threads that nobody ends."""
        before, n, struck = set(dibs.process.processes), 0, True
        while struck:
            keys = self.connect()
            with Strike(n) as strike:
                keys.held(self.key)
            self.assertFalse(keys.held(self.key), strike.struck)
            keys.close()
            n, struck = n + 1, strike.struck
        support.wait("the threads have ended", lambda: not dibs.process.processes - before)
        self.assertGreater(n, 100)

    # Handlers that return, and that use the lease or the client that the call uses.

    def handle_each(self, begin, work, handler):
        """Call the handler at each point of the work in turn, and require that the key is free then."""
        n = 0
        while True:
            with_lease = begin()
            strike = Strike(n, handler=lambda: handler(with_lease))

            def struck(strike=strike, with_lease=with_lease):
                with strike:
                    work(with_lease)
            support.thread(struck).join()
            if strike.struck is None:
                return n
            self.assertTrue(self.server.free(self.key), strike.struck)
            n += 1

    def test_a_handler_that_releases(self):
        def enter():
            block = self.keys.lock(self.key, ttl=600)
            block.__enter__()
            return block
        self.keys.held(self.key)
        for work in (lambda lease: lease.release(), lambda lease: lease.undo()):
            self.assertGreater(self.handle_each(lambda: self.keys.acquire(self.key, ttl=600), work, lambda lease: lease.release()), 20)
        self.handle_each(enter, lambda block: block.__exit__(None, None, None), lambda block: block._lease.release())

    def test_a_handler_that_releases_while_a_record_is_written(self):
        """The handler's release does nothing after the record is written. Before it, the record is lost."""
        def complete(lease):
            try:
                lease.complete(b"record", keep=0.001)
            except dibs.Lost:
                lost.append(1)
        lost = []
        count = self.handle_each(lambda: self.keys.acquire(self.key, ttl=600), complete, lambda lease: lease.release())
        self.assertTrue(0 < len(lost) < count)

    def test_a_handler_that_uses_the_client(self):
        def connect():
            self.keys.close()
            self.keys = self.connect()
            return self.keys
        before = set(dibs.process.processes)
        for work in (lambda keys: keys.held(self.key), lambda keys: keys.flush(), lambda keys: keys.close()):
            self.handle_each(connect, work, lambda keys: keys._closed or keys.acquire(self.key).release())
            self.handle_each(connect, work, lambda keys: keys.flush())
        self.keys.close()
        support.wait("the threads have ended", lambda: not dibs.process.processes - before)


if __name__ == "__main__":
    unittest.main()
