/*
 * manual.c - the manual page of a command, made from its table of options: what
 * `idem help --man COMMAND` prints and make install puts in place.
 */
#include "cli.h"

#include <ctype.h>
#include <idem/idem.h>
#include <string.h>

/* Text for troff: a line of its own for each line, no requests by accident. */
static void
print_text(const char *text)
{
    bool start = true;

    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
        start = *text == '\n';
    }
    putchar('\n');
}

static void
print_option(const struct cli_option *o)
{
    if (o->kind == CLI_HEADING) {
        printf(".SS ");
        print_text(o->help);
        return;
    }
    printf(".TP\n\\fB");
    if (o->letter)
        printf("\\-%c\\fR, \\fB", o->letter);
    fputs("\\-\\-", stdout);
    for (const char *c = o->name; *c; c++)
        fputs(*c == '-' ? "\\-" : (char[]){*c, 0}, stdout);
    printf("\\fR");
    if (o->value)
        printf(" \\fI%s\\fR", o->value);
    putchar('\n');
    print_text(o->help);
}

void
cli_print_manual(const struct cli_syntax *syntax)
{
    const char *usage = syntax->usage, *example = cli_example(usage);
    size_t len = strcspn(usage, " \n");

    printf("'\\\" t\n.TH IDEM\\-");
    for (size_t i = 0; i < len; i++)
        putchar(toupper((unsigned char)usage[i]));
    printf(" 1 \"\" \"idem %s\" \"User Commands\"\n"
           ".SH NAME\nidem\\-%.*s \\- %s\n.SH SYNOPSIS\n.nf\n",
           IDEM_VERSION, (int)len, usage, cli_command_help(usage, len));
    while (*usage) {
        char text[200];
        size_t line;

        usage += strspn(usage, " ");
        line = strcspn(usage, "\n");
        snprintf(text, sizeof(text), "%s%.*s",
                 strncmp(usage, "idem ", 5) == 0 ? "" : "idem ", (int)line,
                 usage);
        print_text(text);
        usage += line + (usage[line] == '\n');
    }
    printf(".fi\n.SH DESCRIPTION\n");
    print_text(syntax->about);
    printf(".SH OPTIONS\n");
    for (const struct cli_option *o = syntax->options; o && o->name; o++)
        print_option(o);
    printf(".TP\n\\fB\\-\\-json\\fR\nanswer as one JSON object a line\n");
    if (example) {
        printf(".SH EXAMPLES\n.nf\n");
        print_text(example);
        printf(".fi\n");
    }
    printf(".SH SEE ALSO\n.BR idem (1);\n.B idem help connecting\n");
}
