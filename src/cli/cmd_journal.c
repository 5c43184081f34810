/*
 * cmd_journal.c - idem journal: inspect the files of a journal without changing
 * them.
 */
#include "cli.h"

#include "../store/journal/journal_check.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static bool all, results;

static const struct cli_option options[] = {
    {"all", 'a', CLI_FLAG, &all, NULL,
     "dump: all entries, also replaced records, deletes and marks"},
    {"results", 'r', CLI_FLAG, &results, NULL, "dump: with the results"},
    {0},
};

static const struct cli_syntax syntax = {
    .usage = "journal check DIR\njournal dump DIR [--all] [--results]",
    .about = "Read the files of a journal (DIR or journal:DIR), whether a "
             "process is using it or not. This changes nothing. check reads "
             "every byte and reports every damaged place; its exit code is 1 "
             "if there is one. dump "
             "prints the current records, one per line.",
    .options = options,
    .min_args = 2,
    .max_args = 2,
};

static void
print_damage(void *arg, uint64_t segment, uint64_t at, const char *what)
{
    json_t *places = arg;

    if (places) {
        json_array_append_new(places, json_pack("{s:I, s:I, s:s}", "segment",
                                                (json_int_t)segment, "offset",
                                                (json_int_t)at, "what", what));
        return;
    }
    printf("damaged: segment %016" PRIx64 " at offset %" PRIu64 ": ", segment,
           at);
    cli_print_safe(stdout, idem_text(what));
    putchar('\n');
}

static void
print_report(const struct journal_report *r)
{
    char time[CLI_TIME_LEN];

    printf("segments: %" PRIu64 " (%016" PRIx64 " to %016" PRIx64 ")\n",
           r->segments, r->first_segment, r->last_segment);
    printf("entries:  %" PRIu64 " (%" PRIu64 " records, %" PRIu64
           " deletes, %" PRIu64 " marks)\n",
           r->entries, r->records, r->deletes, r->marks);
    printf("records:  %" PRIu64 " current, %" PRIu64 " of them executing\n",
           r->live, r->executing);
    printf("bytes:    %" PRIu64 ", %" PRIu64 " of them live\n", r->used_bytes,
           r->live_bytes);
    printf("indexes:  %" PRIu64 " saved, %" PRIu64 " not usable\n", r->saved,
           r->saved_wrong);
    printf("time:     %s\n", cli_time(r->time_us / 1000, time));
    if (r->torn)
        printf("the last batch was not written completely; no client got a "
               "reply for it\n");
    printf("%s\n", r->damaged ? "damage was found" : "no damage");
}

static int
check(const char *dir)
{
    struct journal_report r;
    struct idem_error err = {0};
    json_t *places = cli_json ? json_array() : NULL;
    enum idem_status status =
        idem__journal_check(dir, NULL, NULL, print_damage, places, &r, &err);

    if (status != IDEM_OK) {
        json_decref(places);
        return cli_fail(&err);
    }
    if (!cli_json)
        print_report(&r);
    else
        cli_json_print(json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}",
            "segments", (json_int_t)r.segments, "entries",
            (json_int_t)r.entries, "deletes", (json_int_t)r.deletes, "marks",
            (json_int_t)r.marks, "records", (json_int_t)r.live, "executing",
            (json_int_t)r.executing, "used_bytes", (json_int_t)r.used_bytes,
            "live_bytes", (json_int_t)r.live_bytes, "saved_indexes",
            (json_int_t)r.saved, "unfit_indexes", (json_int_t)r.saved_wrong,
            "time", (json_int_t)(r.time_us / 1000), "torn", r.torn, "damage",
            places));
    return r.damaged ? CLI_FAILED : CLI_OK;
}

static const char *
kind_name(const struct journal_sight *sight)
{
    switch (sight->head->kind) {
    case ENTRY_RECORD:
        return "record";
    case ENTRY_DELETE:
        return "delete";
    default:
        return "mark";
    }
}

static bool
print_sight(void *arg, const struct journal_sight *sight)
{
    const struct idem_record *record = sight->record;
    char time[CLI_TIME_LEN];
    json_t *object;

    (void)arg;
    if (!all && !(sight->live && record))
        return true;
    if (cli_json) {
        object =
            record ? cli_json_record(record, true, results) : json_object();
        json_object_set_new(object, "segment",
                            json_integer((json_int_t)sight->segment));
        json_object_set_new(object, "offset",
                            json_integer((json_int_t)sight->at));
        json_object_set_new(object, "batch",
                            json_integer((json_int_t)sight->head->batch));
        json_object_set_new(object, "entry", json_string(kind_name(sight)));
        json_object_set_new(object, "live", json_boolean(sight->live));
        cli_json_print(object);
        return true;
    }
    printf("%016" PRIx64 " %8" PRIu64 " %s %s", sight->segment, sight->at,
           cli_time(sight->head->time_us / 1000, time), kind_name(sight));
    if (record) {
        printf("%s %s %s %" PRIu64 " ", sight->live ? "" : " (replaced)",
               idem_type_name(record->type), idem_state_name(record->state),
               record->fence);
        cli_print_safe(stdout, record->scope);
        putchar(' ');
        cli_print_safe(stdout, record->id);
        if (results && record->result.len > 0) {
            putchar(' ');
            cli_print_safe(stdout, record->result);
        }
    }
    putchar('\n');
    return !ferror(stdout);
}

static int
dump(const char *dir)
{
    struct journal_report r;
    struct idem_error err = {0};

    if (idem__journal_check(dir, NULL, print_sight, NULL, NULL, &r, &err) !=
        IDEM_OK)
        return cli_fail(&err);
    if (r.damaged) {
        fprintf(stderr,
                "idem: %" PRIu64 " damaged places: run idem journal check\n",
                r.damaged);
        return CLI_FAILED;
    }
    return CLI_OK;
}

int
cli_journal(int argc, char **argv)
{
    char **args;
    const char *dir;
    int code = cli_parse(&syntax, argc, argv, &args, NULL);

    if (code >= 0)
        return code;
    /* Every other command names a journal by its URL. */
    dir = args[1] + (strncmp(args[1], "journal:", 8) == 0 ? 8 : 0);
    if (strcmp(args[0], "check") == 0)
        return check(dir);
    if (strcmp(args[0], "dump") == 0)
        return dump(dir);
    return cli_usage_error("\"%s\" is neither check nor dump", args[0]);
}
