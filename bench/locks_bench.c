/*
 * locks_bench.c - lock and unlock pairs a second as each server's own recipe
 * has it, without idem: a connection for each thread, a lock for each thread,
 * one durable write to lock and one to unlock. Each lock ends by itself if its
 * holder dies, as idem's does.
 *
 *   locks_bench URL SECONDS THREADS
 *
 *   redis      SET NX PX; a script deletes the key if it has the holder's token
 *   postgres   INSERT of a row with its end, ON CONFLICT UPDATE if the end has
 *              passed; DELETE of the holder's row
 *   mysql      the same with ON DUPLICATE KEY UPDATE
 *   zookeeper  create of an ephemeral node; delete
 *   etcd       a transaction that puts the key with the session's lease unless
 *              it is there; a delete of the key
 */
#include "../src/store/store.h"

#include <curl/curl.h>
#include <hiredis/hiredis.h>
#include <libpq-fe.h>
#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zookeeper/zookeeper.h>

#define THREADS_MAX 256
#define TABLE                                                                  \
    "create table if not exists bench_lock (name varchar(64) primary key, "    \
    "owner varchar(64) not null, until bigint not null)"
#define UNLOCK "delete from bench_lock where name = "
#define UNLOCK_REDIS                                                           \
    "if redis.call('get', KEYS[1]) == ARGV[1] then "                           \
    "return redis.call('del', KEYS[1]) else return 0 end"

struct holder {
    char name[32], key64[32];
    const char *address; /* what follows :// */
    const char *url;
    redisContext *redis;
    PGconn *postgres;
    MYSQL *mysql;
    MYSQL_STMT *lock, *unlock;
    zhandle_t *zookeeper;
    CURL *curl;
    struct idem_buf reply;
    char lease[32];
    uint64_t pairs;
    int64_t end_us;
};

static pthread_barrier_t opened;

static void
must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "locks_bench: %s\n", what);
    exit(1);
}

/* ---- Redis -------------------------------------------------------------- */

static void
redis_open(struct holder *h)
{
    int port = (int)strtol(strchr(h->address, ':') + 1, NULL, 10);

    h->redis = redisConnect("127.0.0.1", port);
    must(h->redis && !h->redis->err, "redis");
}

static void
redis_pair(struct holder *h)
{
    redisReply *reply =
        redisCommand(h->redis, "SET %s %s NX PX 30000", h->name, h->name);

    must(reply && reply->type == REDIS_REPLY_STATUS, "redis: SET");
    freeReplyObject(reply);
    reply = redisCommand(h->redis, "EVAL %s 1 %s %s", UNLOCK_REDIS, h->name,
                         h->name);
    must(reply && reply->integer == 1, "redis: EVAL");
    freeReplyObject(reply);
}

/* ---- PostgreSQL --------------------------------------------------------- */

static void
postgres_do(struct holder *h, PGresult *result, const char *rows)
{
    must(PQresultStatus(result) == PGRES_COMMAND_OK &&
             (!rows || strcmp(PQcmdTuples(result), rows) == 0),
         PQerrorMessage(h->postgres));
    PQclear(result);
}

static void
postgres_open(struct holder *h)
{
    h->postgres = PQconnectdb(h->url);
    must(PQstatus(h->postgres) == CONNECTION_OK, "postgres");
    postgres_do(
        h,
        PQprepare(h->postgres, "lock",
                  "insert into bench_lock as l values ($1, $2, (extract("
                  "epoch from now()) * 1000)::int8 + 30000) on conflict "
                  "(name) do update set owner = excluded.owner, until = "
                  "excluded.until where l.until < (extract(epoch from "
                  "now()) * 1000)::int8",
                  0, NULL),
        NULL);
    postgres_do(
        h,
        PQprepare(h->postgres, "unlock", UNLOCK "$1 and owner = $2", 0, NULL),
        NULL);
}

