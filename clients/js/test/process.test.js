// Processes and threads that are killed, stopped, forked and ended.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import test from "node:test";
import { Server, dibs, dir, script, unique } from "./support.js";

const server = await Server.start();
const keys = server.keys();
const text = JSON.stringify;
const home = new URL("../dibs.js", import.meta.url).href;

test("a stopped process finds its lease lost", async () => {
  const key = unique();
  const p = script(server.url, `
    const keys = connect();
    const lost = (name, fn) => { try { fn(); console.log("trusted"); } catch (e) { console.log(name, e.name); } };
    const said = await keys.lock(${text(key)}, { ttl: "1s" }, async (lease) => {
      const { signal } = lease;
      console.log("held");
      await new Promise((resolve) => process.stdin.once("data", resolve));
      lost("check", () => lease.check());
      lost("fence", () => lease.fence);
      console.log("signal", lease.signal === signal && signal.aborted);
      process.stdin.destroy();
    }).catch((e) => e.name);
    console.log(said);
  `);
  assert.equal(await p.line(), "held");
  p.kill("SIGSTOP");
  await keys.lock(key, async (lease) => {
    assert.equal(lease.attempt, 2);
    p.say();
    p.kill("SIGCONT");
    assert.deepEqual(await p.rest(), ["check LostError", "fence LostError", "signal true", "LostError"]);
    lease.check();
  });
  assert.equal(await p.ended(), 0);
});

test("an event loop that is blocked past its lease finds it lost", async () => {
  const key = unique();
  const p = script(server.url, `
    const lease = await connect().acquire(${text(key)}, { ttl: 300 });
    for (const ends = performance.now() + 300; performance.now() < ends;);
    try { lease.check(); console.log("trusted"); } catch (e) { console.log(e.name, lease.signal.reason.name); }
  `);
  assert.deepEqual(await p.rest(), ["LostError LostError"]);
});

test("a killed process leaves an abandoned lease", async () => {
  const key = unique();
  const p = script(server.url, `await connect().lock(${text(key)}, { ttl: "3s" }, () => { console.log("held"); return new Promise(() => setInterval(() => {}, 1000)); });`);
  assert.equal(await p.line(), "held");
  p.kill("SIGKILL");
  assert.equal(await p.ended(), "SIGKILL");
  await keys.lock(key, (lease) => assert.equal(lease.attempt, 2));
});

test("leases and the client keep no program alive, and a lease that is held then expires", async () => {
  const key = unique();
  const p = script(server.url, `
    const keys = connect();
    console.log((await keys.acquire(${text(key)}, { ttl: "10m" })).id);
  `);
  const id = await p.line();
  assert.equal(await p.ended(), 0);
  assert.equal((await server.entry(key)).runs[0].id, id);

  const other = unique();
  const q = script(server.url, `await connect().lock(${text(other)}, { ttl: "3s" }, () => { console.log("held"); process.exit(3); });`);
  assert.equal(await q.line(), "held");
  assert.equal(await q.ended(), 3);
  await keys.lock(other, (lease) => assert.equal(lease.attempt, 2));
});

test("a caller that waits keeps the program alive", async () => {
  const key = unique();
  const first = await keys.acquire(key, { ttl: "10m" });
  const p = script(server.url, `console.log(await connect().lock(${text(key)}, () => "mine"));`);
  await server.waiting(key, 1);
  await first.release();
  assert.equal(await p.line(), "mine");
  assert.equal(await p.ended(), 0);
});

test("SIGTERM settles if the program asks for it", async () => {
  const held = (key, more) => `
    const keys = connect();
    ${more}
    await keys.lock(${text(key)}, { ttl: "10m" }, (lease) => {
      console.log(lease.id);
      return new Promise((_, reject) => {
        lease.signal.addEventListener("abort", () => reject(lease.signal.reason));
        setInterval(() => {}, 1000);
      });
    }).catch((e) => console.log(e.name));
  `;
  const [key, other] = [unique(), unique()];
  const plain = script(server.url, held(key, ""));
  const id = await plain.line();
  plain.kill("SIGTERM");
  assert.equal(await plain.ended(), "SIGTERM");
  assert.equal((await server.entry(key)).runs[0].id, id);

  const asking = script(server.url, held(other, `process.once("SIGTERM", () => keys.close().then(() => process.exit(143)));`));
  await asking.line();
  const waiter = keys.lock(other, (lease) => lease.attempt);
  await server.waiting(other, 1);
  asking.kill("SIGTERM");
  assert.equal(await asking.line(), "ClosedError");
  assert.equal(await asking.ended(), 143);
  assert.equal(await waiter, 1);
});

