import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { getEventListeners } from "node:events";
import test from "node:test";
import { inspect } from "node:util";
import { Line, Server, clock, dibs, unique, until, within } from "./support.js";

const server = await Server.start();
const keys = server.keys();
const fail = () => assert.fail("it runs");
const sha = (text) => createHash("sha256").update(text).digest("hex");

test("a function holds the key, and its value is returned", async () => {
  const key = unique();
  const got = await keys.lock(key, { ttl: "10m" }, async (lease) => {
    assert.equal(lease.check(), lease);
    assert.equal(lease.held, true);
    assert.equal(lease.key, key);
    assert.equal(lease.ttl, 600_000);
    assert.equal(lease.attempt, 1);
    assert.equal(lease.progress, null);
    const entry = await server.entry(key);
    assert.equal(entry.state, "held");
    assert.equal(entry.runs[0].id, lease.id);
    assert.equal(entry.runs[0].fence, String(lease.fence));
    return "value";
  });
  assert.equal(got, "value");
  await server.free(key);
  assert.equal(await keys.lock(key, () => 7), 7);
});

test("fences rise, and are whole beyond 2^53", async () => {
  const key = unique();
  const fences = [];
  for (let i = 0; i < 3; i++) fences.push(await keys.lock(key, (lease) => lease.fence));
  assert.ok(fences.every((f) => typeof f === "bigint"));
  assert.ok(fences[0] < fences[1] && fences[1] < fences[2]);

  const line = await Line.to(server);
  const over = dibs.connect(line.url);
  for (const digits of ["9007199254740993", "18446744073709551615"]) {
    line.change = (body) => body.replace(/"fence":"\d+"/, `"fence":"${digits}"`);
    assert.equal(await over.lock(key, (lease) => String(lease.fence)), digits);
  }
  for (const wrong of ['"18446744073709551616"', '"-1"', '"1e3"', '""', "5"]) {
    line.change = (body) => body.replace(/"fence":"\d+"/, `"fence":${wrong}`);
    await assert.rejects(over.lock(key, fail), (e) => e instanceof dibs.RefusedError && /fence/.test(e.message));
    await server.free(key);
  }
  line.close();
});

test("a held key is an answer", async () => {
  const key = unique();
  await keys.lock(key, { ttl: "10m" }, async () => {
    const other = server.keys();
    await assert.rejects(other.lock(key, { wait: 0 }, fail), (e) => {
      assert.ok(e instanceof dibs.HeldError && e instanceof dibs.DibsError);
      assert.equal(e.name, "HeldError");
      assert.equal(e.key, key);
      assert.ok(e.left > 500_000);
      assert.equal(e.waited >= 0, true);
      return true;
    });
    await assert.rejects(other.lock(key, { wait: 50 }, fail), (e) => e instanceof dibs.HeldError && e.waited >= 50);
    await server.waiting(key, 0);
    assert.equal(await keys.held(key), true);
  });
  assert.equal(await keys.held(key), false);
});

test("waiters have the key in order of arrival", async () => {
  const key = unique();
  const order = [];
  const waits = [];
  const first = await keys.acquire(key);
  for (let i = 0; i < 5; i++) {
    waits.push(keys.lock(key, () => order.push(i)));
    await server.waiting(key, i + 1);
  }
  await first.release();
  await Promise.all(waits);
  assert.deepEqual(order, [0, 1, 2, 3, 4]);
});

test("waiting for oneself is refused at once", async () => {
  const key = unique();
  await keys.lock(key, async () => {
    await assert.rejects(keys.lock(key, fail), dibs.HeldError);
    await assert.rejects(keys.lock(Buffer.from(key), fail), dibs.HeldError);
    await assert.rejects(keys.once(key, fail), dibs.HeldError);
    assert.equal(await keys.lock(unique(), () => 1), 1);
  });
  await keys.lock(key, { permits: 2 }, () => keys.lock(key, { permits: 2 }, async () => {
    await assert.rejects(keys.lock(key, { permits: 2 }, fail), dibs.HeldError);
  }));
  // A task outside of the function waits for its turn.
  let [begin, release] = [];
  const held = new Promise((resolve) => { release = resolve; });
  const begun = new Promise((resolve) => { begin = resolve; });
  const one = keys.lock(key, () => { begin(); return held; });
  await begun;
  const two = keys.lock(key, () => 2);
  await server.waiting(key, 1);
  release();
  assert.equal(await two, 2);
  await one;
});

