/*
 * cmd_serve.c - idem serve: load the configuration (flags override the
 * environment, which overrides the file and the defaults) and run the server.
 */
#include "cli.h"

#include "../engine/seal.h"
#include "../serve/core/server.h"
#include "../store/store.h"

#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 64

/* Every option of the server as a flag. The server's own table parses the
 * values, so that a flag and a line of the file mean the same. */
struct serve_flags {
    const char *values[OPTIONS_MAX];
    bool set[OPTIONS_MAX];
    const char *config;
    bool check;
    struct cli_option options[OPTIONS_MAX + 3];
};

static void
make_options(struct serve_flags *flags)
{
    const struct server_option *option;
    size_t count = 0;

    flags->options[count++] = (struct cli_option){
        "config",
        'c',
        CLI_TEXT,
        &flags->config,
        "FILE",
        "a file with lines `name = value`, with the names of these options"};
    flags->options[count++] = (struct cli_option){
        "check",       0,    CLI_FLAG,
        &flags->check, NULL, "check the configuration and exit"};
    for (size_t i = 0; (option = server_config_option(i)); i++) {
        flags->options[count++] = (struct cli_option){
            .name = option->name,
            .kind = option->value ? CLI_TEXT : CLI_FLAG,
            .into = option->value ? (void *)&flags->values[i]
                                  : (void *)&flags->set[i],
            .value = option->value,
            .help = option->help,
        };
    }
}

static enum idem_status
read_flags(struct serve_flags *flags, struct server_config *config,
           struct idem_error *err)
{
    const struct server_option *option;
    const char *file = flags->config ? flags->config : getenv("IDEM_CONFIG");
    enum idem_status status = IDEM_OK;

    if (cli_json)
        status = server_config_set(config, "log-format", "json", err);
    if (status == IDEM_OK && file)
        status = server_config_file(config, file, err);
    if (status == IDEM_OK)
        status = server_config_environment(config, err);
    for (size_t i = 0; status == IDEM_OK && (option = server_config_option(i));
         i++) {
        if (flags->values[i] || flags->set[i])
            status = server_config_set(config, option->name,
                                       option->value ? flags->values[i] : "yes",
                                       err);
    }
    if (status == IDEM_OK)
        status = server_config_check(config, err);
    return status;
}

/* Check everything that needs neither the store nor a port. */
static int
check(const struct server_config *config)
{
    struct credentials *credentials = NULL;
    struct idem__tls_files files = server_tls_files(config);
    struct idem__tls *tls = NULL;
    struct idem__seal *seal = NULL;
    struct idem_error err = {0};

    if (idem__store_parse(config->store, &err) != IDEM_OK)
        return cli_usage_error("%s", err.text);
    if (config->tls_cert &&
        idem__tls_open_server(SERVER_TLS, &files, &tls, &err) != IDEM_OK)
        return cli_usage_error("%s", err.text);
    idem__tls_close(tls);
    if (config->seal_key &&
        idem__seal_read(config->seal_key, &seal, &err) != IDEM_OK)
        return cli_usage_error("%s", err.text);
    idem__seal_close(seal);
    if (credentials_open(config->credentials, &credentials, &err) != IDEM_OK)
        return cli_usage_error("%s", err.text);
    credentials_close(credentials);
    if (cli_json)
        cli_json_print(json_pack("{s:b}", "fine", 1));
    else
        printf("the configuration is fine\n");
    return CLI_OK;
}

int
cli_serve(int argc, char **argv)
{
    static struct serve_flags flags;
    const struct cli_syntax syntax = {
        .usage = "serve [options]",
        .about = "Start a server for RESP (the Redis protocol) and HTTP; it "
                 "runs until SIGTERM. "
                 "Every option can also be set in a file (--config, "
                 "IDEM_CONFIG) as a line "
                 "`name = value`, or in a variable: IDEM_MAX_CLIENTS=100. "
                 "Flags override "
                 "variables, and variables override the file. SIGHUP reads the "
                 "credentials and "
                 "the certificate again. --json: log lines are JSON.",
        .options = flags.options,
    };
    struct server_config config;
    struct idem_error err = {0};
    int code;

    make_options(&flags);
    code = cli_parse(&syntax, argc, argv, NULL, NULL);
    if (code >= 0)
        return code;
    server_config_init(&config);
    if (read_flags(&flags, &config, &err) != IDEM_OK)
        code = cli_usage_error("%s", err.text);
    else
        code = flags.check ? check(&config) : server_run(&config);
    server_config_clear(&config);
    return code;
}
