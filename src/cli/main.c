/*
 * main.c - the idem command: finds the subcommand and hands over.
 */
#include <idem/idem.h>
#include <stdio.h>

int
main(void)
{
    printf("idem %s\n", IDEM_VERSION);
    return 0;
}
