/*
 * lives_test.c - examples of whole lives of a record: several operations in
 * turn through step().
 */
#include "record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t nonce_a[IDEM_NONCE_LEN] = {1};
static const uint8_t nonce_b[IDEM_NONCE_LEN] = {2};

struct life {
    struct idem_record record; /* the stored record */
    int64_t now_ms;
    struct idem_record next;
};

static enum idem_verdict
play(struct life *life, struct idem_op op)
{
    struct idem_now now = {life->now_ms,
                           life->now_ms,
                           INT64_MAX,
                           (uint64_t)life->now_ms * 1000,
                           0,
                           0};
    enum idem_verdict verdict;

    op.scope = idem_text("s");
    op.id = idem_text("i");
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    verdict = idem__step(life->record.state ? &life->record : NULL, &op, &now,
                         &life->next);
    if (life->next.state != IDEM_STATE_ABSENT) {
        life->record = life->next;
        life->record.rev = 1;
    }
    return verdict;
}

#define BEGIN_LOOSE(n)                                                         \
    ((struct idem_op){                                                         \
        .verb = IDEM_BEGIN, .nonce = (n), .mode = IDEM_LOOSE, .lease_ms = 10})

static void
a_delayed_begin_cannot_run_after_its_failure_freed_the_record(void **state)
{
    struct life life = {.now_ms = 1000};

    (void)state;
    assert_int_equal(play(&life, BEGIN_LOOSE(nonce_a)), IDEM_V_STARTED);
    assert_int_equal(
        play(&life, (struct idem_op){.verb = IDEM_FINISH,
                                     .fence = life.record.fence,
                                     .outcome = IDEM_STATE_FAILED}),
        IDEM_V_OK);
    assert_int_equal(life.record.state, IDEM_STATE_FREE);
    assert_int_equal(play(&life, BEGIN_LOOSE(nonce_a)), IDEM_V_STALE);
    assert_int_equal(play(&life, BEGIN_LOOSE(nonce_b)), IDEM_V_STARTED);
    assert_int_equal(life.record.attempt, 2);
}

static void
a_fence_from_a_clock_that_was_ahead_outlives_the_record(void **state)
{
    const int64_t right_ms = 1000000, ahead_ms = INT64_C(30) * 24 * 3600000;
    struct life life = {.now_ms = right_ms + ahead_ms};
    uint64_t fence;

    (void)state;
    play(&life, BEGIN_LOOSE(nonce_a));
    fence = life.record.fence;
    life.now_ms = right_ms; /* the clock is corrected */
    assert_int_equal(
        play(&life, (struct idem_op){.verb = IDEM_RELEASE, .fence = fence}),
        IDEM_V_OK);
    /* After the expiry the next fence is larger, whether the record is still
     * there or not. */
    life.now_ms = life.record.expires;
    assert_true(idem__record_drop_at(&life.record) > right_ms + ahead_ms);
    assert_int_equal(play(&life, BEGIN_LOOSE(nonce_b)), IDEM_V_STARTED);
    assert_int_equal(life.record.fence, fence + 1);
    assert_int_equal(life.record.attempt, 1);
    play(&life, (struct idem_op){.verb = IDEM_RELEASE, .fence = fence + 1});
    life.now_ms = idem__record_drop_at(&life.record);
    life.record.state = IDEM_STATE_ABSENT;
    assert_int_equal(play(&life, BEGIN_LOOSE(nonce_a)), IDEM_V_STARTED);
    assert_true(life.record.fence > fence + 1);
}

static void
a_zombie_cannot_finish_after_another_took_over(void **state)
{
    struct life life = {.now_ms = 1000};
    uint64_t zombie;

    (void)state;
    play(&life, BEGIN_LOOSE(nonce_a));
    zombie = life.record.fence;
    life.now_ms += 10;
    assert_int_equal(play(&life, BEGIN_LOOSE(nonce_b)), IDEM_V_STARTED);
    assert_true(life.record.fence > zombie);
    assert_int_equal(
        play(&life, (struct idem_op){.verb = IDEM_FINISH,
                                     .fence = zombie,
                                     .outcome = IDEM_STATE_SUCCEEDED}),
        IDEM_V_STALE);
    assert_int_equal(life.record.state, IDEM_STATE_EXECUTING);
}

