// A worker with BullMQ. Many workers send invoices, and those of one customer one after the other. A job that
// runs again, because its worker died or was slow, sends no second invoice.
//
//   npm install bullmq ioredis && npm install --install-links PATH/clients/js
//   REDIS=redis://127.0.0.1:6379 DIBS_SERVER=unix:/tmp/dibs.sock node bullmq.mjs

import { DelayedError, Worker } from "bullmq";
import Redis from "ioredis";
import { HeldError, connect } from "dibs";

const keys = connect();

// send mails an invoice.
async function send(customer, invoice) {
  console.log(`begin ${customer} ${invoice}`);
  await new Promise((resolve) => setTimeout(resolve, 50));
  console.log(`end ${customer} ${invoice}`);
  return { sent: invoice };
}

async function work(job, token) {
  const { customer, invoice } = job.data;
  try {
    return await keys.lock(`customer ${customer}`, { wait: "2s" }, () =>
      keys.once(`invoice ${invoice}`, { keep: "168h" }, () => send(customer, invoice)));
  } catch (e) {
    if (!(e instanceof HeldError)) throw e; // BullMQ counts it as an attempt
    await job.moveToDelayed(Date.now() + 1000, token); // its customer's turn has not come: no attempt is lost
    throw new DelayedError();
  }
}

const connection = new Redis(process.env.REDIS, { maxRetriesPerRequest: null });
const worker = new Worker("invoices", work, { connection, concurrency: 8 });
await worker.waitUntilReady();
console.log("ready");
process.once("SIGTERM", () => worker.close().then(() => Promise.all([keys.close(), connection.quit()])));
