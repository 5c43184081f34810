/*
 * check_rounds.c - the rounds of idem check: which requests it sends, and how
 * it judges the responses.
 *
 *   one request       it must succeed; it shows what one effect looks like
 *   one key           many at the same time, then a few more: one effect
 *   different keys    many at the same time: each its own effect
 *   two bodies        under one key: one effect, the other refused
 *   cut connections   sent, cut, repeated: one effect
 */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATER 3 /* repeats after the storm */
#define CUTS 5
#define EFFECT_WAIT_MS 3000

/* ---- sending ------------------------------------------------------------- */

static bool
is_success(long status)
{
    return status >= 200 && status < 400;
}

/* The first request is still running, or the service is overloaded. */
static bool
is_later(long status)
{
    return status == 409 || status == 425 || status == 429 || status == 503;
}

static void
tell(void *arg, size_t over)
{
    struct check_round *round = arg;

    cli_progress("%s: %zu of %zu", round->name, over, round->tally.asked);
}

/* Make a round of `count` requests, all with the body, each with a key of its
 * own if `own_keys`, else all with the same key. */
static struct check_round *
new_round(struct check *check, const char *name, size_t count, bool own_keys)
{
    struct check_round *round = &check->rounds[check->round_count];

    round->name = name;
    round->asks = calloc(count, sizeof(*round->asks));
    round->keys = calloc(count, sizeof(*round->keys));
    if (!round->asks || !round->keys) {
        free(round->asks);
        free(round->keys);
        idem__fail(&check->err, IDEM_ERR_MEMORY, "out of memory");
        return NULL;
    }
    check->round_count++;
    round->tally.asked = count;
    for (size_t i = 0; i < count; i++) {
        idem_uuid4(round->keys[i]);
        round->asks[i].key = round->keys[own_keys ? i : 0];
        round->asks[i].body =
            (struct idem_bytes){check->body.data, check->body.len};
    }
    return round;
}

static bool
send_some(struct check *check, struct check_round *round, size_t from,
          size_t count)
{
    return check_storm(&check->target, round->asks + from, count, tell, round,
                       &check->err) == IDEM_OK;
}

static bool
any_success(const struct check_round *round, size_t before)
{
    for (size_t i = 0; i < before; i++) {
        if (is_success(round->asks[i].status))
            return true;
    }
    return false;
}

/* Send one after the other. While no request of this round has succeeded, a
 * request that gets "try later" is sent again. */
static bool
send_later(struct check *check, struct check_round *round, size_t from)
{
    int64_t left = check->target.timeout_ms;
    bool fine = true;

    for (size_t i = from; fine && i < round->tally.asked; i++) {
        fine = send_some(check, round, i, 1);
        while (fine && left > 0 && is_later(round->asks[i].status) &&
               !any_success(round, i)) {
            struct check_ask again = {.key = round->asks[i].key,
                                      .body = round->asks[i].body};

            check_pause_ms(100);
            left -= 100;
            round->asks[i] = again;
            fine = send_some(check, round, i, 1);
        }
    }
    return fine;
}

static void
count_answers(struct check_round *round)
{
    struct check_tally *t = &round->tally;

    for (size_t i = 0; i < t->asked; i++) {
        const struct check_ask *ask = &round->asks[i];
        bool seen = false;

        if (ask->status == 0) {
            *(ask->cut ? &t->cut : &t->silent) += 1;
            continue;
        }
        t->statuses[ask->status < 600 ? ask->status : 599]++;
        t->replayed += ask->replayed && is_success(ask->status);
        t->later += is_later(ask->status);
        t->errors += ask->status >= 500 && !is_later(ask->status);
        t->refused += ask->status >= 400 && ask->status < 500;
        if (!is_success(ask->status))
            continue;
        t->succeeded++;
        for (size_t j = 0; j < i && !seen; j++)
            seen = is_success(round->asks[j].status) &&
                   memcmp(round->asks[j].digest, ask->digest,
                          CHECK_DIGEST_LEN) == 0;
        if (!seen && t->distinct < 2)
            t->samples[t->distinct] = ask->sample;
        t->distinct += !seen;
    }
}

