/*
 * verb.c - run one op and print its answer.
 */
#include "verb.h"

#include "../base/hex.h"
#include "../base/units.h"
#include "../remote/remote.h"
#include "../serve/core/rights.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Without a server, SETTLE watches an ended lease for at most this long, and a
 * little longer than the lease. */
#define WATCH_MOST_MS 61000
#define WATCH_MORE_MS 1000

/* ---- reading arguments ------------------------------------------------ */

int
cli_parse_key(const struct cli_syntax *syntax, int argc, char **argv,
              char ***args, struct idem_op *op)
{
    size_t count;
    int code = cli_parse(syntax, argc, argv, args, &count);

    if (code < 0) {
        op->scope = idem_text((*args)[0]);
        op->id = idem_text((*args)[1]);
    }
    return code;
}

int
cli_read_fence(const char *text, uint64_t *fence)
{
    char *end;

    *fence = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || *fence == 0 ||
        *fence > IDEM_FENCE_MAX)
        return cli_usage_error("\"%s\" is not a fence: give the number that "
                               "the start printed",
                               text);
    return -1;
}

int
cli_read_outcome(const char *text, enum idem_state *outcome)
{
    if (idem__state_parse(idem_text(text), outcome) &&
        (*outcome == IDEM_STATE_SUCCEEDED || *outcome == IDEM_STATE_FAILED))
        return -1;
    return cli_usage_error("\"%s\" is not an outcome: succeeded or failed",
                           text);
}

int
cli_read_hex(const char *what, const char *text, uint8_t *out, size_t len)
{
    return !text || idem__hex_read(text, strlen(text), out, len)
               ? -1
               : cli_usage_error("%s is %zu hex digits", what, 2 * len);
}

int
cli_read_kind(const char *text, enum idem_kind *kind)
{
    if (!text || idem__kind_parse(idem_text(text), kind))
        return -1;
    return cli_usage_error("\"%s\" is not a kind: raw, http or exec", text);
}

static int
read_type(const char *text, enum idem_type *type)
{
    if (!text || idem__type_parse(idem_text(text), type))
        return -1;
    return cli_usage_error("\"%s\" is not a type: request, token, lock or "
                           "worker",
                           text);
}

int
cli_check_time(const char *option, const int64_t *ms)
{
    return *ms == 0 ? cli_usage_error("%s must be at least 1ms", option) : -1;
}

/* ---- running ---------------------------------------------------------- */

/* An engine does not treat a lease as ended before it has watched it for its
 * full length, and the engine of this process has just started. If the record
 * is busy for that reason, returns how long it takes in ms; 0 if somebody holds
 * a running lease. */
static int64_t
watch_ms(struct idem_engine *engine, const struct idem_op *op)
{
    struct idem_op get = {
        .verb = IDEM_GET, .type = op->type, .scope = op->scope, .id = op->id};
    struct idem_answer answer = {0};
    struct idem__stats stats;
    int64_t ms = 0;

    if (idem__do_verb(engine, &get, false, &answer, NULL) == IDEM_OK &&
        answer.verdict == IDEM_V_RECORD) {
        const struct idem_record *r = answer.record;

        idem__stats(engine, &stats);
        if (r->lease_until > 0 && r->lease_until <= stats.now_ms)
            ms = r->lease_until - r->updated + WATCH_MORE_MS;
    }
    idem_answer_clear(&answer);
    return ms;
}

/* How much longer to wait. SETTLE is for records that nobody works on any more,
 * so it waits without --wait. */
static int64_t
patience_for_lease(const struct cli_verb *verb, struct idem_engine *engine,
                   const struct idem_op *op)
{
    int64_t ms = 0;
    bool waits;

    if (verb->patience_ms == 0 && op->wait_ms == 0 &&
        cli_store_url(&verb->where))
        ms = watch_ms(engine, op);
    waits = op->verb == IDEM_SETTLE && ms <= WATCH_MOST_MS;
    if (ms > 0 && waits)
        fprintf(stderr,
                "idem: the clock says that the lease is over; without a "
                "server, this command first watches the record for %lld s\n",
                (long long)(ms + 999) / 1000);
    else if (ms > 0)
        fprintf(stderr,
                "idem: the clock says that the lease is over, but without a "
                "server, this command must first watch the record as long as "
                "the lease was: give --wait %llds, or ask a server\n",
                (long long)(ms + 999) / 1000);
    return waits ? ms : 0;
}

