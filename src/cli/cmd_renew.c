/*
 * cmd_renew.c - idem renew: more time for what was begun.
 */
#include "verb.h"

int
cli_renew(int argc, char **argv)
{
    return cli_plain_verb(
        IDEM_RENEW, "renew SCOPE ID FENCE LEASE [options]",
        "Extend the lease of what begin started, counted from now; "
        "LEASE is a time\nlike 30s. A lease never becomes shorter.",
        argc, argv);
}
