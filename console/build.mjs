// Bundles the console and writes it as C: node build.mjs OUT.c [MODULES]
// The same sources and the same lock file give the same bytes.
import { writeFileSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const [out, modules] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const esbuild = createRequire(join(modules, "x.js"))("esbuild");
const BUNDLED = ["preact", "uplot"]; // parts of them are in app.js, so their licenses come along
const TYPES = { js: "text/javascript; charset=utf-8", css: "text/css; charset=utf-8" };

const built = await esbuild.build({
    entryPoints: [join(here, "app.jsx"), join(here, "app.css")],
    bundle: true, minify: true, write: false, outdir: "out", format: "esm", target: "es2022",
    jsx: "automatic", jsxImportSource: "preact", nodePaths: [modules], legalComments: "none", logLevel: "warning",
});
const files = [["", "text/html; charset=utf-8", readFileSync(join(here, "index.html"))],
    ["icon.svg", "image/svg+xml", readFileSync(join(here, "icon.svg"))],
    ["licenses.txt", "text/plain; charset=utf-8", Buffer.from(BUNDLED.map((name) =>
        `${name}\n\n${readFileSync(join(modules, name, "LICENSE"), "utf8")}`).join("\n\n"))],
    ...built.outputFiles.map((f) => {
        const name = f.path.split("/").pop();
        return [name, TYPES[name.split(".").pop()], Buffer.from(f.contents)];
    })];

let text = '#include "src/serve/http/console_files.h"\n', table = "", total = 0;
files.forEach(([name, type, bytes], i) => {
    const packed = gzipSync(bytes, { level: 9 });
    packed[9] = 255; // no operating system
    total += packed.length;
    text += `static const unsigned char f${i}[] = {${[...packed].join(",")}};\n`;
    table += `    {"${name}", "${type}", f${i}, sizeof(f${i})},\n`;
});
writeFileSync(out, `${text}const struct console_file console_files[] = {\n${table}    {0, 0, 0, 0}};\n`);
console.log(`idem: the console has ${total} bytes, compressed`);
