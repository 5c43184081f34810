package idem;

import java.time.Duration;

/** Credentials: java idem.AuthTest GOOD WRONG OTHER-SCOPE UNIX, with IDEM_AUTH for the last one. */
public final class AuthTest {
    private static String once(String url) {
        var options = Options.strict().scope("java").deadline(Duration.ofSeconds(5));
        try (var client = IdemClient.open(url, options)) {
            return client.once("auth", String.class, () -> "mine");
        }
    }

    public static void main(String[] args) throws Exception {
        ClientTest.equal(once(args[0]), "mine");
        ClientTest.equal(ClientTest.fails(IdemException.Refused.class, () -> once(args[1])).word(), "WRONGPASS");
        ClientTest.equal(ClientTest.fails(IdemException.Refused.class, () -> once(args[2])).word(), "NOPERM");
        ClientTest.equal(once(args[3]), "mine");
        System.out.println("passed");
    }
}
