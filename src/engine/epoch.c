/*
 * epoch.c - detects a store that went back in time: emptied, restored from an
 * old backup or dump, started with an old file, or failed over to a replica
 * that lacked the last writes.
 *
 * Each engine has a mark in the store, a record that only this engine writes,
 * and puts a higher fence into it once a second while the engine is used. The
 * swap expects the last mark. If the store has no mark, or an older one,
 * everything that was written after that mark may be gone. The engine also
 * keeps the last mark in a file, so that it detects this after a restart too.
 * The file is written after the store, so it is never newer than a store that
 * keeps what it acknowledged.
 *
 * A store may lose less than the second since the last mark: a replica that was
 * a moment behind takes over. So the engine also remembers the newest strict
 * record that it wrote after the mark, and looks for it after the next mark.
 *
 *   FINE ──▶ BACK: requests that must run only once are refused
 *              │   (IDEM_ERR_UNAVAILABLE)
 *              │ an operator accepts the loss
 *              ▼
 *            ACCEPTED: the claims that this engine remembers (claims.c) come
 *                      into doubt; everything else goes on
 *
 * The engine writes the mark before a batch if the last mark is a second old,
 * or if the store has failed or was reconnected since; before it reports
 * anything that went through a new connection; immediately when a claim of this
 * engine is missing; and one second after the last write. So only a store that
 * goes back without breaking a connection (for example, a table is replaced) is
 * detected up to a second late. After a restart, and on a store whose parts
 * fail separately, the engine cannot detect the loss of less than the last
 * second.
 */
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#define MARK_EVERY_US INT64_C(1000000)
#define MARK_TTL_MS (INT64_C(30) * 24 * 3600 * 1000)
/* A mark older than this is not trusted: it may have expired. */
#define MARK_FRESH_MS (MARK_TTL_MS / 2)
#define MARK_SCOPE "epoch"
#define LINE_MAX 128
/* A missing result proves nothing if its TTL was shorter than this: it may have
 * expired. */
#define NEWEST_TTL_MS INT64_C(60000)

/* ---- the file ---------------------------------------------------------- */

static enum idem_status
open_file(struct idem__epoch *epoch, const char *path, struct idem_error *err)
{
    char line[LINE_MAX + 1] = "", id[IDEM__EPOCH_ID_LEN + 1];
    struct idem__mark mark;
    ssize_t len;

    epoch->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (epoch->fd < 0)
        return idem__fail(err, IDEM_ERR_INVALID, "epoch-file %s: %s", path,
                          strerror(errno));
    if (flock(epoch->fd, LOCK_EX | LOCK_NB) != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "epoch-file %s: another server uses it: give each "
                          "server a file of its own",
                          path);
    len = pread(epoch->fd, line, LINE_MAX, 0);
    if (len == 0)
        return IDEM_OK;
    if (len < 0 ||
        sscanf(line, "%32[0-9a-f] %" SCNu64 " %" SCNu64 " %" SCNd64, id,
               &mark.fence, &mark.rev, &mark.written_ms) != 4 ||
        strlen(id) != IDEM__EPOCH_ID_LEN)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "epoch-file %s: it is not readable as one; delete it "
                          "if the store is as it should be",
                          path);
    memcpy(epoch->id, id, sizeof(id));
    if (mark.fence != 0 && mark.rev == 0)
        mark.rev = idem__new_rev(); /* older versions wrote 0 after a loss */
    epoch->mark = mark;
    return IDEM_OK;
}

static void
write_file(struct idem_engine *engine)
{
    struct idem__epoch *epoch = &engine->epoch;
    char line[LINE_MAX];
    int len;

    len = snprintf(line, sizeof(line),
                   "%s %20" PRIu64 " %20" PRIu64 " %20" PRId64 "\n", epoch->id,
                   epoch->mark.fence, epoch->mark.rev, epoch->mark.written_ms);
    if (pwrite(epoch->fd, line, (size_t)len, 0) == len || epoch->file_failed)
        return;
    epoch->file_failed = true;
    idem__log(&engine->store_options, IDEM_LOG_WARNING,
              "the epoch-file cannot be written: %s. After a restart this "
              "server would not notice that the store went back",
              strerror(errno));
}

/* ---- the mark ---------------------------------------------------------- */

/* The store has only what was written up to this fence; the mark there has this
 * rev. */
