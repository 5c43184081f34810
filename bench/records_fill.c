/*
 * records_fill.c - fills a journal with finished requests, faster than a server
 * could: nothing is synced.
 *
 *   records_fill DIR FROM COUNT
 *
 * The requests have the scope "fill" and the ids FROM, FROM + 1, ...; the
 * result of each is its id.
 */
#include "../src/store/journal/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 2000

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static void
no_log(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)text;
}

static void
fill(struct idem_store *store, uint64_t from, uint64_t count)
{
    static struct idem_record records[BATCH];
    static struct idem_swap swaps[BATCH];
    static char ids[BATCH][24];
    struct idem_arena arena = {NULL, 0};
    struct idem_error err;
    int64_t now_ms = (int64_t)time(NULL) * 1000;

    for (uint64_t i = 0; i < count; i++) {
        int len = snprintf(ids[i], sizeof(ids[i]), "%" PRIu64, from + i);
        struct idem_bytes id = {ids[i], (size_t)len};

        records[i] = (struct idem_record){
            .type = IDEM_TYPE_REQUEST,
            .state = IDEM_STATE_SUCCEEDED,
            .attempt = 1,
            .fence = (uint64_t)now_ms * 1000,
            .rev = idem__new_rev(),
            .created = now_ms,
            .updated = now_ms,
            .expires = now_ms + INT64_C(7) * 86400000,
            .scope = idem_text("fill"),
            .id = id,
            .result = id,
        };
        swaps[i] = (struct idem_swap){.record = &records[i]};
        idem__key(IDEM_TYPE_REQUEST, records[i].scope, id, swaps[i].key);
    }
    if (store->type->swap(store, swaps, (size_t)count, &arena, &err) !=
        IDEM_OK) {
        fprintf(stderr, "records_fill: %s\n", err.text);
        exit(1);
    }
    idem_arena_clear(&arena);
}

int
main(int argc, char **argv)
{
    struct idem_io io = idem__system_io;
    struct journal_tuning tuning = {.io = &io};
    struct idem_store_options options = {.log = no_log};
    uint64_t from = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
    uint64_t count = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
    struct idem_store *store;
    struct idem_error err;
    char url[4200];

    if (count == 0) {
        fprintf(stderr, "usage: records_fill DIR FROM COUNT\n");
        return 2;
    }
    io.fsync = io.fdatasync = no_sync;
    snprintf(url, sizeof(url), "journal:%s", argv[1]);
    if (idem__journal_open(url, &options, &tuning, &store, &err) != IDEM_OK) {
        fprintf(stderr, "records_fill: %s\n", err.text);
        return 1;
    }
    for (uint64_t i = 0; i < count; i += BATCH)
        fill(store, from + i, count - i < BATCH ? count - i : BATCH);
    idem__store_close(store);
    return 0;
}
