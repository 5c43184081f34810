/*
 * disk.c - see disk.h.
 */
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECTOR 512
#define NODES 4096
#define FDS 1024
#define CHANGES 4096

struct node {
    uint8_t *now, *durable; /* contents; both have `room` bytes */
    bool *lost;             /* sectors that a failed sync left behind */
    size_t now_len, durable_len, room;
    size_t last_write, write_before; /* where they began */
};

struct name {
    char text[40];
    struct node *node;
};

#define NAMES_MAX 512

struct names {
    struct name list[NAMES_MAX];
    size_t count;
};

struct change { /* of the folder, not yet durable */
    char from[40], to[40];
    struct node *node; /* made under the name `to`; NULL: renamed, unlinked */
};

struct disk {
    struct disk_hooks hooks;
    struct node *nodes[NODES];
    size_t node_count;
    struct node *by_fd[FDS];
    bool open_fd[FDS], folder_fd[FDS], direct_fd[FDS];
    struct names now, durable;
    struct change changes[CHANGES];
    size_t change_count;
    bool deaf_data, deaf_folder;
    struct { /* one bit is turned */
        struct node *node;
        size_t at;
        uint8_t bit;
    } rot;
};

static void
need(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "disk: %s\n", what);
        abort();
    }
}

/* ---- names --------------------------------------------------------------- */

static struct name *
find_name(struct names *names, const char *text)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->list[i].text, text) == 0)
            return &names->list[i];
    }
    return NULL;
}

static void
set_name(struct names *names, const char *text, struct node *node)
{
    struct name *name = find_name(names, text);

    if (!node) {
        if (name)
            *name = names->list[--names->count];
        return;
    }
    if (!name) {
        need(names->count < NAMES_MAX, "too many names");
        name = &names->list[names->count++];
        snprintf(name->text, sizeof(name->text), "%s", text);
    }
    name->node = node;
}

static void
apply_change(struct names *names, const struct change *change)
{
    struct name *from;

    if (change->node) {
        set_name(names, change->to, change->node);
        return;
    }
    from = find_name(names, change->from);
    if (!from)
        return;
    if (change->to[0])
        set_name(names, change->to, from->node);
    set_name(names, change->from, NULL);
}

static void
add_change(struct disk *disk, const char *from, const char *to,
           struct node *node)
{
    struct change *change = &disk->changes[disk->change_count];

    need(disk->change_count++ < CHANGES, "too many changes of names");
    memset(change, 0, sizeof(*change));
    snprintf(change->from, sizeof(change->from), "%s", from ? from : "");
    snprintf(change->to, sizeof(change->to), "%s", to ? to : "");
    change->node = node;
    apply_change(&disk->now, change);
}

static const char *
base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* ---- contents ------------------------------------------------------------ */

static void
set_len(struct node *node, size_t len)
{
    if (len > node->room) {
        size_t room = (len + 65535) & ~(size_t)65535;

        node->now = realloc(node->now, room);
        node->durable = realloc(node->durable, room);
        node->lost = realloc(node->lost, room / SECTOR);
        need(node->now && node->durable && node->lost, "out of memory");
        memset(node->now + node->room, 0, room - node->room);
        memset(node->durable + node->room, 0, room - node->room);
        memset(node->lost + node->room / SECTOR, 0,
               (room - node->room) / SECTOR);
        node->room = room;
    }
    if (len < node->now_len)
        memset(node->now + len, 0, node->now_len - len);
    node->now_len = len;
}

static void
overwritten(struct disk *disk, const struct node *node, size_t from, size_t to)
{
    if (disk->rot.node == node && disk->rot.at >= from && disk->rot.at < to)
        disk->rot.node = NULL;
}

static bool
is_zero(const void *data, size_t len)
{
    const uint8_t *bytes = data;

    return len > 0 && bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0;
}

static void
write_bytes(struct node *node, const void *data, size_t len, size_t at)
{
    if (at + len > node->now_len)
        set_len(node, at + len);
    memcpy(node->now + at, data, len);
    for (size_t i = at / SECTOR; i * SECTOR < at + len; i++)
        node->lost[i] = false;
    if (is_zero(data, len)) /* room for later writes */
        return;
    node->write_before = node->last_write;
    node->last_write = at;
}

