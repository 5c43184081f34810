/*
 * play_outcome.c - the outcome of a run: the tables, the records, and how often
 * the work was done.
 */
#include "play_inner.h"

#include "../core/json_record.h"

#include <stdio.h>
#include <string.h>

struct rows {
    json_t *columns, *rows;
};

static int
take_row(void *arg, int columns, char **values, char **names)
{
    struct rows *rows = arg;
    json_t *row = json_array();
    bool first = json_array_size(rows->columns) == 0;

    for (int i = 0; i < columns; i++) {
        if (first)
            json_array_append_new(rows->columns, json_string(names[i]));
        json_array_append_new(row,
                              values[i] ? json_string(values[i]) : json_null());
    }
    json_array_append_new(rows->rows, row);
    return 0;
}

static json_t *
ask(struct play *play, const char *sql)
{
    struct rows rows = {json_array(), json_array()};
    char why[160];
    int changed;

    if (!play->base->run(play->keeper, sql, take_row, &rows, &changed, why,
                         sizeof(why)))
        play_broke(play, sql, why);
    return json_pack("{s:o, s:o}", "columns", rows.columns, "rows", rows.rows);
}

static json_t *
show_tables(struct play *play)
{
    const struct play_scheme *scheme = play->scheme;
    const char *at = play->protect && scheme->safe_shown ? scheme->safe_shown
                                                         : scheme->shown;
    json_t *tables = json_array();

    while (*at) {
        int len = (int)strcspn(at, " ");
        char sql[96], name[40];
        json_t *table;

        snprintf(name, sizeof(name), "%.*s", len, at);
        snprintf(sql, sizeof(sql), "select * from %s limit 10", name);
        table = ask(play, sql);
        json_object_set_new(table, "name", json_string(name));
        json_array_append_new(tables, table);
        at += len + (at[len] == ' ');
    }
    return tables;
}

static int
count_effects(struct play *play)
{
    json_t *counted = ask(play, play->scheme->effects);
    json_t *row = json_array_get(json_object_get(counted, "rows"), 0);
    const char *text = json_string_value(json_array_get(row, 0));
    int count = 0;

    if (!text || sscanf(text, "%d", &count) != 1)
        play_broke(play, "effects", "cannot be counted");
    json_decref(counted);
    return count;
}

static bool
add_record(void *arg, const struct idem_record *record)
{
    json_array_append_new(arg, server_json_record(record));
    return true;
}

static json_t *
show_records(struct play *play)
{
    const struct idem_filter all = {0};
    struct idem_cursor cursor = {"0"};
    struct idem_error err = {0};
    json_t *records = json_array();

    do {
        if (idem_scan(play->engine, &all, &cursor, 10, add_record, records,
                      &err) != IDEM_OK) {
            play_broke(play, "records", err.text);
            break;
        }
    } while (strcmp(cursor.text, "0") != 0);
    return records;
}

json_t *
play_outcome(struct play *play)
{
    int effects = count_effects(play);
    int wanted = play->scheme->wanted ? play->scheme->wanted(play) : 1;

    return json_pack(
        "{s:s, s:s, s:s, s:b, s:o, s:O, s:O, s:o, s:o, s:i, s:i, s:b}",
        "verdict", "played", "scheme", play->scheme->name, "action",
        play_action_name(play->action), "protected", play->protect, "actors",
        play_actor_names(), "messages", play->messages, "replies",
        play->replies, "tables", show_tables(play), "records",
        show_records(play), "effects", effects, "wanted", wanted, "wrong",
        effects != wanted);
}
