/*
 * contract.c - what src/store/store.h promises, clause by clause.
 *
 * Every clause opens the store anew through `setup` and works in a scope of its
 * own, so that the suite can run on a store that others use, and twice.
 */
#include "contract.h"

#include "stores.h"

#include <pthread.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *store_url;

/* One clause at work. */
struct clause {
    struct idem_store *store;
    struct idem_arena arena;
    char scope[40];
    int64_t now_ms;
};

static struct idem_store *
open_again(void)
{
    struct idem_store *store = NULL;
    struct idem_error err = {0};

    if (idem__store_open(store_url, NULL, &store, &err) != IDEM_OK)
        fail_msg("%s: %s", store_url, err.text);
    assert_non_null(store->type);
    assert_true(store->max_record >= idem__encoded_max(4096));
    return store;
}

static int
setup(void **state)
{
    struct clause *c = calloc(1, sizeof(*c));
    int64_t now_us = idem__system_clocks.wall_us(NULL);

    if (!c)
        return -1;
    *state = c;
    c->store = open_again();
    if (c->store->type->now)
        assert_int_equal(c->store->type->now(c->store, &now_us, NULL), IDEM_OK);
    c->now_ms = now_us / 1000;
    snprintf(c->scope, sizeof(c->scope), "contract-%016llx",
             (unsigned long long)idem__new_rev());
    return 0;
}

static int
teardown(void **state)
{
    struct clause *c = *state;

    idem__store_close(c->store);
    idem_arena_clear(&c->arena);
    free(c);
    return 0;
}

/* ---- records ---------------------------------------------------------- */

/* A plain record of this clause, named by a number. */
static struct idem_record
record_of(struct clause *c, unsigned number)
{
    char *id = idem_arena_take(&c->arena, 16);
    char *result = idem_arena_take(&c->arena, 32);
    struct idem_record r = {
        .type = IDEM_TYPE_REQUEST,
        .state = IDEM_STATE_SUCCEEDED,
        .attempt = 1,
        .fence = 1000 + number,
        .rev = idem__new_rev(),
        .created = c->now_ms,
        .updated = c->now_ms,
        .expires = c->now_ms + 3600000,
        .scope = idem_text(c->scope),
    };

    assert_true(id && result);
    snprintf(id, 16, "id-%u", number);
    snprintf(result, 32, "result of %u", number);
    r.id = idem_text(id);
    r.result = idem_text(result);
    return r;
}

static void
assert_same(const struct idem_record *want, const struct idem_record *got,
            bool with_result)
{
    struct idem_record a = *want, b = *got;
    struct idem_bytes none = {NULL, 0};

    assert_true(idem__bytes_equal(a.scope, b.scope));
    assert_true(idem__bytes_equal(a.id, b.id));
    assert_true(idem__bytes_equal(a.subject, b.subject));
    if (with_result)
        assert_true(idem__bytes_equal(a.result, b.result));
    a.scope = a.id = a.subject = a.result = none;
    b.scope = b.id = b.subject = b.result = none;
    assert_int_equal(a.type, b.type);
    assert_int_equal(a.state, b.state);
    assert_int_equal(a.mode, b.mode);
    assert_int_equal(a.kind, b.kind);
    assert_int_equal(a.flags, b.flags);
    assert_int_equal(a.attempt, b.attempt);
    assert_true(a.fence == b.fence);
    assert_true(a.rev == b.rev);
    assert_true(a.created == b.created);
    assert_true(a.updated == b.updated);
    assert_true(a.lease_until == b.lease_until);
    assert_true(a.expires == b.expires);
    assert_memory_equal(a.nonce, b.nonce, sizeof(a.nonce));
    if (a.flags & IDEM_FLAG_FINGERPRINT)
        assert_memory_equal(a.fingerprint, b.fingerprint,
                            sizeof(a.fingerprint));
}

static struct idem_swap
swap_of(const struct idem_record *named, uint64_t expected,
        const struct idem_record *record)
{
    struct idem_swap swap = {.expected = expected,
                             .record = record,
                             .outcome = (enum idem_outcome)99};

    idem__key(named->type, named->scope, named->id, swap.key);
    return swap;
}

static int
by_key(const void *a, const void *b)
{
    return memcmp(((const struct idem_swap *)a)->key,
                  ((const struct idem_swap *)b)->key, IDEM_KEY_LEN);
}

static void
swap_batch(struct clause *c, struct idem_swap *swaps, size_t count)
{
    struct idem_error err = {0};
    enum idem_status status;

    qsort(swaps, count, sizeof(*swaps), by_key);
    status = c->store->type->swap(c->store, swaps, count, &c->arena, &err);
    if (status != IDEM_OK)
        fail_msg("swap: %s: %s", idem_status_name(status), err.text);
}

/* One swap; its outcome, and what was found. */
static enum idem_outcome
swap_one(struct clause *c, const struct idem_record *named, uint64_t expected,
         const struct idem_record *record, struct idem_record *found)
{
    struct idem_swap swap = swap_of(named, expected, record);

    swap_batch(c, &swap, 1);
    if (found)
        *found = swap.found;
    return swap.outcome;
}

