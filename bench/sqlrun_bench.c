/*
 * sqlrun_bench.c - what a record costs in the service's own transaction:
 * transactions a second of one business update, from as many connections, in
 * one run: as it is (begin, the update, commit: three round trips); with
 * idem_sql_run (three too); with idem_sql_run_statements (one); and with a
 * dedup row by hand (a bare INSERT of a unique key and a result of the same
 * length, nothing else). The update and the INSERT are prepared statements in
 * all of them; the isolation is the session's own.
 *
 *   sqlrun_bench URL [SECONDS [CONNECTIONS [SERVER]]]     postgres:// or
 * mysql://
 *
 * With the process id of the server: also the processor time of a transaction,
 * of the server and of this program, which differs less than the rate does
 * while others use the machine.
 */
#include <dirent.h>
#include <idem/sql.h>
#include <libpq-fe.h>
#include <mysql.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ROWS 1000
#define RESULT "{\"done\":true}"

#define UPDATE "update bench_account set balance = balance - 1 where id = "
#define INSERT "insert into bench_once (id, result) values "

enum way { PLAIN, BY_HAND, WITH_RECORD, STATEMENTS, WAYS };

static const char *url;
static atomic_bool stop;
static atomic_size_t done;
static int server; /* its process id; 0: not known */

struct session {
    PGconn *postgres;
    MYSQL *mysql;
    MYSQL_STMT *update, *insert;
    struct idem_sql *idem;
    unsigned seed;
    char id[64];
    size_t number;
    enum way way;
};

static void
must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "sqlrun_bench: %s\n", what);
    exit(1);
}

static void
run(struct session *s, const char *sql)
{
    if (s->postgres) {
        PGresult *result = PQexec(s->postgres, sql);

        must(PQresultStatus(result) == PGRES_COMMAND_OK,
             PQerrorMessage(s->postgres));
        PQclear(result);
    } else {
        must(mysql_query(s->mysql, sql) == 0, mysql_error(s->mysql));
    }
}

static MYSQL_STMT *
prepare(struct session *s, const char *name, const char *sql)
{
    MYSQL_STMT *statement = NULL;

    if (s->postgres) {
        PGresult *result = PQprepare(s->postgres, name, sql, 0, NULL);

        must(PQresultStatus(result) == PGRES_COMMAND_OK,
             PQerrorMessage(s->postgres));
        PQclear(result);
    } else {
        statement = mysql_stmt_init(s->mysql);
        must(mysql_stmt_prepare(statement, sql, strlen(sql)) == 0,
             mysql_error(s->mysql));
    }
    return statement;
}

/* The same statements for everybody, once their tables are there. */
static void
prepare_all(struct session *s)
{
    s->update = prepare(s, "update", s->postgres ? UPDATE "$1" : UPDATE "?");
    s->insert =
        prepare(s, "insert", s->postgres ? INSERT "($1, $2)" : INSERT "(?, ?)");
}

static void
execute(struct session *s, MYSQL_STMT *statement, const char *name,
        const char *const *values, int count)
{
    MYSQL_BIND binds[2] = {{0}};

    if (s->postgres) {
        PGresult *result =
            PQexecPrepared(s->postgres, name, count, values, NULL, NULL, 0);

        must(PQresultStatus(result) == PGRES_COMMAND_OK,
             PQerrorMessage(s->postgres));
        PQclear(result);
        return;
    }
    for (int i = 0; i < count; i++) {
        binds[i].buffer_type = MYSQL_TYPE_STRING;
        binds[i].buffer = (void *)values[i];
        binds[i].buffer_length = strlen(values[i]);
    }
    must(mysql_stmt_bind_param(statement, binds) == 0 &&
             mysql_stmt_execute(statement) == 0,
         mysql_stmt_error(statement));
}

