/*
 * check.h - the requests of idem check: many at the same time, each on a
 * connection of its own; some connections are cut.
 */
#ifndef IDEM__CLI_CHECK_H
#define IDEM__CLI_CHECK_H

#include "cli.h"

#include <idem/id.h>

#define CHECK_PARALLEL_MAX 1000
#define CHECK_SAMPLE_LEN 120
#define CHECK_DIGEST_LEN 16

/* Replaced by the key in the URL, in a header and in the body. */
#define CHECK_KEY_MARK "{key}"

/* The interface to check, and the form of its requests. */
struct check_target {
    const char *url, *method, *key_header; /* NULL: no header for the key */
    const struct cli_list *headers;
    int64_t timeout_ms; /* of one request */
};

/* One request, and its outcome. */
struct check_ask {
    const char *key;
    struct idem_bytes body;
    bool cut;       /* close the connection without waiting for the response */
    int64_t cut_ms; /* this long after the request was sent */

    long status;                      /* 0: no response came */
    bool replayed;                    /* a header says that it is a replay */
    uint8_t digest[CHECK_DIGEST_LEN]; /* of the response's body */
    char sample[CHECK_SAMPLE_LEN + 1];
    char trouble[120]; /* why no response came */
};

/* Send all of them at once and wait until each has ended. `tell` is called with
 * the number of ended requests whenever it grows; it may be NULL. */
enum idem_status check_storm(const struct check_target *target,
                             struct check_ask *asks, size_t count,
                             void (*tell)(void *arg, size_t over), void *arg,
                             struct idem_error *err);

/* ---- the rounds (check_rounds.c, check_effect.c) ------------------------ */

#define CHECK_ROUNDS 5

/* Of a round. */
enum check_result { CHECK_GOOD, CHECK_WEAK, CHECK_OPEN, CHECK_BAD };

/* Counts over the responses of a round. */
struct check_tally {
    size_t asked, succeeded, replayed, later, refused, errors, silent, cut;
    size_t distinct; /* different bodies of successful responses */
    const char *samples[2];
    size_t statuses[600];
};

struct check_round {
    const char *name;
    enum check_result result;
    struct check_tally tally;
    double change; /* of the effect */
    char why[300];
    struct check_ask *asks;
    char (*keys)[IDEM_UUID_LEN + 1];
};

struct check {
    struct check_target target;
    struct idem_buf body, other_body;
    const char *effect_url, *effect_field;
    struct cli_list headers;
    int64_t parallel;
    double one, other;   /* change by one request; by one with the other body */
    int64_t visible_ms;  /* how long it takes until an effect is visible */
    bool other_succeeds; /* with a key of its own */
    long other_status;
    struct check_round rounds[CHECK_ROUNDS];
    size_t round_count;
    struct idem_error err;
};

/* Run all rounds, one after the other. False: check->err says why not. */
bool check_play(struct check *check);
void check_clear(struct check *check);

/* Are the numbers equal, except for rounding? */
bool check_same(double a, double b);

/* The current value from --effect-url; 0 without one. */
bool check_read_effect(struct check *check, double *value);
/* The change in a round, after all of its effects have become visible. */
bool check_read_change(struct check *check, double before,
                       struct check_round *round);
void check_pause_ms(int64_t ms);

/* GET a body of at most 1 MiB. Any status but 2xx is an error. */
enum idem_status check_fetch(const char *url, const struct cli_list *headers,
                             int64_t timeout_ms, struct idem_buf *body,
                             struct idem_error *err);

#endif
