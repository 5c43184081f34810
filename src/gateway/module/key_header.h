/*
 * key_header.h - parse an idempotency key as a client sent it.
 *
 * In the IETF draft the header is a structured-field string: "abc" in quotes,
 * with \" and \\ as the only escapes. Most clients send it without quotes. Both
 * forms name the same key; a strict route accepts only the quoted one.
 */
#ifndef IDEM__GATEWAY_KEY_H
#define IDEM__GATEWAY_KEY_H

#include <idem/record.h>

/*
 * Write the key into `out` (room for IDEM_ID_MAX bytes). Returns NULL if it is
 * valid, else a sentence for the client that says what is wrong.
 *
 * A key from a header must be visible ASCII; one from another place
 * (`loose_bytes`) may contain anything but control characters. Neither may
 * begin or end with a space, so that it survives as a header on the way to the
 * service.
 */
const char *gateway_key_parse(struct idem_bytes in, bool quoted_only,
                              bool loose_bytes, uint8_t *out, size_t *out_len);

#endif
