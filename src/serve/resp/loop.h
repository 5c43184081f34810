/*
 * loop.h - the RESP server: clients, their calls, and the loop.
 *
 *   epoll_wait --> read, parse, idem_submit  (connection.c, dispatch.c)
 *        ^              |
 *        |         idem__engine_turn: one commit for all that was read
 *        |              |
 *        '-- one send <-' answers, in order  (call.c)
 *            a client
 *
 * A call is one command that waits for the engine. Calls without a tag are
 * answered in the order of the commands; a call with a tag as soon as possible.
 * A reply moves to the client's output when there is room in it; until then its
 * call holds it. All calls that return the same long result share its bytes,
 * which are never copied into an output.
 *
 * Everything here belongs to the loop's thread, except `finished`: an engine
 * with its own thread puts answered calls there and wakes the loop.
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
#include <sys/queue.h>

/* The server does not read from a client that has more unanswered commands or
 * unread bytes than this. Tagged commands that may wait do not count: the
 * engine limits those that do wait, and a later command of the same client may
 * end their wait. */
#define CLIENT_CALLS_MAX 1024
#define CLIENT_UNSENT_PAUSE (256 * 1024)
#define READ_LEN (64 * 1024)
#define PRESSED_MS 1000 /* read timeout while max-buffered is reached */

struct loop;
struct call;

/* The target of an epoll event. */
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
    LIST_ENTRY(client) in_loop;
    struct client *next_dead;
    struct client *next_dirty;
    struct principal *principal; /* NULL before AUTH */
    struct idem__tls_end *tls;   /* NULL: not encrypted */
    uint64_t id;
    struct idem_buf in; /* an incomplete command, or one that may not run yet */
    size_t needed;      /* bytes that `in` needs before the next parse */
    struct resp_out out;
    size_t sent;             /* bytes of out */
    uint64_t out_before;     /* bytes of earlier outputs, all sent */
    LIST_HEAD(, call) calls; /* all calls in flight */
    size_t call_count;
    size_t wait_count;         /* tagged calls that may wait */
    struct call *first, *last; /* untagged, in order */
    struct call_list quick;    /* answered: short and tagged; sent first */
    struct call_list ready; /* answered: the others, in the order of answers */
    size_t ordered_ready;   /* untagged ones among them */
    size_t reply_room;      /* bytes of replies in both lists */
    size_t owed;            /* bytes of their long results, if not waited for */
    struct call *long_call; /* the call whose result is being sent ... */
    size_t long_at, long_sent; /* ... at this offset of out; bytes sent */
    struct call *first_start, *last_start; /* started, not yet sent */
    size_t accounted;                      /* counted in loop->buffered */
    uint32_t events;                       /* that epoll watches */
    int64_t since_ms, read_ms, in_since_ms, write_ms; /* for time-outs */
    int64_t linger_until_ms; /* then closed; input is dropped */
    size_t in_mark;          /* progress of a long command */
    unsigned auth_failures;
    uint64_t round; /* the loop's round in which it last used the engine */
    bool local, dirty, dead, closing, ended;
    bool shook, shaking; /* the TLS handshake has begun; is not complete */
    bool held;           /* no parsing before the pending answer */
};

