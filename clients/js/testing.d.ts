// The types of testing.js, which has the comments in full. A test compares the two.

import type { Client, ClientOptions, Duration } from "./dibs.js";

type Key = string | Uint8Array;

/** A keeper of keys in this process, for tests. */
export class Keeper {
  /** Returns a client of the keeper. */
  connect(options?: ClientOptions): Client;
  /** Lets another holder have the key, until release or for a time. It throws HeldError if the key is held. */
  heldByAnother(key: Key, options?: { time?: Duration; namespace?: string }): void;
  /** Lets the other holder give the key back. */
  release(key: Key, options?: { namespace?: string }): void;
  /** Leaves the key as a process does that died while it held it. */
  abandoned(key: Key, options?: { namespace?: string }): void;
  /** Takes the key away from its holder, who finds its lease lost now. */
  lose(key: Key, options?: { namespace?: string }): void;
  /** Lets time pass. Leases that are held are renewed meanwhile. */
  advance(time: Duration): Promise<void>;
  /** Lets no call reach the keeper, until back, or until the function has ended. */
  away(): void;
  away<T>(fn: () => T): Promise<Awaited<T>>;
  /** Ends away. */
  back(): void;
}
