/*
 * buf.c - growing byte buffers with a maximum size.
 */
#include "buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 256

void
idem_buf_init(struct idem_buf *buf, size_t cap)
{
    *buf = (struct idem_buf){.cap = cap};
}

void
idem_buf_reset(struct idem_buf *buf)
{
    buf->len = 0;
    buf->lacks = false;
}

void
idem_buf_clear(struct idem_buf *buf)
{
    free(buf->data);
    *buf = (struct idem_buf){.cap = buf->cap};
}

uint8_t *
idem_buf_room(struct idem_buf *buf, size_t len)
{
    size_t room = buf->room ? buf->room : FIRST_ROOM;
    uint8_t *data = NULL;

    if (buf->data && len <= buf->room - buf->len)
        return buf->data + buf->len;
    if (len <= buf->cap && buf->len <= buf->cap - len) {
        while (room < buf->len + len && room < buf->cap / 2)
            room *= 2;
        if (room < buf->len + len || room > buf->cap)
            room = buf->cap;
        data = realloc(buf->data, room ? room : 1);
    }
    if (!data) {
        buf->lacks = true;
        return NULL;
    }
    buf->data = data;
    buf->room = room;
    return data + buf->len;
}

void *
idem__grow(void *array, size_t count, size_t *room, size_t element_len)
{
    size_t more = *room ? *room * 2 : 16;

    if (count < *room)
        return array;
    array = realloc(array, more * element_len);
    if (array)
        *room = more;
    return array;
}

enum idem_status
idem__text_set(char **text, const char *value, struct idem_error *err)
{
    char *copy = strdup(value);

    if (!copy)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    free(*text);
    *text = copy;
    return IDEM_OK;
}

bool
idem_buf_add(struct idem_buf *buf, const void *data, size_t len)
{
    uint8_t *at = idem_buf_room(buf, len);

    if (!at)
        return false;
    if (len > 0)
        memcpy(at, data, len);
    buf->len += len;
    return true;
}

bool
idem_buf_add_text(struct idem_buf *buf, const char *text)
{
    return idem_buf_add(buf, text, strlen(text));
}

bool
idem_buf_printf(struct idem_buf *buf, const char *format, ...)
{
    va_list args, again;
    int len;
    uint8_t *at = NULL;

    va_start(args, format);
    va_copy(again, args);
    len = vsnprintf(NULL, 0, format, args);
    if (len >= 0)
        at = idem_buf_room(buf, (size_t)len + 1); /* with the final NUL */
    if (at) {
        vsnprintf((char *)at, (size_t)len + 1, format, again);
        buf->len += (size_t)len;
    }
    va_end(again);
    va_end(args);
    return at != NULL;
}

void
idem_buf_shift(struct idem_buf *buf, size_t len)
{
    if (len >= buf->len) {
        buf->len = 0;
        return;
    }
    memmove(buf->data, buf->data + len, buf->len - len);
    buf->len -= len;
}
