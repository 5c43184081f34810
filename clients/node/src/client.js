// Run work once: the contract of clients/README.md.
import {AsyncLocalStorage} from "node:async_hooks";
import {createHash, randomBytes} from "node:crypto";
import {setTimeout as sleep} from "node:timers/promises";

import {
    isNotExecuted, Done, Failed, InProgress, LeaseLost, Mismatch, NotExecuted, OutcomeUnknown, Refused, ResultNotKept, TokenUnknown, TokenUsed,
    Unavailable,
} from "./errors.js";
import {Broken, Pool, REPLY_MS, STRANGE, parseAddress} from "./wire.js";

const NONE = {};
const TRANSIENT = new Set(["UNAVAILABLE", "LOST", "OVERLOADED", "CLOSED", "MEMORY", "TIMEOUT", "BUSY"]);
export const DEFAULTS = {scope: "default", mode: "strict", ttl: 86400000, lease: 30000, wait: 0, deadline: 30000, token: false,
    failOpen: false, dump: toJson, load: (bytes) => JSON.parse(bytes)};
export const storage = new AsyncLocalStorage();

function toJson(value) {
    const text = JSON.stringify(value === undefined ? null : value);
    if (text === undefined) throw new TypeError(`JSON has no ${typeof value}`);
    return text;
}

/** A missing one must not become one that everybody shares, nor may UTF-8 make one of two. */
const isText = (value) => typeof value === "string" && !/\p{Surrogate}/u.test(value) || Number.isFinite(value);

let random, used = 0; // random bytes, made many at a time: that is quicker

function nonce() {
    if (used % 4096 === 0) random = randomBytes(4096);
    const at = used % 4096;
    used += 8;
    // And the time, because two machines may be restored from one snapshot, with the same bytes.
    random.writeUInt32LE((random.readUInt32LE(at) ^ process.hrtime()[1]) >>> 0, at);
    return random.toString("hex", at, at + 8);
}

/** JSON that two languages write alike: see clients/README.md. */
export function canonical(value) {
    if (value && typeof value.toJSON === "function") value = value.toJSON();
    if (Array.isArray(value)) return "[" + value.map((v) => canonical(v === undefined ? null : v)).join(",") + "]";
    if (value && typeof value === "object") {
        const names = Object.keys(value).filter((name) => value[name] !== undefined);
        if (!names.length && !ArrayBuffer.isView(value) && ![Object.prototype, null].includes(Object.getPrototypeOf(value)))
            throw new TypeError(`${value.constructor?.name} shows nothing of what it holds: choose with arguments what makes the request the same one`);
        names.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
        return "{" + names.map((name) => JSON.stringify(name) + ":" + canonical(value[name])).join(",") + "}";
    }
    return typeof value === "bigint" ? String(value) : toJson(value);
}

/** 64 hex digits over what was asked. */
export function fingerprint(args) {
    return createHash("sha256").update(canonical(args === undefined ? null : args)).digest("hex");
}

/** The claim of the work that runs here: its fence, and a signal that is aborted when its lease is lost. */
export function current() {
    const claim = storage.getStore();
    if (!claim) throw new Error("no work of idem runs here");
    return claim;
}

/** What JavaScript would make a number of, or NaN, is refused before anything is sent. A result that is kept for no time does not protect. */
function checkTime(name, value, least) {
    if (typeof value !== "number" || !(value >= least) || value === Infinity && name !== "deadline")
        throw new TypeError(`${name} is a number of milliseconds, ${least} or more, not ${show(value)}`);
}

const show = (value) => typeof value === "string" ? JSON.stringify(value) : typeof value === "object" && value ? "an object" : String(value);

/** An object's text is "[object Object]", a scope that everybody would share. */
function checkScope(scope) {
    if (!isText(scope)) throw new TypeError(`scope is text, not ${show(scope)}`);
}

/** once(key, place()) has run the work already, without protection. */
export function checkWork(work) {
    if (typeof work !== "function")
        throw new TypeError(`work must be a function, not ${show(work)}: write once(key, () => place()), not once(key, place())`);
}

