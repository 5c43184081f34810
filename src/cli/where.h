/*
 * where.h - where the records are: in a store that this process opens, or on a
 * server.
 *
 * Both are an engine, so a command builds an op, passes it to idem__do_verb,
 * and prints the answer.
 */
#ifndef IDEM__CLI_WHERE_H
#define IDEM__CLI_WHERE_H

#include "../engine/engine.h"
#include "cli.h"

/* The options that say where the records are. */
struct cli_where {
    const char *store;       /* URL, or NULL: IDEM_STORE */
    const char *server;      /* address, or NULL: IDEM_SERVER */
    const char *credentials; /* file, or NULL: IDEM_AUTH */
    const char *seal_key;    /* file, or NULL: IDEM_SEAL_KEY */
    bool must_exist;         /* do not create a journal or SQLite file */
};

/* The rows of these options, for every verb's table. */
#define CLI_SERVER_OPTIONS(where)                                              \
    {"server",                                                                 \
     'S',                                                                      \
     CLI_TEXT,                                                                 \
     &(where)->server,                                                         \
     "ADDRESS",                                                                \
     "ask this server: unix:PATH, HOST:PORT or idems://HOST:PORT?ca=FILE"},    \
    {                                                                          \
        "credentials", 0, CLI_TEXT, &(where)->credentials, "FILE",             \
            "a file with a line \"name secret\" for the server"                \
    }

#define CLI_SEAL_OPTION(where)                                                 \
    {                                                                          \
        "seal-key", 0, CLI_TEXT, &(where)->seal_key, "FILE",                   \
            "the keys that the store is sealed with; else the variable "       \
            "IDEM_SEAL_KEY"                                                    \
    }

#define CLI_WHERE_OPTIONS(where)                                               \
    CLI_SERVER_OPTIONS(where),                                                 \
        {"store",  's',                                                        \
         CLI_TEXT, &(where)->store,                                            \
         "URL",    "no server: open this store, for instance journal:DIR"},    \
        CLI_SEAL_OPTION(where)

#define CLI_URL_MAX 2048

enum idem_status cli_engine_open(const struct cli_where *where,
                                 struct idem_engine **engine,
                                 struct idem_error *err);

/* Opening a journal or an SQLite file creates it. Then a mistyped name would
 * look like a store without records, so refuse one that is missing. A folder
 * that is empty may have been made for a journal: it is refused if `empty` is
 * NULL, else *empty says so. An error of the system is left to the opening. */
enum idem_status cli_store_exists(const char *url, bool *empty,
                                  struct idem_error *err);

/* Open a store, with the seal-key of the options or of the environment. The
 * other `options`, which may be NULL, are as for idem_open. */
enum idem_status cli_store_open(const struct cli_where *where, const char *url,
                                const struct idem_options *options,
                                struct idem_engine **engine,
                                struct idem_error *err);

/* If a store could not be opened because a server has the journal open: say how
 * to ask that server (a command need not stop it). */
void cli_advise_to_ask(struct idem_error *err);

/* If a server could not be reached: add what to do, and whether IDEM_SERVER
 * named it. Only some commands take a store instead of a server. */
void cli_advise_to_start(const struct cli_where *where, bool takes_store,
                         struct idem_error *err);

/* The store's URL from the option or IDEM_STORE; NULL if neither is set, or if
 * a server is named. */
const char *cli_store_url(const struct cli_where *where);

/* The idem:// URL of the server, from the options, IDEM_SERVER or the default
 * socket. */
enum idem_status cli_server_url(const struct cli_where *where, char *url,
                                size_t len, struct idem_error *err);

/* A connection to that server, for commands that are not operations (INFO,
 * ID). */
struct idem__remote_line;
enum idem_status cli_line_open(const struct cli_where *where,
                               struct idem__remote_line *line,
                               struct idem_error *err);

/* Say on standard error that a list is empty, and which server or store was
 * asked, because it may be the wrong one: "no doubts at unix:PATH". */
void cli_say_none(const struct cli_where *where, const char *what);

/* Print the options that name the server or the store, as they were given but
 * without a secret, for a command line that a person can copy. */
void cli_print_where(FILE *out, const struct cli_where *where);

/* How long the record is in doubt by the store's clock; -1 if it is not. */
int64_t cli_doubt_ms(const struct idem_record *record, int64_t now_ms);

/* A record of a list, without its result; "doubt_ms" if it is in doubt. */
json_t *cli_json_listed(const struct idem_record *record, int64_t now_ms);

/* Like idem_scan, but the store's clock alone decides what is in doubt, however
 * short this process has watched the lease. */
enum idem_status cli_list(struct idem_engine *engine,
                          const struct idem_filter *filter,
                          struct idem_cursor *cursor, size_t count,
                          idem_each_fn *each, void *arg,
                          struct idem_error *err);

#endif
