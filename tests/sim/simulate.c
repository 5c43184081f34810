/*
 * simulate.c - run many worlds, each from one seed.
 *
 *   build/tests/sim/simulate [--seconds S | --runs N] [--seed N] [--world NAME]
 *                            [--without FAULT]... [--story]
 *
 * Each world is a process of its own. A promise that is broken ends its run;
 * the program then looks which faults are needed for it, and prints the command
 * that shows it again.
 */
#include "load.h"
#include "server.h"

#include "../../src/engine/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ENGINES 3

enum world { WORLD_SINGLE, WORLD_REPLICA, WORLD_NO_CLOCK, WORLDS };
static const char *const world_names[] = {"single", "replica", "no-clock"};

enum fault {
    FAULT_KILL,
    FAULT_PAUSE,
    FAULT_CUT,
    FAULT_RESTART,
    FAULT_FAILOVER,
    FAULT_CLOCK,
    FAULT_SERVER_CLOCK,
    FAULT_DRIFT,
    FAULT_LOSE,
    FAULTS,
};
static const char *const fault_names[] = {"kill",         "pause",    "cut",
                                          "restart",      "failover", "clock",
                                          "server-clock", "drift",    "lose"};

struct setup {
    uint64_t seed;
    int world; /* -1: the seed says */
    unsigned without;
};

static struct sim_load load;
static struct sim_server *server;
static struct sim_process *engines[ENGINES];
static int engine_count, clients;
static int clocks_wrong;
static bool starting[ENGINES]; /* it has not seen the time yet */

static void
quiet(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    sim_tell("log %d: %s", level, text);
}

static struct idem_engine *
open_engine(void)
{
    struct idem_options options = {.log = quiet};
    struct idem_engine *engine = NULL;
    struct idem_error err;

    for (int i = 0; i < 200; i++) {
        struct idem__engine_inner inner = {.store = sim_server_open(server)};

        if (idem__engine_open(NULL, &options, &inner, &engine, &err) == IDEM_OK)
            return engine;
        sim_tell("open: %s", err.text);
        sim_sleep(100 * SIM_MS);
    }
    sim_fail("an engine does not start: %s", err.text);
}

static void *
client_main(void *engine)
{
    load_client(&load, engine);
    return NULL;
}

static void
engine_main(void *arg)
{
    struct idem_engine *engine = open_engine();
    struct idem_op look = {
        .verb = IDEM_GET, .scope = idem_text("sim"), .id = idem_text("first")};
    struct idem_answer answer = {0};
    pthread_t threads[8];

    while (idem_do(engine, &look, &answer, NULL) != IDEM_OK)
        sim_sleep(100 * SIM_MS);
    idem_answer_clear(&answer);
    *(bool *)arg = false;
    for (int i = 0; i < clients; i++)
        pthread_create(&threads[i], NULL, client_main, engine);
    for (int i = 0; i < clients; i++)
        pthread_join(threads[i], NULL);
    idem_close(engine);
}

static void
start_engine(int i)
{
    char name[16];

    snprintf(name, sizeof(name), "engine-%d", i);
    starting[i] = true;
    engines[i] = sim_spawn(name, engine_main, &starting[i]);
}

/* An engine that starts under a wrong clock believes it, as documented. */
static bool
clocks_must_be_right(void)
{
    for (int i = 0; i < engine_count; i++) {
        if (starting[i])
            return true;
    }
    return false;
}

