/*
 * json_record.h - write bytes and records as JSON, for HTTP, the console and
 * the audit trail.
 */
#ifndef IDEM_SERVE_JSON_RECORD_H
#define IDEM_SERVE_JSON_RECORD_H

#include <idem/record.h>

#include <jansson.h>

/* Takes the value, which may be NULL. False: out of memory. */
bool server_json_put(json_t *object, const char *name, json_t *value);
bool server_json_put_number(json_t *object, const char *name, int64_t number);

/* Sets "result_base64" and, if the bytes are text, "result"; likewise for other
 * names. Without always_base64, bytes that are text have the second form only.
 * False: out of memory. */
bool server_json_put_bytes(json_t *object, const char *name,
                           struct idem_bytes bytes, bool always_base64);

/* A record without its result. A new reference; NULL: out of memory. */
json_t *server_json_record(const struct idem_record *record);

#endif
