package idem;

import java.time.Duration;

/**
 * Every error of this client. Four classes tell a caller what to do next: {@link Done}, {@link NotExecuted}, {@link InProgress},
 * {@link OutcomeUnknown}. Who knows only these does the right thing.
 */
@SuppressWarnings("serial")
public abstract class IdemException extends RuntimeException {
    IdemException(String message, Throwable cause) {
        super(message, cause);
    }

    /** The work says that it has certainly not happened. What another call inside of it was told is about that call only. */
    public static boolean isNotExecuted(Throwable e) {
        return e instanceof NotExecuted && !(e instanceof Mismatch || e instanceof TokenUnknown || e instanceof Unavailable
                || e instanceof Refused);
    }

    /** The request was executed before. Do not send it again. */
    public static class Done extends IdemException {
        public Done(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /**
     * This attempt was not executed. An earlier one with the same key may have been: keep the key.
     * Throw it in your work to say: this has certainly not happened.
     */
    public static class NotExecuted extends IdemException {
        public NotExecuted(String message) {
            super(message, null);
        }

        public NotExecuted(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** Another caller is executing the request. Ask again after {@link #retryAfter()}. */
    public static class InProgress extends IdemException {
        private final Duration retryAfter;

        public InProgress(String message, Duration retryAfter) {
            super(message, null);
            this.retryAfter = retryAfter;
        }

        public Duration retryAfter() {
            return retryAfter;
        }
    }

    /** The request may have been executed: look it up, or settle it. Throw it in your work to say: I do not know. */
    public static class OutcomeUnknown extends IdemException {
        public OutcomeUnknown(String message) {
            super(message, null);
        }

        public OutcomeUnknown(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** The first execution failed, and strict mode keeps that as the answer. */
    public static final class Failed extends Done {
        private final String type;
        private final String text;

        public Failed(String type, String text) {
            super(type == null ? text : type + ": " + text, null);
            this.type = type;
            this.text = text;
        }

        /** The simple name of the first error's class, or null if somebody settled the request. */
        public String type() {
            return type;
        }

        /** The first error's message. */
        public String text() {
            return text;
        }
    }

    /** The first execution succeeded; its result was not kept: it was too large, or could not be written. */
    public static final class ResultNotKept extends Done {
        public ResultNotKept(String message) {
            super(message, null);
        }
    }

    /** The one-time token was used before. */
    public static final class TokenUsed extends Done {
        public TokenUsed(String message) {
            super(message, null);
        }
    }

    /** The key was used before with other arguments. */
    public static final class Mismatch extends NotExecuted {
        public Mismatch(String message) {
            super(message);
        }
    }

    /** There is no such token for this subject. */
    public static final class TokenUnknown extends NotExecuted {
        public TokenUnknown(String message) {
            super(message);
        }
    }

    /** The server could not be reached in time, and nothing was executed. */
    public static final class Unavailable extends NotExecuted {
        public Unavailable(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** The server refused the command: a wrong argument, or missing rights. */
    public static final class Refused extends NotExecuted {
        private final String word;

        public Refused(String word, String text) {
            super(word.equals("ERR") ? text : word + " " + text);
            this.word = word;
        }

        /** The first word of the reply: docs/protocol.md has the list. */
        public String word() {
            return word;
        }
    }

    /** The work was done, but its claim had ended before the result was recorded. */
    public static final class LeaseLost extends OutcomeUnknown {
        public LeaseLost(String message) {
            super(message);
        }
    }
}
