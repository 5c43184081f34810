/*
 * log.c - structured log lines; see log.h.
 *
 * A line is built in a fixed buffer and written with one write(2), so that
 * lines of several threads do not mix. A line that does not fit is cut.
 */
#include "log.h"

#include "../../base/hex.h"
#include "../../record/record.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_LEN 2048
#define ROOM_AT_END 8 /* closing quote, brace, newline */

struct log_line {
    bool json;
    size_t len;
    char text[LINE_MAX_LEN];
};

static void
put(struct log_line *line, const char *bytes, size_t len)
{
    size_t room = sizeof(line->text) - ROOM_AT_END - line->len;

    if (len > room)
        return; /* all or nothing, so that no escape is cut in half */
    memcpy(line->text + line->len, bytes, len);
    line->len += len;
}

static void
put_text(struct log_line *line, const char *text)
{
    put(line, text, strlen(text));
}

/* Write printable ASCII only, because an attacker can choose the keys. */
static void
put_escaped(struct log_line *line, const uint8_t *bytes, size_t len)
{
    char hex[8];

    for (size_t i = 0; i < len; i++) {
        if (bytes[i] == '"' || bytes[i] == '\\') {
            put(line, (char[]){'\\', (char)bytes[i]}, 2);
        } else if (bytes[i] >= 0x20 && bytes[i] < 0x7f) {
            put(line, (const char *)&bytes[i], 1);
        } else {
            snprintf(hex, sizeof(hex), line->json ? "\\u00%02x" : "\\x%02x",
                     bytes[i]);
            put_text(line, hex);
        }
    }
}

static bool
plain(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] <= 0x20 || bytes[i] >= 0x7f || bytes[i] == '"' ||
            bytes[i] == '\\' || bytes[i] == '=')
            return false;
    }
    return len > 0;
}

static void
put_name(struct log_line *line, const char *name)
{
    if (line->len > (line->json ? 1u : 0u))
        put_text(line, line->json ? "," : " ");
    if (line->json) {
        put_text(line, "\"");
        put_text(line, name);
        put_text(line, "\":");
    } else {
        put_text(line, name);
        put_text(line, "=");
    }
}

static void
put_value(struct log_line *line, const char *name, struct idem_bytes value)
{
    bool quoted = line->json || !plain(value.data, value.len);

    put_name(line, name);
    if (quoted)
        put_text(line, "\"");
    put_escaped(line, value.data, value.len);
    if (quoted)
        line->text[line->len++] = '"'; /* there is room at the end */
}

static void
put_key(struct log_line *line, const struct server_log *log,
        const struct log_field *field)
{
    uint8_t key[IDEM_KEY_LEN];
    char digest[17];

    if (log->keys) {
        put_value(line, "scope", field->scope);
        put_value(line, "id", field->id);
        return;
    }
    idem__key(IDEM_TYPE_REQUEST, field->scope, field->id, key);
    idem__hex_write(key, 8, digest);
    digest[16] = 0;
    put_value(line, field->name, idem_text(digest));
}

static void
put_field(struct log_line *line, const struct server_log *log,
          const struct log_field *field)
{
    char number[24];

    switch (field->what) {
    case LOG_IS_TEXT:
        put_value(line, field->name, idem_text(field->text));
        break;
    case LOG_IS_NUMBER:
        snprintf(number, sizeof(number), "%lld", (long long)field->number);
        put_name(line, field->name);
        put_text(line, number);
        break;
    case LOG_IS_BYTES:
        put_value(line, field->name, field->scope);
        break;
    case LOG_IS_KEY:
        put_key(line, log, field);
        break;
    }
}

void
server_log_time(char text[LOG_TIME_LEN])
{
    struct timespec now;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    snprintf(text, LOG_TIME_LEN, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
             tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
             tm.tm_min, tm.tm_sec, (int)(now.tv_nsec / 1000000));
}

static void
put_time(struct log_line *line)
{
    char text[LOG_TIME_LEN];

    server_log_time(text);
    put_value(line, "time", idem_text(text));
}

void
server_log_fields(const struct server_log *log, enum log_level level,
                  const char *event, const struct log_field *fields,
                  size_t count)
{
    static const char *const levels[] = {"debug", "info", "warning", "error",
                                         "info"};
    struct log_line line;
    ssize_t written;

    if (level < log->level)
        return;
    line.json = log->format == LOG_FORMAT_JSON;
    line.len = 0;
    if (line.json)
        put_text(&line, "{");
    put_time(&line);
    put_value(&line, "level", idem_text(levels[level]));
    put_value(&line, "event", idem_text(event));
    for (size_t i = 0; i < count; i++) {
        /* Begin a field only if its name and an empty value fit. */
        if (sizeof(line.text) - ROOM_AT_END - line.len >
            strlen(fields[i].name) + 64)
            put_field(&line, log, &fields[i]);
    }
    if (line.json)
        line.text[line.len++] = '}';
    line.text[line.len++] = '\n';
    written = write(log->fd, line.text, line.len);
    (void)written; /* a log that cannot be written cannot report it */
}

bool
server_log_may(struct log_limit *limit, int64_t now_ms, int64_t *left_out)
{
    int64_t window = now_ms / LOG_LIMIT_MS + 1;

    if (atomic_exchange(&limit->window, window) != window)
        atomic_store(&limit->count, 0);
    if (atomic_fetch_add(&limit->count, 1) >= LOG_LIMIT) {
        atomic_fetch_add(&limit->left_out, 1);
        return false;
    }
    *left_out = atomic_exchange(&limit->left_out, 0);
    return true;
}

void
server_log_engine(void *arg, enum idem_log_level level, const char *text)
{
    static const enum log_level levels[] = {LOG_INFO, LOG_WARNING, LOG_ERROR};

    server_log(arg, levels[level], level == IDEM_LOG_ALARM ? "alarm" : "engine",
               LOG_TEXT("text", text));
}
