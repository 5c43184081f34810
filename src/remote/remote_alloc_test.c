/*
 * remote_alloc_test.c - lets each allocation of a client fail once, in turn,
 * while it talks to a server.
 *
 * Each call must return the right answer, or an error that is true: after an
 * error that says "nothing was stored", nothing is; the same operation sent
 * again gets its answer. No call may wait for its timeout, nothing may leak,
 * and the engine must work afterwards.
 */
#include "../../tests/support/failing_alloc.h"
#include "../../tests/support/served.h"
#include "remote.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TIMEOUT_MS 30000
#define PATIENCE_MS 15000 /* a busy machine is slow, and still not so slow */
#define LONG_WAIT_MS 120000
#define RESULT_LEN 150000 /* more than buffers have at first */
#define RECORDS 20        /* more than the first page of a listing takes */

static atomic_long countdown; /* 0: no failure; 1: the next allocation fails */
static atomic_bool failed;

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    if (atomic_load(&countdown) <= 0 || atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    atomic_store(&failed, true);
    return true;
}

static struct served served;
static struct idem_engine *witness; /* another client; it always has memory */
static char big[RESULT_LEN];

/* What the witness sees of this record. */
static enum idem_state
state_of(const char *id, enum idem_type type)
{
    struct idem_op op = {.verb = IDEM_GET, .type = type, .id = idem_text(id)};
    struct idem_answer answer;
    enum idem_state state;
    long later = atomic_exchange(&countdown, 0);

    assert_int_equal(served_do(witness, op, &answer), IDEM_OK);
    state = (enum idem_state)answer.record->state;
    idem_answer_clear(&answer);
    atomic_store(&countdown, later);
    return state;
}

/* The operation, again until it is answered. An error that says "nothing was
 * stored" leaves the record as it was. */
static uint64_t
must(struct idem_engine *engine, struct idem_op op, enum idem_verdict wanted)
{
    char id[64];
    enum idem_state before;
    struct idem_answer answer;
    enum idem_status status;
    int64_t start = served_now_ms();
    uint64_t fence;

    snprintf(id, sizeof(id), "%.*s", (int)op.id.len, (const char *)op.id.data);
    before = state_of(id, op.type);
    status = served_do(engine, op, &answer);
    assert_true(served_now_ms() - start < PATIENCE_MS);
    if (status != IDEM_OK) {
        assert_true(failed);
        if (status == IDEM_ERR_MEMORY || status == IDEM_ERR_UNAVAILABLE)
            assert_int_equal(state_of(id, op.type), before);
        else
            assert_int_equal(status, IDEM_ERR_LOST);
        idem_answer_clear(&answer);
        assert_int_equal(served_do(engine, op, &answer), IDEM_OK);
        if (status == IDEM_ERR_LOST && op.verb == IDEM_UNLOCK &&
            answer.verdict == IDEM_V_STALE) /* the first one did it */
            answer.verdict = IDEM_V_OK;
    }
    assert_string_equal(idem_verdict_name(answer.verdict),
                        idem_verdict_name(wanted));
    fence = answer.record->fence;
    if (answer.verdict == IDEM_V_REPLAY || answer.verdict == IDEM_V_RECORD) {
        assert_int_equal(answer.record->result.len, RESULT_LEN);
        assert_memory_equal(answer.record->result.data, big, RESULT_LEN);
    }
    idem_answer_clear(&answer);
    return fence;
}

/* ---- waiting ------------------------------------------------------------- */

struct waiter {
    atomic_bool done;
    enum idem_status status;
    enum idem_verdict verdict;
    uint64_t ticket;
};

static void
waited(void *arg, enum idem_status status, const struct idem_answer *answer,
       const struct idem_error *err)
{
    struct waiter *waiter = arg;

    (void)err;
    waiter->status = status;
    if (status == IDEM_OK)
        waiter->verdict = answer->verdict;
    atomic_store(&waiter->done, true);
}

static void
wait_for_it(struct idem_engine *engine, const char *id, struct waiter *waiter)
{
    struct idem_op op = served_begin(id);
    enum idem_status status;

    op.scope = idem_text("shop");
    op.wait_ms = LONG_WAIT_MS;
    memset(waiter, 0, sizeof(*waiter));
    status = idem_submit(engine, &op, waited, waiter, &waiter->ticket, NULL);
    if (status != IDEM_OK) {
        assert_true(failed && status == IDEM_ERR_MEMORY);
        waited(waiter, status, NULL, NULL);
    }
}

