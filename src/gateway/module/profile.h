/*
 * profile.h - how other APIs name their keys and which responses they use, for
 * clients that were written for those APIs (docs/gateway.md, "Profiles").
 */
#ifndef IDEM__GATEWAY_PROFILE_H
#define IDEM__GATEWAY_PROFILE_H

enum gateway_profile_name {
    GATEWAY_IETF, /* draft-ietf-httpapi-idempotency-key-header */
    GATEWAY_STRIPE,
    GATEWAY_OASIS, /* Repeatable Requests 1.0 */
    GATEWAY_PAYPAL,
    GATEWAY_PROFILES,
};

struct gateway_profile {
    const char *name;
    const char *keys;  /* sources separated by spaces, see source.h */
    unsigned mismatch; /* status for a key of another request */
};

static const struct gateway_profile gateway_profiles[GATEWAY_PROFILES] = {
    [GATEWAY_IETF] = {"ietf", "$http_idempotency_key", 422},
    [GATEWAY_STRIPE] = {"stripe", "$http_idempotency_key", 400},
    [GATEWAY_OASIS] = {"oasis",
                       "$http_repeatability_client_id/"
                       "$http_repeatability_request_id "
                       "$http_repeatability_request_id",
                       400},
    [GATEWAY_PAYPAL] = {"paypal", "$http_paypal_request_id", 422},
};

#endif
