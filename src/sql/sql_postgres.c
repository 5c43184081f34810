/*
 * sql_postgres.c - the driver for the caller's PGconn.
 *
 * A claim is inserted under an advisory lock on its key, which postgres://
 * stores and idem.begin() also take. So no transaction has to wait for an
 * uncommitted row that it cannot see.
 *
 * The statements run with the caller's search path. Where PostgreSQL has no
 * function or operator for exactly these types, one in another schema would be
 * preferred, so such a call names the schema pg_catalog.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#define STATEMENT_MAX 16384
#define TOO_LONG "the statement is too long"
#define BYTEA 17
#define INT2 21
#define INT4 23
#define INT8 20

static enum idem_sql_cause
cause_of(const char *state)
{
    static const struct {
        const char *state;
        enum idem_sql_cause cause;
    } causes[] = {
        {"23505", IDEM_SQL_DUPLICATE_KEY}, {"55P03", IDEM_SQL_LOCK_TIMEOUT},
        {"40P01", IDEM_SQL_DEADLOCK},      {"40001", IDEM_SQL_SERIALIZATION},
        {"42P01", IDEM_SQL_MISSING_TABLE}, {"3F000", IDEM_SQL_MISSING_TABLE},
    };

    for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
        if (strcmp(causes[i].state, state) == 0)
            return causes[i].cause;
    }
    if (strncmp(state, "08", 2) == 0 || strncmp(state, "57P", 3) == 0)
        return IDEM_SQL_CONNECTION_LOST;
    return IDEM_SQL_OTHER;
}

static bool
fault(struct idem_sql *db, const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    if (PQstatus(db->conn) != CONNECTION_OK || !state)
        return idem__sql_fault(db, IDEM_SQL_CONNECTION_LOST, 0,
                               state ? state : "",
                               text ? text : PQerrorMessage(db->conn));
    return idem__sql_fault(db, cause_of(state), 0, state, text ? text : "");
}

/* ---- statements -------------------------------------------------------- */

/* Replaces ? by $1, $2 ..., but not between quotes. */
static bool
number_values(const char *sql, char *out, size_t len)
{
    size_t n = 0, at = 0;
    char quote = 0;

    for (; *sql; sql++) {
        int used;

        if (*sql == quote)
            quote = 0;
        else if (!quote && (*sql == '"' || *sql == '\''))
            quote = *sql;
        if (*sql == '?' && !quote)
            used = snprintf(out + at, len - at, "$%zu", ++n);
        else
            used = snprintf(out + at, len - at, "%c", *sql);
        at += (size_t)used;
        if (at + 1 >= len)
            return false;
    }
    out[at] = 0;
    return true;
}

static const char *
prepare(struct idem_sql *db, const char *sql)
{
    struct sql_prepared *prepared = idem__sql_prepared(db, sql);
    char text[STATEMENT_MAX], *name;
    PGresult *result;
    bool good;

    if (prepared)
        return prepared->handle;
    name = malloc(40);
    if (!name || !number_values(sql, text, sizeof(text))) {
        free(name);
        idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", TOO_LONG);
        return NULL;
    }
    snprintf(name, 40, "idem_%016llx_%zu", (unsigned long long)db->prefix++,
             db->prepared_count);
    result = PQprepare(db->conn, name, text, 0, NULL);
    good = PQresultStatus(result) == PGRES_COMMAND_OK;
    if (!good)
        fault(db, result);
    PQclear(result);
    if (!good || !idem__sql_remember(db, sql, name)) {
        free(name);
        return NULL;
    }
    return name;
}

static void
forget(struct idem_sql *db, void *handle)
{
    char text[64];

    if (PQstatus(db->conn) == CONNECTION_OK &&
        PQtransactionStatus(db->conn) != PQTRANS_INERROR) {
        snprintf(text, sizeof(text), "deallocate %s", (char *)handle);
        PQclear(PQexec(db->conn, text));
    }
    free(handle);
}

struct bound {
    const char *values[SQL_VALUES_MAX];
    int lengths[SQL_VALUES_MAX], formats[SQL_VALUES_MAX];
    char numbers[SQL_VALUES_MAX][24];
};

/* Numbers are sent as text, so that any numeric column accepts them. */
static void
bind_values(struct bound *b, const struct idem_sql_value *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct idem_sql_value *v = &values[i];

        b->formats[i] = v->type == IDEM_SQL_BLOB;
        b->lengths[i] = (int)v->bytes.len;
        b->values[i] = v->bytes.data;
        if (v->type == IDEM_SQL_INT) {
            snprintf(b->numbers[i], sizeof(b->numbers[i]), "%lld",
                     (long long)v->number);
            b->values[i] = b->numbers[i];
        } else if (v->type == IDEM_SQL_NULL) {
            b->values[i] = NULL;
        } else if (v->bytes.len == 0) {
            b->values[i] = "";
        }
    }
}

