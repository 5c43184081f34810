// Pay an order once, with nothing but fetch: node pay_http.mjs HOST:PORT ORDER AMOUNT LEDGER
import crypto from "node:crypto";
import fs from "node:fs/promises";

const [address, order, amount, ledger] = process.argv.slice(2);

// POST /v1/records/shop/ORDER/VERB: an answer has a verdict, everything else is a problem.
async function idem(verb, fields) {
  const response = await fetch(`http://${address}/v1/records/shop/${encodeURIComponent(order)}/${verb}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(fields),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${answer.type}: ${answer.detail}`);
  return answer;
}

// The work: here it appends a line, in your service it calls the bank.
async function pay() {
  await fs.appendFile(ledger, `${order} ${amount}\n`);
  return `paid ${amount} for ${order}`;
}

const claim = await idem("begin", {
  fingerprint: crypto.createHash("sha256").update(`pay ${order} ${amount}`).digest("hex"),
  nonce: crypto.randomBytes(8).toString("hex"),
  lease_ms: 30000,
  wait_ms: 20000,
});
if (claim.verdict === "started") {
  let result;
  try {
    result = await pay();
  } catch (error) { // surely not paid: another may try
    await idem("release", { fence: claim.fence });
    throw error;
  }
  await idem("finish", { fence: claim.fence, outcome: "succeeded", result });
  console.log(result);
} else if (claim.verdict === "replay") {
  console.log(claim.result);
} else { // busy, mismatch, doubt
  console.error(`${order}: ${claim.verdict}`);
  process.exitCode = 1;
}
