package idem;

import java.lang.invoke.MethodType;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URI;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.Future;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.BaseStream;

/** Objects of Java to and from the tree of {@link Json}: records by their components, other classes by their fields. */
final class Bind {
    private static final int DEEPEST = 100;
    private static final Map<Class<?>, Function<BigDecimal, Object>> NUMBERS = Map.of(BigDecimal.class, n -> n,
            BigInteger.class, BigDecimal::toBigIntegerExact, Double.class, BigDecimal::doubleValue, Float.class, BigDecimal::floatValue,
            Long.class, BigDecimal::longValueExact, Integer.class, BigDecimal::intValueExact, Short.class, BigDecimal::shortValueExact,
            Byte.class, BigDecimal::byteValueExact);

    private Bind() {
    }

    /** A result that is not there yet: who returns one has perhaps not begun to work. */
    static boolean isLater(Class<?> type) {
        if (type == null)
            return false;
        for (var one : type.getInterfaces())
            if (isLater(one))
                return true;
        return List.of(Future.class, CompletionStage.class, BaseStream.class, Iterator.class, Callable.class, Supplier.class, Flow.Publisher.class).contains(type)
                || type.getName().equals("org.reactivestreams.Publisher") || type.getSimpleName().equals("DeferredResult") || isLater(type.getSuperclass());
    }

    static Object tree(Object value) {
        return tree(value, 0);
    }

    private static Object tree(Object value, int depth) {
        if (depth > DEEPEST)
            throw new IllegalArgumentException("nested deeper than " + DEEPEST + " (a cycle?): give a Codec of your own");
        if (value instanceof Double || value instanceof Float) {
            if (!Double.isFinite(((Number) value).doubleValue()))
                throw new IllegalArgumentException("JSON has no " + value);
            return new BigDecimal(value.toString());
        }
        if (value instanceof Byte || value instanceof Short || value instanceof Integer)
            return ((Number) value).longValue();
        if (value == null || value instanceof String || value instanceof Boolean || value instanceof Number)
            return value;
        if (value instanceof Optional)
            return tree(((Optional<?>) value).orElse(null), depth + 1);
        if (value instanceof Enum)
            return ((Enum<?>) value).name();
        if (isText(value.getClass()))
            return value.toString();
        if (value instanceof Iterable || value.getClass().isArray())
            return items(value, depth + 1);
        var map = new LinkedHashMap<String, Object>();
        if (value instanceof Map) {
            ((Map<?, ?>) value).forEach((name, member) -> map.put(String.valueOf(name), tree(member, depth + 1)));
            return map;
        }
        try {
            for (var field : fields(value.getClass()))
                map.put(field.getName(), tree(field.get(value), depth + 1));
        } catch (IllegalAccessException e) {
            throw new IllegalArgumentException(e);
        }
        return map;
    }

    private static Object items(Object from, int depth) {
        var list = new ArrayList<>();
        if (from instanceof Iterable)
            ((Iterable<?>) from).forEach(item -> list.add(tree(item, depth)));
        else
            for (int i = 0; i < Array.getLength(from); i++)
                list.add(tree(Array.get(from, i), depth));
        return list;
    }

    /** Classes of the JDK that their text says all about, and that are read back from it. */
    private static boolean isText(Class<?> type) {
        return CharSequence.class.isAssignableFrom(type) || type == Character.class || type == UUID.class || type == URI.class
                || type.getName().startsWith("java.time.");
    }

    private static List<Field> fields(Class<?> type) {
        if (type.getName().startsWith("java."))
            throw new IllegalArgumentException("no JSON for " + type.getName() + ": give a Codec of your own");
        var found = new ArrayList<Field>();
        if (type.getSuperclass() != Object.class && !isRecord(type))
            found.addAll(fields(type.getSuperclass()));
        for (var field : type.getDeclaredFields()) {
            if ((field.getModifiers() & (Modifier.STATIC | Modifier.TRANSIENT)) != 0 || field.isSynthetic())
                continue;
            field.setAccessible(true);
            found.add(field);
        }
        return found;
    }

    private static boolean isRecord(Class<?> type) {
        return type.getSuperclass() != null && type.getSuperclass().getName().equals("java.lang.Record");
    }

