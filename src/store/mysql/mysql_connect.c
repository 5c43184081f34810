/*
 * mysql_connect.c - one connection to MariaDB (or MySQL): parses the URL, sets
 * up the session, and checks that the server keeps what it commits.
 *
 *   mysql://user:password@host:3306/database
 *     ?socket=/run/mysqld/mysqld.sock  ?timeout_ms=2000
 *     ?tls=1: encrypt; ?ca=FILE: also require a certificate that this
 *     authority signed for this host; ?cert=FILE  ?key=FILE: the client's own
 *     ?unsafe=flush,binlog,doublewrite,quorum    skips that check, see judge()
 */
#include "mysql.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEFAULT_PORT 3306
#define TIMEOUT_MS 2000
#define CONNECT_S 2

/* ---- the URL --------------------------------------------------------- */

static const char *const known[] = {"unsafe", "timeout_ms", "tls", "socket",
                                    "ca",     "cert",       "key", NULL};

/* Copy a text that may be missing; false: out of memory. */
static bool
copy(const char *from, char **to)
{
    *to = from ? strdup(from) : NULL;
    return *to || !from;
}

static bool
keep_parts(struct mysql_store *self, const struct idem__url *url)
{
    const char *unsafe = idem__url_option(url, "unsafe");
    const char *tls = idem__url_option(url, "tls");

    snprintf(self->unsafe, sizeof(self->unsafe), "%s", unsafe ? unsafe : "");
    self->port = (unsigned)url->hosts[0].port;
    self->tls = tls && strcmp(tls, "0") != 0;
    if (!copy(url->hosts[0].name, &self->host) ||
        !copy(url->user, &self->user) ||
        !copy(url->password, &self->password) ||
        !copy(url->path, &self->database) ||
        !copy(idem__url_option(url, "socket"), &self->socket) ||
        !copy(idem__url_option(url, "ca"), &self->ca) ||
        !copy(idem__url_option(url, "cert"), &self->cert) ||
        !copy(idem__url_option(url, "key"), &self->key))
        return false;
    if (self->ca || self->cert || self->key)
        self->tls = true;
    return true;
}

enum idem_status
idem__mysql_parse(struct mysql_store *self, const char *text,
                  struct idem_error *err)
{
    struct idem__url url;
    int64_t timeout_ms;
    enum idem_status status =
        idem__url_parse(text, DEFAULT_PORT, known, &url, err);

    idem_buf_init(&self->query, IDEM__MYSQL_QUERY_MAX);
    if (status != IDEM_OK)
        return status;
    status = idem__url_number(&url, "timeout_ms", 10, 600000, TIMEOUT_MS,
                              &timeout_ms, err);
    if (status == IDEM_OK && (!url.path || url.host_count != 1))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "mysql: name one host and a database: "
                            "mysql://user:password@host:3306/database");
    else if (status == IDEM_OK && !keep_parts(self, &url))
        status = idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
    self->timeout_s = (unsigned)((timeout_ms + 999) / 1000);
    idem__url_clear(&url);
    return status;
}

/* ---- errors ---------------------------------------------------------- */

bool
idem__mysql_is_gone(const struct mysql_store *self)
{
    unsigned code = mysql_errno(self->conn);

    return code == ER_SERVER_SHUTDOWN || code == ER_CONNECTION_KILLED ||
           (code >= CR_MIN_ERROR && code <= CR_MAX_ERROR) || code >= 5000;
}

enum idem_status
idem__mysql_fail(struct mysql_store *self, struct idem_error *err)
{
    unsigned code = mysql_errno(self->conn);
    enum idem_status status = IDEM_ERR_UNAVAILABLE;
    const char *text = mysql_error(self->conn);
    int len = (int)strcspn(text, "\n"); /* a trigger may write several lines */

    if (code == ER_NO_SUCH_TABLE)
        return idem__fail(err, status,
                          "mysql: table idem_record is missing; run idem store "
                          "init URL, or sql/mysql.sql by hand");
    if (code == ER_TABLEACCESS_DENIED_ERROR || code == ER_DBACCESS_DENIED_ERROR)
        return idem__fail(err, status,
                          "mysql: %.*s (%u); the grants are in "
                          "docs/sql/README.md, Rights",
                          len < 120 ? len : 120, text, code);
    if (code == ER_DISK_FULL || code == ER_RECORD_FILE_FULL)
        status = IDEM_ERR_FULL;
    return idem__fail(err, status, "mysql: %.*s (%u)", len, text, code);
}

