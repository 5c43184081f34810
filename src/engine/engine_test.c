#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct idem_engine *
open_memory(void)
{
    struct idem_engine *engine;

    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    return engine;
}

static void *
duplicate(void *arg)
{
    struct idem_answer answer = {0};
    struct idem_error err;

    if (idem_do(arg,
                &(struct idem_op){.verb = IDEM_BEGIN,
                                  .scope = idem_text("s"),
                                  .id = idem_text("i"),
                                  .wait_ms = 10000},
                &answer, &err) != IDEM_OK)
        return "failed";
    if (answer.verdict == IDEM_V_STARTED) {
        uint64_t fence = answer.record.fence;
        idem_answer_clear(&answer);
        if (idem_do(arg,
                    &(struct idem_op){.verb = IDEM_FINISH,
                                      .scope = idem_text("s"),
                                      .id = idem_text("i"),
                                      .fence = fence,
                                      .outcome = IDEM_STATE_SUCCEEDED,
                                      .result = idem_text("R")},
                    &answer, &err) != IDEM_OK)
            return "failed";
        idem_answer_clear(&answer);
        return "started";
    }
    const char *w = answer.verdict == IDEM_V_REPLAY &&
                            answer.record.result.len == 1
                        ? "replay"
                        : "other";
    idem_answer_clear(&answer);
    return (void *)w;
}

static void
duplicates_wait_and_get_the_first_answer(void **state)
{
    struct idem_engine *engine = open_memory();
    pthread_t threads[100];
    int started = 0, replay = 0;
    void *word;

    (void)state;
    for (int i = 0; i < 100; i++)
        pthread_create(&threads[i], NULL, duplicate, engine);
    for (int i = 0; i < 100; i++) {
        pthread_join(threads[i], &word);
        started += strcmp(word, "started") == 0;
        replay += strcmp(word, "replay") == 0;
    }
    assert_int_equal(started, 1);
    assert_int_equal(replay, 99);
    idem_close(engine);
}

static enum idem_state
work(void *arg, uint64_t fence, struct idem_bytes *result)
{
    (void)fence;
    ++*(int *)arg;
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

static void
a_run_happens_once(void **state)
{
    struct idem_engine *engine = open_memory();
    struct idem_answer answer;
    int runs = 0;
    struct idem_op op = {.scope = idem_text("s"), .id = idem_text("run")};

    (void)state;
    assert_int_equal(idem_run(engine, &op, work, &runs, &answer, NULL), 0);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    assert_memory_equal(answer.record.result.data, "done", 4);
    idem_answer_clear(&answer);
    assert_int_equal(idem_run(engine, &op, work, &runs, &answer, NULL), 0);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY);
    assert_memory_equal(answer.record.result.data, "done", 4);
    idem_answer_clear(&answer);
    assert_int_equal(runs, 1);
    idem_close(engine);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(duplicates_wait_and_get_the_first_answer),
        cmocka_unit_test(a_run_happens_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
