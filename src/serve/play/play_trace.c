/*
 * play_trace.c - the messages of a run, in the order in which they happened.
 */
#include "play_inner.h"

#include "../../base/wait.h"
#include "../../record/record.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const actors[PLAY_ACTORS] = {
    "client", "worker1", "worker2", "idem", "table", "operator"};

json_t *
play_actor_names(void)
{
    json_t *names = json_array();

    for (size_t i = 0; i < PLAY_ACTORS; i++)
        json_array_append_new(names, json_string(actors[i]));
    return names;
}

void
play_tell(struct play *play, enum play_actor from, enum play_actor to,
          const char *kind, const char *format, ...)
{
    int64_t at_us = idem__mono_us() - play->start_us;
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    pthread_mutex_lock(&play->lock);
    if (json_array_size(play->messages) < PLAY_MESSAGES)
        json_array_append_new(play->messages,
                              json_pack("{s:I, s:s, s:s, s:s, s:s}", "at_us",
                                        (json_int_t)at_us, "from", actors[from],
                                        "to", actors[to], "kind", kind, "text",
                                        text));
    pthread_mutex_unlock(&play->lock);
}

enum play_actor
play_worker(const struct play_call *call)
{
    return call->number % 2 == 0 ? PLAY_WORKER_1 : PLAY_WORKER_2;
}

void
play_note(struct play_call *call, const char *word)
{
    if (call->number < PLAY_SHOWN)
        play_tell(call->play, play_worker(call), play_worker(call), "note",
                  "%s", word);
}

bool
play_is_over(struct play *play)
{
    bool over;

    pthread_mutex_lock(&play->lock);
    over = play->err.status != IDEM_OK;
    pthread_mutex_unlock(&play->lock);
    return over;
}

const char *
play_broke(struct play *play, const char *what, const char *why)
{
    pthread_mutex_lock(&play->lock);
    if (play->err.status == IDEM_OK)
        idem__fail(&play->err, IDEM_ERR_INTERNAL, "playground: %s: %s", what,
                   why);
    pthread_mutex_unlock(&play->lock);
    return NULL;
}
