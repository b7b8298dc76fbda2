"""What a client has in one process, the calls that it makes, forks, and the end of the program."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import ssl
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import clock
from .address import Address, Server
from .errors import Error, Forbidden, Overloaded, Refused, Unauthorized, Unavailable, as_silent
from .options import to_ms
from .renewer import Renewer
from .undo import Undoer
from .wire import Wire, foreign_timeout

if TYPE_CHECKING:
    from .attempt import Attempt

IDLE = 30.0  # a connection that was not used for longer is not used again


class Process:
    """What a client has in one process: connections and two threads."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.pid = os.getpid()
        self._address, self._timeout = address, timeout
        self._tls = ssl.create_default_context() if address.servers[0].tls else None
        self._idle: dict[Server, list[Wire]] = {server: [] for server in address.servers}
        self._all: weakref.WeakSet[Wire] = weakref.WeakSet()
        self._polls: set[Wire] = set()  # the connections of calls that wait
        self.waits: set[Attempt] = set()  # of callers that wait for a key
        self.closing = False
        self._current = 0
        self._headers: dict[str, Any] = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if address.authorization:
            self._headers["Authorization"] = address.authorization
        self.renewer = Renewer(self, timeout)
        self.undoer = Undoer(self, timeout)

    def start(self) -> None:
        for name, run in (("dibs undoer", self.undoer.run), ("dibs renewer", self.renewer.run)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        """End the threads: the undoer when it has settled what it has."""
        self.renewer.stop()
        self.undoer.stop()

    def ended(self) -> None:
        """Note that the threads have nothing left to do."""
        processes.discard(self)
        self.close()

    def cut(self) -> None:
        """End the calls that wait."""
        self.closing = True
        for wire in list(self._polls):
            wire.cut()

    def call(self, verb: str, body: dict[str, Any], size: int, wait: float = 0.0,
             timeout: float | None = None) -> tuple[list[dict[str, Any]], float, bool]:
        """Make one call and return the answers, when it was sent, and whether it was sent before
        and not answered, so that it may have been done then. If a server is away it asks the next
        one, each once. wait is how long the server may take on purpose. Such a call asks one
        server only, because its caller asks again with less time to wait.
        """
        timeout = self._timeout if timeout is None else timeout
        ends = clock.now() + timeout
        away: Unavailable | None = None
        silent = False
        count = 1 if wait else len(self._address.servers)
        for i in range(count):
            first = self._current
            left = ends - clock.now()
            if left <= 0:
                break
            try:
                answers, sent, again = self._ask(self._address.servers[first % len(self._address.servers)], verb, body, size, wait,
                                                 left / (count - i))
                return answers, sent, again or silent
            except Error as e:
                silent = e._unanswered = e._unanswered or silent
                if not isinstance(e, Unavailable):
                    raise
                away = e
                if self._current == first:
                    self._current = first + 1
        raise away or Unavailable(f"dibs: {verb}: no server answered in time")

    def _ask(self, server: Server, verb: str, body: dict[str, Any], size: int, wait: float,
             timeout: float) -> tuple[list[dict[str, Any]], float, bool]:
        """Send a request. A kept connection may have been closed by the server meanwhile, so then
        a new one is used; every call may be repeated.
        """
        ends = limit = clock.now() + timeout
        wire = self._checkout(server)
        again = sends = False
        while True:
            whole = False
            try:
                if wait:
                    self._polls.add(wire)
                wire.connect(ends)
                if wait and self.closing:
                    raise Unavailable("dibs: the client is closed")
                limit = ends + wait
                if verb == "claim":  # a server that was frozen does not carry it out later
                    body = {**body, "timeout_ms": max(to_ms(limit - clock.now()), 1)}
                text = json.dumps(body, separators=(",", ":")).encode()
                sends = True
                sent, response, data = wire.post(f"/v1/{verb}", self._headers, text, limit)
                whole = True
                break
            except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError) as e:
                if wire.used is None:
                    raise as_silent(Unavailable(f"dibs: {server}: {e}"), sends) from e
            except ssl.SSLCertVerificationError as e:
                raise as_silent(Refused(f"dibs: {server}: {e}"), sends) from e
            except (OSError, http.client.HTTPException) as e:
                if foreign_timeout(e, limit):
                    raise
                cure = "; is dibs serve running there?" if isinstance(e, (FileNotFoundError, ConnectionRefusedError)) else ""
                raise as_silent(Unavailable(f"dibs: {server}: {e or type(e).__name__}{cure}"), sends) from e
            finally:
                self._polls.discard(wire)
                if whole and wire.http.sock is not None:
                    wire.used = clock.now()
                    self._idle[server].append(wire)
                else:
                    wire.close()
            wire, again = self._create(server), True
        try:
            return self._read(server, verb, response, data, size), sent, again
        except Error as e:
            e._unanswered = e._unanswered or again
            raise

    def _checkout(self, server: Server) -> Wire:
        while True:
            try:
                wire = self._idle[server].pop()
            except IndexError:
                return self._create(server)
            if wire.used is not None and clock.now() - wire.used < IDLE and not wire.closed():
                return wire
            wire.close()

    def _create(self, server: Server) -> Wire:
        wire = Wire(server, self._tls)
        self._all.add(wire)
        return wire

    def _read(self, server: Server, verb: str, response: http.client.HTTPResponse, data: bytes, size: int) -> list[dict[str, Any]]:
        """Read a response. Only dibs serve itself knows that nothing was done: what another program
        answers says nothing of a server behind it.
        """
        kind, status = response.headers.get_content_type(), response.status
        body = None
        if kind in ("application/json", "application/problem+json"):
            with contextlib.suppress(ValueError):
                body = json.loads(data)
        if status == 200:
            answers = body.get("answers") if isinstance(body, dict) else None
            if isinstance(answers, list) and len(answers) == size and all(isinstance(a, dict) for a in answers):
                return answers
            raise as_silent(Refused(f"dibs: what answers at {server} with something else is no dibs serve"))
        problem = body if isinstance(body, dict) and kind == "application/problem+json" else None
        text = f"{problem.get('title')} ({status}): {problem.get('detail')}" if problem else None
        if status >= 500:
            stopping = problem is not None and str(problem.get("type")).endswith("#stopping")
            raise as_silent(Unavailable(f"dibs: {verb}: {text or f'{server} answers with {status}'}"), not stopping)
        if text is None:
            raise as_silent(Refused(f"dibs: what answers at {server} with {status} is no dibs serve"))
        refused: dict[int, type[Refused]] = {401: Unauthorized, 403: Forbidden, 429: Overloaded}
        raise refused.get(status, Refused)(f"dibs: {verb}: {text}")

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for wires in self._idle.values():
            while wires:
                wires.pop().close()

    def abandon(self) -> None:
        """Close the sockets that this process has from the one that forked it."""
        for wire in list(self._all):
            wire.abandon()


# Forks and the end of the program.

lock = threading.RLock()  # a signal handler may make a call while its thread makes its first one
processes: set[Process] = set()  # of the clients of this process, until their threads have ended


def forked() -> None:
    """In a process that was forked: close the connections of its parent."""
    global lock
    lock = threading.RLock()
    for local in list(processes):
        local.abandon()
    processes.clear()


def flush_all() -> None:
    ends = clock.now() + 2.0
    for local in list(processes):
        local.undoer.flush(max(ends - clock.now(), 0.0))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)
atexit.register(flush_all)
