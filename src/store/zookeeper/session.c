/*
 * session.c - a session with ZooKeeper, which is opened again when it ends, and
 * rounds of requests.
 *
 * The library has its own threads for I/O and callbacks. A round is a set of
 * requests sent at once; the store's thread waits for their answers up to a
 * timeout. No record is ephemeral, so nothing depends on a session, and a
 * session that hangs is replaced by a new one.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAUSE_US 100000
#define AGAIN_US 50000

/* Wait until that time; false: the time has passed. */
static bool
wait_until(pthread_mutex_t *lock, pthread_cond_t *change, int64_t until_us)
{
    struct timespec t = {until_us / 1000000, until_us % 1000000 * 1000};

    return pthread_cond_timedwait(change, lock, &t) == 0;
}

/* ---- the session ----------------------------------------------------- */

static void
on_event(zhandle_t *zh, int type, int state, const char *path, void *arg)
{
    struct zk_store *self = arg;

    (void)zh;
    (void)path;
    if (type != ZOO_SESSION_EVENT)
        return;
    pthread_mutex_lock(&self->lock);
    self->connected = state == ZOO_CONNECTED_STATE;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
    if (state != ZOO_CONNECTED_STATE)
        idem__zk_unwatched(self);
}

bool
idem__zk_is_connected(struct zk_store *self)
{
    bool connected;

    pthread_mutex_lock(&self->lock);
    connected = self->connected;
    pthread_mutex_unlock(&self->lock);
    return connected;
}

/* Drop the library's own log, which would go to standard error. The caller gets
 * the errors. */
static void
no_log(const char *message)
{
    (void)message;
}

void
idem__zk_hang_up(struct zk_store *self)
{
    if (self->zh)
        zookeeper_close(self->zh);
    self->zh = NULL;
    pthread_mutex_lock(&self->lock);
    self->connected = false;
    pthread_mutex_unlock(&self->lock);
    idem__zk_unwatched(self);
}

static void
start_session(struct zk_store *self)
{
    char *secret = NULL;

    self->rooted = false;
    self->zh = zookeeper_init2(self->hosts, on_event, (int)self->session_ms,
                               NULL, self, 0, no_log);
    if (!self->zh)
        return;
    self->sessions++;
    if (!self->url.user)
        return;
    /* A session that has not sent its password is of no use. */
    if (asprintf(&secret, "%s:%s", self->url.user,
                 self->url.password ? self->url.password : "") < 0) {
        idem__zk_hang_up(self);
        return;
    }
    (void)zoo_add_auth(self->zh, "digest", secret, (int)strlen(secret), NULL,
                       NULL);
    free(secret);
}

static bool
wait_connected(struct zk_store *self, int64_t until_us)
{
    bool connected, late = false;

    pthread_mutex_lock(&self->lock);
    while (!self->connected && !late)
        late = !wait_until(&self->lock, &self->change, until_us);
    connected = self->connected;
    pthread_mutex_unlock(&self->lock);
    return connected;
}

static enum idem_status
make_node(struct zk_store *self, const char *path, struct idem_error *err)
{
    struct zk_round *round = idem__zk_round_new(1);
    int rc;

    if (!round)
        return idem__fail(err, IDEM_ERR_MEMORY, "zookeeper: out of memory");
    idem__zk_create(self, &round->calls[0], path, (struct idem_bytes){"", 0});
    idem__zk_round_wait(self, round);
    rc = round->calls[0].rc;
    idem__zk_round_leave(round);
    if (rc == ZOK || rc == ZNODEEXISTS)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "zookeeper: cannot make %s: %s", path, zerror(rc));
}

/* Create the root and its parents, and the clock node. */
static enum idem_status
make_root(struct zk_store *self, struct idem_error *err)
{
    size_t len = strlen(self->root);
    char path[ZK_ROOT_MAX + 8];
    enum idem_status status = IDEM_OK;

    for (size_t i = 1; i <= len && status == IDEM_OK; i++) {
        if (i < len && self->root[i] != '/')
            continue;
        snprintf(path, sizeof(path), "%.*s", (int)i, self->root);
        status = make_node(self, path, err);
    }
    snprintf(path, sizeof(path), "%s/clock", self->root);
    if (status == IDEM_OK)
        status = make_node(self, path, err);
    self->rooted = status == IDEM_OK;
    return status;
}

