package idem;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Types;
import java.time.Duration;
import java.util.Locale;

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

    private SqlOnce(Connection db, String key, Options options) throws SQLException {
        if (options.arguments == Options.NOTHING)
            throw new IllegalArgumentException("give arguments(...): without them a key that is used for another request is not noticed");
        this.db = db;
        this.key = key;
        this.options = options;
        this.maria = !db.getMetaData().getDatabaseProductName().equals("PostgreSQL");
        this.own = db.getAutoCommit();
    }

    /** Run the work once on this connection. SQLException: the transaction failed; if it was a deadlock, run it again. */
    public static <T, E extends Exception> T once(Connection db, String key, Class<T> type, Options options, Work<T, E> work)
            throws SQLException, E {
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
        var begun = maria ? beginMaria() : beginPostgres();
        if (begun.claim == null)
            return begun.value(key, type, options);
        var claimed = db.setSavepoint();
        T value;
        byte[] result;
        var outer = begun.claim.enter();
        try {
            value = work.run();
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
                return state.startsWith("40") || state.startsWith("08") || code == 1205 || code == 1213;
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

    private String mode() {
        return options.mode.name().toLowerCase(Locale.ROOT);
    }

    private IdemClient.Begun beginPostgres() throws SQLException {
        try (var s = db.prepareStatement("select verdict, fence, kind, result, state from idem.begin(?, ?, ?, ?, ?, ?, ?)")) {
            s.setString(1, options.scope);
            s.setString(2, key);
            s.setBytes(3, fingerprint());
            s.setString(4, mode());
            s.setLong(5, options.lease.toMillis());
            s.setLong(6, options.ttl.toMillis());
            s.setLong(7, options.wait.toMillis());
            try (var r = s.executeQuery()) {
                r.next();
                return begun(r.getString(1), r.getLong(2), r.getString(3), r.getBytes(4), r.getString(5));
            }
        }
    }

    private IdemClient.Begun beginMaria() throws SQLException {
        try (var s = db.prepareCall("{call idem_begin(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)}")) {
            s.setBytes(1, Json.utf8(options.scope));
            s.setBytes(2, Json.utf8(key));
            s.setBytes(3, fingerprint());
            s.setString(4, mode());
            s.setLong(5, options.lease.toMillis());
            s.setLong(6, options.ttl.toMillis());
            int[] types = {Types.VARCHAR, Types.BIGINT, Types.VARCHAR, Types.LONGVARBINARY};
            for (int i = 0; i < types.length; i++)
                s.registerOutParameter(7 + i, types[i]);
            s.execute();
            var verdict = s.getString(7);
            return begun(verdict, s.getLong(8), s.getString(9), s.getBytes(10), verdict.equals("replay") ? stateMaria() : null);
        }
    }

    private String stateMaria() throws SQLException {
        try (var s = db.prepareCall("{call idem_get(?, ?, ?, ?, ?, ?, ?)}")) {
            s.setBytes(1, Json.utf8(options.scope));
            s.setBytes(2, Json.utf8(key));
            int[] types = {Types.VARCHAR, Types.VARCHAR, Types.BIGINT, Types.VARCHAR, Types.LONGVARBINARY};
            for (int i = 0; i < types.length; i++)
                s.registerOutParameter(3 + i, types[i]);
            s.execute();
            return s.getString(4);
        }
    }

    private IdemClient.Begun begun(String verdict, long fence, String kind, byte[] result, String state) {
        return IdemClient.Begun.of(verdict, new Claim(key, options, 0).start(fence, null), BUSY_AGAIN, state, kind, result);
    }

    private void finish(long fence, String state, byte[] result) throws SQLException {
        String verdict;
        var call = maria ? "{call idem_try_finish(?, ?, ?, ?, ?, ?, 'raw', ?)}" : "select idem.try_finish(?, ?, ?, ?, ?, ?)";
        try (var s = maria ? db.prepareCall(call) : db.prepareStatement(call)) {
            s.setBytes(1, Json.utf8(options.scope));
            s.setBytes(2, Json.utf8(key));
            if (!maria) {
                s.setString(1, options.scope);
                s.setString(2, key);
            }
            s.setLong(3, fence);
            s.setString(4, state);
            s.setBytes(5, result);
            s.setLong(6, options.ttl.toMillis());
            if (maria)
                ((java.sql.CallableStatement) s).registerOutParameter(7, Types.VARCHAR);
            s.execute();
            verdict = maria ? ((java.sql.CallableStatement) s).getString(7) : first(s);
        }
        if (!verdict.equals("ok"))
            throw new IdemException.LeaseLost("somebody else decided about " + options.scope + "/" + key + " meanwhile (" + verdict + ")");
    }

    private static String first(java.sql.PreparedStatement s) throws SQLException {
        try (var r = s.getResultSet()) {
            r.next();
            return r.getString(1);
        }
    }
}
