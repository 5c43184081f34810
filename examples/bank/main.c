/*
 * main.c - the bank's HTTP side.
 *
 *   $ idem store init sqlite:bank.db
 *   $ build/examples/bank 8080 sqlite:bank.db
 *   $ T=$(curl -s localhost:8080/token); for i in 1 2; do
 *         curl -s -X POST -H "token: $T" localhost:8080/test; echo; done
 *   正常调用
 *   重复调用
 *
 * The database may also be postgres://user:password@host:5432/database or
 * mysql://user:password@host:3306/database.
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
    request.person = header(connection, "person", "mydlq");
    request.body =
        in->len ? json_loadb(in->body, in->len, 0, NULL) : json_object();
    if (!json_is_object(request.body)) {
        reply.status = 400;
        snprintf(reply.text, sizeof(reply.text),
                 "{\"error\":\"the body is no JSON object\"}");
        reply.json = true;
    } else if (request.part_count > 0) {
        handle(&bank, &request, &reply);
    }
    result = answer(connection, &reply);
    json_decref(request.body);
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
    unsigned long port = argc > 1 ? strtoul(argv[1], NULL, 10) : 8080;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)port)};
    struct MHD_Daemon *daemon;
    struct idem_error err;
    sigset_t stop;
    int caught;

    if (port < 1 || port > 65535 || argc > 3) {
        fprintf(stderr, "usage: bank [PORT [DATABASE]]\n"
                        "DATABASE is sqlite:FILE (sqlite:bank.db), "
                        "postgres://... or mysql://...\n");
        return 2;
    }
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (idem_open(url, NULL, &bank.engine, &err) != IDEM_OK ||
        idem_ids_open(bank.engine, NULL, &bank.ids, &err) != IDEM_OK) {
        fprintf(stderr, "bank: %s\n", err.text);
        return 1;
    }
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
    idem_close(bank.engine);
    return 0;
}
