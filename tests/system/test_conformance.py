"""Every client behaves as clients/README.md says, and they understand each other.

Waits more than it works.
"""
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

import middleware
from chaos import Chaos, resp_replies
from client_builds import BUILD, CLIENTS, NODE, RUN_NODE, build_go, build_java, node_packages
from lib import ROOT, Process, Server, folder, free_port, wait_until
from test_rights import write_credentials

DRIVERS = {"python": ["/usr/bin/python3", os.path.join(CLIENTS, "python/tests/driver.py")],
           "node": ["node", os.path.join(CLIENTS, "node/tests/driver.js")],
           "php": ["php", os.path.join(CLIENTS, "php/tests/driver.php")],
           "go": [os.path.join(BUILD, "go-driver")],
           "java": ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp",
                    "%s/java/test:%s/java/idem-client.jar" % (BUILD, BUILD), "idem.Driver"]}


BUILDS = {"go": lambda: build_go("tests/driver", "go-driver"), "java": build_java}  # what has to be done once before a driver runs
LANGUAGES = sorted(DRIVERS)
with open(os.path.join(CLIENTS, "conformance/scenarios.json"), encoding="utf-8") as f:
    SCENARIOS = json.load(f)
names = itertools.count()


class Driver:
    """A driver of one language: call() answers, start() and finish() apart."""

    def __init__(self, argv, url):
        self.process = subprocess.Popen([*argv, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CLIENTS, text=True, encoding="utf-8",
                                        start_new_session=True)  # a driver may have processes of its own
        self.lock = threading.Condition()
        self.answers, self.ended, self.ids = {}, False, itertools.count(1)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            with self.lock:
                self.answers[answer["id"]] = answer
                self.lock.notify_all()
        with self.lock:
            self.ended = True
            self.lock.notify_all()

    def start(self, command):
        n = next(self.ids)
        with self.lock:
            self.process.stdin.write(json.dumps({"id": n, **command}) + "\n")
            self.process.stdin.flush()
        return n

    def finish(self, n, seconds=120):
        with self.lock:
            assert self.lock.wait_for(lambda: n in self.answers or self.ended, seconds), "no reply in time"
            assert n in self.answers, "the driver ended"
            return self.answers.pop(n)

    def call(self, command):
        return self.finish(self.start(command))

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def driver(language, url):
    if language in BUILDS:
        BUILDS.pop(language)()
    return Driver(DRIVERS[language], url)


class World:
    """A server behind a network that can be cut, and what the work of a scenario has done."""

    def __init__(self, where):
        self.where = where
        self.server = Server(where, listen=True)
        self.chaos = Chaos(self.server.port, resp_replies)
        self.url = "idem://127.0.0.1:%d" % self.chaos.port

    def stop(self):
        self.server.kill()

    def start(self):
        """The same server again."""
        old, self.server = self.server, Server.__new__(Server)
        self.server.socket, self.server.port, self.server.http = old.socket, old.port, None
        Process.__init__(self.server, old.argv, ready=old.port)

    def restart(self):
        """A crash, and the same server again."""
        self.stop()
        self.start()

    def close(self):
        self.chaos.stop()
        self.server.stop()


class Play:
    """One scenario: its own scope and effects."""

    def __init__(self, world, drivers):
        self.world, self.drivers = world, itertools.cycle(drivers)
        self.scope = "scenario-%d-%d" % (os.getpid(), next(names))
        self.file = os.path.join(world.where, self.scope)
        self.started, self.tokens = {}, {}

    def effects(self):
        if not os.path.exists(self.file):
            return []
        with open(self.file) as f:
            return f.read().split()

    def command(self, step):
        once = dict(step["once"])
        work = [{**w, "append": self.file} if "append" in w else w for w in once.pop("work", [])]
        work = [{**w, "file": self.file} if "await_loss_ms" in w else w for w in work]
        key = self.tokens[once["key"][1:]] if once["key"].startswith("$") else once["key"]
        scope = self.scope + ("/" + once.pop("scope") if "scope" in once else "")
        return {"op": "once", **once, "scope": scope, "key": key, "work": work}

    def check(self, answer, expect):
        got = {k: answer.get(k) for k in expect}
        assert got == expect, answer

    def step(self, step):
        driver = next(self.drivers)
        control = self.world.server.client
        if "parallel" in step:
            started = [(d, d.start(self.command(step))) for d in itertools.islice(self.drivers, step["parallel"])]
            answers = [d.finish(n) for d, n in started]
            for answer in answers:
                self.check(answer, step["expect"])
            assert sum(a["ran"] for a in answers) == step["ran"]
        elif "each_of" in step:
            commands = [self.command(step) for _ in range(step["each_of"])]
            started = [(d, d.start({**c, "key": "%s-%d" % (c["key"], i)}))
                       for i, (d, c) in enumerate(zip(self.drivers, commands))]
            for d, n in started:
                self.check(d.finish(n), step["expect"])
        elif "start" in step:
            self.started[step["start"]] = driver, driver.start(self.command(step))
        elif "finish" in step:
            d, n = self.started.pop(step["finish"])
            self.check(d.finish(n), step["expect"])
        elif "once" in step:
            self.check(driver.call(self.command(step)), step["expect"])
        elif "until_effects" in step:
            assert wait_until(lambda: len(self.effects()) >= step["until_effects"])
        elif "last_effect" in step:
            assert wait_until(lambda: self.effects()[-1] == step["last_effect"]), self.effects()
        elif "until_doubt" in step:
            with control() as c:
                assert wait_until(lambda: c("BEGIN", self.scope, step["until_doubt"])[0] == "doubt")
        elif "until_state" in step:
            key, state = step["until_state"]
            with control() as c:
                assert wait_until(lambda: "'state', '%s'" % state in str(c("GET", self.scope, key)))
        elif "kill" in step:
            for d, _ in self.started.values():
                os.killpg(d.process.pid, signal.SIGKILL)
        elif "settle" in step:
            key, *rest = step["settle"]
            with control() as c:
                assert c("SETTLE", self.scope, key, *(["AS", *rest] if rest else ["REASON", "cancelled"]))[0] == "settled"
        elif "issue" in step:
            self.tokens[step["issue"]] = driver.call({"op": "issue", "subject": self.scope})["value"]
        elif "redeem" in step:
            self.check(driver.call({"op": "redeem", "token": self.tokens[step["redeem"]],
                                    "subject": step.get("subject", self.scope)}), step["expect"])
        elif "cut_reply" in step:
            self.world.chaos.cut_at(step["cut_reply"])
        elif "cut_every" in step:
            self.cutting = threading.Event()
            self.cutter = threading.Thread(target=self.cut_every, args=(step["cut_every"],), daemon=True)
            self.cutter.start()
        elif "network" in step:
            if hasattr(self, "cutting"):
                self.cutting.set()
                self.cutter.join()
            getattr(self.world.chaos, step["network"])()
        elif "delay_ms" in step:
            self.world.chaos.delay(step["delay_ms"] / 1000)
        elif "sleep_ms" in step:
            threading.Event().wait(step["sleep_ms"] / 1000)
        elif "driver" in step:
            d, n = self.started.popitem()[1]
            with d.lock:
                assert d.lock.wait_for(lambda: d.ended or n in d.answers, 60)
            assert n not in d.answers
        elif "server" in step:
            getattr(self.world, step["server"])()
        else:
            raise AssertionError("no such step: %r" % step)

    def cut_every(self, replies):
        while not self.cutting.is_set():
            self.world.chaos.cut_at(replies)
            self.cutting.wait(0.05)


def play(world, languages, scenario):
    drivers = [driver(language, world.url) for language in languages]
    try:
        for d in drivers:
            d.call({"op": "fingerprint", "arguments": 1})  # a scenario has its own clock: the driver's start is no part of it
        run = Play(world, drivers)
        for step in scenario["steps"]:
            run.step(step)
            if step.get("driver") == "died":
                run.drivers = itertools.cycle([d if not d.ended else fresh(drivers, i, languages[i], world)
                                               for i, d in enumerate(drivers)])
        if scenario["effects"] is not None:
            assert len(run.effects()) == scenario["effects"], run.effects()
    finally:
        if world.server.process.poll() is not None:
            world.start()
        world.chaos.heal()
        for d in drivers:
            d.close()


def fresh(drivers, i, language, world):
    drivers[i].close()
    drivers[i] = driver(language, world.url)
    return drivers[i]


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_error_says_which_server_and_what_to_do(language):
    """Not the bare word of the protocol."""
    def told(url, key, deadline_ms=30000, **more):
        d = driver(language, url)
        try:
            return d.call({"op": "once", "scope": "s", "key": key, "work": [{"return": 1}], "options": {"deadline_ms": deadline_ms}, **more})
        finally:
            d.close()

    address = "127.0.0.1:%d" % free_port()
    away = told("idem://name:s3cret@" + address, "k", 500)
    assert away["error"] == "Unavailable" and address in away["message"] and "s3cret" not in away["message"], away
    with folder() as where, Server(where, "--credentials", write_credentials(where, "shop a-long-secret use"), listen=True) as s:
        address = "127.0.0.1:%d" % s.port
        stranger = told("idem://" + address, "k")
        assert stranger["class"] == "not_executed" and "IDEM_AUTH=name:secret" in stranger["message"], stranger
        long = told("idem://shop:a-long-secret@" + address, "k" * 304)
        assert long["class"] == "not_executed" and long["message"].startswith("the id (key) has 304 bytes"), long
        url = "idem://shop:a-long-secret@" + address
        assert told(url, "k", arguments={"amount": 5})["class"] == "done"
        other = told(url, "k", arguments={"amount": 6})
        assert other["error"] == "Mismatch" and "s/k" in other["message"] and other["message"].endswith(
            "; a retry must pass the first arguments; other work needs another key"), other


@pytest.fixture(scope="module")
def world():
    with folder() as where:
        world = World(where)
        yield world
        world.close()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s["name"].replace(" ", "-"))
