/*
 * journal.h - the structs and functions that the files of the journal share.
 *
 *   swap --> decide (index) --> journal_batch.c: entries --> one write, one
 *   fdatasync --> index has the places of the new records --> stored
 *
 * The log is a sequence of segments, numbered without gaps. Only the newest is
 * written, and only the oldest is ever removed, after its live entries were
 * written again at the end. So the state is always found by reading all
 * segments in order; the later entry of a key wins. No older entry of a key can
 * outlive a newer one, even after a crash.
 *
 *   folder.c         the lock, the names of the files, listing them
 *   segment.c        creating and removing segments; room for a full disk
 *   helper.c         a thread that prepares the next segment
 *   journal_batch.c  collects entries and commits them
 *   tail.c           writes a batch; keeps the end of the log in memory
 *   saved.c          saved index files
 *   recover.c        opens the files of a journal; makes missing saved indexes
 *   load.c           fills the index from saved indexes, also while serving
 *   trouble.c        after a failed write: stop, re-read, use a new segment
 *   clean.c          removes expired records, and segments that are mostly dead
 *   clock.c          the journal's time
 *   journal_scan.c   lists records
 *   journal.c        the store's functions
 *   journal_check.c  checks a journal without changing it
 *   journal_copy.c   copies a journal
 */
#ifndef IDEM__JOURNAL_H
#define IDEM__JOURNAL_H

#include "../store.h"
#include "format.h"
#include "index.h"
#include "io.h"
#include "walk.h"

/* One row of a saved index: an entry, and the entry that it replaced. */
struct row {
    uint64_t tag;   /* all 64 bits, independent of the mask */
    uint32_t place; /* offset of the entry, divided by 8 */
    uint32_t size;  /* of the entry, divided by 8, and flags; 0: replaced */
    uint32_t drop_s;
    uint32_t old_back;  /* the replaced entry is so many segments before this
                         * one; ROW_NEW: there was none */
    uint32_t old_place; /* its place there */
};

#define ROW_EXECUTING (UINT32_C(1) << 31)
#define ROW_DELETE (UINT32_C(1) << 30)
#define ROW_FLAGS (ROW_EXECUTING | ROW_DELETE)
#define ROW_NEW UINT32_MAX

/* Collects the rows of the segment that is being written. The last ones are
 * kept in memory for a while: a row that a later one of the same segment
 * replaces meanwhile is left out. */
struct row_log {
    uint64_t id; /* of the segment */
    struct row *rows; /* in the order of their places */
    size_t count, room;
    uint64_t written; /* rows in the file */
    int fd;           /* of the file, if it is open */
    bool open;
    bool broken; /* nothing is saved for this segment */
};

struct segment {
    struct segment_head head;
    int fd;
    uint64_t base; /* what the index adds to places of this segment, so that a
                    * position stands for a segment and a place in it */
    uint64_t span; /* places that it may have */
    uint64_t end;  /* end of the entries */
    uint64_t file_len;  /* allocated length of the file */
    uint64_t live;      /* bytes of entries that the index points to */
    uint64_t saved_len; /* length of its saved index */
    uint8_t *cold; /* a bit for each stretch that the page cache lacks, because
                    * it was written past it; see tail.c. NULL: none */
};

/* Settings for tests; all zero in production. */
struct journal_tuning {
    const struct idem_io *io; /* NULL: the system's */
    uint64_t segment_len;     /* 0: grows with the journal */
    uint64_t tail_len;        /* 0: 2 MiB; a multiple of 8192 */
    uint64_t tag_mask;        /* 0: all bits; fewer make tags collide */
    uint64_t first_base;      /* of the first segment; see struct segment */
    bool no_thread;           /* prepare segments in tend and when needed */
    bool lazy; /* load the index while serving, however small it is, and
                * slowly */
    bool hold; /* and only the slices that a call needs */
};

/* An entry to be written; its body is in journal.batch. */
struct pending {
    struct idem_swap *swap; /* NULL: a mark, or moved by the cleaner */
    struct entry_head head;
    uint64_t at;  /* position in the batch, while it is built */
    uint64_t old; /* position in the log of what it replaces; 0: nothing */
    uint64_t tag;
    bool moved; /* by the cleaner: the same record of an older segment */
    bool claim; /* a full disk refuses it; see is_claim */
    bool idle;  /* moved, and no room is reserved for its finish */
};

/* The thread that prepares segments and saves indexes; see helper.c. */
struct helper;
struct saved_job;

/* Saved indexes that are not completely loaded; see load.c. */
struct loader;

/* The rev of an entry that was read or written not long ago. */
struct rev_note {
    uint64_t at, rev;
};
#define REV_NOTES 32768

