package idem;

import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;

/** A type with parameters: {@code new TypeRef<List<Order>>() {}}. */
public abstract class TypeRef<T> {
    final Type type = ((ParameterizedType) getClass().getGenericSuperclass()).getActualTypeArguments()[0];
}
