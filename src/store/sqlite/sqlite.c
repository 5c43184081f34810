/*
 * sqlite.c - sqlite:FILE keeps records in a table of an SQLite database.
 *
 * It is for one host, and each process has exactly one connection. There are
 * two modes. Both are safe with SQLite 3.40, whose write-ahead log can lose
 * pages when several connections write and checkpoint at once:
 *
 *   sqlite:FILE            rollback journal: other processes may use the file,
 *                          a service's own transactions too
 *   sqlite:FILE?mode=wal   write-ahead log, held by this one connection: it
 *                          is faster, and nobody else can open the file
 *
 * Both use synchronous=FULL, so a commit survives a power cut. SQLite locks the
 * whole file, so while another process writes, a swap waits up to 50 ms and
 * then is LOCKED; swaps that a committed row refuses are still answered.
 */
#include "../columns.h"

#include <assert.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* If the disk has less free space than this, no new record is created: the rest
 * is for the results of executing requests. */
#define RESERVE_LEN (16 * 1024 * 1024)

/* A write of another process ends soon: a reader waits for it, a writer returns
 * "locked" and lets the engine try again. */
#define BUSY_MS 50
#define BUSY_READ_MS 3000
#define SWEEP_ROWS 200
#define SWEEP_ROWS_MAX 3200
#define SWEEP_SHARE 20
#define SWEEP_EVERY_US 500000

enum statement {
    FIND,
    PUT,
    DROP,
    SCAN,
    SCAN_EXECUTING,
    SCAN_ID,
    SWEEP,
    VERSION,
    STATEMENTS
};

struct sqlite_store {
    struct idem_store base;
    char *path;
    bool wal;
    sqlite3 *db; /* NULL: to be opened again */
    sqlite3_stmt *statements[STATEMENTS];
    int64_t sweep_at_us; /* not before */
    int sweep_rows;      /* at most; 0: SWEEP_ROWS */
};

static const char *const texts[STATEMENTS] = {
    [FIND] = "select %s from idem_record where key_hash = ?1",
    [PUT] = "insert or replace into idem_record (%s) values "
            "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,"
            "?19)",
    [DROP] = "delete from idem_record where key_hash = ?1",
    [SCAN] = "select %s, length(result) from idem_record "
             "where key_hash > ?1 order by key_hash limit ?2",
    [SCAN_EXECUTING] = "select %s from idem_record "
                       "where state = 2 and key_hash > ?1 "
                       "order by key_hash limit ?2",
    [SCAN_ID] = "select %s from idem_record where id = ?3 and key_hash > ?1 "
                "order by key_hash limit ?2",
    [SWEEP] = "delete from idem_record where key_hash in "
              "(select key_hash from idem_record where state <> 2 "
              "and expires > 0 and expires < ?1 and fence < (?1 - 1) * 1000 "
              "order by expires limit ?2)",
    [VERSION] = "select max(version) from idem_version",
};

/* ---- errors ---------------------------------------------------------- */

static bool
is_busy(int rc)
{
    return (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED;
}

static enum idem_status
status_of(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_FULL:
        return IDEM_ERR_FULL;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return IDEM_ERR_CORRUPT;
    case SQLITE_NOMEM:
        return IDEM_ERR_MEMORY;
    default:
        return IDEM_ERR_UNAVAILABLE;
    }
}

static enum idem_status
fail(struct sqlite_store *self, int rc, struct idem_error *err)
{
    const char *text = self->db ? sqlite3_errmsg(self->db) : sqlite3_errstr(rc);

    if (strstr(text, "no such table"))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "sqlite: table idem_record is missing in \"%s\": run "
                          "idem store init sqlite:%s",
                          self->path, self->path);
    return idem__fail(err, status_of(rc), "sqlite: \"%s\": %s%s", self->path,
                      text,
                      (rc & 0xff) == SQLITE_CANTOPEN
                          ? ": name a file in a folder that is there and that "
                            "this user can write to"
                          : "");
}

/* ---- the connection -------------------------------------------------- */

static void
finalize(struct sqlite_store *self)
{
    for (int i = 0; i < STATEMENTS; i++) {
        sqlite3_finalize(self->statements[i]);
        self->statements[i] = NULL;
    }
}

