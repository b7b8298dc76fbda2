// The types of dibs.js, which has the comments in full. A test compares the two.

/** Milliseconds, or a text such as "90s" or "1h30m". */
export type Duration = number | string;

export interface ClientOptions {
  /** TTL of the leases. Default: 30 seconds. */
  ttl?: Duration;
  /** Timeout of a call. Default: 5 seconds. */
  timeout?: Duration;
  /** Namespace of the keys. Default: the server's or the credential's. */
  namespace?: string;
  /** Tells operators what the keys are held for. Default: the program's name. */
  label?: string;
  /** Errors and messages name keys by a digest. Default: false. */
  secretKeys?: boolean;
  /** Schema of the store's tables, for completeIn, reserveIn and once with in. Default: public. */
  schema?: string;
  /** Prefix of the store's tables. Default: dibs. */
  prefix?: string;
}

/** A connection to PostgreSQL: a client of pg, or whatever has its query. */
export interface Queries {
  query(text: string, values?: unknown[]): Promise<unknown>;
}

export interface LockOptions {
  /** How long to wait before HeldError; 0: not at all. Default: no limit. */
  wait?: Duration;
  /** Gives up the wait, with the signal's reason. It does not end the function. */
  signal?: AbortSignal;
  /** TTL of the lease. Default: that of the client. */
  ttl?: Duration;
  /** How many permits the key has. Default: 1. */
  permits?: number;
  /** How many permits the lease takes. Default: 1. */
  weight?: number;
  /** SHA-256, in 64 hexadecimal digits, of what is asked under the key. */
  fingerprint?: string;
  /** Refuses to run again after a holder that ended without an outcome. */
  atMostOnce?: boolean;
  /** How long the lease ends before another caller can get the key. */
  stopTimeout?: Duration;
  /** How long the lease may last in all. */
  maxLifetime?: Duration;
  /** What operators see. */
  label?: string;
}

export interface AcquireOptions extends LockOptions {
  /** Accepts a record up to that age, with DoneError. */
  maxAge?: Duration | "any";
  /** false: the lease lasts for its ttl and is not renewed. */
  renew?: boolean;
}

type ErrorClass = abstract new (...args: never[]) => Error;

export interface OnceOptions extends LockOptions {
  /** How long the result is stored. Default: 24 hours. */
  keep?: Duration;
  /** The age up to which a stored result is returned. Default: any. */
  maxAge?: Duration | "any";
  /** Errors that are stored like a result. Default: none. */
  remember?: ErrorClass | ((error: unknown) => boolean) | (ErrorClass | ((error: unknown) => boolean))[];
  /** Lets the next caller run if the result could not be stored. Default: false. */
  rerun?: boolean;
  /** A client of pg. The function runs in a transaction on it, which commits with the result. */
  in?: Queries;
  /** Resolves to the result and whether it is that of an earlier call. */
  withOrigin?: boolean;
}

/** The result of once with withOrigin. */
export interface Origin<T> {
  value: T;
  replayed: boolean;
}

export interface RedeemOptions extends LockOptions {
  /** How long the place keeps others from a free key if this process dies. */
  grace?: Duration;
}

export interface ReserveOptions {
  /** How long the place lasts. Default: 7 days. */
  ttl?: Duration;
  /** How long a free key waits for it. Default: as long as the place lasts. */
  grace?: Duration;
  fingerprint?: string;
  label?: string;
}

export interface ProlongOptions {
  ttl?: Duration;
  grace?: Duration;
}

/**
 * Storable is T if a record can hold it: null, booleans, numbers, texts, bigint, arrays and plain objects.
 * A Date, a Map, a Buffer and whatever else has methods is never, and so is undefined in an array.
 */
export type Storable<T> = unknown extends T ? T
  : T extends null | boolean | number | string | bigint | undefined | void ? T
  : T extends symbol | Error | ((...args: never[]) => unknown) ? never
  : T extends readonly unknown[] ? { [K in keyof T]: StorableElement<T[K]> }
  : T extends object ? (Extract<keyof T, symbol> extends never ? { [K in keyof T]: Storable<T[K]> } : never)
  : never;

/** Refused asks for an argument that no call has, if the result of the function is not Storable. */
type Refused<T> = [T] extends [Storable<T>] ? [] : [theResultIsNotJSON: never];

type StorableElement<T> = unknown extends T ? T : undefined extends T ? never : Storable<T>;

/** connect returns a client of the servers at the URL. Default: DIBS_SERVER, or unix:/run/dibs/dibs.sock. */
export function connect(url?: string, options?: ClientOptions): Client;

