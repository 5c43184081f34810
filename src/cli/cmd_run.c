/*
 * cmd_run.c - idem run: any command, at most once.
 *
 *   begin ── started ─▶ the command runs, a thread renews ─▶ finish
 *       └─── replay ──▶ the same output and the same exit status again
 *
 * Between begin and finish nobody else runs it. If this process is killed, the
 * lease ends: strict comes into doubt, loose may run again.
 */
#include "exec.h"
#include "verb.h"

#include "../engine/engine.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEAD_ROOM 128 /* of a stored result, in front of the output */
#define KEEP_DEFAULT (IDEM_RESULT_DEFAULT_MAX - HEAD_ROOM)
#define FINISH_MS 60000 /* how long finish is tried again */

struct run {
    struct cli_verb verb;
    int64_t lease, ttl, wait, keep;
    bool loose, any_command;
    const char *subject;
    const char *scope, *id;
    char **command;
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
    uint8_t nonce[IDEM_NONCE_LEN];
    struct idem_engine *engine;
    uint64_t fence;
    sigset_t before; /* the signal mask that the command gets */

    pthread_mutex_t lock; /* guards the link and what follows */
    pthread_cond_t stir;
    bool over, lost;
};

/* ---- keeping the claim --------------------------------------------------- */

static struct idem_op
op_on(const struct run *run, enum idem_verb verb)
{
    return (struct idem_op){.verb = verb,
                            .type = IDEM_TYPE_REQUEST,
                            .scope = idem_text(run->scope),
                            .id = idem_text(run->id),
                            .fence = run->fence,
                            .lease_ms = cli_ms_or_default(run->lease),
                            .mode = run->loose ? IDEM_LOOSE : IDEM_STRICT};
}

/* Under the lock. Milliseconds until the next time. */
static int64_t
renew(struct run *run, int64_t third_ms, bool *told)
{
    const struct idem_op op = op_on(run, IDEM_RENEW);
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    enum idem_status status = idem_do(run->engine, &op, &answer, &err);

    if (status != IDEM_OK) {
        if (!*told)
            fprintf(stderr,
                    "idem: the claim could not be renewed (%s); trying on\n",
                    err.text);
        *told = true;
        return third_ms < 1000 ? third_ms : 1000;
    }
    if (answer.verdict == IDEM_V_STALE) {
        fprintf(stderr,
                "idem: the claim is lost: it was settled, or somebody took "
                "over; the command goes on, its outcome will not count\n");
        run->lost = true;
    }
    *told = false;
    idem_answer_clear(&answer);
    return third_ms;
}

