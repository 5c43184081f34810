/*
 * consume.h - the handling of a message happens once, whatever the broker, the
 * consumer or the handler does.
 *
 *   broker --> claim (BEGIN) --> handle --> FINISH --> acknowledge
 *
 * A message is acknowledged when its record is durable; its handler does not
 * wait for that.
 *
 * A redelivery of a message that was handled is acknowledged without handling.
 * Strict, after a crash in the middle: nobody knows whether it was handled, so
 * it is put in the doubt place and never silently handled again. Loose: it is
 * handled again, with the next fence.
 *
 * Threads: handlers run on `concurrency` threads at once; messages with the
 * same ordering key are handled one after another, in order. idem_consume_stop
 * may be called from any thread or from a signal handler. For the rest see the
 * head of record.h.
 */
#ifndef IDEM_CONSUME_H
#define IDEM_CONSUME_H

#include <idem/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

struct idem_consumer;

struct idem_header {
    struct idem_bytes name, value;
};

/* One delivery. Everything is valid during the handler's call only. */
struct idem_message {
    struct idem_bytes scope; /* of the record: source and consumer */
    struct idem_bytes id;    /* of the record: the message's identity */
    struct idem_bytes body;
    const struct idem_header *headers;
    size_t header_count;
    uint64_t fence;   /* hand it to what the message changes; 0: own_record */
    uint32_t attempt; /* 1 for the first; those that ended in a crash count
                         too, unless own_record: it does not see them */
};

/* How it went. The text in err becomes the reason in the dead letter. */
enum idem_handled {
    IDEM_HANDLED,     /* done */
    IDEM_NOT_HANDLED, /* nothing happened: try again later, in both modes */
    IDEM_FAILED_ONCE, /* it failed: strict ends here, loose tries again */
    IDEM_POISON,      /* it can never work: to the dead letter */
    IDEM_UNCLEAR,     /* nobody knows (cut off, timed out): strict is in doubt,
                         loose tries again */
    IDEM_AWAY, /* nothing happened now (nobody is there to do it, or it is
                  still being done): tried until it is answered, in both
                  modes, however often */
};

typedef enum idem_handled idem_handle_fn(void *arg,
                                         const struct idem_message *message,
                                         struct idem_error *err);

/* All but source and handle may be zero. The texts must live as long as the
 * consumer. */
struct idem_consume_options {
    /*
     * amqp://user:password@host:port/vhost?queue=orders
     * redis-stream://:password@host:port/0?stream=orders&group=mail
     * kafka://host:port?topic=orders&group=mail      (experimental)
     * nats://host:port?stream=ORDERS&durable=mail
     */
    const char *source;
    const char *consumer; /* several consumers handle a message once each; NULL:
                             "default", or the group's name */
    const char *identity; /* "id" (message id property or field; the default),
                             "header:NAME", "json:FIELD" or "position" */
    const char *order_by; /* same forms; NULL: the identity */
    enum idem_mode mode;
    int64_t lease_ms, ttl_ms;
    int concurrency;         /* 0: 4 */
    int prefetch;            /* 0: 16 for each handler */
    int max_attempts;        /* for one delivery; 0: 5 */
    int64_t backoff_ms;      /* before the second try, doubled; 0: 200 */
    const char *dead_letter; /* a queue, stream or topic; NULL: SOURCE.dead */
    const char *doubt;       /* likewise; NULL: SOURCE.doubt */
    bool own_record; /* the handler claims and finishes in its own transaction
                        (idem/sql.h): it returns HANDLED for a duplicate too */
    int64_t stop_when_idle_ms; /* return when nothing came for so long, with
                                  an error if nobody answered; 0: no */
    idem_handle_fn *handle;
    void *arg;
    idem_log_fn *log;
    void *log_arg;
    uint64_t room[8];
};

struct idem_consume_stats {
    uint64_t received;     /* deliveries */
    uint64_t handled;      /* handlers that finished here */
    uint64_t duplicates;   /* acknowledged without handling */
    uint64_t retries;      /* tries after the first */
    uint64_t dead_letters; /* refused for good */
    uint64_t doubts;       /* outcome unknown, put in the doubt place */
    uint64_t put_back;     /* in progress elsewhere, or the store was away */
    uint64_t reconnects;
    uint64_t in_flight; /* now */
    uint64_t room[8];
};

/* Check the options and prepare a consumer; idem_consume_run connects. The
 * engine may be NULL if the handler keeps the record itself. */
IDEM_API enum idem_status
idem_consume_open(struct idem_engine *engine,
                  const struct idem_consume_options *options,
                  struct idem_consumer **consumer, struct idem_error *err);

/* Consume until stopped, in this thread. A broker that cannot be reached is not
 * an error: it is tried again with back-off. */
IDEM_API enum idem_status idem_consume_run(struct idem_consumer *consumer,
                                           struct idem_error *err);

/* Finish what is being handled, put back the rest, and let run return. A
 * consumer that was stopped is not run again: open another. */
IDEM_API void idem_consume_stop(struct idem_consumer *consumer);

/* What it has done since it was opened. */
IDEM_API void idem_consume_stats(struct idem_consumer *consumer,
                                 struct idem_consume_stats *stats);

/*
 * Ask the broker how many messages it holds for this consumer (its group, if it
 * has one) and has not delivered. A Kafka counts those that were delivered and
 * are not committed as well. It asks on a connection of its own, which may take
 * seconds: call it from a thread that has time, one call at a time.
 *
 * IDEM_ERR_UNSUPPORTED: this broker does not know (a Redis before 7, or a
 * stream from which entries were deleted).
 */
IDEM_API enum idem_status idem_consume_lag(struct idem_consumer *consumer,
                                           int64_t *messages,
                                           struct idem_error *err);

/* The scope of its records: source and consumer. Valid until it is closed. */
IDEM_API struct idem_bytes
idem_consume_scope(const struct idem_consumer *consumer);

/* Close it, after idem_consume_run has returned. NULL is fine. */
IDEM_API void idem_consume_close(struct idem_consumer *consumer);

#ifdef __cplusplus
}
#endif

#endif
