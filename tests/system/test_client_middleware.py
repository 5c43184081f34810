"""The middleware of the clients gives the gateway's answers to `Idempotency-Key`, and their retrying HTTP clients understand them.

A language is one line in SERVICES: a program that listens on PORT, notes the path of every request that reaches the service in
FOLDER/effects, and has the paths of clients/python/tests/web.py, under /required/ with `required`, loose mode, bodies of at most 1000
bytes, a wait of 60 s and X-Tenant as the scope. And it is one line in SENDERS: a program that sends a POST of "book" and prints what it got.
"""
import http.client
import json
import os
import socket
import subprocess
import threading
import time

import pytest

from lib import ROOT, Process, Server, folder, free_port, wait_until

SERVICES = {
    "python-wsgi": ["/usr/bin/python3", "clients/python/tests/web.py", "wsgi"],
    "python-asgi": ["/usr/bin/python3", "clients/python/tests/web.py", "asgi"],
}
SENDERS = {
    "python": ["/usr/bin/python3", "clients/python/tests/send.py"],
}


def request(port, method, path, body, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body.encode(), headers)
    answer = connection.getresponse()
    answer.body = answer.read()
    connection.close()
    return answer


class Service:
    def __init__(self, where, name, url):
        self.effects, self.name, self.port = os.path.join(where, "effects"), name, free_port()
        self.process = Process([*SERVICES[name], str(self.port), where, url], ready=self.port, cwd=ROOT)

    def ask(self, path, key=None, body="x", method="POST", **headers):
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        if key is not None:
            headers["Idempotency-Key"] = key
        return request(self.port, method, path, body, headers)

    def ran(self, path):
        if not os.path.exists(self.effects):
            return 0
        with open(self.effects) as f:
            return f.read().split().count(path)

    def key(self, name):
        return '"%s-%s"' % (name, self.name)


@pytest.fixture(scope="module")
def server():
    with folder() as where:
        server = Server(where, listen=True)
        server.url = "idem://127.0.0.1:%d" % server.port
        yield server
        server.stop()


@pytest.fixture(scope="module", params=sorted(SERVICES))
def service(request, server):  # noqa: F811
    with folder() as where:
        service = Service(where, request.param, server.url)
        service.idem = server
        yield service
        service.process.stop()


def problem(answer, status, name):
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"] == "application/problem+json"
    told = json.loads(answer.body)
    assert told["type"] == "https://idem.example/problems/" + name
    assert told["status"] == status and told["title"] and told["detail"]
    assert answer.headers["Cache-Control"] == "no-store" and told["type"] in answer.headers["Link"]
    return told


def test_a_repeat_gets_the_same_answer_byte_for_byte(service):
    first = service.ask("/orders", service.key("orders"), "book")
    again = service.ask("/orders", service.key("orders").strip('"'), "book")
    assert first.status == again.status == 201, first.body
    assert first.body == again.body and json.loads(first.body)["got"] == "book"
    assert first.headers["Idempotent-Replayed"] is None and again.headers["Idempotent-Replayed"] == "true"
    for name in ("Content-Type", "Location", "Content-Length"):
        assert first.headers[name] == again.headers[name]
    assert again.headers.get_all("X-Two") == first.headers.get_all("X-Two")
    assert ",".join(first.headers.get_all("X-Two")).replace(" ", "") == "a,b"
    assert first.headers["Set-Cookie"] and again.headers["Set-Cookie"] is None
    assert service.ran("/orders") == 1
    with service.idem.client() as c:
        record = c("GET", "anonymous", "orders-" + service.name)
    assert "http" in record and "succeeded" in record


def test_another_request_under_the_same_key_is_refused(service):
    assert service.ask("/other", service.key("mismatch"), "one").status == 200
    assert problem(service.ask("/other", service.key("mismatch"), "two"), 422, "mismatch")["retryable"] is False
    problem(service.ask("/other?q=1", service.key("mismatch"), "one"), 422, "mismatch")
    problem(service.ask("/other", service.key("mismatch"), "one", method="PATCH"), 422, "mismatch")
    assert service.ask("/other", service.key("mismatch"), "two", Authorization="Bearer bob").status == 200
    assert service.ran("/other") == 2


def test_all_languages_ask_for_the_same_scope_and_fingerprint(server):
    """A request that one service has answered is replayed by another."""
    with folder() as where:
        services = [Service(where, name, server.url) for name in sorted(SERVICES)]
        try:
            answers = [s.ask("/orders?a=%20b&c=/%2F", '"shared"', "书", Authorization="Bearer x") for s in services]
            assert [a.body for a in answers] == [answers[0].body] * len(services)
            assert [a.headers["Idempotent-Replayed"] for a in answers] == [None] + ["true"] * (len(services) - 1)
        finally:
            for s in services:
                s.process.stop()


