package idem;

import java.lang.System.Logger.Level;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * Runs work at most once for a key, and gives every caller the same result. Share one client; it is safe for many threads.
 *
 * <pre>
 * var client = IdemClient.open("idem://127.0.0.1:6390", Options.strict().scope("shop"));
 * Order order = client.once("order-7", Order.class, () -> placeOrder(cart));
 * </pre>
 *
 * The contract of all clients is in clients/README.md. Calls to the server are not ended by an interrupt of the thread, but by their
 * deadline: an interrupted caller could not know what is recorded. The interrupt is still there when the call returns.
 */
public final class IdemClient implements AutoCloseable {
    static final System.Logger LOG = System.getLogger("idem");
    private static final Set<String> TRANSIENT = Set.of("UNAVAILABLE", "LOST", "OVERLOADED", "CLOSED", "MEMORY", "TIMEOUT", "BUSY");
    private static final SecureRandom RANDOM = new SecureRandom(); // not one of our own: two machines may be restored from one snapshot

    private final Options options;
    final Alarms alarms = new Alarms();
    private final Wire wire;

    private IdemClient(String url, Options options) {
        this.options = options.check();
        this.wire = new Wire(url, alarms);
    }

    /** A client of the server that IDEM_SERVER names, or of idem://127.0.0.1:6390. Connections are made when they are needed. */
    public static IdemClient open() {
        return new IdemClient(null, Options.strict());
    }

    public static IdemClient open(String url) {
        return new IdemClient(url, Options.strict());
    }

    /** The options hold for all calls that do not bring their own. */
    public static IdemClient open(String url, Options options) {
        return new IdemClient(url, options);
    }

    /** The options that this client was opened with: change them for one call. */
    public Options options() {
        return options;
    }

    /** Run the work at most once for the key. The result is stored as JSON, and a repeat reads it as this type. */
    public <T, E extends Exception> T once(String key, Class<T> type, Work<T, E> work) throws E {
        return once(key, type, options, work);
    }

    public <T, E extends Exception> T once(String key, Class<T> type, Options options, Work<T, E> work) throws E {
        return this.<T, E>run(key, type, options, work);
    }

    public <T, E extends Exception> T once(String key, TypeRef<T> type, Options options, Work<T, E> work) throws E {
        return this.<T, E>run(key, type.type, options, work);
    }

    <T, E extends Exception> T run(String key, Type type, Options options, Work<T, E> work) throws E {
        checkWork(work);
        Begun begun;
        try {
            begun = begin(key, options);
        } catch (IdemException.Unavailable e) {
            if (!options.failOpen)
                throw e;
            LOG.log(Level.WARNING, "running without protection (failOpen): {0}", e.getMessage());
            return work.run();
        }
        if (begun.claim == null)
            return begun.value(key, type, options);
        try {
            return this.<T, E>work(begun.claim, work);
        } finally {
            begun.claim.stop(); // whatever went wrong: nobody renews what nobody works on
        }
    }

    /** Before the key is claimed: nobody would know whether anything was done. */
    static void checkWork(Work<?, ?> work) {
        if (work == null)
            throw new IllegalArgumentException("work is null: pass the function that does it");
    }

    private <T, E extends Exception> T work(Claim claim, Work<T, E> work) throws E {
        T value;
        var outer = claim.enter();
        try {
            value = ran(work.run());
        } catch (Throwable e) {
            claim.leave(outer);
            conclude(claim, e);
            throw e;
        }
        claim.leave(outer);
        byte[] result;
        try {
            result = claim.options.codec.write(value);
        } catch (Exception e) { // the work is done all the same
            succeed(claim, "raw", null);
            throw new IdemException.Done("the work of " + claim + " was done; its result cannot be written", e);
        }
        succeed(claim, "raw", result);
        return value;
    }

    /** What the work returned, if that is a result. */
    static <T> T ran(T value) {
        if (value != null && Bind.isLater(value.getClass()))
            throw new IdemException.OutcomeUnknown("the work returned a " + value.getClass().getName() + ", whose result is not there yet: call once() in the task");
        return value;
    }

