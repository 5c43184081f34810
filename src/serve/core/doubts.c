/*
 * doubts.c - the thread that scans the store for doubts; see doubts.h.
 *
 * A doubt is new if the previous scan did not see it. The thread remembers the
 * keys that a scan saw, 8 bytes each and at most DOUBTS_KNOWN of them; doubts
 * beyond that number are counted but not reported one by one.
 */
#include "doubts.h"

#include "../../base/json_memory.h"
#include "../../engine/engine.h"
#include "../../store/store.h"
#include "json_record.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_COUNT 2000
#define PAUSE_MS 1000  /* between two scans */
#define NAP_MS 200     /* between two parts of a scan ... */
#define CALM_MS 2000   /* ... that no reader waits for */
#define QUICK_PARTS 10 /* without pauses, if a reader waits for the figures */
#define DOUBTS_KNOWN 100000
#define TOLD_MAX 100 /* records in one message */

struct keys {
    uint64_t *list;
    size_t count, room;
};

/* The oldest doubts of a scan, sorted. */
struct oldest {
    size_t count;
    int64_t since[DOUBTS_LISTED];
    json_t *records[DOUBTS_LISTED];
};

struct doubts {
    struct server *server;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t stir;
    atomic_bool over;
    uint64_t begun, whole, wanted; /* numbers of scans */
    uint64_t hurried;              /* the last scan that a reader waits for */
    uint64_t last_count;           /* of the last complete scan */
    int64_t last_oldest;           /* when, in the store's time; 0: none */

    /* The current scan. */
    bool looking, failed; /* the engine has yet to answer a part; it failed */
    struct idem_cursor cursor;
    uint64_t count;
    int64_t oldest;
    struct keys seen, before;    /* by this and by the last scan, sorted */
    struct oldest found, listed; /* likewise */

    /* The next report. Only the thread uses it, while no part of a scan is
     * pending. */
    int64_t next_told_ms;
    json_t *news;
    uint64_t news_count;
};

/* ---- one scan ---------------------------------------------------------- */

static int
by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static bool
keys_add(struct keys *keys, uint64_t key)
{
    void *more;

    if (keys->count >= DOUBTS_KNOWN)
        return false;
    more = idem__grow(keys->list, keys->count, &keys->room, sizeof(key));
    if (!more)
        return false;
    keys->list = more;
    keys->list[keys->count++] = key;
    return true;
}

static void
add_news(struct doubts *doubts, const struct idem_record *r)
{
    json_t *json;

    doubts->news_count++;
    if (json_array_size(doubts->news) >= TOLD_MAX)
        return;
    json = json_pack("{s:s, s:I, s:I, s:I}", "type", idem_type_name(r->type),
                     "since", (json_int_t)r->lease_until, "attempt",
                     (json_int_t)r->attempt, "fence", (json_int_t)r->fence);
    server_json_put_bytes(json, "scope", r->scope, false);
    server_json_put_bytes(json, "id", r->id, false);
    server_json_put_bytes(json, "subject", r->subject, false);
    json_array_append_new(doubts->news, json);
}

static void
oldest_clear(struct oldest *oldest)
{
    for (size_t i = 0; i < oldest->count; i++)
        json_decref(oldest->records[i]);
    oldest->count = 0;
}

/* A scan may return a record twice. */
static bool
has(const struct oldest *oldest, int64_t since, const json_t *record)
{
    for (size_t i = 0; i < oldest->count; i++)
        if (oldest->since[i] == since && json_equal(oldest->records[i], record))
            return true;
    return false;
}

static void
oldest_add(struct oldest *oldest, const struct idem_record *record)
{
    size_t at = oldest->count;
    json_t *json;

    if (at == DOUBTS_LISTED && oldest->since[at - 1] <= record->lease_until)
        return;
    json = server_json_record(record);
    if (!json || has(oldest, record->lease_until, json)) {
        json_decref(json);
        return;
    }
    if (at == DOUBTS_LISTED)
        json_decref(oldest->records[--at]);
    for (; at > 0 && oldest->since[at - 1] > record->lease_until; at--) {
        oldest->since[at] = oldest->since[at - 1];
        oldest->records[at] = oldest->records[at - 1];
    }
    oldest->since[at] = record->lease_until;
    oldest->records[at] = json;
    if (oldest->count < DOUBTS_LISTED)
        oldest->count++;
}

