/*
 * buf.h - owned bytes with a cap, and an arena that gives back all at once.
 */
#ifndef IDEM__BUF_H
#define IDEM__BUF_H

#include "../record/record.h"

/* Owned bytes; growing past the cap, or out of memory, is an error that leaves
 * the content as it was. `_init` a cap; `_reset` empties and keeps the memory;
 * `_clear` gives it back. */
struct idem_buf {
    uint8_t *data;
    size_t len, room, cap;
};

void idem_buf_init(struct idem_buf *buf, size_t cap);
void idem_buf_reset(struct idem_buf *buf);
void idem_buf_clear(struct idem_buf *buf);
bool idem_buf_add(struct idem_buf *buf, const void *data, size_t len);
bool idem_buf_add_text(struct idem_buf *buf, const char *text);
bool idem_buf_printf(struct idem_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Room for len more bytes, to be counted in with buf->len += n. */
uint8_t *idem_buf_room(struct idem_buf *buf, size_t len);
/* Drop the first len bytes. */
void idem_buf_shift(struct idem_buf *buf, size_t len);

/* What a batch returns lives in the batch: one reset frees it all. */
struct idem_arena {
    struct idem_arena_block *blocks;
    size_t used; /* in the first block */
};

void *idem_arena_take(struct idem_arena *arena,
                      size_t len);               /* NULL: no memory */
void idem_arena_reset(struct idem_arena *arena); /* keeps one block */
void idem_arena_clear(struct idem_arena *arena);

/* Copy a record's bytes into the arena. False: out of memory. */
bool idem_arena_record(struct idem_arena *arena, const struct idem_record *from,
                       struct idem_record *to);

#endif
