/*
 * clock_test.c - the journal's time on a machine that is switched off and on,
 * and whose wall clock says anything.
 */
#include "testing.h"

#include "../../engine/engine.h"

#define HOUR_MS INT64_C(3600000)
#define DAY_MS (24 * HOUR_MS)

struct world {
    char *dir;
    struct idem_clocks clocks;
    struct test_log log;
};

static struct {
    int64_t wall_ms, boot_ms;
    int boot;
    bool synced;
} host;

static int64_t
host_wall_us(void *arg)
{
    (void)arg;
    return host.wall_ms * 1000;
}

static int64_t
host_boot_us(void *arg)
{
    (void)arg;
    return host.boot_ms * 1000;
}

static bool
host_boot_id(void *arg, char id[IDEM__BOOT_ID_LEN])
{
    (void)arg;
    snprintf(id, IDEM__BOOT_ID_LEN, "boot-%d", host.boot);
    return true;
}

static bool
host_synced(void *arg)
{
    (void)arg;
    return host.synced;
}

static void
host_passes(int64_t ms)
{
    host.wall_ms += ms;
    host.boot_ms += ms;
}

static void
host_reboots(int64_t off_ms)
{
    host.wall_ms += off_ms;
    host.boot_ms = 20000;
    host.boot++;
    host.synced = false;
}

/* Open, look at the clock and close; the alarms that were raised. */
static int
look(struct world *world, const char *options, int64_t *time_ms)
{
    int before = world->log.count[IDEM_LOG_ALARM];
    struct journal_tuning tuning = {.segment_len = 16384, .no_thread = true};
    struct idem_store *store;
    struct idem_error err;
    char dir[600];
    int64_t now_us;

    snprintf(dir, sizeof(dir), "%s%s", world->dir, options);
    assert_int_equal(
        test_try_open(dir, &tuning, &world->clocks, &world->log, &store, &err),
        IDEM_OK);
    assert_int_equal(store->type->now(store, &now_us, NULL), IDEM_OK);
    *time_ms = now_us / 1000;
    test_close(store);
    return world->log.count[IDEM_LOG_ALARM] - before;
}

#define assert_look(world, options, alarms, wanted_ms)                         \
    do {                                                                       \
        int64_t got_ms_;                                                       \
        assert_int_equal(look(world, options, &got_ms_), alarms);              \
        assert_int_equal(got_ms_, wanted_ms);                                  \
    } while (0)

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->dir = test_fast_folder();
    world->clocks = (struct idem_clocks){.wall_us = host_wall_us,
                                         .boot_us = host_boot_us,
                                         .boot_id = host_boot_id,
                                         .synced = host_synced};
    host.wall_ms = INT64_C(1700000000000);
    host.boot_ms = 50000;
    host.boot = 1;
    host.synced = false;
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    test_folder_drop(world->dir);
    free(world);
    return 0;
}

static void
within_a_boot_the_wall_clock_does_not_matter(void **state)
{
    static const int64_t jumps[] = {26 * HOUR_MS, 300 * DAY_MS, -DAY_MS};
    struct world *world = *state;
    int64_t then;

    then = host.wall_ms;
    assert_look(world, "", 0, then);
    for (int i = 0; i < 3; i++) {
        host_passes(2 * DAY_MS);
        then += 2 * DAY_MS;
        host.wall_ms += jumps[i];
        assert_look(world, "", 0, then);
        host.wall_ms -= jumps[i];
    }
    /* The one warning says that the journal is new. */
    assert_int_equal(world->log.count[IDEM_LOG_WARNING], 1);
    /* Unless somebody insists. */
    host.wall_ms += DAY_MS;
    assert_look(world, "?clock=trust", 0, then + DAY_MS);
    host.wall_ms -= DAY_MS;
    assert_look(world, "", 0, then + DAY_MS);
}

static void
after_a_reboot_the_wall_clock_is_believed_as_far_as_it_deserves(void **state)
{
    struct world *world = *state;
    int64_t then;

    then = host.wall_ms;
    assert_look(world, "", 0, then);
    host_reboots(20 * 60000); /* nobody says more than the wall clock */
    then += 20 * 60000;
    assert_look(world, "", 0, then);

    host_reboots(26 * HOUR_MS); /* off for so long, or wrong? */
    assert_look(world, "", 1, then);
    assert_non_null(strstr(world->log.last, "synchronised"));
    host_passes(5000); /* time goes on meanwhile */
    assert_look(world, "", 1, then + 5000);
    host.synced = true; /* it was off */
    assert_look(world, "", 0, then + 26 * HOUR_MS + 5000);
    then = host.wall_ms;

    host_reboots(26 * HOUR_MS);
    assert_look(world, "", 1, then);
    host.wall_ms -= 26 * HOUR_MS; /* it was wrong, and is set right */
    host_passes(5000);
    assert_look(world, "", 0, then + 5000);

    host_reboots(8 * DAY_MS); /* whoever says so */
    host.synced = true;
    assert_look(world, "", 1, then + 5000);
    assert_look(world, "?clock=trust", 0, then + 5000 + 8 * DAY_MS);
    then = host.wall_ms;
    assert_look(world, "", 0, then);
    host_reboots(-DAY_MS); /* a clock without a battery */
    assert_look(world, "", 0, then);
    host.wall_ms += DAY_MS;
    host_passes(60000);
    assert_look(world, "", 0, then + 60000);
}

