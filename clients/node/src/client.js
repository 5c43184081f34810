// Run work once: the contract of clients/README.md.
import {AsyncLocalStorage} from "node:async_hooks";
import {createHash, randomBytes} from "node:crypto";
import {setTimeout as sleep} from "node:timers/promises";

import {
    Failed, InProgress, LeaseLost, Mismatch, NotExecuted, OutcomeUnknown, Refused, ResultNotKept, TokenUnknown, TokenUsed,
    Unavailable,
} from "./errors.js";
import {Broken, Pool, parseAddress} from "./wire.js";

const TRANSIENT = new Set(["UNAVAILABLE", "LOST", "OVERLOADED", "CLOSED", "MEMORY", "TIMEOUT"]);
const DEFAULTS = {scope: "default", mode: "strict", ttl: 86400000, lease: 30000, wait: 0, deadline: 30000, token: false,
    failOpen: false, dump: (value) => Buffer.from(JSON.stringify(value === undefined ? null : value)), load: (bytes) => JSON.parse(bytes)};
const storage = new AsyncLocalStorage();

/** JSON that two languages write alike: see clients/README.md. */
export function canonical(value) {
    if (value && typeof value.toJSON === "function") value = value.toJSON();
    if (Array.isArray(value)) return "[" + value.map((v) => canonical(v === undefined ? null : v)).join(",") + "]";
    if (value && typeof value === "object") {
        const names = Object.keys(value).filter((name) => value[name] !== undefined);
        names.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
        return "{" + names.map((name) => JSON.stringify(name) + ":" + canonical(value[name])).join(",") + "}";
    }
    return typeof value === "bigint" ? String(value) : JSON.stringify(value);
}

/** 64 hex digits over what was asked. */
export function fingerprint(args) {
    return createHash("sha256").update(canonical(args)).digest("hex");
}

