/*
 * flight.h - shared by remote.c, flight.c and flight_answer.c: the operations
 * that were sent to a server, and the connection to it. Only one thread uses
 * all of this.
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
    uint64_t starts_at;     /* position in all bytes written; see `written` */
    int64_t sent_us;        /* 0: not on this connection */
    bool resent, cancelled; /* resent: it was sent on an earlier connection */
    bool cancel_due;        /* its CANCEL is not yet sent on this connection */
};

struct idem__remote {
    struct idem__remote_address address;
    struct idem__remote_hello hello; /* with the time when it was received */
    int64_t hello_us;
    _Atomic size_t max_result; /* from hello, for any thread */
    struct idem__remote_link link;
    int wake;
    bool closing;
    struct idem_buf in, out;
    size_t needed;    /* bytes in `in` before parsing makes sense */
    size_t sent;      /* bytes of out */
    uint64_t written; /* bytes of commands, over all connections */
    struct idem__map tags;
    struct flight *first, **last; /* oldest first */
    struct flight *spare;
    size_t spares;
    uint64_t tag;
    int64_t heard_us, looked_us;
    int64_t again_us, pause_us; /* when to connect again; the current pause */
    unsigned broken;            /* connections since the last answer */
    struct idem_error trouble;  /* why there is no connection */
    size_t done, done_bytes;    /* not yet reported to the queue */
    bool cancels_due;           /* of some flight */
};

static inline struct idem__job *
idem__flight_job(const struct flight *flight)
{
    return flight->item->kind == IDEM__ITEM_JOB
               ? (struct idem__job *)flight->item
               : NULL;
}

/* ---- flight.c ---------------------------------------------------------- */

/* Take the items that wait in the queue, and send them if there is a
 * connection. */
void idem__flights_take(struct idem_engine *engine);
/* If there is no memory to send it, it fails, and is freed. */
void idem__flight_send(struct idem_engine *engine, struct flight *flight);
void idem__flight_cancel(struct idem__remote *remote, struct flight *flight);
/* Send the CANCELs that are due: memory was short, or the connection broke. */
void idem__flights_cancel(struct idem__remote *remote);
void idem__flight_drop(struct idem_engine *engine, struct flight *flight);
void idem__flight_fail(struct idem_engine *engine, struct flight *flight,
                       enum idem_status status, struct idem_error *err);
void idem__flight_fail_scan(struct idem__scan *scan, enum idem_status status,
                            const struct idem_error *err);
void idem__flight_lose(struct idem_engine *engine, struct flight *flight,
                       const char *why);
/* Was any byte of it sent, on this connection or an earlier one? */
bool idem__flight_was_sent(const struct idem__remote *remote,
                           const struct flight *flight);
/* True while there is no connection and it is too early to try again. */
bool idem__remote_refuses(const struct idem_engine *engine);

/* ---- flight_answer.c --------------------------------------------------- */

/* Answer all complete replies in the input. False: the input is not a reply. */
bool idem__flights_answer(struct idem_engine *engine);

#endif