/* The wait is over soon: as it should be, or because memory was short. */
static void
must_end(struct waiter *waiter, enum idem_status wanted)
{
    int64_t end = served_now_ms() + PATIENCE_MS;

    while (!atomic_load(&waiter->done) && served_now_ms() < end)
        usleep(1000);
    assert_true(waiter->done);
    if (waiter->status == wanted)
        return;
    assert_true(failed);
    assert_true(waiter->status == IDEM_ERR_MEMORY ||
                waiter->status == IDEM_ERR_UNAVAILABLE ||
                waiter->status == IDEM_ERR_LOST);
}

/* ---- what a client does ----------------------------------------------------
 */

static void
live_with_a_request(struct idem_engine *engine, const char *id)
{
    static const uint8_t nonce[IDEM_NONCE_LEN] = {"a nonce"};
    struct idem_op begin = served_begin(id), op = begin;
    struct waiter cancelled, woken;
    uint64_t fence;

    begin.type = IDEM_TYPE_REQUEST;
    begin.nonce = nonce;
    begin.lease_ms = 600000;
    fence = must(engine, begin, IDEM_V_STARTED);
    op.type = IDEM_TYPE_REQUEST;
    assert_int_equal(must(engine, op, IDEM_V_BUSY), fence);
    wait_for_it(engine, id, &cancelled);
    wait_for_it(engine, id, &woken);
    must(engine, op, IDEM_V_BUSY); /* the two are at the server now */
    if (!cancelled.done)
        idem_cancel(engine, cancelled.ticket);
    must_end(&cancelled, IDEM_ERR_CLOSED);
    op.verb = IDEM_FINISH;
    op.fence = fence;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = (struct idem_bytes){big, RESULT_LEN};
    must(engine, op, IDEM_V_OK);
    must_end(&woken, IDEM_OK);
    if (woken.status == IDEM_OK)
        assert_int_equal(woken.verdict, IDEM_V_REPLAY);
    begin.nonce = NULL;
    must(engine, begin, IDEM_V_REPLAY);
    op = (struct idem_op){
        .verb = IDEM_GET, .type = IDEM_TYPE_REQUEST, .id = idem_text(id)};
    must(engine, op, IDEM_V_RECORD);
}

static void
live_with_a_lock(struct idem_engine *engine, const char *id)
{
    struct idem_op op = {.verb = IDEM_LOCK,
                         .type = IDEM_TYPE_LOCK,
                         .id = idem_text(id),
                         .subject = idem_text("me"),
                         .lease_ms = 600000};
    uint64_t fence = must(engine, op, IDEM_V_STARTED);

    op.subject = idem_text("you");
    must(engine, op, IDEM_V_BUSY);
    op = (struct idem_op){.verb = IDEM_RENEW,
                          .type = IDEM_TYPE_LOCK,
                          .id = idem_text(id),
                          .fence = fence,
                          .lease_ms = 700000};
    must(engine, op, IDEM_V_OK);
    op.verb = IDEM_UNLOCK;
    must(engine, op, IDEM_V_OK);
}

static enum idem_state
work(void *arg, uint64_t fence, struct idem_bytes *result)
{
    (void)fence;
    ++*(int *)arg;
    *result = (struct idem_bytes){big, RESULT_LEN};
    return IDEM_STATE_SUCCEEDED;
}

static void
live_with_a_run(struct idem_engine *engine, const char *id)
{
    struct idem_op op = served_begin(id);
    struct idem_answer answer = {0};
    int64_t start = served_now_ms();
    enum idem_status status;
    int runs = 0;

    op.scope = idem_text("shop");
    op.lease_ms = 600000;
    status = idem_run(engine, &op, work, &runs, &answer, NULL);
    assert_true(served_now_ms() - start < PATIENCE_MS);
    assert_true(runs <= 1);
    if (status == IDEM_OK) {
        assert_int_equal(answer.verdict, IDEM_V_STARTED);
        assert_int_equal(runs, 1);
        assert_int_equal(state_of(id, 0), IDEM_STATE_SUCCEEDED);
    } else {
        assert_true(failed);
        if (status != IDEM_ERR_LOST)
            assert_int_equal(runs, 0);
    }
    idem_answer_clear(&answer);
}

