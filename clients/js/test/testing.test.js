// dibs/testing: what table.test.js does not say.

import assert from "node:assert/strict";
import test from "node:test";
import { dibs } from "./support.js";
import { Keeper } from "dibs/testing";

const fail = () => assert.fail("it runs");

test("a wait that is given up leaves nothing", async () => {
  const keys = new Keeper().connect();
  const lease = await keys.acquire("k");
  const stop = new AbortController();
  const waiter = keys.lock("k", { signal: stop.signal }, fail);
  while (!(await keys.lock("k", { wait: 0 }, fail).catch((e) => e.ahead))) await new Promise(setImmediate);
  stop.abort(new RangeError("enough"));
  await assert.rejects(waiter, /enough/);
  await lease.release();
  while (await keys.held("k")) await new Promise(setImmediate);
});

// Else the program would not end before the wait would have, and the time of the keeper would jump then.
for (const [how, end] of Object.entries({
  "gets the key": async (lease, _, waiter) => { await lease.release(); assert.equal(await waiter, "its turn"); },
  "is given up": async (_, stop, waiter) => { stop.abort(new RangeError("enough")); await assert.rejects(waiter, /enough/); },
})) {
  test(`a wait for a lease of the program that ${how} leaves no timer`, async () => {
    const count = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
    const keys = new Keeper().connect();
    const lease = await keys.acquire("k");
    const before = count();
    const stop = new AbortController();
    const waiter = keys.lock("k", { wait: "10m", signal: stop.signal }, () => "its turn");
    while (count() === before) await new Promise(setImmediate);
    await end(lease, stop, waiter);
    assert.equal(count(), before);
  });
}

test("held by another", async () => {
  const keeper = new Keeper();
  const keys = keeper.connect();
  keeper.heldByAnother("k");
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
