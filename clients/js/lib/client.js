// Client, which makes claims of what callers ask for.

import { hostname } from "node:os";
import { basename } from "node:path";
import { DoneError, HeldError, MismatchError, UnavailableError, plain, refusal } from "./errors.js";
import { tell } from "./hooks.js";
import { LOCK, ONCE, RETENTION, age, bad, called, kept, known, leaseTTL, millis, placeTTL, queries, readKey, rememberer, show } from "./arguments.js";
import { readURL } from "./address.js";
import { system } from "./clock.js";
import { Claim, askTrying, granted, settleTrying } from "./claim.js";
import { under, waitsForItself } from "./callers.js";
import { Core, Wait } from "./core.js";
import { Hold } from "./hold.js";
import { Lease } from "./lease.js";
import { readTicket, writeTicket } from "./ticket.js";
import { recall, runOnce, runOnceIn } from "./once.js";
import { Postgres } from "./transaction.js";

// All times are in milliseconds.
const TTL = 30_000; // the default TTL of a lease
const TIMEOUT = 5_000; // the default timeout of a call
const GRACE = 5_000; // how long close waits
const HOST = hostname();

// Client takes, waits for, renews and settles leases. Make one with connect.
export class Client {
  #core;
  #ttl;
  #namespace;
  #own; // the namespace, as the server says
  #label;
  #secretKeys;
  #postgres;

