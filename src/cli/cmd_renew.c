/*
 * cmd_renew.c - idem renew: extend the lease of a claim.
 */
#include "verb.h"

int
cli_renew(int argc, char **argv)
{
    return cli_plain_verb(IDEM_RENEW, "renew SCOPE ID FENCE LEASE [options]",
                          "Extend the lease of a claim. LEASE is a time such "
                          "as 30s, counted from now. A "
                          "lease never becomes shorter.",
                          argc, argv);
}
