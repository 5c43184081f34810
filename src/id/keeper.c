/*
 * keeper.c - the thread that does the store operations of the generators.
 *
 * A worker number is a record of type worker, which is held like a lock. Its
 * note is the mark: no tick at or above it has been given out under this
 * number. This order makes it safe:
 *
 *   1. the mark moves up in the store (LOCK or RENEW, durable);
 *   2. only then may ticks below it be given out;
 *   3. the next holder of the number starts at the mark.
 *
 * The lease is counted from before the request was sent, on a clock that cannot
 * be set, so it ends here before it ends in the store.
 *
 * A segment's record is locked, read, and unlocked with the note moved up by a
 * step; a range counts once that unlock is durable.
 */
#include "id.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLEW_MS 60000
#define SEGMENT_LEASE_MS 1500
#define AHEAD_FIRST 60
#define AHEAD_MAX (UINT64_C(1) << 20)
#define SHORT_US (INT64_C(1) * 60 * 1000000)
#define LONG_US (INT64_C(30) * 60 * 1000000)
#define RETRY_US 200000
#define YEAR_MS (INT64_C(366) * 24 * 3600 * 1000)

static const char *
scope_of(const struct id_source *s)
{
    return idem_id_kind_name(s->kind);
}

static int64_t
wall_tick(const struct idem_ids *ids, const struct id_source *s)
{
    int64_t ms = ids->clocks->wall_us(ids->clocks->arg) / 1000;

    return (ms - s->layout.epoch_ms) / s->layout.tick_ms;
}

void
idem__source_tick(const struct idem_ids *ids, struct id_source *s,
                  int64_t boot_us)
{
    int64_t tick_us = s->layout.tick_ms * 1000;
    int64_t passed = (boot_us - s->tick_ends_us) / tick_us + 1;
    int64_t wall;

    s->tick += passed;
    s->tick_ends_us += passed * tick_us;

    /* Follow the wall clock if it is a little ahead. Do not follow a jump,
     * which may be corrected later. */
    wall = wall_tick(ids, s);
    if (wall > s->tick && (wall - s->tick) * s->layout.tick_ms <= SLEW_MS)
        s->tick = wall;
}

static void
tell_waiters(struct idem_ids *ids)
{
    pthread_cond_broadcast(&ids->window_grew);
    if (ids->options.grew)
        ids->options.grew(ids->options.grew_arg);
}

/* Run one op with the mutex unlocked. */
static enum idem_status
run(struct idem_ids *ids, struct id_source *s, const struct idem_op *op,
    struct idem_answer *answer)
{
    enum idem_status status;
    struct idem_error trouble = {IDEM_OK, ""};

    pthread_mutex_unlock(&ids->mutex);
    status = idem_do(ids->engine, op, answer, &trouble);
    pthread_mutex_lock(&ids->mutex);
    s->trouble = trouble;
    return status;
}

static uint64_t
read_note(struct idem_bytes note)
{
    char text[32];

    if (note.len == 0 || note.len >= sizeof(text))
        return 0;
    memcpy(text, note.data, note.len);
    text[note.len] = 0;
    return strtoull(text, NULL, 10);
}

static struct idem_bytes
write_note(char text[32], uint64_t value)
{
    int len = snprintf(text, 32, "%" PRIu64, value);

    return (struct idem_bytes){text, (size_t)len};
}

static void
warn_before_the_epoch_ends(struct idem_ids *ids, struct id_source *s)
{
    int64_t end = INT64_C(1) << s->layout.time_bits;
    int64_t left_ms = (end - s->tick) * s->layout.tick_ms;

    if (s->warned_epoch || left_ms > YEAR_MS)
        return;
    s->warned_epoch = true;
    idem__log(&ids->log_options, IDEM_LOG_ALARM,
              "ids: the time bits of %s are used up in %lld days: choose a "
              "later epoch or more bits before then",
              scope_of(s), (long long)(left_ms / 86400000));
}

/* The next mark: ids below it may be given out until the next renewal. */
static uint64_t
wanted_mark(struct idem_ids *ids, struct id_source *s)
{
    uint64_t end = UINT64_C(1) << s->layout.time_bits;
    uint64_t next_tick = s->next >> s->layout.sequence_bits;
    uint64_t mark =
        (uint64_t)s->tick > next_tick ? (uint64_t)s->tick : next_tick;

    if (s->kind == IDEM_ID_UID)
        mark += s->ahead;
    mark += (uint64_t)(2 * ids->options.lease_ms / s->layout.tick_ms) + 1;
    return mark < end ? mark : end;
}

