/*
 * wire_test.c - tests that every op and every answer is read back as it was
 * written.
 */
#include "wire.h"

#include "../../tests/support/stores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dice dice;
static char bytes[4096]; /* source of scopes, ids and results */

static unsigned
roll(unsigned sides)
{
    return (unsigned)dice_roll(&dice, sides);
}

static struct idem_bytes
some(size_t min, size_t max)
{
    size_t len = min + roll((unsigned)(max - min + 1));

    return (struct idem_bytes){bytes + roll((unsigned)(sizeof(bytes) - len)),
                               len};
}

/* Names contain no NUL. */
static struct idem_bytes
name(size_t max)
{
    struct idem_bytes n;

    do
        n = some(1, max);
    while (memchr(n.data, 0, n.len));
    return n;
}

static int64_t
some_ms(int64_t max)
{
    return roll(3) ? (int64_t)dice_roll(&dice, (uint64_t)max + 1) : 0;
}

static uint8_t nonce[IDEM_NONCE_LEN], fingerprint[IDEM_FINGERPRINT_LEN];

/* Any op that the engine accepts. Fields that its verb does not use are empty,
 * because they are not sent. */
static struct idem_op
random_op(void)
{
    struct idem_op op = {.verb = (enum idem_verb)roll(IDEM__VERB_COUNT)};
    enum idem_verb verb = op.verb;
    bool note, made; /* made: the verb can create a record */

    do
        op.type = (enum idem_type)(1 + roll(4));
    while (idem__op_check(&(struct idem_op){.verb = verb,
                                            .type = op.type,
                                            .scope = idem_text("s"),
                                            .id = idem_text("i"),
                                            .subject = idem_text("o"),
                                            .outcome = IDEM_STATE_FAILED,
                                            .fence = 1},
                          NULL) != IDEM_OK);
    note = op.type == IDEM_TYPE_LOCK || op.type == IDEM_TYPE_WORKER;
    made = verb == IDEM_BEGIN || verb == IDEM_SETTLE || verb == IDEM_ISSUE ||
           verb == IDEM_LOCK;
    op.scope = roll(4) ? name(IDEM_SCOPE_MAX) : idem_text("locks");
    op.id = name(IDEM_ID_MAX);
    if (verb == IDEM_FINISH || verb == IDEM_RELEASE || verb == IDEM_RENEW ||
        verb == IDEM_UNLOCK)
        op.fence = 1 + dice_roll(&dice, IDEM_FENCE_MAX);
    if ((verb == IDEM_SETTLE || verb == IDEM_FORGET) && roll(2))
        op.fence = 1 + dice_roll(&dice, IDEM_FENCE_MAX);
    if ((made || verb == IDEM_REDEEM) && roll(2))
        op.nonce = nonce;
    if ((verb == IDEM_BEGIN || verb == IDEM_LOCK) && roll(2))
        op.fingerprint = fingerprint;
    if (made)
        op.mode = (enum idem_mode)roll(2);
    if (verb == IDEM_BEGIN || verb == IDEM_RENEW || verb == IDEM_LOCK)
        op.lease_ms = some_ms(IDEM_LEASE_MAX_MS);
    if (verb == IDEM_RENEW)
        op.lost = roll(2);
    if (made || verb == IDEM_FINISH || verb == IDEM_REDEEM)
        op.ttl_ms = some_ms(IDEM_TTL_MAX_MS);
    if (verb == IDEM_BEGIN || verb == IDEM_LOCK)
        op.wait_ms = some_ms(IDEM_WAIT_MAX_MS);
    if (verb == IDEM_FINISH || (verb == IDEM_SETTLE && roll(2)))
        op.outcome = roll(2) ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
    if (verb == IDEM_FINISH || verb == IDEM_SETTLE || verb == IDEM_REDEEM) {
        op.kind = (enum idem_kind)roll(3);
        op.not_replayable = roll(2);
        op.result = some(0, 500);
    }
    if (note &&
        (verb == IDEM_LOCK || verb == IDEM_RENEW || verb == IDEM_UNLOCK ||
         verb == IDEM_RELEASE) &&
        roll(2))
        op.result = some(0, 40);
    if (verb == IDEM_LOCK || (made && roll(2)))
        op.subject = name(IDEM_SUBJECT_MAX);
    return op;
}

static void
assert_bytes(struct idem_bytes a, struct idem_bytes b, const char *what)
{
    if (!idem__bytes_equal(a, b))
        fail_msg("%s: %.*s and %.*s", what, (int)a.len, (const char *)a.data,
                 (int)b.len, (const char *)b.data);
}

