/*
 * ids.c - gives out ids from the windows that the keeper provides.
 */
#include "id.h"

#include <errno.h>
#include <sched.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t
idem__ids_boot_us(const struct idem_ids *ids)
{
    return ids->clocks->boot_us(ids->clocks->arg);
}

/* Ask the keeper for more and, if there is time, wait for it. */
static bool
wait_for_window(struct idem_ids *ids, struct id_source *source,
                const struct timespec *deadline)
{
    source->wanted = true;
    pthread_cond_signal(&ids->keeper_wanted);
    return deadline && pthread_cond_timedwait(&ids->window_grew, &ids->mutex,
                                              deadline) != ETIMEDOUT;
}

static uint64_t
window_end(struct idem_ids *ids, struct id_source *s)
{
    int bits = s->layout.sequence_bits;
    int64_t tick, boot_us;
    uint64_t end;

    if (s->kind == IDEM_ID_SEGMENT)
        return s->limit;
    boot_us = idem__ids_boot_us(ids);
    if (!s->leased || idem__lease_ended(&s->lease, boot_us))
        return s->next;
    if (boot_us >= s->tick_ends_us)
        idem__source_tick(ids, s, boot_us);
    tick = s->tick;
    if (s->next < (uint64_t)tick << bits)
        s->next = (uint64_t)tick << bits;

    /* Snowflake keeps to the clock; uid may run ahead of it, as far as the
     * mark in the store allows. */
    end =
        s->kind == IDEM_ID_SNOWFLAKE ? (uint64_t)(tick + 1) << bits : s->limit;
    return end < s->limit ? end : s->limit;
}

/* If the current range is used up, continue with the range that was fetched
 * ahead. */
static bool
use_spare(struct id_source *s)
{
    if (s->kind != IDEM_ID_SEGMENT || s->next < s->limit || !s->spare_limit)
        return false;
    s->next = s->spare_next;
    s->limit = s->spare_limit;
    s->spare_next = s->spare_limit = 0;
    return true;
}

static uint64_t
id_of(const struct id_source *s, uint64_t number)
{
    int bits = s->layout.sequence_bits;

    if (s->kind == IDEM_ID_SEGMENT)
        return number;
    return (number >> bits) << (bits + s->layout.worker_bits) |
           s->worker << bits | (number & ((UINT64_C(1) << bits) - 1));
}

/* Give out the ids that are available, and ask the keeper for more before they
 * run out. */
static size_t
take(struct idem_ids *ids, struct id_source *s, uint64_t *out, size_t count)
{
    size_t taken = 0;

    do {
        uint64_t end = window_end(ids, s);

        while (taken < count && s->next < end)
            out[taken++] = id_of(s, s->next++);
    } while (taken < count && use_spare(s));

    if (s->kind == IDEM_ID_SEGMENT && !s->spare_limit && !s->wanted &&
        ids->options.segment_step > 1 &&
        s->limit - s->next < s->step - s->step / 10) {
        s->wanted = true;
        pthread_cond_signal(&ids->keeper_wanted);
    }
    if (s->kind == IDEM_ID_UID && s->leased && !s->wanted &&
        (s->limit - s->next) >> s->layout.sequence_bits < s->ahead / 2) {
        s->wanted = true;
        pthread_cond_signal(&ids->keeper_wanted);
    }
    return taken;
}

static bool
same_source(const struct id_source *s, enum idem_id_kind kind,
            struct idem_bytes name)
{
    return s->kind == kind && (kind != IDEM_ID_SEGMENT ||
                               (s->name_len == name.len &&
                                memcmp(s->name, name.data, name.len) == 0));
}

/* Drop the segment that has not been used for the longest time. The rest of its
 * range is never given out: the next range of that name begins above it. */
static bool
forget_oldest(struct idem_ids *ids)
{
    struct id_source **oldest = NULL, *s;

    for (struct id_source **at = &ids->sources; *at; at = &(*at)->next_source) {
        if ((*at)->kind == IDEM_ID_SEGMENT && (*at)->pins == 0 &&
            (!oldest || (*at)->last_use < (*oldest)->last_use))
            oldest = at;
    }
    if (!oldest)
        return false;
    s = *oldest;
    *oldest = s->next_source;
    free(s);
    ids->segment_count--;
    return true;
}

static struct id_source *
find_source(struct idem_ids *ids, enum idem_id_kind kind,
            struct idem_bytes name, struct idem_error *err)
{
    struct id_source *s = ids->sources;

