/*
 * log.h - one line per event on standard error, for people and machines.
 *
 *   time=2026-11-15T08:00:00.123Z level=info event=listening address=...
 *   {"time":"...","level":"info","event":"listening","address":"..."}
 *
 * Fields that name a record show a digest of its key unless the operator asked
 * for the keys themselves. Threads: any; a line is one write.
 *
 *   server_log(log, LOG_INFO, "listening", LOG_TEXT("address", text),
 *              LOG_NUMBER("clients", 7));
 */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

#include <idem/idem.h>
#include <stdatomic.h>

/* ALWAYS: written at every level, and shown as info. */
enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_ALWAYS };
enum log_format { LOG_FORMAT_LOGFMT, LOG_FORMAT_JSON };

struct server_log {
    enum log_format format;
    enum log_level level; /* lines below it are not written */
    bool keys;            /* show keys, not digests */
    int fd;               /* 2, but for tests */
};

struct log_field {
    const char *name; /* a plain word */
    enum { LOG_IS_TEXT, LOG_IS_NUMBER, LOG_IS_BYTES, LOG_IS_KEY } what;
    const char *text;
    int64_t number;
    struct idem_bytes scope, id; /* BYTES: scope only */
};

#define LOG_TEXT(n, t)                                                         \
    (struct log_field)                                                         \
    {                                                                          \
        .name = (n), .what = LOG_IS_TEXT, .text = (t)                          \
    }
#define LOG_NUMBER(n, v)                                                       \
    (struct log_field)                                                         \
    {                                                                          \
        .name = (n), .what = LOG_IS_NUMBER, .number = (int64_t)(v)             \
    }
#define LOG_BYTES(n, b)                                                        \
    (struct log_field)                                                         \
    {                                                                          \
        .name = (n), .what = LOG_IS_BYTES, .scope = (b)                        \
    }
/* A record: "key=3f2a9c01d4e5b6a7", or its scope and id with --log-keys. */
#define LOG_KEY(s, i)                                                          \
    (struct log_field)                                                         \
    {                                                                          \
        .name = "key", .what = LOG_IS_KEY, .scope = (s), .id = (i)             \
    }

void server_log_fields(const struct server_log *log, enum log_level level,
                       const char *event, const struct log_field *fields,
                       size_t count);

#define server_log(log, level, event, ...)                                     \
    server_log_fields(log, level, event,                                       \
                      (const struct log_field[]){__VA_ARGS__},                 \
                      sizeof((const struct log_field[]){__VA_ARGS__}) /        \
                          sizeof(struct log_field))

/* Limits lines that any client can cause to LOG_LIMIT of them in LOG_LIMIT_MS.
 * Starts with zeros. Threads: any. */
#define LOG_LIMIT 20
#define LOG_LIMIT_MS 10000

struct log_limit {
    atomic_int_fast64_t window;
    atomic_int_fast64_t count, left_out;
};

/* May a line be written? If so, *left_out says how many were suppressed since
 * the last one. */
bool server_log_may(struct log_limit *limit, int64_t now_ms, int64_t *left_out);

/* The current time, in the format of the log. */
#define LOG_TIME_LEN 64
void server_log_time(char text[LOG_TIME_LEN]);

/* An idem_log_fn for the engine and its store; arg is the server_log. */
void server_log_engine(void *arg, enum idem_log_level level, const char *text);

#endif