def test_a_client_follows_the_contract(world, language, scenario):
    play(world, [language], scenario)


MIXED = [s for s in SCENARIOS if not any(word in json.dumps(s) for word in ("cut_", "delay_", "network", "die", "kill", "server"))]


@pytest.mark.parametrize("scenario", MIXED, ids=lambda s: s["name"].replace(" ", "-"))
def test_what_one_language_began_another_understands(world, scenario):
    play(world, LANGUAGES, scenario)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_deadline_holds_for_connecting_too(language):
    """A server that takes the connection and says nothing to AUTH: a reply may take 5 s, but not longer than the deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        one = driver(language, "idem://ann:secret@127.0.0.1:%d" % silent.getsockname()[1])
        one.call({"op": "fingerprint", "arguments": 1})
        asked = time.monotonic()
        answer = one.call({"op": "once", "scope": "s", "key": "k", "options": {"deadline_ms": 200}, "work": [{"return": 1}]})
        assert time.monotonic() - asked < 4
        assert (answer["class"], answer["error"], answer["ran"]) == ("not_executed", "Unavailable", False)
        one.close()


def apps():
    """The web application of each language: see clients/conformance/README.md."""
    java = build_java()
    node_packages()
    with open(os.path.join(java, "tomcat10.path")) as f:
        jars = f.read().strip()
    return {"python": ["/usr/bin/python3", os.path.join(CLIENTS, "python/tests/app.py"), "wsgi"],
            "node": [*RUN_NODE, os.path.join(NODE, "tests/app.js"), "express"],
            "php": ["php", os.path.join(CLIENTS, "php/tests/app.php")],
            "go": [build_go("tests/app", "go-tests/app")],
            "java": ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8", "-cp",
                     "%s/test10:%s/idem-client.jar:%s" % (java, java, jars), "idem.jakarta.FilterApp"]}


def test_an_answer_that_one_language_stored_every_other_replays():
    requests = {"/orders": 201, "/missing": 404, "/throws": 500, "/redirect": 302, "/large": 200, "/large-failure": 500}
    with folder() as where, Server(where, listen=True) as server, contextlib.ExitStack() as stack:
        running = {}
        for language, argv in apps().items():
            running[language] = middleware.App(where, argv, server)
            stack.callback(running[language].process.stop)
        for first, app in running.items():
            play = middleware.Play(app)
            for path, status in requests.items():
                request = {"path": path, "key": first + path, "body": "x"}
                told = play.send(request)
                assert told.status == status, (first, path, told.body[:300])
                for other in running:
                    play.app = running[other]
                    got = play.send(request)
                    if "large" in path:
                        name = re.split("[/#]", json.loads(got.body)["type"])[-1]
                        assert name == ("failed" if "failure" in path else "not-replayable"), (first, other, got.body[:300])
                        continue
                    said = (first, other, path, dict(got.headers), got.body[:300])
                    assert (got.status, got.body, got.headers["Idempotent-Replayed"]) == (status, told.body, "true"), said
                    assert got.headers["Location"] == told.headers["Location"] and got.headers.get_all("X-Two") == told.headers.get_all("X-Two"), said
                play.app = app
            assert {path: play.ran(path) for path in requests} == dict.fromkeys(requests, 1), first


ARGUMENTS = [{"amount": 5, "to": "bob"}, [1, 2, [3, None, True]], {"b": {"y": "é", "x": "中"}, "a": "\u0001\"\\\n/\u007f"},
             "text", {"\ud83d\ude00": 1, "\uffee": 2}, 9007199254740991, -3, {}, []]


def test_all_languages_make_the_same_fingerprint(world):
    found = {}
    for language in LANGUAGES:
        one = driver(language, world.url)
        found[language] = [one.call({"op": "fingerprint", "arguments": a})["value"] for a in ARGUMENTS]
        one.close()
    for language in LANGUAGES:
        assert found[language] == found["python"], language
    assert len(set(found["python"])) == len(ARGUMENTS)


def code_lines(path):
    """Without comments, docstrings and empty lines."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r'(?m)^ *"""(?s:.*?)"""$', "", text) if path.endswith(".py") else re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith(("#", "//")))


def sources(folder):
    """The files of a client, without its tests."""
    found = (os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names)
    return [n for n in found if n.endswith((".py", ".js", ".php", ".java", ".go")) and not n.startswith("tests/") and not n.endswith("_test.go")]


@pytest.mark.parametrize("language,folder", [("python", "idem"), ("node", "src"), ("php", "src"), ("java", "src/main/java/idem"), ("go", "")])
def test_the_pages_tell_the_size_of_a_client(language, folder):
    source = os.path.join(CLIENTS, language, folder)
    for page in ("README.md", "README.zh-CN.md"):
        with open(os.path.join(CLIENTS, language, page), encoding="utf-8") as f:
            rows = re.findall(r"^\|[^|]*\| ((?:`[\w/]+\.\w+` ?)+)\| (\d+) \|$", f.read(), re.M)
        told = [(re.findall(r"`(.*?)`", files), int(lines)) for files, lines in rows]
        assert sorted(sum((files for files, _ in told), [])) == sorted(sources(source))
        for files, lines in told:
            assert lines == pytest.approx(sum(code_lines(os.path.join(source, name)) for name in files), rel=0.1), files


@pytest.mark.parametrize("language", ["node", "php", "python"])
def test_a_package_has_its_licence(language):
    with open(os.path.join(ROOT, "LICENSE")) as ours, open(os.path.join(CLIENTS, language, "LICENSE")) as theirs:
        assert ours.read() == theirs.read()
