// send passes the table of cases of the side that sends, keeps the key of an intention, and gets each
// answer while the proxy is killed.

import assert from "node:assert/strict";
import { once } from "node:events";
import fs from "node:fs";
import http from "node:http";
import test from "node:test";
import { Proxy, clock, script, until, within } from "./support.js";
import { forget, send } from "dibs/send";

const { cases } = JSON.parse(fs.readFileSync(new URL("../../testdata/sending.json", import.meta.url), "utf8"));

// Origin is a server with answers as in the table.
class Origin {
  got = [];
  answers = [{ status: 200 }];

  static async start() {
    const o = new Origin();
    o.server = http.createServer((request, response) => o.#serve(request, response)).listen(0, "127.0.0.1").unref();
    await once(o.server, "listening");
    o.url = `http://127.0.0.1:${o.server.address().port}/charges`;
    return o;
  }

  async #serve(request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const a = this.answers[Math.min(this.got.length, this.answers.length - 1)];
    this.got.push({ method: request.method, header: request.headers, body: Buffer.concat(chunks).toString() });
    if (a.reset) return void request.socket.destroy();
    const now = Date.now() + (a.clock ?? 0) * 1000;
    response.setHeader("Date", new Date(now).toUTCString());
    if (a.retry_after !== undefined) response.setHeader("Retry-After", a.retry_after);
    if (a.retry_after_date !== undefined) response.setHeader("Retry-After", new Date(now + a.retry_after_date * 1000).toUTCString());
    if (a.replayed) response.setHeader("Idempotent-Replayed", "true");
    for (const [name, value] of Object.entries(a.header ?? {})) response.setHeader(name, value);
    const text = a.text ?? "text";
    response.writeHead(a.status, { "Content-Length": text.length });
    if (a.cut) response.write(text.slice(0, 2), () => request.socket.destroy());
    else response.end(text);
  }
}

// paused runs the function while the pauses of send take no time, and resolves to them, in seconds.
async function paused(fn) {
  const pauses = [];
  const real = globalThis.setTimeout;
  globalThis.setTimeout = (call, ms, ...rest) => {
    if (!new Error().stack.includes("/send.js")) return real(call, ms, ...rest);
    pauses.push(ms / 1000);
    clock.forward(ms);
    return real(call, 0, ...rest);
  };
  try {
    return await fn(pauses);
  } finally {
    globalThis.setTimeout = real;
  }
}

for (const c of cases) {
  test(c.name, async () => {
    const o = await Origin.start();
    o.answers = c.answers;
    const { method = "POST", header, key, tries, deadline } = c;
    const options = { method, headers: header, key };
    if (!["GET", "OPTIONS"].includes(method)) options.body = "amount=700"; // fetch refuses one of GET
    if (tries) options.maxTries = tries;
    if (deadline) options.deadline = deadline * 1000;
    await paused(async (pauses) => {
      if (c.fails) {
        await assert.rejects(send(o.url, options), TypeError);
      } else {
        const answer = await send(o.url, options);
        assert.equal(answer.status, c.status);
        assert.equal(await answer.text(), "text");
      }
      assert.equal(o.got.length, c.sent);
      assert.equal(pauses.length, c.pauses?.length ?? 0);
      pauses.forEach((p, i) => assert.ok(p >= c.pauses[i][0] && p <= c.pauses[i][1], `pause ${i} of ${p} s`));
    });
    for (const got of o.got) {
      assert.deepEqual([got.method, got.body, got.header["idempotency-key"]], [method, options.body ?? "", o.got[0].header["idempotency-key"]]);
      if (c.field === undefined) assert.match(got.header["idempotency-key"], /^"[!-~]{22,}"$/);
      else assert.equal(got.header["idempotency-key"], c.field ?? undefined);
      assert.equal(got.header["x-idempotency-key"], header?.["X-Idempotency-Key"]);
    }
    o.server.close();
  });
}

// Storage is what sessionStorage is in a browser.
class Storage extends Map {
  getItem(name) { return this.get(name) ?? null; }
  setItem(name, value) { this.set(name, String(value)); }
  removeItem(name) { this.delete(name); }
}

const keyUsed = "application/problem+json";
for (const [what, answer, ends] of [
  ["a success", { status: 201 }, true],
  ["a refusal of the application", { status: 400 }, true],
  ["a form that the application refuses", { status: 422, text: "{\"type\":\"about:blank\"}" }, true],
  ["another use of the key", { status: 422, text: "{\"type\":\"https://example.org/http.md#key-reused\"}", header: { "Content-Type": keyUsed } }, false],
  ["a conflict without an outcome", { status: 409 }, false],
  ["an answer that was not kept", { status: 410 }, false],
  ["an expired session", { status: 401 }, false],
  ["an error of the application", { status: 500 }, false],
  ["a gateway's timeout", { status: 504 }, false],
  ["no answer", { reset: true }, false],
]) {
  test(`${what} ${ends ? "ends" : "keeps"} an intention`, async () => {
    const o = await Origin.start();
    for (const storage of [undefined, new Storage()]) {
      o.got = [];
      o.answers = [answer];
      const call = () => send(o.url, { method: "POST", body: "amount=700", intention: "order 17", storage, maxTries: 1 }).then((a) => a.status, () => null);
      assert.equal(await call(), answer.status ?? null);
      assert.equal(await call(), answer.status ?? null);
      const [first, second] = o.got.map((g) => g.header["idempotency-key"]);
      assert.equal(first === second, !ends);
      forget("order 17", { storage });
      await call();
      assert.notEqual(o.got[2].header["idempotency-key"], second);
      assert.equal(storage?.size ?? 0, ends || !storage ? 0 : 1);
      forget("order 17", { storage });
    }
    o.server.close();
  });
}

