/*
 * error.h - record an error and return its status, in one line:
 *
 *   return idem__fail(err, IDEM_ERR_FULL, "%s: the disk is full", path);
 */
#ifndef IDEM__ERROR_H
#define IDEM__ERROR_H

#include <idem/engine.h>

/* `err` may be NULL. */
enum idem_status idem__fail(struct idem_error *err, enum idem_status status,
                            const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Refuse nonzero bytes in the `room` of a struct that the caller filled. */
enum idem_status idem__room_used(struct idem_error *err);
static inline enum idem_status
idem__room_check(const uint64_t *room, size_t count, struct idem_error *err)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < count; i++)
        bits |= room[i];
    return bits == 0 ? IDEM_OK : idem__room_used(err);
}
#define IDEM__ROOM_CHECK(filled, err)                                          \
    idem__room_check((filled)->room,                                           \
                     sizeof((filled)->room) / sizeof((filled)->room[0]), err)

#endif