static bool
count(void *arg, const struct idem_record *record)
{
    assert_true(record->scope.len == 6);
    ++*(int *)arg;
    return true;
}

static void
live_with_a_listing(struct idem_engine *engine)
{
    struct idem_filter filter = {.scope = idem_text("listed")};
    struct idem_cursor cursor = {"0"};
    int64_t start = served_now_ms();
    int found = 0;

    do {
        int before = found;
        enum idem_status status =
            idem_scan(engine, &filter, &cursor, 1000, count, &found, NULL);

        if (status != IDEM_OK) {
            assert_true(failed && (status == IDEM_ERR_MEMORY ||
                                   status == IDEM_ERR_UNAVAILABLE));
            found = before;
            continue;
        }
    } while (strcmp(cursor.text, "0") != 0 || found == 0);
    assert_int_equal(found, RECORDS);
    assert_true(served_now_ms() - start < PATIENCE_MS);
}

static void
live(long n)
{
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    char id[64], url[400];
    enum idem_status status;

    snprintf(url, sizeof(url), "%s?timeout_ms=%d", served.url, TIMEOUT_MS);
    atomic_store(&failed, false);
    atomic_store(&countdown, n);
    status = idem_open(url, NULL, &engine, &err);
    if (status != IDEM_OK) {
        assert_true(failed);
        if (status != IDEM_ERR_MEMORY)
            fail_msg("%s: %s", idem_status_name(status), err.text);
        return;
    }
    snprintf(id, sizeof(id), "request-%ld", n);
    live_with_a_request(engine, id);
    snprintf(id, sizeof(id), "lock-%ld", n);
    live_with_a_lock(engine, id);
    snprintf(id, sizeof(id), "run-%ld", n);
    live_with_a_run(engine, id);
    live_with_a_listing(engine);
    atomic_store(&countdown, 0);
    snprintf(id, sizeof(id), "after-%ld", n);
    must(engine, served_begin(id), IDEM_V_STARTED);
    idem_close(engine);
}

static size_t
open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    size_t files = 0;

    while (readdir(folder))
        files++;
    closedir(folder);
    return files;
}

static void
every_allocation_of_a_client_may_fail(void **state)
{
    size_t files;
    long n = 0;

    (void)state;
    memset(big, 'x', sizeof(big));
    served_start(&served, "memory:", NULL);
    witness = served_open(served.url);
    for (int i = 0; i < RECORDS; i++) {
        struct idem_answer answer;
        struct idem_op op;
        char id[32];

        snprintf(id, sizeof(id), "listed-%d", i);
        op = served_begin(id);
        op.scope = idem_text("listed");
        assert_int_equal(served_do(witness, op, &answer), IDEM_OK);
        idem_answer_clear(&answer);
    }
    files = open_files();
    do
        live(++n);
    while (failed);
    assert_int_equal(open_files(), files);
    print_message("%ld allocations\n", n - 1);
    assert_true(n > 30);
    idem_close(witness);
    served_stop(&served);
}

/* ---- a cancel --------------------------------------------------------------
 */

enum { WAITS = 12 };

struct moment {
    struct idem_engine *engine;
    struct waiter waits[WAITS]; /* to be cancelled */
    struct waiter other;        /* an operation just before the cancels */
    char id[256];               /* of that operation */
    long n;                     /* then this allocation fails */
};

/* On the engine's thread, so that all of them are in its next turn. */
static void
cancel_in_one_turn(void *arg, enum idem_status status,
                   const struct idem_answer *answer,
                   const struct idem_error *err)
{
    struct moment *moment = arg;
    struct idem_op op = {.verb = IDEM_GET,
                         .type = IDEM_TYPE_REQUEST,
                         .scope = idem_text("shop"),
                         .id = idem_text(moment->id)};

    (void)answer;
    (void)err;
    assert_int_equal(status, IDEM_OK);
    assert_int_equal(
        idem_submit(moment->engine, &op, waited, &moment->other, NULL, NULL),
        IDEM_OK);
    for (int i = 0; i < WAITS; i++)
        idem_cancel(moment->engine, moment->waits[i].ticket);
    atomic_store(&failed, false);
    atomic_store(&countdown, moment->n);
}

