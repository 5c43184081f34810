/* fields_fuzz.c - read any bytes as forms and as XML. */
#include "fields.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct idem_bytes in = {data, len}, name = {"id", 2};
    uint8_t out[GATEWAY_FIELD_MAX];
    size_t out_len = 0;

    if (gateway_form_field(in, name, out, &out_len) == GATEWAY_FIELD_FOUND)
        assert(out_len > 0 && out_len <= GATEWAY_FIELD_MAX);
    if (gateway_xml_field(in, name, out, &out_len) == GATEWAY_FIELD_FOUND)
        assert(out_len > 0 && out_len <= GATEWAY_FIELD_MAX);
    return 0;
}
