// The types of send.js, which has the comments in full. A test compares the two.

/** Where the key of an intention is kept: sessionStorage, localStorage or the like. */
export interface KeyStorage {
  getItem(name: string): string | null;
  setItem(name: string, value: string): void;
  removeItem(name: string): void;
}

/** The options of fetch, and these. Times are milliseconds. */
export interface SendOptions extends RequestInit {
  /** 1 to 255 printable ASCII characters. Default: a new random one for each call. */
  key?: string;
  /** What the user wants. Calls with it have one key until the server has answered. */
  intention?: string;
  /** Where the key of the intention is kept. Default: in memory. */
  storage?: KeyStorage;
  /** How often the request is sent at most. Default: 5. */
  maxTries?: number;
  /** How long all tries may take. Default: no limit. */
  deadline?: number;
  /** The pause after the first try, which doubles. Default: 100. */
  backoff?: number;
  /** The longest pause. Default: 30,000. */
  maxBackoff?: number;
}

/** fetch with a key: it sends the request again when that is safe. */
export function send(input: RequestInfo | URL, options?: SendOptions): Promise<Response>;

/** Ends an intention: the next call with it has a new key. */
export function forget(intention: string, options?: { storage?: KeyStorage; key?: string }): void;
