/*
 * statements.c - the statements of postgres://, prepared on every connection.
 *
 * Arrays carry a row each in every parameter, so that one statement does a
 * whole batch.
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
#define ARRAYS                                                                 \
    "$1::bytea[], $2::int2[], $3::int2[], $4::int2[], $5::int2[], "            \
    "$6::int2[], $7::int8[], $8::int8[], $9::int8[], $10::int8[], "            \
    "$11::int8[], $12::int8[], $13::int8[], $14::bytea[], $15::bytea[], "      \
    "$16::bytea[], $17::bytea[], $18::bytea[], $19::bytea[], $20::int8[]"
#define TABLE "idem.idem_record"

const char *const idem__postgres_names[POSTGRES_STATEMENTS] = {
    "idem_check", "idem_insert", "idem_update", "idem_delete",
    "idem_truth", "idem_load",   "idem_scan",   "idem_scan_executing",
    "idem_sweep", "idem_clock",
};

const char *const idem__postgres_texts[POSTGRES_STATEMENTS] = {
    [POSTGRES_CHECK] =
        "select case when pg_is_in_recovery() then 'standby' else '' end, "
        "current_setting('fsync'), current_setting('full_page_writes'), "
        "current_setting('synchronous_commit')",
    [POSTGRES_INSERT] =
        "insert into " TABLE " as r (" COLUMNS ") select " COLUMNS
        " from unnest(" ARRAYS ") as n(" COLUMNS ", lock) "
        "where not exists "
        "(select 1 from " TABLE " o where o.key_hash = n.key_hash) "
        "and pg_try_advisory_xact_lock_shared(n.lock) "
        "on conflict (key_hash) do nothing returning r.key_hash",
    [POSTGRES_UPDATE] =
        "with got as (select n.* from unnest(" ARRAYS ") as n(" COLUMNS
        ", expected) join " TABLE " o on o.key_hash = n.key_hash "
        "and o.rev = n.expected for update of o skip locked) "
        "update " TABLE " r set state = got.state, mode = got.mode, "
        "kind = got.kind, flags = got.flags, attempt = got.attempt, "
        "fence = got.fence, rev = got.rev, created = got.created, "
        "updated = got.updated, lease_until = got.lease_until, "
        "expires = got.expires, nonce = got.nonce, "
        "fingerprint = got.fingerprint, subject = got.subject, "
        "result = got.result from got where r.key_hash = got.key_hash "
        "returning r.key_hash",
    [POSTGRES_DELETE] =
        "with got as (select o.key_hash from "
        "unnest($1::bytea[], $2::int8[]) as n(key_hash, expected) "
        "join " TABLE " o on o.key_hash = n.key_hash and o.rev = n.expected "
        "for update of o skip locked) "
        "delete from " TABLE " r using got where r.key_hash = got.key_hash "
        "returning r.key_hash",
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
    [POSTGRES_SCAN] = "select " R_COLUMNS " from " TABLE " r "
                      "where r.key_hash > $1::bytea "
                      "order by r.key_hash limit $2::int8",
    [POSTGRES_SCAN_EXECUTING] = "select " R_COLUMNS " from " TABLE " r "
                                "where r.state = 2 and r.key_hash > $1::bytea "
                                "order by r.key_hash limit $2::int8",
    [POSTGRES_SWEEP] =
        "with dead as (select key_hash from " TABLE " where state <> 2 "
        "and expires > 0 and expires < "
        "(extract(epoch from clock_timestamp()) * 1000)::int8 "
        "order by expires limit $1::int8 for update skip locked) "
        "delete from " TABLE " r using dead where r.key_hash = dead.key_hash",
    [POSTGRES_CLOCK] =
        "select (extract(epoch from clock_timestamp()) * 1000000)::int8",
};
