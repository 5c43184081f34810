-- idem for MariaDB 10.6 and later and MySQL 8.0 and later: the table, and the
-- schemes as procedures. Where the two differ, MariaDB reads what stands in
-- /*M! … */ and MySQL what stands in /*!80000 … */.
--
--   mariadb shop < sql/mysql.sql        or:  idem store init mysql://…/shop
--
-- Installing it twice does no harm, and installing a newer one upgrades. What a
-- service needs, and nothing else:
--
--   grant select, insert, update on shop.idem_record to shop;
--   grant select on shop.idem_machine to shop;
--   grant execute on shop.* to shop;      -- or each procedure by name
--
-- (whoever calls idem_sweep, and an idem server, also needs delete on
-- idem_record). The columns are explained in docs/sql/tables.md; rev is 64 random
-- bits kept as a signed number. Everything here runs in the caller's own
-- transaction; a call outside of one is refused. The procedures answer through
-- their last parameters: call idem_begin('shop', '7', null, 'strict', 30000,
-- 86400000, @verdict, @fence, @kind, @result). Here and below null means the
-- default.
--
-- A record is always read as it is now, also where the transaction's snapshot is
-- older: MariaDB 11.6 and newer refuse that (error 1020) unless it is asked for.
--
-- With a binary log the server lets only an account with SUPER make functions, unless
-- log_bin_trust_function_creators is 1 while they are made.

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

-- For `idem find`: an id in whatever scope. MySQL has no "if not exists" here.
set @idem_ddl = if((select count(*) from information_schema.statistics
        where table_schema = database() and table_name = 'idem_record'
        and index_name = 'idem_record_id') = 0,
    'create index idem_record_id on idem_record (id)', 'do 0');
prepare idem_ddl from @idem_ddl;
execute idem_ddl;
deallocate prepare idem_ddl;

-- Moves that a state machine allows; see idem_transition.
create table if not exists idem_machine (
    machine    varbinary(100) not null,
    from_state varbinary(100) not null,
    to_state   varbinary(100) not null,
    primary key (machine, from_state, to_state)
) engine = InnoDB;

create table if not exists idem_version (version int not null) engine = InnoDB;
insert into idem_version select 1 from dual
    where not exists (select 1 from idem_version);

delimiter //

-- What a newer version installed is not replaced by this.
/*!80000 drop procedure if exists idem_check_newer */ //
/*M! begin not atomic */ /*!80000 create procedure idem_check_newer() begin */
    if (select max(version) from idem_version) > 1 then
        signal sqlstate '45000' set message_text =
            'idem: a newer version is installed here than this script has';
    end if;
end//
/*!80000 call idem_check_newer() */ //
/*!80000 drop procedure idem_check_newer */ //

-- ---- inner functions ------------------------------------------------------

-- The lookup key: SHA-256 over the type (one byte), then scope and id, each
-- behind its length as two bytes.
/*!80000 drop function if exists idem_key */ //
create /*M! or replace */ function idem_key(p_type int, p_scope varbinary(1000), p_id varbinary(1000))
returns binary(32) deterministic no sql sql security invoker
return unhex(sha2(concat(unhex(lpad(hex(p_type), 2, '0')),
    unhex(lpad(hex(length(p_scope)), 4, '0')), p_scope,
    unhex(lpad(hex(length(p_id)), 4, '0')), p_id), 256))//

/*!80000 drop function if exists idem_random_rev */ //
create /*M! or replace */ function idem_random_rev()
returns bigint not deterministic no sql sql security invoker
begin
    declare v_rev bigint default cast(conv(hex(random_bytes(8)), 16, -10) as signed);
    return if(v_rev = 0, 1, v_rev);
end//

/*!80000 drop function if exists idem_now_us */ //
create /*M! or replace */ function idem_now_us()
returns bigint not deterministic no sql sql security invoker
return timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))//

/*!80000 drop function if exists idem_kind_name */ //
create /*M! or replace */ function idem_kind_name(p_kind int)
returns varchar(4) charset ascii deterministic no sql sql security invoker
return case p_kind when 0 then 'raw' when 1 then 'http' when 2 then 'exec' end//

/*!80000 drop function if exists idem_state_name */ //
create /*M! or replace */ function idem_state_name(p_state int)
returns varchar(10) charset ascii deterministic no sql sql security invoker
return case p_state when 1 then 'issued' when 2 then 'executing'
    when 3 then 'succeeded' when 4 then 'failed' when 5 then 'free' end//

-- A request of this name, or else a token of this name. Call it in a SELECT: in a
-- SET it would wait for whoever holds the row.
/*!80000 drop function if exists idem_find_key */ //
create /*M! or replace */ function idem_find_key(p_scope varbinary(1000), p_id varbinary(1000))
returns binary(32) not deterministic reads sql data sql security invoker
begin
    declare v_request binary(32) default idem_key(1, p_scope, p_id);
    declare v_token binary(32) default idem_key(2, p_scope, p_id);
    if exists (select 1 from idem_record where key_hash = v_request) then
        return v_request;
    end if;
    return if(exists (select 1 from idem_record where key_hash = v_token), v_token, v_request);
end//

-- Refuse to read what another transaction may still take back.
/*!80000 drop procedure if exists idem_check_isolation */ //
create /*M! or replace */ procedure idem_check_isolation()
no sql sql security invoker
begin
    if /*M! @@tx_isolation */ /*!80000 @@transaction_isolation */ = 'READ-UNCOMMITTED' then
        signal sqlstate '25001' set message_text =
            'idem: READ UNCOMMITTED sees what another may still take back: use read committed';
    end if;
end//

/*!80000 drop procedure if exists idem_look_inside */ //
/*!80000 create procedure idem_look_inside(out o_inside bool)
no sql sql security invoker
begin
    declare continue handler for 1305 set o_inside = false;
    set o_inside = true;
    savepoint idem_inside;
    release savepoint idem_inside;
end */ //

