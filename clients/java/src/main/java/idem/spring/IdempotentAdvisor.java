package idem.spring;

import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;

import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.support.StaticMethodMatcherPointcutAdvisor;
import org.springframework.core.Ordered;

import idem.IdemClient;
import idem.MethodGuard;

/**
 * Makes {@link idem.Idempotent} and {@link idem.IdemToken} work on the beans of Spring. Two beans are needed:
 *
 * <pre>
 * &#64;Bean static IdempotentAdvisor idempotent(IdemClient client) { return new IdempotentAdvisor(client); }
 * &#64;Bean static DefaultAdvisorAutoProxyCreator proxies() { return new DefaultAdvisorAutoProxyCreator(); }   // Spring Boot brings its own
 * </pre>
 *
 * It is the outermost advice, so that a transaction of the method has ended before its result is recorded. A bean that calls its own
 * method calls it without the guard, as with every proxy of Spring.
 */
public final class IdempotentAdvisor extends StaticMethodMatcherPointcutAdvisor {
    private static final long serialVersionUID = 1;
    private final transient IdemClient client;
    private final transient Map<List<Object>, Optional<MethodGuard>> guards = new ConcurrentHashMap<>();

    public IdempotentAdvisor(IdemClient client) {
        this.client = client;
        setOrder(Ordered.HIGHEST_PRECEDENCE);
        setAdvice((MethodInterceptor) this::invoke);
    }

    @Override
    public boolean matches(Method method, Class<?> type) {
        return guard(method, type).isPresent();
    }

    private Optional<MethodGuard> guard(Method method, Class<?> type) {
        return guards.computeIfAbsent(List.of(method, type), absent -> Optional.ofNullable(MethodGuard.of(client, method, type)));
    }

    private Object invoke(MethodInvocation call) throws Throwable {
        var type = call.getThis() == null ? call.getMethod().getDeclaringClass() : call.getThis().getClass();
        return guard(call.getMethod(), type).get().call(call.getArguments(), () -> {
            try {
                return call.proceed();
            } catch (Exception | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new java.lang.reflect.UndeclaredThrowableException(e);
            }
        });
    }
}
