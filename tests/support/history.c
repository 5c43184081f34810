/*
 * history.c - see history.h.
 */
#include "history.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct check {
    unsigned broken;
    char *text;
    size_t len;
};

static void blame(struct check *check, unsigned rule, const struct event *event,
                  const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void
blame(struct check *check, unsigned rule, const struct event *event,
      const char *format, ...)
{
    va_list args;
    int used;

    if (check->broken == 0 && check->len > 0) {
        used = snprintf(check->text, check->len,
                        "key %u, %s -> %s, fence %llu: ", event->key,
                        idem_verb_name(event->verb),
                        idem_verdict_name(event->verdict),
                        (unsigned long long)event->fence);
        va_start(args, format);
        if (used > 0 && (size_t)used < check->len)
            vsnprintf(check->text + used, check->len - (size_t)used, format,
                      args);
        va_end(args);
    }
    check->broken |= rule;
}

static int
by_key_and_start(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

static int
by_end(const void *a, const void *b)
{
    const struct event *x = *(struct event *const *)a;
    const struct event *y = *(struct event *const *)b;

    return x->end_ns < y->end_ns ? -1 : x->end_ns > y->end_ns;
}

static int
by_fence(const void *a, const void *b)
{
    const struct event *x = *(struct event *const *)a;
    const struct event *y = *(struct event *const *)b;

    return x->fence < y->fence ? -1 : x->fence > y->fence;
}

static bool
is_start(const struct event *e)
{
    return e->status == IDEM_OK && e->verb == IDEM_BEGIN &&
           e->verdict == IDEM_V_STARTED;
}

/* How far the record had come when this was answered; -1: it does not say. */
static int64_t
progress(const struct event *e)
{
    if (e->status != IDEM_OK)
        return -1;
    switch ((enum idem_verdict)e->verdict) {
    case IDEM_V_ABSENT:
        return 0;
    case IDEM_V_MISMATCH:
    case IDEM_V_DUPLICATE:
    case IDEM_V_UNKNOWN:
        return -1;
    default:
        break;
    }
    if (e->fence == 0)
        return e->verdict == IDEM_V_STALE ? 0 : -1;
    return (int64_t)(e->fence * 2 + (e->state != IDEM_STATE_EXECUTING));
}

/* Each event against all that had ended before it began. */
static void
check_order(struct check *check, struct event *events, size_t count,
            struct event **ended)
{
    int64_t most = 0;
    uint64_t last_fence = 0, last_nonce = 0;
    size_t at = 0;

    for (size_t i = 0; i < count; i++)
        ended[i] = &events[i];
    qsort(ended, count, sizeof(*ended), by_end);
    for (size_t i = 0; i < count; i++) {
        struct event *e = &events[i];

        for (; at < count && ended[at]->end_ns < e->start_ns; at++) {
            int64_t done = progress(ended[at]);

            if (done > most)
                most = done;
            if (is_start(ended[at]) && ended[at]->fence > last_fence) {
                last_fence = ended[at]->fence;
                last_nonce = ended[at]->nonce;
            }
        }
        if (progress(e) >= 0 && progress(e) < most)
            blame(check, RULE_UNSEEN, e,
                  "fence %lld, %s, had been seen before this was asked",
                  (long long)most / 2, most % 2 ? "ended" : "executing");
        if (is_start(e) && e->nonce != last_nonce && e->fence <= last_fence)
            blame(check, RULE_FENCES, e, "fence %llu was given before",
                  (unsigned long long)last_fence);
    }
}

static bool
finishes(const struct event *e)
{
    return e->verb == IDEM_FINISH &&
           !(e->mode == IDEM_LOOSE && e->outcome == IDEM_STATE_FAILED) &&
           ((e->status == IDEM_OK && e->verdict == IDEM_V_OK) ||
            e->status == IDEM_ERR_LOST);
}

static bool
frees(const struct event *e, uint64_t fence)
{
    bool told = (e->status == IDEM_OK && e->verdict == IDEM_V_OK) ||
                e->status == IDEM_ERR_LOST;

    if (!told)
        return false;
    if (e->verb == IDEM_FORGET)
        return e->status != IDEM_OK || e->fence == fence;
    if (e->given != fence)
        return false;
    return e->verb == IDEM_RELEASE ||
           (e->verb == IDEM_FINISH && e->mode == IDEM_LOOSE &&
            e->outcome == IDEM_STATE_FAILED);
}

/* Between the start of one fence and of the next, somebody freed the first. */
static void
check_pair(struct check *check, const struct event *events, size_t count,
           const struct event *one, const struct event *two)
{
    bool freed = false, forgotten = false, finished = false;

    for (size_t i = 0; i < count; i++) {
        const struct event *e = &events[i];

        if (frees(e, one->fence) && e->start_ns < two->end_ns) {
            freed = true;
            forgotten = forgotten || e->verb == IDEM_FORGET;
        }
        if (finishes(e) && e->status == IDEM_OK && e->given == one->fence)
            finished = true;
    }
    if (!freed)
        blame(check, RULE_ONE_EXECUTION, two,
              "started although nobody freed fence %llu",
              (unsigned long long)one->fence);
    else if (finished && !forgotten)
        blame(check, RULE_ONE_EXECUTION, two,
              "started although fence %llu was finished",
              (unsigned long long)one->fence);
}

static void
check_starts(struct check *check, const struct event *events, size_t count,
             struct event **starts, size_t start_count)
{
    qsort(starts, start_count, sizeof(*starts), by_fence);
    for (size_t i = 1; i < start_count; i++) {
        if (starts[i]->fence != starts[i - 1]->fence)
            check_pair(check, events, count, starts[i - 1], starts[i]);
        else if (starts[i]->nonce != starts[i - 1]->nonce)
            blame(check, RULE_ONE_EXECUTION, starts[i],
                  "two were started with one fence");
    }
}

/* A replay, or a FINISH that was told ok, against what was finished. */
static void
check_replay(struct check *check, const struct event *events, size_t count,
             const struct event *replay)
{
    for (size_t i = 0; i < count; i++) {
        const struct event *e = &events[i];

        if (e->start_ns > replay->end_ns)
            break;
        if (e->verb == IDEM_SETTLE &&
            (e->status == IDEM_ERR_LOST ||
             (e->verdict == IDEM_V_SETTLED && e->fence == replay->fence)))
            return;
        if (finishes(e) && e->given == replay->fence &&
            e->outcome == replay->state && e->sent == replay->got)
            return;
    }
    blame(check, RULE_REPLAY, replay, "nobody finished it with that result");
}

static bool
shows_outcome(const struct event *e)
{
    return e->status == IDEM_OK &&
           (e->state == IDEM_STATE_SUCCEEDED ||
            e->state == IDEM_STATE_FAILED) &&
           (e->verdict == IDEM_V_REPLAY || e->verdict == IDEM_V_FINISHED ||
            e->verdict == IDEM_V_RECORD);
}

static void
check_key(struct check *check, struct event *events, size_t count,
          struct event **room)
{
    size_t starts = 0;

    check_order(check, events, count, room);
    for (size_t i = 0; i < count; i++) {
        if (is_start(&events[i]))
            room[starts++] = &events[i];
    }
    check_starts(check, events, count, room, starts);
    for (size_t i = 0; i < count; i++) {
        if (shows_outcome(&events[i]))
            check_replay(check, events, count, &events[i]);
    }
}

unsigned
history_check(struct event *events, size_t count, char *text, size_t len)
{
    struct check check = {0, text, len};
    struct event **room = calloc(count + 1, sizeof(*room));

    if (!room)
        abort();
    qsort(events, count, sizeof(*events), by_key_and_start);
    for (size_t i = 0, next; i < count; i = next) {
        for (next = i; next < count && events[next].key == events[i].key;)
            next++;
        check_key(&check, &events[i], next - i, room);
    }
    free(room);
    return check.broken;
}
