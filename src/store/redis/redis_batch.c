/*
 * redis_batch.c - executes one batch of swaps or loads, in rounds of pipelines.
 *
 * A swap is one call of a script. Scripts run alone, so nothing comes between
 * the compare and the set. All swaps for one server are sent in one pipeline.
 * If replicas must have them, a WAIT after them says how many do.
 *
 * WAIT covers only what this connection itself has sent to the replicas.
 * (Before Redis 7.2 it covered everything up to the last command.) A record
 * that was found may be another client's write that no replica has yet, or this
 * store's own write on a connection that broke. So if replicas are required,
 * the script sends them a command without effect for every record that it
 * finds. A replica that confirms this command has also confirmed everything
 * before it, including the record. An absent record needs no such command: a
 * failover could only bring back an older record, which forbids more. Only
 * replicas get that command; the append-only file does not.
 *
 *   round: route -> add commands -> send, read -> answers
 *                       ^                            |
 *                       +--- MOVED, ASK, NOSCRIPT ---+
 */
#include "redis.h"

#include "../../base/le.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS_MAX 6
#define CHUNK_LEN ((size_t)8 << 20)
#define TRYAGAIN_US 10000

/*
 * KEYS[1] the name; ARGV: "r" if replicas must have what is found; for a swap
 * also the rev expected or "", the new rev or "", the new value, when to drop
 * it in ms or "", and "f" if the server is too full for a new record. The
 * answer is 1 if it is stored, 0 if the server is too full, else the stored
 * value, or nil. The rev is in bytes 32 to 39 of a value.
 *
 * With the flag allow-oom the script writes although maxmemory is reached,
 * because started requests must be finished. New records are refused before
 * that, by "f".
 */
const char *const idem__redis_script =
    "#!lua flags=allow-oom\n"
    "local rev = redis.call('GETRANGE', KEYS[1], 32, 39)\n"
    "local own = rev ~= '' and rev == ARGV[3]\n"
    "if own or rev ~= ARGV[2] then\n"
    "    if rev ~= '' and ARGV[1] == 'r' then\n"
    "        redis.set_repl(redis.REPL_REPLICA)\n"
    "        redis.call('APPEND', KEYS[1], '')\n"
    "    end\n"
    "    return own and 1 or redis.call('GET', KEYS[1])\n"
    "end\n"
    "if rev == '' and ARGV[6] == 'f' then return 0 end\n"
    "if ARGV[3] == '' then redis.call('DEL', KEYS[1])\n"
    "elseif ARGV[5] == '' then redis.call('SET', KEYS[1], ARGV[4])\n"
    "else redis.call('SET', KEYS[1], ARGV[4], 'PXAT', ARGV[5]) end\n"
    "return 1\n";

/* The state of one element in this round. */
enum progress {
    DONE,
    AGAIN,     /* to be routed and sent */
    SENT,      /* in this round's pipeline */
    CONFIRMED, /* answered, if the WAIT after it is satisfied */
};

struct element {
    enum progress progress;
    bool eval;  /* the server does not know the script: send its text */
    bool again; /* its connection broke once, and nothing was done */
    struct redis_link *ask, *via;
};

struct batch {
    struct redis_store *self;
    struct idem_swap *swaps; /* or */
    struct idem_load *loads;
    struct element *elements;
    size_t count;
    struct idem_arena *arena;
    enum idem_status status; /* the first error */
    struct idem_error *err;
    int64_t deadline_us;
    bool pause;
    struct redis_link *used[REDIS_NODES_MAX];
    size_t used_count;
};

__attribute__((format(printf, 3, 4))) static void
blame(struct batch *batch, enum idem_status status, const char *format, ...)
{
    char text[512];
    va_list args;

    if (batch->status != IDEM_OK)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    batch->status = idem__fail(batch->err, status, "%s", text);
}

static void
end(struct batch *batch, size_t i, enum idem_outcome outcome)
{
    batch->elements[i].progress = DONE;
    if (batch->swaps)
        batch->swaps[i].outcome = outcome;
}

/* ---- commands -------------------------------------------------------- */

/* Call the script, by its SHA-1 if the server knows it. argc, argv: the
 * arguments in ARGV after the first. */
