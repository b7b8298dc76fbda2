"""How a key is claimed: docs/reference/serve.md has the picture."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from .attempt import Attempt
from .clock import Tries
from .errors import (Busy, Error, Held, Mismatch, Overloaded, Unavailable, error_of, gone, problem_of, refusal)
from .lease import PATIENCE, Lease
from .options import Key
from .step import Answer, Ask, Pause, Steps
from .ticket import write_ticket
from .undo import FROZEN

if TYPE_CHECKING:
    from .client import Client
    from .process import Process

POLL = 20.0  # the longest call that waits


def take(client: Client, lease: Lease, renew: bool = True) -> Steps[None]:
    """Take the lease, or raise and leave nothing of it behind."""
    attempt = lease._attempt
    process = attempt.process = client._here()
    start = attempt.clock.now()
    try:
        process.waits.add(attempt)
        answer, asked = yield from wait(client, process, attempt)
        attempt.grant(answer.element, answer.sent)
        if renew:
            process.renewer.add(attempt)
        if attempt.given_up:
            raise gone(attempt)
    except BaseException as e:
        attempt.give_up()
        if attempt.place and isinstance(e, Mismatch):  # the place could never be redeemed
            process.undoer.settle(attempt, {"outcome": "release"}, place=True)
        if isinstance(e, Held):
            attempt.hooks.tell("skipped", attempt, seconds=e.waited, error=e)
        elif isinstance(e, Unavailable):
            attempt.hooks.tell("unavailable", attempt, error=e)
        raise
    finally:
        process.waits.discard(attempt)
        if process.closing:
            process.undoer.look()
    attempt.hooks.tell("waited" if asked > 1 else "acquired", attempt, seconds=attempt.clock.now() - start)


def wait(client: Client, process: Process, attempt: Attempt) -> Steps[tuple[Answer, int]]:
    """Ask until the attempt is granted, refused or given up, and return the answer and how often it was
    held before."""
    clock = attempt.clock
    start = heard = clock.now()
    once = attempt.wait == 0
    ends = math.inf if attempt.wait is None else start + attempt.wait
    poll, pause, asked = 0.0, 0.01, 1
    while True:
        if attempt.given_up:
            raise gone(attempt)
        client._here()
        try:
            answer = yield from ask(attempt, "try" if once else "queue", poll)
            heard = clock.now()  # busy, too, is an answer
            kind, detail = problem_of(answer.element)
            if kind is not None:
                raise error_of(kind, detail, attempt)
            pause = 0.01
            state = answer.element.get("state")
            if state == "granted":
                # The trust counts from when the claim was sent. If that was long ago, the same
                # claim is sent again: it gets the same lease, for a whole TTL.
                if poll == 0 or heard - answer.sent < attempt.ttl / 20:
                    return answer, asked
                poll = 0.0
                continue
            if state != "held" or once or heard >= ends:
                raise refusal(attempt, answer.element, client, heard - start)
            poll, asked = min(ends - heard, POLL), asked + 1
        except (Unavailable, Busy, Overloaded) as e:
            client._here()
            if poll and isinstance(e, Unavailable):
                heard = clock.now()  # until then the server waited on purpose
            pause = min(pause * 2, 1.0)
            rest = pause * random.uniform(0.5, 1.0)
            if clock.now() + rest > (start + 1.0 if once else min(heard + PATIENCE, ends)):
                raise
            if not isinstance(e, Overloaded):
                poll = 0.0
            again = rest
        else:
            continue
        yield Pause(again)


def ask(attempt: Attempt, mode: str, poll: float = 0.0) -> Steps[Answer]:
    """Send the claim once and note what it may have at the store."""
    before = attempt.open, attempt.silent
    attempt.open, attempt.silent = True, attempt.clock.now()
    try:
        answer: Answer = yield Ask("claim", attempt.wire(mode), attempt, poll)
    except Error as e:
        if not e._unanswered:  # nothing was done
            attempt.open, attempt.silent = before
        raise
    element = answer.element
    attempt.open = element.get("state") == "granted" or element.get("queued") is True or "error" in element
    if not answer.again:
        attempt.silent = before[1]
    return answer


def ask_retrying(client: Client, attempt: Attempt, mode: str) -> Steps[dict[str, Any]]:
    """Ask once, and again for a second if the server is away."""
    tries = Tries(attempt.clock, 1.0)
    attempt.process = client._here()
    while True:
        try:
            answer = yield from ask(attempt, mode)
            kind, detail = problem_of(answer.element)
            if kind is not None:
                raise error_of(kind, detail, attempt)
            return answer.element
        except (Unavailable, Busy, Overloaded):
            pause = tries.next()
            if pause is None:
                raise
        yield Pause(pause)


def held(client: Client, key: Key) -> Steps[bool]:
    attempt = client._attempt(key)
    answer = yield from ask_retrying(client, attempt, "look")
    if answer.get("state") not in ("held", "free"):
        raise refusal(attempt, answer, client)
    return bool(answer["state"] == "held")


def namespace_of(client: Client, key: Key) -> Steps[str]:
    """Return the namespace of a key: if the credential decides it, the server says it."""
    if client._own is None:
        answer = yield from ask_retrying(client, client._attempt(key), "look")
        client._own = answer.get("namespace") or ""
    return client._own


def ask_place(client: Client, attempt: Attempt) -> Steps[None]:
    """Reserve a place."""
    try:
        answer = yield from ask_retrying(client, attempt, "reserve")
    finally:
        if attempt.silent > -math.inf:
            client._silent[attempt.token] = attempt.silent
            for token, silent in list(client._silent.items()):
                if silent < attempt.clock.now() - FROZEN:
                    client._silent.pop(token, None)
    if answer.get("state") != "held" or not answer.get("queued"):
        raise refusal(attempt, answer, client)


def reserve(client: Client, lease: Lease) -> Steps[str]:
    """Reserve a place and return its ticket, or raise and leave nothing of it behind."""
    attempt = lease._attempt
    try:
        yield from ask_place(client, attempt)
        ticket = write_ticket(attempt)
        if attempt.given_up:
            raise gone(attempt)
        attempt.settled = True  # its end is that of the ticket
        return ticket
    except BaseException:
        attempt.give_up()
        raise


def cancel(client: Client, attempt: Attempt) -> Steps[None]:
    """Give a reserved place back."""
    attempt.process = process = client._here()
    tries = Tries(attempt.clock, client.timeout)
    repeated = False
    while True:
        try:
            answer: Answer = yield Ask("settle", {**attempt.named(), "outcome": "release"}, attempt)
            kind, detail = problem_of(answer.element)
            if kind in (None, "lost"):
                process.undoer.settled(attempt.named(), client._silent.get(attempt.token, -math.inf))
            if kind is not None and not (kind == "lost" and (answer.again or repeated)):
                raise error_of(kind, detail, attempt)
            return
        except (Unavailable, Busy, Overloaded) as e:
            repeated = repeated or e._unanswered
            pause = tries.next()
            if pause is None:
                raise
        yield Pause(pause)
