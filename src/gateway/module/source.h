/*
 * source.h - the source of a key, a token or a scope, as it is configured.
 *
 *   $variable, "text $a-$b"               one or more of nginx's variables
 *   json:PATH, form:NAME, xml:ELEMENT     a field of the request's body
 *   const:NAME                            scopes only: the same for everybody
 *   content                               keys only: derived from the request
 *
 * A word of another form would be the same for every request. It is nearly
 * always a typing error, and would give one caller the responses of another.
 */
#ifndef IDEM__GATEWAY_SOURCE_H
#define IDEM__GATEWAY_SOURCE_H

#include <idem/record.h>

enum gateway_source {
    GATEWAY_SOURCE_VARIABLE = 0,
    GATEWAY_SOURCE_JSON,
    GATEWAY_SOURCE_FORM,
    GATEWAY_SOURCE_XML,
    GATEWAY_SOURCE_CONST,
    GATEWAY_SOURCE_CONTENT,
};

enum gateway_source_use {
    GATEWAY_FOR_KEY,
    GATEWAY_FOR_TOKEN,
    GATEWAY_FOR_SCOPE,
};

/* The kind, and what follows its prefix. */
enum gateway_source gateway_source_kind(struct idem_bytes text,
                                        struct idem_bytes *rest);

#define GATEWAY_SOURCE_FLAW_MAX 320

/* False if this cannot be a source; `flaw` then says why, and what may have
 * been meant. */
bool gateway_source_check(struct idem_bytes text, enum gateway_source_use use,
                          char flaw[GATEWAY_SOURCE_FLAW_MAX]);

#endif
