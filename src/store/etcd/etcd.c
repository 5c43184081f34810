/*
 * etcd.c - etcd://: records in etcd, through its JSON gateway.
 *
 *   etcd://[user:password@]host[:port][,host[:port]...][/prefix][?options]
 *
 *   connect_ms=1000, timeout_ms=2000
 *   tls=1, ca=FILE, cert=FILE, key=FILE: HTTPS and its certificates
 *
 * A record is stored under prefix/key-in-hex; its value begins with the rev as
 * 8 big-endian bytes. So the record has a rev if its value is between rev and
 * rev + 1, which etcd can compare without getting the whole value. A batch is a
 * transaction of transactions: each inner one compares and swaps one record,
 * and the outer one makes them one request and one write to etcd's log.
 *
 * The gateway parses JSON again at every level of nesting, which is most of
 * what a batch costs etcd. So the outer transaction itself compares and writes
 * the records that the engine knows, because such a swap is seldom refused. If
 * one is, etcd does nothing, and the batch is sent again with an inner
 * transaction for each record.
 *
 * Clients cannot read etcd's clock, so the engine uses its rule for stores
 * without a clock to judge leases. Expired records are removed with a lease of
 * etcd (lease.c).
 */
#include "etcd.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define REV_LEN 8
#define SWAPS_MAX 100 /* etcd accepts 128 operations */
#define DIRECT_MAX 50 /* two comparisons each, of 128 as well */
#define DIRECT_PAUSE                                                           \
    16                          /* requests without direct swaps after one of  \
                                 * them was refused */
#define CHUNK_LEN (1024 * 1024) /* etcd accepts 1.5 MiB */
#define REQUEST_MAX ((size_t)8 << 20)
#define FULL_LOOK_MS 1000
#define OLDEST 303 /* 3.3 is the first version with nested transactions */

/* The earlier of the wall clock and the boot clock, so that a record is never
 * dropped too early because this machine's clock was set. */
static int64_t
now_ms(const struct etcd_store *self)
{
    int64_t wall_us = self->base.clocks->wall_us(self->base.clocks->arg);
    int64_t count_us = self->wall_at_open_us +
                       idem__store_boot_us(&self->base) - self->boot_at_open_us;

    return (wall_us < count_us ? wall_us : count_us) / 1000;
}

/* ---- bytes in JSON --------------------------------------------------- */

void
idem__etcd_add_base64(struct idem_buf *buf, const void *data, size_t len)
{
    size_t room = sodium_base64_ENCODED_LEN(
        len, sodium_base64_VARIANT_ORIGINAL); /* including the NUL */
    uint8_t *at = idem_buf_room(buf, room);

    if (!at)
        return;
    sodium_bin2base64((char *)at, room, data, len,
                      sodium_base64_VARIANT_ORIGINAL);
    buf->len += room - 1;
}

size_t
idem__etcd_name(const struct etcd_store *self, const uint8_t *key,
                char name[ETCD_NAME_MAX])
{
    memcpy(name, self->prefix, self->prefix_len);
    idem__key_hex(key, name + self->prefix_len);
    return self->prefix_len + IDEM__HEX_LEN;
}

/* "key":"..." */
static void
add_key(struct etcd_store *self, const uint8_t *key)
{
    char name[sizeof(self->prefix) + IDEM__HEX_LEN];
    size_t len = idem__etcd_name(self, key, name);

    idem_buf_add_text(&self->request, "\"key\":\"");
    idem__etcd_add_base64(&self->request, name, len);
    idem_buf_add_text(&self->request, "\"");
}

static void
put_big(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < REV_LEN; i++)
        at[i] = (uint8_t)(value >> (8 * (REV_LEN - 1 - i)));
}

/* ---- swap ------------------------------------------------------------ */

