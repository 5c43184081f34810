/*
 * bulk.c - writes a batch under the guess that all revs are as expected. One
 * statement writes the batch in one round trip, and the commit is another.
 *
 *   insert (...) values (...) on duplicate key update
 *       rev = if(rev = EXPECTED, values(rev), null), ...
 *
 * The expected rev of a new record is 0, which no record has. So a new record
 * that is already there fails like a wrong rev: it sets a NOT NULL column to
 * null. If a record that should be changed is not there, it is inserted, which
 * shows in the count of rows: 1 for each inserted row, 2 for each changed one.
 * A locked row fails at once (1205).
 *
 * Rows are sent in binary and the server parses the statement once, which is a
 * third less work for it than locking the rows and writing them as text. This
 * is MariaDB's bulk execution; MySQL does not have it, so there is no guess on
 * MySQL.
 */
#include "mysql.h"

#include <stdio.h>
#include <stdlib.h>

#define PARAMS (IDEM_COLUMN_COUNT + 1) /* the last is the expected rev */

/* The statement, and the row that it reads next. */
struct mysql_bulk {
    MYSQL_STMT *stmt;
    MYSQL_BIND binds[PARAMS];
    int64_t numbers[PARAMS];
    unsigned long lengths[PARAMS];
    char indicators[PARAMS];
    const struct idem_swap *swaps;
};

#define X(name, word, type) ",?"
static const char marks[] = IDEM_COLUMN_MAP(X);
#undef X

/* Called for each row, with the binds of the statement. */
static my_bool
read_row(void *data, MYSQL_BIND *binds, unsigned row)
{
    struct mysql_bulk *bulk = data;
    const struct idem_swap *swap = &bulk->swaps[row];
    struct idem_cell cells[IDEM_COLUMN_COUNT];

    idem__record_to_cells(swap->key, swap->record, cells);
    for (int i = 0; i < IDEM_COLUMN_COUNT; i++) {
        bulk->indicators[i] =
            cells[i].null ? STMT_INDICATOR_NULL : STMT_INDICATOR_NONE;
        bulk->numbers[i] = cells[i].number;
        if (idem__column_types[i] != IDEM_COLUMN_BYTES)
            continue;
        /* The library allocates by the first of these and copies by the
         * second. */
        binds[i].buffer_length = (unsigned long)cells[i].bytes.len;
        bulk->lengths[i] = binds[i].buffer_length;
        binds[i].buffer = (void *)cells[i].bytes.data;
    }
    bulk->numbers[IDEM_COLUMN_COUNT] = (int64_t)swap->expected;
    return 0;
}

static void
bind_all(struct mysql_bulk *bulk)
{
    for (int i = 0; i < PARAMS; i++) {
        MYSQL_BIND *bind = &bulk->binds[i];
        bool bytes =
            i < IDEM_COLUMN_COUNT && idem__column_types[i] == IDEM_COLUMN_BYTES;

        bind->buffer_type = bytes ? MYSQL_TYPE_BLOB : MYSQL_TYPE_LONGLONG;
        bind->buffer = &bulk->numbers[i];
        bind->length = &bulk->lengths[i];
        bind->u.indicator = &bulk->indicators[i];
    }
}

void
idem__mysql_bulk_close(struct mysql_bulk *bulk)
{
    if (!bulk)
        return;
    if (bulk->stmt)
        mysql_stmt_close(bulk->stmt);
    free(bulk);
}

static bool
prepare(struct mysql_bulk *bulk, MYSQL *conn)
{
    char text[1500];
    int len = snprintf(text, sizeof(text),
                       "insert into idem_record (%s) values (%s) "
                       "on duplicate key update "
                       "rev = if(rev = ?, values(rev), null), %s",
                       idem__columns_all, marks + 1, IDEM__MYSQL_SET_BUT_REV);

    bulk->stmt = mysql_stmt_init(conn);
    return bulk->stmt &&
           mysql_stmt_prepare(bulk->stmt, text, (unsigned long)len) == 0 &&
           !mysql_stmt_bind_param(bulk->stmt, bulk->binds) &&
           !mysql_stmt_attr_set(bulk->stmt, STMT_ATTR_CB_USER_DATA, bulk) &&
           !mysql_stmt_attr_set(bulk->stmt, STMT_ATTR_CB_PARAM,
                                (const void *)read_row);
}

struct mysql_bulk *
idem__mysql_bulk_open(MYSQL *conn)
{
    struct mysql_bulk *bulk;
    unsigned long server = 0;

    if (mariadb_get_infov(conn, MARIADB_CONNECTION_EXTENDED_SERVER_CAPABILITIES,
                          &server) ||
        !(server & (MARIADB_CLIENT_STMT_BULK_OPERATIONS >> 32)))
        return NULL;
    bulk = calloc(1, sizeof(*bulk));
    if (!bulk)
        return NULL;
    bind_all(bulk);
    if (prepare(bulk, conn))
        return bulk;
    idem__mysql_bulk_close(bulk);
    return NULL;
}

bool
idem__mysql_bulk_write(struct mysql_bulk *bulk, const struct idem_swap *swaps,
                       size_t count)
{
    unsigned rows = (unsigned)count;
    size_t expected = 0;

    for (size_t i = 0; i < count; i++)
        expected += swaps[i].expected == 0 ? 1 : 2;
    bulk->swaps = swaps;
    return !mysql_stmt_attr_set(bulk->stmt, STMT_ATTR_ARRAY_SIZE, &rows) &&
           mysql_stmt_execute(bulk->stmt) == 0 &&
           mysql_stmt_affected_rows(bulk->stmt) == expected;
}
