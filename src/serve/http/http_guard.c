/*
 * http_guard.c - check where a request comes from, and who sent it.
 *
 * A server on loopback needs no credentials, so a web page in the user's
 * browser must not be able to use it. Four checks prevent that. The Host header
 * must name this machine, so a foreign name that resolves to 127.0.0.1 is
 * refused. An Origin must be this server's own. If the browser says where a
 * request comes from (Sec-Fetch-Site), it must not be another site. A body must
 * be JSON, which no form and no simple cross-site request can send.
 */
#include "http_inner.h"

#include "../../base/address.h"
#include "../core/listen.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *
header(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND,
                                       name);
}

#define BAD_NAME (1u << 30)
#define REPEATED (1u << 31)

/* Headers that decide something must not be repeated. */
static enum MHD_Result
count_header(void *arg, enum MHD_ValueKind kind, const char *name,
             const char *value)
{
    static const char *const single[] = {"Host",
                                         "Origin",
                                         "Authorization",
                                         "Content-Type",
                                         "Content-Length",
                                         "Transfer-Encoding",
                                         HTTP_SECRET_HEADER};
    unsigned *seen = arg;

    (void)kind;
    (void)value;
    if (strpbrk(name, " \t"))
        *seen |= BAD_NAME;
    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++) {
        if (strcasecmp(name, single[i]) != 0)
            continue;
        if (*seen & 1u << i)
            *seen |= REPEATED;
        *seen |= 1u << i;
    }
    return MHD_YES;
}

/* ---- from where ------------------------------------------------------ */

static bool
names_loopback(const char *host)
{
    struct idem__address address;
    char name[64];

    if (idem__address_read(host, strlen(host), &address) ||
        address.host.len >= sizeof(name))
        return false;
    memcpy(name, address.host.data, address.host.len);
    name[address.host.len] = 0;
    return server_is_loopback(name);
}

static bool
check_host(struct http_request *request, const char *version)
{
    const char *host = header(request, "Host");
    bool open = !credentials_needed(request->http->server->credentials);

    if (!host && strcmp(version, "HTTP/1.1") == 0)
        return http_fail(request, IDEM_PROBLEM_INVALID,
                         "the Host header is missing");
    if (!host || !open || !request->daemon->loopback || names_loopback(host))
        return true;
    return http_fail(request, IDEM_PROBLEM_HOST,
                     "this server listens on loopback and answers to "
                     "localhost, 127.0.0.1 and [::1] only");
}

/* Links on other pages may lead to the page about a problem, and to the
 * console, which requests all its data itself. */
static bool
may_be_linked(const struct http_request *request)
{
    return request->route && (request->route->action == HTTP_PAGE ||
                              request->route->action == HTTP_PROBLEM);
}

static bool
check_origin(struct http_request *request)
{
    const char *origin = header(request, "Origin");
    const char *site = header(request, "Sec-Fetch-Site");
    const char *host = header(request, "Host");
    const char *from = NULL;

    if (origin && strncasecmp(origin, "http://", 7) == 0)
        from = origin + 7;
    else if (origin && strncasecmp(origin, "https://", 8) == 0)
        from = origin + 8;
    if (origin && (!from || !host || strcasecmp(from, host) != 0))
        return http_fail(request, IDEM_PROBLEM_ORIGIN,
                         "the Origin header names another site");
    if (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0 &&
        !may_be_linked(request))
        return http_fail(
            request, IDEM_PROBLEM_ORIGIN,
            "the Sec-Fetch-Site header says that a page of another "
            "site sent this request");
    return true;
}

/* The length of a body must be unambiguous. Otherwise a proxy in front may read
 * another length and take the rest for another request. */
static bool
check_framing(struct http_request *request)
{
    const char *coding = header(request, "Transfer-Encoding");

    if (!coding || (strcasecmp(coding, "chunked") == 0 &&
                    !header(request, "Content-Length")))
        return true;
    request->refuse_at_once = true;
    return http_fail(request, IDEM_PROBLEM_INVALID,
                     "give a Content-Length, or Transfer-Encoding: chunked");
}

static bool
check_media_type(struct http_request *request)
{
    const char *type = header(request, "Content-Type");
    const char *length = header(request, "Content-Length");
    bool body = header(request, "Transfer-Encoding") ||
                (length && strtoull(length, NULL, 10) > 0);
    size_t len = type ? strcspn(type, "; \t") : 0;

    if (type && len == 16 && strncasecmp(type, "application/json", 16) == 0)
        return true;
    if (!type && !body)
        return true;
    return http_fail(request, IDEM_PROBLEM_MEDIA_TYPE,
                     "send Content-Type: application/json");
}

static bool
check_length(struct http_request *request)
{
    const char *length = header(request, "Content-Length");

    if (!length || strtoull(length, NULL, 10) <= request->http->max_body)
        return true;
    request->refuse_at_once = true;
    return http_fail(request, IDEM_PROBLEM_TOO_LARGE,
                     "the body has %.20s bytes, the limit is %zu", length,
                     request->http->max_body);
}

/* ---- by whom --------------------------------------------------------- */

