// Two clients of the SDK for JavaScript, at the URLs of the arguments. For each key on stdin both call
// the tool at once, until each hears a result; what they hear is printed as JSON.
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

async function connect(url) {
  const client = new Client({ name: "agent", version: "1" });
  // The SDK says that a stream broke, but its call waits on, for a minute.
  client.onerror = (error) => error.message.startsWith("SSE stream disconnected") && client.broken?.abort("the stream broke");
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

async function call(client, key) {
  for (let tries = 1; ; tries++) {
    client.broken = new AbortController();
    try {
      const params = { name: "charge", arguments: { id: key }, _meta: { "io.github.dibs-go/idempotency-key": key } };
      const result = await client.callTool(params, undefined, { signal: client.broken.signal });
      return result.content[0].text;
    } catch (error) {
      if (tries === 4) return String(error);
    }
  }
}

const clients = await Promise.all(process.argv.slice(2).map(connect));
for await (const key of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await Promise.all(clients.map((client) => call(client, key)))));
}
