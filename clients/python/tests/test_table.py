"""The cases that each client passes with a server, and with the keeper of its tests: clients/testdata/testing.json."""

import base64
import contextlib
import json
import math
import os
import secrets
import unittest

import support
from support import wait

import dibs
import dibs.testing

with open(os.path.join(support.FOLDER, "..", "testdata", "testing.json"), encoding="utf-8") as file:
    TABLE = json.load(file)


class Declined(Exception):
    pass


class Real(support.Server):
    """A server with the methods of a keeper."""

    clients = ()

    def connect(self, **options):
        self.clients = [*(client for client in self.clients if not client._closed), dibs.connect(self.url, **options)]
        return self.clients[-1]

    def stop(self):
        for client in self.clients:
            client.close()
        super().stop()

    def held_by_another(self, key):
        self.another = self.connect(label="another").acquire(key, wait=0, ttl=600)

    def release(self, key):
        with contextlib.suppress(dibs.Lost):
            self.another.release()

    def lose(self, key):
        self.ask("POST /v1/keys/release", json.dumps({"key": key}).encode())

    def abandoned(self, key):
        self.connect().acquire(key).abandon()

    def advance(self, seconds):
        ends = support.time.monotonic() + dibs.options.read_seconds(seconds, "time")
        wait("the time has passed", lambda: support.time.monotonic() > ends)

    def away(self):
        self.kill()

    def back(self):
        self.start()

    def answer(self, verb, element):
        name = {"claim": "claims", "renew": "renewals", "settle": "settlements"}[verb]
        return json.loads(self.ask(f"POST /v1/{verb}", json.dumps({name: [element]}).encode()))["answers"][0]


class Keeper(dibs.testing.Keeper):
    def answer(self, verb, element):
        return self._store.answer(verb, element, dibs.testing.owner_here())


class Table(unittest.TestCase):
    def play(self, case):
        self.key = f"{case['name']} {secrets.token_hex(4)}".encode() + b"\xff" if case.get("bytes") else self.id() + secrets.token_hex(4)
        self.clients = {name: self.client(namespace="" if len(name) == 1 else name) for name in ("a", "b", "elsewhere")}
        self.leases, self.tickets, self.waiters, self.fence = {}, {}, {}, 0
        for what, args, gives in ([*step, {}, {}][:3] for step in case["steps"]):
            got = self.outcome(lambda: self.call(*what.split("."), **args))
            self.assertEqual(gives, {fact: self.fact(got, fact) for fact in gives}, (what, args, got))
            if isinstance(got, Exception) and "raises" not in gives:
                raise got
        for lease in self.leases.values():
            with contextlib.suppress(dibs.Error):
                lease.release()

    def client(self, **options):
        client = self.world.connect(**options)
        self.addCleanup(client.close)
        return client

    def outcome(self, run):
        try:
            return run()
        except (dibs.Error, Declined) as e:
            return e

    def fact(self, got, fact):
        if fact in ("is", "raises"):
            return got if fact == "is" else type(got).__name__
        if fact == "id":
            return next((name for name, lease in self.leases.items() if lease.id == got.id), got.id)
        value = got.holder().label if fact == "holder" else getattr(got, fact)
        return value.decode() if isinstance(value, bytes) else value

    def call(self, whose, method, by="a", waits=None, **args):
        name = args.pop("as", "it")
        data = [args.pop("data").encode()] if "data" in args else []
        if whose == "keeper":
            return getattr(self.world, method)(*{"away": [], "back": [], "advance": [args.get("time")]}.get(method, [self.key]))
        if whose == "lease":
            return getattr(self.leases[name], method)(*data, **args)
        if whose == "waiter":
            return self.noted(name, self.waiters[name].join())
        if waits is None:
            return self.noted(name, self.ask(self.clients[by], method, name, **args))
        self.waiters[name] = support.thread(lambda: self.outcome(lambda: self.ask(self.clients[by], method, name, **args)))
        room = {option: args[option] for option in ("permits", "weight") if option in args}
        wait("it waits", lambda: waits == 0 or self.outcome(lambda: self.clients["b"].acquire(self.key, wait=0, **room)).ahead == waits)

    def noted(self, name, got):
        """Note a lease by its name. Its fence is higher than those before."""
        if isinstance(got, dibs.Lease):
            self.leases[name] = got
            if got.held and got._attempt.namespace == "":
                self.assertGreater(got.fence, self.fence)
                self.fence = got.fence
        return got

    def ask(self, client, method, name, value=None, fails=False, remember=False, unstorable=False, of=None, ends=None, **args):
        if args.get("max_age") == "any":
            args["max_age"] = math.inf
        if "fingerprint" in args:
            args["fingerprint"] *= 64

        def run():
            if fails:
                raise Declined
            return object() if unstorable else value
        if method == "once":
            return client.once(self.key, run, with_origin=True, remember=Declined if remember else (), **args)
        if method == "close":
            return client.close()
        if method == "redeem":
            with client.redeem(self.tickets[of or name], **args) as lease:
                if ends:
                    getattr(lease, ends)()
            return lease
        if method in ("prolong", "cancel"):
            return getattr(client, method)(self.tickets[name], **args)
        got = getattr(client, method)(self.key, **args)
        if method == "reserve":
            self.tickets[name] = got
        return got

    def calls(self, case):
        """Make calls of one element."""
        key = f"{case['name']} {secrets.token_hex(4)}"
        for verb, token, *rest in case["calls"]:
            if verb == "pass":
                self.world.advance(token / 1000)
                continue
            fields, answer = rest
            element = {"key": key, "token": token * 32, **{"claim": {"ttl_ms": 600_000, "place_ttl_ms": 600_000}, "renew": {"ttl_ms": 600_000}}.get(verb, {}), **fields}
            for field, change in {"from": lambda v: v * 32, "fingerprint": lambda v: v * 64, "progress": encoded, "data": encoded}.items():
                if field in element:
                    element[field] = change(element[field])
            self.assertEqual(answer, plain(self.world.answer(verb, element)), (verb, token, fields))


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def plain(answer):
    """Return what the table says of an answer."""
    said = {name: answer.get(name) for name in ("state", "queued", "attempt")}
    said["attempt"] = said["attempt"] if said["attempt"] != 1 else None
    said["progress"] = base64.b64decode(answer.get("progress") or "").decode()
    said["record"] = base64.b64decode(answer.get("record", {}).get("data", "")).decode()
    said["error"] = answer.get("error", {}).get("type")
    return {name: value for name, value in said.items() if value}


class ServerTest(Table):
    @classmethod
    def setUpClass(cls):
        cls.world = Real()
        cls.addClassCleanup(cls.world.stop)


class KeeperTest(Table):
    def setUp(self):
        self.world = Keeper()


def tests(suite):
    for run, cases in (Table.play, TABLE["cases"]), (Table.calls, TABLE["calls"]):
        for case in cases:
            setattr(suite, f"test_{run.__name__}: {case['name']}", lambda self, run=run, case=case: run(self, case))


tests(ServerTest)
tests(KeeperTest)

if __name__ == "__main__":
    unittest.main()
