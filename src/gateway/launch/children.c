/*
 * children.c - start and stop the engine and nginx.
 *
 * Each has its own session, so that a terminal's Ctrl-C reaches only the
 * gateway, and gets a signal to stop if the gateway is killed.
 */
#include "launch.h"

#include "../../serve/core/listen.h"
#include "../module/launched.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define STOP_MS 10000 /* between SIGTERM and SIGKILL */
#define SETTINGS 5
#define TEST_MS 30000 /* nginx -t looks up hosts and reads certificates */

/* A burst of requests needs the memory of the previous one again. With glibc's
 * default limits both children would return it to the kernel and fault it in
 * again all the time. */
static const struct idem_setting engine_memory[] = {
    {"MALLOC_TRIM_THRESHOLD_", "33554432"},
    {"MALLOC_MMAP_THRESHOLD_", "2097152"},
    {"MALLOC_TOP_PAD_", "262144"}};
static const struct idem_setting nginx_memory[] = {
    {"MALLOC_TRIM_THRESHOLD_", "67108864"},
    {"MALLOC_MMAP_THRESHOLD_", "2097152"},
    {"MALLOC_TOP_PAD_", "1048576"}};

/* Do not replace variables that the operator has set. */
static size_t
add_unset(const struct idem_setting memory[3], struct idem_setting *settings)
{
    size_t count = 0;

    for (size_t i = 0; i < 3; i++)
        if (!getenv(memory[i].name))
            settings[count++] = memory[i];
    return count;
}

/* Signals that the gateway forwards (SIGHUP, SIGUSR1) are blocked in a new
 * child, because they would kill it before it can handle them. Both children
 * unblock them themselves. */
static enum idem_status
start(char *const argv[], const struct idem_setting *settings, size_t count,
      int out, struct idem_child *child, struct idem_error *err)
{
    sigset_t later;
    const struct idem_spawn how = {.argv = argv,
                                   .settings = settings,
                                   .setting_count = count,
                                   .in = -1,
                                   .out = out,
                                   .err = -1,
                                   .own_session = true,
                                   .mask = &later};
    int why;

    sigemptyset(&later);
    sigaddset(&later, SIGHUP);
    sigaddset(&later, SIGUSR1);
    why = idem__spawn(&how, child);
    if (!why)
        return IDEM_OK;
    *child = (struct idem_child){-1, -1};
    return idem__fail(err, IDEM_ERR_INTERNAL, "cannot run %s: %s", argv[0],
                      strerror(why));
}

/* nginx's workers become our children when their master is gone. */
void
launch_reap(struct launch *self)
{
    siginfo_t info = {0};

    if (launch_runs(&self->engine))
        (void)idem__child_wait(&self->engine, 0, &self->engine_status);
    if (launch_runs(&self->nginx))
        (void)idem__child_wait(&self->nginx, 0, &self->nginx_status);
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid > 0 && info.si_pid != self->engine.pid &&
           info.si_pid != self->nginx.pid) {
        (void)waitpid(info.si_pid, NULL, 0);
        info.si_pid = 0;
    }
}

