/*
 * gateway_options.c - the options of a gateway and of its routes, and the
 * values that they take.
 */
#include "gateway.h"

#include "../../base/guess.h"
#include "../../base/units.h"
#include "../../serve/http/problem_page.h"
#include "../module/result.h"
#include "../module/source.h"
#include "../module/times.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct gateway_option gateway_options[GATEWAY_OPTIONS + 1] = {
    {"mode", "idem_mode", GATEWAY_WORD, "strict|loose",
     "strict: at most one execution; loose: a failure may be retried"},
    {"wait", "idem_wait", GATEWAY_TIME, "TIME",
     "how long a duplicate waits for the first one's response (default 0)"},
    {"lease", "idem_lease", GATEWAY_TIME, "TIME",
     "how long a claim holds without being renewed (default 30s)"},
    {"ttl", "idem_ttl", GATEWAY_TIME, "TIME",
     "how long a response is kept (default 24h)"},
    {"key", "idem_key", GATEWAY_WORDS, "SOURCES",
     "where to find the key: $http_idempotency_key (default), any nginx "
     "variable, json:PATH, form:NAME, xml:ELEMENT; the first source that has a "
     "value is used; content: caller, method, path and body together are the "
     "key (needs --ttl)"},
    {"profile", "idem_profile", GATEWAY_WORD, "ietf|stripe|oasis|paypal",
     "the API whose header names and statuses to use (default ietf)"},
    {"replayed-header", "idem_replayed_header", GATEWAY_WORDS, "HEADERS",
     "also mark replays with these headers (\"NAME: true\")"},
    {"dedupe-content", "idem_dedupe_content", GATEWAY_TIME, "TIME",
     "refuse a request if its caller sent the same content under another key "
     "within this time (default 0: never)"},
    {"scope", "idem_scope", GATEWAY_WORD, "SOURCE",
     "the source of the caller's name: an nginx variable such as $remote_user, "
     "json:PATH, form:NAME, xml:ELEMENT; const:NAME for one scope (default: a "
     "digest of the credential)"},
    {"credential", "idem_credential", GATEWAY_WORDS, "HEADERS",
     "headers with the caller's credential; the digest is made from the first "
     "one that is present (default: authorization x-api-key cookie)"},
    {"required", "idem_required", GATEWAY_SWITCH, NULL,
     "refuse requests without a key, or without the scope that --scope "
     "names"},
    {"anonymous", "idem_anonymous", GATEWAY_SWITCH, NULL,
     "on: callers without a credential share a scope; off: they are refused "
     "(default on). With --scope and without this option, requests that have "
     "no scope pass unprotected"},
    {"key-quoted", "idem_key_quoted", GATEWAY_SWITCH, NULL,
     "accept the key only in double quotes, as the draft requires"},
    {"methods", "idem_methods", GATEWAY_WORDS, "METHODS",
     "methods that are protected (default: POST PATCH)"},
    {"token", "idem_token", GATEWAY_WORDS, "SOURCES",
     "where to find a one-time token (default with a token path: $http_token "
     "$http_idempotency_token $cookie_idempotency_token)"},
    {"token-ttl", "idem_token_ttl", GATEWAY_TIME, "TIME",
     "how long a token can be used (default 5m)"},
    {"next-token", "idem_next_token", GATEWAY_SWITCH, NULL,
     "with every response to a request with a token, send a token for the next "
     "request in the header Idempotency-Token"},
    {"page-token", "idem_page_token", GATEWAY_SWITCH, NULL,
     "give the service a token with every GET, in the header Idem-Token, for "
     "the forms that it renders"},
    {"inject-token", "idem_inject_token", GATEWAY_WORD, "FIELD",
     "put a hidden field with a token into the POST forms of the service's "
     "pages, and take it from there"},
    {"max-body", "idem_max_body", GATEWAY_SIZE, "SIZE",
     "refuse larger protected requests (default 1m)"},
    {"max-answer", "idem_max_answer", GATEWAY_SIZE, "SIZE",
     "do not keep larger responses for replay (default 1m)"},
    {"close-delimited", "idem_close_delimited", GATEWAY_SWITCH, NULL,
     "treat a response without a length as complete when the connection ends "
     "(default: its outcome is unknown)"},
    {"release", "idem_release", GATEWAY_WORDS, "STATUSES",
     "responses after which the request may run again: 425 429 500-599; off "
     "for none"},
    {"keep-header", "idem_keep_header", GATEWAY_WORDS, "HEADERS",
     "also replay these headers, which are left out by default: set-cookie"},
    {"drop-header", "idem_drop_header", GATEWAY_WORDS, "HEADERS",
     "do not replay these headers"},
    {"fail-open", "idem_fail_open", GATEWAY_SWITCH, NULL,
     "let requests pass unprotected while the engine is unavailable (loose "
     "only)"},
    {"duplicate", "idem_duplicate", GATEWAY_WORDS, "WHAT",
     "the response to a duplicate: replay (default), refuse, answer STATUS "
     "\"TEXT\""},
    {"fingerprint", "idem_fingerprint", GATEWAY_WORDS, "WHAT",
     "what makes two requests the same: body (default), json, json PATH..., "
     "off"},
    {"docs", "idem_docs", GATEWAY_WORD, "URL",
     "your own page about idempotency keys; problems link to it"},
    {"gated", "idem", GATEWAY_SWITCH, NULL, "protect this route (default on)"},
    {"timeout", "proxy_read_timeout", GATEWAY_TIME, "TIME",
     "how long to wait for data from the service (default 60s)"},
    {"connect-timeout", "proxy_connect_timeout", GATEWAY_TIME, "TIME",
     "how long to wait for a connection to the service (default 5s)"},
    {"verify", "proxy_ssl_verify", GATEWAY_SWITCH, NULL,
     "check the certificate of an https:// service; needs --ca"},
    {"ca", "proxy_ssl_trusted_certificate", GATEWAY_WORD, "FILE",
     "the certificates of the authorities that may have signed it, an absolute "
     "path"},
    {0},
};

