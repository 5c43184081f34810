import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Pay an order once, with nothing but the JDK: java PayHttp HOST:PORT ORDER AMOUNT LEDGER */
public class PayHttp {
    private final HttpClient http = HttpClient.newHttpClient();
    private final String address, order, amount;
    private final Path ledger;

    PayHttp(String[] args) {
        address = args[0];
        order = args[1];
        amount = args[2];
        ledger = Path.of(args[3]);
    }

    /** POST /v1/records/shop/ORDER/VERB: status 200 has a verdict, everything else is a problem. */
    private String idem(String verb, String json) throws IOException, InterruptedException {
        String id = URLEncoder.encode(order, StandardCharsets.UTF_8).replace("+", "%20");
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + address + "/v1/records/shop/" + id + "/" + verb))
                .header("Content-Type", "application/json").timeout(Duration.ofSeconds(60))
                .POST(HttpRequest.BodyPublishers.ofString(json)).build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(answer.body());
        }
        return answer.body();
    }

    /** One field; a service would use its JSON library here. */
    private static String field(String json, String name) {
        Matcher m = Pattern.compile("\"" + name + "\":(?:\"([^\"]*)\"|(\\d+))").matcher(json);
        return !m.find() ? null : m.group(1) != null ? m.group(1) : m.group(2);
    }

    /** The work: here it appends a line, in your service it calls the bank. */
    private String pay() throws IOException {
        Files.writeString(ledger, order + " " + amount + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        return "paid " + amount + " for " + order;
    }

    private String run() throws Exception {
        byte[] asked = ("pay " + order + " " + amount).getBytes(StandardCharsets.UTF_8);
        byte[] nonce = new byte[8];
        new SecureRandom().nextBytes(nonce);
        String claim = idem("begin", String.format(
                "{\"fingerprint\": \"%s\", \"nonce\": \"%s\", \"lease_ms\": 30000, \"wait_ms\": 20000}",
                HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(asked)), HexFormat.of().formatHex(nonce)));
        String fence = field(claim, "fence");
        switch (field(claim, "verdict")) {
            case "started":
                String result;
                try {
                    result = pay();
                } catch (IOException e) { // surely not paid: another may try
                    idem("release", "{\"fence\": " + fence + "}");
                    throw e;
                }
                idem("finish", "{\"fence\": " + fence + ", \"outcome\": \"succeeded\", \"result\": \"" + result + "\"}");
                return result;
            case "replay":
                return field(claim, "result");
            default: // busy, mismatch, doubt
                throw new IOException(order + ": " + field(claim, "verdict"));
        }
    }

    public static void main(String[] args) throws Exception {
        try {
            System.out.println(new PayHttp(args).run());
        } catch (IOException e) {
            System.err.println(e.getMessage());
            System.exit(1);
        }
    }
}