struct call {
    struct client *client; /* NULL: gone, or none */
    struct loop *loop;
    LIST_ENTRY(call) in_client; /* all calls of a client in flight */
    struct call *next_in_order;
    /* In one list of: pool, `finished`, starts, delayed, quick, ready. */
    struct call *link;
    enum command_kind kind;
    struct answer_tag tag;
    struct idem_op op; /* verb, times and names; the names are in `names` */
    uint64_t ticket, fence, ends_at;
    int64_t since_us, due_ms;
    size_t count;               /* ISSUE: tokens */
    struct server_issue *issue; /* the tokens; else NULL */
    bool done, waits, started, ordered;
    bool returns; /* nobody else can know of its start */
    bool full;    /* FULL: the answer has the whole record */
    bool blind;   /* its client may not see results */
    bool fresh;   /* REDEEM NEXT: the answer has a new token */
    bool close_after;
    struct resp_out reply;
    struct result *result;     /* a long one, sent after `reply` */
    bool audited;              /* an operator's action; `audit` says whose */
    struct audit_source audit; /* from here on, fields are not zeroed */
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
    bool has_socket; /* the first listener is the unix socket ... */
    bool own_socket; /* ... and its file is ours to remove */
    struct systemd_watchdog watchdog;
    LIST_HEAD(, client) clients;
    struct client *dirty, *dead;
    size_t client_count;
    uint64_t next_id;
    size_t buffered;
    uint64_t refused; /* long results refused for lack of room */
    bool pressed;     /* some were refused lately */
    int64_t now_us, answered_us, now_ms, tick_ms, accept_again_ms, drain_until;
    int64_t seen_ms;   /* this round saw all events until then */
    int64_t limits_ms; /* time of the next check of limits */
    uint64_t round;
    unsigned shakes;   /* steps of TLS handshakes in this round */
    size_t missing;    /* clients of the last round, not back yet */
    size_t answered;   /* clients of this round that got all their answers */
    int64_t commit_us; /* duration of a turn, smoothed */
    unsigned no_gather, gather_pause; /* rounds without gathering */
    int64_t gap_us;  /* from the end of a round to the next event, smoothed */
    int64_t look_us; /* no looking before then; see look() */
    bool may_look, many; /* commands in this round */
    struct call *pool, *delayed, *id_waits;
    size_t pool_count, calls; /* calls in flight, also of closed clients */
    pthread_t thread;
    pthread_mutex_t mutex;
    struct call *finished; /* under the mutex, newest first */
    _Atomic bool woken;
    pthread_t stopper; /* stops what has its own threads: http, ids */
    bool stopping;
    _Atomic bool stopped;
    struct http *http;
    char *scratch; /* READ_LEN bytes */
};

/* ---- call.c ---------------------------------------------------------- */

/* NULL: out of memory. An untagged call takes its place in the order of
 * answers. */
struct call *call_new(struct client *client, const struct command *command);
/* Submit the operation to the engine; a refusal is answered at once. */
void call_submit(struct call *call, const struct idem_op *op);
/* The engine has answered, and the reply is complete; on the engine's
 * thread. */
void call_answered(struct call *call);
/* The reply is in call->reply, or in the client's output already. */
void call_done(struct call *call);
/* Take the calls that an engine's own thread has answered. */
void calls_collect(struct loop *loop);
/* A client is gone: cancel its waits and release its starts. */
void calls_leave(struct client *client);
/* Starts whose answer was sent need no release any more. */
void calls_sent(struct client *client);
/* Move replies to the client's output while there is room. */
void calls_fill(struct client *client);
/* The result of the client's long_call was sent completely. */
void calls_long_sent(struct client *client);
void calls_clear_pool(struct loop *loop);

/* ---- dispatch.c ------------------------------------------------------ */

void client_command(struct client *client, const struct idem__wire_request *in);
/* Add an error in the order of answers; `close`: then close the connection. */
void client_error(struct client *client, struct answer_tag tag,
                  const char *word, const char *text, bool close);
/* Returns where to write a reply that is ready: the client's output, or a call
 * that has its place in the order (then *call is set; end it with call_done).
 * NULL: out of memory. */
struct resp_out *client_reply(struct client *client, struct answer_tag tag,
                              struct call **call);

/* ---- admin.c: commands that need no engine --------------------------- */

void admin_command(struct client *client, const struct command *command);
void admin_greet(struct client *client); /* set its identity before AUTH */
void admin_delayed(struct loop *loop);   /* replies delayed by wrong AUTHs */
void admin_ids(struct loop *loop);       /* ID commands that wait for ids */

/* ---- connection.c ---------------------------------------------------- */

void client_accept(struct loop *loop, int fd, bool local);
void client_touch(struct client *client); /* it has output */
/* Does the output have room for a reply? */
bool client_has_room(const struct client *client);
void client_account(struct client *client);
/* max-buffered is reached, and the client holds more than its share. */
bool client_over_limits(const struct client *client);
void client_trim(struct client *client); /* free empty buffers */
size_t client_unsent(const struct client *client);
/* Was everything sent? */
bool client_all_sent(const struct client *client);
/* Too much is unanswered or unread, so the server must not read from it. */
bool client_is_full(const struct client *client);
/* The last flush could not send everything, because the client has yet to
 * read. */
bool client_waits_to_write(const struct client *client);
/* Tell epoll which events to watch: those needed now, or these. */
void client_watch(struct client *client);
void client_watch_for(struct client *client, uint32_t events);
void client_close(struct client *client, const char *why); /* at once */
void client_end(struct client *client); /* after it has read the last reply */
void client_check_limits(struct client *client);
void client_drain(struct client *client);

/* ---- connection_out.c, connection_in.c ------------------------------- */

void client_flush(struct client *client);
void client_event(struct client *client, uint32_t events);
/* Parse buffered input, as far as limits allow. */
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
