/*
 * identity_fuzz.c - find the identity of any message, with any name.
 */
#include "consume.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    char id[IDEM_ID_MAX + 1];
    struct delivery *d = idem__delivery_make();
    struct identity identity;
    size_t len;

    if (!text || !d)
        abort();
    memcpy(text, data, size);
    text[size] = 0;
    if (idem__identity_parse(text, &identity, NULL) == IDEM_OK) {
        idem__delivery_copy(d, data, size, &d->body);
        idem__identity_of(&identity, d, id, &len, NULL);
    }
    idem__identity_parse("json:a.b", &identity, NULL);
    idem__delivery_copy(d, data, size, &d->body);
    if (idem__identity_of(&identity, d, id, &len, NULL) && len > IDEM_ID_MAX)
        abort();
    idem__delivery_drop(d);
    free(text);
    return 0;
}
