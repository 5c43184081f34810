/*
 * redis_batch.c - executes one batch of swaps or loads, in rounds of pipelines.
 *
 * A record that must be new is stored with SET NX GET, which also answers with
 * the record that is there. Every other swap needs a script, which compares the
 * rev and sets the value. Scripts run alone, so nothing comes between the
 * two. Calling a script costs more than its work, so one call does many swaps;
 * in a cluster, where the keys of a call must be in one slot, it does one. All
 * commands for one server are sent in one pipeline. If replicas must have them,
 * a WAIT after them says how many do.
 *
 * WAIT covers only what this connection itself has sent to the replicas.
 * (Before Redis 7.2 it covered everything up to the last command.) A record
 * that was found may be another client's write that no replica has yet, or this
 * store's own write on a connection that broke. So if replicas are required,
 * the script does all swaps, and sends them a command without effect for every
 * record that it finds. A replica that confirms this command has also confirmed
 * everything before it, including the record. An absent record needs no such
 * command: a failover could only bring back an older record, which forbids
 * more. Only replicas get that command; the append-only file does not.
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

/* One call keeps other clients of the server waiting for about 5 us a swap, and
 * longer if it returns large values: see `room` in the script. */
#define CALL_MAX 64
#define CALL_BYTES ((size_t)1 << 20)

/*
 * KEYS: the names. ARGV[1]: "r" if replicas must have what is found, "f" if the
 * server is too full for new records. For swaps also, for each key, the rev
 * expected or "", the new value or "", and when to drop it in ms or "". The
 * answer has an element for each key: 1 if it is stored, 0 if the server is too
 * full, 2 if nothing was done because the values before it are large, an error,
 * else the stored value or nil. The rev is in bytes 32 to 39 of a value.
 *
 * An error of one key must not end the call, because the keys before it are
 * stored; so every command is a pcall. GETRANGE has its numbers as text because
 * Lua's numbers take longer to convert.
 *
 * With the flag allow-oom the script writes although maxmemory is reached,
 * because started requests must be finished. New records are refused before
 * that, by "f".
 */
const char *const idem__redis_script =
    "#!lua flags=allow-oom\n"
    "local call, keys, args, out = redis.pcall, KEYS, ARGV, {}\n"
    "local sure = string.find(args[1], 'r', 1, true)\n"
    "local full = string.find(args[1], 'f', 1, true)\n"
    "local room = 1048576\n"
    "for i = 1, #keys do\n"
    "    local key, value, done = keys[i], args[3 * i], 1\n"
    "    local rev = call('GETRANGE', key, '32', '39')\n"
    "    if room < 0 then done = 2\n"
    "    elseif rev ~= args[3 * i - 1] then\n"
    "        local own = value and string.sub(value, 33, 40)\n"
    "        if rev == '' or rev ~= own then done = call('GET', key) end\n"
    "        if type(done) == 'string' then room = room - #done end\n"
    "        if sure and rev ~= '' and not rev.err then\n"
    "            redis.set_repl(redis.REPL_REPLICA)\n"
    "            local sent = call('APPEND', key, '')\n"
    "            redis.set_repl(redis.REPL_ALL)\n"
    "            if type(sent) == 'table' then done = sent end\n"
    "        end\n"
    "    elseif full and rev == '' then done = 0\n"
    "    elseif value == '' then\n"
    "        done = call('DEL', key)\n"
    "        if done == 0 then done = 1 end\n"
    "    elseif args[3 * i + 1] == '' then done = call('SET', key, value)\n"
    "    else done = call('SET', key, value, 'PXAT', args[3 * i + 1]) end\n"
    "    out[i] = done\n"
    "end\n"
    "return out\n";

#define NO_ELEMENT UINT32_MAX

/* The state of one element in this round. */
enum progress {
    DONE,
    AGAIN,     /* to be routed and sent */
    SENT,      /* in this round's pipeline */
    CONFIRMED, /* answered, if the WAIT after it is satisfied */
};

