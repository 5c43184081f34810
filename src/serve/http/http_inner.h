/*
 * http_inner.h - connections and requests, seen by http*.c only.
 *
 *   libmicrohttpd's thread: reads a request, submits its op, suspends the
 *       connection; renders and sends the answer once it is resumed
 *   the engine's thread:    copies the answer into the request, resumes
 *   a thread aside:         figures and ids, which may wait for the store, and
 *       lists, one after another
 *   with --console:         two threads more, see http_stats.c, and a second
 *       one aside, for the playground
 *   the watcher's thread:   five times a second, looks for clients that left,
 *       requests that take too long, and connections that dawdle
 *
 * A request that was submitted is held twice: by its connection and by the
 * engine, who calls back exactly once. `lock` guards the lists and what a
 * request says under it.
 */
#ifndef IDEM__HTTP_INNER_H
#define IDEM__HTTP_INNER_H

#include "../core/issue.h"
#include "../core/rights.h"
#include "http.h"

#include <gnutls/abstract.h>
#include <microhttpd.h>
#include <pthread.h>

#define HTTP_DAEMONS_MAX 16
#define HTTP_IDLE_S 60         /* a connection between two requests */
#define HTTP_STORE_MS 30000    /* the store has this long to answer */
#define HTTP_AUTH_DELAY_MS 400 /* a wrong secret, at least */
#define HTTP_TICK_MS 200
#define HTTP_READY_MS 5000
#define HTTP_ASIDE_MS 10000
#define HTTP_METRICS_MAX (4 * 1024 * 1024)
#define HTTP_SESSION_LEN 32 /* the hash of a session's cookie */

/* A page of another site cannot send this header: a cookie counts only beside
 * it, and results are masked for whoever sends it. */
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
    struct http_client *next, **link;
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
    struct audit_source audit; /* of an operator; else without a name */
    bool from_page;            /* the console asks */
    bool by_session;           /* the caller was known by this: */
    uint8_t session[HTTP_SESSION_LEN];
    char cookie[160]; /* to be set; empty: none */
    int64_t started_us;
    atomic_int refs;

    /* What it comes to: a problem, or an answer. */
    bool failed;
    enum idem__problem problem;
    struct idem_error error;
    char allow[128];
    struct idem_answer answer; /* shows ... */
    struct idem_record record; /* ... this: bytes in `memory`, or in: */
    struct result *result;     /* NULL: the result is not long, or was sent */
    struct idem_arena memory;
    size_t held; /* bytes of a long reply that are counted, until it is sent */
    struct idem_record *records; /* SCAN, ISSUE */
    size_t record_count;
    struct server_issue *issue; /* tokens */
    bool masked;                /* the result is there, and not shown */
    size_t masked_len;
    json_t *json;         /* what an id is made of */
    struct idem_buf text; /* figures and lists */
    size_t text_held;     /* bytes of it that count for the principal */

    /* Under the lock. */
    struct http_request *next, **link; /* in http->pending while suspended */
    int64_t due_ms;                    /* answered by then at the latest */
    uint64_t ticket;
    size_t outstanding; /* callbacks to come */
    bool suspended, waits, gone, abandoned;
    bool wants_room; /* to put its long reply together */
    struct http_request *aside_next;
};

/* Requests that a thread of their own does aside, one after the other. */
#define HTTP_LANE_PLAY 1
#define HTTP_LANES 2
struct http_lane {
    struct http *http;
    pthread_t thread;
    pthread_cond_t wanted;
    struct http_request *first; /* first come, first served */
    bool started;
    pthread_cond_t rest;          /* it has done one of them */
    const struct principal *last; /* whose that was */
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
    atomic_bool draining; /* no new calls */
    bool stopping;        /* who still waits is answered now */
    struct http_client *clients;
    struct http_request *pending;
    size_t in_flight; /* callbacks that the engine owes us */
    /* Bytes of bodies that came, and of long replies that have yet to go. */
    atomic_size_t client_count, buffered;
    struct http_sessions *sessions; /* NULL: no console */
    struct http_stats *stats;       /* likewise */
    struct http_listener *listeners;
    size_t listener_count;
};

/* http_guard.c: who asks, as far as it is known, and from where. */
void http_source(const struct http_request *request,
                 struct audit_source *source);

/* http_guard.c: is this request from somewhere we take requests from, and by
 * whom? False: request->problem says what is wrong. */