/* The operation before the cancels has an id of `len` bytes, so for some
 * lengths it is a cancel that needs memory: the operation asks for more room
 * than it uses, and several cancels fill that. Returns whether one failed. */
static bool
cancel_without_memory(struct idem_engine *engine, size_t len, long n)
{
    static int number;
    struct moment moment = {.engine = engine, .n = n};
    struct idem_op op;
    char id[32];

    snprintf(id, sizeof(id), "wait-%d", number);
    snprintf(moment.id, sizeof(moment.id), "%0*d", (int)len, number++);
    atomic_store(&failed, false);
    op = served_begin(id);
    op.type = IDEM_TYPE_REQUEST;
    must(engine, op, IDEM_V_STARTED);
    for (int i = 0; i < WAITS; i++) {
        wait_for_it(engine, id, &moment.waits[i]);
        must(engine, op, IDEM_V_BUSY); /* each is sent alone: little room */
    }
    op.verb = IDEM_GET;
    op.scope = idem_text("shop");
    assert_int_equal(
        idem_submit(engine, &op, cancel_in_one_turn, &moment, NULL, NULL),
        IDEM_OK);
    for (int i = 0; i < WAITS; i++)
        must_end(&moment.waits[i], IDEM_ERR_CLOSED);
    must_end(&moment.other, IDEM_OK);
    atomic_store(&countdown, 0);
    return failed && moment.other.status == IDEM_OK;
}

static void
a_cancelled_wait_ends_soon_although_memory_is_short(void **state)
{
    int cancels = 0;

    (void)state;
    served_start(&served, "memory:", NULL);
    witness = served_open(served.url);
    for (size_t len = 10; len <= 250; len += 10) {
        struct idem_engine *engine = served_open(served.url);
        long n = 0;

        do
            cancels += cancel_without_memory(engine, len, ++n);
        while (failed);
        idem_close(engine);
    }
    print_message("%d cancels had no memory at first\n", cancels);
    assert_true(cancels > 0);
    idem_close(witness);
    served_stop(&served);
}

/* ---- the address -----------------------------------------------------------
 */

/* Without memory there is no address: never one without its secret. */
static void
read_address(const char *url, const char *name, const char *secret)
{
    enum idem_status status;
    long n = 0;

    do {
        struct idem__remote_address address;
        struct idem_error err = {0};

        atomic_store(&failed, false);
        atomic_store(&countdown, ++n);
        status = idem__remote_address_open(url, &address, &err);
        atomic_store(&countdown, 0);
        if (status != IDEM_OK) {
            if (status != IDEM_ERR_MEMORY)
                fail_msg("%s: %s", url, err.text);
            continue;
        }
        assert_string_equal(address.name ? address.name : "", name);
        assert_string_equal(address.secret, secret);
        assert_true(address.host || address.path);
        idem__remote_address_clear(&address);
    } while (failed);
    assert_int_equal(status, IDEM_OK);
    assert_true(n > 2);
}

static void
an_address_has_its_secret_or_there_is_no_memory(void **state)
{
    static const char line[] = "shop s3cret\n";
    char folder[200], file[250], url[400];
    int fd;

    (void)state;
    unsetenv("IDEM_AUTH");
    read_address("idem://shop:s3cret@localhost", "shop", "s3cret");
    make_folder(folder, sizeof(folder));
    snprintf(file, sizeof(file), "%s/auth", folder);
    fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, line, strlen(line)), (ssize_t)strlen(line));
    close(fd);
    snprintf(url, sizeof(url), "idem+unix:/s?auth-file=%s", file);
    read_address(url, "shop", "s3cret");
    remove_folder(folder);
    setenv("IDEM_AUTH", "shop:s3cret", 1);
    read_address("idem+unix:/s", "shop", "s3cret");
    setenv("IDEM_AUTH", "s3cret", 1);
    read_address("idem+unix:/s", "", "s3cret");
    unsetenv("IDEM_AUTH");
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_a_client_may_fail),
        cmocka_unit_test(a_cancelled_wait_ends_soon_although_memory_is_short),
        cmocka_unit_test(an_address_has_its_secret_or_there_is_no_memory),
    };
    int code;

    if (served_main(argc, argv, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
