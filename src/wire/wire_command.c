/*
 * wire_command.c - reads and writes operations as commands.
 *
 * A command is a name, its places, then options in any order, then perhaps
 * TAG n. A place or option is a name, a unit and a field of struct
 * idem__wire_command; read_field and add_field know the units. To add an
 * option, add a row to `options` and its bit to the commands that take it.
 */
#include "wire.h"

#include "../base/hex.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum unit {
    UNIT_MS,
    UNIT_FENCE,
    UNIT_COUNT,
    UNIT_BYTES, /* absent when empty */
    UNIT_NOTE,  /* an empty note is not the same as none */
    UNIT_NONCE,
    UNIT_FINGERPRINT,
    UNIT_TYPE,
    UNIT_STATE,
    UNIT_KIND,
    UNIT_OUTCOME,
    UNIT_STRICT,
    UNIT_LOOSE,
    UNIT_FLAG,
    UNIT_TOKEN, /* short for TYPE token */
    UNIT_AS,    /* outcome and result of SETTLE */
    UNIT_CURSOR,
};

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
    ID = 1 << 16,
    NOTE = 1 << 17,
    FULL = 1 << 18,
    LISTED_TYPE = 1 << 19,
    LISTED_SCOPE = 1 << 20,
    STATE = 1 << 21,
    DOUBT = 1 << 22,
    BEFORE = 1 << 23,
    LOST = 1 << 24,
    LISTED_ID = 1 << 25,
    FENCE = 1 << 26,
};

struct field {
    const char *name; /* name of an option; for a place, used in errors */
    unsigned bit;
    enum unit unit;
    size_t at; /* offset in struct idem__wire_command */
};

#define AT(member) offsetof(struct idem__wire_command, member)

/* clang-format off */
static const struct field options[] = {
    {"LEASE",    LEASE,        UNIT_MS,          AT(op.lease_ms)},
    {"TTL",      TTL,          UNIT_MS,          AT(op.ttl_ms)},
    {"WAIT",     WAIT,         UNIT_MS,          AT(op.wait_ms)},
    {"FP",       FP,           UNIT_FINGERPRINT, AT(op.fingerprint)},
    {"STRICT",   MODE,         UNIT_STRICT,      AT(op.mode)},
    {"LOOSE",    MODE,         UNIT_LOOSE,       AT(op.mode)},
    {"NONCE",    NONCE,        UNIT_NONCE,       AT(op.nonce)},
    {"FULL",     FULL,         UNIT_FLAG,        AT(full)},
    {"TYPE",     TYPE,         UNIT_TYPE,        AT(op.type)},
    {"TOKEN",    TOKEN,        UNIT_TOKEN,       AT(op.type)},
    {"SUBJECT",  SUBJECT,      UNIT_BYTES,       AT(op.subject)},
    {"KIND",     KIND,         UNIT_KIND,        AT(op.kind)},
    {"NOREPLAY", NOREPLAY,     UNIT_FLAG,        AT(op.not_replayable)},
    {"LOST",     LOST,         UNIT_FLAG,        AT(op.lost)},
    {"NOTE",     NOTE,         UNIT_NOTE,        AT(op.result)},
    {"REASON",   REASON,       UNIT_BYTES,       AT(reason)},
    {"FENCE",    FENCE,        UNIT_FENCE,       AT(op.fence)},
    {"AS",       AS,           UNIT_AS,          AT(op.outcome)},
    {"SCOPE",    SCOPE,        UNIT_BYTES,       AT(op.scope)},
    {"ID",       ID,           UNIT_BYTES,       AT(op.id)},
    {"COUNT",    COUNT,        UNIT_COUNT,       AT(count)},
    {"NEXT",     NEXT,         UNIT_FLAG,        AT(next)},
    {"TYPE",     LISTED_TYPE,  UNIT_TYPE,        AT(filter.type)},
    {"SCOPE",    LISTED_SCOPE, UNIT_BYTES,       AT(filter.scope)},
    {"ID",       LISTED_ID,    UNIT_BYTES,       AT(filter.id)},
    {"STATE",    STATE,        UNIT_STATE,       AT(filter.state)},
    {"DOUBT",    DOUBT,        UNIT_FLAG,        AT(filter.doubt)},
    {"BEFORE",   BEFORE,       UNIT_MS,          AT(filter.updated_before)},
};

