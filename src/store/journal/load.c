/*
 * load.c - fills the index from saved indexes, before the journal serves or
 * while it does.
 *
 *   tags:   0 ........................................... 2^64 - 1
 *   slices: | 0 | 1 | 2 | ...                      | 2^bits - 1 |
 *             ^ loaded: the index knows every record of these keys
 *
 * The index is loaded slice by slice: a slice has the rows of all segments
 * whose tags begin with the same bits. A slice is loaded completely or not at
 * all. Every call first loads the slices of the keys that it asks for, so the
 * index is never asked about a key that it does not know completely. New
 * entries go to slices that are loaded. The other slices are loaded a few at a
 * time, by each call and by tend.
 *
 * The rows of a slice are first reduced to those that count: the last row of
 * each key, unless it is a delete. Only then they are added to the index, and
 * that cannot fail halfway.
 *
 * Until everything is loaded, the counts of the index and the segments' live
 * bytes are incomplete. So no segment is cleaned or removed before.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define EAGER_ROWS (UINT64_C(2) << 20) /* so many are loaded before serving */
#define SLICE_ROWS 4096
#define LAZY_SLICE_ROWS 4         /* tests */
#define AHEAD 256                 /* slices that the kernel is asked to read */
#define WAIT_US INT64_C(10000000) /* after a failure */

/* The saved index of a segment. Segments keep their numbers while the index is
 * loaded. */
struct saved_source {
    struct saved_head head;
    uint8_t *bytes; /* head and table; the rows too if there is no file */
    int fd;         /* -1: there is none */
};

/* A record of the slice that is being loaded. */
struct loaded_row {
    struct row row;  /* size 0: it was deleted */
    uint32_t source; /* its number */
};

struct loader {
    struct saved_source *sources;
    size_t count, room;
    uint32_t bits;
    uint64_t left; /* slices that are not loaded */
    uint64_t next; /* slices before this one are loaded */
    bool *loaded;
    int64_t start_us;
    int64_t wait_us; /* after a failure: when to try again */

    /* For one slice: */
    uint8_t *rows;
    size_t rows_len;
    struct loaded_row *found;
    size_t found_count, found_room;
    uint32_t *places;   /* a hash table: numbers of `found`, plus 1 */
    size_t place_count; /* a power of two */
};

/* ---- the saved indexes ---- */

bool
idem__load_start(struct journal *self)
{
    self->loader = calloc(1, sizeof(*self->loader));
    return self->loader != NULL;
}

static void
clear_source(struct journal *self, struct saved_source *source)
{
    idem__io_close(self->io, source->fd);
    free(source->bytes);
}

void
idem__load_stop(struct journal *self)
{
    struct loader *loader = self->loader;

    if (!loader)
        return;
    for (size_t i = 0; i < loader->count; i++)
        clear_source(self, &loader->sources[i]);
    free(loader->sources);
    free(loader->loaded);
    free(loader->rows);
    free(loader->found);
    free(loader->places);
    free(loader);
    self->loader = NULL;
}

static bool
push(struct loader *loader, const struct saved_source *source)
{
    struct saved_source *more = idem__grow(loader->sources, loader->count,
                                           &loader->room, sizeof(*more));

    if (!more)
        return false;
    loader->sources = more;
    loader->sources[loader->count++] = *source;
    return true;
}

/* Read the head and the table of a file. False: it cannot be used. */
static bool
read_table(struct journal *self, const struct segment *segment, uint64_t end,
           struct saved_source *source)
{
    uint8_t bytes[SAVED_HEAD_LEN];
    struct stat info;
    size_t len, got = 0;

    if (fstat(source->fd, &info) != 0 ||
        idem__io_read(self->io, source->fd, bytes, sizeof(bytes), 0, &got) ||
        got < sizeof(bytes) ||
        !idem__saved_head(bytes, (uint64_t)info.st_size, segment,
                          &source->head) ||
        source->head.end != end)
        return false;
    len = (size_t)saved_rows_at(&source->head);
    source->bytes = malloc(len);
    return source->bytes &&
           idem__io_read(self->io, source->fd, source->bytes, len, 0, &got) ==
               0 &&
           got == len && idem__saved_table(source->bytes, &source->head);
}

