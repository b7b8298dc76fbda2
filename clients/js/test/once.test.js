import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import test from "node:test";
import { Server, dibs, unique, until } from "./support.js";

const server = await Server.start();
const keys = server.keys();
const fail = () => assert.fail("it runs");
const sha = (text) => createHash("sha256").update(text).digest("hex");

test("later callers get the stored result", async () => {
  const key = unique();
  const value = { id: 17, list: [null, true, 1.5, "é 🔑"], left: undefined, plain: Object.create(null) };
  const stored = { id: 17, list: [null, true, 1.5, "é 🔑"], plain: {} };
  assert.deepEqual(await keys.once(key, { keep: "1h" }, () => value), stored);
  assert.deepEqual(await server.keys().once(key, fail), stored);
  for (const [given, want] of [[null, null], [false, false], ["", ""], [0, 0], [undefined, null], [[], []]]) {
    const one = unique();
    assert.deepEqual(await keys.once(one, async () => given), want);
    assert.deepEqual(await keys.once(one, fail), want);
  }
});

test("whole numbers keep all their digits", async () => {
  const key = unique();
  const value = [2n ** 64n, -(2n ** 63n), 9007199254740993n, 9007199254740991, 5n, 1e300, 0.1, "12345678901234567890", { "12345678901234567890": "\\\"9007199254740993" }];
  const stored = [...value];
  stored[4] = 5; // what a number can hold is one
  const whole = (v) => typeof v === "number" && Number.isInteger(v) && !Number.isSafeInteger(v) ? BigInt(v) : v;
  for (const got of [await keys.once(key, () => value), await keys.once(key, fail)]) assert.deepEqual(got, stored.map((v) => (v === 1e300 ? v : whole(v))));
});

test("callers at once run it once", async () => {
  const key = unique();
  let runs = 0;
  let go;
  const gate = new Promise((resolve) => { go = resolve; });
  const calls = Array.from({ length: 5 }, () => keys.once(key, async () => { runs++; await gate; return "result"; }));
  await server.waiting(key, 4);
  go();
  assert.deepEqual(await Promise.all(calls), Array(5).fill("result"));
  assert.equal(runs, 1);
});

test("an error is not stored unless it is to be remembered", async () => {
  const key = unique();
  class Declined extends Error {}
  const declined = () => { throw new Declined("declined"); };
  await assert.rejects(keys.once(key, declined), Declined);
  await assert.rejects(keys.once(key, { remember: RangeError }, declined), Declined);
  await assert.rejects(keys.once(key, { remember: [RangeError, Declined] }, declined), Declined);
  await assert.rejects(keys.once(key, fail), (e) => e instanceof dibs.RememberedError && e.message === "declined" && e.key === key);
  const other = unique();
  await assert.rejects(keys.once(other, { remember: (e) => e.message === "declined" }, declined), Declined);
  await assert.rejects(keys.once(other, fail), dibs.RememberedError);
  const third = unique();
  await assert.rejects(keys.once(third, { remember: Error }, async (lease) => { await server.take(lease); declined(); }), (e) => e instanceof dibs.LostError && e.cause instanceof Declined);
  assert.equal(await keys.once(third, () => 1), 1);
});

// UNSTORABLE are results that JSON would turn into something else, and one that no store takes.
const circle = {};
circle.circle = circle;
class Money { amount = 1; }
class List extends Array {}
const UNSTORABLE = [
  new Date(0), { at: new Date(0) }, Buffer.from("b"), new Money(), { toJSON: () => 1 }, new URL("http://h"), NaN, [Infinity], new Map(), { a: new Set() },
  Symbol("a"), fail, { a: fail }, "\ud800", { "\ud800": 1 }, new Error("e"), Promise.resolve, circle, new Uint8Array(1), [undefined], [1, , 2], { a: [undefined] },
  { [Symbol("a")]: 1 }, Object.assign([1], { more: 2 }), List.of(1), Object.create({ above: 1 }), Object.create(Object.assign(Object.create(null), { above: 1 })),
  (function () { return arguments; })(1), Math, new Number(1), [new String("a")], /a/, new WeakMap(), { get a() { throw new RangeError("a"); } },
  "a".repeat(70_000_000),
];

for (const atMostOnce of [false, true]) {
  test(`a result that cannot be stored was a run${atMostOnce ? " at most once" : ""}`, async () => {
    for (const value of UNSTORABLE) {
      const key = unique();
      let runs = 0;
      const run = (options) => keys.once(key, { atMostOnce, ...options }, () => { runs++; return value; });
      await assert.rejects(run(), (e) => e instanceof dibs.NotKeptError && Object.is(e.result, value) && e.rerun === false && e.cause instanceof Error
        && e.message.includes("later callers get an error") && e.message.split("dibs: ").length === 2);
      for (let i = 0; i < 2; i++) {
        await assert.rejects(run(), (e) => e instanceof dibs.UnrecordedError && e.key === key && /dibs resolve/.test(e.message) && e.message.split("dibs: ").length === 2);
      }
      assert.equal(runs, 1);
      const record = await keys.acquire(key, { maxAge: "any" }).catch((e) => e.record);
      assert.deepEqual(Object.keys(JSON.parse(record)), ["not_kept"]);
      assert.ok(record.length < 600);
      assert.ok((await server.request("POST", "/v1/keys/forget", { key })).includes('"done":1'));
      assert.equal(await keys.once(key, { atMostOnce }, () => 1), 1);
    }
  });
}