test("one intention at a time, and others", async () => {
  const o = await Origin.start();
  const storage = new Storage();
  const options = { method: "POST", storage, maxTries: 1 };
  await Promise.all(["a", "a", "b"].map((intention) => send(o.url, { ...options, intention })));
  const keys = o.got.map((g) => g.header["idempotency-key"]);
  assert.equal(new Set(keys).size, 2);
  // The end of an earlier call does not end the intention of a later one.
  storage.setItem("dibs a", "later");
  o.got = [];
  const slow = send(o.url, { ...options, intention: "a", key: "earlier" });
  storage.setItem("dibs a", "later");
  await slow;
  assert.equal(storage.getItem("dibs a"), "later");
  o.server.close();
});

test("a signal ends a try, and a pause", async () => {
  const o = await Origin.start();
  o.answers = [{ status: 503, retry_after: "20" }];
  const stop = new AbortController();
  const sent = send(o.url, { method: "POST", signal: stop.signal });
  await until("the first try arrives", () => o.got.length === 1);
  stop.abort(new RangeError("the user left"));
  await assert.rejects(within(sent), /the user left/);
  o.server.removeAllListeners("request").on("request", () => stop2.abort(new RangeError("in a try")));
  const stop2 = new AbortController();
  await assert.rejects(within(send(o.url, { method: "POST", signal: stop2.signal })), /in a try/);
  await assert.rejects(send(o.url, { method: "POST", signal: stop2.signal }), /in a try/);
  o.server.closeAllConnections();
  o.server.close();
});

test("a deadline ends a try", async () => {
  const o = await Origin.start();
  o.server.removeAllListeners("request").on("request", () => {});
  await assert.rejects(within(send(o.url, { method: "POST", deadline: 50 })), { name: "TimeoutError" });
  o.server.closeAllConnections();
  o.server.close();
});

test("an event stream is not waited for", async () => {
  const o = await Origin.start();
  let finish;
  o.server.removeAllListeners("request").on("request", (_, response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream; charset=utf-8" }).write("data: 1\n\n");
    finish = () => response.end();
  });
  const answer = await within(send(o.url, { method: "POST" }));
  finish();
  assert.equal(await answer.text(), "data: 1\n\n");
  o.server.close();
});

test("a body is sent again, whatever it is", async () => {
  const o = await Origin.start();
  o.answers = [{ reset: true }, { status: 200 }];
  for (const body of [Buffer.from("text"), new Blob(["text"]), new URLSearchParams("text"), ReadableStream.from([Buffer.from("te"), Buffer.from("xt")])]) {
    o.got = [];
    await send(new Request(o.url, { method: "POST", body, duplex: "half" }));
    assert.deepEqual(o.got.map((g) => g.body.replace("=", "")), ["text", "text"]);
  }
  o.server.close();
});

test("wrong options", async () => {
  for (const wrong of [{ maxTries: 0 }, { deadline: "90s" }, { backoff: -1 }, { maxBackoff: NaN }, { key: 17 }]) {
    await assert.rejects(send("http://127.0.0.1:1/", { method: "POST", ...wrong }), /dibs: /, JSON.stringify(wrong));
  }
});

test("the program of docs/guides/retrying-clients.md runs", async () => {
  let charges = 0;
  const origin = http.createServer((_, response) => response.end(`charge ${++charges}`)).listen(0, "127.0.0.1");
  await once(origin, "listening");
  const proxy = await Proxy.start(`http://127.0.0.1:${origin.address().port}`);
  const guide = fs.readFileSync(new URL("../../../docs/guides/retrying-clients.md", import.meta.url), "utf8");
  const [, text] = /^```js\n(.*?)^```/ms.exec(guide);
  const p = script("", text.replace("http://127.0.0.1:8080", proxy.url), { bare: true });
  assert.deepEqual(await p.rest(), ["200 charge 1"]);
  assert.equal(await p.ended(), 0);
  proxy.kill();
  origin.close();
});

test("all callers of a key get one answer while the proxy is killed", async () => {
  const ran = new Map();
  let killed = [];
  const origin = http.createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const order = Buffer.concat(chunks).toString();
    const run = (ran.get(order) ?? 0) + 1;
    ran.set(order, run);
    if (run === 1 && /[05]$/.test(order)) await new Promise((resolve) => killed.push(resolve));
    response.end(`${order}, run ${run}`);
  }).listen(0, "127.0.0.1");
  await once(origin, "listening");
  const proxy = await Proxy.start(`http://127.0.0.1:${origin.address().port}`, ["--lease", "1s"]);
  const orders = Array.from({ length: 40 }, (_, i) => `order ${i}`);
  const call = async (order) => {
    const answer = await send(`${proxy.url}/`, { method: "POST", body: order, key: order, maxTries: 1000, maxBackoff: 2_000 });
    return `${answer.status} ${await answer.text()}`;
  };
  for (let kills = 0; kills < 4; kills++) {
    const some = orders.slice(10 * kills, 10 * kills + 10);
    const answers = Promise.all([...some, ...some].map(call));
    await until("two run and the others have run", () => killed.length === 2 && some.every((order) => ran.has(order)));
    await proxy.kill();
    for (const go of killed) go();
    killed = [];
    await proxy.start();
    const got = await within(answers);
    assert.deepEqual(got.slice(10), got.slice(0, 10));
    got.slice(0, 10).forEach((answer, i) => assert.equal(answer, `200 ${some[i]}, run ${ran.get(some[i])}`));
    assert.equal(ran.get(some[5]), 2); // its answer was lost with the proxy
  }
  proxy.kill();
  origin.close();
});
