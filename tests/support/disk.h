/*
 * disk.h - a disk for a journal: it knows which 512-byte sectors of each file
 * and which names in the folder are durable, and which are only written.
 *
 * The files lie in a real folder, as the running program sees them. A power cut
 * leaves another folder: each sector that was not synced is old or new, each
 * change of a name that was not synced happened or did not.
 *
 * A sync that fails writes some of the sectors; the others count as written
 * from then on and never reach the disk, as Linux does it, until they are
 * written again or read again from the disk (disk_forget).
 */
#ifndef IDEM_TEST_DISK_H
#define IDEM_TEST_DISK_H

#include "../../src/store/journal/io.h"

#include <stdbool.h>

enum disk_call {
    DISK_OPEN,
    DISK_READ,
    DISK_WRITE,
    DISK_SYNC,
    DISK_ALLOCATE,
    DISK_TRUNCATE,
    DISK_NAME, /* rename, unlink */
};

struct disk;

struct disk_hooks {
    /* Before a call does anything; 0, or the errno with which it fails. A sync
     * that fails with EIO has written some sectors. */
    int (*before)(struct disk *disk, enum disk_call call);
    /* Bytes are written, and not synced; returns how many of them. NULL: all.
     */
    size_t (*part)(struct disk *disk, size_t len);
    void (*written)(struct disk *disk); /* may be NULL */
    uint64_t (*random)(struct disk *disk);
    void *arg;
};

/* How a power cut treats what was not synced. */
enum disk_tear { DISK_NONE_WRITTEN, DISK_ALL_WRITTEN, DISK_TORN };

struct disk *disk_new(const struct disk_hooks *hooks);
void disk_clear(struct disk *disk);
void *disk_arg(const struct disk *disk);
size_t disk_files(const struct disk *disk); /* that ever were */

/* The journal's system calls on it. */
struct idem_io disk_io(struct disk *disk);

/* fdatasync and fsync of files, or fsync of the folder, do nothing. */
void disk_deaf(struct disk *disk, bool data, bool folder);

/* Put what a power cut would leave into this folder, which is emptied. */
void disk_image(struct disk *disk, const char *dir, enum disk_tear tear);
/* The same in the disk's own folder; no file is open any more. */
void disk_cut_power(struct disk *disk, const char *dir, enum disk_tear tear);
/* As when the process dies: its files are closed. */
void disk_close_all(struct disk *disk);

/* What the kernel has of this file in memory is read from the disk again. */
void disk_forget(struct disk *disk, int fd);

/* Turn a bit in a file whose name ends so; of a segment (".seg"), before the
 * last two writes, which may be torn. False: there is none. */
bool disk_rot(struct disk *disk, const char *dir, const char *ending);
/* Turn it back, unless it was written over or is gone. */
void disk_unrot(struct disk *disk, const char *dir);

#endif
