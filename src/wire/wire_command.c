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

/* Options, as bits. The number of a bit is the option's index in `options`;
 * MODE has one for each of its two words. */
enum {
    LEASE = 1 << 0,
    TTL = 1 << 1,
    WAIT = 1 << 2,
    FP = 1 << 3,
    STRICT = 1 << 4,
    LOOSE = 1 << 5,
    NONCE = 1 << 6,
    FULL = 1 << 7,
    TYPE = 1 << 8,
    TOKEN = 1 << 9,
    SUBJECT = 1 << 10,
    KIND = 1 << 11,
    NOREPLAY = 1 << 12,
    LOST = 1 << 13,
    NOTE = 1 << 14,
    REASON = 1 << 15,
    FENCE = 1 << 16,
    AS = 1 << 17,
    SCOPE = 1 << 18,
    ID = 1 << 19,
    COUNT = 1 << 20,
    NEXT = 1 << 21,
    LISTED_TYPE = 1 << 22,
    LISTED_SCOPE = 1 << 23,
    LISTED_ID = 1 << 24,
    STATE = 1 << 25,
    DOUBT = 1 << 26,
    BEFORE = 1 << 27,
    MODE = STRICT | LOOSE,
};

#define OPTION_LEN 8 /* of the longest name */

struct field {
    char name[12]; /* name of an option; for a place, used in errors */
    uint8_t name_len;
    unsigned bits; /* of the options that exclude each other */
    enum unit unit;
    size_t at; /* offset in struct idem__wire_command */
};

#define AT(member) offsetof(struct idem__wire_command, member)

#define NAMED(name) name, sizeof(name) - 1
#define OPTION(bit, name, bits, unit, member)                                  \
    [__builtin_ctz(bit)] = {NAMED(name), bits, unit, AT(member)}
#define PLACE(name, unit, member)                                              \
    {                                                                          \
        NAMED(name), 0, unit, AT(member)                                       \
    }

/* clang-format off */
static const struct field options[] = {
    OPTION(LEASE,        "LEASE",    LEASE,        UNIT_MS,          op.lease_ms),
    OPTION(TTL,          "TTL",      TTL,          UNIT_MS,          op.ttl_ms),
    OPTION(WAIT,         "WAIT",     WAIT,         UNIT_MS,          op.wait_ms),
    OPTION(FP,           "FP",       FP,           UNIT_FINGERPRINT, op.fingerprint),
    OPTION(STRICT,       "STRICT",   MODE,         UNIT_STRICT,      op.mode),
    OPTION(LOOSE,        "LOOSE",    MODE,         UNIT_LOOSE,       op.mode),
    OPTION(NONCE,        "NONCE",    NONCE,        UNIT_NONCE,       op.nonce),
    OPTION(FULL,         "FULL",     FULL,         UNIT_FLAG,        full),
    OPTION(TYPE,         "TYPE",     TYPE,         UNIT_TYPE,        op.type),
    OPTION(TOKEN,        "TOKEN",    TOKEN,        UNIT_TOKEN,       op.type),
    OPTION(SUBJECT,      "SUBJECT",  SUBJECT,      UNIT_BYTES,       op.subject),
    OPTION(KIND,         "KIND",     KIND,         UNIT_KIND,        op.kind),
    OPTION(NOREPLAY,     "NOREPLAY", NOREPLAY,     UNIT_FLAG,        op.not_replayable),
    OPTION(LOST,         "LOST",     LOST,         UNIT_FLAG,        op.lost),
    OPTION(NOTE,         "NOTE",     NOTE,         UNIT_NOTE,        op.result),
    OPTION(REASON,       "REASON",   REASON,       UNIT_BYTES,       reason),
    OPTION(FENCE,        "FENCE",    FENCE,        UNIT_FENCE,       op.fence),
    OPTION(AS,           "AS",       AS,           UNIT_AS,          op.outcome),
    OPTION(SCOPE,        "SCOPE",    SCOPE,        UNIT_BYTES,       op.scope),
    OPTION(ID,           "ID",       ID,           UNIT_BYTES,       op.id),
    OPTION(COUNT,        "COUNT",    COUNT,        UNIT_COUNT,       count),
    OPTION(NEXT,         "NEXT",     NEXT,         UNIT_FLAG,        next),
    OPTION(LISTED_TYPE,  "TYPE",     LISTED_TYPE,  UNIT_TYPE,        filter.type),
    OPTION(LISTED_SCOPE, "SCOPE",    LISTED_SCOPE, UNIT_BYTES,       filter.scope),
    OPTION(LISTED_ID,    "ID",       LISTED_ID,    UNIT_BYTES,       filter.id),
    OPTION(STATE,        "STATE",    STATE,        UNIT_STATE,       filter.state),
    OPTION(DOUBT,        "DOUBT",    DOUBT,        UNIT_FLAG,        filter.doubt),
    OPTION(BEFORE,       "BEFORE",   BEFORE,       UNIT_MS,          filter.updated_before),
};