/* The last bytes of the log, in memory; see tail.c. */
struct tail {
    uint8_t *bytes;  /* of the last segment, from `from` to its end, aligned to
                      * blocks; NULL: it is written and read through the page
                      * cache */
    uint8_t *memory; /* where they lie */
    int fd;          /* writes past the page cache */
    uint64_t from, room;
};

/* Writes past the page cache are whole blocks, from memory that is aligned to
 * blocks. */
#define JOURNAL_BLOCK UINT64_C(4096)

/* A file that can become the next segment. */
struct fresh {
    int fd;
    uint64_t len;
    const char *name;
};

struct journal {
    struct idem_store base;
    struct journal_tuning tuning;
    const struct idem_io *io;
    char *dir;
    int dir_fd, lock_fd;
    bool accept_damage, trust_clock;
    bool copying; /* journal_copy.c: an incomplete copy may be opened */

    struct segment *segments; /* oldest first; the last one is written */
    size_t segment_count, segment_room;
    uint64_t first_id; /* for the next segment, if there is none; 0: 1 */
    struct journal_index index;
    struct loader *loader; /* NULL: the index is complete */
    struct rev_note rev_notes[REV_NOTES];

    int64_t start_us, boot_at_start_us; /* the journal's time */
    int64_t persisted_us;               /* the latest time in the log */
    int64_t drop_s; /* records with an earlier drop time may go; see store.h */

