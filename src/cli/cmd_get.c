/*
 * cmd_get.c - idem get: print a record.
 */
#include "verb.h"

int
cli_get(int argc, char **argv)
{
    return cli_plain_verb(IDEM_GET, "get SCOPE ID [options]",
                          "Show a record and its result. This changes nothing.",
                          argc, argv);
}
