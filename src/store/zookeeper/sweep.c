/*
 * sweep.c - lists the records in ZooKeeper (scan) and deletes expired ones
 * (sweep).
 *
 * Both go through the shards in order and through the names of a shard in
 * order, so that the last name seen is a cursor. ZooKeeper lists a whole shard
 * at a time; records are then read a few at a time.
 */
#include "zookeeper.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_SHARDS 32 /* read in one call of scan */
#define SWEEP_COUNT 32 /* read in one step */
#define SWEEP_SHARDS 8 /* read in one step, if they are empty */
#define SWEEP_STEP_US 100000
#define SWEEP_PASS_US 30000000

/* The names of one shard after `after`, in order. */
struct zk_page {
    struct zk_round *listing;
    char **names; /* point into the listing */
    size_t count;
};

static int
compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum idem_status
open_page(struct zk_store *self, unsigned shard, const char *after,
          struct zk_page *page, struct idem_error *err)
{
    struct String_vector *names;
    char path[ZK_PATH_MAX];
    uint8_t key[IDEM_KEY_LEN];
    int rc;

    memset(page, 0, sizeof(*page));
    page->listing = idem__zk_round_new(1);
    if (!page->listing)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    idem__zk_shard_path(self, shard, path);
    idem__zk_list(self, &page->listing->calls[0], path);
    idem__zk_round_wait(self, page->listing);
    rc = page->listing->calls[0].rc;
    if (rc == ZNONODE)
        return IDEM_OK;
    if (rc != ZOK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: %s",
                          zerror(rc));
    names = &page->listing->calls[0].names;
    if (names->count == 0)
        return IDEM_OK;
    page->names = calloc((size_t)names->count, sizeof(*page->names));
    if (!page->names)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    for (int32_t i = 0; i < names->count; i++) {
        char *name = names->data[i];

        if (strcmp(name, after) > 0 &&
            idem__key_from_hex(name, strlen(name), key))
            page->names[page->count++] = name;
    }
    qsort(page->names, page->count, sizeof(*page->names), compare_names);
    return IDEM_OK;
}

/* Unanswered requests keep the listing alive, but not the page. */
static void
close_page(struct zk_page *page)
{
    free(page->names);
    idem__zk_round_leave(page->listing);
}

/* Read `count` records of a page, from the first; NULL: see err. */
static struct zk_round *
read_page(struct zk_store *self, const struct zk_page *page, size_t count,
          struct idem_error *err)
{
    struct zk_round *round = idem__zk_round_new(count + 1);
    uint8_t key[IDEM_KEY_LEN];
    char path[ZK_PATH_MAX];

    if (!round) {
        idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        idem__key_from_hex(page->names[i], IDEM__HEX_LEN, key);
        if (i == 0) { /* the shard, before its records */
            idem__zk_shard_path(self, key[0], path);
            idem__zk_exists(self, &round->calls[count], path);
        }
        idem__zk_record_path(self, key, path);
        idem__zk_get(self, &round->calls[i], path);
    }
    idem__zk_round_wait(self, round);
    return round;
}

/* ---- scan ------------------------------------------------------------ */

/* "0" is the start; two digits are a shard's start; a name is the last seen. */
static bool
read_cursor(const char *text, unsigned *shard, const char **after)
{
    uint8_t key[IDEM_KEY_LEN];

    *shard = 0;
    *after = "";
    if (strcmp(text, "0") == 0)
        return true;
    if (strlen(text) == 2) {
        *shard = (unsigned)strtoul(text, NULL, 16);
        return isxdigit((unsigned char)text[0]) &&
               isxdigit((unsigned char)text[1]);
    }
    if (!idem__key_from_hex(text, strlen(text), key))
        return false;
    *shard = key[0];
    *after = text;
    return true;
}

static enum idem_status
show_page(struct zk_store *self, const struct zk_page *page, size_t count,
          const struct idem_query *query, bool *go_on, struct idem_error *err)
{
    struct zk_round *round = read_page(self, page, count, err);
    enum idem_status status = round ? IDEM_OK : IDEM_ERR_MEMORY;

    for (size_t i = 0; i < count && status == IDEM_OK && *go_on; i++) {
        const struct zk_call *call = &round->calls[i];
        struct idem_record record;
        uint8_t key[IDEM_KEY_LEN];

        if (call->rc == ZNONODE)
            continue; /* the node was deleted meanwhile */
        if (call->rc != ZOK) {
            status = idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: %s",
                                zerror(call->rc));
            break;
        }
        idem__key_from_hex(page->names[i], IDEM__HEX_LEN, key);
        status = idem__value_read(
            key, (struct idem_bytes){call->data, (size_t)call->data_len}, NULL,
            &record, err);
        if (status == IDEM_OK)
            *go_on = idem__query_give(query, &record);
    }
    idem__zk_round_leave(round);
    return status;
}

/* A follower may lag behind. After this call its listings have every record
 * that was acknowledged before the call. If the session moves to another
 * server, that server is not older than this. */
