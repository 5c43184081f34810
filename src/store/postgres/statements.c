/*
 * statements.c - the statements of postgres://, prepared on every connection.
 *
 * The parameters are arrays with one element per row, so that one statement
 * handles a whole batch. A nested loop takes the rows in the order of the
 * batch, which is the order of the keys, so two batches never deadlock.
 */
#include "postgres.h"

#define COLUMNS                                                                \
    "key_hash, type, state, mode, kind, flags, attempt, fence, rev, created, " \
    "updated, lease_until, expires, nonce, fingerprint, scope, id, subject, "  \
    "result"
#define R_COLUMNS                                                              \
    "r.key_hash, r.type, r.state, r.mode, r.kind, r.flags, r.attempt, "        \
    "r.fence, r.rev, r.created, r.updated, r.lease_until, r.expires, "         \
    "r.nonce, r.fingerprint, r.scope, r.id, r.subject"
#define ROWS "unnest($1::idem.idem_record[], $2::int8[]) as n(" COLUMNS
#define NEW_COLUMNS                                                            \
    "state = n.state, mode = n.mode, kind = n.kind, flags = n.flags, "         \
    "attempt = n.attempt, fence = n.fence, rev = n.rev, "                      \
    "created = n.created, updated = n.updated, "                               \
    "lease_until = n.lease_until, expires = n.expires, nonce = n.nonce, "      \
    "fingerprint = n.fingerprint, subject = n.subject, result = n.result "
#define TABLE "idem.idem_record"
/* A transaction that has written something waits for the standby, and so for
 * everything that was committed before it. */
#define WRITE_IF_STANDBY                                                       \
    "case when current_setting('synchronous_standby_names') <> '' "            \
    "then pg_logical_emit_message(true, 'idem', '')::text end"

const char *const idem__postgres_names[POSTGRES_STATEMENTS] = {
    "idem_check",          "idem_table",    "idem_standbys",    "idem_insert",
    "idem_update",         "idem_patience", "idem_update_free", "idem_delete",
    "idem_notify",         "idem_truth",    "idem_load",        "idem_scan",
    "idem_scan_executing", "idem_scan_id",  "idem_sweep",       "idem_clock",
    "idem_plans",          "idem_confirm",
};

