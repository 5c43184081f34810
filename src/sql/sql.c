/*
 * sql.c - the adapter, and what the schemes share: assembling statements,
 * faults, and the database's clock.
 */
#include "driver.h"

#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TEXT_MAX 65536
#define NAME_MAX_LEN 128
#define CLOCK_KEEP_US INT64_C(60000000)

static struct idem_sql *
make(const struct sql_driver *driver, void *conn)
{
    struct idem_sql *db = calloc(1, sizeof(*db));

    if (!db)
        return NULL;
    db->driver = driver;
    db->conn = conn;
    randombytes_buf(&db->prefix, sizeof(db->prefix));
    idem_buf_init(&db->text, TEXT_MAX);
    return db;
}

static enum idem_status
attach(const char *module, const char *symbol, void *conn, struct idem_sql **db,
       struct idem_error *err)
{
    const struct sql_driver *driver;
    struct idem_sql *made;
    enum idem_status status =
        idem__module_symbol(module, symbol, (const void **)&driver, err);

    if (status != IDEM_OK)
        return status;
    made = conn ? make(driver, conn) : NULL;
    if (conn && !made)
        return idem__fail(err, IDEM_ERR_MEMORY, "%s: out of memory", module);
    if (!conn || !driver->attach(made)) {
        idem_sql_close(made);
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: the connection is not open", module);
    }
    *db = made;
    return IDEM_OK;
}

enum idem_status
idem_sql_postgres(struct pg_conn *conn, struct idem_sql **db,
                  struct idem_error *err)
{
    return attach("postgres", "idem__sql_postgres", conn, db, err);
}

enum idem_status
idem_sql_mysql(struct st_mysql *conn, struct idem_sql **db,
               struct idem_error *err)
{
    return attach("mysql", "idem__sql_mysql", conn, db, err);
}

enum idem_status
idem_sql_sqlite(struct sqlite3 *conn, struct idem_sql **db,
                struct idem_error *err)
{
    return attach("sqlite", "idem__sql_sqlite", conn, db, err);
}

void
idem_sql_close(struct idem_sql *db)
{
    if (!db)
        return;
    for (size_t i = 0; i < db->prepared_count; i++) {
        db->driver->forget(db, db->prepared[i].handle);
        free(db->prepared[i].sql);
    }
    idem_buf_clear(&db->text);
    idem_arena_clear(&db->arena);
    idem_arena_clear(&db->held_arena);
    free(db);
}

void
idem__sql_start(struct idem_sql *db, struct idem_answer *answer)
{
    if (answer)
        *answer = (struct idem_answer){.record = &idem__no_record};
    idem_arena_reset(&db->arena);
    db->fault = (struct idem_sql_fault){0};
    db->rows = (struct sql_rows){0};
}

/* ---- names ------------------------------------------------------------ */

const char *
idem_sql_cause_name(enum idem_sql_cause cause)
{
    static const char *const names[] = {
        [IDEM_SQL_NONE] = "none",
        [IDEM_SQL_DUPLICATE_KEY] = "duplicate key",
        [IDEM_SQL_LOCK_TIMEOUT] = "lock time-out",
        [IDEM_SQL_DEADLOCK] = "deadlock",
        [IDEM_SQL_SERIALIZATION] = "serialization failure",
        [IDEM_SQL_CONNECTION_LOST] = "connection lost",
        [IDEM_SQL_MISSING_TABLE] = "missing table",
        [IDEM_SQL_OTHER] = "other",
    };

    return (size_t)cause < sizeof(names) / sizeof(names[0]) ? names[cause]
                                                            : "?";
}

const char *
idem_sql_verdict_name(enum idem_sql_verdict verdict)
{
    static const char *const names[] = {
        [IDEM_SQL_IS_FIRST] = "first",
        [IDEM_SQL_IS_DUPLICATE] = "duplicate",
        [IDEM_SQL_IS_CONFLICT] = "conflict",
        [IDEM_SQL_IS_REFUSED] = "refused",
        [IDEM_SQL_IS_EMPTY] = "empty",
    };

    return (size_t)verdict < sizeof(names) / sizeof(names[0]) ? names[verdict]
                                                              : "?";
}

