// Leases that end with a transaction of the application, on PostgreSQL. DIBS_DATABASE is the URL of a
// database that the tests may fill. PG_MODULE names pg, if it is there, which then makes the
// connections.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import fs from "node:fs";
import test from "node:test";
import { Postgres } from "./postgres.js";
import { Server, dibs, dir, unique } from "./support.js";

const DATABASE = process.env.DIBS_DATABASE;
const skip = DATABASE ? false : "DIBS_DATABASE is not set";
const fail = () => assert.fail("it runs");
const { LostError, WrongTransactionError, RefusedError, ForbiddenError, DoneError, HeldError, NotKeptError, RememberedError } = dibs;

async function open(role = "app") {
  const url = DATABASE.replace("//postgres@", `//${role}@`);
  if (!process.env.PG_MODULE) return Postgres.to(url);
  const { default: pg } = await import(process.env.PG_MODULE);
  const client = new pg.Client(url.replace(/\?.*/, ""));
  client.on("error", () => {});
  await client.connect();
  return client;
}

let [server, guarded, keys, app] = [];

test.before(async () => {
  if (skip) return;
  const store = `${DATABASE}&schema=leases`;
  execFileSync(process.env.DIBS_PROGRAM, ["migrate", "--store", store]);
  const owner = await open("postgres");
  for (const statement of [
    "CREATE TABLE effects (id text NOT NULL)", "CREATE ROLE app LOGIN", "CREATE ROLE nobody LOGIN", "GRANT USAGE ON SCHEMA leases TO app, nobody",
    "GRANT INSERT, SELECT ON effects TO app", "GRANT EXECUTE ON FUNCTION leases.dibs_settle_in, leases.dibs_reserve_in TO app",
  ]) await owner.query(statement);
  await owner.end();
  const tokens = `${dir()}/tokens`;
  fs.writeFileSync(tokens, `shop ${createHash("sha256").update("secret").digest("hex")} shop use\n`);
  // Two servers of one store. With a credential the server decides the namespace.
  server = await Server.start({ store });
  guarded = await Server.start({ flags: ["--tokens", tokens], store, listen: "127.0.0.1:0" });
  keys = server.keys({ schema: "leases" });
  app = await open();
});
test.after(() => app?.end());

const effect = (key, client = app) => client.query("INSERT INTO effects VALUES ($1)", [key]);
const effects = async (key) => Number((await app.query("SELECT count(*) AS n FROM effects WHERE id = $1", [key])).rows[0].n);

// transaction runs a function after the effect of a key.
async function transaction(key, fn, client = app) {
  await client.query("BEGIN");
  try {
    await effect(key, client);
    const value = await fn(client);
    await client.query("COMMIT");
    return value;
  } catch (e) {
    await client.query("ROLLBACK");
    throw e;
  }
}

const record = (key) => keys.acquire(key, { wait: 0, maxAge: "any" }).then((lease) => lease.release(), (e) => (e instanceof DoneError ? e.record : Promise.reject(e)));

test("the effect and the record are committed together", { skip }, async () => {
  const key = unique("é");
  const data = Buffer.from([0xff, 0x5c, 0x27, 0]);
  await keys.lock(key, (lease) => transaction(key, () => lease.completeIn(app, data, { keep: "1h" })));
  assert.deepEqual([await effects(key), await record(key)], [1, data]);
});

test("a transaction that is rolled back leaves nothing, and may be made again", { skip }, async () => {
  const key = unique();
  await keys.lock(key, async (lease) => {
    const settle = (error) => transaction(key, async () => {
      await lease.completeIn(app, "record");
      if (error) throw error;
    });
    await assert.rejects(settle(new RangeError()), RangeError);
    assert.equal(await effects(key), 0);
    await settle();
  });
  assert.deepEqual([await effects(key), String(await record(key))], [1, "record"]);
});

test("a rolled back transaction gives the key back", { skip }, async () => {
  const key = unique();
  await assert.rejects(keys.lock(key, { ttl: "10m" }, (lease) => transaction(key, async () => {
    await lease.completeIn(app, "record");
    throw new RangeError();
  })), RangeError);
  assert.deepEqual([await effects(key), await record(key)], [0, undefined]);
  await server.free(key);
});

test("without data it releases", { skip }, async () => {
  const key = unique();
  const lease = await keys.acquire(key, { ttl: "10m" });
  await transaction(key, () => lease.completeIn(app, null));
  await lease.release();
  assert.deepEqual([await effects(key), await record(key)], [1, undefined]);
});

test("a lost lease rolls back", { skip }, async () => {
  const key = unique();
  await assert.rejects(keys.lock(key, { ttl: "10m" }, async (lease) => {
    await server.take(lease);
    await transaction(key, () => lease.completeIn(app, "record"));
  }), LostError);
  assert.deepEqual([await effects(key), await record(key)], [0, undefined]);
});

test("what is refused", { skip }, async () => {
  for (const [role, options, Kind, said] of [
    ["app", { schema: "leases" }, WrongTransactionError, /written nothing/], ["app", { schema: "information_schema" }, RefusedError, /dibs migrate/],
    ["app", { schema: 'no"where' }, RefusedError, /function "no""where"/], ["app", { schema: "leases", prefix: "old" }, RefusedError, /old_settle_in/],
    ["nobody", { schema: "leases" }, ForbiddenError, /GRANT/],
  ]) {
    const [key, client] = [unique(), await open(role)];
    await assert.rejects(server.keys(options).lock(key, (lease) => lease.completeIn(client, "record")), (e) => {
      assert.ok(e instanceof Kind && said.test(e.message), `${said}: ${e}`);
      assert.equal(e.message.split("dibs: ").length, 2);
      return true;
    });
    await client.end();
    await server.free(key);
  }
  await keys.lock(unique(), async (lease) => {
    await assert.rejects(lease.completeIn({}, "record"), /not a client of pg/);
    await assert.rejects(lease.completeIn({ query() {}, totalCount: 1 }, "record"), /is a pool/);
    await assert.rejects(lease.completeIn(app, 42), TypeError);
    await assert.rejects(lease.completeIn(app, "record", { kept: 1 }), /there are keep/);
  });
  await keys.lock(unique(), { permits: 2 }, (lease) => assert.rejects(lease.completeIn(app, "record"), TypeError));
});

