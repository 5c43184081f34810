"""The schemes in a service's own transaction: from C, from SQL alone, in the bank, and behind the gateway."""
import http.client
import json
import os
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import servers
from lib import IDEM, ROOT, SOAK, THOROUGH, Process, Server, dice, encode, folder, free_port, patient, wait_until
from test_stores_sql import Session, database, idem, mariadb, postgres, program, url  # noqa: F401 (fixtures)


@pytest.fixture(scope="module", params=servers.MARIADB_VERSIONS)
def each_mariadb(request):
    server = request.getfixturevalue("mariadb") if request.param == "installed" else servers.MariaDB(version=request.param)
    idem("store", "init", server.url)
    yield server
    if request.param != "installed":
        server.stop()


def is_postgres(database):
    return isinstance(database, servers.Postgres)


# ---- from C ------------------------------------------------------------------


def test_every_scheme_answers_as_its_contract_says(url):
    program("sql_test", IDEM_TEST_SQL=url)


def test_what_is_beyond_the_limits_is_refused(url):
    program("sqllimits_test", IDEM_TEST_SQL=url)


def test_what_fails_in_the_middle_of_a_call_is_an_error_or_did_not_matter(url):
    program("sqlfault_alloc_test", IDEM_TEST_SQL=url, IDEM_TEST_RUNS="1000" if SOAK else "20" if THOROUGH else "2")


def test_c_and_sql_answer_every_call_alike(url):
    program("sqlscheme_test", IDEM_TEST_SQL=url)


def test_c_and_sql_decide_as_step_does(url):
    program("sqlmodel_test", IDEM_TEST_SQL=url, IDEM_TEST_OPS="20000" if SOAK else "1000")


def test_storms_and_sudden_deaths_leave_one_effect(url):
    program("sqlstorm_test", IDEM_TEST_SQL=url)


def test_the_newer_mariadb_answers_as_the_older_does():
    """Its REPEATABLE READ refuses to lock what is newer than the transaction's snapshot."""
    server = servers.MariaDB(version="mariadb-11.8")
    try:
        program("sql_test", IDEM_TEST_SQL=server.url)
        program("sqlmodel_test", IDEM_TEST_SQL=server.url, IDEM_TEST_OPS="500")
        program("sqlstorm_test", IDEM_TEST_SQL=server.url)
        program("contract_test", IDEM_TEST_STORE=patient(server.url))
    finally:
        server.stop()


@pytest.fixture(scope="module")
def mysql():
    server = servers.MySQL()
    idem("store", "init", server.url)
    yield server
    server.stop()


@pytest.mark.parametrize("name", ["contract_test", "sql_test", "sqlmodel_test", "sqlstorm_test"])
def test_mysql_answers_as_mariadb_does(mysql, name):
    program(name, IDEM_TEST_SQL=mysql.url, IDEM_TEST_STORE=patient(mysql.url), IDEM_TEST_OPS="400")


def test_mysql_takes_the_script_again_from_either_client(mysql):
    idem("store", "init", mysql.url)
    script = open(os.path.join(ROOT, "sql/mysql.sql")).read()
    mysql.sql(script)
    count = "select count(*) from information_schema.routines where routine_schema = 'shop' and routine_name like 'idem%'"
    before = mysql.sql(count)
    subprocess.run(["mariadb", "--no-defaults", "-uroot", "-S", mysql.socket, "shop"], input=script, text=True, check=True)
    assert mysql.sql(count) == before and int(before) > 20
    mysql.sql("update idem_version set version = 99")
    try:
        assert "a newer version is installed" in idem("store", "init", mysql.url, code=None)
    finally:
        mysql.sql("update idem_version set version = 1")


def test_a_program_that_reads_the_binary_log_of_mysql_is_warned_of(mysql, tmp_path):
    """A replica does the same; only an account with the right PROCESS sees it."""
    warning = "mysql: 1 program reads the binary log, as replicas do"
    assert "warning" not in idem("store", "check", mysql.url)
    mysql.sql("create user reader identified by 'secret'; grant replication slave, replication client on *.* to reader; "
              "create user plain@'127.0.0.1' identified by 'secret'; grant all on shop.* to plain@'127.0.0.1'")
    reader = subprocess.Popen([mysql.usr + "/bin/mysqlbinlog", "--no-defaults", "--read-from-remote-server", "--stop-never", "--raw",
                               "-h127.0.0.1", "-P%d" % mysql.port, "-ureader", "-psecret", "--result-file=%s/" % tmp_path,
                               mysql.sql("show binary logs").split()[0]], stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: warning in idem("store", "check", mysql.url), 30)
        assert "warning" not in idem("store", "check", mysql.url.replace("idem:", "plain:"))
    finally:
        reader.kill()
        reader.wait()
        mysql.sql("drop user reader; drop user plain@'127.0.0.1'")


def test_a_mysql_that_detects_torn_pages_and_cannot_repair_them_is_refused(mysql):
    mysql.sql("set global innodb_doublewrite = DETECT_ONLY")
    try:
        assert "innodb_doublewrite is off or DETECT_ONLY" in idem("get", "a", "b", "--store", mysql.url, code=None)
    finally:
        mysql.sql("set global innodb_doublewrite = DETECT_AND_RECOVER")


def test_mysql_tells_what_is_wrong_with_a_call(mysql):
    with pytest.raises(AssertionError, match="a lease is 1 to 604800000 ms"):
        mysql.sql("start transaction; call idem_begin('wrong', 'x', null, null, 0, null, @v, @f, @k, @r)")
    with pytest.raises(AssertionError, match="idem: "):
        mysql.sql("start transaction; call idem_settle('', 'x', null, null, null, @v, @s, @k, @r)")


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_mysql_says_busy_soon_and_keeps_the_sessions_own_patience(mysql, level):
    scope = "soon-%d" % time.time_ns()
    begin = "call idem_begin('%s', 'x', null, null, null, null, @v, @f, @k, @r); select @v" % scope
    with Session(mysql) as one, Session(mysql) as two:
        for session in (one, two):
            session("set session transaction isolation level %s; set innodb_lock_wait_timeout = 47; start transaction" % level)
        assert one(begin) == "started"
        start = time.monotonic()
        assert two(begin) == "busy"
        assert time.monotonic() - start < 20
        assert two("select @@innodb_lock_wait_timeout") == "47"
        one("call idem_finish('%s', 'x', @f, 'succeeded', 'done', null); commit" % scope)
        assert two(begin) == "replay"


