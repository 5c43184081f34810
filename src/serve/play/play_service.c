/*
 * play_service.c - what a service in the playground does: use the tables, use
 * idem, and wait for other requests to show a race.
 */
#include "play_inner.h"

#include "../../base/wait.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the tables -------------------------------------------------------- */

struct play_found {
    struct play_call *call;
    int rows;
};

static int
take_row(void *arg, int columns, char **values, char **names)
{
    struct play_found *found = arg;

    (void)names;
    if (found->rows++ == 0 && columns > 0)
        snprintf(found->call->value, sizeof(found->call->value), "%s",
                 values[0] ? values[0] : "null");
    return 0;
}

int
play_sql(struct play_call *call, const char *format, ...)
{
    struct play *play = call->play;
    enum play_actor me = play_worker(call);
    bool shown = call->number < PLAY_SHOWN;
    struct play_found found = {call, 0};
    char sql[512], why[160];
    bool asks;
    int changed = 0;
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof(sql), format, args);
    va_end(args);
    asks = strncmp(sql, "select", 6) == 0;
    call->value[0] = 0;
    if (shown)
        play_tell(play, me, PLAY_TABLE, "call", "%s", sql);
    if (!play->base->run(call->conn, sql, take_row, &found, &changed, why,
                         sizeof(why))) {
        play_broke(play, sql, why);
        return 0;
    }
    if (shown && asks && found.rows > 0)
        play_tell(play, PLAY_TABLE, me, "answer", "%s", call->value);
    else if (shown && (asks || strchr("iud", sql[0])))
        play_tell(play, PLAY_TABLE, me, "answer", "%d %s",
                  asks ? found.rows : changed,
                  (asks ? found.rows : changed) == 1 ? "row" : "rows");
    return asks ? found.rows : changed;
}

void
play_asks(struct play_call *call, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (call->number < PLAY_SHOWN)
        play_tell(call->play, play_worker(call), PLAY_TABLE, "call", "%s",
                  text);
}

const char *
play_verdict(struct play_call *call, enum idem_status status,
             const struct play_asked *asked)
{
    if (status != IDEM_OK)
        return play_broke(call->play, "idem_sql", asked->err.text);
    if (call->number < PLAY_SHOWN)
        play_tell(call->play, PLAY_TABLE, play_worker(call), "answer", "%s",
                  idem_sql_verdict_name(asked->verdict));
    return idem_sql_verdict_name(asked->verdict);
}

/* ---- the engine -------------------------------------------------------- */

static void
upper(const char *word, char *out, size_t room)
{
    size_t i = 0;

    for (; word[i] && i + 1 < room; i++)
        out[i] = (char)(word[i] & ~0x20);
    out[i] = 0;
}

static void
tell_op(struct play *play, enum play_actor who, const struct idem_op *op)
{
    struct idem_bytes first = op->id, second = {NULL, 0};
    char verb[16], more[80] = "";

    upper(idem_verb_name(op->verb), verb, sizeof(verb));
    if (op->fence)
        snprintf(more, sizeof(more), " %llu", (unsigned long long)op->fence);
    if (op->outcome)
        snprintf(more + strlen(more), sizeof(more) - strlen(more), " %s",
                 idem_state_name(op->outcome));
    if (op->wait_ms)
        snprintf(more + strlen(more), sizeof(more) - strlen(more), " WAIT %lld",
                 (long long)op->wait_ms);
    if (op->verb == IDEM_ISSUE) /* the client gets its token this way */
        first = op->scope;
    else if (op->verb == IDEM_REDEEM)
        second = op->scope;
    else if (op->verb == IDEM_LOCK || op->verb == IDEM_UNLOCK)
        second = op->subject;
    else
        first = op->scope, second = op->id;
    play_tell(play, who, PLAY_IDEM, "call", "%s %.*s%s%.*s%s", verb,
              (int)first.len, (const char *)first.data, second.len ? " " : "",
              (int)second.len, second.len ? (const char *)second.data : "",
              more);
}

static void
tell_answer(struct play *play, enum play_actor who,
            const struct idem_answer *answer)
{
    const char *verdict = idem_verdict_name(answer->verdict);
    const struct idem_record *r = answer->record;

    if (answer->verdict == IDEM_V_STARTED)
        play_tell(play, PLAY_IDEM, who, "answer", "%s %llu", verdict,
                  (unsigned long long)r->fence);
    else if (answer->verdict == IDEM_V_REPLAY)
        play_tell(play, PLAY_IDEM, who, "answer", "%s %s %.*s", verdict,
                  idem_state_name(r->state), (int)r->result.len,
                  r->result.len ? (const char *)r->result.data : "");
    else
        play_tell(play, PLAY_IDEM, who, "answer", "%s", verdict);
}

static bool
run_op(struct play *play, enum play_actor who, bool shown,
       const struct idem_op *op, struct idem_answer *answer)
{
    struct idem_error err = {0};

    if (shown)
        tell_op(play, who, op);
    if (idem_do(play->engine, op, answer, &err) != IDEM_OK) {
        play_broke(play, idem_verb_name(op->verb), err.text);
        return false;
    }
    if (shown)
        tell_answer(play, who, answer);
    return true;
}

bool
play_do(struct play_call *call, const struct idem_op *op,
        struct idem_answer *answer)
{
    return run_op(call->play, play_worker(call), call->number < PLAY_SHOWN, op,
                  answer);
}

bool
play_do_as(struct play *play, enum play_actor who, const struct idem_op *op,
           struct idem_answer *answer)
{
    return run_op(play, who, true, op, answer);
}

/* ---- waiting for other requests ---------------------------------------- */

static int
at_once(const struct play *play)
{
    switch (play->action) {
    case PLAY_DOUBLE:
    case PLAY_RETRY:
        return 2;
    case PLAY_STORM:
        return PLAY_WORKERS;
    default:
        return 1;
    }
}

/* Under the lock. */
static void
wait_for(struct play *play, const int *count, int wanted)
{
    struct timespec until = idem__deadline(PLAY_MEET_MS * INT64_C(1000));

    while (*count < wanted &&
           pthread_cond_timedwait(&play->stir, &play->lock, &until) == 0)
        ;
}

void
play_arrived(struct play_call *call)
{
    pthread_mutex_lock(&call->play->lock);
    call->play->met++;
    pthread_cond_broadcast(&call->play->stir);
    pthread_mutex_unlock(&call->play->lock);
}

void
play_wait_arrived(struct play *play)
{
    pthread_mutex_lock(&play->lock);
    wait_for(play, &play->met, 1);
    pthread_mutex_unlock(&play->lock);
}

void
play_meet(struct play_call *call)
{
    struct play *play = call->play;

    if (at_once(play) == 1)
        return;
    play_note(call, "meet");
    play_arrived(call);
    pthread_mutex_lock(&play->lock);
    wait_for(play, &play->met, at_once(play));
    pthread_mutex_unlock(&play->lock);
}

void
play_wait_answered(struct play_call *call)
{
    struct play *play = call->play;

    pthread_mutex_lock(&play->lock);
    wait_for(play, &play->answered, 1);
    pthread_mutex_unlock(&play->lock);
}

void
play_hold(struct play_call *call)
{
    if (at_once(call->play) == 1)
        return;
    play_note(call, "works");
    play_wait_answered(call);
}

void
play_answered(struct play *play)
{
    pthread_mutex_lock(&play->lock);
    play->answered++;
    pthread_cond_broadcast(&play->stir);
    pthread_mutex_unlock(&play->lock);
}

void
play_sleep_ms(int64_t ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&pause, NULL);
}