static void
put(struct clause *c, const struct idem_record *r)
{
    assert_int_equal(swap_one(c, r, 0, r, NULL), IDEM_SWAP_STORED);
}

static struct idem_record
load_one(struct clause *c, const struct idem_record *named, bool with_result)
{
    struct idem_load load = {.with_result = with_result};
    struct idem_error err = {0};

    idem__key(named->type, named->scope, named->id, load.key);
    if (c->store->type->load(c->store, &load, 1, &c->arena, &err) != IDEM_OK)
        fail_msg("load: %s", err.text);
    return load.record;
}

static void
assert_there(struct clause *c, const struct idem_record *want)
{
    struct idem_record got = load_one(c, want, true);

    assert_same(want, &got, true);
}

static void
assert_gone(struct clause *c, const struct idem_record *named)
{
    assert_int_equal(load_one(c, named, true).state, IDEM_STATE_ABSENT);
}

/* ---- swap ------------------------------------------------------------- */

static void
what_is_absent_is_stored_and_read_back(void **state)
{
    struct clause *c = *state;
    struct idem_record r = record_of(c, 1);

    assert_gone(c, &r);
    put(c, &r);
    assert_there(c, &r);
}

static void
a_swap_that_expected_nothing_is_refused_with_the_record(void **state)
{
    struct clause *c = *state;
    struct idem_record first = record_of(c, 1), second = record_of(c, 1);
    struct idem_record found;

    put(c, &first);
    assert_int_equal(swap_one(c, &second, 0, &second, &found),
                     IDEM_SWAP_REFUSED);
    assert_same(&first, &found, true); /* with its result */
    assert_there(c, &first);
}

static void
a_swap_that_expected_another_rev_is_refused(void **state)
{
    struct clause *c = *state;
    struct idem_record first = record_of(c, 1), second = record_of(c, 1);
    struct idem_record found;

    put(c, &first);
    assert_int_equal(swap_one(c, &second, first.rev ^ 1, &second, &found),
                     IDEM_SWAP_REFUSED);
    assert_same(&first, &found, true);
}

static void
a_swap_that_expected_something_finds_nothing(void **state)
{
    struct clause *c = *state;
    struct idem_record r = record_of(c, 1), found;

    assert_int_equal(swap_one(c, &r, 4711, &r, &found), IDEM_SWAP_REFUSED);
    assert_int_equal(found.state, IDEM_STATE_ABSENT);
    assert_gone(c, &r);
}

static void
a_swap_with_the_right_rev_replaces_everything(void **state)
{
    struct clause *c = *state;
    struct idem_record first = record_of(c, 1), second = record_of(c, 1);

    first.flags = IDEM_FLAG_FINGERPRINT;
    memset(first.fingerprint, 1, sizeof(first.fingerprint));
    first.subject = idem_text("first");
    put(c, &first);
    second.state = IDEM_STATE_FREE;
    second.result = (struct idem_bytes){NULL, 0};
    second.fence = 1002;
    assert_int_equal(swap_one(c, &second, first.rev, &second, NULL),
                     IDEM_SWAP_STORED);
    assert_there(c, &second);
}

static void
the_identical_swap_again_counts_as_stored(void **state)
{
    struct clause *c = *state;
    struct idem_record first = record_of(c, 1), second = record_of(c, 1);

    put(c, &first);
    put(c, &first);
    assert_int_equal(swap_one(c, &second, first.rev, &second, NULL),
                     IDEM_SWAP_STORED);
    assert_int_equal(swap_one(c, &second, first.rev, &second, NULL),
                     IDEM_SWAP_STORED);
    assert_there(c, &second);
    assert_int_equal(swap_one(c, &first, 0, &first, NULL), IDEM_SWAP_REFUSED);
}

static void
a_delete_needs_the_right_rev(void **state)
{
    struct clause *c = *state;
    struct idem_record r = record_of(c, 1), found;

    put(c, &r);
    assert_int_equal(swap_one(c, &r, r.rev ^ 1, NULL, &found),
                     IDEM_SWAP_REFUSED);
    assert_same(&r, &found, true);
    assert_int_equal(swap_one(c, &r, r.rev, NULL, NULL), IDEM_SWAP_STORED);
    assert_gone(c, &r);
    /* And again: what was expected is not there. */
    assert_int_equal(swap_one(c, &r, r.rev, NULL, &found), IDEM_SWAP_REFUSED);
    assert_int_equal(found.state, IDEM_STATE_ABSENT);
    put(c, &r); /* a key can live again */
    assert_there(c, &r);
}

/* Every swap of a batch has its own outcome; a refusal stops nobody else. */
/* Nobody does that, but nothing may go by it that is there. */
static void
a_delete_that_expected_nothing_takes_nothing_away(void **state)
{
    struct clause *c = *state;
    struct idem_record there = record_of(c, 1);
    struct idem_swap swap = swap_of(&there, 0, NULL);

    put(c, &there);
    swap_batch(c, &swap, 1);
    assert_int_equal(swap.outcome, IDEM_SWAP_REFUSED);
    assert_same(&there, &swap.found, true);
    assert_there(c, &there);
}