static void
add_compare_value(struct etcd_store *self, const uint8_t *key,
                  const char *result, const uint8_t *value, size_t len)
{
    struct idem_buf *out = &self->request;

    idem_buf_add_text(out, "{");
    add_key(self, key);
    idem_buf_printf(out, ",\"target\":\"VALUE\",\"result\":\"%s\",\"value\":\"",
                    result);
    idem__etcd_add_base64(out, value, len);
    idem_buf_add_text(out, "\"}");
}

static void
add_compare(struct etcd_store *self, const struct idem_swap *swap)
{
    struct idem_buf *out = &self->request;
    bool last = swap->expected == UINT64_MAX;
    uint8_t from[REV_LEN], to[REV_LEN + 1];

    if (swap->expected == 0) {
        idem_buf_add_text(out, "{");
        add_key(self, swap->key);
        idem_buf_add_text(out, ",\"target\":\"CREATE\",\"result\":"
                               "\"EQUAL\",\"create_revision\":\"0\"}");
        return;
    }
    put_big(from, swap->expected);
    memset(to, 0xff, sizeof(to)); /* above any value with the last rev */
    if (!last)
        put_big(to, swap->expected + 1);
    add_compare_value(self, swap->key, "GREATER", from, REV_LEN);
    idem_buf_add_text(out, ",");
    add_compare_value(self, swap->key, "LESS", to, REV_LEN + last);
}

static void
add_value(struct etcd_store *self, const struct idem_record *record)
{
    size_t len = REV_LEN + idem__encoded_len(record);
    uint8_t *value = malloc(len);

    if (!value) {
        self->request.lacks = true;
        return;
    }
    put_big(value, record->rev);
    idem__encode(record, value + REV_LEN);
    idem__etcd_add_base64(&self->request, value, len);
    free(value);
}

static void
add_change(struct etcd_store *self, const struct idem_swap *swap, int64_t lease)
{
    struct idem_buf *out = &self->request;

    if (!swap->record && swap->expected == 0)
        return;
    idem_buf_add_text(out, swap->record ? "{\"requestPut\":{"
                                        : "{\"requestDeleteRange\":{");
    add_key(self, swap->key);
    if (swap->record) {
        idem_buf_add_text(out, ",\"value\":\"");
        add_value(self, swap->record);
        idem_buf_printf(out, "\",\"lease\":\"%lld\"", (long long)lease);
    }
    idem_buf_add_text(out, "}}");
}

/*
 * When etcd has reached its quota it grants no leases, so no record could be
 * finished; but it still accepts nested transactions, and so new claims. This
 * store does the opposite: a new record is only compared and not written, and
 * an existing record is written without a lease. That record stays until it is
 * written again or deleted.
 */
static bool
is_refused(const struct idem_swap *swap, bool full)
{
    return full && swap->expected == 0 && swap->record;
}

static void
note_full(struct etcd_store *self)
{
    if (!self->full)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "etcd: out of space; new requests are refused (FULL), "
                  "requests that are executing can still finish: compact, "
                  "defragment and disarm the alarm");
    self->full = true;
    self->full_looked_ms = now_ms(self);
}

static void
look_if_full(struct etcd_store *self)
{
    if (!self->full ||
        llabs(now_ms(self) - self->full_looked_ms) < FULL_LOOK_MS)
        return;
    self->full_looked_ms = now_ms(self);
    self->full = !idem__etcd_lease_is_granted(&self->client);
}

static void
add_swap(struct etcd_store *self, const struct idem_swap *swap, int64_t lease,
         bool full)
{
    struct idem_buf *out = &self->request;

    idem_buf_add_text(out, "{\"requestTxn\":{\"compare\":[");
    add_compare(self, swap);
    idem_buf_add_text(out, "],\"success\":[");
    if (!is_refused(swap, full))
        add_change(self, swap, lease);
    idem_buf_add_text(out, "],\"failure\":[{\"requestRange\":{");
    add_key(self, swap->key);
    idem_buf_add_text(out, "}}]}}");
}

