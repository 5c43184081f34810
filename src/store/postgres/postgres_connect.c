/*
 * postgres_connect.c - one connection to PostgreSQL: opened with a time limit,
 * checked, prepared, and read without ever waiting for longer than the limit.
 *
 * The session is set up so that plans do not depend on how large the table was
 * when they were made (every access goes through an index), so that waiting
 * for a lock ends quickly, and so that a commit waits for the disk and for the
 * synchronous standby, whatever the server or the role has as a default.
 *
 * A backend that waits for a standby does not notice that its client has
 * disconnected. While a backend of this store waits like that, no new
 * connection is used. Otherwise every attempt would leave another such backend
 * behind, until the server has no free connections.
 */
#include "postgres.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_US 2000000
#define OPTIONS_MAX 120 /* libpq 18 has 50 */

static const char session[] =
    "set lock_timeout = '2ms';"
    "set default_transaction_isolation = 'read committed';"
    "set default_transaction_read_only = off;"
    "set enable_seqscan = off; set enable_hashjoin = off;"
    "set enable_mergejoin = off; set enable_material = off;"
    "set jit = off;"
    "set plan_cache_mode = force_generic_plan;"
    "set search_path = pg_catalog;"
    "set client_min_messages = warning;"
    "set client_encoding = 'UTF8'";

/* remote_apply is stronger than on; all other values are weaker. */
static const char commits[] =
    "select set_config('synchronous_commit', 'on', false) where "
    "current_setting('synchronous_commit') not in ('on', 'remote_apply')";

static int64_t
clock_us(const struct postgres_store *self)
{
    return idem__store_boot_us(&self->base);
}

int64_t
idem__postgres_deadline(const struct postgres_store *self)
{
    return clock_us(self) + self->timeout_us;
}

/* A longer timeout for batches also applies to connecting. */
static int64_t
connect_us(const struct postgres_store *self)
{
    return self->timeout_us > CONNECT_US ? self->timeout_us : CONNECT_US;
}

/* Print nothing, but remember a warning: a commit whose wait for the standby
 * was cancelled succeeds with a warning. */
static void
take_notice(void *arg, const PGresult *result)
{
    struct postgres_store *self = arg;
    const char *severity =
        PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

    if (severity && strcmp(severity, "WARNING") == 0)
        self->warned = true;
}

/* The length of the first line: libpq's messages end in a newline, and those of
 * a trigger may have several. */
static int
line_len(const char *text)
{
    return (int)strcspn(text, "\n");
}

static enum idem_status
fail_text(enum idem_status status, const char *text, struct idem_error *err)
{
    int len = line_len(text);

    return idem__fail(err, status, "postgres: %.*s", len,
                      len > 0 ? text : "the connection is lost");
}

enum idem_status
idem__postgres_fail(struct postgres_store *self, const PGresult *result,
                    struct idem_error *err)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    if (!text)
        text = PQerrorMessage(self->conn);
    if (!state)
        return fail_text(IDEM_ERR_UNAVAILABLE, text, err);
    if (strcmp(state, "42P01") == 0 || strcmp(state, "3F000") == 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: table idem.idem_record is missing; run "
                          "idem store init URL, or sql/postgres.sql by hand");
    if (strcmp(state, "42501") == 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: %.*s; the grants are in "
                          "docs/sql/README.md, Rights",
                          line_len(text) < 120 ? line_len(text) : 120, text);
    if (strcmp(state, "53100") == 0)
        return fail_text(IDEM_ERR_FULL, text, err);
    return fail_text(IDEM_ERR_UNAVAILABLE, text, err);
}

void
idem__postgres_disconnect(struct postgres_store *self)
{
    PQfinish(self->conn);
    self->conn = NULL;
}

void
idem__postgres_abandon(struct postgres_store *self)
{
    if (self->conn && PQstatus(self->conn) == CONNECTION_OK)
        self->stuck = PQbackendPID(self->conn);
    idem__postgres_disconnect(self);
}

/* ---- waiting --------------------------------------------------------- */

