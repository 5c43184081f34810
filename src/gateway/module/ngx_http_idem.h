
/*
 * ngx_http_idem.h - declarations shared by the files of the module.
 *
 *   request --> gate: key, scope, fingerprint --> engine: BEGIN
 *                                                   |
 *       problem, replay <---------------------------+--> proxy_pass
 *                                                             |
 *   client <-- response: held <-- engine: FINISH <------------+
 *
 *   ngx_http_idem_module.c   start and stop
 *   _variables.c             variables for logs
 *   _figures.c               counters, by route
 *   _directives.c _source.c  parsing of directives
 *   _conf.c                  defaults, and refused settings
 *   _content.c               content handlers allowed behind the gate
 *
 *   _ctx.c                   the context of a gated request
 *   _gate.c                  the PRECONTENT handler: may it run?
 *   _name.c                  the record's name: key and scope
 *   _repeat.c                additional rules of the profile "oasis"
 *   _body.c                  the request's body: size, fields, fingerprint
 *   _verdict.c               what happens after the engine's verdict
 *   _token.c _status.c       locations that issue tokens and report on keys
 *   _inject.c                tokens in the forms of a page
 *
 *   _engine.c _link.c        one pipelined connection per worker
 *   _op.c _send.c            the commands on it
 *   _digest.c                the key of the credential digests
 *   _claim.c _finish.c       BEGIN, RENEW, FINISH, RELEASE of one record
 *   _dedupe.c                the claim of the content, next to that of the key
 *
 *   _service.c               what the service's response means for the record
 *   _hold.c _keep.c          filters that hold it until the record is durable
 *   _stream.c                a response that is too large to be held
 *
 *   _answer.c _headers.c     what idem itself sends
 *   _problem.c               ... when it refuses, and the pages about that
 *   _replay.c _stored.c      ... when the request is a duplicate
 */


#ifndef _NGX_HTTP_IDEM_H_INCLUDED_
#define _NGX_HTTP_IDEM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "../../base/figures.h"
#include "../../base/problem.h"
#include "../../serve/http/problem_page.h"
#include "../../base/quota.h"
#include "../../engine/lease.h"
#include "../../wire/wire.h"

#include "form_tag.h"
#include "key_header.h"
#include "profile.h"
#include "result.h"
#include "source.h"


/* r->buffered has four bits; image_filter uses this one too, but it is not used
 * in front of a service that changes data */
#define NGX_HTTP_IDEM_BUFFERED     0x08

#define NGX_HTTP_IDEM_DIGEST_LEN   32
#define NGX_HTTP_IDEM_TRACE_LEN    55

#define NGX_HTTP_IDEM_SWEEP        5000
#define NGX_HTTP_IDEM_FOLLOW       1000


typedef struct ngx_http_idem_op_s      ngx_http_idem_op_t;
typedef struct ngx_http_idem_claim_s   ngx_http_idem_claim_t;
typedef struct ngx_http_idem_ctx_s     ngx_http_idem_ctx_t;

/* the engine's reply to a command; bytes are views into the input */

typedef struct {
    enum idem_status             status;
    struct idem__wire_brief      brief;      /* if status is IDEM_OK */
    struct idem_error            err;        /* if it is not */
} ngx_http_idem_reply_t;


/* reply is NULL if the operation was given up */
typedef void (*ngx_http_idem_reply_pt)(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply);


/* IDEM__VERDICT_COUNT: no verdict, because of an error or no reply */

static ngx_inline enum idem_verdict
ngx_http_idem_verdict(ngx_http_idem_reply_t *reply)
{
    return reply && reply->status == IDEM_OK ? reply->brief.verdict
                                             : IDEM__VERDICT_COUNT;
}


/* one command; it lives until it is answered, even if its request ends */

struct ngx_http_idem_op_s {
    ngx_queue_t                  queue;
    uint64_t                     tag;
    ngx_http_idem_reply_pt       handler;
    void                        *data;
    ngx_msec_t                   until;      /* it is given up then */
    ngx_event_t                  again;      /* retry: the engine could not */
    ngx_uint_t                   tries;
    size_t                       len;
    size_t                       size;       /* of the whole struct */
    u_char                      *room;       /* for a result without data */
    unsigned                     sent:1;     /* sent at least once */
    unsigned                     resend:1;   /* may be sent again */
    unsigned                     once:1;     /* for this connection only */
    unsigned                     queued:1;
    unsigned                     unsure:1;   /* a reply to it was lost */
    unsigned                     hurry:1;    /* does not wait for others */
    u_char                       cmd[1];
};


