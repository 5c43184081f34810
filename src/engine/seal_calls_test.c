/*
 * seal_calls_test.c - lets each system call fail once while a file of keys is
 * read. Then no key may be used, and the reason must name the file.
 */
#include "../../tests/support/failing_calls.h"

#include "../../tests/support/stores.h"
#include "seal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"

struct world {
    char folder[200], file[300];
};

static void
write_file(const struct world *world, const char *text, size_t len)
{
    int fd = open(world->file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, text, len), (ssize_t)len);
    close(fd);
}

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    make_folder(world->folder, sizeof(world->folder));
    snprintf(world->file, sizeof(world->file), "%s/key", world->folder);
    write_file(world, KEY, strlen(KEY));
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    remove_folder(world->folder);
    free(world);
    return 0;
}

static void
a_call_that_fails_is_the_reason(void **state)
{
    struct world *world = *state;
    struct idem__seal *seal;
    struct idem_error err;
    enum idem_status status = IDEM_ERR_MEMORY;
    size_t n;

    for (n = 1; status != IDEM_OK; n++) {
        seal = NULL;
        arm(NULL, n, 0);
        status = idem__seal_read(world->file, &seal, &err);
        disarm();
        if (status == IDEM_OK)
            break;
        assert_null(seal);
        assert_int_equal(err.status, status);
        if (strcmp(fault.fired, "sodium_malloc") == 0 ||
            strcmp(fault.fired, "sodium_init") == 0)
            assert_int_equal(status, IDEM_ERR_MEMORY);
        else
            assert_non_null(strstr(err.text, world->file));
    }
    assert_null(fault.fired);
    assert_true(n > 5);
    idem__seal_close(seal);
}

static void
a_signal_while_the_keys_are_read_is_not_noticed(void **state)
{
    struct world *world = *state;
    struct idem__seal *seal = NULL;

    arm("read", 1, EINTR);
    assert_int_equal(idem__seal_read(world->file, &seal, NULL), IDEM_OK);
    disarm();
    assert_non_null(fault.fired);
    assert_non_null(seal);
    idem__seal_close(seal);
}

/* A part of it could be a key. */
static void
a_file_that_is_too_large_is_refused(void **state)
{
    struct world *world = *state;
    size_t len = 65536;
    char *text = malloc(len);
    struct idem__seal *seal = NULL;
    struct idem_error err;

    memset(text, '\n', len);
    memcpy(text, KEY, strlen(KEY));
    write_file(world, text, len);
    assert_int_equal(idem__seal_read(world->file, &seal, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "over 64 KiB"));
    write_file(world, text, len - 1);
    assert_int_equal(idem__seal_read(world->file, &seal, &err), IDEM_OK);
    idem__seal_close(seal);
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_call_that_fails_is_the_reason),
        T(a_signal_while_the_keys_are_read_is_not_noticed),
        T(a_file_that_is_too_large_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