int
idem__load_file(struct journal *self, struct segment *segment, uint64_t end,
                bool *used)
{
    struct journal_name name = idem__segment_name(segment->head.id, "idx");
    struct saved_source source = {.fd = -1};

    *used = idem__io_open(self->io, self->dir_fd, name.text, O_RDONLY,
                          &source.fd) == 0 &&
            read_table(self, segment, end, &source);
    if (*used && push(self->loader, &source)) {
        segment->end = end;
        segment->saved_len =
            saved_rows_at(&source.head) + source.head.rows * SAVED_ROW_LEN;
        if (source.head.time_us > self->persisted_us)
            self->persisted_us = source.head.time_us;
        if (source.head.next_batch > self->next_batch)
            self->next_batch = source.head.next_batch;
        return 0;
    }
    clear_source(self, &source);
    return *used ? ENOMEM : 0;
}

/* Try to write a saved index. Then its rows need not stay in memory. */
static void
write_file(struct journal *self, struct saved_source *source)
{
    struct journal_name name = idem__segment_name(source->head.id, "idx");
    uint8_t *less;
    int error = idem__io_open(self->io, self->dir_fd, name.text,
                              O_RDWR | O_CREAT | O_TRUNC, &source->fd);

    if (error) {
        source->fd = -1;
        return;
    }
    if (idem__saved_write(self->io, source->fd, &source->head, source->bytes)) {
        idem__io_close(self->io, source->fd);
        source->fd = -1;
        (void)idem__io_unlink(self->io, self->dir_fd, name.text);
        return;
    }
    less = realloc(source->bytes, (size_t)saved_rows_at(&source->head));
    if (less)
        source->bytes = less;
}

int
idem__load_bytes(struct journal *self, struct segment *segment,
                 const struct saved_head *head, uint8_t *bytes)
{
    struct saved_source source = {.head = *head, .bytes = bytes, .fd = -1};

    write_file(self, &source);
    if (!push(self->loader, &source)) {
        clear_source(self, &source);
        return ENOMEM;
    }
    segment->saved_len =
        source.fd < 0 ? 0 : saved_rows_at(head) + head->rows * SAVED_ROW_LEN;
    return 0;
}

/* The slices of a saved index that have the rows of a slice of the index: from
 * `*low` to before `*high`. */
static void
slices_of(const struct saved_source *source, uint64_t slice, uint32_t bits,
          uint64_t *low, uint64_t *high)
{
    uint32_t have = source->head.bits;

    *low = have >= bits ? slice << (have - bits) : slice >> (bits - have);
    *high = have >= bits ? (slice + 1) << (have - bits) : *low + 1;
}

/* Read these slices and check them. Returns 0 or an errno; EBADMSG: they are
 * damaged. */
static int
read_slices(struct journal *self, const struct saved_source *source,
            uint64_t low, uint64_t high, const uint8_t **rows)
{
    struct loader *loader = self->loader;
    uint64_t first = idem__saved_first(source->bytes, &source->head, low);
    uint64_t end = idem__saved_first(source->bytes, &source->head, high);
    uint64_t at = saved_rows_at(&source->head) + first * SAVED_ROW_LEN;
    size_t len = (size_t)(end - first) * SAVED_ROW_LEN, got = 0;

    if (source->fd < 0) {
        *rows = source->bytes + at;
        return 0;
    }
    if (loader->rows_len < len) {
        uint8_t *more = realloc(loader->rows, len * 2);

        if (!more)
            return ENOMEM;
        loader->rows = more;
        loader->rows_len = len * 2;
    }
    *rows = loader->rows;
    if (len == 0)
        return 0;
    if (idem__io_read(self->io, source->fd, loader->rows, len, at, &got) ||
        got < len)
        return EBADMSG;
    for (uint64_t n = low; n < high; n++) {
        uint64_t from = idem__saved_first(source->bytes, &source->head, n);

        if (!idem__saved_slice(source->bytes, &source->head, n,
                               loader->rows + (from - first) * SAVED_ROW_LEN))
            return EBADMSG;
    }
    return 0;
}

