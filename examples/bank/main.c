/*
 * main.c - the bank's HTTP side.
 *
 *   $ examples/bank/run 8080
 *   $ T=$(curl -s localhost:8080/token); for i in 1 2; do
 *         curl -s -X POST -H "token: $T" localhost:8080/test; echo; done
 *   正常调用
 *   重复调用
 *
 * The database may also be postgres://user:password@host:5432/database or
 * mysql://user:password@host:3306/database, and tokens may be in a store of
 * their own, for instance redis://host:6379. README.md has all the calls.
 */
#include "bank.h"

#include <idem/idem.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX 65536

struct incoming {
    char *body;
    size_t len;
};

static struct bank bank;

static enum MHD_Result
answer(struct MHD_Connection *connection, const struct reply *reply)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        strlen(reply->text), (void *)reply->text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result result;

    MHD_add_response_header(response, "Content-Type",
                            reply->json ? "application/json"
                                        : "text/plain; charset=utf-8");
    result = MHD_queue_response(connection, reply->status, response);
    MHD_destroy_response(response);
    return result;
}

/* Cut a path into its parts, in place. */
static void
cut_path(char *path, struct request *request)
{
    char *rest = NULL;

    for (char *part = strtok_r(path, "/", &rest);
         part && request->part_count < 5; part = strtok_r(NULL, "/", &rest))
        request->parts[request->part_count++] = part;
}

static const char *
header(struct MHD_Connection *connection, const char *name,
       const char *otherwise)
{
    const char *value =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);

    return value && *value ? value : otherwise;
}

static enum MHD_Result
add_query(void *object, enum MHD_ValueKind kind, const char *name,
          const char *value)
{
    (void)kind;
    json_object_set_new(object, name, json_string(value ? value : ""));
    return MHD_YES;
}

bool
is(const struct request *request, const char *method, const char *first,
   size_t parts)
{
    return request->part_count == parts &&
           strcmp(request->method, method) == 0 &&
           strcmp(request->parts[0], first) == 0;
}

void
handle(struct bank *own, const struct request *request, struct reply *reply)
{
    struct db *db = db_take();

    if (!handle_record(own, db, request, reply) &&
        !handle_table(own, db, request, reply))
        say(reply, 404, "{\"error\":\"no such thing\"}");
    db_give_back(db);
}

static enum MHD_Result
finish_request(struct MHD_Connection *connection, const char *url,
               const char *method, const struct incoming *in)
{
    struct request request = {.method = method};
    struct reply reply = {.status = 404};
    char path[512];
    enum MHD_Result result;

    snprintf(path, sizeof(path), "%s", url);
    cut_path(path, &request);
    request.token = header(connection, "token", "-");
    request.key = header(connection, "Idempotency-Key", NULL);
    request.person = header(connection, "person", "mydlq");
    request.query = json_object();
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, add_query,
                              request.query);
    request.body =
        in->len ? json_loadb(in->body, in->len, 0, NULL) : json_object();
    if (!json_is_object(request.body))
        say(&reply, 400,
            "{\"error\":\"the body is not a JSON object\","
            "\"retryable\":false}");
    else if (request.part_count > 0)
        handle(&bank, &request, &reply);
    result = answer(connection, &reply);
    json_decref(request.body);
    json_decref(request.query);
    return result;
}

static enum MHD_Result
on_request(void *arg, struct MHD_Connection *connection, const char *url,
           const char *method, const char *version, const char *data,
           size_t *len, void **state)
{
    struct incoming *in = *state;

    (void)arg;
    (void)version;
    if (!in) {
        *state = calloc(1, sizeof(*in));
        return *state ? MHD_YES : MHD_NO;
    }
    if (*len > 0) {
        char *more = in->len + *len <= BODY_MAX
                         ? realloc(in->body, in->len + *len)
                         : NULL;

        if (!more)
            return MHD_NO;
        memcpy(more + in->len, data, *len);
        in->body = more;
        in->len += *len;
        *len = 0;
        return MHD_YES;
    }
    return finish_request(connection, url, method, in);
}

static void
on_end(void *arg, struct MHD_Connection *connection, void **state,
       enum MHD_RequestTerminationCode code)
{
    struct incoming *in = *state;

    (void)arg;
    (void)connection;
    (void)code;
    if (in)
        free(in->body);
    free(in);
}

int
main(int argc, char **argv)
{
    const char *url = argc > 2 ? argv[2] : "sqlite:bank.db";
    const char *tokens = argc > 3 ? argv[3] : NULL;
    unsigned long port = argc > 1 ? strtoul(argv[1], NULL, 10) : 8080;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)port)};
    struct MHD_Daemon *daemon;
    struct idem_error err;
    sigset_t stop;
    int caught;

    if (port < 1 || port > 65535 || argc > 4) {
        fprintf(stderr, "usage: bank [PORT [DATABASE [TOKENS]]]\n"
                        "DATABASE is sqlite:FILE (sqlite:bank.db), "
                        "postgres://... or mysql://...\n"
                        "TOKENS is a store for tokens, for instance "
                        "redis://... (the database)\n");
        return 2;
    }
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (idem_open(url, NULL, &bank.engine, &err) != IDEM_OK ||
        (tokens && idem_open(tokens, NULL, &bank.tokens, &err) != IDEM_OK) ||
        idem_ids_open(bank.engine, NULL, &bank.ids, &err) != IDEM_OK) {
        fprintf(stderr, "bank: %s\n", err.text);
        return 1;
    }
    if (!tokens)
        bank.tokens = bank.engine;
    if (!db_setup(url))
        return 1;
    daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD, (uint16_t)port, NULL, NULL, on_request,
        NULL, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address,
        MHD_OPTION_THREAD_POOL_SIZE, 8u, MHD_OPTION_NOTIFY_COMPLETED, on_end,
        NULL, MHD_OPTION_END);
    if (!daemon) {
        fprintf(stderr, "bank: port %lu cannot be had\n", port);
        return 1;
    }
    printf("bank: on port %lu, with %s\n", port,
           strncmp(url, "sqlite:", 7) == 0 ? url : "a server's database");
    fflush(stdout);
    sigwait(&stop, &caught);
    MHD_stop_daemon(daemon);
    idem_ids_close(bank.ids);
    if (bank.tokens != bank.engine)
        idem_close(bank.tokens);
    idem_close(bank.engine);
    return 0;
}
