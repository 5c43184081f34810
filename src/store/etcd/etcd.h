/*
 * etcd.h - the internals of the etcd store.
 *
 *   etcd.c        the store constant: swap, load, scan, open
 *   etcd_call.c   sends one request to the JSON gateway and judges its failure
 *   etcd_watch.c  receives changes
 *   lease.c       how long etcd keeps a record
 */
#ifndef IDEM__ETCD_H
#define IDEM__ETCD_H

#include "../../base/url.h"
#include "../value.h"
#include "../watch.h"

#include <curl/curl.h>
#include <jansson.h>

/* The outcome of a request. */
enum etcd_result {
    ETCD_DONE,     /* answered: see the reply */
    ETCD_NOT_DONE, /* certainly not: no server was reached, or it was refused */
    ETCD_SPLIT,    /* the answer was too large: ask for less at a time */
    ETCD_NO_LEASE, /* a lease that it named is gone; nothing was done */
    ETCD_LOST,     /* not known */
};

struct etcd_client {
    struct idem__url url;
    CURL *curl;
    struct curl_slist *headers;
    char *token;    /* "Authorization: ..." when the URL has a user */
    size_t current; /* the host that answered last */
    int64_t try_after_us;
    unsigned failures; /* in a row */
    int64_t connect_ms, timeout_ms;
    bool tls;
    struct idem_buf body;
    uint64_t requests, lost;
};

enum idem_status idem__etcd_client_open(struct etcd_client *client,
                                        const char *url,
                                        struct idem_error *err);
void idem__etcd_client_close(struct etcd_client *client);

/* Post JSON to a path such as "/v3/kv/txn". With ETCD_DONE the caller owns
 * *reply. */
enum etcd_result idem__etcd_post(struct etcd_client *client, const char *path,
                                 struct idem_bytes json, json_t **reply,
                                 struct idem_error *err);

/* Set a handle's URL, headers and body; the other settings are the client's. */
void idem__etcd_prepare(struct etcd_client *client, CURL *curl,
                        const char *path, struct idem_bytes json);

/*
 * Records that may be dropped are attached to etcd's own leases, which count
 * down on the server, independent of any client's clock. Records that are due
 * at about the same time share a lease.
 */
#define ETCD_LEASES 64

struct etcd_leases {
    struct {
        int64_t until_ms; /* when its records may be dropped; 0: not in use */
        int64_t id;
        unsigned used;
    } slots[ETCD_LEASES];
    size_t oldest;
    uint64_t granted;
};

/* The lease for a record to be dropped at drop_ms, by a clock that shows now_ms
 * now. */
enum etcd_result idem__etcd_lease(struct etcd_client *client,
                                  struct etcd_leases *leases, int64_t drop_ms,
                                  int64_t now_ms, int64_t *id,
                                  struct idem_error *err);

/* Does etcd grant leases? It does not while it has no space. */
bool idem__etcd_lease_is_granted(struct etcd_client *client);

#define ETCD_PREFIX_MAX 128
#define ETCD_NAME_MAX (ETCD_PREFIX_MAX + IDEM__HEX_LEN)
#define ETCD_WATCHED_MAX 128 /* each needs a connection of its own */

struct etcd_store {
    struct idem_store base;
    int64_t wall_at_open_us, boot_at_open_us;
    struct etcd_client client;
    struct etcd_leases leases;
    char prefix[ETCD_PREFIX_MAX];
    size_t prefix_len;
    struct idem_buf request;
    unsigned direct_pause;  /* so many requests have no direct swaps */
    bool full;              /* etcd said so, and has not been asked since ... */
    int64_t full_looked_ms; /* ... this time */
    char *address;          /* the URL as it was given, for the watcher */
    struct idem__watcher watcher;
};

/* Write the name of a record in etcd; returns its length. */
size_t idem__etcd_name(const struct etcd_store *self, const uint8_t *key,
                       char name[ETCD_NAME_MAX]);
void idem__etcd_add_base64(struct idem_buf *buf, const void *data, size_t len);

idem_watch_fn idem__etcd_watch;
void idem__etcd_listen(struct idem__watcher *watcher);

#endif
