/*
 * http_inner.h - connections and requests; for http*.c only.
 *
 *   libmicrohttpd's thread: reads a request, submits its op, suspends the
 *       connection; renders and sends the answer once it is resumed
 *   the engine's thread:    copies the answer into the request, resumes
 *   a thread aside:         figures and ids, which may wait for the store, and
 *       lists, one after another
 *   with --console:         two more threads, see http_stats.c, and a second
 *       thread aside, for the playground
 *   the watcher's thread:   five times a second, looks for clients that left,
 *       requests that take too long, and connections that are too slow
 *
 * A submitted request has two references: its connection and the engine, which
 * calls back exactly once. `lock` guards the lists and the fields of a request
 * that are marked "under the lock".
 */
#ifndef IDEM__HTTP_INNER_H
#define IDEM__HTTP_INNER_H

#include "../core/issue.h"
#include "../core/rights.h"
#include "http.h"

#include <gnutls/abstract.h>
#include <microhttpd.h>
#include <pthread.h>
#include <sys/queue.h>

#define HTTP_DAEMONS_MAX 16
#define HTTP_IDLE_S 60         /* idle connection */
#define HTTP_STORE_MS 30000    /* timeout for the store */
#define HTTP_AUTH_DELAY_MS 400 /* least delay after a wrong secret */
#define HTTP_TICK_MS 200
#define HTTP_READY_MS 5000
#define HTTP_ASIDE_MS 10000
#define HTTP_METRICS_MAX (4 * 1024 * 1024)
#define HTTP_SESSION_LEN 32 /* the hash of a session's cookie */

/* A page of another site cannot send this header. A cookie counts only together
 * with it, and results are masked for callers that send it. */
#define HTTP_PAGE_HEADER "X-Idem-Console"
#define HTTP_SECRET_HEADER "X-Idem-Secret"

struct http_daemon {
    struct http *http;
    struct MHD_Daemon *mhd;
    bool loopback;
    int port;
};

/* One connection. */
struct http_client {
    LIST_ENTRY(http_client) link;
    int fd;
    int64_t since_ms; /* when it was accepted, or last became idle or busy */
    enum { CLIENT_IDLE, CLIENT_SENDING, CLIENT_SERVED } stage;
};

struct http_request {
    struct http *http;
    const struct http_daemon *daemon;
    struct MHD_Connection *connection;
    struct http_client *client;
    struct principal *principal;
    char *target; /* raw: path and query */
    bool seen, refuse_at_once;
    struct idem_buf body;
    size_t discarded;
    struct http_path path;
    struct idem_arena path_memory;
    const struct http_route *route;
    struct http_call call;
    struct audit_source audit; /* without a name if not an operator */
    bool from_page;            /* the request comes from the console */
    bool by_session;           /* identified by this session: */
    uint8_t session[HTTP_SESSION_LEN];
    char cookie[160]; /* to be set; empty: none */
    int64_t started_us;
    atomic_int refs;

    /* The outcome: a problem, or an answer. */
    bool failed;
    enum idem__problem problem;
    struct idem_error error;
    char allow[128];
    struct idem_answer answer; /* points to ... */
    struct idem_record record; /* ... this, with its bytes in `memory` or in: */
    struct result *result;     /* NULL: the result is not long, or was sent */
    struct idem_arena memory;
    size_t held; /* bytes of a long reply, counted until it is sent */
    struct idem_record *records; /* SCAN, ISSUE */
    size_t record_count;
    struct server_issue *issue; /* tokens */
    bool masked;                /* there is a result, but it is not shown */
    size_t masked_len;
    json_t *json;         /* the parts of an id */
    struct idem_buf text; /* figures and lists */
    size_t text_held;     /* bytes of it, counted for the principal */

    /* Under the lock. */
    LIST_ENTRY(http_request) link; /* in http->pending while suspended */
    int64_t due_ms;                /* deadline for the answer */
    uint64_t ticket;
    size_t outstanding; /* callbacks still to come */
    bool suspended, waits, gone, abandoned;
    bool wants_room; /* waits for room to build its long reply */
    struct http_request *aside_next;
};

/* Requests that run on a thread of their own, one after the other. */
#define HTTP_LANE_PLAY 1
#define HTTP_LANES 2
struct http_lane {
    struct http *http;
    pthread_t thread;
    pthread_cond_t wanted;
    struct http_request *first; /* the queue */
    bool started;
    pthread_cond_t rest;          /* signalled after each request */
    const struct principal *last; /* the principal of the last request */
    bool busy;
};

struct http {
    struct server *server;
    struct http_daemon daemons[HTTP_DAEMONS_MAX];
    size_t daemon_count;
    size_t max_body;
    char *openapi;
    pthread_mutex_t lock;
    pthread_cond_t stir; /* the watcher waits here */
    pthread_t watcher;
    struct http_lane lanes[HTTP_LANES];
    bool aside_over;
    bool watching;
    atomic_bool draining; /* accept no new calls */
    bool stopping;        /* waiting requests are answered now */
    LIST_HEAD(, http_client) clients;
    LIST_HEAD(, http_request) pending;
    size_t in_flight; /* callbacks still to come */
    /* Bytes of received bodies, and of long replies not yet sent. */
    atomic_size_t client_count, buffered;
    struct http_sessions *sessions; /* NULL: no console */
    struct http_stats *stats;       /* likewise */
    LIST_HEAD(, http_listener) listeners;
    size_t listener_count;
};

/* http_guard.c: the caller, if it is known, and its address. */
void http_source(const struct http_request *request,
                 struct audit_source *source);

/* http_guard.c: may this request come from there, and who sent it? False:
 * request->problem says what is wrong. */
