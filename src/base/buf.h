/*
 * buf.h - growing byte buffers with a maximum size, and an arena whose memory
 * is freed all at once.
 */
#ifndef IDEM__BUF_H
#define IDEM__BUF_H

#include "bytes.h"
#include "error.h"

/* Owned bytes. Growing past the cap, or out of memory, is an error that leaves
 * the content unchanged. `_init` sets a cap, `_reset` empties the buffer and
 * keeps its memory, `_clear` frees it. A caller that adds many pieces may check
 * `lacks` once, after the last one. */
struct idem_buf {
    uint8_t *data;
    size_t len, room, cap;
    bool lacks; /* something could not be added since it was empty */
};

void idem_buf_init(struct idem_buf *buf, size_t cap);
void idem_buf_reset(struct idem_buf *buf);
void idem_buf_clear(struct idem_buf *buf);
bool idem_buf_add(struct idem_buf *buf, const void *data, size_t len);
bool idem_buf_add_text(struct idem_buf *buf, const char *text);
bool idem_buf_printf(struct idem_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Make room for len more bytes; the caller then adds what it used with buf->len
 * += n. */
uint8_t *idem_buf_room(struct idem_buf *buf, size_t len);
/* Drop the first len bytes. */
void idem_buf_shift(struct idem_buf *buf, size_t len);

/* Make room for one more element in an array of `*room` elements that has
 * `count`. Returns the array, which may have moved; NULL: out of memory, and
 * the array is as it was. */
void *idem__grow(void *array, size_t count, size_t *room, size_t element_len);

/* Replace the text by a copy of `value`. */
enum idem_status idem__text_set(char **text, const char *value,
                                struct idem_error *err);

/* Memory for everything that a batch returns; one reset frees it all. */
struct idem_arena {
    struct idem_arena_block *blocks;
    size_t used; /* in the first block */
};

void *idem_arena_take(struct idem_arena *arena,
                      size_t len);               /* NULL: out of memory */
void idem_arena_reset(struct idem_arena *arena); /* keeps one block */
void idem_arena_clear(struct idem_arena *arena);

#endif
