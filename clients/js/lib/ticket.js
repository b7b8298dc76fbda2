// Tickets.

import { isUtf8 } from "node:buffer";
import { bad } from "./arguments.js";

// A ticket is a place in a key's queue as text: the same text as in the other clients.
export function writeTicket({ token, namespace, bytes }) {
  return ["dibs1", ...[Buffer.from(token, "hex"), Buffer.from(namespace), bytes].map((b) => b.toString("base64url"))].join(".");
}

export function readTicket(text) {
  const no = () => bad("not a ticket of reserve"); // without the text, which is a secret
  const parts = typeof text === "string" ? text.split(".") : [];
  if (parts.length !== 4 || parts[0] !== "dibs1") no();
  const [token, namespace, key] = parts.slice(1).map((part) => {
    const b = Buffer.from(part, "base64url");
    return b.toString("base64url") === part ? b : no();
  });
  if (token.length !== 16 || !isUtf8(namespace) || key.length < 1 || key.length > 512) no();
  return { token: token.toString("hex"), namespace: namespace.toString(), key: isUtf8(key) ? key.toString() : key };
}
