// What the calls of a client share, and what ends a wait.

import { Ending } from "./ending.js";
import { ClosedError } from "./errors.js";
import { within } from "./clock.js";
import { Batches } from "./batch.js";
import { Calls } from "./wire.js";
import { Renewer } from "./renewer.js";
import { Undoer } from "./undoer.js";

// Core is what a client's calls share.
export class Core {
  waits = new Set();
  holds = new Set();
  closed = null; // the ClosedError

  constructor(address, timeout, { clock, connections, joins }) {
    this.timeout = timeout;
    this.clock = clock;
    this.calls = new Calls(address, timeout, clock, connections);
    this.batches = new Batches(this.calls);
    this.renewer = new Renewer(this.calls, timeout);
    this.undoer = new Undoer(this.calls, timeout);
    joins?.(this);
  }

  close(limit) {
    return (this.closing ??= this.end(limit));
  }

  async end(limit) {
    this.closed = new ClosedError("dibs: the client is closed");
    for (const wait of this.waits) wait.end(this.closed);
    for (const hold of this.holds) hold.abort(this.closed);
    const ends = this.clock.now() + limit;
    await within(this.clock, limit, () => this.holds.size === 0 && this.waits.size === 0, (changed) => { this.changed = changed; });
    await this.undoer.flush(Math.max(ends - this.clock.now(), 0));
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

// Wait is what may end a caller's wait early: its signal, and the end of the client.
export class Wait extends Ending {
  constructor(core, signal) {
    super();
    if (core.closed) throw core.closed;
    signal?.throwIfAborted();
    this.core = core;
    this.signal = signal;
    this.listener = () => this.end(signal.reason);
    signal?.addEventListener("abort", this.listener, { once: true });
    core.waits.add(this);
  }

  done() {
    this.stopping = undefined;
    this.signal?.removeEventListener("abort", this.listener);
    this.core.remove(this.core.waits, this);
  }
}
