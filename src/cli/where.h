/*
 * where.h - where records are: a store that this process opens, or a server.
 *
 * Both are an engine, so a command builds an op, hands it to idem__do_verb,
 * and prints the answer.
 */
#ifndef IDEM__CLI_WHERE_H
#define IDEM__CLI_WHERE_H

#include "../engine/engine.h"
#include "cli.h"

/* What the command line says about where records are. */
struct cli_where {
    const char *store;       /* URL, or NULL: IDEM_STORE */
    const char *server;      /* address, or NULL: IDEM_SERVER */
    const char *credentials; /* file, or NULL: IDEM_AUTH */
    const char *seal_key;    /* file, or NULL: IDEM_SEAL_KEY */
};

/* The rows that every verb has in its table of options. */
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
            "the keys that the store is sealed with; else the variable\n"      \
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

/* Open a store, with the options' seal-key or that of the variable. The rest of
 * `options`, which may be NULL, is as for idem_open. */
enum idem_status cli_store_open(const struct cli_where *where, const char *url,
                                const struct idem_options *options,
                                struct idem_engine **engine,
                                struct idem_error *err);

/* The store's URL from the option or IDEM_STORE; NULL if neither is there, or
 * if a server is named. */
const char *cli_store_url(const struct cli_where *where);

/* The idem:// URL of the server that the options, IDEM_SERVER or the default
 * socket name. */
enum idem_status cli_server_url(const struct cli_where *where, char *url,
                                size_t len, struct idem_error *err);

/* A connection to that server, for what is no operation (INFO, ID). */
struct idem__remote_line;
enum idem_status cli_line_open(const struct cli_where *where,
                               struct idem__remote_line *line,
                               struct idem_error *err);

/* As idem_scan; a doubt is what the store's clock says, however short this
 * process has watched it. */
enum idem_status cli_list(struct idem_engine *engine,
                          const struct idem_filter *filter,
                          struct idem_cursor *cursor, size_t count,
                          idem_each_fn *each, void *arg,
                          struct idem_error *err);

#endif
