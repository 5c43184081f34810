/*
 * json.h - a field of a JSON body, and JSON in its canonical form.
 *
 * Canonical: members sorted by name, no spaces, strings with as few escapes as
 * possible, numbers as they were written. Two bodies that differ only in order
 * and spacing have the same canonical form; a name that stands twice in one
 * object makes the text unfit, since readers disagree on which one counts.
 *
 * A path names a member within members: "order.id", "items.0.sku".
 */
#ifndef IDEM__GATEWAY_JSON_H
#define IDEM__GATEWAY_JSON_H

#include "fields.h"

/* Nothing is nested deeper. */
#define GATEWAY_JSON_DEPTH 64

/*
 * A string, number, true or false at this path, as text. Text that begins as an
 * object or a list does and is unfit is BAD: the service may find a key in it.
 */
enum gateway_field gateway_json_field(struct idem_bytes in,
                                      struct idem_bytes path, uint8_t *out,
                                      size_t *out_len);

/* Room that the canonical form may take. */
size_t gateway_json_canonical_max(size_t len);

/*
 * Write the canonical form of what stands at `path` (empty: of all). False if
 * the text is not JSON, too deep, or has nothing there.
 */
bool gateway_json_canonical(struct idem_bytes in, struct idem_bytes path,
                            uint8_t *out, size_t *out_len);

#endif
