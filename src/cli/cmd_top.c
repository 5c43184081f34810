/*
 * cmd_top.c - idem top: show what a server is doing, once a second, from INFO.
 *
 * Rates are differences between two samples; everything else is from the last
 * sample.
 */
#include "../remote/remote.h"
#include "top.h"
#include "where.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct top {
    struct cli_where where;
    int64_t every_ms, count;
    bool once;
};

static volatile sig_atomic_t interrupted;

static void
on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static enum idem_status
take_look(struct idem__remote_line *line, struct top_look *look,
          struct idem_error *err)
{
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_reply reply;
    struct idem__wire_value info;
    enum idem_status status;

    idem__wire_add(&args, idem_text("INFO"));
    status = idem__remote_line_ask(line, &args, &reply, err);
    if (status != IDEM_OK)
        return status;
    look->at_us = idem__mono_us();
    if (idem__wire_read(&reply.reader, &info) == IDEM__WIRE_DONE &&
        info.kind == IDEM__WIRE_BYTES)
        look->text = strndup(info.bytes.data, info.bytes.len);
    return look->text ? IDEM_OK
                      : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}

const char *
top_find(const struct top_look *look, const char *name)
{
    size_t len = strlen(name);
    const char *at = look->text;

    while ((at = strstr(at, name))) {
        if ((at == look->text || at[-1] == '\n') && at[len] == ':')
            return at + len + 1;
        at += len;
    }
    return NULL;
}

static double
number(const struct top_look *look, const char *name)
{
    const char *value = top_find(look, name);

    return value ? strtod(value, NULL) : 0;
}

static double
rate(const struct top_look *then, const struct top_look *now, const char *name)
{
    double seconds = (double)(now->at_us - then->at_us) / 1e6;

    return seconds > 0 ? (number(now, name) - number(then, name)) / seconds : 0;
}

/* Buckets of 16, 32, 64 ... microseconds; see the server's metrics. */
#define BUCKETS 20

static void
buckets(const struct top_look *look, const char *name, double *into)
{
    const char *at = top_find(look, name);

    for (int i = 0; i < BUCKETS; i++) {
        char *end = NULL;

        into[i] = at ? strtod(at, &end) : 0;
        at = end && *end == ',' ? end + 1 : NULL;
    }
}

/* The latency below which this part of the answers stayed; 0: no answers. */
static double
percentile_us(const struct top_look *then, const struct top_look *now,
              enum idem_verb verb, double part)
{
    double before[BUCKETS], after[BUCKETS], all = 0, sum = 0;
    char name[32];

    snprintf(name, sizeof(name), "latency_%s", idem_verb_name(verb));
    buckets(then, name, before);
    buckets(now, name, after);
    for (int i = 0; i < BUCKETS; i++)
        all += after[i] - before[i];
    for (int i = 0; i < BUCKETS && all > 0; i++) {
        sum += after[i] - before[i];
        if (sum >= all * part)
            return (double)(UINT64_C(16) << i);
    }
    return 0;
}

static int
word_len(const char *value)
{
    return value ? (int)strcspn(value, "\r\n") : 0;
}

/* ---- printing ------------------------------------------------------------ */

static const char *const gauges[] = {"connected_clients", "parked",
                                     "locks_waiting",     "queued",
                                     "buffered_bytes",    "uptime_in_seconds"};
static const char *const rates[] = {"total_commands_processed", "batches",
                                    "batched", "store_errors"};

static void
show_json(const struct top_look *then, const struct top_look *now)
{
    json_t *object = json_object(), *verdicts = json_object();
    json_t *latency = json_object();
    char name[64];

    for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
        json_object_set_new(object, gauges[i],
                            json_real(number(now, gauges[i])));
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        snprintf(name, sizeof(name), "%s_per_second", rates[i]);
        json_object_set_new(object, name, json_real(rate(then, now, rates[i])));
    }
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++) {
        const char *word = idem_verdict_name((enum idem_verdict)i);

        snprintf(name, sizeof(name), "verdict_%s", word);
        json_object_set_new(verdicts, word, json_real(rate(then, now, name)));
    }
    json_object_set_new(object, "verdicts_per_second", verdicts);
    for (int i = 0; i < IDEM__VERB_COUNT; i++) {
        const char *word = idem_verb_name((enum idem_verb)i);
        double p50 = percentile_us(then, now, (enum idem_verb)i, 0.5);

        if (p50 > 0)
            json_object_set_new(
                latency, word,
                json_pack("{s:f, s:f}", "p50_us", p50, "p99_us",
                          percentile_us(then, now, (enum idem_verb)i, 0.99)));
    }
    json_object_set_new(object, "latency", latency);
    if (top_find(now, "doubts")) {
        json_object_set_new(object, "doubts", json_real(number(now, "doubts")));
        json_object_set_new(object, "oldest_doubt_seconds",
                            json_real(number(now, "oldest_doubt_seconds")));
    }
    json_object_set_new(object, "routes", top_routes_json(then, now));
    json_object_set_new(object, "store", top_store_json(now));
    cli_json_print(object);
}

