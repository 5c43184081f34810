/*
 * topics.c - help that does not come from a table of options: an example for
 * every command, and the page about connecting.
 */
#include "cli.h"

#include <string.h>

static const struct {
    const char *command, *lines;
} examples[] = {
    {"begin", "idem begin shop order-7 --lease 30s\n"
              "fence=$(idem begin shop order-7 --print fence)"},
    {"finish", "idem finish shop order-7 $fence succeeded '{\"order\":7}'"},
    {"release", "idem release shop order-7 $fence"},
    {"renew", "idem renew shop order-7 $fence 30s"},
    {"settle", "idem settle shop order-7 --as succeeded --result paid "
               "--reason 'ticket 4711'\n"
               "idem settle shop order-7 --as failed --reason 'no payment'"},
    {"get", "idem get shop order-7\nidem get shop order-7 --print result"},
    {"forget", "idem forget shop order-7"},
    {"issue", "idem issue session-42 --ttl 10m"},
    {"redeem", "idem redeem $token session-42"},
    {"scan",
     "idem scan --state failed\nidem scan --scope shop --older 1h --json"},
    {"doubts", "idem doubts\nidem doubts --scope shop --json"},
    {"find", "idem find order-7\n"
             "idem find urn:uuid:6d0c1f63-29c1-8f5e-9f3e-0123456789ab"},
    {"audit", "idem audit --scope shop"},
    {"store", "idem store init postgres://idem@db/idem\n"
              "idem store check redis://cache:6379\n"
              "idem store copy journal:/var/lib/idem postgres://idem@db/idem"},
    {"journal", "idem journal check /var/lib/idem"},
    {"backup", "idem backup /var/lib/idem /backup/idem-monday"},
    {"restore", "idem restore /backup/idem-monday /var/lib/idem"},
    {"serve", "idem serve --store journal:/var/lib/idem --listen :6390 "
              "--http :7399"},
    {"top", "idem top\nidem top --once --json"},
    {"bench", "idem bench --what pair --clients 64"},
    {"gateway", "idem gateway --upstream http://127.0.0.1:3000"},
    {"check",
     "idem check http://127.0.0.1:8080/orders --body '{\"amount\":10}'"},
    {"playground", "idem playground\nidem playground --listen 127.0.0.1:9000"},
    {"run", "idem run billing 2026-11 --lease 10m -- make-invoices 2026-11"},
    {"lock", "idem lock nightly --wait 1m -- backup-database"},
    {"unlock", "idem unlock nightly $fence"},
    {"id", "idem id snowflake -n 3\nidem id explain 387411238093066240"},
    {"consume", "idem consume 'amqp://mq.example/?queue=orders' -- book-order"},
    {"completion", "idem completion bash > "
                   "/usr/share/bash-completion/completions/idem"},
};

const char *
cli_example(const char *usage)
{
    size_t len = strcspn(usage, " \n");

    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        if (strlen(examples[i].command) == len &&
            strncmp(examples[i].command, usage, len) == 0)
            return examples[i].lines;
    }
    return NULL;
}

void
cli_print_connecting(void)
{
    printf(
        "How commands find the records\n\n"
        "A command asks a server (idem serve, idem gateway), or opens a store "
        "itself.\nIt uses the first of these that you gave:\n\n"
        "  --server ADDRESS   ask this server: unix:PATH, HOST:PORT, or an "
        "idem://,\n"
        "                     idem+unix: or idems:// URL (TLS: "
        "idems://HOST:PORT?ca=FILE)\n"
        "  --store URL        no server: open this store in this process\n"
        "  IDEM_SERVER        a variable with an address, as --server\n"
        "  IDEM_STORE         a variable with a URL, as --store\n"
        "  none of these      ask the server on this user's socket\n\n"
        "Stores: journal:DIR, sqlite:FILE, redis://HOST, postgres://HOST/DB,\n"
        "mysql://HOST/DB, zookeeper://HOST, etcd://HOST. Their options are "
        "in\ndocs/stores.md. One process at a time can open a journal: while a "
        "server\nhas it open, ask the server.\n\n"
        "A server with credentials requires a name and a secret:\n\n"
        "  --credentials FILE   a file with a line \"name secret\"\n"
        "  IDEM_AUTH            a variable with name:secret\n"
        "  IDEM_SERVER_USER     the secret goes to a unix socket only if a "
        "server of this\n"
        "                       user, of root, or of the user named here "
        "listens on it\n\n"
        "Examples:\n"
        "  idem get shop order-7 --server unix:/run/idem/idem.sock\n"
        "  idem doubts --server 127.0.0.1:6390 --credentials ops.txt\n"
        "  IDEM_STORE=journal:/var/lib/idem idem scan\n");
}
