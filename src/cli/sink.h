/*
 * sink.h - the handlers of `idem consume`: an HTTP endpoint or a command.
 */
#ifndef CLI_SINK_H
#define CLI_SINK_H

#include <idem/consume.h>

/* POST each message to a URL. 2xx is success. If the response is a problem+json
 * of idem's gateway, its class decides before the status: "outcome unknown" is
 * unclear, "in progress" and retryable problems are retried until they succeed,
 * "done" is success, the rest is poison. Otherwise 425, 429, 503 and a 409 with
 * Retry-After mean "not handled"; after a timeout, a cut response, 408, 502,
 * 504 and 520 to 524 the outcome is unclear; other 4xx are poison; if nothing
 * could be sent, the handler is unreachable; everything else is a failure. */
struct http_sink;
enum idem_status http_sink_open(const char *url, int64_t timeout_ms,
                                struct http_sink **sink,
                                struct idem_error *err);
idem_handle_fn http_sink_handle;
void http_sink_close(struct http_sink *sink);

/* Run a command with the message on its standard input. Exit 0 is success, 75
 * "not handled", 65 poison; if a signal or the timeout ended it, the outcome is
 * unclear; if it cannot be run, the handler is unreachable; everything else is
 * a failure. */
struct command_sink {
    char *const *argv;
    int64_t timeout_ms;
};
idem_handle_fn command_sink_handle;

#endif
