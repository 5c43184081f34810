/*
 * loop.h - the RESP side at work: clients, their calls, and the loop.
 *
 *   epoll_wait --> read, parse, idem_submit  (connection.c, dispatch.c)
 *        ^              |
 *        |         idem__engine_turn: one commit for all that was read
 *        |              |
 *        '-- one send <-' answers, in order  (call.c)
 *            a client
 *
 * A call is one command that waits for the engine. Calls without a tag are
 * answered in the order of the commands; a call with a tag as soon as it can.
 * A reply joins the client's output when there is room in it; until then its
 * call holds it. The bytes of a long result are shared by all calls that tell
 * it and are never copied into an output.
 *
 * Everything here belongs to the loop's thread, but for `finished`: an engine
 * with a thread of its own leaves answered calls there and wakes the loop.
 */
#ifndef SERVER_LOOP_H
#define SERVER_LOOP_H

#include "../core/issue.h"
#include "../core/listen.h"
#include "../core/rights.h"
#include "../core/server.h"
#include "../core/systemd.h"
#include "answer.h"
#include "command.h"

#include "../../engine/engine.h"

#include <pthread.h>

/* A client that has so much unanswered, or unread, is not read from. Tagged
 * commands that may wait do not count: the engine bounds those that do wait,
 * and what the same client sends after them may end their wait. */
#define CLIENT_CALLS_MAX 1024
#define CLIENT_UNSENT_PAUSE (256 * 1024)
#define READ_LEN (64 * 1024)
#define PRESSED_MS 1000 /* without room for all, so long without reading */

struct loop;
struct call;

/* What an epoll event points to. */
struct watched {
    enum { SOURCE_LISTENER, SOURCE_CLIENT, SOURCE_WAKE, SOURCE_SIGNAL } what;
    int fd;
};

struct call_list {
    struct call *first, *last;
};

struct client {
    struct watched source;
    struct loop *loop;
    struct client *prev, *next; /* all clients; dead ones: next only */
    struct client *next_dirty;
    struct principal *principal; /* NULL before AUTH */
    struct idem__tls_end *tls;   /* NULL: not encrypted */
    uint64_t id;
    struct idem_buf in; /* a command that is not whole yet, or waits its turn */
    size_t needed; /* bytes that `in` must have before a look is worth it */
    struct resp_out out;
    size_t sent;         /* of out */
    uint64_t out_before; /* bytes of out that earlier sends took */
    struct call *calls;  /* all in flight */
    size_t call_count;
    size_t wait_count;         /* tagged ones of them that may wait */
    struct call *first, *last; /* untagged, in order */
    struct call_list quick; /* answered: short and tagged, they leave first */
    struct call_list ready; /* answered: the others, as they were answered */
    size_t ordered_ready;   /* untagged ones of them */
    size_t reply_room;      /* bytes of replies in both */
    size_t owed;            /* and of long results, but for those that waited */
    struct call *long_call; /* its result is being sent ... */
    size_t long_at, long_sent; /* ... at this place of out; so much is */
    struct call *first_start, *last_start; /* started, not yet sent */
    size_t accounted;                      /* in loop->buffered */
    uint32_t events;                       /* that epoll watches */
    int64_t since_ms, read_ms, in_since_ms, write_ms; /* for time-outs */
    int64_t linger_until_ms; /* closing: read and drop */
    size_t in_mark;          /* progress of a long command */
    unsigned auth_failures;
    uint64_t round; /* of the loop, in which it last asked the engine */
    bool local, dirty, dead, closing, ended;
    bool shook, shaking; /* the TLS handshake began; is not over */
    bool held;           /* not parsed further: an answer comes first */
};

struct call {
    struct client *client; /* NULL: gone, or none */
    struct loop *loop;
    struct call *prev, *next; /* all of a client in flight */
    struct call *next_in_order;
    /* In the pool, `finished`, starts, delayed, quick or ready. */
    struct call *link;
    enum command_kind kind;
    struct answer_tag tag;
    struct idem_op op; /* verb, times and names, which are in `names` */
    uint64_t ticket, fence, ends_at;
    int64_t since_us, due_ms;
    size_t count;               /* ISSUE: tokens */
    struct server_issue *issue; /* and they; else NULL */
    bool done, waits, started, ordered;
    bool returns; /* nobody else can know of its start */
    bool full;    /* its answer brings the whole record */
    bool blind;   /* its client may not see results */
    bool fresh;   /* REDEEM NEXT: it brings a fresh token */
    bool close_after;
    struct resp_out reply;
    struct result *result;     /* a long one, and a CRLF, end the reply */
    bool audited;              /* an operator's, who is in `audit` */
    struct audit_source audit; /* it and what follows are not set to 0 */
    uint8_t names[IDEM_SCOPE_MAX + IDEM_ID_MAX + IDEM_SUBJECT_MAX];
};