/* ---- values ----------------------------------------------------------- */

struct idem_sql_value
idem_sql_int(int64_t number)
{
    return (struct idem_sql_value){.type = IDEM_SQL_INT, .number = number};
}

struct idem_sql_value
idem_sql_text(const char *text)
{
    return (struct idem_sql_value){.type = IDEM_SQL_TEXT,
                                   .bytes = idem_text(text)};
}

struct idem_sql_value
idem_sql_blob(const void *data, size_t len)
{
    return (struct idem_sql_value){.type = IDEM_SQL_BLOB,
                                   .bytes = {data ? data : "", len}};
}

struct idem_sql_value
idem_sql_add(int64_t number)
{
    return (struct idem_sql_value){.type = IDEM_SQL_ADD, .number = number};
}

struct idem_sql_value
idem_sql_column(const struct idem_sql_row *row, const char *column)
{
    for (size_t i = 0; i < row->count; i++) {
        if (strcmp(row->columns[i], column) == 0)
            return row->values[i];
    }
    return (struct idem_sql_value){.type = IDEM_SQL_NULL};
}

/* ---- statements ------------------------------------------------------- */

/* A name in quotes. A quote in it is doubled; a dot separates schema and
 * table. */
static bool
add_name(struct idem_sql *db, const char *name)
{
    char quote[2] = {db->driver->quote, 0};
    size_t len = name ? strlen(name) : 0;

    if (len == 0 || len > NAME_MAX_LEN || name[0] == '.' ||
        name[len - 1] == '.')
        return false;
    if (!idem_buf_add_text(&db->text, quote))
        return false;
    for (size_t i = 0; i < len; i++) {
        bool good = true;

        if (name[i] == '.')
            good = idem_buf_add_text(&db->text, quote) &&
                   idem_buf_add_text(&db->text, ".") &&
                   idem_buf_add_text(&db->text, quote);
        else if (name[i] == db->driver->quote)
            good = idem_buf_add_text(&db->text, quote) &&
                   idem_buf_add_text(&db->text, quote);
        else
            good = idem_buf_add(&db->text, &name[i], 1);
        if (!good)
            return false;
    }
    return idem_buf_add_text(&db->text, quote);
}

static bool
add_format(struct idem_sql *db, const char *format, va_list args)
{
    bool good = true;

    while (*format && good) {
        size_t plain = strcspn(format, "%");

        good = plain == 0 || idem_buf_add(&db->text, format, plain);
        format += plain;
        if (!good || !*format)
            break;
        if (format[1] == 's')
            good = idem_buf_add_text(&db->text, va_arg(args, const char *));
        else
            good = add_name(db, va_arg(args, const char *)); /* %i */
        format += 2;
    }
    return good;
}

bool
idem__sql_add(struct idem_sql *db, const char *format, ...)
{
    va_list args;
    bool good;

    va_start(args, format);
    good = add_format(db, format, args);
    va_end(args);
    return good || idem__sql_fault(db, IDEM_SQL_OTHER, 0, "",
                                   "a name of a table or column is empty, too "
                                   "long, or begins or ends with a dot");
}

const char *
idem__sql_whole(struct idem_sql *db)
{
    if (idem_buf_add(&db->text, "", 1))
        return (const char *)db->text.data;
    idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "the statement is too long");
    return NULL;
}

const char *
idem__sql_text(struct idem_sql *db, const char *format, ...)
{
    va_list args;
    bool good;

    idem_buf_reset(&db->text);
    va_start(args, format);
    good = add_format(db, format, args);
    va_end(args);
    if (good)
        return idem__sql_whole(db);
    idem__sql_fault(db, IDEM_SQL_OTHER, 0, "",
                    "a name of a table or column is empty, too long, or begins "
                    "or ends with a dot");
    return NULL;
}