def test_a_lock_timeout_that_rolls_everything_back_is_no_answer():
    """With innodb_rollback_on_timeout a claim that is busy would take the caller's other claims along, whose work then commits."""
    server = servers.MariaDB("innodb-rollback-on-timeout=ON")
    call = "call idem_begin('pay', '%s', null, null, null, null, @v, @f, @k, @r); select @v; "
    try:
        idem("store", "init", server.url)
        server.sql("create table payment (id varchar(20)) engine = InnoDB")
        with pytest.raises(AssertionError, match="idem: innodb_rollback_on_timeout is ON"):
            server.sql("start transaction; " + call % "A")
        with pytest.raises(AssertionError, match="idem: innodb_rollback_on_timeout is ON"):
            server.sql("start transaction; call idem_settle('pay', 'A', null, null, null, @v, @s, @k, @r)")
        with folder() as where, Session(server) as other:
            other("start transaction")
            other("insert into idem_record values (idem_key(1, 'pay', 'B'), 1, 2, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 'nnnnnnnn', null, "
                  "'pay', 'B', '', '')")
            done = subprocess.run(["mariadb", "--no-defaults", "--force", "-uroot", "-S", server.socket, "-N", "-B", "shop"], text=True,
                                  input="start transaction; %s%sinsert into payment select 'A' where @v is not null; commit" % (
                                      call % "A", call % "B"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert server.sql("select count(*) from payment") == "0" and "busy" not in done.stdout.splitlines(), done.stdout
            # In C the claim itself tells it, also without autocommit, where no state of the session does.
            tool = os.path.join(where, "busy_claim")
            flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libmariadb"], check=True, text=True, stdout=subprocess.PIPE).stdout
            subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Werror", "-Iinclude", "tests/support/tools/busy_claim.c", "-o", tool, "-Lbuild",
                            "-lidem", "-Wl,-rpath," + os.path.join(ROOT, "build"), *flags.split()], cwd=ROOT, check=True)
            said = subprocess.run([tool, server.socket, "shop"], text=True, stdout=subprocess.PIPE, check=True).stdout.splitlines()
            assert said[0] == "started" and said[1].startswith("deadlock: ") and "innodb_rollback_on_timeout" in said[1], said
    finally:
        server.stop()


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_a_key_in_somebodys_open_transaction_does_not_hold_up_the_batch(name, request):
    server, scope = request.getfixturevalue(name), "open-%d" % time.time_ns()
    if name == "mariadb":
        idem("store", "init", server.url)
    with Session(server) as service, folder() as where, Server(where, store=patient(server.url)) as engine, engine.client() as c:
        service("set session transaction isolation level read committed; start transaction")  # no gaps are locked
        assert service("call idem_begin('%s', '100', null, null, null, null, @v, @f, @k, @r); select @v" % scope) == "started"
        start = time.monotonic()
        c.raw(b"".join(encode("BEGIN", scope, str(i)) for i in range(256)))
        told = [c.read()[0] for _ in range(256)]
        assert time.monotonic() - start < 5  # 0.1 s on an idle machine; it waited a second at each halving
        assert told == ["started"] * 100 + ["busy"] + ["started"] * 155
        service("rollback")
        assert c("BEGIN", scope, "100")[0] == "started"


# ---- from SQL alone ----------------------------------------------------------

PGBENCH = r"""
\set key random(1, :keys)
begin;
select verdict = 'started' as first, coalesce(fence, 0) as fence from idem.begin('bench', :key::text, wait_ms => 2000) \gset
\if :first
update bench_effect set times = times + 1 where id = :key;
select idem.finish('bench', :key::text, :fence, 'succeeded', 'done');
\endif
commit;
"""


def test_pgbench_with_duplicate_keys_has_one_effect_a_key(postgres):
    idem("store", "init", postgres.url)
    keys, rounds = (1000, 500) if SOAK else (100, 30)
    postgres.sql("drop table if exists bench_effect; create table bench_effect (id int primary key, times int not null); "
                 "insert into bench_effect select i, 0 from generate_series(1, %d) i; "
                 "delete from idem.idem_record where scope = 'bench'" % keys)
    with folder() as where:
        script = os.path.join(where, "script")
        with open(script, "w") as f:
            f.write(PGBENCH)
        done = subprocess.run([postgres.bin + "pgbench", "-n", "-c", "16", "-j", "2", "-t", str(rounds), "-D",
                               "keys=%d" % keys, "--random-seed", str(dice().getrandbits(32)), "-f", script, postgres.url],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-3000:]
    claimed = int(postgres.sql("select count(*) from idem.idem_record where scope = 'bench' and state = 3"))
    assert claimed > keys * 0.9
    assert postgres.sql("select sum(times), max(times) from bench_effect") == "%d|1" % claimed


# A deadlock leaves @v as the call before has set it, and no transaction.
MARIADB = """
set @v = null;
start transaction;
call idem_begin('bench', '%(key)d', null, null, null, null, @v, @f, @k, @r);
update bench_effect set times = times + 1 where id = %(key)d and @v = 'started';
call finish_if(@v, '%(key)d', @f);
commit;
"""


