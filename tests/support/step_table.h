/*
 * step_table.h - what each verb does on each state, as a table that a person
 * can read, like the table of verbs in docs/protocol.md; "otherwise" is spelled
 * out. step_test.c compares step() with it, sqlmodel_test.c the functions of
 * sql/.
 */
#ifndef IDEM_TEST_STEP_TABLE_H
#define IDEM_TEST_STEP_TABLE_H

/* Facts about a situation. */
enum {
    OVER = 1 << 0,      /* executing, and the lease is over */
    LOOSE = 1 << 1,     /* the record is loose */
    MINE = 1 << 2,      /* the op brings the record's fence */
    NONCE = 1 << 3,     /* the op brings the record's nonce */
    OTHER = 1 << 4,     /* both have a fingerprint, and they differ */
    TOKEN = 1 << 5,     /* the record is a token */
    REDEEMED = 1 << 6,  /* a token that REDEEM used up */
    UNSTARTED = 1 << 7, /* attempt is 0: it was never begun */
    SAME = 1 << 8,      /* the outcome and result of the op are the stored */
    OWNER = 1 << 9,     /* LOCK: the op's owner holds it */
    AS = 1 << 10,       /* SETTLE names an outcome */
    FAIL = 1 << 11,     /* the outcome of the op is failed */
    ELSE = 1 << 12,     /* SETTLE FORGET: the op names a fence, not this one */
};

/* What a row writes. */
enum change {
    NOTHING,
    NEW_LIFE,  /* executing: next fence, new times, the op's nonce */
    TAKE_OVER, /* executing again: next fence, same life, same fingerprint */
    OUTCOME,   /* finished by this fence, with the op's result */
    FREED,     /* the fence and the nonce stay, the answer does not */
    LEASE,     /* only the lease moves, and only forward */
    PLANTED,   /* finished though it never ran, next fence */
    SETTLED,   /* finished by an operator, next fence, same life */
    ISSUED,    /* a token nobody has used */
    USED,      /* a redeemed token, next fence, the op's nonce */
};

#define ON(state) (1 << IDEM_STATE_##state)
#define FINISHED (ON(SUCCEEDED) | ON(FAILED))
#define NOT_EXECUTING (ON(ABSENT) | ON(ISSUED) | ON(FREE) | FINISHED)
#define ANY (NOT_EXECUTING | ON(EXECUTING))

struct row {
    enum idem_verb verb;
    int states;       /* expired is ABSENT here */
    int when, unless; /* facts that must hold, and that must not */
    enum idem_verdict verdict;
    enum change change;
};

