/*
 * engine_bench.c - BEGIN + FINISH pairs a second through one engine.
 *
 *   engine_bench [URL [SECONDS [THREADS ...]]]
 *
 * Each thread begins and finishes a request of its own, one after the other,
 * with the blocking call, as a service would; each pair is two durable writes.
 * "driven" is one event loop with that many requests under way, as the server
 * runs its engine.
 */
#include "../src/engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct idem_engine *engine;
static atomic_bool stop;
static atomic_ullong total;
static char result[100];

static double
seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void
die(const struct idem_error *err)
{
    fprintf(stderr, "engine_bench: %s\n", err->text);
    exit(1);
}

static struct idem_op
begin_op(char *id, size_t room)
{
    static atomic_ullong number;
    int len = snprintf(id, room, "request-%d-%llu", (int)time(NULL),
                       atomic_fetch_add(&number, 1));

    return (struct idem_op){.verb = IDEM_BEGIN,
                            .scope = idem_text("bench"),
                            .id = {id, (size_t)len}};
}

static struct idem_op
finish_op(struct idem_bytes id, uint64_t fence)
{
    return (struct idem_op){.verb = IDEM_FINISH,
                            .scope = idem_text("bench"),
                            .id = id,
                            .fence = fence,
                            .outcome = IDEM_STATE_SUCCEEDED,
                            .result = {result, sizeof(result)}};
}

static void *
run_pairs(void *arg)
{
    unsigned long long pairs = 0;
    struct idem_answer answer;
    struct idem_error err;
    char id[64];

    (void)arg;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        struct idem_op begin = begin_op(id, sizeof(id)), finish;

        if (idem_do(engine, &begin, &answer, &err) != IDEM_OK)
            die(&err);
        finish = finish_op(begin.id, answer.record->fence);
        idem_answer_clear(&answer);
        if (idem_do(engine, &finish, &answer, &err) != IDEM_OK)
            die(&err);
        idem_answer_clear(&answer);
        pairs++;
    }
    atomic_fetch_add(&total, pairs);
    return NULL;
}

/* Processor time of this process so far. */
static double
used(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void
report(const char *how, size_t count, double took, double used_before)
{
    struct idem__stats stats;
    double pairs = (double)atomic_load(&total);

    idem__stats(engine, &stats);
    printf("%-8s %4zu   %9.0f pairs/s   %6.1f writes a commit   "
           "%5.1f us of processor a pair\n",
           how, count, pairs / took,
           (double)stats.batched / (double)(stats.batches + !stats.batches),
           (used() - used_before) * 1e6 / pairs);
    fflush(stdout);
}

static void
bench_threads(const char *url, size_t count, double want)
{
    pthread_t *threads = calloc(count, sizeof(*threads));
    struct idem_error err;
    double start, before = used();

    if (idem_open(url, NULL, &engine, &err) != IDEM_OK)
        die(&err);
    atomic_store(&stop, false);
    atomic_store(&total, 0);
    start = seconds();
    for (size_t i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, run_pairs, NULL);
    while (seconds() - start < want)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    atomic_store(&stop, true);
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    report("threads", count, seconds() - start, before);
    idem_close(engine);
    free(threads);
}

/* One request under way in the event loop. */
struct request {
    char id[64];
    size_t id_len;
    bool begun;
};

static void
next(void *arg, enum idem_status status, const struct idem_answer *answer,
     const struct idem_error *err)
{
    struct request *request = arg;
    struct idem_op op;

    if (status != IDEM_OK)
        die(err);
    if (request->begun) {
        request->begun = false;
        op = finish_op((struct idem_bytes){request->id, request->id_len},
                       answer->record->fence);
    } else {
        request->begun = true;
        op = begin_op(request->id, sizeof(request->id));
        request->id_len = op.id.len;
        atomic_fetch_add_explicit(&total, 1, memory_order_relaxed);
    }
    if (!atomic_load_explicit(&stop, memory_order_relaxed))
        idem_submit(engine, &op, next, request, NULL, NULL);
}

static void
bench_driven(const char *url, size_t count, double want)
{
    struct request *requests = calloc(count, sizeof(*requests));
    struct idem__engine_inner inner = {.driven = true};
    struct idem_answer none = {.verdict = IDEM_V_OK};
    struct idem_error err;
    double start, before = used();

    if (idem__engine_open(url, NULL, &inner, &engine, &err) != IDEM_OK)
        die(&err);
    atomic_store(&stop, false);
    for (size_t i = 0; i < count; i++)
        next(&requests[i], IDEM_OK, &none, NULL);
    atomic_store(&total, 0);
    start = seconds();
    while (seconds() - start < want)
        idem__engine_turn(engine);
    report("driven", count, seconds() - start, before);
    atomic_store(&stop, true);
    idem_close(engine);
    free(requests);
}

int
main(int argc, char **argv)
{
    static const size_t counts[] = {1, 8, 64};
    const char *url = argc > 1 ? argv[1] : "memory:";
    double want = argc > 2 ? strtod(argv[2], NULL) : 2;

    memset(result, 'r', sizeof(result));
    printf("%s, result of %zu bytes\n", url, sizeof(result));
    for (size_t i = 0; argc <= 3 && i < 3; i++)
        bench_threads(url, counts[i], want);
    for (int i = 3; i < argc; i++) {
        if (strtoul(argv[i], NULL, 10) > 0) /* 0: the loop only */
            bench_threads(url, strtoul(argv[i], NULL, 10), want);
    }
    if (strncmp(url, "idem", 4) == 0)
        return 0; /* a server drives its own engine */
    bench_driven(url, 64, want);
    bench_driven(url, 256, want);
    return 0;
}
