/*
 * launch.h - the parts of `idem gateway` while it runs: where its files are,
 * and its two children.
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
    char address[PATH_MAX]; /* leads to it; empty: nothing does */
    char conf[PATH_MAX];
    char module[PATH_MAX];
    char script[PATH_MAX];
    char nginx_path[PATH_MAX];
    char http[128];
    char user[128], group[128]; /* of nginx's workers, if we are root */
    bool own_folder;
    struct idem_child engine, nginx; /* pid -1: not running */
    pid_t nginx_group; /* of nginx and its workers; 0: never started */
    int engine_status, nginx_status;
    int64_t engine_up_ms; /* since when the engine listens */
    int64_t tries;        /* to start it again since it last ran steadily */
    uint64_t restarts;    /* ever; the engine has them in its metrics */
    int signals;          /* a signalfd */
    int stops;            /* how often we were told to stop */
};

/* A line on standard error. */
void launch_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- places.c ------------------------------------------------------------ */

/* This program's file, as it was called when first asked; an upgrade may have
 * replaced it since. Empty: the system does not tell. */
const char *launch_own_path(void);

/* Find the module and nginx, and choose the user of its workers. */
enum idem_status launch_find(struct launch *self, struct idem_error *err);
enum idem_status launch_folder_make(struct launch *self,
                                    struct idem_error *err);
void launch_folder_remove(struct launch *self);
/* Write nginx.conf, and what it names, into the folder. */
enum idem_status launch_conf_write(struct launch *self, struct idem_error *err);
/* And what holds on each route, for the console (routes.c). */
enum idem_status launch_routes_write(const struct launch *self,
                                     struct idem_error *err);
/* Where the engine's HTTP shall listen: as configured, else on a free port, the
 * same as before if it still is free. True: it is another one than before. */
bool launch_http_choose(struct launch *self);

/* ---- children.c ---------------------------------------------------------- */

static inline bool
launch_runs(const struct idem_child *child)
{
    return child->pid > 0;
}

/* Notice which children have ended. */
void launch_reap(struct launch *self);
/* "was killed by signal 9" */
const char *launch_how_it_ended(int status, char text[64]);
/* Start it and wait until it listens, or until we are told to stop. */
enum idem_status launch_engine_start(struct launch *self,
                                     struct idem_error *err);
enum idem_status launch_nginx_start(struct launch *self,
                                    struct idem_error *err);
/* nginx finishes what it has, then the engine stops. */
void launch_stop_all(struct launch *self);

/* ---- launch.c ------------------------------------------------------------ */

/* Wait a little for signals, and do what they ask for. */
void launch_take_signals(struct launch *self, int timeout_ms);

#endif