static void
assert_same_op(const struct idem_op *a, const struct idem_op *b)
{
    assert_int_equal(a->verb, b->verb);
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->lost, b->lost);
    assert_bytes(a->scope, b->scope, "scope");
    assert_bytes(a->id, b->id, "id");
    assert_bytes(a->subject, b->subject, "subject");
    assert_bytes(a->result, b->result, "result");
    assert_true(a->fence == b->fence);
    assert_int_equal(!a->nonce, !b->nonce);
    if (a->nonce)
        assert_memory_equal(a->nonce, b->nonce, IDEM_NONCE_LEN);
    assert_int_equal(!a->fingerprint, !b->fingerprint);
    if (a->fingerprint)
        assert_memory_equal(a->fingerprint, b->fingerprint,
                            IDEM_FINGERPRINT_LEN);
    assert_int_equal(a->mode, b->mode);
    assert_true(a->lease_ms == b->lease_ms);
    assert_true(a->ttl_ms == b->ttl_ms);
    assert_true(a->wait_ms == b->wait_ms);
    assert_int_equal(a->outcome, b->outcome);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->not_replayable, b->not_replayable);
}

/* An empty note is not the same as none. */
static void
assert_same_note(const struct idem_op *a, const struct idem_op *b)
{
    if (a->type == IDEM_TYPE_LOCK || a->type == IDEM_TYPE_WORKER)
        assert_int_equal(!a->result.data, !b->result.data);
}

static void
fill_bytes(void)
{
    dice.state = number_from_env("IDEM_TEST_SEED", 1);
    print_message("seed %llu\n", (unsigned long long)dice.state);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)dice_roll(&dice, 256);
    memcpy(nonce, bytes, sizeof(nonce));
    memcpy(fingerprint, bytes + 100, sizeof(fingerprint));
}

/* Parse RESP bytes into arguments, as a server does. */
static size_t
read_args(const char *in, size_t len, struct idem_bytes *args)
{
    struct idem__wire_reader reader = {(const uint8_t *)in,
                                       (const uint8_t *)in + len, SIZE_MAX};
    struct idem__wire_value value;
    size_t count;

    assert_int_equal(idem__wire_read(&reader, &value), IDEM__WIRE_DONE);
    assert_int_equal(value.kind, IDEM__WIRE_ARRAY);
    count = (size_t)value.number;
    assert_true(count <= IDEM__WIRE_ARGS_MAX);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(idem__wire_read(&reader, &value), IDEM__WIRE_DONE);
        assert_int_equal(value.kind, IDEM__WIRE_BYTES);
        args[i] = value.bytes;
    }
    assert_ptr_equal(reader.at, reader.end);
    return count;
}

/* Write a command into exactly the room that it asked for, in which the
 * sanitizers see each byte too many; free what this returns. */
static char *
write_command(const struct idem__wire_command *command, struct idem_bytes *args,
              size_t *count)
{
    struct idem__wire_plan plan;
    size_t most = idem__wire_plan(command, &plan);
    char *wire = malloc(most), *room, *end;

    end = idem__wire_put_command(wire, command, &plan, &room);
    assert_true((size_t)(end - wire) <= most);
    assert_null(room);
    *count = read_args(wire, (size_t)(end - wire), args);
    return wire;
}

static void
every_op_survives_the_way_there(void **state)
{
    (void)state;
    fill_bytes();
    for (int i = 0; i < 100000; i++) {
        struct idem__wire_command sent = {.op = random_op(), .full = roll(2)};
        struct idem__wire_command got;
        struct idem_bytes read[IDEM__WIRE_ARGS_MAX];
        struct idem_error err = {0};
        char *wire;
        size_t count;

        sent.tagged = roll(2);
        sent.tag = (int64_t)dice_roll(&dice, IDEM_FENCE_MAX + 1);
        wire = write_command(&sent, read, &count);
        if (idem__wire_parse(read, count, &got, &err) != IDEM_OK)
            fail_msg("%s: %s", idem_verb_name(sent.op.verb), err.text);
        /* Options that a command implies are not written. */
        if (got.op.type == 0 && sent.op.type != 0)
            (void)idem__op_check(&got.op, NULL);
        if (got.op.ttl_ms != sent.op.ttl_ms && sent.op.ttl_ms == 0)
            got.op.ttl_ms = 0;
        if (got.op.lease_ms != sent.op.lease_ms && sent.op.lease_ms == 0)
            got.op.lease_ms = 0;
        assert_same_op(&sent.op, &got.op);
        assert_same_note(&sent.op, &got.op);
        assert_int_equal(sent.full, got.full);
        assert_int_equal(sent.tagged, got.tagged);
        if (sent.tagged)
            assert_true(sent.tag == got.tag);
        free(wire);
    }
}

static void
every_filter_survives_the_way_there(void **state)
{
    (void)state;
    fill_bytes();
    for (int i = 0; i < 10000; i++) {
        struct idem__wire_command sent = {
            .scan = true,
            .full = true,
            .count = 1 + roll(IDEM__WIRE_COUNT_MAX),
            .filter = {.type = (enum idem_type)roll(5),
                       .state = (enum idem_state)roll(6),
                       .updated_before = some_ms(INT64_C(1) << 50),
                       .doubt = roll(2)}};
        struct idem__wire_command got;
        struct idem_bytes read[IDEM__WIRE_ARGS_MAX];
        struct idem_error err = {0};
        char *wire;
        size_t count;

        if (roll(2))
            sent.filter.scope = name(IDEM_SCOPE_MAX);
        snprintf(sent.cursor.text, sizeof(sent.cursor.text), "%u", roll(99999));
        wire = write_command(&sent, read, &count);
        if (idem__wire_parse(read, count, &got, &err) != IDEM_OK)
            fail_msg("%s", err.text);
        assert_true(got.scan && got.full);
        assert_true(got.count == sent.count);
        assert_int_equal(got.filter.type, sent.filter.type);
        assert_int_equal(got.filter.state, sent.filter.state);
        assert_true(got.filter.updated_before == sent.filter.updated_before);
        assert_int_equal(got.filter.doubt, sent.filter.doubt);
        assert_bytes(got.filter.scope, sent.filter.scope, "scope");
        assert_string_equal(got.cursor.text, sent.cursor.text);
        free(wire);
    }
}