void
idem__mysql_disconnect(struct mysql_store *self)
{
    if (self->conn)
        mysql_close(self->conn);
    self->conn = NULL;
    /* Close it after its connection, so that nothing is sent to the server. */
    idem__mysql_bulk_close(self->bulk);
    self->bulk = NULL;
}

/* ---- checking the server --------------------------------------------- */

struct settings {
    char flush[16], binlog[16], sync_binlog[16], galera[16], read_only[16];
    char binlog_engine[16];
    char doublewrite[16], packet[24], format[16];
    bool no_quorum;
};

static bool
is_on(const char *value)
{
    return strcmp(value, "ON") == 0 || strcmp(value, "1") == 0;
}

/* Is this Galera option on? The server shows it as it was written. */
static bool
provider_has(const char *options, const char *name)
{
    const char *at = strstr(options, name);

    at = at ? at + strlen(name) : "0";
    return !strchr("0nNfF", at[0]) && strncasecmp(at, "off", 3) != 0;
}

static void
keep(struct settings *s, const char *name, const char *value)
{
    const struct {
        const char *name;
        char *into;
        size_t len;
    } wanted[] = {
        {"innodb_flush_log_at_trx_commit", s->flush, sizeof(s->flush)},
        {"log_bin", s->binlog, sizeof(s->binlog)},
        {"sync_binlog", s->sync_binlog, sizeof(s->sync_binlog)},
        {"binlog_storage_engine", s->binlog_engine, sizeof(s->binlog_engine)},
        {"wsrep_on", s->galera, sizeof(s->galera)},
        {"read_only", s->read_only, sizeof(s->read_only)},
        {"innodb_doublewrite", s->doublewrite, sizeof(s->doublewrite)},
        {"max_allowed_packet", s->packet, sizeof(s->packet)},
        {"binlog_format", s->format, sizeof(s->format)},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        if (strcmp(wanted[i].name, name) == 0)
            snprintf(wanted[i].into, wanted[i].len, "%s", value);
    }
    if (strcmp(name, "wsrep_provider_options") == 0)
        s->no_quorum |= provider_has(value, "pc.ignore_quorum = ") ||
                        provider_has(value, "pc.ignore_sb = ");
    if (strncmp(name, "wsrep_provider_pc_ignore_", 25) == 0)
        s->no_quorum |= is_on(value); /* the names of MariaDB 11.8 */
}

/* Refuse settings with which the server may lose a commit; the error names
 * them. */
static enum idem_status
judge(struct mysql_store *self, const struct settings *s,
      struct idem_error *err)
{
    const struct {
        bool bad;
        const char *word, *text;
    } rules[] = {
        {strcmp(s->flush, "1") != 0, "flush",
         "innodb_flush_log_at_trx_commit is not 1, so a power cut loses "
         "commits"},
        {is_on(s->binlog) && strcmp(s->sync_binlog, "1") != 0, "binlog",
         "the binary log is on and sync_binlog is not 1, so a power cut makes "
         "replicas differ"},
        {strcmp(s->doublewrite, "OFF") == 0 ||
             strcmp(s->doublewrite, "0") == 0 ||
             strcmp(s->doublewrite, "DETECT_ONLY") == 0,
         "doublewrite",
         "innodb_doublewrite is off or DETECT_ONLY, so a power cut may damage "
         "pages"},
        {s->no_quorum, "quorum",
         "pc.ignore_quorum or pc.ignore_sb of wsrep_provider_options is on, so "
         "a part of the cluster that is cut off goes on alone"},
    };

