/*
 * testing.h - helpers for the journal's test programs: a temporary folder,
 * records made from numbers, one swap at a time.
 */
#ifndef IDEM__JOURNAL_TESTING_H
#define IDEM__JOURNAL_TESTING_H

#include "journal.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define UNUSED __attribute__((unused))

/* Sizes: the one of IDEM_TEST_SIZE; small with a sanitizer, large if IDEM_SOAK
 * is set. */
static UNUSED size_t
test_size(size_t sanitized, size_t plain, size_t soak)
{
    const char *text = getenv("IDEM_SANITIZED");
    const char *size = getenv("IDEM_TEST_SIZE");

    if (size && *size)
        return strtoull(size, NULL, 10);
    if (getenv("IDEM_SOAK"))
        return soak;
    return text && *text ? sanitized : plain;
}

static UNUSED uint64_t
test_random(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Returns the requested seed, or a random one, and prints it. */
static UNUSED uint64_t
test_seed(void)
{
    const char *text = getenv("IDEM_TEST_SEED");
    uint64_t seed = text && *text ? strtoull(text, NULL, 10)
                                  : (uint64_t)idem__new_rev() >> 32;

    print_message("IDEM_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* The path of a file in a folder; truncated if it is too long. */
struct test_path {
    char text[4096];
};

static UNUSED struct test_path
test_path(const char *dir, const char *name)
{
    struct test_path path;

    snprintf(path.text, sizeof(path.text), "%s/%s", dir, name);
    return path;
}

static UNUSED struct test_path
test_segment_path(const char *dir, uint64_t id, const char *ending)
{
    return test_path(dir, idem__segment_name(id, ending).text);
}

static UNUSED void
test_folder_empty(const char *dir)
{
    DIR *folder = opendir(dir);
    struct dirent *file;

    while (folder && (file = readdir(folder))) {
        struct test_path path = test_path(dir, file->d_name);

        if (file->d_name[0] != '.')
            unlink(path.text);
    }
    if (folder)
        closedir(folder);
}

/* Make `to` a copy of `from`, as a killed process would leave it. */
static UNUSED void
test_folder_copy(const char *from, const char *to)
{
    DIR *folder = opendir(from);
    struct dirent *file;
    uint8_t bytes[65536];

    test_folder_empty(to);
    while ((file = readdir(folder))) {
        struct test_path source = test_path(from, file->d_name);
        struct test_path copy = test_path(to, file->d_name);
        int in, out;
        ssize_t n;

        if (file->d_name[0] == '.')
            continue;
        in = open(source.text, O_RDONLY);
        out = open(copy.text, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        while ((n = read(in, bytes, sizeof(bytes))) > 0)
            assert_int_equal(write(out, bytes, (size_t)n), n);
        close(in);
        close(out);
    }
    closedir(folder);
}

static UNUSED char *
test_folder(void)
{
    const char *base = getenv("TMPDIR");
    char path[512];

    snprintf(path, sizeof(path), "%s/idem-journal-XXXXXX",
             base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return strdup(path);
}

/* A folder in memory if this machine has one, for tests that need no sync. */
static UNUSED char *
test_fast_folder(void)
{
    char path[] = "/dev/shm/idem-journal-XXXXXX";

    return mkdtemp(path) ? strdup(path) : test_folder();
}

static UNUSED void
test_folder_drop(char *dir)
{
    test_folder_empty(dir);
    rmdir(dir);
    free(dir);
}

/* A test whose state is the path of an empty folder. */
static inline int
test_folder_setup(void **state)
{
    *state = test_folder();
    return 0;
}

static inline int
test_folder_teardown(void **state)
{
    test_folder_drop(*state);
    return 0;
}

/* The number of files that this process has open. */
static UNUSED size_t
test_open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;

    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Bytes that this process has allocated; 0 with a sanitizer, which finds lost
 * memory itself. */
static UNUSED size_t
test_allocated(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

/* What the kernel was told last about a file (posix_fadvise). A test that wants
 * to see this defines TEST_ADVICE and hooks into `seen`. */
struct test_advice {
    void (*seen)(void *arg, int fd, uint64_t at, uint64_t len, int advice);
    void *arg;
};

#ifdef TEST_ADVICE
static struct test_advice test_advice;

/* The program's own function is called instead of the system's, also by a
 * mutant in a shared object (tests/mutate). It may do nothing, because advice
 * only saves time. */
__attribute__((visibility("default"))) int
posix_fadvise(int fd, off_t at, off_t len, int advice)
{
    if (test_advice.seen)
        test_advice.seen(test_advice.arg, fd, (uint64_t)at, (uint64_t)len,
                         advice);
    return 0;
}
#endif

/* A log that prints nothing and counts. */
struct test_log {
    int count[3];
    char last[512];
};

static UNUSED void
test_log(void *arg, enum idem_log_level level, const char *text)
{
    struct test_log *log = arg;

    if (!log)
        return;
    log->count[level]++;
    snprintf(log->last, sizeof(log->last), "%s", text);
}

/* Tend like the engine does, by the journal's own time. */
static UNUSED void
test_tend(struct idem_store *store)
{
    int64_t now_us = 0;

    store->type->now(store, &now_us, NULL);
    store->type->tend(store, now_us / 1000);
}

/* A record made from numbers; its id is in `id`, its result in `result`. */
struct test_record {
    struct idem_record record;
    char id[32];
    char result[4096];
    uint8_t key[IDEM_KEY_LEN];
};

static UNUSED void
test_make(struct test_record *t, uint64_t id, enum idem_state state,
          uint64_t rev, size_t result_len)
{
    memset(&t->record, 0, sizeof(t->record));
    snprintf(t->id, sizeof(t->id), "id-%llu", (unsigned long long)id);
    assert_true(result_len <= sizeof(t->result));
    for (size_t i = 0; i < result_len; i++)
        t->result[i] = (char)(rev * 31 + i);
    t->record.type = IDEM_TYPE_REQUEST;
    t->record.state = (uint8_t)state;
    t->record.attempt = 1;
    t->record.fence = 1 + id % 1000000;
    t->record.rev = rev;
    t->record.created = t->record.updated = 1700000000000;
    t->record.lease_until =
        state == IDEM_STATE_EXECUTING ? t->record.created + 30000 : 0;
    t->record.expires = t->record.created + INT64_C(400) * 24 * 3600 * 1000;
    t->record.scope = idem_text("shop");
    t->record.id = idem_text(t->id);
    if (state == IDEM_STATE_SUCCEEDED || state == IDEM_STATE_FAILED)
        t->record.result = (struct idem_bytes){t->result, result_len};
    idem__key(IDEM_TYPE_REQUEST, t->record.scope, t->record.id, t->key);
}

/* Do one swap; the found record is dropped. */
static UNUSED enum idem_outcome
test_swap(struct idem_store *store, const struct test_record *t,
          uint64_t expected, bool delete)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_swap swap = {.expected = expected,
                             .record = delete ? NULL : &t->record};

    memcpy(swap.key, t->key, IDEM_KEY_LEN);
    (void)store->type->swap(store, &swap, 1, &arena, NULL);
    idem_arena_clear(&arena);
    return swap.outcome;
}

/* The rev of an id; 0: absent. Fails the test on an error, and if the record is
 * not what was written under that rev. */
static UNUSED uint64_t
test_rev(struct idem_store *store, uint64_t id)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_load load = {.with_result = true};
    struct test_record t;
    struct idem_error err;
    uint64_t rev;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, 1, 0);
    memcpy(load.key, t.key, IDEM_KEY_LEN);
    if (store->type->load(store, &load, 1, &arena, &err) != IDEM_OK)
        fail_msg("load: %s", err.text);
    rev = load.record.state == IDEM_STATE_ABSENT ? 0 : load.record.rev;
    if (rev) {
        const char *result = load.record.result.data;

        assert_true(idem__bytes_equal(load.record.id, t.record.id));
        for (size_t i = 0; i < load.record.result.len; i++)
            assert_int_equal(result[i], (char)(rev * 31 + i));
    }
    idem_arena_clear(&arena);
    return rev;
}

static UNUSED enum idem_status
test_try_open(const char *dir, const struct journal_tuning *tuning,
              const struct idem_clocks *clocks, struct test_log *log,
              struct idem_store **store, struct idem_error *err)
{
    static const struct journal_tuning real;
    struct idem_store_options options = {
        .log = test_log, .log_arg = log, .clocks = clocks};
    char url[4200];

    snprintf(url, sizeof(url), "journal:%s", dir);
    return idem__journal_open(url, &options, tuning ? tuning : &real, store,
                              err);
}

static UNUSED struct idem_store *
test_open(const char *dir, const struct journal_tuning *tuning)
{
    struct idem_store *store = NULL;
    struct idem_error err;

    if (test_try_open(dir, tuning, NULL, NULL, &store, &err) != IDEM_OK)
        fail_msg("open: %s", err.text);
    return store;
}

static UNUSED void
test_close(struct idem_store *store)
{
    idem__store_close(store);
}

#endif