    while (s && !same_source(s, kind, name))
        s = s->next_source;
    if (s)
        return s;
    if (kind == IDEM_ID_SEGMENT && ids->segment_count >= SEGMENTS_MAX &&
        !forget_oldest(ids)) {
        idem__fail(err, IDEM_ERR_OVERLOADED,
                   "ids of %d segments are being fetched: try again soon",
                   SEGMENTS_MAX);
        return NULL;
    }
    s = calloc(1, sizeof(*s));
    if (!s) {
        idem__fail(err, IDEM_ERR_MEMORY, "ids: out of memory");
        return NULL;
    }
    s->kind = kind;
    if (kind == IDEM_ID_SEGMENT) {
        memcpy(s->name, name.data, name.len);
        s->name_len = name.len;
        ids->segment_count++;
    } else {
        s->layout = idem__id_layout(kind, &ids->options);
    }
    s->step = ids->options.segment_step;
    s->next_source = ids->sources;
    ids->sources = s;
    return s;
}

/* True if only the clock delays the next id; it then comes within a
 * millisecond. */
static bool
waits_for_tick(struct idem_ids *ids, const struct id_source *s)
{
    return s->kind == IDEM_ID_SNOWFLAKE && s->leased && s->next < s->limit &&
           !idem__lease_ended(&s->lease, idem__ids_boot_us(ids));
}

static enum idem_status
none_at_hand(const struct id_source *s, struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_OVERLOADED,
                      "no %s is at hand yet: try again soon",
                      idem_id_kind_name(s->kind));
}

/* True if a segment has fewer ids than asked for. A caller that does not wait
 * then takes none of them, because they would be lost. */
static bool
must_fetch(struct id_source *s, size_t count)
{
    if (s->kind != IDEM_ID_SEGMENT || s->spare_limit ||
        s->limit - s->next >= count)
        return false;
    if (s->missing < count)
        s->missing = count;
    return true;
}

static enum idem_status
next_ids(struct idem_ids *ids, struct id_source *s, uint64_t *out, size_t count,
         const struct timespec *deadline, struct idem_error *err)
{
    size_t taken = 0;

    if (!deadline && !idem__source_hopeless(s) && must_fetch(s, count)) {
        (void)wait_for_window(ids, s, NULL);
        return none_at_hand(s, err);
    }
    while ((taken += take(ids, s, out + taken, count - taken)) < count) {
        if (waits_for_tick(ids, s)) {
            pthread_mutex_unlock(&ids->mutex);
            sched_yield();
            pthread_mutex_lock(&ids->mutex);
            continue;
        }
        if (s->missing < count - taken)
            s->missing = count - taken;
        if (idem__source_hopeless(s)) {
            (void)wait_for_window(ids, s, NULL);
            return idem__fail(err, s->trouble.status, "%s", s->trouble.text);
        }
        if (!wait_for_window(ids, s, deadline)) {
            if (!deadline)
                return none_at_hand(s, err);
            return idem__fail(err, IDEM_ERR_UNAVAILABLE, "no %s in time%s%s",
                              idem_id_kind_name(s->kind),
                              s->trouble.text[0] ? ": " : "", s->trouble.text);
        }
    }
    return IDEM_OK;
}

static enum idem_status
check_ask(enum idem_id_kind kind, struct idem_bytes name,
          struct idem_error *err)
{
    if (kind != IDEM_ID_SNOWFLAKE && kind != IDEM_ID_UID &&
        kind != IDEM_ID_SEGMENT)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "numbers are of kind snowflake, uid or segment");
    if (kind == IDEM_ID_SEGMENT && (name.len < 1 || name.len > IDEM_SCOPE_MAX ||
                                    memchr(name.data, 0, name.len)))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a segment needs a name of 1 to %d bytes without NUL",
                          IDEM_SCOPE_MAX);
    return IDEM_OK;
}

static enum idem_status
ask(struct idem_ids *ids, enum idem_id_kind kind, struct idem_bytes name,
    uint64_t *out, size_t count, bool may_wait, struct idem_error *err)
{
    enum idem_status status = check_ask(kind, name, err);
    struct idem_error trouble;
    struct timespec deadline;
    struct id_source *s;

    if (status != IDEM_OK)
        return status;
    deadline = idem__deadline(ids->options.wait_ms * 1000);
    pthread_mutex_lock(&ids->mutex);
    s = find_source(ids, kind, name, &trouble);
    if (s) {
        s->last_use = ++ids->uses;
        s->pins++;
        status = next_ids(ids, s, out, count, may_wait ? &deadline : NULL, err);
        s->pins--;
        if (status == IDEM_OK) {
            ids->given[kind] += count;
            s->given += count;
        }
    } else {
        status = idem__fail(err, trouble.status, "%s", trouble.text);
    }
    pthread_mutex_unlock(&ids->mutex);
    return status;
}

