// Builds the page into src/openclaw/web: `node build.mjs`. With --check it only compares, and fails when they differ.
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
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

const shared = {
  bundle: true,
  minify: true,
  target: ["chrome120", "firefox120", "safari17"],
  outdir: target,
  absWorkingDir: here,
  assetNames: "chunks/[name]-[hash]",
  loader: { ".woff2": "file" },
  legalComments: "none",
  write: false,
  logLevel: "warning",
};
// Every browser that the page supports reads WOFF2, so the older formats that KaTeX names are left out.
const onlyWoff2 = {
  name: "only-woff2",
  setup(building) {
    building.onLoad({ filter: /katex\.min\.css$/ }, ({ path }) => ({
      contents: readFileSync(path, "utf8").replace(/,url\([^)]*\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)/g, ""),
      loader: "css",
    }));
  },
};
const mathStyle = await build({
  ...shared,
  entryPoints: { math: join(here, "node_modules", "katex", "dist", "katex.min.css") },
  entryNames: "chunks/[name]-[hash]",
  plugins: [onlyWoff2],
});
const named = (file) => relative(target, file.path).split("\\").join("/");
const mathStyleName = mathStyle.outputFiles.map(named).find((name) => name.endsWith(".css"));
const page = await build({
  ...shared,
  entryPoints: { app: join(here, "src", "main.js") },
  format: "esm",
  splitting: true,
  metafile: true,
  entryNames: "assets/[name]",
  chunkNames: "chunks/[name]-[hash]",
  define: { MATH_STYLE: JSON.stringify(mathStyleName) },
});

const files = [...mathStyle.outputFiles, ...page.outputFiles];
const made = new Map(files.map((file) => [named(file), Buffer.from(file.contents)]));
// What the first load needs is asked for at once: the chunks that the page imports, and its font.
const outputs = Object.fromEntries(Object.entries(page.metafile.outputs).map(([path, output]) => [named({ path: join(here, path) }), output]));
const first = new Set();
const follow = (name) => {
  for (const one of outputs[name].imports) {
    const path = named({ path: join(here, one.path) });
    if (one.kind === "import-statement" && !first.has(path)) first.add(path) && follow(path);
  }
};
follow("assets/app.js");
const font = [...made.keys()].find((name) => /inter-latin-wght-normal-\w+\.woff2$/.test(name));
const preloads = [
  ...[...first].sort().map((name) => `<link rel="modulepreload" href="{{base}}/${name}">`),
  ...(font ? [`<link rel="preload" href="{{base}}/${font}" as="font" type="font/woff2" crossorigin>`] : []),
];
const index = readFileSync(join(here, "src", "index.html"), "utf8").replace("{{preloads}}", preloads.join("\n"));
made.set("index.html", Buffer.from(index));
for (const name of readdirSync(join(here, "src", "static"))) made.set(name, readFileSync(join(here, "src", "static", name)));
made.set("build.json", Buffer.from(`${JSON.stringify({ sources: sourceDigest() })}\n`));

const chunks = join(target, "chunks");
const outdated = (existsSync(chunks) ? readdirSync(chunks) : []).filter((name) => !made.has(`chunks/${name}`));

if (process.argv.includes("--check")) {
  for (const [name, body] of made) {
    if (!existsSync(join(target, name)) || !body.equals(readFileSync(join(target, name)))) {
      console.error(`${name} is not what the sources make: run node build.mjs`);
      process.exit(1);
    }
  }
  if (outdated.length) {
    console.error(`${outdated[0]} is of an earlier build: run node build.mjs`);
    process.exit(1);
  }
} else {
  let total = 0;
  mkdirSync(join(target, "assets"), { recursive: true });
  mkdirSync(chunks, { recursive: true });
  for (const name of outdated) rmSync(join(chunks, name));
  for (const [name, body] of made) {
    writeFileSync(join(target, name), body);
    const packed = gzipSync(body, { level: 9 }).length;
    const loadedFirst = name.startsWith("assets/") || name === "index.html" || first.has(name);
    if (loadedFirst) total += packed;
    if (!name.includes("KaTeX_")) console.log(`${loadedFirst ? "*" : " "} ${name.padEnd(44)} ${(packed / 1024).toFixed(1)} KB gzipped`);
  }
  console.log(`  ${"first load".padEnd(44)} ${(total / 1024).toFixed(1)} KB gzipped`);
}
