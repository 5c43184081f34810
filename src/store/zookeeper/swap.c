/*
 * swap.c - compare and swap in ZooKeeper, in rounds.
 *
 * ZooKeeper compares versions of nodes, but a store compares revs. So a record
 * is read together with its node's version, and written if the version is still
 * the same. When a node is deleted and created again, its version starts at 0
 * again. So a write also checks that no node of the shard was deleted since;
 * every delete changes the shard's version in the same transaction.
 *
 *   absent  ── create ──▶ stored, or there is one: ─┐
 *   rev     ── read ──▶ another rev: refused        │
 *               ▲  └──▶ this rev: change ──▶ stored │
 *               └───────── version differs ◀────────┘
 *
 * A create whose answer was lost is recognised by its rev.
 *
 * This store need not read what it wrote itself: it knows the version, and the
 * shard's version from before the write. If nothing was deleted in the shard
 * since then, that version of the node can only be the written record.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 8
#define CHUNK_COUNT 256
#define CHUNK_LEN ((size_t)8 << 20)

/* The next step of one swap. */
enum next { CREATE, READ, CHANGE, MAKE_SHARD, NOTHING };

struct zk_element {
    enum next next;
    uint8_t *value;
    size_t value_len;
    int version, shard_version;
};

struct chunk {
    struct zk_store *self;
    struct idem_swap *swaps;
    struct zk_element *elements;
    size_t count;
    struct idem_arena *arena;
    enum idem_status status;
    struct idem_error *err;
};

/* ---- known versions -------------------------------------------------- */

static struct zk_version *
place_of(struct zk_store *self, const uint8_t *key)
{
    return &self->versions[(key[30] | key[31] << 8) % ZK_VERSIONS];
}

static void
forget(struct zk_store *self, const uint8_t *key)
{
    struct zk_version *known = place_of(self, key);

    if (memcmp(known->key, key, IDEM_KEY_LEN) == 0)
        known->rev = 0;
}

static void
remember(struct zk_store *self, const uint8_t *key, uint64_t rev, int version,
         int shard_version)
{
    struct zk_version *known = place_of(self, key);

    memcpy(known->key, key, IDEM_KEY_LEN);
    known->rev = shard_version < 0 ? 0 : rev;
    known->version = version;
    known->shard_version = shard_version;
}

/* ---- outcomes -------------------------------------------------------- */

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

static void
after_read(struct chunk *chunk, size_t i, const struct zk_call *call,
           const struct zk_call *shard)
{
    struct zk_element *element = &chunk->elements[i];
    struct idem_swap *swap = &chunk->swaps[i];
    struct idem_error why;
    enum idem_status status =
        idem__zk_read(call, swap->key, chunk->arena, &swap->found, &why);
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
            element->next = CREATE; /* the node was deleted meanwhile */
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
    struct zk_element *element = &chunk->elements[i];
    const struct idem_swap *swap = &chunk->swaps[i];
    bool created = element->next == CREATE;

    forget(chunk->self, swap->key);
    if (rc == ZOK) {
        if (swap->record)
            remember(chunk->self, swap->key, swap->record->rev,
                     created ? 0 : element->version + 1,
                     element->shard_version);
        else
            chunk->self->shard_versions[swap->key[0]] = -1;
        end(chunk, i, IDEM_SWAP_STORED);
    } else if (idem__zk_is_loss(rc)) {
        blame(chunk, IDEM_ERR_LOST, zerror(rc));
        end(chunk, i, IDEM_SWAP_LOST);
    } else if (rc == ZNODEEXISTS || rc == ZBADVERSION) {
        element->next = READ;
    } else if (rc == ZNONODE) {
        element->next = created ? MAKE_SHARD : READ;
    } else {
        blame(chunk, IDEM_ERR_UNAVAILABLE,
              rc == ZINVALIDSTATE ? "the session is over" : zerror(rc));
        end(chunk, i, IDEM_SWAP_NOT_STORED);
    }
}

/* ---- rounds ---------------------------------------------------------- */

/* `deletes` is the number of deletes in its shard that were sent before it in
 * this round. If they succeed, the shard's version is that much higher. */
