/*
 * wire.h - operations and answers in the wire protocol (docs/protocol.md).
 *
 *   struct idem_op  --plan, put_command-->  RESP bytes
 *                  <--parse--  arguments  <--request--
 *                  (wire_command.c)          (wire_resp.c)
 *   a reply              <--  RESP bytes     (wire_reply.c)
 *   the short answer    <-->  a reply        (wire_brief.c)
 *   the whole record    <-->  a reply        (wire_full.c)
 *
 * One table lists the places and options of every command; both directions use
 * it, so they cannot differ. Nothing here allocates, reads a clock or does I/O.
 * Ownership: parsed bytes are views into the input.
 */
#ifndef IDEM__WIRE_H
#define IDEM__WIRE_H

#include "../record/record.h"

#define IDEM__WIRE_COUNT_MAX 1000 /* tokens of an ISSUE, records of a SCAN */
#define IDEM__WIRE_ARGS_MAX 40    /* of a command that idem writes */
/* The error for HTTP, which a server answers in HTTP. */
#define IDEM__WIRE_IS_HTTP                                                     \
    "Protocol error: this is HTTP, and this port speaks RESP; "                \
    "idem serve --http takes HTTP"
#define IDEM__WIRE_LOCK_SCOPE "locks" /* of LOCK and UNLOCK without SCOPE */

/* ---- commands: wire_command.c ---------------------------------------- */

/* One command of the engine. Do not copy it after it was parsed: op.nonce and
 * op.fingerprint point into it. */
struct idem__wire_command {
    struct idem_op op; /* type 0: the server looks among requests and tokens */
    bool scan;         /* SCAN: filter and cursor, no op */
    bool full;         /* the answer contains the whole record */
    bool next;         /* REDEEM: also issue a new token */
    bool tagged;
    int64_t tag;
    int64_t count; /* ISSUE, SCAN; written unless 0 */
    struct idem_filter filter;
    struct idem_cursor cursor;
    struct idem_bytes reason; /* an operator's reason, during parsing */
    uint8_t nonce[IDEM_NONCE_LEN];
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
};

/*
 * Read a command from its arguments; args[0] is its name, in any case.
 * IDEM_ERR_UNSUPPORTED: the engine has no command of that name; err is not set.
 * IDEM_ERR_INVALID: err says what is wrong; tagged and tag are set whenever the
 * tag could be read.
 */
enum idem_status idem__wire_parse(const struct idem_bytes *args, size_t count,
                                  struct idem__wire_command *command,
                                  struct idem_error *err);

/* Parse TAG n as the last two arguments, after at least this many places;
 * *count shrinks by them. */
enum idem_status idem__wire_parse_tag(const struct idem_bytes *args,
                                      size_t *count, size_t places,
                                      bool *tagged, int64_t *tag,
                                      struct idem_error *err);

/* What a command consists of; only idem__wire_put_command uses it. */
struct idem__wire_plan {
    unsigned options;
    size_t count;
};

/* Write a command whose op has passed idem__op_check, or a scan. First _plan,
 * which returns how many bytes it needs at most; then _put_command, which
 * returns the end of what it wrote. For a result with a length but no data
 * room is left: *room is where, or NULL. */
size_t idem__wire_plan(const struct idem__wire_command *command,
                       struct idem__wire_plan *plan);
char *idem__wire_put_command(char *out,
                             const struct idem__wire_command *command,
                             const struct idem__wire_plan *plan, char **room);

/* Other commands, such as INFO: their words, which are views into what the
 * caller has and, numbers, into `args`. */
struct idem__wire_args {
    struct idem_bytes list[IDEM__WIRE_ARGS_MAX];
    size_t count;
    size_t used;
    char scratch[3 * 20]; /* digits of numbers */
};

void idem__wire_add(struct idem__wire_args *args, struct idem_bytes arg);
void idem__wire_add_number(struct idem__wire_args *args, int64_t number);

/* An array of bulk strings: its length, and its bytes. */
size_t idem__wire_len(const struct idem__wire_args *args);
void idem__wire_put(const struct idem__wire_args *args, void *out);

