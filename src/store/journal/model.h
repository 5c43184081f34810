/*
 * model.h - makes random batches on a journal and checks its contents
 * afterwards.
 *
 * For every key the model knows the rev that was acknowledged last and, while a
 * batch is being written or its outcome was lost, the rev that may be there
 * instead. After any crash or failure one of the two must be there, intact.
 */
#ifndef IDEM__JOURNAL_MODEL_H
#define IDEM__JOURNAL_MODEL_H

#include "testing.h"

#define MODEL_KEYS 48
#define MODEL_BATCH 12

struct model {
    uint64_t acked[MODEL_KEYS];  /* rev; 0: absent */
    uint64_t maybe[MODEL_KEYS];  /* rev that may be there instead ... */
    bool open[MODEL_KEYS];       /* ... if this is set */
    int64_t expires[MODEL_KEYS]; /* ms; 0: never */
    int64_t maybe_expires[MODEL_KEYS];
    uint64_t seed, last_rev;
    int64_t now_ms; /* time of the fake clock */
    bool expiring;  /* some records live 30 s */
    size_t stored, lost, not_stored, refused;
};

/* A clock that only the model moves. */
static UNUSED int64_t
model_us(void *arg)
{
    return ((struct model *)arg)->now_ms * 1000;
}

static UNUSED bool
model_synced(void *arg)
{
    (void)arg;
    return true;
}

static UNUSED struct idem_clocks
model_clocks(struct model *model)
{
    return (struct idem_clocks){
        .wall_us = model_us,
        .boot_us = model_us,
        .arg = model,
        .synced = model_synced,
    };
}

static UNUSED void
model_init(struct model *model, uint64_t seed)
{
    memset(model, 0, sizeof(*model));
    model->seed = seed;
    model->now_ms = 1700000000000;
}

struct model_swaps {
    struct test_record records[MODEL_BATCH];
    struct idem_swap swaps[MODEL_BATCH];
    size_t keys[MODEL_BATCH];
    size_t count;
};

static UNUSED int
model_by_key(const void *a, const void *b)
{
    return memcmp(((const struct idem_swap *)a)->key,
                  ((const struct idem_swap *)b)->key, IDEM_KEY_LEN);
}

static UNUSED void
model_one(struct model *model, struct model_swaps *s, size_t key)
{
    struct test_record *t = &s->records[s->count];
    struct idem_swap *swap = &s->swaps[s->count];
    uint64_t dice = test_random(&model->seed);
    bool delete = model->acked[key] && dice % 7 == 0;
    enum idem_state state =
        dice % 3 == 0 ? IDEM_STATE_EXECUTING : IDEM_STATE_SUCCEEDED;

    test_make(t, key, state, ++model->last_rev, dice % 5 * 150);
    t->record.created = t->record.updated = model->now_ms;
    if (state == IDEM_STATE_EXECUTING)
        t->record.lease_until = model->now_ms + 30000;
    t->record.expires = model->now_ms + 86400000;
    if (model->expiring && dice % 4 == 0)
        t->record.expires = model->now_ms + 30000;
    memset(swap, 0, sizeof(*swap));
    memcpy(swap->key, t->key, IDEM_KEY_LEN);
    swap->expected = model->acked[key];
    swap->record = delete ? NULL : &t->record;
    model->open[key] = true;
    model->maybe[key] = delete ? 0 : t->record.rev;
    model->maybe_expires[key] =
        delete || state == IDEM_STATE_EXECUTING ? 0 : t->record.expires;
    s->keys[s->count++] = key;
}

/* A random batch on keys whose state is known. */
static UNUSED void
model_batch(struct model *model, struct model_swaps *s)
{
    size_t wanted = 1 + test_random(&model->seed) % MODEL_BATCH;

    s->count = 0;
    for (size_t tries = 0; s->count < wanted && tries < 4 * MODEL_BATCH;
         tries++) {
        size_t key = test_random(&model->seed) % MODEL_KEYS;

        if (!model->open[key])
            model_one(model, s, key);
    }
    qsort(s->swaps, s->count, sizeof(s->swaps[0]), model_by_key);
}

static UNUSED size_t
model_key_of(const struct model_swaps *s, const struct idem_swap *swap)
{
    for (size_t i = 0; i < s->count; i++) {
        if (memcmp(s->records[i].key, swap->key, IDEM_KEY_LEN) == 0)
            return s->keys[i];
    }
    fail_msg("a swap of no key");
    return 0;
}

static UNUSED void
model_is(struct model *model, size_t key, bool maybe)
{
    if (maybe) {
        model->acked[key] = model->maybe[key];
        model->expires[key] = model->maybe_expires[key];
    }
    model->open[key] = false;
}

static UNUSED bool
model_expired(const struct model *model, int64_t expires)
{
    return expires != 0 && expires < model->now_ms;
}

/* Note the outcomes of a batch. */
static UNUSED void
model_learn(struct model *model, struct model_swaps *s)
{
    for (size_t i = 0; i < s->count; i++) {
        struct idem_swap *swap = &s->swaps[i];
        size_t key = model_key_of(s, swap);

        switch (swap->outcome) {
        case IDEM_SWAP_STORED:
            model->stored++;
            model_is(model, key, true);
            break;
        case IDEM_SWAP_NOT_STORED:
            model->not_stored++;
            model_is(model, key, false);
            break;
        case IDEM_SWAP_LOST:
            model->lost++; /* its outcome stays unknown */
            break;
        case IDEM_SWAP_REFUSED:
            /* Refused only because the expected record has expired
             * meanwhile. */
            assert_true(model_expired(model, model->expires[key]));
            assert_int_equal(swap->found.state, IDEM_STATE_ABSENT);
            model->refused++;
            model->acked[key] = 0;
            model->expires[key] = 0;
            model->open[key] = false;
            break;
        default:
            fail_msg("no outcome");
        }
    }
}

/* Compare the journal with the model without changing the model. Returns NULL,
 * or what is wrong. */
static UNUSED const char *
model_flaw(const struct model *model, struct idem_store *store)
{
    static char text[200];

    for (size_t key = 0; key < MODEL_KEYS; key++) {
        uint64_t rev = test_rev(store, key);
        bool gone = rev == 0 && model_expired(model, model->expires[key]);

        if (rev == model->acked[key] || gone)
            continue;
        if (model->open[key] &&
            (rev == model->maybe[key] ||
             (rev == 0 && model_expired(model, model->maybe_expires[key]))))
            continue;
        snprintf(text, sizeof(text),
                 "key %zu: rev %llu is there, %llu was acknowledged%s", key,
                 (unsigned long long)rev, (unsigned long long)model->acked[key],
                 model->open[key] ? ", another on its way" : "");
        return text;
    }
    return NULL;
}

/* Take the current contents as the state of all keys with an unknown
 * outcome. */
static UNUSED void
model_resolve(struct model *model, struct idem_store *store)
{
    for (size_t key = 0; key < MODEL_KEYS; key++) {
        if (model->open[key])
            model_is(model, key, test_rev(store, key) != model->acked[key]);
    }
}

#endif
