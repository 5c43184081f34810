/*
 * launch.c - starts the engine and nginx, and stands between them and the
 * operator: passes signals on, stops both in order, and tells when one dies.
 *
 *   SIGTERM, SIGINT  nginx finishes what it has, then the engine stops
 *   again            at once
 *   SIGHUP           the configuration anew, without losing a request
 *   SIGUSR1          nginx opens its log files anew
 *
 * Neither child is ever started again silently: a gateway whose engine died
 * says so and ends.
 */
#include "gateway.h"

#include "address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct launch {
    gateway_load_fn *load;
    void *load_arg;
    struct gateway_config *config; /* the current one of the two */
    struct gateway_config configs[2];
    char folder[PATH_MAX / 2];
    char socket[PATH_MAX];
    char address[PATH_MAX]; /* leads to it; empty: nothing does */
    char conf[PATH_MAX];
    char module[PATH_MAX];
    char script[PATH_MAX];
    char self[PATH_MAX];
    char nginx_path[PATH_MAX];
    char http[128];
    char user[128], group[128]; /* of nginx's workers, if we are root */
    bool own_folder;
    pid_t engine, nginx; /* 0: not running */
    pid_t nginx_group;   /* of nginx and its workers; 0: never started */
    int engine_status, nginx_status;
    int signals; /* a signalfd */
    int stops;   /* how often we were told to stop */
};

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void
say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("idem gateway: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static int64_t
now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- places ------------------------------------------------------------ */

/* The first of these that is there, seen from the folder of this program. */
static bool
find_beside(const char *const *places, char *path, size_t path_len)
{
    char self[PATH_MAX], candidate[PATH_MAX + 64], found[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    for (; slash && *places; places++) {
        snprintf(candidate, sizeof(candidate), "%.*s/%s", (int)(slash - self),
                 self, *places);
        if (realpath(candidate, found) && strlen(found) < path_len) {
            snprintf(path, path_len, "%s", found);
            return true;
        }
    }
    return false;
}

enum idem_status
gateway_find_module(const struct gateway_config *config, char *path,
                    size_t path_len, struct idem_error *err)
{
    static const char *const places[] = {
        "ngx_http_idem_module.so", "../lib/idem/ngx_http_idem_module.so", NULL};

    if (config->module) {
        snprintf(path, path_len, "%s", config->module);
        if (access(path, R_OK) == 0)
            return IDEM_OK;
        return idem__fail(err, IDEM_ERR_INVALID, "no module at %s", path);
    }
    if (find_beside(places, path, path_len))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "ngx_http_idem_module.so is not beside this program: "
                      "give --module");
}

enum idem_status
gateway_find_script(char *path, size_t path_len, struct idem_error *err)
{
    static const char *const places[] = {"../share/idem/idem.js",
                                         "../clients/js/idem.js", NULL};

    if (find_beside(places, path, path_len))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "--page-script: idem.js is not in share/idem beside this "
                      "program; `make install` puts it there");
}

static enum idem_status
find_nginx(struct launch *self, struct idem_error *err)
{
    static const char *const usual[] = {"/usr/sbin/nginx", "/usr/bin/nginx",
                                        "/usr/local/sbin/nginx",
                                        "/usr/local/nginx/sbin/nginx"};
    const char *given = self->config->nginx;

    for (size_t i = 0; !given && i < sizeof(usual) / sizeof(usual[0]); i++) {
        if (access(usual[i], X_OK) == 0)
            given = usual[i];
    }
    if (!given || access(given, X_OK) != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "there is no nginx%s%s: install it, or give --nginx",
                          given ? " at " : "", given ? given : "");
    snprintf(self->nginx_path, sizeof(self->nginx_path), "%s", given);
    return IDEM_OK;
}

/* Started by root, nginx's workers are somebody else, who must be able to
 * open the engine's socket. */