/* ---- RESP: wire_resp.c ----------------------------------------------- */

/* A whole decimal number of at most 18 digits, and nothing else. */
bool idem__wire_number(struct idem_bytes text, int64_t *number);

/* Write the decimal digits of a number, without a NUL; returns how many. */
#define IDEM__WIRE_DIGITS_MAX 20
size_t idem__wire_digits(int64_t number, char *out);

enum idem__wire_got {
    IDEM__WIRE_DONE,
    IDEM__WIRE_MORE, /* incomplete */
    IDEM__WIRE_BAD,  /* this is not RESP: close the connection */
};

enum idem__wire_kind {
    IDEM__WIRE_NULL,
    IDEM__WIRE_BYTES,
    IDEM__WIRE_NUMBER,
    IDEM__WIRE_LINE,
    IDEM__WIRE_ERROR,
    IDEM__WIRE_ARRAY, /* `number` values follow */
};

#define IDEM__WIRE_VALUES_MAX (64 * 1024) /* in an array */

struct idem__wire_value {
    enum idem__wire_kind kind;
    struct idem_bytes bytes;
    int64_t number;
};

struct idem__wire_reader {
    const uint8_t *at, *end;
    size_t longest; /* the maximum length of a string */
};

/* For incomplete or invalid bytes, kind and number (their length) are set as
 * far as they were read. */
enum idem__wire_got idem__wire_read(struct idem__wire_reader *reader,
                                    struct idem__wire_value *value);

#define IDEM__WIRE_REQUEST_MAX 64

/* A request of a client; views into the input. No arguments: ignore it. */
struct idem__wire_request {
    size_t count;
    struct idem_bytes args[IDEM__WIRE_REQUEST_MAX];
};

/* Read one request of at most `max` bytes. DONE: it has *used bytes. MORE: it
 * will have at least *used bytes. BAD: err says why; send the error and close
 * the connection. */
enum idem__wire_got idem__wire_request(struct idem_bytes in, size_t max,
                                       struct idem__wire_request *request,
                                       size_t *used, struct idem_error *err);

/* All of these return the end of what they wrote. A line is a type character
 * and a number; bytes need a line, themselves and two more bytes. */
#define IDEM__WIRE_LINE_MAX (IDEM__WIRE_DIGITS_MAX + 3)
char *idem__wire_put_line(char *out, char mark, int64_t number);
char *idem__wire_put_bytes(char *out, struct idem_bytes bytes);
char *idem__wire_put_text(char *out, const char *text);
char *idem__wire_put_null(char *out);
/* +text and -WORD text, 3 and 4 bytes longer; characters that could end the
 * line are replaced. */
char *idem__wire_put_simple(char *out, const char *text);
char *idem__wire_put_error(char *out, const char *word, const char *text);

/* The header of an array of `count` values; with a tag, ["tag", n, ...]. At
 * most IDEM__WIRE_HEAD_MAX bytes. */
#define IDEM__WIRE_HEAD_MAX (3 * IDEM__WIRE_LINE_MAX + 5)
char *idem__wire_put_head(char *out, bool tagged, int64_t tag, size_t count);

/* ---- replies: wire_reply.c ------------------------------------------- */

#define IDEM__WIRE_FIRST 8 /* a claim's answer with its tag has fewer values   \
                            */

/* One reply. `values` values are left, after the tag if there was one. An error
 * has no values, only its word and text. The values are taken from `first`, up
 * to `known`, then from `reader`. */
struct idem__wire_reply {
    bool tagged;
    int64_t tag;
    bool error;
    struct idem_bytes word, text;
    size_t values;
    size_t next, known;
    struct idem__wire_reader reader;
    struct idem__wire_value first[IDEM__WIRE_FIRST];
};

/* DONE: one whole reply has *used bytes of `in`. MORE: it will have at least
 * *used bytes. */
enum idem__wire_got idem__wire_reply(struct idem_bytes in, size_t longest,
                                     struct idem__wire_reply *reply,
                                     size_t *used);

/* The status of an error reply; `err` gets its text. */
enum idem_status idem__wire_error(const struct idem__wire_reply *reply,
                                  struct idem_error *err);