static bool
add_call(struct batch *batch, size_t i, struct redis_link *link,
         const uint8_t *key, int argc, const struct idem_bytes *argv)
{
    char name[REDIS_NAME_MAX];
    size_t name_len = idem__redis_name(batch->self, key, name);
    bool eval = batch->elements[i].eval;
    struct idem_bytes words[10] = {
        idem_text(eval ? "EVAL" : "EVALSHA"),
        idem_text(eval ? idem__redis_script : idem__redis_script_sha),
        {"1", 1},
        {name, name_len},
        idem_text(idem__redis_replicas(batch->self) > 0 ? "r" : "")};

    for (int k = 0; k < argc; k++)
        words[5 + k] = argv[k];
    return idem__redis_link_add(link, (uint32_t)i, 5 + argc, words);
}

static bool
add_swap(struct batch *batch, size_t i, struct redis_link *link)
{
    const struct idem_swap *swap = &batch->swaps[i];
    const struct idem_record *record = swap->record;
    char drop_at[24] = "";
    uint8_t expected[8], rev[8], *value = NULL;
    size_t len = 0;
    int64_t drop_ms = record ? idem__record_drop_at(record) : 0;

    if (drop_ms != 0)
        snprintf(drop_at, sizeof(drop_at), "%lld",
                 (long long)(drop_ms + IDEM__DROP_MARGIN_MS));
    if (record) {
        len = idem__encoded_len(record);
        value = idem_arena_take(batch->arena, len);
        if (!value)
            return false;
        idem__encode(record, value);
        idem__put64(rev, record->rev);
    }
    idem__put64(expected, swap->expected);
    return add_call(
        batch, i, link, swap->key, 5,
        (struct idem_bytes[]){
            {expected, swap->expected ? 8 : 0},
            {rev, record ? 8 : 0},
            {value, len},
            idem_text(drop_at),
            idem_text(idem__redis_facts_full(&link->facts) ? "f" : "")});
}

static bool
add_load(struct batch *batch, size_t i, struct redis_link *link)
{
    char name[REDIS_NAME_MAX];
    size_t len;

    if (idem__redis_replicas(batch->self) > 0)
        return add_call(batch, i, link, batch->loads[i].key, 0, NULL);
    len = idem__redis_name(batch->self, batch->loads[i].key, name);
    return idem__redis_link_add(link, (uint32_t)i, 2,
                                (struct idem_bytes[]){{"GET", 3}, {name, len}});
}

static void
use(struct batch *batch, struct redis_link *link)
{
    for (size_t i = 0; i < batch->used_count; i++) {
        if (batch->used[i] == link)
            return;
    }
    batch->used[batch->used_count++] = link;
}

/* The link for one element; NULL: the element is finished. */
static struct redis_link *
route(struct batch *batch, size_t i)
{
    struct element *element = &batch->elements[i];
    struct redis_link *link = element->ask;
    struct idem_error why = {IDEM_ERR_UNAVAILABLE, "redis: no time left"};

    if (idem__mono_us() >= batch->deadline_us)
        link = NULL;
    else if (!link)
        link = idem__redis_route(batch->self,
                                 batch->swaps ? batch->swaps[i].key
                                              : batch->loads[i].key,
                                 batch->deadline_us, &why);
    else if (!idem__redis_link_ready(link, batch->deadline_us))
        why = link->why, link = NULL;
    if (link)
        return link;
    blame(batch, IDEM_ERR_UNAVAILABLE, "%s", why.text);
    end(batch, i, IDEM_SWAP_NOT_STORED);
    return NULL;
}

static void
send_element(struct batch *batch, size_t i)
{
    struct element *element = &batch->elements[i];
    struct redis_link *link = route(batch, i);
    bool ok;

    if (!link)
        return;
    ok = !element->ask ||
         idem__redis_link_add_text(link, REDIS_TAG_NONE, "ASKING");
    ok = ok &&
         (batch->swaps ? add_swap(batch, i, link) : add_load(batch, i, link));
    element->via = link;
    element->ask = NULL;
    element->progress = SENT;
    use(batch, link);
    if (!ok) {
        blame(batch, IDEM_ERR_MEMORY, "redis: out of memory");
        end(batch, i, IDEM_SWAP_NOT_STORED);
    }
}