-- Refuse what cannot be right, before anything happens.
/*!80000 drop procedure if exists idem_check */ //
create /*M! or replace */ procedure idem_check(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_lease_ms bigint, in p_ttl_ms bigint)
no sql sql security invoker
begin
    declare v_inside bool;
    call idem_check_isolation();
    /*M! set v_inside = @@in_transaction; */ /*!80000 call idem_look_inside(v_inside); */
    if not v_inside and @@autocommit = 1 then
        signal sqlstate '25000' set message_text =
            'idem: no transaction is open: start one, so that the record commits with the data';
    end if;
    if @@innodb_rollback_on_timeout then
        signal sqlstate '25000' set message_text =
            'idem: innodb_rollback_on_timeout is ON: a busy record would roll back your transaction: turn it off';
    end if;
    if p_scope is null or length(p_scope) not between 1 and 200 or locate(x'00', p_scope) > 0 then
        signal sqlstate '22023' set message_text = 'idem: the scope has 1 to 200 bytes, none of them NUL';
    end if;
    if p_id is null or length(p_id) not between 1 and 255 or locate(x'00', p_id) > 0 then
        signal sqlstate '22023' set message_text = 'idem: the id has 1 to 255 bytes, none of them NUL';
    end if;
    if p_lease_ms not between 1 and 604800000 then
        signal sqlstate '22023' set message_text = 'idem: a lease is 1 to 604800000 ms';
    end if;
    if p_ttl_ms not between 1 and 316224000000 then
        signal sqlstate '22023' set message_text = 'idem: a TTL is 1 to 316224000000 ms';
    end if;
end//

/*!80000 drop procedure if exists idem_check_result */ //
create /*M! or replace */ procedure idem_check_result(in p_len bigint)
no sql sql security invoker
begin
    if p_len > 67108864 then
        signal sqlstate '22023' set message_text = 'idem: a result has at most 64 MiB';
    end if;
end//

-- Refuse a result that an idem server has sealed (--seal-key): it does not open here.
/*!80000 drop procedure if exists idem_check_open */ //
create /*M! or replace */ procedure idem_check_open(in p_flags int)
no sql sql security invoker
begin
    if p_flags & 32 then
        signal sqlstate '0A000' set message_text =
            'idem: this record is sealed (seal-key) and does not open here: ask the idem server that sealed it';
    end if;
end//

-- Run a statement of text; @idem_rows is how many rows it changed.
/*!80000 drop procedure if exists idem_execute */ //
create /*M! or replace */ procedure idem_execute(in p_sql longtext charset utf8mb4)
modifies sql data sql security invoker
begin
    /*M! execute immediate concat('/', '*M!110402 set statement innodb_snapshot_isolation = off for *', '/ ', p_sql);
    set @idem_rows = row_count(); */
    /*!80000 set @idem_sql = p_sql;
    prepare idem_statement from @idem_sql;
    execute idem_statement;
    set @idem_rows = row_count();
    deallocate prepare idem_statement; */
end//

-- ---- the procedures for services ------------------------------------------

-- Claim a request in this transaction. verdict: started (go on, then finish with
-- this fence), replay (kind and result are there; a null result was too large to
-- keep), busy, doubt, mismatch.
/*!80000 drop procedure if exists idem_begin */ //
create /*M! or replace */ procedure idem_begin(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fingerprint varbinary(100), in p_mode varchar(20), in p_lease_ms bigint,
    in p_ttl_ms bigint, out o_verdict varchar(10), out o_fence bigint,
    out o_kind varchar(4), out o_result longblob)
modifies sql data sql security invoker
idem: begin
    declare v_us, v_ms, v_rev, v_held, v_last_fence, v_created, v_until, v_expires, v_attempt bigint;
    declare v_state, v_old_mode, v_old_kind, v_flags, v_loose, v_print_len int;
    declare v_key, v_print binary(32);
    declare v_lease bigint default coalesce(p_lease_ms, 30000);
    declare v_ttl bigint default coalesce(p_ttl_ms, 86400000);
    declare v_blob longblob;
    declare v_refused, v_there, v_none, v_counts, v_over, v_again bool default false;
    /*!80000 declare v_seen, v_wait int; */
    declare continue handler for 1062 set v_refused = true, v_there = true;
    declare continue handler for 1205 /*!80000 , 3572 */ set v_refused = true;
    declare continue handler for not found set v_none = true;
    /*!80000 declare exit handler for sqlexception begin
        if v_wait is not null then set @@session.innodb_lock_wait_timeout = v_wait; end if;
        resignal;
    end; */

    set o_verdict = null, o_fence = null, o_kind = null, o_result = null;
    call idem_check(p_scope, p_id, v_lease, v_ttl);
    if lower(coalesce(p_mode, 'strict')) not in ('strict', 'loose') then
        signal sqlstate '22023' set message_text = 'idem: a mode is strict or loose';
    end if;
    if length(p_fingerprint) <> 32 then
        signal sqlstate '22023' set message_text = 'idem: a fingerprint has 32 bytes: use unhex(sha2(…, 256))';
    end if;
    set v_loose = lower(coalesce(p_mode, 'strict')) = 'loose';
    set v_key = idem_key(1, p_scope, p_id);
    set v_us = idem_now_us(), v_ms = v_us div 1000;

    /*M! set statement innodb_lock_wait_timeout = 0 */ /*M!110402 , innodb_snapshot_isolation = off */ /*M! for */
    /*!80000 if @@transaction_isolation = 'READ-COMMITTED' then
        select 1 into v_seen from idem_record where key_hash = v_key for share nowait;
    end if;
    set v_wait = @@innodb_lock_wait_timeout, @@session.innodb_lock_wait_timeout = 1;
    if not v_refused then */
    insert into idem_record values (v_key, 1, 2, v_loose, 0, p_fingerprint is not null, 1,
        v_us, idem_random_rev(), v_ms, v_ms, v_ms + v_lease, v_ms + v_ttl,
        random_bytes(8), p_fingerprint, p_scope, p_id, '', '');
    /*!80000 end if;
    set @@session.innodb_lock_wait_timeout = v_wait; */
    if not v_refused then
        set o_verdict = 'started', o_fence = v_us;
        leave idem;
    end if;

    -- A row that stood in the way is locked by the insert, and read as it is now,
    -- not as this transaction's snapshot has it.
    set v_none = false;
    if v_there then
        /*M!110402 set statement innodb_snapshot_isolation = off for */
        select state, mode, kind, flags, attempt, fence, rev, created, lease_until, expires,
                fingerprint, result
            into v_state, v_old_mode, v_old_kind, v_flags, v_attempt, v_last_fence, v_rev,
                v_created, v_until, v_expires, v_print, v_blob
            from idem_record where key_hash = v_key lock in share mode;
    else
        select state, mode, kind, flags, attempt, fence, rev, created, lease_until, expires,
                fingerprint, result
            into v_state, v_old_mode, v_old_kind, v_flags, v_attempt, v_last_fence, v_rev,
                v_created, v_until, v_expires, v_print, v_blob
            from idem_record where key_hash = v_key;
    end if;
    if v_none then
        set o_verdict = 'busy'; -- claimed by a transaction that has not committed
        leave idem;
    end if;
    set v_counts = v_state = 2 or v_expires = 0 or v_expires > v_ms;
    set v_over = v_state = 2 and v_until <= v_ms;
    if v_counts and p_fingerprint is not null and v_flags & 1 and v_print <> p_fingerprint then
        set o_verdict = 'mismatch';
        leave idem;
    end if;
    if v_counts and v_state in (3, 4) then
        if v_flags & 4 then
            set o_verdict = 'duplicate';
            leave idem;
        end if;
        call idem_check_open(v_flags);
        set o_verdict = 'replay', o_fence = v_last_fence, o_kind = idem_kind_name(v_old_kind);
        set o_result = if(v_flags & 2, null, v_blob);
        leave idem;
    end if;
    if v_counts and v_state = 1 then
        set o_verdict = 'unknown';
        leave idem;
    end if;
    set v_again = v_over and v_old_mode = 1;
    if v_state = 2 and not v_again then
        set o_verdict = if(v_over, 'doubt', 'busy');
        leave idem;
    end if;

    -- Start it again, if it is as it was seen and nobody holds it.
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    select rev into v_held from idem_record where key_hash = v_key for update skip locked;
    if v_none or v_held <> v_rev then
        set o_verdict = 'busy';
        leave idem;
    end if;
    set o_fence = greatest(v_last_fence + 1, v_us);
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    update idem_record set state = 2, mode = v_loose, kind = 0,
        flags = p_fingerprint is not null or (v_again and v_flags & 1),
        attempt = if(v_counts, v_attempt, 0) + 1, fence = o_fence,
        rev = idem_random_rev(), created = if(v_again, v_created, v_ms), updated = v_ms,
        lease_until = v_ms + v_lease, expires = if(v_again, v_created, v_ms) + v_ttl,
        nonce = random_bytes(8),
        fingerprint = coalesce(p_fingerprint, if(v_again, v_print, null)),
        subject = '', result = '' where key_hash = v_key;
    set o_verdict = 'started';
