/*
 * exec_result.c - encode the outcome of a command as bytes that any language
 * can write:
 *
 *   exit 0\n  stdout 12\n  [dropped 700\n]  \n  output, then error output
 */
#include "exec.h"

#include <signal.h>
#include <string.h>

void
exec_outcome_init(struct exec_outcome *outcome)
{
    memset(outcome, 0, sizeof(*outcome));
    idem_buf_init(&outcome->out, IDEM_RESULT_MAX);
    idem_buf_init(&outcome->err, IDEM_RESULT_MAX);
}

void
exec_outcome_clear(struct exec_outcome *outcome)
{
    idem_buf_clear(&outcome->out);
    idem_buf_clear(&outcome->err);
}

int
exec_exit_code(const struct exec_outcome *outcome)
{
    return outcome->signalled ? 128 + outcome->code : outcome->code;
}

bool
exec_encode(const struct exec_outcome *outcome, struct idem_buf *into)
{
    if (!idem_buf_printf(into, "%s %d\nstdout %zu\n",
                         outcome->signalled ? "signal" : "exit", outcome->code,
                         outcome->out.len))
        return false;
    if (outcome->dropped > 0 &&
        !idem_buf_printf(into, "dropped %llu\n",
                         (unsigned long long)outcome->dropped))
        return false;
    return idem_buf_add(into, "\n", 1) &&
           idem_buf_add(into, outcome->out.data, outcome->out.len) &&
           idem_buf_add(into, outcome->err.data, outcome->err.len);
}

/* Reads "word 123\n" and moves *in past it. */
static bool
read_line(struct idem_bytes *in, const char *word, uint64_t max,
          uint64_t *number)
{
    const char *at = in->data, *end = at + in->len;
    size_t len = strlen(word), digits = 0;

    if (in->len < len + 2 || memcmp(at, word, len) != 0 || at[len] != ' ')
        return false;
    *number = 0;
    for (at += len + 1; at < end && *at >= '0' && *at <= '9'; at++) {
        *number = *number * 10 + (uint64_t)(*at - '0');
        if (++digits > 18 || *number > max)
            return false;
    }
    if (digits == 0 || at == end || *at != '\n')
        return false;
    at++;
    *in = (struct idem_bytes){at, (size_t)(end - at)};
    return true;
}

bool
exec_decode(struct idem_bytes stored, struct exec_stored *result)
{
    struct idem_bytes in = stored;
    uint64_t code, out_len, dropped = 0;
    bool exited = read_line(&in, "exit", 255, &code);
    const char *body;

    if (!exited && !read_line(&in, "signal", NSIG, &code))
        return false;
    if (!read_line(&in, "stdout", IDEM_RESULT_MAX, &out_len))
        return false;
    (void)read_line(&in, "dropped", UINT64_MAX, &dropped);
    body = in.data;
    if (in.len < 1 || *body != '\n' || out_len > in.len - 1)
        return false;
    *result = (struct exec_stored){
        .signalled = !exited,
        .code = (int)code,
        .dropped = dropped,
        .out = {body + 1, (size_t)out_len},
        .err = {body + 1 + out_len, in.len - 1 - (size_t)out_len},
    };
    return true;
}
