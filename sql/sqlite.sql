-- The table of idem for SQLite 3.24 and later.
--
--   sqlite3 shop.db < sql/sqlite.sql        or:  idem store init sqlite:shop.db
--
-- Installing it twice does no harm. The columns are explained in
-- docs/sql/tables.md; rev is 64 random bits kept as a signed number.

create table if not exists idem_record (
    key_hash    blob    not null primary key check (length(key_hash) = 32),
    type        integer not null,
    state       integer not null,
    mode        integer not null,
    kind        integer not null,
    flags       integer not null,
    attempt     integer not null,
    fence       integer not null,
    rev         integer not null,
    created     integer not null,
    updated     integer not null,
    lease_until integer not null,
    expires     integer not null,
    nonce       blob    not null,
    fingerprint blob,
    scope       blob    not null,
    id          blob    not null,
    subject     blob    not null,
    result      blob    not null
) without rowid;

create index if not exists idem_record_sweep
    on idem_record (expires) where state <> 2 and expires > 0;
create index if not exists idem_record_executing
    on idem_record (key_hash) where state = 2;
-- For `idem find`: an id in whatever scope.
create index if not exists idem_record_id on idem_record (id);

create table if not exists idem_version (version integer not null);
insert into idem_version select 1 where not exists (select 1 from idem_version);
