// Claims that are carried out after their caller has gone, answers that come late, and a busy store.

import assert from "node:assert/strict";
import net from "node:net";
import test from "node:test";
import { Line, Server, clock, dibs, unique, until, within } from "./support.js";

const server = await Server.start();
const keys = server.keys();
const fail = () => assert.fail("it runs");

// two is a test with a client of two servers, the first of which is frozen while it has a claim. thaw
// lets it carry the claim out, after the client has undone it once more.
function two(name, fn) {
  test(name, async () => {
    const [a, b] = [await Line.to(server, true), await Line.to(server, true)];
    const mine = dibs.connect(`${a.url},${b.url.replace("http://", "")}`, { timeout: 4000 }); // half for each server
    const gate = a.hold("claim", "before");
    let carried = "";
    a.change = (text) => { carried += text; return text; };
    const undone = []; // the keys, as often as they are undone
    a.heard = b.heard = (_, { settlements = [] }) => { undone.push(...settlements.filter((s) => s.outcome === "undo").map((s) => s.key)); };
    const thaw = async (first) => {
      await until("it is undone again", () => undone.length > first);
      gate.go();
      await within(gate.done);
      await until("the claim is carried out", () => carried);
    };
    try {
      await fn({ mine, b, thaw, undone, key: unique(), carried: () => carried });
    } finally {
      await mine.close();
      a.close();
      b.close();
    }
  });
}

two("a lock that was released at another server", async ({ mine, thaw, key, carried }) => {
  await mine.lock(key, { ttl: "10m", wait: 0 }, () => {});
  await thaw(0);
  assert.match(carried(), /granted/);
  await server.free(key);
});

two("a place that was cancelled at another server", async ({ mine, thaw, key, carried }) => {
  await mine.cancel(await mine.reserve(key));
  await thaw(0);
  assert.match(carried(), /queued/);
  await server.free(key);
});

two("a place that was redeemed at another server", async ({ mine, thaw, key, carried }) => {
  await mine.redeem(await mine.reserve(key), () => {});
  await thaw(0);
  assert.match(carried(), /queued/);
  await server.free(key);
});

two("a claim that another server refused", async ({ mine, thaw, key, carried }) => {
  const other = await keys.acquire(key, { ttl: "10m" });
  await assert.rejects(mine.lock(key, { ttl: "10m", wait: 0 }, fail), dibs.HeldError);
  await other.release();
  await thaw(1); // the first undo is that of the refused claim
  assert.match(carried(), /granted/);
  await server.free(key);
});

two("a result that was stored at another server", async ({ mine, thaw, key }) => {
  assert.equal(await mine.once(key, () => 1), 1);
  await thaw(0);
  await server.free(key);
  assert.equal(await keys.once(key, fail), 1); // the record stays
});

two("a place that is reserved again is not undone", async ({ mine, b, undone, key }) => {
  const ticket = await mine.reserve(key);
  await mine.cancel(ticket);
  await mine.prolong(ticket, { ttl: "1h" });
  const later = unique();
  b.cut("claim", 1);
  await mine.lock(later, { wait: 0 }, () => {});
  await until("what was silent later is undone", () => undone.includes(later));
  assert.ok(!undone.includes(key));
  assert.equal((await server.entry(key)).reserved, 1);
  await keys.cancel(ticket);
});

test("a claim says how long its caller listens", async () => {
  const [a, b] = [await Line.to(server, true), await Line.to(server, true)];
  const asked = [];
  a.heard = (verb, body) => { if (verb === "claim") asked.push(body); };
  const one = dibs.connect(a.url, { timeout: 400.5 });
  const both = dibs.connect(`${a.url},${b.url.replace("http://", "")}`, { timeout: 4000 });
  const [key, other] = [unique(), unique()];
  await one.held(key);
  await both.held(key);
  const [alone, shared] = asked.map((body) => body.timeout_ms);
  assert.ok(Number.isInteger(alone) && alone > 0 && alone <= 401); // rounded up
  assert.ok(shared > 0 && shared <= 2000); // the share of one of two
  const holder = await keys.acquire(other, { ttl: "10m" });
  const waits = one.lock(other, () => {});
  await server.waiting(other, 1);
  await until("it polls", () => asked.at(-1).wait_ms > 0);
  assert.equal(asked.at(-1).timeout_ms, 20_000 + 401);
  assert.equal(asked.at(-1).wait_ms, 20_000);
  await holder.release();
  await waits;
  for (const mine of [one, both]) await mine.close();
  a.close();
  b.close();
});

