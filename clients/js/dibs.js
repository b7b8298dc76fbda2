// dibs: a client of `dibs serve` for JavaScript, with Node's standard library only. One caller of
// a key runs, and all others wait their turn, do something else, or get the same answer.
//
//   import { connect } from "dibs";
//
//   const keys = connect();                        // DIBS_SERVER, or unix:/run/dibs/dibs.sock
//   await keys.lock("invoice 42", { wait: "30s" }, async (lease) => {
//     lease.check();                               // throws LostError
//   });
//   const receipt = await keys.once("order-17", { keep: "24h" }, charge);
//
// Durations are milliseconds, or texts such as "90s" and "1h30m". The types are in dibs.d.ts.

import { AsyncLocalStorage } from "node:async_hooks";
import { isUtf8 } from "node:buffer";
import { createHash, randomBytes } from "node:crypto";
import http from "node:http";
import https from "node:https";
import { hostname } from "node:os";
import { basename } from "node:path";
import { performance } from "node:perf_hooks";

export const VERSION = "0.0.0";

// DibsError is the class of all errors of this library, except the TypeError of a wrong argument.
// key is the key of the call. A message has its digest only, and what may be a secret is no
// enumerable property, because errors end up in logs.
export class DibsError extends Error {
  constructor(message, { cause, key, ...facts } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    hide(this, "key", key);
    Object.assign(this, facts);
  }
}

function hide(error, name, value) {
  Object.defineProperty(error, name, { value, configurable: true });
}

// HeldError: another caller holds the key or comes before this one. It is an answer: the caller
// neither holds the key nor has a place in its queue. left is the milliseconds until the first
// lease of the key expires unless it is renewed, ahead is how many places at most come first, and
// waited is how long the caller waited, in milliseconds.
export class HeldError extends DibsError {
  constructor(message, { left = 0, ahead = 0, waited = 0, ...rest } = {}) {
    super(message, { left, ahead, waited, ...rest });
  }
}

// LostError: the lease expired or was taken away, or the call that ends it was not answered. So
// another caller may hold the key.
export class LostError extends DibsError {}

// DoneError: a record answers the claim (acquire with maxAge). record is what the holder left, as
// a Buffer, and age is its age in milliseconds.
export class DoneError extends DibsError {
  constructor(message, { record, ...rest } = {}) {
    super(message, rest);
    hide(this, "record", record);
  }
}

// MismatchError: the key is in use, or was used, with another fingerprint.
export class MismatchError extends DibsError {}

// UnknownError: an earlier attempt with atMostOnce ended without an outcome, and an operator must
// resolve it. id names that attempt.
export class UnknownError extends DibsError {}

// UnavailableError: no server answered, or the store did not. The call may or may not have
// happened. A claim is then undone in the background.
export class UnavailableError extends DibsError {}

// BusyError: the store was busy with the key. Nothing was done, and asking again may help.
export class BusyError extends DibsError {}

// FullError: the store has reached one of its limits. Nothing was done.
export class FullError extends DibsError {}

// TooLargeError: the store never takes data of that size. Nothing was done.
export class TooLargeError extends FullError {}

// RefusedError: the server refused the whole call, and nothing was done; or what answers at the
// address is no dibs serve. A server behind it may have done the call. A claim is then undone in the
// background.
export class RefusedError extends DibsError {}

// UnauthorizedError: the URL has no token, or one that the server does not know.
export class UnauthorizedError extends RefusedError {}

// ForbiddenError: the credential has not the role, or the call names another namespace.
export class ForbiddenError extends RefusedError {}

// OverloadedError: a bound of the server is reached. Asking again may help.
export class OverloadedError extends RefusedError {}

// RememberedError: the function of an earlier call of once failed with an error that it remembers.
// The message is that of the error.
export class RememberedError extends DibsError {}

// NotKeptError: the function of once ran in this call, but its result could not be stored. result is
// what the function returned. cause is what it threw, if that was to be remembered, or else why the
// result was not stored. rerun says that the next caller runs again: because of rerun: true, because
// the transaction of in was rolled back, or because the store did not answer or is full. Otherwise
// later callers get UnrecordedError; with atMostOnce they get UnknownError if the store did not answer
// or is full.
export class NotKeptError extends DibsError {
  constructor(message, { result, rerun = false, ...rest } = {}) {
    super(message, { rerun, ...rest });
    hide(this, "result", result);
  }
}

// UnrecordedError: an earlier call of once ran its function, but the result could not be stored. An
// operator gives callers the result with `dibs resolve KEY --result JSON`, or lets the next one run with
// `dibs resolve KEY --rerun`. After keep the next caller runs.
export class UnrecordedError extends DibsError {}

// WrongTransactionError: the connection is not in the transaction that the lease is to end with.
// Nothing was settled.
export class WrongTransactionError extends DibsError {}

// ClosedError: the client was closed.
export class ClosedError extends DibsError {}

// The names stand although a bundler renames the classes.
for (const [name, kind] of Object.entries({
  DibsError, HeldError, LostError, DoneError, MismatchError, UnknownError, UnavailableError, BusyError, FullError, TooLargeError,
  RefusedError, UnauthorizedError, ForbiddenError, OverloadedError, RememberedError, NotKeptError, UnrecordedError, WrongTransactionError,
  ClosedError,
})) Object.defineProperty(kind.prototype, "name", { value: name, configurable: true, writable: true });

// All times are in milliseconds.
const TTL = 30_000; // the default TTL of a lease
const MIN_TTL = 10; // the shortest TTL
const RETENTION = 86_400_000; // the default of keep
const PLACE = 7 * 86_400_000; // the default TTL of a reserved place
const PLACE_TTL = 10_000; // how long a waiter's place outlasts its last question
const POLL = 20_000; // the longest call that waits
const TIMEOUT = 5_000; // the default timeout of a call
const KEEP_PATIENCE = 10_000; // how long what was waited or worked for is asked again
const GRACE = 5_000; // how long close waits
const SILENT = 300_000; // how long after it was sent a claim may be carried out that no server answered
const HURRY = 2_000; // how long a program that has nothing else to do waits for an undo
const ANY_AGE = 9_223_372_036_854; // accepts a record of any age
const MAX_ELEMENTS = 512; // of a call
const MAX_TIMER = 2 ** 31 - 1; // a longer timer of JavaScript fires at once

const HOST = hostname();

// now is the monotonic clock, in milliseconds. On Linux it stops while the machine is suspended, and
// Node has no exact one that does not. Tests that replace the global clock do not move it.
const now = performance.now.bind(performance);

// connect returns a client of the servers at the URL:
//
//   unix:/run/dibs/dibs.sock, http+unix:/run/dibs/dibs.sock    a Unix socket
//   http://127.0.0.1:7331
//   https://:TOKEN@dibs.internal                     with a credential
//   https://:TOKEN@a.internal,b.internal:8443        several servers of one store
//
// The default is the variable DIBS_SERVER, or unix:/run/dibs/dibs.sock. It does not connect yet. The
// options are those of Client. Make one client for the program.
export function connect(url, options) {
  return new Client(url ?? (process.env.DIBS_SERVER || "unix:/run/dibs/dibs.sock"), options);
}

// Client takes, waits for, renews and settles leases. Make one with connect.
export class Client {
  #core;
  #ttl;
  #namespace;
  #own; // the namespace, as the server says
  #label;
  #postgres;

