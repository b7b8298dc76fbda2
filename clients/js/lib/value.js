// The record of a result of once.

import { randomBytes } from "node:crypto";

// writeValue returns the record of a result. What would come back as something else is refused, except
// that undefined is null, and a field that is undefined is left out.
export function writeValue(result) {
  const mark = randomBytes(16).toString("hex");
  const text = JSON.stringify({ value: result ?? null }, function write(name) {
    if (/\p{Surrogate}/u.test(name)) throw new TypeError("a field's name is not Unicode");
    const value = this[name]; // before toJSON
    switch (typeof value) {
      case "bigint": return mark + value;
      case "number": if (Object.is(value, -0)) return `${mark}-0`; if (Number.isFinite(value)) return value; break;
      case "string": if (!/\p{Surrogate}/u.test(value)) return value; throw new TypeError("a text is not Unicode");
      case "object": if (value === null || isPlain(value)) return value; break;
      case "undefined": if (!Array.isArray(this)) return value; break;
      case "boolean": return value;
      default:
    }
    const what = typeof value === "object" ? value.constructor?.name || "an object" : typeof value === "number" ? String(value) : typeof value;
    throw new TypeError(`it has ${what} in it; return null, booleans, numbers, texts, arrays and plain objects`);
  });
  return text.replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

// isPlain reports whether an object comes back as it is: an array of values without holes and fields,
// or an object of fields, which have texts as names.
function isPlain(value) {
  const above = Object.getPrototypeOf(value);
  if (typeof value.toJSON === "function" || Object.getOwnPropertySymbols(value).length > 0) return false;
  if (Array.isArray(value)) return isRoot(Object.getPrototypeOf(above)) && Object.keys(value).length === value.length;
  return (above === null || isRoot(above)) && Object.prototype.toString.call(value) === "[object Object]";
}

// isRoot reports whether it is Object.prototype, perhaps of another realm.
function isRoot(above) {
  return above !== null && Object.getPrototypeOf(above) === null && Object.hasOwn(above, "hasOwnProperty");
}

// readValue parses a record. A whole number that JavaScript's numbers cannot hold is a BigInt.
export function readValue(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const mark = randomBytes(16).toString("hex");
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g, (token) =>
    /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${mark}${token}"` : token);
  return JSON.parse(marked, (_, value) => (typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value));
}
