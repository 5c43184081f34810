/*
 * command.c - the commands of docs/protocol.md.
 *
 * A command is a name, a fixed number of places, then options in any order,
 * then perhaps TAG n. One table lists the commands with the reader of their
 * places and the options that each takes.
 */
#include "command.h"

#include <string.h>

/* Options, as bits. */
enum {
    FP = 1 << 0,
    LEASE = 1 << 1,
    TTL = 1 << 2,
    WAIT = 1 << 3,
    MODE = 1 << 4,
    TOKEN = 1 << 5,
    NONCE = 1 << 6,
    SUBJECT = 1 << 7,
    KIND = 1 << 8,
    NOREPLAY = 1 << 9,
    REASON = 1 << 10,
    AS = 1 << 11,
    COUNT = 1 << 12,
    NEXT = 1 << 13,
    TYPE = 1 << 14,
    SCOPE = 1 << 15,
    STATE = 1 << 16,
    DOUBT = 1 << 17,
    ANY_WORDS = 1 << 30, /* no options: further words are kept */
};

typedef enum idem_status read_fn(const struct idem_bytes *args,
                                 struct command *command,
                                 struct idem_error *err);

struct row {
    const char *name; /* upper case, at most 8 letters */
    enum command_kind kind;
    enum idem_verb verb;
    enum server_right right;
    size_t places, max_words; /* behind the name */
    read_fn *read;
    unsigned options;
};

static enum idem_status
wrong(struct idem_error *err, const char *what)
{
    return idem__fail(err, IDEM_ERR_INVALID, "%s", what);
}

/* ---- values ---------------------------------------------------------- */

static enum idem_status
read_ms(struct idem_bytes text, const char *what, int64_t *ms,
        struct idem_error *err)
{
    if (resp_read_number(text, ms) && *ms >= 0)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s is a number of milliseconds, 0 for the default",
                      what);
}

static enum idem_status
read_fence(struct idem_bytes text, uint64_t *fence, struct idem_error *err)
{
    int64_t number;

    if (!resp_read_number(text, &number) || number < 1 ||
        (uint64_t)number > IDEM_FENCE_MAX)
        return wrong(err, "the fence is the number that the start gave");
    *fence = (uint64_t)number;
    return IDEM_OK;
}

