// The retrying HTTP client: node send.js URL KEY TRIES. An empty key: one of its own. Prints one JSON object.
import {OutcomeUnknown, retryingFetch} from "../src/index.js";

const [url, key, tries] = process.argv.slice(2);
try {
    const answer = await retryingFetch(url, {method: "POST", body: "book", redirect: "manual"}, {key: key || undefined, tries: Number(tries)});
    console.log(JSON.stringify({status: answer.status, body: await answer.text()}));
} catch (error) {
    console.log(JSON.stringify({error: error instanceof OutcomeUnknown ? "OutcomeUnknown" : "no answer"}));
}