static enum etcd_result
lease_for(struct etcd_store *self, const struct idem_swap *swap, int64_t *lease,
          struct idem_error *err)
{
    int64_t drop_ms = swap->record ? idem__record_drop_at(swap->record) : 0;
    enum etcd_result result;

    *lease = 0;
    if (drop_ms == 0)
        return ETCD_DONE;
    result = idem__etcd_lease(&self->client, &self->leases,
                              drop_ms + IDEM__DROP_MARGIN_MS, now_ms(self),
                              lease, err);
    if (result == ETCD_DONE || err->status != IDEM_ERR_FULL)
        return result;
    note_full(self);
    *lease = 0;
    return ETCD_DONE;
}

/* What the transaction of a batch looks like. */
struct txn_form {
    bool full;              /* no space for new records */
    bool direct[SWAPS_MAX]; /* the outer transaction compares and writes it */
    size_t direct_count;
};

static void
choose_form(const struct etcd_store *self, const struct idem_swap *swaps,
            size_t count, bool direct, struct txn_form *form)
{
    *form = (struct txn_form){.full = self->full};
    for (size_t i = 0; i < count && direct; i++) {
        form->direct[i] =
            swaps[i].expected != 0 && form->direct_count < DIRECT_MAX;
        form->direct_count += form->direct[i];
    }
}

static void
add_direct_compares(struct etcd_store *self, const struct idem_swap *swaps,
                    size_t count, const struct txn_form *form)
{
    const char *before = "\"compare\":[";

    if (form->direct_count == 0)
        return;
    for (size_t i = 0; i < count; i++) {
        if (!form->direct[i])
            continue;
        idem_buf_add_text(&self->request, before);
        add_compare(self, &swaps[i]);
        before = ",";
    }
    idem_buf_add_text(&self->request, "],");
}

static enum etcd_result
build_swaps(struct etcd_store *self, const struct idem_swap *swaps,
            size_t count, const struct txn_form *form, struct idem_error *err)
{
    idem_buf_reset(&self->request);
    idem_buf_add_text(&self->request, "{");
    add_direct_compares(self, swaps, count, form);
    for (size_t i = 0; i < count; i++) {
        int64_t lease;
        enum etcd_result result = lease_for(self, &swaps[i], &lease, err);

        if (result != ETCD_DONE)
            return result;
        idem_buf_add_text(&self->request, i == 0 ? "\"success\":[" : ",");
        if (form->direct[i])
            add_change(self, &swaps[i], lease);
        else
            add_swap(self, &swaps[i], lease, form->full);
    }
    idem_buf_add_text(&self->request, "]}");
    if (!self->request.lacks)
        return ETCD_DONE;
    idem__fail(err, IDEM_ERR_MEMORY, "etcd: out of memory");
    return ETCD_NOT_DONE;
}

static enum idem_status
no_sense(struct idem_error *err, enum idem_status status)
{
    return idem__fail(err, status, "etcd: an unexpected reply");
}

/* The first key of the answer to a range, or NULL. */
static const json_t *
first_key(const json_t *range)
{
    return json_array_get(json_object_get(range, "kvs"), 0);
}

/* Read what a key has; the value points into the arena. */
static enum idem_status
read_value(const json_t *kv, struct idem_arena *arena, struct idem_bytes *value,
           struct idem_error *err)
{
    const json_t *text = json_object_get(kv, "value");
    size_t len = json_string_length(text), got;
    uint8_t *room = idem_arena_take(arena, len + 1);

    if (!room)
        return idem__fail(err, IDEM_ERR_MEMORY, "etcd: out of memory");
    if (sodium_base642bin(room, len, json_string_value(text), len, NULL, &got,
                          NULL, sodium_base64_VARIANT_ORIGINAL) != 0)
        return no_sense(err, IDEM_ERR_UNAVAILABLE); /* etcd encoded it */
    if (got < REV_LEN)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "etcd: a value that is not a record");
    *value = (struct idem_bytes){room + REV_LEN, got - REV_LEN};
    return IDEM_OK;
}

