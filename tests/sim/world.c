/*
 * world.c - engines and their clients in a world, and what happens to them.
 */
#include "world.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define ENGINES 3
#define LENGTH (20 * SIM_S)

const char *const fault_names[] = {
    "kill",  "pause",     "freeze",       "clock",        "drift",
    "cut",   "restart",   "failover",     "server-clock", "lose",
    "power", "full",      "slow",         "eio",          "rot",
    "reset", "half-open", "server-pause", "go-back"};

const struct world *const worlds[] = {&world_single,   &world_replica,
                                      &world_no_clock, &world_journal,
                                      &world_remote,   &world_backup};
const char *const world_names[] = {"single",  "replica", "no-clock",
                                   "journal", "remote",  "backup"};
const int world_count = sizeof(worlds) / sizeof(worlds[0]);

static const struct world *world;
static struct sim_load load;
static int engine_count, clients;
static int clocks_wrong, troubles;
static unsigned faults; /* of this run: not all faults of the world */

/* One engine's place: its process dies and another one comes. */
static struct place {
    struct sim_process *process;
    bool starting; /* it has not seen the time yet */
} places[ENGINES];

static void
quiet(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    sim_tell("log %d: %s", level, text);
}

static struct idem_engine *
open_engine(void)
{
    struct idem_options options = {.log = quiet};
    struct idem_engine *engine = NULL;
    struct idem_error err;

    for (int i = 0; i < 2000; i++) {
        if (world->open(&options, &engine, &err) == IDEM_OK)
            return engine;
        sim_tell("open: %s", err.text);
        sim_sleep(100 * SIM_MS);
    }
    sim_fail("an engine does not start: %s", err.text);
}

static void *
client_main(void *engine)
{
    load_client(&load, engine);
    return NULL;
}

static void
engine_main(void *arg)
{
    struct place *place = arg;
    struct sim_process *self = sim_self();
    struct idem_engine *engine = open_engine();
    struct idem_op look = {
        .verb = IDEM_GET, .scope = idem_text("sim"), .id = idem_text("first")};
    struct idem_answer answer = {0};
    pthread_t threads[8];

    while (idem_do(engine, &look, &answer, NULL) != IDEM_OK)
        sim_sleep(100 * SIM_MS);
    idem_answer_clear(&answer);
    if (place->process == self)
        place->starting = false;
    for (int i = 0; i < clients; i++)
        pthread_create(&threads[i], NULL, client_main, engine);
    for (int i = 0; i < clients; i++)
        pthread_join(threads[i], NULL);
    idem_close(engine);
}

/* ---- processes ----------------------------------------------------------- */

static struct place *
place_of(const struct sim_process *process)
{
    for (int i = 0; i < engine_count; i++) {
        if (places[i].process == process)
            return &places[i];
    }
    return NULL;
}

static void
start_engine(struct place *place)
{
    const struct sim_process *before = place->process;
    char name[16];

    snprintf(name, sizeof(name), "engine-%d", (int)(place - places));
    place->starting = true;
    place->process = sim_spawn(name, engine_main, place);
    if (before)
        sim_same_clocks(place->process, before);
}

void
world_kill(struct sim_process *process)
{
    sim_kill(process);
    if (world->killed)
        world->killed(process);
}

/* An engine that starts under a wrong clock believes it, as documented. So the
 * place is marked before the process is started again. */
bool
world_kill_now(struct sim_process *process)
{
    struct place *place = place_of(process);

    if (!place || !sim_alive(process) || (clocks_wrong && !world->keeps_time))
        return false;
    place->starting = true;
    world_kill(process);
    return true;
}

struct sim_process *
world_start_again(struct sim_process *process)
{
    struct place *place = place_of(process);

    start_engine(place);
    return place->process;
}

int64_t
world_lease_ns(void)
{
    return load.lease_ms * SIM_MS;
}

int64_t
world_until(void)
{
    return load.until;
}

int
world_engine_count(void)
{
    return engine_count;
}

struct truth_key *
world_key(int key)
{
    return key < load.key_count ? &load.keys[key] : NULL;
}

/* ---- faults -------------------------------------------------------------- */

/* An engine that starts under a wrong clock believes it, as documented. */
static bool
clocks_must_be_right(void)
{
    for (int i = 0; i < engine_count; i++) {
        if (places[i].starting && !world->keeps_time)
            return true;
    }
    return false;
}