/* False: the deadline has passed, or poll failed. */
static bool
wait_for(struct postgres_store *self, short events, int64_t deadline_us)
{
    struct pollfd fd = {PQsocket(self->conn), events, 0};

    for (;;) {
        int64_t left_ms = (deadline_us - clock_us(self) + 999) / 1000;
        int n;

        if (left_ms <= 0)
            return false;
        n = poll(&fd, 1, (int)left_ms);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

bool
idem__postgres_flush(struct postgres_store *self, int64_t deadline_us)
{
    int left;

    while ((left = PQflush(self->conn)) == 1) {
        /* The server may stop reading until its output is read. */
        if (!wait_for(self, POLLIN | POLLOUT, deadline_us) ||
            !PQconsumeInput(self->conn))
            return false;
    }
    return left == 0;
}

PGresult *
idem__postgres_result(struct postgres_store *self, int64_t deadline_us,
                      bool *lost)
{
    while (PQisBusy(self->conn)) {
        if (!wait_for(self, POLLIN, deadline_us) ||
            !PQconsumeInput(self->conn)) {
            *lost = true;
            return NULL;
        }
    }
    if (PQstatus(self->conn) != CONNECTION_OK)
        *lost = true;
    return PQgetResult(self->conn);
}

/* ---- opening --------------------------------------------------------- */

static int
parts_of(const char *list)
{
    int parts = 1;

    for (; *list; list++)
        parts += *list == ',';
    return parts;
}

/* How many hosts the options name. 1, too, if their lists do not match: libpq
 * gets them as they are and says so. */
static int
hosts_of(const PQconninfoOption *options)
{
    int names = 0, addresses = 0, ports = 0, hosts;

    for (; options->keyword; options++) {
        int parts = options->val ? parts_of(options->val) : 0;

        if (strcmp(options->keyword, "host") == 0)
            names = parts;
        else if (strcmp(options->keyword, "hostaddr") == 0)
            addresses = parts;
        else if (strcmp(options->keyword, "port") == 0)
            ports = parts;
    }
    hosts = names > addresses ? names : addresses;
    if (names > 0 && addresses > 0 && names != addresses)
        return 1;
    return hosts > 1 && (ports <= 1 || ports == hosts) ? hosts : 1;
}

static bool
is_list(const char *keyword)
{
    return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
           strcmp(keyword, "port") == 0;
}

/* Cut one part out of a list. */
static const char *
take_part(char *list, int part)
{
    for (; part > 0; part--)
        list = strchr(list, ',') + 1;
    list[strcspn(list, ",")] = '\0';
    return list;
}

/* Start to connect to one of the URL's hosts. libpq tries several hosts in
 * turn, but with PQconnectPoll it waits for one that does not reply until TCP
 * gives up, which takes minutes, and no caller can make it go on. */
static PGconn *
start(struct postgres_store *self)
{
    const char *keys[OPTIONS_MAX + 3], *values[OPTIONS_MAX + 3];
    PQconninfoOption *options = PQconninfoParse(self->url, NULL);
    PGconn *conn;
    int n = 0;

    if (!options)
        return NULL;
    self->hosts = hosts_of(options);
    for (PQconninfoOption *o = options; o->keyword && n < OPTIONS_MAX; o++) {
        if (!o->val)
            continue;
        keys[n] = o->keyword;
        values[n++] = is_list(o->keyword) && parts_of(o->val) == self->hosts
                          ? take_part(o->val, self->host)
                          : o->val;
    }
    keys[n] = "fallback_application_name";
    values[n++] = "idem";
    keys[n] = "tcp_user_timeout";
    values[n++] = "10000";
    keys[n] = values[n] = NULL;
    conn = PQconnectStartParams(keys, values, 0);
    PQconninfoFree(options);
    return conn;
}

static enum idem_status
connect_one(struct postgres_store *self, struct idem_error *err)
{
    int64_t deadline = clock_us(self) + connect_us(self);
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;
    enum idem_status status;

    self->conn = start(self);
    if (!self->conn)
        return idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    PQsetNoticeReceiver(self->conn, take_notice, self);
    while (PQstatus(self->conn) != CONNECTION_BAD &&
           state != PGRES_POLLING_OK && state != PGRES_POLLING_FAILED) {
        short events = state == PGRES_POLLING_READING ? POLLIN : POLLOUT;

        if (!wait_for(self, events, deadline))
            break;
        state = PQconnectPoll(self->conn);
    }
    if (state == PGRES_POLLING_OK)
        return IDEM_OK;
    if (PQstatus(self->conn) != CONNECTION_BAD && state != PGRES_POLLING_FAILED)
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                            "postgres: no connection within %lld ms",
                            (long long)connect_us(self) / 1000);
    else
        status =
            fail_text(IDEM_ERR_UNAVAILABLE, PQerrorMessage(self->conn), err);
    idem__postgres_disconnect(self);
    return status;
}

void
idem__postgres_next_host(struct postgres_store *self)
{
    self->host = (self->host + 1) % self->hosts;
}

/* Begin with the host that worked last. */
enum idem_status
idem__postgres_connect_bare(struct postgres_store *self, struct idem_error *err)
{
    enum idem_status status;

    self->connects++;
    self->plan_after_us = 0; /* it has no plans yet */
    self->base.link = idem__new_rev();
    status = connect_one(self, err);
    for (int tried = 1; status == IDEM_ERR_UNAVAILABLE && tried < self->hosts;
         tried++) {
        idem__postgres_next_host(self);
        status = connect_one(self, err);
    }
    return status;
}

/* Read all results of what was sent; this many row sets are kept. */
static enum idem_status
read_all(struct postgres_store *self, PGresult **rows, size_t most,
         struct idem_error *err)
{
    int64_t deadline = clock_us(self) + connect_us(self);
    enum idem_status status = IDEM_OK;
    bool lost = false;

    for (;;) {
        PGresult *result = idem__postgres_result(self, deadline, &lost);
        ExecStatusType is = PQresultStatus(result);

        if (lost) {
            PQclear(result);
            return fail_text(IDEM_ERR_UNAVAILABLE, PQerrorMessage(self->conn),
                             err);
        }
        if (!result) {
            if (PQpipelineStatus(self->conn) == PQ_PIPELINE_OFF)
                return status;
            continue; /* between two statements */
        }
        if (is == PGRES_FATAL_ERROR && status == IDEM_OK)
            status = idem__postgres_fail(self, result, err);
        if (is == PGRES_TUPLES_OK && most > 0) {
            *rows++ = result;
            most--;
            continue;
        }
        PQclear(result);
        if (is == PGRES_PIPELINE_SYNC)
            return status;
    }
}

static bool
given_up(const struct postgres_store *self, const char *setting)
{
    return idem__word_in(self->unsafe, setting);
}

bool
idem__postgres_send_check(struct postgres_store *self)
{
    char pid[16];
    const char *values[1] = {pid};

    snprintf(pid, sizeof(pid), "%d", self->stuck);
    return PQsendQueryPrepared(self->conn, idem__postgres_names[POSTGRES_CHECK],
                               1, values, NULL, NULL, 0) == 1;
}

/* Refuse a server that may lose what it committed; the error names the
 * setting. */
enum idem_status
idem__postgres_judge(struct postgres_store *self, const PGresult *row,
                     struct idem_error *err)
{
    static const char *const settings[] = {"fsync", "full_page_writes",
                                           "synchronous_commit"};
    static const char *const enough[] = {"on", "remote_apply"};

    if (PQntuples(row) != 1)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: the server did not reply to the check");
    if (strcmp(PQgetvalue(row, 0, 0), "standby") == 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: this server is a standby; name the "
                          "primary, or add target_session_attrs=read-write");
    for (int i = 0; i < 3; i++) {
        const char *value = PQgetvalue(row, 0, i + 1);

        if (strcmp(value, enough[0]) != 0 && strcmp(value, enough[1]) != 0 &&
            !given_up(self, settings[i]))
            return idem__fail(
                err, IDEM_ERR_UNSUPPORTED,
                "postgres: %s is %s, so a power cut or a failover can lose or "
                "damage committed records: turn it on, or accept that with "
                "unsafe=%s in the URL",
                settings[i], value, settings[i]);
    }
    if (strcmp(PQgetvalue(row, 0, 4), "t") == 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: a commit still waits for the synchronous "
                          "standby; see pg_stat_replication");
    self->stuck = 0;
    return IDEM_OK;
}

/* Check the table, because rows are sent in its row type. */
static enum idem_status
judge_table(struct postgres_store *self, const PGresult *row,
            struct idem_error *err)
{
    int64_t columns = idem__postgres_number(row, 0, 1);

    self->row_type = (uint32_t)idem__postgres_number(row, 0, 0);
    if (columns != IDEM_COLUMN_COUNT)
        return idem__fail(
            err, IDEM_ERR_UNSUPPORTED,
            "postgres: table idem.idem_record has %d columns, "
            "where this idem knows %d: columns of your own belong "
            "in a table of your own",
            (int)columns, IDEM_COLUMN_COUNT);
    return idem__schema_judge("postgres", idem__postgres_number(row, 0, 2),
                              err);
}

static enum idem_status
prepare(struct postgres_store *self, struct idem_error *err)
{
    PGresult *rows[2] = {NULL, NULL};
    enum idem_status status;

    if (!PQenterPipelineMode(self->conn) || PQsetnonblocking(self->conn, 1))
        return fail_text(IDEM_ERR_UNAVAILABLE, PQerrorMessage(self->conn), err);
    for (int i = 0; i < POSTGRES_STATEMENTS; i++) {
        if (!PQsendPrepare(self->conn, idem__postgres_names[i],
                           idem__postgres_texts[i], 0, NULL))
            return fail_text(IDEM_ERR_UNAVAILABLE, PQerrorMessage(self->conn),
                             err);
        if (i == POSTGRES_CHECK)
            idem__postgres_send_check(self);
        if (i == POSTGRES_TABLE)
            PQsendQueryPrepared(self->conn, idem__postgres_names[i], 0, NULL,
                                NULL, NULL, 1);
    }
    PQpipelineSync(self->conn);
    if (!idem__postgres_flush(self, clock_us(self) + connect_us(self)))
        return fail_text(IDEM_ERR_UNAVAILABLE, PQerrorMessage(self->conn), err);
    status = read_all(self, rows, 2, err);
    /* Errors about the server's settings come before errors about missing
     * tables. */
    if (rows[0]) {
        enum idem_status judged = idem__postgres_judge(self, rows[0], err);

        if (judged == IDEM_OK && rows[1])
            judged = judge_table(self, rows[1], err);
        if (judged != IDEM_OK)
            status = judged;
    }
    PQclear(rows[0]);
    PQclear(rows[1]);
    return status;
}

static enum idem_status
set_up(struct postgres_store *self, const char *sql, struct idem_error *err)
{
    return PQsendQuery(self->conn, sql)
               ? read_all(self, NULL, 0, err)
               : fail_text(IDEM_ERR_UNAVAILABLE, PQerrorMessage(self->conn),
                           err);
}

static enum idem_status
connect_fresh(struct idem_store *store, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    enum idem_status status = idem__postgres_connect_bare(self, err);

    if (status != IDEM_OK)
        return status;
    status = set_up(self, session, err);
    if (status == IDEM_OK && !given_up(self, "synchronous_commit"))
        status = set_up(self, commits, err);
    if (status == IDEM_OK)
        status = prepare(self, err);
    if (status != IDEM_OK) {
        idem__postgres_disconnect(self);
        idem__postgres_next_host(self);
    }
    return status;
}

/* Detect a connection that broke while it was idle before it is used. */
static bool
still_there(struct postgres_store *self)
{
    struct pollfd fd;

    if (!self->conn || PQstatus(self->conn) != CONNECTION_OK)
        return false;
    fd = (struct pollfd){PQsocket(self->conn), POLLIN, 0};
    if (poll(&fd, 1, 0) <= 0)
        return true;
    return PQconsumeInput(self->conn) && PQstatus(self->conn) == CONNECTION_OK;
}

enum idem_status
idem__postgres_connect(struct postgres_store *self, struct idem_error *err)
{
    if (still_there(self))
        return IDEM_OK;
    idem__postgres_disconnect(self);
    return idem__retry_connect(&self->retry, &self->base, connect_fresh, err);
}