static enum idem_status
catch_up(struct zk_store *self, struct idem_error *err)
{
    struct zk_round *round = idem__zk_round_new(1);
    int rc;

    if (!round)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    idem__zk_sync(self, &round->calls[0]);
    idem__zk_round_wait(self, round);
    rc = round->calls[0].rc;
    idem__zk_round_leave(round);
    return rc == ZOK ? IDEM_OK
                     : idem__fail(err, IDEM_ERR_UNAVAILABLE, "zookeeper: %s",
                                  zerror(rc));
}

enum idem_status
idem__zk_scan(struct idem_store *store, const struct idem_query *query,
              struct idem_error *err)
{
    struct zk_store *self = (struct zk_store *)store;
    enum idem_status status = idem__zk_ready(self, err);
    size_t left = query->count > 0 ? query->count : 1;
    const char *after;
    unsigned shard;
    bool go_on = true;

    if (!read_cursor(query->cursor->text, &shard, &after))
        return idem__query_bad_cursor(query, err);
    if (status == IDEM_OK)
        status = catch_up(self, err);
    for (int looked = 0; status == IDEM_OK && looked < SCAN_SHARDS && left > 0;
         looked++) {
        struct zk_page page;
        size_t take;

        status = open_page(self, shard, after, &page, err);
        take = page.count < left ? page.count : left;
        if (status == IDEM_OK && take > 0)
            status = show_page(self, &page, take, query, &go_on, err);
        left -= take;
        if (status == IDEM_OK && take < page.count)
            snprintf(query->cursor->text, sizeof(query->cursor->text), "%s",
                     page.names[take - 1]);
        else if (status == IDEM_OK && ++shard < ZK_SHARDS)
            snprintf(query->cursor->text, sizeof(query->cursor->text), "%02x",
                     shard);
        else if (status == IDEM_OK)
            snprintf(query->cursor->text, sizeof(query->cursor->text), "0");
        close_page(&page);
        if (!go_on || shard == ZK_SHARDS)
            break;
        after = "";
    }
    return status;
}

/* ---- sweep ----------------------------------------------------------- */

static bool
is_swept(const struct zk_call *call, const uint8_t *key, int64_t drop_ms)
{
    struct idem_record record;
    int64_t drop_at;

    if (call->rc != ZOK ||
        idem__value_read(
            key, (struct idem_bytes){call->data, (size_t)call->data_len}, NULL,
            &record, NULL) != IDEM_OK)
        return false;
    drop_at = idem__record_drop_at(&record);
    return drop_at != 0 && drop_at < drop_ms;
}

/* Delete the records that expired long enough ago. Each delete changes the
 * shard's version, so the next delete expects the changed one. */
static void
sweep_page(struct zk_store *self, const struct zk_page *page, size_t count,
           int64_t drop_ms)
{
    struct zk_round *round = read_page(self, page, count, NULL);
    struct zk_round *deletes = idem__zk_round_new(count);
    int version;

    if (!round || !deletes || round->calls[count].rc != ZOK)
        goto out;
    version = round->calls[count].stat.version;
    for (size_t i = 0; i < count; i++) {
        uint8_t key[IDEM_KEY_LEN];

        idem__key_from_hex(page->names[i], IDEM__HEX_LEN, key);
        if (is_swept(&round->calls[i], key, drop_ms))
            idem__zk_change(self, &deletes->calls[i], key, version++,
                            round->calls[i].stat.version,
                            (struct idem_bytes){NULL, 0});
    }
    idem__zk_round_wait(self, deletes);
    for (size_t i = 0; i < count; i++)
        self->swept += deletes->calls[i].rc == ZOK;
out:
    idem__zk_round_leave(round);
    idem__zk_round_leave(deletes);
}

/* Sweep a few records after `sweep_from`; true if there were any. */
static bool
sweep_some(struct zk_store *self, int64_t drop_ms)
{
    const char *after;
    unsigned shard;
    struct zk_page page;
    size_t take = 0;

    if (!read_cursor(self->sweep_from[0] ? self->sweep_from : "0", &shard,
                     &after))
        shard = 0, after = "";
    if (open_page(self, shard, after, &page, NULL) == IDEM_OK) {
        take = page.count < SWEEP_COUNT ? page.count : SWEEP_COUNT;
        if (take > 0)
            sweep_page(self, &page, take, drop_ms);
        if (take < page.count)
            snprintf(self->sweep_from, sizeof(self->sweep_from), "%s",
                     page.names[take - 1]);
        else if (++shard < ZK_SHARDS)
            snprintf(self->sweep_from, sizeof(self->sweep_from), "%02x", shard);
        else
            self->sweep_from[0] = 0;
    }
    close_page(&page);
    return take > 0;
}

void
idem__zk_sweep(struct zk_store *self, int64_t drop_ms)
{
    int64_t now_us = idem__mono_us();

    if (now_us < self->sweep_after_us || drop_ms <= 0 || !self->zh ||
        !self->rooted)
        return;
    self->sweep_after_us = now_us + SWEEP_STEP_US;
    for (int i = 0; i < SWEEP_SHARDS; i++) {
        bool found;

        if (idem__zk_ready(self, NULL) != IDEM_OK)
            return;
        found = sweep_some(self, drop_ms);
        if (!self->sweep_from[0]) /* the pass is complete */
            self->sweep_after_us = now_us + SWEEP_PASS_US;
        if (found || !self->sweep_from[0])
            return;
    }
}
