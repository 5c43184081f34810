/*
 * cmd_scan.c - idem scan lists records; idem find finds records by an id, by
 * the instance of a problem, or by a digest in a log.
 */
#include "where.h"

#include "../base/hex.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define A_CALL 500
#define DIGITS 16 /* of a record's key in a log: "key=3f2a9c01d4e5b6a7" */

struct scan_options {
    struct cli_where where;
    const char *type, *state, *scope, *id;
    int64_t older, limit;
    bool doubt;
    char digits[DIGITS + 1]; /* how the key begins; or empty */
    int64_t printed, seen, now_ms;
};

/* A row for people: shows the age, and highlights doubts. */
static void
print_row(const struct scan_options *s, const struct idem_record *r)
{
    bool doubt = cli_doubt_ms(r, s->now_ms) >= 0;
    char age[CLI_AGE_LEN];

    cli_progress(NULL);
    if (s->printed == 1)
        printf("%s%-8s %-9s %5s  %-16s %s%s\n", cli_colour(CLI_BOLD), "TYPE",
               "STATE", "AGE", "FENCE", "SCOPE ID", cli_colour(CLI_PLAIN));
    printf("%-8s %s%-9s%s %5s  %-16" PRIu64 " ", idem_type_name(r->type),
           doubt ? cli_colour(CLI_RED) : "",
           doubt ? "DOUBT" : idem_state_name(r->state),
           doubt ? cli_colour(CLI_PLAIN) : "",
           cli_age(s->now_ms - r->updated, age), r->fence);
}

/* Logs use the digest of a request for both requests and tokens. */
static bool
has_digits(const struct scan_options *s, const struct idem_record *r)
{
    uint8_t key[IDEM_KEY_LEN];
    char digits[DIGITS];

    idem__key(IDEM_TYPE_REQUEST, r->scope, r->id, key);
    idem__hex_write(key, DIGITS / 2, digits);
    return memcmp(digits, s->digits, strlen(s->digits)) == 0;
}

static bool
print_one(void *arg, const struct idem_record *r)
{
    struct scan_options *s = arg;
    char time[CLI_TIME_LEN];

    s->seen++;
    if (*s->digits && !has_digits(s, r))
        return true;
    if (s->limit > 0 && s->printed >= s->limit)
        return false;
    s->printed++;
    cli_progress(NULL);
    if (cli_json) {
        cli_json_print(cli_json_listed(r, s->now_ms));
        return true;
    }
    if (cli_is_terminal())
        print_row(s, r);
    else
        printf("%-7s %-9s %s %" PRIu64 " ", idem_type_name(r->type),
               idem_state_name(r->state), cli_time(r->updated, time), r->fence);
    cli_print_safe(stdout, r->scope);
    putchar(' ');
    cli_print_safe(stdout, r->id);
    putchar('\n');
    return true;
}

