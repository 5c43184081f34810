/*
 * seal.c - seals and opens records; see seal.h.
 *
 * The keys are in memory that libsodium protects: it is locked, left out of
 * core dumps, read-only after the keys are loaded, and zeroed when it is freed.
 */
#include "seal.h"

#include "../base/hex.h"
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VERSION 1
#define KEY_LEN crypto_aead_xchacha20poly1305_ietf_KEYBYTES
#define NONCE_LEN crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define TAG_LEN crypto_aead_xchacha20poly1305_ietf_ABYTES
#define ID_LEN 4
#define HEAD_LEN (1 + ID_LEN + NONCE_LEN)
#define KEYS_MAX 16
#define FILE_MAX 65536

_Static_assert(HEAD_LEN + TAG_LEN == IDEM__SEAL_LEN, "what a seal adds");

struct key {
    uint8_t bytes[KEY_LEN];
    uint8_t id[ID_LEN];
};

struct idem__seal { /* in protected memory */
    size_t count;
    bool locked;
    struct key keys[KEYS_MAX]; /* the first one seals */
};

/* ---- the keys ---------------------------------------------------------- */

/* The id identifies the key and reveals nothing about its bytes. */
static void
make_id(struct key *key)
{
    static const uint8_t what[] = "idem seal key id";
    uint8_t hash[crypto_generichash_BYTES];

    crypto_generichash(hash, sizeof(hash), what, sizeof(what) - 1, key->bytes,
                       sizeof(key->bytes));
    memcpy(key->id, hash, ID_LEN);
}

static const struct key *
find_key(const struct idem__seal *seal, const uint8_t id[ID_LEN])
{
    for (size_t i = 0; seal && i < seal->count; i++) {
        if (memcmp(seal->keys[i].id, id, ID_LEN) == 0)
            return &seal->keys[i];
    }
    return NULL;
}

/* Says what is wrong with a line; NULL: nothing. */
static const char *
add_line(struct idem__seal *seal, const char *line, size_t len)
{
    struct key *key = &seal->keys[seal->count];

    while (len > 0 && strchr(" \t\r", line[len - 1]))
        len--;
    while (len > 0 && (*line == ' ' || *line == '\t'))
        line++, len--;
    if (len == 0 || *line == '#')
        return NULL;
    if (seal->count == KEYS_MAX)
        return "there are more than 16 keys";
    if (!idem__hex_read(line, len, key->bytes, KEY_LEN))
        return "a key is 64 hex digits: openssl rand -hex 32 makes one";
    make_id(key);
    if (find_key(seal, key->id))
        return "this key is in the file twice";
    seal->count++;
    return NULL;
}

enum idem_status
idem__seal_parse(const char *name, struct idem_bytes text,
                 struct idem__seal **out, struct idem_error *err)
{
    const char *at = text.data, *end = at + text.len, *flaw = NULL;
    struct idem__seal *seal = sodium_malloc(sizeof(*seal));
    size_t number = 0;

    if (!seal)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    memset(seal, 0, sizeof(*seal));
    while (at < end && !flaw) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));

        number++;
        stop = stop ? stop : end;
        flaw = add_line(seal, at, (size_t)(stop - at));
        at = stop + 1;
    }
    if (!flaw && seal->count > 0) {
        seal->locked = sodium_mlock(seal, sizeof(*seal)) == 0;
        sodium_mprotect_readonly(seal);
        *out = seal;
        return IDEM_OK;
    }
    sodium_free(seal);
    return flaw ? idem__fail(err, IDEM_ERR_INVALID, "seal-key %s: line %zu: %s",
                             name, number, flaw)
                : idem__fail(err, IDEM_ERR_INVALID,
                             "seal-key %s: there is no key in it: openssl rand "
                             "-hex 32 makes one",
                             name);
}

