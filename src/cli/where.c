/*
 * where.c - open an engine from the options and the environment: on a store in
 * this process, or on a server (idem://).
 */
#include "where.h"

#include "../base/address.h"
#include "../base/hex.h"
#include "../base/peer.h"
#include "../base/url.h"
#include "../remote/remote.h"
#include "../serve/core/server.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

const char *
cli_store_url(const struct cli_where *where)
{
    const char *server = getenv("IDEM_SERVER");
    const char *url = where->store;

    if (!url && !where->server && !(server && *server))
        url = getenv("IDEM_STORE");
    return url && *url ? url : NULL;
}

/* Append a file's name as the value of a URL's option. */
static void
add_file(char *url, size_t url_len, const char *file)
{
    size_t len = strlen(url);

    len += (size_t)snprintf(url + len, url_len - len,
                            "%cauth-file=", strchr(url, '?') ? '&' : '?');
    for (; *file && len + 4 < url_len; file++) {
        if (isalnum((unsigned char)*file) || strchr("/._-", *file))
            url[len++] = *file;
        else
            len = (size_t)(idem__percent_write(*file, url + len) - url);
        url[len] = 0;
    }
}

static bool
has_port(const char *address)
{
    const char *at = strrchr(address, '@'), *host = at ? at + 1 : address;
    struct idem__address read;

    return !strstr(address, "://") &&
           !idem__address_read(host, strlen(host), &read) && read.port > 0;
}

enum idem_status
cli_server_url(const struct cli_where *where, char *url, size_t len,
               struct idem_error *err)
{
    const char *address = where->server ? where->server : getenv("IDEM_SERVER");
    char path[512], shown[256];

    if (!address || !*address) {
        server_default_socket(path, sizeof(path));
        address = path;
    }
    if (idem__remote_url(address)) {
        snprintf(url, len, "%s", address);
    } else if (strncmp(address, "unix:", 5) == 0 || address[0] == '/') {
        snprintf(url, len, "idem+unix:%s",
                 address[0] == '/' ? address : address + 5);
    } else if (has_port(address)) {
        snprintf(url, len, "idem://%s%s",
                 address[0] == ':' && !strchr(address, '@') ? "127.0.0.1" : "",
                 address);
    } else {
        idem__url_redact_user(address, shown, sizeof(shown));
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\" is %s: give unix:PATH, HOST:PORT or "
                          "idems://HOST:PORT",
                          shown,
                          strncmp(address, "http", 4) == 0
                              ? "the HTTP address of a server; commands "
                                "need its socket or its RESP port"
                              : "not an address");
    }
    if (where->credentials)
        add_file(url, len, where->credentials);
    return IDEM_OK;
}

/* A variable that was set long ago is easily forgotten. */
static const char *
server_advice(const struct cli_where *where, bool takes_store)
{
    const char *server = getenv("IDEM_SERVER"), *store = getenv("IDEM_STORE");

    if (where->server || !server || !*server)
        return takes_store
                   ? "start one with idem serve, name another with --server, "
                     "or open a store without a server: --store URL"
                   : "start one with idem serve, or name another with --server";
    return takes_store && store && *store
               ? "this address comes from IDEM_SERVER, so IDEM_STORE was "
                 "not used: unset one of them, or start the server with "
                 "idem serve"
               : "this address comes from IDEM_SERVER: correct or unset it, or "
                 "start the server with idem serve";
}

void
cli_advise_to_start(const struct cli_where *where, bool takes_store,
                    struct idem_error *err)
{
    size_t len = strlen(err->text);

    snprintf(err->text + len, sizeof(err->text) - len, "; %s",
             server_advice(where, takes_store));
}

enum idem_status
cli_line_open(const struct cli_where *where, struct idem__remote_line *line,
              struct idem_error *err)
{
    char url[CLI_URL_MAX];
    enum idem_status status = cli_server_url(where, url, sizeof(url), err);

    if (status == IDEM_OK)
        status = idem__remote_line_open(url, line, err);
    if (status == IDEM_ERR_UNAVAILABLE)
        cli_advise_to_start(where, false, err);
    return status;
}

/* Does this process listen on this socket? */
static bool
listens(long pid, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool yes = false;

    if (strlen(path) < sizeof(address.sun_path) && fd >= 0) {
        memcpy(address.sun_path, path, strlen(path));
        yes = connect(fd, (const struct sockaddr *)&address, sizeof(address)) ==
                  0 &&
              idem__peer_pid(fd) == pid;
    }
    if (fd >= 0)
        close(fd);
    return yes;
}

/* The process that has a journal open. */
struct occupant {
    char socket[512]; /* where it listens if it is a server */
    bool consumes;    /* idem consume */
    bool of_gateway;  /* the engine of a gateway */
};

