/*
 * redis.h - the internals of the Redis stores.
 *
 *   redis.c        the two store constants: now, open
 *   redis_batch.c  executes one batch: pipelines, answers, redirections
 *   redis_scan.c   lists records
 *   redis_watch.c  receives changes
 *   route.c        finds the server of a key: the primary or a slot's owner
 *   sentinel.c     asks Sentinels which server is the primary
 *   redis_link.c   a connection: pipelines with a deadline, many links at once
 *   redis_check.c  checks what a server reports about itself
 */
#ifndef IDEM__REDIS_H
#define IDEM__REDIS_H

#include "../../base/tls.h"
#include "../value.h"
#include "../watch.h"

#include <hiredis/hiredis.h>

#define REDIS_NODES_MAX 512
#define REDIS_SENTINELS_MAX 16
#define REDIS_WATCHED_MAX 65536
#define REDIS_SLOTS 16384
#define REDIS_NO_NODE UINT16_MAX

/* Tags of commands that do not belong to one element of a batch. */
#define REDIS_TAG_NONE UINT32_MAX
#define REDIS_TAG_WAIT (UINT32_MAX - 1)
#define REDIS_TAG_MEMORY (UINT32_MAX - 2)
#define REDIS_TAG_PUBLISH (UINT32_MAX - 3)

/* The settings from the URL. */
struct redis_settings {
    struct idem__url url;
    const struct idem_store_options *options;
    bool cluster, sentinel;
    char primary_name[65]; /* as Sentinels know it */
    int db;
    char prefix[65];
    int replicas; /* that must have a write; -1: 1 if there are any */
    int64_t wait_ms, connect_ms, timeout_ms;
    bool accept_everysec;  /* ?unsafe=everysec */
    bool accept_unseen;    /* ?unsafe=unseen */
    bool accept_forget;    /* ?unsafe=forget */
    struct idem__tls *tls; /* NULL: not encrypted */
    uint64_t *link;        /* the store's: changes with every new connection */
    bool opening;          /* no other request is delayed by a silent server */
};

/* The name of a record, and of its channel: the prefix and its key in hex. */
#define REDIS_NAME_MAX                                                         \
    (sizeof(((struct redis_settings *)0)->prefix) + IDEM__HEX_LEN)

/* What a server reports about itself. */
struct redis_facts {
    bool known, master, cluster, sentinel, loading, aof, fsync_seen;
    bool aof_unwritten;    /* the file has no beginning yet */
    bool fsync_pauses;     /* no fsync while a child writes a snapshot */
    bool moves;            /* cluster-allow-replica-migration is not no */
    int replicas, version; /* 70015: 7.0.15 */
    char policy[24], fsync[12], run_id[9];
    int64_t ahead_us; /* the server's clock minus the monotonic clock here */
    int64_t used_memory, max_memory; /* bytes; max 0: no limit */
    int64_t config_sets; /* how often CONFIG SET was called; -1: not known */
};

/* Parse the text of INFO, or of only its section "memory" or "commandstats". */
void idem__redis_facts_read(const char *info, size_t len,
                            struct redis_facts *facts);
void idem__redis_facts_read_memory(const char *info, size_t len,
                                   struct redis_facts *facts);
void idem__redis_facts_read_calls(const char *info, size_t len,
                                  struct redis_facts *facts);

/* True if so much memory is used that new records are refused. The rest of
 * maxmemory is for the results of executing requests. */
bool idem__redis_facts_full(const struct redis_facts *facts);

/* Can this server keep records? IDEM_ERR_UNSUPPORTED if a setting is wrong,
 * IDEM_ERR_UNAVAILABLE if the state may change by itself. */
enum idem_status idem__redis_facts_judge(const struct redis_settings *settings,
                                         const struct redis_facts *facts,
                                         struct idem_error *err);

/* ---- a connection ---------------------------------------------------- */

struct redis_call {
    size_t end; /* in `out`: it was sent if that many bytes were */
    uint32_t tag;
};

struct redis_link {
    const struct redis_settings *settings;
    bool listens; /* for the watcher's thread: does not change *link */
    char host[256];
    int port;
    redisContext *context;     /* NULL: not connected */
    struct idem__tls_end *tls; /* NULL: not encrypted */
    struct redis_facts facts;
    char filed[9]; /* run_id of the server when its file had a beginning ... */
    int64_t filed_sets; /* ... and its config_sets then */
    int64_t checked_us, try_after_us;
    unsigned failures;     /* in a row */
    bool sentinel;         /* only asked for the primary, holds no records */
    bool judged;           /* the facts were good at the last check */
    bool unfit;            /* it answered as a primary, and `why` is its flaw */
    bool said_full;        /* it was logged that the server is full */
    int said_replicas;     /* so many were connected at the last warning */
    struct idem_error why; /* why it is not usable */

    struct idem_buf out;
    size_t written;
    struct redis_call *calls;
    size_t call_count, call_room, answered;
};

/* Warn if more replicas are connected than must confirm a write. */
void idem__redis_link_warn(struct redis_link *link);

struct redis_link *idem__redis_link_new(const struct redis_settings *settings,
                                        const char *host, int port);
