/*
 * consume_sql.c - a consumer whose effect and record commit together.
 *
 *   $ idem store init sqlite:shop.db
 *   $ sqlite3 shop.db 'create table effect (id text)'
 *   $ build/examples/consume_sql 'amqp://localhost?queue=orders' shop.db
 *
 * The handler runs in one SQLite transaction with the record of the message, so
 * that whatever is killed whenever, each message's effect is there exactly
 * once.
 */
#include <idem/consume.h>
#include <idem/sql.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

static const char *database;

struct connection {
    sqlite3 *sqlite;
    struct idem_sql *sql;
};

/* Each handler's thread has a connection of its own, until it ends. */
static pthread_key_t mine;

static void
close_connection(void *arg)
{
    struct connection *old = arg;

    idem_sql_close(old->sql);
    sqlite3_close(old->sqlite);
    free(old);
}

static struct connection *
connection(void)
{
    struct connection *now = pthread_getspecific(mine);

    if (now)
        return now;
    now = calloc(1, sizeof(*now));
    if (!now || sqlite3_open(database, &now->sqlite) != SQLITE_OK ||
        sqlite3_busy_timeout(now->sqlite, 10000) != SQLITE_OK ||
        idem_sql_sqlite(now->sqlite, &now->sql, NULL) != IDEM_OK ||
        pthread_setspecific(mine, now) != 0)
        abort();
    return now;
}

/* The business part: one row, with no unique key to help it. */
static enum idem_state
write_effect(void *arg, struct idem_sql *db, uint64_t fence,
             struct idem_bytes *result)
{
    const struct idem_message *message = arg;
    sqlite3_stmt *insert = NULL;
    int rc;

    (void)db;
    (void)fence;
    (void)result;
    rc = sqlite3_prepare_v2(connection()->sqlite,
                            "insert into effect values (?)", -1, &insert, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(insert, 1, message->id.data, (int)message->id.len,
                          SQLITE_STATIC);
        rc = sqlite3_step(insert);
    }
    sqlite3_finalize(insert);
    return rc == SQLITE_DONE ? IDEM_STATE_SUCCEEDED : IDEM_STATE_ABSENT;
}

static enum idem_handled
handle(void *arg, const struct idem_message *message, struct idem_error *err)
{
    const struct idem_op op = {.verb = IDEM_BEGIN,
                               .scope = message->scope,
                               .id = message->id,
                               .wait_ms = 5000};
    struct idem_answer answer = {0};
    enum idem_verdict verdict;

    (void)arg;
    if (idem_sql_run(connection()->sql, &op, write_effect, (void *)message,
                     &answer, err) != IDEM_OK)
        return IDEM_NOT_HANDLED; /* undone, or found again by its key */
    verdict = answer.verdict;
    idem_answer_clear(&answer);
    return verdict == IDEM_V_STARTED || verdict == IDEM_V_REPLAY
               ? IDEM_HANDLED
               : IDEM_NOT_HANDLED;
}

int
main(int argc, char **argv)
{
    struct idem_consume_options options = {.handle = handle,
                                           .own_record = true,
                                           .max_attempts = 100,
                                           .backoff_ms = 20,
                                           .stop_when_idle_ms = 3000};
    struct idem_consumer *consumer = NULL;
    struct idem_consume_stats stats;
    struct idem_error err = {0};

    if (argc != 3) {
        fprintf(stderr, "usage: consume_sql SOURCE DATABASE\n");
        return 2;
    }
    options.source = argv[1];
    database = argv[2];
    if (pthread_key_create(&mine, close_connection) != 0 ||
        idem_consume_open(NULL, &options, &consumer, &err) != IDEM_OK ||
        idem_consume_run(consumer, &err) != IDEM_OK) {
        fprintf(stderr, "%s\n", err.text);
        idem_consume_close(consumer);
        return 1;
    }
    idem_consume_stats(consumer, &stats);
    printf("handled %llu of %llu deliveries\n",
           (unsigned long long)stats.handled,
           (unsigned long long)stats.received);
    idem_consume_close(consumer);
    return 0;
}