static const struct field
    scope =   PLACE("the scope",   UNIT_BYTES,   op.scope),
    id =      PLACE("the id",      UNIT_BYTES,   op.id),
    fence =   PLACE("the fence",   UNIT_FENCE,   op.fence),
    lease =   PLACE("the lease",   UNIT_MS,      op.lease_ms),
    outcome = PLACE("the outcome", UNIT_OUTCOME, op.outcome),
    result =  PLACE("the result",  UNIT_BYTES,   op.result),
    owner =   PLACE("the owner",   UNIT_BYTES,   op.subject),
    cursor =  PLACE("the cursor",  UNIT_CURSOR,  cursor);

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

_Static_assert(ROWS == IDEM__VERB_COUNT + 1, "a row for every verb, and SCAN");

static unsigned
options_of(const struct wire_row *row)
{
    unsigned always = row->verb == IDEM__VERB_COUNT ? FULL : TYPE | FULL;

    return row->options | always;
}

/* The first of these options. */
static const struct field *
first_of(unsigned bits)
{
    return &options[__builtin_ctz(bits)];
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
        if ((field->bits & (LISTED_SCOPE | LISTED_ID)) && values[0].len == 0)
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
    for (unsigned left = options_of(row); left; left &= left - 1) {
        const struct field *option = first_of(left);

        if (!is_word(args[0], option->name))
            continue;
        if (*seen & option->bits)
            return idem__fail(err, IDEM_ERR_INVALID, "%s is given twice",
                              option->name);
        if (count < 1 + field_values(option))
            return idem__fail(err, IDEM_ERR_INVALID, "%s lacks its value",
                              option->name);
        *seen |= option->bits;
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

/* The most bytes of a name or another short word, of a number, and of bytes in
 * addition to themselves. */
#define NAME_ROOM 16
#define NUMBER_ROOM (5 + IDEM__WIRE_DIGITS_MAX + 3)
#define BYTES_ROOM (IDEM__WIRE_LINE_MAX + 2)

static struct idem_bytes
outcome_word(enum idem_state state)
{
    return idem_text(state == IDEM_STATE_FAILED ? "FAILED" : "SUCCEEDED");
}

/* The name of an option, which is shorter than ten bytes. */
static char *
put_name(char *out, const struct field *option)
{
    const char line[] = {'$', (char)('0' + option->name_len), '\r', '\n'};

    memcpy(out, line, sizeof(line));
    memcpy(out + sizeof(line), option->name, OPTION_LEN);
    out += sizeof(line) + option->name_len;
    memcpy(out, "\r\n", 2);
    return out + 2;
}

static char *
put_number(char *out, int64_t number)
{
    char digits[IDEM__WIRE_DIGITS_MAX];
    size_t len = idem__wire_digits(number, digits);

    out = idem__wire_put_line(out, '$', (int64_t)len);
    memcpy(out, digits, sizeof(digits)); /* all: that is a few moves */
    memcpy(out + len, "\r\n", 2);
    return out + len + 2;
}

static char *
put_hex(char *out, const uint8_t *bytes, size_t len)
{
    out = idem__wire_put_line(out, '$', 2 * (int64_t)len);
    idem__hex_write(bytes, len, out);
    out += 2 * len;
    memcpy(out, "\r\n", 2);
    return out + 2;
}

/* Bytes, or room for them. */
static char *
put_bytes(char *out, struct idem_bytes bytes, char **room)
{
    if (bytes.data || bytes.len == 0)
        return idem__wire_put_bytes(out, bytes);
    out = idem__wire_put_line(out, '$', (int64_t)bytes.len);
    *room = out;
    memcpy(out + bytes.len, "\r\n", 2);
    return out + bytes.len + 2;
}

/* Write the values of a field. */
static char *
put_field(char *out, const struct field *field,
          const struct idem__wire_command *command, char **room)
{
    const void *from = (const char *)command + field->at;

    switch (field->unit) {
    case UNIT_MS:
    case UNIT_COUNT:
        return put_number(out, *(const int64_t *)from);
    case UNIT_FENCE:
        return put_number(out, (int64_t) * (const uint64_t *)from);
    case UNIT_BYTES:
    case UNIT_NOTE:
        return put_bytes(out, *(const struct idem_bytes *)from, room);
    case UNIT_NONCE:
        return put_hex(out, command->op.nonce, IDEM_NONCE_LEN);
    case UNIT_FINGERPRINT:
        return put_hex(out, command->op.fingerprint, IDEM_FINGERPRINT_LEN);
    case UNIT_TYPE:
        return idem__wire_put_text(
            out, idem_type_name(*(const enum idem_type *)from));
    case UNIT_STATE:
        return idem__wire_put_text(
            out, idem_state_name(*(const enum idem_state *)from));
    case UNIT_KIND:
        return idem__wire_put_text(
            out, idem_kind_name(*(const enum idem_kind *)from));
    case UNIT_OUTCOME:
        return idem__wire_put_bytes(
            out, outcome_word(*(const enum idem_state *)from));
    case UNIT_AS:
        out = idem__wire_put_bytes(
            out, outcome_word(*(const enum idem_state *)from));
        return put_bytes(out, command->op.result, room);
    case UNIT_CURSOR:
        return idem__wire_put_text(out,
                                   ((const struct idem_cursor *)from)->text);
    case UNIT_STRICT:
    case UNIT_LOOSE:
    case UNIT_FLAG:
    case UNIT_TOKEN:
        break;
    }
    return out;
}

/* The most that put_field writes. */
static size_t
field_room(const struct field *field, const struct idem__wire_command *command)
{
    const void *from = (const char *)command + field->at;

    switch (field->unit) {
    case UNIT_BYTES:
    case UNIT_NOTE:
        return BYTES_ROOM + ((const struct idem_bytes *)from)->len;
    case UNIT_FINGERPRINT:
        return BYTES_ROOM + 2 * IDEM_FINGERPRINT_LEN;
    case UNIT_AS:
        return NAME_ROOM + BYTES_ROOM + command->op.result.len;
    case UNIT_CURSOR:
        return BYTES_ROOM + sizeof(struct idem_cursor);
    case UNIT_STRICT:
    case UNIT_LOOSE:
    case UNIT_FLAG:
    case UNIT_TOKEN:
        return 0;
    default:
        return NUMBER_ROOM;
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
        if (option->bits == SCOPE)
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

/* The operator's reason, which some commands take: see place_reason. */
static struct idem_bytes
reason_of(const struct wire_row *row, const struct idem_op *op)
{
    if (!(row->options & REASON))
        return (struct idem_bytes){NULL, 0};
    return reason_is_result(op) ? op->result : op->subject;
}

static const struct wire_row *
row_of(const struct idem__wire_command *command)
{
    return &rows[command->scan ? IDEM__VERB_COUNT : command->op.verb];
}

size_t
idem__wire_plan(const struct idem__wire_command *command,
                struct idem__wire_plan *plan)
{
    const struct wire_row *row = row_of(command);
    struct idem_bytes reason = reason_of(row, &command->op);
    unsigned left = options_of(row) & ~(unsigned)(REASON | STRICT | TOKEN);
    size_t room = IDEM__WIRE_LINE_MAX + 2 * NAME_ROOM + NUMBER_ROOM;

    plan->options = 0;
    plan->count = 1 + row->place_count + (reason.len > 0 ? 2 : 0) +
                  (command->tagged ? 2 : 0);
    if (reason.len > 0)
        room += NAME_ROOM + BYTES_ROOM + reason.len;
    for (size_t i = 0; i < row->place_count; i++)
        room += field_room(row->places[i], command);
    if (row->options & REASON && !reason_is_result(&command->op))
        left &= ~(unsigned)SUBJECT;
    for (; left; left &= left - 1) {
        const struct field *option = first_of(left);

        if (!is_set(row, option, command))
            continue;
        plan->options |= left & -left;
        plan->count += 1 + field_values(option);
        room += NAME_ROOM + field_room(option, command);
    }
    return room;
}

char *
idem__wire_put_command(char *out, const struct idem__wire_command *command,
                       const struct idem__wire_plan *plan, char **room)
{
    const struct wire_row *row = row_of(command);
    struct idem_bytes reason = reason_of(row, &command->op);

    *room = NULL;
    out = idem__wire_put_line(out, '*', (int64_t)plan->count);
    out = idem__wire_put_text(out, row->name);
    for (size_t i = 0; i < row->place_count; i++)
        out = put_field(out, row->places[i], command, room);
    if (reason.len > 0) {
        out = idem__wire_put_text(out, "REASON");
        out = put_bytes(out, reason, room);
    }
    for (unsigned left = plan->options; left; left &= left - 1) {
        const struct field *option = first_of(left);

        out = put_name(out, option);
        out = put_field(out, option, command, room);
    }
    if (command->tagged) {
        out = idem__wire_put_text(out, "TAG");
        out = put_number(out, command->tag);
    }
    return out;
}

/* ---- commands of any words ------------------------------------------- */

void
idem__wire_add(struct idem__wire_args *args, struct idem_bytes arg)
{
    args->list[args->count++] = arg;
}

void
idem__wire_add_number(struct idem__wire_args *args, int64_t number)
{
    char *at = args->scratch + args->used;
    size_t len = idem__wire_digits(number, at);

    args->used += len;
    idem__wire_add(args, (struct idem_bytes){at, len});
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

void
idem__wire_put(const struct idem__wire_args *args, void *out)
{
    char *at = idem__wire_put_line(out, '*', (int64_t)args->count);

    for (size_t i = 0; i < args->count; i++)
        at = idem__wire_put_bytes(at, args->list[i]);
}
