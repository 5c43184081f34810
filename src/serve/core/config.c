/*
 * config.c - the options of `idem serve`.
 *
 * One table has the name, kind, bounds, default and help of each option. Flags,
 * environment variables (IDEM_MAX_CLIENTS) and lines of a file (max-clients =
 * 100) all use it.
 */
#include "server.h"

#include "../../base/guess.h"
#include "../../base/units.h"
#include "../../id/id.h"

#include "../../record/record.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FILE_MAX (1024 * 1024)
#define NAME_MAX_LEN 32

enum kind { TEXT, NUMBER, SIZE, TIME, MODE, YES_NO, FORMAT, LEVEL, IDS };

struct option {
    struct server_option shown;
    enum kind kind;
    size_t offset;
    int64_t otherwise, min, max; /* for numbers of every kind */
};

#define RANGE(kind, field, otherwise, min, max)                                \
    kind, offsetof(struct server_config, field), otherwise, min, max
#define PLAIN(kind, field) RANGE(kind, field, 0, 0, 0)
#define MIB INT64_C(1048576)
#define HOUR INT64_C(3600000)

static const struct option options[] = {
    {{"store", "URL",
      "the store for the records (default: a journal in the state folder of "
      "this user)"},
     PLAIN(TEXT, store)},
    {{"seal-key", "FILE",
      "seal results and subjects in the store with the first key of this "
      "file; open them with all of its keys"},
     PLAIN(TEXT, seal_key)},
    {{"socket", "PATH",
      "RESP on a unix socket; none or off for no socket (default: "
      "in the runtime folder of this user)"},
     PLAIN(TEXT, socket)},
    {{"socket-mode", "MODE", "the socket's permissions, octal (default 0600)"},
     RANGE(MODE, socket_mode, 0600, 0, 0777)},
    {{"socket-group", "GROUP", "the socket's group, for instance www-data"},
     PLAIN(TEXT, socket_group)},
    {{"listen", "ADDRESS", "RESP on TCP: HOST:PORT, several with commas"},
     PLAIN(TEXT, listen)},
    {{"http", "ADDRESS", "HTTP/JSON and metrics: HOST:PORT"},
     PLAIN(TEXT, http)},
    {{"credentials", "FILE",
      "names, secrets and rights of clients; required to listen beyond this "
      "machine"},
     PLAIN(TEXT, credentials)},
    {{"tls-cert", "FILE",
      "use TLS on listen and http, with this certificate (PEM); SIGHUP reads "
      "it again"},
     PLAIN(TEXT, tls_cert)},
    {{"tls-key", "FILE", "the key of the certificate (PEM)"},
     PLAIN(TEXT, tls_key)},
    {{"tls-client-ca", "FILE",
      "TLS clients must show a certificate that one of these authorities "
      "signed"},
     PLAIN(TEXT, tls_client_ca)},
    {{"trust-socket", NULL,
      "clients on the unix socket need no AUTH; this user and root may "
      "operate, other users may use"},
     PLAIN(YES_NO, trust_socket)},
    {{"http-metrics-only", NULL,
      "without credentials, HTTP serves health, metrics and problem pages "
      "only"},
     PLAIN(YES_NO, http_metrics_only)},
    {{"console", NULL,
      "serve the console, a page at /console of the http address"},
     PLAIN(YES_NO, console)},
    {{"console-idle", "TIME",
      "log out console users after this time without a click (default 30m)"},
     RANGE(TIME, console_idle_ms, HOUR / 2, 1000, 12 * HOUR)},
    {{"problem-base", "URL",
      "the type of a problem begins with this: the address of your own pages "
      "about problems, with / or # at its end (default /problems/, the pages "
      "of this server)"},
     PLAIN(TEXT, problem_base)},
    {{"gateway-figures", "FILE",
      "the file with the counters of an nginx on this machine (its "
      "idem_figures), for the metrics"},
     PLAIN(TEXT, gateway_figures)},
    {{"gateway-routes", "FILE",
      "the file with the policy of a gateway's routes on this machine (JSON), "
      "for the console"},
     PLAIN(TEXT, gateway_routes)},
    {{"consumers", "DIR",
      "the folder where idem consume on this machine writes its metrics "
      "(*.prom), for the console"},
     PLAIN(TEXT, consumers)},
    {{"audit", "FILE",
      "write each action of an operator to this file, a line of JSON each; "
      "none for no file (default: audit.jsonl in the journal's folder, no file "
      "on other stores)"},
     PLAIN(TEXT, audit)},
    {{"audit-size", "SIZE",
      "start a new audit file at this size, and keep one old file (default "
      "16m)"},
     RANGE(SIZE, audit_size, 16 * MIB, 65536, 1024 * MIB)},
    {{"on-doubt", "COMMAND|URL",
      "report new doubts: run this command with /bin/sh, or POST to this URL"},
     PLAIN(TEXT, on_doubt)},
    {{"on-doubt-every", "TIME",
      "the shortest time between two such reports (default 10s)"},
     RANGE(TIME, on_doubt_every_ms, 10000, 100, 24 * HOUR)},
    {{"require-reason", NULL,
      "refuse actions of operators (FORGET, SETTLE AS, ROLLBACK) without a "
      "reason"},
     PLAIN(YES_NO, require_reason)},
    {{"second-person", NULL,
      "do an action of an operator (FORGET, SETTLE AS) only when a second "
      "operator asks for the same; needs credentials"},
     PLAIN(YES_NO, second_person)},
    {{"max-clients", "N", "at most this many RESP connections (default 10000)"},
     RANGE(NUMBER, max_clients, 10000, 1, 1000000)},
    {{"max-result", "SIZE", "largest stored result (default 1m)"},
     RANGE(SIZE, max_result, IDEM_RESULT_DEFAULT_MAX, 1, IDEM_RESULT_MAX)},
    {{"max-command", "SIZE", "largest command (default: max-result plus 64k)"},
     RANGE(SIZE, max_command, 0, 0, IDEM_RESULT_MAX + MIB)},
    {{"max-output", "SIZE",
      "most bytes of replies that one client has not read (default 32m)"},
     RANGE(SIZE, max_output, 32 * MIB, 65536, 1024 * MIB)},
    {{"max-buffered", "SIZE",
      "most bytes buffered for all clients, in both directions (default 512m)"},
     RANGE(SIZE, max_buffered, 512 * MIB, MIB, 1024 * 1024 * MIB)},
    {{"max-queue", "N",
      "most operations that wait for the engine (default 65536)"},
     RANGE(NUMBER, max_queue, 0, 0, 10000000)},
    {{"max-batch", "N", "most operations in one commit (default 1024)"},
     RANGE(NUMBER, max_batch, 0, 0, 100000)},
    {{"max-parked", "N", "most duplicates that wait (default 65536)"},
     RANGE(NUMBER, max_parked, 0, 0, 10000000)},
    {{"max-parked-key", "N",
      "most duplicates that wait for one key (default 1024)"},
     RANGE(NUMBER, max_parked_key, 0, 0, 10000000)},
    {{"max-parked-scope", "N",
      "most duplicates that wait in one scope (default 16384)"},
     RANGE(NUMBER, max_parked_scope, 0, 0, 10000000)},
    {{"epoch-file", "FILE",
      "detect a store that went back to an older state, by a mark in the store "
      "and in this file; do not put it into a journal's folder"},
     PLAIN(TEXT, epoch_file)},
    {{"accept-rollback", NULL,
      "continue with a store that went back to an older state: requests that "
      "this server knows to be lost come into doubt, others may run again"},
     PLAIN(YES_NO, accept_rollback)},
    {{"require-fingerprint", "SCOPES",
      "refuse a BEGIN without a fingerprint in these scopes: names with commas "
      "between them; shop* means all scopes that begin with shop"},
     PLAIN(TEXT, require_fingerprint)},
    {{"scope-rate", "N",
      "requests a second that one scope may send (BEGIN, LOCK, ISSUE, REDEEM, "
      "GET, SETTLE); 0: no limit (default)"},
     RANGE(NUMBER, scope_rate, 0, 0, 1000000000)},
    {{"scope-records", "N",
      "records that one scope may have in the store; 0: no limit (default)"},
     RANGE(NUMBER, scope_records, 0, 0, INT64_C(1000000000000))},
    {{"scope-bytes", "SIZE",
      "bytes that the records of one scope may take, 2k more for each that is "
      "executing; 0: no limit (default)"},
     RANGE(SIZE, scope_bytes, 0, 0, INT64_MAX)},
    {{"token-rate", "N",
      "tokens a second that one subject may ask for; 0: no "
      "limit (default 10000)"},
     RANGE(NUMBER, token_rate, 10000, 0, 1000000000)},
    {{"uid-bits", "BITS",
      "bits of a uid for seconds, worker and sequence (default 28,22,13)"},
     PLAIN(IDS, ids)},
    {{"uid-epoch", "DAY", "where the seconds of a uid begin (2026-01-01)"},
     PLAIN(IDS, ids)},
    {{"snowflake-epoch", "DAY",
      "where the milliseconds of a snowflake begin (2024-01-01)"},
     PLAIN(IDS, ids)},
    {{"worker-numbers", "FROM-TO",
      "lease worker numbers for snowflakes and uids from this pool only "
      "(default: all)"},
     PLAIN(IDS, ids)},
    {{"segment-step", "N",
      "how many ids of a segment to fetch at once, at first (default 1000); 1: "
      "fetch none ahead"},
     PLAIN(IDS, ids)},
    {{"segment-step-max", "N",
      "how far the step may grow under load (default 1073741824)"},
     PLAIN(IDS, ids)},
    {{"idle-timeout", "TIME",
      "close a client that sends nothing for this time; 0: never (default)"},
     RANGE(TIME, idle_ms, 0, 0, 24 * HOUR)},
    {{"stall-timeout", "TIME",
      "close a client that stops in the middle of a command, or does not read "
      "its replies (default 30s)"},
     RANGE(TIME, stall_ms, 30000, 100, 24 * HOUR)},
    {{"drain-timeout", "TIME",
      "how long running operations may take after SIGTERM (default 5s)"},
     RANGE(TIME, drain_ms, 5000, 0, HOUR)},
    {{"log-format", "FORMAT", "logfmt (default) or json"},
     PLAIN(FORMAT, log_format)},
    {{"log-level", "LEVEL", "debug, info (default), warning or error"},
     PLAIN(LEVEL, log_level)},
    {{"log-keys", NULL, "write keys to the log as they are, not as digests"},
     PLAIN(YES_NO, log_keys)},
};

