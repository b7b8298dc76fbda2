"""Requests that change something, with a key, through `dibs proxy` or a server that honours Idempotency-Key.

A request is sent again when that is safe, with the same key, so that the server runs it once.
docs/guides/retrying-clients.md says what is sent again.

    dibs.send.urlopen(request, key="order-17")                          # urllib
    session.mount("https://shop.internal", dibs.send.requests_adapter())         # requests
    httpx.Client(transport=dibs.send.httpx_transport())                 # httpx, and AsyncClient

By default each request has a new random key. For requests and httpx, field("order-17") is the value of
the header Idempotency-Key of the caller's own key. Answers are whole: they are read before they are given.
"""

from __future__ import annotations

import asyncio
import copy
import email.utils
import http.client
import importlib
import random
import re
import secrets
import ssl
import time
import urllib.error
import urllib.request
from time import monotonic, sleep
from typing import Any, NamedTuple

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
BACKOFF, MAX_BACKOFF = 0.1, 30.0  # the pause after the first try, which doubles, and the longest, in seconds


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Any  # has get, for a name in any case
    body: bytes


def field(key: str) -> str:
    """Return the value of the header Idempotency-Key for a key: 1 to 255 printable ASCII characters."""
    if not isinstance(key, str) or not re.fullmatch("[ -~]{1,255}", key):
        raise ValueError("dibs: a key has 1 to 255 printable ASCII characters")
    return '"' + re.sub(r'(["\\])', r"\\\1", key) + '"'


class Tries:
    """How often a request is sent, and when it is sent again."""

    def __init__(self, method: str, headers: Any, key: str | None, max_tries: int, deadline: float | None) -> None:
        if max_tries < 1:
            raise ValueError(f"dibs: max_tries is {max_tries}; it must be at least 1")
        self._max_tries, self._tries = max_tries, 0
        self._ends = None if deadline is None else monotonic() + deadline
        names = {name.lower() for name in headers}
        self.field: str | None = None  # of the key to be set
        if method.upper() not in SAFE and not names & {"idempotency-key", "x-idempotency-key"}:
            self.field = field(secrets.token_hex(16) if key is None else key)

    def timeout(self, most: float | None) -> float | None:
        """Return how long the next try may take."""
        left = None if self._ends is None else max(self._ends - monotonic(), 0.001)
        return most if left is None else left if most is None else min(left, most)

    def pause(self, status: int, headers: Any) -> float | None:
        """Return how long to pause after an answer (0: none came) before the request is sent again, or None."""
        self._tries += 1
        backoff = pause = min(BACKOFF * 2 ** (self._tries - 1), MAX_BACKOFF) * random.uniform(0.5, 1.0)
        if status:
            after = retry_after(headers) if status in (409, 429, 503) and headers.get("Idempotent-Replayed") != "true" else None
            if after is None or after > MAX_BACKOFF:
                return None
            pause = max(backoff, after + random.uniform(0, backoff / 2))
        late = self._ends is not None and monotonic() + pause > self._ends
        return None if self._tries >= self._max_tries or late else pause


def retry_after(headers: Any) -> float | None:
    """Return the seconds that an answer asks for. A date counts by the server's clock."""
    text = (headers.get("Retry-After") or "").strip()
    if re.fullmatch("[0-9]{1,10}", text):
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None
    try:
        now = email.utils.parsedate_to_datetime(headers.get("Date") or "").timestamp()
    except (TypeError, ValueError):
        now = time.time()
    return max(date - now, 0.0)


def urlopen(request: urllib.request.Request | str, *, key: str | None = None, max_tries: int = 5, deadline: float | None = None,
            timeout: float | None = None, context: ssl.SSLContext | None = None) -> Answer:
    """Send a request of urllib, and return its answer, whatever its status. It raises OSError or HTTPException.

    max_tries is how often it is sent at most. deadline bounds all tries, and timeout one of them, in seconds
    (default: no limit). An answer that asks for a pause of more than 30 s is returned. A body that is a file
    or an iterator is read first. The request stays as it is, so each call with it has its own key.
    """
    request = urllib.request.Request(request) if isinstance(request, str) else copy.copy(request)  # a copy, because its key is set
    request.headers = dict(request.headers)
    request.data = whole(request.data)
    tries = Tries(request.get_method(), [name for name, _ in request.header_items()], key, max_tries, deadline)
    if tries.field is not None:
        request.add_header("Idempotency-Key", tries.field)
    while True:
        limit = tries.timeout(timeout)
        try:
            answer = ask(request, {"context": context, **({} if limit is None else {"timeout": limit})})
            pause = tries.pause(answer.status, answer.headers)
            if pause is None:
                return answer
        except (OSError, http.client.HTTPException) as e:
            pause = None if is_untrusted(e) else tries.pause(0, {})
            if pause is None:
                raise
        sleep(pause)


