/*
 * cmd_run.c - idem run: run any command at most once.
 *
 *   begin ── started ─▶ the command runs, the engine renews ─▶ finish
 *       └─── replay ──▶ the same output and the same exit status again
 *
 * Between begin and finish no other process runs the command. If this process
 * is killed, the lease ends; then a strict request is in doubt, and a loose one
 * may run again.
 */
#include "exec.h"
#include "verb.h"

#include "../engine/engine.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_ROOM 128 /* for the head of a stored result */
#define KEEP_DEFAULT (IDEM_RESULT_DEFAULT_MAX - HEAD_ROOM)
#define FINISH_MS 60000 /* how long finish is retried */

struct run_options {
    struct cli_verb verb;
    int64_t lease, ttl, wait, keep;
    bool loose, any_command;
    const char *subject;
    const char *scope, *id;
    char **command;
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
    struct idem_engine *engine;
    sigset_t before; /* the signal mask that the command gets */
};

/* ---- the outcome --------------------------------------------------------- */

static int
report(const struct exec_outcome *outcome, const struct idem_answer *answer,
       const struct idem_error *err)
{
    int code = exec_exit_code(outcome);

    if (err->status != IDEM_OK) {
        fprintf(stderr,
                "idem: the command ended with %d, but its outcome could not be "
                "recorded: %s\n"
                "idem: the request will be in doubt; settle it (idem help "
                "settle)\n",
                code, err->text);
        return cli_exit_status(err->status);
    }
    if (answer->verdict != IDEM_V_STARTED) {
        fprintf(stderr,
                "idem: the command ended with %d, but its claim was "
                "lost (%s)\n",
                code, idem_verdict_name(answer->verdict));
        return cli_exit_verdict(answer->verdict);
    }
    return code;
}

static int
finish(struct idem__run *claim, const struct exec_outcome *outcome,
       struct idem_answer *answer)
{
    bool good = !outcome->signalled && outcome->code == 0;
    enum idem_state state = good ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
    struct idem_error err = {0};
    struct idem_buf stored;

    idem_buf_init(&stored, IDEM_RESULT_MAX);
    if (exec_encode(outcome, &stored)) {
        err.status = idem__run_end(claim, state,
                                   (struct idem_bytes){stored.data, stored.len},
                                   answer, &err);
    } else {
        (void)idem__run_end(claim, IDEM_STATE_EXECUTING,
                            (struct idem_bytes){NULL, 0}, answer, NULL);
        (void)idem__fail(&err, IDEM_ERR_MEMORY,
                         "out of memory, so it is not recorded");
    }
    idem_buf_clear(&stored);
    return report(outcome, answer, &err);
}

/* The command was not started, so the next call may run it. */
static void
give_back(const struct run_options *run, struct idem__run *claim,
          const char *fence, struct idem_answer *answer)
{
    if (idem__run_end(claim, IDEM_STATE_FREE, (struct idem_bytes){NULL, 0},
                      answer, NULL) == IDEM_OK)
        return;
    fputs("idem: the command was not run, but its claim may not have been "
          "released: before a retry, run idem release",
          stderr);
    cli_print_where(stderr, &run->verb.where);
    fputs(run->scope[0] == '-' || run->id[0] == '-' ? " -- " : " ", stderr);
    cli_print_quoted(stderr, run->scope);
    fputc(' ', stderr);
    cli_print_quoted(stderr, run->id);
    fprintf(stderr, " %s\n", fence);
}

static int
execute(struct run_options *run, struct idem__run *claim,
        struct idem_answer *answer)
{
    char fence[32];
    const struct idem_setting settings[] = {{"IDEM_SCOPE", run->scope},
                                            {"IDEM_ID", run->id},
                                            {"IDEM_FENCE", fence}};
    struct exec_outcome outcome;
    struct idem_error err = {0};
    int code;

    snprintf(fence, sizeof(fence), "%llu",
             (unsigned long long)answer->record->fence);
    exec_outcome_init(&outcome);
    exec_hold_signals(NULL); /* until the outcome is recorded */
    idem__run_patience(claim, FINISH_MS);
    if (exec_run(run->command, settings, 3, (size_t)run->keep, &run->before,
                 &outcome, &err) == IDEM_OK) {
        code = finish(claim, &outcome, answer);
    } else {
        fprintf(stderr, "idem: %s\n", err.text);
        give_back(run, claim, fence, answer);
        code = outcome.code ? outcome.code : CLI_FAILED;
    }
    exec_outcome_clear(&outcome);
    return code;
}

/* ---- a replay ------------------------------------------------------------ */