/* clang-format off */
static const struct row table[] = {
    /* verb         on                       when           unless            verdict            writes */
    {IDEM_BEGIN,   ON(ABSENT),               0,             TOKEN,            IDEM_V_STARTED,    NEW_LIFE},
    {IDEM_BEGIN,   ON(ABSENT),               TOKEN,         0,                IDEM_V_UNKNOWN,    NOTHING},
    {IDEM_BEGIN,   ON(FREE),                 0,             NONCE | TOKEN,    IDEM_V_STARTED,    NEW_LIFE},
    {IDEM_BEGIN,   ON(FREE),                 NONCE,         TOKEN,            IDEM_V_STALE,      NOTHING},
    {IDEM_BEGIN,   ON(FREE),                 TOKEN | UNSTARTED, 0,            IDEM_V_UNKNOWN,    NOTHING},
    {IDEM_BEGIN,   ON(FREE),                 TOKEN,         UNSTARTED | NONCE, IDEM_V_STARTED,   NEW_LIFE},
    {IDEM_BEGIN,   ON(FREE),                 TOKEN | NONCE, UNSTARTED,        IDEM_V_STALE,      NOTHING},
    {IDEM_BEGIN,   ON(ISSUED),               TOKEN,         0,                IDEM_V_STARTED,    NEW_LIFE},
    {IDEM_BEGIN,   ON(EXECUTING) | FINISHED, OTHER,         0,                IDEM_V_MISMATCH,   NOTHING},
    {IDEM_BEGIN,   ON(EXECUTING),            NONCE,         OTHER,            IDEM_V_STARTED,    NOTHING},
    {IDEM_BEGIN,   ON(EXECUTING),            0,             OTHER | NONCE | OVER, IDEM_V_BUSY,   NOTHING},
    {IDEM_BEGIN,   ON(EXECUTING),            OVER,          OTHER | NONCE | LOOSE, IDEM_V_DOUBT, NOTHING},
    {IDEM_BEGIN,   ON(EXECUTING),            OVER | LOOSE,  OTHER | NONCE,    IDEM_V_STARTED,    TAKE_OVER},
    {IDEM_BEGIN,   FINISHED,                 0,             OTHER | REDEEMED, IDEM_V_REPLAY,     NOTHING},
    {IDEM_BEGIN,   FINISHED,                 REDEEMED,      OTHER,            IDEM_V_DUPLICATE,  NOTHING},

    {IDEM_FINISH,  ON(EXECUTING),            MINE,          LOOSE,            IDEM_V_OK,    OUTCOME},
    {IDEM_FINISH,  ON(EXECUTING),            MINE | LOOSE,  FAIL,             IDEM_V_OK,    OUTCOME},
    {IDEM_FINISH,  ON(EXECUTING),            MINE | LOOSE | FAIL, 0,          IDEM_V_OK,    FREED},
    {IDEM_FINISH,  ON(FREE),                 MINE | LOOSE | FAIL, 0,          IDEM_V_OK,    NOTHING},
    {IDEM_FINISH,  ON(FREE),                 MINE | LOOSE,  FAIL,             IDEM_V_STALE,      NOTHING},
    {IDEM_FINISH,  ON(FREE),                 MINE,          LOOSE,            IDEM_V_STALE,      NOTHING},
    {IDEM_FINISH,  FINISHED,                 MINE | SAME,   0,                IDEM_V_OK,    NOTHING},
    {IDEM_FINISH,  FINISHED,                 MINE,          SAME,             IDEM_V_FINISHED,   NOTHING},
    {IDEM_FINISH,  ON(ABSENT) | ON(ISSUED),  MINE,          0,                IDEM_V_STALE,      NOTHING},
    {IDEM_FINISH,  ANY,                      0,             MINE,             IDEM_V_STALE,      NOTHING},

    {IDEM_RELEASE, ON(EXECUTING),            MINE,          0,                IDEM_V_OK,    FREED},
    {IDEM_RELEASE, ON(EXECUTING),            0,             MINE,             IDEM_V_STALE,      NOTHING},
    {IDEM_RELEASE, NOT_EXECUTING,            0,             0,                IDEM_V_STALE,      NOTHING},

    {IDEM_RENEW,   ON(EXECUTING),            MINE,          0,                IDEM_V_OK,    LEASE},
    {IDEM_RENEW,   ON(EXECUTING),            0,             MINE,             IDEM_V_STALE,      NOTHING},
    {IDEM_RENEW,   NOT_EXECUTING,            0,             0,                IDEM_V_STALE,      NOTHING},

    {IDEM_SETTLE,  ON(ABSENT) | ON(FREE) | ON(ISSUED), 0,   ELSE,             IDEM_V_SETTLED,    PLANTED},
    {IDEM_SETTLE,  ON(EXECUTING),            0,             OVER | ELSE,      IDEM_V_BUSY,       NOTHING},
    {IDEM_SETTLE,  ON(EXECUTING),            OVER,          AS | ELSE,        IDEM_V_DOUBT,      NOTHING},
    {IDEM_SETTLE,  ON(EXECUTING),            OVER | AS,     ELSE,             IDEM_V_SETTLED,    SETTLED},
    {IDEM_SETTLE,  ANY & ~FINISHED,          ELSE,          0,                IDEM_V_STALE,      NOTHING},
    {IDEM_SETTLE,  FINISHED,                 0,             0,                IDEM_V_REPLAY,     NOTHING},

    {IDEM_GET,     ON(ABSENT),               0,             0,                IDEM_V_ABSENT, NOTHING},
    {IDEM_GET,     ANY & ~ON(ABSENT),        0,             0,                IDEM_V_RECORD,     NOTHING},

    {IDEM_FORGET,  ON(ABSENT),               0,             0,                IDEM_V_ABSENT, NOTHING},
    {IDEM_FORGET,  ON(FREE),                 0,             0,                IDEM_V_OK,    NOTHING},
    {IDEM_FORGET,  ON(ISSUED) | ON(EXECUTING) | FINISHED, 0, ELSE,            IDEM_V_OK,    FREED},
    {IDEM_FORGET,  ON(ISSUED) | ON(EXECUTING) | FINISHED, ELSE, 0,            IDEM_V_STALE,      NOTHING},

    {IDEM_ISSUE,   ON(ABSENT) | ON(FREE),    0,             0,                IDEM_V_ISSUED, ISSUED},
    {IDEM_ISSUE,   ON(ISSUED) | ON(EXECUTING) | FINISHED, 0, 0,               IDEM_V_DUPLICATE,  NOTHING},

    {IDEM_REDEEM,  ON(ABSENT) | ON(FREE),    0,             0,                IDEM_V_UNKNOWN,    NOTHING},
    {IDEM_REDEEM,  ON(ISSUED),               0,             0,                IDEM_V_REDEEMED,   USED},
    {IDEM_REDEEM,  FINISHED,                 REDEEMED | NONCE, 0,             IDEM_V_REDEEMED,   NOTHING},
    {IDEM_REDEEM,  FINISHED,                 REDEEMED,      NONCE,            IDEM_V_DUPLICATE,  NOTHING},
    {IDEM_REDEEM,  FINISHED,                 0,             REDEEMED,         IDEM_V_DUPLICATE,  NOTHING},
    {IDEM_REDEEM,  ON(EXECUTING),            0,             0,                IDEM_V_DUPLICATE,  NOTHING},

    {IDEM_LOCK,    ON(ABSENT) | ON(FREE),    0,             0,                IDEM_V_STARTED,    NEW_LIFE},
    {IDEM_LOCK,    ON(EXECUTING),            OVER,          0,                IDEM_V_STARTED,    NEW_LIFE},
    {IDEM_LOCK,    ON(EXECUTING),            OWNER,         OVER,             IDEM_V_STARTED,    LEASE},
    {IDEM_LOCK,    ON(EXECUTING),            0,             OWNER | OVER,     IDEM_V_BUSY,       NOTHING},

    {IDEM_UNLOCK,  ON(EXECUTING),            MINE,          0,                IDEM_V_OK,    FREED},
    {IDEM_UNLOCK,  ON(EXECUTING),            0,             MINE,             IDEM_V_STALE,      NOTHING},
    {IDEM_UNLOCK,  NOT_EXECUTING,            0,             0,                IDEM_V_STALE,      NOTHING},
};
/* clang-format on */

#define ROWS (sizeof(table) / sizeof(table[0]))

/* The one row that applies. */
static const struct row *
find_row(enum idem_verb verb, enum idem_state state, int facts)
{
    const struct row *found = NULL;

    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &table[i];

        if (row->verb != verb || !(row->states & (1 << state)) ||
            (row->when & ~facts) || (row->unless & facts))
            continue;
        if (found)
            fail_msg("rows %zu and %zu both apply to %s on %s (facts %x)",
                     (size_t)(found - table), i, idem_verb_name(verb),
                     idem_state_name(state), (unsigned)facts);
        found = row;
    }
    if (!found)
        fail_msg("no row applies to %s on %s (facts %x)", idem_verb_name(verb),
                 idem_state_name(state), (unsigned)facts);
    return found;
}

#endif
