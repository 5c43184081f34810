"""The SQL stores on real servers: the contract, the model, two servers on one store, and what breaks."""
import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import urllib.request

import pytest

import servers
from chaos import Chaos
from crowd import (Crowd, check_expiry_race, check_lease_ends, check_locks_and_scan, check_lost_records_are_noticed,
                   check_waiting_is_woken, engines)
from lib import IDEM, ROOT, SOAK, Process, Resp, Server, check_store_in_trouble, dice, encode, folder, patient, wait_until, without_advice

OPS = 50000 if SOAK else 2500
SECONDS = 3600 if SOAK else 90


@pytest.fixture(scope="module")
def postgres():
    server = servers.Postgres()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mariadb():
    server = servers.MariaDB()
    yield server
    server.stop()


@pytest.fixture(params=["postgres", "mysql", "sqlite"])
def url(request):
    """The URL of a store that has been set up."""
    # SQLite in memory: what is tested here is not the disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as where:
        if request.param == "sqlite":
            name = "sqlite:" + os.path.join(where, "db")
        else:
            name = request.getfixturevalue({"mysql": "mariadb"}.get(request.param, request.param)).url
        idem("store", "init", name)
        yield name


@pytest.fixture(params=["postgres", "mysql"])
def database(request):
    """A server that can be stopped, killed and started again."""
    server = request.getfixturevalue({"mysql": "mariadb"}.get(request.param, request.param))
    idem("store", "init", server.url)
    return server


