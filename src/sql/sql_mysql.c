/*
 * sql_mysql.c - the driver for the caller's MYSQL, of MariaDB Connector/C.
 *
 * A claim is a plain INSERT that does not wait (MariaDB), or waits for a second
 * (MySQL). Error 1062 says that the key exists, 1205 that another transaction
 * has inserted it and not committed. After 1062 InnoDB keeps a shared lock on
 * the existing row until the transaction ends. The row is then read with that
 * lock, because the transaction's snapshot may be older. MariaDB 11.6 and newer
 * refuse to lock a row that is newer than the snapshot (1020, which ends the
 * transaction as a deadlock does), so every statement here asks for the current
 * row.
 *
 * With innodb_rollback_on_timeout 1205 rolls back the whole transaction, as a
 * deadlock does, and is reported like one.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <errmsg.h>
#include <mysql.h>
#include <mysqld_error.h>

#define BINARY_CHARSET 63
#define SNAPSHOT_VERSION 110402 /* has innodb_snapshot_isolation */

/* Did the lock timeout roll back the whole transaction? True if that is not
 * known. */
static bool
timeout_undid_all(struct idem_sql *db)
{
    MYSQL_RES *rows;
    MYSQL_ROW row;
    bool all;

    if (mysql_query(db->conn, "select @@innodb_rollback_on_timeout") != 0 ||
        !(rows = mysql_store_result(db->conn)))
        return true;
    row = mysql_fetch_row(rows);
    all = !row || !row[0] || strcmp(row[0], "0") != 0;
    mysql_free_result(rows);
    return all;
}

static bool
fault(struct idem_sql *db, unsigned code, const char *state, const char *text)
{
    enum idem_sql_cause cause = IDEM_SQL_OTHER;

    if (code == ER_DUP_ENTRY)
        cause = IDEM_SQL_DUPLICATE_KEY;
    else if (code == ER_LOCK_WAIT_TIMEOUT)
        cause = IDEM_SQL_LOCK_TIMEOUT;
    else if (code == ER_LOCK_DEADLOCK || code == ER_CHECKREAD)
        cause = IDEM_SQL_DEADLOCK;
    else if (code == ER_NO_SUCH_TABLE)
        cause = IDEM_SQL_MISSING_TABLE;
    else if ((code >= CR_MIN_ERROR && code <= CR_MAX_ERROR) ||
             code == ER_SERVER_SHUTDOWN || code == ER_CONNECTION_KILLED)
        cause = IDEM_SQL_CONNECTION_LOST;
    idem__sql_fault(db, cause, (int)code, state, text);
    if (cause == IDEM_SQL_LOCK_TIMEOUT && timeout_undid_all(db))
        idem__sql_fault(db, IDEM_SQL_DEADLOCK, (int)code, "40001",
                        "another transaction holds the row, and "
                        "innodb_rollback_on_timeout is ON, so the transaction "
                        "was rolled back");
    return false;
}

static bool
fault_of(struct idem_sql *db, MYSQL_STMT *s)
{
    return fault(db, mysql_stmt_errno(s), mysql_stmt_sqlstate(s),
                 mysql_stmt_error(s));
}

static bool
lacks_memory(struct idem_sql *db)
{
    return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "out of memory");
}

/* ---- statements -------------------------------------------------------- */

/* A statement that selects all columns of the caller's table is not kept. If
 * the table gets another column, a prepared statement cannot be read and the
 * connection is unusable. */
static bool
is_kept(const char *sql)
{
    return strncmp(sql, "select *", 8) != 0;
}

/* The prefix of a statement that may lock rows; see the head of this file. */
static const char *
as_it_is_now(const struct idem_sql *db, const char *sql)
{
    static const char *const words[] = {"select", "insert", "update", "delete"};

    for (size_t i = 0; db->refuses_newer && i < 4; i++) {
        if (strncasecmp(sql, words[i], 6) == 0)
            return "set statement innodb_snapshot_isolation=off for ";
    }
    return "";
}

static bool
prepare_text(struct idem_sql *db, MYSQL_STMT *s, const char *sql)
{
    char *text = NULL;
    int len = asprintf(&text, "%s%s", as_it_is_now(db, sql), sql);
    bool good;

    if (len < 0)
        return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "out of memory");
    good = mysql_stmt_prepare(s, text, (unsigned long)len) == 0;
    free(text);
    return good || fault_of(db, s);
}

