/*
 * store_bench.c - BEGIN + FINISH pairs a second on a store, and what its server
 * does raw with as many writes under way.
 *
 *   store_bench URL [SECONDS [CONCURRENCY]]      through an engine
 *   store_bench raw URL [SECONDS [CONCURRENCY]]  etcd, ZooKeeper: two plain
 *                                                writes by the same library
 *
 * Prints pairs/s and the latency of a pair, p50 and p99 in milliseconds, and
 * how many writes a batch had. For Redis the raw figure is redis-benchmark's.
 */
#include "../src/engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(IDEM_WITH_ETCD)
#include <curl/curl.h>
#endif
#if defined(IDEM_WITH_ZOOKEEPER)
#include <zookeeper/zookeeper.h>
#endif

#define SAMPLES_MAX (1 << 22)
#define VALUE_LEN 256 /* a record with a result of 100 bytes has about that */

static atomic_bool stop;
static atomic_size_t sample_count;
static float *samples_ms;
static atomic_int under_way;
static char value[VALUE_LEN + 1];

static double
seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void
note(double since)
{
    size_t at = atomic_fetch_add(&sample_count, 1);

    if (at < SAMPLES_MAX)
        samples_ms[at] = (float)((seconds() - since) * 1000);
}

static int
compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void
report(double took)
{
    size_t count = atomic_load(&sample_count);
    size_t kept = count < SAMPLES_MAX ? count : SAMPLES_MAX;

    if (kept == 0) {
        printf("0 pairs/s\n");
        return;
    }
    qsort(samples_ms, kept, sizeof(*samples_ms), compare);
    printf("%.0f pairs/s p50 %.2f ms p99 %.2f ms\n", (double)count / took,
           samples_ms[kept / 2], samples_ms[kept * 99 / 100]);
}

