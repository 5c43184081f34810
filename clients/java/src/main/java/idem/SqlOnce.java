package idem;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Types;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/**
 * Runs work at most once, with its record in the caller's own database transaction: both commit or neither. It needs no server, only
 * the functions that {@code idem store init URL} installs (docs/sql/README.md), in PostgreSQL or MariaDB.
 *
 * <pre>Order order = SqlOnce.once(db, "order-7", Order.class, Options.strict().scope("shop").arguments(cart), () -> placeOrder(db, cart));</pre>
 *
 * On a connection with auto-commit, the call is a transaction of its own. Otherwise it is a part of yours: commit it, and after a failure
 * of the work too, if the failure shall be kept; the work's own changes are undone to a savepoint then.
 */
public final class SqlOnce<T, E extends Exception> {
    private static final Duration BUSY_AGAIN = Duration.ofMillis(100);
    private final Connection db;
    private final String key;
    private final Options options;
    private final boolean maria;
    private final boolean own;
    private final Object scope; // as the database takes them: the columns of MariaDB are binary
    private final Object id;

    private SqlOnce(Connection db, String key, Options options) throws SQLException {
        if (options.arguments == Options.NOTHING)
            throw new IllegalArgumentException("give arguments(...): without them a key that is used for another request is not noticed");
        this.db = db;
        this.key = key;
        this.options = options;
        this.maria = !db.getMetaData().getDatabaseProductName().equals("PostgreSQL");
        this.own = db.getAutoCommit();
        this.scope = maria ? Json.exact(options.scope) : options.scope;
        this.id = maria ? Json.exact(key) : key;
    }

    /** Run the work once on this connection. SQLException: the transaction failed; if it was a deadlock, run it again. */
    public static <T, E extends Exception> T once(Connection db, String key, Class<T> type, Options options, Work<T, E> work)
            throws SQLException, E {
        IdemClient.checkWork(work);
        return new SqlOnce<T, E>(db, key, options).transaction(type, work);
    }

    private T transaction(Class<T> type, Work<T, E> work) throws SQLException, E {
        if (!own)
            return guarded(type, work);
        db.setAutoCommit(false);
        boolean committed = false;
        try {
            if (maria)
                db.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            T value = guarded(type, work);
            commit();
            committed = true;
            return value;
        } finally {
            if (!committed && !db.isClosed())
                db.rollback(); // what had to stay was committed before the error was thrown
            if (!db.isClosed())
                db.setAutoCommit(true);
        }
    }

    private void commit() throws SQLException {
        try {
            db.commit();
        } catch (SQLException e) {
            if (e.getSQLState() != null && e.getSQLState().startsWith("08"))
                throw new IdemException.OutcomeUnknown("the reply to commit was lost: ask idem.get for " + options.scope + "/" + key, e);
            throw e;
        }
    }

    private T guarded(Class<T> type, Work<T, E> work) throws SQLException, E {
        var unclaimed = own ? null : db.setSavepoint();
        var begun = begin();
        if (begun.claim == null) {
            if (own)
                commit(); // before a failure is told, too: on PostgreSQL the commit waits for the standby
            return begun.value(key, type, options);
        }
        var claimed = db.setSavepoint();
        T value;
        byte[] result;
        var outer = begun.claim.enter();
        try {
            value = IdemClient.ran(work.run());
            result = written(value);
        } catch (Throwable e) {
            begun.claim.leave(outer);
            if (!isUndone(e))
                undo(begun.claim, e, keeps(e) ? claimed : unclaimed);
            throw e;
        }
        begun.claim.leave(outer);
        finish(begun.claim.fence(), "succeeded", result);
        return value;
    }

    /** Back to the savepoint: behind the claim if it stays, else before it. Null: the whole transaction is rolled back. */
    private void undo(Claim claim, Throwable error, Savepoint to) throws SQLException {
        if (to == null)
            return;
        db.rollback(to);
        if (!keeps(error))
            return;
        if (!IdemClient.isUnknown(error))
            finish(claim.fence(), "failed", IdemClient.failure(error));
        if (own)
            commit();
    }

    private byte[] written(T value) {
        try {
            return options.codec.write(value);
        } catch (Exception e) { // it is not committed: nothing has happened
            throw new IdemException.NotExecuted("the result of " + options.scope + "/" + key + " cannot be written", e);
        }
    }