struct setting {
    const char *name;
    size_t offset;
    enum gateway_kind kind;
};

#define TEXT(name, field)                                                      \
    {                                                                          \
        name, offsetof(struct gateway_config, field), GATEWAY_WORD             \
    }

static const struct setting settings[] = {
    TEXT("listen", listen),
    TEXT("store", store),
    TEXT("engine", engine),
    TEXT("http", http),
    TEXT("seal-key", seal_key),
    TEXT("credentials", credentials),
    TEXT("tls-cert", tls_cert),
    TEXT("tls-key", tls_key),
    TEXT("token-path", token_path),
    TEXT("token-rate", token_rate),
    TEXT("page-script", page_script),
    TEXT("status-path", status_path),
    TEXT("status-rate", status_rate),
    TEXT("policy-path", policy_path),
    TEXT("problem-base", problem_base),
    TEXT("access-log", access_log),
    TEXT("nginx", nginx),
    TEXT("module", module),
    TEXT("folder", folder),
    TEXT("socket", socket),
    {"log-keys", offsetof(struct gateway_config, log_keys), GATEWAY_SWITCH},
    {"console", offsetof(struct gateway_config, console), GATEWAY_SWITCH},
    {"forwarded", offsetof(struct gateway_config, forwarded), GATEWAY_SWITCH},
    {"workers", offsetof(struct gateway_config, workers), GATEWAY_SIZE},
    {"drain-timeout", offsetof(struct gateway_config, drain_ms), GATEWAY_TIME},
    {"engine-restarts", offsetof(struct gateway_config, engine_restarts),
     GATEWAY_SIZE},
};

void
gateway_config_init(struct gateway_config *config)
{
    memset(config, 0, sizeof(*config));
    config->drain_ms = 10000;
    config->engine_restarts = 10;
}

static void
clear_route(struct gateway_route *route)
{
    free(route->path);
    free(route->host);
    free(route->upstream);
    free(route->auth);
    for (size_t i = 0; i < GATEWAY_OPTIONS; i++)
        free(route->values[i]);
    memset(route, 0, sizeof(*route));
}

