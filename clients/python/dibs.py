"""Locks, semaphores, places in a queue and stored results over `dibs serve`.

Call dibs on a key: one caller runs, and all others wait their turn, do something else, or get
the same answer. One file, the standard library only.

    keys = dibs.connect()                                  # DIBS_SERVER, or unix:/run/dibs/dibs.sock
    with keys.lock("invoice 42", wait=30) as lease:
        lease.check()                                      # raises dibs.Lost
    receipt = keys.once("order-17", charge, keep="24h")

Durations are seconds, a text such as "1h30m", or a datetime.timedelta. Keys are str or bytes.
`keys.aio` has the same calls for asyncio.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import collections
import contextlib
import datetime
import functools
import hashlib
import http.client
import io
import json
import math
import os
import random
import re
import secrets
import selectors
import socket
import ssl
import sys
import threading
import time
import types
import urllib.parse
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Unpack

__version__ = "0.0.0"

__all__ = [
    "connect", "Client", "Lease", "AsyncClient", "AsyncLease", "Options",
    "Error", "Held", "Lost", "Done", "Mismatch", "Unknown", "Unavailable", "Busy", "Full", "TooLarge", "Refused", "Unauthorized",
    "Forbidden", "Overloaded", "Remembered", "NotKept", "Unrecorded", "WrongTransaction", "Closed",
    "TTL", "MIN_TTL", "RETENTION", "PLACE", "TIMEOUT",
]

Key = str | bytes
Duration = int | float | str | datetime.timedelta
Remember = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
T = TypeVar("T")
E = TypeVar("E", bound="Error")

TTL = 30.0  # the default TTL of a lease, in seconds
MIN_TTL = 0.01  # the shortest TTL
RETENTION = 86_400.0  # the default of keep
PLACE = 7 * 86_400.0  # the default TTL of a reserved place
TIMEOUT = 5.0  # the default timeout of a call

_PLACE_TTL = 10.0  # how long a waiter's place outlasts its last question
_POLL = 20.0  # the longest call that waits
_KEEP_PATIENCE = 10.0  # how long what was waited or worked for is asked again
_IDLE = 30.0  # a connection that was not used for longer is not used again
_FROZEN = 300.0  # how long a server may be frozen, and then carry out a claim that it did not answer
_ANY_AGE_MS = 9_223_372_036_854  # accepts a record of any age
_MAX_ELEMENTS = 512  # of a call

# The clock of Linux that runs while the machine is suspended, and elsewhere the monotonic one.
_now: Callable[[], float] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class Options(TypedDict, total=False):
    """What lock, acquire, once and redeem take.

    wait: how long to wait before Held is raised; 0: not at all. Default: without limit.
    ttl: of the lease. Default: that of the client, 30 seconds. It is renewed until it is settled.
    permits, weight: how many permits the key has, and how many the lease takes. Default: 1.
    fingerprint: the SHA-256, in 64 hexadecimal digits, of what is asked under the key.
    at_most_once: refuses to run again after a holder that ended without an outcome.
    margin: how long the lease ends before another caller can get the key.
    longest: how long the lease may last in all.
    label: what operators see.
    """

    wait: Duration | None
    ttl: Duration | None
    permits: int
    weight: int
    fingerprint: str | None
    at_most_once: bool
    margin: Duration | None
    longest: Duration | None
    label: str | None


class Error(Exception):
    """The class of all errors of this library, except ValueError and TypeError.

    key is the key of the call, or None. The message has its digest only, because messages end up
    in logs.
    """

    key: Key | None
    _unanswered = False  # the call was sent, and no server said what became of it

    def __init__(self, message: str, *, key: Key | None = None) -> None:
        super().__init__(message)
        self.key = key


class Held(Error):
    """Another caller holds the key or comes before this one.

    It is an answer: the caller neither holds the key nor has a place in its queue. left is the
    seconds until the first lease of the key expires unless it is renewed. ahead is how many places
    at most come first. waited is how long the caller waited, in seconds.
    """

    def __init__(self, message: str, *, key: Key | None = None, left: float = 0.0, ahead: int = 0, waited: float = 0.0) -> None:
        super().__init__(message, key=key)
        self.left, self.ahead, self.waited = left, ahead, waited


class Lost(Error):
    """The lease expired or was taken away, or the call that ends it was not answered.

    So another caller may hold the key.
    """


class Done(Error):
    """A record answers the claim (acquire with max_age).

    record is what the holder left. age is its age in seconds.
    """

    def __init__(self, message: str, *, key: Key | None = None, record: bytes = b"", age: float = 0.0) -> None:
        super().__init__(message, key=key)
        self.record, self.age = record, age


class Mismatch(Error):
    """The key is in use, or was used, with another fingerprint."""


class Unknown(Error):
    """An earlier attempt with at_most_once ended without an outcome. An operator must resolve it.

    id names the attempt.
    """

    def __init__(self, message: str, *, key: Key | None = None, id: str = "") -> None:
        super().__init__(message, key=key)
        self.id = id


class Unavailable(Error):
    """No server answered, or the store did not.

    The call may or may not have happened. A claim is then undone in the background, again and again
    for 5 minutes, because a server that was stopped may carry it out late.
    """


class Busy(Error):
    """The store was busy with the key. Nothing was done, and asking again may help."""


class Full(Error):
    """The store has reached one of its limits. Nothing was done."""


class TooLarge(Full):
    """The store never takes data of that size. Nothing was done."""


class Refused(Error):
    """The server refused the whole call, and nothing was done; or it is no dibs serve.

    If another program answers, a server behind it may have done the call. A claim is then undone
    in the background.
    """


class Unauthorized(Refused):
    """The URL has no token, or one that the server does not know."""


class Forbidden(Refused):
    """The credential has not the role, or the call names another namespace."""


class Overloaded(Refused):
    """A bound of the server is reached. Asking again may help."""


class Remembered(Error):
    """The function of an earlier call of once failed with an error that is remembered.

    The message is that of the error.
    """


class NotKept(Error):
    """The function of once ran in this call, but its result could not be stored.

    result is what the function returned. The cause says why. rerun says that the next caller runs
    again: because of rerun=True, because the transaction of in_ was rolled back, or because the
    store did not answer or is full. Otherwise later callers get Unrecorded; with at_most_once they
    get Unknown if the store did not answer or is full.
    """

    def __init__(self, message: str, *, key: Key | None = None, result: Any = None, rerun: bool = False) -> None:
        super().__init__(message, key=key)
        self.result, self.rerun = result, rerun


class Unrecorded(Error):
    """An earlier call of once ran its function, but the result could not be stored.

    An operator gives callers the result with `dibs resolve KEY --result JSON`, or lets the next one
    run with `dibs resolve KEY --rerun`. After keep, the next caller runs.
    """


class WrongTransaction(Error):
    """The connection is not in the transaction that the lease is to end with. Nothing was settled.

    Or something else has ended the transaction of once before its COMMIT.
    """


class Closed(Error):
    """The client was closed."""


def connect(url: str | None = None, *, ttl: Duration = TTL, timeout: Duration = TIMEOUT, namespace: str = "",
            label: str | None = None, schema: str = "public", prefix: str = "dibs") -> Client:
    """Return a client of the servers at the URL:

        unix:/run/dibs/dibs.sock, http+unix:/run/dibs/dibs.sock    a Unix socket
        http://127.0.0.1:7331
        https://:TOKEN@dibs.internal                     with a credential
        https://:TOKEN@a.internal,b.internal:8443        several servers of one store

    The default is the variable DIBS_SERVER, or unix:/run/dibs/dibs.sock. It does not connect yet. The
    other arguments are those of Client. Make one client for the program: it is safe for threads,
    and after a fork parent and child may both use it.
    """
    if url is None:
        url = os.environ.get("DIBS_SERVER") or "unix:/run/dibs/dibs.sock"
    return Client(url, ttl=ttl, timeout=timeout, namespace=namespace, label=label, schema=schema, prefix=prefix)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: Duration, name: str) -> float:
    """Read a duration: a number of seconds, a timedelta, or a text such as "24h" or "1h30m"."""
    if isinstance(value, datetime.timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        if not re.fullmatch(r"([0-9]+(\.[0-9]+)?(ms|s|m|h))+", value):
            raise ValueError(f'dibs: {name} is {value!r}; a duration is a number of seconds, or a text such as "90s" or "1h30m"')
        number = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"dibs: {name} is {value!r}; it must be a duration, in seconds")
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"dibs: {name} is {value!r}; it must be finite and not negative")
    return number


def _ttl(value: Duration) -> float:
    ttl = _seconds(value, "ttl")
    if ttl < MIN_TTL:
        raise ValueError(f"dibs: ttl is {value!r}; it must be at least {MIN_TTL} seconds")
    return ttl


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class _Server(NamedTuple):
    host: str
    port: int
    tls: bool
    socket: str | None

    def __str__(self) -> str:
        if self.socket:
            return f"unix:{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


class _Address:
    """What a URL says."""

    def __init__(self, url: str) -> None:
        if not isinstance(url, str):
            raise TypeError(f"dibs: the URL of a server is a str, not {type(url).__name__}")
        self.authorization: bytes | None = None
        found = re.match(r"(?:http\+)?unix:(?://(?=/))?", url)
        self.servers = [self._socket(url[found.end():])] if found else self._hosts(url)

    def _socket(self, path: str) -> _Server:
        if not path.startswith("/") or path.startswith("//") or "?" in path or "#" in path:
            raise self._bad("the URL of a socket is unix: and an absolute path, such as unix:/run/dibs/dibs.sock")
        return _Server("localhost", 80, False, path)

    def _hosts(self, url: str) -> list[_Server]:
        scheme, colon, rest = url.partition("://")
        if not colon or scheme not in ("http", "https"):
            raise self._bad("it must begin with https://, http:// or unix:")
        user, at, hosts = rest.rpartition("@")
        if at:
            if not user.startswith(":") or len(user) < 2:
                raise self._bad("the token stands in the password's place and there is no user, as in https://:TOKEN@HOST")
            if re.search(r"%(?![0-9A-Fa-f]{2})", user):
                raise self._bad("the token has a % that is no escape")
            secret = urllib.parse.unquote_to_bytes(user[1:])
            if re.search(rb"[\x00-\x1f\x7f]", secret):
                raise self._bad("the token has a control character")
            self.authorization = b"Bearer " + secret
        hosts = hosts[:-1] if hosts.endswith("/") else hosts
        if re.search("[/?#]", hosts):
            raise self._bad("there is a path or a parameter after the host; the URL has neither")
        return [self._host(scheme, host) for host in hosts.split(",")]

    def _host(self, scheme: str, text: str) -> _Server:
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@\s]+)(?::([0-9]+))?", text)
        port = int(found[2] or (443 if scheme == "https" else 80)) if found else 0
        if not found or not 1 <= port <= 65_535:
            raise self._bad("a host is none: write HOST or HOST:PORT, and an @ after a token")
        return _Server(found[1].strip("[]"), port, scheme == "https", None)

    def _bad(self, why: str) -> ValueError:
        return ValueError(f"dibs: not the URL of a server: {why}")  # without the URL, which may have the token


class _Socket:
    """What http.client needs of a socket. All its calls end at one moment, ends, because the timeout
    of a socket is for each of them.
    """

    def __init__(self, sock: socket.socket, ends: float) -> None:
        self.sock, self.ends = sock, ends

    def limit(self) -> socket.socket:
        """Give the socket what is left of the time."""
        left = self.ends - _now()
        if left <= 0:
            raise TimeoutError("timed out")
        self.sock.settimeout(left)
        return self.sock

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.limit().send(rest):]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Do nothing: http.client closes before it has read the body. _Wire closes the socket."""