/* ---- answers --------------------------------------------------------- */

/* Does an error begin with this word, also if a script reported it? */
static bool
says(const char *text, const char *word)
{
    size_t len = strlen(word);
    const char *inner = strstr(text, ": -");

    return (strncmp(text, word, len) == 0 && text[len] == ' ') ||
           (inner && strncmp(inner + 3, word, len) == 0);
}

/* Errors after which the element is sent again, to another server or in another
 * form. */
static bool
goes_on(struct batch *batch, size_t i, const char *text)
{
    struct element *element = &batch->elements[i];
    struct redis_store *self = batch->self;
    struct redis_link *via = element->via;
    bool moved = says(text, "MOVED");

    element->progress = AGAIN;
    if (moved || says(text, "ASK")) {
        struct redis_link *to =
            idem__redis_route_redirect(self, via, text, moved);

        self->redirected++;
        element->ask = moved ? NULL : to;
        return to != NULL && self->slots != NULL;
    }
    if (says(text, "TRYAGAIN"))
        return batch->pause = true;
    if (says(text, "NOSCRIPT") && !element->eval)
        return element->eval = true;
    if (says(text, "READONLY")) {
        /* The server became a replica: check it, and ask which one is primary
         * now. */
        via->judged = false;
        self->map_stale = self->slots != NULL || self->settings.sentinel;
        return true;
    }
    return false;
}

/* Errors which mean that nothing was stored. */
static void
on_error(struct batch *batch, size_t i, const char *text)
{
    static const char *const harmless[] = {
        "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF",
        "NOAUTH",  "NOPERM",     "WRONGPASS",   "BUSY",       "READONLY",
        "MOVED",   "ASK",        "TRYAGAIN",    "NOSCRIPT",   "CROSSSLOT"};
    struct redis_link *via = batch->elements[i].via;
    enum idem_status status = IDEM_ERR_LOST; /* an unknown error */

    if (goes_on(batch, i, text))
        return;
    if (says(text, "CLUSTERDOWN"))
        batch->self->map_stale = true;
    if (says(text, "OOM"))
        status = IDEM_ERR_FULL;
    else if (says(text, "WRONGTYPE"))
        status = IDEM_ERR_CORRUPT;
    for (size_t k = 0; k < sizeof(harmless) / sizeof(harmless[0]); k++) {
        if (says(text, harmless[k]))
            status = IDEM_ERR_UNAVAILABLE;
    }
    blame(batch, status, "redis %s:%d: %s", via->host, via->port, text);
    end(batch, i,
        status == IDEM_ERR_LOST ? IDEM_SWAP_LOST : IDEM_SWAP_NOT_STORED);
}

static void
on_value(struct batch *batch, size_t i, const redisReply *reply)
{
    const uint8_t *key =
        batch->swaps ? batch->swaps[i].key : batch->loads[i].key;
    struct idem_record *record =
        batch->swaps ? &batch->swaps[i].found : &batch->loads[i].record;
    struct idem_error why;
    enum idem_status status;

    end(batch, i, IDEM_SWAP_REFUSED);
    batch->elements[i].progress = CONFIRMED;
    record->state = IDEM_STATE_ABSENT;
    if (reply->type == REDIS_REPLY_NIL)
        return;
    status = idem__value_read(key, (struct idem_bytes){reply->str, reply->len},
                              batch->arena, record, &why);
    if (status != IDEM_OK) {
        blame(batch, status, "%s", why.text);
        end(batch, i, IDEM_SWAP_NOT_STORED);
    }
}

static void
on_swapped(struct batch *batch, size_t i, bool stored)
{
    struct redis_link *via = batch->elements[i].via;

    if (stored) {
        end(batch, i, IDEM_SWAP_STORED);
        batch->elements[i].progress = CONFIRMED;
        return;
    }
    blame(batch, IDEM_ERR_FULL,
          "redis %s:%d: %lld of maxmemory's %lld bytes are used, so it takes "
          "no new records; raise maxmemory, or delete data of other programs",
          via->host, via->port, (long long)via->facts.used_memory,
          (long long)via->facts.max_memory);
    end(batch, i, IDEM_SWAP_NOT_STORED);
}

