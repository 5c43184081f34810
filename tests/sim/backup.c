/*
 * backup.c - a world whose database goes back to an older copy of itself, while
 * engines run or while none does.
 *
 * Each engine has an epoch-file, which outlives its process. An operator
 * accepts every loss that an engine reports. The server goes back only if the
 * engines promise to notice it (docs/stores.md): their connections break, and
 * the marks of all of them are lost; or there is one engine, which lives and
 * knows what it wrote last.
 *
 * Until the loss is accepted, no strict work may run again, whatever was lost.
 * After that it may run again if its engine was restarted or there are others;
 * otherwise it has to come into doubt.
 */
#include "server.h"
#include "world.h"

#include "../../src/engine/inner.h"
#include "../../src/record/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENGINES 2
#define DAY (24 * 3600 * SIM_S)

/* One epoch-file and the engine that has it now. */
struct server_place {
    struct sim_process *process;
    struct idem_engine *engine;     /* NULL: not open yet */
    bool accepted;                  /* since the server went back */
    uint64_t floor;                 /* the mark in the file was lost then */
    const struct idem_engine *told; /* this engine was told so */
};

static struct {
    struct sim_server *server;
    struct idem_store *copy;
    struct server_place places[ENGINES];
    int64_t copied_at, went_back_at;
    int64_t lost_since;   /* all that was written since may be lost */
    int64_t restarted_at; /* an engine, the last time */
    bool busy;            /* it is going back */
    bool promised; /* all engines have to notice it, also after a restart */
    bool accepted; /* by anybody */
} backup;

/* ---- epoch-files --------------------------------------------------------- */

static void
file_of(const struct server_place *place, char *name, size_t len)
{
    snprintf(name, len, "%s/epoch-%d", getenv("IDEM_SIM_DIR"),
             (int)(place - backup.places));
}

/* The fence of the mark in the file, and the key of the mark; 0: none. */
static uint64_t
read_mark(const struct server_place *place, uint8_t *key)
{
    char name[128], id[33] = "";
    unsigned long long fence = 0;
    FILE *file;

    file_of(place, name, sizeof(name));
    file = fopen(name, "r");
    if (!file)
        return 0;
    if (fscanf(file, "%32s %llu", id, &fence) != 2)
        fence = 0;
    fclose(file);
    idem__key(IDEM_TYPE_WORKER, idem_text("epoch"), idem_text(id), key);
    return fence;
}

/* A process that was killed has it locked for ever, so a new one gets a copy.
 */
static void
unlock_file(const struct server_place *place)
{
    char name[128], copy[136], line[256];
    size_t len;
    FILE *from, *to;

    file_of(place, name, sizeof(name));
    snprintf(copy, sizeof(copy), "%s.new", name);
    from = fopen(name, "r");
    if (!from)
        return;
    to = fopen(copy, "w");
    if (!to)
        abort();
    len = fread(line, 1, sizeof(line), from);
    fwrite(line, 1, len, to);
    fclose(from);
    fclose(to);
    if (rename(copy, name) != 0)
        abort();
}

static struct idem_record
look_up(struct idem_store *data, const uint8_t *key)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_load load = {0};
    struct idem_record record;

    memcpy(load.key, key, IDEM_KEY_LEN);
    data->type->load(data, &load, 1, &arena, NULL);
    record = load.record;
    idem_arena_clear(&arena);
    if (record.state == IDEM_STATE_ABSENT)
        record.fence = record.rev = 0;
    return record;
}

/* ---- engines ------------------------------------------------------------- */

/* The engine that looks at the end has the first file. */
static struct server_place *
place_of(const struct sim_process *process)
{
    int i = 0;

    (void)sscanf(sim_name(process), "engine-%d", &i);
    return &backup.places[i];
}

/* What was lost may run again. */
static void
excuse(void)
{
    struct truth_key *key;

    if (!backup.accepted ||
        (world_engine_count() == 1 && backup.restarted_at <= backup.lost_since))
        return;
    for (int i = 0; (key = world_key(i)); i++)
        truth_excuse(key);
}

static void
accept(struct server_place *place)
{
    uint8_t key[IDEM_KEY_LEN];

    place->accepted = backup.accepted = true;
    place->floor = read_mark(place, key);
    excuse();
}

static enum idem_status
open_engine(const struct idem_options *options, struct idem_engine **engine,
            struct idem_error *err)
{
    struct server_place *place = place_of(sim_self());
    bool looks = strncmp(sim_name(sim_self()), "engine", 6) != 0;
    char file[128];
    struct idem__engine_inner inner = {.store = sim_server_open(backup.server),
                                       .epoch_file = file,
                                       .accept_rollback = looks};
    enum idem_status status;

