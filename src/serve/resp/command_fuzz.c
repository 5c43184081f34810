/*
 * command_fuzz.c - parse any bytes as requests, and the requests as commands.
 *
 * A command that is found must be found again in exactly its own bytes, and a
 * prefix of these bytes must ask for more.
 */
#include "command.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_cut(const uint8_t *data, size_t used, size_t cut)
{
    struct idem__wire_request command;
    struct idem_error error = {0};
    uint8_t *copy = malloc(cut + 1);
    size_t needed;

    assert(copy);
    memcpy(copy, data, cut);
    assert(idem__wire_request((struct idem_bytes){copy, cut}, 4096, &command,
                              &needed, &error) == IDEM__WIRE_MORE);
    assert(needed > cut && needed <= used);
    free(copy);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;

    while (at < size) {
        struct idem_bytes rest = {data + at, size - at};
        struct idem__wire_request in, again;
        struct command command;
        struct idem_error error = {0};
        size_t used = 0, used_again = 0;
        enum idem__wire_got result =
            idem__wire_request(rest, 4096, &in, &used, &error);

        if (result == IDEM__WIRE_BAD)
            assert(error.text[0]);
        if (result != IDEM__WIRE_DONE)
            break;
        assert(used > 0 && used <= rest.len);
        rest.len = used;
        assert(idem__wire_request(rest, 4096, &again, &used_again, &error) ==
               IDEM__WIRE_DONE);
        assert(used_again == used && again.count == in.count);
        check_cut(rest.data, used, used - 1);
        check_cut(rest.data, used, used / 2);
        if (in.count > 0 && command_parse(&in, &command, &error) == IDEM_OK)
            assert(!command.wire.tagged || command.wire.tag >= 0);
        at += used;
    }
    return 0;
}