static void
open_window(struct idem_ids *ids, struct id_source *s, uint64_t mark)
{
    uint64_t limit = mark << s->layout.sequence_bits;

    idem__lease_granted(&s->lease);
    if (limit > s->limit)
        s->limit = limit;
    warn_before_the_epoch_ends(ids, s);
    tell_waiters(ids);
}

/* An op on the lock of a worker number, whose text is written to `id`. */
static struct idem_op
worker_op(enum idem_verb verb, const struct id_source *s, uint64_t worker,
          char id[32])
{
    snprintf(id, 32, "%" PRIu64, worker);
    return (struct idem_op){.verb = verb,
                            .type = IDEM_TYPE_WORKER,
                            .scope = idem_text(scope_of(s)),
                            .id = idem_text(id)};
}

static bool
renew_worker(struct idem_ids *ids, struct id_source *s)
{
    char id[32], note[32];
    struct idem_op op = worker_op(IDEM_RENEW, s, s->worker, id);
    struct idem_answer answer = {0};
    int64_t asked_at_us = idem__ids_boot_us(ids);
    uint64_t mark;
    bool renewed;

    if (asked_at_us >= s->tick_ends_us)
        idem__source_tick(ids, s, asked_at_us);
    s->lease.asked_us = asked_at_us;
    mark = wanted_mark(ids, s);
    op.fence = s->fence;
    op.lease_ms = ids->options.lease_ms;
    op.result = write_note(note, mark);
    if (run(ids, s, &op, &answer) != IDEM_OK)
        return false; /* the lease is valid until its deadline */
    renewed = answer.verdict == IDEM_V_OK;
    idem_answer_clear(&answer);
    if (renewed)
        open_window(ids, s, mark);
    else
        s->leased = false;
    return renewed;
}

static void
give_worker_back(struct idem_ids *ids, struct id_source *s)
{
    char id[32], note[32];
    struct idem_op op = worker_op(IDEM_UNLOCK, s, s->worker, id);
    struct idem_answer answer = {0};
    uint64_t mark = (s->next >> s->layout.sequence_bits) + 1;

    if (!s->leased)
        return;
    s->leased = false;
    op.fence = s->fence;
    op.result = write_note(note, mark);
    if (run(ids, s, &op, &answer) == IDEM_OK)
        idem_answer_clear(&answer);
}

/* This process now holds the number. Its clock starts at the wall clock or at
 * the mark of the last holder, whichever is later. */
static void
start_clock(struct idem_ids *ids, struct id_source *s, uint64_t mark)
{
    int64_t wall = wall_tick(ids, s);

    s->tick = wall > (int64_t)mark ? wall : (int64_t)mark;
    if (s->tick < 0)
        s->tick = 0;
    s->tick_ends_us = idem__ids_boot_us(ids) + s->layout.tick_ms * 1000;
    s->next = (uint64_t)s->tick << s->layout.sequence_bits;
    s->limit = s->next;
    s->ahead = AHEAD_FIRST;
    s->leased = true;
}

enum attempt { GOT_IT, TAKEN, TROUBLE };

static enum attempt
try_worker(struct idem_ids *ids, struct id_source *s, uint64_t worker)
{
    char id[32];
    struct idem_op op = worker_op(IDEM_LOCK, s, worker, id);
    struct idem_answer answer = {0};
    enum attempt attempt = TAKEN;

    op.subject = idem_text(ids->owner);
    op.lease_ms = ids->options.lease_ms;
    if (run(ids, s, &op, &answer) != IDEM_OK)
        return TROUBLE;
    if (answer.verdict == IDEM_V_STARTED) {
        s->worker = worker;
        s->fence = answer.record->fence;
        /* No id is given out below the mark, and none in the last tenth of a
         * lease. */
        s->lease = (struct idem__lease){.length_us = ids->options.lease_ms *
                                                     1000 * 9 / 10};
        start_clock(ids, s, read_note(answer.record->result));
        attempt = GOT_IT;
    }
    idem_answer_clear(&answer);
    return attempt;
}

