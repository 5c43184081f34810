/*
 * cmd_id.c - idem id: generate ids with a server, with a store, or with neither
 * (UUIDs).
 */
#include "../remote/remote.h"
#include "where.h"

#include "../id/id.h"
#include "../serve/core/server.h"

#include <errno.h>
#include <idem/id.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define A_CALL SERVER_COUNT_MAX

struct printer {
    json_t *list; /* NULL: print lines */
};

static void
print_id(void *arg, struct idem_bytes id)
{
    struct printer *printer = arg;

    if (printer->list)
        json_array_append_new(printer->list, json_stringn(id.data, id.len));
    else
        printf("%.*s\n", (int)id.len, (const char *)id.data);
}

/* Does in this process what a server does. */
static enum idem_status
make_ids(struct server *local, const char *kind, size_t count,
         struct printer *printer, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    while (status == IDEM_OK && count > 0) {
        size_t now = count < A_CALL ? count : A_CALL;

        status = server_ids(local, idem_text(kind), now, true, print_id,
                            printer, err);
        count -= now;
    }
    return status;
}

static enum idem_status
from_store(const struct cli_where *where, const char *url,
           const struct idem_ids_options *given, const char *kind, size_t count,
           struct printer *printer, struct idem_error *err)
{
    struct server local = {0};
    struct idem_ids_options options = *given;
    enum idem_status status =
        cli_store_open(where, url, NULL, &local.engine, err);

    if (status == IDEM_ERR_UNAVAILABLE)
        cli_advise_to_ask(err);
    /* Fetch ids one by one, because ids that are fetched and not printed would
     * leave a gap. */
    if (options.segment_step == 0)
        options.segment_step = 1;
    if (status == IDEM_OK)
        status = idem_ids_open(local.engine, &options, &local.ids, err);
    if (status == IDEM_OK)
        status = make_ids(&local, kind, count, printer, err);
    idem_ids_close(local.ids);
    idem_close(local.engine);
    return status;
}

static enum idem_status
ask_once(struct idem__remote_line *line, const char *kind, size_t count,
         struct printer *printer, struct idem_error *err)
{
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_reply reply;
    struct idem__wire_value value;
    enum idem_status status;
    size_t got = 0;

    idem__wire_add(&args, idem_text("ID"));
    idem__wire_add(&args, idem_text(kind));
    idem__wire_add_number(&args, (int64_t)count);
    status = idem__remote_line_ask(line, &args, &reply, err);
    if (status != IDEM_OK)
        return status;
    for (; idem__wire_take(&reply, IDEM__WIRE_BYTES, &value); got++) {
        if (got > 0) /* the first value is the word "ids" */
            print_id(printer, value.bytes);
    }
    if (got != count + 1)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "%s: unexpected reply: is this an idem server?",
                          line->address.shown);
    return IDEM_OK;
}

static enum idem_status
from_server(const struct cli_where *where, const char *kind, size_t count,
            struct printer *printer, struct idem_error *err)
{
    struct idem__remote_line line;
    enum idem_status status = cli_line_open(where, &line, err);

    if (status != IDEM_OK)
        return status;
    while (status == IDEM_OK && count > 0) {
        size_t now = count < A_CALL ? count : A_CALL;

        status = ask_once(&line, kind, now, printer, err);
        count -= now;
    }
    idem__remote_line_close(&line);
    return status;
}

static int
give_ids(const struct cli_where *where, const struct idem_ids_options *options,
         const char *kind, size_t count)
{
    struct printer printer = {.list = cli_json ? json_array() : NULL};
    struct idem_error err = {0};
    const char *url = cli_store_url(where);

    if (strncasecmp(kind, "uuid", 4) == 0)
        err.status = make_ids(&(struct server){0}, kind, count, &printer, &err);
    else if (url)
        err.status =
            from_store(where, url, options, kind, count, &printer, &err);
    else
        err.status = from_server(where, kind, count, &printer, &err);
    if (err.status != IDEM_OK) {
        json_decref(printer.list);
        return cli_fail(&err);
    }
    if (printer.list)
        cli_json_print(
            json_pack("{s:s,s:o}", "kind", kind, "ids", printer.list));
    return CLI_OK;
}

static void
tell_parts(const char *kind, const struct idem_id_parts *parts)
{
    char time[CLI_TIME_LEN], ends[CLI_TIME_LEN];

    cli_time(parts->time_ms, time);
    cli_time(parts->ends_ms, ends);
    if (cli_json) {
        cli_json_print(json_pack(
            "{s:s,s:s,s:I,s:I,s:I,s:s}", "kind", kind, "time", time, "time_ms",
            (json_int_t)parts->time_ms, "worker", (json_int_t)parts->worker,
            "sequence", (json_int_t)parts->sequence, "epoch_ends", ends));
        return;
    }
    cli_line("kind", "%s", kind);
    cli_line("time", "%s", time);
    cli_line("worker", "%" PRIu64, parts->worker);
    cli_line("sequence", "%" PRIu64, parts->sequence);
    cli_line("epoch ends", "%s", ends);
}

