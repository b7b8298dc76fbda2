// What the program hears of its keys, who holds one, and the functions that wrap others.

import assert from "node:assert/strict";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import fs from "node:fs";
import test from "node:test";
import { Line, Server, clock, dibs, dir, script, unique, until } from "./support.js";

const server = await Server.start();
const keys = server.keys({ label: "test" });
const fail = () => assert.fail("it runs");

// heard resolves to the messages of the channel while the function runs.
async function heard(fn) {
  const messages = [];
  const hear = (message) => messages.push(message);
  subscribe("dibs", hear);
  try {
    await fn();
  } finally {
    unsubscribe("dibs", hear);
  }
  return messages;
}

const events = (messages, key) => messages.filter((m) => m.key === JSON.stringify(key)).map((m) => m.event);

test("a lease begins, after a wait or at once, and is lost", async () => {
  const key = unique();
  const messages = await heard(async () => {
    const lease = await keys.acquire(key);
    const waiter = keys.acquire(key);
    await server.waiting(key, 1);
    await lease.release();
    const next = await waiter;
    assert.ok(next.attempt === 1);
    await server.take(next);
    await assert.rejects(next.save("p"), dibs.LostError);
    await assert.rejects(next.release(), dibs.LostError);
  });
  assert.deepEqual(events(messages, key), ["acquired", "waited", "acquired", "lost"]);
  assert.ok(messages[1].waited > 0 && typeof messages[2].fence === "bigint" && messages[3].error instanceof dibs.LostError);
  assert.equal(messages[0].message, `dibs: acquired: the key: "${key}"`);
});

test("a key that another holder has is skipped, and the error says who holds it", async () => {
  const key = unique();
  const lease = await keys.acquire(key);
  let error;
  const messages = await heard(() => server.keys().lock(key, { wait: 0 }, fail).catch((e) => { error = e; }));
  assert.equal(messages[0].message, `dibs: skipped: another holder has the lock for this key: "${key}"`);
  assert.deepEqual(events(messages, key), ["skipped"]);
  const { since, ...holder } = await error.holder();
  assert.ok(since >= 0);
  assert.deepEqual([holder.pid, holder.label, holder.id], [process.pid, "test", lease.id]);
  await lease.release();
  assert.equal(await error.holder(), null);
  await keys.lock(key, async () => {
    const own = await keys.lock(key, fail).catch((e) => e);
    assert.equal((await own.holder()).pid, process.pid);
  });
  const raw = Buffer.from([255]);
  await keys.lock(raw, async () => {
    const held = await keys.lock(raw, { wait: 0 }, fail).catch((e) => e);
    assert.equal(await held.holder(), null);
  });
});

test("who holds a key is told to credentials with the role look", async () => {
  const { createHash } = await import("node:crypto");
  const sha = (text) => createHash("sha256").update(text).digest("hex");
  const tokens = `${dir()}/tokens`;
  fs.writeFileSync(tokens, `a ${sha("may")} shop use,look\nb ${sha("not")} shop use\n`);
  const guarded = await Server.start({ listen: "127.0.0.1:0", flags: ["--tokens", tokens] });
  const as = (token) => dibs.connect(guarded.url.replace("://", `://:${token}@`));
  const key = unique();
  const lease = await as("not").acquire(key);
  for (const [token, id] of [["may", lease.id], ["not", undefined]]) {
    const error = await as(token).lock(key, { wait: 0 }, fail).catch((e) => e);
    assert.equal((await error.holder())?.id, id);
  }
  await guarded.kill();
  const error = await as("may").lock(key, { wait: 0 }, fail).catch((e) => e);
  assert.ok(error instanceof dibs.UnavailableError);
});