/** Options over defaults; undefined changes nothing, but for the arguments. */
export function choose(defaults, options) {
    if (options === NONE) return defaults;
    const chosen = {...defaults, ...Object.fromEntries(Object.entries(options).filter(([k, v]) => v !== undefined || k === "arguments"))};
    for (const name of Object.keys(chosen))
        if (name !== "arguments" && !Object.hasOwn(DEFAULTS, name)) throw new TypeError(`there is no option ${name}`);
    checkScope(chosen.scope);
    checkTime("ttl", chosen.ttl, 1);
    checkTime("lease", chosen.lease, 1);
    checkTime("wait", chosen.wait, 0);
    checkTime("deadline", chosen.deadline, 0);
    if (chosen.mode !== "strict" && chosen.mode !== "loose") throw new TypeError('mode is "strict" or "loose"');
    if (chosen.failOpen && chosen.mode === "strict") throw new TypeError('failOpen needs mode "loose": strict work never runs without its record');
    return chosen;
}

export class Client {
    /**
     * A client: share one.
     *
     *     const client = new Client("idem://127.0.0.1:6390", {scope: "shop"});
     *     const order = await client.once("order-7", () => placeOrder(cart), {arguments: cart});
     */
    constructor(url, options = {}) {
        this.pool = new Pool(parseAddress(url));
        this.keeper = new Keeper();
        this.options = choose(DEFAULTS, options);
    }

    /** Send until there is an answer. The same command again is safe: it carries a nonce or a fence. */
    async ask(args, deadline, wait = 0) {
        const end = performance.now() + deadline + wait;
        let sent = false;
        for (let pause = 20; ; pause = Math.min(pause * 2, 1000)) {
            let cause;
            try {
                const reply = await this.pool.call(args, Math.min(end - performance.now(), REPLY_MS + wait), wait > 0);
                if (args[0] === "BEGIN" || String(reply[0]) !== "busy") return reply; // "busy" is an answer to BEGIN alone
                throw new Refused("BUSY", "a transaction holds the record in the database");
            } catch (error) {
                if (error instanceof Broken) sent ||= error.sent;
                else if (error instanceof Refused && TRANSIENT.has(error.word)) sent ||= error.word === "LOST";
                else throw error;
                cause = error;
            }
            const delay = pause * (0.5 + Math.random());
            if (performance.now() + delay > end) {
                if (sent) throw new OutcomeUnknown(`no reply in time, and it may have been stored: ${cause.message}`, {cause});
                if (cause instanceof Refused) throw new Unavailable(`the server refused it until the deadline: ${cause.message}`, {cause});
                if (cause.message.includes(STRANGE)) // something was reached
                    throw new Unavailable(`${cause.message} give the address of its socket or its RESP port`, {cause});
                throw new Unavailable(`the server cannot be reached: ${cause.message}; is idem serve running at this address?`, {cause});
            }
            await sleep(delay);
        }
    }

    /**
     * Run `work` at most once for the key; every caller gets its result. `work` gets the claim: `claim.fence` grows with every
     * execution, `claim.signal` is aborted when the lease is lost.
     */
    async once(key, work, options = NONE) {
        checkWork(work);
        const o = choose(this.options, options);
        let begun;
        try {
            begun = await this.begin(key, o);
        } catch (error) {
            if (!(error instanceof Unavailable) || !o.failOpen) throw error;
            console.warn(`idem: running without protection (failOpen): ${error.message}`);
            return work({scope: o.scope, key, fence: 0, signal: new AbortController().signal});
        }
        return begun.claim ? this.work(begun.claim, work) : replayed(begun, o, `${o.scope}/${key}`);
    }

    /** Claim a key: {claim}, renewed until it is finished, released or abandoned; or what is stored: {state, kind, result}. */
    async begin(key, o) {
        checkScope(o.scope); // a middleware has got it from the request
        if (!isText(key)) throw new TypeError(`a key is text, not ${typeof key}: ${key}`);
        const args = ["BEGIN", o.scope, key, o.mode.toUpperCase(), "LEASE", Math.max(1, Math.round(o.lease)), "TTL",
            Math.max(1, Math.round(o.ttl)), "NONCE", nonce()];
        if ("arguments" in o) args.push("FP", fingerprint(o.arguments));
        if (o.wait > 0) args.push("WAIT", Math.round(o.wait));
        if (o.token) args.push("TOKEN");
        const asked = performance.now();
        const [verdict, ...values] = await this.ask(args, o.deadline, o.wait);
        if (String(verdict) === "started") return this.#sure(key, o, values[0], asked);
        return found(String(verdict), values[0], {state: String(values[0]), kind: String(values[1]), result: values[3]}, o.scope, key);
    }