static void
send_element(struct chunk *chunk, size_t i, int deletes, struct zk_round *round)
{
    const struct zk_element *element = &chunk->elements[i];
    const struct idem_swap *swap = &chunk->swaps[i];
    struct zk_call *call = &round->calls[1 + 2 * i];
    struct idem_bytes value = {element->value, element->value_len};
    char path[ZK_PATH_MAX];

    idem__zk_record_path(chunk->self, swap->key, path);
    switch (element->next) {
    case CREATE:
        idem__zk_create(chunk->self, call, path, value);
        break;
    case READ:
        idem__zk_get(chunk->self, call, path);
        break;
    case CHANGE:
        idem__zk_change(chunk->self, call, swap->key,
                        element->shard_version + deletes, element->version,
                        value);
        break;
    case MAKE_SHARD:
        idem__zk_shard_path(chunk->self, swap->key[0], path);
        idem__zk_create(chunk->self, call, path, (struct idem_bytes){"", 0});
        break;
    case NOTHING:
        break;
    }
}

static bool
wants_shard(const struct chunk *chunk, size_t i)
{
    const struct zk_element *element = &chunk->elements[i];

    return element->next == READ ||
           (element->next == CREATE &&
            chunk->self->shard_versions[chunk->swaps[i].key[0]] < 0);
}

/* Keys are sorted, so swaps of one shard are adjacent. The first swap that
 * needs the shard's version requests it; asked[] says which one did. The
 * version is read before the records are read or created, so that later deletes
 * are noticed. */
static void
send_shards(struct chunk *chunk, struct zk_round *round, size_t *asked)
{
    size_t last = chunk->count;
    bool reads = false;

    for (size_t i = 0; i < chunk->count; i++)
        reads |= chunk->elements[i].next == READ;
    if (reads)
        idem__zk_sync(chunk->self, &round->calls[0]);
    for (size_t i = 0; i < chunk->count; i++) {
        char path[ZK_PATH_MAX];

        asked[i] = chunk->count;
        if (!wants_shard(chunk, i))
            continue;
        if (last == chunk->count ||
            chunk->swaps[last].key[0] != chunk->swaps[i].key[0]) {
            last = i;
            idem__zk_shard_path(chunk->self, chunk->swaps[i].key[0], path);
            idem__zk_exists(chunk->self, &round->calls[2 + 2 * i], path);
        }
        asked[i] = last;
    }
}

/* The shard's version that was known, or requested, before the node was
 * created. */
static void
note_shards(struct chunk *chunk, struct zk_round *round, const size_t *asked)
{
    for (size_t i = 0; i < chunk->count; i++) {
        int *known = &chunk->self->shard_versions[chunk->swaps[i].key[0]];
        const struct zk_call *call;

        if (asked[i] < chunk->count) {
            call = &round->calls[2 + 2 * asked[i]];
            *known = call->rc == ZOK ? call->stat.version : -1;
        }
        if (chunk->elements[i].next == CREATE)
            chunk->elements[i].shard_version = *known;
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
                call->rc = round->calls[0].rc; /* the read may be outdated */
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

/* Returns false when all swaps are done. */
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
    round = idem__zk_round_new(1 + 2 * chunk->count);
    asked = calloc(chunk->count, sizeof(*asked));
    if (!round || !asked) {
        blame(chunk, IDEM_ERR_MEMORY, "out of memory");
        idem__zk_round_leave(round);
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
    idem__zk_round_wait(chunk->self, round);
    note_shards(chunk, round, asked);
    take_answers(chunk, round, asked);
    idem__zk_round_leave(round);
    free(asked);
    return true;
}

static bool
prepare(struct chunk *chunk)
{
    chunk->elements =
        idem_arena_take(chunk->arena, chunk->count * sizeof(struct zk_element));
    if (!chunk->elements)
        return false;
    for (size_t i = 0; i < chunk->count; i++) {
        const struct idem_swap *swap = &chunk->swaps[i];
        const struct zk_version *known = place_of(chunk->self, swap->key);
        struct zk_element *element = &chunk->elements[i];

        *element = (struct zk_element){
            .next = swap->expected == 0 && swap->record ? CREATE : READ};
        if (swap->expected != 0 && known->rev == swap->expected &&
            memcmp(known->key, swap->key, IDEM_KEY_LEN) == 0) {
            element->next = CHANGE;
            element->version = known->version;
            element->shard_version = known->shard_version;
        }
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

enum idem_status
idem__zk_swap(struct idem_store *store, struct idem_swap *swaps, size_t count,
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
        status = idem__zk_ready(self, chunk.status == IDEM_OK ? err : NULL);
        if (status == IDEM_OK)
            run_chunk(&chunk);
        else if (chunk.status == IDEM_OK)
            chunk.status = status;
    }
    return chunk.status;
}
