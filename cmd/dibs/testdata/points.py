"""Package failpoint in Python: runs a program and stops it at the point that DIBS_FAILPOINT names,
says so on descriptor 3, and waits there to be killed. The points are before and after what the
program sends to PostgreSQL, and before and after its functions broken and cured."""

import importlib.util
import os
import sys
import threading

import psycopg

# What a statement has in it, and its name.
STATEMENTS = {"; COMMIT": "COMMIT", "INSERT": "effect", '"public"."dibs_settle_in"': "settlement"}


def reach(name):
    if name == os.environ.get("DIBS_FAILPOINT"):
        os.write(3, b"reached\n")
        threading.Event().wait()


def named(statement):
    text = statement.decode() if isinstance(statement, bytes) else statement
    return next((name for part, name in STATEMENTS.items() if part in f"; {text}"), None)


def around(name, function):
    def call(*args, **kwargs):
        reach(f"before {name}")
        result = function(*args, **kwargs)
        reach(f"after {name}")
        return result

    return call


execute, command = psycopg.Cursor.execute, psycopg.Connection._exec_command


def execute_at(self, statement, *args, **kwargs):
    name = named(statement)
    return (around(name, execute) if name else execute)(self, statement, *args, **kwargs)


def command_at(self, statement, *args, **kwargs):  # a generator, which sends BEGIN and COMMIT
    name = named(statement)
    if name:
        reach(f"before {name}")
    result = yield from command(self, statement, *args, **kwargs)
    if name:
        reach(f"after {name}")
    return result


psycopg.Cursor.execute, psycopg.Connection._exec_command = execute_at, command_at

spec = importlib.util.spec_from_file_location("program", sys.argv[1])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
program.broken, program.cured = around("call", program.broken), around("call", program.cured)
sys.argv = sys.argv[1:]
program.main()