static MYSQL_STMT *
prepare(struct idem_sql *db, const char *sql)
{
    struct sql_prepared *prepared = idem__sql_prepared(db, sql);
    my_bool yes = 1;
    MYSQL_STMT *s;

    if (prepared)
        return prepared->handle;
    s = mysql_stmt_init(db->conn);
    if (!s) {
        lacks_memory(db);
        return NULL;
    }
    mysql_stmt_attr_set(s, STMT_ATTR_UPDATE_MAX_LENGTH, &yes);
    if (!prepare_text(db, s, sql)) {
        mysql_stmt_close(s);
        return NULL;
    }
    if (is_kept(sql) && !idem__sql_remember(db, sql, s)) {
        mysql_stmt_close(s);
        return NULL;
    }
    return s;
}

static void
forget(struct idem_sql *db, void *handle)
{
    (void)db;
    mysql_stmt_close(handle);
}

static bool
bind_values(MYSQL_STMT *s, MYSQL_BIND *binds, unsigned long *lengths,
            const struct idem_sql_value *values, size_t count)
{
    memset(binds, 0, sizeof(*binds) * count);
    for (size_t i = 0; i < count; i++) {
        const struct idem_sql_value *v = &values[i];

        lengths[i] = v->bytes.len;
        binds[i].length = &lengths[i];
        binds[i].buffer = (void *)(v->bytes.data ? v->bytes.data : "");
        binds[i].buffer_length = v->bytes.len;
        switch (v->type) {
        case IDEM_SQL_INT:
            binds[i].buffer_type = MYSQL_TYPE_LONGLONG;
            binds[i].buffer = (void *)&v->number;
            break;
        case IDEM_SQL_TEXT:
            binds[i].buffer_type = MYSQL_TYPE_STRING;
            break;
        case IDEM_SQL_BLOB:
            binds[i].buffer_type = MYSQL_TYPE_BLOB;
            break;
        default:
            binds[i].buffer_type = MYSQL_TYPE_NULL;
        }
    }
    return count == 0 || mysql_stmt_bind_param(s, binds) == 0;
}

static bool
is_integer(const MYSQL_FIELD *field)
{
    switch (field->type) {
    case MYSQL_TYPE_TINY:
    case MYSQL_TYPE_SHORT:
    case MYSQL_TYPE_INT24:
    case MYSQL_TYPE_LONG:
    case MYSQL_TYPE_LONGLONG:
    case MYSQL_TYPE_YEAR:
        return true;
    default:
        return false;
    }
}

static bool
is_text(const MYSQL_FIELD *field)
{
    bool string =
        field->type == MYSQL_TYPE_STRING ||
        field->type == MYSQL_TYPE_VAR_STRING ||
        (field->type >= MYSQL_TYPE_TINY_BLOB && field->type <= MYSQL_TYPE_BLOB);

    return !string || field->charsetnr != BINARY_CHARSET;
}

struct column {
    MYSQL_BIND bind;
    unsigned long length;
    my_bool null;
    long long number;
};

/* Every column is fetched directly into the arena. */
static bool
bind_columns(struct idem_sql *db, MYSQL_STMT *s, MYSQL_FIELD *fields,
             struct column *columns, size_t count)
{
    MYSQL_BIND *binds = idem_arena_take(&db->arena, count * sizeof(*binds));

    if (!binds)
        return lacks_memory(db);
    for (size_t i = 0; i < count; i++) {
        struct column *c = &columns[i];

        memset(&c->bind, 0, sizeof(c->bind));
        c->bind.length = &c->length;
        c->bind.is_null = &c->null;
        if (is_integer(&fields[i])) {
            c->bind.buffer_type = MYSQL_TYPE_LONGLONG;
            c->bind.buffer = &c->number;
        } else {
            c->bind.buffer_type = MYSQL_TYPE_STRING;
            c->bind.buffer_length = fields[i].max_length + 1;
            c->bind.buffer =
                idem_arena_take(&db->arena, fields[i].max_length + 1);
            if (!c->bind.buffer)
                return lacks_memory(db);
        }
        binds[i] = c->bind;
    }
    return mysql_stmt_bind_result(s, binds) == 0 || fault_of(db, s);
}

