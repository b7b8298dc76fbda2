// Servers that go away, and answers that are lost.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import fs from "node:fs";
import http from "node:http";
import net from "node:net";
import test from "node:test";
import { inspect } from "node:util";
import { Line, Server, clock, dibs, dir, problem, script, unique, until } from "./support.js";

const server = await Server.start();
const keys = server.keys();
const fail = () => assert.fail("it runs");
const sha = (text) => createHash("sha256").update(text).digest("hex");

// over is a test with a client over a line.
function over(name, fn) {
  test(name, async () => {
    const line = await Line.to(server);
    const mine = dibs.connect(line.url);
    try {
      await fn(line, mine, unique());
    } finally {
      await mine.close();
      line.close();
    }
  });
}

over("a claim whose answer is lost is asked again", async (line, mine, key) => {
  line.cut("claim", 1);
  await mine.lock(key, { ttl: "10m" }, (lease) => assert.equal(lease.attempt, 1));
  assert.deepEqual(line.calls, [["claim", 1], ["claim", 1], ["settle", 1]]);
  await server.free(key);
});

over("a claim whose answer never came is undone", async (line, mine, key) => {
  line.cut("claim", 1000);
  await assert.rejects(mine.lock(key, { ttl: "10m", wait: 0 }, fail), dibs.UnavailableError);
  await server.free(key);
});

over("a claim whose answer was lost and that is refused then is undone", async (line, mine, key) => {
  line.cut("claim", 1);
  line.says.claim = [problem(401, "unauthorized"), false];
  await assert.rejects(mine.lock(key, { ttl: "10m", wait: 0 }, fail), dibs.UnauthorizedError);
  await server.free(key);
});

over("a claim that another program answers is undone", async (line, mine, key) => {
  line.says.claim = [[404, "text/html", "<p>"], true];
  await assert.rejects(mine.lock(key, { ttl: "10m", wait: 0 }, fail), dibs.RefusedError);
  await server.free(key);
});

over("a place whose answer never came is undone", async (line, mine, key) => {
  line.cut("claim", 1000);
  await assert.rejects(mine.reserve(key), dibs.UnavailableError);
  await server.free(key);
});

over("a release whose answer is lost is not a loss", async (line, mine, key) => {
  line.cut("settle", 1);
  assert.equal(await mine.lock(key, { ttl: "10m" }, () => "done"), "done");
  await server.free(key);
});

over("a release that is never answered is done in the background", async (line, _, key) => {
  const mine = dibs.connect(line.url);
  const lease = await mine.acquire(key, { ttl: "10m" });
  line.cut("settle", 1000);
  line.heard = () => clock.forward(6_000); // no time is left for another try
  await assert.rejects(lease.release(), dibs.UnavailableError);
  line.heard = () => {};
  assert.equal(lease.held, false);
  line.cut("settle", 0);
  await server.free(key);
  await mine.close();
});

over("a result whose answer is lost is stored once", async (line, mine, key) => {
  let runs = 0;
  line.cut("settle", 2);
  assert.equal(await mine.once(key, () => ++runs), 1);
  assert.equal(await keys.once(key, () => ++runs), 1);
});

over("a renewal whose answer is lost is sent again", async (line, mine, key) => {
  const lease = await mine.acquire(key, { ttl: "1m" });
  await mine.acquire(unique(), { ttl: "3s" }); // the next to be renewed, which looks at all
  line.cut("renew", 2);
  const before = lease.left;
  clock.forward(20_000);
  await until("it is renewed", () => lease.left > before - 15_000);
  await lease.release();
});

// A caller that gives up, at each step of a claim.
for (const when of ["before", "after"]) {
  for (const call of ["lock", "once", "redeem"]) {
    over(`${call} is given up ${when} the server has done its claim`, async (line, mine, key) => {
      const ticket = call === "redeem" ? await mine.reserve(key) : key;
      const controller = new AbortController();
      const gate = line.hold("claim", when);
      const wait = mine[call](ticket, { ttl: "10m", signal: controller.signal }, fail);
      await gate.arrived;
      controller.abort(new Error("given up"));
      await assert.rejects(wait, /given up/);
      await until("it is undone", () => line.calls.some(([verb]) => verb === "settle"));
      gate.go();
      await gate.done; // and may be done after it was undone: then it is undone again
      if (call === "redeem") await mine.redeem(ticket, { wait: "1m" }, () => {});
      await server.free(key);
    });
  }
}

over("a wait that is given up between two questions leaves the queue", async (line, mine, key) => {
  const first = await keys.acquire(key, { ttl: "10m" });
  const controller = new AbortController();
  const wait = mine.lock(key, { signal: controller.signal }, fail);
  await server.waiting(key, 1);
  line.cut("claim", 1000); // the questions fail, and it sleeps between them
  await first.release();
  await until("it asks again", () => line.calls.filter(([verb]) => verb === "claim").length > 3);
  controller.abort();
  await assert.rejects(wait, { name: "AbortError" });
  await server.free(key);
});

