/*
 * ids_test.c - tests that no id is given out twice, whatever the clock, the
 * lease or the process does. Waits more than it works.
 */
#include "../engine/engine.h"
#include "id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define NAME(text) ((struct idem_bytes){text, sizeof(text) - 1})
#define NONE ((struct idem_bytes){NULL, 0})

/* A wall clock that the test sets, on top of the real boot clock. */
static int64_t wall_offset_us;

static int64_t
set_wall(void *arg)
{
    (void)arg;
    return idem__system_clocks.wall_us(NULL) +
           __atomic_load_n(&wall_offset_us, __ATOMIC_RELAXED);
}

static int64_t
real_boot(void *arg)
{
    (void)arg;
    return idem__system_clocks.boot_us(NULL);
}

static const struct idem_clocks set_clocks = {.wall_us = set_wall,
                                              .boot_us = real_boot};

static void
set_wall_offset(int64_t us)
{
    __atomic_store_n(&wall_offset_us, us, __ATOMIC_RELAXED);
}

static struct idem_engine *
open_engine(void)
{
    struct idem_engine *engine = NULL;

    set_wall_offset(0);
    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    return engine;
}

static struct idem_ids *
open_ids(struct idem_engine *engine, const struct idem_ids_options *options)
{
    struct idem_ids *ids = NULL;

    assert_int_equal(idem__ids_open(engine, options, &set_clocks, &ids, NULL),
                     IDEM_OK);
    return ids;
}

static void
next(struct idem_ids *ids, enum idem_id_kind kind, uint64_t *out, size_t count)
{
    struct idem_error err = {0};
    enum idem_status status =
        idem_ids_next(ids, kind, NAME("orders"), out, count, &err);

    if (status != IDEM_OK)
        print_error("%s\n", err.text);
    assert_int_equal(status, IDEM_OK);
}

static uint64_t
one(struct idem_ids *ids, enum idem_id_kind kind)
{
    uint64_t id;

    next(ids, kind, &id, 1);
    return id;
}

static size_t
size(size_t plain, size_t sanitized)
{
    const char *value = getenv("IDEM_SANITIZED");

    return value && *value ? sanitized : plain;
}

static uint64_t
worker_of(enum idem_id_kind kind, uint64_t id)
{
    struct idem_id_parts parts;

    assert_int_equal(idem_id_explain(kind, id, NULL, &parts, NULL), IDEM_OK);
    return parts.worker;
}

static void
snowflakes_increase_and_tell_their_time(void **state)
{
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, NULL);
    int64_t now_ms = idem__system_clocks.wall_us(NULL) / 1000;
    uint64_t last = 0, batch[1000];
    struct idem_id_parts parts;

    (void)state;
    for (size_t i = 0; i < size(1000, 50); i++) {
        next(ids, IDEM_ID_SNOWFLAKE, batch, 1000);
        for (size_t j = 0; j < 1000; j++) {
            assert_true(batch[j] > last);
            last = batch[j];
        }
    }
    assert_int_equal(
        idem_id_explain(IDEM_ID_SNOWFLAKE, last, NULL, &parts, NULL), IDEM_OK);
    assert_in_range(parts.time_ms, now_ms - 1, now_ms + 60000);
    assert_int_equal(parts.worker, 0);
    assert_true(parts.ends_ms > now_ms + INT64_C(60) * 365 * 86400 * 1000);
    idem_ids_close(ids);
    idem_close(engine);
}

static void
two_generators_never_share_a_worker_number(void **state)
{
    struct idem_engine *engine = open_engine();
    struct idem_ids *a = open_ids(engine, NULL), *b = open_ids(engine, NULL);

    (void)state;
    assert_int_equal(worker_of(IDEM_ID_SNOWFLAKE, one(a, IDEM_ID_SNOWFLAKE)),
                     0);
    assert_int_equal(worker_of(IDEM_ID_SNOWFLAKE, one(b, IDEM_ID_SNOWFLAKE)),
                     1);
    idem_ids_close(a); /* gives number 0 back */
    a = open_ids(engine, NULL);
    assert_int_equal(worker_of(IDEM_ID_SNOWFLAKE, one(a, IDEM_ID_SNOWFLAKE)),
                     0);
    idem_ids_close(a);
    idem_ids_close(b);
    idem_close(engine);
}