/* A sync, or one that fails: some sectors reach the disk, the others never. */
static void
sync_bytes(struct disk *disk, struct node *node, bool fails)
{
    for (size_t at = 0; at < node->room; at += SECTOR) {
        bool *lost = &node->lost[at / SECTOR];

        if (*lost || memcmp(node->durable + at, node->now + at, SECTOR) == 0)
            continue;
        if (fails && disk->hooks.random(disk) % 2)
            *lost = true;
        else
            memcpy(node->durable + at, node->now + at, SECTOR);
    }
    if (!fails)
        node->durable_len = node->now_len;
}

/* ---- system calls -------------------------------------------------------- */

static bool
fails(struct disk *disk, enum disk_call call)
{
    int error = disk->hooks.before(disk, call);

    if (error)
        errno = error;
    return error != 0;
}

static struct node *
new_node(struct disk *disk)
{
    need(disk->node_count < NODES, "too many files");
    disk->nodes[disk->node_count] = calloc(1, sizeof(struct node));
    need(disk->nodes[disk->node_count], "out of memory");
    return disk->nodes[disk->node_count++];
}

static int
disk_open(void *arg, int at, const char *path, int flags, mode_t mode)
{
    struct disk *disk = arg;
    struct name *name;
    int fd;

    if (fails(disk, DISK_OPEN))
        return -1;
    fd = openat(at, path, flags & ~O_DIRECT, mode);
    if (fd < 0)
        return fd;
    need(fd < FDS, "too many open files");
    disk->open_fd[fd] = true;
    disk->folder_fd[fd] = flags & O_DIRECTORY;
    disk->direct_fd[fd] = flags & O_DIRECT;
    disk->by_fd[fd] = NULL;
    if (flags & O_DIRECTORY)
        return fd;
    name = find_name(&disk->now, base_name(path));
    if (!name) {
        add_change(disk, NULL, base_name(path), new_node(disk));
        name = find_name(&disk->now, base_name(path));
    }
    disk->by_fd[fd] = name->node;
    if (flags & O_TRUNC)
        set_len(name->node, 0);
    return fd;
}

static int
disk_close(void *arg, int fd)
{
    struct disk *disk = arg;

    disk->open_fd[fd] = false;
    return close(fd);
}

static ssize_t
disk_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    return fails(arg, DISK_READ) ? -1 : pread(fd, data, len, at);
}

/* With O_DIRECT whole sectors are written, from memory that is aligned to them,
 * and a short write ends between two sectors. */
static size_t
direct_part(const void *data, size_t len, off_t at, size_t part)
{
    need((uintptr_t)data % SECTOR == 0 && len % SECTOR == 0 && at % SECTOR == 0,
         "a direct write is not aligned");
    return part < SECTOR ? SECTOR : part / SECTOR * SECTOR;
}

static ssize_t
disk_pwrite(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct disk *disk = arg;
    size_t part = len;

    if (fails(disk, DISK_WRITE))
        return -1;
    if (disk->hooks.part)
        part = disk->hooks.part(disk, len);
    len = disk->direct_fd[fd] ? direct_part(data, len, at, part) : part;
    write_bytes(disk->by_fd[fd], data, len, (size_t)at);
    overwritten(disk, disk->by_fd[fd], (size_t)at, (size_t)at + len);
    if (disk->hooks.written)
        disk->hooks.written(disk);
    return pwrite(fd, data, len, at);
}

static int
disk_sync(void *arg, int fd)
{
    struct disk *disk = arg;
    bool failed = fails(disk, DISK_SYNC);

    if (disk->folder_fd[fd]) {
        if (failed || disk->deaf_folder)
            return failed ? -1 : 0;
        for (size_t i = 0; i < disk->change_count; i++)
            apply_change(&disk->durable, &disk->changes[i]);
        disk->change_count = 0;
        return 0;
    }
    if (!disk->deaf_data && (!failed || errno == EIO)) {
        sync_bytes(disk, disk->by_fd[fd], failed);
        errno = EIO;
    }
    return failed ? -1 : 0;
}

static int
disk_allocate(void *arg, int fd, off_t len)
{
    struct disk *disk = arg;
    struct node *node = disk->by_fd[fd];

    if (fails(disk, DISK_ALLOCATE))
        return -1;
    if ((size_t)len > node->now_len)
        set_len(node, (size_t)len);
    return ftruncate(fd, (off_t)node->now_len);
}