static void
find_user(struct launch *self)
{
    static const char *const names[] = {"www-data", "nginx", "nobody"};

    if (geteuid() != 0)
        return;
    for (size_t i = 0; i < 3; i++) {
        struct passwd *user = getpwnam(names[i]);
        struct group *group = user ? getgrgid(user->pw_gid) : NULL;

        if (group) {
            snprintf(self->user, sizeof(self->user), "%s", names[i]);
            snprintf(self->group, sizeof(self->group), "%s", group->gr_name);
            return;
        }
    }
    snprintf(self->user, sizeof(self->user), "root");
}

static enum idem_status
make_folder(struct launch *self, struct idem_error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");

    if (self->config->folder) {
        if (!realpath(self->config->folder, self->folder) ||
            strlen(self->folder) > 80)
            return idem__fail(err, IDEM_ERR_INVALID, "folder %s: %s",
                              self->config->folder,
                              errno ? strerror(errno) : "its path is too long");
    } else {
        if (!runtime || strlen(runtime) > 60 || geteuid() == 0 ||
            access(runtime, W_OK) != 0)
            runtime = "/tmp";
        snprintf(self->folder, sizeof(self->folder), "%s/idem-gateway-XXXXXX",
                 runtime);
        if (!mkdtemp(self->folder))
            return idem__fail(err, IDEM_ERR_INVALID, "%s: %s", self->folder,
                              strerror(errno));
        self->own_folder = true;
        /* Workers of another user pass through, and read nothing. */
        if (self->user[0] && chmod(self->folder, 0711) != 0)
            return idem__fail(err, IDEM_ERR_INVALID, "%s: %s", self->folder,
                              strerror(errno));
    }
    snprintf(self->socket, sizeof(self->socket), "%s/engine.sock",
             self->folder);
    snprintf(self->conf, sizeof(self->conf), "%s/nginx.conf", self->folder);
    return IDEM_OK;
}

static int
remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void
remove_folder(struct launch *self)
{
    if (self->own_folder && self->folder[0])
        (void)nftw(self->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static enum idem_status
copy_script(struct launch *self, struct idem_error *err)
{
    char from[PATH_MAX], block[4096];
    enum idem_status status = gateway_find_script(from, sizeof(from), err);
    int in, out;
    ssize_t n = -1;

    if (status != IDEM_OK)
        return status;
    snprintf(self->script, sizeof(self->script), "%s/idem.js", self->folder);
    in = open(from, O_RDONLY | O_CLOEXEC);
    out = open(self->script, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (in >= 0 && out >= 0 && fchmod(out, 0644) == 0) {
        while ((n = read(in, block, sizeof(block))) > 0) {
            if (write(out, block, (size_t)n) != n) {
                n = -1;
                break;
            }
        }
    }
    if (n != 0)
        status = idem__fail(err, IDEM_ERR_INVALID, "%s: cannot be copied to %s",
                            from, self->script);
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return status;
}

static enum idem_status
write_conf(struct launch *self, struct idem_error *err)
{
    struct gateway_place place = {.folder = self->folder,
                                  .socket = self->socket,
                                  .module = self->module,
                                  .script = self->script,
                                  .user = self->user[0] ? self->user : NULL};
    struct idem_buf text;
    enum idem_status status = IDEM_OK;
    int fd;

    if (self->config->page_script)
        status = copy_script(self, err);
    idem_buf_init(&text, 16 * 1024 * 1024);
    if (status == IDEM_OK)
        status = gateway_nginx_conf(self->config, &place, &text, err);
    if (status == IDEM_OK) {
        (void)unlink(self->conf); /* a link there must not be followed */
        fd = open(self->conf, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, text.data, text.len) != (ssize_t)text.len)
            status = idem__fail(err, IDEM_ERR_INVALID, "%s: %s", self->conf,
                                strerror(errno));
        if (fd >= 0)
            close(fd);
    }
    idem_buf_clear(&text);
    return status;
}

/* ---- children ---------------------------------------------------------- */

/* Memory that one burst needed, the next one needs again: with glibc's usual
 * limits both children give it back and fault it in again all the time. What
 * the operator has set stays. */
static void
keep_memory(void)
{
    (void)setenv("MALLOC_TRIM_THRESHOLD_", "33554432", 0);
    (void)setenv("MALLOC_MMAP_THRESHOLD_", "2097152", 0);
    (void)setenv("MALLOC_TOP_PAD_", "262144", 0);
}

/* In a session of its own, so that a terminal's Ctrl-C reaches only us; and
 * told to stop if we are killed. A store's URL may hold a password, and every
 * user of the machine can read a command line, but not an environment. */
static pid_t
start(char *const argv[], const char *store)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    sigset_t none;

    if (pid != 0)
        return pid;
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    keep_memory();
    if (store)
        (void)setenv("IDEM_STORE", store, 1);
    execv(argv[0], argv);
    fprintf(stderr, "idem gateway: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static void
reap(struct launch *self)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == self->engine) {
            self->engine = 0;
            self->engine_status = status;
        } else if (pid == self->nginx) {
            self->nginx = 0;
            self->nginx_status = status;
        }
    }
}