static void
went_back(struct idem_engine *engine, uint64_t fence, uint64_t rev,
          const char *how)
{
    struct idem__epoch *epoch = &engine->epoch;

    epoch->found_rev = rev;
    epoch->found_fence = fence;
    epoch->newest.fence = 0;
    epoch->mark.written_ms = INT64_MAX; /* a noticed loss does not get old */
    write_file(engine);
    atomic_store(&epoch->accepted, false); /* that was about another loss */
    atomic_store(&engine->rolled_back, true);
    atomic_fetch_add(&engine->rollbacks, 1);
    idem__log(&engine->store_options, IDEM_LOG_ALARM,
              "the store went back: %s. "
              "Did the store come back empty, from an old file or a backup, or "
              "fail over? Strict requests, tokens and ids are refused, because "
              "they could happen twice: restore the store and start the server "
              "again; or settle what was executed (idem settle … --absent --as "
              "OUTCOME), then accept the loss with idem store accept-rollback",
              how);
}

static void
mark_is_older(struct idem_engine *engine, const struct idem_record *found)
{
    char how[96] = "the mark that this server left there is gone";

    if (found->state == IDEM_STATE_ABSENT) {
        went_back(engine, 0, 0, how);
        return;
    }
    snprintf(how, sizeof(how),
             "the mark that this server left there is %.1f s older",
             (double)(engine->epoch.mark.fence - found->fence) / 1e6);
    went_back(engine, found->fence, found->rev, how);
}

/* Look for the newest record. False: the store does not respond. */
static bool
look_for_newest(struct idem_engine *engine, bool *gone)
{
    struct idem__newest *newest = &engine->epoch.newest;
    struct idem_load load = {.with_result = false};
    const struct idem_record *found = &load.record;
    struct idem_arena arena = {NULL, 0};
    enum idem_status status;

    *gone = false;
    if (newest->fence == 0 ||
        (newest->expires != 0 && newest->expires <= engine->now.late_ms))
        return true;
    memcpy(load.key, newest->key, IDEM_KEY_LEN);
    status = engine->store->type->load(engine->store, &load, 1, &arena,
                                       &engine->epoch.err);
    if (status == IDEM_OK)
        *gone = found->state == IDEM_STATE_ABSENT ||
                found->fence < newest->fence ||
                (found->fence == newest->fence && newest->ended &&
                 found->state == IDEM_STATE_EXECUTING);
    idem_arena_clear(&arena);
    /* A damaged record is there. */
    return status == IDEM_OK || status == IDEM_ERR_CORRUPT ||
           status == IDEM_ERR_UNSUPPORTED;
}

static void
keep_mark(struct idem_engine *engine, const struct idem_record *record)
{
    struct idem__epoch *epoch = &engine->epoch;

    epoch->mark =
        (struct idem__mark){record->fence, record->rev, record->updated};
    write_file(engine);
}

/* Try once to replace the last mark by a new one. */
static enum idem_outcome
put_mark(struct idem_engine *engine, struct idem_record *found)
{
    struct idem__epoch *epoch = &engine->epoch;
    struct idem_record record = {
        .type = IDEM_TYPE_WORKER,
        .state = IDEM_STATE_FREE,
        .scope = idem_text(MARK_SCOPE),
        .id = idem_text(epoch->id),
        .fence = engine->now.late_us > epoch->mark.fence
                     ? engine->now.late_us
                     : epoch->mark.fence + 1,
        .rev = idem__new_rev(),
        .created = engine->now.late_ms,
        .updated = engine->now.late_ms,
        .expires = engine->now.late_ms + MARK_TTL_MS,
    };
    struct idem_swap swap = {.expected = epoch->mark.rev, .record = &record};
    struct idem_arena arena = {NULL, 0};

    idem__key(record.type, record.scope, record.id, swap.key);
    swap.outcome = IDEM_SWAP_LOST;
    epoch->err = (struct idem_error){IDEM_OK, ""};
    (void)engine->store->type->swap(engine->store, &swap, 1, &arena,
                                    &epoch->err);
    if (swap.outcome == IDEM_SWAP_STORED)
        keep_mark(engine, &record);
    *found = swap.found;
    found->scope = found->id = found->subject = found->result =
        (struct idem_bytes){NULL, 0};
    idem_arena_clear(&arena);
    return swap.outcome;
}

