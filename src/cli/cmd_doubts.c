/*
 * cmd_doubts.c - idem doubts: list the records in doubt, oldest first, and
 * settle all of them that match a filter.
 *
 * The command first collects the doubts and shows them, and then settles only
 * those, each with its own SETTLE. A record that was settled or finished
 * meanwhile gets the verdict for that and stays as it is.
 */
#include "verb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define A_CALL 500
#define MOST 100000 /* most doubts of one run */

struct list {
    const struct cli_doubts *wanted;
    int64_t now_ms;
    struct idem_arena arena;
    struct idem_record *records;
    size_t count, room;
    bool failed, full;
};

static bool
collect(void *arg, const struct idem_record *record)
{
    struct list *list = arg;
    void *more;

    if (list->now_ms - record->lease_until < list->wanted->older_ms)
        return true;
    if (list->count == MOST) {
        list->full = true;
        return false;
    }
    more = idem__grow(list->records, list->count, &list->room,
                      sizeof(*list->records));
    list->failed = !more;
    if (!more)
        return false;
    list->records = more;
    list->failed =
        !idem_arena_record(&list->arena, record, &list->records[list->count]);
    list->count += !list->failed;
    return !list->failed;
}

static int
older_first(const void *a, const void *b)
{
    const struct idem_record *x = a, *y = b;

    return (x->lease_until > y->lease_until) -
           (x->lease_until < y->lease_until);
}

static enum idem_status
find_doubts(struct idem_engine *engine, const struct cli_doubts *wanted,
            struct list *list, struct idem_error *err)
{
    const struct idem_filter filter = {.doubt = true,
                                       .scope = idem_text(wanted->scope)};
    struct idem_cursor cursor = {"0"};
    enum idem_status status;
    struct idem__stats stats;

    idem__stats(engine, &stats);
    *list = (struct list){.wanted = wanted, .now_ms = stats.now_ms};
    do {
        status = cli_list(engine, &filter, &cursor, A_CALL, collect, list, err);
        idem__stats(engine, &stats);
        list->now_ms = stats.now_ms;
        cli_progress("searching; in doubt so far: %zu", list->count);
    } while (status == IDEM_OK && strcmp(cursor.text, "0") != 0 &&
             !list->failed && !list->full);
    cli_progress(NULL);
    if (list->failed)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (list->count > 0)
        qsort(list->records, list->count, sizeof(*list->records), older_first);
    return status;
}

static void
clear_list(struct list *list)
{
    idem_arena_clear(&list->arena);
    free(list->records);
}

/* ---- printing ---------------------------------------------------------- */

static void
print_doubt(const struct list *list, const struct idem_record *r)
{
    char age[CLI_AGE_LEN], time[CLI_TIME_LEN];

    if (cli_json) {
        cli_json_print(cli_json_listed(r, list->now_ms));
        return;
    }
    cli_age(list->now_ms - r->lease_until, age);
    printf("%-7s %-7s %7" PRIu32 "  %s  ", age, idem_type_name(r->type),
           r->attempt, cli_time(r->created, time));
    cli_print_safe(stdout, r->scope);
    putchar(' ');
    cli_print_safe(stdout, r->id);
    if (r->subject.len > 0) {
        printf("  (");
        cli_print_safe(stdout, r->subject);
        putchar(')');
    }
    putchar('\n');
}

static void
print_list(const struct list *list, const struct cli_where *where)
{
    if (list->count == 0)
        cli_say_none(where, list->wanted->scope || list->wanted->older_ms
                                ? "such doubts"
                                : "doubts");
    if (cli_is_terminal() && list->count > 0)
        printf("%s%-7s %-7s %7s  %-24s  %s%s\n", cli_colour(CLI_BOLD), "AGE",
               "TYPE", "ATTEMPT", "BEGUN", "SCOPE ID (LABEL)",
               cli_colour(CLI_PLAIN));
    for (size_t i = 0; i < list->count; i++)
        print_doubt(list, &list->records[i]);
    if (list->full)
        fprintf(stderr, "idem: there are more than %d; settle these first\n",
                MOST);
}

