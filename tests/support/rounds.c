/*
 * rounds.c - random calls of a store that may fail (rounds.h).
 */
#include "rounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BATCH 12
#define LOADS 8
#define RESULT_MAX 9000
#define HOUR_MS INT64_C(3600000)
#define PAGES_MAX 1000

bool
is_trouble(enum idem_status status)
{
    return status == IDEM_ERR_UNAVAILABLE || status == IDEM_ERR_LOST ||
           status == IDEM_ERR_MEMORY || status == IDEM_ERR_FULL;
}

static bool
went_well(struct rounds *rounds, enum idem_status status,
          const struct idem_error *err, const char *what)
{
    if (status == IDEM_OK)
        return true;
    if (!is_trouble(status) && status != rounds->also)
        fail_msg("%s: %s: %s", what, idem_status_name(status), err->text);
    assert_int_equal(err->status, status);
    assert_true(err->text[0] != 0);
    rounds->errors++;
    return false;
}

static int
by_key(const void *a, const void *b)
{
    return memcmp(((const struct round_key *)a)->key,
                  ((const struct round_key *)b)->key, IDEM_KEY_LEN);
}

void
rounds_init(struct rounds *rounds, uint64_t seed)
{
    memset(rounds, 0, sizeof(*rounds));
    rounds->dice.state = seed;
    rounds->now_ms = idem__system_clocks.wall_us(NULL) / 1000;
    snprintf(rounds->scope, sizeof(rounds->scope), "rounds-%016llx",
             (unsigned long long)idem__new_rev());
    for (unsigned i = 0; i < ROUND_KEYS; i++) {
        struct round_key *k = &rounds->keys[i];

        snprintf(k->id, sizeof(k->id), "id-%u", i);
        idem__key(IDEM_TYPE_REQUEST, idem_text(rounds->scope), idem_text(k->id),
                  k->key);
        k->count = 1; /* absent */
    }
    qsort(rounds->keys, ROUND_KEYS, sizeof(rounds->keys[0]), by_key);
}

/* ---- what is known ------------------------------------------------------ */

/* The fence tells whether a record may have been swept. */
#define EXPIRED_FENCE 7

/* One result in four is larger than a page of a database. */
static struct idem_bytes
result_of(uint64_t rev, char text[RESULT_MAX])
{
    size_t len = rev % 4 == 0 ? RESULT_MAX : 32;

    memset(text, (int)('a' + rev % 26), len);
    return (struct idem_bytes){text, len};
}

static bool
may_be(const struct round_key *k, uint64_t rev)
{
    for (size_t i = 0; i < k->count; i++) {
        if (k->revs[i] == rev)
            return true;
    }
    return false;
}

static void
is_now(struct round_key *k, uint64_t rev)
{
    k->revs[0] = rev;
    k->count = 1;
}

static void
may_also_be(struct round_key *k, uint64_t rev)
{
    if (!may_be(k, rev))
        k->revs[k->count++] = rev;
}

/* This record is there; if it has expired, a sweep may remove it. */
static void
has(struct round_key *k, const struct idem_record *record)
{
    is_now(k, record->state == IDEM_STATE_ABSENT ? 0 : record->rev);
    if (record->state != IDEM_STATE_ABSENT && record->fence == EXPIRED_FENCE)
        may_also_be(k, 0);
}

/* The record that a store says it has. */
static void
check_record(const struct rounds *rounds, const struct round_key *k,
             const struct idem_record *record, bool with_result)
{
    bool absent = record->state == IDEM_STATE_ABSENT;
    char result[RESULT_MAX];

    if (!may_be(k, absent ? 0 : record->rev))
        fail_msg("%s: rev %llx cannot be there", k->id,
                 (unsigned long long)(absent ? 0 : record->rev));
    if (absent)
        return;
    assert_true(idem__bytes_equal(record->scope, idem_text(rounds->scope)));
    assert_true(idem__bytes_equal(record->id, idem_text(k->id)));
    if (with_result)
        assert_true(
            idem__bytes_equal(record->result, result_of(record->rev, result)));
}

/* ---- swap --------------------------------------------------------------- */

struct round_batch {
    struct idem_swap swaps[BATCH];
    struct idem_record records[BATCH];
    char results[BATCH][RESULT_MAX];
    struct round_key *keys[BATCH];
    size_t count;
};