    if (place->process && place->process != sim_self())
        backup.restarted_at = sim_now();
    excuse();
    place->process = sim_self();
    place->engine = NULL;
    if (looks)
        accept(place);
    file_of(place, file, sizeof(file));
    unlock_file(place);
    status = idem__engine_open(NULL, options, &inner, engine, err);
    if (status == IDEM_OK)
        place->engine = *engine;
    return status;
}

/* A loss that spares the marks is noticed by the engine that lives only. */
static void
killed(struct sim_process *process)
{
    const struct server_place *place = place_of(process);
    struct truth_key *key;

    if (backup.promised || backup.went_back_at == 0 || place->accepted ||
        (place->engine && atomic_load(&place->engine->rolled_back)))
        return;
    for (int i = 0; (key = world_key(i)); i++)
        truth_excuse(key);
}

static bool
may_start(int64_t asked)
{
    return asked <= backup.went_back_at || !backup.promised ||
           place_of(sim_self())->accepted;
}

static bool
reports_loss(const struct server_place *place)
{
    return sim_alive(place->process) && place->engine &&
           atomic_load(&place->engine->rolled_back);
}

static void
one_report(struct server_place *place)
{
    const struct idem_engine *engine = place->engine;

    if (backup.went_back_at == 0)
        sim_fail("%s reports a loss, and there was none",
                 sim_name(place->process));
    if (atomic_load(&engine->epoch.accepted))
        return;
    if (place->told == engine)
        sim_fail("%s reports a loss again that was accepted",
                 sim_name(place->process));
    sim_sleep(sim_delay(500 * SIM_MS));
    if (place->engine != engine || !reports_loss(place) ||
        sim_now() >= world_until())
        return;
    sim_tell("the loss is accepted at %s", sim_name(place->process));
    place->told = engine;
    accept(place);
    idem__accept_rollback(place->engine);
}

static void
operator_main(void *arg)
{
    (void)arg;
    while (sim_now() < world_until()) {
        sim_sleep(sim_delay(200 * SIM_MS));
        for (int i = 0; i < ENGINES; i++) {
            if (sim_now() < world_until() && reports_loss(&backup.places[i]))
                one_report(&backup.places[i]);
        }
    }
}

/* ---- the server goes back ------------------------------------------------ */

/* The last loss is accepted everywhere, and every engine has a mark after it.
 */
static bool
is_settled(void)
{
    uint8_t key[IDEM_KEY_LEN];

    for (int i = 0; i < world_engine_count(); i++) {
        const struct server_place *place = &backup.places[i];

        if (reports_loss(place) || read_mark(place, key) <= place->floor ||
            (backup.promised && !place->accepted))
            return false;
    }
    return true;
}

/* Is every engine's mark newer than the one in the copy? */
static bool
marks_are_lost(void)
{
    uint8_t key[IDEM_KEY_LEN];

    for (int i = 0; i < world_engine_count(); i++) {
        uint64_t fence = read_mark(&backup.places[i], key);

        if (fence == 0 || look_up(backup.copy, key).fence >= fence)
            return false;
    }
    return true;
}

static bool
one_knows(void)
{
    const struct server_place *place = &backup.places[0];

    return world_engine_count() == 1 && sim_alive(place->process) &&
           place->engine;
}

/* Once the marks are lost; with one engine also before. */
static bool
may_go_back(bool early)
{
    for (int i = 0; i < 60 && sim_now() < world_until(); i++) {
        if (is_settled() && (marks_are_lost() || (early && one_knows())))
            return true;
        sim_sleep(100 * SIM_MS);
    }
    return false;
}

static void
go_back(void)
{
    struct idem_store *now = sim_server_copy(backup.server, NULL);
    struct truth_key *key;

    for (int i = 0; (key = world_key(i)); i++) {
        uint8_t digest[IDEM_KEY_LEN];
        char id[16];

        snprintf(id, sizeof(id), "key-%d", i);
        idem__key(IDEM_TYPE_REQUEST, idem_text("sim"), idem_text(id), digest);
        if (look_up(now, digest).rev == look_up(backup.copy, digest).rev)
            continue;
        sim_tell("%s is lost", id);
        truth_went_back(key);
    }
    idem__store_close(now);
    backup.promised = marks_are_lost();
    backup.lost_since = backup.copied_at;
    backup.accepted = false;
    for (int i = 0; i < ENGINES; i++) {
        backup.places[i].accepted = false;
        backup.places[i].told = NULL;
    }
    sim_tell("the copy was made at %.3f s%s", (double)backup.copied_at / 1e9,
             backup.promised ? ", and the marks are newer" : "");
    sim_server_go_back(backup.server, backup.copy,
                       sim_once_in(2) ? 0 : sim_delay(200 * SIM_MS));
    backup.went_back_at = sim_now();
}

