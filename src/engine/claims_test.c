/*
 * claims_test.c - tests that the loss of a live claim is detected, and that
 * nothing else is taken for one.
 */
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SECOND_US INT64_C(1000000)

static const struct idem_store_type far_away = {.scheme = "far"};
static const struct idem_store_type near = {.scheme = "near", .local = true};
static const uint8_t key[IDEM_KEY_LEN] = {1, 2, 3};
static const struct idem_record nothing = {.state = IDEM_STATE_ABSENT};
static int alarms;

static void
count_alarms(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    assert_non_null(strstr(text, "fence 100"));
    alarms += level == IDEM_LOG_ALARM;
}

struct rig {
    struct idem_engine engine;
    struct idem_store store;
};

/* An engine that has just written a claim of 10 s, with a TTL of a minute. */
static struct rig *
wrote_claim(struct rig *rig, const struct idem_store_type *type)
{
    struct idem_record claim = {.state = IDEM_STATE_EXECUTING,
                                .fence = 100,
                                .created = 5000,
                                .updated = 5000,
                                .lease_until = 15000,
                                .expires = 65000};

    alarms = 0;
    memset(rig, 0, sizeof(*rig));
    rig->store.type = type;
    rig->engine.store = &rig->store;
    rig->engine.store_options.log = count_alarms;
    rig->engine.boot_now_us = 1000 * SECOND_US;
    idem__claim_wrote(&rig->engine, key, &claim);
    return rig;
}

static uint64_t
vanished(struct rig *rig, const struct idem_record *stored)
{
    idem__claim_found(&rig->engine, key, stored);
    idem__claims_close(&rig->engine.claims);
    return atomic_load(&rig->engine.vanished);
}

static void
a_live_claim_that_is_gone_is_an_alarm(void **state)
{
    struct idem_record older = {.state = IDEM_STATE_FREE, .fence = 99};
    struct rig rig;

    (void)state;
    assert_int_equal(vanished(wrote_claim(&rig, &far_away), &nothing), 1);
    assert_int_equal(alarms, 1);
    assert_int_equal(vanished(wrote_claim(&rig, &far_away), &older), 1);
    assert_int_equal(alarms, 1);
}

static void
a_claim_is_counted_once_and_the_log_is_spared(void **state)
{
    uint8_t other[IDEM_KEY_LEN] = {9};
    struct idem_record claim = {
        .state = IDEM_STATE_EXECUTING, .fence = 101, .lease_until = 10000};
    struct rig rig;

    (void)state;
    wrote_claim(&rig, &far_away);
    idem__claim_wrote(&rig.engine, other, &claim);
    idem__claim_found(&rig.engine, key, &nothing);
    idem__claim_found(&rig.engine, key, &nothing);
    idem__claim_found(&rig.engine, other, &nothing);
    assert_int_equal(vanished(&rig, &nothing), 2);
    assert_int_equal(alarms, 1);
}

static void
what_others_may_do_to_a_claim_is_none(void **state)
{
    struct idem_record same = {.state = IDEM_STATE_SUCCEEDED, .fence = 100};
    struct idem_record later = {.state = IDEM_STATE_EXECUTING, .fence = 200};
    struct idem_record freed = {.state = IDEM_STATE_FREE, .fence = 100};
    struct rig rig;

    (void)state;
    assert_int_equal(vanished(wrote_claim(&rig, &far_away), &same), 0);
    assert_int_equal(vanished(wrote_claim(&rig, &far_away), &later), 0);
    assert_int_equal(vanished(wrote_claim(&rig, &far_away), &freed), 0);
    /* This engine ended the claim itself, so it may be gone. */
    wrote_claim(&rig, &far_away);
    idem__claim_wrote(&rig.engine, key, &same);
    assert_int_equal(vanished(&rig, &nothing), 0);
    /* Only this engine writes a local store. */
    assert_int_equal(vanished(wrote_claim(&rig, &near), &nothing), 0);
    assert_int_equal(alarms, 0);
}

static void
a_claim_is_watched_for_its_lease_and_no_longer_than_its_ttl(void **state)
{
    struct idem_record brief = {.state = IDEM_STATE_EXECUTING,
                                .fence = 100,
                                .created = 5000,
                                .updated = 5000,
                                .lease_until = 15000,
                                .expires = 7000};
    struct rig rig;

    (void)state;
    wrote_claim(&rig, &far_away)->engine.boot_now_us += 9 * SECOND_US;
    assert_int_equal(vanished(&rig, &nothing), 1);
    wrote_claim(&rig, &far_away)->engine.boot_now_us += 10 * SECOND_US;
    assert_int_equal(vanished(&rig, &nothing), 0);
    wrote_claim(&rig, &far_away);
    idem__claim_wrote(&rig.engine, key, &brief);
    rig.engine.boot_now_us += 3 * SECOND_US;
    assert_int_equal(vanished(&rig, &nothing), 0);
}

static void
another_loss_is_told_after_a_minute(void **state)
{
    uint8_t other[IDEM_KEY_LEN] = {9};
    struct idem_record claim = {
        .state = IDEM_STATE_EXECUTING, .fence = 1001, .lease_until = 600000};
    struct rig rig;

    (void)state;
    wrote_claim(&rig, &far_away);
    idem__claim_wrote(&rig.engine, other, &claim);
    idem__claim_found(&rig.engine, key, &nothing);
    assert_int_equal(alarms, 1);
    rig.engine.boot_now_us += 60 * SECOND_US;
    idem__claim_found(&rig.engine, other, &nothing);
    assert_int_equal(alarms, 2);
    assert_int_equal(vanished(&rig, &nothing), 2);
}

static void
a_key_that_became_absent_has_no_claim(void **state)
{
    struct rig rig;

    (void)state;
    wrote_claim(&rig, &far_away);
    assert_true(idem__claim_known(&rig.engine, key));
    idem__claim_wrote(&rig.engine, key, NULL);
    assert_false(idem__claim_known(&rig.engine, key));
    assert_int_equal(vanished(&rig, &nothing), 0);
    assert_int_equal(alarms, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_live_claim_that_is_gone_is_an_alarm),
        cmocka_unit_test(a_claim_is_counted_once_and_the_log_is_spared),
        cmocka_unit_test(what_others_may_do_to_a_claim_is_none),
        cmocka_unit_test(
            a_claim_is_watched_for_its_lease_and_no_longer_than_its_ttl),
        cmocka_unit_test(another_loss_is_told_after_a_minute),
        cmocka_unit_test(a_key_that_became_absent_has_no_claim),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
