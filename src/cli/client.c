/*
 * client.c - commands over the Redis protocol, one at a time, with hiredis.
 */
#include "client.h"

#include "../base/peer.h"
#include "../serve/core/server.h"
#include "../store/store.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <pwd.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#define CONNECT_MS 5000
#define ANSWER_MS 30000
#define TRIES 3

struct cli_client {
    char *address;
    char *auth; /* name:secret, or NULL */
    redisContext *redis;
    char owner[CLI_OWNER_MAX];
};

/* ---- connecting -------------------------------------------------------- */

static struct timeval
from_ms(int64_t ms)
{
    return (struct timeval){ms / 1000, (ms % 1000) * 1000};
}

static redisContext *
dial(const char *address, struct idem_error *err)
{
    struct timeval limit = from_ms(CONNECT_MS);
    const char *colon = strrchr(address, ':');
    char host[256], shown[256], *end = NULL;
    size_t len;
    long port;

    if (strncmp(address, "unix:", 5) == 0)
        return redisConnectUnixWithTimeout(address + 5, limit);
    if (address[0] == '/')
        return redisConnectUnixWithTimeout(address, limit);
    port = colon ? strtol(colon + 1, &end, 10) : 0;
    len = colon ? (size_t)(colon - address) : 0;
    if (!colon || *end || port < 1 || port > 65535 || len >= sizeof(host) ||
        strstr(address, "://")) {
        idem__url_redact(address, shown, sizeof(shown));
        idem__fail(err, IDEM_ERR_INVALID,
                   "\"%s\" is no address: give unix:PATH or HOST:PORT", shown);
        return NULL;
    }
    if (address[0] == '[' && address[len - 1] == ']') {
        address++;
        len -= 2;
    }
    memcpy(host, address, len);
    host[len] = 0;
    return redisConnectWithTimeout(len > 0 ? host : "127.0.0.1", (int)port,
                                   limit);
}

static enum idem_status
status_of(const char *word, size_t len)
{
    for (int i = 1; i < IDEM_STATUS_COUNT; i++) {
        const char *name = idem_status_name((enum idem_status)i);

        if (strlen(name) == len && strncasecmp(name, word, len) == 0)
            return (enum idem_status)i;
    }
    return IDEM_ERR_INVALID;
}

/* "-WORD text"; a word that is no status of ours is a part of the text. */
static enum idem_status
refused(const redisReply *reply, struct idem_error *err)
{
    size_t len = strcspn(reply->str, " ");
    enum idem_status status = status_of(reply->str, len);
    bool known =
        status != IDEM_ERR_INVALID || strncmp(reply->str, "ERR ", 4) == 0;

    if (known && reply->str[len] == ' ')
        len++;
    return idem__fail(err, status, "%s", reply->str + (known ? len : 0));
}

static enum idem_status
login(struct cli_client *client, struct idem_error *err)
{
    const char *colon = strchr(client->auth, ':');
    const char *secret = colon ? colon + 1 : client->auth;
    size_t name_len = colon ? (size_t)(colon - client->auth) : 0;
    enum idem_status status = IDEM_OK;
    redisReply *reply =
        name_len > 0
            ? redisCommand(client->redis, "AUTH %b %b", client->auth, name_len,
                           secret, strlen(secret))
            : redisCommand(client->redis, "AUTH %b", secret, strlen(secret));

    if (!reply)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s: %s", client->address,
                          client->redis->errstr);
    if (reply->type == REDIS_REPLY_ERROR)
        status = refused(reply, err);
    freeReplyObject(reply);
    return status;
}

static void
hang_up(struct cli_client *client)
{
    if (client->redis)
        redisFree(client->redis);
    client->redis = NULL;
}

static enum idem_status
connect_now(struct cli_client *client, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    if (client->redis)
        return IDEM_OK;
    if (err)
        err->status = IDEM_OK;
    client->redis = dial(client->address, err);
    if (!client->redis)
        return err && err->status != IDEM_OK
                   ? err->status
                   : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (client->redis->err) {
        idem__fail(err, IDEM_ERR_UNAVAILABLE,
                   "no server at %s: %s (idem serve starts one; --store opens "
                   "a store without)",
                   client->address, client->redis->errstr);
        hang_up(client);
        return IDEM_ERR_UNAVAILABLE;
    }
    if (client->auth)
        status = idem__peer_trusted(client->redis->fd, client->address, err);
    if (client->auth && status == IDEM_OK)
        status = login(client, err);
    if (status != IDEM_OK)
        hang_up(client);
    return status;
}

