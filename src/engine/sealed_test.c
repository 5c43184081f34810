/*
 * sealed_test.c - tests an engine with keys: which bytes its store gets, and
 * what happens to records that do not open.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define KEY_A                                                                  \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
#define KEY_B                                                                  \
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n"

static char folder[256];

static const char *
key_file(const char *text)
{
    static char path[300];
    int fd;

    snprintf(path, sizeof(path), "%s/key", folder);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

/* Open a rig whose engine has these keys, or none. */
static void
open_rig(struct rig *rig, const char *keys)
{
    struct idem_options options = {.seal_key = keys ? key_file(keys) : NULL};

    rig_open(rig, FAULTY_REMOTE, &options);
}

static int
sealed_setup(void **state)
{
    struct rig *rig = malloc(sizeof(*rig));

    if (!rig)
        return -1;
    open_rig(rig, *state);
    *state = rig;
    return 0;
}

#define sealed_test(test, keys)                                                \
    rig_test_with(test, sealed_setup, (void *)(uintptr_t)(keys))

/* Open another engine on the same records. */
static void
reopen(struct rig *rig, const char *keys)
{
    struct idem_options options = {.seal_key = keys ? key_file(keys) : NULL};

    idem_close(rig->engine);
    rig->engine = rig_engine(rig, FAULTY_REMOTE, &options, &rig->store);
}

static struct idem_record
stored(struct rig *rig, enum idem_type type, const char *scope, const char *id,
       struct idem_arena *arena)
{
    struct idem_load load = {.with_result = true};

    idem__key(type, idem_text(scope), idem_text(id), load.key);
    assert_int_equal(
        rig->memory->type->load(rig->memory, &load, 1, arena, NULL), IDEM_OK);
    return load.record;
}

static struct reply
do_op(struct rig *rig, struct idem_op op)
{
    return ask(rig->engine, &op);
}

static struct reply
finish(struct rig *rig, const char *id, const char *result)
{
    struct idem_op op = op_begin(id);
    struct reply begun;

    op.subject = idem_text("for ann");
    begun = ask(rig->engine, &op);
    assert_verdict(begun, IDEM_V_STARTED);
    return do_op(rig, op_finish(id, begun.fence, result));
}

static void
assert_hidden(struct idem_bytes bytes, const char *text)
{
    assert_true(bytes.len > strlen(text));
    assert_null(memmem(bytes.data, bytes.len, text, strlen(text)));
}

static void
a_store_never_sees_results_and_subjects(void **state)
{
    struct rig *rig = *state;
    struct idem_arena arena = {NULL, 0};
    struct idem_record record;
    struct reply reply;

    assert_verdict(finish(rig, "a", "the result"), IDEM_V_OK);
    record = stored(rig, IDEM_TYPE_REQUEST, "test", "a", &arena);
    assert_int_equal(record.flags & IDEM__SEALED, IDEM__SEALED);
    assert_hidden(record.result, "the result");
    assert_hidden(record.subject, "for ann");
    reply = do_op(rig, op_begin("a"));
    assert_verdict(reply, IDEM_V_REPLAY);
    assert_string_equal(reply.result, "the result");
    idem_arena_clear(&arena);
}

static void
a_lock_keeps_its_owner_and_note_sealed(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_lock("door", "ann", 0);
    struct idem_arena arena = {NULL, 0};
    struct idem_record record;
    struct reply held;

    op.result = idem_text("the note");
    held = ask(rig->engine, &op);
    assert_verdict(held, IDEM_V_STARTED);
    record =
        stored(rig, op.type ? op.type : IDEM_TYPE_LOCK, "test", "door", &arena);
    assert_hidden(record.subject, "ann");
    assert_hidden(record.result, "the note");
    reopen(rig, KEY_A);
    assert_verdict(do_op(rig, op_lock("door", "eve", 0)), IDEM_V_BUSY);
    assert_verdict(do_op(rig, op_lock("door", "ann", 0)), IDEM_V_STARTED);
    assert_verdict(do_op(rig, op_unlock("door", held.fence)), IDEM_V_OK);
    held = do_op(rig, op_lock("door", "eve", 0));
    assert_string_equal(held.result, "the note");
    idem_arena_clear(&arena);
}

static void
records_from_before_the_key_stay_readable(void **state)
{
    struct rig *rig = *state;
    struct reply reply;

    assert_verdict(finish(rig, "a", "plain"), IDEM_V_OK);
    reopen(rig, KEY_A);
    reply = do_op(rig, op_begin("a"));
    assert_verdict(reply, IDEM_V_REPLAY);
    assert_string_equal(reply.result, "plain");
}

