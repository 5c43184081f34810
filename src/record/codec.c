/*
 * codec.c - encodes a record as bytes, for stores that keep it as one value.
 *
 * Little-endian. Version 1:
 *
 *   at  0  version, type, state, mode, kind, flags      1 byte each
 *   at  6  lengths of scope, id, subject                1 byte each
 *   at  9  zero                                         3 bytes
 *   at 12  attempt, length of the result, zero          4 bytes each
 *   at 24  fence, rev, created, updated, lease_until,
 *          expires                                      8 bytes each
 *   at 72  nonce                                        8 bytes
 *   at 80  fingerprint, if the flag says so             32 bytes
 *          scope, id, subject, result
 *          XXH3-64 of everything before                 8 bytes
 *
 * Because of the checksum a damaged record is an error and is never returned as
 * an answer.
 */
#include "record.h"

#include "../base/le.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#define VERSION 1
#define HEAD_LEN 80
#define SUM_LEN 8
#define ALL_FLAGS                                                              \
    (IDEM_FLAG_FINGERPRINT | IDEM_FLAG_NOT_REPLAYABLE | IDEM_FLAG_REDEEMED |   \
     IDEM_FLAG_SETTLED | IDEM_FLAG_SEALED_SUBJECT | IDEM_FLAG_SEALED_RESULT)

static size_t
fingerprint_len(uint8_t flags)
{
    return flags & IDEM_FLAG_FINGERPRINT ? IDEM_FINGERPRINT_LEN : 0;
}

size_t
idem__encoded_len(const struct idem_record *r)
{
    return HEAD_LEN + fingerprint_len(r->flags) + r->scope.len + r->id.len +
           r->subject.len + r->result.len + SUM_LEN;
}

size_t
idem__encoded_max(size_t result_max)
{
    return HEAD_LEN + IDEM_FINGERPRINT_LEN + IDEM_SCOPE_MAX + IDEM_ID_MAX +
           IDEM_SUBJECT_MAX + result_max + SUM_LEN;
}

/* A larger number is not a valid time, and JSON could not represent it. */
static bool
is_time(int64_t ms)
{
    return ms >= 0 && ms <= IDEM_TIME_MAX_MS;
}

const char *
idem__record_flaw(const struct idem_record *r)
{
    if (r->type < IDEM_TYPE_REQUEST || r->type > IDEM_TYPE_WORKER)
        return "unknown type";
    if (r->state < IDEM_STATE_ISSUED || r->state > IDEM_STATE_FREE)
        return "unknown state";
    if (r->mode > IDEM_LOOSE)
        return "unknown mode";
    if (r->kind > IDEM_KIND_EXEC)
        return "unknown kind";
    if (r->flags & ~ALL_FLAGS)
        return "unknown flag";
    if (r->fence == 0 || r->fence > IDEM_FENCE_MAX)
        return "fence out of range";
    if (r->rev == 0)
        return "no rev";
    if (!is_time(r->created) || !is_time(r->updated) ||
        !is_time(r->lease_until) || !is_time(r->expires))
        return "time out of range";
    if (r->scope.len < 1 || r->scope.len > IDEM_SCOPE_MAX)
        return "scope length out of range";
    if (r->id.len < 1 || r->id.len > IDEM_ID_MAX)
        return "id length out of range";
    if (r->subject.len > IDEM_SUBJECT_MAX)
        return "subject too long";
    if (r->result.len > IDEM_RESULT_MAX)
        return "result too long";
    return NULL;
}

static uint8_t *
put_bytes(uint8_t *at, struct idem_bytes bytes)
{
    if (bytes.len > 0)
        memcpy(at, bytes.data, bytes.len);
    return at + bytes.len;
}

