/*
 * resp_test.c - build replies, and parse commands.
 */
#include "../core/rights.h"
#include "answer.h"
#include "command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void
replies_stop_at_their_cap(void **state)
{
    struct resp_out out = {.buf = {.cap = 40}};

    (void)state;
    resp_add_text(&out, "twelve bytes");
    assert_false(out.failed);
    resp_add_text(&out, "and another twenty-eight of them");
    assert_true(out.failed);
    resp_add_null(&out);
    assert_true(out.buf.len <= 40);
    idem_buf_clear(&out.buf);
}

static void
an_error_is_one_line_whatever_its_text(void **state)
{
    struct resp_out out = {.buf = {.cap = 1000}};

    (void)state;
    resp_add_error(&out, "ERR", "a\r\nb\x01");
    assert_memory_equal(out.buf.data, "-ERR a??b?\r\n", out.buf.len);
    idem_buf_clear(&out.buf);
}

/* ---- commands -------------------------------------------------------- */

static enum idem_status
command(const char *line, struct command *into, struct idem_error *err)
{
    static char text[512];
    struct idem__wire_request in;
    size_t used;

    snprintf(text, sizeof(text), "%s\n", line);
    assert_int_equal(idem__wire_request(idem_text(text), 512, &in, &used, err),
                     IDEM__WIRE_DONE);
    return command_parse(&in, into, err);
}

static void
begin_takes_its_options_in_any_order(void **state)
{
    struct command c;
    struct idem_error err;

    (void)state;
    assert_int_equal(command("begin shop 7 wait 5 loose nonce 0102030405060708 "
                             "TTL 9 token LEASE 4 subject me TAG 3",
                             &c, &err),
                     IDEM_OK);
    assert_int_equal(c.wire.op.verb, IDEM_BEGIN);
    assert_int_equal(c.wire.op.type, IDEM_TYPE_TOKEN);
    assert_int_equal(c.wire.op.mode, IDEM_LOOSE);
    assert_int_equal(c.wire.op.wait_ms, 5);
    assert_int_equal(c.wire.op.ttl_ms, 9);
    assert_int_equal(c.wire.op.lease_ms, 4);
    assert_memory_equal(c.wire.op.nonce, "\1\2\3\4\5\6\7\10", 8);
    assert_true(idem__bytes_is(c.wire.op.subject, "me"));
    assert_true(c.wire.tagged);
    assert_int_equal(c.wire.tag, 3);
}

static void
a_tag_stands_behind_the_places_only(void **state)
{
    struct command c;
    struct idem_error err;

    (void)state;
    assert_int_equal(command("GET TAG 5", &c, &err), IDEM_OK);
    assert_false(c.wire.tagged);
    assert_true(idem__bytes_is(c.wire.op.scope, "TAG"));
    assert_int_equal(command("AUTH TAG 5", &c, &err), IDEM_OK);
    assert_false(c.wire.tagged);
    assert_int_equal(c.word_count, 2);
    assert_int_equal(command("PING TAG 5", &c, &err), IDEM_OK);
    assert_true(c.wire.tagged && c.wire.tag == 5 && c.word_count == 0);
}

static void
settle_as_needs_the_right_to_operate(void **state)
{
    struct command c;
    struct idem_error err;

    (void)state;
    assert_int_equal(command("SETTLE s i REASON because", &c, &err), IDEM_OK);
    assert_false(server_op_operates(&c.wire.op));
    assert_true(idem__bytes_is(c.wire.op.result, "because"));
    assert_int_equal(
        command("SETTLE s i REASON because AS FAILED text", &c, &err), IDEM_OK);
    assert_true(server_op_operates(&c.wire.op));
    assert_true(idem__bytes_is(c.wire.op.result, "text"));
    assert_true(idem__bytes_is(c.wire.op.subject, "because"));
    assert_int_equal(command("FORGET s i", &c, &err), IDEM_OK);
    assert_true(server_op_operates(&c.wire.op));
}

static void
every_listed_name_is_a_command(void **state)
{
    const char *const *names;
    size_t count = command_names(&names);
    struct command c;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < count; i++) {
        if (command(names[i], &c, &err) != IDEM_OK)
            assert_null(strstr(err.text, "unknown command"));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_stop_at_their_cap),
        cmocka_unit_test(an_error_is_one_line_whatever_its_text),
        cmocka_unit_test(begin_takes_its_options_in_any_order),
        cmocka_unit_test(a_tag_stands_behind_the_places_only),
        cmocka_unit_test(settle_as_needs_the_right_to_operate),
        cmocka_unit_test(every_listed_name_is_a_command),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