static int
read_filter(struct scan_options *s, struct idem_filter *filter)
{
    struct timespec now;

    if (s->type && !idem__type_parse(idem_text(s->type), &filter->type))
        return cli_usage_error("\"%s\" is not a type: request, token, lock or "
                               "worker",
                               s->type);
    if (s->state && !idem__state_parse(idem_text(s->state), &filter->state))
        return cli_usage_error("\"%s\" is not a state: issued, executing, "
                               "succeeded, failed or free",
                               s->state);
    filter->scope = idem_text(s->scope);
    filter->id = idem_text(s->id);
    filter->doubt = s->doubt;
    if (s->older > 0) {
        clock_gettime(CLOCK_REALTIME, &now);
        filter->updated_before =
            (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - s->older;
    }
    return -1;
}

static int
run(struct scan_options *s, const struct idem_filter *filter)
{
    struct idem_cursor cursor = {"0"};
    struct idem_error err = {0};
    struct idem_engine *engine = NULL;
    enum idem_status status;
    struct idem__stats stats = {0};
    int code = CLI_OK, calls = 0;

    s->where.must_exist = true;
    status = cli_engine_open(&s->where, &engine, &err);
    if (status == IDEM_OK)
        idem__stats(engine, &stats);
    s->now_ms = stats.now_ms;
    do {
        if (calls++ > 0)
            cli_progress("searching; found so far: %lld of %lld",
                         (long long)s->printed, (long long)s->seen);
        if (status == IDEM_OK)
            status =
                cli_list(engine, filter, &cursor, A_CALL, print_one, s, &err);
    } while (status == IDEM_OK && strcmp(cursor.text, "0") != 0 &&
             (s->limit == 0 || s->printed < s->limit) && !ferror(stdout));
    cli_progress(NULL);
    if (status != IDEM_OK) {
        err.status = status;
        code = cli_fail(&err);
    }
    idem_close(engine);
    return code;
}

int
cli_scan(int argc, char **argv)
{
    struct scan_options s = {0};
    const struct cli_option options[] = {
        CLI_WHERE_OPTIONS(&s.where),
        {"type", 't', CLI_TEXT, &s.type, "TYPE",
         "only request, token, lock or worker"},
        {"state", 0, CLI_TEXT, &s.state, "STATE",
         "only issued, executing, succeeded, failed or free"},
        {"scope", 0, CLI_FILTER, &s.scope, "SCOPE", "only this scope"},
        {"id", 0, CLI_FILTER, &s.id, "ID", "only this id, in every scope"},
        {"doubt", 'd', CLI_FLAG, &s.doubt, NULL, "only records in doubt"},
        {"older", 0, CLI_MS, &s.older, "TIME",
         "only records that did not change for this long: 1h"},
        {"limit", 'n', CLI_NUMBER, &s.limit, "N", "stop after N records"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "scan [options]",
        .about = "List records, one per line: type, state, last change, fence, "
                 "scope, id. On a terminal it prints a table with ages; DOUBT "
                 "marks a strict request whose lease is over. While others "
                 "write, a record may be listed twice.",
        .options = options,
        .min_args = 0,
        .max_args = 0,
    };
    struct idem_filter filter = {0};
    int code = cli_parse(&syntax, argc, argv, NULL, NULL);

    if (code < 0)
        code = read_filter(&s, &filter);
    if (code >= 0)
        return code;
    code = run(&s, &filter);
    if (code == CLI_OK && s.printed == 0)
        cli_say_none(&s.where, "such records");
    return code;
}

/* ---- find -------------------------------------------------------------- */

/* Read the digits of a record's key from a word. The word is the instance of a
 * gateway's problem, with or without "urn:uuid:", which is a UUID of version 8
 * with the digits of the key; or "key=" and these digits, as in logs. */
static bool
read_digits(const char *word, char digits[DIGITS + 1])
{
    static const char dashes[] = "xxxxxxxx-xxxx-8xxx-xxxx-xxxxxxxxxxxx";
    bool is_key = strncmp(word, "key=", 4) == 0;
    size_t skip = is_key ? 4 : strncasecmp(word, "urn:uuid:", 9) == 0 ? 9 : 0;
    size_t len = 0;

    if (strlen(word) != skip + (is_key ? DIGITS : sizeof(dashes) - 1))
        return false;
    word += skip;
    for (size_t i = 0; word[i]; i++) {
        if (!is_key && dashes[i] != 'x' && word[i] != dashes[i])
            return false;
        if ((is_key || dashes[i] == 'x') && !isxdigit((unsigned char)word[i]))
            return false;
        if (is_key || (dashes[i] == 'x' && len < DIGITS - 1))
            digits[len++] = (char)tolower((unsigned char)word[i]);
    }
    digits[len] = 0;
    return true;
}

/* Has it the dashes and digits of a UUID of any version? */
static bool
is_uuid(const char *word)
{
    static const char dashes[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

    if (strlen(word) != sizeof(dashes) - 1)
        return false;
    for (size_t i = 0; word[i]; i++) {
        if (dashes[i] == 'x' ? !isxdigit((unsigned char)word[i])
                             : word[i] != '-')
            return false;
    }
    return true;
}

/* Find by the id, for which SQL stores have an index; then scan all records. */
static int
find(struct scan_options *s, struct idem_filter *filter)
{
    char digits[DIGITS + 1];
    int code = run(s, filter);

    if (code != CLI_OK || s->printed > 0)
        return code;
    if (read_digits(s->id, digits)) {
        memcpy(s->digits, digits, sizeof(digits));
        filter->id = (struct idem_bytes){NULL, 0};
        code = run(s, filter);
    } else if (strncasecmp(s->id, "urn:uuid:", 9) == 0 && !is_uuid(s->id + 9)) {
        return cli_usage_error("this instance is not a UUID: give all of it, "
                               "urn:uuid: and 36 characters");
    } else if (strncasecmp(s->id, "urn:uuid:", 9) == 0) {
        fprintf(stderr, "idem: that request had no record; look for this "
                        "instance in the gateway's access log\n");
    }
    if (code != CLI_OK || s->printed > 0)
        return code;
    cli_say_none(&s->where, "record with this id in any scope");
    return cli_exit_verdict(IDEM_V_ABSENT);
}

int
cli_find(int argc, char **argv)
{
    struct scan_options s = {0};
    const struct cli_option options[] = {
        CLI_WHERE_OPTIONS(&s.where),
        {"type", 't', CLI_TEXT, &s.type, "TYPE",
         "only request, token, lock or worker"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "find ID|INSTANCE|key=DIGITS [options]",
        .about = "Find the records with this id in all scopes, and print type, "
                 "state, last change, fence, scope, id. \"absent\" (16): there "
                 "is none. An instance of a gateway's problem (urn:uuid:...) "
                 "or a key=... of a log finds the record that it is about. SQL "
                 "stores have an index for ids (idem store init creates it); "
                 "other stores and searches read every record.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    struct idem_filter filter = {0};
    char **args;
    int code = cli_parse(&syntax, argc, argv, &args, NULL);

    if (code >= 0)
        return code;
    if (!*args[0])
        return cli_usage_error("the id is empty: give 1 to 255 bytes");
    s.id = args[0];
    code = read_filter(&s, &filter);
    return code >= 0 ? code : find(&s, &filter);
}