static void
a_clock_going_back_neither_repeats_nor_stalls(void **state)
{
    static const enum idem_id_kind kinds[] = {IDEM_ID_SNOWFLAKE, IDEM_ID_UID};
    static const int64_t steps_s[] = {-1, -5, -7200, 30, -86400, 3600, 0};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, NULL);

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        uint64_t last = one(ids, kinds[k]);

        for (size_t i = 0; i < sizeof(steps_s) / sizeof(steps_s[0]); i++) {
            int64_t began = idem__system_clocks.boot_us(NULL);

            set_wall_offset(steps_s[i] * 1000000);
            for (int j = 0; j < 1000; j++) {
                uint64_t id = one(ids, kinds[k]);

                assert_true(id > last);
                last = id;
            }
            /* far less than the clock went back */
            assert_true(idem__system_clocks.boot_us(NULL) - began < 30000000);
        }
    }
    idem_ids_close(ids);
    idem_close(engine);
}

static void
a_clock_set_back_across_a_restart_does_not_repeat(void **state)
{
    static const enum idem_id_kind kinds[] = {IDEM_ID_SNOWFLAKE, IDEM_ID_UID};
    struct idem_engine *engine = open_engine();

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        uint64_t last = 0;

        for (int restart = 0; restart < 5; restart++) {
            struct idem_ids *ids;

            set_wall_offset(restart * INT64_C(-7200) * 1000000);
            ids = open_ids(engine, NULL);
            for (int i = 0; i < 1000; i++) {
                uint64_t id = one(ids, kinds[k]);

                assert_int_equal(worker_of(kinds[k], id), 0);
                assert_true(id > last);
                last = id;
            }
            idem_ids_close(ids);
        }
    }
    idem_close(engine);
}

/* After kill -9 the number stays leased until its lease ends. */
static void
vanish(struct idem_ids *ids)
{
    pthread_mutex_lock(&ids->mutex);
    for (struct id_source *s = ids->sources; s; s = s->next_source)
        s->leased = false;
    pthread_mutex_unlock(&ids->mutex);
    idem_ids_close(ids);
}

static void
a_vanished_holders_number_is_recycled_beyond_its_mark(void **state)
{
    const struct idem_ids_options quick = {.lease_ms = 3500};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, &quick);
    uint64_t last = one(ids, IDEM_ID_SNOWFLAKE), id;

    (void)state;
    vanish(ids);
    set_wall_offset(INT64_C(-3600) * 1000000);
    ids = open_ids(engine, &quick);
    assert_int_equal(worker_of(IDEM_ID_SNOWFLAKE, one(ids, IDEM_ID_SNOWFLAKE)),
                     1); /* still leased */
    idem_ids_close(ids);
    usleep(3700000);
    ids = open_ids(engine, &quick);
    id = one(ids, IDEM_ID_SNOWFLAKE);
    assert_int_equal(worker_of(IDEM_ID_SNOWFLAKE, id), 0);
    assert_true(id > last);
    idem_ids_close(ids);
    idem_close(engine);
}

/* ---- an engine that the test can stop --------------------------------- */

struct driver {
    struct idem_engine *engine;
    pthread_t thread;
    bool running, stop; /* atomics */
};

static void *
drive(void *arg)
{
    struct driver *d = arg;

    while (!__atomic_load_n(&d->stop, __ATOMIC_ACQUIRE)) {
        if (__atomic_load_n(&d->running, __ATOMIC_ACQUIRE))
            idem__engine_turn(d->engine);
        usleep(500);
    }
    return NULL;
}

