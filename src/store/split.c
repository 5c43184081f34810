/*
 * split.c - writes a large batch through several connections, so that several
 * cores of a database server work on it.
 *
 *                  ┌── first share ──▶ the first connection, this thread
 *   swap(batch) ───┤
 *                  └── next shares ──▶ helpers: a thread and a connection each
 *
 * The keys of a batch are sorted and distinct, so the shares are disjoint and
 * cannot wait for each other's rows. Each share is a separate transaction.
 * Everything except large batches uses only the first connection; what has
 * expired is removed on another one if there is much of it (sweeper.h).
 *
 * A batch is split only if every share gets at least `share` swaps. Below that,
 * two commits, which wait for each other's sync, cost more than a second core
 * saves. The helpers' threads and connections are created with the first large
 * batch, so that a quiet service has one connection.
 *
 * If a helper cannot connect and the first connection works, the first
 * connection writes the helper's share too, and batches are not split for
 * REST_US. If a helper loses a reply, its swaps are LOST as on any connection,
 * and the next batch connects again.
 */
#include "columns.h"
#include "sweeper.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_MAX 8
#define CONNECTIONS 2
#define SHARE_MAX 1000000
#define REST_US 1000000

enum errand { NOTHING, SWAP, LEAVE };

struct split_helper {
    struct split_store *owner;
    struct idem_store *store; /* NULL: not open yet */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* guards errand; the rest belongs to the thread */
    pthread_cond_t turn;  /* signalled when errand is not NOTHING */
    enum errand errand;
    struct idem_swap *swaps;
    size_t count;
    struct idem_arena arena;
    enum idem_status status;
    struct idem_error err;
};

struct split_store {
    struct idem_store base;
    const struct idem_store_type *type; /* of the stores behind this one */
    struct idem_store_options options;  /* for the helpers, which log nothing */
    char *url;                          /* without this store's parameters */
    struct idem_store *first;
    struct split_helper helpers[CONNECTIONS_MAX - 1];
    struct idem__sweeper sweeper;
    size_t connections, share;
    int64_t rest_until_us; /* until then batches are not split */
    bool told;             /* the failure of a helper's connection was logged */
    uint64_t cuts;
};

/* Copy the URL without this store's parameters, and read those. */
static enum idem_status
take_parameters(const char *url, struct split_store *self,
                struct idem_error *err)
{
    int64_t connections = CONNECTIONS, share = (int64_t)self->type->share;
    const char *flaw = NULL;
    char shown[160];

    self->url = strdup(url);
    if (!self->url)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (!idem__url_take_number(self->url, "connections", 1, CONNECTIONS_MAX,
                               &connections))
        flaw = "connections is a number from 1 to 8";
    else if (!idem__url_take_number(self->url, "share", 1, SHARE_MAX, &share))
        flaw = "share is a number from 1 to 1000000";
    self->connections = (size_t)connections;
    self->share = (size_t)share;
    if (!flaw)
        return IDEM_OK;
    idem__url_redact(url, shown, sizeof(shown));
    return idem__fail(err, IDEM_ERR_INVALID, "\"%s\": %s", shown, flaw);
}

/* ---- a helper, on its own thread ----------------------------------------- */

static void
do_share(struct split_helper *helper)
{
    struct split_store *self = helper->owner;

    helper->err = (struct idem_error){IDEM_OK, ""};
    helper->status = IDEM_OK;
    idem__swaps_set(helper->swaps, helper->count, IDEM_SWAP_NOT_STORED);
    if (!helper->store)
        helper->status =
            idem__store_open_as(self->type, self->url, &self->options,
                                &helper->store, &helper->err);
    if (helper->status == IDEM_OK)
        helper->status =
            self->type->swap(helper->store, helper->swaps, helper->count,
                             &helper->arena, &helper->err);
}

static void *
help(void *arg)
{
    struct split_helper *helper = arg;

    pthread_mutex_lock(&helper->lock);
    while (helper->errand != LEAVE) {
        if (helper->errand == SWAP) {
            do_share(helper);
            helper->errand = NOTHING;
            pthread_cond_signal(&helper->turn);
        }
        pthread_cond_wait(&helper->turn, &helper->lock);
    }
    pthread_mutex_unlock(&helper->lock);
    return NULL;
}

static bool
start_helper(struct split_helper *helper)
{
    if (!helper->running)
        helper->running =
            idem__thread_start(&helper->thread, "idem-share", help, helper);
    return helper->running;
}

