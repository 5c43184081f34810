/*
 * nginx_paths.c - write the locations that the gateway answers itself: tokens,
 * the status of a key, the policy of the routes, and the script for pages.
 */
#include "nginx_conf.h"

#include "../../base/problem.h"

#include <stdio.h>
#include <string.h>

/* JSON in single quotes in nginx.conf. A dollar sign would begin a variable, so
 * it is removed from the sources of a key. */
static bool
add_json_text(struct idem_buf *out, const char *value)
{
    bool good = idem_buf_add(out, "\"", 1);

    for (; good && *value; value++) {
        if (*value == '$')
            continue;
        if (*value == '"')
            good = idem_buf_add_text(out, "\\\\\"");
        else if (*value == '\\')
            good = idem_buf_add_text(out, "\\\\\\\\");
        else if (*value == '\'')
            good = idem_buf_add_text(out, "\\\'");
        else
            good = idem_buf_add(out, value, 1);
    }
    return good && idem_buf_add(out, "\"", 1);
}

static bool
add_link(struct idem_buf *out, const char *page)
{
    char link[1200];

    snprintf(link, sizeof(link), "<%s>; rel=\"describedby\"", page);
    return gateway_add_quoted(out, link);
}

/* The response to a client that sends too many requests: a problem, like other
 * errors. */
static bool
add_limit(const struct gateway_config *config, const char *name,
          enum idem__problem which, struct idem_buf *out)
{
    const struct idem__problem_type *problem = idem__problem_type(which);
    const char *docs = gateway_value(config, &config->base, "docs");
    const char *base =
        config->problem_base ? config->problem_base : IDEM_GATEWAY_PROBLEM_BASE;
    char page[1100], answer[1600];

    if (docs)
        snprintf(page, sizeof(page), "%s#%s", docs, problem->name);
    else
        snprintf(page, sizeof(page), "%s%s", base, problem->name);
    snprintf(answer, sizeof(answer),
             " always;\n"
             "            return %u "
             "'{\"type\":\"%s%s\",\"title\":\"%s\",\"status\":%u,\"detail\":"
             "\"This address sends too many requests. Try again after a "
             "while.\",\"retryable\":%s,\"class\":\"%s\",\"instance\":\"$idem_"
             "instance\",\"documentation\":",
             problem->status, base, problem->name, problem->title,
             problem->status, problem->retryable ? "true" : "false",
             idem__class_name(problem->class));
    return idem_buf_printf(out, "\n        location @%s_limit {\n", name) &&
           idem_buf_add_text(
               out, "            default_type application/problem+json;\n"
                    "            add_header Retry-After 1 always;\n"
                    "            add_header Cache-Control no-store always;\n"
                    "            add_header Link ") &&
           add_link(out, page) && idem_buf_add_text(out, answer) &&
           add_json_text(out, page) &&
           idem_buf_add_text(out, "}';\n        }\n");
}

/* The location that issues tokens must have the routes' scope; otherwise its
 * tokens would belong to another caller. */
static bool
add_own_path(const struct gateway_config *config, const char *path,
             const char *name, enum idem__problem limit, const char *directive,
             struct idem_buf *out)
{
    static const char *const same[] = {
        "scope", "credential", "anonymous",      "token-ttl",
        "docs",  "profile",    "replayed-header"};
    bool good =
        add_limit(config, name, limit, out) &&
        idem_buf_add_text(out, "\n        location = ") &&
        gateway_add_quoted(out, path) &&
        idem_buf_printf(out,
                        " {\n"
                        "            limit_req zone=%s burst=100 nodelay;\n"
                        "            limit_req_status 429;\n"
                        "            error_page 429 = @%s_limit;\n"
                        "            %s;\n",
                        name, name, directive);

    if (gateway_auth_of(config, &config->base))
        good = good && gateway_add_auth_request(config->route_count, out);
    for (size_t i = 0; good && i < sizeof(same) / sizeof(same[0]); i++) {
        const char *value = gateway_value(config, &config->base, same[i]);

        if (value)
            good =
                gateway_add_option(out, gateway_option_number(same[i]), value);
    }
    return good;
}

static bool
add_token_path(const struct gateway_config *config, struct idem_buf *out)
{
    return add_own_path(config, config->token_path, "idem_token",
                        IDEM_PROBLEM_TOO_MANY_TOKENS, "idem_issue_token",
                        out) &&
           idem_buf_add_text(out, "        }\n");
}