enum idem_status
idem__zk_ready(struct zk_store *self, struct idem_error *err)
{
    int64_t now_us = idem__mono_us(), wait_us = self->connect_ms * 1000;

    if (self->zh && is_unrecoverable(self->zh) != ZOK)
        idem__zk_hang_up(self); /* the session expired */
    if (!self->zh && now_us >= self->try_after_us)
        start_session(self);
    /* The library keeps connecting. Shortly after a failed wait, do not wait
     * for it again. */
    if (self->try_after_us != 0)
        wait_us = now_us < self->try_after_us ? 0 : AGAIN_US;
    if (!self->zh || !wait_connected(self, now_us + wait_us)) {
        if (wait_us > 0)
            self->try_after_us = idem__mono_us() + PAUSE_US;
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "zookeeper %s: not connected", self->hosts);
    }
    self->try_after_us = 0;
    return self->rooted ? IDEM_OK : make_root(self, err);
}

/* ---- rounds ---------------------------------------------------------- */

struct zk_round *
idem__zk_round_new(size_t count)
{
    struct zk_round *round =
        calloc(1, sizeof(*round) + count * sizeof(round->calls[0]));

    if (!round)
        return NULL;
    pthread_mutex_init(&round->lock, NULL);
    idem__cond_init(&round->change);
    round->count = count;
    for (size_t i = 0; i < count; i++) {
        round->calls[i].round = round;
        round->calls[i].rc = ZINVALIDSTATE; /* was not sent */
    }
    return round;
}

static void
round_delete(struct zk_round *round)
{
    for (size_t i = 0; i < round->count; i++) {
        free(round->calls[i].data);
        deallocate_String_vector(&round->calls[i].names);
    }
    pthread_mutex_destroy(&round->lock);
    pthread_cond_destroy(&round->change);
    free(round);
}

void
idem__zk_round_leave(struct zk_round *round)
{
    bool last;

    if (!round)
        return;
    pthread_mutex_lock(&round->lock);
    round->left = true;
    last = round->unanswered == 0;
    pthread_mutex_unlock(&round->lock);
    if (last)
        round_delete(round);
}

void
idem__zk_round_wait(struct zk_store *self, struct zk_round *round)
{
    int64_t until_us = idem__mono_us() + self->timeout_ms * 1000;
    bool late = false;

    pthread_mutex_lock(&round->lock);
    while (round->unanswered > 0 && !late)
        late = !wait_until(&round->lock, &round->change, until_us);
    pthread_mutex_unlock(&round->lock);
    if (!late)
        return;
    /* Closing the session answers all open requests. */
    idem__zk_hang_up(self);
    self->try_after_us = idem__mono_us() + PAUSE_US;
}

/* Note an answer and, if nobody waits for the round any more, free it. */
static void
answered(struct zk_call *call, int rc)
{
    struct zk_round *round = call->round;
    bool last;

    pthread_mutex_lock(&round->lock);
    call->rc = rc;
    last = --round->unanswered == 0 && round->left;
    if (round->unanswered == 0)
        pthread_cond_signal(&round->change);
    pthread_mutex_unlock(&round->lock);
    if (last)
        round_delete(round);
}

static void
on_string(int rc, const char *value, const void *arg)
{
    (void)value;
    answered((struct zk_call *)arg, rc);
}

static void
on_void(int rc, const void *arg)
{
    answered((struct zk_call *)arg, rc);
}

static void
on_stat(int rc, const struct Stat *stat, const void *arg)
{
    struct zk_call *call = (struct zk_call *)arg;

    if (rc == ZOK && stat)
        call->stat = *stat;
    answered(call, rc);
}

static void
on_data(int rc, const char *value, int len, const struct Stat *stat,
        const void *arg)
{
    struct zk_call *call = (struct zk_call *)arg;

    if (rc == ZOK && stat)
        call->stat = *stat;
    if (rc == ZOK && value && len > 0) {
        call->data = malloc((size_t)len);
        if (call->data)
            memcpy(call->data, value, (size_t)len);
        else
            rc = ZSYSTEMERROR;
        call->data_len = len;
    }
    answered(call, rc);
}

/* All of the names, or an error: a scan must not leave one out. */
static int
copy_names(const struct String_vector *names, struct String_vector *copy)
{
    if (names->count == 0)
        return ZOK;
    copy->data = calloc((size_t)names->count, sizeof(*copy->data));
    if (!copy->data)
        return ZSYSTEMERROR;
    copy->count = names->count;
    for (int32_t i = 0; i < names->count; i++) {
        copy->data[i] = strdup(names->data[i]);
        if (!copy->data[i])
            return ZSYSTEMERROR;
    }
    return ZOK;
}