/* 0, or how long a result is kept that is written now. */
static int64_t
kept_ms(struct world *world, int64_t ttl_ms)
{
    struct idem__engine_inner inner = {.clocks = &world->clocks};
    struct idem_options options = {.log = test_log, .log_arg = &world->log};
    struct journal_tuning tuning = {.segment_len = 16384, .no_thread = true};
    struct idem_op op = {.verb = IDEM_BEGIN,
                         .scope = idem_text("s"),
                         .id = idem_text("id"),
                         .mode = IDEM_STRICT,
                         .ttl_ms = ttl_ms};
    struct idem_answer answer = {0};
    struct idem_engine *engine;
    int64_t kept = 0;

    assert_int_equal(test_try_open(world->dir, &tuning, &world->clocks,
                                   &world->log, &inner.store, NULL),
                     IDEM_OK);
    assert_int_equal(idem__engine_open(NULL, &options, &inner, &engine, NULL),
                     IDEM_OK);
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    if (answer.verdict == IDEM_V_STARTED) {
        op.verb = IDEM_FINISH;
        op.fence = answer.record->fence;
        op.outcome = IDEM_STATE_SUCCEEDED;
        op.result = idem_text("done");
        idem_answer_clear(&answer);
        assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
        kept = answer.record->expires - answer.record->updated;
    }
    idem_answer_clear(&answer);
    idem_close(engine);
    return kept;
}

static void
what_is_stored_under_a_held_time_does_not_expire_early(void **state)
{
    struct world *world = *state;
    int64_t then = host.wall_ms;

    assert_look(world, "", 0, then);
    host_reboots(26 * HOUR_MS); /* off for so long, and nobody knows it */
    assert_true(kept_ms(world, HOUR_MS) > 26 * HOUR_MS);
    host.synced = true; /* now somebody does: the time is set forward */
    host_passes(5000);
    assert_look(world, "", 0, then + 26 * HOUR_MS + 5000);
    assert_int_equal(kept_ms(world, HOUR_MS), 0); /* it is still there */
}

static void
a_wall_clock_that_is_behind_keeps_results_longer_only_if_it_may_be_wrong(
    void **state)
{
    struct world *world = *state;

    assert_look(world, "", 0, host.wall_ms);
    host_reboots(-60000); /* somebody set it right by a minute */
    assert_int_equal(kept_ms(world, HOUR_MS), HOUR_MS);
    host_passes(2 * HOUR_MS);
    assert_look(world, "", 0, host.wall_ms + 60000);
    host_reboots(-30 * DAY_MS); /* it was a month ahead, and is right now */
    host.synced = true;
    assert_int_equal(kept_ms(world, HOUR_MS), HOUR_MS);
}

static void
a_clock_file_that_is_damaged_or_of_another_boot_is_not_believed(void **state)
{
    static const char *const texts[] = {
        "",
        "boot-1",
        "boot-1 ",
        "boot-1 9999999999999999999999999 settled\n",
        "boot-1 1800000000000000 settled",
        "boot-1 1800000000000000\n",
        "boot-12 1800000000000000 settled\n",
        "boot-2 1800000000000000 settled\n",
    };
    struct world *world = *state;

    assert_look(world, "", 0, host.wall_ms);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char path[600];
        FILE *file;

        snprintf(path, sizeof(path), "%s/clock", world->dir);
        file = fopen(path, "w");
        assert_non_null(file);
        fputs(texts[i], file);
        fclose(file);
        assert_look(world, "", 0, host.wall_ms);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(within_a_boot_the_wall_clock_does_not_matter),
        T(after_a_reboot_the_wall_clock_is_believed_as_far_as_it_deserves),
        T(what_is_stored_under_a_held_time_does_not_expire_early),
        T(a_wall_clock_that_is_behind_keeps_results_longer_only_if_it_may_be_wrong),
        T(a_clock_file_that_is_damaged_or_of_another_boot_is_not_believed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