    struct helper *helper;
    struct row_log row_log; /* of the last segment */
    struct tail tail;
    bool buffered; /* this file system cannot write past its cache */
    struct segment_walk cleaner; /* through the oldest segment */
    bool cleaning, clean_stuck;
    uint32_t sweep_shard;
    uint64_t seg_len;            /* of the last segment created; see next_len */
    int64_t last_add_us;         /* when that was created */
    uint64_t reserve_len;        /* 0: there is no reserve */
    bool full;                   /* no room for a next segment */
    bool poisoned;               /* a write failed: see trouble.c */
    bool opened;                 /* recovery is done */
    bool marked;                 /* the last batch was a mark */
    int64_t last_batch_us;       /* when it was written */
    uint64_t last_len;           /* bytes of the last batch */
    uint64_t moved_bytes, heals; /* figures */

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

/* The segment that a slot points to, and the offset in its file. */
struct segment *idem__journal_segment(const struct journal *self,
                                      const struct slot *slot);
uint64_t idem__journal_offset(const struct journal *self,
                              const struct slot *slot);

/* Remember the rev of the entry at a position, and recall it; 0: unknown. */
void idem__journal_note_rev(struct journal *self, uint64_t at, uint64_t rev);
uint64_t idem__journal_rev(const struct journal *self, uint64_t at);

/* An entry is in the log: change the index, the segments' live bytes and the
 * row log. `old`: what it replaces, or NULL; then the index has promised to
 * take it, unless it is a delete. The row's old place is set. */
void idem__journal_put(struct journal *self, struct segment *segment,
                       struct row *row, const struct spot *old, bool idle);

/* Read and check the entry of a slot into `out` (slot_room bytes). */
enum idem_status idem__journal_read(struct journal *self,
                                    const struct slot *slot, uint8_t *out,
                                    struct entry_head *head,
                                    struct idem_error *err);

/* ---- journal_scan.c ---- */

idem_scan_fn idem__journal_scan;

/* ---- clock.c ---- */

/* Continue from the time in the log, or from the wall clock. */
void idem__journal_clock_start(struct journal *self);
int64_t idem__journal_now_us(const struct journal *self);

/* ---- folder.c ---- */

/* This file is in the folder while a copy is not finished. */
#define JOURNAL_INCOMPLETE "incomplete"
enum idem_status idem__folder_complete(struct journal *self,
                                       struct idem_error *err);

/*
 * Open the folder and lock it; it is created if only its last part is missing.
 * It must belong to this user and be writable only for this user, so that no
 * other user can add or remove files.
 */
enum idem_status idem__folder_open(struct journal *self,
                                   struct idem_error *err);
/* Open the folder for reading, without a lock. Any user may write there. */
enum idem_status idem__folder_look(struct journal *self,
                                   struct idem_error *err);
void idem__folder_close(struct journal *self);

/* The file name of a segment ("seg") or of its saved index ("idx"). */
struct journal_name {
    char text[24];
};
struct journal_name idem__segment_name(uint64_t id, const char *ending);

/* Ids of the segments in the folder, ascending; owned by the caller. */
enum idem_status idem__folder_list(const struct journal *self, uint64_t **ids,
                                   size_t *count, struct idem_error *err);
/* The length of a regular file in the folder; 0 if there is none. */
uint64_t idem__folder_file_len(const struct journal *self, const char *name);

/* Delete saved indexes that have no segment. */
void idem__folder_tidy(struct journal *self, uint64_t first, uint64_t last);

/* ---- segment.c ---- */

/* Append a new segment with room for at least min_len bytes of entries; it
 * becomes the one that is written. Its head records where the one before it
 * ends. */
enum idem_status idem__segment_add(struct journal *self, uint64_t min_len,
                                   bool use_reserve, struct idem_error *err);
/* Open an existing segment and read its head. */
enum idem_status idem__segment_open(const struct journal *self, uint64_t id,
                                    int flags, struct segment *segment,
                                    struct idem_error *err);
/* Append it to the list; NULL: only make room for one more. */
bool idem__segment_push(struct journal *self, const struct segment *segment);
void idem__segment_close(struct journal *self, struct segment *segment);
/* Remove the oldest segment. False: that failed, and it stays. */
bool idem__segment_drop_oldest(struct journal *self);
/* Make sure that the next segment and the reserve are prepared. If there is no
 * space for them the journal is full, until there is space again. */
void idem__segment_prepare(struct journal *self);
/* The length of a new segment after a while without a start: a sixteenth of the
 * live bytes, so that each segment is a small part of the log, but at most 64
 * MiB or what makes about 128 segments. The newest segment of a killed process
 * is read completely at the next start. */
uint64_t idem__segment_usual_len(const struct journal *self);
/* Find the reserve that an earlier run left. */
void idem__segment_reserve(struct journal *self);
/* The bytes of segments and saved indexes, and the bytes of live entries. */
void idem__segment_totals(const struct journal *self, uint64_t *used,
                          uint64_t *live);

/* ---- helper.c ---- */

bool idem__helper_start(struct journal *self);
void idem__helper_stop(struct journal *self); /* waits for its current work */
/* Ask for a file of this length for the next segment, unless there is one. */
void idem__helper_ask(struct journal *self, uint64_t len);
/* The errno of the last attempt; 0: it worked, or there was none. */
int idem__helper_error(struct journal *self);
/* Take the file, if there is one of that length, ready or nearly ready. */
bool idem__helper_take(struct journal *self, uint64_t min_len,
                       struct fresh *fresh);
/* Is there a file, or is one being prepared? Is one ready? */
bool idem__helper_has(struct journal *self);
bool idem__helper_ready(struct journal *self);
/* Write a saved index, soon, and free the job. */
void idem__helper_save(struct journal *self, struct saved_job *job);

/* ---- saved.c ---- */

/* Start with a segment, add rows, save them. If one of these steps fails, no
 * index is saved. */
void idem__saved_start(struct journal *self, const struct segment *segment);
void idem__saved_add(struct journal *self, const struct row *row);
void idem__saved_finish(struct journal *self, struct segment *segment);
void idem__saved_clear(struct journal *self);
struct saved_head {
    uint64_t id, salt, end, next_batch, rows;
    uint64_t sum; /* of the table */
    int64_t time_us;
    uint32_t bits; /* 2^bits slices */
};

/* A file with all rows of a segment, in the order of the entries. */
struct saved_job {
    struct saved_job *next;
    struct saved_head head;
    int fd;
};
/* Make a saved index of it, and free it. */
void idem__saved_do(const struct idem_io *io, int dir_fd,
                    struct saved_job *job);

#define SAVED_VERSION 3
#define SAVED_HEAD_LEN 88
#define SAVED_SLICE_LEN 16 /* in the table */
#define SAVED_ROW_LEN 28
#define SAVED_MAX_BITS 14

static inline uint64_t
saved_rows_at(const struct saved_head *head)
{
    return SAVED_HEAD_LEN + ((uint64_t)SAVED_SLICE_LEN << head->bits);
}

/* The slice of a tag: its first bits. */
static inline uint64_t
tag_slice(uint64_t tag, uint32_t bits)
{
    return bits ? tag >> (64 - bits) : 0;
}

/*
 * Make a saved index in memory from rows in their order, each SAVED_ROW_LEN
 * bytes. They are at `rows`, or in a file from SAVED_HEAD_LEN on. The plan sets
 * the head's bits and returns the length that `out` must have. Then the head's
 * sum is set. Returns 0 or an errno.
 */
size_t idem__saved_plan(struct saved_head *head);
int idem__saved_make(const struct idem_io *io, struct saved_head *head,
                     const uint8_t *rows, int fd, uint8_t *out);
/* Write that to a file. Returns 0 or an errno. */
int idem__saved_write(const struct idem_io *io, int fd,
                      const struct saved_head *head, const uint8_t *bytes);
void idem__saved_put_row(const struct row *row, uint8_t *out);

/* Check the bytes of a head, or of a head and its table. False: they are
 * invalid, or not of this segment, or not of a file of this length. */
bool idem__saved_head(const uint8_t *bytes, uint64_t file_len,
                      const struct segment *segment, struct saved_head *head);
bool idem__saved_table(const uint8_t *bytes, const struct saved_head *head);
/* The first row of a slice; of the slice after the last: the number of rows. */
uint64_t idem__saved_first(const uint8_t *bytes, const struct saved_head *head,
                           uint64_t slice);
/* Check the rows of a slice. */
bool idem__saved_slice(const uint8_t *bytes, const struct saved_head *head,
                       uint64_t slice, const uint8_t *rows);
/* Read a row. False: it is invalid. */
bool idem__saved_row(const uint8_t *bytes, const struct saved_head *head,
                     struct row *row);
/* Check a whole file. */
bool idem__saved_check(const uint8_t *bytes, size_t len,
                       const struct segment *segment, struct saved_head *head);

/* ---- journal_batch.c ---- */

/* Add an entry to the batch, with `record` or `body` as its body. False: out of
 * memory, nothing was added. */
bool idem__batch_add(struct journal *self, const struct pending *pending,
                     const struct idem_record *record, const uint8_t *body);
/* Write the batch and set the outcomes of its swaps. Afterwards it is empty. */
enum idem_status idem__batch_commit(struct journal *self,
                                    struct idem_error *err);
/* Write a batch that contains only a mark with the time. */
void idem__batch_mark(struct journal *self);

/* ---- tail.c ---- */

/* Begin with an empty segment, the last one. */
void idem__tail_start(struct journal *self, struct segment *segment);
void idem__tail_drop(struct journal *self);
/* Write behind the end of the last segment; not durable before a sync. Returns
 * 0 or an errno. */
int idem__tail_write(struct journal *self, struct segment *segment,
                     const uint8_t *data, size_t len);
/* Read entries of a segment, before its end; like idem__io_read. */
int idem__tail_read(struct journal *self, struct segment *segment, uint8_t *out,
                    size_t len, uint64_t at, size_t *got);

/* ---- trouble.c ---- */

/* A write failed, and it is unknown what reached the disk. */
void idem__journal_poison(struct journal *self, const char *what, int error);
/* Check that the journal works, or make it work again. On error nothing may be
 * read or written. */
enum idem_status idem__journal_heal(struct journal *self,
                                    struct idem_error *err);

/* ---- clean.c ---- */

/* If cleaning is due, add live entries of the oldest segment to the batch, up
 * to `budget` bytes. */
void idem__clean_into_batch(struct journal *self, uint64_t budget);
/* After a commit: remove the oldest segment if it has no live entries. */
void idem__clean_after_commit(struct journal *self);
/* The batch with moved records was not written: start again. */
void idem__clean_restart(struct journal *self);
/* Remove expired records from one part of the index. */
void idem__clean_sweep(struct journal *self);

/* ---- recover.c ---- */

struct row idem__entry_row(const struct entry_head *head, uint64_t at);

/* Read the entries of a segment up to `end` (0: it is the newest, and ends with
 * its last valid entry), and make its saved index in memory, owned by the
 * caller. Sets segment->end. */
enum idem_status idem__recover_rows(struct journal *self,
                                    struct segment *segment, uint64_t end,
                                    struct saved_head *head, uint8_t **bytes,
                                    struct idem_error *err);

/* Report that reading failed with this errno. */
enum idem_status idem__recover_error(const struct journal *self, int error,
                                     struct idem_error *err);

enum idem_status idem__journal_recover(struct journal *self,
                                       struct idem_error *err);

/* ---- load.c ---- */

/* Start to load the index. Add the saved indexes of all segments in their
 * order: from the file, if it is valid and has this end; or from bytes that
 * were made in memory, which this function takes. */
bool idem__load_start(struct journal *self);
int idem__load_file(struct journal *self, struct segment *segment, uint64_t end,
                    bool *used);
int idem__load_bytes(struct journal *self, struct segment *segment,
                     const struct saved_head *head, uint8_t *bytes);
/* All were added: load them now if there are few rows. Otherwise the calls
 * below load them. */
enum idem_status idem__load_begin(struct journal *self, struct idem_error *err);
/* Make sure that the index is complete for the keys with this full tag, or for
 * a shard. On error nothing is known about them. */
enum idem_status idem__load_tag(struct journal *self, uint64_t tag,
                                struct idem_error *err);
enum idem_status idem__load_shard(struct journal *self, uint32_t shard,
                                  struct idem_error *err);
/* Load more, about this many rows. */
void idem__load_some(struct journal *self, uint64_t rows);
/* How many slices are not loaded yet. */
uint64_t idem__load_left(const struct journal *self);
void idem__load_stop(struct journal *self);

/* The status that an errno means for a caller. */
enum idem_status idem__journal_status(int error);

#endif
