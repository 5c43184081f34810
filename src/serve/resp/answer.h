/*
 * answer.h - replies in RESP; docs/protocol.md has their table.
 */
#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include "../core/results.h"
#include "resp.h"

/* The tag of an answer, if it has one. */
struct answer_tag {
    bool set;
    int64_t number;
};

/* Is the answer's last value a result of RESULT_LONG bytes or more? */
bool answer_is_long(const struct idem_answer *answer);

/* The answer of one operation of the engine. The bytes of a long result and the
 * CRLF after them are left out; the caller sends them. */
void answer_add(struct resp_out *out, struct answer_tag tag,
                enum idem_verb verb, const struct idem_answer *answer);

/* The same with the whole record, for FULL; a long result is left out here,
 * too. */
void answer_add_full(struct resp_out *out, struct answer_tag tag,
                     const struct idem_answer *answer);

/* A record of a listing, without its result. */
void answer_add_record(struct resp_out *out, const struct idem_record *record,
                       bool full);

/* -WORD text, or ["tag", n, "error", word, text]. */
void answer_add_error(struct resp_out *out, struct answer_tag tag,
                      const char *word, const char *text);
void answer_add_status(struct resp_out *out, struct answer_tag tag,
                       enum idem_status status, const struct idem_error *err);

/* The header of an array of `count` values; with a tag, of ["tag", n, ...]. */
void answer_add_array(struct resp_out *out, struct answer_tag tag,
                      size_t count);

/* The part before a reply of one value: nothing, or the start of ["tag", n,
 * ...]. */
void answer_add_one(struct resp_out *out, struct answer_tag tag);

#endif
