/*
 * remote.c - a world with a server: engines with idem+unix: URLs reach the real
 * `idem serve` over the simulated network. Its records lie in a journal on the
 * simulated disk, or in a simulated database.
 */
#include "machine.h"
#include "net.h"
#include "server.h"
#include "world.h"

#include "../../src/serve/core/listen.h"
#include "../../src/serve/core/server.h"

#include <string.h>

#define ADDRESS "/sim/idem"
#define URL "idem+unix:" ADDRESS "?timeout_ms="

static struct {
    struct sim_process *process;
    struct sim_server *database; /* NULL: a journal */
    bool down;
    bool hurried; /* clients do not wait long */
} serving;

enum idem_status __real_idem__store_open(const char *url,
                                         const struct idem_store_options *with,
                                         struct idem_store **store,
                                         struct idem_error *err);

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* of the __wrap_… */

/* The server's store. */
enum idem_status
__wrap_idem__store_open(const char *url, const struct idem_store_options *with,
                        struct idem_store **store, struct idem_error *err)
{
    if (strcmp(url, "sim:") != 0)
        return __real_idem__store_open(url, with, store, err);
    if (!serving.database)
        return machine_open(with, store, err);
    *store = sim_server_open(serving.database);
    return IDEM_OK;
}

enum idem_status
__wrap_server_listen_unix(const char *path, unsigned mode, const char *group,
                          int *fd, bool *own, struct idem_error *err)
{
    (void)mode;
    (void)group;
    (void)err;
    *fd = net_listen(path);
    *own = false;
    return IDEM_OK;
}

enum idem_status
__wrap_server_socket_try(const char *path, struct idem_error *err)
{
    (void)path;
    (void)err;
    return IDEM_OK;
}

static void
serve_main(void *arg)
{
    struct server_config config;

    (void)arg;
    server_config_init(&config);
    config.store = (char *)"sim:";
    config.socket = (char *)ADDRESS;
    config.audit = (char *)"none";
    config.max_command = config.max_result + 65536;
    config.log_level = LOG_WARNING;
    for (;;) { /* as systemd does */
        (void)server_run(&config);
        sim_sleep(100 * SIM_MS);
    }
}

static void
start_server(void)
{
    const struct sim_process *before = serving.process;

    serving.process = sim_spawn("server", serve_main, NULL);
    if (before)
        sim_same_clocks(serving.process, before);
    serving.down = false;
}

static void
make(void)
{
    memset(&serving, 0, sizeof(serving));
    serving.hurried = sim_once_in(2);
    if (sim_once_in(3))
        serving.database = sim_server_new(SIM_SINGLE);
    else
        machine_make();
    start_server();
}

static enum idem_status
open_engine(const struct idem_options *options, struct idem_engine **engine,
            struct idem_error *err)
{
    return idem_open(serving.hurried ? URL "500" : URL "2000", options, engine,
                     err);
}

static void
killed(struct sim_process *process)
{
    net_killed(process, sim_once_in(4));
}

/* The process dies, or with it the machine. */
static void
kill_server(bool power)
{
    if (serving.down)
        return;
    serving.down = true;
    sim_tell(power ? "power cut" : "the server is killed");
    sim_kill(serving.process);
    net_killed(serving.process, power);
    if (!serving.database)
        machine_killed(power);
    sim_sleep(sim_delay(200 * SIM_MS));
    if (power && !serving.database)
        sim_boot(serving.process, sim_now());
    start_server();
}

/* As SIGSTOP, or with its machine, whose clocks then stand still. */
static void
stop_server(int64_t ns)
{
    if (!sim_once_in(3)) {
        sim_pause(serving.process, ns);
        return;
    }
    truth_leeway += ns;
    sim_freeze(serving.process, ns);
    sim_sleep(ns);
    sim_set_clock(serving.process, ns);
}

/* Of the server's machine. Where a database tells the time, a server may not
 * start under a wrong one. */
static void
set_clock(int64_t by_ns)
{
    if (!serving.database)
        sim_set_clock(serving.process, by_ns);
}

static void
fault_happens(enum fault fault, struct sim_process *process)
{
    switch (fault) {
    case FAULT_CUT:
        net_hold(sim_once_in(2) ? process : serving.process,
                 sim_delay(500 * SIM_MS));
        break;
    case FAULT_RESET:
        net_reset(process);
        break;
    case FAULT_HALF_OPEN:
        net_lose(process);
        break;
    case FAULT_RESTART:
        kill_server(false);
        break;
    case FAULT_POWER:
        kill_server(true);
        break;
    case FAULT_SERVER_PAUSE:
        if (!serving.down)
            stop_server(sim_delay(world_lease_ns()));
        break;
    case FAULT_LOSE:
        if (serving.database) {
            sim_server_lose(serving.database, 3);
            sim_sleep(sim_delay(200 * SIM_MS));
            sim_server_lose(serving.database, 0);
        }
        break;
    default:
        if (!serving.database)
            machine_fault(fault);
    }
}

static void
repair(void)
{
    net_repair();
    if (serving.database)
        sim_server_repair(serving.database);
    else
        machine_repair();
    sim_pause(serving.process, 0);
}

static void
end(void)
{
    sim_kill(serving.process);
}

const struct world world_remote = {
    .name = "remote",
    .faults = FAULTS_COMMON | FAULT(CUT) | FAULT(RESET) | FAULT(HALF_OPEN) |
              FAULT(RESTART) | FAULT(POWER) | FAULT(SERVER_PAUSE) |
              FAULT(LOSE) | FAULT(FULL) | FAULT(SLOW) | FAULT(EIO) |
              FAULT(SERVER_CLOCK),
    .engines = 3,
    .keys = 16,
    .keeps_time = true,
    .make = make,
    .open = open_engine,
    .killed = killed,
    .fault = fault_happens,
    .set_clock = set_clock,
    .repair = repair,
    .end = end,
};
