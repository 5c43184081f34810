/*
 * verbs_test.c - verbs of several operations, from C, on the store that
 * IDEM_TEST_STORE names (memory: without it).
 *
 * It prints what the story comes to, a line a step. tests/system/test_verbs.py
 * tells the same story through RESP, HTTP and the command line, and compares.
 */
#include "../../src/engine/engine.h"
#include <idem/idem.h>

#include <idem/token.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TTL_MS 123456

static struct idem_engine *engine;
static char fresh[IDEM_TOKEN_LEN + 1];

static struct idem_answer
ask(struct idem_op op, const char *id, bool next)
{
    struct idem_answer answer = {0};
    struct idem_error err = {0};

    op.scope = idem_text("verbs");
    op.id = idem_text(id);
    op.ttl_ms = op.verb == IDEM_ISSUE ? TTL_MS : 0;
    if (idem__do_verb(engine, &op, next, &answer, &err) != IDEM_OK)
        fail_msg("%s: %s", idem_verb_name(op.verb), err.text);
    return answer;
}

static uint64_t
tell(const char *step, struct idem_op op, const char *id)
{
    struct idem_answer answer = ask(op, id, false);
    uint64_t fence = answer.record->fence;

    printf("story: %s %s\n", step, idem_verdict_name(answer.verdict));
    idem_answer_clear(&answer);
    return fence;
}

static void
show(const char *step, const char *id)
{
    struct idem_answer answer =
        ask((struct idem_op){.verb = IDEM_GET}, id, false);
    const struct idem_record *r = answer.record;

    printf("story: %s %s", step, idem_verdict_name(answer.verdict));
    if (answer.verdict == IDEM_V_RECORD)
        printf(" %s %s", idem_type_name(r->type), idem_state_name(r->state));
    if (r->state == IDEM_STATE_ISSUED)
        printf(" %lld", (long long)(r->expires - r->created));
    printf("\n");
    idem_answer_clear(&answer);
}

static void
redeem_next(const char *step, const char *token)
{
    struct idem_answer answer =
        ask((struct idem_op){.verb = IDEM_REDEEM}, token, true);
    struct idem_bytes id = answer.record->id;
    bool redeemed = answer.verdict == IDEM_V_REDEEMED;

    printf("story: %s %s %s\n", step, idem_verdict_name(answer.verdict),
           redeemed && id.len > 0 ? "token" : "none");
    if (redeemed)
        snprintf(fresh, sizeof(fresh), "%.*s", (int)id.len,
                 (const char *)id.data);
    idem_answer_clear(&answer);
}

static void
issue(char token[IDEM_TOKEN_LEN + 1])
{
    struct idem_answer answer;

    idem_token_make(token);
    answer = ask((struct idem_op){.verb = IDEM_ISSUE}, token, false);
    assert_int_equal(answer.verdict, IDEM_V_ISSUED);
    idem_answer_clear(&answer);
}

/* The steps and their words are those of test_verbs.py. */
static void
a_verb_finds_what_is_there(void **state)
{
    const struct idem_op settle = {.verb = IDEM_SETTLE};
    struct idem_op begin = {.verb = IDEM_BEGIN, .type = IDEM_TYPE_TOKEN};
    char absent[IDEM_TOKEN_LEN + 1], token[IDEM_TOKEN_LEN + 1];
    uint64_t fence;

    (void)state;
    idem_token_make(absent);
    show("get-nothing", absent);
    tell("settle-nothing", settle, absent);
    show("settled-nothing", absent);

    issue(token);
    tell("settle-token", settle, token);
    show("settled-token", token);

    issue(token);
    fence = tell("begin-token", begin, token);
    tell(
        "renew-token",
        (struct idem_op){.verb = IDEM_RENEW, .fence = fence, .lease_ms = 60000},
        token);
    tell("release-token",
         (struct idem_op){.verb = IDEM_RELEASE, .fence = fence}, token);
    fence = tell("again-token", begin, token);
    tell("finish-token",
         (struct idem_op){.verb = IDEM_FINISH,
                          .fence = fence,
                          .outcome = IDEM_STATE_SUCCEEDED,
                          .result = idem_text("paid")},
         token);
    show("finished-token", token);
    tell("finish-nothing",
         (struct idem_op){.verb = IDEM_FINISH,
                          .fence = fence,
                          .outcome = IDEM_STATE_SUCCEEDED},
         "no-such-id");

    issue(token);
    redeem_next("redeem-next", token);
    show("fresh-token", fresh);
    redeem_next("redeem-twice", token);
    redeem_next("redeem-nothing", "no-such-token");
}

static int
open_engine(void **state)
{
    const char *url = getenv("IDEM_TEST_STORE");
    struct idem_error err = {0};

    (void)state;
    if (idem_open(url ? url : "memory:", NULL, &engine, &err) == IDEM_OK)
        return 0;
    printf("%s\n", err.text);
    return -1;
}

static int
close_engine(void **state)
{
    (void)state;
    idem_close(engine);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verb_finds_what_is_there),
    };

    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