/* How an element is sent. */
enum form {
    CALL,    /* with others, in one call of the script */
    SET_NEW, /* SET NX GET */
    GET,
};

struct element {
    enum progress progress;
    enum form form;
    bool eval;     /* the server does not know the script: send its text */
    bool scripted; /* the server is full for SET, but not for the script */
    bool alone;    /* values are large: one key in a call of the script */
    bool again;    /* its connection broke once, and nothing was done */
    uint32_t next; /* in the same call; NO_ELEMENT: the last one */
    struct redis_link *ask, *via;
};

/* A call of the script that is being put together. */
struct batch_call {
    struct redis_link *link;
    uint32_t first, last;
    int count; /* 0: there is none */
    size_t bytes;
    bool eval;
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
    struct batch_call call;
};

__attribute__((format(printf, 3, 4))) static void
blame(struct batch *batch, enum idem_status status, const char *format, ...)
{
    char text[512];
    va_list args;

    if (batch->status != IDEM_OK)
        return;
    if (batch->loads && status == IDEM_ERR_LOST)
        status = IDEM_ERR_UNAVAILABLE; /* nothing was written */
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

static const uint8_t *
key_of(const struct batch *batch, size_t i)
{
    return batch->swaps ? batch->swaps[i].key : batch->loads[i].key;
}

/* Bytes in the arena; data is NULL if it is out of memory. */
static struct idem_bytes
keep(struct batch *batch, const void *data, size_t len)
{
    void *copy = idem_arena_take(batch->arena, len);

    if (copy)
        memcpy(copy, data, len);
    return (struct idem_bytes){copy, len};
}

static struct idem_bytes
keep_name(struct batch *batch, size_t i)
{
    char name[REDIS_NAME_MAX];
    size_t len = idem__redis_name(batch->self, key_of(batch, i), name);

    return keep(batch, name, len);
}

/* When to drop a record, in ms; "": never. */
static struct idem_bytes
keep_drop_at(struct batch *batch, const struct idem_record *record)
{
    int64_t drop_ms = record ? idem__record_drop_at(record) : 0;
    char text[24];

    if (drop_ms == 0)
        return idem_text("");
    snprintf(text, sizeof(text), "%lld",
             (long long)(drop_ms + IDEM__DROP_MARGIN_MS));
    return keep(batch, text, strlen(text));
}

static struct idem_bytes
keep_value(struct batch *batch, const struct idem_record *record)
{
    size_t len = record ? idem__encoded_len(record) : 0;
    uint8_t *value = record ? idem_arena_take(batch->arena, len) : NULL;

    if (!record)
        return idem_text("");
    if (value)
        idem__encode(record, value);
    return (struct idem_bytes){value, len};
}

static struct idem_bytes
keep_expected(struct batch *batch, uint64_t rev)
{
    uint8_t bytes[8];

    if (rev == 0)
        return idem_text("");
    idem__put64(bytes, rev);
    return keep(batch, bytes, sizeof(bytes));
}

static bool
add_words(struct redis_link *link, uint32_t tag, int argc,
          const struct idem_bytes *argv)
{
    for (int k = 0; k < argc; k++) {
        if (!argv[k].data)
            return false;
    }
    return idem__redis_link_add(link, tag, argc, argv);
}

static bool
add_set_new(struct batch *batch, size_t i, struct redis_link *link)
{
    const struct idem_record *record = batch->swaps[i].record;
    struct idem_bytes drop_at = keep_drop_at(batch, record);
    struct idem_bytes words[7] = {
        {"SET", 3}, keep_name(batch, i), keep_value(batch, record),
        {"NX", 2},  {"GET", 3},          {"PXAT", 4},
        drop_at};

    return add_words(link, (uint32_t)i, drop_at.len > 0 ? 7 : 5, words);
}

static bool
add_get(struct batch *batch, size_t i, struct redis_link *link)
{
    struct idem_bytes words[2] = {{"GET", 3}, keep_name(batch, i)};

    return add_words(link, (uint32_t)i, 2, words);
}

/* The script's first argument. */
static struct idem_bytes
flags_of(const struct batch *batch, const struct redis_link *link)
{
    bool sure = idem__redis_replicas(batch->self) > 0;
    bool full = batch->swaps && idem__redis_facts_full(&link->facts);

    return idem_text(sure ? full ? "rf" : "r" : full ? "f" : "");
}

static bool
add_call(struct batch *batch, const struct batch_call *call)
{
    int count = call->count, argc = 3;
    struct idem_bytes *words =
        idem_arena_take(batch->arena, (4 + 4 * (size_t)count) * sizeof(*words));
    char *number = idem_arena_take(batch->arena, 12);

    if (!words || !number)
        return false;
    snprintf(number, 12, "%d", count);
    words[0] = idem_text(call->eval ? "EVAL" : "EVALSHA");
    words[1] =
        idem_text(call->eval ? idem__redis_script : idem__redis_script_sha);
    words[2] = idem_text(number);
    for (uint32_t i = call->first; i != NO_ELEMENT; i = batch->elements[i].next)
        words[argc++] = keep_name(batch, i);
    words[argc++] = flags_of(batch, call->link);
    for (uint32_t i = call->first; i != NO_ELEMENT && batch->swaps;
         i = batch->elements[i].next) {
        const struct idem_swap *swap = &batch->swaps[i];

        words[argc++] = keep_expected(batch, swap->expected);
        words[argc++] = keep_value(batch, swap->record);
        words[argc++] = keep_drop_at(batch, swap->record);
    }
    return add_words(call->link, call->first, argc, words);
}

static void
no_memory(struct batch *batch, size_t i)
{
    blame(batch, IDEM_ERR_MEMORY, "redis: out of memory");
    end(batch, i, IDEM_SWAP_NOT_STORED);
}

/* Send the call that is being put together, if there is one. */
static void
close_call(struct batch *batch)
{
    struct batch_call *call = &batch->call;

    if (call->count > 0 && !add_call(batch, call)) {
        for (uint32_t i = call->first; i != NO_ELEMENT;
             i = batch->elements[i].next)
            no_memory(batch, i);
    }
    call->count = 0;
}

static void
join_call(struct batch *batch, uint32_t i, struct redis_link *link)
{
    struct element *element = &batch->elements[i];
    struct batch_call *call = &batch->call;

    if (call->count > 0 &&
        (call->link != link || call->eval != element->eval || element->alone ||
         call->count == CALL_MAX || call->bytes > CALL_BYTES))
        close_call(batch);
    element->next = NO_ELEMENT;
    if (call->count > 0)
        batch->elements[call->last].next = i;
    else
        *call = (struct batch_call){
            .link = link, .first = i, .eval = element->eval};
    call->last = i;
    call->count++;
    if (batch->swaps && batch->swaps[i].record)
        call->bytes += idem__encoded_len(batch->swaps[i].record);
    if (batch->self->slots || element->alone)
        close_call(batch);
}

static enum form
form_of(const struct batch *batch, size_t i, const struct redis_link *link)
{
    const struct idem_swap *swap = batch->swaps ? &batch->swaps[i] : NULL;

    if (idem__redis_replicas(batch->self) > 0)
        return CALL;
    if (!swap)
        return GET;
    return swap->expected == 0 && swap->record &&
                   !batch->elements[i].scripted &&
                   !idem__redis_facts_full(&link->facts)
               ? SET_NEW
               : CALL;
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
        link = idem__redis_route(batch->self, key_of(batch, i),
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
add_element(struct batch *batch, size_t i)
{
    struct element *element = &batch->elements[i];
    struct redis_link *link = element->via;
    bool ok = !element->ask ||
              idem__redis_link_add_text(link, REDIS_TAG_NONE, "ASKING");

    element->ask = NULL;
    element->form = form_of(batch, i, link);
    element->progress = SENT;
    use(batch, link);
    if (ok && element->form == CALL)
        join_call(batch, (uint32_t)i, link);
    else if (ok)
        ok = element->form == SET_NEW ? add_set_new(batch, i, link)
                                      : add_get(batch, i, link);
    if (!ok)
        no_memory(batch, i);
}

/* First route all elements: that may ask a server about itself or about the
 * slots, on the same link, which must not have commands of the batch then. */
static void
add_commands(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->elements[i].progress == AGAIN)
            batch->elements[i].via = route(batch, i);
    }
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->elements[i].progress == AGAIN)
            add_element(batch, i);
    }
    close_call(batch);
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
    if (says(text, "OOM") && element->form == SET_NEW)
        return element->scripted = true;
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
    const uint8_t *key = key_of(batch, i);
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
    } else if (batch->swaps && batch->swaps[i].record &&
               batch->swaps[i].record->rev == record->rev) {
        /* This write was sent before, and its answer was lost. */
        batch->swaps[i].outcome = IDEM_SWAP_STORED;
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

/* Does this answer say that a swap is stored? */
static bool
says_stored(const struct element *element, const redisReply *reply)
{
    if (element->form == SET_NEW)
        return reply->type == REDIS_REPLY_NIL; /* no record was there */
    return reply->type == REDIS_REPLY_STATUS ||
           (reply->type == REDIS_REPLY_INTEGER && reply->integer == 1);
}

static void
on_element(struct batch *batch, size_t i, const redisReply *reply, bool sent)
{
    struct element *element = &batch->elements[i];

    if (!reply && (!sent || batch->loads) && !element->again) {
        element->again = true; /* nothing was done: try once more */
        element->progress = AGAIN;
    } else if (!reply) {
        blame(batch, sent ? IDEM_ERR_LOST : IDEM_ERR_UNAVAILABLE, "%s",
              element->via->why.text);
        end(batch, i, sent ? IDEM_SWAP_LOST : IDEM_SWAP_NOT_STORED);
    } else if (reply->type == REDIS_REPLY_ERROR) {
        on_error(batch, i, reply->str);
    } else if (element->form == CALL && reply->type == REDIS_REPLY_INTEGER &&
               reply->integer == 2) {
        element->alone = true;
        element->progress = AGAIN;
    } else if (batch->swaps && says_stored(element, reply)) {
        on_swapped(batch, i, true);
    } else if (batch->swaps && reply->type == REDIS_REPLY_INTEGER) {
        on_swapped(batch, i, false);
    } else if (reply->type == REDIS_REPLY_STRING ||
               reply->type == REDIS_REPLY_NIL) {
        on_value(batch, i, reply);
    } else {
        blame(batch, IDEM_ERR_LOST, "redis: unexpected reply");
        end(batch, i, IDEM_SWAP_LOST);
    }
}

/* The answer to a call has an element for each of its keys; an error is that of
 * all. */
static void
on_call(struct batch *batch, uint32_t first, const redisReply *reply, bool sent)
{
    bool list = reply && reply->type == REDIS_REPLY_ARRAY;
    size_t k = 0;

    for (uint32_t i = first, next; i != NO_ELEMENT; i = next, k++) {
        next = batch->elements[i].next;
        on_element(batch, i,
                   list && k < reply->elements ? reply->element[k] : reply,
                   sent);
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
    idem__fail(&batch->self->no_primary, IDEM_ERR_UNAVAILABLE,
               "redis %s:%d: %lld of %d replica(s) confirmed in time",
               link->host, link->port, got, wanted);
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
    else if (tag < REDIS_TAG_PUBLISH && batch->elements[tag].progress == SENT &&
             batch->elements[tag].form == CALL)
        on_call(batch, tag, reply, sent);
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
    add_commands(batch);
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
    return batch.status;
}
