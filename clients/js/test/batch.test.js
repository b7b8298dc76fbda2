// What is asked at the same time goes in one call, and one caller's trouble is not that of the others.

import assert from "node:assert/strict";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import test from "node:test";
import { Line, Server, dibs, problem, unique, until, within } from "./support.js";
import { system } from "../lib/clock.js";

const server = await Server.start();
const fail = () => assert.fail("it runs");
const many = (n) => Array.from({ length: n }, () => unique());

// over is a test with a client over a line.
function over(name, fn) {
  test(name, async () => {
    const line = await Line.to(server);
    const mine = dibs.connect(line.url, { timeout: "10m" }); // longer than any test
    try {
      await fn(line, mine);
    } finally {
      await mine.close();
      line.close();
    }
  });
}

over("what is asked at the same time goes in one call", async (line, mine) => {
  assert.deepEqual(await Promise.all(many(64).map((key, i) => mine.lock(key, () => i))), Array.from({ length: 64 }, (_, i) => i));
  assert.deepEqual(line.calls, [["claim", 64], ["settle", 64]]);
});

over("a call has at most 1,024 elements", async (line, mine) => {
  await Promise.all(many(1100).map((key) => mine.held(key)));
  assert.deepEqual(line.calls, [["claim", 1024], ["claim", 76]]);
});

over("what arrives while a call is under way is the next one", async (line) => {
  const clock = { ...system, setTimeout: (fn, ms) => system.setTimeout(fn, ms <= 100 ? 1e9 : ms) }; // no call is slow
  const mine = new dibs.Client(line.url, {}, { clock });
  const gate = line.hold("claim", "before");
  const first = mine.lock(unique(), () => "first");
  await gate.arrived;
  const others = [];
  for (const key of many(3)) {
    others.push(mine.lock(key, () => "other"));
    await new Promise(setImmediate);
  }
  gate.go();
  assert.deepEqual(await Promise.all([first, ...others]), ["first", "other", "other", "other"]);
  assert.deepEqual(line.calls.filter(([verb]) => verb === "claim"), [["claim", 1], ["claim", 3]]);
  await mine.close();
});

over("a call that is slow holds nobody up", async (line, mine) => {
  const gate = line.hold("claim", "before");
  const first = mine.lock(unique(), () => "first");
  await gate.arrived;
  assert.equal(await within(mine.lock(unique(), () => "second")), "second");
  gate.go();
  assert.equal(await first, "first");
});

over("a caller that waits holds nobody up", async (line, mine) => {
  const key = unique();
  const lease = await mine.acquire(key);
  const waiter = mine.lock(key, () => "waited");
  await server.waiting(key, 1);
  await Promise.all(many(3).map((other) => within(mine.lock(other, () => {}))));
  assert.ok(line.calls.some(([verb, n]) => verb === "claim" && n === 3));
  await lease.release();
  assert.equal(await waiter, "waited");
});

over("a caller that gives up leaves the others alone, and nothing behind", async (line, mine) => {
  const [a, b] = many(2);
  const gate = line.hold("claim", "after");
  const stop = new AbortController();
  const gone = mine.lock(a, { signal: stop.signal, ttl: "10m" }, fail);
  const stays = mine.lock(b, () => "done");
  await gate.arrived;
  stop.abort(new RangeError("enough"));
  await assert.rejects(gone, /enough/);
  await within(mine.lock(unique(), () => {}));
  assert.equal(line.calls.filter(([verb]) => verb === "settle").length, 1); // the undo does not overtake the claim
  gate.go();
  assert.equal(await stays, "done");
  await server.free(a);
});

over("a caller that gives up just after its answer breaks no connection", async (line, mine) => {
  let connections = 0;
  line.listener.on("connection", () => { connections++; });
  for (const waits of [false, true]) {
    const key = unique();
    const lease = waits && (await server.keys().acquire(key));
    const stop = new AbortController();
    const hear = () => stop.abort(); // at the moment of the grant
    subscribe("dibs", hear);
    const granted = mine.lock(key, { signal: stop.signal }, () => {});
    if (waits) {
      await server.waiting(key, 1);
      await lease.release();
    }
    await granted;
    unsubscribe("dibs", hear);
    assert.ok(stop.signal.aborted);
  }
  await mine.lock(unique(), () => {});
  assert.equal(connections, 1);
});

over("a call that all callers gave up is given up", async (line, mine) => {
  const keys = many(2);
  line.hold("claim", "before");
  const stop = new AbortController();
  const gone = keys.map((key) => mine.lock(key, { signal: stop.signal }, fail));
  await until("the call arrives", () => line.calls.length === 1);
  stop.abort(new RangeError("enough"));
  for (const one of gone) await assert.rejects(one, /enough/);
  await until("its claims are undone", () => line.calls.some(([verb, n]) => verb === "settle" && n === 2));
});

