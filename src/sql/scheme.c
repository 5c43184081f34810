/*
 * scheme.c - the classic schemes on the caller's own tables: insert once,
 * select and insert, upsert, versioned update, conditional update, row lock.
 *
 * Each is one guarded statement whose row count says whether it was the first.
 * If it was not, the existing row is read. The caller never gets the row count,
 * only a verdict.
 */
#include "driver.h"

#include <string.h>
#include <time.h>

#define LOOK_AGAIN_MS 5

/* ---- pieces ------------------------------------------------------------ */

static enum idem_status
start(struct idem_sql *db, const struct idem_sql_place *place, size_t values,
      struct idem_sql_row *row, struct idem_error *err)
{
    enum idem_status status;

    idem__sql_start(db, NULL);
    memset(row, 0, sizeof(*row));
    if (place->key_count == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: no key was given: a row is found by its primary "
                          "key or a unique index",
                          db->driver->name);
    for (size_t i = 0; i < place->key_count; i++) {
        if (place->keys[i].value.type == IDEM_SQL_NULL)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s: column \"%s\" of the key is null, and nulls "
                              "are never the same: give a value",
                              db->driver->name, place->keys[i].column);
    }
    if (place->key_count + values + 4 > SQL_VALUES_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: more than %d columns in one call",
                          db->driver->name, SQL_VALUES_MAX - 4);
    status = idem__sql_need_transaction(db, err);
    if (status == IDEM_OK)
        status = idem__sql_need_engine(db, place->table, err);
    return status == IDEM_OK ? idem__sql_need_unique(db, place, err) : status;
}

/* "a" = ? and "b" = ? */
static bool
add_where(struct idem_sql *db, const struct idem_sql_place *place)
{
    bool good = true;

    for (size_t i = 0; i < place->key_count && good; i++)
        good = idem__sql_add(db, i == 0 ? " where %i = ?" : " and %i = ?",
                             place->keys[i].column);
    return good;
}

static size_t
put_keys(struct idem_sql_value *values, const struct idem_sql_place *place)
{
    for (size_t i = 0; i < place->key_count; i++)
        values[i] = place->keys[i].value;
    return place->key_count;
}

static size_t
put_pairs(struct idem_sql_value *values, const struct idem_sql_pair *pairs,
          size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = pairs[i].value;
    return count;
}

/* Begin to assemble a statement. */
static bool
begin_text(struct idem_sql *db, const char *words, const char *table)
{
    idem_buf_reset(&db->text);
    return idem__sql_add(db, "%s %i", words, table);
}

/* Read the existing row, if there is one. */
static bool
read_row(struct idem_sql *db, const struct idem_sql_place *place,
         const char *suffix, struct idem_sql_row *row)
{
    struct idem_sql_value values[SQL_VALUES_MAX];
    size_t n = put_keys(values, place);

    memset(row, 0, sizeof(*row));
    if (!begin_text(db, "select * from", place->table) ||
        !add_where(db, place) || !idem__sql_add(db, "%s", suffix) ||
        !idem__sql_run(db, idem__sql_whole(db), values, n))
        return false;
    if (db->rows.rows > 0)
        idem__sql_first_row(db, row);
    return true;
}

static bool
add_insert(struct idem_sql *db, const struct idem_sql_place *place,
           const struct idem_sql_pair *pairs, size_t count)
{
    bool good = begin_text(db, "insert into", place->table);

    for (size_t i = 0; i < place->key_count && good; i++)
        good =
            idem__sql_add(db, i == 0 ? " (%i" : ", %i", place->keys[i].column);
    for (size_t i = 0; i < count && good; i++)
        good = idem__sql_add(db, ", %i", pairs[i].column);
    for (size_t i = 0; i < place->key_count + count && good; i++)
        good = idem__sql_add(db, i == 0 ? ") values (?" : ", ?");
    return good && idem__sql_add(db, db->driver->on_conflict
                                         ? ") on conflict do nothing"
                                         : ")");
}

