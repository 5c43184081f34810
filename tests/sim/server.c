/*
 * server.c - see server.h.
 */
#include "server.h"

#include "world.h"

#include "../../src/base/error.h"

#include <stdlib.h>
#include <string.h>

#define TRIP (200 * SIM_US)
#define TIMEOUT (2 * SIM_S)
#define LINKS 64
#define WALL_START_US (INT64_C(1790000000) * 1000000)

struct sim_server {
    enum sim_kind kind;
    struct idem_store *data, *replica;
    uint64_t written, copied; /* batches applied here, and at the replica */
    int64_t lag;              /* of the replica */
    struct batch *to_copy, **to_copy_end;
    bool copying;
    int epoch; /* counts restarts and failovers: older connections are cut */
    int64_t down_until;
    int64_t clock_offset_us;
    uint64_t lose;
    uint8_t (*keys)[IDEM_KEY_LEN]; /* all that were ever written */
    size_t key_count;
    struct {
        struct sim_process *process;
        int64_t until;
    } cuts[LINKS];
};

/* What an engine's store sends: swaps, loads, a scan, the time, a sweep. */
enum what { ASK_SWAP, ASK_LOAD, ASK_NOW, ASK_SWEEP };

struct ask {
    struct sim_server *server;
    struct sim_process *from;
    enum what what;
    int epoch;
    struct idem_swap *swaps;
    struct idem_load *loads;
    size_t count;
    int64_t time; /* of the sweep; of the clock that is told */
    uint64_t barrier;
    struct idem_arena arena;
    bool abandoned, answered;
};

/* A batch on its way to the replica. */
struct batch {
    struct batch *next;
    struct ask *ask;
};

struct sim_store {
    struct idem_store base;
    struct sim_server *server;
    struct sim_process *process;
    int epoch;
    int64_t swept_at;
};

static struct idem_record *
keep_record(struct idem_arena *arena, const struct idem_record *record)
{
    struct idem_record *copy = idem_arena_take(arena, sizeof(*copy));

    if (!copy || !idem_arena_record(arena, record, copy))
        abort();
    return copy;
}

static bool
is_cut(const struct sim_server *server, const struct sim_process *process)
{
    for (int i = 0; i < LINKS; i++) {
        if (server->cuts[i].process == process &&
            server->cuts[i].until > sim_now())
            return true;
    }
    return false;
}

static bool
is_down(const struct sim_server *server)
{
    return server->down_until > sim_now();
}

/* ---- the server's side: functions that run in no time -------------------- */

static void copy_next(void *arg);

static void
reply(void *arg)
{
    struct ask *ask = arg;

    if (ask->abandoned || ask->epoch != ask->server->epoch ||
        is_cut(ask->server, ask->from) || !sim_alive(ask->from))
        return;
    ask->answered = true;
    sim_wake(ask);
}

/* When everything that this answer has seen is at the replica. */
static void
reply_when_safe(void *arg)
{
    struct ask *ask = arg;
    struct sim_server *server = ask->server;

    if (ask->epoch != server->epoch)
        return;
    if (server->kind == SIM_REPLICA && server->copied < ask->barrier) {
        sim_after(50 * SIM_US, reply_when_safe, ask);
        return;
    }
    if (server->lose && sim_once_in(server->lose))
        return;
    sim_after(sim_delay(TRIP), reply, ask);
}

static void
copy_next(void *arg)
{
    struct sim_server *server = arg;
    struct batch *batch = server->to_copy;
    struct idem_arena arena = {NULL, 0};

    server->copying = false;
    if (!batch)
        return;
    server->to_copy = batch->next;
    if (!server->to_copy)
        server->to_copy_end = &server->to_copy;
    for (size_t i = 0; i < batch->ask->count; i++) {
        /* The replica does what the primary did, without looking. */
        struct idem_swap swap = batch->ask->swaps[i];
        struct idem_load load = {0};

        if (swap.outcome != IDEM_SWAP_STORED)
            continue;
        memcpy(load.key, swap.key, IDEM_KEY_LEN);
        server->replica->type->load(server->replica, &load, 1, &arena, NULL);
        swap.expected =
            load.record.state == IDEM_STATE_ABSENT ? 0 : load.record.rev;
        server->replica->type->swap(server->replica, &swap, 1, &arena, NULL);
    }
    idem_arena_clear(&arena);
    free(batch);
    server->copied++;
    if (server->to_copy) {
        server->copying = true;
        sim_after(sim_delay(server->lag), copy_next, server);
    }
}

