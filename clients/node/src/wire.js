// The Redis protocol as idem speaks it, and connections that speak it.
import {readFileSync, statSync} from "node:fs";
import net from "node:net";
import tls from "node:tls";

import {Refused} from "./errors.js";

const CONNECT_MS = 2000;
export const REPLY_MS = 5000;
const IDLE_MAX = 16;
const SHARED_MAX = 512; // commands in flight on one connection: the server reads 1024
const TRUSTED_MS = 1000;
const URL_PARTS = /^(?:idem\+unix:(\/?[^/?][^?]*)|(idems?):\/\/(?:([^?]*)@)?(\[[^\]?]+\]|[^[\]:/?@,]+)(?::([0-9]{1,5}))?(?:\/[^?@]*)?)(?:\?(.*))?$/s;
export const STRANGE = "unexpected reply: is this an idem server?";

/** The connection failed. `sent`: the server may have got the command. */
export class Broken extends Error {
    constructor(cause, sent) {
        super(cause.message, {cause});
        this.sent = sent;
    }
}

/** What the command line takes for --server: unix:PATH, /PATH, HOST:PORT, or a URL, whose parts these are. */
function partsOf(text) {
    let url = text;
    if (/^(unix:|\/)/.test(text)) url = `idem+unix:${text.replace(/^unix:/, "")}`;
    else if (!/:\/\/|^idem\+unix:/.test(text) && /^([^?]*@)?[^/?@]*:[0-9]+$/.test(text)) url = `idem://${/^:[^@]*$/.test(text) ? "127.0.0.1" : ""}${text}`;
    const [found, ...parts] = URL_PARTS.exec(url) ?? [], port = Number(parts[4] ?? 6390);
    if (found && port > 0 && port < 65536) return parts;
    const flaw = text.startsWith("http") ? "the HTTP address of a server; clients need its socket or its RESP port" : "not an address";
    throw new TypeError(`"${text.split("@").pop()}" is ${flaw}: give unix:PATH, HOST:PORT or idems://HOST:PORT`); // without the secret
}

/** unix:PATH, HOST:PORT, idem://[name:secret@]host:port, idems://host:port?ca=FILE&cert=FILE&key=FILE (TLS) or idem+unix:/path */
export function parseAddress(url = process.env.IDEM_SERVER || "idem://127.0.0.1:6390") {
    const [path, scheme, user, host, port, query] = partsOf(url), encrypted = scheme === "idems";
    const from = (text) => text ? ["AUTH", ...(text.includes(":") ? [text.slice(0, text.indexOf(":")), text.slice(text.indexOf(":") + 1)] : [text])] : null;
    const files = Object.fromEntries(new URLSearchParams(query));
    const wrong = Object.keys(files).filter((name) => !encrypted || !["ca", "cert", "key"].includes(name));
    if (wrong.length) throw new TypeError(`the address has an unknown option: ${wrong.join(", ")}`);
    for (const name of Object.keys(files)) files[name] = readFileSync(files[name]);
    return {
        connect: path ? {path} : {host: host.replace(/^\[|\]$/g, ""), port: Number(port ?? 6390)},
        tls: encrypted && {...files, minVersion: "TLSv1.2", rejectUnauthorized: true},
        auth: from(user ? decodeURIComponent(user) : process.env.IDEM_AUTH),
    };
}

/** A command: one text where it has no bytes, which is quicker to make and to send than a buffer. */
function encode(args) {
    const parts = [];
    let text = `*${args.length}\r\n`;
    for (const arg of args) {
        if (arg instanceof Uint8Array) {
            parts.push(Buffer.from(`${text}$${arg.length}\r\n`), arg);
            text = "\r\n";
        } else {
            const value = String(arg);
            text += `$${Buffer.byteLength(value)}\r\n${value}\r\n`;
        }
    }
    return parts.length ? Buffer.concat([...parts, Buffer.from(text)]) : text;
}

