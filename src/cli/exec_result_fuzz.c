/*
 * exec_result_fuzz.c - decode any stored bytes: either they are not an exec
 * result, or its parts lie inside them and encoding it again gives the same
 * bytes.
 */
#include "exec.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct idem_bytes stored = {data, len};
    struct exec_outcome outcome;
    struct exec_stored result, again;
    struct idem_buf bytes;

    if (!exec_decode(stored, &result))
        return 0;
    assert((const uint8_t *)result.out.data > data);
    assert((const uint8_t *)result.err.data + result.err.len == data + len);
    exec_outcome_init(&outcome);
    idem_buf_init(&bytes, IDEM_RESULT_MAX);
    outcome.signalled = result.signalled;
    outcome.code = result.code;
    outcome.dropped = result.dropped;
    assert(idem_buf_add(&outcome.out, result.out.data, result.out.len));
    assert(idem_buf_add(&outcome.err, result.err.data, result.err.len));
    assert(exec_encode(&outcome, &bytes));
    assert(exec_decode((struct idem_bytes){bytes.data, bytes.len}, &again));
    assert(again.code == result.code && again.dropped == result.dropped);
    assert(idem__bytes_equal(again.out, result.out));
    assert(idem__bytes_equal(again.err, result.err));
    idem_buf_clear(&bytes);
    exec_outcome_clear(&outcome);
    return 0;
}
