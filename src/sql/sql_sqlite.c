/*
 * sql_sqlite.c - the driver for the caller's sqlite3.
 *
 * SQLite locks whole files: after a claim's first write, no other connection
 * can write, and a record that another transaction holds shows as SQLITE_BUSY.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

static bool
fault(struct idem_sql *db, int rc)
{
    const char *text = sqlite3_errmsg(db->conn);
    enum idem_sql_cause cause = IDEM_SQL_OTHER;

    if ((rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED)
        cause = IDEM_SQL_LOCK_TIMEOUT;
    else if (rc == SQLITE_CONSTRAINT_UNIQUE ||
             rc == SQLITE_CONSTRAINT_PRIMARYKEY)
        cause = IDEM_SQL_DUPLICATE_KEY;
    else if (strncmp(text, "no such table", 13) == 0)
        cause = IDEM_SQL_MISSING_TABLE;
    return idem__sql_fault(db, cause, rc, "", text);
}

static sqlite3_stmt *
prepare(struct idem_sql *db, const char *sql)
{
    struct sql_prepared *prepared = idem__sql_prepared(db, sql);
    sqlite3_stmt *s = NULL;
    int rc;

    if (prepared)
        return prepared->handle;
    rc = sqlite3_prepare_v2(db->conn, sql, -1, &s, NULL);
    if (rc != SQLITE_OK) {
        fault(db, sqlite3_extended_errcode(db->conn));
        return NULL;
    }
    if (!idem__sql_remember(db, sql, s)) {
        sqlite3_finalize(s);
        return NULL;
    }
    return s;
}

static void
forget(struct idem_sql *db, void *handle)
{
    (void)db;
    sqlite3_finalize(handle);
}

static int
bind_value(sqlite3_stmt *s, int at, const struct idem_sql_value *v)
{
    switch (v->type) {
    case IDEM_SQL_INT:
        return sqlite3_bind_int64(s, at, v->number);
    case IDEM_SQL_TEXT:
        return sqlite3_bind_text64(s, at, v->bytes.data ? v->bytes.data : "",
                                   v->bytes.len, SQLITE_STATIC, SQLITE_UTF8);
    case IDEM_SQL_BLOB:
        return sqlite3_bind_blob64(s, at, v->bytes.data ? v->bytes.data : "",
                                   v->bytes.len, SQLITE_STATIC);
    default:
        return sqlite3_bind_null(s, at);
    }
}

static bool
read_value(struct idem_sql *db, sqlite3_stmt *s, int column,
           struct idem_sql_value *out)
{
    int type = sqlite3_column_type(s, column);
    size_t len;

    if (type == SQLITE_NULL) {
        out->type = IDEM_SQL_NULL;
        return true;
    }
    if (type == SQLITE_INTEGER) {
        *out = idem_sql_int(sqlite3_column_int64(s, column));
        return true;
    }
    out->type = type == SQLITE_BLOB ? IDEM_SQL_BLOB : IDEM_SQL_TEXT;
    if (type != SQLITE_BLOB)
        sqlite3_column_text(s, column);
    len = (size_t)sqlite3_column_bytes(s, column);
    out->bytes.data = idem__sql_copy(db, sqlite3_column_blob(s, column), len);
    out->bytes.len = len;
    return out->bytes.data != NULL;
}

#define ROWS_MAX 64

/* Reads at most ROWS_MAX rows; no scheme needs more. */
static bool
read_rows(struct idem_sql *db, sqlite3_stmt *s)
{
    int rc = sqlite3_step(s); /* also prepares it again after a schema change */
    int columns = sqlite3_column_count(s);

    if (!idem__sql_room(db, ROWS_MAX, (size_t)columns))
        return false;
    for (int i = 0; i < columns; i++) {
        const char *name = sqlite3_column_name(s, i);

        db->rows.names[i] = idem__sql_copy(db, name, strlen(name));
        if (!db->rows.names[i])
            return false;
    }
    db->rows.rows = 0;
    for (; rc == SQLITE_ROW && db->rows.rows < ROWS_MAX; rc = sqlite3_step(s)) {
        size_t first = db->rows.rows++ * (size_t)columns;

        for (int i = 0; i < columns; i++) {
            if (!read_value(db, s, i, &db->rows.values[first + (size_t)i]))
                return false;
        }
    }
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        return fault(db, sqlite3_extended_errcode(db->conn));
    return true;
}

static bool
run(struct idem_sql *db, const char *sql, const struct idem_sql_value *values,
    size_t count)
{
    int64_t before = sqlite3_total_changes64(db->conn);
    sqlite3_stmt *s = prepare(db, sql);
    int rc = SQLITE_OK;
    bool good;

    if (!s)
        return false;
    for (size_t i = 0; i < count && rc == SQLITE_OK; i++)
        rc = bind_value(s, (int)i + 1, &values[i]);
    good = rc == SQLITE_OK ? read_rows(db, s) : fault(db, rc);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    /* Rows that triggers changed are not counted. */
    db->rows.affected = sqlite3_total_changes64(db->conn) == before
                            ? 0
                            : sqlite3_changes64(db->conn);
    return good;
}

static enum sql_inside
inside(struct idem_sql *db)
{
    return sqlite3_get_autocommit(db->conn) ? SQL_OUTSIDE : SQL_INSIDE;
}

static bool
is_unique(struct idem_sql *db, const struct idem_sql_place *place, bool *unique)
{
    struct idem_sql_value names[2];

    idem__sql_split(place->table, names);
    if (!idem__sql_run(db,
                       "select '', name from pragma_table_info(?2, ?1) "
                       "where pk > 0",
                       names, 2))
        return false;
    *unique = idem__sql_has_index(db, place, strcasecmp);
    if (*unique)
        return true;
    if (!idem__sql_run(
            db,
            "select l.name, i.name from pragma_index_list(?2, ?1) l "
            "join pragma_index_info(l.name, ?1) i "
            "where l.\"unique\" = 1 and l.partial = 0 order by l.name",
            names, 2))
        return false;
    *unique = idem__sql_has_index(db, place, strcasecmp);
    return true;
}

static bool
attach(struct idem_sql *db)
{
    (void)db;
    return true;
}

/* ---- records ----------------------------------------------------------- */

static const char *
select_record(struct idem_sql *db, const char *suffix)
{
    return idem__sql_select(db, "", suffix);
}

static struct sql_call
insert_once(struct idem_sql *db, const uint8_t *key,
            const struct idem_record *record, struct idem_sql_value *values)
{
    return idem__sql_insert(
        db, "insert into %s (%s) values (%s) on conflict do nothing", key,
        record, values);
}

static const char *
equals(enum idem_sql_type type)
{
    return type == IDEM_SQL_TEXT ? "is ? collate binary" : "is ?";
}

const struct sql_driver idem__sql_sqlite = {
    .name = "sqlite",
    .table = "idem_record",
    /* A transaction that begins with a read cannot write any more once another
     * connection has written. */
    .begin = "begin immediate",
    .quote = '`', /* SQLite may take "x" for a text */
    .on_conflict = true,
    .attach = attach,
    .run = run,
    .inside = inside,
    .forget = forget,
    .is_unique = is_unique,
    .select = select_record,
    .insert_once = insert_once,
    .equals = equals,
};