/* Run the op once, or until it is no longer busy or the wait is over. */
static enum idem_status
run_patiently(const struct cli_verb *verb, struct idem_engine *engine,
              const struct idem_op *op, struct idem_answer *answer,
              struct idem_error *err)
{
    int64_t until = idem__mono_ms() + verb->patience_ms;
    enum idem_status status;
    bool looked = false;

    for (;;) {
        int64_t left = until - idem__mono_ms(), pause;
        struct timespec t;

        status = idem__do_verb(engine, op, false, answer, err);
        if (status == IDEM_OK && answer->verdict == IDEM_V_BUSY && !looked) {
            looked = true;
            until += patience_for_lease(verb, engine, op);
            left = until - idem__mono_ms();
        }
        if (status != IDEM_OK || answer->verdict != IDEM_V_BUSY || left <= 0)
            return status;
        pause = answer->retry_after_ms < left ? answer->retry_after_ms : left;
        pause = pause < 10 ? 10 : pause;
        t = (struct timespec){pause / 1000, pause % 1000 * 1000000};
        nanosleep(&t, NULL);
        idem_answer_clear(answer);
    }
}

/* A server keeps its own audit trail. Without a server this process writes it,
 * if the store is a journal, which has a place for it. */
static void
audit(const char *store, const struct idem_op *op, enum idem_status status,
      const struct idem_answer *answer)
{
    const struct passwd *user = getpwuid(getuid());
    struct audit_source source = {0};
    struct audit *trail = NULL;
    struct idem_error err;
    char file[4096] = "";

    if (store)
        audit_default_file(store, file, sizeof(file));
    if (!file[0])
        return;
    snprintf(source.who, sizeof(source.who), "%s",
             user ? user->pw_name : "unknown");
    snprintf(source.from, sizeof(source.from), "uid=%u pid=%d",
             (unsigned)getuid(), (int)getpid());
    if (audit_open(file, INT64_MAX, &trail, &err) == IDEM_OK)
        audit_add(trail, NULL,
                  &(struct audit_event){&source, "cli", op, status, answer});
    else
        fprintf(stderr, "idem: %s\n", err.text);
    audit_close(trail);
}

/* Say something about this record on standard error. */
static void
warn_of(const struct idem_op *op, const char *text)
{
    fputs("idem: ", stderr);
    cli_print_safe(stderr, op->scope);
    fputc(' ', stderr);
    cli_print_safe(stderr, op->id);
    fprintf(stderr, " %s\n", text);
}

/* The outcome was stored, but a result above max-result was left out. */
static bool
lost_result(const struct idem_op *op, const struct idem_answer *answer)
{
    return (answer->verdict == IDEM_V_OK ||
            answer->verdict == IDEM_V_SETTLED) &&
           op->result.len > 0 && !op->not_replayable &&
           (answer->record->flags & IDEM_FLAG_NOT_REPLAYABLE);
}

bool
cli_is_of_gateway(const struct idem_record *record)
{
    struct idem_bytes subject = record->subject;
    const char *text = subject.data;
    size_t len = 0;

    while (len < subject.len && text[len] >= 'A' && text[len] <= 'Z')
        len++;
    return len > 0 && len < subject.len && text[len] == ' ';
}

/* An HTTP response for a record that no gateway started, or a plain result for
 * one that a gateway started: what to say about it, or NULL. */
static const char *
odd_kind(const struct idem_op *op, const struct idem_record *record)
{
    bool http = op->kind == IDEM_KIND_HTTP;

    if (cli_is_of_gateway(record) == http)
        return NULL;
    return http ? "was not started by a gateway; its callers can read this "
                  "HTTP response only if they handle HTTP, and --result stores "
                  "a plain result for others"
                : "was started by a gateway; its client gets this result with "
                  "a status that the gateway chooses, and --http STATUS --body "
                  "VALUE stores a whole response";
}

/* A record of a worker whose lease is alive. */
static bool
is_running(struct idem_engine *engine, const struct idem_record *record)
{
    struct idem__stats stats;

    if (record->type != IDEM_TYPE_REQUEST ||
        record->state != IDEM_STATE_EXECUTING)
        return false;
    idem__stats(engine, &stats);
    return cli_doubt_ms(record, stats.now_ms) < 0;
}