static void
note(struct doubts *doubts, const struct idem_record *record)
{
    uint8_t digest[IDEM_KEY_LEN];
    uint64_t key;

    doubts->count++;
    if (doubts->oldest == 0 || record->lease_until < doubts->oldest)
        doubts->oldest = record->lease_until;
    oldest_add(&doubts->found, record);
    if (!doubts->server->config->on_doubt)
        return;
    idem__key(record->type, record->scope, record->id, digest);
    memcpy(&key, digest, sizeof(key));
    if (keys_add(&doubts->seen, key) &&
        (doubts->before.count == 0 ||
         !bsearch(&key, doubts->before.list, doubts->before.count, sizeof(key),
                  by_number)))
        add_news(doubts, record);
}

/* On the engine's thread. */
static void
looked(void *arg, enum idem_status status, const struct idem_record *records,
       size_t count, const struct idem_cursor *next,
       const struct idem_error *err)
{
    struct doubts *doubts = arg;

    (void)err;
    pthread_mutex_lock(&doubts->mutex);
    doubts->looking = false;
    doubts->failed = status != IDEM_OK;
    for (size_t i = 0; i < count; i++)
        note(doubts, &records[i]);
    if (next)
        doubts->cursor = *next;
    pthread_cond_broadcast(&doubts->stir);
    pthread_mutex_unlock(&doubts->mutex);
}

/* Pause. With `hurry`, do not pause while a reader waits for a scan. Under the
 * lock. */
static void
nap(struct doubts *doubts, int64_t ms, bool hurry)
{
    struct timespec until = idem__deadline(ms * 1000);

    if (!doubts->over && !(hurry && doubts->whole < doubts->wanted))
        pthread_cond_timedwait(&doubts->stir, &doubts->mutex, &until);
}

/* One part of a scan. It is submitted under the lock, because the engine may be
 * closed once `over` is set. The engine still answers a part that it took
 * before. */
static bool
look_on(struct doubts *doubts)
{
    const struct idem_filter filter = {.doubt = true};

    if (doubts->over ||
        idem__scan_submit(doubts->server->engine, &filter, &doubts->cursor,
                          LOOK_COUNT, looked, doubts, NULL) != IDEM_OK)
        return false;
    doubts->looking = true;
    while (doubts->looking && !doubts->over)
        pthread_cond_wait(&doubts->stir, &doubts->mutex);
    return !doubts->over && !doubts->failed;
}

static bool
is_hurried(const struct doubts *doubts)
{
    return doubts->hurried >= doubts->begun || doubts->server->config->on_doubt;
}

/* Under the lock, which is unlocked during waits. */
static void
look(struct doubts *doubts)
{
    struct keys last;
    int parts = 0;
    bool fine;

    doubts->begun++;
    doubts->count = 0;
    doubts->oldest = 0;
    doubts->seen.count = 0;
    oldest_clear(&doubts->found);
    doubts->cursor = (struct idem_cursor){"0"};
    for (;;) {
        fine = look_on(doubts);
        if (!fine || strcmp(doubts->cursor.text, "0") == 0)
            break;
        nap(doubts, is_hurried(doubts) ? NAP_MS : CALM_MS,
            ++parts < QUICK_PARTS);
    }
    if (!fine) {
        doubts->wanted = 0; /* the scan failed: readers stop waiting */
        return;
    }
    doubts->whole = doubts->begun;
    doubts->last_count = doubts->count;
    doubts->last_oldest = doubts->oldest;
    oldest_clear(&doubts->listed);
    doubts->listed = doubts->found;
    doubts->found.count = 0;
    if (doubts->seen.count > 0)
        qsort(doubts->seen.list, doubts->seen.count, sizeof(uint64_t),
              by_number);
    last = doubts->before;
    doubts->before = doubts->seen;
    doubts->seen = last;
}

/* ---- reporting --------------------------------------------------------- */

/* Report new doubts, at most one message per on-doubt-every. If a message could
 * not be sent, it is sent again after that interval. */
