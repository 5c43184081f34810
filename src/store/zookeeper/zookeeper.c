/*
 * zookeeper.c - zookeeper://: records in ZooKeeper, one node each.
 *
 *   zookeeper://[user:password@]host[:port][,host[:port]...][/root][?options]
 *
 *   connect_ms=1000, timeout_ms=2000, session_ms=6000
 *
 * ZooKeeper compares versions, the contract compares revs: a record is read
 * with its node's version, and written if the version is still that. A version
 * starts at 0 again when a node is deleted and made anew, so a write also
 * checks that nothing was deleted in the node's shard since: whoever deletes
 * changes the shard's version in the same step.
 *
 *   absent  ── create ──▶ stored, or there is one: ─┐
 *   rev     ── read ──▶ another rev: refused        │
 *               ▲  └──▶ this rev: change ──▶ stored │
 *               └───────── version differs ◀────────┘
 *
 * A create whose answer was lost is found again by its rev.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_PORT 2181
#define ROUNDS_MAX 8
#define CHUNK_COUNT 256
#define CHUNK_LEN ((size_t)8 << 20)

/* A packet has jute.maxbuffer bytes, 1 MiB less one, with names and numbers. */
#define RECORD_MAX (1000 * 1024)

/* What is to be done next with one swap. */
enum next { CREATE, READ, CHANGE, MAKE_SHARD, NOTHING };

struct element {
    enum next next;
    uint8_t *value;
    size_t value_len;
    int version, shard_version;
};

struct chunk {
    struct zk_store *self;
    struct idem_swap *swaps;
    struct element *elements;
    size_t count;
    struct idem_arena *arena;
    enum idem_status status;
    struct idem_error *err;
};

static void
blame(struct chunk *chunk, enum idem_status status, const char *what)
{
    if (chunk->status == IDEM_OK)
        chunk->status = idem__fail(chunk->err, status, "zookeeper: %s", what);
}

static void
end(struct chunk *chunk, size_t i, enum idem_outcome outcome)
{
    chunk->elements[i].next = NOTHING;
    chunk->swaps[i].outcome = outcome;
    chunk->self->lost += outcome == IDEM_SWAP_LOST;
}

/* ---- answers --------------------------------------------------------- */