/* Text values must end in a NUL, which views need not have. */
static bool
copy_texts(struct idem_sql *db, struct bound *b,
           const struct idem_sql_value *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i].type != IDEM_SQL_TEXT)
            continue;
        b->values[i] =
            idem__sql_copy(db, values[i].bytes.data, values[i].bytes.len);
        if (!b->values[i])
            return false;
    }
    return true;
}

static bool
read_value(struct idem_sql *db, const PGresult *result, int row, int column,
           struct idem_sql_value *out)
{
    const char *text = PQgetvalue(result, row, column);
    Oid type = PQftype(result, column);
    unsigned char *raw;
    size_t len;

    if (PQgetisnull(result, row, column)) {
        out->type = IDEM_SQL_NULL;
        return true;
    }
    if (type == INT2 || type == INT4 || type == INT8) {
        *out = idem_sql_int(strtoll(text, NULL, 10));
        return true;
    }
    if (type != BYTEA) {
        len = (size_t)PQgetlength(result, row, column);
        out->type = IDEM_SQL_TEXT;
        out->bytes = (struct idem_bytes){idem__sql_copy(db, text, len), len};
        return out->bytes.data != NULL;
    }
    raw = PQunescapeBytea((const unsigned char *)text, &len);
    out->type = IDEM_SQL_BLOB;
    out->bytes =
        (struct idem_bytes){raw ? idem__sql_copy(db, raw, len) : NULL, len};
    PQfreemem(raw);
    return out->bytes.data != NULL;
}

static bool
read_rows(struct idem_sql *db, const PGresult *result)
{
    int rows = PQntuples(result), columns = PQnfields(result);

    if (!idem__sql_room(db, (size_t)rows, (size_t)columns))
        return false;
    for (int i = 0; i < columns; i++) {
        const char *name = PQfname(result, i);

        db->rows.names[i] = idem__sql_copy(db, name, strlen(name));
        if (!db->rows.names[i])
            return false;
    }
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < columns; i++) {
            if (!read_value(db, result, row, i,
                            &db->rows.values[row * columns + i]))
                return false;
        }
    }
    db->rows.affected = strtoll(PQcmdTuples((PGresult *)result), NULL, 10);
    return true;
}

static bool
is_good(struct idem_sql *db, const PGresult *result)
{
    ExecStatusType is = PQresultStatus(result);

    return is == PGRES_COMMAND_OK || is == PGRES_TUPLES_OK || fault(db, result);
}

static bool
take_result(struct idem_sql *db, PGresult *result)
{
    bool good = is_good(db, result) && read_rows(db, result);

    PQclear(result);
    return good;
}

/* For statements that select all columns of the caller's table: a prepared
 * statement would fail forever once the table has another column. */
static bool
run_once(struct idem_sql *db, const char *sql, const struct bound *b, int count)
{
    char text[STATEMENT_MAX];

    if (!number_values(sql, text, sizeof(text)))
        return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", TOO_LONG);
    return take_result(db, PQexecParams(db->conn, text, count, NULL, b->values,
                                        b->lengths, b->formats, 0));
}

static bool
run(struct idem_sql *db, const char *sql, const struct idem_sql_value *values,
    size_t count)
{
    bool once = strncmp(sql, "select *", 8) == 0;
    const char *name = once ? NULL : prepare(db, sql);
    struct bound b;

    if (!once && !name)
        return false;
    bind_values(&b, values, count);
    if (!copy_texts(db, &b, values, count))
        return false;
    if (once)
        return run_once(db, sql, &b, (int)count);
    return take_result(db, PQexecPrepared(db->conn, name, (int)count, b.values,
                                          b.lengths, b.formats, 0));
}

/* Roll back. Always returns false; keeps the fault unless the rollback fails,
 * too. */
static bool
undo(struct idem_sql *db)
{
    struct idem_sql_fault why = db->fault;

    if (PQtransactionStatus(db->conn) == PQTRANS_IDLE ||
        idem__sql_run(db, "rollback", NULL, 0))
        db->fault = why;
    return false;
}

