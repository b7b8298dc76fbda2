"""The table of cases of the side that sends: clients/testdata/sending.json."""

import asyncio
import contextlib
import email.utils
import http.server
import io
import json
import os
import re
import socket
import subprocess
import threading
import time
import unittest
import urllib.request
from unittest import mock

import support

import dibs.send

with open(os.path.join(support.FOLDER, "..", "testdata", "sending.json")) as table:
    CASES = json.load(table)["cases"]


class Scripted:
    """A server that gives the answers of a case, and notes what it got."""

    def __init__(self, answers):
        self._answers, self.got = answers, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d/charges" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as lines, contextlib.suppress(OSError):
                self._serve(client, lines)

    def _serve(self, client, lines):
        """Answer one request, and close."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = lines.readline()
            if not line:
                return
            head += line
        length = re.search(rb"content-length: *(\d+)", head, re.I)
        keys = re.findall(rb"^idempotency-key: *(.*?)\r$", head, re.I | re.M)
        self.got.append((head.split()[0].decode(), [key.decode() for key in keys], lines.read(int(length[1])) if length else b""))
        answer = self._answers[min(len(self.got), len(self._answers)) - 1]
        if answer.get("reset"):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return
        date = time.time() + answer.get("clock", 0)
        fields = [f"HTTP/1.1 {answer['status']} Status", "Content-Length: 4", "Connection: close", f"Date: {email.utils.formatdate(date, usegmt=True)}"]
        if "retry_after" in answer:
            fields.append(f"Retry-After: {answer['retry_after']}")
        if "retry_after_date" in answer:
            fields.append(f"Retry-After: {email.utils.formatdate(int(date) + answer['retry_after_date'], usegmt=True)}")
        if "location" in answer:
            fields.append(f"Location: {answer['location']}")
        if answer.get("replayed"):
            fields.append("Idempotent-Replayed: true")
        client.sendall("\r\n".join([*fields, "", ""]).encode() + (b"te" if answer.get("cut") else b"text"))


def by_urllib(url, method, headers, body, options):
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    answer = dibs.send.urlopen(request, **options)
    return answer.status, answer.body


def header_of(headers, options):
    key = options.pop("key", None)
    return headers if key is None else {**headers, "Idempotency-Key": dibs.send.field(key)}


def by_requests(url, method, headers, body, options):
    import requests
    headers = header_of(headers, options)
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", dibs.send.requests_adapter(**options))
        answer = session.request(method, url, headers=headers, data=body)
        return answer.status_code, answer.content


def by_httpx(url, method, headers, body, options):
    import httpx
    headers = header_of(headers, options)
    with httpx.Client(transport=dibs.send.httpx_transport(httpx.HTTPTransport(verify=False), **options), timeout=support.LIMIT) as client:
        answer = client.request(method, url, headers=headers, content=body)
        return answer.status_code, answer.content


def by_httpx_async(url, method, headers, body, options):
    import httpx
    headers = header_of(headers, options)

    async def main():
        async with httpx.AsyncClient(transport=dibs.send.httpx_transport(httpx.AsyncHTTPTransport(verify=False), **options), timeout=support.LIMIT) as client:
            answer = await client.request(method, url, headers=headers, content=body)
            return answer.status_code, answer.content
    return asyncio.run(main())


class SendTest(unittest.TestCase):
    def run_case(self, case, send):
        server = Scripted(case["answers"])
        self.addCleanup(server.close)
        moved, pauses = [0.0], []

        def pause(seconds):
            pauses.append(seconds)
            moved[0] += seconds

        async def pause_async(seconds):
            pause(seconds)
        now = time.monotonic
        options = {new: case[old] for old, new in (("tries", "max_tries"), ("deadline", "deadline"), ("key", "key")) if old in case}
        method = case.get("method", "POST")
        body = b"amount=700" if method != "GET" else None
        with mock.patch.object(dibs.send, "sleep", pause), mock.patch.object(dibs.send, "pause_async", pause_async), \
                mock.patch.object(dibs.send, "monotonic", lambda: now() + moved[0]):
            try:
                said = send(server.url, method, case.get("header", {}), body, options)
            except Exception as e:
                said = e
        if case.get("fails"):
            self.assertIsInstance(said, Exception)
        else:
            self.assertEqual((case["status"], b"text"), said)
        self.assertEqual(case["sent"], len(server.got))
        self.assertEqual(len(case.get("pauses", [])), len(pauses))
        for (least, most), pause in zip(case.get("pauses", []), pauses):
            self.assertTrue(least <= pause <= most, pauses)
        self.assertLessEqual(len({str(request) for request in server.got}), 1)
        for got, keys, sent in server.got:
            self.assertEqual((method, body or b""), (got, sent))
            if "field" in case:
                self.assertEqual([] if case["field"] is None else [case["field"]], keys)
            else:
                self.assertRegex(keys[0], r'\A"[!-~]{22,}"\Z')

    def run_table(self, send):
        for case in CASES:
            with self.subTest(case["name"]):
                self.run_case(case, send)

    def test_urllib(self):
        self.run_table(by_urllib)

    def test_requests(self):
        self.run_table(by_requests)

    def test_httpx(self):
        self.run_table(by_httpx)

    def test_httpx_async(self):
        self.run_table(by_httpx_async)

    def test_a_key_is_new_for_each_request(self):
        server = Scripted([{"status": 200}])
        self.addCleanup(server.close)
        for _ in range(2):
            dibs.send.urlopen(urllib.request.Request(server.url, data=b"x"))
        self.assertEqual(2, len({keys[0] for _, keys, _ in server.got}))

    def test_a_request_is_used_again(self):
        server = Scripted([{"status": 200}])
        self.addCleanup(server.close)
        request = urllib.request.Request(server.url, data=b"x")
        for key in ("a", "b", "b"):
            dibs.send.urlopen(request, key=key)
        self.assertEqual([['"a"'], ['"b"'], ['"b"']], [keys for _, keys, _ in server.got])

    def streams(self, way, answers):
        for stream in (iter([b"amount", b"=700"]), io.BytesIO(b"amount=700")):
            server = Scripted(answers)
            self.addCleanup(server.close)
            with mock.patch.object(dibs.send, "sleep", lambda seconds: None):
                self.assertEqual(200, way(server.url, "POST", {}, stream, {})[0])
            self.assertEqual([b"amount=700"] * 2, [body for _, _, body in server.got])

    def test_urllib_reads_a_stream_once_and_sends_it_again(self):
        self.streams(by_urllib, [{"reset": True}, {"status": 200}])

    def test_requests_reads_a_stream_once_and_sends_it_again(self):
        self.streams(by_requests, [{"reset": True}, {"status": 200}])
        self.streams(by_requests, [{"status": 307, "location": "/elsewhere"}, {"status": 200}])

    def test_httpx_reads_a_stream_once_and_sends_it_again(self):
        self.streams(by_httpx, [{"reset": True}, {"status": 200}])

    def test_the_guide(self):
        server = Scripted([{"reset": True}, {"status": 201}, {"status": 200}])
        self.addCleanup(server.close)
        with open(os.path.join(support.FOLDER, "..", "..", "docs", "guides", "retrying-clients.md")) as page:
            text = re.search(r"^```py\n(.*?)^```", page.read(), re.M | re.S)[1]
        script = support.Script("", text.replace("http://127.0.0.1:8080/charges", server.url))
        self.addCleanup(script.close)
        self.assertEqual("201 text\n200\n", script.output())
        self.assertEqual([['"order-17"']] * 3, [keys for _, keys, _ in server.got])

    def test_through_a_proxy_that_is_killed(self):
        """Each request runs once, whatever is killed in between."""
        runs, lock = [], threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    runs.append(body)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass
        origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(origin.server_close)
        threading.Thread(target=origin.serve_forever, daemon=True).start()
        self.addCleanup(origin.shutdown)
        folder = support.folder()

        def start(listen):
            log = open(f"{folder}/log", "wb")
            process = subprocess.Popen([os.environ["DIBS_PROGRAM"], "proxy", "--listen", listen, "--upstream", "http://127.0.0.1:%d" % origin.server_port,
                                        "--store", f"sqlite:{folder}/dibs.db", "--scope", "none", "--lease", "1s", "--on-crash", "at-most-once"], stdout=log, stderr=log)
            self.addCleanup(log.close)
            self.addCleanup(lambda: (process.kill(), process.wait()))

            def listens():
                with open(f"{folder}/log") as text:
                    said = text.read()
                self.assertIsNone(process.poll(), said)
                return re.search(r"listening on (\S+?)[, ]", said)
            return process, support.wait("the proxy listens", listens)[1].removeprefix("http://")
        process, host = start("127.0.0.1:0")
        answers = []

        def work():
            for i in range(20):
                request = urllib.request.Request(f"http://{host}/", data=f"order {i}".encode(), headers={"Content-Type": "text/plain"})
                answers.append(dibs.send.urlopen(request, key=f"order {i}", max_tries=100))
        worker = support.thread(work)
        for _ in range(2):
            before = len(answers)
            support.wait("it continues", lambda: len(answers) > before + 1 or not worker.is_alive())
            process.kill()
            process.wait()
            process, _ = start(host)
        worker.join()
        done = [answer.status for answer in answers]
        self.assertEqual(len(runs), len(set(runs)))
        self.assertEqual(20, len(done))
        self.assertLessEqual(set(done), {200, 409, 502})


if __name__ == "__main__":
    unittest.main()
