/*
 * results.c - see results.h.
 */
#include "results.h"

#include <stdlib.h>
#include <string.h>

void
results_open(struct results *results, size_t max)
{
    *results = (struct results){.max = max};
    pthread_mutex_init(&results->lock, NULL);
}

void
results_close(struct results *results)
{
    results_rest(results);
    pthread_mutex_destroy(&results->lock);
}

/* Under the lock. */
static void
drop(struct result *result)
{
    if (!result || --result->refs > 0)
        return;
    atomic_fetch_sub(&result->of->bytes, result->len);
    free(result);
}

/* Under the lock. Within one turn of the engine, the same address and rev mean
 * the same bytes, because the engine frees nothing of a group before it has
 * answered all of it. */
static bool
is_last(const struct results *results, uint64_t turn,
        const struct idem_record *record)
{
    return results->last && results->last_turn == turn &&
           results->last_rev == record->rev &&
           results->last_data == record->result.data &&
           results->last->len == record->result.len;
}

/* Under the lock. */
static struct result *
copy(struct results *results, struct idem_bytes bytes)
{
    size_t used = atomic_load(&results->bytes);
    struct result *result = NULL;

    if (used == 0 || (used + bytes.len <= results->max / 2 &&
                      results_room(results, bytes.len)))
        result = malloc(sizeof(*result) + bytes.len);
    if (!result) {
        results->refused++;
        return NULL;
    }
    result->of = results;
    result->refs = 0;
    result->len = bytes.len;
    memcpy(result->bytes, bytes.data, bytes.len);
    atomic_fetch_add(&results->bytes, bytes.len);
    return result;
}

struct result *
results_take(struct results *results, uint64_t turn,
             const struct idem_record *record)
{
    struct result *result;

    pthread_mutex_lock(&results->lock);
    if (!is_last(results, turn, record)) {
        drop(results->last);
        results->last = copy(results, record->result);
        results->last_turn = turn;
        results->last_rev = record->rev;
        results->last_data = record->result.data;
        if (results->last)
            results->last->refs++;
    }
    result = results->last;
    if (result)
        result->refs++;
    pthread_mutex_unlock(&results->lock);
    return result;
}

void
result_put(struct result *result)
{
    struct results *results = result ? result->of : NULL;

    if (!results)
        return;
    pthread_mutex_lock(&results->lock);
    drop(result);
    pthread_mutex_unlock(&results->lock);
}

void
results_rest(struct results *results)
{
    if (atomic_load(&results->bytes) == 0)
        return;
    pthread_mutex_lock(&results->lock);
    if (results->last && results->last->refs == 1) {
        drop(results->last);
        results->last = NULL;
    }
    pthread_mutex_unlock(&results->lock);
}

void
results_count(struct results *results, size_t before, size_t now)
{
    atomic_fetch_add(&results->others, now - before);
}

bool
results_room(const struct results *results, size_t more)
{
    return atomic_load(&results->bytes) + atomic_load(&results->others) +
               more <=
           results->max;
}

uint64_t
results_refused(struct results *results)
{
    uint64_t refused;

    pthread_mutex_lock(&results->lock);
    refused = results->refused;
    pthread_mutex_unlock(&results->lock);
    return refused;
}