static void
on_element(struct batch *batch, size_t i, const redisReply *reply, bool sent)
{
    struct element *element = &batch->elements[i];

    if (!reply && (!sent || batch->loads) && !element->again) {
        element->again = true; /* nothing was done: try once more */
        element->progress = AGAIN;
    } else if (!reply) {
        blame(batch,
              sent && batch->swaps ? IDEM_ERR_LOST : IDEM_ERR_UNAVAILABLE, "%s",
              element->via->why.text);
        end(batch, i, sent ? IDEM_SWAP_LOST : IDEM_SWAP_NOT_STORED);
    } else if (reply->type == REDIS_REPLY_ERROR) {
        on_error(batch, i, reply->str);
    } else if (reply->type == REDIS_REPLY_INTEGER && batch->swaps) {
        on_swapped(batch, i, reply->integer == 1);
    } else if (reply->type == REDIS_REPLY_STRING ||
               reply->type == REDIS_REPLY_NIL) {
        on_value(batch, i, reply);
    } else {
        blame(batch, IDEM_ERR_LOST, "redis: unexpected reply");
        end(batch, i, IDEM_SWAP_LOST);
    }
}

/* Too few replicas have the writes. If the primary fails, what was stored or
 * found in this batch may be lost. */
static void
on_wait(struct batch *batch, struct redis_link *link, const redisReply *reply)
{
    int wanted = idem__redis_replicas(batch->self);
    long long got =
        reply && reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;

    if (got >= wanted)
        return;
    batch->self->wait_short++;
    batch->self->map_stale |= batch->self->settings.sentinel;
    link->checked_us = 0; /* check the server before the next batch */
    for (size_t i = 0; i < batch->count; i++) {
        bool stored =
            batch->swaps && batch->swaps[i].outcome == IDEM_SWAP_STORED;

        if (batch->elements[i].progress != CONFIRMED ||
            batch->elements[i].via != link)
            continue;
        blame(batch, stored ? IDEM_ERR_LOST : IDEM_ERR_UNAVAILABLE,
              "redis %s:%d: %lld of %d replica(s) confirmed in time",
              link->host, link->port, got, wanted);
        end(batch, i, stored ? IDEM_SWAP_LOST : IDEM_SWAP_NOT_STORED);
    }
}

static void
on_answer(void *arg, struct redis_link *link, uint32_t tag,
          const redisReply *reply, bool sent)
{
    struct batch *batch = arg;

    if (tag == REDIS_TAG_WAIT)
        on_wait(batch, link, reply);
    else if (tag == REDIS_TAG_MEMORY && reply &&
             reply->type == REDIS_REPLY_STRING)
        idem__redis_facts_read_memory(reply->str, reply->len, &link->facts);
    else if (tag == REDIS_TAG_PUBLISH)
        idem__redis_on_publish(batch->self, reply);
    else if (tag < REDIS_TAG_PUBLISH && batch->elements[tag].progress == SENT)
        on_element(batch, tag, reply, sent);
}

/* ---- rounds ---------------------------------------------------------- */

/* If maxmemory is set, each batch also reads how full the server is, for the
 * next batch. */
static void
add_memory_looks(struct batch *batch)
{
    for (size_t i = 0; i < batch->used_count && batch->swaps; i++) {
        struct redis_link *link = batch->used[i];

        if (link->facts.max_memory > 0)
            (void)idem__redis_link_add_text(link, REDIS_TAG_MEMORY,
                                            "INFO memory");
    }
}

static void
add_waits(struct batch *batch)
{
    char words[64];

    if (idem__redis_replicas(batch->self) == 0)
        return;
    snprintf(words, sizeof(words), "WAIT %d %lld",
             idem__redis_replicas(batch->self),
             (long long)batch->self->settings.wait_ms);
    for (size_t i = 0; i < batch->used_count; i++) {
        if (!idem__redis_link_add_text(batch->used[i], REDIS_TAG_WAIT, words))
            on_wait(batch, batch->used[i], NULL);
    }
}

