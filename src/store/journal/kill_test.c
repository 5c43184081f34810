/*
 * kill_test.c - kills the writer at random moments and checks the journal.
 *
 * A child process works on a journal; through a pipe it reports what it is
 * about to write and what was acknowledged. It is killed with SIGKILL, the
 * journal is opened and compared with what the pipe said, and the next child
 * goes on.
 *
 *   IDEM_TEST_SEED=7 build/src/store/journal/kill_test
 */
#include "model.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

/* The child sends the whole model after every step. */
static void
tell(int fd, const struct model *model)
{
    const char *at = (const char *)model;
    size_t left = sizeof(*model);

    while (left > 0) {
        ssize_t n = write(fd, at, left);

        if (n <= 0)
            _exit(1);
        at += n;
        left -= (size_t)n;
    }
}

/* The child: works until it is killed. */
static void
child(const char *dir, struct model *model, int fd)
{
    struct journal_tuning tuning = {.segment_len = 32768,
                                    .lazy = test_random(&model->seed) % 2};
    struct idem_store_options options = {.log = test_log};
    struct idem_arena arena = {NULL, 0};
    struct idem_store *store;
    struct model_swaps s;
    char url[4200];

    snprintf(url, sizeof(url), "journal:%s", dir);
    if (idem__journal_open(url, &options, &tuning, &store, NULL) != IDEM_OK)
        _exit(1);
    for (;;) {
        model_batch(model, &s);
        tell(fd, model); /* before: these may be there */
        (void)store->type->swap(store, s.swaps, s.count, &arena, NULL);
        model_learn(model, &s);
        tell(fd, model); /* after: these are there */
        if (test_random(&model->seed) % 8 == 0)
            test_tend(store);
        if (test_random(&model->seed) % 64 == 0) {
            idem__store_close(store);
            if (idem__journal_open(url, &options, &tuning, &store, NULL))
                _exit(1);
        }
    }
}

struct killer {
    pthread_t thread;
    bool started;
    pid_t pid;
    long pause_ns;
    size_t words; /* when its time starts: 0, before it has opened the journal;
                   * 1, while a batch is being written; 2, after it is
                   * acknowledged */
};

static void *
kill_soon(void *arg)
{
    struct killer *killer = arg;
    struct timespec pause = {0, killer->pause_ns};

    nanosleep(&pause, NULL);
    kill(killer->pid, SIGKILL);
    return NULL;
}

static void
start(struct killer *killer)
{
    if (!killer->started)
        assert_int_equal(
            pthread_create(&killer->thread, NULL, kill_soon, killer), 0);
    killer->started = true;
}

/* Read the child's reports; the last complete model counts. */
static void
listen_until_killed(int fd, struct model *model, struct killer *killer)
{
    struct model next;
    size_t got = 0, words = 0;
    ssize_t n;

    while ((n = read(fd, (char *)&next + got, sizeof(next) - got)) > 0) {
        got += (size_t)n;
        if (got < sizeof(next))
            continue;
        *model = next;
        got = 0;
        if (++words >= killer->words)
            start(killer);
    }
    close(fd);
}

/* True if its time started after an acknowledgement, so that there is one even
 * on a slow disk. */
static bool
one_life(const char *dir, struct model *model, uint64_t *seed)
{
    static const size_t words[] = {0, 1, 2, 2};
    struct killer killer = {0};
    int ends[2], status;

    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    killer.pause_ns = (long)(test_random(seed) % 15000000);
    killer.words = words[test_random(seed) % 4];
    killer.pid = fork();
    assert_true(killer.pid >= 0);
    if (killer.pid == 0) {
        close(ends[0]);
        child(dir, model, ends[1]);
    }
    close(ends[1]);
    if (killer.words == 0)
        start(&killer); /* perhaps while it opens the journal */
    listen_until_killed(ends[0], model, &killer);
    if (killer.started)
        pthread_join(killer.thread, NULL);
    assert_int_equal(waitpid(killer.pid, &status, 0), killer.pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return killer.words == 2;
}

static void
a_killed_writer_loses_and_invents_nothing(void **state)
{
    struct journal_tuning tuning = {.segment_len = 32768};
    size_t kills = test_size(60, 500, 10000), lived = 0;
    char *dir = test_folder();
    struct model model;
    uint64_t seed = test_seed();

    (void)state;
    model_init(&model, seed);
    model.now_ms = (int64_t)time(NULL) * 1000; /* the real clock is used here */
    for (size_t i = 0; i < kills; i++) {
        struct idem_store *store;
        const char *flaw;

        lived += one_life(dir, &model, &seed);
        tuning.lazy = i % 3 == 0;
        tuning.hold = i % 6 == 0;
        store = test_open(dir, &tuning);
        flaw = model_flaw(&model, store);
        if (flaw)
            fail_msg("after kill %zu: %s", i + 1, flaw);
        model_resolve(&model, store);
        test_close(store);
    }
    print_message("%zu kills, %zu swaps acknowledged\n", kills, model.stored);
    assert_true(model.stored >= lived);
    test_folder_drop(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_writer_loses_and_invents_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
