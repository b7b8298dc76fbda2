// The function of once, and its result.

import { LostError, NotKeptError, RefusedError, RememberedError, UNANSWERED, UnrecordedError, WrongTransactionError, plain } from "./errors.js";
import { passing } from "./clock.js";
import { readValue, writeValue } from "./value.js";

// runOnce runs the function of once and stores its result.
export async function runOnce(hold, lease, fn, retention, remembers, rerun) {
  const ran = {};
  try {
    ran.result = await fn(lease);
  } catch (e) {
    if (!remembers(e)) throw e;
    ran.thrown = e;
  }
  const text = await keepOnce(hold, ran, retention, rerun);
  if ("thrown" in ran) throw ran.thrown;
  return readValue(text).value;
}

// runOnceIn is runOnce in a transaction. What cannot be stored rolls it back.
export async function runOnceIn(postgres, client, hold, lease, fn, retention, remembers) {
  let text;
  let settled = false;
  try {
    await postgres.begin(client, hold.claim);
    try {
      const result = await fn(lease);
      try {
        text = writeValue(result);
      } catch (e) {
        throw notKept(hold, e, {}, true, ", so its transaction was rolled back and nothing in it was done");
      }
      await hold.settleIn(postgres, client, Buffer.from(text), retention, "marked");
      settled = true;
    } catch (e) {
      await client.query("ROLLBACK").catch(() => {}); // a connection that broke has no transaction
      throw e;
    }
    await committed(client, hold, Buffer.from(text), retention);
  } catch (e) {
    if (!settled && remembers(e)) {
      await keepOnce(hold, { thrown: e }, retention, true);
      throw e;
    }
    if (!settled || !(await hold.findOut(Buffer.from(text), retention))) throw e;
  }
  hold.core.undoer.settled(hold.claim, "keep");
  hold.end();
  return readValue(text).value;
}

// committed commits. PostgreSQL answers the COMMIT of a transaction in which a statement failed with
// ROLLBACK, and with no error. A client that does not say what was answered is not trusted.
async function committed(client, hold, data, retention) {
  const answer = await client.query("COMMIT");
  if (typeof answer?.command === "string" ? answer.command === "COMMIT" : await hold.findOut(data, retention)) return;
  throw new WrongTransactionError(`dibs: COMMIT did not commit, because a statement failed after the function of once, or the connection is not in its transaction any more: nothing was done under the key ${hold.claim.shown}`, { key: hold.claim.key });
}

// keepOnce stores what the function returned or threw, and returns the record.
async function keepOnce(hold, ran, retention, rerun) {
  let why;
  try {
    const text = "thrown" in ran ? JSON.stringify({ error: String(ran.thrown?.message ?? ran.thrown) }) : writeValue(ran.result);
    await hold.complete(Buffer.from(text), retention);
    return text;
  } catch (e) {
    if (e instanceof LostError) throw lostWith(e, ran);
    why = e;
  }
  throw notKept(hold, why, ran, rerun || !(await noteRun(hold, why, ran, retention)));
}

// noteRun leaves the record that the function ran, and resolves to whether it does not run again.
async function noteRun(hold, why, ran, retention) {
  if (!passing(why) && !why?.[UNANSWERED]) {
    try {
      await hold.complete(Buffer.from(JSON.stringify({ not_kept: shorten(plain(String(why?.message ?? why))) })), retention);
      return true;
    } catch (e) {
      if (e instanceof LostError) throw lostWith(e, ran);
    }
  }
  if (hold.claim.atMostOnce) await hold.release("abandon").catch(() => {}); // it is done in the background
  return hold.claim.atMostOnce;
}

// shorten bounds a text to 500 bytes.
function shorten(text) {
  return Buffer.from(text).subarray(0, 500).toString().replace(/\ufffd+$/, "");
}

function lostWith(e, ran) {
  return "thrown" in ran ? new LostError(e.message, { key: e.key, cause: ran.thrown }) : e;
}

function notKept(hold, why, ran, rerun, how = `, and ${rerun ? "the next caller runs again" : "later callers get an error that says so"}`) {
  return new NotKeptError(`dibs: the result for the key ${hold.claim.shown} could not be stored${how}: ${plain(String(why?.message ?? why))}`, {
    key: hold.claim.key, result: ran.result, rerun, cause: "thrown" in ran ? ran.thrown : why,
  });
}

// recall returns the stored result, or throws the stored error.
export function recall(done, { shown, key }) {
  let body;
  try {
    body = readValue(done.record.toString());
  } catch {
    body = null;
  }
  if (typeof body?.error === "string") throw new RememberedError(body.error, { key });
  if (typeof body?.not_kept === "string") {
    throw new UnrecordedError(`dibs: the function of once for the key ${shown} ran before, and its result could not be stored: ${body.not_kept}. dibs resolve --result gives callers a result, and --rerun lets the next one run`, { key });
  }
  if (!body || typeof body !== "object" || !Object.hasOwn(body, "value")) {
    throw new RefusedError(`dibs: the record of the key ${shown} is not one of once`, { key });
  }
  return body.value;
}
