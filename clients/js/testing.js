// dibs/testing: a keeper of keys in this process, for tests of programs that use keys. It needs no
// server. Its clients are as those of connect, with the same errors, and its time passes when the test says so.
//
//   import { Keeper } from "dibs/testing";
//
//   const keeper = new Keeper();
//   const keys = keeper.connect();
//   keeper.heldByAnother("invoice 42");
//   await assert.rejects(send(keys, "invoice 42"), HeldError);

import timers from "node:timers";
import { Client } from "./lib/client.js";
import { Failure } from "./lib/connection.js";
import { Entry } from "./lib/entry.js";
import { HeldError } from "./lib/errors.js";
import { millis, readKey } from "./lib/arguments.js";
import { randomBytes } from "node:crypto";

const { setImmediate: soon } = timers;
const turn = () => new Promise((resolve) => { soon(resolve); });

// Keeper lends keys as dibs serve does. Time passes by advance, and by itself while a caller that waits for a
// limited time waits for another holder, or tries again because the keeper is away.
export class Keeper {
  #time = new Time((at) => this.#pass(at));
  #entries = new Map();
  #others = new Map(); // the tokens of other holders, by key
  #own = new Set(); // the tokens that claimed by clients
  #cores = [];
  #waiting = new Set(); // calls
  #away = false;

  // connect returns a client of the keeper. The options are those of connect of dibs.
  connect(options) {
    return new Client("unix:/dibs/testing", options, {
      clock: this.#time, connections: { request: (...all) => this.#request(...all), close() {} }, joins: (core) => this.#cores.push(core),
    });
  }

  // heldByAnother lets another holder have the key, until release, or for a time. It throws HeldError if the key
  // is held. All methods take the namespace as an option.
  heldByAnother(key, { time, ...options } = {}) {
    const ms = time === undefined ? undefined : millis(time, "time");
    const { name, token } = this.#grab(key, options);
    if (ms !== undefined) this.#time.setTimeout(() => this.#others.get(name) === token && this.release(key, options), ms);
  }

  // release lets the other holder give the key back.
  release(key, options) {
    this.#settle(key, options, "release");
  }

  // abandoned leaves the key as a process does that died while it held it.
  abandoned(key, options) {
    this.#grab(key, options);
    this.#settle(key, options, "abandon");
  }

  // lose takes the key away from its holder, who finds its lease lost now.
  lose(key, options) {
    const name = nameOf(key, options);
    this.#entry(name).takeAway();
    this.#others.delete(name);
    for (const core of this.#cores) {
      for (const hold of [...core.holds]) if (nameOf(hold.claim.key, hold.claim) === name) hold.renewed("lost");
    }
    this.#look();
  }

  // advance lets so much time pass. Leases that are held are renewed meanwhile.
  async advance(time) {
    await this.#pass(this.#time.now() + millis(time, "time"));
  }

  // away lets no call reach the keeper, until back; with a function, until it has ended, and resolves to what
  // that returns.
  away(fn) {
    this.#away = true;
    for (const call of this.#waiting) call.fail(new Failure(new Error("the keeper is away"), { sent: true }));
    return fn && (async () => fn())().finally(() => this.back());
  }

  // back ends away.
  back() {
    this.#away = false;
  }

  #entry(name) {
    if (!this.#entries.has(name)) this.#entries.set(name, new Entry(this.#time));
    return this.#entries.get(name);
  }

  #grab(key, options) {
    const name = nameOf(key, options);
    const token = randomBytes(16).toString("hex");
    const { state } = this.#entry(name).claim({ token, ttl_ms: Infinity, owner: { host: "elsewhere", pid: 1, label: "another" } });
    if (state !== "granted") throw new HeldError(`dibs: the key is ${state}`, { key });
    this.#others.set(name, token);
    return { name, token };
  }

