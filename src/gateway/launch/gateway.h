/*
 * gateway.h - the configuration of `idem gateway`, and the nginx configuration
 * that is made from it.
 *
 *   flags, file --> gateway_config --> nginx.conf --> nginx + our module
 *                                 \--> idem serve on a socket of its own,
 *                                      unless --engine names another one
 *
 * A file has `name = value` lines; `[route PATH]` begins a route, and lines
 * before the first route apply to all routes.
 */
#ifndef IDEM__GATEWAY_H
#define IDEM__GATEWAY_H

#include "../../base/buf.h"

#define GATEWAY_ROUTES_MAX 200

/* How a value is parsed and how it is written into nginx.conf. */
enum gateway_kind {
    GATEWAY_WORD,   /* one value */
    GATEWAY_WORDS,  /* several, separated by spaces; "..." is one value */
    GATEWAY_TIME,   /* 1500ms, 30s, 5m, 24h, 7d */
    GATEWAY_SIZE,   /* 4096, 64k, 1m */
    GATEWAY_SWITCH, /* on, off */
};

/* The options of a route. */
struct gateway_option {
    const char *name;      /* "max-body" */
    const char *directive; /* "idem_max_body" */
    enum gateway_kind kind;
    const char *value; /* name of the value in help; NULL for a switch */
    const char *help;
};

#define GATEWAY_OPTIONS 34

/* In the order of help; ends with a NULL name. */
extern const struct gateway_option gateway_options[GATEWAY_OPTIONS + 1];

struct gateway_route {
    char *path; /* "/orders" and all paths below; "= /orders": only that */
    char *host; /* NULL: every host */
    char *upstream;
    char *auth; /* URL that decides whether a request may pass; "off": none */
    char *values[GATEWAY_OPTIONS]; /* NULL: not set */
};

struct gateway_config {
    char *listen; /* host:port[,host:port] */
    char *store;
    char *engine;      /* URL of a server to use; NULL: start one */
    char *http;        /* the engine's HTTP; NULL: a free port, "off" */
    char *seal_key;    /* of the engine */
    char *credentials; /* of the engine's HTTP */
    char *tls_cert, *tls_key;
    char *token_path, *token_rate;
    char *status_path, *status_rate; /* for a key's state */
    char *page_script;  /* path of idem.js for pages; NULL: not served */
    char *problem_base; /* prefix of problem types; NULL: the default */
    char *policy_path;  /* path of the routes' rules for clients; NULL: none */
    char *access_log;   /* NULL: none */
    char *nginx, *module, *folder;
    char *socket;    /* link to the engine's socket, for idem's commands; NULL:
                      * the default socket if it is free, "off" */
    int64_t workers; /* 0: by the number of cores */
    int64_t drain_ms;
    int64_t engine_restarts;   /* limit, then the gateway stops */
    bool console;              /* at the engine's HTTP */
    bool forwarded;            /* tell the service the client's address */
    bool log_keys;             /* log keys themselves, not digests */
    struct gateway_route base; /* settings of all routes */
    struct gateway_route routes[GATEWAY_ROUTES_MAX];
    size_t route_count;
};

void gateway_config_init(struct gateway_config *config);
void gateway_config_clear(struct gateway_config *config);

/* Set one option by its name; `route` NULL: for all routes. On error, the text
 * says what is wrong. */
enum idem_status gateway_config_set(struct gateway_config *config,
                                    struct gateway_route *route,
                                    const char *name, const char *value,
                                    struct idem_error *err);
enum idem_status gateway_config_text(struct gateway_config *config,
                                     const char *file, struct idem_bytes text,
                                     struct idem_error *err);
enum idem_status gateway_config_file(struct gateway_config *config,
                                     const char *file, struct idem_error *err);
/* Refuse missing or impossible settings; fill in defaults. */
enum idem_status gateway_config_check(struct gateway_config *config,
                                      struct idem_error *err);

/* Refuse an engine's URL that is wrong, and settings that only an engine of the
 * gateway's own can have. */
enum idem_status gateway_engine_check(const struct gateway_config *config,
                                      struct idem_error *err);
/* Write the line of nginx.conf that names it; `secret`: with the credential. */
enum idem_status gateway_engine_conf(const struct gateway_config *config,
                                     bool secret, struct idem_buf *out,
                                     struct idem_error *err);

/* Does the engine's HTTP have credentials? */
bool gateway_has_credentials(const struct gateway_config *config);

/* The value of an option on this route; NULL: not set. */
const char *gateway_value(const struct gateway_config *config,
                          const struct gateway_route *route, const char *name);

/* The same, or its default; NULL if there is none either. */
const char *gateway_effective(const struct gateway_config *config,
                              const struct gateway_route *route,
                              const char *name);

/* Files in the folder: nginx's counters, and the routes' settings for the
 * console. */
#define GATEWAY_FIGURES "figures"
#define GATEWAY_ROUTES "routes.json"

/* Files and folders for nginx while the gateway runs it. */
struct gateway_place {
    const char *folder; /* temporary files, the socket, the configuration */
    const char *socket; /* of our own engine */
    const char *module;
    const char *script; /* the file of idem.js; NULL: not served */
    const char *user;   /* of the workers; NULL: the user who starts nginx */
    bool secret; /* nobody else can read the file: it may have a credential */
};

#define GATEWAY_WORD_MAX 1024

/* The next of several words separated by spaces; "..." is one word. False at
 * the end. A word that is too long is cut. */
bool gateway_word_next(const char **text, char word[GATEWAY_WORD_MAX]);

/* Add a value to nginx.conf, in quotes. */
bool gateway_add_quoted(struct idem_buf *out, const char *value);

/* Is this a valid URL of a service? */
enum idem_status gateway_upstream_check(const char *text,
                                        struct idem_error *err);

/* Write the complete nginx.conf. */
enum idem_status gateway_nginx_conf(const struct gateway_config *config,
                                    const struct gateway_place *place,
                                    struct idem_buf *out,
                                    struct idem_error *err);

/* Find the module next to the binary or where `make install` puts it; likewise
 * the page script. */
enum idem_status gateway_find_module(const struct gateway_config *config,
                                     char *path, size_t path_len,
                                     struct idem_error *err);

enum idem_status gateway_find_script(char *path, size_t path_len,
                                     struct idem_error *err);

/* Load the configuration, at the start and again on SIGHUP. */
typedef enum idem_status gateway_load_fn(void *arg,
                                         struct gateway_config *config,
                                         struct idem_error *err);

/* Do nginx (nginx -t) and the engine (idem serve --check) accept it? A running
 * gateway is not disturbed. */
enum idem_status gateway_try(struct gateway_config *config,
                             struct idem_error *err);

/* Start the engine and nginx, forward signals, stop both; returns an exit
 * status. */
int gateway_run(gateway_load_fn *load, void *arg, bool json);

#endif
