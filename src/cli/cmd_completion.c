/*
 * cmd_completion.c - idem completion: print completion scripts for shells, made
 * from the tables of options.
 */
#include "cli.h"

#include <idem/idem.h>
#include <string.h>

/* Values of an option, for one command or for all. */
static const struct {
    const char *command, *option, *words;
} values[] = {
    {"id", "kind", "snowflake uid"},
    {NULL, "kind", "raw http exec"},
    {NULL, "type", "request token lock worker"},
    {NULL, "state", "issued executing succeeded failed free"},
    {NULL, "as", "succeeded failed"},
    {NULL, "what", "begin pair replay ping"},
    {NULL, "store",
     "memory: journal: sqlite: redis:// postgres:// mysql:// zookeeper:// "
     "etcd://"},
};

static const struct {
    const char *command, *words;
} arguments[] = {
    {"help", "connecting exit-codes"},
    {"completion", "bash zsh fish"},
    {"id", "snowflake uid segment: uuid4 uuid7 explain"},
    {"store", "init check sql copy"},
    {"journal", "check dump"},
};

static const char *command; /* the command being described */

static const char *
words_of(const struct cli_option *option)
{
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (strcmp(values[i].option, option->name) == 0 &&
            (!values[i].command || strcmp(values[i].command, command) == 0))
            return values[i].words;
    }
    return NULL;
}

static const char *
arguments_of(void)
{
    for (size_t i = 0; i < sizeof(arguments) / sizeof(arguments[0]); i++) {
        if (strcmp(arguments[i].command, command) == 0)
            return arguments[i].words;
    }
    return NULL;
}

static bool
is_file(const struct cli_option *option)
{
    return option->value && (strcmp(option->value, "FILE") == 0 ||
                             strcmp(option->value, "PATH") == 0 ||
                             strcmp(option->value, "VALUE") == 0);
}

/* The first line of a help text, without characters that are special in a
 * shell. */
static void
print_text(const char *text)
{
    for (; *text && *text != '\n'; text++) {
        if (!strchr("'\"`\\[]:$", *text))
            putchar(*text);
    }
}

/* Describe all commands, one after the other. */
static void
each_command(void (*describe)(const struct cli_syntax *syntax))
{
    const struct cli_command *c;

    cli_describe = describe;
    for (size_t i = 0; (c = cli_command_at(i)); i++) {
        char *argv[] = {(char *)c->name, (char *)"--help", NULL};

        command = c->name;
        if (c->run && strcmp(c->name, "help") != 0)
            c->run(2, argv);
    }
    cli_describe = NULL;
}

#define EACH_OPTION(o, syntax)                                                 \
    for (const struct cli_option *o = (syntax)->options; o && o->name; o++)    \
        if (o->kind != CLI_HEADING)

/* ---- bash ---------------------------------------------------------------- */

static void
bash_options(const struct cli_syntax *syntax)
{
    printf("    %s) options=\"--json --help", command);
    EACH_OPTION(o, syntax)
    printf(" --%s", o->name);
    printf("\" words=\"%s\" ;;\n", arguments_of() ? arguments_of() : "");
}

static void
bash_values(const struct cli_syntax *syntax)
{
    EACH_OPTION(o, syntax)
    {
        if (o->kind == CLI_FLAG)
            continue;
        printf("    '%s --%s'", command, o->name);
        if (o->letter)
            printf(" | '%s -%c'", command, o->letter);
        if (words_of(o))
            printf(") words=\"%s\" ;;\n", words_of(o));
        else
            printf(") words=%s ;;\n", is_file(o) ? "FILES" : "ANY");
    }
}

static void
bash_names(void)
{
    const struct cli_command *c;

    for (size_t i = 0; (c = cli_command_at(i)); i++) {
        if (c->run)
            printf("%s ", c->name);
    }
}

static void
print_bash(void)
{
    printf("# bash completion for idem %s, made by: idem completion bash\n"
           "_idem()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} options= words=\n"
           "    local commands=\"",
           IDEM_VERSION);
    bash_names();
    printf("\"\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- "
           "\"$word\"))\n"
           "        return\n"
           "    fi\n"
           "    case \"${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD - 1]}\" in\n");
    each_command(bash_values);
    printf("    esac\n"
           "    case $words in\n"
           "    ANY) return ;;\n"
           "    FILES) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
           "    ?*) COMPREPLY=($(compgen -W \"$words\" -- \"$word\")); return "
           ";;\n"
           "    esac\n"
           "    case ${COMP_WORDS[1]} in\n");
    each_command(bash_options);
    printf("    help) words=\"$commands connecting exit-codes\" ;;\n"
           "    esac\n"
           "    case $word in\n"
           "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
           "    *) COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) ;;\n"
           "    esac\n"
           "}\n"
           "complete -o default -F _idem idem\n");
}

