/*
 * client.h - a connection to `idem serve`, and a link made of it.
 */
#ifndef IDEM__CLI_CLIENT_H
#define IDEM__CLI_CLIENT_H

#include "link.h"

#include <hiredis/hiredis.h>

#define CLI_ARGS_MAX 32

/* A command that is being put together. */
struct cli_command {
    const char *args[CLI_ARGS_MAX];
    size_t lens[CLI_ARGS_MAX];
    int count;
    char numbers[8][24];
    int number_count;
};

struct cli_client;

/* unix:PATH, /PATH, HOST:PORT or [::1]:PORT; `auth` is "name:secret" or NULL.
 */
enum idem_status cli_client_open(const char *address, const char *auth,
                                 struct cli_client **client,
                                 struct idem_error *err);
void cli_client_close(struct cli_client *client); /* NULL is fine */

/*
 * Send a command and wait for its reply; again, on a new connection, if the
 * reply was lost: *asked says how often. Free the reply with freeReplyObject.
 * An error of the server is this call's error. IDEM_ERR_LOST: no reply came.
 */
enum idem_status cli_client_ask(struct cli_client *client,
                                const struct cli_command *command,
                                int64_t wait_ms, redisReply **reply, int *asked,
                                struct idem_error *err);

/* The server that the command line and the environment name. */
enum idem_status cli_where_client(const struct cli_where *where,
                                  struct cli_client **client,
                                  struct idem_error *err);

/* Who this client locked for, so that a lock can be renewed: the protocol
 * renews a lock by locking it again as the same owner. */
#define CLI_OWNER_MAX 256
char *cli_client_owner(struct cli_client *client);

/* ---- client_op.c ------------------------------------------------------ */

enum idem_status cli_client_do(struct cli_client *client,
                               const struct idem_op *op,
                               struct idem_answer *answer,
                               struct idem_error *err);
enum idem_status cli_client_scan(struct cli_client *client,
                                 const struct idem_filter *filter,
                                 struct idem_cursor *cursor, size_t count,
                                 idem_each_fn *each, void *arg,
                                 struct idem_error *err);

/* ---- auth.c ------------------------------------------------------------ */

/* "name:secret" from a file with a line "name secret"; free it. */
enum idem_status cli_read_auth(const char *file, char **auth,
                               struct idem_error *err);

#endif
