import contextlib
import hashlib
import secrets
import socket
import subprocess
import threading
import unittest
import urllib.parse
from unittest import mock

import support
from support import Case, Line, wait

import dibs


class LineTest(Case):
    """Servers that go away, and answers that are lost."""

    def setUp(self):
        super().setUp()
        self.line = Line(self.server)
        self.addCleanup(self.line.close)
        self.over = self.connect(self.line.url)

    def test_no_server(self):
        for url in "unix:/nowhere/dibs.sock", "http://127.0.0.1:1":
            error = self.refused(dibs.Unavailable, keys=dibs.connect(url), wait=0)
            self.assertIn("; is dibs serve running there?", str(error))

    def test_a_claim_whose_answer_is_lost_is_asked_again(self):
        self.line.cut("claim", 1)
        with self.over.lock(self.key, ttl=600) as lease:
            self.assertEqual(1, lease.attempt)
        self.assertTrue(self.line.lost.acquire(blocking=False))
        self.assertFree()

    def test_a_claim_whose_answer_never_came_is_undone(self):
        self.line.cut("claim", 1000)
        self.refused(dibs.Unavailable, keys=self.over, ttl=600, wait=0)
        self.assertFree()

    def test_a_claim_whose_answer_was_lost_and_that_is_refused_then_is_undone(self):
        self.line.cut("claim", 1)
        self.line.says["claim"] = support.problem("401 Unauthorized", "unauthorized"), False
        self.refused(dibs.Unauthorized, keys=self.over, ttl=600, wait=0)
        self.assertFree()

    def test_a_claim_that_another_program_answers_is_undone(self):
        self.line.says["claim"] = support.http("404 Not Found", "text/html", "<p>"), True
        self.refused(dibs.Refused, keys=self.over, ttl=600, wait=0)
        self.assertFree()

    def test_a_place_whose_answer_never_came_is_undone(self):
        self.line.cut("claim", 1000)
        self.assertRaises(dibs.Unavailable, self.over.reserve, self.key)
        self.assertFree()

    def test_a_release_whose_answer_is_lost_is_no_loss(self):
        self.line.cut("settle", 1)
        with self.over.lock(self.key, ttl=600):
            pass
        self.assertFree()

    def test_a_result_whose_answer_is_lost_is_stored_once(self):
        runs = []
        self.line.cut("settle", 2)
        self.assertEqual(None, self.over.once(self.key, lambda: runs.append(1)))
        self.assertEqual(None, self.keys.once(self.key, lambda: runs.append(1)))
        self.assertEqual([1], runs)

    def test_a_server_is_killed_and_started_again_under_a_lease(self):
        server = self.serve()
        keys = self.connect(server.url)
        with keys.lock(self.key, ttl=600) as lease:
            fence = lease.fence
            server.kill()
            self.refused(dibs.Unavailable, f"{self.key}/2", keys=keys, wait=0)
            server.start()
            lease.save(b"x")
            self.assertEqual(fence, lease.fence)
        self.assertFalse(keys.held(self.key))

    def test_one_of_two_servers_is_killed(self):
        a = self.serve(listen="127.0.0.1:0")
        b = self.serve(listen="127.0.0.1:0", store=a.store)
        keys = self.connect(f"{a.url},{b.host}")

        def after():
            with keys.lock(self.key, ttl=600):
                return "after"
        with keys.lock(self.key, ttl=600) as lease:
            waiter = support.thread(after)
            wait("it waits", lambda: b.waiters(self.key) == 1)
            a.kill()
            lease.check()
        self.assertEqual("after", waiter.join())

    def test_a_long_wait_that_breaks_is_asked_again(self):
        server, now, moved = self.serve(), dibs.clock.now, [0]
        keys, other = self.connect(server.url), self.connect(server.url)
        with mock.patch.object(dibs.clock, "now", lambda: now() + moved[0]), mock.patch.object(dibs.claim, "PATIENCE", support.LIMIT):
            lease = keys.acquire(self.key, ttl=6000)
            waiter = support.thread(lambda: other.acquire(self.key))
            wait("it waits", lambda: other._here().servers.polls)
            moved[0] = 2 * support.LIMIT  # since it last heard of the server
            server.kill()
            server.start()
            wait("it waits again", lambda: server.waiters(self.key) == 1)
            lease.release()
            waiter.join().release()

    # A timeout bounds the call, and not a pause in it.

    TRICKLES = {
        "status": b"HTTP", "header": b"HTTP/1.1 200 OK\r\nX: ", "continue": b"HTTP/1.1 100 Continue\r\nX: ",
        "length": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 65000\r\n\r\n",
        "end": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n",
        "chunk": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
    }

    def trickle(self, beginning):
        server = support.Trickle(beginning)
        self.addCleanup(server.close)
        return server

    def test_a_server_that_sends_a_byte_now_and_then_has_its_time(self):
        well = self.serve(listen="127.0.0.1:0")

        def ask(name, beginning):
            slow = self.trickle(beginning)
            alone = dibs.connect(f"http://{slow.host}", timeout=0.3)  # close would wait for the undo
            self.refused(dibs.Unavailable, keys=alone, wait=0)
            keys = self.connect(f"http://{slow.host},{well.host}", timeout=4)
            lease = keys.acquire(f"{self.key} {name}", ttl=12)
            keys._here().servers._current = 0  # the renewal asks the slow one, too
            support.wait_renewed(lease)
            lease.release()
        for asked in [support.thread(lambda each=each: ask(*each)) for each in self.TRICKLES.items()]:
            asked.join()

    def test_a_name_with_many_addresses_has_its_time(self):
        """None answers: the queue of a listener that accepts nothing is full."""
        with socket.socket() as full, contextlib.ExitStack() as stack:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(8):
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname())]
            with mock.patch.object(socket, "getaddrinfo", lambda *_: found * 400):
                keys = dibs.connect("http://many.example", timeout=1)
                support.thread(lambda: self.refused(dibs.Unavailable, keys=keys, wait=0)).join()
            host, port = self.serve(listen="127.0.0.1:0").host.split(":")
            with mock.patch.object(socket, "getaddrinfo", lambda *_: found + [(*found[0][:4], (host, int(port)))]):
                with self.connect("http://localhost", timeout=4).lock(self.key):
                    pass

    def test_a_resolver_that_does_not_answer_has_its_time(self):
        look, asked, stop = socket.getaddrinfo, threading.Semaphore(0), threading.Event()
        self.addCleanup(stop.set)

        def resolve(host, port, *args):
            if host != "slow.example":
                return look(host, port, *args)
            if len(args) == 4:
                raise socket.gaierror  # it is not a number
            asked.release()
            stop.wait()
            return []
        well = self.serve(listen="127.0.0.1:0")
        with mock.patch.object(socket, "getaddrinfo", resolve):
            keys = dibs.connect("http://slow.example", timeout=0.3)
            support.thread(lambda: self.refused(dibs.Unavailable, keys=keys, wait=0)).join()
            self.assertTrue(asked.acquire(blocking=False))
            keys = self.connect(f"http://slow.example,{well.host}", timeout=4)
            support.thread(lambda: keys.acquire(self.key)).join().release()

    def test_a_name_of_a_resolver(self):
        host = self.serve(listen="127.0.0.1:0").host
        with self.connect(f"http://{host.replace('127.0.0.1', 'localhost')}").lock(self.key):
            pass
        self.refused(dibs.Unavailable, keys=dibs.connect("http://nowhere.invalid"), wait=0)

    def test_a_timeout_of_the_caller_late_in_a_wait_is_the_caller_s(self):
        """It comes after the timeout of a call, and before the end of the wait that the call asked for."""
        with self.keys.lock(self.key, ttl=600):
            script = self.script(f"""
                def ring(*_): raise TimeoutError("mine")
                signal.signal(signal.SIGALRM, ring)
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                try:
                    with dibs.connect(timeout=0.1).lock({self.key!r}, ttl=600): pass
                except TimeoutError as e:
                    print(e)
            """)
            self.assertEqual("mine", script.line())

    def test_a_call_that_waits_asks_one_server(self):
        """Its caller asks the next one, with what is left of the time."""
        a = self.serve(listen="127.0.0.1:0")
        b = self.serve(listen="127.0.0.1:0", store=a.store)
        servers = self.connect(f"{a.url},{b.host}")._here().servers
        a.kill()
        attempt = self.keys._attempt(self.key)
        body = [{**attempt.named(), **attempt.claim("queue")}]
        self.assertRaises(dibs.Unavailable, servers.call, "claim", body, wait=20.0)
        answer = servers.call("claim", body, wait=20.0)[0]
        self.assertEqual(("granted", False), (answer.element["state"], answer.again))

    def test_a_refused_call_forgets_no_place(self):
        """A claim that was granted without an answer, and is then refused, is undone all the same."""
        server = self.serve("--max-body", "2048")
        attempt = self.keys._attempt(self.key, ttl=600)
        process = self.connect(server.url)._here()
        process.run(dibs.claim.ask(attempt, "queue"))
        self.assertTrue(attempt.open)
        attempt.owner = {"label": "x" * 4096}
        self.assertRaises(dibs.Refused, process.run, dibs.claim.ask(attempt, "queue"))
        self.assertTrue(attempt.open)
        process.give_up(attempt)
        self.assertFree(server=server)

    def test_credentials(self):
        folder = support.folder()
        use, look = secrets.token_hex(8), "p+a/s%s w"
        with open(f"{folder}/tokens", "w") as tokens:
            for name, secret, roles in (("app", use, "use"), ("ops", look, "look")):
                print(name, hashlib.sha256(secret.encode()).hexdigest(), "shop", roles, file=tokens)
        server = self.serve("--tokens", f"{folder}/tokens", listen="127.0.0.1:0")

        def using(secret, **options):
            return self.connect(f"http://:{urllib.parse.quote(secret, safe='')}@{server.host}", **options)
        with using(use).lock(self.key):
            pass
        self.refused(dibs.Unauthorized, keys=self.connect(server.url))
        self.assertNotIn("another", str(self.refused(dibs.Unauthorized, keys=using("another"))))
        self.refused(dibs.Forbidden, keys=using(look))
        self.refused(dibs.Forbidden, keys=using(use, namespace="elsewhere"))
        self.assertNotIn(use, repr(using(use)))

    def test_tls(self):
        folder = support.folder()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem",
                        "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
        server = self.serve("--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem", listen="127.0.0.1:0")
        port = server.url.rpartition(":")[2]
        self.assertIn("certificate", str(self.refused(dibs.Refused, keys=self.connect(f"https://localhost:{port}"))))
        for host, said in (("localhost", "locked"), ("127.0.0.1", "refused")):
            script = self.script(f"""
                try:
                    with dibs.connect().lock({self.key!r}): print("locked")
                except dibs.Refused:
                    print("refused")
            """, f"https://{host}:{port}", SSL_CERT_FILE=f"{folder}/cert.pem")
            self.assertEqual(said, script.line())
            script.ended()

    def test_what_is_no_dibs_serve_is_refused(self):
        for text in (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi",
                     b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
                     b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"answers\":[]}"):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                def answer(text=text):
                    while True:
                        try:
                            client, _ = listener.accept()
                        except OSError:
                            return
                        with client:
                            client.recv(1 << 16)
                            client.sendall(text)
                threading.Thread(target=answer, daemon=True).start()
                keys = dibs.connect(f"http://127.0.0.1:{listener.getsockname()[1]}")  # close would wait for the undo
                self.assertIn("not dibs serve", str(self.refused(dibs.Refused, keys=keys)))

    def test_a_bound_of_the_server_is_overloaded(self):
        server = self.serve("--max-waiters", "1")
        keys, other = self.connect(server.url), self.connect(server.url)

        def overloaded():
            try:
                with other.lock(self.key, wait=0.05):
                    self.fail("it is locked")
            except dibs.Held:
                return False  # the waiter's call has not begun to wait
            except dibs.Overloaded:
                return True

        def done():
            with keys.lock(self.key):
                return "done"
        with keys.lock(self.key):
            waiter = support.thread(done)
            wait("the bound is reached", overloaded)
        self.assertEqual("done", waiter.join())

    def test_close_ends_waits(self):
        with self.connect().lock(self.key, ttl=600):
            waiter = support.thread(lambda: self.refused(dibs.Closed))
            wait("it waits", lambda: self.server.waiters(self.key) == 1)
            self.keys.close()
            self.assertEqual(0, self.server.waiters(self.key))
            waiter.join()

    def test_urls(self):
        for url, text in (("unix:/a b", "unix:/a b"), ("http+unix:/a", "unix:/a"), ("http+unix:///a", "unix:/a"), ("http://h:1", "http://h:1"),
                          ("https://:t@a,b:8443/", "https://a:443,https://b:8443"), ("http://[::1]:7", "http://[::1]:7")):
            self.assertEqual(f"<dibs.Client {text}>", repr(dibs.connect(url)))
        for url in ("", "unix:a", "unix:////a", "redis://h", "h:7331", "https://user:t@h", "https://:@h", "https://:%zz@h", "https://:%0a@h",
                    "http://h/path", "http://h?a=1", "http://", "http://a,,b", "http://h:99999", "http://:s3cret@h/x"):
            with self.subTest(url), self.assertRaises(ValueError) as caught:
                dibs.connect(url)
            self.assertNotIn("s3cret", str(caught.exception))
        self.assertRaises(TypeError, dibs.connect, 42)

    def test_the_server_of_the_environment(self):
        self.assertEqual("<dibs.Client unix:/of/it>", self.script("print(repr(dibs.connect()))", "unix:/of/it").line())
        self.assertEqual("<dibs.Client unix:/run/dibs/dibs.sock>", self.script("print(repr(dibs.connect()))", DIBS_SERVER="").line())

    def test_a_closed_client(self):
        with dibs.connect(self.server.url) as keys:
            with keys.lock(self.key):
                pass
        self.refused(dibs.Closed, keys=keys)
        self.assertTrue(keys.flush())
        keys.close()


if __name__ == "__main__":
    unittest.main()
