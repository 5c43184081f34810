/*
 * consume.h - inside the consumer.
 *
 *   source thread: take --> dispatch by ordering key --> handlers (threads)
 *        ^                                                  |
 *        +--- acknowledge, put back, dead letter, doubt <---+
 *
 * The source is touched by one thread only, so a broker's client library need
 * not be thread-safe. A handler hands its delivery back with what is to become
 * of it; the source thread does that, in batches. One that was handled is
 * handed back by the engine when its record is durable: its handler has gone
 * on.
 */
#ifndef IDEM__CONSUME_H
#define IDEM__CONSUME_H

#include "../base/url.h"
#include "../engine/engine.h"

#include <idem/consume.h>
#include <pthread.h>

/* What becomes of a delivery. */
enum fate {
    FATE_RECORDING, /* handled; the engine has its FINISH and hands it back */
    FATE_ACKNOWLEDGE,
    FATE_PUT_BACK,
    FATE_DEAD_LETTER,
    FATE_DOUBT,
};

struct handler;

/* One delivery: the message's bytes live in `memory`. */
struct delivery {
    struct delivery *next;
    uint64_t connection; /* which connection brought it: tags of old ones die */
    uint64_t tag;        /* the source's own name for it */
    char place[64];      /* stream position or partition:offset */
    struct idem_bytes body, message_id;
    struct idem_header *headers;
    size_t header_count, header_room;
    struct idem_arena memory;
    const char *unfit; /* why nobody can be handed it; NULL: it is fine */
    void *original;    /* the source's, for its letter; may be NULL ... */
    void (*drop_original)(void *original); /* ... and how to be rid of it */
    struct handler *handler;               /* whose queue it went through */
    struct idem__run *run; /* handled, but its FINISH is still to be stored */
    enum fate fate;
    char reason[256]; /* of a letter; while it is recorded: its result */
};

struct delivery *idem__delivery_make(void);
void idem__delivery_drop(struct delivery *delivery);
/* Copy bytes into the delivery. False: out of memory. */
bool idem__delivery_copy(struct delivery *delivery, const void *data,
                         size_t len, struct idem_bytes *into);
bool idem__delivery_header(struct delivery *delivery, struct idem_bytes name,
                           struct idem_bytes value);
/* Goes into a letter as it came? Not what an earlier letter said, nor what the
 * source itself made a header. */
bool idem__delivery_header_is_own(const struct idem_header *header);
/* Goes to the dead letters or the doubts? */
bool idem__delivery_is_letter(const struct delivery *delivery);

/* ---- sources ---------------------------------------------------------- */

struct source;

struct source_settings {
    const char *url;
    int prefetch;
    const char *dead_letter, *doubt; /* NULL: named after the source */
    const struct idem_store_options *log;
};

/* A broker. `open` reads the URL and does not connect. */
struct source_type {
    const char *scheme;
    size_t size; /* of its struct, which begins with struct source */
    enum idem_status (*open)(struct source *source,
                             const struct source_settings *settings,
                             struct idem_error *err);
    /* Connect, subscribe, make the places for dead letters and doubts. */
    enum idem_status (*connect)(struct source *source, struct idem_error *err);
    /* One more delivery, or NULL after at most wait_ms (0: what is at hand).
     * Without `more` none is wanted, only the connection kept alive; one that
     * cannot be held back may come all the same. An error means that the
     * connection is gone and connect is to be called again. */
    enum idem_status (*take)(struct source *source, int wait_ms, bool more,
                             struct delivery **delivery,
                             struct idem_error *err);
    /* Do what the fates say; called with deliveries of this connection only. A
     * letter must be safe in its place before the delivery is acknowledged.
     * Letters stand last: one that cannot be written holds up nothing else. */
    enum idem_status (*conclude)(struct source *source,
                                 struct delivery *deliveries,
                                 struct idem_error *err);
    /* No more is wanted, ever: put back what was read ahead, and have nothing
     * more sent here. What is being handled is still concluded. NULL: there is
     * nothing to do. */
    enum idem_status (*stop)(struct source *source, struct idem_error *err);
    /* How many messages the broker holds for this consumer and has not
     * delivered. Asked of a source of its own, by one thread, which never calls
     * connect: the first call dials. IDEM_ERR_UNSUPPORTED: this broker cannot
     * say; another error: the source is to be closed. */
    enum idem_status (*lag)(struct source *source, int64_t *messages,
                            struct idem_error *err);
    void (*close)(struct source *source); /* NULL is fine */
};

#define SOURCE_NAME_MAX 199
#define LETTER_PLACE_MAX 220

struct source {
    const struct source_type *type;
    uint64_t connection;            /* counted by the consumer */
    bool joining;                   /* nothing can come yet: not idle */
    char name[SOURCE_NAME_MAX + 1]; /* the queue, stream or topic */
    char default_consumer[SOURCE_NAME_MAX + 1]; /* the group's; "": none */
    char dead_letter[LETTER_PLACE_MAX];         /* where letters go */
    char doubt[LETTER_PLACE_MAX];
};