typedef struct ngx_http_idem_stored_s  ngx_http_idem_stored_t;


/* the worker's connection to the engine */

typedef struct {
    ngx_addr_t                   addr;
    ngx_str_t                    name;
    ngx_str_t                    user;
    ngx_str_t                    password;
    ngx_str_t                    host;       /* that its certificate is for */
    ngx_str_t                    ca;
    ngx_str_t                    cert;       /* ours, with its key */
    ngx_str_t                    key;
    ngx_ssl_t                   *ssl;        /* NULL: without TLS */
    ngx_msec_t                   timeout;
    ngx_msec_t                   patience;   /* time without a connection */
    size_t                       max_buffered;
    size_t                       max_result; /* limit of a FINISH */

    ngx_log_t                   *log;
    ngx_peer_connection_t        peer;
    ngx_connection_t            *connection;
    unsigned                     tls:1;
    unsigned                     up:1;
    unsigned                     started:1;
    unsigned                     hurry:1;

    ngx_queue_t                  pending;    /* to be sent */
    ngx_queue_t                  inflight;   /* sent on this connection */
    ngx_uint_t                   ops;
    size_t                       bytes;
    ngx_uint_t                   gathered;   /* since the last send() */
    ngx_uint_t                   gathered_before;  /* ... one turn earlier */

    ngx_http_idem_op_t         **slots;
    ngx_uint_t                   nslots;
    ngx_uint_t                   free_slot;
    uint64_t                     generation;

    void                        *spare;      /* free memory for reuse */
    ngx_uint_t                   spares;

    u_char                      *out;
    size_t                       out_pos, out_len, out_size;
    u_char                      *in;
    size_t                       in_pos, in_len, in_size;
    ngx_http_idem_stored_t      *stored;     /* the last large response, if one
                                                of its requests still runs */

    ngx_event_t                  flush;
    ngx_event_t                  reconnect;
    ngx_event_t                  sweep;
    ngx_event_t                  tick;
    ngx_queue_t                  timed;      /* contexts with a deadline */
    ngx_queue_t                  claims;     /* claims to renew */
    ngx_msec_t                   backoff;
    ngx_msec_t                   down_since;
    ngx_uint_t                   said;       /* reasons of this outage that are
                                                in the log, 2 at most */
    ngx_msec_t                   said_at;
    ngx_msec_t                   said_first;
    ngx_err_t                    said_err;
    const char                  *said_why;
    uint64_t                     nonce;

    u_char                       digest_key[NGX_HTTP_IDEM_DIGEST_LEN];
    u_char                       digest_offer[NGX_HTTP_IDEM_DIGEST_LEN];
    unsigned                     digest_known:1;
    unsigned                     digest_asked:1;
    unsigned                     digest_complained:1;
    ngx_msec_t                   digest_complained_at;
    uint64_t                     digest_fence;
    ngx_event_t                  digest_again;
    ngx_queue_t                  waiting;    /* contexts that need the key */
} ngx_http_idem_engine_t;


typedef enum {
    NGX_HTTP_IDEM_BEGINNING = 0,
    NGX_HTTP_IDEM_EXECUTING,
    NGX_HTTP_IDEM_ENDING,                    /* FINISH or RELEASE is sent */
    NGX_HTTP_IDEM_ENDED
} ngx_http_idem_claim_e;


/* a record that this worker claimed; it outlives its request */

struct ngx_http_idem_claim_s {
    ngx_http_idem_claim_e        state;
    ngx_uint_t                   refs;
    ngx_http_idem_ctx_t         *ctx;        /* NULL: no request waits */
    ngx_http_idem_op_t          *begin;
    ngx_queue_t                  queue;      /* in engine->claims */
    ngx_msec_t                   renew_at;
    ngx_http_idem_op_t          *renewal;
    ngx_msec_t                   lease;
    ngx_msec_t                   begun;      /* when; 0: not claimed */
    ngx_uint_t                   route;
    uint64_t                     fence;
    ngx_str_t                    scope;
    ngx_str_t                    id;
    enum idem_type               type;
    ngx_http_idem_claim_t       *content;    /* its content's, see dedupe.c */
    ngx_http_idem_claim_t       *main;       /* of a content: the key's */
    unsigned                     renewing:1;
    unsigned                     released:1; /* ended by RELEASE */
    unsigned                     taken:1;    /* claimed without fingerprint */
};


