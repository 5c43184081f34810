-- idem for PostgreSQL 13 and later: the table, and the schemes as functions, in
-- a schema of its own.
--
--   psql -1 -f sql/postgres.sql shop    or:  idem store init postgres://…/shop
--
-- Installing it twice does no harm, and installing a newer one upgrades. What a
-- service needs, and nothing else:
--
--   grant usage on schema idem to shop;
--   grant select, insert, update on idem.idem_record to shop;
--   grant select on idem.idem_machine, idem.idem_version to shop;
--
-- (functions may be called by everybody who may use the schema; whoever calls
-- idem.sweep, and an idem server, also needs delete on idem.idem_record).
--
-- A function or operator of another schema in the caller's search_path can match
-- better than one of pg_catalog, and would then be called with the caller's rights.
-- So the functions for services have a search_path of their own. Those that need
-- the operators of the caller's columns (citext) run with the caller's, and name
-- pg_catalog wherever it has nothing for exactly these types.
--
-- The columns are explained in docs/sql/tables.md; rev is 64 random bits kept as
-- a signed number. Everything here runs in the caller's own transaction, which
-- has to be READ COMMITTED (the default).

-- (Who was given the schema need not be allowed to make one.)
do $$
begin
    if to_regnamespace('idem') is null then
        create schema idem;
    end if;
end
$$;

create table if not exists idem.idem_record (
    key_hash    bytea    not null primary key,
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
    nonce       bytea    not null,
    fingerprint bytea,
    scope       bytea    not null,
    id          bytea    not null,
    subject     bytea    not null,
    result      bytea    not null
);

create index if not exists idem_record_sweep
    on idem.idem_record (expires) where state <> 2 and expires > 0;
create index if not exists idem_record_started
    on idem.idem_record (created) where state = 2;
-- For `idem find`: an id in whatever scope.
create index if not exists idem_record_id on idem.idem_record (id);

-- What earlier installations had, and paid for with every statement.
drop index if exists idem.idem_record_executing;
do $$
begin
    if exists (select 1 from pg_constraint where contype = 'c'
        and conrelid = 'idem.idem_record'::regclass::oid) then
        alter table idem.idem_record
            drop constraint if exists idem_record_key_hash_check,
            drop constraint if exists idem_record_nonce_check,
            drop constraint if exists idem_record_fingerprint_check;
    end if;
end
$$;

-- Moves that a state machine allows; see idem.transition.
create table if not exists idem.idem_machine (
    machine    text not null,
    from_state text not null,
    to_state   text not null,
    primary key (machine, from_state, to_state)
);

create table if not exists idem.idem_version (version int not null);
insert into idem.idem_version select 1
    where not exists (select 1 from idem.idem_version);

-- An older version's functions go, whatever arguments they took; a newer one's
-- are not replaced by these.
do $$
declare
    installed int := (select max(version) from idem.idem_version);
    old regprocedure;
begin
    if installed > 1 then
        raise exception 'idem: version % is installed here, which is newer than this script', installed;
    end if;
    for old in select p.oid from pg_proc p
        where installed < 1 and p.pronamespace = 'idem'::regnamespace::oid loop
        execute 'drop routine ' || old::text;
    end loop;
end
$$;

-- ---- inner functions ------------------------------------------------------

-- The lookup key: SHA-256 over the type (one byte), then scope and id, each
-- behind its length as two bytes.
create or replace function idem.key(type int, scope bytea, id bytea)
returns bytea language sql immutable parallel safe as $$
    select sha256(decode(lpad(to_hex($1), 2, '0'), 'hex')
        || int2send(octet_length($2)::int2) || $2
        || int2send(octet_length($3)::int2) || $3)
$$;

-- The advisory lock that a claim holds until its transaction ends.
create or replace function idem.lock_number(key bytea)
returns bigint language sql immutable parallel safe as $$
    select ('x' || encode(substring($1 for 8), 'hex'))::bit(64)::bigint
$$;

-- Tell engines where somebody waits for this record, which is no longer
-- executing, to look at it once this transaction has committed. They hold the
-- lock; commits with a notification wait for each other, so nobody else's has one.
create or replace function idem.wake(key bytea)
returns void language plpgsql volatile as $$
begin
    if not pg_try_advisory_xact_lock(idem.lock_number(substring($1 from 9))) then
        perform pg_notify('idem_wake', encode($1, 'hex'));
    end if;
end
$$;

-- 8 random bytes, none of those that a UUID fixes.
create or replace function idem.random_bytes()
returns bytea language sql volatile parallel safe as $$
    select substring(u from 10 for 7) || substring(u for 1)
    from uuid_send(gen_random_uuid()) as u
$$;

create or replace function idem.random_rev()
returns bigint language sql volatile parallel safe as $$
    select coalesce(nullif(idem.lock_number(idem.random_bytes()), 0), 1)
$$;

