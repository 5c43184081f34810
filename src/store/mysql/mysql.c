/*
 * mysql.c - mysql://: records in table idem_record of MariaDB (or MySQL).
 *
 * The connection is in mysql_connect.c, swap in mysql_batch.c and bulk.c,
 * queries in query.c; this file has all other functions of the store.
 */
#include "mysql.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CHECK_EVERY_US 10000000

/* ---- load, scan, clock ----------------------------------------------- */

/* Run the query in self->query in its own transaction. Returns its one row set,
 * or NULL with err set. */
static MYSQL_RES *
ask(struct mysql_store *self, enum idem_status *status, struct idem_error *err)
{
    MYSQL_RES *rows = NULL;

    *status = IDEM_OK;
    idem__mysql_add_text(&self->query, ";commit");
    if (idem__mysql_send_query(self))
        rows = mysql_store_result(self->conn);
    if (rows && idem__mysql_skip_results(self))
        return rows;
    mysql_free_result(rows);
    *status = idem__mysql_fail(self, err);
    if (idem__mysql_is_gone(self))
        idem__mysql_disconnect(self);
    else
        idem__mysql_rollback(self);
    return NULL;
}

/* The same, for records. They are confirmed before the caller gets them. */
static MYSQL_RES *
ask_records(struct mysql_store *self, enum idem_status *status,
            struct idem_error *err)
{
    MYSQL_RES *rows = ask(self, status, err);

    if (!rows || mysql_num_rows(rows) == 0 ||
        idem__mysql_confirm(self, status, err))
        return rows;
    mysql_free_result(rows);
    return NULL;
}

static enum idem_status
read_load(MYSQL_RES *rows, struct idem_load *loads, size_t count,
          struct idem_arena *arena, struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    enum idem_status status = IDEM_OK;
    struct idem_record r;
    MYSQL_ROW row;

    while (status == IDEM_OK && (row = mysql_fetch_row(rows))) {
        idem__mysql_read_cells(rows, row, IDEM_COLUMN_COUNT, cells);
        status = idem__cells_to_record(cells, &r, err);
        for (size_t i = 0; i < count && status == IDEM_OK; i++) {
            struct idem_record copy = r;

            if (memcmp(loads[i].key, row[0], IDEM_KEY_LEN) != 0)
                continue;
            if (!loads[i].with_result)
                copy.result = (struct idem_bytes){NULL, 0};
            if (!idem_arena_record(arena, &copy, &loads[i].record))
                status =
                    idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
        }
    }
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status = idem__mysql_connect(self, err);
    MYSQL_RES *rows;

    if (status != IDEM_OK || count == 0)
        return status;
    idem_buf_reset(&self->query);
    idem__mysql_add_text(&self->query, "select ");
    idem__mysql_add_text(&self->query, idem__columns_all);
    idem__mysql_add_text(&self->query, " from idem_record where key_hash in (");
    for (size_t i = 0; i < count; i++) {
        idem__mysql_add_text(&self->query, i == 0 ? "" : ",");
        idem__mysql_add_hex(&self->query, loads[i].key, IDEM_KEY_LEN);
    }
    idem__mysql_add_text(&self->query, ")");
    rows = ask_records(self, &status, err);
    if (!rows)
        return status;
    for (size_t i = 0; i < count; i++)
        loads[i].record.state = IDEM_STATE_ABSENT;
    status = read_load(rows, loads, count, arena, err);
    mysql_free_result(rows);
    return status;
}

