/*
 * quota.c - limits how many records and bytes one scope may have in the store.
 *
 * Two things are added up: what a look through the whole store has counted, and
 * what this engine has written since that look began. The look is a scan in
 * small parts between batches. It takes at most a tenth of the engine's time
 * and starts again a minute after it ended, or 5 s after if an operation was
 * refused. It skips records that were created after it began, because those are
 * counted when they are written. A record that grows during the look may be
 * counted twice until the next look. Records of other engines, and the room
 * that expired records leave, are counted by the next look.
 *
 * The table has a fixed size. If all places of a scope's small neighbourhood
 * are taken, the scope with the fewest records in it is removed. So the table
 * remembers the largest scopes, which are the ones that a quota limits. The
 * hash is keyed, so a client cannot choose scopes that collide.
 */
#include "inner.h"

#include "../base/quota.h"

#include <sodium.h>
#include <stdlib.h>

#define PLACES 65536 /* a power of two */
#define NEIGHBOURS 8
#define LOOK_PAUSE_US INT64_C(60000000)
#define SOON_US (INT64_C(1000000) * IDEM__QUOTA_LOOK_S)
#define PART_PAUSE_US 50000
#define PART_MOST 1000
#define PART_LEAST 8

struct idem__scope_use {
    uint64_t hash; /* of the scope; 0: the place is empty */
    int64_t records, bytes;
    int64_t seen_records, seen_bytes; /* of the current look */
};

static struct idem__scope_use *
use_of(struct idem__quota *quota, struct idem_bytes scope)
{
    struct idem__scope_use *least = NULL;
    uint64_t hash;

    crypto_shorthash((uint8_t *)&hash, scope.data, scope.len, quota->hash_key);
    hash = hash ? hash : 1;
    for (size_t i = 0; i < NEIGHBOURS; i++) {
        struct idem__scope_use *use = &quota->uses[(hash + i) % PLACES];

        if (use->hash == hash)
            return use;
        if (!least || use->hash == 0 ||
            (least->hash != 0 && use->records + use->seen_records <
                                     least->records + least->seen_records))
            least = use;
    }
    *least = (struct idem__scope_use){.hash = hash};
    return least;
}

/* The bytes that a record counts for. An executing record reserves room for its
 * result, unless it has been in doubt for long. */
static int64_t
size_of(const struct idem_engine *engine, const struct idem_record *record)
{
    int64_t size = (int64_t)idem__encoded_len(record);

    if (record->state == IDEM_STATE_EXECUTING &&
        engine->now.early_ms - record->updated < IDEM__CLAIM_RESERVE_MS)
        size += IDEM__CLAIM_RESERVE;
    return size;
}

enum idem_status
idem__quota_open(struct idem_engine *engine, struct idem_error *err)
{
    struct idem__quota *quota = &engine->quota;

    if (engine->inner.scope_records == 0 && engine->inner.scope_bytes == 0)
        return IDEM_OK;
    quota->uses = calloc(PLACES, sizeof(*quota->uses));
    if (!quota->uses)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    randombytes_buf(quota->hash_key, sizeof(quota->hash_key));
    quota->part = PART_LEAST;
    return IDEM_OK;
}

void
idem__quota_close(struct idem__quota *quota)
{
    free(quota->uses);
    quota->uses = NULL;
}

/* Records of id workers do not count for a scope. */
static bool
counts(const struct idem_record *record)
{
    return record->type != IDEM_TYPE_WORKER;
}

void
idem__quota_wrote(struct idem_engine *engine, const struct idem_record *before,
                  const struct idem_record *after)
{
    struct idem__quota *quota = &engine->quota;
    struct idem__scope_use *use;
    int64_t size, grown;
    bool was;

    if (!quota->uses || !counts(after))
        return;
    was = before->state != IDEM_STATE_ABSENT &&
          !idem__record_expired(before, &engine->now);
    use = use_of(quota, after->scope);
    size = size_of(engine, after);
    grown = was ? size - size_of(engine, before) : size;
    use->records += !was;
    use->bytes += grown;
    if (!quota->looking)
        return;
    if (after->created <= quota->since_ms) {
        use->seen_bytes += grown > 0 ? grown : 0;
    } else if (was && before->created > quota->since_ms) {
        use->seen_bytes += grown;
    } else { /* the current look skips it from now on */
        use->seen_records++;
        use->seen_bytes += size;
    }
}

static bool
at_most_records(const struct idem_engine *engine,
                const struct idem__scope_use *use)
{
    return engine->inner.scope_records > 0 &&
           use->records >= engine->inner.scope_records;
}

/* An operator's decision about a record is never refused. */
bool
idem__quota_used_up(struct idem_engine *engine, const struct idem_op *op)
{
    int64_t bytes = engine->inner.scope_bytes;
    const struct idem__scope_use *use;

    if (!engine->quota.uses || engine->quota.blind ||
        op->type == IDEM_TYPE_WORKER || op->outcome != 0)
        return false;
    use = use_of(&engine->quota, op->scope);
    return at_most_records(engine, use) || (bytes > 0 && use->bytes >= bytes);
}