static void
postgres_pair(struct holder *h)
{
    const char *values[] = {h->name, h->name};

    postgres_do(
        h, PQexecPrepared(h->postgres, "lock", 2, values, NULL, NULL, 0), "1");
    postgres_do(h,
                PQexecPrepared(h->postgres, "unlock", 2, values, NULL, NULL, 0),
                "1");
}

/* ---- MariaDB ------------------------------------------------------------ */

static MYSQL_STMT *
mysql_prepared(struct holder *h, const char *sql)
{
    MYSQL_STMT *s = mysql_stmt_init(h->mysql);

    must(s && mysql_stmt_prepare(s, sql, strlen(sql)) == 0,
         mysql_error(h->mysql));
    return s;
}

static void
mysql_open(struct holder *h)
{
    char user[64], password[64], host[64], database[64];
    int port;

    must(sscanf(h->address, "%63[^:]:%63[^@]@%63[^:]:%d/%63s", user, password,
                host, &port, database) == 5,
         "the URL");
    h->mysql = mysql_init(NULL);
    must(mysql_real_connect(h->mysql, host, user, password, database,
                            (unsigned)port, NULL, 0),
         mysql_error(h->mysql));
    h->lock = mysql_prepared(
        h,
        "insert into bench_lock values (?, ?, unix_timestamp(now(3)) * 1000 + "
        "30000) on duplicate key update owner = if(until < "
        "unix_timestamp(now(3)) * 1000, values(owner), owner), until = "
        "if(until < unix_timestamp(now(3)) * 1000, values(until), until)");
    h->unlock = mysql_prepared(h, UNLOCK "? and owner = ?");
}

static void
mysql_pair(struct holder *h)
{
    MYSQL_STMT *both[] = {h->lock, h->unlock};

    for (int i = 0; i < 2; i++) {
        MYSQL_BIND binds[2] = {{0}};

        for (int k = 0; k < 2; k++) {
            binds[k].buffer_type = MYSQL_TYPE_STRING;
            binds[k].buffer = h->name;
            binds[k].buffer_length = strlen(h->name);
        }
        must(mysql_stmt_bind_param(both[i], binds) == 0 &&
                 mysql_stmt_execute(both[i]) == 0 &&
                 mysql_stmt_affected_rows(both[i]) == 1,
             mysql_stmt_error(both[i]));
    }
}

/* ---- ZooKeeper ---------------------------------------------------------- */

static void
no_log(const char *message)
{
    (void)message;
}

static void
zookeeper_open(struct holder *h)
{
    h->zookeeper =
        zookeeper_init2(h->address, NULL, 30000, NULL, NULL, 0, no_log);
    for (int i = 0; i < 3000 && zoo_state(h->zookeeper) != ZOO_CONNECTED_STATE;
         i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    must(zoo_state(h->zookeeper) == ZOO_CONNECTED_STATE, "zookeeper");
}

static void
zookeeper_pair(struct holder *h)
{
    char path[40];

    snprintf(path, sizeof(path), "/%s", h->name);
    must(zoo_create(h->zookeeper, path, h->name, (int)strlen(h->name),
                    &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0) == ZOK &&
             zoo_delete(h->zookeeper, path, -1) == ZOK,
         "zookeeper");
}

/* ---- etcd --------------------------------------------------------------- */

static size_t
keep(char *data, size_t size, size_t count, void *arg)
{
    return idem_buf_add(arg, data, size * count) ? size * count : 0;
}

/* The reply ends with a zero byte. */
static const char *
etcd_post(struct holder *h, const char *path, const char *body)
{
    char url[200];

    snprintf(url, sizeof(url), "http://%s/v3/%s", h->address, path);
    idem_buf_reset(&h->reply);
    curl_easy_setopt(h->curl, CURLOPT_URL, url);
    curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, body);
    must(curl_easy_perform(h->curl) == CURLE_OK &&
             idem_buf_add(&h->reply, "", 1),
         "etcd");
    return (const char *)h->reply.data;
}