static void
open_session(struct session *s)
{
    struct idem_error err;

    if (strncmp(url, "postgres", 8) == 0) {
        s->postgres = PQconnectdb(url);
        must(PQstatus(s->postgres) == CONNECTION_OK,
             PQerrorMessage(s->postgres));
        must(idem_sql_postgres(s->postgres, &s->idem, &err) == IDEM_OK,
             "adapter");
    } else {
        char user[64], password[64], host[64], database[64];
        int port;

        must(sscanf(url, "mysql://%63[^:]:%63[^@]@%63[^:]:%d/%63s", user,
                    password, host, &port, database) == 5,
             "the URL");
        s->mysql = mysql_init(NULL);
        must(mysql_real_connect(s->mysql, host, user, password, database,
                                (unsigned)port, NULL, 0),
             mysql_error(s->mysql));
        must(idem_sql_mysql(s->mysql, &s->idem, &err) == IDEM_OK, "adapter");
    }
}

static void
close_session(struct session *s)
{
    idem_sql_close(s->idem);
    PQfinish(s->postgres);
    if (s->update) {
        mysql_stmt_close(s->update);
        mysql_stmt_close(s->insert);
    }
    if (s->mysql)
        mysql_close(s->mysql);
}

static enum idem_state
business(void *arg, struct idem_sql *db, uint64_t fence,
         struct idem_bytes *result)
{
    struct session *s = arg;
    char row[24];
    const char *values[] = {row};

    (void)db;
    (void)fence;
    snprintf(row, sizeof(row), "%d", rand_r(&s->seed) % ROWS);
    execute(s, s->update, "update", values, 1);
    *result = idem_text(RESULT);
    return IDEM_STATE_SUCCEEDED;
}

static void
insert_by_hand(struct session *s)
{
    const char *values[] = {s->id, RESULT};

    execute(s, s->insert, "insert", values, 2);
}

static void
one(struct session *s)
{
    struct idem_op op = {.scope = idem_text("bench")};
    struct idem_answer answer;
    struct idem_bytes result;
    struct idem_error err;

    snprintf(s->id, sizeof(s->id), "%d-%u-%zu", (int)getpid(), s->seed,
             s->number++);
    op.id = idem_text(s->id);
    if (s->way == PLAIN || s->way == BY_HAND) {
        run(s, "start transaction");
        if (s->way == BY_HAND)
            insert_by_hand(s);
        business(s, s->idem, 0, &result);
        run(s, "commit");
        return;
    }
    if (s->way == STATEMENTS) {
        struct idem_sql_value row = idem_sql_int(rand_r(&s->seed) % ROWS);
        struct idem_sql_statement update = {UPDATE "?", &row, 1};

        must(idem_sql_run_statements(s->idem, &op, &update, 1,
                                     idem_text(RESULT), &answer,
                                     &err) == IDEM_OK,
             err.text);
    } else {
        must(idem_sql_run(s->idem, &op, business, s, &answer, &err) == IDEM_OK,
             err.text);
    }
    must(answer.verdict == IDEM_V_STARTED, idem_verdict_name(answer.verdict));
    idem_answer_clear(&answer);
}

static void *
client(void *arg)
{
    struct session s = *(struct session *)arg;

    open_session(&s);
    prepare_all(&s);
    while (!stop) {
        one(&s);
        done++;
    }
    close_session(&s);
    return NULL;
}

/* Nanoseconds that the threads of a process have run. */
static double
threads_ns(const char *pid)
{
    char path[600];
    double sum = 0;
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%s/task", pid);
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        unsigned long long ns = 0;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%s/task/%s/schedstat", pid,
                 entry->d_name);
        file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file && fscanf(file, "%llu", &ns) == 1)
            sum += (double)ns;
        if (file)
            fclose(file);
    }
    if (dir)
        closedir(dir);
    return sum;
}

static bool
is_child(const char *pid, int parent)
{
    char path[64];
    int found = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    file = fopen(path, "r");
    if (file && fscanf(file, "%*d (%*[^)]) %*c %d", &found) != 1)
        found = 0;
    if (file)
        fclose(file);
    return found == parent;
}