static void
a_batch_has_an_outcome_for_each(void **state)
{
    enum { COUNT = 90 };
    struct clause *c = *state;
    static struct idem_record old[COUNT], new[COUNT];
    static struct idem_swap swaps[COUNT];

    for (unsigned i = 0; i < COUNT; i++) {
        old[i] = record_of(c, i);
        new[i] = record_of(c, i);
        if (i % 3 != 0)
            put(c, &old[i]);
        /* 0: new; 1: expects nothing though it is there; 2: delete */
        swaps[i] = swap_of(&old[i], i % 3 == 2 ? old[i].rev : 0,
                           i % 3 == 2 ? NULL : &new[i]);
    }
    swap_batch(c, swaps, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        struct idem_swap *swap = NULL;
        struct idem_swap named = swap_of(&old[i], 0, NULL);

        swap = bsearch(&named, swaps, COUNT, sizeof(*swaps), by_key);
        assert_non_null(swap);
        assert_int_equal(swap->outcome,
                         i % 3 == 1 ? IDEM_SWAP_REFUSED : IDEM_SWAP_STORED);
        if (i % 3 == 0)
            assert_there(c, &new[i]);
        else if (i % 3 == 2)
            assert_gone(c, &old[i]);
        else
            assert_same(&old[i], &swap->found, true);
    }
}

/* etcd writes a batch of known records in a faster way, which one wrong rev
 * makes impossible, and then in the other way for a while. */
static void
a_wrong_rev_refuses_only_its_own_swap(void **state)
{
    enum { COUNT = 120, TIMES = 20, WRONG = 60 };
    struct clause *c = *state;
    static struct idem_record now[COUNT], next[COUNT];
    static struct idem_swap swaps[COUNT];

    for (unsigned i = 0; i < COUNT; i++) {
        now[i] = record_of(c, i);
        swaps[i] = swap_of(&now[i], 0, &now[i]);
    }
    swap_batch(c, swaps, COUNT);
    for (unsigned time = 0; time < TIMES; time++) {
        bool has_wrong = time == 0 || time == TIMES - 1;

        for (unsigned i = 0; i < COUNT; i++) {
            next[i] = record_of(c, i);
            swaps[i] = swap_of(&now[i], now[i].rev + (has_wrong && i == WRONG),
                               &next[i]);
        }
        swap_batch(c, swaps, COUNT);
        for (unsigned i = 0; i < COUNT; i++) {
            bool wrong = has_wrong && swaps[i].record == &next[WRONG];

            assert_int_equal(swaps[i].outcome,
                             wrong ? IDEM_SWAP_REFUSED : IDEM_SWAP_STORED);
            if (wrong)
                assert_same(&now[WRONG], &swaps[i].found, true);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            if (!has_wrong || i != WRONG)
                now[i] = next[i];
            if (has_wrong)
                assert_there(c, &now[i]);
        }
    }
}

static void
a_batch_of_a_thousand_is_stored(void **state)
{
    enum { COUNT = 1000 };
    struct clause *c = *state;
    static struct idem_record records[COUNT];
    static struct idem_swap swaps[COUNT];
    static struct idem_load loads[COUNT];

    for (unsigned i = 0; i < COUNT; i++) {
        records[i] = record_of(c, i);
        swaps[i] = swap_of(&records[i], 0, &records[i]);
    }
    swap_batch(c, swaps, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(swaps[i].outcome, IDEM_SWAP_STORED);
        loads[i].with_result = true;
        memcpy(loads[i].key, swaps[i].key, IDEM_KEY_LEN);
    }
    assert_int_equal(
        c->store->type->load(c->store, loads, COUNT, &c->arena, NULL), IDEM_OK);
    for (unsigned i = 0; i < COUNT; i++)
        assert_same(swaps[i].record, &loads[i].record, true);
}

/* ---- what a record may hold ------------------------------------------- */

