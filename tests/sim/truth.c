/*
 * truth.c - see truth.h.
 */
#include "truth.h"

#include <string.h>

int64_t truth_leeway;
bool (*truth_may_start)(int64_t asked);

/* When a record that was written then may be gone. Clocks may drift by a
 * thousandth. */
static int64_t
may_go(const struct truth_key *key, int64_t written)
{
    return written + key->ttl_ns - key->ttl_ns / 500 - truth_leeway;
}

/* Is the record of what was finished surely still kept, for somebody who asked
 * then? */
static bool
must_be_there(const struct truth_key *key, int64_t asked)
{
    return key->result != 0 && asked > key->told_at &&
           sim_now() < may_go(key, key->finished_at);
}

/* Was it stored although nobody was told, and is it gone since? */
static bool
may_have_expired(const struct truth_key *key)
{
    return key->tried_at != 0 && sim_now() >= may_go(key, key->tried_at);
}

static void
new_life(struct truth_key *key)
{
    key->last_result = key->result;
    key->life_at = sim_now();
    key->result = 0;
    key->tried_at = 0;
    key->executions = 0;
}

/* It was given to somebody else: was there nobody who had it? A smaller fence
 * was given before, and is told late. */
static void
must_be_free(const struct truth_key *key, uint64_t fence, const char *what)
{
    if (fence > key->leased_fence &&
        sim_now() < key->leased_until - truth_leeway)
        sim_fail("%s, although fence %llu has a lease for %.3f s more", what,
                 (unsigned long long)key->leased_fence,
                 (double)(key->leased_until - sim_now()) / 1e9);
}

/* Whoever asks from now on need not get it. */
static void
forget_result(struct truth_key *key)
{
    if (key->result == 0)
        return;
    key->last_result = key->result;
    key->life_at = sim_now();
    key->result = 0;
}

/* Its result and its lease may be lost, but not that it was executed. */
void
truth_went_back(struct truth_key *key)
{
    forget_result(key);
    key->life_at = key->went_back_at = sim_now();
    key->leased_until = 0;
}

void
truth_excuse(struct truth_key *key)
{
    if (key->went_back_at == 0)
        return;
    key->executions = 0;
    key->excused_at = sim_now();
}

/* It was asked before the store went back, so what it got may be lost. */
static bool
may_be_lost(const struct truth_key *key, int64_t asked)
{
    return key->went_back_at != 0 && asked <= key->went_back_at;
}

void
truth_asks(struct truth_key *key)
{
    key->unanswered++;
}

void
truth_answered(struct truth_key *key)
{
    key->unanswered--;
}

void
truth_held(const struct truth_key *key, uint64_t fence)
{
    /* A claim that comes back has the last fence, also that of a SETTLE. */
    if (fence > key->last_fence && key->unanswered == 0 &&
        key->went_back_at == 0)
        sim_fail("fence %llu is held, which nobody can have but who asked",
                 (unsigned long long)fence);
}

void
truth_leaves(struct truth_key *key, uint64_t fence)
{
    if (fence == key->leased_fence)
        key->leased_until = 0;
}

/* If the store lost the last fence, the new one comes from the clock alone. */
static bool
is_above(const struct truth_key *key, uint64_t fence)
{
    bool lost = key->last_fence_told <= key->went_back_at;

    return fence + (lost ? (uint64_t)(truth_leeway / SIM_US) : 0) >
           key->last_fence;
}

void
truth_started(struct truth_key *key, int64_t asked, int64_t lease,
              uint64_t fence)
{
    if (key->strict && truth_may_start && !truth_may_start(asked))
        sim_fail("strict work is started with fence %llu, although the store "
                 "went back and nobody has accepted that",
                 (unsigned long long)fence);
    must_be_free(key, fence, "started again");
    if (fence > key->leased_fence && !may_be_lost(key, asked)) {
        key->leased_fence = fence;
        key->leased_until = asked + lease - lease / 100;
    }
    if (must_be_there(key, asked))
        sim_fail("started with fence %llu, although the result %llu had been "
                 "told %.3f s ago",
                 (unsigned long long)fence, (unsigned long long)key->result,
                 (double)(asked - key->told_at) / 1e9);
    if (asked > key->last_fence_told && !is_above(key, fence))
        sim_fail("fence %llu is not above %llu, which was told before",
                 (unsigned long long)fence,
                 (unsigned long long)key->last_fence);
    if (fence > key->last_fence) {
        key->last_fence = fence;
        key->last_fence_told = sim_now();
    }
    if (key->result != 0 || may_have_expired(key))
        new_life(key);
}