/* Read what a get brought; ABSENT if there is no node. */
static enum idem_status
read_call(const struct zk_call *call, const uint8_t *key,
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

static void
after_read(struct chunk *chunk, size_t i, const struct zk_call *call,
           const struct zk_call *shard)
{
    struct element *element = &chunk->elements[i];
    struct idem_swap *swap = &chunk->swaps[i];
    struct idem_error why;
    enum idem_status status =
        read_call(call, swap->key, chunk->arena, &swap->found, &why);
    uint64_t rev = swap->found.rev;

    if (status == IDEM_OK && call->rc == ZOK && shard->rc != ZOK)
        status = idem__fail(&why, IDEM_ERR_UNAVAILABLE, "zookeeper: %s",
                            zerror(shard->rc));
    if (status != IDEM_OK) {
        if (chunk->status == IDEM_OK)
            chunk->status = idem__fail(chunk->err, status, "%s", why.text);
        end(chunk, i, IDEM_SWAP_NOT_STORED);
    } else if (swap->found.state == IDEM_STATE_ABSENT) {
        if (swap->expected == 0 && swap->record)
            element->next = CREATE; /* it went away meanwhile */
        else
            end(chunk, i,
                swap->expected == 0 ? IDEM_SWAP_STORED : IDEM_SWAP_REFUSED);
    } else if (swap->record && rev == swap->record->rev) {
        end(chunk, i, IDEM_SWAP_STORED);
    } else if (swap->expected == 0 || rev != swap->expected) {
        end(chunk, i, IDEM_SWAP_REFUSED);
    } else {
        element->version = call->stat.version;
        element->shard_version = shard->stat.version;
        element->next = CHANGE;
    }
}

static void
after_write(struct chunk *chunk, size_t i, int rc)
{
    struct element *element = &chunk->elements[i];

    if (rc == ZOK) {
        end(chunk, i, IDEM_SWAP_STORED);
    } else if (zk_is_loss(rc)) {
        blame(chunk, IDEM_ERR_LOST, zerror(rc));
        end(chunk, i, IDEM_SWAP_LOST);
    } else if (rc == ZNODEEXISTS || rc == ZBADVERSION) {
        element->next = READ;
    } else if (rc == ZNONODE) {
        element->next = element->next == CREATE ? MAKE_SHARD : READ;
    } else {
        blame(chunk, IDEM_ERR_UNAVAILABLE,
              rc == ZINVALIDSTATE ? "the session is over" : zerror(rc));
        end(chunk, i, IDEM_SWAP_NOT_STORED);
    }
}

/* ---- rounds ---------------------------------------------------------- */

/* `deletes` were sent before it in this round, in its shard: if they succeed,
 * the shard's version is that much higher. */
static void
send_element(struct chunk *chunk, size_t i, int deletes, struct zk_round *round)
{
    const struct element *element = &chunk->elements[i];
    const struct idem_swap *swap = &chunk->swaps[i];
    struct zk_call *call = &round->calls[1 + 2 * i];
    struct idem_bytes value = {element->value, element->value_len};
    char path[ZK_PATH_MAX];

    zk_record_path(chunk->self, swap->key, path);
    switch (element->next) {
    case CREATE:
        zk_create(chunk->self, call, path, value);
        break;
    case READ:
        zk_get(chunk->self, call, path);
        break;
    case CHANGE:
        zk_change(chunk->self, call, swap->key,
                  element->shard_version + deletes, element->version, value);
        break;
    case MAKE_SHARD:
        zk_shard_path(chunk->self, swap->key[0], path);
        zk_create(chunk->self, call, path, (struct idem_bytes){"", 0});
        break;
    case NOTHING:
        break;
    }
}

/* Keys are sorted, so that swaps of one shard stand together. The first that
 * reads asks for the shard's version; asked[] says which one did. That is read
 * before the records are: what is deleted after it shows in it. */
static void
send_shards(struct chunk *chunk, struct zk_round *round, size_t *asked)
{
    size_t last = chunk->count;

    for (size_t i = 0; i < chunk->count; i++) {
        char path[ZK_PATH_MAX];

        if (chunk->elements[i].next != READ)
            continue;
        if (last == chunk->count)
            zk_sync(chunk->self, &round->calls[0]);
        if (last == chunk->count ||
            chunk->swaps[last].key[0] != chunk->swaps[i].key[0]) {
            last = i;
            zk_shard_path(chunk->self, chunk->swaps[i].key[0], path);
            zk_exists(chunk->self, &round->calls[2 + 2 * i], path);
        }
        asked[i] = last;
    }
}

static void
take_answers(struct chunk *chunk, struct zk_round *round, const size_t *asked)
{
    for (size_t i = 0; i < chunk->count; i++) {
        struct zk_call *call = &round->calls[1 + 2 * i];

        switch (chunk->elements[i].next) {
        case READ:
            if (round->calls[0].rc != ZOK)
                call->rc = round->calls[0].rc; /* it may be old news */
            after_read(chunk, i, call, &round->calls[2 + 2 * asked[i]]);
            break;
        case CREATE:
        case CHANGE:
            after_write(chunk, i, call->rc);
            break;
        case MAKE_SHARD:
            if (call->rc == ZOK || call->rc == ZNODEEXISTS)
                chunk->elements[i].next = CREATE;
            else {
                blame(chunk, IDEM_ERR_UNAVAILABLE, zerror(call->rc));
                end(chunk, i, IDEM_SWAP_NOT_STORED);
            }
            break;
        case NOTHING:
            break;
        }
    }
}

/* False: all is done. */
static bool
run_round(struct chunk *chunk)
{
    struct zk_round *round;
    size_t *asked, open = 0;
    int deletes = 0;

    for (size_t i = 0; i < chunk->count; i++)
        open += chunk->elements[i].next != NOTHING;
    if (open == 0)
        return false;
    round = zk_round_new(1 + 2 * chunk->count);
    asked = calloc(chunk->count, sizeof(*asked));
    if (!round || !asked) {
        blame(chunk, IDEM_ERR_MEMORY, "out of memory");
        zk_round_leave(round);
        free(asked);
        return false;
    }
    send_shards(chunk, round, asked);
    for (size_t i = 0; i < chunk->count; i++) {
        if (i > 0 && chunk->swaps[i - 1].key[0] != chunk->swaps[i].key[0])
            deletes = 0;
        send_element(chunk, i, deletes, round);
        deletes += chunk->elements[i].next == CHANGE && !chunk->swaps[i].record;
    }
    zk_round_wait(chunk->self, round);
    take_answers(chunk, round, asked);
    zk_round_leave(round);
    free(asked);
    return true;
}

static bool
prepare(struct chunk *chunk)
{
    chunk->elements =
        idem_arena_take(chunk->arena, chunk->count * sizeof(struct element));
    if (!chunk->elements)
        return false;
    for (size_t i = 0; i < chunk->count; i++) {
        const struct idem_swap *swap = &chunk->swaps[i];
        struct element *element = &chunk->elements[i];

        *element = (struct element){
            .next = swap->expected == 0 && swap->record ? CREATE : READ};
        if (!swap->record)
            continue;
        element->value_len = idem__encoded_len(swap->record);
        element->value = idem_arena_take(chunk->arena, element->value_len);
        if (!element->value)
            return false;
        idem__encode(swap->record, element->value);
    }
    return true;
}

static void
run_chunk(struct chunk *chunk)
{
    if (!prepare(chunk)) {
        blame(chunk, IDEM_ERR_MEMORY, "out of memory");
        return;
    }
    for (int round = 0; round < ROUNDS_MAX; round++) {
        if (!run_round(chunk))
            return;
    }
    for (size_t i = 0; i < chunk->count; i++) {
        if (chunk->elements[i].next != NOTHING) {
            blame(chunk, IDEM_ERR_UNAVAILABLE, "others write all the time");
            end(chunk, i, IDEM_SWAP_NOT_STORED);
        }
    }
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;
    struct chunk chunk = {.self = self, .arena = arena, .err = err};
    enum idem_status status;

    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = IDEM_SWAP_NOT_STORED;
    for (size_t start = 0; start < count; start += chunk.count) {
        size_t len = 0;

        chunk.swaps = swaps + start;
        for (chunk.count = 0; start + chunk.count < count &&
                              chunk.count < CHUNK_COUNT && len < CHUNK_LEN;
             chunk.count++) {
            const struct idem_record *record =
                swaps[start + chunk.count].record;

            len += record ? idem__encoded_len(record) : 0;
        }
        status = zk_ready(self, chunk.status == IDEM_OK ? err : NULL);
        if (status == IDEM_OK)
            run_chunk(&chunk);
        else if (chunk.status == IDEM_OK)
            chunk.status = status;
    }
    return chunk.status;
}

/* ---- load ------------------------------------------------------------ */

static enum idem_status
load_chunk(struct zk_store *self, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct zk_round *round = zk_round_new(1 + count);
    enum idem_status status = IDEM_OK;
    char path[ZK_PATH_MAX];

    if (!round)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    zk_sync(self, &round->calls[0]);
    for (size_t i = 0; i < count; i++) {
        zk_record_path(self, loads[i].key, path);
        zk_get(self, &round->calls[1 + i], path);
    }
    zk_round_wait(self, round);
    if (round->calls[0].rc != ZOK)
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: %s",
                            zerror(round->calls[0].rc));
    for (size_t i = 0; i < count && status == IDEM_OK; i++)
        status = read_call(&round->calls[1 + i], loads[i].key, arena,
                           &loads[i].record, err);
    zk_round_leave(round);
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;
    enum idem_status status = zk_ready(self, err);

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

/* The leader writes its time into every change: change something. */
static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;
    enum idem_status status = zk_ready(self, err);
    struct zk_round *round;
    char path[ZK_PATH_MAX];

    if (status != IDEM_OK)
        return status;
    round = zk_round_new(1);
    if (!round)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    snprintf(path, sizeof(path), "%s/clock", self->root);
    zk_set(self, &round->calls[0], path);
    zk_round_wait(self, round);
    if (round->calls[0].rc == ZOK) {
        *now_us = self->clock_us = round->calls[0].stat.mtime * 1000;
        self->clock_at_us = zk_now_us();
    } else {
        self->rooted = false; /* perhaps somebody removed it */
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: clock: %s",
                            zerror(round->calls[0].rc));
    }
    zk_round_leave(round);
    return status;
}

