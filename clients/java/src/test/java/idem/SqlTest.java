package idem;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;

/** SqlOnce on a real database: java idem.SqlTest JDBC-URL. Prints "passed" and a name for each test. */
public final class SqlTest {
    private final String url;
    private final Options options = Options.strict().scope("jdbc").arguments(List.of("book", 1));

    SqlTest(String url) {
        this.url = url;
    }

    Connection open() throws SQLException {
        return DriverManager.getConnection(url, "idem", "secret");
    }

    static Long pay(Connection db) throws SQLException {
        try (var s = db.createStatement()) {
            s.executeUpdate("update jdbc_account set n = n - 1");
            return count(db);
        }
    }

    static long count(Connection db) throws SQLException {
        try (var s = db.createStatement(); var r = s.executeQuery("select n from jdbc_account")) {
            r.next();
            return r.getLong(1);
        }
    }

    long now() throws SQLException {
        try (var db = open()) {
            return count(db);
        }
    }

    void manyCallersHaveOneEffectAndOneAnswer() throws Exception {
        long before = now();
        var pool = Executors.newFixedThreadPool(6);
        var calls = new ArrayList<Callable<Long>>();
        for (int i = 0; i < 6; i++)
            calls.add(() -> {
                try (var db = open()) {
                    for (;;) {
                        try {
                            return SqlOnce.once(db, "one", Long.class, options, () -> pay(db));
                        } catch (IdemException.InProgress e) {
                            Thread.sleep(e.retryAfter().toMillis());
                        } catch (SQLException e) {
                            if (e.getErrorCode() != 1213 && e.getErrorCode() != 1205 && !String.valueOf(e.getSQLState()).startsWith("40"))
                                throw e;
                        }
                    }
                }
            });
        for (var future : pool.invokeAll(calls))
            ClientTest.equal(future.get(), before - 1);
        pool.shutdown();
        ClientTest.equal(now(), before - 1);
    }

    void aStrictFailureIsKeptAndItsChangesAreNot() throws Exception {
        long before = now();
        try (var db = open()) {
            ClientTest.fails(IllegalStateException.class, () -> SqlOnce.once(db, "fail", Long.class, options, () -> {
                pay(db);
                throw new IllegalStateException("out of stock");
            }));
            var failed = ClientTest.fails(IdemException.Failed.class, () -> SqlOnce.once(db, "fail", Long.class, options, () -> pay(db)));
            ClientTest.equal(failed.type() + failed.text(), "IllegalStateExceptionout of stock");
            ClientTest.fails(SQLException.class, () -> SqlOnce.once(db, "sql", Long.class, options, () -> {
                try (var s = db.createStatement()) {
                    s.executeUpdate("update no_such_table set n = 1");
                }
                return 1L;
            }));
            ClientTest.fails(IdemException.Failed.class, () -> SqlOnce.once(db, "sql", Long.class, options, () -> pay(db)));
            ClientTest.check(db.getAutoCommit(), "auto-commit is not back");
        }
        ClientTest.equal(now(), before);
    }

    void aLooseFailureAndNotExecutedLeaveNothing() throws Exception {
        long before = now();
        try (var db = open()) {
            var loose = options.mode(Mode.LOOSE);
            ClientTest.fails(IllegalStateException.class, () -> SqlOnce.once(db, "loose", Long.class, loose, () -> {
                pay(db);
                throw new IllegalStateException("later");
            }));
            ClientTest.equal(SqlOnce.once(db, "loose", Long.class, loose, () -> pay(db)), before - 1);
            ClientTest.fails(IdemException.NotExecuted.class, () -> SqlOnce.once(db, "not", Long.class, options, () -> {
                pay(db);
                throw new IdemException.NotExecuted("not now");
            }));
            ClientTest.equal(SqlOnce.once(db, "not", Long.class, options, () -> pay(db)), before - 2);
        }
        ClientTest.equal(now(), before - 2);
    }

    void anUnknownOutcomeKeepsTheClaim() throws Exception {
        long before = now();
        try (var db = open()) {
            ClientTest.fails(IdemException.OutcomeUnknown.class, () -> SqlOnce.once(db, "unknown", Long.class, options, () -> {
                pay(db);
                throw new IdemException.OutcomeUnknown("the bank did not respond");
            }));
            ClientTest.fails(IdemException.InProgress.class, () -> SqlOnce.once(db, "unknown", Long.class, options, () -> pay(db)));
        }
        ClientTest.equal(now(), before);
    }

    void otherArgumentsAreAMismatchAndNoneAreRefused() throws Exception {
        try (var db = open()) {
            SqlOnce.once(db, "mismatch", Long.class, options, () -> 1L);
            ClientTest.fails(IdemException.Mismatch.class,
                    () -> SqlOnce.once(db, "mismatch", Long.class, options.arguments("another"), () -> 1L));
            ClientTest.fails(IllegalArgumentException.class, () -> SqlOnce.once(db, "none", Long.class, Options.strict(), () -> 1L));
        }
    }

    void inTheCallersTransactionTheCallerDecides() throws Exception {
        long before = now();
        try (var db = open()) {
            db.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            db.setAutoCommit(false);
            SqlOnce.once(db, "mine", Long.class, options, () -> pay(db));
            db.rollback();
            ClientTest.equal(now(), before);
            SqlOnce.once(db, "mine", Long.class, options, () -> pay(db));
            db.commit();
            ClientTest.equal(SqlOnce.once(db, "mine", Long.class, options, () -> pay(db)), before - 1);
            db.rollback();
        }
        ClientTest.equal(now(), before - 1);
    }

    void inTheCallersTransactionALooseFailureLeavesNothing() throws Exception {
        long before = now();
        try (var db = open()) {
            db.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            db.setAutoCommit(false);
            ClientTest.fails(IllegalStateException.class, () -> SqlOnce.once(db, "mine-loose", Long.class, options.mode(Mode.LOOSE), () -> {
                pay(db);
                throw new IllegalStateException("later");
            }));
            ClientTest.fails(IdemException.NotExecuted.class, () -> SqlOnce.once(db, "mine-not", Long.class, options, () -> {
                pay(db);
                throw new IdemException.NotExecuted("not now");
            }));
            db.commit();
            ClientTest.equal(now(), before);
            SqlOnce.once(db, "mine-loose", Long.class, options.mode(Mode.LOOSE), () -> pay(db));
            SqlOnce.once(db, "mine-not", Long.class, options, () -> pay(db));
            db.commit();
        }
        ClientTest.equal(now(), before - 2);
    }

    public static void main(String[] args) throws Exception {
        var test = new SqlTest(args[0]);
        try (var db = test.open(); var s = db.createStatement()) {
            s.execute("create table jdbc_account (n bigint)");
            s.execute("insert into jdbc_account values (1000)");
        }
        ClientTest.runAll(test);
    }
}
