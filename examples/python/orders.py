"""A worker pays orders, as examples/ruby/orders.rb does.

Orders come over standard input, one number a line, from a queue that delivers an order again if the
worker died. The worker answers with the order and the number of its payment. "broken" commits the
payment, and then completes the key: a worker that is killed between the two leaves a payment without
a record, and the next one pays again. The cure is in_=database: the last statement of the
transaction completes the key.

    dibs migrate --store "$DATABASE_URL"
    dibs serve --store "$DATABASE_URL" --listen unix:/tmp/dibs.sock
    psql "$DATABASE_URL" -c 'CREATE TABLE payments (number serial, of_order int, amount int)'
    echo 17 | DIBS_SERVER=unix:/tmp/dibs.sock PYTHONPATH=clients/python python3 examples/python/orders.py [broken]

It needs psycopg 3.
"""

import os
import queue
import sys
import threading

import dibs
import psycopg

KEYS = dibs.connect(ttl=1)  # the key of a worker that died is free after a second


def pay(database, order):
    """Writes the payment of an order and returns its number."""
    return database.execute("INSERT INTO payments (of_order, amount) VALUES (%s, 990) RETURNING number", [order]).fetchone()[0]


def broken(database, order):
    def paid():
        with database.transaction():
            return pay(database, order)
    return KEYS.once(f"order {order}", paid)


def cured(database, order):
    return KEYS.once(f"order {order}", lambda: pay(database, order), in_=database)


def work(orders, way):
    database = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    while (order := orders.get()) is not None:
        while True:
            try:
                print(f"{order} {way(database, order)}\n", end="", flush=True)
                break
            except (dibs.Error, psycopg.errors.TransactionRollback) as error:
                # Which is safe, and that is the point.
                print(f"order {order} is tried again: {type(error).__name__}", file=sys.stderr)


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
