/*
 * second.c - operations that wait for a second operator; see second.h.
 */
#include "second.h"

#include "../../base/json_memory.h"
#include "../../base/wait.h"
#include "../../record/record.h"
#include "json_record.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_MS INT64_C(3600000)
#define DIGEST_LEN 32

struct proposal {
    uint8_t digest[DIGEST_LEN]; /* of the operation, without its reason */
    int64_t at_ms;
    struct principal *by;
    json_t *json;
};

struct second {
    pthread_mutex_t lock;
    struct proposal all[SECOND_MAX]; /* oldest first */
    size_t count;
};

struct second *
second_open(void)
{
    struct second *self = calloc(1, sizeof(*self));

    if (self)
        pthread_mutex_init(&self->lock, NULL);
    return self;
}

/* Under the lock. */
static void
drop(struct second *self, size_t i)
{
    json_decref(self->all[i].json);
    principal_put(self->all[i].by);
    self->count--;
    memmove(&self->all[i], &self->all[i + 1],
            (self->count - i) * sizeof(self->all[0]));
}

void
second_close(struct second *self)
{
    if (!self)
        return;
    while (self->count > 0)
        drop(self, self->count - 1);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void
add_bytes(crypto_generichash_state *state, struct idem_bytes bytes)
{
    uint64_t len = bytes.len;

    crypto_generichash_update(state, (const uint8_t *)&len, sizeof(len));
    if (bytes.len > 0)
        crypto_generichash_update(state, bytes.data, bytes.len);
}

static void
digest_op(const struct idem_op *op, uint8_t digest[DIGEST_LEN])
{
    const int64_t numbers[] = {(int64_t)op->verb,    (int64_t)op->type,
                               (int64_t)op->outcome, (int64_t)op->kind,
                               (int64_t)op->fence,   op->ttl_ms,
                               op->not_replayable};
    crypto_generichash_state state;

    crypto_generichash_init(&state, NULL, 0, DIGEST_LEN);
    crypto_generichash_update(&state, (const uint8_t *)numbers,
                              sizeof(numbers));
    add_bytes(&state, op->scope);
    add_bytes(&state, op->id);
    add_bytes(&state, op->result);
    crypto_generichash_final(&state, digest, DIGEST_LEN);
}

static json_t *
proposal_json(const char *who, const struct idem_op *op)
{
    struct timespec now;
    json_t *json;

    clock_gettime(CLOCK_REALTIME, &now);
    idem__json_begin();
    json = json_pack("{s:s, s:I, s:s, s:s, s:s, s:I, s:I}", "who", who, "time",
                     (json_int_t)now.tv_sec * 1000 + now.tv_nsec / 1000000,
                     "verb", idem_verb_name(op->verb), "outcome",
                     op->outcome ? idem_state_name(op->outcome) : "", "kind",
                     op->kind ? idem_kind_name(op->kind) : "raw", "fence",
                     (json_int_t)op->fence, "ttl_ms", (json_int_t)op->ttl_ms);
    if (json && server_json_put_bytes(json, "scope", op->scope, false) &&
        server_json_put_bytes(json, "id", op->id, false) &&
        server_json_put_bytes(json, "reason", op->subject, false) &&
        server_json_put_bytes(json, "result", op->result, true) &&
        !idem__json_starved())
        return json;
    json_decref(json);
    return NULL;
}

/* Under the lock: drop proposals that have waited too long, and those whose
 * proposer's credential was changed or removed. */
static struct proposal *
find(struct second *self, const uint8_t digest[DIGEST_LEN])
{
    int64_t now = idem__mono_ms();

    for (size_t i = self->count; i-- > 0;)
        if (now - self->all[i].at_ms > WAIT_MS ||
            !principal_valid(self->all[i].by))
            drop(self, i);
    for (size_t i = 0; i < self->count; i++)
        if (memcmp(self->all[i].digest, digest, DIGEST_LEN) == 0)
            return &self->all[i];
    return NULL;
}

static bool
note(struct second *self, struct principal *principal, const struct idem_op *op,
     const uint8_t digest[DIGEST_LEN], struct idem_error *err)
{
    struct proposal *place;
    size_t own = 0;

    for (size_t i = 0; i < self->count; i++)
        own += self->all[i].by == principal;
    if (self->count == SECOND_MAX || own >= SECOND_EACH ||
        op->result.len > SECOND_RESULT_MAX) {
        idem__fail(err, IDEM_ERR_OVERLOADED,
                   "second-person: too many operations wait (at most %d per "
                   "credential, %d in total), or the result has more than %d "
                   "bytes",
                   SECOND_EACH, SECOND_MAX, SECOND_RESULT_MAX);
        return false;
    }
    place = &self->all[self->count];
    place->json = proposal_json(principal_name(principal), op);
    if (!place->json) {
        idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
        return false;
    }
    memcpy(place->digest, digest, DIGEST_LEN);
    place->at_ms = idem__mono_ms();
    place->by = principal_ref(principal);
    self->count++;
    return true;
}

bool
second_agrees(struct second *self, struct principal *principal,
              const struct idem_op *op, char first[AUDIT_WHO_MAX],
              struct idem_error *err)
{
    uint8_t digest[DIGEST_LEN];
    struct proposal *found;
    bool agrees, noted = true;

    digest_op(op, digest);
    pthread_mutex_lock(&self->lock);
    found = find(self, digest);
    agrees = found &&
             strcmp(principal_name(found->by), principal_name(principal)) != 0;
    if (agrees) {
        snprintf(first, AUDIT_WHO_MAX, "%s", principal_name(found->by));
        drop(self, (size_t)(found - self->all));
    } else if (!found) {
        noted = note(self, principal, op, digest, err);
    }
    pthread_mutex_unlock(&self->lock);
    if (!agrees && noted)
        idem__fail(err, IDEM_ERR_INVALID,
                   "second-person: not executed yet; another operator must ask "
                   "for the same within an hour");
    return agrees;
}

json_t *
second_list(struct second *self)
{
    json_t *all = json_array();

    pthread_mutex_lock(&self->lock);
    (void)find(self, (const uint8_t[DIGEST_LEN]){0});
    for (size_t i = 0; i < self->count; i++)
        json_array_append_new(all, json_deep_copy(self->all[i].json));
    pthread_mutex_unlock(&self->lock);
    return all;
}
