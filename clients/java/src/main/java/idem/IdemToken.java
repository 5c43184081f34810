package idem;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * The method runs only with a one-time token that {@link IdemClient#issue} gave to the subject. A repeat gets TokenUsed; a token that
 * was never issued gets TokenUnknown. Where a repeat shall get the first result, use {@link Idempotent#token()} instead.
 */
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface IdemToken {
    /** An expression as in {@link Idempotent}: where the token is. */
    String value() default "#token";

    /** Whose token: a text, or an expression if there is a {@code #} in it. */
    String subject();
}
