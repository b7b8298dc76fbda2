// Renewals.

import { MAX_ELEMENTS } from "./batch.js";
import { clamp } from "./clock.js";
import { under } from "./callers.js";

// Renewer renews the leases of a client: one timer, and one call for all that are due. The same
// timer ends those that were not renewed in time. It does not keep the process alive.
export class Renewer {
  holds = new Set();
  at = Infinity; // when the timer fires
  busy = false;

  constructor(calls, timeout) {
    this.calls = calls;
    this.clock = calls.clock;
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
    this.clock.clearTimeout(this.timer);
  }

  arm() {
    this.clock.clearTimeout(this.timer);
    this.at = Infinity;
    for (const hold of this.holds) this.at = Math.min(this.at, hold.trusted, this.busy ? Infinity : hold.due);
    if (this.at === Infinity) return;
    // What the timer calls runs under no lease of the code that happens to be here.
    under.run(undefined, () => { this.timer = this.clock.setTimeout(() => this.tick(), clamp(Math.ceil(this.at - this.clock.now()))).unref(); });
  }

  tick() {
    const at = this.clock.now();
    for (const hold of this.holds) if (hold.overdue(at)) hold.expire();
    const all = [...this.holds];
    if (!this.busy && all.some((hold) => hold.due <= at)) {
      this.renew(all.filter((hold) => hold.due <= at + hold.claim.ttl / 15), Math.min(this.timeout, ...all.map((hold) => hold.claim.ttl / 3)));
    }
    this.arm();
  }

  async renew(due, patience) {
    this.busy = true;
    for (const hold of due) hold.tried = this.clock.now();
    for (let i = 0; i < due.length; i += MAX_ELEMENTS) {
      const holds = due.slice(i, i + MAX_ELEMENTS);
      const renewals = holds.map(({ claim }) => JSON.stringify({ ...claim.named, ttl_ms: Math.ceil(claim.ttl) }));
      const answers = await this.calls.callAll("renew", renewals, { timeout: patience });
      // What has no answer is tried again until the lease is no longer trusted.
      answers.forEach(({ answer, sent }, n) => (answer ? holds[n].renewed(answer.error?.type, sent) : holds[n].later()));
    }
    this.busy = false;
    this.arm();
  }
}
