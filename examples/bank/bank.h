/*
 * bank.h - a small bank that plays every database scheme.
 *
 * main.c reads HTTP and answers it, db.c has the connections, handlers.c has
 * one short function for each scheme: that is the file to read and to copy
 * from.
 */
#ifndef BANK_H
#define BANK_H

#include <idem/id.h>
#include <idem/sql.h>
#include <idem/token.h>
#include <jansson.h>

/* A connection, and idem's adapter on it. */
struct db {
    struct idem_sql *idem;
    struct pg_conn *postgres;
    struct st_mysql *mysql;
    struct sqlite3 *sqlite;
};

/* The tables are made, with something in them, at the first start. */
bool db_setup(const char *url);
struct db *db_take(void); /* waits for one that nobody uses */
void db_give_back(struct db *db);

bool db_begin(struct db *db);
bool db_commit(struct db *db);
void db_rollback(struct db *db);
/* What is asked, and what is answered. */
struct request {
    const char *method;
    const char *parts[5]; /* /accounts/ann/T1 is "accounts", "ann", "T1" */
    size_t part_count;
    const char *token;  /* the header "token" */
    const char *person; /* who asks; the header "person", "mydlq" if none */
    json_t *body;       /* an object; empty if none came */
};

struct reply {
    unsigned status;
    char text[512];
    bool json;
};

struct bank {
    struct idem_engine *engine; /* tokens and ids, on the same store */
    struct idem_ids *ids;
};

void handle(struct bank *bank, const struct request *request,
            struct reply *reply);

#endif
