/*
 * consume.h - internal types and functions of the consumer.
 *
 *   source thread: take --> dispatch by ordering key --> handlers (threads)
 *        ^                                                  |
 *        +--- acknowledge, put back, dead letter, doubt <---+
 *
 * Only one thread uses the source, so a broker's client library need not be
 * thread-safe. A handler returns its delivery with a fate, and the source
 * thread carries the fates out, in batches. A delivery that was handled
 * successfully is returned by the engine when its record is durable; its
 * handler has already gone on to the next one.
 */
#ifndef IDEM__CONSUME_H
#define IDEM__CONSUME_H

#include "../base/url.h"
#include "../engine/engine.h"

#include <idem/consume.h>
#include <pthread.h>

/* How a delivery is concluded. */
enum fate {
    FATE_RECORDING, /* handled; the engine returns it after its FINISH */
    FATE_ACKNOWLEDGE,
    FATE_PUT_BACK,
    FATE_DEAD_LETTER,
    FATE_DOUBT,
};

struct handler;

/* One delivery. The message's bytes are in `memory`. */
struct delivery {
    struct delivery *next;
    uint64_t connection; /* of the connection, whose end makes the tag void */
    uint64_t tag;        /* the source's id for it */
    char place[64];      /* stream position or partition:offset */
    struct idem_bytes body, message_id;
    struct idem_header *headers;
    size_t header_count, header_room;
    struct idem_arena memory;
    const char *unfit; /* why it cannot be handled; NULL: it can */
    void *original;    /* the source's copy, for a letter; may be NULL ... */
    void (*drop_original)(void *original); /* ... and how to free it */
    struct handler *handler;               /* in whose queue it was */
    struct idem__run *run; /* handled, but its FINISH is not stored yet */
    enum fate fate;
    char reason[256]; /* of a letter; while FATE_RECORDING: its result */
};

struct delivery *idem__delivery_make(void);
void idem__delivery_drop(struct delivery *delivery);
/* Copy bytes into the delivery. False: out of memory. */
bool idem__delivery_copy(struct delivery *delivery, const void *data,
                         size_t len, struct idem_bytes *into);
bool idem__delivery_header(struct delivery *delivery, struct idem_bytes name,
                           struct idem_bytes value);
/* Is this a header of the original message? Letters leave out the headers that
 * an earlier letter or the source itself added. */
bool idem__delivery_header_is_own(const struct idem_header *header);
/* Does it go to the dead letters or the doubts? */
bool idem__delivery_is_letter(const struct delivery *delivery);

/* ---- sources ---------------------------------------------------------- */

struct source;

/* Where this letter goes; NULL: it is not a letter. */
const char *idem__delivery_place(const struct delivery *delivery,
                                 const struct source *source);

/* A broker. `open` reads the parsed URL in source->url (`url` is its text) and
 * does not connect. */
struct source_type {
    const char *scheme;
    const char *const *known; /* the options of its URL, ends with NULL */
    size_t size; /* of its struct, which begins with struct source */
    enum idem_status (*open)(struct source *source, const char *url,
                             struct idem_error *err);
    /* Connect, subscribe, and create the places for dead letters and doubts. */
    enum idem_status (*connect)(struct source *source, struct idem_error *err);
    /* The next delivery, or NULL after at most wait_ms (0: do not wait).
     * Without `more` the caller wants no delivery and only keeps the
     * connection alive; a broker that cannot hold deliveries back may still
     * return one. An error means that the connection is lost and connect
     * must be called again. */
    enum idem_status (*take)(struct source *source, int wait_ms, bool more,
                             struct delivery **delivery,
                             struct idem_error *err);
    /* Carry out the fates; called with deliveries of this connection only. A
     * letter must be stored in its place before the delivery is acknowledged.
     * Letters come last in the list, so that one that cannot be written does
     * not block the others. */
    enum idem_status (*conclude)(struct source *source,
                                 struct delivery *deliveries,
                                 struct idem_error *err);
    /* The consumer wants no more deliveries: put back what was read ahead, and
     * tell the broker to send nothing more. Deliveries that are being handled
     * are still concluded. NULL: there is nothing to do. */
    enum idem_status (*stop)(struct source *source, struct idem_error *err);
    /* How many messages the broker holds for this consumer and has not
     * delivered. Called on a separate source, by one thread, which never calls
     * connect: the first call connects. IDEM_ERR_UNSUPPORTED: this broker
     * cannot say; after another error the source must be closed. */
    enum idem_status (*lag)(struct source *source, int64_t *messages,
                            struct idem_error *err);
    /* No message came for so long that the consumer would end. Ask the broker
     * whether messages wait, because a broker that hangs must not count as
     * idle. Messages that were there before the question are returned by the
     * next call of `take`, or *waiting is true. NULL: `joining` has the
     * answer. */
    enum idem_status (*ask)(struct source *source, bool *waiting,
                            struct idem_error *err);
    /* Disconnect and free what the source's own members hold. */
    void (*close)(struct source *source);
};

