/*
 * journal_bench.c - durable compare-and-swap in batches, side by side.
 *
 *   journal_bench swaps FOLDER [PRELOAD]    against raw log, LMDB, RocksDB,
 *                                           SQLite, one sync a batch
 *   journal_bench fill FOLDER [RECORDS]     a journal to start with
 *   journal_bench open FOLDER               index memory and start-up, with and
 *   journal_bench reread FOLDER             without saved indexes
 *
 * Every contestant does the same: for each of a batch of fresh 32-byte keys,
 * look that the key is absent, then write a record of 256 bytes; one durable
 * commit a batch. "raw" writes the bytes that the journal writes, to a growing
 * file, with one fdatasync, and looks nothing up. Rounds alternate between the
 * contestants, the median round counts. Only the store's time is counted.
 */
#include "../src/store/journal/journal.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <lmdb.h>
#include <rocksdb/c.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BATCH_MAX 8192
#define RECORD_LEN 256
#define ROUNDS 5
#define ROUND_SECONDS 0.4

static const size_t sizes[] = {1, 32, 128, 512};

static void
die(const char *what)
{
    fprintf(stderr, "journal_bench: %s\n", what);
    exit(1);
}

static double
seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t
next_random(void)
{
    static uint64_t seed = 42;
    uint64_t z = seed += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* A batch of fresh keys and records, sorted as the engine does. */
struct batch {
    struct idem_swap swaps[BATCH_MAX];
    struct idem_record records[BATCH_MAX];
    uint8_t bytes[BATCH_MAX][RECORD_LEN];
    size_t count;
};

static int
by_key(const void *a, const void *b)
{
    return memcmp(((const struct idem_swap *)a)->key,
                  ((const struct idem_swap *)b)->key, IDEM_KEY_LEN);
}

static void
fill(struct batch *batch, size_t count)
{
    static uint8_t result[RECORD_LEN];

    batch->count = count;
    for (size_t i = 0; i < count; i++) {
        struct idem_record *r = &batch->records[i];
        struct idem_swap *swap = &batch->swaps[i];

        memset(swap, 0, sizeof(*swap));
        for (size_t k = 0; k < IDEM_KEY_LEN; k += 8) {
            uint64_t part = next_random();

            memcpy(swap->key + k, &part, 8);
        }
        memset(r, 0, sizeof(*r));
        r->type = IDEM_TYPE_REQUEST;
        r->state = IDEM_STATE_SUCCEEDED;
        r->attempt = 1;
        r->fence = 1 + i;
        r->rev = next_random() | 1;
        r->created = r->updated = INT64_C(1700000000000);
        r->expires = INT64_C(4000000000000);
        r->scope = idem_text("bench");
        r->id = idem_text("a-request-id-of-36-bytes-as-uuids-are");
        r->result = (struct idem_bytes){result, 0};
        r->result.len = RECORD_LEN - idem__encoded_len(r);
    }
    qsort(batch->swaps, count, sizeof(batch->swaps[0]), by_key);
    for (size_t i = 0; i < count; i++) {
        batch->swaps[i].record = &batch->records[i];
        idem__encode(&batch->records[i], batch->bytes[i]);
    }
}

/* ---- contestants: each commits a batch, durably or (to preload) not ---- */

struct contestant {
    const char *name;
    void (*open)(const char *dir);
    void (*commit)(struct batch *batch, bool durable);
    void (*close)(void);
    bool no_preload;
};

struct path {
    char text[4096];
};

static struct path
in_folder(const char *dir, const char *name)
{
    struct path path;

    if (snprintf(path.text, sizeof(path.text), "%s/%s", dir, name) >=
        (int)sizeof(path.text))
        die("a path is too long");
    return path;
}

static int raw_fd;
static uint64_t raw_at;
static uint8_t raw_bytes[BATCH_MAX * 512];

static void
raw_open(const char *dir)
{
    struct path path = in_folder(dir, "raw");

    raw_fd = open(path.text, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (raw_fd < 0)
        die("raw: open");
}

static void
raw_commit(struct batch *batch, bool durable)
{
    size_t len = batch->count * (size_t)entry_len(RECORD_LEN);

    (void)durable;
    if (pwrite(raw_fd, raw_bytes, len, (off_t)raw_at) != (ssize_t)len ||
        fdatasync(raw_fd) != 0)
        die("raw: write");
    raw_at += len;
}

static void
raw_close(void)
{
    close(raw_fd);
}

static struct idem_store *journal;

static void
journal_open(const char *dir)
{
    struct idem_error err;
    char url[4200];

    snprintf(url, sizeof(url), "journal:%s/journal", dir);
    if (idem__store_open(url, NULL, &journal, &err) != IDEM_OK)
        die(err.text);
}

static void
journal_commit(struct batch *batch, bool durable)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_error err;
    static int calls;

    (void)durable;
    if (journal->type->swap(journal, batch->swaps, batch->count, &arena,
                            &err) != IDEM_OK)
        die(err.text);
    if (++calls % 64 == 0)
        journal->type->tend(journal, 0);
    if (batch->swaps[0].outcome != IDEM_SWAP_STORED)
        die("journal: not stored");
}

static void
journal_close(void)
{
    idem__store_close(journal);
}

static MDB_env *lmdb;
static MDB_dbi lmdb_dbi;

static void
lmdb_open(const char *dir)
{
    struct path path = in_folder(dir, "lmdb");
    MDB_txn *txn;

    if (mdb_env_create(&lmdb) ||
        mdb_env_set_mapsize(lmdb, UINT64_C(16) << 30) ||
        mdb_env_open(lmdb, path.text, MDB_NOSUBDIR, 0600) ||
        mdb_txn_begin(lmdb, NULL, 0, &txn) ||
        mdb_dbi_open(txn, NULL, 0, &lmdb_dbi) || mdb_txn_commit(txn))
        die("lmdb: open");
}

static void
lmdb_commit(struct batch *batch, bool durable)
{
    MDB_txn *txn;

    mdb_env_set_flags(lmdb, MDB_NOSYNC, !durable);
    if (mdb_txn_begin(lmdb, NULL, 0, &txn))
        die("lmdb: begin");
    for (size_t i = 0; i < batch->count; i++) {
        MDB_val key = {IDEM_KEY_LEN, batch->swaps[i].key}, there;
        MDB_val value = {RECORD_LEN, batch->bytes[i]};

        if (mdb_get(txn, lmdb_dbi, &key, &there) != MDB_NOTFOUND ||
            mdb_put(txn, lmdb_dbi, &key, &value, 0))
            die("lmdb: put");
    }
    if (mdb_txn_commit(txn))
        die("lmdb: commit");
}

static void
lmdb_close(void)
{
    mdb_env_close(lmdb);
}

static rocksdb_t *rocks;
static rocksdb_options_t *rocks_options;
static rocksdb_readoptions_t *rocks_read;
static rocksdb_writeoptions_t *rocks_write;

static void
rocks_open(const char *dir)
{
    struct path path = in_folder(dir, "rocksdb");
    rocksdb_block_based_table_options_t *table =
        rocksdb_block_based_options_create();
    char *error = NULL;

    rocks_options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(rocks_options, 1);
    rocksdb_options_increase_parallelism(rocks_options, 2);
    rocksdb_options_set_compression(rocks_options, rocksdb_no_compression);
    rocksdb_block_based_options_set_filter_policy(
        table, rocksdb_filterpolicy_create_bloom(10));
    rocksdb_options_set_block_based_table_factory(rocks_options, table);
    rocks = rocksdb_open(rocks_options, path.text, &error);
    if (error)
        die(error);
    rocks_read = rocksdb_readoptions_create();
    rocks_write = rocksdb_writeoptions_create();
    rocksdb_block_based_options_destroy(table);
}

static void
rocks_commit(struct batch *batch, bool durable)
{
    rocksdb_writebatch_t *writes = rocksdb_writebatch_create();
    char *error = NULL;

    rocksdb_writeoptions_set_sync(rocks_write, durable);
    for (size_t i = 0; i < batch->count; i++) {
        const char *key = (const char *)batch->swaps[i].key;
        size_t len;
        char *there =
            rocksdb_get(rocks, rocks_read, key, IDEM_KEY_LEN, &len, &error);

        if (error || there)
            die("rocksdb: get");
        rocksdb_writebatch_put(writes, key, IDEM_KEY_LEN,
                               (const char *)batch->bytes[i], RECORD_LEN);
    }
    rocksdb_write(rocks, rocks_write, writes, &error);
    if (error)
        die(error);
    rocksdb_writebatch_destroy(writes);
}

static void
rocks_close(void)
{
    rocksdb_close(rocks);
    rocksdb_options_destroy(rocks_options);
    rocksdb_readoptions_destroy(rocks_read);
    rocksdb_writeoptions_destroy(rocks_write);
}

static sqlite3 *sqlite;
static sqlite3_stmt *sqlite_put;

static void
sqlite_run(const char *sql)
{
    if (sqlite3_exec(sqlite, sql, NULL, NULL, NULL) != SQLITE_OK)
        die(sqlite3_errmsg(sqlite));
}

static void
sqlite_open(const char *dir)
{
    struct path path = in_folder(dir, "sqlite");

    if (sqlite3_open(path.text, &sqlite) != SQLITE_OK)
        die("sqlite: open");
    sqlite_run("pragma journal_mode=wal; pragma synchronous=full;"
               "pragma cache_size=-262144;"
               "create table record (key blob primary key, rev integer, "
               "body blob) without rowid");
    if (sqlite3_prepare_v2(sqlite,
                           "insert into record values (?, ?, ?) "
                           "on conflict do nothing",
                           -1, &sqlite_put, NULL) != SQLITE_OK)
        die(sqlite3_errmsg(sqlite));
}

static void
sqlite_commit(struct batch *batch, bool durable)
{
    sqlite_run(durable ? "pragma synchronous=full" : "pragma synchronous=off");
    sqlite_run("begin immediate");
    for (size_t i = 0; i < batch->count; i++) {
        sqlite3_bind_blob(sqlite_put, 1, batch->swaps[i].key, IDEM_KEY_LEN,
                          SQLITE_STATIC);
        sqlite3_bind_int64(sqlite_put, 2, (sqlite3_int64)batch->records[i].rev);
        sqlite3_bind_blob(sqlite_put, 3, batch->bytes[i], RECORD_LEN,
                          SQLITE_STATIC);
        if (sqlite3_step(sqlite_put) != SQLITE_DONE ||
            sqlite3_changes(sqlite) != 1)
            die(sqlite3_errmsg(sqlite));
        sqlite3_reset(sqlite_put);
    }
    sqlite_run("commit");
}

static void
sqlite_close(void)
{
    sqlite3_finalize(sqlite_put);
    sqlite3_close(sqlite);
}

static const struct contestant contestants[] = {
    {"raw log", raw_open, raw_commit, raw_close, true},
    {"journal", journal_open, journal_commit, journal_close, false},
    {"LMDB", lmdb_open, lmdb_commit, lmdb_close, false},
    {"RocksDB", rocks_open, rocks_commit, rocks_close, false},
    {"SQLite", sqlite_open, sqlite_commit, sqlite_close, false},
};

#define CONTESTANTS (sizeof(contestants) / sizeof(contestants[0]))

static double
one_round(const struct contestant *c, struct batch *batch, size_t count)
{
    double spent = 0;
    size_t done = 0;

    while (spent < ROUND_SECONDS || done < count) {
        double from;

        fill(batch, count);
        from = seconds();
        c->commit(batch, true);
        spent += seconds() - from;
        done += count;
    }
    return (double)done / spent;
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void
race(struct batch *batch, size_t count)
{
    double rates[CONTESTANTS][ROUNDS], best = 0;

    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t c = 0; c < CONTESTANTS; c++)
            rates[c][round] = one_round(&contestants[c], batch, count);
    }
    printf("%6zu", count);
    for (size_t c = 0; c < CONTESTANTS; c++) {
        qsort(rates[c], ROUNDS, sizeof(double), by_size);
        printf(" %10.0f", rates[c][ROUNDS / 2]);
        if (c > 1 && rates[c][ROUNDS / 2] > best)
            best = rates[c][ROUNDS / 2];
    }
    printf(" %9.2f %9.1f\n", rates[1][ROUNDS / 2] / rates[0][ROUNDS / 2],
           rates[1][ROUNDS / 2] / best);
    fflush(stdout);
}

