// Calls to dibs serve, over connections that are kept.

import http from "node:http";
import https from "node:https";
import { DibsError, ForbiddenError, OverloadedError, RefusedError, UNANSWERED, UnauthorizedError, UnavailableError, unanswered } from "./errors.js";
import { clamp, now } from "./clock.js";
import { bad } from "./arguments.js";

// Server is one address.
class Server {
  constructor(host, port, tls, socketPath) {
    this.tls = tls;
    this.to = socketPath ? { socketPath, host: "localhost" } : { host, port };
    this.text = socketPath ? `unix:${socketPath}` : `${tls ? "https" : "http"}://${host.includes(":") ? `[${host}]` : host}:${port}`;
  }

  toString() {
    return this.text;
  }
}

// readURL returns the servers of a URL, and its token.
export function readURL(url) {
  const no = (why) => bad(`not the URL of a server: ${why}`); // without the URL, which may have the token
  if (typeof url !== "string") no("it is no string");
  if (/^(http\+)?unix:/.test(url)) {
    const path = url.replace(/^(http\+)?unix:/, "").replace(/^\/\/(?=\/)/, "");
    if (!path.startsWith("/") || path.startsWith("//") || /[?#]/.test(path)) {
      no("the URL of a socket is unix: and an absolute path, such as unix:/run/dibs/dibs.sock");
    }
    return { servers: [new Server("localhost", 0, false, path)] };
  }
  const [, scheme, user, hosts] = /^(https?):\/\/(?:(.*)@)?([^@]*)$/s.exec(url) ?? no("it must begin with https://, http:// or unix:");
  let secret;
  if (user !== undefined) {
    if (!/^:./s.test(user)) no("the token stands in the password's place and there is no user, as in https://:TOKEN@HOST");
    try {
      secret = decodeURIComponent(user.slice(1));
    } catch {
      no("the token has a % that is no escape");
    }
    if (!/^[\x20-\x7e]+$/.test(secret)) no("the token has characters that are not printable ASCII");
  }
  const list = hosts.replace(/\/$/, "");
  if (/[/?#]/.test(list)) no("there is a path or a parameter after the host; the URL has neither");
  const servers = list.split(",").map((text) => {
    const [, host, digits] = /^(\[[0-9a-f:.]+\]|[^:[\]@\s]+)(?::(\d+))?$/i.exec(text) ?? no("it has a host that is none");
    const port = Number(digits ?? (scheme === "https" ? 443 : 80));
    if (port < 1 || port > 65_535) no("it has a port that is none");
    return new Server(host.replace(/[[\]]/g, ""), port, scheme === "https");
  });
  return { servers, secret };
}

// STALE is what send rejects with if the connection was an old one.
const STALE = Symbol("stale");

// Calls are the calls of a client, over connections that are kept.
export class Calls {
  constructor({ servers, secret }, timeout) {
    this.servers = servers;
    this.timeout = timeout;
    this.current = 0;
    this.agents = [new http.Agent({ keepAlive: true }), new https.Agent({ keepAlive: true, rejectUnauthorized: true })];
    this.headers = { "Content-Type": "application/json", "Accept-Encoding": "identity" };
    if (secret) this.headers.Authorization = `Bearer ${secret}`;
  }

  // call makes one call and resolves to the answers, when it was sent, and whether it was sent before
  // and not answered, so that it may have been done then. If a server is away it asks the next one,
  // each once. wait is how long the server may take on purpose. Such a call asks one server only,
  // because its caller asks again with less time to wait. until is the Wait that may end the call.
  // silent is called with when the call was sent, if it was sent and not answered.
  async call(verb, body, size, { wait = 0, timeout = this.timeout, until, silent: note = () => {} } = {}) {
    if (this.closed) throw this.closed;
    const ends = now() + timeout;
    const count = wait > 0 ? 1 : this.servers.length;
    let away;
    let silent = false;
    for (let i = 0; i < count; i++) {
      const first = this.current;
      const server = this.servers[first];
      const left = ends - now();
      if (left <= 0) break;
      let again = silent;
      const limit = wait + left / (count - i);
      // A server carries no claim out whose caller does not listen any more.
      const text = Buffer.from(JSON.stringify(verb === "claim" ? { ...body, timeout_ms: Math.ceil(limit) } : body));
      const noted = { sent: now() };
      try {
        const posted = await this.post(server, verb, text, limit, until, noted);
        again ||= posted.again;
        if (posted.again) note(posted.sent);
        return { answers: answersOf(server, verb, posted.response, size), sent: posted.sent, again };
      } catch (e) {
        if (!(e instanceof DibsError) || until?.ended) {
          note(noted.sent);
          throw e;
        }
        silent = unanswered(e, again)[UNANSWERED];
        if (silent) note(noted.sent);
        if (!(e instanceof UnavailableError)) throw e;
        away = e;
        if (this.current === first) this.current = (first + 1) % this.servers.length;
      }
    }
    throw away ?? new UnavailableError(`dibs: ${verb}: no server answered in time`);
  }

  // post sends a request. A kept connection may have been closed by the server meanwhile, so then
  // another one is used; every call may be repeated.
  async post(server, verb, text, limit, until, noted) {
    const ends = now() + limit;
    for (let again = false; ; again = true) {
      const sent = noted.sent = now();
      try {
        return { response: await this.send(server, verb, text, ends - sent, until), sent, again };
      } catch (e) {
        if (e !== STALE) throw e instanceof DibsError && !until?.ended ? unanswered(e, again) : e;
      }
    }
  }

  // send sends a request once.
  send(server, verb, text, limit, until) {
    return new Promise((resolve, reject) => {
      let ended = false;
      let sends = false; // the server may have got it
      const end = (settle, value) => {
        if (ended) return;
        ended = true;
        clearTimeout(timer);
        settle(value);
      };
      const fail = (error) => {
        if (error.code && request.reusedSocket && /^(ECONNRESET|EPIPE|ECONNABORTED)$/.test(error.code)) return end(reject, STALE);
        const Kind = request.socket?.authorizationError ? RefusedError : UnavailableError;
        const cure = /^(ENOENT|ECONNREFUSED)$/.test(error.code) ? "; is dibs serve running there?" : "";
        end(reject, unanswered(new Kind(`dibs: ${server}: ${error.message || error.code}${cure}`, { cause: error }), sends));
      };
      const request = (server.tls ? https : http).request({
        ...server.to, agent: this.agents[server.tls ? 1 : 0], method: "POST", path: `/v1/${verb}`,
        headers: { ...this.headers, "Content-Length": text.length },
      }, (response) => {
        const chunks = [];
        response.on("data", (chunk) => chunks.push(chunk));
        response.on("error", fail);
        response.on("end", () => end(resolve, { status: response.statusCode, type: response.headers["content-type"] ?? "", body: Buffer.concat(chunks) }));
      });
      request.on("socket", (socket) => {
        if (request.reusedSocket) sends = true;
        else socket.once(server.tls ? "secureConnect" : "connect", () => { sends = true; });
      });
      request.on("error", fail);
      const timer = setTimeout(() => { // the body counts, too
        fail(new Error(`no answer within ${Math.round(limit)} ms`));
        request.destroy();
      }, clamp(limit));
      until?.stop((reason) => {
        if (ended) return;
        end(reject, reason);
        request.destroy();
      });
      request.end(text);
    });
  }

  close(closed) {
    this.closed = closed;
    for (const agent of this.agents) agent.destroy();
  }
}

// answersOf reads a response. Only dibs serve itself knows that nothing was done: what another
// program answers says nothing of a server behind it.
function answersOf(server, verb, { status, type, body }, size) {
  const media = type.split(";")[0].trim().toLowerCase();
  const parsed = parse(body);
  if (status === 200) {
    const list = media === "application/json" && parsed?.answers;
    if (Array.isArray(list) && list.length === size && list.every((a) => a && typeof a === "object" && !Array.isArray(a))) return list;
    throw stranger(server, "with something else");
  }
  const problem = media === "application/problem+json" && parsed && typeof parsed === "object" ? parsed : null;
  const text = problem && `${problem.title} (${status}): ${problem.detail}`;
  if (status >= 500) {
    throw unanswered(new UnavailableError(`dibs: ${verb}: ${text ?? `${server} answers with ${status}`}`), !String(problem?.type).endsWith("#stopping"));
  }
  if (!text) throw stranger(server, `with ${status}`);
  const Kind = { 401: UnauthorizedError, 403: ForbiddenError, 429: OverloadedError }[status] ?? RefusedError;
  throw new Kind(`dibs: ${verb}: ${text}`);
}

function stranger(server, how) {
  return unanswered(new RefusedError(`dibs: what answers at ${server} ${how} is no dibs serve`));
}

function parse(body) {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}
