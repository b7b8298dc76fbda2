// A connection to PostgreSQL for tests, with the query of pg: Debian's pg wants Debian's Node. It
// speaks as much of the protocol as that takes: no password, no TLS, and all values are texts.

import { once } from "node:events";
import net from "node:net";

export class Postgres {
  #socket;
  #unread = Buffer.alloc(0);
  #waiting = []; // for the answers to queries, in order
  closed = false;

  // to connects to the URL of a database.
  static async to(text) {
    const url = new URL(text);
    const c = new Postgres();
    c.#socket = net.connect(Number(url.port), url.hostname);
    c.#socket.on("data", (data) => c.#read(data)).on("close", () => c.#end(new Error("the connection is closed"))).on("error", () => {});
    await once(c.#socket, "connect");
    const started = c.#next();
    c.#send("", int32(196_608), ...["user", url.username, "database", url.pathname.slice(1)].map(cstring), Buffer.alloc(1));
    await started;
    return c;
  }

  // query runs a statement with values, and resolves to its rows. Errors have code and detail.
  query(text, values = []) {
    const answered = this.#next();
    const parameters = values.map((v) => (v === null ? int32(-1) : Buffer.concat([int32(Buffer.byteLength(String(v))), Buffer.from(String(v))])));
    this.#send("P", cstring(""), cstring(text), int16(0));
    this.#send("B", cstring(""), cstring(""), int16(0), int16(values.length), ...parameters, int16(0));
    this.#send("D", Buffer.from("P"), cstring(""));
    this.#send("E", cstring(""), int32(0));
    this.#send("S");
    return answered;
  }

  end() {
    this.#socket.destroy();
  }

  #next() {
    return new Promise((resolve, reject) => {
      if (this.closed) return reject(new Error("the connection is closed"));
      this.#waiting.push({ resolve, reject, rows: [], names: [], error: null });
    });
  }

  #send(type, ...parts) {
    const body = Buffer.concat(parts);
    this.#socket.write(Buffer.concat([Buffer.from(type), int32(body.length + 4), body]));
  }

  #end(error) {
    this.closed = true;
    for (const { reject } of this.#waiting.splice(0)) reject(error);
  }

  #read(data) {
    this.#unread = Buffer.concat([this.#unread, data]);
    while (this.#unread.length > 4 && this.#unread.length > this.#unread.readInt32BE(1)) {
      const end = this.#unread.readInt32BE(1) + 1;
      this.#message(String.fromCharCode(this.#unread[0]), this.#unread.subarray(5, end));
      this.#unread = this.#unread.subarray(end);
    }
  }

  #message(type, body) {
    const answer = this.#waiting[0];
    if (type === "E") {
      const fields = Object.fromEntries(body.toString().split("\0").filter(Boolean).map((f) => [f[0], f.slice(1)]));
      answer.error = Object.assign(new Error(fields.M), { code: fields.C, detail: fields.D });
    } else if (type === "T") {
      for (let i = 0, at = 2; i < body.readInt16BE(0); i++) {
        const end = body.indexOf(0, at);
        answer.names.push(body.toString("utf8", at, end));
        at = end + 19;
      }
    } else if (type === "D") {
      const row = {};
      let at = 2;
      for (const name of answer.names) {
        const length = body.readInt32BE(at);
        row[name] = length < 0 ? null : body.toString("utf8", at + 4, at + 4 + length);
        at += 4 + Math.max(length, 0);
      }
      answer.rows.push(row);
    } else if (type === "C") {
      answer.command = body.toString("utf8", 0, body.length - 1).split(" ")[0];
    } else if (type === "Z") {
      this.#waiting.shift();
      if (answer.error) answer.reject(answer.error);
      else answer.resolve({ command: answer.command, rows: answer.rows });
    }
  }
}

function int16(n) {
  const b = Buffer.alloc(2);
  b.writeInt16BE(n);
  return b;
}

function int32(n) {
  const b = Buffer.alloc(4);
  b.writeInt32BE(n);
  return b;
}

const cstring = (text) => Buffer.from(`${text}\0`);
