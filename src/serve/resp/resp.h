/*
 * resp.h - RESP2, the Redis protocol: commands in, replies out.
 *
 * A command is an array of bulk strings, "*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n", or
 * an inline line of words, "PING hi\r\n" (a word in double quotes may hold
 * spaces). The parser reads in place and keeps no state: it is called again
 * with more bytes until a command is whole.
 */
#ifndef SERVER_RESP_H
#define SERVER_RESP_H

#include "../../base/buf.h"

#define RESP_ARGS_MAX 64
#define RESP_INLINE_MAX 16384

enum resp_result {
    RESP_COMMAND, /* whole; no arguments: an empty one, to be ignored */
    RESP_MORE,    /* call again with more bytes */
    RESP_WRONG,   /* answer with the error and close */
};

struct resp_command {
    size_t count;
    struct idem_bytes args[RESP_ARGS_MAX]; /* views into the input */
};

/*
 * Read one command of at most `max` bytes from the start of `in`.
 *
 * RESP_COMMAND: *used bytes belong to it. RESP_MORE: it will have at least
 * *used bytes in all. RESP_WRONG: *error says why.
 */
enum resp_result resp_parse(struct idem_bytes in, size_t max,
                            struct resp_command *command, size_t *used,
                            const char **error);

/* ---- replies --------------------------------------------------------- */

/* Where a reply grows; `failed` is set when it grew past the cap, or memory
 * ran out, and what follows is left out. */
struct resp_out {
    struct idem_buf buf;
    bool failed;
};

void resp_add_raw(struct resp_out *out, const void *bytes, size_t len);
void resp_add_array(struct resp_out *out, size_t count);
void resp_add_number(struct resp_out *out, int64_t number);
void resp_add_bytes(struct resp_out *out, struct idem_bytes bytes);
void resp_add_length(struct resp_out *out, size_t len);     /* of such bytes */
void resp_add_text(struct resp_out *out, const char *text); /* as a bulk */
void resp_add_null(struct resp_out *out);
void resp_add_simple(struct resp_out *out, const char *text); /* +OK */
/* -WORD text; what could break the line is replaced. */
void resp_add_error(struct resp_out *out, const char *word, const char *text);

/* Decimal digits of a number, without an end; returns how many. */
#define RESP_DIGITS_MAX 20
size_t resp_digits(int64_t number, char *out);

/* A whole decimal number, nothing else. */
bool resp_read_number(struct idem_bytes text, int64_t *number);

#endif
