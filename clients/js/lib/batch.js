// One call for what is asked at the same time, without waiting: what is alone leaves at once, and what
// arrives while a call is under way is the next one.

import { Ending } from "./ending.js";
import { ofKey } from "./errors.js";

export const MAX_ELEMENTS = 1024; // of a call
const MAX_CALL = 1 << 20; // characters of a call
const ALONE = 65_536; // a longer element goes alone
const SLOW = 100; // a call that takes longer holds nobody up

// Batches make the calls of a client with one element.
export class Batches {
  #batches = new Map(); // by verb and group

  constructor(calls) {
    this.calls = calls;
  }

  // ask asks for an element of the claim and resolves to its answer, when it was sent, and whether it was
  // sent before, as Calls.call. The elements of a group and a namespace go together. If a Wait ends meanwhile, it rejects with its reason; a
  // claim that is under way then is undone only when its call has ended (flying), because the undo could overtake it.
  ask(verb, element, claim, { group = "", until, silent } = {}) {
    const name = `${verb} ${group} ${claim.namespace}`;
    let batch = this.#batches.get(name);
    if (!batch) this.#batches.set(name, batch = new Batch(this.calls, verb));
    return batch.ask(JSON.stringify(element), claim, until, silent);
  }
}

class Batch {
  queue = [];
  under = null; // the call that is under way, if it is not slow
  flushes = false;

  constructor(calls, verb) {
    this.calls = calls;
    this.verb = verb;
  }

  ask(text, claim, until, silent = () => {}) {
    return new Promise((resolve, reject) => {
      const one = { text, claim, silent, resolve, reject, ends: this.calls.clock.now() + this.calls.timeout, call: null, left: false, answered: false };
      if (text.length > ALONE) {
        this.#send([one]);
      } else {
        this.queue.push(one);
        if (!this.flushes) queueMicrotask(() => this.#flush());
        this.flushes = true;
      }
      until?.stop((reason) => this.#leave(one, reason));
    });
  }

  // #leave takes an element back whose caller does not wait any more.
  #leave(one, reason) {
    if (one.answered) return;
    one.reject(reason);
    one.left = true;
    if (one.call === null) {
      this.queue.splice(this.queue.indexOf(one), 1);
    } else {
      one.silent(one.call.sent);
      if (--one.call.callers === 0) one.call.end(reason);
    }
  }

  // #flush sends what is there, unless a call is under way.
  #flush() {
    this.flushes = false;
    if (this.queue.length === 0) return;
    const { clock } = this.calls;
    if (this.under) {
      this.timer ??= clock.setTimeout(() => this.#free(), Math.max(this.under.sent + SLOW - clock.now(), 0));
      return;
    }
    let size = 0;
    let n = 0;
    while (n < this.queue.length && n < MAX_ELEMENTS && (size += this.queue[n].text.length) <= MAX_CALL) n++;
    this.under = this.#send(this.queue.splice(0, n));
    this.#flush();
  }

  #free() {
    this.under = null;
    this.calls.clock.clearTimeout(this.timer);
    this.timer = undefined;
    this.#flush();
  }

  // #send sends elements in one call, and returns it.
  #send(all) {
    const call = new Call(this.calls.clock.now(), all.length);
    for (const one of all) {
      one.call = call;
      one.claim.flying = call.done;
    }
    this.#run(all, call);
    return call;
  }

  async #run(all, call) {
    const answers = await this.calls.callAll(this.verb, all.map((one) => one.text), {
      until: call, timeout: Math.min(...all.map((one) => one.ends)) - this.calls.clock.now(), silent: (at) => all.forEach((one) => one.silent(at)),
    });
    all.forEach((one, i) => {
      one.answered = true;
      if (answers[i].error) one.reject(ofKey(answers[i].error, one.claim));
      else one.resolve(answers[i]);
    });
    for (const { claim } of all) if (claim.flying === call.done) claim.flying = null;
    call.did();
    if (this.under === call) this.#free();
  }
}

// Call is a call that is under way. It ends when no caller waits any more.
class Call extends Ending {
  constructor(sent, callers) {
    super();
    this.sent = sent;
    this.callers = callers;
    this.done = new Promise((resolve) => { this.did = resolve; });
  }
}
