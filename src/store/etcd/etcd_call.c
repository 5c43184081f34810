/*
 * etcd_call.c - sends one request to etcd's JSON gateway and judges its
 * failure.
 *
 * A request that was never sent was not done; one that was sent and not
 * answered may have been done. Hosts are tried in turn until one accepts the
 * request.
 */
#include "etcd.h"

#include "../../base/address.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_PORT 2379
#define REPLY_MAX ((size_t)512 << 20)
#define PAUSE_FIRST_US 20000
#define PAUSE_MAX_US 1000000

/* The gRPC codes that etcd uses. */
enum { BAD_REQUEST = 3, NO_SUCH = 5, FORBIDDEN = 7, EXHAUSTED = 8, WHO = 16 };

static size_t
on_bytes(char *data, size_t size, size_t count, void *arg)
{
    return idem_buf_add(arg, data, size * count) ? size * count : 0;
}

/* Did any byte of the request leave this machine? The last error does not show
 * it: curl sends a request again by itself when a kept connection was closed,
 * and may then fail to connect. */
static bool
was_sent(CURL *curl)
{
    long request_len = 0;

    curl_easy_getinfo(curl, CURLINFO_REQUEST_SIZE, &request_len);
    return request_len > 0;
}

void
idem__etcd_prepare(struct etcd_client *client, CURL *curl, const char *path,
                   struct idem_bytes json)
{
    const struct idem__host *host = &client->url.hosts[client->current];
    char address[IDEM__ADDRESS_LEN], url[512];

    snprintf(url, sizeof(url), "%s://%s%s", client->tls ? "https" : "http",
             idem__address_write(host->name, host->port, address), path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)json.len);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, json.data);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
}

static CURLcode
perform(struct etcd_client *client, const char *path, struct idem_bytes json)
{
    idem_buf_reset(&client->body);
    client->requests++;
    idem__etcd_prepare(client, client->curl, path, json);
    return curl_easy_perform(client->curl);
}

static enum etcd_result
fail(struct etcd_client *client, enum etcd_result result,
     enum idem_status status, const char *why, struct idem_error *err)
{
    const struct idem__host *host = &client->url.hosts[client->current];

    client->lost += result == ETCD_LOST;
    idem__fail(err, status, "etcd %s:%d: %s", host->name, host->port, why);
    return result;
}

/* An error's text: "error" up to etcd 3.4, "message" since 3.5. */
static const char *
error_text(const json_t *reply)
{
    const char *text = json_string_value(json_object_get(reply, "message"));

    return text ? text : json_string_value(json_object_get(reply, "error"));
}

/* What an error from etcd says about the request. */
static enum etcd_result
read_error(struct etcd_client *client, const json_t *reply,
           struct idem_error *err)
{
    const char *text = error_text(reply);
    long code = (long)json_integer_value(json_object_get(reply, "code"));

    if (!text)
        return fail(client, ETCD_LOST, IDEM_ERR_LOST, "an error without a text",
                    err);
    if (strstr(text, "larger than max"))
        return fail(client, ETCD_SPLIT, IDEM_ERR_LOST, text, err);
    if (strstr(text, "space exceeded"))
        return fail(client, ETCD_NOT_DONE, IDEM_ERR_FULL, text, err);
    if (code == NO_SUCH && strstr(text, "lease"))
        return fail(client, ETCD_NO_LEASE, IDEM_ERR_UNAVAILABLE, text, err);
    if (code == BAD_REQUEST || code == FORBIDDEN || code == WHO ||
        (code == EXHAUSTED && strstr(text, "too many requests")))
        return fail(client, ETCD_NOT_DONE, IDEM_ERR_UNAVAILABLE, text, err);
    return fail(client, ETCD_LOST, IDEM_ERR_LOST, text, err);
}

static enum etcd_result
read_reply(struct etcd_client *client, json_t **reply, struct idem_error *err)
{
    json_t *json =
        json_loadb((const char *)client->body.data, client->body.len, 0, NULL);
    enum etcd_result result = ETCD_DONE;
    long status = 0;

    curl_easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &status);
    if (!json_is_object(json))
        result = fail(client, ETCD_LOST, IDEM_ERR_LOST,
                      "the reply is not JSON: is this etcd?", err);
    else if (status != 200)
        result = read_error(client, json, err);
    if (result == ETCD_DONE)
        *reply = json;
    else
        json_decref(json);
    return result;
}

/* No host was reached: wait before the next try, longer each time. */
static enum etcd_result
pause_client(struct etcd_client *client, enum etcd_result result)
{
    int64_t pause_us = PAUSE_FIRST_US << client->failures;

    if (client->failures < 8)
        client->failures++;
    client->try_after_us =
        idem__mono_us() + (pause_us < PAUSE_MAX_US ? pause_us : PAUSE_MAX_US);
    return result;
}