test("permits", async () => {
  const key = unique();
  await keys.lock(key, { permits: 3 }, () => server.keys().lock(key, { permits: 3, weight: 2, wait: 0 }, async () => {
    await assert.rejects(server.keys().lock(key, { permits: 3, wait: 0 }, fail), dibs.HeldError);
  }));
});

test("a key may be bytes", async () => {
  const key = Buffer.from([0xff, 0, 0x6b]);
  const given = Uint8Array.from(key);
  await keys.lock(given, async (lease) => {
    given[0] = 0;
    assert.deepEqual(lease.key, key);
    await assert.rejects(server.keys().lock(key, { wait: 0 }, fail), dibs.HeldError);
  });
  const text = unique("ключ 🔑");
  await keys.lock(text, () => assert.rejects(server.keys().lock(Buffer.from(text), { wait: 0 }, fail), dibs.HeldError));
});

test("every way out of the function releases", async () => {
  const key = unique();
  const mine = new Error("mine");
  for (const fn of [() => { throw mine; }, async () => { throw mine; }, () => Promise.reject(mine)]) {
    await assert.rejects(keys.lock(key, { ttl: "10m" }, fn), (e) => e === mine);
    assert.equal(await keys.held(key), false);
  }
  await keys.lock(key, { ttl: "10m" }, () => Promise.reject("a text")).then(fail, (e) => assert.equal(e, "a text"));
  assert.equal(await keys.held(key), false);
  await keys.lock(key, (lease) => lease.release());
  await keys.lock(key, (lease) => lease.undo());
  assert.equal(await keys.lock(key, { wait: 0 }, (lease) => lease.attempt), 1);
});

test("a signal gives up the wait, and undoes it", async () => {
  const key = unique();
  const reason = new Error("stop");
  const first = await keys.acquire(key, { ttl: "10m" });
  const controller = new AbortController();
  const { signal } = controller;
  const waits = [keys.lock(key, { signal }, fail), keys.acquire(key, { signal }), keys.once(key, { signal }, fail)];
  await server.waiting(key, 3);
  controller.abort(reason);
  for (const wait of waits) await assert.rejects(wait, (e) => e === reason);
  await server.waiting(key, 0);
  await assert.rejects(keys.lock(key, { signal }, fail), (e) => e === reason);
  await assert.rejects(keys.lock(key, { signal: AbortSignal.timeout(20) }, fail), { name: "TimeoutError" });
  await server.waiting(key, 0);
  await first.release();

  // It does not end the function, and nothing of it is left at the signal.
  const later = new AbortController();
  assert.equal(await keys.lock(key, { signal: later.signal }, async (lease) => {
    later.abort();
    return lease.signal.aborted || !lease.held ? "ended" : "held";
  }), "held");
  const unused = new AbortController();
  for (let i = 0; i < 20; i++) await keys.lock(key, { signal: unused.signal }, () => {});
  assert.equal(getEventListeners(unused.signal, "abort").length, 0);
});

// Leases.

test("a lease is renewed, and all that are due in one call", async () => {
  const line = await Line.to(server);
  const over = dibs.connect(line.url);
  const leases = [];
  for (let i = 0; i < 5; i++) leases.push(await over.acquire(unique(), { ttl: "10m" }));
  await over.acquire(unique(), { ttl: "3s" }); // the next to be renewed, which looks at all
  const before = leases.map((l) => l.left);
  clock.forward(300_000);
  await until("all are renewed", () => leases.every((l, i) => l.left > before[i] - 60_000));
  const sizes = line.calls.filter(([verb, size]) => verb === "renew" && size > 1);
  assert.deepEqual(sizes, [["renew", 5]]);
  for (const lease of leases) await lease.release();
  line.close();
});

test("a lease that is not renewed ends by itself", async () => {
  const key = unique();
  const lease = await server.keys().acquire(key, { ttl: "3s", renew: false });
  assert.equal(lease.signal.aborted, false);
  await within(new Promise((resolve) => lease.signal.addEventListener("abort", resolve)), "its signal aborts");
  assert.ok(lease.signal.reason instanceof dibs.LostError);
  assert.equal(lease.held, false);
  assert.equal(lease.left, 0);
  await assert.rejects(lease.release(), dibs.LostError);
  assert.equal(await keys.lock(key, (l) => l.attempt), 2);
});

test("a lease lasts no longer than maxLifetime", async () => {
  const lease = await keys.acquire(unique(), { maxLifetime: "5m" });
  assert.ok(lease.left <= 300_000);
  clock.forward(300_000);
  assert.equal(lease.held, false);
});