    /** A deadlock, a serialization failure or a lost connection has undone the claim as well. */
    private static boolean isUndone(Throwable error) {
        for (var e = error; e != null; e = e.getCause())
            if (e instanceof SQLException) {
                var state = String.valueOf(((SQLException) e).getSQLState());
                int code = ((SQLException) e).getErrorCode();
                return state.startsWith("40") || state.startsWith("08") || Set.of(1205, 1213, 1020).contains(code);
            }
        return false;
    }

    /** Whether the claim stays behind: what certainly did not happen, or may be tried again, leaves nothing. */
    private boolean keeps(Throwable e) {
        return !(e instanceof IdemException.NotExecuted) && (options.mode == Mode.STRICT || IdemClient.isUnknown(e));
    }

    private byte[] fingerprint() {
        var hex = IdemClient.fingerprint(options.arguments, options.codec);
        var bytes = new byte[32];
        for (int i = 0; i < 32; i++)
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        return bytes;
    }

    private IdemClient.Begun begin() throws SQLException {
        var asked = new Object[] {scope, id, fingerprint(), options.mode.name().toLowerCase(Locale.ROOT), options.lease.toMillis(), options.ttl.toMillis()};
        var told = maria ? call("{call idem_begin(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)}", asked, Types.VARCHAR, Types.BIGINT, Types.VARCHAR, Types.LONGVARBINARY)
                : select("select verdict, fence, kind, result, state from idem.begin(?, ?, ?, ?, ?, ?, " + options.wait.toMillis() + ")", asked);
        var verdict = (String) told.get(0);
        var state = !maria ? told.get(4) : !verdict.equals("replay") ? null : call("{call idem_get(?, ?, ?, ?, ?, ?, ?)}", new Object[] {scope, id},
                Types.VARCHAR, Types.VARCHAR, Types.BIGINT, Types.VARCHAR, Types.LONGVARBINARY).get(1);
        var fence = told.get(1) == null ? 0 : ((Number) told.get(1)).longValue();
        return IdemClient.Begun.of(verdict, new Claim(key, options).fence(fence), BUSY_AGAIN, (String) state, (String) told.get(2),
                (byte[]) told.get(3));
    }

    private void finish(long fence, String state, byte[] result) throws SQLException {
        var asked = new Object[] {scope, id, fence, state, result, options.ttl.toMillis()};
        var verdict = (maria ? call("{call idem_try_finish(?, ?, ?, ?, ?, ?, 'raw', ?)}", asked, Types.VARCHAR)
                : select("select idem.try_finish(?, ?, ?, ?, ?, ?)", asked)).get(0);
        if (!verdict.equals("ok"))
            throw new IdemException.LeaseLost("somebody else decided about " + options.scope + "/" + key + " meanwhile (" + verdict + ")");
    }

    private static void bind(PreparedStatement s, Object[] asked) throws SQLException {
        for (int i = 0; i < asked.length; i++)
            if (asked[i] instanceof byte[])
                s.setBytes(i + 1, (byte[]) asked[i]);
            else
                s.setObject(i + 1, asked[i]);
    }

    /** A function of PostgreSQL: the columns of its row. */
    private List<Object> select(String sql, Object[] asked) throws SQLException {
        try (var s = db.prepareStatement(sql)) {
            bind(s, asked);
            try (var row = s.executeQuery()) {
                row.next();
                var told = new ArrayList<>();
                for (int i = 1; i <= row.getMetaData().getColumnCount(); i++)
                    told.add(row.getObject(i));
                return told;
            }
        }
    }

    /** A procedure of MariaDB: what it gives back in the parameters behind those that it gets. */
    private List<Object> call(String sql, Object[] asked, int... types) throws SQLException {
        try (var s = db.prepareCall(sql)) {
            bind(s, asked);
            for (int i = 0; i < types.length; i++)
                s.registerOutParameter(asked.length + 1 + i, types[i]);
            s.execute();
            var told = new ArrayList<>();
            for (int i = asked.length + 1; i <= asked.length + types.length; i++)
                told.add(types[i - asked.length - 1] == Types.LONGVARBINARY ? s.getBytes(i) : s.getObject(i));
            return told;
        }
    }
}