    private void conclude(Claim claim, Throwable error) {
        if (isUnknown(error) || claim.isInterrupted())
            return;
        try {
            if (claim.options.mode == Mode.LOOSE || IdemException.isNotExecuted(error))
                release(claim);
            else
                fail(claim, "raw", failure(error));
        } catch (IdemException e) {
            LOG.log(Level.ERROR, "the outcome of " + claim + " could not be recorded", e);
        }
    }

    /** Work that was stopped, or ran out of memory, was left in the middle. */
    static boolean isUnknown(Throwable e) {
        return e instanceof IdemException.OutcomeUnknown || e instanceof InterruptedException || e instanceof VirtualMachineError;
    }

    static byte[] failure(Throwable error) {
        var told = new LinkedHashMap<String, Object>();
        told.put("error", error.getClass().getSimpleName());
        told.put("message", String.valueOf(error.getMessage()));
        return Json.utf8(Json.write(told));
    }

    /** What BEGIN found: a claim that is yours, or what is stored. For middleware; {@link #once} is made of it. */
    public static final class Begun {
        /** Yours to do, and renewed until it is finished or released; null: done before. */
        public final Claim claim;
        /** "succeeded" or "failed". */
        public final String state;
        /** "raw", "http" or "exec": docs/results.md. */
        public final String kind;
        /** Null: it was not kept. */
        public final byte[] result;

        private Begun(Claim claim, String state, String kind, byte[] result) {
            this.claim = claim;
            this.state = state;
            this.kind = kind;
            this.result = result;
        }

        /** What a verdict means: the claim, what is stored, or what is thrown. */
        static Begun of(String verdict, Claim claim, Duration retryAfter, String state, String kind, byte[] result) {
            switch (verdict) {
            case "started":
                return new Begun(claim, null, null, null);
            case "replay":
                return new Begun(null, state, kind, result);
            case "busy":
                throw new IdemException.InProgress(claim + " is being executed", retryAfter);
            case "mismatch":
                throw new IdemException.Mismatch(claim + " was used before with other arguments; a retry must pass the first arguments; "
                        + "other work needs another key");
            case "duplicate":
                throw new IdemException.TokenUsed("the token was used before");
            case "unknown":
                throw new IdemException.TokenUnknown("there is no such token for " + claim.scope());
            case "doubt":
                throw new IdemException.OutcomeUnknown("nobody knows whether " + claim + " was executed: find out, then settle it "
                        + "(idem doubts lists it; idem settle " + shellWord(claim.scope()) + " " + shellWord(claim.key()) + " --as …)");
            default:
                throw new IdemException.OutcomeUnknown("unexpected verdict " + verdict + " for " + claim);
            }
        }

        /** As a shell takes it. */
        private static String shellWord(String text) {
            return text.matches("[\\w%+=:,./@-]+") ? text : "'" + text.replace("'", "'\\''") + "'";
        }

        @SuppressWarnings("unchecked")
        <T> T value(String key, Type type, Options options) {
            if (state.equals("failed"))
                throw failed();
            if (result == null)
                throw new IdemException.ResultNotKept(options.scope + "/" + key + " was done; its result was not kept: "
                        + "it was too large, or could not be written");
            try {
                return (T) options.codec.read(result, type);
            } catch (Exception e) {
                throw new IdemException.Done(options.scope + "/" + key + " was done; its result cannot be read as " + type.getTypeName(), e);
            }
        }

        private IdemException.Failed failed() {
            var text = result == null ? "" : new String(result, StandardCharsets.UTF_8);
            try {
                var told = (Map<?, ?>) Json.read(text);
                if (told.get("error") instanceof String)
                    return new IdemException.Failed((String) told.get("error"), (String) told.get("message"));
            } catch (IllegalArgumentException | ClassCastException e) { // somebody settled it with a text
            }
            return new IdemException.Failed(null, text);
        }
    }

