"""Calls the servers of a client, over connections that are kept."""

from __future__ import annotations

import contextlib
import json
import ssl
import weakref
from collections.abc import Callable
from typing import Any

from . import clock
from .address import Address, Server
from .errors import Error, Forbidden, Overloaded, Refused, Unauthorized, Unavailable, as_silent, copy_of
from .options import to_ms
from .step import Answer
from .wire import Response, Wire, foreign_timeout

IDLE = 30.0  # a connection that was not used for longer is not used again
FIELDS = {"claim": "claims", "renew": "renewals", "settle": "settlements"}  # of the body of a call
CallAll = Callable[[str, list[dict[str, Any]], float | None], list[Answer | Error]]  # see Servers.call_all
encode = json.JSONEncoder(separators=(",", ":")).encode


def body_of(verb: str, elements: list[dict[str, Any]], wait: float) -> str:
    """Return the body of a call, without its end: the server may be told how long its caller listens."""
    text = f'{{"{FIELDS[verb]}":{encode(elements)}'
    return f'{text},"wait_ms":{to_ms(wait)}' if wait > 0 else text


class Servers:
    """The servers, and the connections to them."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self.tls = ssl.create_default_context() if address.servers[0].tls else None
        self._idle: dict[Server, list[Wire]] = {server: [] for server in address.servers}
        self.wires: weakref.WeakSet[Wire] = weakref.WeakSet()  # all
        self.polls: set[Wire] = set()  # those of calls that wait
        self.peers: dict[Server, tuple[int, Any]] = {}  # the family and address of the last connection
        self.closing = False
        self._current = 0
        more = f"Authorization: {address.authorization.decode('latin-1')}\r\n" if address.authorization else ""
        self._more = f"Content-Type: application/json\r\nAccept-Encoding: identity\r\n{more}"

    def request(self, server: Server, method: str, path: str, body: str) -> bytes:
        data = body.encode()
        return f"{method} {path} HTTP/1.1\r\nHost: {server.name()}\r\n{self._more}Content-Length: {len(data)}\r\n\r\n".encode("latin-1") + data

    def claim_request(self, server: Server, verb: str, body: str, limit: float) -> bytes:
        """Return the request of a call. A server that was frozen must not carry a claim out later."""
        end = f',"timeout_ms":{max(to_ms(limit - clock.now()), 1)}}}' if verb == "claim" else "}"
        return self.request(server, "POST", f"/v1/{verb}", body + end)

    def current(self) -> tuple[int, Server]:
        """Return the server that is asked next, and its number for leave."""
        first = self._current
        return first, self._address.servers[first % len(self._address.servers)]

    def leave(self, first: int) -> None:
        """Ask the next server from now on, because this one is away."""
        if self._current == first:
            self._current = first + 1

    def call(self, verb: str, elements: list[dict[str, Any]], wait: float = 0.0, timeout: float | None = None) -> list[Answer]:
        """Make one call and return the answers. If a server is away it asks the next one, each once.

        wait is how long the server may take on purpose. Such a call asks one server only, because its
        caller asks again with less time to wait.
        """
        timeout = self._timeout if timeout is None else timeout
        ends = clock.now() + timeout
        away: Unavailable | None = None
        silent = False
        count = 1 if wait else len(self._address.servers)
        body = body_of(verb, elements, wait)
        for i in range(count):
            first, server = self.current()
            left = ends - clock.now()
            if left <= 0:
                break
            try:
                response, sent, again = self._ask(server, verb, body, wait, left / (count - i))
                silent = silent or again
                return [Answer(answer, sent, silent) for answer in self.read(server, verb, response, len(elements))]
            except Error as e:
                silent = e._unanswered = e._unanswered or silent
                if not isinstance(e, Unavailable):
                    raise
                away = e
                self.leave(first)
        raise away or Unavailable(f"dibs: {verb}: no server answered in time")

    def call_all(self, verb: str, elements: list[dict[str, Any]], timeout: float | None = None) -> list[Answer | Error]:
        """Make one call, and return what became of each element. If the server refuses the whole call
        because of one of them, each goes alone: nothing was done.
        """
        try:
            return [*self.call(verb, elements, timeout=timeout)]
        except Error as e:
            if len(elements) > 1 and isinstance(e, Refused) and not isinstance(e, (Unauthorized, Overloaded)) and not e._unanswered:
                return [self.call_all(verb, [element], timeout)[0] for element in elements]
            return [copy_of(e) for _ in elements]
        except Exception as e:  # a fault of this library must not end a thread that others wait for
            return [as_silent(Unavailable(f"dibs: {verb}: {e!r}")) for _ in elements]

    def get(self, path: str) -> Response:
        """Ask for a page of a server."""
        first, server = self.current()
        try:
            return self._ask(server, "", path, 0.0, self._timeout)[0]
        except Unavailable:
            self.leave(first)
            raise

    def _ask(self, server: Server, verb: str, body: str, wait: float, timeout: float) -> tuple[Response, float, bool]:
        """Send a request. A kept connection may have been closed by the server meanwhile, so then
        a new one is used; every call may be repeated. Without a verb, body is the path of a page.
        """
        ends = limit = clock.now() + timeout
        wire = self._checkout(server)
        again = sends = False
        while True:
            response = None
            try:
                if wait:
                    self.polls.add(wire)
                wire.connect(ends)
                if wait and self.closing:
                    raise Unavailable("dibs: the client is closed")
                limit = ends + wait
                request = self.claim_request(server, verb, body, limit) if verb else self.request(server, "GET", body, "")
                sends = True
                sent, response = wire.post(request, limit)
                return response, sent, again
            except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError) as e:
                if wire.used is None:
                    raise self.away(server, e, sends) from e
            except OSError as e:
                if foreign_timeout(e, limit):
                    raise
                raise self.away(server, e, sends) from e
            finally:
                self.polls.discard(wire)
                if response is not None and response.keep:
                    wire.used = clock.now()
                    self._idle[server].append(wire)
                else:
                    wire.close()
            wire, again = self.create(server), True

    @staticmethod
    def away(server: Server, error: Exception, sends: bool) -> Error:
        """Return the error of a server that cannot be asked."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return as_silent(Refused(f"dibs: {server}: {error}"), sends)
        cure = "; is dibs serve running there?" if isinstance(error, (FileNotFoundError, ConnectionRefusedError)) else ""
        return as_silent(Unavailable(f"dibs: {server}: {error or type(error).__name__}{cure}"), sends)

    def _checkout(self, server: Server) -> Wire:
        while True:
            try:
                wire = self._idle[server].pop()
            except IndexError:
                return self.create(server)
            if wire.used is not None and clock.now() - wire.used < IDLE and not wire.closed():
                return wire
            wire.close()

    def create(self, server: Server) -> Wire:
        wire = Wire(server, self.tls, self.peers)
        self.wires.add(wire)
        return wire

    def read(self, server: Server, verb: str, response: Response, size: int) -> list[dict[str, Any]]:
        """Read a response. Only dibs serve itself knows that nothing was done: what another program
        answers says nothing of a server behind it.
        """
        status = response.status
        body = None
        if response.kind in ("application/json", "application/problem+json"):
            with contextlib.suppress(ValueError):
                body = json.loads(response.body.decode())
        if status == 200:
            answers = body.get("answers") if isinstance(body, dict) else None
            if isinstance(answers, list) and len(answers) == size and all(isinstance(a, dict) for a in answers):
                return answers
            raise as_silent(Refused(f"dibs: what answers at {server} with something else is not dibs serve"))
        problem = body if isinstance(body, dict) and response.kind == "application/problem+json" else None
        text = f"{problem.get('title')} ({status}): {problem.get('detail')}" if problem else None
        if status >= 500:
            stopping = problem is not None and str(problem.get("type")).endswith("#stopping")
            raise as_silent(Unavailable(f"dibs: {verb}: {text or f'{server} answers with {status}'}"), not stopping)
        if text is None:
            raise as_silent(Refused(f"dibs: what answers at {server} with {status} is not dibs serve"))
        refused: dict[int, type[Refused]] = {401: Unauthorized, 403: Forbidden, 429: Overloaded}
        raise refused.get(status, Refused)(f"dibs: {verb}: {text}")

    def cut(self) -> None:
        """End the calls that wait."""
        self.closing = True
        for wire in list(self.polls):
            wire.cut()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for wires in self._idle.values():
            while wires:
                wires.pop().close()

    def abandon(self) -> None:
        """Close the sockets that this process has from the one that forked it."""
        for wire in list(self.wires):
            wire.abandon()
