"""What the tests share: real servers, a line that can be cut, and processes.

DIBS_PROGRAM is the path of the program dibs.
"""

import atexit
import collections
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import urllib.parse

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, FOLDER)

import dibs  # noqa: E402

LIMIT = 60  # how long anything may take, in seconds


def folder():
    """Make a folder that is removed at the end of this process."""
    made = tempfile.mkdtemp(prefix="dibs")
    pid = os.getpid()
    atexit.register(lambda: os.getpid() == pid and shutil.rmtree(made, ignore_errors=True))
    return made


def wait(what, condition):
    """Wait until the condition is true, and return what it returned."""
    ends = time.monotonic() + LIMIT
    while not (found := condition()):
        if time.monotonic() > ends:
            raise AssertionError(f"after {LIMIT} s still not: {what() if callable(what) else what}")
        time.sleep(0.005)
    return found


def wait_renewed(lease):
    last = [lease.check().left]

    def renewed():
        left = lease.check().left
        before, last[0] = last[0], left
        return left > before
    wait("the lease is renewed", renewed)


def once(_, error):
    """Stand for Tries.next: each call is sent once."""
    raise error


def thread(work):
    """Run work in a thread. Its join returns the result, or raises the error."""
    return _Thread(work)


class _Thread(threading.Thread):
    def __init__(self, work):
        super().__init__(daemon=True)
        self._work, self._result, self._error = work, None, None
        self.start()

    def run(self):
        try:
            self._result = self._work()
        except BaseException as e:
            self._error = e

    def join(self, timeout=LIMIT):
        super().join(timeout)
        if self.is_alive():
            raise AssertionError(f"after {timeout} s the thread has not ended")
        if self._error is not None:
            raise self._error
        return self._result


class Server:
    """A `dibs serve` on a SQLite file."""

    def __init__(self, *flags, listen=None, store=None):
        made = folder()
        self._listen = listen or f"unix:{made}/serve.sock"
        self.store = store or f"sqlite:{made}/dibs.db"
        self._flags, self._log = flags, f"{made}/log"
        self.start()

    def start(self, listen=None):
        """Start the server again, at the address it had if that is given."""
        program = os.environ.get("DIBS_PROGRAM") or sys.exit("DIBS_PROGRAM is not set: the path of the program dibs")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen([program, "serve", "--store", self.store, "--listen", listen or self._listen, *self._flags],
                                             stdout=log, stderr=log)
        atexit.register(self.stop)
        self._pid = os.getpid()

        def listens():
            with open(self._log) as log:
                text = log.read()
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended: {text}")
            return re.search(r"listening on (\S+?),", text)
        self.url = wait("the server listens", listens)[1]

    @property
    def host(self):
        return self.url.removeprefix("http://")

    @property
    def path(self):
        return self.url.partition("unix:")[2]

    def kill(self):
        self._process.kill()
        self._process.wait()

    def stop(self):
        if os.getpid() == self._pid and self._process.poll() is None:
            self.kill()

    def ask(self, request, body=b""):
        """Make a request of an operator, and return the body of the answer."""
        if "unix:" in self.url:
            to = socket.socket(socket.AF_UNIX)
            to.connect(self.path)
        else:
            host, port = self.host.split(":")
            to = socket.create_connection((host, int(port)))
        with to:
            to.sendall(f"{request} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                       .encode() + body)
            with to.makefile("rb") as answer:
                return answer.read().partition(b"\r\n\r\n")[2]

    def entry(self, key):
        """Return what the server lists of a key, or None."""
        text = self.ask(f"GET /v1/keys?places=true&key={urllib.parse.quote(key, safe='')}")
        return json.loads(text) if text else None

    def waiters(self, key):
        return (self.entry(key) or {}).get("waiters", 0)

    def free(self, key):
        found = self.entry(key) or {}
        return not found.get("runs") and not found.get("places")

    def take(self, lease):
        """End a lease as an operator would."""
        answer = self.ask("POST /v1/keys/release", json.dumps({"key": lease.key, "id": lease.id}).encode())
        assert b'"done":1' in answer, answer


def http(status, kind, body):
    """Return a response."""
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), kind.encode(), len(body), body.encode())


def problem(status, name):
    """Return a problem of dibs serve."""
    return http(status, "application/problem+json", json.dumps({"type": f"https://example.org/serve.md#{name}", "title": name}))


def element(kind):
    """Return the answer to a call with one element that has an error."""
    return http("200 OK", "application/json", json.dumps({"answers": [{"error": {"type": kind, "detail": kind}}]}))


class Trickle:
    """A server that answers each call with a beginning, and then with a byte now and then, without an end."""

    def __init__(self, beginning):
        self._beginning = beginning
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client):
        with client, contextlib.suppress(OSError):
            client.recv(1 << 16)
            client.sendall(self._beginning)
            while True:
                client.sendall(b"x")
                time.sleep(0.05)