over("a caller that gives up before its call is sent asks for nothing", async (line, mine) => {
  const gate = line.hold("claim", "before");
  const first = mine.lock(unique(), () => "first");
  await gate.arrived;
  const stop = new AbortController();
  const gone = mine.lock(unique(), { signal: stop.signal }, fail);
  const other = mine.lock(unique(), () => "other");
  stop.abort(new RangeError("enough"));
  await assert.rejects(gone, /enough/);
  gate.go();
  await Promise.all([first, other]);
  assert.deepEqual(line.calls.filter(([verb]) => verb === "claim"), [["claim", 1], ["claim", 1]]);
});

over("each claim of a call without an answer is asked again", async (line, mine) => {
  const keys = many(3);
  line.cut("claim", 1);
  await Promise.all(keys.map((key) => mine.lock(key, { ttl: "10m" }, (lease) => assert.equal(lease.attempt, 1))));
  for (const key of keys) await server.free(key);
});

over("each claim of a call without an answer is undone", async (line) => {
  const mine = dibs.connect(line.url);
  const keys = many(3);
  line.cut("claim", 1000);
  const errors = await Promise.all(keys.map((key) => mine.lock(key, { ttl: "10m", wait: 0 }, fail).catch((e) => e)));
  errors.forEach((e, i) => assert.ok(e instanceof dibs.UnavailableError && e.key === keys[i], e));
  assert.equal(new Set(errors).size, 3);
  line.cut("claim", 0);
  for (const key of keys) await server.free(key);
  await mine.close();
});

over("the refusal of one is not that of the others", async (line, mine) => {
  const keys = many(5);
  line.heard = (verb, body) => {
    line.says.claim = body.claims?.some(({ key }) => key === keys[2]) ? [problem(403, "forbidden"), false] : undefined;
  };
  const got = await Promise.all(keys.map((key) => mine.lock(key, { wait: 0 }, () => "done").catch((e) => e)));
  assert.ok(got[2] instanceof dibs.ForbiddenError);
  assert.deepEqual(got.filter((_, i) => i !== 2), ["done", "done", "done", "done"]);
  line.heard = () => {};
});

// refuses makes a line refuse each call of the verb that names the key.
function refuses(line, verb, list, key) {
  line.heard = (called, body) => {
    if (called === verb) line.says[verb] = body[list].some((element) => element.key === key) ? [problem(403, "forbidden"), false] : undefined;
  };
}

over("the refusal of one undo is not that of the others", async (line, mine) => {
  const keys = many(5);
  const gate = line.hold("claim", "before");
  const leaves = new AbortController();
  const claims = keys.map((key) => mine.lock(key, { ttl: "10m", signal: leaves.signal }, fail).catch((e) => e));
  await gate.arrived;
  refuses(line, "settle", "settlements", keys[2]);
  leaves.abort();
  await Promise.all(claims);
  gate.go();
  await until("the others are undone", async () => line.calls.some(([verb, n]) => verb === "settle" && n === 1)
    && (await Promise.all(keys.map((key) => mine.held(key)))).every((held, i) => i === 2 || !held));
  line.heard = () => {};
  line.says = {};
});

over("the refusal of one renewal is not that of the others", async (line, mine) => {
  const keys = many(4);
  const leases = await Promise.all(keys.map((key) => mine.acquire(key, { ttl: "3s" })));
  refuses(line, "renew", "renewals", keys[2]);
  await until("it is lost", () => !leases[2].held);
  assert.deepEqual(leases.map((lease) => lease.held), [true, true, false, true]);
  await Promise.all(leases.map((lease) => lease.release().catch(() => {})));
});

over("a release in one half of a refused call is no loss after the error of the other", async (line, mine) => {
  const keys = many(4);
  const leases = await Promise.all(keys.map((key) => mine.acquire(key, { ttl: "10m" })));
  let calls = 0;
  line.heard = (verb) => {
    if (verb === "settle") line.says[verb] = [[problem(403, "forbidden"), false], undefined, [problem(429, "overloaded"), false]][calls++];
  };
  await Promise.all(leases.map((lease) => lease.release())); // the second half is asked again
  assert.ok(calls > 3);
});

over("what is given up and then closed in one moment is taken back once", async (line, mine) => {
  const gate = line.hold("claim", "before");
  const first = mine.lock(unique(), () => "first").catch((e) => e);
  await gate.arrived;
  const leaves = new AbortController();
  const mark = new Error("mine");
  const given = mine.lock(unique(), { signal: leaves.signal }, fail).catch((e) => e);
  const look = mine.held(unique()).catch((e) => e.constructor);
  await new Promise(queueMicrotask);
  leaves.abort(mark);
  const closed = mine.close();
  assert.equal(await given, mark);
  assert.ok([false, dibs.ClosedError].includes(await within(look))); // it is not lost; close may be faster
  gate.go();
  await Promise.all([first, closed]);
});

over("a record that is long goes alone", async (line, mine) => {
  const leases = await Promise.all(many(3).map((key) => mine.acquire(key)));
  line.calls = [];
  await Promise.all(leases.map((lease, i) => lease.complete(Buffer.alloc(i === 1 ? 100_000 : 1))));
  assert.deepEqual(line.calls.map(([, n]) => n).sort(), [1, 2]);
});
