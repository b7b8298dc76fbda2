// The lease of a claim: until when it is trusted, and how it ends.

import { DibsError, LostError, RefusedError, UnavailableError, elementError, plain } from "./errors.js";
import { tell } from "./hooks.js";
import { trying } from "./clock.js";
import { bad, queries, show } from "./arguments.js";
import { KEEP_PATIENCE, settleTrying } from "./claim.js";

// CALLS are the methods that send a settlement, by its outcome.
const CALLS = { keep: "complete", release: "release", abandon: "abandon", undo: "undo" };

// Hold is a lease as the client sees it.
export class Hold {
  settled = false;
  lost = false; // the store said so
  expired = false; // it was not renewed in time
  unanswered = null; // the outcome of a settlement that was sent and not answered
  trusted = -Infinity; // until then it is trusted
  due = Infinity; // then it is renewed
  tried = -Infinity; // when a renewal was sent last
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
    if (this.overdue(this.core.clock.now())) this.expire();
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
    const why = this.settled ? ": it was settled" : this.stuck ? ": no renewal was sent in time, because the program's timers did not run; it was stopped, its event loop was blocked, or a test replaced them" : call && !this.lost ? `, or may be: its ${call} was sent and not answered; call ${call} again, and the store decides` : "";
    return new LostError(`dibs: the lease of the key ${this.claim.shown} is lost${why}`, { key: this.claim.key });
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
    if (this.renews) this.due = this.core.clock.now() + Math.max(this.claim.ttl / 15, 1);
  }

  overdue(at) {
    return at >= this.trusted;
  }

  // expire ends the trust. What a renewal that is under way brings comes too late.
  expire() {
    if (this.settled || this.expired) return;
    this.expired = true;
    this.stuck = this.due <= this.core.clock.now() && this.tried < this.due;
    this.core.renewer.remove(this);
    this.ends();
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
    if (this.lost) this.ends();
  }

  // ends tells that the lease was lost, once.
  ends() {
    const reason = this.reason();
    if (!this.told) tell("lost", this.claim, "the lease", { error: reason });
    this.told = true;
    this.abort(reason);
  }

  async save(progress) {
    this.check();
    const renewal = { ...this.claim.named, ttl_ms: Math.ceil(this.claim.ttl), progress: progress.toString("base64") };
    const timeout = Math.min(this.core.timeout, Math.max(this.trusted - this.core.clock.now(), 1));
    const { answer: { error }, sent } = await this.core.calls.callOne("renew", renewal, this.claim, { timeout });
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
        if (e instanceof UnavailableError) tell("unavailable", this.claim, plain(e.message), { error: e });
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
  // then a renewal finds none, which is not a loss.
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
    const accepts = async (settlement) => !(await trying(this.core.clock, KEEP_PATIENCE, async () => {
      const { answer: { error } } = await this.core.batches.ask("settle", { ...this.claim.named, ...settlement }, this.claim);
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
    const lost = () => new LostError(`dibs: the lease of the key ${this.claim.shown} ${why}`, { key: this.claim.key });
    try {
      await this.release(call && outcome !== "keep" ? outcome : "release");
    } catch (e) {
      if (e instanceof LostError) return lost(); // otherwise it is released in the background, and nothing must run again
    }
    return call ? lost() : null;
  }

  // settle ends the lease. Settlements of one lease follow one another.
  async settle(settlement, patience = this.core.timeout) {
    const mine = this.settling = this.settleAfter(this.settling, settlement, patience);
    try {
      await mine;
    } finally {
      if (this.settling === mine) this.settling = null;
    }
  }

  async settleAfter(before, settlement, patience) {
    await before?.catch(() => {});
    if (this.settled) return;
    const late = this.expired || this.overdue(this.core.clock.now());
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
    if (!error) return void this.end();
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

// readFence reads a fence, which is too long for a Number.
function readFence(text, claim) {
  const fence = typeof text === "string" && /^\d{1,20}$/.test(text) ? BigInt(text) : -1n;
  if (fence < 0n || fence >= 1n << 64n) {
    throw new RefusedError(`dibs: the key ${claim.shown}: the server answers with the fence ${show(text)}`, { key: claim.key });
  }
  return fence;
}
