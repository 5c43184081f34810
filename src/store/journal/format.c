/*
 * format.c - encodes and decodes the heads of segments and entries.
 */
#include "format.h"

#include "../../base/le.h"

#include <string.h>
#include <xxhash.h>

static const char magic[8] = {'i', 'd', 'e', 'm', 'l', 'o', 'g', '\n'};

#define SEGMENT_SUM_AT 56

void
idem__segment_head_put(const struct segment_head *head, uint8_t *out)
{
    memset(out, 0, SEGMENT_HEAD_LEN);
    memcpy(out, magic, sizeof(magic));
    idem__put32(out + 8, JOURNAL_VERSION);
    idem__put32(out + 12, SEGMENT_HEAD_LEN);
    idem__put64(out + 16, head->id);
    idem__put64(out + 24, head->salt);
    idem__put64(out + 32, head->prev_end);
    idem__put64(out + 40, (uint64_t)head->time_us);
    idem__put64(out + 48, head->first_batch);
    idem__put64(out + SEGMENT_SUM_AT, XXH3_64bits(out, SEGMENT_SUM_AT));
}

enum idem_status
idem__segment_head_get(const uint8_t *in, struct segment_head *head,
                       struct idem_error *err)
{
    uint32_t version = idem__get32(in + 8);

    if (memcmp(in, magic, sizeof(magic)) != 0)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "it does not start as a segment does");
    /* Check the version first: a newer head may be longer and have another
     * checksum. */
    if (version > JOURNAL_VERSION && version < 1000)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "it was written by a newer idem (format %u; this one "
                          "reads up to %d): use that version, or newer",
                          version, JOURNAL_VERSION);
    if (idem__get64(in + SEGMENT_SUM_AT) != XXH3_64bits(in, SEGMENT_SUM_AT) ||
        version != JOURNAL_VERSION || idem__get32(in + 12) != SEGMENT_HEAD_LEN)
        return idem__fail(err, IDEM_ERR_CORRUPT, "its head is damaged");
    head->id = idem__get64(in + 16);
    head->salt = idem__get64(in + 24);
    head->prev_end = idem__get64(in + 32);
    head->time_us = (int64_t)idem__get64(in + 40);
    head->first_batch = idem__get64(in + 48);
    return IDEM_OK;
}

/* The checksum of everything in the head except the two checksums. */
static uint16_t
head_sum(const uint8_t *in, uint64_t salt)
{
    uint64_t first = idem__get64(in + 8) << 16;

    return (uint16_t)XXH3_64bits_withSeed(in + 16, ENTRY_HEAD_LEN - 16,
                                          salt ^ first);
}

void
idem__entry_put(const struct entry_head *head, uint64_t salt, uint8_t *out)
{
    uint64_t len = entry_len(head->body_len);
    uint64_t body_end = ENTRY_HEAD_LEN + (uint64_t)head->body_len;
    uint16_t sum;

    memset(out + body_end, 0, (size_t)(len - body_end));
    idem__put32(out + 8, head->body_len);
    out[12] = head->kind;
    out[13] = head->flags;
    idem__put64(out + 16, head->batch);
    idem__put64(out + 24, (uint64_t)head->time_us);
    idem__put64(out + 32, head->rev);
    idem__put64(out + 40, head->prev);
    idem__put64(out + 48, (uint64_t)head->drop_at);
    memcpy(out + 56, head->key, IDEM_KEY_LEN);
    sum = head_sum(out, salt);
    out[14] = (uint8_t)sum;
    out[15] = (uint8_t)(sum >> 8);
    idem__put64(out, XXH3_64bits_withSeed(out + 8, (size_t)(len - 8), salt));
}

bool
idem__entry_plausible(const uint8_t *in, uint64_t salt)
{
    uint32_t body_len = idem__get32(in + 8);
    uint8_t kind = in[12], flags = in[13];

    if (kind < ENTRY_RECORD || kind > ENTRY_MARK || flags > ENTRY_ALL_FLAGS)
        return false;
    if (body_len > idem__encoded_max(IDEM_RESULT_MAX) ||
        (body_len > 0) != (kind == ENTRY_RECORD) ||
        (idem__get64(in + 32) != 0) != (kind == ENTRY_RECORD))
        return false;
    return (in[14] | in[15] << 8) == head_sum(in, salt);
}

enum entry_look
idem__entry_get(const uint8_t *in, uint64_t len, uint64_t salt,
                struct entry_head *head, uint64_t *need)
{
    *need = ENTRY_HEAD_LEN;
    if (len < ENTRY_HEAD_LEN)
        return ENTRY_MORE;
    if (!idem__entry_plausible(in, salt))
        return ENTRY_BAD;
    head->body_len = idem__get32(in + 8);
    *need = entry_len(head->body_len);
    if (len < *need)
        return ENTRY_MORE;
    if (idem__get64(in) !=
        XXH3_64bits_withSeed(in + 8, (size_t)(*need - 8), salt))
        return ENTRY_BAD;
    head->kind = in[12];
    head->flags = in[13];
    head->batch = idem__get64(in + 16);
    head->time_us = (int64_t)idem__get64(in + 24);
    head->rev = idem__get64(in + 32);
    head->prev = idem__get64(in + 40);
    head->drop_at = (int64_t)idem__get64(in + 48);
    memcpy(head->key, in + 56, IDEM_KEY_LEN);
    return ENTRY_FINE;
}