    /** Claim a key. What is neither claimed nor done is thrown. Finish with succeed, fail or release. */
    public Begun begin(String key, Options options) {
        options.check();
        var args = new ArrayList<Object>(List.of("BEGIN", Json.exact(options.scope), Json.exact(key), options.mode, "LEASE", ms(options.lease), "TTL",
                ms(options.ttl), "NONCE", nonce()));
        if (options.arguments != Options.NOTHING)
            args.addAll(List.of("FP", fingerprint(options.arguments, options.codec)));
        if (!options.wait.isZero())
            args.addAll(List.of("WAIT", ms(options.wait)));
        if (options.token)
            args.add("TOKEN");
        long asked = System.nanoTime();
        var claim = new Claim(key, options);
        var answer = ask(args, options.deadline, options.wait);
        long number = answer.size() > 1 && answer.get(1) instanceof Long ? (Long) answer.get(1) : 0; // a fence, or milliseconds
        var begun = Begun.of(word(answer, 0), claim.fence(number), Duration.ofMillis(number), word(answer, 1), word(answer, 2),
                answer.size() > 4 ? (byte[]) answer.get(4) : null);
        if (begun.claim == null)
            return begun;
        // A BEGIN that has waited, or was sent again for long: how much of the lease is left is not known.
        if (System.nanoTime() - asked > options.lease.toNanos() / 3) {
            asked = System.nanoTime();
            try {
                if (!renew(claim, options.deadline))
                    return begin(key, options); // somebody decided meanwhile: ask again
            } catch (IdemException e) {
                throw new IdemException.OutcomeUnknown(claim + " was claimed and could not be renewed: " + e.getMessage(), e);
            }
        }
        claim.start(asked, alarms.new Alarm(() -> keep(claim)));
        return begun;
    }

    private boolean renew(Claim claim, Duration deadline) {
        var answer = ask(List.of("RENEW", claim.scope(), claim.key(), claim.fence(), ms(claim.options.lease)), deadline, Duration.ZERO);
        return word(answer, 0).equals("ok");
    }

    /** Record a success; a null result is recorded as one that was not kept. */
    public void succeed(Claim claim, String kind, byte[] result) {
        finish(claim, "SUCCEEDED", kind, result);
    }

    /** Record a failure. */
    public void fail(Claim claim, String kind, byte[] result) {
        finish(claim, "FAILED", kind, result);
    }

    /** Give the key back: the request was not executed. */
    public void release(Claim claim) {
        claim.stop();
        ask(List.of("RELEASE", claim.scope(), claim.key(), claim.fence()), claim.options.deadline, Duration.ZERO);
    }

    /** The outcome is unknown: the claim stays until its lease is over. */
    public void abandon(Claim claim) {
        claim.stop();
    }

    private void finish(Claim claim, String outcome, String kind, byte[] result) {
        claim.stop();
        var args = new ArrayList<Object>(List.of("FINISH", claim.scope(), claim.key(), claim.fence(), outcome));
        args.addAll(List.of(result == null ? "" : result, "KIND", kind));
        if (result == null)
            args.add("NOREPLAY");
        List<?> answer;
        try {
            answer = ask(args, claim.options.deadline, Duration.ZERO);
        } catch (IdemException.Unavailable e) {
            throw new IdemException.OutcomeUnknown("the work was done, and its result could not be recorded: " + e.getMessage(), e);
        } catch (IdemException.Refused e) {
            if (result == null)
                throw new IdemException.OutcomeUnknown("the work was done, and its result could not be recorded: " + e.getMessage(), e);
            finish(claim, outcome, kind, null);
            return;
        }
        if (!word(answer, 0).equals("ok"))
            throw new IdemException.LeaseLost("somebody else decided about " + claim + " meanwhile (" + word(answer, 0) + ")");
    }

    /** At a third of the lease, and again at its end, by our own clock: a server that says nothing must not keep the news from the work. */
    private void keep(Claim claim) {
        long asked = System.nanoTime();
        if (claim.isLost())
            claim.lose();
        if (!claim.alarmAtEnd())
            return;
        try {
            if (renew(claim, claim.left(asked)))
                claim.renewed(asked);
            else
                claim.lose();
        } catch (IdemException e) { // the alarm tells the work
            LOG.log(Level.WARNING, "the lease of " + claim + " could not be renewed: " + e.getMessage());
        }
    }