static const struct field
    scope =   {"the scope",   0, UNIT_BYTES,   AT(op.scope)},
    id =      {"the id",      0, UNIT_BYTES,   AT(op.id)},
    fence =   {"the fence",   0, UNIT_FENCE,   AT(op.fence)},
    lease =   {"the lease",   0, UNIT_MS,      AT(op.lease_ms)},
    outcome = {"the outcome", 0, UNIT_OUTCOME, AT(op.outcome)},
    result =  {"the result",  0, UNIT_BYTES,   AT(op.result)},
    owner =   {"the owner",   0, UNIT_BYTES,   AT(op.subject)},
    cursor =  {"the cursor",  0, UNIT_CURSOR,  AT(cursor)};

#define PLACES_MAX 5

struct wire_row {
    const char *name;  /* upper case */
    const char *words; /* its places, for an error */
    enum idem_verb verb;
    enum idem_type type; /* if TYPE is not given; 0: requests, then tokens */
    size_t place_count;
    const struct field *places[PLACES_MAX];
    unsigned options; /* in addition to TYPE and FULL */
};

/* Indexed by verb; SCAN is the last one. */
static const struct wire_row rows[] = {
    {"BEGIN",   "scope id",
     IDEM_BEGIN,   IDEM_TYPE_REQUEST, 2, {&scope, &id},
     FP | LEASE | TTL | WAIT | MODE | TOKEN | NONCE | SUBJECT},
    {"FINISH",  "scope id fence SUCCEEDED|FAILED result",
     IDEM_FINISH,  0, 5, {&scope, &id, &fence, &outcome, &result},
     TTL | KIND | NOREPLAY},
    {"RELEASE", "scope id fence",
     IDEM_RELEASE, 0, 3, {&scope, &id, &fence}, NOTE},
    {"RENEW",   "scope id fence ms",
     IDEM_RENEW,   0, 4, {&scope, &id, &fence, &lease}, NOTE | LOST},
    {"SETTLE",  "scope id",
     IDEM_SETTLE,  0, 2, {&scope, &id},
     REASON | AS | TTL | KIND | MODE | NONCE | SUBJECT | NOREPLAY | FENCE},
    {"GET",     "scope id",
     IDEM_GET,     0, 2, {&scope, &id}, 0},
    {"FORGET",  "scope id",
     IDEM_FORGET,  0, 2, {&scope, &id}, REASON | FENCE},
    {"ISSUE",   "subject",
     IDEM_ISSUE,   IDEM_TYPE_TOKEN, 1, {&scope},
     TTL | COUNT | ID | MODE | NONCE | SUBJECT},
    {"REDEEM",  "token subject",
     IDEM_REDEEM,  IDEM_TYPE_TOKEN, 2, {&id, &scope},
     NEXT | NONCE | TTL | KIND | NOREPLAY | NOTE},
    {"LOCK",    "name owner ms",
     IDEM_LOCK,    IDEM_TYPE_LOCK, 3, {&id, &owner, &lease},
     WAIT | SCOPE | NOTE | TTL | MODE | NONCE | FP},
    {"UNLOCK",  "name fence",
     IDEM_UNLOCK,  IDEM_TYPE_LOCK, 2, {&id, &fence},
     SCOPE | NOTE | REASON},
    {"SCAN",    "cursor",
     IDEM__VERB_COUNT, 0, 1, {&cursor},
     LISTED_TYPE | LISTED_SCOPE | LISTED_ID | STATE | DOUBT | BEFORE | COUNT},
};
/* clang-format on */

#define ROWS (sizeof(rows) / sizeof(rows[0]))
#define OPTIONS (sizeof(options) / sizeof(options[0]))

_Static_assert(ROWS == IDEM__VERB_COUNT + 1, "a row for every verb, and SCAN");

static unsigned
options_of(const struct wire_row *row)
{
    unsigned always = row->verb == IDEM__VERB_COUNT ? FULL : TYPE | FULL;

    return row->options | always;
}