static struct idem_record
random_record(void)
{
    struct idem_record r = {.type = (uint8_t)(1 + roll(4)),
                            .state = (uint8_t)(1 + roll(5)),
                            .mode = (uint8_t)roll(2),
                            .kind = (uint8_t)roll(3),
                            .flags = (uint8_t)roll(16),
                            .attempt = roll(1000),
                            .fence = 1 + dice_roll(&dice, IDEM_FENCE_MAX),
                            .rev = dice_roll(&dice, UINT64_MAX) + 1,
                            .created = (int64_t)dice_roll(&dice, 1 << 30),
                            .updated = (int64_t)dice_roll(&dice, 1 << 30),
                            .lease_until = (int64_t)dice_roll(&dice, 1 << 30),
                            .expires = (int64_t)dice_roll(&dice, 1 << 30),
                            .scope = name(IDEM_SCOPE_MAX),
                            .id = name(IDEM_ID_MAX),
                            .subject = some(0, IDEM_SUBJECT_MAX),
                            .result = some(0, 2000)};

    if (r.flags & IDEM_FLAG_FINGERPRINT)
        memcpy(r.fingerprint, fingerprint, sizeof(r.fingerprint));
    return r;
}

static void
every_answer_survives_the_way_back(void **state)
{
    (void)state;
    fill_bytes();
    for (int i = 0; i < 20000; i++) {
        struct idem_answer sent = {
            .verdict = (enum idem_verdict)roll(IDEM__VERDICT_COUNT),
            .retry_after_ms = some_ms(100000)};
        struct idem_record record = {0}, read;
        struct idem_answer got;
        struct idem_error err = {0};
        struct idem__wire_reply reply;
        bool tagged = roll(2);
        char wire[8192], *at;
        size_t used, len;

        if (roll(4))
            record = random_record();
        sent.record = &record;
        at = idem__wire_put_full(wire, tagged, i, &sent);
        assert_true((size_t)(at - wire) <= idem__wire_full_len(&sent));
        at = idem__wire_put_bytes(at, record.result);
        len = (size_t)(at - wire);

        /* Cut at any place, it is reported as incomplete. */
        for (size_t cut = 0; cut < len; cut += 1 + roll(200)) {
            assert_int_equal(idem__wire_reply((struct idem_bytes){wire, cut},
                                              1 << 20, &reply, &used),
                             IDEM__WIRE_MORE);
            assert_true(used > cut && used <= len);
        }
        assert_int_equal(idem__wire_reply((struct idem_bytes){wire, len},
                                          1 << 20, &reply, &used),
                         IDEM__WIRE_DONE);
        assert_int_equal(used, len);
        assert_int_equal(reply.tagged, tagged);
        if (tagged)
            assert_int_equal(reply.tag, i);
        if (idem__wire_answer(&reply, &got, &read, &err) != IDEM_OK)
            fail_msg("%s", err.text);
        assert_int_equal(got.verdict, sent.verdict);
        assert_true(got.retry_after_ms == sent.retry_after_ms);
        assert_bytes(read.scope, record.scope, "scope");
        assert_bytes(read.id, record.id, "id");
        assert_bytes(read.subject, record.subject, "subject");
        assert_bytes(read.result, record.result, "result");
        read.scope = record.scope;
        read.id = record.id;
        read.subject = record.subject;
        read.result = record.result;
        assert_memory_equal(&read, &record, sizeof(read));
    }
}

/* A caller that gets a record gets all of it except other callers' data; fields
 * that a verdict does not have are zero. */
static void
assert_brief(const struct idem__wire_brief *got, const struct idem_answer *sent)
{
    const struct idem_record *r = sent->record;
    bool kept = !(r->flags & IDEM_FLAG_NOT_REPLAYABLE);

    assert_int_equal(got->verdict, sent->verdict);
    switch (sent->verdict) {
    case IDEM_V_RECORD:
        assert_int_equal(got->redeemed, !!(r->flags & IDEM_FLAG_REDEEMED));
        /* fall through */
    case IDEM_V_STARTED:
        assert_int_equal(got->fence, r->fence);
        assert_int_equal(got->lease_until, r->lease_until);
        assert_int_equal(got->expires, r->expires);
        break;
    case IDEM_V_BUSY:
        assert_int_equal(got->retry_after_ms, sent->retry_after_ms);
        break;
    case IDEM_V_DOUBT:
        assert_int_equal(got->lease_until, r->lease_until);
        break;
    case IDEM_V_ISSUED:
        assert_bytes(got->bytes, r->id, "token");
        break;
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        assert_int_equal(got->expires, r->expires);
        break;
    default:
        break;
    }
    if (sent->verdict == IDEM_V_REPLAY || sent->verdict == IDEM_V_FINISHED ||
        sent->verdict == IDEM_V_RECORD) {
        assert_int_equal(got->state, r->state);
        assert_int_equal(got->kind, r->kind);
        assert_int_equal(got->bytes.data != NULL, kept);
        if (kept)
            assert_bytes(got->bytes, r->result, "result");
    }
}