class _Reader(io.RawIOBase):
    """Reads a _Socket."""

    def __init__(self, sock: _Socket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.limit().recv_into(buffer)


def _addresses(server: _Server, ends: float) -> list[tuple[Any, ...]]:
    """Return the addresses of a server. A resolver has no timeout, so a thread waits for it."""
    look = functools.partial(socket.getaddrinfo, server.host, server.port, 0, socket.SOCK_STREAM)
    with contextlib.suppress(socket.gaierror):
        return look(0, socket.AI_NUMERICHOST)
    found: list[Any] = []
    bell = _Bell()

    def run() -> None:
        try:
            found.append(look())
        except Exception as e:
            found.append(e)
        bell.ring()
    try:
        threading.Thread(target=run, name="dibs resolver", daemon=True).start()
    except RuntimeError:  # the program ends, and no thread begins any more
        run()
    if not bell.wait(ends - _now()):
        raise TimeoutError("no address was found in time")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _open(server: _Server, tls: ssl.SSLContext | None, ends: float) -> socket.socket:
    """Connect to a server. Each of its addresses has its share of the time."""
    if server.socket:
        return _connected(socket.AF_UNIX, server.socket, ends)
    addresses = _addresses(server, ends)
    for i, (family, _, _, _, address) in enumerate(addresses):
        share = _now() + (ends - _now()) / (len(addresses) - i)
        sock = None
        try:
            sock = _connected(family, address, share)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return tls.wrap_socket(_Socket(sock, share).limit(), server_hostname=server.host) if tls else sock
        except BaseException as e:
            if sock is not None:
                sock.close()
            if i + 1 == len(addresses) or not isinstance(e, OSError) or isinstance(e, ssl.SSLCertVerificationError) or _foreign_timeout(e, share):
                raise
    raise OSError("the name has no address")


def _connected(family: int, address: Any, ends: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _Socket(sock, ends).limit().connect(address)
        return sock
    except BaseException:
        sock.close()
        raise


def _foreign_timeout(error: BaseException, ends: float) -> bool:
    """Report whether a TimeoutError is the caller's, from a signal handler: it is before the time of the call."""
    return isinstance(error, TimeoutError) and error.errno is None and _now() < ends


class _Wire:
    """One HTTP connection, and whether it was used before."""

    def __init__(self, server: _Server, tls: ssl.SSLContext | None) -> None:
        self._server, self._tls = server, tls
        self.http = http.client.HTTPConnection(server.host, server.port)
        self.http.default_port = 443 if server.tls else 80
        self.sock: socket.socket | None = None
        self.used: float | None = None  # when it was last used

    def connect(self, ends: float) -> None:
        """Connect, unless it is connected."""
        if self.http.sock is None:
            self.sock = _open(self._server, self._tls, ends)
            self.http.sock = _Socket(self.sock, ends)

    def post(self, path: str, headers: dict[str, Any], body: bytes, ends: float) -> tuple[float, http.client.HTTPResponse, bytes]:
        """Send a request, and return when it was sent and the response with its body."""
        self.http.sock.ends = ends
        sent, broke = _now(), None
        try:
            self.http.request("POST", path, body, headers)
        except (BrokenPipeError, ConnectionResetError) as e:
            broke = e  # a server may answer before it has read all, and close
        try:
            response = self.http.getresponse()
            data = response.read()
        except (ConnectionError, http.client.HTTPException) as e:
            raise broke or e from None
        if broke:
            self.http.close()
        return sent, response, data

    def close(self) -> None:
        self.http.close()
        if self.sock is not None:
            self.sock.close()

    def closed(self) -> bool:
        """Report whether the server closed the connection. Then nothing is sent over it."""
        if self.sock is None:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            return bool(selector.select(0))

    def cut(self) -> None:
        """End the call that another thread makes."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the socket and say nothing to the server: the parent process uses the connection."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                os.close(self.sock.detach())


class _Local:
    """What a client has in one process: connections and two threads."""

    def __init__(self, address: _Address, timeout: float) -> None:
        self.pid = os.getpid()
        self._address, self._timeout = address, timeout
        self._tls = ssl.create_default_context() if address.servers[0].tls else None
        self._idle: dict[_Server, list[_Wire]] = {server: [] for server in address.servers}
        self._all: weakref.WeakSet[_Wire] = weakref.WeakSet()
        self._polls: set[_Wire] = set()  # the connections of calls that wait
        self.waits: set[_Attempt] = set()  # of callers that wait for a key
        self.closing = False
        self._current = 0
        self._headers: dict[str, Any] = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if address.authorization:
            self._headers["Authorization"] = address.authorization
        self.renewer = _Renewer(self, timeout)
        self.undoer = _Undoer(self, timeout)

    def start(self) -> None:
        for name, run in (("dibs undoer", self.undoer.run), ("dibs renewer", self.renewer.run)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        """End the threads: the undoer when it has settled what it has."""
        self.renewer.stop()
        self.undoer.stop()

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
        ends = _now() + timeout
        away: Unavailable | None = None
        silent = False
        count = 1 if wait else len(self._address.servers)
        for i in range(count):
            first = self._current
            left = ends - _now()
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

    def _ask(self, server: _Server, verb: str, body: dict[str, Any], size: int, wait: float,
             timeout: float) -> tuple[list[dict[str, Any]], float, bool]:
        """Send a request. A kept connection may have been closed by the server meanwhile, so then
        a new one is used; every call may be repeated.
        """
        ends = limit = _now() + timeout
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
                    body = {**body, "timeout_ms": max(_ms(limit - _now()), 1)}
                text = json.dumps(body, separators=(",", ":")).encode()
                sends = True
                sent, response, data = wire.post(f"/v1/{verb}", self._headers, text, limit)
                whole = True
                break
            except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError) as e:
                if wire.used is None:
                    raise _silent(Unavailable(f"dibs: {server}: {e}"), sends) from e
            except ssl.SSLCertVerificationError as e:
                raise _silent(Refused(f"dibs: {server}: {e}"), sends) from e
            except (OSError, http.client.HTTPException) as e:
                if _foreign_timeout(e, limit):
                    raise
                cure = "; is dibs serve running there?" if isinstance(e, (FileNotFoundError, ConnectionRefusedError)) else ""
                raise _silent(Unavailable(f"dibs: {server}: {e or type(e).__name__}{cure}"), sends) from e
            finally:
                self._polls.discard(wire)
                if whole and wire.http.sock is not None:
                    wire.used = _now()
                    self._idle[server].append(wire)
                else:
                    wire.close()
            wire, again = self._create(server), True
        try:
            return self._read(server, verb, response, data, size), sent, again
        except Error as e:
            e._unanswered = e._unanswered or again
            raise

    def _checkout(self, server: _Server) -> _Wire:
        while True:
            try:
                wire = self._idle[server].pop()
            except IndexError:
                return self._create(server)
            if wire.used is not None and _now() - wire.used < _IDLE and not wire.closed():
                return wire
            wire.close()

    def _create(self, server: _Server) -> _Wire:
        wire = _Wire(server, self._tls)
        self._all.add(wire)
        return wire

    def _read(self, server: _Server, verb: str, response: http.client.HTTPResponse, data: bytes, size: int) -> list[dict[str, Any]]:
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
            raise _silent(Refused(f"dibs: what answers at {server} with something else is no dibs serve"))
        problem = body if isinstance(body, dict) and kind == "application/problem+json" else None
        text = f"{problem.get('title')} ({status}): {problem.get('detail')}" if problem else None
        if status >= 500:
            stopping = problem is not None and str(problem.get("type")).endswith("#stopping")
            raise _silent(Unavailable(f"dibs: {verb}: {text or f'{server} answers with {status}'}"), not stopping)
        if text is None:
            raise _silent(Refused(f"dibs: what answers at {server} with {status} is no dibs serve"))
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


def _silent(error: E, sent: bool = True) -> E:
    """Return the error of a call that no server answered. sent says whether a server may have got it."""
    error._unanswered = sent
    return error


class _Bell:
    """Wakes a thread. It may be rung by a finalizer, at any moment: no caller ever waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it rings, or for this many seconds, and report whether it rang."""
        return self._lock.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


class _Renewer:
    """Renews the leases of a process: one thread, and one call for all that are due.

    It has no lock, because a signal handler may raise anywhere in a caller: what callers do is one
    step of a dict.
    """

    def __init__(self, local: _Local, timeout: float) -> None:
        self._local, self._timeout = local, timeout
        self._attempts: dict[str, _Attempt] = {}
        self._bell = _Bell()
        self._stopped = False
        self._wakes = math.inf  # when the thread looks again by itself; inf: it looks now, or has nothing

    def add(self, attempt: _Attempt) -> None:
        self._attempts[attempt.token] = attempt
        if attempt.due < self._wakes:
            self._bell.ring()

    def remove(self, attempt: _Attempt) -> None:
        self._attempts.pop(attempt.token, None)

    def stop(self) -> None:
        self._stopped = True
        self._bell.ring()

    def run(self) -> None:
        while not self._stopped:
            due, patience, wakes = self._look()
            if due:
                for i in range(0, len(due), _MAX_ELEMENTS):
                    self._renew(due[i:i + _MAX_ELEMENTS], patience)
                continue
            self._wakes = wakes
            self._bell.wait(wakes - _now())
            self._wakes = math.inf

    def _look(self) -> tuple[list[_Attempt], float, float]:
        """Return what is due now or soon, how long it may take, and when the next is due."""
        now = _now()
        live = []
        for attempt in list(self._attempts.values()):
            if attempt.settled or attempt.lost or attempt.overdue(now):
                self.remove(attempt)
            else:
                live.append(attempt)
        first = min((a.due for a in live), default=math.inf)
        if first > now:
            return [], 0.0, first
        patience = min(self._timeout, min(a.ttl for a in live) / 3)
        return [a for a in live if a.due <= now + a.ttl / 15], patience, first

    def _renew(self, attempts: list[_Attempt], patience: float) -> None:
        body = {"renewals": [{**a.named(), "ttl_ms": _ms(a.ttl)} for a in attempts]}
        try:
            answers, sent, _ = self._local.call("renew", body, len(attempts), timeout=patience)
        except Exception:
            for attempt in attempts:  # it is tried again until the lease is no longer trusted
                attempt.later()
            return
        for attempt, answer in zip(attempts, answers):
            kind = _problem(answer)[0]
            if kind is None:
                attempt.trust(sent)
            elif kind != "lost" or not attempt.lose():
                attempt.later()


def _problem(answer: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the type and the detail of an element's error."""
    error = answer.get("error")
    return (error.get("type"), error.get("detail")) if isinstance(error, dict) else (None, None)


class _Entry:
    """What is to be settled in the background: first a settlement, if one is due, and then undos of
    the same token until a moment, because a claim that no server answered may be carried out late.
    """

    def __init__(self, named: dict[str, Any], settlement: dict[str, Any] | None, expires: float, until: float) -> None:
        self.token = named["token"]
        self.settlement = {**named, **(settlement or {"outcome": "undo"})}
        self.expires, self.until = expires, until
        self.first = settlement is not None
        self.due, self.pause = _now(), 1.0
        if not self.first:
            self.again()

    def again(self) -> bool:
        """Say when the token is undone next, and report whether it is."""
        self.first = False
        self.settlement = {**self.settlement, "outcome": "undo"}
        self.due, self.pause = _now() + self.pause, min(self.pause * 2, 15.0)
        return self.due <= self.until


class _Undoer:
    """Settles in the background, by token, what no caller uses any more."""

    def __init__(self, local: _Local, timeout: float) -> None:
        self._local, self._timeout = local, timeout
        self._mail: collections.deque[_Entry | _Bell | str] = collections.deque()
        self._bell = _Bell()
        self._entries: list[_Entry] = []
        self._flushes: list[_Bell] = []
        self._stopped = self._ended = False

    def settle(self, attempt: _Attempt, settlement: dict[str, Any], place: bool = False) -> None:
        """Settle the attempt, or the place that it redeems, in the background."""
        expires = _now() + max(attempt.ttl, attempt.place_ttl) + self._timeout
        silent = attempt.place_silent if place else attempt.silent
        self._put(_Entry(attempt.named(attempt.place if place else None), settlement, expires, silent + _FROZEN))

    def settled(self, named: dict[str, Any], silent: float) -> None:
        """Note that a token was settled. silent is when it sent the last claim that was not answered."""
        if _now() + 1 <= silent + _FROZEN:
            self._put(_Entry(named, None, math.inf, silent + _FROZEN))

    def claims(self, token: str) -> None:
        """Note that a token claims again: it is not undone any more."""
        self._put(token)

    def flush(self, limit: float) -> bool:
        """Wait until everything was settled once, or for so many seconds."""
        done = _Bell()
        self._put(done)
        return self._ended or done.wait(limit)

    def stop(self) -> None:
        """End the thread when everything was settled once."""
        self._stopped = True
        self._bell.ring()

    def look(self) -> None:
        """Say that a caller does not wait any more."""
        self._bell.ring()

    def _put(self, item: _Entry | _Bell | str) -> None:
        try:
            self._mail.append(item)
        finally:
            self._bell.ring()

    def run(self) -> None:
        pause = 0.02
        while self._collect():
            if self._settle():
                pause = 0.02
            else:
                pause = min(pause * 2, 1.0)
                time.sleep(pause * random.uniform(0.5, 1.0))
        _locals.discard(self._local)
        self._local.close()
        self._ended = True
        self._take_mail()
        for done in self._flushes:
            done.ring()

    def _take_mail(self) -> None:
        while self._mail:
            item = self._mail.popleft()
            if isinstance(item, _Bell):
                self._flushes.append(item)
            elif isinstance(item, str):
                self._entries = [entry for entry in self._entries if entry.first or entry.token != item]
            else:
                self._entries.append(item)

    def _collect(self) -> bool:
        """Wait until something is due, and report whether there is more to do."""
        while True:
            stopped = self._stopped
            self._take_mail()
            waits = self._local.closing and self._local.waits and not stopped
            if not waits and not any(entry.first for entry in self._entries):
                for done in self._flushes:
                    done.ring()
                self._flushes.clear()
                if stopped:
                    return False
            left = min((entry.due for entry in self._entries), default=math.inf) - _now()
            if left <= 0:
                return True
            self._bell.wait(left)

    def _settle(self) -> bool:
        """Settle what is due in one call, and report whether the servers answered."""
        now = _now()
        due = [entry for entry in self._entries if entry.due <= now][:_MAX_ELEMENTS]
        answers: list[dict[str, Any]] = []
        with contextlib.suppress(Exception):
            answers, _, _ = self._local.call("settle", {"settlements": [entry.settlement for entry in due]}, len(due))
        now = _now()
        ended = set()
        for i, entry in enumerate(due):
            kind = _problem(answers[i])[0] if answers else "busy"
            if not entry.first or kind in (None, "lost"):
                if not entry.again():
                    ended.add(id(entry))
            elif kind != "busy" or now >= entry.expires:
                ended.add(id(entry))
        self._entries = [entry for entry in self._entries if id(entry) not in ended]
        return bool(answers)


class _Attempt:
    """One attempt to hold a key: what its caller asks for, what its token may have at the store,
    and the lease if it was granted. The threads of the process share it; a caller has it by a
    Lease.
    """

    def __init__(self, key: Key, namespace: str, options: dict[str, Any]) -> None:
        self.key, self.namespace, self._options = key, namespace, options
        self.raw = key.encode() if isinstance(key, str) else key
        self.token: str = options["token"] or secrets.token_hex(16)
        self.ttl: float = options["ttl"]
        self.place_ttl: float = options["place_ttl"]
        self.wait: float | None = options["wait"]
        self.permits: int = options["permits"]
        self.weight: int = options["weight"]
        self.at_most_once: bool = options["at_most_once"]
        self.place: str | None = options["place"]  # the token of the reserved place that it redeems
        self.margin = max(options["margin"] or 0.0, self.ttl / 50 + 0.001)
        self.local: _Local | None = None
        self.open = False  # the token may have a lease or a place
        self.silent = -math.inf  # when it last sent a claim that was not answered, and may be carried out late
        self.place_silent = -math.inf  # the same of its place
        self.given_up = False  # its caller went away
        # The lease.
        self.fence: int | None = None
        self.attempt, self.progress = 1, None
        self.trusted = -math.inf
        self.due = math.inf
        self.limit = math.inf
        self.settled = self.lost = False
        self.unanswered: str | None = None  # the outcome of a settlement that was sent and not answered
        self.settling = threading.RLock()  # held while a settlement is under way; a signal handler may settle meanwhile
        self.under_way = False  # the thread that holds settling has begun a settlement
        self.in_transaction = False  # a transaction settles it, or did
        self.own_namespace = ""  # that of the key, as the server says

    def digest(self) -> str:
        return hashlib.sha256(self.namespace.encode() + b"\0" + self.raw).hexdigest()[:12]

    def named(self, token: str | None = None) -> dict[str, Any]:
        """Return an element of a call, which names the key and the token."""
        element: dict[str, Any] = {}
        try:
            element["key"] = self.raw.decode()
        except UnicodeDecodeError:
            element["key_b64"] = _b64(self.raw)
        if self.namespace:
            element["namespace"] = self.namespace
        element["token"] = token or self.token
        return element

    def wire(self, mode: str) -> dict[str, Any]:
        """Return the element of a claim."""
        o = self._options
        element = {**self.named(), "mode": mode, "ttl_ms": _ms(self.ttl), "owner": o["owner"]}
        if mode != "try":
            element["place_ttl_ms"] = _ms(o["place_ttl"])
        if self.permits != 1:
            element["permits"] = self.permits
        if self.weight != 1:
            element["weight"] = self.weight
        if self.place:
            element["from"] = self.place
        if o["grace"] is not None:
            element["grace_ms"] = _ms(o["grace"])
        if o["fingerprint"]:
            element["fingerprint"] = o["fingerprint"]
        if o["max_age"] is not None:
            element["max_age_ms"] = _ANY_AGE_MS if o["max_age"] == math.inf else _ms(o["max_age"])
        if self.at_most_once:
            element["at_most_once"] = True
        return element

    def grant(self, answer: dict[str, Any], sent: float) -> None:
        self.attempt = answer.get("attempt", 1)
        self.progress = base64.b64decode(answer["progress"]) if answer.get("progress") is not None else None
        if self._options["longest"] is not None:
            self.limit = sent + self._options["longest"]
        self.own_namespace = answer.get("namespace") or ""
        self.trust(sent)
        self.fence = int(answer["fence"])

    def trust(self, sent: float) -> None:
        """Extend the trust: the server confirmed the lease in answer to what was sent then."""
        self.trusted = min(max(self.trusted, sent + self.ttl - self.margin), self.limit)
        self.due = sent + self.ttl / 3

    def later(self) -> None:
        """Say when a renewal that failed is sent again."""
        self.due = _now() + max(self.ttl / 15, 0.001)

    def overdue(self, now: float) -> bool:
        return now >= self.trusted

    def foreign(self) -> bool:
        """Report whether it belongs to the process that forked this one."""
        return self.local is None or self.local.pid != os.getpid()

    def live(self) -> bool:
        """Report whether it may hold the key."""
        return not self.settled and not self.lost and self.fence is not None and not self.overdue(_now()) and not self.foreign()

    def held(self) -> bool:
        return self.unanswered is None and self.live()

    def lose(self) -> bool:
        """Note that the server does not know the lease. While a settlement is under way, or if one
        may have been done, that says nothing, and lose returns False.
        """
        if self.unanswered or self.in_transaction or not self.settling.acquire(blocking=False):
            return False
        try:
            self.lost = self.lost or not self.settled
            return True
        finally:
            self.settling.release()

    # An end is noted after it was handed over, never before: an exception between the two has it
    # settled twice, which does no harm.

    def hand_over(self, settlement: dict[str, Any]) -> None:
        """Settle the lease in the background."""
        assert self.local is not None
        self.local.undoer.settle(self, settlement)
        if self.place and settlement["outcome"] in _CLEAN:
            self.local.undoer.settled(self.named(self.place), self.place_silent)
        self.settled = True
        self.local.renewer.remove(self)

    def ended(self, clean: bool) -> None:
        """Note that the token was settled, and cleanly, which ends the reserved place that it redeems."""
        assert self.local is not None
        self.local.undoer.settled(self.named(), self.silent)
        self.silent = -math.inf
        if clean and self.place:
            self.local.undoer.settled(self.named(self.place), self.place_silent)

    def give_up(self) -> None:
        """Undo in the background what the token may have, for a caller that never got the lease. It
        may be called twice: by the thread that asks, and by the task that went away.
        """
        self.given_up = True
        if self.local is None or self.foreign():
            return
        if self.open:
            self.local.undoer.settle(self, {"outcome": "undo"})
            self.open = False
        self.settled = True
        self.local.renewer.remove(self)

    def dropped(self) -> None:
        """End what is left when nobody has the Lease any more."""
        if self.settled or self.local is None or self.foreign():
            return
        if self.lost:
            self.ended(False)
        elif self.fence is None:
            self.give_up()
        elif self.overdue(_now()):
            self.ended(False)
        else:
            self.hand_over({"outcome": "abandon"})
            warnings.warn(f"dibs: nobody has the lease of the key {self.digest()} any more and it was not settled, so it is abandoned; "
                          "keep it in a variable, or use keys.lock", RuntimeWarning, stacklevel=3)


def _error(kind: str | None, detail: str | None, attempt: _Attempt) -> Error:
    """Return the error of an element."""
    kinds: dict[str | None, type[Error]] = {"lost": Lost, "busy": Busy, "full": Full, "too_large": TooLarge}
    return kinds.get(kind, Refused)(f"dibs: the key {attempt.digest()}: {_plain(detail or kind)}", key=attempt.key)


def _plain(message: object) -> str:
    """Return a message that stands inside another one."""
    return str(message).removeprefix("dibs: ")


class _Tries:
    """Paces the tries of one call: pauses double from 20 ms to 1 s, half of each is random."""

    def __init__(self, patience: float) -> None:
        self._ends = _now() + patience
        self._pause = 0.01

    def again(self) -> bool:
        """Wait for the next try, or return False if that would be too late."""
        self._pause = min(self._pause * 2, 1.0)
        pause = self._pause * random.uniform(0.5, 1.0)
        if _now() + pause > self._ends:
            return False
        time.sleep(pause)
        return True


class Lease:
    """The right to a key until it is settled or lost.

    It is renewed in the background. Its methods are safe for threads. A process that was forked
    does not own it. A lease that nobody has any more is abandoned, so keep it in a variable.
    """

    __slots__ = ("_client", "_attempt", "__weakref__")

    def __init__(self, client: Client, attempt: _Attempt) -> None:
        self._client, self._attempt = client, attempt

    @property
    def key(self) -> Key:
        """The key that is held."""
        return self._attempt.key

    @property
    def ttl(self) -> float:
        """The TTL in seconds."""
        return self._attempt.ttl

    @property
    def attempt(self) -> int:
        """1 plus the number of leases in a row that were abandoned before this one."""
        return self._attempt.attempt

    @property
    def progress(self) -> bytes | None:
        """What the holders that were abandoned before this one saved last, or None."""
        return self._attempt.progress

    @property
    def held(self) -> bool:
        """Whether the lease is held and trusted."""
        return self._attempt.held()

    @property
    def fence(self) -> int:
        """The fencing token: it rises with every grant of the key.

        A resource that remembers the highest fence and refuses lower ones is safe from a holder
        that was stopped for longer than its lease. It raises Lost like check.
        """
        self.check()
        assert self._attempt.fence is not None
        return self._attempt.fence

    @property
    def left(self) -> float:
        """The seconds for which the lease can still be trusted unless it is renewed."""
        return max(self._attempt.trusted - _now(), 0.0) if self.held else 0.0

    @property
    def id(self) -> str:
        """The public name of this attempt, which operators see."""
        named = hashlib.sha256(b"dibs claim id\0" + bytes.fromhex(self._attempt.token)).digest()[:10]
        return base64.b32encode(named).decode().lower()

    def check(self) -> Lease:
        """Return the lease, and raise Lost if it is not held any more.

        It looks at the clock, so it also knows when the process was stopped for longer than the
        lease.
        """
        if not self._attempt.held():
            raise self._lost()
        return self

    def save(self, progress: bytes) -> None:
        """Keep progress (at most 1 MiB) with the lease and renew it.

        The next holder gets it if this one does not settle. It raises Lost, Unavailable or another
        Error.
        """
        self.check()
        attempt = self._attempt
        assert attempt.local is not None
        element = {**attempt.named(), "ttl_ms": _ms(attempt.ttl), "progress": _b64(progress)}
        answers, sent, _ = attempt.local.call("renew", {"renewals": [element]}, 1, timeout=min(self._client.timeout, self.left))
        kind, detail = _problem(answers[0])
        if kind is None:
            attempt.trust(sent)
        elif kind == "lost":
            attempt.lose()
            raise self._lost()
        else:
            raise _error(kind, detail, attempt)

    def release(self) -> None:
        """End the lease and leave nothing behind.

        It does nothing if the lease was settled before. It raises Lost when the lease was lost. It
        raises Unavailable, Busy or another Error when the server did not do it; the lease is then
        released in the background.
        """
        self._release("release")

    def _release(self, outcome: str) -> None:
        """End the lease now or in the background."""
        try:
            self._settle({"outcome": outcome}, self._client.timeout)
        except Lost:
            raise
        except Error:
            self._attempt.hand_over({"outcome": outcome})
            raise

    def complete(self, data: bytes, keep: Duration = RETENTION) -> None:
        """End the lease and leave data behind as the key's record, for keep (default: 24 hours).

        It raises Lost, and then nothing is written. After Busy or Full the lease is still held:
        call complete again, or release. After Unavailable the record may be written, so the lease
        is not trusted any more: call complete again, and the store decides.
        """
        self._settle(self._record(data, _retention(keep)), _KEEP_PATIENCE)

    def complete_in(self, cursor: Any, data: bytes | None, keep: Duration = RETENTION) -> None:
        """End the lease in a transaction of the application, in the PostgreSQL database of the store.

        What the transaction writes and the record are both committed, or neither is. Call it as the
        last statement of the transaction. cursor is one of psycopg, psycopg2 or Django, or any whose
        parameters are %s. With None for data it leaves no record, as release.

        The lease has ended when the transaction commits. If it is rolled back, the lease is still
        held. The end of the block of lock settles it in both cases; a lease of acquire needs release
        after the transaction, which does nothing if it committed.

        It raises Lost, WrongTransaction (the transaction has written nothing, or there is none),
        Refused (the database has no such store), Forbidden (the role may not call the function) and
        the errors of the driver. Let them roll the transaction back.
        """
        with self._settles_in(data, _retention(keep), "written") as statement:
            cursor.execute(*statement)

    def abandon(self) -> None:
        """End the lease as if its holder had crashed: the next holder learns of it."""
        self._settle({"outcome": "abandon"}, self._client.timeout)

    def undo(self) -> None:
        """End the lease as if it had not been granted, for a holder that has done nothing.

        A reserved place can then be redeemed again.
        """
        self._settle({"outcome": "undo"}, self._client.timeout)

    def __repr__(self) -> str:  # shows no token
        return f"<dibs.Lease {self._attempt.digest()} {'held' if self.held else 'ended'}>"

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and hasattr(self, "_attempt"):
            self._attempt.dropped()

    def _record(self, data: bytes, retention: float) -> dict[str, Any]:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"dibs: a record is bytes, not {type(data).__name__}")
        if self._attempt.permits > 1:
            raise ValueError("dibs: a key with more than one permit cannot have a record")
        return {"outcome": "keep", "data": _b64(data), "retention_ms": _ms(retention)}

    @contextlib.contextmanager
    def _settles_in(self, data: bytes | None, retention: float, proof: str) -> Iterator[tuple[str, list[Any]]]:
        """Give the statement that settles in a transaction, and read its errors.

        Until the transaction commits the lease is held, and then a renewal finds none, which is no
        loss.
        """
        attempt = self._attempt
        record = None if data is None else self._record(data, retention)["data"]
        self.check()
        values = [_b64(attempt.raw), attempt.token, record, _interval(retention), attempt.own_namespace, proof]
        try:
            with self._client._function("settle_in", attempt) as name:
                attempt.in_transaction = True
                call = f"{name}(%s::text, %s::text, %s::text, %s::text::interval, %s::text, 'base64', %s::text)"
                # The mark is that of the run until then. It is set after the call, which reads it.
                yield "SELECT " + (call if proof == "written" else f"set_config('dibs.run', CASE WHEN {call} IS NULL THEN '' ELSE '{self.id}' END, true)"), values
        except Lost:
            attempt.lost = True
            self._renewed_no_more()
            raise

    def _committed(self) -> None:
        """Note that the transaction in which the lease was settled is committed."""
        self._attempt.settled = True
        self._renewed_no_more()
        self._attempt.ended(True)

    def _renewed_no_more(self) -> None:
        if self._attempt.local is not None:
            self._attempt.local.renewer.remove(self._attempt)

    def _find_out(self, record: bytes, retention: float) -> bool:
        """Find out whether the transaction was committed that settled the lease with this record, if
        its answer did not arrive. A lease that can be released was not settled, and cannot be any
        more. The store accepts a record again from the token that has left it. If the servers do not
        say it, the next call of once finds it out.
        """
        try:
            done = not self._accepts({"outcome": "release"}) and self._accepts(self._record(record, retention))
        except Error:
            return False
        self._committed()
        return done

    def _accepts(self, settlement: dict[str, Any]) -> bool:
        attempt, tries = self._attempt, _Tries(_KEEP_PATIENCE)
        assert attempt.local is not None
        while True:
            try:
                answers, _, _ = attempt.local.call("settle", {"settlements": [{**attempt.named(), **settlement}]}, 1)
                kind, detail = _problem(answers[0])
                if kind is not None and kind != "lost":
                    raise _error(kind, detail, attempt)
                return kind is None
            except (Unavailable, Busy, Overloaded):
                if not tries.again():
                    raise

    def _lost(self) -> Lost:
        attempt, why = self._attempt, ""
        if attempt.settled:
            why = ": it was settled"
        elif attempt.foreign():
            why = ": it belongs to the process that forked this one"
        elif attempt.unanswered and not attempt.lost:
            call = _CALLS[attempt.unanswered]
            why = f", or may be: its {call} was sent and not answered; call {call} again, and the store decides"
        return Lost(f"dibs: the lease of the key {attempt.digest()} is lost{why}", key=self.key)

    def _hand_over(self, settlement: dict[str, Any]) -> None:
        """Settle the lease in the background, unless it was settled."""
        if not self._attempt.settled and not self._attempt.lost and not self._attempt.foreign():
            self._attempt.hand_over(settlement)

    def _finish(self) -> Lost | None:
        """End the lease of a block, and return the error if it was lost while its block ran.

        An abandon or undo that was not answered is made again.
        """
        attempt, doubt = self._attempt, None
        if not attempt.foreign():  # a lock may be held forever in a process that was forked
            with attempt.settling:
                doubt = None if attempt.settled else attempt.unanswered
        why = f"may have ended while its block ran: its {_CALLS[doubt]} was sent and not answered" if doubt else "was lost while its block ran"
        lost = Lost(f"dibs: the lease of the key {attempt.digest()} {why}", key=self.key)
        if attempt.foreign():
            return None if attempt.settled else lost
        try:
            self._release(doubt if doubt and doubt != "keep" else "release")
        except Lost:
            return lost
        except Error:
            pass  # it is released in the background, and the block must not run again
        return lost if doubt else None

    def _settle(self, settlement: dict[str, Any], patience: float) -> None:
        attempt = self._attempt
        if attempt.foreign():
            raise self._lost()
        assert attempt.local is not None
        try:
            with attempt.settling:
                if attempt.settled:
                    return
                nested, attempt.under_way = attempt.under_way, True
                try:
                    self._settle_now(settlement, patience, nested)
                finally:
                    attempt.under_way = nested
        except Error:
            raise
        except BaseException:
            attempt.hand_over(settlement)  # a signal handler raised
            raise

    def _settle_now(self, settlement: dict[str, Any], patience: float, nested: bool) -> None:
        """Settle the lease. nested says that a signal handler settles it while its thread does."""
        attempt = self._attempt
        assert attempt.local is not None
        outcome = settlement["outcome"]
        if attempt.lost or (attempt.overdue(_now()) and attempt.unanswered != outcome and not attempt.in_transaction):
            # What the store still has of it is abandoned, as it would be when it expires.
            attempt.local.undoer.settle(attempt, {"outcome": "abandon"})
            attempt.lost = True
            attempt.local.renewer.remove(attempt)
            raise self._lost()
        tries = _Tries(patience)
        while True:
            before, attempt.unanswered = attempt.unanswered, attempt.unanswered or outcome
            again = False
            try:
                answers, _, again = attempt.local.call("settle", {"settlements": [{**attempt.named(), **settlement}]}, 1)
                kind, detail = _problem(answers[0])
                if kind is not None and kind != "lost":
                    raise _error(kind, detail, attempt)
                break
            except Error as e:
                if not (again or e._unanswered):
                    attempt.unanswered = before  # nothing was done
                if not isinstance(e, (Unavailable, Busy, Overloaded)) or not tries.again():
                    raise
        # The same record may be written twice. Any other end that was done before is a loss to the
        # store, and none to the holder.
        done = again or before == outcome or attempt.in_transaction or nested or attempt.settled
        lost = kind == "lost" and (outcome == "keep" or not done)
        if lost or attempt.lost or (attempt.overdue(_now()) and not attempt.in_transaction):
            attempt.lost = True
        else:
            attempt.settled = True
        attempt.local.renewer.remove(attempt)
        attempt.ended(kind is None and outcome in _CLEAN)
        if lost:
            raise self._lost()


_CLEAN = ("release", "keep")  # the outcomes that end a reserved place
_CALLS = {"keep": "complete", "release": "release", "abandon": "abandon", "undo": "undo"}  # by their outcome


def _retention(keep: Duration) -> float:
    retention = _seconds(keep, "keep")
    if retention < 0.001:
        raise ValueError(f"dibs: keep is {keep!r}; it must be at least 1 ms")
    return retention


# The functions of the store in the application's database.

def _interval(seconds: float) -> str:
    return f"{math.ceil(seconds * 1_000_000)} microseconds"


def _sqlstate(error: Exception) -> str | None:
    state = None
    for e in (error, error.__cause__):  # Django's errors have the driver's as their cause
        state = state or getattr(e, "sqlstate", None) or getattr(e, "pgcode", None)
    return state


def _function_error(error: Exception, name: str, attempt: _Attempt) -> Error | None:
    """Return the error of a call of a function, or None if it is the driver's."""
    state, detail = _sqlstate(error), None
    for e in (error, error.__cause__):
        detail = detail or getattr(getattr(e, "diag", None), "message_detail", None)
    line = (str(error).splitlines() or [""])[0]
    key, digest = attempt.key, attempt.digest()
    if state == "DIBS1":
        return Lost(f"dibs: the lease of the key {digest} is lost: {detail}", key=key)
    if state == "DIBS2":
        return WrongTransaction(f"{line}. Begin a transaction, write in it, and settle the key {digest} as its last statement; "
                                "the function of once begins and ends none", key=key)
    if state == "22023" and re.search(r"\b(record|data)\b.* bytes", line):
        return TooLarge(f"{line} (the key {digest})", key=key)
    if state in ("42883", "3F000"):
        return Refused(f"dibs: this database has no function {name} of this version. Name the store's schema= and prefix= when you connect, "
                       f"or run dibs migrate ({line})", key=key)
    if state == "42501":
        return Forbidden(f"dibs: the role may not call {name}: GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION ({line})", key=key)
    return None


def _first(row: Any) -> Any:
    return row[0] if isinstance(row, (tuple, list)) else next(iter(row.values()))


def _connection(connection: Any) -> Any:
    """Require a connection of psycopg."""
    if not hasattr(getattr(connection, "info", None), "transaction_status"):
        raise TypeError(f"dibs: in_ is a {type(connection).__name__}; it must be a connection of psycopg or psycopg2. "
                        "For others there is complete_in")
    return connection


_ENDED = "dibs: the transaction that settled the key ended before its COMMIT"


@contextlib.contextmanager
def _commits(lease: Lease, explicit: bool) -> Iterator[str]:
    """Give the statements that commit the transaction in which the lease was settled, and no other.

    PostgreSQL answers COMMIT with success if something else has ended the transaction or has failed
    in it since then, and drivers do not look. The drivers that begin transactions by themselves do
    not notice a COMMIT that is a statement, so such a connection is left in a new one.
    """
    try:
        yield (f"DO $$BEGIN IF current_setting('dibs.run', true) IS DISTINCT FROM '{lease.id}' THEN "
               f"RAISE EXCEPTION USING ERRCODE = 'DIBS2', MESSAGE = '{_ENDED}'; END IF; END$$; COMMIT" + ("" if explicit else "; BEGIN"))
    except Exception as e:
        if _sqlstate(e) != "DIBS2":
            raise
        raise WrongTransaction(f"{_ENDED}. Something else has used the connection meanwhile; give once one of its own", key=lease.key) from e


@contextlib.contextmanager
def _transaction(connection: Any, lease: Lease) -> Iterator[Any]:
    """Give a cursor in a transaction of its own, which is committed if it has settled the lease, or
    rolled back after an error.
    """
    _require_idle(connection, lease)
    explicit, cursor = connection.autocommit, connection.cursor()
    try:
        if explicit:
            cursor.execute("BEGIN")
        cursor.execute("SET LOCAL dibs.run = 'on'")
        yield cursor
        with _commits(lease, explicit) as statements:
            cursor.execute(statements)
        if not explicit:
            connection.rollback()
    except BaseException:
        with contextlib.suppress(Exception):  # a connection that broke has no transaction
            cursor.execute("ROLLBACK") if explicit else connection.rollback()
        raise


@contextlib.asynccontextmanager
async def _async_transaction(connection: Any, lease: Lease) -> AsyncIterator[Any]:
    """As _transaction, on an asynchronous connection."""
    _require_idle(connection, lease)
    explicit, cursor = connection.autocommit, connection.cursor()
    try:
        if explicit:
            await cursor.execute("BEGIN")
        await cursor.execute("SET LOCAL dibs.run = 'on'")
        yield cursor
        with _commits(lease, explicit) as statements:
            await cursor.execute(statements)
        if not explicit:
            await connection.rollback()
    except BaseException:
        with contextlib.suppress(Exception):
            await (cursor.execute("ROLLBACK") if explicit else connection.rollback())
        raise


def _require_idle(connection: Any, lease: Lease) -> None:
    if connection.info.transaction_status != 0:  # IDLE
        raise WrongTransaction("dibs: the connection is in a transaction already; once begins and commits its own, so call it outside, "
                               "or use complete_in", key=lease.key)


# A ticket is a place in a key's queue as text: the same text as in the Go library.

def _write_ticket(attempt: _Attempt) -> str:
    parts = (bytes.fromhex(attempt.token), attempt.namespace.encode(), attempt.raw)
    return ".".join(["dibs1", *(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)])


def _read_ticket(text: str) -> tuple[str, str, Key]:
    """Return the token, the namespace and the key."""
    bad = ValueError("dibs: not a ticket of Client.reserve")  # without the text, which is a secret
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) != 4 or parts[0] != "dibs1":
        raise bad
    read = []
    for part in parts[1:]:
        try:
            data = base64.b64decode((part + "=" * (-len(part) % 4)).encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise bad from None
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != part:
            raise bad
        read.append(data)
    token, namespace, key = read
    if len(token) != 16:
        raise bad
    try:
        name = namespace.decode()
    except UnicodeDecodeError:
        raise bad from None
    try:
        return token.hex(), name, key.decode()
    except UnicodeDecodeError:
        return token.hex(), name, key


# The record that once leaves behind is the same as in the Go library.

class _Kept(NamedTuple):
    """What a run of once leaves behind."""

    record: bytes
    value: Any  # what later callers get
    result: Any  # what the function returned
    why: Exception | None = None  # the result cannot be stored, and the record says why


def _kept_result(result: Any) -> _Kept:
    try:
        _check_keys(result)
        record = json.dumps({"value": result}, ensure_ascii=False, allow_nan=False).encode()
        return _Kept(record, json.loads(record)["value"], result)
    except Exception as e:
        return _Kept(_not_kept(e), None, result, e)


def _kept_error(error: Exception) -> _Kept:
    try:
        return _Kept(json.dumps({"error": str(error)}, ensure_ascii=False).encode(errors="replace"), None, None)
    except Exception as e:
        return _Kept(_not_kept(e), None, None, e)


def _not_kept(why: Exception) -> bytes:
    """Return the record of a run that was done, and whose result cannot be stored."""
    text = _plain(why).encode(errors="replace")[:500].decode(errors="ignore")
    return json.dumps({"not_kept": text}, ensure_ascii=False).encode()


def _check_keys(value: Any) -> None:
    """Refuse what json would turn into a text."""
    if isinstance(value, dict):
        for key, element in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of a dict in the result is of type {type(key).__name__}, not str")
            _check_keys(element)
    elif isinstance(value, (list, tuple)):
        for element in value:
            _check_keys(element)


def _read_record(done: Done, attempt: _Attempt) -> Any:
    body = None
    with contextlib.suppress(ValueError):
        body = json.loads(done.record)
    if isinstance(body, dict):
        if isinstance(body.get("error"), str):
            raise Remembered(body["error"], key=attempt.key) from None
        if isinstance(body.get("not_kept"), str):
            raise Unrecorded(f"dibs: the function of once for the key {attempt.digest()} ran before, and its result could not be stored: "
                             f"{body['not_kept']}. dibs resolve --result gives callers a result, and --rerun lets the next one run",
                             key=attempt.key) from None
        if "value" in body:
            return body["value"]
    raise Refused(f"dibs: the record of the key {attempt.digest()} is not one of once", key=attempt.key) from None


_OPTIONS = tuple(Options.__annotations__)
_HOST = socket.gethostname().encode(errors="replace").decode()


class Client:
    """Takes, waits for, renews and settles leases. Make one with connect.

    A client has these defaults: the ttl of its leases, the timeout of one call, the namespace of
    its keys (default: the server's or the credential's), and a label that tells operators what the
    keys are held for (default: the program's name). For complete_in, reserve_in and once with in_,
    schema and prefix are those of the store's URL.
    """

    def __init__(self, url: str, *, ttl: Duration = TTL, timeout: Duration = TIMEOUT, namespace: str = "",
                 label: str | None = None, schema: str = "public", prefix: str = "dibs") -> None:
        self._address = _Address(url)
        self._ttl = _ttl(ttl)
        self._timeout = _seconds(timeout, "timeout")
        if self._timeout == 0:
            raise ValueError("dibs: timeout is 0; it must be more")
        self._namespace, self._own = namespace, namespace or None
        self._schema, self._prefix = schema, prefix
        self._label = os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else "") if label is None else label
        self._closed = False
        self._local: _Local | None = None
        self._silent: dict[str, float] = {}  # by the token of a reserved place: when it sent the last claim that was not answered
        self._mine = threading.local()  # the leases of this thread's blocks
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], weakref.WeakSet[Lease]] = weakref.WeakKeyDictionary()

    @property
    def timeout(self) -> float:
        """How long one call may take in all, in seconds. A call that waits may take as long as it waits, too."""
        return self._timeout

    @property
    def namespace(self) -> str:
        """The namespace of the keys."""
        return self._namespace

    @property
    def aio(self) -> AsyncClient:
        """The same client for asyncio."""
        return AsyncClient(self)

    def lock(self, key: Key, **options: Unpack[Options]) -> _Block:
        """Hold the key while a with block runs. Callers get it in the order in which they arrive.

            with keys.lock("invoice 42", wait=30) as lease:
                ...

        The options are those of Options. Every way out of the block releases the key. If the lease
        was lost, the block ends with Lost, unless it raised. A caller that already holds the key in
        this thread gets Held at once, because its wait would never end. The with statement also
        raises Mismatch, Unknown, Unavailable, Busy, Full, Refused and its kinds, and Closed.
        """
        return _Block(self, self._asked(key, options))

    def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True, **options: Unpack[Options]) -> Lease:
        """Take the key like lock and return the Lease, which is renewed until it is settled.

        max_age (math.inf: any) accepts a record up to that age: acquire then raises Done. With
        renew=False the lease lasts for its ttl. A lease that nobody has any more is abandoned.
        """
        lease = Lease(self, self._asked(key, options, max_age=_age(max_age)))
        try:
            self._take(lease, self._of_thread(), renew)
            return lease
        except BaseException:
            lease._attempt.give_up()
            raise

    def once(self, key: Key, fn: Callable[..., Any], *, keep: Duration = RETENTION, max_age: Duration | None = None,
             remember: Remember = (), rerun: bool = False, pass_lease: bool = False, in_: Any = None, **options: Unpack[Options]) -> Any:
        """Run fn under the key unless that was done before, and return its result.

        All callers get it: those that call while it runs wait, and those that call later get the
        stored one until keep is over (default: 24 hours), in any process. The result is stored as
        JSON, so every caller gets what JSON makes of it: tuples are lists.

        max_age: the age up to which a stored result is returned. Default: any.
        remember: an exception class, a tuple of them, or a function that is given the exception.
        Such errors are stored like a result; later callers get Remembered. Default: none, and the
        next caller runs.
        rerun: lets the next caller run if fn ran and its result could not be stored, for a fn that may
        run twice. Default: later callers get Unrecorded until keep is over, because fn had its effect.
        pass_lease: fn gets the lease as its argument.

        in_: a connection of psycopg or psycopg2 to the PostgreSQL database of the store, outside of a
        transaction. fn then runs in a transaction on it, which commits together with the result. So a
        crash leaves both or neither, and fn has its effect exactly once. An error rolls back; errors
        of the driver are for the caller, who calls once again after a conflict. A result that cannot be
        stored rolls back, too.

        The other arguments and errors are those of lock. If fn ran and its result could not be
        stored (it is not JSON, or too large), once raises NotKept.
        """
        retention = _retention(keep)
        connection = None if in_ is None else _connection(in_)
        attempt = self._asked(key, options, max_age=math.inf if max_age is None else _age(max_age))

        def run(lease: Lease) -> Any:
            return _returned(fn(lease) if pass_lease else fn())
        with contextlib.ExitStack() as stack:
            try:
                lease = stack.enter_context(_Block(self, attempt))
            except Done as done:
                return _read_record(done, attempt)
            if connection is not None:
                return _run_in(connection, lease, lambda: run(lease), retention, remember)
            try:
                result = run(lease)
            except Exception as e:
                if _remembers(remember, e):
                    _keep(lease, _kept_error(e), retention, rerun)
                raise
            kept = _kept_result(result)
            _keep(lease, kept, retention, rerun)
            return kept.value

    def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction of the application: it exists when the transaction commits.

        See reserve. For the cursor and its errors see Lease.complete_in.
        """
        attempt = self._attempt(key, grace=grace, label=label, place_ttl=_place_ttl(ttl))
        with self._reserves_in(attempt, self._namespace_of(attempt)) as statement:
            cursor.execute(*statement)
        return str(_first(cursor.fetchone()))

    def reserve(self, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, fingerprint: str | None = None,
                label: str | None = None) -> str:
        """Take a place in the key's queue without waiting there, and return its ticket.

        It is a text to keep secret, for redeem in any process. The place lasts for ttl (default: 7
        days). Until it is redeemed or has ended, no caller behind it gets the key, but a free key
        waits for it for at most grace (default: as long as the place lasts).
        """
        lease = self._reservation(key, ttl, grace, fingerprint, label)
        try:
            ticket = self._reserve(lease)
            return ticket
        except BaseException:
            lease._attempt.give_up()  # nobody has its ticket
            raise

    def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now, with this grace.

        A place that has ended is reserved again, at the end of the queue.
        """
        token, namespace, key = _read_ticket(ticket)
        self._here().undoer.claims(token)
        self._ask_place(self._attempt(key, namespace=namespace, token=token, grace=grace, place_ttl=_place_ttl(ttl)))

    def redeem(self, ticket: str, *, grace: Duration | None = None, **options: Unpack[Options]) -> _Block:
        """Hold the key while a with block runs at a reserved place, like lock.

        If it gives up waiting, the place stays and can be redeemed again. If the place has ended,
        wait=0 takes the key if it is free, and a caller that waits joins the queue at the end. The
        end of the block ends the place. grace limits how long the place keeps others from a free key
        if this process dies.
        """
        token, namespace, key = _read_ticket(ticket)
        return _Block(self, self._asked(key, options, namespace=namespace, place=token, grace=grace))

    def cancel(self, ticket: str) -> None:
        """Give a reserved place back. It raises Lost if the place had ended before."""
        token, namespace, key = _read_ticket(ticket)
        attempt = self._attempt(key, namespace=namespace, token=token)
        tries = _Tries(self._timeout)
        repeated = False
        while True:
            try:
                answers, _, again = self._here().call("settle", {"settlements": [{**attempt.named(), "outcome": "release"}]}, 1)
                kind, detail = _problem(answers[0])
                if kind in (None, "lost"):
                    self._here().undoer.settled(attempt.named(), self._silent.get(token, -math.inf))
                if kind is not None and not (kind == "lost" and (again or repeated)):
                    raise _error(kind, detail, attempt)
                return
            except (Unavailable, Busy, Overloaded) as e:
                repeated = repeated or e._unanswered
                if not tries.again():
                    raise

    def held(self, key: Key) -> bool:
        """Report whether a caller holds the key, or comes before a new one. It changes nothing."""
        attempt = self._attempt(key)
        answer = self._ask_retrying(attempt, "look")
        if answer.get("state") not in ("held", "free"):
            raise _refusal(attempt, answer)
        return answer["state"] == "held"

    def flush(self, limit: Duration | None = None) -> bool:
        """Wait until what is undone in the background is done, for at most limit (default: timeout).

        At the end of the program it is called by itself. It reports whether all is done.
        """
        seconds = self._timeout if limit is None else _seconds(limit, "limit")
        local = self._local
        return local is None or local.pid != os.getpid() or local.undoer.flush(seconds)

    def close(self) -> None:
        """Settle what is to be undone, for at most the timeout, and close the connections.

        Callers that wait get Closed. Leases that are held are not renewed any more.
        """
        local = self._local
        if not self._closed and local is not None and local.pid == os.getpid():
            self._closed = True
            local.cut()
            local.undoer.flush(self._timeout)
            local.stop()
        self._closed = True

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        local = getattr(self, "_local", None)
        if local is not None and not _finalizing() and local.pid == os.getpid():
            local.stop()

    def __repr__(self) -> str:  # shows no token
        return f"<dibs.Client {','.join(map(str, self._address.servers))}>"

    def _here(self) -> _Local:
        """Return what the client has in this process."""
        if self._closed:
            raise Closed("dibs: the client is closed")
        local = self._local
        if local is None or local.pid != os.getpid():
            with _lock:
                local = self._local
                if local is None or local.pid != os.getpid():
                    local = _Local(self._address, self._timeout)
                    _locals.add(local)
                    local.start()
                    self._local = local
        return local

    def _of_thread(self) -> weakref.WeakSet[Lease]:
        """Return the leases of this thread's blocks."""
        mine: weakref.WeakSet[Lease] | None = getattr(self._mine, "leases", None)
        if mine is None:
            mine = self._mine.leases = weakref.WeakSet()
        return mine

    def _of_task(self) -> weakref.WeakSet[Lease]:
        """Return the leases of this task's blocks."""
        import asyncio
        task = asyncio.current_task()
        return weakref.WeakSet() if task is None else self._tasks.setdefault(task, weakref.WeakSet())

    def _asked(self, key: Key, options: Any, **more: Any) -> _Attempt:
        """Return the attempt of a caller's options, and of what the method adds."""
        unknown = ", ".join(name for name in options if name not in _OPTIONS)
        if unknown:
            raise TypeError(f"dibs: unknown argument: {unknown}; there are {', '.join(_OPTIONS)}")
        return self._attempt(key, **options, **more)

    def _attempt(self, key: Key, *, ttl: Duration | None = None, wait: Duration | None = None, permits: int = 1, weight: int = 1,
                 fingerprint: str | None = None, at_most_once: bool = False, margin: Duration | None = None,
                 longest: Duration | None = None, label: str | None = None, max_age: float | None = None, grace: Duration | None = None,
                 place_ttl: float = _PLACE_TTL, place: str | None = None, token: str | None = None, namespace: str | None = None) -> _Attempt:
        """Validate what the caller asks for."""
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"dibs: a key is a str or bytes, not {type(key).__name__}")
        try:
            size = len(key.encode() if isinstance(key, str) else key)
        except UnicodeEncodeError:
            raise ValueError("dibs: the key is a str that UTF-8 does not have") from None
        if not 1 <= size <= 512:
            raise ValueError(f"dibs: the key has {size} bytes; it must have 1 to 512")
        asked = {
            "ttl": self._ttl if ttl is None else _ttl(ttl), "wait": None if wait is None else _seconds(wait, "wait"),
            "permits": permits, "weight": weight, "fingerprint": fingerprint, "at_most_once": at_most_once,
            "margin": None if margin is None else _seconds(margin, "margin"),
            "longest": None if longest is None else _seconds(longest, "longest"),
            "max_age": max_age, "grace": None if grace is None else _seconds(grace, "grace"), "place_ttl": place_ttl, "place": place, "token": token,
            "owner": {"host": _HOST, "pid": os.getpid(), "label": _printable(self._label if label is None else label)},
        }
        if (asked["margin"] or 0) > asked["ttl"] / 2:
            raise ValueError(f"dibs: margin is {margin!r}; it must be at most half of the ttl of {asked['ttl']}")
        if not isinstance(permits, int) or not 1 <= permits <= 65_536:
            raise ValueError(f"dibs: permits is {permits!r}; it must be 1 to 65536")
        if not isinstance(weight, int) or not 1 <= weight <= permits:
            raise ValueError(f"dibs: weight is {weight!r}; it must be 1 to permits")
        if permits > 1 and (at_most_once or max_age is not None):
            raise ValueError("dibs: permits cannot be more than 1 together with at_most_once or max_age")
        if fingerprint is not None and not re.fullmatch("[0-9A-Fa-f]{64}", fingerprint):
            raise ValueError("dibs: fingerprint is no SHA-256 in 64 hexadecimal digits, such as hashlib.sha256(data).hexdigest()")
        attempt = _Attempt(key, self._namespace if namespace is None else namespace, asked)
        attempt.place_silent = self._silent.get(place or "", -math.inf)
        return attempt

    def _take(self, lease: Lease, mine: weakref.WeakSet[Lease], renew: bool = True) -> None:
        """Take the lease, or raise and leave nothing of it behind."""
        attempt = lease._attempt
        local = attempt.local = self._here()
        _waits_for_itself(attempt, mine)
        try:
            local.waits.add(attempt)
            answer, sent = self._wait(local, attempt)
            attempt.grant(answer, sent)
            if renew:
                local.renewer.add(attempt)
            if attempt.given_up:
                raise _gone(attempt)
        except BaseException as e:
            attempt.give_up()
            if attempt.place and isinstance(e, Mismatch):  # the place could never be redeemed
                local.undoer.settle(attempt, {"outcome": "release"}, place=True)
            raise
        finally:
            local.waits.discard(attempt)
            if local.closing:
                local.undoer.look()

    def _wait(self, local: _Local, attempt: _Attempt) -> tuple[dict[str, Any], float]:
        """Ask until the attempt is granted, refused or given up, and return the answer and when the
        claim was sent.
        """
        start = heard = _now()
        once = attempt.wait == 0
        ends = math.inf if attempt.wait is None else start + attempt.wait
        poll, pause = 0.0, 0.01
        while True:
            if attempt.given_up:
                raise _gone(attempt)
            self._here()
            try:
                answer, sent = self._ask(local, attempt, "try" if once else "queue", poll)
                heard = _now()  # busy, too, is an answer
                kind, detail = _problem(answer)
                if kind is not None:
                    raise _error(kind, detail, attempt)
                pause = 0.01
                state = answer.get("state")
                if state == "granted":
                    # The trust counts from when the claim was sent. If that was long ago, the same
                    # claim is sent again: it gets the same lease, for a whole TTL.
                    if poll == 0 or heard - sent < attempt.ttl / 20:
                        return answer, sent
                    poll = 0.0
                    continue
                if state != "held" or once or heard >= ends:
                    raise _refusal(attempt, answer, heard - start)
                poll = min(ends - heard, _POLL)
            except (Unavailable, Busy, Overloaded) as e:
                self._here()
                if poll and isinstance(e, Unavailable):
                    heard = _now()  # until then the server waited on purpose
                pause = min(pause * 2, 1.0)
                rest = pause * random.uniform(0.5, 1.0)
                if _now() + rest > (start + 1.0 if once else min(heard + _KEEP_PATIENCE, ends)):
                    raise
                time.sleep(rest)
                if not isinstance(e, Overloaded):
                    poll = 0.0

    def _ask(self, local: _Local, attempt: _Attempt, mode: str, poll: float) -> tuple[dict[str, Any], float]:
        """Send the claim once and note what it may have at the store."""
        before = attempt.open, attempt.silent
        attempt.open, attempt.silent = True, _now()
        body: dict[str, Any] = {"claims": [attempt.wire(mode)]}
        if poll > 0:
            body["wait_ms"] = _ms(poll)
        try:
            answers, sent, silent = local.call("claim", body, 1, wait=poll)
        except Error as e:
            if not e._unanswered:  # nothing was done
                attempt.open, attempt.silent = before
            raise
        answer = answers[0]
        attempt.open = answer.get("state") == "granted" or answer.get("queued") is True or "error" in answer
        if not silent:
            attempt.silent = before[1]
        return answer, sent

    def _ask_retrying(self, attempt: _Attempt, mode: str) -> dict[str, Any]:
        """Ask once, and again for a second if the server is away."""
        tries = _Tries(1.0)
        local = attempt.local = self._here()
        while True:
            try:
                answer, _ = self._ask(local, attempt, mode, 0.0)
                kind, detail = _problem(answer)
                if kind is not None:
                    raise _error(kind, detail, attempt)
                return answer
            except (Unavailable, Busy, Overloaded):
                if not tries.again():
                    raise

    def _ask_place(self, attempt: _Attempt) -> None:
        """Reserve a place."""
        try:
            answer = self._ask_retrying(attempt, "reserve")
        finally:
            if attempt.silent > -math.inf:
                self._silent[attempt.token] = attempt.silent
                for token, silent in list(self._silent.items()):
                    if silent < _now() - _FROZEN:
                        self._silent.pop(token, None)
        if answer.get("state") != "held" or not answer.get("queued"):
            raise _refusal(attempt, answer)

    def _namespace_of(self, attempt: _Attempt) -> str:
        """Return the namespace of a key: if the credential decides it, the server says it."""
        if self._own is None:
            self._own = self._ask_retrying(self._attempt(attempt.key), "look").get("namespace") or ""
        return self._own

    @contextlib.contextmanager
    def _reserves_in(self, attempt: _Attempt, namespace: str) -> Iterator[tuple[str, list[Any]]]:
        """Give the statement that reserves a place in a transaction, and read its errors."""
        grace, owner = attempt._options["grace"], attempt._options["owner"]
        text = f"{owner['host'].replace(' ', '_')} {owner['pid']} {owner['label']}".encode()[:255]
        values = [_b64(attempt.raw), _interval(attempt.place_ttl), None if grace is None else _interval(grace), namespace, _b64(text)]
        with self._function("reserve_in", attempt) as name:
            yield f"SELECT {name}(%s::text, %s::text::interval, %s::text::interval, %s::text, %s::text, 'base64')", values

    @contextlib.contextmanager
    def _function(self, function: str, attempt: _Attempt) -> Iterator[str]:
        """Give the name of a function of the store, and read the errors of its call."""
        name = ".".join('"' + part.replace('"', '""') + '"' for part in (self._schema, f"{self._prefix}_{function}"))
        try:
            yield name.replace("%", "%%")
        except Exception as e:
            error = _function_error(e, name, attempt)
            if error is None:
                raise
            raise error from e

    def _reservation(self, key: Key, ttl: Duration, grace: Duration | None, fingerprint: str | None, label: str | None) -> Lease:
        return Lease(self, self._attempt(key, grace=grace, fingerprint=fingerprint, label=label, place_ttl=_place_ttl(ttl)))

    def _reserve(self, lease: Lease) -> str:
        """Reserve a place and return its ticket, or raise and leave nothing of it behind."""
        attempt = lease._attempt
        try:
            self._ask_place(attempt)
            ticket = _write_ticket(attempt)
            if attempt.given_up:
                raise _gone(attempt)
            attempt.settled = True  # its end is that of the ticket
            return ticket
        except BaseException:
            attempt.give_up()
            raise


