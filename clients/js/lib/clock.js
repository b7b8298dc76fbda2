// The clock, pauses, and calls that are made again.

import { performance } from "node:perf_hooks";
import { BusyError, OverloadedError, UnavailableError } from "./errors.js";

const MAX_TIMER = 2 ** 31 - 1; // a longer timer of JavaScript fires at once

// now is the monotonic clock, in milliseconds. On Linux it stops while the machine is suspended, and
// Node has no exact one that does not. Tests that replace the global clock do not move it.
export const now = performance.now.bind(performance);

export function clamp(ms) {
  return Math.min(Math.max(ms, 0), MAX_TIMER);
}

// sleep keeps the process alive, because a caller waits for it.
export function sleep(ms, wait) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    wait?.stop((reason) => {
      clearTimeout(timer);
      reject(reason);
    });
  });
}

// within waits until done says so, for at most limit. set gets the function to call when something
// changed.
export function within(limit, done, set) {
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

export function jitter(pause) {
  return pause * (0.5 + Math.random() / 2);
}

export function passing(e) {
  return e instanceof UnavailableError || e instanceof BusyError || e instanceof OverloadedError;
}

// trying calls again while the failure may pass, for as long as patience.
export async function trying(patience, call) {
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