static void
swaps(const char *dir, size_t preload)
{
    struct batch *batch = calloc(1, sizeof(*batch));

    if (!batch)
        die("out of memory");
    for (size_t c = 0; c < CONTESTANTS; c++) {
        contestants[c].open(dir);
        for (size_t n = 0; n < preload && !contestants[c].no_preload;
             n += BATCH_MAX) {
            fill(batch, BATCH_MAX);
            contestants[c].commit(batch, false);
        }
    }
    sync();
    printf("swaps/s, durable, %d-byte records, %zu there before\n", RECORD_LEN,
           preload);
    printf("%6s", "batch");
    for (size_t c = 0; c < CONTESTANTS; c++)
        printf(" %10s", contestants[c].name);
    printf(" %9s %9s\n", "to raw", "to best");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        race(batch, sizes[i]);
    for (size_t c = 0; c < CONTESTANTS; c++)
        contestants[c].close();
    free(batch);
}

/* ---- start-up and memory ---- */

#define LOAD_ROWS 10000 /* records of the index that are loaded in one go */

static double
resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0, skip;

    if (!file || fscanf(file, "%ld %ld", &skip, &pages) != 2)
        die("no /proc/self/statm");
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void
remove_saved(const char *dir)
{
    struct path path = in_folder(dir, "journal");
    DIR *folder = opendir(path.text);
    struct dirent *file;

    while (folder && (file = readdir(folder))) {
        struct path at = in_folder(path.text, file->d_name);

        if (strstr(file->d_name, ".idx"))
            unlink(at.text);
    }
    if (folder)
        closedir(folder);
}