static int
explain_uuid(const char *text)
{
    struct idem_error err = {0};
    char time[CLI_TIME_LEN];
    int64_t time_ms;
    int version;

    err.status = idem_uuid_explain(text, &version, &time_ms, &err);
    if (err.status != IDEM_OK)
        return cli_fail(&err);
    if (cli_json) {
        cli_json_print(json_pack("{s:s,s:i,s:I}", "kind", "uuid", "version",
                                 version, "time_ms", (json_int_t)time_ms));
        return CLI_OK;
    }
    cli_line("kind", "uuid, version %d", version);
    if (time_ms >= 0)
        cli_line("time", "%s", cli_time(time_ms, time));
    return CLI_OK;
}

static int
explain(const char *text, const char *kind_name,
        const struct idem_ids_options *options)
{
    struct idem_id_parts parts;
    struct idem_error err = {0};
    enum idem_id_kind kind;
    char *end;
    uint64_t id;

    if (strchr(text, '-'))
        return explain_uuid(text);
    if (strcmp(kind_name, "snowflake") == 0)
        kind = IDEM_ID_SNOWFLAKE;
    else if (strcmp(kind_name, "uid") == 0)
        kind = IDEM_ID_UID;
    else
        return cli_usage_error(
            "explain: a %s has no parts; give a snowflake, a uid or a UUID",
            kind_name);
    errno = 0;
    id = strtoull(text, &end, 10);
    if (errno || *end || end == text)
        return cli_usage_error("\"%s\" is neither a number nor a UUID", text);
    err.status = idem_id_explain(kind, id, options, &parts, &err);
    if (err.status != IDEM_OK)
        return cli_fail(&err);
    tell_parts(kind_name, &parts);
    return CLI_OK;
}

/* Bits, epochs and steps are also options of the server. Its table names and
 * parses them, and its file and environment variables apply here, too. */
#define ID_OPTIONS 6

struct id_options {
    const char *names[ID_OPTIONS], *values[ID_OPTIONS], *file;
    size_t count;
};

static void
add_server_options(struct id_options *id, struct cli_option *options)
{
    const struct server_option *option;

    for (size_t i = 0; (option = server_config_option(i)); i++) {
        if (id->count == ID_OPTIONS || !idem__ids_option_known(option->name))
            continue;
        id->names[id->count] = option->name;
        options[id->count] = (struct cli_option){
            .name = option->name,
            .kind = CLI_TEXT,
            .into = &id->values[id->count],
            .value = option->value,
            .help = option->help,
        };
        id->count++;
    }
}

static enum idem_status
read_options(const struct id_options *id, struct idem_ids_options *options,
             struct idem_error *err)
{
    const char *file = id->file ? id->file : getenv("IDEM_CONFIG");
    struct server_config config;
    enum idem_status status = IDEM_OK;

    server_config_init(&config);
    if (file)
        status = server_config_file(&config, file, err);
    if (status == IDEM_OK)
        status = server_config_environment(&config, err);
    for (size_t i = 0; status == IDEM_OK && i < id->count; i++) {
        if (id->values[i])
            status =
                server_config_set(&config, id->names[i], id->values[i], err);
    }
    *options = config.ids;
    server_config_clear(&config);
    return status;
}

int
cli_id(int argc, char **argv)
{
    struct cli_where where = {0};
    const char *kind = "snowflake";
    int64_t count = 1;
    struct id_options id = {.count = 0};
    struct cli_option options[8 + ID_OPTIONS] = {
        CLI_WHERE_OPTIONS(&where),
        {"count", 'n', CLI_NUMBER, &count, "N", "how many (1)"},
        {"kind", 'k', CLI_TEXT, &kind, "KIND",
         "explain: the kind of the number (snowflake)"},
        {"config", 'c', CLI_TEXT, &id.file, "FILE",
         "the server's configuration file, for the options below (default: "
         "IDEM_CONFIG)"},
    };
    const struct cli_syntax syntax = {
        .usage = "id KIND [options]\n       idem id explain ID [--kind KIND]",
        .about =
            "Print unique ids, one per line. KIND is snowflake, uid, "
            "segment:NAME, uuid4 or uuid7; UUIDs need neither server nor "
            "store. explain takes an id apart. docs/ids.md describes the "
            "guarantees of each kind. The options for bits, epochs, steps and "
            "worker numbers apply to explain and to --store; a server uses its "
            "own. With --store the numbers of a segment are consecutive.",
        .options = options,
        .min_args = 1,
        .max_args = 2,
    };
    struct idem_ids_options given;
    struct idem_error err = {0};
    char **args;
    size_t arg_count;
    int code;

    add_server_options(&id, options + 7);
    code = cli_parse(&syntax, argc, argv, &args, &arg_count);
    if (code >= 0)
        return code;
    if (read_options(&id, &given, &err) != IDEM_OK)
        return cli_usage_error("%s", err.text);
    if (strcmp(args[0], "explain") == 0)
        return arg_count == 2
                   ? explain(args[1], kind, &given)
                   : cli_usage_error("explain: no id is given; give one");
    if (arg_count > 1)
        return cli_usage_error("give one kind; --count N prints several ids");
    if (count < 1 || count > 100000000)
        return cli_usage_error("--count must be 1 to 100000000");
    return give_ids(&where, &given, args[0], (size_t)count);
}