  // options: ttl of the leases, timeout of a call, the namespace of the keys (default: the
  // server's or the credential's), a label that tells operators what the keys are held for, and
  // secretKeys: errors and messages name keys by a digest, because a key is a secret or personal. For
  // completeIn, reserveIn and once with in, schema and prefix are those of the store's URL.
  constructor(url, options = {}, world = { clock: system }) {
    const o = known(options, ["ttl", "timeout", "namespace", "label", "secretKeys", "schema", "prefix"]);
    const { ttl = TTL, timeout = TIMEOUT } = o;
    this.#ttl = leaseTTL(ttl);
    this.#namespace = o.namespace ?? "";
    if (typeof this.#namespace !== "string") bad("namespace must be a string");
    this.#label = o.label ?? basename(process.argv[1] ?? process.execPath);
    this.#secretKeys = o.secretKeys ?? false;
    this.#core = new Core(readURL(url), millis(timeout, "timeout", 1), world);
    this.#postgres = new Postgres(o.schema ?? "public", o.prefix ?? "dibs");
  }

  // lock runs the function while it holds the key, and resolves to what the function returns.
  // Callers get the key in the order in which they arrive.
  //
  // wait: how long to wait before it rejects with HeldError; 0: not at all. Default: no limit.
  // signal: gives up the wait, with the signal's reason. It does not end the function.
  // ttl: of the lease. Default: that of the client, 30 seconds. It is renewed while the function
  // runs.
  // permits, weight: how many permits the key has, and how many the lease takes. Default: 1.
  // fingerprint: the SHA-256, in 64 hexadecimal digits, of what is asked under the key.
  // atMostOnce: refuses to run again after a holder that ended without an outcome.
  // stopTimeout: how long the lease ends before another caller can get the key.
  // maxLifetime: how long the lease may last in all.
  // label: what operators see.
  //
  // However the function ends, the key is released. If the lease was lost, lock then rejects with
  // LostError, unless the function threw. A function that holds a key and waits for it again gets
  // HeldError at once, because its wait would never end. lock also rejects with MismatchError,
  // UnknownError, UnavailableError, BusyError, FullError, RefusedError and its kinds, and
  // ClosedError.
  async lock(key, options, fn) {
    [options, fn] = called("lock", options, fn);
    const o = known(options, LOCK);
    return this.#run(await this.#take(this.#claim(key, o), o.signal), fn);
  }

  // acquire takes the key like lock and resolves to the Lease, which is renewed until it is
  // settled. maxAge (a duration, or "any") accepts a record up to that age: acquire then rejects
  // with DoneError. With renew: false the lease lasts for its ttl.
  async acquire(key, options = {}) {
    const { maxAge, renew = true, ...o } = known(options, [...LOCK, "maxAge", "renew"]);
    return new Lease(await this.#take(this.#claim(key, o, { maxAge: age(maxAge) }), o.signal, renew), this.#postgres);
  }

  // once runs the function under the key unless that was done before, and resolves to its result.
  // All callers get it: those that call while it runs wait, and those that call later get the
  // stored one until keep is over (default: 24 hours), in any process. The result is stored as
  // JSON, so every caller gets what JSON makes of it. A whole number beyond 2^53 is a BigInt.
  //
  // maxAge: the age up to which a stored result is returned. Default: any.
  // remember: error classes, or a function that is given the error, that are stored like a result;
  // later callers get RememberedError. Default: none, and the next caller runs.
  // rerun: lets the next caller run if the result of a run could not be stored. Default: false, because
  // the function had its effect.
  //
  // in: a client of pg (PostgreSQL, with the store's database), outside of a transaction, and not a
  // pool. The function then runs in a transaction on it, which commits together with the result. So a
  // crash leaves both or neither, and the function has its effect exactly once. An error rolls back;
  // errors of the database are for the caller, who calls once again after a conflict.
  //
  // withOrigin: resolves to { value, replayed }: the result, and whether it is that of an earlier call.
  //
  // The other options and errors are those of lock. If the function ran and its result could not be
  // stored, once rejects with NotKeptError, and later callers get UnrecordedError. In a transaction
  // nothing was done then, and the next caller runs.
  async once(key, options, fn) {
    [options, fn] = called("once", options, fn);
    const { keep = RETENTION, maxAge, remember, rerun = false, in: client, withOrigin = false, ...o } = known(options, ONCE);
    if (client !== undefined) queries(client, "in");
    const retention = kept(keep);
    const remembers = rememberer(remember);
    const claim = this.#claim(key, o, { maxAge: age(maxAge ?? "any") });
    const origin = (value, replayed) => (withOrigin ? { value, replayed } : value);
    let hold;
    try {
      hold = await this.#take(claim, o.signal);
    } catch (e) {
      if (e instanceof DoneError) return origin(recall(e, claim), true);
      throw e;
    }
    return origin(await this.#run(hold, (lease) => (client === undefined ? runOnce(hold, lease, fn, retention, remembers, rerun)
      : runOnceIn(this.#postgres, client, hold, lease, fn, retention, remembers))), false);
  }

  // lockFor and onceFor return a function that runs fn with its own arguments, as lock and once do under
  // the key that keyOf makes of the arguments.
  lockFor(keyOf, options, fn) {
    return this.#wrap("lock", keyOf, options, fn);
  }

  onceFor(keyOf, options, fn) {
    return this.#wrap("once", keyOf, options, fn);
  }

  // reserve takes a place in the key's queue without waiting there, and resolves to its ticket: a
  // text to keep secret, for redeem in any process. The place lasts for ttl (default: 7 days).
  // Until it is redeemed or has ended, no caller behind it gets the key, but a free key waits for
  // it for at most grace (default: as long as the place lasts). fingerprint and label are as in lock.
  async reserve(key, options = {}) {
    const { ttl, ...o } = known(options, ["ttl", "grace", "fingerprint", "label"]);
    const claim = this.#claim(key, o, { placeTTL: placeTTL(ttl) });
    try {
      await this.#place(claim);
    } catch (e) {
      this.#core.undoer.settle(claim, "undo"); // nobody has its ticket
      throw e;
    }
    return writeTicket(claim);
  }

  // reserveIn is reserve in a transaction of the application: the place exists when it commits. For
  // the client and its errors see Lease.completeIn.
  async reserveIn(client, key, options = {}) {
    const { ttl, ...o } = known(options, ["ttl", "grace", "label"]);
    const claim = this.#claim(key, o, { placeTTL: placeTTL(ttl) });
    this.#own ??= this.#namespace || ((await askTrying(this.#core, this.#claim(key, {}), "look")).namespace ?? "");
    return this.#postgres.reserve(client, claim, this.#own);
  }

  // prolong makes a reserved place last for ttl from now, with this grace. A place that has ended
  // is reserved again, at the end of the queue.
  async prolong(ticket, options = {}) {
    const { ttl, grace } = known(options, ["ttl", "grace"]);
    const { key, namespace, token } = readTicket(ticket);
    const claim = this.#claim(key, { grace }, { namespace, token, placeTTL: placeTTL(ttl) });
    this.#core.undoer.claims(token); // again
    await this.#place(claim);
  }

  // redeem runs the function while it holds the key at a reserved place, like lock. If it gives up
  // waiting, the place stays and can be redeemed again. If the place has ended, wait: 0 takes the
  // key if it is free, and a caller that waits joins the queue at the end. The end of the function
  // ends the place. grace limits how long the place keeps others from a free key if this process
  // dies.
  async redeem(ticket, options, fn) {
    [options, fn] = called("redeem", options, fn);
    const o = known(options, [...LOCK, "grace"]);
    const { key, namespace, token } = readTicket(ticket);
    let hold;
    try {
      hold = await this.#take(this.#claim(key, o, { namespace, from: token }), o.signal);
    } catch (e) {
      if (e instanceof MismatchError) this.#core.undoer.settle(this.#claim(key, {}, { namespace, token }), "release");
      throw e;
    }
    return this.#run(hold, fn);
  }

  // cancel gives a reserved place back. It rejects with LostError if the place had ended before.
  async cancel(ticket) {
    const { key, namespace, token } = readTicket(ticket);
    const claim = this.#claim(key, {}, { namespace, token });
    const error = await settleTrying(this.#core, claim, { outcome: "release" }, this.#core.timeout);
    if (error) throw error;
  }

  // held resolves to whether a caller holds the key, or comes before a new one. It changes nothing.
  async held(key) {
    const claim = this.#claim(key, {});
    const answer = await askTrying(this.#core, claim, "look");
    if (answer.state === "held" || answer.state === "free") return answer.state === "held";
    throw refusal(claim, answer, this.#core);
  }

  // close ends the client. Calls that wait reject with ClosedError, and the signals of leases abort
  // with it. close then waits for the holders to end and for what is undone, for at most wait
  // (default: 5 seconds). A lease that is still held then is not renewed any more and expires.
  async close(options = {}) {
    const { wait } = known(options, ["wait"]);
    await this.#core.close(wait === undefined ? GRACE : millis(wait, "wait"));
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }

  // What is printed shows no token.
  [Symbol.for("nodejs.util.inspect.custom")]() {
    return `Client { ${this.#core.calls.servers.join(",")} }`;
  }

  // #claim validates what the caller asks for. more is what the method adds.
  #claim(key, o, more = {}) {
    const ttl = o.ttl === undefined ? this.#ttl : leaseTTL(o.ttl);
    const optional = (name) => (o[name] === undefined ? undefined : millis(o[name], name));
    const { permits = 1, weight = 1, fingerprint, atMostOnce = false, signal } = o;
    const [wait, stopTimeout, maxLifetime, grace] = ["wait", "stopTimeout", "maxLifetime", "grace"].map(optional);
    if (stopTimeout > ttl / 2) bad(`stopTimeout is ${stopTimeout} ms; it must be at most half of the ttl of ${ttl} ms`);
    if (!Number.isInteger(permits) || permits < 1 || permits > 65_536) bad(`permits is ${show(permits)}; it must be 1 to 65536`);
    if (!Number.isInteger(weight) || weight < 1 || weight > permits) bad(`weight is ${show(weight)}; it must be 1 to permits`);
    if (permits > 1 && (atMostOnce || more.maxAge !== undefined)) bad("permits cannot be more than 1 together with atMostOnce or maxAge");
    if (fingerprint !== undefined && !/^[0-9a-f]{64}$/i.test(fingerprint)) bad("fingerprint is not a SHA-256 in 64 hexadecimal digits");
    if (signal !== undefined && typeof signal?.addEventListener !== "function") bad("signal is not an AbortSignal");
    const label = String(o.label ?? this.#label).slice(0, 100);
    return new Claim(readKey(key), {
      ttl, wait, stopTimeout, maxLifetime, grace, permits, weight, fingerprint, atMostOnce, namespace: this.#namespace, secretKeys: this.#secretKeys,
      owner: { host: HOST, pid: process.pid, label }, ...more,
    });
  }

  #wrap(name, keyOf, options, fn) {
    [options, fn] = called(`${name}For`, options, fn);
    if (typeof keyOf !== "function") bad(`${name}For needs a function that makes the key of the arguments`);
    known(options, name === "once" ? ONCE : LOCK);
    const client = this;
    return async function wrapped(...args) {
      return client[name](keyOf.apply(this, args), options, () => fn.apply(this, args));
    };
  }

  // #place reserves a place.
  async #place(claim) {
    const answer = await askTrying(this.#core, claim, "reserve");
    if (answer.state !== "held" || !answer.queued) throw refusal(claim, answer, this.#core);
  }

  // #take resolves to a granted lease, or rejects and leaves nothing of the claim behind.
  async #take(claim, signal, renewed = true) {
    const core = this.#core;
    let wait;
    try {
      waitsForItself(core, claim);
      wait = new Wait(core, signal);
      const { answer, sent, waited } = await granted(core, claim, wait);
      if (wait.ended) throw wait.reason;
      const hold = new Hold(core, claim, answer, sent, renewed);
      if (waited > 0) tell("waited", claim, `${Math.round(waited)} ms for the key`, { waited });
      tell("acquired", claim, "the key", { fence: hold.fence, attempt: hold.attempt });
      return hold;
    } catch (e) {
      if (e instanceof HeldError) tell("skipped", claim, "another holder has the lock for this key", { waited: e.waited });
      if (e instanceof UnavailableError) tell("unavailable", claim, plain(e.message), { error: e });
      if (claim.open || core.undoer.silent.has(claim.token)) {
        tell("undone", claim, "a claim that was not answered, or whose caller left");
        core.undoer.settle(claim, "undo");
      }
      throw e;
    } finally {
      wait?.done();
    }
  }

  // #run runs a function under a lease.
  async #run(hold, fn) {
    let value;
    try {
      hold.check();
      value = await under.run({ hold, up: under.getStore() }, fn, new Lease(hold, this.#postgres));
    } catch (e) {
      await hold.finish();
      throw e;
    }
    const lost = await hold.finish();
    if (lost) throw lost;
    return value;
  }
}