static enum idem_status
give_rows(MYSQL_RES *result, struct idem_rows *rows, struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    enum idem_status status = IDEM_OK;
    MYSQL_ROW row;

    while (status == IDEM_OK && !rows->over &&
           (row = mysql_fetch_row(result))) {
        idem__mysql_read_cells(result, row, IDEM_COLUMN_RESULT, cells);
        status =
            idem__rows_give(rows, cells,
                            rows->query->sizes && row[IDEM_COLUMN_RESULT]
                                ? strtoll(row[IDEM_COLUMN_RESULT], NULL, 10)
                                : 0,
                            err);
    }
    if (status == IDEM_OK)
        idem__rows_end(rows);
    return status;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_query *query,
             struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    struct idem_bytes id = query->filter->id;
    struct idem_rows rows;
    enum idem_status status = idem__rows_start(&rows, query, err);
    MYSQL_RES *result;

    if (status == IDEM_OK)
        status = idem__mysql_connect(self, err);
    if (status != IDEM_OK)
        return status;
    idem_buf_reset(&self->query);
    idem__mysql_add_text(&self->query, "select ");
    idem__mysql_add_text(&self->query, idem__columns_but_result);
    if (query->sizes) /* the server must read long results for this */
        idem__mysql_add_text(&self->query, ", length(result)");
    idem__mysql_add_text(&self->query, " from idem_record");
    if (id.len > 0) /* an id is in few scopes, and its index finds them */
        idem__mysql_add_text(&self->query, " ignore index (primary)");
    idem__mysql_add_text(&self->query, " where key_hash > ");
    idem__mysql_add_hex(&self->query, rows.last, rows.last_len);
    if (id.len > 0) {
        idem__mysql_add_text(&self->query, " and id = ");
        idem__mysql_add_hex(&self->query, id.data, id.len);
    }
    if (rows.executing)
        idem__mysql_add_text(&self->query, " and state = 2");
    idem_buf_printf(&self->query, " order by key_hash limit %zu", rows.limit);
    result = ask_records(self, &status, err);
    if (!result)
        return status;
    status = give_rows(result, &rows, err);
    mysql_free_result(result);
    return status;
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status = idem__mysql_connect(self, err);
    MYSQL_RES *rows;
    MYSQL_ROW row;

    if (status != IDEM_OK)
        return status;
    idem_buf_reset(&self->query);
    idem__mysql_add_text(
        &self->query,
        "select cast(unix_timestamp(now(6)) * 1000000 as signed)");
    rows = ask(self, &status, err);
    if (!rows)
        return status;
    row = mysql_fetch_row(rows);
    if (row && row[0])
        *now_us = strtoll(row[0], NULL, 10);
    else
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                            "mysql: the server did not tell the time");
    mysql_free_result(rows);
    return status;
}

/* ---- tend ------------------------------------------------------------ */

/* Append what the records that may be removed have in common. */
static void
add_dead(struct mysql_store *self, int64_t drop_ms)
{
    idem_buf_printf(&self->query,
                    "state in (1, 3, 4, 5) and expires between 1 and %lld "
                    "and fence < %lld",
                    (long long)drop_ms - 1, ((long long)drop_ms - 1) * 1000);
}

/* Replace self->query by one that deletes the records with these keys, if they
 * may still be removed. */
static void
delete_rows(struct mysql_store *self, MYSQL_RES *rows, int64_t drop_ms)
{
    const char *before = "delete from idem_record where key_hash in (";
    MYSQL_ROW row;

    idem_buf_reset(&self->query);
    while ((row = mysql_fetch_row(rows))) {
        idem__mysql_add_text(&self->query, before);
        idem__mysql_add_hex(&self->query, row[0], IDEM_KEY_LEN);
        before = ",";
    }
    idem__mysql_add_text(&self->query, ") and ");
    add_dead(self, drop_ms);
    idem__mysql_add_text(&self->query, ";commit");
}

/* The keys are read first, without locks: a DELETE that searched the index
 * itself would also lock the record behind the last one, which may be a claim
 * that is being written. */
static bool
sweep(struct idem_store *store, int64_t drop_ms, size_t most, size_t *gone)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status;
    MYSQL_RES *rows;
    bool some;

    if (!self->conn)
        return false;
    idem_buf_reset(&self->query);
    idem__mysql_add_text(&self->query,
                         "select key_hash from idem_record where ");
    add_dead(self, drop_ms);
    idem_buf_printf(&self->query, " limit %zu", most);
    rows = ask(self, &status, NULL);
    if (!rows)
        return self->conn != NULL;
    some = mysql_num_rows(rows) > 0;
    if (some)
        delete_rows(self, rows, drop_ms);
    mysql_free_result(rows);
    if (!some)
        return true;
    if (idem__mysql_send_query(self)) {
        size_t count = (size_t)mysql_affected_rows(self->conn);

        if (idem__mysql_skip_results(self)) {
            *gone = count;
            return true;
        }
    }
    if (idem__mysql_is_gone(self))
        idem__mysql_disconnect(self);
    else
        idem__mysql_rollback(self);
    return self->conn != NULL;
}

/* The first number that a query returns in `column`; -1: none. */
static long
ask_number(struct mysql_store *self, const char *query, unsigned column)
{
    long number = -1;
    MYSQL_RES *rows;
    MYSQL_ROW row;

    if (mysql_query(self->conn, query) != 0 ||
        !(rows = mysql_store_result(self->conn)))
        return -1;
    row = mysql_fetch_row(rows);
    if (row && mysql_num_fields(rows) > column && row[column])
        number = strtol(row[column], NULL, 10);
    mysql_free_result(rows);
    return number;
}

/* Warn once for each number of replicas: no commit waits until they have it on
 * their disks. Other programs that read the binary log count, too. MySQL has no
 * such counter, and shows its threads only to accounts with the right PROCESS.
 */
