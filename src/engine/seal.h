/*
 * seal.h - encrypts ("seals") results and subjects at rest.
 *
 *   verbs ── step() ── plain records ──▶ seal ──▶ store
 *                                   ◀── open ──
 *
 * The engine seals a record's subject and result on the way to its store and
 * opens them on the way back, so every store keeps sealed bytes and no surface
 * sees them. Each field is sealed by itself, with XChaCha20-Poly1305:
 *
 *   at  0  version                       1 byte
 *   at  1  which key: the key's id       4 bytes
 *   at  5  nonce, random                24 bytes
 *   at 29  the bytes, encrypted, and a tag of 16 bytes
 *
 * The tag also covers the key of the record (its type, scope and id) and which
 * field it is, so bytes that are copied to another record or field do not open.
 * A flag of the record says which fields are sealed; an empty field never is.
 */
#ifndef IDEM__SEAL_H
#define IDEM__SEAL_H

#include "../base/buf.h"
#include "../record/record.h"

#define IDEM__SEALED (IDEM_FLAG_SEALED_SUBJECT | IDEM_FLAG_SEALED_RESULT)

struct idem__seal;

/*
 * Read the keys of a file, 64 hex digits per line. The first key seals, and all
 * keys open. An IDEM_ERR_INVALID says what is wrong, but never shows a byte of
 * the file.
 */
enum idem_status idem__seal_read(const char *file, struct idem__seal **seal,
                                 struct idem_error *err);
/* The same for a text; error messages use `name`. */
enum idem_status idem__seal_parse(const char *name, struct idem_bytes text,
                                  struct idem__seal **seal,
                                  struct idem_error *err);
void idem__seal_close(struct idem__seal *seal); /* NULL is fine */

#define IDEM__SEAL_ID_TEXT 9 /* 8 hex digits and a NUL */

/* The id of the key that seals, and how many keys open. */
size_t idem__seal_about(const struct idem__seal *seal,
                        char id[IDEM__SEAL_ID_TEXT]);
/* Could its keys be kept out of swap? */
bool idem__seal_locked(const struct idem__seal *seal);

/* A copy of a plain record with its fields sealed, in the arena; `key` is the
 * record's. A field that was stored before there was a key, and is too long to
 * be sealed, stays as it is. False: out of memory. */
bool idem__seal_record(const struct idem__seal *seal, const uint8_t *key,
                       const struct idem_record *record,
                       struct idem_arena *arena, struct idem_record *sealed);

/*
 * Open the sealed fields of a record, in place; `seal` may be NULL. Afterwards
 * no field is sealed, whatever is returned: fields that do not open are empty.
 *
 * IDEM_ERR_UNAVAILABLE: the key is missing; err names it by its id.
 * IDEM_ERR_CORRUPT: the bytes were changed, or copied from another record.
 */
enum idem_status idem__seal_open(const struct idem__seal *seal,
                                 const uint8_t *key, struct idem_record *record,
                                 struct idem_arena *arena,
                                 struct idem_error *err);

#endif
