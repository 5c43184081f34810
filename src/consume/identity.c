/*
 * identity.c - find the identity of a message, by which duplicates are
 * recognised.
 */
#include "../base/json_memory.h"
#include "consume.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum idem_status
idem__identity_parse(const char *text, struct identity *identity,
                     struct idem_error *err)
{
    const char *name = text ? strchr(text, ':') : NULL;

    memset(identity, 0, sizeof(*identity));
    if (!text || strcmp(text, "id") == 0)
        identity->by = IDENTITY_ID;
    else if (strcmp(text, "position") == 0)
        identity->by = IDENTITY_POSITION;
    else if (name && strncmp(text, "header:", 7) == 0)
        identity->by = IDENTITY_HEADER;
    else if (name && strncmp(text, "json:", 5) == 0)
        identity->by = IDENTITY_JSON;
    else
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\" is not an identity: use id, header:NAME, "
                          "json:FIELD or position",
                          text);
    if (name && (name[1] == 0 || strlen(name + 1) >= sizeof(identity->name)))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\": the name behind the colon has 1 to %zu "
                          "bytes",
                          text, sizeof(identity->name) - 1);
    if (name)
        memcpy(identity->name, name + 1, strlen(name + 1));
    return IDEM_OK;
}

/* A value that is too long for an id, or contains a NUL, is replaced by its
 * digest. */
static bool
set_id(struct idem_bytes value, char id[IDEM_ID_MAX + 1], size_t *len)
{
    uint8_t digest[crypto_hash_sha256_BYTES];

    if (value.len == 0)
        return false;
    if (value.len <= IDEM_ID_MAX && !memchr(value.data, 0, value.len)) {
        memcpy(id, value.data, value.len);
        id[value.len] = 0;
        *len = value.len;
        return true;
    }
    crypto_hash_sha256(digest, value.data, value.len);
    memcpy(id, "sha256:", 7);
    sodium_bin2hex(id + 7, IDEM_ID_MAX - 7, digest, sizeof(digest));
    *len = strlen(id);
    return true;
}

/* A field of the body, by a path of names separated by dots. *starved: there
 * was not enough memory to read it. */
static bool
from_json(const char *path, struct idem_bytes body, char id[IDEM_ID_MAX + 1],
          size_t *len, bool *starved)
{
    json_error_t flaw = {.text = ""};
    json_t *root, *at;
    char number[64];
    bool found = false;

    idem__json_begin();
    root = json_loadb(body.data, body.len, JSON_ALLOW_NUL | JSON_DECODE_ANY,
                      &flaw);
    at = root;
    *starved = idem__json_starved() ||
               (!root && json_error_code(&flaw) == json_error_out_of_memory);
    while (at && *path) {
        size_t name_len = strcspn(path, ".");
        char name[128] = "";

        memcpy(name, path, name_len);
        at = json_object_get(at, name);
        path += name_len + (path[name_len] == '.');
    }
    if (json_is_string(at)) {
        found = set_id(
            (struct idem_bytes){json_string_value(at), json_string_length(at)},
            id, len);
    } else if (json_is_integer(at)) {
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
                 json_integer_value(at));
        found = set_id(idem_text(number), id, len);
    }
    json_decref(root);
    return found && !*starved;
}

static bool
from_header(const char *name, const struct delivery *d,
            char id[IDEM_ID_MAX + 1], size_t *len)
{
    for (size_t i = 0; i < d->header_count; i++) {
        if (idem__bytes_is(d->headers[i].name, name))
            return set_id(d->headers[i].value, id, len);
    }
    return false;
}

bool
idem__identity_of(const struct identity *identity, const struct delivery *d,
                  char id[IDEM_ID_MAX + 1], size_t *len, struct idem_error *err)
{
    bool found = false, starved = false;

    switch (identity->by) {
    case IDENTITY_ID:
        found = set_id(d->message_id, id, len) ||
                from_header("message-id", d, id, len) ||
                from_header("id", d, id, len);
        break;
    case IDENTITY_HEADER:
        found = from_header(identity->name, d, id, len);
        break;
    case IDENTITY_JSON:
        found = from_json(identity->name, d->body, id, len, &starved);
        break;
    case IDENTITY_POSITION:
        found = set_id(idem_text(d->place), id, len);
        break;
    }
    if (starved)
        idem__fail(err, IDEM_ERR_MEMORY,
                   "out of memory: the identity of a message cannot be read");
    else if (!found)
        idem__fail(err, IDEM_ERR_INVALID,
                   "the message has no identity (%s%s): give messages an id, "
                   "or choose another identity",
                   identity->by == IDENTITY_JSON     ? "JSON field "
                   : identity->by == IDENTITY_HEADER ? "header "
                   : identity->by == IDENTITY_ID     ? "message id"
                                                     : "position",
                   identity->name);
    return found;
}