static void
every_short_answer_survives_the_way_back(void **state)
{
    (void)state;
    fill_bytes();
    for (int i = 0; i < 20000; i++) {
        struct idem_record record = random_record();
        const struct idem_answer sent = {
            .verdict = (enum idem_verdict)roll(IDEM__VERDICT_COUNT),
            .retry_after_ms = some_ms(100000),
            .record = &record};
        enum idem_verb verb = (enum idem_verb)roll(IDEM__VERB_COUNT);
        struct idem__wire_reply reply;
        struct idem__wire_brief got;
        struct idem_error err;
        char wire[8192], *end;
        size_t used;

        end = idem__wire_put_brief(wire, i & 1, i, verb, &sent, 4096);
        assert_true((size_t)(end - wire) <= idem__wire_brief_len(&sent, 4096));
        assert_int_equal(
            idem__wire_reply((struct idem_bytes){wire, (size_t)(end - wire)},
                             1 << 20, &reply, &used),
            IDEM__WIRE_DONE);
        assert_int_equal(used, end - wire);
        assert_int_equal(reply.tagged ? reply.tag : 0, i & 1 ? i : 0);
        if (idem__wire_brief(&reply, &got, &err) != IDEM_OK)
            fail_msg("%s: %s", idem_verdict_name(sent.verdict), err.text);
        assert_brief(&got, &sent);
        assert_int_equal(reply.values, 0);
    }
}

/* The short way and the way for all replies read the same, and the short way
 * reads what it is for. */
static void
a_usual_answer_is_read_as_any_other(void **state)
{
    int read[IDEM__VERDICT_COUNT] = {0};

    (void)state;
    fill_bytes();
    for (int i = 0; i < 20000; i++) {
        struct idem_record record = random_record();
        const struct idem_answer sent = {
            .verdict = (enum idem_verdict)roll(IDEM__VERDICT_COUNT),
            .record = &record};
        struct idem__wire_brief got, same;
        struct idem__wire_reply reply;
        struct idem_error err;
        char wire[8192], *end;
        size_t used, also;
        int64_t tag;

        end = idem__wire_put_brief(wire, roll(9) > 0, i, IDEM_FINISH, &sent,
                                   4096);
        if (!idem__wire_usual((struct idem_bytes){wire, (size_t)(end - wire)},
                              2048, &tag, &got, &used))
            continue;
        read[got.verdict]++;
        assert_int_equal(
            idem__wire_reply((struct idem_bytes){wire, (size_t)(end - wire)},
                             2048, &reply, &also),
            IDEM__WIRE_DONE);
        assert_int_equal(used, also);
        assert_true(reply.tagged && reply.tag == tag);
        assert_int_equal(idem__wire_brief(&reply, &same, &err), IDEM_OK);
        assert_memory_equal(&got, &same, sizeof(got));
    }
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++)
        assert_int_equal(read[i] > 0, i == IDEM_V_STARTED || i == IDEM_V_OK ||
                                          i == IDEM_V_REPLAY);
}

static void
only_a_whole_usual_answer_is_read_the_short_way(void **state)
{
    static const char *const usual[] = {
        "*6\r\n$3\r\ntag\r\n:7\r\n$7\r\nstarted\r\n:12\r\n:30000\r\n:86400\r\n",
        "*4\r\n$3\r\ntag\r\n:123456\r\n$2\r\nok\r\n:1700000000000\r\n",
        ("*7\r\n$3\r\ntag\r\n:1\r\n$6\r\nreplay\r\n$9\r\nsucceeded\r\n"
         "$4\r\nhttp\r\n:5\r\n$3\r\nabc\r\n")};
    static const char *const other[] = {
        "",
        "*",
        "*4\r\n$3\r\ntag\r\n:-1\r\n$2\r\nok\r\n:5\r\n",
        "*5\r\n$3\r\ntag\r\n:1\r\n$2\r\nok\r\n:5\r\n:6\r\n",
        "*4\r\n$3\r\ntag\r\n:1\r\n$2\r\nok\r\n$1\r\n5\r\n",
        ("*7\r\n$3\r\ntag\r\n:1\r\n$6\r\nreplay\r\n$9\r\nsucceeded\r\n"
         "$4\r\nhttp\r\n:5\r\n$-1\r\n"),
        ("*7\r\n$3\r\ntag\r\n:1\r\n$6\r\nreplay\r\n$9\r\nsucceeded\r\n"
         "$4\r\nhttp\r\n:5\r\n$9\r\nabcdefghi\r\n")};
    struct idem__wire_brief brief;
    int64_t tag;
    size_t used;

    (void)state;
    for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++) {
        size_t len = strlen(usual[i]);

        assert_true(
            idem__wire_usual(idem_text(usual[i]), 8, &tag, &brief, &used));
        assert_int_equal(used, len);
        for (size_t cut = 0; cut < len; cut++) {
            char *part = malloc(cut + 1); /* no byte behind it may be read */

            memcpy(part + 1, usual[i], cut);
            assert_false(idem__wire_usual((struct idem_bytes){part + 1, cut}, 8,
                                          &tag, &brief, &used));
            free(part);
        }
    }
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        assert_false(
            idem__wire_usual(idem_text(other[i]), 8, &tag, &brief, &used));
}