static void
every_field_comes_back_whatever_it_holds(void **state)
{
    enum { COUNT = 4 * 5 * 2 * 4 };
    struct clause *c = *state;
    static struct idem_record records[COUNT];
    static struct idem_swap swaps[COUNT];

    for (unsigned i = 0; i < COUNT; i++) {
        struct idem_record *r = &records[i];

        *r = record_of(c, i);
        r->type = (uint8_t)(1 + i % 4);
        r->state = (uint8_t)(1 + i / 4 % 5);
        r->mode = (uint8_t)(i / 20 % 2);
        r->kind = (uint8_t)(i % 3);
        r->flags = (uint8_t)(i % 64);
        if (r->flags & IDEM_FLAG_FINGERPRINT)
            memset(r->fingerprint, (int)(0x70 + i), sizeof(r->fingerprint));
        memset(r->nonce, (int)(i * 31), sizeof(r->nonce));
        r->attempt = i % 2 ? UINT32_MAX : 0;
        r->fence = i % 2 ? IDEM_FENCE_MAX : 1;
        r->rev = i % 7 == 0 ? UINT64_MAX - i : i % 7 == 1 ? i + 1 : r->rev;
        r->created = i % 2 ? 0 : c->now_ms;
        if (r->state == IDEM_STATE_EXECUTING)
            r->lease_until = i % 2 ? 1 : c->now_ms + IDEM_LEASE_MAX_MS;
        r->expires = i % 5 == 0 ? 0 : c->now_ms + IDEM_TTL_MAX_MS;
        r->subject = i % 2 ? idem_text("held by \xff'\"\\;--")
                           : (struct idem_bytes){NULL, 0};
        if (i % 3 == 0)
            r->result = (struct idem_bytes){NULL, 0};
        swaps[i] = swap_of(r, 0, r);
    }
    swap_batch(c, swaps, COUNT);
    for (unsigned i = 0; i < COUNT; i++)
        assert_there(c, &records[i]);
}

static void
names_and_results_may_hold_any_bytes(void **state)
{
    struct clause *c = *state;
    static uint8_t all[256];
    char scope[IDEM_SCOPE_MAX], id[IDEM_ID_MAX], other[IDEM_ID_MAX];
    struct idem_record r = record_of(c, 1), twin;

    for (unsigned i = 0; i < sizeof(all); i++)
        all[i] = (uint8_t)i;
    memset(scope, 0xff, sizeof(scope));
    memcpy(scope, c->scope, strlen(c->scope));
    for (unsigned i = 0; i < sizeof(id); i++)
        id[i] = (char)(i + 1);
    r.scope = (struct idem_bytes){scope, sizeof(scope)};
    r.id = (struct idem_bytes){id, sizeof(id)};
    r.subject = (struct idem_bytes){id, sizeof(id)};
    r.result = (struct idem_bytes){all, sizeof(all)};
    put(c, &r);
    assert_there(c, &r);

    /* Neither case nor trailing blanks nor accents make two names one. */
    memcpy(other, id, sizeof(id));
    other['a' - 1] = 'A';
    twin = record_of(c, 2);
    twin.scope = r.scope;
    twin.id = (struct idem_bytes){other, sizeof(other)};
    put(c, &twin);
    assert_there(c, &r);
    twin = record_of(c, 3);
    twin.scope = r.scope;
    twin.id = (struct idem_bytes){id, sizeof(id) - 1};
    put(c, &twin);
    assert_there(c, &twin);
    assert_there(c, &r);
}

static void
the_same_name_in_another_type_is_another_record(void **state)
{
    struct clause *c = *state;

    for (uint8_t type = 1; type <= IDEM_TYPE_WORKER; type++) {
        struct idem_record r = record_of(c, 1);

        r.type = type;
        put(c, &r);
        assert_there(c, &r);
    }
}

static void
the_largest_record_is_stored_whole(void **state)
{
    struct clause *c = *state;
    struct idem_record r = record_of(c, 1), found;
    size_t most = c->store->max_record - idem__encoded_max(0);
    size_t len =
        most < IDEM_RESULT_DEFAULT_MAX ? most : IDEM_RESULT_DEFAULT_MAX;
    uint8_t *bytes = malloc(len);

    assert_non_null(bytes);
    randombytes_buf(bytes, len);
    r.result = (struct idem_bytes){bytes, len};
    put(c, &r);
    assert_there(c, &r);
    assert_int_equal(swap_one(c, &r, 7, &r, NULL), IDEM_SWAP_STORED);
    assert_int_equal(swap_one(c, &r, r.rev + 1, NULL, &found),
                     IDEM_SWAP_REFUSED);
    assert_same(&r, &found, true);
    free(bytes);
}

/* Servers limit what one request may carry; a store keeps to that. */
static void
a_batch_of_large_records_is_stored(void **state)
{
    enum { COUNT = 12, LEN = 300 * 1024 };
    struct clause *c = *state;
    static struct idem_record records[COUNT];
    static struct idem_swap swaps[COUNT];
    static struct idem_load loads[COUNT];
    uint8_t *bytes = malloc(LEN);

    assert_non_null(bytes);
    randombytes_buf(bytes, LEN);
    for (unsigned i = 0; i < COUNT; i++) {
        records[i] = record_of(c, i);
        records[i].result = (struct idem_bytes){bytes, LEN - i};
        swaps[i] = swap_of(&records[i], 0, &records[i]);
    }
    swap_batch(c, swaps, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(swaps[i].outcome, IDEM_SWAP_STORED);
        loads[i].with_result = true;
        memcpy(loads[i].key, swaps[i].key, IDEM_KEY_LEN);
        swaps[i].expected = 1; /* and now all are refused at once */
        swaps[i].record = NULL;
    }
    assert_int_equal(
        c->store->type->load(c->store, loads, COUNT, &c->arena, NULL), IDEM_OK);
    swap_batch(c, swaps, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(swaps[i].outcome, IDEM_SWAP_REFUSED);
        assert_same(&swaps[i].found, &loads[i].record, true);
        assert_true(loads[i].record.result.len >= LEN - COUNT);
        assert_memory_equal(loads[i].record.result.data, bytes,
                            loads[i].record.result.len);
    }
    free(bytes);
}

