// Answers as servers and gateways may send them, in pieces of any size.

import assert from "node:assert/strict";
import net from "node:net";
import test from "node:test";
import { dibs, unique, within } from "./support.js";

const body = JSON.stringify({ answers: [{ state: "free" }] });
const head = (fields, status = "200 OK") => `HTTP/1.1 ${status}\r\nContent-Type: application/json\r\n${fields}\r\n`;
const sized = head(`Content-Length: ${body.length}\r\n`) + body;
const hex = (text) => `${text.length.toString(16)}\r\n${text}\r\n`;

// answered sends the same answer to each request, in pieces, and resolves to what held says and the connections.
async function answered(answer, { piece = answer.length, ends = false } = {}) {
  let connections = 0;
  const server = net.createServer((socket) => {
    connections++;
    socket.on("error", () => {}).on("data", async (asked) => {
      if (!asked.toString().includes("\r\n\r\n{")) return;
      for (let at = 0; at < answer.length && !socket.destroyed; at += piece) {
        socket.write(answer.slice(at, at + piece));
        await new Promise(setImmediate);
      }
      if (ends) socket.end();
    });
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const keys = dibs.connect(`http://127.0.0.1:${server.address().port}`);
  const said = [];
  for (let i = 0; i < 2; i++) said.push(await within(keys.held(unique())).catch((e) => e));
  await keys.close();
  server.close();
  return { said, connections };
}

for (const [what, answer, connections, options] of [
  ["a length", sized, 1],
  ["chunks", head("Transfer-Encoding: chunked\r\n") + hex(body.slice(0, 7)) + hex(body.slice(7)) + "0\r\n\r\n", 1],
  ["chunks, an extension and a trailer", `${head("transfer-encoding: Chunked\r\n")}${body.length.toString(16)};a=b\r\n${body}\r\n0\r\nX-A: b\r\n\r\n`, 1],
  ["informational answers before", `HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n${sized}`, 1],
  ["the end of the connection", head("") + body, 2, { ends: true }],
  ["Connection: close", head(`Connection: close\r\nContent-Length: ${body.length}\r\n`) + body, 2],
  ["HTTP/1.0", sized.replace("HTTP/1.1", "HTTP/1.0"), 2],
  ["no reason", sized.replace("200 OK", "200"), 1],
]) {
  for (const piece of [1, 3, answer.length]) {
    test(`an answer with ${what}, ${piece} bytes at a time`, async () => {
      assert.deepEqual(await answered(answer, { piece, ...options }), { said: [false, false], connections });
    });
  }
}

for (const [what, answer, options] of [
  ["not HTTP", "SSH-2.0-x\r\n\r\n"], ["HTTP/2", "HTTP/2 200\r\n\r\n"], ["a length that is none", head("Content-Length: -1\r\n") + body],
  ["chunks that are none", `${head("Transfer-Encoding: chunked\r\n")}${"x".repeat(2000)}`], ["a head without an end", `HTTP/1.1 200 OK\r\nA: ${"b".repeat(70_000)}`],
  ["half a body", sized.slice(0, -3), { ends: true }], ["half a chunk", head("Transfer-Encoding: chunked\r\n") + hex(body).slice(0, -5), { ends: true }],
]) {
  test(`an answer that is ${what}`, async () => {
    for (const e of (await answered(answer, options)).said) assert.ok(e instanceof dibs.UnavailableError, e);
  });
}

test("what follows an answer belongs to no request", async () => {
  const { said, connections } = await answered(sized + sized);
  assert.deepEqual(said, [false, false]);
  assert.equal(connections, 2);
});
