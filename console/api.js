// The server's HTTP API as the console uses it, and how stored results are read (docs/results.md).
import { signal } from "./state.js";

export const session = signal(null); // what GET /v1/session answers; null: not asked yet
export const message = signal("");
const HEADER = { "X-Idem-Console": "1" }; // a page of another site cannot send it

export class Problem extends Error {
    constructor(status, body) {
        super(body.detail || body.title);
        this.status = status;
    }
}

export async function call(method, path, fields, secret) {
    const headers = { ...HEADER };
    if (fields) headers["Content-Type"] = "application/json";
    if (secret) headers["X-Idem-Secret"] = toBase64(new TextEncoder().encode(secret));
    const answer = await fetch(path, { method, headers, body: fields && JSON.stringify(fields) });
    const said = await answer.json();
    if (answer.ok) return said;
    if (answer.status === 401 && path !== "/v1/session") await refreshSession();
    throw new Problem(answer.status, said);
}

export async function refreshSession() {
    session.value = await call("GET", "/v1/session");
}

export const may = (right) => session.value.rights.includes(right);
export const loggedOut = () => session.value.login && !session.value.name;

export function recordPath(record, verb) {
    const path = record.type === "lock" ? "/v1/locks/" + encodeURIComponent(record.id)
        : `/v1/records/${encodeURIComponent(record.scope)}/${encodeURIComponent(record.id)}`;
    return verb ? path + "/" + verb : path;
}

export function query(path, fields) {
    const given = Object.entries(fields).filter(([, v]) => v !== "" && v !== undefined);
    return given.length ? path + "?" + new URLSearchParams(given) : path;
}

// ---- figures: the last hour, then a row a second -----------------------------

export const stats = signal({ names: [], rows: [], facts: null, at: 0 });

let ahead = 0; // the server's clock, of this browser's
export const serverNow = () => Date.now() + ahead;

// The rows that are missing here: an hour at first, a few after a break.
async function catchUp() {
    const { rows, at } = stats.value;
    const seconds = Math.min(3600, rows.length ? Math.ceil((Date.now() - at) / 1000) + 5 : 3600);
    const past = await call("GET", "/v1/stats?seconds=" + seconds);
    const fresh = past.samples.filter((row) => !rows.length || row[0] > rows.at(-1)[0]);
    stats.value = { names: past.names, rows: [...rows, ...fresh].slice(-3600), facts: past.facts, at: Date.now() };
}

async function follow() {
    await catchUp();
    const answer = await fetch("/v1/events", { headers: HEADER });
    if (!answer.ok) throw new Problem(answer.status, await answer.json());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events.filter((e) => e.startsWith("data: "))) {
            const rows = [...stats.value.rows.slice(-3599), JSON.parse(event.slice(6))];
            ahead = rows.at(-1)[0] - Date.now();
            stats.value = { ...stats.value, rows, at: Date.now() };
        }
    }
    await refreshSession();
}

let following = false;
export async function followStats() {
    if (following) return;
    following = true;
    for (let pause = 2000; session.value && !loggedOut(); pause = Math.min(2 * pause, 30000)) {
        try { await follow(); pause = 1000; } catch { /* again, later each time */ }
        await new Promise((done) => setTimeout(done, pause));
        if (loggedOut()) break;
        try { await refreshSession(); } catch { /* the server is away */ }
    }
    following = false;
}

export const column = (name) => stats.value.names.indexOf(name);
export function latest(name) {
    const row = stats.value.rows.at(-1);
    return row ? row[column(name)] : null;
}

// ---- bytes and results --------------------------------------------------------

export function toBase64(bytes) {
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return btoa(text);
}

const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// The text that these bytes are, or null.
function toText(bytes) {
    try { return new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { return null; }
}

// {head, headers, body} of a stored result; a body that is not text is {bytes}.
export function readResult(kind, base64) {
    const bytes = fromBase64(base64);
    let end = 0, head = null;
    if (kind === "http" || kind === "exec") {
        while (end < bytes.length && !(bytes[end] === 10 && bytes[end + 1] === 10)) end++;
        head = toText(bytes.slice(0, end));
    }
    const rest = head === null ? bytes : bytes.slice(end + 2);
    const [first, ...lines] = head === null ? [""] : head.split("\n");
    return { head: first, headers: lines, body: toText(rest), bytes: rest.length };
}

// The fields of a settle for an answer that somebody composed; throws [word, values] if it cannot be.
export function composeResult(answer) {
    if (answer.as === "raw") return { kind: "raw", result: answer.body };
    const lines = answer.headers.split("\n").map((l) => l.trim()).filter(Boolean);
    if (!/^[2-5]\d\d$/.test(answer.status)) throw ["badStatus"];
    const bad = lines.find((l) => !/^[!#$%&'*+.^_`|~0-9A-Za-z-]+: ?[^\r\n\0]*$/.test(l));
    if (bad) throw ["badHeader", { line: bad }];
    const text = [answer.status, ...lines.map((l) => l.replace(/: ?/, ": ")), "", answer.body].join("\n");
    return { kind: "http", result_base64: toBase64(new TextEncoder().encode(text)) };
}

export const shellQuote = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