test("a lease that was taken away is lost", async () => {
  const key = unique();
  const lease = await keys.acquire(key, { ttl: "10m" });
  const { signal } = lease;
  await server.take(lease);
  await assert.rejects(lease.save("progress"), dibs.LostError);
  assert.throws(() => lease.check(), dibs.LostError);
  assert.throws(() => lease.fence, dibs.LostError);
  assert.ok(signal.aborted && signal.reason instanceof dibs.LostError);
  await assert.rejects(lease.release(), dibs.LostError);
  const taken = (l) => server.take(l);
  await assert.rejects(keys.lock(key, { ttl: "10m" }, taken), dibs.LostError);
  await assert.rejects(keys.lock(key, { ttl: "10m" }, async (l) => { await taken(l); throw new RangeError(); }), RangeError);
  await assert.rejects(keys.lock(key, { ttl: "10m" }, async (l) => { await taken(l); return l.release().catch(() => {}); }), dibs.LostError);
});

test("a renewal that finds no lease aborts its signal", async () => {
  const mine = server.keys(); // its timer knows nothing of a clock that was moved before
  const lease = await mine.acquire(unique(), { ttl: "10m" });
  await mine.acquire(unique(), { ttl: "3s" });
  await server.take(lease);
  const { signal } = lease;
  clock.forward(300_000);
  await until("it is aborted", () => signal.aborted);
  assert.ok(signal.reason instanceof dibs.LostError);
});

test("an event loop that was blocked past the lease finds it lost", async () => {
  const key = unique();
  await assert.rejects(keys.lock(key, { ttl: "1m" }, async (lease) => {
    const early = lease.signal;
    clock.forward(60_000);
    assert.equal(early.aborted, false); // no timer has run
    assert.throws(() => lease.check(), dibs.LostError);
    assert.throws(() => lease.fence, dibs.LostError);
    assert.equal(lease.held, false);
    assert.equal(lease.signal.aborted, true);
    assert.equal(early.aborted, true);
  }), dibs.LostError);
  await keys.lock(key, (lease) => assert.equal(lease.attempt, 2));
});

test("progress reaches the next holder", async () => {
  const key = unique();
  const progress = Buffer.from([0x68, 0xff]);
  const lease = await keys.acquire(key, { ttl: "10m" });
  await lease.save(progress);
  await lease.abandon();
  await keys.lock(key, (l) => {
    assert.equal(l.attempt, 2);
    assert.deepEqual(l.progress, progress);
  });
});

test("settling twice does nothing", async () => {
  const key = unique();
  const lease = await keys.acquire(key);
  const { signal } = lease;
  assert.deepEqual(await Promise.all([lease.release(), lease.release()]), [undefined, undefined]);
  await lease.abandon();
  assert.equal(lease.held, false);
  assert.throws(() => lease.check(), /it was settled/);
  assert.equal(signal.aborted, false); // it was not lost
  assert.equal(await keys.lock(key, (l) => l.attempt), 1);
});

test("the end of `await using` releases", async () => {
  const key = unique();
  const lease = await keys.acquire(key, { ttl: "10m" });
  await lease[Symbol.asyncDispose]();
  await server.free(key);
  await lease[Symbol.asyncDispose]();
  const lost = await keys.acquire(key, { ttl: "10m" });
  await server.take(lost);
  await assert.rejects(lost[Symbol.asyncDispose](), dibs.LostError);
  let used;
  try {
    used = new Function("keys", "key", "return (async () => { await using lease = await keys.acquire(key); return lease.check().held; })()");
  } catch (e) {
    assert.ok(e instanceof SyntaxError); // this Node does not have the syntax
    return;
  }
  assert.equal(await used(keys, key), true);
  await server.free(key);
});

test("a record answers", async () => {
  const key = unique();
  const data = Buffer.from([0xff, 1]);
  await (await keys.acquire(key)).complete(data, { keep: "1h" });
  await assert.rejects(keys.acquire(key, { maxAge: "any" }), (e) => {
    assert.ok(e instanceof dibs.DoneError);
    assert.deepEqual(e.record, data);
    assert.ok(e.age >= 0);
    return true;
  });
  await keys.lock(key, () => {});
});