end//

-- Behind the gateway: hold the claim that it made (Idem-Scope, Idem-Id,
-- Idem-Fence) until this transaction ends. started: it is still this fence's;
-- replay: this fence finished it before; stale: do nothing; busy: another
-- transaction holds it.
/*!80000 drop procedure if exists idem_join */ //
create /*M! or replace */ procedure idem_join(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, out o_verdict varchar(10), out o_kind varchar(4), out o_result longblob)
modifies sql data sql security invoker
idem: begin
    declare v_fence, v_expires bigint;
    declare v_state, v_kind, v_flags int;
    declare v_key binary(32);
    declare v_blob longblob;
    declare v_none, v_there bool default false;
    declare continue handler for 1205 /*!80000 , 3572 */ set v_there = true;
    declare continue handler for not found set v_none = true;

    set o_verdict = null, o_kind = null, o_result = null;
    call idem_check(p_scope, p_id, 1, 1);
    select idem_find_key(p_scope, p_id) into v_key;
    set v_none = false;
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    select fence, expires, state, kind, flags, result
        into v_fence, v_expires, v_state, v_kind, v_flags, v_blob
        from idem_record where key_hash = v_key for update skip locked;
    if v_none then
        /*M! set statement innodb_lock_wait_timeout = 0 */ /*M!110402 , innodb_snapshot_isolation = off */ /*M! for */
        select exists (select 1 from idem_record where key_hash = v_key
            /*M! lock in share mode */ /*!80000 for share nowait */) into v_there;
        set o_verdict = if(v_there, 'busy', 'stale');
        leave idem;
    end if;
    if not (v_fence <=> p_fence) or v_state not in (2, 3, 4)
        or (v_state <> 2 and v_expires <> 0 and v_expires <= idem_now_us() div 1000) then
        set o_verdict = 'stale';
        leave idem;
    end if;
    call idem_check_open(v_flags);
    set o_verdict = if(v_state = 2, 'started', 'replay');
    if v_state <> 2 then
        set o_kind = idem_kind_name(v_kind), o_result = if(v_flags & 2, null, v_blob);
    end if;
end//

-- What idem_finish does, told instead of raised: ok, stale, finished.
/*!80000 drop procedure if exists idem_try_finish */ //
create /*M! or replace */ procedure idem_try_finish(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_state varchar(20), in p_result longblob, in p_ttl_ms bigint,
    in p_kind varchar(10), out o_verdict varchar(10))
modifies sql data sql security invoker
idem: begin
    declare v_ms, v_fence, v_created, v_expires bigint;
    declare v_state, v_mode, v_old_kind, v_flags, v_outcome, v_kind int;
    declare v_key binary(32);
    declare v_value longblob default coalesce(p_result, '');
    declare v_blob longblob;
    declare v_none, v_frees bool default false;
    declare continue handler for not found set v_none = true;

    set o_verdict = null;
    call idem_check(p_scope, p_id, 1, coalesce(p_ttl_ms, 1));
    call idem_check_result(length(p_result));
    set v_outcome = case lower(p_state) when 'succeeded' then 3 when 'failed' then 4 end;
    set v_kind = case lower(coalesce(p_kind, 'raw')) when 'raw' then 0 when 'http' then 1
        when 'exec' then 2 end;
    if v_outcome is null then
        signal sqlstate '22023' set message_text = 'idem: an outcome is succeeded or failed';
    end if;
    if v_kind is null then
        signal sqlstate '22023' set message_text = 'idem: a kind is raw, http or exec';
    end if;
    select idem_find_key(p_scope, p_id) into v_key;
    set v_ms = idem_now_us() div 1000, v_none = false;
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    select fence, created, expires, state, mode, kind, flags, result
        into v_fence, v_created, v_expires, v_state, v_mode, v_old_kind, v_flags, v_blob
        from idem_record where key_hash = v_key for update;
    if v_none or not (v_fence <=> p_fence)
        or (v_state <> 2 and v_expires <> 0 and v_expires <= v_ms) then
        set o_verdict = 'stale';
        leave idem;
    end if;
    set v_frees = v_mode = 1 and v_outcome = 4;
    if v_state <> 2 then
        call idem_check_open(if(v_state in (3, 4), v_flags, 0));
        set o_verdict = case when v_frees and v_state = 5 then 'ok'
            when v_state not in (3, 4) then 'stale'
            when v_state = v_outcome and v_old_kind = v_kind and not v_flags & 2
                and v_blob = v_value then 'ok'
            else 'finished' end;
        leave idem;
    end if;
    if v_frees then
        /*M!110402 set statement innodb_snapshot_isolation = off for */
        update idem_record set state = 5, flags = 0, updated = v_ms, lease_until = 0, kind = 0,
            subject = '', result = '', fingerprint = null, expires = v_ms + 3600000,
            rev = idem_random_rev() where key_hash = v_key;
    else
        /*M!110402 set statement innodb_snapshot_isolation = off for */
        update idem_record set state = v_outcome, kind = v_kind, result = v_value,
            updated = v_ms, lease_until = 0, rev = idem_random_rev(),
            expires = v_ms + coalesce(p_ttl_ms,
                if(v_expires > v_created, v_expires - v_created, 86400000))
            where key_hash = v_key;
    end if;
    set o_verdict = 'ok';