/* Like idem__bytes_is, but usually decides by the first letter. */
static bool
is_word(struct idem_bytes word, const char *name)
{
    return word.len > 0 && (*(const char *)word.data & ~0x20) == name[0] &&
           idem__bytes_is(word, name);
}

static const struct wire_row *
find_row(struct idem_bytes name)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (is_word(name, rows[i].name))
            return &rows[i];
    }
    return NULL;
}

/* ---- reading --------------------------------------------------------- */

static enum idem_status
wrong(struct idem_error *err, const char *what)
{
    return idem__fail(err, IDEM_ERR_INVALID, "%s", what);
}

static enum idem_status
read_outcome(struct idem_bytes word, enum idem_state *state,
             struct idem_error *err)
{
    if (idem__state_parse(word, state) &&
        (*state == IDEM_STATE_SUCCEEDED || *state == IDEM_STATE_FAILED))
        return IDEM_OK;
    return wrong(err, "the outcome is SUCCEEDED or FAILED");
}

static enum idem_status
read_cursor(struct idem_bytes text, struct idem_cursor *into,
            struct idem_error *err)
{
    if (text.len == 0 || text.len >= sizeof(into->text) ||
        memchr(text.data, '\0', text.len))
        return wrong(
            err,
            "the cursor must be 0 or the one in the reply to the last SCAN");
    memcpy(into->text, text.data, text.len);
    into->text[text.len] = '\0';
    return IDEM_OK;
}

static enum idem_status
read_number(const struct field *field, struct idem_bytes text, void *into,
            struct idem_error *err)
{
    int64_t number;
    bool read = idem__wire_number(text, &number);

    if (field->unit == UNIT_FENCE) {
        if (!read || number < 1 || (uint64_t)number > IDEM_FENCE_MAX)
            return wrong(err, "the fence is the number that the start gave");
        *(uint64_t *)into = (uint64_t)number;
        return IDEM_OK;
    }
    if (field->unit == UNIT_COUNT &&
        (!read || number < 1 || number > IDEM__WIRE_COUNT_MAX))
        return idem__fail(err, IDEM_ERR_INVALID, "the count is 1 to %d",
                          IDEM__WIRE_COUNT_MAX);
    if (!read || number < 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s is a number of milliseconds, 0 for the default",
                          field->name);
    *(int64_t *)into = number;
    return IDEM_OK;
}

/* Read a field from its values, of which there are field_values(). */
static enum idem_status
read_field(const struct field *field, const struct idem_bytes *values,
           struct idem__wire_command *command, struct idem_error *err)
{
    void *into = (char *)command + field->at;

    switch (field->unit) {
    case UNIT_MS:
    case UNIT_FENCE:
    case UNIT_COUNT:
        return read_number(field, values[0], into, err);
    case UNIT_BYTES:
        if ((field->bit & (LISTED_SCOPE | LISTED_ID)) && values[0].len == 0)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s is empty: leave it out to see all",
                              field->name);
        *(struct idem_bytes *)into = values[0];
        break;
    case UNIT_NOTE:
        *(struct idem_bytes *)into = (struct idem_bytes){
            values[0].len ? values[0].data : "", values[0].len};
        break;
    case UNIT_NONCE:
        if (!idem__hex_read(values[0].data, values[0].len, command->nonce,
                            IDEM_NONCE_LEN))
            return wrong(err, "NONCE has 16 hex digits");
        command->op.nonce = command->nonce;
        break;
    case UNIT_FINGERPRINT:
        if (!idem__hex_read(values[0].data, values[0].len, command->fingerprint,
                            IDEM_FINGERPRINT_LEN))
            return wrong(err, "FP has 64 hex digits");
        command->op.fingerprint = command->fingerprint;
        break;
    case UNIT_TYPE:
        return idem__type_parse(values[0], into)
                   ? IDEM_OK
                   : wrong(err, "TYPE is request, token, lock or worker");
    case UNIT_STATE:
        return idem__state_parse(values[0], into)
                   ? IDEM_OK
                   : wrong(err, "STATE is issued, executing, succeeded, "
                                "failed or free");
    case UNIT_KIND:
        return idem__kind_parse(values[0], into)
                   ? IDEM_OK
                   : wrong(err, "KIND is raw, http or exec");
    case UNIT_OUTCOME:
        return read_outcome(values[0], into, err);
    case UNIT_STRICT:
    case UNIT_LOOSE:
        command->op.mode = field->unit == UNIT_LOOSE ? IDEM_LOOSE : IDEM_STRICT;
        break;
    case UNIT_FLAG:
        *(bool *)into = true;
        break;
    case UNIT_TOKEN:
        command->op.type = IDEM_TYPE_TOKEN;
        break;
    case UNIT_AS:
        command->op.result = values[1];
        return read_outcome(values[0], into, err);
    case UNIT_CURSOR:
        return read_cursor(values[0], into, err);
    }
    return IDEM_OK;
}

