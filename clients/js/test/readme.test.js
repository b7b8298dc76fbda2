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

test("the test of docs/guides/testing-your-code.md passes", async () => {
  const guide = fs.readFileSync(new URL("../../../docs/guides/testing-your-code.md", import.meta.url), "utf8");
  const [, text] = /^```js\n(.*?)^```/ms.exec(guide);
  const p = script("", text, { bare: true });
  const said = (await p.rest()).join("\n");
  assert.match(said, /an invoice[^]*pass 1\b/);
  assert.equal(await p.ended(), 0, said);
});

test("every error is in the table", () => {
  for (const [name, kind] of Object.entries(dibs)) {
    if (kind.prototype instanceof dibs.DibsError) assert.ok(readme.includes(`\`${name}\``), name);
  }
});

test("the package has what it says", () => {
  const pack = JSON.parse(file("package.json"));
  assert.equal(pack.version, dibs.VERSION);
  for (const [name, { types, default: module }] of Object.entries(pack.exports)) {
    assert.deepEqual([types, module], [`./${name === "." ? "dibs" : name.slice(2)}.d.ts`, `./${name === "." ? "dibs" : name.slice(2)}.js`]);
    for (const path of [types, module]) assert.ok(pack.files.includes(path.slice(2)) && file(path).length > 0, path);
  }
  // Every file that a module imports is in the package, and every file of the package is imported.
  const imported = new Set();
  const visit = (url) => {
    if (imported.has(url.href)) return;
    imported.add(url.href);
    for (const [, path] of fs.readFileSync(url, "utf8").matchAll(/^(?:import|export) .*?from "(\.[^"]*)";$/gms)) visit(new URL(path, url));
  };
  for (const { default: module } of Object.values(pack.exports)) visit(new URL(`../${module}`, import.meta.url));
  assert.ok(pack.files.includes("lib"));
  for (const name of fs.readdirSync(new URL("../lib", import.meta.url))) assert.ok(imported.delete(new URL(`../lib/${name}`, import.meta.url).href), name);
  assert.equal(imported.size, Object.keys(pack.exports).length);
});

test("no file is long", () => {
  for (const name of fs.readdirSync(new URL("../lib", import.meta.url))) assert.ok(file(`lib/${name}`).split("\n").length <= 400, name);
});
