/*
 * cmd_audit.c - idem audit: list operator actions from a server's audit trail.
 */
#include "../remote/remote.h"
#include "where.h"

#include <string.h>

struct query {
    struct cli_where where;
    const char *scope, *id;
    int64_t count;
};

/* A value, or its base64 form if it is not UTF-8. */
static const char *
text_of(const json_t *entry, const char *name)
{
    const char *text = json_string_value(json_object_get(entry, name));
    char coded[64];

    if (text)
        return text;
    snprintf(coded, sizeof(coded), "%s_base64", name);
    text = json_string_value(json_object_get(entry, coded));
    return text ? text : "";
}

/* Made safe, because somebody may have edited the file, or the server may not
 * be ours. An entry that is not about a record has no scope and no id. */
static void
print_field(const json_t *entry, const char *name, const char *then)
{
    const char *text = text_of(entry, name);

    cli_print_safe(stdout, idem_text(*text ? text : "-"));
    fputs(then, stdout);
}

static void
print_entry(struct idem_bytes line)
{
    json_t *entry = json_loadb(line.data, line.len, 0, NULL);

    if (cli_json) {
        cli_json_print(entry);
        return;
    }
    print_field(entry, "time", " ");
    print_field(entry, "who", " ");
    if (*text_of(entry, "proposed_by")) {
        fputs("(proposed by ", stdout);
        print_field(entry, "proposed_by", ") ");
    }
    print_field(entry, "verb", " ");
    print_field(entry, "scope", " ");
    print_field(entry, "id", " ");
    print_field(entry, "verdict", ": ");
    print_field(entry, "before", " -> ");
    print_field(entry, "after", "");
    if (*text_of(entry, "reason")) {
        fputs(" \"", stdout);
        print_field(entry, "reason", "\"");
    }
    putchar('\n');
    json_decref(entry);
}

static enum idem_status
ask(const struct query *query, struct idem__remote_line *line,
    struct idem_error *err)
{
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_reply reply;
    struct idem__wire_value value;
    enum idem_status status;
    size_t got = 0;

    idem__wire_add(&args, idem_text("AUDIT"));
    if (query->scope) {
        idem__wire_add(&args, idem_text("SCOPE"));
        idem__wire_add(&args, idem_text(query->scope));
    }
    if (query->id) {
        idem__wire_add(&args, idem_text("ID"));
        idem__wire_add(&args, idem_text(query->id));
    }
    idem__wire_add(&args, idem_text("COUNT"));
    idem__wire_add_number(&args, query->count);
    status = idem__remote_line_ask(line, &args, &reply, err);
    if (status != IDEM_OK)
        return status;
    for (; idem__wire_take(&reply, IDEM__WIRE_BYTES, &value); got++) {
        if (got > 0) /* the first value is the word "entries" */
            print_entry(value.bytes);
        else if (!idem__bytes_is(value.bytes, "entries"))
            break;
    }
    return got > 0 ? IDEM_OK : idem__wire_unexpected(err);
}

int
cli_audit(int argc, char **argv)
{
    struct query query = {.count = 100};
    const struct cli_option options[] = {
        CLI_SERVER_OPTIONS(&query.where),
        {"scope", 0, CLI_FILTER, &query.scope, "SCOPE", "only this scope"},
        {"id", 0, CLI_FILTER, &query.id, "ID", "only this id"},
        {"count", 'n', CLI_NUMBER, &query.count, "N",
         "the last N actions, at most 1000; default 100"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "audit [options]",
        .about = "List what operators did (settle --as, forget, unlock "
                 "--reason, store accept-rollback), oldest first, one per "
                 "line: time, operator, command, scope, id, verdict, the state "
                 "before and after, the reason. --json also shows from which "
                 "address. The server's audit file goes further back.",
        .options = options,
    };
    struct idem__remote_line line;
    struct idem_error err = {0};
    int code = cli_parse(&syntax, argc, argv, NULL, NULL);

    if (code >= 0)
        return code;
    if (query.count < 1 || query.count > 1000)
        return cli_usage_error("--count must be 1 to 1000");
    err.status = cli_line_open(&query.where, &line, &err);
    if (err.status == IDEM_OK) {
        err.status = ask(&query, &line, &err);
        idem__remote_line_close(&line);
    }
    return err.status == IDEM_OK ? CLI_OK : cli_fail(&err);
}