/* What to know about a record before the op replaces or deletes it. */
struct sight {
    const char *odd; /* see odd_kind */
    bool running;
};

/* A store that does not respond to the GET would not respond to the op either,
 * and the caller would wait twice. */
static enum idem_status
look_before(struct idem_engine *engine, const struct idem_op *op,
            struct sight *before, struct idem_error *err)
{
    struct idem_op get = {
        .verb = IDEM_GET, .type = op->type, .scope = op->scope, .id = op->id};
    struct idem_answer answer = {0};
    struct idem_error why = {0};
    bool has_result = op->verb == IDEM_SETTLE &&
                      (op->kind == IDEM_KIND_HTTP || op->result.len > 0);
    enum idem_status status;

    *before = (struct sight){NULL, false};
    if (!has_result && op->verb != IDEM_FORGET)
        return IDEM_OK;
    status = idem__do_verb(engine, &get, false, &answer, &why);
    if (status == IDEM_OK && answer.verdict == IDEM_V_RECORD) {
        if (has_result)
            before->odd = odd_kind(op, answer.record);
        else
            before->running = is_running(engine, answer.record);
    }
    idem_answer_clear(&answer);
    return status == IDEM_ERR_UNAVAILABLE
               ? idem__fail(err, status, "%s", why.text)
               : IDEM_OK;
}

/* The callers may not get the result that was given. */
static void
warn_of_result(const struct idem_op *op, const struct idem_answer *answer,
               const char *odd)
{
    if (odd && answer->verdict == IDEM_V_SETTLED)
        warn_of(op, odd);
    if (op->verb == IDEM_SETTLE && op->outcome &&
        answer->verdict == IDEM_V_BUSY)
        warn_of(op, "is still executing: its lease has not ended. (A server "
                    "that was restarted watches each lease once more for its "
                    "full length.) Settle it when the lease is over, or let "
                    "the command wait for that with --wait TIME");
    if (lost_result(op, answer))
        warn_of(op, "has its outcome, but the result is larger than max-result "
                    "and was not kept: duplicates learn the outcome, and get "
                    "no result");
}

enum idem_status
cli_do_verb(const struct cli_verb *verb, struct idem_engine *engine,
            const struct idem_op *op, struct idem_answer *answer,
            struct idem_error *err)
{
    struct sight before;
    enum idem_status status = look_before(engine, op, &before, err);

    if (status == IDEM_OK)
        status = run_patiently(verb, engine, op, answer, err);
    if (server_op_operates(op))
        audit(cli_store_url(&verb->where), op, status, answer);
    if (status == IDEM_OK)
        warn_of_result(op, answer, before.odd);
    if (before.running && status == IDEM_OK && answer->verdict == IDEM_V_OK)
        warn_of(op, "was executing, and its lease had not ended: if its worker "
                    "is alive, the next request runs the work a second time");
    return status;
}

/* A request that was never started has had no attempt. (A token that was
 * issued and not used has none either, but it was a record before.) */
static bool
was_absent(struct idem_engine *engine, const struct idem_op *op)
{
    struct idem_op get = {
        .verb = IDEM_GET, .type = op->type, .scope = op->scope, .id = op->id};
    struct idem_answer answer = {0};
    bool absent =
        idem__do_verb(engine, &get, false, &answer, NULL) == IDEM_OK &&
        answer.verdict == IDEM_V_RECORD &&
        answer.record->type == IDEM_TYPE_REQUEST && answer.record->attempt == 0;

    idem_answer_clear(&answer);
    return absent;
}

/* A gateway's client expects an HTTP response, and an outcome is final.
 * Returns -1 to continue, else the exit code. */
static int
refuse_bare_result(const struct cli_verb *verb, struct idem_engine *engine,
                   const struct idem_op *op)
{
    struct idem_op get = {
        .verb = IDEM_GET, .type = op->type, .scope = op->scope, .id = op->id};
    struct idem_answer answer = {0};
    int code = -1;

    if (verb->bare_result &&
        idem__do_verb(engine, &get, false, &answer, NULL) == IDEM_OK &&
        answer.verdict == IDEM_V_RECORD &&
        answer.record->state == IDEM_STATE_EXECUTING &&
        cli_is_of_gateway(answer.record))
        code = cli_usage_error("\"%.*s\" was started by a gateway: give the "
                               "response with --http STATUS --header ... "
                               "--body ..., or add --kind raw to store the "
                               "bare result",
                               (int)op->id.len, (const char *)op->id.data);
    idem_answer_clear(&answer);
    return code;
}