test("the credential decides the namespace", { skip }, async () => {
  const mine = dibs.connect(guarded.url.replace("://", "://:secret@"), { schema: "leases" });
  const [key, other] = [unique(), unique()];
  await mine.lock(key, (lease) => transaction(key, () => lease.completeIn(app, "record")));
  await assert.rejects(mine.acquire(key, { maxAge: "any" }), DoneError);
  const ticket = await transaction(key, () => mine.reserveIn(app, other));
  await assert.rejects(mine.lock(other, { wait: 0 }, fail), HeldError);
  assert.equal(await mine.redeem(ticket, { wait: 0 }, () => 1), 1);
  await mine.close();
});

test("a place in a transaction", { skip }, async () => {
  const key = unique();
  const ticket = await transaction(key, () => keys.reserveIn(app, key, { ttl: "1h", grace: "1m", label: "later" }));
  assert.equal((await server.entry(key)).reserved, 1);
  await assert.rejects(keys.lock(key, { wait: 0 }, fail), HeldError);
  assert.equal(await keys.redeem(ticket, () => 2), 2);
  await assert.rejects(transaction(key, async () => { await keys.reserveIn(app, key); throw new RangeError(); }), RangeError);
  await server.free(key);
});

test("once in a transaction", { skip }, async () => {
  const key = unique();
  let runs = 0;
  for (let i = 0; i < 2; i++) {
    assert.deepEqual(await keys.once(key, { keep: "1h", in: app }, async () => { runs++; await effect(key); return { id: 17 }; }), { id: 17 });
  }
  assert.deepEqual([runs, await effects(key)], [1, 1]);
  assert.equal(await keys.once(unique(), { in: app }, (lease) => lease.held), true); // it has written nothing
});

test("an error of once rolls back", { skip }, async () => {
  const key = unique();
  const declined = async () => { await effect(key); throw new RangeError("declined"); };
  await assert.rejects(keys.once(key, { in: app }, declined), RangeError);
  await assert.rejects(keys.once(key, { in: app }, async () => { await effect(key); return new Date(); }), NotKeptError);
  await assert.rejects(keys.once(key, { in: app, remember: RangeError }, declined), RangeError);
  await assert.rejects(keys.once(key, { in: app }, fail), RememberedError);
  assert.equal(await effects(key), 0);
});

test("once wants its own transaction", { skip }, async () => {
  const key = unique();
  await assert.rejects(keys.once(key, { in: app, remember: Error }, async () => {
    await effect(key);
    for (const word of ["COMMIT", "BEGIN"]) await app.query(word);
    await effect(key);
  }), (e) => e instanceof WrongTransactionError && /"key \w+": the function of once sent COMMIT or ROLLBACK, .*Remove that statement/.test(e.message));
  assert.equal(await effects(key), 1); // which the function committed itself
  await assert.rejects(transaction(key, () => keys.once(key, { in: app }, fail)), (e) => e instanceof WrongTransactionError && /already/.test(e.message));
  await assert.rejects(keys.once(key, { in: {} }, fail), TypeError);
  await server.free(key);
});

test("PostgreSQL answers COMMIT with ROLLBACK", { skip }, async () => { // a statement failed after the function, and no caller saw it
  for (const says of [true, false]) { // what was answered
    const [key, client] = [unique(), await open()];
    const broken = (fails) => ({
      query: async (text, values) => {
        if (fails && text === "COMMIT") await assert.rejects(client.query("SELECT 1/0"));
        const { command, rows } = await client.query(text, values);
        return says ? { command, rows } : { rows };
      },
    });
    const run = (fails) => keys.once(key, { ttl: "10m", in: broken(fails), remember: Error }, async () => { await effect(key, client); return "result"; });
    await assert.rejects(run(true), (e) => e instanceof WrongTransactionError && /nothing was done/.test(e.message));
    assert.equal(await effects(key), 0);
    await server.free(key);
    assert.equal(await run(false), "result");
    assert.equal(await keys.once(key, fail), "result");
    assert.equal(await effects(key), 1);
    await client.end();
  }
});

test("what cannot be stored rolls back", { skip }, async () => {
  const key = unique();
  for (let i = 0; i < 2; i++) { // nothing was done, so the next caller runs
    await assert.rejects(keys.once(key, { in: app }, async () => { await effect(key); return new Map(); }), (e) => e instanceof NotKeptError && e.rerun && /rolled back/.test(e.message));
  }
  assert.equal(await effects(key), 0);
  await server.free(key);
});

test("the answer to COMMIT is lost", { skip }, async () => {
  for (const before of [false, true]) { // the connection breaks after it was carried out, or before
    const [key, client] = [unique(), await open()];
    const cut = {
      query: async (text, values) => {
        if (text !== "COMMIT") return client.query(text, values);
        if (!before) await client.query(text);
        await client.end();
        throw new Error("cut");
      },
    };
    const run = keys.once(key, { in: cut }, () => "result");
    if (before) await assert.rejects(run, /cut/);
    else assert.equal(await run, "result");
    assert.equal(await keys.once(key, { in: app }, () => "again"), before ? "again" : "result");
  }
});
