package idem;

/** Reads the Idempotency-Key header: {@code "abc"} as the IETF draft writes it, or bare; both name the same key. */
public final class IdempotencyKey {
    private static final int LONGEST = 255;

    private IdempotencyKey() {
    }

    /** The key; or IllegalArgumentException with a sentence for the client. */
    public static String parse(String header) {
        var text = header.strip();
        var key = text.startsWith("\"") ? quoted(text) : text;
        if (key.isEmpty())
            throw new IllegalArgumentException("The key is empty.");
        if (key.length() > LONGEST)
            throw new IllegalArgumentException("The key is longer than 255 bytes.");
        if (key.startsWith(" ") || key.endsWith(" "))
            throw new IllegalArgumentException("The key begins or ends with a space.");
        if (!text.startsWith("\"") && key.chars().anyMatch(c -> c <= ' ' || c > 0x7e || c == '"'))
            throw new IllegalArgumentException("The key holds a byte that a bare key must not: put it in double quotes.");
        if (!text.startsWith("\"") && key.indexOf(',') >= 0)
            throw new IllegalArgumentException("The key holds a comma, as if the header had been sent twice: put it in double quotes if it is one key.");
        return key;
    }

    private static String quoted(String text) {
        var key = new StringBuilder();
        int i = 1;
        for (; i < text.length() && text.charAt(i) != '"'; i++) {
            if (text.charAt(i) < ' ' || text.charAt(i) > 0x7e)
                throw new IllegalArgumentException("The key holds a byte that a quoted string must not.");
            if (text.charAt(i) == '\\' && (++i == text.length() || text.charAt(i) != '"' && text.charAt(i) != '\\'))
                throw new IllegalArgumentException("The key holds an escape that is neither \\\" nor \\\\.");
            key.append(text.charAt(i));
        }
        if (i >= text.length())
            throw new IllegalArgumentException("The key's closing quote is missing.");
        if (i + 1 != text.length())
            throw new IllegalArgumentException("Something follows the key's closing quote.");
        return key.toString();
    }
}
