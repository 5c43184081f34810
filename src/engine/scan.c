/*
 * scan.c - lists records. Only one thread at a time calls a store, so scans
 * wait in the queue like all operations.
 */
#include "inner.h"

#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 10000

/* Records are collected first and reported afterwards. */
struct scan_found {
    struct idem_engine
        *engine; /* opens sealed records; NULL: they are not sealed */
    struct idem_arena arena;
    struct idem_record *records;
    size_t count, room;
    bool failed;
};

static bool
collect(void *arg, const struct idem_record *record)
{
    struct scan_found *found = arg;
    struct idem_record bare = *record;
    struct idem_record *records = idem__grow(found->records, found->count,
                                             &found->room, sizeof(*records));

    if (!records) {
        found->failed = true;
        return false;
    }
    found->records = records;
    bare.result = (struct idem_bytes){NULL, 0};
    if (found->engine)
        idem__sealed_open_scanned(found->engine, &bare, &found->arena);
    if (!idem_arena_record(&found->arena, &bare,
                           &found->records[found->count])) {
        found->failed = true;
        return false;
    }
    found->count++;
    return true;
}

void
idem__scan_run(struct idem_engine *engine, struct idem__scan *scan)
{
    struct scan_found found = {.engine = engine};
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status = IDEM_OK;

    idem__time_update(engine);
    if (scan->waiters) {
        idem__park_list(engine, scan->count, collect, &found);
        memcpy(scan->cursor.text, "0", 2);
    } else {
        status = engine->store->type->scan(
            engine->store,
            &(struct idem_query){&scan->filter, &engine->now, &scan->cursor,
                                 scan->count, collect, &found, false},
            &err);
    }
    if (found.failed)
        status = idem__fail(&err, IDEM_ERR_MEMORY, "out of memory");
    if (status == IDEM_OK)
        scan->done(scan->arg, IDEM_OK, found.records, found.count,
                   &scan->cursor, NULL);
    else
        scan->done(scan->arg, status, NULL, 0, NULL, &err);
    idem_arena_clear(&found.arena);
    free(found.records);
    free(scan);
}

/* Copy the bytes into memory that lives as long as the scan. */
static void
own_bytes(struct idem_bytes *bytes, char *to)
{
    if (bytes->len > 0)
        bytes->data = memcpy(to, bytes->data, bytes->len);
}

/* Hand the scan to the engine; if that fails, free it. */
static enum idem_status
put(struct idem_engine *engine, struct idem__scan *scan,
    idem__scan_done_fn *done, void *arg, struct idem_error *err)
{
    scan->item.kind = IDEM__ITEM_SCAN;
    scan->done = done;
    scan->arg = arg;
    if (idem__queue_put(engine, &scan->item))
        return IDEM_OK;
    free(scan);
    return idem__fail(err, IDEM_ERR_CLOSED, "the engine is shutting down");
}

enum idem_status
idem__scan_submit(struct idem_engine *engine, const struct idem_filter *filter,
                  const struct idem_cursor *cursor, size_t count,
                  idem__scan_done_fn *done, void *arg, struct idem_error *err)
{
    const struct idem_filter all = {0};
    struct idem__scan *scan;

    filter = filter ? filter : &all;
    scan = calloc(1, sizeof(*scan) + filter->scope.len + filter->id.len);
    if (!scan)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (filter && IDEM__ROOM_CHECK(filter, err) != IDEM_OK) {
        free(scan);
        return IDEM_ERR_UNSUPPORTED;
    }
    scan->filter = *filter;
    own_bytes(&scan->filter.scope, (char *)(scan + 1));
    own_bytes(&scan->filter.id, (char *)(scan + 1) + filter->scope.len);
    scan->cursor = *cursor;
    scan->cursor.text[sizeof(scan->cursor.text) - 1] = 0;
    if (scan->cursor.text[0] == 0)
        memcpy(scan->cursor.text, "0", 2);
    scan->count = count < 1 ? 1 : count > MAX_COUNT ? MAX_COUNT : count;
    return put(engine, scan, done, arg, err);
}

enum idem_status
idem__waiters_submit(struct idem_engine *engine, size_t count,
                     idem__scan_done_fn *done, void *arg,
                     struct idem_error *err)
{
    struct idem__scan *scan;

    if (!engine->store) /* the server has them */
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "only the server that has the store open knows which "
                          "callers wait for a lock");
    scan = calloc(1, sizeof(*scan));
    if (!scan)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    scan->waiters = true;
    scan->count = count;
    return put(engine, scan, done, arg, err);
}

/* ---- idem_scan --------------------------------------------------------- */

struct scan_waiter {
    atomic_int done;
    enum idem_status status;
    struct scan_found found;
    struct idem_cursor next;
    struct idem_error err;
};

static void
scanned(void *arg, enum idem_status status, const struct idem_record *records,
        size_t count, const struct idem_cursor *next,
        const struct idem_error *err)
{
    struct scan_waiter *waiter = arg;

    waiter->status = status;
    if (status != IDEM_OK)
        waiter->err = *err;
    else
        waiter->next = *next;
    for (size_t i = 0; i < count && !waiter->found.failed; i++)
        collect(&waiter->found, &records[i]);
    if (waiter->found.failed)
        waiter->status =
            idem__fail(&waiter->err, IDEM_ERR_MEMORY, "out of memory");
    idem__word_set(&waiter->done);
}

enum idem_status
idem_scan(struct idem_engine *engine, const struct idem_filter *filter,
          struct idem_cursor *cursor, size_t count, idem_each_fn *each,
          void *arg, struct idem_error *err)
{
    struct scan_waiter waiter = {.done = 0};
    bool own = idem__on_own_thread(engine);
    bool go_on = true;
    enum idem_status status;

    if (own && (!engine->inner.driven || atomic_load(&engine->in_turn)))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a callback must not wait for a scan");
    status =
        idem__scan_submit(engine, filter, cursor, count, scanned, &waiter, err);
    if (status != IDEM_OK)
        return status;
    while (own && !atomic_load(&waiter.done))
        idem__engine_turn(engine);
    idem__word_wait(&waiter.done);

    for (size_t i = 0; i < waiter.found.count && go_on; i++)
        go_on = each(arg, &waiter.found.records[i]);
    if (waiter.status != IDEM_OK && err)
        *err = waiter.err;
    else if (waiter.status == IDEM_OK && go_on)
        *cursor = waiter.next;
    idem_arena_clear(&waiter.found.arena);
    free(waiter.found.records);
    return waiter.status;
}
