// Calling a service that uses idem, until there is an answer.
import {randomUUID} from "node:crypto";
import {setTimeout as sleep} from "node:timers/promises";

import {OutcomeUnknown} from "./errors.js";

/**
 * fetch() that is sent again until there is an answer. The key is made before the first try and kept through all of them. It gives the
 * answer of the service, or of the last try. It throws OutcomeUnknown where the service says that nobody knows, and fetch's error where no
 * try got an answer: send it again later, with the same key.
 */
export async function retryingFetch(url, init = {}, {key = randomUUID(), tries = 6, timeout = 30000, fetch = globalThis.fetch} = {}) {
    if (init.body && (typeof init.body.getReader === "function" || typeof init.body.pipe === "function"))
        throw new TypeError("a stream can be sent only once: give the body as text, bytes or a form");
    const headers = new Headers(init.headers);
    headers.set("Idempotency-Key", `"${key.replace(/[\\"]/g, "\\$&")}"`);
    for (let i = 1; ; i++) {
        let answer = null;
        try {
            answer = await attempt(fetch, url, {...init, headers}, timeout);
        } catch (error) {
            if (i >= tries || init.signal?.aborted) throw error;
        }
        if (answer) {
            const problem = await problemOf(answer);
            if (/[/#]outcome-unknown$/.test(problem.type))
                throw new OutcomeUnknown(`nobody knows whether the request with the key ${key} was executed`);
            if (problem.retryable !== true || i >= tries) return answer;
        }
        const after = /^\d{1,5}$/.test(answer?.headers.get("Retry-After") ?? "") ? answer.headers.get("Retry-After") * 1000 : 0;
        await sleep(Math.max(after, 100 * 2 ** Math.min(i - 1, 8) * (0.5 + Math.random())), undefined, {signal: init.signal});
    }
}

/** One try, with the body, for a connection may break in the middle of it. A server that never answers is not waited for. */
async function attempt(fetch, url, init, timeout) {
    const over = new AbortController(), end = () => over.abort(init.signal.reason);
    const timer = setTimeout(() => over.abort(new Error(`no answer after ${timeout} ms`)), timeout);
    if (init.signal?.aborted) end();
    init.signal?.addEventListener("abort", end);
    try {
        const answer = await fetch(url, {...init, signal: over.signal});
        await answer.clone().arrayBuffer();
        return answer;
    } finally {
        clearTimeout(timer);
        init.signal?.removeEventListener("abort", end);
    }
}

async function problemOf(answer) {
    if (!answer.headers.get("Content-Type")?.startsWith("application/problem+json")) return {};
    return await answer.clone().json().catch(() => null) ?? {};
}
