/*
 * flight.h - what remote.c, flight.c and flight_answer.c share: operations that
 * a server has, and the connection to it. All of it belongs to one thread.
 */
#ifndef IDEM__FLIGHT_H
#define IDEM__FLIGHT_H

#include "remote.h"

struct flight {
    struct idem__link link; /* by tag */
    struct flight *next, **prev;
    struct idem__timer timer; /* its deadline */
    struct idem__item *item;  /* a job or a scan */
    uint64_t tag;
    uint64_t starts_at;     /* in all that was ever written; see `written` */
    int64_t sent_us;        /* 0: not on this connection */
    bool resent, cancelled; /* resent: an earlier connection had it */
};

struct idem__remote {
    struct idem__remote_address address;
    struct idem__remote_hello hello; /* and when it was said */
    int64_t hello_us;
    _Atomic size_t max_result; /* of it, for any thread */
    struct idem__remote_link link;
    int wake;
    bool closing;
    struct idem_buf in, out;
    size_t needed;    /* bytes in `in` before a look is worth it */
    size_t sent;      /* of out */
    uint64_t written; /* bytes of commands, of all connections */
    struct idem__map tags;
    struct flight *first, **last; /* oldest first */
    struct flight *spare;
    size_t spares;
    uint64_t tag;
    int64_t heard_us, looked_us;
    int64_t again_us, pause_us; /* no connection is tried before; how long */
    unsigned broken;            /* connections since the last answer */
    struct idem_error trouble;  /* why there is no connection */
    size_t done, done_bytes;    /* since the queue was told */
};

static inline struct idem__job *
idem__flight_job(const struct flight *flight)
{
    return flight->item->kind == IDEM__ITEM_JOB
               ? (struct idem__job *)flight->item
               : NULL;
}

/* ---- flight.c ---------------------------------------------------------- */

/* Take what waits in the queue, and send it if there is a connection. */
void idem__flights_take(struct idem_engine *engine);
void idem__flight_send(struct idem_engine *engine, struct flight *flight);
void idem__flight_cancel(struct idem__remote *remote, struct flight *flight);
void idem__flight_drop(struct idem_engine *engine, struct flight *flight);
void idem__flight_fail(struct idem_engine *engine, struct flight *flight,
                       enum idem_status status, struct idem_error *err);
void idem__flight_fail_scan(struct idem__scan *scan, enum idem_status status,
                            const struct idem_error *err);
void idem__flight_lose(struct idem_engine *engine, struct flight *flight,
                       const char *why);
/* Was a byte of it sent, on this connection or an earlier one? */
bool idem__flight_was_sent(const struct idem__remote *remote,
                           const struct flight *flight);
/* While there is no connection, and it is too early to try again. */
bool idem__remote_refuses(const struct idem_engine *engine);

/* ---- flight_answer.c --------------------------------------------------- */

/* Answer what is whole of what came in. False: it is not an answer. */
bool idem__flights_answer(struct idem_engine *engine);

#endif
