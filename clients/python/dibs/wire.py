"""One HTTP connection: a request is one write, and its time ends at one moment."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import socket
import ssl
import threading
from typing import Any, NamedTuple

from . import clock
from .address import Server
from .clock import Bell

MAX_HEAD = 1 << 16  # bytes of the head of an answer
MAX_BODY = 128 << 20  # bytes of its body


class Broken(OSError):
    """The answer is not HTTP, or breaks off."""


class Head(NamedTuple):
    """What the head of an answer says."""

    status: int
    kind: str  # the media type
    length: int | None
    chunked: bool
    keep: bool  # the connection can be used again


@functools.lru_cache(32)  # the heads of a second are the same
def read_head(text: bytes) -> Head:
    first, *lines = text.decode("latin-1").split("\r\n")
    found = re.match(r"HTTP/1\.([01]) ([1-9]\d\d)(?: |$)", first)
    if not found:
        raise Broken("the answer is not HTTP/1.1")
    fields = {name.lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines)}
    length = fields.get("content-length")
    if length is not None and not re.fullmatch(r"\d{1,12}", length):
        raise Broken("the answer has no length")
    return Head(int(found[2]), fields.get("content-type", "").partition(";")[0].strip(), None if length is None else int(length),
                "transfer-encoding" in fields, found[1] == "1" and fields.get("connection") != "close")


class Response:
    """Reads an answer from what arrives."""

    def __init__(self) -> None:
        self.status = 0
        self.kind = ""
        self.keep = True
        self.body = b""
        self._data = bytearray()
        self._head: Head | None = None

    def feed(self, data: bytes) -> bool:
        """Add what arrived, b"" for the end of the connection, and report whether the answer is whole."""
        self._data += data
        head = self._head or self._read_head()
        if head is None:
            if data:
                return False
            raise Broken("the answer breaks off") if self._data else ConnectionResetError("the connection was closed")
        if len(self._data) > MAX_BODY:
            raise Broken("the answer is too long")
        if head.chunked:
            whole = self._read_chunks()
        elif head.length is not None:
            whole = len(self._data) >= head.length
            if whole:
                self.body = bytes(self._data[:head.length])
        else:
            whole = not data
            self.body, self.keep = bytes(self._data), False
        if not whole and not data:
            raise Broken("the answer breaks off")
        return whole

    def _read_head(self) -> Head | None:
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = read_head(bytes(self._data[:end]))
            del self._data[:end + 4]
            if head.status >= 200:
                self._head = head
                self.status, self.kind, self.keep = head.status, head.kind, head.keep
                return head
        if len(self._data) > MAX_HEAD:
            raise Broken("the head of the answer is too long")
        return None

    def _read_chunks(self) -> bool:
        """Decode the chunks, if the last one has arrived."""
        if not self._data.endswith(b"\r\n\r\n"):
            return False
        parts: list[bytes] = []
        at = 0
        while (end := self._data.find(b"\r\n", at)) >= 0:
            found = re.match(rb"([0-9A-Fa-f]{1,8})(?:;|$)", bytes(self._data[at:end]))
            if not found:
                raise Broken("the answer is not HTTP/1.1")
            size = int(found[1], 16)
            at = end + 2
            if size == 0:  # a trailer may follow
                if self._data[at:at + 2] != b"\r\n" and self._data.find(b"\r\n\r\n", at) < 0:
                    return False
                self.body = b"".join(parts)
                return True
            if len(self._data) < at + size + 2:
                return False
            parts.append(bytes(self._data[at:at + size]))
            at += size + 2
        return False


def limited(sock: socket.socket, ends: float) -> socket.socket:
    """Give the socket what is left of the time."""
    left = ends - clock.now()
    if left <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left)
    return sock


def addresses(server: Server, ends: float) -> list[Any]:
    """Return the addresses of a server. A resolver has no timeout, so a thread waits for it."""
    look: Any = functools.partial(socket.getaddrinfo, server.host, server.port, 0, socket.SOCK_STREAM)
    with contextlib.suppress(socket.gaierror):
        return list(look(0, socket.AI_NUMERICHOST))
    found: list[Any] = []
    bell = Bell()

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
    if not bell.wait(ends - clock.now()):
        raise TimeoutError("no address was found in time")
    if isinstance(found[0], Exception):
        raise found[0]
    return list(found[0])


def open_socket(server: Server, tls: ssl.SSLContext | None, ends: float) -> socket.socket:
    """Connect to a server. Each of its addresses has its share of the time."""
    if server.socket:
        return connected(socket.AF_UNIX, server.socket, ends)
    found = addresses(server, ends)
    for i, (family, _, _, _, address) in enumerate(found):
        share = clock.now() + (ends - clock.now()) / (len(found) - i)
        sock = None
        try:
            sock = connected(family, address, share)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return tls.wrap_socket(limited(sock, share), server_hostname=server.host) if tls else sock
        except BaseException as e:
            if sock is not None:
                sock.close()
            if i + 1 == len(found) or not isinstance(e, OSError) or isinstance(e, ssl.SSLCertVerificationError) or foreign_timeout(e, share):
                raise
    raise OSError("the name has no address")


def connected(family: int, address: Any, ends: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        limited(sock, ends).connect(address)
        return sock
    except BaseException:
        sock.close()
        raise


def foreign_timeout(error: BaseException, ends: float) -> bool:
    """Report whether a TimeoutError is the caller's, from a signal handler: it is before the time of the call."""
    return isinstance(error, TimeoutError) and error.errno is None and clock.now() < ends


class Wire:
    """One connection, and when it was last used."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None, peers: dict[Server, tuple[int, Any]]) -> None:
        self._server, self._tls, self._peers = server, tls, peers
        self.sock: socket.socket | None = None
        self.used: float | None = None

    def connect(self, ends: float) -> None:
        """Connect, unless it is connected."""
        if self.sock is None:
            self.sock = open_socket(self._server, self._tls, ends)
            self._peers[self._server] = self.sock.family, self.sock.getpeername()

    def post(self, request: bytes, ends: float) -> tuple[float, Response]:
        """Send a request, and return when it was sent and the answer."""
        sock = self.sock
        assert sock is not None
        sent, broke = clock.now(), None
        try:
            rest = memoryview(request)
            while rest:
                rest = rest[limited(sock, ends).send(rest):]
        except (BrokenPipeError, ConnectionResetError) as e:
            broke = e  # a server may answer before it has read all, and close
        response = Response()
        try:
            while not response.feed(limited(sock, ends).recv(1 << 16)):
                pass
        except (ConnectionError, Broken) as e:
            raise broke or e from None
        response.keep = response.keep and not broke
        return sent, response

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()

    def closed(self) -> bool:
        """Report whether the server closed the connection. Then nothing is sent over it."""
        if self.sock is None:
            return True
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([self.sock], [], [], 0)[0])

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
