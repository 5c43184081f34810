/*
 * postgres_watch.c - receives changes with LISTEN, on a separate connection.
 *
 * Commits with NOTIFY wait for each other, so NOTIFY is used only if somebody
 * waits. A waiter holds a shared advisory lock of the key in the session that
 * listens. The transaction that ends a record tries to take that lock
 * exclusively, and notifies if it cannot (POSTGRES_NOTIFY). A waiter that comes
 * in between does not get the lock, and polls by itself; a waiter that got the
 * lock looks at the record once more.
 */
#include "postgres.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* `session` is a copy of the store of which only the connection is used. */
struct ear {
    struct idem__watcher *watcher;
    struct postgres_store session;
    int64_t retry_at_us;
    struct idem_buf query;
};

static void
hang_up(struct ear *ear)
{
    if (!ear->session.conn)
        return;
    idem__postgres_disconnect(&ear->session);
    idem__watcher_tell(ear->watcher, IDEM_NEWS_UNWATCHED, NULL);
}

static void
hear_all(struct ear *ear)
{
    PGnotify *notify;
    uint8_t key[IDEM_KEY_LEN];

    while (ear->session.conn && (notify = PQnotifies(ear->session.conn))) {
        if (idem__key_from_hex(notify->extra, strlen(notify->extra), key))
            idem__watcher_tell(ear->watcher, IDEM_NEWS_CHANGED, key);
        PQfreemem(notify);
    }
}

/* Report the result of watching: each row has a key, and whether the lock was
 * taken. Rows of unwatching have one column. */
static void
tell_rows(struct ear *ear, const PGresult *rows)
{
    uint8_t key[IDEM_KEY_LEN];

    for (int i = 0; PQnfields(rows) == 2 && i < PQntuples(rows); i++) {
        if (idem__key_from_hex(PQgetvalue(rows, i, 0),
                               (size_t)PQgetlength(rows, i, 0), key))
            idem__watcher_tell(ear->watcher,
                               PQgetvalue(rows, i, 1)[0] == 't'
                                   ? IDEM_NEWS_WATCHED
                                   : IDEM_NEWS_UNWATCHED,
                               key);
    }
}

static void
ask(struct ear *ear, const char *query)
{
    struct postgres_store *session = &ear->session;
    int64_t deadline_us = idem__postgres_deadline(session);
    bool ok = PQsendQuery(session->conn, query) == 1, lost = false;

    while (ok && !lost) {
        PGresult *rows = idem__postgres_result(session, deadline_us, &lost);

        if (!rows)
            break;
        ok = PQresultStatus(rows) == PGRES_TUPLES_OK ||
             PQresultStatus(rows) == PGRES_COMMAND_OK;
        if (ok && !lost)
            tell_rows(ear, rows);
        PQclear(rows);
    }
    hear_all(ear);
    if (!ok || lost)
        hang_up(ear);
}

static bool
is_ready(struct ear *ear)
{
    struct postgres_store *session = &ear->session;
    int64_t now_us = idem__store_boot_us(&session->base);

    if (session->conn)
        return true;
    if (now_us < ear->retry_at_us)
        return false;
    ear->retry_at_us = now_us + 1000000;
    if (idem__postgres_connect_bare(session, NULL) == IDEM_OK)
        ask(ear, "set client_min_messages = error; "
                 "set search_path = pg_catalog; listen idem_wake");
    if (!session->conn) /* a standby refuses it; another host may not */
        idem__postgres_next_host(session);
    return session->conn != NULL;
}

/* Send as many waiting orders of one kind as possible in one query. */
static size_t
carry_out(struct ear *ear, const struct idem__watch_order *orders, size_t count)
{
    bool on = orders[0].on;
    size_t done = 0;

    idem_buf_reset(&ear->query);
    idem_buf_add_text(&ear->query,
                      on ? "select key, pg_try_advisory_lock_shared(lock) "
                           "from (values "
                         : "select pg_advisory_unlock_shared(lock) "
                           "from (values ");
    for (; done < count && orders[done].on == on; done++) {
        char hex[IDEM__HEX_LEN];

        idem__key_hex(orders[done].key, hex);
        idem_buf_printf(&ear->query, "%s('%.*s', %lld::int8)",
                        done > 0 ? "," : "", (int)sizeof(hex), hex,
                        (long long)idem__postgres_wake_lock(orders[done].key));
    }
    if (!is_ready(ear)) {
        for (size_t i = 0; on && i < done; i++)
            idem__watcher_tell(ear->watcher, IDEM_NEWS_UNWATCHED,
                               orders[i].key);
        return done;
    }
    if (idem_buf_add(&ear->query, ") as n(key, lock)", 18))
        ask(ear, (const char *)ear->query.data);
    else
        hang_up(ear);
    return done;
}

/* Sleep until an order or a notification comes; false: none came for a long
 * time. */
static bool
listen_once(struct ear *ear)
{
    struct pollfd polls[2] = {{ear->watcher->bell, POLLIN, 0}, {-1, POLLIN, 0}};
    int events;

    if (ear->session.conn)
        polls[1].fd = PQsocket(ear->session.conn);
    events = poll(polls, 2, IDEM__WATCH_IDLE_MS);
    if (events > 0 && polls[1].revents != 0 &&
        !PQconsumeInput(ear->session.conn))
        hang_up(ear);
    hear_all(ear);
    return events != 0;
}

void
idem__postgres_listen(struct idem__watcher *watcher)
{
    const struct postgres_store *self = (struct postgres_store *)watcher->store;
    struct ear ear = {.watcher = watcher,
                      .session = {.base.clocks = self->base.clocks,
                                  .url = self->url,
                                  .timeout_us = self->timeout_us}};
    struct idem_buf orders;
    size_t keys;

    idem_buf_init(&orders, watcher->orders.cap);
    idem_buf_init(&ear.query, 4 * watcher->orders.cap);
    while (idem__watcher_take(watcher, &orders, &keys)) {
        const struct idem__watch_order *order = (const void *)orders.data;
        size_t count = orders.len / sizeof(*order);

        for (size_t at = 0; at < count;)
            at += carry_out(&ear, order + at, count - at);
        if (!listen_once(&ear) && keys == 0)
            idem__postgres_disconnect(&ear.session);
    }
    idem__postgres_disconnect(&ear.session);
    idem_buf_clear(&ear.query);
    idem_buf_clear(&orders);
}

bool
idem__postgres_watch(struct idem_store *store, const uint8_t key[IDEM_KEY_LEN],
                     bool on)
{
    struct postgres_store *self = (struct postgres_store *)store;

    return idem__watcher_order(&self->watcher, key, on, 0);
}