/* The store has the last mark, but not what was written after the mark before.
 * Let the file say that a newer mark is missing, so that a restart does not
 * accept the loss, also if the store then has no mark at all. */
static void
stay_back(struct idem_engine *engine)
{
    engine->epoch.mark.fence++;
    engine->epoch.mark.rev = idem__new_rev(); /* no store has it */
    write_file(engine);
}

/* Do not judge the store by a mark that may have expired. */
static void
forget_old_mark(struct idem_engine *engine)
{
    struct idem__epoch *epoch = &engine->epoch;

    if (engine->now.late_ms - epoch->mark.written_ms > MARK_FRESH_MS)
        epoch->mark = (struct idem__mark){0};
}

static void
mark(struct idem_engine *engine)
{
    struct idem__epoch *epoch = &engine->epoch;
    struct idem_record found;
    enum idem_outcome outcome;
    bool gone;

    forget_old_mark(engine);
    for (int i = 0; i < 2; i++) {
        outcome = put_mark(engine, &found);
        if (outcome == IDEM_SWAP_STORED) {
            if (!look_for_newest(engine, &gone)) {
                outcome = IDEM_SWAP_LOST;
                break;
            }
            if (gone) {
                went_back(engine, epoch->newest.mark, epoch->mark.rev,
                          "what this server wrote last is gone");
                stay_back(engine);
                return;
            }
            epoch->newest.fence = 0;
            epoch->marked_us = engine->boot_now_us;
            epoch->unsure = epoch->dirty = false;
            epoch->link = engine->store->link;
            return;
        }
        if (outcome != IDEM_SWAP_REFUSED)
            break;
        if (epoch->mark.fence != 0 && (found.state == IDEM_STATE_ABSENT ||
                                       found.fence < epoch->mark.fence)) {
            mark_is_older(engine, &found);
            return;
        }
        /* This engine wrote the mark, but the reply was lost or the file was
         * not updated. */
        epoch->mark.fence = found.fence;
        epoch->mark.rev = found.rev;
        epoch->mark.written_ms = found.updated;
    }
    /* On a store whose parts fail separately, a failure of the part with the
     * mark must not stop the other parts. A full store takes no new claims
     * anyway, and replays must go on. If the mark's row is locked, the mark is
     * there and the store answers. */
    epoch->unsure = !engine->store->type->partial &&
                    outcome != IDEM_SWAP_LOCKED &&
                    !(outcome == IDEM_SWAP_NOT_STORED &&
                      epoch->err.status == IDEM_ERR_FULL);
}

static void
accept(struct idem_engine *engine)
{
    struct idem__epoch *epoch = &engine->epoch;

    epoch->mark.rev = epoch->found_rev;
    if (epoch->lost_to == 0 || epoch->found_fence < epoch->lost_from)
        epoch->lost_from = epoch->found_fence;
    epoch->lost_to = epoch->mark.fence;
    atomic_store(&engine->rolled_back, false);
    idem__log(&engine->store_options, IDEM_LOG_WARNING,
              "the loss is accepted: a request that this server started in the "
              "lost time comes into doubt when a client repeats it; a request "
              "that another server started may run again");
}

/* ---- the interface ----------------------------------------------------- */

void
idem__epoch_wrote(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *before,
                  const struct idem_record *record)
{
    struct idem__newest *newest = &engine->epoch.newest;
    const struct idem_store_type *type = engine->store->type;
    bool ended;

    engine->epoch.dirty = true;
    if (!engine->epoch.on || type->local || type->partial || !record ||
        !idem__happens_once(record) || record->state == IDEM_STATE_FREE ||
        record->state == IDEM_STATE_ISSUED)
        return;
    /* Nobody can notice that a renewal was lost, and its loss does no harm. */
    if (record->state == IDEM_STATE_EXECUTING &&
        before->state == IDEM_STATE_EXECUTING && before->fence == record->fence)
        return;
    ended = record->state != IDEM_STATE_EXECUTING;
    if (ended && record->expires != 0 &&
        record->expires < engine->now.late_ms + NEWEST_TTL_MS) {
        if (memcmp(newest->key, key, IDEM_KEY_LEN) == 0)
            newest->expires = record->expires;
        return;
    }
    if (newest->fence == 0)
        newest->mark = engine->epoch.mark.fence;
    memcpy(newest->key, key, IDEM_KEY_LEN);
    newest->fence = record->fence;
    newest->expires = ended ? record->expires : 0;
    newest->ended = ended;
}

