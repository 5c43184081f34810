/*
 * terminal.c - output for terminals only: colour and progress.
 */
#include "../base/wait.h"
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool
has_colours(void)
{
    const char *off = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(STDOUT_FILENO) && !(off && *off) && term &&
           strcmp(term, "dumb") != 0;
}

bool
cli_is_terminal(void)
{
    return isatty(STDOUT_FILENO) && !cli_json;
}

const char *
cli_colour(enum cli_colour colour)
{
    static const char *const codes[] = {
        [CLI_PLAIN] = "\033[0m",   [CLI_BOLD] = "\033[1m",
        [CLI_RED] = "\033[31m",    [CLI_GREEN] = "\033[32m",
        [CLI_YELLOW] = "\033[33m",
    };

    return has_colours() && !cli_json ? codes[colour] : "";
}

/* A line that is overwritten, at most ten times a second. */
void
cli_progress(const char *format, ...)
{
    static int64_t last_ms;
    static bool shown;
    char text[200];
    int64_t now_ms;
    va_list args;

    if (!isatty(STDERR_FILENO))
        return;
    if (!format) {
        if (shown)
            fputs("\r\033[K", stderr);
        shown = false;
        return;
    }
    now_ms = idem__mono_ms();
    if (now_ms < last_ms + 100)
        return;
    last_ms = now_ms;
    shown = true;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fputs("\r\033[K", stderr);
    cli_print_safe(stderr, idem_text(text));
    fflush(stderr);
}
