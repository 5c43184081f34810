"""Locks between processes: those who wait in line, and those who are told to stop waiting. Waits more than it works."""
import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

from lib import IDEM, Server, encode, folder, patient, wait_until
from servers import Etcd, MariaDB, Postgres, Redis, ZooKeeper
from test_rights import write_credentials


class Shared:
    """What every process is told about where the records are."""

    def __init__(self, *where):
        self.where = where

    def idem(self, *args):
        done = subprocess.run([IDEM, *args, *self.where], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=90)
        return done.returncode, done.stdout

    def lock(self, name, *options, command=("true",), lease="60s", **how):
        return subprocess.Popen([IDEM, "lock", name, "--lease", lease, *options, *self.where, "--", *command], **how)

    def held(self):
        """The names of the locks that are held."""
        code, text = self.idem("scan", "--type", "lock", "--state", "executing", "--limit", "1000")
        assert code == 0, text
        return re.findall(r"^lock +executing .* locks (\S+)$", text, re.M)

    def line(self, name):
        """The places in line, one byte each."""
        done = subprocess.run([IDEM, "get", "locks", name + "!queue", "--type", "lock", "--print", "result", *self.where],
                              stdout=subprocess.PIPE, timeout=90)
        assert done.returncode in (0, 16)
        return done.stdout[:-1] if done.stdout.endswith(b"\n") else done.stdout


STORES = {"redis": Redis, "postgres": Postgres, "mariadb": MariaDB, "etcd": Etcd, "zookeeper": ZooKeeper}


@contextlib.contextmanager
def shared_on(kind):
    with folder() as where, contextlib.ExitStack() as stack:
        if kind == "journal":
            yield Shared("--server", "unix:" + stack.enter_context(Server(where)).socket)
        elif kind == "sqlite":
            yield Shared("--store", "sqlite:" + where + "/db")
        else:
            server = STORES[kind]()
            stack.callback(server.stop)
            if kind in ("postgres", "mariadb"):
                subprocess.run([IDEM, "store", "init", server.url], check=True, stdout=subprocess.DEVNULL)
            yield Shared("--store", patient(server.url))


@pytest.fixture(scope="module", params=["redis", "journal"])
def shared(request):
    with shared_on(request.param) as shared:
        yield shared


@contextlib.contextmanager
def holding(shared, name, *options):
    """Somebody holds it until the end of the block."""
    with folder() as where:
        at = os.path.join(where, "held")
        process = shared.lock(name, *options, command=("sh", "-c", "touch %s; exec sleep 600" % at))
        try:
            assert wait_until(lambda: os.path.exists(at))
            yield process
        finally:
            process.terminate()
            process.wait(60)


class Line:
    """Processes that wait for a lock, and write down who got it in which order."""

    def __init__(self, shared, name, *options):
        self.shared, self.name, self.options = shared, name, options
        self.waiting = {}

    def __enter__(self):
        self.folder = folder()
        self.file = os.path.join(self.folder.__enter__(), "order")
        return self

    def __exit__(self, *why):
        for process in self.waiting.values():
            process.kill()
            process.wait()
        self.folder.__exit__(None, None, None)

    def last(self):
        """The last place, if somebody has it: who comes adds one, or takes over one that was left."""
        line = self.shared.line(self.name)
        last = "%s!queue%d" % (self.name, line[-1]) if line else None
        return last if last in self.shared.held() else None

    def add(self, who, wait="300s", lease="60s"):
        """It is in line when this returns."""
        before = self.last()
        command = ("sh", "-c", "echo %s >> %s" % (who, self.file))
        self.waiting[who] = self.shared.lock(self.name, "--wait", wait, *self.options, command=command, lease=lease,
                                              stderr=subprocess.PIPE)
        assert wait_until(lambda: self.last() not in (None, before))

    def ends(self, who):
        return self.waiting[who].wait(120)

    def order(self):
        with open(self.file) as f:
            return f.read().split()


@pytest.mark.parametrize("kind", [*STORES, "sqlite", "journal"])
def test_who_waits_in_line_is_served_in_order(kind):
    with shared_on(kind) as shared, Line(shared, "turns", "--fair") as line:
        with holding(shared, "turns", "--fair"):
            for who in "abcdefg":
                line.add(who, wait="5s" if who == "d" else "300s", lease="2s" if who == "c" else "60s")
            line.waiting["c"].kill()  # its place is lost after its lease
            assert line.ends("d") == 11  # it gave up
            line.waiting["f"].send_signal(signal.SIGINT)
            assert line.ends("f") == 130
            line.add("h")
        for who in "abegh":
            assert line.ends(who) == 0
        assert line.order() == list("abegh")