typedef enum {
    NGX_HTTP_IDEM_FROM_VARIABLE = 0,
    NGX_HTTP_IDEM_FROM_HEADER,
    NGX_HTTP_IDEM_FROM_JSON,
    NGX_HTTP_IDEM_FROM_FORM,
    NGX_HTTP_IDEM_FROM_XML,
    NGX_HTTP_IDEM_FROM_CONST,                /* scopes only */
    NGX_HTTP_IDEM_FROM_CONTENT               /* keys only */
} ngx_http_idem_from_e;


typedef struct {
    ngx_http_idem_from_e         from;
    ngx_str_t                    name;       /* in lower case for a header */
    ngx_http_complex_value_t     value;
} ngx_http_idem_source_t;


typedef struct {
    ngx_uint_t                   first;
    ngx_uint_t                   last;
} ngx_http_idem_range_t;


#define NGX_HTTP_IDEM_STRICT       0
#define NGX_HTTP_IDEM_LOOSE        1

#define NGX_HTTP_IDEM_REPLAY       0
#define NGX_HTTP_IDEM_REFUSE       1
#define NGX_HTTP_IDEM_FIXED        2

#define NGX_HTTP_IDEM_FP_BODY      0
#define NGX_HTTP_IDEM_FP_JSON      1
#define NGX_HTTP_IDEM_FP_OFF       2


typedef struct {
    ngx_flag_t                   enable;
    ngx_array_t                 *keys;       /* ngx_http_idem_source_t */
    ngx_array_t                 *tokens;     /* ngx_http_idem_source_t */
    ngx_http_idem_source_t      *scope;      /* NULL: credential digest */
    ngx_array_t                 *credentials;  /* ngx_str_t, lower case */
    ngx_flag_t                   anonymous;  /* may be unset: see name.c */
    ngx_flag_t                   key_quoted;
    ngx_uint_t                   profile;    /* enum gateway_profile_name */
    ngx_array_t                 *replayed;   /* ngx_str_t: more markers */
    ngx_uint_t                   methods;
    ngx_flag_t                   required;
    ngx_uint_t                   mode;
    ngx_msec_t                   wait;
    ngx_msec_t                   lease;
    ngx_msec_t                   ttl;        /* unset: engine's default */
    ngx_msec_t                   dedupe;     /* 0: no dedupe by content */
    size_t                       max_body;
    size_t                       max_answer;
    ngx_flag_t                   close_delimited;
    ngx_array_t                 *release;    /* ngx_http_idem_range_t */
    ngx_array_t                 *keep;       /* ngx_str_t: always stored */
    ngx_array_t                 *drop;       /* ngx_str_t: never stored */
    ngx_flag_t                   fail_open;
    ngx_uint_t                   duplicate;
    ngx_uint_t                   duplicate_status;
    ngx_str_t                    duplicate_text;
    ngx_uint_t                   fingerprint;
    ngx_array_t                 *fields;     /* ngx_str_t: paths in the body */
    ngx_str_t                    docs;
    ngx_flag_t                   unbuffer_events;
    ngx_msec_t                   token_ttl;
    ngx_flag_t                   next_token; /* in every response */
    ngx_flag_t                   page_token; /* in every GET, for the service */
    ngx_str_t                    inject;     /* name of the form field */
    struct idem_op               begin;      /* common to all BEGINs */
    ngx_uint_t                   route;      /* index in the figures */
    unsigned                     issues:1;
    unsigned                     tells:1;    /* reports on a key */
    unsigned                     needs_body:1;
    unsigned                     scope_needs_body:1;
    unsigned                     keys_default:1;  /* from the profile */
} ngx_http_idem_loc_conf_t;


#define NGX_HTTP_IDEM_CONTENTS     4


/* a module that sends requests to a service; handler NULL: not present */

typedef struct {
    ngx_uint_t                   ctx_index;
    ngx_http_handler_pt          handler;
} ngx_http_idem_content_t;


typedef struct {
    ngx_http_idem_engine_t      *engine;
    struct idem__figures        *figures;    /* NULL: nothing is counted */
    ngx_str_t                    problem_base;
    ngx_http_idem_content_t      contents[NGX_HTTP_IDEM_CONTENTS];
    unsigned                     learned:1;
    ngx_msec_t                   end_with_master;  /* 0: never */
    unsigned                     warned_anonymous:1;
    unsigned                     warned_scope:1;
} ngx_http_idem_main_conf_t;


