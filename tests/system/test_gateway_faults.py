"""The gateway when things die: engine, worker and service, at every step of a request; engine away; reload.

The module's steps (a build of its own) make each moment certain: the worker stops at the step until the test goes on."""
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from gateway import *
from lib import ROOT, SOAK, Server, encode, folder, runs

TIMES = 5 if SOAK else 1

# In the order in which a request passes them.
STEPS = ["asking",     # nothing was sent to the engine
         "begun",      # the claim is durable, the worker knows
         "started",    # about to be passed to the service
         "executing",  # the service works on it
         "answered",   # the service's header has come
         "finishing",  # its answer is complete
         "unacknowledged",  # FINISH was sent, the engine has not read it
         "kept"]       # FINISH is durable, the client has nothing yet


@pytest.fixture(scope="module", autouse=True)
def built():
    subprocess.run(["make", "-s", "module-steps"], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, location="idem_lease 1s;", steps=True, more="""
            location /loose { idem on; idem_mode loose; idem_lease 1s; proxy_pass http://service; }
            location /twice { idem on; idem_mode loose; idem_lease 10m; idem_dedupe_content 1h; proxy_pass http://service; }""") as s:
        yield s


def kill_worker(stack):
    killed = stack.nginx.workers()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    # The master starts another; until then the port may refuse.
    wait_until(lambda: set(stack.nginx.workers()) - set(killed), 10)


def heal(stack):
    for step in STEPS:
        stack.go_on(step)
    if stack.engine.process.poll() is not None:
        stack.restart_engine()
    if stack.ledger.process.poll() is not None:
        stack.restart_ledger()
    eventually(lambda: ask_quietly(stack, None, "GET"))


def ask_quietly(stack, key, method="POST", **named):
    try:
        return ask(stack.port, key, method=method, body=None if method == "GET" else b'{"a":1}', **named)
    except Exception:
        return None


def to_step(stack, key, step, path):
    """A request that has come to this step, and stays there."""
    if step == "executing":
        return Working(stack.port, stack.ledger, key, path=path)
    at = "finishing" if step == "unacknowledged" else step
    stack.stop_at(at)
    one = Later(ask, stack.port, key, path=path)
    assert stack.reached(at), at
    if step == "unacknowledged":
        stack.engine.send(signal.SIGSTOP)
        stack.go_on(at)
        time.sleep(0.2)
    return one