static void
send_helper(struct split_helper *helper, enum errand errand)
{
    pthread_mutex_lock(&helper->lock);
    helper->errand = errand;
    pthread_cond_signal(&helper->turn);
    pthread_mutex_unlock(&helper->lock);
}

static void
await_helper(struct split_helper *helper)
{
    pthread_mutex_lock(&helper->lock);
    while (helper->errand != NOTHING)
        pthread_cond_wait(&helper->turn, &helper->lock);
    pthread_mutex_unlock(&helper->lock);
}

/* ---- swap -----------------------------------------------------------------
 */

/* The number of shares of a batch; 1: it is not split. */
static size_t
shares_of(struct split_store *self, size_t count)
{
    size_t shares = count / self->share;

    if (shares > self->connections)
        shares = self->connections;
    if (shares < 2 || idem__store_boot_us(&self->base) < self->rest_until_us)
        return 1;
    for (size_t i = 0; i < shares - 1; i++) {
        if (!start_helper(&self->helpers[i]))
            return i + 1;
    }
    return shares;
}

static bool
all_are(const struct idem_swap *swaps, size_t count, enum idem_outcome outcome)
{
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome != outcome)
            return false;
    }
    return true;
}

/* Copy the records that refused swaps found to the caller's arena. */
static enum idem_status
take_found(struct split_helper *helper, struct idem_arena *arena,
           struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    for (size_t i = 0; i < helper->count; i++) {
        struct idem_swap *swap = &helper->swaps[i];

        if (swap->outcome != IDEM_SWAP_REFUSED ||
            swap->found.state == IDEM_STATE_ABSENT ||
            idem_arena_record(arena, &swap->found, &swap->found))
            continue;
        swap->outcome = IDEM_SWAP_NOT_STORED;
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    idem_arena_reset(&helper->arena);
    return status;
}

/* A helper cannot connect although the first connection works. */
static void
rest(struct split_store *self, const struct split_helper *helper)
{
    if (!self->told)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "one of several connections failed, so the first does all "
                  "for now: %s",
                  helper->err.text);
    self->told = true;
    self->rest_until_us = idem__store_boot_us(&self->base) + REST_US;
}

/* Wait for a share and take its outcome. */
static enum idem_status
take_share(struct split_store *self, struct split_helper *helper,
           bool first_works, struct idem_arena *arena, struct idem_error *err)
{
    await_helper(helper);
    if (helper->status == IDEM_OK)
        return take_found(helper, arena, err);
    if (first_works &&
        (!helper->store || helper->status == IDEM_ERR_UNAVAILABLE))
        rest(self, helper);
    if (first_works &&
        all_are(helper->swaps, helper->count, IDEM_SWAP_NOT_STORED))
        return self->type->swap(self->first, helper->swaps, helper->count,
                                arena, err);
    (void)take_found(helper, arena, NULL);
    if (err)
        *err = helper->err;
    return helper->status;
}

/* Give all shares but the first to helpers; returns the number of swaps in the
 * first share. */
static size_t
send_shares(struct split_store *self, struct idem_swap *swaps, size_t count,
            size_t shares)
{
    for (size_t i = 1; i < shares; i++) {
        struct split_helper *helper = &self->helpers[i - 1];
        size_t start = count * i / shares;

        helper->swaps = swaps + start;
        helper->count = count * (i + 1) / shares - start;
        send_helper(helper, SWAP);
    }
    return count / shares;
}

/* Called while no helper works. */
static void
note_links(struct split_store *self)
{
    self->base.link = self->first->link;
    for (size_t i = 0; i < self->connections - 1; i++) {
        if (self->helpers[i].store)
            self->base.link ^= self->helpers[i].store->link;
    }
}

/* The sweeper removes what expired about as fast as records are made. */
static void
note_made(struct split_store *self, const struct idem_swap *swaps, size_t count)
{
    size_t made = 0;

    for (size_t i = 0; i < count; i++)
        made += swaps[i].expected == 0 && swaps[i].outcome == IDEM_SWAP_STORED;
    atomic_fetch_add_explicit(&self->sweeper.made, made, memory_order_relaxed);
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct split_store *self = (struct split_store *)store;
    size_t shares = shares_of(self, count);
    size_t first_count = send_shares(self, swaps, count, shares);
    enum idem_status first, status, one;
    bool all_work = shares > 1;

    first = self->type->swap(self->first, swaps, first_count, arena, err);
    status = first;
    for (size_t i = 1; i < shares; i++) {
        struct split_helper *helper = &self->helpers[i - 1];

        one = take_share(self, helper, first == IDEM_OK, arena,
                         status == IDEM_OK ? err : NULL);
        all_work = all_work && helper->status == IDEM_OK;
        if (status == IDEM_OK)
            status = one;
    }
    note_links(self);
    note_made(self, swaps, count);
    self->cuts += shares > 1;
    if (all_work)
        self->told = false;
    return status;
}

