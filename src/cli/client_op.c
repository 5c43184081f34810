/*
 * client_op.c - an op as a command, and the reply as an answer
 * (docs/protocol.md).
 *
 * A connection may break after the server has done what was asked. Every BEGIN
 * and REDEEM therefore carries a nonce, FINISH and RENEW may be repeated, a
 * LOCK finds its owner, and after a RELEASE that was sent twice the record
 * itself tells whether the first one worked: so a lost reply is asked for
 * again, and nothing runs twice.
 */
#include "client.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static void
add(struct cli_command *c, struct idem_bytes arg)
{
    c->args[c->count] = arg.len > 0 ? arg.data : "";
    c->lens[c->count++] = arg.len;
}

static void
add_word(struct cli_command *c, const char *word)
{
    add(c, idem_text(word));
}

static void
add_number(struct cli_command *c, uint64_t number)
{
    char *text = c->numbers[c->number_count++];

    snprintf(text, sizeof(c->numbers[0]), "%llu", (unsigned long long)number);
    add_word(c, text);
}

static void
add_option(struct cli_command *c, const char *name, int64_t value)
{
    if (value <= 0)
        return;
    add_word(c, name);
    add_number(c, (uint64_t)value);
}

/* ---- an op as a command -------------------------------------------------- */

struct written {
    struct cli_command command;
    char nonce[2 * IDEM_NONCE_LEN + 1];
    char fingerprint[2 * IDEM_FINGERPRINT_LEN + 1];
};

static void
add_nonce(struct written *w, const uint8_t *nonce)
{
    uint8_t fresh[IDEM_NONCE_LEN];

    if (!nonce) {
        randombytes_buf(fresh, sizeof(fresh));
        nonce = fresh;
    }
    sodium_bin2hex(w->nonce, sizeof(w->nonce), nonce, IDEM_NONCE_LEN);
    add_word(&w->command, "NONCE");
    add_word(&w->command, w->nonce);
}

static void
write_begin(struct written *w, const struct idem_op *op)
{
    struct cli_command *c = &w->command;

    add(c, op->scope);
    add(c, op->id);
    if (op->fingerprint) {
        sodium_bin2hex(w->fingerprint, sizeof(w->fingerprint), op->fingerprint,
                       IDEM_FINGERPRINT_LEN);
        add_word(c, "FP");
        add_word(c, w->fingerprint);
    }
    add_option(c, "LEASE", op->lease_ms);
    add_option(c, "TTL", op->ttl_ms);
    add_option(c, "WAIT", op->wait_ms);
    add_word(c, op->mode == IDEM_LOOSE ? "LOOSE" : "STRICT");
    if (op->type == IDEM_TYPE_TOKEN)
        add_word(c, "TOKEN");
    if (op->subject.len > 0) {
        add_word(c, "SUBJECT");
        add(c, op->subject);
    }
    add_nonce(w, op->nonce);
}

static void
write_finish(struct written *w, const struct idem_op *op)
{
    struct cli_command *c = &w->command;

    add(c, op->scope);
    add(c, op->id);
    add_number(c, op->fence);
    add_word(c, op->outcome == IDEM_STATE_FAILED ? "FAILED" : "SUCCEEDED");
    add(c, op->result);
    add_option(c, "TTL", op->ttl_ms);
    add_word(c, "KIND");
    add_word(c, idem_kind_name(op->kind));
    if (op->not_replayable)
        add_word(c, "NOREPLAY");
}

static void
write_settle(struct written *w, const struct idem_op *op)
{
    struct cli_command *c = &w->command;
    /* Without an outcome a server keeps no result, but it keeps a reason. */
    struct idem_bytes reason =
        op->subject.len > 0 || op->outcome ? op->subject : op->result;

    add(c, op->scope);
    add(c, op->id);
    if (reason.len > 0) {
        add_word(c, "REASON");
        add(c, reason);
    }
    if (op->outcome) {
        add_word(c, "AS");
        add_word(c, op->outcome == IDEM_STATE_FAILED ? "FAILED" : "SUCCEEDED");
        add(c, op->result);
    }
    add_option(c, "TTL", op->ttl_ms);
    add_word(c, "KIND");
    add_word(c, idem_kind_name(op->kind));
}

