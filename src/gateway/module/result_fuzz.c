/* result_fuzz.c - a stored response that can be read can be written and read
 * again, and puts no line break into a header. */
#include "result.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct gateway_result one, two;
    uint8_t *bytes;
    size_t head;

    if (gateway_result_read((struct idem_bytes){data, len}, &one))
        return 0;
    for (size_t i = 0; i < one.header_count; i++) {
        assert(gateway_header_name_ok(one.headers[i].name));
        assert(gateway_header_value_ok(one.headers[i].value));
        assert(!gateway_header_is_hop(one.headers[i].name));
    }
    head = gateway_result_head_len(&one);
    assert(head > 0);
    bytes = malloc(head + one.body.len);
    if (!bytes)
        return 0;
    gateway_result_head(&one, bytes);
    if (one.body.len)
        memcpy(bytes + head, one.body.data, one.body.len);
    assert(!gateway_result_read((struct idem_bytes){bytes, head + one.body.len},
                                &two));
    assert(two.status == one.status && two.header_count == one.header_count &&
           two.body.len == one.body.len);
    free(bytes);
    return 0;
}
