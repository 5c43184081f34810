/*
 * helper.c - a thread for work that would delay a batch: it prepares the file
 * of the next segment, and sorts the rows of saved indexes (saved.c).
 *
 * A prepared file is filled with zeros, so that the fdatasync of a batch has no
 * metadata to write: that halves its time. When a journal is opened, no batch
 * is waiting, so the first file is filled completely. Later, if batches come so
 * fast that a file is needed before it is filled, it is used as it is; its room
 * has been allocated already. The file is called "spare" until it is a segment.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ZERO_LEN (UINT64_C(256) << 10)

enum spare_state { SPARE_NONE, SPARE_WANTED, SPARE_MAKING, SPARE_READY };

struct helper {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    bool threaded, stop, hurry;
    enum spare_state spare;
    struct fresh fresh;
    int error; /* errno of the last attempt */
    struct saved_job *jobs;
    const struct idem_io *io;
    int dir_fd;
};

static bool
hurried(struct helper *helper)
{
    bool hurry;

    pthread_mutex_lock(&helper->mutex);
    hurry = helper->hurry;
    pthread_mutex_unlock(&helper->mutex);
    return hurry;
}

/* Write zeros up to the end of a block, or whole blocks, past the page cache if
 * that is possible (*direct >= 0): batches will be written so, too. */
static int
write_zeros(struct helper *helper, const struct fresh *fresh, int *direct,
            const uint8_t *zeros, uint64_t from, uint64_t part)
{
    bool blocks =
        *direct >= 0 && from % JOURNAL_BLOCK == 0 && part % JOURNAL_BLOCK == 0;
    int error = idem__io_write(helper->io, blocks ? *direct : fresh->fd, zeros,
                               part, from);

    if (!blocks || error != EINVAL)
        return error;
    idem__io_close(helper->io, *direct);
    *direct = -1;
    return idem__io_write(helper->io, fresh->fd, zeros, part, from);
}

static int
fill_with_zeros(struct helper *helper, const struct fresh *fresh, uint64_t from)
{
    uint8_t *memory = calloc(1, ZERO_LEN + JOURNAL_BLOCK);
    int direct = -1, error = 0;
    const uint8_t *zeros;

    if (!memory)
        return 0; /* without zeros the file is only slower */
    zeros = memory + (JOURNAL_BLOCK - (uintptr_t)memory % JOURNAL_BLOCK);
    (void)idem__io_open(helper->io, helper->dir_fd, fresh->name,
                        O_WRONLY | O_DIRECT, &direct);
    while (!error && from < fresh->len && !hurried(helper)) {
        uint64_t over = from % JOURNAL_BLOCK;
        uint64_t part = over ? JOURNAL_BLOCK - over : ZERO_LEN;

        if (part > fresh->len - from)
            part = fresh->len - from;
        error = write_zeros(helper, fresh, &direct, zeros, from, part);
        if (!error)
            error = idem__io_datasync(helper->io, fresh->fd);
        from += part;
    }
    idem__io_close(helper->io, direct);
    free(memory);
    return error;
}

/* An existing file was a segment, so its bytes are already written. None of its
 * entries can be mistaken for one of the next segment, which has another
 * salt. */
static int
make_spare(struct helper *helper, struct fresh *fresh)
{
    struct stat info = {0};
    uint64_t have;
    int error;

    fresh->name = "spare";
    fresh->fd = -1;
    error = idem__io_open(helper->io, helper->dir_fd, fresh->name,
                          O_RDWR | O_CREAT, &fresh->fd);
    if (!error && fstat(fresh->fd, &info) != 0)
        error = errno;
    have = (uint64_t)info.st_size;
    if (!error && have > fresh->len) {
        error = idem__io_truncate(helper->io, fresh->fd, fresh->len);
        have = fresh->len;
    }
    if (!error && have < fresh->len)
        error = idem__io_allocate(helper->io, fresh->fd, fresh->len);
    if (error == EOPNOTSUPP)
        error = 0; /* the zeros will allocate the room */
    if (!error)
        error = fill_with_zeros(helper, fresh, have);
    if (error) {
        idem__io_close(helper->io, fresh->fd);
        fresh->fd = -1;
        (void)idem__io_unlink(helper->io, helper->dir_fd, fresh->name);
    }
    return error;
}

/* Called with the mutex held, which is unlocked during the work. */
static void
make_wanted(struct helper *helper)
{
    struct fresh fresh = helper->fresh;
    int error;

    helper->spare = SPARE_MAKING;
    pthread_mutex_unlock(&helper->mutex);
    error = make_spare(helper, &fresh);
    pthread_mutex_lock(&helper->mutex);
    helper->fresh = fresh;
    helper->error = error;
    helper->spare = error ? SPARE_NONE : SPARE_READY;
    pthread_cond_broadcast(&helper->done);
}