def _age(max_age: Duration | None) -> float | None:
    return max_age if max_age is None or max_age == math.inf else _seconds(max_age, "max_age")  # type: ignore[return-value]


def _place_ttl(ttl: Duration) -> float:
    seconds = _seconds(ttl, "ttl")
    if seconds < 0.001:
        raise ValueError(f"dibs: the ttl of a place is {ttl!r}; it must be at least 1 ms")
    return seconds


def _printable(label: str) -> str:
    return str(label).encode(errors="replace").decode()[:100]


def _gone(attempt: _Attempt) -> Error:
    return Error(f"dibs: the caller of the key {attempt.digest()} went away", key=attempt.key)


def _waits_for_itself(attempt: _Attempt, mine: weakref.WeakSet[Lease]) -> None:
    """Refuse a wait for a key that the caller itself holds."""
    if attempt.wait == 0:
        return
    held = [a for a in (lease._attempt for lease in mine) if a.raw == attempt.raw and a.namespace == attempt.namespace and a.live()]
    if not held or (all(a.permits == attempt.permits for a in held) and sum(a.weight for a in held) + attempt.weight <= attempt.permits):
        return
    raise Held(f"dibs: the key {attempt.digest()} is held by the caller itself, and waiting would never end", key=attempt.key)


def _refusal(attempt: _Attempt, answer: dict[str, Any], waited: float = 0.0) -> Error:
    """Return the error of an answer that is no grant."""
    digest, state = attempt.digest(), answer.get("state")
    if state == "held":
        left = answer.get("left_ms", 0) / 1000
        text = f"after waiting {waited:.3f} s" if attempt.wait else f"for {left:.3f} s more at most unless it is renewed"
        return Held(f"dibs: the key {digest} is held, {text}", key=attempt.key, left=left, ahead=answer.get("ahead", 0), waited=waited)
    if state == "done":
        record = answer.get("record", {})
        return Done(f"dibs: the key {digest} is done", key=attempt.key, record=base64.b64decode(record.get("data") or ""),
                    age=record.get("age_ms", 0) / 1000)
    if state == "mismatch":
        return Mismatch(f"dibs: the key {digest} was used with another fingerprint", key=attempt.key)
    if state == "unknown":
        return Unknown(f"dibs: the outcome of the attempt {answer.get('id')} on the key {digest} is unknown; an operator must resolve it",
                       key=attempt.key, id=answer.get("id", ""))
    return Refused(f"dibs: the key {digest}: the server answers with the state {state!r}", key=attempt.key)


