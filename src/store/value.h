/*
 * value.h - stores a record as one value of a key-value store, under its key in
 * hex.
 */
#ifndef IDEM__VALUE_H
#define IDEM__VALUE_H

#include "store.h"

#define IDEM__HEX_LEN (2 * IDEM_KEY_LEN)

/* The offset of the rev in an encoded record, so that a server can compare it
 * in place. */
#define IDEM__VALUE_REV_AT 32

/* Lower case, without a NUL. */
void idem__key_hex(const uint8_t key[IDEM_KEY_LEN], char hex[IDEM__HEX_LEN]);
bool idem__key_from_hex(const char *hex, size_t len, uint8_t key[IDEM_KEY_LEN]);

/*
 * Read the value that was found under `key` and copy it into the arena (NULL:
 * the record's bytes are views into the value). Also returns IDEM_ERR_CORRUPT
 * for an intact record of another key, because it is the answer to another
 * request.
 */
enum idem_status idem__value_read(const uint8_t key[IDEM_KEY_LEN],
                                  struct idem_bytes value,
                                  struct idem_arena *arena,
                                  struct idem_record *record,
                                  struct idem_error *err);

#endif