def whole(body: Any) -> Any:
    """Return a body that can be sent again: a file or an iterator is read."""
    if body is None or isinstance(body, (str, bytes, bytearray, memoryview)):
        return body
    return body.read() if hasattr(body, "read") else b"".join(body)


def ask(request: urllib.request.Request, options: Any) -> Answer:
    try:
        with urllib.request.urlopen(request, **options) as response:
            return Answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as e:
        with e:
            return Answer(e.code, e.headers, e.read())


def is_untrusted(error: BaseException | None) -> bool:
    """Report whether a certificate is the cause. Sending again does not make it valid."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
    return False


def requests_adapter(*, max_tries: int = 5, deadline: float | None = None, **options: Any) -> Any:
    """Return an adapter for Session.mount of requests. The other options are those of HTTPAdapter."""
    adapters: Any = importlib.import_module("requests.adapters")
    errors: Any = importlib.import_module("requests.exceptions")

    class Adapter(adapters.HTTPAdapter):  # type: ignore[misc]
        def send(self, request: Any, *args: Any, **named: Any) -> Any:
            tries = Tries(request.method, request.headers, None, max_tries, deadline)
            if tries.field is not None:
                request.headers["Idempotency-Key"] = tries.field
            if request.body is not None and not isinstance(request.body, (str, bytes)):
                request.body, request._body_position = whole(request.body), None  # a redirect rewinds nothing
                request.headers.pop("Transfer-Encoding", None)
                request.prepare_content_length(request.body)
            while True:
                try:
                    response = super().send(request, *args, **named)
                    response.content  # reads it
                    length = response.headers.get("Content-Length")
                    if length is not None and request.method != "HEAD" and response.raw.tell() < int(length):
                        raise errors.ConnectionError("the answer breaks off")
                    pause = tries.pause(response.status_code, response.headers)
                    if pause is None:
                        return response
                except (errors.RequestException, OSError) as e:
                    pause = None if is_untrusted(e) else tries.pause(0, {})
                    if pause is None:
                        raise
                sleep(pause)
    return Adapter(**options)


def httpx_transport(transport: Any = None, *, max_tries: int = 5, deadline: float | None = None) -> Any:
    """Return a transport of httpx for Client and AsyncClient. transport sends a try (default: httpx's own)."""
    httpx: Any = importlib.import_module("httpx")

    class Transport(httpx.BaseTransport, httpx.AsyncBaseTransport):  # type: ignore[misc]
        _made = transport

        def _inner(self, kind: Any) -> Any:
            self._made = self._made or kind()
            return self._made

        def _tries(self, request: Any) -> Tries:
            tries = Tries(request.method, request.headers, None, max_tries, deadline)
            if tries.field is not None:
                request.headers["Idempotency-Key"] = tries.field
            if request.headers.pop("Transfer-Encoding", None) is not None:  # it was a stream, and is read
                request.headers["Content-Length"] = str(len(request.content))
            return tries

        def handle_request(self, request: Any) -> Any:
            request.read()
            tries = self._tries(request)
            while True:
                try:
                    response = self._inner(httpx.HTTPTransport).handle_request(request)
                    response.read()
                    pause = tries.pause(response.status_code, response.headers)
                    if pause is None:
                        return response
                except httpx.TransportError as e:
                    pause = None if is_untrusted(e) else tries.pause(0, {})
                    if pause is None:
                        raise
                sleep(pause)

        async def handle_async_request(self, request: Any) -> Any:
            await request.aread()
            tries = self._tries(request)
            while True:
                try:
                    response = await self._inner(httpx.AsyncHTTPTransport).handle_async_request(request)
                    await response.aread()
                    pause = tries.pause(response.status_code, response.headers)
                    if pause is None:
                        return response
                except httpx.TransportError as e:
                    pause = None if is_untrusted(e) else tries.pause(0, {})
                    if pause is None:
                        raise
                await pause_async(pause)

        def close(self) -> None:
            if self._made is not None:
                self._made.close()

        async def aclose(self) -> None:
            if self._made is not None:
                await self._made.aclose()
    return Transport()


async def pause_async(seconds: float) -> None:
    await asyncio.sleep(seconds)
