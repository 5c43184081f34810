/*
 * sqlcalls.h - every function of idem/sql.h as a call that can be made twice,
 * and what it answers each time.
 */
#ifndef IDEM_TESTS_SQLCALLS_H
#define IDEM_TESTS_SQLCALLS_H

#include "sqldb.h"

/* A call and what it works on: a row of t_thing and the records of a scope. */
struct sqlcall_stage {
    struct sqldb one; /* makes the call */
    struct sqldb two; /* prepares it, and looks */
    char scope[60];
    int64_t id;
    uint64_t fence; /* of the record "given", if `before` began it */
    struct idem_error err;
};

struct sqlcall {
    const char *name;
    bool in_transaction; /* of the caller; otherwise the call has its own */
    void (*before)(struct sqlcall_stage *s); /* may be NULL */
    /* Returns an error, or what was answered. */
    enum idem_status (*make)(struct sqlcall_stage *s, const char **said);
    const char *first, *again; /* what it must answer */
};

extern const struct sqlcall sqlcalls[];
extern const size_t sqlcall_count;

/* Connects, and makes the table. */
void sqlcalls_open(struct sqlcall_stage *s);
void sqlcalls_close(struct sqlcall_stage *s);
/* A new scope and row, ready for the call. */
void sqlcalls_prepare(struct sqlcall_stage *s, const struct sqlcall *call);
/* Row and records as a text. */
void sqlcalls_look(struct sqlcall_stage *s, char *text, size_t len);

#endif
