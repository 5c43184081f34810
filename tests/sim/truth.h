/*
 * truth.h - what really happened in the simulated world, and whether what the
 * programs were told can be reconciled with it.
 *
 * Clients report what they ask, do and are told. Each promise is checked at
 * once: a run ends at the first answer that breaks one.
 */
#ifndef IDEM_SIM_TRUTH_H
#define IDEM_SIM_TRUTH_H

#include "sim.h"

#include <idem/engine.h>

#define TRUTH_KEYS 64

struct truth_key {
    bool strict;
    int64_t ttl_ns;
    int executions;          /* of this life of the record */
    uint64_t last_fence;     /* of the starts that were answered */
    int64_t last_fence_told; /* when the answer came */
    int64_t finished_at;     /* when it was sent */
    uint64_t result;         /* that every caller must get; 0: not told yet */
    int64_t told_at;         /* when the result was first told to anybody */
    uint64_t not_stored[8];  /* the last results that were told so */
    uint64_t last_result;    /* of the life before this one ... */
    int64_t life_at;         /* ... which ended before this */
    uint64_t leased_fence;   /* of a start that was told ... */
    int64_t leased_until;    /* ... and has its lease until then at least */
    int unanswered;          /* BEGINs, now or for ever */
    int64_t tried_at;        /* the first FINISH or SETTLE was sent; 0: none */
    int64_t went_back_at;    /* the store lost what it had; 0: never */
    int64_t excused_at;      /* what was asked until then may run again */
};

/* Clocks stood still for so long in all: what is written by a clock that does
 * not know it yet may be kept for that much less. */
extern int64_t truth_leeway;

/* May this process start strict work for somebody who asked then? NULL: yes. */
extern bool (*truth_may_start)(int64_t asked);

/* The store has an older record of the key now, or none. */
void truth_went_back(struct truth_key *key);
/* That was accepted, and nobody remembers what ran. */
void truth_excuse(struct truth_key *key);

/* A BEGIN is sent, and may be sent again until it is answered. */
void truth_asks(struct truth_key *key);
void truth_answered(struct truth_key *key);
/* It was answered busy or doubt: somebody else has this fence. */
void truth_held(const struct truth_key *key, uint64_t fence);
/* A BEGIN that was sent at `asked` is answered now. */
void truth_started(struct truth_key *key, int64_t asked, int64_t lease,
                   uint64_t fence);
void truth_replayed(struct truth_key *key, int64_t asked, uint64_t result);
void truth_busy(struct truth_key *key, int64_t asked, const char *verdict);
/* A FINISH or RELEASE is sent: nobody has to keep the lease from now on. */
void truth_leaves(struct truth_key *key, uint64_t fence);
/* The work of a BEGIN that was sent at `asked` has its effect. */
void truth_executed(struct truth_key *key, int64_t asked);
/* A FINISH or SETTLE is sent now: it may be stored, whatever is told. */
void truth_tries(struct truth_key *key);
/* A FINISH that was sent at `asked` was acknowledged. */
void truth_finished(struct truth_key *key, int64_t asked, uint64_t fence,
                    uint64_t result);
/* Every try of a FINISH was told "not stored": nobody may ever get that. */
void truth_not_stored(struct truth_key *key, uint64_t result);
/* A SETTLE was acknowledged: that is the answer from now on. */
void truth_settled(struct truth_key *key, int64_t asked, uint64_t result);

#endif
