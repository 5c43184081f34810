import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import org.apache.catalina.startup.Tomcat;

import idem.Codec;
import idem.IdemClient;
import idem.IdemException;
import idem.IdemToken;
import idem.Idempotent;
import idem.Idempotents;
import idem.Mode;
import idem.Options;

/**
 * The bank of examples/bank as a servlet, with the same answers: tokens, tickets and transfers. Its accounts are in memory, to keep
 * the example short; clients/java/README.md shows how the record commits together with an account in a database.
 *
 *   $ clients/java/example/run 8080
 *   $ T=$(curl -s localhost:8080/token); for i in 1 2; do curl -s -X POST -H "token: $T" localhost:8080/test; echo; done
 *   正常调用
 *   重复调用
 */
public final class Bank extends HttpServlet {
    private static final long serialVersionUID = 1;

    /** The business says no: an answer like any other, which a repeat gets too. */
    static final class Refusal extends Exception {
        private static final long serialVersionUID = 1;

        Refusal(String answer) {
            super(answer);
        }
    }

    record Transfer(String source, String seq, String from, String to, long amount) { }

    /** What may be asked for, and under which key. */
    interface Teller {
        @IdemToken(subject = "#person")
        String test(String token, String person);

        @Idempotent(key = "#ticket", scope = "withdraw", token = true, waitFor = "2s")
        String withdraw(String ticket, String account, long amount) throws Refusal;

        @Idempotent(key = "#transfer.seq", scope = "#transfer.source", waitFor = "2s")
        String transfer(Transfer transfer) throws Refusal;

        @Idempotent(key = "#transfer.seq", scope = "#transfer.source", waitFor = "2s", mode = Mode.LOOSE)
        String transferLoose(Transfer transfer) throws Refusal;
    }

    static final class Accounts implements Teller {
        private final Map<String, Long> balances = new HashMap<>(Map.of("ann", 1000L, "bob", 1000L));

        @Override
        public String test(String token, String person) {
            return "正常调用";
        }

        private boolean deduct(String account, long amount) {
            if (balances.getOrDefault(account, 0L) < amount)
                return false;
            balances.merge(account, -amount, Long::sum);
            return true;
        }

        @Override
        public synchronized String withdraw(String ticket, String account, long amount) throws Refusal {
            if (!deduct(account, amount))
                throw new Refusal("{\"withdrawn\":0}");
            return "{\"withdrawn\":" + amount + "}";
        }

        @Override
        public synchronized String transfer(Transfer transfer) throws Refusal {
            if (!balances.containsKey(transfer.to()) || !deduct(transfer.from(), transfer.amount()))
                throw new Refusal("{\"error\":\"refused\"}");
            balances.merge(transfer.to(), transfer.amount(), Long::sum);
            return "{\"moved\":" + transfer.amount() + "}";
        }

        @Override
        public String transferLoose(Transfer transfer) throws Refusal {
            return transfer(transfer);
        }
    }

    private final transient IdemClient client;
    private final transient Teller teller;

    Bank(IdemClient client) {
        this.client = client;
        this.teller = Idempotents.wrap(client, Teller.class, new Accounts());
    }

    private static void say(HttpServletResponse response, int status, String text) throws IOException {
        response.setStatus(status);
        response.setContentType(text.startsWith("{") ? "application/json" : "text/plain; charset=utf-8");
        response.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
        try {
            route(request, response);
        } catch (Refusal e) {
            say(response, 409, e.getMessage());
        } catch (IdemException.Failed e) { // the same refusal, to a repeat
            say(response, 409, e.text());
        } catch (IdemException.TokenUnknown e) {
            say(response, 403, "{\"error\":\"no such ticket\"}");
        } catch (IdemException.Mismatch e) {
            say(response, 422, "{\"error\":\"mismatch\",\"retryable\":false}");
        } catch (IdemException.InProgress e) {
            say(response, 409, "{\"error\":\"busy\"}");
        } catch (IdemException.NotExecuted e) {
            say(response, 503, "{\"error\":\"unavailable\",\"retryable\":true}");
        } catch (IdemException.OutcomeUnknown e) {
            say(response, 409, "{\"error\":\"doubt\"}");
        } catch (IllegalArgumentException e) { // no JSON, or a field is missing
            say(response, 400, "{\"error\":\"" + e.getMessage() + "\",\"retryable\":false}");
        }
    }

    private void route(HttpServletRequest request, HttpServletResponse response) throws IOException, Refusal {
        var parts = (request.getRequestURI().substring(1) + "//").split("/", 4);
        var person = request.getHeader("person") == null ? "mydlq" : request.getHeader("person");
        switch (request.getMethod() + " " + parts[0]) {
        case "GET token":
            say(response, 200, client.issue(person, Duration.ofMinutes(5)));
            break;
        case "POST test":
            say(response, 200, test(request.getHeader("token"), person));
            break;
        case "POST tickets":
            say(response, 201, "{\"ticket\":\"" + client.issue("withdraw", Duration.ofMinutes(5)) + "\"}");
            break;
        case "PUT accounts":
            say(response, 200, teller.withdraw(parts[2], parts[1], number(body(request), "amount")));
            break;
        case "POST transfers":
            var body = body(request);
            var transfer = new Transfer(text(body, "source"), text(body, "seq"), text(body, "from"), text(body, "to"), number(body, "amount"));
            say(response, 200, "loose".equals(body.get("mode")) ? teller.transferLoose(transfer) : teller.transfer(transfer));
            break;
        default:
            say(response, 404, "{\"error\":\"no such thing\"}");
        }
    }

    /** A token that was used, or that nobody issued to this person, is a repeated call. */
    private String test(String token, String person) {
        try {
            return teller.test(token == null ? "-" : token, person);
        } catch (IdemException.TokenUsed | IdemException.TokenUnknown e) {
            return "重复调用";
        }
    }

    private static Map<?, ?> body(HttpServletRequest request) throws IOException {
        try {
            return (Map<?, ?>) Codec.PLAIN.read(request.getInputStream().readAllBytes(), Map.class);
        } catch (IOException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalArgumentException("the body is not a JSON object", e);
        }
    }

    private static long number(Map<?, ?> body, String name) {
        if (body.get(name) instanceof Long && (Long) body.get(name) >= 1)
            return (Long) body.get(name);
        throw new IllegalArgumentException(name + ": a whole number from 1 is needed");
    }

    private static String text(Map<?, ?> body, String name) {
        if (body.get(name) instanceof String && !((String) body.get(name)).isEmpty())
            return (String) body.get(name);
        throw new IllegalArgumentException(name + ": a text is needed");
    }

    public static void main(String[] args) throws Exception {
        var tomcat = new Tomcat();
        tomcat.setBaseDir(Files.createTempDirectory("bank").toString());
        tomcat.setPort(Integer.parseInt(args[0]));
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        var context = tomcat.addContext("", null);
        Tomcat.addServlet(context, "bank", new Bank(IdemClient.open(args[1], Options.strict()))).addMapping("/");
        tomcat.start();
        tomcat.getServer().await();
    }
}