static bool
same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* What nginx is told can change; the engine stays what it is. */
static enum idem_status
check_reload(const struct gateway_config *old,
             const struct gateway_config *fresh, struct idem_error *err)
{
    const char *what = !same(old->store, fresh->store) ? "store"
                       : !same(old->http, fresh->http) ? "http"
                       : !same(old->credentials, fresh->credentials)
                           ? "credentials"
                       : !same(old->folder, fresh->folder) ? "folder"
                       : !same(old->socket, fresh->socket) ? "socket"
                       : !same(old->nginx, fresh->nginx)   ? "nginx"
                       : !same(old->module, fresh->module) ? "module"
                                                           : NULL;

    return what ? idem__fail(err, IDEM_ERR_INVALID,
                             "another value of \"%s\" takes a restart", what)
                : IDEM_OK;
}

static void
reload(struct launch *self)
{
    struct gateway_config *old = self->config;
    struct gateway_config *fresh = &self->configs[old == self->configs];
    struct idem_error err = {0};

    gateway_config_init(fresh);
    if (self->load(self->load_arg, fresh, &err) == IDEM_OK &&
        check_reload(old, fresh, &err) == IDEM_OK) {
        self->config = fresh;
        if (write_conf(self, &err) == IDEM_OK) {
            kill(self->nginx, SIGHUP);
            kill(self->engine, SIGHUP);
            gateway_config_clear(old);
            say("reloaded");
            return;
        }
        self->config = old;
    }
    gateway_config_clear(fresh);
    say("not reloaded: %s", err.text);
}

/* Wait a little for signals, and do what they ask for. */
static void
take_signals(struct launch *self, int timeout_ms)
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
                if (self->nginx)
                    kill(self->nginx, SIGUSR1);
                break;
            case SIGHUP:
                if (self->nginx && self->engine)
                    reload(self);
                break;
            default:
                break;
            }
        }
    }
    reap(self);
}

static bool
can_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good;

    if (fd < 0 || strlen(path) >= sizeof(address.sun_path))
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    good = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return good;
}

/* A port of loopback that is free now. */
static void
choose_http(struct launch *self)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(address);
    int fd;

    if (self->config->http) {
        if (strcmp(self->config->http, "off") != 0)
            snprintf(self->http, sizeof(self->http), "%s", self->config->http);
        return;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &len) == 0)
        snprintf(self->http, sizeof(self->http), "127.0.0.1:%d",
                 ntohs(address.sin_port));
    if (fd >= 0)
        close(fd);
}

