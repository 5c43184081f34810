/*
 * cmd_release.c - idem release: give up a claim without an outcome.
 */
#include "verb.h"

int
cli_release(int argc, char **argv)
{
    return cli_plain_verb(IDEM_RELEASE, "release SCOPE ID FENCE [options]",
                          "Give up a claim whose work was not done, so that "
                          "the next begin may start it.",
                          argc, argv);
}
