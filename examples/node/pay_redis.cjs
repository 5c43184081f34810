// Pay an order once, with the ordinary Redis client: node pay_redis.cjs HOST:PORT ORDER AMOUNT BANK
const crypto = require("node:crypto");
const { setTimeout: pause } = require("node:timers/promises");
const { createClient } = require("redis");

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

const inDoubt = (why) => new Error(`${order}: outcome unknown (${why}): ask the bank, then run
idem settle shop '${order}' --as succeeded --result '...', or --as failed`);

async function payOnce(client) {
  // Without a reply, send the same command again: the nonce of BEGIN and the fence of the others make that safe.
  async function idem(...words) {
    for (let attempt = 0; ; attempt++) {
      try {
        return await client.sendCommand(words.map(String));
      } catch (error) {
        if (attempt === 5) throw error;
        await pause(100 * 2 ** attempt);
      }
    }
  }

  // Claim. The fingerprint makes another amount under the same order a mismatch; a duplicate waits for the first one's
  // result.
  const fingerprint = crypto.createHash("sha256").update(`pay ${order} ${amount}`).digest("hex");
  const nonce = crypto.randomBytes(8).toString("hex");
  const [verdict, ...values] = await idem("BEGIN", "shop", order, "FP", fingerprint, "NONCE", nonce,
    "LEASE", 30000, "WAIT", 20000);
  if (verdict === "replay") return { outcome: values[0], result: values[3] }; // state, kind, expires, result
  if (verdict === "doubt") throw inDoubt("whoever paid it did not say how it went");
  if (verdict !== "started") throw new Error(`${order}: ${verdict}`); // busy, mismatch

  const fence = values[0];
  let outcome = "succeeded", result;
  try {
    result = await pay();
  } catch (error) {
    if (error instanceof NotPaid) {
      await idem("RELEASE", "shop", order, fence);
      throw error;
    }
    if (!(error instanceof Declined)) throw inDoubt(error.message); // paid or not: keep the claim
    outcome = "failed";
    result = error.message;
  }
  await idem("FINISH", "shop", order, fence, outcome, result);
  return { outcome, result };
}

async function main() {
  const client = createClient({ url: `redis://${address}` });
  client.on("error", (error) => console.error(error.message));
  await client.connect();
  try {
    const { outcome, result } = await payOnce(client);
    console.log(result);
    process.exitCode = outcome === "succeeded" ? 0 : 1;
  } finally {
    await client.disconnect();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
