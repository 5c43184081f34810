/*
 * cli.h - declarations that all subcommands of idem share.
 *
 * To add a subcommand: write cmd_NAME.c with `int cli_NAME(int argc, char
 * **argv)` (argv[0] is "NAME"), declare it at the end of this file, and add a
 * line to the table in main.c. Start with cli_parse, which also handles --help;
 * return one of the exit codes of exit.c.
 */
#ifndef IDEM__CLI_H
#define IDEM__CLI_H

#include "../base/buf.h"

#include <jansson.h>
#include <stdio.h>

/* ---- options (options.c) ---------------------------------------------- */

enum cli_kind {
    CLI_FLAG,    /* bool *into: --json */
    CLI_TEXT,    /* const char **into */
    CLI_FILTER,  /* the same, but not empty, as that would match all */
    CLI_NUMBER,  /* int64_t *into: 0 or more */
    CLI_MS,      /* int64_t *into: 1500ms, 30s, 5m, 24h, 7d */
    CLI_SIZE,    /* int64_t *into: bytes: 4096, 64k, 1m, 2g */
    CLI_LIST,    /* struct cli_list *into: may be repeated */
    CLI_HEADING, /* not an option: a heading for those that follow */
};

#define CLI_LIST_MAX 64

struct cli_list {
    const char *items[CLI_LIST_MAX];
    size_t count;
};

/* One option; a table of them ends with {0}. --help and --json are always
 * known. */
struct cli_option {
    const char *name; /* "lease": used as --lease 30s or --lease=30s */
    char letter;      /* 'l' for -l, or 0 */
    enum cli_kind kind;
    void *into;
    const char *value; /* name of the value in help: "TIME"; NULL for a flag */
    const char *help;  /* a line or several */
};

struct cli_syntax {
    const char *usage; /* "begin SCOPE ID [options]"; may have several lines */
    const char *about; /* what it does, in full sentences */
    const struct cli_option *options;
    size_t min_args, max_args; /* number of arguments besides options */
    size_t stop_at; /* options end at this argument, counted from 1: it and
                     * the rest are a command; 0: options may be anywhere */
};

/* Was --json given? Set by cli_parse, read by the output helpers. */
extern bool cli_json;

/*
 * Parse the options, which may be anywhere. *args gets the other arguments; if
 * there are none, or always the same number, both may be NULL. `argc` and
 * `argv` must stay valid. Returns -1 to continue; otherwise the exit code to
 * return at once: 0 after --help, CLI_USAGE after an error, which was printed.
 */
int cli_parse(const struct cli_syntax *syntax, int argc, char **argv,
              char ***args, size_t *arg_count);

/* If set, cli_parse passes the syntax to this function instead of printing
 * help. */
extern void (*cli_describe)(const struct cli_syntax *syntax);