/* Of the server and its child processes, and of this program. */
static double
processor_us(void)
{
    struct dirent *entry;
    struct rusage own;
    char pid[16];
    double sum;
    DIR *dir;

    if (server == 0)
        return 0;
    snprintf(pid, sizeof(pid), "%d", server);
    sum = threads_ns(pid) / 1000;
    dir = opendir("/proc");
    while (dir && (entry = readdir(dir))) {
        if (strtol(entry->d_name, NULL, 10) > 0 &&
            is_child(entry->d_name, server))
            sum += threads_ns(entry->d_name) / 1000;
    }
    if (dir)
        closedir(dir);
    getrusage(RUSAGE_SELF, &own);
    return sum + (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) * 1e6 +
           (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
}

static double
measure(enum way way, double seconds, size_t connections, double *used_us)
{
    pthread_t threads[256];
    struct session sessions[256] = {{0}};
    struct timespec from, to;
    double before;

    stop = false;
    for (size_t i = 0; i < connections; i++) {
        sessions[i].way = way;
        sessions[i].seed = randombytes_random(); /* a part of the ids, too */
        must(pthread_create(&threads[i], NULL, client, &sessions[i]) == 0,
             "thread");
    }
    usleep(300000);
    before = processor_us();
    done = 0;
    clock_gettime(CLOCK_MONOTONIC, &from);
    usleep((useconds_t)(seconds * 1000000));
    clock_gettime(CLOCK_MONOTONIC, &to);
    seconds = (double)done / ((double)(to.tv_sec - from.tv_sec) +
                              (double)(to.tv_nsec - from.tv_nsec) / 1e9);
    *used_us += (processor_us() - before) / (double)done;
    stop = true;
    for (size_t i = 0; i < connections; i++)
        pthread_join(threads[i], NULL);
    return seconds;
}

int
main(int argc, char **argv)
{
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 3;
    size_t connections = argc > 3 ? strtoul(argv[3], NULL, 10) : 16;
    struct session setup = {0};
    double rate[WAYS] = {0}, used[WAYS] = {0};

    must(argc > 1 && connections >= 1 && connections <= 256,
         "sqlrun_bench URL [SECONDS [CONNECTIONS [SERVER]]]");
    url = argv[1];
    server = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 0;
    open_session(&setup);
    run(&setup, "drop table if exists bench_account");
    run(&setup, "create table bench_account (id int not null primary key, "
                "balance bigint not null)");
    run(&setup, "drop table if exists bench_once");
    run(&setup, "create table bench_once (id varchar(64) not null primary key, "
                "result varchar(200) not null)");
    for (int i = 0; i < ROWS; i++) {
        char sql[96];

        snprintf(sql, sizeof(sql), "insert into bench_account values (%d, 0)",
                 i);
        if (i == 0)
            run(&setup, "start transaction");
        run(&setup, sql);
    }
    run(&setup, "commit");
    close_session(&setup);
    /* In turns, so that both meet the same disk. */
    for (int i = 0; i < 3 * WAYS; i++)
        rate[i % WAYS] +=
            measure(i % WAYS, seconds / 3, connections, &used[i % WAYS]) / 3;
    printf("%.0f transactions/s without; %.0f with idem_sql_run, ratio %.2f; "
           "%.0f with idem_sql_run_statements, ratio %.2f; "
           "%.0f with a bare dedup row by hand, ratio %.2f\n",
           rate[PLAIN], rate[WITH_RECORD], rate[WITH_RECORD] / rate[PLAIN],
           rate[STATEMENTS], rate[STATEMENTS] / rate[PLAIN], rate[BY_HAND],
           rate[BY_HAND] / rate[PLAIN]);
    if (server)
        printf("processor time a transaction: %.0f us without; %.0f with "
               "idem_sql_run; %.0f with idem_sql_run_statements; %.0f by "
               "hand\n",
               used[PLAIN] / 3, used[WITH_RECORD] / 3, used[STATEMENTS] / 3,
               used[BY_HAND] / 3);
    return 0;
}