static void
a_key_is_replaced_in_steps(void **state)
{
    struct rig *rig = *state;
    struct reply reply;

    assert_verdict(finish(rig, "a", "old"), IDEM_V_OK);
    reopen(rig, KEY_B KEY_A);
    assert_verdict(finish(rig, "b", "new"), IDEM_V_OK);
    reply = do_op(rig, op_begin("a"));
    assert_string_equal(reply.result, "old");
    reopen(rig, KEY_B);
    reply = do_op(rig, op_begin("b"));
    assert_string_equal(reply.result, "new");
    assert_status(do_op(rig, op_begin("a")), IDEM_ERR_UNAVAILABLE);
}

/* With a wrong key or none, the operation fails with the reason, the record is
 * not changed, and other records are not affected. */
static void
what_does_not_open_is_an_error_and_stays_as_it_is(void **state)
{
    struct rig *rig = *state;
    const char *keys[] = {KEY_B, NULL};
    struct idem_arena arena = {NULL, 0};
    struct idem_record before, after;
    struct idem_op ops[8];
    struct reply reply;

    assert_verdict(finish(rig, "a", "result"), IDEM_V_OK);
    before = stored(rig, IDEM_TYPE_REQUEST, "test", "a", &arena);
    ops[0] = op_begin("a");
    ops[1] = op_get("a");
    ops[2] = op_finish("a", before.fence, "result");
    ops[3] = op_fail("a", before.fence, "another");
    ops[4] = op_release("a", before.fence);
    ops[5] = op_renew("a", before.fence, 1000);
    ops[6] = op_wait("a", 10000);
    ops[7] = op_begin("a");
    ops[7].verb = IDEM_SETTLE;
    for (size_t k = 0; k < 2; k++) {
        reopen(rig, keys[k]);
        rig->logged = 0;
        for (size_t i = 0; i < 8; i++) {
            reply = ask(rig->engine, &ops[i]);
            assert_status(reply, IDEM_ERR_UNAVAILABLE);
            assert_non_null(strstr(reply.text, "sealed with key "));
        }
        assert_int_equal(rig->logged, 1); /* and not with every request */
        assert_verdict(do_op(rig, op_begin(keys[k] ? "x" : "y")),
                       IDEM_V_STARTED); /* the circuit breaker was not opened */
    }
    after = stored(rig, IDEM_TYPE_REQUEST, "test", "a", &arena);
    assert_int_equal(after.rev, before.rev);
    reopen(rig, KEY_A);
    reply = do_op(rig, op_begin("a"));
    assert_verdict(reply, IDEM_V_REPLAY);
    assert_string_equal(reply.result, "result");
    idem_arena_clear(&arena);
}

/* An executing record with a sealed subject: no takeover, no second start. */
static void
a_claim_that_does_not_open_is_not_started_again(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply begun;

    op.mode = IDEM_LOOSE;
    op.subject = idem_text("ann");
    op.lease_ms = 1000;
    begun = ask(rig->engine, &op);
    assert_verdict(begun, IDEM_V_STARTED);
    reopen(rig, KEY_B);
    for (int i = 0; i < 5; i++) {
        test_clocks_pass(&rig->clocks, 1000);
        assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    }
    reopen(rig, KEY_A);
    assert_verdict(do_op(rig, op_finish("a", begun.fence, "done")), IDEM_V_OK);
}

/* Waiting operations get the error too, when another engine ends the record. */
static void
a_duplicate_that_waits_is_told(void **state)
{
    struct rig *rig = *state;
    struct idem_options options = {.seal_key = NULL};
    struct idem_op op = op_begin("a"), wait = op_wait("a", 60000), end;
    struct idem_engine *blind;
    struct reply begun, waits;

    begun = ask(rig->engine, &op);
    blind = rig_engine(rig, FAULTY_REMOTE, &options, NULL);
    put(blind, &wait, &waits);
    turn(blind);
    assert_false(waits.done);
    end = op_finish("a", begun.fence, "secret");
    assert_verdict(ask(rig->engine, &end), IDEM_V_OK);
    for (int i = 0; i < 100 && !waits.done; i++) {
        test_clocks_pass(&rig->clocks, 50);
        turn(blind);
    }
    assert_status(waits, IDEM_ERR_UNAVAILABLE);
    idem_close(blind);
}

