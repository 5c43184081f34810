/*
 * clean_test.c - tests the cleaner where it meets damage or idle claims, and
 * what a journal says about itself.
 */
#include "model.h"

#include <fcntl.h>
#include <unistd.h>

#define IDS 60
#define KEPT 10 /* of the oldest segment, never written again */

struct world {
    char *dir;
    struct test_log log;
    struct model clock;
    struct idem_clocks clocks;
    struct journal_tuning tuning;
    struct idem_store *store;
};

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->dir = test_fast_folder();
    model_init(&world->clock, 1);
    world->clocks = model_clocks(&world->clock);
    world->tuning =
        (struct journal_tuning){.segment_len = 8192, .no_thread = true};
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    idem__store_close(world->store);
    test_folder_drop(world->dir);
    free(world);
    return 0;
}

static struct journal *
open_journal(struct world *world, const char *options)
{
    struct idem_error err;
    char dir[600];

    snprintf(dir, sizeof(dir), "%s%s", world->dir, options);
    if (test_try_open(dir, &world->tuning, &world->clocks, &world->log,
                      &world->store, &err) != IDEM_OK)
        fail_msg("open: %s", err.text);
    return (struct journal *)world->store;
}

static void
put(struct world *world, uint64_t id, uint64_t rev, uint64_t expected)
{
    struct test_record t;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, rev, 250);
    t.record.expires = 0;
    assert_int_equal(test_swap(world->store, &t, expected, false),
                     IDEM_SWAP_STORED);
}

/* Turn a bit in the result of a record that lives in the oldest segment. */
static void
damage_record(struct world *world, uint64_t id)
{
    struct journal *journal = (struct journal *)world->store;
    struct test_path path =
        test_segment_path(world->dir, journal->segments[0].head.id, "seg");
    struct test_record t;
    uint8_t *bytes = calloc(1, 8192), *at;
    int fd = open(path.text, O_RDWR);

    test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, 250);
    assert_true(pread(fd, bytes, 8192, 0) > 0);
    at = memmem(bytes, 8192, t.result, 250);
    assert_non_null(at);
    *at ^= 1;
    assert_int_equal(pwrite(fd, at, 1, at - bytes), 1);
    close(fd);
    free(bytes);
}

/* Write all records but the first ones again and again, so that the cleaner
 * wants to remove the oldest segment. */
static void
make_it_clean(struct world *world)
{
    for (uint64_t round = 0; round < 6; round++) {
        for (uint64_t id = KEPT; id < IDS; id++) {
            put(world, id, (round + 1) * 1000 + id,
                round ? round * 1000 + id : id + 1);
            test_tend(world->store);
        }
    }
}

static enum idem_status
load_one(struct world *world, uint64_t id)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_load load = {.with_result = true};
    struct test_record t;
    enum idem_status status;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, 1, 0);
    memcpy(load.key, t.key, IDEM_KEY_LEN);
    status = world->store->type->load(world->store, &load, 1, &arena, NULL);
    idem_arena_clear(&arena);
    return status;
}

static void
assert_others_are_there(struct world *world, uint64_t damaged)
{
    for (uint64_t id = 0; id < IDS; id++) {
        if (id != damaged)
            assert_int_equal(test_rev(world->store, id),
                             id < KEPT ? id + 1 : 6000 + id);
    }
}

static void
damage_stops_the_cleaner_which_says_so_once(void **state)
{
    struct world *world = *state;
    struct journal *journal = open_journal(world, "");
    uint64_t first;

    for (uint64_t id = 0; id < IDS; id++)
        put(world, id, id + 1, 0);
    first = journal->segments[0].head.id;
    damage_record(world, 4);
    make_it_clean(world);
    assert_int_equal(journal->segments[0].head.id, first);
    assert_int_equal(
        access(test_segment_path(world->dir, first, "seg").text, F_OK), 0);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    assert_non_null(
        strstr(world->log.last, "cannot be cleaned: it is damaged"));
    assert_int_equal(load_one(world, 4), IDEM_ERR_CORRUPT);
    assert_others_are_there(world, 4);
}