@pytest.mark.parametrize("path", ["/strict", "/loose"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", ["engine", "worker", "service"])
def test_whatever_dies_at_whatever_step(stack, victim, step, path):
    for i in range(TIMES):
        key = "%s-%s-%s-%d-%d" % (victim, step, path[1:], i, time.time_ns())
        one = to_step(stack, key, step, path)
        before = stack.ledger.executions(key)
        if victim == "engine":
            stack.engine.kill()
            stack.restart_engine()
        elif victim == "worker":
            if step == "unacknowledged":
                kill_worker(stack)
                stack.engine.send(signal.SIGCONT)
            else:
                kill_worker(stack)
        else:
            stack.ledger.kill()
            if step == "unacknowledged":
                stack.engine.send(signal.SIGCONT)
        stack.go_on("finishing" if step == "unacknowledged" else step)
        got = one.result()
        heal(stack)
        told = got.problem if isinstance(got, Answer) else "nothing"
        runs = stack.ledger.executions(key)
        assert runs <= 1
        if told in ("not-executed", "service-unreachable"):
            assert runs == 0, "it was said that nothing ran"
        if isinstance(got, Answer) and got.status == 201:
            assert runs == 1
        if victim == "service" and step == "executing":
            assert told == "outcome-unknown"
        if victim == "engine":
            # The engine came back within the time that a request waits: nobody notices.
            assert isinstance(got, Answer) and got.status == 201, got

        # What a retry is told, until nothing changes any more.
        again = eventually(lambda: (lambda a: a if a.problem != "in-progress" else None)(ask(stack.port, key, path=path)))
        runs = stack.ledger.executions(key)
        if again.status == 201:
            assert runs == 1 or path == "/loose"
            if isinstance(got, Answer) and got.status == 201 and path == "/strict":
                assert again.replayed and again.body == got.body
        else:
            assert path == "/strict" and again.problem == "outcome-unknown", again
            assert victim != "engine"
            with stack.resp() as r:
                assert r("SETTLE", "anonymous", key, "AS", "SUCCEEDED", "200\n\nsettled", "KIND", "http")[0] == "settled"
            assert ask(stack.port, key, path=path).body == b"settled"
        if path == "/strict":
            assert stack.ledger.executions(key) <= 1


def test_an_engine_that_is_away_means_not_executed():
    with folder() as where, Stack(where, engine_options="timeout=30s", more="""
            location /open { idem on; idem_mode loose; idem_fail_open on; proxy_pass http://service; }
            location /loose { idem on; idem_mode loose; proxy_pass http://service; }
            location = /token { idem_issue_token; }""") as s:
        assert ask(s.port, "warm").status == 201
        s.engine.kill()
        start = time.monotonic()
        got = ask(s.port, "away")
        assert time.monotonic() - start < 15, "the first one does not wait for the time-out either"
        assert got.status == 503 and got.problem == "not-executed" and got.json()["retryable"]
        assert int(got.headers["retry-after"]) >= 1
        time.sleep(1.2)
        times = []
        for _ in range(5):
            start = time.monotonic()
            assert ask(s.port, "away").status == 503
            times.append(time.monotonic() - start)
        assert sorted(times)[2] < 2.5, "not only after the time-out"
        assert ask(s.port, "away", path="/loose").status == 503
        token = ask(s.port, path="/token")
        assert token.status == 503 and token.json()["detail"] == "idem could not store a token. Ask for one again."
        got = ask(s.port, "away", path="/open")
        assert got.status == 201 and not got.replayed
        assert ask(s.port, "warm", method="GET", body=None).status == 201, "what is not gated goes on"
        assert s.ledger.executions("away") == 1  # the open one
        s.restart_engine()
        eventually(lambda: ask(s.port, "away2").status == 201)
        assert ask(s.port, "warm").replayed and ask(s.port, "away2").replayed


def test_a_finish_that_nobody_acknowledged_is_kept_and_sent_again():
    with folder() as where, Stack(where, engine_options="timeout=3s") as s:
        one = Working(s.port, s.ledger, "key")
        s.engine.send(signal.SIGSTOP)
        got = one.result()
        assert got.status == 504 and got.problem == "outcome-unknown"
        s.engine.kill()
        s.restart_engine()
        again = eventually(lambda: (lambda a: a if a.status == 201 else None)(ask(s.port, "key")))
        assert again.replayed and s.ledger.executions("key") == 1


def test_a_begin_whose_answer_was_lost_finds_itself_again():
    with folder() as where, Stack(where, engine_options="timeout=30s away=30s") as s:
        ask(s.port, "warm")
        s.engine.send(signal.SIGSTOP)
        one = Later(ask, s.port, "key")
        time.sleep(0.3)
        s.engine.kill()
        s.restart_engine()
        assert one.result().status == 201 and s.ledger.executions("key") == 1
        assert ask(s.port, "key").replayed


class Between:
    """Stands between nginx and the engine; what(command) says what becomes of a command: None, it is passed on; "cut", it
    is, and the connection ends before the answer; bytes, that is the answer."""

    def __init__(self, engine, what):
        self.engine, self.what = engine, what
        self.socket = engine + ".between"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket)
        self.listener.listen(10)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            c, _ = self.listener.accept()
            e = socket.socket(socket.AF_UNIX)
            e.connect(self.engine)
            threading.Thread(target=self.forth, args=(c, e), daemon=True).start()
            threading.Thread(target=self.back, args=(e, c), daemon=True).start()

    def back(self, e, c):
        with contextlib.suppress(OSError):
            while data := e.recv(65536):
                c.sendall(data)
            c.shutdown(socket.SHUT_RDWR)

    def forth(self, c, e):
        f = c.makefile("rb")
        with contextlib.suppress(OSError, ValueError):
            while line := f.readline():
                words = []
                for _ in range(int(line[1:])):
                    words.append(f.read(int(f.readline()[1:]) + 2)[:-2])
                todo = self.what(words)
                if isinstance(todo, bytes):
                    c.sendall(todo)
                    continue
                if todo == "cut":  # nothing comes back any more, and the engine has it
                    c.shutdown(socket.SHUT_RDWR)
                e.sendall(encode(*words))
        e.close()


def tagged(words, *values):
    """An answer to this command."""
    return b"*%d\r\n$3\r\ntag\r\n:%s\r\n" % (len(values) + 2, words[-1]) + b"".join(
        b":%d\r\n" % v if isinstance(v, int) else b"$%d\r\n%s\r\n" % (len(v), v.encode()) for v in values)


def test_a_begin_that_was_stored_is_found_although_the_engine_cannot_answer_at_first():
    """Stored, the answer lost, and the engine too busy when it is asked again: the key is nobody's doubt."""
    met = []

    def what(words):
        if words[0] == b"BEGIN" and words[2] == b"key":
            met.append(words)
            if len(met) == 1:
                return "cut"
            if len(met) in (2, 3):
                return tagged(words, "error", "UNAVAILABLE", "not now")
        return None

    with folder() as where, Ledger(where) as ledger, Server(where) as engine:
        between = Between(engine.socket, what)
        with Nginx(where, between.socket, ledger.port) as nginx:
            assert ask(nginx.port, "warm").status == 201
            got = ask(nginx.port, "key")
            assert len(met) == 4 and met[0][:-1] == met[3][:-1], met
            assert got.status == 201 and ledger.executions("key") == 1
            assert ask(nginx.port, "key").replayed


@pytest.mark.parametrize("path", ["/strict", "/loose"])
def test_a_begin_that_was_stored_is_given_back_although_its_row_was_locked(path):
    """Stored, the answer lost, and somebody's transaction on the row when it is asked again: that looks like "busy". The
    client is told so, and then the start that nobody made use of goes back, or the key would end in doubt."""
    met = []

    def what(words):
        if words[0] == b"BEGIN" and words[2] == b"key":
            met.append(words)
            if len(met) == 1:
                return "cut"
            if len(met) in (2, 3):
                return tagged(words, "busy", 300)
        return None

    with folder() as where, Ledger(where) as ledger, Server(where) as engine:
        between = Between(engine.socket, what)
        with Nginx(where, between.socket, ledger.port, more="location /loose { idem on; idem_mode loose; "
                   "proxy_pass http://service; }") as nginx:
            assert ask(nginx.port, "warm").status == 201
            got = ask(nginx.port, "key", path=path)
            assert got.status == 409 and got.problem == "in-progress" and got.headers["retry-after"] == "1"
            eventually(lambda: len(met) >= 4)
            assert met[0][:-1] == met[3][:-1] and ledger.executions("key") == 0
            again = eventually(lambda: (lambda a: a if a.status == 201 else None)(ask(nginx.port, "key", path=path)))
            assert not again.replayed and ledger.executions("key") == 1


@pytest.mark.parametrize("word", ["FULL", "MEMORY"])
def test_a_begin_that_was_stored_is_found_whatever_the_engine_complains_about(word):
    met = []

    def what(words):
        if words[0] == b"BEGIN" and words[2] == b"key":
            met.append(words)
            if len(met) == 1:
                return "cut"
            if len(met) == 2:
                return tagged(words, "error", word, "not now")
        return None

    with folder() as where, Ledger(where) as ledger, Server(where) as engine:
        between = Between(engine.socket, what)
        with Nginx(where, between.socket, ledger.port) as nginx:
            assert ask(nginx.port, "warm").status == 201
            assert ask(nginx.port, "key").status == 201 and ledger.executions("key") == 1
            assert ask(nginx.port, "key").replayed and len(met) > 2


def test_a_begin_that_came_too_late_is_given_back():
    with folder() as where, Stack(where, engine_options="timeout=3s") as s:
        ask(s.port, "warm")
        s.engine.send(signal.SIGSTOP)
        assert ask(s.port, "key").status == 503
        s.engine.send(signal.SIGCONT)
        eventually(lambda: (s.record("key") or {}).get("state") == "free")
        assert s.ledger.executions("key") == 0 and ask(s.port, "key").status == 201


def test_reload_and_two_workers_lose_nothing():
    with folder() as where, Stack(where, workers=2, location="idem_wait 10s;") as s:
        with open(s.nginx.conf) as f:
            text = f.read()
        running = [Later(ask, s.port, "r%d" % i, x_sleep=1) for i in range(20)]
        eventually(lambda: len(s.ledger.entries()) == 20)
        old = set(s.nginx.workers())
        s.nginx.send(signal.SIGHUP)
        eventually(lambda: set(s.nginx.workers()) - old)
        again = storm(40, lambda i: ask(s.port, "r%d" % (i % 20), x_sleep=1))
        first = [r.result() for r in running]
        assert {a.status for a in first + again} == {201} and len(s.ledger.entries()) == 20
        for i in range(40):
            assert again[i].replayed and again[i].body == first[i % 20].body
        eventually(lambda: not old & set(s.nginx.workers()))
        assert "[alert]" not in s.nginx.errors() and text


class Daemon:
    """nginx as a service manager runs it, in the place of a stack's nginx: only such a one takes USR2."""

    def __init__(self, nginx):
        nginx.stop()
        self.nginx, self.ever = nginx, set()
        with open(nginx.conf, "w") as f:
            f.write(nginx.text.replace("daemon off;", "daemon on;"))
        subprocess.run(["/usr/sbin/nginx", "-p", nginx.where, "-c", nginx.conf], check=True, timeout=20,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**os.environ, **nginx_env(nginx.where)})

    def master(self):
        """The newest one's pid; None while its file is being written."""
        try:
            with open(self.nginx.pid_file) as f:
                pid = int(f.read())
        except (FileNotFoundError, ValueError):
            return None
        self.ever.add(pid)
        return pid

    def workers(self, pid):
        with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
            kids = [int(p) for p in f.read().split()]
        return [k for k in kids if k not in self.ever]

    def upgrade(self):
        """The old and the new master, both with workers."""
        old = self.master()
        os.kill(old, signal.SIGUSR2)
        new = eventually(lambda: (lambda now: now if now != old else None)(self.master()))
        eventually(lambda: len(self.workers(new)) == len(self.workers(old)))
        return old, new

    def __enter__(self):
        eventually(self.master)
        return self

    def __exit__(self, *_):
        for number in (signal.SIGQUIT, signal.SIGKILL):
            for pid in filter(runs, self.ever):
                os.kill(pid, number)
            if wait_until(lambda: not any(map(runs, self.ever)), 15):
                break
        nothing_found(self.nginx.where)


