"""Plays clients/conformance/middleware.json: the middleware of every client answers as the gateway does.

    with folder() as where:
        app = App(where, ["node", "app.js"])     # PORT FOLDER URL are added: see clients/conformance/README.md
        app.play(SCENARIOS[0])
        app.close()

The tests at its end are for every client: a test file imports them, and has a fixture `app`.
"""
import contextlib
import hashlib
import http.client
import itertools
import json
import os
import socket
import threading

import pytest

from lib import ROOT, Process, Server, free_port, wait_until

with open(os.path.join(ROOT, "clients/conformance/middleware.json"), encoding="utf-8") as f:
    SCENARIOS = json.load(f)
names = itertools.count()
PROBLEM_BASE = "https://shop.example/problems#"  # clients match what follows the last / or #


def scenario_id(scenario):
    return scenario["name"].replace(" ", "-")


class App:
    """A server of idem, and the application of one framework that uses it."""

    def __init__(self, where, argv, server=None, **more):
        self.server = server or Server(where, listen=True)
        self.effects, self.port = os.path.join(where, "effects"), free_port()
        self.url = "http://127.0.0.1:%d" % self.port
        self.process = Process([*argv, str(self.port), where, "idem://127.0.0.1:%d" % self.server.port], ready=self.port,
                               env={"IDEM_PROBLEM_BASE": PROBLEM_BASE}, **more)

    def play(self, scenario):
        play = Play(self)
        try:
            for step in scenario["steps"]:
                play.step(step)
        finally:
            if self.server.process.poll() is not None:
                self.start()

    def close(self):
        self.process.stop()
        self.server.stop()

    def stop(self):
        self.server.kill()

    def start(self):
        old, self.server = self.server, Server.__new__(Server)
        self.server.socket, self.server.port, self.server.http = old.socket, old.port, None
        Process.__init__(self.server, old.argv, ready=old.port)

    def ran(self, path):
        if not os.path.exists(self.effects):
            return 0
        with open(self.effects) as f:
            return f.read().split().count(path)


def text(value):
    return value["text"] * value["times"] if isinstance(value, dict) else value


class Play:
    """One scenario: its own callers, and answers that it remembers."""

    def __init__(self, app):
        self.app, self.name = app, "play-%d-%d" % (os.getpid(), next(names))
        self.answers, self.started = {}, {}
        self.before = {path: app.ran(path) for path in self.paths()}

    def paths(self):
        return set(open(self.app.effects).read().split()) if os.path.exists(self.app.effects) else set()

    def ran(self, path):
        return self.app.ran(path) - self.before.get(path, 0)

    def credential(self, caller="ann"):
        return "Bearer %s-%s" % (self.name, caller)

    def key(self, value):
        return text(value) if value != "$unique" else self.name

    def send(self, request):
        connection = http.client.HTTPConnection("127.0.0.1", self.app.port, timeout=120)
        body = text(request.get("body", "x")).encode() if request.get("method") != "GET" else b""
        connection.putrequest(request.get("method", "POST"), request["path"])
        for key in request.get("keys", [request["key"]] if "key" in request else []):
            connection.putheader("Idempotency-Key", self.key(key))
        if request.get("caller", "ann") is not None:
            connection.putheader("Authorization", self.credential(request.get("caller", "ann")))
        if "tenant" in request:
            connection.putheader("X-Tenant", self.name + text(request["tenant"]))
        if body:
            connection.putheader("Content-Type", request.get("type", "text/plain"))
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.body = answer.read()
        connection.close()
        return answer

    def check(self, answer, expect):
        said = answer.status, dict(answer.headers), answer.body[:500]
        for name, wanted in expect.get("headers", {}).items():
            got = answer.headers.get_all(name)
            assert (bool(got) == bool(wanted)) if wanted in (None, True) else (got == [wanted] or got == wanted), (name, said)
        assert answer.status == expect["status"], said
        if "problem" in expect:
            assert answer.headers["Content-Type"].startswith("application/problem+json"), said
            assert answer.headers["Link"] and answer.headers["Cache-Control"] == "no-store", said
            told = json.loads(answer.body)
            wanted = {k: expect[k] for k in ("status", "class", "retryable", "detail") if k in expect}
            wanted["type"] = wanted["documentation"] = PROBLEM_BASE + expect["problem"]
            assert {k: told[k] for k in wanted} == wanted, told
        if "type" in expect:
            assert (answer.headers["Content-Type"] or "").lower().replace("; ", ";") == expect["type"], said
        if "json" in expect:
            assert json.loads(answer.body) == expect["json"], said
        if "text" in expect:
            assert answer.body.decode() == expect["text"], said
        if "length" in expect:
            assert len(answer.body) == expect["length"]
        if "same_as" in expect:
            first = self.answers[expect["same_as"]]
            assert answer.body == first.body, (said, first.body)
            for name in ("Content-Type", "Content-Length"):
                assert answer.headers[name] == first.headers[name], (said, dict(first.headers))

    def scope(self):
        return "caller-" + hashlib.sha256(self.credential().encode()).hexdigest()[:40]

    def step(self, step):
        if "start" in step:
            def ask():
                self.answers[step["start"]] = self.send(step["send"])
            self.started[step["start"]] = threading.Thread(target=ask)
            self.started[step["start"]].start()
        elif "finish" in step:
            self.started[step["finish"]].join()
            self.check(self.answers[step["finish"]], step["expect"])
        elif "send" in step:
            answer = self.answers[step.get("as")] = self.send(step["send"])
            self.check(answer, step["expect"])
        elif "ran" in step:
            assert {path: self.ran(path) for path in step["ran"]} == step["ran"]
        elif "until_ran" in step:
            assert wait_until(lambda: {path: self.ran(path) for path in step["until_ran"]} == step["until_ran"])
        elif "sleep_ms" in step:
            threading.Event().wait(step["sleep_ms"] / 1000)
        elif "server" in step:
            getattr(self.app, step["server"])()
        else:
            with self.app.server.client() as c:
                self.control(c, step)

    def control(self, c, step):
        if "record" in step:
            record = c("GET", step.get("scope", self.scope()), self.key(step["record"]))
            assert set(step["expect"]) <= set(record), record
        elif "settle" in step:
            outcome = ["AS", "SUCCEEDED", step["as"]] if "as" in step else ["REASON", "cancelled"]
            assert c("SETTLE", self.scope(), step["settle"], *outcome)[0] == "settled"
        elif "doubt" in step:
            c("BEGIN", self.scope(), step["doubt"], "LEASE", "100")
            assert wait_until(lambda: c("BEGIN", self.scope(), step["doubt"])[0] == "doubt")
        else:
            raise AssertionError("no such step: %r" % step)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=scenario_id)