class Line:
    """Forwards to a server. It can lose and change answers, and hold calls back as a frozen server does."""

    def __init__(self, server, tcp=False):
        self._to = server.path
        if tcp:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        else:
            path = f"{folder()}/line.sock"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self._listener.listen(64)
            self.url = f"unix:{path}"
        self.frozen = None  # a verb: its calls are held back
        self._held = []
        self.calls = collections.Counter()  # by verb
        self.before = {}  # by verb: what is done before a call is forwarded
        self._cut, self._clients = {}, set()
        self.says = {}  # by verb: what it answers after those that are lost, and whether the server does the call before
        self.lost = threading.Semaphore(0)  # released for each answer that was lost
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, verb, times):
        """Lose the next answers to calls of the verb, after the server has done them."""
        self._cut[verb] = times

    def deliver(self):
        """Let the server do what was held back, and return its answers."""
        self.frozen, answers = None, []
        for request in self._held:
            with socket.socket(socket.AF_UNIX) as server:
                server.settimeout(LIMIT)
                server.connect(self._to)
                server.sendall(request)
                with server.makefile("rb") as answered:
                    answers.append(self._message(answered))
        return answers

    def close(self):
        """Refuse connections, and end those that there are."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends accept
        except OSError:
            pass
        self._listener.close()
        for client in list(self._clients):
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._to)
            with client.makefile("rb") as asked, server.makefile("rb") as answered:
                try:
                    while (request := self._message(asked)) is not None:
                        verb = re.search(rb"/v1/(\w+)", request)[1].decode()
                        self.calls[verb] += 1
                        if verb == self.frozen:
                            self._held.append(request)
                            asked.read(1)  # until its client gives up
                            return
                        self.before.get(verb, lambda: None)()
                        said, done = self.says.get(verb, (None, True)) if not self._cut.get(verb) else (None, True)
                        if not done:
                            client.sendall(said)
                            continue
                        server.sendall(request)
                        answer = said or self._message(answered)
                        if answer is None:
                            return
                        if said:
                            self._message(answered)
                        if self._cut.get(verb, 0) > 0:
                            self._cut[verb] -= 1
                            self.lost.release()
                            return
                        client.sendall(answer)
                except OSError:
                    return

    @staticmethod
    def _message(lines):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = lines.readline()
            if not line:
                return None
            head += line
        if length := re.search(rb"content-length: (\d+)", head, re.I):
            return head + lines.read(int(length[1]))
        while not head.endswith(b"\r\n0\r\n\r\n"):  # chunked
            head += lines.readline()
        return head


class Script:
    """Python in a process of its own, with the server's URL."""

    def __init__(self, url, text, **env):
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", "import os, signal, sys, threading, time, dibs\n" + textwrap.dedent(text)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": FOLDER, "DIBS_SERVER": url, **env}, start_new_session=True)
        self.pid = self._process.pid

    def line(self):
        """Read a line of its output."""
        return thread(lambda: self._process.stdout.readline().decode().rstrip("\n")).join()

    def output(self):
        return self._process.communicate(timeout=LIMIT)[0].decode()

    def tell(self):
        """Write a line to its input."""
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def strike(self, number, pid=None):
        os.kill(pid or self.pid, number)

    def ended(self):
        return self._process.wait(LIMIT)

    def close(self):
        """Kill it, with all that it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Case(unittest.TestCase):
    """A test against a server that all tests of the process share."""

    _server = None

    def setUp(self):
        if Case._server is None:
            Case._server = Server()
        self.server = Case._server
        self.keys = self.connect()
        self.key = f"{self.id()} {secrets.token_hex(4)}"

    def connect(self, url=None, **options):
        """Return a client that is closed at the end of the test."""
        keys = dibs.connect(url or self.server.url, **options)
        self.addCleanup(keys.close)
        return keys

    def serve(self, *flags, **options):
        """Return a server that is stopped at the end of the test."""
        server = Server(*flags, **options)
        self.addCleanup(server.stop)
        return server

    def script(self, text, url=None, **env):
        script = Script(url or self.server.url, text, **env)
        self.addCleanup(script.close)
        return script

    def assertFree(self, key=None, server=None):
        """Require that nothing is left of the key.

        What is undone in the background may take a moment, but no lease runs out in that time.
        """
        key, server = key or self.key, server or self.server
        wait(lambda: f"{key} is free, and not {server.entry(key)}", lambda: server.free(key))

    def refused(self, kind, key=None, keys=None, **options):
        """Require that a lock is refused, and return the error."""
        with self.assertRaises(kind) as caught:
            with (keys or self.keys).lock(key or self.key, **options):
                self.fail("it is locked")
        return caught.exception