#define SOURCE_NAME_MAX 199
#define LETTER_PLACE_MAX 220

struct source {
    const struct source_type *type;
    struct idem__url url;
    int prefetch;
    const struct idem_store_options *log;
    uint64_t connection;                /* counted by the consumer */
    bool joining;                       /* not yet able to receive: not idle */
    char name[SOURCE_NAME_MAX + 1];     /* the queue, stream or topic */
    char group[SOURCE_NAME_MAX + 1];    /* or the durable consumer; "": none */
    char dead_letter[LETTER_PLACE_MAX]; /* where letters go */
    char doubt[LETTER_PLACE_MAX];
};

extern IDEM__MODULE const struct source_type idem__rabbitmq_source;
extern IDEM__MODULE const struct source_type idem__redis_stream_source;
extern IDEM__MODULE const struct source_type idem__kafka_source;
extern IDEM__MODULE const struct source_type idem__nats_source;

/* Parse the consumer's URL and prepare a source without connecting it. */
enum idem_status idem__source_open(const struct idem_consumer *consumer,
                                   struct source **source,
                                   struct idem_error *err);
void idem__source_close(struct source *source); /* NULL is fine */

/* ---- parsing a source's URL -------------------------------------------- */

/* An option of the URL that names something, and its room of SOURCE_NAME_MAX +
 * 1 bytes. */
struct source_name {
    const char *option, *otherwise; /* otherwise NULL: the URL must have it */
    char *into;
};

/* Copy the options; {0} ends the list. IDEM_ERR_INVALID: one is missing or
 * longer than SOURCE_NAME_MAX bytes; `example` shows what to write. */
enum idem_status idem__source_names(const struct source *source,
                                    const struct source_name *names,
                                    const char *example,
                                    struct idem_error *err);

/* ---- ahead.c ----------------------------------------------------------- */

/* Deliveries of a source that reads several at a time. */
struct ahead {
    struct delivery *first, **last; /* read and not taken yet */
    void *in_hand; /* read and not concluded: a tree, ordered by ... */
    int (*by)(const void *, const void *); /* ... this comparison */
};

void idem__ahead_init(struct ahead *ahead,
                      int (*by)(const void *, const void *));
/* Takes over the delivery; one that is in hand already is dropped. False: out
 * of memory. */
bool idem__ahead_add(struct ahead *ahead, struct delivery *delivery);
/* The next delivery, or NULL. It stays in hand. */
struct delivery *idem__ahead_take(struct ahead *ahead);
void idem__ahead_concluded(struct ahead *ahead,
                           const struct delivery *delivery);
/* The connection is lost: forget the deliveries that handlers still have, which
 * belong to the old connection, and drop those that were not taken. */
void idem__ahead_forget(struct ahead *ahead);
/* For a source's stop: put back the deliveries that were not taken. */
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

/* The message's identity as 1 to IDEM_ID_MAX bytes (a digest if it is longer).
 * False: it has none or, with IDEM_ERR_MEMORY, it could not be read. */
bool idem__identity_of(const struct identity *identity,
                       const struct delivery *d, char id[IDEM_ID_MAX + 1],
                       size_t *len, struct idem_error *err);

/* ---- the consumer ------------------------------------------------------ */

struct handler {
    struct idem_consumer *consumer;
    pthread_t thread;
    pthread_cond_t wake;
    struct delivery *first, **last; /* guarded by the consumer's mutex ... */
    size_t taken; /* ... as is this: deliveries taken and not returned */
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
    size_t worth_concluding; /* batch size, while others are in flight */
    struct handler *handlers;
    int handler_count; /* started ones */
    bool stop;         /* atomic */
    int64_t pause_ms;  /* source thread only: before the next connect */
    int64_t told_us;   /* source thread only: when a letter was last logged */
    uint64_t untold;   /* ... and how many were not logged since */
    int64_t
        complained_us; /* atomic: time of the last warning about the store */

    pthread_mutex_t mutex; /* guards all below and the handlers' queues */
    pthread_cond_t concluded;
    struct delivery *done; /* deliveries that the handlers have returned ... */
    size_t done_count;
    uint64_t in_flight; /* ... which count here until they are concluded */
    bool no_more;       /* handlers: put back what waits, and end */
    struct idem_consume_stats stats;
};

/* handle.c: a handler's thread. */
void *idem__consumer_handle(void *handler);
/* Put back the deliveries in the handlers' queues, for which no handler was
 * called. */
void idem__consumer_put_back_waiting(struct idem_consumer *consumer);
bool idem__consumer_stopping(const struct idem_consumer *consumer);
/* Sleep for so long. False: the consumer is stopping. */
bool idem__consumer_pause(const struct idem_consumer *consumer, int64_t ms);

/* Count one up in the stats. */
#define CONSUMER_COUNT(consumer, field)                                        \
    __atomic_fetch_add(&(consumer)->stats.field, 1, __ATOMIC_RELAXED)

#endif
