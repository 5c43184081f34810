/*
 * tape.c - see tape.h.
 */
#include "tape.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECTOR 512
#define NODES 256
#define NAMES_MAX 16
#define FDS 1024

struct call {
    enum tape_kind kind;
    size_t node; /* of a file */
    size_t at, len;
    uint8_t *data;
    char name[40];
};

struct contents {
    uint8_t *bytes; /* of `room` bytes; 0 from `len` on */
    size_t len, room;
};

struct tape_name {
    char text[40];
    size_t node;
};

struct tape_names {
    struct tape_name list[NAMES_MAX];
    size_t count;
};

struct tape {
    struct call *calls;
    size_t len, room, counts[TAPE_KINDS];
    size_t nodes;
    struct tape_names now; /* while it is recorded */
    size_t by_fd[FDS];
    bool folder_fd[FDS];
    bool deaf_data, deaf_folder;
    /* Played so far. */
    size_t position;
    struct contents durable[NODES];
    struct tape_names names;
    size_t *pending; /* calls that are not durable */
    size_t pending_count;
};

static void
need(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "tape: %s\n", what);
        abort();
    }
}

/* ---- names and contents ------------------------------------------------ */

static struct tape_name *
find_name(struct tape_names *names, const char *text)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->list[i].text, text) == 0)
            return &names->list[i];
    }
    return NULL;
}

static void
change_names(struct tape_names *names, const struct call *call)
{
    struct tape_name *name = find_name(names, call->name);

    if (call->kind == TAPE_DELETE) {
        if (name)
            *name = names->list[--names->count];
        return;
    }
    if (!name) {
        need(names->count < NAMES_MAX, "too many names");
        name = &names->list[names->count++];
        memcpy(name->text, call->name, sizeof(name->text));
    }
    name->node = call->node;
}

static void
set_len(struct contents *contents, size_t len)
{
    if (len > contents->room) {
        size_t room = (len + 65535) & ~(size_t)65535;

        contents->bytes = realloc(contents->bytes, room);
        need(contents->bytes, "out of memory");
        memset(contents->bytes + contents->room, 0, room - contents->room);
        contents->room = room;
    }
    if (len < contents->len)
        memset(contents->bytes + len, 0, contents->len - len);
    contents->len = len;
}

static void
change_contents(struct contents *contents, const struct call *call)
{
    if (call->kind == TAPE_TRUNCATE) {
        set_len(contents, call->len);
        return;
    }
    if (call->at + call->len > contents->len)
        set_len(contents, call->at + call->len);
    memcpy(contents->bytes + call->at, call->data, call->len);
}

static bool
is_of_names(const struct call *call)
{
    return call->kind == TAPE_MAKE || call->kind == TAPE_DELETE;
}

/* ---- recording --------------------------------------------------------- */

static struct call *
add_call(struct tape *tape, enum tape_kind kind)
{
    struct call *call;

    if (tape->len == tape->room) {
        tape->room = tape->room ? 2 * tape->room : 1024;
        tape->calls = realloc(tape->calls, tape->room * sizeof(*tape->calls));
        need(tape->calls, "out of memory");
    }
    call = &tape->calls[tape->len++];
    memset(call, 0, sizeof(*call));
    call->kind = kind;
    tape->counts[kind]++;
    return call;
}

static void
add_name_call(struct tape *tape, enum tape_kind kind, const char *path,
              size_t node)
{
    const char *slash = strrchr(path, '/');
    struct call *call = add_call(tape, kind);

    snprintf(call->name, sizeof(call->name), "%s", slash ? slash + 1 : path);
    call->node = node;
    change_names(&tape->now, call);
}

static int
tape_open(void *arg, int at, const char *path, int flags, mode_t mode)
{
    struct tape *tape = arg;
    const char *slash = strrchr(path, '/');
    struct tape_name *name;
    int fd = openat(at, path, flags, mode);

    if (fd < 0)
        return fd;
    need(fd < FDS && !(flags & O_TRUNC), "open");
    tape->folder_fd[fd] = flags & O_DIRECTORY;
    if (flags & O_DIRECTORY)
        return fd;
    name = find_name(&tape->now, slash ? slash + 1 : path);
    if (!name) {
        need(tape->nodes < NODES, "too many files");
        add_name_call(tape, TAPE_MAKE, path, tape->nodes++);
        name = find_name(&tape->now, slash ? slash + 1 : path);
    }
    tape->by_fd[fd] = name->node;
    return fd;
}