static void
a_nonce_is_told_to_nobody(void **state)
{
    struct idem_record record, read;
    struct idem_answer sent = {.verdict = IDEM_V_BUSY, .record = &record}, got;
    static const uint8_t zeros[IDEM_NONCE_LEN];
    struct idem__wire_reply reply;
    char wire[8192], *end;
    size_t used;

    (void)state;
    fill_bytes();
    record = random_record();
    memset(record.nonce, 7, sizeof(record.nonce));
    end = idem__wire_put_full(wire, false, 0, &sent);
    end = idem__wire_put_bytes(end, record.result);
    assert_int_equal(
        idem__wire_reply((struct idem_bytes){wire, (size_t)(end - wire)},
                         1 << 20, &reply, &used),
        IDEM__WIRE_DONE);
    assert_int_equal(idem__wire_answer(&reply, &got, &read, NULL), IDEM_OK);
    assert_memory_equal(read.nonce, zeros, sizeof(zeros));
}

static enum idem_status
answer_of(const char *text, struct idem_error *err)
{
    struct idem__wire_reply reply;
    struct idem_answer answer;
    struct idem_record record;
    size_t used;

    assert_int_equal(idem__wire_reply(idem_text(text), 1000, &reply, &used),
                     IDEM__WIRE_DONE);
    return idem__wire_answer(&reply, &answer, &record, err);
}

static void
an_error_is_told_as_a_status(void **state)
{
    struct idem_error err;

    (void)state;
    assert_int_equal(answer_of("-LOST who knows\r\n", &err), IDEM_ERR_LOST);
    assert_string_equal(err.text, "who knows");
    assert_int_equal(answer_of("*5\r\n$3\r\ntag\r\n:1\r\n$5\r\nerror\r\n"
                               "$4\r\nFULL\r\n$2\r\nno\r\n",
                               &err),
                     IDEM_ERR_FULL);
    assert_int_equal(answer_of("-ERR no such option\r\n", &err),
                     IDEM_ERR_INVALID);
    assert_string_equal(err.text, "no such option");
    assert_int_equal(answer_of("-NOPERM not yours\r\n", &err),
                     IDEM_ERR_INVALID);
    assert_string_equal(err.text, "NOPERM not yours");
    assert_int_equal(answer_of("+OK\r\n", &err), IDEM_ERR_UNSUPPORTED);
    assert_int_equal(answer_of("*1\r\n$5\r\nstale\r\n", &err),
                     IDEM_ERR_UNSUPPORTED);
}

static struct idem__wire_brief
brief_of(const char *text)
{
    struct idem__wire_brief brief;
    struct idem__wire_reply reply;
    struct idem_error err;
    size_t used;

    assert_int_equal(idem__wire_reply(idem_text(text), 1000, &reply, &used),
                     IDEM__WIRE_DONE);
    if (idem__wire_brief(&reply, &brief, &err) != IDEM_OK)
        brief.verdict = IDEM__VERDICT_COUNT;
    return brief;
}

static void
a_short_answer_says_what_its_verdict_promises(void **state)
{
    struct idem__wire_brief b;

    (void)state;
    b = brief_of("*6\r\n$3\r\ntag\r\n:7\r\n$7\r\nstarted\r\n:12\r\n:34\r\n"
                 ":56\r\n");
    assert_true(b.verdict == IDEM_V_STARTED && b.fence == 12 &&
                b.lease_until == 34 && b.expires == 56);
    b = brief_of("*5\r\n$6\r\nreplay\r\n$6\r\nfailed\r\n$4\r\nhttp\r\n:9\r\n"
                 "$2\r\nab\r\n");
    assert_true(b.verdict == IDEM_V_REPLAY && b.state == IDEM_STATE_FAILED &&
                b.kind == IDEM_KIND_HTTP && b.expires == 9);
    assert_bytes(b.bytes, idem_text("ab"), "result");
    b = brief_of(
        "*5\r\n$8\r\nfinished\r\n$9\r\nsucceeded\r\n$3\r\nraw\r\n:9\r\n"
        "$-1\r\n");
    assert_true(b.verdict == IDEM_V_FINISHED && b.bytes.data == NULL);
    b = brief_of("*7\r\n$6\r\nrecord\r\n$2\r\nid\r\n$1\r\nx\r\n$5\r\nstate\r\n"
                 "$6\r\nfailed\r\n$8\r\nredeemed\r\n:1\r\n");
    assert_true(b.verdict == IDEM_V_RECORD && b.state == IDEM_STATE_FAILED &&
                b.redeemed == 1);
    b = brief_of("*2\r\n$4\r\nbusy\r\n:250\r\n");
    assert_true(b.verdict == IDEM_V_BUSY && b.retry_after_ms == 250);
    b = brief_of("*2\r\n$2\r\nok\r\n:77\r\n");
    assert_true(b.verdict == IDEM_V_OK && b.expires == 77);
    assert_int_equal(brief_of("*1\r\n$2\r\nok\r\n").verdict, IDEM_V_OK);
    assert_int_equal(brief_of("*1\r\n$5\r\nstale\r\n").verdict, IDEM_V_STALE);

    assert_int_equal(brief_of("*1\r\n$7\r\nstarted\r\n").verdict,
                     IDEM__VERDICT_COUNT);
    assert_int_equal(brief_of("*2\r\n$6\r\nissued\r\n$-1\r\n").verdict,
                     IDEM__VERDICT_COUNT);
    assert_int_equal(brief_of("*1\r\n$6\r\nfuture\r\n").verdict,
                     IDEM__VERDICT_COUNT);
}