static size_t
field_values(const struct field *field)
{
    switch (field->unit) {
    case UNIT_STRICT:
    case UNIT_LOOSE:
    case UNIT_FLAG:
    case UNIT_TOKEN:
        return 0;
    case UNIT_AS:
        return 2;
    default:
        return 1;
    }
}

static enum idem_status
read_option(const struct wire_row *row, const struct idem_bytes *args,
            size_t count, unsigned *seen, size_t *taken,
            struct idem__wire_command *command, struct idem_error *err)
{
    unsigned known = options_of(row);

    for (size_t i = 0; i < OPTIONS; i++) {
        const struct field *option = &options[i];

        if (!(option->bit & known) || !is_word(args[0], option->name))
            continue;
        if (*seen & option->bit)
            return idem__fail(err, IDEM_ERR_INVALID, "%s is given twice",
                              option->name);
        if (count < 1 + field_values(option))
            return idem__fail(err, IDEM_ERR_INVALID, "%s lacks its value",
                              option->name);
        *seen |= option->bit;
        *taken = 1 + field_values(option);
        return read_field(option, args + 1, command, err);
    }
    return idem__fail(err, IDEM_ERR_INVALID,
                      "syntax error: %s has no option \"%.*s\": %s %s%s "
                      "(docs/protocol.md)",
                      row->name, (int)(args[0].len > 40 ? 40 : args[0].len),
                      (const char *)args[0].data, row->name, row->words,
                      row->options ? " [options]" : "");
}

enum idem_status
idem__wire_parse_tag(const struct idem_bytes *args, size_t *count,
                     size_t places, bool *tagged, int64_t *tag,
                     struct idem_error *err)
{
    int64_t number;

    if (*count < places + 2 || !idem__bytes_is(args[*count - 2], "TAG"))
        return IDEM_OK;
    if (!idem__wire_number(args[*count - 1], &number) || number < 0 ||
        number > (int64_t)IDEM_FENCE_MAX)
        return wrong(err, "TAG is a number from 0 to 2^53 - 1");
    *tagged = true;
    *tag = number;
    *count -= 2;
    return IDEM_OK;
}

/* True if the operator's reason is stored as the result, as for a SETTLE
 * without an outcome. For other commands it is the label of the caller. */
static bool
reason_is_result(const struct idem_op *op)
{
    return op->verb == IDEM_SETTLE && op->outcome == 0;
}

static void
place_reason(struct idem__wire_command *command)
{
    if (command->reason.len == 0)
        return;
    if (reason_is_result(&command->op))
        command->op.result = command->reason;
    else
        command->op.subject = command->reason;
}

static void
start_command(const struct wire_row *row, struct idem__wire_command *command)
{
    memset(&command->op, 0, sizeof(command->op));
    command->op.verb = row->verb;
    command->scan = row->verb == IDEM__VERB_COUNT;
    command->full = command->next = false;
    command->count = command->scan ? 100 : row->verb == IDEM_ISSUE ? 1 : 0;
    command->reason = (struct idem_bytes){NULL, 0};
    if (row->options & SCOPE)
        command->op.scope = idem_text(IDEM__WIRE_LOCK_SCOPE);
    if (command->scan)
        memset(&command->filter, 0, sizeof(command->filter));
}

