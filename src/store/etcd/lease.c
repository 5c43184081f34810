/*
 * lease.c - decides how long etcd keeps a record.
 *
 * A lease counts down on etcd's leader and deletes its records when it ends. A
 * new leader starts the count again, so a record may live longer, never
 * shorter. Time is divided into spans, an eighth of the remaining time but at
 * least ten seconds. Records of one span share a lease, up to a number that
 * etcd can delete in one step without a noticeable delay.
 */
#include "etcd.h"

#include <stdlib.h>

#define SPAN_MIN_MS INT64_C(10000)
#define RECORDS_MAX 256

static int64_t
span_end(int64_t drop_ms, int64_t now_ms)
{
    int64_t span_ms = SPAN_MIN_MS;

    while (span_ms * 16 < drop_ms - now_ms)
        span_ms *= 2;
    return (drop_ms / span_ms + 1) * span_ms;
}

static enum etcd_result
grant(struct etcd_client *client, int64_t ttl_ms, int64_t *id,
      struct idem_error *err)
{
    char body[64];
    json_t *reply;
    const char *text;
    enum etcd_result result;

    snprintf(body, sizeof(body), "{\"TTL\":\"%lld\"}",
             (long long)(ttl_ms / 1000 + 1));
    result = idem__etcd_post(client, "/v3/lease/grant", idem_text(body), &reply,
                             err);
    if (result != ETCD_DONE)
        return ETCD_NOT_DONE; /* a lease without records does no harm */
    text = json_string_value(json_object_get(reply, "ID"));
    *id = text ? strtoll(text, NULL, 10) : 0;
    json_decref(reply);
    if (*id != 0)
        return ETCD_DONE;
    idem__fail(err, IDEM_ERR_UNAVAILABLE, "etcd: a lease came without an id");
    return ETCD_NOT_DONE;
}

enum etcd_result
idem__etcd_lease(struct etcd_client *client, struct etcd_leases *leases,
                 int64_t drop_ms, int64_t now_ms, int64_t *id,
                 struct idem_error *err)
{
    int64_t until_ms, ttl_ms;
    size_t at = leases->oldest;
    enum etcd_result result;

    if (drop_ms < now_ms)
        drop_ms = now_ms; /* it expired long ago: use the shortest lease */
    until_ms = span_end(drop_ms, now_ms);
    ttl_ms = until_ms - now_ms;
    for (size_t i = 0; i < ETCD_LEASES; i++) {
        if (leases->slots[i].until_ms != until_ms)
            continue;
        if (leases->slots[i].used < RECORDS_MAX) {
            leases->slots[i].used++;
            *id = leases->slots[i].id;
            return ETCD_DONE;
        }
        at = i; /* full: replace it by another */
    }
    result = grant(client, ttl_ms, id, err);
    if (result != ETCD_DONE)
        return result;
    if (at == leases->oldest)
        leases->oldest = (leases->oldest + 1) % ETCD_LEASES;
    leases->slots[at].until_ms = until_ms;
    leases->slots[at].id = *id;
    leases->slots[at].used = 1;
    leases->granted++;
    return ETCD_DONE;
}

bool
idem__etcd_lease_is_granted(struct etcd_client *client)
{
    struct idem_error ignored;
    int64_t id;

    return grant(client, 1000, &id, &ignored) == ETCD_DONE;
}
