// What the tests share: real servers, a line that can be cut, a clock that can be moved, and
// processes. DIBS_PROGRAM is the path of dibs.

import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { performance } from "node:perf_hooks";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

// LIMIT is how long anything may take, in milliseconds.
export const LIMIT = 60_000;

// clock moves the client's clock: import this file before dibs.
const real = performance.now.bind(performance);
let moved = 0;
Object.defineProperty(performance, "now", { value: () => real() + moved });
export const clock = { forward: (ms) => { moved += ms; } };
export const dibs = await import("dibs");

const atEnd = [];
process.on("exit", () => atEnd.reverse().forEach((end) => end()));
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => process.exit(1));

// dir makes a folder that is removed at the end. Its name is short, because the path of a socket
// must be.
export function dir() {
  const made = fs.mkdtempSync(`${tmpdir()}/dibs`);
  atEnd.push(() => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

// until waits until the function says what is true.
export async function until(what, fn) {
  const ends = real() + LIMIT;
  for (;;) {
    const found = await fn();
    if (found) return found;
    if (real() > ends) throw new Error(`after ${LIMIT} ms still not: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

// within is the promise, or an error after the limit.
export function within(promise, what = "it is done") {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`after ${LIMIT} ms still not: ${what}`)), LIMIT);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

// unique is a key of its own.
export const unique = (name = "key") => `${name} ${randomBytes(4).toString("hex")}`;

// Server is a `dibs serve` on a SQLite file.
export class Server {
  static async start({ flags = [], listen, store } = {}) {
    const s = new Server();
    s.dir = dir();
    s.flags = flags;
    s.store = store ?? `sqlite:${s.dir}/dibs.db`;
    await s.start(listen ?? `unix:${s.dir}/s`);
    atEnd.push(() => s.child.kill("SIGKILL"));
    return s;
  }

  // start starts the server, or starts it again at the address it had.
  async start(listen = this.url.replace(/^http(\+|:\/\/)/, "")) {
    const program = process.env.DIBS_PROGRAM;
    if (!program) throw new Error("DIBS_PROGRAM is not set: the path of the program dibs");
    const log = `${this.dir}/log`;
    const out = fs.openSync(log, "w");
    this.child = spawn(program, ["serve", "--store", this.store, "--listen", listen, ...this.flags], { stdio: ["ignore", out, out] });
    this.ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.unref();
    fs.closeSync(out);
    this.url = await until(`the server listens: see ${log}`, () => /listening on (\S+?),/.exec(fs.readFileSync(log, "utf8"))?.[1]);
  }

  keys(options) {
    return dibs.connect(this.url, options);
  }

  async kill() {
    this.child.ref();
    this.child.kill("SIGKILL");
    await this.ended;
  }

  // request makes a call that the client has not, and resolves to the answer's text.
  request(method, path, body) {
    return new Promise((resolve, reject) => {
      const socketPath = /unix:(.*)/.exec(this.url)?.[1];
      const to = socketPath ? { socketPath, host: "localhost" } : { host: "127.0.0.1", port: /\d+$/.exec(this.url)[0] };
      const request = http.request({ ...to, agent: false, method, path, headers: { "Content-Type": "application/json" } }, (response) => {
        let text = "";
        response.setEncoding("utf8").on("data", (c) => { text += c; }).on("end", () => resolve(text)).on("error", reject);
      });
      request.on("error", reject).end(body && JSON.stringify(body));
    });
  }

  // entry is what the server lists of a key, or null.
  async entry(key) {
    const line = await this.request("GET", `/v1/keys?places=true&key=${encodeURIComponent(key)}`);
    return line ? JSON.parse(line) : null;
  }

  async waiters(key) {
    return (await this.entry(key))?.waiters ?? 0;
  }

  waiting(key, n) {
    return until(`${n} wait for ${key}`, async () => (await this.waiters(key)) === n);
  }

  // free waits until nothing is left of the key. What is undone in the background may take a moment,
  // but no lease of these tests runs out in that time.
  free(key) {
    return until(`${key} is free`, async () => {
      const found = await this.entry(key);
      return !found || ((found.runs ?? []).length === 0 && (found.places ?? []).length === 0);
    });
  }

  // take ends a lease as an operator would.
  async take(lease) {
    const said = await this.request("POST", "/v1/keys/release", { key: lease.key, id: lease.id });
    if (!said.includes('"done":1')) throw new Error(said);
  }
}

// Proxy is a `dibs proxy` on a SQLite file.
export class Proxy {
  static async start(upstream, flags = []) {
    const p = new Proxy();
    p.log = `${dir()}/log`;
    p.flags = ["--upstream", upstream, "--store", `sqlite:${p.log}.db`, ...flags];
    await p.start("127.0.0.1:0");
    atEnd.push(() => p.child.kill("SIGKILL"));
    return p;
  }

  // start starts the proxy, or starts it again at the address it had.
  async start(listen = this.url.slice("http://".length)) {
    const out = fs.openSync(this.log, "w");
    this.child = spawn(process.env.DIBS_PROGRAM, ["proxy", "--listen", listen, ...this.flags], { stdio: ["ignore", out, out] });
    fs.closeSync(out);
    this.ended = new Promise((resolve) => this.child.once("exit", resolve));
    const address = await until(`the proxy listens: see ${this.log}`, () => /listening on (?:http:\/\/)?([\d.:]+)/.exec(fs.readFileSync(this.log, "utf8"))?.[1]);
    this.url = `http://${address}`;
  }

  async kill() {
    this.child.kill("SIGKILL");
    await this.ended;
  }
}

// Line forwards calls to a server. It can lose, hold and change answers, and counts the calls.
export class Line {
  calls = []; // verb and elements of each
  #cut = {};
  #gates = {};
  change = (body) => body;
  says = {}; // by verb: [status, type, body] of its answers after those that are lost, and whether the server does the call before
  heard = () => {}; // is called for each call, with its verb and its body
  keeps = true; // connections, after an answer

  // to makes a line to a server. It listens on a socket, or on TCP.
  static async to(server, tcp = false) {
    const line = new Line();
    const path = tcp ? { host: "127.0.0.1", port: 0 } : `${dir()}/line`;
    line.listener = http.createServer((request, response) => line.#serve(/unix:(.*)/.exec(server.url)[1], request, response));
    await new Promise((resolve) => line.listener.listen(path, resolve));
    line.listener.unref();
    line.url = tcp ? `http://127.0.0.1:${line.listener.address().port}` : `unix:${path}`;
    return line;
  }

  // cut loses the next answers to calls of the verb, after the server has done them.
  cut(verb, times) {
    this.#cut[verb] = times;
  }

  // hold stops the next call of the verb "before" or "after" the server does it. It resolves to
  // {arrived, go, done}: go lets the call go on, and done resolves when the server has done it.
  hold(verb, when) {
    const gate = {};
    gate.arrived = new Promise((resolve) => { gate.arrive = resolve; });
    gate.open = new Promise((resolve) => { gate.go = resolve; });
    gate.done = new Promise((resolve) => { gate.did = resolve; });
    this.#gates[verb + when] = gate;
    return gate;
  }

  async #gate(verb, when) {
    const gate = this.#gates[verb + when];
    if (!gate) return;
    delete this.#gates[verb + when];
    gate.arrive();
    await gate.open;
    return gate;
  }

  async #serve(socketPath, request, response) {
    try {
      const text = await read(request);
      const verb = request.url.split("/").pop();
      const asked = JSON.parse(text);
      this.calls.push([verb, Object.values(asked).find(Array.isArray).length]);
      this.heard(verb, asked);
      response.shouldKeepAlive &&= this.keeps;
      const [said, done] = (!(this.#cut[verb] > 0) && this.says[verb]) || [];
      const say = () => response.writeHead(said[0], { "content-type": said[1] }).end(said[2]);
      if (said && !done) return void say();
      const gate = await this.#gate(verb, "before");
      const answer = await new Promise((resolve, reject) => {
        const { host: _, ...headers } = request.headers;
        const on = http.request({ socketPath, agent: false, method: request.method, path: request.url, headers: { ...headers, connection: "close", host: "localhost" } }, resolve);
        on.on("error", reject).end(text);
        response.on("close", () => response.writableFinished || on.destroy());
      });
      const body = await read(answer);
      gate?.did();
      (await this.#gate(verb, "after"))?.did();
      if (this.#cut[verb] > 0) {
        this.#cut[verb]--;
        request.socket.destroy();
        return;
      }
      if (said) return void say();
      response.writeHead(answer.statusCode, { "content-type": answer.headers["content-type"] });
      response.end(this.change(body));
    } catch {
      request.socket.destroy();
    }
  }

  close() {
    this.listener.close();
    this.listener.closeAllConnections();
  }
}

async function read(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

// problem is an answer of dibs serve.
export const problem = (status, name) => [status, "application/problem+json", JSON.stringify({ type: `https://example.org/serve.md#${name}`, title: name })];

const home = fileURLToPath(new URL("..", import.meta.url));

// script runs JavaScript in a process of its own, which has the server's URL and connect.
export function script(url, text, { env = {}, args = [], bare = false, stderr = process.env.DIBS_TEST_STDERR ? "inherit" : "ignore" } = {}) {
  const imports = bare ? "" : "import * as dibs from \"dibs\";\nimport { connect } from \"dibs\";\n";
  const child = spawn(process.execPath, [...args, "--input-type=module", "-e", `${imports}${text}`], {
    cwd: home, env: { ...process.env, DIBS_SERVER: url, ...env }, stdio: ["pipe", "pipe", stderr],
  });
  atEnd.push(() => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const exit = new Promise((resolve) => child.once("exit", (code, signal) => resolve(signal ?? code)));
  return {
    child,
    pid: child.pid,
    // line resolves to the next line that it prints.
    line: async () => (await within(lines.next(), "a line")).value,
    // rest resolves to all other lines.
    rest: async () => {
      const all = [];
      for (let next; !(next = await within(lines.next(), "a line")).done;) all.push(next.value);
      return all;
    },
    say: () => child.stdin.write("\n"),
    kill: (signal) => child.kill(signal),
    // ended resolves to its exit code, or the signal that ended it.
    ended: () => within(exit, "the process ends"),
  };
}