test("what was not answered is unavailable and undone", async () => {
  const line = await Line.to(server);
  const mine = dibs.connect(line.url);
  const [a, b] = [unique(), unique()];
  const messages = await heard(async () => {
    const lease = await mine.acquire(b);
    line.cut("claim", 1000);
    await assert.rejects(mine.lock(a, { wait: 0 }, fail), dibs.UnavailableError);
    line.cut("claim", 0);
    line.cut("settle", 1000);
    line.heard = () => clock.forward(6_000);
    await assert.rejects(lease.release(), dibs.UnavailableError);
    line.heard = () => {};
    line.cut("settle", 0);
  });
  assert.deepEqual(events(messages, a), ["unavailable", "undone"]);
  assert.deepEqual(events(messages, b), ["acquired", "unavailable"]);
  await mine.close();
  line.close();
});

test("NODE_DEBUG prints a line, and nothing is printed without", async () => {
  for (const [debug, lines] of [["dibs", 1], ["", 0]]) {
    const log = `${dir()}/err`;
    const out = fs.openSync(log, "w");
    const p = script(server.url, "await connect().lock(\"a\", () => {});", { env: { NODE_DEBUG: debug }, stderr: out });
    assert.equal(await p.ended(), 0);
    assert.equal(fs.readFileSync(log, "utf8").split("\n").filter((l) => /^DIBS \d+: dibs: acquired: the key: "a"$/.test(l)).length, lines);
    if (!lines) assert.equal(fs.readFileSync(log, "utf8"), "");
  }
});

// FAKE_TIMERS replaces timers as libraries of tests do.
const FAKE_TIMERS = `
    const { default: timers } = await import("node:timers");
    for (const has of [timers, globalThis]) has.setTimeout = () => ({ unref() { return this; } });`;

test("a lease whose timers do not run says so", async () => {
  const p = script(server.url, `
    ${FAKE_TIMERS}
    const { connect } = await import("dibs");
    await connect().lock("timers", { ttl: 60 }, async (lease) => {
      while (lease.held) await new Promise(setImmediate);
      lease.check();
    }).catch((e) => console.log(e.name, e.message));
    process.exit();`, { bare: true });
  assert.match(await p.line(), /^LostError .*"timers" is lost: no renewal was sent in time, because the program's timers did not run/);
  await p.ended();
});

test("timers that a test replaces later change nothing", async () => {
  const p = script(server.url, `
    ${FAKE_TIMERS}
    await connect().lock("later", { ttl: "3s" }, async (lease) => {
      for (let least = lease.left; lease.held && lease.left < least + 500; least = Math.min(least, lease.left)) await new Promise(setImmediate);
      console.log(lease.held); // it was renewed
    });
    process.exit();`);
  assert.equal(await p.line(), "true");
});

test("functions are wrapped", async () => {
  const prefix = unique();
  let runs = 0;
  const charge = keys.onceFor((order) => `${prefix} ${order.id}`, { keep: "1h", withOrigin: true }, async function pay(order, amount) {
    runs++;
    return { amount, of: this?.name };
  });
  const shop = { name: "shop", charge };
  assert.deepEqual(await shop.charge({ id: 17 }, 700), { value: { amount: 700, of: "shop" }, replayed: false });
  assert.deepEqual(await charge({ id: 17 }, 800), { value: { amount: 700, of: "shop" }, replayed: true });
  assert.equal((await charge({ id: 18 }, 800)).value.amount, 800);
  assert.equal(runs, 2);
  const report = keys.lockFor((day) => `${prefix} ${day}`, { wait: 0 }, (day) => report(day));
  await assert.rejects(report("monday"), dibs.HeldError); // it is held by the caller
  assert.equal(await keys.lockFor(() => unique(), (a, b) => a + b)(1, 2), 3);
  for (const wrong of [() => keys.lockFor("key", () => {}), () => keys.onceFor(() => "k"), () => keys.lockFor(() => "k", { keep: 1 }, () => {})]) assert.throws(wrong, TypeError);
  await assert.rejects(keys.lockFor((order) => order.id, fail)({}), /a key is a text/);
});

test("once tells whether the result is an earlier one", async () => {
  const key = unique();
  assert.deepEqual(await keys.once(key, { withOrigin: true }, () => 1), { value: 1, replayed: false });
  assert.deepEqual(await keys.once(key, { withOrigin: true }, fail), { value: 1, replayed: true });
  assert.equal(await keys.once(key, { withOrigin: false }, fail), 1);
});
