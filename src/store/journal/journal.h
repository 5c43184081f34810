/*
 * journal.h - what the files of the journal share.
 *
 *   swap --> decide (index) --> batch.c: entries --> one write, one fdatasync
 *        --> index says where the new records lie --> stored
 *
 * The log is a row of segments, numbered without gaps. The newest is written;
 * only the oldest is ever taken away, after what still lives in it was written
 * again at the new end. So the state is always: read all segments in order,
 * the later entry of a key wins. No older entry of a key can outlive a newer
 * one, whatever crashes in between.
 *
 *   folder.c   names, the lock, what files are there
 *   segment.c  making, changing and dropping segments
 *   batch.c    the one place that writes entries
 *   recover.c  from files to an index
 *   journal.c  the store's functions
 */
#ifndef IDEM__JOURNAL_H
#define IDEM__JOURNAL_H

#include "../store.h"
#include "format.h"
#include "index.h"
#include "io.h"

struct segment {
    struct segment_head head;
    int fd;
    uint64_t end;      /* entries end here */
    uint64_t file_len; /* room that the file has */
    uint64_t live;     /* bytes of entries that the index points to */
};

/* What tests may change; all zero is the real thing. */
struct journal_tuning {
    const struct idem_io *io; /* NULL: the system's */
    uint64_t segment_len;     /* 0: grows with the journal */
    uint64_t tag_mask;        /* 0: all bits; fewer make tags collide */
    bool no_thread;           /* prepare segments in tend and when needed */
};

/* An entry on its way to the log; its body stands in journal.batch. */
struct pending {
    struct idem_swap *swap; /* NULL: a mark, or moved by the cleaner */
    struct entry_head head;
    uint64_t at; /* in the batch, while it is built */
    uint64_t tag;
    struct slot moved; /* the cleaner: where it was; rev 0 otherwise */
};

struct journal {
    struct idem_store base;
    struct idem_store_options options;
    struct journal_tuning tuning;
    const struct idem_io *io;
    const struct idem_clocks *clocks;
    char *dir;
    int dir_fd, lock_fd;
    bool accept_damage, trust_clock;

    struct segment *segments; /* oldest first; the last one is written */
    size_t segment_count, segment_room;
    struct journal_index index;

    int64_t start_us, boot_at_start_us; /* the journal's time */
    int64_t persisted_us;               /* the latest time in the log */

    uint64_t next_batch;
    struct idem_buf batch;
    struct pending *pending;
    size_t pending_count, pending_room;
    struct idem_buf scratch;
};

/* ---- journal.c ---- */

enum idem_status idem__journal_open(const char *url,
                                    const struct idem_store_options *options,
                                    const struct journal_tuning *tuning,
                                    struct idem_store **store,
                                    struct idem_error *err);

/* The segment a slot points into. */
struct segment *idem__journal_segment(struct journal *self, uint32_t id);

/* Read and check the entry of a slot into `out` (slot_len bytes). */
enum idem_status idem__journal_read(struct journal *self,
                                    const struct slot *slot, uint8_t *out,
                                    struct entry_head *head,
                                    struct idem_error *err);

/* ---- clock.c ---- */

/* Continue from what the log remembers, or from the wall clock. */
void idem__journal_clock_start(struct journal *self);
int64_t idem__journal_now_us(const struct journal *self);

/* ---- folder.c ---- */

#define JOURNAL_NAME_LEN 24

enum idem_status idem__folder_open(struct journal *self,
                                   struct idem_error *err);
void idem__folder_close(struct journal *self);
/* Path of a file in the folder; cut short rather than overrun. */
struct journal_path {
    char text[4096];
};
struct journal_path idem__folder_path(const char *dir, const char *name);
struct journal_path idem__segment_path(const char *dir, uint64_t id,
                                       const char *ending);

/* Ids of the segments in a folder, ascending; owned by the caller. */
enum idem_status idem__folder_list(const char *dir, uint64_t **ids,
                                   size_t *count, struct idem_error *err);

/* ---- segment.c ---- */

/* Append a fresh segment with room for at least min_len bytes of entries; it
 * becomes the one that is written. The one before it ends where it says. */
enum idem_status idem__segment_add(struct journal *self, uint64_t min_len,
                                   struct idem_error *err);
/* Open a segment that is there and read its head. */
enum idem_status idem__segment_open(struct journal *self, uint64_t id,
                                    struct segment *segment,
                                    struct idem_error *err);
bool idem__segment_push(struct journal *self, const struct segment *segment);
void idem__segment_close(struct journal *self, struct segment *segment);

/* ---- batch.c ---- */

/* Add an entry to the batch; its body is what `record` or `body` says. False:
 * out of memory, nothing was added. */
bool idem__batch_add(struct journal *self, const struct pending *pending,
                     const struct idem_record *record, const uint8_t *body);
/* Write the batch and tell the swaps. The batch is empty afterwards. */
enum idem_status idem__batch_commit(struct journal *self,
                                    struct idem_error *err);
/* Let the index know of an entry that is in the log. */
void idem__journal_apply(struct journal *self, const struct pending *pending,
                         struct segment *segment, uint64_t at);

/* ---- recover.c ---- */

/* An entry read from the log, or from a saved index. */
struct replay {
    struct slot slot; /* rev 0 for a delete */
    uint64_t prev;
    const uint8_t *key; /* NULL: read it from the entry if it matters */
    uint8_t kind;
};

/* 0, or an errno. */
int idem__journal_replay(struct journal *self, struct segment *segment,
                         const struct replay *entry);

enum idem_status idem__journal_recover(struct journal *self,
                                       struct idem_error *err);

/* What an errno means for a caller. */
enum idem_status idem__journal_status(int error);

#endif