extern IDEM__MODULE const struct source_type idem__rabbitmq_source;
extern IDEM__MODULE const struct source_type idem__redis_stream_source;
extern IDEM__MODULE const struct source_type idem__kafka_source;
extern IDEM__MODULE const struct source_type idem__nats_source;

/* Read the consumer's URL and prepare a source, not connected. */
enum idem_status idem__source_open(const struct idem_consumer *consumer,
                                   struct source **source,
                                   struct idem_error *err);

/* ---- what a source's URL says ------------------------------------------ */

/* An option that names something, into `name`. IDEM_ERR_INVALID: it is missing
 * or has more than SOURCE_NAME_MAX bytes; `example` shows what to write. */
enum idem_status idem__source_option(const struct idem__url *url,
                                     const char *option, const char *otherwise,
                                     const char *example,
                                     char name[SOURCE_NAME_MAX + 1],
                                     struct idem_error *err);

/* ---- ahead.c ----------------------------------------------------------- */

/* Deliveries that a source reads several of at a time. */
struct ahead {
    struct delivery *first, **last; /* read and not taken yet */
    void *in_hand; /* read and not concluded: a tree, in the order of ... */
    int (*by)(const void *, const void *); /* ... two deliveries */
};

void idem__ahead_init(struct ahead *ahead,
                      int (*by)(const void *, const void *));
/* The delivery is given away; one that is in hand already is dropped. False:
 * out of memory. */
bool idem__ahead_add(struct ahead *ahead, struct delivery *delivery);
/* The next one, or NULL. It stays in hand. */
struct delivery *idem__ahead_take(struct ahead *ahead);
void idem__ahead_concluded(struct ahead *ahead,
                           const struct delivery *delivery);
/* The connection is gone: what the handlers still have is of an older one from
 * now on, and what nobody took is dropped. */
void idem__ahead_forget(struct ahead *ahead);
/* A source's stop: put back what nobody took. */
enum idem_status idem__ahead_put_back(struct ahead *ahead,
                                      struct source *source,
                                      struct idem_error *err);

/* ---- identity.c -------------------------------------------------------- */

struct identity {
    enum { IDENTITY_ID, IDENTITY_HEADER, IDENTITY_JSON, IDENTITY_POSITION } by;
    char name[128];
};

enum idem_status idem__identity_parse(const char *text,
                                      struct identity *identity,
                                      struct idem_error *err);

/* The message's identity as 1 to IDEM_ID_MAX bytes (longer ones come as a
 * digest). False, with a reason in err: it has none. */
bool idem__identity_of(const struct identity *identity,
                       const struct delivery *d, char id[IDEM_ID_MAX + 1],
                       size_t *len, struct idem_error *err);

/* ---- the consumer ------------------------------------------------------ */

struct handler {
    struct idem_consumer *consumer;
    pthread_t thread;
    pthread_cond_t wake;
    struct delivery *first, **last; /* guarded by the consumer's mutex ... */
    size_t taken; /* ... as are those taken from there and not handed back */
};

struct idem_consumer {
    struct idem_engine *engine;
    struct idem_consume_options options;
    struct idem_store_options log;
    struct source *source;
    struct source *lag_source; /* of idem_consume_lag; may be NULL */
    struct identity identity, order_by;
    char scope[IDEM_SCOPE_MAX + 1];
    int prefetch;
    size_t worth_concluding; /* deliveries, while others are under way */
    struct handler *handlers;
    int handler_count; /* started ones */
    bool stop;         /* atomic */
    int64_t pause_ms;  /* of the source's thread: before it connects again */
    int64_t told_us; /* of the source's thread: when it told of a letter ... */
    uint64_t untold; /* ... and how many it did not tell of since */
    int64_t
        complained_us; /* atomic: when the store was last complained about */

    pthread_mutex_t mutex; /* guards all below and the handlers' queues */
    pthread_cond_t concluded;
    struct delivery *done; /* what the handlers are done with ... */
    size_t done_count;
    uint64_t in_flight; /* ... counts in here until it is concluded */
    bool no_more;       /* handlers: put back what waits and end */
    struct idem_consume_stats stats;
};

/* handle.c: a handler's thread. */
void *idem__consumer_handle(void *handler);
/* The handler was not called for these deliveries; drop them. */
void idem__consumer_put_back_waiting(struct idem_consumer *consumer);
bool idem__consumer_stopping(const struct idem_consumer *consumer);
/* For so long, or until the consumer is stopping: false. */
bool idem__consumer_pause(const struct idem_consumer *consumer, int64_t ms);

/* Count one up in the stats. */
#define CONSUMER_COUNT(consumer, field)                                        \
    __atomic_fetch_add(&(consumer)->stats.field, 1, __ATOMIC_RELAXED)

#endif
