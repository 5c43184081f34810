/*
 * seal_test.c - tests the sealing of one record, and the file of keys.
 */
#include "seal.h"

#include "../../tests/support/stores.h"

#include <fcntl.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define KEY_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define KEY_B "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"

static struct idem_arena arena;

static struct idem__seal *
keys(const char *text)
{
    struct idem__seal *seal = NULL;
    struct idem_error err = {0};

    if (idem__seal_parse("test", idem_text(text), &seal, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    return seal;
}

static struct idem_record
plain(const char *id, uint8_t key[IDEM_KEY_LEN])
{
    struct idem_record record = {.type = IDEM_TYPE_REQUEST,
                                 .state = IDEM_STATE_SUCCEEDED,
                                 .flags = IDEM_FLAG_SETTLED,
                                 .scope = idem_text("shop"),
                                 .id = idem_text(id),
                                 .subject = idem_text("ann"),
                                 .result = idem_text("paid 7 euro")};

    idem__key(record.type, record.scope, record.id, key);
    return record;
}

static void
assert_is(struct idem_bytes bytes, const char *text)
{
    assert_int_equal(bytes.len, strlen(text));
    assert_memory_equal(bytes.data, text, bytes.len);
}

static void
what_is_sealed_opens_as_it_was(void **state)
{
    struct idem__seal *seal = keys("# ours\n\n  " KEY_A " \r\n");
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record before = plain("order-7", key), sealed, again;

    (void)state;
    assert_true(idem__seal_record(seal, key, &before, &arena, &sealed));
    assert_int_equal(sealed.flags, IDEM_FLAG_SETTLED | IDEM__SEALED);
    assert_int_equal(sealed.result.len, before.result.len + IDEM__SEAL_LEN);
    assert_int_equal(sealed.subject.len, before.subject.len + IDEM__SEAL_LEN);
    assert_null(
        memmem(sealed.result.data, sealed.result.len, "paid", strlen("paid")));
    assert_null(memmem(sealed.subject.data, sealed.subject.len, "ann", 3));
    again = sealed;
    assert_int_equal(idem__seal_open(seal, key, &again, &arena, NULL), IDEM_OK);
    assert_int_equal(again.flags, IDEM_FLAG_SETTLED);
    assert_is(again.result, "paid 7 euro");
    assert_is(again.subject, "ann");
    idem__seal_close(seal);
}

static void
an_empty_field_is_not_sealed(void **state)
{
    struct idem__seal *seal = keys(KEY_A);
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record before = plain("order-7", key), sealed;

    (void)state;
    before.result = before.subject = (struct idem_bytes){NULL, 0};
    assert_true(idem__seal_record(seal, key, &before, &arena, &sealed));
    assert_int_equal(sealed.flags, IDEM_FLAG_SETTLED);
    assert_int_equal(sealed.result.len, 0);
    idem__seal_close(seal);
}

static void
two_seals_of_the_same_bytes_differ(void **state)
{
    struct idem__seal *seal = keys(KEY_A);
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record before = plain("order-7", key), a, b;

    (void)state;
    assert_true(idem__seal_record(seal, key, &before, &arena, &a));
    assert_true(idem__seal_record(seal, key, &before, &arena, &b));
    assert_memory_not_equal(a.result.data, b.result.data, a.result.len);
    idem__seal_close(seal);
}

static void
all_keys_open_and_the_first_one_seals(void **state)
{
    struct idem__seal *old = keys(KEY_A), *both = keys(KEY_B "\n" KEY_A);
    struct idem__seal *new = keys(KEY_B);
    char first[IDEM__SEAL_ID_TEXT], second[IDEM__SEAL_ID_TEXT];
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record before = plain("order-7", key), by_old, by_both, opened;
    struct idem_error err = {0};

    (void)state;
    assert_int_equal(idem__seal_about(old, first), 1);
    assert_int_equal(idem__seal_about(both, second), 2);
    assert_string_not_equal(first, second);
    assert_true(idem__seal_record(old, key, &before, &arena, &by_old));
    assert_true(idem__seal_record(both, key, &before, &arena, &by_both));

    opened = by_old;
    assert_int_equal(idem__seal_open(both, key, &opened, &arena, NULL),
                     IDEM_OK);
    assert_is(opened.result, "paid 7 euro");
    opened = by_both;
    assert_int_equal(idem__seal_open(new, key, &opened, &arena, NULL), IDEM_OK);
    opened = by_old;
    assert_int_equal(idem__seal_open(new, key, &opened, &arena, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, first)); /* the missing key's id */
    assert_int_equal(opened.result.len, 0);
    assert_int_equal(opened.flags & IDEM__SEALED, 0);
    opened = by_old;
    assert_int_equal(idem__seal_open(NULL, key, &opened, &arena, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, first));
    idem__seal_close(old);
    idem__seal_close(both);
    idem__seal_close(new);
}

/* Any change of any byte, and any other length, must be refused. */
static void
what_was_changed_does_not_open(void **state)
{
    struct idem__seal *seal = keys(KEY_A);
    uint8_t key[IDEM_KEY_LEN], bytes[200];
    struct idem_record before = plain("order-7", key), sealed, opened;
    struct idem_error err;

    (void)state;
    assert_true(idem__seal_record(seal, key, &before, &arena, &sealed));
    for (size_t bit = 0; bit < sealed.result.len * 8; bit++) {
        memcpy(bytes, sealed.result.data, sealed.result.len);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        opened = sealed;
        opened.result.data = bytes;
        assert_int_not_equal(idem__seal_open(seal, key, &opened, &arena, &err),
                             IDEM_OK);
        assert_int_equal(opened.result.len, 0);
        assert_int_equal(opened.subject.len, 0);
    }
    for (size_t len = 0; len < sealed.result.len; len++) {
        opened = sealed;
        opened.result.len = len;
        assert_int_not_equal(idem__seal_open(seal, key, &opened, &arena, &err),
                             IDEM_OK);
    }
    idem__seal_close(seal);
}

static void
what_was_copied_from_elsewhere_does_not_open(void **state)
{
    struct idem__seal *seal = keys(KEY_A);
    uint8_t key[IDEM_KEY_LEN], other_key[IDEM_KEY_LEN];
    struct idem_record a = plain("order-7", key), sealed;
    struct idem_record b = plain("order-8", other_key), other, mixed;
    struct idem_error err = {0};

    (void)state;
    assert_true(idem__seal_record(seal, key, &a, &arena, &sealed));
    assert_true(idem__seal_record(seal, other_key, &b, &arena, &other));
    mixed = other; /* the result of another record */
    mixed.result = sealed.result;
    assert_int_equal(idem__seal_open(seal, other_key, &mixed, &arena, &err),
                     IDEM_ERR_CORRUPT);
    assert_non_null(strstr(err.text, "copied from another record"));
    mixed = sealed; /* the subject as the result */
    mixed.result = sealed.subject;
    assert_int_equal(idem__seal_open(seal, key, &mixed, &arena, &err),
                     IDEM_ERR_CORRUPT);
    mixed = sealed; /* the whole record under another key */
    assert_int_equal(idem__seal_open(seal, other_key, &mixed, &arena, &err),
                     IDEM_ERR_CORRUPT);
    idem__seal_close(seal);
}

static void
assert_refused(const char *text, const char *why)
{
    struct idem__seal *seal = NULL;
    struct idem_error err = {0};

    assert_int_equal(idem__seal_parse("keys", idem_text(text), &seal, &err),
                     IDEM_ERR_INVALID);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
    assert_null(strstr(err.text, "0123456789")); /* not the contents */
    assert_null(seal);
}

static void
a_file_that_is_no_list_of_keys_is_refused(void **state)
{
    char many[17 * 66 + 1] = "";

    (void)state;
    assert_refused("", "there is no key in it");
    assert_refused("# none\n", "there is no key in it");
    assert_refused(KEY_A "\n0123456789abc\n", "line 2: a key is 64 hex digits");
    assert_refused(KEY_A "00", "line 1: a key is 64 hex digits");
    assert_refused(KEY_A "\n" KEY_A, "line 2: this key is in the file twice");
    for (int i = 0; i < 17; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), "%064d\n",
                 i);
    assert_refused(many, "line 17: there are more than 16 keys");
}

static enum idem_status
read_file(const char *path, const char *text, mode_t mode,
          struct idem_error *err)
{
    struct idem__seal *seal = NULL;
    enum idem_status status;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    status = idem__seal_read(path, &seal, err);
    idem__seal_close(seal);
    return status;
}

static void
a_file_that_others_may_read_is_refused(void **state)
{
    char folder[256], path[300];
    struct idem_error err = {0};

    (void)state;
    make_folder(folder, sizeof(folder));
    snprintf(path, sizeof(path), "%s/key", folder);
    assert_int_equal(read_file(path, KEY_A "\n", 0600, &err), IDEM_OK);
    assert_int_equal(read_file(path, KEY_A "\n", 0440, &err), IDEM_OK);
    assert_int_equal(read_file(path, KEY_A "\n", 0604, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "chmod go="));
    assert_int_equal(read_file(path, KEY_A "\n", 0620, &err), IDEM_ERR_INVALID);
    assert_int_equal(idem__seal_read(folder, NULL, &err), IDEM_ERR_INVALID);
    remove_folder(folder);
    assert_int_equal(idem__seal_read(path, NULL, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "No such file"));
}

static void
a_key_in_the_place_of_a_file_is_not_shown(void **state)
{
    struct idem_error err = {0};

    (void)state;
    assert_int_equal(idem__seal_read(KEY_A, NULL, &err), IDEM_ERR_INVALID);
    assert_null(strstr(err.text, "0123456789"));
    assert_non_null(strstr(err.text, "not the key itself"));
}

static void
the_first_line_that_is_wrong_is_told(void **state)
{
    struct idem__seal *seal = NULL;
    struct idem_error err;

    (void)state;
    assert_int_equal(idem__seal_parse("test",
                                      idem_text(KEY_A "\nno key\n" KEY_A
                                                      "\nnone\n" KEY_B "\n"),
                                      &seal, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "line 2: "));
    assert_null(seal);
}

static void
spaces_and_tabs_around_a_key_do_not_matter(void **state)
{
    struct idem__seal *seal = keys("\t \t" KEY_A "\t\n \t \n\t# one\n");
    struct idem__seal *same = keys(KEY_A);
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record before = plain("order-7", key), sealed;

    (void)state;
    assert_true(idem__seal_record(seal, key, &before, &arena, &sealed));
    assert_int_equal(idem__seal_open(same, key, &sealed, &arena, NULL),
                     IDEM_OK);
    assert_is(sealed.result, "paid 7 euro");
    idem__seal_close(seal);
    idem__seal_close(same);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sealed_opens_as_it_was),
        cmocka_unit_test(an_empty_field_is_not_sealed),
        cmocka_unit_test(two_seals_of_the_same_bytes_differ),
        cmocka_unit_test(all_keys_open_and_the_first_one_seals),
        cmocka_unit_test(what_was_changed_does_not_open),
        cmocka_unit_test(what_was_copied_from_elsewhere_does_not_open),
        cmocka_unit_test(a_file_that_is_no_list_of_keys_is_refused),
        cmocka_unit_test(a_file_that_others_may_read_is_refused),
        cmocka_unit_test(a_key_in_the_place_of_a_file_is_not_shown),
        cmocka_unit_test(the_first_line_that_is_wrong_is_told),
        cmocka_unit_test(spaces_and_tabs_around_a_key_do_not_matter),
    };
    int failed;

    if (sodium_init() < 0)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    idem_arena_clear(&arena);
    return failed;
}