    if (is_on(s->read_only))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "mysql: this server is read-only (a replica?): name "
                          "the primary");
    if (is_on(s->binlog) && strcmp(s->format, "STATEMENT") == 0)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "mysql: the binary log is on and binlog_format is "
                          "STATEMENT, which writes nothing under READ "
                          "COMMITTED: use MIXED or ROW");
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (rules[i].bad && !idem__word_in(self->unsafe, rules[i].word))
            return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                              "mysql: %s: change it, or give that up with "
                              "unsafe=%s in the URL",
                              rules[i].text, rules[i].word);
    }
    return IDEM_OK;
}

/* A node may be behind the others, so it must catch up before it reads. There
 * are no guesses on Galera, see mysql_batch.c. */
static bool
set_galera(struct mysql_store *self)
{
    idem__mysql_bulk_close(self->bulk);
    self->bulk = NULL;
    return mysql_query(self->conn, "set session wsrep_sync_wait = 15, "
                                   "session wsrep_dirty_reads = 0") == 0;
}

enum idem_status
idem__mysql_check(struct mysql_store *self, struct idem_error *err)
{
    static const char query[] =
        "show global variables where variable_name in "
        "('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', "
        "'binlog_storage_engine', "
        "'wsrep_on', 'read_only', 'innodb_doublewrite', 'max_allowed_packet', "
        "'binlog_format', 'wsrep_provider_options', "
        "'wsrep_provider_pc_ignore_quorum', 'wsrep_provider_pc_ignore_sb')";
    struct settings settings = {0};
    MYSQL_RES *rows;
    MYSQL_ROW row;

    if (mysql_query(self->conn, query) != 0 ||
        !(rows = mysql_store_result(self->conn)))
        return idem__mysql_fail(self, err);
    while ((row = mysql_fetch_row(rows)))
        keep(&settings, row[0], row[1] ? row[1] : "");
    mysql_free_result(rows);
    self->packet_max = strtoull(settings.packet, NULL, 10);
    self->galera = is_on(settings.galera);
    /* A binary log of its own is synced before a commit can be seen. */
    self->durable_reads = is_on(settings.binlog) &&
                          strcmp(settings.sync_binlog, "1") == 0 &&
                          settings.binlog_engine[0] == 0;
    if (self->galera && !set_galera(self))
        return idem__mysql_fail(self, err);
    return judge(self, &settings, err);
}

static enum idem_status
check_table(struct mysql_store *self, struct idem_error *err)
{
    static const char query[] =
        "select engine from information_schema.tables "
        "where table_schema = database() and table_name = 'idem_record'";
    enum idem_status status = IDEM_OK;
    MYSQL_RES *rows;
    MYSQL_ROW row;

    if (mysql_query(self->conn, query) != 0 ||
        !(rows = mysql_store_result(self->conn)))
        return idem__mysql_fail(self, err);
    row = mysql_fetch_row(rows);
    if (!row)
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                            "mysql: table idem_record is missing, or this user "
                            "must not see it; run idem store init URL, or "
                            "grant what docs/sql/README.md shows, Rights");
    else if (!row[0] || strcmp(row[0], "InnoDB") != 0)
        status = idem__fail(err, IDEM_ERR_UNSUPPORTED,
                            "mysql: table idem_record uses the engine %s, "
                            "which has no transactions: use InnoDB",
                            row[0] ? row[0] : "(none)");
    mysql_free_result(rows);
    return status;
}

/* An account that may not read the version can work without it. */
static enum idem_status
check_version(struct mysql_store *self, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    MYSQL_RES *rows;
    MYSQL_ROW row;

    if (mysql_query(self->conn, "select max(version) from idem_version") != 0 ||
        !(rows = mysql_store_result(self->conn)))
        return mysql_errno(self->conn) == ER_TABLEACCESS_DENIED_ERROR ||
                       mysql_errno(self->conn) == ER_NO_SUCH_TABLE
                   ? IDEM_OK
                   : idem__mysql_fail(self, err);
    row = mysql_fetch_row(rows);
    if (row && row[0])
        status = idem__schema_judge("mysql", strtoll(row[0], NULL, 10), err);
    mysql_free_result(rows);
    return status;
}

