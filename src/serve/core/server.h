/*
 * server.h - types and functions that the parts of `idem serve` share.
 *
 *   flags, environment, file --> server_config
 *   RESP clients --> loop (one thread) --+--> engine
 *   HTTP clients --> http (own threads) -+
 *
 * On a local store the loop's thread runs the engine itself, so an operation
 * costs no thread switch; HTTP threads pass their operations with idem_submit,
 * which wakes the loop. On a remote store the engine has its own thread.
 *
 * Threads: config never changes after the start. Credentials, log and metrics
 * may be used from every thread.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "../../base/tls.h"
#include "credentials.h"
#include "log.h"
#include "metrics.h"
#include "results.h"

#include <idem/id.h>
#include <idem/idem.h>
#include <idem/lock.h>
#include <idem/token.h>

#include <pthread.h>

/* Locks are records too; all of them live in this scope. */
#define SERVER_LOCK_SCOPE IDEM_LOCK_SCOPE

/* Limit of one call: tokens of ISSUE, ids of ID, records of SCAN. */
#define SERVER_COUNT_MAX 1000

/* Without credentials, clients of a loopback port have no right to operate. */
#define SERVER_HOW_TO_OPERATE                                                  \
    "connect by the unix socket as the server's user, or start the server "    \
    "with --credentials FILE"

#define SERVER_COMMAND_MIN 2048 /* room for all of a command but its result */

/* Everything that a flag, an environment variable or a line of the file can
 * set. The config owns its texts; NULL means that an option is not set. */
struct server_config {
    char *store;        /* a store's URL */
    char *socket;       /* the unix socket's path; NULL: none */
    char *socket_group; /* group that may open it; NULL: none */
    int64_t socket_mode;
    char *listen;      /* RESP on TCP, "host:port[,host:port]"; NULL: none */
    char *http;        /* HTTP/JSON, "host:port[,host:port]"; NULL: none */
    char *credentials; /* a file; NULL: see credentials.h */
    char *tls_cert, *tls_key; /* files; NULL: TCP is not encrypted */
    char *tls_client_ca;      /* a file; NULL: clients need no certificate */
    bool trust_socket;        /* clients of the unix socket need no AUTH */
    char *on_doubt;           /* a command or URL that gets new doubts */
    int64_t on_doubt_every_ms;
    bool require_reason;     /* operators must give a reason */
    bool default_socket;     /* nobody named the socket */
    bool second_person;      /* operator actions need two operators */
    char *audit;             /* a file; NULL: beside a journal; "none" */
    int64_t audit_size;      /* bytes, after which the file is rotated */
    bool http_metrics_only;  /* HTTP without credentials: health, metrics */
    bool console;            /* serve the console */
    int64_t console_idle_ms; /* after which its logins end */
    /* What `idem playground` prints once its page is served; NULL for a
     * server. */
    const char *playground;
    char *problem_base;    /* prefix of problem types */
    char *gateway_figures; /* nginx's file of counters; NULL: none */
    char *gateway_routes;  /* the gateway's file of routes; NULL: none */
    char *consumers;       /* the folder of their metrics; NULL: none */
    int64_t max_clients;   /* RESP connections */
    int64_t max_result;    /* bytes of one result */
    int64_t max_command;   /* bytes of one command; 0: max_result + 64 KiB */
    int64_t max_output;    /* bytes of replies waiting for one client */
    int64_t max_buffered;  /* bytes waiting for all clients, both ways */
    int64_t max_queue, max_batch; /* the engine's; 0: its default */
    int64_t max_parked, max_parked_key, max_parked_scope; /* likewise */
    char *seal_key;   /* the engine's; NULL: none */
    char *epoch_file; /* likewise */
    bool accept_rollback;
    char *require_fingerprint; /* the engine's; NULL: none */
    int64_t scope_rate;        /* requests a second of one scope; 0: no limit */
    int64_t scope_records, scope_bytes; /* likewise, limits in the store */
    int64_t token_rate; /* tokens a second for one subject; 0: no limit */
    struct idem_ids_options ids; /* bits, epochs, steps */
    int64_t idle_ms;  /* idle clients are closed after it; 0: never */
    int64_t stall_ms; /* time for half a command or for unread replies */
    int64_t drain_ms; /* after SIGTERM, to answer what is in flight */
    enum log_format log_format;
    enum log_level log_level;
    bool log_keys; /* log keys themselves, not digests */
};

struct audit;
struct doubts;
struct second;
struct returned;
struct server_returns {
    pthread_mutex_t lock;
    struct returned *waiting;
    size_t count;
};