static enum idem_status
read_fd(int fd, const char *file, struct idem__seal **seal,
        struct idem_error *err)
{
    enum idem_status status;
    struct stat about;
    uint8_t *text;
    size_t len = 0;
    ssize_t more;

    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        return idem__fail(err, IDEM_ERR_INVALID, "seal-key %s: not a file",
                          file);
    if (about.st_mode & (S_IRWXO | S_IWGRP))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "seal-key %s: other users may read or change it; "
                          "say: chmod go= %s",
                          file, file);
    text = sodium_malloc(FILE_MAX);
    if (!text)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    do {
        more = read(fd, text + len, FILE_MAX - len);
        len += more > 0 ? (size_t)more : 0;
    } while (more > 0 || (more < 0 && errno == EINTR));
    if (more < 0)
        status = idem__fail(err, IDEM_ERR_INVALID, "seal-key %s: %s", file,
                            strerror(errno));
    else if (len == FILE_MAX)
        status =
            idem__fail(err, IDEM_ERR_INVALID, "seal-key %s: over 64 KiB", file);
    else
        status =
            idem__seal_parse(file, (struct idem_bytes){text, len}, seal, err);
    sodium_free(text);
    return status;
}

enum idem_status
idem__seal_read(const char *file, struct idem__seal **seal,
                struct idem_error *err)
{
    uint8_t key[KEY_LEN];
    enum idem_status status;
    bool is_key;
    int fd;

    if (sodium_init() < 0)
        return idem__fail(err, IDEM_ERR_MEMORY, "libsodium does not start");
    /* A user may pass the key itself instead of the name of a file. In that
     * case the error message must not show it. */
    is_key = idem__hex_read(file, strlen(file), key, sizeof(key));
    sodium_memzero(key, sizeof(key));
    fd = is_key ? -1 : open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (is_key)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "seal-key is the name of a file that has the key, "
                          "not the key itself");
    if (fd < 0)
        return idem__fail(err, IDEM_ERR_INVALID, "seal-key %s: %s", file,
                          strerror(errno));
    status = read_fd(fd, file, seal, err);
    close(fd);
    return status;
}

void
idem__seal_close(struct idem__seal *seal)
{
    sodium_free(seal);
}

static void
id_text(const uint8_t id[ID_LEN], char text[IDEM__SEAL_ID_TEXT])
{
    idem__hex_write(id, ID_LEN, text);
    text[2 * ID_LEN] = '\0';
}

size_t
idem__seal_about(const struct idem__seal *seal, char id[IDEM__SEAL_ID_TEXT])
{
    id_text(seal->keys[0].id, id);
    return seal->count;
}

bool
idem__seal_locked(const struct idem__seal *seal)
{
    return seal->locked;
}

/* ---- one field --------------------------------------------------------- */

/* What the tag of a field covers: the record's key, and which field it is. */
struct sealed_place {
    uint8_t key[IDEM_KEY_LEN];
    uint8_t field;
};

static struct sealed_place
bind(const uint8_t *key, uint8_t field)
{
    struct sealed_place bound = {.field = field};

    memcpy(bound.key, key, IDEM_KEY_LEN);
    return bound;
}

static bool
seal_field(const struct key *with, const struct sealed_place *bound,
           struct idem_bytes *field, struct idem_arena *arena)
{
    uint8_t *out = idem_arena_take(arena, field->len + IDEM__SEAL_LEN);

    if (!out)
        return false;
    out[0] = VERSION;
    memcpy(out + 1, with->id, ID_LEN);
    randombytes_buf(out + 1 + ID_LEN, NONCE_LEN);
    crypto_aead_xchacha20poly1305_ietf_encrypt(
        out + HEAD_LEN, NULL, field->data, field->len, (const uint8_t *)bound,
        sizeof(*bound), NULL, out + 1 + ID_LEN, with->bytes);
    *field = (struct idem_bytes){out, field->len + IDEM__SEAL_LEN};
    return true;
}

static enum idem_status
no_key(const struct idem__seal *seal, const uint8_t id[ID_LEN],
       struct idem_error *err)
{
    char text[IDEM__SEAL_ID_TEXT];

