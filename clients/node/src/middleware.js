// Idempotency-Key for services in Express (and plain node:http), Koa and Fastify, with the statuses and problems of the gateway.
import {createHash} from "node:crypto";
import {Readable} from "node:stream";

import {answerOf, grouped, parseKey, problem, read, settled, write} from "./answer.js";
import {choose, storage} from "./client.js";
import {isNotExecuted, IdemError, InProgress, Mismatch, NotExecuted, OutcomeUnknown, Refused} from "./errors.js";

const digest = (bytes) => createHash("sha256").update(bytes).digest("hex");

function values(req, name) {
    const found = [];
    for (let i = 0; i < req.rawHeaders.length; i += 2) if (req.rawHeaders[i].toLowerCase() === name) found.push(req.rawHeaders[i + 1]);
    return found;
}

/** The client went away while it sent. */
const isCut = (req) => req.destroyed && !req.complete;

function caller(req) {
    const [credential] = values(req, "authorization");
    return credential === undefined ? "anonymous" : "caller-" + digest(Buffer.from(credential, "latin1")).slice(0, 40);
}

/** What the three frameworks have in common. */
class Guard {
    constructor(client, {scope, required = false, methods = ["POST", "PATCH"], maxBody = 1 << 20, ...options} = {}) {
        for (const method of methods) // a request would never match it, and pass unguarded
            if (method !== method.toUpperCase()) throw new TypeError(`methods are written in capitals: ${method.toUpperCase()}, not ${method}`);
        Object.assign(this, {client, required, methods, maxBody, scope, options: choose(client.options, options)});
    }

    /**
     * What to do with a request: {claim} to run it, {answer} to give instead, nothing for one that is not guarded.
     * `body` reads at most so many bytes, or gives null; `asked` is the framework's own request, for the scope function.
     */
    async admit(req, url, asked, body) {
        const keys = this.methods.includes(req.method) ? values(req, "idempotency-key") : null;
        if (!keys || !keys.length && !this.required) return {};
        if (!keys.length) return {answer: problem("key-missing")};
        let key;
        try {
            if (keys.length > 1) throw new Error("The key was sent twice.");
            key = parseKey(keys[0]);
        } catch (error) {
            return {answer: problem("key-malformed", {detail: error.message})};
        }
        const scope = this.scope ? await this.scope(asked) : caller(req);
        if (!scope) return this.required ? {answer: problem("scope-missing")} : {};
        // A browser sends a multipart body with another boundary at every try: it stays unread and out of the fingerprint.
        const multipart = /^multipart\//i.test(req.headers["content-type"] ?? "");
        const bytes = multipart ? null : await body(this.maxBody);
        if (bytes === null && !multipart) return {answer: problem("body-too-large")};
        const begun = await this.begin(key, {...this.options, scope, arguments: [req.method, url, multipart ? "" : digest(bytes)]});
        if (!begun.claim || !isCut(req)) return begun;
        // It ended early before the service could listen to it: nobody would tell the service.
        return {answer: await this.record(begun.claim, {status: 400, headers: [], body: Buffer.from("The body ended early.\n")}, req)};
    }

    async begin(key, options) {
        try {
            const begun = await this.client.begin(key, options);
            if (begun.claim) return {claim: begun.claim};
            return {answer: stored(begun)};
        } catch (error) {
            if (error instanceof Mismatch) return {answer: problem("mismatch")};
            if (error instanceof InProgress) return {answer: problem("in-progress", {retryAfter: Math.max(1, Math.ceil(error.retryAfter / 1000))})};
            if (error instanceof OutcomeUnknown) return {answer: problem("outcome-unknown")};
            if (!(error instanceof NotExecuted)) throw error;
            console.error(`idem: a request was not executed: ${error.message}`);
            // The key was checked, so what the server refuses is the scope.
            if (error instanceof Refused && error.word === "ERR") return {answer: problem("scope-refused")};
            return {answer: problem("not-executed", {retryAfter: 1})};
        }
    }