static void
tend(struct idem_store *store)
{
    zk_sweep((struct zk_store *)store);
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

    if (!self)
        return;
    zk_hang_up(self);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->change);
    idem__url_clear(&self->url);
    free(self->hosts);
    free(self);
}

static enum idem_status
read_url(struct zk_store *self, const char *url, struct idem_error *err)
{
    static const char *const known[] = {"connect_ms", "timeout_ms",
                                        "session_ms", NULL};
    enum idem_status status =
        idem__url_parse(url, DEFAULT_PORT, known, &self->url, err);
    const char *root;
    struct idem_buf hosts;

    if (status == IDEM_OK)
        status = idem__url_number(&self->url, "connect_ms", 1, 60000, 1000,
                                  &self->connect_ms, err);
    if (status == IDEM_OK)
        status = idem__url_number(&self->url, "timeout_ms", 1, 60000, 2000,
                                  &self->timeout_ms, err);
    if (status == IDEM_OK)
        status = idem__url_number(&self->url, "session_ms", 1000, 60000, 6000,
                                  &self->session_ms, err);
    if (status != IDEM_OK)
        return status;
    root = self->url.path ? self->url.path : "idem";
    if (strlen(root) + 2 > sizeof(self->root) || strstr(root, "//") ||
        root[strlen(root) - 1] == '/')
        return idem__fail(err, IDEM_ERR_INVALID,
                          "zookeeper: \"/%s\" is not a path", root);
    snprintf(self->root, sizeof(self->root), "/%s", root);
    idem_buf_init(&hosts, 65536);
    for (size_t i = 0; i < self->url.host_count; i++) {
        if (!idem_buf_printf(&hosts, "%s%s:%d", i ? "," : "",
                             self->url.hosts[i].name, self->url.hosts[i].port))
            status =
                idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    }
    self->hosts = (char *)hosts.data;
    return status;
}

static enum idem_status
open_store(const char *url, const struct idem_store_options *options,
           struct idem_store **store, struct idem_error *err)
{
    struct zk_store *self = calloc(1, sizeof(*self));
    pthread_condattr_t attr;
    enum idem_status status;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    self->base.type = &idem__zookeeper_store;
    self->base.max_record = RECORD_MAX;
    self->options = *options;
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&self->change, &attr);
    pthread_condattr_destroy(&attr);
    status = read_url(self, url, err);
    self->acl = self->url.user ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
    if (status == IDEM_OK)
        status = zk_ready(self, err);
    if (status != IDEM_OK) {
        close_store(&self->base);
        return status;
    }
    *store = &self->base;
    return IDEM_OK;
}

const struct idem_store_type idem__zookeeper_store = {
    .scheme = "zookeeper",
    .open = open_store,
    .swap = swap_batch,
    .load = load_batch,
    .scan = zk_scan,
    .now = read_clock,
    .tend = tend,
    .figures = figures,
    .close = close_store,
};