const char *const idem__postgres_texts[POSTGRES_STATEMENTS] = {
    [POSTGRES_CHECK] =
        "select case when pg_is_in_recovery() then 'standby' else '' end, "
        "current_setting('fsync'), current_setting('full_page_writes'), "
        "current_setting('synchronous_commit'), exists (select from "
        "pg_stat_activity where pid = $1::int4 and wait_event = 'SyncRep')",
    [POSTGRES_TABLE] =
        "select c.reltype::int8, (select count(*) from pg_attribute a "
        "where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), "
        "(select max(version) from idem.idem_version)::int8 "
        "from pg_class c where c.oid = 'idem.idem_record'::regclass",
    /* Every role sees application_name; sync_state is null for a role that may
     * not see it. A subscriber and a program that archives or copies cannot
     * take over. ANY 2 (a, b) and FIRST 2 (a, b) need two standbys. */
    [POSTGRES_STANDBYS] =
        "select current_setting('synchronous_standby_names'), (select count(*) "
        "from pg_stat_replication r where r.application_name not in "
        "('pg_basebackup', 'pg_receivewal', 'barman_receive_wal') and not "
        "exists (select from pg_replication_slots s where s.active_pid = r.pid "
        "and s.slot_type = 'logical')), (select count(*) from "
        "pg_stat_replication where sync_state is null or sync_state in "
        "('sync', 'quorum')), coalesce(substring(current_setting("
        "'synchronous_standby_names') from '^[^(]*?([0-9]+) *[(]'), '1')",
    [POSTGRES_INSERT] =
        "insert into " TABLE " as r (" COLUMNS ") select " COLUMNS " from " ROWS
        ", lock) where pg_try_advisory_xact_lock_shared(n.lock) "
        "on conflict (key_hash) do nothing returning r.key_hash",
    [POSTGRES_UPDATE] =
        "update " TABLE " r set " NEW_COLUMNS "from " ROWS ", expected) "
        "where r.key_hash = n.key_hash and r.rev = n.expected "
        "returning r.key_hash",
    [POSTGRES_PATIENCE] =
        "select set_config('lock_timeout', '20ms', true), null",
    [POSTGRES_UPDATE_FREE] =
        "with got as (select n.* from " ROWS ", expected) join " TABLE " o "
        "on o.key_hash = n.key_hash and o.rev = n.expected "
        "for update of o skip locked) "
        "update " TABLE " r set " NEW_COLUMNS "from got n "
        "where r.key_hash = n.key_hash returning r.key_hash",
    [POSTGRES_DELETE] =
        "with got as (select o.key_hash from "
        "unnest($1::bytea[], $2::int8[]) as n(key_hash, expected) "
        "join " TABLE " o on o.key_hash = n.key_hash and o.rev = n.expected "
        "for update of o skip locked) "
        "delete from " TABLE " r using got where r.key_hash = got.key_hash "
        "returning r.key_hash",
    [POSTGRES_NOTIFY] =
        "select pg_notify('idem_wake', encode(n.key_hash, 'hex')), null from "
        "unnest($1::bytea[], $2::int8[]) as n(key_hash, lock) "
        "where not pg_try_advisory_xact_lock(n.lock)",
    [POSTGRES_TRUTH] =
        "select n.at, " R_COLUMNS ", r.result from "
        "unnest($1::bytea[], $2::int8[]) with ordinality "
        "as n(key_hash, rev, at) left join " TABLE " r "
        "on r.key_hash = n.key_hash where r.rev is distinct from n.rev",
    [POSTGRES_LOAD] =
        "select n.at, " R_COLUMNS ", "
        "case when n.whole = 1 then r.result else ''::bytea end from "
        "unnest($1::bytea[], $2::int2[]) with ordinality "
        "as n(key_hash, whole, at) join " TABLE " r "
        "on r.key_hash = n.key_hash",
    [POSTGRES_SCAN] = "select " R_COLUMNS ", octet_length(r.result)::int8 "
                      "from " TABLE " r "
                      "where r.key_hash > $1::bytea "
                      "order by r.key_hash limit $2::int8",
    /* Few records are executing: a separate index finds them, then they are
     * sorted. */
    [POSTGRES_SCAN_EXECUTING] =
        "with e as materialized (select key_hash from " TABLE
        " where state = 2) select " R_COLUMNS " from (select key_hash from e "
        "where key_hash > $1::bytea order by key_hash limit $2::int8) k "
        "join " TABLE " r on r.key_hash = k.key_hash order by k.key_hash",
    /* An id is in few scopes. */
    [POSTGRES_SCAN_ID] =
        "with e as materialized (select key_hash from " TABLE
        " where id = $3::bytea) select " R_COLUMNS " from (select key_hash "
        "from e where key_hash > $1::bytea order by key_hash limit $2::int8) k "
        "join " TABLE " r on r.key_hash = k.key_hash order by k.key_hash",
    [POSTGRES_SWEEP] =
        "with gone as (delete from " TABLE " where ctid = any (array("
        "select ctid from " TABLE " where state <> 2 "
        "and expires > 0 and expires >= $3::int8 and expires < $2::int8 "
        "and fence < ($2::int8 - 1) * 1000 "
        "order by expires limit $1::int8 for update skip locked)) "
        "returning expires) select count(*), coalesce(max(expires), 0), "
        "set_config('synchronous_commit', 'off', true) from gone",
    [POSTGRES_CLOCK] =
        "select (extract(epoch from clock_timestamp()) * 1000000)::int8",
    [POSTGRES_PLANS] = "discard plans",
    [POSTGRES_CONFIRM] = "select " WRITE_IF_STANDBY ", null",
};
