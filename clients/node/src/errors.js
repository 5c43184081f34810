// The errors of the client. Four base classes tell a caller what to do next.

export class IdemError extends Error {
    constructor(message, options) {
        super(message, options);
        this.name = new.target.name;
    }
}

/** The request was executed before. Do not send it again. */
export class Done extends IdemError {}

/**
 * This attempt was not executed. An earlier one with the same key may have been: keep the key.
 * Throw it in your work to say: this has certainly not happened.
 */
export class NotExecuted extends IdemError {}

/** Another caller is executing the request. Ask again after `retryAfter` milliseconds. */
export class InProgress extends IdemError {
    constructor(message, retryAfter = 0) {
        super(message);
        this.retryAfter = retryAfter;
    }
}

/** The request may have been executed. Throw it in your work to say: I do not know whether this has happened. */
export class OutcomeUnknown extends IdemError {}

/** The first execution failed, and strict mode keeps that as the answer. */
export class Failed extends Done {
    constructor(type, text) {
        super(type ? `${type}: ${text}` : text);
        this.type = type;
        this.text = text;
    }
}

/** The first execution succeeded; its result was not kept: it was too large, or could not be written. */
export class ResultNotKept extends Done {}

/** The one-time token was used before. */
export class TokenUsed extends Done {}

/** The key was used before with other arguments. */
export class Mismatch extends NotExecuted {}

/** There is no such token for this subject. */
export class TokenUnknown extends NotExecuted {}

/** The server could not be reached in time, and nothing was executed. */
export class Unavailable extends NotExecuted {}

/** The server refused the command: a wrong argument, or missing rights. */
export class Refused extends NotExecuted {
    constructor(word, text) {
        super(word === "ERR" ? text : `${word} ${text}`);
        this.word = word;
    }
}

/** The work was done, but its claim had ended before the result was recorded. */
export class LeaseLost extends OutcomeUnknown {}

/** The work says that it has certainly not happened. What another call inside of it was told is about that call only. */
export function isNotExecuted(error) {
    return error instanceof NotExecuted && ![Mismatch, TokenUnknown, Unavailable, Refused].some((kind) => error instanceof kind);
}