static enum idem_status
parse(const struct wire_row *row, const struct idem_bytes *args, size_t count,
      struct idem__wire_command *command, struct idem_error *err)
{
    enum idem_status status;
    unsigned seen = 0;
    size_t taken = 0;

    start_command(row, command);
    status = idem__wire_parse_tag(args, &count, row->place_count,
                                  &command->tagged, &command->tag, err);
    if (status != IDEM_OK)
        return status;
    if (count < row->place_count)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "wrong number of arguments for '%s' command of idem: "
                          "%s %s%s (docs/protocol.md)",
                          row->name, row->name, row->words,
                          row->options ? " [options]" : "");
    for (size_t i = 0; i < row->place_count && status == IDEM_OK; i++)
        status = read_field(row->places[i], args + i, command, err);
    for (size_t i = row->place_count; i < count && status == IDEM_OK;
         i += taken)
        status =
            read_option(row, args + i, count - i, &seen, &taken, command, err);
    place_reason(command);
    return status;
}

/* A command that cannot be parsed is not executed. Its TAG n, if these are the
 * last two arguments, is read anyway, so that a client which matches answers by
 * tag gets the error. */
enum idem_status
idem__wire_parse(const struct idem_bytes *args, size_t count,
                 struct idem__wire_command *command, struct idem_error *err)
{
    const struct wire_row *row = find_row(args[0]);
    enum idem_status status;

    if (!row)
        return IDEM_ERR_UNSUPPORTED;
    command->tagged = false;
    status = parse(row, args + 1, --count, command, err);
    if (status != IDEM_OK && !command->tagged)
        (void)idem__wire_parse_tag(args + 1, &count, 0, &command->tagged,
                                   &command->tag, NULL);
    return status;
}

/* ---- writing --------------------------------------------------------- */

void
idem__wire_add(struct idem__wire_args *args, struct idem_bytes arg)
{
    args->list[args->count++] = arg;
}

static void
add_word(struct idem__wire_args *args, const char *word)
{
    idem__wire_add(args, idem_text(word));
}

void
idem__wire_add_number(struct idem__wire_args *args, int64_t number)
{
    char *at = args->scratch + args->used;
    size_t len = idem__wire_digits(number, at);

    args->used += len;
    idem__wire_add(args, (struct idem_bytes){at, len});
}

static void
add_hex(struct idem__wire_args *args, const uint8_t *bytes, size_t len)
{
    char *at = args->scratch + args->used;

    args->used += 2 * len;
    idem__hex_write(bytes, len, at);
    idem__wire_add(args, (struct idem_bytes){at, 2 * len});
}

static const char *
outcome_word(enum idem_state state)
{
    return state == IDEM_STATE_FAILED ? "FAILED" : "SUCCEEDED";
}

/* Write the values of a field. */
static void
add_field(const struct field *field, const struct idem__wire_command *command,
          struct idem__wire_args *args)
{
    const void *from = (const char *)command + field->at;

    switch (field->unit) {
    case UNIT_MS:
    case UNIT_COUNT:
        idem__wire_add_number(args, *(const int64_t *)from);
        break;
    case UNIT_FENCE:
        idem__wire_add_number(args, (int64_t) * (const uint64_t *)from);
        break;
    case UNIT_BYTES:
    case UNIT_NOTE:
        idem__wire_add(args, *(const struct idem_bytes *)from);
        break;
    case UNIT_NONCE:
        add_hex(args, command->op.nonce, IDEM_NONCE_LEN);
        break;
    case UNIT_FINGERPRINT:
        add_hex(args, command->op.fingerprint, IDEM_FINGERPRINT_LEN);
        break;
    case UNIT_TYPE:
        add_word(args, idem_type_name(*(const enum idem_type *)from));
        break;
    case UNIT_STATE:
        add_word(args, idem_state_name(*(const enum idem_state *)from));
        break;
    case UNIT_KIND:
        add_word(args, idem_kind_name(*(const enum idem_kind *)from));
        break;
    case UNIT_OUTCOME:
        add_word(args, outcome_word(*(const enum idem_state *)from));
        break;
    case UNIT_AS:
        add_word(args, outcome_word(*(const enum idem_state *)from));
        idem__wire_add(args, command->op.result);
        break;
    case UNIT_CURSOR:
        add_word(args, ((const struct idem_cursor *)from)->text);
        break;
    case UNIT_STRICT:
    case UNIT_LOOSE:
    case UNIT_FLAG:
    case UNIT_TOKEN:
        break;
    }
}

