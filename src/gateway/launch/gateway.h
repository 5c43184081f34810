/*
 * gateway.h - what `idem gateway` is told, and the nginx configuration that it
 * becomes.
 *
 *   flags, file --> gateway_config --> nginx.conf --> nginx + our module
 *                                 \--> idem serve on a socket of its own
 *
 * A file has `name = value` lines; `[route PATH]` opens a route, and what
 * stands before the first one holds for all of them.
 */
#ifndef IDEM__GATEWAY_H
#define IDEM__GATEWAY_H

#include "../../base/buf.h"

#define GATEWAY_ROUTES_MAX 200

/* How a value is read and how it is written into nginx.conf. */
enum gateway_kind {
    GATEWAY_WORD,   /* one value */
    GATEWAY_WORDS,  /* several, with spaces between; "..." keeps one together */
    GATEWAY_TIME,   /* 1500ms, 30s, 5m, 24h, 7d */
    GATEWAY_SIZE,   /* 4096, 64k, 1m */
    GATEWAY_SWITCH, /* on, off */
};

/* The options of a route. */
struct gateway_option {
    const char *name;      /* "max-body" */
    const char *directive; /* "idem_max_body" */
    enum gateway_kind kind;
    const char *value; /* how help names it; NULL for a switch */
    const char *help;
};

#define GATEWAY_OPTIONS 34

/* In the order of help; ends with a NULL name. */
extern const struct gateway_option gateway_options[GATEWAY_OPTIONS + 1];

struct gateway_route {
    char *path; /* "/orders" and what is below it; "= /orders": only that */
    char *host; /* NULL: every host */
    char *upstream;
    char *auth; /* asked first whether a request may pass; "off": nobody */
    char *values[GATEWAY_OPTIONS]; /* NULL: not set */
};

struct gateway_config {
    char *listen; /* host:port[,host:port] */
    char *store;
    char *http;        /* the engine's HTTP; NULL: a free port, "off" */
    char *seal_key;    /* of the engine */
    char *credentials; /* of the engine's HTTP */
    char *tls_cert, *tls_key;
    char *token_path, *token_rate;
    char *status_path, *status_rate; /* "what became of my key" */
    char *page_script;  /* where pages find idem.js; NULL: nowhere */
    char *problem_base; /* what problem types begin with; NULL: the default */
    char *policy_path;  /* where clients can read what holds; NULL: nowhere */
    char *access_log;   /* NULL: none */
    char *nginx, *module, *folder;
    char *socket; /* where idem's commands reach the engine; NULL: the default
                     socket if it is free, "off" */
    int64_t workers; /* 0: by the number of cores */
    int64_t drain_ms;
    int64_t engine_restarts;   /* before we give up */
    bool console;              /* at the engine's HTTP */
    bool forwarded;            /* tell the service who asked */
    bool log_keys;             /* as they are, not their digests */
    struct gateway_route base; /* what every route has */
    struct gateway_route routes[GATEWAY_ROUTES_MAX];
    size_t route_count;
};

void gateway_config_init(struct gateway_config *config);
void gateway_config_clear(struct gateway_config *config);

/* One setting by its name; `route` NULL: of all. The text says what is wrong.
 */
enum idem_status gateway_config_set(struct gateway_config *config,
                                    struct gateway_route *route,
                                    const char *name, const char *value,
                                    struct idem_error *err);
enum idem_status gateway_config_text(struct gateway_config *config,
                                     const char *file, struct idem_bytes text,
                                     struct idem_error *err);
enum idem_status gateway_config_file(struct gateway_config *config,
                                     const char *file, struct idem_error *err);
/* Refuse what is missing or cannot be; fill in the rest. */
enum idem_status gateway_config_check(struct gateway_config *config,
                                      struct idem_error *err);

/* Those of the engine's HTTP. */
bool gateway_has_credentials(const struct gateway_config *config);

/* The value of an option on this route; NULL: not set. */
const char *gateway_value(const struct gateway_config *config,
                          const struct gateway_route *route, const char *name);

/* The same, or its default; NULL: neither. */
const char *gateway_effective(const struct gateway_config *config,
                              const struct gateway_route *route,
                              const char *name);

/* The files in the folder in which nginx counts, and which tells the console
 * what holds. */
#define GATEWAY_FIGURES "figures"
#define GATEWAY_ROUTES "routes.json"

/* Where nginx finds things while we run it. */
struct gateway_place {
    const char *folder; /* temporary files, the socket, the configuration */
    const char *socket;
    const char *module;
    const char *script; /* the file of idem.js; NULL: not served */
    const char *user;   /* of the workers; NULL: whoever starts nginx */
};

#define GATEWAY_WORD_MAX 1024

/* The next of words with spaces between them; "..." is one word. False at the
 * end. What is longer than the room is cut. */
bool gateway_word_next(const char **text, char word[GATEWAY_WORD_MAX]);

/* Is this a URL of a service? */
enum idem_status gateway_upstream_check(const char *text,
                                        struct idem_error *err);

/* The whole nginx.conf. */
enum idem_status gateway_nginx_conf(const struct gateway_config *config,
                                    const struct gateway_place *place,
                                    struct idem_buf *out,
                                    struct idem_error *err);

/* Find the module beside the binary or where `make install` puts it. The same
 * for the page script. */
enum idem_status gateway_find_module(const struct gateway_config *config,
                                     char *path, size_t path_len,
                                     struct idem_error *err);

enum idem_status gateway_find_script(char *path, size_t path_len,
                                     struct idem_error *err);

/* Read the configuration again, as at the start. */
typedef enum idem_status gateway_load_fn(void *arg,
                                         struct gateway_config *config,
                                         struct idem_error *err);

/* Start the engine and nginx, pass signals on, stop both; an exit status. */
int gateway_run(gateway_load_fn *load, void *arg, bool json);

#endif