#define OPTIONS (sizeof(options) / sizeof(options[0]))

const struct server_option *
server_config_option(size_t i)
{
    return i < OPTIONS ? &options[i].shown : NULL;
}

static void *
field(struct server_config *config, const struct option *option)
{
    return (char *)config + option->offset;
}

static bool
is_number(enum kind kind)
{
    return kind == NUMBER || kind == SIZE || kind == TIME || kind == MODE;
}

void
server_config_init(struct server_config *config)
{
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < OPTIONS; i++) {
        if (is_number(options[i].kind))
            *(int64_t *)field(config, &options[i]) = options[i].otherwise;
    }
    config->log_level = LOG_INFO;
}

void
server_config_clear(struct server_config *config)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        if (options[i].kind == TEXT)
            free(*(char **)field(config, &options[i]));
    }
    memset(config, 0, sizeof(*config));
}

/* ---- values ---------------------------------------------------------- */

static bool
read_number(enum kind kind, const char *text, int64_t *number)
{
    static const enum idem__unit units[] = {
        [TIME] = IDEM__UNIT_TIME, [SIZE] = IDEM__UNIT_SIZE};
    char *end;

    if (kind != MODE)
        return idem__units_parse(units[kind], text, number);
    *number = strtoll(text, &end, 8);
    return isdigit((unsigned char)text[0]) && *end == 0;
}

