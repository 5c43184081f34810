/*
 * main.c - the idem command: find the subcommand and run it.
 */
#include "cli.h"

#include "../base/guess.h"
#include "../base/json_memory.h"
#include "../store/store.h"

#include <idem/idem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int cli_help(int argc, char **argv);
static int cli_version(int argc, char **argv);

/* In the order of help; a NULL function is a heading. */
static const struct cli_command commands[] = {
    {"One record:", NULL, NULL},
    {"begin", "claim a request, or get the outcome of the first one",
     cli_begin},
    {"finish", "store the outcome; duplicates will get it", cli_finish},
    {"release", "give up a claim whose work was not done", cli_release},
    {"renew", "extend the lease of a claim", cli_renew},
    {"settle", "decide a doubt, or stop a request for good", cli_settle},
    {"get", "show a record", cli_get},
    {"forget", "delete a record, so that its request may run again",
     cli_forget},
    {"Tokens:", NULL, NULL},
    {"issue", "issue tokens that can be used once", cli_issue},
    {"redeem", "use a token", cli_redeem},
    {"Many records:", NULL, NULL},
    {"scan", "list records by type, scope, state, age", cli_scan},
    {"doubts", "list requests whose outcome is unknown, oldest first",
     cli_doubts},
    {"find", "find records by id or by a problem's instance", cli_find},
    {"audit", "list what operators did", cli_audit},
    {"The store:", NULL, NULL},
    {"store", "set up a store, check it, copy it, print its SQL", cli_store},
    {"journal", "check or print a journal's files, running or not",
     cli_journal},
    {"backup", "copy a journal, running or not, to another folder", cli_backup},
    {"restore", "make a journal from a backup", cli_restore},
    {"Servers:", NULL, NULL},
    {"serve", "start a server: RESP (the Redis protocol) and HTTP", cli_serve},
    {"top", "show what a server is doing, live", cli_top},
    {"bench", "measure how fast a server replies (idem or Redis)", cli_bench},
    {"gateway", "make an HTTP service idempotent without changing it",
     cli_gateway},
    {"check", "test whether an HTTP interface is idempotent", cli_check},
    {"playground", "try each scheme in a browser, broken and protected",
     cli_playground},
    {"Commands and messages, once:", NULL, NULL},
    {"run", "run a command at most once; repeat its output", cli_run},
    {"lock", "run a command while holding a lock", cli_lock},
    {"unlock", "release a lock by hand", cli_unlock},
    {"id", "make unique ids: snowflakes, UUIDs, numbers", cli_id},
    {"consume", "handle each message of a broker once", cli_consume},
    {"Help:", NULL, NULL},
    {"help", "idem help COMMAND; idem help connecting; idem help exit-codes",
     cli_help},
    {"completion", "print the completion script for bash, zsh or fish",
     cli_completion},
    {"version", "print the version", cli_version},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct cli_command *
find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (commands[i].run && strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

const struct cli_command *
cli_command_at(size_t i)
{
    return i < COMMANDS ? &commands[i] : NULL;
}

const char *
cli_command_help(const char *name, size_t len)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (commands[i].run && strlen(commands[i].name) == len &&
            strncmp(commands[i].name, name, len) == 0)
            return commands[i].help;
    }
    return "";
}

static void
print_help(void)
{
    printf("idem - run each request once, however often it arrives\n"
           "\n"
           "usage: idem COMMAND [arguments] [options]\n");
    for (size_t i = 0; i < COMMANDS; i++) {
        if (commands[i].run)
            printf("  %-10s %s\n", commands[i].name, commands[i].help);
        else
            printf("\n%s\n", commands[i].name);
    }
    printf("\n"
           "Every command has --help and --json. Commands connect to a server "
           "(idem serve),\n"
           "or open a store themselves; idem help connecting explains how.\n");
}

static int
unknown_command(const char *name)
{
    struct idem__guess guess = {name, strlen(name), NULL, 0};

    for (size_t i = 0; i < COMMANDS; i++) {
        if (commands[i].run)
            idem__guess(&guess, commands[i].name);
    }
    if (guess.name)
        return cli_usage_error("there is no command \"%s\"; did you mean "
                               "\"%s\"?",
                               name, guess.name);
    return cli_usage_error("there is no command \"%s\": idem --help lists them",
                           name);
}

static int
cli_version(int argc, char **argv)
{
    const struct cli_syntax syntax = {
        .usage = "version",
        .about = "Print the version, as idem --version does.",
    };
    int code = cli_parse(&syntax, argc, argv, NULL, NULL);

    if (code >= 0)
        return code;
    if (cli_json)
        cli_json_print(json_pack("{s:s}", "version", IDEM_VERSION));
    else
        printf("idem %s\n", IDEM_VERSION);
    return CLI_OK;
}

static int
cli_help(int argc, char **argv)
{
    char *help[] = {argc > 1 ? argv[1] : NULL, (char *)"--help", NULL};
    const struct cli_command *command;
    int code;

    for (int i = 1; i < argc && !cli_json; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            memmove(&argv[i], &argv[i + 1], (size_t)(argc - i) * sizeof(*argv));
            cli_json = true;
            cli_text_begin();
            code = cli_help(argc - 1, argv);
            cli_text_end("help");
            return code;
        }
    }

    if (argc < 2 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help();
        return CLI_OK;
    }
    if (strcmp(argv[1], "exit-codes") == 0) {
        cli_print_exit_codes();
        return CLI_OK;
    }
    if (strcmp(argv[1], "connecting") == 0) {
        cli_print_connecting();
        return CLI_OK;
    }
    if (strcmp(argv[1], "--man") == 0) {
        const char *reader = argc > 2 ? cli_file_command(argv[2]) : NULL;
        char *shown[] = {argv[0], (char *)reader, NULL};

        cli_describe = reader ? cli_print_file_manual : cli_print_manual;
        return reader ? cli_help(2, shown) : cli_help(argc - 1, argv + 1);
    }
    command = find(argv[1]);
    return command ? command->run(2, help) : unknown_command(argv[1]);
}

/* An error if the output could not be written (full disk, closed pipe), or made
 * (memory). */
static int
flushed(int code)
{
    if (cli_output_incomplete())
        code = cli_exit_status(IDEM_ERR_LOST);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "idem: cannot write to standard output\n");
        return code == CLI_OK ? CLI_FAILED : code;
    }
    return code;
}

static int
run(int argc, char **argv)
{
    const struct cli_command *command;

    if (argc < 2) {
        print_help();
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        return flushed(cli_version(1, argv));
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return flushed(cli_help(1, argv));
    command = find(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    return flushed(command->run(argc - 1, argv + 1));
}

int
main(int argc, char **argv)
{
    char **own = cli_secrets_hide(argc, argv);
    int code;

    cli_files_hold();
    idem__json_watch();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ,
           SIG_IGN); /* a file at its limit is an error, like a full disk */
    signal(SIGCHLD, SIG_DFL); /* if ignored, wait() would lose exit statuses */
    if (!own) {
        fprintf(stderr, "idem: out of memory\n");
        return CLI_FAILED;
    }
    code = cli_secrets_read() ? run(argc, own) : CLI_FAILED;
    free(own);
    return code;
}