/* A pipeline: statements after a failed one are not run. */
static bool
run_many(struct idem_sql *db, const struct sql_call *calls, size_t count)
{
    const char *names[SQL_CALLS_MAX];
    bool good = true, synced = false;
    int64_t affected = 0;
    struct bound b;

    for (size_t i = 0; i < count; i++) {
        names[i] = prepare(db, calls[i].sql);
        if (!names[i])
            return false;
    }
    if (!PQenterPipelineMode(db->conn))
        return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "",
                               "the connection is busy with another query");
    for (size_t i = 0; i < count && good; i++) {
        bind_values(&b, calls[i].values, calls[i].count);
        good = copy_texts(db, &b, calls[i].values, calls[i].count) &&
               PQsendQueryPrepared(db->conn, names[i], (int)calls[i].count,
                                   b.values, b.lengths, b.formats, 0) == 1;
    }
    good = PQpipelineSync(db->conn) == 1 && good;
    if (!good)
        idem__sql_fault(db, IDEM_SQL_CONNECTION_LOST, 0, "",
                        PQerrorMessage(db->conn));
    while (!synced && PQstatus(db->conn) == CONNECTION_OK) {
        PGresult *result = PQgetResult(db->conn);
        ExecStatusType is = PQresultStatus(result);

        synced = result && is == PGRES_PIPELINE_SYNC;
        /* Only counted, so that no memory can be missing after a commit. */
        if (result && !synced && is != PGRES_PIPELINE_ABORTED) {
            if (is_good(db, result))
                affected += strtoll(PQcmdTuples(result), NULL, 10);
            else
                good = false;
        }
        PQclear(result);
    }
    if (!synced)
        return idem__sql_fault(db, IDEM_SQL_CONNECTION_LOST, 0, "",
                               PQerrorMessage(db->conn));
    /* Leave the pipeline mode in any case, so that the caller's connection is
     * as before. */
    for (int i = 0; i < 8 && !PQexitPipelineMode(db->conn); i++)
        PQclear(PQgetResult(db->conn));
    db->rows = (struct sql_rows){.affected = affected};
    return good || undo(db);
}

static enum sql_inside
inside(struct idem_sql *db)
{
    PGTransactionStatusType status = PQtransactionStatus(db->conn);

    return status == PQTRANS_INTRANS   ? SQL_INSIDE
           : status == PQTRANS_INERROR ? SQL_ABORTED
                                       : SQL_OUTSIDE;
}

/* ---- tables ------------------------------------------------------------ */

/* Each row is an index and one of its columns. Deferrable indexes do not count,
 * because they are checked only at the commit. */
static bool
is_unique(struct idem_sql *db, const struct idem_sql_place *place, bool *unique)
{
    struct idem_sql_value table;
    const char *name = idem__sql_text(db, "%i", place->table);

    if (!name)
        return false;
    table = idem_sql_text(idem__sql_copy(db, name, strlen(name)));
    if (!idem__sql_run(
            db,
            "select i.indexrelid::text, a.attname::text from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid "
            "and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
            "where i.indrelid = pg_catalog.to_regclass(?)::oid and "
            "i.indisunique "
            "and i.indisvalid and i.indimmediate and i.indpred is null and "
            "i.indexprs is null order by 1",
            &table, 1))
        return false;
    *unique = idem__sql_has_index(db, place, strcmp);
    return true;
}

static bool
attach(struct idem_sql *db)
{
    db->in_one_go = true;
    return PQstatus(db->conn) == CONNECTION_OK;
}

static bool
read_clock(struct idem_sql *db)
{
    return idem__sql_run(
        db,
        "select (extract(epoch from clock_timestamp()) operator(pg_catalog.*) "
        "1000000)::int8",
        NULL, 0);
}

#define ISOLATION "current_setting('transaction_isolation')"
#define ISOLATED ISOLATION " = 'read committed'"
#define TRY_LOCK "pg_catalog.pg_try_advisory_xact_lock(?)"

/* A claim is inserted under READ COMMITTED only. */
static enum idem_status
check_isolation(struct idem_sql *db, bool claims, struct idem_error *err)
{
    const char *level;

    if (!claims)
        return IDEM_OK;
    if (!idem__sql_run(db, "select " ISOLATION, NULL, 0))
        return idem__sql_fail(db, err);
    level = db->rows.values[0].bytes.data;
    if (strcmp(level, "read committed") == 0)
        return IDEM_OK;
    return idem__sql_bad_isolation(
        db, level, "cannot see what another has claimed meanwhile", err);
}

/* ---- records ----------------------------------------------------------- */

/* One more column, without a value, makes the commit wait for a synchronous
 * standby. */
