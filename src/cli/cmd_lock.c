/*
 * cmd_lock.c - idem lock NAME -- command: run a command while holding a lock,
 * and stop the command if the lock is lost; without a command, only take it.
 *
 * idem/lock.h renews the lock; the main thread watches the lock and the
 * command. The lease counts from before the renewal was sent, so the command is
 * stopped before another owner can hold the lock, provided that it stops on
 * SIGTERM.
 */
#include "verb.h"

#include "../base/spawn.h"
#include "../store/store.h"

#include <errno.h>
#include <idem/lock.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_LOST 76
#define TICK_US 20000
#define READERS 16

struct holder {
    struct cli_verb verb;
    struct idem_engine *engine;
    struct idem_locks *locks;
    const char *name, *owner_option;
    struct cli_list also;
    int64_t permits;
    bool read, write, fair;
    char owner[33];
    int64_t lease_ms, wait_ms, grace_ms;
};

static volatile sig_atomic_t forwarded;

static void
on_signal(int number)
{
    forwarded = number;
}

static const char *
owner_of(const struct holder *h)
{
    return h->owner_option ? h->owner_option : h->owner;
}

/* Returns -1 if the lock is held, else the exit code. */
static int
take(struct holder *h)
{
    const struct idem_lock_options options = {.owner = owner_of(h),
                                              .lease_ms = h->lease_ms,
                                              .wait_ms = h->wait_ms,
                                              .stop = &forwarded,
                                              .fair = h->fair};
    const char *names[CLI_LIST_MAX + 1] = {h->name};
    enum idem_lock_mode mode = h->read          ? IDEM_LOCK_READ
                               : h->write       ? IDEM_LOCK_WRITE
                               : h->permits > 0 ? IDEM_LOCK_PERMIT
                                                : IDEM_LOCK_ALL;
    struct idem_error err = {0};

    memcpy(names + 1, h->also.items, h->also.count * sizeof(names[0]));
    err.status =
        idem_locks_take(h->engine, mode, names, 1 + h->also.count,
                        h->permits > 0 ? (uint32_t)h->permits : READERS,
                        &options, &h->locks, &err);
    if (err.status == IDEM_OK && !forwarded)
        return -1;
    if (err.status == IDEM_OK)
        (void)idem_locks_give(h->locks, NULL, NULL);
    if (forwarded)
        return 128 + forwarded;
    if (err.status != IDEM_ERR_TIMEOUT)
        return cli_fail(&err);
    fprintf(stderr, "idem: %s; give --wait TIME to wait for it\n", err.text);
    return cli_exit_verdict(IDEM_V_BUSY);
}

/* Returns 0, or an errno. The command ends when idem ends, because then nobody
 * would renew the lock or stop the command. */
static int
start(const struct holder *h, char **command, struct idem_child *child)
{
    char fence[32];
    const struct idem_setting settings[] = {{"IDEM_FENCE", fence},
                                            {"IDEM_LOCK", h->name}};
    const struct idem_spawn how = {.argv = command,
                                   .settings = settings,
                                   .setting_count = 2,
                                   .in = -1,
                                   .out = -1,
                                   .err = -1,
                                   .own_group = true,
                                   .files = cli_files_leave};

    snprintf(fence, sizeof(fence), "%llu",
             (unsigned long long)idem_locks_fence(h->locks));
    return idem__spawn(&how, child);
}

/* Wait for the command, forward signals to it, and stop it if the lock is
 * lost. */
