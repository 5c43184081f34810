/*
 * http_doubt.c - how many records are in doubt, and since when.
 *
 * Only a look through the store can tell. While somebody reads the metrics,
 * the watcher looks at a few thousand records a second, so that a large store
 * is not disturbed, and the figures are those of the last whole look; before
 * the first one they are not known (NaN). Who reads them waits a moment for a
 * look, and meanwhile it goes on without pauses.
 */
#include "../../engine/engine.h"
#include "http_inner.h"

#include <math.h>
#include <string.h>
#include <time.h>

#define LOOK_COUNT 2000
#define WANTED_MS 120000 /* a reader comes about every 15 s to 60 s */
#define PAUSE_MS 1000    /* between two looks */
/* Of a reader, for a look that began after it came. */
#define PATIENCE_MS 300
#define NAP_NS (5 * 1000000L)

static void
finish_look(struct http_doubt *doubt)
{
    doubt->whole = doubt->begun;
    doubt->last_count = doubt->count;
    doubt->last_oldest = doubt->oldest;
    doubt->count = 0;
    doubt->oldest = 0;
    if (doubt->whole >= doubt->wanted)
        doubt->next_ms = http_now_ms() + PAUSE_MS;
}

static void
looked(void *arg, enum idem_status status, const struct idem_record *records,
       size_t count, const struct idem_cursor *next,
       const struct idem_error *err)
{
    struct http *http = arg;
    struct http_doubt *doubt = &http->doubt;

    (void)err;
    pthread_mutex_lock(&http->lock);
    http->in_flight--;
    doubt->looking = false;
    if (status == IDEM_OK) {
        for (size_t i = 0; i < count; i++) {
            doubt->count++;
            if (doubt->oldest == 0 || records[i].lease_until < doubt->oldest)
                doubt->oldest = records[i].lease_until;
        }
        doubt->cursor = *next;
        if (strcmp(next->text, "0") == 0)
            finish_look(doubt);
        if (doubt->whole < doubt->wanted)
            pthread_cond_signal(&http->stir);
    } else {
        doubt->next_ms = http_now_ms() + PAUSE_MS;
    }
    pthread_mutex_unlock(&http->lock);
}

void
http_doubt_tick(struct http *http, int64_t now)
{
    const struct idem_filter filter = {.doubt = true};
    struct http_doubt *doubt = &http->doubt;

    if (doubt->looking || now < doubt->next_ms ||
        now > doubt->wanted_until_ms || http->draining)
        return;
    if (doubt->cursor.text[0] == 0)
        memcpy(doubt->cursor.text, "0", 2);
    if (strcmp(doubt->cursor.text, "0") == 0)
        doubt->begun++;
    if (idem__scan_submit(http->server->engine, &filter, &doubt->cursor,
                          LOOK_COUNT, looked, http, NULL) != IDEM_OK)
        return;
    doubt->looking = true;
    http->in_flight++;
}

/* Under the lock. In a small store a look is done at once, and its reader sees
 * what is in doubt now. Nobody waits long for a look through a large one, nor
 * while others wait for this thread. */
static void
await_look(struct http *http)
{
    const struct timespec nap = {0, NAP_NS};
    struct http_doubt *doubt = &http->doubt;
    int64_t until = http_now_ms() + PATIENCE_MS;

    doubt->wanted = doubt->begun + 1;
    doubt->next_ms = 0;
    pthread_cond_signal(&http->stir);
    while (doubt->whole < doubt->wanted && http_now_ms() < until &&
           !http->aside && !http->draining) {
        pthread_mutex_unlock(&http->lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&http->lock);
    }
    doubt->wanted = 0;
}

void
http_doubts(struct http *http, double *count, double *oldest_s)
{
    struct http_doubt *doubt = &http->doubt;
    struct idem__stats stats = {0};

    pthread_mutex_lock(&http->lock);
    doubt->wanted_until_ms = http_now_ms() + WANTED_MS;
    await_look(http);
    idem__stats(http->server->engine, &stats);
    *count = doubt->whole > 0 ? (double)doubt->last_count : NAN;
    *oldest_s = doubt->whole > 0 ? 0 : NAN;
    if (doubt->last_oldest > 0 && stats.now_ms > doubt->last_oldest)
        *oldest_s = (double)(stats.now_ms - doubt->last_oldest) / 1000.0;
    pthread_mutex_unlock(&http->lock);
}