def test_middleware_answers_as_the_gateway_does(app, scenario):
    app.play(scenario)


def test_a_client_that_goes_away_does_not_stop_the_work(app):
    play = Play(app)
    with socket.create_connection(("127.0.0.1", app.port)) as s:
        s.sendall(b"POST /slow HTTP/1.1\r\nHost: x\r\nIdempotency-Key: gone\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx")
        assert wait_until(lambda: play.ran("/slow") == 1)
    assert wait_until(lambda: play.send({"path": "/slow", "key": "gone", "caller": None}).status == 200)
    assert play.ran("/slow") == 1


def test_an_answer_without_content_is_replayed(app):
    play = Play(app)
    assert [play.send({"path": "/nothing", "key": "k"}).status for _ in range(2)] == [204, 204]
    assert play.ran("/nothing") == 1


def test_another_boundary_of_a_form_is_the_same_request(app):
    play = Play(app)
    for boundary in ("one", "two"):
        form = "--%s\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--%s--\r\n" % (boundary, boundary)
        assert play.send({"path": "/form", "key": "k", "body": form, "type": "multipart/form-data; boundary=" + boundary}).status == 200
    assert play.ran("/form") == 1


def send_half(app, path, key, kind):
    """The client goes away while it sends."""
    with socket.create_connection(("127.0.0.1", app.port)) as s:
        s.sendall(("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
                   % (path, key, kind, len(FORM), FORM[:len(FORM) // 2])).encode())
        s.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while s.recv(65536):
                pass


FORM = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n%s\r\n--b--\r\n" % ("x" * 100)


def test_a_request_whose_body_ends_early_does_not_run(app):
    """The retry with the whole body is the first request, not a mismatch."""
    play = Play(app)
    send_half(app, "/orders", "early", "text/plain")
    answer = play.send({"path": "/orders", "key": "early", "caller": None})
    assert answer.status == 201, answer.body
    assert play.ran("/orders") == 1


def test_an_upload_that_ends_early_can_be_sent_again(app, path="/upload"):
    """A multipart body is read by the service, which refuses half of it with a 4xx: that is no answer for the whole one."""
    play, key = Play(app), "upload-" + path
    send_half(app, path, key, "multipart/form-data; boundary=b")
    whole = {"path": path, "key": key, "caller": None, "body": FORM, "type": "multipart/form-data; boundary=b"}
    assert wait_until(lambda: play.send(whole).status != 409)
    answers = [play.send(whole) for _ in range(2)]
    assert [a.status for a in answers] == [200, 200], answers[0].body
    assert play.ran("/upload") == 1
