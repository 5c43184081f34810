package idem;

import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;

/**
 * How results and arguments become JSON in UTF-8. {@link #PLAIN} needs no library: it knows maps, lists, text, numbers, booleans,
 * null, enums, java.time, records, and classes by their fields. With Jackson it is one line:
 *
 * <pre>Codec jackson = Codec.of(mapper::writeValueAsBytes, (json, type) -> mapper.readValue(json, mapper.constructType(type)));</pre>
 */
public interface Codec {
    Codec PLAIN = of(value -> Json.write(Bind.tree(value)).getBytes(StandardCharsets.UTF_8),
            (json, type) -> Bind.object(Json.read(new String(json, StandardCharsets.UTF_8)), type));

    byte[] write(Object value) throws Exception;

    Object read(byte[] json, Type type) throws Exception;

    interface Writer {
        byte[] write(Object value) throws Exception;
    }

    interface Reader {
        Object read(byte[] json, Type type) throws Exception;
    }

    static Codec of(Writer writer, Reader reader) {
        return new Codec() {
            @Override
            public byte[] write(Object value) throws Exception {
                return writer.write(value);
            }

            @Override
            public Object read(byte[] json, Type type) throws Exception {
                return reader.read(json, type);
            }
        };
    }
}