class Stream:
    """Requests with keys of their own, one after the other, until it is stopped."""

    def __init__(self, port):
        self.answers, self.on = {}, True

        def run():
            while self.on:
                key = "s%d" % len(self.answers)
                self.answers[key] = ask(port, key)
        self.later = Later(run)

    def stop(self):
        self.on = False
        assert self.later.result() is None
        return self.answers


@pytest.mark.parametrize("way", ["forth", "back"])
def test_an_upgrade_of_the_binary_loses_nothing(way):
    """USR2, WINCH, QUIT; or, if the new one is not liked, HUP to the old and QUIT to the new."""
    with folder() as where, Stack(where, workers=2, location="idem_wait 10s;") as s, Daemon(s.nginx) as d:
        stream = Stream(s.port)
        running = [Later(ask, s.port, "r%d" % i, x_sleep=2) for i in range(20)]
        eventually(lambda: sum(e["key"][0] == "r" for e in s.ledger.entries()) == 20)
        old, new = d.upgrade()
        retired = d.workers(old)
        os.kill(old, signal.SIGWINCH)
        # nginx looks at HUP before WINCH: were both there at once, the workers of the first would go by the second.
        eventually(lambda: all("%d#%d: gracefully shutting down" % (p, p) in s.nginx.errors() for p in retired))
        waiting = [Later(ask, s.port, "r%d" % i, x_sleep=2) for i in range(20)]  # by the new ones, for the old ones' answers
        stays, goes = (new, old) if way == "forth" else (old, new)
        if way == "back":
            os.kill(old, signal.SIGHUP)
            eventually(lambda: len(set(d.workers(old)) - set(retired)) == 2)
        os.kill(goes, signal.SIGQUIT)
        first, again = [r.result() for r in running], [w.result() for w in waiting]
        eventually(lambda: not runs(goes) and not any(map(runs, retired)))
        assert {a.status for a in first + again} == {201} and [a.body for a in first] == [a.body for a in again]
        assert all(a.replayed for a in again) and not any(a.replayed for a in first)
        assert all(ask(s.port, "r%d" % i, x_sleep=2).replayed for i in range(20)) and runs(stays)
        streamed = stream.stop()
        assert {a.status for a in streamed.values()} == {201} and not any(a.replayed for a in streamed.values())
        assert sorted(e["key"] for e in s.ledger.entries()) == sorted([*streamed, *("r%d" % i for i in range(20))])
        assert "[alert]" not in s.nginx.errors() and len(streamed) > 20


