/*
 * output.c - print answers for people and for programs.
 *
 * Other people wrote the stored bytes. On the way to a terminal, control
 * characters and invalid UTF-8 become \xNN; in JSON, bytes that are not UTF-8
 * are printed as base64 under a name that says so.
 */
#include "cli.h"

#include "../base/json_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Length of the valid UTF-8 character here, or 0. */
static size_t
utf8_len(const uint8_t *at, size_t left)
{
    uint32_t code;
    size_t len;

    if (at[0] < 0x80)
        return 1;
    len = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc2 ? 2 : 0;
    if (len == 0 || len > left || at[0] > 0xf4)
        return 0;
    code = at[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    if ((len == 3 && code < 0x800) || (len == 4 && code < 0x10000) ||
        (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff)
        return 0;
    return len;
}

/* Control characters, C1 ones, characters without width, and marks that end a
 * line or change the direction of text: U+200B to 200F, 2028 to 202F, and from
 * 2060 on. Dashes, quotes and the ellipsis are between them. */
static bool
harmless(const uint8_t *at, size_t len)
{
    if (len == 1)
        return at[0] >= 0x20 && at[0] != 0x7f && at[0] != '\\';
    if (len == 2 && at[0] == 0xc2 && at[1] < 0xa0)
        return false;
    if (len == 3 && at[0] == 0xe2 &&
        ((at[1] == 0x80 && at[2] >= 0x8b && at[2] <= 0x8f) ||
         (at[1] == 0x80 && at[2] >= 0xa8 && at[2] <= 0xaf) ||
         (at[1] == 0x81 && at[2] >= 0xa0)))
        return false;
    return true;
}

void
cli_print_safe(FILE *out, struct idem_bytes bytes)
{
    const uint8_t *at = bytes.data;
    size_t left = bytes.len;

    while (left > 0) {
        size_t len = utf8_len(at, left);

        if (len > 0 && harmless(at, len)) {
            fwrite(at, 1, len, out);
        } else if (*at == '\\') {
            fputs("\\\\", out);
            len = 1;
        } else {
            len = 1;
            fprintf(out, "\\x%02x", *at);
        }
        at += len;
        left -= len;
    }
}

void
cli_print_quoted(FILE *out, const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    bool plain = true;

    for (size_t left = strlen(text); left > 0 && plain;) {
        size_t len = utf8_len(at, left);

        plain = len > 0 && (*at == '\\' || harmless(at, len));
        at += len;
        left -= len;
    }
    fputs(plain ? "'" : "$'", out);
    while (*text) {
        size_t len = strcspn(text, "'");

        if (plain)
            fwrite(text, 1, len, out);
        else
            cli_print_safe(out, (struct idem_bytes){text, len});
        text += len;
        if (*text) {
            fputs(plain ? "'\\''" : "\\'", out);
            text++;
        }
    }
    fputc('\'', out);
}

void
cli_line(const char *name, const char *format, ...)
{
    char text[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    printf("%s: ", name);
    cli_print_safe(stdout, idem_text(text));
    putchar('\n');
}

const char *
cli_age(int64_t ms, char *out)
{
    int64_t s = ms > 0 ? ms / 1000 : 0;
    bool days = s >= 2 * 86400, hours = s >= 2 * 3600, minutes = s >= 2 * 60;
    int64_t unit = days ? 86400 : hours ? 3600 : minutes ? 60 : 1;

    snprintf(out, CLI_AGE_LEN, "%lld%c", (long long)(s / unit),
             days      ? 'd'
             : hours   ? 'h'
             : minutes ? 'm'
                       : 's');
    return out;
}

const char *
cli_time(int64_t ms, char *out)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    size_t len;

    if (ms == 0 || !gmtime_r(&seconds, &tm)) {
        snprintf(out, CLI_TIME_LEN, "-");
        return out;
    }
    len = strftime(out, CLI_TIME_LEN, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + len, CLI_TIME_LEN - len, ".%03dZ", (int)(ms % 1000));
    return out;
}

static bool incomplete;

static void
tell_incomplete(void)
{
    if (!incomplete)
        fputs("idem: out of memory for the output: if the command changes "
              "something, that may have been stored. Run it again\n",
              stderr);
    incomplete = true;
}

void
cli_json_bytes(json_t *object, const char *name, struct idem_bytes bytes)
{
    const char *data = bytes.data ? bytes.data : "";
    json_t *text = json_stringn(data, bytes.len);
    size_t room;
    char *base64, field[64];

    if (text) {
        json_object_set_new(object, name, text);
        return;
    }
    room = sodium_base64_encoded_len(bytes.len, sodium_base64_VARIANT_ORIGINAL);
    base64 = malloc(room);
    if (!base64) {
        tell_incomplete();
        return;
    }
    sodium_bin2base64(base64, room, bytes.data, bytes.len,
                      sodium_base64_VARIANT_ORIGINAL);
    snprintf(field, sizeof(field), "%s_base64", name);
    json_object_set_new(object, field, json_string(base64));
    free(base64);
}

bool
cli_json_whole(void)
{
    if (idem__json_starved())
        tell_incomplete();
    return !incomplete;
}

bool
cli_output_incomplete(void)
{
    return incomplete;
}

void
cli_json_print(json_t *object)
{
    char *text = cli_json_whole() ? json_dumps(object, JSON_COMPACT) : NULL;

    if (cli_json_whole())
        printf("%s\n", text ? text : ""); /* NULL: not UTF-8 */
    free(text);
    json_decref(object);
}

static int real_stdout = -1; /* set while a text is captured */

void
cli_text_begin(void)
{
    int caught;

    if (!cli_json || real_stdout >= 0)
        return;
    fflush(stdout);
    caught = memfd_create("idem-text", MFD_CLOEXEC);
    real_stdout = caught >= 0 ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    if (real_stdout >= 0)
        dup2(caught, STDOUT_FILENO);
    if (caught >= 0)
        close(caught);
}

void
cli_text_end(const char *name)
{
    json_t *object = json_object();
    struct idem_buf text;
    uint8_t *room;
    ssize_t got;

    if (real_stdout < 0) {
        json_decref(object);
        return;
    }
    fflush(stdout);
    idem_buf_init(&text, 16 * 1024 * 1024);
    while ((room = idem_buf_room(&text, 65536)) &&
           (got = pread(STDOUT_FILENO, room, 65536, (off_t)text.len)) > 0)
        text.len += (size_t)got;
    dup2(real_stdout, STDOUT_FILENO);
    close(real_stdout);
    real_stdout = -1;
    if (text.lacks) {
        tell_incomplete();
        json_decref(object);
    } else {
        cli_json_bytes(object, name, (struct idem_bytes){text.data, text.len});
        cli_json_print(object); /* tells it too, if there is no object */
    }
    idem_buf_clear(&text);
}

json_t *
cli_json_record(const struct idem_record *r, bool whole, bool with_result)
{
    bool kept = !(r->flags & IDEM_FLAG_NOT_REPLAYABLE);
    json_t *object = json_object();
    char hex[2 * IDEM_FINGERPRINT_LEN + 1];
    const struct {
        const char *name;
        json_t *value;
    } fields[] = {
        {"type", json_string(idem_type_name(r->type))},
        {"state", r->state ? json_string(idem_state_name(r->state)) : NULL},
        {"mode", whole ? json_string(idem_mode_name(r->mode)) : NULL},
        {"kind", r->state ? json_string(idem_kind_name(r->kind)) : NULL},
        {"fence", json_integer((json_int_t)r->fence)},
        {"attempt", json_integer(r->attempt)},
        {"created", json_integer(r->created)},
        {"updated", json_integer(r->updated)},
        {"lease_until", json_integer(r->lease_until)},
        {"expires", json_integer(r->expires)},
        {"replayable", r->state ? json_boolean(kept) : NULL},
        {"settled", whole ? json_boolean(r->flags & IDEM_FLAG_SETTLED) : NULL},
    };

    cli_json_bytes(object, "scope", r->scope);
    cli_json_bytes(object, "id", r->id);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        /* Fields that a server's answer does not have are left out. */
        if (!fields[i].value)
            continue;
        if (json_is_integer(fields[i].value) &&
            json_integer_value(fields[i].value) == 0)
            json_decref(fields[i].value);
        else
            json_object_set_new(object, fields[i].name, fields[i].value);
    }
    if (r->subject.len > 0)
        cli_json_bytes(object, "subject", r->subject);
    if (r->flags & IDEM_FLAG_FINGERPRINT)
        json_object_set_new(
            object, "fingerprint",
            json_string(sodium_bin2hex(hex, sizeof(hex), r->fingerprint,
                                       IDEM_FINGERPRINT_LEN)));
    if (with_result)
        cli_json_bytes(object, "result", r->result);
    return object;
}

static enum idem_status
read_all(int fd, const char *name, struct idem_buf *into,
         struct idem_error *err)
{
    for (;;) {
        size_t left = into->cap - into->len;
        uint8_t more;
        uint8_t *at =
            left ? idem_buf_room(into, left < 65536 ? left : 65536) : &more;
        ssize_t got = at ? read(fd, at,
                                left == 0      ? 1
                                : left < 65536 ? left
                                               : 65536)
                         : 0;

        if (!at)
            return idem__fail(err, IDEM_ERR_MEMORY, "%s: out of memory", name);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return idem__fail(err, IDEM_ERR_INVALID, "cannot read %s: %s", name,
                              strerror(errno));
        if (got == 0)
            return IDEM_OK;
        if (left == 0)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s is over the limit of %zu bytes: store it "
                              "elsewhere and keep a pointer to it",
                              name, into->cap);
        into->len += (size_t)got;
    }
}

enum idem_status
cli_read_value(const char *text, struct idem_buf *into, struct idem_error *err)
{
    enum idem_status status;
    int fd;

    idem_buf_init(into, IDEM_RESULT_MAX);
    if (strcmp(text, "-") == 0)
        return read_all(STDIN_FILENO, "standard input", into, err);
    if (text[0] != '@')
        return idem_buf_add_text(into, text)
                   ? IDEM_OK
                   : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    fd = open(text + 1, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return idem__fail(err, IDEM_ERR_INVALID, "cannot read %s: %s", text + 1,
                          strerror(errno));
    status = read_all(fd, text + 1, into, err);
    close(fd);
    return status;
}
