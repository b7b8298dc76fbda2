// Lease, which is what a holder has of its hold.

import { RETENTION, bad, bytes, kept, known } from "./arguments.js";
import { Hold } from "./hold.js";

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
  get left() { return this.#hold.held ? Math.max(this.#hold.trusted - this.#hold.core.clock.now(), 0) : 0; }

  // id is the public name of this lease, which operators see.
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
    return `Lease { ${this.#hold.claim.shown} ${this.#hold.held ? "held" : "ended"} }`;
  }
}