static int
disk_truncate(void *arg, int fd, off_t len)
{
    struct disk *disk = arg;

    if (fails(disk, DISK_TRUNCATE))
        return -1;
    set_len(disk->by_fd[fd], (size_t)len);
    overwritten(disk, disk->by_fd[fd], (size_t)len, SIZE_MAX);
    return ftruncate(fd, len);
}

static int
disk_rename(void *arg, int at, const char *from, const char *to)
{
    struct disk *disk = arg;

    if (fails(disk, DISK_NAME))
        return -1;
    if (find_name(&disk->now, base_name(from)))
        add_change(disk, base_name(from), base_name(to), NULL);
    return renameat(at, from, at, to);
}

static int
disk_unlink(void *arg, int at, const char *path)
{
    struct disk *disk = arg;

    if (fails(disk, DISK_NAME))
        return -1;
    if (find_name(&disk->now, base_name(path)))
        add_change(disk, base_name(path), NULL, NULL);
    return unlinkat(at, path, 0);
}

struct idem_io
disk_io(struct disk *disk)
{
    return (struct idem_io){
        .open = disk_open,
        .close = disk_close,
        .pread = disk_pread,
        .pwrite = disk_pwrite,
        .fdatasync = disk_sync,
        .fsync = disk_sync,
        .fallocate = disk_allocate,
        .ftruncate = disk_truncate,
        .rename = disk_rename,
        .unlink = disk_unlink,
        .arg = disk,
    };
}

/* ---- a power cut --------------------------------------------------------- */

static bool
lucky(struct disk *disk, enum disk_tear tear)
{
    return tear == DISK_ALL_WRITTEN ||
           (tear == DISK_TORN && disk->hooks.random(disk) % 2);
}

static void
put_file(const char *dir, const char *name, const uint8_t *bytes, size_t len)
{
    char path[512];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    need(fd >= 0 && write(fd, bytes, len) == (ssize_t)len, path);
    close(fd);
}

/* What the disk has of a file after a power cut: `len` bytes, owned by the
 * caller. */
static uint8_t *
left_of(struct disk *disk, const struct node *node, enum disk_tear tear,
        size_t *len)
{
    uint8_t *bytes;

    *len = lucky(disk, tear) ? node->now_len : node->durable_len;
    bytes = calloc(1, *len + SECTOR);
    need(bytes, "out of memory");
    for (size_t at = 0; at < *len; at += SECTOR) {
        size_t part = *len - at < SECTOR ? *len - at : SECTOR;
        const uint8_t *from = node->durable;

        if (memcmp(node->now + at, node->durable + at, part) != 0 &&
            !node->lost[at / SECTOR] && lucky(disk, tear))
            from = node->now;
        memcpy(bytes + at, from + at, part);
    }
    return bytes;
}

/* Names: as synced, and then each later change happened or did not. */
static struct names
names_left(struct disk *disk, enum disk_tear tear)
{
    struct names names = disk->durable;
    size_t upto = disk->hooks.random(disk) % (disk->change_count + 1);
    bool in_order = disk->hooks.random(disk) % 2;

    for (size_t i = 0; i < disk->change_count; i++) {
        if (in_order && tear == DISK_TORN ? i < upto : lucky(disk, tear))
            apply_change(&names, &disk->changes[i]);
    }
    return names;
}

static void
empty_folder(const char *dir)
{
    DIR *folder = opendir(dir);
    struct dirent *file;

    while (folder && (file = readdir(folder)))
        (void)unlinkat(dirfd(folder), file->d_name, 0);
    if (folder)
        closedir(folder);
}

void
disk_image(struct disk *disk, const char *dir, enum disk_tear tear)
{
    struct names names = names_left(disk, tear);

    empty_folder(dir);
    for (size_t i = 0; i < names.count; i++) {
        size_t len;
        uint8_t *bytes = left_of(disk, names.list[i].node, tear, &len);

        put_file(dir, names.list[i].text, bytes, len);
        free(bytes);
    }
}

void
disk_close_all(struct disk *disk)
{
    for (int fd = 0; fd < FDS; fd++) {
        if (disk->open_fd[fd])
            close(fd);
        disk->open_fd[fd] = false;
    }
}