static void
note_key(struct sim_server *server, const uint8_t *key)
{
    for (size_t i = 0; i < server->key_count; i++) {
        if (memcmp(server->keys[i], key, IDEM_KEY_LEN) == 0)
            return;
    }
    server->keys =
        realloc(server->keys, (server->key_count + 1) * sizeof(*server->keys));
    if (!server->keys)
        abort();
    memcpy(server->keys[server->key_count++], key, IDEM_KEY_LEN);
}

static void
send_to_replica(struct sim_server *server, struct ask *ask)
{
    struct batch *batch = calloc(1, sizeof(*batch));

    batch->ask = ask;
    *server->to_copy_end = batch;
    server->to_copy_end = &batch->next;
    server->written++;
    if (!server->copying) {
        server->copying = true;
        sim_after(sim_delay(server->lag), copy_next, server);
    }
}

static int64_t
clock_us(const struct sim_server *server)
{
    return WALL_START_US + sim_now() / SIM_US + server->clock_offset_us;
}

/* A request arrives. Nobody may be waiting for its answer any more. */
static void
arrive(void *arg)
{
    struct ask *ask = arg;
    struct sim_server *server = ask->server;

    if (is_down(server) || ask->epoch != server->epoch ||
        is_cut(server, ask->from))
        return;
    switch (ask->what) {
    case ASK_SWAP:
        for (size_t i = 0; i < ask->count; i++)
            note_key(server, ask->swaps[i].key);
        server->data->type->swap(server->data, ask->swaps, ask->count,
                                 &ask->arena, NULL);
        if (server->kind == SIM_REPLICA)
            send_to_replica(server, ask);
        break;
    case ASK_LOAD:
        server->data->type->load(server->data, ask->loads, ask->count,
                                 &ask->arena, NULL);
        break;
    case ASK_NOW:
        ask->time = clock_us(server);
        break;
    case ASK_SWEEP:
        server->data->type->tend(server->data, ask->time);
        if (server->replica)
            server->replica->type->tend(server->replica, ask->time);
        break;
    }
    ask->barrier = server->written;
    reply_when_safe(ask);
}

/* ---- the engine's side --------------------------------------------------- */

/* Send it and wait. False: no answer came, and nobody knows. Asks are never
 * freed: a late one may still arrive. */
static bool
send_and_wait(struct ask *ask)
{
    int64_t deadline = sim_now() + TIMEOUT;

    sim_after(sim_delay(TRIP), arrive, ask);
    while (!ask->answered && sim_now() < deadline &&
           ask->epoch == ask->server->epoch)
        sim_wait(ask, sim_now() + 100 * SIM_MS < deadline
                          ? sim_now() + 100 * SIM_MS
                          : deadline);
    ask->abandoned = true;
    return ask->answered;
}

/* Nothing was sent if this fails. */
static bool
connected(struct sim_store *self)
{
    if (self->epoch == self->server->epoch && sim_once_in(1000))
        self->epoch = -1; /* the connection broke by itself */
    if (self->epoch != self->server->epoch) {
        sim_sleep(sim_delay(2 * TRIP));
        if (is_down(self->server) || is_cut(self->server, self->process))
            return false;
        self->epoch = self->server->epoch;
        self->base.link++;
    }
    return true;
}

static struct ask *
new_ask(struct sim_store *self, enum what what, size_t count)
{
    struct ask *ask = calloc(1, sizeof(*ask));

    if (!ask)
        abort();
    ask->server = self->server;
    ask->from = self->process;
    ask->what = what;
    ask->epoch = self->epoch;
    ask->count = count;
    return ask;
}

static enum idem_status
sim_swap(struct idem_store *store, struct idem_swap *swaps, size_t count,
         struct idem_arena *arena, struct idem_error *err)
{
    struct sim_store *self = (struct sim_store *)store;
    struct ask *ask;

    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = IDEM_SWAP_NOT_STORED;
    if (!connected(self))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "the server is away");
    ask = new_ask(self, ASK_SWAP, count);
    ask->swaps = calloc(count, sizeof(*ask->swaps));
    for (size_t i = 0; i < count; i++) {
        ask->swaps[i] = swaps[i];
        if (swaps[i].record)
            ask->swaps[i].record = keep_record(&ask->arena, swaps[i].record);
    }
    if (!send_and_wait(ask)) {
        self->epoch = -1;
        for (size_t i = 0; i < count; i++)
            swaps[i].outcome = IDEM_SWAP_LOST;
        return idem__fail(err, IDEM_ERR_LOST, "no answer");
    }
    for (size_t i = 0; i < count; i++) {
        swaps[i].outcome = ask->swaps[i].outcome;
        if (swaps[i].outcome == IDEM_SWAP_REFUSED)
            swaps[i].found = *keep_record(arena, &ask->swaps[i].found);
    }
    return IDEM_OK;
}