/* It would wait for nothing: it can never see the result. */
static void
a_duplicate_of_a_claim_that_does_not_open_does_not_wait(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), wait = op_wait("a", 60000);
    struct reply waits;

    op.subject = idem_text("ann");
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    reopen(rig, KEY_B);
    put(rig->engine, &wait, &waits);
    turn(rig->engine);
    assert_status(waits, IDEM_ERR_UNAVAILABLE);
}

static void
an_operator_can_forget_what_does_not_open(void **state)
{
    struct idem_op forget = op_get("a"), note = op_lock("door", "ann", 0);
    struct idem_op held = op_lock("gate", "ann", 0), forget_lock;
    struct reply reply;
    struct rig rig;

    (void)state;
    forget.verb = IDEM_FORGET;
    open_rig(&rig, KEY_A);
    assert_verdict(finish(&rig, "a", "result"), IDEM_V_OK);
    note.result = idem_text("a note");
    assert_verdict(ask(rig.engine, &note), IDEM_V_STARTED);
    assert_verdict(ask(rig.engine, &held), IDEM_V_STARTED);
    reopen(&rig, KEY_B);
    assert_verdict(ask(rig.engine, &forget), IDEM_V_OK);
    reply = do_op(&rig, op_begin("a"));
    assert_verdict(reply, IDEM_V_STARTED);
    assert_verdict(do_op(&rig, op_finish("a", reply.fence, "again")),
                   IDEM_V_OK);
    /* A lock whose holder is gone, of which only the owner is sealed. */
    forget_lock = held;
    forget_lock.verb = IDEM_FORGET;
    forget_lock.type = IDEM_TYPE_LOCK;
    forget_lock.subject = (struct idem_bytes){NULL, 0};
    assert_verdict(ask(rig.engine, &forget_lock), IDEM_V_OK);
    assert_verdict(do_op(&rig, op_lock("gate", "eve", 0)), IDEM_V_STARTED);
    /* This would lose the lock's note. */
    forget_lock = note;
    forget_lock.verb = IDEM_FORGET;
    forget_lock.type = IDEM_TYPE_LOCK;
    forget_lock.result = forget_lock.subject = (struct idem_bytes){NULL, 0};
    assert_status(ask(rig.engine, &forget_lock), IDEM_ERR_UNAVAILABLE);
    rig_close(&rig);
}

/* An engine without a key, which writes before the first swap of another. */
struct writer {
    struct idem_engine *engine;
    bool wrote;
};

static void
write_plainly(void *arg, struct faulty_store *store)
{
    struct writer *writer = arg;
    struct idem_op op = op_get("a");

    (void)store;
    if (writer->wrote)
        return;
    writer->wrote = true;
    op.verb = IDEM_FORGET;
    assert_verdict(ask(writer->engine, &op), IDEM_V_OK);
    op = op_begin("a");
    assert_verdict(ask(writer->engine, &op), IDEM_V_STARTED);
}

static void
a_record_that_opens_meanwhile_is_answered(void **state)
{
    struct rig *rig = *state;
    struct idem_options options = {.seal_key = NULL};
    struct idem_op get = op_get("a"), forget = op_get("a");
    struct writer writer = {.wrote = false};
    struct reply got, forgotten;

    forget.verb = IDEM_FORGET;
    assert_verdict(finish(rig, "a", "result"), IDEM_V_OK);
    reopen(rig, KEY_B);
    writer.engine = rig_engine(rig, FAULTY_REMOTE, &options, NULL);
    rig->store->before_swap = write_plainly;
    rig->store->before_swap_arg = &writer;
    put(rig->engine, &get, &got);
    put(rig->engine, &forget, &forgotten);
    turn(rig->engine);
    assert_true(writer.wrote);
    assert_verdict(got, IDEM_V_RECORD);
    assert_int_equal(got.state, IDEM_STATE_EXECUTING);
    assert_verdict(forgotten, IDEM_V_OK);
    idem_close(writer.engine);
}

static void
what_has_expired_is_not_in_the_way(void **state)
{
    struct rig *rig = *state;
    struct reply reply;

    assert_verdict(finish(rig, "a", "result"), IDEM_V_OK);
    reopen(rig, KEY_B);
    test_clocks_pass(&rig->clocks, IDEM_TTL_DEFAULT_MS + 1000);
    reply = do_op(rig, op_begin("a"));
    assert_verdict(reply, IDEM_V_STARTED);
}

