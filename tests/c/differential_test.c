/*
 * differential_test.c - random operations on a store and on memory:, the model;
 * every answer must agree.
 *
 * Two engines are driven side by side, one turn at a time, with the same
 * operations and the same clocks, which the test moves. A few keys, short
 * leases and short TTLs make every situation happen. Now and then both engines
 * are closed and opened again (the model keeps its records meanwhile), and what
 * both stores hold is compared record by record.
 *
 *   IDEM_TEST_SEED=7 IDEM_TEST_OPS=1000000 build/tests/c/differential_test
 */
#include "../../src/engine/engine.h"
#include "../support/stores.h"

#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#define KEYS 24
#define FENCES 4     /* remembered for a key */
#define FLYING 4096  /* operations not answered yet */
#define TEXT_LEN 400 /* an answer as text */

/* ---- clocks that the test moves --------------------------------------- */

static int64_t wall_now_us, boot_now_us;

static int64_t
read_wall(void *arg)
{
    (void)arg;
    return wall_now_us;
}

static int64_t
read_boot(void *arg)
{
    (void)arg;
    return boot_now_us;
}

static const struct idem_clocks test_clocks = {.wall_us = read_wall,
                                               .boot_us = read_boot};

static void
pass_us(int64_t us)
{
    wall_now_us += us;
    boot_now_us += us;
}

/* ---- a store seen through a window ------------------------------------ */

/*
 * Passes everything on to the store within, which it does not close. Both
 * windows tell the same time: that of the store under test where it lives by
 * our clocks, else the test's.
 */
struct window {
    struct idem_store base;
    struct idem_store *within;
    struct idem_store **timekeeper;
};

static enum idem_status
window_swap(struct idem_store *store, struct idem_swap *swaps, size_t count,
            struct idem_arena *arena, struct idem_error *err)
{
    struct idem_store *in = ((struct window *)store)->within;

    return in->type->swap(in, swaps, count, arena, err);
}

static enum idem_status
window_load(struct idem_store *store, struct idem_load *loads, size_t count,
            struct idem_arena *arena, struct idem_error *err)
{
    struct idem_store *in = ((struct window *)store)->within;

    return in->type->load(in, loads, count, arena, err);
}

static enum idem_status
window_scan(struct idem_store *store, const struct idem_query *query,
            struct idem_error *err)
{
    struct idem_store *in = ((struct window *)store)->within;

    return in->type->scan(in, query, err);
}

static enum idem_status
window_now(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct idem_store *keeper = *((struct window *)store)->timekeeper;

    if (keeper->type->local)
        return keeper->type->now(keeper, now_us, err);
    *now_us = wall_now_us;
    return IDEM_OK;
}

static void
window_tend(struct idem_store *store, int64_t drop_ms)
{
    struct window *window = (struct window *)store;
    struct idem_store *in = window->within;

    /* A shared store that has dropped an expired record saves its engine a
     * round, and each round has its own time: there, both keep everything. */
    if ((*window->timekeeper)->type->local && in->type->tend)
        in->type->tend(in, drop_ms);
}

static void
window_close(struct idem_store *store)
{
    (void)store;
}

#define WINDOW(is_local)                                                       \
    {                                                                          \
        .scheme = "window", .local = is_local, .swap = window_swap,            \
        .load = window_load, .scan = window_scan, .now = window_now,           \
        .tend = window_tend, .close = window_close                             \
    }

static const struct idem_store_type local_window = WINDOW(true);
static const struct idem_store_type shared_window = WINDOW(false);

/* ---- the two sides ---------------------------------------------------- */

struct told {
    bool done;
    char text[TEXT_LEN];
    uint64_t fence;
};

struct side {
    struct idem_store *store;
    struct idem_engine *engine;
    struct told told[FLYING];
};

static struct side real, model;
static const char *real_url;
static struct dice dice;

struct key {
    enum idem_type type;
    char scope[48], id[16];
    uint64_t fences[FENCES];
};

static struct key keys[KEYS];
static char scope_prefix[32];

/* Which operation flies in this place, and for which key. */
static struct {
    bool used;
    char asked[160];
    size_t key;
} flying[FLYING];

