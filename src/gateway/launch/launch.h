/*
 * launch.h - a running `idem gateway`: its files, and its two children.
 */
#ifndef IDEM__LAUNCH_H
#define IDEM__LAUNCH_H

#include "../../base/spawn.h"
#include "../../base/wait.h"
#include "gateway.h"

#include <limits.h>

struct launch {
    gateway_load_fn *load;
    void *load_arg;
    struct gateway_config *config; /* the current one of the two */
    struct gateway_config configs[2];
    char folder[PATH_MAX / 2];
    char socket[PATH_MAX];
    char address[PATH_MAX]; /* the link to it; empty: none */
    char conf[PATH_MAX];
    char module[PATH_MAX];
    char script[PATH_MAX];
    char nginx_path[PATH_MAX];
    char http[128];
    char user[128], group[128]; /* of nginx's workers, if we are root */
    bool own_folder;
    struct idem_child engine, nginx; /* pid -1: not running */
    pid_t nginx_group; /* process group of nginx; 0: never started */
    int engine_status, nginx_status;
    int64_t engine_up_ms; /* when the engine began to listen */
    int64_t tries;        /* restarts since it last ran for STEADY_MS */
    uint64_t restarts;    /* in total; shown in the engine's metrics */
    int signals;          /* a signalfd */
    int stops;            /* stop signals received */
};

/* Write a line to standard error. */
void launch_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- places.c ------------------------------------------------------------ */

/* The path of this program when this was first called; an upgrade may have
 * replaced the file since. Empty: the path is unknown. */
const char *launch_own_path(void);

/* Find the module and nginx, and choose the user of its workers. */
enum idem_status launch_find(struct launch *self, struct idem_error *err);
/* The absolute path of the configured folder, which must exist. */
enum idem_status launch_folder_find(const struct gateway_config *config,
                                    char path[PATH_MAX],
                                    struct idem_error *err);
enum idem_status launch_folder_make(struct launch *self,
                                    struct idem_error *err);
void launch_folder_remove(struct launch *self);
/* Write nginx.conf, and the files that it names, into the folder. */
enum idem_status launch_conf_write(struct launch *self, struct idem_error *err);
/* Write the settings of each route, for the console (routes.c). */
enum idem_status launch_routes_write(const struct launch *self,
                                     struct idem_error *err);
/* Choose the address of the engine's HTTP: as configured, else a free port, if
 * possible the same as before. True: it has changed. */
bool launch_http_choose(struct launch *self);

/* ---- preflight.c --------------------------------------------------------- */

/* Is an address of --listen in use? Waits for another gateway that ends. */
enum idem_status launch_listen_check(struct launch *self,
                                     struct idem_error *err);
/* The same before a reload: those of `old` are in use by this gateway. */
enum idem_status launch_listen_check_new(const struct gateway_config *old,
                                         const struct gateway_config *fresh,
                                         struct idem_error *err);
/* Look up the hosts of --upstream and --auth-request. */
enum idem_status launch_hosts_check(const struct gateway_config *config,
                                    struct idem_error *err);
/* Say which callers share a scope, or are not protected. */
void launch_say_sharing(const struct gateway_config *config);

/* ---- children.c ---------------------------------------------------------- */

static inline bool
launch_runs(const struct idem_child *child)
{
    return child->pid > 0;
}

/* Check which children have ended. */
void launch_reap(struct launch *self);
/* Text such as "was killed by signal 9". */
const char *launch_how_it_ended(int status, char text[64]);
/* Start it and wait until it listens, or until a stop signal comes. */
enum idem_status launch_engine_start(struct launch *self,
                                     struct idem_error *err);
enum idem_status launch_nginx_start(struct launch *self,
                                    struct idem_error *err);
/* Ask nginx whether it would accept the configuration file (nginx -t). */
enum idem_status launch_nginx_test(const struct launch *self,
                                   struct idem_error *err);
/* Say what is wrong if the server of --engine cannot be reached
 * (launch_engine.c). */
void launch_engine_probe(const struct launch *self);
/* Ask the engine whether it would accept its options (idem serve --check). */
enum idem_status launch_engine_test(const struct launch *self,
                                    struct idem_error *err);
/* Stop nginx after it has finished its requests, then the engine. */
void launch_stop_all(struct launch *self);

/* ---- launch.c ------------------------------------------------------------ */

/* Wait for signals for up to timeout_ms, and handle them. */
void launch_take_signals(struct launch *self, int timeout_ms);

#endif
