/*
 * host.c - what stores need from the machine: clocks, random numbers, a log.
 */
#include "store.h"

#include <pthread.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static int64_t
read_us(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t
wall_us(void *arg)
{
    (void)arg;
    return read_us(CLOCK_REALTIME);
}

static int64_t
boot_us(void *arg)
{
    (void)arg;
    return read_us(CLOCK_BOOTTIME);
}

/* The shift of the boot clock by the time namespace, as text. The kernel reuses
 * the number of a namespace that has ended, so the number alone is not
 * enough. */
static void
boot_shift(char shift[48])
{
    FILE *file = fopen("/proc/self/timens_offsets", "re");
    char clock[16], seconds[24], ns[16];

    snprintf(shift, 48, "0"); /* this kernel has no time namespaces */
    while (file && fscanf(file, "%15s %23s %15s", clock, seconds, ns) == 3) {
        if (strcmp(clock, "boottime") == 0)
            snprintf(shift, 48, "%s.%s", seconds, ns);
    }
    if (file)
        fclose(file);
}

/* The kernel's id of this boot, and of the time namespace, which can shift the
 * boot clock of a container. */
static bool
boot_id(void *arg, char id[IDEM__BOOT_ID_LEN])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    char boot[40] = "", space[40] = "", shift[48];
    ssize_t len = readlink("/proc/self/ns/time", space, sizeof(space) - 1);
    bool read = file && fscanf(file, "%39s", boot) == 1;

    (void)arg;
    if (file)
        fclose(file);
    if (len < 0)
        space[0] = 0; /* this kernel has no time namespaces */
    boot_shift(shift);
    snprintf(id, IDEM__BOOT_ID_LEN, "%s/%s/%s", boot, space, shift);
    return read;
}

/* NTP sets this state; setting the clock by hand clears it. */
static bool
synced(void *arg)
{
    struct timex state = {.modes = 0};

    (void)arg;
    return adjtimex(&state) >= 0 && !(state.status & STA_UNSYNC);
}

const struct idem_clocks idem__system_clocks = {wall_us, boot_us, NULL, boot_id,
                                                synced};

void
idem__log(const struct idem_store_options *options, enum idem_log_level level,
          const char *format, ...)
{
    static const char *const names[] = {"info", "warning", "alarm"};
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (options && options->log)
        options->log(options->log_arg, level, text);
    else if (level != IDEM_LOG_INFO)
        fprintf(stderr, "idem: %s: %s\n", names[level], text);
}

/* Random numbers are generated in pools, one pool per thread. A child process
 * must not use the numbers of its parent, so a fork empties every pool. Two
 * machines that were started from one snapshot of their memory have the same
 * pool, so the time is added. */
#define POOL_LEN 512

struct pool {
    uint64_t words[POOL_LEN];
    size_t left;
    unsigned generation;
};

static _Thread_local struct pool pool;
static atomic_uint generation = 1;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void
forked(void)
{
    atomic_fetch_add(&generation, 1);
}

static void
watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

static void
fill_pool(unsigned now)
{
    uint8_t seed[randombytes_SEEDBYTES];

    pthread_once(&fork_once, watch_forks);
    /* Get a seed from the system; the pool is generated from it. */
    randombytes_buf(seed, sizeof(seed));
    randombytes_buf_deterministic(pool.words, sizeof(pool.words), seed);
    sodium_memzero(seed, sizeof(seed));
    pool.left = POOL_LEN;
    pool.generation = now;
}

