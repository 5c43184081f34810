/*
 * etcd_watch.c - receives changes with etcd's watch, a request whose answer
 * does not end.
 *
 *   {"result":{"created":true}}       changes are reported from now on
 *   {"result":{"events":[{...}]}}     the record was written or deleted
 *
 * Over HTTP/1.1 the gateway accepts one watch per request, so every watched key
 * has a connection of its own, up to ETCD_WATCHED_MAX.
 */
#include "etcd.h"

#include <stdlib.h>
#include <string.h>

#define LINE_MAX_LEN ((size_t)8 << 20) /* an event has the whole record */
#define RETRY_US 1000000

struct etcd_stream {
    struct idem__watcher *watcher;
    uint8_t key[IDEM_KEY_LEN];
    CURL *curl;
    struct curl_slist *headers;
    struct idem_buf request, line;
    bool created; /* etcd has confirmed the watch */
};

struct etcd_ear {
    struct idem__watcher *watcher;
    struct etcd_client client; /* has a curl handle while it is open */
    CURLM *multi;
    int64_t retry_at_us;
    struct etcd_stream *streams[ETCD_WATCHED_MAX]; /* NULL: not in use */
};

/* ---- one watch ---------------------------------------------------------- */

/* False: this is not a watch, or it has ended. */
static bool
hear(struct etcd_stream *stream, const char *line, size_t len)
{
    json_t *reply = json_loadb(line, len, 0, NULL);
    const json_t *result = json_object_get(reply, "result");
    bool ok = result && !json_is_true(json_object_get(result, "canceled"));

    if (ok && json_is_true(json_object_get(result, "created"))) {
        stream->created = true;
        idem__watcher_tell(stream->watcher, IDEM_NEWS_WATCHED, stream->key);
    }
    if (ok && json_array_size(json_object_get(result, "events")) > 0)
        idem__watcher_tell(stream->watcher, IDEM_NEWS_CHANGED, stream->key);
    json_decref(reply);
    return ok;
}

static size_t
on_bytes(char *data, size_t size, size_t count, void *arg)
{
    struct etcd_stream *stream = arg;
    size_t left = size * count;

    while (left > 0) {
        const char *end = memchr(data, '\n', left);
        size_t len = end ? (size_t)(end - data) : left;

        if (!idem_buf_add(&stream->line, data, len))
            return 0;
        if (!end)
            break;
        if (!hear(stream, (const char *)stream->line.data, stream->line.len))
            return 0;
        idem_buf_reset(&stream->line);
        data += len + 1;
        left -= len + 1;
    }
    return size * count;
}

static void
stream_close(struct etcd_ear *ear, struct etcd_stream *stream)
{
    if (!stream)
        return;
    if (stream->curl) {
        (void)curl_multi_remove_handle(ear->multi, stream->curl);
        curl_easy_cleanup(stream->curl);
    }
    curl_slist_free_all(stream->headers);
    idem_buf_clear(&stream->request);
    idem_buf_clear(&stream->line);
    free(stream);
}

/* Copy the client's headers, which may change while the stream goes on. */
static bool
copy_headers(struct etcd_stream *stream, const struct curl_slist *headers)
{
    for (; headers; headers = headers->next) {
        struct curl_slist *more =
            curl_slist_append(stream->headers, headers->data);

        if (!more)
            return false;
        stream->headers = more;
    }
    return true;
}

/* {"PART":{"key":"..."}}, or without a part. */
static bool
build(const struct etcd_ear *ear, struct idem_buf *out, const char *start,
      const uint8_t *key, const char *end)
{
    const struct etcd_store *self = (struct etcd_store *)ear->watcher->store;
    char name[ETCD_NAME_MAX];
    size_t len = idem__etcd_name(self, key, name);

    idem_buf_add_text(out, start);
    idem__etcd_add_base64(out, name, len);
    idem_buf_add_text(out, end);
    return !out->lacks;
}

