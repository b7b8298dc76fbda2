"""A ticket is a place in a key's queue as text: the same text as in the Go library."""

from __future__ import annotations

import base64
import binascii

from .attempt import Attempt
from .options import Key


def write_ticket(attempt: Attempt) -> str:
    parts = (bytes.fromhex(attempt.token), attempt.namespace.encode(), attempt.raw)
    return ".".join(["dibs1", *(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)])


def read_ticket(text: str) -> tuple[str, str, Key]:
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
