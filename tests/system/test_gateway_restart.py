"""`idem gateway` stays up when its engine dies: other traffic goes on, gated requests are answered rightly, service returns."""
import collections
import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request

import pytest

from gateway import *
from lib import Server, folder, free_port, listens, runs
from servers import Redis


COMPLAINT = 'cannot get the record "digest-key" of the scope "idem.gateway"'


def engine_of(gateway):
    """The engine's pid, or None while there is none."""
    with open("/proc/%d/task/%d/children" % (gateway.pid, gateway.pid)) as f:
        pids = f.read().split()
    for pid in pids:
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                if b"\0serve\0" in f.read():
                    return int(pid)
        except OSError:  # it has ended meanwhile
            pass
    return None


def kill_engine(gateway):
    """As a crash would; returns when the launcher has started another, which may not listen yet."""
    before = eventually(lambda: engine_of(gateway))
    os.kill(before, signal.SIGKILL)
    return eventually(lambda: engine_of(gateway) not in (None, before))


def put_back(journal):
    """In one step: an engine that starts between two steps would make a new, empty journal."""
    os.symlink(journal + ".away", journal + ".link")
    os.rename(journal + ".link", journal)


class Load:
    """Threads that ask until the end; answers is what they got: (key, status)."""

    def __init__(self, one, threads):
        self.answers, self.over = [], threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(one, i), daemon=True) for i in range(threads)]
        for t in self.threads:
            t.start()

    def run(self, one, i):
        n = 0
        while not self.over.is_set():
            n += 1
            key = "load-%d-%d" % (i, n)
            try:
                self.answers.append((key, one(key).status))
            except OSError as e:
                self.answers.append((key, repr(e)))

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join(60)
            assert not t.is_alive(), "no answer"
        return self.answers


def executions(ledger):
    """How often each key of the gated load ran; the other load uses the same keys."""
    return collections.Counter(e["key"] for e in ledger.entries() if e["path"] == "/orders")


def test_an_engine_that_is_killed_under_load_harms_nobody():
    with folder() as where, Ledger(where) as ledger:
        conf = os.path.join(where, "gateway.conf")
        with open(conf, "w") as f:
            f.write("[route /]\n[route /free]\ngated = off\n")
        with Gateway(where, ledger.port, "--config", conf, "--engine-restarts", "100") as g:
            free = Load(lambda key: ask(g.port, key, path="/free"), 2)
            gated = Load(lambda key: ask(g.port, key), 4)
            for _ in range(4):
                done = len(ledger.entries())
                eventually(lambda: len(ledger.entries()) > done + 20)
                kill_engine(g)
                count = len(gated.answers)
                eventually(lambda: any(status == 201 for _, status in gated.answers[count + 4:]))
            gated.stop()
            assert collections.Counter(status for _, status in free.stop()).keys() == {201}
            statuses = collections.Counter(status for _, status in gated.answers)
            assert set(statuses) <= {201, 503, 504} and statuses[201] > 50, statuses
            ran = executions(ledger)
            for key, status in gated.answers:
                assert ran[key] == {201: 1, 503: 0}.get(status, ran[key]) <= 1, (key, status, ran[key])
            # What was refused runs now; what was unknown ran once, and is known in the end.
            for key, status in gated.answers:
                if status != 201:
                    assert eventually(lambda: ask(g.port, key).status == 201)
                    assert executions(ledger)[key] == 1, (key, status)
            assert "the engine was killed by signal 9; restarting it" in g.output() and "the engine is back" in g.output()


def test_an_engine_that_cannot_start_is_tried_again_and_comes_back():
    with folder() as where, Ledger(where) as ledger:
        conf, journal = os.path.join(where, "gateway.conf"), os.path.join(where, "journal")
        with open(conf, "w") as f:
            f.write("[route /]\n[route /free]\ngated = off\n")
        with Gateway(where, ledger.port, "--config", conf, "--engine-restarts", "1000") as g:
            assert ask(g.port, "before").status == 201
            os.rename(journal, journal + ".away")
            open(journal, "w").close()
            os.kill(engine_of(g), signal.SIGKILL)
            eventually(lambda: "(4 of 1000)" in g.output())
            times = []
            for n in range(5):
                start = time.monotonic()
                got = ask(g.port, "during-%d" % n)
                times.append(time.monotonic() - start)
                assert got.status == 503 and got.problem == "not-executed"
                assert ask(g.port, "during", path="/free").status == 201
            assert sorted(times)[2] < 2, times
            g.send(signal.SIGHUP)  # nginx's part of a reload does not need the engine
            eventually(lambda: re.search("(?<!not )reloaded", g.output()))
            put_back(journal)
            eventually(lambda: ask(g.port, "during-0").status == 201)
            assert ask(g.port, "before").replayed and ledger.executions("during-0") == 1