typedef enum {
    NGX_HTTP_IDEM_READING = 0,   /* reading the request's body */
    NGX_HTTP_IDEM_ASKING,        /* BEGIN or ISSUE is sent */
    NGX_HTTP_IDEM_RUNNING,       /* the service has the request */
    NGX_HTTP_IDEM_HOLDING,       /* its response is collected */
    NGX_HTTP_IDEM_KEEPING,       /* FINISH or RELEASE is sent */
    NGX_HTTP_IDEM_STREAMING,     /* too large: passed on unheld */
    NGX_HTTP_IDEM_PASSING,       /* the filters do nothing */
    NGX_HTTP_IDEM_DROPPING       /* our own response replaces it */
} ngx_http_idem_state_e;


typedef struct ngx_http_idem_problem_s  ngx_http_idem_problem_t;


/* a gated request */

struct ngx_http_idem_ctx_s {
    ngx_http_request_t          *request;
    ngx_http_idem_loc_conf_t    *conf;       /* of the gated location */
    ngx_http_idem_claim_t       *claim;
    ngx_http_idem_state_e        state;
    ngx_str_t                    verdict;
    ngx_str_t                    scope;
    ngx_str_t                    id;
    ngx_str_t                    trace;      /* traceparent */
    ngx_str_t                    next;       /* a token for the next request */
    ngx_str_t                    instance;   /* set when first used */
    u_char                       fingerprint[IDEM_FINGERPRINT_LEN];
    u_char                       content[IDEM_FINGERPRINT_LEN];
    ngx_queue_t                  queue;      /* in engine->timed */
    ngx_msec_t                   deadline;
    ngx_msec_t                   asked;      /* when BEGIN was sent */
    ngx_event_t                  hold;
    ngx_queue_t                  waiting;
    ngx_uint_t                   method;     /* the original method */
    ngx_uint_t                   http_version;

    const ngx_http_idem_problem_t  *problem; /* replaces the held response */
    ngx_uint_t                   problem_status;
    struct gateway_form_scan    *inject;     /* scans the page for forms */
    ngx_chain_t                 *held;
    ngx_chain_t                **held_last;
    ngx_chain_t                 *held_tail;
    size_t                       held_size;
    ngx_chain_t                 *free;       /* bytes of a streamed response */
    ngx_chain_t                 *busy;
    u_char                       tail;       /* the byte held back */
    off_t                        received;   /* bytes of the request's body */
    int64_t                      expires;
    void                       (*finalize)(ngx_http_request_t *r,
                                     ngx_int_t rc);

    unsigned                     gated:1;    /* it needs a record to run */
    unsigned                     token:1;
    unsigned                     by_content:1;  /* the key is the content */
    unsigned                     result_told:1; /* Repeatability-Result */
    unsigned                     page:1;     /* a GET that gets a token */
    unsigned                     next_asked:1;
    unsigned                     in_waiting:1;
    unsigned                     timed:1;
    unsigned                     complete:1; /* the last buffer has come */
    unsigned                     ended:1;    /* its claim is concluded */
    unsigned                     streamed:1; /* too large to be held */
    unsigned                     has_tail:1;
    unsigned                     cut:1;      /* must end incomplete */
    unsigned                     left:1;     /* the client has left */
    unsigned                     elsewhere:1;  /* X-Accel-Redirect */
    unsigned                     no_page:1;  /* error_page is not used */
    unsigned                     local:1;    /* no service: nginx itself */
};


/* ngx_http_idem_engine.c */

ngx_int_t ngx_http_idem_engine_start(ngx_http_idem_engine_t *e,
    ngx_cycle_t *cycle);
void ngx_http_idem_engine_stop(ngx_http_idem_engine_t *e);
void ngx_http_idem_tick_start(ngx_http_idem_engine_t *e);
ngx_int_t ngx_http_idem_engine_away(ngx_http_idem_engine_t *e);
void ngx_http_idem_complain(ngx_http_idem_engine_t *e, ngx_err_t err,
    const char *why);
void ngx_http_idem_works_again(ngx_http_idem_engine_t *e);


/* ngx_http_idem_link.c */

#define NGX_HTTP_IDEM_BACKOFF_MIN     20
#define NGX_HTTP_IDEM_BACKOFF_MAX     1000

