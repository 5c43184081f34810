/*
 * faulty_store.c - see faulty_store.h.
 */
#include "faulty_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t
wall_us(void *arg)
{
    return atomic_load(&((struct test_clocks *)arg)->wall_us);
}

static int64_t
boot_us(void *arg)
{
    return atomic_load(&((struct test_clocks *)arg)->boot_us);
}

void
test_clocks_init(struct test_clocks *clocks)
{
    clocks->clocks = (struct idem_clocks){
        .wall_us = wall_us, .boot_us = boot_us, .arg = clocks};
    atomic_store(&clocks->wall_us, INT64_C(1700000000000000));
    atomic_store(&clocks->boot_us, INT64_C(5000000000));
}

void
test_clocks_pass(struct test_clocks *clocks, int64_t ms)
{
    atomic_fetch_add(&clocks->wall_us, ms * 1000);
    atomic_fetch_add(&clocks->boot_us, ms * 1000);
}

static bool
fails(struct faulty_store *self)
{
    int call = atomic_fetch_add(&self->calls, 1) + 1;
    int from = atomic_load(&self->from);

    return self->fault != FAULT_NONE && call >= from &&
           call < from + atomic_load(&self->count);
}

/* How this swap fails. */
static enum fault
next_fault(struct faulty_store *self)
{
    static const enum fault all[] = {FAULT_LOST_APPLIED, FAULT_LOST_NOT,
                                     FAULT_LOST_PARTLY, FAULT_FULL,
                                     FAULT_LOCKED};

    if (self->chaos > 0)
        return dice_roll(&self->dice, (uint64_t)self->chaos) == 0
                   ? all[dice_roll(&self->dice, 5)]
                   : FAULT_NONE;
    return fails(self) ? atomic_load(&self->fault) : FAULT_NONE;
}

static void
enter(struct faulty_store *self)
{
    if (self->lock)
        pthread_mutex_lock(self->lock);
}

static void
leave(struct faulty_store *self)
{
    if (self->lock)
        pthread_mutex_unlock(self->lock);
}

static enum idem_status
fail_swap(struct faulty_store *self, enum fault fault, struct idem_swap *swaps,
          size_t count, struct idem_arena *arena, struct idem_error *err)
{
    switch (fault) {
    case FAULT_LOST_APPLIED:
        self->inner->type->swap(self->inner, swaps, count, arena, NULL);
        break;
    case FAULT_LOST_PARTLY:
        for (size_t i = 0; i < count; i += 2)
            self->inner->type->swap(self->inner, &swaps[i], 1, arena, NULL);
        break;
    default:
        break;
    }
    for (size_t i = 0; i < count; i++) {
        bool not_stored = fault == FAULT_UNAVAILABLE || fault == FAULT_FULL ||
                          (fault == FAULT_SOME_LOST && i % 2 == 0);

        swaps[i].outcome = fault == FAULT_LOCKED ? IDEM_SWAP_LOCKED
                           : not_stored          ? IDEM_SWAP_NOT_STORED
                                                 : IDEM_SWAP_LOST;
        memset(&swaps[i].found, 0xEE, sizeof(swaps[i].found));
    }
    if (fault == FAULT_LOCKED)
        return IDEM_OK;
    if (fault == FAULT_UNAVAILABLE)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "planned: unavailable");
    if (fault == FAULT_FULL)
        return idem__fail(err, IDEM_ERR_FULL, "planned: full");
    return idem__fail(err, IDEM_ERR_LOST, "planned: lost");
}

static bool
lies(struct faulty_store *self, enum lie lie)
{
    int calls = atomic_load(&self->swaps) + atomic_load(&self->loads);

    return self->lie == lie && calls % 100 == 0;
}

/* What the record was a moment ago is of no interest to this one. */
static void
swap_blindly(struct faulty_store *self, struct idem_swap *swaps, size_t count,
             struct idem_arena *arena)
{
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome != IDEM_SWAP_REFUSED)
            continue;
        swaps[i].expected = swaps[i].found.rev;
        self->inner->type->swap(self->inner, &swaps[i], 1, arena, NULL);
    }
}

