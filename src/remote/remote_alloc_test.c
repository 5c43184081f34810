/*
 * remote_alloc_test.c - lets each allocation of an engine behind idem:// fail
 * once, in turn. The server is another process. A client that sends again what
 * failed must get the right answers, and the work is started once.
 */
#include "../../tests/support/failing_alloc.h"
#include "../../tests/support/served.h"
#include "remote.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TRIES 5

static atomic_size_t allocations, fail_at;
static atomic_bool counting;

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    return atomic_load(&counting) &&
           atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&fail_at);
}

static void
may_lack_memory(enum idem_status status)
{
    if (status != IDEM_OK && status != IDEM_ERR_MEMORY &&
        status != IDEM_ERR_LOST && status != IDEM_ERR_UNAVAILABLE)
        fail_msg("allocation %zu: %s", atomic_load(&fail_at),
                 idem_status_name(status));
}

/* As a client does: again, while it is an error. */
static enum idem_verdict
sure(struct idem_engine *engine, const struct idem_op *op, uint64_t *fence,
     char result[16])
{
    enum idem_verdict verdict = IDEM_V_UNKNOWN;
    enum idem_status status = IDEM_ERR_LOST;

    for (int i = 0; i < TRIES && status != IDEM_OK; i++) {
        struct idem_answer answer;

        status = served_do(engine, *op, &answer);
        may_lack_memory(status);
        if (status == IDEM_OK) {
            verdict = answer.verdict;
            *fence = answer.record->fence;
            snprintf(result, 16, "%.*s", (int)answer.record->result.len,
                     (const char *)answer.record->result.data);
        }
        idem_answer_clear(&answer);
    }
    assert_int_equal(status, IDEM_OK);
    return verdict;
}

static bool
count_record(void *arg, const struct idem_record *record)
{
    (void)record;
    ++*(size_t *)arg;
    return true;
}

static void
scan(struct idem_engine *engine, const char *id)
{
    struct idem_filter filter = {.id = idem_text(id)};
    struct idem_cursor cursor = {"0"};
    enum idem_status status;
    size_t seen = 0;

    for (int i = 0; i < TRIES && seen == 0; i++) {
        do {
            status = idem_scan(engine, &filter, &cursor, 1000, count_record,
                               &seen, NULL);
            may_lack_memory(status);
        } while (status == IDEM_OK && strcmp(cursor.text, "0") != 0);
    }
    assert_int_equal(seen, 1);
}

static void
live(struct idem_engine *engine, size_t n)
{
    struct idem_op op;
    const uint8_t nonce[IDEM_NONCE_LEN] = {1};
    uint64_t fence = 0, again = 0;
    char id[32], result[16];

    snprintf(id, sizeof(id), "request-%zu", n);
    op = served_begin(id);
    op.nonce = nonce; /* sent again, it gets its own claim */
    assert_int_equal(sure(engine, &op, &fence, result), IDEM_V_STARTED);
    scan(engine, id);
    op = served_begin(id);
    op.wait_ms = 1;
    assert_int_equal(sure(engine, &op, &again, result), IDEM_V_BUSY);
    op = served_begin(id);
    op.verb = IDEM_FINISH;
    op.fence = fence;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = idem_text("done");
    assert_int_equal(sure(engine, &op, &again, result), IDEM_V_OK);
    op = served_begin(id);
    assert_int_equal(sure(engine, &op, &again, result), IDEM_V_REPLAY);
    assert_string_equal(result, "done");
    assert_int_equal(again, fence);
}

static size_t
run(const char *url, size_t n)
{
    struct idem_engine *engine = NULL;

    atomic_store(&allocations, 0);
    atomic_store(&fail_at, n);
    atomic_store(&counting, true);
    for (int i = 0; i < TRIES && !engine; i++)
        may_lack_memory(idem_open(url, NULL, &engine, NULL));
    assert_non_null(engine);
    live(engine, n);
    idem_close(engine);
    atomic_store(&counting, false);
    return atomic_load(&allocations);
}

static void
a_client_that_lacks_memory_once_gets_the_right_answers(void **state)
{
    struct served served;
    size_t all;
    char url[400];

    (void)state;
    served_start(&served, "memory:", NULL);
    snprintf(url, sizeof(url), "%s?timeout_ms=1500", served.url);
    all = run(url, 0);
    for (size_t n = 1; n <= all; n++)
        (void)run(url, n);
    served_stop(&served);
    print_message("%zu allocations\n", all);
    assert_true(all > 20);
}

/* An address whose secret could not be copied would log in as nobody. */
static void
an_address_has_its_name_and_secret_or_is_refused(void **state)
{
    static const char *const urls[] = {"idem://ann:s3cret@localhost",
                                       "idem://:s3cret@localhost",
                                       "idem+unix:/run/idem"};

    (void)state;
    setenv("IDEM_AUTH", "ann:s3cret", 1); /* for the last one */
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct idem__remote_address address;
        enum idem_status status = IDEM_ERR_MEMORY;

        for (size_t n = 1; status != IDEM_OK; n++) {
            atomic_store(&allocations, 0);
            atomic_store(&fail_at, n);
            atomic_store(&counting, true);
            status = idem__remote_address_open(urls[i], &address, NULL);
            atomic_store(&counting, false);
            assert_true(n < 20);
            if (status != IDEM_OK) {
                assert_int_equal(status, IDEM_ERR_MEMORY);
                continue;
            }
            assert_string_equal(address.secret, "s3cret");
            assert_true((address.name != NULL) == (i != 1));
            idem__remote_address_clear(&address);
        }
    }
    unsetenv("IDEM_AUTH");
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_client_that_lacks_memory_once_gets_the_right_answers),
        cmocka_unit_test(an_address_has_its_name_and_secret_or_is_refused),
    };
    int code;

    if (served_main(argc, argv, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
