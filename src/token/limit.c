/*
 * limit.c - limits how many tokens a subject may ask for.
 *
 * Each subject has a token bucket in a table of fixed size. The hash is keyed,
 * so that nobody can choose to collide with another subject. If all places of a
 * small neighbourhood are taken, the fullest bucket is replaced: a new subject
 * gets a full bucket anyway, so little is lost, and the busiest subjects, which
 * matter, are remembered.
 *
 * A request for more than a full bucket is granted when the bucket is full, and
 * the bucket then owes the rest.
 */
#include "../store/store.h"

#include <idem/token.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 65536 /* a power of two */
#define NEIGHBOURS 8

struct bucket {
    uint64_t subject; /* its hash; 0: empty */
    double left;
    int64_t at_us;
};

struct idem_token_limit {
    double rate, burst;
    uint8_t hash_key[crypto_shorthash_KEYBYTES];
    pthread_mutex_t mutex;
    struct bucket buckets[BUCKETS];
};

struct idem_token_limit *
idem_token_limit_open(double rate, double burst)
{
    struct idem_token_limit *limit = calloc(1, sizeof(*limit));

    if (!limit)
        return NULL;
    limit->rate = rate;
    limit->burst = burst;
    randombytes_buf(limit->hash_key, sizeof(limit->hash_key));
    pthread_mutex_init(&limit->mutex, NULL);
    return limit;
}

void
idem_token_limit_close(struct idem_token_limit *limit)
{
    if (!limit)
        return;
    pthread_mutex_destroy(&limit->mutex);
    free(limit);
}

static uint64_t
hash_of(const struct idem_token_limit *limit, struct idem_bytes subject)
{
    uint64_t hash;

    crypto_shorthash((uint8_t *)&hash, subject.data, subject.len,
                     limit->hash_key);
    return hash ? hash : 1;
}

static double
left_at(const struct idem_token_limit *limit, const struct bucket *bucket,
        int64_t now_us)
{
    double left =
        bucket->left + limit->rate * (double)(now_us - bucket->at_us) / 1e6;

    return left < limit->burst ? left : limit->burst;
}

static struct bucket *
find(struct idem_token_limit *limit, uint64_t subject, int64_t now_us)
{
    struct bucket *fullest = NULL;

    for (size_t i = 0; i < NEIGHBOURS; i++) {
        struct bucket *b = &limit->buckets[(subject + i) & (BUCKETS - 1)];

        if (b->subject == subject)
            return b;
        if (!fullest || b->subject == 0 ||
            (fullest->subject != 0 &&
             left_at(limit, b, now_us) > left_at(limit, fullest, now_us)))
            fullest = b;
    }
    *fullest = (struct bucket){subject, limit->burst, now_us};
    return fullest;
}

bool
idem_token_allowed(struct idem_token_limit *limit, struct idem_bytes subject,
                   size_t count, int64_t *retry_after_ms)
{
    struct bucket *bucket;
    double wanted, missing;
    int64_t now_us;

    if (!limit)
        return true;
    now_us = idem__system_clocks.boot_us(NULL);
    wanted = (double)count < limit->burst ? (double)count : limit->burst;
    pthread_mutex_lock(&limit->mutex);
    bucket = find(limit, hash_of(limit, subject), now_us);
    bucket->left = left_at(limit, bucket, now_us);
    bucket->at_us = now_us;
    missing = wanted - bucket->left;
    if (missing <= 0)
        bucket->left -= (double)count;
    pthread_mutex_unlock(&limit->mutex);
    if (missing <= 0)
        return true;
    *retry_after_ms = (int64_t)(missing / limit->rate * 1000) + 1;
    return false;
}