/* Two layouts on one store would give out the same number twice. The first
 * generator stores its layout in the record `layout`. */
static bool
agree(struct idem_ids *ids, struct id_source *s)
{
    struct idem_op op = {.verb = IDEM_LOCK,
                         .type = IDEM_TYPE_WORKER,
                         .scope = idem_text(scope_of(s)),
                         .id = idem_text("layout"),
                         .subject = idem_text(ids->owner),
                         .lease_ms = SEGMENT_LEASE_MS,
                         .wait_ms = ids->options.wait_ms};
    struct idem_answer answer = {0};
    char ours[IDEM__LAYOUT_LEN], theirs[IDEM__LAYOUT_LEN] = "";

    if (s->agreed)
        return true;
    idem__id_layout_text(&s->layout, ours);
    if (run(ids, s, &op, &answer) != IDEM_OK)
        return false;
    if (answer.verdict == IDEM_V_STARTED) {
        struct idem_bytes note = answer.record->result;

        snprintf(theirs, sizeof(theirs), "%.*s", (int)note.len,
                 note.len ? (const char *)note.data : "");
        op.fence = answer.record->fence;
    }
    idem_answer_clear(&answer);
    if (op.fence == 0)
        return false;
    op.verb = IDEM_UNLOCK;
    op.subject = (struct idem_bytes){NULL, 0};
    op.wait_ms = 0;
    op.result = idem_text(theirs[0] ? theirs : ours);
    if (run(ids, s, &op, &answer) != IDEM_OK)
        return false;
    idem_answer_clear(&answer);
    s->agreed = !theirs[0] || strcmp(theirs, ours) == 0;
    if (!s->agreed)
        idem__fail(
            &s->trouble, IDEM_ERR_INVALID,
            "the store's %ss have the bits %s, not %s: use the same bits "
            "and epoch, or another store",
            scope_of(s), theirs, ours);
    return s->agreed;
}

static bool
lease_worker(struct idem_ids *ids, struct id_source *s)
{
    uint64_t end = UINT64_C(1) << s->layout.worker_bits;
    uint64_t first = ids->options.worker_first;
    uint64_t count = ids->options.worker_count;

    if (!agree(ids, s))
        return false;
    if (count > 0 && first < end && count < end - first)
        end = first + count;
    for (uint64_t worker = first; worker < end && !ids->closing; worker++) {
        enum attempt attempt = try_worker(ids, s, worker);

        if (attempt == TROUBLE)
            return false;
        if (attempt == GOT_IT)
            return renew_worker(ids, s);
    }
    if (first >= end)
        idem__fail(
            &s->trouble, IDEM_ERR_INVALID,
            "the pool of worker numbers begins at %llu, and those of a %s "
            "end at %llu",
            (unsigned long long)first, scope_of(s),
            (unsigned long long)end - 1);
    else
        snprintf(s->trouble.text, sizeof(s->trouble.text),
                 "the worker numbers from %llu to %llu are all taken",
                 (unsigned long long)first, (unsigned long long)end - 1);
    return false;
}

static bool
serve_worker(struct idem_ids *ids, struct id_source *s)
{
    int64_t now_us = idem__ids_boot_us(ids);
    uint64_t left = (s->limit - s->next) >> s->layout.sequence_bits;

    if (s->leased && idem__lease_ended(&s->lease, now_us)) {
        s->leased = false;
        idem__log(&ids->log_options, IDEM_LOG_WARNING,
                  "ids: the lease on %s worker %llu could not be renewed in "
                  "time: no more ids under it",
                  scope_of(s), (unsigned long long)s->worker);
    }
    if (!s->leased)
        return lease_worker(ids, s);
    if (s->kind == IDEM_ID_UID && s->wanted && left < s->ahead / 2 &&
        s->ahead < AHEAD_MAX)
        s->ahead *= 2;
    return renew_worker(ids, s);
}

/* Increase the step if ranges are used up quickly; decrease it if they last. */
static void
adapt_step(struct idem_ids *ids, struct id_source *s)
{
    int64_t now_us = idem__ids_boot_us(ids);
    int64_t lasted = now_us - s->fetched_at_us;

    if (ids->options.segment_step == 1)
        s->step = s->missing ? s->missing : 1;
    else if (s->fetched_at_us && lasted < SHORT_US &&
             s->step <= ids->options.segment_step_max / 2)
        s->step *= 2;
    else if (s->fetched_at_us && lasted > LONG_US &&
             s->step / 2 >= ids->options.segment_step)
        s->step /= 2;
    s->fetched_at_us = now_us;
}

