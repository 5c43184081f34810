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

/* The database compares: it knows what is padded, and what is a number. */
static enum idem_status
look_at_state(struct idem_sql *db, const struct idem_sql_machine *machine,
              struct idem_sql_value key, struct idem_sql_value to,
              bool declared, enum idem_sql_verdict *verdict,
              struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_value values[2] = {key, to};

    *verdict = IDEM_SQL_IS_REFUSED;
    if (declared) {
        if (!idem__sql_run(
                db,
                idem__sql_text(db, "select 1 from %i where %i = ? and %i = ?",
                               machine->table, machine->key_column,
                               machine->state_column),
                values, 2))
            return idem__sql_fail(db, err);
        if (db->rows.rows > 0)
            *verdict = IDEM_SQL_IS_DUPLICATE;
    }
    if (!idem__sql_run(db,
                       idem__sql_text(db, "select * from %i where %i = ?",
                                      machine->table, machine->key_column),
                       &key, 1))
        return idem__sql_fail(db, err);
    if (db->rows.rows == 0) {
        *verdict = IDEM_SQL_IS_REFUSED;
        return IDEM_OK;
    }
    row->count = db->rows.columns;
    row->columns = db->rows.names;
    row->values = db->rows.values;
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
    bool declared = is_declared(machine, from, to);
    enum idem_status status;

    idem__sql_start(db);
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
    }
    return look_at_state(db, machine, key, to, declared, verdict, row, err);
}

/* ---- the barrier ------------------------------------------------------- */

/*
 * Two records a branch, each written once:
 *   "try"       who came first, "try" or "cancel"
 *   "decision"  "confirm" or "cancel"
 * A cancel that writes the first one has no try to undo, and keeps a late try
 * out.
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
    *same = *first || idem__bytes_equal(answer.record.result, op.result);
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
        status = idem_sql_get(db, transaction, name, &answer, err);
    if (status != IDEM_OK)
        return status;
    *tried = answer.verdict == IDEM_V_RECORD &&
             idem__bytes_equal(answer.record.result, idem_text("try"));
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
    *verdict = IDEM_SQL_IS_EMPTY; /* this cancel, or one before, came first */
    if (phase == IDEM_SQL_CANCEL && same)
        return IDEM_OK;
    status = write_once(db, transaction, branch, "#decision", word, &first,
                        &same, err);
    *verdict = first  ? IDEM_SQL_IS_FIRST
               : same ? IDEM_SQL_IS_DUPLICATE
                      : IDEM_SQL_IS_REFUSED;
    return status;
}
