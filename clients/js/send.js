// send: fetch for requests that change something, through `dibs proxy` or a server that honours
// Idempotency-Key. It sends a request again when that is safe, with the same key, so that the server
// runs it once. For browsers, and for Node 20 and later. It imports nothing.
//
//   import { send } from "dibs/send";
//
//   const answer = await send("/orders", { method: "POST", body, intention: "order 17", storage: sessionStorage });
//
// docs/guides/retrying-clients.md says what is sent again.

const SAFE = ["GET", "HEAD", "OPTIONS"];
const NOT_KEPT = [401, 407, 408, 409, 410, 423, 425, 429]; // answers below 500 that do not end an intention
const memory = new Map();
const inMemory = { getItem: (name) => memory.get(name) ?? null, setItem: (name, key) => memory.set(name, key), removeItem: (name) => memory.delete(name) };

// send is fetch with a key. It resolves to the answer of the last try, once its body has arrived; to that
// of an event stream when it begins. It rejects as fetch does if the last try got no answer. The
// options are those of fetch and these, with times in milliseconds:
//
// key: 1 to 255 printable ASCII characters. Default: a new random one for each call. A header
// Idempotency-Key that is there is kept.
// intention: a name for what the user wants. All calls with it have one key, until the server has
// answered, so that pressing a button again does nothing twice.
// storage: where the key of an intention is kept, such as sessionStorage. Default: in memory.
// maxTries: how often the request is sent at most. Default: 5.
// deadline: how long all tries may take. Default: no limit. A try that is under way then rejects with
// a TimeoutError.
// backoff, maxBackoff: the pause after the first try, which doubles, and the longest. Defaults: 100 and 30,000.
export async function send(input, options = {}) {
  const { key, intention, storage = inMemory, maxTries = 5, deadline = Infinity, backoff = 100, maxBackoff = 30_000, ...init } = options;
  for (const [name, value] of Object.entries({ maxTries, deadline, backoff, maxBackoff })) {
    if (typeof value !== "number" || !(value > 0)) throw new TypeError(`dibs: ${name} is ${value}; it must be a number above 0`);
  }
  const ends = performance.now() + deadline;
  const request = new Request(input, init);
  const kept = keyOf(request, { key, intention, storage });
  const signal = deadline === Infinity ? request.signal : AbortSignal.any([request.signal, AbortSignal.timeout(deadline)]);
  for (let tries = 1; ; tries++) {
    let pause = Math.min(backoff * 2 ** (tries - 1), maxBackoff) * (0.5 + Math.random() / 2);
    let answer, error;
    try {
      answer = await fetch(request.clone(), { signal });
      if (!/^text\/event-stream\b/i.test(answer.headers.get("Content-Type") ?? "")) await answer.clone().arrayBuffer();
    } catch (e) {
      if (signal.aborted) throw signal.reason;
      [answer, error] = [undefined, e];
    }
    if (answer) {
      const after = answer.headers.get("Idempotent-Replayed") !== "true" && [409, 429, 503].includes(answer.status) ? retryAfter(answer) : Infinity;
      if (kept && (await ended(answer))) forget(intention, { storage, key: kept });
      if (after > maxBackoff) return answer;
      pause = Math.max(pause, after + Math.random() * (pause / 2));
    }
    if (tries >= maxTries || performance.now() + pause > ends) {
      if (answer) return answer;
      throw error;
    }
    await sleep(pause, signal);
  }
}

// forget ends an intention: the next call with it has a new key. Call it when the user wants something
// else, such as another amount.
export function forget(intention, { storage = inMemory, key } = {}) {
  const name = `dibs ${intention}`;
  if (key === undefined || storage.getItem(name) === key) storage.removeItem(name);
}

// keyOf gives the request its key, and returns the key of the intention.
function keyOf({ method, headers }, { key, intention, storage }) {
  if (SAFE.includes(method) || headers.get("Idempotency-Key") || headers.get("X-Idempotency-Key")) return undefined;
  const name = `dibs ${intention}`;
  const kept = intention === undefined ? undefined : key ?? storage.getItem(name) ?? random();
  const value = kept ?? key ?? random();
  if (typeof value !== "string" || !/^[ -~]{1,255}$/.test(value)) throw new TypeError("dibs: a key has 1 to 255 printable ASCII characters");
  headers.delete("X-Idempotency-Key"); // an empty one, which is malformed
  headers.set("Idempotency-Key", `"${value.replace(/["\\]/g, "\\$&")}"`);
  if (!headers.get("Idempotency-Key")) throw new TypeError("dibs: a request with mode: \"no-cors\" cannot have a key");
  if (kept) storage.setItem(name, kept);
  return kept;
}

function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

// ended reports whether the server ran the request and keeps its answer, or never runs it.
async function ended(answer) {
  if (answer.status >= 500 || NOT_KEPT.includes(answer.status)) return false;
  if (answer.status !== 422) return true;
  const problem = await answer.clone().json().catch(() => null); // not of the application
  return !String(problem?.type).endsWith("#key-reused");
}

// retryAfter returns the milliseconds that an answer asks for, or Infinity. A date counts by the server's clock.
function retryAfter({ headers }) {
  const field = (headers.get("Retry-After") ?? "").trim();
  if (/^\d+$/.test(field)) return Number(field) * 1000;
  if (!/^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$/.test(field)) return Infinity;
  const now = Date.parse(headers.get("Date") ?? "");
  const left = Date.parse(field) - (Number.isNaN(now) ? Date.now() : now);
  return Number.isNaN(left) ? Infinity : Math.max(left, 0);
}

// sleep rejects with the signal's reason.
function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal.addEventListener("abort", stop, { once: true });
  });
}