struct sql_prepared *
idem__sql_prepared(struct idem_sql *db, const char *sql)
{
    for (size_t i = 0; i < db->prepared_count; i++) {
        if (strcmp(db->prepared[i].sql, sql) == 0)
            return &db->prepared[i];
    }
    return NULL;
}

bool
idem__sql_remember(struct idem_sql *db, const char *sql, void *handle)
{
    struct sql_prepared *slot;
    char *copy = strdup(sql);

    if (!copy)
        return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "out of memory");
    if (db->prepared_count < SQL_PREPARED_MAX) {
        slot = &db->prepared[db->prepared_count++];
    } else {
        slot = &db->prepared[db->prepared_next];
        db->prepared_next = (db->prepared_next + 1) % SQL_PREPARED_MAX;
        db->driver->forget(db, slot->handle);
        free(slot->sql);
    }
    slot->sql = copy;
    slot->handle = handle;
    return true;
}

bool
idem__sql_plain(struct idem_sql *db, const struct idem_sql_value *values,
                size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i].type == IDEM_SQL_ADD)
            return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "",
                                   "idem_sql_add is a value of "
                                   "idem_sql_update_versioned alone");
    }
    return true;
}

bool
idem__sql_run(struct idem_sql *db, const char *sql,
              const struct idem_sql_value *values, size_t count)
{
    db->rows = (struct sql_rows){0};
    return sql && idem__sql_plain(db, values, count) &&
           db->driver->run(db, sql, values, count);
}

/* ---- rows ------------------------------------------------------------- */

bool
idem__sql_room(struct idem_sql *db, size_t rows, size_t columns)
{
    db->rows.rows = rows;
    db->rows.columns = columns;
    if (columns == 0)
        return true; /* a commit must not fail after it was done */
    db->rows.names =
        idem_arena_take(&db->arena, (columns + 1) * sizeof(*db->rows.names));
    db->rows.values = idem_arena_take(&db->arena, (rows * columns + 1) *
                                                      sizeof(*db->rows.values));
    if (!db->rows.names || !db->rows.values)
        return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "out of memory");
    memset(db->rows.values, 0, rows * columns * sizeof(*db->rows.values));
    return true;
}

const void *
idem__sql_copy(struct idem_sql *db, const void *data, size_t len)
{
    char *copy = idem_arena_take(&db->arena, len + 1);

    if (!copy) {
        idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "out of memory");
        return NULL;
    }
    if (len > 0)
        memcpy(copy, data, len);
    copy[len] = 0;
    return copy;
}

/* ---- faults ----------------------------------------------------------- */

const struct idem_sql_fault *
idem_sql_fault(const struct idem_sql *db)
{
    return &db->fault;
}

bool
idem__sql_fault(struct idem_sql *db, enum idem_sql_cause cause, int code,
                const char *state, const char *text)
{
    db->fault.cause = cause;
    db->fault.code = code;
    snprintf(db->fault.state, sizeof(db->fault.state), "%s", state);
    snprintf(db->fault.text, sizeof(db->fault.text), "%.*s",
             (int)strcspn(text, "\n"), text);
    return false;
}

enum idem_status
idem__sql_fail(struct idem_sql *db, struct idem_error *err)
{
    const struct idem_sql_fault *fault = &db->fault;

    if (fault->cause == IDEM_SQL_MISSING_TABLE)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: %s (if it is idem's own: idem store init URL, "
                          "or sql/%s.sql by hand)",
                          db->driver->name, fault->text, db->driver->name);
    return idem__fail(err,
                      fault->cause == IDEM_SQL_OTHER ? IDEM_ERR_INVALID
                                                     : IDEM_ERR_UNAVAILABLE,
                      "%s: %s: %s", db->driver->name,
                      idem_sql_cause_name(fault->cause), fault->text);
}