    /** A BEGIN that has waited, or was sent again for long: how much of the lease is left is not known, so renew it before the work starts. */
    async #sure(key, o, fence, asked) {
        const now = performance.now();
        if (now - asked <= o.lease / 3) return {claim: new Claim(this, key, o, fence, asked)};
        try {
            const [verdict] = await this.ask(["RENEW", o.scope, key, fence, Math.max(1, Math.round(o.lease))], o.deadline);
            if (String(verdict) === "ok") return {claim: new Claim(this, key, o, fence, now)};
        } catch (error) {
            throw new OutcomeUnknown(`${o.scope}/${key} was claimed and could not be renewed: ${error.message}`, {cause: error});
        }
        return this.begin(key, o); // somebody decided meanwhile
    }

    async work(claim, work) {
        let value;
        try {
            value = ran(await storage.run(claim, work, claim));
        } catch (error) {
            await claim.failed(error);
            throw error;
        }
        let result;
        try {
            result = claim.options.dump(value);
        } catch (error) { // the result cannot be written: the work is done all the same
            await claim.finish("SUCCEEDED", null);
            throw new Done(`the work of ${claim} was done; its result cannot be written`, {cause: error});
        }
        await claim.finish("SUCCEEDED", result);
        return value;
    }

    /** A one-time token for the subject. */
    async issue(subject, ttl = 300000) {
        checkTime("ttl", ttl, 1);
        return String((await this.ask(["ISSUE", subject, "TTL", Math.round(ttl)], this.options.deadline))[1]);
    }

    /** Use a token up. Throws TokenUsed or TokenUnknown. */
    async redeem(token, subject) {
        const [verdict] = await this.ask(["REDEEM", token, subject, "NONCE", nonce()], this.options.deadline);
        if (String(verdict) === "duplicate") throw new TokenUsed("the token was used before");
        if (String(verdict) !== "redeemed") throw new TokenUnknown("there is no such token for this subject");
    }

    close() {
        this.pool.close();
    }
}

/** What the work returned, if that is a result. */
function ran(value) {
    if (typeof value?.next === "function" && (value[Symbol.iterator] ?? value[Symbol.asyncIterator]))
        throw new TypeError("the work returned an iterator, which has not run: its outcome cannot be recorded");
    return value;
}

/** One timer for the leases of all claims: each is renewed every third of it, and tells its work when it is over. */
class Keeper {
    #claims = new Set();
    #wakes = Infinity;
    #timer;

    watch(claim) {
        this.#claims.add(claim);
        if (claim.due < this.#wakes) this.#plan(claim.due);
    }

    forget(claim) {
        this.#claims.delete(claim);
    }

    #plan(at) {
        clearTimeout(this.#timer);
        this.#wakes = at;
        if (at < Infinity) this.#timer = setTimeout(() => this.#look(), Math.max(1, Math.ceil(at - performance.now()))).unref();
    }

    #look() {
        const now = performance.now();
        let next = Infinity;
        for (const claim of this.#claims) {
            if (claim.due <= now) claim.tend(now);
            next = Math.min(next, claim.due);
        }
        this.#plan(next);
    }
}

/** Work that is yours to do. */
export class Claim {
    #client;
    #lost; // made when somebody asks for the signal
    #ends;

    constructor(client, key, options, fence, asked) {
        this.#client = client;
        this.scope = options.scope;
        this.key = key;
        this.fence = fence;
        this.options = options;
        if (client) this.#lasts(asked);
    }

    /** Aborted when the lease is lost: stop working. */
    get signal() {
        return (this.#lost ??= new AbortController()).signal;
    }

    toString() {
        return `${this.scope}/${this.key}`;
    }

    #lasts(asked) {
        this.#ends = asked + this.options.lease;
        this.due = asked + this.options.lease / 3;
        this.#client.keeper.watch(this);
    }

