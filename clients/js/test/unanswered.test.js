// Settlements that are sent and not answered.

import assert from "node:assert/strict";
import test from "node:test";
import { Line, Server, clock, dibs, problem, unique, until } from "./support.js";

const server = await Server.start();
const keys = server.keys();

// ENDS are what may come of a settlement that is sent: the answer (null: it is lost), whether the
// server does the call, the error, and whether the lease may have ended.
const { UnavailableError, RefusedError, UnauthorizedError, OverloadedError, LostError, DoneError } = dibs;
const ENDS = {
  "the answer is lost": [null, true, UnavailableError, true],
  "the store does not answer": [problem(503, "store-unavailable"), true, UnavailableError, true],
  "a proxy does not get the answer": [[502, "text/html", "<p>"], true, UnavailableError, true],
  "a proxy answers": [[200, "text/html", "<p>"], true, RefusedError, true],
  "a proxy knows no such page": [[404, "text/html", "<p>"], true, RefusedError, true],
  "the answer is another program's": [[200, "application/json", '{"answers":[]}'], true, RefusedError, true],
  "the server is stopping": [problem(503, "stopping"), false, UnavailableError, false],
  "the credential is refused": [problem(401, "unauthorized"), false, UnauthorizedError, false],
  "a bound is reached": [problem(429, "overloaded"), false, OverloadedError, false],
};
const CALLS = { complete: (lease) => lease.complete("record"), abandon: (lease) => lease.abandon(), undo: (lease) => lease.undo() };

// over is a test with a client over a line.
function over(name, fn) {
  test(name, async () => {
    const line = await Line.to(server);
    const mine = dibs.connect(line.url);
    line.heard = (verb) => verb === "settle" && line.sentOnce && clock.forward(11_000); // no time is left for another try
    try {
      await fn(line, mine);
    } finally {
      await mine.close();
      line.close();
    }
  });
}

// fails makes a call that ends in that way, and resolves to its error.
async function fails(line, end, call) {
  const [answer, done, Kind] = end;
  if (answer) line.says.settle = [answer, done];
  else line.cut("settle", 1000);
  line.sentOnce = true;
  let error;
  await assert.rejects(call(), (e) => {
    error = e;
    return e instanceof Kind;
  });
  assert.equal(error.message.split("dibs: ").length, 2);
  line.sentOnce = false;
  line.says = {};
  line.cut("settle", 0);
  return error;
}

for (const [name, end] of Object.entries(ENDS)) {
  const [, done, , doubt] = end;
  for (const [method, call] of Object.entries(CALLS)) {
    over(`${method}: ${name}`, async (line, mine) => {
      const lease = await mine.acquire(unique(), { ttl: "10m" });
      const { signal } = lease;
      await fails(line, end, () => call(lease));
      assert.equal(lease.held, !doubt);
      assert.equal(signal.aborted, doubt);
      if (doubt) {
        const said = (e) => e instanceof LostError && e.message.includes(`its ${method} was sent and not answered; call ${method} again`);
        assert.throws(() => lease.check(), said);
        assert.throws(() => lease.fence, said);
        assert.ok(said(signal.reason));
        await assert.rejects(lease.save("progress"), said);
        assert.equal(lease.left, 0);
      }
      await call(lease);
      assert.equal(done, doubt);
      assert.throws(() => lease.check(), /it was settled/);
      if (method === "complete") await assert.rejects(keys.acquire(lease.key, { maxAge: "1h" }), DoneError);
    });
  }

  over(`the end of a function says it: ${name}`, async (line, mine) => {
    const key = unique();
    const run = mine.lock(key, { ttl: "10m" }, (lease) => fails(line, end, () => CALLS.complete(lease)));
    if (doubt) await assert.rejects(run, (e) => e instanceof LostError && /may have ended while its function ran: its complete was sent and not answered/.test(e.message));
    else await run;
    await server.free(key);
  });
}

over("the end of a function makes an abandon or undo again", async (line, mine) => {
  for (const [method, attempt] of [["abandon", 2], ["undo", 1]]) {
    const key = unique();
    const run = mine.lock(key, { ttl: "10m" }, (lease) => fails(line, [[502, "text/html", "<p>"], false, UnavailableError], () => CALLS[method](lease)));
    await assert.rejects(run, LostError);
    await keys.lock(key, (lease) => assert.equal(lease.attempt, attempt));
  }
});

