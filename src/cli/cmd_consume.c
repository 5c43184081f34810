/*
 * cmd_consume.c - idem consume: handle each message of a broker once.
 */
#include "../serve/core/systemd.h"
#include "where.h"

#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LAG_EVERY_TENTHS 50 /* tenths of a second */

struct consume {
    struct cli_where where;
    struct idem_consume_options options;
    const char *to, *metrics;
    bool loose, quiet;
    int64_t lease_ms, ttl_ms, concurrency, prefetch, attempts, backoff_ms;
    int64_t timeout_ms, until_idle_ms;
};

static struct idem_consumer *running;

static void
on_signal(int number)
{
    (void)number;
    idem_consume_stop(running);
}

static void
print_stats(FILE *out, const struct idem_consume_stats *s)
{
    fprintf(out,
            "received %llu, handled %llu, duplicates %llu, retries %llu, dead "
            "letters %llu, doubts %llu, put back %llu, reconnects %llu",
            (unsigned long long)s->received, (unsigned long long)s->handled,
            (unsigned long long)s->duplicates, (unsigned long long)s->retries,
            (unsigned long long)s->dead_letters, (unsigned long long)s->doubts,
            (unsigned long long)s->put_back, (unsigned long long)s->reconnects);
}

static json_t *
stats_json(const struct idem_consume_stats *s)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "received",
                     (json_int_t)s->received, "handled", (json_int_t)s->handled,
                     "duplicates", (json_int_t)s->duplicates, "retries",
                     (json_int_t)s->retries, "dead_letters",
                     (json_int_t)s->dead_letters, "doubts",
                     (json_int_t)s->doubts, "put_back", (json_int_t)s->put_back,
                     "reconnects", (json_int_t)s->reconnects, "in_flight",
                     (json_int_t)s->in_flight);
}

/* A byte that would need an escape in a label is percent-encoded. */
static void
print_label(FILE *out, struct idem_bytes text)
{
    const unsigned char *bytes = text.data;

    for (size_t i = 0; i < text.len; i++)
        fprintf(out,
                bytes[i] < 0x20 || bytes[i] >= 0x7f || bytes[i] == '"' ||
                        bytes[i] == '\\'
                    ? "%%%02X"
                    : "%c",
                bytes[i]);
}

static void
print_figure(FILE *out, const char *name, struct idem_bytes scope,
             const char *what, uint64_t value)
{
    fprintf(out, "%s{scope=\"", name);
    print_label(out, scope);
    fprintf(out, what ? "\",what=\"%s\"} %llu\n" : "\"%s} %llu\n",
            what ? what : "", (unsigned long long)value);
}

static void
print_metrics(FILE *out, struct idem_bytes scope,
              const struct idem_consume_stats *s, int64_t lag)
{
    const struct {
        const char *name;
        uint64_t value;
    } whats[] = {
        {"received", s->received},        {"handled", s->handled},
        {"duplicate", s->duplicates},     {"retry", s->retries},
        {"dead_letter", s->dead_letters}, {"doubt", s->doubts},
        {"put_back", s->put_back},
    };

    fputs("# HELP idem_consume_messages_total Messages, by their "
          "outcome.\n# TYPE idem_consume_messages_total counter\n",
          out);
    for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++)
        print_figure(out, "idem_consume_messages_total", scope, whats[i].name,
                     whats[i].value);
    fputs("# HELP idem_consume_reconnects_total Times that the connection to "
          "the broker was lost.\n"
          "# TYPE idem_consume_reconnects_total counter\n",
          out);
    print_figure(out, "idem_consume_reconnects_total", scope, NULL,
                 s->reconnects);
    fputs("# HELP idem_consume_in_flight Messages taken and not yet "
          "concluded.\n# TYPE idem_consume_in_flight gauge\n",
          out);
    print_figure(out, "idem_consume_in_flight", scope, NULL, s->in_flight);
    if (lag < 0)
        return;
    fputs("# HELP idem_consume_lag_messages Messages that wait at the broker, "
          "by the last query.\n# TYPE idem_consume_lag_messages gauge\n",
          out);
    print_figure(out, "idem_consume_lag_messages", scope, NULL, (uint64_t)lag);
}

