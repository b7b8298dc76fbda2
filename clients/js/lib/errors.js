// The errors of the client.

// DibsError is the class of all errors of this library, except the TypeError of a wrong argument.
// key is the key of the call. A message names it, or with secretKeys its digest. What may be a secret is
// not an enumerable property, because errors end up in logs.
export class DibsError extends Error {
  constructor(message, { cause, key, ...facts } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    hide(this, "key", key);
    Object.assign(this, facts);
  }
}

function hide(error, name, value) {
  Object.defineProperty(error, name, { value, configurable: true });
}

// HeldError: another caller holds the key or comes before this one. It is an answer: the caller
// neither holds the key nor has a place in its queue. left is the milliseconds until the first
// lease of the key expires unless it is renewed, ahead is how many places at most come first, and
// waited is how long the caller waited, in milliseconds.
export class HeldError extends DibsError {
  #look;

  constructor(message, { left = 0, ahead = 0, waited = 0, look = async () => null, ...rest } = {}) {
    super(message, { left, ahead, waited, ...rest });
    this.#look = look;
  }

  // holder asks the server who holds the key now: {host, pid, label, id, since}, since in milliseconds. It
  // resolves to null if nobody does, the credential does not have the role look, or no server answers.
  holder() {
    return this.#look();
  }
}

// LostError: the lease expired or was taken away, or the call that ends it was not answered. So
// another caller may hold the key.
export class LostError extends DibsError {}

// DoneError: a record answers the claim (acquire with maxAge). record is what the holder left, as
// a Buffer, and age is its age in milliseconds.
export class DoneError extends DibsError {
  constructor(message, { record, ...rest } = {}) {
    super(message, rest);
    hide(this, "record", record);
  }
}

// MismatchError: the key is in use, or was used, with another fingerprint.
export class MismatchError extends DibsError {}

// UnknownError: an earlier attempt with atMostOnce ended without an outcome, and an operator must
// resolve it. id names that attempt.
export class UnknownError extends DibsError {}

// UnavailableError: no server answered, or the store did not. The call may or may not have
// happened. A claim is then undone in the background.
export class UnavailableError extends DibsError {}

// BusyError: the store was busy with the key. Nothing was done, and asking again may help.
export class BusyError extends DibsError {}

// FullError: the store has reached one of its limits. Nothing was done.
export class FullError extends DibsError {}

// TooLargeError: the store never takes data of that size. Nothing was done.
export class TooLargeError extends FullError {}

// RefusedError: the server refused the whole call, and nothing was done; or what answers at the
// address is not dibs serve. A server behind it may have done the call. A claim is then undone in the
// background.
export class RefusedError extends DibsError {}

// UnauthorizedError: the URL has no token, or one that the server does not know.
export class UnauthorizedError extends RefusedError {}

// ForbiddenError: the credential does not have the role, or the call names another namespace.
export class ForbiddenError extends RefusedError {}

// OverloadedError: a bound of the server is reached. Asking again may help.
export class OverloadedError extends RefusedError {}

// RememberedError: the function of an earlier call of once failed with an error that it remembers.
// The message is that of the error.
export class RememberedError extends DibsError {}

// NotKeptError: the function of once ran in this call, but its result could not be stored. result is
// what the function returned. cause is what it threw, if that was to be remembered, or else why the
// result was not stored. rerun says that the next caller runs again: because of rerun: true, because
// the transaction of in was rolled back, or because the store did not answer or is full. Otherwise
// later callers get UnrecordedError; with atMostOnce they get UnknownError if the store did not answer
// or is full.
export class NotKeptError extends DibsError {
  constructor(message, { result, rerun = false, ...rest } = {}) {
    super(message, { rerun, ...rest });
    hide(this, "result", result);
  }
}

// UnrecordedError: an earlier call of once ran its function, but the result could not be stored. An
// operator gives callers the result with `dibs resolve KEY --result JSON`, or lets the next one run with
// `dibs resolve KEY --rerun`. After keep the next caller runs.
export class UnrecordedError extends DibsError {}

// WrongTransactionError: the connection is not in the transaction that the lease is to end with.
// Nothing was settled.
export class WrongTransactionError extends DibsError {}

// ClosedError: the client was closed.
export class ClosedError extends DibsError {}

// The names stand although a bundler renames the classes.
for (const [name, kind] of Object.entries({
  DibsError, HeldError, LostError, DoneError, MismatchError, UnknownError, UnavailableError, BusyError, FullError, TooLargeError,
  RefusedError, UnauthorizedError, ForbiddenError, OverloadedError, RememberedError, NotKeptError, UnrecordedError, WrongTransactionError,
  ClosedError,
})) Object.defineProperty(kind.prototype, "name", { value: name, configurable: true, writable: true });

// UNANSWERED marks the error of a call that was sent, and of which no server said what became of it.
export const UNANSWERED = Symbol("unanswered");

// unanswered marks an error, if a server may have got the call.
export function unanswered(error, sent = true) {
  Object.defineProperty(error, UNANSWERED, { value: sent || error[UNANSWERED] === true, configurable: true });
  return error;
}

// ofKey is the error of a call for the caller of one of its elements.
export function ofKey(e, { key }) {
  return e?.[UNANSWERED] === undefined ? e : unanswered(new e.constructor(e.message, { cause: e.cause, key }), e[UNANSWERED]);
}

// elementError is the error of an element that failed alone.
export function elementError({ type, detail }, claim) {
  const Kind = { lost: LostError, busy: BusyError, full: FullError, too_large: TooLargeError }[type] ?? RefusedError;
  return new Kind(`dibs: the key ${claim.shown}: ${plain(detail || type)}`, { key: claim.key });
}

// refusal is the error of an answer that is not a grant.
export function refusal(claim, answer, core, waited = 0) {
  const { shown, key } = claim;
  switch (answer.state) {
    case "held": {
      const left = answer.left_ms ?? 0;
      const how = claim.wait > 0 ? `after waiting ${Math.round(waited)} ms` : `for ${left} ms more at most unless it is renewed`;
      return new HeldError(`dibs: the key ${shown} is held, ${how}`, { key, left, ahead: answer.ahead ?? 0, waited, look: () => core.calls.holder(claim) });
    }
    case "done":
      return new DoneError(`dibs: the key ${shown} is done`, { key, record: Buffer.from(answer.record?.data ?? "", "base64"), age: answer.record?.age_ms ?? 0 });
    case "mismatch":
      return new MismatchError(`dibs: the key ${shown} was used with another fingerprint`, { key });
    case "unknown":
      return new UnknownError(`dibs: the outcome of the attempt ${answer.id} on the key ${shown} is unknown; an operator must resolve it`, { key, id: answer.id });
    default:
      return new RefusedError(`dibs: the key ${shown}: the server answers with the state ${JSON.stringify(answer.state)}`, { key });
  }
}

// plain is a message inside another one.
export function plain(message) {
  return message.replace(/^dibs: /, "");
}