def test_mariadb_with_duplicate_keys_has_one_effect_a_key(each_mariadb):
    keys, clients = 60, 16
    each_mariadb.sql("drop table if exists bench_effect; create table bench_effect (id int primary key, times int not null) "
                "engine = InnoDB; delete from idem_record where scope = 'bench';"
                "\ndelimiter //\n"
                "create or replace procedure finish_if(in v varchar(10), in i varchar(20), in f bigint) "
                "begin if v = 'started' then call idem_finish('bench', i, f, 'succeeded', 'done', null); end if; end//\n")
    each_mariadb.sql(";".join("insert into bench_effect values (%d, 0)" % k for k in range(keys)))

    def client(number):
        script = "".join(MARIADB % {"key": (number // 4 + i) % keys} for i in range(keys))
        return subprocess.run(["mariadb", "--no-defaults", "-uroot", "-S", each_mariadb.socket, "-f", "shop"], input=script,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    with ThreadPoolExecutor(clients) as crowd:
        said = "".join(crowd.map(client, range(clients)))
    assert "ERROR" not in said or "1213" in said, said[:2000]  # a deadlock undoes the whole transaction
    each_mariadb.sql("call idem_sweep(1, @n)")
    done = int(each_mariadb.sql("select count(*) from idem_record where scope = 'bench' and state = 3"))
    assert done > keys * 0.9
    assert each_mariadb.sql("select sum(times), max(times) from bench_effect") == "%d\t1" % done


def test_a_stale_finish_cannot_be_committed(database):
    scope = "stale-%d" % time.time_ns()
    if is_postgres(database):
        database.sql("create table if not exists stale_effect (n int)")
        done = subprocess.run([database.bin + "psql", "-qAt", database.url], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, input="begin; insert into stale_effect values (1); "
                              "select idem.finish('%s', 'x', 5, 'succeeded'); commit;" % scope)
        assert "ID001" in done.stdout or "stale" in done.stdout
        assert database.sql("select count(*) from stale_effect") == "0"
    else:
        database.sql("create table if not exists stale_effect (n int) engine = InnoDB")
        done = subprocess.run(["mariadb", "--no-defaults", "-uroot", "-S", database.socket, "shop"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              input="start transaction; insert into stale_effect values (1); "
                              "call idem_finish('%s', 'x', 5, 'succeeded', '', null); commit;" % scope)
        assert "stale" in done.stdout
        assert database.sql("select count(*) from stale_effect") == "0"


def test_a_client_that_goes_on_after_a_stale_finish_commits_nothing(each_mariadb):
    scope = "on-%d" % time.time_ns()
    each_mariadb.sql("create table if not exists stale_effect (n int) engine = InnoDB; delete from stale_effect")
    call = "start transaction; insert into stale_effect values (1); call idem_%s; commit;"
    told = subprocess.run(
        ["mariadb", "--no-defaults", "--force", "-uroot", "-S", each_mariadb.socket, "shop"], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, input="start transaction; call idem_begin('{0}', 'x', null, null, null, null, @v, @f, @k, @r);"
        "call idem_finish('{0}', 'x', @f, 'succeeded', 'one', null); commit;".format(scope)
        + call % ("finish('%s', 'x', 5, 'succeeded', 'one', null)" % scope)
        + call % ("finish_http('%s', 'x', 5, 200, 'text/plain', 'one', null)" % scope)
        + call % ("finish('%s', 'x', @f, 'succeeded', 'two', null)" % scope)).stdout
    assert told.count("1644 (45001)") == 2 and told.count("1644 (45002)") == 1 and told.count("ERROR") == 3, told
    assert each_mariadb.sql("select count(*) from stale_effect") == "0"


def test_a_trigger_and_xa_can_finish_and_are_told_what_is_stale(each_mariadb):
    """They allow no rollback by the procedure."""
    scope = "inside-%d" % time.time_ns()
    each_mariadb.sql("create or replace table finishing (id varchar(9), fence bigint) engine = InnoDB; "
                "create trigger finishing after insert on finishing for each row "
                "call idem_finish('%s', new.id, new.fence, 'succeeded', 'done', null)" % scope)
    begin = "call idem_begin('%s', '%%s', null, null, null, null, @v, @f, @k, @r)" % scope
    try:
        with Session(each_mariadb) as one:
            one("start transaction; %s; insert into finishing values ('a', @f); commit" % (begin % "a"))
            one("xa start 'b'; %s; call idem_finish('%s', 'b', @f, 'succeeded', 'done', null); xa end 'b'; "
                "xa commit 'b' one phase" % (begin % "b", scope))
        assert each_mariadb.sql("select group_concat(id order by id) from idem_record where scope = '%s' and state = 3" % scope) == "a,b"
        told = subprocess.run(
            ["mariadb", "--no-defaults", "--force", "-uroot", "-S", each_mariadb.socket, "shop"], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, input="start transaction; insert into finishing values ('a', 5); rollback; "
            "xa start 'c'; call idem_finish('%s', 'b', 5, 'succeeded', '', null); xa end 'c'; xa rollback 'c';" % scope).stdout
        assert told.count("1644 (45001)") == 2 and told.count("ERROR") == 2, told
    finally:
        each_mariadb.sql("drop table finishing")


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_a_snapshot_that_is_older_than_the_result_does_not_hide_it(each_mariadb, level):
    scope = "snapshot-%d" % time.time_ns()
    begin = "call idem_begin('%s', '%%s', null, null, null, null, @v, @f, @k, @r); select @v, coalesce(@r, '')" % scope
    with Session(each_mariadb) as one, Session(each_mariadb) as two:
        for session in (one, two):
            session("set session transaction isolation level %s; start transaction; select count(*) from idem_record" % level)
        assert one(begin % "x").split()[0] == "started" and two(begin % "x").split() == ["busy"]
        one("call idem_finish('%s', 'x', @f, 'succeeded', 'done', null); "
            "call idem_settle('%s', 'y', null, null, null, @v, @s, @k, @r); commit" % (scope, scope))
        assert two(begin % "x").split() == ["replay", "done"]
        assert two("call idem_settle('%s', 'y', null, null, null, @v, @s, @k, @r); select @v, @s" % scope).split() == [
            "replay", "failed"]
        for call in ("get('%s', 'x', @v, @s, @f, @k, @r)", "release('%s', 'x', 1, @v)", "renew('%s', 'x', 1, null, @v)",
                     "join('%s', 'x', 1, @v, @k, @r)", "try_finish('%s', 'x', 1, 'failed', '', null, null, @v)"):
            two("rollback; start transaction; select count(*) from idem_record")
            one("start transaction; update idem_record set rev = rev + 1 where scope = '%s'; commit" % scope)
            said = two("call idem_%s; select @v" % call % scope)
            assert said == "record" if call.startswith("get") else said == "stale", (call, said)


def test_no_row_does_not_mean_that_it_did_not_happen(database):
    """A commit may still be under way at the server: begin and settle are busy, and then answer what it did."""
    scope = "late-%d" % time.time_ns()
    if is_postgres(database):
        begin = "select verdict from idem.begin('%s', 'x')" % scope
        finish = ("select idem.finish('%s', 'x', (select fence from idem.idem_record where scope = '%s'), 'succeeded', 'done')"
                  % (scope, scope))
        get = "select count(*) from idem.get('%s', 'x')" % scope
        settle = "select verdict from idem.settle('%s', 'x')" % scope
    else:
        begin = "call idem_begin('%s', 'x', null, null, null, null, @v, @f, @k, @r); select @v" % scope
        finish = "call idem_finish('%s', 'x', @f, 'succeeded', 'done', null)" % scope
        get = "call idem_get('%s', 'x', @v, @s, @f, @k, @r); select @v = 'record'" % scope
        settle = "call idem_settle('%s', 'x', null, null, null, @v, @s, @k, @r); select @v" % scope
    with Session(database) as old, Session(database) as new:
        old("start transaction; " + begin)
        old(finish)
        new("start transaction")
        assert [new(q).split()[-1] for q in (get, begin, settle)] == ["0", "busy", "busy"]
        old("commit")
        new("rollback; start transaction")
        assert [new(q).split()[-1] for q in (get, begin, settle)] == ["1", "replay", "replay"]
        new("commit")


def test_null_means_the_default(database):
    scope = "null-%d" % time.time_ns()
    if is_postgres(database):
        database.sql("""begin; do $$ declare b record; begin
            select * into b from idem.begin('{0}', 'x', null, null, null, null, null);
            perform idem.renew('{0}', 'x', b.fence, null);
            perform idem.finish('{0}', 'x', b.fence, 'succeeded', null, null, null);
            perform idem.settle('{0}', 'y', null, null, null, null);
            perform idem.sweep(null);
            end $$; commit""".format(scope))
        there = "select id, state, mode, kind, expires - updated from idem.idem_record where scope = '%s' order by id"
        settled = database.sql("select kind from idem.settle('%s', 'z', null, null, null, null)" % scope)
        assert settled == "raw"
    else:
        database.sql("""start transaction;
            call idem_begin('{0}', 'x', null, null, null, null, @v, @f, @k, @r);
            call idem_renew('{0}', 'x', @f, null, @v);
            call idem_finish('{0}', 'x', @f, 'succeeded', null, null);
            call idem_settle('{0}', 'y', null, null, null, @v, @s, @k, @r);
            call idem_sweep(null, @n); commit""".format(scope))
        there = "select id, state, mode, kind, expires - updated from idem_record where scope = '%s' order by id"
    rows = [line.replace("\t", "|").split("|") for line in database.sql(there % scope).splitlines()][:2]
    assert [(r[1:]) for r in rows] == [["3", "0", "0", "86400000"], ["4", "0", "0", "86400000"]]


def test_bad_input_is_a_clear_error(database):
    if is_postgres(database):
        cases = {"select idem.begin('', 'x')": "scope", "select idem.begin('s', '')": "id",
                 "select idem.begin('s', 'x', mode => 'odd')": "strict or loose",
                 "select idem.begin('s', 'x', lease_ms => 0)": "lease",
                 "select idem.begin('s', 'x', fingerprint => 'short')": "32 bytes",
                 "select idem.finish('s', 'x', 1, 'maybe')": "succeeded or failed",
                 "select idem.finish_http('s', 'x', 1, 99, 'text/plain', '')": "200 to 599",
                 "begin; select idem.finish('s', 'x', 1, 'failed', convert_to(repeat('x', 67108865), 'UTF8'))": "64 MiB",
                 "select idem.settle('s', 'x', null, convert_to(repeat('x', 67108865), 'UTF8'))": "64 MiB",
                 "select idem.transition('m', 'idem.idem_record', 'nix', '1', 'state', 'a', 'b')": "no column",
                 "begin isolation level serializable; select idem.begin('s', 'x')": "read committed"}
    else:
        cases = {"call idem_begin('s', 'x', null, null, null, null, @a, @b, @c, @d)": "no transaction",
                 "start transaction; call idem_begin('', 'x', null, null, null, null, @a, @b, @c, @d)": "scope",
                 "start transaction; call idem_begin('s', 'x', null, 'odd', null, null, @a, @b, @c, @d)": "strict",
                 "start transaction; call idem_begin('s', 'x', 'short', null, null, null, @a, @b, @c, @d)": "32 bytes",
                 "start transaction; call idem_try_finish('s', 'x', 1, 'maybe', '', null, null, @a)": "succeeded",
                 "start transaction; call idem_finish('s', 'x', 1, 'failed', concat(%s), null)"
                 % ", ".join(["repeat('x', 13421773)"] * 5): "64 MiB",
                 "start transaction; call idem_settle('s', 'x', null, concat(%s), null, @a, @b, @c, @d)"
                 % ", ".join(["repeat('x', 13421773)"] * 5): "64 MiB",
                 "start transaction; call idem_finish_http('s', 'x', 1, 99, 'a', '', null)": "200 to 599"}
        database.sql("set global max_allowed_packet = 268435456")  # concat() makes nothing longer
        dirty = "set session transaction isolation level read uncommitted; start transaction; call "
        for call in ("idem_begin('s', 'x', null, null, null, null, @a, @b, @c, @d)", "idem_join('s', 'x', 1, @a, @b, @c)",
                     "idem_finish('s', 'x', 1, 'failed', '', null)", "idem_release('s', 'x', 1, @a)",
                     "idem_renew('s', 'x', 1, 1000, @a)", "idem_settle('s', 'x', null, null, null, @a, @b, @c, @d)",
                     "idem_get('s', 'x', @a, @b, @c, @d, @e)"):
            cases[dirty + call] = "READ UNCOMMITTED"
    for sql, told in cases.items():
        with pytest.raises(AssertionError) as error:
            database.sql(sql)
        assert told in str(error.value) and "idem:" in str(error.value), (sql, error.value)
    if not is_postgres(database):
        database.sql("set global max_allowed_packet = default")
    assert int(database.sql("select count(*) from %s where scope = 's' and id = 'x'"
                            % ("idem.idem_record" if is_postgres(database) else "idem_record"))) == 0


def test_a_state_machine_in_sql(database):
    if is_postgres(database):
        database.sql("drop table if exists machine_order; create table machine_order (id int primary key, state text)")
        move = "select idem.transition('order', 'machine_order', 'id', '1', 'state', '%s', '%s')"
        declare = "select idem.declare_move('order', '%s', '%s')"
    else:
        database.sql("drop table if exists machine_order; create table machine_order (id int primary key, "
                     "state varchar(20)) engine = InnoDB")
        move = ("start transaction; call idem_transition('order', 'machine_order', 'id', '1', 'state', '%s', '%s', @v); "
                "commit; select @v")
        declare = "call idem_declare_move('order', '%s', '%s')"
    database.sql("insert into machine_order values (1, 'new')")
    for one in (("new", "paid"), ("paid", "done"), ("new", "paid")):
        database.sql(declare % one)
    said = [database.sql(move % m).split()[-1] for m in (
        ("paid", "done"), ("new", "paid"), ("new", "paid"), ("paid", "new"), ("paid", "done"), ("new", "paid"))]
    assert said == ["refused", "first", "duplicate", "refused", "first", "duplicate"]


def scheme(database, name, *args):
    """The call of a scheme, and then its verdict; arguments are numbers, or texts that are quoted here."""
    words = ", ".join("'%s'" % a if isinstance(a, str) else str(a) for a in args)
    if is_postgres(database):
        return "select idem.%s(%s)" % (name, words)
    return "call idem_%s(%s, @v); select @v" % (name, words)


SCHEMES = {"insert_once": ['{"b": 1}'], "select_insert": ['{"b": 1}'], "upsert": ['{"b": 1}'],
           "update_versioned": ["v", 1, '{"b": 1}', "{}"], "deduct": ["b", 1], "lock_row": [0]}


def test_a_scheme_in_sql_needs_its_unique_key(database):
    engine = "" if is_postgres(database) else " engine = InnoDB"
    database.sql("drop table if exists keyless; create table keyless (a int, b int, v int)%s; "
                 "insert into keyless values (1, 5, 1), (1, 5, 1)" % engine)
    for name, rest in SCHEMES.items():
        for keys, told in (('{"a": 1}', "unique index"), ('{"a": null}', "null"), ("{}", "JSON object"), ("[1]", "JSON object")):
            with pytest.raises(AssertionError) as error:
                database.sql("start transaction; %s; commit" % scheme(database, name, "keyless", keys, *rest))
            assert told in str(error.value) and "idem:" in str(error.value), (name, keys, error.value)
            assert told != "unique index" or "keyless" in str(error.value)
    assert database.sql("select count(*), sum(b), sum(v) from keyless").replace("\t", "|") == "2|10|2"
    database.sql("delete from keyless where a = 1; create unique index keyless_a on keyless (a)")
    call = scheme(database, "insert_once", "keyless", '{"a": 1}', '{"b": 7}')
    assert database.sql("start transaction; %s; %s; commit" % (call, call)).split() == ["first", "duplicate"]


def test_a_table_without_transactions_is_refused(mariadb):
    idem("store", "init", mariadb.url)
    mariadb.sql("create or replace table plain (a int primary key, b int, v int) engine = MyISAM")
    for name, rest in SCHEMES.items():
        with pytest.raises(AssertionError, match="InnoDB"):
            mariadb.sql("start transaction; %s; commit" % scheme(mariadb, name, "plain", '{"a": 1}', *rest))


def test_a_row_lock_in_sql_waits_and_gives_up(database):
    database.sql("drop table if exists locked; create table locked (id int primary key, n int)%s; insert into locked values "
                 "(1, 0)" % ("" if is_postgres(database) else " engine = InnoDB"))
    lock = lambda wait: scheme(database, "lock_row", "locked", '{"id": 1}', wait)  # noqa: E731
    with Session(database) as one, Session(database) as two:
        assert one("start transaction; " + lock(0)).split() == ["first"]
        start = time.monotonic()
        assert two("start transaction; " + lock(0)).split() == ["conflict"]
        assert two(lock(300)).split() == ["conflict"]
        assert 0.3 <= time.monotonic() - start < 20
        with ThreadPoolExecutor(1) as crowd:
            waiting = crowd.submit(two, lock(60000))
            time.sleep(0.2)
            one("update locked set n = 7; commit")
            assert waiting.result().split() == ["first"]
        two("commit")


def test_schemes_in_sql_take_any_name_and_any_text(database):
    """What looks like SQL in a name or a value is only a name or a value, whatever the mode of quoting is."""
    q = '"' if is_postgres(database) else "`"
    table, column = "odd; --", "it's %s %%1$s {v}" % (q * 2)
    evil = "'); drop table x; -- \\"
    database.sql("drop table if exists {0}{1}{0}; create table {0}{1}{0} (id varchar(40) primary key, {0}{2}{0} varchar(60))"
                 .format(q, table, column))
    name = '"%s"' % table if is_postgres(database) else table
    values = json.dumps({column.replace(q * 2, q): evil})
    if is_postgres(database):
        call = "select idem.upsert('%s', '%s', '%s')" % (name, json.dumps({"id": evil}).replace("'", "''"), values.replace("'", "''"))
        modes = [""]
    else:
        call = "call idem_upsert('%s', x'%s', x'%s', @v); select @v" % (
            name, json.dumps({"id": evil}).encode().hex(), values.encode().hex())
        modes = ["", "set sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'; "]
    for mode in modes:
        database.sql("delete from {0}{1}{0}".format(q, table))
        assert database.sql(mode + "start transaction; %s; %s; commit" % (call, call)).split() == ["first", "duplicate"]
        assert database.sql("select id from {0}{1}{0} where id = {0}{2}{0}".format(q, table, column)).replace(
            "\\\\", "\\") == evil


@pytest.mark.parametrize("collation", ["utf8mb4_unicode_ci", "utf8mb4_bin", "latin1_swedish_ci"])
def test_a_state_machine_whatever_the_collation_and_the_database(mariadb, collation):
    idem("store", "init", mariadb.url)
    word = "paid" if collation.startswith("latin1") else "已付"
    name = "machine_%d" % time.time_ns()
    mariadb.sql("create database %s character set latin1; create table %s.`the order` (id varchar(20), state varchar(20), "
                "primary key (id)) engine = InnoDB collate %s; insert into %s.`the order` values ('a', 'new')"
                % (name, name, collation, name))
    for where, table in (("shop", name + ".the order"), (name, "the order")):
        if where == name:  # the procedures of a database that knows no Chinese
            with open(os.path.join(ROOT, "sql/mysql.sql")) as f:
                mariadb.sql(f.read(), database=name)
        said = mariadb.sql("set names utf8mb4; update %s.`the order` set state = 'new'; call idem_declare_move('%s', 'new', '%s');"
                           % (name, name, word) + "start transaction;"
                           + ("call idem_transition('%s', '%s', 'id', 'a', 'state', 'new', '%s', @v); select @v;"
                              % (name, table, word)) * 2 + "commit", database=where)
        assert said.split() == ["first", "duplicate"]
    mariadb.sql("drop database " + name)


def test_what_a_service_finishes_the_server_sees(database):
    scope = "seen-%d" % time.time_ns()
    with folder() as where, Server(where, store=patient(database.url)) as server, server.client() as c:
        fence = c("BEGIN", scope, "x")[1]
        if is_postgres(database):
            database.sql("begin; select idem.join('%s', 'x', %d); select idem.finish('%s', 'x', %d, 'succeeded', 'ours');"
                         "commit" % (scope, fence, scope, fence))
        else:
            database.sql("start transaction; call idem_join('%s', 'x', %d, @v, @k, @r); call idem_finish('%s', 'x', %d, "
                         "'succeeded', 'ours', null); commit" % (scope, fence, scope, fence))
        assert c("BEGIN", scope, "x")[:2] == ["replay", "succeeded"]
        assert c("BEGIN", scope, "x")[4] == "ours"
        assert c("FINISH", scope, "x", fence, "SUCCEEDED", "ours")[0] == "ok"
    assert "ours" in idem("get", scope, "x", "--store", database.url, code=None)


def test_the_grants_that_are_shown_are_enough_and_no_more(database):
    if is_postgres(database):
        database.sql("drop role if exists shop; create role shop login; grant usage on schema idem to shop; "
                     "grant select, insert, update on idem.idem_record to shop; "
                     "grant select on idem.idem_machine, idem.idem_version to shop")
        as_shop = lambda sql: database.sql("set role shop; " + sql)  # noqa: E731
        assert "started" in as_shop("select verdict from idem.begin('grant', '%d')" % time.time_ns())
        with pytest.raises(AssertionError, match="permission denied"):
            as_shop("select idem.sweep()")
    else:
        database.sql("create or replace user till@localhost; grant select, insert, update on shop.idem_record to "
                     "till@localhost; grant select on shop.idem_machine to till@localhost; "
                     "grant execute on shop.* to till@localhost")
        run = lambda sql: subprocess.run(  # noqa: E731
            ["mariadb", "--no-defaults", "-utill", "-S", database.socket, "-N", "shop"], input=sql, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        assert "started" in run("start transaction; call idem_begin('grant', '%d', null, null, null, null, @v, @f, @k, "
                                "@r); select @v; commit" % time.time_ns())
        assert "denied" in run("call idem_sweep(1, @n)")


# Whatever PostgreSQL has nothing for with exactly these types: an operator or function in another schema matches better.
TRAPS = """
create function public.trapped() returns void language plpgsql as $$ begin raise exception 'trapped'; end $$;
set search_path = pg_catalog;
do $do$
declare
    types regtype[] := '{int2,int4,int8,numeric,float8,text,name,bytea,jsonb,oid,regclass,regnamespace,regprocedure,\"char\"}';
    a regtype; b regtype; op text; f text; n int; list text;
begin
    foreach a in array types loop
        foreach b in array types loop
            execute format('create function public.is_trap(%s, %s) returns bool language sql as $$ select public.trapped(); select true $$;'
                'create function public.trap(%s, %s) returns %s language sql as $$ select public.trapped(); select $1 $$', a, b, a, b, a);
            foreach op in array '{=,<>,<,>,<=,>=,+,-,*,/,&,|,||,->>,?}'::text[] loop
                if not exists (select from pg_operator o where o.oprname = op and o.oprleft = a and o.oprright = b) then
                    execute format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.%s)', op, a, b,
                        case when op in ('=', '<>', '<', '>', '<=', '>=', '?') then 'is_trap' else 'trap' end);
                end if;
            end loop;
        end loop;
    end loop;
    for f, list in select distinct p.proname, t from pg_proc p, unnest('{text,\"text,text\",\"text,text,text\",\"text,text,text,text\",int4,numeric,'
            '\"name,text\",\"int4,text\",\"text,int4\",\"text,name\",\"text,text,regclass\",\"text,regclass,text\"}'::text[]) t
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and p.proname in ('convert_to', 'convert_from', 'pg_sleep', 'format',
            'concat_ws', 'jsonb_build_object', 'pg_try_advisory_xact_lock', 'pg_notify', 'encode', 'decode', 'lpad', 'to_hex', 'sha256', 'octet_length',
            'lower', 'current_setting', 'pg_logical_emit_message', 'format_type', 'to_regclass', 'to_regnamespace', 'jsonb_typeof', 'int2send') loop
        if not exists (select from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = f
            and p.proargtypes::oid[] = (select array_agg(u::regtype::oid order by i) from unnest(string_to_array(list, ',')) with ordinality x(u, i))) then
            execute format('create function public.%s(%s) returns text language sql as $$ select public.trapped(); select null::text $$', f, list);
        end if;
    end loop;
end $do$;
reset search_path;
create table goods (id int primary key, name text, stock int not null default 0, version bigint not null default 1, state text);
create function public.jsonb_populate_record(goods, jsonb) returns goods language sql as $$ select public.trapped(); select $1 $$"""


def test_what_others_made_in_the_search_path_is_not_called(postgres):
    """Everybody may create in public on PostgreSQL 14, and on databases that come from there."""
    name = "trapped_%d" % time.time_ns()
    postgres.sql("create database %s" % name)
    url = postgres.url.replace("/postgres", "/" + name)
    psql = lambda text: subprocess.run([postgres.bin + "psql", "-qAt", url], input=text, text=True, capture_output=True)  # noqa: E731
    assert psql(TRAPS).stderr == ""
    assert "trapped" in psql("select 1::int2 & 4").stderr
    with open(os.path.join(ROOT, "sql/postgres.sql")) as script:
        install = script.read()
    for _ in range(2):  # the second one also drops the functions of an older version
        done = psql(install + "update idem.idem_version set version = 0;")
        assert "ERROR" not in done.stderr, done.stderr
    assert "ERROR" not in psql(install).stderr
    fence = "(select fence from idem.idem_record where id = '%s'::bytea)"
    hold = "select pg_advisory_xact_lock(idem.lock_number(idem.key(1, 's'::bytea, 'held'::bytea))); select from goods where id = 1 for update; "
    calls = [
        ("select verdict from idem.begin('s', 'a', fingerprint => '\\x%s')" % ("07" * 32), "started"),
        ("select verdict from idem.begin('s', 'a', wait_ms => 10)", "busy"),
        ("select idem.renew('s', 'a', %s, 60000)" % fence % "a", "ok"),
        ("select verdict from idem.join('s', 'a', %s)" % fence % "a", "started"),
        ("select idem.finish('s', 'a', %s, 'succeeded', 'done')" % fence % "a", "ok"),
        ("select idem.try_finish('s', 'a', %s, 'failed', 'no')" % fence % "a", "finished"),
        ("select verdict from idem.begin('s', 'a')", "replay"),
        ("select verdict from idem.join('s', 'a', %s)" % fence % "a", "replay"),
        ("select verdict from idem.settle('s', 'a')", "replay"),
        ("select verdict from idem.begin('s', 'b')", "started"),
        ("select idem.finish_http('s', 'b', %s, 201, 'text/plain', 'x')" % fence % "b", "ok"),
        ("select verdict from idem.begin('s', 'c', mode => 'loose')", "started"),
        ("select idem.release('s', 'c', %s)" % fence % "c", "ok"),
        ("select verdict from idem.begin('s', 'c')", "started"),
        ("select verdict from idem.settle('s', 'd')", "settled"),
        ("select state, kind, replayable from idem.get('s', 'b')", "succeeded|http|t"),
        ("select idem.sweep()", "0"),
        ("select idem.barrier('t', 'u', 'try'), idem.barrier('t', 'u', 'confirm')", "first|first"),
        ("select idem.insert_once('goods', '{\"id\": 1}', '{\"name\": \"tea\", \"stock\": 5, \"state\": \"new\"}')", "first"),
        ("select idem.insert_once('goods', '{\"id\": 1}')", "duplicate"),
        ("select idem.select_insert('goods', '{\"id\": 2}')", "first"),
        ("select idem.upsert('goods', '{\"id\": 2}', '{\"name\": \"jam\"}')", "duplicate"),
        ("select idem.update_versioned('goods', '{\"id\": 1}', 'version', 1, '{\"name\": \"mint\"}', '{\"stock\": 2}')", "first"),
        ("select idem.update_versioned('goods', '{\"id\": 1}', 'version', 1, '{\"name\": \"mint\"}')", "duplicate"),
        ("select idem.deduct('goods', '{\"id\": 1}', 'stock', 7), stock from goods where id = 1", "first|7"),
        ("select idem.lock_row('goods', '{\"id\": 1}')", "first"),
        ("select idem.declare_move('m', 'new', 'paid')", ""),
        ("select idem.transition('m', 'goods', 'id', '1', 'state', 'new', 'paid')", "first"),
        ("select idem.transition('m', 'goods', 'id', '1', 'state', 'new', 'paid')", "duplicate"),
    ]
    for call, told in calls:
        done = psql(call)
        assert (done.stdout.strip(), done.stderr) == (told, ""), call
    with subprocess.Popen([postgres.bin + "psql", "-qAt", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdin.write("begin; %s select 'held';\n" % hold)
        other.stdin.flush()
        while other.stdout.readline() != "held\n":
            pass
        assert psql("select verdict from idem.begin('s', 'held', wait_ms => 20)").stdout == "busy\n"
        done = psql("select idem.lock_row('goods', '{\"id\": 1}', 20)")
        assert (done.stdout, done.stderr) == ("conflict\n", "")
    program("sql_test", IDEM_TEST_SQL=url)


def test_who_was_given_the_schema_can_install(postgres):
    name = "given_%d" % time.time_ns()
    postgres.sql("create role %s login" % name)
    postgres.sql("create database %s" % name)
    url = postgres.url.replace("/postgres", "/" + name)
    subprocess.run([postgres.bin + "psql", "-q", url, "-c", "create schema idem authorization " + name], check=True)
    url = url.replace("idem:secret@", name + "@")
    for _ in range(2):
        assert "is ready" in idem("store", "init", url)
    assert "started" in idem("begin", "s", "x", "--store", url)


def test_without_the_rights_the_message_names_the_page_with_the_grants(database):
    who = "poor%d" % time.time_ns()
    idem("store", "init", database.url)
    if is_postgres(database):
        database.sql("create role %s login" % who)
    else:
        database.sql("create user {0}@'127.0.0.1' identified by 'secret'; grant usage on *.* to {0}@'127.0.0.1'; "
                     "grant create temporary tables on shop.* to {0}@'127.0.0.1'".format(who))
    for command in (["store", "check"], ["store", "init"], ["scan", "--store"]):
        done = subprocess.run([IDEM, *command, database.url.replace("idem:", who + ":")], capture_output=True, text=True, timeout=60)
        assert done.returncode == 20 and re.search(r"(denied|must not see it).*;.* docs/sql/README.md\b.*, Rights$", done.stderr.strip()), done
    assert "\n## Rights\n" in open(os.path.join(ROOT, "docs/sql/README.md")).read()


def test_a_server_needs_the_rights_that_are_shown(database):
    who = "srv%d" % time.time_ns()
    if is_postgres(database):
        database.sql("create role {0} login; grant usage on schema idem to {0}; grant select, insert, update, delete on "
                     "idem.idem_record to {0}; grant select on idem.idem_version to {0}".format(who))
    else:
        database.sql("create user {0}@'127.0.0.1' identified by 'secret'; grant select, insert, update, delete on "
                     "shop.idem_record to {0}@'127.0.0.1'".format(who))
    program("contract_test", IDEM_TEST_STORE=database.url.replace("idem:", who + ":"))


def test_the_page_shows_every_argument(database):
    psql = is_postgres(database)
    idem("store", "init", database.url)
    with open(os.path.join(ROOT, "docs/sql/README.md")) as f:
        shown = re.findall(r"`idem[._](\w+)\(([^)…]+)\)`", f.read().split("\nMariaDB and MySQL have the same")[0 if psql else 1])
    assert len(shown) > 10
    for name, arguments in shown:
        there = database.sql("select pronargs from pg_proc where pronamespace = 'idem'::regnamespace and proname = '%s'" % name
                             if psql else "select count(*) from information_schema.parameters where specific_schema = 'shop' "
                             "and specific_name = 'idem_%s' and parameter_name is not null" % name)
        assert there == str(arguments.count(",") + 1), name


def test_a_verdict_comes_first(postgres):
    idem("store", "init", postgres.url)
    key = "'first', '%d'" % time.time_ns()
    assert postgres.sql("select * from idem.settle(%s)" % key).startswith("settled|failed|raw")
    assert postgres.sql("select * from idem.settle(%s)" % key).startswith("replay|failed|raw")
    assert postgres.sql("select * from idem.begin(%s)" % key).startswith("replay|")
    assert postgres.sql("select * from idem.join(%s, 1)" % key).startswith("stale|")


OLDER = {  # what an older release could have left: another begin, no sweep, no state machines, one index less
    "postgres": """
        update idem.idem_version set version = 0;
        drop function idem.begin(text, text, bytea, text, bigint, bigint, bigint);
        create function idem.begin(scope text, id text, fingerprint bytea default null, mode text default 'strict',
            lease_ms bigint default 30000, ttl_ms bigint default 86400000, out verdict text, out fence bigint)
        language sql as 'select ''old''::text, 0::bigint';
        drop function idem.sweep; drop table idem.idem_machine; drop index idem.idem_record_sweep;
        alter table idem.idem_record add check (octet_length(key_hash) = 32), add check (octet_length(nonce) = 8);
        drop index idem.idem_record_started; drop index idem.idem_record_id;
        create index idem_record_executing on idem.idem_record (key_hash) where state = 2""",
    "mysql": """
        update idem_version set version = 0;
        create or replace procedure idem_begin(in p_scope varbinary(1000), out o_verdict varchar(10))
            set o_verdict = 'old';
        drop procedure idem_sweep; drop table idem_machine; drop index idem_record_id on idem_record"""}


@pytest.mark.parametrize("how", ["idem store init", "by hand"])
def test_an_older_installation_is_upgraded_and_a_newer_one_left_alone(database, how):
    psql = is_postgres(database)
    script = os.path.join(ROOT, "sql/postgres.sql" if psql else "sql/mysql.sql")
    name = "upgrade_%d" % time.time_ns()
    database.sql("create database %s" % name)
    if psql:
        url = database.url.replace("/postgres", "/" + name)
        client = [database.bin + "psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-1", url]
    else:
        database.sql("grant all on %s.* to idem@'127.0.0.1'" % name)
        url = database.url.replace("/shop", "/" + name)
        client = ["mariadb", "--no-defaults", "-uroot", "-S", database.socket, "-N", "-B", name]

    def run(text):
        return subprocess.run(client, input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def sql(text):
        done = run(text)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    def install():
        if how == "by hand":
            with open(script) as f:
                return run(f.read()).stdout
        return idem("store", "init", url, code=None)

    version = "select version from %sidem_version" % ("idem." if psql else "")
    begin = ("select verdict from idem.begin('s', '%s')" if psql else
             "start transaction; call idem_begin('s', '%s', null, null, null, null, @v, @f, @k, @r); select @v; commit")
    install()
    assert sql(begin % "kept") == "started" and sql(version) == "1"
    sql(OLDER["postgres" if psql else "mysql"])
    install()
    assert sql(version) == "1"
    assert sql(begin % "new") == "started" and sql(begin % "kept") == "busy", "its records are there"
    sql("select idem.sweep(); select idem.declare_move('m', 'a', 'b')" if psql else
        "call idem_sweep(10, @n); call idem_declare_move('m', 'a', 'b')")
    if psql:
        assert sql("select indexname from pg_indexes where tablename = 'idem_record' order by 1") == (
            "idem_record_id\nidem_record_pkey\nidem_record_started\nidem_record_sweep")
        assert sql("select count(*) from pg_constraint where contype = 'c' and conrelid = 'idem.idem_record'::regclass") == "0"
        assert sql("select count(*) from pg_proc where proname = 'begin' and pronamespace = 'idem'::regnamespace") == "1"
    else:
        assert sql("select count(*) from information_schema.statistics where table_schema = database() and index_name = "
                   "'idem_record_id'") == "1"
    assert "is ready to use" in idem("store", "check", url)
    # Whoever comes from the future is not changed.
    sql("update %sidem_version set version = 2; " % ("idem." if psql else "") +
        ("drop function idem.sweep" if psql else "drop procedure idem_sweep"))
    assert "newer" in install() and sql(version) == "2"
    assert "newer" in idem("store", "check", url, code=None)
    assert run("select idem.sweep()" if psql else "call idem_sweep(10, @n)").returncode != 0


# ---- the bank -----------------------------------------------------------------


class Bank(Process):
    def __init__(self, url):
        self.port = free_port()
        super().__init__([os.path.join(ROOT, "build/examples/bank"), str(self.port), url], ready=self.port)

    def __call__(self, method, path, body=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, json.dumps(body) if body is not None else None, headers)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text


@pytest.fixture
def bank(url):
    for table in ("account", "bank_order", "item", "vote", "flow"):
        drop(url, table)
    with Bank(url) as b:
        yield b


def drop(url, table):
    """A bank that starts with nothing."""
    if url.startswith("sqlite:"):
        return
    if url.startswith("postgres"):
        subprocess.run(["psql", "-q", url, "-c", "drop table if exists " + table], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    else:
        user, rest = url[len("mysql://"):].split("@")
        subprocess.run(["mariadb", "--no-defaults", "-u" + user.split(":")[0], "-p" + user.split(":")[1], "-h127.0.0.1",
                        "-P" + rest.split(":")[1].split("/")[0], "shop", "-e", "drop table if exists " + table])


def test_the_bank_plays_every_scheme(bank):
    # The seeds' own test: one token, five calls.
    token = bank("GET", "/token")[1]
    assert [bank("POST", "/test", token=token)[1] for _ in range(5)] == ["正常调用"] + ["重复调用"] * 4
    assert bank("POST", "/test", token="made-up")[1] == "重复调用"
    other = bank("GET", "/token")[1]
    assert bank("POST", "/test", token=other, person="somebody-else")[1] == "重复调用"
    assert bank("POST", "/test", token=other)[1] == "正常调用"

    # A ticket withdraws once, whoever asks how often.
    ticket = json.loads(bank("POST", "/tickets")[1])["ticket"]
    with ThreadPoolExecutor(8) as crowd:
        said = list(crowd.map(lambda _: bank("PUT", "/accounts/ann/" + ticket, {"amount": 300}), range(16)))
    assert set(said) == {(200, '{"withdrawn":300}')}
    assert bank("PUT", "/accounts/ann/no-such-ticket", {"amount": 300})[0] == 403
    ticket = json.loads(bank("POST", "/tickets")[1])["ticket"]
    assert bank("PUT", "/accounts/ann/" + ticket, {"amount": 701})[0] == 409  # 700 are left
    ticket = json.loads(bank("POST", "/tickets")[1])["ticket"]
    assert bank("PUT", "/accounts/ann/" + ticket, {"amount": 700})[0] == 200

    # An order number is one order, a person has one vote.
    first = json.loads(bank("POST", "/orders", {"item": "phone"})[1])
    assert first["verdict"] == "first"
    status, text = bank("POST", "/orders", {"item": "phone", "no": int(first["no"])})
    assert status == 200 and json.loads(text)["verdict"] == "duplicate"
    assert "first" in bank("POST", "/votes", {"choice": "a"}, person="p1")[1]
    assert "duplicate" in bank("POST", "/votes", {"choice": "b"}, person="p1")[1]

    # Stock suffices or it does not.
    with ThreadPoolExecutor(8) as crowd:
        said = list(crowd.map(lambda _: bank("POST", "/stock/phone/deduct", {"n": 30})[0], range(8)))
    assert sorted(said) == [200] * 3 + [409] * 5

    # A version is changed once.
    assert "first" in bank("PUT", "/items/phone", {"price": 900, "version": 10})[1]
    assert "duplicate" in bank("PUT", "/items/phone", {"price": 900, "version": 10})[1]
    assert "conflict" in bank("PUT", "/items/phone", {"price": 800, "version": 10})[1]

    # The order's states.
    order = "/orders/" + first["no"]
    said = [json.loads(bank("POST", order + "/" + m)[1])["verdict"] for m in ("finish", "pay", "pay", "finish", "cancel")]
    assert said == ["refused", "first", "duplicate", "first", "refused"]


def test_the_banks_transfers_happen_once_strict_or_loose(bank):
    def transfer(seq, amount, to="ann", mode="strict", source="wap"):
        return bank("POST", "/transfers", {"source": source, "seq": seq, "from": "bob", "to": to, "amount": amount,
                                           "mode": mode})

    run = str(time.time_ns())
    with ThreadPoolExecutor(8) as crowd:
        said = list(crowd.map(lambda _: transfer("s1-" + run, 100), range(8)))
    assert set(said) == {(200, '{"moved":100}')}
    # Strict: a failure is an answer too. Loose: a retry may run.
    assert transfer("s2-" + run, 5000)[0] == 409
    assert transfer("s2-" + run, 5000)[0] == 409
    assert transfer("s2-" + run, 100)[0] == 422, "the same number for another transfer"
    assert transfer("l1-" + run, 5000, mode="loose")[0] == 409
    assert transfer("l1-" + run, 100, mode="loose") == (200, '{"moved":100}')
    # To an account that is not there: the deduction is undone.
    assert transfer("s3-" + run, 100, to="nobody")[0] == 409
    # Settled before it came: it never runs.
    assert bank("POST", "/transfers/wap/s4-%s/settle" % run)[1] == '{"settled":"failed"}'
    assert transfer("s4-" + run, 100)[0] == 409
    assert bank("POST", "/transfers/wap/s1-%s/settle" % run) == (200, '{"moved":100}')
    # 800 are left: all of it can still be taken, and no more.
    assert transfer("s5-" + run, 801)[0] == 409
    assert transfer("s6-" + run, 800)[0] == 200


# ---- the gap closed: behind the gateway -------------------------------------------


class JoiningService:
    """A service that joins and finishes the gateway's record in its own transaction, and may die at any point."""

    def __init__(self, database):
        import http.server
        service = self
        self.database, self.dies, self.calls = database, None, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service.calls += 1
                names = [self.headers[h] for h in ("Idem-Scope", "Idem-Id", "Idem-Fence")]
                verdict = service.work(*names)
                if service.dies:
                    self.close_connection = True
                    self.connection.close()  # as one who was killed
                    return
                body = b'{"order":1}' if verdict == "started" else verdict.encode()
                self.send_response(201 if verdict == "started" else 500)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def work(self, scope, key, fence):
        """Join, the business part, finish with the answer to replay; one transaction."""
        end = "rollback" if self.dies == "before the commit" else "commit"
        body = '{"order":1}'
        if is_postgres(self.database):
            return self.database.sql(
                "begin; select verdict from idem.join('%s', '%s', %s); insert into gap_effect values (1); "
                "select idem.finish_http('%s', '%s', %s, 201, 'application/json', '%s'); %s"
                % (scope, key, fence, scope, key, fence, body, end)).split()[0]
        return self.database.sql(
            "start transaction; call idem_join('%s', '%s', %s, @v, @k, @r); insert into gap_effect values (1); "
            "call idem_finish_http('%s', '%s', %s, 201, 'application/json', '%s', null); %s; select @v"
            % (scope, key, fence, scope, key, fence, body, end)).split()[0]


def test_what_a_service_committed_is_replayed_whatever_died_afterwards(database):
    from gateway import Gateway
    database.sql("drop table if exists gap_effect; create table gap_effect (n int)")
    service = JoiningService(database)
    run = time.time_ns()

    def post(gateway, key):
        c = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        c.request("POST", "/orders", "{}", {"Idempotency-Key": '"%s-%d"' % (key, run), "Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text, r.headers.get("Idempotent-Replayed")

    try:
        with folder() as where, Gateway(where, service.port, "--lease", "20s", store=patient(database.url)) as gateway:
            # All is well: the gateway finds the record finished by its own fence and passes the answer on.
            assert post(gateway, "well")[:2] == (201, '{"order":1}')
            assert post(gateway, "well") == (201, '{"order":1}', "true")
            # The service dies after its commit: the first caller learns that nobody knows, a retry is replayed.
            service.dies = "after the commit"
            assert post(gateway, "dead")[0] in (502, 504)
            service.dies = None
            assert wait_until(lambda: post(gateway, "dead") == (201, '{"order":1}', "true"))
            assert service.calls == 2
            # It dies before its commit: nothing happened, and nobody guesses.
            service.dies = "before the commit"
            assert post(gateway, "gone")[0] in (502, 504)
            service.dies = None
            assert post(gateway, "gone")[0] == 409
            assert service.calls == 3
            assert database.sql("select count(*) from gap_effect") == "2"
    finally:
        service.server.shutdown()
