/*
 * config_fuzz.c - parse any bytes as a configuration file, a credentials file
 * and a list of addresses.
 */
#include "server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
read_addresses(const uint8_t *data, size_t size)
{
    char *text = strndup((const char *)data, size);
    const char *list = text;
    struct server_address address;
    struct idem_error err = {0};

    while (server_address_next(&list, &address, &err))
        assert(address.host[0] && address.port[0]);
    free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct credentials *credentials;
    struct idem_bytes text = {data, size};
    struct server_config config;
    struct idem_error err = {0};

    server_config_init(&config);
    if (server_config_text(&config, "f", text, &err) == IDEM_OK)
        (void)server_config_check(&config, &err);
    else
        assert(strncmp(err.text, "f: line ", 8) == 0);
    server_config_clear(&config);

    if (!credentials)
        assert(credentials_open(NULL, &credentials, NULL) == IDEM_OK);
    (void)credentials_text(credentials, "f", text, &err);
    read_addresses(data, size);
    return 0;
}
