package idem;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.HashMap;

/** Makes {@link Idempotent} and {@link IdemToken} work without a framework. */
public final class Idempotents {
    private Idempotents() {
    }

    /** The same service, whose annotated methods are guarded. A method may be annotated in the interface or in the class. */
    public static <S> S wrap(IdemClient client, Class<S> type, S service) {
        var guards = new HashMap<Method, MethodGuard>();
        for (var method : type.getMethods()) {
            var guard = MethodGuard.of(client, method, service.getClass());
            if (guard != null)
                guards.put(method, guard);
        }
        if (guards.isEmpty())
            throw new IllegalArgumentException(type.getName() + " has no method with @Idempotent or @IdemToken");
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, args) -> {
            var guard = guards.get(method);
            return guard == null ? invoke(service, method, args) : guard.call(args, () -> invoke(service, method, args));
        }));
    }

    private static Object invoke(Object service, Method method, Object[] args) throws Exception {
        try {
            method.setAccessible(true);
            return method.invoke(service, args);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof Error)
                throw (Error) e.getCause();
            throw (Exception) e.getCause();
        }
    }
}
