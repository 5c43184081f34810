/*
 * verb.h - shared by the commands that are verbs of a record: open an engine,
 * run one op, print the answer, turn it into an exit code.
 */
#ifndef IDEM__CLI_VERB_H
#define IDEM__CLI_VERB_H

#include "where.h"

/* Options of every verb on one record. */
struct cli_verb {
    struct cli_where where;
    const char *type;    /* --type */
    const char *print;   /* --print */
    int64_t patience_ms; /* how long to retry while busy */
    bool must_exist;     /* refuse a key that has no record */
    bool bare_result;    /* without a kind: refuse a doubt of a gateway */
};

#define CLI_VERB_OPTIONS(verb)                                                 \
    CLI_WHERE_OPTIONS(&(verb)->where),                                         \
    {                                                                          \
        "print", 'p', CLI_TEXT, &(verb)->print, "FIELD",                       \
            "print only this field: verdict, fence, state, kind, "             \
            "attempt, expires, lease_until, result (as it is) ..."             \
    }

#define CLI_TYPE_OPTION(verb)                                                  \
    {                                                                          \
        "type", 't', CLI_TEXT, &(verb)->type, "TYPE",                          \
            "request, token, lock or worker; default: a request "              \
            "or, where there is none, a token"                                 \
    }

#define CLI_FENCE_OPTION(fence)                                                \
    {                                                                          \
        "fence", 0, CLI_TEXT, fence, "N",                                      \
            "only the execution with this fence; idem get shows it"            \
    }
#define CLI_REASON_OPTION(reason)                                              \
    {                                                                          \
        "reason", 0, CLI_TEXT, reason, "TEXT",                                 \
            "why, for the record and the audit trail: ticket 7"                \
    }

#define CLI_TTL_OPTION(ttl)                                                    \
    {                                                                          \
        "ttl", 0, CLI_MS, ttl, "TIME",                                         \
            "how long the outcome is kept; default 24h"                        \
    }
#define CLI_LOOSE_OPTION(loose)                                                \
    {                                                                          \
        "loose", 0, CLI_FLAG, loose, NULL,                                     \
            "at most one success; a failure may be retried"                    \
    }
#define CLI_KIND_OPTION(kind)                                                  \
    {                                                                          \
        "kind", 'k', CLI_TEXT, kind, "KIND",                                   \
            "how to read the result: raw (default), http, exec"                \
    }
#define CLI_SUBJECT_OPTION(subject)                                            \
    {                                                                          \
        "subject", 0, CLI_TEXT, subject, "TEXT", "a label for people"          \
    }

/* Run the op on an open engine. While the record is busy, retry for as long as
 * the verb allows. An operator's action on a journal is written to its audit
 * trail. If callers may not get the op's result, a line on standard error says
 * so. */
enum idem_status cli_do_verb(const struct cli_verb *verb,
                             struct idem_engine *engine,
                             const struct idem_op *op,
                             struct idem_answer *answer,
                             struct idem_error *err);

/* A store's error says what happened: add what it means for this op, and what
 * to do. Errors of the connection to a server say it themselves. */
void cli_advise_on_store(const struct cli_where *where,
                         const struct idem_op *op, struct idem_error *err);

/* The label of a gateway's request begins with its method: "POST /orders". */
bool cli_is_of_gateway(const struct idem_record *record);

/* Run the op and print its answer; returns the exit code. */
int cli_run_verb(const struct cli_verb *verb, struct idem_op *op);

/* A complete subcommand with the arguments SCOPE ID, then FENCE and LEASE if
 * the verb needs them, and the options of every verb. */
int cli_plain_verb(enum idem_verb verb, const char *usage, const char *about,
                   int argc, char **argv);

/* Facts that the answer itself does not contain. */
struct cli_more {
    int64_t doubt_ms; /* GET: in doubt for this long; -1: it is not */
    bool was_absent;  /* SETTLE: it created the record */
};

/* Print an answer, or one field of it; `more` may be NULL. */
void cli_print_answer(const struct idem_answer *answer,
                      const struct cli_more *more, const char *field);

/* Is this the name of a field of any answer? */
bool cli_is_field(const char *field);

/* Parse the arguments that many verbs share: SCOPE ID, and then FENCE. Returns
 * -1 to continue, else the exit code. */
int cli_parse_key(const struct cli_syntax *syntax, int argc, char **argv,
                  char ***args, struct idem_op *op);
int cli_read_fence(const char *text, uint64_t *fence);
int cli_read_outcome(const char *text, enum idem_state *outcome);
int cli_read_kind(const char *text, enum idem_kind *kind);
/* Parse exactly `len` bytes of hex digits; NULL means that none were given. */
int cli_read_hex(const char *what, const char *text, uint8_t *out, size_t len);

/* A given time must not be 0, because 0 means "default" internally. */
int cli_check_time(const char *option, const int64_t *ms);
#define CLI_UNSET_MS (-1)
static inline int64_t
cli_ms_or_default(int64_t ms)
{
    return ms == CLI_UNSET_MS ? 0 : ms;
}

/* ---- doubts (cmd_doubts.c) ---------------------------------------------- */

struct cli_doubts {
    const char *scope; /* NULL: all */
    int64_t older_ms;  /* in doubt for at least this long */
    bool all;          /* --all: without a filter */
    bool dry_run, yes;
};

/* Settle every matching doubt with this op, whose scope, id and type are filled
 * in; returns the exit code. */
int cli_settle_doubts(const struct cli_verb *verb,
                      const struct cli_doubts *wanted, struct idem_op *op);

#endif