/* Nobody sees that time passes. */
static void
days_pass(int64_t ns)
{
    for (int i = 0; i < world_engine_count(); i++) {
        if (sim_alive(backup.places[i].process))
            return;
    }
    truth_leeway += ns;
    sim_server_set_clock(backup.server, ns);
    for (int i = 0; i < world_engine_count(); i++)
        sim_set_clock(backup.places[i].process, ns);
}

/* All is lost, the mark too. The engine that is started now has to notice it,
 * because its file says that a loss was noticed before. */
static void
come_back_empty(void)
{
    struct truth_key *key;

    for (int i = 0; (key = world_key(i)); i++)
        truth_went_back(key);
    backup.promised = true;
    backup.lost_since = 0;
    sim_server_go_back(backup.server, NULL, sim_delay(100 * SIM_MS));
    backup.went_back_at = sim_now();
}

/* Before the operator looks. */
static void
restart_who_noticed(void)
{
    const struct server_place *place = &backup.places[0];

    for (int i = 0; i < 100 && !reports_loss(place); i++)
        sim_sleep(10 * SIM_MS);
    if (!reports_loss(place) || !world_kill_now(place->process))
        return;
    if (sim_once_in(2))
        come_back_empty();
    sim_sleep(sim_delay(100 * SIM_MS));
    world_start_again(place->process);
}

static void
restore_copy(void)
{
    bool dies[ENGINES] = {false};
    int victims = (int)sim_roll(4) - 1; /* nobody, one, or all */
    bool early = world_engine_count() == 1 && !sim_once_in(3);

    if (!backup.copy || early || !sim_once_in(3)) {
        backup.copy = sim_server_copy(backup.server, NULL);
        backup.copied_at = sim_now();
    }
    sim_sleep(sim_delay(early ? 200 * SIM_MS : SIM_S));
    if (!may_go_back(early))
        return;
    for (int i = 0; i < world_engine_count() && marks_are_lost(); i++) {
        if (victims > 1 || (victims == 1 && sim_once_in(2)))
            dies[i] = world_kill_now(backup.places[i].process);
    }
    if (sim_once_in(2))
        days_pass((int64_t)sim_roll(10) * DAY);
    go_back();
    for (int i = 0; i < ENGINES; i++) {
        if (!dies[i])
            continue;
        sim_sleep(sim_delay(100 * SIM_MS));
        world_start_again(backup.places[i].process);
    }
    if (!backup.promised && !sim_once_in(3))
        restart_who_noticed();
}

/* ---- the world ----------------------------------------------------------- */

static void
make(void)
{
    memset(&backup, 0, sizeof(backup));
    backup.server = sim_server_new(SIM_SINGLE);
    truth_may_start = may_start;
    sim_spawn("operator", operator_main, NULL);
}

static void
fault_happens(enum fault fault, struct sim_process *process)
{
    switch (fault) {
    case FAULT_CUT:
        sim_server_cut(backup.server, process, sim_delay(500 * SIM_MS));
        break;
    case FAULT_RESTART:
        sim_server_restart(backup.server, sim_delay(200 * SIM_MS));
        break;
    case FAULT_LOSE:
        sim_server_lose(backup.server, 3);
        sim_sleep(sim_delay(200 * SIM_MS));
        sim_server_lose(backup.server, 0);
        break;
    case FAULT_GO_BACK:
        if (backup.busy)
            break;
        backup.busy = true;
        restore_copy();
        backup.busy = false;
        break;
    default:
        break;
    }
}

static void
repair(void)
{
    sim_server_repair(backup.server);
}

const struct world world_backup = {
    .name = "backup",
    .engines = ENGINES,
    .keys = 8,
    .faults = FAULTS_COMMON | FAULT(CUT) | FAULT(RESTART) | FAULT(LOSE) |
              FAULT(GO_BACK),
    .make = make,
    .open = open_engine,
    .killed = killed,
    .fault = fault_happens,
    .repair = repair,
};