uint64_t
idem__new_rev(void)
{
    unsigned now = atomic_load_explicit(&generation, memory_order_relaxed);
    struct timespec time;
    uint64_t rev;

    clock_gettime(CLOCK_REALTIME, &time);
    do {
        if (pool.left == 0 || pool.generation != now)
            fill_pool(now);
        rev = pool.words[--pool.left] ^
              ((uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec);
        pool.words[pool.left] = 0;
    } while (rev == 0);
    return rev;
}

int64_t
idem__system_boot_us(void)
{
    return idem__system_clocks.boot_us(NULL);
}

/* ---- functions for all stores ------------------------------------------- */

void *
idem__store_make(const struct idem_store_type *type,
                 const struct idem_store_options *options,
                 struct idem_error *err)
{
    struct idem_store *store = calloc(1, type->size);

    if (!store) {
        idem__fail(err, IDEM_ERR_MEMORY, "%s: out of memory", type->scheme);
        return NULL;
    }
    store->type = type;
    store->max_record = idem__encoded_max(IDEM_RESULT_MAX);
    store->options = *options;
    store->clocks = options->clocks ? options->clocks : &idem__system_clocks;
    return store;
}

enum idem_status
idem__store_opened(struct idem_store *made, enum idem_status status,
                   struct idem_store **store)
{
    if (status == IDEM_OK)
        *store = made;
    else
        idem__store_close(made);
    return status;
}

bool
idem__store_refuses_login(const char *text)
{
    return strstr(text, "WRONGPASS") || strstr(text, "NOAUTH") ||
           strstr(text, "Access denied for user") ||
           strstr(text, "password authentication failed") ||
           strstr(text, "no password supplied");
}

/* "Connection refused", "wrong password": the libraries say what happened and
 * not what to do. A message of ours that does has it after a semicolon. */
static void
advise(const char *url, struct idem_error *err)
{
    size_t len = strlen(err->text);

    len -= len > 0 && err->text[len - 1] == '.';
    if (strstr(url, "://") && strstr(err->text, "database") &&
        (strstr(err->text, "does not exist") ||
         strstr(err->text, "Unknown database")))
        snprintf(err->text + len, sizeof(err->text) - len,
                 "; create the database first, or correct its name in the "
                 "store's URL");
    else if (strstr(url, "://") && !strchr(err->text, ';') &&
             idem__store_refuses_login(err->text))
        snprintf(err->text + len, sizeof(err->text) - len,
                 "; correct the user and password in the store's URL");
    else if (strstr(url, "://") && !strchr(err->text, ';'))
        snprintf(err->text + len, sizeof(err->text) - len,
                 "; is that server running, and are host, port, user and "
                 "password in the store's URL right?");
}

enum idem_status
idem__store_open_as(const struct idem_store_type *type, const char *url,
                    const struct idem_store_options *options,
                    struct idem_store **store, struct idem_error *err)
{
    struct idem_store *made = idem__store_make(type, options, err);
    enum idem_status status;

    if (!made)
        return IDEM_ERR_MEMORY;
    status = type->open(made, url, err);
    if (status == IDEM_ERR_UNAVAILABLE && err)
        advise(url, err);
    return idem__store_opened(made, status, store);
}

enum idem_status
idem__store_parse_as(const struct idem_store_type *type, const char *url,
                     struct idem_error *err)
{
    static const struct idem_store_options options;
    struct idem_store *made = idem__store_make(type, &options, err);
    enum idem_status status =
        made ? type->parse(made, url, err) : IDEM_ERR_MEMORY;

    idem__store_close(made);
    return status;
}

enum idem_status
idem__store_init_as(const struct idem_store_type *type, const char *url,
                    struct idem_error *err)
{
    static const struct idem_store_options options;
    struct idem_store *made = idem__store_make(type, &options, err);
    enum idem_status status =
        made ? type->init(made, url, err) : IDEM_ERR_MEMORY;

    if (status == IDEM_ERR_UNAVAILABLE && err)
        advise(url, err);
    idem__store_close(made);
    return status;
}

void
idem__store_close(struct idem_store *store)
{
    if (store)
        store->type->close(store);
    free(store);
}

int64_t
idem__store_boot_us(const struct idem_store *store)
{
    return store->clocks->boot_us(store->clocks->arg);
}

bool
idem__query_give(const struct idem_query *query,
                 const struct idem_record *record)
{
    return !idem__filter_match(query->filter, record, query->now) ||
           query->each(query->arg, record);
}

enum idem_status
idem__query_bad_cursor(const struct idem_query *query, struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_INVALID,
                      "\"%.100s\" is not a cursor: start with 0",
                      query->cursor->text);
}
