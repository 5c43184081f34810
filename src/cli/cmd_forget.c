/*
 * cmd_forget.c - idem forget: delete a record, so that its key is free.
 */
#include "verb.h"

int
cli_forget(int argc, char **argv)
{
    return cli_plain_verb(
        IDEM_FORGET, "forget SCOPE ID [options]",
        "Delete the record of a request, so that it may run again. This needs "
        "the right to operate. First make sure that its worker has stopped: "
        "idem cannot stop it, and the work could run a second time. Old fences "
        "stay invalid: a caller that still works with one of them cannot "
        "change the new record. With --fence N only the claim with this fence "
        "is deleted.",
        argc, argv);
}