void
gateway_config_clear(struct gateway_config *config)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (settings[i].kind == GATEWAY_WORD)
            free(*(char **)((char *)config + settings[i].offset));
    }
    clear_route(&config->base);
    for (size_t i = 0; i < config->route_count; i++)
        clear_route(&config->routes[i]);
    memset(config, 0, sizeof(*config));
}

/* Control characters are not allowed in a configuration. */
static bool
has_control(const char *value)
{
    for (; *value; value++) {
        if ((unsigned char)*value < 0x20 || *value == 0x7f)
            return true;
    }
    return false;
}

static bool
switch_parse(const char *value, const char **word)
{
    static const char *const yes[] = {"on", "yes", "true", "1"};
    static const char *const no[] = {"off", "no", "false", "0"};

    for (size_t i = 0; i < 4; i++) {
        if (strcmp(value, yes[i]) == 0 || strcmp(value, no[i]) == 0) {
            *word = strcmp(value, yes[i]) == 0 ? "on" : "off";
            return true;
        }
    }
    return false;
}

/* "strict|loose" lists all values of an option. */
static bool
is_one_of(const char *words, const char *value)
{
    size_t len = strlen(value);

    while (words) {
        if (strncmp(words, value, len) == 0 &&
            (words[len] == '|' || words[len] == '\0'))
            return true;
        words = strchr(words, '|');
        words = words ? words + 1 : NULL;
    }
    return false;
}

bool
gateway_word_next(const char **text, char word[GATEWAY_WORD_MAX])
{
    const char *at = *text + strspn(*text, " ");
    bool quoted = false;
    size_t len = 0;

    *text = at;
    for (; *at && (quoted || *at != ' '); at++) {
        if (*at == '"')
            quoted = !quoted;
        else if (len + 1 < GATEWAY_WORD_MAX)
            word[len++] = *at;
    }
    word[len] = '\0';
    if (at == *text)
        return false;
    *text = at;
    return true;
}

/* nginx would refuse it, too, but its message would not name our option. */
static enum idem_status
check_sources(const struct gateway_option *option, const char *value,
              struct idem_error *err)
{
    bool scope = strcmp(option->name, "scope") == 0;
    char flaw[GATEWAY_SOURCE_FLAW_MAX], word[GATEWAY_WORD_MAX];
    const char *rest = value;

    bool good = true;

    if (scope)
        good = gateway_source_check(idem_text(value), GATEWAY_FOR_SCOPE, flaw);
    else if (strcmp(option->name, "key") != 0 &&
             strcmp(option->name, "token") != 0)
        return IDEM_OK;
    else if (strcmp(value, "off") != 0)
        while (good && gateway_word_next(&rest, word))
            good = gateway_source_check(
                idem_text(word),
                option->name[0] == 'k' ? GATEWAY_FOR_KEY : GATEWAY_FOR_TOKEN,
                flaw);
    return good ? IDEM_OK
                : idem__fail(err, IDEM_ERR_INVALID, "%s: %s", option->name,
                             flaw);
}

static bool
is_field(const char *word)
{
    return word[strspn(word,
                       "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
                       "YZ0123456789_-.")] == '\0';
}

static bool
is_method(const char *word)
{
    char name[16] = "";

    for (size_t i = 0; word[i] && i < sizeof(name) - 1; i++)
        name[i] = (char)toupper((unsigned char)word[i]);
    return is_one_of("GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS|MKCOL|COPY|MOVE|"
                     "PROPFIND|PROPPATCH|LOCK|UNLOCK",
                     name);
}

static bool
is_duplicate(const char *word)
{
    return is_one_of("replay|refuse|answer", word);
}

static bool
is_fingerprint(const char *word)
{
    return is_one_of("body|json", word);
}

static bool
is_header(const char *word)
{
    return gateway_header_name_ok(idem_text(word));
}

/* 409, or 500-599 */
static bool
is_status(const char *word)
{
    int first, last, len = 0;

    if (sscanf(word, "%3d-%3d%n", &first, &last, &len) != 2 || word[len]) {
        len = 0;
        if (sscanf(word, "%3d%n", &first, &len) != 1 || word[len])
            return false;
        last = first;
    }
    return first >= 200 && first <= last && last <= 599;
}

