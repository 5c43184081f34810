/*
 * launch.c - run a gateway: start the engine and nginx, forward signals, stop
 * both in order, and report if one of them dies.
 *
 * If the engine dies, it is started again while nginx goes on: requests that
 * are not gated pass, gated ones get 503 or 504 until it is back. If it dies
 * again and again, the gateway gives up and stops. nginx replaces its workers
 * itself; if its master dies, the gateway stops. With --engine there is only
 * nginx.
 *
 *   SIGTERM, SIGINT  nginx finishes its requests, then the engine stops
 *   a second one     stop at once
 *   SIGHUP           read the configuration again, without losing a request
 *   SIGUSR1          nginx reopens its log files
 */
#include "launch.h"

#include "../../base/url.h"
#include "../../serve/core/systemd.h"
#include "engine_socket.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#define QUIET_MS 100    /* after a child's end, wait for a stop signal */
#define STEADY_MS 60000 /* after this, the engine counts as recovered */
#define PAUSE_MS 50     /* before a restart, doubled each time */
#define PAUSE_MAX_MS 10000

static bool say_json;

static void __attribute__((format(printf, 2, 0)))
say(FILE *out, const char *format, va_list args)
{
    char text[2048];
    json_t *json = NULL;

    vsnprintf(text, sizeof(text), format, args);
    if (say_json)
        json = json_pack("{s:s, s:s}", "event", "gateway", "text", text);
    if (json)
        json_dumpf(json, out, JSON_COMPACT);
    else
        fprintf(out, "idem gateway: %s", text);
    fputc('\n', out);
    json_decref(json);
}

void
launch_say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(stderr, format, args);
    va_end(args);
}

/* Print requested output on standard output. */
static void __attribute__((format(printf, 1, 2))) tell(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(stdout, format, args);
    va_end(args);
}

static bool
same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* A reload can change nginx, but not the engine. */
static enum idem_status
check_reload(const struct gateway_config *old,
             const struct gateway_config *fresh, struct idem_error *err)
{
    const char *what = !same(old->store, fresh->store)         ? "store"
                       : !same(old->engine, fresh->engine)     ? "engine"
                       : !same(old->seal_key, fresh->seal_key) ? "seal-key"
                       : !same(old->http, fresh->http)         ? "http"
                       : !same(old->credentials, fresh->credentials)
                           ? "credentials"
                       : old->console != fresh->console    ? "console"
                       : !same(old->folder, fresh->folder) ? "folder"
                       : !same(old->socket, fresh->socket) ? "socket"
                       : !same(old->nginx, fresh->nginx)   ? "nginx"
                       : !same(old->module, fresh->module) ? "module"
                                                           : NULL;

    return what ? idem__fail(err, IDEM_ERR_INVALID,
                             "changing \"%s\" requires a restart", what)
                : IDEM_OK;
}

/* nginx itself only logs that it refuses a configuration, so it is asked
 * first. */
static void
reload(struct launch *self)
{
    struct gateway_config *old = self->config;
    struct gateway_config *fresh = &self->configs[old == self->configs];
    struct idem_error err = {0}, put_back;

    systemd_notify_reloading();
    gateway_config_init(fresh);
    if (self->load(self->load_arg, fresh, &err) == IDEM_OK &&
        check_reload(old, fresh, &err) == IDEM_OK) {
        self->config = fresh;
        if (launch_hosts_check(fresh, &err) == IDEM_OK &&
            launch_listen_check_new(old, fresh, &err) == IDEM_OK &&
            launch_conf_write(self, &err) == IDEM_OK &&
            launch_nginx_test(self, &err) == IDEM_OK) {
            kill(self->nginx.pid, SIGHUP);
            if (launch_runs(&self->engine))
                kill(self->engine.pid, SIGHUP);
            gateway_config_clear(old);
            launch_say_sharing(fresh);
            launch_say("reloaded");
            return;
        }
        self->config = old;
        if (launch_conf_write(self, &put_back) != IDEM_OK)
            launch_say("cannot write the old configuration again: %s",
                       put_back.text);
    }
    gateway_config_clear(fresh);
    launch_say("not reloaded: %s; the old configuration stays in use",
               err.text);
}