test("a child of child_process.fork shares nothing", async () => {
  const key = unique();
  const file = `${dir()}/child.mjs`;
  fs.writeFileSync(file, `
    import { connect } from ${text(home)};
    const keys = connect();
    process.once("message", async ({ key, lease, fence }) => {
      const held = await keys.lock(key, { wait: 0 }, () => "locked").catch((e) => e.name);
      process.send([held, Object.keys(lease).length, fence, await keys.lock(key + "/2", () => "locked")]);
      process.disconnect();
    });
  `);
  const p = script(server.url, `
    import { fork } from "node:child_process";
    const keys = connect();
    await keys.lock(${text(key)}, { ttl: "10m" }, async (lease) => {
      const child = fork(${text(file)}, { execArgv: [] });
      child.send({ key: ${text(key)}, lease, fence: String(lease.fence) });
      const [held, fields, fence, other] = await new Promise((resolve) => child.once("message", resolve));
      console.log(held, fields, fence === String(lease.fence), other, lease.check().held);
    });
  `);
  assert.equal(await p.line(), "HeldError 0 true locked true");
  assert.equal(await p.ended(), 0);
  await server.free(key);
});

test("workers of a cluster contend like any processes, and one that dies releases nothing of another", async () => {
  const key = unique();
  const file = `${dir()}/cluster.mjs`;
  fs.writeFileSync(file, `
    import cluster from "node:cluster";
    import { connect } from ${text(home)};
    const keys = connect();
    if (cluster.isPrimary) {
      await keys.lock(process.argv[2] + "/primary", { ttl: "10m" }, async (lease) => {
        const workers = [cluster.fork(), cluster.fork()];
        const codes = await Promise.all(workers.map((w) => new Promise((resolve) => w.once("exit", resolve))));
        console.log(codes.join(), lease.check().held);
      });
    } else {
      let inside = 0;
      for (let i = 0; i < 10; i++) await keys.lock(process.argv[2], async (lease) => { if (++inside !== 1) process.exit(9); await null; lease.check(); inside--; });
      process.disconnect();
    }
  `);
  const out = execFileSync(process.execPath, [file, key], { env: { ...process.env, DIBS_SERVER: server.url }, encoding: "utf8" });
  assert.equal(out, "0,0 true\n");
  await server.free(key);
});

test("a worker thread has leases of its own, and one that is terminated abandons them", async () => {
  const key = unique();
  const p = script(server.url, `
    import { execFileSync } from "node:child_process";
    import { Worker } from "node:worker_threads";
    const keys = connect();
    const worker = new Worker(\`
      import(${text(home)}).then(async ({ connect }) => {
        const { parentPort, workerData } = await import("node:worker_threads");
        await connect().lock(workerData, { ttl: 6000 }, (lease) => { parentPort.postMessage(lease.fence); return new Promise(() => setInterval(() => {}, 1000)); });
      });
    \`, { eval: true, workerData: ${text(key)} });
    const fence = await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
    console.log(typeof fence, await keys.lock(${text(key)}, { wait: 0 }, () => {}).catch((e) => e.name));
    // This thread is blocked until the other one has renewed its lease.
    const left = () => JSON.parse(execFileSync(${text(process.env.DIBS_PROGRAM)}, ["show", "--json", "--store", ${text(server.store)}, ${text(key)}])).left_ms;
    for (let last = left(), next; (next = left()) <= last; last = next);
    console.log(await keys.held(${text(key)}));
    await worker.terminate();
    await keys.lock(${text(key)}, (lease) => console.log(lease.attempt, lease.fence > fence));
  `);
  assert.deepEqual(await p.rest(), ["bigint HeldError", "true", "2 true"]);
  assert.equal(await p.ended(), 0);
});

test("it works from CommonJS", async () => {
  const file = `${dir()}/old.cjs`;
  const root = new URL("../dibs.js", import.meta.url).pathname;
  fs.writeFileSync(file, `
    import(${text(home)}).then(async ({ connect }) => console.log(await connect().lock("cjs", () => "imported")));
    if (process.features.require_module) require(${text(root)}).connect().lock("cjs", () => "required").then(console.log);
  `);
  const out = execFileSync(process.execPath, ["--no-warnings", file], { env: { ...process.env, DIBS_SERVER: server.url }, encoding: "utf8" });
  assert.deepEqual(out.trim().split("\n").sort(), process.features.require_module ? ["imported", "required"] : ["imported"]);
});

test("a library that replaces the global clock moves no lease", async () => {
  const p = script(server.url, `
    for (const clock of [performance, Date]) Object.defineProperty(clock, "now", { value: () => 0 });
    const lease = await connect().acquire("clock", { ttl: 400, renew: false });
    await new Promise((resolve) => setTimeout(resolve, 400));
    console.log(lease.held);
  `);
  assert.equal(await p.line(), "false");
  assert.ok(dibs.VERSION);
});
