// Pay an order once, with nothing but fetch: node pay_http.mjs HOST:PORT ORDER AMOUNT BANK
import crypto from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";

const [address, order, amount, bank] = process.argv.slice(2);

class NotPaid extends Error {} // the bank was never asked: it is safe to try again
class Declined extends Error {} // the bank said no: that is the result

// The work: ask the bank. What throws anything but NotPaid and Declined may have been paid.
async function pay() {
  let answer;
  try {
    answer = await fetch(`${bank}/payments`, {
      method: "POST",
      body: new URLSearchParams({ order, amount }),
      signal: AbortSignal.timeout(5000),
    });
  } catch (error) {
    if (error.cause?.code === "ECONNREFUSED") throw new NotPaid(`not paid: ${error.cause.message}`);
    throw error;
  }
  if (answer.status === 402) throw new Declined(`declined: ${amount} for ${order}`);
  if (!answer.ok) throw new Error(`the bank answered ${answer.status}`);
  return `paid ${amount} for ${order}`;
}

// POST /v1/records/shop/ORDER/VERB: an answer has a verdict, everything else is a problem. Without an answer, send it
// again: the nonce of begin and the fence of the others make that safe.
async function idem(verb, fields) {
  for (let attempt = 0; ; attempt++) {
    try {
      const response = await fetch(`http://${address}/v1/records/shop/${encodeURIComponent(order)}/${verb}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(fields),
      });
      const answer = await response.json();
      if (response.ok) return answer;
      throw Object.assign(new Error(`${answer.type}: ${answer.detail}`), { refused: response.status < 500 });
    } catch (error) {
      if (error.refused || attempt === 5) throw error;
      await pause(100 * 2 ** attempt);
    }
  }
}

const inDoubt = (why) => new Error(`${order}: outcome unknown (${why}): ask the bank, then run
idem settle shop '${order}' --as succeeded --result '...', or --as failed`);

async function payOnce() {
  const claim = await idem("begin", {
    fingerprint: crypto.createHash("sha256").update(`pay ${order} ${amount}`).digest("hex"),
    nonce: crypto.randomBytes(8).toString("hex"),
    lease_ms: 30000,
    wait_ms: 20000,
  });
  if (claim.verdict === "replay") return { outcome: claim.state, result: claim.result };
  if (claim.verdict === "doubt") throw inDoubt("whoever paid it did not say how it went");
  if (claim.verdict !== "started") throw new Error(`${order}: ${claim.verdict}`); // busy, mismatch

  let outcome = "succeeded", result;
  try {
    result = await pay();
  } catch (error) {
    if (error instanceof NotPaid) {
      await idem("release", { fence: claim.fence });
      throw error;
    }
    if (!(error instanceof Declined)) throw inDoubt(error.message); // paid or not: keep the claim
    outcome = "failed";
    result = error.message;
  }
  await idem("finish", { fence: claim.fence, outcome, result });
  return { outcome, result };
}

try {
  const { outcome, result } = await payOnce();
  console.log(result);
  process.exitCode = outcome === "succeeded" ? 0 : 1;
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
