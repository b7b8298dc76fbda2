// Which leases the code runs under that asks for another one.

import { AsyncLocalStorage } from "node:async_hooks";
import { HeldError } from "./errors.js";

// under has the leases under which the code runs that asks.
export const under = new AsyncLocalStorage();

// waitsForItself refuses a wait that would never end.
export function waitsForItself(core, claim) {
  if (claim.wait === 0) return;
  let weight = claim.weight;
  for (let { hold, up } = under.getStore() ?? {}; hold; { hold, up } = up ?? {}) {
    const other = hold.claim;
    if (hold.core !== core || other.namespace !== claim.namespace || !other.bytes.equals(claim.bytes) || !hold.live) continue;
    weight += other.weight;
    if (other.permits !== claim.permits || weight > claim.permits) {
      throw new HeldError(`dibs: the key ${claim.shown} is held by the caller itself, and waiting would never end`, { key: claim.key, look: () => core.calls.holder(claim) });
    }
  }
}