/** Client takes, waits for, renews and settles leases. Make one with connect. */
export class Client {
  constructor(url: string, options?: ClientOptions);
  /** Runs the function while it holds the key. */
  lock<T>(key: string | Uint8Array, fn: (lease: Lease) => T): Promise<Awaited<T>>;
  lock<T>(key: string | Uint8Array, options: LockOptions, fn: (lease: Lease) => T): Promise<Awaited<T>>;
  /** Takes the key. The lease is renewed until it is settled. */
  acquire(key: string | Uint8Array, options?: AcquireOptions): Promise<Lease>;
  /** Runs the function once. Its type is what JSON makes of the result. */
  once<T>(key: string | Uint8Array, fn: (lease: Lease) => T, ...refused: Refused<Awaited<T>>): Promise<Awaited<T>>;
  once<T>(key: string | Uint8Array, options: OnceOptions & { withOrigin: true }, fn: (lease: Lease) => T, ...refused: Refused<Awaited<T>>): Promise<Origin<Awaited<T>>>;
  once<T>(key: string | Uint8Array, options: OnceOptions, fn: (lease: Lease) => T, ...refused: Refused<Awaited<T>>): Promise<Awaited<T>>;
  /** Returns a function that runs fn under the key that keyOf makes of its arguments, as lock does. */
  lockFor<A extends unknown[], T>(keyOf: (...args: A) => string | Uint8Array, fn: (...args: A) => T): (...args: A) => Promise<Awaited<T>>;
  lockFor<A extends unknown[], T>(keyOf: (...args: A) => string | Uint8Array, options: LockOptions, fn: (...args: A) => T): (...args: A) => Promise<Awaited<T>>;
  /** Returns a function that runs fn once for each key that keyOf makes of its arguments, as once does. */
  onceFor<A extends unknown[], T>(keyOf: (...args: A) => string | Uint8Array, fn: (...args: A) => T, ...refused: Refused<Awaited<T>>): (...args: A) => Promise<Awaited<T>>;
  onceFor<A extends unknown[], T>(keyOf: (...args: A) => string | Uint8Array, options: OnceOptions & { withOrigin: true }, fn: (...args: A) => T, ...refused: Refused<Awaited<T>>): (...args: A) => Promise<Origin<Awaited<T>>>;
  onceFor<A extends unknown[], T>(keyOf: (...args: A) => string | Uint8Array, options: OnceOptions, fn: (...args: A) => T, ...refused: Refused<Awaited<T>>): (...args: A) => Promise<Awaited<T>>;
  /** Takes a place in the queue. The ticket is a secret. */
  reserve(key: string | Uint8Array, options?: ReserveOptions): Promise<string>;
  /** Takes a place in a transaction of the application: it exists when that commits. */
  reserveIn(client: Queries, key: string | Uint8Array, options?: { ttl?: Duration; grace?: Duration; label?: string }): Promise<string>;
  /** Makes a reserved place last from now. */
  prolong(ticket: string, options?: ProlongOptions): Promise<void>;
  /** Runs the function while it holds the key at a reserved place. */
  redeem<T>(ticket: string, fn: (lease: Lease) => T): Promise<Awaited<T>>;
  redeem<T>(ticket: string, options: RedeemOptions, fn: (lease: Lease) => T): Promise<Awaited<T>>;
  /** Gives a reserved place back. */
  cancel(ticket: string): Promise<void>;
  /** Whether a caller holds the key. It changes nothing. */
  held(key: string | Uint8Array): Promise<boolean>;
  /** Ends waits with ClosedError, and waits for holders. Default: 5 seconds. */
  close(options?: { wait?: Duration }): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Lease is the right to a key until it is settled or lost. It comes from lock or acquire. */
export class Lease {
  private constructor();
  readonly key: string | Uint8Array;
  /** In milliseconds. */
  readonly ttl: number;
  /** 1 plus the number of leases in a row that were abandoned before this one. */
  readonly attempt: number;
  /** What those saved last. */
  readonly progress: Uint8Array | null;
  readonly held: boolean;
  /** Rises with every grant of the key. It throws LostError. */
  readonly fence: bigint;
  /** Aborts when the lease is lost, or the client is closed. */
  readonly signal: AbortSignal;
  /** The milliseconds for which it can be trusted unless it is renewed. */
  readonly left: number;
  /** The public name of this attempt. */
  readonly id: string;
  /** Throws LostError if it is not held any more, or ClosedError. */
  check(): this;
  /** Keeps progress for the next holder, and renews. */
  save(progress: string | Uint8Array): Promise<void>;
  /** Ends the lease and leaves nothing behind. */
  release(): Promise<void>;
  /** Ends the lease and leaves a record. Default of keep: 24 hours. */
  complete(data: string | Uint8Array, options?: { keep?: Duration }): Promise<void>;
  /** Ends the lease in a transaction of the application, with a record, or without if data is null. */
  completeIn(client: Queries, data: string | Uint8Array | null, options?: { keep?: Duration }): Promise<void>;
  /** Ends the lease as if its holder had crashed. */
  abandon(): Promise<void>;
  /** Ends the lease as if it had not been granted. */
  undo(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export const VERSION: string;

/** DibsError is the class of all errors but the TypeError of a wrong argument. */
export class DibsError extends Error {
  /** The key of the call, if it has one. The message has its digest only. */
  readonly key?: string | Uint8Array;
}

export class HeldError extends DibsError {
  readonly left: number;
  readonly ahead: number;
  readonly waited: number;
  /** Asks the server who holds the key now. null: nobody, or the credential may not look. */
  holder(): Promise<Holder | null>;
}

/** What operators see of a lease. since is how long the holder has had the key, in milliseconds. */
export interface Holder {
  host?: string;
  pid?: number;
  label?: string;
  id: string;
  since: number;
}

export class LostError extends DibsError {}

export class DoneError extends DibsError {
  readonly record: Uint8Array;
  readonly age: number;
}

export class MismatchError extends DibsError {}

export class UnknownError extends DibsError {
  readonly id: string;
}

export class UnavailableError extends DibsError {}
export class BusyError extends DibsError {}
export class FullError extends DibsError {}
export class TooLargeError extends FullError {}
export class RefusedError extends DibsError {}
export class UnauthorizedError extends RefusedError {}
export class ForbiddenError extends RefusedError {}
export class OverloadedError extends RefusedError {}
export class RememberedError extends DibsError {}

export class NotKeptError extends DibsError {
  readonly result: unknown;
  readonly rerun: boolean;
}

export class UnrecordedError extends DibsError {}

export class WrongTransactionError extends DibsError {}
export class ClosedError extends DibsError {}
