package idem;

import java.lang.annotation.Annotation;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;

/** What the annotations of one method say. For frameworks: {@link Idempotents} and idem.spring use it. */
public final class MethodGuard {
    private final IdemClient client;
    private final Method method;
    private final List<String> names = new ArrayList<>();
    private Options options;
    private Expression key;
    private Expression scope;
    private List<Expression> arguments;
    private Expression token;
    private Expression subject;

    private MethodGuard(IdemClient client, Method method, List<Method> forms) {
        this.client = client;
        this.method = method;
        for (int i = 0; i < method.getParameterCount(); i++)
            names.add(name(i, forms));
    }

    /** The guard of a method that is annotated in its class or in an interface; null if it is not. */
    public static MethodGuard of(IdemClient client, Method method, Class<?> target) {
        var forms = forms(method, target);
        var idempotent = find(forms, Idempotent.class);
        var token = find(forms, IdemToken.class);
        if (idempotent == null && token == null)
            return null;
        var guard = new MethodGuard(client, method, forms);
        try {
            if (idempotent != null)
                guard.read(idempotent);
            if (token != null) {
                guard.token = new Expression(token.value(), guard.names);
                guard.subject = named(token.subject(), guard.names);
            }
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(method.getDeclaringClass().getName() + "." + method.getName() + ": " + e.getMessage(), e);
        }
        return guard;
    }

    /** The method in the target's class, then as it was given, then in every interface of the target. */
    private static List<Method> forms(Method method, Class<?> target) {
        var forms = new ArrayList<Method>();
        for (Class<?> type = target; type != null; type = type.getSuperclass()) {
            add(forms, type, method);
            for (var one : type.getInterfaces())
                add(forms, one, method);
        }
        forms.add(method);
        return forms;
    }

    private static void add(List<Method> forms, Class<?> type, Method method) {
        try {
            forms.add(type.getDeclaredMethod(method.getName(), method.getParameterTypes()));
        } catch (NoSuchMethodException e) { // not here
        }
    }

    private static <A extends Annotation> A find(List<Method> forms, Class<A> type) {
        return forms.stream().map(form -> form.getAnnotation(type)).filter(found -> found != null).findFirst().orElse(null);
    }

    private static String name(int i, List<Method> forms) {
        for (var form : forms)
            if (form.getParameters()[i].isAnnotationPresent(Key.class))
                return form.getParameters()[i].getAnnotation(Key.class).value();
        for (var form : forms)
            if (form.getParameters()[i].isNamePresent())
                return form.getParameters()[i].getName();
        return "p" + i;
    }

    private void read(Idempotent given) {
        if (Bind.isLater(method.getReturnType()))
            throw new IllegalArgumentException("it returns a future or the like, whose result is not there when it returns: call once() in the task");
        options = client.options().mode(given.mode());
        options = given.ttl().isEmpty() ? options : options.ttl(duration(given.ttl()));
        options = given.lease().isEmpty() ? options : options.lease(duration(given.lease()));
        options = given.waitFor().isEmpty() ? options : options.waitFor(duration(given.waitFor()));
        options = given.deadline().isEmpty() ? options : options.deadline(duration(given.deadline()));
        options = given.token() ? options.token() : options;
        options.check();
        key = new Expression(given.key(), names);
        scope = given.scope().isEmpty() ? null : named(given.scope(), names);
        arguments = new ArrayList<>();
        for (var text : given.arguments())
            arguments.add(new Expression(text, names));
    }

    private static Expression named(String text, List<String> names) {
        return new Expression(text.contains("#") ? text : "'" + text.replace("'", "''") + "'", names);
    }

    static Duration duration(String text) {
        if (!text.matches("\\d{1,12}(ms|s|m|h|d)"))
            throw new IllegalArgumentException("\"" + text + "\" is not a time: write 500ms, 30s, 15m, 24h or 7d");
        if (text.endsWith("ms"))
            return Duration.ofMillis(Long.parseLong(text.substring(0, text.length() - 2)));
        return Duration.parse((text.endsWith("d") ? "P" : "PT") + text); // as ISO 8601 writes it
    }

    private Object asked(Object[] args) {
        var asked = new LinkedHashMap<String, Object>();
        if (arguments.isEmpty())
            for (int i = 0; i < args.length; i++)
                asked.put(names.get(i), args[i]);
        else
            for (int i = 0; i < arguments.size(); i++)
                asked.put(String.valueOf(i), arguments.get(i).value(args));
        return asked;
    }

    /** Call the method under its guard: the token first, then once. */
    public Object call(Object[] given, Work<Object, Exception> work) throws Exception {
        var args = given == null ? new Object[0] : given;
        if (token != null)
            client.redeem(token.text(args), subject.text(args));
        if (key == null)
            return work.run();
        var call = options.arguments(asked(args));
        if (scope != null)
            call = call.scope(scope.text(args));
        return client.run(key.text(args), method.getGenericReturnType(), call, work);
    }
}