    /** It is time to renew, or over: by this clock, whatever a renewal still waits for. */
    tend(now) {
        if (now >= this.#ends) return this.#lose();
        this.due = this.#ends;
        const args = ["RENEW", this.scope, this.key, this.fence, Math.max(1, Math.round(this.options.lease))];
        return this.#client.ask(args, this.#ends - now).then(([verdict]) => {
            if (this.due === Infinity) return;
            if (String(verdict) === "ok") this.#lasts(now);
            else this.#lose();
        }, (error) => error instanceof NotExecuted && !(error instanceof Unavailable) && this.#lose());
    }

    #lose() {
        if (this.due === Infinity) return;
        this.abandon();
        (this.#lost ??= new AbortController()).abort(new LeaseLost(`the lease of ${this} is over`));
    }

    /** The outcome is unknown: the claim stays until its lease is over. */
    abandon() {
        this.due = Infinity;
        this.#client.keeper.forget(this);
    }

    /** Give the key back: the request was not executed. */
    async release() {
        this.abandon();
        await this.#client.ask(["RELEASE", this.scope, this.key, this.fence], this.options.deadline);
    }

    /** Record "SUCCEEDED" or "FAILED". A result of null is recorded as one that was not kept. */
    async finish(outcome, result, kind = "raw") {
        this.abandon();
        const args = ["FINISH", this.scope, this.key, this.fence, outcome, result ?? "", "KIND", kind, ...(result === null ? ["NOREPLAY"] : [])];
        let verdict;
        try {
            [verdict] = await this.#client.ask(args, this.options.deadline);
        } catch (error) {
            if (error instanceof Refused && result !== null) return this.finish(outcome, null, kind);
            if (!(error instanceof NotExecuted)) throw error;
            throw new OutcomeUnknown(`the work was done, and its result could not be recorded: ${error.message}`, {cause: error});
        }
        if (String(verdict) !== "ok") throw new LeaseLost(`somebody else decided about ${this} meanwhile (${verdict})`);
        return undefined;
    }

    /** The work threw this: record, release or abandon. What goes wrong here is logged, for the caller gets the work's error. */
    async failed(error) {
        if (error instanceof OutcomeUnknown) return this.abandon();
        const recorded = this.options.mode === "loose" || isNotExecuted(error) ? this.release() : this.finish("FAILED", failure(error));
        return recorded.catch((e) => console.error(`idem: the outcome of ${this} could not be recorded: ${e.message}`));
    }
}

/** A failure as it is stored. */
export function failure(error) {
    const text = (read) => {
        try {
            return String(read());
        } catch {
            return "a value without a text";
        }
    };
    return JSON.stringify({error: text(() => error?.name ?? "Error"), message: text(() => error?.message ?? error)});
}

/** As a shell takes it. */
const word = (text) => /^[\w%+=:,./@-]+$/.test(text) ? text : "'" + String(text).replaceAll("'", "'\\''") + "'";

/** What a verdict other than "started" means: the stored outcome is returned, the rest is thrown. */
export function found(verdict, retryAfter, stored, scope, key) {
    const where = `${scope}/${key}`;
    switch (verdict) {
    case "replay": return stored;
    case "busy": throw new InProgress(`${where} is being executed`, retryAfter);
    case "doubt": throw new OutcomeUnknown(`nobody knows whether ${where} was executed: find out, then settle it `
        + `(idem doubts lists it; idem settle ${word(scope)} ${word(key)} --as …)`);
    case "mismatch": throw new Mismatch(`${where} was used before with other arguments; a retry must pass the first arguments; `
        + "other work needs another key");
    case "duplicate": throw new TokenUsed("the token was used before");
    case "unknown": throw new TokenUnknown("there is no such token for this subject");
    default: throw new OutcomeUnknown(`unexpected verdict ${verdict} for ${where}`);
    }
}

/** The value of a stored outcome, or the error that it is. */
export function replayed({state, result}, options, where) {
    if (state === "failed") throw stored(result);
    if (result === null) throw new ResultNotKept(`${where} was done; its result was not kept: it was too large, or could not be written`);
    try {
        return options.load(result);
    } catch (error) {
        throw new Done(`${where} was done; its result cannot be read`, {cause: error});
    }
}

function stored(result) {
    try {
        const told = JSON.parse(result);
        if (typeof told.error === "string") return new Failed(told.error, told.message);
    } catch { /* a text that an operator wrote */ }
    return new Failed(null, String(result ?? ""));
}
