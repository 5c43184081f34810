/*
 * query.c - builds the statements of mysql:// and reads their rows. Values are
 * sent as hex literals, so nothing needs quoting.
 */
#include "mysql.h"

#include "../../base/hex.h"

#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#define CONFIRM_TRIES 3

void
idem__mysql_add_hex(struct idem_buf *query, const void *data, size_t len)
{
    uint8_t *out = idem_buf_room(query, 2 * len + 3);

    if (!out) {
        query->cap = 0; /* send_query checks it */
        return;
    }
    *out++ = 'x';
    *out++ = '\'';
    idem__hex_write(data, len, out);
    out[2 * len] = '\'';
    query->len += 2 * len + 3;
}

void
idem__mysql_add_text(struct idem_buf *query, const char *text)
{
    if (!idem_buf_add_text(query, text))
        query->cap = 0;
}

bool
idem__mysql_send_query(struct mysql_store *self)
{
    bool whole = self->query.cap != 0;

    self->query.cap = IDEM__MYSQL_QUERY_MAX;
    return whole && mysql_real_query(self->conn, (const char *)self->query.data,
                                     (unsigned long)self->query.len) == 0;
}

/* Get the next statement's result. False: there is none, or it failed. */
bool
idem__mysql_next_result(struct mysql_store *self, bool *failed)
{
    int more = mysql_next_result(self->conn);

    *failed = more > 0;
    return more == 0;
}

/* Skip the remaining results of a query; false if a statement failed. */
bool
idem__mysql_skip_results(struct mysql_store *self)
{
    bool failed = false;

    do {
        MYSQL_RES *rows = mysql_store_result(self->conn);

        if (rows)
            mysql_free_result(rows);
    } while (idem__mysql_next_result(self, &failed));
    return !failed;
}

void
idem__mysql_rollback(struct mysql_store *self)
{
    if (self->conn && mysql_query(self->conn, "rollback") != 0)
        idem__mysql_disconnect(self);
}

void
idem__mysql_read_cells(MYSQL_RES *rows, MYSQL_ROW row, int columns,
                       struct idem_cell cells[IDEM_COLUMN_COUNT])
{
    unsigned long *lengths = mysql_fetch_lengths(rows);

    memset(cells, 0, IDEM_COLUMN_COUNT * sizeof(*cells));
    for (int i = 0; i < columns; i++) {
        cells[i].null = row[i] == NULL;
        if (cells[i].null)
            continue;
        if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            cells[i].bytes = (struct idem_bytes){row[i], lengths[i]};
        else
            cells[i].number = strtoll(row[i], NULL, 10);
    }
}

/* ---- confirm ---------------------------------------------------------- */

/* Insert and delete a row that nobody sees, under a random key, and commit. */
static bool
write_and_commit(struct mysql_store *self)
{
    uint64_t key[IDEM_KEY_LEN / sizeof(uint64_t)];

    for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); i++)
        key[i] = idem__new_rev();
    idem_buf_reset(&self->query);
    idem__mysql_add_text(&self->query, "insert into idem_record (");
    idem__mysql_add_text(&self->query, idem__columns_all);
    idem__mysql_add_text(&self->query, ") values (");
    idem__mysql_add_hex(&self->query, key, sizeof(key));
    idem__mysql_add_text(&self->query,
                         ",0,0,0,0,0,0,0,1,0,0,0,0,x'0000000000000000',null,"
                         "'','','','');"
                         "delete from idem_record where key_hash = ");
    idem__mysql_add_hex(&self->query, key, sizeof(key));
    idem__mysql_add_text(&self->query, ";commit");
    return idem__mysql_send_query(self) && idem__mysql_skip_results(self);
}

/*
 * Without a binary log InnoDB shows a commit to others before it has flushed
 * its redo log, so a record that was found may be lost with the server. A
 * transaction that has written something waits at its commit until the log is
 * flushed up to there, and so for all that could be seen before it.
 *
 * The gap around the random key may be locked by a service's transaction; then
 * another key is tried.
 */
bool
idem__mysql_confirm(struct mysql_store *self, enum idem_status *status,
                    struct idem_error *err)
{
    *status = IDEM_OK;
    if (self->durable_reads)
        return true;
    for (int i = 0; i < CONFIRM_TRIES; i++) {
        unsigned code;

        if (write_and_commit(self))
            return true;
        code = mysql_errno(self->conn);
        if (code != ER_LOCK_WAIT_TIMEOUT && code != ER_LOCK_DEADLOCK)
            break;
    }
    *status = idem__mysql_fail(self, err);
    if (idem__mysql_is_gone(self))
        idem__mysql_disconnect(self);
    else
        idem__mysql_rollback(self);
    return false;
}