def test_who_does_not_wait_leaves_nothing_in_line(shared):
    with Line(shared, "tidy", "--fair") as line:
        with holding(shared, "tidy"):
            line.add("a")
            for _ in range(3):
                assert shared.lock("tidy", "--fair").wait(60) == 11
            assert len(shared.line("tidy")) <= 2, "the place of who gave up is taken over"
        assert line.ends("a") == 0
    for _ in range(3):
        assert shared.lock("tidy", "--fair").wait(60) == 0
    assert shared.held() == []


@pytest.mark.parametrize("mode", ["--permits=2", "--write", "--read"])
def test_permits_readers_and_writers_stand_in_line_too(shared, mode):
    block = {"--permits=2": [["--permits", "2"]] * 2, "--write": [["--read"]], "--read": [["--write"]]}[mode]
    name = "many" + mode[:4]
    with Line(shared, name, "--fair", *mode.split("=")) as line:
        with contextlib.ExitStack() as stack:
            for options in block:
                stack.enter_context(holding(shared, name, *options))
            for who in "abc":
                line.add(who)
        for who in "abc":
            assert line.ends(who) == 0
        if mode == "--write":  # permits and readers come in together
            assert line.order() == list("abc")


@pytest.mark.parametrize("blocked,waits,number", [
    (["b"], ["a", "--also", "b"], signal.SIGTERM),
    (["x", "--read"], ["x", "--write"], signal.SIGINT),
    (["y", "--write"], ["y", "--read"], signal.SIGTERM),
    (["z", "--permits", "1"], ["z", "--permits", "1"], signal.SIGINT),
    (["v"], ["v", "--fair"], signal.SIGTERM),
], ids=["also", "write", "read", "permits", "fair"])
def test_a_signal_while_it_waits_gives_back_what_it_has(shared, blocked, waits, number):
    with holding(shared, *blocked):
        before = sorted(shared.held())
        process = shared.lock(*waits, "--wait", "300s", lease="300s")
        try:
            if "--permits" not in waits and "--read" not in waits:  # these hold nothing while they wait
                assert wait_until(lambda: sorted(shared.held()) != before)
            else:
                time.sleep(0.5)
            process.send_signal(number)
            assert process.wait(60) == 128 + number
        finally:
            process.kill()
            process.wait()
        assert sorted(shared.held()) == before


def test_under_nohup_a_hangup_does_not_end_the_wait(shared):
    with folder() as where:
        done = os.path.join(where, "done")
        with holding(shared, "night"):
            process = shared.lock("night", "--wait", "300s", "--fair", command=("touch", done),
                                  preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
            assert wait_until(lambda: any(name.startswith("night!queue") for name in shared.held()))
            process.send_signal(signal.SIGHUP)
        assert process.wait(120) == 0 and os.path.exists(done)


def test_who_may_only_use_gives_back_the_permits_that_it_did_not_need(tmp_path):
    """Two come free in the same moment, and one who waits gets both. Giving one back is not an operator's action."""
    credentials = write_credentials(str(tmp_path), "shop secret-1234567890 use")
    with Server(str(tmp_path), "--credentials", credentials) as s, s.client() as c:
        assert c("AUTH", "shop", "secret-1234567890") == "OK"
        fences = [c("LOCK", "pool#%d" % n, "somebody", 60000)[1] for n in (0, 1)]
        waits = subprocess.Popen([IDEM, "lock", "pool", "--permits", "2", "--wait", "60s", "--lease", "60s", "--server", "unix:" + s.socket,
                                  "--", "true"], env={**os.environ, "IDEM_AUTH": "shop:secret-1234567890"})
        assert wait_until(lambda: "locks_waiting:2\r" in c("INFO"))
        c.raw(b"".join(encode("UNLOCK", "pool#%d" % n, fence) for n, fence in enumerate(fences)))
        assert [c.read(), c.read()] == [["ok"], ["ok"]] and waits.wait(60) == 0
        assert all("free" in c("GET", "locks", "pool#%d" % n, "TYPE", "lock") for n in (0, 1))
        assert "operator-refused" not in s.output()
