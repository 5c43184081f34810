package idem;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * The method runs at most once for a key, and every caller gets its result.
 *
 * <pre>
 * &#64;Idempotent(key = "'order-' + #order.id", scope = "orders", ttl = "24h", lease = "30s", waitFor = "5s")
 * Receipt place(Order order) { … }
 * </pre>
 *
 * It works through {@link Idempotents#wrap} and, with Spring, through idem.spring.IdempotentAdvisor. An expression is made of
 * {@code #parameter.property}, {@code #p0}, {@code 'text'} and numbers, joined by {@code +}. Names of parameters need
 * {@code javac -parameters}, or {@link Key} on the parameter.
 */
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface Idempotent {
    /** An expression. If it has no value, the method does not run and IllegalArgumentException is thrown. */
    String key();

    /** Who asks: a text, or an expression if there is a {@code #} in it. Empty: the client's. */
    String scope() default "";

    /** How long the result is kept: 30s, 15m, 24h, 7d. Empty: the client's. This holds for all times here. */
    String ttl() default "";

    String lease() default "";

    /** How long a duplicate waits for the first one's result. (Java does not allow {@code wait} as the name of an annotation's member.) */
    String waitFor() default "";

    String deadline() default "";

    Mode mode() default Mode.STRICT;

    /** The key is a one-time token that was issued to the scope. */
    boolean token() default false;

    /** Expressions that the fingerprint is made of. None: all arguments of the method. */
    String[] arguments() default {};
}