static enum etcd_result
post_once(struct etcd_client *client, const char *path, struct idem_bytes json,
          json_t **reply, struct idem_error *err)
{
    CURLcode code = CURLE_OK;

    if (idem__mono_us() < client->try_after_us)
        return fail(client, ETCD_NOT_DONE, IDEM_ERR_UNAVAILABLE,
                    "was away a moment ago", err);
    for (size_t i = 0; i < client->url.host_count; i++) {
        code = perform(client, path, json);
        if (code == CURLE_OK) {
            client->failures = 0;
            return read_reply(client, reply, err);
        }
        if (was_sent(client->curl)) {
            enum etcd_result result = fail(client, ETCD_LOST, IDEM_ERR_LOST,
                                           curl_easy_strerror(code), err);

            client->current = (client->current + 1) % client->url.host_count;
            return code == CURLE_OPERATION_TIMEDOUT
                       ? pause_client(client, result) /* the host hangs */
                       : result;
        }
        if (i + 1 < client->url.host_count)
            client->current = (client->current + 1) % client->url.host_count;
    }
    return pause_client(client,
                        fail(client, ETCD_NOT_DONE, IDEM_ERR_UNAVAILABLE,
                             curl_easy_strerror(code), err));
}

static bool
set_headers(struct etcd_client *client)
{
    struct curl_slist *headers, *last;

    curl_slist_free_all(client->headers);
    client->headers = headers =
        curl_slist_append(NULL, "Content-Type: application/json");
    last = headers ? curl_slist_append(headers, "Expect:") : NULL;
    if (last && client->token)
        last = curl_slist_append(headers, client->token);
    return last != NULL;
}

/* Exchange the user's password for a token. */
static enum etcd_result
log_in(struct etcd_client *client, struct idem_error *err)
{
    json_t *body = json_pack("{s:s,s:s}", "name", client->url.user, "password",
                             client->url.password);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_t *reply = NULL;
    const char *token;
    enum etcd_result result;

    json_decref(body);
    free(client->token);
    client->token = NULL;
    if (!text || !set_headers(client)) {
        free(text);
        return fail(client, ETCD_NOT_DONE, IDEM_ERR_MEMORY, "out of memory",
                    err);
    }
    result = post_once(client, "/v3/auth/authenticate", idem_text(text), &reply,
                       err);
    free(text);
    if (result != ETCD_DONE)
        return ETCD_NOT_DONE;
    token = json_string_value(json_object_get(reply, "token"));
    if (!token || asprintf(&client->token, "Authorization: %s", token) < 0)
        client->token = NULL;
    json_decref(reply);
    return client->token && set_headers(client)
               ? ETCD_DONE
               : fail(client, ETCD_NOT_DONE, IDEM_ERR_UNAVAILABLE,
                      "no token came for this user", err);
}

enum etcd_result
idem__etcd_post(struct etcd_client *client, const char *path,
                struct idem_bytes json, json_t **reply, struct idem_error *err)
{
    bool has_user = client->url.user && client->url.password;
    struct idem_error first;
    enum etcd_result result;

    if (has_user && !client->token) {
        result = log_in(client, err);
        if (result != ETCD_DONE)
            return result;
    }
    result = post_once(client, path, json, reply, &first);
    if (result == ETCD_NOT_DONE && has_user &&
        strstr(first.text, "invalid auth token")) {
        result = log_in(client, err);
        if (result != ETCD_DONE)
            return result;
        return post_once(client, path, json, reply, err);
    }
    if (result != ETCD_DONE && err)
        *err = first;
    return result;
}

static void
set_tls(struct etcd_client *client)
{
    const char *ca = idem__url_option(&client->url, "ca");
    const char *cert = idem__url_option(&client->url, "cert");
    const char *key = idem__url_option(&client->url, "key");

    if (ca)
        curl_easy_setopt(client->curl, CURLOPT_CAINFO, ca);
    if (cert)
        curl_easy_setopt(client->curl, CURLOPT_SSLCERT, cert);
    if (key)
        curl_easy_setopt(client->curl, CURLOPT_SSLKEY, key);
    client->tls = ca || cert || key || idem__url_option(&client->url, "tls");
}

enum idem_status
idem__etcd_client_open(struct etcd_client *client, const char *url,
                       struct idem_error *err)
{
    static const char *const known[] = {"connect_ms", "timeout_ms", "tls", "ca",
                                        "cert",       "key",        NULL};
    const struct idem__url_range numbers[] = {
        {"connect_ms", 1, 60000, 1000, &client->connect_ms},
        {"timeout_ms", 1, 60000, 2000, &client->timeout_ms},
        {0}};
    enum idem_status status =
        idem__url_parse(url, DEFAULT_PORT, known, &client->url, err);

    if (status == IDEM_OK)
        status = idem__url_numbers(&client->url, numbers, err);
    if (status != IDEM_OK)
        return status;
    idem_buf_init(&client->body, REPLY_MAX);
    client->curl = curl_easy_init();
    if (!client->curl || !set_headers(client))
        return idem__fail(err, IDEM_ERR_MEMORY, "etcd: out of memory");
    curl_easy_setopt(client->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(client->curl, CURLOPT_WRITEDATA, &client->body);
    curl_easy_setopt(client->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(client->curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(client->curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(client->curl, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)client->connect_ms);
    curl_easy_setopt(client->curl, CURLOPT_TIMEOUT_MS,
                     (long)client->timeout_ms);
    set_tls(client);
    return IDEM_OK;
}

void
idem__etcd_client_close(struct etcd_client *client)
{
    if (client->curl)
        curl_easy_cleanup(client->curl);
    curl_slist_free_all(client->headers);
    free(client->token);
    idem_buf_clear(&client->body);
    idem__url_clear(&client->url);
}
