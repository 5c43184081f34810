/*
 * memory.c - the store memory:, which keeps records only while this process
 * runs.
 *
 * It is the simplest store, and the model that tests compare the others with.
 * It is a hash table with chains, which doubles when it gets full; each record
 * is one allocation. Expired records are removed a few chains at a time.
 */
#include "store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CHAINS 1024
#define SWEEP_CHAINS 256

struct node {
    struct node *next;
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record record; /* its bytes follow the node */
};

struct memory_store {
    struct idem_store base;
    int64_t wall_at_open_us, boot_at_open_us;
    struct node **chains;
    size_t chain_count; /* a power of two */
    size_t count;
    size_t sweep_at;
};

static size_t
chain_of(const struct memory_store *self, const uint8_t *key)
{
    uint64_t hash;

    memcpy(&hash, key, sizeof(hash));
    return (size_t)hash & (self->chain_count - 1);
}

static struct node **
find(const struct memory_store *self, const uint8_t *key)
{
    struct node **at = &self->chains[chain_of(self, key)];

    while (*at && memcmp((*at)->key, key, IDEM_KEY_LEN) != 0)
        at = &(*at)->next;
    return at;
}

static struct node *
make_node(const uint8_t *key, const struct idem_record *r)
{
    struct node *node = malloc(sizeof(*node) + idem__record_bytes(r));

    if (!node)
        return NULL;
    node->next = NULL;
    memcpy(node->key, key, IDEM_KEY_LEN);
    idem__record_copy(&node->record, r, node + 1);
    return node;
}

static void
grow(struct memory_store *self)
{
    size_t old_count = self->chain_count;
    struct node **old = self->chains;
    struct node **chains = calloc(old_count * 2, sizeof(*chains));

    if (!chains)
        return; /* longer chains are only slower */
    self->chains = chains;
    self->chain_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++) {
        while (old[i]) {
            struct node *node = old[i];
            size_t chain = chain_of(self, node->key);

            old[i] = node->next;
            node->next = chains[chain];
            chains[chain] = node;
        }
    }
    free(old);
}

static void
replace(struct memory_store *self, struct node **at, struct node *node)
{
    struct node *old = *at;

    if (node)
        node->next = old ? old->next : NULL;
    *at = node ? node : old ? old->next : NULL;
    self->count += (node != NULL);
    self->count -= (old != NULL);
    free(old);
}

static enum idem_status
swap_one(struct memory_store *self, struct idem_swap *swap,
         struct idem_arena *arena, struct idem_error *err)
{
    struct node **at = find(self, swap->key);
    uint64_t rev = *at ? (*at)->record.rev : 0;
    struct node *node = NULL;

    swap->outcome = IDEM_SWAP_NOT_STORED;
    if (swap->record && rev == swap->record->rev) {
        swap->outcome = IDEM_SWAP_STORED;
        return IDEM_OK;
    }
    if (rev != swap->expected) {
        swap->found.state = IDEM_STATE_ABSENT;
        if (*at && !idem_arena_record(arena, &(*at)->record, &swap->found))
            return idem__fail(err, IDEM_ERR_MEMORY, "memory: out of memory");
        swap->outcome = IDEM_SWAP_REFUSED;
        return IDEM_OK;
    }
    if (swap->record) {
        node = make_node(swap->key, swap->record);
        if (!node)
            return idem__fail(err, IDEM_ERR_MEMORY, "memory: out of memory");
    }
    replace(self, at, node);
    if (self->count > self->chain_count)
        grow(self);
    swap->outcome = IDEM_SWAP_STORED;
    return IDEM_OK;
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct memory_store *self = (struct memory_store *)store;
    enum idem_status status = IDEM_OK;

    for (size_t i = 0; i < count; i++) {
        enum idem_status one = swap_one(self, &swaps[i], arena, err);

        if (status == IDEM_OK)
            status = one;
    }
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct memory_store *self = (struct memory_store *)store;