static void
add_swap(struct rounds *rounds, struct round_batch *b, struct round_key *k)
{
    bool executing = dice_roll(&rounds->dice, 3) == 0;
    bool expired = !executing && dice_roll(&rounds->dice, 4) == 0;
    struct idem_record *r = &b->records[b->count];
    struct idem_swap *swap = &b->swaps[b->count];

    *r = (struct idem_record){
        .type = IDEM_TYPE_REQUEST,
        .state = executing ? IDEM_STATE_EXECUTING : IDEM_STATE_SUCCEEDED,
        .attempt = 1,
        .fence = expired ? EXPIRED_FENCE : 1,
        .rev = idem__new_rev(),
        .created = rounds->now_ms,
        .updated = rounds->now_ms,
        .lease_until = executing ? rounds->now_ms + HOUR_MS : 0,
        .expires = rounds->now_ms + (expired ? -HOUR_MS : HOUR_MS),
        .scope = idem_text(rounds->scope),
        .id = idem_text(k->id),
    };
    r->result = result_of(r->rev, b->results[b->count]);
    memset(swap, 0, sizeof(*swap));
    memcpy(swap->key, k->key, IDEM_KEY_LEN);
    swap->expected = k->revs[dice_roll(&rounds->dice, k->count)];
    if (dice_roll(&rounds->dice, 12) == 0)
        swap->expected = idem__new_rev(); /* is refused */
    swap->record =
        swap->expected != 0 && dice_roll(&rounds->dice, 7) == 0 ? NULL : r;
    swap->outcome = (enum idem_outcome)99;
    b->keys[b->count++] = k;
}

static void
learn(struct rounds *rounds, struct round_batch *b, size_t i,
      enum idem_status status)
{
    const struct idem_swap *swap = &b->swaps[i];
    struct round_key *k = b->keys[i];
    uint64_t rev = swap->record ? swap->record->rev : 0;

    switch (swap->outcome) {
    case IDEM_SWAP_STORED:
        assert_true(may_be(k, swap->expected));
        is_now(k, rev);
        rounds->stored++;
        break;
    case IDEM_SWAP_REFUSED:
        check_record(rounds, k, &swap->found, true);
        assert_true(swap->found.state == IDEM_STATE_ABSENT
                        ? swap->expected != 0
                        : swap->found.rev != swap->expected);
        has(k, &swap->found);
        rounds->refused++;
        break;
    case IDEM_SWAP_LOST:
        assert_int_not_equal(status, IDEM_OK);
        if (may_be(k, swap->expected))
            may_also_be(k, rev);
        rounds->lost++;
        break;
    default:
        assert_int_equal(swap->outcome, IDEM_SWAP_NOT_STORED);
        assert_int_not_equal(status, IDEM_OK);
        rounds->not_stored++;
    }
    if (swap->record && swap->record->fence == EXPIRED_FENCE && may_be(k, rev))
        may_also_be(k, 0); /* a sweep may remove it */
}

static bool
swap_some(struct rounds *rounds, struct idem_store *store)
{
    struct idem_error err = {IDEM_OK, ""};
    struct idem_arena arena = {NULL, 0};
    size_t wanted = 1 + dice_roll(&rounds->dice, BATCH);
    struct round_batch b;
    enum idem_status status;

    b.count = 0;
    for (size_t i = 0; i < ROUND_KEYS && b.count < wanted; i++) {
        if (dice_roll(&rounds->dice, 3) == 0 &&
            rounds->keys[i].count + 2 <= ROUND_MAYBE)
            add_swap(rounds, &b, &rounds->keys[i]);
    }
    status = store->type->swap(store, b.swaps, b.count, &arena, &err);
    for (size_t i = 0; i < b.count; i++)
        learn(rounds, &b, i, status);
    idem_arena_clear(&arena);
    return went_well(rounds, status, &err, "swap");
}

/* ---- load, scan, and the rest ------------------------------------------- */

static bool
load_some(struct rounds *rounds, struct idem_store *store, size_t count)
{
    struct idem_load loads[ROUND_KEYS];
    struct idem_error err = {IDEM_OK, ""};
    struct idem_arena arena = {NULL, 0};
    size_t first = dice_roll(&rounds->dice, ROUND_KEYS - count + 1);
    enum idem_status status;

    memset(loads, 0, sizeof(loads));
    for (size_t i = 0; i < count; i++) {
        memcpy(loads[i].key, rounds->keys[first + i].key, IDEM_KEY_LEN);
        loads[i].with_result = dice_roll(&rounds->dice, 2) == 0;
    }
    status = store->type->load(store, loads, count, &arena, &err);
    for (size_t i = 0; i < count && status == IDEM_OK; i++) {
        struct round_key *k = &rounds->keys[first + i];
        const struct idem_record *r = &loads[i].record;

        check_record(rounds, k, r, loads[i].with_result);
        has(k, r);
    }
    idem_arena_clear(&arena);
    return went_well(rounds, status, &err, "load");
}

static bool
check_shown(void *arg, const struct idem_record *record)
{
    struct rounds *rounds = arg;

    for (size_t i = 0; i < ROUND_KEYS; i++) {
        if (idem__bytes_equal(record->id, idem_text(rounds->keys[i].id))) {
            check_record(rounds, &rounds->keys[i], record, false);
            return rounds->keys[i].shown = true;
        }
    }
    fail_msg("a scan shows a record that nobody wrote");
    return false;
}

