/*
 * resp_fuzz.c - any bytes through the RESP parser and the command reader.
 *
 * A command that is found must be found again from exactly its own bytes, and
 * the same bytes cut short must ask for more.
 */
#include "command.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_cut(const uint8_t *data, size_t used, size_t cut)
{
    struct resp_command command;
    const char *error = NULL;
    uint8_t *copy = malloc(cut + 1);
    size_t needed;

    assert(copy);
    memcpy(copy, data, cut);
    assert(resp_parse((struct idem_bytes){copy, cut}, 4096, &command, &needed,
                      &error) == RESP_MORE);
    assert(needed > cut && needed <= used);
    free(copy);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;

    while (at < size) {
        struct idem_bytes rest = {data + at, size - at};
        struct resp_command in, again;
        struct command command;
        struct idem_error err;
        const char *error = NULL;
        size_t used = 0, used_again = 0;
        enum resp_result result = resp_parse(rest, 4096, &in, &used, &error);

        if (result == RESP_WRONG)
            assert(error);
        if (result != RESP_COMMAND)
            break;
        assert(used > 0 && used <= rest.len);
        rest.len = used;
        assert(resp_parse(rest, 4096, &again, &used_again, &error) ==
               RESP_COMMAND);
        assert(used_again == used && again.count == in.count);
        check_cut(rest.data, used, used - 1);
        check_cut(rest.data, used, used / 2);
        if (in.count > 0 && command_parse(&in, &command, &err) == IDEM_OK)
            assert(!command.wire.tagged || command.wire.tag >= 0);
        at += used;
    }
    return 0;
}