def test_what_is_not_guarded_passes(service):
    for _ in range(2):
        assert service.ask("/passes", None).status == 200
        assert service.ask("/passes", service.key("get"), method="GET").status == 200
    assert service.ran("/passes") == 4


@pytest.mark.parametrize("key", ["", '"', "a b", '""', '" a"', '"a\\b"', '"a"b', "a,b", '"a", "b"', "x" * 256])
def test_a_malformed_key_is_refused(service, key):
    assert problem(service.ask("/malformed", key), 400, "key-malformed")["class"] == "not executed"
    assert service.ran("/malformed") == 0


def test_a_route_may_require_keys_limit_bodies_and_name_the_caller(service):
    problem(service.ask("/required/x"), 400, "key-missing")
    problem(service.ask("/required/x", service.key("big"), "x" * 1001, X_Tenant="a"), 413, "body-too-large")
    problem(service.ask("/required/x", service.key("tenant")), 400, "scope-missing")
    problem(service.ask("/required/x", service.key("tenant"), X_Tenant="x" * 201), 403, "scope-refused")
    for tenant in ("a", "a", "b"):
        assert service.ask("/required/x", service.key("tenant"), X_Tenant=tenant).status == 200
    assert service.ran("/required/x") == 2


def test_a_duplicate_is_told_to_wait_or_waits(service):
    started = []
    threads = [threading.Thread(target=lambda path=path: started.append(service.ask(path, service.key("slow"), X_Tenant="a")))
               for path in ("/slow", "/required/slow")]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: service.ran("/slow") == 1 and service.ran("/required/slow") == 1)
    busy = service.ask("/slow", service.key("slow"))
    assert problem(busy, 409, "in-progress")["retryable"] is True
    assert int(busy.headers["Retry-After"]) >= 1
    waited = service.ask("/required/slow", service.key("slow"), X_Tenant="a")
    assert (waited.status, waited.body, waited.headers["Idempotent-Replayed"]) == (200, b"slow", "true")
    for thread in threads:
        thread.join()
    assert [a.body for a in started] == [b"slow", b"slow"]
    assert service.ran("/required/slow") == 1


def test_a_client_that_goes_away_does_not_stop_the_work(service):
    before, key = service.ran("/slow"), service.key("gone")
    with socket.create_connection(("127.0.0.1", service.port)) as s:
        s.sendall(("POST /slow HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nContent-Length: 1\r\n\r\nx" % key).encode())
        assert wait_until(lambda: service.ran("/slow") == before + 1)
    assert wait_until(lambda: service.ask("/slow", key).status == 200)
    assert service.ran("/slow") == before + 1


@pytest.mark.parametrize("path,status", [("/missing", 404), ("/throws", 500), ("/redirect", 302), ("/nothing", 204)])
def test_failures_are_answers_in_strict_mode_and_are_tried_again_in_loose_mode(service, path, status):
    key = service.key("failure-" + path[1:])
    first, again = service.ask(path, key), service.ask(path, key)
    assert first.status == again.status == status
    assert first.body == again.body
    assert first.headers["Location"] == again.headers["Location"]
    assert service.ran(path) == 1
    for _ in range(2):
        assert service.ask("/required" + path, key, X_Tenant="a").status == status
    assert service.ran("/required" + path) == (2 if status >= 400 else 1)


def test_a_service_can_say_that_it_did_nothing_or_does_not_know(service):
    for path in ("/refused", "/said"):
        for n in (1, 2):
            refused = service.ask(path, service.key("refused"), method="PATCH" if path == "/said" else "POST")
            assert problem(refused, 503, "not-executed")["retryable"] is True
            assert refused.headers["Retry-After"] == "1"
            assert service.ran(path) == n
    problem(service.ask("/unknown", service.key("unknown")), 504, "outcome-unknown")
    problem(service.ask("/unknown", service.key("unknown")), 409, "in-progress")  # until the lease is over
    assert service.ran("/unknown") == 1


def test_too_many_requests_frees_the_key(service):
    assert [service.ask("/limited", service.key("limited")).status for _ in range(2)] == [429, 429]
    assert service.ran("/limited") == 2


def test_an_answer_that_is_too_large_is_done_and_not_replayed(service):
    assert len(service.ask("/large", service.key("large")).body) == 3 << 20
    assert problem(service.ask("/large", service.key("large")), 410, "not-replayable")["class"] == "done"
    assert service.ran("/large") == 1


def test_another_boundary_of_a_form_is_the_same_request(service):
    for boundary in ("one", "two"):
        form = "--%s\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--%s--\r\n" % (boundary, boundary)
        answer = service.ask("/form", service.key("form"), form, Content_Type="multipart/form-data; boundary=" + boundary)
        assert (answer.status, answer.body) == (200, b"fine")
    assert service.ran("/form") == 1


