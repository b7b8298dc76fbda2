// Leases and places in a transaction of the application.

import { ForbiddenError, LostError, RefusedError, WrongTransactionError, plain } from "./errors.js";
import { bad, queries } from "./arguments.js";

// Postgres are the functions of the store in the application's database.
export class Postgres {
  constructor(schema, prefix) {
    if (typeof schema !== "string" || typeof prefix !== "string") bad("schema and prefix are strings");
    this.name = (name) => [schema, `${prefix}_${name}`].map((part) => `"${part.replaceAll('"', '""')}"`).join(".");
  }

  async settle(client, hold, data, retention, proof) {
    const { claim, namespace } = hold;
    await this.call(client, claim, "settle_in", "$1::text, $2::text, $3::text, $4::text::interval, $5::text, 'base64', $6::text",
      [claim.bytes.toString("base64"), claim.token, data && data.toString("base64"), interval(retention), namespace, proof], proof === "marked");
  }

  async reserve(client, claim, namespace) {
    queries(client, "client");
    const owner = `${claim.owner.host.replaceAll(" ", "_")} ${claim.owner.pid} ${claim.owner.label}`;
    const result = await this.call(client, claim, "reserve_in", "$1::text, $2::text::interval, $3::text::interval, $4::text, $5::text, 'base64'",
      [claim.bytes.toString("base64"), interval(claim.placeTTL), claim.grace === undefined ? null : interval(claim.grace), namespace,
        Buffer.from(owner).subarray(0, 255).toString("base64")]);
    return (result.rows ?? result)[0].answer;
  }

  async call(client, { shown, key }, name, parameters, values, ofOnce = false) {
    const named = this.name(name);
    try {
      return await client.query(`SELECT ${named}(${parameters}) AS answer`, values);
    } catch (e) {
      const cause = e;
      switch (e?.code) {
        case "DIBS1": throw new LostError(`dibs: the lease of the key ${shown} is lost: ${e.detail}`, { key, cause });
        case "DIBS2": throw new WrongTransactionError(ofOnce
          ? `dibs: the key ${shown}: the function of once sent COMMIT or ROLLBACK, so its result is not kept, and what it committed stays. Remove that statement: once commits when the function returns, and rolls back if it throws`
          : `dibs: ${plain(e.message)}. Begin a transaction, write in it, and settle the key ${shown} as its last statement`, { key, cause });
        case "42883": case "3F000": throw new RefusedError(`dibs: this database has no function ${named} of this version. Name the store's schema and prefix when you connect, or run dibs migrate (${e.message})`, { key, cause });
        case "42501": throw new ForbiddenError(`dibs: the role may not call ${named}: GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION (${e.message})`, { key, cause });
        default: throw e;
      }
    }
  }

  // begin begins the transaction of once. A setting that is local to a transaction tells whether there
  // is one.
  async begin(client, { key }) {
    await client.query("SELECT set_config('dibs.run', 'outer', true)");
    const found = await client.query("SELECT current_setting('dibs.run', true) AS answer");
    if ((found.rows ?? found)[0].answer === "outer") {
      throw new WrongTransactionError("dibs: the client is in a transaction already; once begins and commits its own, so call it outside, or use completeIn", { key });
    }
    await client.query("BEGIN");
    await client.query("SET LOCAL dibs.run = 'on'");
  }
}

function interval(ms) {
  return `${Math.ceil(ms * 1000)} microseconds`;
}
