/*
 * remote_broken_test.c - the engine behind idem:// when servers die and
 * connections break: what is lost, what is sent again, and leases.
 */
#include "../../tests/support/history.h"
#include "../../tests/support/served.h"
#include "remote.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void
without_a_server_it_is_unavailable_and_comes_back(void **state)
{
    struct served served;
    struct idem_engine *engine;
    struct idem_answer answer;
    enum idem_status status = IDEM_ERR_LOST;
    int64_t end;

    (void)state;
    served_start(&served, "journal:", NULL);
    engine = served_open_quick(served.url);
    assert_int_equal(served_do(engine, served_begin("one"), &answer), IDEM_OK);
    idem_answer_clear(&answer);
    served_signal(&served, SIGKILL);
    /* The first attempt may use a connection that is dead without being
     * noticed. */
    for (int i = 0; i < 20; i++) {
        status = served_do(engine, served_begin("two"), &answer);
        assert_true(status == IDEM_ERR_UNAVAILABLE || status == IDEM_ERR_LOST);
    }
    assert_int_equal(status, IDEM_ERR_UNAVAILABLE);
    served_again(&served);
    for (end = served_now_ms() + 30000;
         status != IDEM_OK && served_now_ms() < end;) {
        status = served_do(engine, served_begin("two"), &answer);
        usleep(10000);
    }
    assert_int_equal(status, IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    idem_answer_clear(&answer);
    assert_int_equal(served_do(engine, served_begin("one"), &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_BUSY);
    idem_answer_clear(&answer);
    idem_close(engine);
    served_stop(&served);
}

/* Requests get through, replies do not: the client must learn that the
 * operation may have been done. */
static void
what_may_have_been_done_is_lost(void **state)
{
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine, *direct;
    struct idem_answer answer;
    int64_t start;

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    engine = served_open_quick(proxy.url);
    direct = served_open(served.url);
    atomic_store(&proxy.swallow, true);
    start = served_now_ms();
    assert_int_equal(served_do(engine, served_begin("gone"), &answer),
                     IDEM_ERR_LOST);
    assert_true(served_now_ms() - start < 30000);
    assert_int_equal(served_do(direct, served_begin("gone"), &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_BUSY); /* it had been done */
    idem_answer_clear(&answer);
    /* A GET changes nothing, so it is not reported as lost. */
    assert_int_equal(
        served_do(engine,
                  (struct idem_op){.verb = IDEM_GET, .id = idem_text("gone")},
                  &answer),
        IDEM_ERR_UNAVAILABLE);
    atomic_store(&proxy.swallow, false);
    idem_close(engine);
    idem_close(direct);
    proxy_stop(&proxy);
    served_stop(&served);
}

/* ---- a lost answer, and what the second one tells -------------------------
 */

static void *
speak_again(void *arg)
{
    struct proxy *proxy = arg;

    usleep(150000);
    atomic_store(&proxy->swallow, false);
    return NULL;
}

/* The request passes; its answer is lost, and so it is sent again. */
static enum idem_status
do_and_lose_the_answer(struct idem_engine *engine, struct proxy *proxy,
                       struct idem_op op, struct idem_answer *answer)
{
    enum idem_status status;
    pthread_t thread;

    atomic_store(&proxy->swallow, true);
    assert_int_equal(pthread_create(&thread, NULL, speak_again, proxy), 0);
    status = served_do(engine, op, answer);
    pthread_join(thread, NULL);
    return status;
}

static void
the_second_answer_tells_what_the_first_one_did(void **state)
{
    struct idem_op lock = {.verb = IDEM_LOCK,
                           .id = idem_text("l"),
                           .subject = idem_text("me"),
                           .lease_ms = 60000};
    struct idem_op op;
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine;
    struct idem_answer answer;

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    engine = served_open(proxy.url);

    op = (struct idem_op){.verb = IDEM_SETTLE, .id = idem_text("never-ran")};
    assert_int_equal(do_and_lose_the_answer(engine, &proxy, op, &answer),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_SETTLED);
    assert_int_equal(answer.record->state, IDEM_STATE_FAILED);
    idem_answer_clear(&answer);

    op.outcome = IDEM_STATE_SUCCEEDED; /* it is settled, but as failed */
    assert_int_equal(do_and_lose_the_answer(engine, &proxy, op, &answer),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY);
    idem_answer_clear(&answer);

    assert_int_equal(served_do(engine, lock, &answer), IDEM_OK);
    op = (struct idem_op){.verb = IDEM_UNLOCK,
                          .id = idem_text("l"),
                          .fence = answer.record->fence};
    idem_answer_clear(&answer);
    assert_int_equal(do_and_lose_the_answer(engine, &proxy, op, &answer),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_OK);
    idem_answer_clear(&answer);
    op.fence++; /* of nobody's lock, so this was not it */
    assert_int_equal(do_and_lose_the_answer(engine, &proxy, op, &answer),
                     IDEM_ERR_LOST);

    /* That the token exists does not tell who issued it. */
    op = (struct idem_op){.verb = IDEM_ISSUE, .id = idem_text("token")};
    assert_int_equal(do_and_lose_the_answer(engine, &proxy, op, &answer),
                     IDEM_ERR_LOST);
    idem_close(engine);
    proxy_stop(&proxy);
    served_stop(&served);
}

/* The connection broke, and the operation was sent again and answered; then the
 * server reads the first one. */
static void
an_answer_that_a_late_first_one_can_belie_is_lost(void **state)
{
    const struct idem_op settle = {.verb = IDEM_SETTLE,
                                   .id = idem_text("late")};
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine, *direct;
    struct idem_answer answer;
    struct idem_op release = {.verb = IDEM_RELEASE, .id = idem_text("late")};

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    engine = served_open_quick(proxy.url);
    direct = served_open(served.url);
    assert_int_equal(served_do(direct, served_begin("late"), &answer), IDEM_OK);
    release.fence = answer.record->fence;
    idem_answer_clear(&answer);
    atomic_store(&proxy.late, true);
    assert_int_equal(served_do(engine, settle, &answer), IDEM_ERR_LOST);
    idem_answer_clear(&answer);
    assert_int_equal(served_do(direct, release, &answer), IDEM_OK);
    idem_answer_clear(&answer);
    atomic_store(&proxy.let_go, true);
    usleep(300000);
    assert_int_equal(served_do(direct, served_begin("late"), &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY); /* it was settled */
    idem_answer_clear(&answer);
    idem_close(engine);
    idem_close(direct);
    proxy_stop(&proxy);
    served_stop(&served);
}

struct outcome {
    atomic_int *open;
    enum idem_status status;
};

static void
note_outcome(void *arg, enum idem_status status,
             const struct idem_answer *answer, const struct idem_error *err)
{
    struct outcome *told = arg;

    (void)answer;
    (void)err;
    told->status = status;
    atomic_fetch_sub(told->open, 1);
}

/* The connection breaks when the CANCEL is sent, and the BEGIN is sent again on
 * the next one. */
static void
a_cancelled_wait_ends_soon_although_the_connection_breaks(void **state)
{
    struct idem_op op = served_begin("held");
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine;
    struct idem_answer answer;
    atomic_int open = 1;
    struct outcome told = {&open, IDEM_OK};
    uint64_t ticket;
    int64_t end;

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    engine = served_open(proxy.url);
    assert_int_equal(served_do(engine, op, &answer), IDEM_OK);
    idem_answer_clear(&answer);
    op.scope = idem_text("shop");
    op.wait_ms = 120000;
    assert_int_equal(
        idem_submit(engine, &op, note_outcome, &told, &ticket, NULL), IDEM_OK);
    assert_int_equal(served_do(engine, served_begin("other"), &answer),
                     IDEM_OK); /* so the wait is at the server, too */
    idem_answer_clear(&answer);
    atomic_store(&proxy.cut_per_mille, 1000);
    idem_cancel(engine, ticket);
    while (atomic_load(&proxy.cuts) == 0)
        usleep(1000);
    atomic_store(&proxy.cut_per_mille, 0);
    for (end = served_now_ms() + 15000;
         atomic_load(&open) > 0 && served_now_ms() < end;)
        usleep(1000);
    assert_int_equal(atomic_load(&open), 0);
    assert_int_equal(told.status, IDEM_ERR_LOST); /* it was sent twice */
    idem_close(engine);
    proxy_stop(&proxy);
    served_stop(&served);
}

/* On a slow line many requests are still unsent when their time is over. A
 * request that was reported as not stored must not be sent later. */
static void
what_is_told_as_not_stored_is_never_sent_later(void **state)
{
    enum { COUNT = 40, RESULT = 32768 };
    static char result[RESULT];
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine, *direct;
    struct outcome told[COUNT];
    struct idem_answer answer;
    atomic_int open = COUNT;
    char ids[COUNT][16];
    size_t unavailable = 0;

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    engine = served_open_quick(proxy.url);
    direct = served_open(served.url);
    for (int i = 0; i < COUNT; i++) {
        struct idem_op op = {.verb = IDEM_FINISH,
                             .scope = idem_text("shop"),
                             .outcome = IDEM_STATE_SUCCEEDED,
                             .result = {result, RESULT}};

        snprintf(ids[i], sizeof(ids[i]), "slow-%d", i);
        assert_int_equal(served_do(direct, served_begin(ids[i]), &answer),
                         IDEM_OK);
        op.id = idem_text(ids[i]);
        op.fence = answer.record->fence;
        idem_answer_clear(&answer);
        atomic_store(&proxy.delay_us, 200000);
        told[i] = (struct outcome){&open, IDEM_OK};
        assert_int_equal(
            idem_submit(engine, &op, note_outcome, &told[i], NULL, NULL),
            IDEM_OK);
    }
    while (atomic_load(&open) > 0)
        usleep(10000);
    atomic_store(&proxy.delay_us, 0);
    (void)served_do(engine, served_begin("behind-them"), &answer);
    idem_answer_clear(&answer);
    usleep(500000);
    for (int i = 0; i < COUNT; i++) {
        const struct idem_op get = {.verb = IDEM_GET, .id = idem_text(ids[i])};

        unavailable += told[i].status == IDEM_ERR_UNAVAILABLE;
        assert_int_equal(served_do(direct, get, &answer), IDEM_OK);
        if (told[i].status == IDEM_ERR_UNAVAILABLE)
            assert_int_equal(answer.record->state, IDEM_STATE_EXECUTING);
        if (told[i].status == IDEM_OK)
            assert_int_equal(answer.record->state, IDEM_STATE_SUCCEEDED);
        idem_answer_clear(&answer);
    }
    print_message("%zu of %d were told as not stored\n", unavailable, COUNT);
    idem_close(engine);
    idem_close(direct);
    proxy_stop(&proxy);
    served_stop(&served);
}

/* The reply to each verb is dropped and the connection is cut; the verb is sent
 * again and must get the outcome of the first one. */
static void
a_verb_that_is_sent_again_finds_itself(void **state)
{
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine;
    struct idem_answer answer;
    uint64_t fence;
    int64_t end;

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    atomic_store(&proxy.cut_per_mille, 100);
    for (int i = 0; i < 150; i++) {
        static const enum idem_verb ends[] = {IDEM_FINISH, IDEM_RELEASE};
        enum idem_verb last = ends[i % 2];
        enum idem_status status;
        char id[16];

        engine = NULL;
        for (end = served_now_ms() + 30000; !engine && served_now_ms() < end;)
            (void)idem_open(proxy.url, NULL, &engine, NULL);
        assert_non_null(engine);
        snprintf(id, sizeof(id), "again-%d", i);
        status = served_do(engine, served_begin(id), &answer);
        if (status == IDEM_OK) {
            /* This is the only client, so any other verdict would mean that
             * the server takes its execution for that of another client. */
            assert_int_equal(answer.verdict, IDEM_V_STARTED);
            assert_int_equal(answer.record->attempt, 1);
            fence = answer.record->fence;
            idem_answer_clear(&answer);
            status =
                served_do(engine,
                          (struct idem_op){.verb = last,
                                           .id = idem_text(id),
                                           .fence = fence,
                                           .outcome = IDEM_STATE_SUCCEEDED},
                          &answer);
            if (status == IDEM_OK)
                assert_int_equal(answer.verdict, IDEM_V_OK);
            idem_answer_clear(&answer);
        } else {
            assert_true(status == IDEM_ERR_UNAVAILABLE ||
                        status == IDEM_ERR_LOST);
        }
        idem_close(engine);
    }
    assert_true(atomic_load(&proxy.cuts) > 10);
    proxy_stop(&proxy);
    served_stop(&served);
}

static void
break_things(struct proxy *proxy, struct served *served, atomic_bool *over)
{
    struct dice dice = {7};

    while (!atomic_load(over)) {
        atomic_store(&proxy->cut_per_mille, (int)dice_roll(&dice, 60));
        atomic_store(&proxy->delay_us, (int)dice_roll(&dice, 4) * 1000);
        atomic_store(&proxy->refuse, dice_roll(&dice, 15) == 0);
        if (dice_roll(&dice, 20) == 0) {
            served_signal(served, SIGSTOP);
            usleep(200000);
            served_signal(served, SIGCONT);
        }
        usleep(50000);
    }
    atomic_store(&proxy->cut_per_mille, 0);
    atomic_store(&proxy->delay_us, 0);
    atomic_store(&proxy->refuse, false);
}

struct breaker {
    struct proxy *proxy;
    struct served *served;
    atomic_bool over;
};

static void *
be_breaker(void *arg)
{
    struct breaker *b = arg;

    break_things(b->proxy, b->served, &b->over);
    return NULL;
}

static void
check_history(const char *store, bool broken_lines)
{
    struct served served;
    struct proxy proxy;
    struct breaker breaker = {&proxy, &served, false};
    struct history_load load = {.ops = broken_lines ? 1000 : 4000};
    struct idem__stats stats;
    char text[300] = "";
    pthread_t thread;
    unsigned broken;

    if (getenv("IDEM_SANITIZED"))
        load.ops /= 5;
    served_start(&served, store, NULL);
    proxy_start(&proxy, &served);
    load.engine = served_open_quick(broken_lines ? proxy.url : served.url);
    load.second = served_open_quick(broken_lines ? proxy.url : served.url);
    if (broken_lines)
        assert_int_equal(pthread_create(&thread, NULL, be_breaker, &breaker),
                         0);
    broken = history_load(&load, text, sizeof(text));
    if (broken_lines) {
        atomic_store(&breaker.over, true);
        pthread_join(thread, NULL);
    }
    idem__stats(load.engine, &stats);
    print_message("%s: %zu operations, %llu started, %llu replayed, %llu lost, "
                  "%llu unavailable, %d cuts\n",
                  store, HISTORY_THREADS * load.ops,
                  (unsigned long long)stats.verdicts[IDEM_V_STARTED],
                  (unsigned long long)stats.verdicts[IDEM_V_REPLAY],
                  (unsigned long long)stats.errors[IDEM_ERR_LOST],
                  (unsigned long long)stats.errors[IDEM_ERR_UNAVAILABLE],
                  atomic_load(&proxy.cuts));
    assert_string_equal(text, "");
    assert_int_equal(broken, 0);
    assert_true(stats.verdicts[IDEM_V_STARTED] > load.ops / 10);
    if (broken_lines)
        assert_true(atomic_load(&proxy.cuts) > 5);
    else
        assert_int_equal(stats.errors[IDEM_ERR_LOST], 0);
    idem_close(load.engine);
    idem_close(load.second);
    proxy_stop(&proxy);
    served_stop(&served);
    free(load.events);
}

static void
the_history_through_a_server_can_be_true(void **state)
{
    (void)state;
    check_history("memory:", false);
    check_history("journal:", false);
}

static void
the_history_over_breaking_lines_can_be_true(void **state)
{
    (void)state;
    check_history("memory:", true);
    check_history("journal:", true);
}

/* ---- leases ----------------------------------------------------------------
 */

struct work {
    struct proxy *proxy;
    int times;
};

/* Longer than the lease, over a connection that breaks now and then. */
static enum idem_state
work(void *arg, uint64_t fence, struct idem_bytes *result)
{
    struct work *w = arg;

    assert_true(fence > 0);
    w->times++;
    usleep(2500000);
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

static void
a_run_keeps_its_lease_over_a_breaking_line(void **state)
{
    struct served served;
    struct proxy proxy;
    struct work w = {.proxy = &proxy};
    struct idem_engine *engine;
    struct idem_op op = served_begin("long");
    struct idem_answer answer = {0};
    struct idem_error err = {0};

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    engine = served_open(proxy.url);
    atomic_store(&proxy.cut_per_mille, 150);
    op.scope = idem_text("shop");
    op.mode = IDEM_LOOSE; /* a lease that ends would be taken over */
    op.lease_ms = 1500;
    for (int i = 0; i < 20 && w.times == 0; i++) {
        idem_answer_clear(&answer);
        (void)idem_run(engine, &op, work, &w, &answer, &err);
    }
    assert_int_equal(w.times, 1);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    assert_int_equal(answer.record->state, IDEM_STATE_SUCCEEDED);
    idem_answer_clear(&answer);
    atomic_store(&proxy.cut_per_mille, 0);
    assert_int_equal(idem_run(engine, &op, work, &w, &answer, &err), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY);
    assert_int_equal(w.times, 1);
    idem_answer_clear(&answer);
    idem_close(engine);
    proxy_stop(&proxy);
    served_stop(&served);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_answer_tells_what_the_first_one_did),
        cmocka_unit_test(without_a_server_it_is_unavailable_and_comes_back),
        cmocka_unit_test(what_may_have_been_done_is_lost),
        cmocka_unit_test(what_is_told_as_not_stored_is_never_sent_later),
        cmocka_unit_test(an_answer_that_a_late_first_one_can_belie_is_lost),
        cmocka_unit_test(
            a_cancelled_wait_ends_soon_although_the_connection_breaks),
        cmocka_unit_test(a_verb_that_is_sent_again_finds_itself),
        cmocka_unit_test(the_history_through_a_server_can_be_true),
        cmocka_unit_test(the_history_over_breaking_lines_can_be_true),
        cmocka_unit_test(a_run_keeps_its_lease_over_a_breaking_line),
    };
    int code;

    if (served_main(argc, argv, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
