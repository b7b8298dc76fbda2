// Claims: how they are asked, asked again, and settled.

import { isUtf8 } from "node:buffer";
import { createHash, randomUUID } from "node:crypto";
import { BusyError, DibsError, OverloadedError, UNANSWERED, UnavailableError, elementError, refusal } from "./errors.js";
import { jitter, passing, sleep, trying } from "./clock.js";

const POLL = 20_000; // the longest call that waits
export const PLACE_TTL = 10_000; // how long a waiter's place outlasts its last question
export const KEEP_PATIENCE = 10_000; // how long what was waited or worked for is asked again

// Claim is what a caller asks for, and what its token may have at the store.
export class Claim {
  open = false; // the token may have a lease or a place
  flying = null; // the end of the call that it is in, if others are in it

  constructor({ key, bytes }, options) {
    Object.assign(this, options);
    this.key = key;
    this.bytes = bytes;
    this.token ??= randomUUID().replaceAll("-", ""); // 122 random bits, which Node has in store
    this.margin = Math.max(this.stopTimeout ?? 0, this.ttl / 50 + 1);
    // named names the key and the token, as each element of a call does.
    this.named = isUtf8(bytes) ? { key: bytes.toString() } : { key_b64: bytes.toString("base64") };
    if (this.namespace) this.named.namespace = this.namespace;
    this.named.token = this.token;
  }

  get digest() {
    return createHash("sha256").update(`${this.namespace}\0`).update(this.bytes).digest("hex").slice(0, 12);
  }

  // shown is the key in messages: its digest if keys may be secrets.
  get shown() {
    if (this.secretKeys) return this.digest;
    return typeof this.named.key === "string" ? JSON.stringify(this.named.key) : `0x${this.bytes.toString("hex")}`;
  }

  // id is the public name of the token.
  get id() {
    return idOf(this.token);
  }

  // wire is the element of a claim. What is undefined is left out of JSON.
  wire(mode) {
    const ceil = (ms) => (ms === undefined ? undefined : Math.ceil(ms));
    return {
      ...this.named, mode, ttl_ms: ceil(this.ttl), place_ttl_ms: mode === "try" ? undefined : ceil(this.placeTTL ?? PLACE_TTL),
      from: this.from, grace_ms: ceil(this.grace),
      fingerprint: this.fingerprint, max_age_ms: ceil(this.maxAge),
      permits: this.permits > 1 ? this.permits : undefined, weight: this.weight > 1 ? this.weight : undefined,
      at_most_once: this.atMostOnce || undefined, owner: this.owner,
    };
  }
}

// idOf is the public name of a token.
export function idOf(token) {
  const sum = createHash("sha256").update("dibs claim id\0").update(Buffer.from(token, "hex")).digest();
  let bits = BigInt(`0x${sum.subarray(0, 10).toString("hex")}`);
  let id = "";
  for (let i = 0; i < 16; i++, bits >>= 5n) id = "abcdefghijklmnopqrstuvwxyz234567"[Number(bits & 31n)] + id;
  return id;
}

// granted asks until the claim is granted, refused or given up, and resolves to the answer, when the claim
// was sent, and for how long it waited: 0 if the key was free.
export async function granted(core, claim, wait) {
  const { clock } = core;
  const start = clock.now();
  const once = claim.wait === 0;
  const ends = claim.wait === undefined ? Infinity : start + claim.wait;
  let heard = start;
  let poll = 0;
  let pause = 10;
  let held = false;
  for (;;) {
    try {
      const { answer, sent } = await ask(core, claim, once ? "try" : "queue", poll, wait);
      if (answer.error) throw elementError(answer.error, claim);
      heard = clock.now();
      pause = 10;
      if (answer.state === "granted") {
        // The trust counts from when the claim was sent. If that was long ago, the same claim is
        // sent again: it gets the same lease, for a whole TTL.
        if (poll === 0 || heard - sent < claim.ttl / 20) return { answer, sent, waited: held ? heard - start : 0 };
        poll = 0;
        continue;
      }
      if (answer.state !== "held" || once || heard >= ends) throw refusal(claim, answer, core, heard - start);
      held = true;
      poll = Math.min(ends - heard, POLL);
    } catch (e) {
      if (wait.ended) throw wait.reason;
      if (!passing(e)) throw e;
      // Until then the server waited on purpose. That the store is busy with the key is an answer.
      if ((poll > 0 && e instanceof UnavailableError) || (!once && e instanceof BusyError)) heard = clock.now();
      pause = Math.min(pause * 2, 1000);
      const rest = jitter(pause);
      if (clock.now() + rest > Math.min(heard + (once ? 1000 : KEEP_PATIENCE), once ? Infinity : ends)) throw e;
      await sleep(clock, rest, wait);
      if (!(e instanceof OverloadedError)) poll = 0;
    }
  }
}

// ask sends the claim once and notes what it may have at the store.
async function ask(core, claim, mode, poll, wait) {
  const { open } = claim;
  claim.open = true;
  try {
    const { answer, sent } = await (poll > 0 ? waiting(core, claim, mode, poll, wait) : asking(core, claim, mode, wait));
    claim.open = answer.state === "granted" || answer.queued === true || answer.error !== undefined;
    return { answer, sent };
  } catch (e) {
    if (!wait.ended && e instanceof DibsError && !e[UNANSWERED]) claim.open = open; // nothing was done
    throw e;
  }
}

// asking asks together with other claims. A record can be long, so claims that it may answer go apart.
function asking(core, claim, mode, until) {
  return core.batches.ask("claim", claim.wire(mode), claim, {
    group: claim.maxAge === undefined ? "" : "record", until, silent: mode === "look" ? undefined : core.undoer.noting(claim),
  });
}

// waiting asks alone, because the server answers when the first of the claims of a call is not held any more.
function waiting(core, claim, mode, wait, until) {
  return core.calls.callOne("claim", claim.wire(mode), claim, { wait, until, silent: core.undoer.noting(claim), patient: claim.wait === undefined });
}

// askTrying asks once, and again for a second if the server is away.
export function askTrying(core, claim, mode) {
  return trying(core.clock, 1000, async () => {
    const { answer } = await asking(core, claim, mode);
    if (answer.error) throw elementError(answer.error, claim);
    return answer;
  });
}

// settleTrying sends a settlement until it is answered, and resolves to the LostError if there was
// nothing to settle. If an earlier try may have done it, that is not a loss, unless it is a record: the
// same record may be written twice. hold.unanswered is the outcome of what was sent and not answered.
export async function settleTrying(core, claim, settlement, patience, hold = { unanswered: null }) {
  const { outcome } = settlement;
  let repeated = false;
  const { error } = await trying(core.clock, patience, async () => {
    const before = hold.unanswered;
    hold.unanswered ??= outcome;
    let again = false;
    try {
      let answer;
      ({ answer, again } = await core.batches.ask("settle", { ...claim.named, ...settlement }, claim));
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
