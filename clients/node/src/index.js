// Run a piece of work once, and give every caller the same result: a client of `idem serve`.
export {Client, current, fingerprint} from "./client.js";
export {
    Done, Failed, IdemError, InProgress, LeaseLost, Mismatch, NotExecuted, OutcomeUnknown, Refused, ResultNotKept, TokenUnknown,
    TokenUsed, Unavailable,
} from "./errors.js";
export {fastifyIdempotency, idempotency, idempotencyErrors, koaIdempotency} from "./middleware.js";
export {retryingFetch} from "./retry.js";
export {sqlOnce, sqlOnceTx} from "./sql.js";