bool http_guard(struct http_request *request, const char *version);

/* The name or the secret is wrong: delay the reply, count it and log it. Always
 * returns false. */
bool http_wrong_secret(struct http_request *request, const char *why);

/* http_serve.c */
enum MHD_Result http_handle(void *arg, struct MHD_Connection *connection,
                            const char *url, const char *method,
                            const char *version, const char *upload,
                            size_t *upload_len, void **context);
void *http_request_new(void *arg, const char *uri,
                       struct MHD_Connection *connection);
void http_request_done(void *arg, struct MHD_Connection *connection,
                       void **context, enum MHD_RequestTerminationCode code);
bool http_fail(struct http_request *request, enum idem__problem problem,
               const char *format, ...) __attribute__((format(printf, 3, 4)));

/* http_run.c: run a call. True: the answer or problem is ready already. */
bool http_run(struct http_request *request);
/* Under the lock. Only the first problem is kept. */
void http_fail_with(struct http_request *request, enum idem_status status,
                    const struct idem_error *err);
void http_release_undelivered(struct http_request *request);
void http_request_put(struct http_request *request);

/* http_respond.c: send the outcome of the request; a long reply waits until
 * there is room for it. */
enum MHD_Result http_respond(struct http_request *request);
/* Buffers have grown or shrunk; if they shrunk, requests that wait for room may
 * be resumed. */
void http_count(struct http *http, size_t before, size_t now);
/* Under the lock: count this many bytes for the request's reply, until it is
 * sent. False: there is no room for them now. */
bool http_hold(struct http_request *request, size_t len);
/* Fail the request, because there was no room. Under the lock, or before the
 * request is shared. */
void http_fail_full(struct http_request *request);

/* Suspend until http_resume; after `limit_ms` the watcher resumes it. */
void http_suspend(struct http_request *request, int64_t limit_ms);

/* Under the lock: take it off the list and resume its connection. */
void http_resume(struct http_request *request);

/* http_watch.c */
bool http_watch_start(struct http *http);
void http_watch_stop(struct http *http);

/* http_aside.c: run it on a thread of its own; always returns false. */
bool http_aside(struct http_request *request);
/* Under the lock, for a suspended request. */
void http_aside_add(struct http_request *request);
bool http_aside_start(struct http *http);
void http_aside_stop(struct http *http);
void http_aside_clear(struct http *http);

/* ---- the console ------------------------------------------------------- */

/* http_console.c */
struct console_file;
bool http_console_built(void);
const struct console_file *http_console_file(struct idem_bytes name);
void http_console_headers(struct MHD_Response *response);

/* http_session.c */
struct http_sessions *http_sessions_open(int64_t idle_ms);
void http_sessions_close(struct http_sessions *sessions); /* NULL is fine */
/* Log in with the credential in the call; false: the request fails. */
bool http_session_login(struct http_request *request);
/* The principal of the session in the request's cookie; NULL: none. */
struct principal *http_session_find(struct http_request *request);
bool http_session_lives(struct http *http,
                        const uint8_t session[HTTP_SESSION_LEN]);
void http_session_end(struct http_request *request);
/* Did the session confirm an operator's action with the secret? */
bool http_session_confirm(struct http_request *request);
json_t *http_session_json(const struct http_request *request);

/* http_stats.c: NULL: out of memory. */
struct http_stats *http_stats_open(struct http *http);
void http_stats_close(struct http_stats *stats); /* NULL is fine */
bool http_stats_put(struct http *http, size_t seconds, struct idem_buf *out);

/* http_events.c: add a listener; NULL: the request failed. */
struct MHD_Response *http_events(struct http_request *request);
bool http_events_wanted(struct http *http);
void http_events_send(struct http *http, const char *row, size_t len);
void http_events_end(struct http *http);

/* http_tls.c: read the certificate and its key, at the start and on SIGHUP. */
void http_tls_forget(void);
const char *http_tls_trust(void); /* NULL: clients need no certificate */
int http_tls_show(gnutls_session_t session,
                  const struct gnutls_cert_retr_st *info,
                  gnutls_pcert_st **certs, unsigned *count,
                  gnutls_ocsp_data_st **ocsp, unsigned *ocsp_count,
                  gnutls_privkey_t *private, unsigned *flags);
/* Did the client show a certificate that we trust? If so, `name` gets its
 * common name, or "". */
bool http_tls_peer(struct MHD_Connection *connection, char *name,
                   size_t name_len);

/* http_metrics.c: Prometheus text. False: out of memory. */
bool http_metrics(struct http *http, struct idem_buf *out);
void http_put_head(struct idem_buf *out, const char *name, const char *type,
                   const char *help);
/* Each bucket ends at twice the time of the previous one; the last one has no
 * end. The label is name="value". */
void http_put_histogram(struct idem_buf *out, const char *name,
                        const char *label, const uint64_t *bucket,
                        size_t buckets, double first_s, double sum_s);

/* Start a scan for doubts and wait a short time for its end. False: no scan has
 * ended yet. */
bool http_doubts_look(struct http *http, uint64_t *count, double *oldest_s);

/* http_gateway.c: write the gateway's counters from its file; NULL: none. */
void http_put_gateway(struct idem_buf *out, const char *path);
/* Settings of the gateway's routes, from another file; NULL: out of memory. */
json_t *http_gateway_routes(const struct server_config *config);

/* ---- http_figures.c ---------------------------------------------------- */

/* The help text of a store's figure. */
const char *http_figure_help(const char *name);

/* Figures of this process, which get Prometheus' standard names. */
struct http_process {
    double cpu_s, start_s, resident, open_files, max_files;
};
void http_process_figures(int64_t start_us, struct http_process *process);

#endif