static void
wait_for_the_last(double want)
{
    double end = seconds() + want;

    while (seconds() < end)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    atomic_store(&stop, true);
    while (atomic_load(&under_way) > 0)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* ---- through an engine ------------------------------------------------ */

struct pair {
    struct idem_engine *engine;
    char id[40];
    double since;
};

static void begin_pair(struct pair *pair);

static void
finished(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct pair *pair = arg;

    if (status != IDEM_OK || answer->verdict != IDEM_V_OK) {
        fprintf(stderr, "store_bench: finish: %s\n", err ? err->text : "?");
        exit(1);
    }
    note(pair->since);
    if (atomic_load(&stop))
        atomic_fetch_sub(&under_way, 1);
    else
        begin_pair(pair);
}

static void
begun(void *arg, enum idem_status status, const struct idem_answer *answer,
      const struct idem_error *err)
{
    struct pair *pair = arg;
    struct idem_op op = {.verb = IDEM_FINISH,
                         .scope = idem_text("bench"),
                         .id = idem_text(pair->id),
                         .outcome = IDEM_STATE_SUCCEEDED,
                         .result = {value, 100}};

    if (status != IDEM_OK || answer->verdict != IDEM_V_STARTED) {
        fprintf(stderr, "store_bench: begin: %s\n",
                err ? err->text : idem_verdict_name(answer->verdict));
        exit(1);
    }
    op.fence = answer->record->fence;
    if (idem_submit(pair->engine, &op, finished, pair, NULL, NULL) != IDEM_OK)
        exit(1);
}

static void
begin_pair(struct pair *pair)
{
    static atomic_ullong number;
    struct idem_op op = {.verb = IDEM_BEGIN, .scope = idem_text("bench")};

    snprintf(pair->id, sizeof(pair->id), "%lx-%x-%llu", (long)time(NULL),
             (unsigned)getpid(), atomic_fetch_add(&number, 1));
    op.id = idem_text(pair->id);
    pair->since = seconds();
    if (idem_submit(pair->engine, &op, begun, pair, NULL, NULL) != IDEM_OK)
        exit(1);
}

static void
bench_engine(const char *url, double want, int concurrency)
{
    struct pair *pairs = calloc((size_t)concurrency, sizeof(*pairs));
    struct idem_engine *engine;
    struct idem__stats stats;
    struct idem_error err;
    double start;

    if (!pairs || idem_open(url, NULL, &engine, &err) != IDEM_OK) {
        fprintf(stderr, "store_bench: %s\n", err.text);
        exit(1);
    }
    start = seconds();
    atomic_store(&under_way, concurrency);
    for (int i = 0; i < concurrency; i++) {
        pairs[i].engine = engine;
        begin_pair(&pairs[i]);
    }
    wait_for_the_last(want);
    report(seconds() - start);
    idem__stats(engine, &stats);
    printf("%.1f writes a batch\n",
           (double)stats.batched / (double)(stats.batches + !stats.batches));
    idem_close(engine);
    free(pairs);
}

/* ---- etcd, raw -------------------------------------------------------- */

#if defined(IDEM_WITH_ETCD)
static char etcd_url[200];

static size_t
drop(char *data, size_t size, size_t count, void *arg)
{
    (void)data;
    (void)arg;
    return size * count;
}

static void *
etcd_thread(void *arg)
{
    static atomic_ullong number;
    CURL *curl = curl_easy_init();
    char body[VALUE_LEN * 2 + 200];

    (void)arg;
    curl_easy_setopt(curl, CURLOPT_URL, etcd_url);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    while (!atomic_load(&stop)) {
        unsigned long long key = atomic_fetch_add(&number, 1);
        double since = seconds();

        /* 64 letters are base64 of a key as long as ours. */
        snprintf(body, sizeof(body),
                 "{\"key\":\"%064llu%024lx\",\"value\":\"%s\"}", key,
                 (long)time(NULL), value);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
        if (curl_easy_perform(curl) != CURLE_OK ||
            curl_easy_perform(curl) != CURLE_OK)
            exit(1);
        note(since);
    }
    curl_easy_cleanup(curl);
    return NULL;
}

static void
bench_etcd(const char *host, double want, int concurrency)
{
    pthread_t threads[1024];
    double start = seconds();

    snprintf(etcd_url, sizeof(etcd_url), "http://%s/v3/kv/put", host);
    for (int i = 0; i < concurrency; i++)
        pthread_create(&threads[i], NULL, etcd_thread, NULL);
    wait_for_the_last(want);
    for (int i = 0; i < concurrency; i++)
        pthread_join(threads[i], NULL);
    report(seconds() - start);
}
#endif

/* ---- ZooKeeper, raw --------------------------------------------------- */

#if defined(IDEM_WITH_ZOOKEEPER)
struct node {
    zhandle_t *zh;
    char path[100];
    double since;
};

static void create_node(struct node *node);

static void
no_log(const char *message)
{
    (void)message;
}

static void
on_set(int rc, const struct Stat *stat, const void *arg)
{
    struct node *node = (struct node *)arg;

    (void)stat;
    if (rc != ZOK)
        exit(1);
    note(node->since);
    if (atomic_load(&stop))
        atomic_fetch_sub(&under_way, 1);
    else
        create_node(node);
}

static void
on_create(int rc, const char *name, const void *arg)
{
    struct node *node = (struct node *)arg;

    (void)name;
    if (rc != ZOK || zoo_aset(node->zh, node->path, value, VALUE_LEN, -1,
                              on_set, node) != ZOK)
        exit(1);
}

static void
create_node(struct node *node)
{
    static atomic_ullong number;

    node->since = seconds();
    snprintf(node->path, sizeof(node->path), "/raw-%lx-%llu", (long)time(NULL),
             atomic_fetch_add(&number, 1));
    if (zoo_acreate(node->zh, node->path, value, VALUE_LEN,
                    &ZOO_OPEN_ACL_UNSAFE, 0, on_create, node) != ZOK)
        exit(1);
}

static void
bench_zookeeper(const char *host, double want, int concurrency)
{
    struct node *nodes = calloc((size_t)concurrency, sizeof(*nodes));
    zhandle_t *zh;
    double start;

    zh = zookeeper_init2(host, NULL, 10000, NULL, NULL, 0, no_log);
    for (int i = 0; zh && i < 500 && zoo_state(zh) != ZOO_CONNECTED_STATE; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    if (!nodes || !zh || zoo_state(zh) != ZOO_CONNECTED_STATE) {
        fprintf(stderr, "store_bench: %s: not connected\n", host);
        exit(1);
    }
    start = seconds();
    atomic_store(&under_way, concurrency);
    for (int i = 0; i < concurrency; i++) {
        nodes[i].zh = zh;
        create_node(&nodes[i]);
    }
    wait_for_the_last(want);
    report(seconds() - start);
    zookeeper_close(zh);
    free(nodes);
}
#endif

int
main(int argc, char **argv)
{
    bool raw = argc > 1 && strcmp(argv[1], "raw") == 0;
    const char *url = argc > 1 + raw ? argv[1 + raw] : "memory:";
    double want = argc > 2 + raw ? strtod(argv[2 + raw], NULL) : 3;
    int concurrency =
        argc > 3 + raw ? (int)strtol(argv[3 + raw], NULL, 10) : 64;
    const char *host = strstr(url, "://");

    if (concurrency < 1 || concurrency > 1024)
        concurrency = 64;
    samples_ms = malloc(SAMPLES_MAX * sizeof(*samples_ms));
    memset(value, 'v', VALUE_LEN);
    if (!samples_ms)
        return 1;
    if (!raw)
        bench_engine(url, want, concurrency);
#if defined(IDEM_WITH_ETCD)
    else if (host && strncmp(url, "etcd:", 5) == 0)
        bench_etcd(host + 3, want, concurrency);
#endif
#if defined(IDEM_WITH_ZOOKEEPER)
    else if (host && strncmp(url, "zookeeper:", 10) == 0)
        bench_zookeeper(host + 3, want, concurrency);
#endif
    else
        fprintf(stderr, "store_bench: nothing raw for %s\n", url);
    free(samples_ms);
    return 0;
}
