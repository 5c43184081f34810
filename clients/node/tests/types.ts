// Compiled by tsc, never run: the types say what the client does.
import express from "express";
import fastify, {type FastifyRequest} from "fastify";
import Koa from "koa";

import {
    Client, Done, Failed, InProgress, current, fastifyIdempotency, fingerprint, idempotency, idempotencyErrors, koaIdempotency, retryingFetch, sqlOnce,
    sqlOnceTx, type Claim,
} from "idem-client";
import * as idem from "idem-client";

declare const pg: {connect(): Promise<{query(text: string, values?: unknown[]): Promise<{rows: any[]}>; release(): void}>};
declare const mysql: {getConnection(): Promise<{query(text: string, values?: unknown[]): Promise<[any, any]>; beginTransaction(): Promise<void>}>};

export async function uses(): Promise<void> {
    const client = new Client("idem://127.0.0.1:6390", {scope: "shop", mode: "strict"});
    const order: {id: string} = await client.once("k", (claim: Claim) => ({id: String(claim.fence), lost: claim.signal.aborted}), {arguments: {a: 1}});
    const text: string = await client.once("k", async () => current().key + fingerprint(order));
    // @ts-expect-error the work is a function, and not what it gave
    await client.once("k", Promise.resolve(order));
    // @ts-expect-error there is no such mode
    await client.once("k", () => 1, {mode: "lenient"});
    // @ts-expect-error the result is a number
    const wrong: string = await client.once("k", () => 1);
    const token: string = await client.issue("ann", 1000);
    await client.redeem(token, "ann");

    const app = express();
    app.use(idempotency(client, {scope: (req: express.Request) => req.get("X-Tenant"), required: true}));
    app.use(idempotencyErrors);
    new Koa().use(koaIdempotency(client, {scope: (ctx: Koa.Context) => ctx.get("X-Tenant")}));
    await fastify().register(fastifyIdempotency(client, {scope: (request: FastifyRequest) => request.ip, wait: 5000}));

    const answer: Response = await retryingFetch("http://127.0.0.1/", {method: "POST"}, {key: text + wrong});
    const paid: number = await sqlOnce(pg, "k", async (db) => (await db.query("select 1")).rows.length, {arguments: answer.status});
    await sqlOnce(mysql, "k", async (db) => (await db.query("select 1"))[0], {arguments: paid});
    await sqlOnceTx(await pg.connect(), "k", async (db) => (await db.query("select 1")).rows, {scope: "shop", arguments: 1});
    // @ts-expect-error without arguments a mismatch is not noticed
    await sqlOnce(pg, "k", () => 1, {scope: "shop"});
    try {
        client.close();
    } catch (error) {
        if (error instanceof Failed) console.log(error.type, error.text);
        if (error instanceof Done || error instanceof idem.OutcomeUnknown) console.log(error.message);
        if (error instanceof InProgress) console.log(error.retryAfter + 1);
    }
}
