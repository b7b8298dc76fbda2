"""How a key is claimed: docs/reference/serve.md has the picture."""

from __future__ import annotations

import base64
import functools
import math
import random
import threading

from .attempt import Attempt
from .core import Core
from .errors import Busy, Done, Error, Held, Lost, Mismatch, Overloaded, Refused, Unavailable, Unknown
from .options import Duration, Key
from .step import Answer, Pause, Steps, Tries
from .ticket import read_ticket, write_ticket
from .undo import FROZEN

POLL = 20.0  # the longest call that waits
PATIENCE = 10.0  # how long what was waited or worked for is asked again


def take(core: Core, attempt: Attempt, renew: bool = True) -> Steps[None]:
    """Take the lease, or raise and leave nothing of it behind."""
    process = core._here()
    attempt.pid, attempt.daemon = process.pid, threading.current_thread().daemon
    start = attempt.clock.now()
    try:
        process.waits.add(attempt)
        answer, asked = yield from wait(core, attempt)
        attempt.renewed = renew
        attempt.grant(answer)
        process.renewer.add(attempt)
    except BaseException as e:
        process.give_up(attempt)
        if attempt.place and isinstance(e, Mismatch):  # the place could never be redeemed
            process.undoer.settle(attempt, {"outcome": "release"}, place=True)
        if isinstance(e, Held):
            attempt.tell("skipped", e.waited, error=e)
        elif isinstance(e, Unavailable):
            attempt.tell("unavailable", error=e)
        raise
    finally:
        process.waits.discard(attempt)
        if process.closing:
            process.undoer.look()
    attempt.tell("waited" if asked > 1 else "acquired", attempt.clock.now() - start)


def wait(core: Core, attempt: Attempt) -> Steps[tuple[Answer, int]]:
    """Ask until the attempt is granted, refused or given up, and return the answer and how often it was
    held before."""
    clock = attempt.clock
    start = heard = clock.now()
    once = attempt.wait == 0
    ends = math.inf if attempt.wait is None else start + attempt.wait
    poll, pause, asked = 0.0, 0.01, 1
    while True:
        core._here()
        try:
            answer = yield from ask(attempt, "try" if once else "queue", poll)
            heard = clock.now()  # busy, too, is an answer
            error = attempt.error_of(answer)
            if error is not None:
                raise error
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
                raise refusal(core, attempt, answer, heard - start)
            poll, asked = min(ends - heard, POLL), asked + 1
        except (Unavailable, Busy, Overloaded) as e:
            core._here()
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


def refusal(core: Core, attempt: Attempt, answer: Answer, waited: float = 0.0) -> Error:
    """Return the error of an answer that is not a grant."""
    key, name, element = attempt.key, attempt.shown(), answer.element
    state = element.get("state")
    if state == "held":
        left = element.get("left_ms", 0) / 1000
        text = f"after waiting {waited:.3f} s" if attempt.wait else f"for {left:.3f} s more at most unless it is renewed"
        held = Held(f"dibs: the key {name} is held, {text}", key=key, left=left, ahead=element.get("ahead", 0), waited=waited)
        held._look = functools.partial(core._holder_of, attempt)
        return held
    if state == "done":
        record = element.get("record", {})
        return Done(f"dibs: the key {name} is done", key=key, record=base64.b64decode(record.get("data") or ""), age=record.get("age_ms", 0) / 1000)
    if state == "mismatch":
        return Mismatch(f"dibs: the key {name} was used with another fingerprint", key=key)
    if state == "unknown":
        return Unknown(f"dibs: the outcome of the attempt {element.get('id')} on the key {name} is unknown; an operator must resolve it",
                       key=key, id=element.get("id", ""))
    return Refused(f"dibs: the key {name}: the server answers with the state {state!r}", key=key)


def ask(attempt: Attempt, mode: str, poll: float = 0.0) -> Steps[Answer]:
    """Send the claim once and note what it may have at the store."""
    before = attempt.open, attempt.silent
    attempt.open, attempt.silent = True, attempt.clock.now()
    try:
        answer: Answer = yield attempt.ask("claim", attempt.claim(mode), poll)
    except Error as e:
        if not e._unanswered:  # nothing was done
            attempt.open, attempt.silent = before
        raise
    element = answer.element
    attempt.open = element.get("state") == "granted" or element.get("queued") is True or "error" in element
    if not answer.again:
        attempt.silent = before[1]
    return answer


def ask_retrying(core: Core, attempt: Attempt, mode: str) -> Steps[Answer]:
    """Ask once, and again for a second if the server is away."""
    tries = Tries(attempt.clock, 1.0)
    attempt.pid = core._here().pid
    while True:
        try:
            answer = yield from ask(attempt, mode)
            error = attempt.error_of(answer)
            if error is not None:
                raise error
            return answer
        except Error as e:
            pause = tries.next(e)
        yield pause


def held(core: Core, key: Key) -> Steps[bool]:
    attempt = core._attempt(key)
    answer = yield from ask_retrying(core, attempt, "look")
    state = answer.element.get("state")
    if state not in ("held", "free"):
        raise refusal(core, attempt, answer)
    return bool(state == "held")


def namespace_of(core: Core, key: Key) -> Steps[str]:
    """Return the namespace of a key: if the credential decides it, the server says it."""
    if core._own is None:
        answer = yield from ask_retrying(core, core._attempt(key), "look")
        core._own = answer.element.get("namespace") or ""
    return core._own


def ask_place(core: Core, attempt: Attempt) -> Steps[None]:
    """Reserve a place."""
    try:
        answer = yield from ask_retrying(core, attempt, "reserve")
    finally:
        if attempt.silent > -math.inf:
            core._silent[attempt.token] = attempt.silent
            for token, silent in list(core._silent.items()):
                if silent < attempt.clock.now() - FROZEN:
                    core._silent.pop(token, None)
    if answer.element.get("state") != "held" or not answer.element.get("queued"):
        raise refusal(core, attempt, answer)


def reserve(core: Core, attempt: Attempt) -> Steps[str]:
    """Reserve a place and return its ticket, or raise and leave nothing of it behind."""
    try:
        yield from ask_place(core, attempt)
        return write_ticket(attempt)
    except BaseException:
        core._give_up(attempt)
        raise


def prolong(core: Core, ticket: str, ttl: Duration, grace: Duration | None) -> Steps[None]:
    """Make a reserved place last."""
    token, namespace, key = read_ticket(ticket)
    attempt = core._attempt(key, namespace=namespace, token=token, grace=grace, place_ttl=ttl)
    core._here().undoer.claims(token)
    return ask_place(core, attempt)


def cancel(core: Core, ticket: str) -> Steps[None]:
    """Give a reserved place back."""
    token, namespace, key = read_ticket(ticket)
    attempt, process = core._attempt(key, namespace=namespace, token=token), core._here()
    tries = Tries(attempt.clock, process.timeout)
    repeated = False
    while True:
        try:
            answer: Answer = yield attempt.ask("settle", {"outcome": "release"})
            error = attempt.error_of(answer)
            if error is None or isinstance(error, Lost):
                process.undoer.settled(attempt)
            if error is not None and not (isinstance(error, Lost) and (answer.again or repeated)):
                raise error
            return
        except Error as e:
            repeated = repeated or e._unanswered
            pause = tries.next(e)
        yield pause
