"""A leader by SQL alone: of all processes one appends to a journal. Any driver does, and a
transaction pooler may be in between."""

import os
import time

import psycopg

db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=None)
TTL = os.environ.get("TTL", "10 s")


def ask(sql, *parameters):
    return db.execute(sql, parameters).fetchone()[0]


def broken():
    while not ask("SELECT pg_try_advisory_lock(17)"):  # of the pooler's session, not of ours
        time.sleep(0.1)
    while True:
        ask("INSERT INTO journal (fence) VALUES (0) RETURNING fence")
        print("leads", flush=True)
        time.sleep(0.1)


def cured():
    token = ask("SELECT dibs_new_token()")
    while ask("SELECT state FROM dibs_claim('journal', %s, %s, place_ttl => %s)", token, TTL, TTL) != "granted":
        time.sleep(0.1)  # its place in the queue stays
    while True:
        with db.transaction():  # nobody else is granted the key before it has ended
            fence = ask("SELECT dibs_hold_in('journal', %s)", token)
            ask("INSERT INTO journal (fence) VALUES (%s) RETURNING fence", fence)
        print("leads", flush=True)
        ask("SELECT dibs_renew('journal', %s, %s)::text", token, TTL)
        time.sleep(0.1)


if __name__ == "__main__":
    while True:
        try:
            broken() if os.environ.get("WAY") == "broken" else cured()
        except psycopg.Error as error:
            # The lease is lost, and what was written rolled back; or another leader is about to write.
            if error.sqlstate not in ("DIBS1", "55P03"):
                raise