create or replace function idem.now_us()
returns bigint language sql volatile parallel safe as $$
    select (extract(epoch from clock_timestamp()) operator(pg_catalog.*) 1000000)::bigint
$$;

create or replace function idem.kind_name(kind int)
returns text language sql immutable parallel safe as $$
    select case $1 when 0 then 'raw' when 1 then 'http' when 2 then 'exec' end
$$;

create or replace function idem.state_name(state int)
returns text language sql immutable parallel safe as $$
    select case $1 when 1 then 'issued' when 2 then 'executing'
        when 3 then 'succeeded' when 4 then 'failed' when 5 then 'free' end
$$;

-- Refuse what cannot be right, before anything happens.
create or replace function idem.check_names(scope text, id text)
returns void language plpgsql stable as $$
begin
    if coalesce(octet_length(convert_to($1, 'UTF8')), 0) not between 1 and 200 then
        raise exception 'idem: the scope has 1 to 200 bytes'
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(octet_length(convert_to($2, 'UTF8')), 0) not between 1 and 255 then
        raise exception 'idem: the id has 1 to 255 bytes'
            using errcode = 'invalid_parameter_value';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'idem: the transaction is %, which cannot see what another has claimed meanwhile: use read committed',
            current_setting('transaction_isolation')
            using errcode = 'invalid_transaction_state';
    end if;
end
$$;

create or replace function idem.parse_outcome(state text)
returns int language plpgsql immutable as $$
begin
    case lower(state)
        when 'succeeded' then return 3;
        when 'failed' then return 4;
        else raise exception 'idem: an outcome is succeeded or failed, not %',
            coalesce(state, 'null') using errcode = 'invalid_parameter_value';
    end case;
end
$$;

create or replace function idem.parse_kind(kind text)
returns int language plpgsql immutable as $$
begin
    case lower(coalesce(kind, 'raw'))
        when 'raw' then return 0;
        when 'http' then return 1;
        when 'exec' then return 2;
        else raise exception 'idem: a kind is raw, http or exec, not %', kind
            using errcode = 'invalid_parameter_value';
    end case;
end
$$;

create or replace function idem.check_ms(what text, ms bigint, most bigint)
returns void language plpgsql immutable as $$
begin
    if ms < 1 or ms > most then
        raise exception 'idem: a % of % ms is out of range: give 1 to % ms',
            what, ms, most
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

create or replace function idem.check_result(result bytea)
returns void language plpgsql immutable as $$
begin
    if octet_length($1) > 67108864 then
        raise exception 'idem: a result of % bytes is too long: at most 64 MiB',
            octet_length($1) using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- Refuse a result that an idem server has sealed (--seal-key): it does not open here.
create or replace function idem.check_open(flags int)
returns void language plpgsql immutable as $$
begin
    if $1 & 32 = 32 then
        raise exception 'idem: this record is sealed (seal-key) and does not open in the database: ask the idem server that sealed it'
            using errcode = 'feature_not_supported';
    end if;
end
$$;

-- A request of this name, or else a token of this name (as FINISH finds it).
create or replace function idem.find_key(scope text, id text)
returns bytea language plpgsql volatile as $$
declare
    request bytea := idem.key(1, convert_to($1, 'UTF8'), convert_to($2, 'UTF8'));
    token bytea := idem.key(2, convert_to($1, 'UTF8'), convert_to($2, 'UTF8'));
begin
    perform 1 from idem.idem_record r where r.key_hash = request;
    if found then
        return request;
    end if;
    perform 1 from idem.idem_record r where r.key_hash = token;
    return case when found then token else request end;
end
$$;

-- Where there is a synchronous standby, a record can be seen that the standby has
-- not got (a commit whose wait for it was cut short). A transaction that is told
-- of one writes a little, so that its own commit waits for the standby. (Whoever
-- locks a row has written.)
create or replace function idem.confirm()
returns void language plpgsql volatile as $$
begin
    if current_setting('synchronous_standby_names') <> '' and not pg_is_in_recovery() then
        perform pg_logical_emit_message(true, 'idem', '');
    end if;
end
$$;

-- Hold a row if it is as it was seen and nobody holds it.
create or replace function idem.hold(key bytea, expected bigint)
returns boolean language plpgsql volatile as $$
begin
    perform 1 from idem.idem_record r
        where r.key_hash = $1 and r.rev = $2 for update skip locked;
    return found;
end
$$;

-- One attempt of idem.begin; verdict null: somebody else was faster, look again.
create or replace function idem.begin_once(key bytea, scope bytea, id bytea,
    print bytea, loose int, lease bigint, ttl bigint,
    out verdict text, out fence bigint, out kind text, out result bytea,
    out state text)
language plpgsql volatile as $$
declare
    us bigint := idem.now_us();
    ms bigint := us / 1000;
    r idem.idem_record;
    counts boolean;
    over boolean;
    again boolean := false;
