// What callers give, and what is wrong with it.

import { LostError, NotKeptError, WrongTransactionError } from "./errors.js";

export const RETENTION = 86_400_000; // the default of keep
const PLACE = 7 * 86_400_000; // the default TTL of a reserved place
const ANY_AGE = 9_223_372_036_854; // accepts a record of any age

// LOCK and ONCE are the options of lock and once.
export const LOCK = ["wait", "signal", "ttl", "permits", "weight", "fingerprint", "atMostOnce", "stopTimeout", "maxLifetime", "label"];
export const ONCE = [...LOCK, "keep", "maxAge", "remember", "rerun", "in", "withOrigin"];

export function bad(why) {
  throw new TypeError(`dibs: ${why}`);
}

export function show(value) {
  return typeof value === "string" ? JSON.stringify(value) : typeof value === "bigint" ? `${value}n` : String(value);
}

// known returns the options, and refuses what is none. undefined is as good as left out.
export function known(options, names) {
  if (options === null || typeof options !== "object") bad("the options are an object");
  for (const name of Object.keys(options)) if (!names.includes(name)) bad(`unknown option ${name}; there are ${names.join(", ")}`);
  return options;
}

// called sorts the arguments of a method whose options may be left out.
export function called(name, options, fn) {
  if (typeof options === "function" && fn === undefined) [options, fn] = [{}, options];
  if (typeof fn !== "function") bad(`${name} needs a function${name === "lock" ? "; acquire returns a lease" : ""}`);
  return [options ?? {}, fn];
}

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

// millis reads a duration of at least a number of milliseconds.
export function millis(value, name, least = 0) {
  let ms = value;
  if (typeof value === "string") {
    if (!/^(\d+(\.\d+)?(ms|s|m|h))+$/.test(value)) bad(`${name} is ${show(value)}; a duration is a number of milliseconds, or a text such as "90s" or "1h30m"`);
    ms = 0;
    for (const [, n, unit] of value.matchAll(/([\d.]+)(ms|s|m|h)/g)) ms += n * UNITS[unit];
  }
  if (typeof ms !== "number") bad(`${name} is ${show(value)}; it must be a duration, in milliseconds`);
  if (!Number.isFinite(ms) || ms < 0) bad(`${name} is ${show(value)}; it must be finite and not negative`);
  if (ms < least) bad(`${name} is ${show(value)}; it must be at least ${least} ms`);
  return ms;
}

export const leaseTTL = (value) => millis(value, "ttl", 10);
export const placeTTL = (value = PLACE) => millis(value, "the ttl of a place", 1);
export const kept = (value) => millis(value, "keep", 1);

export function age(value) {
  return value === undefined ? undefined : value === "any" ? ANY_AGE : millis(value, "maxAge");
}

export function bytes(value, name) {
  if (typeof value === "string") return Buffer.from(value);
  if (value instanceof Uint8Array) return Buffer.from(value);
  return bad(`${name} must be a Uint8Array or a text`);
}

// readKey returns the key as it was given, and its bytes.
export function readKey(key) {
  if (typeof key === "string" && /\p{Surrogate}/u.test(key)) bad("the key is not Unicode; give its bytes as a Uint8Array");
  if (typeof key !== "string" && !(key instanceof Uint8Array)) bad(`a key is a text or a Uint8Array, not ${key === null ? "null" : typeof key}`);
  const copy = Buffer.from(key);
  if (copy.length < 1 || copy.length > 512) bad(`the key has ${copy.length} bytes; it must have 1 to 512`);
  return { key: typeof key === "string" ? key : copy, bytes: copy };
}

// rememberer returns the function that says whether an error is remembered.
export function rememberer(remember) {
  const kinds = remember === undefined ? [] : [remember].flat();
  for (const kind of kinds) if (typeof kind !== "function") bad("remember is an error class, a function of the error, or an array of them");
  return (e) => !(e instanceof LostError || e instanceof NotKeptError || e instanceof WrongTransactionError) && kinds.some((kind) =>
    (kind === Error || kind.prototype instanceof Error ? e instanceof kind : kind(e)));
}

// queries requires a connection. A pool sends each statement over another one.
export function queries(client, name) {
  if (typeof client?.query !== "function") bad(`${name} is not a client of pg: it has no query(text, values)`);
  if (typeof client.totalCount === "number") bad(`${name} is a pool, which sends each statement over another connection; give one of its clients`);
}