static void
tell(struct doubts *doubts)
{
    const struct server_config *config = doubts->server->config;
    char *text, why[256];

    if (doubts->news_count == 0 || idem__mono_ms() < doubts->next_told_ms)
        return;
    doubts->next_told_ms = idem__mono_ms() + config->on_doubt_every_ms;
    idem__json_begin();
    text = idem__json_text(json_pack("{s:s, s:I, s:I, s:O}", "event", "doubt",
                                     "new", (json_int_t)doubts->news_count,
                                     "doubts", (json_int_t)doubts->last_count,
                                     "records", doubts->news));
    if (!text)
        return;
    server_log(doubts->server->log, LOG_WARNING, "doubt",
               LOG_NUMBER("new", doubts->news_count),
               LOG_NUMBER("doubts", doubts->last_count));
    if (on_doubt_tell(config->on_doubt, text, &doubts->over, why,
                      sizeof(why))) {
        json_array_clear(doubts->news);
        doubts->news_count = 0;
    } else {
        server_log(doubts->server->log, LOG_WARNING, "on-doubt-failed",
                   LOG_TEXT("why", why));
    }
    free(text);
}

/* ---- the thread -------------------------------------------------------- */

static void *
watch(void *arg)
{
    struct doubts *doubts = arg;
    bool always = doubts->server->config->on_doubt != NULL;

    pthread_mutex_lock(&doubts->mutex);
    while (!doubts->over) {
        if (always || doubts->whole < doubts->wanted)
            look(doubts);
        pthread_mutex_unlock(&doubts->mutex);
        if (always && !doubts->over)
            tell(doubts);
        pthread_mutex_lock(&doubts->mutex);
        nap(doubts, PAUSE_MS, true);
    }
    pthread_mutex_unlock(&doubts->mutex);
    return NULL;
}

enum idem_status
doubts_open(struct server *server, struct doubts **doubts,
            struct idem_error *err)
{
    struct doubts *self = calloc(1, sizeof(*self));

    if (!self || !(self->news = json_array())) {
        free(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    self->server = server;
    pthread_mutex_init(&self->mutex, NULL);
    idem__cond_init(&self->stir);
    if (pthread_create(&self->thread, NULL, watch, self) != 0) {
        json_decref(self->news);
        free(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "cannot start a thread");
    }
    *doubts = self;
    return IDEM_OK;
}

void
doubts_stop(struct doubts *doubts)
{
    if (!doubts)
        return;
    pthread_mutex_lock(&doubts->mutex);
    doubts->over = true;
    pthread_cond_signal(&doubts->stir);
    pthread_mutex_unlock(&doubts->mutex);
}

void
doubts_close(struct doubts *doubts)
{
    if (!doubts)
        return;
    doubts_stop(doubts);
    pthread_join(doubts->thread, NULL);
    pthread_cond_destroy(&doubts->stir);
    pthread_mutex_destroy(&doubts->mutex);
    json_decref(doubts->news);
    oldest_clear(&doubts->found);
    oldest_clear(&doubts->listed);
    free(doubts->seen.list);
    free(doubts->before.list);
    free(doubts);
}

uint64_t
doubts_want(struct doubts *doubts, bool hurry)
{
    uint64_t wanted;

    pthread_mutex_lock(&doubts->mutex);
    wanted = doubts->wanted = doubts->begun + 1;
    if (hurry)
        doubts->hurried = wanted;
    pthread_cond_signal(&doubts->stir);
    pthread_mutex_unlock(&doubts->mutex);
    return wanted;
}

bool
doubts_pending(struct doubts *doubts, uint64_t look)
{
    bool pending;

    pthread_mutex_lock(&doubts->mutex);
    pending = doubts->whole < look && doubts->wanted >= look;
    pthread_mutex_unlock(&doubts->mutex);
    return pending;
}

json_t *
doubts_oldest(struct doubts *doubts)
{
    json_t *all = json_array();

    pthread_mutex_lock(&doubts->mutex);
    for (size_t i = 0; i < doubts->listed.count; i++)
        json_array_append_new(all, json_deep_copy(doubts->listed.records[i]));
    pthread_mutex_unlock(&doubts->mutex);
    return all;
}

uint64_t
doubts_read(struct doubts *doubts, uint64_t *count, double *oldest_s)
{
    struct idem__stats stats = {0};
    uint64_t whole;

    idem__stats(doubts->server->engine, &stats);
    pthread_mutex_lock(&doubts->mutex);
    whole = doubts->whole;
    *count = doubts->last_count;
    *oldest_s = 0;
    if (doubts->last_oldest > 0 && stats.now_ms > doubts->last_oldest)
        *oldest_s = (double)(stats.now_ms - doubts->last_oldest) / 1000.0;
    pthread_mutex_unlock(&doubts->mutex);
    return whole;
}
