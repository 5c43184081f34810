/*
 * form_tag_fuzz.c - a page in two pieces must give the same forms as the whole
 * page.
 */
#include "form_tag.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* The sum of the insert positions; the pieces are data[0..cut) and the rest. */
static size_t
places(const uint8_t *data, size_t len, size_t cut)
{
    struct gateway_form_scan scan = {0};
    size_t ends[] = {cut, len}, from = 0, sum = 0, next;
    ptrdiff_t at;

    for (int i = 0; i < 2; i++) {
        size_t held = gateway_form_held(&scan);

        while (gateway_form_next(
            &scan, (struct idem_bytes){data + from, ends[i] - from}, &at,
            &next)) {
            assert(next < ends[i] - from);
            assert(at >= 0 || (size_t)-at == held);
            sum = sum * 31 + (size_t)((ptrdiff_t)from + at) + 1;
            from += next;
            held = 0;
        }
        from = ends[i];
    }
    assert(scan.forms <= GATEWAY_FORMS_MAX);
    return sum;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len > 0)
        assert(places(data + 1, len - 1, data[0] % len) ==
               places(data + 1, len - 1, len - 1));
    return 0;
}