static void
room_is_left_for_a_result_without_data(void **state)
{
    struct idem__wire_command command = {.op = {.verb = IDEM_FINISH,
                                                .scope = idem_text("s"),
                                                .id = idem_text("i"),
                                                .fence = 1,
                                                .outcome = IDEM_STATE_SUCCEEDED,
                                                .result = {NULL, 3}}};
    struct idem__wire_plan plan;
    char wire[512], *room, *end;

    (void)state;
    assert_true(idem__wire_plan(&command, &plan) <= sizeof(wire));
    end = idem__wire_put_command(wire, &command, &plan, &room);
    memcpy(room, "abc", 3);
    assert_memory_equal(room - 4, "$3\r\nabc\r\n", 9);
    assert_ptr_equal(room + 5, end);
}

static void
what_is_not_resp_is_refused(void **state)
{
    static const char *const bad[] = {"x\r\n",
                                      "*-1\r\n",
                                      "$-2\r\n",
                                      "$1001\r\n",
                                      "$1\r\nabc\r\n",
                                      ":x\r\n",
                                      ":\r\n",
                                      "*99999999\r\n",
                                      "*2\r\n:1\r\nx\r\n",
                                      "+no cr\n",
                                      "\r\n",
                                      ":9999999999999999999\r\n",
                                      "*3\r\n$3\r\ntag\r\n$1\r\n1\r\n:1\r\n",
                                      "*3\r\n$3\r\ntag\r\n:-1\r\n:1\r\n",
                                      ":1\rx",
                                      "$1\r\na\rx",
                                      "*65000\r\n*65000\r\n"};
    struct idem__wire_reply reply;
    size_t used;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (idem__wire_reply(idem_text(bad[i]), 1000, &reply, &used) !=
            IDEM__WIRE_BAD)
            fail_msg("taken: %s", bad[i]);
    }
}

/* ---- what cannot be read --------------------------------------------------
 */

/* Parse a command whose arguments have spaces between them. */
static enum idem_status
parse_line(const char *text, struct idem__wire_command *command,
           struct idem_error *err)
{
    struct idem_bytes args[20];
    size_t count = 0;

    while (*text) {
        size_t len = strcspn(text, " ");

        args[count++] = (struct idem_bytes){text, len};
        text += len + (text[len] == ' ');
    }
    return idem__wire_parse(args, count, command, err);
}

static void
a_command_that_is_wrong_is_refused_and_says_why(void **state)
{
    static const char *const cases[][2] = {
        {"BEGIN s",
         "wrong number of arguments for 'BEGIN' command of idem: BEGIN "
         "scope id [options] (docs/protocol.md)"},
        {"GET s", ": GET scope id (docs/protocol.md)"},
        {"LOCK a b", ": LOCK name owner ms [options] ("},
        {"BEGIN s i NOPE", "BEGIN has no option \"NOPE\""},
        {"BEGIN s i an-option-with-a-name-of-more-than-forty-letters",
         "\"an-option-with-a-name-of-more-than-forty\""},
        {"BEGIN s i TTL", "TTL lacks its value"},
        {"BEGIN s i TTL 5 ttl 6", "TTL is given twice"},
        {"BEGIN s i TTL x", "TTL"},
        {"BEGIN s i LEASE -1", "LEASE"},
        {"BEGIN s i NONCE 12", "NONCE has 16 hex digits"},
        {"BEGIN s i FP 12", "FP has 64 hex digits"},
        {"RELEASE s i x", "the fence is the number that the start gave"},
        {"RELEASE s i 0", "the fence is the number that the start gave"},
        {"RELEASE s i 9007199254740992", "the fence is the number"},
        {"FINISH s i 1 EXECUTING r", "the outcome is SUCCEEDED or FAILED"},
        {"FINISH s i 1 done r", "the outcome is SUCCEEDED or FAILED"},
        {"FINISH s i 1 FAILED r KIND json", "KIND is raw, http or exec"},
        {"GET s i TYPE thing", "TYPE is request, token, lock or worker"},
        {"SCAN 0 STATE odd", "STATE is issued, executing, succeeded"},
        {"SCAN 0 COUNT 0", "the count is 1 to 1000"},
        {"SCAN 0 COUNT 1001", "the count is 1 to 1000"},
        {"SCAN 0 COUNT x", "the count is 1 to 1000"},
        {"SCAN 0123456789012345678901234567890123456789012345678901234567890123"
         "45678901234567890123456789012345678901234567890123456789012345678901",
         "the cursor must be 0 or the one in the reply"},
        {"BEGIN s i TAG x", "TAG is a number from 0 to 2^53 - 1"},
        {"BEGIN s i TAG -1", "TAG is a number from 0 to 2^53 - 1"},
        {"BEGIN s i TAG 9007199254740992", "TAG is a number from 0 to"},
    };
    struct idem__wire_command command;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (parse_line(cases[i][0], &command, &err) != IDEM_ERR_INVALID)
            fail_msg("taken: %s", cases[i][0]);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i][0], err.text,
                     cases[i][1]);
    }
    assert_int_equal(parse_line("NOPE s i", &command, &err),
                     IDEM_ERR_UNSUPPORTED);
    assert_int_equal(parse_line("", &command, &err), IDEM_ERR_UNSUPPORTED);
}

