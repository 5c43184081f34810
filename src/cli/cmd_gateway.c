/*
 * cmd_gateway.c - idem gateway: a proxy that makes any HTTP service idempotent.
 */
#include "cli.h"

#include "../gateway/launch/gateway.h"

#include <stdlib.h>
#include <string.h>

#define HEADING(text)                                                          \
    {                                                                          \
        "", 0, CLI_HEADING, NULL, NULL, text                                   \
    }

static const struct cli_option global_options[] = {
    HEADING("The service:"),
    {"upstream", 'u', CLI_TEXT, NULL, "URL",
     "the service: http://host:port, https://..., http://unix:/path"},
    {"auth-request", 0, CLI_TEXT, NULL, "URL",
     "ask this URL whether a request is allowed, also before a replay: 2xx "
     "allows it, 401 and 403 refuse it"},
    {"forwarded", 0, CLI_TEXT, NULL, "on|off",
     "send the client's address to the service, in X-Forwarded-For and "
     "X-Forwarded-Proto (default off)"},
    HEADING("Where clients connect:"),
    {"listen", 'l', CLI_TEXT, NULL, "ADDRESS",
     "HOST:PORT, [IPV6]:PORT, :PORT (loopback), *:PORT (all IPv4 interfaces) "
     "or unix:PATH, several with commas (default 127.0.0.1:8080)"},
    {"tls-cert", 0, CLI_TEXT, NULL, "FILE",
     "a certificate for TLS; also enables HTTP/2"},
    {"tls-key", 0, CLI_TEXT, NULL, "FILE", "its key"},
    {"workers", 'w', CLI_TEXT, NULL, "N",
     "nginx worker processes (default: half of the cores)"},
    HEADING("Records and the engine:"),
    {"store", 0, CLI_TEXT, NULL, "URL",
     "the store for the records (default: a journal in the state folder of "
     "this user)"},
    {"engine", 0, CLI_TEXT, NULL, "URL",
     "start no engine, use the idem serve at this URL: idems://HOST:PORT, "
     "idem://HOST:PORT or idem+unix:/PATH"},
    {"seal-key", 0, CLI_TEXT, NULL, "FILE",
     "seal results and subjects in the store with the first key of this file"},
    {"socket", 0, CLI_TEXT, NULL, "PATH",
     "the socket on which idem scan, settle and other commands reach the "
     "engine (default: this user's socket, if no other server uses it); off "
     "or none for no socket"},
    {"http", 0, CLI_TEXT, NULL, "ADDRESS",
     "the engine's HTTP API and metrics (default: a free port of loopback); "
     "off for none"},
    {"credentials", 0, CLI_TEXT, NULL, "FILE",
     "the credentials for the HTTP API; see idem serve"},
    {"console", 0, CLI_FLAG, NULL, NULL,
     "serve the console on the HTTP API's address; needs --credentials"},
    HEADING("Paths of its own:"),
    {"token-path", 0, CLI_TEXT, NULL, "PATH",
     "issue one-time tokens at this path, and accept them in a token header"},
    {"token-rate", 0, CLI_TEXT, NULL, "RATE",
     "how many tokens one client address may get (default 50r/s)"},
    {"status-path", 0, CLI_TEXT, NULL, "PATH",
     "at this path callers can ask for the outcome of their key (GET), or stop "
     "it for good (POST)"},
    {"status-rate", 0, CLI_TEXT, NULL, "RATE",
     "how often one client address may ask (default 20r/s)"},
    {"page-script", 0, CLI_TEXT, NULL, "PATH",
     "serve idem.js at this path; it makes a web page submit a form once"},
    {"policy-path", 0, CLI_TEXT, NULL, "PATH",
     "publish the policy of every route as JSON at this path"},
    {"problem-base", 0, CLI_TEXT, NULL, "URL",
     "the type of a problem begins with this: the address of your own pages "
     "about problems, with / or # at its end (default /.idem/problems/, the "
     "pages of the gateway)"},
    HEADING("Running it:"),
    {"access-log", 0, CLI_TEXT, NULL, "FILE",
     "write one line per request, with idem's verdict (default: no log)"},
    {"log-keys", 0, CLI_TEXT, NULL, "on|off",
     "write keys to the access log as they are, not as digests (default off)"},
    {"drain-timeout", 0, CLI_TEXT, NULL, "TIME",
     "how long running requests may take after SIGTERM (default 10s)"},
    {"engine-restarts", 0, CLI_TEXT, NULL, "N",
     "how often in a row to restart an engine that died, before the gateway "
     "gives up (default 10); a run of a minute resets the count"},
    {"folder", 0, CLI_TEXT, NULL, "PATH",
     "folder for the socket and temporary files (default: a temporary folder)"},
    HEADING("For every route, or for one in a [route PATH] section:"),
};

#define GLOBALS (sizeof(global_options) / sizeof(global_options[0]))

struct gateway_flags {
    const char *texts[GLOBALS + GATEWAY_OPTIONS];
    bool set[GLOBALS + GATEWAY_OPTIONS];
    const char *config, *nginx, *module;
    bool print, check;
    struct cli_option options[GLOBALS + GATEWAY_OPTIONS + 7];
};

