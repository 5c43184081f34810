/*
 * locks.c - several locks as one: a list of locks, permits, readers and a
 * writer.
 *
 *   all of a list   in the order of their names, which every caller shares, so
 *                   that no two callers wait for each other
 *   a permit        one of the locks NAME#0 ... NAME#(permits - 1)
 *   a reader        passes the gate NAME!write, takes a permit
 *   a writer        keeps the gate, so that no reader comes in, and takes every
 *                   permit as its readers leave
 *
 * Every part is a lock of lock.c, so the locks of a holder that dies end with
 * their leases.
 */
#include "turn.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_ROOM (IDEM_ID_MAX + 1)
#define RETRY_US 50000
#define STOP_LOOK_US 100000

struct idem_locks {
    struct idem_engine *engine;
    struct idem_lock_options options;
    char owner[IDEM_SUBJECT_MAX + 1];
    int64_t end_us; /* end of the wait, on the boot clock */
    uint64_t fence;
    atomic_bool told; /* the loss was reported */
    size_t count;
    struct idem_lock *parts[];
};

static void
tell_once(void *arg, struct idem_lock *part)
{
    struct idem_locks *self = arg;

    if (!atomic_exchange(&self->told, true))
        self->options.lost(self->options.lost_arg, part);
}

static int64_t
left_ms(const struct idem_locks *self)
{
    return idem__wait_left_ms(self->engine, self->end_us);
}

static bool
is_stopped(const struct idem_locks *self)
{
    return idem__is_set(self->options.stop);
}

static enum idem_status
take_part(struct idem_locks *self, const char *name, struct idem_error *err)
{
    struct idem_lock_options options = self->options;
    enum idem_status status;

    if (is_stopped(self))
        return idem__wait_cancelled(err);
    options.owner = self->owner;
    options.wait_ms = left_ms(self);
    if (options.lost) {
        options.lost = tell_once;
        options.lost_arg = self;
    }
    status = idem_lock_take(self->engine, name, &options,
                            &self->parts[self->count], err);
    if (status == IDEM_OK)
        self->fence = idem_lock_fence(self->parts[self->count++]);
    return status;
}

static enum idem_status
part_name(char name[NAME_ROOM], const char *lock, const char *mark, uint32_t n,
          struct idem_error *err)
{
    int len = *mark == '#' ? snprintf(name, NAME_ROOM, "%s#%u", lock, n)
                           : snprintf(name, NAME_ROOM, "%s%s", lock, mark);

    return len < NAME_ROOM
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_INVALID,
                            "a lock's name has at most %d bytes, less 7 where "
                            "it has permits, readers or writers",
                            IDEM_ID_MAX);
}

/* ---- a list of locks ---------------------------------------------------- */

static int
by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum idem_status
take_all(struct idem_locks *self, const char *const *names, size_t count,
         struct idem_error *err)
{
    const char **sorted = calloc(count, sizeof(*sorted));
    enum idem_status status = IDEM_OK;

    if (!sorted)
        return idem__fail(err, IDEM_ERR_MEMORY, "lock: out of memory");
    memcpy(sorted, names, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), by_name);
    for (size_t i = 0; status == IDEM_OK && i < count; i++) {
        if (i == 0 || strcmp(sorted[i - 1], sorted[i]) != 0)
            status = take_part(self, sorted[i], err);
    }
    free(sorted);
    return status;
}

/* ---- permits ------------------------------------------------------------ */

/* The places are tried one after the other. If all are held, wait for all of
 * them at once. The first one that becomes free is used; others that became
 * free meanwhile are given back. Every take uses its own place, even for the
 * same owner. */
struct crowd {
    struct idem_locks *self;
    const char *name;
    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t changed;
    uint32_t open;  /* number of requests without an answer */
    int64_t winner; /* -1: none yet */
    struct idem_error err;
    struct place {
        struct crowd *crowd;
        uint32_t number;
        uint64_t ticket, fence; /* fence is nonzero if it was taken */
    } places[];
};

static struct idem_op
op_on_place(const struct crowd *crowd, const char *name, enum idem_verb verb)
{
    const struct idem_lock_options *options = &crowd->self->options;

    return (struct idem_op){
        .verb = verb,
        .type = IDEM_TYPE_LOCK,
        .scope = idem_text(IDEM_LOCK_SCOPE),
        .id = idem_text(name),
        .subject = idem_text(crowd->self->owner),
        .lease_ms =
            options->lease_ms ? options->lease_ms : IDEM_LEASE_DEFAULT_MS,
        .wait_ms = verb == IDEM_LOCK ? left_ms(crowd->self) : 0};
}