static enum idem_status
sim_load(struct idem_store *store, struct idem_load *loads, size_t count,
         struct idem_arena *arena, struct idem_error *err)
{
    struct sim_store *self = (struct sim_store *)store;
    struct ask *ask;

    if (!connected(self))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "the server is away");
    ask = new_ask(self, ASK_LOAD, count);
    ask->loads = calloc(count, sizeof(*ask->loads));
    memcpy(ask->loads, loads, count * sizeof(*loads));
    if (!send_and_wait(ask)) {
        self->epoch = -1;
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "no answer");
    }
    for (size_t i = 0; i < count; i++)
        loads[i].record = *keep_record(arena, &ask->loads[i].record);
    return IDEM_OK;
}

static enum idem_status
sim_scan(struct idem_store *store, const struct idem_query *query,
         struct idem_error *err)
{
    struct sim_store *self = (struct sim_store *)store;

    (void)err;
    return self->server->data->type->scan(self->server->data, query, err);
}

static enum idem_status
sim_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct sim_store *self = (struct sim_store *)store;
    struct ask *ask;

    if (!connected(self))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "the server is away");
    ask = new_ask(self, ASK_NOW, 0);
    if (!send_and_wait(ask)) {
        self->epoch = -1;
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "no answer");
    }
    *now_us = ask->time;
    return IDEM_OK;
}

static void
sim_tend(struct idem_store *store, int64_t drop_ms)
{
    struct sim_store *self = (struct sim_store *)store;
    struct ask *ask;

    if (drop_ms == 0 || sim_now() < self->swept_at || !connected(self))
        return;
    self->swept_at = sim_now() + SIM_S;
    ask = new_ask(self, ASK_SWEEP, 0);
    ask->time = drop_ms;
    sim_after(sim_delay(TRIP), arrive, ask);
}

static void
sim_close(struct idem_store *store)
{
    (void)store;
}

static const struct idem_store_type with_clock = {
    .scheme = "sim",
    .swap = sim_swap,
    .load = sim_load,
    .scan = sim_scan,
    .now = sim_clock,
    .tend = sim_tend,
    .close = sim_close,
};

static const struct idem_store_type without_clock = {
    .scheme = "sim",
    .swap = sim_swap,
    .load = sim_load,
    .scan = sim_scan,
    .tend = sim_tend,
    .close = sim_close,
};

struct idem_store *
sim_server_open(struct sim_server *server)
{
    struct sim_store *self = calloc(1, sizeof(*self));

    if (!self)
        abort();
    self->base.type =
        server->kind == SIM_NO_CLOCK ? &without_clock : &with_clock;
    self->base.max_record = 1 << 20;
    self->base.clocks = &idem__system_clocks;
    self->server = server;
    self->process = sim_self();
    self->epoch = -1;
    return &self->base;
}

/* ---- the server itself --------------------------------------------------- */

static struct idem_store *
new_data(void)
{
    struct idem_store_options options = {0};
    struct idem_store *store = NULL;

    if (idem__store_open("memory:", &options, &store, NULL) != IDEM_OK)
        abort();
    return store;
}

struct sim_server *
sim_server_new(enum sim_kind kind)
{
    struct sim_server *server = calloc(1, sizeof(*server));

    if (!server)
        abort();
    server->kind = kind;
    server->lag = TRIP * (int64_t[]){1, 50, 300}[sim_roll(3)];
    server->data = new_data();
    if (kind == SIM_REPLICA)
        server->replica = new_data();
    server->to_copy_end = &server->to_copy;
    return server;
}

void
sim_server_cut(struct sim_server *server, struct sim_process *from, int64_t ns)
{
    sim_tell("no line between %s and the server for %lld ms", sim_name(from),
             (long long)(ns / SIM_MS));
    for (int i = 0; i < LINKS; i++) {
        if (server->cuts[i].until <= sim_now()) {
            server->cuts[i].process = from;
            server->cuts[i].until = sim_now() + ns;
            return;
        }
    }
}

void
sim_server_restart(struct sim_server *server, int64_t ns)
{
    sim_tell("the server is away for %lld ms", (long long)(ns / SIM_MS));
    server->epoch++;
    server->down_until = sim_now() + ns;
}

static void
copy_key(struct idem_store *from, struct idem_store *to, const uint8_t *key)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_load load = {.with_result = true};
    struct idem_swap swap = {0};

    memcpy(load.key, key, IDEM_KEY_LEN);
    memcpy(swap.key, key, IDEM_KEY_LEN);
    from->type->load(from, &load, 1, &arena, NULL);
    if (load.record.state != IDEM_STATE_ABSENT) {
        swap.record = &load.record;
        to->type->swap(to, &swap, 1, &arena, NULL);
    }
    idem_arena_clear(&arena);
}