/* Checks by the option's name, or by the name of its value in --help. */
static const struct {
    const char *of;
    bool (*is_good)(const char *word);
    const char *what;
    bool first; /* only the first word */
} words[] = {
    {"duplicate", is_duplicate, "replay, refuse or answer STATUS TEXT", true},
    {"fingerprint", is_fingerprint, "body, json [PATH ...] or off", true},
    {"FIELD", is_field,
     "the name of a field: letters, digits, \"_\", \"-\" and \".\"", false},
    {"HEADERS", is_header, "the name of a header", false},
    {"METHODS", is_method, "a method such as POST", false},
    {"STATUSES", is_status, "a status from 200 to 599, or a range: 500-599",
     false},
};

/* "503,425": say how it must be written. */
static enum idem_status
fail_word(const struct gateway_option *option, const char *value,
          const char *word, const char *what, struct idem_error *err)
{
    char spaced[GATEWAY_WORD_MAX];
    size_t len = 0;

    if (option->kind != GATEWAY_WORDS || !strpbrk(word, ",;"))
        return idem__fail(err, IDEM_ERR_INVALID, "%s: \"%s\" is not %s",
                          option->name, word, what);
    for (; *value && len + 1 < sizeof(spaced); value++) {
        bool gap = strchr(",; ", *value);

        if (!gap)
            spaced[len++] = *value;
        else if (len > 0 && spaced[len - 1] != ' ')
            spaced[len++] = ' ';
    }
    spaced[len] = '\0';
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s: \"%s\" is not %s; separate several with spaces: "
                      "'%s'",
                      option->name, word, what, spaced);
}

static enum idem_status
check_words(const struct gateway_option *option, const char *value,
            struct idem_error *err)
{
    char word[GATEWAY_WORD_MAX];

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *rest = value;

        bool more = option->value && strcmp(value, "off") != 0 &&
                    (strcmp(words[i].of, option->name) == 0 ||
                     strcmp(words[i].of, option->value) == 0);

        for (; more && gateway_word_next(&rest, word); more = !words[i].first) {
            if (!words[i].is_good(word))
                return fail_word(option, value, word, words[i].what, err);
        }
    }
    return IDEM_OK;
}

/* The module checks the same, but its messages name directives. */
static enum idem_status
check_range(const struct gateway_option *option, const char *value, int64_t ms,
            struct idem_error *err)
{
    for (int i = 0; i < GATEWAY_TIMES; i++) {
        if (strcmp(gateway_times[i].directive, option->directive) == 0 &&
            (ms < gateway_times[i].min || ms > gateway_times[i].max))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s of %s is out of range: give %s", option->name,
                              value, gateway_times[i].range);
    }
    return IDEM_OK;
}

static enum idem_status
set_option(struct gateway_route *route, size_t i, const char *value,
           struct idem_error *err)
{
    const struct gateway_option *option = &gateway_options[i];
    enum idem_status status;
    char text[32], flaw[IDEM__TIME_FLAW_LEN];
    int64_t number;

    switch (option->kind) {
    case GATEWAY_TIME:
        if (!idem__units_parse(IDEM__UNIT_TIME, value, &number))
            return idem__fail(err, IDEM_ERR_INVALID, "%s: \"%s\" %s",
                              option->name, value,
                              idem__time_flaw(option->name, value, flaw));
        status = check_range(option, value, number, err);
        if (status != IDEM_OK)
            return status;
        snprintf(text, sizeof(text), "%lldms", (long long)number);
        value = text;
        break;
    case GATEWAY_SIZE:
        if (!idem__units_parse(IDEM__UNIT_SIZE, value, &number))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s: \"%s\" is not a size such as 64k or 1m",
                              option->name, value);
        snprintf(text, sizeof(text), "%lld", (long long)number);
        value = text;
        break;
    case GATEWAY_SWITCH:
        if (!switch_parse(value, &value))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s must be on or off, not \"%s\"", option->name,
                              value);
        break;
    case GATEWAY_WORD:
        if (strchr(option->value, '|') && !is_one_of(option->value, value))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s: \"%s\" is not one of %s", option->name,
                              value, option->value);
        break;
    case GATEWAY_WORDS:
        break;
    }
    if (value[strspn(value, " ")] == '\0')
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: the value is empty; in a shell, put nginx's "
                          "$variables into single quotes",
                          option->name);
    status = check_sources(option, value, err);
    if (status == IDEM_OK)
        status = check_words(option, value, err);
    return status == IDEM_OK ? idem__text_set(&route->values[i], value, err)
                             : status;
}