/* Read its command line. A server without --socket has the default socket. */
static void
read_command_line(long pid, struct occupant *occupant)
{
    char file[64], *arg = NULL;
    size_t room = 0;
    FILE *line;
    bool here = false;

    snprintf(file, sizeof(file), "/proc/%ld/cmdline", pid);
    line = fopen(file, "re");
    server_default_socket(occupant->socket, sizeof(occupant->socket));
    for (int i = 0; line && getdelim(&arg, &room, 0, line) > 0; i++) {
        if (here || strncmp(arg, "--socket=", 9) == 0)
            snprintf(occupant->socket, sizeof(occupant->socket), "%s",
                     here ? arg : arg + 9);
        here = strcmp(arg, "--socket") == 0;
        occupant->consumes |= i == 1 && strcmp(arg, "consume") == 0;
        occupant->of_gateway |= strcmp(arg, "--gateway-figures") == 0;
    }
    free(arg);
    if (line)
        fclose(line);
}

void
cli_advise_to_ask(struct idem_error *err)
{
    const char *by = strstr(err->text, IDEM__JOURNAL_IN_USE);
    char *advice = by ? strstr(by, IDEM__JOURNAL_STOP_IT) : NULL;
    size_t room = advice ? sizeof(err->text) - (size_t)(advice - err->text) : 0;
    struct occupant occupant = {0};
    long pid;

    if (!advice)
        return;
    pid = strtol(by + strlen(IDEM__JOURNAL_IN_USE), NULL, 10);
    if (pid > 0)
        read_command_line(pid, &occupant);
    if (occupant.consumes)
        snprintf(advice, room,
                 ", which is idem consume: stop the consumer, or let both use "
                 "a server");
    else if (pid <= 0 || !listens(pid, occupant.socket) ||
             snprintf(advice, room, ": ask that server: --server unix:%s",
                      occupant.socket) >= (int)room)
        snprintf(advice, room,
                 ": if it is a server, ask it: --server unix:PATH");
    else if (occupant.of_gateway)
        snprintf(advice + strlen(advice), room - strlen(advice),
                 " (a gateway started it)");
}

enum idem_status
cli_store_open(const struct cli_where *where, const char *url,
               const struct idem_options *options, struct idem_engine **engine,
               struct idem_error *err)
{
    struct idem_options filled = options ? *options : (struct idem_options){0};
    const char *key = where->seal_key;

    /* The variable applies to every command, but a server's URL needs no
     * key. */
    if (!key && !idem__remote_url(url))
        key = getenv("IDEM_SEAL_KEY");
    filled.seal_key = key && *key ? key : NULL;
    return idem_open(url, &filled, engine, err);
}

/* What a folder has. An empty one may have been made for a journal. */
enum content { A_JOURNAL, NOTHING, SOMETHING_ELSE };

/* A folder that cannot be read counts as one with a journal: opening the
 * journal says why. */
static enum content
look_into(const char *dir)
{
    DIR *folder = opendir(dir);
    const struct dirent *file;
    enum content content = folder ? NOTHING : A_JOURNAL;

    errno = 0;
    while (content != A_JOURNAL && (file = readdir(folder))) {
        const char *name = file->d_name;

        if (strcmp(name, "lock") == 0 || /* it is being made */
            (strlen(name) >= 4 && strcmp(strchr(name, 0) - 4, ".seg") == 0))
            content = A_JOURNAL;
        else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            content = SOMETHING_ELSE;
    }
    if (errno != 0)
        content = A_JOURNAL;
    if (folder)
        closedir(folder);
    return content;
}

/* The path in the URL of a journal or of an SQLite file; false: it is another
 * URL. A folder's name may have a question mark. */
static bool
local_path(const char *url, bool *journal, char path[CLI_URL_MAX])
{
    size_t skip = strncmp(url, "sqlite:", 7) == 0 ? 7 : 0;
    const char *options;

    *journal = strncmp(url, "journal:", 8) == 0;
    url += *journal ? 8 : skip;
    options = strrchr(url, '?');
    snprintf(path, CLI_URL_MAX, "%.*s",
             options ? (int)(options - url) : (int)strlen(url), url);
    return (*journal || skip > 0) && path[0] &&
           strncmp(path, ":memory:", 8) != 0;
}

enum idem_status
cli_store_exists(const char *url, bool *empty, struct idem_error *err)
{
    enum content content = A_JOURNAL;
    char path[CLI_URL_MAX];
    struct stat st;
    bool journal;

    if (empty)
        *empty = false;
    if (!local_path(url, &journal, path))
        return IDEM_OK;
    if (stat(path, &st) != 0 && errno == ENOENT)
        return idem__fail(err, IDEM_ERR_INVALID,
                          journal ? "journal: there is no folder %.150s: "
                                    "correct the name; idem begin, idem serve "
                                    "or idem store init creates a journal"
                                  : "sqlite: there is no file %.150s: correct "
                                    "the name; idem begin, idem serve or idem "
                                    "store init creates it",
                          path);
    if (journal)
        content = look_into(path);
    if (content == SOMETHING_ELSE || (content == NOTHING && !empty))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "journal: there is no journal in the folder %.150s: "
                          "correct the name; idem begin, idem serve or idem "
                          "store init creates a journal",
                          path);
    if (content == NOTHING)
        *empty = true;
    return IDEM_OK;
}

