/*
 * wire_reply_fuzz.c - fuzzes the reading of replies, as an answer and as a
 * listing.
 */
#include "wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct idem__wire_reply reply, again;
    struct idem__wire_brief brief, usual;
    struct idem_answer answer;
    struct idem_record record;
    struct idem_cursor next;
    struct idem_error err;
    size_t used = 0, usual_used = 0;
    int64_t tag;
    bool short_way = idem__wire_usual((struct idem_bytes){data, len}, 65536,
                                      &tag, &usual, &usual_used);

    if (idem__wire_reply((struct idem_bytes){data, len}, 65536, &reply,
                         &used) != IDEM__WIRE_DONE) {
        if (short_way)
            abort();
        return 0;
    }
    if (used == 0 || used > len)
        abort();
    again = reply;
    if (idem__wire_brief(&again, &brief, &err) != IDEM_OK
            ? short_way
            : short_way &&
                  (used != usual_used || !reply.tagged || reply.tag != tag ||
                   memcmp(&brief, &usual, sizeof(brief)) != 0))
        abort();
    again = reply;
    (void)idem__wire_answer(&reply, &answer, &record, &err);
    if (idem__wire_scanned(&again, &next, &err) != IDEM_OK)
        return 0;
    while (idem__wire_record(&again, &record, &err) == IDEM_OK)
        ;
    return 0;
}
