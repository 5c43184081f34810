/*
 * trail.c - the audit trail: operator actions, in memory and in a file.
 *
 * An event is written with one write(2) before its caller gets a reply, so it
 * survives a crash of the process. There is no fsync, so a power failure can
 * lose the last events.
 */
#include "audit.h"

#include "../../base/error.h"
#include "../../base/json_memory.h"
#include "json_record.h"

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

/* Reveals need a weaker right than changes and may be repeated without limit,
 * so they have a trail of their own and cannot push changes out. */
enum { CHANGES, REVEALS, TRAILS };

struct trail {
    json_t *kept[AUDIT_KEPT]; /* a ring; the next goes to count % AUDIT_KEPT */
    size_t count;
    int fd;       /* -1: not yet open, or it could not be reopened */
    bool regular; /* not a device or a pipe: those have no size */
    int64_t len;
    char file[NAME_ROOM + 8], old[NAME_ROOM + 10]; /* empty: none */
};

struct audit {
    pthread_mutex_t mutex;
    int64_t max_bytes;
    struct trail trails[TRAILS];
};

/* ---- events as JSON ---------------------------------------------------- */

/* The state of the record before and after; unknown after an error. */
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

/* A line of the trail and of the log; both use the same field names. */
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

/* NULL if memory runs out: jansson would leave out single fields. */
static json_t *
line_json(const struct line *line)
{
    char time[LOG_TIME_LEN];
    json_t *json;

    server_log_time(time);
    idem__json_begin();
    json =
        json_pack("{s:s, s:s, s:s*, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "time",
                  time, "who", line->source->who, "proposed_by",
                  line->source->first[0] ? line->source->first : NULL, "from",
                  line->source->from, "surface", line->surface, "verb",
                  line->verb, "outcome", line->outcome, "verdict",
                  line->verdict, "before", line->before, "after", line->after);
    if (json && server_json_put_bytes(json, "scope", line->scope, false) &&
        server_json_put_bytes(json, "id", line->id, false) &&
        server_json_put_bytes(json, "reason", line->reason, false) &&
        !idem__json_starved())
        return json;
    json_decref(json);
    return NULL;
}

/* ---- the rings --------------------------------------------------------- */

static const char *
text_of(const json_t *entry, const char *name)
{
    const char *text = json_string_value(json_object_get(entry, name));

    return text ? text : "";
}

static int
trail_of(const json_t *entry)
{
    return strcmp(text_of(entry, "verb"), idem_verb_name(IDEM_GET)) == 0
               ? REVEALS
               : CHANGES;
}

/* Takes the reference. */
static void
keep(struct audit *audit, json_t *entry)
{
    struct trail *trail = &audit->trails[trail_of(entry)];
    json_t **slot = &trail->kept[trail->count++ % AUDIT_KEPT];

    json_decref(*slot);
    *slot = entry;
}

/* Does the entry have every field of `wanted`? */
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

/* The index at which the last `count` matching entries begin. */
static size_t
first_of(const struct trail *trail, json_t *wanted, size_t count)
{
    size_t at;

    for (at = trail->count;
         at > 0 && trail->count - at < AUDIT_KEPT && count > 0; at--)
        count -= matches(trail->kept[(at - 1) % AUDIT_KEPT], wanted);
    return at;
}

/* The next matching entry; NULL: there are no more. */
static const json_t *
next_of(const struct trail *trail, json_t *wanted, size_t *at)
{
    for (; *at < trail->count; (*at)++)
        if (matches(trail->kept[*at % AUDIT_KEPT], wanted))
            return trail->kept[*at % AUDIT_KEPT];
    return NULL;
}

/* The fields that an entry must have; NULL: out of memory. */
static json_t *
read_filter(const struct audit_filter *filter)
{
    json_t *wanted = json_object();
    bool good = wanted != NULL;

    if (good && filter->scope.len > 0)
        good = server_json_put_bytes(wanted, "scope", filter->scope, false);
    if (good && filter->id.len > 0)
        good = server_json_put_bytes(wanted, "id", filter->id, false);
    if (good && !idem__json_starved())
        return wanted;
    json_decref(wanted);
    return NULL;
}

bool
audit_list(struct audit *audit, const struct audit_filter *filter,
           audit_each_fn *each, void *arg)
{
    const struct trail *trails = audit->trails;
    size_t at[TRAILS];
    const json_t *change, *reveal;
    json_t *wanted;

    idem__json_begin();
    wanted = read_filter(filter);
    if (!wanted)
        return false;
    pthread_mutex_lock(&audit->mutex);
    for (int i = 0; i < TRAILS; i++)
        at[i] = first_of(&trails[i], wanted, filter->count);
    for (;;) {
        change = next_of(&trails[CHANGES], wanted, &at[CHANGES]);
        reveal = next_of(&trails[REVEALS], wanted, &at[REVEALS]);
        if (!change && !reveal)
            break;
        if (change && (!reveal || strcmp(text_of(change, "time"),
                                         text_of(reveal, "time")) <= 0)) {
            each(arg, change);
            at[CHANGES]++;
        } else {
            each(arg, reveal);
            at[REVEALS]++;
        }
    }
    pthread_mutex_unlock(&audit->mutex);
    json_decref(wanted);
    return !idem__json_starved();
}

/* ---- the file ---------------------------------------------------------- */

static int
open_file(struct trail *trail)
{
    struct stat stat;

    trail->fd =
        open(trail->file, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
             0600);
    if (trail->fd < 0 || fstat(trail->fd, &stat) != 0)
        return errno;
    trail->len = stat.st_size;
    trail->regular = S_ISREG(stat.st_mode);
    return 0;
}

