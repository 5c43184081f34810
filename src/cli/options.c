/*
 * options.c - parse a command line with a table of options.
 */
#include "cli.h"

#include "../base/guess.h"
#include "../base/units.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_json;
void (*cli_describe)(const struct cli_syntax *syntax);

int
cli_usage_error(const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fputs("idem: ", stderr);
    cli_print_safe(stderr, idem_text(text));
    fputc('\n', stderr);
    return CLI_USAGE;
}

/* ---- values ----------------------------------------------------------- */

static int
set(const struct cli_option *option, const char *value)
{
    struct cli_list *list = option->into;
    bool ok = true;
    char flaw[IDEM__TIME_FLAW_LEN];

    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)option->into = true;
        break;
    case CLI_FILTER:
        if (!*value)
            return cli_usage_error(
                "--%s is empty; give a value, or leave it out for all",
                option->name);
        *(const char **)option->into = value;
        break;
    case CLI_TEXT:
        *(const char **)option->into = value;
        break;
    case CLI_NUMBER:
        ok = idem__units_parse(IDEM__UNIT_NONE, value, option->into);
        break;
    case CLI_MS:
        ok = idem__units_parse(IDEM__UNIT_TIME, value, option->into);
        break;
    case CLI_SIZE:
        ok = idem__units_parse(IDEM__UNIT_SIZE, value, option->into);
        break;
    case CLI_HEADING:
        break;
    case CLI_LIST:
        if (list->count == CLI_LIST_MAX)
            return cli_usage_error("--%s was given more than %d times",
                                   option->name, CLI_LIST_MAX);
        list->items[list->count++] = value;
        break;
    }
    if (ok)
        return -1;
    return cli_usage_error(
        "--%s \"%s\" %s", option->name, value,
        option->kind == CLI_MS     ? idem__time_flaw(option->name, value, flaw)
        : option->kind == CLI_SIZE ? "is not a size: give 4096, 64k, 1m, 2g"
                                   : "is not a number, 0 or more");
}

/* ---- help ------------------------------------------------------------- */

/* Print each line of the text with `indent` blanks before it, and break lines
 * that are too long for a terminal. The first line begins at the cursor. */
static void
print_wrapped(const char *text, int indent)
{
    size_t room = 80 - (size_t)indent;

    for (bool first = true; *text; first = false) {
        size_t len = strcspn(text, "\n");
        size_t cut = len;

        if (len > room) {
            for (cut = room; cut > 0 && text[cut] != ' '; cut--)
                ;
            if (cut == 0)
                cut = room;
        }
        printf("%*s%.*s\n", first ? 0 : indent, "", (int)cut, text);
        text += cut;
        if (*text == ' ' || *text == '\n')
            text++;
    }
}

static void
print_option(const struct cli_option *option)
{
    char left[64];
    char letter[5] = "    ";

    if (option->kind == CLI_HEADING) {
        printf("\n%s\n", option->help);
        return;
    }
    if (option->letter)
        snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    snprintf(left, sizeof(left), "%s--%s%s%s", letter, option->name,
             option->value ? " " : "", option->value ? option->value : "");
    if (strlen(left) > 25)
        printf("  %s\n%28s", left, "");
    else
        printf("  %-25s ", left);
    print_wrapped(option->help, 28);
}

static void
print_usage(FILE *out, const char *usage)
{
    const char *before = "usage:";

    while (*usage) {
        size_t len;

        usage += strspn(usage, " ");
        if (strncmp(usage, "idem ", 5) == 0)
            usage += 5;
        len = strcspn(usage, "\n");
        fprintf(out, "%-6s idem %.*s\n", before, (int)len, usage);
        usage += len + (usage[len] == '\n');
        before = "";
    }
}

static const struct cli_option *
find(const struct cli_syntax *syntax, const char *word, size_t len)
{
    for (const struct cli_option *o = syntax->options; o && o->name; o++) {
        if (o->kind != CLI_HEADING && strlen(o->name) == len &&
            strncmp(o->name, word, len) == 0)
            return o;
    }
    return NULL;
}

static void
print_examples(const char *usage)
{
    const char *lines = cli_example(usage);

    if (!lines)
        return;
    printf("\nExample%s:\n", strchr(lines, '\n') ? "s" : "");
    while (*lines) {
        size_t len = strcspn(lines, "\n");

        printf("  %.*s\n", (int)len, lines);
        lines += len + (lines[len] == '\n');
    }
}

static void
print_help(const struct cli_syntax *syntax)
{
    static const struct cli_option common[] = {
        {"json", 0, CLI_FLAG, NULL, NULL, "print JSON, one object per line"},
        {"help", 'h', CLI_FLAG, NULL, NULL, "this text"},
    };

    print_usage(stdout, syntax->usage);
    putchar('\n');
    print_wrapped(syntax->about, 0);
    putchar('\n');
    for (const struct cli_option *o = syntax->options; o && o->name; o++)
        print_option(o);
    print_option(&common[0]);
    print_option(&common[1]);
    if (find(syntax, "server", 6))
        printf("\nidem help connecting explains how it finds the records.\n");
    print_examples(syntax->usage);
}

/* ---- the command line ------------------------------------------------- */

static const struct cli_option *
find_letter(const struct cli_syntax *syntax, char letter)
{
    for (const struct cli_option *o = syntax->options; o && o->name; o++) {
        if (o->letter && o->letter == letter)
            return o;
    }
    return NULL;
}