def _remembers(remember: Remember, error: Exception) -> bool:
    if isinstance(error, (NotKept, Lost, WrongTransaction)):
        return False
    if isinstance(remember, (type, tuple)):
        return isinstance(error, remember)
    return bool(remember(error))


def _returned(result: Any) -> Any:
    """Refuse a coroutine that nobody awaits: the function has not run."""
    if isinstance(result, types.CoroutineType):
        result.close()
        raise TypeError("dibs: the function of once is a coroutine function; use keys.aio.once")
    return result


def _keep(lease: Lease, kept: _Kept, retention: float, rerun: bool) -> None:
    """Store what the function of once did, or raise NotKept.

    If the result cannot be stored, a record says that the function ran, unless rerun is set.
    """
    why, note = kept.why, kept.record
    if why is None:
        try:
            return lease._settle(lease._record(kept.record, retention), _KEEP_PATIENCE)
        except Lost:
            raise
        except Error as e:
            why, note = e, _not_kept(e)
    if not rerun:
        rerun = not _note(lease, why, note, retention)
    raise _not_stored(lease, why, kept.result, rerun) from why


def _note(lease: Lease, why: Exception, record: bytes, retention: float) -> bool:
    """Leave the record that says that the function ran, and report whether nobody runs it again."""
    if not isinstance(why, (Unavailable, Busy, Overloaded)):
        try:
            lease._settle(lease._record(record, retention), _KEEP_PATIENCE)
            return True
        except Lost:
            raise
        except Error:
            pass
    if not lease._attempt.at_most_once:
        return False
    with contextlib.suppress(Error):  # it is done in the background
        lease._release("abandon")
    return True