static enum idem_status
set_number(const struct option *option, void *at, const char *value,
           struct idem_error *err)
{
    static const char *const shapes[] = {
        [NUMBER] = "a number",
        [SIZE] = "a size like 65536, 64k or 1m",
        [MODE] = "an octal mode like 0660",
    };
    char flaw[IDEM__TIME_FLAW_LEN];
    int64_t number;

    if (option->kind == TIME && !read_number(TIME, value, &number))
        return idem__fail(err, IDEM_ERR_INVALID, "%s \"%.60s\" %s",
                          option->shown.name, value,
                          idem__time_flaw(option->shown.name, value, flaw));
    if (!read_number(option->kind, value, &number))
        return idem__fail(err, IDEM_ERR_INVALID, "%s is %s, not \"%.60s\"",
                          option->shown.name, shapes[option->kind], value);
    if (number < option->min || number > option->max)
        return idem__fail(
            err, IDEM_ERR_INVALID,
            option->kind == MODE ? "%s of %.60s is out of range: %lo to %lo"
                                 : "%s of %.60s is out of range: %ld to %ld",
            option->shown.name, value, (long)option->min, (long)option->max);
    *(int64_t *)at = number;
    return IDEM_OK;
}

static enum idem_status
set_word(const struct option *option, const char *const *words, size_t count,
         const char *value, size_t *index, struct idem_error *err)
{
    char list[80] = "";
    size_t len = 0;

    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(value, words[i]) == 0) {
            *index = i;
            return IDEM_OK;
        }
        snprintf(list + len, sizeof(list) - len, "%s%s", i ? " or " : "",
                 words[i]);
        len = strlen(list);
    }
    return idem__fail(err, IDEM_ERR_INVALID, "%s is %s, not \"%.60s\"",
                      option->shown.name, list, value);
}