/* It looks for a key where the routes do, and in ?key=. */
static bool
add_status_path(const struct gateway_config *config, struct idem_buf *out)
{
    const char *key = gateway_value(config, &config->base, "key");
    const char *token = gateway_value(config, &config->base, "token");
    const char *quoted = gateway_value(config, &config->base, "key-quoted");
    bool good =
        add_own_path(config, config->status_path, "idem_status",
                     IDEM_PROBLEM_TOO_MANY_QUESTIONS, "idem_status", out) &&
        idem_buf_add_text(out, "            idem_key");

    if (!key || strcmp(key, "off") != 0)
        good = good &&
               gateway_add_words(
                   out, key ? key : gateway_default_key(config, &config->base));
    good = good && idem_buf_add_text(out, " \"$arg_key\";\n");
    if (quoted)
        good = good && gateway_add_option(
                           out, gateway_option_number("key-quoted"), quoted);
    if (token || config->token_path)
        good =
            good && gateway_add_option(out, gateway_option_number("token"),
                                       token ? token : GATEWAY_TOKEN_SOURCES);
    return good && idem_buf_add_text(out, "        }\n");
}

/* Settings of a route that clients can read, and their defaults; the default
 * key is that of the profile. */
static const char *const policies[][2] = {
    {"key", NULL},           {"methods", "POST PATCH"}, {"required", "off"},
    {"mode", "strict"},      {"ttl", "86400000ms"},     {"wait", "0ms"},
    {"fingerprint", "body"}, {"duplicate", "replay"},   {"gated", "on"}};
#define POLICIES (sizeof(policies) / sizeof(policies[0]))

const char *
gateway_effective(const struct gateway_config *config,
                  const struct gateway_route *route, const char *name)
{
    const char *value = gateway_value(config, route, name);

    for (size_t i = 0; !value && i < POLICIES; i++)
        if (strcmp(policies[i][0], name) == 0)
            value =
                i == 0 ? gateway_default_key(config, route) : policies[i][1];
    return value;
}

static bool
add_policy_route(const struct gateway_config *config,
                 const struct gateway_route *route, struct idem_buf *out)
{
    bool good = idem_buf_add_text(out, "{\"route\":") &&
                add_json_text(out, route->path);

    if (route->host)
        good = good && idem_buf_add_text(out, ",\"host\":") &&
               add_json_text(out, route->host);
    for (size_t i = 0; good && i < POLICIES; i++)
        good = idem_buf_printf(out, ",\"%s\":", policies[i][0]) &&
               add_json_text(out,
                             gateway_effective(config, route, policies[i][0]));
    return good && idem_buf_add(out, "}", 1);
}

/* The IETF draft asks every resource to publish its rules, above all the
 * expiry. */
static bool
add_policy_path(const struct gateway_config *config, struct idem_buf *out)
{
    bool good = idem_buf_add_text(out, "\n        location = ") &&
                gateway_add_quoted(out, config->policy_path) &&
                idem_buf_add_text(out, " {\n"
                                       "            default_type "
                                       "application/json;\n"
                                       "            return 200 '{\"routes\":[");

    for (size_t i = 0; good && i < config->route_count; i++)
        good = (i == 0 || idem_buf_add(out, ",", 1)) &&
               add_policy_route(config, &config->routes[i], out);
    return good && idem_buf_add_text(out, "]}';\n        }\n");
}

/* The workers' user may not be able to read idem's installation folder, so this
 * is a copy in the gateway's folder. */
static bool
add_page_script(const struct gateway_config *config,
                const struct gateway_place *place, struct idem_buf *out)
{
    return idem_buf_add_text(out, "\n        location = ") &&
           gateway_add_quoted(out, config->page_script) &&
           idem_buf_add_text(out, " {\n            alias ") &&
           gateway_add_quoted(out, place->script ? place->script : "idem.js") &&
           idem_buf_add_text(out, ";\n"
                                  "            types { }\n"
                                  "            default_type text/javascript;\n"
                                  "            charset utf-8;\n"
                                  "            charset_types text/javascript;\n"
                                  "        }\n");
}

bool
gateway_add_own_paths(const struct gateway_config *config,
                      const struct gateway_place *place, struct idem_buf *out)
{
    bool good = true;

    if (config->token_path)
        good = good && add_token_path(config, out);
    if (config->status_path)
        good = good && add_status_path(config, out);
    if (config->page_script)
        good = good && add_page_script(config, place, out);
    if (config->policy_path)
        good = good && add_policy_path(config, out);
    return good;
}