static void
on_names(int rc, const struct String_vector *names, const void *arg)
{
    struct zk_call *call = (struct zk_call *)arg;

    if (rc == ZOK)
        rc = copy_names(names, &call->names);
    answered(call, rc);
}

/* ---- requests -------------------------------------------------------- */

bool
idem__zk_is_loss(int rc)
{
    return rc == ZCONNECTIONLOSS || rc == ZOPERATIONTIMEOUT || rc == ZCLOSING ||
           rc == ZSESSIONEXPIRED || rc == ZSESSIONMOVED ||
           rc == ZRUNTIMEINCONSISTENCY;
}

static void
expect(struct zk_store *self, struct zk_call *call)
{
    self->requests++;
    pthread_mutex_lock(&call->round->lock);
    call->round->unanswered++;
    call->rc = ZOPERATIONTIMEOUT;
    pthread_mutex_unlock(&call->round->lock);
}

/* The library did not accept the request, so it was not sent. */
static void
taken(struct zk_call *call, int rc)
{
    if (rc != ZOK)
        answered(call, ZINVALIDSTATE);
}

void
idem__zk_create(struct zk_store *self, struct zk_call *call, const char *path,
                struct idem_bytes data)
{
    expect(self, call);
    taken(call, !self->zh
                    ? ZINVALIDSTATE
                    : zoo_acreate(self->zh, path, data.data, (int)data.len,
                                  self->acl, 0, on_string, call));
}

void
idem__zk_get(struct zk_store *self, struct zk_call *call, const char *path)
{
    expect(self, call);
    taken(call, !self->zh ? ZINVALIDSTATE
                          : zoo_aget(self->zh, path, 0, on_data, call));
}

void
idem__zk_exists(struct zk_store *self, struct zk_call *call, const char *path)
{
    expect(self, call);
    taken(call, !self->zh ? ZINVALIDSTATE
                          : zoo_aexists(self->zh, path, 0, on_stat, call));
}

void
idem__zk_set(struct zk_store *self, struct zk_call *call, const char *path)
{
    expect(self, call);
    taken(call, !self->zh ? ZINVALIDSTATE
                          : zoo_aset(self->zh, path, "", 0, -1, on_stat, call));
}

void
idem__zk_list(struct zk_store *self, struct zk_call *call, const char *path)
{
    expect(self, call);
    taken(call, !self->zh
                    ? ZINVALIDSTATE
                    : zoo_aget_children(self->zh, path, 0, on_names, call));
}

void
idem__zk_sync(struct zk_store *self, struct zk_call *call)
{
    expect(self, call);
    taken(call, !self->zh ? ZINVALIDSTATE
                          : zoo_async(self->zh, self->root, on_string, call));
}

void
idem__zk_change(struct zk_store *self, struct zk_call *call, const uint8_t *key,
                int shard_version, int version, struct idem_bytes data)
{
    int count = 0;

    idem__zk_shard_path(self, key[0], call->paths[0]);
    idem__zk_record_path(self, key, call->paths[1]);
    zoo_check_op_init(&call->ops[count++], call->paths[0], shard_version);
    if (data.data) {
        zoo_set_op_init(&call->ops[count++], call->paths[1], data.data,
                        (int)data.len, version, NULL);
    } else {
        zoo_set_op_init(&call->ops[count++], call->paths[0], "", 0, -1, NULL);
        zoo_delete_op_init(&call->ops[count++], call->paths[1], version);
    }
    expect(self, call);
    taken(call, !self->zh ? ZINVALIDSTATE
                          : zoo_amulti(self->zh, count, call->ops,
                                       call->results, on_void, call));
}

/* ---- paths ----------------------------------------------------------- */

void
idem__zk_shard_path(const struct zk_store *self, unsigned shard, char *path)
{
    snprintf(path, ZK_PATH_MAX, "%s/%02x", self->root, shard);
}

void
idem__zk_record_path(const struct zk_store *self, const uint8_t *key,
                     char *path)
{
    char hex[IDEM__HEX_LEN];

    idem__key_hex(key, hex);
    snprintf(path, ZK_PATH_MAX, "%s/%.2s/%.*s", self->root, hex, IDEM__HEX_LEN,
             hex);
}
