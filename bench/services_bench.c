/*
 * services_bench.c - ids a second on one core, lock and unlock pairs a second.
 *
 *   services_bench ids URL SECONDS
 *   services_bench locks URL SECONDS THREADS
 */
#include "../src/store/store.h"

#include <idem/id.h>
#include <idem/lock.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t
now_us(void)
{
    return idem__system_clocks.boot_us(NULL);
}

static void
die(const char *text)
{
    fprintf(stderr, "services_bench: %s\n", text);
    exit(1);
}

static struct idem_engine *
open_engine(const char *url)
{
    struct idem_engine *engine = NULL;
    struct idem_error err;

    if (idem_open(url, NULL, &engine, &err) != IDEM_OK)
        die(err.text);
    return engine;
}

/* ---- ids ---------------------------------------------------------------- */

static double
rate(struct idem_ids *ids, enum idem_id_kind kind, size_t at_once,
     double seconds)
{
    uint64_t out[1000], count = 0;
    struct idem_error err = {0};
    int64_t start, end;

    /* the first one leases a worker number or fetches a range */
    if (idem_ids_next(ids, kind, idem_text("bench"), out, 1, &err) != IDEM_OK)
        die(err.text);
    start = now_us();
    end = start + (int64_t)(seconds * 1e6);
    while (now_us() < end) {
        for (int i = 0; i < 100; i++) {
            if (idem_ids_next(ids, kind, idem_text("bench"), out, at_once,
                              &err) != IDEM_OK)
                die(err.text);
            count += at_once;
        }
    }
    return (double)count / ((double)(now_us() - start) / 1e6);
}

static void
bench_ids(const char *url, double seconds)
{
    static const struct {
        enum idem_id_kind kind;
        double goal;
        const char *against;
    } rows[] = {
        {IDEM_ID_SNOWFLAKE, 4.096e6, "its bit limit"},
        {IDEM_ID_UID, 10e6, "the goal"},
        {IDEM_ID_SEGMENT, 10e6, "the goal"},
    };
    const struct idem_ids_options options = {.segment_step = 1000000};
    struct idem_engine *engine = open_engine(url);
    struct idem_ids *ids = NULL;
    struct idem_error err;

    if (idem_ids_open(engine, &options, &ids, &err) != IDEM_OK)
        die(err.text);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double one = rate(ids, rows[i].kind, 1, seconds);
        double many = rate(ids, rows[i].kind, 100, seconds);

        printf("%-10s one a call %6.2f M/s, 100 a call %6.2f M/s; %s %.2f M/s, "
               "ratio %.2f\n",
               idem_id_kind_name(rows[i].kind), one / 1e6, many / 1e6,
               rows[i].against, rows[i].goal / 1e6,
               (one > many ? one : many) / rows[i].goal);
    }
    idem_ids_close(ids);
    idem_close(engine);
}

/* ---- locks -------------------------------------------------------------- */

struct worker {
    struct idem_engine *engine;
    int number;
    int64_t end_us;
    uint64_t pairs;
};

static void
op_pair(struct worker *w, const char *name)
{
    struct idem_op op = {.verb = IDEM_LOCK,
                         .scope = idem_text(IDEM_LOCK_SCOPE),
                         .id = idem_text(name),
                         .subject = idem_text("bench"),
                         .lease_ms = 30000};
    struct idem_answer answer;
    struct idem_error err;

    if (idem_do(w->engine, &op, &answer, &err) != IDEM_OK)
        die(err.text);
    op.verb = IDEM_UNLOCK;
    op.fence = answer.record->fence;
    idem_answer_clear(&answer);
    if (idem_do(w->engine, &op, &answer, &err) != IDEM_OK)
        die(err.text);
    idem_answer_clear(&answer);
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    char name[32];

    snprintf(name, sizeof(name), "lock-%d", w->number);
    while (now_us() < w->end_us) {
        op_pair(w, name);
        w->pairs++;
    }
    return NULL;
}

static void
bench_locks(struct idem_engine *engine, double seconds, int threads)
{
    struct worker workers[256];
    pthread_t thread[256];
    int64_t start = now_us();
    uint64_t pairs = 0;

    if (threads < 1 || threads > 256)
        die("1 to 256 threads");
    for (int i = 0; i < threads; i++) {
        workers[i] =
            (struct worker){engine, i, start + (int64_t)(seconds * 1e6), 0};
        pthread_create(&thread[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        pairs += workers[i].pairs;
    }
    printf("%.0f\n", (double)pairs / ((double)(now_us() - start) / 1e6));
}

int
main(int argc, char **argv)
{
    double seconds = argc > 3 ? strtod(argv[3], NULL) : 0;

    if (argc == 4 && strcmp(argv[1], "ids") == 0) {
        bench_ids(argv[2], seconds);
    } else if (argc == 5 && strcmp(argv[1], "locks") == 0) {
        struct idem_engine *engine = open_engine(argv[2]);

        bench_locks(engine, seconds, (int)strtol(argv[4], NULL, 10));
        idem_close(engine);
    } else {
        die("usage: see the head of services_bench.c");
    }
    return 0;
}