static int
tape_close(void *arg, int fd)
{
    (void)arg;
    return close(fd);
}

static ssize_t
tape_pwrite(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct tape *tape = arg;
    struct call *call = add_call(tape, TAPE_WRITE);

    call->node = tape->by_fd[fd];
    call->at = (size_t)at;
    call->len = len;
    call->data = malloc(len + 1);
    need(call->data, "out of memory");
    memcpy(call->data, data, len);
    need(pwrite(fd, data, len, at) == (ssize_t)len, "pwrite");
    return (ssize_t)len;
}

static int
tape_sync(void *arg, int fd)
{
    struct tape *tape = arg;

    if (tape->folder_fd[fd])
        add_call(tape, TAPE_SYNC_NAMES);
    else
        add_call(tape, TAPE_SYNC)->node = tape->by_fd[fd];
    return 0;
}

static int
tape_truncate(void *arg, int fd, off_t len)
{
    struct tape *tape = arg;
    struct call *call = add_call(tape, TAPE_TRUNCATE);

    call->node = tape->by_fd[fd];
    call->len = (size_t)len;
    return ftruncate(fd, len);
}

static int
tape_unlink(void *arg, int at, const char *path)
{
    int code = unlinkat(at, path, 0);

    if (code == 0)
        add_name_call(arg, TAPE_DELETE, path, 0);
    return code;
}

struct idem_io
tape_io(struct tape *tape)
{
    return (struct idem_io){
        .open = tape_open,
        .close = tape_close,
        .pwrite = tape_pwrite,
        .fdatasync = tape_sync,
        .fsync = tape_sync,
        .ftruncate = tape_truncate,
        .unlink = tape_unlink,
        .arg = tape,
    };
}

/* ---- playing ----------------------------------------------------------- */

/* A sync: the pending calls of this file, or those of names, are durable. */
static void
make_durable(struct tape *tape, const struct call *sync)
{
    bool names = sync->kind == TAPE_SYNC_NAMES;
    size_t kept = 0;

    if (names ? tape->deaf_folder : tape->deaf_data)
        return;
    for (size_t i = 0; i < tape->pending_count; i++) {
        const struct call *call = &tape->calls[tape->pending[i]];

        if (names && is_of_names(call))
            change_names(&tape->names, call);
        else if (!names && !is_of_names(call) && call->node == sync->node)
            change_contents(&tape->durable[call->node], call);
        else
            tape->pending[kept++] = tape->pending[i];
    }
    tape->pending_count = kept;
}

void
tape_play(struct tape *tape, size_t position)
{
    if (!tape->pending) {
        tape->pending = calloc(tape->len + 1, sizeof(*tape->pending));
        need(tape->pending, "out of memory");
    }
    for (; tape->position < position; tape->position++) {
        const struct call *call = &tape->calls[tape->position];

        if (call->kind == TAPE_SYNC || call->kind == TAPE_SYNC_NAMES)
            make_durable(tape, call);
        else
            tape->pending[tape->pending_count++] = tape->position;
    }
}

enum tape_kind
tape_next(const struct tape *tape)
{
    return tape->position < tape->len ? tape->calls[tape->position].kind
                                      : TAPE_KINDS;
}

size_t
tape_pending(const struct tape *tape)
{
    return tape->pending_count;
}

/* ---- images ------------------------------------------------------------ */

static void
copy_contents(struct contents *to, const struct contents *from)
{
    memset(to, 0, sizeof(*to));
    set_len(to, from->len);
    if (from->len > 0)
        memcpy(to->bytes, from->bytes, from->len);
}

