// A service with Express. A charge that is asked for twice, by a double click or a retry, is made once.
//
//   npm install express && npm install --install-links PATH/clients/js
//   DIBS_SERVER=unix:/tmp/dibs.sock node express.mjs

import express from "express";
import { HeldError, connect } from "dibs";

const keys = connect();
const app = express();
let charges = 0;

// Both requests get the same charge; the second one is told that it is an earlier one.
app.post("/orders/:order/charge", async (request, response) => {
  const { value, replayed } = await keys.once(`charge ${request.params.order}`, { keep: "24h", withOrigin: true }, async () => {
    charges++; // call the payment provider here
    return { charge: charges };
  });
  response.status(replayed ? 200 : 201).json(value);
});

// One request at a time makes the report of a day. Another one is refused at once, and can come again.
app.post("/reports/:day", async (request, response) => {
  await keys.lock(`report ${request.params.day}`, { wait: 0 }, async (lease) => {
    await new Promise((resolve) => setTimeout(resolve, 500));
    lease.check(); // before each write
    response.json({ fence: String(lease.fence) });
  });
});

app.use((error, request, response, next) => {
  if (!(error instanceof HeldError)) return next(error);
  response.status(409).set("Retry-After", "1").json({ error: "another request is at it" });
});

const server = app.listen(process.env.PORT ?? 3000, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
process.once("SIGTERM", () => server.close(() => keys.close()));
