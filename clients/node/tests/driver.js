// The conformance driver of the Node client: see clients/conformance/README.md.
import {appendFileSync} from "node:fs";
import {createInterface} from "node:readline";
import {setTimeout as sleep} from "node:timers/promises";

import * as idem from "../src/index.js";

const client = new idem.Client(process.argv[2] || undefined);
const CLASSES = [[idem.Done, "done"], [idem.NotExecuted, "not_executed"], [idem.InProgress, "in_progress"], [idem.OutcomeUnknown, "unknown"]];

async function work(steps, claim, db) {
    for (const step of steps) {
        if ("sql" in step) await db.query(step.sql);
        else if ("append" in step) appendFileSync(step.append, `${claim.fence}\n`);
        else if ("sleep_ms" in step) await sleep(step.sleep_ms);
        else if ("await_loss_ms" in step) {
            await sleep(step.await_loss_ms, null, {signal: claim.signal}).catch(() => {});
            appendFileSync(step.file, claim.signal.aborted ? "lost\n" : "kept\n");
        } else if ("die" in step) {
            process.kill(process.pid, "SIGKILL");
            await sleep(10000);
        } else if ("return" in step) return step.return;
        else if ("return_text" in step) return "x".repeat(step.return_text);
        else if ("raise" in step) throw Object.assign(new Error(step.raise[1]), {name: step.raise[0]});
        else if ("redeem" in step) await client.redeem(step.redeem, claim.scope);
        else if ("not_executed" in step) throw new idem.NotExecuted("nothing happened");
        else if ("unknown" in step) throw new idem.OutcomeUnknown("who knows");
    }
    return null;
}

function told(error) {
    const found = CLASSES.find(([kind]) => error instanceof kind);
    const answer = {class: found ? found[1] : "error", error: error.name, type: error.name, message: error.message};
    if (/^40/.test(error.sqlState ?? error.code) || [1205, 1213].includes(error.errno)) answer.deadlock = true;
    return error instanceof idem.Failed ? {...answer, type: error.type, message: error.text} : answer;
}

function optionsOf(command) {
    const o = command.options ?? {};
    const options = {scope: command.scope, mode: o.mode, lease: o.lease_ms, ttl: o.ttl_ms, wait: o.wait_ms, deadline: o.deadline_ms,
        failOpen: o.fail_open, token: command.token ?? false};
    return "arguments" in command ? {...options, arguments: command.arguments} : options;
}

/** The answer to a command that runs work: `call` gets the work. */
async function answer(command, call) {
    let ran = false;
    try {
        const value = await call((claim, db) => {
            ran = true;
            return work(command.work, claim, db);
        });
        return {class: "done", value, ran};
    } catch (error) {
        return {...told(error), ran};
    }
}

const pools = {};

/** `end` says how the caller's own transaction ends; without it the transaction is the helper's. */
async function transaction(command) {
    const {database: url, key, end} = command, maria = url.startsWith("mysql");
    const pool = await (pools[url] ??= maria ? import("mysql2/promise").then((m) => m.createPool(url))
        : import("pg").then((pg) => new pg.default.Pool({connectionString: url})));
    const options = optionsOf(command);
    if (!end) return answer(command, (run) => idem.sqlOnce(pool, key, (db, claim) => run(claim, db), options));
    const db = await (maria ? pool.getConnection() : pool.connect());
    try {
        if (maria) await db.query("set transaction isolation level read committed");
        await db.query("begin");
        const told = await answer(command, (run) => idem.sqlOnceTx(db, key, (_, claim) => run(claim, db), options));
        await db.query(end);
        return told;
    } finally {
        db.release();
    }
}

async function perform(command) {
    try {
        switch (command.op) {
        case "once": return await answer(command, (run) => client.once(command.key, run, optionsOf(command)));
        case "transaction": return await transaction(command);
        case "issue": return {class: "done", value: await client.issue(command.subject)};
        case "redeem":
            await client.redeem(command.token, command.subject);
            return {class: "done", value: "redeemed"};
        default: return {class: "done", value: idem.fingerprint(command.arguments)};
        }
    } catch (error) {
        return told(error);
    }
}

for await (const line of createInterface({input: process.stdin})) {
    const command = JSON.parse(line);
    perform(command).then((result) => process.stdout.write(JSON.stringify({id: command.id, ...result}) + "\n"));
}
for (const pool of Object.values(pools)) await (await pool).end();
