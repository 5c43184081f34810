"""nginx without memory: every allocation of its worker fails once while a gated request passes (tests/faults).

The client gets a response or a closed connection. Nothing runs twice, what the response says is true, a retry gets an answer, and the
worker lives. A pool of the smallest size for each request makes almost every allocation of the module a call of malloc."""
import os
import subprocess
import sys
import time

import pytest

from gateway import *
from lib import ROOT, Server, folder

sys.path.insert(0, os.path.join(ROOT, "tests/faults"))

import faults  # noqa: E402

SMALL_POOL = "request_pool_size 112;"  # NGX_MIN_POOL_SIZE
PLAIN_MODULE = os.path.join(ROOT, "build/ngx_http_idem_module.so")  # a sanitizer wants to be the allocator itself


@pytest.fixture(scope="module", autouse=True)
def injector():
    subprocess.run(["make", "-s", "build/tests/faults.so"], cwd=ROOT, check=True)


class Rig:
    """nginx whose calls of this kind can fail, and a number for the next key."""

    def __init__(self, where, ledger, engine, kind="alloc", module=PLAIN_MODULE, http=SMALL_POOL, more="", **nginx):
        self.kind, self.fault, self.ledger = kind, faults.Fault(where), ledger
        self.nginx = Nginx(where, engine, ledger.port, "idem_lease 2s;", http=http, module=module, env=self.fault.env, more="""
            location /content { idem on; idem_lease 2s; idem_dedupe_content 1h; proxy_pass http://service; }
            location /kept { idem on; idem_lease 2s; idem_fingerprint json; error_page 500 = @other; proxy_pass http://service; }
            location @other { proxy_pass http://service; }
            location /wait { idem on; idem_lease 2s; idem_wait 10s; proxy_pass http://service; }""" + more, **nginx)
        self.port = self.nginx.port
        self.points, self.number, self.said, self.prepare = 0, 0, {}, None
        ask(self.port, "warm")
        self.workers = self.nginx.workers()

    def key(self):
        self.number += 1
        return "key-%d" % self.number

    def armed(self, left, request, key):
        """This request while the n-th call fails: an answer, or None if the connection was closed; and whether one failed."""
        if self.prepare:
            self.prepare()
        self.fault.arm(self.kind, left)
        try:
            got = ask(self.port, key, timeout=30, **request)
        except (ConnectionError, http.client.HTTPException):
            got = None
        return got, self.disarm(left, got)

    def disarm(self, left, got):
        """What failed; nginx has survived it."""
        fired = self.fault.disarm()
        self.points += bool(fired)
        told = "closed" if got is None else got.problem or str(got.status)
        self.said[told] = self.said.get(told, 0) + 1
        assert self.nginx.workers() == self.workers, "%s %d (%s): the worker died" % (self.kind, left, fired)
        return fired

    def settled(self, key, request):
        """What a retry gets in the end."""
        return eventually(lambda: (lambda a: a if a.problem not in ("in-progress", "not-executed") else None)(ask(self.port, key, **request)))


@pytest.fixture(scope="module")
def rig():
    with folder() as where, Ledger(where) as ledger, Server(where) as engine:
        one = Rig(where, ledger, engine.socket)
        with one.nginx:
            yield one


def every_point(rig, one, points=0):
    """one(n) for the n-th call, until there are fewer of them; or only so many points, spread over all."""
    one(1 << 30)  # the first request of a worker makes more calls
    rig.fault.arm(rig.kind, 1 << 30)
    one(1 << 30)
    most = rig.fault.seen()
    for left in range(1, most + 50, max(1, most // points) if points else 1):
        if not one(left) and left > most:
            break
    print("%d calls, %d failed, %s" % (most, rig.points, rig.said))


REQUESTS = {
    "small": {},
    "large": {"body": b'{"a":"' + b"x" * 20000 + b'"}', "x_size": 100000},
    "chunked": {"x_way": "chunked", "x_size": 30000},
    "refused": {"x_code": 422},
    "content": {"path": "/content"},
}


def runs_once_at_most(rig, request, points=0):
    """A request while a call fails, and its retry; request(key) are the arguments of ask."""
    def one(left):
        key = rig.key()
        got, fired = rig.armed(left, request(key), key)
        runs = rig.ledger.executions(key)
        assert runs <= 1, (left, fired)
        if got is not None:
            if got.problem in ("not-executed", "service-unreachable"):
                assert runs == 0, (left, fired, got)
            if got.status == 201 or got.status == 422 and not got.problem:
                assert runs == 1, (left, fired, got)
        again = rig.settled(key, request(key))
        assert rig.ledger.executions(key) <= 1, (left, fired, again)
        if again.problem != "outcome-unknown":
            assert rig.ledger.executions(key) == 1, (left, fired, again)
            if got is not None and got.status == again.status and not got.problem:
                assert got.body == again.body, (left, fired)
        return fired

    every_point(rig, one, points)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_first_request_runs_once_at_most(rig, name):
    before = rig.points
    # no other request has this content
    runs_once_at_most(rig, lambda key: {"body": b'{"key":"%s"}' % key.encode(), **REQUESTS[name]})
    assert rig.points - before > 30


@pytest.mark.parametrize("path", ["/orders", "/kept"])  # an error page that would send it to the service
def test_a_replay_runs_nothing(rig, path):
    request = {"path": path, **REQUESTS["large"]}
    key, before = rig.key(), rig.points
    first = ask(rig.port, key, **request)
    assert first.status == 201

    def one(left):
        got, fired = rig.armed(left, request, key)
        if got is not None and got.status == 201:
            assert got.replayed and got.body == first.body, (left, fired)
        assert rig.ledger.executions(key) == 1, (left, fired)
        return fired

    every_point(rig, one)
    assert ask(rig.port, key, **request).body == first.body
    assert rig.points - before > 20


def test_a_duplicate_that_waits_gets_the_same_answer(rig):
    """The first one is at the service; its answer and the duplicate's wait meet the failure."""
    before = rig.points

    def one(left):
        key = rig.key()
        first = Working(rig.port, rig.ledger, key, path="/wait")
        rig.fault.arm(rig.kind, left)
        second = Later(ask, rig.port, key, path="/wait", timeout=30)
        time.sleep(0.02)
        answers = [a for a in (first.result(), second.result()) if isinstance(a, Answer)]
        fired = rig.disarm(left, answers[0] if answers else None)
        again = rig.settled(key, {"path": "/wait"})
        assert rig.ledger.executions(key) == 1, (left, fired, again)
        bodies = {a.body for a in answers + [again] if a.status == 201}
        assert len(bodies) <= 1, (left, fired, bodies)
        return fired

    every_point(rig, one)
    assert rig.points - before > 30


def test_nginx_works_as_before(rig):
    """After all of that: memory does not fail any more."""
    key = rig.key()
    assert ask(rig.port, key).status == 201 and ask(rig.port, key).replayed
    assert rig.ledger.executions(key) == 1
    time.sleep(0.1)
    assert rig.nginx.workers() == rig.workers
