/*
 * fields.h - one field out of a request's body: a form's, or an XML element.
 *
 * The key of a request may stand in its body (a SOAP message id, an order
 * number). These readers look for one name and copy its value; they are not
 * validators: the service still reads the whole body itself.
 */
#ifndef IDEM__GATEWAY_FIELDS_H
#define IDEM__GATEWAY_FIELDS_H

#include <idem/record.h>

/* No value may be longer; `out` has room for this many bytes. */
#define GATEWAY_FIELD_MAX 1024

enum gateway_field {
    GATEWAY_FIELD_NONE,  /* there is none, or this is another kind of body */
    GATEWAY_FIELD_FOUND, /* *out_len bytes are written */
    GATEWAY_FIELD_BAD,   /* too long, there twice, no plain value, or readers
                            may disagree on what the body says */
};

/* Where a body begins, behind a byte order mark and white space. */
const uint8_t *gateway_body_start(struct idem_bytes in);

/*
 * name=value&...; %XX and + are decoded. Twice the same name is BAD. A body
 * that begins with two dashes is taken for multipart/form-data.
 */
enum gateway_field gateway_form_field(struct idem_bytes in,
                                      struct idem_bytes name, uint8_t *out,
                                      size_t *out_len);

/* The same of multipart/form-data; a field that is a file, and a body that is
 * cut, are BAD. */
enum gateway_field gateway_multipart_field(struct idem_bytes in,
                                           struct idem_bytes name, uint8_t *out,
                                           size_t *out_len);

/*
 * The text of the first element with this local name (a namespace prefix in
 * the body does not matter); the five entities and character references are
 * decoded, CDATA is taken as it is. An element within it is BAD, and so is a
 * document type: it can redefine everything.
 */
enum gateway_field gateway_xml_field(struct idem_bytes in,
                                     struct idem_bytes name, uint8_t *out,
                                     size_t *out_len);

#endif
