/*
 * cmd_forget.c - idem forget: make a record free.
 */
#include "verb.h"

int
cli_forget(int argc, char **argv)
{
    return cli_plain_verb(
        IDEM_FORGET, "forget SCOPE ID [options]",
        "An operator's right: forget what is known of a request, so "
        "that it may run\nagain. Its fence stays: who holds the old "
        "one can change nothing.",
        argc, argv);
}
