-- The table of idem for MariaDB 10.6 and later (and MySQL 8, untested).
--
--   mariadb shop < sql/mysql.sql        or:  idem store init mysql://…/shop
--
-- Installing it twice does no harm. The columns are explained in
-- docs/sql/tables.md; rev is 64 random bits kept as a signed number.

create table if not exists idem_record (
    key_hash    binary(32)     not null primary key,
    type        tinyint        not null,
    state       tinyint        not null,
    mode        tinyint        not null,
    kind        tinyint        not null,
    flags       smallint       not null,
    attempt     bigint         not null,
    fence       bigint         not null,
    rev         bigint         not null,
    created     bigint         not null,
    updated     bigint         not null,
    lease_until bigint         not null,
    expires     bigint         not null,
    nonce       binary(8)      not null,
    fingerprint binary(32),
    scope       varbinary(200) not null,
    id          varbinary(255) not null,
    subject     varbinary(255) not null,
    result      longblob       not null,
    index idem_record_state (state, expires)
) engine = InnoDB row_format = dynamic;

create table if not exists idem_version (version int not null) engine = InnoDB;
insert into idem_version select 1 from dual
    where not exists (select 1 from idem_version);
