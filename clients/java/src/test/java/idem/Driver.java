package idem;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The conformance driver of the Java client: see clients/conformance/README.md. */
public final class Driver {
    static final class OutOfStock extends Exception {
        private static final long serialVersionUID = 1;

        OutOfStock(String message) {
            super(message);
        }
    }

    private final IdemClient client;

    Driver(String url) {
        client = IdemClient.open(url);
    }

    static void append(Object file, Object line) throws Exception {
        Files.writeString(Path.of((String) file), line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    Object work(List<?> steps, Connection db) throws Exception {
        for (var each : steps) {
            var step = (Map<?, ?>) each;
            var claim = Claim.current();
            switch ((String) step.keySet().iterator().next()) {
            case "sql":
                try (var s = db.createStatement()) {
                    s.execute((String) step.get("sql"));
                }
                break;
            case "append":
                append(step.get("append"), claim == null ? 0 : claim.fence());
                break;
            case "sleep_ms":
                Thread.sleep((Long) step.get("sleep_ms"));
                break;
            case "await_loss_ms":
                var lost = new CountDownLatch(1);
                claim.onLost(lost::countDown);
                boolean told = lost.await((Long) step.get("await_loss_ms"), TimeUnit.MILLISECONDS);
                append(step.get("file"), told && claim.isLost() ? "lost" : "kept");
                break;
            case "die":
                new ProcessBuilder("kill", "-KILL", String.valueOf(ProcessHandle.current().pid())).start().waitFor();
                break;
            case "return":
                return step.get("return");
            case "return_text":
                return "x".repeat(((Long) step.get("return_text")).intValue());
            case "raise":
                var raise = (List<?>) step.get("raise");
                if (!raise.get(0).equals("OutOfStock"))
                    throw new IllegalArgumentException("this driver has no error " + raise.get(0));
                throw new OutOfStock((String) raise.get(1));
            case "redeem":
                client.redeem((String) step.get("redeem"), claim.scope());
                break;
            case "not_executed":
                throw new IdemException.NotExecuted("it has certainly not happened");
            case "unknown":
                throw new IdemException.OutcomeUnknown("who knows");
            default:
                throw new IllegalArgumentException("no such step: " + step);
            }
        }
        return null;
    }

    static Map<String, Object> told(Exception e) {
        var answer = new LinkedHashMap<String, Object>();
        answer.put("class", e instanceof IdemException.Done ? "done" : e instanceof IdemException.NotExecuted ? "not_executed"
                : e instanceof IdemException.InProgress ? "in_progress" : e instanceof IdemException.OutcomeUnknown ? "unknown" : "error");
        answer.put("error", e.getClass().getSimpleName());
        answer.put("deadlock", isDeadlock(e));
        answer.put("type", e instanceof IdemException.Failed ? ((IdemException.Failed) e).type() : e.getClass().getSimpleName());
        answer.put("message", e instanceof IdemException.Failed ? ((IdemException.Failed) e).text() : e.getMessage());
        return answer;
    }

    static Options options(Map<?, ?> command) {
        var given = command.get("options") instanceof Map ? (Map<?, ?>) command.get("options") : Map.of();
        var o = Options.strict().scope((String) command.get("scope"));
        o = "loose".equals(given.get("mode")) ? o.mode(Mode.LOOSE) : o;
        o = given.containsKey("lease_ms") ? o.lease(Duration.ofMillis((Long) given.get("lease_ms"))) : o;
        o = given.containsKey("ttl_ms") ? o.ttl(Duration.ofMillis((Long) given.get("ttl_ms"))) : o;
        o = given.containsKey("wait_ms") ? o.waitFor(Duration.ofMillis((Long) given.get("wait_ms"))) : o;
        o = given.containsKey("deadline_ms") ? o.deadline(Duration.ofMillis((Long) given.get("deadline_ms"))) : o;
        o = Boolean.TRUE.equals(given.get("fail_open")) ? o.failOpen() : o;
        o = Boolean.TRUE.equals(command.get("token")) ? o.token() : o;
        return command.containsKey("arguments") ? o.arguments(command.get("arguments")) : o;
    }

    /** With "end" the transaction is the caller's own, and ends so after an error too. */
    Object transaction(Map<?, ?> command, boolean[] ran) throws Exception {
        var u = java.net.URI.create((String) command.get("database"));
        var user = (u.getUserInfo() + ":").split(":");
        var kind = u.getScheme().equals("mysql") ? "mariadb" : "postgresql";
        var url = "jdbc:" + kind + "://" + u.getHost() + ":" + u.getPort() + u.getPath();
        try (var db = DriverManager.getConnection(url, user[0], user.length > 1 ? user[1] : "")) {
            var end = command.get("end");
            if (end != null) {
                db.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
                db.setAutoCommit(false);
            }
            try {
                return SqlOnce.once(db, (String) command.get("key"), Object.class, options(command), () -> {
                    ran[0] = true;
                    return work((List<?>) command.get("work"), db);
                });
            } finally {
                if ("commit".equals(end))
                    db.commit();
                else if (end != null)
                    db.rollback();
            }
        }
    }

    static boolean isDeadlock(Throwable e) {
        return e instanceof SQLException && (String.valueOf(((SQLException) e).getSQLState()).startsWith("40")
                || Set.of(1205, 1213, 1020).contains(((SQLException) e).getErrorCode()));
    }

    Map<String, Object> perform(Map<?, ?> command) {
        var ran = new boolean[1];
        var answer = new LinkedHashMap<String, Object>();
        answer.put("class", "done");
        try {
            switch ((String) command.get("op")) {
            case "once":
                answer.put("value", client.once((String) command.get("key"), Object.class, options(command), () -> {
                    ran[0] = true;
                    return work((List<?>) command.get("work"), null);
                }));
                break;
            case "transaction":
                answer.put("value", transaction(command, ran));
                break;
            case "issue":
                answer.put("value", client.issue((String) command.get("subject"), Duration.ofMinutes(5)));
                break;
            case "redeem":
                client.redeem((String) command.get("token"), (String) command.get("subject"));
                answer.put("value", "redeemed");
                break;
            default:
                answer.put("value", IdemClient.fingerprint(command.get("arguments")));
            }
        } catch (Exception e) {
            answer.putAll(told(e));
        }
        answer.put("ran", ran[0]);
        answer.put("id", command.get("id"));
        return answer;
    }

    public static void main(String[] args) throws Exception {
        var driver = new Driver(args[0].isEmpty() ? null : args[0]);
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var threads = new ArrayList<Thread>();
        for (String line; (line = input.readLine()) != null;) {
            var command = (Map<?, ?>) Json.read(line);
            var thread = new Thread(() -> {
                var answer = Json.write(Bind.tree(driver.perform(command)));
                synchronized (output) {
                    output.println(answer);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (var thread : threads)
            thread.join();
    }
}
