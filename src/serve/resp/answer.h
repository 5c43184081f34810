/*
 * answer.h - what a client is told, in RESP; the table of docs/protocol.md.
 */
#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include "../core/results.h"
#include "resp.h"

/* Under which tag an answer goes out. */
struct answer_tag {
    bool set;
    int64_t number;
};

/* Is the answer's last value a result of RESULT_LONG bytes or more? */
bool answer_is_long(const struct idem_answer *answer);

/* The answer of one operation of the engine. Of a long one the result's bytes
 * and the CRLF behind them are left out: the caller sends them. */
void answer_add(struct resp_out *out, struct answer_tag tag,
                enum idem_verb verb, const struct idem_answer *answer);

/* The same with the whole record, as FULL asks for it; a long result is left
 * out there, too. */
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

/* The array around `count` values; with a tag, also ["tag", n, ...]. */
void answer_add_array(struct resp_out *out, struct answer_tag tag,
                      size_t count);

/* What goes before a reply that is one value: nothing, or ["tag", n, ...]. */
void answer_add_one(struct resp_out *out, struct answer_tag tag);

#endif
