// Calls to dibs serve. If a server is away, the next one is asked.

import { Connections, Failure } from "./connection.js";
import { DibsError, ForbiddenError, OverloadedError, RefusedError, UNANSWERED, UnauthorizedError, UnavailableError, ofKey, unanswered } from "./errors.js";
import { clamp } from "./clock.js";

const LISTS = { claim: "claims", renew: "renewals", settle: "settlements" };

// Calls are the calls of a client.
export class Calls {
  constructor({ servers, secret }, timeout, clock, connections) {
    this.servers = servers;
    this.timeout = timeout;
    this.clock = clock;
    this.current = 0;
    const headers = { "Content-Type": "application/json", "Accept-Encoding": "identity" };
    if (secret) headers.Authorization = `Bearer ${secret}`;
    this.connections = connections ?? new Connections(headers);
  }

  // call makes one call for the elements, which are JSON, and resolves to the answers, when it was sent, and
  // whether it was sent before and not answered, so that it may have been done then. If a server is
  // away it asks the next one, each once. wait is how long the server may take on purpose. Such a call
  // asks one server only, because its caller asks again with less time to wait. until is the Wait that may
  // end the call. silent is called with when the call was sent, if it was sent and not answered.
  async call(verb, elements, { wait = 0, timeout = this.timeout, until, silent: note = () => {}, patient = false } = {}) {
    if (this.closed) throw this.closed;
    const ends = this.clock.now() + timeout;
    const count = wait > 0 ? 1 : this.servers.length;
    const list = `{"${LISTS[verb]}":[${elements.join()}]`;
    let away;
    let silent = false;
    for (let i = 0; i < count; i++) {
      const first = this.current;
      const server = this.servers[first];
      const left = ends - this.clock.now();
      if (left <= 0) break;
      let again = silent;
      const limit = wait + left / (count - i);
      // A server carries no claim out whose caller does not listen any more.
      const text = `${list}${wait > 0 ? `,"wait_ms":${Math.ceil(wait)}` : ""}${verb === "claim" ? `,"timeout_ms":${Math.ceil(limit)}` : ""}}`;
      const noted = { sent: this.clock.now() };
      try {
        const posted = await this.post(server, `/v1/${verb}`, text, limit, until, noted, patient);
        again ||= posted.again;
        if (posted.again) note(posted.sent);
        return { answers: answersOf(server, verb, posted.response, elements.length), sent: posted.sent, again };
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

  // callOne makes a call for one element of a claim, and resolves to its answer and when it was sent.
  async callOne(verb, element, claim, options) {
    const { answers: [answer], sent } = await this.call(verb, [JSON.stringify(element)], options).catch((e) => { throw ofKey(e, claim); });
    return { answer, sent };
  }

  // callAll makes one call, and resolves to {answer, sent, again} of each element, or to its {error}. One
  // element can make a server refuse the call, so the halves are asked then, and the error of one half is
  // not that of the other, which may be done.
  async callAll(verb, elements, options = {}) {
    const ends = this.clock.now() + (options.timeout ?? this.timeout);
    try {
      const { answers, sent, again } = await this.call(verb, elements, options);
      return answers.map((answer) => ({ answer, sent, again }));
    } catch (error) {
      if (elements.length === 1 || !mayBeOfOne(error)) return elements.map(() => ({ error }));
      const half = elements.length >> 1;
      const ask = (part) => this.callAll(verb, part, { ...options, timeout: ends - this.clock.now() });
      return [...await ask(elements.slice(0, half)), ...await ask(elements.slice(half))];
    }
  }

  // post sends a request. A kept connection may have been closed by the server meanwhile, so then
  // another one is used; every call may be repeated.
  async post(server, path, text, limit, until, noted, patient) {
    const ends = this.clock.now() + limit;
    for (let again = false; ; again = true) {
      const sent = noted.sent = this.clock.now();
      try {
        return { response: await this.send(server, "POST", path, text, ends - sent, until, patient), sent, again };
      } catch (e) {
        if (!(e instanceof Failure)) throw e; // the caller gave up
        if (!e.stale) throw unanswered(failure(server, e), again);
      }
    }
  }

  // send sends a request once.
  async send(server, method, path, text, limit, until, patient) {
    let timer;
    try {
      return await this.connections.request(server, method, path, text, (giveUp) => {
        timer = this.clock.setTimeout(() => { // the body counts, too
          giveUp((sent) => new Failure(new Error(`no answer within ${Math.round(limit)} ms`), { sent }));
        }, clamp(limit));
        until?.stop((reason) => giveUp(() => reason));
      }, patient);
    } finally {
      this.clock.clearTimeout(timer);
    }
  }

  // holder asks who holds the claim's key now, and resolves to null if the server does not say.
  async holder({ named: { key, namespace = "" } }) {
    if (key === undefined) return null; // the list has text keys only
    const path = `/v1/keys?${new URLSearchParams(namespace ? { key, namespace } : { key })}`;
    const response = await this.send(this.servers[this.current], "GET", path, "", this.timeout).catch(() => null);
    const [entry] = response?.status === 200 ? String(response.body).split("\n") : [];
    const [run] = parse(entry)?.runs ?? [];
    return run ? { ...run.owner, id: run.id, since: run.since_ms ?? 0 } : null;
  }

  close(closed) {
    this.closed = closed;
    this.connections.close();
  }
}

// mayBeOfOne reports whether a call was refused, and nothing done, perhaps because of one of its elements.
function mayBeOfOne(e) {
  return e instanceof RefusedError && !e[UNANSWERED] && !(e instanceof UnauthorizedError || e instanceof OverloadedError);
}

// failure is the error of a request without an answer.
function failure(server, { message, code, cause, sent, untrusted }) {
  const cure = /^(ENOENT|ECONNREFUSED)$/.test(code) ? "; is dibs serve running there?" : "";
  return unanswered(new (untrusted ? RefusedError : UnavailableError)(`dibs: ${server}: ${message}${cure}`, { cause }), sent);
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
  return unanswered(new RefusedError(`dibs: what answers at ${server} ${how} is not dibs serve`));
}

function parse(body) {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}