static bool
scan_some(struct rounds *rounds, struct idem_store *store)
{
    struct idem_filter filter = {.scope = idem_text(rounds->scope)};
    struct idem_now now = {rounds->now_ms, rounds->now_ms, 0, 0, 0, 0};
    struct idem_cursor cursor = {"0"};
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status = IDEM_OK;
    bool over = false;

    for (size_t i = 0; i < ROUND_KEYS; i++)
        rounds->keys[i].shown = false;
    for (int page = 0; page < PAGES_MAX && status == IDEM_OK && !over; page++) {
        struct idem_query query = {&filter,     &now,   &cursor,      25,
                                   check_shown, rounds, page % 2 == 0};

        status = store->type->scan(store, &query, &err);
        over = status == IDEM_OK && strcmp(cursor.text, "0") == 0;
    }
    assert_true(over || status != IDEM_OK);
    for (size_t i = 0; i < ROUND_KEYS && over && !rounds->lies; i++) {
        if (!rounds->keys[i].shown && !may_be(&rounds->keys[i], 0))
            fail_msg("a scan leaves out %s", rounds->keys[i].id);
    }
    return went_well(rounds, status, &err, "scan");
}

static bool
ask_time(struct rounds *rounds, struct idem_store *store)
{
    struct idem_error err = {IDEM_OK, ""};
    int64_t now_us = 0;
    enum idem_status status;

    if (!store->type->now)
        return true;
    status = store->type->now(store, &now_us, &err);
    if (status == IDEM_OK)
        assert_true(llabs(now_us / 1000 - rounds->now_ms) < HOUR_MS / 2);
    return went_well(rounds, status, &err, "now");
}

static void
hear(void *arg, enum idem_news news, const uint8_t *key)
{
    struct rounds *rounds = arg;

    (void)news;
    (void)key;
    atomic_fetch_add(&rounds->news, 1);
}

static void
watch_one(struct rounds *rounds, struct idem_store *store)
{
    struct round_key *k = &rounds->keys[dice_roll(&rounds->dice, ROUND_KEYS)];

    if (!store->type->watch)
        return;
    if (!store->news) { /* its thread reads them */
        store->news_arg = rounds;
        store->news = hear;
    }
    if (k->watched) {
        (void)store->type->watch(store, k->key, false);
        k->watched = false;
    } else {
        k->watched = store->type->watch(store, k->key, true);
    }
}

static void
ignore_figure(void *arg, const char *name, double value)
{
    (void)arg;
    assert_true(name[0] != 0 && value >= 0);
}

bool
rounds_turn(struct rounds *rounds, struct idem_store *store)
{
    size_t before = rounds->errors;

    if (store->type->figures)
        store->type->figures(store, ignore_figure, NULL);
    watch_one(rounds, store);
    (void)swap_some(rounds, store);
    (void)load_some(rounds, store, LOADS);
    if (rounds->turns++ % 3 == 1) /* it takes long */
        (void)scan_some(rounds, store);
    (void)ask_time(rounds, store);
    if (store->type->tend)
        store->type->tend(store, rounds->now_ms);
    return rounds->errors == before;
}

/* Every record that is there can be deleted, and then it is gone. */
static void
delete_all(struct rounds *rounds, struct idem_store *store)
{
    struct idem_error err = {IDEM_OK, ""};
    struct idem_arena arena = {NULL, 0};
    struct idem_swap swaps[ROUND_KEYS];
    size_t count = 0;

    memset(swaps, 0, sizeof(swaps));
    for (size_t i = 0; i < ROUND_KEYS; i++) {
        if (rounds->keys[i].revs[0] == 0)
            continue;
        memcpy(swaps[count].key, rounds->keys[i].key, IDEM_KEY_LEN);
        swaps[count++].expected = rounds->keys[i].revs[0];
        rounds->keys[i].revs[0] = 0; /* either the delete or a sweep did it */
        rounds->keys[i].count = 1;
    }
    if (store->type->swap(store, swaps, count, &arena, &err) != IDEM_OK)
        fail_msg("delete: %s", err.text);
    for (size_t i = 0; i < count; i++)
        assert_true(swaps[i].outcome == IDEM_SWAP_STORED ||
                    (swaps[i].outcome == IDEM_SWAP_REFUSED &&
                     swaps[i].found.state == IDEM_STATE_ABSENT));
    idem_arena_clear(&arena);
}

void
rounds_check(struct rounds *rounds, struct idem_store *store)
{
    rounds->errors = 0;
    if (!load_some(rounds, store, ROUND_KEYS))
        fail_msg("it does not answer after the faults");
    delete_all(rounds, store);
    if (!load_some(rounds, store, ROUND_KEYS))
        fail_msg("it does not answer after the faults");
}
