/*
 * outage.c - logs when the store begins to fail, and when it works again.
 *
 * An operator gets one line of each kind for an outage, however many calls fail
 * in it, and one for each time that the cause has changed, at most every ten
 * seconds. If the store fails and works in turns, the lines come at most once a
 * second; an outage that is over before then is not logged.
 */
#include "inner.h"

#include <stdio.h>
#include <string.h>

#define SAY_EVERY_US INT64_C(1000000)
#define CHANGE_EVERY_US INT64_C(10000000)
/* Where parts fail separately, one part goes on working while another fails. So
 * no part may have failed for this long. */
#define PARTS_QUIET_US INT64_C(10000000)

/* True if this failure is to be logged: the first one, or another cause. */
static bool
is_news(const struct idem__outage *outage, const char *why, int64_t now_us)
{
    int64_t age_us = now_us - outage->said_us;

    if (outage->said)
        return strcmp(outage->why, why) != 0 && age_us >= CHANGE_EVERY_US;
    return outage->said_us == 0 || age_us >= SAY_EVERY_US;
}

void
idem__outage_failed(struct idem_engine *engine, const struct idem_error *err,
                    bool write)
{
    struct idem__outage *outage = &engine->outage;
    int64_t now_us = engine->boot_now_us;
    const char *why = err->text[0] ? err->text : "it did not say why";

    if (!engine->options.log)
        return; /* the caller gets the error */
    if (!outage->on)
        *outage = (struct idem__outage){
            .on = true, .since_us = now_us, .said_us = outage->said_us};
    outage->writes = outage->writes || write;
    outage->failed_us = idem__boot_us(engine);
    outage->worked_us = 0;
    if (!is_news(outage, why, now_us))
        return;
    idem__log(&engine->store_options, IDEM_LOG_WARNING, "the store %s: %s",
              outage->said ? "still fails" : "fails", why);
    outage->said = true;
    outage->said_us = now_us;
    snprintf(outage->why, sizeof(outage->why), "%s", why);
}

void
idem__outage_worked(struct idem_engine *engine, bool write)
{
    struct idem__outage *outage = &engine->outage;
    int64_t now_us;

    if (!outage->on || (outage->writes && !write))
        return;
    now_us = idem__boot_us(engine);
    if (outage->worked_us == 0)
        outage->worked_us = now_us;
    if (engine->store->type->partial &&
        now_us - outage->failed_us < PARTS_QUIET_US)
        return;
    outage->on = false;
    if (outage->said)
        idem__log(&engine->store_options, IDEM_LOG_WARNING,
                  "the store works again after %.1f s",
                  (double)(outage->worked_us - outage->since_us) / 1e6);
}