struct server {
    const struct server_config *config;
    struct idem_engine *engine;
    struct credentials *credentials; /* never NULL */
    struct server_log *log;
    struct server_metrics *metrics;
    struct idem__tls *tls; /* of RESP, for the loop's thread; NULL: none */
    struct idem_ids *ids;
    struct idem_token_limit *token_limit, *scope_limit; /* NULL: none */
    struct audit *audit; /* what operators did; never NULL */
    struct doubts *doubts;
    struct second *second; /* NULL: one operator is enough */
    struct log_limit refused_operators, refused_secrets; /* in the log */
    struct server_returns returns;
    struct results results; /* long ones that clients have yet to read */
};

/* ---- config.c: the options ------------------------------------------- */

void server_config_init(struct server_config *config);
void server_config_clear(struct server_config *config);

/* Set one option by its name ("max-clients"). On error, the text says what is
 * wrong. */
enum idem_status server_config_set(struct server_config *config,
                                   const char *name, const char *value,
                                   struct idem_error *err);

/* `name = value` lines; errors name the file and the line. */
enum idem_status server_config_text(struct server_config *config,
                                    const char *file, struct idem_bytes text,
                                    struct idem_error *err);
enum idem_status server_config_file(struct server_config *config,
                                    const char *file, struct idem_error *err);

/* IDEM_MAX_CLIENTS and so on. */
enum idem_status server_config_environment(struct server_config *config,
                                           struct idem_error *err);

/* All options, for help and for flags; a NULL name ends the list. */
struct server_option {
    const char *name;  /* "max-clients" */
    const char *value; /* how help names the value; NULL: a yes or no */
    const char *help;
};
const struct server_option *server_config_option(size_t i);

/* Fill in defaults (store, socket) and refuse unsafe or impossible settings. */
enum idem_status server_config_check(struct server_config *config,
                                     struct idem_error *err);

/* Does this value of an option mean that there is to be no socket, no file?
 * The gateway says "off", so both are taken. */
bool server_is_none(const char *value);

/* The default unix socket of this user, for the server and its clients. */
void server_default_socket(char *path, size_t path_len);
/* Make its folder; an error if the folder belongs to another user. */
enum idem_status server_default_folder(struct idem_error *err);

/* Check the certificate files. */
struct idem__tls_files server_tls_files(const struct server_config *config);
#define SERVER_TLS "tls-" /* prefix of messages about them */

/* ---- listen.c: addresses --------------------------------------------- */

struct server_address {
    char host[256];
    char port[8];
    bool loopback; /* only this machine can reach it */
};

/* "127.0.0.1:6390", "[::1]:6390", "localhost:6390", ":6390" (loopback),
 * "*:6390" (all interfaces). Moves *list past what it read; false at the end or
 * with err set. */
bool server_address_next(const char **list, struct server_address *address,
                         struct idem_error *err);

/* ---- ids and tokens, for RESP and HTTP ------------------------------- */

/* The scope that ids of this kind belong to: a segment's name; else empty. */
struct idem_bytes server_ids_scope(struct idem_bytes kind);

/* Generate ids of a kind ("snowflake", "segment:orders", "uuid7" ...) and call
 * `each` for each of them. Without may_wait: IDEM_ERR_OVERLOADED if no id is
 * available yet. */
enum idem_status server_ids(struct server *server, struct idem_bytes kind,
                            size_t count, bool may_wait,
                            void (*each)(void *arg, struct idem_bytes id),
                            void *arg, struct idem_error *err);

/* The parts of an id of a kind. A UUID has a version (else -1) and perhaps a
 * time, and nothing else. */
enum idem_status server_id_explain(const struct server *server,
                                   struct idem_bytes kind, struct idem_bytes id,
                                   int *version, struct idem_id_parts *parts,
                                   struct idem_error *err);

/* ---- returns.c: starts whose client is gone -------------------------- */

void server_returns_open(struct server_returns *returns);
/* Call it after the engine is closed. */
void server_returns_close(struct server_returns *returns);

/* Release what this BEGIN started, now or as soon as possible; true: the engine
 * has work. */
bool server_give_back(struct server *server, const struct idem_op *start,
                      uint64_t fence);
/* Retry releases that failed so far; true: the engine has work. */
bool server_give_back_again(struct server *server);

/* ---- http.c: HTTP/JSON, metrics, in threads of its own ---------------- */

struct http;

/* Listen on config->http and start to serve. */
enum idem_status http_start(struct server *server, struct http **http,
                            struct idem_error *err);

/* Read its certificate and key again; after an error the old ones stay. */
enum idem_status http_tls_read(const struct server_config *config,
                               struct idem_error *err);

/*
 * Stop accepting, answer requests in flight, cancel waits (idem_cancel), and
 * return when no HTTP thread touches the server any more, at the latest about
 * drain_ms later. The loop must keep turning the engine meanwhile, so this is
 * called on another thread. NULL is fine.
 */
void http_stop(struct http *http, int64_t drain_ms);

/* ---- server.c -------------------------------------------------------- */

/* Run until SIGTERM or SIGINT. Returns 0 after a clean stop, else an exit
 * status. */
int server_run(const struct server_config *config);

#endif