static void
disconnect(struct sqlite_store *self)
{
    finalize(self);
    sqlite3_close(self->db);
    self->db = NULL;
}

static int
run(struct sqlite_store *self, const char *sql)
{
    return sqlite3_exec(self->db, sql, NULL, NULL, NULL);
}

static int
prepare(struct sqlite_store *self)
{
    for (int i = 0; i < STATEMENTS; i++) {
        bool all = i == FIND || i == PUT;
        char *sql = sqlite3_mprintf(texts[i], all ? idem__columns_all
                                                  : idem__columns_but_result);
        int rc = sql ? sqlite3_prepare_v3(self->db, sql, -1,
                                          SQLITE_PREPARE_PERSISTENT,
                                          &self->statements[i], NULL)
                     : SQLITE_NOMEM;

        sqlite3_free(sql);
        if (rc != SQLITE_OK)
            return rc;
    }
    return SQLITE_OK;
}

/* The version of the tables; 0: some of them are missing. The busy timeout is
 * still that of reading. */
static int
read_version(struct sqlite_store *self, int64_t *version)
{
    sqlite3_stmt *s;
    int rc = prepare(self);

    *version = 0;
    if (rc != SQLITE_OK)
        return rc == SQLITE_ERROR ? SQLITE_OK : rc; /* no such table */
    s = self->statements[VERSION];
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        *version = sqlite3_column_int64(s, 0);
    sqlite3_reset(s);
    return rc == SQLITE_ROW ? SQLITE_OK : rc;
}

/*
 * Create the tables when a new file is opened, so no init step is needed. It is
 * one transaction, so that another process sees all of it or nothing;
 * "immediate" waits for a process that is doing it now.
 */
static enum idem_status
set_up(struct sqlite_store *self, struct idem_error *err)
{
    int64_t version;
    int rc = read_version(self, &version);

    if (rc == SQLITE_OK && version == 0) {
        finalize(self);
        rc = run(self, "begin immediate");
        if (rc == SQLITE_OK)
            rc = run(self, idem__sqlite_script);
        if (rc == SQLITE_OK)
            rc = run(self, "commit");
        if (rc == SQLITE_OK)
            rc = read_version(self, &version);
    }
    return rc == SQLITE_OK ? idem__schema_judge("sqlite", version, err)
                           : fail(self, rc, err);
}

/* A new file is accessible only to this user, and SQLite gives -journal, -wal
 * and -shm the same mode. An existing file keeps its mode. */
static void
guard_file(struct sqlite_store *self)
{
    int fd = open(self->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat info;

    if (fd >= 0)
        close(fd);
    else if (stat(self->path, &info) == 0 && S_ISREG(info.st_mode) &&
             (info.st_mode & S_IRWXO) != 0)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "sqlite: \"%s\" and the results in it are open to every user "
                  "of this machine: chmod o= it",
                  self->path);
}

