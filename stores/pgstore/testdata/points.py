"""Runs examples/python/leader.py, and stops it before or after the statement that DIBS_FAILPOINT
names, once it leads. It says so on descriptor 3 and waits there to be killed, or continues when it
reads a line."""

import os
import runpy
import sys

import psycopg

STATEMENTS = {"dibs_claim": "claim", "dibs_hold_in": "hold", "INSERT": "write", "COMMIT": "COMMIT", "dibs_renew": "renew"}
execute, command = psycopg.Cursor.execute, psycopg.Connection._exec_command


def reach(when, statement):
    text = statement.decode() if isinstance(statement, bytes) else statement
    if any(part in text and f"{when} {name}" == os.environ.get("DIBS_FAILPOINT") for part, name in STATEMENTS.items()):
        os.write(3, b"reached\n")
        os.environ["DIBS_FAILPOINT"] = ""
        sys.stdin.readline()


def execute_at(self, statement, *args, **kwargs):
    reach("before", statement)
    result = execute(self, statement, *args, **kwargs)
    reach("after", statement)
    return result


def command_at(self, statement, *args, **kwargs):  # a generator, which sends BEGIN and COMMIT
    reach("before", statement)
    result = yield from command(self, statement, *args, **kwargs)
    reach("after", statement)
    return result


psycopg.Cursor.execute, psycopg.Connection._exec_command = execute_at, command_at
runpy.run_path(sys.argv[1], run_name="__main__")