over("an undo keeps a program alive until it is done", async (line, _, key) => {
  const gate = line.hold("claim", "after");
  const p = script(line.url, `
    const stop = new AbortController();
    const wait = connect().lock(${JSON.stringify(key)}, { ttl: "10m", signal: stop.signal }, () => {});
    process.stdin.once("data", () => { stop.abort(); process.stdin.destroy(); });
    await wait.catch((e) => console.log(e.name));
  `);
  await gate.arrived;
  p.say();
  assert.equal(await p.line(), "AbortError");
  assert.equal(await p.ended(), 0);
  gate.go();
  await server.free(key);
});

test("a long wait that breaks is asked again", async () => {
  const mine = await Server.start();
  const line = await Line.to(mine);
  const [over, key] = [dibs.connect(line.url), unique()];
  const lease = await mine.keys().acquire(key, { ttl: "1h" });
  const gate = line.hold("claim", "after");
  const waiter = over.lock(key, (l) => l.attempt);
  await gate.arrived;
  const polls = line.hold("claim", "before");
  gate.go();
  await polls.arrived;
  clock.forward(120_000); // since it last heard of the server
  line.listener.closeAllConnections();
  await until("it waits again", () => line.calls.filter(([verb]) => verb === "claim").length > 3);
  await lease.release();
  assert.equal(await waiter, 1);
  await over.close();
  line.close();
  await mine.kill();
});

test("a server is killed and started again under a lease", async () => {
  const mine = await Server.start();
  const client = mine.keys();
  const key = unique();
  await client.lock(key, { ttl: "10m" }, async (lease) => {
    const { fence } = lease;
    await mine.kill();
    await assert.rejects(client.lock(unique(), { wait: 0 }, fail), (e) => e instanceof dibs.UnavailableError && e.message.includes(mine.url.replace("http+", "")) && /is dibs serve running there/.test(e.message));
    await mine.start();
    await lease.save("x");
    assert.equal(lease.fence, fence);
  });
  assert.equal(await client.held(key), false);
  await mine.kill();
});

test("one of two servers is killed", async () => {
  const a = await Server.start({ listen: "127.0.0.1:0" });
  const b = await Server.start({ listen: "127.0.0.1:0", store: a.store });
  const mine = dibs.connect(`${a.url},${b.url.replace("http://", "")}`);
  const key = unique();
  let waiter;
  await mine.lock(key, { ttl: "10m" }, async (lease) => {
    waiter = dibs.connect(`${a.url},${b.url.replace("http://", "")}`).lock(key, { ttl: "10m" }, () => "after");
    await b.waiting(key, 1);
    await a.kill();
    lease.check();
  });
  assert.equal(await waiter, "after");
  await b.kill();
});

test("credentials", async () => {
  const [use, look] = [randomBytes(8).toString("hex"), "p+a/s%s w@"];
  const tokens = `${dir()}/tokens`;
  fs.writeFileSync(tokens, `app ${sha(use)} shop use\nops ${sha(look)} shop look\n`);
  const mine = await Server.start({ flags: ["--tokens", tokens], listen: "127.0.0.1:0" });
  const host = mine.url.replace("http://", "");
  const as = (secret, options) => dibs.connect(`http://:${encodeURIComponent(secret)}@${host}`, options);
  assert.equal(await as(use).lock("k", () => 1), 1);
  await assert.rejects(dibs.connect(mine.url).lock("k", fail), dibs.UnauthorizedError);
  await assert.rejects(as("another").lock("k", fail), (e) => e instanceof dibs.UnauthorizedError && e instanceof dibs.RefusedError && !inspect(e).includes("another"));
  await assert.rejects(as(look).lock("k", fail), dibs.ForbiddenError);
  await assert.rejects(as(use, { namespace: "elsewhere" }).lock("k", fail), dibs.ForbiddenError);
  assert.equal(await as(use, { namespace: "shop" }).lock("k", () => 1), 1);
  assert.ok(!inspect(as(use), { showHidden: true, depth: 9 }).includes(use));
  await mine.kill();
});

