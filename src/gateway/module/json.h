/*
 * json.h - read a field of a JSON body, and write JSON in its canonical form.
 *
 * Canonical form: members sorted by name, no spaces, strings with as few
 * escapes as possible, numbers as they were written. Two bodies that differ
 * only in order and spacing have the same canonical form. Text with a repeated
 * name in one object is refused, because parsers disagree on which one counts.
 *
 * A path names a member within members: "order.id", "items.0.sku".
 */
#ifndef IDEM__GATEWAY_JSON_H
#define IDEM__GATEWAY_JSON_H

#include "fields.h"

/* The maximum depth of nesting. */
#define GATEWAY_JSON_DEPTH 64

/*
 * A string, number, true or false at this path, as text. Text that begins like
 * an object or a list but is not valid is BAD, because the service may find a
 * key in it.
 */
enum gateway_field gateway_json_field(struct idem_bytes in,
                                      struct idem_bytes path, uint8_t *out,
                                      size_t *out_len);

/* The size that the canonical form may need. */
size_t gateway_json_canonical_max(size_t len);

/*
 * Write the canonical form of the value at `path` (empty: of everything). NONE
 * if the text is not JSON, is nested too deep, or has no value there.
 */
enum gateway_field gateway_json_canonical(struct idem_bytes in,
                                          struct idem_bytes path, uint8_t *out,
                                          size_t *out_len);

#endif
