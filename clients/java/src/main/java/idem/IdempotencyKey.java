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
            throw new IllegalArgumentException("The key is empty: send a value that is unique for this request, for instance a UUID.");
        if (key.length() > LONGEST)
            throw new IllegalArgumentException("The key is longer than 255 bytes: send a shorter one, for instance a UUID.");
        if (key.startsWith(" ") || key.endsWith(" "))
            throw new IllegalArgumentException("The key begins or ends with a space: remove the space.");
        if (!text.startsWith("\"") && key.chars().anyMatch(c -> c <= ' ' || c > 0x7e || c == '"'))
            throw new IllegalArgumentException("The key has a character that needs quotes, or that is not ASCII: send printable ASCII, in double quotes if it has a space, comma or quote.");
        if (!text.startsWith("\"") && key.indexOf(',') >= 0)
            throw new IllegalArgumentException("The key has a comma, as if the header had been sent twice: send it once, or put it in double quotes if it is one key.");
        return key;
    }

    private static String quoted(String text) {
        var key = new StringBuilder();
        int i = 1;
        for (; i < text.length() && text.charAt(i) != '"'; i++) {
            if (text.charAt(i) < ' ' || text.charAt(i) > 0x7e)
                throw new IllegalArgumentException("The key has a character that is not printable ASCII: send another key, for instance a UUID.");
            if (text.charAt(i) == '\\' && (++i == text.length() || text.charAt(i) != '"' && text.charAt(i) != '\\'))
                throw new IllegalArgumentException("The key has an escape that is neither \\\" nor \\\\.");
            key.append(text.charAt(i));
        }
        if (i >= text.length())
            throw new IllegalArgumentException("The key's closing quote is missing: add it, or send the key without quotes.");
        if (i + 1 != text.length())
            throw new IllegalArgumentException("Something follows the key's closing quote: remove it.");
        return key.toString();
    }
}