static void
a_strict_doubt_outlives_its_ttl_and_takes_its_own_finish(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op begin = {
        .verb = IDEM_BEGIN, .nonce = nonce_a, .lease_ms = 10, .ttl_ms = 50};
    struct idem_op late = begin;
    uint64_t fence;

    (void)state;
    late.nonce = nonce_b;
    assert_int_equal(play(&life, begin), IDEM_V_STARTED);
    fence = life.record.fence;
    life.now_ms += 1000000;
    assert_int_equal(play(&life, late), IDEM_V_DOUBT);
    assert_int_equal(
        play(&life, (struct idem_op){.verb = IDEM_FINISH,
                                     .fence = fence,
                                     .outcome = IDEM_STATE_SUCCEEDED,
                                     .result = idem_text("late")}),
        IDEM_V_OK);
    assert_int_equal(play(&life, late), IDEM_V_REPLAY);
    life.now_ms += 50; /* now its TTL counts, from the finish */
    assert_int_equal(play(&life, late), IDEM_V_STARTED);
    assert_true(life.record.fence > fence);
}

static void
an_expired_record_leaves_nothing_but_its_fence(void **state)
{
    struct life kept = {.now_ms = 1000}, dropped;
    struct idem_op begin = {.verb = IDEM_BEGIN, .nonce = nonce_a, .ttl_ms = 5};

    (void)state;
    play(&kept, begin);
    play(&kept, (struct idem_op){.verb = IDEM_FINISH,
                                 .fence = kept.record.fence,
                                 .outcome = IDEM_STATE_SUCCEEDED});
    kept.now_ms += 100;
    dropped = kept;
    dropped.record.state = IDEM_STATE_ABSENT; /* the store swept it */
    begin.nonce = nonce_b;
    assert_int_equal(play(&kept, begin), play(&dropped, begin));
    assert_memory_equal(&kept.record, &dropped.record, sizeof(kept.record));
}

static void
a_released_token_may_be_tried_again_a_forgotten_one_not(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op begin = {
        .verb = IDEM_BEGIN, .type = IDEM_TYPE_TOKEN, .nonce = nonce_a};
    struct idem_op forget = {.verb = IDEM_FORGET, .type = IDEM_TYPE_TOKEN};

    (void)state;
    assert_int_equal(play(&life, begin), IDEM_V_UNKNOWN);
    play(&life, (struct idem_op){.verb = IDEM_ISSUE});
    assert_int_equal(play(&life, begin), IDEM_V_STARTED);
    assert_int_equal(play(&life, (struct idem_op){.verb = IDEM_RELEASE,
                                                  .type = IDEM_TYPE_TOKEN,
                                                  .fence = life.record.fence}),
                     IDEM_V_OK);
    begin.nonce = nonce_b;
    assert_int_equal(play(&life, begin), IDEM_V_STARTED);

    assert_int_equal(play(&life, forget), IDEM_V_OK);
    assert_int_equal(play(&life, (struct idem_op){.verb = IDEM_ISSUE}),
                     IDEM_V_ISSUED);
    assert_int_equal(play(&life, forget), IDEM_V_OK);
    begin.nonce = nonce_a;
    assert_int_equal(play(&life, begin), IDEM_V_UNKNOWN);
}

