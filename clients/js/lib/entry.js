// The state of a key in a Keeper, by the same rules as in a store. A claim, a renewal and a settlement are
// elements of calls, and so are their answers. Times are in milliseconds.

import { idOf } from "./claim.js";

const LOST = { error: { type: "lost", detail: "dibs: lease lost" } };
const REMEMBERED = 86_400_000; // how long an abandoned lease is remembered

export class Entry {
  #clock;
  #leases = [];
  #places = [];
  #record = null;
  #abandoned = null;
  #idleSince = null; // since when the key has been free for a reserved place
  #number = 0;
  #fence = 0n;

  constructor(clock) {
    this.#clock = clock;
  }

  claim(asked) {
    this.#advance();
    const { mode = "try", token } = asked;
    const held = this.#leases.find((l) => l.token === token);
    if (held) return this.#again(held, asked, mode);
    const own = this.#places.find((p) => p.token === token);
    const at = own ?? (asked.from && this.#places.find((p) => p.token === asked.from && p.reserved));
    const refusal = this.#refused(asked);
    if (refusal) {
      if (mode !== "look" && refusal.state !== "unknown") this.#leave(own);
      return refusal;
    }
    const front = this.#front();
    const first = !front || (at && at.number <= front.number);
    const room = this.#room(asked);
    const turn = first && room && !(at && this.#leases.some((l) => l.number === at.number));
    if (mode === "look") return turn ? { state: "free", ...(at && { queued: true }) } : this.#held(at);
    if (mode === "reserve") return this.#held(this.#join(asked, own, own, true));
    if (turn) return this.#take(asked, own, at);
    if (room && !first && front.reserved) this.#idleSince ??= this.#clock.now();
    return this.#held(mode === "queue" ? this.#join(asked, own, at, false) : at);
  }

  renew({ token, ttl_ms: ttl = 30_000, progress }) {
    const held = this.#leases.find((l) => l.token === token);
    if (!held || held.ends <= this.#clock.now()) return LOST;
    held.ends = this.#clock.now() + ttl;
    held.saved = progress ?? held.saved;
    return {};
  }

  settle(settlement) {
    this.#advance();
    const { token, outcome = "release" } = settlement;
    const held = this.#leases.find((l) => l.token === token);
    const own = this.#places.find((p) => p.token === token);
    if (held) this.#finish(held, outcome, settlement);
    else if (outcome === "keep") return this.#record?.token === token && this.#record.ends > this.#clock.now() ? {} : LOST;
    else if (own) this.#leave(own);
    else return LOST;
    return {};
  }

  // takeAway ends the leases of the key, as an operator does.
  takeAway() {
    this.#advance();
    for (const l of [...this.#leases]) this.#finish(l, "release", {});
    this.#abandoned = null;
  }

  // before are the tokens of the leases, and of the waiters that come before a token.
  before(token) {
    const end = this.#places.findIndex((p) => p.token === token);
    return [...this.#leases, ...this.#places.slice(0, end < 0 ? undefined : end).filter((p) => !p.reserved)].map((l) => l.token);
  }

  // due is when the next lease, place or grace ends, or Infinity.
  get due() {
    return Math.min(...this.#leases.map((l) => l.ends), ...this.#places.map((p) => this.#graceEnd(p)));
  }

  // runs are the leases as operators see them.
  get runs() {
    this.#advance();
    return this.#leases.map((l) => ({ id: idOf(l.token), owner: l.owner, since_ms: Math.floor(this.#clock.now() - l.since) }));
  }

  // #advance ends what has expired.
  #advance() {
    const now = this.#clock.now();
    this.#places = this.#places.filter((p) => p.ends > now);
    if (this.#places.length === 0) this.#idleSince = null;
    for (const l of this.#leases.filter((one) => one.ends <= now).sort((a, b) => a.ends - b.ends)) this.#abandon(l, l.ends);
    if (this.#abandoned && !this.#abandoned.once && this.#abandoned.ends + REMEMBERED <= now) this.#abandoned = null;
    this.#front();
  }

  #leave(place) {
    this.#places = this.#places.filter((p) => p !== place);
    if (this.#places.length === 0) this.#idleSince = null;
  }

  // #front is the first place that keeps others from the key. Reserved places whose grace is over end.
  #front() {
    for (;;) {
      const found = this.#places.find((p) => !this.#leases.some((l) => l.number === p.number));
      if (!found || this.#graceEnd(found) > this.#clock.now()) return found;
      this.#leave(found);
    }
  }

  #graceEnd(p) {
    return p.reserved && p.grace > 0 && this.#idleSince !== null ? Math.min(p.ends, Math.max(this.#idleSince, p.asked) + p.grace) : p.ends;
  }

  #room({ permits = 1, weight = 1 }) {
    const used = this.#leases.reduce((sum, l) => sum + l.weight, 0);
    return (this.#leases.length === 0 || this.#leases[0].permits === permits) && used + weight <= permits;
  }

  // #again answers a token that has a lease.
  #again(held, { ttl_ms: ttl = 30_000 }, mode) {
    if (mode === "look") return { state: "free" };
    if (mode !== "reserve") held.ends = this.#clock.now() + ttl;
    return granted(held);
  }

  // #refused answers a claim that gets neither the key nor a place.
  #refused({ max_age_ms: maxAge = 0, fingerprint }) {
    const now = this.#clock.now();
    const record = maxAge > 0 && this.#record?.ends > now && this.#record.written >= now - maxAge ? this.#record : null;
    if ([...this.#leases, this.#abandoned, record].some((l) => differ(l?.fingerprint, fingerprint))) return { state: "mismatch" };
    if (record) return { state: "done", record: { data: record.data, age_ms: Math.floor(now - record.written), left_ms: left(record.ends - now) } };
    return this.#abandoned?.once ? { state: "unknown", id: idOf(this.#abandoned.token) } : null;
  }

  #take(asked, own, at) {
    if (!own?.reserved) this.#leave(own);
    const there = at ? this.#places.filter((p) => p.number === at.number) : [];
    for (const p of there) if (p.reserved && asked.grace_ms > 0) p.grace = asked.grace_ms;
    this.#idleSince = null;
    const { token, ttl_ms: ttl = 30_000, permits = 1, weight = 1, fingerprint, owner = {}, at_most_once: once = false } = asked;
    const now = this.#clock.now();
    const lease = {
      token, fence: this.#fence += 1n, attempt: (this.#abandoned?.attempt ?? 0) + 1, since: now, ends: now + ttl, once,
      number: there[0]?.number, inherited: this.#abandoned?.inherited, permits, weight, fingerprint, owner,
    };
    this.#leases.push(lease);
    return granted(lease);
  }

  // #join returns the token's own place, or a new one at the number of at, or at the end.
  #join(asked, own, at, reserved) {
    let place = own;
    if (!own || own.reserved !== reserved) {
      this.#leave(own);
      if (!at) this.#number = Math.max(this.#number, ...this.#places.map((p) => p.number)) + 1;
      place = { token: asked.token, number: at ? at.number : this.#number, reserved };
      this.#places.push(place);
      this.#places.sort((a, b) => a.number - b.number || a.reserved - b.reserved);
    }
    const now = this.#clock.now();
    return Object.assign(place, { ends: now + (asked.place_ttl_ms ?? 10_000), grace: asked.grace_ms ?? 0, asked: now });
  }

  #held(place) {
    const before = new Set(this.#places.filter((p) => !place || p.number < place.number).map((p) => p.number));
    for (const l of this.#leases) before.delete(l.number);
    const answer = { state: "held" };
    if (place) answer.queued = true;
    if (before.size > 0) answer.ahead = before.size;
    if (this.#leases.length > 0) answer.left_ms = left(Math.min(...this.#leases.map((l) => l.ends)) - this.#clock.now());
    return answer;
  }

  #finish(held, outcome, { data = "", retention_ms: retention = 86_400_000 }) {
    const now = this.#clock.now();
    if (outcome === "abandon") return this.#abandon(held, now);
    this.#leases = this.#leases.filter((l) => l !== held);
    if (outcome === "undo") return;
    if (outcome === "keep") this.#record = { token: held.token, data, written: now, ends: now + retention, fingerprint: held.fingerprint };
    if (held.number !== undefined) this.#places = this.#places.filter((p) => p.number !== held.number);
    this.#abandoned = null;
  }

  #abandon(held, ends) {
    this.#leases = this.#leases.filter((l) => l !== held);
    const { attempt = 0, inherited } = this.#abandoned ?? {};
    this.#abandoned = { ...held, attempt: attempt + 1, inherited: held.saved ?? inherited, ends, number: undefined };
  }
}

// differ reports whether both are fingerprints, which zeros are not, and not the same.
function differ(a = "", b = "") {
  return /[^0]/.test(a) && /[^0]/.test(b) && a.toLowerCase() !== b.toLowerCase();
}

function granted({ fence, attempt, inherited }) {
  return { state: "granted", fence: String(fence), attempt, ...(inherited !== undefined && { progress: inherited }) };
}

// left is what is left of a time. A lease of another holder has no end, because that renews it.
function left(ms) {
  return ms === Infinity ? 30_000 : Math.max(Math.ceil(ms), 1);
}