static enum idem_status
read_record(const json_t *kv, const uint8_t *key, struct idem_arena *arena,
            struct idem_record *record, struct idem_error *err)
{
    struct idem_bytes value;
    enum idem_status status;

    record->state = IDEM_STATE_ABSENT;
    if (!kv)
        return IDEM_OK;
    status = read_value(kv, arena, &value, err);
    return status == IDEM_OK ? idem__value_read(key, value, NULL, record, err)
                             : status;
}

static enum idem_status
read_swap(const json_t *answer, struct idem_swap *swap, bool full,
          struct idem_arena *arena, struct idem_error *err)
{
    const json_t *txn = json_object_get(answer, "response_txn");
    const json_t *range = json_object_get(
        json_array_get(json_object_get(txn, "responses"), 0), "response_range");
    bool succeeded = json_is_true(json_object_get(txn, "succeeded"));
    enum idem_status status;

    swap->outcome = IDEM_SWAP_LOST;
    if (!succeeded && !range) /* a refused swap comes with what is there */
        return no_sense(err, IDEM_ERR_LOST);
    if (succeeded && !is_refused(swap, full)) {
        swap->outcome = IDEM_SWAP_STORED;
        return IDEM_OK;
    }
    swap->outcome = IDEM_SWAP_NOT_STORED;
    if (succeeded)
        return idem__fail(err, IDEM_ERR_FULL,
                          "etcd: out of space, so it takes no new records; "
                          "compact, defragment and disarm the alarm");
    status = read_record(first_key(range), swap->key, arena, &swap->found, err);
    if (status != IDEM_OK)
        return status;
    swap->outcome = swap->record && swap->found.state != IDEM_STATE_ABSENT &&
                            swap->found.rev == swap->record->rev
                        ? IDEM_SWAP_STORED
                        : IDEM_SWAP_REFUSED;
    return IDEM_OK;
}

static enum idem_status swap_chunk(struct etcd_store *self,
                                   struct idem_swap *swaps, size_t count,
                                   struct idem_arena *arena,
                                   struct idem_error *err);

/* The answer was too large, whatever was done. Send the request again in
 * halves. What the first request stored is recognised by its rev, unless
 * somebody else has written since. */
static enum idem_status
swap_halves(struct etcd_store *self, struct idem_swap *swaps, size_t count,
            struct idem_arena *arena, struct idem_error *err)
{
    struct idem_error second;
    enum idem_status status, other;

    status = swap_chunk(self, swaps, count / 2, arena, err);
    other = swap_chunk(self, swaps + count / 2, count - count / 2, arena,
                       status == IDEM_OK ? err : &second);
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome == IDEM_SWAP_NOT_STORED)
            swaps[i].outcome = IDEM_SWAP_LOST;
        swaps[i].maybe_before = true;
    }
    return status == IDEM_OK ? other : status;
}

/* Send the batch in this form; with new leases if one of them is gone. */
static enum etcd_result
send_swaps(struct etcd_store *self, const struct idem_swap *swaps, size_t count,
           const struct txn_form *form, json_t **reply, struct idem_error *why)
{
    enum etcd_result result = ETCD_NO_LEASE;

    for (int try = 0; try < 2 && result == ETCD_NO_LEASE; try++) {
        if (try > 0)
            memset(&self->leases, 0, sizeof(self->leases));
        result = build_swaps(self, swaps, count, form, why);
        if (result == ETCD_DONE)
            result = idem__etcd_post(
                &self->client, "/v3/kv/txn",
                (struct idem_bytes){self->request.data, self->request.len},
                reply, why);
    }
    if (result == ETCD_NOT_DONE && why->status == IDEM_ERR_FULL)
        note_full(self);
    return result;
}

/* Did etcd do nothing because of a direct swap? One of them was refused, or
 * etcd is full and writes only what inner transactions write. */