static int
hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool
read_hex(struct idem_bytes text, uint8_t *out, size_t len)
{
    const uint8_t *digits = text.data;

    if (text.len != 2 * len)
        return false;
    for (size_t i = 0; i < len; i++) {
        int high = hex_digit(digits[2 * i]), low = hex_digit(digits[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static enum idem_status
read_outcome(struct idem_bytes word, enum idem_state *outcome,
             struct idem_error *err)
{
    if (idem__state_parse(word, outcome) &&
        (*outcome == IDEM_STATE_SUCCEEDED || *outcome == IDEM_STATE_FAILED))
        return IDEM_OK;
    return wrong(err, "the outcome is SUCCEEDED or FAILED");
}

static enum idem_status
read_count(struct idem_bytes text, size_t *count, struct idem_error *err)
{
    int64_t number;

    if (!resp_read_number(text, &number) || number < 1 ||
        number > SERVER_COUNT_MAX)
        return idem__fail(err, IDEM_ERR_INVALID, "the count is 1 to %d",
                          SERVER_COUNT_MAX);
    *count = (size_t)number;
    return IDEM_OK;
}

/* ---- places: args[0] is the first behind the name ---------------------- */

static enum idem_status
read_key(const struct idem_bytes *args, struct command *command,
         struct idem_error *err)
{
    (void)err;
    command->op.scope = args[0];
    command->op.id = args[1];
    return IDEM_OK;
}

static enum idem_status
read_held(const struct idem_bytes *args, struct command *command,
          struct idem_error *err)
{
    read_key(args, command, err);
    return read_fence(args[2], &command->op.fence, err);
}

static enum idem_status
read_renew(const struct idem_bytes *args, struct command *command,
           struct idem_error *err)
{
    enum idem_status status = read_held(args, command, err);

    if (status == IDEM_OK)
        status = read_ms(args[3], "the lease", &command->op.lease_ms, err);
    return status;
}

static enum idem_status
read_finish(const struct idem_bytes *args, struct command *command,
            struct idem_error *err)
{
    enum idem_status status = read_held(args, command, err);

    if (status == IDEM_OK)
        status = read_outcome(args[3], &command->op.outcome, err);
    command->op.result = args[4];
    return status;
}

static enum idem_status
read_issue(const struct idem_bytes *args, struct command *command,
           struct idem_error *err)
{
    (void)err;
    command->op.scope = args[0];
    command->count = 1;
    return IDEM_OK;
}

static enum idem_status
read_redeem(const struct idem_bytes *args, struct command *command,
            struct idem_error *err)
{
    (void)err;
    command->op.id = args[0];
    command->op.scope = args[1];
    return IDEM_OK;
}

static enum idem_status
read_lock(const struct idem_bytes *args, struct command *command,
          struct idem_error *err)
{
    command->op.scope = idem_text(SERVER_LOCK_SCOPE);
    command->op.id = args[0];
    command->op.subject = args[1];
    return read_ms(args[2], "the lease", &command->op.lease_ms, err);
}

static enum idem_status
read_unlock(const struct idem_bytes *args, struct command *command,
            struct idem_error *err)
{
    command->op.scope = idem_text(SERVER_LOCK_SCOPE);
    command->op.id = args[0];
    return read_fence(args[1], &command->op.fence, err);
}

static enum idem_status
read_scan(const struct idem_bytes *args, struct command *command,
          struct idem_error *err)
{
    if (args[0].len == 0 || args[0].len >= sizeof(command->cursor.text) ||
        memchr(args[0].data, '\0', args[0].len))
        return wrong(err, "the cursor is 0, or what the last SCAN gave");
    memcpy(command->cursor.text, args[0].data, args[0].len);
    command->cursor.text[args[0].len] = '\0';
    command->count = 100;
    return IDEM_OK;
}

static enum idem_status
read_words(const struct idem_bytes *args, struct command *command,
           struct idem_error *err)
{
    (void)args;
    (void)command;
    (void)err;
    return IDEM_OK;
}

/* ---- the table ------------------------------------------------------- */

#define BEGIN_OPTIONS (FP | LEASE | TTL | WAIT | MODE | TOKEN | NONCE | SUBJECT)
#define FINISH_OPTIONS (TTL | KIND | NOREPLAY)
#define SETTLE_OPTIONS (REASON | AS | TTL | KIND)
#define SCAN_OPTIONS (TYPE | SCOPE | STATE | DOUBT | COUNT)

/* clang-format off */
static const struct row rows[] = {
    {"BEGIN",   COMMAND_OP,     IDEM_BEGIN,   SERVER_USE, 2, 0, read_key,    BEGIN_OPTIONS},
    {"FINISH",  COMMAND_LOOKUP, IDEM_FINISH,  SERVER_USE, 5, 0, read_finish, FINISH_OPTIONS},
    {"RELEASE", COMMAND_LOOKUP, IDEM_RELEASE, SERVER_USE, 3, 0, read_held,   0},
    {"RENEW",   COMMAND_LOOKUP, IDEM_RENEW,   SERVER_USE, 4, 0, read_renew,  0},
    {"SETTLE",  COMMAND_SETTLE, IDEM_SETTLE,  SERVER_USE, 2, 0, read_key,    SETTLE_OPTIONS},
    {"GET",     COMMAND_LOOKUP, IDEM_GET,     SERVER_USE, 2, 0, read_key,    0},
    {"FORGET",  COMMAND_LOOKUP, IDEM_FORGET,  SERVER_OPERATE, 2, 0, read_key, 0},
    {"ISSUE",   COMMAND_ISSUE,  IDEM_ISSUE,   SERVER_USE, 1, 0, read_issue,  TTL | COUNT},
    {"REDEEM",  COMMAND_REDEEM, IDEM_REDEEM,  SERVER_USE, 2, 0, read_redeem, NEXT | NONCE},
    {"LOCK",    COMMAND_OP,     IDEM_LOCK,    SERVER_USE, 3, 0, read_lock,   WAIT},
    {"UNLOCK",  COMMAND_OP,     IDEM_UNLOCK,  SERVER_USE, 2, 0, read_unlock, 0},
    {"SCAN",    COMMAND_SCAN,   0, SERVER_OPERATE, 1, 0, read_scan,  SCAN_OPTIONS},
    {"ID",      COMMAND_ID,     0, SERVER_USE,     1, 2, read_words, ANY_WORDS},
    {"PING",    COMMAND_PING,   0, SERVER_USE,     0, 1, read_words, ANY_WORDS},
    {"ECHO",    COMMAND_ECHO,   0, SERVER_USE,     1, 1, read_words, ANY_WORDS},
    {"AUTH",    COMMAND_AUTH,   0, SERVER_USE,     1, 2, read_words, ANY_WORDS},
    {"HELLO",   COMMAND_HELLO,  0, SERVER_USE,     0, 6, read_words, ANY_WORDS},
    {"COMMAND", COMMAND_COMMAND, 0, SERVER_USE,    0, 60, read_words, ANY_WORDS},
    {"CLIENT",  COMMAND_CLIENT, 0, SERVER_USE,     1, 60, read_words, ANY_WORDS},
    {"SELECT",  COMMAND_SELECT, 0, SERVER_USE,     1, 1, read_words, ANY_WORDS},
    {"CONFIG",  COMMAND_CONFIG, 0, SERVER_USE,     1, 60, read_words, ANY_WORDS},
    {"INFO",    COMMAND_INFO,   0, SERVER_USE,     0, 60, read_words, ANY_WORDS},
    {"RESET",   COMMAND_RESET,  0, SERVER_USE,     0, 0, read_words, ANY_WORDS},
    {"QUIT",    COMMAND_QUIT,   0, SERVER_USE,     0, 0, read_words, ANY_WORDS},
};
/* clang-format on */

#define ROWS (sizeof(rows) / sizeof(rows[0]))

size_t
command_names(const char *const **names)
{
    static const char *const list[] = {
        "begin",  "finish", "release", "renew", "settle", "get",
        "forget", "issue",  "redeem",  "lock",  "unlock", "scan",
        "id",     "ping",   "echo",    "auth",  "hello",  "command",
        "client", "select", "config",  "info",  "reset",  "quit",
    };

    _Static_assert(sizeof(list) / sizeof(list[0]) == ROWS, "one name a row");
    *names = list;
    return ROWS;
}

/* Up to eight letters as one number, in upper case; 0: not a name. */
static uint64_t
pack(const char *word, size_t len)
{
    uint64_t packed = 0;

    if (len > 8)
        return 0;
    for (size_t i = 0; i < len; i++)
        packed = packed << 8 | (uint8_t)(word[i] & ~0x20);
    return packed;
}

static const struct row *
find_row(struct idem_bytes name)
{
    uint64_t wanted = pack(name.data, name.len);

    for (size_t i = 0; i < ROWS; i++) {
        if (pack(rows[i].name, strlen(rows[i].name)) == wanted &&
            idem__bytes_is(name, rows[i].name))
            return &rows[i];
    }
    return NULL;
}

/* ---- options --------------------------------------------------------- */

struct option {
    const char *name;
    unsigned bit;
    size_t values;
};

static const struct option known[] = {
    {"LEASE", LEASE, 1},       {"TTL", TTL, 1},
    {"WAIT", WAIT, 1},         {"FP", FP, 1},
    {"STRICT", MODE, 0},       {"LOOSE", MODE, 0},
    {"NONCE", NONCE, 1},       {"TOKEN", TOKEN, 0},
    {"SUBJECT", SUBJECT, 1},   {"KIND", KIND, 1},
    {"REASON", REASON, 1},     {"AS", AS, 2},
    {"COUNT", COUNT, 1},       {"NEXT", NEXT, 0},
    {"TYPE", TYPE, 1},         {"SCOPE", SCOPE, 1},
    {"STATE", STATE, 1},       {"DOUBT", DOUBT, 0},
    {"NOREPLAY", NOREPLAY, 0},
};

static enum idem_status
set_begin_option(const struct option *option, const struct idem_bytes *values,
                 struct command *command, struct idem_error *err)
{
    struct idem_op *op = &command->op;

    switch (option->bit) {
    case FP:
        if (!read_hex(values[0], command->fingerprint, IDEM_FINGERPRINT_LEN))
            return wrong(err, "FP has 64 hex digits");
        op->fingerprint = command->fingerprint;
        break;
    case NONCE:
        if (!read_hex(values[0], command->nonce, IDEM_NONCE_LEN))
            return wrong(err, "NONCE has 16 hex digits");
        op->nonce = command->nonce;
        break;
    case LEASE:
        return read_ms(values[0], "LEASE", &op->lease_ms, err);
    case TTL:
        return read_ms(values[0], "TTL", &op->ttl_ms, err);
    case WAIT:
        return read_ms(values[0], "WAIT", &op->wait_ms, err);
    case MODE:
        op->mode = option->name[0] == 'L' ? IDEM_LOOSE : IDEM_STRICT;
        break;
    case TOKEN:
        op->type = IDEM_TYPE_TOKEN;
        break;
    case SUBJECT:
        op->subject = values[0];
        break;
    }
    return IDEM_OK;
}

static enum idem_status
set_other_option(const struct option *option, const struct idem_bytes *values,
                 struct command *command, struct idem_error *err)
{
    struct idem_op *op = &command->op;

    switch (option->bit) {
    case KIND:
        return idem__kind_parse(values[0], &op->kind)
                   ? IDEM_OK
                   : wrong(err, "KIND is raw, http or exec");
    case NOREPLAY:
        op->not_replayable = true;
        break;
    case REASON:
        op->subject = values[0];
        break;
    case AS:
        command->right = SERVER_OPERATE;
        op->result = values[1];
        return read_outcome(values[0], &op->outcome, err);
    case COUNT:
        return read_count(values[0], &command->count, err);
    case NEXT:
        command->next = true;
        break;
    case TYPE:
        return idem__type_parse(values[0], &command->filter.type)
                   ? IDEM_OK
                   : wrong(err, "TYPE is request, token, lock or worker");
    case SCOPE:
        if (values[0].len == 0)
            return wrong(err, "SCOPE is empty: leave it out to see all");
        command->filter.scope = values[0];
        break;
    case STATE:
        return idem__state_parse(values[0], &command->filter.state)
                   ? IDEM_OK
                   : wrong(err, "STATE is issued, executing, succeeded, "
                                "failed or free");
    case DOUBT:
        command->filter.doubt = true;
        break;
    }
    return IDEM_OK;
}

static enum idem_status
read_option(const struct row *row, const struct idem_bytes *args, size_t count,
            unsigned *seen, size_t *taken, struct command *command,
            struct idem_error *err)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const struct option *option = &known[i];

        if (!(option->bit & row->options) ||
            !idem__bytes_is(args[0], option->name))
            continue;
        if (*seen & option->bit)
            return idem__fail(err, IDEM_ERR_INVALID, "%s is given twice",
                              option->name);
        if (count < 1 + option->values)
            return idem__fail(err, IDEM_ERR_INVALID, "%s lacks its value",
                              option->name);
        *seen |= option->bit;
        *taken = 1 + option->values;
        return option->bit < KIND
                   ? set_begin_option(option, args + 1, command, err)
                   : set_other_option(option, args + 1, command, err);
    }
    return idem__fail(err, IDEM_ERR_INVALID,
                      "syntax error: %s has no option \"%.*s\"", row->name,
                      (int)(args[0].len > 40 ? 40 : args[0].len),
                      (const char *)args[0].data);
}

/* TAG n behind so many places; the last two arguments. */
static enum idem_status
read_tag(size_t places, const struct idem_bytes *args, size_t *count,
         struct command *command, struct idem_error *err)
{
    int64_t tag;

    if (*count < places + 2 || !idem__bytes_is(args[*count - 2], "TAG"))
        return IDEM_OK;
    if (!resp_read_number(args[*count - 1], &tag) || tag < 0 ||
        tag > (int64_t)IDEM_FENCE_MAX)
        return wrong(err, "TAG is a number from 0 to 2^53 - 1");
    command->tagged = true;
    command->tag = tag;
    *count -= 2;
    return IDEM_OK;
}

static enum idem_status
read_options(const struct row *row, const struct idem_bytes *args, size_t count,
             struct command *command, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    unsigned seen = 0;
    size_t taken = 0;

    for (size_t i = 0; i < count && status == IDEM_OK; i += taken)
        status =
            read_option(row, args + i, count - i, &seen, &taken, command, err);
    return status;
}

/* What an operator says about a settled record: without an outcome of its own
 * the reason is the result, otherwise the record's label. */
static void
place_reason(struct command *command)
{
    struct idem_op *op = &command->op;

    if (command->kind == COMMAND_SETTLE && op->outcome == 0) {
        op->result = op->subject;
        op->subject = (struct idem_bytes){NULL, 0};
    }
}

static enum idem_status
parse(const struct resp_command *in, struct command *command,
      struct idem_error *err)
{
    const struct row *row = find_row(in->args[0]);
    const struct idem_bytes *args = in->args + 1;
    size_t count = in->count - 1;
    enum idem_status status;

    if (!row) {
        return idem__fail(err, IDEM_ERR_INVALID, "unknown command '%.*s'",
                          (int)(in->args[0].len > 64 ? 64 : in->args[0].len),
                          (const char *)in->args[0].data);
    }
    memset(&command->op, 0, sizeof(command->op));
    command->kind = row->kind;
    command->right = row->right;
    command->next = false;
    command->count = 0;
    command->word_count = 0;
    command->op.verb = row->verb;
    if (row->kind == COMMAND_SCAN)
        memset(&command->filter, 0, sizeof(command->filter));
    status = read_tag(row->places, args, &count, command, err);
    if (status != IDEM_OK)
        return status;
    if (count < row->places || (row->options == 0 && count > row->places) ||
        ((row->options & ANY_WORDS) && count > row->max_words))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "wrong number of arguments for '%s' command",
                          row->name);
    if (row->options & ANY_WORDS) {
        command->word_count = count < 6 ? count : 6;
        for (size_t i = 0; i < command->word_count; i++)
            command->words[i] = args[i];
        return IDEM_OK;
    }
    status = row->read(args, command, err);
    if (status == IDEM_OK && count > row->places)
        status = read_options(row, args + row->places, count - row->places,
                              command, err);
    place_reason(command);
    return status;
}

/* A command that cannot be read does nothing, so its tag may stand anywhere:
 * who tells answers by their tags gets one. */
enum idem_status
command_parse(const struct resp_command *in, struct command *command,
              struct idem_error *err)
{
    size_t count = in->count - 1;
    enum idem_status status;

    command->tagged = false;
    status = parse(in, command, err);
    if (status != IDEM_OK && !command->tagged)
        (void)read_tag(0, in->args + 1, &count, command, NULL);
    return status;
}
