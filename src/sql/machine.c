/*
 * machine.c - a state machine on the caller's own table, and the barrier of a
 * distributed transaction on idem_record.
 */
#include "driver.h"

#include <string.h>

#define BARRIER_TTL_MS (INT64_C(30) * 24 * 3600 * 1000)

/* ---- the state machine ------------------------------------------------- */

static bool
same_state(struct idem_sql_value a, struct idem_sql_value b)
{
    if (a.type == IDEM_SQL_INT || b.type == IDEM_SQL_INT)
        return a.type == b.type && a.number == b.number;
    return idem__bytes_equal(a.bytes, b.bytes);
}

static bool
is_declared(const struct idem_sql_machine *machine, struct idem_sql_value from,
            struct idem_sql_value to)
{
    for (size_t i = 0; i < machine->move_count; i++) {
        if (same_state(machine->moves[i].from, from) &&
            same_state(machine->moves[i].to, to))
            return true;
    }
    return false;
}

/* ---- what a state proves ------------------------------------------------ */

/* The declared moves, with numbers for states. */
struct graph {
    size_t states, moves;
    struct idem_sql_value *names; /* of the states */
    size_t (*ends)[2];            /* of a move: from, to */
    bool *ahead, *behind, *free;  /* of a state: marks */
};

static size_t
number_state(struct graph *g, struct idem_sql_value name)
{
    for (size_t i = 0; i < g->states; i++) {
        if (same_state(g->names[i], name))
            return i;
    }
    g->names[g->states] = name;
    return g->states++;
}

static bool
make_graph(struct idem_sql *db, const struct idem_sql_machine *machine,
           struct graph *g)
{
    size_t most = 2 * machine->move_count;

    memset(g, 0, sizeof(*g));
    g->names = idem_arena_take(&db->arena, most * sizeof(*g->names));
    g->ends =
        idem_arena_take(&db->arena, machine->move_count * sizeof(*g->ends));
    g->ahead = idem_arena_take(&db->arena, most);
    g->behind = idem_arena_take(&db->arena, most);
    g->free = idem_arena_take(&db->arena, most);
    if (!g->names || !g->ends || !g->ahead || !g->behind || !g->free)
        return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", "out of memory");
    memset(g->free, 0, most);
    for (; g->moves < machine->move_count; g->moves++) {
        const struct idem_sql_move *move = &machine->moves[g->moves];

        g->ends[g->moves][0] = number_state(g, move->from);
        g->ends[g->moves][1] = number_state(g, move->to);
    }
    return true;
}

/* Mark all states that can be reached from the marked ones, forwards (0) or
 * backwards (1), without the move from -> to. */
static void
spread(const struct graph *g, bool *marks, int backwards, size_t from,
       size_t to)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < g->moves; i++) {
            size_t a = g->ends[i][backwards], b = g->ends[i][!backwards];

            if (marks[a] && !marks[b] &&
                !(g->ends[i][0] == from && g->ends[i][1] == to))
                more = marks[b] = true;
        }
    }
}

/* Can a row begin in this state? Yes, unless the state can be reached from
 * another one that cannot be reached from it. */
static bool
is_start(const struct graph *g, size_t state)
{
    bool start = true;

    memset(g->ahead, 0, g->states);
    memset(g->behind, 0, g->states);
    g->ahead[state] = g->behind[state] = true;
    spread(g, g->ahead, 0, g->states, g->states);
    spread(g, g->behind, 1, g->states, g->states);
    for (size_t i = 0; i < g->states; i++)
        start = start && (!g->behind[i] || g->ahead[i]);
    return start;
}

/* Mark in g->free the states that a row can reach without the move. */
static void
mark_free(struct graph *g, struct idem_sql_value from, struct idem_sql_value to)
{
    for (size_t i = 0; i < g->states; i++)
        g->free[i] = is_start(g, i);
    spread(g, g->free, 0, number_state(g, from), number_state(g, to));
}

/* *is: the row is in one of these states. The database compares, because it
 * knows padding and number formats. It reads the current row, because the
 * transaction's snapshot may be older than the change that an update has just
 * met. */
static bool
is_in(struct idem_sql *db, const struct idem_sql_machine *machine,
      struct idem_sql_value *key_and_states, size_t count, bool *is)
{
    bool good;