static bool
direct_failed(struct etcd_store *self, const struct txn_form *form,
              enum etcd_result result, const json_t *reply,
              const struct idem_error *why)
{
    if (form->direct_count == 0)
        return false;
    if (result == ETCD_NOT_DONE)
        return why->status == IDEM_ERR_FULL;
    if (result != ETCD_DONE ||
        json_is_true(json_object_get(reply, "succeeded")))
        return false;
    self->direct_pause = DIRECT_PAUSE;
    return true;
}

static enum idem_status
swap_chunk(struct etcd_store *self, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct idem_error why = {IDEM_OK, ""};
    enum etcd_result result;
    enum idem_status status = IDEM_OK;
    json_t *reply = NULL, *answers;
    struct txn_form form;

    choose_form(self, swaps, count, !self->full && self->direct_pause == 0,
                &form);
    if (self->direct_pause > 0)
        self->direct_pause--;
    result = send_swaps(self, swaps, count, &form, &reply, &why);
    if (direct_failed(self, &form, result, reply, &why)) {
        json_decref(reply);
        reply = NULL;
        choose_form(self, swaps, count, false, &form);
        result = send_swaps(self, swaps, count, &form, &reply, &why);
    }
    if (result == ETCD_SPLIT && count > 1)
        return swap_halves(self, swaps, count, arena, err);
    if (result != ETCD_DONE) {
        bool lost = result == ETCD_LOST || result == ETCD_SPLIT;

        for (size_t i = 0; i < count; i++)
            swaps[i].outcome = lost ? IDEM_SWAP_LOST : IDEM_SWAP_NOT_STORED;
        if (err)
            *err = why;
        return why.status;
    }
    answers = json_object_get(reply, "responses");
    for (size_t i = 0; i < count; i++) {
        enum idem_status one = IDEM_OK;

        if (form.direct[i])
            swaps[i].outcome = IDEM_SWAP_STORED;
        else
            one = read_swap(json_array_get(answers, i), &swaps[i], form.full,
                            arena, status == IDEM_OK ? err : &why);
        status = status == IDEM_OK ? one : status;
    }
    json_decref(reply);
    return status;
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct etcd_store *self = (struct etcd_store *)store;
    enum idem_status status = IDEM_OK;
    struct idem_error other;
    size_t start = 0;

    look_if_full(self);
    while (start < count) {
        size_t end = start, len = 0;
        enum idem_status one;

        while (end < count && end - start < SWAPS_MAX) {
            len += swaps[end].record ? idem__encoded_len(swaps[end].record) : 0;
            if (len > CHUNK_LEN && end > start)
                break;
            end++;
        }
        one = swap_chunk(self, swaps + start, end - start, arena,
                         status == IDEM_OK ? err : &other);
        status = status == IDEM_OK ? one : status;
        start = end;
    }
    return status;
}

/* ---- load ------------------------------------------------------------ */

static bool
build_loads(struct etcd_store *self, const struct idem_load *loads,
            size_t count)
{
    struct idem_buf *out = &self->request;

    idem_buf_reset(out);
    for (size_t i = 0; i < count; i++) {
        idem_buf_add_text(out, i == 0 ? "{\"success\":[{\"requestRange\":{"
                                      : ",{\"requestRange\":{");
        add_key(self, loads[i].key);
        idem_buf_add_text(out, "}}");
    }
    idem_buf_add_text(out, "]}");
    return !out->lacks;
}