int
cli_doubts(int argc, char **argv)
{
    struct cli_where where = {0};
    struct cli_doubts wanted = {0};
    const struct cli_option options[] = {
        CLI_WHERE_OPTIONS(&where),
        {"scope", 0, CLI_FILTER, &wanted.scope, "SCOPE", "only this scope"},
        {"older", 0, CLI_MS, &wanted.older_ms, "TIME",
         "only doubts that are at least this old, for instance 1h"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "doubts [options]",
        .about =
            "List the records in doubt, oldest first: age, type, attempts, "
            "when it began, scope, id, and the label that the caller gave. The "
            "lease of such a record is over, and idem does not know whether "
            "the work was done: find out, then settle it (idem settle --help).",
        .options = options,
    };
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    struct list list = {0};
    int code = cli_parse(&syntax, argc, argv, NULL, NULL);

    if (code >= 0)
        return code;
    where.must_exist = true;
    err.status = cli_engine_open(&where, &engine, &err);
    if (err.status == IDEM_OK)
        err.status = find_doubts(engine, &wanted, &list, &err);
    if (err.status == IDEM_OK)
        print_list(&list, &where);
    code = err.status == IDEM_OK ? CLI_OK : cli_fail(&err);
    clear_list(&list);
    idem_close(engine);
    return code;
}

/* ---- settling ---------------------------------------------------------- */

/* Returns -1 to continue, else the exit code. */
static int
confirm(const struct cli_verb *verb, const struct list *list,
        const struct cli_doubts *wanted, const struct idem_op *op)
{
    char answer[8] = "";

    if (wanted->yes)
        return -1;
    if (!isatty(STDIN_FILENO))
        return cli_usage_error("this would settle %zu doubts as %s; look at "
                               "them with --dry-run, then give --yes",
                               list->count, idem_state_name(op->outcome));
    print_list(list, &verb->where);
    fprintf(stderr, "Settle these %zu as %s? [y/N] ", list->count,
            idem_state_name(op->outcome));
    if (fgets(answer, sizeof(answer), stdin) &&
        (answer[0] == 'y' || answer[0] == 'Y'))
        return -1;
    fprintf(stderr, "idem: nothing was settled\n");
    return CLI_FAILED;
}

static bool
settle_one(const struct cli_verb *verb, struct idem_engine *engine,
           const struct idem_record *r, struct idem_op *op)
{
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    enum idem_status status;
    const char *word;

    op->type = r->type;
    op->scope = r->scope;
    op->id = r->id;
    op->fence = r->fence; /* so that only the listed record matches */
    status = cli_do_verb(verb, engine, op, &answer, &err);
    word = status == IDEM_OK ? idem_verdict_name(answer.verdict)
                             : idem_status_name(status);
    if (cli_json) {
        json_t *json = json_pack("{s:s}", "verdict", word);

        cli_json_bytes(json, "scope", r->scope);
        cli_json_bytes(json, "id", r->id);
        if (status != IDEM_OK)
            cli_json_bytes(json, "text", idem_text(err.text));
        cli_json_print(json);
    } else {
        printf("%s ", word);
        cli_print_safe(stdout, r->scope);
        putchar(' ');
        cli_print_safe(stdout, r->id);
        if (status != IDEM_OK) {
            printf(": ");
            cli_print_safe(stdout, idem_text(err.text));
        }
        putchar('\n');
    }
    status = status == IDEM_OK && answer.verdict == IDEM_V_SETTLED
                 ? IDEM_OK
                 : IDEM_ERR_INVALID;
    idem_answer_clear(&answer);
    return status == IDEM_OK;
}

/* A gateway's client expects an HTTP response, and an outcome is final.
 * Returns -1 to continue, else the exit code. */
static int
refuse_bare_results(const struct cli_verb *verb, const struct list *list)
{
    const struct idem_record *first = NULL;
    size_t count = 0;

    for (size_t i = 0; verb->bare_result && i < list->count; i++) {
        if (cli_is_of_gateway(&list->records[i])) {
            first = first ? first : &list->records[i];
            count++;
        }
    }
    if (!first)
        return -1;
    return cli_usage_error("%zu of these %zu doubts, first \"%.*s\", were "
                           "started by a gateway: give the response with "
                           "--http STATUS --header ... --body ..., or add "
                           "--kind raw to store the bare result; nothing was "
                           "settled",
                           count, list->count, (int)first->id.len,
                           (const char *)first->id.data);
}

static int
settle_list(const struct cli_verb *verb, struct idem_engine *engine,
            const struct list *list, const struct cli_doubts *wanted,
            struct idem_op *op)
{
    size_t settled = 0;
    int code;

    if (wanted->dry_run)
        print_list(list, &verb->where);
    code = refuse_bare_results(verb, list);
    if (code >= 0 || wanted->dry_run)
        return code >= 0 ? code : CLI_OK;
    code = list->count > 0 ? confirm(verb, list, wanted, op) : -1;
    if (code >= 0)
        return code;
    for (size_t i = 0; i < list->count; i++)
        settled += settle_one(verb, engine, &list->records[i], op);
    if (!cli_json)
        fprintf(stderr, "idem: %zu of %zu doubts settled\n", settled,
                list->count);
    return settled == list->count ? CLI_OK : CLI_FAILED;
}

int
cli_settle_doubts(const struct cli_verb *verb, const struct cli_doubts *wanted,
                  struct idem_op *op)
{
    struct cli_where where = verb->where;
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    struct list list = {0};
    int code;

    if (!op->outcome)
        return cli_usage_error("settling all doubts of a filter needs --as "
                               "succeeded or --as failed");
    if (!wanted->scope && !wanted->older_ms && !wanted->all)
        return cli_usage_error("give SCOPE ID, or which doubts to settle: "
                               "--scope, --older or --all");
    where.must_exist = true;
    err.status = cli_engine_open(&where, &engine, &err);
    if (err.status == IDEM_OK)
        err.status = find_doubts(engine, wanted, &list, &err);
    code = err.status == IDEM_OK ? settle_list(verb, engine, &list, wanted, op)
                                 : cli_fail(&err);
    clear_list(&list);
    idem_close(engine);
    return code;
}
