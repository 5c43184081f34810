/*
 * exit.c - exit codes: one for each verdict and each error.
 *
 * The codes are part of the interface, because scripts branch on them. 0 is the
 * desired outcome; verdicts begin at 10, errors at 20.
 */
#include "cli.h"

#include "../record/record.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct exit_row {
    int code;
    const char *word, *text;
    const char *next; /* what a person can do about it */
};

static const struct exit_row verdicts[IDEM__VERDICT_COUNT] = {
    [IDEM_V_STARTED] = {0, "started", "do the work now", NULL},
    [IDEM_V_OK] = {0, "ok", "done", NULL},
    [IDEM_V_SETTLED] = {0, "settled", "the outcome is decided now", NULL},
    [IDEM_V_RECORD] = {0, "record", "the record exists", NULL},
    [IDEM_V_ISSUED] = {0, "issued", "the token exists now", NULL},
    [IDEM_V_REDEEMED] = {0, "redeemed", "this call used the token", NULL},
    [IDEM_V_REPLAY] = {10, "replay", "done before; prints the stored result",
                       NULL},
    [IDEM_V_BUSY] =
        {11, "busy", "another caller works on it; try again later",
         "another caller works on it: try again later, or wait: --wait 30s"},
    [IDEM_V_DOUBT] =
        {12, "doubt", "the lease is over, and the outcome is unknown",
         "nobody knows whether the work was done: find it out, then "
         "idem settle SCOPE ID --as succeeded or --as failed"},
    [IDEM_V_MISMATCH] =
        {13, "mismatch", "this id was used for a different request",
         "this id was used with other content: if this is a retry, send "
         "exactly the first content again, because with a new id it could run "
         "twice; use a new id only for a new request"},
    [IDEM_V_FINISHED] =
        {14, "finished", "this fence finished it with another outcome",
         "it was finished before with another outcome, which stays"},
    [IDEM_V_STALE] =
        {15, "stale", "the record is not held under this fence",
         "this fence does not hold the record: it was never started, or "
         "was finished, settled or taken over; idem get shows it"},
    [IDEM_V_ABSENT] =
        {16, "absent", "there is no such record",
         "there is no such record: idem find ID searches all scopes"},
    [IDEM_V_DUPLICATE] = {17, "duplicate", "redeemed before",
                          "this token was used before: issue a new one"},
    [IDEM_V_UNKNOWN] =
        {18, "unknown", "there is no such token",
         "the token was mistyped, belongs to another subject or has "
         "expired"},
};

static const int errors[IDEM__STATUS_COUNT] = {
    [IDEM_OK] = CLI_OK,          [IDEM_ERR_INVALID] = CLI_USAGE,
    [IDEM_ERR_UNAVAILABLE] = 20, [IDEM_ERR_LOST] = 21,
    [IDEM_ERR_OVERLOADED] = 22,  [IDEM_ERR_FULL] = 23,
    [IDEM_ERR_CLOSED] = 24,      [IDEM_ERR_CORRUPT] = 25,
    [IDEM_ERR_UNSUPPORTED] = 26, [IDEM_ERR_MEMORY] = 27,
    [IDEM_ERR_TIMEOUT] = 28,     [IDEM_ERR_INTERNAL] = 29,
};

int
cli_exit_verdict(enum idem_verdict verdict)
{
    assert((unsigned)verdict < IDEM__VERDICT_COUNT);
    return verdicts[verdict].code;
}

const char *
cli_advice(enum idem_verdict verdict)
{
    assert((unsigned)verdict < IDEM__VERDICT_COUNT);
    return verdicts[verdict].next;
}

int
cli_exit_status(enum idem_status status)
{
    assert((unsigned)status < IDEM__STATUS_COUNT);
    return errors[status];
}

/* The text is made safe, because it may quote input of somebody else. */
int
cli_fail(const struct idem_error *err)
{
    const char *text = err->text[0] ? err->text : idem_status_text(err->status);
    json_t *object;

    if (cli_json) {
        object = json_pack("{s:s}", "error", idem_status_name(err->status));
        cli_json_bytes(object, "text", idem_text(text));
        cli_json_print(object);
    } else {
        fputs("idem: ", stderr);
        cli_print_safe(stderr, idem_text(text));
        fputc('\n', stderr);
    }
    return cli_exit_status(err->status);
}

int
cli_error(enum idem_status status, const char *format, ...)
{
    struct idem_error err = {.status = status};
    va_list args;

    va_start(args, format);
    vsnprintf(err.text, sizeof(err.text), format, args);
    va_end(args);
    return cli_fail(&err);
}

void
cli_print_exit_codes(void)
{
    printf("exit codes of idem:\n"
           "\n"
           "   0  it worked: started, ok, settled, record, issued, redeemed\n"
           "   1  it failed; the message says why\n"
           "   2  the command line is wrong, or a value in it; or the server "
           "refuses the\n"
           "      credential: NOAUTH (none was sent), WRONGPASS (wrong or "
           "removed) or\n"
           "      NOPERM (not enough rights, or a second person must ask too)\n"
           "\n"
           "  verdicts\n");
    for (int code = 10; code < 20; code++) {
        for (size_t i = 0; i < IDEM__VERDICT_COUNT; i++) {
            if (verdicts[i].code == code)
                printf("  %2d  %-12s %s\n", code, verdicts[i].word,
                       verdicts[i].text);
        }
    }
    printf("\n  errors\n");
    for (size_t i = IDEM_ERR_UNAVAILABLE; i < IDEM__STATUS_COUNT; i++)
        printf("  %2d  %-12s %s%s\n", errors[i],
               idem_status_name((enum idem_status)i),
               idem_status_text((enum idem_status)i),
               i == IDEM_ERR_CORRUPT || i == IDEM_ERR_INTERNAL
                   ? "; the outcome is unknown"
                   : "");
    printf("\n"
           "After 21 (lost) the change may or may not have been stored: run "
           "the same command\n"
           "again. After 25 (corrupt) and 29 (internal) the outcome is unknown "
           "too: look at\n"
           "the record and at the log first. After the other errors nothing "
           "was stored.\n");
}