static enum idem_status
load_chunk(struct etcd_store *self, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct idem_error why = {IDEM_OK, ""};
    enum idem_status status = IDEM_OK;
    enum etcd_result result;
    json_t *reply, *answers;

    if (!build_loads(self, loads, count))
        return idem__fail(err, IDEM_ERR_MEMORY, "etcd: out of memory");
    result = idem__etcd_post(
        &self->client, "/v3/kv/txn",
        (struct idem_bytes){self->request.data, self->request.len}, &reply,
        &why);
    if (result == ETCD_SPLIT && count > 1) {
        status = load_chunk(self, loads, count / 2, arena, err);
        return status != IDEM_OK ? status
                                 : load_chunk(self, loads + count / 2,
                                              count - count / 2, arena, err);
    }
    if (result != ETCD_DONE)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s", why.text);
    answers = json_object_get(reply, "responses");
    for (size_t i = 0; i < count && status == IDEM_OK; i++) {
        const json_t *range =
            json_object_get(json_array_get(answers, i), "response_range");

        status = range ? read_record(first_key(range), loads[i].key, arena,
                                     &loads[i].record, err)
                       : no_sense(err, IDEM_ERR_UNAVAILABLE);
        if (status == IDEM_OK && !loads[i].with_result)
            loads[i].record.result = (struct idem_bytes){NULL, 0};
    }
    json_decref(reply);
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct etcd_store *self = (struct etcd_store *)store;
    enum idem_status status = IDEM_OK;

    for (size_t start = 0; start < count && status == IDEM_OK;
         start += SWAPS_MAX) {
        size_t left = count - start;

        status = load_chunk(self, loads + start,
                            left < SWAPS_MAX ? left : SWAPS_MAX, arena, err);
    }
    return status;
}

/* ---- scan ------------------------------------------------------------ */

/*
 * A cursor is the key of the record that was shown last, or FROM and the
 * beginning of a key: a page that ends with somebody else's key (of another
 * program, or of an idem with a longer prefix) goes on at the first key of a
 * record that can come after it. So a call reads one page, whatever it holds.
 */
#define FROM '.'

static bool
is_hex(const char *text, size_t len)
{
    return strspn(text, "0123456789abcdef") == len && text[len] == 0;
}

static bool
is_cursor(const char *text)
{
    uint8_t key[IDEM_KEY_LEN];
    size_t len = strlen(text);

    if (text[0] == FROM)
        return len > 1 && len <= 1 + IDEM__HEX_LEN && is_hex(text + 1, len - 1);
    return strcmp(text, "0") == 0 || idem__key_from_hex(text, len, key);
}

static bool
build_scan(struct etcd_store *self, const char *cursor, size_t limit)
{
    char name[sizeof(self->prefix) + IDEM__HEX_LEN + 1];
    size_t len = self->prefix_len;
    struct idem_buf *out = &self->request;
    bool from = cursor[0] == FROM;
    const char *digits = from ? cursor + 1 : cursor;

    memcpy(name, self->prefix, len);
    if (strcmp(cursor, "0") != 0) {
        size_t more = strnlen(digits, IDEM__HEX_LEN);

        memcpy(name + len, digits, more);
        len += more;
        if (!from)
            name[len++] = 0; /* the next possible key */
    }
    idem_buf_reset(out);
    idem_buf_add_text(out, "{\"key\":\"");
    idem__etcd_add_base64(out, name, len);
    len = self->prefix_len;
    name[len - 1]++; /* the end of all names with the prefix */
    idem_buf_add_text(out, "\",\"range_end\":\"");
    idem__etcd_add_base64(out, name, len);
    idem_buf_printf(out, "\",\"limit\":\"%zu\"}", limit);
    return !out->lacks;
}

/* Set the cursor to the first key, of IDEM__HEX_LEN digits, that sorts after a
 * name (without the prefix) that is not a key. */
static void
pass(struct idem_cursor *cursor, const uint8_t *name, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    char *text = cursor->text;
    size_t n = 0;
    const char *next;

    *text++ = FROM;
    while (n < len && n < IDEM__HEX_LEN && name[n] && strchr(digits, name[n])) {
        text[n] = (char)name[n];
        n++;
    }
    if (n < IDEM__HEX_LEN) {
        /* The first digit that sorts after the byte that is not a digit; at
         * the end of the name any digit. */
        for (next = digits; n < len && *next && (uint8_t)*next < name[n];)
            next++;
        text[n] = *next;
        text[n + 1] = 0;
        if (*next)
            return;
    }
    while (n > 0 && text[n - 1] == 'f')
        n--;
    text[n] = 0;
    if (n == 0)
        memcpy(cursor->text, "0", 2); /* no key can come after it */
    else
        text[n - 1] = strchr(digits, text[n - 1])[1];
}

