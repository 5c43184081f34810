/*
 * crash_test.c - what a power cut leaves is always a good journal.
 *
 * Every call of the journal goes through a recorder that knows, for each file,
 * which 512-byte sectors are durable and which are only written, and for the
 * folder, which names are durable. At random calls it makes a crash image: each
 * sector that was not synced is either old or new, each name that was not
 * synced was changed or not. A journal is opened on the image and must have
 * everything that was acknowledged, and nothing that was not written.
 *
 * Now and then the process dies instead (a batch is written, not synced, and no
 * call works any more) and the journal is opened again on the same disk: what
 * the new process has seen then must survive the next power cut.
 *
 * The counter-tests make the recorder deaf for fdatasync, or for the folder's
 * fsync: then the same program must find losses.
 */
#include "model.h"

#include <errno.h>
#include <fcntl.h>

#define SECTOR 512
#define NODES 4096
#define FDS 1024
#define CHANGES 256

struct node {
    uint8_t *now, *durable; /* contents; both have `room` bytes */
    size_t now_len, durable_len, room;
};

struct name {
    char text[40];
    struct node *node;
};

struct names {
    struct name list[64];
    size_t count;
};

struct change { /* of the folder, not yet durable */
    char from[40], to[40];
    struct node *node; /* made under the name `to`; NULL: renamed, unlinked */
};

struct disk {
    struct node *nodes[NODES];
    size_t node_count;
    struct node *by_fd[FDS];
    bool folder_fd[FDS];
    struct names now, durable;
    struct change changes[CHANGES];
    size_t change_count;
    char dir[256];
    uint64_t seed;
    bool deaf_data, deaf_folder;
    bool dead;    /* the process is: no call does anything */
    bool may_die; /* after one of the next writes */
    void (*at_call)(struct disk *disk);
    void *arg;
};

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
        assert_true(names->count < 64);
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

    assert_true(disk->change_count++ < CHANGES);
    memset(change, 0, sizeof(*change));
    snprintf(change->from, sizeof(change->from), "%s", from ? from : "");
    snprintf(change->to, sizeof(change->to), "%s", to ? to : "");
    change->node = node;
    apply_change(&disk->now, change);
}

static void
set_len(struct node *node, size_t len)
{
    if (len > node->room) {
        size_t room = (len + 65535) & ~(size_t)65535;

        node->now = realloc(node->now, room);
        node->durable = realloc(node->durable, room);
        memset(node->now + node->room, 0, room - node->room);
        memset(node->durable + node->room, 0, room - node->room);
        node->room = room;
    }
    if (len < node->now_len)
        memset(node->now + len, 0, node->now_len - len);
    node->now_len = len;
}

static const char *
base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool
is_dead(const struct disk *disk)
{
    errno = EIO;
    return disk->dead;
}

static int
disk_open(void *arg, int at, const char *path, int flags, mode_t mode)
{
    struct disk *disk = arg;
    struct name *name;
    int fd;

    if (is_dead(disk))
        return -1;
    disk->at_call(disk);
    fd = openat(at, path, flags, mode);
    if (fd < 0)
        return fd;
    assert_true(fd < FDS);
    disk->folder_fd[fd] = flags & O_DIRECTORY;
    disk->by_fd[fd] = NULL;
    if (flags & O_DIRECTORY)
        return fd;
    name = find_name(&disk->now, base_name(path));
    if (!name) {
        struct node *node = calloc(1, sizeof(*node));

        assert_true(disk->node_count < NODES);
        disk->nodes[disk->node_count++] = node;
        add_change(disk, NULL, base_name(path), node);
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
    (void)arg;
    return close(fd);
}

static ssize_t
disk_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    (void)arg;
    return pread(fd, data, len, at);
}

static ssize_t
disk_pwrite(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct disk *disk = arg;
    struct node *node = disk->by_fd[fd];

    if (is_dead(disk))
        return -1;
    if ((size_t)at + len > node->now_len)
        set_len(node, (size_t)at + len);
    memcpy(node->now + at, data, len);
    disk->at_call(disk); /* written, not synced */
    if (disk->may_die && test_random(&disk->seed) % 2)
        disk->dead = true;
    return pwrite(fd, data, len, at);
}

static int
disk_sync(void *arg, int fd)
{
    struct disk *disk = arg;
    struct node *node = disk->by_fd[fd];

    if (is_dead(disk))
        return -1;
    disk->at_call(disk);
    if (disk->folder_fd[fd]) {
        if (disk->deaf_folder)
            return 0;
        for (size_t i = 0; i < disk->change_count; i++)
            apply_change(&disk->durable, &disk->changes[i]);
        disk->change_count = 0;
        return 0;
    }
    if (disk->deaf_data || !node->room)
        return 0;
    memcpy(node->durable, node->now, node->room);
    node->durable_len = node->now_len;
    return 0;
}