static void
write_op(struct written *w, const struct idem_op *op)
{
    struct cli_command *c = &w->command;

    add_word(c, idem_verb_name(op->verb));
    switch (op->verb) {
    case IDEM_BEGIN:
        write_begin(w, op);
        break;
    case IDEM_FINISH:
        write_finish(w, op);
        break;
    case IDEM_SETTLE:
        write_settle(w, op);
        break;
    case IDEM_ISSUE:
        add(c, op->scope);
        add_option(c, "TTL", op->ttl_ms);
        break;
    case IDEM_REDEEM:
        add(c, op->id);
        add(c, op->scope);
        add_nonce(w, op->nonce);
        break;
    case IDEM_LOCK:
        add(c, op->id);
        add(c, op->subject);
        add_number(
            c, (uint64_t)(op->lease_ms ? op->lease_ms : IDEM_LEASE_DEFAULT_MS));
        add_option(c, "WAIT", op->wait_ms);
        break;
    case IDEM_UNLOCK:
        add(c, op->id);
        add_number(c, op->fence);
        break;
    case IDEM_RELEASE:
    case IDEM_RENEW:
        add(c, op->scope);
        add(c, op->id);
        add_number(c, op->fence);
        if (op->verb == IDEM_RENEW)
            add_number(c, (uint64_t)(op->lease_ms ? op->lease_ms
                                                  : IDEM_LEASE_DEFAULT_MS));
        break;
    default: /* GET, FORGET */
        add(c, op->scope);
        add(c, op->id);
        break;
    }
}

/* ---- a reply as an answer ------------------------------------------------ */

static struct idem_bytes
text_of(const redisReply *reply)
{
    bool text =
        reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS;

    return text ? (struct idem_bytes){reply->str, reply->len}
                : (struct idem_bytes){NULL, 0};
}

static int64_t
number_of(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
}

static void
set_hex(struct idem_record *record, struct idem_bytes text)
{
    if (text.len == 2 * IDEM_FINGERPRINT_LEN &&
        sodium_hex2bin(record->fingerprint, IDEM_FINGERPRINT_LEN, text.data,
                       text.len, NULL, NULL, NULL) == 0)
        record->flags |= IDEM_FLAG_FINGERPRINT;
}

/* One field of a record. Fields that a newer server has are not an error. */
static void
set_field(struct idem_record *r, struct idem_bytes name,
          const redisReply *value)
{
    const struct {
        const char *name;
        int64_t *into;
    } times[] = {
        {"created", &r->created},
        {"updated", &r->updated},
        {"lease_until", &r->lease_until},
        {"expires", &r->expires},
    };
    struct idem_bytes text = text_of(value);
    enum idem_type type;
    enum idem_state state;
    enum idem_mode mode;
    enum idem_kind kind;

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (idem__bytes_is(name, times[i].name))
            *times[i].into = number_of(value);
    if (idem__bytes_is(name, "type") && idem__type_parse(text, &type))
        r->type = (uint8_t)type;
    else if (idem__bytes_is(name, "state") && idem__state_parse(text, &state))
        r->state = (uint8_t)state;
    else if (idem__bytes_is(name, "mode") && idem__mode_parse(text, &mode))
        r->mode = (uint8_t)mode;
    else if (idem__bytes_is(name, "kind") && idem__kind_parse(text, &kind))
        r->kind = (uint8_t)kind;
    else if (idem__bytes_is(name, "fence"))
        r->fence = (uint64_t)number_of(value);
    else if (idem__bytes_is(name, "attempt"))
        r->attempt = (uint32_t)number_of(value);
    else if (idem__bytes_is(name, "scope"))
        r->scope = text;
    else if (idem__bytes_is(name, "id"))
        r->id = text;
    else if (idem__bytes_is(name, "subject"))
        r->subject = text;
    else if (idem__bytes_is(name, "result"))
        r->result = text;
    else if (idem__bytes_is(name, "fingerprint"))
        set_hex(r, text);
    else if (idem__bytes_is(name, "settled") && number_of(value))
        r->flags |= IDEM_FLAG_SETTLED;
    else if (idem__bytes_is(name, "redeemed") && number_of(value))
        r->flags |= IDEM_FLAG_REDEEMED;
    else if (idem__bytes_is(name, "replayable") && !number_of(value))
        r->flags |= IDEM_FLAG_NOT_REPLAYABLE;
}

static void
read_record(struct idem_record *record, redisReply *const *values, size_t count)
{
    for (size_t i = 0; i + 1 < count; i += 2)
        set_field(record, text_of(values[i]), values[i + 1]);
}

static bool
verdict_of(struct idem_bytes word, enum idem_verdict *verdict)
{
    for (int i = 0; i < IDEM_VERDICT_COUNT; i++) {
        if (idem__bytes_is(word, idem_verdict_name((enum idem_verdict)i))) {
            *verdict = (enum idem_verdict)i;
            return true;
        }
    }
    return false;
}

