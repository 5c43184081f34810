/*
 * server.h - what the parts of `idem serve` share.
 *
 *   flags, environment, file --> server_config
 *   RESP clients --> loop (one thread) --+--> engine
 *   HTTP clients --> http (own threads) -+
 *
 * On a local store the loop's thread drives the engine itself, so an operation
 * costs no thread switch; HTTP threads hand theirs in with idem_submit, which
 * wakes the loop. On a remote store the engine has a thread of its own.
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

/* ISSUE gives at most this many tokens, ID this many ids, SCAN this many
 * records a call. */
#define SERVER_COUNT_MAX 1000

/* Where no credentials are set, a port of loopback gives no right to operate.
 */
#define SERVER_HOW_TO_OPERATE                                                  \
    "connect by the unix socket as the server's user, or start the server "    \
    "with --credentials FILE"

#define SERVER_COMMAND_MIN 2048 /* all of a command but its result fits */

/* Everything that a flag, a variable or a line of the file can set. Texts are
 * owned by the config; NULL means that it is not set. */
struct server_config {
    char *store;        /* a store's URL */
    char *socket;       /* the unix socket's path; NULL: none */
    char *socket_group; /* who else may open it; NULL: nobody */
    int64_t socket_mode;
    char *listen;      /* RESP on TCP, "host:port[,host:port]"; NULL: none */
    char *http;        /* HTTP/JSON, "host:port[,host:port]"; NULL: none */
    char *credentials; /* a file; NULL: see credentials.h */
    char *tls_cert, *tls_key; /* files; NULL: TCP is not encrypted */
    char *tls_client_ca;      /* a file; NULL: clients need no certificate */
    bool trust_socket;        /* who can open the unix socket need not AUTH */
    char *on_doubt;           /* a command or URL to tell of new doubts */
    int64_t on_doubt_every_ms;
    bool require_reason;     /* of operators */
    bool second_person;      /* operators decide in pairs */
    char *audit;             /* a file; NULL: beside a journal; "none" */
    int64_t audit_size;      /* bytes of it before a new one is begun */
    bool http_metrics_only;  /* HTTP without credentials: health, metrics */
    bool console;            /* serve it, too */
    int64_t console_idle_ms; /* then its logins end */
    /* What `idem playground` prints once its page is there; NULL: this is a
     * server. */
    const char *playground;
    char *problem_base;    /* what problem types begin with */
    char *gateway_figures; /* the file of an nginx; NULL: none */
    char *gateway_routes;  /* the file of a gateway; NULL: none */
    char *consumers;       /* the folder of their metrics; NULL: none */
    int64_t max_clients;   /* RESP connections */
    int64_t max_result;    /* bytes of one result */
    int64_t max_command;   /* bytes of one command; 0: max_result + 64 KiB */
    int64_t max_output;    /* bytes of replies waiting for one client */
    int64_t max_buffered;  /* bytes waiting for all clients, both ways */
    int64_t max_queue, max_batch; /* the engine's; 0: its own */
    int64_t max_parked, max_parked_key, max_parked_scope; /* likewise */
    char *seal_key;   /* the engine's; NULL: none */
    char *epoch_file; /* likewise */
    bool accept_rollback;
    char *require_fingerprint; /* the engine's; NULL: none */
    int64_t scope_rate;        /* requests a second of one scope; 0: no limit */
    int64_t scope_records, scope_bytes; /* likewise, in the store */
    int64_t token_rate; /* tokens a second for one subject; 0: no limit */
    struct idem_ids_options ids; /* bits, epochs, steps */
    int64_t idle_ms;  /* a client that says nothing is closed; 0: never */
    int64_t stall_ms; /* half a command, or replies not read: closed */
    int64_t drain_ms; /* after SIGTERM, to answer what is in flight */
    enum log_format log_format;
    enum log_level log_level;
    bool log_keys; /* keys in the log as they are, not as digests */
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

/* One option by its name ("max-clients"); the text says what is wrong. */
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

/* The options, for help and for flags; NULL behind the last one. */
struct server_option {
    const char *name;  /* "max-clients" */
    const char *value; /* how help names the value; NULL: a yes or no */
    const char *help;
};
const struct server_option *server_config_option(size_t i);

/* Fill in defaults (store, socket) and refuse what is unsafe or absurd. */
enum idem_status server_config_check(struct server_config *config,
                                     struct idem_error *err);

/* The default unix socket of this user, for the server and for its clients. */
void server_default_socket(char *path, size_t path_len);
/* Make its folder; an error if that is another user's. */
enum idem_status server_default_folder(struct idem_error *err);

/* The files of its certificate. */
struct idem__tls_files server_tls_files(const struct server_config *config);
#define SERVER_TLS "tls-" /* begins what is wrong with them */

/* ---- listen.c: addresses --------------------------------------------- */

struct server_address {
    char host[256];
    char port[8];
    bool loopback; /* only this machine can reach it */
};

/* "127.0.0.1:6390", "[::1]:6390", "localhost:6390", ":6390" (loopback),
 * "*:6390" (everywhere). Moves *list behind what it read; false at the end or
 * with err set. */
bool server_address_next(const char **list, struct server_address *address,
                         struct idem_error *err);

/* ---- ids and tokens, for both surfaces ------------------------------- */

/* The scope that ids of this kind belong to: a segment's name; else empty. */
struct idem_bytes server_ids_scope(struct idem_bytes kind);

/* Ids of a kind ("snowflake", "segment:orders", "uuid7" ...), one call of
 * `each` an id. Without may_wait: IDEM_ERR_OVERLOADED if none is at hand yet.
 */
enum idem_status server_ids(struct server *server, struct idem_bytes kind,
                            size_t count, bool may_wait,
                            void (*each)(void *arg, struct idem_bytes id),
                            void *arg, struct idem_error *err);

/* What an id of a kind is made of. A UUID has a version (else -1) and perhaps a
 * time, and nothing else. */
enum idem_status server_id_explain(const struct server *server,
                                   struct idem_bytes kind, struct idem_bytes id,
                                   int *version, struct idem_id_parts *parts,
                                   struct idem_error *err);

/* ---- returns.c: starts that nobody will hear of ---------------------- */

void server_returns_open(struct server_returns *returns);
/* When the engine is closed. */
void server_returns_close(struct server_returns *returns);

/* Release what this BEGIN started, now or as soon as it can be; true: the
 * engine has work. */
bool server_give_back(struct server *server, const struct idem_op *start,
                      uint64_t fence);
/* Try those again that could not be released yet; true: the engine has work. */
bool server_give_back_again(struct server *server);

/* ---- http.c: HTTP/JSON, metrics, in threads of its own ---------------- */

struct http;

/* Listen on config->http and answer from now on. */
enum idem_status http_start(struct server *server, struct http **http,
                            struct idem_error *err);

/* Its certificate and key, once more; after an error the old ones stay. */
enum idem_status http_tls_read(const struct server_config *config,
                               struct idem_error *err);

/*
 * Stop accepting, answer what is in flight, give up waits (idem_cancel), and
 * return when no HTTP thread will touch the server any more; at the latest
 * about drain_ms later. The loop goes on turning the engine meanwhile: this is
 * called on a thread of its own. NULL is fine.
 */
void http_stop(struct http *http, int64_t drain_ms);

/* ---- server.c -------------------------------------------------------- */

/* Run until SIGTERM or SIGINT; 0 after a clean stop, else an exit status. */
int server_run(const struct server_config *config);

#endif
