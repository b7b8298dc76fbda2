// What is settled in the background.

import { MAX_ELEMENTS } from "./batch.js";
import { under } from "./callers.js";
import { PLACE_TTL } from "./claim.js";
import { clamp, jitter, within } from "./clock.js";

const SILENT = 300_000; // how long after it was sent a claim may be carried out that no server answered
const HURRY = 2_000; // how long a program that has nothing else to do waits for an undo

// Undoer settles in the background, by token, what no caller uses any more. For two seconds an
// undo keeps the process alive.
//
// A claim that a server did not answer may be carried out later, when the server is not frozen any
// more. So when its token is settled, it is undone again: after 1, 3, 7 and 15 seconds, and then every 15,
// until five minutes after the claim was sent.
export class Undoer {
  entries = [];
  silent = new Map(); // by token: when the last claim was sent that a server did not answer
  pending = 0; // entries that were not settled once
  pause = 20;
  rest = 0; // no call before that
  busy = false;

  constructor(calls, timeout) {
    this.calls = calls;
    this.clock = calls.clock;
    this.timeout = timeout;
  }

  // noting returns what notes that a claim was sent and not answered.
  noting({ token }) {
    return (sent) => {
      for (const [other, at] of this.silent) {
        if (at + SILENT > this.clock.now()) break; // the map has the order of the calls
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
    const at = this.clock.now();
    const { flying } = claim;
    const entry = {
      claim, settlement: { ...claim.named, outcome }, due: flying ? Infinity : at, hurry: at + HURRY, expires: at + Math.max(claim.ttl, claim.placeTTL ?? PLACE_TTL) + this.timeout,
    };
    flying?.then(() => { // it could be overtaken
      entry.due = this.clock.now();
      this.arm();
    });
    this.entries.push(entry);
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
    if (ends < this.clock.now() + 1000 || this.stopped) return;
    this.entries.push({ settlement: { ...named, token, outcome: "undo" }, due: this.clock.now() + 1000, expires: ends, again: 1000 });
    this.arm();
  }

  // flush waits until everything was settled once, or for as long as limit.
  flush(limit) {
    return within(this.clock, limit, () => this.pending === 0, (changed) => { this.changed = changed; });
  }

  stop() {
    this.stopped = true;
    this.entries = [];
    this.clock.clearTimeout(this.timer);
  }

  arm() {
    this.clock.clearTimeout(this.timer);
    if (this.busy || this.stopped || this.entries.length === 0) return;
    const at = this.entries.reduce((first, e) => Math.min(first, e.due), Infinity);
    if (at === Infinity) return;
    // What the timer calls runs under no lease of the code that happens to be here.
    under.run(undefined, () => { this.timer = this.clock.setTimeout(() => this.pass(), clamp(Math.max(at, this.rest) - this.clock.now())); });
    if (!this.entries.some((e) => !e.again && e.hurry > this.clock.now())) this.timer.unref();
  }

  // pass settles what is due in one call.
  async pass() {
    const at = this.clock.now();
    const due = this.entries.filter((e) => e.due <= at).slice(0, MAX_ELEMENTS);
    if (due.length === 0) return this.arm();
    this.busy = true;
    const answers = await this.calls.callAll("settle", due.map((e) => JSON.stringify(e.settlement)));
    if (answers.some(({ answer }) => answer)) {
      this.pause = 20;
      this.rest = 0;
    } else {
      this.rest = this.clock.now() + jitter(this.pause = Math.min(this.pause * 2, 1000));
    }
    const ended = new Set(due.filter((entry, i) => this.ended(entry, answers[i].answer)));
    this.entries = this.entries.filter((e) => !ended.has(e));
    this.busy = false;
    this.arm();
    this.changed?.();
  }

  // ended notes the answer to an entry, if there is one, and returns whether it is done with.
  ended(entry, answer) {
    if (entry.again) { // whatever the answer is
      entry.again = Math.min(entry.again * 2, 15_000);
      entry.due = this.clock.now() + entry.again;
      return entry.due > entry.expires;
    }
    const settled = answer !== undefined && answer.error?.type !== "busy";
    if (!settled && this.clock.now() < entry.expires) {
      if (answer) this.rest = this.clock.now() + jitter(this.pause); // the store was busy
      return false;
    }
    this.pending--;
    if (settled && (!answer.error || answer.error.type === "lost")) this.settled(entry.claim, entry.settlement.outcome);
    return true;
  }
}
