"""Two equal requests create a lesson's session. First the usual code, which is broken: both look,
both find nothing, both create. In production that is bad luck; here it is certain, because both
wait until the other has looked. Then the two cures.

    DIBS_SERVER=unix:/tmp/dibs.sock PYTHONPATH=clients/python python3 examples/python/session.py
"""

import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import dibs

keys = dibs.connect()
lesson = f"lesson {uuid.uuid4()}"


def twice(request):
    """Run two requests at once and return their answers."""
    with ThreadPoolExecutor(2) as threads:
        return [answer.result() for answer in [threads.submit(request) for _ in range(2)]]


def count(sessions):
    return f"{len(sessions)} session{'s' if len(sessions) > 1 else ''}"


# The usual code.
sessions = []
looked = threading.Barrier(2)


def look_then_create():
    missing = not sessions
    looked.wait()
    if missing:
        sessions.append(uuid.uuid4())


twice(look_then_create)
print(f"without a lock: {count(sessions)}")
broken = len(sessions) == 2

# A request that comes while another runs is skipped.
sessions = []
asked = threading.Barrier(2)


def create_or_skip():
    try:
        with keys.lock(lesson, ttl=10, wait=0):
            asked.wait()
            if not sessions:
                sessions.append(uuid.uuid4())
            return "locked"
    except dibs.Held:
        asked.wait()
        return "skipped"


outcomes = twice(create_or_skip)
print(f"lock: {count(sessions)}, {outcomes.count('skipped')} request skipped")
cured = len(sessions) == 1

# Both requests get the session.
sessions = []


def create_once():
    def create():
        sessions.append(str(uuid.uuid4()))
        return sessions[-1]
    return keys.once(f"{lesson}/once", create, keep="24h")


answers = set(twice(create_once))
print(f"once: {count(sessions)}, {'both requests have it' if len(answers) == 1 else 'the requests differ'}")

if not (broken and cured and len(sessions) == 1 and len(answers) == 1):
    sys.exit("the cure did not hold")
