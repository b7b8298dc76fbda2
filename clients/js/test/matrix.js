// The kill matrix: what happens to a process at each step of each call. For nightly runs; the cheap
// part of it is in the tests beside this file. SEED repeats a run.

import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { LIMIT, Line, Server, dibs, dir, script, unique, until } from "./support.js";

const server = await Server.start();
const keys = server.keys();
const home = new URL("../dibs.js", import.meta.url).href;
const seed = Number(process.env.SEED ?? Math.floor(Math.random() * 2 ** 31));

// random is a generator of numbers below 1 (mulberry32).
function generator(state) {
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

// STEPS are what a process does when it is struck. It says its pid, and stays there.
const STEPS = {
  "inside a function": `await keys.lock(KEY, { ttl: "2s" }, stay)`,
  waiting: `setTimeout(here, 200); await keys.lock(KEY, { ttl: "2s" }, forever)`,
  "inside once": `await keys.once(KEY, { ttl: "2s" }, stay)`,
  "with a lease of its own": `await keys.acquire(KEY, { ttl: "2s" }); await stay()`,
  redeeming: `await keys.redeem(await keys.reserve(KEY, { grace: "2s" }), { ttl: "2s", grace: "1s" }, stay)`,
  "before a reserved place is redeemed": `await keys.reserve(KEY, { grace: "1s" }); await stay()`,
  "in a forked child": `await keys.lock(KEY, { ttl: "2s" }, () => {}); fork(CHILD, [KEY], { execArgv: [], stdio: "inherit" }); await forever()`,
  "in a worker thread": `new Worker(CHILD, { argv: [KEY], execArgv: [] }); await forever()`,
  blocked: `await keys.lock(KEY, { ttl: "2s" }, () => { fs.writeSync(1, process.pid + "\\n"); for (;;); })`,
  anywhere: `setTimeout(here, Math.random() * 200); for (;;) await keys.lock(KEY, { ttl: "2s" }, () => {})`,
};

// SIGNALS, with whether the program asks to settle on it.
const SIGNALS = [["SIGKILL"], ["SIGTERM"], ["SIGTERM", "asked"], ["SIGINT"], ["SIGSTOP"]];

const child = `${dir()}/child.mjs`;
fs.writeFileSync(child, `
  import fs from "node:fs";
  import { connect } from ${JSON.stringify(home)};
  await connect().lock(process.argv[2], { ttl: "2s" }, () => { fs.writeSync(1, process.pid + "\\n"); return new Promise(() => setInterval(() => {}, 1000)); });
`);

for (const [step, text] of Object.entries(STEPS)) {
  for (const [signal, asked] of SIGNALS) test(`${signal}${asked ? ", which it asked for," : ""} ${step}`, () => strike(signal, asked, text));
}

// strike requires that the key can be had again, whatever becomes of the process.
async function strike(signal, asked, text) {
  const key = unique();
  const blocker = text.includes("setTimeout(here, 200)") ? await keys.acquire(key, { ttl: "10m" }) : null;
  const p = script(server.url, `
    import { fork } from "node:child_process";
    import fs from "node:fs";
    import { Worker } from "node:worker_threads";
    const KEY = ${JSON.stringify(key)};
    const CHILD = ${JSON.stringify(child)};
    const keys = connect();
    ${asked ? `process.once("${signal}", () => keys.close().then(() => process.exit(143)));` : ""}
    const here = () => console.log(process.pid);
    const forever = () => new Promise(() => setInterval(() => {}, 1000));
    const stay = () => { here(); return forever(); };
    ${text};
  `);
  const at = Number(await p.line());
  try {
    process.kill(at, signal);
    await blocker?.release();
    assert.equal(await keys.lock(key, { wait: LIMIT }, (lease) => lease.check().held), true);
  } finally {
    for (const pid of new Set([at, p.pid])) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // it has ended
      }
    }
    await p.ended();
  }
}

// Callers contend over a line that loses answers, and give up at a random moment, many times:
// nothing is left behind, and no two are inside together.
test(`callers that give up anywhere leave nothing (SEED=${seed})`, async () => {
  const random = generator(seed);
  const line = await Line.to(server);
  const over = dibs.connect(line.url);
  const key = unique();
  let inside = 0;
  const alone = async (lease) => {
    assert.equal(++inside, 1);
    lease.check();
    await new Promise(setImmediate);
    inside--;
  };
  const steps = [
    (signal) => over.lock(key, { ttl: "10m", signal }, alone),
    (signal) => over.once(`${key}/once`, { ttl: "10m", signal }, () => 1),
    async (signal) => {
      const ticket = await over.reserve(key, { ttl: "10m" });
      try {
        await over.redeem(ticket, { ttl: "10m", signal }, alone);
      } finally {
        await over.cancel(ticket).catch((e) => assert.ok(e instanceof dibs.LostError, e));
      }
    },
  ];
  for (let i = 0; i < 400; i++) {
    const reason = new Error("given up");
    const stop = new AbortController();
    if (random() < 0.1) line.cut(["claim", "settle"][i % 2], 1);
    const callers = Array.from({ length: 3 }, () => steps[Math.floor(random() * steps.length)]).map((step) => step(stop.signal).catch((e) => assert.equal(e, reason)));
    await new Promise((resolve) => setTimeout(resolve, random() * 10));
    stop.abort(reason);
    await Promise.all(callers);
  }
  await server.free(key);
  assert.equal(await keys.lock(key, { wait: 0 }, () => "mine"), "mine");
  await over.close();
  line.close();
});

// Two servers share a store, and one after the other is killed: no lease is lost, none is granted
// twice, and no caller sees an error.
test("servers that are killed in turn", async () => {
  const a = await Server.start({ listen: "127.0.0.1:0" });
  const b = await Server.start({ listen: "127.0.0.1:0", store: a.store });
  const urls = [a.url, b.url];
  const mine = dibs.connect(`${urls[0]},${urls[1].replace("http://", "")}`);
  const key = unique();
  let [inside, runs, stop] = [0, 0, false];
  const callers = Array.from({ length: 6 }, async () => {
    while (!stop) {
      await mine.lock(key, { ttl: "1m" }, async (lease) => {
        assert.equal(++inside, 1);
        await new Promise((resolve) => setTimeout(resolve, 1));
        inside--;
        runs++;
        lease.check();
      });
    }
  });
  for (let i = 0; i < 8; i++) {
    const before = runs;
    const victim = [a, b][i % 2];
    await victim.kill();
    await Promise.race([until("the other server continues", () => runs > before + 5), Promise.all(callers)]);
    await victim.start();
  }
  stop = true;
  await Promise.all(callers);
  await a.free(key);
  await mine.close();
  await Promise.all([a.kill(), b.kill()]);
});