static void
put_file(const char *dir, const char *name, const struct contents *contents)
{
    char path[512];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    need(fd >= 0, path);
    need(contents->len == 0 || write(fd, contents->bytes, contents->len) ==
                                   (ssize_t)contents->len,
         path);
    close(fd);
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
tape_image(const struct tape *tape, const char *dir, size_t count)
{
    struct tape_names names = tape->names;

    empty_folder(dir);
    for (size_t i = 0; i < count; i++) {
        if (is_of_names(&tape->calls[tape->pending[i]]))
            change_names(&names, &tape->calls[tape->pending[i]]);
    }
    for (size_t n = 0; n < names.count; n++) {
        size_t node = names.list[n].node;
        struct contents left;

        copy_contents(&left, &tape->durable[node]);
        for (size_t i = 0; i < count; i++) {
            const struct call *call = &tape->calls[tape->pending[i]];

            if (!is_of_names(call) && call->node == node)
                change_contents(&left, call);
        }
        put_file(dir, names.list[n].text, &left);
        free(left.bytes);
    }
}

struct torn {
    const struct tape *tape;
    uint64_t (*random)(void *arg);
    void *arg;
};

/* A moment: how many of the pending calls have an effect. The first and the
 * last moment are as likely as all the others together. */
static size_t
moment(const struct torn *torn)
{
    uint64_t dice = torn->random(torn->arg);
    size_t all = torn->tape->pending_count;

    return dice % 4 == 0 ? 0 : dice % 4 == 1 ? all : (dice >> 8) % (all + 1);
}

/* Do what this call does to one sector, except for the length of the file. */
static void
change_sector(struct contents *contents, const struct call *call, size_t sector)
{
    size_t from = sector > call->at ? sector : call->at;
    size_t end = call->at + call->len, to = sector + SECTOR;

    if (call->kind == TAPE_TRUNCATE) {
        from = sector > call->len ? sector : call->len;
        if (from < to)
            memset(contents->bytes + from, 0, to - from);
        return;
    }
    to = end < to ? end : to;
    if (from < to)
        memcpy(contents->bytes + from, call->data + (from - call->at),
               to - from);
}

/* The length is that of one moment, and each sector that of another one. A
 * truncation belongs to the length: it happened to all sectors or to none. */
static void
tear_file(const struct torn *torn, size_t node, struct contents *left)
{
    const struct tape *tape = torn->tape;
    size_t length_moment = moment(torn), end, len;

    copy_contents(left, &tape->durable[node]);
    end = len = left->len;
    for (size_t i = 0; i < tape->pending_count; i++) {
        const struct call *call = &tape->calls[tape->pending[i]];

        if (is_of_names(call) || call->node != node)
            continue;
        if (call->at + call->len > end)
            end = call->at + call->len;
        if (i >= length_moment)
            continue;
        if (call->kind == TAPE_TRUNCATE || call->at + call->len > len)
            len = call->at + call->len;
    }
    set_len(left, (end + SECTOR - 1) / SECTOR * SECTOR);
    for (size_t sector = 0; sector < end; sector += SECTOR) {
        size_t sector_moment = moment(torn);

        for (size_t i = 0; i < tape->pending_count; i++) {
            const struct call *call = &tape->calls[tape->pending[i]];

            if (!is_of_names(call) && call->node == node &&
                i < (call->kind == TAPE_TRUNCATE ? length_moment
                                                 : sector_moment))
                change_sector(left, call, sector);
        }
    }
    set_len(left, len);
}

void
tape_torn_image(const struct tape *tape, const char *dir,
                uint64_t (*random)(void *arg), void *arg)
{
    struct torn torn = {tape, random, arg};
    struct tape_names names = tape->names;
    size_t names_moment = moment(&torn);
    bool in_order = random(arg) % 2;

    empty_folder(dir);
    for (size_t i = 0; i < tape->pending_count; i++) {
        const struct call *call = &tape->calls[tape->pending[i]];

        if (is_of_names(call) &&
            (in_order ? i < names_moment : random(arg) % 2 == 0))
            change_names(&names, call);
    }
    for (size_t n = 0; n < names.count; n++) {
        struct contents left;

        tear_file(&torn, names.list[n].node, &left);
        put_file(dir, names.list[n].text, &left);
        free(left.bytes);
    }
}

/* ---- the tape ---------------------------------------------------------- */

struct tape *
tape_new(void)
{
    struct tape *tape = calloc(1, sizeof(*tape));

    need(tape, "out of memory");
    return tape;
}

void
tape_clear(struct tape *tape)
{
    for (size_t i = 0; i < tape->len; i++)
        free(tape->calls[i].data);
    for (size_t i = 0; i < NODES; i++)
        free(tape->durable[i].bytes);
    free(tape->calls);
    free(tape->pending);
    free(tape);
}

size_t
tape_len(const struct tape *tape)
{
    return tape->len;
}

size_t
tape_count(const struct tape *tape, enum tape_kind kind)
{
    return tape->counts[kind];
}

void
tape_deaf(struct tape *tape, bool data, bool folder)
{
    tape->deaf_data = data;
    tape->deaf_folder = folder;
}