static void
one_fault(const struct setup *setup)
{
    int i = (int)sim_roll((uint64_t)engine_count);
    enum fault fault = (enum fault)sim_roll(FAULTS);
    int64_t jump = (int64_t)sim_roll(48) * 3600 * SIM_S - 12 * 3600 * SIM_S;

    if (setup->without & (1u << fault))
        return;
    if ((fault == FAULT_CLOCK || fault == FAULT_SERVER_CLOCK) &&
        clocks_must_be_right())
        return;
    switch (fault) {
    case FAULT_KILL:
        if (clocks_wrong)
            break;
        sim_kill(engines[i]);
        sim_sleep(sim_delay(100 * SIM_MS));
        start_engine(i);
        break;
    case FAULT_PAUSE:
        sim_pause(engines[i], sim_delay(load.lease_ms * SIM_MS));
        break;
    case FAULT_CUT:
        sim_server_cut(server, engines[i], sim_delay(500 * SIM_MS));
        break;
    case FAULT_RESTART:
        sim_server_restart(server, sim_delay(200 * SIM_MS));
        break;
    case FAULT_FAILOVER:
        sim_server_fail_over(server);
        break;
    case FAULT_CLOCK:
        clocks_wrong++;
        load.clock_was_ahead |= jump > 0;
        sim_set_clock(engines[i], jump);
        sim_sleep(sim_delay(SIM_S));
        sim_set_clock(engines[i], -jump);
        clocks_wrong--;
        break;
    case FAULT_SERVER_CLOCK:
        clocks_wrong++;
        load.clock_was_ahead |= jump > 0;
        sim_server_set_clock(server, jump);
        sim_sleep(sim_delay(SIM_S));
        sim_server_set_clock(server, -jump);
        clocks_wrong--;
        break;
    case FAULT_DRIFT:
        sim_drift(engines[i], sim_once_in(2) ? 1 : -1);
        break;
    case FAULT_LOSE:
        sim_server_lose(server, 3);
        sim_sleep(sim_delay(200 * SIM_MS));
        sim_server_lose(server, 0);
        break;
    case FAULTS:
        break;
    }
}

static void
look_main(void *arg)
{
    struct idem_engine *engine = open_engine();

    (void)arg;
    load_look(&load, engine);
    idem_close(engine);
}

static void
chaos_main(void *arg)
{
    const struct setup *setup = arg;

    for (int i = 0; i < engine_count; i++)
        start_engine(i);
    while (sim_now() < load.until) {
        sim_sleep(sim_delay(300 * SIM_MS));
        one_fault(setup);
    }
    sim_server_repair(server);
    sim_sleep(10 * SIM_S);
    sim_spawn("look", look_main, NULL);
}

/* In a process of its own: 0 good, 3 broken. */
static int
run_world(const struct setup *setup)
{
    int world = setup->world;

    sim_seed(setup->seed);
    if (world < 0)
        world = (int)sim_roll(WORLDS);
    server = sim_server_new((enum sim_kind)world);
    engine_count = 1 + (int)sim_roll(ENGINES);
    clients = 1 + (int)sim_roll(6);
    load_init(&load, 1 + (int)sim_roll(8), 20 * SIM_S);
    sim_tell("world %s, %d engines, %d clients each, lease %lld ms",
             world_names[world], engine_count, clients,
             (long long)load.lease_ms);
    sim_spawn("chaos", chaos_main, (void *)setup);
    if (!sim_run())
        sim_fail("some thread waits for ever");
    return 0;
}

/* True: it broke. What it said is left in `said`. */
static bool
try(const struct setup *setup, char *said, size_t len)
{
    int pipe_fd[2], status = 0;
    size_t used = 0;
    ssize_t got;
    pid_t child;

    if (pipe(pipe_fd) != 0)
        abort();
    fflush(stdout);
    child = fork();
    if (child == 0) {
        dup2(pipe_fd[1], 1);
        close(pipe_fd[0]);
        alarm(120);
        status = run_world(setup);
        fflush(stdout);
        _exit(status);
    }
    close(pipe_fd[1]);
    while ((got = read(pipe_fd[0], said + used, len - 1 - used)) > 0) {
        used += (size_t)got;
        if (used > len / 2 + 1) { /* the end is what matters */
            memmove(said, said + used - len / 4, len / 4);
            used = len / 4;
        }
    }
    said[used] = 0;
    close(pipe_fd[0]);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status))
        snprintf(said + used, len - used, "\nBROKEN: ended by signal %d",
                 WTERMSIG(status));
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void
print_command(const struct setup *setup)
{
    printf("  build/tests/sim/simulate --seed %llu",
           (unsigned long long)setup->seed);
    if (setup->world >= 0)
        printf(" --world %s", world_names[setup->world]);
    for (int i = 0; i < FAULTS; i++) {
        if (setup->without & (1u << i))
            printf(" --without %s", fault_names[i]);
    }
    printf(" --story\n");
}