bool
idem__epoch_check(struct idem_engine *engine, bool now)
{
    struct idem__epoch *epoch = &engine->epoch;

    if (!epoch->on)
        return true;
    if (!atomic_load_explicit(&engine->rolled_back, memory_order_relaxed) &&
        (now || epoch->unsure || epoch->link != engine->store->link ||
         engine->boot_now_us - epoch->marked_us >= MARK_EVERY_US))
        mark(engine);
    if (atomic_load_explicit(&engine->rolled_back, memory_order_relaxed) &&
        (engine->inner.accept_rollback ||
         atomic_exchange(&epoch->accepted, false))) {
        accept(engine);
        mark(engine);
    }
    /* Once it is known that the store went back, the mark is not written any
     * more, and only what could run twice is refused. */
    return !epoch->unsure ||
           atomic_load_explicit(&engine->rolled_back, memory_order_relaxed);
}

int64_t
idem__epoch_due_us(const struct idem_engine *engine)
{
    int64_t due_us = engine->epoch.marked_us + MARK_EVERY_US;

    if (!engine->epoch.on || !engine->epoch.dirty ||
        atomic_load(&engine->rolled_back))
        return INT64_MAX;
    /* While the circuit breaker is open the store is not called. */
    return due_us > engine->breaker_until_us ? due_us
                                             : engine->breaker_until_us;
}

void
idem__epoch_tend(struct idem_engine *engine)
{
    struct idem__epoch *epoch = &engine->epoch;

    if (idem__boot_us(engine) < idem__epoch_due_us(engine))
        return;
    idem__time_update(engine);
    mark(engine);
    epoch->marked_us = idem__boot_us(engine); /* also after a failure */
}

bool
idem__epoch_refuses(struct idem_engine *engine, const struct idem_op *op,
                    const struct idem_record *next)
{
    if (!atomic_load_explicit(&engine->rolled_back, memory_order_relaxed))
        return false;
    switch (op->verb) {
    case IDEM_BEGIN:
        return next->mode == IDEM_STRICT || op->type == IDEM_TYPE_TOKEN;
    case IDEM_REDEEM:
        return true;
    case IDEM_SETTLE: /* the request may have been done, so do not settle it as
                       * failed for good */
        return op->outcome == 0;
    case IDEM_LOCK:
        return op->type == IDEM_TYPE_WORKER;
    default:
        return false;
    }
}

enum idem_status
idem__epoch_refuse(bool maybe_stored, struct idem_error *err)
{
    return idem__fail(err, maybe_stored ? IDEM_ERR_LOST : IDEM_ERR_UNAVAILABLE,
                      IDEM__STORE_WENT_BACK
                      ", and this could happen twice: restore the store; or "
                      "settle what was executed, then accept the loss with "
                      "idem store accept-rollback");
}

bool
idem__refused_by_engine(const char *text)
{
    return strncmp(text, IDEM__STORE_WENT_BACK,
                   strlen(IDEM__STORE_WENT_BACK)) == 0 ||
           strncmp(text, IDEM__THIS_RECORD_IS, strlen(IDEM__THIS_RECORD_IS)) ==
               0;
}

enum idem_status
idem__epoch_open(struct idem_engine *engine, struct idem_error *err)
{
    struct idem__epoch *epoch = &engine->epoch;
    const char *file = engine->inner.epoch_file;
    enum idem_status status;

    epoch->fd = -1;
    if (!file)
        return IDEM_OK;
    if (engine->store->forgets)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "epoch-file: this store may forget, as was accepted: "
                          "leave the option out");
    epoch->on = true;
    snprintf(epoch->id, sizeof(epoch->id), "%016" PRIx64 "%016" PRIx64,
             idem__new_rev(), idem__new_rev());
    status = open_file(epoch, file, err);
    if (status == IDEM_OK)
        (void)idem__epoch_check(engine, true);
    return status;
}

void
idem__epoch_close(struct idem__epoch *epoch)
{
    if (epoch->on && epoch->fd >= 0)
        close(epoch->fd);
}

bool
idem__accept_rollback(struct idem_engine *engine)
{
    if (!atomic_load(&engine->rolled_back))
        return false;
    atomic_store(&engine->epoch.accepted, true);
    return true;
}