enum idem_status
idem__sql_need_transaction(struct idem_sql *db, struct idem_error *err)
{
    switch (db->driver->inside(db)) {
    case SQL_INSIDE:
        return IDEM_OK;
    case SQL_ABORTED:
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: the transaction has failed already: roll it "
                          "back",
                          db->driver->name);
    default:
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: no transaction is open: the record must commit "
                          "with the business data, so begin one first",
                          db->driver->name);
    }
}

/* ---- checks that are done once per table -------------------------------- */

/* place NULL: only the table. */
static void
hash_question(const char *table, const struct idem_sql_place *place,
              uint8_t hash[16])
{
    crypto_generichash_state state;

    crypto_generichash_init(&state, NULL, 0, 16);
    crypto_generichash_update(&state, (const uint8_t *)table,
                              strlen(table) + 1);
    for (size_t i = 0; place && i < place->key_count; i++)
        crypto_generichash_update(&state,
                                  (const uint8_t *)place->keys[i].column,
                                  strlen(place->keys[i].column) + 1);
    crypto_generichash_final(&state, hash, 16);
}

static bool
was_checked(const struct idem_sql *db, const uint8_t hash[16])
{
    size_t count = db->checked_count < SQL_CHECKED_MAX ? db->checked_count
                                                       : SQL_CHECKED_MAX;

    for (size_t i = 0; i < count; i++) {
        if (memcmp(db->checked[i], hash, 16) == 0)
            return true;
    }
    return false;
}

/* Newer entries overwrite the oldest. */
static void
note_checked(struct idem_sql *db, const uint8_t hash[16])
{
    memcpy(db->checked[db->checked_count++ % SQL_CHECKED_MAX], hash, 16);
}

enum idem_status
idem__sql_need_engine(struct idem_sql *db, const char *table,
                      struct idem_error *err)
{
    struct idem_sql_value engine;
    uint8_t hash[16];

    if (!db->driver->engine_of || !table)
        return IDEM_OK;
    hash_question(table, NULL, hash);
    if (was_checked(db, hash))
        return IDEM_OK;
    db->rows = (struct sql_rows){0};
    if (!db->driver->engine_of(db, table))
        return idem__sql_fail(db, err);
    if (db->rows.rows == 0)
        return IDEM_OK; /* no such table: the statement itself will fail */
    engine = db->rows.values[0];
    if (engine.type != IDEM_SQL_TEXT ||
        strcasecmp(engine.bytes.data, "InnoDB") != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: table \"%s\" uses the engine %s, which cannot "
                          "roll back: use InnoDB",
                          db->driver->name, table,
                          engine.type == IDEM_SQL_TEXT
                              ? (const char *)engine.bytes.data
                              : "(none)");
    note_checked(db, hash);
    return IDEM_OK;
}

static bool
has_key(const struct idem_sql_place *place, struct idem_sql_value column,
        int (*compare)(const char *, const char *))
{
    /* An index on an expression has no column here. */
    for (size_t i = 0; column.type == IDEM_SQL_TEXT && i < place->key_count;
         i++) {
        if (compare(place->keys[i].column, column.bytes.data) == 0)
            return true;
    }
    return false;
}

bool
idem__sql_has_index(const struct idem_sql *db,
                    const struct idem_sql_place *place,
                    int (*compare)(const char *, const char *))
{
    const struct idem_sql_value *v = db->rows.values;
    bool within = false;

    for (size_t i = 0; i < db->rows.rows; i++, v += 2) {
        if (i == 0 || !idem__bytes_equal(v[0].bytes, v[-2].bytes)) {
            if (within)
                return true;
            within = true;
        }
        within = within && has_key(place, v[1], compare);
    }
    return within;
}

void
idem__sql_split(const char *table, struct idem_sql_value names[2])
{
    const char *dot = strchr(table, '.');

    names[0] = (struct idem_sql_value){.type = IDEM_SQL_NULL};
    if (dot)
        names[0] = (struct idem_sql_value){
            .type = IDEM_SQL_TEXT, .bytes = {table, (size_t)(dot - table)}};
    names[1] = idem_sql_text(dot ? dot + 1 : table);
}