void
idem__encode(const struct idem_record *r, uint8_t *out)
{
    uint8_t *at = out + HEAD_LEN;

    assert(!idem__record_flaw(r));
    memset(out, 0, HEAD_LEN);
    out[0] = VERSION;
    out[1] = r->type;
    out[2] = r->state;
    out[3] = r->mode;
    out[4] = r->kind;
    out[5] = r->flags;
    out[6] = (uint8_t)r->scope.len;
    out[7] = (uint8_t)r->id.len;
    out[8] = (uint8_t)r->subject.len;
    idem__put32(out + 12, r->attempt);
    idem__put32(out + 16, (uint32_t)r->result.len);
    idem__put64(out + 24, r->fence);
    idem__put64(out + 32, r->rev);
    idem__put64(out + 40, (uint64_t)r->created);
    idem__put64(out + 48, (uint64_t)r->updated);
    idem__put64(out + 56, (uint64_t)r->lease_until);
    idem__put64(out + 64, (uint64_t)r->expires);
    memcpy(out + 72, r->nonce, IDEM_NONCE_LEN);
    if (r->flags & IDEM_FLAG_FINGERPRINT)
        at = put_bytes(
            at, (struct idem_bytes){r->fingerprint, IDEM_FINGERPRINT_LEN});
    at = put_bytes(at, r->scope);
    at = put_bytes(at, r->id);
    at = put_bytes(at, r->subject);
    at = put_bytes(at, r->result);
    idem__put64(at, XXH3_64bits(out, (size_t)(at - out)));
}

static void
read_head(const uint8_t *in, struct idem_record *r)
{
    memset(r, 0, sizeof(*r));
    r->type = in[1];
    r->state = in[2];
    r->mode = in[3];
    r->kind = in[4];
    r->flags = in[5];
    r->scope.len = in[6];
    r->id.len = in[7];
    r->subject.len = in[8];
    r->attempt = idem__get32(in + 12);
    r->result.len = idem__get32(in + 16);
    r->fence = idem__get64(in + 24);
    r->rev = idem__get64(in + 32);
    r->created = (int64_t)idem__get64(in + 40);
    r->updated = (int64_t)idem__get64(in + 48);
    r->lease_until = (int64_t)idem__get64(in + 56);
    r->expires = (int64_t)idem__get64(in + 64);
    memcpy(r->nonce, in + 72, IDEM_NONCE_LEN);
}

static const uint8_t *
view(const uint8_t *at, struct idem_bytes *bytes)
{
    bytes->data = bytes->len > 0 ? at : NULL;
    return at + bytes->len;
}

static bool
zeros_are_zero(const uint8_t *in)
{
    return in[9] == 0 && in[10] == 0 && in[11] == 0 &&
           idem__get32(in + 20) == 0;
}

enum idem_status
idem__decode(struct idem_bytes bytes, struct idem_record *record,
             struct idem_error *err)
{
    const uint8_t *in = bytes.data;
    const uint8_t *at = in + HEAD_LEN;
    struct idem_record r;
    const char *flaw;

    if (bytes.len < HEAD_LEN + SUM_LEN)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "a record of %zu bytes is too short", bytes.len);
    if (in[0] > VERSION)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "a record of version %d was written by a newer idem; "
                          "this one reads up to version %d",
                          in[0], VERSION);
    read_head(in, &r);
    flaw = in[0] != VERSION      ? "no such version"
           : !zeros_are_zero(in) ? "reserved bytes are set"
                                 : idem__record_flaw(&r);
    if (!flaw && bytes.len != idem__encoded_len(&r))
        flaw = "the lengths do not add up";
    if (!flaw && XXH3_64bits(in, bytes.len - SUM_LEN) !=
                     idem__get64(in + bytes.len - SUM_LEN))
        flaw = "the checksum is wrong";
    if (flaw)
        return idem__fail(err, IDEM_ERR_CORRUPT, "damaged record: %s", flaw);

    if (r.flags & IDEM_FLAG_FINGERPRINT) {
        memcpy(r.fingerprint, at, IDEM_FINGERPRINT_LEN);
        at += IDEM_FINGERPRINT_LEN;
    }
    at = view(at, &r.scope);
    at = view(at, &r.id);
    at = view(at, &r.subject);
    view(at, &r.result);
    *record = r;
    return IDEM_OK;
}
