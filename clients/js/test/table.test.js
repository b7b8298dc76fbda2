// The cases that each client passes with a server, and with the keeper of its tests: clients/testdata/testing.json.

import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { Server, dibs, unique, until, within } from "./support.js";
import { Keeper } from "dibs/testing";
import { Entry } from "../lib/entry.js";

const table = JSON.parse(fs.readFileSync(new URL("../../testdata/testing.json", import.meta.url), "utf8"));

class Declined extends Error {}

// Real is a server with the methods of a keeper.
class Real {
  constructor(server) {
    this.server = server;
  }

  connect(options) {
    return this.server.keys(options);
  }

  async heldByAnother(key) {
    this.another = await this.connect({ label: "another" }).acquire(key, { wait: 0, ttl: "10m" });
  }

  release() {
    return this.another.release().catch((e) => { if (!(e instanceof dibs.LostError)) throw e; });
  }

  async lose(key) {
    await this.server.request("POST", "/v1/keys/release", { key });
  }

  async abandoned(key) {
    await (await this.connect().acquire(key)).abandon();
  }

  advance(time) {
    return new Promise((resolve) => { setTimeout(resolve, parseInt(time, 10) + 1); });
  }

  away() {
    return this.server.kill();
  }

  back() {
    return this.server.start();
  }

  async answer(verb, element) {
    const list = { claim: "claims", renew: "renewals", settle: "settlements" }[verb];
    return JSON.parse(await this.server.request("POST", `/v1/${verb}`, { [list]: [element] })).answers[0];
  }
}

// InProcess is a keeper that answers calls.
class InProcess extends Keeper {
  #now = 0;
  #entry = new Entry({ now: () => this.#now });

  pass(ms) {
    this.#now += ms;
  }

  answer(verb, element) {
    return this.#entry[verb](element);
  }
}

const server = await Server.start();
for (const [world, make] of [["serve", () => new Real(server)], ["keeper", () => new InProcess()]]) {
  for (const { name, bytes, steps } of table.cases) {
    const key = bytes ? Buffer.concat([Buffer.from(unique(name)), Buffer.from([255])]) : unique(name);
    test(`${name}: ${world}`, () => within(play(make(), key, steps)));
  }
  for (const { name, calls } of table.calls) test(`${name}, in calls: ${world}`, () => within(ask(make(), unique(name), calls)));
}

async function play(world, key, steps) {
  const clients = Object.fromEntries(["a", "b", "elsewhere"].map((name) => [name, world.connect({ namespace: name.length > 1 ? name : "" })]));
  const [leases, tickets, waiters] = [{}, {}, {}];
  let fence = 0n;

  // asked is what a client gives.
  async function asked(method, by, as, { value, fails, remember, unstorable, of = as, ends, ...options }) {
    if (options.fingerprint) options.fingerprint = options.fingerprint.repeat(64);
    const client = clients[by];
    switch (method) {
      case "held": return client.held(key);
      case "close": return client.close();
      case "acquire": return client.acquire(key, options);
      case "reserve": tickets[as] = await client.reserve(key, options); return;
      case "redeem": return client.redeem(tickets[of], options, async (lease) => { if (ends) await lease[ends](); return lease; });
      case "once": return client.once(key, { withOrigin: true, ...(remember && { remember: Declined }), ...options }, () => {
        if (fails) throw new Declined();
        return unstorable ? () => {} : value;
      });
      default: return client[method](tickets[as], ...(method === "prolong" ? [options] : []));
    }
  }

  // noted notes a lease by its name. Its fence is higher than those before.
  function noted(name, got, by) {
    if (got instanceof Error) throw got;
    if (!(got instanceof dibs.Lease)) return got;
    leases[name] = got;
    if (got.held && by !== "elsewhere") {
      assert.ok(got.fence > fence, `${got.fence} after ${fence}`);
      fence = got.fence;
    }
    return got;
  }

  async function call(whose, method, { by = "a", as = "it", waits, data, time, ...options }) {
    if (whose === "keeper") return world[method](...({ away: [], back: [], advance: [time] }[method] ?? [key]));
    if (whose === "lease") return leases[as][method](...(data === undefined ? [] : [data]), ...(Object.keys(options).length > 0 ? [options] : []));
    if (whose === "waiter") return noted(as, await waiters[as], by);
    if (waits === undefined) return noted(as, await asked(method, by, as, options), by);
    waiters[as] = asked(method, by, as, options).catch((e) => e);
    const { permits = 1, weight = 1 } = options;
    await until("it waits", async () => waits === 0 || (await clients.b.acquire(key, { wait: 0, permits, weight }).catch((e) => e)).ahead === waits);
  }

  for (const [what, args = {}, gives = {}] of steps) {
    const said = `${what} ${JSON.stringify(args)}`;
    const [whose, method] = what.split(".").map(camel);
    const got = await call(whose, method, Object.fromEntries(Object.entries(args).map(([name, value]) => [camel(name), value]))).catch((e) => e);
    if (got instanceof Error && !gives.raises) throw got;
    for (const [fact, want] of Object.entries(gives)) assert.deepEqual(await value(got, fact, leases), want, `${said}: ${fact}`);
  }
  for (const lease of Object.values(leases)) await lease.release().catch(() => {}); // close waits for them
  await Promise.all(Object.values(clients).map((client) => client.close()));
}

const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

async function value(got, fact, leases) {
  if (fact === "is") return got;
  if (fact === "raises") return got?.constructor?.name.replace(/Error$/, "");
  if (fact === "id") return Object.keys(leases).find((name) => leases[name].id === got.id);
  if (fact === "holder") return (await got.holder()).label;
  return Buffer.isBuffer(got[fact]) ? String(got[fact]) : got[fact];
}

// ask makes calls of one element.
async function ask(world, key, calls) {
  const encoded = (text) => Buffer.from(text).toString("base64");
  const change = { from: (v) => v.repeat(32), fingerprint: (v) => v.repeat(64), progress: encoded, data: encoded };
  const least = { claim: { ttl_ms: 600_000, place_ttl_ms: 600_000 }, renew: { ttl_ms: 600_000 } };
  for (const [verb, token, fields, answer] of calls) {
    if (verb === "pass") {
      await (world.pass ?? world.advance).call(world, token);
      continue;
    }
    const element = { key, token: token.repeat(32), ...least[verb], ...fields };
    for (const name of Object.keys(change)) if (name in element) element[name] = change[name](element[name]);
    assert.deepEqual(plain(await world.answer(verb, element)), answer, JSON.stringify([verb, token, fields]));
  }
}

// plain is what the table says of an answer.
function plain({ state, queued, attempt = 1, progress = "", record, error }) {
  const text = (encoded) => Buffer.from(encoded, "base64").toString();
  return {
    ...(state && { state }), ...(queued && { queued }), ...(attempt > 1 && { attempt }), ...(progress && { progress: text(progress) }),
    ...(record && { record: text(record.data) }), ...(error && { error: error.type }),
  };
}
