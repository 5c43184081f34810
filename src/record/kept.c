/*
 * kept.c - copies a record into an answer that outlives it.
 */
#include "record.h"

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

bool
idem__answer_keep(struct idem_answer *answer, const struct idem_record *record)
{
    size_t len = record->scope.len + record->id.len + record->subject.len +
                 record->result.len;
    struct idem_record *copy = NULL;
    uint8_t *at;

    if (record->state != IDEM_STATE_ABSENT || len > 0) {
        copy = malloc(sizeof(*copy) + len);
        if (!copy)
            return false;
        *copy = *record;
        at = (uint8_t *)(copy + 1);
        at = move(at, &copy->scope);
        at = move(at, &copy->id);
        at = move(at, &copy->subject);
        move(at, &copy->result);
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
