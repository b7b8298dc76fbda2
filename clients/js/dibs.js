// dibs: a client of `dibs serve` for JavaScript, with Node's standard library only. One caller of
// a key runs, and all others wait their turn, do something else, or get the same answer.
//
//   import { connect } from "dibs";
//
//   const keys = connect();                        // DIBS_SERVER, or unix:/run/dibs/dibs.sock
//   await keys.lock("invoice 42", { wait: "30s" }, async (lease) => {
//     lease.check();                               // throws LostError
//   });
//   const receipt = await keys.once("order-17", { keep: "24h" }, charge);
//
// Durations are milliseconds, or texts such as "90s" and "1h30m". The types are in dibs.d.ts.

import { Client } from "./lib/client.js";

export { Client };
export { Lease } from "./lib/lease.js";
export {
  DibsError, HeldError, LostError, DoneError, MismatchError, UnknownError, UnavailableError, BusyError, FullError, TooLargeError,
  RefusedError, UnauthorizedError, ForbiddenError, OverloadedError, RememberedError, NotKeptError, UnrecordedError, WrongTransactionError,
  ClosedError,
} from "./lib/errors.js";

export const VERSION = "0.0.0";

// connect returns a client of the servers at the URL:
//
//   unix:/run/dibs/dibs.sock, http+unix:/run/dibs/dibs.sock    a Unix socket
//   http://127.0.0.1:7331
//   https://:TOKEN@dibs.internal                     with a credential
//   https://:TOKEN@a.internal,b.internal:8443        several servers of one store
//
// The default is the variable DIBS_SERVER, or unix:/run/dibs/dibs.sock. It does not connect yet. The
// options are those of Client. Make one client for the program.
export function connect(url, options) {
  return new Client(url ?? (process.env.DIBS_SERVER || "unix:/run/dibs/dibs.sock"), options);
}
