/*
 * sink.h - where `idem consume` takes messages: an HTTP endpoint or a command.
 */
#ifndef CLI_SINK_H
#define CLI_SINK_H

#include <idem/consume.h>

/* POST each message to a URL. Success is 2xx. The class of a problem+json of
 * idem's gateway decides before its status: outcome unknown is unclear, in
 * progress and what may be sent again are tried until they are through, done is
 * success, the rest poison. Else 425, 429, 503 and a 409 with Retry-After mean
 * "not handled"; a time-out, a cut answer, 408, 502, 504 and 520 to 524 leave
 * it unclear; other 4xx are poison; if nothing could be sent, nobody is there;
 * the rest failed. */
struct http_sink;
enum idem_status http_sink_open(const char *url, int64_t timeout_ms,
                                struct http_sink **sink,
                                struct idem_error *err);
idem_handle_fn http_sink_handle;
void http_sink_close(struct http_sink *sink);

/* Run a command with the message on its standard input. Exit 0 is success, 75
 * "not handled", 65 poison; ended by a signal or by the time-out it is unclear;
 * if it cannot be run, nobody is there; the rest failed. */
struct command_sink {
    char *const *argv;
    int64_t timeout_ms;
};
idem_handle_fn command_sink_handle;

#endif
