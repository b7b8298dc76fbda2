"""A worker pays orders, as examples/ruby/orders.rb does, without a client library.

Orders come over standard input, one number a line, from a queue that delivers an order again if the
worker died. The worker answers with the order and the number of its payment. "broken" completes the
key after the transaction. The cure is one statement more: the last one of the transaction.

    dibs migrate --store "$DATABASE_URL"
    dibs serve --store "$DATABASE_URL" --listen unix:/tmp/dibs.sock
    psql "$DATABASE_URL" -c 'CREATE TABLE payments (number serial, of_order int, amount int)'
    echo 17 | DIBS_SERVER=unix:/tmp/dibs.sock python3 examples/python/orders.py [broken]

It needs psycopg 3.
"""

import base64
import http.client
import json
import os
import queue
import secrets
import socket
import sys
import threading
import time

import psycopg


class Connection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.environ["DIBS_SERVER"].removeprefix("unix:"))


def call(verb, body):
    """Makes one call and returns the answer to its element. Without an answer it asks again: every
    call may be repeated, at any server of the store."""
    while True:
        connection = Connection("localhost", timeout=60)
        try:
            connection.request("POST", "/v1/" + verb, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == 200:
                return json.load(response)["answers"][0]
            if response.status != 503:
                raise RuntimeError(response.read().decode())
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.05)


def claim(key):
    """Waits for the key. Returns the token of its lease and None, or None and the record."""
    token = secrets.token_hex(16)
    element = {"key": key, "token": token, "mode": "queue", "ttl_ms": 2000, "max_age_ms": 86_400_000}
    wait = 0
    while True:
        answer = call("claim", {"claims": [element], "wait_ms": wait} if wait else {"claims": [element]})
        state = answer.get("state")
        if state == "done":
            return None, base64.b64decode(answer["record"]["data"]).decode()
        if state == "granted" and not wait:
            return token, None
        # After a wait the same claim gets the same lease again, for a whole TTL.
        wait = 20_000 if state == "held" else 0


def pay(cursor, order):
    """Writes the payment of an order and returns its number."""
    cursor.execute("INSERT INTO payments (of_order, amount) VALUES (%s, 990) RETURNING number", [order])
    return str(cursor.fetchone()[0])


def broken(database, order):
    key = f"order {order}"
    token, number = claim(key)
    if token is None:
        return number
    with database.transaction(), database.cursor() as cursor:
        number = pay(cursor, order)
    data = base64.b64encode(number.encode()).decode()
    call("settle", {"settlements": [{"key": key, "token": token, "outcome": "keep", "data": data, "retention_ms": 86_400_000}]})
    return number


def cured(database, order):
    key = f"order {order}"
    token, number = claim(key)
    if token is None:
        return number
    with database.transaction(), database.cursor() as cursor:
        number = pay(cursor, order)
        cursor.execute("SELECT dibs_settle_in(%s, %s, %s, '24 hours')", [key, token, number])
    return number


def again(error):
    """Reports whether an order is tried again: its lease was lost, or transactions were in conflict.
    Both rolled back."""
    return error.sqlstate == "DIBS1" or isinstance(error, psycopg.errors.TransactionRollback)


def work(orders, way):
    database = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    while (order := orders.get()) is not None:
        while True:
            try:
                print(f"{order} {way(database, order)}\n", end="", flush=True)
                break
            except psycopg.Error as error:
                if not again(error):
                    raise
                print(f"order {order} is tried again: {error}", file=sys.stderr)


def main():
    way = broken if sys.argv[1:] == ["broken"] else cured
    orders = queue.Queue()
    workers = [threading.Thread(target=work, args=(orders, way)) for _ in range(int(os.environ.get("WORKERS", "1")))]
    for worker in workers:
        worker.start()
    for line in sys.stdin:
        orders.put(int(line))
    for worker in workers:
        orders.put(None)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