/* One insert. *inserted: there was no such row. False: an error. */
static bool
insert(struct idem_sql *db, const struct idem_sql_place *place,
       const struct idem_sql_pair *pairs, size_t count, bool *inserted)
{
    struct idem_sql_value values[SQL_VALUES_MAX];
    size_t n = put_keys(values, place);

    n += put_pairs(values + n, pairs, count);
    *inserted = false;
    if (!add_insert(db, place, pairs, count))
        return false;
    if (!idem__sql_run(db, idem__sql_whole(db), values, n))
        return db->fault.cause == IDEM_SQL_DUPLICATE_KEY &&
               db->driver->inside(db) == SQL_INSIDE;
    *inserted = db->rows.affected == 1;
    return true;
}

/* ---- insert ------------------------------------------------------------ */

static enum idem_status
insert_or_row(struct idem_sql *db, const struct idem_sql_place *place,
              const struct idem_sql_pair *values, size_t count,
              enum idem_sql_verdict *verdict, struct idem_sql_row *row,
              struct idem_error *err)
{
    bool inserted;

    if (!insert(db, place, values, count, &inserted))
        return idem__sql_fail(db, err);
    if (inserted) {
        *verdict = IDEM_SQL_IS_FIRST;
        return IDEM_OK;
    }
    /* Read the current row, because an older snapshot may hide it. Databases
     * with such snapshots have locked the row already. */
    if (!read_row(db, place, idem__sql_latest(db), row))
        return idem__sql_fail(db, err);
    *verdict = row->count > 0 ? IDEM_SQL_IS_DUPLICATE : IDEM_SQL_IS_CONFLICT;
    return IDEM_OK;
}

enum idem_status
idem_sql_insert_once(struct idem_sql *db, const struct idem_sql_place *place,
                     const struct idem_sql_pair *values, size_t count,
                     enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                     struct idem_error *err)
{
    enum idem_status status = start(db, place, count, row, err);

    if (status != IDEM_OK)
        return status;
    return insert_or_row(db, place, values, count, verdict, row, err);
}

enum idem_status
idem_sql_select_insert(struct idem_sql *db, const struct idem_sql_place *place,
                       const struct idem_sql_pair *values, size_t count,
                       enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                       struct idem_error *err)
{
    enum idem_status status = start(db, place, count, row, err);

    if (status != IDEM_OK)
        return status;
    if (!read_row(db, place, "", row))
        return idem__sql_fail(db, err);
    if (row->count > 0) {
        *verdict = IDEM_SQL_IS_DUPLICATE;
        return IDEM_OK;
    }
    return insert_or_row(db, place, values, count, verdict, row, err);
}

/* ---- update ------------------------------------------------------------ */

/* update t set a = ?, b = b + ? */
static bool
begin_update(struct idem_sql *db, const struct idem_sql_place *place,
             const struct idem_sql_pair *pairs, size_t count)
{
    bool good = begin_text(db, "update", place->table);

    for (size_t i = 0; i < count && good; i++)
        good = pairs[i].value.type == IDEM_SQL_ADD
                   ? idem__sql_add(db, "%s %i = %i + ?", i == 0 ? " set" : ",",
                                   pairs[i].column, pairs[i].column)
                   : idem__sql_add(db, "%s %i = ?", i == 0 ? " set" : ",",
                                   pairs[i].column);
    return good;
}

enum idem_status
idem_sql_upsert(struct idem_sql *db, const struct idem_sql_place *place,
                const struct idem_sql_pair *values, size_t count,
                enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                struct idem_error *err)
{
    struct idem_sql_value bound[SQL_VALUES_MAX];
    enum idem_status status = start(db, place, count, row, err);
    const char *hold = db->driver->row_locks ? " for update" : "";
    size_t n;

    if (status != IDEM_OK)
        return status;
    /* Without "for update" at first: on a missing row it would deadlock with
     * another transaction that does the same. */
    if (!read_row(db, place, "", row))
        return idem__sql_fail(db, err);
    if (row->count == 0) {
        status = insert_or_row(db, place, values, count, verdict, row, err);
        if (status != IDEM_OK || *verdict != IDEM_SQL_IS_DUPLICATE)
            return status;
    }
    if (count == 0) {
        *verdict = IDEM_SQL_IS_DUPLICATE;
        return IDEM_OK;
    }
    if (!read_row(db, place, hold, row))
        return idem__sql_fail(db, err);
    n = put_pairs(bound, values, count);
    n += put_keys(bound + n, place);
    if (!begin_update(db, place, values, count) || !add_where(db, place) ||
        !idem__sql_run(db, idem__sql_whole(db), bound, n))
        return idem__sql_fail(db, err);
    *verdict = row->count > 0 ? IDEM_SQL_IS_DUPLICATE : IDEM_SQL_IS_CONFLICT;
    return IDEM_OK;
}

