/*
 * trail.c - the audit trail: what operators did, in memory and in a file.
 *
 * An event is written with one write(2) before its caller is answered, so it
 * survives the end of the process; it is not forced to the disk, so a power cut
 * can take the last ones.
 */
#include "audit.h"

#include "../http/http.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BACK (4 * 1024 * 1024) /* of each file, at the start */
#define NAME_ROOM 4096

struct audit {
    pthread_mutex_t mutex;
    json_t *kept[AUDIT_KEPT]; /* a ring; the next goes to count % AUDIT_KEPT */
    size_t count;
    int fd;       /* -1: none, or it could not be opened again */
    bool regular; /* not a device or a pipe: those have no size */
    int64_t len, max_bytes;
    char file[NAME_ROOM], old[NAME_ROOM + 2]; /* empty: in memory only */
};

/* ---- events as JSON ---------------------------------------------------- */

/* What the record was before and after. After an error nobody knows. */
static void
read_states(const struct audit_event *event, const char **before,
            const char **after)
{
    const struct idem_answer *answer = event->answer;

    *before = *after = "unknown";
    if (event->status != IDEM_OK)
        return;
    *before = answer->was_in_doubt ? "doubt"
              : answer->was == IDEM_STATE_ABSENT
                  ? "absent"
                  : idem_state_name((enum idem_state)answer->was);
    *after = *before;
    if (answer->verdict == IDEM_V_SETTLED)
        *after = idem_state_name(answer->record->state);
    else if (answer->verdict == IDEM_V_OK)
        *after = idem_state_name(IDEM_STATE_FREE);
}

static const char *
outcome_name(const struct idem_op *op)
{
    return op->outcome ? idem_state_name(op->outcome) : "-";
}

static const char *
verdict_name(const struct audit_event *event)
{
    return event->status == IDEM_OK ? idem_verdict_name(event->answer->verdict)
                                    : idem_status_name(event->status);
}

/* A line of the trail and of the log: the words are the same in both. */
struct line {
    const struct audit_source *source;
    const char *surface, *verb, *outcome, *verdict, *before, *after;
    struct idem_bytes scope, id, reason;
};

static struct line
line_of(const struct audit_event *event)
{
    const struct idem_op *op = event->op;
    struct line line = {.source = event->source,
                        .surface = event->surface,
                        .verb = idem_verb_name(op->verb),
                        .outcome = outcome_name(op),
                        .verdict = verdict_name(event),
                        .scope = op->scope,
                        .id = op->id,
                        .reason = op->subject};

    read_states(event, &line.before, &line.after);
    return line;
}

static json_t *
line_json(const struct line *line)
{
    char time[LOG_TIME_LEN];
    json_t *json;

    server_log_time(time);
    json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "time",
                     time, "who", line->source->who, "from", line->source->from,
                     "surface", line->surface, "verb", line->verb, "outcome",
                     line->outcome, "verdict", line->verdict, "before",
                     line->before, "after", line->after);
    if (json && http_put_bytes(json, "scope", line->scope, false) &&
        http_put_bytes(json, "id", line->id, false) &&
        http_put_bytes(json, "reason", line->reason, false))
        return json;
    json_decref(json);
    return NULL;
}

/* ---- the ring ---------------------------------------------------------- */

/* Takes the reference. */
static void
keep(struct audit *audit, json_t *entry)
{
    json_t **slot = &audit->kept[audit->count++ % AUDIT_KEPT];

    json_decref(*slot);
    *slot = entry;
}

/* Does the entry have everything that `wanted` has? */
static bool
matches(const json_t *entry, json_t *wanted)
{
    const char *name;
    json_t *value;

    json_object_foreach(wanted, name, value)
    {
        if (!json_equal(json_object_get(entry, name), value))
            return false;
    }
    return true;
}

void
audit_list(struct audit *audit, const struct audit_filter *filter,
           audit_each_fn *each, void *arg)
{
    json_t *wanted = json_object();
    size_t at, left = filter->count;

    if (filter->scope.len > 0)
        http_put_bytes(wanted, "scope", filter->scope, false);
    if (filter->id.len > 0)
        http_put_bytes(wanted, "id", filter->id, false);
    pthread_mutex_lock(&audit->mutex);
    /* Back to the oldest that is asked for, then forth. */
    for (at = audit->count;
         at > 0 && audit->count - at < AUDIT_KEPT && left > 0; at--)
        left -= matches(audit->kept[(at - 1) % AUDIT_KEPT], wanted);
    for (; at < audit->count; at++) {
        if (matches(audit->kept[at % AUDIT_KEPT], wanted))
            each(arg, audit->kept[at % AUDIT_KEPT]);
    }
    pthread_mutex_unlock(&audit->mutex);
    json_decref(wanted);
}

/* ---- the file ---------------------------------------------------------- */

static int
open_file(struct audit *audit)
{
    struct stat stat;

    audit->fd =
        open(audit->file, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
             0600);
    if (audit->fd < 0 || fstat(audit->fd, &stat) != 0)
        return errno;
    audit->len = stat.st_size;
    audit->regular = S_ISREG(stat.st_mode);
    return 0;
}

static void
close_file(struct audit *audit)
{
    if (audit->fd >= 0)
        close(audit->fd);
    audit->fd = -1;
}