/** One reply at `at`: {value, end}, or null if it is not all here. Bulk strings are Buffers. */
function parse(data, at = 0) {
    let line = at;
    while (line < data.length && data[line] !== 13) line++;
    if (line + 1 >= data.length) return null;
    const text = data.toString("latin1", at + 1, line), end = line + 2;
    switch (data[at]) {
    case 42: { // *
        const items = [];
        let next = end;
        for (let i = 0; i < Number(text); i++) {
            const item = parse(data, next);
            if (!item) return null;
            items.push(item.value);
            next = item.end;
        }
        return {value: items, end: next};
    }
    case 36: { // $
        if (text === "-1") return {value: null, end};
        const stop = end + Number(text);
        return data.length < stop + 2 ? null : {value: data.subarray(end, stop), end: stop + 2};
    }
    case 58: return {value: Number(text), end}; // :
    case 43: return {value: Buffer.from(text), end}; // +
    case 45: return {value: refusal(data.toString("utf8", at + 1, line)), end}; // -
    default: throw new Error(STRANGE);
    }
}

function refusal(text) {
    const [, word, said] = /^(\S*) ?(.*)/s.exec(text);
    // A server that has as many clients as it takes will have room again: for the caller it is away.
    return new Refused(word === "ERR" && said.startsWith("max number of clients") ? "OVERLOADED" : word, said);
}

/** Answers come in the order of the commands, so commands need not wait for each other. */
class Connection {
    constructor(socket) {
        this.socket = socket;
        this.rest = null;
        this.queue = []; // the commands whose replies are to come
        this.live = 0; // those of them that somebody still waits for
        this.out = []; // what is to be sent
        this.wakes = Infinity;
        this.seenAt = performance.now();
        this.onIdle = this.onTrouble = () => {};
        socket.unref();
        socket.setNoDelay(true);
        socket.on("data", (chunk) => this.take(chunk));
        socket.on("error", (error) => this.fail(error));
        socket.on("end", () => this.fail(new Error("the server closed the connection")));
        socket.on("close", () => this.fail(new Error("the server closed the connection")));
    }

    take(chunk) {
        const data = this.rest ? Buffer.concat([this.rest, chunk]) : chunk;
        let at = 0;
        this.seenAt = performance.now();
        try {
            for (let reply; at < data.length && this.queue.length && (reply = parse(data, at)); at = reply.end)
                this.settle(this.queue.shift(), reply.value);
        } catch (error) {
            return this.fail(error);
        }
        this.rest = at < data.length ? data.subarray(at) : null;
        // What nobody asked for must not be taken for the answer to the next command.
        return this.rest && !this.queue.length ? this.fail(new Error(STRANGE)) : undefined;
    }

    settle(command, value) {
        if (command.over) return;
        command.over = true;
        if (--this.live === 0) {
            this.socket.unref();
            this.alone = false;
            this.onIdle();
        }
        if (value instanceof Error) command.reject(value);
        else command.resolve(value);
    }

    fail(error) {
        this.broken = true;
        this.socket.destroy();
        if (this.live) this.onTrouble();
        for (const command of this.queue.splice(0)) this.settle(command, new Broken(error, true));
        this.onIdle();
    }

    /** One timer for all commands: those whose time is over get no reply, and the connection no more commands; others may still get theirs. */
    watch(at) {
        if (at >= this.wakes) return;
        clearTimeout(this.timer);
        this.wakes = at;
        this.timer = setTimeout(() => {
            const now = performance.now();
            this.wakes = Infinity;
            for (const command of this.queue) {
                if (command.over) continue;
                if (command.end > now) {
                    this.watch(command.end);
                } else {
                    this.retired = true;
                    this.onTrouble();
                    this.settle(command, new Broken(new Error("no reply in time"), true));
                }
            }
        }, Math.max(1, Math.ceil(at - performance.now()))).unref(); // what keeps the process running is the socket, while a command waits
    }

    /** The reply; throws Broken or Refused. */
    call(args, replyMs) {
        return new Promise((resolve, reject) => {
            const bytes = encode(args), end = performance.now() + replyMs; // before it is queued: it may throw
            this.queue.push({resolve, reject, end, over: false});
            this.watch(end);
            if (this.live++ === 0) this.socket.ref();
            if (this.out.push(bytes) === 1) process.nextTick(() => this.flush()); // what is sent in this turn of the event loop goes out in one write
        });
    }