struct idem_store *
sim_server_copy(struct sim_server *server, struct idem_store *from)
{
    struct idem_store *to = new_data();

    for (size_t i = 0; i < server->key_count; i++)
        copy_key(from ? from : server->data, to, server->keys[i]);
    return to;
}

/* The replica takes over with what it has, and gets a replica of its own. */
void
sim_server_fail_over(struct sim_server *server)
{
    if (server->kind != SIM_REPLICA)
        return;
    sim_tell("failover: %llu batches had not reached the replica",
             (unsigned long long)(server->written - server->copied));
    server->epoch++;
    server->down_until = sim_now() + sim_delay(500 * SIM_MS);
    server->to_copy = NULL;
    server->to_copy_end = &server->to_copy;
    server->copied = server->written;
    idem__store_close(server->data);
    server->data = server->replica;
    server->replica = sim_server_copy(server, server->data);
}

void
sim_server_go_back(struct sim_server *server, struct idem_store *copy,
                   int64_t ns)
{
    sim_tell(copy ? "the server goes back to a copy"
                  : "the server comes back empty");
    server->epoch++;
    server->down_until = sim_now() + ns;
    idem__store_close(server->data);
    server->data = copy ? sim_server_copy(server, copy) : new_data();
}

void
sim_server_set_clock(struct sim_server *server, int64_t by_ns)
{
    sim_tell("the server's clock is set by %lld s", (long long)(by_ns / SIM_S));
    server->clock_offset_us += by_ns / SIM_US;
}

void
sim_server_lose(struct sim_server *server, uint64_t one_in)
{
    server->lose = one_in;
}

void
sim_server_repair(struct sim_server *server)
{
    server->down_until = sim_now();
    server->lose = 0;
    while (server->to_copy)
        copy_next(server);
    for (int i = 0; i < LINKS; i++)
        server->cuts[i].until = sim_now();
}

/* ---- its worlds ---------------------------------------------------------- */

static struct sim_server *the_server;

static void
make_single(void)
{
    the_server = sim_server_new(SIM_SINGLE);
}

static void
make_replica(void)
{
    the_server = sim_server_new(SIM_REPLICA);
}

static void
make_no_clock(void)
{
    the_server = sim_server_new(SIM_NO_CLOCK);
}

static enum idem_status
open_engine(const struct idem_options *options, struct idem_engine **engine,
            struct idem_error *err)
{
    struct idem__engine_inner inner = {.store = sim_server_open(the_server)};

    return idem__engine_open(NULL, options, &inner, engine, err);
}

static void
fault_happens(enum fault fault, struct sim_process *process)
{
    bool dies;

    switch (fault) {
    case FAULT_CUT:
        sim_server_cut(the_server, process, sim_delay(500 * SIM_MS));
        break;
    case FAULT_RESTART:
        sim_server_restart(the_server, sim_delay(200 * SIM_MS));
        break;
    case FAULT_FAILOVER: /* preferably while something is on its way */
        for (int i = 0; i < 200 && the_server->copied == the_server->written;
             i++)
            sim_sleep(SIM_MS);
        sim_sleep((int64_t)sim_roll((uint64_t)the_server->lag));
        /* An engine that lives sends again what was lost, so in half of the
         * cases the one that wrote it dies in the same moment. */
        if (the_server->to_copy)
            process = the_server->to_copy->ask->from;
        dies = sim_once_in(2) && world_kill_now(process);
        sim_server_fail_over(the_server);
        if (dies) {
            sim_sleep(sim_delay(100 * SIM_MS));
            world_start_again(process);
        }
        break;
    case FAULT_LOSE:
        sim_server_lose(the_server, 3);
        sim_sleep(sim_delay(200 * SIM_MS));
        sim_server_lose(the_server, 0);
        break;
    default:
        break;
    }
}

static void
set_clock(int64_t by_ns)
{
    sim_server_set_clock(the_server, by_ns);
}

static void
repair(void)
{
    sim_server_repair(the_server);
}

#define SERVER_WORLD(is_called, makes, has)                                    \
    {                                                                          \
        .name = is_called, .engines = 3, .keys = 8, .make = makes,             \
        .faults =                                                              \
            FAULTS_COMMON | FAULT(CUT) | FAULT(RESTART) | FAULT(LOSE) | (has), \
        .open = open_engine, .fault = fault_happens, .set_clock = set_clock,   \
        .repair = repair,                                                      \
    }

const struct world world_single =
    SERVER_WORLD("single", make_single, FAULT(SERVER_CLOCK));
const struct world world_replica = SERVER_WORLD(
    "replica", make_replica, FAULT(SERVER_CLOCK) | FAULT(FAILOVER));
const struct world world_no_clock = SERVER_WORLD("no-clock", make_no_clock, 0);
