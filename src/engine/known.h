/*
 * known.h - what an engine remembers of the records in its store: to answer
 * without a round trip, to notice a store that lost some, to count them, to
 * seal them.
 */
#ifndef IDEM__ENGINE_KNOWN_H
#define IDEM__ENGINE_KNOWN_H

#include "engine.h"
#include "map.h"
#include "seal.h"

#include <stdatomic.h>
#include <sys/queue.h>

/* ---- recently written records (recent.c) ----------------------------- */

struct idem__place {
    uint64_t hash, at; /* at: bytes ever appended before it; 0: nothing */
};

struct idem__recents {
    uint8_t *ring; /* NULL: nothing is kept yet */
    struct idem__place *places;
    uint64_t last, end; /* positions of the last record and of its end */
    uint64_t batch_start;
    int64_t swept_ms; /* the store may have removed what expired until then */
};

void idem__recents_batch_over(struct idem__recents *recents);
void idem__recents_close(struct idem__recents *recents);
const struct idem_record *idem__recent_find(struct idem_engine *engine,
                                            const uint8_t *key);
/* The store now has this record under the key. It is kept while it is
 * executing. */
void idem__recent_note(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
/* The store had this record under the key when it was read. It is kept if it is
 * finished and nobody else can write the store. */
void idem__recent_read(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
void idem__recent_forget(struct idem_engine *engine, const uint8_t *key);

/* ---- claims that the store must have (claims.c) ----------------------- */

struct idem__claim;

struct idem__claims {
    struct idem__claim *places; /* NULL: nothing written yet */
    int64_t said_us;            /* time of the last alarm; 0: none */
};

/* This engine has stored this record under the key; NULL: the key is now
 * absent. */
void idem__claim_wrote(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
/* The store has this record under the key (state ABSENT: none). Raises an alarm
 * if that shows a loss. */
void idem__claim_found(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *stored);
/* Must it not run a second time? */
bool idem__happens_once(const struct idem_record *record);
/* Has this engine claimed the key, as far as it remembers? */
bool idem__claim_known(struct idem_engine *engine, const uint8_t *key);
/* The fence of a claim of this engine that must run only once and that a store
 * which went back in time no longer has; 0: none. `mark` is then the fence of
 * the mark before it. */
uint64_t idem__claim_lost(struct idem_engine *engine, const uint8_t *key,
                          const struct idem_record *stored, uint64_t *mark);
void idem__claims_close(struct idem__claims *claims);

/* ---- a store that went back in time (epoch.c) -------------------------- */

#define IDEM__EPOCH_ID_LEN 32

struct idem__mark {
    uint64_t fence, rev; /* 0: no mark */
    int64_t written_ms;
};

/* The last strict record or token that was written after the mark. */
struct idem__newest {
    uint8_t key[IDEM_KEY_LEN];
    uint64_t fence; /* 0: none */
    uint64_t mark;  /* the fence of the mark before it */
    int64_t expires;
    bool ended;
};

struct idem__epoch {
    bool on;
    char id[IDEM__EPOCH_ID_LEN + 1]; /* of our mark */
    struct idem__mark mark;          /* the last mark that is surely stored */
    struct idem__newest newest;
    uint64_t found_fence,
        found_rev;     /* what the store had instead, when it went back */
    int64_t marked_us; /* boot clock */
    bool dirty;        /* something was written since */
    uint64_t link;     /* the store's connection that the mark went through */
    bool unsure;       /* the store has failed since */
    uint64_t lost_from, lost_to; /* an accepted loss covers what was written
                                  * after the marks with these fences. A claim's
                                  * own fence does not say when it was written:
                                  * clocks differ and go back */
    atomic_bool accepted;        /* set by another thread, not yet handled */
    struct idem_error err;       /* why the store did not take a mark */
    int fd;                      /* the file; -1: none */
    bool file_failed;
};

enum idem_status idem__epoch_open(struct idem_engine *engine,
                                  struct idem_error *err);
void idem__epoch_close(struct idem__epoch *epoch);
/* Check before a batch that the store did not go back in time; `now`: also if
 * it was checked a moment ago. False: the store does not respond. */
bool idem__epoch_check(struct idem_engine *engine, bool now);
/* This engine has stored `record` (NULL: none) under the key in the place of
 * `before`; state ABSENT: there was none. */
void idem__epoch_wrote(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *before,
                       const struct idem_record *record);
void idem__epoch_tend(struct idem_engine *engine);
int64_t idem__epoch_due_us(const struct idem_engine *engine);
/* True if this op must not write `next`, or start what it already wrote,
 * because the request could then run twice. idem__epoch_refuse sets the error.
 */
bool idem__epoch_refuses(struct idem_engine *engine, const struct idem_op *op,
                         const struct idem_record *next);
enum idem_status idem__epoch_refuse(bool maybe_stored, struct idem_error *err);

/* ---- limits of one scope (quota.c) ------------------------------------- */

struct idem__scope_use;

struct idem__quota {
    struct idem__scope_use *uses; /* NULL: no quota is set */
    uint8_t hash_key[16];
    /* The look, a scan of the whole store. */
    bool looking;
    bool blind;        /* the look cannot be done, so there are no counts */
    int64_t since_ms;  /* when the look began, in the store's time */
    int64_t due_us;    /* the next part of the look, on the boot clock */
    int64_t looked_us; /* when the last complete look ended */
    size_t part;       /* records in the next part */
    struct idem_cursor cursor;
};

enum idem_status idem__quota_open(struct idem_engine *engine,
                                  struct idem_error *err);
void idem__quota_close(struct idem__quota *quota);
/* True if this op's scope may have no further record. idem__quota_refuse sets
 * the error. */
bool idem__quota_used_up(struct idem_engine *engine, const struct idem_op *op);
enum idem_status idem__quota_refuse(struct idem_engine *engine,
                                    const struct idem_op *op,
                                    struct idem_error *err);
/* This engine stored `after` in the place of `before`; state ABSENT: there was
 * none. */
void idem__quota_wrote(struct idem_engine *engine,
                       const struct idem_record *before,
                       const struct idem_record *after);
void idem__quota_tend(struct idem_engine *engine);

/* ---- sealed records (sealed.c) ----------------------------------------- */

struct idem__group;

/* Read the keys if the options name a file. `has_store`: the engine has a store
 * and not a server. */
enum idem_status idem__sealed_start(struct idem_engine *engine, bool has_store,
                                    struct idem_error *err);
/* Is there room for this op's subject after it is sealed? */
enum idem_status idem__sealed_fits(const struct idem_engine *engine,
                                   const struct idem_op *op,
                                   struct idem_error *err);
/* Open the loaded record; if it does not open, group->shut says why. */
void idem__sealed_open_group(struct idem_engine *engine,
                             struct idem__group *group);
/* The record to write for the group; NULL: out of memory. */
const struct idem_record *idem__sealed_write(struct idem_engine *engine,
                                             struct idem__group *group);
/* True if the group's record does not open and this op may not change it. */
bool idem__sealed_refuses(const struct idem__group *group,
                          const struct idem_op *op, const struct idem_now *now);
/* Open a record that a scan found, which has no result. If it does not open,
 * its subject is empty. */
void idem__sealed_open_scanned(struct idem_engine *engine,
                               struct idem_record *record,
                               struct idem_arena *arena);

#endif
