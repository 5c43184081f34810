-- The table of idem for PostgreSQL 13 and later, in a schema of its own.
--
--   psql -1 -f sql/postgres.sql shop    or:  idem store init postgres://…/shop
--
-- Installing it twice does no harm. The columns are explained in
-- docs/sql/tables.md; rev is 64 random bits kept as a signed number.

create schema if not exists idem;

create table if not exists idem.idem_record (
    key_hash    bytea    not null primary key check (octet_length(key_hash) = 32),
    type        smallint not null,
    state       smallint not null,
    mode        smallint not null,
    kind        smallint not null,
    flags       smallint not null,
    attempt     bigint   not null,
    fence       bigint   not null,
    rev         bigint   not null,
    created     bigint   not null,
    updated     bigint   not null,
    lease_until bigint   not null,
    expires     bigint   not null,
    nonce       bytea    not null check (octet_length(nonce) = 8),
    fingerprint bytea    check (octet_length(fingerprint) = 32),
    scope       bytea    not null,
    id          bytea    not null,
    subject     bytea    not null,
    result      bytea    not null
);

create index if not exists idem_record_sweep
    on idem.idem_record (expires) where state <> 2 and expires > 0;
create index if not exists idem_record_executing
    on idem.idem_record (key_hash) where state = 2;

create table if not exists idem.idem_version (version int not null);
insert into idem.idem_version select 1
    where not exists (select 1 from idem.idem_version);
