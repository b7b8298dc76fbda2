// HTTP/1.1 over kept connections, one write for a request.

import net from "node:net";
import tls from "node:tls";
import { under } from "./callers.js";

const EMPTY = Buffer.alloc(0);
const MAX_HEAD = 65_536; // bytes of an answer's head
const MAX_IDLE = 256; // connections to a server that are kept

// Failure is why a request has no answer. sent says that the server may have got it, and stale that
// its connection was an old one, which the server may have closed before.
export class Failure extends Error {
  constructor(cause, { sent = false, stale = false, untrusted = false } = {}) {
    super(cause.message || cause.code, { cause });
    Object.assign(this, { code: cause.code, sent, stale, untrusted });
  }
}

// Connections sends requests. headers are those of each.
export class Connections {
  #idle = new Map(); // by server, the last one first
  #all = new Set();
  #head;
  #closed = false;

  constructor(headers) {
    this.#head = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`).join("");
  }

  // request sends a request and resolves to {status, type, body}, or rejects with a Failure. ends is
  // called with the function that gives the request up. That one is given a function, which returns what to
  // reject with, and is told whether the server may have got the request.
  request(server, method, path, text, ends) {
    return new Promise((resolve, reject) => {
      if (this.#closed) throw new Failure(new Error("the client is closed"));
      const connection = this.#kept(server) ?? this.#open(server);
      const settle = (fn, value) => {
        if (connection.settle !== settle) return;
        connection.settle = null;
        fn(value);
      };
      connection.settle = settle;
      connection.resolve = resolve;
      connection.reject = reject;
      ends((reason) => {
        if (connection.settle !== settle) return; // it has its answer, and another request may have the connection
        settle(reject, reason(connection.connected));
        connection.socket.destroy();
      });
      connection.send(`${method} ${path} HTTP/1.1\r\nHost: ${server.host}\r\n${this.#head}Content-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
    });
  }

  // #kept is a connection that is kept, unless its end has just been heard of.
  #kept(server) {
    const idle = this.#idle.get(server) ?? [];
    while (idle.length > 0 && !idle.at(-1).socket.writable) idle.pop();
    return idle.pop();
  }

  #open(server) {
    // What the socket calls runs under no lease of the code that happens to be here.
    const connection = under.run(undefined, () => new Connection(server, () => this.#keep(server, connection)));
    this.#all.add(connection);
    connection.socket.once("close", () => {
      this.#all.delete(connection);
      const idle = this.#idle.get(server);
      if (idle?.includes(connection)) idle.splice(idle.indexOf(connection), 1);
    });
    return connection;
  }

  // #keep keeps a connection for another request.
  #keep(server, connection) {
    if (!this.#idle.has(server)) this.#idle.set(server, []);
    const idle = this.#idle.get(server);
    if (idle.length >= MAX_IDLE) return connection.socket.destroy();
    connection.socket.unref();
    idle.push(connection);
  }

  close() {
    this.#closed = true;
    for (const { socket } of this.#all) socket.destroy();
  }
}

// Connection is a socket with at most one request under way.
class Connection {
  settle = null; // ends the request that is under way
  reused = false;
  connected = false;

  constructor(server, keep) {
    const { host } = server.to;
    this.keep = keep;
    this.socket = server.tls ? tls.connect({ ...server.to, servername: net.isIP(host) ? "" : host, rejectUnauthorized: true, ALPNProtocols: ["http/1.1"] })
      : net.connect(server.to);
    this.socket.setNoDelay(true);
    this.socket.on(server.tls ? "secureConnect" : "connect", () => { this.connected = true; });
    this.socket.on("data", (chunk) => this.#take(chunk));
    this.socket.on("end", () => this.#ended());
    this.socket.on("error", (error) => this.#fail(error));
    this.socket.on("close", () => this.#fail(Object.assign(new Error("the connection was closed"), { code: "ECONNRESET" })));
  }

  send(text) {
    this.answer = new Answer();
    this.socket.ref();
    this.socket.write(text);
  }

  #take(chunk) {
    if (!this.settle) return void this.socket.destroy(); // nobody has asked
    try {
      if (this.answer.take(chunk)) this.#done();
    } catch (e) {
      this.#fail(e);
    }
  }

  #done() {
    const { settle, answer, resolve } = this;
    this.reused = true;
    settle(resolve, answer.value);
    if (answer.keeps) this.keep();
    else this.socket.destroy();
  }

  // #ended takes the end of what the server sends, which ends an answer without a length.
  #ended() {
    if (this.settle && this.answer.end()) this.#done();
  }

  #fail(error) {
    const stale = this.reused && /^(ECONNRESET|EPIPE|ECONNABORTED)$/.test(error.code);
    this.settle?.(this.reject, new Failure(error, { sent: this.connected, stale, untrusted: Boolean(this.socket.authorizationError) }));
    this.socket.destroy();
  }
}

// Answer is an answer as it arrives.
class Answer {
  keeps = false; // the connection can be used again
  #rest = EMPTY;
  #head = null;
  #body = [];
  #left = 0; // bytes of the body, or of the chunk that arrives
  #chunked = false;

  get value() {
    const { status, type } = this.#head;
    return { status, type, body: this.#body.length === 1 ? this.#body[0] : Buffer.concat(this.#body) };
  }

  // take takes what has arrived, and returns whether it is the whole answer.
  take(chunk) {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    while (!this.#head) if (!this.#readHead()) return false;
    return this.#chunked ? this.#readChunks() : this.#readBody();
  }

  // end returns whether the end of the connection ends the answer.
  end() {
    this.keeps = false;
    return this.#head !== null && this.#left === Infinity;
  }

  // #readHead reads a head, and returns whether there was one. That of an informational answer is passed over.
  #readHead() {
    const length = this.#rest.indexOf("\r\n\r\n");
    if (length > MAX_HEAD || (length < 0 && this.#rest.length > MAX_HEAD)) throw new Error("the head of the answer is too long");
    if (length < 0) return false;
    const text = this.#rest.toString("latin1", 0, length);
    const [, minor, digits] = /^HTTP\/1\.([01]) (\d{3})[ \r]/.exec(`${text}\r`) ?? [];
    if (!digits) throw new Error("the answer is not HTTP/1.1");
    this.#rest = this.#rest.subarray(length + 4);
    const field = (name) => new RegExp(`\\r\\n${name}:[ \\t]*([^\\r\\n]*)`, "i").exec(text)?.[1].trim();
    const status = Number(digits);
    if (status < 200) return true;
    const connection = (field("connection") ?? "").toLowerCase();
    this.keeps = minor === "1" ? !connection.includes("close") : connection.includes("keep-alive");
    this.#chunked = /\bchunked$/i.test(field("transfer-encoding") ?? "");
    const size = field("content-length");
    if (size !== undefined && !/^\d+$/.test(size)) throw new Error("the answer has no valid Content-Length");
    this.#left = this.#chunked || status === 204 || status === 304 ? 0 : Number(size ?? Infinity);
    this.#head = { status, type: field("content-type") ?? "" };
    return true;
  }

  #readBody() {
    const part = this.#rest.subarray(0, this.#left);
    if (part.length > 0) this.#body.push(part);
    this.#left -= part.length;
    this.#rest = this.#rest.subarray(part.length);
    if (this.#rest.length > 0) this.keeps = false; // more than the answer
    return this.#left === 0;
  }

  // #readChunks reads chunks, which a server may send that does not know the length.
  #readChunks() {
    for (;;) {
      if (this.#left > 0) {
        const part = this.#rest.subarray(0, this.#left);
        this.#body.push(part);
        this.#left -= part.length;
        this.#rest = this.#rest.subarray(part.length);
        if (this.#left > 0) return false;
      }
      const line = /^(?:\r\n)?([0-9a-f]{1,8})[^\r\n]*\r\n/i.exec(this.#rest.toString("latin1", 0, 1024));
      if (!line) {
        if (this.#rest.length > 1024) throw new Error("the answer has no valid chunks");
        return false;
      }
      this.#left = parseInt(line[1], 16);
      if (this.#left === 0) { // trailers may follow
        const tail = this.#rest.toString("latin1", line[0].length - 2);
        const end = tail.indexOf("\r\n\r\n");
        if (end >= 0 && tail.length > end + 4) this.keeps = false; // more than the answer
        return end >= 0;
      }
      this.#rest = this.#rest.subarray(line[0].length);
    }
  }
}