/* A saved index cannot be read: make it again from the entries. */
static enum idem_status
make_again(struct journal *self, size_t number, struct idem_error *err)
{
    struct saved_source *source = &self->loader->sources[number];
    struct saved_source again = {.fd = -1};
    struct segment segment = self->segments[number];
    uint64_t next_batch = self->next_batch;
    enum idem_status status;

    idem__log(&self->base.options, IDEM_LOG_WARNING,
              "journal: %s: the saved index of segment %016" PRIx64
              " is damaged; it is made again from the segment",
              self->dir, segment.head.id);
    status = idem__recover_rows(self, &segment, source->head.end, &again.head,
                                &again.bytes, err);
    /* A segment that is being written may already have this number in its head,
     * as the number of its first batch. */
    self->next_batch = next_batch;
    if (status != IDEM_OK)
        return status;
    clear_source(self, source);
    write_file(self, &again);
    *source = again;
    return IDEM_OK;
}

/* ---- one slice ---- */

/* The bits of a tag that are compared. Tests use fewer, so that keys collide.
 */
static uint64_t
compared(const struct journal *self, uint64_t tag)
{
    return self->tuning.tag_mask ? tag & self->tuning.tag_mask : tag;
}

static size_t
place_of(const struct journal *self, uint64_t tag)
{
    uint64_t secret =
        (uint64_t)self->index.first << 32 | self->index.second | 1;

    return (size_t)(compared(self, tag) * secret >> 32) &
           (self->loader->place_count - 1);
}

static void
note_place(struct journal *self, size_t number)
{
    struct loader *loader = self->loader;
    size_t place = place_of(self, loader->found[number].row.tag);

    while (loader->places[place])
        place = (place + 1) & (loader->place_count - 1);
    loader->places[place] = (uint32_t)(number + 1);
}

static bool
make_room(struct journal *self, uint64_t more)
{
    struct loader *loader = self->loader;
    uint64_t wanted = loader->found_count + more;

    if (wanted > UINT32_MAX / 4)
        return false;
    if (loader->found_room < wanted) {
        struct loaded_row *found =
            realloc(loader->found, (size_t)wanted * 2 * sizeof(*found));

        if (!found)
            return false;
        loader->found = found;
        loader->found_room = (size_t)wanted * 2;
    }
    if (loader->place_count < wanted * 2) {
        size_t count = 64;
        uint32_t *places;

        while (count < wanted * 2)
            count *= 2;
        places = calloc(count, sizeof(*places));
        if (!places)
            return false;
        free(loader->places);
        loader->places = places;
        loader->place_count = count;
        for (size_t i = 0; i < loader->found_count; i++)
            note_place(self, i);
    }
    return true;
}

/* Read the key of a row's entry. The whole entry is checked: with a flipped bit
 * the key would be taken for another key, and an older record of the right key
 * for its newest. */
static enum idem_status
read_key(struct journal *self, uint32_t number, const struct row *row,
         uint8_t *key, struct idem_error *err)
{
    const struct segment *segment = &self->segments[number];
    uint64_t at = (uint64_t)row->place * ENTRY_ALIGN, need;
    size_t len = (size_t)(row->size & ~ROW_FLAGS) * 8, got = 0;
    uint8_t *bytes = malloc(len);
    struct entry_head head;
    int error = bytes
                    ? idem__io_read(self->io, segment->fd, bytes, len, at, &got)
                    : ENOMEM;

    if (!error && (idem__entry_get(bytes, got, segment->head.salt, &head,
                                   &need) != ENTRY_FINE ||
                   head.kind == ENTRY_MARK ||
                   compared(self, idem__index_full_tag(head.key)) !=
                       compared(self, row->tag)))
        error = EBADMSG;
    free(bytes);
    if (!error)
        memcpy(key, head.key, IDEM_KEY_LEN);
    else if (error == EBADMSG && self->accept_damage)
        memset(key, 0, IDEM_KEY_LEN); /* no key: the entry is lost */
    else
        return idem__recover_error(self, error, err);
    return IDEM_OK;
}