static void
an_expired_lease_stops_generation(void **state)
{
    const struct idem_ids_options quick = {.lease_ms = 600, .wait_ms = 3000};
    const struct idem__engine_inner inner = {.driven = true};
    struct driver d = {.running = true};
    struct idem_ids *ids;
    struct idem_error err;
    uint64_t id;

    (void)state;
    set_wall_offset(0);
    assert_int_equal(
        idem__engine_open("memory:", NULL, &inner, &d.engine, NULL), IDEM_OK);
    pthread_create(&d.thread, NULL, drive, &d);
    ids = open_ids(d.engine, &quick);
    one(ids, IDEM_ID_SNOWFLAKE);

    __atomic_store_n(&d.running, false, __ATOMIC_RELEASE); /* the store hangs */
    usleep(700000);
    assert_int_equal(idem_ids_next(ids, IDEM_ID_SNOWFLAKE, NONE, &id, 1, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_int_equal(idem_ids_try(ids, IDEM_ID_SNOWFLAKE, NONE, &id, 1, &err),
                     IDEM_ERR_OVERLOADED);

    __atomic_store_n(&d.running, true, __ATOMIC_RELEASE); /* and comes back */
    for (int i = 0; i < 50 && idem_ids_next(ids, IDEM_ID_SNOWFLAKE, NONE, &id,
                                            1, &err) != IDEM_OK;
         i++)
        continue;
    one(ids, IDEM_ID_SNOWFLAKE);
    idem_ids_close(ids);
    __atomic_store_n(&d.stop, true, __ATOMIC_RELEASE);
    pthread_join(d.thread, NULL);
    idem_close(d.engine);
}

static void
a_segment_goes_on_behind_what_was_handed_out(void **state)
{
    const struct idem_ids_options small = {.segment_step = 10};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, &small);
    uint64_t first = one(ids, IDEM_ID_SEGMENT), last = first;

    (void)state;
    assert_int_equal(first, 1);
    for (int i = 0; i < 5000; i++) {
        uint64_t id = one(ids, IDEM_ID_SEGMENT);

        assert_true(id > last);
        last = id;
    }
    assert_true(ids->sources->step > 10); /* it adapts to demand */
    idem_ids_close(ids);
    ids = open_ids(engine, &small);
    assert_true(one(ids, IDEM_ID_SEGMENT) > last);
    idem_ids_close(ids);
    idem_close(engine);
}

static void
await_spare(struct idem_ids *ids)
{
    bool there = false;

    for (int i = 0; i < 500 && !there; i++) {
        usleep(10000);
        pthread_mutex_lock(&ids->mutex);
        there = ids->sources->spare_limit != 0;
        pthread_mutex_unlock(&ids->mutex);
    }
    assert_true(there);
}

static void
one_call_may_reach_into_the_range_that_was_fetched_ahead(void **state)
{
    const struct idem_ids_options small = {.segment_step = 10};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, &small);
    struct idem_error err = {0};
    uint64_t out[8];

    (void)state;
    next(ids, IDEM_ID_SEGMENT, out, 7);
    await_spare(ids);
    assert_int_equal(
        idem_ids_try(ids, IDEM_ID_SEGMENT, NAME("orders"), out, 8, &err),
        IDEM_OK);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(out[i], 8 + i);
    idem_ids_close(ids);
    idem_close(engine);
}

static void
a_new_segment_takes_the_place_of_the_one_unused_for_longest(void **state)
{
    static const char *const asked[] = {"a", "b", "a", "c", "a", "b"};
    static const uint64_t wanted[] = {1, 1, 2, 1, 3, 1001};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, NULL);
    struct idem_error err = {0};
    uint64_t id;

    (void)state;
    ids->segment_count = SEGMENTS_MAX - 2; /* room for two */
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        assert_int_equal(idem_ids_next(ids, IDEM_ID_SEGMENT,
                                       idem_text(asked[i]), &id, 1, &err),
                         IDEM_OK);
        assert_int_equal(id, wanted[i]); /* b comes back above its range */
        assert_true(ids->segment_count <= SEGMENTS_MAX);
    }
    idem_ids_close(ids);
    idem_close(engine);
}

static void
uid_bits_are_what_was_configured(void **state)
{
    const struct idem_ids_options o = {
        .uid_seconds_bits = 31, .uid_worker_bits = 12, .uid_sequence_bits = 20};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, &o);
    struct idem_id_parts parts;
    uint64_t id = one(ids, IDEM_ID_UID);

    (void)state;
    assert_int_equal(idem_id_explain(IDEM_ID_UID, id, &o, &parts, NULL),
                     IDEM_OK);
    assert_int_equal(parts.worker, 0);
    assert_in_range(parts.time_ms,
                    idem__system_clocks.wall_us(NULL) / 1000 - 60000,
                    idem__system_clocks.wall_us(NULL) / 1000);
    idem_ids_close(ids);
    idem_close(engine);
}

static enum idem_status
try_one(struct idem_engine *engine, const struct idem_ids_options *options,
        struct idem_error *err)
{
    struct idem_ids *ids = open_ids(engine, options);
    uint64_t id;
    enum idem_status status =
        idem_ids_next(ids, IDEM_ID_UID, NONE, &id, 1, err);

    idem_ids_close(ids);
    return status;
}