static void *
keep_claim(void *arg)
{
    struct run *run = arg;
    int64_t lease = cli_ms_or_default(run->lease);
    int64_t third_ms = (lease ? lease : IDEM_LEASE_DEFAULT_MS) / 3;
    struct timespec next = idem__deadline(third_ms * 1000);
    bool told = false;

    pthread_mutex_lock(&run->lock);
    while (!run->over && !run->lost) {
        if (pthread_cond_timedwait(&run->stir, &run->lock, &next) == 0)
            continue;
        if (!run->over)
            next = idem__deadline(renew(run, third_ms, &told) * 1000);
    }
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

/* ---- the outcome --------------------------------------------------------- */

/* Try again while the store or the server is away: what was done must not be
 * forgotten. The claim is kept alive meanwhile. A BEGIN that surely was not
 * stored need not be tried again; one whose answer was lost must be, with the
 * same nonce, or nobody would ever know that nothing was run. */
static enum idem_status
run_until_stored(struct run *run, const struct idem_op *op,
                 struct idem_answer *answer, struct idem_error *err)
{
    int64_t pause_ms = 100, waited_ms = 0;
    enum idem_status status;
    bool lost = false;

    for (;;) {
        struct timespec pause;

        pthread_mutex_lock(&run->lock);
        status = idem_do(run->engine, op, answer, err);
        pthread_mutex_unlock(&run->lock);
        if (status == IDEM_OK || status == IDEM_ERR_INVALID ||
            (op->verb == IDEM_BEGIN && status != IDEM_ERR_LOST && !lost) ||
            waited_ms >= FINISH_MS)
            return status;
        lost |= status == IDEM_ERR_LOST;
        pause = (struct timespec){pause_ms / 1000, pause_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
        waited_ms += pause_ms;
        pause_ms = pause_ms < 2000 ? pause_ms * 2 : 2000;
    }
}

static enum idem_status
store_outcome(struct run *run, const struct exec_outcome *outcome,
              struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op op = op_on(run, IDEM_FINISH);
    bool good = !outcome->signalled && outcome->code == 0;
    enum idem_status status;
    struct idem_buf stored;

    idem_buf_init(&stored, IDEM_RESULT_MAX);
    op.outcome = good ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
    op.kind = IDEM_KIND_EXEC;
    if (exec_encode(outcome, &stored)) {
        op.result = (struct idem_bytes){stored.data, stored.len};
        status = run_until_stored(run, &op, answer, err);
    } else {
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    idem_buf_clear(&stored);
    return status;
}

static int
finish(struct run *run, struct exec_outcome *outcome)
{
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    int code = exec_exit_code(outcome);

    err.status = store_outcome(run, outcome, &answer, &err);
    if (err.status != IDEM_OK) {
        fprintf(stderr,
                "idem: the command ended with %d, but that could not be "
                "recorded: %s\nidem: it will be in doubt; settle it\n",
                code, err.text);
        return cli_exit_status(err.status);
    }
    if (answer.verdict != IDEM_V_OK) {
        fprintf(stderr,
                "idem: the command ended with %d, but its claim was "
                "lost (%s)\n",
                code, idem_verdict_name(answer.verdict));
        code = cli_exit_verdict(answer.verdict);
    }
    idem_answer_clear(&answer);
    return code;
}

static void
release(struct run *run)
{
    const struct idem_op op = op_on(run, IDEM_RELEASE);
    struct idem_answer answer = {0};
    struct idem_error err = {0};

    if (run_until_stored(run, &op, &answer, &err) == IDEM_OK)
        idem_answer_clear(&answer);
}

static int
execute(struct run *run)
{
    char fence[32];
    const struct idem_setting settings[] = {{"IDEM_SCOPE", run->scope},
                                            {"IDEM_ID", run->id},
                                            {"IDEM_FENCE", fence}};
    struct exec_outcome outcome;
    struct idem_error err = {0};
    pthread_t keeper;
    bool kept;
    int code;

    snprintf(fence, sizeof(fence), "%llu", (unsigned long long)run->fence);
    exec_outcome_init(&outcome);
    exec_hold_signals(NULL); /* until the outcome is recorded */
    kept = pthread_create(&keeper, NULL, keep_claim, run) == 0;
    if (!kept)
        fprintf(stderr, "idem: no thread to keep the claim alive\n");
    if (exec_run(run->command, settings, 3, (size_t)run->keep, &run->before,
                 &outcome, &err) == IDEM_OK) {
        code = finish(run, &outcome);
    } else {
        fprintf(stderr, "idem: %s\n", err.text);
        release(run); /* nothing was done */
        code = outcome.code ? outcome.code : CLI_FAILED;
    }
    pthread_mutex_lock(&run->lock);
    run->over = true;
    pthread_cond_signal(&run->stir);
    pthread_mutex_unlock(&run->lock);
    if (kept)
        pthread_join(keeper, NULL);
    exec_outcome_clear(&outcome);
    return code;
}

/* ---- a repeat ------------------------------------------------------------ */

static int
replay(const struct idem_record *record)
{
    struct exec_stored stored;

    if (record->kind != IDEM_KIND_EXEC ||
        (record->flags & IDEM_FLAG_NOT_REPLAYABLE) ||
        !exec_decode(record->result, &stored)) {
        fprintf(stderr,
                "idem: this was %s before, without a command's output\n",
                record->flags & IDEM_FLAG_SETTLED ? "settled" : "finished");
        return cli_exit_verdict(IDEM_V_REPLAY);
    }
    fwrite(stored.out.data, 1, stored.out.len, stdout);
    fflush(stdout);
    fwrite(stored.err.data, 1, stored.err.len, stderr);
    if (stored.dropped > 0)
        fprintf(stderr, "idem: %llu bytes of output were not kept\n",
                (unsigned long long)stored.dropped);
    return stored.signalled ? 128 + stored.code : stored.code;
}

static int
refuse(const struct run *run, const struct idem_answer *answer)
{
    static const char *const reasons[IDEM__VERDICT_COUNT] = {
        [IDEM_V_BUSY] = "is being run right now; --wait TIME waits for it",
        [IDEM_V_DOUBT] = "was begun and nobody knows whether it was done: "
                         "look, then settle it (idem help settle)",
        [IDEM_V_MISMATCH] = "was used for another command; --any-command "
                            "does not look at the command",
    };
    const char *reason = reasons[answer->verdict];

    if (cli_json)
        cli_print_answer(answer, NULL);
    fprintf(stderr, "idem: %s %s %s\n", run->scope, run->id,
            reason ? reason : idem_verdict_name(answer->verdict));
    return cli_exit_verdict(answer->verdict);
}

/* ---- the command line ---------------------------------------------------- */

/* The same words in the same order are the same command. */
static void
make_fingerprint(struct run *run)
{
    crypto_generichash_state state;

    crypto_generichash_init(&state, NULL, 0, IDEM_FINGERPRINT_LEN);
    crypto_generichash_update(&state, (const uint8_t *)"idem run", 9);
    for (char **word = run->command; *word; word++)
        crypto_generichash_update(&state, (const uint8_t *)*word,
                                  strlen(*word) + 1);
    crypto_generichash_final(&state, run->fingerprint, IDEM_FINGERPRINT_LEN);
}

/* A result that is larger than the server or the store takes is not kept at
 * all, and the status would go with it. To be asked before there is a claim,
 * for nothing keeps that alive until its command runs. */
static void
limit_output(struct run *run)
{
    struct idem__stats stats;
    size_t room;

    idem__stats(run->engine, &stats);
    room = stats.max_result;
    room = room > HEAD_ROOM ? room - HEAD_ROOM : 0;
    if ((size_t)run->keep > room)
        run->keep = (int64_t)room;
}

static int
begin(struct run *run)
{
    struct idem_op op = op_on(run, IDEM_BEGIN);
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    int code;

    make_fingerprint(run);
    randombytes_buf(run->nonce, sizeof(run->nonce));
    op.fingerprint = run->any_command ? NULL : run->fingerprint;
    op.nonce = run->nonce;
    op.ttl_ms = cli_ms_or_default(run->ttl);
    op.wait_ms = run->wait;
    op.subject = idem_text(run->subject);
    limit_output(run);
    err.status = run_until_stored(run, &op, &answer, &err);
    if (err.status != IDEM_OK)
        return cli_fail(&err);
    if (answer.verdict == IDEM_V_STARTED) {
        run->fence = answer.record->fence;
        code = execute(run);
    } else if (answer.verdict == IDEM_V_REPLAY) {
        code = replay(answer.record);
    } else {
        code = refuse(run, &answer);
    }
    idem_answer_clear(&answer);
    return code;
}

static int
check(struct run *run)
{
    int code;

    if ((code = cli_check_time("--lease", &run->lease)) >= 0 ||
        (code = cli_check_time("--ttl", &run->ttl)) >= 0)
        return code;
    if (run->lease != CLI_UNSET_MS && run->lease < 100)
        return cli_usage_error("a lease of at least 100ms is needed to renew "
                               "it in time");
    if (run->keep > IDEM_RESULT_MAX - HEAD_ROOM)
        return cli_usage_error("--keep can be at most %d bytes",
                               IDEM_RESULT_MAX - HEAD_ROOM);
    return -1;
}

static int
run_it(struct run *run)
{
    struct idem_error err = {0};
    pthread_condattr_t attr;
    int code;

    pthread_mutex_init(&run->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&run->stir, &attr);
    pthread_condattr_destroy(&attr);
    exec_hold_signals(&run->before);
    cli_files_note();
    err.status = cli_engine_open(&run->verb.where, &run->engine, &err);
    if (run->wait > 0)
        exec_let_signals(&run->before); /* who waits may be interrupted */
    code = err.status == IDEM_OK ? begin(run) : cli_fail(&err);
    idem_close(run->engine);
    pthread_cond_destroy(&run->stir);
    pthread_mutex_destroy(&run->lock);
    return code;
}

int
cli_run(int argc, char **argv)
{
    struct run run = {
        .lease = CLI_UNSET_MS, .ttl = CLI_UNSET_MS, .keep = KEEP_DEFAULT};
    const struct cli_option options[] = {
        CLI_WHERE_OPTIONS(&run.verb.where),
        {"lease", 'l', CLI_MS, &run.lease, "TIME",
         "how long the claim outlives this process (30s);\n"
         "renewed every third of it"},
        {"ttl", 0, CLI_MS, &run.ttl, "TIME",
         "how long the outcome is kept; default 24h"},
        {"wait", 'w', CLI_MS, &run.wait, "TIME",
         "while another runs it, wait this long for its output"},
        {"loose", 0, CLI_FLAG, &run.loose, NULL,
         "only success counts: a failure may be tried again"},
        {"keep", 0, CLI_SIZE, &run.keep, "SIZE",
         "how much output is kept for repeats; default 1m"},
        {"any-command", 0, CLI_FLAG, &run.any_command, NULL,
         "do not compare the command with the first one's"},
        {"subject", 0, CLI_TEXT, &run.subject, "TEXT", "a label for people"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "run SCOPE ID [options] -- COMMAND [ARGUMENT...]",
        .about = "Run a command at most once. A repeat with the same SCOPE and "
                 "ID does not run\nit: it prints the same output and exits "
                 "with the same status. The command\nfinds IDEM_SCOPE, IDEM_ID "
                 "and IDEM_FENCE in its environment. Where it is not\nrun and "
                 "there is no outcome to repeat: busy (11), doubt (12), "
                 "mismatch (13).",
        .options = options,
        .min_args = 3,
        .max_args = (size_t)-1,
        .stop_at = 3,
    };
    char **args;
    size_t count;
    int code = cli_parse(&syntax, argc, argv, &args, &count);

    if (code < 0)
        code = check(&run);
    if (code >= 0)
        return code;
    args[count] = NULL;
    run.scope = args[0];
    run.id = args[1];
    run.command = args + 2;
    return run_it(&run);
}
