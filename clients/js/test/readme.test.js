// The README's programs run as printed, and the package is whole.

import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { Server, dibs, script } from "./support.js";

const server = await Server.start();
const file = (name) => fs.readFileSync(new URL(`../${name}`, import.meta.url), "utf8");
const readme = file("README.md");

test("the README's programs run", async () => {
  const programs = [...readme.matchAll(/^( *)```js\n(.*?)^ *```/gms)].map(([, , text]) => text.replaceAll('import { connect } from "dibs";', ""));
  const said = [];
  for (const text of programs) {
    const p = script(server.url, text);
    said.push(await p.rest());
    assert.equal(await p.ended(), 0, text);
  }
  assert.match(said[0].join(), /^page 0 with fence \d+,page 1 with fence \d+,page 2 with fence \d+,100$/);
  assert.deepEqual(said.slice(1), [["42"]]);
});

test("every error is in the table", () => {
  for (const [name, kind] of Object.entries(dibs)) {
    if (kind.prototype instanceof dibs.DibsError) assert.ok(readme.includes(`\`${name}\``), name);
  }
});

test("the package has what it says", () => {
  const pack = JSON.parse(file("package.json"));
  assert.equal(pack.version, dibs.VERSION);
  for (const name of pack.files) assert.ok(file(name).length > 0);
  assert.deepEqual(Object.values(pack.exports["."]), ["./dibs.d.ts", "./dibs.js"]);
});