static void
make_options(struct gateway_flags *flags)
{
    size_t n = 0;

    for (size_t i = 0; i < GLOBALS; i++, n++) {
        flags->options[n] = global_options[i];
        flags->options[n].into = flags->options[n].kind == CLI_FLAG
                                     ? (void *)&flags->set[n]
                                     : (void *)&flags->texts[n];
    }
    for (size_t i = 0; i < GATEWAY_OPTIONS; i++, n++) {
        const struct gateway_option *option = &gateway_options[i];
        bool plain = option->kind == GATEWAY_SWITCH &&
                     strcmp(option->name, "anonymous") != 0 &&
                     strcmp(option->name, "gated") != 0;

        flags->options[n] = (struct cli_option){
            .name = option->name,
            .kind = plain ? CLI_FLAG : CLI_TEXT,
            .into = plain ? (void *)&flags->set[n] : (void *)&flags->texts[n],
            .value = plain           ? NULL
                     : option->value ? option->value
                                     : "on|off",
            .help = option->help,
        };
    }
    flags->options[n++] = (struct cli_option)HEADING("Configuration:");
    flags->options[n++] =
        (struct cli_option){"config",
                            'c',
                            CLI_TEXT,
                            &flags->config,
                            "FILE",
                            "a file with lines `name = value`, with the names "
                            "of these options, and [route PATH] sections"};
    flags->options[n++] =
        (struct cli_option){"check",
                            0,
                            CLI_FLAG,
                            &flags->check,
                            NULL,
                            "check the configuration, also with nginx -t and "
                            "idem serve --check, and exit: status 0, or 2 if "
                            "it is wrong"};
    flags->options[n++] = (struct cli_option){"print-config",
                                              0,
                                              CLI_FLAG,
                                              &flags->print,
                                              NULL,
                                              "print the nginx "
                                              "configuration and exit"};
    flags->options[n++] = (struct cli_option){
        "nginx", 0, CLI_TEXT, &flags->nginx, "PATH", "the nginx to start"};
    flags->options[n++] =
        (struct cli_option){"module",       0,      CLI_TEXT,
                            &flags->module, "FILE", "idem's module for nginx"};
}

/* Load the configuration; flags override the file. Called again on SIGHUP. */
static enum idem_status
load(void *arg, struct gateway_config *config, struct idem_error *err)
{
    struct gateway_flags *flags = arg;
    enum idem_status status = IDEM_OK;
    const char *store = getenv("IDEM_STORE");

    if (flags->config)
        status = gateway_config_file(config, flags->config, err);
    for (size_t i = 0; status == IDEM_OK && i < GLOBALS + GATEWAY_OPTIONS;
         i++) {
        const char *value = flags->set[i] ? "on" : flags->texts[i];

        if (value)
            status = gateway_config_set(config, NULL, flags->options[i].name,
                                        value, err);
    }
    if (status == IDEM_OK && flags->nginx)
        status = gateway_config_set(config, NULL, "nginx", flags->nginx, err);
    if (status == IDEM_OK && flags->module)
        status = gateway_config_set(config, NULL, "module", flags->module, err);
    if (status == IDEM_OK && !config->store && !config->engine && store)
        status = gateway_config_set(config, NULL, "store", store, err);
    return status == IDEM_OK ? gateway_config_check(config, err) : status;
}

/* Print the configuration for users who run their own nginx. */
static int
print_config(const struct gateway_config *config)
{
    struct gateway_place place = {.folder = "/var/lib/nginx",
                                  .socket = "/run/idem/engine.sock",
                                  .module = "modules/ngx_http_idem_module.so"};
    char module[4096], script[4096];
    struct idem_error err = {0};
    struct idem_buf text;
    enum idem_status status;

    if (gateway_find_module(config, module, sizeof(module), NULL) == IDEM_OK)
        place.module = module;
    if (gateway_find_script(script, sizeof(script), NULL) == IDEM_OK)
        place.script = script;
    idem_buf_init(&text, 16 * 1024 * 1024);
    status = gateway_nginx_conf(config, &place, &text, &err);
    if (status == IDEM_OK) {
        cli_text_begin();
        fwrite(text.data, 1, text.len, stdout);
        cli_text_end("nginx");
    }
    idem_buf_clear(&text);
    return status == IDEM_OK ? CLI_OK : cli_fail(&err);
}

/* A check must not open the store, because a running engine may have it open,
 * or bind the addresses, which a running gateway has. */
static int
check(struct gateway_config *config)
{
    const char *where = config->engine ? "engine" : "store";
    struct idem_error err = {0};

    if (gateway_try(config, &err) != IDEM_OK)
        return cli_usage_error("%s", err.text);
    if (cli_json)
        cli_json_print(json_pack("{s:b, s:[s, s]}", "fine", 1, "unchecked",
                                 where, "addresses"));
    else
        printf("the configuration is fine\n"
               "not checked: whether %s, and whether the addresses are free\n",
               config->engine ? "the engine can be reached"
                              : "the store can be opened (idem store check)");
    return CLI_OK;
}

int
cli_gateway(int argc, char **argv)
{
    static struct gateway_flags flags;
    static struct gateway_config config;
    struct cli_syntax syntax = {
        .usage = "gateway --upstream URL [options]",
        .about =
            "Put any HTTP service behind idem: a request with an "
            "Idempotency-Key runs once, and duplicates get the same response. "
            "The command starts an engine and nginx with idem's module, and "
            "stops both when it ends. --json: log lines are JSON.",
        .options = flags.options,
    };
    struct idem_error err = {0};
    int code;

    make_options(&flags);
    code = cli_parse(&syntax, argc, argv, NULL, NULL);
    if (code >= 0)
        return code;
    gateway_config_init(&config);
    if (load(&flags, &config, &err) != IDEM_OK)
        return cli_usage_error("%s", err.text);
    code = flags.print   ? print_config(&config)
           : flags.check ? check(&config)
                         : -1;
    gateway_config_clear(&config);
    return code >= 0 ? code : gateway_run(load, &flags, cli_json);
}
