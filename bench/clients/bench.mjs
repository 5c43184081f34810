// node bench.mjs idem|redis PORT SECONDS CALLERS: calls a second. Redis' client is Debian's node-redis.
import {randomBytes} from "node:crypto";
import {createRequire} from "node:module";

import {Client} from "../../clients/node/src/index.js";

const [what, port, seconds, callers] = process.argv.slice(2);
const name = randomBytes(6).toString("hex");
let call;
if (what === "idem") {
    const client = new Client(`idem://127.0.0.1:${port}`, {scope: "bench"});
    call = (key) => client.once(key, () => ({order: 7}));
} else {
    const redis = createRequire(import.meta.url)("redis").createClient({socket: {port: Number(port), host: "127.0.0.1"}});
    await redis.connect();
    call = async (key) => {
        if (await redis.set(key, "claimed", {NX: true, PX: 86400000})) await redis.set(key, '{"order":7}', {PX: 86400000});
    };
}
const begin = performance.now(), end = begin + 1000 * seconds;
let count = 0;
await Promise.all(Array.from({length: Number(callers)}, async (_, i) => {
    for (let n = 0; performance.now() < end; n++, count++) await call(`${name}-${i}-${n}`);
}));
console.log(1000 * count / (performance.now() - begin));
process.exit(0);