static enum idem_status
set_option(struct server_config *config, const struct option *option,
           const char *value, struct idem_error *err)
{
    static const char *const answers[] = {"no", "yes", "off",   "on",
                                          "0",  "1",   "false", "true"};
    static const char *const formats[] = {"logfmt", "json"};
    static const char *const levels[] = {"debug", "info", "warning", "error"};
    void *at = field(config, option);
    enum idem_status status;
    size_t index = 0;

    switch (option->kind) {
    case TEXT:
        if (value[0] == '\0')
            return idem__fail(err, IDEM_ERR_INVALID, "%s has no value",
                              option->shown.name);
        return idem__text_set(at, value, err);
    case YES_NO:
        status = set_word(option, answers, 8, value, &index, err);
        if (status == IDEM_OK)
            *(bool *)at = index % 2 == 1;
        return status;
    case FORMAT:
        status = set_word(option, formats, 2, value, &index, err);
        if (status == IDEM_OK)
            config->log_format = (enum log_format)index;
        return status;
    case LEVEL:
        status = set_word(option, levels, 4, value, &index, err);
        if (status == IDEM_OK)
            config->log_level = (enum log_level)index;
        return status;
    case IDS:
        return idem__ids_option_set(at, option->shown.name, value, err);
    case NUMBER:
    case SIZE:
    case TIME:
    case MODE:
        break;
    }
    return set_number(option, at, value, err);
}

/* Names may be written with _ instead of -. */
static const struct option *
find_option(const char *name)
{
    char wanted[NAME_MAX_LEN];
    size_t len = strlen(name);

    if (len >= sizeof(wanted))
        return NULL;
    for (size_t i = 0; i <= len; i++)
        wanted[i] = name[i] == '_' ? '-' : name[i];
    for (size_t i = 0; i < OPTIONS; i++) {
        if (strcasecmp(options[i].shown.name, wanted) == 0)
            return &options[i];
    }
    return NULL;
}

static enum idem_status
no_option(const char *name, struct idem_error *err)
{
    char word[NAME_MAX_LEN];
    struct idem__guess guess = {word, 0, NULL, 0};

    while (guess.len < sizeof(word) && name[guess.len]) {
        word[guess.len] = name[guess.len] == '_' ? '-' : name[guess.len];
        guess.len++;
    }
    for (size_t i = 0; i < OPTIONS; i++)
        idem__guess(&guess, options[i].shown.name);
    return guess.name
               ? idem__fail(err, IDEM_ERR_INVALID,
                            "there is no option \"%.60s\"; did you mean "
                            "\"%s\"?",
                            name, guess.name)
               : idem__fail(err, IDEM_ERR_INVALID,
                            "there is no option \"%.60s\": idem help serve "
                            "lists them",
                            name);
}

enum idem_status
server_config_set(struct server_config *config, const char *name,
                  const char *value, struct idem_error *err)
{
    const struct option *option = find_option(name);

    return option ? set_option(config, option, value, err)
                  : no_option(name, err);
}