static void
answered(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct place *place = arg;
    struct crowd *crowd = place->crowd;

    pthread_mutex_lock(&crowd->mutex);
    crowd->open--;
    if (status == IDEM_OK && answer->verdict == IDEM_V_STARTED) {
        place->fence = answer->record->fence;
        if (crowd->winner < 0)
            crowd->winner = place->number;
    } else if (status != IDEM_OK && status != IDEM_ERR_CLOSED && err) {
        crowd->err = *err;
        crowd->err.status = status;
    }
    pthread_cond_broadcast(&crowd->changed);
    pthread_mutex_unlock(&crowd->mutex);
}

static enum idem_status
ask(struct crowd *crowd, uint32_t number, struct idem_error *err)
{
    struct place *place = &crowd->places[number];
    char name[NAME_ROOM];
    struct idem_op op;
    enum idem_status status = part_name(name, crowd->name, "#", number, err);

    if (status != IDEM_OK)
        return status;
    place->crowd = crowd;
    place->number = number;
    op = op_on_place(crowd, name, IDEM_LOCK);
    pthread_mutex_lock(&crowd->mutex);
    crowd->open++;
    pthread_mutex_unlock(&crowd->mutex);
    status = idem_submit(crowd->self->engine, &op, answered, place,
                         &place->ticket, err);
    if (status != IDEM_OK) {
        pthread_mutex_lock(&crowd->mutex);
        crowd->open--;
        pthread_mutex_unlock(&crowd->mutex);
    }
    return status;
}

/* Wait for the first place or until the caller stops the wait; then wait for
 * all answers that are still to come. */
static void
choose(struct crowd *crowd, uint32_t asked)
{
    pthread_mutex_lock(&crowd->mutex);
    while (crowd->open > 0 && crowd->winner < 0 && !is_stopped(crowd->self)) {
        struct timespec soon = idem__deadline(STOP_LOOK_US);

        pthread_cond_timedwait(&crowd->changed, &crowd->mutex, &soon);
    }
    pthread_mutex_unlock(&crowd->mutex);
    for (uint32_t i = 0; i < asked; i++)
        idem_cancel(crowd->self->engine, crowd->places[i].ticket);
    pthread_mutex_lock(&crowd->mutex);
    while (crowd->open > 0)
        pthread_cond_wait(&crowd->changed, &crowd->mutex);
    pthread_mutex_unlock(&crowd->mutex);
}

static void
give_back(struct crowd *crowd, uint32_t number)
{
    struct idem_answer answer = {0};
    char name[NAME_ROOM];
    struct idem_op op;

    (void)part_name(name, crowd->name, "#", number, NULL);
    op = op_on_place(crowd, name, IDEM_UNLOCK);
    op.fence = crowd->places[number].fence;
    op.subject = (struct idem_bytes){NULL, 0}; /* UNLOCK: a reason */
    (void)idem__unlock(crowd->self->engine, &op, op.lease_ms, &answer, NULL);
    idem_answer_clear(&answer);
}

/* Take the place again as its owner, to keep it alive. The place is held, so a
 * short failure of the store is retried. */
static enum idem_status
keep_winner(struct crowd *crowd, struct idem_error *err)
{
    uint32_t number = (uint32_t)crowd->winner;
    char name[NAME_ROOM];
    enum idem_status status;

    (void)part_name(name, crowd->name, "#", number, NULL);
    status = take_part(crowd->self, name, err);
    while (status == IDEM_ERR_UNAVAILABLE && left_ms(crowd->self) > 0) {
        usleep(RETRY_US);
        status = take_part(crowd->self, name, err);
    }
    if (status != IDEM_OK)
        give_back(crowd, number);
    return status;
}

static enum idem_status
end_crowd(struct crowd *crowd, uint32_t asked, struct idem_error *err)
{
    choose(crowd, asked);
    for (uint32_t i = 0; i < asked; i++) {
        if (crowd->places[i].fence && crowd->winner != i)
            give_back(crowd, i);
    }
    if (crowd->winner >= 0)
        return keep_winner(crowd, err);
    if (is_stopped(crowd->self))
        return idem__wait_cancelled(err);
    if (crowd->err.status != IDEM_OK) {
        if (err)
            *err = crowd->err;
        return crowd->err.status;
    }
    return idem__fail(err, IDEM_ERR_TIMEOUT,
                      "lock \"%s\": all %u places are held by others",
                      crowd->name, asked);
}

