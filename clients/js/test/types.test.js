// dibs.d.ts, send.d.ts and testing.d.ts have the names that their modules have, and the types that values have.

import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { Server, dibs, unique } from "./support.js";

const server = await Server.start();
const keys = server.keys();
const read = (name) => fs.readFileSync(new URL(`../${name}.d.ts`, import.meta.url), "utf8").replace(/\/\*\*.*?\*\//gs, "").replace(/^\/\/.*$/gm, "");
const text = read("dibs");
const others = { send: await import("dibs/send"), testing: await import("dibs/testing") };

// body has the lines of a class or an interface, with those that it extends.
function body(name, of = text) {
  const [, up, lines] = new RegExp(`^export (?:class|interface) ${name}(?: extends (\\w+))? \\{(.*?)\\}$`, "ms").exec(of) ?? assert.fail(name);
  return [...(up && up !== "Error" && up !== "RequestInit" ? body(up) : []), ...lines.split("\n").map((l) => l.trim()).filter(Boolean)];
}

const sorted = (names) => [...new Set(names)].sort();
const members = (name, of) => sorted(body(name, of).map((l) => /^(?:private )?(?:readonly )?(\[Symbol\.asyncDispose\]|\w+)/.exec(l)[1]));

test("exports", () => {
  const declared = [...text.matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(sorted(declared), sorted(Object.keys(dibs)));
  for (const [, name, up] of text.matchAll(/^export class (\w+) extends (\w+)/gm)) {
    assert.equal(Object.getPrototypeOf(dibs[name]), up === "Error" ? Error : dibs[up], name);
  }
});

test("the other modules", () => {
  for (const [name, module] of Object.entries(others)) {
    const declared = [...read(name).matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, one]) => one);
    assert.deepEqual(sorted(declared), sorted(Object.keys(module)));
  }
  assert.deepEqual(members("Keeper", read("testing")), sorted(Reflect.ownKeys(others.testing.Keeper.prototype).filter((k) => k !== "constructor")));
  const source = fs.readFileSync(new URL("../send.js", import.meta.url), "utf8");
  const [, options] = /^ {2}const \{ (.*), \.\.\.init \} = options;$/m.exec(source);
  assert.deepEqual(members("SendOptions", read("send")), sorted(options.split(", ").map((o) => o.split(" ")[0])));
});

test("members", () => {
  for (const name of ["Client", "Lease"]) {
    const own = Reflect.ownKeys(dibs[name].prototype).filter((k) => k !== Symbol.for("nodejs.util.inspect.custom"));
    assert.deepEqual(members(name), sorted(own.map((k) => (k === Symbol.asyncDispose ? "[Symbol.asyncDispose]" : k))));
  }
});

test("options", async () => {
  const ticket = await keys.reserve(unique());
  const lease = await keys.acquire(unique());
  const no = () => {};
  const wrong = { nope: 1 };
  for (const [call, declared] of [
    [() => keys.lock("k", wrong, no), members("LockOptions")], [() => keys.acquire("k", wrong), members("AcquireOptions")],
    [() => keys.once("k", wrong, no), members("OnceOptions")], [() => keys.redeem(ticket, wrong, no), members("RedeemOptions")],
    [() => keys.reserve("k", wrong), members("ReserveOptions")], [() => keys.prolong(ticket, wrong), members("ProlongOptions")],
    [async () => keys.lockFor(no, wrong, no), members("LockOptions")], [async () => keys.onceFor(no, wrong, no), members("OnceOptions")],
    [async () => dibs.connect(server.url, wrong), members("ClientOptions")], [() => keys.close(wrong), ["wait"]], [() => lease.complete("", wrong), ["keep"]],
  ]) {
    await assert.rejects(call, (e) => {
      assert.deepEqual(sorted(/there are (.*)$/.exec(e.message)[1].split(", ")), declared);
      return true;
    });
  }
  await keys.cancel(ticket);
});

// is says whether a value has a type of the declaration.
function is(value, type) {
  return type.split(" | ").some((one) => ({
    null: value === null, this: value instanceof dibs.Lease, AbortSignal: value instanceof AbortSignal, Uint8Array: value instanceof Uint8Array,
    "Promise<void>": value instanceof Promise,
  }[one] ?? typeof value === one));
}

test("types of a lease", async () => {
  const key = unique();
  await (await keys.acquire(key)).save("progress").then(() => {});
  const lease = await keys.acquire(unique());
  for (const line of body("Lease").filter((l) => l.startsWith("readonly"))) {
    const [, name, type] = /^readonly (\w+): (.*);$/.exec(line);
    assert.ok(is(lease[name], type), line);
  }
  for (const line of body("Lease").filter((l) => /^\w+\(.*\): /.test(l))) {
    const [, name, type] = /^(\w+)\(.*\): (.*);$/.exec(line);
    const got = lease[name]("data");
    assert.ok(is(got, type), line);
    await Promise.resolve(got).catch(() => {}); // it is settled more than once
  }
});

test("facts of errors", () => {
  const facts = { key: "k", left: 1, ahead: 2, waited: 3, record: Buffer.from("r"), age: 4, id: "i", result: {}, rerun: true };
  for (const [, name] of text.matchAll(/^export class (\w+Error) /gm)) {
    const error = new dibs[name]("message", facts);
    for (const fact of body(name).filter((l) => l.startsWith("readonly")).map((l) => /^readonly (\w+)/.exec(l)[1])) assert.equal(error[fact], facts[fact], `${name}.${fact}`);
    assert.equal(error.name, name);
  }
});
