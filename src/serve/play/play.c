/*
 * play.c - one run of the playground: make the sandbox, do what the client
 * does, and report what happened.
 */
#include "play_inner.h"

#include "../../base/wait.h"
#include "../../record/record.h"
#include "../../store/columns.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const action_names[PLAY_ACTIONS] = {
#define X(name, word) word,
    PLAY_ACTION_MAP(X)
#undef X
};

const char *
play_action_name(enum play_action action)
{
    return action_names[action];
}

/* ---- a request --------------------------------------------------------- */

static bool
open_call(struct play_call *call)
{
    struct play *play = call->play;
    struct idem_error err = {0};

    call->conn = play->base->open(play->name, PLAY_BUSY_MS);
    if (!call->conn)
        play_broke(play, "tables", "no connection");
    else if (idem_sql_sqlite(call->conn, &call->sql, &err) != IDEM_OK)
        play_broke(play, "tables", err.text);
    return call->sql != NULL;
}

/* The connection of a worker that died is closed, which rolls back its
 * transaction. */
static void
close_call(struct play_call *call)
{
    idem_sql_close(call->sql);
    call->play->base->close(call->conn);
    call->sql = NULL;
    call->conn = NULL;
}

static void
count_reply(struct play_call *call, const char *reply)
{
    struct play *play = call->play;

    pthread_mutex_lock(&play->lock);
    json_object_set_new(
        play->replies, reply,
        json_integer(json_integer_value(json_object_get(play->replies, reply)) +
                     1));
    if (strcmp(reply, "first") == 0 && call->number < PLAY_SHOWN)
        play->told |= 1u << call->number;
    pthread_mutex_unlock(&play->lock);
    play_answered(play);
}

static void *
serve(void *arg)
{
    struct play_call *call = arg;
    struct play *play = call->play;
    bool shown = call->number < PLAY_SHOWN;
    const char *reply;

    if (shown)
        play_tell(play, PLAY_CLIENT, play_worker(call), "call", "%s %s",
                  play->scheme->request, call->id);
    reply = open_call(call) ? play->scheme->serve[play->protect](call) : NULL;
    close_call(call);
    if (!reply) {
        play_note(call, "died");
        return NULL;
    }
    if (shown)
        play_tell(play, play_worker(call), PLAY_CLIENT,
                  call->lost ? "lost" : "reply", "%s", reply);
    count_reply(call, reply);
    return NULL;
}

static void
begin_call(struct play_call *call)
{
    if (pthread_create(&call->thread, NULL, serve, call) != 0) {
        call->thread = pthread_self();
        play_broke(call->play, "request", "no thread");
    }
}

static void
end_call(struct play_call *call)
{
    if (!pthread_equal(call->thread, pthread_self()))
        pthread_join(call->thread, NULL);
}

void
play_send(struct play *play, int number, const char *id)
{
    struct play_call call = {.play = play, .number = number, .id = id};

    serve(&call);
}

/* ---- what the client does ---------------------------------------------- */

static void
client_note(struct play *play, const char *word)
{
    play_tell(play, PLAY_CLIENT, PLAY_CLIENT, "note", "%s", word);
}

static void
send_both(struct play *play)
{
    struct play_call calls[] = {
        {.play = play, .number = 0, .id = PLAY_ID},
        {.play = play, .number = 1, .id = PLAY_ID},
    };

    begin_call(&calls[0]);
    if (play->action == PLAY_PAUSE)
        play_wait_arrived(play);
    if (play->action == PLAY_RETRY) {
        play_sleep_ms(PLAY_PATIENCE_MS);
        client_note(play, "timeout");
    }
    begin_call(&calls[1]);
    end_call(&calls[0]);
    end_call(&calls[1]);
}

/* Send one request that fails in some way, then send it again. */
static void
send_again(struct play *play, const char *why, bool dies)
{
    struct play_call first = {.play = play,
                              .id = PLAY_ID,
                              .lost = !dies && play->action != PLAY_FAIL &&
                                      play->action != PLAY_LATE,
                              .dies = dies};
    bool new_page = play->action == PLAY_RELOAD && !play->protect;

    serve(&first);
    client_note(play, why);
    play_send(play, 1, new_page ? PLAY_OTHER_ID : PLAY_ID);
}

struct storm {
    struct play *play;
    atomic_int next;
};

static void *
storm_worker(void *arg)
{
    struct storm *storm = arg;
    int number;

    while ((number = atomic_fetch_add(&storm->next, 1)) < PLAY_REQUESTS)
        play_send(storm->play, number, PLAY_ID);
    return NULL;
}

