/*
 * turn.c - the queue of the clients that wait for a lock, across engines.
 *
 *   NAME!queue     its note lists places, one byte each, from the front to the
 *                  back; a client holds this lock while it changes the list
 *   NAME!queue7    place 7, held by its client as long as that client waits
 *
 * A new client takes a place that is not in the list and appends it. It then
 * waits for the lock of the place before its own, which becomes free when that
 * client had its turn, gave up or died. Only the client behind a place removes
 * it from the list, so no place is reused while somebody waits for it. The last
 * place has no client behind it; if it was left, the next client takes it over.
 * The client at the front takes the lock NAME and then gives its place back.
 *
 * The queue decides only who asks first; the lock itself decides who holds it.
 * If a client changes the list after its hold has ended, its fence is stale and
 * the change is refused.
 */
#include "turn.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACES 128
#define MOMENT_MS 3000 /* the lease of the list and of short holds */
#define FULL_US 50000

struct idem__turn {
    struct idem_engine *engine;
    const char *name;
    struct idem_lock_options options;
    int64_t end_us;
    char owner[33];
    struct idem_lock *lock; /* lock of this client's place; NULL: none */
    uint8_t place;
    uint8_t list[PLACES]; /* as last seen */
    size_t count;
};

int64_t
idem__wait_left_ms(struct idem_engine *engine, int64_t end_us)
{
    int64_t ms = (end_us - idem__boot_us(engine)) / 1000;

    return ms > 0 ? ms : 0;
}

enum idem_status
idem__wait_cancelled(struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_CLOSED, "the wait was cancelled");
}

static int64_t
left_ms(const struct idem__turn *turn)
{
    return idem__wait_left_ms(turn->engine, turn->end_us);
}

static enum idem_status
too_late(const struct idem__turn *turn, struct idem_error *err)
{
    return idem__is_set(turn->options.stop)
               ? idem__wait_cancelled(err)
               : idem__fail(err, IDEM_ERR_TIMEOUT,
                            "lock \"%s\": others are in line before",
                            turn->name);
}

/* Place 0 is the list itself. */
static void
name_of(const struct idem__turn *turn, unsigned place,
        char name[IDEM_ID_MAX + 1])
{
    if (place)
        snprintf(name, IDEM_ID_MAX + 1, "%s!queue%u", turn->name, place);
    else
        snprintf(name, IDEM_ID_MAX + 1, "%s!queue", turn->name);
}

/* ---- the list ----------------------------------------------------------- */

/* The position of a place in the list; PLACES if it is not there. */
static size_t
find(const struct idem__turn *turn, uint8_t place)
{
    for (size_t i = 0; i < turn->count; i++) {
        if (turn->list[i] == place)
            return i;
    }
    return PLACES;
}

/* Another program may have written the note: bytes that cannot be places are
 * skipped. */
static void
read_list(struct idem__turn *turn, struct idem_bytes note)
{
    const uint8_t *places = note.data;

    turn->count = 0;
    for (size_t i = 0; i < note.len; i++) {
        if (places[i] >= 1 && places[i] <= PLACES &&
            find(turn, places[i]) == PLACES)
            turn->list[turn->count++] = places[i];
    }
}

static void
take_off(struct idem__turn *turn, size_t at)
{
    turn->count--;
    memmove(turn->list + at, turn->list + at + 1, turn->count - at);
}

/* ---- short holds -------------------------------------------------------- */

/* Hold the list or a place for a moment; the list is then also read. *fence is
 * 0 if it was not free in time. */
static enum idem_status
hold(struct idem__turn *turn, unsigned place, int64_t wait_ms, uint64_t *fence,
     struct idem_error *err)
{
    char name[IDEM_ID_MAX + 1];
    struct idem_op op = {.verb = IDEM_LOCK,
                         .type = IDEM_TYPE_LOCK,
                         .scope = idem_text(IDEM_LOCK_SCOPE),
                         .subject = idem_text(turn->owner),
                         .lease_ms = MOMENT_MS,
                         .wait_ms = wait_ms};
    struct idem_answer answer = {0};
    enum idem_status status;

    *fence = 0;
    name_of(turn, place, name);
    op.id = idem_text(name);
    status = idem__do_until(turn->engine, &op, NULL, turn->options.stop,
                            &answer, err);
    if (status == IDEM_OK && answer.verdict == IDEM_V_STARTED) {
        *fence = answer.record->fence;
        if (place == 0)
            read_list(turn, answer.record->result);
    }
    idem_answer_clear(&answer);
    return status;
}

/* False: this client no longer held it, or the reply was lost. */
static bool
let_go(struct idem__turn *turn, unsigned place, uint64_t fence)
{
    char name[IDEM_ID_MAX + 1];
    struct idem_op op = {.verb = IDEM_UNLOCK,
                         .type = IDEM_TYPE_LOCK,
                         .scope = idem_text(IDEM_LOCK_SCOPE),
                         .fence = fence};
    struct idem_answer answer = {0};
    bool ok;

    name_of(turn, place, name);
    op.id = idem_text(name);
    if (place == 0)
        op.result = (struct idem_bytes){turn->list, turn->count};
    ok = idem__unlock(turn->engine, &op, MOMENT_MS, &answer, NULL) == IDEM_OK &&
         answer.verdict == IDEM_V_OK;
    idem_answer_clear(&answer);
    return ok;
}

/* The list is only held for moments, so even a caller that does not want to
 * wait waits for it. */
static enum idem_status
hold_list(struct idem__turn *turn, uint64_t *fence, struct idem_error *err)
{
    int64_t wait_ms = left_ms(turn);
    enum idem_status status =
        hold(turn, 0, wait_ms > MOMENT_MS ? wait_ms : MOMENT_MS, fence, err);

    return status == IDEM_OK && !*fence ? too_late(turn, err) : status;
}

