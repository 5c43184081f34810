"""Gated requests over HTTP/3, for an nginx and a curl that speak it: `make compat` runs this on Debian 13 and newer."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from gateway import Answer, Stack  # noqa: E402
from lib import folder, free_port, wait_until  # noqa: E402
from servers import authority  # noqa: E402


@pytest.fixture(scope="module")
def stack():
    with folder() as where:
        _, certificate, key = authority(where, "http3")
        port = free_port()
        stack = Stack(where, http="""server {
            listen 127.0.0.1:%d quic reuseport; ssl_certificate %s; ssl_certificate_key %s; ssl_protocols TLSv1.3;
            location / { idem on; proxy_pass http://service; }
        }""" % (port, certificate, key))
        stack.quic = port
        with stack.ledger, stack.engine, stack.nginx:
            assert wait_until(lambda: ask(stack, method="GET").status > 0)
            yield stack


def ask(stack, key=None, method="POST", body=b"x", **named):
    headers = ["%s: %s" % (n.replace("_", "-"), v) for n, v in named.items()] + (["Idempotency-Key: " + key] if key else [])
    done = subprocess.run(["curl", "-sk", "--http3-only", "-i", "-m", "60", "-X", method, "-H", "Expect:",
                           *[part for h in headers for part in ("-H", h)],
                           *(["--data-binary", "@-"] if method == "POST" else []),
                           "https://127.0.0.1:%d/orders" % stack.quic], input=body, stdout=subprocess.PIPE)
    if done.returncode:
        return Answer(0, {}, b"")
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    assert line.startswith("HTTP/3 "), line
    pairs = (h.split(": ", 1) for h in lines)
    return Answer(int(line.split()[1]), {name.lower(): value for name, value in pairs}, body)


def test_a_duplicate_gets_the_stored_answer(stack):
    first, again = ask(stack, "one"), ask(stack, "one")
    assert first.status == again.status == 201 and first.body == again.body, (first, again)
    assert again.replayed and not first.replayed and stack.ledger.executions("one") == 1


def test_twenty_at_once_are_one_execution(stack):
    with ThreadPoolExecutor(20) as pool:
        got = list(pool.map(lambda _: ask(stack, "crowd", X_Sleep="0.5"), range(20)))
    done = [a for a in got if a.status == 201]
    assert stack.ledger.executions("crowd") == 1 and len({a.body for a in done}) == 1, got
    assert {a.status for a in got} <= {201, 409} and ask(stack, "crowd").replayed


def test_large_bodies_go_both_ways(stack):
    body = os.urandom(300000)
    first, again = ask(stack, "large", body=body, X_Size="200000"), ask(stack, "large", body=body, X_Size="200000")
    assert first.status == 201 and len(first.body) >= 200000 and again.body == first.body and again.replayed
    assert ask(stack, "large", body=body[1:]).problem == "mismatch"


def test_what_is_refused_is_refused_as_over_http_1(stack):
    assert ask(stack, "x" * 300).problem == "key-malformed"
    assert ask(stack, "same").status == 201 and ask(stack, "same", body=b"other").problem == "mismatch"
