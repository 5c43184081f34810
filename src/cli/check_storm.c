/*
 * check_storm.c - send the requests of idem check with libcurl's multi
 * interface.
 *
 * Every request has a new connection. libcurl repeats a request by itself if a
 * reused connection breaks, and idem check must count every request.
 */
#include "../base/wait.h"
#include "check.h"

#include <curl/curl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define EXPANDED_MAX (IDEM_RESULT_MAX + 65536)
#define EFFECT_MAX (1024 * 1024)

/* A request in flight. */
struct check_flight {
    struct check_ask *ask;
    CURL *curl;
    struct curl_slist *headers;
    struct idem_buf url, body, line;
    crypto_generichash_state hash;
    size_t sample_len;
    int64_t sent_ms; /* 0: not yet */
    bool over;
};

/* Copy the text with every {key} replaced; a NUL follows the result. */
static bool
expand(struct idem_buf *into, struct idem_bytes text, const char *key)
{
    const char *at = text.data, *end = at + text.len, *mark;
    bool fine = true;

    idem_buf_reset(into);
    while (fine && text.len > 0 &&
           (mark = memmem(at, (size_t)(end - at), CHECK_KEY_MARK,
                          strlen(CHECK_KEY_MARK)))) {
        fine = idem_buf_add(into, at, (size_t)(mark - at)) &&
               idem_buf_add_text(into, key);
        at = mark + strlen(CHECK_KEY_MARK);
    }
    fine =
        fine && idem_buf_add(into, at, text.len > 0 ? (size_t)(end - at) : 0);
    fine = fine && idem_buf_add(into, "", 1);
    into->len -= fine;
    return fine;
}

/* ---- responses ----------------------------------------------------------- */

/* "Idempotent-Replayed: true", "X-Idempotency-Replay: 1" and similar
 * headers. */
static size_t
see_header(char *data, size_t size, size_t count, void *arg)
{
    struct check_flight *flight = arg;
    const char *colon = memchr(data, ':', size * count);
    size_t len = colon ? (size_t)(colon - data) : 0;
    size_t rest = size * count - len;

    for (size_t i = 0; i + 6 <= len; i++) {
        if (strncasecmp(data + i, "replay", 6) == 0 &&
            !memmem(colon, rest, "false", 5) && !memmem(colon, rest, "0", 1))
            flight->ask->replayed = true;
    }
    return size * count;
}

static size_t
see_body(char *data, size_t size, size_t count, void *arg)
{
    struct check_flight *flight = arg;
    size_t len = size * count;
    size_t left = CHECK_SAMPLE_LEN - flight->sample_len;
    size_t kept = len < left ? len : left;

    crypto_generichash_update(&flight->hash, (const uint8_t *)data, len);
    memcpy(flight->ask->sample + flight->sample_len, data, kept);
    flight->sample_len += kept;
    return len;
}

static int
note_sent(void *arg, char *their_address, char *our_address, int their_port,
          int our_port)
{
    struct check_flight *flight = arg;

    (void)their_address;
    (void)our_address;
    (void)their_port;
    (void)our_port;
    flight->sent_ms = idem__mono_ms();
    return CURL_PREREQFUNC_OK;
}

/* ---- one request --------------------------------------------------------- */

static bool
add_header(struct check_flight *flight, const char *text)
{
    struct curl_slist *longer;

    if (!expand(&flight->line, idem_text(text), flight->ask->key))
        return false;
    longer = curl_slist_append(flight->headers, (char *)flight->line.data);
    flight->headers = longer ? longer : flight->headers;
    return longer;
}

static bool
make_headers(const struct check_target *target, struct check_flight *flight)
{
    bool typed = false, fine = add_header(flight, "Expect:");
    char line[1024];

    for (size_t i = 0; fine && i < target->headers->count; i++) {
        const char *header = target->headers->items[i];

        typed = typed || strncasecmp(header, "content-type:", 13) == 0;
        fine = add_header(flight, header);
    }
    if (fine && target->key_header) {
        snprintf(line, sizeof(line), "%s: " CHECK_KEY_MARK, target->key_header);
        fine = add_header(flight, line);
    }
    return fine &&
           (typed || add_header(flight, "Content-Type: application/json"));
}

static void
set_common(CURL *curl, const char *url, int64_t timeout_ms)
{
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(curl, CURLOPT_FORBID_REUSE, 1L);
}

static bool
prepare(const struct check_target *target, struct check_flight *flight)
{
    CURL *curl = flight->curl = curl_easy_init();

    idem_buf_init(&flight->url, EXPANDED_MAX);
    idem_buf_init(&flight->body, EXPANDED_MAX);
    idem_buf_init(&flight->line, EXPANDED_MAX);
    if (!curl || !make_headers(target, flight) ||
        !expand(&flight->url, idem_text(target->url), flight->ask->key) ||
        !expand(&flight->body, flight->ask->body, flight->ask->key))
        return false;
    crypto_generichash_init(&flight->hash, NULL, 0, CHECK_DIGEST_LEN);
    set_common(curl, (char *)flight->url.data, target->timeout_ms);
    if (flight->body.len > 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, flight->body.data);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                         (curl_off_t)flight->body.len);
    } else if (strcmp(target->method, "POST") == 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
    }
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, target->method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, flight->headers);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, see_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, flight);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, see_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, flight);
    curl_easy_setopt(curl, CURLOPT_PREREQFUNCTION, note_sent);
    curl_easy_setopt(curl, CURLOPT_PREREQDATA, flight);
    curl_easy_setopt(curl, CURLOPT_PRIVATE, flight);
    return true;
}

