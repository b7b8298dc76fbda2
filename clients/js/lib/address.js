// The addresses of servers.

import { bad } from "./arguments.js";

// Server is one address.
class Server {
  constructor(host, port, tls, socketPath) {
    const literal = host.includes(":") ? `[${host}]` : host;
    this.tls = tls;
    this.to = socketPath ? { path: socketPath } : { host, port };
    this.host = socketPath ? "localhost" : `${literal}:${port}`;
    this.text = socketPath ? `unix:${socketPath}` : `${tls ? "https" : "http"}://${literal}:${port}`;
  }

  toString() {
    return this.text;
  }
}

// readURL returns the servers of a URL, and its token.
export function readURL(url) {
  const no = (why) => bad(`not the URL of a server: ${why}`); // without the URL, which may have the token
  if (typeof url !== "string") no("it is not a string");
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
      no("the token has a % that is not an escape");
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