end//

/*!80000 drop procedure if exists idem_undo */ //
create /*M! or replace */ procedure idem_undo()
modifies sql data sql security invoker
rollback//

-- Refuse to go on with what is not this fence's any more: the transaction is
-- rolled back, so that nothing of it can be committed, and 1644 is raised. XA, a
-- trigger and a function allow no rollback here: there it is raised alone.
/*!80000 drop procedure if exists idem_need_ok */ //
create /*M! or replace */ procedure idem_need_ok(in p_verdict varchar(10))
modifies sql data sql security invoker
begin
    declare continue handler for 1399, 1422 begin end;
    if p_verdict <> 'ok' then
        call idem_undo();
    end if;
    if p_verdict = 'stale' then
        signal sqlstate '45001' set message_text =
            'idem: finish is stale: this fence does not hold the record: roll back';
    elseif p_verdict <> 'ok' then
        signal sqlstate '45002' set message_text =
            'idem: finish is finished: this fence ended it otherwise before: roll back';
    end if;
end//

-- Record the outcome in this transaction; or roll back and raise.
/*!80000 drop procedure if exists idem_finish */ //
create /*M! or replace */ procedure idem_finish(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_state varchar(20), in p_result longblob, in p_ttl_ms bigint)
modifies sql data sql security invoker
begin
    declare v_verdict varchar(10);
    call idem_try_finish(p_scope, p_id, p_fence, p_state, p_result, p_ttl_ms, 'raw', v_verdict);
    call idem_need_ok(v_verdict);
end//

-- Finish with an HTTP answer that the gateway replays (docs/results.md). Below
-- 400 is a success.
/*!80000 drop procedure if exists idem_finish_http */ //
create /*M! or replace */ procedure idem_finish_http(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_status int, in p_content_type varbinary(1000), in p_body longblob,
    in p_ttl_ms bigint)
modifies sql data sql security invoker
begin
    declare v_verdict varchar(10);
    if p_status is null or p_status not between 200 and 599 then
        signal sqlstate '22023' set message_text = 'idem: a status is 200 to 599';
    end if;
    if locate(x'0a', p_content_type) > 0 or locate(x'0d', p_content_type) > 0 then
        signal sqlstate '22023' set message_text = 'idem: a content type has one line';
    end if;
    call idem_try_finish(p_scope, p_id, p_fence, if(p_status < 400, 'succeeded', 'failed'),
        concat(cast(p_status as char), x'0a',
            coalesce(concat('Content-Type: ', p_content_type, x'0a'), ''), x'0a',
            coalesce(p_body, '')), p_ttl_ms, 'http', v_verdict);
    call idem_need_ok(v_verdict);
end//

-- Give a claim back: ok or stale.
/*!80000 drop procedure if exists idem_release */ //
create /*M! or replace */ procedure idem_release(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, out o_verdict varchar(10))
modifies sql data sql security invoker
begin
    declare v_ms bigint default idem_now_us() div 1000;
    declare v_key binary(32);
    call idem_check(p_scope, p_id, 1, 1);
    select idem_find_key(p_scope, p_id) into v_key;
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    update idem_record set state = 5, flags = 0, updated = v_ms, lease_until = 0, kind = 0,
        subject = '', result = '', fingerprint = null, expires = v_ms + 3600000,
        rev = idem_random_rev()
        where key_hash = v_key and state = 2 and fence = p_fence;
    set o_verdict = if(row_count() = 1, 'ok', 'stale');
end//

-- More time for what is executing: ok or stale.
/*!80000 drop procedure if exists idem_renew */ //
create /*M! or replace */ procedure idem_renew(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_lease_ms bigint, out o_verdict varchar(10))
modifies sql data sql security invoker
begin
    declare v_ms bigint default idem_now_us() div 1000;
    declare v_lease bigint default coalesce(p_lease_ms, 30000);
    declare v_key binary(32);
    call idem_check(p_scope, p_id, v_lease, 1);
    select idem_find_key(p_scope, p_id) into v_key;
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    update idem_record set lease_until = greatest(lease_until, v_ms + v_lease),
        updated = v_ms, rev = idem_random_rev()
        where key_hash = v_key and state = 2 and fence = p_fence;
    set o_verdict = if(row_count() = 1, 'ok', 'stale');
end//

