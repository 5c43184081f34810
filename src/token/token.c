/*
 * token.c - creates, issues and redeems tokens.
 */
#include "../record/record.h"

#include <idem/token.h>
#include <sodium.h>
#include <string.h>

void
idem_token_make(char token[IDEM_TOKEN_LEN + 1])
{
    uint8_t random[24];

    /* A token that begins with "-" would look like a command-line option. */
    do {
        randombytes_buf(random, sizeof(random));
        sodium_bin2base64(token, IDEM_TOKEN_LEN + 1, random, sizeof(random),
                          sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    } while (token[0] == '-');
}

enum idem_status
idem_token_issue(struct idem_engine *engine, struct idem_bytes subject,
                 int64_t ttl_ms, char token[IDEM_TOKEN_LEN + 1],
                 struct idem_error *err)
{
    struct idem_answer answer = {0};
    enum idem_status status;

    idem_token_make(token);
    status = idem_do(engine,
                     &(struct idem_op){.verb = IDEM_ISSUE,
                                       .scope = subject,
                                       .id = idem_text(token),
                                       .ttl_ms = ttl_ms},
                     &answer, err);
    if (status != IDEM_OK)
        return status;
    if (answer.verdict != IDEM_V_ISSUED)
        status = idem__fail(err, IDEM_ERR_INTERNAL,
                            "a fresh token already existed: the random source "
                            "is broken");
    idem_answer_clear(&answer);
    return status;
}

enum idem_status
idem_token_redeem(struct idem_engine *engine, struct idem_bytes subject,
                  const char *token, enum idem_verdict *verdict,
                  struct idem_error *err)
{
    struct idem_answer answer = {0};
    uint8_t nonce[IDEM_NONCE_LEN];
    struct idem_op op = {.verb = IDEM_REDEEM,
                         .scope = subject,
                         .id = idem_text(token),
                         .nonce = nonce};
    enum idem_status status;

    /* With the nonce, a second attempt after a lost answer recognises
     * itself. */
    randombytes_buf(nonce, sizeof(nonce));
    status = idem_do(engine, &op, &answer, err);
    if (status == IDEM_ERR_LOST)
        status = idem_do(engine, &op, &answer, err);
    if (status != IDEM_OK)
        return status;
    *verdict = answer.verdict;
    idem_answer_clear(&answer);
    return IDEM_OK;
}