enum idem_status
idem__quota_refuse(struct idem_engine *engine, const struct idem_op *op,
                   struct idem_error *err)
{
    const struct idem__scope_use *use = use_of(&engine->quota, op->scope);
    int64_t soon_us = engine->quota.looked_us + SOON_US;

    if (!engine->quota.looking && engine->quota.due_us > soon_us)
        engine->quota.due_us = soon_us;
    if (at_most_records(engine, use))
        return idem__fail(
            err, IDEM_ERR_OVERLOADED,
            IDEM__QUOTA_RECORDS
            ": this scope has %lld records, its limit is %lld: try again when "
            "some have expired",
            (long long)use->records, (long long)engine->inner.scope_records);
    return idem__fail(err, IDEM_ERR_OVERLOADED,
                      IDEM__QUOTA_BYTES
                      ": the records of this scope take %lld bytes, its limit "
                      "is %lld: try again when some have expired",
                      (long long)use->bytes,
                      (long long)engine->inner.scope_bytes);
}

/* ---- the look ---------------------------------------------------------- */

static bool
look_at(void *arg, const struct idem_record *record)
{
    struct idem_engine *engine = arg;
    struct idem__quota *quota = &engine->quota;
    struct idem__scope_use *use;

    /* A record of a clock that was ahead is not one that was written since. */
    if (!counts(record) || (record->created > quota->since_ms &&
                            record->created <= engine->now.late_ms))
        return true;
    use = use_of(quota, record->scope);
    use->seen_records++;
    use->seen_bytes += size_of(engine, record);
    return true;
}

static void
look_begins(struct idem_engine *engine)
{
    struct idem__quota *quota = &engine->quota;

    for (size_t i = 0; i < PLACES; i++)
        quota->uses[i].seen_records = quota->uses[i].seen_bytes = 0;
    quota->since_ms = engine->now.late_ms;
    quota->cursor = (struct idem_cursor){"0"};
    quota->looking = true;
}

static void
look_ends(struct idem__quota *quota)
{
    for (size_t i = 0; i < PLACES; i++) {
        struct idem__scope_use *use = &quota->uses[i];

        use->records = use->seen_records;
        use->bytes = use->seen_bytes;
        if (use->records == 0)
            *use = (struct idem__scope_use){.hash = 0};
    }
    quota->looking = quota->blind = false;
}

/* If the store is unavailable, the same part is read again. A look cannot pass
 * a record that cannot be read, and counts that only grow would in the end
 * refuse everybody. So in that case the quota refuses nobody. */
static void
look_fails(struct idem_engine *engine, enum idem_status status,
           const struct idem_error *err)
{
    struct idem__quota *quota = &engine->quota;

    quota->due_us = idem__boot_us(engine) + SOON_US;
    if (status != IDEM_ERR_CORRUPT && status != IDEM_ERR_UNSUPPORTED)
        return;
    quota->due_us = idem__boot_us(engine) + LOOK_PAUSE_US;
    quota->looking = false;
    if (!quota->blind)
        idem__log(&engine->store_options, IDEM_LOG_WARNING,
                  "the records of scopes cannot be counted: %s; until they "
                  "can, scope-records and scope-bytes have no effect",
                  err->text);
    quota->blind = true;
}

void
idem__quota_tend(struct idem_engine *engine)
{
    const struct idem_filter everything = {0};
    struct idem__quota *quota = &engine->quota;
    struct idem_query query = {&everything,
                               &engine->now,
                               &quota->cursor,
                               quota->part,
                               look_at,
                               engine,
                               engine->inner.scope_bytes > 0};
    int64_t began_us = idem__boot_us(engine), took_us, most_us;
    enum idem_status status;
    struct idem_error err;

    if (!quota->uses || began_us < quota->due_us)
        return;
    idem__time_update(engine);
    if (!quota->looking)
        look_begins(engine);
    status = engine->store->type->scan(engine->store, &query, &err);
    if (status != IDEM_OK) {
        look_fails(engine, status, &err);
        return;
    }
    took_us = idem__boot_us(engine) - began_us;
    if (strcmp(quota->cursor.text, "0") == 0) {
        look_ends(quota);
        quota->looked_us = began_us + took_us;
        quota->due_us = quota->looked_us + LOOK_PAUSE_US;
        return;
    }
    quota->due_us = began_us + (10 * took_us > PART_PAUSE_US ? 10 * took_us
                                                             : PART_PAUSE_US);
    /* On a remote store a small scan takes as long as a large one. */
    most_us = engine->store->type->local ? PART_PAUSE_US / 10 : PART_PAUSE_US;
    if (took_us > most_us && quota->part > PART_LEAST)
        quota->part /= 2;
    else if (took_us < most_us / 2 && quota->part < PART_MOST)
        quota->part *= 2;
}
