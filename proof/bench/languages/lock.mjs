// Locks and unlocks keys of its own for a time, and prints how often a second.
import { createRequire } from "node:module";

const [side, address, seconds] = process.argv.slice(2);

async function locker() {
  if (side === "dibs") {
    const { connect } = await import(process.env.DIBS_CLIENT);
    const keys = connect(address);
    return [(key) => keys.lock(key, { ttl: "30s" }, () => {}), () => keys.close()];
  }
  const require = createRequire(process.env.REDLOCK + "/");
  let Redis, Redlock;
  try {
    Redis = require("ioredis");
    Redlock = require("redlock");
  } catch {
    process.exit(3);
  }
  const client = new Redis(address);
  const redlock = new Redlock([client]);
  return [async (key) => (await redlock.lock(key, 30_000)).unlock(), () => client.disconnect()];
}

const [lock, close] = await locker();

async function cycles(seconds) {
  let count = 0;
  const start = performance.now();
  while (performance.now() - start < 1000 * seconds) {
    await lock(`${side}, cycle ${count}`);
    count++;
  }
  return (1000 * count) / (performance.now() - start);
}

await cycles(seconds / 4);
console.log(await cycles(seconds));
await close();