static void
add_range(struct idem_ids *ids, struct id_source *s, uint64_t from, uint64_t to)
{
    if (s->next == s->limit && !s->spare_limit) {
        s->next = from;
        s->limit = to;
    } else {
        s->spare_next = from;
        s->spare_limit = to;
    }
    tell_waiters(ids);
}

static bool
serve_segment(struct idem_ids *ids, struct id_source *s)
{
    struct idem_op op = {.type = IDEM_TYPE_WORKER,
                         .scope = idem_text(scope_of(s)),
                         .id = {s->name, s->name_len}};
    struct idem_answer answer = {0};
    char note[32];
    uint64_t from;
    bool ours;

    if (s->spare_limit)
        return true;
    op.verb = IDEM_LOCK;
    op.subject = idem_text(ids->owner);
    op.lease_ms = SEGMENT_LEASE_MS;
    op.wait_ms = ids->options.wait_ms;
    if (run(ids, s, &op, &answer) != IDEM_OK)
        return false;
    ours = answer.verdict == IDEM_V_STARTED;
    op.fence = answer.record->fence;
    from = read_note(answer.record->result);
    idem_answer_clear(&answer);
    if (!ours)
        return false;

    from = from ? from : 1;
    adapt_step(ids, s);
    op.verb = IDEM_UNLOCK;
    op.wait_ms = 0;
    op.subject = (struct idem_bytes){NULL, 0};
    op.result = write_note(note, from + s->step);
    if (run(ids, s, &op, &answer) != IDEM_OK)
        return false; /* whether stored or not, this range is skipped */
    ours = answer.verdict == IDEM_V_OK;
    idem_answer_clear(&answer);
    ids->ranges += ours;
    s->missing = ours ? 0 : s->missing;
    if (ours)
        add_range(ids, s, from, from + s->step);
    return ours;
}

bool
idem__source_hopeless(const struct id_source *s)
{
    return s->trouble.status == IDEM_ERR_INVALID ||
           s->trouble.status == IDEM_ERR_UNSUPPORTED;
}

/* The time when the keeper has work for this source; INT64_MAX: never. */
static int64_t
due_us(const struct id_source *s)
{
    if (s->wanted)
        return s->not_before_us;
    if (!s->leased)
        return INT64_MAX;
    return idem__lease_due_us(&s->lease);
}

static void
serve(struct idem_ids *ids, struct id_source *s)
{
    bool served;

    s->pins++;
    served = s->kind == IDEM_ID_SEGMENT ? serve_segment(ids, s)
                                        : serve_worker(ids, s);
    s->pins--;
    if (served)
        s->wanted = false;
    else if (idem__source_hopeless(s))
        tell_waiters(ids);
    s->not_before_us = served ? 0 : idem__ids_boot_us(ids) + RETRY_US;
}

/* Sleep until a caller needs ids or a lease must be renewed. */
static void
sleep_until_due(struct idem_ids *ids)
{
    int64_t now_us = idem__ids_boot_us(ids), until_us = now_us + 1000000;
    struct timespec until;

    for (struct id_source *s = ids->sources; s; s = s->next_source) {
        if (due_us(s) < until_us)
            until_us = due_us(s);
    }
    if (until_us <= now_us)
        return;
    until = idem__deadline(until_us - now_us);
    pthread_cond_timedwait(&ids->keeper_wanted, &ids->mutex, &until);
}

void *
idem__ids_keeper(void *arg)
{
    struct idem_ids *ids = arg;

    pthread_mutex_lock(&ids->mutex);
    while (!ids->closing) {
        for (struct id_source *s = ids->sources; s; s = s->next_source) {
            if (due_us(s) <= idem__ids_boot_us(ids) && !ids->closing)
                serve(ids, s);
        }
        if (!ids->closing)
            sleep_until_due(ids);
    }
    for (struct id_source *s = ids->sources; s; s = s->next_source) {
        if (s->kind != IDEM_ID_SEGMENT)
            give_worker_back(ids, s);
    }
    pthread_mutex_unlock(&ids->mutex);
    return NULL;
}