/* Print what is wrong with the command line; returns CLI_USAGE. */
int cli_usage_error(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* ---- exit codes (exit.c) ---------------------------------------------- */

enum {
    CLI_OK = 0,
    CLI_FAILED = 1, /* the operation failed; see the message */
    CLI_USAGE = 2,  /* the command line is wrong */
};

int cli_exit_verdict(enum idem_verdict verdict);

/* The step that a person can take after this verdict; NULL: none. */
const char *cli_advice(enum idem_verdict verdict);
int cli_exit_status(enum idem_status status);

/* Print an error (JSON on standard output with --json, else a line on standard
 * error) and return its exit code. */
int cli_error(enum idem_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int cli_fail(const struct idem_error *err);

/* The table of `idem help exit-codes`. */
void cli_print_exit_codes(void);

/* ---- output (output.c) ------------------------------------------------ */

/* Print bytes for people: control characters and invalid UTF-8 become \xNN. */
void cli_print_safe(FILE *out, struct idem_bytes bytes);

/* Print a text as a word of a shell's command line, for people to copy: 'it'.
 * With characters that cli_print_safe replaces it is $'it', as in bash. */
void cli_print_quoted(FILE *out, const char *text);

/* Print one "name: value" line; the value is made safe. */
void cli_line(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Format a time in the store's milliseconds as "2026-01-31T12:00:00.123Z"; "-"
 * if 0. `out` has room for CLI_TIME_LEN. */
#define CLI_TIME_LEN 40
const char *cli_time(int64_t ms, char *out);

/* A duration in one unit: "5s", "3m", "2h", "9d". */
#define CLI_AGE_LEN 24
const char *cli_age(int64_t ms, char *out);

/* Set object[name], or object[name_base64] if the bytes are not UTF-8. */
void cli_json_bytes(json_t *object, const char *name, struct idem_bytes bytes);
/* Print the object on one line and drop the reference. */
void cli_json_print(json_t *object);
/* False: memory ran out for a JSON value, so it is not what it should be. A
 * message says so, and idem will end with the exit code of "lost". */
bool cli_json_whole(void);
bool cli_output_incomplete(void);
/* Output between these two calls is a text for people or other programs; with
 * --json it is printed as {name: text}. */
void cli_text_begin(void);
void cli_text_end(const char *name);
/* A record; `whole`: all fields are known, not only those of an answer. */
json_t *cli_json_record(const struct idem_record *record, bool whole,
                        bool with_result);

/* Read a result from the command line: the text itself, @FILE, or - for
 * standard input, of at most IDEM_RESULT_MAX bytes. */
enum idem_status cli_read_value(const char *text, struct idem_buf *into,
                                struct idem_error *err);

/* ---- terminal.c ------------------------------------------------------- */

/* Is standard output a terminal, without --json? */
bool cli_is_terminal(void);

enum cli_colour { CLI_PLAIN, CLI_BOLD, CLI_RED, CLI_GREEN, CLI_YELLOW };

/* The sequence that sets the colour; empty unless standard output is a terminal
 * and NO_COLOR is not set. CLI_PLAIN ends the colour. */
const char *cli_colour(enum cli_colour colour);

/* Show the progress on standard error, if that is a terminal. NULL: remove the
 * line; do this before anything else is printed. */
void cli_progress(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* ---- topics.c --------------------------------------------------------- */

/* Examples of a command, one per line; `usage` begins with its name. */
const char *cli_example(const char *usage);
/* The page of `idem help connecting`. */
void cli_print_connecting(void);

/* ---- secrets.c --------------------------------------------------------- */

/* Every user of the machine can read a command line. So idem works on a copy of
 * it, pointers and texts in one block, and removes passwords from the original.
 * They are not in a core dump either, unless IDEM_CORE_DUMPS is 1. */
char **cli_secrets_hide(int argc, char **argv);
/* A systemd credential IDEM_NAME sets the environment variable of that name, if
 * it is not set. False: a credential cannot be read, and standard error says
 * which. */
bool cli_secrets_read(void);

/* ---- files.c ----------------------------------------------------------- */

/* Call it before anything is opened. */
void cli_files_hold(void);
/* A command that idem runs inherits the files that idem was given, but none
 * that idem opened, such as its connection to a server. Call cli_files_note
 * before opening files, and cli_files_leave in the child, before the command's
 * own files are set up. */
void cli_files_note(void);
void cli_files_leave(void);

/* ---- main.c, manual.c -------------------------------------------------- */

struct cli_command {
    const char *name;
    const char *help; /* one line */
    int (*run)(int argc, char **argv);
};

/* The commands in the order of help; NULL after the last. A heading has no
 * `run`. */
const struct cli_command *cli_command_at(size_t i);
/* The help line of a command; empty if there is none. */
const char *cli_command_help(const char *name, size_t len);

/* The manual page of a command. */
void cli_print_manual(const struct cli_syntax *syntax);
/* The manual page of a file in /etc. cli_file_command returns the command that
 * reads the file, NULL if there is no such page; after that, print the page
 * with the syntax of that command. */
const char *cli_file_command(const char *page);
void cli_print_file_manual(const struct cli_syntax *syntax);

/* ---- subcommands ------------------------------------------------------ */

int cli_begin(int argc, char **argv);
int cli_finish(int argc, char **argv);
int cli_release(int argc, char **argv);
int cli_renew(int argc, char **argv);
int cli_settle(int argc, char **argv);
int cli_get(int argc, char **argv);
int cli_forget(int argc, char **argv);
int cli_scan(int argc, char **argv);
int cli_doubts(int argc, char **argv);
int cli_find(int argc, char **argv);
int cli_audit(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_issue(int argc, char **argv);
int cli_redeem(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_store(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_gateway(int argc, char **argv);
int cli_playground(int argc, char **argv);
int cli_id(int argc, char **argv);
int cli_lock(int argc, char **argv);
int cli_unlock(int argc, char **argv);
int cli_consume(int argc, char **argv);
int cli_journal(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_completion(int argc, char **argv);
int cli_backup(int argc, char **argv);
int cli_restore(int argc, char **argv);

#endif