static enum idem_status
try_places(struct idem_locks *self, const char *name, uint32_t permits,
           struct idem_error *err)
{
    uint32_t start = randombytes_uniform(permits);
    int64_t end_us = self->end_us;
    enum idem_status status = IDEM_ERR_TIMEOUT;

    self->end_us = 0; /* do not wait */
    for (uint32_t i = 0; status == IDEM_ERR_TIMEOUT && i < permits; i++) {
        char place[NAME_ROOM];

        status = part_name(place, name, "#", (start + i) % permits, err);
        if (status == IDEM_OK)
            status = take_part(self, place, err);
    }
    self->end_us = end_us;
    return status;
}

static enum idem_status
wait_for_place(struct idem_locks *self, const char *name, uint32_t permits,
               struct idem_error *err)
{
    struct crowd *crowd =
        calloc(1, sizeof(*crowd) + permits * sizeof(crowd->places[0]));
    uint32_t asked = 0;
    enum idem_status status = IDEM_OK;

    if (!crowd)
        return idem__fail(err, IDEM_ERR_MEMORY, "lock: out of memory");
    crowd->self = self;
    crowd->name = name;
    crowd->winner = -1;
    pthread_mutex_init(&crowd->mutex, NULL);
    idem__cond_init(&crowd->changed);
    while (status == IDEM_OK && asked < permits) {
        status = ask(crowd, asked, err);
        asked += status == IDEM_OK;
    }
    if (asked > 0 && status == IDEM_OK) {
        status = end_crowd(crowd, asked, err);
    } else if (asked > 0) {
        choose(crowd, asked);
        for (uint32_t i = 0; i < asked; i++) {
            if (crowd->places[i].fence)
                give_back(crowd, i);
        }
    }
    pthread_cond_destroy(&crowd->changed);
    pthread_mutex_destroy(&crowd->mutex);
    free(crowd);
    return status;
}

static enum idem_status
take_permit(struct idem_locks *self, const char *name, uint32_t permits,
            struct idem_error *err)
{
    enum idem_status status = try_places(self, name, permits, err);

    if (status != IDEM_ERR_TIMEOUT)
        return status;
    if (left_ms(self) > 0)
        return wait_for_place(self, name, permits, err);
    return idem__fail(err, IDEM_ERR_TIMEOUT,
                      "lock \"%s\": all %u places are held by others", name,
                      permits);
}

/* ---- readers and a writer ----------------------------------------------- */

static enum idem_status
take_read(struct idem_locks *self, const char *name, uint32_t readers,
          struct idem_error *err)
{
    char gate[NAME_ROOM];
    idem_lock_lost_fn *lost = self->options.lost;
    struct idem_lock *passed;
    enum idem_status status = part_name(gate, name, "!write", 0, err);

    self->options.lost = NULL; /* do not report the loss of the gate */
    if (status == IDEM_OK)
        status = take_part(self, gate, err);
    self->options.lost = lost;
    if (status != IDEM_OK)
        return status;
    passed = self->parts[0]; /* the gate is not kept */
    self->count = 0;
    status = take_permit(self, name, readers, err);
    (void)idem_lock_give(passed, NULL, NULL);
    return status;
}

static enum idem_status
take_write(struct idem_locks *self, const char *name, uint32_t readers,
           struct idem_error *err)
{
    char part[NAME_ROOM];
    enum idem_status status = part_name(part, name, "!write", 0, err);
    uint64_t fence;

    if (status == IDEM_OK)
        status = take_part(self, part, err);
    fence = self->fence; /* the gate's fence grows from writer to writer */
    for (uint32_t i = 0; status == IDEM_OK && i < readers; i++) {
        status = part_name(part, name, "#", i, err);
        if (status == IDEM_OK)
            status = take_part(self, part, err);
    }
    self->fence = fence;
    return status;
}

/* ---- the interface ------------------------------------------------------ */

static enum idem_status
check(enum idem_lock_mode mode, size_t count, uint32_t permits,
      const struct idem_lock_options *options, struct idem_error *err)
{
    if (count == 0 || count > IDEM_LOCKS_MAX)
        return idem__fail(err, IDEM_ERR_INVALID, "name 1 to %d locks",
                          IDEM_LOCKS_MAX);
    if (mode != IDEM_LOCK_ALL && count != 1)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "permits, readers and writers have one name");
    if (mode != IDEM_LOCK_ALL && (permits == 0 || permits > IDEM_LOCKS_MAX))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a lock has 1 to %d permits or readers",
                          IDEM_LOCKS_MAX);
    if (options && options->owner && strlen(options->owner) > IDEM_SUBJECT_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a lock's owner has at most %d bytes",
                          IDEM_SUBJECT_MAX);
    return IDEM_OK;
}

