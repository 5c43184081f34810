/*
 * zookeeper.c - zookeeper://: records in ZooKeeper, one node each.
 *
 *   zookeeper://[user:password@]host[:port][,host[:port]...][/root][?options]
 *
 *   connect_ms=1000, timeout_ms=2000, session_ms=6000
 *
 * A record is a node. swap.c changes records, sweep.c deletes expired ones.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_PORT 2181
#define CHUNK_COUNT 256
#define OPEN_TRIES 3

/* A packet, with names and numbers, has at most jute.maxbuffer bytes: 1 MiB
 * minus one. */
#define RECORD_MAX (1000 * 1024)

enum idem_status
idem__zk_read(const struct zk_call *call, const uint8_t *key,
              struct idem_arena *arena, struct idem_record *record,
              struct idem_error *err)
{
    record->state = IDEM_STATE_ABSENT;
    if (call->rc == ZNONODE)
        return IDEM_OK;
    if (call->rc != ZOK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: %s",
                          zerror(call->rc));
    return idem__value_read(
        key, (struct idem_bytes){call->data, (size_t)call->data_len}, arena,
        record, err);
}

/* ---- load ------------------------------------------------------------ */

static enum idem_status
load_chunk(struct zk_store *self, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct zk_round *round = idem__zk_round_new(1 + count);
    enum idem_status status = IDEM_OK;
    char path[ZK_PATH_MAX];

    if (!round)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    idem__zk_sync(self, &round->calls[0]);
    for (size_t i = 0; i < count; i++) {
        idem__zk_record_path(self, loads[i].key, path);
        idem__zk_get(self, &round->calls[1 + i], path);
    }
    idem__zk_round_wait(self, round);
    if (round->calls[0].rc != ZOK)
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: %s",
                            zerror(round->calls[0].rc));
    for (size_t i = 0; i < count && status == IDEM_OK; i++)
        status = idem__zk_read(&round->calls[1 + i], loads[i].key, arena,
                               &loads[i].record, err);
    idem__zk_round_leave(round);
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;
    enum idem_status status = idem__zk_ready(self, err);

    for (size_t start = 0; start < count && status == IDEM_OK;
         start += CHUNK_COUNT) {
        size_t left = count - start;

        status =
            load_chunk(self, loads + start,
                       left < CHUNK_COUNT ? left : CHUNK_COUNT, arena, err);
    }
    return status;
}

/* ---- the clock ------------------------------------------------------- */

/* The leader writes its time into every change, so change a node to read the
 * time. */
static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;
    enum idem_status status = idem__zk_ready(self, err);
    struct zk_round *round;
    char path[ZK_PATH_MAX];

    if (status != IDEM_OK)
        return status;
    round = idem__zk_round_new(1);
    if (!round)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    snprintf(path, sizeof(path), "%s/clock", self->root);
    idem__zk_set(self, &round->calls[0], path);
    idem__zk_round_wait(self, round);
    if (round->calls[0].rc == ZOK) {
        *now_us = round->calls[0].stat.mtime * 1000;
    } else {
        self->rooted = false; /* somebody may have deleted it */
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: clock: %s",
                            zerror(round->calls[0].rc));
    }
    idem__zk_round_leave(round);
    return status;
}

static void
tend(struct idem_store *store, int64_t drop_ms)
{
    idem__zk_sweep((struct zk_store *)store, drop_ms);
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct zk_store *self = (struct zk_store *)store;

    each(arg, "zookeeper_sessions_total", (double)self->sessions);
    each(arg, "zookeeper_requests_total", (double)self->requests);
    each(arg, "zookeeper_lost_total", (double)self->lost);
    each(arg, "zookeeper_swept_total", (double)self->swept);
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct zk_store *self = (struct zk_store *)store;

    idem__zk_hang_up(self);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->change);
    idem__url_clear(&self->url);
    free(self->hosts);
    free(self->versions);
}

static enum idem_status
read_url(struct zk_store *self, const char *url, struct idem_error *err)
{
    static const char *const known[] = {"connect_ms", "timeout_ms",
                                        "session_ms", NULL};
    const struct idem__url_range numbers[] = {
        {"connect_ms", 1, 60000, 1000, &self->connect_ms},
        {"timeout_ms", 1, 60000, 2000, &self->timeout_ms},
        {"session_ms", 1000, 60000, 6000, &self->session_ms},
        {0}};
    enum idem_status status =
        idem__url_parse(url, DEFAULT_PORT, known, &self->url, err);
    const char *root;
    struct idem_buf hosts;

    if (status == IDEM_OK)
        status = idem__url_numbers(&self->url, numbers, err);
    if (status != IDEM_OK)
        return status;
    root = self->url.path ? self->url.path : "idem";
    if (strlen(root) + 2 > sizeof(self->root) || strstr(root, "//") ||
        root[0] == '/' || root[strlen(root) - 1] == '/')
        return idem__fail(err, IDEM_ERR_INVALID,
                          "zookeeper: \"/%s\" is not a path", root);
    snprintf(self->root, sizeof(self->root), "/%s", root);
    idem_buf_init(&hosts, 65536);
    for (size_t i = 0; i < self->url.host_count; i++)
        idem_buf_printf(&hosts, "%s%s:%d", i ? "," : "",
                        self->url.hosts[i].name, self->url.hosts[i].port);
    self->hosts = (char *)hosts.data;
    return hosts.lacks
               ? idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory")
               : IDEM_OK;
}

static enum idem_status
parse_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;

    memset(self->shard_versions, 0xff, sizeof(self->shard_versions));
    self->base.max_record = RECORD_MAX;
    pthread_mutex_init(&self->lock, NULL);
    idem__cond_init(&self->change);
    self->versions = calloc(ZK_VERSIONS, sizeof(*self->versions));
    if (!self->versions)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    return read_url(self, url, err);
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;
    enum idem_status status = parse_store(store, url, err);

    self->acl = self->url.user ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
    /* Connecting to a server that has just been started takes longer. */
    if (status == IDEM_OK)
        status = idem__zk_ready(self, err);
    for (int i = 1; i < OPEN_TRIES && status == IDEM_ERR_UNAVAILABLE; i++) {
        self->try_after_us = 0;
        status = idem__zk_ready(self, err);
    }
    return status;
}

const struct idem_store_type idem__zookeeper_store = {
    .scheme = "zookeeper",
    .size = sizeof(struct zk_store),
    .parse = parse_store,
    .open = open_store,
    .swap = idem__zk_swap,
    .load = load_batch,
    .scan = idem__zk_scan,
    .now = read_clock,
    .tend = tend,
    .watch = idem__zk_watch,
    .figures = figures,
    .close = close_store,
};
