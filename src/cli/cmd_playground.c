/*
 * cmd_playground.c - idem playground: a server with only the console's
 * playground, for this machine only, without files.
 */
#include "cli.h"

#include "../base/address.h"
#include "../serve/core/server.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_LISTEN "127.0.0.1:7398"

static enum idem_status
configure(struct server_config *config, const char *listen,
          struct idem_error *err)
{
    const char *const settings[][2] = {
        {"store", "memory:"}, {"socket", "none"},       {"http", listen},
        {"console", "yes"},   {"log-level", "warning"}, {"audit", "none"},
    };
    enum idem_status status = IDEM_OK;

    for (size_t i = 0;
         status == IDEM_OK && i < sizeof(settings) / sizeof(settings[0]); i++)
        status = server_config_set(config, settings[i][0], settings[i][1], err);
    if (status == IDEM_OK && cli_json)
        status = server_config_set(config, "log-format", "json", err);
    return status == IDEM_OK ? server_config_check(config, err) : status;
}

/* The URL of its page, for the user to open; false: `listen` is not a single
 * address of this machine only. */
static bool
page_address(const char *listen, char *out, size_t room)
{
    struct server_address address;
    struct idem_error err = {0};
    char at[IDEM__ADDRESS_LEN];

    if (!server_address_next(&listen, &address, &err) || !address.loopback ||
        *listen)
        return false;
    idem__address_write(address.host, (int)strtol(address.port, NULL, 10), at);
    snprintf(out, room, "%shttp://%s/console#/play%s",
             cli_json ? "{\"url\": \"" : "", at, cli_json ? "\"}" : "");
    return true;
}

int
cli_playground(int argc, char **argv)
{
    const char *listen = DEFAULT_LISTEN;
    const struct cli_option options[] = {
        {"listen", 'l', CLI_TEXT, &listen, "HOST:PORT",
         "serve the page there, on this machine only (default " DEFAULT_LISTEN
         ")"},
        {0}};
    const struct cli_syntax syntax = {
        .usage = "playground [options]",
        .about = "Serve a page that shows each scheme first broken, then "
                 "protected: real requests,\nreal threads, real tables, in "
                 "memory. Open the address that it prints; stop it\nwith "
                 "Ctrl-C. It stores nothing and uses no other server.",
        .options = options,
    };
    struct server_config config;
    struct idem_error err = {0};
    char page[IDEM__ADDRESS_LEN + 40];
    int code = cli_parse(&syntax, argc, argv, NULL, NULL);

    if (code >= 0)
        return code;
    if (!page_address(listen, page, sizeof(page)))
        return cli_usage_error("--listen %s: give one address of this machine, "
                               "such as " DEFAULT_LISTEN,
                               listen);
    server_config_init(&config);
    if (configure(&config, listen, &err) != IDEM_OK) {
        code = cli_usage_error("%s", err.text);
    } else {
        config.playground = page;
        code = server_run(&config);
    }
    server_config_clear(&config);
    return code;
}
