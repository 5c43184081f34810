package idem;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** What names a key: {@code 'order-' + #order.id}. Parsed once, with the names of a method's parameters. */
final class Expression {
    private static final Pattern TERM = Pattern.compile("\\s*(?:'((?:[^']|'')*)'|(\\d+)|#(\\w+)((?:\\.\\w+|\\[\\d+\\]|\\['[^']*'\\])*))\\s*");
    private static final Pattern STEP = Pattern.compile("\\.(\\w+)|\\[(\\d+)\\]|\\['([^']*)'\\]");

    private interface Term {
        Object of(Object[] arguments);
    }

    private final String text;
    private final List<Term> terms = new ArrayList<>();

    Expression(String text, List<String> names) {
        this.text = text;
        var match = TERM.matcher(text);
        int at = 0;
        do {
            if (!match.find(at) || match.start() != at)
                throw new IllegalArgumentException("\"" + text + "\" is not an expression: write 'text' or #parameter.property, joined by +");
            terms.add(term(match, names));
            at = match.end();
        } while (at < text.length() && text.charAt(at++) == '+');
        if (at < text.length() || text.trim().endsWith("+"))
            throw new IllegalArgumentException("\"" + text + "\" is not an expression: + expected at character " + at);
    }

    private Term term(Matcher match, List<String> names) {
        if (match.group(3) == null) {
            var literal = match.group(1) != null ? match.group(1).replace("''", "'") : match.group(2);
            return arguments -> literal;
        }
        int index = index(match.group(3), names);
        var steps = new ArrayList<String>();
        for (var step = STEP.matcher(match.group(4)); step.find();)
            steps.add(step.group(1) != null ? step.group(1) : step.group(2) != null ? step.group(2) : step.group(3));
        return arguments -> {
            Object value = arguments[index];
            for (var step : steps)
                value = value == null ? null : property(value, step);
            return value;
        };
    }

    private int index(String name, List<String> names) {
        if (names.contains(name))
            return names.indexOf(name);
        if (name.matches("[pa]\\d{1,3}") && Integer.parseInt(name.substring(1)) < names.size())
            return Integer.parseInt(name.substring(1));
        throw new IllegalArgumentException("\"" + text + "\": no parameter #" + name + ", there are " + names
                + "; compile with -parameters, use @Key(\"" + name + "\"), or #p0");
    }

    private Object property(Object from, String name) {
        if (from instanceof Map)
            return ((Map<?, ?>) from).get(name);
        if (from instanceof List && name.matches("\\d+"))
            return ((List<?>) from).get(Integer.parseInt(name));
        var upper = Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (var type = from.getClass(); type != null; type = type.getSuperclass()) {
            for (var candidate : List.of("get" + upper, name, "is" + upper)) {
                try {
                    Method method = type.getDeclaredMethod(candidate);
                    if (Modifier.isStatic(method.getModifiers()) || method.getReturnType() == void.class)
                        continue;
                    method.setAccessible(true);
                    return method.invoke(from);
                } catch (NoSuchMethodException e) { // the next one
                } catch (ReflectiveOperationException e) {
                    throw new IllegalArgumentException("\"" + text + "\": " + name + " cannot be read", e);
                }
            }
            try {
                return type.getField(name).get(from);
            } catch (ReflectiveOperationException e) { // the superclass may have it
            }
        }
        throw new IllegalArgumentException("\"" + text + "\": " + from.getClass().getName() + " has no property " + name);
    }

    /** The value of a single term as it is, of several joined as text. */
    Object value(Object[] arguments) {
        return terms.size() == 1 ? terms.get(0).of(arguments) : text(arguments);
    }

    /** A key that is missing must never become a key that others have too: it is refused. */
    String text(Object[] arguments) {
        var out = new StringBuilder();
        for (var term : terms) {
            var value = term.of(arguments);
            if (value == null || value.toString().isEmpty() && terms.size() == 1)
                throw new IllegalArgumentException("\"" + text + "\" has no value in this call");
            out.append(value);
        }
        return out.toString();
    }
}
