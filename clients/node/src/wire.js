// The Redis protocol as idem speaks it, and connections that speak it.
import {statSync} from "node:fs";
import net from "node:net";

import {Refused} from "./errors.js";

const CONNECT_MS = 2000;
export const REPLY_MS = 5000;
const IDLE_MAX = 16;
const TRUSTED_MS = 1000;

/** The connection failed. `sent`: the server may have got the command. */
export class Broken extends Error {
    constructor(cause, sent) {
        super(cause.message, {cause});
        this.sent = sent;
    }
}

/** idem://[name:secret@]host:port or idem+unix:/path */
export function parseAddress(url = process.env.IDEM_SERVER || "idem://127.0.0.1:6390") {
    const auth = process.env.IDEM_AUTH;
    const from = (text) => text ? ["AUTH", ...(text.includes(":") ? [text.slice(0, text.indexOf(":")), text.slice(text.indexOf(":") + 1)] : [text])] : null;
    if (url.startsWith("idem+unix:")) return {connect: {path: url.slice("idem+unix:".length)}, auth: from(auth)};
    if (!url.startsWith("idem://")) throw new TypeError("an address is idem://host:port or idem+unix:/path");
    const parts = new URL(url);
    const user = decodeURIComponent(parts.username), secret = decodeURIComponent(parts.password);
    return {
        connect: {host: parts.hostname.replace(/^\[|\]$/g, "") || "127.0.0.1", port: Number(parts.port) || 6390},
        auth: user || secret ? from(secret ? `${user}:${secret}` : user) : from(auth),
    };
}

/** A command as one text where it has no bytes, which is quicker to make and to send than many buffers. */
function encode(args) {
    const parts = [];
    let text = `*${args.length}\r\n`;
    for (const arg of args) {
        if (Buffer.isBuffer(arg)) {
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
    const line = data.indexOf("\r\n", at);
    if (line < 0) return null;
    const text = data.toString("utf8", at + 1, line), end = line + 2;
    switch (String.fromCharCode(data[at])) {
    case "*": {
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
    case "$": {
        if (text === "-1") return {value: null, end};
        const stop = end + Number(text);
        return data.length < stop + 2 ? null : {value: data.subarray(end, stop), end: stop + 2};
    }
    case ":": return {value: Number(text), end};
    case "+": return {value: Buffer.from(text), end};
    case "-": {
        const space = text.indexOf(" ");
        return {value: space < 0 ? new Refused(text, "") : new Refused(text.slice(0, space), text.slice(space + 1)), end};
    }
    default: throw new Error("unexpected reply: is this an idem server?");
    }
}

class Connection {
    constructor(socket) {
        this.socket = socket;
        this.chunks = [];
        this.pending = null;
        socket.setNoDelay(true);
        socket.on("data", (chunk) => this.take(chunk));
        socket.on("error", (error) => this.fail(error));
        socket.on("end", () => this.fail(new Error("the server closed the connection")));
        socket.on("close", () => this.fail(new Error("the server closed the connection")));
    }

    take(chunk) {
        this.chunks.push(chunk);
        const data = this.chunks.length === 1 ? chunk : Buffer.concat(this.chunks);
        let reply;
        try {
            reply = parse(data);
        } catch (error) {
            return this.fail(error);
        }
        if (!reply) {
            this.chunks = [data];
            return undefined;
        }
        this.chunks = [];
        const pending = this.pending;
        this.pending = null;
        return pending?.resolve(reply.value);
    }

    fail(error) {
        this.broken = true;
        this.socket.destroy();
        this.pending?.reject(error);
        this.pending = null;
    }

    call(args, replyMs) {
        return new Promise((resolve, reject) => {
            const timer = setTimeout(() => this.fail(new Error("no reply in time")), Math.max(1, replyMs));
            const settle = (then) => (value) => {
                clearTimeout(timer);
                this.socket.unref();
                this.usedAt = performance.now();
                then(value);
            };
            if (this.broken) return settle(reject)(new Error("the connection is closed"));
            this.pending = {resolve: settle(resolve), reject: settle(reject)};
            this.socket.ref();
            return this.socket.write(encode(args));
        });
    }
}

function open(address, ms) {
    return new Promise((resolve, reject) => {
        if (address.connect.path && address.auth) {
            // Do not send a secret to a socket that somebody else made.
            const owner = statSync(address.connect.path).uid;
            if (owner !== 0 && owner !== process.geteuid()) throw new Error(`${address.connect.path} belongs to another user`);
        }
        const socket = net.connect(address.connect);
        const timer = setTimeout(() => socket.destroy(new Error("connecting took too long")), Math.max(1, Math.min(ms, CONNECT_MS)));
        socket.once("error", reject);
        socket.once("close", () => reject(new Error("the connection was closed")));
        socket.once("connect", () => {
            clearTimeout(timer);
            socket.removeAllListeners("error");
            socket.removeAllListeners("close");
            resolve(new Connection(socket));
        });
    });
}

/** Connections that are kept; each serves one call at a time. */
export class Pool {
    constructor(address) {
        this.address = address;
        this.idle = [];
    }

    async take(ms) {
        while (this.idle.length) {
            const connection = this.idle.pop();
            // The event loop may not have seen yet that the server closed a connection that was idle for a while: let it look. The second
            // turn is for a caller who comes from the loop's poll phase, which is not repeated before the first one.
            if (performance.now() - connection.usedAt > TRUSTED_MS) for (let turn = 0; turn < 2; turn++) await new Promise(setImmediate);
            if (!connection.broken) return connection;
        }
        const connection = await open(this.address, ms);
        if (this.address.auth) {
            const answer = await connection.call(this.address.auth, Math.min(ms, REPLY_MS));
            if (answer instanceof Refused) {
                connection.fail(answer);
                throw answer;
            }
        }
        return connection;
    }

    /** One command and its reply, which may take so many milliseconds, connecting not counted. */
    async call(args, replyMs) {
        let connection, answer;
        try {
            connection = await this.take(replyMs);
        } catch (error) {
            if (error instanceof Refused) throw error;
            throw new Broken(error, false);
        }
        try {
            answer = await connection.call(args, replyMs);
        } catch (error) {
            this.drop(); // the others are of the same age and likely broken too
            throw new Broken(error, true);
        }
        if (this.idle.length < IDLE_MAX && !this.closed) this.idle.push(connection);
        else connection.socket.destroy();
        if (answer instanceof Refused) throw answer;
        return answer;
    }

    drop() {
        for (const connection of this.idle.splice(0)) connection.socket.destroy();
    }

    close() {
        this.closed = true;
        this.drop();
    }
}