/* ---- joining and leaving ------------------------------------------------ */

static void
leave_place(struct idem__turn *turn)
{
    (void)idem_lock_give(turn->lock, NULL, NULL);
    turn->lock = NULL;
}

static enum idem_status
try_place(struct idem__turn *turn, unsigned place, struct idem_error *err)
{
    const struct idem_lock_options options = {
        .owner = turn->owner, .lease_ms = turn->options.lease_ms};
    char name[IDEM_ID_MAX + 1];

    name_of(turn, place, name);
    turn->place = (uint8_t)place;
    return idem_lock_take(turn->engine, name, &options, &turn->lock, err);
}

/* Try the last place in case its client is gone; nobody is behind it. Otherwise
 * use a place that is not in the list. That may still be held, by a client that
 * died before it appended the place. */
static enum idem_status
take_place(struct idem__turn *turn, struct idem_error *err)
{
    enum idem_status status = IDEM_ERR_TIMEOUT;

    if (turn->count > 0)
        status = try_place(turn, turn->list[turn->count - 1], err);
    if (status != IDEM_ERR_TIMEOUT)
        return status;
    for (unsigned place = 1; status == IDEM_ERR_TIMEOUT && place <= PLACES;
         place++) {
        if (find(turn, (uint8_t)place) == PLACES)
            status = try_place(turn, place, err);
    }
    if (status == IDEM_OK)
        turn->list[turn->count++] = turn->place;
    return status;
}

/* Sets turn->lock, unless the queue is full. */
static enum idem_status
try_join(struct idem__turn *turn, struct idem_error *err)
{
    uint64_t fence;
    enum idem_status status = hold_list(turn, &fence, err);

    if (status != IDEM_OK)
        return status;
    status = take_place(turn, err);
    if (!let_go(turn, 0, fence) && turn->lock)
        leave_place(turn);
    return status == IDEM_ERR_TIMEOUT ? IDEM_OK : status;
}

static enum idem_status
join(struct idem__turn *turn, struct idem_error *err)
{
    enum idem_status status = try_join(turn, err);

    while (status == IDEM_OK && !turn->lock) {
        if (left_ms(turn) == 0 || idem__is_set(turn->options.stop))
            return too_late(turn, err);
        usleep(FULL_US);
        status = try_join(turn, err);
    }
    return status;
}

/* ---- waiting ------------------------------------------------------------ */

/* Wait for the place before ours and remove it from the list. If we lost our
 * own place, another client may have it now, so we have none. */
static enum idem_status
move_up(struct idem__turn *turn, uint8_t before, struct idem_error *err)
{
    uint64_t fence, list_fence;
    enum idem_status status = hold(turn, before, left_ms(turn), &fence, err);
    size_t at;

    if (status != IDEM_OK)
        return status;
    if (!fence)
        return too_late(turn, err);
    status = hold_list(turn, &list_fence, err);
    if (status == IDEM_OK) {
        at = find(turn, turn->place);
        if (at > 0 && at != PLACES && turn->list[at - 1] == before &&
            idem_lock_held(turn->lock))
            take_off(turn, at - 1);
        (void)let_go(turn, 0, list_fence);
    }
    (void)let_go(turn, before, fence);
    return status;
}

static enum idem_status
stand_in_line(struct idem__turn *turn, struct idem_error *err)
{
    enum idem_status status = join(turn, err);

    while (status == IDEM_OK) {
        size_t at = find(turn, turn->place);

        if (at == PLACES || !idem_lock_held(turn->lock)) {
            leave_place(turn); /* the place was lost: start again at the back */
            status = join(turn, err);
            continue;
        }
        if (at == 0)
            return IDEM_OK;
        status = move_up(turn, turn->list[at - 1], err);
    }
    return status;
}

/* ---- the interface ------------------------------------------------------ */

static bool
is_holder(struct idem_engine *engine, const char *name, const char *owner)
{
    const struct idem_op op = {.verb = IDEM_GET,
                               .type = IDEM_TYPE_LOCK,
                               .scope = idem_text(IDEM_LOCK_SCOPE),
                               .id = idem_text(name)};
    struct idem_answer answer = {0};
    bool holds = idem_do(engine, &op, &answer, NULL) == IDEM_OK &&
                 answer.record->state == IDEM_STATE_EXECUTING &&
                 idem__bytes_equal(answer.record->subject, idem_text(owner));

    idem_answer_clear(&answer);
    return holds;
}

enum idem_status
idem__turn_take(struct idem_engine *engine, const char *name, const char *held,
                const struct idem_lock_options *options, int64_t end_us,
                struct idem__turn **out, struct idem_error *err)
{
    struct idem__turn *turn;
    enum idem_status status;
    uint8_t random[16];

    *out = NULL;
    if (strlen(name) + strlen("!queue128") > IDEM_ID_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the name of a fair lock has at most %d bytes",
                          IDEM_ID_MAX - (int)strlen("!queue128"));
    if (held && options->owner && is_holder(engine, held, options->owner))
        return IDEM_OK;
    turn = calloc(1, sizeof(*turn));
    if (!turn)
        return idem__fail(err, IDEM_ERR_MEMORY, "lock: out of memory");
    turn->engine = engine;
    turn->name = name;
    turn->options = *options;
    turn->end_us = end_us;
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(turn->owner, sizeof(turn->owner), random, sizeof(random));
    status = stand_in_line(turn, err);
    if (status == IDEM_OK) {
        *out = turn;
        return IDEM_OK;
    }
    idem__turn_give(turn);
    return status;
}

void
idem__turn_give(struct idem__turn *turn)
{
    if (turn && turn->lock)
        leave_place(turn);
    free(turn);
}
