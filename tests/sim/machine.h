/*
 * machine.h - a machine with a disk that has a journal, for other worlds.
 */
#ifndef IDEM_SIM_MACHINE_H
#define IDEM_SIM_MACHINE_H

#include "world.h"

void machine_make(void);
/* Open the journal for the process that calls this. */
enum idem_status machine_open(const struct idem_store_options *options,
                              struct idem_store **store,
                              struct idem_error *err);
/* Its process was killed, or the power went with it. */
void machine_killed(bool power);
void machine_fault(enum fault fault); /* full, slow, eio */
void machine_repair(void);

#endif