const char *
launch_how_it_ended(int status, char text[64])
{
    if (WIFSIGNALED(status))
        snprintf(text, 64, "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(text, 64, "ended with status %d", WEXITSTATUS(status));
    return text;
}

struct engine_line {
    const char *argv[30];
    char figures[PATH_MAX + 16], routes[PATH_MAX + 16];
};

/* The command line of the engine, with one more word unless that is NULL. */
static void
write_engine_line(const struct launch *self, const char *more,
                  struct engine_line *line)
{
    const char **argv = line->argv;
    int n = 0;

    snprintf(line->figures, sizeof(line->figures), "%s/" GATEWAY_FIGURES,
             self->folder);
    snprintf(line->routes, sizeof(line->routes), "%s/" GATEWAY_ROUTES,
             self->folder);
    argv[n++] = launch_own_path();
    argv[n++] = "serve";
    if (more)
        argv[n++] = more;
    argv[n++] = "--socket";
    argv[n++] = self->socket;
    argv[n++] = "--trust-socket";
    if (self->http[0]) {
        argv[n++] = "--http";
        argv[n++] = self->http;
        argv[n++] = "--http-metrics-only";
    }
    argv[n++] = "--gateway-figures";
    argv[n++] = line->figures;
    if (self->config->console) {
        argv[n++] = "--console";
        argv[n++] = "--gateway-routes";
        argv[n++] = line->routes;
    }
    if (self->config->seal_key) {
        argv[n++] = "--seal-key";
        argv[n++] = self->config->seal_key;
    }
    if (self->config->credentials) {
        argv[n++] = "--credentials";
        argv[n++] = self->config->credentials;
    }
    if (self->group[0]) {
        argv[n++] = "--socket-mode";
        argv[n++] = "0660";
        argv[n++] = "--socket-group";
        argv[n++] = self->group;
    }
    if (!getenv("IDEM_LOG_LEVEL")) {
        argv[n++] = "--log-level";
        argv[n++] = "warning";
    }
    argv[n] = NULL;
}

/* The store's URL is passed in the environment, because it may contain a
 * password and every user of the machine can read a command line. */
static enum idem_status
start_engine(struct launch *self, struct idem_error *err)
{
    struct idem_setting settings[SETTINGS];
    size_t count = add_unset(engine_memory, settings);
    struct engine_line line;
    char restarts[24];

    write_engine_line(self, NULL, &line);
    if (self->config->store)
        settings[count++] =
            (struct idem_setting){"IDEM_STORE", self->config->store};
    snprintf(restarts, sizeof(restarts), "%llu",
             (unsigned long long)self->restarts);
    settings[count++] =
        (struct idem_setting){"IDEM_GATEWAY_RESTARTS", restarts};
    return start((char **)line.argv, settings, count, -1, &self->engine, err);
}

enum idem_status
launch_engine_start(struct launch *self, struct idem_error *err)
{
    int64_t told = idem__mono_ms() + 5000;
    bool fronted = launch_runs(&self->nginx);
    enum idem_status status = start_engine(self, err);
    char text[64];

    if (status != IDEM_OK)
        return status;
    while (launch_runs(&self->engine) && self->stops == 0 &&
           launch_runs(&self->nginx) == fronted &&
           server_socket_is_abandoned(self->socket)) {
        launch_take_signals(self, 10);
        if (idem__mono_ms() > told) {
            launch_say("the engine is still opening its store");
            told = idem__mono_ms() + 30000;
        }
    }
    if (!launch_runs(&self->engine))
        return idem__fail(err, IDEM_ERR_INTERNAL, "the engine %s",
                          launch_how_it_ended(self->engine_status, text));
    self->engine_up_ms = idem__mono_ms();
    return IDEM_OK;
}

enum idem_status
launch_nginx_start(struct launch *self, struct idem_error *err)
{
    struct idem_setting settings[SETTINGS];
    size_t count = add_unset(nginx_memory, settings);
    const char *argv[] = {self->nginx_path, "-p", self->folder, "-c",
                          self->conf,       NULL};
    char pid_file[PATH_MAX + 16], text[64];
    enum idem_status status;

    settings[count++] = (struct idem_setting){GATEWAY_LAUNCHED, "1"};
    status = start((char **)argv, settings, count, -1, &self->nginx, err);

    if (status != IDEM_OK)
        return status;
    self->nginx_group = self->nginx.pid;
    snprintf(pid_file, sizeof(pid_file), "%s/nginx.pid", self->folder);

    /* nginx writes the file once it listens. */
    while (launch_runs(&self->nginx) && self->stops == 0 &&
           access(pid_file, F_OK) != 0)
        launch_take_signals(self, 10);
    if (!launch_runs(&self->nginx))
        return idem__fail(err, IDEM_ERR_INTERNAL,
                          "nginx %s and said why above; --print-config shows "
                          "the configuration that the gateway made for it",
                          launch_how_it_ended(self->nginx_status, text));
    return IDEM_OK;
}

/* Run a command that checks something; it says what is wrong on standard error.
 */
static enum idem_status
run_test(const char *const argv[], const struct idem_setting *settings,
         size_t count, const char *name, const char *refusal,
         struct idem_error *err)
{
    struct idem_child child;
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC), ended = 0;
    enum idem_status status =
        start((char **)argv, settings, count, nowhere, &child, err);

    if (nowhere >= 0)
        close(nowhere);
    if (status != IDEM_OK)
        return status;
    if (!idem__child_wait(&child, TEST_MS, &ended)) {
        kill(child.pid, SIGKILL);
        (void)idem__child_wait(&child, -1, &ended);
        return idem__fail(err, IDEM_ERR_INVALID, "%s did not end within %d s",
                          name, TEST_MS / 1000);
    }
    if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID, "%s and said why above", refusal);
}

enum idem_status
launch_nginx_test(const struct launch *self, struct idem_error *err)
{
    const struct idem_setting settings[] = {{GATEWAY_LAUNCHED, "1"}};
    const char *argv[] = {self->nginx_path, "-q", "-t",       "-p",
                          self->folder,     "-c", self->conf, NULL};

    return run_test(argv, settings, 1, "nginx -t",
                    "nginx refuses the configuration", err);
}

enum idem_status
launch_engine_test(const struct launch *self, struct idem_error *err)
{
    const struct idem_setting settings[] = {
        {"IDEM_STORE", self->config->store}};
    struct engine_line line;

    write_engine_line(self, "--check", &line);
    return run_test(line.argv, settings, self->config->store != NULL,
                    "idem serve --check", "the engine refuses its options",
                    err);
}

/* True: the child has ended. Another stop signal ends the wait, unless
 * `patient`. */
static bool
wait_end(struct launch *self, const struct idem_child *child, int64_t wait_ms,
         bool patient)
{
    int64_t until = idem__mono_ms() + wait_ms;
    int stops = self->stops;

    while (launch_runs(child) && idem__mono_ms() < until &&
           (patient || self->stops == stops))
        launch_take_signals(self, 20);
    return !launch_runs(child);
}

static void
stop_child(struct launch *self, struct idem_child *child, int gently,
           int64_t wait_ms)
{
    if (!launch_runs(child))
        return;
    kill(child->pid, gently);
    if (wait_end(self, child, wait_ms, false))
        return;
    kill(child->pid, SIGTERM);
    if (wait_end(self, child, STOP_MS, true))
        return;
    kill(child->pid, SIGKILL);
    (void)wait_end(self, child, INT32_MAX, true);
}

/* If their master was killed, workers would listen forever. They finish their
 * requests while the engine still runs. */
static void
stop_workers(struct launch *self)
{
    int64_t until = idem__mono_ms() + self->config->drain_ms;
    int stops = self->stops;

    if (self->nginx_group <= 0 || kill(-self->nginx_group, SIGQUIT) != 0)
        return;
    while (kill(-self->nginx_group, 0) == 0 && idem__mono_ms() < until &&
           self->stops == stops)
        launch_take_signals(self, 20);
    (void)kill(-self->nginx_group, SIGKILL);
}

void
launch_stop_all(struct launch *self)
{
    stop_child(self, &self->nginx, SIGQUIT, self->config->drain_ms);
    stop_workers(self);
    stop_child(self, &self->engine, SIGTERM, STOP_MS);
}