/* A client that matches answers by tag must learn that its command was
 * wrong. */
static void
the_tag_of_a_wrong_command_is_read_anyway(void **state)
{
    static const char *const lines[] = {
        "BEGIN s i NOPE TAG 7",
        "BEGIN s TAG 7",
        "RELEASE s i x TAG 7",
        "BEGIN s i TTL 1 TTL 2 TAG 7",
    };
    struct idem__wire_command command;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        assert_int_equal(parse_line(lines[i], &command, &err),
                         IDEM_ERR_INVALID);
        assert_true(command.tagged && command.tag == 7);
    }
    assert_int_equal(parse_line("BEGIN s i TAG x", &command, &err),
                     IDEM_ERR_INVALID);
    assert_false(command.tagged);
}

/* A reply of these values, each complete with its CR LF; the first is given as
 * a word. */
static enum idem_status
read_brief(const char *verdict, const char *const *values, size_t count,
           struct idem__wire_brief *brief)
{
    struct idem__wire_reply reply;
    struct idem_error err;
    char wire[512];
    size_t used;
    int len = snprintf(wire, sizeof(wire), "*%zu\r\n$%zu\r\n%s\r\n", count + 1,
                       strlen(verdict), verdict);

    for (size_t i = 0; i < count; i++)
        len += snprintf(wire + len, sizeof(wire) - (size_t)len, "%s\r\n",
                        values[i]);
    assert_int_equal(idem__wire_reply((struct idem_bytes){wire, (size_t)len},
                                      1000, &reply, &used),
                     IDEM__WIRE_DONE);
    return idem__wire_brief(&reply, brief, &err);
}

static void
a_short_answer_with_other_values_is_refused(void **state)
{
    static const struct {
        const char *verdict;
        size_t count;
        const char *values[4];
        bool may_be_short;
    } good[] = {
        {"started", 3, {":12", ":34", ":56"}, false},
        {"replay", 4, {"$6\r\nfailed", "$4\r\nhttp", ":9", "$2\r\nab"}, false},
        {"busy", 1, {":250"}, false},
        {"doubt", 1, {":5"}, false},
        {"settled", 2, {"$6\r\nfailed", ":9"}, false},
        {"ok", 1, {":77"}, true},
        {"issued", 1, {"$3\r\ntok"}, false},
        {"record",
         4,
         {"$5\r\nstate", "$6\r\nfailed", "$4\r\nkind", "$3\r\nraw"},
         true},
    };
    struct idem__wire_brief brief;
    const char *values[4];

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        memcpy(values, good[i].values, sizeof(values));
        assert_int_equal(
            read_brief(good[i].verdict, values, good[i].count, &brief),
            IDEM_OK);
        for (size_t at = 0; at < good[i].count; at++) {
            const char *was = values[at];

            values[at] = was[0] == ':' ? "$1\r\nx" : ":5";
            if (read_brief(good[i].verdict, values, good[i].count, &brief) !=
                IDEM_ERR_UNSUPPORTED)
                fail_msg("%s: value %zu was taken", good[i].verdict, at);
            values[at] = "+a line";
            if (read_brief(good[i].verdict, values, good[i].count, &brief) !=
                IDEM_ERR_UNSUPPORTED)
                fail_msg("%s: line %zu was taken", good[i].verdict, at);
            values[at] = was;
            if (!good[i].may_be_short &&
                read_brief(good[i].verdict, values, at, &brief) !=
                    IDEM_ERR_UNSUPPORTED)
                fail_msg("%s: %zu values were taken", good[i].verdict, at);
        }
    }
    /* A name without its value. */
    assert_int_equal(read_brief("record", good[7].values, 3, &brief),
                     IDEM_ERR_UNSUPPORTED);
}

