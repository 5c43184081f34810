package idem;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON as a tree of Map, List, String, Long, BigInteger, BigDecimal, Boolean and null. */
final class Json {
    private static final int DEEPEST = 200;
    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    static Object read(String text) {
        var json = new Json(text);
        var value = json.value();
        json.space();
        if (json.at < text.length())
            throw json.wrong("the end");
        return value;
    }

    private IllegalArgumentException wrong(String wanted) {
        return new IllegalArgumentException("JSON: " + wanted + " expected at character " + at);
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0)
            at++;
    }

    private boolean have(char c) {
        space();
        if (at >= text.length() || text.charAt(at) != c)
            return false;
        at++;
        return true;
    }

    private void need(char c) {
        if (!have(c))
            throw wrong("\"" + c + "\"");
    }

    private Object value() {
        if (++depth > DEEPEST)
            throw wrong("less depth");
        try {
            if (have('{'))
                return members();
            if (have('['))
                return items();
            if (have('"'))
                return string();
            if (word("true"))
                return true;
            if (word("false"))
                return false;
            return word("null") ? null : number();
        } finally {
            depth--;
        }
    }

    private boolean word(String word) {
        if (!text.startsWith(word, at))
            return false;
        at += word.length();
        return true;
    }

    private Map<String, Object> members() {
        var map = new LinkedHashMap<String, Object>();
        if (have('}'))
            return map;
        do {
            need('"');
            var name = string();
            need(':');
            map.put(name, value());
        } while (have(','));
        need('}');
        return map;
    }

    private List<Object> items() {
        var list = new ArrayList<>();
        if (have(']'))
            return list;
        do
            list.add(value());
        while (have(','));
        need(']');
        return list;
    }

    private String string() {
        var out = new StringBuilder();
        for (;;) {
            if (at >= text.length() || text.charAt(at) < 0x20)
                throw wrong("the end of a string");
            char c = text.charAt(at++);
            if (c == '"')
                return out.toString();
            out.append(c == '\\' ? escaped() : c);
        }
    }

    private char escaped() {
        int found = at < text.length() ? "\"\\/bfnrtu".indexOf(text.charAt(at)) : -1;
        if (found < 0)
            throw wrong("an escape");
        at++;
        if (found < 8)
            return "\"\\/\b\f\n\r\t".charAt(found);
        if (at + 4 > text.length() || !text.substring(at, at + 4).matches("[0-9a-fA-F]{4}"))
            throw wrong("four hex digits");
        at += 4;
        return (char) Integer.parseInt(text.substring(at - 4, at), 16);
    }

    private Object number() {
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0)
            at++;
        var digits = text.substring(from, at);
        if (!digits.matches("-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]{1,4})?"))
            throw wrong("a value");
        if (!digits.matches("-?[0-9]+"))
            return new BigDecimal(digits);
        return digits.length() < 19 ? (Object) Long.valueOf(digits) : new BigInteger(digits);
    }

    static String write(Object tree) {
        var out = new StringBuilder();
        write(out, tree, false);
        return out.toString();
    }

    /** JSON that two languages write alike: see clients/README.md. */
    static String canonical(Object tree) {
        var out = new StringBuilder();
        write(out, tree, true);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value, boolean sorted) {
        if (value instanceof Map) {
            var names = ((Map<?, ?>) value).keySet().toArray(new String[0]);
            if (sorted)
                Arrays.sort(names, (a, b) -> Arrays.compareUnsigned(utf8(a), utf8(b)));
            char mark = '{';
            for (var name : names) {
                quote(out.append(mark), name);
                write(out.append(':'), ((Map<?, ?>) value).get(name), sorted);
                mark = ',';
            }
            out.append(mark == '{' ? "{}" : "}");
        } else if (value instanceof List) {
            char mark = '[';
            for (var item : (List<?>) value) {
                write(out.append(mark), item, sorted);
                mark = ',';
            }
            out.append(mark == '[' ? "[]" : "]");
        } else if (value instanceof String) {
            quote(out, (String) value);
        } else {
            out.append(value);
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            int short_ = "\"\\\b\f\n\r\t".indexOf(c);
            if (short_ >= 0)
                out.append('\\').append("\"\\bfnrt".charAt(short_));
            else if (c < 0x20)
                out.append(String.format("\\u%04x", (int) c));
            else
                out.append(c);
        }
        out.append('"');
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** UTF-8 that can be read back. Half of a surrogate pair would become "?", and two keys one. */
    static byte[] exact(String text) {
        var bytes = utf8(text);
        if (!text.equals(new String(bytes, StandardCharsets.UTF_8)))
            throw new IllegalArgumentException("this text holds half of a surrogate pair: " + text);
        return bytes;
    }

    static String hex(byte[] bytes) {
        var out = new StringBuilder();
        for (byte b : bytes)
            out.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
        return out.toString();
    }

    static String sha256(byte[] bytes) {
        try {
            return hex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError(e);
        }
    }
}
