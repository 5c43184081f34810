/*
 * url_fuzz.c - fuzzes the parser and the redaction of URLs.
 */
#include "url.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const char *const known[] = {"a", "b", NULL};
    struct idem__url url;
    char *text = malloc(len + 1);
    char shown[64];

    assert(text);
    memcpy(text, data, len);
    text[len] = 0;
    idem__url_redact(text, shown, sizeof(shown));
    assert(strlen(shown) < sizeof(shown));
    if (idem__url_parse(text, 1, known, &url, NULL) == IDEM_OK) {
        assert(url.host_count >= 1 && url.host_count <= IDEM__URL_HOSTS_MAX);
        for (size_t i = 0; i < url.host_count; i++)
            assert(url.hosts[i].name[0] && url.hosts[i].port >= 1 &&
                   url.hosts[i].port <= 65535);
        (void)idem__url_option(&url, "a");
        idem__url_clear(&url);
    }
    free(text);
    return 0;
}