/* Move the cursor behind the last name of a page, and never back. */
static enum idem_status
pass_page(struct etcd_store *self, const json_t *kvs, struct idem_arena *arena,
          struct idem_cursor *cursor, struct idem_error *err)
{
    size_t count = json_array_size(kvs), len, got = 0;
    const json_t *text =
        json_object_get(json_array_get(kvs, count - (count > 0)), "key");
    bool start = strcmp(cursor->text, "0") == 0;
    struct idem_cursor old = *cursor;
    uint8_t key[IDEM_KEY_LEN], *name;

    len = json_string_length(text);
    name = idem_arena_take(arena, len + 1);
    if (!name)
        return idem__fail(err, IDEM_ERR_MEMORY, "etcd: out of memory");
    if (len == 0 ||
        sodium_base642bin(name, len, json_string_value(text), len, NULL, &got,
                          NULL, sodium_base64_VARIANT_ORIGINAL) != 0 ||
        got < self->prefix_len ||
        memcmp(name, self->prefix, self->prefix_len) != 0)
        return no_sense(err, IDEM_ERR_UNAVAILABLE);
    name += self->prefix_len;
    got -= self->prefix_len;
    if (idem__key_from_hex((const char *)name, got, key))
        return IDEM_OK; /* it was shown */
    pass(cursor, name, got);
    if (!start && strcmp(cursor->text, "0") != 0 &&
        strcmp(cursor->text + 1, old.text + (old.text[0] == FROM)) <= 0)
        return no_sense(err, IDEM_ERR_UNAVAILABLE);
    return IDEM_OK;
}

static enum idem_status
show(struct etcd_store *self, const json_t *kv, struct idem_arena *arena,
     struct idem_cursor *cursor, struct idem_record *record,
     struct idem_error *err)
{
    const json_t *text = json_object_get(kv, "key");
    char name[sizeof(self->prefix) + IDEM__HEX_LEN + 1];
    size_t got = 0;
    uint8_t key[IDEM_KEY_LEN];

    record->state = IDEM_STATE_ABSENT;
    if (!text ||
        sodium_base642bin((uint8_t *)name, sizeof(name),
                          json_string_value(text), json_string_length(text),
                          NULL, &got, NULL,
                          sodium_base64_VARIANT_ORIGINAL) != 0 ||
        got != self->prefix_len + IDEM__HEX_LEN ||
        !idem__key_from_hex(name + self->prefix_len, IDEM__HEX_LEN, key))
        return IDEM_OK; /* not one of idem's keys */
    memcpy(cursor->text, name + self->prefix_len, IDEM__HEX_LEN);
    cursor->text[IDEM__HEX_LEN] = 0;
    return read_record(kv, key, arena, record, err);
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_query *query,
             struct idem_error *err)
{
    struct etcd_store *self = (struct etcd_store *)store;
    struct idem_arena arena = {NULL, 0};
    enum idem_status status = IDEM_OK;
    enum etcd_result result = ETCD_SPLIT;
    struct idem_error why;
    size_t limit = query->count < SWAPS_MAX ? query->count : SWAPS_MAX;
    json_t *reply = NULL, *kvs;

