// Two clients of an SDK for JavaScript, at the URLs of the arguments. The first argument is the SDK's
// major version: 1, or 2, which speaks the revision 2026-07-28. For each key on stdin both call the tool
// at once, until each hears a result; what they hear is printed as JSON.
import { createInterface } from "node:readline";

const [version, ...urls] = process.argv.slice(2);
const modules = {
  1: ["@modelcontextprotocol/sdk/client/index.js", "@modelcontextprotocol/sdk/client/streamableHttp.js"],
  2: ["@modelcontextprotocol/client"],
};
const loaded = await Promise.all(modules[version].map((name) => import(name)));
const { Client, StreamableHTTPClientTransport } = Object.assign({}, ...loaded);

async function connect(url) {
  const client = new Client({ name: "agent", version: "1" }, { versionNegotiation: { mode: { pin: "2026-07-28" } } });
  // The SDK says that a stream broke, but its call waits on, for a minute.
  client.onerror = (error) => error.message.startsWith("SSE stream disconnected") && client.broken?.abort("the stream broke");
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

async function call(client, key) {
  for (let tries = 1; ; tries++) {
    client.broken = new AbortController();
    try {
      const params = { name: "charge", arguments: { id: key, cents: 1200 }, _meta: { "io.github.dibs-go/idempotency-key": key } };
      const options = { signal: client.broken.signal };
      const result = await client.callTool(params, ...(version === "1" ? [undefined, options] : [options]));
      return result.content[0].text;
    } catch (error) {
      if (tries === 4) return String(error);
    }
  }
}

const clients = await Promise.all(urls.map(connect));
for await (const key of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await Promise.all(clients.map((client) => call(client, key)))));
}
