/*
 * consume_bench.c - how fast a source is consumed, with a record or without.
 *
 *   consume_bench SOURCE COUNT STORE     STORE "none": no record at all
 *
 * The first and the last tenth are not measured: everything is under way then.
 */
#include "../src/store/store.h"

#include <idem/consume.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_ullong handled;
static unsigned long long wanted;
static struct idem_consumer *consumer;
static _Atomic int64_t first_us, last_us;

static enum idem_handled
handle(void *arg, const struct idem_message *message, struct idem_error *err)
{
    unsigned long long n = atomic_fetch_add(&handled, 1) + 1;
    int64_t now_us = idem__system_clocks.boot_us(NULL);

    (void)arg;
    (void)message;
    (void)err;
    if (n == wanted / 10)
        atomic_store(&first_us, now_us);
    if (n == wanted - wanted / 10)
        atomic_store(&last_us, now_us);
    if (n == wanted)
        idem_consume_stop(consumer);
    return IDEM_HANDLED;
}

int
main(int argc, char **argv)
{
    struct idem_consume_options options = {
        .handle = handle, .concurrency = 64, .prefetch = 512};
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};

    if (argc != 4) {
        fprintf(stderr, "usage: consume_bench SOURCE COUNT STORE\n");
        return 2;
    }
    options.source = argv[1];
    options.own_record = strcmp(argv[3], "none") == 0;
    wanted = strtoull(argv[2], NULL, 10);
    if (wanted < 100) {
        fprintf(stderr, "consume_bench: COUNT is 100 or more\n");
        return 2;
    }
    if ((!options.own_record &&
         idem_open(argv[3], NULL, &engine, &err) != IDEM_OK) ||
        idem_consume_open(engine, &options, &consumer, &err) != IDEM_OK ||
        idem_consume_run(consumer, &err) != IDEM_OK) {
        fprintf(stderr, "consume_bench: %s\n", err.text);
        return 1;
    }
    printf("%.0f messages/s\n", (double)(wanted - wanted / 10 * 2) /
                                    ((double)(last_us - first_us) / 1e6));
    idem_consume_close(consumer);
    idem_close(engine);
    return 0;
}
