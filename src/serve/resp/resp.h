/*
 * resp.h - build a reply in RESP; wire.h defines its format.
 */
#ifndef SERVER_RESP_H
#define SERVER_RESP_H

#include "../../base/buf.h"
#include "../../wire/wire.h"

/* `failed` is set if the reply grew past the cap or memory ran out; later
 * additions are then ignored. */
struct resp_out {
    struct idem_buf buf;
    bool failed;
};

/* Returns room for so many bytes, or NULL; resp_put says where the written
 * bytes end. */
char *resp_room(struct resp_out *out, size_t len);
void resp_put(struct resp_out *out, const char *end);

void resp_add_raw(struct resp_out *out, const void *bytes, size_t len);
void resp_add_array(struct resp_out *out, size_t count);
void resp_add_number(struct resp_out *out, int64_t number);
void resp_add_bytes(struct resp_out *out, struct idem_bytes bytes);
void resp_add_text(struct resp_out *out, const char *text); /* as a bulk */
void resp_add_null(struct resp_out *out);
void resp_add_simple(struct resp_out *out, const char *text); /* +OK */
/* -WORD text; characters that could break the line are replaced. */
void resp_add_error(struct resp_out *out, const char *word, const char *text);

#endif
