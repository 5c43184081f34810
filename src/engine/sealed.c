/*
 * sealed.c - decides which records an engine seals and opens, and what happens
 * to a record that does not open.
 *
 * Records are sealed on the way to the store and opened on the way back;
 * step(), the answers and the records in recent.c are plain. Every write seals
 * the whole record with the first key. So a replaced key goes out of use as
 * records are written again or expire.
 *
 * A record that does not open is never treated as absent. An operation on it
 * fails with the reason, and the record stays as it is. Two things are possible
 * without its contents: an operator may forget a request, a token, or a lock
 * without a note, and a new record may replace an expired one.
 */
#include "inner.h"

#define SAY_EVERY_US INT64_C(60000000)

static const struct idem_error no_memory = {IDEM_ERR_MEMORY, "out of memory"};

enum idem_status
idem__sealed_start(struct idem_engine *engine, bool has_store,
                   struct idem_error *err)
{
    const char *file = engine->options.seal_key;
    char id[IDEM__SEAL_ID_TEXT];
    enum idem_status status;
    size_t count;

    if (!file)
        return IDEM_OK;
    if (!has_store)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "seal-key is for a store: the server that you "
                          "connect to seals, so give the key to that one");
    status = idem__seal_read(file, &engine->seal, err);
    if (status != IDEM_OK)
        return status;
    count = idem__seal_about(engine->seal, id);
    idem__log(&engine->store_options, IDEM_LOG_INFO,
              "results and subjects are sealed with key %s; keys that open "
              "them: %zu",
              id, count);
    if (!idem__seal_locked(engine->seal))
        idem__log(&engine->store_options, IDEM_LOG_WARNING,
                  "the memory of the seal-key cannot be locked, so it could be "
                  "written to swap: raise the limit of locked memory (ulimit "
                  "-l, LimitMEMLOCK=)");
    return IDEM_OK;
}

enum idem_status
idem__sealed_fits(const struct idem_engine *engine, const struct idem_op *op,
                  struct idem_error *err)
{
    if (!engine->seal || op->subject.len <= IDEM__SEALED_SUBJECT_MAX)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s has %zu bytes, the limit with seal-key is %d: "
                      "shorten it",
                      op->verb == IDEM_LOCK ? "the owner" : "the subject",
                      op->subject.len, IDEM__SEALED_SUBJECT_MAX);
}

/* A missing key is logged once, and several missing keys at most once a minute.
 * Without a log only the caller gets the error. */
static void
say_closed(struct idem_engine *engine, const struct idem_error *err)
{
    if (!engine->options.log || strcmp(engine->closed.text, err->text) == 0 ||
        (engine->closed_us != 0 &&
         engine->boot_now_us - engine->closed_us < SAY_EVERY_US))
        return;
    engine->closed_us = engine->boot_now_us;
    engine->closed = *err;
    idem__log(&engine->store_options, IDEM_LOG_ALARM,
              "a sealed record does not open: %s", err->text);
}

void
idem__sealed_open_group(struct idem_engine *engine, struct idem__group *group)
{
    struct idem_error err, *kept;

    group->shut_result = group->stored.flags & IDEM_FLAG_SEALED_RESULT;
    if (!(group->stored.flags & IDEM__SEALED) ||
        idem__seal_open(engine->seal, group->key, &group->stored,
                        &engine->batch.arena, &err) == IDEM_OK)
        return;
    say_closed(engine, &err);
    kept = idem_arena_take(&engine->batch.arena, sizeof(*kept));
    if (kept)
        *kept = err;
    group->shut = kept ? kept : &no_memory;
}

const struct idem_record *
idem__sealed_write(struct idem_engine *engine, struct idem__group *group)
{
    struct idem_record *sealed;

    if (!engine->seal ||
        (group->record->subject.len == 0 && group->record->result.len == 0))
        return group->record;
    /* A lost write must be sent again with the same bytes. */
    if (group->sealed)
        return group->sealed;
    sealed = idem_arena_take(&engine->batch.arena, sizeof(*sealed));
    if (!sealed || !idem__seal_record(engine->seal, group->key, group->record,
                                      &engine->batch.arena, sealed))
        return NULL;
    return group->sealed = sealed;
}

bool
idem__sealed_refuses(const struct idem__group *group, const struct idem_op *op,
                     const struct idem_now *now)
{
    /* The note of a lock is kept when the lock is forgotten. */
    bool forgets = op->verb == IDEM_FORGET &&
                   (op->type == IDEM_TYPE_REQUEST ||
                    op->type == IDEM_TYPE_TOKEN || !group->shut_result);

    return group->shut && group->record == &group->stored && !forgets &&
           !idem__record_expired(group->record, now);
}

void
idem__sealed_open_scanned(struct idem_engine *engine,
                          struct idem_record *record, struct idem_arena *arena)
{
    uint8_t key[IDEM_KEY_LEN];

    record->flags &= (uint8_t)~IDEM_FLAG_SEALED_RESULT;
    if (!(record->flags & IDEM_FLAG_SEALED_SUBJECT))
        return;
    idem__key((enum idem_type)record->type, record->scope, record->id, key);
    (void)idem__seal_open(engine->seal, key, record, arena, NULL);
}
