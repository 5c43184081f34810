/*
 * server.c - `idem serve`: check the configuration, start all parts, run, and
 * stop.
 */
#include "../../base/json_memory.h"
#include "../resp/loop.h"
#include "doubts.h"
#include "listen.h"
#include "second.h"
#include "systemd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHER_FILES 256 /* descriptors for all but RESP clients */

/* Make the parent folders of a path. An error shows when the path is used. */
static void
make_folders(const char *path)
{
    char copy[4096];

    if (strlen(path) >= sizeof(copy))
        return;
    memcpy(copy, path, strlen(path) + 1);
    for (char *at = strchr(copy + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(copy, 0700);
        *at = '/';
    }
}

/* The server makes the folders of its default paths; other folders are the
 * operator's. A folder in /tmp could be another user's trap. */
enum idem_status
server_default_folder(struct idem_error *err)
{
    char path[4096];
    struct stat stat;

    server_default_socket(path, sizeof(path));
    make_folders(path);
    if (getuid() == 0) {
        chmod("/run/idem", 0755); /* the socket has a mode of its own */
        return IDEM_OK;
    }
    *strrchr(path, '/') = '\0';
    if (lstat(path, &stat) != 0 || !S_ISDIR(stat.st_mode) ||
        stat.st_uid != getuid() || (stat.st_mode & 022))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s is not a folder of this user alone; give "
                          "--socket PATH",
                          path);
    return IDEM_OK;
}

static enum idem_status
make_default_folders(const struct server_config *config, struct idem_error *err)
{
    char path[4096];

    server_default_socket(path, sizeof(path));
    if (strncmp(config->store, "journal:", 8) == 0)
        make_folders(config->store + 8);
    return config->socket && strcmp(config->socket, path) == 0
               ? server_default_folder(err)
               : IDEM_OK;
}

/* Raise the limit of open files to what max-clients needs; else lower
 * max-clients and log a warning. */
static void
raise_file_limit(struct server_config *config, struct server_log *log)
{
    rlim_t wanted = (rlim_t)config->max_clients + OTHER_FILES;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (limit.rlim_max < wanted && geteuid() == 0)
        limit.rlim_cur = limit.rlim_max = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= wanted)
        return;
    config->max_clients = limit.rlim_cur > 2 * OTHER_FILES
                              ? (int64_t)limit.rlim_cur - OTHER_FILES
                              : (int64_t)limit.rlim_cur / 2;
    server_log(log, LOG_WARNING, "few-files",
               LOG_TEXT("why", "the limit of open files is low"),
               LOG_NUMBER("max-clients", config->max_clients));
}

/* 0: no limit. */
static bool
open_limit(int64_t rate, struct idem_token_limit **limit)
{
    if (rate > 0)
        *limit = idem_token_limit_open((double)rate, 2.0 * (double)rate);
    return rate <= 0 || *limit;
}

static enum idem_status
open_services(struct loop *loop, struct idem_error *err)
{
    struct server *server = loop->server;
    struct idem_ids_options options = loop->config->ids;

    options.grew = loop_wake;
    options.grew_arg = loop;
    options.log = server_log_engine;
    options.log_arg = loop->log;
    if (!open_limit(loop->config->token_rate, &server->token_limit) ||
        !open_limit(loop->config->scope_rate, &server->scope_limit))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return idem_ids_open(server->engine, &options, &server->ids, err);
}

/* With memory: not even strict mode survives the end of this process. The
 * playground is meant to forget. */
static void
warn_of_memory(const struct server_config *config, struct server_log *log)
{
    const char *restarts = getenv("IDEM_GATEWAY_RESTARTS");

    if (strcmp(config->store, "memory:") != 0 || config->playground)
        return;
    server_log_engine(
        log, IDEM_LOG_WARNING,
        restarts && strcmp(restarts, "0") != 0
            ? "memory: the records of the engine that ended are lost, and "
              "their requests run again; use journal:DIR for strict requests"
            : "memory: the records are lost when this process ends, and their "
              "requests then run again; use journal:DIR for strict requests");
}

static enum idem_status
open_engine(struct loop *loop, struct idem_error *err)
{
    const struct server_config *config = loop->config;
    struct idem_options options = {
        .max_queue = (size_t)config->max_queue,
        .max_batch = (size_t)config->max_batch,
        .max_parked = (size_t)config->max_parked,
        .max_parked_key = (size_t)config->max_parked_key,
        .max_parked_scope = (size_t)config->max_parked_scope,
        .max_result = (size_t)config->max_result,
        .require_fingerprint = config->require_fingerprint,
        .seal_key = config->seal_key,
        .log = server_log_engine,
        .log_arg = loop->log,
    };
    struct idem_store_options store_options = {
        .max_result = options.max_result,
        .log = server_log_engine,
        .log_arg = loop->log,
    };
    struct idem__engine_inner inner = {.wake = loop_wake,
                                       .wake_arg = loop,
                                       .scope_records = config->scope_records,
                                       .scope_bytes = config->scope_bytes,
                                       .epoch_file = config->epoch_file,
                                       .accept_rollback =
                                           config->accept_rollback};
    enum idem_status status;

    status = idem__store_open(config->store, &store_options, &inner.store, err);
    if (status != IDEM_OK)
        return status;
    warn_of_memory(config, loop->log);
    inner.driven = inner.store->type->local;
    status = idem__engine_open(NULL, &options, &inner, &loop->engine, err);
    loop->driven = inner.driven;
    loop->server->engine = loop->engine;
    if (status == IDEM_OK)
        status = open_services(loop, err);
    return status;
}