static const char *
how_it_ended(int status, char *text, size_t text_len)
{
    if (WIFSIGNALED(status))
        snprintf(text, text_len, "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(text, text_len, "ended with status %d", WEXITSTATUS(status));
    return text;
}

static enum idem_status
start_engine(struct launch *self, struct idem_error *err)
{
    char text[64];
    char *argv[20];
    int n = 0;
    int64_t told = now_ms() + 5000;

    argv[n++] = self->self;
    argv[n++] = (char *)"serve";
    argv[n++] = (char *)"--socket";
    argv[n++] = self->socket;
    argv[n++] = (char *)"--trust-socket";
    if (self->http[0]) {
        argv[n++] = (char *)"--http";
        argv[n++] = self->http;
        argv[n++] = (char *)"--http-metrics-only";
    }
    if (self->config->credentials) {
        argv[n++] = (char *)"--credentials";
        argv[n++] = self->config->credentials;
    }
    if (self->group[0]) {
        argv[n++] = (char *)"--socket-mode";
        argv[n++] = (char *)"0660";
        argv[n++] = (char *)"--socket-group";
        argv[n++] = self->group;
    }
    argv[n++] = (char *)"--log-level";
    argv[n++] = (char *)"warning";
    argv[n] = NULL;
    self->engine = start(argv, self->config->store);
    if (self->engine < 0)
        return idem__fail(err, IDEM_ERR_INTERNAL, "fork: %s", strerror(errno));
    while (self->engine && self->stops == 0 && !can_connect(self->socket)) {
        take_signals(self, 10);
        if (now_ms() > told) {
            say("the engine is still opening its store");
            told = now_ms() + 30000;
        }
    }
    if (!self->engine)
        return idem__fail(
            err, IDEM_ERR_INTERNAL, "the engine %s",
            how_it_ended(self->engine_status, text, sizeof(text)));
    return IDEM_OK;
}

static enum idem_status
start_nginx(struct launch *self, struct idem_error *err)
{
    char pid_file[PATH_MAX + 16];
    char text[64];
    char *argv[] = {self->nginx_path, (char *)"-p", self->folder,
                    (char *)"-c",     self->conf,   NULL};

    /* Memory that a request gave back is for the next one: giving it to the
     * system in between costs more than the request. */
    (void)setenv("MALLOC_TRIM_THRESHOLD_", "67108864", 0);
    (void)setenv("MALLOC_TOP_PAD_", "1048576", 0);
    snprintf(pid_file, sizeof(pid_file), "%s/nginx.pid", self->folder);
    self->nginx = start(argv, NULL);
    if (self->nginx < 0)
        return idem__fail(err, IDEM_ERR_INTERNAL, "fork: %s", strerror(errno));
    self->nginx_group = self->nginx;

    /* nginx writes it once it listens. */
    while (self->nginx && self->stops == 0 && access(pid_file, F_OK) != 0)
        take_signals(self, 10);
    if (!self->nginx)
        return idem__fail(
            err, IDEM_ERR_INTERNAL,
            "nginx %s; --print-config shows the lines it speaks of",
            how_it_ended(self->nginx_status, text, sizeof(text)));
    return IDEM_OK;
}

static void
stop_child(struct launch *self, pid_t *child, int gently, int64_t wait_ms)
{
    int64_t until = now_ms() + wait_ms;
    int stops = self->stops;

    if (!*child)
        return;
    kill(*child, gently);
    while (*child && now_ms() < until && self->stops == stops)
        take_signals(self, 20);
    if (*child) {
        kill(*child, SIGTERM);
        until = now_ms() + 10000;
        while (*child && now_ms() < until)
            take_signals(self, 20);
    }
    if (*child) {
        kill(*child, SIGKILL);
        while (*child)
            take_signals(self, 20);
    }
}

/* Workers whose master was killed would listen for ever. They finish what they
 * have, as long as the engine is there to hear of it. */
static void
stop_workers(struct launch *self)
{
    int64_t until = now_ms() + self->config->drain_ms;
    int stops = self->stops;

    if (self->nginx_group <= 0 || kill(-self->nginx_group, SIGQUIT) != 0)
        return;
    while (kill(-self->nginx_group, 0) == 0 && now_ms() < until &&
           self->stops == stops)
        take_signals(self, 20);
    (void)kill(-self->nginx_group, SIGKILL);
}

/* The engine reads the variable itself. */
static bool
has_credentials(const struct gateway_config *config)
{
    const char *file = getenv("IDEM_CREDENTIALS");

    return config->credentials || (file && *file);
}

static void
announce(const struct launch *self)
{
    const struct gateway_config *config = self->config;

    printf("idem gateway: listening on %s://%s\n",
           config->tls_cert ? "https" : "http", config->listen);
    for (size_t i = 0; i < config->route_count; i++) {
        const struct gateway_route *route = &config->routes[i];

        printf("idem gateway: %s%s -> %s\n", route->host ? route->host : "",
               route->path,
               route->upstream ? route->upstream : config->base.upstream);
    }
    if (config->token_path)
        printf("idem gateway: tokens at %s\n", config->token_path);
    if (self->http[0])
        printf("idem gateway: %s and metrics at http://%s/\n",
               has_credentials(config) ? "HTTP API" : "health", self->http);
    if (self->address[0] && !config->socket)
        printf("idem gateway: idem scan, idem settle and the others reach it "
               "at %s, which is their default\n",
               self->address);
    else
        printf("idem gateway: for idem scan, idem settle and the others: "
               "export IDEM_SERVER=unix:%s\n",
               self->address[0] ? self->address : self->socket);
    fflush(stdout);
}

/* Until told to stop, or until one of them is gone. */
static int
watch(struct launch *self)
{
    char text[64];

    while (self->engine && self->nginx && self->stops == 0)
        take_signals(self, 1000);
    if (self->stops == 0) {
        /* Whoever stopped a child may be about to stop us as well. */
        take_signals(self, 300);
    }
    if (self->stops > 0)
        return 0;
    if (!self->engine)
        say("the engine %s; stopping",
            how_it_ended(self->engine_status, text, sizeof(text)));
    if (!self->nginx)
        say("nginx %s; stopping",
            how_it_ended(self->nginx_status, text, sizeof(text)));
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

/* As many open files as we are allowed. */
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
    ssize_t n = readlink("/proc/self/exe", self->self, sizeof(self->self) - 1);
    enum idem_status status = IDEM_OK;

    if (n <= 0)
        return idem__fail(err, IDEM_ERR_INTERNAL, "/proc/self/exe: %s",
                          strerror(errno));
    raise_limit();
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* see stop_workers */
    find_user(self);
    status = gateway_find_module(self->config, self->module,
                                 sizeof(self->module), err);
    if (status == IDEM_OK)
        status = find_nginx(self, err);
    if (status == IDEM_OK)
        status = make_folder(self, err);
    if (status == IDEM_OK)
        status = write_conf(self, err);
    if (status == IDEM_OK)
        status = block_signals(self, err);
    return status;
}

int
gateway_run(gateway_load_fn *load, void *arg)
{
    static struct launch launch;
    struct idem_error err = {0};
    enum idem_status status;
    int code = 1;

    launch.load = load;
    launch.load_arg = arg;
    launch.config = &launch.configs[0];
    gateway_config_init(launch.config);
    status = load(arg, launch.config, &err);
    if (status == IDEM_OK)
        status = prepare(&launch, &err);
    if (status == IDEM_OK) {
        choose_http(&launch);
        status = start_engine(&launch, &err);
    }
    if (status == IDEM_OK && launch.stops == 0)
        status =
            gateway_address_take(launch.config->socket, launch.socket,
                                 launch.address, sizeof(launch.address), &err);
    if (status == IDEM_OK && launch.stops == 0)
        status = start_nginx(&launch, &err);
    if (status == IDEM_OK && launch.stops == 0) {
        announce(&launch);
        code = watch(&launch);
    } else if (status == IDEM_OK) {
        code = 0;
    } else {
        say("%s", err.text);
    }
    stop_child(&launch, &launch.nginx, SIGQUIT, launch.config->drain_ms);
    stop_workers(&launch);
    stop_child(&launch, &launch.engine, SIGTERM, 10000);
    gateway_address_drop(launch.address, launch.socket);
    remove_folder(&launch);
    gateway_config_clear(launch.config);
    return code;
}