/* Records behind the damage are moved; the damaged one stays where it is. */
static void
accepted_damage_does_not_stop_the_cleaner(void **state)
{
    struct world *world = *state;
    struct journal *journal = open_journal(world, "?damage=accept");
    uint64_t first;

    for (uint64_t id = 0; id < IDS; id++)
        put(world, id, id + 1, 0);
    first = journal->segments[0].head.id;
    damage_record(world, 4);
    make_it_clean(world);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);
    assert_int_equal(journal->segments[0].head.id, first);
    /* Only the damaged entry lives there. */
    assert_in_range(journal->segments[0].live, 1, 500);
    assert_others_are_there(world, 4);
}

/* A claim that was not written for two weeks keeps no room, also if its segment
 * is never cleaned. */
static void
a_claim_in_an_old_segment_becomes_idle(void **state)
{
    struct world *world = *state;
    struct journal *journal = open_journal(world, "");
    struct test_record t;

    test_make(&t, 1, IDEM_STATE_EXECUTING, 1, 0);
    assert_int_equal(test_swap(world->store, &t, 0, false), IDEM_SWAP_STORED);
    for (uint64_t id = 2; journal->segment_count < 2; id++)
        put(world, id, id + 1, 0);
    world->clock.now_ms += IDEM__CLAIM_RESERVE_MS - 1000;
    test_tend(world->store);
    assert_int_equal(journal->index.executing, 1);
    assert_int_equal(journal->index.idle, 0);
    world->clock.now_ms += 2000;
    for (unsigned i = 0; i < INDEX_SHARDS; i++) /* one sees a part of the index */
        test_tend(world->store);
    assert_int_equal(journal->index.executing, 1);
    assert_int_equal(journal->index.idle, 1);
    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 1001, 10);
    assert_int_equal(test_swap(world->store, &t, 1, false), IDEM_SWAP_STORED);
    assert_int_equal(journal->index.executing, 0);
    assert_int_equal(journal->index.idle, 0);
}

/* ---- what a journal says about itself --------------------------------------
 */

struct figures {
    double records, executing, segments, live, used, full, poisoned;
    size_t count;
};

static void
note_figure(void *arg, const char *name, double value)
{
    struct figures *figures = arg;
    const struct {
        const char *name;
        double *value;
    } known[] = {
        {"journal_records", &figures->records},
        {"journal_executing", &figures->executing},
        {"journal_segments", &figures->segments},
        {"journal_live_bytes", &figures->live},
        {"journal_used_bytes", &figures->used},
        {"journal_full", &figures->full},
        {"journal_poisoned", &figures->poisoned},
    };

    figures->count++;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(name, known[i].name) == 0)
            *known[i].value = value;
    }
}

static void
its_figures_count_what_is_there(void **state)
{
    struct world *world = *state;
    struct journal *journal = open_journal(world, "");
    struct figures before = {0}, after = {0};
    struct test_record t;

    for (uint64_t id = 0; id < IDS; id++)
        put(world, id, id + 1, 0);
    test_make(&t, IDS, IDEM_STATE_EXECUTING, 1, 0);
    assert_int_equal(test_swap(world->store, &t, 0, false), IDEM_SWAP_STORED);
    world->store->type->figures(world->store, note_figure, &before);
    assert_int_equal((int)before.records, IDS + 1);
    assert_int_equal((int)before.executing, 1);
    assert_int_equal((int)before.segments, journal->segment_count);
    assert_true(before.live > IDS * 250 && before.used > before.live);
    assert_true(before.full == 0 && before.poisoned == 0);
    assert_int_equal(before.count, 12);
    put(world, 1, 1001, 2); /* what it replaces is dead */
    world->store->type->figures(world->store, note_figure, &after);
    assert_true(after.live == before.live && after.used > before.used);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(damage_stops_the_cleaner_which_says_so_once),
        T(accepted_damage_does_not_stop_the_cleaner),
        T(a_claim_in_an_old_segment_becomes_idle),
        T(its_figures_count_what_is_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