/** The claim of the work that runs here: its fence, and a signal that is aborted when its lease is lost. */
export function current() {
    const claim = storage.getStore();
    if (!claim) throw new Error("no work of idem runs here");
    return claim;
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
        this.options = {...DEFAULTS, ...options};
    }

    choose(options) {
        const chosen = {...this.options, ...Object.fromEntries(Object.entries(options).filter(([, v]) => v !== undefined))};
        if (chosen.mode !== "strict" && chosen.mode !== "loose") throw new TypeError('mode is "strict" or "loose"');
        if (chosen.failOpen && chosen.mode === "strict") throw new TypeError('failOpen needs mode "loose": strict work never runs without its record');
        return chosen;
    }

    /** Send until there is an answer. The same command again is safe: it carries a nonce or a fence. */
    async ask(args, deadline, wait = 0) {
        const end = Date.now() + deadline + wait;
        let sent = false;
        for (let pause = 20; ; pause = Math.min(pause * 2, 1000)) {
            let cause;
            try {
                return await this.pool.call(args, wait);
            } catch (error) {
                if (error instanceof Broken) sent ||= error.sent;
                else if (error instanceof Refused && TRANSIENT.has(error.word)) sent ||= error.word === "LOST";
                else throw error;
                cause = error;
            }
            const delay = pause * (0.5 + Math.random());
            if (Date.now() + delay > end) {
                if (sent) throw new OutcomeUnknown(`no answer in time, and it may have been stored: ${cause.message}`, {cause});
                throw new Unavailable(`the server cannot be reached: ${cause.message}`, {cause});
            }
            await sleep(delay);
        }
    }

    /**
     * Run `work` at most once for the key; every caller gets its result. `work` gets the claim: `claim.fence` grows with every
     * execution, `claim.signal` is aborted when the lease is lost.
     */
    async once(key, work, options = {}) {
        const o = this.choose(options);
        let got;
        try {
            got = await this.begin(key, o, options);
        } catch (error) {
            if (!(error instanceof Unavailable) || !o.failOpen) throw error;
            console.warn(`idem: running without protection (failOpen): ${error.message}`);
            return work({fence: 0, signal: new AbortController().signal});
        }
        return "value" in got ? got.value : this.work(got.claim, work);
    }

    async begin(key, o, given) {
        const args = ["BEGIN", o.scope, key, o.mode.toUpperCase(), "LEASE", Math.max(1, Math.round(o.lease)), "TTL",
            Math.max(1, Math.round(o.ttl)), "NONCE", randomBytes(8).toString("hex")];
        if ("arguments" in given) args.push("FP", fingerprint(given.arguments));
        if (o.wait > 0) args.push("WAIT", Math.round(o.wait));
        if (o.token) args.push("TOKEN");
        const started = Date.now(), where = `${o.scope}/${key}`;
        const [verdict, ...values] = await this.ask(args, o.deadline, o.wait);
        switch (String(verdict)) {
        case "started": return {claim: {scope: o.scope, key, fence: values[0], options: o, ends: started + o.lease}};
        case "replay": return {value: replayed(values, o, where)};
        case "busy": throw new InProgress(`${where} is being executed`, values[0]);
        case "doubt": throw new OutcomeUnknown(`nobody knows whether ${where} was executed: settle it`);
        case "mismatch": throw new Mismatch(`${where} was used before with other arguments`);
        case "duplicate": throw new TokenUsed("the token was used before");
        case "unknown": throw new TokenUnknown(`there is no such token for ${o.scope}`);
        default: throw new OutcomeUnknown(`unexpected verdict ${verdict} for ${where}`);
        }
    }

    async work(claim, work) {
        const controller = new AbortController();
        claim.signal = controller.signal;
        const stop = this.keep(claim, controller);
        let value, error, failed = false;
        try {
            value = await storage.run(claim, () => work(claim));
        } catch (e) {
            [error, failed] = [e, true];
        } finally {
            stop();
        }
        await this.conclude(claim, failed, error, value);
        if (failed) throw error;
        return value;
    }

    /** Renew every third of the lease; returns a function that ends it. */
    keep(claim, controller) {
        let over = false, timer;
        const plan = () => { timer = setTimeout(renew, claim.options.lease / 3); };
        const renew = async () => {
            const asked = Date.now();
            let good = false;
            try {
                const args = ["RENEW", claim.scope, claim.key, claim.fence, Math.max(1, Math.round(claim.options.lease))];
                good = String((await this.ask(args, Math.max(0, claim.ends - asked)))[0]) === "ok";
            } catch { /* no answer before the lease was over */ }
            if (good) claim.ends = asked + claim.options.lease;
            if (over) return;
            if (good) plan();
            else controller.abort(new LeaseLost(`the lease of ${claim.scope}/${claim.key} is over`));
        };
        plan();
        return () => {
            over = true;
            clearTimeout(timer);
        };
    }

    async conclude(claim, failed, error, value) {
        const loose = claim.options.mode === "loose";
        if (failed && error instanceof OutcomeUnknown) return;
        if (failed && (loose || error instanceof NotExecuted)) {
            await this.finish(claim, null).catch((e) => tell(claim, e));
        } else if (failed) {
            const told = Buffer.from(JSON.stringify({error: error?.name ?? "Error", message: String(error?.message ?? error)}));
            await this.finish(claim, "FAILED", told).catch((e) => tell(claim, e));
        } else {
            let result;
            try {
                result = claim.options.dump(value);
            } catch (e) { // the result cannot be written: the work is done all the same
                await this.finish(claim, "SUCCEEDED", null);
                throw e;
            }
            await this.finish(claim, "SUCCEEDED", result);
        }
    }

    /** Record the outcome; null: release the claim. A result of null is recorded as too large to keep. */
    async finish(claim, outcome, result) {
        const args = [outcome ? "FINISH" : "RELEASE", claim.scope, claim.key, claim.fence];
        if (outcome) args.push(outcome, ...(result === null ? ["", "NOREPLAY"] : [result]));
        let verdict;
        try {
            [verdict] = await this.ask(args, claim.options.deadline);
        } catch (error) {
            if (error instanceof Unavailable) throw new OutcomeUnknown(`the work was done, and its result could not be recorded: ${error.message}`);
            if (error instanceof Refused && outcome && result) return this.finish(claim, outcome, null);
            throw error;
        }
        if (outcome && String(verdict) !== "ok") throw new LeaseLost(`somebody else decided about ${claim.scope}/${claim.key} meanwhile (${verdict})`);
        return undefined;
    }

    /** A one-time token for the subject. */
    async issue(subject, ttl = 300000) {
        return String((await this.ask(["ISSUE", subject, "TTL", ttl], this.options.deadline))[1]);
    }

    /** Use a token up. Throws TokenUsed or TokenUnknown. */
    async redeem(token, subject) {
        const [verdict] = await this.ask(["REDEEM", token, subject, "NONCE", randomBytes(8).toString("hex")], this.options.deadline);
        if (String(verdict) === "duplicate") throw new TokenUsed("the token was used before");
        if (String(verdict) !== "redeemed") throw new TokenUnknown("there is no such token for this subject");
    }

    close() {
        this.pool.close();
    }
}

function tell(claim, error) {
    console.error(`idem: the outcome of ${claim.scope}/${claim.key} could not be recorded: ${error.message}`);
}

function replayed([state, , , result], options, where) {
    if (String(state) === "failed") throw failure(result);
    if (result === null) throw new ResultNotKept(`${where} was done; its result was too large to keep`);
    return options.load(result);
}

function failure(result) {
    try {
        const told = JSON.parse(result);
        if (typeof told.error === "string") return new Failed(told.error, told.message);
    } catch { /* a text that an operator wrote */ }
    return new Failed(null, String(result ?? ""));
}