/* Make the holders of two places different, even if they have the same owner
 * name. */
static void
name_owner(struct idem_locks *self, enum idem_lock_mode mode)
{
    const char *owner = self->options.owner;
    bool alike = owner && (mode == IDEM_LOCK_ALL || mode == IDEM_LOCK_WRITE);
    uint8_t random[16];
    char digits[2 * sizeof(random) + 1];

    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(digits, sizeof(digits), random, sizeof(random));
    if (alike)
        memcpy(self->owner, owner, strlen(owner) + 1);
    else if (owner)
        snprintf(self->owner, sizeof(self->owner), "%.*s/%s",
                 (int)(sizeof(self->owner) - sizeof(digits) - 1), owner,
                 digits);
    else
        snprintf(self->owner, sizeof(self->owner), "%s", digits);
}

static struct idem_locks *
make(struct idem_engine *engine, enum idem_lock_mode mode, size_t parts,
     const struct idem_lock_options *options)
{
    struct idem_locks *self =
        calloc(1, sizeof(*self) + parts * sizeof(self->parts[0]));

    if (!self)
        return NULL;
    if (options)
        self->options = *options;
    self->engine = engine;
    self->end_us = idem__boot_us(engine) + self->options.wait_ms * 1000;
    name_owner(self, mode);
    return self;
}

/* For a list each lock has its own queue. Permits, readers and writers of one
 * name share one queue. */
static enum idem_status
take_turn(struct idem_locks *self, enum idem_lock_mode mode, const char *name,
          struct idem__turn **turn, struct idem_error *err)
{
    char gate[NAME_ROOM];
    enum idem_status status = part_name(gate, name, "!write", 0, err);

    self->options.fair = false;
    return status != IDEM_OK
               ? status
               : idem__turn_take(self->engine, name,
                                 mode == IDEM_LOCK_WRITE ? gate : NULL,
                                 &self->options, self->end_us, turn, err);
}

static enum idem_status
take_mode(struct idem_locks *self, enum idem_lock_mode mode,
          const char *const *names, size_t count, uint32_t permits,
          struct idem_error *err)
{
    switch (mode) {
    case IDEM_LOCK_ALL:
        return take_all(self, names, count, err);
    case IDEM_LOCK_PERMIT:
        return take_permit(self, names[0], permits, err);
    case IDEM_LOCK_READ:
        return take_read(self, names[0], permits, err);
    case IDEM_LOCK_WRITE:
        return take_write(self, names[0], permits, err);
    }
    return idem__fail(err, IDEM_ERR_UNSUPPORTED, "lock: unknown mode");
}

enum idem_status
idem_locks_take(struct idem_engine *engine, enum idem_lock_mode mode,
                const char *const *names, size_t count, uint32_t permits,
                const struct idem_lock_options *options,
                struct idem_locks **locks, struct idem_error *err)
{
    enum idem_status status = check(mode, count, permits, options, err);
    struct idem__turn *turn = NULL;
    struct idem_locks *self;

    *locks = NULL;
    if (status != IDEM_OK)
        return status;
    self = make(engine, mode, (mode == IDEM_LOCK_ALL ? count : permits) + 1,
                options);
    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "lock: out of memory");
    if (self->options.fair && mode != IDEM_LOCK_ALL)
        status = take_turn(self, mode, names[0], &turn, err);
    if (status == IDEM_OK)
        status = take_mode(self, mode, names, count, permits, err);
    idem__turn_give(turn);
    if (status == IDEM_OK)
        *locks = self;
    else
        (void)idem_locks_give(self, NULL, NULL);
    return status;
}

uint64_t
idem_locks_fence(const struct idem_locks *locks)
{
    return locks->fence;
}

bool
idem_locks_held(struct idem_locks *locks)
{
    for (size_t i = 0; i < locks->count; i++) {
        if (!idem_lock_held(locks->parts[i]))
            return false;
    }
    return true;
}

/* Give the parts back in reverse order. */
enum idem_status
idem_locks_give(struct idem_locks *locks, bool *lost, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    if (lost)
        *lost = false;
    for (size_t i = locks ? locks->count : 0; i > 0; i--) {
        bool one = false;
        struct idem_error why;
        enum idem_status said = idem_lock_give(locks->parts[i - 1], &one, &why);

        if (lost && one)
            *lost = true;
        if (said != IDEM_OK && status == IDEM_OK) {
            status = said;
            if (err)
                *err = why;
        }
    }
    free(locks);
    return status;
}
