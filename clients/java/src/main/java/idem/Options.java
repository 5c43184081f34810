package idem;

import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;

/** How a call is made. Immutable: every method gives changed options back. {@code Options.strict().scope("shop").lease(ofSeconds(10))} */
public final class Options implements Cloneable {
    /** Less is a mistake: the key would be forgotten at once, and a repeat would run the work again. */
    static final Duration LEAST = Duration.ofMillis(1);
    static final Object NOTHING = new Object(); // no arguments were given: null is an argument

    String scope = "default";
    Mode mode = Mode.STRICT;
    Duration ttl = Duration.ofHours(24);
    Duration lease = Duration.ofSeconds(30);
    Duration wait = Duration.ZERO;
    Duration deadline = Duration.ofSeconds(30);
    Object arguments = NOTHING;
    boolean token;
    boolean failOpen;
    boolean interrupt;
    Codec codec = Codec.PLAIN;

    private Options() {
    }

    /** The defaults: strict, scope "default", results kept for 24 hours, a lease of 30 seconds, no waiting. */
    public static Options strict() {
        return new Options();
    }

    /** As strict(), but a failure may be tried again. */
    public static Options loose() {
        return new Options().mode(Mode.LOOSE);
    }

    static Duration time(String name, Duration value, Duration least) {
        if (value == null || value.compareTo(least) < 0)
            throw new IllegalArgumentException(name + " is a Duration of " + least.toMillis() + " ms or more, not " + value);
        return value;
    }

    private Options but(Consumer<Options> change) {
        try {
            var made = (Options) clone();
            change.accept(made);
            return made;
        } catch (CloneNotSupportedException e) {
            throw new AssertionError(e);
        }
    }

    /** Who asks: a tenant, a source, a queue. The same key in two scopes is two requests. */
    public Options scope(String value) {
        return but(o -> o.scope = Objects.requireNonNull(value));
    }

    public Options mode(Mode value) {
        return but(o -> o.mode = Objects.requireNonNull(value));
    }

    /** How long the result is kept. */
    public Options ttl(Duration value) {
        return but(o -> o.ttl = time("ttl", value, LEAST));
    }

    /** How long a claim lives without a sign of life; it is renewed every third of it. */
    public Options lease(Duration value) {
        return but(o -> o.lease = time("lease", value, LEAST));
    }

    /** How long a duplicate waits for the first one's result. */
    public Options waitFor(Duration value) {
        return but(o -> o.wait = time("waitFor", value, Duration.ZERO));
    }

    /** How long a command is sent again if its reply is lost. */
    public Options deadline(Duration value) {
        return but(o -> o.deadline = time("deadline", value, Duration.ZERO));
    }

    /** What the fingerprint is made of: the same key with other arguments is a {@link IdemException.Mismatch}. */
    public Options arguments(Object value) {
        return but(o -> o.arguments = value);
    }

    /** The key is a one-time token that was issued to the scope. */
    public Options token() {
        return but(o -> o.token = true);
    }

    /** Run loose work without protection while the server is away. */
    public Options failOpen() {
        return but(o -> o.failOpen = true);
    }

    /** Interrupt the thread that works when the lease is lost. Without this, ask {@link Claim#isLost()} or use {@link Claim#onLost}. */
    public Options interruptWork() {
        return but(o -> o.interrupt = true);
    }

    public Options codec(Codec value) {
        return but(o -> o.codec = Objects.requireNonNull(value));
    }

    public boolean isLoose() {
        return mode == Mode.LOOSE;
    }

    Options check() {
        if (failOpen && mode == Mode.STRICT)
            throw new IllegalArgumentException("failOpen needs loose mode: strict work never runs without its record");
        return this;
    }
}
