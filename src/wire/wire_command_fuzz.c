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

/* The arguments of the command after it was written. */
static size_t
write_and_read(const struct idem__wire_command *command,
               struct idem_bytes *words, char **wire)
{
    struct idem__wire_plan plan;
    struct idem__wire_request request;
    struct idem_error err;
    size_t most = idem__wire_plan(command, &plan), len, used;
    char *room;

    *wire = malloc(most);
    len =
        (size_t)(idem__wire_put_command(*wire, command, &plan, &room) - *wire);
    if (len > most ||
        idem__wire_request((struct idem_bytes){*wire, len}, SIZE_MAX, &request,
                           &used, &err) != IDEM__WIRE_DONE ||
        used != len)
        return 0;
    memcpy(words, request.args, request.count * sizeof(*words));
    return request.count;
}

/* The words of the input are separated by NUL. */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct idem_bytes words[64];
    struct idem__wire_command command, again;
    struct idem_error err;
    size_t count = 0;
    char *wire;

    for (size_t at = 0; at < len && count < 64;) {
        const uint8_t *end = memchr(data + at, 0, len - at);
        size_t n = end ? (size_t)(end - data) - at : len - at;

        words[count++] = (struct idem_bytes){data + at, n};
        at += n + 1;
    }
    if (count == 0 || idem__wire_parse(words, count, &command, &err) != IDEM_OK)
        return 0;
    count = write_and_read(&command, words, &wire);
    if (count == 0 || idem__wire_parse(words, count, &again, &err) != IDEM_OK ||
        (!command.scan && !same(&command.op, &again.op)))
        abort();
    free(wire);
    return 0;
}
