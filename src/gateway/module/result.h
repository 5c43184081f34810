/*
 * result.h - the `http` encoding of a stored response (docs/results.md).
 *
 * Everything is checked when it is written and again when it is read, because
 * another program may have written to the store.
 */
#ifndef IDEM__GATEWAY_RESULT_H
#define IDEM__GATEWAY_RESULT_H

#include <idem/record.h>

#define GATEWAY_HEADERS_MAX 100
#define GATEWAY_HEAD_MAX (64 * 1024)

struct gateway_header {
    struct idem_bytes name, value;
};

/* A response, as views. */
struct gateway_result {
    unsigned status;
    size_t header_count;
    struct gateway_header headers[GATEWAY_HEADERS_MAX];
    struct idem_bytes body;
};

/* A name must be an HTTP token; a value must not contain CR, LF or NUL. */
bool gateway_header_name_ok(struct idem_bytes name);
bool gateway_header_value_ok(struct idem_bytes value);

/* Headers that nginx sets for every response and that are never stored: length,
 * hop-by-hop, connection; in any case. */
bool gateway_header_is_hop(struct idem_bytes name);

/* The length of status and headers before the body; 0 if they break a rule. */
size_t gateway_result_head_len(const struct gateway_result *result);
/* Write them; `out` has room for gateway_result_head_len. */
void gateway_result_head(const struct gateway_result *result, uint8_t *out);

/* Returns NULL if it is valid, else what is wrong. Hop-by-hop headers are left
 * out. */
const char *gateway_result_read(struct idem_bytes in,
                                struct gateway_result *result);

#endif
