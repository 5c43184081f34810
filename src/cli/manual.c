/*
 * manual.c - print the manual page of a command, or of a file with its options,
 * from the command's table: `idem help --man COMMAND` and `idem help --man
 * idem.conf`. make install installs these pages.
 */
#include "cli.h"

#include <ctype.h>
#include <idem/idem.h>
#include <string.h>

/* Print text for troff: keep line breaks, and escape what troff would take for
 * requests. */
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
print_name(const char *name)
{
    for (; *name; name++)
        fputs(*name == '-' ? "\\-" : (char[]){*name, 0}, stdout);
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
    print_name(o->name);
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

/* ---- files ------------------------------------------------------------- */

/* `text` is for people; a blank line begins a paragraph. */
static const struct file {
    const char *page, *title, *command, *what, *text, *credentials, *example;
} files[] = {
    {"idem.conf", "IDEM.CONF", "serve", "options of idem serve",
     "idem serve reads the file that --config or the variable IDEM_CONFIG "
     "names. The package's service reads /etc/idem/idem.conf.\n\n"
     "A line is name = value. A line that begins with # is a comment, and so "
     "is the rest of a line after a space and #. A name may be given once. "
     "Flags override variables (IDEM_MAX_CLIENTS for max-clients), and "
     "variables override the file.\n\n"
     "A time has a unit: 1500ms, 30s, 5m, 24h, 7d. A size may have one: 4096, "
     "64k, 1m, 2g.\n\n"
     "idem serve --config FILE --check checks a file.",
     "The file of the option credentials has a line for each name: name, "
     "secret, right (monitor, view, use or operate), then the scopes that it "
     "may use; without scopes it may use all. Instead of a secret, {blake2b} "
     "and 64 hex digits give its hash, and cert:NAME names a client "
     "certificate. The file must not be "
     "readable "
     "by others.",
     "store = journal:/var/lib/idem\nsocket = /run/idem/idem.sock\n"
     "http = 127.0.0.1:7399"},
    {"idem-gateway.conf", "IDEM-GATEWAY.CONF", "gateway",
     "options of idem gateway, for all routes and for single ones",
     "idem gateway reads the file that --config names. The package's service "
     "idem-gateway@NAME reads /etc/idem/gateway-NAME.conf.\n\n"
     "A line is name = value. A line that begins with # is a comment. A line "
     "[route PATH] begins a section: the lines after it apply to requests "
     "below that path. A path that no section names gets 404; [route /] is for "
     "all other paths. Lines before the first section apply to every route "
     "that does not override them. Flags override the file. SIGHUP makes the "
     "gateway read it again; a change of an engine option (store, socket, "
     "http, credentials, folder) requires a restart.\n\n"
     "A time has a unit: 1500ms, 30s, 5m, 24h, 7d. A size may have one: 4096, "
     "64k, 1m, 2g. An option that is a flag of the command line is on or "
     "off.\n\n"
     "idem gateway --config FILE --check checks the file, for instance before "
     "SIGHUP; --print-config instead prints the nginx configuration that the "
     "gateway makes from it.",
     NULL,
     "upstream = http://127.0.0.1:9000\nlisten = 0.0.0.0:443\n\n"
     "[route /]\n\n"
     "[route /orders]\nmode = strict\nrequired = on\nwait = 10s"},
};

static const struct file *wanted;

const char *
cli_file_command(const char *page)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (strcmp(files[i].page, page) == 0) {
            wanted = &files[i];
            return wanted->command;
        }
    }
    return NULL;
}

static void
print_paragraphs(const char *text)
{
    for (; *text; text++) {
        if (text[0] == '\n' && text[1] == '\n') {
            fputs("\n.PP\n", stdout);
            text++;
        } else {
            fputs(*text == '-' ? "\\-" : (char[]){*text, 0}, stdout);
        }
    }
    putchar('\n');
}

/* Is the option a line of the file? These flags make the command do something
 * other than run. */
static bool
is_line(const struct cli_option *o)
{
    static const char *const flags[] = {"config", "check", "print-config"};

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (o->kind != CLI_HEADING && strcmp(o->name, flags[i]) == 0)
            return false;
    }
    return true;
}

static void
print_file_option(const struct cli_option *o)
{
    if (o->kind == CLI_HEADING) {
        print_option(o);
    } else if (is_line(o)) {
        printf(".TP\n\\fB");
        print_name(o->name);
        printf("\\fR = \\fI%s\\fR\n", o->value ? o->value : "on|off");
        print_text(o->help);
    }
}

void
cli_print_file_manual(const struct cli_syntax *syntax)
{
    static const struct cli_option host = {
        .name = "host",
        .kind = CLI_TEXT,
        .value = "NAME",
        .help = "in a section: the route is for requests to this host only"};

    printf(".TH ");
    print_name(wanted->title);
    printf(" 5 \"\" \"idem %s\" \"File Formats\"\n.SH NAME\n", IDEM_VERSION);
    print_name(wanted->page);
    printf(" \\- %s\n.SH DESCRIPTION\n", wanted->what);
    print_paragraphs(wanted->text);
    printf(".SH OPTIONS\n");
    for (const struct cli_option *o = syntax->options; o && o->name; o++)
        print_file_option(o);
    if (strcmp(wanted->command, "gateway") == 0)
        print_file_option(&host);
    if (wanted->credentials) {
        printf(".SH CREDENTIALS\n");
        print_paragraphs(wanted->credentials);
    }
    printf(".SH EXAMPLES\n.nf\n");
    print_text(wanted->example);
    printf(".fi\n.SH SEE ALSO\n.BR idem (1),\n.BR idem\\-%s (1)\n",
           wanted->command);
}