    idem_buf_reset(&db->text);
    good = idem__sql_add(db, "select 1 from %i where %i = ? and %i in (",
                         machine->table, machine->key_column,
                         machine->state_column);
    for (size_t i = 0; i < count && good; i++)
        good = idem__sql_add(db, i == 0 ? "?" : ", ?");
    if (!good || !idem__sql_add(db, ")%s", idem__sql_latest(db)) ||
        !idem__sql_run(db, idem__sql_whole(db), key_and_states, count + 1))
        return false;
    *is = db->rows.rows > 0;
    return true;
}

/* *happened: the row is in state `to`, or in a state that it can only reach by
 * the move. */
static bool
has_happened(struct idem_sql *db, const struct idem_sql_machine *machine,
             struct idem_sql_value key, struct idem_sql_value from,
             struct idem_sql_value to, bool *happened)
{
    struct idem_sql_value values[SQL_VALUES_MAX] = {key, to};
    size_t count = 1;
    struct graph g;

    *happened = false;
    if (!make_graph(db, machine, &g))
        return false;
    mark_free(&g, from, to);
    for (size_t i = 0; i < g.states; i++) {
        if (!g.free[i] && !same_state(g.names[i], to))
            values[++count] = g.names[i];
        if (count + 1 < SQL_VALUES_MAX)
            continue;
        if (!is_in(db, machine, values, count, happened))
            return false;
        if (*happened)
            return true;
        count = 0;
    }
    return count == 0 || is_in(db, machine, values, count, happened);
}

static enum idem_status
look_at_state(struct idem_sql *db, const struct idem_sql_machine *machine,
              struct idem_sql_value key, bool happened,
              enum idem_sql_verdict *verdict, struct idem_sql_row *row,
              struct idem_error *err)
{
    if (!idem__sql_run(db,
                       idem__sql_text(db, "select * from %i where %i = ?%s",
                                      machine->table, machine->key_column,
                                      happened ? idem__sql_latest(db) : ""),
                       &key, 1))
        return idem__sql_fail(db, err);
    *verdict = happened && db->rows.rows > 0 ? IDEM_SQL_IS_DUPLICATE
                                             : IDEM_SQL_IS_REFUSED;
    if (db->rows.rows > 0)
        idem__sql_first_row(db, row);
    return IDEM_OK;
}

enum idem_status
idem_sql_move(struct idem_sql *db, const struct idem_sql_machine *machine,
              struct idem_sql_value key, struct idem_sql_value from,
              struct idem_sql_value to, enum idem_sql_verdict *verdict,
              struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_value values[3] = {to, key, from};
    struct idem_sql_pair pair = {machine->key_column, key};
    struct idem_sql_place place = {machine->table, &pair, 1};
    bool declared = is_declared(machine, from, to), happened = false;
    enum idem_status status;

    idem__sql_start(db, NULL);
    memset(row, 0, sizeof(*row));
    status = idem__sql_need_transaction(db, err);
    if (status == IDEM_OK)
        status = idem__sql_need_engine(db, machine->table, err);
    if (status == IDEM_OK)
        status = idem__sql_need_unique(db, &place, err);
    if (status != IDEM_OK)
        return status;
    if (declared) {
        if (!idem__sql_run(
                db,
                idem__sql_text(db,
                               "update %i set %i = ? where %i = ? and "
                               "%i = ?",
                               machine->table, machine->state_column,
                               machine->key_column, machine->state_column),
                values, 3))
            return idem__sql_fail(db, err);
        *verdict = IDEM_SQL_IS_FIRST;
        if (db->rows.affected == 1)
            return IDEM_OK;
        if (!has_happened(db, machine, key, from, to, &happened))
            return idem__sql_fail(db, err);
    }
    return look_at_state(db, machine, key, happened, verdict, row, err);
}

/* ---- the barrier ------------------------------------------------------- */

/*
 * Two records per branch, each written once:
 *   "try"       which came first, "try" or "cancel"
 *   "decision"  "confirm" or "cancel"
 * A cancel that writes the first record has no try to undo, and it keeps a late
 * try from running.
 */