/* An outcome for a mistyped id would be stored for a request that never came.
 * *missing: there is no record, and `answer` is the answer of GET. An error:
 * nobody knows whether there is one, so nothing may be stored. */
static enum idem_status
find_missing(const struct cli_verb *verb, struct idem_engine *engine,
             const struct idem_op *op, struct idem_answer *answer,
             bool *missing, struct idem_error *err)
{
    struct idem_op get = {
        .verb = IDEM_GET, .type = op->type, .scope = op->scope, .id = op->id};
    enum idem_status status;

    *missing = false;
    if (!verb->must_exist)
        return IDEM_OK;
    status = idem__do_verb(engine, &get, false, answer, err);
    err->status = status;
    cli_advise_on_store(&verb->where, &get, err);
    *missing = status == IDEM_OK && answer->verdict == IDEM_V_ABSENT;
    if (*missing)
        warn_of(op, "has no record, and nothing was stored: did you mistype "
                    "it? To store an outcome for a request that has not come "
                    "yet, add --absent");
    else
        idem_answer_clear(answer);
    return status;
}

/* SETTLE also decides requests that have not come, so that they cannot run
 * late. A mistyped id looks the same, so say it. */
static void
warn_of_absent(const struct idem_op *op)
{
    for (int i = 0; i < 2; i++) {
        fputs(i == 0 ? "idem: there was no record of " : "idem forget ",
              stderr);
        cli_print_safe(stderr, op->scope);
        fputc(' ', stderr);
        cli_print_safe(stderr, op->id);
        fputs(i == 0 ? ": this outcome is stored for a request that has not "
                       "come; "
                     : " removes it\n",
              stderr);
    }
}

/* The operator wanted to decide something that is decided. */
static void
warn_of_decided(const struct idem_op *op, const struct idem_answer *answer)
{
    enum idem_state state = answer->record->state;
    char text[256];
    int len = snprintf(text, sizeof(text),
                       "already has the outcome %s; nothing was changed",
                       idem_state_name(state));

    if (state != op->outcome)
        snprintf(text + len, sizeof(text) - (size_t)len,
                 ". An outcome is final. To correct it, stop the traffic of "
                 "this key, then run idem forget and idem settle --absent "
                 "--as %s",
                 idem_state_name(op->outcome));
    warn_of(op, text);
}

static struct cli_more
find_more(struct idem_engine *engine, const struct idem_op *op,
          const struct idem_answer *answer)
{
    struct cli_more more = {.doubt_ms = -1};
    struct idem__stats stats;

    if (op->verb == IDEM_GET && answer->verdict == IDEM_V_RECORD) {
        idem__stats(engine, &stats);
        more.doubt_ms = cli_doubt_ms(answer->record, stats.now_ms);
    } else if (answer->verdict == IDEM_V_SETTLED) {
        more.was_absent = was_absent(engine, op);
    }
    if (more.was_absent)
        warn_of_absent(op);
    if (op->verb == IDEM_SETTLE && op->outcome &&
        answer->verdict == IDEM_V_REPLAY)
        warn_of_decided(op, answer);
    if (op->verb == IDEM_SETTLE && !op->outcome &&
        answer->verdict == IDEM_V_DOUBT)
        warn_of(op, "is in doubt: find out whether the work was done, then "
                    "decide it with --as succeeded or --as failed");
    return more;
}

/* After LOST, the same command again finds out what was stored, or does what
 * was not; not for all verbs. */
static const char *
advice_for_lost(const struct idem_op *op)
{
    bool claims = op->verb == IDEM_BEGIN || op->verb == IDEM_LOCK;

    if (claims && !op->nonce)
        return "run the same command again; if it says \"busy\", that may be "
               "this claim: wait until its lease is over";
    if (op->verb == IDEM_ISSUE)
        return "run the same command again to get another token; nobody knows "
               "the lost one";
    if (op->verb == IDEM_REDEEM && !op->nonce)
        return "run the same command again; if it says \"duplicate\", this "
               "command may have used the token";
    return "run the same command again";
}

