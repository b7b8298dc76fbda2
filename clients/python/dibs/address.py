"""What the URL of a server says."""

from __future__ import annotations

import re
import urllib.parse
from typing import NamedTuple


class Server(NamedTuple):
    host: str
    port: int
    tls: bool
    socket: str | None

    def __str__(self) -> str:
        if self.socket:
            return f"unix:{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def name(self) -> str:
        """Return the Host of a request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        host = host if host.isascii() else host.encode("idna").decode()
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Address:
    """What a URL says."""

    def __init__(self, url: str) -> None:
        if not isinstance(url, str):
            raise TypeError(f"dibs: the URL of a server is a str, not {type(url).__name__}")
        self.authorization: bytes | None = None
        found = re.match(r"(?:http\+)?unix:(?://(?=/))?", url)
        self.servers = [self._socket(url[found.end():])] if found else self._hosts(url)

    def _socket(self, path: str) -> Server:
        if not path.startswith("/") or path.startswith("//") or "?" in path or "#" in path:
            raise self._bad("the URL of a socket is unix: and an absolute path, such as unix:/run/dibs/dibs.sock")
        return Server("localhost", 80, False, path)

    def _hosts(self, url: str) -> list[Server]:
        scheme, colon, rest = url.partition("://")
        if not colon or scheme not in ("http", "https"):
            raise self._bad("it must begin with https://, http:// or unix:")
        user, at, hosts = rest.rpartition("@")
        if at:
            if not user.startswith(":") or len(user) < 2:
                raise self._bad("the token stands in the password's place and there is no user, as in https://:TOKEN@HOST")
            if re.search(r"%(?![0-9A-Fa-f]{2})", user):
                raise self._bad("the token has a % that is not an escape")
            secret = urllib.parse.unquote_to_bytes(user[1:])
            if re.search(rb"[\x00-\x1f\x7f]", secret):
                raise self._bad("the token has a control character")
            self.authorization = b"Bearer " + secret
        hosts = hosts[:-1] if hosts.endswith("/") else hosts
        if re.search("[/?#]", hosts):
            raise self._bad("there is a path or a parameter after the host; the URL has neither")
        return [self._host(scheme, host) for host in hosts.split(",")]

    def _host(self, scheme: str, text: str) -> Server:
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@\s]+)(?::([0-9]+))?", text)
        port = int(found[2] or (443 if scheme == "https" else 80)) if found else 0
        if not found or not 1 <= port <= 65_535:
            raise self._bad("a host is none: write HOST or HOST:PORT, and an @ after a token")
        return Server(found[1].strip("[]"), port, scheme == "https", None)

    def _bad(self, why: str) -> ValueError:
        return ValueError(f"dibs: not the URL of a server: {why}")  # without the URL, which may have the token