/* Write Prometheus text and replace the file atomically, for a node exporter's
 * textfile folder or other readers. */
static bool
write_metrics(const char *path, struct idem_bytes scope,
              const struct idem_consume_stats *s, int64_t lag)
{
    char temporary[4096];
    FILE *out;
    int fd;

    if (snprintf(temporary, sizeof(temporary), "%s.tmp", path) >=
        (int)sizeof(temporary))
        return false;
    /* Remove a file that was left over or that somebody else put there; never
     * write into it. */
    (void)unlink(temporary);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!out)
        return false;
    print_metrics(out, scope, s, lag);
    return fclose(out) == 0 && rename(temporary, path) == 0;
}

/* Shows the progress once a second, until `over` is set. */
struct consume_progress {
    const struct consume *consume;
    struct idem_consumer *consumer;
    int64_t lag; /* atomic; -1: not known */
    bool over;   /* atomic */
};

static bool
is_shown(const struct consume *c)
{
    return isatty(STDERR_FILENO) && !c->quiet && !cli_json;
}

/* Sleep for so many tenths of a second. False: it is over. */
static bool
sleep_until_next(const struct consume_progress *p, int tenths)
{
    bool over = __atomic_load_n(&p->over, __ATOMIC_ACQUIRE);

    for (int i = 0; i < tenths && !over; i++) {
        usleep(100000);
        over = __atomic_load_n(&p->over, __ATOMIC_ACQUIRE);
    }
    return !over;
}

/* Has its own thread, because a broker may take seconds to reply. */
static void *
watch_lag(void *arg)
{
    struct consume_progress *p = arg;

    do {
        int64_t lag;

        if (idem_consume_lag(p->consumer, &lag, NULL) != IDEM_OK)
            lag = -1;
        __atomic_store_n(&p->lag, lag, __ATOMIC_RELAXED);
    } while (sleep_until_next(p, LAG_EVERY_TENTHS));
    return NULL;
}

static void *
show_progress(void *arg)
{
    struct consume_progress *p = arg;
    bool terminal = is_shown(p->consume);

    while (sleep_until_next(p, 10)) {
        int64_t lag = __atomic_load_n(&p->lag, __ATOMIC_RELAXED);
        struct idem_consume_stats stats;

        idem_consume_stats(p->consumer, &stats);
        if (terminal) {
            fprintf(stderr, "\r\033[K");
            print_stats(stderr, &stats);
            if (lag >= 0)
                fprintf(stderr, ", waiting at the broker %lld", (long long)lag);
        }
        if (p->consume->metrics)
            write_metrics(p->consume->metrics, idem_consume_scope(p->consumer),
                          &stats, lag);
    }
    if (terminal)
        fprintf(stderr, "\r\033[K");
    return NULL;
}

static void
report(const struct consume_progress *p, const struct idem_consume_stats *stats)
{
    const struct consume *c = p->consume;

    if (c->metrics)
        write_metrics(c->metrics, idem_consume_scope(p->consumer), stats,
                      p->lag);
    if (cli_json) {
        cli_json_print(stats_json(stats));
    } else if (!c->quiet) {
        print_stats(stderr, stats);
        fputc('\n', stderr);
    }
}

static int
consume_until_stopped(const struct consume *c, struct idem_consumer *consumer)
{
    struct sigaction stop = {.sa_handler = on_signal};
    struct consume_progress progress = {
        .consume = c, .consumer = consumer, .lag = -1};
    struct idem_consume_stats stats;
    struct idem_error err = {0};
    bool shown, watched;
    pthread_t shows, watches;

    running = consumer;
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    systemd_notify("READY=1");
    shown = pthread_create(&shows, NULL, show_progress, &progress) == 0;
    watched = (c->metrics || is_shown(c)) &&
              pthread_create(&watches, NULL, watch_lag, &progress) == 0;
    err.status = idem_consume_run(consumer, &err);
    systemd_notify("STOPPING=1");
    __atomic_store_n(&progress.over, true, __ATOMIC_RELEASE);
    if (shown)
        pthread_join(shows, NULL);
    if (watched)
        pthread_join(watches, NULL);
    idem_consume_stats(consumer, &stats);
    report(&progress, &stats);
    return err.status == IDEM_OK ? CLI_OK : cli_fail(&err);
}