def test_both_workers_give_a_caller_the_same_scope_after_an_emptied_store():
    with folder() as where, Stack(where, workers=2, store="memory:") as s:
        auth = {"Authorization": "Bearer x"}
        for _ in range(2):
            for i in range(10):
                ask(s.port, "k%d" % i, headers=auth)
            assert all(ask(s.port, "k%d" % i, headers=auth).replayed for i in range(10))
            s.engine.kill()
            s.restart_engine()
            kill = s.nginx.workers()[0]
            os.kill(kill, signal.SIGKILL)
            eventually(lambda: kill not in s.nginx.workers() and len(s.nginx.workers()) == 2)
            eventually(lambda: getattr(ask_quietly(s, "probe%d" % time.time_ns(), headers=auth), "status", 0) == 201)
        assert sum(e["key"].startswith("k") for e in s.ledger.entries()) == 20


def test_a_keepalive_connection_closed_under_us_is_never_used_twice():
    """The service closes idle connections the moment a request comes: nothing is sent a second time."""
    with folder() as where, Stack(where) as s:
        for i in range(5):
            assert ask(s.port, "warm%d" % i, x_way="").status == 201
            got = ask(s.port, "cut%d" % i, x_way="reset")
            assert got.problem == "outcome-unknown" and s.ledger.executions("cut%d" % i) == 1
            assert ask(s.port, "put%d" % i, method="PUT", x_way="reset").status == 502
            assert s.ledger.executions("put%d" % i) == 1