ngx_int_t ngx_http_idem_tls_create(ngx_conf_t *cf, ngx_http_idem_engine_t *e);
void ngx_http_idem_tls_start(ngx_http_idem_engine_t *e);
void ngx_http_idem_link_close(ngx_connection_t *c);
void ngx_http_idem_connect(ngx_http_idem_engine_t *e);
/* why is NULL if there was no connection yet */
void ngx_http_idem_connected(ngx_http_idem_engine_t *e);
void ngx_http_idem_disconnect(ngx_http_idem_engine_t *e, const char *why);
void ngx_http_idem_reconnect_handler(ngx_event_t *ev);


/* ngx_http_idem_send.c */

ngx_int_t ngx_http_idem_grow(u_char **buf, size_t *size, size_t len,
    size_t need, ngx_log_t *log);
ngx_int_t ngx_http_idem_tell(ngx_http_idem_engine_t *e, const char *name,
    ngx_str_t *arg, ngx_str_t *second);
void ngx_http_idem_flush_handler(ngx_event_t *ev);
void ngx_http_idem_flush(ngx_http_idem_engine_t *e);


/* ngx_http_idem_stored.c */

ngx_int_t ngx_http_idem_stored(ngx_http_request_t *r,
    ngx_http_idem_engine_t *e, struct idem_bytes *bytes, ngx_str_t *stored);

/* ngx_http_idem_op.c */

void *ngx_http_idem_alloc(ngx_http_idem_engine_t *e, size_t size);
void ngx_http_idem_free(ngx_http_idem_engine_t *e, void *p, size_t size);
uint64_t ngx_http_idem_nonce(ngx_http_idem_engine_t *e);
ngx_http_idem_op_t *ngx_http_idem_op_create(ngx_http_idem_engine_t *e,
    struct idem_op *what, ngx_http_idem_reply_pt handler, void *data);
void ngx_http_idem_op_send(ngx_http_idem_engine_t *e, ngx_http_idem_op_t *op);
void ngx_http_idem_op_again(ngx_http_idem_engine_t *e, ngx_http_idem_op_t *op);
void ngx_http_idem_op_cancel(ngx_http_idem_engine_t *e,
    ngx_http_idem_op_t *op);
ngx_http_idem_op_t *ngx_http_idem_op_find(ngx_http_idem_engine_t *e,
    uint64_t tag);


/* ngx_http_idem_digest.c */

void ngx_http_idem_digest_init(ngx_http_idem_engine_t *e);
void ngx_http_idem_digest_ask(ngx_http_idem_engine_t *e);
void ngx_http_idem_digest_await(ngx_http_idem_ctx_t *ctx);


/* ngx_http_idem_claim.c */

ngx_http_idem_claim_t *ngx_http_idem_claim_create(ngx_str_t *scope,
    ngx_str_t *id, ngx_msec_t lease);
void ngx_http_idem_claim_prepare(ngx_http_idem_loc_conf_t *conf);
void ngx_http_idem_claim_begin(ngx_http_idem_ctx_t *ctx);
ngx_http_idem_op_t *ngx_http_idem_claim_op(ngx_http_idem_claim_t *claim,
    struct idem_op *what, ngx_http_idem_reply_pt handler);
void ngx_http_idem_renew_start(ngx_http_idem_claim_t *claim);
ngx_int_t ngx_http_idem_claim_ask(ngx_http_idem_ctx_t *ctx,
    struct idem_op *what, ngx_str_t *id, ngx_http_idem_reply_pt handler);
ngx_http_idem_op_t *ngx_http_idem_claim_end(ngx_http_idem_claim_t *claim,
    struct idem_op *what);
ngx_int_t ngx_http_idem_claim_release(ngx_http_idem_claim_t *claim);
void ngx_http_idem_claim_renew(ngx_http_idem_claim_t *claim);
void ngx_http_idem_claim_leave(ngx_http_idem_claim_t *claim,
    ngx_uint_t strict);
void ngx_http_idem_claim_unref(ngx_http_idem_claim_t *claim);
void ngx_http_idem_claim_detach(ngx_http_idem_claim_t *claim);


/* ngx_http_idem_dedupe.c */

ngx_int_t ngx_http_idem_content_id(ngx_http_idem_ctx_t *ctx, ngx_str_t *id);
/* claim the content, too, then continue with the request */
void ngx_http_idem_dedupe(ngx_http_idem_ctx_t *ctx);
/* end the claim of the content; done: the request was executed, or may have
 * been */