/* The machine sleeps and does not know it; later its wall clock is set. */
static void
freeze(struct place *place)
{
    int64_t ns = sim_delay(world_lease_ns());

    truth_leeway += ns;
    sim_freeze(place->process, ns);
    clocks_wrong++;
    sim_sleep(ns + sim_delay(SIM_S));
    clocks_wrong--;
    sim_set_clock(place->process, ns);
}

static void
set_clock(enum fault fault, struct place *place)
{
    int64_t jump = ((int64_t)sim_roll(48) - 24) * 3600 * SIM_S;

    clocks_wrong++;
    load.clock_was_ahead |= jump > 0;
    if (fault == FAULT_CLOCK)
        sim_set_clock(place->process, jump);
    else
        world->set_clock(jump);
    sim_sleep(sim_delay(SIM_S));
    if (fault == FAULT_CLOCK)
        sim_set_clock(place->process, -jump);
    else
        world->set_clock(-jump);
    clocks_wrong--;
}

static void
one_fault(const struct setup *setup)
{
    struct place *place = &places[sim_roll((uint64_t)engine_count)];
    enum fault fault = (enum fault)sim_roll(FAULTS);

    while (!(faults & (1u << fault)))
        fault = (enum fault)sim_roll(FAULTS);
    if (setup->without & (1u << fault) || !sim_alive(place->process))
        return;
    switch (fault) {
    case FAULT_KILL:
        if (!world_kill_now(place->process))
            break;
        sim_sleep(sim_delay(100 * SIM_MS));
        start_engine(place);
        break;
    case FAULT_PAUSE:
        sim_pause(place->process, sim_delay(world_lease_ns()));
        break;
    case FAULT_FREEZE:
        if (!clocks_must_be_right())
            freeze(place);
        break;
    case FAULT_CLOCK:
    case FAULT_SERVER_CLOCK:
        if (!clocks_must_be_right())
            set_clock(fault, place);
        break;
    case FAULT_DRIFT:
        sim_drift(place->process, sim_once_in(2) ? 1 : -1);
        break;
    default:
        world->fault(fault, place->process);
    }
}

/* ---- a run --------------------------------------------------------------- */

static void
look_main(void *arg)
{
    struct idem_engine *engine = open_engine();

    (void)arg;
    load_look(&load, engine);
    idem_close(engine);
    if (world->end)
        world->end();
}

static void
trouble_main(void *setup)
{
    while (sim_now() < load.until) {
        sim_sleep(sim_delay(600 * SIM_MS));
        one_fault(setup);
    }
    troubles--;
}

/* Two at a time: one fault may come while another lasts. */
static void
chaos_main(void *setup)
{
    for (int i = 0; i < engine_count; i++)
        start_engine(&places[i]);
    for (troubles = 0; troubles < 2; troubles++)
        sim_spawn("trouble", trouble_main, setup);
    while (troubles > 0 || sim_now() < load.until)
        sim_sleep(100 * SIM_MS);
    world->repair();
    for (int i = 0; i < engine_count; i++)
        sim_pause(places[i].process, 0);
    sim_sleep(10 * SIM_S);
    if (world->alone)
        world_kill(places[0].process);
    sim_same_clocks(sim_spawn("look", look_main, NULL), places[0].process);
}

int
world_run(const struct setup *setup)
{
    int which = setup->world;

    sim_seed(setup->seed);
    if (which < 0)
        which = (int)sim_roll((uint64_t)world_count);
    world = worlds[which];
    world->make();
    faults = world->faults & (unsigned)(sim_random() | sim_random());
    if (sim_once_in(2))
        faults &= ~FAULT(FREEZE); /* it gives leeway to other mistakes */
    if (!faults)
        faults = world->faults;
    engine_count = 1 + (int)sim_roll((uint64_t)world->engines);
    clients = 1 + (int)sim_roll(6);
    load_init(&load, 1 + (int)sim_roll((uint64_t)world->keys), LENGTH);
    sim_tell("world %s, %d engines, %d clients each, lease %lld ms",
             world->name, engine_count, clients, (long long)load.lease_ms);
    sim_spawn("chaos", chaos_main, (void *)setup);
    if (!sim_run())
        sim_fail("some thread waits for ever");
    return 0;
}
