"""The gateway against those who mean harm: foreign answers, smuggled requests, injected headers; and against crowds."""
import itertools
import os
import random
import socket
import time

import pytest

from gateway import *
from lib import SOAK, folder
from smuggling import HOST, INNER, KEY, check_ambiguous


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, location="idem_wait 20s;", workers=2, more="""
            location = /connections { stub_status; }
            location /busy { idem on; proxy_pass http://service; }
            location /read { idem on; idem_methods GET; idem_key $arg_key; proxy_pass http://service; }
            location /page { idem on; idem_page_token on; proxy_pass http://service; }
            location /tenant { idem on; idem_scope "$http_tenant"; proxy_pass http://service; }""") as s:
        yield s


# ---- crowds ---------------------------------------------------------------------------------------------------------


def test_a_thousand_duplicates_run_once(stack):
    answers = storm(1000, lambda i: ask(stack.port, "crowd", x_sleep=0.5, timeout=60), threads=500)
    assert {a.status for a in answers} == {201} and len({a.body for a in answers}) == 1
    assert sum(not a.replayed for a in answers) == 1 and stack.ledger.executions("crowd") == 1



def test_a_refused_client_that_keeps_sending_does_not_end_a_worker():
    """nginx reads what comes behind the request for up to 30 s, much longer than a verdict may take."""
    with folder() as where, Stack(where, location="idem_anonymous off;", engine_options="timeout=1s away=10s") as s:
        before = s.nginx.workers()
        with socket.create_connection(("127.0.0.1", s.port), 10) as c:
            c.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}x")
            assert b" 403 " in c.recv(80)
            for _ in range(6):
                time.sleep(0.5)
                c.sendall(b"x")
        assert s.nginx.workers() == before
        assert ask(s.port, "k", authorization="me").status == 201

def test_a_thousand_duplicates_that_do_not_wait(stack):
    answers = storm(1000, lambda i: ask(stack.port, "crowd2", path="/busy", x_sleep=2, timeout=60), threads=500)
    assert stack.ledger.executions("crowd2") == 1
    for a in answers:
        assert a.status == 201 or (a.status == 409 and a.problem == "in-progress" and int(a.headers["retry-after"]) > 0)
    assert len({a.body for a in answers if a.status == 201}) == 1


def test_a_thousand_keys_ten_times_each_at_once(stack):
    n = 1000
    order = list(range(n)) * 10
    random.Random(7).shuffle(order)
    answers = storm(len(order), lambda i: ask(stack.port, "key-%d" % order[i], timeout=60), threads=100)
    bodies = {}
    for i, a in enumerate(answers):
        assert a.status == 201, a
        assert bodies.setdefault(order[i], a.body) == a.body
    seen = [e["key"] for e in stack.ledger.entries() if e["key"] and e["key"].startswith("key-")]
    assert len(seen) == n and len(set(seen)) == n and len(set(bodies.values())) == n


# ---- foreign answers --------------------------------------------------------------------------------------------------


def test_no_probe_ever_yields_a_foreign_byte(stack):
    people, keys, probes = 20, 10, 20000 if SOAK else 300
    for p, k in itertools.product(range(people), range(keys)):
        got = ask(stack.port, "shared-%d" % k, headers={"Authorization": "Bearer p%d" % p}, body=b"{}")
        assert got.status == 201
    mine = {}
    for e in stack.ledger.entries():
        if (e["key"] or "").startswith("shared-"):
            mine.setdefault((e["idem"]["idem-scope"], e["key"]), []).append(e["n"])
    assert len(mine) == people * keys and all(len(v) == 1 for v in mine.values())
    rng = random.Random(3)
    for _ in range(probes):
        p, k = rng.randrange(people), rng.randrange(keys)
        twin = rng.choice(["Bearer p%d " % p, "bearer p%d" % p, "Bearer P%d" % p, "Bearer p%dx" % p, "Bearer p%d" % p])
        got = ask(stack.port, "shared-%d" % k, headers={"Authorization": twin}, body=b"{}")
        assert got.status == 201
    for e in stack.ledger.entries():
        if (e["key"] or "").startswith("shared-"):
            mine.setdefault((e["idem"]["idem-scope"], e["key"]), []).append(e["n"])
    assert all(len(set(v)) == 1 for v in mine.values()), "one execution for each caller and key"


