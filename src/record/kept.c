/*
 * kept.c - copies of records, for answers and others that outlive them.
 */
#include "record.h"

#include "../base/buf.h"

#include <stdlib.h>
#include <string.h>

const struct idem_record idem__no_record;

static uint8_t *
move(uint8_t *at, struct idem_bytes *bytes)
{
    if (bytes->len > 0)
        memcpy(at, bytes->data, bytes->len);
    bytes->data = bytes->len > 0 ? at : NULL;
    return at + bytes->len;
}

size_t
idem__record_bytes(const struct idem_record *record)
{
    return record->scope.len + record->id.len + record->subject.len +
           record->result.len;
}

void
idem__record_copy(struct idem_record *to, const struct idem_record *from,
                  void *room)
{
    uint8_t *at = room;

    *to = *from;
    at = move(at, &to->scope);
    at = move(at, &to->id);
    at = move(at, &to->subject);
    move(at, &to->result);
}

bool
idem_arena_record(struct idem_arena *arena, const struct idem_record *from,
                  struct idem_record *to)
{
    void *room = idem_arena_take(arena, idem__record_bytes(from));

    if (room)
        idem__record_copy(to, from, room);
    return room != NULL;
}

bool
idem__answer_keep(struct idem_answer *answer, const struct idem_record *record)
{
    size_t len = idem__record_bytes(record);
    struct idem_record *copy = NULL;

    if (record->state != IDEM_STATE_ABSENT || len > 0) {
        copy = malloc(sizeof(*copy) + len);
        if (!copy)
            return false;
        idem__record_copy(copy, record, copy + 1);
    }
    free(answer->memory); /* last, since the record may be inside it */
    answer->memory = copy;
    answer->record = copy ? copy : &idem__no_record;
    return true;
}

void
idem_answer_clear(struct idem_answer *answer)
{
    free(answer->memory);
    *answer = (struct idem_answer){.record = &idem__no_record};
}