void
disk_cut_power(struct disk *disk, const char *dir, enum disk_tear tear)
{
    struct names names = names_left(disk, tear);

    disk_close_all(disk);
    empty_folder(dir);
    for (size_t i = 0; i < names.count; i++) {
        struct node *node = names.list[i].node;
        size_t len;
        uint8_t *bytes = left_of(disk, node, tear, &len);

        put_file(dir, names.list[i].text, bytes, len);
        memset(node->now, 0, node->room);
        memset(node->durable, 0, node->room);
        memset(node->lost, 0, node->room / SECTOR);
        if (len > 0) {
            memcpy(node->now, bytes, len);
            memcpy(node->durable, bytes, len);
        }
        node->now_len = node->durable_len = len;
        overwritten(disk, node, len, SIZE_MAX);
        free(bytes);
    }
    disk->now = disk->durable = names;
    disk->change_count = 0;
}

void
disk_forget(struct disk *disk, int fd)
{
    struct node *node = disk->by_fd[fd];

    for (size_t at = 0; at < node->now_len; at += SECTOR) {
        size_t part = node->now_len - at < SECTOR ? node->now_len - at : SECTOR;

        if (!node->lost[at / SECTOR])
            continue;
        node->lost[at / SECTOR] = false;
        memcpy(node->now + at, node->durable + at, part);
        need(pwrite(fd, node->now + at, part, (off_t)at) == (ssize_t)part,
             "pwrite");
    }
}

/* ---- bit rot ------------------------------------------------------------- */

static void
turn_bit(struct disk *disk, const char *dir)
{
    struct node *node = disk->rot.node;
    char path[512];
    int fd;

    node->now[disk->rot.at] ^= disk->rot.bit;
    node->durable[disk->rot.at] ^= disk->rot.bit;
    for (size_t i = 0; i < disk->now.count; i++) {
        if (disk->now.list[i].node != node)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, disk->now.list[i].text);
        fd = open(path, O_WRONLY);
        need(fd >= 0 && pwrite(fd, node->now + disk->rot.at, 1,
                               (off_t)disk->rot.at) == 1,
             path);
        close(fd);
    }
}

/* Of a log, what lies before the last two writes; of other files, all. */
static size_t
may_rot(const struct name *name, const char *ending)
{
    const struct node *node = name->node;
    size_t len = strlen(name->text), end = strlen(ending);
    size_t upto = strcmp(ending, ".seg") == 0 ? node->write_before : SIZE_MAX;

    if (len < end || strcmp(name->text + len - end, ending) != 0)
        return 0;
    return upto < node->durable_len ? upto : node->durable_len;
}

bool
disk_rot(struct disk *disk, const char *dir, const char *ending)
{
    const struct name *chosen = NULL;
    uint64_t seen = 0;

    if (disk->rot.node)
        return false;
    for (size_t i = 0; i < disk->now.count; i++) {
        if (may_rot(&disk->now.list[i], ending) > 0 &&
            disk->hooks.random(disk) % ++seen == 0)
            chosen = &disk->now.list[i];
    }
    if (!chosen)
        return false;
    disk->rot.node = chosen->node;
    disk->rot.at = disk->hooks.random(disk) % may_rot(chosen, ending);
    disk->rot.bit = (uint8_t)(1u << disk->hooks.random(disk) % 8);
    turn_bit(disk, dir);
    return true;
}

void
disk_unrot(struct disk *disk, const char *dir)
{
    if (disk->rot.node)
        turn_bit(disk, dir);
    disk->rot.node = NULL;
}

/* ---- the disk ------------------------------------------------------------ */

struct disk *
disk_new(const struct disk_hooks *hooks)
{
    struct disk *disk = calloc(1, sizeof(*disk));

    need(disk, "out of memory");
    disk->hooks = *hooks;
    return disk;
}

void
disk_clear(struct disk *disk)
{
    for (size_t i = 0; i < disk->node_count; i++) {
        free(disk->nodes[i]->now);
        free(disk->nodes[i]->durable);
        free(disk->nodes[i]->lost);
        free(disk->nodes[i]);
    }
    free(disk);
}

void *
disk_arg(const struct disk *disk)
{
    return disk->hooks.arg;
}

size_t
disk_files(const struct disk *disk)
{
    return disk->node_count;
}

void
disk_deaf(struct disk *disk, bool data, bool folder)
{
    disk->deaf_data = data;
    disk->deaf_folder = folder;
}