static int
replay(const struct idem_record *record)
{
    struct exec_stored stored;

    if (record->kind != IDEM_KIND_EXEC ||
        (record->flags & IDEM_FLAG_NOT_REPLAYABLE) ||
        !exec_decode(record->result, &stored)) {
        fprintf(stderr,
                "idem: this request was %s before, and no output of a command "
                "is stored\n",
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
refuse(const struct run_options *run, const struct idem_answer *answer)
{
    static const char *const reasons[IDEM__VERDICT_COUNT] = {
        [IDEM_V_BUSY] = "is running right now; give --wait TIME to wait for it",
        [IDEM_V_DOUBT] = "was started, and it is unknown whether it was done; "
                         "find out, then settle it (idem help settle)",
        [IDEM_V_MISMATCH] =
            "was used for another command; if this is a retry, give exactly "
            "the first command, or --any-command if the command may differ, "
            "because with a new id it could run twice",
    };
    const char *reason = reasons[answer->verdict];

    if (cli_json)
        cli_print_answer(answer, NULL, NULL);
    fprintf(stderr, "idem: %s %s %s\n", run->scope, run->id,
            reason ? reason : idem_verdict_name(answer->verdict));
    return cli_exit_verdict(answer->verdict);
}

/* ---- the command line ---------------------------------------------------- */

/* Two commands are the same if they have the same words in the same order. */
static void
make_fingerprint(struct run_options *run)
{
    crypto_generichash_state state;

    crypto_generichash_init(&state, NULL, 0, IDEM_FINGERPRINT_LEN);
    crypto_generichash_update(&state, (const uint8_t *)"idem run", 9);
    for (char **word = run->command; *word; word++)
        crypto_generichash_update(&state, (const uint8_t *)*word,
                                  strlen(*word) + 1);
    crypto_generichash_final(&state, run->fingerprint, IDEM_FINGERPRINT_LEN);
}

/* A result larger than the limit of the server or the store is not kept at all,
 * and the exit status would be lost with it. */
static void
limit_output(struct run_options *run)
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
begin(struct run_options *run)
{
    const struct idem_op op = {.verb = IDEM_BEGIN,
                               .type = IDEM_TYPE_REQUEST,
                               .scope = idem_text(run->scope),
                               .id = idem_text(run->id),
                               .mode = run->loose ? IDEM_LOOSE : IDEM_STRICT,
                               .kind = IDEM_KIND_EXEC,
                               .fingerprint =
                                   run->any_command ? NULL : run->fingerprint,
                               .lease_ms = cli_ms_or_default(run->lease),
                               .ttl_ms = cli_ms_or_default(run->ttl),
                               .wait_ms = run->wait,
                               .subject = idem_text(run->subject)};
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    struct idem__run *claim;
    int code;

    make_fingerprint(run);
    limit_output(run);
    err.status = idem__run_begin(run->engine, &op, &claim, &answer, &err);
    if (err.status != IDEM_OK) {
        cli_advise_on_store(&run->verb.where, &op, &err);
        return cli_fail(&err);
    }
    if (claim)
        code = execute(run, claim, &answer);
    else if (answer.verdict == IDEM_V_REPLAY)
        code = replay(answer.record);
    else
        code = refuse(run, &answer);
    idem_answer_clear(&answer);
    return code;
}

static int
check(struct run_options *run)
{
    int code;

    if ((code = cli_check_time("--lease", &run->lease)) >= 0 ||
        (code = cli_check_time("--ttl", &run->ttl)) >= 0)
        return code;
    if (run->lease != CLI_UNSET_MS && run->lease < 100)
        return cli_usage_error("run: --lease must be at least 100ms, so that "
                               "it can be renewed in time");
    if (run->keep > IDEM_RESULT_MAX - HEAD_ROOM)
        return cli_usage_error("run: --keep must be at most %d bytes",
                               IDEM_RESULT_MAX - HEAD_ROOM);
    return -1;
}

static int
run_it(struct run_options *run)
{
    struct idem_error err = {0};
    int code;

    exec_hold_signals(&run->before);
    cli_files_note();
    err.status = cli_engine_open(&run->verb.where, &run->engine, &err);
    if (run->wait > 0)
        exec_let_signals(&run->before); /* signals may interrupt the wait */
    code = err.status == IDEM_OK ? begin(run) : cli_fail(&err);
    idem_close(run->engine);
    return code;
}

int
cli_run(int argc, char **argv)
{
    struct run_options run = {
        .lease = CLI_UNSET_MS, .ttl = CLI_UNSET_MS, .keep = KEEP_DEFAULT};
    const struct cli_option options[] = {
        CLI_WHERE_OPTIONS(&run.verb.where),
        {"lease", 'l', CLI_MS, &run.lease, "TIME",
         "how long the claim stays after this process died "
         "(30s); renewed every third of it"},
        CLI_TTL_OPTION(&run.ttl),
        {"wait", 'w', CLI_MS, &run.wait, "TIME",
         "if it is running elsewhere, wait this long for its "
         "output"},
        CLI_LOOSE_OPTION(&run.loose),
        {"keep", 0, CLI_SIZE, &run.keep, "SIZE",
         "how much output is kept for duplicates; default 1m"},
        {"any-command", 0, CLI_FLAG, &run.any_command, NULL,
         "do not check that the command is the same"},
        CLI_SUBJECT_OPTION(&run.subject),
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "run SCOPE ID [options] -- COMMAND [ARGUMENT...]",
        .about =
            "Run a command at most once. A second call with the same SCOPE and "
            "ID does not run it, but prints the same output and exits with the "
            "same code. The command has IDEM_SCOPE, IDEM_ID and IDEM_FENCE in "
            "its environment. If it was not run and there is no outcome to "
            "repeat, the exit code is busy (11), doubt (12) or mismatch (13).",
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
