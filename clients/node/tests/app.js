// The application of clients/conformance/README.md on one framework: node app.js express|koa|fastify PORT FOLDER URL.
import {appendFileSync} from "node:fs";
import {setTimeout as sleep} from "node:timers/promises";

import express from "express";
import fastify from "fastify";
import Koa from "koa";

import {Client, NotExecuted, OutcomeUnknown, fastifyIdempotency, idempotency, idempotencyErrors, koaIdempotency} from "idem-client";

const [framework, port, folder, url] = process.argv.slice(2);
const client = new Client(url, {deadline: 2000});
const required = {required: true, maxBody: 1000, wait: 60000, mode: "loose"};

/** What a request is answered: {status, headers, body}; or it throws. */
async function serve(path, body) {
    appendFileSync(`${folder}/effects`, `${path}\n`);
    switch (path.replace(/^\/required/, "")) {
    case "/orders": return {status: 201, headers: {"Content-Type": "application/json", Location: "/orders/7", "X-Two": ["a", "b"], "Set-Cookie": "secret=1"},
        body: JSON.stringify({order: 7, got: body, 名: "书"})};
    case "/slow":
        await sleep(3000);
        return {body: "slow"};
    case "/missing": return {status: 404, body: "no such order"};
    case "/throws": throw new Error("the service failed");
    case "/unknown": throw new OutcomeUnknown("the bank did not respond");
    case "/refused": throw new NotExecuted("the bank was not asked");
    case "/limited": return {status: 429};
    case "/nothing": return {status: 204};
    case "/redirect": return {status: 302, headers: {Location: "/elsewhere"}};
    case "/large-failure": return {status: 500, body: Buffer.alloc(3 << 20)};
    case "/large": return {body: Buffer.alloc(3 << 20)};
    default: return {body: "fine"};
    }
}

const START = {
    express() {
        const app = express();
        app.use("/required", idempotency(client, {...required, scope: (req) => req.get("X-Tenant")}));
        app.use(/^(?!\/required)/, idempotency(client));
        app.use(express.text());
        app.post("/upload", async (req, res, next) => {
            try {
                for await (const chunk of req) void chunk;
            } catch {
                return res.status(400).send("half");
            }
            return next();
        });
        app.use((req, res, next) => {
            serve(req.path, req.body).then(({status = 200, headers = {}, body = ""}) => res.status(status).set(headers).send(body)).catch(next);
        });
        app.use(idempotencyErrors);
        app.listen(port, "127.0.0.1");
    },
    koa() {
        const app = new Koa();
        const open = koaIdempotency(client), strict = koaIdempotency(client, {...required, scope: (ctx) => ctx.get("X-Tenant")});
        app.silent = true;
        app.use((ctx, next) => (ctx.path.startsWith("/required") ? strict : open)(ctx, next));
        app.use(async (ctx) => {
            const chunks = [];
            try {
                for await (const chunk of ctx.req) chunks.push(chunk);
            } catch {
                ctx.throw(400, "half");
            }
            const {status = 200, headers = {}, body = ""} = await serve(ctx.path, Buffer.concat(chunks).toString());
            Object.assign(ctx, {status, body});
            ctx.set(headers);
        });
        app.listen(port, "127.0.0.1");
    },
    async fastify() {
        const app = fastify({exposeHeadRoutes: false});
        app.addContentTypeParser("multipart/form-data", (request, payload, done) => {
            payload.on("error", (error) => done(Object.assign(error, {statusCode: 400}))).on("end", () => done(null)).resume();
        });
        const handler = async (request, reply) => {
            const {status = 200, headers = {}, body = ""} = await serve(request.url.split("?")[0], request.body);
            return reply.code(status).headers(headers).send(body);
        };
        await app.register(async (inner) => {
            await inner.register(fastifyIdempotency(client, {...required, scope: (request) => request.headers["x-tenant"]}));
            inner.all("/*", handler);
        }, {prefix: "/required"});
        await app.register(async (inner) => {
            await inner.register(fastifyIdempotency(client));
            inner.all("/*", handler);
        });
        await app.listen({port: Number(port), host: "127.0.0.1"});
    },
};
await START[framework]();