static enum idem_status
name_record(struct idem_bytes branch, const char *what, char id[IDEM_ID_MAX],
            struct idem_bytes *name, struct idem_error *err)
{
    size_t what_len = strlen(what);

    if (branch.len == 0 || branch.len > IDEM_ID_MAX - 10)
        return idem__fail(err, IDEM_ERR_INVALID, "a branch has 1 to %d bytes",
                          IDEM_ID_MAX - 10);
    memcpy(id, branch.data, branch.len);
    memcpy(id + branch.len, what, what_len);
    *name = (struct idem_bytes){id, branch.len + what_len};
    return IDEM_OK;
}

static enum idem_status
write_once(struct idem_sql *db, struct idem_bytes transaction,
           struct idem_bytes branch, const char *what, const char *word,
           bool *first, bool *same, struct idem_error *err)
{
    char id[IDEM_ID_MAX];
    struct idem_op op = {.verb = IDEM_SETTLE,
                         .scope = transaction,
                         .outcome = IDEM_STATE_SUCCEEDED,
                         .result = idem_text(word),
                         .ttl_ms = BARRIER_TTL_MS};
    struct idem_answer answer;
    enum idem_status status = name_record(branch, what, id, &op.id, err);

    op.wait_ms = 1000;
    if (status == IDEM_OK)
        status = idem_sql_do(db, &op, &answer, err);
    if (status != IDEM_OK)
        return status;
    *first = answer.verdict == IDEM_V_SETTLED;
    *same = *first || idem__bytes_equal(answer.record->result, op.result);
    if (answer.verdict == IDEM_V_BUSY)
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                            "another phase of this branch is being decided: "
                            "roll back and try again");
    idem_answer_clear(&answer);
    return status;
}

static enum idem_status
was_tried(struct idem_sql *db, struct idem_bytes transaction,
          struct idem_bytes branch, bool *tried, struct idem_error *err)
{
    char id[IDEM_ID_MAX];
    struct idem_bytes name;
    struct idem_answer answer;
    enum idem_status status = name_record(branch, "#try", id, &name, err);

    if (status == IDEM_OK)
        status =
            idem_sql_do(db,
                        &(struct idem_op){
                            .verb = IDEM_GET, .scope = transaction, .id = name},
                        &answer, err);
    if (status != IDEM_OK)
        return status;
    *tried = answer.verdict == IDEM_V_RECORD &&
             idem__bytes_equal(answer.record->result, idem_text("try"));
    idem_answer_clear(&answer);
    return IDEM_OK;
}

enum idem_status
idem_sql_barrier(struct idem_sql *db, struct idem_bytes transaction,
                 struct idem_bytes branch, enum idem_sql_phase phase,
                 enum idem_sql_verdict *verdict, struct idem_error *err)
{
    const char *word = phase == IDEM_SQL_CONFIRM  ? "confirm"
                       : phase == IDEM_SQL_CANCEL ? "cancel"
                                                  : "try";
    bool first = false, same = false, tried = true;
    enum idem_status status = idem__sql_need_transaction(db, err);

    if (status == IDEM_OK && phase == IDEM_SQL_CONFIRM)
        status = was_tried(db, transaction, branch, &tried, err);
    else if (status == IDEM_OK)
        status = write_once(db, transaction, branch, "#try", word, &first,
                            &same, err);
    if (status != IDEM_OK)
        return status;
    *verdict = first  ? IDEM_SQL_IS_FIRST
               : same ? IDEM_SQL_IS_DUPLICATE
                      : IDEM_SQL_IS_REFUSED;
    if (phase == IDEM_SQL_TRY)
        return IDEM_OK;

    *verdict = IDEM_SQL_IS_REFUSED;
    if (phase == IDEM_SQL_CONFIRM && !tried)
        return IDEM_OK;
    *verdict = IDEM_SQL_IS_EMPTY; /* a cancel came before the try */
    if (phase == IDEM_SQL_CANCEL && same)
        return IDEM_OK;
    status = write_once(db, transaction, branch, "#decision", word, &first,
                        &same, err);
    *verdict = first  ? IDEM_SQL_IS_FIRST
               : same ? IDEM_SQL_IS_DUPLICATE
                      : IDEM_SQL_IS_REFUSED;
    return status;
}
