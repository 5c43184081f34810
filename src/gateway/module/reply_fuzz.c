/* reply_fuzz.c - whatever the socket says, only an answer is taken for one. */
#include "reply.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct gateway_reply reply;
    size_t used = 0;
    enum gateway_read got;

    got =
        gateway_reply_read((struct idem_bytes){data, len}, 4096, &reply, &used);
    if (got == GATEWAY_READ_DONE) {
        assert(used > 0 && used <= len);
        assert(reply.count > 0 && reply.count <= GATEWAY_VALUES_MAX);
        (void)gateway_reply_is(&reply, 0, "started");
        /* The same bytes without the last are not an answer yet. */
        got = gateway_reply_read((struct idem_bytes){data, used - 1}, 4096,
                                 &reply, &used);
        assert(got == GATEWAY_READ_MORE);
    }
    return 0;
}
