"""The retrying HTTP clients: one key through all tries, and an end where the outcome is unknown.

A language is one line in SENDERS: a program that gets URL, KEY (empty: one of its own) and TRIES, sends a POST of "book" and prints what
it got: {"status": …, "body": …} or {"error": "OutcomeUnknown" | "no answer"}.

Waits more than it works.
"""
import json
import os
import socket
import subprocess
import threading
import time

import pytest

from client_builds import BUILD, build_go
from lib import ROOT, folder, wait_until
from middleware import App, Play

SENDERS = {
    "go": [os.path.join(BUILD, "go-send")],
    "node": ["node", "clients/node/tests/send.js"],
    "php": ["php", "clients/php/tests/send.php"],
    "python": ["/usr/bin/python3", "clients/python/tests/send.py"],
}


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
AGAIN = b'{"type":"/.idem/problems/not-executed","retryable":true}'


@pytest.fixture(scope="module", params=sorted(SENDERS))
def sender(request):
    if request.param == "go":
        build_go("tests/send", "go-send")
    return request.param


@pytest.fixture(scope="module")
def app():
    """Of any language: what it answers is tested elsewhere."""
    with folder() as where:
        app = App(where, ["/usr/bin/python3", os.path.join(ROOT, "clients/python/tests/app.py"), "wsgi"])
        yield app
        app.close()


def test_a_request_in_progress_is_asked_for_again(sender, app):
    play, answers = Play(app), []
    threads = [threading.Thread(target=lambda: answers.append(send(sender, app.url + "/slow", 'retried "%s" \\' % sender))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{"status": 200, "body": "slow"}] * 3
    assert play.ran("/slow") == 1


def test_an_unknown_outcome_is_not_retried(sender, app):
    key = "doubt-" + sender
    with app.server.client() as c:
        c("BEGIN", "anonymous", key, "LEASE", "100")
        assert wait_until(lambda: c("BEGIN", "anonymous", key)[0] == "doubt")
    assert send(sender, app.url + "/doubt", key) == {"error": "OutcomeUnknown"}


def test_other_problems_and_answers_are_given_back(sender, app):
    assert send(sender, app.url + "/redirect")["status"] == 302
    assert send(sender, app.url + "/missing") == {"status": 404, "body": "no such order"}
    assert send(sender, app.url + "/missing", "x" * 300)["status"] == 400


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