static void
close_file(struct trail *trail)
{
    if (trail->fd >= 0)
        close(trail->fd);
    trail->fd = -1;
}

/* False: somebody has moved or deleted the file. */
static bool
is_in_place(const struct trail *trail)
{
    struct stat here, there;

    return fstat(trail->fd, &here) == 0 && lstat(trail->file, &there) == 0 &&
           here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

/* Does the file end in the middle of a line, because of a crash or a full disk?
 * The next line must not be appended to it. */
static bool
is_torn(const struct trail *trail)
{
    char last = '\n';

    return trail->regular && trail->len > 0 &&
           pread(trail->fd, &last, 1, trail->len - 1) == 1 && last != '\n';
}

/* Open a file with room for `len` bytes; returns errno, or 0. If the rotation
 * fails, the file keeps growing, so no event is lost. */
static int
make_room(struct trail *trail, size_t len, int64_t max_bytes)
{
    int error = 0;

    if (trail->fd >= 0 && !is_in_place(trail))
        close_file(trail);
    if (trail->fd >= 0 && trail->regular && trail->len > 0 &&
        trail->len + (int64_t)len > max_bytes) {
        if (rename(trail->file, trail->old) == 0)
            close_file(trail);
        else
            error = errno;
    }
    if (trail->fd < 0)
        error = open_file(trail);
    return error;
}

static int
append(struct trail *trail, const json_t *entry, int64_t max_bytes)
{
    char *text = json_dumps(entry, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0;
    char *line = text && !idem__json_starved() ? malloc(len + 2) : NULL;
    int error = line ? make_room(trail, len + 2, max_bytes) : ENOMEM;
    ssize_t written = -1;

    if (line && trail->fd >= 0) {
        bool torn = is_torn(trail);

        line[0] = '\n';
        memcpy(line + 1, text, len);
        line[len + 1] = '\n';
        len += torn ? 2 : 1;
        written = write(trail->fd, torn ? line : line + 1, len);
        if (written > 0)
            trail->len += written;
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
        room = 0; /* the cut line was the last one */
    while (in && getline(&line, &room, in) > 0) {
        json_t *entry;

        idem__json_begin();
        entry = json_loads(line, 0, NULL);
        if (json_is_object(entry) && !idem__json_starved())
            keep(audit, entry);
        else
            json_decref(entry);
    }
    free(line);
    if (in)
        fclose(in);
}

/* The file of reveals is created with its first line. */
static int
open_files(struct audit *audit, const char *file)
{
    static const char *const endings[TRAILS] = {"", ".reveals"};

    for (int i = 0; i < TRAILS; i++) {
        struct trail *trail = &audit->trails[i];

        snprintf(trail->file, sizeof(trail->file), "%s%s", file, endings[i]);
        snprintf(trail->old, sizeof(trail->old), "%s.1", trail->file);
        read_back(audit, trail->old);
        read_back(audit, trail->file);
    }
    return open_file(&audit->trails[CHANGES]);
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
    self->max_bytes = max_bytes;
    for (int i = 0; i < TRAILS; i++)
        self->trails[i].fd = -1;
    error = file ? open_files(self, file) : 0;
    if (error) {
        idem__fail(err, IDEM_ERR_INVALID,
                   "the audit file %s: %s; name another one with --audit "
                   "FILE",
                   file, strerror(error));
        audit_close(self);
        return IDEM_ERR_INVALID;
    }
    *audit = self;
    return IDEM_OK;
}

void
audit_close(struct audit *audit)
{
    if (!audit)
        return;
    for (int i = 0; i < TRAILS; i++) {
        for (size_t n = 0; n < AUDIT_KEPT; n++)
            json_decref(audit->trails[i].kept[n]);
        close_file(&audit->trails[i]);
    }
    pthread_mutex_destroy(&audit->mutex);
    free(audit);
}

/* A device or a pipe gets both changes and reveals. */
static struct trail *
file_for(struct audit *audit, const json_t *entry)
{
    struct trail *changes = &audit->trails[CHANGES];

    return changes->regular ? &audit->trails[trail_of(entry)] : changes;
}

static void
log_line(const struct server_log *log, const struct line *line)
{
    const char *first = line->source->first;

    server_log(log, LOG_ALWAYS, "operator", LOG_TEXT("verb", line->verb),
               LOG_TEXT("who", line->source->who),
               LOG_TEXT("first", *first ? first : "-"),
               line->id.len > 0 ? LOG_KEY(line->scope, line->id)
                                : LOG_TEXT("key", "-"),
               LOG_TEXT("surface", line->surface),
               LOG_TEXT("from", line->source->from),
               LOG_TEXT("outcome", line->outcome),
               LOG_TEXT("verdict", line->verdict),
               LOG_TEXT("before", line->before), LOG_TEXT("after", line->after),
               LOG_BYTES("reason", line->reason));
}

static void
add_line(struct audit *audit, const struct server_log *log,
         const struct line *line)
{
    json_t *entry = line_json(line);
    int error = entry ? 0 : ENOMEM;
    const char *file = "";

    if (log)
        log_line(log, line);
    pthread_mutex_lock(&audit->mutex);
    if (entry && audit->trails[CHANGES].file[0]) {
        struct trail *trail = file_for(audit, entry);

        file = trail->file;
        error = append(trail, entry, audit->max_bytes);
    }
    if (entry)
        keep(audit, entry);
    pthread_mutex_unlock(&audit->mutex);
    if (error && log)
        server_log(log, LOG_ERROR, "audit-failed", LOG_TEXT("file", file),
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