static void
send_storm(struct play *play)
{
    struct storm storm = {.play = play};
    pthread_t threads[PLAY_WORKERS];
    int count = 0;

    atomic_init(&storm.next, 0);
    while (count < PLAY_WORKERS &&
           pthread_create(&threads[count], NULL, storm_worker, &storm) == 0)
        count++;
    if (count < PLAY_WORKERS)
        play_broke(play, "storm", "no thread");
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void
act(struct play *play)
{
    if (play->scheme->before)
        play->scheme->before(play);
    switch (play->action) {
    case PLAY_SEND:
    case PLAY_QUERY:
    case PLAY_ACTIONS:
        play_send(play, 0, PLAY_ID);
        break;
    case PLAY_DOUBLE:
    case PLAY_RETRY:
    case PLAY_PAUSE:
        send_both(play);
        break;
    case PLAY_LOSE:
        send_again(play, "timeout", false);
        break;
    case PLAY_RELOAD:
        send_again(play, "reload", false);
        break;
    case PLAY_FAIL:
    case PLAY_LATE:
        send_again(play, action_names[play->action], false);
        break;
    case PLAY_KILL:
        send_again(play, "timeout", true);
        break;
    case PLAY_STORM:
        send_storm(play);
        break;
    }
    if (play->scheme->after)
        play->scheme->after(play);
}

/* ---- the sandbox ------------------------------------------------------- */

static void
make_tables(struct play *play)
{
    const char *const scripts[] = {idem__sqlite_script, play->scheme->tables,
                                   play->protect ? play->scheme->guard : NULL};
    char why[160];
    int changed;

    play->keeper = play->base->open(play->name, PLAY_BUSY_MS);
    if (!play->keeper)
        play_broke(play, "tables", "no connection");
    for (size_t i = 0; play->keeper && i < 3; i++)
        if (scripts[i] && !play->base->run(play->keeper, scripts[i], NULL, NULL,
                                           &changed, why, sizeof(why)))
            play_broke(play, "tables", why);
}

static enum idem_status
open_sandbox(struct play *play, struct idem_error *err)
{
    static atomic_uint runs;
    enum idem_status status;

    snprintf(play->name, sizeof(play->name), "idem-play-%u",
             atomic_fetch_add(&runs, 1));
    status = idem__module_symbol("sqlite", "idem__sandbox_sqlite",
                                 (const void **)&play->base, err);
    if (status == IDEM_OK)
        status = idem_open("memory:", NULL, &play->engine, err);
    if (status == IDEM_OK)
        make_tables(play);
    return status;
}

static void
close_sandbox(struct play *play)
{
    if (play->base)
        play->base->close(play->keeper);
    idem_close(play->engine);
    json_decref(play->messages);
    json_decref(play->replies);
    pthread_cond_destroy(&play->stir);
    pthread_mutex_destroy(&play->lock);
}

static enum idem_status
find(struct idem_bytes scheme, struct idem_bytes action, struct play *play,
     struct idem_error *err)
{
    for (size_t i = 0; i < play_scheme_count; i++) {
        if (idem__bytes_is(scheme, play_schemes[i].name))
            play->scheme = &play_schemes[i];
    }
    for (play->action = 0; play->action < PLAY_ACTIONS; play->action++) {
        if (idem__bytes_is(action, action_names[play->action]))
            break;
    }
    if (!play->scheme)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "there is no such scheme: GET /v1/play lists them");
    if (play->action == PLAY_ACTIONS ||
        !(play->scheme->actions & 1u << play->action))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the scheme %s has no such action: GET /v1/play "
                          "lists them",
                          play->scheme->name);
    return IDEM_OK;
}

enum idem_status
play_run(struct idem_bytes scheme, struct idem_bytes action, bool protect,
         json_t **told, struct idem_error *err)
{
    struct play play = {.protect = protect};
    enum idem_status status = find(scheme, action, &play, err);

    if (status != IDEM_OK)
        return status;
    pthread_mutex_init(&play.lock, NULL);
    idem__cond_init(&play.stir);
    play.messages = json_array();
    play.replies = json_object();
    status = open_sandbox(&play, err);
    play.start_us = idem__mono_us();
    if (status == IDEM_OK && play.err.status == IDEM_OK) {
        act(&play);
        *told = play_outcome(&play);
        if (!*told)
            play_broke(&play, "answer", "out of memory");
    }
    if (status == IDEM_OK && play.err.status != IDEM_OK) {
        json_decref(*told);
        *told = NULL;
        status = idem__fail(err, play.err.status, "%s", play.err.text);
    }
    close_sandbox(&play);
    return status;
}

json_t *
play_list(void)
{
    json_t *schemes = json_array();

    for (size_t i = 0; i < play_scheme_count; i++) {
        const struct play_scheme *scheme = &play_schemes[i];
        json_t *actions = json_array(), *breaks = json_array();

        for (int a = 0; a < PLAY_ACTIONS; a++) {
            if (scheme->actions & 1u << a)
                json_array_append_new(actions, json_string(action_names[a]));
            if (scheme->breaks & 1u << a)
                json_array_append_new(breaks, json_string(action_names[a]));
        }
        json_array_append_new(schemes,
                              json_pack("{s:s, s:o, s:o}", "name", scheme->name,
                                        "actions", actions, "breaks", breaks));
    }
    return json_pack("{s:s, s:o}", "verdict", "schemes", "schemes", schemes);
}