/* Wait for signals for up to timeout_ms, and handle them. */
void
launch_take_signals(struct launch *self, int timeout_ms)
{
    struct pollfd ready = {.fd = self->signals, .events = POLLIN};
    struct signalfd_siginfo info;

    if (poll(&ready, 1, timeout_ms) == 1) {
        while (read(self->signals, &info, sizeof(info)) == sizeof(info)) {
            switch (info.ssi_signo) {
            case SIGTERM:
            case SIGINT:
            case SIGQUIT:
                self->stops++;
                break;
            case SIGUSR1:
                if (launch_runs(&self->nginx))
                    kill(self->nginx.pid, SIGUSR1);
                break;
            case SIGHUP:
                if (launch_runs(&self->nginx)) {
                    reload(self);
                    systemd_notify("READY=1");
                }
                break;
            default:
                break;
            }
        }
    }
    launch_reap(self);
}

static void
announce_engine(const char *url)
{
    char shown[512];

    idem__url_redact(url, shown, sizeof(shown));
    tell("the engine is the server at %s; health, metrics, HTTP API and "
         "console are there; figures by route are not counted",
         shown);
    tell("idem doubts, idem settle and other commands reach it with "
         "--server '%s'",
         shown);
}

static void
announce(const struct launch *self)
{
    const struct gateway_config *config = self->config;

    tell("listening on %s://%s", config->tls_cert ? "https" : "http",
         config->listen);
    for (size_t i = 0; i < config->route_count; i++) {
        const struct gateway_route *route = &config->routes[i];

        tell("%s%s -> %s", route->host ? route->host : "", route->path,
             route->upstream ? route->upstream : config->base.upstream);
    }
    if (config->token_path)
        tell("tokens at %s", config->token_path);
    if (self->http[0])
        tell("%s and metrics at http://%s/",
             gateway_has_credentials(config) ? "HTTP API" : "health",
             self->http);
    if (config->console)
        tell("console at http://%s/console", self->http);
    if (config->engine)
        announce_engine(config->engine);
    else if (self->address[0] && !config->socket)
        tell("idem doubts, idem settle and other commands reach it at %s, the "
             "default of this user; as another user: "
             "export IDEM_SERVER=unix:%s",
             self->address, self->address);
    else
        tell("for idem doubts, idem settle and other commands: "
             "export IDEM_SERVER=unix:%s",
             self->address[0] ? self->address : self->socket);
    fflush(stdout);
}

static void
rest(struct launch *self, int64_t ms)
{
    int64_t until = idem__mono_ms() + ms;

    while (self->stops == 0 && launch_runs(&self->nginx) &&
           idem__mono_ms() < until)
        launch_take_signals(self, (int)(until - idem__mono_ms()));
}

/* The engine has died: restart it, with growing pauses. False: give up, or the
 * gateway is stopping, or nginx has ended. */
static bool
revive_engine(struct launch *self)
{
    int64_t limit = self->config->engine_restarts, pause;
    bool moved = false;
    struct idem_error err = {0};
    char text[64];

    idem__fail(&err, IDEM_ERR_INTERNAL, "the engine %s",
               launch_how_it_ended(self->engine_status, text));
    if (idem__mono_ms() - self->engine_up_ms >= STEADY_MS)
        self->tries = 0;
    while (self->tries < limit) {
        pause = PAUSE_MS << (self->tries < 16 ? self->tries : 16);
        pause = pause < PAUSE_MAX_MS ? pause : PAUSE_MAX_MS;
        self->tries++;
        launch_say("%s; restarting it in %lld ms (%lld of %lld); protected "
                   "requests are refused meanwhile",
                   err.text, (long long)pause, (long long)self->tries,
                   (long long)limit);
        rest(self, pause);
        if (self->stops > 0 || !launch_runs(&self->nginx))
            return false;
        self->restarts++;
        moved = launch_http_choose(self) || moved;
        if (launch_engine_start(self, &err) == IDEM_OK) {
            launch_say("the engine is back");
            if (moved)
                launch_say(
                    "another program uses the old port; %s and metrics are "
                    "now at http://%s/",
                    gateway_has_credentials(self->config) ? "HTTP API"
                                                          : "health",
                    self->http);
            return self->stops == 0;
        }
    }
    launch_say("%s; it was restarted %lld times and never ran for a minute; "
               "the gateway gives up and stops",
               err.text, (long long)limit);
    return false;
}