def test_scopes_that_look_alike_stay_apart(stack):
    names = ["a", "A", "a%20", "a.", "ab", "á", "a\u0301", "anonymous", "a'--", 'a"', "a\\", "*", "$3\\r\\nfoo"]
    bodies = {}
    for name in names:
        got = ask(stack.port, "twin", path="/tenant", headers={"Tenant": name.encode()})
        assert got.status == 201 and not got.replayed, name
        bodies[name] = got.body
    assert len(set(bodies.values())) == len(names)
    for name in names:
        assert ask(stack.port, "twin", path="/tenant", headers={"Tenant": name.encode()}).body == bodies[name]


def test_keys_that_look_alike_stay_apart(stack):
    keys = ["a", "A", "a.", "a%20b", "a'b", "a*b", "*3", "$-1", "a;b", "a|b", "{a}", "a/b", "../a", "%00", "TAG", "NONCE"]
    bodies = [ask(stack.port, "twin-" + k).body for k in keys]
    assert len(set(bodies)) == len(keys)
    assert [ask(stack.port, "twin-" + k).body for k in keys] == bodies


# ---- smuggling ----------------------------------------------------------------------------------------------------------

def lengths():
    for value in (b"+5", b"-1", b"0x5", b"5_0", b"", b" ", b"5 5", b"5,5", b"5, 6", b"99999999999999999999", b"5\x0b", b"five",
                  b"5;", b"5.0", b"1e1", b"\xd9\xa5"):
        yield b"POST /o HTTP/1.1\r\n" + HOST + KEY + b"Content-Length: " + value + b"\r\n\r\nhello" + INNER
    yield b"POST /o HTTP/1.1\r\n" + HOST + KEY + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello" + INNER
    yield b"POST /o HTTP/1.1\r\n" + HOST + KEY + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello" + INNER


def both():
    for te in (b"chunked", b"Chunked", b" chunked", b"chunked ", b"\tchunked"):
        yield (b"POST /o HTTP/1.1\r\n" + HOST + KEY + b"Content-Length: 4\r\nTransfer-Encoding: " + te
               + b"\r\n\r\n0\r\n\r\n" + INNER)
    for te in (b"identity", b"gzip, chunked", b"chunked, identity", b"xchunked", b"chunked\x0b", b",chunked", b"chunked;q=1",
               b'"chunked"', b"chun\x00ked"):
        yield (b"POST /o HTTP/1.1\r\n" + HOST + KEY + b"Transfer-Encoding: " + te + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + INNER)
    yield (b"POST /o HTTP/1.0\r\n" + HOST + KEY + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER)
    yield (b"POST /o HTTP/1.1\r\n" + HOST + KEY + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"
           + INNER)


def chunks():
    head = b"POST /o HTTP/1.1\r\n" + HOST + KEY + b"Transfer-Encoding: chunked\r\n\r\n"
    for body in (b"-1\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b" 5\r\nhello\r\n0\r\n\r\n",
                 b"5;\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"5\r\nhelloX0\r\n\r\n", b"ffffffffffffffff1\r\nhello\r\n0\r\n\r\n",
                 b"5\r\nhello\r\n0\r\nX: y\r\n\r\n", b"\r\nhello\r\n0\r\n\r\n", b"5_0\r\nhello\r\n0\r\n\r\n",
                 b"5\r\r\nhello\r\n0\r\n\r\n", b"g\r\nhello\r\n0\r\n\r\n"):
        yield head + body + INNER


def headers():
    for line in (b"Content-Length : 5\r\n", b" Content-Length: 5\r\n", b"Content-Length\r\n", b": 5\r\n", b"Content Length: 5\r\n",
                 b"X: a\r\n Content-Length: 5\r\n", b"X: a\x00b\r\n", b"X: a\rContent-Length: 5\r\n", b"X\x80: 1\r\n",
                 b"Content-Length:\r\n 5\r\n", b"Idempotency-Key\x00: b\r\n"):
        yield b"POST /o HTTP/1.1\r\n" + HOST + KEY + line + b"Content-Length: 5\r\n\r\nhello" + INNER
    for line in (b"POST /o\r\n", b"POST  /o HTTP/1.1\r\n", b"POST /o HTTP/1.1 \r\n", b"POST /o HTTP/2.0\r\n",
                 b"POST /o HTTP/1.1\n", b"P\x00ST /o HTTP/1.1\r\n", b"POST /o\x00 HTTP/1.1\r\n", b"POST http://y/o HTTP/1.1\r\n"):
        yield line + HOST + KEY + b"Content-Length: 5\r\n\r\nhello" + INNER
    for value in (b"a\rX-Evil: 1", b'"a\r\n X-Evil: 1"', b"a\x00b", b'"a\\\r\nb"', b"a\x0bb", b"a\x85b"):
        yield (b"POST /o HTTP/1.1\r\n" + HOST + b"Idempotency-Key: %s" + value + b"\r\nContent-Length: 5\r\n\r\nhello" + INNER)


