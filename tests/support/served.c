/*
 * served.c - a server for a C test, and a proxy in front of it.
 */
#include "served.h"

#include "../../src/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void
give_up(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    abort();
}

bool
served_main(int argc, char **argv, int *code)
{
    if (argc < 2)
        return false;
    if (strcmp(argv[1], "serve") != 0) {
        cmocka_set_test_filter(argv[1]);
        return false;
    }
    *code = cli_serve(argc - 1, argv + 1);
    return true;
}

static void
run_server(const struct served *served)
{
    const char *argv[16] = {"idem",        "serve",    "--store",
                            served->store, "--socket", served->socket};
    char log[300];
    size_t n = 6;
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; served->options[i]; i++)
        argv[n++] = served->options[i];
    snprintf(log, sizeof(log), "%s/log", served->folder);
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execv("/proc/self/exe", (char **)argv);
    _exit(127);
}

static int
connect_to(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(to.sun_path, path, strlen(path));
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    close(fd);
    return -1;
}

void
served_again(struct served *served)
{
    int fd = -1;

    served->pid = fork();
    if (served->pid < 0)
        give_up("fork");
    if (served->pid == 0)
        run_server(served);
    for (int i = 0; i < 3000 && fd < 0; i++) {
        usleep(10000);
        fd = connect_to(served->socket);
        if (fd < 0 && waitpid(served->pid, NULL, WNOHANG) != 0)
            give_up("the server ended");
    }
    if (fd < 0)
        give_up("the server does not listen");
    close(fd);
}

void
served_start(struct served *served, const char *store,
             const char *const *options)
{
    bool folder = store[strlen(store) - 1] == ':' && store_is_durable(store);

    memset(served, 0, sizeof(*served));
    make_folder(served->folder, sizeof(served->folder));
    snprintf(served->store, sizeof(served->store), "%s%s%s", store,
             folder ? served->folder : "", folder ? "/records" : "");
    snprintf(served->socket, sizeof(served->socket), "%s/s", served->folder);
    snprintf(served->url, sizeof(served->url), "idem+unix:%s", served->socket);
    for (size_t i = 0; options && options[i] && i < 5; i++)
        served->options[i] = options[i];
    served_again(served);
}

void
served_signal(struct served *served, int number)
{
    kill(served->pid, number);
    if (number == SIGKILL || number == SIGTERM) {
        waitpid(served->pid, NULL, 0);
        served->pid = 0;
    }
}

void
served_stop(struct served *served)
{
    if (served->pid > 0) {
        kill(served->pid, SIGCONT);
        served_signal(served, SIGTERM);
    }
    remove_folder(served->folder);
}

/* ---- the proxy ----------------------------------------------------------- */

struct pair {
    struct proxy *proxy;
    int client, server;
    struct dice dice;
};

/* The client has long gone when the server gets it. */
static bool
pass_late(struct pair *pair, const char *bytes, ssize_t len)
{
    shutdown(pair->client, SHUT_RDWR);
    while (!atomic_load(&pair->proxy->let_go) &&
           !atomic_load(&pair->proxy->over))
        usleep(1000);
    (void)send(pair->server, bytes, (size_t)len, MSG_NOSIGNAL);
    usleep(100000);
    return false;
}