/* Changes that somebody with access to the store can make. */
static void
a_record_that_was_changed_in_the_store_is_damaged(void **state)
{
    struct rig *rig = *state;
    struct idem_swap swap = {.outcome = IDEM_SWAP_LOST};
    struct idem_arena arena = {NULL, 0};
    struct idem_record a, b;
    struct reply reply;

    assert_verdict(finish(rig, "a", "ann's"), IDEM_V_OK);
    assert_verdict(finish(rig, "b", "bob's"), IDEM_V_OK);
    a = stored(rig, IDEM_TYPE_REQUEST, "test", "a", &arena);
    b = stored(rig, IDEM_TYPE_REQUEST, "test", "b", &arena);
    idem__key(IDEM_TYPE_REQUEST, b.scope, b.id, swap.key);
    swap.expected = b.rev;
    b.result = a.result;
    b.rev++;
    swap.record = &b;
    assert_int_equal(
        rig->memory->type->swap(rig->memory, &swap, 1, &arena, NULL), IDEM_OK);
    reply = do_op(rig, op_begin("b"));
    assert_status(reply, IDEM_ERR_CORRUPT);
    assert_non_null(strstr(reply.text, "copied from another record"));
    assert_verdict(do_op(rig, op_begin("a")), IDEM_V_REPLAY);
    idem_arena_clear(&arena);
}

static bool
show(void *arg, const struct idem_record *record)
{
    char *shown = arg;

    assert_int_equal(record->flags & IDEM__SEALED, 0);
    snprintf(shown, 100, "%.*s", (int)record->subject.len,
             (const char *)record->subject.data);
    return true;
}

static void
a_scan_shows_subjects_to_who_has_the_key(void **state)
{
    struct rig *rig = *state;
    struct idem_cursor cursor = {"0"};
    char shown[100] = "none";

    assert_verdict(finish(rig, "a", "result"), IDEM_V_OK);
    assert_int_equal(
        idem_scan(rig->engine, NULL, &cursor, 10, show, shown, NULL), IDEM_OK);
    assert_string_equal(shown, "for ann");
    reopen(rig, KEY_B);
    turn(rig->engine);
    cursor = (struct idem_cursor){"0"};
    assert_int_equal(
        idem_scan(rig->engine, NULL, &cursor, 10, show, shown, NULL), IDEM_OK);
    assert_string_equal(shown, "");
}

/* On a store that fails now and then, all answers are the same as without
 * keys. */
static void
a_lost_write_is_sent_again_as_it_was(void **state)
{
    struct rig *rig = *state;
    struct reply begun;

    begun = do_op(rig, op_begin("a"));
    atomic_store(&rig->store->fault, FAULT_LOST_APPLIED);
    atomic_store(&rig->store->from, atomic_load(&rig->store->calls) + 1);
    atomic_store(&rig->store->count, 2);
    assert_verdict(do_op(rig, op_finish("a", begun.fence, "done")), IDEM_V_OK);
    assert_verdict(do_op(rig, op_finish("a", begun.fence, "done")), IDEM_V_OK);
    assert_verdict(do_op(rig, op_finish("a", begun.fence, "else")),
                   IDEM_V_FINISHED);
}

static void
limits_leave_room_for_the_seal(void **state)
{
    static char long_text[IDEM_SUBJECT_MAX + 1];
    struct idem_op op = op_begin("a");
    struct reply reply;
    struct rig rig;

    (void)state;
    memset(long_text, 'x', IDEM__SEALED_SUBJECT_MAX + 1);
    open_rig(&rig, KEY_A);
    op.subject = idem_text(long_text);
    reply = ask(rig.engine, &op);
    assert_status(reply, IDEM_ERR_INVALID);
    assert_non_null(strstr(reply.text, "the limit with seal-key is 210"));
    op.subject.len--;
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    rig.engine->options.max_result = IDEM_RESULT_MAX;
    assert_int_equal(idem__max_result(rig.engine),
                     IDEM_RESULT_MAX - IDEM__SEAL_LEN);
    rig_close(&rig);
}

/* A subject that was stored before there was a key may be too long to be
 * sealed. */