    static Object object(Object tree, Type wanted) {
        var raw = wanted instanceof ParameterizedType ? (Class<?>) ((ParameterizedType) wanted).getRawType()
                : wanted instanceof Class ? (Class<?>) wanted : Object.class;
        var type = MethodType.methodType(raw).wrap().returnType(); // Integer for int
        if (tree == null || type == Void.class)
            return null;
        if (tree instanceof Map)
            return type.isAssignableFrom(LinkedHashMap.class) ? map((Map<?, ?>) tree, argument(wanted, 1)) : make((Map<?, ?>) tree, type);
        if (tree instanceof List)
            return list((List<?>) tree, type, wanted);
        if (tree instanceof BigDecimal && type.isAssignableFrom(Double.class))
            return ((BigDecimal) tree).doubleValue();
        if (type.isInstance(tree))
            return tree;
        if (tree instanceof Number && NUMBERS.containsKey(type))
            return NUMBERS.get(type).apply(new BigDecimal(tree.toString()));
        if (tree instanceof String)
            return text((String) tree, type);
        throw new IllegalArgumentException(tree.getClass().getSimpleName() + " in JSON is no " + type.getName());
    }

    private static Type argument(Type type, int i) {
        if (!(type instanceof ParameterizedType))
            return Object.class;
        var arguments = ((ParameterizedType) type).getActualTypeArguments();
        return i < arguments.length ? arguments[i] : Object.class;
    }

    private static Object map(Map<?, ?> tree, Type member) {
        var map = new LinkedHashMap<String, Object>();
        tree.forEach((name, value) -> map.put((String) name, object(value, member)));
        return map;
    }

    private static Object list(List<?> tree, Class<?> type, Type wanted) {
        if (type.isArray()) {
            var array = Array.newInstance(type.getComponentType(), tree.size());
            for (int i = 0; i < tree.size(); i++)
                Array.set(array, i, object(tree.get(i), type.getComponentType()));
            return array;
        }
        var list = new ArrayList<>();
        tree.forEach(item -> list.add(object(item, argument(wanted, 0))));
        if (Set.class.isAssignableFrom(type))
            return new LinkedHashSet<>(list);
        if (!type.isAssignableFrom(ArrayList.class))
            throw new IllegalArgumentException("a list in JSON is no " + type.getName());
        return list;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object text(String text, Class<?> type) {
        if (type.isEnum())
            return Enum.valueOf((Class) type, text);
        if (type == Character.class && text.length() == 1)
            return text.charAt(0);
        try {
            if (type == UUID.class || type == URI.class)
                return type.getMethod(type == UUID.class ? "fromString" : "create", String.class).invoke(null, text);
            if (type.getName().startsWith("java.time."))
                return type.getMethod("parse", CharSequence.class).invoke(null, text);
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException("\"" + text + "\" is no " + type.getName(), e);
        }
        throw new IllegalArgumentException("text in JSON is no " + type.getName());
    }

    private static Object make(Map<?, ?> tree, Class<?> type) {
        var fields = fields(type);
        try {
            if (isRecord(type))
                return construct(tree, type, fields);
            var empty = type.getDeclaredConstructor();
            empty.setAccessible(true);
            var made = empty.newInstance();
            for (var field : fields)
                if (tree.get(field.getName()) != null)
                    field.set(made, object(tree.get(field.getName()), field.getGenericType()));
            return made;
        } catch (InvocationTargetException e) {
            throw new IllegalArgumentException(type.getName() + ": " + e.getCause(), e.getCause());
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException(type.getName() + " has no constructor without arguments and is not a record: give a Codec", e);
        }
    }

    private static Object construct(Map<?, ?> tree, Class<?> type, List<Field> fields) throws ReflectiveOperationException {
        var constructor = type.getDeclaredConstructor(fields.stream().map(Field::getType).toArray(Class[]::new));
        constructor.setAccessible(true);
        var arguments = new Object[fields.size()];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = object(tree.get(fields.get(i).getName()), fields.get(i).getGenericType());
            if (arguments[i] == null && fields.get(i).getType().isPrimitive())
                arguments[i] = Array.get(Array.newInstance(fields.get(i).getType(), 1), 0);
        }
        return constructor.newInstance(arguments);
    }
}