static bool
read_row(struct idem_sql *db, MYSQL_FIELD *fields, struct column *columns,
         size_t count, struct idem_sql_value *out)
{
    for (size_t i = 0; i < count; i++) {
        struct column *c = &columns[i];

        if (c->null) {
            out[i].type = IDEM_SQL_NULL;
        } else if (is_integer(&fields[i])) {
            out[i] = idem_sql_int(c->number);
        } else {
            out[i].type = is_text(&fields[i]) ? IDEM_SQL_TEXT : IDEM_SQL_BLOB;
            out[i].bytes.len = c->length;
            out[i].bytes.data = idem__sql_copy(db, c->bind.buffer, c->length);
            if (!out[i].bytes.data)
                return false;
        }
    }
    return true;
}

static bool
read_rows(struct idem_sql *db, MYSQL_STMT *s)
{
    MYSQL_RES *meta = mysql_stmt_result_metadata(s);
    size_t count = meta ? mysql_num_fields(meta) : 0;
    struct column columns[SQL_VALUES_MAX];
    MYSQL_FIELD *fields;
    bool good;
    int rc = 0;

    if (!meta)
        return mysql_stmt_field_count(s) == 0 || lacks_memory(db);
    if (count > SQL_VALUES_MAX) {
        mysql_free_result(meta);
        return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "",
                               "the table has more than 64 columns");
    }
    if (mysql_stmt_store_result(s) != 0) {
        mysql_free_result(meta);
        return fault_of(db, s);
    }
    mysql_free_result(meta);
    meta = mysql_stmt_result_metadata(s); /* now it has the maximum lengths */
    if (!meta)
        return lacks_memory(db);
    fields = mysql_fetch_fields(meta);
    good = idem__sql_room(db, mysql_stmt_num_rows(s), count) &&
           bind_columns(db, s, fields, columns, count);
    for (size_t i = 0; i < count && good; i++) {
        db->rows.names[i] =
            idem__sql_copy(db, fields[i].name, strlen(fields[i].name));
        good = db->rows.names[i] != NULL;
    }
    for (size_t row = 0; good && row < db->rows.rows; row++) {
        rc = mysql_stmt_fetch(s);
        if (rc != 0)
            break;
        good =
            read_row(db, fields, columns, count, &db->rows.values[row * count]);
    }
    mysql_free_result(meta);
    return good && (rc == 0 || fault_of(db, s));
}

static bool
execute(struct idem_sql *db, MYSQL_STMT *s, const struct idem_sql_value *values,
        size_t count)
{
    MYSQL_BIND binds[SQL_VALUES_MAX];
    unsigned long lengths[SQL_VALUES_MAX];
    bool good;

    if (!bind_values(s, binds, lengths, values, count) ||
        mysql_stmt_execute(s) != 0)
        return fault_of(db, s);
    good = read_rows(db, s);
    db->rows.affected = (int64_t)mysql_stmt_affected_rows(s);
    mysql_stmt_free_result(s);
    /* A compound statement may return several results, which must be read
     * before the next statement. */
    while (mysql_stmt_more_results(s)) {
        if (mysql_stmt_next_result(s) > 0)
            return fault_of(db, s);
        mysql_stmt_free_result(s);
    }
    return good;
}

/* MySQL cannot prepare statements that begin or end transactions (1295). */
static bool
is_control(const char *sql)
{
    static const char *const words[] = {"start transaction", "savepoint",
                                        "release savepoint", "rollback",
                                        "commit"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strncmp(sql, words[i], strlen(words[i])) == 0)
            return true;
    }
    return false;
}

static bool
run_control(struct idem_sql *db, const char *sql)
{
    return mysql_query(db->conn, sql) == 0 ||
           fault(db, mysql_errno(db->conn), mysql_sqlstate(db->conn),
                 mysql_error(db->conn));
}

static bool
run_prepared(struct idem_sql *db, const char *sql,
             const struct idem_sql_value *values, size_t count)
{
    MYSQL_STMT *s = prepare(db, sql);
    bool good = s && execute(db, s, values, count);

    if (s && !is_kept(sql))
        mysql_stmt_close(s);
    return good;
}

/* MySQL can set the lock timeout only for the session, and to no less than a
 * second. The session's own value is restored afterwards. */