bool http_guard(struct http_request *request, const char *version);

/* A name or a secret is wrong: told late, counted and logged. Always false. */
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

/* http_run.c: run a call. True: the answer or problem is there already. */
bool http_run(struct http_request *request);
/* Under the lock; the first problem stays. */
void http_fail_with(struct http_request *request, enum idem_status status,
                    const struct idem_error *err);
void http_release_undelivered(struct http_request *request);
void http_request_put(struct http_request *request);

/* http_respond.c: send what the request came to, a long reply when there is
 * room for it. */
enum MHD_Result http_respond(struct http_request *request);
/* More bytes, or fewer, wait in buffers; fewer let others be answered. */
void http_count(struct http *http, size_t before, size_t now);
/* Under the lock: count so many bytes for this request's reply, until it was
 * sent. False: there is no room for them now. */
bool http_hold(struct http_request *request, size_t len);
/* As a problem: there was no room. Under the lock, or before it is shared. */
void http_fail_full(struct http_request *request);

/* Suspend until http_resume; after `limit_ms` the watcher resumes it. */
void http_suspend(struct http_request *request, int64_t limit_ms);

/* Under the lock: take it off the list and resume its connection. */
void http_resume(struct http_request *request);

/* http_watch.c */
bool http_watch_start(struct http *http);
void http_watch_stop(struct http *http);

/* http_aside.c: do it on a thread of its own; always false. */
bool http_aside(struct http_request *request);
/* Under the lock, for one that is suspended. */
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
/* The credential in the call becomes a session, or the request fails. */
bool http_session_login(struct http_request *request);
/* Whose session the request's cookie names; NULL: nobody's. */
struct principal *http_session_find(struct http_request *request);
bool http_session_lives(struct http *http,
                        const uint8_t session[HTTP_SESSION_LEN]);
void http_session_end(struct http_request *request);
/* An operator's action by a session has the secret once more? */
bool http_session_confirm(struct http_request *request);
json_t *http_session_json(const struct http_request *request);

/* http_stats.c: NULL: out of memory. */
struct http_stats *http_stats_open(struct http *http);
void http_stats_close(struct http_stats *stats); /* NULL is fine */
bool http_stats_put(struct http *http, size_t seconds, struct idem_buf *out);

/* http_events.c: somebody more listens; NULL: the request failed. */
struct MHD_Response *http_events(struct http_request *request);
bool http_events_wanted(struct http *http);
void http_events_send(struct http *http, const char *row, size_t len);
void http_events_end(struct http *http);

/* http_tls.c: read the certificate and its key, at first and again. */
void http_tls_forget(void);
const char *http_tls_trust(void); /* NULL: clients need no certificate */
int http_tls_show(gnutls_session_t session,
                  const struct gnutls_cert_retr_st *info,
                  gnutls_pcert_st **certs, unsigned *count,
                  gnutls_ocsp_data_st **ocsp, unsigned *ocsp_count,
                  gnutls_privkey_t *private, unsigned *flags);
/* Did it show a certificate that we trust? Its common name then, or "". */
bool http_tls_peer(struct MHD_Connection *connection, char *name,
                   size_t name_len);

/* http_metrics.c: Prometheus text. False: out of memory. */
bool http_metrics(struct http *http, struct idem_buf *out);
bool http_put_head(struct idem_buf *out, const char *name, const char *type,
                   const char *help);
/* Each bucket ends at twice the time of the one before; the last one has no
 * end. The label is name="value". */
bool http_put_histogram(struct idem_buf *out, const char *name,
                        const char *label, const uint64_t *bucket,
                        size_t buckets, double first_s, double sum_s);

/* A look for doubts that begins now: wait a little for its end. False: no look
 * has ended yet. */
bool http_doubts_look(struct http *http, uint64_t *count, double *oldest_s);

/* http_gateway.c: what a gateway counts, from its file; NULL: none. */
bool http_put_gateway(struct idem_buf *out, const char *path);
/* And what holds on its routes, from another; NULL: out of memory. */
json_t *http_gateway_routes(const struct server_config *config);

/* ---- http_figures.c ---------------------------------------------------- */

/* What a figure of a store means. */
const char *http_figure_help(const char *name);

/* This process, by the names that Prometheus has for it. */
struct http_process {
    double cpu_s, start_s, resident, open_files, max_files;
};
void http_process_figures(int64_t start_us, struct http_process *process);

#endif