static void
say_replicas(struct mysql_store *self)
{
    long has =
        ask_number(self, "show global status like 'Slaves_connected'", 1);

    if (has < 0)
        has = ask_number(self,
                         "select count(*) from information_schema.processlist "
                         "where command like 'Binlog Dump%'",
                         0);
    if (has > 0 && has != self->said_replicas)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "mysql: %ld %s the binary log, as replicas do: a failover "
                  "to a replica can lose the last claims, and their requests "
                  "run again (docs/stores.md)",
                  has, has == 1 ? "program reads" : "programs read");
    self->said_replicas = has;
}

/* A server can be reconfigured, or become a replica, while idem is running. */
static void
check(struct mysql_store *self, int64_t now_us)
{
    struct idem_error err;

    if (now_us - self->checked_at_us < CHECK_EVERY_US)
        return;
    self->checked_at_us = now_us;
    if (idem__mysql_check(self, &err) == IDEM_OK) {
        say_replicas(self);
    } else {
        idem__log(&self->base.options, IDEM_LOG_ALARM, "%s", err.text);
        idem__mysql_disconnect(self);
    }
}

static void
tend(struct idem_store *store, int64_t drop_ms)
{
    struct mysql_store *self = (struct mysql_store *)store;
    int64_t now_us = idem__store_boot_us(&self->base);

    (void)drop_ms;
    if (self->conn)
        check(self, now_us);
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct mysql_store *self = (struct mysql_store *)store;

    each(arg, "mysql_connected", self->conn ? 1 : 0);
    each(arg, "mysql_connects_total", (double)self->connects);
    each(arg, "mysql_splits_total", (double)self->splits);
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct mysql_store *self = (struct mysql_store *)store;

    idem__mysql_disconnect(self);
    idem_buf_clear(&self->query);
    free(self->host);
    free(self->user);
    free(self->password);
    free(self->database);
    free(self->socket);
    free(self->ca);
    free(self->cert);
    free(self->key);
}

/* A record is sent as hex in one packet, together with the column names. */
static size_t
max_record(size_t packet_max)
{
    size_t most = idem__encoded_max(IDEM_RESULT_MAX);
    size_t fits = packet_max > 65536 ? (packet_max - 65536) / 2 : 1024;

    return fits < most ? fits : most;
}

static enum idem_status
parse_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    return idem__mysql_parse((struct mysql_store *)store, url, err);
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status = idem__mysql_parse(self, url, err);

    if (status == IDEM_OK)
        status = idem__mysql_connect(self, err);
    if (status != IDEM_OK)
        return status;
    self->base.max_record = max_record(self->packet_max);
    if (self->unsafe[0])
        idem__log(&store->options, IDEM_LOG_WARNING,
                  "mysql: unsafe=%s: a power cut or a failover may lose "
                  "acknowledged records",
                  self->unsafe);
    say_replicas(self);
    return IDEM_OK;
}

/* Run a script like the mariadb client. DELIMITER lines are for the client
 * itself, and a statement ends where a line ends with the delimiter. */
static enum idem_status
run_script(struct mysql_store *self, const char *script, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    char delimiter[8] = ";";

    idem_buf_reset(&self->query);
    while (*script && status == IDEM_OK) {
        size_t len = strcspn(script, "\n");
        size_t end = strlen(delimiter);

        if (strncasecmp(script, "delimiter ", 10) == 0) {
            snprintf(delimiter, sizeof(delimiter), "%.*s", (int)(len - 10),
                     script + 10);
        } else if (strncmp(script, "--", 2) != 0) {
            bool ends =
                len >= end && strncmp(script + len - end, delimiter, end) == 0;

            idem_buf_add(&self->query, script, ends ? len - end : len);
            idem_buf_add(&self->query, "\n", 1);
            if (ends) {
                if (!idem__mysql_send_query(self) ||
                    !idem__mysql_skip_results(self))
                    status = idem__mysql_fail(self, err);
                idem_buf_reset(&self->query);
            }
        }
        script += len + (script[len] == '\n');
    }
    return status;
}

static enum idem_status
init_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status = idem__mysql_parse(self, url, err);

    self->timeout_s = 60;
    if (status == IDEM_OK)
        status = idem__mysql_connect_bare(self, err);
    return status == IDEM_OK ? run_script(self, idem__mysql_script, err)
                             : status;
}

const struct idem_store_type idem__mysql_store = {
    .scheme = "mysql",
    .size = sizeof(struct mysql_store),
    .share = 192, /* bench/notes.md: from here on two connections are faster */
    .parse = parse_store,
    .open = open_store,
    .swap = idem__mysql_swap,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .sweep = sweep,
    .figures = figures,
    .close = close_store,
    .init = init_store,
};
