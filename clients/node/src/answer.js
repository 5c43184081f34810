// What middleware reads and answers: the key's header, problems (docs/problems.md) and stored answers (docs/results.md).

// What problem types begin with. The default is a name without a page.
const BASE = process.env.IDEM_PROBLEM_BASE || "urn:idem:problems/";
const KEY_MAX = 255, HEADERS_MAX = 100, HEAD_MAX = 65536, LOOK_MAX = 65536;
// Headers of one connection, and those that only the first caller may see.
const NOT_STORED = new Set(["content-length", "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    "proxy-authenticate", "proxy-authorization", "date", "set-cookie", "www-authenticate"]);

const PROBLEMS = {
    "key-missing": [400, "not executed", false, "An idempotency key is needed",
        "Send a key (by default the header Idempotency-Key) that is unique for this request, for instance a UUID, and the same key again with every retry of it."],
    "key-malformed": [400, "not executed", false, "The idempotency key is malformed", "Send the key as a quoted string of printable ASCII, at most 255 bytes, for instance \"order-7\"."],
    "in-progress": [409, "in progress", true, "The first request with this key is still running",
        "Send the same request again after a while: it will not run twice."],
    mismatch: [422, "not executed", false, "This key was used for a different request",
        "This key was used for a request with another method, path, query or body. If this is a retry, send exactly the first "
        + "request again: with a new key it could run twice. Use a new key only for a new request."],
    "outcome-unknown": [409, "outcome unknown", false, "It is not known whether this request was done",
        "The first request with this key was started and its outcome was lost. It will not be run again."],
    settled: [409, "failed for good", false, "This request was settled as failed", "It was declared failed and will not be run."],
    failed: [409, "failed for good", false, "This request failed before and will not be run again",
        "The first request with this key failed. It will not be run again."],
    "not-replayable": [410, "done", false, "It was done, but its response was not kept",
        "The request was done before. Its response was too large to keep."],
    "not-executed": [503, "not executed", true, "This attempt was not executed",
        "idem could not record this attempt, so it was not executed. An earlier one with the same key may have been: keep the key."],
    "body-too-large": [413, "not executed", false, "The request's body is too large",
        "The body is over the limit for requests with an idempotency key: send a smaller one."],
    "scope-missing": [400, "not executed", false, "The request does not say who sends it",
        "A key belongs to the caller who uses it. What names the caller here is missing or empty."],
    "scope-refused": [403, "not executed", false, "The caller's name cannot be used",
        "The value that names the caller is too long, or holds bytes that it must not."],
};

/** An answer: {status, headers: [[name, value]...], body}. `more` may have another status or detail, and retryAfter in seconds. */
export function problem(name, more = {}) {
    const [status, kind, retryable, title, detail] = PROBLEMS[name], type = BASE + name;
    const body = {type, title, status: more.status ?? status, detail: more.detail ?? detail, retryable, class: kind, documentation: type};
    const headers = [["Content-Type", "application/problem+json"], ["Link", `<${type}>; rel="describedby"`], ["Cache-Control", "no-store"]];
    if (more.retryAfter) headers.push(["Retry-After", String(more.retryAfter)]);
    return {status: body.status, headers, body: Buffer.from(JSON.stringify(body) + "\n")};
}

/** The key of a header: "abc" as the IETF draft writes it, or bare. Throws an Error with a sentence for the client. */
export function parseKey(header) {
    const text = header.replace(/^[ \t]+|[ \t]+$/g, "");
    const key = text.startsWith('"') ? quoted(text) : text;
    if (!key) throw new Error("The key is empty: send a value that is unique for this request, for instance a UUID.");
    if (key.length > KEY_MAX) throw new Error("The key is longer than 255 bytes: send a shorter one, for instance a UUID.");
    if (key.startsWith(" ") || key.endsWith(" ")) throw new Error("The key begins or ends with a space: remove the space.");
    if (text.startsWith('"')) return key;
    if (/[^!-~]|"/.test(key)) throw new Error("The key has a character that needs quotes, or that is not ASCII: send printable ASCII, in double quotes if it has a space, comma or quote.");
    if (key.includes(",")) throw new Error("The key has a comma, as if the header had been sent twice: send it once, or put it in double quotes if it is one key.");
    return key;
}

function quoted(text) {
    const [all, key] = /^"((?:[^"\\]|\\.)*)"/s.exec(text) ?? [];
    if (all === undefined) throw new Error("The key's closing quote is missing: add it, or send the key without quotes.");
    if (all.length !== text.length) throw new Error("Something follows the key's closing quote: remove it.");
    if (/[^ -~]/.test(key)) throw new Error("The key has a character that is not printable ASCII: send another key, for instance a UUID.");
    if (/\\[^"\\]/.test(key.replace(/\\\\/g, ""))) throw new Error('The key has an escape that is neither \\" nor \\\\.');
    return key.replace(/\\(.)/g, "$1");
}

/** A header as a list of [name, value]; values may be text, numbers or lists. */
function pairs(headers) {
    return Object.entries(headers).flatMap(([name, value]) => [].concat(value ?? []).map((v) => [name, String(v)]));
}

/** The answer of a service, without the headers that were set before it ran. */
export function answerOf(status, headers, before, body) {
    const changed = Object.fromEntries(Object.entries(headers).filter(([name, value]) => String(before[name]) !== String(value)));
    return {status, headers: pairs(changed), body};
}

/** An answer as it is stored with kind "http", or null if its head is too large for that. */
export function write(answer) {
    const headers = answer.headers.filter(([name, value]) => !NOT_STORED.has(name.toLowerCase()) && !/[\r\n\0]/.test(value));
    const head = Buffer.from(`${answer.status}\n${headers.map(([name, value]) => `${name}: ${value}\n`).join("")}\n`, "latin1");
    return headers.length > HEADERS_MAX || head.length > HEAD_MAX ? null : Buffer.concat([head, answer.body]);
}

/** A stored answer. */
export function read(stored) {
    const end = stored.indexOf("\n\n");
    if (end < 0) throw new Error("a stored answer without an end of its head");
    const [status, ...lines] = stored.toString("latin1", 0, end).split("\n");
    const headers = lines.map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).replace(/^ /, "")]);
    return {status: Number(status), headers, body: stored.subarray(end + 2)};
}

/** A success that was recorded without an HTTP answer: an operator settled it, or a service finished it itself. */
export function settled(body) {
    return body.length ? {status: 200, headers: [["Content-Type", typeOf(body)]], body} : {status: 204, headers: [], body};
}

function typeOf(bytes) {
    let type = "application/octet-stream";
    if (bytes.length > LOOK_MAX) return type;
    try {
        const text = new TextDecoder("utf-8", {fatal: true}).decode(bytes);
        if (!/[\0-\x08\x0b\x0c\x0e-\x1f]/.test(text)) type = "text/plain; charset=utf-8";
        if (/^[{[]/.test(text) && JSON.parse(text)) type = "application/json";
    } catch { // not UTF-8, or not JSON
    }
    return type;
}

/** The headers of an answer by name; one that occurs twice has a list. */
export function grouped(headers) {
    const all = {};
    for (const [name, value] of headers) all[name] = name in all ? [].concat(all[name], value) : value;
    return all;
}
