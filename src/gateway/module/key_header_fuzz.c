/* key_header_fuzz.c - an accepted key is the same key when it is quoted. */
#include "key_header.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t out[IDEM_ID_MAX], again[IDEM_ID_MAX], quoted[2 * IDEM_ID_MAX + 2];
    size_t out_len, again_len, n = 0;

    for (int way = 0; way < 4; way++) {
        if (gateway_key_parse((struct idem_bytes){data, len}, way & 1, way & 2,
                              out, &out_len))
            continue;
        assert(out_len > 0 && out_len <= IDEM_ID_MAX);
        if (way & 2)
            continue;
        n = 0;
        quoted[n++] = '"';
        for (size_t i = 0; i < out_len; i++) {
            if (out[i] == '"' || out[i] == '\\')
                quoted[n++] = '\\';
            quoted[n++] = out[i];
        }
        quoted[n++] = '"';
        assert(!gateway_key_parse((struct idem_bytes){quoted, n}, true, false,
                                  again, &again_len));
        assert(again_len == out_len && memcmp(again, out, out_len) == 0);
    }
    return 0;
}