def test_a_gateway_whose_engine_dies_again_and_again_gives_up():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--engine-restarts", "2") as g:
        one = Working(g.port, ledger, "k")
        for _ in range(2):
            kill_engine(g)
            eventually(lambda: g.output().count("the engine is back") == _ + 1)
        engine = engine_of(g)
        os.kill(engine, signal.SIGKILL)
        eventually(lambda: "gives up" in g.output())
        assert one.result().status == 504  # it ran, and nobody could record that
        assert g.wait() == 1
        said = g.output()
        assert "(2 of 2)" in said and "it was restarted 2 times and never ran for a minute; the gateway gives up" in said
        assert not runs(engine) and ledger.executions("k") == 1


def test_a_gateway_can_be_stopped_while_its_engine_is_away():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--engine-restarts", "1000") as g:
        journal = os.path.join(where, "journal")
        assert ask(g.port, "k").status == 201
        os.rename(journal, journal + ".away")
        open(journal, "w").close()
        os.kill(engine_of(g), signal.SIGKILL)
        eventually(lambda: "(6 of 1000)" in g.output())
        start = time.monotonic()
        g.send(signal.SIGTERM)
        assert g.wait() == 0 and time.monotonic() - start < 8


def test_restarts_are_counted():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        url = re.search(r"metrics at (http://\S+)", eventually(lambda: "metrics at" in g.output() and g.output())).group(1)

        def count():
            try:
                text = urllib.request.urlopen(url + "metrics", timeout=30).read().decode()
            except OSError:
                return None
            return int(re.search(r"^idem_gateway_engine_restarts_total (\d+)$", text, re.M).group(1))
        assert count() == 0
        for n in (1, 2):
            kill_engine(g)
            eventually(lambda: count() == n)


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.stop()


def test_a_store_that_is_gone_is_told_at_once_and_nobody_stays_for_it(redis):
    """The first request finds out: the answer to its claim is lost, so that it might be stored."""
    with folder() as where, Stack(where, store=redis.url, engine_options="timeout=40s") as s:
        assert ask(s.port, "k").status == 201
        redis.kill()
        start = time.monotonic()
        got = ask(s.port, "away")
        assert got.status == 503 and got.problem == "not-executed"
        assert time.monotonic() - start < 20, "not only after the time-out"
        done = ask(s.port, "k").json()
        assert done["title"] == "This attempt was not executed", done
        assert "An earlier attempt with the same key may have been executed: keep the key" in done["detail"], "it was"
        assert s.nginx.stop(seconds=20) == 0, "nothing was owed"
        assert s.ledger.executions("away") == 0


def test_a_worker_without_a_store_does_not_repeat_its_complaint(redis):
    """A new worker reads the key of the credential digests from the store, and tries again all the time."""
    with folder() as where, Stack(where, store=redis.url) as s:
        assert ask(s.port, "k").status == 201
        redis.kill()
        os.mkdir(where + "/late")

        def log():
            with open(where + "/late/error.log") as f:
                return f.read()

        start = time.monotonic()
        with Nginx(where + "/late", s.engine.socket, s.ledger.port, engine_options="timeout=2s away=2s") as late:
            eventually(lambda: COMPLAINT in log())
            assert ask(late.port, "k").status == 503
            lines = log().count(COMPLAINT)
            assert lines <= 1 + (time.monotonic() - start) // 60, log()
            assert "redis 127.0.0.1:%d: " % redis.port in log()
            redis.start()
            assert eventually(lambda: ask(late.port, "k").replayed)


def test_a_worker_that_leaves_stays_for_an_outcome_that_is_not_recorded_yet(redis):
    with folder() as where, Stack(where, store=redis.url, engine_options="timeout=2s") as s:
        one = Working(s.port, s.ledger, "k")
        redis.kill()
        assert one.result().status == 504
        s.nginx.send(signal.SIGQUIT)
        eventually(lambda: not listens(s.port))
        assert s.nginx.process.poll() is None
        redis.start()
        assert s.nginx.wait() == 0
        with Nginx(where, s.engine.socket, s.ledger.port) as again:
            assert eventually(lambda: ask(again.port, "k").replayed) and s.ledger.executions("k") == 1


def test_a_gateway_whose_store_is_gone_answers_and_stops_without_waiting_for_it(redis):
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, "--drain-timeout", "60s", store=redis.url) as g:
            assert ask(g.port, "k").status == 201
            redis.kill()
            got = ask(g.port, "away")
            assert got.status == 503 and got.problem == "not-executed"
            start = time.monotonic()
            g.send(signal.SIGTERM)
            assert g.wait(100) == 0
            assert time.monotonic() - start < 20, "nothing was owed"
        assert ledger.executions("away") == 0


# ---- signals and ports while a child starts ------------------------------------------------------------------------------


