package idem;

import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Sends a request to a service behind idem until there is an answer. The key is made before the first try and kept through all of them.
 *
 * <pre>
 * var http = new RetryingHttp(HttpClient.newHttpClient());
 * var answer = http.send(HttpRequest.newBuilder(uri).timeout(ofSeconds(30)).POST(BodyPublishers.ofString(json)), "order-7");
 * </pre>
 *
 * Give the request a timeout: without one a server that never answers is waited for.
 */
public final class RetryingHttp {
    private final HttpClient client;
    private final int tries;

    public RetryingHttp(HttpClient client) {
        this(client, 6);
    }

    public RetryingHttp(HttpClient client, int tries) {
        this.client = client;
        this.tries = tries;
    }

    /** With a fresh key: right where the process that retries is the one that decided to send. */
    public HttpResponse<byte[]> send(HttpRequest.Builder request) throws IOException, InterruptedException {
        return send(request, UUID.randomUUID().toString());
    }

    /**
     * The answer of the service, or of the last try. Throws OutcomeUnknown where the service says that nobody knows, and IOException where
     * no try got an answer: send it again later, with the same key.
     */
    public HttpResponse<byte[]> send(HttpRequest.Builder request, String key) throws IOException, InterruptedException {
        var sent = request.setHeader("Idempotency-Key", '"' + key.replace("\\", "\\\\").replace("\"", "\\\"") + '"').build();
        for (int i = 1;; i++) {
            HttpResponse<byte[]> answer = null;
            try {
                answer = client.send(sent, HttpResponse.BodyHandlers.ofByteArray());
            } catch (IOException e) {
                if (i >= tries)
                    throw e;
            }
            if (answer != null) {
                var problem = problem(answer);
                if (String.valueOf(problem.get("type")).matches(".*[/#]outcome-unknown"))
                    throw new IdemException.OutcomeUnknown("nobody knows whether the request with the key " + key + " was executed");
                if (!Boolean.TRUE.equals(problem.get("retryable")) || i >= tries)
                    return answer;
            }
            Thread.sleep(Math.max(after(answer), (long) (100 * (1 << Math.min(i - 1, 8)) * ThreadLocalRandom.current().nextDouble(0.5, 1.5))));
        }
    }

    private static Map<?, ?> problem(HttpResponse<byte[]> answer) {
        if (!answer.headers().firstValue("Content-Type").orElse("").startsWith("application/problem+json"))
            return Map.of();
        try {
            return (Map<?, ?>) Json.read(new String(answer.body(), StandardCharsets.UTF_8));
        } catch (IllegalArgumentException | ClassCastException e) {
            return Map.of();
        }
    }

    private static long after(HttpResponse<byte[]> answer) {
        var text = answer == null ? "0" : answer.headers().firstValue("Retry-After").orElse("0");
        return text.matches("\\d{1,5}") ? Long.parseLong(text) * 1000 : 0;
    }
}