def test_bytes_behind_a_204_are_nobodys_answer():
    """A service that announces a body with 204 sends it; its connection is not used for the next one."""
    with folder() as where, Stack(where) as s:
        for i in range(20):
            assert ask(s.port, "none%d" % i, x_way="no-content-but-bytes").status == 204
            assert ask(s.port, "next%d" % i).status == 201
            assert ask(s.port, method="PUT", x_way="no-content-but-bytes").status == 204
            assert ask(s.port, "put%d" % i).status == 201


@pytest.mark.parametrize("location", ["idem_status;", "idem_issue_token;"])
def test_a_location_that_asks_the_engine_needs_one(location):
    with folder() as where:
        conf = os.path.join(where, "n.conf")
        with open(conf, "w") as f:
            f.write("load_module %s; pid %s/p; error_log stderr; events {} http { server { listen 127.0.0.1:1; "
                    "location / { %s } } }" % (MODULE, where, location))
        got = nginx_test(where, conf)
        assert got.returncode != 0 and 'needs an "idem_engine"' in got.stderr, got.stderr


def test_a_status_that_the_engine_does_not_tell_is_not_executed_where_requests_may_pass():
    with folder() as where, Stack(where, http="idem_mode loose; idem_fail_open on;", engine_options="timeout=1s away=1s",
                                  more="location /outcome { idem_status; }") as s:
        assert ask(s.port, "k").status == 201
        workers = s.nginx.workers()
        s.engine.send(signal.SIGSTOP)
        asked = [Later(ask, s.port, "k", "GET", "/outcome", body=None, timeout=10) for _ in range(4)]
        time.sleep(0.3)
        s.engine.kill()
        for one in asked:
            got = one.result()
            assert isinstance(got, Answer) and got.problem == "not-executed", got
        assert s.nginx.workers() == workers and "exited on signal" not in s.nginx.errors()
        # questions that nobody asks any more do not keep nginx from ending
        assert s.nginx.stop(seconds=10) == 0