-- The query for compensation. settled: nothing had happened, and a late request
-- can no longer run; replay: this is what happened; busy, doubt: it does not
-- guess. With an outcome (an operator's right) a doubt is decided.
/*!80000 drop procedure if exists idem_settle */ //
create /*M! or replace */ procedure idem_settle(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_outcome varchar(20), in p_result longblob, in p_ttl_ms bigint,
    out o_verdict varchar(10), out o_state varchar(10), out o_kind varchar(4),
    out o_result longblob)
modifies sql data sql security invoker
idem: begin
    declare v_us, v_ms, v_rev, v_held, v_until, v_expires bigint;
    declare v_state, v_old_kind, v_flags, v_outcome int;
    declare v_key binary(32);
    declare v_blob longblob;
    declare v_ttl bigint default coalesce(p_ttl_ms, 86400000);
    declare v_refused, v_there, v_none, v_counts, v_over bool default false;
    /*!80000 declare v_seen, v_wait int; */
    declare continue handler for 1062 set v_refused = true, v_there = true;
    declare continue handler for 1205 /*!80000 , 3572 */ set v_refused = true;
    declare continue handler for not found set v_none = true;
    /*!80000 declare exit handler for sqlexception begin
        if v_wait is not null then set @@session.innodb_lock_wait_timeout = v_wait; end if;
        resignal;
    end; */

    set o_verdict = null, o_state = null, o_kind = null, o_result = null;
    call idem_check(p_scope, p_id, 1, v_ttl);
    call idem_check_result(length(p_result));
    set v_outcome = case lower(coalesce(p_outcome, 'failed')) when 'succeeded' then 3
        when 'failed' then 4 end;
    if v_outcome is null then
        signal sqlstate '22023' set message_text = 'idem: an outcome is succeeded or failed';
    end if;
    select idem_find_key(p_scope, p_id) into v_key;
    set v_us = idem_now_us(), v_ms = v_us div 1000;
    /*M! set statement innodb_lock_wait_timeout = 0 */ /*M!110402 , innodb_snapshot_isolation = off */ /*M! for */
    /*!80000 if @@transaction_isolation = 'READ-COMMITTED' then
        select 1 into v_seen from idem_record where key_hash = v_key for share nowait;
    end if;
    set v_wait = @@innodb_lock_wait_timeout, @@session.innodb_lock_wait_timeout = 1;
    if not v_refused then */
    insert into idem_record values (v_key, 1, v_outcome, 0, 0, 8, 0, v_us, idem_random_rev(),
        v_ms, v_ms, 0, v_ms + v_ttl, random_bytes(8), null, p_scope, p_id, '',
        coalesce(p_result, ''));
    /*!80000 end if;
    set @@session.innodb_lock_wait_timeout = v_wait; */
    if not v_refused then
        set o_verdict = 'settled', o_state = idem_state_name(v_outcome), o_kind = 'raw';
        leave idem;
    end if;
    set v_none = false;
    if v_there then
        /*M!110402 set statement innodb_snapshot_isolation = off for */
        select state, kind, flags, rev, lease_until, expires, result
            into v_state, v_old_kind, v_flags, v_rev, v_until, v_expires, v_blob
            from idem_record where key_hash = v_key lock in share mode;
    else
        select state, kind, flags, rev, lease_until, expires, result
            into v_state, v_old_kind, v_flags, v_rev, v_until, v_expires, v_blob
            from idem_record where key_hash = v_key;
    end if;
    if v_none then
        set o_verdict = 'busy';
        leave idem;
    end if;
    set v_counts = v_state = 2 or v_expires = 0 or v_expires > v_ms;
    set v_over = v_state = 2 and v_until <= v_ms;
    if v_counts and v_state in (3, 4) then
        call idem_check_open(v_flags);
        set o_verdict = 'replay', o_state = idem_state_name(v_state),
            o_kind = idem_kind_name(v_old_kind), o_result = if(v_flags & 2, null, v_blob);
        leave idem;
    end if;
    if v_state = 2 and not (v_over and p_outcome is not null) then
        set o_verdict = if(v_over, 'doubt', 'busy'), o_state = 'executing';
        leave idem;
    end if;
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    select rev into v_held from idem_record where key_hash = v_key for update skip locked;
    if v_none or v_held <> v_rev then
        set o_verdict = 'busy';
        leave idem;
    end if;
    -- What is not executing starts a new life: only fence and count go on. (An
    -- assignment sees the ones before it, so state comes last.)
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    update idem_record set kind = 0, result = coalesce(p_result, ''),
        flags = if(state = 2, flags, 0) | 8, mode = if(state = 2, mode, 0),
        attempt = if(v_counts, attempt, 0), fingerprint = if(state = 2, fingerprint, null),
        subject = if(state = 2, subject, ''), nonce = if(state = 2, nonce, random_bytes(8)),
        fence = greatest(fence + 1, v_us), rev = idem_random_rev(),
        created = if(state = 2, created, v_ms), updated = v_ms, lease_until = 0,
        expires = v_ms + v_ttl, state = v_outcome where key_hash = v_key;
    set o_verdict = 'settled', o_state = idem_state_name(v_outcome), o_kind = 'raw';
end//

-- A pure query: absent, or record with what is known. Needs no transaction.
/*!80000 drop procedure if exists idem_get */ //
create /*M! or replace */ procedure idem_get(in p_scope varbinary(1000), in p_id varbinary(1000),
    out o_verdict varchar(10), out o_state varchar(10), out o_fence bigint,
    out o_kind varchar(4), out o_result longblob)
reads sql data sql security invoker
begin
    declare v_key binary(32);
    declare v_flags int default 0;
    declare continue handler for not found set o_verdict = 'absent';

    call idem_check_isolation();
    select idem_find_key(p_scope, p_id) into v_key;
    set o_verdict = 'record', o_state = null, o_fence = null, o_kind = null, o_result = null;
    select idem_state_name(state), fence, idem_kind_name(kind), if(flags & 34, null, result), flags
        into o_state, o_fence, o_kind, o_result, v_flags from idem_record
        where key_hash = v_key
        and (state = 2 or expires = 0 or expires > idem_now_us() div 1000);
    call idem_check_open(v_flags);
end//

-- Drop what expired a minute ago, a few at a time; an idem server does it by itself. It believes the
-- database's clock; a server does not, where that jumps. A fence that is ahead of the clock stays.
/*!80000 drop procedure if exists idem_sweep */ //
create /*M! or replace */ procedure idem_sweep(in p_most int, out o_gone bigint)
modifies sql data sql security invoker
begin
    declare v_most bigint default coalesce(p_most, 1000);
    declare v_past bigint default idem_now_us() div 1000 - 60000;
    /*M!110402 set statement innodb_snapshot_isolation = off for */
    delete from idem_record where state in (1, 3, 4, 5)
        and expires between 1 and v_past - 1 and fence < (v_past - 1) * 1000 limit v_most;
    set o_gone = row_count();
end//

-- Declare a move of a state machine, once, when installing the application.
/*!80000 drop procedure if exists idem_declare_move */ //
create /*M! or replace */ procedure idem_declare_move(in p_machine varbinary(100),
    in p_from varbinary(100), in p_to varbinary(100))
modifies sql data sql security invoker
begin
    declare continue handler for 1062 begin end;
    insert into idem_machine values (p_machine, p_from, p_to);
end//

-- Must this move have happened to a row that is in this state? Yes, if the other
-- moves do not lead there from a state where a row may begin. A row may begin where
-- no move leads to, and on a circle into which no move leads.
/*!80000 drop function if exists idem_is_proven */ //
create /*M! or replace */ function idem_is_proven(p_machine varbinary(100), p_from varbinary(100),
    p_to varbinary(100), p_state varbinary(100))
returns bool not deterministic reads sql data sql security invoker
begin
    return (with recursive
        moves as (select from_state as a, to_state as b from idem_machine where machine = p_machine),
        states as (select a as s from moves union select b from moves),
        reach as (select a, b from moves union select r.a, m.b from reach r join moves m on m.a = r.b),
        free as (
            select s from states where not exists (select 1 from reach r where r.b = s
                and not exists (select 1 from reach q where q.a = s and q.b = r.a))
            union select m.b from free f join moves m on m.a = f.s
                where not (m.a = p_from and m.b = p_to))
        select exists (select 1 from states where s = p_state)
            and not exists (select 1 from free where s = p_state));
end//

-- Move a row of the caller's own table from one state to the next: first (moved,
-- now), duplicate (it is there already, or in a state that proves the move), refused
-- (no such move, another state, or no such row). Names are quoted; a dot parts database and table.
/*!80000 drop procedure if exists idem_transition */ //
create /*M! or replace */ procedure idem_transition(in p_machine varchar(100) charset utf8mb4,
    in p_table varchar(129) charset utf8mb4, in p_key_column varchar(64) charset utf8mb4,
    in p_key varchar(255) charset utf8mb4, in p_state_column varchar(64) charset utf8mb4,
    in p_from varchar(100) charset utf8mb4, in p_to varchar(100) charset utf8mb4,
    out o_verdict varchar(10))