static bool
run_impatiently(struct idem_sql *db, const char *sql,
                const struct idem_sql_value *values, size_t count)
{
    struct idem_sql_fault kept;
    bool good;

    if (!run_control(db, "set @idem_wait = @@innodb_lock_wait_timeout, "
                         "@@session.innodb_lock_wait_timeout = 1"))
        return false;
    good = run_prepared(db, sql, values, count);
    kept = db->fault;
    if (!run_control(db,
                     "set @@session.innodb_lock_wait_timeout = @idem_wait") &&
        good)
        return false;
    db->fault = kept;
    return good;
}

static bool
run(struct idem_sql *db, const char *sql, const struct idem_sql_value *values,
    size_t count)
{
    static const char claim[] = "insert into idem_record ";

    if (is_control(sql))
        return run_control(db, sql);
    if (!db->mariadb && strncmp(sql, claim, sizeof(claim) - 1) == 0)
        return run_impatiently(db, sql, values, count);
    return run_prepared(db, sql, values, count);
}

/* ---- several statements in one round trip ------------------------------ */

/* MariaDB's compound statement stops at the first statement that fails. It is
 * prepared as a whole, because parsing it takes longer than running it. After a
 * failure MariaDB does not say whether a transaction is open, so it is rolled
 * back. */
static bool
run_many(struct idem_sql *db, const struct sql_call *calls, size_t count)
{
    struct idem_sql_value values[SQL_VALUES_MAX];
    const char *sql;
    size_t n = 0;
    bool good;

    idem_buf_reset(&db->text);
    good = idem__sql_add(db, "begin not atomic");
    for (size_t i = 0; i < count && good; i++) {
        good = n + calls[i].count <= SQL_VALUES_MAX &&
               idem__sql_add(db, " %s%s\n;", as_it_is_now(db, calls[i].sql),
                             calls[i].sql);
        for (size_t v = 0; v < calls[i].count && good; v++)
            values[n++] = calls[i].values[v];
    }
    sql = good && idem__sql_add(db, " end") ? idem__sql_whole(db) : NULL;
    if (!sql)
        idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "a statement is too long");
    good = sql && run(db, sql, values, n);
    if (!good && db->fault.code == ER_UNSUPPORTED_PS)
        db->in_one_go = false; /* MariaDB before 10.6 */
    if (!good && db->fault.cause != IDEM_SQL_CONNECTION_LOST) {
        struct idem_sql_fault why = db->fault;

        if (!run_control(db, "rollback"))
            return false;
        db->fault = why;
    }
    db->rows.affected = good;
    return good;
}

static enum sql_inside
inside(struct idem_sql *db)
{
    unsigned status = ((MYSQL *)db->conn)->server_status;

    return status & SERVER_STATUS_IN_TRANS ||
                   !(status & SERVER_STATUS_AUTOCOMMIT)
               ? SQL_INSIDE
               : SQL_OUTSIDE;
}

/* ---- tables ------------------------------------------------------------ */

static bool
is_unique(struct idem_sql *db, const struct idem_sql_place *place, bool *unique)
{
    struct idem_sql_value names[2];

    idem__sql_split(place->table, names);
    if (!idem__sql_run(db,
                       "select index_name, column_name "
                       "from information_schema.statistics "
                       "where table_schema = coalesce(?, database()) "
                       "and table_name = ? and non_unique = 0 "
                       "order by index_name",
                       names, 2))
        return false;
    *unique = idem__sql_has_index(db, place, strcasecmp);
    return true;
}

static bool
engine_of(struct idem_sql *db, const char *table)
{
    struct idem_sql_value names[2];

    idem__sql_split(table, names);
    return idem__sql_run(db,
                         "select engine from information_schema.tables "
                         "where table_schema = coalesce(?, database()) "
                         "and table_name = ?",
                         names, 2);
}

static bool
attach(struct idem_sql *db)
{
    const char *server = mysql_get_server_info(db->conn);

    db->mariadb = server && strstr(server, "MariaDB");
    db->in_one_go = db->mariadb;
    db->refuses_newer =
        db->mariadb && mysql_get_server_version(db->conn) >= SNAPSHOT_VERSION;
    return server != NULL;
}

static bool
read_clock(struct idem_sql *db)
{
    return idem__sql_run(db,
                         "select cast(timestampdiff(microsecond, '1970-01-01', "
                         "utc_timestamp(6)) as signed)",
                         NULL, 0);
}