/* Is this the place that the row says its entry replaced? */
static bool
is_named(const struct journal *self, size_t number, const struct row *row,
         const struct loaded_row *found)
{
    uint64_t id = self->segments[number].head.id;

    return row->old_back != ROW_NEW && row->old_place == found->row.place &&
           id - row->old_back == self->segments[found->source].head.id;
}

/* Find the record of the same key among those that have the same tag: by its
 * place, or else by the keys. NULL: there is none. */
static enum idem_status
find_same(struct journal *self, size_t number, const struct row *row,
          struct loaded_row **same, struct idem_error *err)
{
    struct loader *loader = self->loader;
    uint8_t key[IDEM_KEY_LEN], there[IDEM_KEY_LEN];
    size_t first = place_of(self, row->tag), mask = loader->place_count - 1;
    bool rivals = false;
    enum idem_status status;

    *same = NULL;
    for (size_t at = first; loader->places[at]; at = (at + 1) & mask) {
        struct loaded_row *found = &loader->found[loader->places[at] - 1];

        if (found->row.size == 0 ||
            compared(self, found->row.tag) != compared(self, row->tag))
            continue;
        rivals = true;
        if (is_named(self, number, row, found)) {
            *same = found;
            return IDEM_OK;
        }
    }
    if (!rivals)
        return IDEM_OK;
    status = read_key(self, (uint32_t)number, row, key, err);
    for (size_t at = first; status == IDEM_OK && loader->places[at] && !*same;
         at = (at + 1) & mask) {
        struct loaded_row *found = &loader->found[loader->places[at] - 1];

        if (found->row.size == 0 ||
            compared(self, found->row.tag) != compared(self, row->tag))
            continue;
        status = read_key(self, found->source, &found->row, there, err);
        if (status == IDEM_OK && memcmp(key, there, sizeof(key)) == 0)
            *same = found;
    }
    return status;
}

static enum idem_status
take_row(struct journal *self, size_t number, const struct row *row,
         struct idem_error *err)
{
    struct loader *loader = self->loader;
    struct loaded_row *same;
    enum idem_status status = find_same(self, number, row, &same, err);

    if (status != IDEM_OK)
        return status;
    if (same) {
        same->source = (uint32_t)number;
        same->row = *row;
        if (row->size & ROW_DELETE)
            same->row.size = 0;
    } else if (!(row->size & ROW_DELETE)) {
        loader->found[loader->found_count] =
            (struct loaded_row){.row = *row, .source = (uint32_t)number};
        note_place(self, loader->found_count++);
    }
    return IDEM_OK;
}

static enum idem_status
take_source(struct journal *self, size_t number, uint64_t slice,
            uint64_t *looked, struct idem_error *err)
{
    struct loader *loader = self->loader;
    struct saved_source *source = &loader->sources[number];
    enum idem_status status = IDEM_OK;
    uint64_t low, high, count;
    const uint8_t *rows;
    int error;

    slices_of(source, slice, loader->bits, &low, &high);
    error = read_slices(self, source, low, high, &rows);
    if (error == EBADMSG) {
        status = make_again(self, number, err);
        if (status != IDEM_OK)
            return status;
        slices_of(source, slice, loader->bits, &low, &high);
        error = read_slices(self, source, low, high, &rows);
    }
    count = idem__saved_first(source->bytes, &source->head, high) -
            idem__saved_first(source->bytes, &source->head, low);
    if (!error && !make_room(self, count))
        error = ENOMEM;
    if (error)
        return idem__recover_error(self, error, err);
    *looked += count;
    for (uint64_t i = 0; i < count && status == IDEM_OK; i++) {
        struct row row;

        if (!idem__saved_row(rows + i * SAVED_ROW_LEN, &source->head, &row))
            return idem__recover_error(self, EBADMSG, err);
        if (tag_slice(row.tag, loader->bits) == slice)
            status = take_row(self, number, &row, err);
    }
    return status;
}

/* Make room in a shard for most of its records: three quarters of its rows,
 * because some rows have the same key. */
