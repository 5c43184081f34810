/*
 * wire_command_fuzz.c - fuzzes the parsing of commands. A parsed command is
 * written again, and must then parse to the same command.
 */
#include "wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static bool
same(const struct idem_op *a, const struct idem_op *b)
{
    return a->verb == b->verb && a->fence == b->fence &&
           a->lease_ms == b->lease_ms && a->ttl_ms == b->ttl_ms &&
           a->wait_ms == b->wait_ms && a->outcome == b->outcome &&
           a->mode == b->mode && a->kind == b->kind &&
           a->not_replayable == b->not_replayable && a->lost == b->lost &&
           idem__bytes_equal(a->scope, b->scope) &&
           idem__bytes_equal(a->id, b->id) &&
           idem__bytes_equal(a->subject, b->subject) &&
           idem__bytes_equal(a->result, b->result);
}

/* The words of the input are separated by NUL. */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct idem_bytes words[64];
    struct idem__wire_command command, again;
    struct idem__wire_args args;
    struct idem_error err;
    size_t count = 0;

    for (size_t at = 0; at < len && count < 64;) {
        const uint8_t *end = memchr(data + at, 0, len - at);
        size_t n = end ? (size_t)(end - data) - at : len - at;

        words[count++] = (struct idem_bytes){data + at, n};
        at += n + 1;
    }
    if (count == 0 || idem__wire_parse(words, count, &command, &err) != IDEM_OK)
        return 0;
    idem__wire_write(&command, &args);
    if (args.used > sizeof(args.scratch) || args.count > IDEM__WIRE_ARGS_MAX ||
        idem__wire_parse(args.list, args.count, &again, &err) != IDEM_OK ||
        (!command.scan && !same(&command.op, &again.op)))
        abort();
    return 0;
}