/* Locks make every level safe, except one that reads uncommitted rows. */
static enum idem_status
check_isolation(struct idem_sql *db, bool claims, struct idem_error *err)
{
    const char *level;

    (void)claims;
    if (!idem__sql_run(db,
                       "show session variables where variable_name in "
                       "('tx_isolation', 'transaction_isolation')",
                       NULL, 0))
        return idem__sql_fail(db, err);
    level = db->rows.rows > 0 ? db->rows.values[1].bytes.data : "";
    if (strcmp(level, "READ-UNCOMMITTED") != 0)
        return IDEM_OK;
    return idem__sql_bad_isolation(
        db, level, "sees what another may still take back", err);
}

/* ---- records ----------------------------------------------------------- */

static const char *
select_record(struct idem_sql *db, const char *suffix)
{
    return idem__sql_select(db, "", suffix);
}

#define INSERT "insert into %s (%s) values (%s)"

static struct sql_call
insert_once(struct idem_sql *db, const uint8_t *key,
            const struct idem_record *record, struct idem_sql_value *values)
{
    return idem__sql_insert(
        db,
        db->refuses_newer ? "set statement innodb_lock_wait_timeout=0, "
                            "innodb_snapshot_isolation=off for " INSERT
        : db->mariadb ? "set statement innodb_lock_wait_timeout=0 for " INSERT
                      : INSERT,
        key, record, values);
}

static const char *
equals(enum idem_sql_type type)
{
    return type == IDEM_SQL_TEXT
               ? "<=> convert(? using utf8mb4) collate utf8mb4_bin"
               : "<=> ?";
}

/* The server refused it, and not because memory or time ran out. */
static bool
is_incomparable(const struct idem_sql_fault *f)
{
    return f->cause == IDEM_SQL_OTHER && f->code != 0 &&
           f->code != ER_OUT_OF_RESOURCES && strcmp(f->state, "HY001") != 0 &&
           strncmp(f->state, "70", 2) != 0;
}

/* begin, and the INSERT, whose row lock blocks other transactions. */
static void
record_at_once(struct idem_sql *db, const uint8_t *key,
               const struct idem_record *record, struct sql_batch *batch)
{
    batch->calls[batch->count++].sql = db->driver->begin;
    batch->calls[batch->count++] = insert_once(db, key, record, batch->values);
}

static int64_t
claim_at_once(struct idem_sql *db, const uint8_t *key,
              const struct idem_record *record, struct sql_batch *batch)
{
    record_at_once(db, key, record, batch);
    return 1;
}

static void
finish_at_once(struct idem_sql *db, const uint8_t *key,
               const struct idem_record *claim, const struct idem_record *next,
               struct sql_batch *batch)
{
    batch->calls[batch->count++] =
        idem__sql_update(db, key, claim, next, batch->values);
    batch->calls[batch->count++].sql =
        "if row_count() <> 1 then signal sqlstate '45001'; end if";
}

static const char *
change_one(struct idem_sql *db, const char *sql)
{
    return idem__sql_text(
        db,
        "%s\n; if row_count() <> 1 then signal sqlstate '45002' "
        "set message_text = '" SQL_NOT_ONE "'; end if",
        sql);
}

static bool
was_undone(const struct idem_sql_fault *f)
{
    return strcmp(f->state, "45001") == 0 || f->code == ER_SP_DOES_NOT_EXIST;
}

static const struct sql_at_once at_once = {
    .run = run_many,
    .claim = claim_at_once,
    .finish = finish_at_once,
    .record = record_at_once,
    .change_one = change_one,
    .was_undone = was_undone,
};

const struct sql_driver idem__sql_mysql = {
    .name = "mysql",
    .table = "idem_record",
    .begin = "start transaction",
    .quote = '`',
    .row_locks = true,
    .keeps_lock = true,
    .attach = attach,
    .run = run,
    .inside = inside,
    .forget = forget,
    .is_unique = is_unique,
    .engine_of = engine_of,
    .read_clock = read_clock,
    .check_isolation = check_isolation,
    .select = select_record,
    .insert_once = insert_once,
    .equals = equals,
    .is_incomparable = is_incomparable,
    .at_once = &at_once,
};
