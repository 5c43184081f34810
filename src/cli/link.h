/*
 * link.h - where a verb goes: one small interface between the commands and
 * what carries an operation out.
 *
 * A command builds an op, hands it to the link, gets an answer, prints it. The
 * engine on a store is one kind of link; another way to reach records (a
 * connection to `idem serve`) is another file with its own functions, chosen in
 * cli_link_open by the options that CLI_WHERE_OPTIONS reads.
 */
#ifndef IDEM__CLI_LINK_H
#define IDEM__CLI_LINK_H

#include "cli.h"

/* What the command line says about where records are. */
struct cli_where {
    const char *store;       /* URL, or NULL: IDEM_STORE */
    const char *server;      /* address, or NULL: IDEM_SERVER */
    const char *credentials; /* file, or NULL: IDEM_AUTH */
};

/* The rows that every verb has in its table of options. */
#define CLI_WHERE_OPTIONS(where)                                               \
    {"server",                                                                 \
     'S',                                                                      \
     CLI_TEXT,                                                                 \
     &(where)->server,                                                         \
     "ADDRESS",                                                                \
     "the server: unix:PATH or HOST:PORT; else\n"                              \
     "the variable IDEM_SERVER, else this user's socket"},                     \
        {"credentials",                                                        \
         0,                                                                    \
         CLI_TEXT,                                                             \
         &(where)->credentials,                                                \
         "FILE",                                                               \
         "a line \"name secret\" for the server; else the\n"                   \
         "variable IDEM_AUTH, name:secret"},                                   \
    {                                                                          \
        "store", 's', CLI_TEXT, &(where)->store, "URL",                        \
            "no server: open this store here. journal:DIR,\n"                  \
            "sqlite:FILE, redis://HOST, postgres://HOST/DB, ...;\n"            \
            "else the variable IDEM_STORE"                                     \
    }

struct cli_link {
    /* As idem_do; the answer is cleared with idem_answer_clear, so its memory
     * is one piece from malloc. */
    enum idem_status (*run)(struct cli_link *link, const struct idem_op *op,
                            struct idem_answer *answer, struct idem_error *err);
    /* As idem_scan. */
    enum idem_status (*scan)(struct cli_link *link,
                             const struct idem_filter *filter,
                             struct idem_cursor *cursor, size_t count,
                             idem_each_fn *each, void *arg,
                             struct idem_error *err);
    /* The most bytes of a result that are kept here. */
    size_t (*max_result)(struct cli_link *link);
    void (*close)(struct cli_link *link);
};

enum idem_status cli_link_open(const struct cli_where *where,
                               struct cli_link **link, struct idem_error *err);
void cli_link_close(struct cli_link *link); /* NULL is fine */

/* The store's URL from the option or IDEM_STORE; NULL if neither is there, or
 * if a server is named. */
const char *cli_store_url(const struct cli_where *where);

/* An engine of this process on a store. */
enum idem_status cli_engine_link_open(const char *url, struct cli_link **link,
                                      struct idem_error *err);

/* A connection to the server that the options, IDEM_SERVER or the default
 * socket name. */
enum idem_status cli_server_link_open(const struct cli_where *where,
                                      struct cli_link **link,
                                      struct idem_error *err);

#endif
