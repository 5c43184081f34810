/*
 * once.c - a piece of work that runs once, however often this is called:
 *   $ ./once ~/shop order-7      ran: 1 sandwich for order-7
 *   $ ./once ~/shop order-7      replayed: 1 sandwich for order-7
 */
#include <idem/idem.h>
#include <stdio.h>

static char text[300];

static enum idem_state
make_sandwich(void *id, uint64_t fence, struct idem_bytes *result)
{
    (void)fence; /* for resources that check who holds the record */
    snprintf(text, sizeof(text), "1 sandwich for %s", (const char *)id);
    *result = idem_text(text);
    return IDEM_STATE_SUCCEEDED;
}

int
main(int argc, char **argv)
{
    struct idem_engine *engine;
    struct idem_answer answer;
    struct idem_error err;
    char url[4096];

    if (argc != 3)
        return fprintf(stderr, "usage: once FOLDER ID\n"), 2;
    snprintf(url, sizeof(url), "journal:%s", argv[1]);
    struct idem_op op = {.scope = idem_text("shop"), .id = idem_text(argv[2])};
    if (idem_open(url, NULL, &engine, &err) != IDEM_OK ||
        idem_run(engine, &op, make_sandwich, argv[2], &answer, &err) != IDEM_OK)
        return fprintf(stderr, "once: %s\n", err.text), 1;
    bool ran = answer.verdict == IDEM_V_STARTED;
    bool done = ran || answer.verdict == IDEM_V_REPLAY;
    if (done)
        printf("%s: %.*s\n", ran ? "ran" : "replayed",
               (int)answer.record->result.len,
               (char *)answer.record->result.data);
    else /* busy: come again later; doubt: look, then `idem settle` it */
        fprintf(stderr, "once: %s: %s\n", argv[2],
                idem_verdict_name(answer.verdict));
    idem_answer_clear(&answer);
    idem_close(engine);
    return done ? 0 : 1;
}