def _not_stored(lease: Lease, why: Exception, result: Any, rerun: bool, how: str = "") -> NotKept:
    then = "the next caller runs again" if rerun else "later callers get an error that says so"
    return NotKept(f"dibs: the result for the key {lease._attempt.digest()} could not be stored{how}, and {then}: {_plain(why)}",
                   key=lease.key, result=result, rerun=rerun)


def _kept_in(lease: Lease, result: Any) -> _Kept:
    """Return what a transaction stores. If it cannot be stored, NotKept rolls the transaction back."""
    kept = _kept_result(result)
    if kept.why is not None:
        raise _rolled_back(lease, kept.why, result) from kept.why
    return kept


def _rolled_back(lease: Lease, why: Exception, result: Any) -> NotKept:
    return _not_stored(lease, why, result, True, ", its transaction was rolled back")


def _run_in(connection: Any, lease: Lease, run: Callable[[], Any], retention: float, remember: Remember) -> Any:
    """Run the function of once in a transaction that settles the lease, and return its result."""
    kept: _Kept | None = None
    settled = False
    try:
        with _transaction(connection, lease) as cursor:
            kept = _kept_in(lease, run())
            with lease._settles_in(kept.record, retention, "marked") as statement:
                cursor.execute(*statement)
            settled = True
    except Exception as e:
        if not settled and _remembers(remember, e):
            _keep(lease, _kept_error(e), retention, True)
        if isinstance(e, TooLarge) and kept is not None:
            raise _rolled_back(lease, e, kept.result) from e
        if kept is None or not settled or not lease._find_out(kept.record, retention):
            raise
    assert kept is not None
    lease._committed()
    return kept.value