static enum idem_status
set_global(struct gateway_config *config, const struct setting *setting,
           const char *value, struct idem_error *err)
{
    void *into = (char *)config + setting->offset;
    char flaw[IDEM__TIME_FLAW_LEN];
    const char *word;
    bool good = true;

    if (setting->kind == GATEWAY_WORD)
        return idem__text_set(into, value, err);
    if (setting->kind == GATEWAY_SWITCH) {
        if (!switch_parse(value, &word))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s must be on or off, not \"%s\"", setting->name,
                              value);
        *(bool *)into = strcmp(word, "on") == 0;
        return IDEM_OK;
    }
    if (setting->kind == GATEWAY_TIME &&
        !idem__units_parse(IDEM__UNIT_TIME, value, into))
        return idem__fail(err, IDEM_ERR_INVALID, "%s: \"%s\" %s", setting->name,
                          value, idem__time_flaw(setting->name, value, flaw));
    good = setting->kind == GATEWAY_TIME ||
           idem__units_parse(IDEM__UNIT_SIZE, value, into);
    return good
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_INVALID, "%s: \"%s\" is not a number",
                            setting->name, value);
}

static enum idem_status
set_auth(char **into, const char *value, struct idem_error *err)
{
    if (strcmp(value, "off") != 0 &&
        gateway_upstream_check(value, NULL) != IDEM_OK)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "auth-request: \"%s\" is neither a URL such as "
                          "http://127.0.0.1:9000/check nor \"off\"",
                          value);
    return idem__text_set(into, value, err);
}

static enum idem_status
no_setting(const char *name, bool in_route, struct idem_error *err)
{
    struct idem__guess guess = {name, strlen(name), NULL, 0};

    idem__guess(&guess, "upstream");
    idem__guess(&guess, "auth-request");
    idem__guess(&guess, "host");
    for (size_t i = 0; i < GATEWAY_OPTIONS; i++)
        idem__guess(&guess, gateway_options[i].name);
    for (size_t i = 0; !in_route && i < sizeof(settings) / sizeof(settings[0]);
         i++)
        idem__guess(&guess, settings[i].name);
    return guess.name
               ? idem__fail(err, IDEM_ERR_INVALID,
                            "there is no setting \"%.60s\"; did you mean "
                            "\"%s\"?",
                            name, guess.name)
               : idem__fail(err, IDEM_ERR_INVALID,
                            "there is no setting \"%.60s\": idem help gateway "
                            "lists them",
                            name);
}

enum idem_status
gateway_config_set(struct gateway_config *config, struct gateway_route *route,
                   const char *name, const char *value, struct idem_error *err)
{
    struct gateway_route *into = route ? route : &config->base;

    if (has_control(value))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: the value contains a control character", name);
    if (strcmp(name, "upstream") == 0)
        return idem__text_set(&into->upstream, value, err);
    if (strcmp(name, "auth-request") == 0)
        return set_auth(&into->auth, value, err);
    if (strcmp(name, "host") == 0)
        return idem__text_set(&into->host, value, err);
    for (size_t i = 0; i < GATEWAY_OPTIONS; i++) {
        if (strcmp(name, gateway_options[i].name) == 0)
            return set_option(into, i, value, err);
    }
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (strcmp(name, settings[i].name) == 0)
            return route ? idem__fail(err, IDEM_ERR_INVALID,
                                      "%s belongs before the first route", name)
                         : set_global(config, &settings[i], value, err);
    }
    return no_setting(name, route != NULL, err);
}