/* Leave out every fault that is not needed. Other faults make another story of
 * the same seed, so some seeds are tried. */
static struct setup
simplify(struct setup setup)
{
    static char said[1 << 16];

    for (int i = 0; i < FAULTS; i++) {
        struct setup less = setup;

        less.without |= 1u << i;
        for (int tries = 0; tries < 15; tries++) {
            less.seed = setup.seed + (uint64_t)tries;
            if (try(&less, said, sizeof(said))) {
                setup = less;
                break;
            }
        }
    }
    return setup;
}

static int
index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    fprintf(stderr, "simulate: there is no \"%s\" among:", name);
    for (int i = 0; i < count; i++)
        fprintf(stderr, " %s", names[i]);
    fputc('\n', stderr);
    exit(2);
}

static int
report(const struct setup *setup, const char *said)
{
    const char *broken = strstr(said, "BROKEN");
    struct setup simple;

    printf("seed %llu: %s\n", (unsigned long long)setup->seed,
           broken ? broken : said);
    fflush(stdout);
    if (getenv("IDEM_SIM_QUICK"))
        return 1;
    simple = simplify(*setup);
    printf("see it again, with the faults that it needs:\n");
    print_command(&simple);
    return 1;
}

static double
real_seconds(void)
{
    return (double)time(NULL);
}

int
main(int argc, char **argv)
{
    struct setup setup = {.world = -1};
    static char said[1 << 16];
    double seconds = 0, end;
    long runs = 0, done = 0;
    bool one = false;

    if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) {
        personality(ADDR_NO_RANDOMIZE); /* the same addresses in every run */
        execv("/proc/self/exe", argv);
    }
    setup.seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--story") == 0) {
            setenv("IDEM_SIM_STORY", "1", 1);
            continue;
        }
        if (strcmp(argv[i], "--quick") == 0) { /* do not simplify */
            setenv("IDEM_SIM_QUICK", "1", 1);
            continue;
        }
        if (strcmp(argv[i], "--seed") == 0) {
            setup.seed = strtoull(value, NULL, 10);
            one = true;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            seconds = strtod(value, NULL);
        } else if (strcmp(argv[i], "--runs") == 0) {
            runs = strtol(value, NULL, 10);
        } else if (strcmp(argv[i], "--world") == 0) {
            setup.world = index_of(world_names, WORLDS, value);
        } else if (strcmp(argv[i], "--without") == 0) {
            setup.without |= 1u << index_of(fault_names, FAULTS, value);
        } else {
            fprintf(stderr, "usage: simulate [--seconds S | --runs N] [--seed "
                            "N] [--world NAME] [--without FAULT]... "
                            "[--story]\n");
            return 2;
        }
        i++;
    }
    if (one && runs == 0 && seconds == 0)
        return run_world(&setup);
    end = real_seconds() + (seconds > 0 ? seconds : 1e9);
    if (runs == 0 && seconds == 0)
        end = real_seconds() + 10;
    printf("simulate: first seed %llu\n", (unsigned long long)setup.seed);
    for (; (runs == 0 || done < runs) && real_seconds() < end; done++) {
        if (try(&setup, said, sizeof(said)))
            return report(&setup, said);
        setup.seed++;
    }
    printf("simulate: %ld worlds, no promise broken\n", done);
    return 0;
}