static void
a_whole_answer_with_other_values_is_refused(void **state)
{
    static const char *const wrong[] = {
        "*4\r\n$4\r\nbusy\r\n$1\r\n1\r\n$-1\r\n$-1\r\n",
        "*4\r\n$4\r\nbusy\r\n:1\r\n:2\r\n$-1\r\n",
        "*4\r\n$4\r\nbusy\r\n:1\r\n$-1\r\n:2\r\n",
        "*3\r\n$4\r\nbusy\r\n:1\r\n$-1\r\n",
        "*4\r\n:1\r\n:1\r\n$-1\r\n$-1\r\n",
    };
    struct idem_error err;

    (void)state;
    assert_int_equal(
        answer_of("*4\r\n$4\r\nbusy\r\n:1\r\n$-1\r\n$-1\r\n", &err), IDEM_OK);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(answer_of(wrong[i], &err), IDEM_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "is this an idem server"));
    }
    /* A record that is damaged on its way is never shown. */
    assert_int_equal(
        answer_of("*4\r\n$4\r\nbusy\r\n:1\r\n$3\r\nabc\r\n$-1\r\n", &err),
        IDEM_ERR_CORRUPT);
}

static enum idem_status
scanned(const char *text, struct idem_cursor *next, struct idem_error *err)
{
    struct idem__wire_reply reply;
    struct idem_record record;
    enum idem_status status;
    size_t used;

    assert_int_equal(idem__wire_reply(idem_text(text), 1000, &reply, &used),
                     IDEM__WIRE_DONE);
    status = idem__wire_scanned(&reply, next, err);
    while (status == IDEM_OK && reply.values > 0)
        status = idem__wire_record(&reply, &record, err);
    return status;
}

static void
a_list_with_other_values_is_refused(void **state)
{
    static const char *const wrong[] = {
        "*2\r\n$4\r\nlist\r\n$1\r\n0\r\n",
        "*2\r\n:1\r\n$1\r\n0\r\n",
        "*2\r\n$7\r\nrecords\r\n:0\r\n",
        "*1\r\n$7\r\nrecords\r\n",
        "*2\r\n$7\r\nrecords\r\n$0\r\n\r\n",
        "*3\r\n$7\r\nrecords\r\n$1\r\n0\r\n:1\r\n",
    };
    char long_cursor[400];
    struct idem_cursor next;
    struct idem_error err;

    (void)state;
    assert_int_equal(
        scanned("*2\r\n$7\r\nrecords\r\n$2\r\n17\r\n", &next, &err), IDEM_OK);
    assert_string_equal(next.text, "17");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(scanned(wrong[i], &next, &err), IDEM_ERR_UNSUPPORTED);
    snprintf(long_cursor, sizeof(long_cursor),
             "*2\r\n$7\r\nrecords\r\n$300\r\n%0300d\r\n", 7);
    assert_int_equal(scanned(long_cursor, &next, &err), IDEM_ERR_UNSUPPORTED);
    assert_int_equal(scanned("-UNAVAILABLE gone\r\n", &next, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_int_equal(scanned("*3\r\n$7\r\nrecords\r\n$1\r\n0\r\n"
                             "$3\r\nabc\r\n",
                             &next, &err),
                     IDEM_ERR_CORRUPT);
}

static void
an_error_may_lack_its_text_or_have_a_long_one(void **state)
{
    char text[400];
    struct idem_error err;

    (void)state;
    assert_int_equal(answer_of("-LOST\r\n", &err), IDEM_ERR_LOST);
    assert_string_equal(err.text, "");
    assert_int_equal(answer_of("-\r\n", &err), IDEM_ERR_INVALID);
    /* No server says that "ok" is an error. */
    assert_int_equal(answer_of("-OK fine\r\n", &err), IDEM_ERR_INVALID);
    assert_string_equal(err.text, "OK fine");
    snprintf(text, sizeof(text), "-FULL %0300d\r\n", 7);
    assert_int_equal(answer_of(text, &err), IDEM_ERR_FULL);
    assert_int_equal(strlen(err.text), 240);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_survives_the_way_there),
        cmocka_unit_test(every_filter_survives_the_way_there),
        cmocka_unit_test(every_answer_survives_the_way_back),
        cmocka_unit_test(every_short_answer_survives_the_way_back),
        cmocka_unit_test(a_usual_answer_is_read_as_any_other),
        cmocka_unit_test(only_a_whole_usual_answer_is_read_the_short_way),
        cmocka_unit_test(a_nonce_is_told_to_nobody),
        cmocka_unit_test(an_error_is_told_as_a_status),
        cmocka_unit_test(a_short_answer_says_what_its_verdict_promises),
        cmocka_unit_test(room_is_left_for_a_result_without_data),
        cmocka_unit_test(what_is_not_resp_is_refused),
        cmocka_unit_test(a_command_that_is_wrong_is_refused_and_says_why),
        cmocka_unit_test(the_tag_of_a_wrong_command_is_read_anyway),
        cmocka_unit_test(a_short_answer_with_other_values_is_refused),
        cmocka_unit_test(a_whole_answer_with_other_values_is_refused),
        cmocka_unit_test(a_list_with_other_values_is_refused),
        cmocka_unit_test(an_error_may_lack_its_text_or_have_a_long_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