test("who wants the old way says so", async () => {
  const key = unique();
  let runs = 0;
  for (let i = 0; i < 2; i++) {
    await assert.rejects(keys.once(key, { rerun: true }, () => { runs++; return NaN; }), (e) => e instanceof dibs.NotKeptError && e.rerun && /the next caller runs again/.test(e.message));
  }
  assert.equal(runs, 2);
  await server.free(key);
  assert.equal(await server.entry(key), null);
});

test("an error that is too large was a run", async () => {
  const key = unique();
  const long = new Error("x".repeat(70_000_000));
  await assert.rejects(keys.once(key, { remember: Error }, () => { throw long; }), (e) => e instanceof dibs.NotKeptError && e.cause === long);
  await assert.rejects(keys.once(key, fail), dibs.UnrecordedError);
});

test("a record of another language says that a run was done", async () => {
  const key = unique();
  await (await keys.acquire(key)).complete('{"not_kept":"json: unsupported value: NaN"}');
  await assert.rejects(keys.once(key, fail), (e) => e instanceof dibs.UnrecordedError && e.message.includes("json: unsupported value: NaN"));
});

test("zero has a sign", async () => {
  const key = unique();
  for (const got of [await keys.once(key, () => [-0, 0]), await keys.once(key, fail)]) assert.deepEqual(got.map((v) => Object.is(v, -0)), [true, false]);
});

test("a record that is not of once", async () => {
  for (const record of ["no json", "[1]", "1", "null", "{}", '{"error":1}', '"value"']) {
    const key = unique();
    await (await keys.acquire(key)).complete(record);
    await assert.rejects(keys.once(key, fail), (e) => e instanceof dibs.RefusedError && /not one of once/.test(e.message));
  }
});

test("another fingerprint", async () => {
  const key = unique();
  await keys.once(key, { fingerprint: sha("a") }, () => 1);
  await assert.rejects(keys.once(key, { fingerprint: sha("b") }, fail), dibs.MismatchError);
});

test("a lost lease stores nothing", async () => {
  const key = unique();
  await assert.rejects(keys.once(key, { ttl: "10m" }, async (lease) => { await server.take(lease); return 1; }), dibs.LostError);
  assert.equal(await keys.once(key, () => 2), 2);
});

test("a result has an age", async () => {
  const key = unique();
  await keys.once(key, () => 1);
  await until("it is old enough", async () => (await keys.acquire(key, { maxAge: "any" }).catch((e) => e)).age > 2);
  assert.equal(await keys.once(key, { maxAge: 1 }, () => 2), 2);
  assert.equal(await keys.once(key, { maxAge: "1h" }, fail), 2);
  await assert.rejects(keys.once(key, { keep: 0 }, fail), /keep/);
});

test("a ticket keeps its place", async () => {
  const key = unique();
  const [first, second] = [await keys.reserve(key), await keys.reserve(key)];
  await assert.rejects(keys.redeem(second, { wait: 0 }, fail), dibs.HeldError);
  await assert.rejects(keys.lock(key, { wait: 0 }, fail), dibs.HeldError);
  const later = keys.redeem(second, () => 2);
  assert.equal(await keys.redeem(first, (lease) => lease.key === key && 1), 1);
  assert.equal(await later, 2);
  await server.free(key);
});

test("a function that undoes keeps the place", async () => {
  const key = unique();
  const [ticket, later] = [await keys.reserve(key), await keys.reserve(key)];
  await keys.redeem(ticket, (lease) => lease.undo());
  await assert.rejects(keys.redeem(later, { wait: 0 }, fail), dibs.HeldError);
  await keys.redeem(ticket, () => {});
  await keys.redeem(later, () => {});
});

test("cancel and prolong", async () => {
  const key = unique();
  const ticket = await keys.reserve(key, { ttl: "10m", grace: "1m", label: "later" });
  await keys.prolong(ticket, { ttl: "2h" });
  assert.ok((await server.entry(key)).places[0].left_ms > 3_600_000);
  await keys.cancel(ticket);
  await assert.rejects(keys.cancel(ticket), dibs.LostError);
  await server.free(key);
});

test("a ticket of another fingerprint gives its place back", async () => {
  const key = unique();
  const ticket = await keys.reserve(key);
  await (await keys.acquire(unique())).release();
  const again = await keys.reserve(key, { fingerprint: sha("a") });
  await keys.cancel(ticket);
  await keys.once(unique(), () => 1);
  await keys.redeem(again, { fingerprint: sha("a") }, () => {});
  await server.free(key);
});

test("other texts are no tickets", async () => {
  const ticket = await keys.reserve(unique());
  for (const text of [null, "", "dibs1", `${ticket}=`, `${ticket}.`, ticket.replace("dibs1", "dibs2"), ` ${ticket}`, `${ticket}\n`, ticket.replace(/\.[^.]+/, ".AAAA")]) {
    await assert.rejects(keys.redeem(text, { wait: 0 }, fail), (e) => e instanceof TypeError && !(text && e.message.includes(text)), String(text));
  }
  await keys.cancel(ticket);
});
