// TypeScript accepts and refuses here what the guide says of the client's types. It is not run.

import { connect, HeldError, type Client, type Lease } from "dibs";
import { forget, send } from "dibs/send";
import { Keeper } from "dibs/testing";

const keys: Client = connect("unix:/run/dibs/dibs.sock", { ttl: "30s", secretKeys: true });

export const fence: bigint = await keys.lock("k", { wait: "1s", signal: AbortSignal.timeout(5) }, async (lease) => lease.check().fence);
export const result: { charged: number } = await keys.once("k", { keep: "24h" }, async () => ({ charged: 100 }));
export const origin: { value: number; replayed: boolean } = await keys.once("k", { withOrigin: true }, () => 100);
// @ts-expect-error JSON has no dates
await keys.once("k", {}, async () => ({ at: new Date() }));
// @ts-expect-error there is no such option
await keys.lock("k", { waits: 1 }, () => {});
// @ts-expect-error the fence is not a number
export const wrong: number = (await keys.acquire("k")).fence;

const charge = keys.onceFor((order: { id: number }) => `order ${order.id}`, {}, async (order: { id: number }) => order.id);
export const id: number = await charge({ id: 1 });
// @ts-expect-error an order has an id
await charge({});

const lease: Lease = await keys.acquire(new Uint8Array([1]));
await lease.complete("data", { keep: 5 });
const ticket: string = await keys.reserve("k");
await keys.redeem(ticket, { grace: "5s" }, () => 1);
await keys.cancel(ticket).catch(async (e: unknown) => e instanceof HeldError && (await e.holder())?.host);

const keeper = new Keeper();
keeper.heldByAnother("k", { time: "3s" });
export const away: number = await keeper.away(() => keeper.connect({ label: "test" }).lock("k", async () => 5));
export const answer: Response = await send("/orders", { method: "POST", intention: "order 17", storage: sessionStorage, maxTries: 3 });
forget("order 17");