void ngx_http_idem_dedupe_end(ngx_http_idem_claim_t *claim, ngx_uint_t done);
void ngx_http_idem_dedupe_ended(ngx_http_idem_claim_t *content);


/* ngx_http_idem_finish.c */

ngx_int_t ngx_http_idem_claim_finish(ngx_http_idem_ctx_t *ctx,
    ngx_uint_t failed, ngx_uint_t replayable);


/* ngx_http_idem_content.c */

char *ngx_http_idem_check_content(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);
ngx_uint_t ngx_http_idem_location_is_safe(ngx_http_request_t *r,
    ngx_uint_t method);


/* ngx_http_idem_ctx.c */

ngx_http_idem_ctx_t *ngx_http_idem_create_ctx(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
ngx_http_idem_ctx_t *ngx_http_idem_get_ctx(ngx_http_request_t *r);
void ngx_http_idem_attempts(ngx_http_request_t *r, ngx_uint_t *sent,
    ngx_uint_t *answered);
ngx_int_t ngx_http_idem_local_handler(ngx_http_request_t *r);
void ngx_http_idem_set_deadline(ngx_http_idem_ctx_t *ctx, ngx_msec_t time);
void ngx_http_idem_clear_deadline(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_deadline(ngx_http_idem_ctx_t *ctx);


/* ngx_http_idem_gate.c */

ngx_int_t ngx_http_idem_handler(ngx_http_request_t *r);
void ngx_http_idem_ask(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_go_on(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_resume(ngx_http_idem_ctx_t *ctx);


/* ngx_http_idem_verdict.c */

void ngx_http_idem_begun(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_reply_t *reply);
void ngx_http_idem_started(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_away(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_refuse_away(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_no_verdict(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_reply_t *reply);
void ngx_http_idem_stop_asking(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_fail(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_refuse(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, const char *detail,
    ngx_uint_t retry_after);


/* ngx_http_idem_headers.c */

/* a header for the service */
typedef struct {
    ngx_str_t                    name;
    u_char                      *lowcase;
    ngx_uint_t                   hash;       /* 0: not computed yet */
} ngx_http_idem_header_name_t;

#define ngx_http_idem_header_name(name, lowcase)                              \
    { ngx_string(name), (u_char *) lowcase, 0 }

/* the next header of this name, or of any name; initially, part is the list's
 * first part and i is 0 */
ngx_table_elt_t *ngx_http_idem_next_header(ngx_list_part_t **part,
    ngx_uint_t *i, ngx_str_t *name);
/* a header of the request; the name is in lower case */
ngx_int_t ngx_http_idem_find_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value, ngx_uint_t *count);
void ngx_http_idem_find_trace(ngx_http_request_t *r, ngx_str_t *trace);
ngx_int_t ngx_http_idem_strip(ngx_http_request_t *r,
    ngx_uint_t (*matches)(ngx_table_elt_t *h));
ngx_int_t ngx_http_idem_strip_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_strip_upgrade(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_forget_wishes(ngx_http_request_t *r);
ngx_table_elt_t *ngx_http_idem_push_header(ngx_list_t *list);
ngx_int_t ngx_http_idem_tell_service(ngx_http_request_t *r,
    ngx_http_idem_header_name_t *name, ngx_str_t *value);
ngx_int_t ngx_http_idem_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value);
ngx_int_t ngx_http_idem_set_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);
ngx_int_t ngx_http_idem_add_no_store(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_add_expires(ngx_http_request_t *r, int64_t expires);


/* ngx_http_idem_repeat.c */

/* NGX_ABORT: the request violates the profile's rules for requests with or
 * without a key */
ngx_int_t ngx_http_idem_first_sent(ngx_http_idem_ctx_t *ctx, ngx_uint_t found,
    const ngx_http_idem_problem_t **problem, const char **flaw);
/* does the request ask to be repeatable, but with a method that is not
 * gated? */
ngx_uint_t ngx_http_idem_cannot_repeat(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
/* add the header for the client to this response, once */
ngx_int_t ngx_http_idem_add_result(ngx_http_idem_ctx_t *ctx,
    ngx_uint_t accepted);


/* ngx_http_idem_name.c */

ngx_int_t ngx_http_idem_key(ngx_http_idem_ctx_t *ctx, ngx_str_t *body,
    const char **flaw);
/* body is NULL until it has been read */
ngx_int_t ngx_http_idem_scope(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, ngx_str_t *body, ngx_str_t *scope);


/* ngx_http_idem_body.c */

void ngx_http_idem_body_init(void);
off_t ngx_http_idem_body_size(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_body_text(ngx_http_request_t *r, ngx_str_t *body);
ngx_int_t ngx_http_idem_body_field(ngx_http_request_t *r,
    ngx_http_idem_source_t *source, ngx_str_t *body, ngx_str_t *value,
    const char **flaw);
/* digest of the request, with the worker's digest key; json: ignore the order
 * of members and the spaces between them */
ngx_int_t ngx_http_idem_body_digest(ngx_http_idem_ctx_t *ctx, ngx_uint_t json,
    u_char *digest);


/* ngx_http_idem_stream.c */

ngx_int_t ngx_http_idem_stream_take(ngx_http_idem_ctx_t *ctx, ngx_chain_t *in,
    ngx_chain_t **out);
void ngx_http_idem_stream_taken(ngx_http_idem_ctx_t *ctx, ngx_chain_t *out);
void ngx_http_idem_stream_left(ngx_http_idem_ctx_t *ctx);
ngx_chain_t *ngx_http_idem_stream_end(ngx_http_idem_ctx_t *ctx);


/* ngx_http_idem_service.c */

ngx_int_t ngx_http_idem_answered(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_conclude(ngx_http_idem_ctx_t *ctx);


/* ngx_http_idem_hold.c */

extern ngx_http_output_header_filter_pt  ngx_http_idem_next_header_filter;
extern ngx_http_output_body_filter_pt    ngx_http_idem_next_body_filter;

ngx_int_t ngx_http_idem_hold_init(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_replace(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, ngx_uint_t status,
    ngx_uint_t retry_after);
ngx_int_t ngx_http_idem_outcome_unknown(ngx_http_idem_ctx_t *ctx,
    ngx_uint_t pages);


/* ngx_http_idem_keep.c */

ngx_int_t ngx_http_idem_keep(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_kept(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_reply_t *reply);


/* ngx_http_idem_problem.c */

extern const ngx_http_idem_problem_t  ngx_http_idem_key_missing;
extern const ngx_http_idem_problem_t  ngx_http_idem_key_malformed;
extern const ngx_http_idem_problem_t  ngx_http_idem_key_unused;
extern const ngx_http_idem_problem_t  ngx_http_idem_in_progress;
extern const ngx_http_idem_problem_t  ngx_http_idem_mismatch;
extern const ngx_http_idem_problem_t  ngx_http_idem_same_content;
extern const ngx_http_idem_problem_t  ngx_http_idem_doubt;
extern const ngx_http_idem_problem_t  ngx_http_idem_unknown;
extern const ngx_http_idem_problem_t  ngx_http_idem_duplicate;
extern const ngx_http_idem_problem_t  ngx_http_idem_settled;
extern const ngx_http_idem_problem_t  ngx_http_idem_failed;
extern const ngx_http_idem_problem_t  ngx_http_idem_token_unknown;
extern const ngx_http_idem_problem_t  ngx_http_idem_not_replayable;
extern const ngx_http_idem_problem_t  ngx_http_idem_not_served;
extern const ngx_http_idem_problem_t  ngx_http_idem_not_executed;
extern const ngx_http_idem_problem_t  ngx_http_idem_over_quota;
extern const ngx_http_idem_problem_t  ngx_http_idem_body_too_large;
extern const ngx_http_idem_problem_t  ngx_http_idem_unreachable;
extern const ngx_http_idem_problem_t  ngx_http_idem_anonymous;
extern const ngx_http_idem_problem_t  ngx_http_idem_scope_refused;
extern const ngx_http_idem_problem_t  ngx_http_idem_scope_missing;
extern const ngx_http_idem_problem_t  ngx_http_idem_first_sent_expired;
extern const ngx_http_idem_problem_t  ngx_http_idem_not_repeatable;

/* set headers_out; the result is the body to send after the header */
ngx_chain_t *ngx_http_idem_problem_answer(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, const ngx_http_idem_problem_t *problem,
    ngx_uint_t status, const char *detail, ngx_uint_t retry_after);
/* send it as the response; the result is for ngx_http_finalize_request() */
ngx_int_t ngx_http_idem_problem_page_handler(ngx_http_request_t *r);

ngx_int_t ngx_http_idem_send_problem(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, const ngx_http_idem_problem_t *problem,
    const char *detail, ngx_uint_t retry_after);


/* ngx_http_idem_answer.c */

/* a body of one buffer, which is the last */
ngx_chain_t *ngx_http_idem_body(ngx_http_request_t *r, u_char *pos,
    u_char *last);
ngx_int_t ngx_http_idem_send(ngx_http_request_t *r, ngx_chain_t *out);
ngx_int_t ngx_http_idem_send_text(ngx_http_request_t *r, ngx_uint_t status,
    ngx_str_t *type, ngx_str_t *body);
ngx_int_t ngx_http_idem_send_fixed(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);


/* ngx_http_idem_replay.c */

ngx_int_t ngx_http_idem_send_replay(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *stored, int64_t expires,
    ngx_uint_t replayed);
ngx_int_t ngx_http_idem_send_raw(ngx_http_request_t *r, ngx_str_t *stored,
    int64_t expires);


/* ngx_http_idem_inject.c */

char *ngx_http_idem_inject_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
/* makes the field a source of tokens, too */
ngx_int_t ngx_http_idem_inject_source(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);
/* is this a page that gets a token? */
ngx_uint_t ngx_http_idem_wants_page(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
ngx_int_t ngx_http_idem_inject_request(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_inject_header(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_inject_body(ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);


/* ngx_http_idem_token.c */

ngx_int_t ngx_http_idem_token_handler(ngx_http_request_t *r);
/* get ctx->next from the engine, then call ngx_http_idem_ask() again */
ngx_int_t ngx_http_idem_next_token(ngx_http_idem_ctx_t *ctx);
/* add the header for the client to this response, once */
ngx_int_t ngx_http_idem_add_next(ngx_http_idem_ctx_t *ctx);


/* ngx_http_idem_status.c */

ngx_int_t ngx_http_idem_status_handler(ngx_http_request_t *r);


/* ngx_http_idem_directives.c */

extern ngx_command_t  ngx_http_idem_commands[];


/* ngx_http_idem_source.c */

char *ngx_http_idem_sources(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_idem_scope_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_array_t *ngx_http_idem_source_list(ngx_conf_t *cf, ngx_str_t *texts,
    ngx_uint_t n, enum gateway_source_use use);
ngx_uint_t ngx_http_idem_reads_body(ngx_http_idem_source_t *source);
ngx_uint_t ngx_http_idem_is_content(ngx_http_idem_source_t *source);
ngx_uint_t ngx_http_idem_any_source(ngx_array_t *list,
    ngx_uint_t (*test)(ngx_http_idem_source_t *source));
/* the list of sources in this text, separated by spaces */
ngx_array_t *ngx_http_idem_source_words(ngx_conf_t *cf, const char *text);


/* ngx_http_idem_conf.c */

void *ngx_http_idem_create_main_conf(ngx_conf_t *cf);
char *ngx_http_idem_init_main_conf(ngx_conf_t *cf, void *conf);
void *ngx_http_idem_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_idem_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);


/* ngx_http_idem_module.c */

extern ngx_module_t  ngx_http_idem_module;

ngx_http_idem_engine_t *ngx_http_idem_engine(void);


/* ngx_http_idem_variables.c */

ngx_int_t ngx_http_idem_add_variables(ngx_conf_t *cf);
/*
 * urn:uuid:..., the id of this request in problems and in the log; the
 * request's record can be found by it (see idem find)
 */
ngx_int_t ngx_http_idem_instance(ngx_http_request_t *r, ngx_str_t *instance);


/* ngx_http_idem_figures.c */

char *ngx_http_idem_figures_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
/* the number of the location that is being configured */
ngx_uint_t ngx_http_idem_figures_route(ngx_conf_t *cf,
    struct idem__figures *figures);
void ngx_http_idem_figures_start(struct idem__figures *figures);
void ngx_http_idem_figures_time(ngx_uint_t route,
    enum idem__figures_time what, ngx_msec_t time);
void ngx_http_idem_figures_count(ngx_http_idem_ctx_t *ctx);


/* points at which a test can stop, in a module built for tests */

#if (IDEM_FAILPOINTS)
void ngx_http_idem_failpoint(const char *name);
#else
#define ngx_http_idem_failpoint(name)
#endif


#endif /* _NGX_HTTP_IDEM_H_INCLUDED_ */
