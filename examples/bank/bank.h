/*
 * bank.h - a small bank that implements every database scheme.
 *
 * main.c reads HTTP, input.c checks the requests and writes the responses, db.c
 * has the connections. records.c has the schemes that keep a record, tables.c
 * has those on the bank's own tables. Each scheme is one short function to read
 * and to copy.
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

/* At the first start, create the tables and their first rows. */
bool db_setup(const char *url);
struct db *db_take(void); /* waits for a free one */
void db_give_back(struct db *db);

bool db_begin(struct db *db);
bool db_commit(struct db *db);
void db_rollback(struct db *db);

/* A request and its response. */
struct request {
    const char *method;
    const char *parts[5]; /* /accounts/ann/T1 is "accounts", "ann", "T1" */
    size_t part_count;
    const char *token;  /* the header "token" */
    const char *key;    /* the header "Idempotency-Key"; NULL: none */
    const char *person; /* who asks; the header "person", "mydlq" if none */
    json_t *body;       /* an object; empty if none came */
    json_t *query;      /* the part after the ?, as texts */
};

struct reply {
    unsigned status;
    char text[512];
    bool json;
};

struct bank {
    struct idem_engine *engine; /* ids and tickets, beside the tables */
    struct idem_engine *tokens; /* the same, or a store of their own */
    struct idem_ids *ids;
};

void handle(struct bank *bank, const struct request *request,
            struct reply *reply);

/* ---- input.c ----------------------------------------------------------- */

/* A field of the body or of the query. False: it is missing or wrong. The reply
 * is then 400 and says that a retry does not help. */
bool read_number(const struct request *request, const char *name,
                 int64_t *number, struct reply *reply);
bool read_text(const struct request *request, const char *name,
               const char **text, struct reply *reply);
/* The same for one that may be missing. */
const char *text_or(const struct request *request, const char *name,
                    const char *otherwise);

void say(struct reply *reply, unsigned status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Nothing was done or, with IDEM_ERR_LOST, the outcome is unknown. */
void say_error(struct reply *reply, const struct idem_error *err);
/* The verdicts of a record, and of a scheme on the bank's own tables. */
void say_answer(struct reply *reply, const struct idem_answer *answer);
void say_verdict(struct reply *reply, enum idem_sql_verdict verdict,
                 const struct idem_sql_row *row);
void say_row(struct reply *reply, const struct idem_sql_row *row);

/* A hash of the request's content. A request with the same key and another
 * amount is a mistake and not a repeat. */
void fingerprint(uint8_t into[IDEM_FINGERPRINT_LEN], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- records.c and tables.c: false if the request is not for them ------- */

bool handle_record(struct bank *bank, struct db *db,
                   const struct request *request, struct reply *reply);
bool handle_table(struct bank *bank, struct db *db,
                  const struct request *request, struct reply *reply);
bool is(const struct request *request, const char *method, const char *first,
        size_t parts);
/* Balance + amount, of a row that is there; in an open transaction. */
enum idem_status add_balance(struct idem_sql *idem, const char *account,
                             int64_t amount, enum idem_sql_verdict *verdict,
                             struct idem_error *err);

#endif