static int
disk_allocate(void *arg, int fd, off_t len)
{
    struct disk *disk = arg;
    struct node *node = disk->by_fd[fd];

    if (is_dead(disk))
        return -1;
    disk->at_call(disk);
    if ((size_t)len > node->now_len)
        set_len(node, (size_t)len);
    return ftruncate(fd, (off_t)node->now_len);
}

static int
disk_truncate(void *arg, int fd, off_t len)
{
    struct disk *disk = arg;

    if (is_dead(disk))
        return -1;
    disk->at_call(disk);
    set_len(disk->by_fd[fd], (size_t)len);
    return ftruncate(fd, len);
}

static int
disk_rename(void *arg, int at, const char *from, const char *to)
{
    struct disk *disk = arg;

    if (is_dead(disk))
        return -1;
    disk->at_call(disk);
    if (find_name(&disk->now, base_name(from)))
        add_change(disk, base_name(from), base_name(to), NULL);
    return renameat(at, from, at, to);
}

static int
disk_unlink(void *arg, int at, const char *path)
{
    struct disk *disk = arg;

    if (is_dead(disk))
        return -1;
    disk->at_call(disk);
    if (find_name(&disk->now, base_name(path)))
        add_change(disk, base_name(path), NULL, NULL);
    return unlinkat(at, path, 0);
}

static void
disk_clear(struct disk *disk)
{
    for (size_t i = 0; i < disk->node_count; i++) {
        free(disk->nodes[i]->now);
        free(disk->nodes[i]->durable);
        free(disk->nodes[i]);
    }
    free(disk);
}

/* How a crash treats what was not synced. */
enum tear { TEAR_NONE_WRITTEN, TEAR_ALL_WRITTEN, TEAR_RANDOM, TEAR_KINDS };

static bool
lucky(struct disk *disk, enum tear tear)
{
    return tear == TEAR_ALL_WRITTEN ||
           (tear == TEAR_RANDOM && test_random(&disk->seed) % 2);
}

static void
write_image_file(struct disk *disk, const char *dir, const struct name *name,
                 enum tear tear)
{
    struct test_path path = test_path(dir, name->text);
    struct node *node = name->node;
    size_t len = lucky(disk, tear) ? node->now_len : node->durable_len;
    uint8_t *bytes = calloc(1, len + SECTOR);
    int fd = open(path.text, O_CREAT | O_TRUNC | O_WRONLY, 0600);

    for (size_t at = 0; at < len; at += SECTOR) {
        size_t part = len - at < SECTOR ? len - at : SECTOR;
        const uint8_t *from = node->durable;

        if (memcmp(node->now + at, node->durable + at, part) != 0 &&
            lucky(disk, tear))
            from = node->now;
        memcpy(bytes + at, from + at, part);
    }
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    close(fd);
    free(bytes);
}

/* Names: as synced, and then each later change happened or did not. */
static void
write_image(struct disk *disk, const char *dir, enum tear tear)
{
    struct names names = disk->durable;
    size_t upto = test_random(&disk->seed) % (disk->change_count + 1);
    bool in_order = test_random(&disk->seed) % 2;

    for (size_t i = 0; i < disk->change_count; i++) {
        if (in_order && tear == TEAR_RANDOM ? i < upto : lucky(disk, tear))
            apply_change(&names, &disk->changes[i]);
    }
    test_folder_empty(dir);
    for (size_t i = 0; i < names.count; i++)
        write_image_file(disk, dir, &names.list[i], tear);
}

/* ---- a run ---- */

struct run {
    struct model model;
    char *image;
    struct idem_clocks clocks;
    size_t images, wanted, every, flaws, deaths;
    uint64_t moved_bytes, segments; /* the cleaner must have been at work */
    bool until_flaw;
    char first_flaw[300];
};

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static void
note(struct run *run, const char *what)
{
    if (run->flaws++ == 0)
        snprintf(run->first_flaw, sizeof(run->first_flaw), "%s", what);
}

/* Open what the crash left, look, write on, look again. */
static void
check_image(struct run *run, uint64_t dice)
{
    struct idem_io io = idem__system_io;
    struct journal_tuning tuning = {
        .io = &io, .segment_len = 8192, .no_thread = true};
    struct model model = run->model;
    struct idem_clocks clocks = model_clocks(&model);
    struct idem_store *store;
    struct model_swaps s;
    struct idem_error err;
    const char *flaw;

    io.fsync = io.fdatasync = no_sync;
    if (test_try_open(run->image, &tuning, &clocks, NULL, &store, &err) !=
        IDEM_OK) {
        note(run, err.text);
        return;
    }
    flaw = model_flaw(&model, store);
    if (flaw)
        note(run, flaw);
    if (!flaw && dice % 4 == 0) {
        model_resolve(&model, store);
        for (int i = 0; i < 3; i++) {
            model_batch(&model, &s);
            store->type->swap(store, s.swaps, s.count, &(struct idem_arena){0},
                              NULL);
            model_learn(&model, &s);
            test_tend(store);
        }
        test_close(store);
        store = NULL;
        if (test_try_open(run->image, &tuning, &clocks, NULL, &store, &err))
            note(run, err.text);
        else if ((flaw = model_flaw(&model, store)))
            note(run, flaw);
    }
    if (store)
        test_close(store);
}

