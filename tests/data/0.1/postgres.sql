--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: idem; Type: SCHEMA; Schema: -; Owner: idem
--

CREATE SCHEMA idem;


ALTER SCHEMA idem OWNER TO idem;

--
-- Name: begin(text, text, bytea, text, bigint, bigint, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.begin(scope text, id text, fingerprint bytea DEFAULT NULL::bytea, mode text DEFAULT 'strict'::text, lease_ms bigint DEFAULT 30000, ttl_ms bigint DEFAULT 86400000, wait_ms bigint DEFAULT 0, OUT verdict text, OUT fence bigint, OUT kind text, OUT result bytea, OUT state text) RETURNS record
    LANGUAGE plpgsql
    AS $_$
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
end
$_$;


ALTER FUNCTION idem.begin(scope text, id text, fingerprint bytea, mode text, lease_ms bigint, ttl_ms bigint, wait_ms bigint, OUT verdict text, OUT fence bigint, OUT kind text, OUT result bytea, OUT state text) OWNER TO idem;

--
-- Name: begin_once(bytea, bytea, bytea, bytea, integer, bigint, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.begin_once(key bytea, scope bytea, id bytea, print bytea, loose integer, lease bigint, ttl bigint, OUT verdict text, OUT fence bigint, OUT kind text, OUT result bytea, OUT state text) RETURNS record
    LANGUAGE plpgsql
    AS $$
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


ALTER FUNCTION idem.begin_once(key bytea, scope bytea, id bytea, print bytea, loose integer, lease bigint, ttl bigint, OUT verdict text, OUT fence bigint, OUT kind text, OUT result bytea, OUT state text) OWNER TO idem;

--
-- Name: check_ms(text, bigint, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.check_ms(what text, ms bigint, most bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if ms < 1 or ms > most then
        raise exception 'idem: a % of % ms is out of range: give 1 to % ms',
            what, ms, most
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;


ALTER FUNCTION idem.check_ms(what text, ms bigint, most bigint) OWNER TO idem;

--
-- Name: check_names(text, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.check_names(scope text, id text) RETURNS void
    LANGUAGE plpgsql STABLE
    AS $_$
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
$_$;


ALTER FUNCTION idem.check_names(scope text, id text) OWNER TO idem;

--
-- Name: check_result(bytea); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.check_result(result bytea) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
begin
    if octet_length($1) > 67108864 then
        raise exception 'idem: a result of % bytes is too long: at most 64 MiB',
            octet_length($1) using errcode = 'invalid_parameter_value';
    end if;
end
$_$;


ALTER FUNCTION idem.check_result(result bytea) OWNER TO idem;

--
-- Name: declare_move(text, text, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.declare_move(machine text, from_state text, to_state text) RETURNS void
    LANGUAGE sql
    AS $_$
    insert into idem.idem_machine values ($1, $2, $3) on conflict do nothing
$_$;


ALTER FUNCTION idem.declare_move(machine text, from_state text, to_state text) OWNER TO idem;

--
-- Name: find_key(text, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.find_key(scope text, id text) RETURNS bytea
    LANGUAGE plpgsql
    AS $_$
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
$_$;


ALTER FUNCTION idem.find_key(scope text, id text) OWNER TO idem;

--
-- Name: finish(text, text, bigint, text, bytea, bigint, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.finish(scope text, id text, fence bigint, state text, result bytea DEFAULT '\x'::bytea, ttl_ms bigint DEFAULT NULL::bigint, kind text DEFAULT 'raw'::text) RETURNS text
    LANGUAGE plpgsql
    AS $_$
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
$_$;


ALTER FUNCTION idem.finish(scope text, id text, fence bigint, state text, result bytea, ttl_ms bigint, kind text) OWNER TO idem;

--
-- Name: finish_http(text, text, bigint, integer, text, bytea, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.finish_http(scope text, id text, fence bigint, status integer, content_type text, body bytea, ttl_ms bigint DEFAULT NULL::bigint) RETURNS text
    LANGUAGE plpgsql
    AS $_$
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
$_$;


ALTER FUNCTION idem.finish_http(scope text, id text, fence bigint, status integer, content_type text, body bytea, ttl_ms bigint) OWNER TO idem;

--
-- Name: get(text, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.get(scope text, id text) RETURNS TABLE(state text, mode text, fence bigint, attempt bigint, kind text, result bytea, created bigint, updated bigint, lease_until bigint, expires bigint, replayable boolean)
    LANGUAGE plpgsql STABLE
    AS $_$
#variable_conflict use_column
declare
    k bytea := idem.find_key($1, $2);
begin
    return query select idem.state_name(r.state),
        case r.mode when 1 then 'loose' else 'strict' end, r.fence, r.attempt,
        idem.kind_name(r.kind), r.result, r.created, r.updated, r.lease_until,
        r.expires, r.flags & 2 = 0
        from idem.idem_record r where r.key_hash = k
        and (r.state = 2 or r.expires = 0 or r.expires > idem.now_us() / 1000);
end
$_$;


ALTER FUNCTION idem.get(scope text, id text) OWNER TO idem;

--
-- Name: hold(bytea, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.hold(key bytea, expected bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $_$
begin
    perform 1 from idem.idem_record r
        where r.key_hash = $1 and r.rev = $2 for update skip locked;
    return found;
end
$_$;


ALTER FUNCTION idem.hold(key bytea, expected bigint) OWNER TO idem;

--
-- Name: join(text, text, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem."join"(scope text, id text, fence bigint, OUT verdict text, OUT kind text, OUT result bytea, OUT state text) RETURNS record
    LANGUAGE plpgsql
    AS $_$
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
    verdict := case when r.state = 2 then 'started' else 'replay' end;
    state := idem.state_name(r.state);
    if r.state <> 2 then
        kind := idem.kind_name(r.kind);
        result := case when r.flags & 2 = 2 then null else r.result end;
    end if;
end
$_$;


ALTER FUNCTION idem."join"(scope text, id text, fence bigint, OUT verdict text, OUT kind text, OUT result bytea, OUT state text) OWNER TO idem;

--
-- Name: key(integer, bytea, bytea); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.key(type integer, scope bytea, id bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    select sha256(decode(lpad(to_hex($1), 2, '0'), 'hex')
        || int2send(octet_length($2)::int2) || $2
        || int2send(octet_length($3)::int2) || $3)
$_$;


ALTER FUNCTION idem.key(type integer, scope bytea, id bytea) OWNER TO idem;

--
-- Name: kind_name(integer); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.kind_name(kind integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    select case $1 when 0 then 'raw' when 1 then 'http' when 2 then 'exec' end
$_$;


ALTER FUNCTION idem.kind_name(kind integer) OWNER TO idem;

--
-- Name: lock_number(bytea); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.lock_number(key bytea) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    select ('x' || encode(substring($1 for 8), 'hex'))::bit(64)::bigint
$_$;


ALTER FUNCTION idem.lock_number(key bytea) OWNER TO idem;

--
-- Name: now_us(); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.now_us() RETURNS bigint
    LANGUAGE sql PARALLEL SAFE
    AS $$
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint
$$;


ALTER FUNCTION idem.now_us() OWNER TO idem;

--
-- Name: parse_kind(text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.parse_kind(kind text) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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


ALTER FUNCTION idem.parse_kind(kind text) OWNER TO idem;

--
-- Name: parse_outcome(text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.parse_outcome(state text) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    case lower(state)
        when 'succeeded' then return 3;
        when 'failed' then return 4;
        else raise exception 'idem: an outcome is succeeded or failed, not %',
            coalesce(state, 'null') using errcode = 'invalid_parameter_value';
    end case;
end
$$;


ALTER FUNCTION idem.parse_outcome(state text) OWNER TO idem;

--
-- Name: random_bytes(); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.random_bytes() RETURNS bytea
    LANGUAGE sql PARALLEL SAFE
    AS $$
    select substring(u from 10 for 7) || substring(u for 1)
    from uuid_send(gen_random_uuid()) as u
$$;


ALTER FUNCTION idem.random_bytes() OWNER TO idem;

--
-- Name: random_rev(); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.random_rev() RETURNS bigint
    LANGUAGE sql PARALLEL SAFE
    AS $$
    select coalesce(nullif(idem.lock_number(idem.random_bytes()), 0), 1)
$$;


ALTER FUNCTION idem.random_rev() OWNER TO idem;

--
-- Name: release(text, text, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.release(scope text, id text, fence bigint) RETURNS text
    LANGUAGE plpgsql
    AS $_$
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
    return case when found then 'ok' else 'stale' end;
end
$_$;


ALTER FUNCTION idem.release(scope text, id text, fence bigint) OWNER TO idem;

--
-- Name: renew(text, text, bigint, bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.renew(scope text, id text, fence bigint, lease_ms bigint) RETURNS text
    LANGUAGE plpgsql
    AS $_$
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
$_$;


ALTER FUNCTION idem.renew(scope text, id text, fence bigint, lease_ms bigint) OWNER TO idem;

--
-- Name: settle(text, text, text, bytea, bigint, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.settle(scope text, id text, OUT verdict text, OUT state text, outcome text DEFAULT NULL::text, result bytea DEFAULT '\x'::bytea, ttl_ms bigint DEFAULT 86400000, INOUT kind text DEFAULT 'raw'::text, OUT answer bytea) RETURNS record
    LANGUAGE plpgsql
    AS $_$
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
        verdict := 'settled';
        state := idem.state_name(becomes);
        return;
    end loop;
end
$_$;


ALTER FUNCTION idem.settle(scope text, id text, OUT verdict text, OUT state text, outcome text, result bytea, ttl_ms bigint, INOUT kind text, OUT answer bytea) OWNER TO idem;

--
-- Name: state_name(integer); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.state_name(state integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    select case $1 when 1 then 'issued' when 2 then 'executing'
        when 3 then 'succeeded' when 4 then 'failed' when 5 then 'free' end
$_$;


ALTER FUNCTION idem.state_name(state integer) OWNER TO idem;

--
-- Name: sweep(bigint); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.sweep(most bigint DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql
    AS $_$
declare
    gone bigint;
begin
    delete from idem.idem_record r where r.key_hash in (
        select d.key_hash from idem.idem_record d
        where d.state <> 2 and d.expires > 0 -- asked once, so that the index is used:
        and d.expires < (select idem.now_us() / 1000)
        order by d.expires limit coalesce($1, 1000) for update skip locked);
    get diagnostics gone = row_count;
    return gone;
end
$_$;


ALTER FUNCTION idem.sweep(most bigint) OWNER TO idem;

--
-- Name: transition(text, regclass, name, text, name, text, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.transition(machine text, tbl regclass, key_column name, key text, state_column name, from_state text, to_state text) RETURNS text
    LANGUAGE plpgsql
    AS $_$
declare
    key_type text;
    state_type text;
    moved bigint;
    is_now text;
begin
    select format_type(a.atttypid, a.atttypmod) into key_type from pg_attribute a
        where a.attrelid = $2 and a.attname = $3 and not a.attisdropped;
    select format_type(a.atttypid, a.atttypmod) into state_type from pg_attribute a
        where a.attrelid = $2 and a.attname = $5 and not a.attisdropped;
    if key_type is null or state_type is null then
        raise exception 'idem: table % has no column %', $2,
            case when key_type is null then $3 else $5 end
            using errcode = 'undefined_column';
    end if;
    perform 1 from idem.idem_machine m
        where m.machine = $1 and m.from_state = $6 and m.to_state = $7;
    if not found then
        return 'refused';
    end if;
    execute format('update %s set %I = $1::%s where %I = $2::%s and %I = $3::%s',
        $2, $5, state_type, $3, key_type, $5, state_type) using $7, $4, $6;
    get diagnostics moved = row_count;
    if moved > 1 then
        raise exception 'idem: column % of table % is not unique', $3, $2
            using errcode = 'cardinality_violation';
    end if;
    if moved = 1 then
        return 'first';
    end if;
    execute format('select %I::text from %s where %I = $1::%s', $5, $2, $3, key_type)
        into is_now using $4;
    return case when is_now = $7 then 'duplicate' else 'refused' end;
end
$_$;


ALTER FUNCTION idem.transition(machine text, tbl regclass, key_column name, key text, state_column name, from_state text, to_state text) OWNER TO idem;

--
-- Name: try_finish(text, text, bigint, text, bytea, bigint, text); Type: FUNCTION; Schema: idem; Owner: idem
--

CREATE FUNCTION idem.try_finish(scope text, id text, fence bigint, state text, result bytea DEFAULT '\x'::bytea, ttl_ms bigint DEFAULT NULL::bigint, kind text DEFAULT 'raw'::text) RETURNS text
    LANGUAGE plpgsql
    AS $_$
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
        return 'ok';
    end if;
    update idem.idem_record i set state = outcome, kind = how, result = value,
        updated = ms, lease_until = 0, rev = idem.random_rev(),
        expires = ms + coalesce($6, case when r.expires > r.created
            then r.expires - r.created else 86400000 end)
        where i.key_hash = k;
    return 'ok';
end
$_$;


ALTER FUNCTION idem.try_finish(scope text, id text, fence bigint, state text, result bytea, ttl_ms bigint, kind text) OWNER TO idem;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: idem_machine; Type: TABLE; Schema: idem; Owner: idem
--

CREATE TABLE idem.idem_machine (
    machine text NOT NULL,
    from_state text NOT NULL,
    to_state text NOT NULL
);


ALTER TABLE idem.idem_machine OWNER TO idem;

--
-- Name: idem_record; Type: TABLE; Schema: idem; Owner: idem
--

CREATE TABLE idem.idem_record (
    key_hash bytea NOT NULL,
    type smallint NOT NULL,
    state smallint NOT NULL,
    mode smallint NOT NULL,
    kind smallint NOT NULL,
    flags smallint NOT NULL,
    attempt bigint NOT NULL,
    fence bigint NOT NULL,
    rev bigint NOT NULL,
    created bigint NOT NULL,
    updated bigint NOT NULL,
    lease_until bigint NOT NULL,
    expires bigint NOT NULL,
    nonce bytea NOT NULL,
    fingerprint bytea,
    scope bytea NOT NULL,
    id bytea NOT NULL,
    subject bytea NOT NULL,
    result bytea NOT NULL
);


ALTER TABLE idem.idem_record OWNER TO idem;

--
-- Name: idem_version; Type: TABLE; Schema: idem; Owner: idem
--

CREATE TABLE idem.idem_version (
    version integer NOT NULL
);


ALTER TABLE idem.idem_version OWNER TO idem;

--
-- Data for Name: idem_machine; Type: TABLE DATA; Schema: idem; Owner: idem
--



--
-- Data for Name: idem_record; Type: TABLE DATA; Schema: idem; Owner: idem
--

INSERT INTO idem.idem_record VALUES ('\xab16ecaf95c83b0bcb29fc5b895169be2196dbfa53127eb93097828b7673785b', 1, 3, 0, 0, 1, 1, 1794831904697933, -9159684034288322674, 1794831904698, 1794831904702, 0, 2110191904702, '\x60c90c92e05a0e59', '\x5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d', '\x73686f70', '\x737563636565646564', '\x', '\x7b226f72646572223a377d');
INSERT INTO idem.idem_record VALUES ('\x5d34ab941a7cdf1e9d2074b9566dcae01922d5a8044fcdfd899bb54a33b45d22', 1, 4, 0, 0, 0, 1, 1794831904705797, -2959250758090829911, 1794831904706, 1794831904713, 0, 2110191904713, '\x8f49cb2a884adfb2', NULL, '\x73686f70', '\x6661696c6564', '\x', '\x63617264206465636c696e6564');
INSERT INTO idem.idem_record VALUES ('\x5c92937909354b9ad4698859b0311edf795630aaee0136ee9c6731383037f273', 1, 3, 0, 1, 0, 1, 1794831904715027, -1771727485274825841, 1794831904716, 1794831904722, 0, 2110191904722, '\x84090b92f189a75e', NULL, '\x73686f70', '\x68747470', '\x', '\x485454502f312e31203230310d0a436f6e74656e742d547970653a20746578742f706c61696e0d0a0d0a6d616465');
INSERT INTO idem.idem_record VALUES ('\x612e168d7093c46415bfa4db7265ddfcb5af31d401a0deb5dd85955113909f20', 1, 3, 0, 0, 0, 1, 1794831904725895, 2282856881388386864, 1794831904726, 1794831904731, 0, 2110191904731, '\x07b81b062377cc7c', NULL, '\x73686f70', '\x6279746573', '\x', '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff');
INSERT INTO idem.idem_record VALUES ('\x1df0dbdd25d1811e03191196346d22b0418132c7a83a552dce443556c4deacda', 1, 3, 0, 0, 0, 1, 1794831904730735, 2029723918972983678, 1794831904731, 1794831904739, 0, 2110191904739, '\xd148c2b075b25815', NULL, '\x73686f70', '\x656d707479', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\xea6cca6ffff03e86b1afe9b14a607af3807e8aa7729bf79fd3619076daaf8108', 1, 3, 0, 0, 2, 1, 1794831904745921, 5783179726056900079, 1794831904746, 1794831904754, 0, 2110191904754, '\x2cd876eb8ff5ba4a', NULL, '\x73686f70', '\x6c61726765', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\x61874898927b63aa1f953f48d2932e178d886229738cd860629fb60f0c3848ab', 1, 3, 0, 0, 0, 1, 1794831904757982, -3822276727424083326, 1794831904758, 1794831904762, 0, 2110191904762, '\xabc6bcc6958e53a3', NULL, '\xe59586e5ba97', '\xe8aea2e58d9520276122205c3b2d2d', '\xe78e8b', '\xe694afe4bb98e68890e58a9f');
INSERT INTO idem.idem_record VALUES ('\xe94d6d0fe0d18051f25a864d8b80f7ae32d55da4013e8f14e655f0987c91561b', 1, 4, 0, 0, 8, 0, 1794831904766154, -2056173758523270816, 1794831904767, 1794831904767, 0, 2110191904767, '\x0000000000000000', NULL, '\x73686f70', '\x736574746c6564', '\x', '\x6e657665722061727269766564');
INSERT INTO idem.idem_record VALUES ('\x2aabafb31b582f1bb5c6795db493f65c631c146b8773780005c2023ea35b4636', 2, 2, 0, 0, 0, 1, 1794831904982640, 3157405249429929369, 1794831904983, 1794831904983, 1794831905083, 2110191904983, '\xca3ddf3d4c0ce103', NULL, '\x757365722d31', '\x336d6957583563465333334f5a674b633933795364644e507170795553704764', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\xcfc9436fc45215711102284b67ead79c7dbcb77fd4819d44cd1a8a909da76f5d', 3, 2, 0, 0, 0, 1, 1794831904993695, -3225383774209061211, 1794831904994, 1794831904994, 1795436704994, 1794918304994, '\x0000000000000000', NULL, '\x6c6f636b73', '\x68656c64', '\x6f776e65722d31', '\x');
INSERT INTO idem.idem_record VALUES ('\x40ff26d9db0bcb8f2e07ece8d41b423560d57b2089b07905abf3a51572d367ea', 1, 2, 0, 0, 0, 1, 1794831904851671, 3194077530127094618, 1794831904852, 1794831904852, 1795436704852, 2110191904852, '\x456ea6b29f178cf8', NULL, '\x73686f70', '\x72756e6e696e67', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\x694679367891c3b8bcdbef2543e3aaa679680cafed635789d2e734aab2d6e6e2', 1, 2, 0, 0, 0, 1, 1794831904861720, -2537808840439397275, 1794831904862, 1794831904862, 1794831904962, 2110191904862, '\x1675895f4efe0e68', NULL, '\x73686f70', '\x646f756274', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\xca58ce3e0db37f2b9001b99b3168979be20bdd7d4ff4d2d67c966b6fc3012bf4', 1, 2, 1, 0, 0, 1, 1794831904865930, -5471717494846541273, 1794831904866, 1794831904866, 1794831904966, 2110191904866, '\x9664b61ddf54c24a', NULL, '\x73686f70', '\x6c6f6f7365', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\x26d46483cb39687c0e36a078919181091a47480452e1c27620ae06a2993d274a', 1, 5, 0, 0, 0, 1, 1794831904897953, 4279518316247057491, 1794831904898, 1794831904899, 0, 1794835504899, '\x4e2305777a1fa0dd', NULL, '\x73686f70', '\x72656c6561736564', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\x5257ae84ba581d611dda6256410c5d28a052b6567f9604284a608cdfb2d8b79f', 1, 5, 0, 0, 0, 1, 1794831904905959, -1764057295811015741, 1794831904906, 1794831904923, 0, 1794835504923, '\xfb273d32404a4532', NULL, '\x73686f70', '\x666f72676f7474656e', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\xaf024dfef03feb907c2f4b4930ed12c83911450fed544586bbd82d1eee6d7450', 2, 1, 0, 0, 0, 0, 1794831904930276, 5288401574380132547, 1794831904931, 1794831904931, 0, 2110191904931, '\x0000000000000000', NULL, '\x757365722d31', '\x4f6a4f6756513378774e66617767364a4453796e375f63416873766d7a7a6657', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\x510d6a1cf8ea2d2a87204508fcbc0eb9e6bbe8765e2aa287411ce09212d0fdba', 2, 3, 0, 0, 4, 0, 1794831904957856, -314488254727663724, 1794831904935, 1794831904958, 0, 2110191904958, '\x2c5a088e3a2b4849', NULL, '\x757365722d31', '\x337630634b59757777726e35615a516452727a4f475a5f354a52594d38786d33', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\xa4f4f5135e7c8f49a33d8416e7976df0dd8043fb996fbf7e23fd7cedf1905e6d', 2, 3, 0, 0, 0, 1, 1794831904971805, -2043985551503208379, 1794831904972, 1794831904981, 0, 2110191904981, '\xa5f0b572daccafbd', NULL, '\x757365722d31', '\x6e426930435a4366495068414e6d7650486c5761793471634f316f4d58502d72', '\x', '\x666f726d2073746f726564');
INSERT INTO idem.idem_record VALUES ('\x3e50bbf7d15b0eec6af5dc170a71f505d645cd0de30f140354d37a64dd62515e', 3, 2, 0, 0, 0, 1, 1794831904995726, 1080398170054557050, 1794831904996, 1794831904996, 1794831905096, 1794918304996, '\x0000000000000000', NULL, '\x6c6f636b73', '\x6f766572', '\x6f776e65722d31', '\x');
INSERT INTO idem.idem_record VALUES ('\x5568103655a10f0083d5315e1a71ae6a82989218872e98220bb1c3a966c4d687', 3, 5, 0, 0, 0, 1, 1794831905000296, -2530722591967959060, 1794831905001, 1794831905023, 0, 1797423905023, '\x0000000000000000', NULL, '\x6c6f636b73', '\x676976656e2d6261636b', '\x', '\x');
INSERT INTO idem.idem_record VALUES ('\x82d9c47d85b92b6b1edccdcf02fc21ce8cf0b33be292ba718b1915383cd1e501', 1, 3, 0, 0, 8, 1, 1794831906034815, 199564116923685407, 1794831904874, 1794831906035, 0, 2110191906035, '\x70069b203ceb2449', NULL, '\x73686f70', '\x64656369646564', '\x', '\x706169642062792068616e64');
INSERT INTO idem.idem_record VALUES ('\xb5d99bf0522ece3aac426e184417038666150a1e257414b6e3a494d9a45cd0de', 4, 5, 0, 0, 0, 2, 1794831906036347, -6667572229199257570, 1794831906037, 1794831906038, 0, 0, '\x0000000000000000', NULL, '\x7365676d656e74', '\x6f7264657273', '\x', '\x32303031');
INSERT INTO idem.idem_record VALUES ('\x4c4759f427d185dd1b5b194c5d9e38d50620174c043cfcd2ed91f1541b9c9398', 4, 2, 0, 0, 0, 2, 1794831906038276, -1578059410579029928, 1794831906039, 1794831906039, 1794831936039, 1794918306039, '\x0000000000000000', NULL, '\x736e6f77666c616b65', '\x30', '\x3231386666643530396663636363613033323664306664626632663132396561', '\x3930373634373636303339');
INSERT INTO idem.idem_record VALUES ('\xa62a2a69294067079e07d2879eec986cb64b3fe7c0d32ffa77c63ec2176639b3', 4, 2, 0, 0, 0, 2, 1794831906040171, -8024305522595833002, 1794831906041, 1794831906041, 1794831936041, 1794918306041, '\x0000000000000000', NULL, '\x756964', '\x30', '\x3231386666643530396663636363613033323664306664626632663132396561', '\x3237363036343237');


--
-- Data for Name: idem_version; Type: TABLE DATA; Schema: idem; Owner: idem
--

INSERT INTO idem.idem_version VALUES (1);


--
-- Name: idem_machine idem_machine_pkey; Type: CONSTRAINT; Schema: idem; Owner: idem
--

ALTER TABLE ONLY idem.idem_machine
    ADD CONSTRAINT idem_machine_pkey PRIMARY KEY (machine, from_state, to_state);


--
-- Name: idem_record idem_record_pkey; Type: CONSTRAINT; Schema: idem; Owner: idem
--

ALTER TABLE ONLY idem.idem_record
    ADD CONSTRAINT idem_record_pkey PRIMARY KEY (key_hash);


--
-- Name: idem_record_started; Type: INDEX; Schema: idem; Owner: idem
--

CREATE INDEX idem_record_started ON idem.idem_record USING btree (created) WHERE (state = 2);


--
-- Name: idem_record_sweep; Type: INDEX; Schema: idem; Owner: idem
--

CREATE INDEX idem_record_sweep ON idem.idem_record USING btree (expires) WHERE ((state <> 2) AND (expires > 0));


--
-- PostgreSQL database dump complete
--


