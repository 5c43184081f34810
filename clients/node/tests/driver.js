// The conformance driver of the Node client: see clients/conformance/README.md.
import {appendFileSync} from "node:fs";
import {createInterface} from "node:readline";
import {setTimeout as sleep} from "node:timers/promises";

import * as idem from "../src/index.js";

const client = new idem.Client(process.argv[2]);
const CLASSES = [[idem.Done, "done"], [idem.NotExecuted, "not_executed"], [idem.InProgress, "in_progress"], [idem.OutcomeUnknown, "unknown"]];

async function work(steps, claim) {
    for (const step of steps) {
        if ("append" in step) appendFileSync(step.append, `${claim.fence}\n`);
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
        else if ("not_executed" in step) throw new idem.NotExecuted("nothing happened");
        else if ("unknown" in step) throw new idem.OutcomeUnknown("who knows");
    }
    return null;
}

function told(error) {
    const found = CLASSES.find(([kind]) => error instanceof kind);
    const answer = {class: found ? found[1] : "error", error: error.name, type: error.name, message: error.message};
    return error instanceof idem.Failed ? {...answer, type: error.type, message: error.text} : answer;
}

async function once(command) {
    const o = command.options ?? {};
    const options = {scope: command.scope, mode: o.mode, lease: o.lease_ms, ttl: o.ttl_ms, wait: o.wait_ms, deadline: o.deadline_ms,
        failOpen: o.fail_open, token: command.token ?? false};
    if ("arguments" in command) options.arguments = command.arguments;
    let ran = false;
    try {
        const value = await client.once(command.key, (claim) => {
            ran = true;
            return work(command.work, claim);
        }, options);
        return {class: "done", value, ran};
    } catch (error) {
        return {...told(error), ran};
    }
}

async function perform(command) {
    try {
        switch (command.op) {
        case "once": return await once(command);
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
    perform(command).then((answer) => process.stdout.write(JSON.stringify({id: command.id, ...answer}) + "\n"));
}
