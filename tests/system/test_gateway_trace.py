"""traceparent: passed on, kept with the record, and told to whoever gets the answer again."""
import json
import os
import subprocess

import pytest

from gateway import *
from lib import folder

FIRST = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, more="""
        location /loose { idem on; idem_mode loose; proxy_pass http://service; }
        """) as s:
        yield s


def test_a_replay_leads_to_the_trace_of_the_execution(stack):
    first = ask(stack.port, "order-1", traceparent=FIRST)
    assert first.status == 201 and "idem-first-trace" not in first.headers
    assert stack.ledger.entries()[-1]["headers"]["traceparent"] == FIRST
    assert stack.record("order-1")["subject"] == "POST /orders " + FIRST
    for again in (ask(stack.port, "order-1", traceparent=OTHER), ask(stack.port, "order-1")):
        assert again.replayed and again.headers["idem-first-trace"] == FIRST and again.body == first.body


def test_the_trace_is_that_of_who_executed_and_not_of_who_tried_before(stack):
    assert ask(stack.port, "again", path="/loose", traceparent=OTHER, x_code=500).status == 500
    assert ask(stack.port, "again", path="/loose", traceparent=FIRST).status == 201
    assert ask(stack.port, "again", path="/loose").headers["idem-first-trace"] == FIRST


def test_a_record_has_the_path_of_its_request_without_the_query(stack):
    assert ask(stack.port, "routed", path="/loose/payments/47%2011;a?secret=1", method="PATCH", traceparent=FIRST).status == 201
    assert stack.record("routed")["subject"] == "PATCH /loose/payments/47%2011;a " + FIRST


def test_a_path_in_a_record_is_short_and_safe_to_print(stack):
    """Bytes outside of ASCII are encoded, and a path that is too long ends in three points, also behind an encoded byte."""
    head = "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: %s\r\nContent-Length: 0\r\n%s\r\n"
    for n, (path, trace) in enumerate([("/\x9b2J\xff\xff" + '"\\', True), ("/" + "a" * 3000, False), ("/" + "a" * 3000, True),
                                       *[("/" + "a" * k + "\xe9" * 300, True) for k in (0, 1, 2)]]):
        line = "traceparent: %s\r\n" % FIRST if trace else ""
        assert b" 201 " in raw(stack.port, (head % (path, "path-%d" % n, line)).encode("latin-1"))
        words = stack.record("path-%d" % n)["subject"].split(" ")
        assert len(words) == (3 if trace else 2) and words[0] == "POST" and words[2:] == ([FIRST] if trace else [])
        whole = "".join("%%%02X" % ord(c) if ord(c) > 126 else c for c in path)
        assert words[1] == whole or words[1].endswith("...") and whole.startswith(words[1][:-3]) and len(words[1]) > 120, words
        assert (words[1] == whole) == (n == 0) and len(" ".join(words)) <= 255


def test_a_request_without_a_trace_has_none(stack):
    assert ask(stack.port, "plain").status == 201
    again = ask(stack.port, "plain", traceparent=OTHER)
    assert again.replayed and "idem-first-trace" not in again.headers and stack.record("plain")["subject"] == "POST /orders"


def test_a_service_cannot_name_the_first_trace(stack):
    data = b"HTTP/1.1 200 OK\r\nIdem-First-Trace: %s\r\nContent-Length: 2\r\n\r\nok" % OTHER.encode()
    ask(stack.port, "liar", traceparent=FIRST, x_way="bytes:" + data.hex())
    again = ask(stack.port, "liar")
    assert again.replayed and again.headers["idem-first-trace"] == FIRST


@pytest.mark.parametrize("n,wrong", list(enumerate([
    FIRST.upper(), FIRST[:-1], FIRST + "0", FIRST + "-more", "ff" + FIRST[2:], FIRST.replace("-", "_"), "g0" + FIRST[2:], "x" * 5000,
    "00-" + "0" * 32 + FIRST[35:], FIRST[:36] + "0" * 16 + "-01", FIRST[:20] + "-" + FIRST[21:], '"' + FIRST[1:]])), ids=range(12))
def test_what_is_no_trace_is_passed_on_and_not_kept(stack, n, wrong):
    key = "wrong-%d" % n
    assert ask(stack.port, key, traceparent=wrong).status == 201
    assert stack.ledger.entries()[-1]["headers"]["traceparent"] == wrong
    assert stack.record(key)["subject"] == "POST /orders" and "idem-first-trace" not in ask(stack.port, key).headers


def test_two_traces_are_none(stack):
    head = b"POST /orders HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: two\r\nContent-Length: 0\r\n"
    for trace in (FIRST, OTHER):
        head += b"traceparent: %s\r\n" % trace.encode()
    assert b" 201 " in raw(stack.port, head + b"\r\n")
    assert stack.record("two")["subject"] == "POST /orders"


def test_a_doubt_has_the_trace_of_its_execution(stack):
    """What nobody knows the outcome of is looked for where it ran."""
    assert ask(stack.port, "lost", traceparent=FIRST, x_way="nothing").problem == "outcome-unknown"

    def idem(*argv):
        return subprocess.run([IDEM, argv[0], "--server", stack.engine.socket, *argv[1:]], capture_output=True, text=True, check=True).stdout

    line = eventually(lambda: [one for one in idem("doubts").splitlines() if " lost " in one])[0]
    assert line.endswith("(POST /orders %s)" % FIRST)
    assert "subject: POST /orders %s\n" % FIRST in idem("get", "anonymous", "lost")
    assert json.loads(idem("get", "anonymous", "lost", "--json"))["subject"] == "POST /orders " + FIRST


def test_the_access_log_has_both_traces():
    with folder() as where, Ledger(where) as ledger:
        log = os.path.join(where, "log")
        with Gateway(where, ledger.port, "--access-log", log, store="memory:") as g:
            ask(g.port, "logged", traceparent=FIRST)
            ask(g.port, "logged", traceparent=OTHER)
            ask(g.port, "logged", traceparent='" forged=1')

            def lines():
                with open(log) as f:
                    return f.readlines()
            told = eventually(lambda: lines() if len(lines()) == 3 else None)
            assert told[0].endswith(' trace="%s" first-trace=-\n' % FIRST) and " idem=started " in told[0]
            assert told[1].endswith(' trace="%s" first-trace=%s\n' % (OTHER, FIRST)) and " idem=replay " in told[1]
            assert told[2].endswith(' trace="\\x22 forged=1" first-trace=%s\n' % FIRST)