static void
timed_open(const char *dir, const char *how)
{
    double before, from, opened, took, memory;
    struct journal *self;
    clock_t cpu;

    before = resident_bytes();
    from = seconds();
    cpu = clock();
    journal_open(dir);
    opened = seconds() - from;
    self = (struct journal *)journal;
    while (idem__load_left(self) > 0) /* as the engine does beside its work */
        idem__load_some(self, LOAD_ROWS);
    took = seconds() - from;
    cpu = clock() - cpu;
    memory = resident_bytes() - before;
    printf("opened after %.2f s\n", opened);
    printf("start-up %s saved indexes: %zu records in %.2f s, %.2f M "
           "records/s\n",
           how, self->index.count, took,
           (double)self->index.count / took / 1e6);
    printf("  %.2f s of processor time\n", (double)cpu / CLOCKS_PER_SEC);
    printf("  index: %.1f bytes a record; the process grew by %.1f a record\n",
           (double)self->index.bytes / (double)self->index.count,
           memory / (double)self->index.count);
    journal_close();
}

static void
fill_folder(const char *dir, size_t records)
{
    struct batch *batch = calloc(1, sizeof(*batch));

    if (!batch)
        die("out of memory");
    journal_open(dir);
    for (size_t n = 0; n < records; n += BATCH_MAX) {
        fill(batch, records - n < BATCH_MAX ? records - n : BATCH_MAX);
        journal_commit(batch, true);
    }
    journal_close();
    free(batch);
}

int
main(int argc, char **argv)
{
    size_t count = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;

    if (argc >= 3 && strcmp(argv[1], "swaps") == 0)
        swaps(argv[2], count ? count : 1000000);
    else if (argc >= 3 && strcmp(argv[1], "fill") == 0)
        fill_folder(argv[2], count ? count : 5000000);
    else if (argc >= 3 && strcmp(argv[1], "open") == 0)
        timed_open(argv[2], "with");
    else if (argc >= 3 && strcmp(argv[1], "reread") == 0) {
        remove_saved(argv[2]);
        timed_open(argv[2], "without");
    } else
        die("usage: journal_bench swaps|fill|open|reread FOLDER [COUNT]");
    return 0;
}