void
truth_executed(struct truth_key *key, int64_t asked)
{
    if (key->excused_at != 0 && asked <= key->excused_at)
        return;
    key->executions++;
    if (key->strict && key->executions > 1)
        sim_fail("strict work was executed %d times", key->executions);
}

void
truth_tries(struct truth_key *key)
{
    if (key->tried_at == 0)
        key->tried_at = sim_now();
}

static void
tell(struct truth_key *key, uint64_t result)
{
    if (key->result != 0 && key->result != result)
        sim_fail("two answers for one request: %llu and %llu",
                 (unsigned long long)key->result, (unsigned long long)result);
    if (key->result == 0) {
        key->result = result;
        key->told_at = sim_now();
    }
}

void
truth_not_stored(struct truth_key *key, uint64_t result)
{
    memmove(key->not_stored + 1, key->not_stored,
            sizeof(key->not_stored) - sizeof(key->not_stored[0]));
    key->not_stored[0] = result;
    if (key->result == result)
        sim_fail("the result %llu was replayed, and then told as not stored",
                 (unsigned long long)result);
}

void
truth_replayed(struct truth_key *key, int64_t asked, uint64_t result)
{
    /* Decided before the old life ended, and told late. */
    if (asked <= key->life_at &&
        (result == key->last_result || key->last_result == 0))
        return;
    for (size_t i = 0; i < 8; i++) {
        if (key->not_stored[i] == result && result != 0)
            sim_fail("the result %llu is replayed, which was told as not "
                     "stored",
                     (unsigned long long)result);
    }
    /* The old one may have expired, and nobody was told of the next start. */
    if (key->result != 0 && key->result != result &&
        sim_now() >= may_go(key, key->finished_at))
        new_life(key);
    /* It was written after the first try of a FINISH; without one, nobody knows
     * since when it is there, nor of one that came back. */
    if (key->result == 0)
        key->finished_at = key->tried_at != 0 && key->went_back_at == 0
                               ? key->tried_at
                               : sim_now() - key->ttl_ns;
    tell(key, result);
}

void
truth_busy(struct truth_key *key, int64_t asked, const char *verdict)
{
    /* A claim of the lost time comes back in doubt, whatever came after it. */
    if (key->went_back_at != 0 && asked > key->told_at &&
        strcmp(verdict, "absent") != 0)
        forget_result(key);
    else if (must_be_there(key, asked))
        sim_fail("%s, although the result %llu had been told %.3f s ago",
                 verdict, (unsigned long long)key->result,
                 (double)(asked - key->told_at) / 1e9);
}

void
truth_finished(struct truth_key *key, int64_t asked, uint64_t fence,
               uint64_t result)
{
    if (may_be_lost(key, asked))
        return;
    if (fence < key->last_fence && asked > key->last_fence_told &&
        key->last_fence_told > key->went_back_at)
        sim_fail("FINISH with fence %llu is taken, although %llu was started "
                 "before it was sent",
                 (unsigned long long)fence,
                 (unsigned long long)key->last_fence);
    /* The copy had a result that has expired since, and the claim came back. */
    if (key->went_back_at != 0 && sim_now() >= may_go(key, key->finished_at))
        key->result = 0;
    tell(key, result);
    key->finished_at = asked;
}

void
truth_settled(struct truth_key *key, int64_t asked, uint64_t result)
{
    /* Of a SETTLE that was sent again: another one may have stored it before. */
    int64_t stored = key->result == result ? key->finished_at : asked;

    if (asked > key->last_fence_told)
        must_be_free(key, UINT64_MAX, "settled");
    if (key->went_back_at != 0)
        forget_result(key);
    else if (key->result != 0 && !must_be_there(key, asked))
        new_life(key);
    truth_finished(key, asked, UINT64_MAX, result);
    if (key->finished_at > stored)
        key->finished_at = stored;
}