static void
other_bits_on_the_same_store_are_refused(void **state)
{
    const struct idem_ids_options bits = {.uid_seconds_bits = 31,
                                          .uid_worker_bits = 12,
                                          .uid_sequence_bits = 20,
                                          .wait_ms = 300};
    const struct idem_ids_options epoch = {.uid_epoch_s = 1700000000,
                                           .wait_ms = 300};
    struct idem_engine *engine = open_engine();
    struct idem_error err = {0};

    (void)state;
    assert_int_equal(try_one(engine, NULL, &err), IDEM_OK);
    assert_int_equal(try_one(engine, &bits, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "28,22,13 from 1767225600 s, not 31,12"));
    assert_int_equal(try_one(engine, &epoch, &err), IDEM_ERR_INVALID);
    assert_int_equal(try_one(engine, NULL, &err), IDEM_OK);
    idem_close(engine);
}

static void
worker_numbers_come_from_the_pool(void **state)
{
    const struct idem_ids_options pool = {
        .worker_first = 5, .worker_count = 2, .wait_ms = 300};
    const struct idem_ids_options beyond = {.worker_first = 1024,
                                            .wait_ms = 300};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids[4];
    struct idem_error err = {0};
    uint64_t id;

    (void)state;
    for (size_t i = 0; i < 3; i++)
        ids[i] = open_ids(engine, &pool);
    ids[3] = open_ids(engine, &beyond);
    for (uint64_t i = 0; i < 2; i++)
        assert_int_equal(
            worker_of(IDEM_ID_SNOWFLAKE, one(ids[i], IDEM_ID_SNOWFLAKE)),
            5 + i);
    assert_int_equal(
        idem_ids_next(ids[2], IDEM_ID_SNOWFLAKE, NONE, &id, 1, &err),
        IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "from 5 to 6 are all taken"));
    assert_int_equal(
        idem_ids_next(ids[3], IDEM_ID_SNOWFLAKE, NONE, &id, 1, &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "begins at 1024"));
    assert_int_equal(worker_of(IDEM_ID_UID, one(ids[3], IDEM_ID_UID)), 1024);
    for (size_t i = 0; i < 4; i++)
        idem_ids_close(ids[i]);
    idem_close(engine);
}

static void
a_step_of_one_fetches_nothing_ahead(void **state)
{
    const struct idem_ids_options exact = {.segment_step = 1};
    struct idem_engine *engine = open_engine();
    uint64_t expected = 1, out[7];

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem_ids *ids = open_ids(engine, &exact);

        for (size_t count = 1; count <= 7; count += 3) {
            next(ids, IDEM_ID_SEGMENT, out, count);
            for (size_t j = 0; j < count; j++)
                assert_int_equal(out[j], expected++);
        }
        idem_ids_close(ids);
    }
    idem_close(engine);
}

static void
a_step_grows_to_its_maximum_and_no_further(void **state)
{
    const struct idem_ids_options small = {.segment_step = 10,
                                           .segment_step_max = 40};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, &small);
    struct idem__ids_figures figures;

    (void)state;
    for (int i = 0; i < 1000; i++)
        one(ids, IDEM_ID_SEGMENT);
    idem__ids_figures(ids, &figures);
    assert_int_equal(figures.step, 40);
    assert_int_equal(figures.given[IDEM_ID_SEGMENT], 1000);
    assert_in_range(figures.ranges, 1000 / 40, 1000 / 10);
    assert_int_equal(figures.names, 1);
    assert_int_equal(figures.worker[IDEM_ID_UID], -1);
    idem_ids_close(ids);
    idem_close(engine);
}

static int alarms;

static void
count_alarm(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    if (level == IDEM_LOG_ALARM && strstr(text, "used up"))
        __atomic_fetch_add(&alarms, 1, __ATOMIC_RELAXED);
}

static void
the_end_of_an_epoch_is_announced(void **state)
{
    int64_t now_s = idem__system_clocks.wall_us(NULL) / 1000000;
    struct idem_ids_options o = {.log = count_alarm};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids;

    (void)state;
    /* 28 bits of seconds end in 100 days */
    o.uid_epoch_s = now_s - (INT64_C(1) << 28) + 100 * 86400;
    ids = open_ids(engine, &o);
    one(ids, IDEM_ID_UID);
    assert_int_equal(__atomic_load_n(&alarms, __ATOMIC_RELAXED), 1);
    idem_ids_close(ids);
    idem_close(engine);
}

