"""One HTTP connection."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import os
import selectors
import socket
import ssl
import threading
from typing import Any

from . import clock
from .address import Server
from .clock import Bell

class Socket:
    """What http.client needs of a socket. All its calls end at one moment, ends, because the timeout
    of a socket is for each of them.
    """

    def __init__(self, sock: socket.socket, ends: float) -> None:
        self.sock, self.ends = sock, ends

    def limit(self) -> socket.socket:
        """Give the socket what is left of the time."""
        left = self.ends - clock.now()
        if left <= 0:
            raise TimeoutError("timed out")
        self.sock.settimeout(left)
        return self.sock

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.limit().send(rest):]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(Reader(self))

    def close(self) -> None:
        """Do nothing: http.client closes before it has read the body. Wire closes the socket."""


class Reader(io.RawIOBase):
    """Reads a Socket."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.limit().recv_into(buffer)


def addresses(server: Server, ends: float) -> list[tuple[Any, ...]]:
    """Return the addresses of a server. A resolver has no timeout, so a thread waits for it."""
    look = functools.partial(socket.getaddrinfo, server.host, server.port, 0, socket.SOCK_STREAM)
    with contextlib.suppress(socket.gaierror):
        return look(0, socket.AI_NUMERICHOST)
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
    return found[0]


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
            return tls.wrap_socket(Socket(sock, share).limit(), server_hostname=server.host) if tls else sock
        except BaseException as e:
            if sock is not None:
                sock.close()
            if i + 1 == len(found) or not isinstance(e, OSError) or isinstance(e, ssl.SSLCertVerificationError) or foreign_timeout(e, share):
                raise
    raise OSError("the name has no address")


def connected(family: int, address: Any, ends: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        Socket(sock, ends).limit().connect(address)
        return sock
    except BaseException:
        sock.close()
        raise


def foreign_timeout(error: BaseException, ends: float) -> bool:
    """Report whether a TimeoutError is the caller's, from a signal handler: it is before the time of the call."""
    return isinstance(error, TimeoutError) and error.errno is None and clock.now() < ends


class Wire:
    """One HTTP connection, and whether it was used before."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None) -> None:
        self._server, self._tls = server, tls
        self.http = http.client.HTTPConnection(server.host, server.port)
        self.http.default_port = 443 if server.tls else 80
        self.sock: socket.socket | None = None
        self.used: float | None = None  # when it was last used

    def connect(self, ends: float) -> None:
        """Connect, unless it is connected."""
        if self.http.sock is None:
            self.sock = open_socket(self._server, self._tls, ends)
            self.http.sock = Socket(self.sock, ends)

    def post(self, path: str, headers: dict[str, Any], body: bytes, ends: float) -> tuple[float, http.client.HTTPResponse, bytes]:
        """Send a request, and return when it was sent and the response with its body."""
        self.http.sock.ends = ends
        sent, broke = clock.now(), None
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