// confirmed is a test in which an answer comes 100 seconds after its call was sent.
function confirmed(name, verb, fn) {
  test(`trust counts from when ${name} was sent`, async () => {
    const line = await Line.to(server);
    const mine = dibs.connect(line.url);
    const late = async (call) => {
      const gate = line.hold(verb, "after");
      const done = call();
      await within(gate.arrived);
      clock.forward(100_000);
      gate.go();
      return done;
    };
    const lease = await fn(mine, late);
    await until("it is confirmed", () => lease.left > 400_000);
    assert.ok(lease.left <= 600_000 - 12_000 - 100_000, `${lease.left} ms are left of ten minutes`);
    await lease.release();
    await mine.close({ wait: 0 });
    line.close();
  });
}

confirmed("a claim", "claim", (mine, late) => late(() => mine.acquire(unique(), { ttl: "10m" })));

confirmed("progress", "renew", async (mine, late) => {
  const lease = await mine.acquire(unique(), { ttl: "10m" });
  clock.forward(150_000);
  await late(() => lease.save("half"));
  return lease;
});

confirmed("a renewal", "renew", async (mine, late) => {
  const lease = await mine.acquire(unique(), { ttl: "10m" });
  await mine.acquire(unique(), { ttl: "3s", renew: false }); // whose end wakes the renewer
  clock.forward(201_000);
  await late(() => {});
  return lease;
});

test("a busy key is an answer", async () => {
  const line = await Line.to(server);
  const mine = dibs.connect(line.url);
  const busy = [[200, "application/json", '{"answers":[{"error":{"type":"busy","detail":"the key is busy"}}]}'], false];
  const key = unique();
  let left = 5;
  line.heard = (verb) => {
    line.says = verb === "claim" && left-- > 0 ? { claim: busy } : {};
    if (line.says.claim) clock.forward(6000);
  };
  await mine.lock(key, { ttl: "10m" }, () => {}); // busy for 30 seconds
  assert.ok(left < 0);
  left = 5;
  await assert.rejects(mine.lock(key, { wait: 0 }, fail), dibs.BusyError);
  left = 5;
  await assert.rejects(mine.lock(key, { wait: "10s" }, fail), dibs.BusyError);
  left = 0;
  const holder = await keys.acquire(key, { ttl: "10m" });
  const first = mine.lock(key, { ttl: "10m" }, () => "first");
  await server.waiting(key, 1);
  left = 5;
  const second = keys.lock(key, () => "second");
  await server.waiting(key, 2);
  const order = [];
  const both = [first.then((v) => order.push(v)), second.then((v) => order.push(v))];
  await holder.release();
  await within(Promise.all(both));
  assert.deepEqual(order, ["first", "second"]);
  await mine.close();
  line.close();
});

test("a timeout bounds a body that comes byte by byte", async () => {
  const sockets = new Set();
  const slow = net.createServer((socket) => {
    sockets.add(socket);
    socket.once("data", () => socket.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"));
    const drip = setInterval(() => socket.write(" "), 20);
    socket.on("error", () => {}).on("close", () => { clearInterval(drip); sockets.delete(socket); });
  });
  await new Promise((resolve) => slow.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${slow.address().port}`;
  const mine = dibs.connect(address, { timeout: 200 });
  await within(assert.rejects(mine.held(unique()), (e) => e instanceof dibs.UnavailableError && /no answer within/.test(e.message)));
  await until("the connection is closed", () => sockets.size === 0);
  const well = await Line.to(server, true);
  const both = dibs.connect(`${address},${well.url.replace("http://", "")}`, { timeout: 4000 }); // half for each server
  assert.equal(await within(both.lock(unique(), { ttl: "10m" }, () => 1)), 1);
  await both.close({ wait: 0 });
  await mine.close({ wait: 0 });
  slow.close();
  for (const socket of sockets) socket.destroy();
  well.close();
});
