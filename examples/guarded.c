/*
 * guarded.c - a resource that checks the fence, and a holder that was paused.
 *
 *   $ build/examples/guarded journal:guarded-journal
 *
 * Ann takes the lock and is "paused" past her lease; Bob takes it and writes;
 * Ann wakes up and writes too. The resource refuses her.
 */
#include <idem/idem.h>
#include <idem/lock.h>
#include <stdio.h>
#include <unistd.h>

static uint64_t highest_fence;

/* Remember the highest fence, and refuse a lower one. */
static void
guarded_write(const char *who, uint64_t fence)
{
    bool accepted = fence >= highest_fence;

    if (accepted)
        highest_fence = fence;
    printf("%s writes: %s\n", who, accepted ? "accepted" : "REFUSED");
}

int
main(int argc, char **argv)
{
    struct idem_op ann = {.verb = IDEM_LOCK,
                          .scope = idem_text(IDEM_LOCK_SCOPE),
                          .id = idem_text("file"),
                          .subject = idem_text("ann"),
                          .lease_ms = 200};
    struct idem_engine *engine;
    struct idem_answer answer;
    struct idem_lock *bob;
    struct idem_error err;

    if (idem_open(argc > 1 ? argv[1] : "memory:", NULL, &engine, &err) ||
        idem_do(engine, &ann, &answer, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    guarded_write("ann", answer.record->fence);
    usleep(500000); /* paused: nobody renews her lease */
    if (idem_lock_take(engine, "file", NULL, &bob, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    guarded_write("bob", idem_lock_fence(bob));
    guarded_write("ann", answer.record->fence);
    idem_answer_clear(&answer);
    idem_lock_give(bob, NULL, NULL);
    idem_close(engine);
    return 0;
}