static void
an_epoch_that_ended_gives_no_ids(void **state)
{
    int64_t now_s = idem__system_clocks.wall_us(NULL) / 1000000;
    const struct idem_ids_options o = {
        .uid_epoch_s = now_s - (INT64_C(1) << 28) - 100, .wait_ms = 200};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = open_ids(engine, &o);
    uint64_t id;

    (void)state;
    assert_int_equal(idem_ids_next(ids, IDEM_ID_UID, NONE, &id, 1, NULL),
                     IDEM_ERR_UNAVAILABLE);
    idem_ids_close(ids);
    idem_close(engine);
}

static void
uuids_have_their_version_and_order(void **state)
{
    char last[IDEM_UUID_LEN + 1] = "", text[IDEM_UUID_LEN + 1];
    int64_t time_ms, now_ms = idem__system_clocks.wall_us(NULL) / 1000;
    int version;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        idem_uuid7(text);
        assert_true(strcmp(text, last) > 0);
        memcpy(last, text, sizeof(last));
    }
    assert_int_equal(idem_uuid_explain(text, &version, &time_ms, NULL),
                     IDEM_OK);
    assert_int_equal(version, 7);
    assert_in_range(time_ms, now_ms - 1, now_ms + 60000);
    idem_uuid4(text);
    assert_int_equal(idem_uuid_explain(text, &version, &time_ms, NULL),
                     IDEM_OK);
    assert_int_equal(version, 4);
    assert_int_equal(time_ms, -1);
    assert_int_equal(idem_uuid_explain("no", &version, &time_ms, NULL),
                     IDEM_ERR_INVALID);
}

