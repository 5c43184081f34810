/** Run a piece of work once, and give every caller the same result: a client of `idem serve`. */
import type {IncomingMessage, ServerResponse} from "node:http";

/** Times are in milliseconds. */
export interface Options {
    /** Who asks: a tenant, a source, a queue. The same key in two scopes is two requests. Default: "default". */
    scope?: string;
    /** strict: at most one execution, a failure is an answer too. loose: a failure may be tried again. Default: "strict". */
    mode?: "strict" | "loose";
    /** How long the result is kept. Default: 24 hours. */
    ttl?: number;
    /** How long a claim lives without a sign of life; it is renewed every third of it. Default: 30 seconds. */
    lease?: number;
    /** How long a duplicate waits for the first one's result. Default: 0. */
    wait?: number;
    /** How long a command is sent again while no answer comes. Default: 30 seconds. */
    deadline?: number;
    /** What the fingerprint is made of: the same key with other arguments is a Mismatch. */
    arguments?: unknown;
    /** The key is a one-time token that was issued to the scope. */
    token?: boolean;
    /** Run loose work without protection if the server cannot be reached. */
    failOpen?: boolean;
    /** How a result is written; without it as JSON. */
    dump?: (value: any) => Uint8Array | string;
    /** How a result is read. */
    load?: (bytes: Buffer) => any;
}

/** Work that is yours to do. */
export interface Claim {
    readonly scope: string;
    readonly key: string;
    /** Grows with every execution of a key: hand it to what the work changes. */
    readonly fence: number;
    /** Aborted when the lease is lost: stop working. */
    readonly signal: AbortSignal;
}

/** Share one client. It keeps a pool of connections, and connects when it is first used. */
export class Client {
    /** `url`: unix:PATH, HOST:PORT, idem://[name:secret@]host:port, idems://host:port?ca=FILE (TLS) or idem+unix:/path; without it IDEM_SERVER, or idem://127.0.0.1:6390. */
    constructor(url?: string, options?: Options);
    /** Run the work at most once for the key; every caller gets its result. */
    once<T>(key: string, work: (claim: Claim) => T | Promise<T>, options?: Options): Promise<T>;
    /** A one-time token for the subject. */
    issue(subject: string, ttl?: number): Promise<string>;
    /** Use a token up. Throws TokenUsed or TokenUnknown. */
    redeem(token: string, subject: string): Promise<void>;
    /** Close the connections that are idle. Work that runs goes on and is recorded. */
    close(): void;
}

/** The claim of the work that runs here. Throws an Error outside of any. */
export function current(): Claim;
/** 64 hex digits over what was asked: the same in all languages. */
export function fingerprint(args: unknown): string;

export class IdemError extends Error {}
/** The request was executed before. Do not send it again. */
export class Done extends IdemError {}
/**
 * This attempt was not executed. An earlier one with the same key may have been: keep the key.
 * Throw it in your work to say: this has certainly not happened.
 */
export class NotExecuted extends IdemError {}
/** Another caller is executing the request. */
export class InProgress extends IdemError {
    constructor(message: string, retryAfter?: number);
    /** Ask again after so many milliseconds. */
    readonly retryAfter: number;
}
/** The request may have been executed. Throw it in your work to say: I do not know whether this has happened. */
export class OutcomeUnknown extends IdemError {}
/** The first execution failed, and strict mode keeps that as the answer. */
export class Failed extends Done {
    constructor(type: string | null, text: string);
    /** The name of the first error; null if an operator settled the request. */
    readonly type: string | null;
    readonly text: string;
}
/** The first execution succeeded; its result was not kept: it was too large, or could not be written. */
export class ResultNotKept extends Done {}
/** The one-time token was used before. */
export class TokenUsed extends Done {}
/** The key was used before with other arguments. */
export class Mismatch extends NotExecuted {}
/** There is no such token for this subject. */
export class TokenUnknown extends NotExecuted {}
/** The server could not be reached in time, and nothing was executed. */
export class Unavailable extends NotExecuted {}
/** The server refused the command: a wrong argument, or missing rights. */
export class Refused extends NotExecuted {
    constructor(word: string, text: string);
    readonly word: string;
}
/** The work was done, but its claim had ended before the result was recorded. */
export class LeaseLost extends OutcomeUnknown {}

export interface MiddlewareOptions<Request> extends Pick<Options, "mode" | "ttl" | "lease" | "wait" | "deadline"> {
    /**
     * Who asks. Without it: a digest of the Authorization header, or "anonymous". A request for which it gives nothing is not guarded; with
     * `required` it is refused.
     */
    scope?: (request: Request) => string | null | undefined | Promise<string | null | undefined>;
    /** Refuse requests without a key. */
    required?: boolean;
    /** Which methods are guarded. Default: POST and PATCH. */
    methods?: string[];
    /** The longest body of a guarded request, in bytes. Default: 1 MiB. */
    maxBody?: number;
}

/** Express, and everything else that passes (req, res, next). Put it before the body parser. The claim is in `req.idem`. */
export function idempotency<Request extends IncomingMessage = any>(client: Client, options?: MiddlewareOptions<Request>):
    (req: Request, res: ServerResponse, next: (error?: any) => void) => void;
/** Express: the last error handler. NotExecuted and OutcomeUnknown of a handler are answered with 503 and 504. */
export function idempotencyErrors(error: unknown, req: any, res: any, next: (error?: any) => void): void;
/** Koa. Put it before the body parser. The claim is in `ctx.state.idem`. */
export function koaIdempotency<Context = any>(client: Client, options?: MiddlewareOptions<Context>):
    (ctx: any, next: () => Promise<any>) => Promise<void>;
/** Fastify: `fastify.register(fastifyIdempotency(client))`. The claim is in `request.idem`. */
export function fastifyIdempotency<Request = any>(client: Client, options?: MiddlewareOptions<Request>):
    (fastify: any, options: any, ready: (error?: Error) => void) => void;

/** fetch() that is sent again until there is an answer, with one key through all tries. Throws OutcomeUnknown where nobody knows. */
export function retryingFetch(url: string | URL, init?: RequestInit,
    options?: {key?: string; tries?: number; timeout?: number; fetch?: typeof fetch}): Promise<Response>;

export type SqlOptions = Pick<Options, "scope" | "mode" | "ttl" | "lease" | "wait" | "dump" | "load"> & {arguments: unknown};
/** A Pool of pg. */
export interface PgPool<Db> {
    connect(): Promise<Db>;
}
/** A pool of mysql2/promise. */
export interface MysqlPool<Db> {
    getConnection(): Promise<Db>;
}
/** Run work once, with its record in one transaction of your own database. */
export function sqlOnce<T, Db>(pool: MysqlPool<Db> | PgPool<Db>, key: string, work: (db: Db, claim: Claim) => T | Promise<T>, options: SqlOptions): Promise<T>;
/** The same as a part of your own transaction on this connection of pg or mysql2/promise. */
export function sqlOnceTx<T, Db extends {query: (...args: any[]) => any}>(db: Db, key: string, work: (db: Db, claim: Claim) => T | Promise<T>, options: SqlOptions): Promise<T>;