static enum idem_status
connect_store(struct sqlite_store *self, struct idem_error *err)
{
    const char *mode = self->wal ? "pragma locking_mode=exclusive;"
                                   "pragma journal_mode=wal;"
                                 : "pragma journal_mode=persist;";
    enum idem_status status;
    int rc;

    if (self->db)
        return IDEM_OK;
    guard_file(self);
    rc = sqlite3_open_v2(
        self->path, &self->db,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(self->db, BUSY_READ_MS); /* set_up reads */
    if (rc == SQLITE_OK)
        rc = run(self, mode);
    if (rc == SQLITE_OK)
        rc = run(self, "pragma synchronous=full; pragma trusted_schema=off");
    status = rc == SQLITE_OK ? set_up(self, err) : fail(self, rc, err);
    if (status == IDEM_OK) {
        sqlite3_busy_timeout(self->db, BUSY_MS);
        return IDEM_OK;
    }
    disconnect(self);
    return status;
}

/* ---- rows ------------------------------------------------------------ */

static int
bind_cell(sqlite3_stmt *s, int at, enum idem_column_type type,
          const struct idem_cell *cell)
{
    if (cell->null)
        return sqlite3_bind_null(s, at);
    if (type == IDEM_COLUMN_BYTES)
        return sqlite3_bind_blob64(s, at, cell->bytes.data, cell->bytes.len,
                                   SQLITE_STATIC);
    return sqlite3_bind_int64(s, at, cell->number);
}

static void
read_cells(sqlite3_stmt *s, int columns,
           struct idem_cell cells[IDEM_COLUMN_COUNT])
{
    memset(cells, 0, IDEM_COLUMN_COUNT * sizeof(*cells));
    for (int i = 0; i < columns; i++) {
        cells[i].null = sqlite3_column_type(s, i) == SQLITE_NULL;
        cells[i].number = sqlite3_column_int64(s, i);
        if (idem__column_types[i] == IDEM_COLUMN_BYTES) {
            cells[i].bytes.data = sqlite3_column_blob(s, i);
            cells[i].bytes.len = (size_t)sqlite3_column_bytes(s, i);
        }
    }
}

/* Read one row into the arena. *rc is SQLITE_ROW, SQLITE_DONE or an error. */
static enum idem_status
find(struct sqlite_store *self, const uint8_t *key, struct idem_arena *arena,
     struct idem_record *record, int *rc, struct idem_error *err)
{
    sqlite3_stmt *s = self->statements[FIND];
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    enum idem_status status = IDEM_OK;
    struct idem_record r;

    record->state = IDEM_STATE_ABSENT;
    record->rev = 0;
    sqlite3_bind_blob(s, 1, key, IDEM_KEY_LEN, SQLITE_STATIC);
    *rc = sqlite3_step(s);
    if (*rc == SQLITE_ROW) {
        read_cells(s, IDEM_COLUMN_COUNT, cells);
        status = idem__cells_to_record(cells, &r, err);
        if (status == IDEM_OK && !idem_arena_record(arena, &r, record))
            status = idem__fail(err, IDEM_ERR_MEMORY, "sqlite: out of memory");
    } else if (*rc != SQLITE_DONE) {
        status = fail(self, *rc, err);
    }
    sqlite3_reset(s);
    return status;
}

static int
write_row(struct sqlite_store *self, const struct idem_swap *swap)
{
    sqlite3_stmt *s = self->statements[swap->record ? PUT : DROP];
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    int rc = SQLITE_OK;

    if (swap->record) {
        idem__record_to_cells(swap->key, swap->record, cells);
        for (int i = 0; i < IDEM_COLUMN_COUNT && rc == SQLITE_OK; i++)
            rc = bind_cell(s, i + 1, idem__column_types[i], &cells[i]);
    } else {
        rc = sqlite3_bind_blob(s, 1, swap->key, IDEM_KEY_LEN, SQLITE_STATIC);
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    sqlite3_reset(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* ---- swap ------------------------------------------------------------ */

/* Decide one swap by the stored row; STORED still has to be written. */
static enum idem_status
compare(struct sqlite_store *self, struct idem_swap *swap,
        struct idem_arena *arena, bool *write, int *rc, struct idem_error *err)
{
    enum idem_status status =
        find(self, swap->key, arena, &swap->found, rc, err);

    *write = false;
    if (status != IDEM_OK)
        return status;
    swap->outcome = IDEM_SWAP_STORED;
    if (swap->record && swap->found.rev == swap->record->rev)
        return IDEM_OK;
    if (swap->found.rev == swap->expected)
        *write = true;
    else
        swap->outcome = IDEM_SWAP_REFUSED;
    return IDEM_OK;
}

/* Another process writes: swaps that a committed row decides are answered, the
 * others are LOCKED. */
static enum idem_status
answer_locked(struct sqlite_store *self, struct idem_swap *swaps, size_t count,
              struct idem_arena *arena)
{
    for (size_t i = 0; i < count; i++) {
        bool write = false;
        int rc;

        if (compare(self, &swaps[i], arena, &write, &rc, NULL) != IDEM_OK ||
            write)
            swaps[i].outcome = IDEM_SWAP_LOCKED;
    }
    return IDEM_OK;
}

static enum idem_status
undo(struct sqlite_store *self, int rc, struct idem_swap *swaps, size_t count,
     struct idem_arena *arena, struct idem_error *err)
{
    enum idem_status status = is_busy(rc) ? IDEM_OK : fail(self, rc, err);

    if (!sqlite3_get_autocommit(self->db))
        run(self, "rollback");
    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    if (is_busy(rc))
        return answer_locked(self, swaps, count, arena);
    return status;
}

static enum idem_status
commit(struct sqlite_store *self, struct idem_swap *swaps, size_t count,
       struct idem_arena *arena, struct idem_error *err)
{
    int rc = run(self, "commit");

    if (rc == SQLITE_OK)
        return IDEM_OK;
    if (is_busy(rc) || (rc & 0xff) == SQLITE_FULL)
        return undo(self, rc, swaps, count, arena, err);

    /* What reached the disk is not known until a new connection has rolled back
     * the journal. */
    fail(self, rc, err);
    if (err)
        err->status = IDEM_ERR_LOST;
    disconnect(self);
    idem__swaps_set(swaps, count, IDEM_SWAP_LOST);
    return IDEM_ERR_LOST;
}

static bool
is_nearly_full(const struct sqlite_store *self)
{
    struct statvfs disk;

    return statvfs(self->path, &disk) == 0 &&
           disk.f_bavail < RESERVE_LEN / disk.f_frsize;
}

static enum idem_status
refuse_new(struct sqlite_store *self, struct idem_swap *swap,
           struct idem_error *err)
{
    swap->outcome = IDEM_SWAP_NOT_STORED;
    return idem__fail(err, IDEM_ERR_FULL,
                      "sqlite: \"%s\": less than %d MiB are left on the disk, "
                      "so it takes no new records; make room",
                      self->path, RESERVE_LEN >> 20);
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct sqlite_store *self = (struct sqlite_store *)store;
    enum idem_status status = connect_store(self, err), full = IDEM_OK;
    bool wrote = false, nearly_full;
    int rc;

    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    if (status != IDEM_OK)
        return status;
    rc = run(self, "begin immediate");
    if (rc != SQLITE_OK)
        return undo(self, rc, swaps, count, arena, err);

    nearly_full = is_nearly_full(self);
    for (size_t i = 0; i < count; i++) {
        bool write;

        status = compare(self, &swaps[i], arena, &write, &rc, err);
        if (status == IDEM_OK && write && swaps[i].expected == 0 &&
            nearly_full) {
            full = refuse_new(self, &swaps[i], err);
        } else if (status == IDEM_OK && write) {
            rc = write_row(self, &swaps[i]);
            wrote = true;
            if (rc != SQLITE_OK)
                return undo(self, rc, swaps, count, arena, err);
        }
        if (status != IDEM_OK) {
            run(self, "rollback");
            idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
            return status;
        }
    }
    if (wrote) {
        status = commit(self, swaps, count, arena, err);
        return status == IDEM_OK ? full : status;
    }
    run(self, "rollback");
    return full;
}

/* ---- load, scan, tend ------------------------------------------------ */

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct sqlite_store *self = (struct sqlite_store *)store;
    enum idem_status status = connect_store(self, err);

    if (status == IDEM_OK)
        sqlite3_busy_timeout(self->db, BUSY_READ_MS);
    for (size_t i = 0; i < count && status == IDEM_OK; i++) {
        int rc;

        status = find(self, loads[i].key, arena, &loads[i].record, &rc, err);
        if (status == IDEM_OK && !loads[i].with_result)
            loads[i].record.result = (struct idem_bytes){NULL, 0};
    }
    if (self->db)
        sqlite3_busy_timeout(self->db, BUSY_MS);
    return status;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_query *query,
             struct idem_error *err)
{
    struct sqlite_store *self = (struct sqlite_store *)store;
    struct idem_bytes id = query->filter->id;
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    struct idem_rows rows;
    enum idem_status status = idem__rows_start(&rows, query, err);
    sqlite3_stmt *s;
    int rc = SQLITE_OK;

    if (status == IDEM_OK)
        status = connect_store(self, err);
    if (status != IDEM_OK)
        return status;
    s = self->statements[id.len > 0       ? SCAN_ID
                         : rows.executing ? SCAN_EXECUTING
                                          : SCAN];
    /* Without memory for its copy a parameter is null, which finds no row. */
    if (id.len > 0)
        rc = sqlite3_bind_blob(s, 3, id.data, (int)id.len, SQLITE_TRANSIENT);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(s, 1, rows.last, (int)rows.last_len,
                               SQLITE_TRANSIENT);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(s, 2, (int64_t)rows.limit);
    if (rc != SQLITE_OK)
        status = fail(self, rc, err);
    rc = SQLITE_DONE;
    while (status == IDEM_OK && !rows.over &&
           (rc = sqlite3_step(s)) == SQLITE_ROW) {
        read_cells(s, IDEM_COLUMN_RESULT, cells);
        status =
            idem__rows_give(&rows, cells,
                            sqlite3_column_count(s) > IDEM_COLUMN_RESULT
                                ? sqlite3_column_int64(s, IDEM_COLUMN_RESULT)
                                : 0,
                            err);
    }
    if (status == IDEM_OK && !rows.over && rc != SQLITE_DONE)
        status = fail(self, rc, err);
    sqlite3_reset(s);
    if (status == IDEM_OK)
        idem__rows_end(&rows);
    return status;
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct sqlite_store *self = (struct sqlite_store *)store;

    (void)err;
    *now_us = self->base.clocks->wall_us(self->base.clocks->arg);
    return IDEM_OK;
}

/* A full batch shows that there is more. Then the next batch is larger, because
 * a commit costs more than many rows. All batches together take one part in
 * SWEEP_SHARE of the time. */
static void
tend(struct idem_store *store, int64_t drop_ms)
{
    struct sqlite_store *self = (struct sqlite_store *)store;
    int64_t now_us = idem__store_boot_us(&self->base);
    sqlite3_stmt *s = self->statements[SWEEP];
    int64_t took_us;
    bool full;

    if (!self->db || drop_ms <= 0 || now_us < self->sweep_at_us)
        return;
    if (self->sweep_rows == 0)
        self->sweep_rows = SWEEP_ROWS;
    sqlite3_bind_int64(s, 1, drop_ms);
    sqlite3_bind_int64(s, 2, self->sweep_rows);
    full = sqlite3_step(s) == SQLITE_DONE && /* not: it is busy, try later */
           sqlite3_changes(self->db) == self->sweep_rows;
    sqlite3_reset(s);
    took_us = idem__store_boot_us(&self->base) - now_us;
    self->sweep_at_us =
        now_us + (full ? took_us * SWEEP_SHARE : SWEEP_EVERY_US);
    if (!full)
        self->sweep_rows = SWEEP_ROWS;
    else if (self->sweep_rows < SWEEP_ROWS_MAX)
        self->sweep_rows *= 2;
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct sqlite_store *self = (struct sqlite_store *)store;

    each(arg, "sqlite_connected", self->db ? 1 : 0);
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct sqlite_store *self = (struct sqlite_store *)store;

    disconnect(self);
    free(self->path);
}

static enum idem_status
parse_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct sqlite_store *self = (struct sqlite_store *)store;
    char mode[16] = "rollback";

    self->path = strdup(url + strlen("sqlite:"));
    if (!self->path)
        return idem__fail(err, IDEM_ERR_MEMORY, "sqlite: out of memory");
    idem__url_take(self->path, "mode", mode, sizeof(mode));
    if (strcmp(mode, "wal") != 0 && strcmp(mode, "rollback") != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "sqlite: mode=%s: use mode=rollback or mode=wal",
                          mode);
    self->wal = strcmp(mode, "wal") == 0;
    if (self->path[0] == 0 || strchr(self->path, '?') ||
        strncmp(self->path, ":memory:", 8) == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\": write sqlite:FILE or sqlite:FILE?mode=wal",
                          url);
    return IDEM_OK;
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct sqlite_store *self = (struct sqlite_store *)store;
    enum idem_status status = parse_store(store, url, err);

    return status == IDEM_OK ? connect_store(self, err) : status;
}

/* Opening creates the tables; this adds what a file of an older version
 * lacks. */
static enum idem_status
init_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct sqlite_store *self = (struct sqlite_store *)store;
    enum idem_status status = open_store(store, url, err);
    int rc;

    if (status != IDEM_OK)
        return status;
    rc = run(self, idem__sqlite_script);
    return rc == SQLITE_OK ? IDEM_OK : fail(self, rc, err);
}

const struct idem_store_type idem__sqlite_store = {
    .scheme = "sqlite",
    .size = sizeof(struct sqlite_store),
    .parse = parse_store,
    .open = open_store,
    .swap = swap_batch,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .figures = figures,
    .close = close_store,
    .init = init_store,
};