/* ---- load ------------------------------------------------------------- */

static void
load_brings_results_where_asked_and_says_what_is_absent(void **state)
{
    struct clause *c = *state;
    struct idem_record there = record_of(c, 1), missing = record_of(c, 2);
    struct idem_load loads[3] = {
        {.with_result = true}, {.with_result = true}, {.with_result = false}};

    put(c, &there);
    idem__key(there.type, there.scope, there.id, loads[0].key);
    idem__key(missing.type, missing.scope, missing.id, loads[1].key);
    memcpy(loads[2].key, loads[0].key, IDEM_KEY_LEN);
    assert_int_equal(c->store->type->load(c->store, loads, 2, &c->arena, NULL),
                     IDEM_OK);
    assert_same(&there, &loads[0].record, true);
    assert_int_equal(loads[1].record.state, IDEM_STATE_ABSENT);
    assert_int_equal(
        c->store->type->load(c->store, &loads[2], 1, &c->arena, NULL), IDEM_OK);
    assert_same(&there, &loads[2].record, false);
}

/* ---- expiry ----------------------------------------------------------- */

static void
tend_some(struct clause *c)
{
    for (int i = 0; i < 50 && c->store->type->tend; i++)
        c->store->type->tend(c->store, c->now_ms);
}

/* I3: whatever its TTL says. */
static void
executing_is_never_dropped(void **state)
{
    struct clause *c = *state;
    struct idem_record r = record_of(c, 1);

    r.state = IDEM_STATE_EXECUTING;
    r.created = r.updated = c->now_ms - 100000;
    r.lease_until = c->now_ms - 90000;
    r.expires = c->now_ms - 80000;
    put(c, &r);
    tend_some(c);
    assert_there(c, &r);
}

static void
a_record_without_expiry_or_not_yet_expired_is_not_dropped(void **state)
{
    struct clause *c = *state;
    struct idem_record never = record_of(c, 1), later = record_of(c, 2);

    never.expires = 0;
    never.type = IDEM_TYPE_WORKER;
    never.state = IDEM_STATE_FREE;
    later.expires = c->now_ms + 60000;
    put(c, &never);
    put(c, &later);
    tend_some(c);
    assert_there(c, &never);
    assert_there(c, &later);
}

/* A store may drop it at any time; until then it is a record like any other. */
static void
an_expired_record_is_refused_or_gone(void **state)
{
    struct clause *c = *state;
    struct idem_record old = record_of(c, 1), new = record_of(c, 1), found;

    old.created = old.updated = c->now_ms - 10000;
    old.expires = c->now_ms - 5000;
    put(c, &old);
    if (swap_one(c, &new, 0, &new, &found) == IDEM_SWAP_REFUSED) {
        assert_same(&old, &found, true);
        assert_int_equal(swap_one(c, &new, old.rev, &new, NULL),
                         IDEM_SWAP_STORED);
    }
    assert_there(c, &new);
}

/* ---- scan ------------------------------------------------------------- */

struct seen {
    struct clause *c;
    const char *scope;
    unsigned times[400];
    unsigned total, foreign, stop_after;
};

static bool
note_record(void *arg, const struct idem_record *r)
{
    struct seen *seen = arg;
    char id[32] = "";
    unsigned number;

    if (!idem__bytes_equal(r->scope, idem_text(seen->scope))) {
        seen->foreign++;
        return true;
    }
    if (r->id.len < sizeof(id))
        memcpy(id, r->id.data, r->id.len);
    if (sscanf(id, "id-%u", &number) == 1 && number < 400)
        seen->times[number]++;
    seen->total++;
    return seen->stop_after == 0 || seen->total < seen->stop_after;
}

/* The whole scan; between its calls, other records are written. */
static void
scan_all(struct clause *c, const struct idem_filter *filter, size_t count,
         struct seen *seen, bool writing)
{
    struct idem_now now = {
        c->now_ms, c->now_ms, INT64_MAX / 2, (uint64_t)c->now_ms * 1000, 0, 0};
    struct idem_cursor cursor = {"0"};
    struct idem_error err = {0};
    unsigned calls = 0;

    memset(seen, 0, sizeof(*seen));
    seen->scope = c->scope;
    do {
        if (c->store->type->scan(c->store,
                                 &(struct idem_query){filter, &now, &cursor,
                                                      count, note_record, seen,
                                                      false},
                                 &err) != IDEM_OK)
            fail_msg("scan: %s", err.text);
        if (writing && calls < 40) {
            struct idem_record r = record_of(c, 1000 + calls);

            put(c, &r);
        }
        assert_true(++calls < 100000);
    } while (strcmp(cursor.text, "0") != 0);
}

struct lengths {
    const char *scope;
    size_t count, bytes;
};