static void
expect(struct journal *self, uint64_t tag)
{
    struct loader *loader = self->loader;
    uint32_t shard = (uint32_t)(tag >> (64 - INDEX_SHARD_BITS));
    uint64_t rows = 0;

    if (self->index.shards[shard].count > 0 || self->tuning.tag_mask)
        return;
    for (size_t i = 0; i < loader->count; i++) {
        const struct saved_source *source = &loader->sources[i];
        uint64_t low, high, count;

        slices_of(source, shard, INDEX_SHARD_BITS, &low, &high);
        count = idem__saved_first(source->bytes, &source->head, high) -
                idem__saved_first(source->bytes, &source->head, low);
        rows += source->head.bits < INDEX_SHARD_BITS
                    ? count >> (INDEX_SHARD_BITS - source->head.bits)
                    : count;
    }
    idem__index_expect(&self->index, shard, rows / 4 * 3);
}

static bool
promise_all(struct journal *self)
{
    struct loader *loader = self->loader;

    for (size_t i = 0; i < loader->found_count; i++) {
        const struct loaded_row *found = &loader->found[i];

        if (found->row.size == 0)
            continue;
        expect(self, found->row.tag);
        if (idem__index_promise(
                &self->index,
                idem__index_short_tag(&self->index, found->row.tag)))
            continue;
        while (i-- > 0) {
            found = &loader->found[i];
            if (found->row.size != 0)
                idem__index_take_back(
                    &self->index,
                    idem__index_short_tag(&self->index, found->row.tag));
        }
        return false;
    }
    return true;
}

static void
add_all(struct journal *self)
{
    struct loader *loader = self->loader;

    for (size_t i = 0; i < loader->found_count; i++) {
        const struct row *row = &loader->found[i].row;
        struct segment *segment = &self->segments[loader->found[i].source];
        struct slot slot = {
            .tag = idem__index_short_tag(&self->index, row->tag),
            .at = segment->base + row->place,
            .size = idem__slot_size((uint64_t)(row->size & ~ROW_FLAGS) * 8),
            .drop = idem__slot_drop(row->drop_s, row->size & ROW_EXECUTING),
        };

        if (row->size == 0)
            continue;
        segment->live += slot_len(&slot);
        idem__index_add(&self->index, &slot);
    }
}

static enum idem_status
load_slice(struct journal *self, uint64_t slice, uint64_t *looked,
           struct idem_error *err)
{
    struct loader *loader = self->loader;
    enum idem_status status = IDEM_OK;

    loader->found_count = 0;
    if (loader->places)
        memset(loader->places, 0,
               loader->place_count * sizeof(*loader->places));
    for (size_t i = 0; i < loader->count && status == IDEM_OK; i++)
        status = take_source(self, i, slice, looked, err);
    if (status != IDEM_OK)
        return status;
    if (!promise_all(self))
        return idem__recover_error(self, ENOMEM, err);
    add_all(self);
    loader->loaded[slice] = true;
    loader->left--;
    return IDEM_OK;
}

/* ---- the whole index ---- */

static void
finish(struct journal *self)
{
    int64_t took_us = idem__journal_now_us(self) - self->loader->start_us;

    if (self->opened)
        idem__log(&self->base.options, IDEM_LOG_INFO,
                  "journal: %s: the index is complete after %" PRId64
                  " ms; expired records and old segments are removed from now "
                  "on",
                  self->dir, took_us / 1000);
    idem__load_stop(self);
}

enum idem_status
idem__load_begin(struct journal *self, struct idem_error *err)
{
    struct loader *loader = self->loader;
    bool lazy = self->tuning.lazy;
    uint64_t rows = 0, looked = 0;
    enum idem_status status = IDEM_OK;

    for (size_t i = 0; i < loader->count; i++)
        rows += loader->sources[i].head.rows;
    while (loader->bits < SAVED_MAX_BITS &&
           rows >> loader->bits > (lazy ? LAZY_SLICE_ROWS : SLICE_ROWS))
        loader->bits++;
    loader->left = UINT64_C(1) << loader->bits;
    loader->loaded = calloc((size_t)loader->left, sizeof(*loader->loaded));
    if (!loader->loaded)
        return idem__recover_error(self, ENOMEM, err);
    loader->start_us = idem__journal_now_us(self);
    if (lazy || rows > EAGER_ROWS) {
        idem__log(&self->base.options, IDEM_LOG_INFO,
                  "journal: %s: the index of about %" PRIu64
                  " records is loaded while the journal serves",
                  self->dir, rows);
        return IDEM_OK;
    }
    for (uint64_t n = 0; n >> loader->bits == 0 && status == IDEM_OK; n++)
        status = load_slice(self, n, &looked, err);
    if (status == IDEM_OK)
        finish(self);
    return status;
}

