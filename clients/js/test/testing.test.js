// The keeper of dibs/testing answers as the real server does: each case runs against both. Then what only
// the keeper can: another holder, a lease that is lost now, time that passes, a keeper that is away.

import assert from "node:assert/strict";
import test from "node:test";
import { Server, dibs, unique, within } from "./support.js";
import { Keeper } from "dibs/testing";
import { Entry } from "../lib/entry.js";

const server = await Server.start();
const fail = () => assert.fail("it runs");
const [one, two, none] = ["1", "2", "0"].map((digit) => digit.repeat(64));

// both runs a case against the server and against a keeper. other is another client.
function both(name, fn) {
  for (const [world, connect] of [["serve", (options) => server.keys(options)], ["keeper", null]]) {
    test(`${name}: ${world}`, async () => {
      const keeper = new Keeper();
      const open = connect ?? ((options) => keeper.connect(options));
      const [keys, other] = [open(), open()];
      await within(fn(keys, other, unique(), open));
      await keys.close();
      await other.close();
    });
  }
}

both("lock, and skip", async (keys, other, key) => {
  assert.equal(await keys.lock(key, async (lease) => {
    lease.check();
    assert.equal(await other.held(key), true);
    const e = await other.lock(key, { wait: 0 }, fail).catch((error) => error);
    assert.ok(e instanceof dibs.HeldError && e.left > 20_000 && e.left <= 30_000 && e.ahead === 0);
    assert.equal((await e.holder()).id, lease.id);
    return "done";
  }), "done");
  assert.equal(await other.held(key), false);
});

both("order of arrival", async (keys, other, key) => {
  const order = [];
  const lease = await keys.acquire(key);
  const waiters = [];
  for (const [client, n] of [[other, 1], [keys, 2], [other, 3]]) {
    waiters.push(client.lock(key, () => { order.push(n); }));
    while ((await keys.lock(key, { wait: 0 }, fail).catch((e) => e.ahead)) < n) await new Promise(setImmediate);
  }
  await lease.release();
  await Promise.all(waiters);
  assert.deepEqual(order, [1, 2, 3]);
});

both("fences rise", async (keys, other, key) => {
  const first = await keys.lock(key, (l) => l.fence);
  assert.ok((await other.lock(key, (l) => l.fence)) > first);
});

both("a semaphore", async (keys, other, key) => {
  const two = { permits: 3, weight: 2 };
  const lease = await keys.acquire(key, two);
  const one = await other.acquire(key, { permits: 3 });
  await assert.rejects(other.acquire(key, { permits: 3, wait: 0 }), dibs.HeldError);
  await one.release();
  await assert.rejects(other.acquire(key, { permits: 2, wait: 0 }), dibs.HeldError);
  await lease.release();
});

both("once", async (keys, other, key) => {
  assert.deepEqual(await keys.once(key, { withOrigin: true }, () => ({ n: 1 })), { value: { n: 1 }, replayed: false });
  assert.deepEqual(await other.once(key, { withOrigin: true }, fail), { value: { n: 1 }, replayed: true });
  const text = unique();
  await assert.rejects(keys.once(text, { remember: RangeError }, () => { throw new RangeError("declined"); }), RangeError);
  await assert.rejects(other.once(text, fail), dibs.RememberedError);
});

both("a record", async (keys, other, key) => {
  await (await keys.acquire(key)).complete("data", { keep: "1h" });
  const e = await other.acquire(key, { maxAge: "any" }).catch((error) => error);
  assert.ok(e instanceof dibs.DoneError && String(e.record) === "data" && e.age < 60_000);
  await (await other.acquire(key)).release();
});

both("an abandoned lease, its progress, and no second run", async (keys, other, key) => {
  const first = await keys.acquire(key);
  await first.save("page 7");
  await first.abandon();
  await other.lock(key, (lease) => {
    assert.equal(lease.attempt, 2);
    assert.equal(String(lease.progress), "page 7");
  });
  assert.equal(await keys.lock(key, (lease) => lease.attempt), 1);
  const last = await keys.acquire(key, { atMostOnce: true });
  await last.abandon();
  await assert.rejects(other.lock(key, { atMostOnce: true }, fail), (e) => e instanceof dibs.UnknownError && e.id === last.id);
});

both("an undone lease", async (keys, other, key) => {
  const lease = await keys.acquire(key);
  await lease.undo();
  assert.equal(await other.lock(key, (l) => l.attempt), 1);
});

both("fingerprints", async (keys, other, key) => {
  const lease = await keys.acquire(key, { fingerprint: one });
  await assert.rejects(other.acquire(key, { fingerprint: two, wait: 0 }), dibs.MismatchError);
  for (const fingerprint of [one, none, undefined]) await assert.rejects(other.acquire(key, { fingerprint, wait: 0 }), dibs.HeldError);
  await lease.release();
});

both("a reserved place", async (keys, other, key) => {
  const ticket = await keys.reserve(key);
  await assert.rejects(other.lock(key, { wait: 0 }, fail), (e) => e instanceof dibs.HeldError && e.ahead === 1);
  await keys.prolong(ticket, { ttl: "1h" });
  assert.equal(await other.redeem(ticket, () => "its turn"), "its turn");
  await assert.rejects(keys.cancel(ticket), dibs.LostError);
  const second = await keys.reserve(key);
  await keys.cancel(second);
  assert.equal(await other.lock(key, { wait: 0 }, () => "free"), "free");
});

both("a wait that is given up leaves nothing", async (keys, other, key) => {
  const lease = await keys.acquire(key);
  const stop = new AbortController();
  const waiter = other.lock(key, { signal: stop.signal }, fail);
  while (!(await keys.lock(key, { wait: 0 }, fail).catch((e) => e.ahead))) await new Promise(setImmediate);
  stop.abort(new RangeError("enough"));
  await assert.rejects(waiter, /enough/);
  await lease.release();
  while (await keys.held(key)) await new Promise(setImmediate);
});

