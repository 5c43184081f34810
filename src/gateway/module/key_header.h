/*
 * key_header.h - read an idempotency key as a client wrote it.
 *
 * The IETF draft makes the header a structured-field string: "abc" in quotes,
 * with \" and \\ as the only escapes. Most clients send it bare. Both spellings
 * name the same key; a strict route takes the quoted one only.
 */
#ifndef IDEM__GATEWAY_KEY_H
#define IDEM__GATEWAY_KEY_H

#include <idem/record.h>

/*
 * Write the key into `out` (room for IDEM_ID_MAX bytes). NULL if it is one,
 * else what is wrong with it, as a sentence for the client.
 *
 * A key from a header is visible ASCII; one from another place (`loose_bytes`)
 * may hold anything but control characters. Neither begins or ends with a
 * space, so that it survives as a header on the way to the service.
 */
const char *gateway_key_parse(struct idem_bytes in, bool quoted_only,
                              bool loose_bytes, uint8_t *out, size_t *out_len);

#endif