/* Doubts come from a scan of the store, which takes the server a moment. */
static void
show_doubts(const struct top_look *now)
{
    double count = number(now, "doubts");

    if (!top_find(now, "doubts")) {
        printf("%-12s %10s    %-12s %10s\n\n", "doubts", "-", "oldest", "-");
        return;
    }
    printf("%s%-12s %10.0f    %-12s %8.0f s%s\n\n",
           cli_colour(count > 0 ? CLI_RED : CLI_PLAIN), "doubts", count,
           "oldest", number(now, "oldest_doubt_seconds"),
           cli_colour(CLI_PLAIN));
}

static void
show_text(const struct top_look *then, const struct top_look *now)
{
    const char *store = top_find(now, "store");
    double batches = rate(then, now, "batches");
    char name[64];

    printf("idem %.*s  store %.*s  up %.0f s\n\n",
           word_len(top_find(now, "idem_version")),
           top_find(now, "idem_version"), word_len(store), store ? store : "",
           number(now, "uptime_in_seconds"));
    printf("%-12s %10.0f    %-12s %10.0f\n", "clients",
           number(now, "connected_clients"), "commands/s",
           rate(then, now, "total_commands_processed"));
    printf("%-12s %10.0f    %-12s %10.0f\n", "parked", number(now, "parked"),
           "commits/s", batches);
    printf("%-12s %10.0f    %-12s %10.1f\n", "queued", number(now, "queued"),
           "batch size",
           batches > 0 ? rate(then, now, "batched") / batches : 0);
    printf("%-12s %10.0f    %-12s %10.0f\n\n", "buffered",
           number(now, "buffered_bytes"), "store errors",
           number(now, "store_errors"));
    show_doubts(now);
    printf("%-12s %10s    %s\n", "verdict", "per second", "in all");
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++) {
        const char *word = idem_verdict_name((enum idem_verdict)i);

        snprintf(name, sizeof(name), "verdict_%s", word);
        if (number(now, name) > 0)
            printf("%-12s %10.0f    %.0f\n", word, rate(then, now, name),
                   number(now, name));
    }
    printf("\n%-12s %10s    %s\n", "verb", "p50 below", "p99 below");
    for (int i = 0; i < IDEM__VERB_COUNT; i++) {
        double p50 = percentile_us(then, now, (enum idem_verb)i, 0.5);

        if (p50 > 0)
            printf("%-12s %7.2f ms    %.2f ms\n",
                   idem_verb_name((enum idem_verb)i), p50 / 1000,
                   percentile_us(then, now, (enum idem_verb)i, 0.99) / 1000);
    }
    top_show_routes(then, now);
    top_show_store(now);
}

static void
show(const struct top_look *then, const struct top_look *now, bool clear)
{
    if (clear)
        printf("\033[H\033[2J");
    if (cli_json)
        show_json(then, now);
    else
        show_text(then, now);
    fflush(stdout);
}

/* ---- sampling ------------------------------------------------------------ */

static void
pause_ms(int64_t ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&left, NULL); /* a signal may end it early */
}

static enum idem_status
watch(const struct top *top, struct idem__remote_line *line,
      struct idem_error *err)
{
    bool clear = !cli_json && !top->once && isatty(STDOUT_FILENO);
    struct top_look then = {0}, now = {0};
    enum idem_status status = take_look(line, &then, err);

    for (int64_t i = 0; status == IDEM_OK && !interrupted; i++) {
        pause_ms(top->every_ms);
        if (interrupted)
            break;
        status = take_look(line, &now, err);
        if (status != IDEM_OK)
            break;
        show(&then, &now, clear);
        free(then.text);
        then = now;
        now = (struct top_look){0};
        if (top->once || (top->count > 0 && i + 1 >= top->count))
            break;
    }
    free(then.text);
    free(now.text);
    return status;
}

int
cli_top(int argc, char **argv)
{
    struct top top = {.every_ms = 1000};
    const struct cli_option options[] = {
        CLI_SERVER_OPTIONS(&top.where),
        {"every", 'e', CLI_MS, &top.every_ms, "TIME", "interval; default 1s"},
        {"count", 'n', CLI_NUMBER, &top.count, "N",
         "stop after this many; default: until interrupted"},
        {"once", 0, CLI_FLAG, &top.once, NULL, "show it once, then stop"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "top [options]",
        .about = "Show what a server is doing: clients, waiting duplicates, "
                 "doubts, commits, "
                 "verdicts per second, and latency by verb since the last "
                 "time. It also shows the "
                 "routes of a gateway and the figures of the store. With "
                 "--json, one object each "
                 "time.",
        .options = options,
    };
    struct sigaction stop = {.sa_handler = on_interrupt};
    struct idem__remote_line line;
    struct idem_error err = {0};
    int code = cli_parse(&syntax, argc, argv, NULL, NULL);

    if (code >= 0)
        return code;
    if (top.every_ms < 10)
        return cli_usage_error("--every must be at least 10ms");
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    err.status = cli_line_open(&top.where, &line, &err);
    if (err.status == IDEM_OK) {
        err.status = watch(&top, &line, &err);
        idem__remote_line_close(&line);
    }
    return err.status == IDEM_OK ? CLI_OK : cli_fail(&err);
}