/* ---- the rest -------------------------------------------------------------
 */

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct split_store *self = (struct split_store *)store;
    enum idem_status status =
        self->type->load(self->first, loads, count, arena, err);

    note_links(self);
    return status;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_query *query,
             struct idem_error *err)
{
    struct split_store *self = (struct split_store *)store;

    return self->type->scan(self->first, query, err);
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct split_store *self = (struct split_store *)store;

    return self->type->now(self->first, now_us, err);
}

/* Every connection checks its own server. */
static void
tend(struct idem_store *store, int64_t drop_ms)
{
    struct split_store *self = (struct split_store *)store;

    self->type->tend(self->first, drop_ms);
    for (size_t i = 0; i < self->connections - 1; i++) {
        if (self->helpers[i].store)
            self->type->tend(self->helpers[i].store, drop_ms);
    }
    if (self->type->sweep)
        idem__sweeper_tend(&self->sweeper, drop_ms, self->connections == 1);
}

static bool
watch(struct idem_store *store, const uint8_t key[IDEM_KEY_LEN], bool on)
{
    struct split_store *self = (struct split_store *)store;

    if (!self->first->news) {
        self->first->news_arg = store->news_arg;
        self->first->news = store->news;
    }
    return self->type->watch && self->type->watch(self->first, key, on);
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct split_store *self = (struct split_store *)store;
    size_t open = 1;

    self->type->figures(self->first, each, arg);
    for (size_t i = 0; i < self->connections - 1; i++)
        open += self->helpers[i].store != NULL;
    each(arg, "store_connections", (double)open);
    each(arg, "store_batches_cut_total", (double)self->cuts);
}

static void
close_store(struct idem_store *store)
{
    struct split_store *self = (struct split_store *)store;

    for (size_t i = 0; i < CONNECTIONS_MAX - 1; i++) {
        struct split_helper *helper = &self->helpers[i];

        if (helper->running) {
            send_helper(helper, LEAVE);
            pthread_join(helper->thread, NULL);
        }
        idem__store_close(helper->store);
        idem_arena_clear(&helper->arena);
        pthread_mutex_destroy(&helper->lock);
        pthread_cond_destroy(&helper->turn);
    }
    idem__sweeper_close(&self->sweeper);
    idem__store_close(self->first);
    free(self->url);
}

/* The first connection logs the same messages. */
static void
say_nothing(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)text;
}

static const struct idem_store_type split_type = {
    .scheme = "split",
    .size = sizeof(struct split_store),
    .swap = swap_batch,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .watch = watch,
    .figures = figures,
    .close = close_store,
};

enum idem_status
idem__split_open(const struct idem_store_type *type, const char *url,
                 const struct idem_store_options *options,
                 struct idem_store **store, struct idem_error *err)
{
    struct split_store *self = idem__store_make(&split_type, options, err);
    enum idem_status status;

    if (!self)
        return IDEM_ERR_MEMORY;
    self->type = type;
    self->options = *options;
    self->options.log = say_nothing;
    for (size_t i = 0; i < CONNECTIONS_MAX - 1; i++) {
        self->helpers[i].owner = self;
        pthread_mutex_init(&self->helpers[i].lock, NULL);
        pthread_cond_init(&self->helpers[i].turn, NULL);
    }
    status = take_parameters(url, self, err);
    if (status == IDEM_OK)
        status =
            idem__store_open_as(type, self->url, options, &self->first, err);
    if (status == IDEM_OK) {
        self->base.max_record = self->first->max_record;
        idem__sweeper_open(&self->sweeper, type, self->url, &self->options,
                           self->first);
    }
    return idem__store_opened(&self->base, status, store);
}

enum idem_status
idem__split_parse(const struct idem_store_type *type, const char *url,
                  struct idem_error *err)
{
    struct split_store self = {.type = type};
    enum idem_status status = take_parameters(url, &self, err);

    if (status == IDEM_OK)
        status = idem__store_parse_as(type, self.url, err);
    free(self.url);
    return status;
}

enum idem_status
idem__split_init(const struct idem_store_type *type, const char *url,
                 struct idem_error *err)
{
    struct split_store self = {.type = type};
    enum idem_status status = take_parameters(url, &self, err);

    if (status == IDEM_OK)
        status = idem__store_init_as(type, self.url, err);
    free(self.url);
    return status;
}