    /** A one-time token for the subject. */
    public String issue(String subject, Duration ttl) {
        Options.time("ttl", ttl, Options.LEAST);
        return word(ask(List.of("ISSUE", subject, "TTL", ms(ttl)), options.deadline, Duration.ZERO), 1);
    }

    /** Use a token up. Throws TokenUsed or TokenUnknown. */
    public void redeem(String token, String subject) {
        var verdict = word(ask(List.of("REDEEM", token, subject, "NONCE", nonce()), options.deadline, Duration.ZERO), 0);
        if (verdict.equals("duplicate"))
            throw new IdemException.TokenUsed("the token was used before");
        if (!verdict.equals("redeemed"))
            throw new IdemException.TokenUnknown("there is no such token for " + subject);
    }

    /** SHA-256 in 64 hex digits. */
    public static String digest(byte[] bytes) {
        return Json.sha256(bytes);
    }

    /** 64 hex digits over what was asked: the same in all languages. */
    public static String fingerprint(Object arguments) {
        return fingerprint(arguments, Codec.PLAIN);
    }

    static String fingerprint(Object arguments, Codec codec) {
        try {
            var tree = codec == Codec.PLAIN ? Bind.tree(arguments)
                    : Json.read(new String(codec.write(arguments), StandardCharsets.UTF_8));
            return Json.sha256(Json.exact(Json.canonical(tree)));
        } catch (RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalArgumentException("the arguments cannot be written as JSON", e);
        }
    }

    /** Send until there is an answer. The same command again is safe: it carries a nonce or a fence. */
    private List<?> ask(List<?> args, Duration deadline, Duration wait) {
        long end = System.nanoTime() + deadline.plus(wait).toNanos();
        boolean sent = false;
        boolean interrupted = false;
        long pause = 20;
        try {
            for (;;) {
                Exception cause;
                interrupted |= Thread.interrupted();
                try {
                    long now = System.nanoTime();
                    var answer = wire.call(args, now + Math.min(end - now, Wire.REPLY_NS + wait.toNanos()));
                    if (args.get(0).equals("BEGIN") || !word(answer, 0).equals("busy")) // it is an answer to BEGIN alone
                        return answer;
                    throw new IdemException.Refused("BUSY", "a transaction holds the record in the database");
                } catch (Wire.Broken e) {
                    sent |= e.sent;
                    cause = e;
                } catch (IdemException.Refused e) {
                    if (!TRANSIENT.contains(e.word()))
                        throw e;
                    sent |= e.word().equals("LOST");
                    cause = e;
                }
                long delay = (long) (pause * ThreadLocalRandom.current().nextDouble(0.5, 1.5));
                if (System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(delay) - end > 0) {
                    if (sent)
                        throw new IdemException.OutcomeUnknown("no reply in time, and it may have been stored: " + cause.getMessage(), cause);
                    if (cause instanceof IdemException.Refused)
                        throw new IdemException.Unavailable("the server refused it until the deadline: " + cause.getMessage(), cause);
                    if (String.valueOf(cause.getMessage()).contains(Wire.STRANGE)) // something was reached
                        throw new IdemException.Unavailable(cause.getMessage() + " give the address of its socket or its RESP port", cause);
                    throw new IdemException.Unavailable(
                        "the server cannot be reached: " + cause.getMessage() + "; is idem serve running at this address?", cause);
                }
                try {
                    Thread.sleep(delay);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
                pause = Math.min(pause * 2, 1000);
            }
        } finally {
            if (interrupted)
                Thread.currentThread().interrupt();
        }
    }

    private static String word(List<?> answer, int i) {
        var value = i < answer.size() ? answer.get(i) : null;
        return value instanceof byte[] ? new String((byte[]) value, StandardCharsets.UTF_8) : String.valueOf(value);
    }

    private static long ms(Duration duration) {
        return Math.max(1, duration.toMillis());
    }

    private static String nonce() {
        var bytes = new byte[8];
        RANDOM.nextBytes(bytes);
        return Json.hex(bytes);
    }

    /** Close the connections that are idle. Work that runs goes on and is recorded; threads of the client end when nothing is left to do. */
    @Override
    public void close() {
        wire.close();
    }
}