static void
maybe_crash(struct disk *disk)
{
    struct run *run = disk->arg;
    uint64_t dice = test_random(&disk->seed);

    if (run->images >= run->wanted || dice % run->every != 0)
        return;
    run->images++;
    write_image(disk, run->image,
                (dice >> 20) % 8 == 0   ? TEAR_NONE_WRITTEN
                : (dice >> 20) % 8 == 1 ? TEAR_ALL_WRITTEN
                                        : TEAR_RANDOM);
    check_image(run, dice >> 32);
}

static void
leave(struct run *run, struct idem_store *store)
{
    struct journal *journal = (struct journal *)store;

    run->moved_bytes += journal->moved_bytes;
    run->segments = journal->segments[0].head.id;
    test_close(store);
}

static struct idem_store *
live_again(struct run *run, struct disk *disk, const char *dir,
           const struct journal_tuning *tuning)
{
    struct idem_store *store = NULL;
    struct idem_error err;

    disk->dead = disk->may_die = false;
    if (test_try_open(dir, tuning, &run->clocks, NULL, &store, &err))
        fail_msg("open: %s", err.text);
    return store;
}

/* Batches, cleaning, expiry, closing and opening, until there were enough
 * images. */
static void
work(struct run *run, struct disk *disk, const char *dir)
{
    struct idem_io io = {
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
    struct journal_tuning tuning = {
        .io = &io, .segment_len = 8192, .no_thread = true};
    struct idem_store *store = NULL;
    struct model_swaps s;

    for (size_t round = 0; run->images < run->wanted && round < 100000;
         round++) {
        if (!store)
            store = live_again(run, disk, dir, &tuning);
        model_batch(&run->model, &s);
        store->type->swap(store, s.swaps, s.count, &(struct idem_arena){0},
                          NULL);
        model_learn(&run->model, &s);
        run->model.now_ms += 100;
        disk->may_die = test_random(&disk->seed) % 16 == 0;
        if (disk->dead) {
            test_close(store); /* which can change nothing */
            store = live_again(run, disk, dir, &tuning);
            model_resolve(&run->model, store); /* this has been seen now */
            run->deaths++;
        }
        if (test_random(&disk->seed) % 3 == 0)
            test_tend(store);
        if (test_random(&disk->seed) % 100 == 0) {
            leave(run, store);
            store = NULL;
        }
        if (disk->node_count > NODES - 64 || (run->until_flaw && run->flaws))
            break;
    }
    if (store)
        leave(run, store);
}

static void
crash_often(struct run *run, size_t wanted, bool deaf_data, bool deaf_folder)
{
    size_t seed = 1;

    memset(run, 0, sizeof(*run));
    run->wanted = wanted;
    run->every = 10;
    run->until_flaw = deaf_data || deaf_folder;
    run->image = test_fast_folder();
    for (; run->images < wanted && seed < 1000; seed++) {
        struct disk *disk = calloc(1, sizeof(*disk));
        char *dir = test_fast_folder();

        model_init(&run->model, seed);
        run->model.expiring = true;
        run->clocks = model_clocks(&run->model);
        disk->seed = seed;
        disk->deaf_data = deaf_data;
        disk->deaf_folder = deaf_folder;
        disk->at_call = maybe_crash;
        disk->arg = run;
        work(run, disk, dir);
        disk_clear(disk);
        test_folder_drop(dir);
        if (run->until_flaw && run->flaws > 0)
            break;
    }
    test_folder_drop(run->image);
    assert_true(run->images > 0);
}

static void
no_crash_loses_or_invents_a_record(void **state)
{
    struct run run;

    (void)state;
    crash_often(&run, test_size(500, 2000, 25000), false, false);
    print_message("%zu images, %zu swaps stored, %zu deaths, %llu bytes "
                  "moved\n",
                  run.images, run.model.stored, run.deaths,
                  (unsigned long long)run.moved_bytes);
    if (run.flaws > 0)
        fail_msg("%zu of %zu images: %s", run.flaws, run.images,
                 run.first_flaw);
    assert_true(run.moved_bytes > 0 && run.segments > 10 && run.deaths > 5);
}

static void
without_fdatasync_the_same_test_finds_losses(void **state)
{
    struct run run;

    (void)state;
    crash_often(&run, 2000, true, false);
    assert_true(run.flaws > 0);
}

static void
without_the_folders_fsync_the_same_test_finds_losses(void **state)
{
    struct run run;

    (void)state;
    crash_often(&run, 2000, false, true);
    assert_true(run.flaws > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_crash_loses_or_invents_a_record),
        cmocka_unit_test(without_fdatasync_the_same_test_finds_losses),
        cmocka_unit_test(without_the_folders_fsync_the_same_test_finds_losses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
