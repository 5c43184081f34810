/*
 * served.h - an `idem serve` of its own for a C test, and a proxy that breaks
 * the connections to it.
 *
 * The test program is the server, too: its main calls served_main first.
 */
#ifndef TESTS_SERVED_H
#define TESTS_SERVED_H

#include "stores.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* True if this process was started to be a server; *code is its exit code.
 * Another first argument chooses tests by name, for instance "a_run*". */
bool served_main(int argc, char **argv, int *code);

struct served {
    char folder[200];
    char store[256];
    char socket[256];
    char url[300]; /* idem+unix:... */
    const char *options[6];
    pid_t pid;
};

/* In front of "memory:" or of "journal:", in a folder of its own. `options`,
 * which may be NULL, are further arguments, ended by NULL. */
void served_start(struct served *served, const char *store,
                  const char *const *options);
void served_signal(struct served *served, int signal); /* SIGKILL: waits */
void served_again(struct served *served);              /* after a kill */
void served_stop(struct served *served);

/* What the proxy does to connections. All may be changed at any time. */
struct proxy {
    char url[300]; /* idem+unix:... */
    char socket[256], target[256];
    int listener;
    pthread_t thread;
    atomic_int cut_per_mille; /* of the pieces that pass, either way */
    atomic_int delay_us;      /* a piece waits up to so long */
    atomic_bool swallow;      /* requests pass, replies do not */
    atomic_bool refuse;       /* who connects is hung up on */
    atomic_bool late;         /* the next request: its client is hung up on, */
    atomic_bool let_go;       /* and the server gets it only now */
    atomic_int cuts, accepted;
    atomic_bool over;
    atomic_int pairs;
};

void proxy_start(struct proxy *proxy, const struct served *served);
void proxy_stop(struct proxy *proxy);

/* What a test asks. Opening fails the test if it does not work; "quick" gives
 * up after 1.5 seconds. */
struct idem_engine *served_open(const char *url);
struct idem_engine *served_open_quick(const char *url);
int64_t served_now_ms(void);
/* idem_do, in the scope "shop" if the op has none. */
enum idem_status served_do(struct idem_engine *engine, struct idem_op op,
                           struct idem_answer *answer);
struct idem_op served_begin(const char *id);

#endif