static bool
add_length(void *arg, const struct idem_record *r)
{
    struct lengths *lengths = arg;

    if (idem__bytes_is(r->scope, lengths->scope)) {
        lengths->count++;
        lengths->bytes += r->result.len;
    }
    return true;
}

static void
a_scan_tells_how_long_results_are(void **state)
{
    struct clause *c = *state;
    static uint8_t result[5000];
    const struct idem_filter everything = {0};
    struct idem_now now = {
        c->now_ms, c->now_ms, INT64_MAX / 2, (uint64_t)c->now_ms * 1000, 0, 0};
    struct idem_cursor cursor = {"0"};
    struct lengths lengths = {.scope = c->scope};

    for (unsigned i = 0; i < 3; i++) {
        struct idem_record r = record_of(c, i);

        r.result = (struct idem_bytes){result, i * 2000};
        put(c, &r);
    }
    do {
        assert_int_equal(
            c->store->type->scan(c->store,
                                 &(struct idem_query){&everything, &now,
                                                      &cursor, 100, add_length,
                                                      &lengths, .sizes = true},
                                 NULL),
            IDEM_OK);
    } while (strcmp(cursor.text, "0") != 0);
    assert_int_equal(lengths.count, 3);
    assert_int_equal(lengths.bytes, 6000);
}

static void
a_scan_sees_everything_that_lives_through_it(void **state)
{
    struct clause *c = *state;
    static struct idem_record records[300];
    static struct idem_swap swaps[300];
    struct idem_filter filter = {.scope = idem_text(c->scope)};
    static struct seen seen;

    for (unsigned i = 0; i < 300; i++) {
        records[i] = record_of(c, i);
        swaps[i] = swap_of(&records[i], 0, &records[i]);
    }
    swap_batch(c, swaps, 300);
    scan_all(c, &filter, 7, &seen, true);
    for (unsigned i = 0; i < 300; i++) {
        if (seen.times[i] == 0)
            fail_msg("record %u was not seen", i);
    }
    assert_int_equal(seen.foreign, 0);
    scan_all(c, &filter, 100000, &seen, false);
    assert_true(seen.total >= 300);
}

static void
a_scan_filters_by_type_state_age_and_doubt(void **state)
{
    struct clause *c = *state;
    struct idem_filter filter = {.scope = idem_text(c->scope)};
    struct idem_record r;
    static struct seen seen;

    r = record_of(c, 1); /* an old request that succeeded */
    r.updated = c->now_ms - 50000;
    put(c, &r);
    r = record_of(c, 2); /* a token */
    r.type = IDEM_TYPE_TOKEN;
    r.state = IDEM_STATE_ISSUED;
    put(c, &r);
    r = record_of(c, 3); /* in doubt */
    r.state = IDEM_STATE_EXECUTING;
    r.updated = c->now_ms - 2000;
    r.lease_until = c->now_ms - 1000;
    put(c, &r);
    r = record_of(c, 4); /* at work */
    r.state = IDEM_STATE_EXECUTING;
    r.lease_until = c->now_ms + 100000;
    put(c, &r);
    r = record_of(c, 5); /* expired: does not exist */
    r.created = r.updated = c->now_ms - 90000;
    r.expires = c->now_ms - 1;
    put(c, &r);

    scan_all(c, &filter, 10, &seen, false);
    assert_true(seen.times[1] && seen.times[2] && seen.times[3] &&
                seen.times[4] && !seen.times[5]);
    filter.type = IDEM_TYPE_TOKEN;
    scan_all(c, &filter, 10, &seen, false);
    assert_true(seen.times[2] && seen.total == seen.times[2]);
    filter.type = 0;
    filter.state = IDEM_STATE_EXECUTING;
    scan_all(c, &filter, 10, &seen, false);
    assert_true(seen.times[3] && seen.times[4]);
    assert_int_equal(seen.total, seen.times[3] + seen.times[4]);
    filter.state = 0;
    filter.updated_before = c->now_ms - 10000;
    scan_all(c, &filter, 10, &seen, false);
    assert_true(seen.times[1] && seen.total == seen.times[1]);
    filter.updated_before = 0;
    filter.doubt = true;
    scan_all(c, &filter, 10, &seen, false);
    assert_true(seen.times[3] && seen.total == seen.times[3]);
}

/* In two scopes, among others, and whatever its state is. */
static void
a_scan_finds_an_id_in_every_scope(void **state)
{
    struct clause *c = *state;
    struct idem_filter filter = {.id = idem_text("id-3")};
    char other[IDEM_SCOPE_MAX];
    struct idem_record r;
    static struct seen seen;

    for (unsigned i = 0; i < 20; i++) {
        r = record_of(c, i);
        if (i == 3)
            r.state = IDEM_STATE_EXECUTING;
        put(c, &r);
    }
    snprintf(other, sizeof(other), "%s-other", c->scope);
    r = record_of(c, 3);
    r.scope = idem_text(other);
    put(c, &r);

    scan_all(c, &filter, 10, &seen, false);
    assert_true(seen.times[3] >= 1 && seen.foreign >= 1);
    assert_int_equal(seen.total, seen.times[3]);
    filter.scope = idem_text(c->scope);
    filter.state = IDEM_STATE_EXECUTING;
    scan_all(c, &filter, 10, &seen, false);
    assert_true(seen.times[3] >= 1);
    assert_int_equal(seen.total, seen.times[3]);
    filter.id = idem_text("id-nobody");
    scan_all(c, &filter, 10, &seen, false);
    assert_int_equal(seen.total, 0);
}