_USED = "dibs: a lock is entered once; call lock or redeem again for each with statement"


class _Block:
    """Holds a key while a with block runs."""

    def __init__(self, client: Client, attempt: _Attempt) -> None:
        self._client, self._attempt = client, attempt
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise RuntimeError(_USED)
        self._lease = lease = Lease(self._client, self._attempt)
        try:
            mine = self._client._of_thread()
            self._client._take(lease, mine)
            mine.add(lease)
            lease.check()
            return lease
        except BaseException:
            self._attempt.give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        lease = self._lease
        assert lease is not None
        try:
            self._client._of_thread().discard(lease)
            lost = lease._finish()
        except BaseException:
            lease._hand_over({"outcome": "release"})
            raise
        if lost and kind is None:
            raise lost


# For asyncio, each call runs in a thread of its own: waiters would use up those of a pool, and a
# release would wait behind them. A call whose task is cancelled goes on, and what it gets is
# settled in the background.

async def _in_thread(work: Callable[[], T]) -> T:
    import asyncio  # here, because it takes longer than all else of this file
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as e:
            error = e
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="dibs call", daemon=True).start()
    return await future


async def _end(lease: Lease, settlement: dict[str, Any], work: Callable[[], T]) -> T:
    """End a lease in a thread. If the task is cancelled, that is done in the background."""
    try:
        return await _in_thread(work)
    except Error:
        raise
    except BaseException:
        lease._hand_over(settlement)
        raise


