package idem;

import java.util.LinkedHashMap;

/** The problems of docs/problems.md that middleware answers: the gateway's names, statuses and classes. */
public enum Problem {
    KEY_MISSING(400, "not executed", false, "An idempotency key is needed",
            "Send a key (by default the header Idempotency-Key) that is unique for this request, for instance a UUID, and the same key again with every retry of it."),
    KEY_MALFORMED(400, "not executed", false, "The idempotency key is malformed", "Send the key as a quoted string of printable ASCII, at most 255 bytes, for instance \"order-7\"."),
    IN_PROGRESS(409, "in progress", true, "The first request with this key is still running",
            "Send the same request again after a while: it will not run twice."),
    MISMATCH(422, "not executed", false, "This key was used for a different request",
            "This key was used for a request with another method, path, query or body. If this is a retry, send exactly the first "
            + "request again: with a new key it could run twice. Use a new key only for a new request."),
    OUTCOME_UNKNOWN(409, "outcome unknown", false, "It is not known whether this request was done",
            "The first request with this key was started and its outcome was lost. It will not be run again."),
    SETTLED(409, "failed for good", false, "This request was settled as failed", "It was declared failed and will not be run."),
    FAILED(409, "failed for good", false, "This request failed before and will not be run again",
            "The first request with this key failed. It will not be run again."),
    NOT_REPLAYABLE(410, "done", false, "It was done, but its response was not kept",
            "The request was done before. Its response was too large to keep."),
    NOT_EXECUTED(503, "not executed", true, "This attempt was not executed",
            "idem could not record this attempt, so it was not executed. An earlier one with the same key may have been: keep the key."),
    BODY_TOO_LARGE(413, "not executed", false, "The request's body is too large",
            "The body is over the limit for requests with an idempotency key: send a smaller one."),
    SCOPE_MISSING(400, "not executed", false, "The request does not say who sends it",
            "A key belongs to the caller who uses it. What names the caller here is missing or empty."),
    SCOPE_REFUSED(403, "not executed", false, "The caller's name cannot be used",
            "The value that names the caller is too long, or holds bytes that it must not.");

    /** What types begin with. The default is a name without a page. */
    private static final String BASE = System.getenv().getOrDefault("IDEM_PROBLEM_BASE", "urn:idem:problems/");
    private final int status;
    private final String kind;
    private final boolean retryable;
    private final String title;
    private final String detail;

    Problem(int status, String kind, boolean retryable, String title, String detail) {
        this.status = status;
        this.kind = kind;
        this.retryable = retryable;
        this.title = title;
        this.detail = detail;
    }

    public HttpAnswer answer() {
        return answer(status, detail);
    }

    /** With another detail or status: an unknown outcome is 504 to the first caller. */
    public HttpAnswer answer(int status, String detail) {
        var type = BASE + name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
        var body = new LinkedHashMap<String, Object>();
        body.put("type", type);
        body.put("title", title);
        body.put("status", (long) status);
        body.put("detail", detail);
        body.put("retryable", retryable);
        body.put("class", kind);
        body.put("documentation", type);
        return new HttpAnswer(status, Json.utf8(Json.write(body) + "\n")).header("Content-Type", "application/problem+json")
                .header("Link", "<" + type + ">; rel=\"describedby\"").header("Cache-Control", "no-store");
    }
}
