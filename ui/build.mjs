// Builds the page into src/openclaw/web: `node build.mjs`. With --check it only compares, and fails when they differ.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "src", "openclaw", "web");
const sources = ["package-lock.json", "build.mjs", ...filesBelow(join(here, "src"))];

function filesBelow(folder) {
  return readdirSync(folder, { withFileTypes: true })
    .flatMap((one) => (one.isDirectory() ? filesBelow(join(folder, one.name)) : [relative(here, join(folder, one.name))]))
    .map((path) => path.split("\\").join("/"))
    .sort();
}

// The digest of the sources goes into build.json, so that a forgotten build is found where there is no node.
function sourceDigest() {
  const digest = createHash("sha256");
  for (const name of sources.sort()) digest.update(`${name}\0`).update(readFileSync(join(here, name))).update("\0");
  return digest.digest("hex");
}

const result = await build({
  entryPoints: { app: join(here, "src", "main.js") },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome120", "firefox120", "safari17"],
  outdir: join(target, "assets"),
  absWorkingDir: here,
  legalComments: "none",
  write: false,
  logLevel: "warning",
});

const made = new Map(result.outputFiles.map((file) => [relative(target, file.path).split("\\").join("/"), Buffer.from(file.contents)]));
for (const name of ["index.html", "favicon.svg"]) made.set(name, readFileSync(join(here, "src", name)));
made.set("build.json", Buffer.from(`${JSON.stringify({ sources: sourceDigest() })}\n`));

if (process.argv.includes("--check")) {
  for (const [name, body] of made) {
    if (!body.equals(readFileSync(join(target, name)))) {
      console.error(`${name} is not what the sources make: run node build.mjs`);
      process.exit(1);
    }
  }
} else {
  let total = 0;
  mkdirSync(join(target, "assets"), { recursive: true });
  for (const [name, body] of made) {
    writeFileSync(join(target, name), body);
    const packed = gzipSync(body, { level: 9 }).length;
    total += packed;
    console.log(`${name.padEnd(20)} ${(body.length / 1024).toFixed(1)} KB, ${(packed / 1024).toFixed(1)} KB gzipped`);
  }
  console.log(`${"in all".padEnd(20)} ${(total / 1024).toFixed(1)} KB gzipped`);
}
