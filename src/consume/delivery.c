/*
 * delivery.c - the bytes and headers of one delivery.
 */
#include "consume.h"

#include <stdlib.h>
#include <string.h>

struct delivery *
idem__delivery_make(void)
{
    return calloc(1, sizeof(struct delivery));
}

void
idem__delivery_drop(struct delivery *delivery)
{
    if (!delivery)
        return;
    if (delivery->original)
        delivery->drop_original(delivery->original);
    idem_arena_clear(&delivery->memory);
    free(delivery->headers);
    free(delivery);
}

bool
idem__delivery_copy(struct delivery *delivery, const void *data, size_t len,
                    struct idem_bytes *into)
{
    uint8_t *copy = idem_arena_take(&delivery->memory, len + 1);

    if (!copy)
        return false;
    if (len > 0)
        memcpy(copy, data, len);
    copy[len] = 0;
    *into = (struct idem_bytes){copy, len};
    return true;
}

bool
idem__delivery_header(struct delivery *delivery, struct idem_bytes name,
                      struct idem_bytes value)
{
    struct idem_header *header;

    header = idem__grow(delivery->headers, delivery->header_count,
                        &delivery->header_room, sizeof(*header));
    if (!header)
        return false;
    delivery->headers = header;
    header += delivery->header_count++;
    return idem__delivery_copy(delivery, name.data, name.len, &header->name) &&
           idem__delivery_copy(delivery, value.data, value.len, &header->value);
}

bool
idem__delivery_is_letter(const struct delivery *delivery)
{
    return delivery->fate == FATE_DEAD_LETTER || delivery->fate == FATE_DOUBT;
}

const char *
idem__delivery_place(const struct delivery *delivery,
                     const struct source *source)
{
    if (!idem__delivery_is_letter(delivery))
        return NULL;
    return delivery->fate == FATE_DOUBT ? source->doubt : source->dead_letter;
}

bool
idem__delivery_header_is_own(const struct idem_header *header)
{
    static const char *const not_own[] = {"idem-reason", "x-idem-reason",
                                          "idem-position", "kafka-key"};

    for (size_t i = 0; i < sizeof(not_own) / sizeof(not_own[0]); i++) {
        if (idem__bytes_is(header->name, not_own[i]))
            return false;
    }
    return true;
}
