/*
 * zookeeper.h - the internals of the ZooKeeper store.
 *
 *   zookeeper.c  the store constant: load, now, open
 *   swap.c       compare and swap, in rounds
 *   session.c    opens sessions, and rounds of requests in a session
 *   sweep.c      scan, and deleting expired records
 *   zookeeper_watch.c  receives changes
 *
 *   /idem/clock           written to learn the time
 *   /idem/ab/ab01...ff    a record, in the shard of its first two digits
 */
#ifndef IDEM__ZOOKEEPER_H
#define IDEM__ZOOKEEPER_H

#include "../../base/url.h"
#include "../value.h"

#include <pthread.h>
#include <stdatomic.h>
#include <zookeeper/zookeeper.h>

#define ZK_ROOT_MAX 128
#define ZK_PATH_MAX (ZK_ROOT_MAX + 4 + IDEM__HEX_LEN + 1)
#define ZK_SHARDS 256

/* The version of a record when this store last wrote it, so that the next write
 * need not read it. It is a guess, which the write itself checks. */
#define ZK_VERSIONS 4096

struct zk_version {
    uint8_t key[IDEM_KEY_LEN];
    uint64_t rev; /* 0: the place is empty */
    int version, shard_version;
};

/* Requests that are sent together and waited for together. If a request is not
 * answered in time, it outlives its round; the last answer frees the memory. */
struct zk_call {
    struct zk_round *round;
    int rc;
    struct Stat stat;
    char *data; /* the data that a get returned; NULL: none */
    int data_len;
    struct String_vector names; /* the names that a listing returned */
    zoo_op_t ops[3];
    zoo_op_result_t results[3];
    char paths[2][ZK_PATH_MAX];
};

struct zk_round {
    pthread_mutex_t lock;
    pthread_cond_t change;
    size_t unanswered;
    bool left; /* nobody waits any more */
    size_t count;
    struct zk_call calls[];
};

struct zk_store {
    struct idem_store base;
    struct idem__url url;
    char *hosts;            /* in the format of the library */
    char root[ZK_ROOT_MAX]; /* "/idem" */
    const struct ACL_vector *acl;
    int64_t connect_ms, timeout_ms, session_ms;

    zhandle_t *zh; /* NULL: no session */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool connected; /* guarded by the lock; set by the library's thread */
    int64_t try_after_us;
    bool rooted;         /* the root was seen in this session */
    atomic_bool watches; /* keys are or were watched */

    struct zk_version *versions;   /* by the key's last bytes */
    int shard_versions[ZK_SHARDS]; /* -1: not known */

    char sweep_from[IDEM__HEX_LEN + 1]; /* the name swept last */
    int64_t sweep_after_us;

    uint64_t sessions, requests, lost, swept;
};

/* Make sure that there is a session. Fails at once shortly after a failure. */
enum idem_status idem__zk_ready(struct zk_store *self, struct idem_error *err);
void idem__zk_hang_up(struct zk_store *self);
bool idem__zk_is_connected(struct zk_store *self);

struct zk_round *idem__zk_round_new(size_t count);
void idem__zk_round_leave(struct zk_round *round); /* NULL is fine */

/* Wait for all answers. Requests without an answer in time count as lost, and
 * the session is then closed. */
void idem__zk_round_wait(struct zk_store *self, struct zk_round *round);

/* Each sends one request; the answer is written to this call of the round. */
void idem__zk_create(struct zk_store *self, struct zk_call *call,
                     const char *path, struct idem_bytes data);
void idem__zk_get(struct zk_store *self, struct zk_call *call,
                  const char *path);
void idem__zk_exists(struct zk_store *self, struct zk_call *call,
                     const char *path);
void idem__zk_set(struct zk_store *self, struct zk_call *call,
                  const char *path);
void idem__zk_list(struct zk_store *self, struct zk_call *call,
                   const char *path);
/* Reads after this in the same session see everything that was acknowledged to
 * any client before; without it a follower may answer with an old state. */
void idem__zk_sync(struct zk_store *self, struct zk_call *call);
/* Swap or (data NULL) delete a record, if the node still has this version and
 * the shard still has that version, so that nothing was deleted in it. */
void idem__zk_change(struct zk_store *self, struct zk_call *call,
                     const uint8_t *key, int shard_version, int version,
                     struct idem_bytes data);

/* Was the request not answered, so that a write may have been done? */
bool idem__zk_is_loss(int rc);

void idem__zk_shard_path(const struct zk_store *self, unsigned shard,
                         char *path);
void idem__zk_record_path(const struct zk_store *self, const uint8_t *key,
                          char *path);

/* Read the record that a get returned; ABSENT if there is no node. */
enum idem_status idem__zk_read(const struct zk_call *call, const uint8_t *key,
                               struct idem_arena *arena,
                               struct idem_record *record,
                               struct idem_error *err);

idem_watch_fn idem__zk_watch;
/* The session has ended: no changes are reported until keys are watched
 * again. */
void idem__zk_unwatched(struct zk_store *self);

idem_swap_fn idem__zk_swap;
idem_scan_fn idem__zk_scan;
void idem__zk_sweep(struct zk_store *self, int64_t drop_ms);

#endif
