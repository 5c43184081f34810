// What body parsers find after the middleware has read the body: node forms.js URL-OF-IDEM. Prints "fine".
import assert from "node:assert";
import {once} from "node:events";
import http from "node:http";
import zlib from "node:zlib";

import express from "express";
import fastify from "fastify";

import {Client, current, fastifyIdempotency, idempotency} from "idem-client";

const client = new Client(process.argv[2], {scope: "forms"});
const app = express();
app.use((req, res, next) => {
    res.set("X-Request-Id", req.get("X-Id") ?? "none");
    next();
});
app.use(idempotency(client));
app.use(express.json(), express.urlencoded({extended: false}));
app.post("/json", (req, res) => res.json({...req.body, fence: current().fence > 0, same: current() === req.idem}));
app.post("/form", (req, res) => res.send(req.body.name));
app.post("/multipart", async (req, res) => {
    let length = 0;
    for await (const chunk of req) length += chunk.length;
    res.send(String(length));
});
app.post("/nothing", (req, res) => res.sendStatus(204));
app.post("/stream", (req, res) => {
    res.writeHead(202, {"X-A": "1"});
    res.write("a");
    setImmediate(() => res.write(Buffer.from("b"), () => res.end("c")));
});

async function listen(application) {
    const server = application.listen(0, "127.0.0.1");
    await once(server, "listening");
    return `http://127.0.0.1:${server.address().port}`;
}

const base = await listen(app);

async function send(path, key, body, headers = {}) {
    const answer = await fetch((path.startsWith("http") ? "" : base) + path, {method: "POST", body, headers: {"Idempotency-Key": key, ...headers}, duplex: "half"});
    return {status: answer.status, replayed: answer.headers.get("Idempotent-Replayed"), text: await answer.text(), headers: answer.headers};
}

async function twice(path, body, headers, status, text) {
    const first = await send(path, path, body(), headers), again = await send(path, path, body(), headers);
    assert.deepEqual([first.status, first.replayed, first.text], [status, null, text]);
    assert.deepEqual([again.status, again.replayed, again.text], [status, "true", text]);
    return again;
}

const json = {"Content-Type": "application/json"};
await twice("/json", () => '{"a":1}', json, 200, '{"a":1,"fence":true,"same":true}');
await twice("/json?large", () => JSON.stringify({a: "x".repeat(90000)}), json, 200, JSON.stringify({a: "x".repeat(90000), fence: true, same: true}));
await twice("/json?empty", () => "", json, 200, '{"fence":true,"same":true}');
await twice("/json?gzip", () => zlib.gzipSync('{"a":2}'), {...json, "Content-Encoding": "gzip"}, 200, '{"a":2,"fence":true,"same":true}');
await twice("/json?chunked", () => new ReadableStream({start(c) {
    c.enqueue(Buffer.from('{"a"'));
    setTimeout(() => {
        c.enqueue(Buffer.from(":3}"));
        c.close();
    }, 50);
}}), json, 200, '{"a":3,"fence":true,"same":true}');
await twice("/form", () => "name=%E4%B9%A6", {"Content-Type": "application/x-www-form-urlencoded"}, 200, "书");
const nothing = await twice("/nothing", () => "x", {}, 204, "");
assert.equal(nothing.headers.get("Content-Length"), null);
assert.equal((await twice("/stream", () => "x", {}, 202, "abc")).headers.get("X-A"), "1");
for (const boundary of ["one", "two"])
    assert.equal((await send("/multipart", "m", `--${boundary}--`, {"Content-Type": `multipart/form-data; boundary=${boundary}`})).text, "7");
for (const id of ["a", "b"]) assert.equal((await send("/nothing", "id", "x", {"X-Id": id})).headers.get("X-Request-Id"), id);

// A chunked body of no bytes is an end that a parser must still see.
const empty = (to) => new Promise((resolve) => {
    http.request(to, {method: "POST", headers: {...json, "Idempotency-Key": to, "Transfer-Encoding": "chunked"}}, (answer) => resolve(answer.statusCode)).end();
});
assert.equal(await empty(base + "/json?none"), 200);

// Where the body parser came first, nothing can be compared: that is an error of the application.
const wrong = express().use(express.text(), idempotency(client), (error, req, res, next) => res.status(500).send(error.message));
assert.match((await send(await listen(wrong), "w", "x", {"Content-Type": "text/plain"})).text, /before the body parser/);

const other = fastify();
await other.register(fastifyIdempotency(client));
other.addContentTypeParser(/^multipart\//, {parseAs: "string"}, (request, body, done) => done(null, body));
other.post("/json", async (request) => ({...request.body, fence: current().fence > 0, same: current() === request.idem}));
other.post("/multipart", async (request) => String(request.body.length));
const where = await other.listen({port: 0, host: "127.0.0.1"});
await twice(where + "/json", () => '{"a":1}', json, 200, '{"a":1,"fence":true,"same":true}');
for (const boundary of ["one", "two"])
    assert.equal((await send(where + "/multipart", "fm", `--${boundary}--`, {"Content-Type": `multipart/form-data; boundary=${boundary}`})).text, "7");
const bad = await send(where + "/json", "bad", "{", json);
assert.deepEqual([bad.status, (await send(where + "/json", "bad", "{", json)).text], [400, bad.text]);
assert.equal(await empty(where + "/json?none"), 400); // Fastify says that JSON must not be empty

console.log("fine");
process.exit(0);