    flush() {
        const out = this.out.splice(0);
        this.socket.write(out.every((part) => typeof part === "string") ? out.join("") : Buffer.concat(out.map((part) => Buffer.from(part))));
    }
}

function open(address) {
    return new Promise((resolve, reject) => {
        if (address.connect.path && address.auth) {
            // Do not send a secret to a socket that somebody else made.
            const owner = statSync(address.connect.path).uid;
            if (owner !== 0 && owner !== process.geteuid()) throw new Error(`${address.connect.path} belongs to another user`);
        }
        const socket = address.tls ? tls.connect({...address.connect, ...address.tls}) : net.connect(address.connect);
        const timer = setTimeout(() => socket.destroy(new Error("connecting took too long")), CONNECT_MS);
        const failed = (error) => {
            clearTimeout(timer);
            reject(error || new Error("the connection was closed"));
        };
        socket.on("error", failed).on("close", failed).once(address.tls ? "secureConnect" : "connect", () => {
            clearTimeout(timer);
            socket.off("error", failed).off("close", failed);
            resolve(new Connection(socket));
        });
    });
}

function within(ms, promise) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error("connecting took too long")), Math.max(1, ms));
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Connections that are kept. Calls share one; a call that waits at the server has one to itself, for it would hold up the others. */
export class Pool {
    constructor(address) {
        this.address = address;
        this.connections = [];
    }

    pick(alone) {
        return this.connections.find((c) => !c.broken && !c.retired && !c.alone && c.live < (alone ? 1 : SHARED_MAX));
    }

    /** Make it likely that there is a connection to pick. */
    async prepare(alone, ms) {
        const connection = this.pick(alone);
        if (connection) {
            // The event loop may not have seen yet that the server closed a connection that was idle for a while: let it look. The second
            // turn is for a caller who comes from the loop's poll phase, which is not repeated before the first one.
            for (let turn = 0; turn < 2; turn++) await new Promise(setImmediate);
            connection.seenAt = performance.now();
        } else if (alone) {
            await within(ms, this.open());
        } else {
            await within(ms, this.opening ??= this.open().finally(() => this.opening = null));
        }
    }

    async open() {
        const connection = await open(this.address);
        // A server that has too many clients says so in one reply and closes: then the commands of many callers must not have been sent.
        try {
            await connection.call(this.address.auth ?? ["PING"], REPLY_MS);
        } catch (error) {
            connection.fail(error);
            throw error;
        }
        connection.onIdle = () => this.tidy(connection);
        connection.onTrouble = () => this.drop(); // the others are of the same age and likely broken too
        this.connections.push(connection);
    }

    /** One command and its reply, which may take so many milliseconds, connecting not counted. `alone`: it waits at the server. */
    call(args, replyMs, alone = false) {
        const connection = this.pick(alone);
        if (!connection || performance.now() - connection.seenAt > TRUSTED_MS) return this.prepared(args, replyMs, alone);
        connection.alone = alone;
        return connection.call(args, replyMs);
    }

    async prepared(args, replyMs, alone) {
        const end = performance.now() + replyMs;
        let connection;
        try {
            while (!(connection = this.pick(alone)) || performance.now() - connection.seenAt > TRUSTED_MS)
                await this.prepare(alone, end - performance.now());
        } catch (error) {
            throw error instanceof Refused ? error : new Broken(error, false);
        }
        connection.alone = alone;
        return connection.call(args, replyMs);
    }

    /** Nobody waits for this connection: keep it, or not. */
    tidy(connection) {
        if (!this.closed && !connection.broken && !connection.retired && this.connections.length <= IDLE_MAX) return;
        this.connections = this.connections.filter((c) => c !== connection);
        connection.socket.destroy();
    }

    drop() {
        for (const connection of this.connections.filter((c) => c.live === 0)) this.tidy(Object.assign(connection, {retired: true}));
    }

    close() {
        this.closed = true;
        this.drop();
    }
}