enum idem_status
idem_ids_next(struct idem_ids *ids, enum idem_id_kind kind,
              struct idem_bytes name, uint64_t *out, size_t count,
              struct idem_error *err)
{
    return ask(ids, kind, name, out, count, true, err);
}

enum idem_status
idem_ids_try(struct idem_ids *ids, enum idem_id_kind kind,
             struct idem_bytes name, uint64_t *out, size_t count,
             struct idem_error *err)
{
    return ask(ids, kind, name, out, count, false, err);
}

void
idem__ids_figures(struct idem_ids *ids, struct idem__ids_figures *out)
{
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < IDEM__ID_KIND_COUNT; i++)
        out->worker[i] = -1;
    if (!ids)
        return;
    pthread_mutex_lock(&ids->mutex);
    memcpy(out->given, ids->given, sizeof(out->given));
    out->names = ids->segment_count;
    out->ranges = ids->ranges;
    for (const struct id_source *s = ids->sources; s; s = s->next_source) {
        int64_t tick = (int64_t)(s->next >> s->layout.sequence_bits);

        out->reserved[s->kind] +=
            s->limit - s->next + s->spare_limit - s->spare_next;
        if (s->kind == IDEM_ID_SEGMENT && s->step > out->step)
            out->step = s->step;
        if (!s->leased)
            continue;
        tick = tick > s->tick ? tick : s->tick;
        out->worker[s->kind] = (int64_t)s->worker;
        out->ahead_ms[s->kind] = s->layout.epoch_ms + tick * s->layout.tick_ms -
                                 ids->clocks->wall_us(ids->clocks->arg) / 1000;
    }
    pthread_mutex_unlock(&ids->mutex);
}

void
idem__ids_segments(struct idem_ids *ids,
                   void (*each)(void *arg,
                                const struct idem__segment_figures *),
                   void *arg)
{
    if (!ids)
        return;
    pthread_mutex_lock(&ids->mutex);
    for (const struct id_source *s = ids->sources; s; s = s->next_source) {
        if (s->kind == IDEM_ID_SEGMENT)
            each(arg, &(struct idem__segment_figures){
                          .name = {s->name, s->name_len},
                          .given = s->given,
                          .next = s->next,
                          .step = s->step,
                          .left = s->limit - s->next,
                          .spare = s->spare_limit - s->spare_next});
    }
    pthread_mutex_unlock(&ids->mutex);
}

static void
clear(struct idem_ids *ids)
{
    while (ids->sources) {
        struct id_source *s = ids->sources;

        ids->sources = s->next_source;
        free(s);
    }
    pthread_cond_destroy(&ids->keeper_wanted);
    pthread_cond_destroy(&ids->window_grew);
    pthread_mutex_destroy(&ids->mutex);
    free(ids);
}

enum idem_status
idem__ids_open(struct idem_engine *engine,
               const struct idem_ids_options *options,
               const struct idem_clocks *clocks, struct idem_ids **out,
               struct idem_error *err)
{
    struct idem_ids *ids = calloc(1, sizeof(*ids));
    uint8_t random[16];
    enum idem_status status;

    if (!ids)
        return idem__fail(err, IDEM_ERR_MEMORY, "ids: out of memory");
    if (options)
        ids->options = *options;
    status = idem__ids_options_check(&ids->options, err);
    if (status != IDEM_OK) {
        free(ids);
        return status;
    }
    ids->engine = engine;
    ids->clocks = clocks ? clocks : &idem__system_clocks;
    ids->log_options.log = ids->options.log;
    ids->log_options.log_arg = ids->options.log_arg;
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(ids->owner, sizeof(ids->owner), random, sizeof(random));
    pthread_mutex_init(&ids->mutex, NULL);
    idem__cond_init(&ids->keeper_wanted);
    idem__cond_init(&ids->window_grew);
    if (pthread_create(&ids->keeper, NULL, idem__ids_keeper, ids) != 0) {
        clear(ids);
        return idem__fail(err, IDEM_ERR_MEMORY, "ids: cannot start a thread");
    }
    *out = ids;
    return IDEM_OK;
}

enum idem_status
idem_ids_open(struct idem_engine *engine,
              const struct idem_ids_options *options, struct idem_ids **ids,
              struct idem_error *err)
{
    return idem__ids_open(engine, options, NULL, ids, err);
}

void
idem_ids_close(struct idem_ids *ids)
{
    if (!ids)
        return;
    pthread_mutex_lock(&ids->mutex);
    ids->closing = true;
    pthread_cond_signal(&ids->keeper_wanted);
    pthread_mutex_unlock(&ids->mutex);
    pthread_join(ids->keeper, NULL);
    clear(ids);
}
