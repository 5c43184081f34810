/*
 * play_inner.h - one run of the playground; for play*.c only.
 */
#ifndef SERVER_PLAY_INNER_H
#define SERVER_PLAY_INNER_H

#include "../../sql/sandbox.h"
#include "play.h"

#include <idem/sql.h>
#include <pthread.h>

#define PLAY_REQUESTS 200 /* requests of "storm" ... */
#define PLAY_WORKERS 8    /* ... served by so many workers */
#define PLAY_SHOWN 2      /* requests whose messages are shown */
#define PLAY_MESSAGES 64  /* messages of them, at most */
#define PLAY_MEET_MS 3000 /* timeout for meeting another request */
#define PLAY_BUSY_MS 8000 /* timeout for a lock of the tables */
#define PLAY_LEASE_MS 150
#define PLAY_PATIENCE_MS 60 /* after this the client reports a timeout */

/* Actions of the client. The page has a button for each. */
#define PLAY_ACTION_MAP(X)                                                     \
    X(SEND, "send")     /* one request */                                      \
    X(DOUBLE, "double") /* two at once */                                      \
    X(RETRY, "retry")   /* the first takes too long; it is retried */          \
    X(LOSE, "lose")     /* done, but the reply is lost; it is retried */       \
    X(RELOAD, "reload") /* likewise, and the page is loaded again */           \
    X(STORM, "storm")   /* 200 at once */                                      \
    X(KILL, "kill")     /* the worker dies half-way; it is retried */          \
    X(LATE, "late")     /* an old message comes after a new one */             \
    X(PAUSE, "pause")   /* the first worker sleeps longer than its lease */    \
    X(QUERY, "query")   /* the client asks, gives up; then it arrives */       \
    X(FAIL, "fail")     /* the first try fails; it is retried */

enum play_action {
#define X(name, word) PLAY_##name,
    PLAY_ACTION_MAP(X)
#undef X
        PLAY_ACTIONS
};

#define DOES(name) (1u << PLAY_##name)

enum play_actor {
    PLAY_CLIENT,
    PLAY_WORKER_1,
    PLAY_WORKER_2,
    PLAY_IDEM,
    PLAY_TABLE,
    PLAY_OPERATOR,
    PLAY_ACTORS
};

/* One request, on a thread of its own. */
struct play_call {
    struct play *play;
    int number;     /* 0 is the first */
    const char *id; /* its token, order number ... */
    bool lost;      /* its reply does not arrive */
    bool dies;      /* its worker dies half-way */
    pthread_t thread;
    struct sqlite3 *conn;
    struct idem_sql *sql;
    char value[64]; /* the first value of the last query */
};

/*
 * The service's work for one call. Returns the client's reply, one word
 * ("first", "duplicate", "busy" ...), or NULL if the worker died.
 */
typedef const char *play_serve_fn(struct play_call *call);

struct play_scheme {
    const char *name;
    unsigned actions;       /* DOES(SEND) | ... */
    unsigned breaks;        /* those that break the unprotected version */
    const char *request;    /* the client's request: "POST /orders %s" */
    const char *tables;     /* SQL that creates the tables */
    const char *guard;      /* SQL for the protected version only, or NULL */
    const char *shown;      /* names of tables, separated by spaces */
    const char *safe_shown; /* the same if protected; NULL: the same tables */
    const char *effects;    /* SQL that counts the effects */
    void (*before)(struct play *play); /* the first request; may be NULL */
    play_serve_fn *serve[2]; /* [false]: unprotected, [true]: protected */
    /* Called after the client has its replies; may be NULL. */
    void (*after)(struct play *play);
    /* How often the effect should have happened; NULL: once. */
    int (*wanted)(const struct play *play);
};

/* The id of a request (token, order number ...): the usual one, and another. */
#define PLAY_ID "A-1001"
#define PLAY_OTHER_ID "A-1002"

/* play_schemes.c; the functions of a scheme are in play_engine.c or
 * play_tables.c. */
extern const struct play_scheme play_schemes[];
extern const size_t play_scheme_count;

play_serve_fn play_token_checked, play_token_redeemed, play_lock_expiring,
    play_lock_fenced, play_seq_looked_up, play_seq_begun, play_bank_retried,
    play_bank_strict, play_message_handled, play_message_consumed, play_loose,
    play_strict;
play_serve_fn play_order_numbered, play_order_inserted_once,
    play_price_swallowed, play_price_versioned, play_balance_read,
    play_balance_locked, play_dedup_apart, play_dedup_together, play_state_set,
    play_state_moved;
void play_token_issue(struct play *play), play_bank_after(struct play *play);

struct play {
    const struct play_scheme *scheme;
    enum play_action action;
    bool protect;
    const struct sandbox_type *base;
    char name[64]; /* of the tables' database */
    struct idem_engine *engine;
    struct sqlite3 *keeper; /* keeps the database alive */
    int64_t start_us;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t stir;
    json_t *messages;
    json_t *replies;       /* counts by reply */
    unsigned told;         /* calls (0, 1) whose reply was "first" */
    int met, answered;     /* requests that met; that were answered */
    struct idem_error err; /* the first error */
};

/* ---- play_trace.c: what happened -------------------------------------- */

/* A message from one actor to another, or a note at one (from == to). `kind`:
 * call, answer, reply, lost, note. The text of a reply, a lost reply or a note
 * is a word for which the page has sentences. */
void play_tell(struct play *play, enum play_actor from, enum play_actor to,
               const char *kind, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void play_note(struct play_call *call, const char *word);
enum play_actor play_worker(const struct play_call *call);
json_t *play_actor_names(void);

/* An unexpected failure ends the run. Always returns NULL. */
const char *play_broke(struct play *play, const char *what, const char *why);

/* ---- play_outcome.c: the outcome of a run ----------------------------- */

/* NULL: out of memory. */
json_t *play_outcome(struct play *play);
const char *play_action_name(enum play_action action); /* play.c */

/* ---- play_service.c: what a service does ------------------------------ */

/* Run a statement on the tables. Returns the number of rows it changed or, for
 * a select, found; call->value gets the first value. */
int play_sql(struct play_call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Run an op of the engine. False: the run is over. Clear the answer. */
bool play_do(struct play_call *call, const struct idem_op *op,
             struct idem_answer *answer);
/* The same for an actor other than a call's worker. */
bool play_do_as(struct play *play, enum play_actor who,
                const struct idem_op *op, struct idem_answer *answer);

/* What a call of idem/sql.h answered. */
struct play_asked {
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;
    struct idem_error err;
};

/* Show a call of idem/sql.h on the page, and its verdict. */
void play_asks(struct play_call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *play_verdict(struct play_call *call, enum idem_status status,
                         const struct play_asked *asked);

/* Wait until as many requests are here as this action sends at once. */
void play_meet(struct play_call *call);
/* Signal that this request has reached the point where others should meet it;
 * and wait for that signal. */
void play_arrived(struct play_call *call);
void play_wait_arrived(struct play *play);
bool play_is_over(struct play *play); /* something broke */

/* Wait until another request was answered ... */
void play_wait_answered(struct play_call *call);
/* ... if this action sends another one at the same time. */
void play_hold(struct play_call *call);
/* A request has found out that it is not the first. */
void play_answered(struct play *play);
void play_sleep_ms(int64_t ms);

/* Send another request with this id and wait for its reply. */
void play_send(struct play *play, int number, const char *id);

#endif