for (const done of [false, true]) {
  over(`a renewal does not restore trust, and is not a loss, if the lease ${done ? "has ended" : "stands"}`, async (line, mine) => {
    const lease = await mine.acquire(unique(), { ttl: "10m" });
    await fails(line, [[502, "text/html", "<p>"], done, UnavailableError], () => lease.complete("record"));
    await mine.acquire(unique(), { ttl: "3s" }); // the next to be renewed, which looks at all
    clock.forward(300_000);
    await until("it is renewed", () => line.calls.some(([verb]) => verb === "renew"));
    const other = await mine.acquire(unique()); // meanwhile the answer to the renewal comes
    assert.throws(() => lease.check(), /not answered/);
    await lease.complete("record");
    await assert.rejects(keys.acquire(lease.key, { maxAge: "1h" }), DoneError);
    await other.release();
  });
}

over("a record is found after the time of its lease", async (line, mine) => {
  const lease = await mine.acquire(unique(), { ttl: "10m" });
  await fails(line, ENDS["the answer is lost"], () => lease.complete("record"));
  clock.forward(700_000);
  assert.throws(() => lease.check(), LostError);
  await lease.complete("record");
});

over("what a stopping server refused was not done", async (line, mine) => { // so the same call at another one is not a repeated one
  const [lease, ticket] = [await mine.acquire(unique(), { ttl: "10m" }), await mine.reserve(unique())];
  await server.take(lease);
  await keys.cancel(ticket);
  for (const call of [() => lease.release(), () => mine.cancel(ticket)]) {
    let calls = 0;
    line.heard = () => { line.says = calls++ ? {} : { settle: [problem(503, "stopping"), false] }; };
    await assert.rejects(call(), LostError);
    assert.equal(calls, 2);
  }
});

over("the store decides what is repeated", async (line, mine) => {
  for (const [method, call] of Object.entries(CALLS)) {
    const lease = await mine.acquire(unique(), { ttl: "10m" });
    await fails(line, [[502, "text/html", "<p>"], false, UnavailableError], () => call(lease));
    await server.take(lease);
    if (method === "complete") { // a record may be written twice, so this is certain
      await assert.rejects(call(lease), LostError);
      await assert.rejects(call(lease), LostError);
    } else {
      await call(lease);
    }
    assert.equal(lease.held, false);
  }
});

over("a result that may be stored", async (line, mine) => {
  const key = unique();
  await fails(line, [null, true, dibs.NotKeptError], () => mine.once(key, () => 1));
  assert.equal(await keys.once(key, () => 2), 1);
});

over("a call that is under way aborts nothing, and is not trusted", async (line, mine) => {
  const lease = await mine.acquire(unique(), { ttl: "10m" });
  const gate = line.hold("settle", "before");
  const done = lease.complete("record");
  await gate.arrived;
  assert.equal(lease.held, false);
  assert.equal(lease.signal.aborted, false);
  gate.go();
  await done;
  assert.equal(lease.signal.aborted, false);
});

over("a server that is away did nothing", async (line) => {
  const mine = dibs.connect(line.url);
  line.keeps = false;
  const lease = await mine.acquire(unique(), { ttl: "10m" });
  line.close();
  const hurry = setInterval(() => clock.forward(1000), 10).unref(); // it is tried again for 5 or 10 s
  for (const call of Object.values(CALLS)) {
    await assert.rejects(call(lease), UnavailableError);
    assert.equal(lease.held, true);
  }
  await assert.rejects(lease.release(), UnavailableError);
  clearInterval(hurry);
  assert.equal(lease.held, false);
  await mine.close({ wait: 0 });
});

test("what another server lost is lost", async () => { // a server that is away makes no call a repeated one
  const [a, b] = [await Line.to(server, true), await Line.to(server, true)];
  a.keeps = false;
  const both = `${a.url},${b.url.replace("http://", "")}`;
  const [mine, others] = [dibs.connect(both), dibs.connect(both)];
  const lease = await mine.acquire(unique(), { ttl: "10m" });
  await server.take(lease);
  const ticket = await others.reserve(unique());
  await keys.cancel(ticket);
  a.close();
  await assert.rejects(lease.release(), LostError);
  await assert.rejects(others.cancel(ticket), LostError);
  assert.deepEqual(b.calls, [["settle", 1], ["settle", 1]]);
  await mine.close();
  await others.close();
  b.close();
});
