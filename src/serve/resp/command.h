/*
 * command.h - what a client asks: arguments in, an operation out. Pure.
 */
#ifndef SERVER_COMMAND_H
#define SERVER_COMMAND_H

#include "resp.h"
#include "../core/server.h"

/* What becomes of a command. The first group are operations of the engine. */
enum command_kind {
    COMMAND_OP,     /* one operation: BEGIN, LOCK, UNLOCK */
    COMMAND_LOOKUP, /* among requests, then tokens: FINISH, GET ... */
    COMMAND_SETTLE,
    COMMAND_ISSUE,
    COMMAND_REDEEM,
    COMMAND_SCAN,
    COMMAND_ID,
    COMMAND_PING,
    COMMAND_ECHO,
    COMMAND_AUTH,
    COMMAND_HELLO,
    COMMAND_COMMAND,
    COMMAND_CLIENT,
    COMMAND_SELECT,
    COMMAND_CONFIG,
    COMMAND_INFO,
    COMMAND_RESET,
    COMMAND_QUIT,
};

struct command {
    enum command_kind kind;
    enum server_right right; /* what it takes to ask this */
    bool tagged;
    int64_t tag;
    struct idem_op op;          /* bytes are views into the arguments */
    size_t count;               /* ISSUE, ID, SCAN */
    bool next;                  /* REDEEM: a fresh token too */
    struct idem_filter filter;  /* SCAN */
    struct idem_cursor cursor;  /* SCAN */
    struct idem_bytes words[6]; /* the others: what stands behind the name */
    size_t word_count;
    uint8_t nonce[IDEM_NONCE_LEN];
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
};

/*
 * Read a command of at least one argument. IDEM_ERR_INVALID: err says what is
 * wrong; command->tagged and tag are set whenever the tag could be read.
 * `op` points into `command`: do not copy the struct.
 */
enum idem_status command_parse(const struct resp_command *in,
                               struct command *command, struct idem_error *err);

/* How many commands there are, and their names in lower case. */
size_t command_names(const char *const **names);

#endif