static enum idem_status
need_slice(struct journal *self, uint64_t slice, struct idem_error *err)
{
    uint64_t looked = 0;
    enum idem_status status;

    if (self->loader->loaded[slice])
        return IDEM_OK;
    status = load_slice(self, slice, &looked, err);
    if (status == IDEM_OK && self->loader->left == 0)
        finish(self);
    return status;
}

enum idem_status
idem__load_tag(struct journal *self, uint64_t tag, struct idem_error *err)
{
    return self->loader
               ? need_slice(self, tag_slice(tag, self->loader->bits), err)
               : IDEM_OK;
}

enum idem_status
idem__load_shard(struct journal *self, uint32_t shard, struct idem_error *err)
{
    uint64_t first = (uint64_t)shard << (64 - INDEX_SHARD_BITS);
    uint64_t last = first | UINT64_MAX >> INDEX_SHARD_BITS;
    enum idem_status status = IDEM_OK;
    uint32_t bits;

    if (!self->loader)
        return IDEM_OK;
    if (self->tuning.tag_mask) { /* a shard has keys of other slices too */
        first = 0;
        last = UINT64_MAX;
    }
    bits = self->loader->bits;
    for (uint64_t n = tag_slice(first, bits);
         n <= tag_slice(last, bits) && self->loader && status == IDEM_OK; n++)
        status = need_slice(self, n, err);
    return status;
}

/* Ask the kernel to read the rows of the next slices. */
static void
read_ahead(const struct loader *loader)
{
    uint64_t slices = UINT64_C(1) << loader->bits;
    uint64_t end =
        loader->next + 2 * AHEAD < slices ? loader->next + 2 * AHEAD : slices;

    for (size_t i = 0; i < loader->count; i++) {
        const struct saved_source *source = &loader->sources[i];
        uint64_t low, high, ignored, from, to;

        slices_of(source, loader->next, loader->bits, &low, &ignored);
        slices_of(source, end - 1, loader->bits, &ignored, &high);
        from = idem__saved_first(source->bytes, &source->head, low);
        to = idem__saved_first(source->bytes, &source->head, high);
        if (source->fd >= 0)
            (void)posix_fadvise(
                source->fd,
                (off_t)(saved_rows_at(&source->head) + from * SAVED_ROW_LEN),
                (off_t)((to - from) * SAVED_ROW_LEN), POSIX_FADV_WILLNEED);
    }
}

void
idem__load_some(struct journal *self, uint64_t rows)
{
    uint64_t looked = 0;
    struct idem_error err;

    if (!self->loader || self->tuning.hold)
        return;
    if (self->loader->wait_us > 0 &&
        idem__journal_now_us(self) < self->loader->wait_us)
        return;
    if (self->tuning.lazy)
        rows = 1;
    while (self->loader && looked < rows) {
        struct loader *loader = self->loader;

        if (loader->next % AHEAD == 0)
            read_ahead(loader);
        if (!loader->loaded[loader->next] &&
            load_slice(self, loader->next, &looked, &err) != IDEM_OK) {
            loader->wait_us = idem__journal_now_us(self) + WAIT_US;
            idem__log(&self->base.options, IDEM_LOG_ALARM,
                      "the index cannot be loaded completely; trying again: %s",
                      err.text);
            return;
        }
        looked++; /* so that the loop ends soon if slices are empty */
        loader->next++;
        if (loader->left == 0)
            finish(self);
    }
}

uint64_t
idem__load_left(const struct journal *self)
{
    return self->loader ? self->loader->left : 0;
}
