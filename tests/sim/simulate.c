/*
 * simulate.c - run many worlds, each from one seed.
 *
 *   build/tests/sim/simulate [--seconds S | --runs N] [--seed N] [--world NAME]
 *                            [--with FAULT]... [--without FAULT]... [--story]
 *
 * Each world is a process of its own. A promise that is broken ends its run;
 * the program then looks which faults are needed for it, and prints the command
 * that shows it again.
 */
#include "world.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ALL_FAULTS ((1u << FAULTS) - 1)

/* A folder for the files of a world; its process leaves them there. */
static void
drop_folder(const char *dir)
{
    DIR *folder = opendir(dir);
    struct dirent *file;

    while (folder && (file = readdir(folder)))
        (void)unlinkat(dirfd(folder), file->d_name, 0);
    if (folder)
        closedir(folder);
    rmdir(dir);
}

static void
make_folder(char *dir, size_t len)
{
    snprintf(dir, len, "%s/idem-sim-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir))
        abort();
    setenv("IDEM_SIM_DIR", dir, 1);
}

/* True: it broke. What it said is left in `said`. */
static bool
try(const struct setup *setup, char *said, size_t len)
{
    char dir[64];
    int pipe_fd[2], status = 0;
    size_t used = 0;
    ssize_t got;
    pid_t child;

    make_folder(dir, sizeof(dir));
    if (pipe(pipe_fd) != 0)
        abort();
    fflush(stdout);
    child = fork();
    if (child == 0) {
        dup2(pipe_fd[1], 1);
        close(pipe_fd[0]);
        alarm(120);
        status = world_run(setup);
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
    drop_folder(dir);
    if (!WIFEXITED(status))
        snprintf(said + used, len - used, "\nBROKEN: ended by signal %d",
                 WTERMSIG(status));
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* With its story on standard output. */
static int
run_alone(const struct setup *setup)
{
    char dir[64];
    int status = 0;
    pid_t child;

    make_folder(dir, sizeof(dir));
    child = fork();
    if (child == 0) {
        status = world_run(setup);
        fflush(stdout);
        _exit(status);
    }
    waitpid(child, &status, 0);
    drop_folder(dir);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

static void
print_command(const struct setup *setup)
{
    printf("  build/tests/sim/simulate --seed %llu",
           (unsigned long long)setup->seed);
    if (setup->world >= 0)
        printf(" --world %s", world_names[setup->world]);
    if (setup->without == ALL_FAULTS)
        printf(" --with none");
    for (int i = 0; i < FAULTS && setup->without; i++) {
        if (!(setup->without & (1u << i)))
            printf(" --with %s", fault_names[i]);
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
            setup.world = index_of(world_names, world_count, value);
        } else if (strcmp(argv[i], "--with") == 0) {
            if (!setup.without)
                setup.without = ALL_FAULTS;
            if (strcmp(value, "none") != 0)
                setup.without &= ~(1u << index_of(fault_names, FAULTS, value));
        } else if (strcmp(argv[i], "--without") == 0) {
            setup.without |= 1u << index_of(fault_names, FAULTS, value);
        } else {
            fprintf(stderr, "usage: simulate [--seconds S | --runs N] [--seed "
                            "N] [--world NAME] [--with FAULT]... "
                            "[--without FAULT]... [--story]\n");
            return 2;
        }
        i++;
    }
    if (one && runs == 0 && seconds == 0)
        return run_alone(&setup);
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