/* Somebody may have moved it away, or deleted it. */
static bool
is_in_place(const struct audit *audit)
{
    struct stat here, there;

    return fstat(audit->fd, &here) == 0 && lstat(audit->file, &there) == 0 &&
           here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

/* Does the file end in the middle of a line, which a crash or a full disk cut
 * off? It must not spoil the next one. */
static bool
is_torn(const struct audit *audit)
{
    char last = '\n';

    return audit->regular && audit->len > 0 &&
           pread(audit->fd, &last, 1, audit->len - 1) == 1 && last != '\n';
}

/* Have a file with room for `len` bytes; what went wrong, or 0. After a failure
 * to rotate, the file goes on growing, which loses nothing. */
static int
make_room(struct audit *audit, size_t len)
{
    int error = 0;

    if (audit->fd >= 0 && !is_in_place(audit))
        close_file(audit);
    if (audit->fd >= 0 && audit->regular && audit->len > 0 &&
        audit->len + (int64_t)len > audit->max_bytes) {
        if (rename(audit->file, audit->old) == 0)
            close_file(audit);
        else
            error = errno;
    }
    if (audit->fd < 0)
        error = open_file(audit);
    return error;
}

static int
append(struct audit *audit, const json_t *entry)
{
    char *text = json_dumps(entry, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0;
    char *line = text ? malloc(len + 2) : NULL;
    int error = line ? make_room(audit, len + 2) : ENOMEM;
    ssize_t written = -1;

    if (line && audit->fd >= 0) {
        bool torn = is_torn(audit);

        line[0] = '\n';
        memcpy(line + 1, text, len);
        line[len + 1] = '\n';
        len += torn ? 2 : 1;
        written = write(audit->fd, torn ? line : line + 1, len);
        if (written > 0)
            audit->len += written;
        if (written != (ssize_t)len)
            error = written < 0 ? errno : ENOSPC;
    }
    free(text);
    free(line);
    return error;
}

static void
read_back(struct audit *audit, const char *file)
{
    FILE *in = fopen(file, "re");
    struct stat stat;
    char *line = NULL;
    size_t room = 0;

    if (in && (fstat(fileno(in), &stat) != 0 || !S_ISREG(stat.st_mode))) {
        fclose(in);
        in = NULL;
    }
    if (in && stat.st_size > READ_BACK &&
        fseek(in, stat.st_size - READ_BACK, SEEK_SET) == 0 &&
        getline(&line, &room, in) < 0)
        room = 0; /* the rest of a line; nothing follows it */
    while (in && getline(&line, &room, in) > 0) {
        json_t *entry = json_loads(line, 0, NULL);

        if (json_is_object(entry))
            keep(audit, entry);
        else
            json_decref(entry);
    }
    free(line);
    if (in)
        fclose(in);
}

enum idem_status
audit_open(const char *file, int64_t max_bytes, struct audit **audit,
           struct idem_error *err)
{
    struct audit *self = calloc(1, sizeof(*self));
    int error;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    pthread_mutex_init(&self->mutex, NULL);
    self->fd = -1;
    self->max_bytes = max_bytes;
    if (file) {
        snprintf(self->file, sizeof(self->file), "%s", file);
        snprintf(self->old, sizeof(self->old), "%s.1", file);
        read_back(self, self->old);
        read_back(self, self->file);
        error = open_file(self);
        if (error) {
            idem__fail(err, IDEM_ERR_INVALID,
                       "the audit file %s: %s; name another one with --audit "
                       "FILE",
                       file, strerror(error));
            audit_close(self);
            return IDEM_ERR_INVALID;
        }
    }
    *audit = self;
    return IDEM_OK;
}

void
audit_close(struct audit *audit)
{
    if (!audit)
        return;
    for (size_t i = 0; i < AUDIT_KEPT; i++)
        json_decref(audit->kept[i]);
    close_file(audit);
    pthread_mutex_destroy(&audit->mutex);
    free(audit);
}

static void
add_line(struct audit *audit, const struct server_log *log,
         const struct line *line)
{
    json_t *entry = line_json(line);
    int error = entry ? 0 : ENOMEM;

    if (log)
        server_log(log, LOG_ALWAYS, "operator", LOG_TEXT("verb", line->verb),
                   LOG_TEXT("who", line->source->who),
                   line->id.len > 0 ? LOG_KEY(line->scope, line->id)
                                    : LOG_TEXT("key", "-"),
                   LOG_TEXT("surface", line->surface),
                   LOG_TEXT("from", line->source->from),
                   LOG_TEXT("outcome", line->outcome),
                   LOG_TEXT("verdict", line->verdict),
                   LOG_TEXT("before", line->before),
                   LOG_TEXT("after", line->after),
                   LOG_BYTES("reason", line->reason));
    pthread_mutex_lock(&audit->mutex);
    if (entry && audit->file[0])
        error = append(audit, entry);
    if (entry)
        keep(audit, entry);
    pthread_mutex_unlock(&audit->mutex);
    if (error && log)
        server_log(log, LOG_ERROR, "audit-failed",
                   LOG_TEXT("file", audit->file),
                   LOG_TEXT("why", strerror(error)));
}

void
audit_add(struct audit *audit, const struct server_log *log,
          const struct audit_event *event)
{
    const struct line line = line_of(event);

    add_line(audit, log, &line);
}

void
audit_add_rollback(struct audit *audit, const struct server_log *log,
                   const struct audit_rollback *event)
{
    const struct line line = {.source = event->source,
                              .surface = event->surface,
                              .verb = "rollback",
                              .outcome = "-",
                              .verdict = idem_verdict_name(IDEM_V_OK),
                              .before = "rolled-back",
                              .after = "accepted",
                              .reason = event->reason};

    add_line(audit, log, &line);
}

void
audit_default_file(const char *store, char *file, size_t len)
{
    const char *dir = store + sizeof("journal:") - 1;

    file[0] = '\0';
    if (strncmp(store, "journal:", sizeof("journal:") - 1) == 0)
        snprintf(file, len, "%.*s/audit.jsonl", (int)strcspn(dir, "?"), dir);
}
