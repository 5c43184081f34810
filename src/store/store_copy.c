/*
 * store_copy.c - copies records from one store to another, which may be of
 * another kind.
 *
 * Records keep their rev, fence and times. If the other store already has a
 * record with the same rev, it is left as it is, so a copy can be repeated
 * after an error. If it has a different record under the key, that is counted
 * and not changed.
 */
#include "store.h"

#include <stdlib.h>
#include <string.h>

#define A_CALL 200

struct copy_page {
    struct idem_load *loads;
    size_t count, room;
    bool no_memory;
};

static bool
note(void *arg, const struct idem_record *record)
{
    struct copy_page *page = arg;
    struct idem_load *more =
        idem__grow(page->loads, page->count, &page->room, sizeof(*more));

    if (!more) {
        page->no_memory = true;
        return false;
    }
    page->loads = more;
    memset(&page->loads[page->count], 0, sizeof(page->loads[0]));
    page->loads[page->count].with_result = true;
    idem__key(record->type, record->scope, record->id,
              page->loads[page->count].key);
    page->count++;
    return true;
}

static int
by_key(const void *a, const void *b)
{
    return memcmp(((const struct idem_load *)a)->key,
                  ((const struct idem_load *)b)->key, IDEM_KEY_LEN);
}

/* A scan may return a record twice, but a batch needs sorted and distinct
 * keys. */
static void
sort_page(struct copy_page *page)
{
    size_t kept = 0;

    if (page->count > 0)
        qsort(page->loads, page->count, sizeof(*page->loads), by_key);
    for (size_t i = 0; i < page->count; i++) {
        if (kept == 0 || by_key(&page->loads[kept - 1], &page->loads[i]) != 0)
            page->loads[kept++] = page->loads[i];
    }
    page->count = kept;
}

static enum idem_status
store_one_batch(struct idem_store *to, struct idem_load *loads, size_t count,
                struct idem_arena *arena, struct idem_store_copied *copied,
                struct idem_error *err)
{
    struct idem_swap *swaps = calloc(count, sizeof(*swaps));
    enum idem_status status;
    size_t n = 0;

    if (!swaps)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        if (loads[i].record.state == IDEM_STATE_ABSENT)
            continue; /* expired since it was listed */
        memcpy(swaps[n].key, loads[i].key, IDEM_KEY_LEN);
        swaps[n++].record = &loads[i].record;
    }
    status = n ? to->type->swap(to, swaps, n, arena, err) : IDEM_OK;
    for (size_t i = 0; i < n; i++) {
        copied->records += swaps[i].outcome == IDEM_SWAP_STORED;
        copied->others += swaps[i].outcome == IDEM_SWAP_REFUSED;
        if (swaps[i].outcome == IDEM_SWAP_LOCKED && status == IDEM_OK)
            status = idem__fail(
                err, IDEM_ERR_UNAVAILABLE,
                "another transaction holds a record of the second store; stop "
                "everything that uses it, then copy again");
    }
    free(swaps);
    return status;
}

static enum idem_status
copy_page(struct idem_store *from, struct idem_store *to,
          struct copy_page *page, struct idem_store_copied *copied,
          struct idem_error *err)
{
    struct idem_arena arena = {NULL, 0};
    enum idem_status status = IDEM_OK;

    for (size_t at = 0; status == IDEM_OK && at < page->count; at += A_CALL) {
        size_t n = page->count - at < A_CALL ? page->count - at : A_CALL;

        status = from->type->load(from, page->loads + at, n, &arena, err);
        if (status == IDEM_OK)
            status =
                store_one_batch(to, page->loads + at, n, &arena, copied, err);
        idem_arena_clear(&arena);
    }
    return status;
}

static enum idem_status
copy_all(struct idem_store *from, struct idem_store *to,
         idem_store_progress_fn *progress, void *arg,
         struct idem_store_copied *copied, struct idem_error *err)
{
    const struct idem_filter everything = {0};
    const struct idem_now now = {0};
    struct idem_cursor cursor = {"0"};
    struct copy_page page = {0};
    const struct idem_query query = {&everything, &now,  &cursor, A_CALL,
                                     note,        &page, false};
    enum idem_status status;

    do {
        page.count = 0;
        status = from->type->scan(from, &query, err);
        if (status == IDEM_OK && page.no_memory)
            status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
        sort_page(&page);
        if (status == IDEM_OK)
            status = copy_page(from, to, &page, copied, err);
        if (progress)
            progress(arg, copied);
    } while (status == IDEM_OK && strcmp(cursor.text, "0") != 0);
    free(page.loads);
    return status;
}

enum idem_status
idem__store_copy(const char *from, const char *to,
                 idem_store_progress_fn *progress, void *arg,
                 struct idem_store_copied *copied, struct idem_error *err)
{
    struct idem_store *source = NULL, *target = NULL;
    enum idem_status status = idem__store_open(from, NULL, &source, err);

    memset(copied, 0, sizeof(*copied));
    if (status == IDEM_OK)
        status = idem__store_open(to, NULL, &target, err);
    if (status == IDEM_OK)
        status = copy_all(source, target, progress, arg, copied, err);
    idem__store_close(target);
    idem__store_close(source);
    return status;
}