    /** Record what the service answered, or what it reported instead; the answer to send. */
    async record(claim, answer, req) {
        const error = claim.reported;
        try {
            if (error instanceof OutcomeUnknown) {
                claim.abandon();
                return problem("outcome-unknown", {status: 504, detail: "The service does not know whether the request was done."});
            }
            if (isNotExecuted(error)) {
                await claim.release();
                return problem("not-executed", {retryAfter: 1});
            }
            const {status} = answer;
            // What a service says about half an upload is no answer to the whole one. A 5xx may come after an effect.
            const half = isCut(req) && status >= 400 && status < 500;
            if (half || status === 425 || status === 429 || this.options.mode === "loose" && status >= 400) await claim.release();
            else await claim.finish(status >= 400 ? "FAILED" : "SUCCEEDED", write(answer), "http");
            return answer;
        } catch (failed) {
            if (!(failed instanceof IdemError)) throw failed;
            console.error(`idem: the answer to ${claim} could not be recorded: ${failed.message}`);
            return problem("outcome-unknown", {status: 504,
                detail: "The request was executed and its answer could not be recorded. Do not repeat it with another key."});
        }
    }
}

function stored({state, kind, result}) {
    if (state === "failed" && (kind !== "http" || result === null)) return problem(kind === "http" ? "failed" : "settled");
    if (result === null) return problem("not-replayable");
    const answer = kind === "http" ? read(result) : settled(result);
    return {...answer, headers: [...answer.headers, ["Idempotent-Replayed", "true"]]};
}

/** Read a request's body and put it back, so that a body parser can read it again; null if it is too long. */
function peek(req, most) {
    return new Promise((resolve, reject) => {
        const chunks = [];
        let length = 0;
        const end = (settle, value) => {
            for (const [name, listener] of Object.entries(listeners)) req.off(name, listener);
            process.nextTick(settle, value); // then the stream knows that nobody waits for "readable" any more
        };
        const listeners = {
            readable() {
                while (req.readableLength > 0) chunks.push(req.read());
                length = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
                if (length > most) return end(resolve, null);
                if (!req.complete) return undefined;
                const body = Buffer.concat(chunks);
                if (body.length) req.unshift(body); // before the stream says "end", which it does in the next tick
                else delete req.headers["transfer-encoding"]; // it was chunked, and there was nothing: so there is no body to be parsed
                return end(resolve, body);
            },
            error: (error) => end(reject, error),
            close: () => end(reject, new Error("the client closed the connection")),
        };
        if (req.readableEnded || req.readableFlowing) return reject(new Error("the body was read already: put idempotency() before the body parser"));
        const announced = req.headers["content-length"];
        if (Number(announced) > most) return resolve(null);
        // To look at a stream of no bytes is to end it, and a body parser would not see that.
        if (!Number(announced ?? 0) && !req.headers["transfer-encoding"]) return resolve(Buffer.alloc(0));
        for (const [name, listener] of Object.entries(listeners)) req.on(name, listener);
        return req.complete && listeners.readable();
    });
}

function send(res, answer) {
    res.statusCode = answer.status;
    for (const [name, value] of Object.entries(grouped(answer.headers))) res.setHeader(name, value);
    if (answer.status !== 204 && answer.status !== 304) res.setHeader("Content-Length", answer.body.length);
    res.end(answer.body);
}

/** Keep back what is written to a response until it is recorded. `headers`: those that others have set. */
function hold(res, guard, claim, headers) {
    const own = {write: res.write, end: res.end, writeHead: res.writeHead, flushHeaders: res.flushHeaders, destroy: res.destroy};
    const before = {...headers}, chunks = [];
    let sent = false, ended = false;
    const add = (chunk, encoding) => {
        if (chunk !== undefined && chunk !== null && typeof chunk !== "function")
            chunks.push(typeof chunk === "string" ? Buffer.from(chunk, typeof encoding === "string" ? encoding : "utf8") : Buffer.from(chunk));
    };
    Object.defineProperty(res, "headersSent", {get: () => sent, configurable: true});
    res.flushHeaders = () => {};
    res.destroy = (...args) => {
        if (!ended) claim.abandon(); // the service will hardly answer any more: if it does before the lease is over, that is recorded
        return own.destroy.apply(res, args);
    };
    res.writeHead = (status, ...rest) => {
        const given = rest.find((part) => part && typeof part === "object") ?? {};
        res.statusCode = status;
        for (const [name, value] of Object.entries(Array.isArray(given) ? grouped(byTwo(given)) : given)) res.setHeader(name, value);
        sent = true;
        return res;
    };
    res.write = (chunk, encoding, written) => {
        sent = true;
        if (!ended) add(chunk, encoding);
        const callback = typeof encoding === "function" ? encoding : written;
        if (callback) process.nextTick(callback);
        return true;
    };
    res.end = (...args) => {
        if (ended) return res;
        sent = ended = true;
        add(args[0], args[1]);
        const callback = args.find((arg) => typeof arg === "function");
        if (callback) res.once("finish", callback);
        const answer = answerOf(res.statusCode, res.getHeaders(), before, Buffer.concat(chunks));
        guard.record(claim, answer, res.req).then((told) => {
            delete res.headersSent;
            Object.assign(res, own);
            if (told === answer) return res.end(answer.body);
            for (const name of res.getHeaderNames()) if (!(name in before)) res.removeHeader(name);
            return send(res, told);
        }, (error) => res.destroy(error));
        return res;
    };
}