/* Does this field differ from its default, so that it must be written? */
static bool
is_set(const struct wire_row *row, const struct field *option,
       const struct idem__wire_command *command)
{
    const void *from = (const char *)command + option->at;
    const struct idem_bytes *bytes = from;

    switch (option->unit) {
    case UNIT_MS:
    case UNIT_COUNT:
        return *(const int64_t *)from != 0;
    case UNIT_FENCE:
        return *(const uint64_t *)from != 0;
    case UNIT_BYTES:
        if (option->bit == SCOPE)
            return !idem__bytes_equal(*bytes, idem_text(IDEM__WIRE_LOCK_SCOPE));
        return bytes->len > 0;
    case UNIT_NOTE:
        return bytes->data != NULL;
    case UNIT_NONCE:
    case UNIT_FINGERPRINT:
        return *(const uint8_t *const *)from != NULL;
    case UNIT_TYPE:
        return *(const enum idem_type *)from != 0 &&
               *(const enum idem_type *)from != row->type;
    case UNIT_STATE:
    case UNIT_OUTCOME:
    case UNIT_AS:
        return *(const enum idem_state *)from != 0;
    case UNIT_KIND:
        return *(const enum idem_kind *)from != IDEM_KIND_RAW;
    case UNIT_LOOSE:
        return command->op.mode == IDEM_LOOSE;
    case UNIT_FLAG:
        return *(const bool *)from;
    case UNIT_STRICT:
    case UNIT_TOKEN:
    case UNIT_CURSOR:
        break;
    }
    return false;
}

static void
add_reason(const struct idem_op *op, struct idem__wire_args *args)
{
    struct idem_bytes reason = reason_is_result(op) ? op->result : op->subject;

    if (reason.len == 0)
        return;
    add_word(args, "REASON");
    idem__wire_add(args, reason);
}

void
idem__wire_write(const struct idem__wire_command *command,
                 struct idem__wire_args *args)
{
    const struct wire_row *row =
        &rows[command->scan ? IDEM__VERB_COUNT : command->op.verb];
    unsigned known = options_of(row);

    args->count = args->used = 0;
    add_word(args, row->name);
    for (size_t i = 0; i < row->place_count; i++)
        add_field(row->places[i], command, args);
    if (known & REASON)
        add_reason(&command->op, args);
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct field *option = &options[i];

        if (!(option->bit & known & ~(unsigned)REASON) ||
            (option->bit == SUBJECT && (known & REASON) &&
             !reason_is_result(&command->op)) ||
            !is_set(row, option, command))
            continue;
        add_word(args, option->name);
        add_field(option, command, args);
    }
    if (command->tagged) {
        add_word(args, "TAG");
        idem__wire_add_number(args, command->tag);
    }
}

/* "$5\r\n" */
static size_t
line_len(uint64_t number)
{
    size_t len = 4;

    while ((number /= 10) > 0)
        len++;
    return len;
}

size_t
idem__wire_len(const struct idem__wire_args *args)
{
    size_t len = line_len(args->count);

    for (size_t i = 0; i < args->count; i++)
        len += line_len(args->list[i].len) + args->list[i].len + 2;
    return len;
}

void *
idem__wire_put(const struct idem__wire_args *args, void *out)
{
    char *at = idem__wire_put_line(out, '*', (int64_t)args->count);
    char *room = NULL;

    for (size_t i = 0; i < args->count; i++) {
        struct idem_bytes arg = args->list[i];

        at = idem__wire_put_line(at, '$', (int64_t)arg.len);
        if (arg.data)
            memcpy(at, arg.data, arg.len);
        else if (arg.len > 0)
            room = at;
        memcpy(at + arg.len, "\r\n", 2);
        at += arg.len + 2;
    }
    return room;
}