    if (!is_cursor(query->cursor->text))
        return idem__query_bad_cursor(query, err);
    for (limit += limit == 0; limit > 0 && result == ETCD_SPLIT; limit /= 2) {
        if (!build_scan(self, query->cursor->text, limit))
            return idem__fail(err, IDEM_ERR_MEMORY, "etcd: out of memory");
        result = idem__etcd_post(
            &self->client, "/v3/kv/range",
            (struct idem_bytes){self->request.data, self->request.len}, &reply,
            &why);
    }
    if (result != ETCD_DONE)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s", why.text);
    kvs = json_object_get(reply, "kvs");
    for (size_t i = 0; i < json_array_size(kvs) && status == IDEM_OK; i++) {
        struct idem_record record;

        status = show(self, json_array_get(kvs, i), &arena, query->cursor,
                      &record, err);
        if (status == IDEM_OK && record.state != IDEM_STATE_ABSENT &&
            !idem__query_give(query, &record))
            goto out;
    }
    if (status == IDEM_OK && json_is_true(json_object_get(reply, "more")))
        status = pass_page(self, kvs, &arena, query->cursor, err);
    else if (status == IDEM_OK)
        snprintf(query->cursor->text, sizeof(query->cursor->text), "0");
out:
    json_decref(reply);
    idem_arena_clear(&arena);
    return status;
}

/* ---- open and close -------------------------------------------------- */

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct etcd_store *self = (struct etcd_store *)store;

    each(arg, "etcd_requests_total", (double)self->client.requests);
    each(arg, "etcd_lost_total", (double)self->client.lost);
    each(arg, "etcd_leases_total", (double)self->leases.granted);
}

static void
close_store(struct idem_store *store)
{
    struct etcd_store *self = (struct etcd_store *)store;

    idem__watcher_close(&self->watcher);
    idem__etcd_client_close(&self->client);
    idem_buf_clear(&self->request);
    free(self->address);
}

/* Check that it is etcd, new enough, and has a leader. */
static enum idem_status
first_look(struct etcd_store *self, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    struct idem_error why;
    int major = 0, minor = 0;
    json_t *reply;
    const char *text;

    if (idem__etcd_post(&self->client, "/v3/maintenance/status",
                        idem_text("{}"), &reply, &why) != ETCD_DONE)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s", why.text);
    text = json_string_value(json_object_get(reply, "version"));
    if (!text || sscanf(text, "%d.%d", &major, &minor) != 2 ||
        major * 100 + minor < OLDEST)
        status = idem__fail(err, IDEM_ERR_UNSUPPORTED,
                            "etcd: version %s is too old: 3.4 or newer",
                            text ? text : "(none)");
    else if (!json_object_get(reply, "leader"))
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                            "etcd: the cluster has no leader");
    json_decref(reply);
    return status;
}

static enum idem_status
parse_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct etcd_store *self = (struct etcd_store *)store;
    enum idem_status status;
    const char *prefix;

    self->base.max_record = idem__encoded_max(IDEM_RESULT_DEFAULT_MAX);
    self->wall_at_open_us = self->base.clocks->wall_us(self->base.clocks->arg);
    self->boot_at_open_us = idem__store_boot_us(&self->base);
    idem_buf_init(&self->request, REQUEST_MAX);
    idem__watcher_open(&self->watcher, &self->base, ETCD_WATCHED_MAX,
                       idem__etcd_listen);
    self->address = strdup(url);
    status = self->address
                 ? idem__etcd_client_open(&self->client, url, err)
                 : idem__fail(err, IDEM_ERR_MEMORY, "etcd: out of memory");
    prefix = self->client.url.path ? self->client.url.path : "idem";
    if (status == IDEM_OK && strlen(prefix) + 2 > sizeof(self->prefix))
        status =
            idem__fail(err, IDEM_ERR_INVALID, "etcd: the prefix is too long");
    if (status == IDEM_OK)
        self->prefix_len =
            (size_t)snprintf(self->prefix, sizeof(self->prefix), "%s/", prefix);
    return status;
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    enum idem_status status = parse_store(store, url, err);

    return status == IDEM_OK ? first_look((struct etcd_store *)store, err)
                             : status;
}

const struct idem_store_type idem__etcd_store = {
    .scheme = "etcd",
    .size = sizeof(struct etcd_store),
    .parse = parse_store,
    .open = open_store,
    .swap = swap_batch,
    .load = load_batch,
    .scan = scan_records,
    .now = NULL, /* clients cannot read etcd's clock */
    .watch = idem__etcd_watch,
    .figures = figures,
    .close = close_store,
};
