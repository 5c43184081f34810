/*
 * http_body_fuzz.c - any method, path, query and body must give an op that the
 * engine may run, or an error with a text, and must not crash.
 *
 * Input: method \n raw path \n raw query \n body
 */
#include "http.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static struct idem_bytes
next_line(const uint8_t **at, size_t *left)
{
    const uint8_t *end = memchr(*at, '\n', *left);
    struct idem_bytes line = {*at, end ? (size_t)(end - *at) : *left};

    *left -= line.len + (end ? 1 : 0);
    *at += line.len + (end ? 1 : 0);
    return line;
}

static void
read_call(const struct http_route *route, const struct http_path *path,
          struct idem_bytes query, struct idem_bytes body)
{
    struct idem_error err = {0};
    struct http_call call;
    enum idem_status status =
        http_call_read(&call, route, path, query, body, &err);

    if (status == IDEM_OK && route->action == HTTP_OP) {
        struct idem_op op = call.op;

        assert(idem__op_check(&op, &err) == IDEM_OK);
    }
    assert(status == IDEM_OK || err.text[0]);
    if (status != IDEM_OK) {
        json_t *problem = http_problem(IDEM_PROBLEM_BASE, IDEM_PROBLEM_INVALID,
                                       err.text, false);

        assert(problem);
        json_decref(problem);
    }
    http_call_clear(&call);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct idem_bytes method = next_line(&data, &len);
    struct idem_bytes raw = next_line(&data, &len);
    struct idem_bytes query = next_line(&data, &len);
    struct idem_arena memory = {0};
    struct idem_error err = {0};
    struct http_path path;
    char word[16] = "", allow[128];

    if (method.len >= sizeof(word))
        return 0;
    memcpy(word, method.data, method.len);
    if (http_path_read(raw, &memory, &path, &err) == IDEM_OK) {
        const struct http_route *route =
            http_route_find(word, &path, allow, sizeof(allow));

        assert(strlen(allow) < sizeof(allow) - 1);
        if (route)
            read_call(route, &path, query, (struct idem_bytes){data, len});
    } else {
        assert(err.text[0]);
    }
    idem_arena_clear(&memory);
    return 0;
}
