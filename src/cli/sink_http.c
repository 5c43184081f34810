/*
 * sink_http.c - pass a message to an HTTP endpoint.
 *
 * The endpoint gets the record's id as Idempotency-Key, so that it (or a
 * gateway before it) can recognise duplicates, too, and the fence as
 * Idem-Fence.
 *
 * If a reused connection breaks before the response, libcurl would send the
 * request again on a new connection, although the endpoint may have executed
 * it. This file forbids that.
 */
#include "sink.h"

#include "../base/hex.h"
#include "../base/json_memory.h"
#include "../base/problem.h"
#include "../engine/engine.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define IDLE_MAX 64
#define PROBLEM_MAX 65536

struct http_sink {
    char *url;
    int64_t timeout_ms;
    pthread_mutex_t mutex;
    CURL *idle[IDLE_MAX]; /* kept with their open connections */
    int idle_count;
};

static bool
is_url(const char *text)
{
    CURLU *url = curl_url();
    bool fine = url && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK;

    curl_url_cleanup(url);
    return fine;
}

enum idem_status
http_sink_open(const char *url, int64_t timeout_ms, struct http_sink **out,
               struct idem_error *err)
{
    struct http_sink *sink;

    if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) ||
        !is_url(url))
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "--to \"%s\" is not a URL: give an http:// or https:// URL", url);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    sink = calloc(1, sizeof(*sink));
    if (sink)
        sink->url = strdup(url);
    if (!sink || !sink->url) {
        free(sink);
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    sink->timeout_ms = timeout_ms;
    pthread_mutex_init(&sink->mutex, NULL);
    *out = sink;
    return IDEM_OK;
}

void
http_sink_close(struct http_sink *sink)
{
    if (!sink)
        return;
    while (sink->idle_count > 0)
        curl_easy_cleanup(sink->idle[--sink->idle_count]);
    pthread_mutex_destroy(&sink->mutex);
    free(sink->url);
    free(sink);
}

static CURL *
borrow(struct http_sink *sink)
{
    CURL *curl = NULL;

    pthread_mutex_lock(&sink->mutex);
    if (sink->idle_count > 0)
        curl = sink->idle[--sink->idle_count];
    pthread_mutex_unlock(&sink->mutex);
    return curl ? curl : curl_easy_init();
}

static void
give_back(struct http_sink *sink, CURL *curl)
{
    pthread_mutex_lock(&sink->mutex);
    if (sink->idle_count < IDLE_MAX) {
        sink->idle[sink->idle_count++] = curl;
        curl = NULL;
    }
    pthread_mutex_unlock(&sink->mutex);
    curl_easy_cleanup(curl);
}

/* A structured-field string: printable ASCII in quotes. An id with other bytes
 * is sent as hex, which is just as unique. */
static void
key_header(const struct idem_message *m, char *out, size_t out_len)
{
    const uint8_t *id = m->id.data;
    size_t len = (size_t)snprintf(out, out_len, "Idempotency-Key: \"");
    bool plain = true;

    for (size_t i = 0; i < m->id.len; i++)
        plain = plain && id[i] >= 0x20 && id[i] < 0x7f;
    for (size_t i = 0; i < m->id.len && len + 4 < out_len; i++) {
        if (!plain) {
            idem__hex_write(&id[i], 1, out + len);
            len += 2;
            continue;
        }
        if (id[i] == '"' || id[i] == '\\')
            out[len++] = '\\';
        out[len++] = (char)id[i];
    }
    snprintf(out + len, out_len - len, "\"");
}

static bool
is_text(struct idem_bytes value)
{
    const uint8_t *at = value.data;

    for (size_t i = 0; i < value.len; i++) {
        if (at[i] < 0x20 || at[i] == 0x7f)
            return false;
    }
    return value.len < 500;
}

/* False: out of memory; the list is as it was. */
static bool
add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (longer)
        *list = longer;
    return longer != NULL;
}

/* NULL: out of memory. A request must not go without its key. */
static struct curl_slist *
make_headers(const struct idem_message *m)
{
    char line[1100];
    struct curl_slist *list = NULL;
    bool added;

    key_header(m, line, sizeof(line));
    added = add_header(&list, line);
    snprintf(line, sizeof(line), "Idem-Fence: %llu",
             (unsigned long long)m->fence);
    added = added && add_header(&list, line);
    snprintf(line, sizeof(line), "Content-Type: application/octet-stream");
    for (size_t i = 0; i < m->header_count; i++) {
        if (idem__bytes_is(m->headers[i].name, "content-type") &&
            is_text(m->headers[i].value))
            snprintf(line, sizeof(line), "Content-Type: %.*s",
                     (int)m->headers[i].value.len,
                     (const char *)m->headers[i].value.data);
    }
    if (added && add_header(&list, line) && add_header(&list, "Expect:"))
        return list;
    curl_slist_free_all(list);
    return NULL;
}

struct exchange {
    bool sent, retry_after, problem;
    bool starved;         /* the problem could not be kept */
    struct idem_buf body; /* of a problem only */
};

static bool
is_header(const char *line, size_t len, const char *start)
{
    return len > strlen(start) && strncasecmp(line, start, strlen(start)) == 0;
}

