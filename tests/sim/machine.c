/*
 * machine.c - a machine with a disk, on which an engine has a journal.
 *
 * The journal's own code runs on tests/support/disk.h, by the table of system
 * calls that its tests use. Every call takes some time, so a process can be
 * killed, and the power can go, before each of them. The disk may be full, slow
 * or fail, and turn a bit that was written long ago. What a sync left behind
 * that failed is dropped when the journal says so (posix_fadvise).
 *
 * After a power cut the boot clock starts again, and the wall clock may be
 * wrong by hours, which the kernel then does not call synchronised.
 */
#include "machine.h"

#include "../../src/store/journal/journal.h"
#include "../support/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALL (20 * SIM_US)

static struct {
    struct disk *disk;
    struct idem_io io;
    struct idem_clocks clocks;
    char dir[64];
    int64_t full_until, slow_until, fails_until;
    int boots;
    bool sync_failed;
} machine;

/* ---- the disk ------------------------------------------------------------ */

static int
before_call(struct disk *disk, enum disk_call call)
{
    (void)disk;
    sim_sleep(sim_delay(sim_now() < machine.slow_until ? 2000 * CALL : CALL));
    if (sim_now() < machine.fails_until && sim_once_in(4)) {
        machine.sync_failed |= call == DISK_SYNC;
        return call != DISK_SYNC && sim_once_in(4) ? EINTR : EIO;
    }
    if (sim_now() < machine.full_until && call == DISK_ALLOCATE)
        return ENOSPC;
    return 0;
}

/* A write may be done in pieces. */
static size_t
part(struct disk *disk, size_t len)
{
    (void)disk;
    return len > 1 && sim_once_in(10) ? 1 + sim_roll(len - 1) : len;
}

static uint64_t
roll(struct disk *disk)
{
    (void)disk;
    return sim_random();
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* of the __wrap_… */

/* It is written to a file, so it must be the same in every run. */
pid_t
__wrap_getpid(void)
{
    return 42424;
}

int
__wrap_posix_fadvise64(int fd, off_t at, off_t len, int advice)
{
    (void)at;
    (void)len;
    if (advice == POSIX_FADV_DONTNEED && machine.disk)
        disk_forget(machine.disk, fd);
    return 0;
}

/* ---- clocks -------------------------------------------------------------- */

static bool
boot_id(void *arg, char id[IDEM__BOOT_ID_LEN])
{
    (void)arg;
    snprintf(id, IDEM__BOOT_ID_LEN, "boot-%d", machine.boots);
    return true;
}

static bool
synced(void *arg)
{
    (void)arg;
    return llabs(sim_clock_error(sim_self())) < SIM_S;
}

/* ---- the world ----------------------------------------------------------- */

void
machine_make(void)
{
    const struct disk_hooks hooks = {
        .before = before_call, .part = part, .random = roll};

    machine.disk = disk_new(&hooks);
    machine.io = disk_io(machine.disk);
    machine.clocks = idem__system_clocks;
    machine.clocks.boot_id = boot_id;
    machine.clocks.synced = synced;
    snprintf(machine.dir, sizeof(machine.dir), "%s", getenv("IDEM_SIM_DIR"));
}

enum idem_status
machine_open(const struct idem_store_options *options,
             struct idem_store **store, struct idem_error *err)
{
    struct journal_tuning tuning = {
        .io = &machine.io, .segment_len = 16384, .tail_len = 8192};
    struct idem_store_options with = *options;
    char url[128];
    enum idem_status status;

    with.clocks = &machine.clocks;
    snprintf(url, sizeof(url), "journal:%s", machine.dir);
    status = idem__journal_open(url, &with, &tuning, store, err);
    if (status == IDEM_ERR_CORRUPT || status == IDEM_ERR_UNSUPPORTED) {
        sim_tell("noticed: %s", err->text);
        disk_unrot(machine.disk, machine.dir); /* as from a copy */
    }
    return status;
}

static enum idem_status
open_engine(const struct idem_options *options, struct idem_engine **engine,
            struct idem_error *err)
{
    struct idem_store_options store = {.log = options->log};
    struct idem__engine_inner inner = {.clocks = &machine.clocks};
    enum idem_status status = machine_open(&store, &inner.store, err);

    return status == IDEM_OK
               ? idem__engine_open(NULL, options, &inner, engine, err)
               : status;
}

void
machine_killed(bool power)
{
    disk_close_all(machine.disk);
    if (!power)
        return;
    disk_cut_power(machine.disk, machine.dir,
                   sim_once_in(8)   ? DISK_NONE_WRITTEN
                   : sim_once_in(7) ? DISK_ALL_WRITTEN
                                    : DISK_TORN);
    machine.boots++;
}

static void
killed(struct sim_process *process)
{
    (void)process;
    machine_killed(false);
}

static void
cut_power(struct sim_process *process)
{
    int64_t hours = sim_once_in(3) ? (int64_t)sim_roll(48) - 12 : 0;

    sim_tell("power cut");
    world_kill(process);
    machine_killed(true);
    sim_sleep(sim_delay(SIM_S));
    sim_set_clock(process, hours * 3600 * SIM_S - sim_clock_error(process));
    sim_boot(process, sim_now());
    world_start_again(process);
}

/* For a while, or until a sync has failed. */
static void
fail_disk(void)
{
    sim_tell("the disk fails");
    machine.sync_failed = false;
    machine.fails_until = sim_now() + sim_delay(100 * SIM_MS);
    while (sim_now() < machine.fails_until && !machine.sync_failed)
        sim_sleep(SIM_MS);
}

void
machine_fault(enum fault fault)
{
    switch (fault) {
    case FAULT_FULL:
        sim_tell("the disk is full");
        machine.full_until = sim_now() + sim_delay(SIM_S);
        break;
    case FAULT_SLOW:
        sim_tell("the disk is slow");
        machine.slow_until = sim_now() + sim_delay(200 * SIM_MS);
        break;
    case FAULT_EIO:
        fail_disk();
        break;
    case FAULT_ROT:
        if (disk_rot(machine.disk, machine.dir,
                     sim_once_in(3) ? ".idx" : ".seg"))
            sim_tell("a bit is turned");
        break;
    default:
        break;
    }
}

/* Sometimes the program does not survive that the disk fails, and then the
 * machine. */
static void
fault_happens(enum fault fault, struct sim_process *process)
{
    if (fault == FAULT_POWER)
        cut_power(process);
    else
        machine_fault(fault);
    if (fault != FAULT_EIO)
        return;
    if (sim_once_in(2) && sim_alive(process)) {
        world_kill(process);
        sim_sleep(sim_delay(50 * SIM_MS));
        process = world_start_again(process);
        sim_sleep(sim_delay(50 * SIM_MS));
    }
    if (sim_once_in(2) && sim_alive(process))
        cut_power(process);
}

void
machine_repair(void)
{
    machine.full_until = machine.slow_until = machine.fails_until = 0;
    disk_unrot(machine.disk, machine.dir);
}

const struct world world_journal = {
    .name = "journal",
    .engines = 1,
    .keys = TRUTH_KEYS,
    .alone = true,
    .keeps_time = true,
    .faults = FAULTS_COMMON | FAULT(POWER) | FAULT(FULL) | FAULT(SLOW) |
              FAULT(EIO) | FAULT(ROT),
    .make = machine_make,
    .open = open_engine,
    .killed = killed,
    .fault = fault_happens,
    .repair = machine_repair,
};
