/*
 * command.c - parse the commands of docs/protocol.md: the engine's commands,
 * with src/wire, and those that Redis clients and operators send.
 */
#include "command.h"

#include <string.h>

/* At most six words of a command are kept; further ones are ignored. */
struct command_row {
    const char *name; /* upper case */
    enum command_kind kind;
    size_t min_words, max_words;
};

/* clang-format off */
static const struct command_row rows[] = {
    {"CANCEL",  COMMAND_CANCEL,  1, 1},
    {"AUDIT",   COMMAND_AUDIT,   0, 6},
    {"ROLLBACK", COMMAND_ROLLBACK, 1, 3},
    {"ID",      COMMAND_ID,      1, 2},
    {"PING",    COMMAND_PING,    0, 1},
    {"ECHO",    COMMAND_ECHO,    1, 1},
    {"AUTH",    COMMAND_AUTH,    1, 2},
    {"HELLO",   COMMAND_HELLO,   0, 6},
    {"COMMAND", COMMAND_COMMAND, 0, 60},
    {"CLIENT",  COMMAND_CLIENT,  1, 60},
    {"SELECT",  COMMAND_SELECT,  1, 1},
    {"CONFIG",  COMMAND_CONFIG,  1, 60},
    {"INFO",    COMMAND_INFO,    0, 60},
    {"RESET",   COMMAND_RESET,   0, 0},
    {"QUIT",    COMMAND_QUIT,    0, 0},
};
/* clang-format on */

#define ROWS (sizeof(rows) / sizeof(rows[0]))

size_t
command_names(const char *const **names)
{
    static const char *const list[] = {
        "begin",  "finish", "release",  "renew",  "settle", "get",
        "forget", "issue",  "redeem",   "lock",   "unlock", "scan",
        "cancel", "audit",  "rollback", "id",     "ping",   "echo",
        "auth",   "hello",  "command",  "client", "select", "config",
        "info",   "reset",  "quit",
    };

    _Static_assert(sizeof(list) / sizeof(list[0]) ==
                       ROWS + IDEM__VERB_COUNT + 1,
                   "one name a command");
    *names = list;
    return sizeof(list) / sizeof(list[0]);
}

/* Set the kind of an engine's command. */
static void
classify(struct command *command)
{
    const struct idem_op *op = &command->wire.op;

    command->kind = command->wire.scan                          ? COMMAND_SCAN
                    : op->verb == IDEM_ISSUE && op->id.len == 0 ? COMMAND_ISSUE
                                                                : COMMAND_OP;
}

static const struct command_row *
find_row(struct idem_bytes name)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (idem__bytes_is(name, rows[i].name))
            return &rows[i];
    }
    return NULL;
}

static enum idem_status
parse_words(const struct command_row *row, const struct idem_bytes *args,
            size_t count, struct command *command, struct idem_error *err)
{
    enum idem_status status;

    command->kind = row->kind;
    memset(&command->wire.op, 0, sizeof(command->wire.op));
    status =
        idem__wire_parse_tag(args, &count, row->min_words,
                             &command->wire.tagged, &command->wire.tag, err);
    if (status != IDEM_OK)
        return status;
    if (count < row->min_words || count > row->max_words)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "wrong number of arguments for '%s' command",
                          row->name);
    command->word_count = count < 6 ? count : 6;
    for (size_t i = 0; i < command->word_count; i++)
        command->words[i] = args[i];
    return IDEM_OK;
}

struct idem_bytes
command_word(const struct command *command, const char *name)
{
    for (size_t i = 0; i + 1 < command->word_count; i += 2) {
        if (idem__bytes_is(command->words[i], name))
            return command->words[i + 1];
    }
    return (struct idem_bytes){NULL, 0};
}

struct idem_bytes
command_reason(const struct command *command)
{
    return command->word_count == 3 &&
                   idem__bytes_is(command->words[1], "REASON")
               ? command->words[2]
               : (struct idem_bytes){NULL, 0};
}

enum idem_status
command_parse(const struct idem__wire_request *in, struct command *command,
              struct idem_error *err)
{
    const struct idem_bytes *args = in->args;
    size_t count = in->count - 1;
    enum idem_status status =
        idem__wire_parse(args, in->count, &command->wire, err);
    const struct command_row *row;

    if (status != IDEM_ERR_UNSUPPORTED) {
        classify(command);
        return status;
    }
    memset(&command->wire, 0, sizeof(command->wire)); /* not an operation */
    row = find_row(args[0]);
    status = row ? parse_words(row, args + 1, count, command, err)
                 : idem__fail(err, IDEM_ERR_INVALID,
                              "unknown command '%.*s': this is idem, not "
                              "Redis; it has BEGIN, FINISH, GET and others "
                              "(docs/protocol.md)",
                              (int)(args[0].len > 64 ? 64 : args[0].len),
                              (const char *)args[0].data);
    /* As in src/wire, the error for a wrong command has the command's tag,
     * too. */
    if (status != IDEM_OK && !command->wire.tagged)
        (void)idem__wire_parse_tag(args + 1, &count, 0, &command->wire.tagged,
                                   &command->wire.tag, NULL);
    return status;
}