static struct etcd_stream *
stream_open(struct etcd_ear *ear, const uint8_t *key)
{
    struct etcd_stream *stream = calloc(1, sizeof(*stream));

    if (!stream)
        return NULL;
    stream->watcher = ear->watcher;
    memcpy(stream->key, key, IDEM_KEY_LEN);
    idem_buf_init(&stream->request, 4096);
    idem_buf_init(&stream->line, LINE_MAX_LEN);
    stream->curl = curl_easy_duphandle(ear->client.curl);
    if (!stream->curl || !copy_headers(stream, ear->client.headers) ||
        !build(ear, &stream->request, "{\"create_request\":{\"key\":\"", key,
               "\"}}")) {
        stream_close(ear, stream);
        return NULL;
    }
    idem__etcd_prepare(
        &ear->client, stream->curl, "/v3/watch",
        (struct idem_bytes){stream->request.data, stream->request.len});
    curl_easy_setopt(stream->curl, CURLOPT_HTTPHEADER, stream->headers);
    curl_easy_setopt(stream->curl, CURLOPT_TIMEOUT_MS, 0L);
    curl_easy_setopt(stream->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(stream->curl, CURLOPT_WRITEDATA, stream);
    curl_easy_setopt(stream->curl, CURLOPT_PRIVATE, stream);
    if (curl_multi_add_handle(ear->multi, stream->curl) == CURLM_OK)
        return stream;
    stream_close(ear, stream);
    return NULL;
}

/* ---- all watches -------------------------------------------------------- */

static void
close_client(struct etcd_ear *ear)
{
    idem__etcd_client_close(&ear->client);
    memset(&ear->client, 0, sizeof(ear->client));
}

/* Find a host that answers and a token that it accepts, by reading one key like
 * every request of the store. */
static bool
is_ready(struct etcd_ear *ear, const uint8_t *key)
{
    const struct etcd_store *self = (struct etcd_store *)ear->watcher->store;
    struct idem_error ignored;
    struct idem_buf request;
    json_t *reply = NULL;
    bool ok;

    if (idem__store_boot_us(&self->base) < ear->retry_at_us)
        return false;
    if (!ear->client.curl && idem__etcd_client_open(&ear->client, self->address,
                                                    &ignored) != IDEM_OK) {
        close_client(ear);
        return false;
    }
    idem_buf_init(&request, 4096);
    ok = build(ear, &request,
               "{\"count_only\":true,\"serializable\":true,"
               "\"key\":\"",
               key, "\"}") &&
         idem__etcd_post(&ear->client, "/v3/kv/range",
                         (struct idem_bytes){request.data, request.len}, &reply,
                         &ignored) == ETCD_DONE;
    idem_buf_clear(&request);
    json_decref(reply);
    return ok;
}

static void
carry_out(struct etcd_ear *ear, const struct idem__watch_order *order,
          bool ready)
{
    struct etcd_stream **free_at = NULL;

    for (size_t i = 0; i < ETCD_WATCHED_MAX; i++) {
        struct etcd_stream **at = &ear->streams[i];

        if (*at && memcmp((*at)->key, order->key, IDEM_KEY_LEN) == 0) {
            stream_close(ear, *at);
            *at = NULL;
        }
        if (!*at)
            free_at = at;
    }
    if (!order->on)
        return;
    if (ready && free_at)
        *free_at = stream_open(ear, order->key);
    if (!ready || !free_at || !*free_at)
        idem__watcher_tell(ear->watcher, IDEM_NEWS_UNWATCHED, order->key);
}

static void
carry_out_all(struct etcd_ear *ear, const struct idem__watch_order *orders,
              size_t count)
{
    bool asked = false, ready = false;

    for (size_t i = 0; i < count; i++) {
        if (orders[i].on && !asked) {
            asked = true;
            ready = is_ready(ear, orders[i].key);
        }
        carry_out(ear, &orders[i], ready);
    }
}

/* A watch that ended by itself can be started again at once, unless it was
 * never confirmed. */
static void
drop_ended(struct etcd_ear *ear)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(ear->multi, &left))) {
        char *arg = NULL;

        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &arg);
        for (size_t i = 0; arg && i < ETCD_WATCHED_MAX; i++) {
            struct etcd_stream *stream = ear->streams[i];

            if ((char *)stream != arg)
                continue;
            idem__watcher_tell(ear->watcher, IDEM_NEWS_UNWATCHED, stream->key);
            if (!stream->created)
                ear->retry_at_us =
                    idem__store_boot_us(ear->watcher->store) + RETRY_US;
            stream_close(ear, stream);
            ear->streams[i] = NULL;
        }
    }
}

/* Sleep until an order or an event comes; false: none came for a long time. */
static bool
listen_once(struct etcd_ear *ear)
{
    struct curl_waitfd bell = {ear->watcher->bell, CURL_WAIT_POLLIN, 0};
    int running, events = 0;

    (void)curl_multi_perform(ear->multi, &running);
    drop_ended(ear);
    (void)curl_multi_poll(ear->multi, &bell, 1, IDEM__WATCH_IDLE_MS, &events);
    (void)curl_multi_perform(ear->multi, &running);
    drop_ended(ear);
    return events != 0;
}

void
idem__etcd_listen(struct idem__watcher *watcher)
{
    struct etcd_ear ear = {.watcher = watcher, .multi = curl_multi_init()};
    struct idem_buf orders;
    size_t keys;

    if (!ear.multi) { /* out of memory: nothing is reported, so all poll */
        atomic_store(&watcher->refused, true);
        return;
    }
    idem_buf_init(&orders, watcher->orders.cap);
    while (idem__watcher_take(watcher, &orders, &keys)) {
        carry_out_all(&ear, (const void *)orders.data,
                      orders.len / sizeof(struct idem__watch_order));
        if (!listen_once(&ear) && keys == 0 && ear.client.curl)
            close_client(&ear);
    }
    for (size_t i = 0; i < ETCD_WATCHED_MAX; i++)
        stream_close(&ear, ear.streams[i]);
    if (ear.client.curl)
        close_client(&ear);
    curl_multi_cleanup(ear.multi);
    idem_buf_clear(&orders);
}

bool
idem__etcd_watch(struct idem_store *store, const uint8_t key[IDEM_KEY_LEN],
                 bool on)
{
    struct etcd_store *self = (struct etcd_store *)store;

    return idem__watcher_order(&self->watcher, key, on, 0);
}
