package idem;

/** What a failure means. */
public enum Mode {
    /** At most one execution: a failure is an answer too, and what nobody knows is never run again. */
    STRICT,
    /** A failure may be tried again. */
    LOOSE
}
