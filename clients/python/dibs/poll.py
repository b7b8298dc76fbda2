"""Calls that wait, for tasks of asyncio: sockets under the loop."""

from __future__ import annotations

import asyncio
import socket

from . import clock
from .address import Server
from .errors import Unavailable
from .servers import Servers, body_of
from .step import Answer, Ask
from .wire import Response, Wire


async def poll(servers: Servers, ask: Ask, timeout: float) -> Answer:
    """Ask one server for a claim that waits there, over a connection of its own.

    It connects where a thread did, so nothing of a resolver is waited for.
    """
    first, server = servers.current()
    wire = servers.create(server)
    servers.polls.add(wire)
    limit = clock.now() + timeout + ask.wait
    sent: list[float] = []
    try:
        if servers.closing:
            raise Unavailable("dibs: the client is closed")
        talk = asyncio.ensure_future(exchange(servers, server, wire, ask, limit, sent))
        try:
            await asyncio.wait({talk}, timeout=limit - clock.now())
            if not talk.done():
                raise TimeoutError("timed out")
            response = talk.result()
        finally:
            talk.cancel()
        return Answer(servers.read(server, ask.verb, response, 1)[0], sent[0], False)
    except OSError as e:
        servers.leave(first)
        raise servers.away(server, e, bool(sent)) from e
    except Unavailable:
        servers.leave(first)
        raise
    finally:
        servers.polls.discard(wire)


async def exchange(servers: Servers, server: Server, wire: Wire, ask: Ask, limit: float, sent: list[float]) -> Response:
    loop = asyncio.get_running_loop()
    if server not in servers.peers:
        raise ConnectionError("no connection was made before")
    family, address = servers.peers[server]
    wire.sock = sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        if family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=sock, ssl=servers.tls, server_hostname=server.host if servers.tls else None)
        try:
            sent.append(clock.now())
            writer.write(servers.claim_request(server, ask.verb, body_of(ask.verb, [ask.element], ask.wait), limit))
            response = Response()
            while not response.feed(await reader.read(1 << 16)):
                pass
            return response
        finally:
            writer.transport.abort()
    finally:
        sock.close()