test("mismatch and unknown", async () => {
  const key = unique();
  await keys.lock(key, { fingerprint: sha("a") }, () =>
    assert.rejects(server.keys().lock(key, { fingerprint: sha("b"), wait: 0 }, fail), dibs.MismatchError));
  const other = unique();
  await (await keys.acquire(other, { atMostOnce: true })).abandon();
  await assert.rejects(keys.lock(other, { atMostOnce: true }, fail), (e) => e instanceof dibs.UnknownError && /^[a-z2-7]{16}$/.test(e.id));
});

test("what is printed has no token, and with secretKeys no key", async () => {
  const key = unique("secret");
  const secret = server.keys({ secretKeys: true });
  const lease = await secret.acquire(key);
  await assert.rejects(keys.acquire(key, { wait: 0 }), (e) => e.message.includes(JSON.stringify(key)));
  await assert.rejects(keys.lock(Buffer.from([1, 255]), () => keys.lock(Buffer.from([1, 255]), fail)), /key 0x01ff is held/);
  const { message, stack } = await secret.acquire(key, { wait: 0 }).catch((e) => {
    assert.ok(!inspect(e, { depth: 9 }).includes(key) && !JSON.stringify(e).includes(key));
    assert.ok(/[0-9a-f]{12}/.test(e.message));
    return e;
  });
  assert.ok(!message.includes(key) && !stack.includes(key));
  assert.equal(JSON.stringify([lease, structuredClone(lease)]), "[{},{}]"); // nobody else can own it
  assert.match(inspect([lease, secret], { showHidden: true }), /Lease { [0-9a-f]{12} held }.*Client { unix:/s);
  await lease.release();
});

test("arguments are refused by name", async () => {
  for (const [options, text] of [
    [{ ttl: 9 }, /ttl/], [{ ttl: "1 hour" }, /ttl/], [{ wait: -1 }, /wait/], [{ wait: NaN }, /wait/], [{ wait: Infinity }, /wait/], [{ wait: "" }, /wait/],
    [{ wait: null }, /wait/], [{ permits: 0 }, /permits/], [{ permits: 1.5 }, /permits/], [{ weight: 2 }, /weight/], [{ fingerprint: "x" }, /fingerprint/],
    [{ stopTimeout: "20s" }, /stopTimeout/], [{ wiat: 1 }, /wiat/], [{ token: "0".repeat(32) }, /token/], [{ maxAge: 1 }, /maxAge/], [{ signal: {} }, /signal/],
    ["30s", /options/],
  ]) {
    await assert.rejects(keys.lock("k", options, fail), (e) => e instanceof TypeError && text.test(e.message), inspect(options));
  }
  for (const key of [null, undefined, Symbol("a"), 42, "", "x".repeat(513), "\ud800", new Uint8Array()]) {
    await assert.rejects(keys.lock(key, fail), TypeError);
  }
  await assert.rejects(keys.lock("k"), /needs a function; acquire/);
  await assert.rejects(keys.lock("k", {}), /needs a function/);
  await assert.rejects(keys.acquire("k", { permits: 2, maxAge: "any" }), /permits/);
  await assert.rejects((await keys.acquire(unique())).complete(42), /data/);
  for (const options of [{ ttl: 1 }, { timeout: 0 }, { namespace: 3 }, { url: "x" }]) assert.throws(() => dibs.connect("unix:/x", options), TypeError);
  assert.throws(() => new dibs.Lease({}), TypeError);
});

test("close waits for holders, and ends waits", async () => {
  const mine = server.keys();
  const [key, other] = [unique(), unique()];
  let begun;
  const holds = new Promise((resolve) => { begun = resolve; });
  const holder = mine.lock(key, { ttl: "10m" }, async (lease) => {
    begun(lease);
    await within(new Promise((resolve) => lease.signal.addEventListener("abort", resolve)), "its signal aborts");
    assert.ok(lease.signal.reason instanceof dibs.ClosedError);
    assert.throws(() => lease.check(), dibs.ClosedError);
    return "ended";
  });
  const lease = await holds;
  const waiter = mine.lock(key, fail);
  await server.waiting(key, 1);
  const forgotten = await mine.acquire(other, { ttl: "10m" });
  const closed = mine.close({ wait: "1m" });
  await assert.rejects(waiter, dibs.ClosedError);
  assert.equal(await holder, "ended");
  assert.equal(lease.held, false);
  await server.free(key); // while close still waits for the other
  await forgotten.release();
  await closed;
  await server.free(other);
  await assert.rejects(mine.lock(key, fail), dibs.ClosedError);
  await mine.close();
});