static struct idem_store *
open_store(const char *url)
{
    struct idem_store_options options = {.clocks = &test_clocks};
    struct idem_store *store = NULL;
    struct idem_error err = {0};

    if (idem__store_open(url, &options, &store, &err) != IDEM_OK)
        fail_msg("%s: %s", url, err.text);
    return store;
}

/* The real engine may have a key: nobody can tell from its answers. */
static bool sealed;
static char key_file[300];

static void
make_key(const char *folder)
{
    int fd;

    snprintf(key_file, sizeof(key_file), "%s/key", folder);
    fd = open(key_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (int i = 0; i < 32; i++)
        assert_int_equal(dprintf(fd, "%02x", i), 2);
    close(fd);
}

static void
open_engine(struct side *side)
{
    struct idem_options options = {
        .seal_key = side == &real && sealed ? key_file : NULL};
    struct window *window = calloc(1, sizeof(*window));
    struct idem__engine_inner inner = {
        .store = &window->base, .clocks = &test_clocks, .driven = true};
    struct idem_error err = {0};

    assert_non_null(window);
    window->base.type =
        real.store->type->local ? &local_window : &shared_window;
    window->base.max_record = real.store->max_record;
    window->within = side->store;
    window->timekeeper = &real.store;
    if (idem__engine_open(NULL, &options, &inner, &side->engine, &err) !=
        IDEM_OK)
        fail_msg("engine: %s", err.text);
}

/* Everything that an answer says, but the rev, which is random. */
static void
describe(const struct idem_record *r, char *out, size_t len)
{
    snprintf(out, len,
             "%.*s/%.*s %s %s %s kind %d flags %d attempt %" PRIu32
             " fence %" PRIu64 " times %" PRId64 " %" PRId64 " %" PRId64
             " %" PRId64 " nonce %016" PRIx64 " print %016" PRIx64
             " subject %.*s result %zu %016" PRIx64,
             (int)r->scope.len, (const char *)r->scope.data, (int)r->id.len,
             (const char *)r->id.data, idem_type_name(r->type),
             idem_state_name(r->state), idem_mode_name(r->mode), r->kind,
             r->flags, r->attempt, r->fence, r->created, r->updated,
             r->lease_until, r->expires,
             (uint64_t)XXH3_64bits(r->nonce, IDEM_NONCE_LEN),
             (uint64_t)XXH3_64bits(r->fingerprint, IDEM_FINGERPRINT_LEN),
             (int)r->subject.len, (const char *)r->subject.data, r->result.len,
             (uint64_t)XXH3_64bits(r->result.len ? r->result.data : "",
                                   r->result.len));
}

static void
note_answer(void *arg, enum idem_status status,
            const struct idem_answer *answer, const struct idem_error *err)
{
    struct told *told = arg;
    int len;

    (void)err;
    assert_false(told->done); /* called back once */
    told->done = true;
    told->fence = 0;
    if (status != IDEM_OK) {
        snprintf(told->text, TEXT_LEN, "error %s", idem_status_name(status));
        return;
    }
    len = snprintf(told->text, TEXT_LEN, "%s %" PRId64 " ",
                   idem_verdict_name(answer->verdict), answer->retry_after_ms);
    if (answer->record->state != IDEM_STATE_ABSENT)
        describe(answer->record, told->text + len, TEXT_LEN - (size_t)len);
    told->fence = answer->record->fence;
}

/* ---- random operations ------------------------------------------------ */

static uint8_t noise[70000];

static struct idem_bytes
random_result(void)
{
    static const size_t lengths[] = {0, 0, 1, 5, 20, 200, 3000};
    uint64_t roll = dice_roll(&dice, 300);
    size_t len = roll == 0   ? sizeof(noise)
                 : roll < 20 ? lengths[6]
                             : lengths[roll % 6];

    return (struct idem_bytes){len ? noise : NULL, len};
}

static enum idem_verb
random_verb(enum idem_type type)
{
    static const enum idem_verb request[] = {
        IDEM_BEGIN,  IDEM_BEGIN,  IDEM_BEGIN,   IDEM_BEGIN,
        IDEM_FINISH, IDEM_FINISH, IDEM_RELEASE, IDEM_RENEW,
        IDEM_SETTLE, IDEM_GET,    IDEM_FORGET};
    static const enum idem_verb token[] = {
        IDEM_ISSUE,  IDEM_ISSUE, IDEM_REDEEM, IDEM_REDEEM,  IDEM_BEGIN,
        IDEM_FINISH, IDEM_GET,   IDEM_FORGET, IDEM_RELEASE, IDEM_SETTLE};
    static const enum idem_verb lock[] = {IDEM_LOCK,  IDEM_LOCK,   IDEM_LOCK,
                                          IDEM_RENEW, IDEM_UNLOCK, IDEM_UNLOCK,
                                          IDEM_GET,   IDEM_FORGET};

    switch (type) {
    case IDEM_TYPE_REQUEST:
        return request[dice_roll(&dice, 11)];
    case IDEM_TYPE_TOKEN:
        return token[dice_roll(&dice, 10)];
    default:
        return lock[dice_roll(&dice, 8)];
    }
}

static void
random_op(struct idem_op *op, size_t *key_number)
{
    static uint8_t prints[2][IDEM_FINGERPRINT_LEN] = {{1}, {2}};
    static uint8_t nonce[IDEM_NONCE_LEN];
    static const char *const owners[] = {"ann", "bob", "eve"};
    size_t number = (size_t)dice_roll(&dice, KEYS);
    struct key *key = &keys[number];
    uint64_t print = dice_roll(&dice, 8);

    *key_number = number;
    *op = (struct idem_op){.verb = random_verb(key->type),
                           .type = key->type,
                           .scope = idem_text(key->scope),
                           .id = idem_text(key->id)};
    op->mode = (enum idem_mode)dice_roll(&dice, 2);
    op->lease_ms = 1 + (int64_t)dice_roll(&dice, 40);
    op->ttl_ms = dice_roll(&dice, 4) ? 1 + (int64_t)dice_roll(&dice, 150) : 0;
    if ((op->verb == IDEM_BEGIN || op->verb == IDEM_LOCK) &&
        dice_roll(&dice, 10) == 0)
        op->wait_ms = 1 + (int64_t)dice_roll(&dice, 60);
    op->fence = key->fences[dice_roll(&dice, FENCES)];
    if (op->fence == 0)
        op->fence = 1;
    if ((op->verb == IDEM_SETTLE || op->verb == IDEM_FORGET) &&
        dice_roll(&dice, 4))
        op->fence = 0;
    /* Few nonces, so that the same one comes again. */
    nonce[0] = (uint8_t)(1 + dice_roll(&dice, 6));
    op->nonce = nonce;
    if (op->verb == IDEM_BEGIN && print < 4)
        op->fingerprint = prints[print == 3];
    op->outcome =
        dice_roll(&dice, 3) ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
    if (op->verb == IDEM_SETTLE && dice_roll(&dice, 2))
        op->outcome = 0;
    op->kind = (enum idem_kind)dice_roll(&dice, 3);
    op->not_replayable = op->verb == IDEM_FINISH && dice_roll(&dice, 12) == 0;
    if (op->verb != IDEM_BEGIN && op->verb != IDEM_GET)
        op->result = random_result();
    op->subject = idem_text(owners[dice_roll(&dice, 3)]);
}

static void
submit(size_t place)
{
    struct side *sides[] = {&real, &model};
    struct idem_op op;

    random_op(&op, &flying[place].key);
    flying[place].used = true;
    snprintf(flying[place].asked, sizeof(flying[place].asked),
             "%s %s %s/%s fence %" PRIu64 " nonce %d lease %" PRId64
             " ttl %" PRId64 " wait %" PRId64 " %s",
             idem_verb_name(op.verb), idem_type_name(op.type),
             keys[flying[place].key].scope, keys[flying[place].key].id,
             op.fence, op.nonce[0], op.lease_ms, op.ttl_ms, op.wait_ms,
             idem_mode_name(op.mode));
    for (size_t i = 0; i < 2; i++) {
        struct told *told = &sides[i]->told[place];

        told->done = false;
        assert_int_equal(
            idem_submit(sides[i]->engine, &op, note_answer, told, NULL, NULL),
            IDEM_OK);
    }
}

/* What is answered must be answered alike, and at the same time. */
static size_t
compare_answers(uint64_t seed, uint64_t done)
{
    size_t open = 0;

    for (size_t i = 0; i < FLYING; i++) {
        struct told *a = &real.told[i], *b = &model.told[i];
        struct key *key = &keys[flying[i].key];

        if (!flying[i].used)
            continue;
        if (a->done != b->done || (a->done && strcmp(a->text, b->text) != 0))
            fail_msg("%s, seed %" PRIu64 ", about op %" PRIu64
                     ":\nasked %s\nstore %s\nmodel %s",
                     real_url, seed, done, flying[i].asked,
                     a->done ? a->text : "(nothing yet)",
                     b->done ? b->text : "(nothing yet)");
        if (!a->done) {
            open++;
            continue;
        }
        flying[i].used = false;
        if (a->fence)
            key->fences[dice_roll(&dice, FENCES)] = a->fence;
    }
    return open;
}

static size_t
free_place(size_t from)
{
    for (size_t i = 0; i < FLYING; i++) {
        size_t place = (from + i) % FLYING;

        if (!flying[place].used)
            return place;
    }
    fail_msg("too many operations wait");
    return 0;
}

static void
turn(void)
{
    for (int i = 0; i < 1000 && idem__engine_turn(real.engine); i++)
        ;
    for (int i = 0; i < 1000 && idem__engine_turn(model.engine); i++)
        ;
}

/* ---- what both hold --------------------------------------------------- */

struct listing {
    bool sealed; /* no subject is in the store as it is */
    char lines[KEYS][TEXT_LEN];
};

/* Of a subject that may be sealed, only whether there is one. */
static void
hide_subject(struct idem_record *r, bool is_sealed)
{
    bool flag = r->flags & IDEM_FLAG_SEALED_SUBJECT;

    assert_int_equal(flag, is_sealed && r->subject.len > 0);
    r->flags &= (uint8_t) ~(IDEM_FLAG_SEALED_SUBJECT | IDEM_FLAG_SEALED_RESULT);
    if (r->subject.len > 0)
        r->subject = idem_text("somebody");
}

static bool
note_record(void *arg, const struct idem_record *r)
{
    struct listing *listing = arg;

    for (size_t i = 0; i < KEYS; i++) {
        if (r->type == keys[i].type &&
            idem__bytes_equal(r->scope, idem_text(keys[i].scope)) &&
            idem__bytes_equal(r->id, idem_text(keys[i].id))) {
            struct idem_record bare = *r;

            bare.result = (struct idem_bytes){NULL, 0};
            if (sealed)
                hide_subject(&bare, listing->sealed);
            describe(&bare, listing->lines[i], TEXT_LEN);
        }
    }
    return true;
}

static void
list_records(struct side *side, struct listing *listing)
{
    struct idem_filter filter = {.scope = idem_text(scope_prefix)};
    struct idem_cursor cursor = {"0"};
    struct idem_now now = {0};
    int64_t now_us = wall_now_us;
    int calls = 0;

    if (real.store->type->local)
        real.store->type->now(real.store, &now_us, NULL);
    now.early_ms = now.late_ms = now_us / 1000;
    memset(listing, 0, sizeof(*listing));
    listing->sealed = sealed && side == &real;
    do {
        assert_int_equal(side->store->type->scan(
                             side->store,
                             &(struct idem_query){&filter, &now, &cursor, 100,
                                                  note_record, listing, false},
                             NULL),
                         IDEM_OK);
        assert_true(++calls < 1000000);
    } while (strcmp(cursor.text, "0") != 0);
}

static void
compare_stores(uint64_t seed)
{
    static struct listing a, b;

    list_records(&real, &a);
    list_records(&model, &b);
    for (size_t i = 0; i < KEYS; i++) {
        if (strcmp(a.lines[i], b.lines[i]) != 0)
            fail_msg("%s, seed %" PRIu64 ": the stores differ:\nstore %s\n"
                     "model %s",
                     real_url, seed, a.lines[i], b.lines[i]);
    }
}

/* Both engines close and open; who waited is told so by both. */
static void
reopen(uint64_t seed, uint64_t done)
{
    idem_close(real.engine);
    idem_close(model.engine);
    assert_int_equal(compare_answers(seed, done), 0);
    if (store_is_durable(real_url)) {
        idem__store_close(real.store);
        real.store = open_store(real_url);
    }
    open_engine(&real);
    open_engine(&model);
}

/* ---- the run ---------------------------------------------------------- */

static void
make_keys(void)
{
    snprintf(scope_prefix, sizeof(scope_prefix), "differ-%016" PRIx64,
             idem__new_rev());
    memset(keys, 0, sizeof(keys));
    memset(flying, 0, sizeof(flying));
    for (size_t i = 0; i < KEYS; i++) {
        keys[i].type = i % 8 < 4   ? IDEM_TYPE_REQUEST
                       : i % 8 < 6 ? IDEM_TYPE_TOKEN
                       : i % 8 < 7 ? IDEM_TYPE_LOCK
                                   : IDEM_TYPE_WORKER;
        snprintf(keys[i].scope, sizeof(keys[i].scope), "%s", scope_prefix);
        snprintf(keys[i].id, sizeof(keys[i].id), "k%zu", i / 8);
    }
}

static void
let_time_pass(void)
{
    uint64_t roll = dice_roll(&dice, 1000);

    pass_us(roll == 0 ? INT64_C(2) * 3600 * 1000000 /* what was freed is gone */
            : roll == 1 ? INT64_C(25) * 3600 * 1000000
            : roll < 50 ? (int64_t)dice_roll(&dice, 200000)
                        : (int64_t)dice_roll(&dice, 6000));
}

static uint64_t
how_many(void)
{
    uint64_t count = strncmp(real_url, "journal:", 8) == 0 ? 200000 : 20000;

    if (getenv("IDEM_SOAK") && *getenv("IDEM_SOAK"))
        count *= 20;
    if (number_from_env("IDEM_SANITIZED", 0))
        count /= 10;
    return number_from_env("IDEM_TEST_OPS", count);
}

static void
the_store_answers_like_the_model(void **state)
{
    uint64_t seed = number_from_env("IDEM_TEST_SEED", idem__new_rev() >> 32);
    uint64_t count = how_many(), done = 0;

    (void)state;
    print_message("IDEM_TEST_SEED=%" PRIu64 " IDEM_TEST_OPS=%" PRIu64 "\n",
                  seed, count);
    dice.state = seed;
    if (sealed)
        count /= 5;
    /* In the future, so that a server with a clock of its own drops nothing;
     * and a store's time goes on where the last run on it ended. */
    if (wall_now_us == 0)
        wall_now_us = idem__system_clocks.wall_us(NULL) / 1000 * 1000 +
                      INT64_C(48) * 3600 * 1000000;
    boot_now_us = INT64_C(1000000000);
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)dice_roll(&dice, 256);
    make_keys();
    real.store = open_store(real_url);
    model.store = open_store("memory:");
    open_engine(&real);
    open_engine(&model);

    while (done < count) {
        size_t batch = 1 + (size_t)dice_roll(&dice, 24);

        for (size_t i = 0; i < batch; i++)
            submit(free_place((size_t)(done + i) % FLYING));
        done += batch;
        turn();
        compare_answers(seed, done);
        let_time_pass();
        if (dice_roll(&dice, 400) == 0)
            compare_stores(seed);
        if (dice_roll(&dice, 2000) == 0)
            reopen(seed, done);
    }
    reopen(seed, done);
    compare_stores(seed);
    idem_close(real.engine);
    idem_close(model.engine);
    idem__store_close(real.store);
    idem__store_close(model.store);
}

static void
sealed_it_answers_like_the_model(void **state)
{
    char folder[256];

    make_folder(folder, sizeof(folder));
    make_key(folder);
    sealed = true;
    the_store_answers_like_the_model(state);
    sealed = false;
    remove_folder(folder);
}

static int
run_differential(const char *url)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_answers_like_the_model),
        cmocka_unit_test(sealed_it_answers_like_the_model),
    };
    char shown[200];

    real_url = url;
    idem__url_redact(url, shown, sizeof(shown));
    print_message("answers of %s compared with memory:\n", shown);
    return cmocka_run_group_tests_name(shown, tests, NULL, NULL);
}

int
main(void)
{
    return for_each_store(run_differential) ? 1 : 0;
}
