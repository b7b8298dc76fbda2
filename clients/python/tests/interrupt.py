"""Strikes a call, at each point at which Python looks for signals, with what a signal handler does."""

import dis
import os
import sys

import support

import dibs


def interrupt():
    raise KeyboardInterrupt


class Strike:
    """Calls a signal handler at the n-th point: where a function begins, after each call, and where a
    loop begins again. everywhere includes the functions of the standard library.
    """

    def __init__(self, n, everywhere=False, handler=interrupt):
        self._left, self._everywhere, self._handler, self._last = n, everywhere, handler, {}
        self.struck = None  # where

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _trace(self, frame, event, _):
        code = frame.f_code
        if code.co_filename == __file__ or (not code.co_filename.startswith(os.path.dirname(dibs.__file__)) and not self._everywhere):
            return None
        if event == "call":
            above = frame
            while above is not None:
                if above.f_code.co_name in ("__del__", "_remove", "_commit_removals"):
                    return None  # Python ignores what a finalizer raises
                above = above.f_back
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._point(frame)
        elif event == "opcode":
            last, self._last[frame] = self._last.get(frame, ""), dis.opname[code.co_code[frame.f_lasti]]
            if last.startswith(("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")):
                self._point(frame)
        elif event == "return":
            self._last.pop(frame, None)
        return self._trace

    def _point(self, frame):
        self._left -= 1
        if self._left < 0:
            sys.settrace(None)
            self._last.clear()
            self.struck = f"{frame.f_code.co_name}, line {frame.f_lineno}"
            self._handler()


class Interrupts:
    """What is struck, for a Case."""

    def lock(self):
        with self.keys.lock(self.key, ttl=600) as lease:
            lease.check()

    def once(self):
        self.keys.once(self.key, lambda lease: lease.save(b"x"), pass_lease=True, ttl=600, max_age=0)

    def reserve(self):
        self.ticket = self.keys.reserve(self.key, ttl=600)

    def redeem(self):
        with self.keys.redeem(self.ticket, ttl=600):
            pass

    def strike_each(self, work, everywhere=False):
        """Strike at each point in turn until none is left, and require that nothing keeps the key. It
        returns how many points there are.
        """
        self.keys.held(self.key)  # the threads run
        n = 0
        while True:
            self.ticket = self.keys.reserve(self.key, ttl=600) if work == "redeem" else None
            with Strike(n, everywhere) as strike:
                getattr(self, work)()
            try:
                if self.ticket:
                    self.keys.cancel(self.ticket)
            except dibs.Lost:
                pass
            if strike.struck is None:
                return n
            try:
                self.keys.acquire(self.key, wait=support.LIMIT).release()
            except dibs.Held as e:
                self.fail(f"{work} was struck at {strike.struck}: {e}")
            process = self.keys._process
            self.assertEqual(({}, False, False), (process.renewer._attempts, process.claims._alone, process.ends._alone), strike.struck)
            n += 1
