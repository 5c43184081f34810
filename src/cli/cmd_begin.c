/*
 * cmd_begin.c - idem begin: claim a request.
 */
#include "verb.h"

#include <sodium.h>
#include <string.h>

struct begin {
    struct cli_verb verb;
    int64_t lease, ttl, wait;
    bool loose, strict, token;
    const char *fingerprint, *payload, *nonce, *subject;
    uint8_t fingerprint_bytes[IDEM_FINGERPRINT_LEN];
    uint8_t nonce_bytes[IDEM_NONCE_LEN];
};

/* The fingerprint of the request, given directly or computed from bytes. */
static int
read_fingerprint(struct begin *b, struct idem_op *op)
{
    struct idem_buf payload;
    struct idem_error err = {0};
    int code;

    if (b->fingerprint && b->payload)
        return cli_usage_error("give --fingerprint or --payload, not both");
    code = cli_read_hex("a fingerprint", b->fingerprint, b->fingerprint_bytes,
                        IDEM_FINGERPRINT_LEN);
    if (code >= 0)
        return code;
    if (b->payload) {
        if (cli_read_value(b->payload, &payload, &err) != IDEM_OK) {
            idem_buf_clear(&payload);
            return cli_fail(&err);
        }
        crypto_generichash(b->fingerprint_bytes, IDEM_FINGERPRINT_LEN,
                           payload.data, payload.len, NULL, 0);
        idem_buf_clear(&payload);
    }
    if (b->fingerprint || b->payload)
        op->fingerprint = b->fingerprint_bytes;
    return -1;
}

static int
fill(struct begin *b, struct idem_op *op)
{
    int code;

    if (b->loose && b->strict)
        return cli_usage_error("give --strict or --loose, not both");
    if ((code = cli_check_time("--lease", &b->lease)) >= 0 ||
        (code = cli_check_time("--ttl", &b->ttl)) >= 0 ||
        (code = read_fingerprint(b, op)) >= 0 ||
        (code = cli_read_hex("a nonce", b->nonce, b->nonce_bytes,
                             IDEM_NONCE_LEN)) >= 0)
        return code;
    op->nonce = b->nonce ? b->nonce_bytes : NULL;
    op->type = b->token ? IDEM_TYPE_TOKEN : IDEM_TYPE_REQUEST;
    op->mode = b->loose ? IDEM_LOOSE : IDEM_STRICT;
    op->lease_ms = cli_ms_or_default(b->lease);
    op->ttl_ms = cli_ms_or_default(b->ttl);
    op->wait_ms = b->wait;
    op->subject = idem_text(b->subject);
    return -1;
}

int
cli_begin(int argc, char **argv)
{
    struct begin b = {.lease = CLI_UNSET_MS, .ttl = CLI_UNSET_MS};
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&b.verb),
        {"lease", 'l', CLI_MS, &b.lease, "TIME",
         "how long the work may take until finish or renew; after that it is "
         "in "
         "doubt (strict) or may start again (loose); default 30s"},
        CLI_TTL_OPTION(&b.ttl),
        {"wait", 'w', CLI_MS, &b.wait, "TIME",
         "if another caller works on it, wait this long for "
         "the result; default: return busy at once"},
        {"strict", 0, CLI_FLAG, &b.strict, NULL,
         "at most one execution, also if it fails; the default"},
        CLI_LOOSE_OPTION(&b.loose),
        {"token", 0, CLI_FLAG, &b.token, NULL,
         "ID is a token that was issued to SCOPE"},
        {"fingerprint", 'f', CLI_TEXT, &b.fingerprint, "HEX",
         "64 hex digits, a hash of the request; the same id "
         "with another fingerprint is a mismatch"},
        {"payload", 0, CLI_TEXT, &b.payload, "VALUE",
         "make the fingerprint from these bytes, from @FILE, "
         "or from standard input (-)"},
        {"nonce", 'n', CLI_TEXT, &b.nonce, "HEX",
         "16 random hex digits; a begin that is sent again with "
         "the same nonce gets \"started\" again"},
        CLI_SUBJECT_OPTION(&b.subject),
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "begin SCOPE ID [options]",
        .about = "Claim a request. \"started\" (exit code 0): do the work, "
                 "then finish it with "
                 "the fence that is printed. \"replay\" (10): it was done "
                 "before; the stored result "
                 "is printed.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };
    struct idem_op op = {.verb = IDEM_BEGIN};
    char **args;
    int code = cli_parse_key(&syntax, argc, argv, &args, &op);

    if (code < 0)
        code = fill(&b, &op);
    return code >= 0 ? code : cli_run_verb(&b.verb, &op);
}