static enum idem_status
swap_and_lie(struct faulty_store *self, struct idem_swap *swaps, size_t count,
             struct idem_arena *arena, struct idem_error *err)
{
    enum idem_status status;

    if (lies(self, LIE_FORGETS_WRITES)) {
        for (size_t i = 0; i < count; i++)
            swaps[i].outcome = IDEM_SWAP_STORED;
        return IDEM_OK;
    }
    status = self->inner->type->swap(self->inner, swaps, count, arena, err);
    if (self->lie == LIE_SHOWS_NOTHING)
        swap_blindly(self, swaps, count, arena);
    return status;
}

static void
load_and_lie(struct faulty_store *self, struct idem_load *loads, size_t count)
{
    static const char other[] = "another result";

    for (size_t i = 0; i < count; i++) {
        if (lies(self, LIE_SHOWS_NOTHING))
            loads[i].record.state = IDEM_STATE_ABSENT;
        if (lies(self, LIE_CHANGES_RESULTS) && loads[i].record.result.len > 0)
            loads[i].record.result = (struct idem_bytes){other, sizeof(other)};
    }
}

static bool
frees_held(struct faulty_store *self, const struct idem_swap *swaps,
           size_t count)
{
    for (size_t i = 0; self->held_key && i < count; i++) {
        if (memcmp(swaps[i].key, self->held_key, IDEM_KEY_LEN) == 0 &&
            swaps[i].record && swaps[i].record->state == IDEM_STATE_FREE &&
            atomic_load(&self->held) > 0) {
            atomic_fetch_sub(&self->held, 1);
            return true;
        }
    }
    return false;
}

/* The contract of a store: keys are sorted, and no key comes twice. */
static void
must_be_next(const uint8_t *key, const uint8_t *last)
{
    if (memcmp(last, key, IDEM_KEY_LEN) < 0)
        return;
    fputs("faulty_store: the keys of a batch are not sorted\n", stderr);
    abort();
}

static bool
has_key(const struct idem_swap *swaps, size_t count, const uint8_t *key)
{
    for (size_t i = 0; i < count; i++) {
        if (memcmp(swaps[i].key, key, IDEM_KEY_LEN) == 0)
            return true;
    }
    return false;
}

/* As a store that looks only at the expected rev. */
static void
refuse_again(struct faulty_store *self, struct idem_swap *swap,
             struct idem_arena *arena)
{
    struct idem_load load = {.with_result = true};

    memcpy(load.key, swap->key, IDEM_KEY_LEN);
    if (self->inner->type->load(self->inner, &load, 1, arena, NULL) ==
            IDEM_OK &&
        load.record.state != IDEM_STATE_ABSENT &&
        load.record.rev == swap->record->rev) {
        swap->outcome = IDEM_SWAP_REFUSED;
        swap->found = load.record;
    }
}

/* One of the swaps of a batch that has an unwritable one. */
static void
swap_beside(struct faulty_store *self, struct idem_swap *swap,
            struct idem_arena *arena)
{
    swap->outcome = IDEM_SWAP_NOT_STORED;
    if (self->beside == BESIDE_NOT_STORED ||
        memcmp(swap->key, self->unwritable, IDEM_KEY_LEN) == 0)
        return;
    (void)self->inner->type->swap(self->inner, swap, 1, arena, NULL);
    if (self->beside == BESIDE_LOST)
        swap->outcome = IDEM_SWAP_LOST;
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct faulty_store *self = (struct faulty_store *)store;
    enum idem_status status;
    enum fault fault;