/* ---- the rounds ---------------------------------------------------------- */

static void
judge(struct check_round *round, enum check_result result, const char *why)
{
    if (result > round->result)
        round->result = result;
    snprintf(round->why + strlen(round->why),
             sizeof(round->why) - strlen(round->why), "%s%s",
             round->why[0] ? "; " : "", why);
}

/* Conditions for every round with one key. */
static void
judge_one_key(const struct check *check, struct check_round *round)
{
    const struct check_tally *t = &round->tally;
    bool once =
        check_same(round->change, check->one) ||
        (check->other_succeeds && check_same(round->change, check->other));

    if (t->succeeded == 0 && !(check->effect_url && once))
        judge(round, CHECK_OPEN, "no request succeeded");
    if (check->effect_url && !once &&
        (t->succeeded > 0 || !check_same(round->change, 0)))
        judge(round, CHECK_BAD,
              check_same(round->change, 0)
                  ? "a request succeeded without an effect"
                  : "it had more than one effect");
    if (t->distinct > 1 && !check->effect_url)
        judge(round, CHECK_BAD,
              "repeats got different responses, as if each was "
              "executed");
    else if (t->distinct > 1 && once)
        judge(round, CHECK_WEAK,
              "one effect, but repeats got different responses");
    if (t->errors > 0)
        judge(round, CHECK_WEAK, "repeats got server errors");
    if (t->silent > 0)
        judge(round, CHECK_WEAK, "some requests got no response");
}

/* The request must succeed; it shows what one effect is. */
static bool
first_request(struct check *check)
{
    struct check_round *round = new_round(check, "one request", 1, true);
    struct check_ask *ask = round ? round->asks : NULL;
    double before, now;
    int64_t waited = 0;

    if (!round || !check_read_effect(check, &before) ||
        !send_some(check, round, 0, 1))
        return false;
    count_answers(round);
    if (ask->status == 0) {
        idem__fail(&check->err, IDEM_ERR_UNAVAILABLE,
                   "%s: %s; is the service running, and is the URL right?",
                   check->target.url, ask->trouble);
        return false;
    }
    if (!is_success(ask->status)) {
        judge(round, CHECK_OPEN,
              "a single request with a new key does not succeed: give a "
              "request that does");
        return true;
    }
    for (now = before; check->effect_url && check_same(now, before) &&
                       waited <= EFFECT_WAIT_MS;
         waited += 50) {
        if (waited > 0)
            check_pause_ms(50);
        if (!check_read_effect(check, &now))
            return false;
    }
    check->visible_ms = waited > 50 ? 2 * waited : 0;
    check->one = round->change = now - before;
    if (check->effect_url && check_same(now, before))
        judge(round, CHECK_OPEN,
              "the number of --effect-url did not change, so it does not show "
              "this effect");
    return true;
}

static bool
one_key(struct check *check)
{
    size_t parallel = (size_t)check->parallel;
    struct check_round *round =
        new_round(check, "one key, at the same time", parallel + LATER, false);
    double before;

    if (!round || !check_read_effect(check, &before) ||
        !send_some(check, round, 0, parallel) ||
        !send_later(check, round, parallel) ||
        !check_read_change(check, before, round))
        return false;
    count_answers(round);
    judge_one_key(check, round);
    return true;
}

