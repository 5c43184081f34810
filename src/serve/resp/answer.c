/*
 * answer.c - see answer.h.
 */
#include "answer.h"

#include <ctype.h>
#include <string.h>

void
answer_add_array(struct resp_out *out, struct answer_tag tag, size_t count)
{
    char *at = resp_room(out, IDEM__WIRE_HEAD_MAX);

    if (at)
        resp_put(out, idem__wire_put_head(at, tag.set, tag.number, count));
}

void
answer_add_one(struct resp_out *out, struct answer_tag tag)
{
    if (tag.set)
        answer_add_array(out, tag, 1);
}

void
answer_add_error(struct resp_out *out, struct answer_tag tag, const char *word,
                 const char *text)
{
    if (!tag.set) {
        resp_add_error(out, word, text);
        return;
    }
    answer_add_array(out, tag, 3);
    resp_add_text(out, "error");
    resp_add_text(out, word);
    resp_add_text(out, text);
}

void
answer_add_status(struct resp_out *out, struct answer_tag tag,
                  enum idem_status status, const struct idem_error *err)
{
    const char *name =
        status == IDEM_ERR_INVALID ? "ERR" : idem_status_name(status);
    const char *text =
        err && err->text[0] ? err->text : idem_status_text(status);
    char word[24];
    size_t len = 0;

    for (; name[len] && len < sizeof(word) - 1; len++)
        word[len] = (char)toupper((unsigned char)name[len]);
    word[len] = '\0';
    answer_add_error(out, tag, word, text);
}

bool
answer_is_long(const struct idem_answer *answer)
{
    const struct idem_record *record = answer->record;

    return record->result.len >= RESULT_LONG &&
           !(record->flags & IDEM_FLAG_NOT_REPLAYABLE) &&
           (answer->verdict == IDEM_V_REPLAY ||
            answer->verdict == IDEM_V_FINISHED ||
            answer->verdict == IDEM_V_RECORD);
}

void
answer_add(struct resp_out *out, struct answer_tag tag, enum idem_verb verb,
           const struct idem_answer *answer)
{
    char *at = resp_room(out, idem__wire_brief_len(answer, RESULT_LONG - 1));

    if (at)
        resp_put(out, idem__wire_put_brief(at, tag.set, tag.number, verb,
                                           answer, RESULT_LONG - 1));
}

void
answer_add_full(struct resp_out *out, struct answer_tag tag,
                const struct idem_answer *answer)
{
    const struct idem_record *record = answer->record;
    bool is_long = answer_is_long(answer);
    bool is_short = record->result.len < RESULT_LONG;
    char *at =
        resp_room(out, idem__wire_full_len(answer) + IDEM__WIRE_LINE_MAX + 2 +
                           (is_short ? record->result.len : 0));

    if (!at)
        return;
    at = idem__wire_put_full(at, tag.set, tag.number, answer);
    if (is_short || is_long)
        at = idem__wire_put_result(at, record, RESULT_LONG - 1);
    else
        at = idem__wire_put_null(at); /* the client that wrote it has it */
    resp_put(out, at);
}

void
answer_add_record(struct resp_out *out, const struct idem_record *record,
                  bool full)
{
    char *at = resp_room(out, IDEM__WIRE_LINE_MAX +
                                  (full ? idem__wire_record_len(record)
                                        : idem__wire_fields_len(record)));

    if (!at)
        return;
    if (full) {
        at = idem__wire_put_record(at, record);
    } else {
        at = idem__wire_put_line(at, '*', (int64_t)idem__wire_fields());
        at = idem__wire_put_fields(at, record);
    }
    resp_put(out, at);
}