  #settle(key, options, outcome) {
    const name = nameOf(key, options);
    this.#entry(name).settle({ token: this.#others.get(name), outcome });
    this.#others.delete(name);
    this.#look();
  }

  // #request is that of Connections.
  #request(_server, method, path, text, ends, patient) {
    return new Promise((resolve, reject) => {
      const finish = (fn, value) => {
        this.#waiting.delete(call);
        timers.clearTimeout(call.timer);
        fn(value);
      };
      const call = {
        patient,
        answer: (type, body) => finish(resolve, { status: 200, type, body: Buffer.from(JSON.stringify(body)) }),
        fail: (error) => finish(reject, error),
      };
      ends((reason) => call.fail(reason(true)));
      this.#call(method, path, text, call);
    });
  }

  // #call answers a call as dibs serve does.
  #call(method, path, text, call) {
    if (this.#away) return call.fail(new Failure(Object.assign(new Error("the keeper is away"), { code: "ECONNREFUSED" })));
    if (method === "GET") {
      const query = new URLSearchParams(path.slice(path.indexOf("?")));
      const { runs } = this.#entry(nameOf(query.get("key"), { namespace: query.get("namespace") ?? "" }));
      return call.answer("application/x-ndjson", { runs });
    }
    const { claims, renewals, settlements, wait_ms: wait = 0 } = JSON.parse(text);
    const of = (element) => this.#entry(`${element.namespace ?? ""}\0${element.key_b64 ?? Buffer.from(element.key).toString("base64")}`);
    if (claims) {
      for (const { token } of claims) this.#own.add(token);
      Object.assign(call, { claims, of, ends: this.#time.now() + wait, again: Infinity });
      this.#waiting.add(call);
      return this.#claim(call);
    }
    call.answer("application/json", { answers: (renewals ?? settlements).map((e) => (renewals ? of(e).renew(e) : of(e).settle(e))) });
    for (const { token } of settlements ?? []) this.#own.delete(token);
    this.#look();
  }

  // #claim asks for the claims of a call, and answers it unless it waits.
  #claim(call) {
    const answers = call.claims.map((c) => call.of(c).claim(c));
    const waits = this.#time.now() < call.ends && answers.every((a) => a.state === "held" && a.queued);
    if (!waits) return call.answer("application/json", { answers });
    call.again = this.#time.now() + Math.min(...call.claims.map((c) => c.place_ttl_ms ?? 10_000)) / 3;
    const own = call.claims.some((c) => call.of(c).before(c.token).some((token) => this.#own.has(token)));
    if (call.patient) return; // until that gives it back, or the test lets time pass
    if (own) {
      call.timer ??= timers.setTimeout(() => this.#pass(call.ends), call.ends - this.#time.now()); // as with a server
      return;
    }
    if (!call.passes) soon(() => {
      call.passes = false;
      if (this.#waiting.has(call)) this.#pass(Math.min(call.ends, this.#next(call)));
    });
    call.passes = true;
  }

  // #look asks again for all that waits.
  #look() {
    for (const call of [...this.#waiting]) this.#claim(call);
  }

  // #next is when something happens next.
  #next(...calls) {
    const waiting = calls.length > 0 ? calls : this.#waiting;
    return Math.min(this.#time.next, ...[...waiting].flatMap((c) => [c.ends, c.again, ...c.claims.map((claim) => c.of(claim).due)]).filter((at) => at > this.#time.now()));
  }

  // #pass lets time pass until then.
  async #pass(ends) {
    for (;;) {
      await turn();
      const next = this.#next();
      if (next > ends) break;
      this.#time.set(next);
      this.#look();
    }
    this.#time.set(ends);
    this.#look();
    await turn();
  }
}

// nameOf is the name of a key's entry.
function nameOf(key, { namespace = "" } = {}) {
  return `${namespace}\0${readKey(key).bytes.toString("base64")}`;
}

// Time is the clock of a Keeper.
class Time {
  #now = 1e6;
  #timers = new Set();
  #pass;

  constructor(pass) {
    this.#pass = pass;
  }

  now() {
    return this.#now;
  }

  setTimeout(fn, ms) {
    const timer = { at: this.#now + Math.max(ms, 0), fn, unref: () => timer };
    this.#timers.add(timer);
    if (!(ms > 0)) this.#soon(timer); // no time has to pass
    return timer;
  }

  clearTimeout(timer) {
    this.#timers.delete(timer);
  }

  // sleep is a setTimeout of which the time passes by itself.
  sleep(fn, ms) {
    const timer = this.setTimeout(fn, ms);
    this.#soon(timer);
    return timer;
  }

  #soon(timer) {
    soon(() => this.#timers.has(timer) && this.#pass(timer.at));
  }

  get next() {
    return Math.min(...[...this.#timers].map((t) => t.at));
  }

  // set moves the clock, and runs what is due in its order.
  set(at) {
    for (;;) {
      const [first] = [...this.#timers].filter((t) => t.at <= at).sort((a, b) => a.at - b.at);
      if (!first) break;
      this.#timers.delete(first);
      this.#now = Math.max(this.#now, first.at);
      first.fn();
    }
    this.#now = Math.max(this.#now, at);
  }
}
