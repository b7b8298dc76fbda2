// Two equal requests create a lesson's session. First the usual code, which is broken: both look,
// both find nothing, both create. In production that is bad luck; here it is certain, because both
// wait until the other has looked. Then the two cures.
//
//   DIBS_SERVER=unix:/tmp/dibs.sock node examples/js/session.mjs
//
// A program of yours imports "dibs"; see clients/js/README.md.

import { randomUUID } from "node:crypto";
import { HeldError, connect } from "../../clients/js/dibs.js";

const keys = connect();

// meeting returns a function that waits until so many callers have called it.
function meeting(callers) {
  let open;
  const all = new Promise((resolve) => { open = resolve; });
  return () => {
    if (--callers <= 0) open();
    return all;
  };
}

// twice runs two requests at once and resolves to their answers.
const twice = (request) => Promise.all([request(), request()]);

const count = (sessions) => `${sessions.length} session${sessions.length > 1 ? "s" : ""}`;

// The usual code: what another request does while this one awaits is not seen.
let sessions = [];
const looked = meeting(2);
await twice(async () => {
  const missing = sessions.length === 0;
  await looked();
  if (missing) sessions.push(randomUUID());
});
console.log(`without a lock: ${count(sessions)}`);
const broken = sessions.length === 2;

// A request that comes while another runs is skipped.
sessions = [];
const lesson = `lesson ${randomUUID()}`;
const asked = meeting(2);
const outcomes = await twice(async () => {
  try {
    return await keys.lock(lesson, { wait: 0, ttl: "10s" }, async () => {
      await asked();
      if (sessions.length === 0) sessions.push(randomUUID());
      return "locked";
    });
  } catch (e) {
    if (!(e instanceof HeldError)) throw e;
    await asked();
    return "skipped";
  }
});
console.log(`lock: ${count(sessions)}, ${outcomes.filter((o) => o === "skipped").length} request skipped`);
const cured = sessions.length === 1;

// Both requests get the session.
sessions = [];
const answers = await twice(() => keys.once(`${lesson}/once`, { keep: "24h" }, () => {
  const id = randomUUID();
  sessions.push(id);
  return id;
}));
const same = answers[0] === answers[1];
console.log(`once: ${count(sessions)}, ${same ? "both requests have it" : "the requests differ"}`);

if (!(broken && cured && sessions.length === 1 && same)) {
  console.error("the cure did not hold");
  process.exitCode = 1;
}