PAYLOADS = [("%s-%d" % (f.__name__, i), p) for f in (lengths, both, chunks, headers) for i, p in enumerate(f())]


@pytest.mark.parametrize("name,payload", PAYLOADS, ids=[n for n, _ in PAYLOADS])
def test_what_is_ambiguous_never_reaches_the_service_twice(stack, name, payload):
    check_ambiguous(stack, name, payload)


@pytest.mark.parametrize("stored", [
    "200\nX-Evil: a\r\nSet-Cookie: s=1\n\nbody", "200\nContent-Length: 99\nTransfer-Encoding: chunked\n\nbody",
    "200\nConnection: close\n\nbody", "101\n\n", "999\n\n", "junk", "", "200\nA: b\0c\n\nbody", "200\n\n" + "x" * 1000,
    "200\nX: " + "y" * 70000 + "\n\nbody"])
def test_a_store_that_was_tampered_with_injects_nothing(stack, stored):
    key = "tampered-%d" % abs(hash(stored))
    with stack.resp() as r:
        fence = r("BEGIN", "anonymous", key)[1]
        assert r("FINISH", "anonymous", key, fence, "SUCCEEDED", stored, "KIND", "http")[0] == "ok"
    got = raw(stack.port, b"POST /orders HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nIdempotency-Key: %s\r\nContent-Length: 0\r\n\r\n"
              % (stack.port, key.encode()) + b"GET /after HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answers = got.split(b"HTTP/1.1 ")[1:]
    assert len(answers) == 2 and answers[0][:3] in (b"200", b"410") and answers[1][:3] == b"201", got[:500]
    head = answers[0].split(b"\r\n\r\n")[0].lower()
    assert b"set-cookie" not in head and b"transfer-encoding" not in head and head.count(b"content-length") == 1
    assert stack.ledger.executions(key) == 0


@pytest.mark.parametrize("path, header", [("/read?key=zero-nine", "idem-fence"), ("/page", "idem-token")])
def test_a_request_without_headers_gets_those_of_idem(stack, path, header):
    workers = stack.nginx.workers()
    body = raw(stack.port, b"GET %s\r\n" % path.encode())  # HTTP/0.9: a response is its body
    assert body.startswith(b'{"order":') and stack.nginx.workers() == workers
    assert stack.ledger.entries()[-1]["idem"][header]
    assert path == "/page" or raw(stack.port, b"GET %s\r\n" % path.encode()) == body


# ---- clients that leave -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", range(12))
def test_a_client_cut_anywhere_leaves_nothing_half_done(stack, point):
    key = "cut-%d" % point
    request = (b"POST /busy HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nIdempotency-Key: %s\r\nX-Sleep: 0.3\r\nContent-Length: 2000\r\n\r\n"
               % (stack.port, key.encode())) + b"b" * 2000
    if point < 8:
        request = request[:len(request) * (point + 1) // 9]
    s = socket.create_connection(("127.0.0.1", stack.port), 10)
    s.sendall(request)
    if point >= 9:
        time.sleep([0.05, 0.2, 0.6][point - 9])
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()
    time.sleep(0.15)
    if point < 8:
        assert stack.record(key) is None and stack.ledger.executions(key) == 0, "half a request is no request"
    else:
        record = eventually(lambda: (lambda r: r if r is None or r["state"] != "executing" else None)(stack.record(key))
                            or (stack.ledger.executions(key) == 0))
        if record is not True:
            assert record["state"] == "succeeded" and stack.ledger.executions(key) == 1
    # It may have been on its way still.
    eventually(lambda: ask(stack.port, key, path="/busy", body=b"b" * 2000, x_sleep=0.3).status == 201)
    assert stack.ledger.executions(key) == 1
