/*
 * launch_engine.c - --engine: the gateway uses a server that runs elsewhere,
 * and starts no engine of its own.
 *
 * The URL, its options and the places of its credential are those of idem://.
 */
#include "launch.h"

#include "../../base/address.h"
#include "../../base/url.h"
#include "../../remote/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROBE_MS 3000

/* A setting that only the gateway's own engine can have, and why; NULL: none is
 * set. */
static const char *
own_setting(const struct gateway_config *config, const char **why)
{
    const struct {
        const char *name, *value, *why;
    } own[] = {
        {"store", config->store,
         "the records are where that server keeps them"},
        {"seal-key", config->seal_key, "that server seals the records"},
        {"http", config->http, "health, metrics and HTTP are at that server"},
        {"credentials", config->credentials,
         "that server checks the credentials of its HTTP"},
        {"console", config->console ? "on" : NULL,
         "the console is at that server"},
        {"socket", config->socket,
         "other commands reach the records with --server"},
    };

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (own[i].value && strcmp(own[i].value, "off") != 0) {
            *why = own[i].why;
            return own[i].name;
        }
    }
    return NULL;
}

enum idem_status
gateway_engine_check(const struct gateway_config *config,
                     struct idem_error *err)
{
    const char *why, *own = own_setting(config, &why);
    struct idem__remote_address address;
    char shown[256];
    enum idem_status status;

    if (own)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "--%s and --engine exclude each other: with "
                          "--engine, %s",
                          own, why);
    idem__url_redact_user(config->engine, shown, sizeof(shown));
    if (!idem__remote_url(config->engine))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "engine: \"%s\" is not the URL of a server: give "
                          "idems://HOST:PORT, idem://HOST:PORT or "
                          "idem+unix:/PATH",
                          shown);
    status = idem__remote_address_open(config->engine, &address, err);
    if (status == IDEM_OK)
        idem__remote_address_clear(&address);
    return status;
}

/* One parameter of idem_engine. nginx would look for a relative path in its own
 * folder. */
static bool
add_parameter(struct idem_buf *out, const char *name, const char *value,
              bool is_path)
{
    char *folder = is_path && value && value[0] != '/' ? getcwd(NULL, 0) : NULL;
    char *word = NULL;
    bool good;

    if (!value)
        return true;
    good = asprintf(&word, "%s%s%s%s", name, folder ? folder : "",
                    folder ? "/" : "", value) >= 0 &&
           idem_buf_add(out, " ", 1) && gateway_add_quoted(out, word);
    if (word) {
        explicit_bzero(word, strlen(word));
        free(word);
    }
    free(folder);
    return good;
}

static bool
add_address(const struct idem__remote_address *address, struct idem_buf *out)
{
    char host[IDEM__ADDRESS_LEN];

    if (address->path)
        return add_parameter(out, "unix:", address->path, true);
    idem__address_write(address->host, address->port, host);
    return add_parameter(out, "", host, false);
}

static bool
add_options(const struct idem__url *url,
            const struct idem__remote_address *address, struct idem_buf *out)
{
    const char *timeout = idem__url_option(url, "timeout_ms");

    return (!timeout || idem_buf_printf(out, " timeout=%sms", timeout)) &&
           (!address->tls || idem_buf_add_text(out, " tls=on")) &&
           add_parameter(out, "ca=", idem__url_option(url, "ca"), true) &&
           add_parameter(out, "cert=", idem__url_option(url, "cert"), true) &&
           add_parameter(out, "key=", idem__url_option(url, "key"), true);
}

enum idem_status
gateway_engine_conf(const struct gateway_config *config, bool secret,
                    struct idem_buf *out, struct idem_error *err)
{
    static const char *const known[] = {"timeout_ms", "auth-file", "ca",
                                        "cert",       "key",       NULL};
    struct idem__remote_address address;
    struct idem__url url = {0};
    char options[2048];
    enum idem_status status =
        idem__remote_address_open(config->engine, &address, err);
    bool good = false;

    if (status != IDEM_OK)
        return status;
    /* The options of a socket's URL are parsed like those of a host's. */
    snprintf(options, sizeof(options), "idem://unix%s",
             strchrnul(config->engine, '?'));
    status = idem__url_parse(address.path ? options : config->engine,
                             address.port ? address.port : 1, known, &url, err);
    if (status == IDEM_OK) {
        good = address.secret && !secret
                   ? idem_buf_add_text(
                         out, "    # Add user=NAME password=SECRET here, and "
                              "let nobody else read this file.\n")
                   : true;
        good = good && idem_buf_add_text(out, "    idem_engine") &&
               add_address(&address, out) && add_options(&url, &address, out);
        if (secret)
            good = good && add_parameter(out, "user=", address.name, false) &&
                   add_parameter(out, "password=", address.secret, false);
        if (!good || !idem_buf_add(out, ";\n", 2))
            status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    idem__url_clear(&url);
    idem__remote_address_clear(&address);
    return status;
}

void
launch_engine_probe(const struct launch *self)
{
    struct idem__remote_address address;
    struct idem__remote_link link = IDEM__REMOTE_NO_LINK;
    struct idem__remote_hello hello;
    struct idem_error err = {0};
    enum idem_status status =
        idem__remote_address_open(self->config->engine, &address, &err);

    if (status == IDEM_OK) {
        if (address.timeout_ms > PROBE_MS)
            address.timeout_ms = PROBE_MS;
        status = idem__remote_dial(&address, -1, NULL, &link, &hello, &err);
        idem__remote_hang_up(&link);
        idem__remote_address_clear(&address);
    }
    if (status != IDEM_OK)
        launch_say("%s; protected requests are refused until the engine can "
                   "be reached",
                   err.text);
}
