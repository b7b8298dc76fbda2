// lock.mjs SIDE ADDRESS SECONDS [TASKS]: so many callers at the same time lock and unlock keys of their own for
// a time. It prints how often a second, and for dibs how many HTTP calls a lock takes.
import { randomBytes } from "node:crypto";
import { createRequire } from "node:module";
import { Socket } from "node:net";

const [side, address, seconds, tasks = 1] = process.argv.slice(2);

// load requires a module of the peer.
function load(name) {
  try {
    return createRequire(process.env.REDLOCK + "/")(name);
  } catch {
    process.exit(3);
  }
}

let calls = 0;

async function dibs() {
  const { write } = Socket.prototype; // a call is one write
  Socket.prototype.write = function counted(...all) {
    calls++;
    return write.apply(this, all);
  };
  const { connect } = await import(process.env.DIBS_CLIENT);
  const keys = connect(address);
  return [(key) => keys.lock(key, { ttl: "30s" }, () => {}), () => keys.close()];
}

function redlock() {
  const [Redis, Redlock] = [load("ioredis"), load("redlock")];
  const client = new Redis(address);
  const locks = new Redlock([client]);
  return [async (key) => (await locks.lock(key, 30_000)).unlock(), () => client.disconnect()];
}

// raw is what many write themselves: SET NX PX, and a script that deletes what it has set.
function raw() {
  const Redis = load("ioredis");
  const client = new Redis(address);
  client.defineCommand("unlock", { numberOfKeys: 1, lua: "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1]) or 0" });
  return [async (key) => {
    const token = randomBytes(16).toString("hex");
    if ((await client.set(key, token, "PX", 30_000, "NX")) !== "OK") throw new Error("held");
    await client.unlock(key, token);
  }, () => client.disconnect()];
}

const [lock, close] = await { dibs, redlock, raw }[side]();

async function cycles(seconds) {
  let count = 0;
  calls = 0;
  const start = performance.now();
  await Promise.all(Array.from({ length: Number(tasks) }, async (_, task) => {
    for (let n = 0; performance.now() - start < 1000 * seconds; n++, count++) await lock(`${side}, task ${task}, cycle ${n}`);
  }));
  return [(1000 * count) / (performance.now() - start), side === "dibs" ? calls / count : ""];
}

await cycles(Math.max(seconds, 1)); // until V8 has compiled what is called often
console.log(...(await cycles(seconds)));
await close();
