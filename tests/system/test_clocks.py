"""Clocks that jump, here and at the store: nothing that is finished expires early, and nothing is swept away.
Waits more than it works.
"""
import contextlib
import os
import stat
import subprocess
import time

import pytest

import servers
from lib import IDEM, Clock, Server, folder, wait_until


@contextlib.contextmanager
def serving(store, **options):
    with folder() as home, Server(home, store=store, **options) as server, server.client() as client:
        yield client


def alarm(client):
    return "clock_alarm:1" in str(client("INFO"))


def finish(client, scope, key):
    fence = client("BEGIN", scope, key)[1]
    client("FINISH", scope, key, fence, "SUCCEEDED", "paid", "TTL", 24 * 3600 * 1000)


@pytest.fixture(scope="module", params=["Postgres", "MariaDB", "ZooKeeper"])
def clocked(request):
    """A server whose clock the test sets."""
    with folder() as where:
        os.chmod(where, 0o755)
        clock = Clock(where)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in clock.env.items():
                patch.setenv(name, value)
            server = getattr(servers, request.param)()
        try:
            if request.param != "ZooKeeper":
                subprocess.run([IDEM, "store", "init", server.url], check=True, stdout=subprocess.DEVNULL)
            yield server, clock
        finally:
            server.stop()


def test_a_store_whose_clock_jumps_ahead_loses_nothing_that_is_finished(clocked):
    server, clock = clocked
    with serving(server.url) as old:
        finish(old, "jump", "a")
        clock.set("+25h")
        try:
            assert wait_until(lambda: old("GET", "jump", "x") is not False and alarm(old))
            with serving(server.url) as young:  # it has never seen the right time
                assert alarm(young)
                end = time.monotonic() + 5  # both would have swept by then: a pass takes ZooKeeper 3 s
                while time.monotonic() < end:
                    assert young("BEGIN", "jump", "a")[0] == "replay"
                    assert old("BEGIN", "jump", "a")[0] == "replay"
                    time.sleep(0.1)
        finally:
            clock.set("+0")
        assert wait_until(lambda: old("GET", "jump", "x") is not False and not alarm(old))
        assert old("BEGIN", "jump", "a")[0] == "replay"


@pytest.mark.parametrize("clocked", ["Postgres", "MariaDB"], indirect=True)
@pytest.mark.parametrize("who", ["engine", "sql"])
def test_a_sweep_leaves_a_fence_that_is_ahead_of_the_clock(clocked, who):
    """As a clock that was ahead leaves it: claimed then, finished and expired since."""
    server, _ = clocked
    postgres = server.name == "postgres"
    table, scope = "idem.idem_record" if postgres else "idem_record", "fence-" + who

    def left():
        return server.sql("select count(*) from %s where scope = '%s'" % (table, scope)).split()[-1]

    def expire():
        server.sql("update %s set expires = 1000, fence = case when id in ('0', '1') then %d else fence - %d end "
                   "where scope = '%s'" % (table, (time.time() + 30 * 86400) * 1e6, 3600 * 1e6, scope))

    with serving(server.url) as c:
        for i in range(4):
            finish(c, scope, str(i))
        if who == "engine":
            expire()
            assert wait_until(lambda: left() == "2")
            time.sleep(1.2)  # two more sweeps
    if who == "sql":
        expire()
        server.sql("select idem.sweep()" if postgres else "call idem_sweep(1000, @gone)")
    assert left() == "2"
    server.sql("update %s set fence = 1 where scope = '%s'" % (table, scope))
    server.sql("select idem.sweep()" if postgres else "call idem_sweep(1000, @gone)")
    assert left() == "0"


def test_a_sqlite_server_whose_clock_jumps_ahead_loses_nothing_that_is_finished():
    with folder() as where:
        clock = Clock(where)
        with serving("sqlite:" + os.path.join(where, "db"), env=clock.env) as c:
            finish(c, "jump", "a")
            clock.set("+25h")
            end = time.monotonic() + 3  # six sweeps
            while time.monotonic() < end:
                assert c("BEGIN", "jump", "a")[0] == "replay"
                time.sleep(0.1)
            assert alarm(c)


def test_a_journal_that_is_started_again_with_the_clock_ahead_expires_nothing():
    with folder() as where:
        clock = Clock(where)
        store = "journal:" + os.path.join(where, "journal")
        with serving(store, env=clock.env) as c:
            finish(c, "jump", "a")
        for offset in "+26h", "+300d", "+0":
            clock.set(offset)
            with serving(store, env=clock.env) as c:
                assert c("BEGIN", "jump", "a")[0] == "replay"


def test_a_journal_in_a_container_whose_boot_clock_is_shifted_expires_nothing():
    """The kernel gives the number of a time namespace that has ended to the next one."""
    with folder() as f:
        def idem(shift_s, *words):
            return subprocess.run(["unshare", "--time", "--boottime", str(shift_s), IDEM, *words, "--store", "journal:" + f + "/j"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

        fence = idem(0, "begin", "shop", "x", "--print", "fence").strip()
        assert idem(0, "finish", "shop", "x", fence, "succeeded").startswith("ok")
        for shift_s in (0, 2592000, 0):
            assert idem(shift_s, "begin", "shop", "x").startswith("replay")


def mode_of(file):
    return stat.S_IMODE(os.stat(file).st_mode)


@pytest.mark.parametrize("mode", ["rollback", "wal"])
def test_a_new_sqlite_file_belongs_to_its_user_alone(mode):
    with folder() as where:
        os.chmod(where, 0o755)
        file = os.path.join(where, "db")
        with serving("sqlite:%s?mode=%s" % (file, mode)) as c:
            finish(c, "mode", "a")
            assert {name: oct(mode_of(os.path.join(where, name))) for name in os.listdir(where)} == {
                name: "0o600" for name in (["db", "db-wal"] if mode == "wal" else ["db", "db-journal"])}


def test_a_sqlite_file_that_others_can_read_keeps_its_rights_and_is_told():
    with folder() as where:
        file = os.path.join(where, "db")
        subprocess.run([IDEM, "store", "init", "sqlite:" + file], check=True, stdout=subprocess.DEVNULL)
        for mode, told in (0o644, True), (0o640, False), (0o600, False):
            os.chmod(file, mode)
            done = subprocess.run([IDEM, "store", "check", "sqlite:" + file], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            assert done.returncode == 0 and ("every user" in done.stdout) == told, done.stdout
            assert mode_of(file) == mode