static size_t
see_header(char *data, size_t size, size_t count, void *arg)
{
    struct exchange *exchange = arg;

    if (is_header(data, size * count, "retry-after:"))
        exchange->retry_after = true;
    if (is_header(data, size * count, "content-type: application/problem+json"))
        exchange->problem = true;
    return size * count;
}

static size_t
see_body(char *data, size_t size, size_t count, void *arg)
{
    struct exchange *exchange = arg;

    if (exchange->problem &&
        !idem_buf_add(&exchange->body, data, size * count)) {
        exchange->problem = false; /* too long to be one of ours */
        exchange->starved =
            exchange->body.len + size * count <= exchange->body.cap;
    }
    return size * count;
}

/* libcurl calls this before each time it sends the request; only the first is
 * allowed. */
static int
send_only_once(void *arg, char *their_address, char *our_address,
               int their_port, int our_port)
{
    struct exchange *exchange = arg;

    (void)their_address;
    (void)our_address;
    (void)their_port;
    (void)our_port;
    if (exchange->sent)
        return CURL_PREREQFUNC_ABORT;
    exchange->sent = true;
    return CURL_PREREQFUNC_OK;
}

static bool
is_class(const char *text, enum idem__class class)
{
    return strcmp(text, idem__class_name(class)) == 0;
}

/* A gateway of idem says in its problems what happened (docs/problems.md). The
 * same status can mean that nothing was done or that the outcome is unknown, so
 * a problem that could not be read for want of memory is an unknown outcome. */
static bool
by_problem(const struct exchange *exchange, enum idem_handled *handled)
{
    json_t *problem;
    const char *class;
    bool known = true;

    idem__json_begin();
    problem = exchange->problem ? json_loadb((const char *)exchange->body.data,
                                             exchange->body.len, 0, NULL)
                                : NULL;
    class = json_string_value(json_object_get(problem, "class"));
    if (exchange->starved || idem__json_starved())
        *handled = IDEM_UNCLEAR;
    else if (!class)
        known = false;
    else if (is_class(class, IDEM_CLASS_UNKNOWN))
        *handled = IDEM_UNCLEAR;
    else if (is_class(class, IDEM_CLASS_IN_PROGRESS))
        *handled = IDEM_AWAY;
    else if (is_class(class, IDEM_CLASS_NOT_EXECUTED))
        *handled = json_is_true(json_object_get(problem, "retryable"))
                       ? IDEM_AWAY
                       : IDEM_POISON;
    else if (is_class(class, IDEM_CLASS_DONE))
        *handled = IDEM_HANDLED;
    else if (is_class(class, IDEM_CLASS_FAILED))
        *handled = IDEM_POISON;
    else
        known = false;
    json_decref(problem);
    return known;
}

/* 408, 502, 504 and 520 to 524 come from a proxy, or from a service that gave
 * up: the request was sent, and its outcome is unknown. */
static enum idem_handled
by_status(long status, const struct exchange *exchange, struct idem_error *err)
{
    enum idem_handled handled;

    if (status >= 200 && status < 300)
        return IDEM_HANDLED;
    idem__fail(err, IDEM_ERR_INVALID, "the service returned status %ld",
               status);
    if (by_problem(exchange, &handled))
        return handled;
    if (status == 408 || status == 502 || status == 504 ||
        (status >= 520 && status <= 524))
        return IDEM_UNCLEAR;
    if (status == 425 || status == 429 || status == 503 ||
        (status == 409 && exchange->retry_after))
        return IDEM_NOT_HANDLED;
    return status >= 400 && status < 500 ? IDEM_POISON : IDEM_FAILED_ONCE;
}

static enum idem_handled
by_trouble(CURLcode code, bool sent, struct idem_error *err)
{
    idem__fail(err, IDEM_ERR_UNAVAILABLE,
               sent ? "the service did not respond: %s"
                    : "the service could not be reached: %s",
               code == CURLE_ABORTED_BY_CALLBACK ? "the connection was closed"
                                                 : curl_easy_strerror(code));
    return sent ? IDEM_UNCLEAR : IDEM_AWAY;
}

enum idem_handled
http_sink_handle(void *arg, const struct idem_message *m,
                 struct idem_error *err)
{
    struct http_sink *sink = arg;
    CURL *curl = borrow(sink);
    struct curl_slist *headers = make_headers(m);
    struct exchange exchange = {.sent = false};
    enum idem_handled handled;
    long status = 0;
    CURLcode code;

    if (!curl || !headers) {
        curl_slist_free_all(headers);
        curl_easy_cleanup(curl);
        idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
        return IDEM_NOT_HANDLED;
    }
    curl_easy_setopt(curl, CURLOPT_URL, sink->url);
    curl_easy_setopt(curl, CURLOPT_POST, 1L);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS,
                     m->body.len > 0 ? m->body.data : "");
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     (curl_off_t)m->body.len);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)sink->timeout_ms);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, see_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, see_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_PREREQFUNCTION, send_only_once);
    curl_easy_setopt(curl, CURLOPT_PREREQDATA, &exchange);
    idem_buf_init(&exchange.body, PROBLEM_MAX);
    code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    give_back(sink, curl);
    handled = code == CURLE_OK ? by_status(status, &exchange, err)
                               : by_trouble(code, exchange.sent, err);
    idem_buf_clear(&exchange.body);
    return handled;
}
