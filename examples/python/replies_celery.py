"""A worker with Celery: each reply is sent once, and replies of a conversation one after the other.

    DIBS_SERVER=unix:/tmp/dibs.sock REDIS_URL=redis://127.0.0.1 PYTHONPATH=clients/python:examples/python celery -A replies_celery worker
"""
import os
import sys

import dibs
from celery import Celery

app = Celery("replies_celery", broker=os.environ.get("REDIS_URL", "redis://127.0.0.1"))
app.conf.task_acks_late = True  # a task of a worker that dies runs again
keys = dibs.connect()  # before the fork: each process of the worker has its own connections


@app.task(bind=True, max_retries=None)
def reply(self, conversation, message):
    try:
        with keys.lock(f"conversation {conversation}", wait="5s"):
            keys.once(f"reply {message}", lambda: send(conversation, message), keep="24h")
    except dibs.Held as held:  # the worker does something else meanwhile
        raise self.retry(countdown=1, exc=held)


def send(conversation, message):
    print(f"sent {conversation} {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    for message in range(4):
        for _ in range(2):  # a webhook comes twice
            reply.delay(message % 2, message)