static bool
same_value(const struct idem_sql_value *a, const struct idem_sql_value *b)
{
    if (a->type == IDEM_SQL_INT && b->type == IDEM_SQL_INT)
        return a->number == b->number;
    return a->type == b->type && a->type != IDEM_SQL_INT &&
           idem__bytes_equal(a->bytes, b->bytes);
}

static bool
has_values(const struct idem_sql_row *row, const struct idem_sql_pair *pairs,
           size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct idem_sql_value there = idem_sql_column(row, pairs[i].column);

        if (!same_value(&there, &pairs[i].value))
            return false;
    }
    return true;
}

static bool
has_add(const struct idem_sql_pair *pairs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (pairs[i].value.type == IDEM_SQL_ADD)
            return true;
    }
    return false;
}

/* The statement of has_values_there. */
static bool
add_comparison(struct idem_sql *db, const struct idem_sql_place *place,
               const char *version_column, const struct idem_sql_pair *pairs,
               size_t count)
{
    bool good = begin_text(db, "select 1 from", place->table) &&
                add_where(db, place) &&
                idem__sql_add(db, " and %i = ?", version_column);

    for (size_t i = 0; i < count && good; i++)
        good = idem__sql_add(db, " and %i %s", pairs[i].column,
                             db->driver->equals(pairs[i].value.type));
    return good;
}

/*
 * Compare in the database, which knows that 10.50 is 10.5 and that a char(8) is
 * padded (but "A" is not "a"). With a type that it cannot compare (json in
 * PostgreSQL) the statement fails, which must not fail the caller's
 * transaction. False: an error.
 */
static bool
has_values_there(struct idem_sql *db, const struct idem_sql_place *place,
                 const char *version_column, int64_t version,
                 const struct idem_sql_pair *pairs, size_t count, bool *same)
{
    struct idem_sql_value bound[SQL_VALUES_MAX];
    size_t n = put_keys(bound, place);
    bool good;

    bound[n++] = idem_sql_int(version);
    n += put_pairs(bound + n, pairs, count);
    if (!idem__sql_run(db, "savepoint idem_same", NULL, 0) ||
        !add_comparison(db, place, version_column, pairs, count))
        return false;
    good = idem__sql_run(db, idem__sql_whole(db), bound, n);
    *same = good && db->rows.rows > 0;
    if (!good && !(db->driver->is_incomparable &&
                   db->driver->is_incomparable(&db->fault)))
        return false;
    return idem__sql_run(db, "rollback to savepoint idem_same", NULL, 0) &&
           idem__sql_run(db, "release savepoint idem_same", NULL, 0);
}

enum idem_status
idem_sql_update_versioned(struct idem_sql *db,
                          const struct idem_sql_place *place,
                          const char *version_column, int64_t version,
                          const struct idem_sql_pair *values, size_t count,
                          enum idem_sql_verdict *verdict,
                          struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_value bound[SQL_VALUES_MAX];
    enum idem_status status = start(db, place, count, row, err);
    bool same;
    size_t n;

    if (status != IDEM_OK)
        return status;
    n = put_pairs(bound, values, count);
    for (size_t i = 0; i < count; i++) {
        if (bound[i].type == IDEM_SQL_ADD)
            bound[i].type = IDEM_SQL_INT;
    }
    bound[n++] = idem_sql_int(1); /* a value has the column's own type */
    n += put_keys(bound + n, place);
    bound[n++] = idem_sql_int(version);
    if (!begin_update(db, place, values, count) ||
        !idem__sql_add(db, count == 0 ? " set %i = %i + ?" : ", %i = %i + ?",
                       version_column, version_column) ||
        !add_where(db, place) ||
        !idem__sql_add(db, " and %i = ?", version_column) ||
        !idem__sql_run(db, idem__sql_whole(db), bound, n))
        return idem__sql_fail(db, err);
    *verdict = IDEM_SQL_IS_FIRST;
    if (db->rows.affected == 1)
        return IDEM_OK;
    if (!read_row(db, place, "", row))
        return idem__sql_fail(db, err);
    *verdict = IDEM_SQL_IS_REFUSED;
    if (row->count == 0)
        return IDEM_OK;
    same = idem_sql_column(row, version_column).number == version + 1 &&
           has_values(row, values, count);
    if (!same && !has_add(values, count) &&
        !has_values_there(db, place, version_column, version + 1, values, count,
                          &same))
        return idem__sql_fail(db, err);
    *verdict = same ? IDEM_SQL_IS_DUPLICATE : IDEM_SQL_IS_CONFLICT;
    return IDEM_OK;
}