static void
what_makes_no_sense_is_refused(void **state)
{
    struct idem_ids_options bad_bits = {.uid_seconds_bits = 28};
    struct idem_ids_options bad_lease = {.lease_ms = 1};
    struct idem_engine *engine = open_engine();
    struct idem_ids *ids = NULL;
    struct idem_error err;
    struct idem_id_parts parts;
    uint64_t id;

    (void)state;
    assert_int_equal(idem_ids_open(engine, &bad_bits, &ids, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem_ids_open(engine, &bad_lease, &ids, &err),
                     IDEM_ERR_INVALID);
    ids = open_ids(engine, NULL);
    assert_int_equal(idem_ids_next(ids, IDEM_ID_SEGMENT, NONE, &id, 1, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem_ids_next(ids, IDEM_ID_UUID4, NONE, &id, 1, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(
        idem_id_explain(IDEM_ID_SNOWFLAKE, UINT64_MAX, NULL, &parts, &err),
        IDEM_ERR_INVALID);
    idem_ids_close(ids);
    idem_close(engine);
}

/* ---- options as text ------------------------------------------------------
 */

static void
options_are_read_from_text(void **state)
{
    static const char *const settings[][2] = {
        {"uid-bits", "30,20,13"},          {"uid-epoch", "2026-01-02"},
        {"snowflake-epoch", "2026-01-03"}, {"worker-numbers", "5-9"},
        {"segment-step", "100"},           {"segment-step-max", "5000"}};
    struct idem_ids_options o = {0};

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        assert_true(idem__ids_option_known(settings[i][0]));
        assert_int_equal(
            idem__ids_option_set(&o, settings[i][0], settings[i][1], NULL),
            IDEM_OK);
    }
    assert_false(idem__ids_option_known("segment-steps"));
    assert_int_equal(o.uid_seconds_bits, 30);
    assert_int_equal(o.uid_worker_bits, 20);
    assert_int_equal(o.uid_sequence_bits, 13);
    assert_int_equal(o.uid_epoch_s, 1767312000);
    assert_true(o.snowflake_epoch_ms == INT64_C(1767398400000));
    assert_int_equal(o.worker_first, 5);
    assert_int_equal(o.worker_count, 5);
    assert_int_equal(o.segment_step, 100);
    assert_int_equal(o.segment_step_max, 5000);
    assert_int_equal(idem__ids_options_check(&o, NULL), IDEM_OK);
}

static void
an_option_of_another_shape_is_refused(void **state)
{
    static const char *const cases[][3] = {
        {"uid-bits", "28,22", "three numbers"},
        {"uid-bits", "28,22,13,1", "three numbers"},
        {"uid-bits", "28,22,x", "three numbers"},
        {"uid-bits", "28,-22,13", "three numbers"},
        {"uid-bits", "156,22,13", "three numbers"}, /* 156 is 128 + 28 */
        {"uid-bits", "28,22,18446744073709551629", "three numbers"},
        {"worker-numbers", "9-5", "a range like 0-511"},
        {"worker-numbers", "9", "a range like 0-511"},
        {"worker-numbers", "0-18446744073709551615", "a range like 0-511"},
        {"uid-epoch", "soon", "a day like 2026-01-01"},
        {"snowflake-epoch", "2026-01-01x", "a day like 2026-01-01"},
        {"snowflake-epoch", "1970-01-01", "a day like 2026-01-01"},
        {"segment-step", "0", "a number, 1 or more"},
        {"segment-step", "x", "a number, 1 or more"},
    };
    struct idem_ids_options o = {0}, none = {0};
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (idem__ids_option_set(&o, cases[i][0], cases[i][1], &err) !=
            IDEM_ERR_INVALID)
            fail_msg("taken: %s %s", cases[i][0], cases[i][1]);
        assert_non_null(strstr(err.text, cases[i][2]));
        assert_non_null(strstr(err.text, cases[i][1]));
    }
    assert_memory_equal(&o, &none, sizeof(o));
}

static void
options_out_of_range_are_refused(void **state)
{
    const struct idem_ids_options cases[] = {
        {.uid_seconds_bits = 50, .uid_worker_bits = 13},
        {.uid_seconds_bits = 50, .uid_sequence_bits = 13},
        {.uid_worker_bits = 50, .uid_sequence_bits = 13},
        {.uid_seconds_bits = 1, .uid_worker_bits = 1, .uid_sequence_bits = 1},
        {.lease_ms = 299},
        {.lease_ms = IDEM_LEASE_MAX_MS + 1},
        {.segment_step = (UINT64_C(1) << 40) + 1},
        {.segment_step = 10, .segment_step_max = 9},
        {.segment_step_max = (UINT64_C(1) << 40) + 1},
    };
    struct idem_ids_options large = {.segment_step = UINT64_C(1) << 40};
    struct idem_ids_options newer = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct idem_ids_options o = cases[i];

        assert_int_equal(idem__ids_options_check(&o, NULL), IDEM_ERR_INVALID);
    }
    assert_int_equal(idem__ids_options_check(&large, NULL), IDEM_OK);
    assert_true(large.segment_step_max == large.segment_step);
    newer.room[0] = 1;
    assert_int_equal(idem__ids_options_check(&newer, NULL),
                     IDEM_ERR_UNSUPPORTED);
}

static void
only_numbers_can_be_explained(void **state)
{
    struct idem_ids_options bad = {.lease_ms = 1};
    struct idem_id_parts parts;
    struct idem_error err;

    (void)state;
    assert_int_equal(idem_id_explain(IDEM_ID_SEGMENT, 77, NULL, &parts, NULL),
                     IDEM_OK);
    assert_true(parts.sequence == 77 && parts.time_ms == -1);
    assert_int_equal(idem_id_explain(IDEM_ID_UUID7, 77, NULL, &parts, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "snowflake, uid or segment"));
    assert_int_equal(idem_id_explain(IDEM_ID_UID, 77, &bad, &parts, NULL),
                     IDEM_ERR_INVALID);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snowflakes_increase_and_tell_their_time),
        cmocka_unit_test(two_generators_never_share_a_worker_number),
        cmocka_unit_test(a_clock_going_back_neither_repeats_nor_stalls),
        cmocka_unit_test(a_clock_set_back_across_a_restart_does_not_repeat),
        cmocka_unit_test(a_vanished_holders_number_is_recycled_beyond_its_mark),
        cmocka_unit_test(an_expired_lease_stops_generation),
        cmocka_unit_test(a_segment_goes_on_behind_what_was_handed_out),
        cmocka_unit_test(
            one_call_may_reach_into_the_range_that_was_fetched_ahead),
        cmocka_unit_test(
            a_new_segment_takes_the_place_of_the_one_unused_for_longest),
        cmocka_unit_test(uid_bits_are_what_was_configured),
        cmocka_unit_test(other_bits_on_the_same_store_are_refused),
        cmocka_unit_test(worker_numbers_come_from_the_pool),
        cmocka_unit_test(a_step_of_one_fetches_nothing_ahead),
        cmocka_unit_test(a_step_grows_to_its_maximum_and_no_further),
        cmocka_unit_test(the_end_of_an_epoch_is_announced),
        cmocka_unit_test(an_epoch_that_ended_gives_no_ids),
        cmocka_unit_test(uuids_have_their_version_and_order),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(options_are_read_from_text),
        cmocka_unit_test(an_option_of_another_shape_is_refused),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(only_numbers_can_be_explained),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