both("namespaces, and keys of bytes", async (keys, other, key, open) => {
  const [a, b] = [open({ namespace: "a" }), open({ namespace: "b" })];
  await a.lock(key, () => b.lock(key, { wait: 0 }, () => {}));
  const raw = Buffer.concat([Buffer.from(key), Buffer.from([255])]);
  await keys.lock(raw, () => assert.rejects(other.lock(raw, { wait: 0 }, fail), dibs.HeldError));
  await a.close();
  await b.close();
});

both("a settled lease", async (keys, other, key) => {
  const lease = await keys.acquire(key);
  await lease.release();
  await lease.release();
  assert.throws(() => lease.check(), dibs.LostError);
  await keys.close();
  await assert.rejects(keys.lock(key, fail), dibs.ClosedError);
});

// With a keeper only.

test("held by another", async () => {
  const keeper = new Keeper();
  const keys = keeper.connect();
  keeper.heldByAnother("k");
  assert.throws(() => keeper.heldByAnother("k"), dibs.HeldError);
  const e = await keys.lock("k", { wait: 0 }, fail).catch((error) => error);
  assert.ok(e instanceof dibs.HeldError);
  assert.deepEqual(await e.holder().then(({ host, label }) => [host, label]), ["another", "test"]);
  await assert.rejects(keys.lock("k", { wait: "50s" }, fail), (error) => error instanceof dibs.HeldError && error.waited >= 50_000 && error.waited < 51_000);
  const waiter = keys.lock("k", () => "its turn");
  keeper.release("k");
  assert.equal(await waiter, "its turn");
  keeper.heldByAnother("k", { time: "1m", namespace: "" });
  assert.equal(await keys.lock("k", { wait: "2m" }, () => "after a minute"), "after a minute");
});

test("a wait without a limit waits for the test", async () => {
  const keeper = new Keeper();
  const keys = keeper.connect();
  keeper.heldByAnother("k", { time: "1h" });
  let ran = false;
  const waiter = keys.lock("k", () => { ran = true; });
  for (let i = 0; i < 20; i++) await new Promise(setImmediate);
  assert.equal(ran, false);
  await keeper.advance("59m");
  assert.equal(ran, false);
  await keeper.advance("1m");
  await waiter;
});

test("lost now", async () => {
  const keeper = new Keeper();
  const keys = keeper.connect();
  await assert.rejects(keys.lock("k", (lease) => {
    lease.check();
    keeper.lose("k");
    assert.ok(lease.signal.aborted);
    assert.throws(() => lease.check(), dibs.LostError);
  }), dibs.LostError);
  assert.equal(await keys.lock("k", { wait: 0 }, (lease) => lease.attempt), 1);
});

test("time passes", async () => {
  const keeper = new Keeper();
  const keys = keeper.connect();
  let runs = 0;
  const remind = () => keys.once("reminder", { keep: "24h" }, () => ++runs);
  await remind();
  await keeper.advance("23h");
  assert.equal(await remind(), 1);
  await keeper.advance("2h");
  assert.equal(await remind(), 2);
  // A lease that is held is renewed.
  await keys.lock("k", async (lease) => {
    await keeper.advance("1h");
    lease.check();
  });
  const short = await keys.acquire("k", { renew: false });
  await keeper.advance("31s");
  assert.equal(short.held, false);
  assert.equal(await keys.lock("k", { wait: 0 }, (lease) => lease.attempt), 2);
});

test("a process died", async () => {
  const keeper = new Keeper();
  keeper.abandoned("k");
  assert.equal(await keeper.connect().lock("k", (lease) => lease.attempt), 2);
});

test("away", async () => {
  const keeper = new Keeper();
  const keys = keeper.connect();
  await keeper.away(() => assert.rejects(keys.lock("k", { wait: 0 }, fail), dibs.UnavailableError));
  await keys.lock("k", { wait: 0 }, () => {});
  // A holder that cannot renew loses its lease, and a waiter gives up.
  await assert.rejects(keys.lock("k", async (lease) => {
    keeper.away();
    await keeper.advance("1m");
    lease.check();
  }), dibs.LostError);
  keeper.back();
  const lease = await keys.acquire("k2");
  const waiter = keys.lock("k2", { wait: "1h" }, fail);
  keeper.away();
  await assert.rejects(waiter, dibs.UnavailableError);
  keeper.back();
  await lease.release();
});

test("nothing keeps the program alive", async () => {
  const { script } = await import("./support.js");
  const p = script("", `
    import { Keeper } from "dibs/testing";
    const keeper = new Keeper();
    await keeper.connect().acquire("k");
    keeper.heldByAnother("other", { time: "1h" });
    keeper.connect().lock("other", () => {});
    console.log("end");`, { bare: true });
  assert.equal(await p.line(), "end");
  assert.equal(await p.ended(), 0);
});

test("a waiter keeps its place when the reserved one is new", () => {
  let now = 0;
  const entry = new Entry({ now: () => now });
  const claim = (token, mode, more) => entry.claim({ token, mode, ttl_ms: 600_000, place_ttl_ms: 600_000, ...more }).state;
  assert.equal(claim("aa", "try"), "granted");
  assert.equal(claim("bb", "reserve", { place_ttl_ms: 200 }), "held");
  assert.equal(claim("cc", "queue", { from: "bb" }), "held");
  now = 1000;
  assert.equal(claim("bb", "reserve"), "held");
  assert.equal(claim("dd", "queue"), "held");
  entry.settle({ token: "aa" });
  assert.equal(claim("cc", "queue", { from: "bb" }), "granted");
});