def test_a_location_that_issues_tokens_may_be_inside_a_gated_one():
    """One connection, requests without and with a key, with the engine and without it."""
    with folder() as where, Stack(where, engine_options="timeout=1s away=1s", more="""
            location /tokens { idem on; idem_issue_token; }""") as s:
        workers = s.nginx.workers()
        ask_for = [b"POST /tokens HTTP/1.1\r\nHost: x\r\n%sContent-Length: 2\r\n\r\n{}" % key
                   for key in (b"", b"", b"Idempotency-Key: k\r\n")]
        got = raw(s.port, b"".join(ask_for) + b"GET /tokens HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert got.count(b"HTTP/1.1 200 OK") == got.count(b'{"token":"') == 4, got
        assert s.record("k") is None
        s.engine.kill()
        for key in (None, "k"):
            assert eventually(lambda: ask(s.port, key, path="/tokens")).problem == "not-executed"
        assert s.nginx.workers() == workers and "exited on signal" not in s.nginx.errors()


CONFIGS = [("idem on; proxy_ignore_client_abort off;", "proxy_ignore_client_abort"),
           ("idem on; proxy_next_upstream error timeout non_idempotent;", "proxy_next_upstream"),
           ("idem on; idem_methods PUT; proxy_next_upstream error;", "proxy_next_upstream"),
           ("idem on; idem_fail_open on;", "idem_fail_open"),
           ("idem on; idem_duplicate maybe;", "idem_duplicate"),
           ("idem on; idem_release 99;", "invalid status"),
           ("idem on; idem_lease 10ms;", '"idem_lease" of 10ms is out of range: give 100ms to 7d'),
           ("idem on; idem_lease 8d;", '"idem_lease" of 691200000ms is out of range: give 100ms to 7d'),
           ("idem on; idem_ttl 3661d;", "is out of range: give 1ms to 3660d"),
           ("idem on; idem_wait 2h;", '"idem_wait" of 7200000ms is out of range: give 0 to 1h'),
           ("idem on; idem_token_ttl 0;", '"idem_token_ttl" of 0ms is out of range: give 1ms to 3660d'),
           ("idem on; idem_fingerprint sha;", "idem_fingerprint"),
           ("idem on; idem_mode fuzzy;", "invalid value"),
           ("idem on; idem_key always;", "no $variable")]


@pytest.mark.parametrize("location,word", CONFIGS)
def test_a_configuration_that_would_break_a_promise_is_refused(location, word):
    with folder() as where:
        conf = os.path.join(where, "n.conf")
        with open(conf, "w") as f:
            f.write("""load_module %s; pid %s/p; error_log stderr; events {} http { idem_engine unix:%s/s;
                proxy_ignore_client_abort on; server { listen 127.0.0.1:1; location / { %s
                proxy_pass http://127.0.0.1:1; } } }""" % (MODULE, where, where, location))
        got = nginx_test(where, conf)
        assert got.returncode != 0 and word in got.stderr, got.stderr
        with open(conf) as f:
            good = f.read().replace(location, "idem on;")
        with open(conf, "w") as f:
            f.write(good)
        got = nginx_test(where, conf)
        assert got.returncode == 0, got.stderr


def test_a_worker_ends_although_its_engine_died_while_the_digest_key_was_made():
    for _ in range(8):  # the moment is short
        with folder() as where, Stack(where, engine_options="timeout=200ms") as stack:
            stack.engine.kill()
            eventually(lambda: "Connection refused" in stack.nginx.errors())
            assert stack.nginx.stop(seconds=20) == 0


# ---- the second line of defence ------------------------------------------------------------------------------------

def contents(engine):
    """The records of contents that are executing."""
    rows = [dict(zip(row[::2], row[1::2])) for row in engine("SCAN", "0", "COUNT", 1000, "STATE", "executing")[2:]]
    return [row for row in rows if row["id"].startswith("content-")]


def test_a_worker_that_dies_while_it_looks_for_a_dead_one_blocks_nobody(stack):
    """The content of a request whose worker died is taken from it when its lease is over. Who dies in that moment must not
    hold it for another lease, which is ten minutes here."""
    key = "twice-%d-" % time.time_ns()
    one = to_step(stack, key + "1", "executing", "/twice")
    kill_worker(stack)
    one.result()
    heal(stack)
    with stack.engine.client() as engine:
        left = contents(engine)
        assert len(left) == 1
        assert engine("RENEW", left[0]["scope"], left[0]["id"], left[0]["fence"], 1, "LOST")[0] == "ok"
    stack.stop_at("probed")
    two = Later(ask, stack.port, key + "2", path="/twice")
    assert stack.reached("probed")
    kill_worker(stack)
    stack.go_on("probed")
    two.result()
    heal(stack)
    assert eventually(lambda: ask(stack.port, key + "3", path="/twice").status == 201)


@pytest.mark.parametrize("path,method", [("/outcome", "GET"), ("/tokens", "POST"), ("/gated", "POST")])
def test_a_question_in_an_if_claims_nothing(path, method):
    """nginx keeps a location's handler in its "if", and the worker waits for the key of the digests first."""
    with folder() as where, Stack(where, more="""
            location = /outcome { idem_status; if ($http_x_if) { set $a 1; } }
            location = /tokens { idem_issue_token; if ($http_x_if) { set $a 1; } }
            location = /gated { idem on; idem_issue_token; if ($http_x_if) { set $a 1; } }""") as stack:
        workers = eventually(stack.nginx.workers)
        stack.engine.kill()
        got = Later(ask, stack.port, "k", method, path, body=None, x_if=1, timeout=20)
        eventually(lambda: "refused" in stack.nginx.errors())
        stack.restart_engine()
        assert got.result().status == (404 if path == "/outcome" else 200), got.result()
        assert stack.record("k") is None and stack.nginx.workers() == workers
