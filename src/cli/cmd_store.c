/*
 * cmd_store.c - idem store: set up a store, check whether it is usable, print
 * the SQL that sets it up by hand, or copy records to another store.
 */
#include "cli.h"

#include "../remote/remote.h"
#include "../store/columns.h"
#include "verb.h"
#include "where.h"

#include <inttypes.h>
#include <string.h>

static struct cli_where where;
static const char *reason;
static const struct cli_option options[] = {
    CLI_SERVER_OPTIONS(&where),
    CLI_REASON_OPTION(&reason),
    {0},
};

static const struct cli_syntax syntax = {
    .options = options,
    .usage = "store init URL\n"
             "store check URL\n"
             "store sql postgres|mysql|sqlite\n"
             "store copy FROM TO\n"
             "store accept-rollback [--reason TEXT] [--server ADDRESS]",
    .about =
        "init creates or updates the table, its indexes and the SQL functions, "
        "and opens the store once. You can run it again without harm. check "
        "opens the store as a server would, which refuses unsafe settings, and "
        "prints the store's time; it does not create a journal or an SQLite "
        "file. sql prints the statements of init.\n"
        "copy copies every record of one store to another store, of the same "
        "or another kind. Stop everything that uses them, copy, then start "
        "with the new URL. You can repeat a copy. If the second store has a "
        "different record with the same key, copy reports it and does not "
        "change it (exit code 1). copy does not create FROM.\n"
        "accept-rollback tells a server whose store went back to an older "
        "state to continue. Requests that the server knows to be lost come "
        "into doubt; other requests of the lost time may run again.",
    .min_args = 1,
    .max_args = 3,
};

/* Open the store once after the setup, so that "ready" is printed only if it
 * works. */
static int
init(const char *url)
{
    struct idem_error err = {0};
    struct idem_store *store = NULL;
    char shown[256];

    if (idem__store_init(url, &err) != IDEM_OK ||
        idem__store_open(url, NULL, &store, &err) != IDEM_OK)
        return cli_fail(&err);
    idem__store_close(store);
    idem__url_redact(url, shown, sizeof(shown));
    if (cli_json)
        cli_json_print(json_pack("{s:s, s:b}", "store", shown, "ready", 1));
    else
        printf("%s is ready\n", shown);
    return CLI_OK;
}

/* What the store says about itself while it is opened. */
static void
say(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    if (level != IDEM_LOG_INFO)
        fprintf(stderr, "idem: %s: %s\n",
                level == IDEM_LOG_WARNING ? "warning" : "alarm", text);
    else if (!cli_json)
        printf("%s\n", text);
}

static int
check(const char *url)
{
    const struct idem_store_options said = {.log = say};
    struct idem_error err = {0};
    struct idem_store *store;
    char shown[256], time[CLI_TIME_LEN];
    enum idem_status status = cli_store_exists(url, NULL, &err);
    int64_t now_us = 0;

    if (status == IDEM_OK)
        status = idem__store_open(url, &said, &store, &err);
    if (status != IDEM_OK)
        return cli_fail(&err);
    if (store->type->now)
        status = store->type->now(store, &now_us, &err);
    idem__url_redact(url, shown, sizeof(shown));
    if (status == IDEM_OK && cli_json)
        cli_json_print(json_pack("{s:s, s:b, s:I, s:I}", "store", shown,
                                 "ready", 1, "now", (json_int_t)now_us / 1000,
                                 "max_record", (json_int_t)store->max_record));
    else if (status == IDEM_OK)
        printf("%s is ready to use; its clock says %s\n", shown,
               cli_time(now_us / 1000, time));
    idem__store_close(store);
    return status == IDEM_OK ? CLI_OK : cli_fail(&err);
}

static int
print_sql(const char *which)
{
    const struct {
        const char *name, *script;
    } scripts[] = {
        {"postgres", idem__postgres_script},
        {"mysql", idem__mysql_script},
        {"sqlite", idem__sqlite_script},
    };

    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        if (strcmp(scripts[i].name, which) == 0) {
            cli_text_begin();
            fputs(scripts[i].script, stdout);
            cli_text_end("sql");
            return CLI_OK;
        }
    }
    return cli_usage_error(
        "store sql: unknown database \"%s\"; give postgres, mysql or sqlite",
        which);
}

static void
show_copied(void *arg, const struct idem_store_copied *now)
{
    (void)arg;
    cli_progress("%" PRIu64 " records", now->records);
}

static int
copy(const char *from, const char *to)
{
    struct idem_store_copied copied;
    struct idem_error err = {0};
    enum idem_status status = cli_store_exists(from, NULL, &err);

    if (status == IDEM_OK)
        status = idem__store_copy(from, to, show_copied, NULL, &copied, &err);
    cli_progress(NULL);
    if (status != IDEM_OK)
        return cli_fail(&err);
    if (cli_json)
        cli_json_print(json_pack("{s:I, s:I}", "records",
                                 (json_int_t)copied.records, "others",
                                 (json_int_t)copied.others));
    else
        printf("%" PRIu64 " records are in the second store\n", copied.records);
    if (copied.others > 0 && !cli_json)
        fprintf(stderr,
                "idem: %" PRIu64 " keys were not copied: the second store has "
                "other records for them\n",
                copied.others);
    return copied.others > 0 ? CLI_FAILED : CLI_OK;
}

static int
accept_rollback(void)
{
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_reply reply;
    struct idem__remote_line line;
    struct idem_error err = {0};

    err.status = cli_line_open(&where, &line, &err);
    if (err.status == IDEM_OK) {
        idem__wire_add(&args, idem_text("ROLLBACK"));
        idem__wire_add(&args, idem_text("ACCEPT"));
        if (reason) {
            idem__wire_add(&args, idem_text("REASON"));
            idem__wire_add(&args, idem_text(reason));
        }
        err.status = idem__remote_line_ask(&line, &args, &reply, &err);
        idem__remote_line_close(&line);
    }
    if (err.status != IDEM_OK)
        return cli_fail(&err);
    if (cli_json)
        cli_json_print(json_pack("{s:b}", "accepted", 1));
    else
        printf("accepted: the server continues with the store as it is\n");
    return CLI_OK;
}

int
cli_store(int argc, char **argv)
{
    char **args;
    size_t count;
    int done = cli_parse(&syntax, argc, argv, &args, &count);

    if (done >= 0)
        return done;
    if (strcmp(args[0], "accept-rollback") == 0 && count == 1)
        return accept_rollback();
    if (count < 2)
        return cli_usage_error("store %s: an argument is missing", args[0]);
    if (strcmp(args[0], "copy") == 0)
        return count == 3
                   ? copy(args[1], args[2])
                   : cli_usage_error("store copy: give the URLs of two stores");
    if (count > 2)
        return cli_usage_error("store %s takes one argument", args[0]);
    if (strcmp(args[0], "init") == 0)
        return init(args[1]);
    if (strcmp(args[0], "check") == 0)
        return check(args[1]);
    if (strcmp(args[0], "sql") == 0)
        return print_sql(args[1]);
    return cli_usage_error("store: unknown command \"%s\"; give init, check, "
                           "sql, copy or accept-rollback",
                           args[0]);
}