struct loop {
    struct server *server;
    const struct server_config *config;
    struct idem_engine *engine;
    struct server_log *log;
    bool driven, draining, submitted;
    int epoll, spare_fd;
    struct watched wake, signals;
    struct watched listeners[SERVER_LISTEN_MAX + 1];
    size_t listener_count;
    bool own_socket; /* the unix socket's file is ours to remove */
    struct systemd_watchdog watchdog;
    struct client *clients, *dirty, *dead;
    size_t client_count;
    uint64_t next_id;
    size_t buffered;
    uint64_t refused; /* long results for which there was no room */
    bool pressed;     /* there was none lately */
    int64_t now_us, answered_us, now_ms, tick_ms, accept_again_ms, drain_until;
    int64_t seen_ms;   /* events until then are known in this round */
    int64_t limits_ms; /* when clients are looked at again */
    uint64_t round;
    unsigned shakes;   /* steps of TLS handshakes in this round */
    size_t missing;    /* clients of the last round that may ask again soon */
    size_t answered;   /* clients of this round that got all their answers */
    int64_t commit_us; /* what a turn takes, smoothed */
    unsigned no_gather, gather_pause; /* rounds in which it is not worth it */
    struct call *pool, *delayed, *id_waits;
    size_t pool_count, calls; /* calls: in flight, also of clients gone */
    pthread_t thread;
    pthread_mutex_t mutex;
    struct call *finished; /* under the mutex, newest first */
    _Atomic bool woken;
    pthread_t stopper; /* ends what has threads of its own: http, ids */
    bool stopping;
    _Atomic bool stopped;
    struct http *http;
    char *scratch; /* READ_LEN bytes */
};

/* ---- call.c ---------------------------------------------------------- */

/* NULL: out of memory. `ordered`: it takes its place among the untagged. */
struct call *call_new(struct client *client, const struct command *command);
/* Hand the operation to the engine; a refusal is answered at once. */
void call_submit(struct call *call, const struct idem_op *op);
/* The engine has answered, and the reply is whole; on the engine's thread. */
void call_answered(struct call *call);
/* The reply is in call->reply, or in the client's output already. */
void call_done(struct call *call);
/* Give back a call that nobody knows any more. */
void call_put(struct call *call);
/* Calls that an engine's own thread answered. */
void calls_collect(struct loop *loop);
/* A client is gone: give up its waits, give back its starts. */
void calls_leave(struct client *client);
/* What the client has been sent needs no giving back. */
void calls_sent(struct client *client);
/* Move replies to the client's output while there is room. */
void calls_fill(struct client *client);
/* All of the client's long_call is sent. */
void calls_long_sent(struct client *client);
void calls_clear_pool(struct loop *loop);

/* ---- dispatch.c ------------------------------------------------------ */

void client_command(struct client *client, const struct idem__wire_request *in);
/* An error in the order of answers; `close`: and the end of it. */
void client_error(struct client *client, struct answer_tag tag,
                  const char *word, const char *text, bool close);
/* Where to put an answer that is ready: the client's output, or a call's place
 * in the order (then *call is set and call_done ends it). NULL: no memory. */
struct resp_out *client_reply(struct client *client, struct answer_tag tag,
                              struct call **call);

/* ---- admin.c: commands that need no engine --------------------------- */

void admin_command(struct client *client, const struct command *command);
void admin_greet(struct client *client); /* who it is before any AUTH */
void admin_delayed(struct loop *loop);   /* answers that AUTH held back */
void admin_ids(struct loop *loop); /* ID commands that wait for their ids */

/* ---- connection.c ---------------------------------------------------- */

void client_accept(struct loop *loop, int fd, bool local);
void client_touch(struct client *client); /* there is output */
/* Is there room in the output, so that a reply may go there? */
bool client_has_room(const struct client *client);
void client_account(struct client *client);
/* Memory for all is used up, and it has more than its share of it. */
bool client_over_limits(const struct client *client);
void client_trim(struct client *client); /* of buffers that are empty */
size_t client_unsent(const struct client *client);
/* Nothing is left that is to be sent. */
bool client_all_sent(const struct client *client);
/* It may not be read from: too much is unanswered, or unread. */
bool client_is_full(const struct client *client);
/* The last flush left replies over, which the client has yet to read. */
bool client_waits_to_write(const struct client *client);
/* Have epoll watch for what is wanted now; for these events. */
void client_watch(struct client *client);
void client_watch_for(struct client *client, uint32_t events);
void client_close(struct client *client, const char *why); /* at once */
void client_end(struct client *client); /* when it has read our last words */
void client_check_limits(struct client *client);
void client_drain(struct client *client);

/* ---- connection_out.c, connection_in.c ------------------------------- */

void client_flush(struct client *client);
void client_event(struct client *client, uint32_t events);
/* Parse what waits, as far as limits allow. */
void client_go_on(struct client *client);
void client_protocol_error(struct client *client, const char *text);

/* ---- info.c ---------------------------------------------------------- */

void info_add(struct loop *loop, struct resp_out *out);

/* ---- loop.c ---------------------------------------------------------- */

enum idem_status loop_open(struct loop *loop, struct server *server,
                           struct idem_error *err);
enum idem_status loop_listen(struct loop *loop, struct idem_error *err);
void loop_run(struct loop *loop);
void loop_close(struct loop *loop);
void loop_wake(void *arg); /* from any thread */

#endif