static void
a_subject_that_cannot_be_sealed_stays_as_it_is(void **state)
{
    static char long_text[IDEM_SUBJECT_MAX + 1];
    struct idem_arena arena = {NULL, 0};
    struct idem_op op = op_begin("a");
    struct idem_record record;
    struct reply begun;
    struct rig rig;

    (void)state;
    memset(long_text, 'x', IDEM_SUBJECT_MAX);
    open_rig(&rig, NULL);
    op.subject = idem_text(long_text);
    begun = ask(rig.engine, &op);
    assert_verdict(begun, IDEM_V_STARTED);
    reopen(&rig, KEY_A);
    assert_verdict(do_op(&rig, op_finish("a", begun.fence, "result")),
                   IDEM_V_OK);
    record = stored(&rig, IDEM_TYPE_REQUEST, "test", "a", &arena);
    assert_int_equal(record.flags & IDEM__SEALED, IDEM_FLAG_SEALED_RESULT);
    assert_null(idem__record_flaw(&record));
    assert_verdict(do_op(&rig, op_begin("a")), IDEM_V_REPLAY);
    idem_arena_clear(&arena);
    rig_close(&rig);
}

/* Two missing keys in turn are not logged with every request. */
static void
several_missing_keys_do_not_fill_the_log(void **state)
{
    struct rig *rig = *state;

    assert_verdict(finish(rig, "a", "result"), IDEM_V_OK);
    reopen(rig, KEY_B);
    assert_verdict(finish(rig, "b", "result"), IDEM_V_OK);
    reopen(rig, NULL);
    rig->logged = 0;
    for (int i = 0; i < 50; i++) {
        assert_status(do_op(rig, op_begin("a")), IDEM_ERR_UNAVAILABLE);
        assert_status(do_op(rig, op_begin("b")), IDEM_ERR_UNAVAILABLE);
    }
    assert_int_equal(rig->logged, 1);
    test_clocks_pass(&rig->clocks, 61000);
    assert_status(do_op(rig, op_begin("b")), IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->logged, 2);
}

static void
a_server_gets_no_key_from_its_client(void **state)
{
    struct idem_options options = {.seal_key = key_file(KEY_A)};
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};

    (void)state;
    assert_int_equal(idem_open("idem://127.0.0.1:1", &options, &engine, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "give the key to that one"));
}

static void
an_owner_or_subject_that_leaves_no_room_for_a_seal_is_refused(void **state)
{
    char subject[IDEM__SEALED_SUBJECT_MAX + 2];
    struct idem_op op = op_begin("a");
    struct reply refused;
    struct rig rig;

    (void)state;
    memset(subject, 's', sizeof(subject));
    subject[sizeof(subject) - 1] = 0;
    open_rig(&rig, KEY_A);
    op.subject = idem_text(subject);
    refused = ask(rig.engine, &op);
    assert_status(refused, IDEM_ERR_INVALID);
    assert_non_null(strstr(refused.text, "the subject has"));
    op = op_lock("l", subject, 0);
    refused = ask(rig.engine, &op);
    assert_status(refused, IDEM_ERR_INVALID);
    assert_non_null(strstr(refused.text, "the owner has"));
    op.subject.len--;
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    rig_close(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        sealed_test(a_store_never_sees_results_and_subjects, KEY_A),
        sealed_test(a_lock_keeps_its_owner_and_note_sealed, KEY_A),
        sealed_test(records_from_before_the_key_stay_readable, NULL),
        sealed_test(a_key_is_replaced_in_steps, KEY_A),
        sealed_test(what_does_not_open_is_an_error_and_stays_as_it_is, KEY_A),
        sealed_test(a_claim_that_does_not_open_is_not_started_again, KEY_A),
        sealed_test(a_duplicate_that_waits_is_told, KEY_A),
        sealed_test(a_duplicate_of_a_claim_that_does_not_open_does_not_wait,
                    KEY_A),
        cmocka_unit_test(an_operator_can_forget_what_does_not_open),
        sealed_test(a_record_that_opens_meanwhile_is_answered, KEY_A),
        sealed_test(what_has_expired_is_not_in_the_way, KEY_A),
        sealed_test(a_record_that_was_changed_in_the_store_is_damaged, KEY_A),
        sealed_test(a_scan_shows_subjects_to_who_has_the_key, KEY_A),
        sealed_test(a_lost_write_is_sent_again_as_it_was, KEY_A),
        cmocka_unit_test(limits_leave_room_for_the_seal),
        cmocka_unit_test(a_subject_that_cannot_be_sealed_stays_as_it_is),
        sealed_test(several_missing_keys_do_not_fill_the_log, KEY_A),
        cmocka_unit_test(a_server_gets_no_key_from_its_client),
        cmocka_unit_test(
            an_owner_or_subject_that_leaves_no_room_for_a_seal_is_refused),
    };
    int failed;

    make_folder(folder, sizeof(folder));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_folder(folder);
    return failed;
}
