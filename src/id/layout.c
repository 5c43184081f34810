/*
 * layout.c - the bit layout of ids, and decoding them.
 */
#include "id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {
    [IDEM_ID_SNOWFLAKE] = "snowflake", [IDEM_ID_UID] = "uid",
    [IDEM_ID_SEGMENT] = "segment",     [IDEM_ID_UUID4] = "uuid4",
    [IDEM_ID_UUID7] = "uuid7",
};

const char *
idem_id_kind_name(enum idem_id_kind kind)
{
    return (unsigned)kind < IDEM__ID_KIND_COUNT ? kind_names[kind] : "?";
}

enum idem_status
idem__ids_options_check(struct idem_ids_options *o, struct idem_error *err)
{
    if (IDEM__ROOM_CHECK(o, err) != IDEM_OK)
        return IDEM_ERR_UNSUPPORTED;
    if (!o->snowflake_epoch_ms)
        o->snowflake_epoch_ms = SNOWFLAKE_EPOCH_MS;
    if (!o->uid_epoch_s)
        o->uid_epoch_s = UID_EPOCH_S;
    if (!o->uid_seconds_bits && !o->uid_worker_bits && !o->uid_sequence_bits) {
        o->uid_seconds_bits = 28;
        o->uid_worker_bits = 22;
        o->uid_sequence_bits = 13;
    }
    if (!o->lease_ms)
        o->lease_ms = IDEM_LEASE_DEFAULT_MS;
    if (!o->segment_step)
        o->segment_step = 1000;
    if (!o->segment_step_max)
        o->segment_step_max = o->segment_step > SEGMENT_STEP_MAX
                                  ? o->segment_step
                                  : SEGMENT_STEP_MAX;
    if (!o->wait_ms)
        o->wait_ms = 5000;

    if (o->uid_seconds_bits < 1 || o->uid_worker_bits < 1 ||
        o->uid_sequence_bits < 1 ||
        o->uid_seconds_bits + o->uid_worker_bits + o->uid_sequence_bits != 63)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the bits for seconds, worker and sequence must each "
                          "be at least 1 and add up to 63, not %d + %d + %d",
                          o->uid_seconds_bits, o->uid_worker_bits,
                          o->uid_sequence_bits);
    if (o->lease_ms < 300 || o->lease_ms > IDEM_LEASE_MAX_MS)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a worker's lease of %lld ms is out of range: give "
                          "300 ms to 7 days",
                          (long long)o->lease_ms);
    if (o->segment_step > UINT64_C(1) << 40)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a segment step of %llu is too large: give 1 to 2^40",
                          (unsigned long long)o->segment_step);
    if (o->segment_step_max < o->segment_step ||
        o->segment_step_max > UINT64_C(1) << 40)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a largest segment step of %llu is out of range: "
                          "give the step, %llu, to 2^40",
                          (unsigned long long)o->segment_step_max,
                          (unsigned long long)o->segment_step);
    return IDEM_OK;
}

struct layout
idem__id_layout(enum idem_id_kind kind, const struct idem_ids_options *o)
{
    if (kind == IDEM_ID_SNOWFLAKE)
        return (struct layout){SNOWFLAKE_TIME_BITS, SNOWFLAKE_WORKER_BITS,
                               SNOWFLAKE_SEQUENCE_BITS, o->snowflake_epoch_ms,
                               1};
    return (struct layout){o->uid_seconds_bits, o->uid_worker_bits,
                           o->uid_sequence_bits, o->uid_epoch_s * 1000, 1000};
}

enum idem_status
idem_id_explain(enum idem_id_kind kind, uint64_t id,
                const struct idem_ids_options *options,
                struct idem_id_parts *parts, struct idem_error *err)
{
    struct idem_ids_options o =
        options ? *options : (struct idem_ids_options){0};
    enum idem_status status = idem__ids_options_check(&o, err);
    struct layout layout;
    uint64_t tick;

    if (status != IDEM_OK)
        return status;
    if (kind == IDEM_ID_SEGMENT) {
        *parts = (struct idem_id_parts){.time_ms = -1, .sequence = id};
        return IDEM_OK;
    }
    if (kind != IDEM_ID_SNOWFLAKE && kind != IDEM_ID_UID)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a number is of kind snowflake, uid or segment");
    if (id >> 63)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%llu has its top bit set: no %s has",
                          (unsigned long long)id, idem_id_kind_name(kind));
    *parts = (struct idem_id_parts){0};
    layout = idem__id_layout(kind, &o);
    tick = id >> (layout.worker_bits + layout.sequence_bits);
    parts->time_ms = layout.epoch_ms + (int64_t)tick * layout.tick_ms;
    parts->worker = (id >> layout.sequence_bits) &
                    ((UINT64_C(1) << layout.worker_bits) - 1);
    parts->sequence = id & ((UINT64_C(1) << layout.sequence_bits) - 1);
    parts->ends_ms =
        layout.epoch_ms + (INT64_C(1) << layout.time_bits) * layout.tick_ms;
    return IDEM_OK;
}
