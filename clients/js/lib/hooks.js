// What the program hears of its keys: a message on the channel "dibs" of node:diagnostics_channel, and
// with NODE_DEBUG=dibs a line on standard error.
//
// A message has the event, the key as errors name it, its namespace, the text of the line, and:
//
//   acquired     a lease begins: fence, attempt
//   waited       a lease begins after a wait: waited, in milliseconds
//   skipped      another holder has the key, and the caller does not get it: waited
//   lost         a lease was lost: error
//   undone       a claim was not answered, or its caller left, and is undone in the background
//   unavailable  no server answered: error

import { channel } from "node:diagnostics_channel";
import { debuglog } from "node:util";

const dibs = channel("dibs");
const log = debuglog("dibs");

export function tell(event, claim, text, facts) {
  if (!dibs.hasSubscribers && !log.enabled) return;
  const key = claim.shown;
  const message = `dibs: ${event}: ${text}: ${key}`;
  log("%s", message);
  dibs.publish({ event, key, namespace: claim.namespace, message, ...facts });
}