/* Run until a stop signal comes, or until a child has ended for good. */
static int
watch(struct launch *self)
{
    char text[64];

    do {
        while ((self->config->engine || launch_runs(&self->engine)) &&
               launch_runs(&self->nginx) && self->stops == 0)
            launch_take_signals(self, 1000);
        /* If somebody stopped a child, a stop signal for us may follow. */
        if (self->stops == 0)
            launch_take_signals(self, QUIET_MS);
    } while (self->stops == 0 && launch_runs(&self->nginx) &&
             revive_engine(self));
    if (self->stops > 0)
        return 0;
    if (!launch_runs(&self->nginx))
        launch_say("nginx %s; stopping",
                   launch_how_it_ended(self->nginx_status, text));
    return 1;
}

static enum idem_status
block_signals(struct launch *self, struct idem_error *err)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return idem__fail(err, IDEM_ERR_INTERNAL, "%s", strerror(errno));
    self->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (self->signals < 0)
        return idem__fail(err, IDEM_ERR_INTERNAL, "%s", strerror(errno));
    return IDEM_OK;
}

/* Raise the limit of open files to the maximum. */
static void
raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static enum idem_status
prepare(struct launch *self, struct idem_error *err)
{
    enum idem_status status;

    if (!*launch_own_path())
        return idem__fail(err, IDEM_ERR_INTERNAL, "/proc/self/exe: %s",
                          strerror(errno));
    raise_limit();
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* see launch_reap */
    status = launch_find(self, err);
    if (status == IDEM_OK)
        status = launch_folder_make(self, err);
    if (status == IDEM_OK)
        status = launch_conf_write(self, err);
    if (status == IDEM_OK)
        status = block_signals(self, err);
    return status;
}

static enum idem_status
start_own_engine(struct launch *self, struct idem_error *err)
{
    enum idem_status status;

    launch_http_choose(self);
    status = launch_engine_start(self, err);
    if (status != IDEM_OK || self->stops > 0)
        return status;
    return gateway_socket_take(self->config->socket, self->socket,
                               self->address, sizeof(self->address), err);
}

int
gateway_run(gateway_load_fn *load, void *arg, bool json)
{
    static struct launch launch = {.engine = {-1, -1}, .nginx = {-1, -1}};
    struct idem_error err = {0};
    enum idem_status status;
    int code = 1;

    say_json = json;
    if (json)
        setenv("IDEM_LOG_FORMAT", "json", 1); /* of the engine */
    launch.load = load;
    launch.load_arg = arg;
    launch.config = &launch.configs[0];
    gateway_config_init(launch.config);
    status = load(arg, launch.config, &err);
    if (status == IDEM_OK)
        status = prepare(&launch, &err);
    if (status == IDEM_OK)
        status = launch_hosts_check(launch.config, &err);
    if (status == IDEM_OK)
        status = launch_listen_check(&launch, &err);
    if (status == IDEM_OK && launch.stops == 0 && !launch.config->engine)
        status = start_own_engine(&launch, &err);
    if (status == IDEM_OK && launch.stops == 0)
        status = launch_nginx_start(&launch, &err);
    if (status == IDEM_OK && launch.stops == 0) {
        launch_say_sharing(launch.config);
        announce(&launch);
        systemd_notify("READY=1");
        if (launch.config->engine)
            launch_engine_probe(&launch);
        code = watch(&launch);
        systemd_notify("STOPPING=1");
    } else if (status == IDEM_OK) {
        code = 0;
    } else {
        launch_say("%s", err.text);
    }
    launch_stop_all(&launch);
    gateway_socket_drop(launch.address, launch.socket);
    launch_folder_remove(&launch);
    gateway_config_clear(launch.config);
    return code;
}