static void
clear(struct check_flight *flight)
{
    curl_easy_cleanup(flight->curl);
    curl_slist_free_all(flight->headers);
    idem_buf_clear(&flight->url);
    idem_buf_clear(&flight->body);
    idem_buf_clear(&flight->line);
}

static void
finish(struct check_flight *flight, CURLcode code)
{
    struct check_ask *ask = flight->ask;

    flight->over = true;
    crypto_generichash_final(&flight->hash, ask->digest, CHECK_DIGEST_LEN);
    if (code == CURLE_OK)
        curl_easy_getinfo(flight->curl, CURLINFO_RESPONSE_CODE, &ask->status);
    else
        snprintf(ask->trouble, sizeof(ask->trouble), "%s",
                 curl_easy_strerror(code));
}

/* ---- all requests -------------------------------------------------------- */

static bool
wholly_sent(const struct check_flight *flight)
{
    curl_off_t sent = 0;

    curl_easy_getinfo(flight->curl, CURLINFO_SIZE_UPLOAD_T, &sent);
    return flight->sent_ms > 0 && (size_t)sent >= flight->body.len;
}

/* Removing a handle closes its connection. */
static size_t
cut_some(CURLM *multi, struct check_flight *flights, size_t count)
{
    int64_t now = idem__mono_ms();
    size_t cut = 0;

    for (size_t i = 0; i < count; i++) {
        struct check_flight *flight = &flights[i];

        if (!flight->ask->cut || flight->over || !wholly_sent(flight) ||
            now < flight->sent_ms + flight->ask->cut_ms)
            continue;
        curl_multi_remove_handle(multi, flight->curl);
        flight->over = true;
        snprintf(flight->ask->trouble, sizeof(flight->ask->trouble),
                 "cut by this check");
        cut++;
    }
    return cut;
}

static size_t
collect(CURLM *multi)
{
    size_t over = 0;
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(multi, &left))) {
        CURL *curl = message->easy_handle;
        CURLcode code = message->data.result;
        struct check_flight *flight;

        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(curl, CURLINFO_PRIVATE, &flight);
        finish(flight, code);
        curl_multi_remove_handle(multi, curl);
        over++;
    }
    return over;
}

static CURLMcode
drive(CURLM *multi, struct check_flight *flights, size_t count,
      void (*tell)(void *arg, size_t over), void *arg)
{
    CURLMcode code = CURLM_OK;
    size_t over = 0;
    int running;

    for (size_t i = 0; i < count && code == CURLM_OK; i++)
        code = curl_multi_add_handle(multi, flights[i].curl);
    while (code == CURLM_OK && over < count) {
        size_t before = over;

        code = curl_multi_perform(multi, &running);
        over += collect(multi);
        over += cut_some(multi, flights, count);
        if (tell && over > before)
            tell(arg, over);
        if (code == CURLM_OK && over < count)
            code = curl_multi_poll(multi, NULL, 0, 2, NULL);
    }
    return code;
}

enum idem_status
check_storm(const struct check_target *target, struct check_ask *asks,
            size_t count, void (*tell)(void *arg, size_t over), void *arg,
            struct idem_error *err)
{
    struct check_flight *flights = calloc(count, sizeof(*flights));
    CURLM *multi = curl_multi_init();
    bool fine = flights && multi;
    CURLMcode code = CURLM_OK;

    for (size_t i = 0; fine && i < count; i++) {
        flights[i].ask = &asks[i];
        fine = prepare(target, &flights[i]);
    }
    if (fine) {
        /* One connection per request, also with HTTP/2. */
        curl_multi_setopt(multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
        code = drive(multi, flights, count, tell, arg);
    }
    for (size_t i = 0; flights && i < count; i++) {
        if (multi && flights[i].curl && !flights[i].over)
            curl_multi_remove_handle(multi, flights[i].curl);
        clear(&flights[i]);
    }
    curl_multi_cleanup(multi);
    free(flights);
    if (code != CURLM_OK)
        return idem__fail(err, IDEM_ERR_INTERNAL, "%s",
                          curl_multi_strerror(code));
    return fine ? IDEM_OK : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}

/* ---- the effects --------------------------------------------------------- */

static size_t
keep_body(char *data, size_t size, size_t count, void *arg)
{
    return idem_buf_add(arg, data, size * count) ? size * count : 0;
}

enum idem_status
check_fetch(const char *url, const struct cli_list *headers, int64_t timeout_ms,
            struct idem_buf *body, struct idem_error *err)
{
    CURL *curl = curl_easy_init();
    struct curl_slist *list = NULL;
    long status = 0;
    CURLcode code;

    idem_buf_init(body, EFFECT_MAX);
    if (!curl)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < headers->count; i++)
        list = curl_slist_append(list, headers->items[i]);
    set_common(curl, url, timeout_ms);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, keep_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
    code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    curl_slist_free_all(list);
    if (code != CURLE_OK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s: %s", url,
                          curl_easy_strerror(code));
    if (status < 200 || status > 299)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "%s returned status %ld; give an --effect-url "
                          "that returns the number of effects",
                          url, status);
    return idem_buf_add(body, "", 1)
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}