/* After a final write, notify the waiters of other engines. */
static void
add_publishing(struct batch *batch)
{
    char name[REDIS_NAME_MAX];

    if (!batch->swaps || atomic_load(&batch->self->watcher.refused))
        return;
    for (size_t i = 0; i < batch->count; i++) {
        const struct idem_swap *swap = &batch->swaps[i];
        size_t len;

        if (batch->elements[i].progress != SENT || !idem__swap_wakes(swap))
            continue;
        len = idem__redis_name(batch->self, swap->key, name);
        (void)idem__redis_link_add(
            batch->elements[i].via, REDIS_TAG_PUBLISH, 3,
            (struct idem_bytes[]){{"SPUBLISH", 8}, {name, len}, {"", 0}});
    }
}

/* Returns true if another round is needed. */
static bool
run_round(struct batch *batch)
{
    bool again = false;

    batch->used_count = 0;
    batch->pause = false;
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->elements[i].progress == AGAIN)
            send_element(batch, i);
    }
    add_memory_looks(batch);
    add_waits(batch);
    add_publishing(batch);
    idem__redis_links_run(batch->used, batch->used_count, batch->deadline_us,
                          on_answer, batch);
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->elements[i].progress == CONFIRMED)
            batch->elements[i].progress = DONE;
        again |= batch->elements[i].progress == AGAIN;
    }
    if (again && batch->pause)
        usleep(TRYAGAIN_US);
    return again;
}

static void
run_chunk(struct batch *batch)
{
    const struct redis_settings *settings = &batch->self->settings;
    int round = 0;

    batch->deadline_us = idem__mono_us() + settings->timeout_ms * 1000;
    if (idem__redis_replicas(batch->self) > 0)
        batch->deadline_us += settings->wait_ms * 1000;
    for (size_t i = 0; i < batch->count; i++)
        batch->elements[i] = (struct element){.progress = AGAIN};
    while (run_round(batch) && ++round < ROUNDS_MAX)
        ;
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->elements[i].progress == DONE)
            continue;
        blame(batch, IDEM_ERR_UNAVAILABLE,
              "redis: sent from server to server, too often");
        end(batch, i, IDEM_SWAP_NOT_STORED);
    }
}

static void
count_outcomes(struct redis_store *self, const struct idem_swap *swaps,
               size_t count)
{
    for (size_t i = 0; i < count; i++) {
        self->lost += swaps[i].outcome == IDEM_SWAP_LOST;
        self->refused += swaps[i].outcome == IDEM_SWAP_REFUSED;
    }
    self->swaps += count;
}

enum idem_status
idem__redis_swap_batch(struct redis_store *self, struct idem_swap *swaps,
                       size_t count, struct idem_arena *arena,
                       struct idem_error *err)
{
    struct batch batch = {.self = self, .arena = arena, .err = err};
    size_t start = 0;

    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = IDEM_SWAP_NOT_STORED;
    batch.elements = idem_arena_take(arena, count * sizeof(*batch.elements));
    if (!batch.elements)
        return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
    while (start < count) {
        size_t len = 0;

        batch.swaps = swaps + start;
        for (batch.count = 0;
             start + batch.count < count && (len < CHUNK_LEN || len == 0);
             batch.count++) {
            const struct idem_record *record =
                swaps[start + batch.count].record;

            len += record ? idem__encoded_len(record) : 1;
        }
        run_chunk(&batch);
        start += batch.count;
    }
    count_outcomes(self, swaps, count);
    return batch.status;
}

enum idem_status
idem__redis_load_batch(struct redis_store *self, struct idem_load *loads,
                       size_t count, struct idem_arena *arena,
                       struct idem_error *err)
{
    struct batch batch = {.self = self,
                          .loads = loads,
                          .count = count,
                          .arena = arena,
                          .err = err};

    batch.elements = idem_arena_take(arena, count * sizeof(*batch.elements));
    if (!batch.elements)
        return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
    run_chunk(&batch);
    /* Nothing was written, so nothing can be lost. */
    return batch.status == IDEM_ERR_LOST ? IDEM_ERR_UNAVAILABLE : batch.status;
}