static void
a_scan_stops_when_told_and_refuses_a_made_up_cursor(void **state)
{
    static const char *const made_up[] = {"no cursor at all!", "", "-1", "0x",
                                          "none"};
    struct clause *c = *state;
    struct idem_filter filter = {.scope = idem_text(c->scope)};
    struct idem_now now = {c->now_ms, c->now_ms, 0, 1, 0, 0};
    struct idem_cursor cursor = {"0"};
    struct seen seen = {.scope = c->scope, .stop_after = 1};

    for (unsigned i = 0; i < 20; i++) {
        struct idem_record r = record_of(c, i);

        put(c, &r);
    }
    for (int calls = 0; calls < 100000 && seen.total == 0; calls++)
        assert_int_equal(c->store->type->scan(
                             c->store,
                             &(struct idem_query){&filter, &now, &cursor, 1000,
                                                  note_record, &seen, false},
                             NULL),
                         IDEM_OK);
    assert_int_equal(seen.total, 1);
    for (size_t i = 0; i < sizeof(made_up) / sizeof(made_up[0]); i++) {
        struct idem_error err = {0};
        enum idem_status status;
        char text[80];

        snprintf(cursor.text, sizeof(cursor.text), "%s", made_up[i]);
        status = c->store->type->scan(
            c->store,
            &(struct idem_query){&filter, &now, &cursor, 10, note_record, &seen,
                                 false},
            &err);
        snprintf(text, sizeof(text), "\"%s\" is not a cursor: start with 0",
                 made_up[i]);
        if (status != IDEM_ERR_INVALID || strcmp(err.text, text) != 0)
            fail_msg("%s: %s: %s", made_up[i], idem_status_name(status),
                     err.text);
    }
}

/* ---- time, life and others -------------------------------------------- */

static void
the_clock_never_goes_back_and_is_no_fantasy(void **state)
{
    struct clause *c = *state;
    int64_t last = 0, now_us;
    int64_t day_us = INT64_C(24) * 3600 * 1000000;

    if (!c->store->type->now) {
        assert_false(c->store->type->local); /* only a shared one may lack it */
        return;
    }
    for (int i = 0; i < 100; i++) {
        assert_int_equal(c->store->type->now(c->store, &now_us, NULL), IDEM_OK);
        assert_true(now_us >= last);
        last = now_us;
    }
    now_us = idem__system_clocks.wall_us(NULL);
    assert_true(last > now_us - day_us && last < now_us + day_us);
}

static void
count_figure(void *arg, const char *name, double value)
{
    (void)value;
    assert_true(name[0] != 0);
    ++*(int *)arg;
}

static void
figures_have_names(void **state)
{
    struct clause *c = *state;
    int count = 0;

    if (c->store->type->figures) {
        c->store->type->figures(c->store, count_figure, &count);
        assert_true(count > 0);
    }
    assert_non_null(c->store->type->scheme);
}

static void
what_was_stored_is_there_after_a_reopen(void **state)
{
    struct clause *c = *state;
    struct idem_record a = record_of(c, 1), b = record_of(c, 2);

    put(c, &a);
    put(c, &b);
    assert_int_equal(swap_one(c, &b, b.rev, NULL, NULL), IDEM_SWAP_STORED);
    idem__store_close(c->store);
    c->store = open_again();
    if (store_is_durable(store_url)) {
        assert_there(c, &a);
        a.result = idem_text("after the reopen");
        a.rev ^= 2;
        assert_int_equal(swap_one(c, &a, a.rev ^ 2, &a, NULL),
                         IDEM_SWAP_STORED);
        assert_there(c, &a);
    } else {
        assert_gone(c, &a);
    }
    assert_gone(c, &b);
}

struct racer {
    pthread_t thread;
    struct idem_store *store;
    const char *scope;
    int64_t now_ms;
    unsigned wins;
    bool trouble;
};

enum { RACE_KEYS = 4, RACE_ROUNDS = 60 };