    for (size_t i = 0; i < count; i++) {
        struct node *node = *find(self, loads[i].key);
        struct idem_record record;

        loads[i].record.state = IDEM_STATE_ABSENT;
        if (!node)
            continue;
        record = node->record;
        if (!loads[i].with_result)
            record.result = (struct idem_bytes){NULL, 0};
        if (!idem_arena_record(arena, &record, &loads[i].record))
            return idem__fail(err, IDEM_ERR_MEMORY, "memory: out of memory");
    }
    return IDEM_OK;
}

/* The cursor is the next chain as a number in a table of 2^32 chains, so that
 * it stays valid when the table grows. Chains are visited in the order of their
 * reversed bits. */
static uint32_t
reverse(uint32_t bits)
{
    uint32_t out = 0;

    for (int i = 0; i < 32; i++)
        out |= ((bits >> i) & 1) << (31 - i);
    return out;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_query *query,
             struct idem_error *err)
{
    struct memory_store *self = (struct memory_store *)store;
    unsigned long long place;
    uint64_t stride = (UINT64_C(1) << 32) / self->chain_count;
    size_t seen = 0;
    char *end;

    place = strtoull(query->cursor->text, &end, 10);
    if (*end != 0 || end == query->cursor->text || place >= UINT64_C(1) << 32)
        return idem__query_bad_cursor(query, err);
    for (; place < UINT64_C(1) << 32 && seen < query->count; place += stride) {
        size_t chain = reverse((uint32_t)place) & (self->chain_count - 1);

        for (struct node *node = self->chains[chain]; node; node = node->next) {
            seen++;
            if (!idem__query_give(query, &node->record))
                return IDEM_OK;
        }
    }
    if (place >= UINT64_C(1) << 32)
        place = 0;
    snprintf(query->cursor->text, sizeof(query->cursor->text), "%llu", place);
    return IDEM_OK;
}

/* The wall clock at open, advanced by a clock that cannot be set. */
static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct memory_store *self = (struct memory_store *)store;

    (void)err;
    *now_us = self->wall_at_open_us + idem__store_boot_us(&self->base) -
              self->boot_at_open_us;
    return IDEM_OK;
}

static void
tend(struct idem_store *store, int64_t drop_ms)
{
    struct memory_store *self = (struct memory_store *)store;

    for (size_t i = 0; i < SWEEP_CHAINS && i < self->chain_count; i++) {
        struct node **at =
            &self->chains[self->sweep_at++ & (self->chain_count - 1)];

        while (*at) {
            int64_t drop_at = idem__record_drop_at(&(*at)->record);

            if (drop_at != 0 && drop_at < drop_ms)
                replace(self, at, NULL);
            else
                at = &(*at)->next;
        }
    }
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    each(arg, "memory_records", (double)((struct memory_store *)store)->count);
}

static void
close_store(struct idem_store *store)
{
    struct memory_store *self = (struct memory_store *)store;

    for (size_t i = 0; i < self->chain_count; i++) {
        while (self->chains[i])
            replace(self, &self->chains[i], NULL);
    }
    free(self->chains);
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct memory_store *self = (struct memory_store *)store;

    if (strcmp(url, "memory:") != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\": nothing follows memory: in a URL", url);
    self->chains = calloc(FIRST_CHAINS, sizeof(*self->chains));
    if (!self->chains)
        return idem__fail(err, IDEM_ERR_MEMORY, "memory: out of memory");
    self->wall_at_open_us = self->base.clocks->wall_us(self->base.clocks->arg);
    self->boot_at_open_us = idem__store_boot_us(&self->base);
    self->chain_count = FIRST_CHAINS;
    return IDEM_OK;
}

const struct idem_store_type idem__memory_store = {
    .scheme = "memory",
    .size = sizeof(struct memory_store),
    .local = true,
    .parse = open_store,
    .open = open_store,
    .swap = swap_batch,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .figures = figures,
    .close = close_store,
};