def test_what_was_settled_or_is_in_doubt_is_told(service):
    with service.idem.client() as c:
        c("SETTLE", "anonymous", "settled-" + service.name, "REASON", "cancelled")
        c("BEGIN", "anonymous", "doubt-" + service.name, "LEASE", "100")
        assert wait_until(lambda: c("BEGIN", "anonymous", "doubt-" + service.name)[0] == "doubt")
    assert problem(service.ask("/settled", service.key("settled")), 409, "settled")["class"] == "failed for good"
    unknown = service.ask("/doubt", service.key("doubt"))
    assert problem(unknown, 409, "outcome-unknown")["class"] == "outcome unknown"
    assert unknown.headers["Retry-After"] is None


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_without_a_server_nothing_runs(name):
    with folder() as where:
        service = Service(where, name, "idem://127.0.0.1:%d" % free_port())
        try:
            away = service.ask("/orders", '"away"')
            assert problem(away, 503, "not-executed")["retryable"] is True
            assert away.headers["Retry-After"] == "1"
            assert service.ask("/orders").status == 201
            assert service.ran("/orders") == 1
        finally:
            service.process.stop()


def send(name, url, key="", tries=30):
    done = subprocess.run([*SENDERS[name], url, key, str(tries)], cwd=ROOT, stdout=subprocess.PIPE, timeout=300, check=True)
    return json.loads(done.stdout)


class Replies(threading.Thread):
    """A service that gives these replies, one a connection; b"" closes it. Keeps the keys that it got, and when."""

    def __init__(self, *replies):
        super().__init__(daemon=True)
        self.listener, self.replies, self.got = socket.create_server(("127.0.0.1", 0)), replies, []
        self.url = "http://127.0.0.1:%d/" % self.listener.getsockname()[1]
        self.start()

    def run(self):
        for reply in self.replies:
            connection, _ = self.listener.accept()
            with connection, connection.makefile("rb") as f:
                lines = list(iter(f.readline, b"\r\n"))
                f.read(4)
                self.got.append((time.monotonic(), [line.split(b":", 1)[1].strip() for line in lines if line.lower().startswith(b"idempotency-key:")]))
                connection.sendall(reply)
        self.listener.close()


def reply(status, body=b"", *headers):
    return b"\r\n".join([b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body), b"Connection: close", *headers, b"", body])


PROBLEM = b"Content-Type: application/problem+json"
AGAIN = b'{"type":"https://idem.example/problems/not-executed","retryable":true}'


@pytest.fixture(scope="module", params=sorted(SENDERS))
def sender(request):  # noqa: F811
    return request.param


@pytest.fixture(scope="module")
def answering(server):
    """A service of any language: what it answers is tested above."""
    with folder() as where:
        service = Service(where, sorted(SERVICES)[0], server.url)
        service.idem = server
        yield service
        service.process.stop()


def test_a_request_in_progress_is_asked_for_again(sender, answering):
    url, answers = "http://127.0.0.1:%d/slow" % answering.port, []
    before = answering.ran("/slow")
    threads = [threading.Thread(target=lambda: answers.append(send(sender, url, 'retried "%s" \\' % sender))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{"status": 200, "body": "slow"}] * 3
    assert answering.ran("/slow") == before + 1


def test_an_unknown_outcome_is_not_retried(sender, answering):
    key = "retry-doubt-" + sender
    with answering.idem.client() as c:
        c("BEGIN", "anonymous", key, "LEASE", "100")
        assert wait_until(lambda: c("BEGIN", "anonymous", key)[0] == "doubt")
    assert send(sender, "http://127.0.0.1:%d/doubt" % answering.port, key) == {"error": "OutcomeUnknown"}


def test_other_problems_and_answers_are_given_back(sender, answering):
    base = "http://127.0.0.1:%d" % answering.port
    assert send(sender, base + "/redirect")["status"] == 302
    assert send(sender, base + "/missing") == {"status": 404, "body": "missing"}
    assert send(sender, base + "/missing", "x" * 300)["status"] == 400


def test_a_connection_that_breaks_is_retried_with_the_same_key(sender):
    service = Replies(b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal", reply(200, b"ok"))
    assert send(sender, service.url) == {"status": 200, "body": "ok"}
    keys = [keys for _, keys in service.got]
    assert keys == [keys[0]] * 3 and len(keys[0]) == 1 and len(keys[0][0]) > 20
    service.join(60)
    assert send(sender, service.url, tries=2) == {"error": "no answer"}


def test_the_server_says_when_to_come_back(sender):
    service = Replies(reply(503, AGAIN, PROBLEM, b"Retry-After: 2"), reply(503, b"not a problem of idem", b"Retry-After: 60"))
    assert send(sender, service.url, "k") == {"status": 503, "body": "not a problem of idem"}
    (first, key), (second, again) = service.got
    assert second - first >= 2 and key == again == [b'"k"']
    service = Replies(*[reply(503, AGAIN, PROBLEM)] * 3)
    assert send(sender, service.url, "k", tries=3) == {"status": 503, "body": AGAIN.decode()}
    assert len(service.got) == 3