static void
a_worker_note_survives_holders_and_time(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op lock = {.verb = IDEM_LOCK,
                           .type = IDEM_TYPE_WORKER,
                           .subject = idem_text("first"),
                           .lease_ms = 10,
                           .result = idem_text("mark 7")};

    (void)state;
    assert_int_equal(play(&life, lock), IDEM_V_STARTED);
    life.now_ms += 11;
    lock.subject = idem_text("second");
    lock.result = (struct idem_bytes){NULL, 0};
    assert_int_equal(play(&life, lock), IDEM_V_STARTED);
    assert_true(idem__bytes_is(life.record.result, "mark 7"));
    assert_int_equal(play(&life, (struct idem_op){.verb = IDEM_UNLOCK,
                                                  .type = IDEM_TYPE_WORKER,
                                                  .fence = life.record.fence}),
                     IDEM_V_OK);
    life.now_ms += IDEM_TTL_MAX_MS;
    lock.subject = idem_text("third");
    assert_int_equal(play(&life, lock), IDEM_V_STARTED);
    assert_true(idem__bytes_is(life.record.result, "mark 7"));
}

static void
a_holder_may_change_the_note_of_its_lock_but_of_nothing_else(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op renew = {.verb = IDEM_RENEW,
                            .type = IDEM_TYPE_LOCK,
                            .lease_ms = 10,
                            .result = idem_text("second")};

    (void)state;
    play(&life, (struct idem_op){.verb = IDEM_LOCK,
                                 .type = IDEM_TYPE_LOCK,
                                 .subject = idem_text("me"),
                                 .lease_ms = 10,
                                 .result = idem_text("first")});
    renew.fence = life.record.fence;
    assert_int_equal(play(&life, renew), IDEM_V_OK);
    assert_true(idem__bytes_is(life.record.result, "second"));
    renew.result = (struct idem_bytes){NULL, 0};
    assert_int_equal(play(&life, renew), IDEM_V_OK);
    assert_true(idem__bytes_is(life.record.result, "second"));
    assert_int_equal(
        play(&life, (struct idem_op){.verb = IDEM_UNLOCK,
                                     .type = IDEM_TYPE_LOCK,
                                     .fence = renew.fence,
                                     .result = idem_text("third")}),
        IDEM_V_OK);
    assert_true(idem__bytes_is(life.record.result, "third"));

    life = (struct life){.now_ms = 1000};
    play(&life, BEGIN_LOOSE(nonce_a));
    renew.type = IDEM_TYPE_REQUEST;
    renew.fence = life.record.fence;
    assert_int_equal(play(&life, renew), IDEM_V_OK);
    assert_int_equal(life.record.result.len, 0);
}

static void
an_operator_who_names_no_subject_keeps_that_of_the_start(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op begin = {.verb = IDEM_BEGIN,
                            .nonce = nonce_a,
                            .lease_ms = 10,
                            .subject = idem_text("a")};
    struct idem_op settle = {.verb = IDEM_SETTLE,
                             .outcome = IDEM_STATE_SUCCEEDED};

    (void)state;
    play(&life, begin);
    life.now_ms += 11;
    assert_int_equal(play(&life, settle), IDEM_V_SETTLED);
    assert_true(idem__bytes_is(life.record.subject, "a"));

    life = (struct life){.now_ms = 1000};
    play(&life, begin);
    life.now_ms += 11;
    settle.subject = idem_text("b");
    assert_int_equal(play(&life, settle), IDEM_V_SETTLED);
    assert_true(idem__bytes_is(life.record.subject, "b"));
}

static void
fences_start_at_one_and_follow_the_clock(void **state)
{
    struct life life = {.now_ms = 0};

    (void)state;
    play(&life, BEGIN_LOOSE(nonce_a));
    assert_int_equal(life.record.fence, 1);
    life = (struct life){.now_ms = 5};
    play(&life, BEGIN_LOOSE(nonce_a));
    assert_int_equal(life.record.fence, 5000);
}

static void
an_outcome_is_kept_as_long_as_its_start_asked_for(void **state)
{
    static const int64_t asked_ms[] = {0, 1, 5000};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct life life = {.now_ms = 1000};

        play(&life, BEGIN_LOOSE(nonce_a));
        life.record.expires = life.record.created + asked_ms[i];
        play(&life, (struct idem_op){.verb = IDEM_FINISH,
                                     .fence = life.record.fence,
                                     .outcome = IDEM_STATE_SUCCEEDED});
        assert_int_equal(life.record.expires,
                         1000 +
                             (asked_ms[i] ? asked_ms[i] : IDEM_TTL_DEFAULT_MS));
    }
}