/* After an error: print the correct usage. */
static int
show_usage(const struct cli_syntax *syntax, const char *command)
{
    print_usage(stderr, syntax->usage);
    fprintf(stderr, "       idem help %s explains it\n", command);
    return CLI_USAGE;
}

static int
unknown_option(const struct cli_syntax *syntax, const char *command,
               const char *word, size_t len)
{
    struct idem__guess guess = {word + 2, len > 2 ? len - 2 : 0, NULL, 0};

    for (const struct cli_option *o = syntax->options;
         guess.len > 0 && o && o->name; o++) {
        if (o->kind != CLI_HEADING)
            idem__guess(&guess, o->name);
    }
    idem__guess(&guess, "json");
    idem__guess(&guess, "help");
    if (guess.name)
        cli_usage_error("%s has no option %.*s; did you mean --%s?", command,
                        (int)len, word, guess.name);
    else
        cli_usage_error("%s has no option %.*s", command, (int)len, word);
    return show_usage(syntax, command);
}

/* Parse one word that begins with "-". *i moves past its value. */
static int
read_option(const struct cli_syntax *syntax, int argc, char **argv, int *i)
{
    const char *word = argv[*i];
    bool is_long = word[1] == '-';
    const char *name = word + (is_long ? 2 : 1);
    const char *equals = is_long ? strchr(name, '=') : NULL;
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    const struct cli_option *option;

    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        if (cli_describe)
            cli_describe(syntax);
        else
            print_help(syntax);
        return CLI_OK;
    }
    if (strcmp(word, "--json") == 0) {
        cli_json = true;
        return -1;
    }
    option = is_long    ? find(syntax, name, len)
             : len == 1 ? find_letter(syntax, *name)
                        : NULL;
    if (!option)
        return unknown_option(syntax, argv[0], word, len + (is_long ? 2 : 1));
    if (option->kind == CLI_FLAG) {
        if (equals)
            return cli_usage_error("--%s takes no value", option->name);
        return set(option, NULL);
    }
    if (equals)
        return set(option, equals + 1);
    if (*i + 1 >= argc)
        return cli_usage_error("--%s needs a value: %s", option->name,
                               option->value);
    return set(option, argv[++*i]);
}

/* The word of the usage for the first argument that was not given. NULL if the
 * usage has several lines, which take different arguments. */
static const char *
missing(const struct cli_syntax *syntax, size_t count)
{
    const char *word = strchr(syntax->usage, '\n') ? NULL : syntax->usage;

    for (size_t i = 0; word && i <= count; i++) {
        word = strchr(word, ' ');
        word = word ? word + 1 : NULL;
    }
    return word && *word != '[' && *word != '-' ? word : NULL;
}

/* Is this word a value that a file gives to an option: `required = on`? */
static bool
is_switch(const char *word)
{
    static const char *const words[] = {"on",   "off",   "yes", "no",
                                        "true", "false", "1",   "0"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(word, words[i]) == 0)
            return true;
    }
    return false;
}

/* The option of this word, which may be "--json", if it takes no value. */
static const char *
flag_of(const struct cli_syntax *syntax, const char *word)
{
    const struct cli_option *option;

    if (strcmp(word, "--json") == 0)
        return "json";
    option = word[1] == '-' ? find(syntax, word + 2, strlen(word + 2))
                            : find_letter(syntax, word[1]);
    return option && option->kind == CLI_FLAG ? option->name : NULL;
}

/* The argument that is too many, and the option without a value that it
 * follows. */
struct surplus {
    const char *word, *flag;
    bool sure; /* it was meant as the option's value */
};

static void
note_surplus(struct surplus *surplus, const char *word, const char *flag,
             bool too_many)
{
    if (surplus->sure || (surplus->word && !(flag && is_switch(word))) ||
        (!too_many && !(flag && is_switch(word))))
        return;
    *surplus = (struct surplus){word, flag, flag && is_switch(word)};
}

int
cli_parse(const struct cli_syntax *syntax, int argc, char **argv, char ***args,
          size_t *arg_count)
{
    size_t count = 0;
    bool options_over = false;
    const char *flag = NULL;
    struct surplus surplus = {0};

    /* Other arguments move to the front, after argv[0], as options are
     * removed. */
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];

        if (!options_over && strcmp(word, "--") == 0) {
            options_over = true;
        } else if (!options_over && word[0] == '-' && word[1] != 0) {
            int code = read_option(syntax, argc, argv, &i);

            if (code >= 0)
                return code;
            flag = flag_of(syntax, word);
        } else {
            argv[1 + count++] = word;
            note_surplus(&surplus, word, options_over ? NULL : flag,
                         count > syntax->max_args);
            flag = NULL;
            if (count == syntax->stop_at)
                options_over = true;
        }
    }
    if (count < syntax->min_args || count > syntax->max_args) {
        const char *word = missing(syntax, count);

        if (count > syntax->max_args)
            cli_usage_error("%s: \"%s\" is one argument too many%s%s%s",
                            argv[0], surplus.word, surplus.flag ? "; --" : "",
                            surplus.flag ? surplus.flag : "",
                            surplus.flag ? " takes no value" : "");
        else if (word)
            cli_usage_error("%s: too few arguments: %.*s is missing", argv[0],
                            (int)strcspn(word, " "), word);
        else
            cli_usage_error("%s: too few arguments", argv[0]);
        return show_usage(syntax, argv[0]);
    }
    if (args)
        *args = argv + 1;
    if (arg_count)
        *arg_count = count;
    return -1;
}
