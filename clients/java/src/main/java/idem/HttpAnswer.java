package idem;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** An HTTP answer as it is stored with kind {@code http}: docs/results.md. Middleware writes it, and so does the gateway. */
public final class HttpAnswer {
    private static final Set<String> NOT_STORED = Set.of("content-length", "connection", "keep-alive", "proxy-connection", "te", "trailer",
            "transfer-encoding", "upgrade", "proxy-authenticate", "proxy-authorization", "date", "set-cookie", "www-authenticate");

    private static final int LOOK_MAX = 65536;

    public final int status;
    public final List<String[]> headers = new ArrayList<>();
    public final byte[] body;

    public HttpAnswer(int status, byte[] body) {
        this.status = status;
        this.body = body;
    }

    /** Headers of one connection, and those that only the first caller may see, are left out. */
    public HttpAnswer header(String name, String value) {
        if (!NOT_STORED.contains(name.toLowerCase(java.util.Locale.ROOT)) && value.chars().noneMatch(c -> c == '\r' || c == '\n' || c == 0))
            headers.add(new String[] {name, value});
        return this;
    }

    public byte[] stored() {
        var head = new StringBuilder().append(status).append('\n');
        for (var header : headers)
            head.append(header[0]).append(": ").append(header[1]).append('\n');
        var out = new ByteArrayOutputStream();
        out.writeBytes(head.append('\n').toString().getBytes(StandardCharsets.ISO_8859_1));
        out.writeBytes(body);
        return out.toByteArray();
    }

    /** A success that was recorded without an HTTP answer: an operator settled it, or a service finished it itself. */
    public static HttpAnswer settled(byte[] result) {
        return result.length == 0 ? new HttpAnswer(204, result) : new HttpAnswer(200, result).header("Content-Type", typeOf(result));
    }

    private static String typeOf(byte[] result) {
        var type = "application/octet-stream";
        if (result.length > LOOK_MAX)
            return type;
        try {
            var text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(result)).toString();
            if (text.chars().allMatch(c -> c >= ' ' || c == '\t' || c == '\r' || c == '\n'))
                type = "text/plain; charset=utf-8";
            if ((result[0] == '{' || result[0] == '[') && Json.read(text) != null)
                type = "application/json";
        } catch (CharacterCodingException | IllegalArgumentException e) { // not UTF-8, or not JSON
        }
        return type;
    }

    public static HttpAnswer read(byte[] stored) {
        int at = 0;
        var lines = new ArrayList<String>();
        do {
            int from = at;
            while (at < stored.length && stored[at] != '\n')
                at++;
            if (at == stored.length)
                throw new IllegalArgumentException("a stored answer without an end of its head");
            lines.add(new String(stored, from, at++ - from, StandardCharsets.ISO_8859_1));
        } while (!lines.get(lines.size() - 1).isEmpty());
        var answer = new HttpAnswer(Integer.parseInt(lines.get(0)), java.util.Arrays.copyOfRange(stored, at, stored.length));
        for (var line : lines.subList(1, lines.size() - 1))
            answer.headers.add(line.split(": ?", 2));
        return answer;
    }
}
