/*
 * consume.h - handle each message of a queue once, even if the broker delivers
 * it again or a consumer crashes.
 *
 *   broker --> claim (BEGIN) --> handle --> FINISH --> acknowledge
 *
 * The consumer acknowledges a message when the record of its outcome is
 * durable. The handler does not wait for that; it can take the next message.
 *
 * If the broker delivers a handled message again, the consumer acknowledges it
 * without calling the handler. If a handler or the process crashed in the
 * middle, nobody knows whether the message was handled. In strict mode the
 * consumer then moves it to the doubt queue and does not handle it again. In
 * loose mode it calls the handler again, with the next fence.
 *
 * Threads: the consumer calls the handler on `concurrency` threads at the same
 * time. Messages with the same ordering key are handled one after the other, in
 * order. You may call idem_consume_stop from any thread and from a signal
 * handler. Everything else: see the head of record.h.
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

/* One delivery. All of it is valid during the handler's call only. */
struct idem_message {
    struct idem_bytes scope; /* of the record: source and consumer name */
    struct idem_bytes id;    /* of the record: the message's identity */
    struct idem_bytes body;
    const struct idem_header *headers;
    size_t header_count;
    uint64_t fence;   /* pass it to the resource that the message changes; 0
                         with own_record */
    uint32_t attempt; /* 1 for the first; attempts that ended in a crash count,
                         too, but not with own_record */
};

/* The return value of a handler. Its err->text becomes the reason in the dead
 * letter. */
enum idem_handled {
    IDEM_HANDLED,     /* done */
    IDEM_NOT_HANDLED, /* nothing happened; retry later, in both modes */
    IDEM_FAILED_ONCE, /* it failed; strict: dead letter, loose: retry */
    IDEM_POISON,      /* it can never succeed; dead letter in both modes */
    IDEM_UNCLEAR, /* unknown (connection cut, timeout); strict: doubt, loose:
                     retry */
    IDEM_AWAY, /* nothing happened (the service is unreachable, or the message
                  is still being handled); retried in both modes until that
                  changes, without a limit of attempts */
};

/* Your handler. The consumer calls it on several threads at once. */
typedef enum idem_handled idem_handle_fn(void *arg,
                                         const struct idem_message *message,
                                         struct idem_error *err);

/* `source` and `handle` are required; the other members may be zero. The texts
 * must stay valid as long as the consumer. */
struct idem_consume_options {
    /*
     * amqp://user:password@host:port/vhost?queue=orders
     * redis-stream://:password@host:port/0?stream=orders&group=mail
     * kafka://host:port?topic=orders&group=mail      (experimental)
     * nats://host:port?stream=ORDERS&durable=mail
     */
    const char *source;
    const char *consumer; /* consumers with different names each handle every
                             message once; NULL: "default", or the group */
    const char *identity; /* "id" (message id property or field; the default),
                             "header:NAME", "json:FIELD" or "position" */
    const char *order_by; /* the ordering key, in the same forms; NULL: the
                             identity */
    enum idem_mode mode;
    int64_t lease_ms, ttl_ms;
    int concurrency;         /* handler threads (default 4) */
    int prefetch;            /* messages taken ahead (16 for each thread) */
    int max_attempts;        /* for one delivery (default 5) */
    int64_t backoff_ms;      /* before the second attempt (default 200); doubled
                                for each further one */
    const char *dead_letter; /* a queue, stream or topic; NULL: SOURCE.dead */
    const char *doubt;       /* the same for doubts; NULL: SOURCE.doubt */
    bool own_record; /* the handler claims and finishes in its own transaction
                        (idem/sql.h); it returns HANDLED for a duplicate, too */
    int64_t stop_when_idle_ms; /* idem_consume_run returns after this time
                                  without a message, with an error if the broker
                                  was unreachable for this time; 0: never */
    idem_handle_fn *handle;
    void *arg;
    idem_log_fn *log;
    void *log_arg;
    uint64_t room[8];
};

/* Counters since idem_consume_open. */
struct idem_consume_stats {
    uint64_t received;     /* deliveries */
    uint64_t handled;      /* the handler returned IDEM_HANDLED */
    uint64_t duplicates;   /* acknowledged without calling the handler */
    uint64_t retries;      /* attempts after the first */
    uint64_t dead_letters; /* moved to the dead letter queue */
    uint64_t doubts;       /* moved to the doubt queue */
    uint64_t put_back;     /* given back to the broker: another consumer works
                              on it, or the store was unreachable */
    uint64_t reconnects;
    uint64_t in_flight; /* being handled now */
    uint64_t room[8];
};

/* Check the options and make a consumer. It does not connect yet;
 * idem_consume_run does. `engine` may be NULL with own_record. Close the
 * consumer before the engine. */
IDEM_API enum idem_status
idem_consume_open(struct idem_engine *engine,
                  const struct idem_consume_options *options,
                  struct idem_consumer **consumer, struct idem_error *err);

/* Consume until idem_consume_stop, and return IDEM_OK then. This blocks the
 * calling thread. If the broker is unreachable, the consumer keeps trying to
 * connect, with back-off; that is not an error. */
IDEM_API enum idem_status idem_consume_run(struct idem_consumer *consumer,
                                           struct idem_error *err);

/* Ask idem_consume_run to return: it finishes the messages that handlers work
 * on and gives the others back to the broker. This function does not wait for
 * that. A stopped consumer cannot run again; open a new one. */
IDEM_API void idem_consume_stop(struct idem_consumer *consumer);

/* Copy the counters into *stats. You may call this while it runs. */
IDEM_API void idem_consume_stats(struct idem_consumer *consumer,
                                 struct idem_consume_stats *stats);

/*
 * Ask the broker how many messages wait for this consumer (or for its group),
 * that is, are not delivered yet. Kafka also counts messages that were
 * delivered and are not committed. This uses a connection of its own and may
 * take seconds, so call it from a thread that may block, one call at a time.
 *
 * IDEM_ERR_UNSUPPORTED: this broker does not know the number (a Redis before 7,
 * or a stream from which entries were deleted).
 */
IDEM_API enum idem_status idem_consume_lag(struct idem_consumer *consumer,
                                           int64_t *messages,
                                           struct idem_error *err);

/* The scope of its records: source and consumer name. Valid until the consumer
 * is closed. */
IDEM_API struct idem_bytes
idem_consume_scope(const struct idem_consumer *consumer);

/* Free the consumer, after idem_consume_run has returned. NULL does nothing. */
IDEM_API void idem_consume_close(struct idem_consumer *consumer);

#ifdef __cplusplus
}
#endif

#endif
