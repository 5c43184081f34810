/*
 * fields.h - read one field of a request's body: of a form, or an XML element.
 *
 * The key of a request may be in its body (a SOAP message id, an order number).
 * These functions look for one name and copy its value. They do not validate
 * the body; the service still reads all of it itself.
 */
#ifndef IDEM__GATEWAY_FIELDS_H
#define IDEM__GATEWAY_FIELDS_H

#include <idem/record.h>

/* The maximum length of a value; `out` has room for this many bytes. */
#define GATEWAY_FIELD_MAX 1024

enum gateway_field {
    GATEWAY_FIELD_NONE,   /* not found, or another kind of body */
    GATEWAY_FIELD_FOUND,  /* *out_len bytes are written */
    GATEWAY_FIELD_MEMORY, /* out of memory: there may be one */
    GATEWAY_FIELD_BAD,    /* too long, repeated, not a plain value, or parsers
                           * may disagree on what the body says */
};

/* The start of a body, after a byte order mark and white space. */
const uint8_t *gateway_body_start(struct idem_bytes in);

/*
 * name=value&...; %XX and + are decoded. A repeated name is BAD. A body that
 * begins with two dashes is read as multipart/form-data.
 */
enum gateway_field gateway_form_field(struct idem_bytes in,
                                      struct idem_bytes name, uint8_t *out,
                                      size_t *out_len);

/* The same for multipart/form-data; a field that is a file is BAD, and so is a
 * truncated body. */
enum gateway_field gateway_multipart_field(struct idem_bytes in,
                                           struct idem_bytes name, uint8_t *out,
                                           size_t *out_len);

/*
 * The text of the first element with this local name (the namespace prefix in
 * the body does not matter). The five entities and character references are
 * decoded, CDATA is copied as it is. An element within it is BAD, and so is a
 * document type, because it can redefine everything.
 */
enum gateway_field gateway_xml_field(struct idem_bytes in,
                                     struct idem_bytes name, uint8_t *out,
                                     size_t *out_len);

#endif