begin
    if pg_try_advisory_xact_lock(idem.lock_number(key)) then
        insert into idem.idem_record values (key, 1, 2, loose, 0,
            case when print is null then 0 else 1 end, 1, us, idem.random_rev(),
            ms, ms, ms + lease, ms + ttl, idem.random_bytes(), print, scope, id,
            '', '') on conflict (key_hash) do nothing;
        if found then
            verdict := 'started';
            fence := us;
            state := 'executing';
            return;
        end if;
    end if;
    select * into r from idem.idem_record i where i.key_hash = key;
    if not found then
        verdict := 'busy'; -- claimed by a transaction that has not committed
        return;
    end if;
    counts := r.state = 2 or r.expires = 0 or r.expires > ms;
    over := r.state = 2 and r.lease_until <= ms;
    if counts and print is not null and r.flags & 1 = 1 and r.fingerprint <> print then
        verdict := 'mismatch';
        return;
    end if;
    if counts and r.state in (3, 4) then
        if r.flags & 4 = 4 then
            verdict := 'duplicate';
            return;
        end if;
        perform idem.check_open(r.flags);
        verdict := 'replay';
        fence := r.fence;
        state := idem.state_name(r.state);
        kind := idem.kind_name(r.kind);
        result := case when r.flags & 2 = 2 then null else r.result end;
        return;
    end if;
    if counts and r.state = 1 then
        verdict := 'unknown';
        return;
    end if;
    again := r.state = 2 and over and r.mode = 1;
    if r.state = 2 and not again then
        verdict := case when over then 'doubt' else 'busy' end;
        state := 'executing';
        return;
    end if;
    if not idem.hold(key, r.rev) then
        return;
    end if;
    fence := greatest(r.fence + 1, us);
    update idem.idem_record i set state = 2, mode = loose, kind = 0,
        flags = case when print is not null or (again and r.flags & 1 = 1) then 1 else 0 end,
        attempt = case when counts then r.attempt else 0 end + 1,
        fence = begin_once.fence, rev = idem.random_rev(),
        created = case when again then r.created else ms end, updated = ms,
        lease_until = ms + lease,
        expires = case when again then r.created else ms end + ttl,
        nonce = idem.random_bytes(),
        fingerprint = coalesce(print, case when again then r.fingerprint end),
        subject = '', result = '' where i.key_hash = key;
    verdict := 'started';
    state := 'executing';
end
$$;

-- ---- the functions for services -------------------------------------------