static void
a_token_is_redeemed_without_a_nonce_as_well(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op redeem = {.verb = IDEM_REDEEM};

    (void)state;
    assert_int_equal(play(&life, (struct idem_op){.verb = IDEM_ISSUE}),
                     IDEM_V_ISSUED);
    assert_int_equal(play(&life, redeem), IDEM_V_REDEEMED);
    assert_int_equal(play(&life, redeem), IDEM_V_DUPLICATE);
    redeem.nonce = nonce_a;
    assert_int_equal(play(&life, redeem), IDEM_V_DUPLICATE);
}

static void
a_renewal_never_shortens_a_lease(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op begin = {
        .verb = IDEM_BEGIN, .nonce = nonce_a, .lease_ms = 60000};
    struct idem_op lock = {
        .verb = IDEM_LOCK, .subject = idem_text("owner"), .lease_ms = 60000};

    (void)state;
    play(&life, begin);
    assert_int_equal(play(&life, (struct idem_op){.verb = IDEM_RENEW,
                                                  .fence = life.record.fence,
                                                  .lease_ms = 1}),
                     IDEM_V_OK);
    assert_int_equal(life.record.lease_until, 61000);

    life = (struct life){.now_ms = 1000};
    play(&life, lock);
    lock.lease_ms = 1;
    assert_int_equal(play(&life, lock), IDEM_V_STARTED);
    assert_int_equal(life.record.lease_until, 61000);
}

static void
a_holder_that_lost_the_outcome_ends_its_lease(void **state)
{
    struct life life = {.now_ms = 1000};
    struct idem_op begin = {
        .verb = IDEM_BEGIN, .nonce = nonce_a, .lease_ms = 60000};
    struct idem_op lost = {.verb = IDEM_RENEW, .lost = true};

    (void)state;
    play(&life, begin);
    lost.fence = life.record.fence + 1;
    assert_int_equal(play(&life, lost), IDEM_V_STALE);
    lost.fence = life.record.fence;
    assert_int_equal(play(&life, lost), IDEM_V_OK);
    begin.nonce = nonce_b;
    life.now_ms += 10;
    assert_int_equal(play(&life, begin), IDEM_V_DOUBT);
    /* The service itself may still report the outcome. */
    assert_int_equal(
        play(&life, (struct idem_op){.verb = IDEM_FINISH,
                                     .fence = lost.fence,
                                     .outcome = IDEM_STATE_SUCCEEDED}),
        IDEM_V_OK);
    assert_int_equal(play(&life, begin), IDEM_V_REPLAY);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_delayed_begin_cannot_run_after_its_failure_freed_the_record),
        cmocka_unit_test(
            a_fence_from_a_clock_that_was_ahead_outlives_the_record),
        cmocka_unit_test(a_zombie_cannot_finish_after_another_took_over),
        cmocka_unit_test(
            a_strict_doubt_outlives_its_ttl_and_takes_its_own_finish),
        cmocka_unit_test(an_expired_record_leaves_nothing_but_its_fence),
        cmocka_unit_test(
            a_released_token_may_be_tried_again_a_forgotten_one_not),
        cmocka_unit_test(a_worker_note_survives_holders_and_time),
        cmocka_unit_test(
            a_holder_may_change_the_note_of_its_lock_but_of_nothing_else),
        cmocka_unit_test(
            an_operator_who_names_no_subject_keeps_that_of_the_start),
        cmocka_unit_test(fences_start_at_one_and_follow_the_clock),
        cmocka_unit_test(an_outcome_is_kept_as_long_as_its_start_asked_for),
        cmocka_unit_test(a_token_is_redeemed_without_a_nonce_as_well),
        cmocka_unit_test(a_renewal_never_shortens_a_lease),
        cmocka_unit_test(a_holder_that_lost_the_outcome_ends_its_lease),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