/* A volume that is not mounted is an empty folder, too. */
static void
say_empty(const char *url)
{
    char path[CLI_URL_MAX];
    bool journal;

    if (local_path(url, &journal, path))
        fprintf(stderr,
                "idem: note: the folder %s was empty, and a new journal was "
                "created in it; is this the right folder, and is its volume "
                "mounted?\n",
                path);
}

enum idem_status
cli_engine_open(const struct cli_where *where, struct idem_engine **engine,
                struct idem_error *err)
{
    struct idem_options options = {.max_result = IDEM_RESULT_MAX};
    const char *store = cli_store_url(where);
    char url[CLI_URL_MAX];
    enum idem_status status;
    bool empty = false;

    if (where->store && where->server)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "give --server or --store, not both");
    if (where->store && !*where->store)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "--store is empty: give the URL of a store, or leave "
                          "it out to ask a server");
    if (store) {
        if (where->must_exist && cli_store_exists(store, &empty, err))
            return IDEM_ERR_INVALID;
        status = cli_store_open(where, store, &options, engine, err);
        if (status == IDEM_ERR_UNAVAILABLE)
            cli_advise_to_ask(err);
        if (status == IDEM_OK && empty)
            say_empty(store);
        return status;
    }
    status = cli_server_url(where, url, sizeof(url), err);
    if (status == IDEM_OK)
        status = cli_store_open(where, url, &options, engine, err);
    if (status == IDEM_ERR_UNAVAILABLE)
        cli_advise_to_start(where, true, err);
    return status;
}

/* ---- listing ------------------------------------------------------------- */

void
cli_say_none(const struct cli_where *where, const char *what)
{
    const char *store = cli_store_url(where);
    struct cli_where place = *where;
    struct idem_error err = {0};
    char url[CLI_URL_MAX], shown[CLI_URL_MAX];

    place.credentials = NULL; /* a file is not part of the address */
    if (!store && cli_server_url(&place, url, sizeof(url), &err) != IDEM_OK)
        return;
    idem__url_redact(store ? store : url, shown, sizeof(shown));
    fprintf(stderr, "idem: no %s at %s\n", what,
            strncmp(shown, "idem+unix:", 10) == 0 ? shown + 5 : shown);
}

void
cli_print_where(FILE *out, const struct cli_where *where)
{
    const struct {
        const char *name, *value;
    } given[] = {{"store", where->store},
                 {"server", where->server},
                 {"credentials", where->credentials},
                 {"seal-key", where->seal_key}};
    char shown[CLI_URL_MAX];

    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        const char *value = given[i].value;

        if (!value)
            continue;
        if (value == where->server && has_port(value))
            idem__url_redact_user(value, shown, sizeof(shown));
        else
            idem__url_redact(value, shown, sizeof(shown));
        fprintf(out, " --%s ", given[i].name);
        cli_print_quoted(out, shown);
    }
}

/* An engine that has just started does not treat a lease as ended before it has
 * watched it for its full length. For a listing, the store's clock is good
 * enough. */
struct doubt_list {
    int64_t now_ms;
    idem_each_fn *each;
    void *arg;
};

int64_t
cli_doubt_ms(const struct idem_record *record, int64_t now_ms)
{
    return idem__may_come_into_doubt(record) && record->lease_until <= now_ms
               ? now_ms - record->lease_until
               : -1;
}

json_t *
cli_json_listed(const struct idem_record *record, int64_t now_ms)
{
    json_t *object = cli_json_record(record, true, false);
    int64_t doubt_ms = cli_doubt_ms(record, now_ms);

    if (doubt_ms >= 0)
        json_object_set_new(object, "doubt_ms", json_integer(doubt_ms));
    return object;
}

static bool
each_doubt(void *arg, const struct idem_record *record)
{
    struct doubt_list *doubts = arg;

    return cli_doubt_ms(record, doubts->now_ms) < 0 ||
           doubts->each(doubts->arg, record);
}

enum idem_status
cli_list(struct idem_engine *engine, const struct idem_filter *filter,
         struct idem_cursor *cursor, size_t count, idem_each_fn *each,
         void *arg, struct idem_error *err)
{
    struct idem_filter executing = *filter;
    struct doubt_list doubts = {.each = each, .arg = arg};
    struct idem__stats stats;

    if (!filter->doubt)
        return idem_scan(engine, filter, cursor, count, each, arg, err);
    if (filter->state != 0 && filter->state != IDEM_STATE_EXECUTING)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "only records that are executing can be in doubt: "
                          "leave --state out");
    idem__stats(engine, &stats);
    doubts.now_ms = stats.now_ms;
    executing.doubt = false;
    executing.state = IDEM_STATE_EXECUTING;
    return idem_scan(engine, &executing, cursor, count, each_doubt, &doubts,
                     err);
}