-- Claim a request in this transaction. verdict: started (go on, then finish with
-- this fence), replay (kind, result and state are there; a null result was too
-- large to keep), busy, doubt, mismatch. A claim that another transaction has not
-- committed yet is waited for, up to wait_ms. Here and below null means the default.
create or replace function idem.begin(scope text, id text,
    fingerprint bytea default null, mode text default 'strict',
    lease_ms bigint default 30000, ttl_ms bigint default 86400000,
    wait_ms bigint default 0,
    out verdict text, out fence bigint, out kind text, out result bytea,
    out state text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    s bytea := convert_to($1, 'UTF8');
    i bytea := convert_to($2, 'UTF8');
    how text := coalesce(lower(mode), 'strict');
    lease bigint := coalesce(lease_ms, 30000);
    ttl bigint := coalesce(ttl_ms, 86400000);
    until_us bigint := idem.now_us() + least(coalesce(wait_ms, 0), 604800000) * 1000;
    tries int := 0;
begin
    perform idem.check_names($1, $2);
    perform idem.check_ms('lease', lease, 604800000);
    perform idem.check_ms('TTL', ttl, 316224000000);
    if how not in ('strict', 'loose') then
        raise exception 'idem: a mode is strict or loose, not %', mode
            using errcode = 'invalid_parameter_value';
    end if;
    if octet_length(fingerprint) <> 32 then
        raise exception 'idem: a fingerprint has 32 bytes, not %: use sha256()',
            octet_length(fingerprint) using errcode = 'invalid_parameter_value';
    end if;
    loop
        select b.verdict, b.fence, b.kind, b.result, b.state
            into verdict, fence, kind, result, state
            from idem.begin_once(idem.key(1, s, i), s, i, fingerprint,
                case how when 'loose' then 1 else 0 end, lease, ttl) b;
        tries := tries + 1;
        exit when verdict is not null and verdict <> 'busy';
        if idem.now_us() >= until_us and (verdict is not null or tries > 3) then
            verdict := coalesce(verdict, 'busy');
            exit;
        end if;
        perform pg_sleep(0.005);
    end loop;
    if verdict <> 'started' then
        perform idem.confirm();
    end if;
end
$$;

-- Behind the gateway: hold the claim that it made (Idem-Scope, Idem-Id,
-- Idem-Fence) until this transaction ends. started: it is still this fence's;
-- replay: this fence finished it before; stale: do nothing; busy: another
-- transaction holds it.
create or replace function idem.join(scope text, id text, fence bigint,
    out verdict text, out kind text, out result bytea, out state text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r idem.idem_record;
    k bytea;
begin
    perform idem.check_names($1, $2);
    k := idem.find_key($1, $2);
    select * into r from idem.idem_record i where i.key_hash = k for update skip locked;
    if not found then
        perform 1 from idem.idem_record i where i.key_hash = k;
        verdict := case when found then 'busy' else 'stale' end;
        return;
    end if;
    if r.fence is distinct from $3 or r.state not in (2, 3, 4)
        or (r.state <> 2 and r.expires <> 0 and r.expires <= idem.now_us() / 1000) then
        verdict := 'stale';
        return;
    end if;
    perform idem.check_open(r.flags);
    verdict := case when r.state = 2 then 'started' else 'replay' end;
    state := idem.state_name(r.state);
    if r.state <> 2 then
        kind := idem.kind_name(r.kind);
        result := case when r.flags & 2 = 2 then null else r.result end;
    end if;
end
$$;

-- What idem.finish does, told instead of raised: ok, stale, finished.
create or replace function idem.try_finish(scope text, id text, fence bigint,
    state text, result bytea default '', ttl_ms bigint default null,
    kind text default 'raw')
returns text language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    outcome int := idem.parse_outcome($4);
    how int := idem.parse_kind($7);
    value bytea := coalesce($5, '');
    ms bigint := idem.now_us() / 1000;
    r idem.idem_record;
    frees boolean;
    k bytea;
begin
    perform idem.check_names($1, $2);
    perform idem.check_ms('TTL', $6, 316224000000);
    perform idem.check_result(value);
    k := idem.find_key($1, $2);
    select * into r from idem.idem_record i where i.key_hash = k for update;
    if not found or r.fence is distinct from $3
        or (r.state <> 2 and r.expires <> 0 and r.expires <= ms) then
        return 'stale';
    end if;
    frees := r.mode = 1 and outcome = 4;
    if r.state <> 2 then
        if frees and r.state = 5 then
            return 'ok';
        end if;
        if r.state not in (3, 4) then
            return 'stale';
        end if;
        perform idem.check_open(r.flags);
        if r.state = outcome and r.kind = how and r.flags & 2 = 0 and r.result = value then
            return 'ok';
        end if;
        return 'finished';
    end if;
    if frees then
        update idem.idem_record i set state = 5, flags = 0, updated = ms,
            lease_until = 0, kind = 0, subject = '', result = '',
            fingerprint = null, expires = ms + 3600000, rev = idem.random_rev()
            where i.key_hash = k;
        perform idem.wake(k);
        return 'ok';
    end if;
    update idem.idem_record i set state = outcome, kind = how, result = value,
        updated = ms, lease_until = 0, rev = idem.random_rev(),
        expires = ms + coalesce($6, case when r.expires > r.created
            then r.expires - r.created else 86400000 end)
        where i.key_hash = k;
    perform idem.wake(k);
    return 'ok';
end
$$;

-- Record the outcome in this transaction: ok. Anything else raises, so that the
-- transaction cannot commit what is not this fence's any more.
create or replace function idem.finish(scope text, id text, fence bigint,
    state text, result bytea default '', ttl_ms bigint default null,
    kind text default 'raw')
returns text language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    verdict text := idem.try_finish($1, $2, $3, $4, $5, $6, $7);
begin
    if verdict <> 'ok' then
        raise exception 'idem: finish is %: fence % does not hold this record, so the transaction must not commit',
            verdict, coalesce($3::text, 'null')
            using errcode = case verdict when 'stale' then 'ID001' else 'ID002' end;
    end if;
    return verdict;
end
$$;

-- Finish with an HTTP answer that the gateway replays (docs/results.md). Below
-- 400 is a success.
create or replace function idem.finish_http(scope text, id text, fence bigint,
    status int, content_type text, body bytea, ttl_ms bigint default null)
returns text language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if $4 is null or $4 not between 200 and 599 then
        raise exception 'idem: a status is 200 to 599, not %', coalesce($4::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if $5 ~ '[\r\n]' then
        raise exception 'idem: a content type has one line'
            using errcode = 'invalid_parameter_value';
    end if;
    return idem.finish($1, $2, $3, case when $4 < 400 then 'succeeded' else 'failed' end,
        convert_to($4 || E'\n' || coalesce('Content-Type: ' || $5 || E'\n', '') || E'\n',
            'UTF8') || coalesce($6, ''), $7, 'http');
end
$$;

-- Give a claim back: ok or stale.
create or replace function idem.release(scope text, id text, fence bigint)
returns text language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    ms bigint := idem.now_us() / 1000;
    k bytea;
begin
    perform idem.check_names($1, $2);
    k := idem.find_key($1, $2);
    update idem.idem_record r set state = 5, flags = 0, updated = ms,
        lease_until = 0, kind = 0, subject = '', result = '', fingerprint = null,
        expires = ms + 3600000, rev = idem.random_rev()
        where r.key_hash = k and r.state = 2 and r.fence = $3;
    if not found then
        return 'stale';
    end if;
    perform idem.wake(k);
    return 'ok';
end
$$;

-- More time for what is executing: ok or stale.
create or replace function idem.renew(scope text, id text, fence bigint, lease_ms bigint)
returns text language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    ms bigint := idem.now_us() / 1000;
    lease bigint := coalesce($4, 30000);
    k bytea;
begin
    perform idem.check_names($1, $2);
    perform idem.check_ms('lease', lease, 604800000);
    k := idem.find_key($1, $2);
    update idem.idem_record r set lease_until = greatest(r.lease_until, ms + lease),
        updated = ms, rev = idem.random_rev()
        where r.key_hash = k and r.state = 2 and r.fence = $3;
    return case when found then 'ok' else 'stale' end;
end
$$;

-- The query for compensation. settled: nothing had happened, and a late request
-- can no longer run; replay: this is what happened; busy, doubt: it does not
-- guess. With an outcome (an operator's right) a doubt is decided.
-- (What it returns was once in another order.)
drop function if exists idem.settle(text, text, text, bytea, bigint, text);
create or replace function idem.settle(scope text, id text,
    out verdict text, out state text, outcome text default null,
    result bytea default '', ttl_ms bigint default 86400000,
    inout kind text default 'raw', out answer bytea)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    s bytea := convert_to($1, 'UTF8');
    i bytea := convert_to($2, 'UTF8');
    becomes int := case when $5 is null then 4 else idem.parse_outcome($5) end;
    how int := idem.parse_kind($8);
    value bytea := coalesce($6, '');
    ttl bigint := coalesce($7, 86400000);
    us bigint := idem.now_us();
    ms bigint := us / 1000;
    r idem.idem_record;
    over boolean;
    k bytea;
begin
    perform idem.check_names($1, $2);
    perform idem.check_ms('TTL', ttl, 316224000000);
    perform idem.check_result(value);
    kind := idem.kind_name(how);
    k := idem.find_key($1, $2);
    for tries in 1 .. 5 loop
        if pg_try_advisory_xact_lock(idem.lock_number(k)) then
            insert into idem.idem_record values (k, 1, becomes, 0, how, 8, 0, us,
                idem.random_rev(), ms, ms, 0, ms + ttl, idem.random_bytes(), null,
                s, i, '', value) on conflict (key_hash) do nothing;
            if found then
                verdict := 'settled';
                state := idem.state_name(becomes);
                return;
            end if;
        end if;
        select * into r from idem.idem_record x where x.key_hash = k;
        if not found then
            verdict := 'busy';
            perform pg_sleep(0.005);
            continue;
        end if;
        over := r.state = 2 and r.lease_until <= ms;
        if r.state in (3, 4) and (r.expires = 0 or r.expires > ms) then
            perform idem.confirm();
            perform idem.check_open(r.flags);
            verdict := 'replay';
            state := idem.state_name(r.state);
            kind := idem.kind_name(r.kind);
            answer := case when r.flags & 2 = 2 then null else r.result end;
            return;
        end if;
        if r.state = 2 and not (over and $5 is not null) then
            verdict := case when over then 'doubt' else 'busy' end;
            state := 'executing';
            return;
        end if;
        verdict := 'busy';
        if not idem.hold(k, r.rev) then
            perform pg_sleep(0.005);
            continue;
        end if;
        if r.state <> 2 then -- a new life: only the fence and the count go on
            r.attempt := case when r.expires = 0 or r.expires > ms then r.attempt else 0 end;
            r.created := ms;
            r.mode := 0;
            r.flags := 0;
            r.fingerprint := null;
            r.subject := '';
            r.nonce := idem.random_bytes();
        end if;
        update idem.idem_record x set state = becomes, kind = how, result = value,
            flags = r.flags | 8, mode = r.mode, attempt = r.attempt,
            fence = greatest(r.fence + 1, us), rev = idem.random_rev(),
            created = r.created, updated = ms, lease_until = 0, expires = ms + ttl,
            fingerprint = r.fingerprint, subject = r.subject, nonce = r.nonce
            where x.key_hash = k;
        perform idem.wake(k);
        verdict := 'settled';
        state := idem.state_name(becomes);
        return;
    end loop;
end
$$;

-- A pure query; no row when there is no such record.
create or replace function idem.get(scope text, id text)
returns table (state text, mode text, fence bigint, attempt bigint, kind text,
    result bytea, created bigint, updated bigint, lease_until bigint,
    expires bigint, replayable boolean)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    k bytea := idem.find_key($1, $2);
begin
    perform idem.check_open(r.flags) from idem.idem_record r where r.key_hash = k
        and (r.state = 2 or r.expires = 0 or r.expires > idem.now_us() / 1000);
    return query select idem.state_name(r.state),
        case r.mode when 1 then 'loose' else 'strict' end, r.fence, r.attempt,
        idem.kind_name(r.kind), r.result, r.created, r.updated, r.lease_until,
        r.expires, r.flags & 2 = 0
        from idem.idem_record r where r.key_hash = k
        and (r.state = 2 or r.expires = 0 or r.expires > idem.now_us() / 1000);
    perform idem.confirm();
end
$$;

-- Drop what expired a minute ago, a few at a time; an idem server does it by itself. It believes the
-- database's clock; a server does not, where that jumps. A fence that is ahead of the clock stays.
create or replace function idem.sweep(most bigint default 1000)
returns bigint language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    gone bigint;
    past bigint := idem.now_us() / 1000 - 60000;
begin
    delete from idem.idem_record r where r.key_hash in (
        select d.key_hash from idem.idem_record d
        where d.state <> 2 and d.expires > 0
        and d.expires < past and d.fence < (past - 1) * 1000
        order by d.expires limit coalesce($1, 1000) for update skip locked);
    get diagnostics gone = row_count;
    return gone;
end
$$;

-- Declare a move of a state machine, once, when installing the application.
create or replace function idem.declare_move(machine text, from_state text, to_state text)
returns void language sql volatile as $$
    insert into idem.idem_machine values ($1, $2, $3) on conflict do nothing
$$;

-- Must this move have happened to a row that is in this state? Yes, if the other
-- moves do not lead there from a state where a row may begin. A row may begin where
-- no move leads to, and on a circle into which no move leads.
create or replace function idem.is_proven(machine text, from_state text, to_state text, state text)
returns boolean language sql stable as $$
    with recursive
    moves as (select m.from_state as a, m.to_state as b from idem.idem_machine m where m.machine = $1),
    reach(a, b) as (
        select a, b from moves union select r.a, m.b from reach r join moves m on m.a = r.b),
    free(s) as (
        select s from (select a from moves union select b from moves) as states(s)
        where not exists (select 1 from reach r where r.b = s
            and not exists (select 1 from reach q where q.a = s and q.b = r.a))
        union select m.b from free f join moves m on m.a = f.s where not (m.a = $2 and m.b = $3))
    select exists (select 1 from moves where $4 in (a, b)) and not exists (select 1 from free where s = $4)
$$;

-- Move a row of the caller's own table from one state to the next: first (moved,
-- now), duplicate (it is there already, or in a state that proves the move), refused
-- (no such move, another state, or no such row).
create or replace function idem.transition(machine text, tbl regclass,
    key_column name, key text, state_column name, from_state text, to_state text)
returns text language plpgsql volatile as $$
declare
    key_type text;
    state_type text;
    moved bigint;
    is_now text;
begin
    select format_type(a.atttypid, a.atttypmod) into key_type from pg_attribute a
        where a.attrelid = $2::oid and a.attname = $3 and not a.attisdropped;
    select format_type(a.atttypid, a.atttypmod) into state_type from pg_attribute a
        where a.attrelid = $2::oid and a.attname = $5 and not a.attisdropped;
    if key_type is null or state_type is null then
        raise exception 'idem: table % has no column %', $2,
            case when key_type is null then $3 else $5 end
            using errcode = 'undefined_column';
    end if;
    perform idem.check_keys($2, pg_catalog.jsonb_build_object($3, coalesce($4, '')));
    perform 1 from idem.idem_machine m
        where m.machine = $1 and m.from_state = $6 and m.to_state = $7;
    if not found then
        return 'refused';
    end if;
    execute pg_catalog.format('update %s set %I = $1::%s where %I = $2::%s and %I = $3::%s',
        $2, $5, state_type, $3, key_type, $5, state_type) using $7, $4, $6;
    get diagnostics moved = row_count;
    if moved = 1 then
        return 'first';
    end if;
    execute pg_catalog.format('select %I::text from %s where %I = $1::%s', $5, $2, $3, key_type)
        into is_now using $4;
    return case when is_now = $7 or idem.is_proven($1, $6, $7, is_now) then 'duplicate'
        else 'refused' end;
end
$$;

-- ---- the schemes on a service's own tables ---------------------------------
--
-- keys and vals are JSON objects, {"column": value}: which row, and what to write.
-- A primary key or a unique index must lie within the columns of keys. The answer
-- is a verdict: first (done, now, by this call), duplicate (done before), conflict
-- (somebody else was there), refused. To see the row, select it afterwards.

-- Refuse keys that may name several rows.
create or replace function idem.check_keys(tbl regclass, keys jsonb)
returns void language plpgsql stable as $$
begin
    if jsonb_typeof(keys) is distinct from 'object' or keys = '{}' then
        raise exception 'idem: keys is a JSON object, {"column": value}, with one column or more'
            using errcode = 'invalid_parameter_value';
    end if;
    if exists (select 1 from jsonb_each(keys) k where k.value = 'null') then
        raise exception 'idem: a key of table % is null, and nulls are never the same: give a value', tbl
            using errcode = 'invalid_parameter_value';
    end if;
    perform 1 from pg_index i where i.indrelid = $1::oid and i.indisunique and i.indisvalid
        and i.indimmediate and i.indpred is null and i.indexprs is null
        and not exists (select 1 from pg_attribute a where a.attrelid = $1::oid
            and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
            and not $2 ? a.attname::text);
    if not found then
        raise exception 'idem: table % has no primary key and no unique index within (%), so these columns may name several rows: create a unique index on them',
            tbl, (select string_agg(k, ', ') from jsonb_object_keys(keys) k)
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- Pieces of a statement, one for each column of a JSON object. In the pattern %1$I
-- is the column, %2$s its value, taken from parameter number `place`.
create or replace function idem.pieces(tbl regclass, columns jsonb, place int, pattern text, glue text)
returns text language sql stable as $$
    select string_agg(pg_catalog.format($4, k, pg_catalog.format(
        '(select r.%I from pg_catalog.jsonb_populate_record(null::%s, $%s) r)', k, $1, $3)), $5) from jsonb_object_keys($2) k
$$;

create or replace function idem.has_row(tbl regclass, keys jsonb)
returns boolean language plpgsql volatile as $$
declare
    there boolean;
begin
    execute pg_catalog.format('select exists (select 1 from %s t where %s)', $1,
        idem.pieces($1, $2, 1, 't.%1$I = %2$s', ' and ')) into there using $2;
    return there;
end
$$;

-- Insert a row once: first, duplicate (the key is there), conflict (another unique
-- index stood in the way).
create or replace function idem.insert_once(tbl regclass, keys jsonb, vals jsonb default '{}')
returns text language plpgsql volatile as $$
declare
    whole jsonb := coalesce(vals, '{}') || keys;
    n bigint;
begin
    perform idem.check_keys(tbl, keys);
    execute pg_catalog.format('insert into %s (%s) select %s on conflict do nothing', tbl,
        idem.pieces(tbl, whole, 1, '%1$I', ', '), idem.pieces(tbl, whole, 1, '%2$s', ', ')) using whole;
    get diagnostics n = row_count;
    return case when n = 1 then 'first' when idem.has_row(tbl, keys) then 'duplicate'
        else 'conflict' end;
end
$$;

-- The same, but look first.
create or replace function idem.select_insert(tbl regclass, keys jsonb, vals jsonb default '{}')
returns text language plpgsql volatile as $$
begin
    perform idem.check_keys(tbl, keys);
    if idem.has_row(tbl, keys) then
        return 'duplicate';
    end if;
    return idem.insert_once(tbl, keys, vals);
end
$$;

-- Insert it (first), or update what is there (duplicate).
create or replace function idem.upsert(tbl regclass, keys jsonb, vals jsonb default '{}')
returns text language plpgsql volatile as $$
declare
    verdict text := idem.select_insert(tbl, keys, vals);
    n bigint;
begin
    if verdict <> 'duplicate' or coalesce(vals, '{}') = '{}' then
        return verdict;
    end if;
    execute pg_catalog.format('update %s t set %s where %s', tbl, idem.pieces(tbl, vals, 2, '%1$I = %2$s', ', '),
        idem.pieces(tbl, keys, 1, 't.%1$I = %2$s', ' and ')) using keys, vals;
    get diagnostics n = row_count;
    return case when n = 1 then 'duplicate' else 'conflict' end;
end
$$;

-- Set vals, add adds ({"price": 50}: price = price + 50) and count the version up,
-- where it is still this one: first. duplicate: the row has these values and the next
-- version. conflict: somebody else changed it, or adds were given, whose repeat cannot
-- be told from that. refused: no such row.
create or replace function idem.update_versioned(tbl regclass, keys jsonb, version_column name,
    version bigint, vals jsonb default '{}', adds jsonb default '{}')
returns text language plpgsql volatile as $$
declare
    found_row text;
    sets text := pg_catalog.concat_ws(', ', idem.pieces(tbl, vals, 3, '%1$I = %2$s', ', '),
        (select string_agg(pg_catalog.format(
            '%1$I = t.%1$I operator(pg_catalog.+) ($4 operator(pg_catalog.->>) %1$L)::numeric', k), ', ')
            from jsonb_object_keys(adds) k),
        pg_catalog.format('%1$I = t.%1$I operator(pg_catalog.+) 1', version_column));
    same boolean;
    n bigint;
begin
    perform idem.check_keys(tbl, keys);
    found_row := idem.pieces(tbl, keys, 1, 't.%1$I = %2$s', ' and ');
    execute pg_catalog.format('update %s t set %s where %s and t.%I operator(pg_catalog.=) $2', tbl, sets, found_row,
        version_column) using keys, version, vals, adds;
    get diagnostics n = row_count;
    if n = 1 then
        return 'first';
    end if;
    if not idem.has_row(tbl, keys) then
        return 'refused';
    end if;
    if coalesce(adds, '{}') <> '{}' then
        return 'conflict';
    end if;
    begin
        execute pg_catalog.format(
            'select exists (select 1 from %s t where %s and t.%I operator(pg_catalog.=) $2 + 1 and %s)', tbl,
            found_row, version_column, coalesce(
                idem.pieces(tbl, vals, 3, 't.%1$I is not distinct from %2$s', ' and '), 'true'))
            into same using keys, version, vals;
    exception when undefined_function then
        same := false; -- a type that cannot be compared, as json
    end;
    return case when same then 'duplicate' else 'conflict' end;
end
$$;

-- Take an amount away while that leaves at least 0: first, or refused (it does not
-- suffice, or there is no such row).
create or replace function idem.deduct(tbl regclass, keys jsonb, amount_column name, amount numeric)
returns text language plpgsql volatile as $$
declare
    n bigint;
begin
    perform idem.check_keys(tbl, keys);
    if amount is null or amount operator(pg_catalog.<) 0 then
        raise exception 'idem: an amount of % would not deduct: give 0 or more', coalesce(amount::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    execute pg_catalog.format('update %s t set %2$I = t.%2$I operator(pg_catalog.-) $2
        where %3$s and t.%2$I operator(pg_catalog.>=) $2', tbl, amount_column,
        idem.pieces(tbl, keys, 1, 't.%1$I = %2$s', ' and ')) using keys, amount;
    get diagnostics n = row_count;
    return case when n = 1 then 'first' else 'refused' end;
end
$$;

-- Hold a row until the transaction ends, waiting up to wait_ms: first, conflict
-- (somebody else still holds it), refused (no such row).
create or replace function idem.lock_row(tbl regclass, keys jsonb, wait_ms bigint default 0)
returns text language plpgsql volatile as $$
declare
    until_us bigint := idem.now_us() + least(coalesce(wait_ms, 0), 604800000) * 1000;
    held boolean;
begin
    perform idem.check_keys(tbl, keys);
    loop
        execute pg_catalog.format('select true from %s t where %s for update skip locked', tbl,
            idem.pieces(tbl, keys, 1, 't.%1$I = %2$s', ' and ')) into held using keys;
        if held then
            return 'first';
        end if;
        if not idem.has_row(tbl, keys) then
            return 'refused';
        end if;
        if idem.now_us() >= until_us then
            return 'conflict';
        end if;
        perform pg_catalog.pg_sleep(0.005);
    end loop;
end
$$;

-- Write a word of a barrier once: what is written now, and whether it was this call.
create or replace function idem.write_once(transaction text, name text, word text,
    out first boolean, out written text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    until_us bigint := idem.now_us() + 1000000;
    s record;
begin
    loop
        select * into s from idem.settle($1, $2, 'succeeded', convert_to($3, 'UTF8'), 2592000000);
        exit when s.verdict in ('settled', 'replay');
        if idem.now_us() >= until_us then
            raise exception 'idem: another phase of this branch is being decided: roll back and try again'
                using errcode = 'lock_not_available';
        end if;
    end loop;
    first := s.verdict = 'settled';
    written := case when first then $3 else convert_from(s.answer, 'UTF8') end;
end
$$;

-- May this phase (try, confirm, cancel) of this branch do its work in this
-- transaction? first: yes; duplicate: it did before; empty: a cancel whose try never
-- came, answer success and do nothing; refused.
create or replace function idem.barrier(transaction text, branch text, phase text)
returns text language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    w record;
begin
    if coalesce(phase not in ('try', 'confirm', 'cancel'), true) then
        raise exception 'idem: a phase is try, confirm or cancel, not %', coalesce(phase, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(octet_length(convert_to(branch, 'UTF8')), 0) not between 1 and 245 then
        raise exception 'idem: a branch has 1 to 245 bytes' using errcode = 'invalid_parameter_value';
    end if;
    if phase = 'confirm' then
        if not exists (select 1 from idem.get($1, $2 || '#try') g where g.result = 'try') then
            return 'refused';
        end if;
    else
        w := idem.write_once($1, $2 || '#try', $3);
        if phase = 'try' then
            return case when w.first then 'first' when w.written = 'try' then 'duplicate' else 'refused' end;
        end if;
        if w.written = 'cancel' then
            return 'empty';
        end if;
    end if;
    w := idem.write_once($1, $2 || '#decision', $3);
    return case when w.first then 'first' when w.written = $3 then 'duplicate' else 'refused' end;
end
$$;

update idem.idem_version set version = 1 where version < 1;
