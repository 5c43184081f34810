/*
 * reply.h - read what the engine answers on its socket (docs/protocol.md).
 *
 * Only flat answers are read: an array of strings, integers and nulls, or a
 * single line. That is all the gateway ever asks for. Plain C without
 * allocation: the nginx module and the tests compile the same file.
 */
#ifndef IDEM__GATEWAY_REPLY_H
#define IDEM__GATEWAY_REPLY_H

#include <idem/record.h>

#include <string.h>

#define GATEWAY_VALUES_MAX 40

/* A null has no data and no number. */
struct gateway_value {
    struct idem_bytes bytes; /* also for an integer: its digits */
    int64_t number;
    bool is_number;
};

/* One answer; values[0] is the verdict. Bytes are views into what was read.
 * An error has the values "error", its word, its text. */
struct gateway_reply {
    bool tagged;
    uint64_t tag;
    size_t count;
    struct gateway_value values[GATEWAY_VALUES_MAX];
};

enum gateway_read {
    GATEWAY_READ_DONE, /* *used bytes were one answer */
    GATEWAY_READ_MORE, /* it does not end yet */
    GATEWAY_READ_BAD,  /* this is no answer of ours: close the connection */
};

/* No string may be longer than `longest`. */
enum gateway_read gateway_reply_read(struct idem_bytes in, size_t longest,
                                     struct gateway_reply *reply, size_t *used);

/* Is values[i] this word? False if there is no such value. */
static inline bool
gateway_reply_is(const struct gateway_reply *reply, size_t i, const char *word)
{
    size_t len = strlen(word);

    return i < reply->count && !reply->values[i].is_number &&
           reply->values[i].bytes.len == len &&
           memcmp(reply->values[i].bytes.data, word, len) == 0;
}

#endif
