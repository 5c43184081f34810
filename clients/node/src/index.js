// Run a piece of work once, and give every caller the same result: a client of `idem serve`.
export {Client, current, fingerprint} from "./client.js";
export {
    Done, Failed, IdemError, InProgress, LeaseLost, Mismatch, NotExecuted, OutcomeUnknown, Refused, ResultNotKept, TokenUnknown,
    TokenUsed, Unavailable,
} from "./errors.js";