    for (size_t i = 1; i < count; i++)
        must_be_next(swaps[i].key, swaps[i - 1].key);
    atomic_fetch_add(&self->swaps, 1);
    if (self->before_swap)
        self->before_swap(self->before_swap_arg, self);
    if (self->unwritable && has_key(swaps, count, self->unwritable)) {
        for (size_t i = 0; i < count; i++)
            swap_beside(self, &swaps[i], arena);
        return idem__fail(err, IDEM_ERR_CORRUPT, "planned: damaged");
    }
    enter(self);
    fault = next_fault(self);
    if (self->refuses_again && fault == FAULT_NONE) {
        swaps[0].outcome = IDEM_SWAP_LOST;
        refuse_again(self, &swaps[0], arena);
        if (swaps[0].outcome == IDEM_SWAP_REFUSED) {
            leave(self);
            return IDEM_OK;
        }
    }
    if (fault == FAULT_NONE && frees_held(self, swaps, count))
        fault = FAULT_LOCKED;
    if (fault != FAULT_NONE)
        status = fail_swap(self, fault, swaps, count, arena, err);
    else
        status = swap_and_lie(self, swaps, count, arena, err);
    leave(self);
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct faulty_store *self = (struct faulty_store *)store;
    enum idem_status status;

    for (size_t i = 1; i < count; i++)
        must_be_next(loads[i].key, loads[i - 1].key);
    atomic_fetch_add(&self->loads, 1);
    for (size_t i = 0; self->damaged && i < count; i++) {
        if (memcmp(loads[i].key, self->damaged, IDEM_KEY_LEN) == 0)
            return idem__fail(err, IDEM_ERR_CORRUPT, "planned: damaged");
    }
    if (atomic_load(&self->load_fails) != IDEM_OK)
        return idem__fail(err, atomic_load(&self->load_fails), "planned");
    enter(self);
    if (self->fault == FAULT_UNAVAILABLE && fails(self))
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE, "planned: no load");
    else
        status = self->inner->type->load(self->inner, loads, count, arena, err);
    if (status == IDEM_OK)
        load_and_lie(self, loads, count);
    leave(self);
    return status;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_query *query,
             struct idem_error *err)
{
    struct faulty_store *self = (struct faulty_store *)store;
    enum idem_status status;

    if (atomic_load(&self->scan_fails) != IDEM_OK)
        return idem__fail(err, atomic_load(&self->scan_fails), "planned");
    enter(self);
    status = self->inner->type->scan(self->inner, query, err);
    leave(self);
    return status;
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct faulty_store *self = (struct faulty_store *)store;
    enum idem_status status;

    atomic_fetch_add(&self->nows, 1);
    if (self->faulty_now && fails(self))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "planned: no clock");
    enter(self);
    status = self->inner->type->now(self->inner, now_us, err);
    leave(self);
    *now_us += atomic_load(&self->clock_us);
    if (self->during_now)
        self->during_now(self->during_now_arg);
    return status;
}

static void
close_store(struct idem_store *store)
{
    struct faulty_store *self = (struct faulty_store *)store;

    if (!self->lock)
        idem__store_close(self->inner);
}

#define METHODS                                                                \
    .scheme = "faulty", .swap = swap_batch, .load = load_batch,                \
    .scan = scan_records, .close = close_store

static const struct idem_store_type types[] = {
    [FAULTY_LOCAL] = {METHODS, .local = true, .now = read_clock},
    [FAULTY_REMOTE] = {METHODS, .now = read_clock},
    [FAULTY_CLOCKLESS] = {METHODS},
    [FAULTY_PARTIAL] = {METHODS, .partial = true, .now = read_clock},
};

struct faulty_store *
faulty_open(enum faulty_kind kind, struct idem_store *inner,
            pthread_mutex_t *lock)
{
    struct faulty_store *self = calloc(1, sizeof(*self));

    if (!self)
        abort();
    self->base.type = &types[kind];
    self->base.max_record = inner->max_record;
    self->inner = inner;
    self->lock = lock;
    return self;
}

void
faulty_plan(struct faulty_store *store, enum fault fault, int skip, int count)
{
    atomic_store(&store->fault, FAULT_NONE);
    atomic_store(&store->from, atomic_load(&store->calls) + 1 + skip);
    atomic_store(&store->count, count);
    atomic_store(&store->fault, fault);
}

void
faulty_chaos(struct faulty_store *store, int one_in)
{
    store->chaos = one_in;
    store->dice.state =
        number_from_env("IDEM_TEST_SEED", idem__new_rev() >> 32);
    printf("IDEM_TEST_SEED=%llu\n", (unsigned long long)store->dice.state);
}