/* ---- opening --------------------------------------------------------- */

enum idem_status
idem__mysql_connect_bare(struct mysql_store *self, struct idem_error *err)
{
    /* A longer timeout for batches also applies to connecting. */
    unsigned connect_s =
        self->timeout_s > CONNECT_S ? self->timeout_s : CONNECT_S;
    my_bool tls = self->tls, verify = self->ca != NULL;
    enum idem_status status;

    self->connects++;
    self->base.link = idem__new_rev();
    self->conn = mysql_init(NULL);
    if (!self->conn)
        return idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
    mysql_options(self->conn, MYSQL_OPT_CONNECT_TIMEOUT, &connect_s);
    mysql_options(self->conn, MYSQL_OPT_READ_TIMEOUT, &self->timeout_s);
    mysql_options(self->conn, MYSQL_OPT_WRITE_TIMEOUT, &self->timeout_s);
    mysql_options(self->conn, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    if (tls) {
        mysql_ssl_set(self->conn, self->key, self->cert, self->ca, NULL, NULL);
        mysql_options(self->conn, MYSQL_OPT_SSL_ENFORCE, &tls);
        mysql_options(self->conn, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
    }
    if (mysql_real_connect(self->conn, self->host, self->user, self->password,
                           self->database, self->port, self->socket,
                           CLIENT_MULTI_STATEMENTS))
        return IDEM_OK;
    status = idem__mysql_fail(self, err);
    idem__mysql_disconnect(self);
    return status;
}

static enum idem_status
set_session(struct mysql_store *self, struct idem_error *err)
{
    bool mariadb = strstr(mysql_get_server_info(self->conn), "MariaDB") != NULL;
    char query[300];

    /* MariaDB: 0 is "do not wait"; MySQL cannot go below a second. */
    snprintf(query, sizeof(query),
             "set session sql_mode = 'STRICT_ALL_TABLES', "
             "session %s = 'READ-COMMITTED', "
             "session innodb_lock_wait_timeout = %d, "
             "session time_zone = '+00:00', session autocommit = 1",
             mariadb ? "tx_isolation" : "transaction_isolation", !mariadb);
    self->waits = !mariadb;
    if (mysql_query(self->conn, query) != 0)
        return idem__mysql_fail(self, err);
    return IDEM_OK;
}

static enum idem_status
connect_fresh(struct idem_store *store, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status = idem__mysql_connect_bare(self, err);

    if (status != IDEM_OK)
        return status;
    status = set_session(self, err);
    if (status == IDEM_OK)
        status = idem__mysql_check(self, err);
    if (status == IDEM_OK)
        status = check_table(self, err);
    if (status == IDEM_OK)
        status = check_version(self, err);
    if (status == IDEM_OK && mysql_autocommit(self->conn, 0))
        status = idem__mysql_fail(self, err);
    if (status != IDEM_OK)
        idem__mysql_disconnect(self);
    else if (!self->galera)
        self->bulk = idem__mysql_bulk_open(self->conn);
    return status;
}

/* Detect a connection that broke while it was idle before it is used. A server
 * rarely sends anything unasked, so if the socket is readable, it is tested. */
static bool
still_there(struct mysql_store *self)
{
    struct pollfd fd;

    if (!self->conn)
        return false;
    fd = (struct pollfd){(int)mysql_get_socket(self->conn), POLLIN, 0};
    return poll(&fd, 1, 0) == 0 || mysql_ping(self->conn) == 0;
}

enum idem_status
idem__mysql_connect(struct mysql_store *self, struct idem_error *err)
{
    if (still_there(self))
        return IDEM_OK;
    idem__mysql_disconnect(self);
    return idem__retry_connect(&self->retry, &self->base, connect_fresh, err);
}