function byTwo(list) {
    return list.every(Array.isArray) ? list : list.flatMap((name, i) => i % 2 ? [] : [[name, list[i + 1]]]);
}

const undone = (error) => isNotExecuted(error) || error instanceof OutcomeUnknown;

/**
 * Middleware for Express and every other framework that passes (req, res, next). The request has its claim in `req.idem`.
 * Put it before the body parser.
 */
export function idempotency(client, options) {
    const guard = new Guard(client, options);
    return (req, res, next) => {
        guard.admit(req, req.originalUrl ?? req.url, req, (most) => peek(req, most)).then(({claim, answer}) => {
            if (answer) return send(res, answer);
            if (!claim) return next();
            req.idem = claim;
            hold(res, guard, claim, res.getHeaders());
            return storage.run(claim, () => next());
        }).catch(next);
    };
}

/** The last error handler of an Express application: a handler that throws NotExecuted or OutcomeUnknown is answered with 503 or 504. */
export function idempotencyErrors(error, req, res, next) {
    if (!req.idem || !undone(error)) return next(error);
    req.idem.reported = error;
    return res.end();
}

/** Middleware for Koa. The claim is in `ctx.state.idem`. Put it before the body parser. */
export function koaIdempotency(client, options) {
    const guard = new Guard(client, options);
    return async (ctx, next) => {
        const {claim, answer} = await guard.admit(ctx.req, ctx.originalUrl, ctx, (most) => peek(ctx.req, most));
        if (answer) {
            ctx.respond = false;
            return send(ctx.res, answer);
        }
        if (!claim) return next();
        ctx.state.idem = claim;
        hold(ctx.res, guard, claim, ctx.response.headers);
        // Koa does not answer a client that went away: then nothing would be recorded.
        Object.defineProperty(ctx.response, "writable", {get: () => !ctx.res.writableEnded});
        try {
            return await storage.run(claim, next);
        } catch (error) {
            if (!undone(error)) throw error; // Koa answers it, and that is recorded
            claim.reported = error;
            return ctx.res.end();
        }
    };
}

/** A plugin for Fastify: `fastify.register(fastifyIdempotency(client, options))`. The claim is in `request.idem`. */
export function fastifyIdempotency(client, options) {
    const guard = new Guard(client, options);
    const plugin = (fastify, _, ready) => {
        fastify.decorateRequest("idem", null);
        fastify.addHook("preParsing", (request, reply, payload, go) => {
            guard.admit(request.raw, request.raw.url, request, (most) => peek(request.raw, most)).then(({claim, answer}) => {
                if (answer) return reply.code(answer.status).headers(grouped(answer.headers)).send(answer.body);
                if (!claim) return go(null, payload);
                request.idem = claim;
                hold(reply.raw, guard, claim, reply.getHeaders());
                return storage.run(claim, () => go(null, payload.readableEnded ? Readable.from([]) : payload));
            }).catch(go);
        });
        fastify.addHook("onError", async (request, reply, error) => {
            if (request.idem && undone(error)) request.idem.reported = error;
        });
        ready();
    };
    plugin[Symbol.for("skip-override")] = true; // its hooks are those of the scope that registers it
    return plugin;
}