void idem__redis_link_delete(struct redis_link *link);

/*
 * Connect if necessary, and check the server's settings if the last check is
 * old. Fails at once shortly after a failure. False: see link->why.
 */
bool idem__redis_link_ready(struct redis_link *link, int64_t deadline_us);

/* Close the connection. The next use connects again, after a pause if `why` is
 * given. */
void idem__redis_link_drop(struct redis_link *link, const char *why);

/* Add a command for idem__redis_links_run to send. False: out of memory. */
bool idem__redis_link_add(struct redis_link *link, uint32_t tag, int argc,
                          const struct idem_bytes *argv);
bool idem__redis_link_add_text(struct redis_link *link, uint32_t tag,
                               const char *words); /* separated by spaces */

/*
 * Called once for every command that was added. `reply` is NULL if there was
 * none; `sent` then says whether the server may have received the command.
 */
typedef void redis_answer_fn(void *arg, struct redis_link *link, uint32_t tag,
                             const redisReply *reply, bool sent);

/* Send the commands of these links and read all answers, on all links at the
 * same time. A link that breaks or is late is dropped. */
void idem__redis_links_run(struct redis_link **links, size_t count,
                           int64_t deadline_us, redis_answer_fn *answer,
                           void *arg);

/* Send the commands of a link and read what has arrived, as far as poll allows;
 * answers stay in the reader. A link that breaks is dropped. */
void idem__redis_link_move(struct redis_link *link, short ready);

/* ---- the store ------------------------------------------------------- */

struct redis_store {
    struct idem_store base;
    struct redis_settings settings;
    struct redis_link *links[REDIS_NODES_MAX];
    size_t link_count;
    size_t primary; /* without a cluster: the index of the primary's link */

    uint16_t *slots; /* cluster: slot -> link */
    struct redis_link *sentinels[REDIS_SENTINELS_MAX];
    size_t sentinel_count;
    bool map_stale; /* ask again for the slots, or for the primary */
    int64_t map_us; /* when that was last done */
    /* With Sentinels: why the primary cannot be used; "": not known. */
    struct idem_error no_primary;
    struct idem__watcher watcher;

    uint64_t swaps, lost, refused, redirected, wait_short, connects;
};

extern const char *const idem__redis_script; /* compare and swap, in Lua */
extern const char *const idem__redis_script_sha;

/* Write the name of a key's record; returns its length. */
size_t idem__redis_name(const struct redis_store *self, const uint8_t *key,
                        char name[REDIS_NAME_MAX]);

/* The link where a key's record was last found; REDIS_NO_NODE: none. */
size_t idem__redis_place(const struct redis_store *self, const uint8_t *key);

/* The link for a key, ready for use; NULL: err says why. */
struct redis_link *idem__redis_route(struct redis_store *self,
                                     const uint8_t key[IDEM_KEY_LEN],
                                     int64_t deadline_us,
                                     struct idem_error *err);

/* The link to the server whose clock is the store's. */
struct redis_link *idem__redis_route_clock(struct redis_store *self,
                                           int64_t deadline_us,
                                           struct idem_error *err);

/* The link to the server that most Sentinels name, ready or not; NULL: err says
 * why. */
struct redis_link *idem__redis_sentinel_primary(struct redis_store *self,
                                                int64_t deadline_us,
                                                struct idem_error *err);

/* Find or add a server. NULL: too many, or out of memory. */
struct redis_link *idem__redis_route_node(struct redis_store *self,
                                          const char *host, int port);

/* "MOVED 3999 127.0.0.1:6381" or ASK: the server named, and its slot. */
struct redis_link *idem__redis_route_redirect(struct redis_store *self,
                                              struct redis_link *from,
                                              const char *text, bool moved);

/* Read the slot map again. */
enum idem_status idem__redis_route_refresh(struct redis_store *self,
                                           int64_t deadline_us,
                                           struct idem_error *err);

/* The owner of a slot and, in *next, the next slot that belongs to another
 * server (REDIS_SLOTS: none). Without a cluster there is one owner. */
struct redis_link *idem__redis_route_slot(struct redis_store *self,
                                          unsigned slot, unsigned *next);

/* The number of replicas that must have a write before it is answered. */
int idem__redis_replicas(const struct redis_store *self);

/* The deadline of a request that begins now. */
int64_t idem__redis_deadline(const struct redis_store *self);

/* redis_watch.c: the watcher's thread, and handling the answer to a PUBLISH. */
void idem__redis_listen(struct idem__watcher *watcher);
void idem__redis_on_publish(struct redis_store *self, const redisReply *reply);
idem_watch_fn idem__redis_watch;

idem_scan_fn idem__redis_scan;
enum idem_status idem__redis_swap_batch(struct redis_store *self,
                                        struct idem_swap *swaps, size_t count,
                                        struct idem_arena *arena,
                                        struct idem_error *err);
enum idem_status idem__redis_load_batch(struct redis_store *self,
                                        struct idem_load *loads, size_t count,
                                        struct idem_arena *arena,
                                        struct idem_error *err);

#endif
