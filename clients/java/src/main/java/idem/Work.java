package idem;

/** What is to be done once. It may throw what it likes; {@link Claim#current()} is its claim. */
@FunctionalInterface
public interface Work<T, E extends Exception> {
    T run() throws E;
}