/* state, kind, expires, result */
static void
read_outcome(struct idem_record *r, redisReply *const *values, size_t count)
{
    static const char *const names[] = {"state", "kind", "expires", "result"};

    for (size_t i = 0; i < count && i < 4; i++)
        set_field(r, idem_text(names[i]), values[i]);
    if (count >= 4 && values[3]->type == REDIS_REPLY_NIL)
        r->flags |= IDEM_FLAG_NOT_REPLAYABLE;
}

static void
read_values(const struct idem_op *op, struct idem_answer *answer,
            redisReply *const *values, size_t count)
{
    struct idem_record *r = &answer->record;

    switch (answer->verdict) {
    case IDEM_V_STARTED:
        r->state = IDEM_STATE_EXECUTING;
        r->fence = count > 0 ? (uint64_t)number_of(values[0]) : 0;
        r->lease_until = count > 1 ? number_of(values[1]) : 0;
        r->expires = count > 2 ? number_of(values[2]) : 0;
        break;
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        read_outcome(r, values, count);
        break;
    case IDEM_V_BUSY:
        answer->retry_after_ms = count > 0 ? number_of(values[0]) : 0;
        break;
    case IDEM_V_DOUBT:
        r->lease_until = count > 0 ? number_of(values[0]) : 0;
        break;
    case IDEM_V_OK_DONE:
        if (op->verb == IDEM_RENEW)
            r->lease_until = count > 0 ? number_of(values[0]) : 0;
        else if (op->verb == IDEM_FINISH)
            r->expires = count > 0 ? number_of(values[0]) : 0;
        break;
    case IDEM_V_SETTLED:
        read_outcome(r, values, count < 1 ? count : 1);
        r->expires = count > 1 ? number_of(values[1]) : 0;
        break;
    case IDEM_V_RECORD:
        read_record(r, values, count);
        break;
    case IDEM_V_ISSUED_NOW:
        r->state = IDEM_STATE_ISSUED;
        r->id = count > 0 ? text_of(values[0]) : r->id;
        break;
    case IDEM_V_REDEEMED:
        r->state = IDEM_STATE_SUCCEEDED;
        break;
    default:
        break;
    }
}

/* The bytes move into one piece of memory that the answer owns. */
static bool
own(struct idem_answer *answer)
{
    struct idem_bytes *parts[] = {&answer->record.scope, &answer->record.id,
                                  &answer->record.subject,
                                  &answer->record.result};
    size_t len = 0;
    char *at;

    for (size_t i = 0; i < 4; i++)
        len += parts[i]->len;
    answer->memory = at = malloc(len + 1);
    if (!at)
        return false;
    for (size_t i = 0; i < 4; i++) {
        if (parts[i]->len > 0)
            memcpy(at, parts[i]->data, parts[i]->len);
        parts[i]->data = parts[i]->len > 0 ? at : NULL;
        at += parts[i]->len;
    }
    return true;
}

static enum idem_status
read_answer(const struct idem_op *op, const redisReply *reply,
            struct idem_answer *answer, struct idem_error *err)
{
    struct idem_answer read = {0};

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 1 ||
        !verdict_of(text_of(reply->element[0]), &read.verdict))
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "the server does not answer as idem does: is it "
                          "another one?");
    read.record.type = (uint8_t)(op->type ? op->type : IDEM_TYPE_REQUEST);
    read.record.mode = (uint8_t)op->mode;
    read.record.fence = op->fence;
    read.record.scope = op->scope;
    read.record.id = op->id;
    read_values(op, &read, reply->element + 1, reply->elements - 1);
    if (!own(&read))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    *answer = read;
    return IDEM_OK;
}

/* What the protocol has no words for. */
static enum idem_status
check(const struct idem_op *op, struct idem_error *err)
{
    bool lock = op->verb == IDEM_LOCK || op->verb == IDEM_UNLOCK;

    if (!lock && (op->type == IDEM_TYPE_LOCK || op->type == IDEM_TYPE_WORKER))
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "a server does this to requests and tokens only; "
                          "scan --type %s lists the others",
                          idem_type_name(op->type));
    return IDEM_OK;
}

/* A lock is renewed by its owner, who locks it again. Another fence means that
 * it had been lost and is ours anew: that is not what was asked for. */
