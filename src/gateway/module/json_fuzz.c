/* json_fuzz.c - the canonical form is JSON, and its own canonical form. */
#include "json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct idem_bytes none = {NULL, 0}, path = {"a.0.b", 5};
    uint8_t *out = malloc(gateway_json_canonical_max(len));
    uint8_t *again = malloc(gateway_json_canonical_max(len) * 6 + 16);
    uint8_t field[GATEWAY_FIELD_MAX];
    size_t out_len, again_len;

    if (out && again &&
        gateway_json_canonical((struct idem_bytes){data, len}, none, out,
                               &out_len) == GATEWAY_FIELD_FOUND) {
        assert(out_len <= gateway_json_canonical_max(len));
        assert(gateway_json_canonical((struct idem_bytes){out, out_len}, none,
                                      again,
                                      &again_len) == GATEWAY_FIELD_FOUND);
        assert(again_len == out_len && memcmp(again, out, out_len) == 0);
    }
    (void)gateway_json_field((struct idem_bytes){data, len}, path, field,
                             &out_len);
    free(out);
    free(again);
    return 0;
}