modifies sql data sql security invoker
idem: begin
    declare v_one varbinary(100);
    declare v_end bool default false;
    declare v_where longtext charset utf8mb4;
    declare v_table varchar(300) charset utf8mb4 default idem_quote_name(p_table);
    declare v_key varchar(200) charset utf8mb4
        default concat('`', replace(p_key_column, '`', '``'), '`');
    declare v_state varchar(200) charset utf8mb4
        default concat('`', replace(p_state_column, '`', '``'), '`');
    declare v_states cursor for select to_state from idem_machine where machine = p_machine
        group by to_state having to_state = p_to or idem_is_proven(p_machine, p_from, p_to, to_state);
    declare continue handler for not found set v_end = true;

    call idem_check_keys(p_table, json_object(p_key_column, p_key));
    if not exists (select 1 from idem_machine where machine = p_machine
        and from_state = p_from and to_state = p_to) then
        set o_verdict = 'refused';
        leave idem;
    end if;
    set v_where = concat(' where ', v_key, ' = _utf8mb4 x''', hex(p_key), ''' and ', v_state, ' = _utf8mb4 x''');
    call idem_execute(concat('update ', v_table, ' set ', v_state, ' = _utf8mb4 x''', hex(p_to), '''', v_where,
        hex(p_from), ''''));
    if @idem_rows = 1 then
        set o_verdict = 'first';
        leave idem;
    end if;
    set o_verdict = 'refused';
    open v_states;
    repeat
        fetch v_states into v_one;
        if not v_end then
            call idem_execute(concat('select count(*) into @idem_there from ', v_table, v_where, hex(v_one),
                ''' lock in share mode')); -- as it is now, not as an older snapshot has it
            set o_verdict = if(@idem_there > 0, 'duplicate', o_verdict);
        end if;
    until v_end end repeat;
    close v_states;
end//

-- ---- the schemes on a service's own tables ---------------------------------
--
-- Keys and values are JSON objects, {"column": value}: which row, and what to write.
-- A primary key or a unique index must lie within the columns of the keys. The answer
-- is a verdict: first (done, now, by this call), duplicate (done before), conflict
-- (somebody else was there), refused. To see the row, select it afterwards. A dot
-- parts database and table.

/*!80000 drop function if exists idem_quote_name */ //
create /*M! or replace */ function idem_quote_name(p_name varchar(129) charset utf8mb4)
returns varchar(300) charset utf8mb4 deterministic no sql sql security invoker
return concat('`', replace(replace(p_name, '`', '``'), '.', '`.`'), '`')//

-- Pieces of a statement, one for each column of a JSON object: {n} in the pattern is
-- the column, {v} its value as a literal of text, {e} the same to be compared exactly.
/*!80000 drop function if exists idem_pieces */ //
create /*M! or replace */ function idem_pieces(p_columns longtext charset utf8mb4,
    p_pattern varchar(100) charset utf8mb4, p_between varchar(20) charset utf8mb4)
returns longtext charset utf8mb4 deterministic no sql sql security invoker
begin
    declare v_names longtext charset utf8mb4 default json_keys(p_columns);
    declare v_out longtext charset utf8mb4;
    declare v_name, v_type varchar(100) charset utf8mb4;
    declare v_value, v_cell longtext charset utf8mb4;
    declare i int default 0;
    while i < json_length(v_names) do
        set v_name = json_unquote(json_extract(v_names, concat('$[', i, ']')));
        set v_cell = json_extract(p_columns, concat('$.', json_quote(v_name)));
        set v_type = json_type(v_cell);
        set v_value = case v_type when 'NULL' then 'null'
            when 'BOOLEAN' then if(v_cell = 'true', '1', '0')
            else concat('_utf8mb4 x''', hex(json_unquote(v_cell)), '''') end;
        set v_out = concat(coalesce(concat(v_out, p_between), ''), replace(replace(replace(p_pattern,
            '{v}', v_value), '{e}', concat(v_value, if(v_type = 'STRING', ' collate utf8mb4_bin', ''))),
            '{n}', concat('`', replace(v_name, '`', '``'), '`')));
        set i = i + 1;
    end while;
    return v_out;
end//

-- Refuse keys that may name several rows, and a table that cannot roll back.
/*!80000 drop procedure if exists idem_check_keys */ //
create /*M! or replace */ procedure idem_check_keys(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4)
reads sql data sql security invoker
begin
    declare v_told varchar(500) charset utf8mb4;
    declare v_columns longtext charset utf8mb4;
    declare v_dot int default locate('.', p_table);
    declare v_schema varchar(64) charset utf8mb4 default if(v_dot, left(p_table, v_dot - 1), database());
    declare v_name varchar(64) charset utf8mb4 default substr(p_table, v_dot + 1);

    call idem_check('-', '-', 1, 1);
    if not coalesce(json_valid(p_keys) and json_type(p_keys) = 'OBJECT' and json_length(p_keys) > 0, false) then
        signal sqlstate '22023' set message_text =
            'idem: keys is a JSON object, {"column": value}, with one column or more';
    end if;
    if locate('null', idem_pieces(p_keys, '{v}', ' ')) > 0 then -- texts are in hexadecimal
        signal sqlstate '22023' set message_text =
            'idem: a key is null, and nulls are never the same: give a value';
    end if;
    if exists (select 1 from information_schema.tables where table_schema = v_schema
        and table_name = v_name and engine <> 'InnoDB') then
        set v_told = left(concat('idem: table ', p_table, ' cannot roll back: use InnoDB'), 128);
        signal sqlstate '22023' set message_text = v_told;
    end if;
    set v_columns = lower(json_keys(p_keys));
    if not exists (select 1 from information_schema.statistics
        where table_schema = v_schema and table_name = v_name and non_unique = 0 group by index_name
        having min(coalesce(json_contains(v_columns, json_quote(lower(convert(column_name using utf8mb4)))), 0)) = 1) then
        set v_told = left(concat('idem: create a unique index: table ', p_table, ' has none within ', v_columns), 128);
        signal sqlstate '22023' set message_text = v_told;
    end if;
end//

-- How many rows there are, into @idem_there; the suffix may hold them.
/*!80000 drop procedure if exists idem_count_rows */ //
create /*M! or replace */ procedure idem_count_rows(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4, in p_suffix varchar(100) charset utf8mb4)
modifies sql data sql security invoker
begin
    declare v_sql longtext charset utf8mb4;

    set @idem_there = 0;
    set v_sql = concat('select count(*) into @idem_there from ', idem_quote_name(p_table),
        ' where ', idem_pieces(p_keys, '{n} = {v}', ' and '), p_suffix);
    call idem_execute(v_sql);
end//

-- Insert a row once: first, duplicate (the key is there), conflict (another unique
-- index stood in the way).
/*!80000 drop procedure if exists idem_insert_once */ //
create /*M! or replace */ procedure idem_insert_once(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4, in p_values longtext charset utf8mb4,
    out o_verdict varchar(10))
modifies sql data sql security invoker
begin
    declare v_sql longtext charset utf8mb4;
    declare v_refused bool default false;
    declare continue handler for 1062 set v_refused = true;

    call idem_check_keys(p_table, p_keys);
    set v_sql = concat('insert into ', idem_quote_name(p_table), ' (',
        idem_pieces(p_keys, '{n}', ', '), coalesce(concat(', ', idem_pieces(p_values, '{n}', ', ')), ''),
        ') values (', idem_pieces(p_keys, '{v}', ', '),
        coalesce(concat(', ', idem_pieces(p_values, '{v}', ', ')), ''), ')');
    call idem_execute(v_sql);
    set o_verdict = 'first';
    if v_refused then
        call idem_count_rows(p_table, p_keys, ' lock in share mode');
        set o_verdict = if(@idem_there > 0, 'duplicate', 'conflict');
    end if;
end//

-- The same, but look first.
/*!80000 drop procedure if exists idem_select_insert */ //
create /*M! or replace */ procedure idem_select_insert(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4, in p_values longtext charset utf8mb4,
    out o_verdict varchar(10))
modifies sql data sql security invoker
begin
    call idem_check_keys(p_table, p_keys);
    call idem_count_rows(p_table, p_keys, '');
    set o_verdict = 'duplicate';
    if @idem_there = 0 then
        call idem_insert_once(p_table, p_keys, p_values, o_verdict);
    end if;
end//

-- Insert it (first), or update what is there (duplicate).
/*!80000 drop procedure if exists idem_upsert */ //
create /*M! or replace */ procedure idem_upsert(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4, in p_values longtext charset utf8mb4,
    out o_verdict varchar(10))
modifies sql data sql security invoker
begin
    declare v_sql longtext charset utf8mb4;

    call idem_select_insert(p_table, p_keys, p_values, o_verdict);
    if o_verdict = 'duplicate' and json_length(p_values) > 0 then
        call idem_count_rows(p_table, p_keys, ' for update');
        set v_sql = concat('update ', idem_quote_name(p_table), ' set ',
            idem_pieces(p_values, '{n} = {v}', ', '), ' where ', idem_pieces(p_keys, '{n} = {v}', ' and '));
        call idem_execute(v_sql);
        set o_verdict = if(@idem_there > 0, 'duplicate', 'conflict');
    end if;
end//

-- Set values, add what is to be added ({"price": 50}: price = price + 50) and count the
-- version up, where it is still this one: first. duplicate: the row has these values and
-- the next version. conflict: somebody else changed it, or something was to be added,
-- whose repeat cannot be told from that. refused: no such row.
/*!80000 drop procedure if exists idem_update_versioned */ //
create /*M! or replace */ procedure idem_update_versioned(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4, in p_version_column varchar(64) charset utf8mb4,
    in p_version bigint, in p_values longtext charset utf8mb4, in p_adds longtext charset utf8mb4,
    out o_verdict varchar(10))
modifies sql data sql security invoker
idem: begin
    declare v_sql longtext charset utf8mb4;
    declare v_where longtext charset utf8mb4;
    declare v_version varchar(200) charset utf8mb4
        default concat('`', replace(p_version_column, '`', '``'), '`');

    call idem_check_keys(p_table, p_keys);
    set v_where = concat(' where ', idem_pieces(p_keys, '{n} = {v}', ' and '), ' and ', v_version, ' = ');
    set v_sql = concat('update ', idem_quote_name(p_table), ' set ',
        coalesce(concat(idem_pieces(p_values, '{n} = {v}', ', '), ', '), ''),
        coalesce(concat(idem_pieces(p_adds, '{n} = {n} + cast({v} as decimal(65, 10))', ', '), ', '), ''),
        v_version, ' = ', v_version, ' + 1', v_where, p_version);
    call idem_execute(v_sql);
    if @idem_rows = 1 then
        set o_verdict = 'first';
        leave idem;
    end if;
    call idem_count_rows(p_table, p_keys, '');
    set o_verdict = if(@idem_there = 0, 'refused', 'conflict');
    if @idem_there > 0 and coalesce(json_length(p_adds), 0) = 0 then
        set @idem_there = 0;
        set v_sql = concat('select count(*) into @idem_there from ', idem_quote_name(p_table), v_where,
            p_version, ' + 1', coalesce(concat(' and ', idem_pieces(p_values, '{n} <=> {e}', ' and ')), ''));
        call idem_execute(v_sql);
        set o_verdict = if(@idem_there > 0, 'duplicate', 'conflict');
    end if;
end//

-- Take an amount away while that leaves at least 0: first, or refused (it does not
-- suffice, or there is no such row).
/*!80000 drop procedure if exists idem_deduct */ //
create /*M! or replace */ procedure idem_deduct(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4, in p_column varchar(64) charset utf8mb4,
    in p_amount decimal(65, 10), out o_verdict varchar(10))
modifies sql data sql security invoker
begin
    declare v_sql longtext charset utf8mb4;
    declare v_column varchar(200) charset utf8mb4 default concat('`', replace(p_column, '`', '``'), '`');
    declare v_enough longtext charset utf8mb4;

    call idem_check_keys(p_table, p_keys);
    if p_amount is null or p_amount < 0 then
        signal sqlstate '22023' set message_text = 'idem: such an amount would not deduct: give 0 or more';
    end if;
    set v_enough = concat(' and ', v_column, ' >= ', p_amount);
    set v_sql = concat('update ', idem_quote_name(p_table), ' set ', v_column, ' = ', v_column, ' - ',
        p_amount, ' where ', idem_pieces(p_keys, '{n} = {v}', ' and '), v_enough);
    call idem_execute(v_sql);
    set o_verdict = if(@idem_rows = 1, 'first', 'refused');
    if p_amount = 0 then -- which changes no row
        call idem_count_rows(p_table, p_keys, v_enough);
        set o_verdict = if(@idem_there > 0, 'first', 'refused');
    end if;
end//

-- Hold a row until the transaction ends, waiting up to p_wait_ms: first, conflict
-- (somebody else still holds it), refused (no such row).
/*!80000 drop procedure if exists idem_lock_row */ //
create /*M! or replace */ procedure idem_lock_row(in p_table varchar(129) charset utf8mb4,
    in p_keys longtext charset utf8mb4, in p_wait_ms bigint, out o_verdict varchar(10))
modifies sql data sql security invoker
begin
    declare v_start datetime(6) default sysdate(6); -- now() stands still in here

    call idem_check_keys(p_table, p_keys);
    set o_verdict = null;
    while o_verdict is null do
        call idem_count_rows(p_table, p_keys, ' for update skip locked');
        if @idem_there > 0 then
            set o_verdict = 'first';
        else
            call idem_count_rows(p_table, p_keys, '');
            set o_verdict = case when @idem_there = 0 then 'refused'
                when timestampdiff(microsecond, v_start, sysdate(6)) >= coalesce(p_wait_ms, 0) * 1000
                    then 'conflict' end;
            do sleep(if(o_verdict is null, 0.005, 0));
        end if;
    end while;
end//

-- Write a word of a barrier once: what is written now, and whether it was this call.
/*!80000 drop procedure if exists idem_write_once */ //
create /*M! or replace */ procedure idem_write_once(in p_transaction varbinary(1000), in p_name varbinary(1000),
    in p_word varbinary(10), out o_first bool, out o_written varbinary(10))
modifies sql data sql security invoker
begin
    declare v_verdict, v_state, v_kind varchar(10);
    declare v_result longblob;
    declare v_tries int default 0;

    repeat
        call idem_settle(p_transaction, p_name, 'succeeded', p_word, 2592000000, v_verdict, v_state, v_kind, v_result);
        set v_tries = v_tries + 1;
        if v_verdict = 'busy' then
            do sleep(0.005);
        end if;
    until v_verdict <> 'busy' or v_tries > 200 end repeat;
    if v_verdict = 'busy' then
        signal sqlstate '45003' set message_text =
            'idem: another phase of this branch is being decided: roll back and try again';
    end if;
    set o_first = v_verdict = 'settled', o_written = if(v_verdict = 'settled', p_word, v_result);
end//

-- May this phase (try, confirm, cancel) of this branch do its work in this
-- transaction? first: yes; duplicate: it did before; empty: a cancel whose try never
-- came, answer success and do nothing; refused.
/*!80000 drop procedure if exists idem_barrier */ //
create /*M! or replace */ procedure idem_barrier(in p_transaction varbinary(1000), in p_branch varbinary(1000),
    in p_phase varbinary(20), out o_verdict varchar(10))
modifies sql data sql security invoker
idem: begin
    declare v_first bool;
    declare v_written varbinary(10);
    declare v_verdict, v_state, v_kind varchar(10);
    declare v_fence bigint;
    declare v_result longblob;

    if coalesce(p_phase not in ('try', 'confirm', 'cancel'), true) then
        signal sqlstate '22023' set message_text = 'idem: a phase is try, confirm or cancel';
    end if;
    if coalesce(length(p_branch), 0) not between 1 and 245 then
        signal sqlstate '22023' set message_text = 'idem: a branch has 1 to 245 bytes';
    end if;
    if p_phase = 'confirm' then
        call idem_check(p_transaction, p_branch, 1, 1);
        call idem_get(p_transaction, concat(p_branch, '#try'), v_verdict, v_state, v_fence, v_kind, v_result);
        if v_verdict = 'absent' or v_result <> 'try' then
            set o_verdict = 'refused';
            leave idem;
        end if;
    else
        call idem_write_once(p_transaction, concat(p_branch, '#try'), p_phase, v_first, v_written);
        if p_phase = 'try' then
            set o_verdict = case when v_first then 'first' when v_written = 'try' then 'duplicate' else 'refused' end;
            leave idem;
        end if;
        if v_written = 'cancel' then
            set o_verdict = 'empty';
            leave idem;
        end if;
    end if;
    call idem_write_once(p_transaction, concat(p_branch, '#decision'), p_phase, v_first, v_written);
    set o_verdict = case when v_first then 'first' when v_written = p_phase then 'duplicate' else 'refused' end;
end//

delimiter ;

update idem_version set version = 1 where version < 1;