static enum idem_status
renew_lock(struct cli_client *client, const struct idem_op *op,
           struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op again = *op;
    enum idem_status status;

    again.verb = IDEM_LOCK;
    again.subject = idem_text(cli_client_owner(client));
    status = cli_client_do(client, &again, answer, err);
    if (status != IDEM_OK)
        return status;
    if (answer->verdict != IDEM_V_STARTED) {
        answer->verdict = IDEM_V_STALE;
    } else if (answer->record.fence == op->fence) {
        answer->verdict = IDEM_V_OK_DONE;
    } else {
        again.verb = IDEM_UNLOCK;
        again.fence = answer->record.fence;
        idem_answer_clear(answer);
        status = cli_client_do(client, &again, answer, err);
        answer->verdict = IDEM_V_STALE;
    }
    return status;
}

/* Freed with this very fence? Then it was our first RELEASE that did it. */
static bool
was_released(struct cli_client *client, const struct idem_op *op)
{
    const struct idem_op get = {
        .verb = IDEM_GET, .scope = op->scope, .id = op->id};
    struct idem_answer answer = {0};
    bool free_now;

    if (cli_client_do(client, &get, &answer, NULL) != IDEM_OK)
        return false;
    free_now = answer.verdict == IDEM_V_RECORD &&
               answer.record.state == IDEM_STATE_FREE &&
               answer.record.fence == op->fence;
    idem_answer_clear(&answer);
    return free_now;
}

enum idem_status
cli_client_do(struct cli_client *client, const struct idem_op *op,
              struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op checked = *op;
    struct written written = {0};
    enum idem_status status;
    redisReply *reply = NULL;
    int asked = 0;

    if (op->verb == IDEM_RENEW && op->type == IDEM_TYPE_LOCK)
        return renew_lock(client, op, answer, err);
    if (op->verb == IDEM_LOCK && op->subject.len < CLI_OWNER_MAX &&
        op->subject.data != cli_client_owner(client))
        snprintf(cli_client_owner(client), CLI_OWNER_MAX, "%.*s",
                 (int)op->subject.len, (const char *)op->subject.data);
    if (op->verb == IDEM_ISSUE && op->id.len == 0)
        checked.id = idem_text("?"); /* the server makes it */
    status = idem__op_check(&checked, err);
    if (status == IDEM_OK)
        status = check(op, err);
    if (status != IDEM_OK)
        return status;
    write_op(&written, op);
    status = cli_client_ask(client, &written.command, op->wait_ms, &reply,
                            &asked, err);
    if (status != IDEM_OK)
        return status;
    status = read_answer(op, reply, answer, err);
    freeReplyObject(reply);
    if (status == IDEM_OK && answer->verdict == IDEM_V_STALE && asked > 1 &&
        op->verb == IDEM_RELEASE && was_released(client, op))
        answer->verdict = IDEM_V_OK_DONE;
    return status;
}

/* ---- listing --------------------------------------------------------------
 */

static void
write_scan(struct cli_command *c, const struct idem_filter *filter,
           const struct idem_cursor *cursor, size_t count)
{
    add_word(c, "SCAN");
    add_word(c, cursor->text);
    if (filter->type) {
        add_word(c, "TYPE");
        add_word(c, idem_type_name(filter->type));
    }
    if (filter->scope.len > 0) {
        add_word(c, "SCOPE");
        add(c, filter->scope);
    }
    if (filter->state) {
        add_word(c, "STATE");
        add_word(c, idem_state_name(filter->state));
    }
    if (filter->doubt)
        add_word(c, "DOUBT");
    add_option(c, "COUNT", (int64_t)(count > 1000 ? 1000 : count));
}

enum idem_status
cli_client_scan(struct cli_client *client, const struct idem_filter *filter,
                struct idem_cursor *cursor, size_t count, idem_each_fn *each,
                void *arg, struct idem_error *err)
{
    struct cli_command command = {0};
    redisReply *reply = NULL;
    enum idem_status status;
    bool go_on = true;
    int asked;

    write_scan(&command, filter, cursor, count);
    status = cli_client_ask(client, &command, 0, &reply, &asked, err);
    if (status != IDEM_OK)
        return status == IDEM_ERR_LOST
                   ? idem__fail(err, IDEM_ERR_UNAVAILABLE, "no answer")
                   : status;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 2 ||
        reply->element[1]->len >= sizeof(cursor->text)) {
        freeReplyObject(reply);
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "the server does not answer as idem does");
    }
    snprintf(cursor->text, sizeof(cursor->text), "%s", reply->element[1]->str);
    for (size_t i = 2; i < reply->elements && go_on; i++) {
        const redisReply *row = reply->element[i];
        struct idem_record record = {0};

        read_record(&record, row->element, row->elements);
        if (filter->updated_before == 0 ||
            record.updated < filter->updated_before)
            go_on = each(arg, &record);
    }
    freeReplyObject(reply);
    return IDEM_OK;
}