static int
watch(struct holder *h, struct idem_child *process)
{
    pid_t child = process->pid;
    int64_t kill_at_us = 0;
    int status;

    while (!idem__child_wait(process, TICK_US / 1000, &status)) {
        if (forwarded) {
            kill(-child, forwarded);
            forwarded = 0;
        }
        if (!kill_at_us && !idem_locks_held(h->locks)) {
            fprintf(stderr,
                    "idem: lock \"%s\" was lost; stopping the command\n",
                    h->name);
            kill(-child, SIGTERM);
            kill_at_us = idem__system_boot_us() + h->grace_ms * 1000;
        } else if (kill_at_us && idem__system_boot_us() >= kill_at_us) {
            kill(-child, SIGKILL);
        }
    }
    if (kill_at_us || !idem_locks_held(h->locks))
        return EXIT_LOST;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void
catch_signals(int flags)
{
    const struct sigaction forward = {.sa_handler = on_signal,
                                      .sa_flags = flags};
    struct sigaction now;

    sigaction(SIGINT, &forward, NULL);
    sigaction(SIGTERM, &forward, NULL);
    sigaction(SIGHUP, NULL, &now);
    if (now.sa_handler != SIG_IGN) /* leave it ignored, as under nohup */
        sigaction(SIGHUP, &forward, NULL);
}

/* A signal ends the wait for the lock, and a lock that was taken is released; a
 * second signal exits at once. */
static int
run(struct holder *h, char **command)
{
    struct idem_child child;
    int code, why;

    catch_signals((int)SA_RESETHAND);
    code = take(h);
    if (code >= 0)
        return code;
    catch_signals(0);
    why = start(h, command, &child);
    if (why) {
        (void)idem_locks_give(h->locks, NULL, NULL);
        fprintf(stderr, "idem: cannot run %s: %s\n", command[0], strerror(why));
        return why == ENOENT ? 127 : 126;
    }
    code = watch(h, &child);
    (void)idem_locks_give(h->locks, NULL, NULL);
    return code;
}

/* Without a command: take the lock, print the fence, and keep the lock. */
static int
take_only(const struct holder *h)
{
    struct idem_op op = {.verb = IDEM_LOCK,
                         .type = IDEM_TYPE_LOCK,
                         .scope = idem_text(IDEM_LOCK_SCOPE),
                         .id = idem_text(h->name),
                         .subject = idem_text(owner_of(h)),
                         .lease_ms = h->lease_ms,
                         .wait_ms = h->wait_ms};

    return cli_run_verb(&h->verb, &op);
}

/* Returns -1 if the options fit together, else the exit code. */
static int
check_usage(const struct holder *h, bool has_command, bool wants_command)
{
    if (!has_command && wants_command)
        return cli_usage_error("lock: no command is given; write it after --");
    if (h->read && h->write)
        return cli_usage_error("lock: give --read or --write, not both");
    if (h->permits == 0 || h->permits > IDEM_LOCKS_MAX)
        return cli_usage_error("lock: --permits must be a number from 1 to %d",
                               IDEM_LOCKS_MAX);
    if (!has_command &&
        (h->permits > 0 || h->read || h->write || h->fair || h->also.count))
        return cli_usage_error(
            "lock: --also, --permits, --read, --write and "
            "--fair need a command: lock NAME ... -- COMMAND");
    return -1;
}

static const char about[] =
    "Run a command while holding a lock, and stop it when the lock is lost. "
    "The variable IDEM_FENCE has the fence: pass it to the resource that the "
    "lock protects (docs/locks.md). The exit code is that of the command, or "
    "76 if the lock was lost. Without a command: take the lock, or extend it "
    "as the same --owner, and print its fence; idem unlock releases it.";

int
cli_lock(int argc, char **argv)
{
    struct holder h = {
        .lease_ms = IDEM_LEASE_DEFAULT_MS, .grace_ms = 5000, .permits = -1};
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&h.verb),
        {"lease", 'l', CLI_MS, &h.lease_ms, "TIME",
         "how long the lock stays after this process died (30s); "
         "renewed every third of it"},
        {"wait", 'w', CLI_MS, &h.wait_ms, "TIME",
         "wait this long for another holder (default: do not "
         "wait)"},
        {"owner", 'o', CLI_TEXT, &h.owner_option, "TEXT",
         "the owner's name (a random text); the same owner may "
         "take the lock again"},
        {"also", 0, CLI_LIST, &h.also, "NAME",
         "take this lock as well; may be repeated"},
        {"permits", 'n', CLI_NUMBER, &h.permits, "N",
         "allow N holders at once; all callers give the same N"},
        {"read", 0, CLI_FLAG, &h.read, NULL,
         "share it with other readers (at most 16, or --permits "
         "N); all callers give the same N"},
        {"write", 0, CLI_FLAG, &h.write, NULL,
         "take it alone; readers that come later wait"},
        {"fair", 0, CLI_FLAG, &h.fair, NULL,
         "callers with --fair get the lock in the order of "
         "arrival"},
        {"grace", 0, CLI_MS, &h.grace_ms, "TIME",
         "time between SIGTERM and SIGKILL when the lock is "
         "lost (5s)"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "lock NAME [options] -- COMMAND [ARGUMENT...]\n"
                 "lock NAME [options]",
        .about = about,
        .options = options,
        .min_args = 1,
        .max_args = (size_t)-1,
        .stop_at = 2,
    };
    uint8_t random[16];
    struct idem_error err = {0};
    char **args;
    size_t count;
    bool wants_command = false;
    int code;

    for (int i = 1; i < argc; i++)
        wants_command = wants_command || strcmp(argv[i], "--") == 0;
    code = cli_parse(&syntax, argc, argv, &args, &count);
    if (code >= 0)
        return code;
    h.name = args[0];
    args[count] = NULL;
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(h.owner, sizeof(h.owner), random, sizeof(random));
    code = check_usage(&h, count > 1, wants_command);
    if (code >= 0)
        return code;
    if (count == 1)
        return take_only(&h);
    if (h.lease_ms < 100)
        return cli_usage_error("lock: --lease must be at least 100ms, so that "
                               "it can be renewed in time");
    cli_files_note();
    err.status = cli_engine_open(&h.verb.where, &h.engine, &err);
    if (err.status != IDEM_OK)
        return cli_fail(&err);
    code = run(&h, args + 1);
    idem_close(h.engine);
    return code;
}