void
cli_advise_on_store(const struct cli_where *where, const struct idem_op *op,
                    struct idem_error *err)
{
    size_t len = strlen(err->text), room = sizeof(err->text) - len;
    bool of_store =
        cli_store_url(where) || strncmp(err->text, IDEM__REMOTE_STORE_FAILED,
                                        strlen(IDEM__REMOTE_STORE_FAILED)) == 0;

    if (!of_store || len == 0 || idem__refused_by_engine(err->text))
        return;
    if (err->status == IDEM_ERR_LOST)
        snprintf(err->text + len, room, "; %s%s",
                 strstr(err->text, "stored") ? "" : "it may have been stored: ",
                 advice_for_lost(op));
    else if (err->status == IDEM_ERR_UNAVAILABLE)
        snprintf(err->text + len, room, "; %stry again",
                 op->verb == IDEM_GET ? "" : "nothing was stored, ");
}

int
cli_run_verb(const struct cli_verb *verb, struct idem_op *op)
{
    struct idem_engine *engine = NULL;
    struct idem_answer answer = {0};
    struct cli_more more;
    struct cli_where where;
    struct idem_error err = {0};
    enum idem_status status;
    bool missing = false;
    int code = -1;

    if (verb->print && !cli_is_field(verb->print))
        return cli_usage_error("--print \"%s\" is not a field of the output",
                               verb->print);
    if (op->type == 0) {
        code = read_type(verb->type, &op->type);
        if (code >= 0)
            return code;
    }
    where = verb->where;
    where.must_exist = verb->must_exist || op->verb == IDEM_GET ||
                       op->verb == IDEM_FORGET || op->fence > 0;
    status = cli_engine_open(&where, &engine, &err);
    if (status == IDEM_OK)
        status = find_missing(verb, engine, op, &answer, &missing, &err);
    if (status == IDEM_OK && !missing)
        code = refuse_bare_result(verb, engine, op);
    if (code >= 0) {
        idem_close(engine);
        return code;
    }
    if (status == IDEM_OK && !missing) {
        status = cli_do_verb(verb, engine, op, &answer, &err);
        err.status = status;
        cli_advise_on_store(&verb->where, op, &err);
    }
    if (status != IDEM_OK) {
        err.status = status;
        code = cli_fail(&err);
    } else {
        code = cli_exit_verdict(answer.verdict);
        more = find_more(engine, op, &answer);
        cli_print_answer(&answer, &more, verb->print);
    }
    idem_answer_clear(&answer);
    idem_close(engine);
    return code;
}

/* ---- verbs without options of their own ---------------------------------- */

static int
read_lease(const char *text, int64_t *lease_ms)
{
    char flaw[IDEM__TIME_FLAW_LEN];

    if (!idem__units_parse(IDEM__UNIT_TIME, text, lease_ms))
        return cli_usage_error("the lease \"%s\" %s", text,
                               idem__time_flaw("lease", text, flaw));
    return *lease_ms > 0 ? -1 : cli_usage_error("a lease is at least 1ms");
}

int
cli_plain_verb(enum idem_verb which, const char *usage, const char *about,
               int argc, char **argv)
{
    struct cli_verb verb = {0};
    const char *reason = NULL, *fence = NULL;
    struct cli_option options[] = {CLI_VERB_OPTIONS(&verb),
                                   CLI_TYPE_OPTION(&verb),
                                   CLI_REASON_OPTION(&reason),
                                   CLI_FENCE_OPTION(&fence),
                                   {0}};
    size_t wanted = which == IDEM_RENEW ? 4 : which == IDEM_RELEASE ? 3 : 2;
    const struct cli_syntax syntax = {.usage = usage,
                                      .about = about,
                                      .options = options,
                                      .min_args = wanted,
                                      .max_args = wanted};
    struct idem_op op = {.verb = which};
    char **args;
    int code;

    if (which != IDEM_FORGET) /* only FORGET is an operator's verb */
        options[sizeof(options) / sizeof(options[0]) - 3] =
            (struct cli_option){0};
    code = cli_parse_key(&syntax, argc, argv, &args, &op);
    if (code < 0 && wanted > 2)
        code = cli_read_fence(args[2], &op.fence);
    if (code < 0 && fence)
        code = cli_read_fence(fence, &op.fence);
    if (code < 0 && wanted > 3)
        code = read_lease(args[3], &op.lease_ms);
    op.subject = idem_text(reason);
    return code >= 0 ? code : cli_run_verb(&verb, &op);
}