const char *
idem__sql_if_free(const struct idem_sql *db)
{
    return db->driver->row_locks ? " for update skip locked" : "";
}

const char *
idem__sql_latest(const struct idem_sql *db)
{
    return db->driver->keeps_lock ? " lock in share mode" : "";
}

void
idem__sql_first_row(const struct idem_sql *db, struct idem_sql_row *row)
{
    row->count = db->rows.columns;
    row->columns = db->rows.names;
    row->values = db->rows.values;
}

static enum idem_status
not_unique(struct idem_sql *db, const struct idem_sql_place *place,
           struct idem_error *err)
{
    char columns[160] = "";
    size_t len = 0;

    /* A missing table has no index either, so let the database report it
     * first. */
    if (!idem__sql_run(
            db,
            idem__sql_text(db, "select 1 from %i where 1 = 0", place->table),
            NULL, 0))
        return idem__sql_fail(db, err);
    for (size_t i = 0; i < place->key_count && len < sizeof(columns); i++)
        len += (size_t)snprintf(columns + len, sizeof(columns) - len, "%s%s",
                                i == 0 ? "" : ", ", place->keys[i].column);
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s: table \"%s\" has no primary key and no unique index "
                      "within (%s), so these columns may name several rows: "
                      "create a unique index on them",
                      db->driver->name, place->table, columns);
}

enum idem_status
idem__sql_need_unique(struct idem_sql *db, const struct idem_sql_place *place,
                      struct idem_error *err)
{
    uint8_t hash[16];
    bool unique;

    hash_question(place->table, place, hash);
    if (was_checked(db, hash))
        return IDEM_OK;
    if (!db->driver->is_unique(db, place, &unique))
        return idem__sql_fail(db, err);
    if (!unique)
        return not_unique(db, place, err);
    note_checked(db, hash);
    return IDEM_OK;
}

/* ---- the database's clock --------------------------------------------- */

/* If the database's clock is set forward while we use it, no lease may end
 * early. So the time used for judging leases gains at most one part in a
 * thousand on our boot clock (as in time.c). If the clock is set back, it
 * follows at once. */
static void
note_clock(struct idem_sql *db, int64_t offset_us, int64_t read_us)
{
    int64_t most = db->early_offset_us + (read_us - db->clock_read_us) / 1000;

    db->early_offset_us =
        db->clock_known && offset_us > most ? most : offset_us;
    db->clock_offset_us = offset_us;
    db->clock_read_us = read_us;
    db->clock_known = true;
}

/* Read the database's clock at intervals; in between our own clock is used. */
static bool
read_clock(struct idem_sql *db)
{
    int64_t before = idem__system_boot_us(), after;

    if (!db->driver->read_clock) {
        note_clock(db, idem__system_clocks.wall_us(NULL) - before, before);
        return true;
    }
    if (!db->driver->read_clock(db) || db->rows.rows != 1)
        return false;
    after = idem__system_boot_us();
    note_clock(db, db->rows.values[0].number - (before + after) / 2, after);
    return true;
}

enum idem_status
idem__sql_now(struct idem_sql *db, struct idem_now *now, struct idem_error *err)
{
    int64_t us;

    if (!db->clock_known || !db->driver->read_clock ||
        idem__system_boot_us() - db->clock_read_us > CLOCK_KEEP_US) {
        if (!read_clock(db))
            return idem__sql_fail(db, err);
    }
    us = idem__system_boot_us() + db->clock_offset_us;
    now->early_ms = (us - db->clock_offset_us + db->early_offset_us) / 1000;
    now->late_ms = us / 1000;
    now->late_us = (uint64_t)us;
    now->up_ms = INT64_MAX; /* the database's clock needs no watch time */
    return IDEM_OK;
}