/* Called after the store is open, because a journal's folder then exists and is
 * ours. */
static enum idem_status
open_audit(struct server *server, struct idem_error *err)
{
    const char *file = server->config->audit;
    char own[4096];

    if (!file) {
        audit_default_file(server->config->store, own, sizeof(own));
        file = own;
    }
    return audit_open(*file && !server_is_none(file) ? file : NULL,
                      server->config->audit_size, &server->audit, err);
}

static void
log_ready(struct loop *loop)
{
    const struct server_config *config = loop->config;
    char store[512];

    idem__url_redact(config->store, store, sizeof(store));
    server_log(loop->log, LOG_INFO, "ready", LOG_TEXT("version", IDEM_VERSION),
               LOG_TEXT("store", store),
               LOG_TEXT("socket", loop->has_socket ? config->socket : "none"),
               LOG_TEXT("listen", config->listen ? config->listen : "none"),
               LOG_TEXT("http", config->http ? config->http : "none"),
               LOG_TEXT("credentials",
                        config->credentials ? config->credentials : "none"),
               LOG_TEXT("tls", config->tls_cert ? config->tls_cert : "none"),
               LOG_NUMBER("pid", getpid()));
    systemd_notify("READY=1");
    if (config->playground) {
        printf("%s\n", config->playground);
        fflush(stdout);
    }
}

/* A server that listens before its store is open would look ready. One that
 * finds out afterwards that its port is taken has created an empty journal. So
 * ask before. */
static enum idem_status
try_addresses(const struct server_config *config, struct idem_error *err)
{
    enum idem_status status = server_listen_try(config->listen, err);

    if (status == IDEM_OK)
        status = server_listen_try(config->http, err);
    if (status == IDEM_OK && config->socket && !config->default_socket)
        status = server_socket_try(config->socket, err);
    return status;
}

static enum idem_status
start(struct loop *loop, struct idem_error *err)
{
    enum idem_status status = try_addresses(loop->config, err);

    idem__json_watch();
    if (status == IDEM_OK)
        status = make_default_folders(loop->config, err);
    if (status == IDEM_OK)
        status = open_engine(loop, err);
    if (status == IDEM_OK)
        status = open_audit(loop->server, err);
    if (status == IDEM_OK)
        status = doubts_open(loop->server, &loop->server->doubts, err);
    if (status == IDEM_OK && loop->config->second_person &&
        !(loop->server->second = second_open()))
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    /* The gateway takes a server for ready when its socket accepts, so HTTP
     * listens before that. */
    if (status == IDEM_OK && loop->config->http)
        status = http_start(loop->server, &loop->http, err);
    if (status == IDEM_OK)
        status = loop_listen(loop, err);
    if (status == IDEM_OK)
        status = systemd_sockets_taken(err);
    return status;
}

int
server_run(const struct server_config *given)
{
    struct server_config config = *given;
    struct server_metrics metrics = {.start_us = idem__mono_us()};
    struct server_log log = {config.log_format, config.log_level,
                             config.log_keys, STDERR_FILENO};
    struct server server = {
        .config = &config, .log = &log, .metrics = &metrics};
    struct loop loop = {.epoll = -1};
    struct idem_error err = {0};
    enum idem_status status = systemd_sockets_note(&err);

    systemd_watchdog_init(&loop.watchdog);
    server_returns_open(&server.returns);
    results_open(&server.results, (size_t)config.max_buffered);
    if (status == IDEM_OK)
        status =
            credentials_open(config.credentials, &server.credentials, &err);
    if (status == IDEM_OK && config.tls_cert) {
        struct idem__tls_files files = server_tls_files(&config);

        status = idem__tls_open_server(SERVER_TLS, &files, &server.tls, &err);
    }
    if (status == IDEM_OK) {
        raise_file_limit(&config, &log);
        status = loop_open(&loop, &server, &err);
        if (status == IDEM_OK)
            status = start(&loop, &err);
        if (status == IDEM_OK) {
            log_ready(&loop);
            loop_run(&loop);
            systemd_notify("STOPPING=1");
        } else {
            http_stop(loop.http, 0);
        }
        doubts_stop(server.doubts);
        idem_ids_close(server.ids);
        idem_close(loop.engine);
        doubts_close(server.doubts);
        loop_close(&loop);
        idem_token_limit_close(server.token_limit);
        idem_token_limit_close(server.scope_limit);
        second_close(server.second);
        audit_close(server.audit);
    }
    results_close(&server.results);
    server_returns_close(&server.returns);
    credentials_close(server.credentials);
    idem__tls_close(server.tls);
    if (status != IDEM_OK)
        server_log(&log, LOG_ERROR, "cannot-start", LOG_TEXT("text", err.text));
    else
        server_log(&log, LOG_INFO, "stopped", LOG_NUMBER("pid", getpid()));
    return status == IDEM_OK ? 0 : 1;
}
