// Pay an order once, with the ordinary Redis client: node pay_redis.cjs HOST:PORT ORDER AMOUNT LEDGER
const crypto = require("node:crypto");
const fs = require("node:fs/promises");
const { createClient } = require("redis");

const [address, order, amount, ledger] = process.argv.slice(2);

// The work: here it appends a line, in your service it calls the bank.
async function pay() {
  await fs.appendFile(ledger, `${order} ${amount}\n`);
  return `paid ${amount} for ${order}`;
}

async function main() {
  const idem = createClient({ url: `redis://${address}` });
  idem.on("error", (error) => console.error(error.message));
  await idem.connect();
  const send = (...words) => idem.sendCommand(words.map(String));
  try {
    // Claim. The fingerprint makes another amount under the same order a mismatch; the nonce makes it safe to send the
    // same BEGIN again after a broken connection; a duplicate waits for the first one's result.
    const fingerprint = crypto.createHash("sha256").update(`pay ${order} ${amount}`).digest("hex");
    const nonce = crypto.randomBytes(8).toString("hex");
    const [verdict, ...values] = await send("BEGIN", "shop", order, "FP", fingerprint, "NONCE", nonce,
      "LEASE", 30000, "WAIT", 20000);
    if (verdict === "started") {
      const fence = values[0];
      let result;
      try {
        result = await pay();
      } catch (error) { // surely not paid: another may try
        await send("RELEASE", "shop", order, fence);
        throw error;
      }
      await send("FINISH", "shop", order, fence, "SUCCEEDED", result);
      console.log(result);
    } else if (verdict === "replay") {
      console.log(values[3]);
    } else { // busy, mismatch, doubt
      throw new Error(`${order}: ${verdict}`);
    }
  } finally {
    await idem.quit();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
