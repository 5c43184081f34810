/*
 * wire_reply.c - finds whole replies in the input and reads their values.
 *
 * An incomplete reply is read again from its start when more bytes have
 * arrived. That is cheap, because strings are skipped by their length. The first
 * values of an array are kept while its end is looked for, so that a short
 * answer is read once.
 */
#include "wire.h"

#include <string.h>

/* ---- a reply --------------------------------------------------------- */

/* Find the end of one reply, and keep its first values if it is an array. */
static enum idem__wire_got
skip(struct idem__wire_reader *in, struct idem__wire_reply *reply,
     size_t *missing)
{
    struct idem__wire_value spare, *value = &spare;
    int64_t left = 1;
    bool array = *in->at == '*';

    *missing = 1;
    for (bool head = true; left > 0; head = false) {
        bool keeps = array && !head && reply->known < IDEM__WIRE_FIRST;
        enum idem__wire_got got;

        value = keeps ? &reply->first[reply->known] : &spare;
        got = idem__wire_read(in, value);
        if (got == IDEM__WIRE_MORE && value->kind == IDEM__WIRE_BYTES)
            *missing = (size_t)value->number + 2 - (size_t)(in->end - in->at);
        if (got != IDEM__WIRE_DONE)
            return got;
        left--;
        if (value->kind == IDEM__WIRE_ARRAY)
            left += value->number;
        if (left > IDEM__WIRE_VALUES_MAX)
            return IDEM__WIRE_BAD;
        if (head && array)
            reply->values = (size_t)value->number;
        if (keeps)
            reply->known++;
        if (array && (head || keeps))
            reply->reader.at = in->at;
    }
    return IDEM__WIRE_DONE;
}

static bool
is(const struct idem__wire_value *value, const char *word)
{
    return value->kind == IDEM__WIRE_BYTES &&
           value->bytes.len == strlen(word) &&
           memcmp(value->bytes.data, word, value->bytes.len) == 0;
}

/* "WORD text" */
static void
split_error(struct idem__wire_reply *reply, struct idem_bytes line)
{
    const uint8_t *start = line.data;
    const uint8_t *space = line.len ? memchr(start, ' ', line.len) : NULL;
    size_t len = space ? (size_t)(space - start) : line.len;

    reply->error = true;
    reply->values = 0;
    reply->word = (struct idem_bytes){start, len};
    if (space)
        reply->text = (struct idem_bytes){space + 1, line.len - len - 1};
}

/* Remove ["tag", n, ...] and ["error", word, text]. The reply is complete. */
static enum idem__wire_got
open_array(struct idem__wire_reply *reply)
{
    const struct idem__wire_value *value = reply->first;

    if (reply->values < 3)
        return IDEM__WIRE_DONE;
    if (is(value, "tag")) {
        if (value[1].kind != IDEM__WIRE_NUMBER || value[1].number < 0)
            return IDEM__WIRE_BAD;
        reply->tagged = true;
        reply->tag = value[1].number;
        reply->values -= 2;
        reply->next = 2;
        if (reply->values != 3)
            return IDEM__WIRE_DONE;
        value += 2;
    }
    if (!is(value, "error"))
        return IDEM__WIRE_DONE;
    reply->word = value[1].bytes;
    reply->text = value[2].bytes;
    reply->error = true;
    reply->values = 0;
    return IDEM__WIRE_DONE;
}

enum idem__wire_got
idem__wire_reply(struct idem_bytes in, size_t longest,
                 struct idem__wire_reply *reply, size_t *used)
{
    const uint8_t *start = in.data;
    struct idem__wire_reader whole = {start, start + in.len, longest};
    struct idem__wire_value value;
    enum idem__wire_got got;
    size_t missing;

    *used = in.len + 1;
    if (in.len == 0)
        return IDEM__WIRE_MORE;
    /* `first` is not cleared: values below `known` are written before. */
    reply->tagged = reply->error = false;
    reply->tag = 0;
    reply->word = reply->text = (struct idem_bytes){NULL, 0};
    reply->next = reply->known = 0;
    reply->reader = whole;
    reply->values = 1;
    got = skip(&whole, reply, &missing);
    *used =
        got == IDEM__WIRE_DONE ? (size_t)(whole.at - start) : in.len + missing;
    if (got != IDEM__WIRE_DONE)
        return got;
    reply->reader.end = whole.at;
    if (*start == '-') {
        (void)idem__wire_read(&reply->reader, &value);
        split_error(reply, value.bytes);
    } else if (*start == '*') {
        return open_array(reply);
    }
    return IDEM__WIRE_DONE;
}

/* ---- its values ------------------------------------------------------ */

/* A word that is not a status of idem (NOAUTH, NOPERM ...) becomes part of the
 * text. */
enum idem_status
idem__wire_error(const struct idem__wire_reply *reply, struct idem_error *err)
{
    enum idem_status status;
    bool plain;

    if (!idem__status_parse(reply->word, &status) || status == IDEM_OK)
        status = IDEM_ERR_INVALID;
    plain = status != IDEM_ERR_INVALID || idem__bytes_is(reply->word, "ERR");
    return idem__fail(err, status, "%.*s%s%.*s",
                      plain ? 0 : (int)reply->word.len,
                      (const char *)reply->word.data, plain ? "" : " ",
                      (int)(reply->text.len < 240 ? reply->text.len : 240),
                      reply->text.len ? (const char *)reply->text.data : "");
}

enum idem_status
idem__wire_unexpected(struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "unexpected reply: is this an idem server of this "
                      "version?");
}

bool
idem__wire_take(struct idem__wire_reply *reply, enum idem__wire_kind kind,
                struct idem__wire_value *value)
{
    if (reply->values == 0)
        return false;
    if (reply->next < reply->known)
        *value = reply->first[reply->next++];
    else if (idem__wire_read(&reply->reader, value) != IDEM__WIRE_DONE)
        return false;
    reply->values--;
    return value->kind == kind;
}

bool
idem__wire_take_number(struct idem__wire_reply *reply, int64_t *number)
{
    struct idem__wire_value value;
    bool taken = idem__wire_take(reply, IDEM__WIRE_NUMBER, &value);

    if (taken)
        *number = value.number;
    return taken;
}

bool
idem__wire_take_bytes(struct idem__wire_reply *reply, struct idem_bytes *bytes)
{
    struct idem__wire_value value = {.kind = IDEM__WIRE_ERROR};
    bool taken = idem__wire_take(reply, IDEM__WIRE_BYTES, &value);

    if (taken)
        *bytes = value.bytes;
    return taken || value.kind == IDEM__WIRE_NULL;
}

enum idem_status
idem__wire_verdict(struct idem__wire_reply *reply, enum idem_verdict *verdict,
                   struct idem_error *err)
{
    struct idem__wire_value value;

    if (reply->error)
        return idem__wire_error(reply, err);
    if (!idem__wire_take(reply, IDEM__WIRE_BYTES, &value) ||
        !idem__verdict_parse(value.bytes, verdict))
        return idem__wire_unexpected(err);
    return IDEM_OK;
}
