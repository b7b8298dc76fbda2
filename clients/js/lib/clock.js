// The clock, pauses, and calls that are made again.

import { performance } from "node:perf_hooks";
import timers from "node:timers";
import { BusyError, OverloadedError, UnavailableError } from "./errors.js";

const MAX_TIMER = 2 ** 31 - 1; // a longer timer of JavaScript fires at once

// system is the clock of the machine. now is monotonic, in milliseconds. On Linux it stops while the
// machine is suspended, and Node has no exact one that does not. Tests that replace the global clock and
// timers later do not change it, because leases end by the server's clock.
export const system = { now: performance.now.bind(performance), setTimeout: timers.setTimeout, clearTimeout: timers.clearTimeout };

export function clamp(ms) {
  return Math.min(Math.max(ms, 0), MAX_TIMER);
}

// pass is a timer for which a caller waits. The clock of a test lets its time pass by itself.
function pass(clock, fn, ms) {
  return clock.sleep ? clock.sleep(fn, ms) : clock.setTimeout(fn, ms);
}

// sleep keeps the process alive, because a caller waits for it.
export function sleep(clock, ms, wait) {
  return new Promise((resolve, reject) => {
    const timer = pass(clock, resolve, ms);
    wait?.stop((reason) => {
      clock.clearTimeout(timer);
      reject(reason);
    });
  });
}

// within waits until done says so, for at most limit. set gets the function to call when something
// changed.
export function within(clock, limit, done, set) {
  return new Promise((resolve) => {
    const end = () => {
      clock.clearTimeout(timer);
      set(undefined);
      resolve();
    };
    const timer = pass(clock, end, clamp(limit));
    const changed = () => done() && end();
    set(changed);
    changed();
  });
}

export function jitter(pause) {
  return pause * (0.5 + Math.random() / 2);
}

export function passing(e) {
  return e instanceof UnavailableError || e instanceof BusyError || e instanceof OverloadedError;
}

// trying calls again while the failure may pass, for as long as patience.
export async function trying(clock, patience, call) {
  const ends = clock.now() + patience;
  for (let pause = 20; ; pause = Math.min(pause * 2, 1000)) {
    try {
      return await call();
    } catch (e) {
      const rest = jitter(pause);
      if (!passing(e) || clock.now() + rest > ends) throw e;
      await sleep(clock, rest);
    }
  }
}