/* Called with the mutex held, which is released during the work. */
static void
save_first(struct helper *helper)
{
    struct saved_job *job = helper->jobs;

    helper->jobs = job->next;
    pthread_mutex_unlock(&helper->mutex);
    idem__saved_do(helper->io, helper->dir_fd, job);
    pthread_mutex_lock(&helper->mutex);
}

static void *
work(void *arg)
{
    struct helper *helper = arg;

    pthread_mutex_lock(&helper->mutex);
    for (;;) {
        if (helper->spare == SPARE_WANTED)
            make_wanted(helper);
        else if (helper->jobs)
            save_first(helper);
        else if (helper->stop)
            break;
        else
            pthread_cond_wait(&helper->wake, &helper->mutex);
    }
    pthread_mutex_unlock(&helper->mutex);
    return NULL;
}

bool
idem__helper_start(struct journal *self)
{
    struct helper *helper = calloc(1, sizeof(*helper));

    if (!helper)
        return false;
    helper->io = self->io;
    helper->dir_fd = self->dir_fd;
    helper->fresh.fd = -1;
    pthread_mutex_init(&helper->mutex, NULL);
    pthread_cond_init(&helper->wake, NULL);
    pthread_cond_init(&helper->done, NULL);
    self->helper = helper;
    /* Without a thread, everything is done on the caller's thread. */
    helper->threaded = !self->tuning.no_thread &&
                       pthread_create(&helper->thread, NULL, work, helper) == 0;
    return true;
}

void
idem__helper_stop(struct journal *self)
{
    struct helper *helper = self->helper;

    if (!helper)
        return;
    pthread_mutex_lock(&helper->mutex);
    helper->stop = helper->hurry = true;
    pthread_cond_broadcast(&helper->wake);
    pthread_mutex_unlock(&helper->mutex);
    if (helper->threaded)
        pthread_join(helper->thread, NULL);
    idem__io_close(self->io, helper->fresh.fd);
    /* Often there is no such file. */
    (void)idem__io_unlink(self->io, self->dir_fd, "spare");
    pthread_cond_destroy(&helper->done);
    pthread_cond_destroy(&helper->wake);
    pthread_mutex_destroy(&helper->mutex);
    free(helper);
    self->helper = NULL;
}

void
idem__helper_ask(struct journal *self, uint64_t len)
{
    struct helper *helper = self->helper;

    pthread_mutex_lock(&helper->mutex);
    if (helper->spare == SPARE_NONE) {
        helper->spare = SPARE_WANTED;
        helper->hurry = false;
        helper->fresh = (struct fresh){.fd = -1, .len = len};
        if (helper->threaded)
            pthread_cond_broadcast(&helper->wake);
        else
            make_wanted(helper);
    }
    pthread_mutex_unlock(&helper->mutex);
}

void
idem__helper_save(struct journal *self, struct saved_job *job)
{
    struct helper *helper = self->helper;
    struct saved_job **last = &helper->jobs;

    pthread_mutex_lock(&helper->mutex);
    while (*last)
        last = &(*last)->next;
    *last = job;
    if (helper->threaded)
        pthread_cond_broadcast(&helper->wake);
    else
        save_first(helper);
    pthread_mutex_unlock(&helper->mutex);
}

int
idem__helper_error(struct journal *self)
{
    struct helper *helper = self->helper;
    int error;

    pthread_mutex_lock(&helper->mutex);
    error = helper->error;
    pthread_mutex_unlock(&helper->mutex);
    return error;
}

static enum spare_state
spare_of(struct helper *helper)
{
    enum spare_state spare;

    pthread_mutex_lock(&helper->mutex);
    spare = helper->spare;
    pthread_mutex_unlock(&helper->mutex);
    return spare;
}

bool
idem__helper_has(struct journal *self)
{
    return spare_of(self->helper) != SPARE_NONE;
}

bool
idem__helper_ready(struct journal *self)
{
    return spare_of(self->helper) == SPARE_READY;
}

bool
idem__helper_take(struct journal *self, uint64_t min_len, struct fresh *fresh)
{
    struct helper *helper = self->helper;
    bool took = false;

    pthread_mutex_lock(&helper->mutex);
    helper->hurry = self->opened;
    while (helper->spare == SPARE_MAKING ||
           (helper->spare == SPARE_WANTED && !helper->hurry))
        pthread_cond_wait(&helper->done, &helper->mutex);
    if (helper->spare == SPARE_READY && helper->fresh.len >= min_len) {
        *fresh = helper->fresh;
        took = true;
    } else if (helper->spare == SPARE_READY) {
        idem__io_close(self->io, helper->fresh.fd);
    }
    helper->spare = SPARE_NONE;
    helper->fresh.fd = -1;
    pthread_mutex_unlock(&helper->mutex);
    return took;
}
