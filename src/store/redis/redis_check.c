/*
 * redis_check.c - reads what a Redis server reports about itself and checks its
 * settings.
 *
 * A server must not evict records, lose them at a power cut, or be a replica. A
 * wrong setting is refused, and the error names it.
 */
#include "redis.h"

#include <stdlib.h>
#include <string.h>

#define OLDEST 70000 /* 7.0 is the first version with flags of scripts */
#define FULL_PERCENT 90

/* The value of "name:value\r\n" in the text of INFO. */
static struct idem_bytes
field(const char *info, size_t len, const char *name)
{
    size_t name_len = strlen(name);
    const char *end = info + len;

    while (info < end) {
        const char *line_end = memchr(info, '\n', (size_t)(end - info));
        size_t line_len = (size_t)((line_end ? line_end : end) - info);

        if (line_len > name_len && info[name_len] == ':' &&
            memcmp(info, name, name_len) == 0) {
            const char *value = info + name_len + 1;
            size_t value_len = line_len - name_len - 1;

            if (value_len > 0 && value[value_len - 1] == '\r')
                value_len--;
            return (struct idem_bytes){value, value_len};
        }
        info += line_len + 1;
    }
    return (struct idem_bytes){"", 0};
}

static void
copy(struct idem_bytes value, char *out, size_t room)
{
    size_t len = value.len < room - 1 ? value.len : room - 1;

    memcpy(out, value.data, len);
    out[len] = 0;
}

static int64_t
number(struct idem_bytes value)
{
    char text[24];

    copy(value, text, sizeof(text));
    return strtoll(text, NULL, 10);
}

/* The memory as Redis compares it with maxmemory: without the buffers for
 * replicas and for the append-only file. */
void
idem__redis_facts_read_memory(const char *info, size_t len,
                              struct redis_facts *facts)
{
    facts->used_memory = number(field(info, len, "used_memory")) -
                         number(field(info, len, "mem_not_counted_for_evict"));
    facts->max_memory = number(field(info, len, "maxmemory"));
}

void
idem__redis_facts_read_calls(const char *info, size_t len,
                             struct redis_facts *facts)
{
    static const char calls[] = "calls=";
    struct idem_bytes value = field(info, len, "cmdstat_config|set");

    facts->config_sets = 0;
    if (value.len > strlen(calls) &&
        memcmp(value.data, calls, strlen(calls)) == 0)
        facts->config_sets =
            number((struct idem_bytes){(const char *)value.data + strlen(calls),
                                       value.len - strlen(calls)});
}

bool
idem__redis_facts_full(const struct redis_facts *facts)
{
    return facts->max_memory > 0 &&
           facts->used_memory >= facts->max_memory / 100 * FULL_PERCENT;
}

void
idem__redis_facts_read(const char *info, size_t len, struct redis_facts *facts)
{
    char version[16];
    int major = 0, minor = 0, patch = 0;

    copy(field(info, len, "redis_version"), version, sizeof(version));
    if (sscanf(version, "%d.%d.%d", &major, &minor, &patch) >= 2)
        facts->version = major * 10000 + minor * 100 + patch;
    copy(field(info, len, "run_id"), facts->run_id, sizeof(facts->run_id));
    copy(field(info, len, "maxmemory_policy"), facts->policy,
         sizeof(facts->policy));
    facts->master = idem__bytes_is(field(info, len, "role"), "master");
    facts->sentinel =
        idem__bytes_is(field(info, len, "redis_mode"), "sentinel");
    facts->cluster = number(field(info, len, "cluster_enabled")) == 1;
    facts->loading = number(field(info, len, "loading")) == 1;
    facts->aof = number(field(info, len, "aof_enabled")) == 1;
    facts->aof_unwritten =
        (number(field(info, len, "aof_rewrite_in_progress")) == 1 ||
         number(field(info, len, "aof_rewrite_scheduled")) == 1) &&
        number(field(info, len, "aof_base_size")) == 0;
    facts->replicas = (int)number(field(info, len, "connected_slaves"));
    idem__redis_facts_read_memory(info, len, facts);
    facts->known = version[0] != 0;
}

static enum idem_status
judge_fsync(const struct redis_settings *settings,
            const struct redis_facts *facts, struct idem_error *err)
{
    if (settings->accept_forget)
        return IDEM_OK;
    if (!facts->aof)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "redis: appendonly is no: a restart would forget "
                          "records; set appendonly yes, appendfsync always; "
                          "or, for loose requests and tokens only, accept that "
                          "with ?unsafe=forget");
    if (!facts->fsync_seen && !settings->accept_unseen)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "redis: CONFIG GET appendfsync is not allowed here; "
                          "allow it, or vouch for \"always\" with "
                          "?unsafe=unseen");
    if (facts->fsync_pauses)
        return idem__fail(
            err, IDEM_ERR_UNSUPPORTED,
            "redis: no-appendfsync-on-rewrite is yes: while Redis "
            "writes a snapshot it does not sync, and a power cut "
            "loses records; set it to no");
    if (!facts->fsync_seen || strcmp(facts->fsync, "always") == 0)
        return IDEM_OK;
    if (strcmp(facts->fsync, "everysec") == 0 && settings->accept_everysec)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "redis: appendfsync is %s: a power cut loses "
                      "acknowledged records; set always%s",
                      facts->fsync,
                      strcmp(facts->fsync, "everysec") == 0
                          ? ", or accept to lose up to 2 s with "
                            "?unsafe=everysec"
                          : "");
}

enum idem_status
idem__redis_facts_judge(const struct redis_settings *settings,
                        const struct redis_facts *facts, struct idem_error *err)
{
    if (!facts->known)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "redis: INFO says nothing: is this Redis, and may "
                          "this user call INFO?");
    if (facts->version < OLDEST)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "redis: version %d.%d is too old: 7.0 or newer",
                          facts->version / 10000, facts->version / 100 % 100);
    if (facts->cluster != settings->cluster)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          facts->cluster
                              ? "redis: this is a node of a cluster: use "
                                "redis+cluster://"
                              : "redis: cluster-enabled is no: use redis://");
    if (strcmp(facts->policy, "noeviction") != 0)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "redis: maxmemory-policy is %s: records would be "
                          "evicted and requests run twice; set noeviction",
                          facts->policy);
    if (facts->loading)
        return idem__fail(
            err, IDEM_ERR_UNAVAILABLE,
            "redis: still loading its data; try again in a moment");
    if (!facts->master)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "redis: a replica replied, not the primary; name the "
                          "primary in the URL, or all hosts");
    if (judge_fsync(settings, facts, err) != IDEM_OK)
        return IDEM_ERR_UNSUPPORTED;
    if (facts->aof_unwritten && !settings->accept_forget)
        return idem__fail(
            err, IDEM_ERR_UNAVAILABLE,
            "redis: the append-only file is written for the first "
            "time, and a restart would lose records; wait until "
            "this ends (INFO: aof_rewrite_in_progress is 0)");
    if (facts->replicas < settings->replicas)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "redis: %d replica(s) connected, %d must have every "
                          "write; connect the missing ones%s",
                          facts->replicas, settings->replicas,
                          settings->sentinel && facts->replicas == 0
                              ? "" /* the URL refuses replicas=0 */
                              : ", or set replicas= to the number of replicas "
                                "that can take over");
    return IDEM_OK;
}