/* ---- zsh ----------------------------------------------------------------- */

static void
zsh_option(const struct cli_option *o, const char *name, const char *dashes)
{
    printf(" \\\n        '%s%s%s[", o->kind == CLI_LIST ? "*" : "", dashes,
           name);
    print_text(o->help);
    printf("]");
    if (o->kind != CLI_FLAG)
        printf(":%s:%s%s%s", o->value, words_of(o) ? "(" : "",
               words_of(o)  ? words_of(o)
               : is_file(o) ? "_files"
                            : "",
               words_of(o) ? ")" : "");
    printf("'");
}

static void
zsh_options(const struct cli_syntax *syntax)
{
    printf("    %s)\n        _arguments '--json[print JSON]' "
           "'--help[help]'",
           command);
    EACH_OPTION(o, syntax)
    {
        char letter[2] = {o->letter, 0};

        zsh_option(o, o->name, "--");
        if (o->letter)
            zsh_option(o, letter, "-");
    }
    if (arguments_of())
        printf(" \\\n        '1:argument:(%s)'", arguments_of());
    printf(" \\\n        '*:argument:_files' ;;\n");
}

static void
print_zsh(void)
{
    const struct cli_command *c;

    printf("#compdef idem\n# idem %s, made by: idem completion zsh\n"
           "_idem()\n{\n    local -a commands\n    commands=(\n",
           IDEM_VERSION);
    for (size_t i = 0; (c = cli_command_at(i)); i++) {
        if (!c->run)
            continue;
        printf("        '%s:", c->name);
        print_text(c->help);
        printf("'\n");
    }
    printf("    )\n"
           "    if (( CURRENT == 2 )); then\n"
           "        _describe command commands\n"
           "        return\n"
           "    fi\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $words[1] in\n");
    each_command(zsh_options);
    printf("    help) _describe command commands ;;\n"
           "    esac\n"
           "}\n"
           "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
           "    _idem \"$@\"\n"
           "else\n"
           "    (( $+functions[compdef] )) && compdef _idem idem\n"
           "fi\n");
}

/* ---- fish ---------------------------------------------------------------- */

static void
fish_options(const struct cli_syntax *syntax)
{
    EACH_OPTION(o, syntax)
    {
        printf("complete -c idem -n '__fish_seen_subcommand_from %s' -l %s",
               command, o->name);
        if (o->letter)
            printf(" -s %c", o->letter);
        if (o->kind != CLI_FLAG)
            printf(is_file(o) ? " -r -F" : " -x");
        if (words_of(o))
            printf(" -a '%s'", words_of(o));
        printf(" -d '");
        print_text(o->help);
        printf("'\n");
    }
    if (arguments_of())
        printf("complete -c idem -n '__fish_seen_subcommand_from %s' -a '%s'\n",
               command, arguments_of());
}

static void
print_fish(void)
{
    const struct cli_command *c;

    printf("# fish completion for idem %s, made by: idem completion fish\n"
           "complete -c idem -f -n __fish_use_subcommand\n"
           "complete -c idem -l json -d 'print JSON'\n"
           "complete -c idem -l help -s h -d help\n",
           IDEM_VERSION);
    for (size_t i = 0; (c = cli_command_at(i)); i++) {
        if (!c->run)
            continue;
        printf("complete -c idem -n __fish_use_subcommand -a %s -d '", c->name);
        print_text(c->help);
        printf("'\n");
    }
    each_command(fish_options);
    command = "help";
    printf("complete -c idem -n '__fish_seen_subcommand_from help' -a '");
    bash_names();
    printf("%s'\n", arguments_of());
}

int
cli_completion(int argc, char **argv)
{
    const struct cli_syntax syntax = {
        .usage = "completion bash|zsh|fish",
        .about =
            "Print a script with which the shell completes idem's commands, "
            "options and values. Packages and make install have installed it.",
        .min_args = 1,
        .max_args = 1,
    };
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {
        {"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    char **args;
    int code = cli_parse(&syntax, argc, argv, &args, NULL);

    if (code >= 0)
        return code;
    for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++) {
        if (strcmp(args[0], shells[i].name) == 0) {
            cli_text_begin();
            shells[i].print();
            cli_text_end("script");
            return CLI_OK;
        }
    }
    return cli_usage_error(
        "completion: unknown shell \"%s\"; give bash, zsh or fish", args[0]);
}