enum idem_status
idem_sql_deduct(struct idem_sql *db, const struct idem_sql_place *place,
                const char *column, int64_t amount,
                enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                struct idem_error *err)
{
    struct idem_sql_value bound[SQL_VALUES_MAX];
    enum idem_status status = start(db, place, 2, row, err);
    size_t n = 1;

    if (status != IDEM_OK)
        return status;
    if (amount < 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "an amount of %lld would add: give 0 or more",
                          (long long)amount);
    bound[0] = idem_sql_int(amount);
    n += put_keys(bound + n, place);
    bound[n++] = idem_sql_int(amount);
    if (!begin_text(db, "update", place->table) ||
        !idem__sql_add(db, " set %i = %i - ?", column, column) ||
        !add_where(db, place) || !idem__sql_add(db, " and %i >= ?", column) ||
        !idem__sql_run(db, idem__sql_whole(db), bound, n))
        return idem__sql_fail(db, err);
    *verdict = IDEM_SQL_IS_FIRST;
    if (db->rows.affected == 1)
        return IDEM_OK;
    /* Deducting 0 changes no row, and MariaDB counts only changed rows. It
     * still succeeds if the row has enough. */
    if (!read_row(db, place, "", row))
        return idem__sql_fail(db, err);
    *verdict = amount == 0 && idem_sql_column(row, column).number >= 0 &&
                       row->count > 0
                   ? IDEM_SQL_IS_FIRST
                   : IDEM_SQL_IS_REFUSED;
    return IDEM_OK;
}

/* ---- lock -------------------------------------------------------------- */

/* SQLite has no row locks, so a write that changes nothing locks the file. */
static bool
touch(struct idem_sql *db, const struct idem_sql_place *place)
{
    struct idem_sql_value bound[SQL_VALUES_MAX];
    size_t n = put_keys(bound, place);
    const char *column = place->keys[0].column;

    return begin_text(db, "update", place->table) &&
           idem__sql_add(db, " set %i = %i", column, column) &&
           add_where(db, place) &&
           idem__sql_run(db, idem__sql_whole(db), bound, n);
}

/* *held: this transaction has the lock now. False: an error. */
static bool
try_lock(struct idem_sql *db, const struct idem_sql_place *place,
         struct idem_sql_row *row, bool *held)
{
    *held = false;
    if (!db->driver->row_locks && !touch(db, place))
        return db->fault.cause == IDEM_SQL_LOCK_TIMEOUT;
    if (!read_row(db, place, idem__sql_if_free(db), row))
        return false;
    *held = row->count > 0;
    return true;
}

enum idem_status
idem_sql_lock_row(struct idem_sql *db, const struct idem_sql_place *place,
                  int64_t wait_ms, enum idem_sql_verdict *verdict,
                  struct idem_sql_row *row, struct idem_error *err)
{
    int64_t deadline_us = idem__system_boot_us() + wait_ms * 1000;
    struct timespec pause = {0, LOOK_AGAIN_MS * 1000000L};
    enum idem_status status = start(db, place, 0, row, err);
    bool held;

    if (status != IDEM_OK)
        return status;
    for (;;) {
        idem_arena_reset(&db->arena);
        if (!try_lock(db, place, row, &held))
            return idem__sql_fail(db, err);
        *verdict = IDEM_SQL_IS_FIRST;
        if (held)
            return IDEM_OK;
        if (!read_row(db, place, "", row))
            return idem__sql_fail(db, err);
        *verdict = row->count > 0 ? IDEM_SQL_IS_CONFLICT : IDEM_SQL_IS_REFUSED;
        if (row->count == 0 || idem__system_boot_us() >= deadline_us)
            return IDEM_OK;
        nanosleep(&pause, NULL);
    }
}
