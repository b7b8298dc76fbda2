import unittest

import support
from interrupt import Interrupts


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


if __name__ == "__main__":
    unittest.main()
