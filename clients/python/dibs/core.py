"""What the calls of a client stand on: what it was given, and what it has in this process."""

from __future__ import annotations

import json
import math
import os
import urllib.parse
from typing import Any

from . import process
from .address import Address
from .attempt import Attempt, Settings
from .errors import Closed, Holder
from .options import Key, Options
from .process import Process
from .step import Steps, T

OPTIONS = tuple(Options.__annotations__)


class Core:
    def __init__(self, url: str, settings: Settings) -> None:
        self._address, self._settings = Address(url), settings
        self._own = settings.namespace or None  # the namespace of its keys, when the server has said it
        self._closed = False
        self._process: Process | None = None
        self._silent: dict[str, float] = {}  # by the token of a reserved place: when it sent the last claim that was not answered

    def _here(self) -> Process:
        """Return what the client has in this process, which is made once."""
        if self._closed:
            raise Closed("dibs: the client is closed")
        here = self._process
        if here is None or here.pid != os.getpid():
            with process.lock:
                here = self._begin()
        return here

    def _begin(self) -> Process:
        made: Process | None = None
        try:
            if self._process is None or self._process.pid != os.getpid():
                made = self._new_process()
                made.start()
            if self._process is None or self._process.pid != os.getpid():  # a signal handler may have begun one meanwhile
                self._process, made = made, None
            assert self._process is not None
            return self._process
        finally:
            if made is not None:  # a signal handler raised
                made.end()

    def _new_process(self) -> Process:
        return Process(self._address, self._settings)

    def _run(self, steps: Steps[T]) -> T:
        return self._here().run(steps)

    def _asked(self, key: Key, options: Any, **more: Any) -> Attempt:
        """Return the attempt of a caller's options, and of what the method adds."""
        unknown = ", ".join(name for name in options if name not in OPTIONS)
        if unknown:
            raise TypeError(f"dibs: unknown argument: {unknown}; there are {', '.join(OPTIONS)}")
        return self._attempt(key, **options, **more)

    def _attempt(self, key: Key, **options: Any) -> Attempt:
        attempt = Attempt(self._settings, key, **options)
        if self._silent:
            attempt.silent, attempt.place_silent = (self._silent.get(token or "", -math.inf) for token in (attempt.token, attempt.place))
        return attempt

    def _give_up(self, attempt: Attempt) -> None:
        """Undo what the token may have, for a caller that never got the lease."""
        if self._process is not None and not attempt.foreign():
            self._process.give_up(attempt)

    def _holder_of(self, attempt: Attempt) -> Holder | None:
        """Return who holds the key of an attempt: see Held.holder."""
        asked: dict[str, Any] = {"key": attempt.raw, **({"namespace": attempt.namespace} if attempt.namespace else {})}
        response = self._here().get(f"/v1/keys?{urllib.parse.urlencode(asked)}")
        if response.status != 200 or response.kind != "application/jsonl" or not response.body.strip():
            return None
        for lease in json.loads(response.body).get("runs") or []:
            owner = lease.get("owner") or {}
            return Holder(owner.get("host", ""), owner.get("pid", 0), owner.get("label", ""), lease.get("id", ""))
        return None