/* Take the next value of a reply. False: there is none, or it has another kind.
 * Bytes may be null, which leaves *bytes unchanged. */
bool idem__wire_take(struct idem__wire_reply *reply, enum idem__wire_kind kind,
                     struct idem__wire_value *value);
bool idem__wire_take_number(struct idem__wire_reply *reply, int64_t *number);
bool idem__wire_take_bytes(struct idem__wire_reply *reply,
                           struct idem_bytes *bytes);

/* The verdict, which every answer starts with, or the status of an error. */
enum idem_status idem__wire_verdict(struct idem__wire_reply *reply,
                                    enum idem_verdict *verdict,
                                    struct idem_error *err);
enum idem_status idem__wire_unexpected(struct idem_error *err);

/* ---- answers without FULL: wire_brief.c ------------------------------ */

/* The answer to a command without FULL: the verdict and its other values;
 * values it does not have are zero. `bytes` is the stored result or the token;
 * its data is NULL if the result was not kept. For the "ok" of RENEW `expires`
 * is the end of the lease. */
struct idem__wire_brief {
    enum idem_verdict verdict;
    enum idem_state state;
    enum idem_kind kind;
    int64_t fence, lease_until, expires, retry_after_ms;
    int64_t redeemed; /* in a record: 1 for a token that REDEEM used up */
    struct idem_bytes bytes;
};

/* The short way for what a gateway gets nearly always: one whole tagged reply
 * of *used bytes that says started, ok with an expiry, or replay of an HTTP
 * answer. False: it is none of these, or not whole, and the functions for all
 * replies read it; the outputs are then undefined. */
bool idem__wire_usual(struct idem_bytes in, size_t longest, int64_t *tag,
                      struct idem__wire_brief *brief, size_t *used);

enum idem_status idem__wire_brief(struct idem__wire_reply *reply,
                                  struct idem__wire_brief *brief,
                                  struct idem_error *err);

/* Write that answer; it needs _len bytes. The result is the last value. If it
 * is longer than `longest`, only its length is written, and the caller sends
 * its bytes and CR LF. */
size_t idem__wire_brief_len(const struct idem_answer *answer, size_t longest);
char *idem__wire_put_brief(char *out, bool tagged, int64_t tag,
                           enum idem_verb verb,
                           const struct idem_answer *answer, size_t longest);
char *idem__wire_put_result(char *out, const struct idem_record *record,
                            size_t longest);

/* A record as names and values, without its result: the number of values, and
 * the bytes they need. */
size_t idem__wire_fields(void);
size_t idem__wire_fields_len(const struct idem_record *record);
char *idem__wire_put_fields(char *out, const struct idem_record *record);

/* ---- answers with FULL: wire_full.c ---------------------------------- */

/* The answer to a command with FULL. It points to `record`, whose bytes are
 * views into the reply. The result is NULL if the server left it out, which it
 * does for the caller that wrote it. IDEM_ERR_UNSUPPORTED: the reply is not
 * such an answer. */
enum idem_status idem__wire_answer(struct idem__wire_reply *reply,
                                   struct idem_answer *answer,
                                   struct idem_record *record,
                                   struct idem_error *err);

/* The reply to a SCAN with FULL: the next cursor, then the records. */
enum idem_status idem__wire_scanned(struct idem__wire_reply *reply,
                                    struct idem_cursor *next,
                                    struct idem_error *err);
enum idem_status idem__wire_record(struct idem__wire_reply *reply,
                                   struct idem_record *record,
                                   struct idem_error *err);

/* A FULL answer has four values: verdict, retry_after_ms, the record or null,
 * its result. This writes all but the last; it needs _len bytes. */
size_t idem__wire_full_len(const struct idem_answer *answer);
char *idem__wire_put_full(char *out, bool tagged, int64_t tag,
                          const struct idem_answer *answer);

/* A record as one bulk string: the encoding of codec.c without nonce and
 * result. */
size_t idem__wire_record_len(const struct idem_record *record);
char *idem__wire_put_record(char *out, const struct idem_record *record);

#endif