def idem(*args, code=0):
    done = subprocess.run([IDEM, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert code is None or done.returncode == code, (args, done.returncode, done.stdout)
    return done.stdout


def program(name, **env):
    done = subprocess.run(["make", "-s", "-j2", "build/tests/c/" + name], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    done = subprocess.run([os.path.join(ROOT, "build/tests/c", name)], cwd=ROOT, env={**os.environ, **env},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600 if SOAK else 300)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "[  PASSED  ]" in done.stdout and "[  FAILED  ]" not in done.stdout, done.stdout[-4000:]
    return done.stdout


def test_the_contract_holds(url):
    program("contract_test", IDEM_TEST_STORE=patient(url))


def test_memory_and_calls_of_the_kernel_fail(url):
    check_store_in_trouble(url)


def test_twenty_thousand_operations_agree_with_the_model(url):
    program("differential_test", IDEM_TEST_STORE=patient(url), IDEM_TEST_OPS="200000" if SOAK else "20000")


def test_two_servers_on_one_store_are_one(url):
    with engines(url) as (one, two):
        crowd = Crowd([one, two])
        crowd.run(OPS, SECONDS).check()
        # Each sees what the other did.
        for server in (one, two):
            with server.client() as c:
                assert c("GET", crowd.scope, "id-1")[0] == "record"
                assert len(c("SCAN", 0, "SCOPE", crowd.scope, "COUNT", 10)) > 2


@pytest.mark.parametrize("mode", ["", "?mode=wal"])
def test_a_nearly_full_disk_takes_no_new_claims_and_finishes_what_it_has(mode):
    """SQLite on a small disk of its own, which only this server sees."""
    with folder() as where:
        disk, user = os.path.join(where, "disk"), [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        os.mkdir(disk)
        argv = ["unshare", *user, "--mount", "sh", "-c", 'mount -t tmpfs -o size=40m idem "$0" && exec "$@"', disk, IDEM, "serve",
                "--store", "sqlite:%s/db%s" % (disk, mode), "--socket", os.path.join(where, "s")]
        with Process(argv, ready=os.path.join(where, "s")) as server, Resp(os.path.join(where, "s")) as c:
            seen = "/proc/%d/root%s" % (server.pid, disk)
            fences = [c("BEGIN", "a", str(i))[1] for i in range(60)]
            c("FINISH", "a", "59", fences[59], "SUCCEEDED", "kept")
            with open(seen + "/filler", "wb") as f:
                f.write(b"x" * (os.statvfs(seen).f_bavail * os.statvfs(seen).f_frsize - (8 << 20)))
            assert {getattr(c("BEGIN", "new", str(i)), "word", "an answer") for i in range(100)} == {"FULL"}
            assert c("BEGIN", "a", "59")[4] == "kept"
            for i in range(20):
                assert c("RENEW", "a", str(i), fences[i], 60000)[0] == "ok"
                assert c("FINISH", "a", str(i), fences[i], "SUCCEEDED", "x" * 10000)[0] == "ok"
                assert c("RELEASE", "a", str(i + 20), fences[i + 20])[0] == "ok"
            os.remove(seen + "/filler")
            assert c("BEGIN", "new", "1")[0] == "started"


def test_records_that_somebody_deleted_raise_an_alarm(database):
    table = "idem.idem_record" if "postgres" in database.url else "idem_record"
    with engines(patient(database.url)) as servers:
        check_lost_records_are_noticed(*servers, lambda: database.sql("delete from " + table))


def test_a_duplicate_that_waits_at_another_engine_is_woken(url):
    with engines(patient(url)) as servers:
        check_waiting_is_woken(*servers)


def test_locks_and_scan_work_across_engines(url):
    with engines(patient(url)) as servers:
        check_locks_and_scan(*servers)


def test_leases_and_expiry_are_the_same_for_every_engine(url):
    with engines(patient(url)) as servers:
        check_lease_ends(*servers)
        check_expiry_race(*servers)


# ---- batches on several connections --------------------------------------------


def cut(database):
    """The store of a database, every batch cut into shares as small as can be."""
    return database.url + "?connections=3&share=1"


def figure(server, name):
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % server.http, timeout=60) as reply:
        return float(re.search(r"^idem_%s (\S+)" % name, reply.read().decode(), re.M).group(1))


def test_the_contract_holds_for_batches_in_shares(database):
    program("contract_test", IDEM_TEST_STORE=patient(cut(database)))


def test_memory_fails_for_batches_in_shares(database):
    program("store_alloc_test", IDEM_TEST_STORE=database.url + "?connections=3&share=2", IDEM_TEST_RUNS="20")


def test_batches_in_shares_agree_with_the_model(database):
    program("differential_test", IDEM_TEST_STORE=patient(cut(database)), IDEM_TEST_OPS="200000" if SOAK else "20000")


def test_connections_that_are_cut_under_load_lose_and_repeat_nothing(database):
    strikes, random = 0, dice()

    def strike():
        nonlocal strikes
        for _ in range(20):
            time.sleep(random.uniform(0.02, 0.2))
            if isinstance(database, servers.Postgres):
                strikes += database.sql("select pg_terminate_backend(pid) from pg_stat_activity where backend_type = "
                                        "'client backend' and pid <> pg_backend_pid() order by random() limit 1") == "t"
            else:
                strikes += database.sql("delimiter //\nbegin not atomic declare continue handler for 1094 begin end; "
                                        "set @kill = concat('kill ', ifnull((select id from information_schema.processlist "
                                        "where user = 'idem' order by rand() limit 1), 0)); execute immediate @kill; "
                                        "select 't'; end//") == "t"

    url = cut(database)
    with folder() as a, folder() as b, Server(a, store=url, http=True) as one, Server(b, store=url, http=True) as two:
        crowd = Crowd([one, two]).run(OPS, SECONDS, meanwhile=strike)
        crowd.check()
        assert strikes > 10
        for server in (one, two):
            assert server.process.poll() is None and "secret" not in server.output()
            assert figure(server, "store_batches_cut_total") > 0 and figure(server, "store_connections") > 1


def test_a_server_that_has_one_connection_left_is_used_with_one(database):
    few = cut(database).replace("idem:secret@", "few:secret@")
    if isinstance(database, servers.Postgres):
        database.sql("create role few login connection limit 1; grant all on schema idem to few; "
                     "grant all on all tables in schema idem to few")
    else:
        database.sql("create user few@'127.0.0.1' identified by 'secret'; grant all on shop.* to few@'127.0.0.1' "
                     "with max_user_connections 1")
    scope = "few-%d" % time.time_ns()
    with folder() as a, Server(a, store=patient(few), http=True) as server, server.client() as c:
        for i in range(300):
            c.send("BEGIN", scope, "id-%d" % i)
        assert all(c.read()[0] == "started" for _ in range(300))
        assert figure(server, "store_batches_cut_total") > 0 and figure(server, "store_connections") == 1
        assert server.output().count("one of several connections failed") == 1


def test_parameters_of_several_connections_are_checked(database):
    for bad in ("connections=0", "connections=9", "connections=x", "share=0"):
        text = idem("store", "check", database.url + "?" + bad, code=None)
        assert "is a number from 1 to" in text and "secret" not in text, text
    assert "is ready to use" in idem("store", "check", database.url + "?connections=8&share=1")
    for bad in ("timeout_ms=2000x", "timeout_ms=", "timeout_ms=9", "timeout_ms=600001", "timeout_ms=-1"):
        text = idem("store", "check", database.url + "?" + bad, code=2)
        assert re.search('timeout_ms.*(number from 10 to 600000|needs a value)', text) and "secret" not in text, text
    assert "is ready to use" in idem("store", "check", database.url + "?timeout_ms=3000")


def test_the_url_of_mariadb_is_read_to_its_end(mariadb):
    idem("store", "init", mariadb.url)
    host = "127.0.0.1:%d" % mariadb.port
    for bad in (host + "x", host + ":1", "127.0.0.1:", "127.0.0.1:99999", "[" + host, "[127.0.0.1]%d" % mariadb.port):
        text = idem("store", "check", mariadb.url.replace(host, bad), code=2)
        assert "a port is a number from 1 to 65535" in text or "an IPv6 address ends with" in text, text
    assert "is ready to use" in idem("store", "check", mariadb.url.replace("127.0.0.1", "[127.0.0.1]"))


# ---- what has expired -------------------------------------------------------


@pytest.mark.parametrize("kind, count", [("postgres", 80000), ("mysql", 80000), ("sqlite", 40000)])
def test_what_expired_goes_as_fast_as_it_came_while_claims_go_on(kind, count, request):
    """500 rows twice a second took 80 s for them; SQLite's 200 took 100 s. A live record and one that executes stay."""
    with folder() as where, contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url, table = "sqlite:" + os.path.join(where, "expired.db"), "idem_record"
            idem("store", "init", url)
            base = sqlite3.connect(url[7:], timeout=60, isolation_level=None)
            stack.callback(base.close)
            sql = lambda text: base.execute(text).fetchone()  # noqa: E731
            rows = "(with recursive s(i) as (select 1 union all select i + 1 from s where i < %d) select i from s)" % count
            key, text = "randomblob(32)", "cast('%s' as blob)"
        elif kind == "postgres":
            server, table = request.getfixturevalue("postgres"), "idem.idem_record"
            url, sql = server.url, server.sql
            rows, key, text = "generate_series(1, %d) as s(i)" % count, "sha256(('old' || i)::bytea)", "'%s'::bytea"
        else:
            server, table = request.getfixturevalue("mariadb"), "idem_record"
            url, sql = server.url, server.sql
            rows, key, text = "seq_1_to_%d" % count, "unhex(sha2(concat('old', seq), 256))", "cast('%s' as binary)"
        if kind != "sqlite":
            idem("store", "init", url)
        ago = int(time.time() * 1000) - 3600000
        sql("insert into %s select %s, 0, 3, 0, 1, 0, 1, 1, 1, 1, 1, 0, %d, %s, null, %s, %s, %s, %s from %s"
            % (table, key, ago, text % "12345678", text % "expired", text % "id", text % "", text % "", rows))
        home = stack.enter_context(folder())
        served = stack.enter_context(Server(home, store=patient(url)))
        c, scope = stack.enter_context(served.client()), "beside-%d" % time.time_ns()

        assert c("FINISH", scope, "kept", c("BEGIN", scope, "kept")[1], "SUCCEEDED", "r")[0] == "ok"
        assert c("BEGIN", scope, "executes", "LEASE", 600000)[0] == "started"

        def all_gone():
            assert c("BEGIN", scope, "id-%d" % time.time_ns())[0] == "started"
            found = sql("select count(*) from %s where scope = %s" % (table, text % "expired"))
            return int(found[0] if isinstance(found, tuple) else found) == 0

        assert wait_until(all_gone, seconds=60, step=0.1)
        assert c("BEGIN", scope, "kept")[0] == "replay" and c("BEGIN", scope, "executes")[0] == "busy"


# ---- what breaks ------------------------------------------------------------


def under_load(url, meanwhile):
    """Two servers on one store, clients at work, and something happens to the database."""
    with engines(url) as both:
        crowd = Crowd(both).run(OPS, SECONDS, meanwhile=meanwhile)
        crowd.check()
        for server in both:
            assert server.process.poll() is None and "secret" not in server.output()
        return crowd


def test_a_database_that_stands_still_loses_and_repeats_nothing(database):
    def stand_still():
        time.sleep(0.3)
        send(family(database.pid), signal.SIGSTOP)
        time.sleep(3)
        send(family(database.pid), signal.SIGCONT)

    assert under_load(database.url, stand_still).longest_pause() > 2


def family(pid):
    children = subprocess.run(["/usr/bin/pgrep", "-P", str(pid)], stdout=subprocess.PIPE, text=True).stdout.split()
    return [pid] + [int(c) for c in children]


def send(pids, number):
    """A signal to each that is still there: a session's process may end meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_database_that_is_slow_to_take_a_connection_is_waited_for(database):
    """For as long as a batch would be."""
    stopped = family(database.pid)
    send(stopped, signal.SIGSTOP)
    try:
        asked = subprocess.Popen([IDEM, "store", "check", patient(database.url)], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        time.sleep(4)
    finally:
        send(stopped, signal.SIGCONT)
    assert "is ready to use" in asked.communicate(timeout=60)[0]


def test_a_database_that_is_killed_and_started_loses_and_repeats_nothing(database):
    def kill_and_start():
        time.sleep(0.3)
        database.kill()
        time.sleep(0.5)
        database.start()

    # it was really away: somebody waited, or was told so
    crowd = under_load(database.url, kill_and_start)
    assert crowd.longest_pause() > 0.4 or crowd.counts()["UNAVAILABLE"] + crowd.counts()["LOST"] > 0, crowd.counts()


def test_replies_that_are_lost_are_found_again(database):
    chaos = Chaos(database.port)
    try:
        def lose():
            # The n-th reply, for many n: within a batch, between two, in a commit.
            n = 0
            while n < 40 or (chaos.cuts < 5 and n < 1000):
                n += 1
                chaos.cut_at(n % 14 + 1)
                time.sleep(0.04)
            chaos.swallow()
            wait_until(lambda: chaos.swallowed > 0, 20)  # it may be between two attempts to connect
            time.sleep(0.3)
            chaos.heal()

        under_load(database.url.replace(":%d/" % database.port, ":%d/" % chaos.port), lose)
        assert chaos.cuts >= 5 and chaos.swallowed > 0
    finally:
        chaos.stop()


def test_a_database_that_is_away_is_told_quickly_and_found_again(database):
    with folder() as a, Server(a, store=database.url) as server, server.client() as c:
        scope = "away-%d" % time.time_ns()
        assert c("BEGIN", scope, "1")[0] == "started"
        database.kill()
        try:
            words = []
            start = time.monotonic()
            for i in range(20):
                words.append(getattr(c("BEGIN", scope, "away-%d" % i), "word", "?"))
            assert time.monotonic() - start < 20, words
            assert set(words) <= {"UNAVAILABLE", "LOST"} and "UNAVAILABLE" in words, words
        finally:
            database.start()

        def is_back():
            answer = c("BEGIN", scope, "back-%d" % time.time_ns())
            return isinstance(answer, list) and answer[0] == "started"

        assert wait_until(is_back)


# ---- somebody's open transaction ----------------------------------------------


class Session:
    """A client of the database with a transaction open."""

    def __init__(self, database):
        if isinstance(database, servers.Postgres):
            argv = [database.bin + "psql", "-qAt", database.url]
        else:
            argv = ["mariadb", "--no-defaults", "-uroot", "-S", database.socket, "-N", "-B", "-n", "shop"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, bufsize=1)

    def __call__(self, sql):
        """Run it and read up to the marker that follows it."""
        self.process.stdin.write(sql + "; select 'marker';\n")
        self.process.stdin.flush()
        lines = []
        while True:
            line = self.process.stdout.readline()
            assert line, lines
            if line.strip() == "marker":
                return "\n".join(lines)
            lines.append(line.strip())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)


def claim(database, scope, key):
    if isinstance(database, servers.Postgres):
        return "begin; select verdict from idem.begin('%s', '%s')" % (scope, key)
    return ("start transaction; call idem_begin('%s', '%s', null, null, null, null, @v, @f, @k, @r); select @v"
            % (scope, key))


@pytest.mark.parametrize("how", ["claimed", "inserted", "held"])
def test_a_key_in_somebodys_transaction_is_busy_at_once_and_stalls_nobody(database, how):
    table = "idem.idem_record" if isinstance(database, servers.Postgres) else "idem_record"
    scope = "locked-%d" % time.time_ns()
    with folder() as a, Server(a, store=patient(database.url)) as server, server.client() as c, Session(database) as session:
        if how == "claimed":  # through idem's own SQL
            assert session(claim(database, scope, "x")).endswith("started")
        else:
            session(claim(database, scope, "x"))
            session("commit")
            session("start transaction")
            if how == "held":  # a service that joined
                session("select 1 from %s where key_hash = %s for update" % (table, key_of(database, scope, "x")))
            else:  # a row of somebody who knows nothing of idem's locks
                session("delete from %s where scope = '%s'" % (table, scope))
                session("commit")
                session("set session transaction isolation level read committed" if table == "idem_record" else
                        "select 1")  # INSERT … SELECT would lock every gap that it reads
                session("start transaction")
                session("insert into %s select %s, type, 2, mode, kind, 0, attempt, fence, rev, created, updated, "
                        "lease_until + 60000, expires, nonce, null, '%s', id, subject, result from %s limit 1"
                        % (table, key_of(database, scope, "x"), scope, table))
        times = []
        for i in range(5):
            start = time.monotonic()
            c.send("BEGIN", scope, "x")
            c.send("BEGIN", scope, "free-%d" % i)
            answers = c.read(), c.read()
            times.append(time.monotonic() - start)
            assert answers[0][0] == "busy" and answers[1][0] == "started", answers
        assert sorted(times)[2] < 1.0, times
        session("rollback")
        if how == "inserted":
            assert c("BEGIN", scope, "x")[0] == "started"


def test_a_write_to_a_row_that_somebody_holds_is_busy_at_once_and_stalls_nobody(database):
    table = "idem.idem_record" if isinstance(database, servers.Postgres) else "idem_record"
    scope = "held-%d" % time.time_ns()
    with folder() as a, Server(a, store=patient(database.url)) as server, server.client() as c, Session(database) as session:
        fences = {i: c("BEGIN", scope, "x%d" % i)[1] for i in range(6)}
        session("start transaction")
        session("select 1 from %s where key_hash = %s for update" % (table, key_of(database, scope, "x0")))
        times = []
        for i in range(1, 6):
            start = time.monotonic()
            c.send("FINISH", scope, "x0", fences[0], "SUCCEEDED", "a")
            c.send("FINISH", scope, "x%d" % i, fences[i], "SUCCEEDED", "b")
            c.send("BEGIN", scope, "new-%d" % i)
            answers = [c.read()[0] for _ in range(3)]
            times.append(time.monotonic() - start)
            assert answers == ["busy", "ok", "started"], answers
        assert sorted(times)[2] < 1.0, times
        session("rollback")
        assert c("FINISH", scope, "x0", fences[0], "SUCCEEDED", "a")[0] == "ok"


def test_mariadb_is_written_by_one_statement_and_no_transaction_stays_open(mariadb):
    def count(name):
        return int(mariadb.sql("show global status like 'Com_%s'" % name).split()[1])

    def nobody_uses_the_table(tries=4):  # a sweep may, for a moment
        try:
            mariadb.sql("set lock_wait_timeout = 0; alter table idem_record comment = '%d'" % time.time_ns())
        except AssertionError:
            if tries == 1:
                raise
            nobody_uses_the_table(tries - 1)

    idem("store", "init", mariadb.url)
    scope = "open-%d" % time.time_ns()
    with folder() as a, Server(a, store=patient(mariadb.url)) as server, server.client() as c:
        before = count("insert"), count("stmt_execute")
        fence = c("BEGIN", scope, "x")[1]
        assert c("FINISH", scope, "x", fence, "SUCCEEDED", "a")[0] == "ok"
        assert (count("insert"), count("stmt_execute")) == (before[0] + 2, before[1] + 2)
        for command in (("BEGIN", scope, "y"), ("GET", scope, "x"), ("SCAN", "0", "SCOPE", scope)):
            c(*command)
            nobody_uses_the_table()
        time.sleep(1.2)  # two sweeps
        nobody_uses_the_table()


def key_of(database, scope, key):
    if isinstance(database, servers.Postgres):
        return "idem.key(1, '%s', '%s')" % (scope, key)
    return "idem_key(1, '%s', '%s')" % (scope, key)


def run_sql(url, text):
    """As a service would, on any of the three."""
    if url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(url[len("sqlite:"):], timeout=20)) as db:
            db.execute(text)
            db.commit()
        return
    tool = ["psql", "-q", "-v", "ON_ERROR_STOP=1", url, "-c", text]
    if url.startswith("mysql"):
        user, password, host, port, database = re.fullmatch(r"mysql://(.*):(.*)@(.*):(.*)/(.*)", url).groups()
        tool = ["mariadb", "--no-defaults", "-u" + user, "-p" + password, "-h" + host, "-P" + port, database, "-e", text]
    done = subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("column, value", [("expires", 2 ** 53), ("expires", 2 ** 63 - 1), ("updated", 10 ** 18), ("created", -1),
                                           ("lease_until", 2 ** 63 - 1), ("attempt", 2 ** 32), ("fence", 2 ** 53)])
def test_a_number_out_of_range_makes_one_record_corrupt_and_no_other(url, column, value):
    scope = "range-%d" % time.time_ns()
    with folder() as a, Server(a, store=patient(url)) as server, server.client() as c:
        for key in ("bad", "good"):
            fence = c("BEGIN", scope, key)[1]
            assert c("FINISH", scope, key, fence, "SUCCEEDED", "paid")[0] == "ok"
        run_sql(url, "update %s set %s = %d where scope = %s and id = %s" % (
            ("idem.idem_record" if url.startswith("postgres") else "idem_record", column, value) +
            (("'%s'" % scope, "'bad'") if not url.startswith("sqlite:") else ("x'%s'" % scope.encode().hex(), "x'626164'"))))
        for turn in range(4):  # in one batch with others, some new, some there
            keys = ["new-%d-%d" % (turn, i) for i in range(20)] + ["good", "bad"] + ["late-%d-%d" % (turn, i) for i in range(20)]
            c.raw(b"".join(encode("BEGIN", scope, key) for key in keys))
            answers = {key: c.read() for key in keys}
            wrong = {key: answer for key, answer in answers.items() if key != "bad" and (
                isinstance(answer, Exception) or answer[0] != ("replay" if key == "good" else "started"))}
            assert not wrong, wrong
            assert answers["bad"].word == "CORRUPT" and "key_hash" in str(answers["bad"]), answers["bad"]
        assert c("GET", scope, "bad").word == "CORRUPT"
        run_sql(url, "update %s set %s = %d where %s = %d" % (
            "idem.idem_record" if url.startswith("postgres") else "idem_record", column, 1, column, value))


# ---- errors that PostgreSQL reports -----------------------------------------


class Failing:
    """A database in which a write of an id does what the id says: raise-53100, warning-1, end-1."""
    trigger = """
        create function public.fail() returns trigger language plpgsql as $$
        declare word text := convert_from(new.id, 'UTF8');
        begin
            if word like 'raise-%' then raise exception E'no luck\\nat all' using errcode = right(word, 5);
            elsif word like 'info-%' then raise info 'no luck';
            elsif word like 'warning-%' then raise warning 'no luck';
            elsif word like 'end-%' then perform pg_terminate_backend(pg_backend_pid());
            elsif word like 'apply-%' then perform 1 / (current_setting('synchronous_commit') = 'remote_apply')::int;
            end if;
            return new;
        end $$;
        create trigger fail before insert or update on idem.idem_record for each row execute function public.fail()"""

    def __init__(self, postgres):
        self.server = postgres
        postgres.sql("create database failing")
        self.url = patient(postgres.url.replace("/postgres", "/failing"))
        idem("store", "init", self.url)
        self.sql(self.trigger)

    def sql(self, text):
        url = self.server.url.replace("/postgres", "/failing")
        return subprocess.run([self.server.bin + "psql", "-qAt", "-v", "ON_ERROR_STOP=1", url, "-c", text], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.strip()

    def ids(self, scope):
        """The ids of the records that are there."""
        return set(self.sql("select convert_from(id, 'UTF8') from idem.idem_record where scope = '%s'" % scope).split())


@pytest.fixture(scope="module")
def failing(postgres):
    return Failing(postgres)


@pytest.mark.parametrize("state,code,text", [
    ("53100", 23, "idem: postgres: no luck"), ("XX000", 20, "idem: postgres: no luck"), ("P0001", 20, "idem: postgres: no luck"),
    ("42501", 20, "idem: postgres: no luck; the grants are in docs/sql/README.md, Rights"),
    ("3F000", 20, "idem: postgres: table idem.idem_record is missing; run idem store init URL, or sql/postgres.sql by hand")])
def test_an_error_of_postgres_becomes_the_status_that_fits_it(failing, state, code, text):
    assert without_advice(idem("begin", state, "raise-" + state, "--store", failing.url, code=code)) == text
    assert "started" in idem("begin", state, "good", "--store", failing.url)
    assert failing.ids(state) == {"good"}


def test_an_error_of_mariadb_has_one_line(mariadb):
    idem("store", "init", mariadb.url)
    run_sql(mariadb.url, "create trigger fail before insert on idem_record for each row "
            "signal sqlstate '45000' set message_text = 'no luck\nat all'")
    try:
        assert without_advice(idem("begin", "lines", "1", "--store", patient(mariadb.url), code=20)) == "idem: mysql: no luck (1644)"
    finally:
        run_sql(mariadb.url, "drop trigger fail")


def test_a_replica_of_mariadb_is_warned_of():
    warning = "1 program reads the binary log, as replicas do: a failover to a replica can lose the last claims"
    primary, replica = (servers.MariaDB("server-id=%d" % i, "log-bin", "sync-binlog=1", "binlog-format=ROW",
                                        "log-bin-trust-function-creators=1") for i in (1, 2))
    try:
        # No right that an account of idem does not have otherwise.
        primary.sql("create user plain@'127.0.0.1' identified by 'secret'; grant all on shop.* to plain@'127.0.0.1'; "
                    "grant replication slave on *.* to idem@'127.0.0.1'")
        plain = primary.url.replace("idem:", "plain:")
        idem("store", "init", plain)
        assert "warning" not in idem("store", "check", plain)
        with folder() as where, Server(where, store=plain) as server:
            assert "warning" not in server.output()
            replica.sql("change master to master_host='127.0.0.1', master_port=%d, master_user='idem', master_password='secret', "
                        "master_use_gtid=slave_pos; set global gtid_slave_pos = '%s'; start slave"
                        % (primary.port, primary.sql("select @@gtid_current_pos")))
            assert wait_until(lambda: warning in idem("store", "check", plain), 30)
            # A running server looks again every 10 s.
            assert wait_until(lambda: warning in server.output(), 60), server.output()
            with folder() as other, Server(other, store=plain) as second:
                assert second.output().count(warning) == 1
    finally:
        primary.stop()
        replica.stop()


@pytest.mark.parametrize("level", ["info", "warning"])
def test_a_message_of_a_trigger_is_no_error(failing, level):
    """A warning may mean that the wait for a standby was cancelled, so the commit is confirmed."""
    told = idem("begin", level, level + "-1", "--store", failing.url)
    assert "started" in told and "no luck" not in told
    assert failing.ids(level) == {level + "-1"}


@pytest.mark.parametrize("state", ["53200", "40P01", "55P03"])
def test_a_claim_that_cannot_be_locked_does_not_take_its_batch_along(failing, state):
    with folder() as where, Server(where, store=failing.url) as server, server.client() as c:
        good, bad = ["%d" % i for i in range(40)], "raise-" + state
        keys = good[:20] + [bad] + good[20:]
        c.raw(b"".join(encode("BEGIN", "lock-" + state, key) for key in keys))
        answers = {key: c.read() for key in keys}
        assert answers.pop(bad)[0] == "busy"  # as if somebody held its row
        assert {answer[0] for answer in answers.values()} == {"started"}, answers
        assert failing.ids("lock-" + state) == set(good)


def test_what_a_batch_that_was_halved_says_of_each_claim_is_true(failing):
    """One claim cannot be locked, so that its batch is halved; another makes the transaction of its half fail."""
    with folder() as where, Server(where, store=failing.url) as server, server.client() as c:
        for turn in range(4):
            scope = "halved-%d" % turn
            keys = ["%d" % i for i in range(24)] + ["raise-55P03", "raise-XX000"]
            c.raw(b"".join(encode("BEGIN", scope, key) for key in keys))
            answers = {key: c.read() for key in keys}
            words = {key: answer.word if isinstance(answer, Exception) else answer[0] for key, answer in answers.items()}
            assert words.pop("raise-XX000") == "UNAVAILABLE" and words.pop("raise-55P03") in ("busy", "UNAVAILABLE")
            assert set(words.values()) <= {"started", "UNAVAILABLE"}, words
            assert failing.ids(scope) == {key for key, word in words.items() if word == "started"}


def test_a_session_that_ends_in_the_middle_of_a_batch_is_lost_and_nothing_of_it_stored(failing):
    told = idem("begin", "ended", "end-1", "--store", failing.url, code=21)
    assert told.startswith("idem: cannot tell whether it was stored: postgres: the connection was lost")
    assert "started" in idem("begin", "ended", "good", "--store", failing.url)
    assert failing.ids("ended") == {"good"}


def test_a_result_for_a_row_that_somebody_deleted_is_stale(failing):
    with folder() as where, Server(where, store=failing.url) as server, server.client() as c:
        fence = c("BEGIN", "gone", "1")[1]
        failing.sql("delete from idem.idem_record where scope = 'gone'")
        assert c("FINISH", "gone", "1", fence, "SUCCEEDED", "done")[0] == "stale"
        assert failing.ids("gone") == set()


def test_a_search_that_meets_a_damaged_row_says_so(failing):
    assert "started" in idem("begin", "damaged", "1", "--store", failing.url)
    failing.sql("update idem.idem_record set type = 300 where scope = 'damaged'")
    told = idem("find", "nothing", "--store", failing.url, code=16)  # it reads only what has this id
    assert "no record with this id" in told
    assert re.fullmatch("idem: damaged row in idem_record: a number is out of range; key_hash [0-9a-f]{64}\n",
                        idem("find", "1", "--store", failing.url, code=25))
    failing.sql("delete from idem.idem_record where scope = 'damaged'")


@pytest.mark.parametrize("ends", [False, True], ids=["is-told-nonsense", "ends"])
def test_a_duplicate_hears_of_the_result_whatever_happens_to_its_session_for_waiting(failing, ends):
    scope = "unheard-%d" % ends
    waits = "pid from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and " \
            "database = (select oid from pg_database where datname = current_database())"
    with engines(failing.url) as (one, two):
        owner, waiter = one.client(), two.client()
        fence = owner("BEGIN", scope, "1")[1]
        waiter.send("BEGIN", scope, "1", "WAIT", 60000)
        assert wait_until(lambda: failing.sql("select " + waits))
        if ends:
            failing.sql("select pg_terminate_backend(pid) from (select %s) w" % waits)
        else:
            failing.sql("select pg_notify('idem_wake', word) from unnest(array['', 'noise', repeat('ab', 33), repeat('AB', 32), repeat('00', 32)]) word")
        assert owner("FINISH", scope, "1", fence, "SUCCEEDED", "done")[0] == "ok"
        assert waiter.read()[4] == "done"


def test_a_synchronous_commit_that_is_stronger_than_on_stays_as_it_is(failing):
    try:
        failing.sql("alter database failing set synchronous_commit = remote_apply")
        assert "started" in idem("begin", "stronger", "apply-1", "--store", failing.url)
        failing.sql("alter database failing set synchronous_commit = local")
        assert without_advice(idem("begin", "stronger", "apply-2", "--store", failing.url, code=20)) == "idem: postgres: division by zero"
    finally:
        failing.sql("alter database failing reset synchronous_commit")


def test_setting_up_postgres_where_that_is_impossible_says_what_is_missing(failing):
    failing.sql("create role guest login")
    url = failing.url.replace("idem:secret", "guest")
    told = idem("store", "init", url, code=20)
    assert told.startswith("idem: postgres: permission denied for ") and told.endswith("; the grants are in docs/sql/README.md, Rights\n"), told
    assert 'database "nowhere" does not exist; create the database first, or correct its name' in idem(
        "store", "init", url.replace("/failing", "/nowhere"), code=20)
    assert "timeout_ms is a number from 10 to 600000" in idem("store", "init", url.replace("=20000", "=5"), code=2)


# ---- settings and set-up ------------------------------------------------------


def test_unsafe_settings_of_postgres_are_refused_by_name(postgres):
    idem("store", "init", postgres.url)
    for setting in ("fsync", "full_page_writes"):
        postgres.sql("alter system set %s = off" % setting)
        postgres.sql("select pg_reload_conf()")
        try:
            assert wait_until(lambda: postgres.sql("show " + setting) == "off")
            text = idem("store", "check", postgres.url, code=None)
            assert setting in text and "unsafe=" + setting in text, text
            assert "is ready to use" in idem("store", "check", postgres.url + "?unsafe=" + setting)
        finally:
            postgres.sql("alter system reset " + setting)
            postgres.sql("select pg_reload_conf()")
            assert wait_until(lambda: postgres.sql("show " + setting) == "on")
    assert "is ready to use" in idem("store", "check", postgres.url)


@pytest.mark.parametrize("level", ["off", "local", "remote_write"])
def test_a_weak_synchronous_commit_is_made_on_in_our_session(postgres, level):
    """tests/system/test_stores_standby.py shows that it works."""
    idem("store", "init", postgres.url)
    postgres.sql("alter system set synchronous_commit = " + level)
    postgres.sql("select pg_reload_conf()")
    try:
        assert wait_until(lambda: postgres.sql("show synchronous_commit") == level)
        assert "is ready to use" in idem("store", "check", postgres.url)
        assert "is ready to use" in idem("store", "check", postgres.url + "?unsafe=synchronous_commit")
    finally:
        postgres.sql("alter system reset synchronous_commit")
        postgres.sql("select pg_reload_conf()")
        assert wait_until(lambda: postgres.sql("show synchronous_commit") == "on")


def test_a_standby_of_postgres_is_refused(postgres):
    idem("store", "init", postgres.url)
    standby = servers.Server("standby", "postgres")
    try:
        standby.tool(postgres.bin + "pg_basebackup", "-h", "127.0.0.1", "-p", str(postgres.port), "-U", "idem", "-D",
                     standby.folder + "/data", "-R", "-c", "fast", "-X", "stream")
        standby.spawn(postgres.bin + "postgres", "-D", standby.folder + "/data", "-c", "port=%d" % standby.port, "-c",
                      "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + standby.folder, "-c",
                      "max_connections=120")
        url = postgres.url.replace(str(postgres.port), str(standby.port))
        assert wait_until(lambda: "standby" in idem("store", "check", url, code=None)), idem(
            "store", "check", url, code=None)
    finally:
        standby.stop_signal = signal.SIGINT
        standby.stop()


def test_unsafe_settings_of_mariadb_are_refused_by_name(mariadb):
    idem("store", "init", mariadb.url)
    for setting, bad, good, word in (("innodb_flush_log_at_trx_commit", "2", "1", "flush"),
                                     ("read_only", "1", "0", None)):
        mariadb.sql("set global %s = %s" % (setting, bad))
        try:
            text = idem("store", "check", mariadb.url, code=None)
            assert setting in text or "read-only" in text, text
            if word:
                assert "is ready to use" in idem("store", "check", mariadb.url + "?unsafe=" + word)
        finally:
            mariadb.sql("set global %s = %s" % (setting, good))
    mariadb.sql("create table aside like idem_record; rename table idem_record to kept, aside to idem_record; "
                "alter table idem_record engine = MyISAM")
    try:
        assert "MyISAM" in idem("store", "check", mariadb.url, code=None)
    finally:
        mariadb.sql("drop table idem_record; rename table kept to idem_record")
    assert "is ready to use" in idem("store", "check", mariadb.url)


def test_a_binary_log_that_writes_statements_is_refused():
    server = servers.MariaDB("log-bin=b", "sync-binlog=1", "log-bin-trust-function-creators=1")
    try:
        idem("store", "init", server.url)
        assert "started" in idem("begin", "binlog", "x", "--store", server.url)
        deletes = "show global status like 'Com_delete'"
        before = server.sql(deletes)
        assert "executing" in idem("get", "binlog", "x", "--store", server.url)
        assert server.sql(deletes) == before, "what can be seen is on the disk: nothing to confirm"
        server.sql("set global binlog_format = STATEMENT")
        assert "binlog_format is STATEMENT" in idem("store", "check", server.url, code=None)
        server.sql("set global binlog_format = ROW, global sync_binlog = 0")
        assert "sync_binlog is not 1" in idem("store", "check", server.url, code=None)
        assert "is ready to use" in idem("store", "check", server.url + "?unsafe=binlog")
    finally:
        server.stop()


class StallingMariaDB(servers.MariaDB):
    """Its redo log hangs while the file .stall exists: stall_log.c."""

    def run_as(self):
        self.stall, tool = os.path.join(self.folder, "stall"), os.path.join(self.folder, "stall_log.so")
        if not os.path.exists(tool):  # the server's user may not be able to read the build folder
            subprocess.run(["make", "-s", "build/tests/stall_log.so"], cwd=ROOT, check=True)
            shutil.copy(os.path.join(ROOT, "build/tests/stall_log.so"), tool)
            os.chmod(tool, 0o755)
        how = super().run_as()
        return {**how, "env": {**how["env"], "LD_PRELOAD": tool, "STALL_LOG": self.stall}}

    def hang(self):
        open(self.stall, "w").close()


def test_mariadb_tells_nothing_that_is_not_on_its_disk():
    """Without a binary log a commit can be seen before the redo log is flushed. While the disk hangs, what was found is not told
    by anybody, also beside a new claim in one batch; a crash may lose it."""
    database = StallingMariaDB("innodb-flush-log-at-timeout=2700")
    url = database.url + "?timeout_ms=1000"
    try:
        idem("store", "init", url)
        writes = "select sum(variable_value) from information_schema.global_status where variable_name in ('com_insert', 'com_delete')"
        with engines(url) as (one, two), one.client() as a, two.client() as b, two.client() as again:
            fence = a("BEGIN", "told", "done")[1]
            assert b("BEGIN", "told", "warm")[0] == "started"
            before = int(database.sql(writes))
            assert b("GET", "told", "none")[0] == "absent" and int(database.sql(writes)) == before, "nothing was found"
            assert b("GET", "told", "done")[0] == "record" and int(database.sql(writes)) == before + 2, "one confirm"
            time.sleep(1.2)  # the log is written in the background too, and a write that waits already holds up nobody
            database.hang()
            a.send("FINISH", "told", "done", fence, "SUCCEEDED", "paid")
            wait_until(lambda: database.sql("select state from idem_record where id = 'done'") == "3", 20)
            b.raw(encode("BEGIN", "told", "done") + encode("BEGIN", "told", "beside"))
            again.send("GET", "told", "done")
            others = [subprocess.Popen([IDEM, *words, "--store", url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                      for words in (["begin", "told", "claim"], ["scan", "--scope", "told"])]
            time.sleep(3.5)  # time enough to lose the reply, send again and find it
            database.kill()
            told = [a.read(), b.read(), b.read(), again.read(), *[(other.wait(60), other.stdout.read()) for other in others]]
            assert {getattr(answer, "word", str(answer)) for answer in told[:4]} <= {"LOST", "UNAVAILABLE"}, told
            assert told[4][0] != 0 and "started" not in told[4][1] and "paid" not in told[5][1] and told[5][0] != 0, told
        os.remove(database.stall)
        database.start()
        assert "started" in idem("begin", "told", "claim", "--store", url)
        assert "started" in idem("begin", "told", "beside", "--store", url)
        assert "executing" in idem("get", "told", "done", "--store", url)
    finally:
        database.stop()


@pytest.mark.parametrize("verb", ["UNLOCK", "FORGET"])
def test_a_commit_that_was_refused_but_made_is_not_done_again(mariadb, verb):
    """Galera may report a commit as refused that it has made. Before the rows are read again, another node writes."""
    idem("store", "init", mariadb.url)
    subprocess.run(["make", "-s", "build/tests/refuse_commit.so"], cwd=ROOT, check=True)
    with folder() as where, engines(mariadb.url, 1) as (other,):
        flag = os.path.join(where, "flag")
        env = {"LD_PRELOAD": os.path.join(ROOT, "build/tests/refuse_commit.so"), "REFUSE_COMMIT": flag}
        with Server(where, store=patient(mariadb.url), env=env) as server, server.client() as a, other.client() as b:
            take = ("LOCK", "refused", "b", 60000) if verb == "UNLOCK" else ("BEGIN", "refused", verb)
            assert b("BEGIN", "refused", "guess " + verb)[0] == "started"
            assert a("BEGIN", "refused", "guess " + verb)[0] == "busy"  # a wrong guess, so for a while there are no more
            fence = a(*["a" if word == "b" else word for word in take])[1]
            open(flag, "w").close()
            a.send(verb, *(("refused", fence) if verb == "UNLOCK" else take[1:]))
            assert wait_until(lambda: os.path.exists(flag + ".made"), 20)
            again = b(*take)
            assert again[0] == "started" and again[1] > fence
            os.remove(flag + ".made")
            told = a.read()
            assert getattr(told, "word", told) == "LOST", told
            assert a(*["c" if word == "b" else word for word in take])[0] == "busy", "what was started since goes on"


def test_a_missing_table_says_how_to_make_it_and_making_it_twice_is_fine(postgres, mariadb):
    postgres.sql("create database fresh")
    mariadb.sql("create database fresh; grant all on fresh.* to idem@'127.0.0.1'")
    for url in (postgres.url.replace("/postgres", "/fresh").replace("postgres:", "postgres:", 1),
                mariadb.url.replace("/shop", "/fresh")):
        assert "idem store init" in idem("store", "check", url, code=None)
        for _ in range(2):
            assert "is ready" in idem("store", "init", url)
        assert "is ready to use" in idem("store", "check", url)


def test_a_sqlite_file_of_a_newer_version_is_refused():
    with tempfile.TemporaryDirectory() as where:
        file = os.path.join(where, "db")
        assert "is ready" in idem("store", "init", "sqlite:" + file)
        assert "is ready to use" in idem("store", "check", "sqlite:" + file)
        subprocess.run(["sqlite3", file, "update idem_version set version = 2"], check=True)
        assert "newer" in idem("store", "check", "sqlite:" + file, code=None)


def test_a_column_of_somebodys_own_is_refused_by_postgres(postgres):
    postgres.sql("create database wide")
    url = postgres.url.replace("/postgres", "/wide")
    idem("store", "init", url)
    for change, good in (("add shop text", False), ("drop shop", True)):
        subprocess.run([postgres.bin + "psql", "-q", url, "-c", "alter table idem.idem_record " + change], check=True)
        assert ("is ready to use" in idem("store", "check", url, code=None)) == good
    with folder() as home, Server(home, store=patient(url)) as server, server.client() as c:
        assert c("BEGIN", "wide", "x")[0] == "started"  # a dropped column leaves a hole in the row
        # A table that is made anew under a server is found without a restart.
        subprocess.run([postgres.bin + "psql", "-q", url, "-c", "drop table idem.idem_record cascade"], check=True,
                       stderr=subprocess.DEVNULL)
        idem("store", "init", url)
        assert wait_until(lambda: getattr(c("BEGIN", "wide", "y%d" % time.time_ns()), "word", "ok") == "ok")


def test_a_sweep_of_postgres_reads_only_what_has_expired(postgres):
    postgres.sql("create database swept")
    url = postgres.url.replace("/postgres", "/swept")
    idem("store", "init", url)

    def sql(text):
        return subprocess.run([postgres.bin + "psql", "-qAt", url, "-c", text], check=True, stdout=subprocess.PIPE,
                              text=True).stdout.strip()

    with folder() as home, Server(home, store=patient(url)) as server, server.client() as c:
        for i in range(300):
            c.send("SETTLE", "live", i)
        for i in range(300):
            assert c.read()[0] == "settled"
        time.sleep(1.5)  # some sweeps
        sql("select idem.sweep()")
    # What ended has reported; nothing has expired, so the index was asked and had nothing to give.
    counts = "select idx_scan > 0, idx_tup_read from pg_stat_user_indexes where indexrelname = 'idem_record_sweep'"
    assert wait_until(lambda: sql(counts).startswith("t"))
    time.sleep(1)
    assert sql(counts) == "t|0"


def test_a_plan_that_was_made_for_an_empty_table_is_made_again(postgres):
    """A table with one row that was vacuumed: the server plans to read all of it for every batch, also when it has grown."""
    postgres.sql("create database planned")
    url = postgres.url.replace("/postgres", "/planned")
    idem("store", "init", url)

    def sql(text):
        return subprocess.run([postgres.bin + "psql", "-qAt", url, "-c", text], check=True, stdout=subprocess.PIPE,
                              text=True).stdout.strip()

    def pairs(c, name, count):
        for i in range(count):
            c.send("BEGIN", name, i)
        fences = [c.read()[1] for _ in range(count)]
        for i, fence in enumerate(fences):
            c.send("FINISH", name, i, fence, "SUCCEEDED", "r")
        assert all(c.read()[0] == "ok" for _ in range(count))

    read = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'idem_record_pkey'"
    sql("alter table idem.idem_record set (autovacuum_enabled = off)")
    with folder() as home, Server(home, store=patient(url)) as server, server.client() as c:
        pairs(c, "first", 1)
    sql("vacuum analyze idem.idem_record")
    with folder() as home, Server(home, store=patient(url)) as server, server.client() as c:
        for i in range(20):
            pairs(c, "grows-%d" % i, 200)
            time.sleep(0.1)
        time.sleep(2)  # the server counts with a delay
        before = int(sql(read))
        for i in range(10):
            pairs(c, "grown-%d" % i, 10)
        time.sleep(2)
        assert int(sql(read)) - before < 4000, "100 pairs read %d rows of 4,000" % (int(sql(read)) - before)


def test_an_id_is_found_by_its_index(postgres):
    postgres.sql("create database found")
    url = postgres.url.replace("/postgres", "/found")
    idem("store", "init", url)

    def sql(text):
        return subprocess.run([postgres.bin + "psql", "-qAt", url, "-c", text], check=True, stdout=subprocess.PIPE,
                              text=True).stdout.strip()

    with folder() as home, Server(home, store=patient(url)) as server, server.client() as c:
        for i in range(600):
            c.send("SETTLE", "scope-%d" % (i % 3), "order-%d" % (i // 3))
        for i in range(600):
            assert c.read()[0] == "settled"
        found = c("SCAN", "0", "ID", "order-7", "COUNT", "1000")
        assert found[1] == "0" and sorted(fields[3] for fields in found[2:]) == ["scope-0", "scope-1", "scope-2"]
    used = "select idx_scan from pg_stat_user_indexes where indexrelname = 'idem_record_id'"
    assert wait_until(lambda: sql(used) != "0"), "the statement did not use the index"


def test_a_table_in_partitions_holds_the_contract(postgres):
    with open(os.path.join(ROOT, "sql/postgres.sql")) as f:
        script = f.read()
    start = script.index("create table if not exists idem.idem_record (")
    table = script[start:script.index(");", start)] + ") partition by hash (key_hash);"
    postgres.sql("create database parts")
    url = postgres.url.replace("/postgres", "/parts")
    parts = "".join("create table idem.idem_record_%d partition of idem.idem_record for values with (modulus 4, "
                    "remainder %d);" % (i, i) for i in range(4))
    subprocess.run([postgres.bin + "psql", "-q", "-v", "ON_ERROR_STOP=1", url, "-c", "create schema idem;" + table + parts],
                   check=True)
    idem("store", "init", url)
    program("contract_test", IDEM_TEST_STORE=patient(url))


def test_over_tls_only_the_right_authority_is_trusted():
    with folder() as where:
        (ca, cert, key), (other, _, _) = servers.authority(where, "ours"), servers.authority(where, "theirs")
        os.chmod(where, 0o755)
        os.chmod(key, 0o644)  # MariaDB runs as another user; PostgreSQL wants a file of its own, below
        maria = servers.MariaDB("ssl-cert=" + cert, "ssl-key=" + key, "require-secure-transport=on")
        post = servers.Postgres()
        try:
            post.process.terminate()
            post.process.wait()
            for name, file in (("server.crt", cert), ("server.key", key)):
                shutil.copy(file, os.path.join(post.data, name))
                os.chmod(os.path.join(post.data, name), 0o600)
                shutil.chown(os.path.join(post.data, name), os.stat(post.data).st_uid)
            with open(os.path.join(post.data, "pg_hba.conf"), "w") as f:
                f.write("hostssl all all 127.0.0.1/32 trust\n")
            post.settings = ("ssl=on",)
            post.start()
            name = post.url.replace("127.0.0.1", "localhost")
            good = [post.url + "?sslmode=verify-full&sslrootcert=" + ca, post.url + "?sslmode=require",
                    maria.url + "?ca=" + ca, maria.url + "?tls=1"]
            bad = [post.url + "?sslmode=verify-full&sslrootcert=" + other, post.url + "?sslmode=disable",
                   name + "?sslmode=verify-full&sslrootcert=" + ca,  # the certificate is for the address
                   maria.url + "?ca=" + other, maria.url, maria.url + "?ca=/no/such/file"]
            for url in good:
                idem("store", "init", url)
                with folder() as home, Server(home, store=patient(url)) as server, server.client() as c:
                    assert c("BEGIN", "tls", url)[0] == "started"
            for url in bad:
                text = idem("store", "check", url, code=None)
                assert "is ready to use" not in text and "secret" not in text, (url, text)
                assert re.search("certificate|SSL|TLS|encryption|insecure transport|Access denied", text), (url, text)
        finally:
            maria.stop()
            post.stop()


def test_no_password_is_ever_shown(database):
    wrong = database.url.replace("idem:secret@", "nobody:hunter2@")
    if isinstance(database, servers.Postgres):
        wrong = wrong.replace("/postgres", "/no-such-database")
    for command in ("check", "init"):
        for url in (wrong, wrong.replace(":%d" % database.port, ":1"), wrong + "?odd=%zz"):
            text = idem("store", command, url, code=None)
            assert "hunter2" not in text and text, text
    options = "?user=idem&password=secret" if isinstance(database, servers.Postgres) else ""
    url = database.url.replace("idem:secret@", "") + options if options else database.url
    with folder() as where, Server(where, store=url) as server, server.client() as c:
        assert c("BEGIN", "shown-%d" % time.time_ns(), "x")[0] == "started"
        with open("/proc/%d/cmdline" % server.pid) as f:  # which every user may read
            line = f.read()
        assert "--store" in line and "secret" not in line, line
        assert "secret" not in server.output()


@pytest.mark.parametrize("mode", ["", "?mode=wal"])
def test_sqlite_survives_a_server_that_is_killed_at_any_moment(mode):
    random = dice()
    with tempfile.TemporaryDirectory() as where, folder() as home:
        url = "sqlite:" + os.path.join(where, "db") + mode
        server = [Server(home, store=url)]

        def strike():
            for _ in range(200 if SOAK else 10):
                time.sleep(random.uniform(0.02, 0.2))
                server[0].kill()
                server[0] = Server(home, store=url)

        try:
            crowd = Crowd(server).run(OPS, SECONDS, meanwhile=strike)
            crowd.check()
            assert crowd.counts()["LOST"] > 0, crowd.counts()  # some were really asking
        finally:
            server[0].stop()


def test_processes_that_open_a_new_sqlite_file_at_once_all_get_their_tables():
    for _ in range(8):
        with folder() as where:
            url = "sqlite:" + os.path.join(where, "db")
            crowd = [subprocess.Popen([IDEM, "begin", "s", "x%d" % i, "--wait", "30s", "--store", url], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True) for i in range(4)]
            said = [one.communicate(timeout=60)[0] for one in crowd]
            assert all("started" in text for text in said), said


def test_a_sqlite_file_that_was_set_up_by_half_is_completed():
    with open(os.path.join(ROOT, "sql/sqlite.sql")) as f:
        first = re.search(r"^create table.*?;", f.read(), re.M | re.S).group(0)
    for rest in ("", "create table idem_version (version integer not null)"):
        with folder() as where:
            file = os.path.join(where, "db")
            subprocess.run(["sqlite3", file, first + rest], check=True)
            assert "started" in idem("begin", "s", "x", "--store", "sqlite:" + file)
            assert subprocess.run(["sqlite3", file, "select version from idem_version"], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout.strip() == "1"


def test_sqlite_held_by_another_process_is_busy_and_replays_go_on():
    with folder() as where:
        url = "sqlite:" + os.path.join(where, "db")
        with Server(where, store=url) as server, server.client() as c:
            fence = c("BEGIN", "s", "done")[1]
            assert c("FINISH", "s", "done", fence, "SUCCEEDED", "r")[0] == "ok"
            holder = subprocess.Popen(["/usr/bin/python3", "-c", HOLD_SQLITE, os.path.join(where, "db")],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                assert holder.stdout.readline().strip() == "held"
                start = time.monotonic()
                assert c("BEGIN", "s", "new")[0] == "busy"
                assert c("BEGIN", "s", "done")[4] == "r"
                assert time.monotonic() - start < 10
            finally:
                holder.communicate("\n")
            assert c("BEGIN", "s", "new")[0] == "started"


HOLD_SQLITE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("begin immediate")
print("held", flush=True)
sys.stdin.readline()
db.execute("rollback")
"""