static void
log_line(void *arg, enum idem_log_level level, const char *text)
{
    static const char *const names[] = {"info", "warning", "alarm"};

    (void)arg;
    fprintf(stderr, "%sidem: %s: %s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "",
            names[level], text);
}

static int
to_int(int64_t number)
{
    return number < INT_MAX ? (int)number : INT_MAX;
}

static void
fill(struct consume *c)
{
    c->options.mode = c->loose ? IDEM_LOOSE : IDEM_STRICT;
    c->options.lease_ms = c->lease_ms;
    c->options.ttl_ms = c->ttl_ms;
    c->options.concurrency = to_int(c->concurrency);
    c->options.prefetch = to_int(c->prefetch);
    c->options.max_attempts = to_int(c->attempts);
    c->options.backoff_ms = c->backoff_ms;
    c->options.stop_when_idle_ms = c->until_idle_ms;
    c->options.log = log_line;
}

static int
run(struct consume *c, char **command)
{
    struct command_sink sink = {command, c->timeout_ms};
    struct http_sink *http = NULL;
    struct idem_engine *engine = NULL;
    struct idem_consumer *consumer = NULL;
    struct idem_error err = {0};
    const char *store = cli_store_url(&c->where);
    int code;

    if (!store)
        return cli_usage_error("consume: no store is given for the records; "
                               "give --store URL or set IDEM_STORE");
    fill(c);
    c->options.handle = command_sink_handle;
    c->options.arg = &sink;
    if (c->to) {
        err.status = http_sink_open(c->to, c->timeout_ms, &http, &err);
        c->options.handle = http_sink_handle;
        c->options.arg = http;
    }
    if (err.status == IDEM_OK)
        err.status = cli_store_open(&c->where, store, NULL, &engine, &err);
    if (err.status == IDEM_OK)
        err.status = idem_consume_open(engine, &c->options, &consumer, &err);
    if (err.status == IDEM_OK && c->metrics &&
        !write_metrics(c->metrics, idem_consume_scope(consumer),
                       &(struct idem_consume_stats){0}, -1))
        code = cli_usage_error("consume: cannot write --metrics %s: %s",
                               c->metrics, strerror(errno));
    else
        code = err.status == IDEM_OK ? consume_until_stopped(c, consumer)
                                     : cli_fail(&err);
    idem_consume_close(consumer);
    idem_close(engine);
    http_sink_close(http);
    return code;
}

static const char about[] =
    "Take messages from a broker and handle each one once, even if the broker "
    "delivers it again: claim, handle, record, acknowledge.\n"
    "\n"
    "SOURCE is one of\n"
    "  'amqp://user:password@host/vhost?queue=orders'  (TLS: amqps://)\n"
    "  'redis-stream://host:6379?stream=orders&group=mail'  (TLS: "
    "rediss-stream://)\n"
    "  'kafka://host:9092?topic=orders&group=mail'  (experimental)\n"
    "  'nats://host:4222?stream=ORDERS&durable=mail'\n"
    "\n"
    "A command gets the message on standard input and IDEM_ID, IDEM_SCOPE, "
    "IDEM_FENCE, IDEM_ATTEMPT in its environment. Exit code 0: handled; 75: "
    "nothing happened, retry; 65: it can never succeed; others: failed.\n"
    "A URL gets it as the body of a POST with Idempotency-Key and Idem-Fence. "
    "2xx: handled; 425, 429, 503, 409 with Retry-After: nothing happened, "
    "retry; other 4xx: it can never succeed; others: failed. If the service is "
    "unreachable, the message is retried until it responds.\n"
    "\n"
    "  idem consume 'amqp://localhost?queue=orders' -s "
    "journal:/var/lib/orders \\\n"
    "      --to http://localhost:8080/orders\n"
    "  idem consume 'redis-stream://localhost?stream=mail&group=sender' \\\n"
    "      -s redis://localhost --loose -- ./send-mail.sh\n"
    "\n"
    "docs/messages.md explains what happens when a part fails.";