test("the certificate is checked", async () => {
  const at = dir();
  execFileSync("openssl", ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", `${at}/key`, "-out", `${at}/cert`, "-days", "2", "-subj", "/CN=localhost",
    "-addext", "subjectAltName=DNS:localhost"], { stdio: "ignore" });
  const mine = await Server.start({ flags: ["--tls-cert", `${at}/cert`, "--tls-key", `${at}/key`], listen: "127.0.0.1:0" });
  const port = /\d+$/.exec(mine.url)[0];
  const url = `https://localhost:${port}`;
  await assert.rejects(dibs.connect(url).lock("k", fail), (e) => e instanceof dibs.RefusedError && /certificate/.test(e.message));
  for (const [to, env, said] of [
    [url, { NODE_EXTRA_CA_CERTS: `${at}/cert` }, "locked"],
    [url.replace("localhost", "127.0.0.1"), { NODE_EXTRA_CA_CERTS: `${at}/cert` }, "RefusedError"],
    [url, { NODE_TLS_REJECT_UNAUTHORIZED: "0" }, "RefusedError"],
  ]) {
    const p = script(to, `console.log(await connect().lock("k", () => "locked").catch((e) => e.name));`, { env });
    assert.equal(await p.line(), said);
    assert.equal(await p.ended(), 0);
  }
  // What is not TLS, and no server, may pass.
  const listener = net.createServer((socket) => socket.end("hi")).listen(0, "127.0.0.1");
  await new Promise((resolve) => listener.once("listening", resolve));
  await assert.rejects(dibs.connect(`https://127.0.0.1:${listener.address().port}`).lock("k", { wait: 0 }, fail), dibs.UnavailableError);
  listener.close();
  await mine.kill();
});

test("what is not dibs serve is refused", async () => {
  for (const [status, type, body] of [[200, "text/html", "hi"], [404, "text/plain", ""], [200, "application/json", '{"answers":[]}'], [200, "application/json", '{"answers":[1]}'],
    [200, "application/json", "{"], [302, "text/html", ""]]) {
    const stranger = http.createServer((_, response) => response.writeHead(status, { "content-type": type }).end(body)).listen(0, "127.0.0.1");
    await new Promise((resolve) => stranger.once("listening", resolve));
    await assert.rejects(dibs.connect(`http://127.0.0.1:${stranger.address().port}`).lock("k", fail), (e) => e instanceof dibs.RefusedError && /not dibs serve/.test(e.message));
    stranger.close();
    stranger.closeAllConnections();
  }
});

test("a bound of the server is overloaded", async () => {
  const mine = await Server.start({ flags: ["--max-waiters", "1"] });
  const key = unique();
  const first = await mine.keys().acquire(key);
  const waiter = mine.keys().lock(key, () => "done");
  const other = mine.keys();
  await until("the bound is reached", () => other.lock(key, { wait: 50 }, fail).catch((e) => {
    if (e instanceof dibs.HeldError) return false; // the waiter's call has not begun to wait
    assert.ok(e instanceof dibs.OverloadedError);
    return true;
  }));
  await first.release();
  assert.equal(await waiter, "done");
  await mine.kill();
});

test("connections are kept", async () => {
  let connections = 0;
  const listener = net.createServer((socket) => {
    connections++;
    const on = net.connect(/unix:(.*)/.exec(server.url)[1]);
    for (const [a, b] of [[socket, on], [on, socket]]) a.on("error", () => b.destroy()).pipe(b);
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => listener.once("listening", resolve));
  const mine = dibs.connect(`http://127.0.0.1:${listener.address().port}`);
  for (let i = 0; i < 5; i++) await mine.lock(unique(), () => {});
  assert.equal(connections, 1);
  listener.close();
  await mine.close();
});

test("URLs", () => {
  for (const [url, text] of [["unix:/a b", "unix:/a b"], ["http+unix:/a", "unix:/a"], ["http+unix:///a", "unix:/a"], ["http://h:1", "http://h:1"],
    ["https://:t@a,b:8443/", "https://a:443,https://b:8443"], ["http://[::1]:7", "http://[::1]:7"]]) {
    assert.equal(inspect(dibs.connect(url)), `Client { ${text} }`);
  }
  for (const url of ["", "unix:a", "unix:////a", "redis://h", "h:7331", "https://user:t@h", "https://:@h", "https://:%zz@h", "http://h/path", "http://h?a=1",
    "http://", "http://a,,b", "http://h:99999", "http://h:0", "http://:s3cret@h/x", "https://:s3cret", "https://:s3cret\n@h", 42, null]) {
    assert.throws(() => new dibs.Client(url), (e) => e instanceof TypeError && !e.message.includes("s3cret"), String(url));
  }
  assert.throws(() => dibs.connect(""), TypeError);
  const before = process.env.DIBS_SERVER;
  process.env.DIBS_SERVER = "http://h:1";
  assert.equal(inspect(dibs.connect()), "Client { http://h:1 }");
  process.env.DIBS_SERVER = "";
  assert.equal(inspect(dibs.connect()), "Client { unix:/run/dibs/dibs.sock }");
  if (before === undefined) delete process.env.DIBS_SERVER;
  else process.env.DIBS_SERVER = before;
});