  // options: ttl of the leases, timeout of a call, the namespace of the keys (default: the
  // server's or the credential's), and a label that tells operators what the keys are held for. For
  // completeIn, reserveIn and once with in, schema and prefix are those of the store's URL.
  constructor(url, options = {}) {
    const o = known(options, ["ttl", "timeout", "namespace", "label", "schema", "prefix"]);
    this.#ttl = o.ttl === undefined ? TTL : leaseTTL(o.ttl);
    const timeout = o.timeout === undefined ? TIMEOUT : millis(o.timeout, "timeout");
    if (timeout < 1) bad(`timeout is ${show(o.timeout)}; it must be at least 1 ms`);
    this.#namespace = o.namespace ?? "";
    if (typeof this.#namespace !== "string") bad("namespace must be a string");
    this.#label = o.label ?? basename(process.argv[1] ?? process.execPath);
    this.#core = new Core(readURL(url), timeout);
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
  // The other options and errors are those of lock. If the function ran and its result could not be
  // stored, once rejects with NotKeptError, and later callers get UnrecordedError. In a transaction
  // nothing was done then, and the next caller runs.
  async once(key, options, fn) {
    [options, fn] = called("once", options, fn);
    const { keep = RETENTION, maxAge, remember, rerun = false, in: client, ...o } = known(options, [...LOCK, "keep", "maxAge", "remember", "rerun", "in"]);
    if (client !== undefined) queries(client, "in");
    const retention = kept(keep);
    const remembers = rememberer(remember);
    const claim = this.#claim(key, o, { maxAge: age(maxAge ?? "any") });
    let hold;
    try {
      hold = await this.#take(claim, o.signal);
    } catch (e) {
      if (e instanceof DoneError) return recall(e, claim);
      throw e;
    }
    return this.#run(hold, (lease) => (client === undefined ? runOnce(hold, lease, fn, retention, remembers, rerun)
      : runOnceIn(this.#postgres, client, hold, lease, fn, retention, remembers)));
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
    throw refusal(claim, answer);
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
    if (fingerprint !== undefined && !/^[0-9a-f]{64}$/i.test(fingerprint)) bad("fingerprint is no SHA-256 in 64 hexadecimal digits");
    if (signal !== undefined && typeof signal?.addEventListener !== "function") bad("signal is no AbortSignal");
    const label = String(o.label ?? this.#label).slice(0, 100);
    return new Claim(readKey(key), {
      ttl, wait, stopTimeout, maxLifetime, grace, permits, weight, fingerprint, atMostOnce, namespace: this.#namespace,
      owner: { host: HOST, pid: process.pid, label }, ...more,
    });
  }

  // #place reserves a place.
  async #place(claim) {
    const answer = await askTrying(this.#core, claim, "reserve");
    if (answer.state !== "held" || !answer.queued) throw refusal(claim, answer);
  }

  // #take resolves to a granted lease, or rejects and leaves nothing of the claim behind.
  async #take(claim, signal, renewed = true) {
    const core = this.#core;
    waitsForItself(core, claim);
    const wait = new Wait(core, signal);
    try {
      const { answer, sent } = await granted(core, claim, wait);
      if (wait.ended) throw wait.reason;
      return new Hold(core, claim, answer, sent, renewed);
    } catch (e) {
      if (claim.open || core.undoer.silent.has(claim.token)) core.undoer.settle(claim, "undo");
      throw e;
    } finally {
      wait.done();
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

// Lease is the right to a key until it is settled or lost. It is renewed in the background. Its
// process and its thread own it: it cannot be sent to another one.
export class Lease {
  #hold;
  #postgres;

  constructor(hold, postgres) {
    if (!(hold instanceof Hold)) bad("a Lease comes from lock or acquire");
    this.#hold = hold;
    this.#postgres = postgres;
  }

  // key is the key that is held.
  get key() { return this.#hold.claim.key; }

  // ttl is the TTL in milliseconds.
  get ttl() { return this.#hold.claim.ttl; }

  // attempt is 1 plus the number of leases in a row that were abandoned before this one.
  get attempt() { return this.#hold.attempt; }

  // progress is what those saved last, as a Buffer, or null.
  get progress() { return this.#hold.progress; }

  // check returns the lease, and throws LostError if it is not held any more, or ClosedError if the
  // client is closed. It looks at the clock, so it also knows when the process was stopped, or its
  // event loop blocked, for longer than the lease.
  check() {
    this.#hold.check();
    return this;
  }

  // held says whether the lease is held and trusted.
  get held() { return this.#hold.held; }

  // fence is the fencing token, a BigInt of at most 64 bits: it rises with every grant of the key.
  // A resource that remembers the highest fence and refuses lower ones is safe from a holder that
  // was stopped for longer than its lease. It throws like check.
  get fence() {
    this.#hold.check();
    return this.#hold.fence;
  }

  // signal aborts when the lease is lost, with LostError as the reason, or when the client is
  // closed. The timer that aborts it cannot run while the event loop is blocked; check looks itself.
  get signal() { return this.#hold.signal; }

  // left is the milliseconds for which the lease can still be trusted unless it is renewed.
  get left() { return this.#hold.held ? Math.max(this.#hold.trusted - now(), 0) : 0; }

  // id is the public name of this attempt, which operators see.
  get id() { return this.#hold.claim.id; }

  // save keeps progress (bytes or a text, at most 1 MiB) with the lease and renews it. The next
  // holder gets it if this one does not settle. It rejects with LostError or UnavailableError.
  async save(progress) { await this.#hold.save(bytes(progress, "progress")); }

  // release ends the lease and leaves nothing behind. It does nothing if the lease was settled
  // before. It rejects with LostError when the lease was lost, and with UnavailableError or
  // BusyError when the server did not do it; the lease is then released in the background.
  async release() { await this.#hold.release(); }

  // complete ends the lease and leaves data (bytes or a text) behind as the key's record, for keep
  // (default: 24 hours). It rejects with LostError, and then nothing is written. After BusyError or
  // FullError the lease is still held: call complete again, or release. After UnavailableError the
  // record may be written, so the lease is not trusted any more: call complete again, and the store
  // decides.
  async complete(data, options = {}) {
    const { keep = RETENTION } = known(options, ["keep"]);
    await this.#hold.complete(bytes(data, "data"), kept(keep));
  }

  // completeIn is complete in a transaction of the application, in the PostgreSQL database of the
  // store: what the transaction writes and the record are both committed, or neither is. Call it as
  // the last statement of the transaction. client is one of pg, or whatever has query(text, values).
  // With data: null it leaves no record, as release.
  //
  // The lease has ended when the transaction commits. If it is rolled back, the lease is still held.
  // The end of the function of lock settles it in both cases; a lease of acquire needs release after
  // the transaction, which does nothing if it committed.
  //
  // It rejects with LostError, WrongTransactionError (the transaction has written nothing, or there is
  // none), RefusedError (the database has no such store), ForbiddenError (the role may not call the
  // function) and the errors of the database. Let them roll the transaction back.
  async completeIn(client, data, options = {}) {
    const { keep = RETENTION } = known(options, ["keep"]);
    await this.#hold.settleIn(this.#postgres, client, data === null ? null : bytes(data, "data"), kept(keep), "written");
  }

  // abandon ends the lease as if its holder had crashed: the next holder learns of it.
  async abandon() { await this.#hold.settle({ outcome: "abandon" }); }

  // undo ends the lease as if it had not been granted, for a holder that has done nothing. A
  // reserved place can then be redeemed again.
  async undo() { await this.#hold.settle({ outcome: "undo" }); }

  // The end of `await using` releases. If the lease was lost, it throws LostError.
  async [Symbol.asyncDispose]() {
    const lost = await this.#hold.finish();
    if (lost) throw lost;
  }

  // What is printed shows no token.
  [Symbol.for("nodejs.util.inspect.custom")]() {
    return `Lease { ${this.#hold.claim.digest} ${this.#hold.held ? "held" : "ended"} }`;
  }
}

// LOCK are the options of lock.
const LOCK = ["wait", "signal", "ttl", "permits", "weight", "fingerprint", "atMostOnce", "stopTimeout", "maxLifetime", "label"];

// under has the leases under which the code runs that asks.
const under = new AsyncLocalStorage();

// waitsForItself refuses a wait that would never end.
function waitsForItself(core, claim) {
  if (claim.wait === 0) return;
  let weight = claim.weight;
  for (let { hold, up } = under.getStore() ?? {}; hold; { hold, up } = up ?? {}) {
    const other = hold.claim;
    if (hold.core !== core || other.namespace !== claim.namespace || !other.bytes.equals(claim.bytes) || !hold.live) continue;
    weight += other.weight;
    if (other.permits !== claim.permits || weight > claim.permits) {
      throw new HeldError(`dibs: the key ${claim.digest} is held by the caller itself, and waiting would never end`, { key: claim.key });
    }
  }
}

// granted asks until the claim is granted, refused or given up, and resolves to the answer and when
// the claim was sent.
async function granted(core, claim, wait) {
  const start = now();
  const once = claim.wait === 0;
  const ends = claim.wait === undefined ? Infinity : start + claim.wait;
  let heard = start;
  let poll = 0;
  let pause = 10;
  for (;;) {
    try {
      const { answer, sent } = await ask(core, claim, once ? "try" : "queue", poll, wait);
      if (answer.error) throw elementError(answer.error, claim);
      heard = now();
      pause = 10;
      if (answer.state === "granted") {
        // The trust counts from when the claim was sent. If that was long ago, the same claim is
        // sent again: it gets the same lease, for a whole TTL.
        if (poll === 0 || heard - sent < claim.ttl / 20) return { answer, sent };
        poll = 0;
        continue;
      }
      if (answer.state !== "held" || once || heard >= ends) throw refusal(claim, answer, heard - start);
      poll = Math.min(ends - heard, POLL);
    } catch (e) {
      if (wait.ended) throw wait.reason;
      if (!passing(e)) throw e;
      // Until then the server waited on purpose. That the store is busy with the key is an answer.
      if ((poll > 0 && e instanceof UnavailableError) || (!once && e instanceof BusyError)) heard = now();
      pause = Math.min(pause * 2, 1000);
      const rest = jitter(pause);
      if (now() + rest > Math.min(heard + (once ? 1000 : KEEP_PATIENCE), once ? Infinity : ends)) throw e;
      await sleep(rest, wait);
      if (!(e instanceof OverloadedError)) poll = 0;
    }
  }
}

// ask sends the claim once and notes what it may have at the store.
async function ask(core, claim, mode, poll, wait) {
  const body = { claims: [claim.wire(mode)] };
  if (poll > 0) body.wait_ms = Math.ceil(poll);
  const { open } = claim;
  claim.open = true;
  try {
    const { answers: [answer], sent } = await core.calls.call("claim", body, 1, { wait: poll, until: wait, silent: core.undoer.noting(claim) });
    claim.open = answer.state === "granted" || answer.queued === true || answer.error !== undefined;
    return { answer, sent };
  } catch (e) {
    if (!wait.ended && e instanceof DibsError && !e[UNANSWERED]) claim.open = open; // nothing was done
    throw e;
  }
}

// askTrying asks once, and again for a second if the server is away.
function askTrying(core, claim, mode) {
  return trying(1000, async () => {
    const silent = mode === "look" ? undefined : core.undoer.noting(claim);
    const { answers: [answer] } = await core.calls.call("claim", { claims: [claim.wire(mode)] }, 1, { silent });
    if (answer.error) throw elementError(answer.error, claim);
    return answer;
  });
}

// settleTrying sends a settlement until it is answered, and resolves to the LostError if there was
// nothing to settle. If an earlier try may have done it, that is no loss, unless it is a record: the
// same record may be written twice. hold.unanswered is the outcome of what was sent and not answered.
async function settleTrying(core, claim, settlement, patience, hold = { unanswered: null }) {
  const { outcome } = settlement;
  let repeated = false;
  const { error } = await trying(patience, async () => {
    const before = hold.unanswered;
    hold.unanswered ??= outcome;
    let again = false;
    try {
      let answer;
      ({ answers: [answer], again } = await core.calls.call("settle", { settlements: [{ ...claim.named, ...settlement }] }, 1));
      if (answer.error && answer.error.type !== "lost") throw elementError(answer.error, claim);
      repeated = again || before === outcome;
      return answer;
    } catch (e) {
      if (!again && !e[UNANSWERED]) hold.unanswered = before; // nothing was done
      throw e;
    }
  });
  core.undoer.settled(claim, outcome);
  if (error && (!(repeated || hold.inTransaction) || outcome === "keep")) return elementError(error, claim);
}

// trying calls again while the failure may pass, for as long as patience.
async function trying(patience, call) {
  const ends = now() + patience;
  for (let pause = 20; ; pause = Math.min(pause * 2, 1000)) {
    try {
      return await call();
    } catch (e) {
      const rest = jitter(pause);
      if (!passing(e) || now() + rest > ends) throw e;
      await sleep(rest);
    }
  }
}

function passing(e) {
  return e instanceof UnavailableError || e instanceof BusyError || e instanceof OverloadedError;
}

function jitter(pause) {
  return pause * (0.5 + Math.random() / 2);
}

// sleep keeps the process alive, because a caller waits for it.
function sleep(ms, wait) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    wait?.stop((reason) => {
      clearTimeout(timer);
      reject(reason);
    });
  });
}

// elementError is the error of an element that failed alone.
function elementError({ type, detail }, claim) {
  const Kind = { lost: LostError, busy: BusyError, full: FullError, too_large: TooLargeError }[type] ?? RefusedError;
  return new Kind(`dibs: the key ${claim.digest}: ${plain(detail || type)}`, { key: claim.key });
}

// plain is a message inside another one.
function plain(message) {
  return message.replace(/^dibs: /, "");
}

// refusal is the error of an answer that is no grant.
function refusal(claim, answer, waited = 0) {
  const { digest, key } = claim;
  switch (answer.state) {
    case "held": {
      const left = answer.left_ms ?? 0;
      const how = claim.wait > 0 ? `after waiting ${Math.round(waited)} ms` : `for ${left} ms more at most unless it is renewed`;
      return new HeldError(`dibs: the key ${digest} is held, ${how}`, { key, left, ahead: answer.ahead ?? 0, waited });
    }
    case "done":
      return new DoneError(`dibs: the key ${digest} is done`, { key, record: Buffer.from(answer.record?.data ?? "", "base64"), age: answer.record?.age_ms ?? 0 });
    case "mismatch":
      return new MismatchError(`dibs: the key ${digest} was used with another fingerprint`, { key });
    case "unknown":
      return new UnknownError(`dibs: the outcome of the attempt ${answer.id} on the key ${digest} is unknown; an operator must resolve it`, { key, id: answer.id });
    default:
      return new RefusedError(`dibs: the key ${digest}: the server answers with the state ${show(answer.state)}`, { key });
  }
}

// Core is what a client's calls share.
class Core {
  waits = new Set();
  holds = new Set();
  closed = null; // the ClosedError

  constructor(address, timeout) {
    this.timeout = timeout;
    this.calls = new Calls(address, timeout);
    this.renewer = new Renewer(this.calls, timeout);
    this.undoer = new Undoer(this.calls, timeout);
  }

  close(limit) {
    return (this.closing ??= this.end(limit));
  }

  async end(limit) {
    this.closed = new ClosedError("dibs: the client is closed");
    for (const wait of this.waits) wait.end(this.closed);
    for (const hold of this.holds) hold.abort(this.closed);
    const ends = now() + limit;
    await within(limit, () => this.holds.size === 0 && this.waits.size === 0, (changed) => { this.changed = changed; });
    await this.undoer.flush(Math.max(ends - now(), 0));
    this.renewer.stop();
    this.undoer.stop();
    this.calls.close(this.closed);
    await new Promise(setImmediate); // the callers hear of it before the program may exit
  }

  remove(set, one) {
    set.delete(one);
    this.changed?.();
  }
}

// within waits until done says so, for at most limit. set gets the function to call when something
// changed.
function within(limit, done, set) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      set(undefined);
      resolve();
    };
    const timer = setTimeout(end, clamp(limit));
    const changed = () => done() && end();
    set(changed);
    changed();
  });
}

// Wait is what may end a caller's wait early: its signal, and the end of the client.
class Wait {
  ended = false;

  constructor(core, signal) {
    if (core.closed) throw core.closed;
    signal?.throwIfAborted();
    this.core = core;
    this.signal = signal;
    this.listener = () => this.end(signal.reason);
    signal?.addEventListener("abort", this.listener, { once: true });
    core.waits.add(this);
  }

  end(reason) {
    this.ended = true;
    this.reason = reason;
    this.stopping?.(reason);
  }

  // stop says what is to be called at the end: of what the caller waits for now.
  stop(stopping) {
    this.stopping = stopping;
    if (this.ended) stopping(this.reason);
  }

  done() {
    this.stopping = undefined;
    this.signal?.removeEventListener("abort", this.listener);
    this.core.remove(this.core.waits, this);
  }
}

// Server is one address.
class Server {
  constructor(host, port, tls, socketPath) {
    this.tls = tls;
    this.to = socketPath ? { socketPath, host: "localhost" } : { host, port };
    this.text = socketPath ? `unix:${socketPath}` : `${tls ? "https" : "http"}://${host.includes(":") ? `[${host}]` : host}:${port}`;
  }

  toString() {
    return this.text;
  }
}

// readURL returns the servers of a URL, and its token.
function readURL(url) {
  const no = (why) => bad(`not the URL of a server: ${why}`); // without the URL, which may have the token
  if (typeof url !== "string") no("it is no string");
  if (/^(http\+)?unix:/.test(url)) {
    const path = url.replace(/^(http\+)?unix:/, "").replace(/^\/\/(?=\/)/, "");
    if (!path.startsWith("/") || path.startsWith("//") || /[?#]/.test(path)) {
      no("the URL of a socket is unix: and an absolute path, such as unix:/run/dibs/dibs.sock");
    }
    return { servers: [new Server("localhost", 0, false, path)] };
  }
  const [, scheme, user, hosts] = /^(https?):\/\/(?:(.*)@)?([^@]*)$/s.exec(url) ?? no("it must begin with https://, http:// or unix:");
  let secret;
  if (user !== undefined) {
    if (!/^:./s.test(user)) no("the token stands in the password's place and there is no user, as in https://:TOKEN@HOST");
    try {
      secret = decodeURIComponent(user.slice(1));
    } catch {
      no("the token has a % that is no escape");
    }
    if (!/^[\x20-\x7e]+$/.test(secret)) no("the token has characters that are not printable ASCII");
  }
  const list = hosts.replace(/\/$/, "");
  if (/[/?#]/.test(list)) no("there is a path or a parameter after the host; the URL has neither");
  const servers = list.split(",").map((text) => {
    const [, host, digits] = /^(\[[0-9a-f:.]+\]|[^:[\]@\s]+)(?::(\d+))?$/i.exec(text) ?? no("it has a host that is none");
    const port = Number(digits ?? (scheme === "https" ? 443 : 80));
    if (port < 1 || port > 65_535) no("it has a port that is none");
    return new Server(host.replace(/[[\]]/g, ""), port, scheme === "https");
  });
  return { servers, secret };
}

// Calls are the calls of a client, over connections that are kept.
class Calls {
  constructor({ servers, secret }, timeout) {
    this.servers = servers;
    this.timeout = timeout;
    this.current = 0;
    this.agents = [new http.Agent({ keepAlive: true }), new https.Agent({ keepAlive: true, rejectUnauthorized: true })];
    this.headers = { "Content-Type": "application/json", "Accept-Encoding": "identity" };
    if (secret) this.headers.Authorization = `Bearer ${secret}`;
  }

  // call makes one call and resolves to the answers, when it was sent, and whether it was sent before
  // and not answered, so that it may have been done then. If a server is away it asks the next one,
  // each once. wait is how long the server may take on purpose. Such a call asks one server only,
  // because its caller asks again with less time to wait. until is the Wait that may end the call.
  // silent is called with when the call was sent, if it was sent and not answered.
  async call(verb, body, size, { wait = 0, timeout = this.timeout, until, silent: note = () => {} } = {}) {
    if (this.closed) throw this.closed;
    const ends = now() + timeout;
    const count = wait > 0 ? 1 : this.servers.length;
    let away;
    let silent = false;
    for (let i = 0; i < count; i++) {
      const first = this.current;
      const server = this.servers[first];
      const left = ends - now();
      if (left <= 0) break;
      let again = silent;
      const limit = wait + left / (count - i);
      // A server carries no claim out whose caller does not listen any more.
      const text = Buffer.from(JSON.stringify(verb === "claim" ? { ...body, timeout_ms: Math.ceil(limit) } : body));
      const noted = { sent: now() };
      try {
        const posted = await this.post(server, verb, text, limit, until, noted);
        again ||= posted.again;
        if (posted.again) note(posted.sent);
        return { answers: answersOf(server, verb, posted.response, size), sent: posted.sent, again };
      } catch (e) {
        if (!(e instanceof DibsError) || until?.ended) {
          note(noted.sent);
          throw e;
        }
        silent = unanswered(e, again)[UNANSWERED];
        if (silent) note(noted.sent);
        if (!(e instanceof UnavailableError)) throw e;
        away = e;
        if (this.current === first) this.current = (first + 1) % this.servers.length;
      }
    }
    throw away ?? new UnavailableError(`dibs: ${verb}: no server answered in time`);
  }

  // post sends a request. A kept connection may have been closed by the server meanwhile, so then
  // another one is used; every call may be repeated.
  async post(server, verb, text, limit, until, noted) {
    const ends = now() + limit;
    for (let again = false; ; again = true) {
      const sent = noted.sent = now();
      try {
        return { response: await this.send(server, verb, text, ends - sent, until), sent, again };
      } catch (e) {
        if (e !== STALE) throw e instanceof DibsError && !until?.ended ? unanswered(e, again) : e;
      }
    }
  }

  // send sends a request once.
  send(server, verb, text, limit, until) {
    return new Promise((resolve, reject) => {
      let ended = false;
      let sends = false; // the server may have got it
      const end = (settle, value) => {
        if (ended) return;
        ended = true;
        clearTimeout(timer);
        settle(value);
      };
      const fail = (error) => {
        if (error.code && request.reusedSocket && /^(ECONNRESET|EPIPE|ECONNABORTED)$/.test(error.code)) return end(reject, STALE);
        const Kind = request.socket?.authorizationError ? RefusedError : UnavailableError;
        const cure = /^(ENOENT|ECONNREFUSED)$/.test(error.code) ? "; is dibs serve running there?" : "";
        end(reject, unanswered(new Kind(`dibs: ${server}: ${error.message || error.code}${cure}`, { cause: error }), sends));
      };
      const request = (server.tls ? https : http).request({
        ...server.to, agent: this.agents[server.tls ? 1 : 0], method: "POST", path: `/v1/${verb}`,
        headers: { ...this.headers, "Content-Length": text.length },
      }, (response) => {
        const chunks = [];
        response.on("data", (chunk) => chunks.push(chunk));
        response.on("error", fail);
        response.on("end", () => end(resolve, { status: response.statusCode, type: response.headers["content-type"] ?? "", body: Buffer.concat(chunks) }));
      });
      request.on("socket", (socket) => {
        if (request.reusedSocket) sends = true;
        else socket.once(server.tls ? "secureConnect" : "connect", () => { sends = true; });
      });
      request.on("error", fail);
      const timer = setTimeout(() => { // the body counts, too
        fail(new Error(`no answer within ${Math.round(limit)} ms`));
        request.destroy();
      }, clamp(limit));
      until?.stop((reason) => {
        if (ended) return;
        end(reject, reason);
        request.destroy();
      });
      request.end(text);
    });
  }

  close(closed) {
    this.closed = closed;
    for (const agent of this.agents) agent.destroy();
  }
}

// STALE is what send rejects with if the connection was an old one.
const STALE = Symbol("stale");
// UNANSWERED marks the error of a call that was sent, and of which no server said what became of it.
const UNANSWERED = Symbol("unanswered");

// unanswered marks an error, if a server may have got the call.
function unanswered(error, sent = true) {
  Object.defineProperty(error, UNANSWERED, { value: sent || error[UNANSWERED] === true, configurable: true });
  return error;
}

// answersOf reads a response. Only dibs serve itself knows that nothing was done: what another
// program answers says nothing of a server behind it.
function answersOf(server, verb, { status, type, body }, size) {
  const media = type.split(";")[0].trim().toLowerCase();
  const parsed = parse(body);
  if (status === 200) {
    const list = media === "application/json" && parsed?.answers;
    if (Array.isArray(list) && list.length === size && list.every((a) => a && typeof a === "object" && !Array.isArray(a))) return list;
    throw stranger(server, "with something else");
  }
  const problem = media === "application/problem+json" && parsed && typeof parsed === "object" ? parsed : null;
  const text = problem && `${problem.title} (${status}): ${problem.detail}`;
  if (status >= 500) {
    throw unanswered(new UnavailableError(`dibs: ${verb}: ${text ?? `${server} answers with ${status}`}`), !String(problem?.type).endsWith("#stopping"));
  }
  if (!text) throw stranger(server, `with ${status}`);
  const Kind = { 401: UnauthorizedError, 403: ForbiddenError, 429: OverloadedError }[status] ?? RefusedError;
  throw new Kind(`dibs: ${verb}: ${text}`);
}

function stranger(server, how) {
  return unanswered(new RefusedError(`dibs: what answers at ${server} ${how} is no dibs serve`));
}

function parse(body) {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}

// Renewer renews the leases of a client: one timer, and one call for all that are due. The same
// timer ends those that were not renewed in time. It does not keep the process alive.
class Renewer {
  holds = new Set();
  at = Infinity; // when the timer fires
  busy = false;

  constructor(calls, timeout) {
    this.calls = calls;
    this.timeout = timeout;
  }

  add(hold) {
    this.holds.add(hold);
    if (Math.min(hold.due, hold.trusted) < this.at) this.arm();
  }

  remove(hold) {
    this.holds.delete(hold);
  }

  stop() {
    this.holds.clear();
    clearTimeout(this.timer);
  }

  arm() {
    clearTimeout(this.timer);
    this.at = Infinity;
    for (const hold of this.holds) this.at = Math.min(this.at, hold.trusted, this.busy ? Infinity : hold.due);
    if (this.at === Infinity) return;
    // What the timer calls runs under no lease of the code that happens to be here.
    under.run(undefined, () => { this.timer = setTimeout(() => this.tick(), clamp(Math.ceil(this.at - now()))).unref(); });
  }

  tick() {
    const at = now();
    for (const hold of this.holds) if (hold.overdue(at)) hold.expire();
    const all = [...this.holds];
    if (!this.busy && all.some((hold) => hold.due <= at)) {
      this.renew(all.filter((hold) => hold.due <= at + hold.claim.ttl / 15), Math.min(this.timeout, ...all.map((hold) => hold.claim.ttl / 3)));
    }
    this.arm();
  }

  async renew(due, patience) {
    this.busy = true;
    for (let i = 0; i < due.length; i += MAX_ELEMENTS) {
      const holds = due.slice(i, i + MAX_ELEMENTS);
      try {
        const body = { renewals: holds.map(({ claim }) => ({ ...claim.named, ttl_ms: Math.ceil(claim.ttl) })) };
        const { answers, sent } = await this.calls.call("renew", body, holds.length, { timeout: patience });
        holds.forEach((hold, n) => hold.renewed(answers[n].error?.type, sent));
      } catch {
        for (const hold of holds) hold.later(); // it is tried again until the lease is no longer trusted
      }
    }
    this.busy = false;
    this.arm();
  }
}

// Undoer settles in the background, by token, what no caller uses any more. For two seconds an
// undo keeps the process alive.
//
// A claim that a server did not answer may be carried out later, when the server is not frozen any
// more. So when its token is settled, it is undone again: after 1, 3, 7 and 15 seconds, and then every 15,
// until five minutes after the claim was sent.
class Undoer {
  entries = [];
  silent = new Map(); // by token: when the last claim was sent that a server did not answer
  pending = 0; // entries that were not settled once
  pause = 20;
  rest = 0; // no call before that
  busy = false;

  constructor(calls, timeout) {
    this.calls = calls;
    this.timeout = timeout;
  }

  // noting returns what notes that a claim was sent and not answered.
  noting({ token }) {
    return (sent) => {
      for (const [other, at] of this.silent) {
        if (at + SILENT > now()) break; // the map has the order of the calls
        this.silent.delete(other);
      }
      this.silent.delete(token);
      this.silent.set(token, sent);
    };
  }

  // claims says that the token claims again, so it is not undone any more.
  claims(token) {
    this.entries = this.entries.filter((e) => !e.again || e.settlement.token !== token);
  }

  // settle settles in the background.
  settle(claim, outcome) {
    const at = now();
    this.entries.push({
      claim, settlement: { ...claim.named, outcome }, due: at, hurry: at + HURRY, expires: at + Math.max(claim.ttl, claim.placeTTL ?? PLACE_TTL) + this.timeout,
    });
    this.pending++;
    this.arm();
  }

  // settled says that the claim's token was settled. The end of its lease is that of its place, too.
  settled({ named, token, from }, outcome) {
    this.undoAgain(named, token);
    if (from && (outcome === "release" || outcome === "keep")) this.undoAgain(named, from);
  }

  undoAgain(named, token) {
    const ends = (this.silent.get(token) ?? -Infinity) + SILENT;
    this.claims(token);
    if (ends < now() + 1000 || this.stopped) return;
    this.entries.push({ settlement: { ...named, token, outcome: "undo" }, due: now() + 1000, expires: ends, again: 1000 });
    this.arm();
  }

  // flush waits until everything was settled once, or for as long as limit.
  flush(limit) {
    return within(limit, () => this.pending === 0, (changed) => { this.changed = changed; });
  }

  stop() {
    this.stopped = true;
    this.entries = [];
    clearTimeout(this.timer);
  }

  arm() {
    clearTimeout(this.timer);
    if (this.busy || this.stopped || this.entries.length === 0) return;
    const at = this.entries.reduce((first, e) => Math.min(first, e.due), Infinity);
    // What the timer calls runs under no lease of the code that happens to be here.
    under.run(undefined, () => { this.timer = setTimeout(() => this.pass(), clamp(Math.max(at, this.rest) - now())); });
    if (!this.entries.some((e) => !e.again && e.hurry > now())) this.timer.unref();
  }

  // pass settles what is due in one call.
  async pass() {
    const at = now();
    const due = this.entries.filter((e) => e.due <= at).slice(0, MAX_ELEMENTS);
    if (due.length === 0) return this.arm();
    this.busy = true;
    let answers = [];
    try {
      ({ answers } = await this.calls.call("settle", { settlements: due.map((e) => e.settlement) }, due.length));
      this.pause = 20;
      this.rest = 0;
    } catch {
      this.rest = now() + jitter(this.pause = Math.min(this.pause * 2, 1000));
    }
    const ended = new Set(due.filter((entry, i) => this.ended(entry, answers[i])));
    this.entries = this.entries.filter((e) => !ended.has(e));
    this.busy = false;
    this.arm();
    this.changed?.();
  }

  // ended notes the answer to an entry, if there is one, and returns whether it is done with.
  ended(entry, answer) {
    if (entry.again) { // whatever the answer is
      entry.again = Math.min(entry.again * 2, 15_000);
      entry.due = now() + entry.again;
      return entry.due > entry.expires;
    }
    const settled = answer !== undefined && answer.error?.type !== "busy";
    if (!settled && now() < entry.expires) {
      if (answer) this.rest = now() + jitter(this.pause); // the store was busy
      return false;
    }
    this.pending--;
    if (settled && (!answer.error || answer.error.type === "lost")) this.settled(entry.claim, entry.settlement.outcome);
    return true;
  }
}

// Claim is what a caller asks for, and what its token may have at the store.
class Claim {
  open = false; // the token may have a lease or a place

  constructor({ key, bytes }, options) {
    Object.assign(this, options);
    this.key = key;
    this.bytes = bytes;
    this.token ??= randomBytes(16).toString("hex");
    this.margin = Math.max(this.stopTimeout ?? 0, this.ttl / 50 + 1);
    // named names the key and the token, as each element of a call does.
    this.named = isUtf8(bytes) ? { key: bytes.toString() } : { key_b64: bytes.toString("base64") };
    if (this.namespace) this.named.namespace = this.namespace;
    this.named.token = this.token;
  }

  get digest() {
    return createHash("sha256").update(`${this.namespace}\0`).update(this.bytes).digest("hex").slice(0, 12);
  }

  // id is the public name of the token.
  get id() {
    const sum = createHash("sha256").update("dibs claim id\0").update(Buffer.from(this.token, "hex")).digest();
    let bits = BigInt(`0x${sum.subarray(0, 10).toString("hex")}`);
    let id = "";
    for (let i = 0; i < 16; i++, bits >>= 5n) id = "abcdefghijklmnopqrstuvwxyz234567"[Number(bits & 31n)] + id;
    return id;
  }

  // wire is the element of a claim.
  wire(mode) {
    const e = { ...this.named, mode, ttl_ms: Math.ceil(this.ttl), owner: this.owner };
    if (mode !== "try") e.place_ttl_ms = Math.ceil(this.placeTTL ?? PLACE_TTL);
    if (this.permits !== 1) e.permits = this.permits;
    if (this.weight !== 1) e.weight = this.weight;
    if (this.from) e.from = this.from;
    if (this.grace !== undefined) e.grace_ms = Math.ceil(this.grace);
    if (this.fingerprint) e.fingerprint = this.fingerprint;
    if (this.maxAge !== undefined) e.max_age_ms = Math.ceil(this.maxAge);
    if (this.atMostOnce) e.at_most_once = true;
    return e;
  }
}

// CALLS are the methods that send a settlement, by its outcome.
const CALLS = { keep: "complete", release: "release", abandon: "abandon", undo: "undo" };

// Hold is a lease as the client sees it.
class Hold {
  settled = false;
  lost = false; // the store said so
  expired = false; // it was not renewed in time
  unanswered = null; // the outcome of a settlement that was sent and not answered
  trusted = -Infinity; // until then it is trusted
  due = Infinity; // then it is renewed
  settling = null; // the last settlement that is under way
  inTransaction = false; // a transaction settles it, or did

  constructor(core, claim, answer, sent, renews) {
    this.core = core;
    this.claim = claim;
    this.fence = readFence(answer.fence, claim);
    this.attempt = answer.attempt ?? 1;
    this.namespace = answer.namespace ?? ""; // as the server says
    this.progress = answer.progress === undefined ? null : Buffer.from(answer.progress, "base64");
    this.limit = claim.maxLifetime === undefined ? Infinity : sent + claim.maxLifetime;
    this.renews = renews;
    this.trust(sent);
    core.holds.add(this);
    core.renewer.add(this);
    if (core.closed) this.abort(core.closed);
  }

  // live says whether it may hold the key.
  get live() {
    if (this.overdue(now())) this.expire();
    return !this.settled && !this.lost && !this.expired && !this.core.closed;
  }

  get held() {
    return this.live && !this.unanswered;
  }

  check() {
    if (!this.held) throw this.reason();
  }

  // reason says why it is not held.
  reason() {
    if (this.core.closed && !this.settled && !this.lost && !this.expired) return this.core.closed;
    const call = CALLS[this.unanswered];
    const why = this.settled ? ": it was settled" : call && !this.lost ? `, or may be: its ${call} was sent and not answered; call ${call} again, and the store decides` : "";
    return new LostError(`dibs: the lease of the key ${this.claim.digest} is lost${why}`, { key: this.claim.key });
  }

  get signal() {
    this.controller ??= new AbortController();
    if (!this.settled && !(this.settling ? this.live : this.held)) this.abort(this.reason());
    return this.controller.signal;
  }

  abort(reason) {
    this.controller?.abort(reason);
  }

  // trust extends the trust: the server confirmed the lease in answer to what was sent then.
  trust(sent) {
    this.trusted = Math.min(Math.max(this.trusted, sent + this.claim.ttl - this.claim.margin), this.limit);
    if (this.renews) this.due = sent + this.claim.ttl / 3;
  }

  // later says when a renewal that failed is sent again.
  later() {
    if (this.renews) this.due = now() + Math.max(this.claim.ttl / 15, 1);
  }

  overdue(at) {
    return at >= this.trusted;
  }

  // expire ends the trust. What a renewal that is under way brings comes too late.
  expire() {
    if (this.settled || this.expired) return;
    this.expired = true;
    this.core.renewer.remove(this);
    this.abort(this.reason());
  }

  // renewed takes the answer to a renewal.
  renewed(error, sent) {
    if (error === undefined) return this.trust(sent);
    // While a settlement is under way, or if one may have been done, that says nothing.
    if (error !== "lost" || this.unanswered || this.inTransaction || this.settling) return this.later();
    this.lose();
  }

  lose() {
    if (!this.settled) this.lost = true;
    this.core.renewer.remove(this);
    if (this.lost) this.abort(this.reason());
  }

  async save(progress) {
    this.check();
    const body = { renewals: [{ ...this.claim.named, ttl_ms: Math.ceil(this.claim.ttl), progress: progress.toString("base64") }] };
    const timeout = Math.min(this.core.timeout, Math.max(this.trusted - now(), 1));
    const { answers: [{ error }], sent } = await this.core.calls.call("renew", body, 1, { timeout });
    if (!error) return this.trust(sent);
    if (error.type !== "lost") throw elementError(error, this.claim);
    if (!this.unanswered && !this.settling) this.lose();
    throw this.reason();
  }

  // release ends the lease now or in the background.
  async release(outcome = "release") {
    try {
      await this.settle({ outcome });
    } catch (e) {
      if (!(e instanceof LostError)) {
        this.end();
        this.core.undoer.settle(this.claim, outcome);
      }
      throw e;
    }
  }

  async complete(data, retention) {
    if (this.claim.permits > 1) bad("a key with more than one permit cannot have a record");
    await this.settle(record(data, retention), KEEP_PATIENCE);
  }

  // settleIn settles with the last statement of a transaction. Until it commits the lease is held, and
  // then a renewal finds none, which is no loss.
  async settleIn(postgres, client, data, retention, proof) {
    if (data && this.claim.permits > 1) bad("a key with more than one permit cannot have a record");
    queries(client, "client");
    this.check();
    this.inTransaction = true;
    try {
      await postgres.settle(client, this, data, retention, proof);
    } catch (e) {
      if (e instanceof LostError) this.lose();
      throw e;
    }
  }

  // findOut finds out whether the transaction was committed that settled the lease with this record,
  // if its answer did not arrive. A lease that can be released was not settled, and cannot be any
  // more. The store accepts a record again from the token that has left it. If the servers do not say
  // it, the next call of once finds it out.
  async findOut(data, retention) {
    const accepts = async (settlement) => !(await trying(KEEP_PATIENCE, async () => {
      const { answers: [{ error }] } = await this.core.calls.call("settle", { settlements: [{ ...this.claim.named, ...settlement }] }, 1);
      if (error && error.type !== "lost") throw elementError(error, this.claim);
      return error;
    }));
    try {
      const done = !(await accepts({ outcome: "release" })) && (await accepts(record(data, retention)));
      this.core.undoer.settled(this.claim, "release");
      this.end();
      return done;
    } catch (e) {
      if (e instanceof DibsError) return false;
      throw e;
    }
  }

  // finish ends the lease of a function, and resolves to the LostError if it was lost meanwhile. An
  // abandon or undo that was not answered is made again.
  async finish() {
    await this.settling?.catch(() => {});
    const outcome = this.settled ? null : this.unanswered;
    const call = CALLS[outcome];
    const why = call ? `may have ended while its function ran: its ${call} was sent and not answered` : "was lost while its function ran";
    const lost = new LostError(`dibs: the lease of the key ${this.claim.digest} ${why}`, { key: this.claim.key });
    try {
      await this.release(call && outcome !== "keep" ? outcome : "release");
    } catch (e) {
      if (e instanceof LostError) return lost; // otherwise it is released in the background, and nothing must run again
    }
    return call ? lost : null;
  }

  // settle ends the lease. Settlements of one lease follow one another.
  async settle(settlement, patience = this.core.timeout) {
    const before = this.settling;
    const mine = (async () => {
      await before?.catch(() => {});
      if (!this.settled) await this.settleNow(settlement, patience);
    })();
    this.settling = mine;
    try {
      await mine;
    } finally {
      if (this.settling === mine) this.settling = null;
    }
  }

  async settleNow(settlement, patience) {
    const late = this.expired || this.overdue(now());
    if (this.lost || (late && this.unanswered !== settlement.outcome && !this.inTransaction)) {
      // What the store still has of it is abandoned, as it would be when it expires.
      if (!this.over) this.core.undoer.settle(this.claim, "abandon");
      this.expire();
      this.over = true;
      this.core.remove(this.core.holds, this);
      throw this.reason();
    }
    let error;
    try {
      error = await settleTrying(this.core, this.claim, settlement, patience, this);
    } catch (e) {
      if (this.unanswered && settlement.outcome !== "release") this.abort(this.reason());
      throw e;
    }
    if (!error) return this.end();
    this.over = true;
    this.lose();
    this.core.remove(this.core.holds, this);
    throw error;
  }

  end() {
    this.settled = true;
    this.core.renewer.remove(this);
    this.core.remove(this.core.holds, this);
  }
}

// record is the settlement that leaves data behind.
function record(data, retention) {
  return { outcome: "keep", data: data.toString("base64"), retention_ms: Math.ceil(retention) };
}

// Postgres are the functions of the store in the application's database.
class Postgres {
  constructor(schema, prefix) {
    if (typeof schema !== "string" || typeof prefix !== "string") bad("schema and prefix are strings");
    this.name = (name) => [schema, `${prefix}_${name}`].map((part) => `"${part.replaceAll('"', '""')}"`).join(".");
  }

  async settle(client, hold, data, retention, proof) {
    const { claim, namespace } = hold;
    await this.call(client, claim, "settle_in", "$1::text, $2::text, $3::text, $4::text::interval, $5::text, 'base64', $6::text",
      [claim.bytes.toString("base64"), claim.token, data && data.toString("base64"), interval(retention), namespace, proof]);
  }

  async reserve(client, claim, namespace) {
    queries(client, "client");
    const owner = `${claim.owner.host.replaceAll(" ", "_")} ${claim.owner.pid} ${claim.owner.label}`;
    const result = await this.call(client, claim, "reserve_in", "$1::text, $2::text::interval, $3::text::interval, $4::text, $5::text, 'base64'",
      [claim.bytes.toString("base64"), interval(claim.placeTTL), claim.grace === undefined ? null : interval(claim.grace), namespace,
        Buffer.from(owner).subarray(0, 255).toString("base64")]);
    return (result.rows ?? result)[0].answer;
  }

  async call(client, { digest, key }, name, parameters, values) {
    const named = this.name(name);
    try {
      return await client.query(`SELECT ${named}(${parameters}) AS answer`, values);
    } catch (e) {
      const cause = e;
      switch (e?.code) {
        case "DIBS1": throw new LostError(`dibs: the lease of the key ${digest} is lost: ${e.detail}`, { key, cause });
        case "DIBS2": throw new WrongTransactionError(`dibs: ${plain(e.message)}. Begin a transaction, write in it, and settle the key ${digest} as its last statement; the function of once begins and ends none`, { key, cause });
        case "42883": case "3F000": throw new RefusedError(`dibs: this database has no function ${named} of this version. Name the store's schema and prefix when you connect, or run dibs migrate (${e.message})`, { key, cause });
        case "42501": throw new ForbiddenError(`dibs: the role may not call ${named}: GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION (${e.message})`, { key, cause });
        default: throw e;
      }
    }
  }

  // begin begins the transaction of once. A setting that is local to a transaction tells whether there
  // is one.
  async begin(client, { key }) {
    await client.query("SELECT set_config('dibs.run', 'outer', true)");
    const found = await client.query("SELECT current_setting('dibs.run', true) AS answer");
    if ((found.rows ?? found)[0].answer === "outer") {
      throw new WrongTransactionError("dibs: the client is in a transaction already; once begins and commits its own, so call it outside, or use completeIn", { key });
    }
    await client.query("BEGIN");
    await client.query("SET LOCAL dibs.run = 'on'");
  }
}

function interval(ms) {
  return `${Math.ceil(ms * 1000)} microseconds`;
}

// queries requires a connection. A pool sends each statement over another one.
function queries(client, name) {
  if (typeof client?.query !== "function") bad(`${name} is no client of pg: it has no query(text, values)`);
  if (typeof client.totalCount === "number") bad(`${name} is a pool, which sends each statement over another connection; give one of its clients`);
}

// readFence reads a fence, which is too long for a Number.
function readFence(text, claim) {
  const fence = typeof text === "string" && /^\d{1,20}$/.test(text) ? BigInt(text) : -1n;
  if (fence < 0n || fence >= 1n << 64n) {
    throw new RefusedError(`dibs: the key ${claim.digest}: the server answers with the fence ${show(text)}`, { key: claim.key });
  }
  return fence;
}

// A ticket is a place in a key's queue as text: the same text as in the other clients.
function writeTicket({ token, namespace, bytes }) {
  return ["dibs1", ...[Buffer.from(token, "hex"), Buffer.from(namespace), bytes].map((b) => b.toString("base64url"))].join(".");
}

function readTicket(text) {
  const no = () => bad("not a ticket of reserve"); // without the text, which is a secret
  const parts = typeof text === "string" ? text.split(".") : [];
  if (parts.length !== 4 || parts[0] !== "dibs1") no();
  const [token, namespace, key] = parts.slice(1).map((part) => {
    const b = Buffer.from(part, "base64url");
    return b.toString("base64url") === part ? b : no();
  });
  if (token.length !== 16 || !isUtf8(namespace) || key.length < 1 || key.length > 512) no();
  return { token: token.toString("hex"), namespace: namespace.toString(), key: isUtf8(key) ? key.toString() : key };
}

// runOnce runs the function of once and stores its result.
async function runOnce(hold, lease, fn, retention, remembers, rerun) {
  const ran = {};
  try {
    ran.result = await fn(lease);
  } catch (e) {
    if (!remembers(e)) throw e;
    ran.thrown = e;
  }
  const text = await keepOnce(hold, ran, retention, rerun);
  if ("thrown" in ran) throw ran.thrown;
  return readValue(text).value;
}

// runOnceIn is runOnce in a transaction. What cannot be stored rolls it back.
async function runOnceIn(postgres, client, hold, lease, fn, retention, remembers) {
  let text;
  let settled = false;
  try {
    await postgres.begin(client, hold.claim);
    try {
      const result = await fn(lease);
      try {
        text = writeValue(result);
      } catch (e) {
        throw notKept(hold, e, {}, true, ", so its transaction was rolled back and nothing in it was done");
      }
      await hold.settleIn(postgres, client, Buffer.from(text), retention, "marked");
      settled = true;
    } catch (e) {
      await client.query("ROLLBACK").catch(() => {}); // a connection that broke has no transaction
      throw e;
    }
    await committed(client, hold, Buffer.from(text), retention);
  } catch (e) {
    if (!settled && remembers(e)) {
      await keepOnce(hold, { thrown: e }, retention, true);
      throw e;
    }
    if (!settled || !(await hold.findOut(Buffer.from(text), retention))) throw e;
  }
  hold.core.undoer.settled(hold.claim, "keep");
  hold.end();
  return readValue(text).value;
}

// committed commits. PostgreSQL answers the COMMIT of a transaction in which a statement failed with
// ROLLBACK, and with no error. A client that does not say what was answered is not trusted.
async function committed(client, hold, data, retention) {
  const answer = await client.query("COMMIT");
  if (typeof answer?.command === "string" ? answer.command === "COMMIT" : await hold.findOut(data, retention)) return;
  throw new WrongTransactionError(`dibs: COMMIT did not commit, because a statement failed after the function of once, or the connection is not in its transaction any more: nothing was done under the key ${hold.claim.digest}`, { key: hold.claim.key });
}

// keepOnce stores what the function returned or threw, and returns the record.
async function keepOnce(hold, ran, retention, rerun) {
  let why;
  try {
    const text = "thrown" in ran ? JSON.stringify({ error: String(ran.thrown?.message ?? ran.thrown) }) : writeValue(ran.result);
    await hold.complete(Buffer.from(text), retention);
    return text;
  } catch (e) {
    if (e instanceof LostError) throw lostWith(e, ran);
    why = e;
  }
  throw notKept(hold, why, ran, rerun || !(await noteRun(hold, why, ran, retention)));
}

// noteRun leaves the record that the function ran, and resolves to whether it does not run again.
async function noteRun(hold, why, ran, retention) {
  if (!passing(why) && !why?.[UNANSWERED]) {
    try {
      await hold.complete(Buffer.from(JSON.stringify({ not_kept: shorten(plain(String(why?.message ?? why))) })), retention);
      return true;
    } catch (e) {
      if (e instanceof LostError) throw lostWith(e, ran);
    }
  }
  if (hold.claim.atMostOnce) await hold.release("abandon").catch(() => {}); // it is done in the background
  return hold.claim.atMostOnce;
}

// shorten bounds a text to 500 bytes.
function shorten(text) {
  return Buffer.from(text).subarray(0, 500).toString().replace(/\ufffd+$/, "");
}

function lostWith(e, ran) {
  return "thrown" in ran ? new LostError(e.message, { key: e.key, cause: ran.thrown }) : e;
}

function notKept(hold, why, ran, rerun, how = `, and ${rerun ? "the next caller runs again" : "later callers get an error that says so"}`) {
  return new NotKeptError(`dibs: the result for the key ${hold.claim.digest} could not be stored${how}: ${plain(String(why?.message ?? why))}`, {
    key: hold.claim.key, result: ran.result, rerun, cause: "thrown" in ran ? ran.thrown : why,
  });
}

// recall returns the stored result, or throws the stored error.
function recall(done, { digest, key }) {
  let body;
  try {
    body = readValue(done.record.toString());
  } catch {
    body = null;
  }
  if (typeof body?.error === "string") throw new RememberedError(body.error, { key });
  if (typeof body?.not_kept === "string") {
    throw new UnrecordedError(`dibs: the function of once for the key ${digest} ran before, and its result could not be stored: ${body.not_kept}. dibs resolve --result gives callers a result, and --rerun lets the next one run`, { key });
  }
  if (!body || typeof body !== "object" || !Object.hasOwn(body, "value")) {
    throw new RefusedError(`dibs: the record of the key ${digest} is not one of once`, { key });
  }
  return body.value;
}

// writeValue returns the record of a result. What would come back as something else is refused, except
// that undefined is null, and a field that is undefined is left out.
function writeValue(result) {
  const mark = randomBytes(16).toString("hex");
  const text = JSON.stringify({ value: result ?? null }, function write(name) {
    if (/\p{Surrogate}/u.test(name)) throw new TypeError("a field's name is not Unicode");
    const value = this[name]; // before toJSON
    switch (typeof value) {
      case "bigint": return mark + value;
      case "number": if (Object.is(value, -0)) return `${mark}-0`; if (Number.isFinite(value)) return value; break;
      case "string": if (!/\p{Surrogate}/u.test(value)) return value; throw new TypeError("a text is not Unicode");
      case "object": if (value === null || isPlain(value)) return value; break;
      case "undefined": if (!Array.isArray(this)) return value; break;
      case "boolean": return value;
      default:
    }
    const what = typeof value === "object" ? value.constructor?.name || "an object" : typeof value === "number" ? String(value) : typeof value;
    throw new TypeError(`it has ${what} in it; return null, booleans, numbers, texts, arrays and plain objects`);
  });
  return text.replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

// isPlain reports whether an object comes back as it is: an array of values without holes and fields,
// or an object of fields, which have texts as names.
function isPlain(value) {
  const above = Object.getPrototypeOf(value);
  if (typeof value.toJSON === "function" || Object.getOwnPropertySymbols(value).length > 0) return false;
  if (Array.isArray(value)) return isRoot(Object.getPrototypeOf(above)) && Object.keys(value).length === value.length;
  return (above === null || isRoot(above)) && Object.prototype.toString.call(value) === "[object Object]";
}

// isRoot reports whether it is Object.prototype, perhaps of another realm.
function isRoot(above) {
  return above !== null && Object.getPrototypeOf(above) === null && Object.hasOwn(above, "hasOwnProperty");
}

// readValue parses a record. A whole number that JavaScript's numbers cannot hold is a BigInt.
function readValue(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const mark = randomBytes(16).toString("hex");
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g, (token) =>
    /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${mark}${token}"` : token);
  return JSON.parse(marked, (_, value) => (typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value));
}

// rememberer returns the function that says whether an error is remembered.
function rememberer(remember) {
  const kinds = remember === undefined ? [] : [remember].flat();
  for (const kind of kinds) if (typeof kind !== "function") bad("remember is an error class, a function of the error, or an array of them");
  return (e) => !(e instanceof LostError || e instanceof NotKeptError || e instanceof WrongTransactionError) && kinds.some((kind) =>
    (kind === Error || kind.prototype instanceof Error ? e instanceof kind : kind(e)));
}

// Arguments.

function bad(why) {
  throw new TypeError(`dibs: ${why}`);
}

function show(value) {
  return typeof value === "string" ? JSON.stringify(value) : typeof value === "bigint" ? `${value}n` : String(value);
}

function clamp(ms) {
  return Math.min(Math.max(ms, 0), MAX_TIMER);
}

// known returns the options, and refuses what is none. undefined is as good as left out.
function known(options, names) {
  if (options === null || typeof options !== "object") bad("the options are an object");
  for (const name of Object.keys(options)) if (!names.includes(name)) bad(`unknown option ${name}; there are ${names.join(", ")}`);
  return options;
}

// called sorts the arguments of a method whose options may be left out.
function called(name, options, fn) {
  if (typeof options === "function" && fn === undefined) [options, fn] = [{}, options];
  if (typeof fn !== "function") bad(`${name} needs a function${name === "lock" ? "; acquire returns a lease" : ""}`);
  return [options ?? {}, fn];
}

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

// millis reads a duration.
function millis(value, name) {
  let ms = value;
  if (typeof value === "string") {
    if (!/^(\d+(\.\d+)?(ms|s|m|h))+$/.test(value)) bad(`${name} is ${show(value)}; a duration is a number of milliseconds, or a text such as "90s" or "1h30m"`);
    ms = 0;
    for (const [, n, unit] of value.matchAll(/([\d.]+)(ms|s|m|h)/g)) ms += n * UNITS[unit];
  }
  if (typeof ms !== "number") bad(`${name} is ${show(value)}; it must be a duration, in milliseconds`);
  if (!Number.isFinite(ms) || ms < 0) bad(`${name} is ${show(value)}; it must be finite and not negative`);
  return ms;
}

function leaseTTL(value) {
  const ttl = millis(value, "ttl");
  if (ttl < MIN_TTL) bad(`ttl is ${show(value)}; it must be at least ${MIN_TTL} ms`);
  return ttl;
}

function placeTTL(value) {
  const ttl = value === undefined ? PLACE : millis(value, "ttl");
  if (ttl < 1) bad(`the ttl of a place is ${show(value)}; it must be at least 1 ms`);
  return ttl;
}

function kept(value) {
  const keep = millis(value, "keep");
  if (keep < 1) bad(`keep is ${show(value)}; it must be at least 1 ms`);
  return keep;
}

function age(value) {
  return value === undefined ? undefined : value === "any" ? ANY_AGE : millis(value, "maxAge");
}

function bytes(value, name) {
  if (typeof value === "string") return Buffer.from(value);
  if (value instanceof Uint8Array) return Buffer.from(value);
  return bad(`${name} must be a Uint8Array or a text`);
}

// readKey returns the key as it was given, and its bytes.
function readKey(key) {
  if (typeof key === "string" && /\p{Surrogate}/u.test(key)) bad("the key is not Unicode; give its bytes as a Uint8Array");
  if (typeof key !== "string" && !(key instanceof Uint8Array)) bad(`a key is a text or a Uint8Array, not ${key === null ? "null" : typeof key}`);
  const copy = Buffer.from(key);
  if (copy.length < 1 || copy.length > 512) bad(`the key has ${copy.length} bytes; it must have 1 to 512`);
  return { key: typeof key === "string" ? key : copy, bytes: copy };
}