/* Adds 1 to one of the counters, as often as it takes. */
static void
add_one(struct racer *self, unsigned number, struct idem_arena *arena)
{
    struct idem_record found = {.state = IDEM_STATE_ABSENT};
    char id[16];

    snprintf(id, sizeof(id), "id-%u", number);
    for (int tries = 0; tries < 10000; tries++) {
        bool there = found.state != IDEM_STATE_ABSENT;
        struct idem_record next = {.type = IDEM_TYPE_REQUEST,
                                   .state = IDEM_STATE_SUCCEEDED,
                                   .attempt = there ? found.attempt + 1 : 1,
                                   .fence = 1,
                                   .rev = idem__new_rev(),
                                   .created = self->now_ms,
                                   .updated = self->now_ms,
                                   .expires = self->now_ms + 3600000,
                                   .scope = idem_text(self->scope),
                                   .id = idem_text(id)};
        struct idem_swap swap = swap_of(&next, there ? found.rev : 0, &next);

        if (self->store->type->swap(self->store, &swap, 1, arena, NULL) !=
            IDEM_OK)
            continue; /* not stored or lost: the same swap was not needed */
        if (swap.outcome == IDEM_SWAP_STORED) {
            self->wins++;
            return;
        }
        if (swap.outcome == IDEM_SWAP_REFUSED)
            found = swap.found;
        else if (swap.outcome != IDEM_SWAP_LOCKED)
            break;
    }
    self->trouble = true;
}

static void *
race(void *arg)
{
    struct racer *self = arg;
    struct idem_arena arena = {0};

    for (unsigned i = 0; i < RACE_ROUNDS && !self->trouble; i++) {
        add_one(self, i % RACE_KEYS, &arena);
        idem_arena_reset(&arena);
    }
    idem_arena_clear(&arena);
    return NULL;
}

/* Two engines on one store: every swap that was told "stored" happened, on top
 * of what it expected. A local store has one user, which is checked instead. */
static void
two_who_share_a_store_never_overwrite_each_other(void **state)
{
    struct clause *c = *state;
    struct racer racers[2] = {{.store = c->store}, {0}};
    unsigned sum = 0;

    if (c->store->type->local) {
        struct idem_store *second = NULL;
        struct idem_error err = {0};

        if (!store_is_durable(store_url))
            return; /* every memory: is a store of its own */
        assert_int_not_equal(idem__store_open(store_url, NULL, &second, &err),
                             IDEM_OK);
        assert_null(second);
        assert_true(err.text[0] != 0);
        return;
    }
    racers[1].store = open_again();
    for (int i = 0; i < 2; i++) {
        racers[i].scope = c->scope;
        racers[i].now_ms = c->now_ms;
        assert_int_equal(
            pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(racers[i].thread, NULL);
        assert_false(racers[i].trouble);
        assert_int_equal(racers[i].wins, RACE_ROUNDS);
    }
    for (unsigned i = 0; i < RACE_KEYS; i++) {
        struct idem_record named = record_of(c, i);

        sum += load_one(c, &named, true).attempt;
    }
    idem__store_close(racers[1].store);
    assert_int_equal(sum, 2 * RACE_ROUNDS);
}

#define CLAUSE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
run_contract(const char *url)
{
    const struct CMUnitTest tests[] = {
        CLAUSE(what_is_absent_is_stored_and_read_back),
        CLAUSE(a_swap_that_expected_nothing_is_refused_with_the_record),
        CLAUSE(a_swap_that_expected_another_rev_is_refused),
        CLAUSE(a_swap_that_expected_something_finds_nothing),
        CLAUSE(a_swap_with_the_right_rev_replaces_everything),
        CLAUSE(the_identical_swap_again_counts_as_stored),
        CLAUSE(a_delete_needs_the_right_rev),
        CLAUSE(a_delete_that_expected_nothing_takes_nothing_away),
        CLAUSE(a_batch_has_an_outcome_for_each),
        CLAUSE(a_wrong_rev_refuses_only_its_own_swap),
        CLAUSE(a_batch_of_a_thousand_is_stored),
        CLAUSE(every_field_comes_back_whatever_it_holds),
        CLAUSE(names_and_results_may_hold_any_bytes),
        CLAUSE(the_same_name_in_another_type_is_another_record),
        CLAUSE(the_largest_record_is_stored_whole),
        CLAUSE(a_batch_of_large_records_is_stored),
        CLAUSE(load_brings_results_where_asked_and_says_what_is_absent),
        CLAUSE(executing_is_never_dropped),
        CLAUSE(a_record_without_expiry_or_not_yet_expired_is_not_dropped),
        CLAUSE(an_expired_record_is_refused_or_gone),
        CLAUSE(a_scan_sees_everything_that_lives_through_it),
        CLAUSE(a_scan_tells_how_long_results_are),
        CLAUSE(a_scan_filters_by_type_state_age_and_doubt),
        CLAUSE(a_scan_finds_an_id_in_every_scope),
        CLAUSE(a_scan_stops_when_told_and_refuses_a_made_up_cursor),
        CLAUSE(the_clock_never_goes_back_and_is_no_fantasy),
        CLAUSE(figures_have_names),
        CLAUSE(what_was_stored_is_there_after_a_reopen),
        CLAUSE(two_who_share_a_store_never_overwrite_each_other),
    };
    char shown[200];

    store_url = url;
    idem__url_redact(url, shown, sizeof(shown));
    print_message("the contract of a store, on %s\n", shown);
    return cmocka_run_group_tests_name(shown, tests, NULL, NULL);
}