static bool
different_keys(struct check *check)
{
    size_t parallel = (size_t)check->parallel;
    struct check_round *round =
        new_round(check, "different keys, at the same time", parallel, true);
    const struct check_tally *t = round ? &round->tally : NULL;
    double before, least, most;

    if (!round || !check_read_effect(check, &before) ||
        !send_some(check, round, 0, parallel) ||
        !check_read_change(check, before, round))
        return false;
    count_answers(round);
    least = fabs(check->one) * (double)t->succeeded;
    most = least + fabs(check->one) * (double)(t->errors + t->silent);
    if (t->succeeded == 0)
        judge(round, CHECK_OPEN, "no request succeeded");
    else if (t->replayed > 0)
        judge(round, CHECK_BAD,
              "a new key got the response to another request");
    else if (check->effect_url && fabs(round->change) < least - 1e-6 * least)
        judge(round, CHECK_BAD,
              "requests with keys of their own had no effect");
    else if (check->effect_url && fabs(round->change) > most + 1e-6 * most)
        judge(round, CHECK_BAD, "there were more effects than requests");
    else if (t->succeeded < t->asked)
        judge(round, CHECK_WEAK,
              "not all succeeded, which may be a limit of the "
              "service");
    return true;
}

/* The other body must succeed under a key of its own. If the service refuses it
 * for another reason, a refusal under the same key proves nothing. */
static bool
try_other_body(struct check *check)
{
    char key[IDEM_UUID_LEN + 1];
    struct check_round scratch = {.name = "another body"};
    struct check_ask ask = {
        .key = key, .body = {check->other_body.data, check->other_body.len}};
    double before;

    idem_uuid4(key);
    if (!check_read_effect(check, &before) ||
        check_storm(&check->target, &ask, 1, NULL, NULL, &check->err) !=
            IDEM_OK ||
        !check_read_change(check, before, &scratch))
        return false;
    check->other_succeeds = is_success(ask.status);
    check->other_status = ask.status;
    check->other = scratch.change;
    return true;
}

static bool
another_body(struct check *check)
{
    size_t count = (size_t)check->parallel + 2;
    bool won[2] = {false, false};
    struct check_round *round;
    double before;

    if (check->other_body.len == 0)
        return true;
    if (!try_other_body(check))
        return false;
    round = new_round(check, "two bodies under one key", count, false);
    if (!round || !check_read_effect(check, &before))
        return false;
    for (size_t i = 1; i < count; i += 2)
        round->asks[i].body =
            (struct idem_bytes){check->other_body.data, check->other_body.len};
    if (!send_some(check, round, 0, count - 2) ||
        !send_later(check, round, count - 2) ||
        !check_read_change(check, before, round))
        return false;
    count_answers(round);
    judge_one_key(check, round);
    for (size_t i = 0; i < count; i++)
        won[i % 2] = won[i % 2] || is_success(round->asks[i].status);
    if (!check->other_succeeds)
        judge(round, CHECK_OPEN,
              "the other body does not succeed under a key of its own either: "
              "give --other-body with one that does");
    else if (won[0] && won[1] && round->result != CHECK_BAD)
        judge(
            round, CHECK_WEAK,
            "the other body was not refused (422): its sender got the response "
            "to a request that it did not send");
    check->other_succeeds = false; /* applies to this round only */
    return true;
}

static bool
cut_connections(struct check *check)
{
    static const int64_t cut_ms[CUTS] = {0, 0, 1, 5, 50};
    struct check_round *round =
        new_round(check, "cut connections, repeated", CUTS + LATER, false);
    double before;

    if (!round || !check_read_effect(check, &before))
        return false;
    for (size_t i = 0; i < CUTS; i++) {
        round->asks[i].cut = true;
        round->asks[i].cut_ms = cut_ms[i];
        if (!send_some(check, round, i, 1))
            return false;
    }
    if (!send_later(check, round, CUTS) ||
        !check_read_change(check, before, round))
        return false;
    count_answers(round);
    judge_one_key(check, round);
    return true;
}

bool
check_play(struct check *check)
{
    bool fine = first_request(check);

    if (fine && check->rounds[0].result != CHECK_OPEN)
        fine = one_key(check) && different_keys(check) && another_body(check) &&
               cut_connections(check);
    return fine;
}

void
check_clear(struct check *check)
{
    for (size_t i = 0; i < check->round_count; i++) {
        free(check->rounds[i].asks);
        free(check->rounds[i].keys);
    }
    idem_buf_clear(&check->body);
    idem_buf_clear(&check->other_body);
}
