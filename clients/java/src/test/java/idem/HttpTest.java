package idem;

import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.List;

/** RetryingHttp against a Tomcat with the filter: java idem.HttpTest URL KEY-IN-DOUBT. */
public final class HttpTest {
    private final URI base;
    private final String doubt;
    private final RetryingHttp http = new RetryingHttp(HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build(), 30);

    HttpTest(String url, String doubt) {
        base = URI.create(url);
        this.doubt = doubt;
    }

    HttpRequest.Builder post(URI uri) {
        return HttpRequest.newBuilder(uri).timeout(Duration.ofSeconds(60)).POST(HttpRequest.BodyPublishers.ofString("book"));
    }

    void aRequestThatIsInProgressIsAskedForAgain() throws Exception {
        var pool = Executors.newFixedThreadPool(3);
        Callable<String> call = () -> new String(http.send(post(base.resolve("/slow")), "retried \"é\"".replace("é", "e")).body(), StandardCharsets.UTF_8);
        for (var future : pool.invokeAll(List.of(call, call, call)))
            ClientTest.equal(future.get(), "slow");
        pool.shutdown();
    }

    void anUnknownOutcomeIsNotRetried() throws Exception {
        ClientTest.fails(IdemException.OutcomeUnknown.class, () -> http.send(post(base.resolve("/doubt")), doubt));
    }

    void otherProblemsAndAnswersAreGivenBack() throws Exception {
        ClientTest.equal(http.send(post(base.resolve("/orders"))).statusCode(), 201);
        ClientTest.equal(http.send(post(base.resolve("/missing"))).statusCode(), 404);
        ClientTest.equal(http.send(post(base.resolve("/required/x")), "x".repeat(300)).statusCode(), 400);
    }

    void aConnectionThatBreaksIsRetriedWithTheSameKey() throws Exception {
        Set<String> keys = new HashSet<>();
        try (var server = new ServerSocket(0, 5, java.net.InetAddress.getLoopbackAddress())) {
            var thread = new Thread(() -> {
                for (int i = 0; i < 3; i++) {
                    try (var socket = server.accept()) {
                        var head = new StringBuilder();
                        while (head.indexOf("\r\n\r\n") < 0)
                            head.append((char) socket.getInputStream().read());
                        socket.getInputStream().readNBytes(4);
                        keys.add(head.toString().lines().filter(line -> line.startsWith("Idempotency-Key:")).findFirst().get());
                        if (i == 2)
                            socket.getOutputStream().write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".getBytes(StandardCharsets.US_ASCII));
                    } catch (Exception e) {
                        e.printStackTrace();
                    }
                }
            });
            thread.start();
            var answer = http.send(post(URI.create("http://127.0.0.1:" + server.getLocalPort() + "/")));
            ClientTest.equal(new String(answer.body(), StandardCharsets.US_ASCII), "ok");
            thread.join();
        }
        ClientTest.equal(keys.size(), 1);
    }

    public static void main(String[] args) throws Exception {
        ClientTest.runAll(new HttpTest(args[0], args[1]));
    }
}