enum idem_status
cli_client_open(const char *address, const char *auth,
                struct cli_client **client, struct idem_error *err)
{
    struct cli_client *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (self) {
        self->address = strdup(address);
        self->auth = auth ? strdup(auth) : NULL;
    }
    if (!self || !self->address || (auth && !self->auth)) {
        cli_client_close(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    status = connect_now(self, err);
    if (status == IDEM_OK)
        *client = self;
    else
        cli_client_close(self);
    return status;
}

void
cli_client_close(struct cli_client *client)
{
    if (!client)
        return;
    hang_up(client);
    if (client->auth)
        sodium_memzero(client->auth, strlen(client->auth));
    free(client->auth);
    free(client->address);
    free(client);
}

/* ---- commands ----------------------------------------------------------- */

/* One round trip; a NULL reply means that it was lost. */
static redisReply *
ask(struct cli_client *client, const struct cli_command *c, int64_t wait_ms)
{
    struct timeval limit = from_ms(wait_ms + ANSWER_MS);
    redisReply *reply;

    redisSetTimeout(client->redis, limit);
    reply = redisCommandArgv(client->redis, c->count, (const char **)c->args,
                             c->lens);
    return reply;
}

enum idem_status
cli_client_ask(struct cli_client *client, const struct cli_command *c,
               int64_t wait_ms, redisReply **reply, int *asked,
               struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    for (*asked = 0; *asked < TRIES;) {
        const struct timespec pause = {0, 100 * 1000000L * *asked};

        nanosleep(&pause, NULL);
        status = connect_now(client, err);
        if (status != IDEM_OK && *asked == 0)
            return status;
        ++*asked;
        if (status != IDEM_OK)
            continue;
        *reply = ask(client, c, wait_ms);
        if (*reply && (*reply)->type == REDIS_REPLY_ERROR) {
            status = refused(*reply, err);
            freeReplyObject(*reply);
            *reply = NULL;
            return status;
        }
        if (*reply)
            return IDEM_OK;
        status = idem__fail(err, IDEM_ERR_LOST, "%s: %s", client->address,
                            client->redis->errstr);
        hang_up(client);
    }
    return idem__fail(err, IDEM_ERR_LOST,
                      "%s does not answer any more; it may have been stored",
                      client->address);
}

char *
cli_client_owner(struct cli_client *client)
{
    return client->owner;
}

/* ---- a link ------------------------------------------------------------- */

enum idem_status
cli_where_client(const struct cli_where *where, struct cli_client **client,
                 struct idem_error *err)
{
    const char *address = where->server ? where->server : getenv("IDEM_SERVER");
    const char *given = getenv("IDEM_AUTH");
    enum idem_status status = IDEM_OK;
    char path[512] = "unix:", *auth = NULL;

    if (!address || !*address) {
        server_default_socket(path + 5, sizeof(path) - 5);
        address = path;
    }
    if (where->credentials)
        status = cli_read_auth(where->credentials, &auth, err);
    else if (given && *given && !(auth = strdup(given)))
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (status == IDEM_OK)
        status = cli_client_open(address, auth, client, err);
    if (auth)
        sodium_memzero(auth, strlen(auth));
    free(auth);
    return status;
}

struct server_link {
    struct cli_link base;
    struct cli_client *client;
};

static enum idem_status
run_op(struct cli_link *link, const struct idem_op *op,
       struct idem_answer *answer, struct idem_error *err)
{
    struct server_link *self = (struct server_link *)link;

    return cli_client_do(self->client, op, answer, err);
}

static enum idem_status
scan_records(struct cli_link *link, const struct idem_filter *filter,
             struct idem_cursor *cursor, size_t count, idem_each_fn *each,
             void *arg, struct idem_error *err)
{
    struct server_link *self = (struct server_link *)link;

    return cli_client_scan(self->client, filter, cursor, count, each, arg, err);
}

static size_t
max_result(struct cli_link *link)
{
    static const struct cli_command info = {
        .args = {"INFO"}, .lens = {4}, .count = 1};
    static const char name[] = "\nmax_result:";
    struct server_link *self = (struct server_link *)link;
    size_t max = IDEM_RESULT_DEFAULT_MAX;
    redisReply *reply = NULL;
    const char *at;
    int asked;

    if (cli_client_ask(self->client, &info, 0, &reply, &asked, NULL) != IDEM_OK)
        return max;
    at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, name) : NULL;
    if (at)
        max = strtoull(at + sizeof(name) - 1, NULL, 10);
    freeReplyObject(reply);
    return max;
}

static void
close_link(struct cli_link *link)
{
    struct server_link *self = (struct server_link *)link;

    cli_client_close(self->client);
    free(self);
}

enum idem_status
cli_server_link_open(const struct cli_where *where, struct cli_link **link,
                     struct idem_error *err)
{
    struct server_link *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    self->base.run = run_op;
    self->base.scan = scan_records;
    self->base.max_result = max_result;
    self->base.close = close_link;
    status = cli_where_client(where, &self->client, err);
    if (status == IDEM_OK)
        *link = &self->base;
    else
        free(self);
    return status;
}