/* -1: go on; else the exit code. */
static int
check_usage(const struct consume *c, bool has_command)
{
    if (!c->concurrency || !c->attempts || !c->backoff_ms || !c->timeout_ms)
        return cli_usage_error("consume: --concurrency, --attempts, --backoff "
                               "and --timeout must be at least 1");
    if (c->to && has_command)
        return cli_usage_error("consume: give --to URL or a command, not both");
    if (!c->to && !has_command)
        return cli_usage_error(
            "consume: no handler is given; give --to URL, or -- and a command");
    return -1;
}

/* What the options set. */
static struct consume given = {
    .concurrency = 4, .attempts = 5, .backoff_ms = 200, .timeout_ms = 60000};

static const struct cli_option options[] = {
    {"store", 's', CLI_TEXT, &given.where.store, "URL",
     "the store for the records: redis://HOST, journal:DIR "
     "(for one consumer), ...; default: IDEM_STORE"},
    CLI_SEAL_OPTION(&given.where),
    {"to", 't', CLI_TEXT, &given.to, "URL",
     "POST each message to this URL instead of running a "
     "command"},
    {"consumer", 'c', CLI_TEXT, &given.options.consumer, "NAME",
     "the name of this consumer; consumers with different "
     "names each handle every message once (default: the "
     "group, or \"default\")"},
    {"identity", 'i', CLI_TEXT, &given.options.identity, "WHAT",
     "how to recognise the same message: id (the message "
     "id; default), header:NAME, json:FIELD, position"},
    {"order-by", 0, CLI_TEXT, &given.options.order_by, "WHAT",
     "messages with the same value of this are handled in "
     "order (default: the identity)"},
    {"loose", 0, CLI_FLAG, &given.loose, NULL,
     "retry after failures and crashes (strict: a failure "
     "is final, and a crash is a doubt)"},
    {"lease", 'l', CLI_MS, &given.lease_ms, "TIME",
     "how long a claim stays after its consumer died (30s)"},
    {"ttl", 0, CLI_MS, &given.ttl_ms, "TIME",
     "how long a handled message is remembered (24h)"},
    {"concurrency", 'n', CLI_NUMBER, &given.concurrency, "N",
     "messages that are handled at the same time (4)"},
    {"prefetch", 0, CLI_NUMBER, &given.prefetch, "N",
     "messages fetched ahead (16 for each handler)"},
    {"attempts", 0, CLI_NUMBER, &given.attempts, "N",
     "attempts before the dead letter queue (5)"},
    {"backoff", 0, CLI_MS, &given.backoff_ms, "TIME",
     "pause before the second attempt; doubled each time "
     "(200ms)"},
    {"timeout", 0, CLI_MS, &given.timeout_ms, "TIME",
     "time limit for one command or request (60s)"},
    {"dead-letter", 0, CLI_TEXT, &given.options.dead_letter, "NAME",
     "queue, stream or topic for messages that cannot be "
     "handled (SOURCE.dead)"},
    {"doubt", 0, CLI_TEXT, &given.options.doubt, "NAME",
     "the same for messages that may have been handled "
     "(SOURCE.doubt)"},
    {"until-idle", 0, CLI_MS, &given.until_idle_ms, "TIME",
     "exit after this time without a message, with an error "
     "if the broker was unreachable (default: never)"},
    {"metrics", 0, CLI_TEXT, &given.metrics, "FILE",
     "keep Prometheus metrics in this file"},
    {"quiet", 'q', CLI_FLAG, &given.quiet, NULL,
     "do not print progress and counts"},
    {0},
};

int
cli_consume(int argc, char **argv)
{
    const struct cli_syntax syntax = {
        .usage =
            "consume SOURCE [options] --to URL\n"
            "       idem consume SOURCE [options] -- COMMAND [ARGUMENT...]",
        .about = about,
        .options = options,
        .min_args = 1,
        .max_args = (size_t)-1,
    };
    char **args;
    size_t count;
    int code = cli_parse(&syntax, argc, argv, &args, &count);

    if (code >= 0)
        return code;
    given.options.source = args[0];
    args[count] = NULL;
    code = check_usage(&given, count > 1);
    if (code >= 0)
        return code;
    return run(&given, args + 1);
}