/* Pass on what came, all of it, half of it, or nothing. */
static bool
pass(struct pair *pair, int from, int to)
{
    struct proxy *proxy = pair->proxy;
    char bytes[16384];
    ssize_t len = recv(from, bytes, sizeof(bytes), 0);
    int delay_us = atomic_load(&proxy->delay_us);
    bool cut =
        (int)dice_roll(&pair->dice, 1000) < atomic_load(&proxy->cut_per_mille);

    if (len <= 0)
        return false;
    if (from == pair->client && atomic_exchange(&proxy->late, false))
        return pass_late(pair, bytes, len);
    if (delay_us > 0)
        usleep((unsigned)dice_roll(&pair->dice, (uint64_t)delay_us));
    if (from == pair->server && atomic_load(&proxy->swallow))
        return true;
    if (cut) {
        atomic_fetch_add(&proxy->cuts, 1);
        len = (ssize_t)dice_roll(&pair->dice, (uint64_t)len);
    }
    for (ssize_t at = 0; at < len;) {
        ssize_t n = send(to, bytes + at, (size_t)(len - at), MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        at += n;
    }
    return !cut;
}

static void *
carry(void *arg)
{
    struct pair *pair = arg;
    bool open = true;

    while (open && !atomic_load(&pair->proxy->over)) {
        struct pollfd fds[2] = {{pair->client, POLLIN, 0},
                                {pair->server, POLLIN, 0}};

        if (poll(fds, 2, 20) <= 0)
            continue;
        if (fds[0].revents)
            open = pass(pair, pair->client, pair->server);
        if (open && fds[1].revents)
            open = pass(pair, pair->server, pair->client);
    }
    close(pair->client);
    close(pair->server);
    atomic_fetch_sub(&pair->proxy->pairs, 1);
    free(pair);
    return NULL;
}

static void *
accept_all(void *arg)
{
    struct proxy *proxy = arg;
    uint64_t seed = number_from_env("IDEM_TEST_SEED", 1);

    while (!atomic_load(&proxy->over)) {
        struct pollfd fd = {proxy->listener, POLLIN, 0};
        struct pair *pair;
        pthread_t thread;
        int client =
            poll(&fd, 1, 20) > 0 ? accept(proxy->listener, NULL, NULL) : -1;

        if (client < 0)
            continue;
        pair = calloc(1, sizeof(*pair));
        if (!pair)
            give_up("calloc");
        *pair = (struct pair){proxy, client, -1, {++seed * 7919}};
        if (!atomic_load(&proxy->refuse))
            pair->server = connect_to(proxy->target);
        if (pair->server < 0) {
            close(client);
            free(pair);
            continue;
        }
        atomic_fetch_add(&proxy->accepted, 1);
        atomic_fetch_add(&proxy->pairs, 1);
        if (pthread_create(&thread, NULL, carry, pair) != 0)
            give_up("pthread_create");
        pthread_detach(thread);
    }
    return NULL;
}

void
proxy_start(struct proxy *proxy, const struct served *served)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    memset(proxy, 0, sizeof(*proxy));
    snprintf(proxy->target, sizeof(proxy->target), "%s", served->socket);
    snprintf(proxy->socket, sizeof(proxy->socket), "%s/p", served->folder);
    snprintf(proxy->url, sizeof(proxy->url), "idem+unix:%s", proxy->socket);
    memcpy(at.sun_path, proxy->socket, sizeof(at.sun_path) - 1);
    proxy->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(proxy->listener, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(proxy->listener, 64) != 0 ||
        pthread_create(&proxy->thread, NULL, accept_all, proxy) != 0)
        give_up("the proxy");
}

void
proxy_stop(struct proxy *proxy)
{
    atomic_store(&proxy->over, true);
    pthread_join(proxy->thread, NULL);
    while (atomic_load(&proxy->pairs) > 0)
        usleep(1000);
    close(proxy->listener);
    unlink(proxy->socket);
}

/* ---- what a test asks ------------------------------------------------- */

struct idem_engine *
served_open(const char *url)
{
    struct idem_options options = {.log = NULL};
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};

    if (idem_open(url, &options, &engine, &err) != IDEM_OK) {
        fprintf(stderr, "%s: %s\n", url, err.text);
        abort();
    }
    return engine;
}

struct idem_engine *
served_open_quick(const char *url)
{
    char quick[400];

    snprintf(quick, sizeof(quick), "%s?timeout_ms=1500", url);
    return served_open(quick);
}

int64_t
served_now_ms(void)
{
    return idem__system_clocks.boot_us(NULL) / 1000;
}

enum idem_status
served_do(struct idem_engine *engine, struct idem_op op,
          struct idem_answer *answer)
{
    memset(answer, 0, sizeof(*answer));
    if (op.scope.len == 0)
        op.scope = idem_text("shop");
    return idem_do(engine, &op, answer, NULL);
}

struct idem_op
served_begin(const char *id)
{
    return (struct idem_op){.verb = IDEM_BEGIN, .id = idem_text(id)};
}
