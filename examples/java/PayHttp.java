import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Pay an order once, with nothing but the JDK: java PayHttp HOST:PORT ORDER AMOUNT BANK */
public class PayHttp {
    /** The bank was never asked: it is safe to try again. */
    static class NotPaid extends Exception {
        NotPaid(String why) {
            super(why);
        }
    }

    /** How it ended: the outcome and its result. A payment that the bank declines is a result too. */
    record End(String outcome, String result) {
    }

    private final HttpClient http = HttpClient.newHttpClient();
    private final String address, order, amount, bank;

    PayHttp(String[] args) {
        address = args[0];
        order = args[1];
        amount = args[2];
        bank = args[3];
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** The work: ask the bank. What throws anything but NotPaid may have been paid. */
    private End pay() throws NotPaid, IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(bank + "/payments")).timeout(Duration.ofSeconds(5))
                .header("Content-Type", "application/x-www-form-urlencoded")
                .POST(BodyPublishers.ofString("order=" + encode(order) + "&amount=" + encode(amount))).build();
        try {
            switch (http.send(request, BodyHandlers.discarding()).statusCode()) {
                case 200:
                    return new End("succeeded", "paid " + amount + " for " + order);
                case 402:
                    return new End("failed", "declined: " + amount + " for " + order);
                default:
                    throw new IOException("the bank gave another answer");
            }
        } catch (ConnectException e) {
            throw new NotPaid("not paid: no connection to the bank");
        }
    }

    /**
     * POST /v1/records/shop/ORDER/VERB: status 200 has a verdict, everything else is a problem. Without an answer it is
     * sent again: the nonce of begin and the fence of the others make that safe.
     */
    private String idem(String verb, String json) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest
                .newBuilder(URI.create("http://" + address + "/v1/records/shop/" + encode(order) + "/" + verb))
                .header("Content-Type", "application/json").timeout(Duration.ofSeconds(60))
                .POST(BodyPublishers.ofString(json)).build();
        for (int attempt = 0;; attempt++) {
            try {
                HttpResponse<String> answer = http.send(request, BodyHandlers.ofString());
                if (answer.statusCode() == 200) {
                    return answer.body();
                }
                if (answer.statusCode() < 500 || attempt == 5) {
                    throw new IllegalStateException(answer.body());
                }
            } catch (IOException e) {
                if (attempt == 5) {
                    throw e;
                }
            }
            Thread.sleep(100L << attempt);
        }
    }

    /** One field; a service would use its JSON library here. */
    private static String field(String json, String name) {
        Matcher m = Pattern.compile("\"" + name + "\":(?:\"([^\"]*)\"|(\\d+))").matcher(json);
        return !m.find() ? null : m.group(1) != null ? m.group(1) : m.group(2);
    }

    private IllegalStateException inDoubt(String why) {
        return new IllegalStateException(order + ": outcome unknown (" + why + "): ask the bank, then run\n"
                + "idem settle shop '" + order + "' --as succeeded --result '...', or --as failed");
    }

    private End run() throws Exception {
        byte[] asked = ("pay " + order + " " + amount).getBytes(StandardCharsets.UTF_8);
        byte[] nonce = new byte[8];
        new SecureRandom().nextBytes(nonce);
        String claim = idem("begin", String.format(
                "{\"fingerprint\": \"%s\", \"nonce\": \"%s\", \"lease_ms\": 30000, \"wait_ms\": 20000}",
                HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(asked)), HexFormat.of().formatHex(nonce)));
        String fence = field(claim, "fence");
        switch (field(claim, "verdict")) {
            case "started":
                End end;
                try {
                    end = pay();
                } catch (NotPaid e) {
                    idem("release", "{\"fence\": " + fence + "}");
                    throw e;
                } catch (IOException e) { // paid or not: keep the claim, so that nobody pays again
                    throw inDoubt(String.valueOf(e.getMessage()));
                }
                idem("finish", String.format("{\"fence\": %s, \"outcome\": \"%s\", \"result\": \"%s\"}",
                        fence, end.outcome(), end.result()));
                return end;
            case "replay":
                return new End(field(claim, "state"), field(claim, "result"));
            case "doubt":
                throw inDoubt("whoever paid it did not say how it went");
            default: // busy, mismatch
                throw new IllegalStateException(order + ": " + field(claim, "verdict"));
        }
    }

    public static void main(String[] args) throws Exception {
        try {
            End end = new PayHttp(args).run();
            System.out.println(end.result());
            System.exit(end.outcome().equals("succeeded") ? 0 : 1);
        } catch (NotPaid | IOException | IllegalStateException e) {
            System.err.println(e.getMessage());
            System.exit(1);
        }
    }
}