    id_text(id, text);
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      seal ? IDEM__THIS_RECORD_IS
                             "sealed with key %s, which the seal-key file does "
                             "not have: add that key to it"
                           : IDEM__THIS_RECORD_IS
                             "sealed with key %s: give the file that has it "
                             "with seal-key",
                      text);
}

static enum idem_status
open_field(const struct idem__seal *seal, const struct sealed_place *bound,
           struct idem_bytes *field, struct idem_arena *arena,
           struct idem_error *err)
{
    const uint8_t *in = field->data;
    size_t len = field->len;
    const struct key *with;
    char text[IDEM__SEAL_ID_TEXT];
    uint8_t *out;

    if (len <= IDEM__SEAL_LEN)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "damaged record: %zu sealed bytes are too few", len);
    if (in[0] != VERSION)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "this record is sealed by version %d; this idem "
                          "opens version %d",
                          in[0], VERSION);
    with = find_key(seal, in + 1);
    if (!with)
        return no_key(seal, in + 1, err);
    out = idem_arena_take(arena, len - IDEM__SEAL_LEN);
    if (!out)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    id_text(with->id, text);
    if (crypto_aead_xchacha20poly1305_ietf_decrypt(
            out, NULL, NULL, in + HEAD_LEN, len - HEAD_LEN,
            (const uint8_t *)bound, sizeof(*bound), in + 1 + ID_LEN,
            with->bytes) != 0)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "damaged record: what key %s sealed was changed, or "
                          "copied from another record",
                          text);
    *field = (struct idem_bytes){out, len - IDEM__SEAL_LEN};
    return IDEM_OK;
}

/* ---- a record ---------------------------------------------------------- */

bool
idem__seal_record(const struct idem__seal *seal, const uint8_t *key,
                  const struct idem_record *record, struct idem_arena *arena,
                  struct idem_record *sealed)
{
    struct sealed_place subject = bind(key, IDEM_FLAG_SEALED_SUBJECT);
    struct sealed_place result = bind(key, IDEM_FLAG_SEALED_RESULT);

    *sealed = *record;
    if (record->subject.len > 0 &&
        record->subject.len <= IDEM__SEALED_SUBJECT_MAX) {
        sealed->flags |= IDEM_FLAG_SEALED_SUBJECT;
        if (!seal_field(&seal->keys[0], &subject, &sealed->subject, arena))
            return false;
    }
    if (record->result.len > 0 &&
        record->result.len <= IDEM_RESULT_MAX - IDEM__SEAL_LEN) {
        sealed->flags |= IDEM_FLAG_SEALED_RESULT;
        if (!seal_field(&seal->keys[0], &result, &sealed->result, arena))
            return false;
    }
    return true;
}

enum idem_status
idem__seal_open(const struct idem__seal *seal, const uint8_t *key,
                struct idem_record *record, struct idem_arena *arena,
                struct idem_error *err)
{
    struct sealed_place subject = bind(key, IDEM_FLAG_SEALED_SUBJECT);
    struct sealed_place result = bind(key, IDEM_FLAG_SEALED_RESULT);
    enum idem_status status = IDEM_OK;
    uint8_t flags = record->flags;

    record->flags &= (uint8_t)~IDEM__SEALED;
    if (flags & IDEM_FLAG_SEALED_SUBJECT)
        status = open_field(seal, &subject, &record->subject, arena, err);
    if (status == IDEM_OK && (flags & IDEM_FLAG_SEALED_RESULT))
        status = open_field(seal, &result, &record->result, arena, err);
    if (status != IDEM_OK && (flags & IDEM_FLAG_SEALED_SUBJECT))
        record->subject = (struct idem_bytes){NULL, 0};
    if (status != IDEM_OK && (flags & IDEM_FLAG_SEALED_RESULT))
        record->result = (struct idem_bytes){NULL, 0};
    return status;
}