/* ---- where values come from ------------------------------------------ */

/* Split a line into name and value, in place. False: the line is empty. */
static bool
split_line(char *line, char **name, char **value)
{
    char *equals, *end;

    line += strspn(line, " \t");
    if (*line == '\0' || *line == '#')
        return false;
    equals = strchr(line, '=');
    *name = line;
    *value = NULL;
    end = equals ? equals : line + strlen(line);
    while (end > line && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (equals) {
        *value = equals + 1 + strspn(equals + 1, " \t");
        /* A comment after a value needs a space before its #, because URLs
         * contain #. */
        for (char *c = *value; *c; c++) {
            if (*c == '#' && (c == *value || c[-1] == ' ' || c[-1] == '\t')) {
                *c = '\0';
                break;
            }
        }
        for (char *c = *value + strlen(*value);
             c > *value && (c[-1] == ' ' || c[-1] == '\t'); c--)
            c[-1] = '\0';
    }
    *end = '\0';
    return true;
}

static enum idem_status
set_line(struct server_config *config, char *line, size_t number,
         size_t *set_on, struct idem_error *err)
{
    const struct option *option;
    char *name, *value;

    if (!split_line(line, &name, &value))
        return IDEM_OK;
    if (!value)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%.60s\" is not a line of the form: name = value",
                          name);
    option = find_option(name);
    if (option && set_on[option - options])
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s is already set on line %zu; remove one of them",
                          option->shown.name, set_on[option - options]);
    if (option)
        set_on[option - options] = number;
    return server_config_set(config, name, value, err);
}

enum idem_status
server_config_text(struct server_config *config, const char *file,
                   struct idem_bytes text, struct idem_error *err)
{
    const char *at = text.data, *all_end = at + text.len;
    enum idem_status status = IDEM_OK;
    size_t set_on[OPTIONS] = {0};
    struct idem_error why = {0};
    size_t number = 0;

    while (at < all_end && status == IDEM_OK) {
        const char *end = memchr(at, '\n', (size_t)(all_end - at));
        size_t len = (size_t)((end ? end : all_end) - at);
        char line[4096];

        number++;
        if (len > 0 && at[len - 1] == '\r')
            len--;
        if (len >= sizeof(line) || memchr(at, '\0', len)) {
            status = idem__fail(&why, IDEM_ERR_INVALID,
                                "the line is too long or holds a NUL");
        } else {
            memcpy(line, at, len);
            line[len] = '\0';
            status = set_line(config, line, number, set_on, &why);
        }
        at = end ? end + 1 : all_end;
    }
    if (status == IDEM_OK)
        return IDEM_OK;
    return idem__fail(err, status, "%s: line %zu: %s", file, number, why.text);
}

enum idem_status
server_config_file(struct server_config *config, const char *file,
                   struct idem_error *err)
{
    FILE *in = fopen(file, "re");
    enum idem_status status;
    char *text;
    size_t len;

    if (!in)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "cannot read the configuration file %s: %s; correct "
                          "--config",
                          file, strerror(errno));
    text = malloc(FILE_MAX + 1);
    len = text ? fread(text, 1, FILE_MAX + 1, in) : 0;
    if (!text)
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    else if (ferror(in) || len > FILE_MAX)
        status = idem__fail(err, IDEM_ERR_INVALID, "%s: %s", file,
                            len > FILE_MAX ? "over 1 MiB" : strerror(errno));
    else
        status = server_config_text(config, file,
                                    (struct idem_bytes){text, len}, err);
    free(text);
    fclose(in);
    return status;
}

enum idem_status
server_config_environment(struct server_config *config, struct idem_error *err)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        char name[NAME_MAX_LEN + 8] = "IDEM_";
        struct idem_error why;
        const char *value;
        size_t len = 5;

        for (const char *c = options[i].shown.name; *c; c++)
            name[len++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        name[len] = '\0';
        value = getenv(name);
        if (value && set_option(config, &options[i], value, &why) != IDEM_OK)
            return idem__fail(err, why.status, "variable %s: %s", name,
                              why.text);
    }
    return IDEM_OK;
}