def test_a_reload_while_the_engine_starts_does_not_end_it():
    """A hang-up reaches engines that were started a moment ago, and cannot take signals yet."""
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--engine-restarts", "1000") as g:
        journal = os.path.join(where, "journal")
        assert ask(g.port, "before").status == 201
        os.rename(journal, journal + ".away")  # so that it is started several times
        open(journal, "w").close()
        os.kill(engine_of(g), signal.SIGKILL)
        while "(5 of 1000)" not in g.output() and "signal 1;" not in g.output():
            g.send(signal.SIGHUP)
            time.sleep(0.002)
        put_back(journal)
        assert "signal 1;" not in g.output(), g.output()
        eventually(lambda: ask(g.port, "before").replayed)


def test_a_signal_while_nginx_starts_does_not_end_it():
    with folder() as where, Ledger(where) as ledger:
        script = os.path.join(where, "slow-nginx")
        with open(script, "w") as f:
            # A reload asks nginx -t; only the start of the real one sends signals.
            f.write("#!%s\nimport os, sys, time\nfor number in (1, 10) if '-t' not in sys.argv else ():\n"
                    "    os.kill(os.getppid(), number)\ntime.sleep(1)\n"
                    "os.execv('/usr/sbin/nginx', ['nginx'] + sys.argv[1:])\n" % sys.executable)
        os.chmod(script, 0o755)
        with Gateway(where, ledger.port, "--nginx", script) as g:
            assert ask(g.port, "k").status == 201
            eventually(lambda: re.search("(?<!not )reloaded", g.output()))


def test_an_engine_whose_chosen_port_was_taken_meanwhile_gets_another():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--engine-restarts", "1000") as g:
        journal = os.path.join(where, "journal")
        address = lambda: re.findall(r"metrics (?:are now )?at http://127.0.0.1:(\d+)", g.output())  # noqa: E731
        port = int(eventually(address)[0])
        os.rename(journal, journal + ".away")  # it must not come back before the port is taken
        open(journal, "w").close()
        os.kill(engine_of(g), signal.SIGKILL)
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            eventually(lambda: bound(thief, port))
            thief.listen()
            put_back(journal)
            assert int(eventually(lambda: address()[1:])[0]) != port, g.output()
            url = "http://127.0.0.1:%s/metrics" % address()[1]
            assert b"idem_build_info" in eventually(lambda: fetched(url))
            assert eventually(lambda: ask(g.port, "k").status == 201)


def bound(s, port):
    try:
        s.bind(("127.0.0.1", port))
        return True
    except OSError:
        return False


def fetched(url):
    try:
        return urllib.request.urlopen(url, timeout=30).read()
    except OSError:
        return None


def test_records_in_memory_are_warned_of_at_the_start_and_after_each_restart():
    """Not even strict mode prevents a second run then."""
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, store="memory:") as g:
        assert "memory: the records are lost when this process ends" in g.output()
        assert ask(g.port, "k").status == 201
        kill_engine(g)
        eventually(lambda: "the engine is back" in g.output())
        assert g.output().count("memory: the records of the engine that ended are lost") == 1, g.output()
        assert eventually(lambda: ask(g.port, "k").status == 201) and executions(ledger)["k"] == 2
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        assert "memory:" not in g.output()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_an_engine_that_is_away_is_logged_once_with_the_reason_and_once_when_it_is_back(kind):
    with folder() as where, Ledger(where) as ledger, contextlib.ExitStack() as left:
        port = free_port()
        listen = ["--listen", "127.0.0.1:%d" % port]
        with Nginx(where, "127.0.0.1:%d" % port if kind == "tcp" else where + "/s", ledger.port) as nginx:
            said = lambda: re.findall('idem engine ".*": (.*)|(connect\\(\\) to .*)', nginx.errors())  # noqa: E731
            eventually(lambda: said())
            time.sleep(4)  # it has tried about ten times
            reason = "111: Connection refused" if kind == "tcp" else "2: No such file or directory"
            assert said() == [("cannot connect (%s)" % reason, "")], said()
            server = left.enter_context(Server(where, *listen))
            eventually(lambda: re.fullmatch(r"connected again after [4-9]\.\d s", said()[-1][0]))
            assert ask(nginx.port, "k").status == 201 and len(said()) == 2
            server.send(signal.SIGKILL)
            eventually(lambda: len(said()) >= 4)
            time.sleep(3)
            assert [line[0] for line in said()[2:]] == ["connection lost", "cannot connect (111: Connection refused)"], said()
            left.enter_context(Server(where, *listen))
            eventually(lambda: said()[-1][0].startswith("connected again after") and len(said()) == 5)


def test_an_engine_that_hangs_up_at_once_is_not_logged_each_time():
    """As a load balancer without servers does."""
    with folder() as where, Ledger(where) as ledger, socket.create_server(("127.0.0.1", 0)) as nothing:
        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    nothing.accept()[0].close()
                    hung_up.append(1)
        hung_up = []
        threading.Thread(target=hang_up, daemon=True).start()
        with Nginx(where, "127.0.0.1:%d" % nothing.getsockname()[1], ledger.port) as nginx:
            eventually(lambda: len(hung_up) > 20)
            assert 1 <= nginx.errors().count('idem engine "') <= 2, nginx.errors()
        nothing.shutdown(socket.SHUT_RDWR)
