// A server of the SDK for JavaScript with a tool that charges. It prints its port. GET /charges says how
// often it charged.
import express from "express";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

let charges = 0;
const app = express();
app.use(express.json());
app.get("/charges", (_, res) => res.send(String(charges)));
app.get("/mcp", (_, res) => res.status(405).end());
app.post("/mcp", async (req, res) => {
  const server = new McpServer({ name: "shop", version: "1" });
  server.registerTool("charge", { inputSchema: { id: z.string() } }, async () => ({
    content: [{ type: "text", text: `charge ${++charges}` }],
  }));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  res.on("close", () => server.close());
  await server.connect(transport);
  await transport.handleRequest(req, res, req.body);
});
const listener = app.listen(0, "127.0.0.1", () => console.log(listener.address().port));