static const char *
select_record(struct idem_sql *db, const char *suffix)
{
    return idem__sql_select(
        db,
        ", case when current_setting('synchronous_standby_names') <> '' "
        "and not pg_is_in_recovery() then pg_catalog.pg_logical_emit_message("
        "true, 'idem', '')::text end",
        suffix);
}

/* Inserts under the key's lock, whose number is the last value. */
static struct sql_call
insert_once(struct idem_sql *db, const uint8_t *key,
            const struct idem_record *record, struct idem_sql_value *values)
{
    struct sql_call call =
        idem__sql_insert(db,
                         "insert into %s (%s) select %s where " TRY_LOCK
                         " and " ISOLATED " on conflict do nothing",
                         key, record, values);

    values[call.count++] = idem_sql_int(idem__key_lock(key));
    return call;
}

static const char *
equals(enum idem_sql_type type)
{
    (void)type;
    return "is not distinct from ?";
}

/* There is no such operator, or a text is not a value of the column's type. */
static bool
is_incomparable(const struct idem_sql_fault *f)
{
    return f->cause == IDEM_SQL_OTHER &&
           (strncmp(f->state, "42", 2) == 0 || strncmp(f->state, "22", 2) == 0);
}

static void
begin_at_once(struct idem_sql *db, struct sql_batch *batch)
{
    batch->calls[batch->count++].sql =
        db->says_level ? db->driver->begin : "begin";
}

/*
 * The claim is the key's lock; the record is written once, at the end. The lock
 * is taken before the read, in a separate statement. If another transaction
 * held the lock a moment ago, it has committed by then, and the read sees its
 * record.
 */
static int64_t
claim_at_once(struct idem_sql *db, const uint8_t *key,
              const struct idem_record *record, struct sql_batch *batch)
{
    struct idem_sql_value *values = batch->values;

    (void)record;
    values[0] = idem_sql_int(idem__key_lock(key));
    values[1] = idem_sql_blob(key, IDEM_KEY_LEN);
    begin_at_once(db, batch);
    batch->calls[batch->count++] =
        (struct sql_call){"select 1 where " TRY_LOCK, values, 1};
    batch->calls[batch->count++] = idem__sql_call(
        db,
        idem__sql_text(db,
                       "select 1 where " ISOLATED " and not exists "
                       "(select 1 from %s where key_hash = ?)",
                       db->driver->table),
        values + 1, 1);
    return 2;
}

/* Inserts, because the claim has written no row. */
static void
finish_at_once(struct idem_sql *db, const uint8_t *key,
               const struct idem_record *claim, const struct idem_record *next,
               struct sql_batch *batch)
{
    (void)claim;
    batch->calls[batch->count++] = idem__sql_insert(
        db, "insert into %s (%s) values (%s)", key, next, batch->values + 1);
}

static void
record_at_once(struct idem_sql *db, const uint8_t *key,
               const struct idem_record *record, struct sql_batch *batch)
{
    batch->values[0] = idem_sql_int(idem__key_lock(key));
    begin_at_once(db, batch);
    batch->calls[batch->count++] = (struct sql_call){
        "select 1 / (" TRY_LOCK " and " ISOLATED ")::int", batch->values, 1};
    finish_at_once(db, key, NULL, record, batch);
}

static const char *
change_one(struct idem_sql *db, const char *sql)
{
    return idem__sql_text(
        db,
        "with work as (%s\nreturning 1) select (case when count(*) = 1 "
        "then '1' else '" SQL_NOT_ONE "' end)::int from work",
        sql);
}

static bool
was_undone(const struct idem_sql_fault *f)
{
    return f->cause == IDEM_SQL_DUPLICATE_KEY ||
           strcmp(f->state, "3B001") == 0 || strcmp(f->state, "25P01") == 0;
}

static const struct sql_at_once at_once = {
    .run = run_many,
    .claim = claim_at_once,
    .finish = finish_at_once,
    .record = record_at_once,
    .change_one = change_one,
    .was_undone = was_undone,
};

const struct sql_driver idem__sql_postgres = {
    .name = "postgres",
    .table = "idem.idem_record",
    .begin = "begin isolation level read committed",
    .quote = '"',
    .row_locks = true,
    .on_conflict = true,
    .confirms = true,
    .attach = attach,
    .run = run,
    .inside = inside,
    .forget = forget,
    .is_unique = is_unique,
    .read_clock = read_clock,
    .check_isolation = check_isolation,
    .select = select_record,
    .insert_once = insert_once,
    .equals = equals,
    .is_incomparable = is_incomparable,
    .at_once = &at_once,
};