class AsyncLease:
    """A Lease for asyncio: what calls the server is awaited, and the rest is the same."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def key(self) -> Key:
        """The key that is held."""
        return self._lease.key

    @property
    def ttl(self) -> float:
        """The TTL in seconds."""
        return self._lease.ttl

    @property
    def attempt(self) -> int:
        """1 plus the number of leases in a row that were abandoned before this one."""
        return self._lease.attempt

    @property
    def progress(self) -> bytes | None:
        """What the holders that were abandoned before this one saved last, or None."""
        return self._lease.progress

    @property
    def held(self) -> bool:
        """Whether the lease is held and trusted."""
        return self._lease.held

    @property
    def fence(self) -> int:
        """The fencing token. It raises Lost like check."""
        return self._lease.fence

    @property
    def left(self) -> float:
        """The seconds for which the lease can still be trusted unless it is renewed."""
        return self._lease.left

    @property
    def id(self) -> str:
        """The public name of this attempt, which operators see."""
        return self._lease.id

    def check(self) -> AsyncLease:
        """Return the lease, and raise Lost if it is not held any more."""
        self._lease.check()
        return self

    async def save(self, progress: bytes) -> None:
        """Keep progress with the lease; see Lease.save."""
        await _in_thread(lambda: self._lease.save(progress))

    async def release(self) -> None:
        """End the lease; see Lease.release."""
        await _end(self._lease, {"outcome": "release"}, self._lease.release)

    async def complete(self, data: bytes, keep: Duration = RETENTION) -> None:
        """End the lease and leave data behind; see Lease.complete."""
        settlement = self._lease._record(data, _retention(keep))
        await _end(self._lease, settlement, lambda: self._lease._settle(settlement, _KEEP_PATIENCE))

    async def complete_in(self, cursor: Any, data: bytes | None, keep: Duration = RETENTION) -> None:
        """End the lease in a transaction, with an asynchronous cursor; see Lease.complete_in."""
        with self._lease._settles_in(data, _retention(keep), "written") as statement:
            await cursor.execute(*statement)

    async def abandon(self) -> None:
        """End the lease as if its holder had crashed; see Lease.abandon."""
        await _end(self._lease, {"outcome": "abandon"}, self._lease.abandon)

    async def undo(self) -> None:
        """End the lease as if it had not been granted; see Lease.undo."""
        await _end(self._lease, {"outcome": "undo"}, self._lease.undo)

    def __repr__(self) -> str:
        return repr(self._lease)


class _AsyncBlock:
    """Holds a key while an async with block runs."""

    def __init__(self, client: Client, attempt: _Attempt) -> None:
        self._client, self._attempt = client, attempt
        self._lease: Lease | None = None

    async def __aenter__(self) -> AsyncLease:
        if self._lease is not None:
            raise RuntimeError(_USED)
        self._lease = lease = Lease(self._client, self._attempt)
        try:
            mine = self._client._of_task()
            await _in_thread(lambda: self._client._take(lease, mine))
            mine.add(lease)
            lease.check()
            return AsyncLease(lease)
        except BaseException:
            self._attempt.give_up()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        lease = self._lease
        assert lease is not None
        self._client._of_task().discard(lease)
        lost = await _end(lease, {"outcome": "release"}, lease._finish)
        if lost and kind is None:
            raise lost


class AsyncClient:
    """A Client for asyncio: `keys.aio`. The arguments, results and errors are those of Client.

    A task that is cancelled leaves nothing behind: what it held or waited for is settled in the
    background.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def lock(self, key: Key, **options: Unpack[Options]) -> _AsyncBlock:
        """Hold the key while an async with block runs; see Client.lock. It knows the tasks apart."""
        return _AsyncBlock(self._client, self._client._asked(key, options))

    async def acquire(self, key: Key, *, max_age: Duration | None = None, renew: bool = True,
                      **options: Unpack[Options]) -> AsyncLease:
        """Take the key and return its lease; see Client.acquire."""
        client = self._client
        lease = Lease(client, client._asked(key, options, max_age=_age(max_age)))
        try:
            mine = client._of_task()
            await _in_thread(lambda: client._take(lease, mine, renew))
            return AsyncLease(lease)
        except BaseException:
            lease._attempt.give_up()
            raise

    async def once(self, key: Key, fn: Callable[..., Awaitable[Any]], *, keep: Duration = RETENTION, max_age: Duration | None = None,
                   remember: Remember = (), rerun: bool = False, pass_lease: bool = False, in_: Any = None, **options: Unpack[Options]) -> Any:
        """Await fn() under the key unless that was done before, and return its result; see Client.once."""
        client, retention = self._client, _retention(keep)
        connection = None if in_ is None else _connection(in_)
        attempt = client._asked(key, options, max_age=math.inf if max_age is None else _age(max_age))
        async with contextlib.AsyncExitStack() as stack:
            try:
                shown = await stack.enter_async_context(_AsyncBlock(client, attempt))
            except Done as done:
                return _read_record(done, attempt)
            lease = shown._lease

            async def keep(kept: _Kept, rerun: bool) -> None:
                settlement = {"outcome": "release"} if kept.why and rerun else lease._record(kept.record, retention)
                await _end(lease, settlement, lambda: _keep(lease, kept, retention, rerun))

            async def run() -> Any:
                result = fn(shown) if pass_lease else fn()
                return await result if isinstance(result, Awaitable) else result

            kept: _Kept | None = None
            settled = False
            try:
                if connection is None:
                    result = await run()
                else:
                    async with _async_transaction(connection, lease) as cursor:
                        kept = _kept_in(lease, await run())
                        with lease._settles_in(kept.record, retention, "marked") as statement:
                            await cursor.execute(*statement)
                        settled = True
            except Exception as e:
                if not settled and _remembers(remember, e):
                    await keep(_kept_error(e), rerun or connection is not None)
                if isinstance(e, TooLarge) and kept is not None:
                    raise _rolled_back(lease, e, kept.result) from e
                if kept is None or not settled or not await _in_thread(lambda: lease._find_out(kept.record, retention)):
                    raise
            if kept is not None:
                lease._committed()
            else:
                kept = _kept_result(result)
                await keep(kept, rerun)
            return kept.value

    async def reserve(self, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, fingerprint: str | None = None,
                      label: str | None = None) -> str:
        """Take a place in the key's queue and return its ticket; see Client.reserve."""
        lease = self._client._reservation(key, ttl, grace, fingerprint, label)
        try:
            return await _in_thread(lambda: self._client._reserve(lease))
        except BaseException:
            lease._attempt.give_up()
            raise

    async def reserve_in(self, cursor: Any, key: Key, *, ttl: Duration = PLACE, grace: Duration | None = None, label: str | None = None) -> str:
        """Take a place in a transaction, with an asynchronous cursor; see Client.reserve_in."""
        client = self._client
        attempt = client._attempt(key, grace=grace, label=label, place_ttl=_place_ttl(ttl))
        with client._reserves_in(attempt, await _in_thread(lambda: client._namespace_of(attempt))) as statement:
            await cursor.execute(*statement)
        return str(_first(await cursor.fetchone()))

    async def prolong(self, ticket: str, *, ttl: Duration = PLACE, grace: Duration | None = None) -> None:
        """Make a reserved place last for ttl from now; see Client.prolong."""
        await _in_thread(lambda: self._client.prolong(ticket, ttl=ttl, grace=grace))

    def redeem(self, ticket: str, *, grace: Duration | None = None, **options: Unpack[Options]) -> _AsyncBlock:
        """Hold the key while an async with block runs at a reserved place; see Client.redeem."""
        token, namespace, key = _read_ticket(ticket)
        return _AsyncBlock(self._client, self._client._asked(key, options, namespace=namespace, place=token, grace=grace))

    async def cancel(self, ticket: str) -> None:
        """Give a reserved place back; see Client.cancel."""
        await _in_thread(lambda: self._client.cancel(ticket))

    async def held(self, key: Key) -> bool:
        """Report whether a caller holds the key; see Client.held."""
        return await _in_thread(lambda: self._client.held(key))


# Forks and the end of the program.

_lock = threading.RLock()  # a signal handler may make a call while its thread makes its first one
_locals: set[_Local] = set()  # of the clients of this process, until their threads have ended


def _forked() -> None:
    """In a process that was forked: close the connections of its parent."""
    global _lock
    _lock = threading.RLock()
    for local in list(_locals):
        local.abandon()
    _locals.clear()


def _flush_all() -> None:
    ends = _now() + 2.0
    for local in list(_locals):
        local.undoer.flush(max(ends - _now(), 0.0))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_flush_all)