/* "Bearer name:secret" or "Basic base64(name:secret)" into `out`. */
static bool
read_authorization(const char *value, char *out, size_t room, size_t *len)
{
    if (strncasecmp(value, "Bearer ", 7) == 0) {
        *len = strlen(value + 7);
        if (*len >= room)
            return false;
        memcpy(out, value + 7, *len);
        return true;
    }
    return strncasecmp(value, "Basic ", 6) == 0 &&
           sodium_base642bin((unsigned char *)out, room, value + 6,
                             strlen(value + 6), NULL, len, NULL,
                             sodium_base64_VARIANT_ORIGINAL) == 0;
}

void
http_source(const struct http_request *request, struct audit_source *source)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        request->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

    audit_note_address(
        source, request->principal ? principal_name(request->principal) : "",
        info ? info->client_addr : NULL);
}

/* The body of a request without a valid credential is not read, so every SETTLE
 * counts as one with an outcome. */
static void
log_stranger(struct http_request *request, const char *why)
{
    const struct http_route *route = request->route;
    const struct idem_op op = {
        .verb = route ? route->verb : 0,
        .outcome = route && route->verb == IDEM_SETTLE ? IDEM_STATE_FAILED : 0};
    bool lists = route && http_lists(route->action);
    const struct server_wish wish = {
        .what = lists                                     ? ASKS_LIST
                : route && route->action == HTTP_ROLLBACK ? ASKS_ROLLBACK
                                                          : ASKS_OP,
        .list = lists ? route->name : NULL,
        .op = &op};
    struct audit_source source;

    http_source(request, &source);
    if (route)
        server_log_refusal(request->http->server, &wish, &source, "http", why);
}

static bool
refuse_stranger(struct http_request *request, const char *why)
{
    log_stranger(request, why);
    return http_fail(request, IDEM_PROBLEM_UNAUTHORIZED, "%s", why);
}

static bool
login(struct http_request *request, const char *value)
{
    struct credentials *all = request->http->server->credentials;
    struct idem_bytes name = {"", 0}, secret;
    char plain[1024];
    const char *colon;
    size_t len = 0;
    bool read = read_authorization(value, plain, sizeof(plain), &len);

    if (read) {
        colon = memchr(plain, ':', len);
        secret = (struct idem_bytes){plain, len};
        if (colon) {
            name = (struct idem_bytes){plain, (size_t)(colon - plain)};
            secret = (struct idem_bytes){colon + 1, len - name.len - 1};
        }
        request->principal = credentials_login(all, name, secret);
    }
    sodium_memzero(plain, sizeof(plain));
    return request->principal ||
           http_wrong_secret(
               request, read ? "the name or the secret is wrong"
                             : "send Authorization: Bearer name:secret, or "
                               "Basic");
}

bool
http_wrong_secret(struct http_request *request, const char *why)
{
    struct audit_source source;

    http_source(request, &source);
    server_log_wrong_secret(request->http->server, &source, "http");
    return http_fail(request, IDEM_PROBLEM_UNAUTHORIZED, "%s", why);
}

static bool
is_open(const struct http_route *route)
{
    return route && http_is_open(route->action);
}

static bool
is_metrics(const struct http_route *route)
{
    return route && route->action == HTTP_METRICS;
}

static bool
check_caller(struct http_request *request)
{
    struct credentials *all = request->http->server->credentials;
    const char *value = header(request, "Authorization");

    bool only = request->http->server->config->http_metrics_only;
    char common_name[256] = "";

    request->from_page = header(request, HTTP_PAGE_HEADER) != NULL;
    if (request->http->server->config->tls_client_ca &&
        !http_tls_peer(request->connection, common_name, sizeof(common_name)))
        return refuse_stranger(request,
                               "show a client certificate that an authority of "
                               "tls-client-ca signed");
    if (!credentials_needed(all)) {
        if (only && !is_open(request->route) && !is_metrics(request->route))
            return refuse_stranger(
                request,
                "no credentials are set, so this port serves "
                "health and metrics only: write a file with lines "
                "`name secret monitor|view|use|operate [scope ...]`, chmod 600 "
                "it, and start with --credentials FILE");
        request->principal = credentials_anyone(all, SERVER_USE);
        return true;
    }
    if (!value && *common_name)
        request->principal = credentials_certificate(all, common_name);
    if (!value && !request->principal)
        request->principal = http_session_find(request);
    if (request->principal || is_open(request->route))
        return true;
    if (!value)
        return refuse_stranger(
            request, "send Authorization: Bearer name:secret, or Basic");
    return login(request, value);
}

bool
http_guard(struct http_request *request, const char *version)
{
    unsigned seen = 0;

    MHD_get_connection_values(request->connection, MHD_HEADER_KIND,
                              count_header, &seen);
    if (seen & BAD_NAME)
        return http_fail(request, IDEM_PROBLEM_INVALID,
                         "the name of a header has a space");
    if (seen & REPEATED)
        return http_fail(request, IDEM_PROBLEM_INVALID,
                         "this header must not be repeated");
    return check_framing(request) && check_host(request, version) &&
           check_origin(request) && check_caller(request) &&
           check_length(request) && check_media_type(request);
}
