/*
 * command.h - parse a client's arguments into a command. Pure: no I/O, no
 * state.
 */
#ifndef SERVER_COMMAND_H
#define SERVER_COMMAND_H

#include "../core/server.h"
#include "resp.h"

#include "../../wire/wire.h"

/* The kind of a command. The first group are operations of the engine. */
enum command_kind {
    COMMAND_OP,    /* one verb: BEGIN, FINISH ... */
    COMMAND_ISSUE, /* the server makes the tokens */
    COMMAND_SCAN,
    COMMAND_CANCEL,
    COMMAND_AUDIT,
    COMMAND_ROLLBACK, /* ACCEPT */
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
    struct idem__wire_command wire; /* the tag, and the operation or the scan */
    struct idem_bytes words[6];     /* other commands: what follows the name */
    size_t word_count;
};

/*
 * Parse a command of at least one argument. IDEM_ERR_INVALID: err says what is
 * wrong; the tag is set if it could be read. The operation points into
 * `command`, so do not copy the struct.
 */
enum idem_status command_parse(const struct idem__wire_request *in,
                               struct command *command, struct idem_error *err);

/* The word after this one, among SCOPE s ID i COUNT n; empty: none. */
struct idem_bytes command_word(const struct command *command, const char *name);
/* ROLLBACK's REASON; empty: none was given. */
struct idem_bytes command_reason(const struct command *command);

/* Returns the number of commands, and their names in lower case. */
size_t command_names(const char *const **names);

#endif