static void
etcd_open(struct holder *h)
{
    const char *id;

    idem_buf_init(&h->reply, 65536);
    h->curl = curl_easy_init();
    curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, &h->reply);
    curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    id = strstr(etcd_post(h, "lease/grant", "{\"TTL\":600}"), "\"ID\":\"");
    must(id && sscanf(id + 6, "%31[0-9]", h->lease) == 1, "etcd: lease");
}

static void
etcd_pair(struct holder *h)
{
    char body[400];

    snprintf(body, sizeof(body),
             "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\","
             "\"create_revision\":\"0\"}],\"success\":[{\"request_put\":{"
             "\"key\":\"%s\",\"value\":\"%s\",\"lease\":\"%s\"}}]}",
             h->key64, h->key64, h->key64, h->lease);
    must(strstr(etcd_post(h, "kv/txn", body), "\"succeeded\":true") != NULL,
         "etcd: the key is there");
    snprintf(body, sizeof(body), "{\"key\":\"%s\"}", h->key64);
    must(strstr(etcd_post(h, "kv/deleterange", body), "\"deleted\":\"1\"") !=
             NULL,
         "etcd: the key is not there");
}

/* ---- all of them -------------------------------------------------------- */

static const struct recipe {
    const char *scheme;
    void (*open)(struct holder *h);
    void (*pair)(struct holder *h);
} recipes[] = {
    {"redis", redis_open, redis_pair},
    {"postgres", postgres_open, postgres_pair},
    {"mysql", mysql_open, mysql_pair},
    {"zookeeper", zookeeper_open, zookeeper_pair},
    {"etcd", etcd_open, etcd_pair},
};
static const struct recipe *recipe;
static double seconds;

static void *
work(void *arg)
{
    struct holder *h = arg;

    recipe->open(h);
    pthread_barrier_wait(&opened);
    h->end_us = idem__mono_us() + (int64_t)(seconds * 1e6);
    while (idem__mono_us() < h->end_us) {
        recipe->pair(h);
        h->pairs++;
    }
    return NULL;
}

static void
make_table(const char *url, const char *address)
{
    struct holder h = {.url = url, .address = address};

    if (recipe->open == postgres_open) {
        h.postgres = PQconnectdb(url);
        postgres_do(
            &h, PQexec(h.postgres, "set client_min_messages = error; " TABLE),
            NULL);
        PQfinish(h.postgres);
    } else if (recipe->open == mysql_open) {
        char user[64], password[64], host[64], database[64];
        int port;

        must(sscanf(address, "%63[^:]:%63[^@]@%63[^:]:%d/%63s", user, password,
                    host, &port, database) == 5,
             "the URL");
        h.mysql = mysql_init(NULL);
        must(mysql_real_connect(h.mysql, host, user, password, database,
                                (unsigned)port, NULL, 0) &&
                 mysql_query(h.mysql, TABLE) == 0,
             mysql_error(h.mysql));
        mysql_close(h.mysql);
    }
}

int
main(int argc, char **argv)
{
    static struct holder holders[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    unsigned count = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    const char *address = argc > 1 ? strstr(argv[1], "://") : NULL;
    uint64_t pairs = 0;

    for (size_t i = 0; address && i < sizeof(recipes) / sizeof(*recipes); i++) {
        if (strncmp(argv[1], recipes[i].scheme, strlen(recipes[i].scheme)) == 0)
            recipe = &recipes[i];
    }
    must(recipe && count >= 1 && count <= THREADS_MAX,
         "usage: see the head of locks_bench.c");
    seconds = strtod(argv[2], NULL);
    make_table(argv[1], address + 3);
    pthread_barrier_init(&opened, NULL, count);
    for (unsigned i = 0; i < count; i++) {
        struct holder *h = &holders[i];

        h->url = argv[1];
        h->address = address + 3;
        snprintf(h->name, sizeof(h->name), "raw-lock-%03u", i);
        snprintf(h->key64, sizeof(h->key64), "cmF3LWxvY2st%04u", i);
        must(pthread_create(&threads[i], NULL, work, h) == 0, "thread");
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        pairs += holders[i].pairs;
    }
    printf("%.0f\n", (double)pairs / seconds);
    return 0;
}
