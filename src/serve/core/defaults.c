/*
 * defaults.c - the default store and socket of a server, and the checks of its
 * configuration.
 */
#include "server.h"

#include "../../id/id.h"
#include "../http/problem_page.h"

#include "../../store/store.h"

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

bool
server_is_none(const char *value)
{
    return strcmp(value, "none") == 0 || strcmp(value, "off") == 0;
}

void
server_default_socket(char *path, size_t path_len)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");

    if (getuid() == 0)
        snprintf(path, path_len, "/run/idem/idem.sock");
    else if (runtime && runtime[0] == '/')
        snprintf(path, path_len, "%s/idem.sock", runtime);
    else
        snprintf(path, path_len, "/tmp/idem-%u/idem.sock", (unsigned)getuid());
}

static void
default_store(char *url, size_t url_len)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

    if (getuid() == 0)
        snprintf(url, url_len, "journal:/var/lib/idem");
    else if (state && state[0] == '/')
        snprintf(url, url_len, "journal:%s/idem", state);
    else if (home && home[0] == '/')
        snprintf(url, url_len, "journal:%s/.local/state/idem", home);
    else
        snprintf(url, url_len, "journal:/tmp/idem-%u/data", (unsigned)getuid());
}

static enum idem_status
check_addresses(const struct server_config *config, const char *name,
                const char *list, struct idem_error *err)
{
    struct idem_error why = {0};
    struct server_address address;

    while (list && server_address_next(&list, &address, &why)) {
        if (!address.loopback && !config->credentials)
            return idem__fail(
                err, IDEM_ERR_INVALID,
                "%s %s:%s can be reached from other machines, and no "
                "credentials are set: write a file with lines `name secret "
                "monitor|view|use|operate [scope ...]`, chmod 600 it, and give "
                "it with "
                "--credentials FILE; or listen on 127.0.0.1",
                name, address.host, address.port);
    }
    if (why.status != IDEM_OK)
        return idem__fail(err, why.status, "%s: %s", name, why.text);
    return IDEM_OK;
}

struct idem__tls_files
server_tls_files(const struct server_config *config)
{
    return (struct idem__tls_files){.ca = config->tls_client_ca,
                                    .cert = config->tls_cert,
                                    .key = config->tls_key};
}

static enum idem_status
check_tls(const struct server_config *config, struct idem_error *err)
{
    if (!config->tls_cert && !config->tls_key && !config->tls_client_ca)
        return IDEM_OK;
    if (!config->tls_cert || !config->tls_key)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "tls-cert and tls-key need each other; give both");
    if (!config->listen && !config->http)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "tls-cert is for TCP; give listen or http, too");
    return IDEM_OK;
}

static enum idem_status
check_socket(const struct server_config *config, struct idem_error *err)
{
    size_t max = sizeof((struct sockaddr_un){0}.sun_path) - 1;

    if (config->socket && strlen(config->socket) > max)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the socket's path %s is longer than %zu bytes",
                          config->socket, max);
    if (config->socket_group && !getgrnam(config->socket_group))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "socket-group: there is no group \"%s\"",
                          config->socket_group);
    return IDEM_OK;
}

enum idem_status
server_config_check(struct server_config *config, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    char text[4096];

    if (!config->store) {
        default_store(text, sizeof(text));
        status = server_config_set(config, "store", text, err);
    }
    if (status == IDEM_OK && !config->socket) {
        server_default_socket(text, sizeof(text));
        status = server_config_set(config, "socket", text, err);
        config->default_socket = true;
    } else if (status == IDEM_OK && server_is_none(config->socket)) {
        free(config->socket);
        config->socket = NULL;
    }
    if (status == IDEM_OK && !config->problem_base)
        status =
            server_config_set(config, "problem-base", IDEM_PROBLEM_BASE, err);
    if (status == IDEM_OK && !problem_base_ok(idem_text(config->problem_base)))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "problem-base: \"%s\" is not a URL that ends with "
                            "/ or #, for instance "
                            "https://docs.example.com/problems/",
                            config->problem_base);
    if (status == IDEM_OK && config->max_command == 0)
        config->max_command = config->max_result + 65536;
    if (status == IDEM_OK)
        status = check_addresses(config, "listen", config->listen, err);
    if (status == IDEM_OK)
        status = check_addresses(config, "http", config->http, err);
    if (status == IDEM_OK)
        status = check_tls(config, err);
    if (status == IDEM_OK && config->second_person && !config->credentials)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "second-person needs credentials to tell operators "
                            "apart; give credentials, too");
    if (status == IDEM_OK && config->console && !config->http)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "the console needs HTTP; give http, too");
    if (status == IDEM_OK)
        status = idem__store_known(config->store, err);
    if (status == IDEM_OK) {
        struct idem_ids_options ids = config->ids;

        status = idem__ids_options_check(&ids, err);
    }
    if (status == IDEM_OK)
        status = check_socket(config, err);
    if (status == IDEM_OK && config->max_command < SERVER_COMMAND_MIN)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "max-command of %lld is out of range: %d or more",
                            (long long)config->max_command, SERVER_COMMAND_MIN);
    if (status == IDEM_OK && !config->socket && !config->listen &&
        !config->http)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "nothing to listen on: give socket, listen or "
                            "http");
    return status;
}
