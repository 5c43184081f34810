"""What is asked as the key: callers that send none, and the same content under two keys."""
import json
import os
import signal
import time

import pytest
from gateway import *
from lib import *
from test_gateway_scope import nginx_says, said


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, workers=2, more="""
        location /keyless { idem on; idem_key content; idem_ttl 1h; proxy_pass http://service; }
        location /short { idem on; idem_key content; idem_ttl 300ms; proxy_pass http://service; }
        location /both { idem on; idem_key $http_idempotency_key content; idem_ttl 1h; idem_dedupe_content 1h;
                         proxy_pass http://service; }
        location /fields { idem on; idem_key content; idem_ttl 1h; idem_fingerprint json order.id;
                           proxy_pass http://service; }
        location /twice { idem on; idem_dedupe_content 1h; proxy_pass http://service; }
        location /moment { idem on; idem_dedupe_content 300ms; proxy_pass http://service; }
        location /loose { idem on; idem_mode loose; idem_lease 1s; idem_dedupe_content 1h; proxy_pass http://service; }
        location /gone { idem on; idem_dedupe_content 1h; proxy_pass http://127.0.0.1:9; }
        """) as s:
        yield s


def runs(stack, path):
    return sum(1 for e in stack.ledger.entries() if e["path"] == path)


def claimed(stack):
    """How many contents are claimed now."""
    with stack.resp() as r:
        return str(r("SCAN", "0", "STATE", "executing")).count("content-")


def order(stack, path, body, key=None, **named):
    return ask(stack.port, key, path=path, body=json.dumps(body).encode() if isinstance(body, dict) else body, **named)


# ---- content keys ----------------------------------------------------------


def test_two_equal_requests_without_a_key_are_one(stack):
    first = order(stack, "/keyless/1", {"sku": 7, "n": 1}, authorization="a")
    second = order(stack, "/keyless/1", b'{ "n" : 1, "sku":7 }', authorization="a")
    assert first.status == 201 and not first.replayed
    assert second.replayed and second.body == first.body and runs(stack, "/keyless/1") == 1
    idem = [e for e in stack.ledger.entries() if e["path"] == "/keyless/1"][0]["idem"]
    assert idem["idem-id"].startswith("content-")


@pytest.mark.parametrize("other", [
    dict(body={"sku": 8}), dict(path="/keyless/2?b=1"), dict(authorization="b"), dict(method="PATCH"), dict(body=b"sku=7")])
def test_another_caller_method_path_or_body_is_another_request(stack, other):
    path = "/keyless/2"
    how = {"path": path, "body": {"sku": 7}, "authorization": "a", "x_probe": 1}
    assert order(stack, **how).status == 201
    got = order(stack, **{**how, **other})
    assert got.status == 201 and not got.replayed


def test_the_key_is_free_again_after_the_window(stack):
    assert not order(stack, "/short", {"n": 1}).replayed
    eventually(lambda: not order(stack, "/short", {"n": 1}).replayed)
    assert runs(stack, "/short") == 2


def test_a_storm_without_keys_runs_once(stack):
    got = storm(20, lambda i: order(stack, "/keyless/storm", {"n": 1}))
    assert {a.status for a in got} <= {201, 409} and runs(stack, "/keyless/storm") == 1
    assert {a.problem for a in got if a.status == 409} <= {"in-progress"}


def test_only_the_named_members_count(stack):
    assert not order(stack, "/fields", {"order": {"id": 1}, "at": 1}).replayed
    assert order(stack, "/fields", {"order": {"id": 1}, "at": 2}).replayed
    assert not order(stack, "/fields", {"order": {"id": 2}, "at": 2}).replayed


def test_content_keys_need_a_time_and_are_for_keys_only():
    with folder() as where:
        status, text = nginx_says(where, "idem_key content;")
        assert status != 0 and "idem_ttl" in text, text
        assert nginx_says(where, "idem_key content; idem_ttl 10s;")[0] == 0
        for option in ("token", "scope"):
            status, text = nginx_says(where, "idem_%s content;" % option)
            assert status != 0 and "for keys only" in text, text
            assert "for keys only" in said(where, "--" + option, "content")
        assert "--ttl" in said(where, "--key", "content")


# ---- the same content under another key ------------------------------------


def test_another_key_with_the_same_content_is_refused(stack):
    first = order(stack, "/twice/1", {"sku": 7, "n": 1}, "k1")
    got = order(stack, "/twice/1", {"n": 1, "sku": 7}, "k2")
    assert (got.status, got.problem, got.json()["class"], got.json()["retryable"]) == (409, "same-content", "not executed", False)
    assert order(stack, "/twice/1", {"sku": 7, "n": 1}, "k1").body == first.body and runs(stack, "/twice/1") == 1
    assert order(stack, "/twice/1", {"n": 2, "sku": 7}, "k3").status == 201
    assert order(stack, "/twice/1", {"n": 1, "sku": 7}, "k4", authorization="b").status == 201
    # a key that was refused is not used up
    assert order(stack, "/twice/1", {"n": 3, "sku": 7}, "k2").status == 201


def test_a_replay_is_a_replay_when_another_key_has_the_content_by_now(stack):
    assert order(stack, "/moment", {"n": 1}, "m1").status == 201
    eventually(lambda: order(stack, "/moment", {"n": 1}, "m2").status == 201)
    assert order(stack, "/moment", {"n": 1}, "m1").replayed and order(stack, "/moment", {"n": 1}, "m2").replayed
    assert runs(stack, "/moment") == 2


def test_a_storm_of_keys_with_one_content_runs_once(stack):
    got = storm(20, lambda i: order(stack, "/twice/storm", {"n": 1}, "storm-%d" % i))
    assert sorted(a.status for a in got) == [201] + [409] * 19 and runs(stack, "/twice/storm") == 1
    assert {a.problem for a in got if a.status == 409} == {"same-content"}


def test_while_the_first_one_runs_its_own_repeat_is_in_progress(stack):
    first = Working(stack.port, stack.ledger, "w1", path="/twice/working")
    assert order(stack, "/twice/working", b'{"a":1}', "w1").problem == "in-progress"
    assert order(stack, "/twice/working", b'{"a":1}', "w2").problem == "same-content"
    assert claimed(stack) == 1
    assert first.result().status == 201 and claimed(stack) == 0


def test_a_content_is_kept_for_as_long_as_its_request_runs(stack):
    first = Working(stack.port, stack.ledger, "long1", path="/loose/long")
    time.sleep(2.5)  # its lease is a second
    assert order(stack, "/loose/long", b'{"a":1}', "long2").problem == "same-content"
    assert first.result().status == 201


@pytest.mark.parametrize("code,replays", [(429, False), (400, True), (500, True)])
def test_what_was_not_done_may_be_tried_again_with_the_same_key_and_with_another(stack, code, replays):
    path = "/twice/%d" % code
    assert order(stack, path, {"n": 1}, "f1-%d" % code, x_code=code).status == code
    again = order(stack, path, {"n": 1}, "f1-%d" % code)
    assert (again.status, again.replayed) == ((code, True) if replays else (201, False))
    got = order(stack, path, {"n": 1}, "f2-%d" % code)
    assert (got.status, got.problem) == ((201, None) if replays else (409, "same-content"))


def test_a_service_that_cannot_be_reached_frees_the_content(stack):
    for key in ("g1", "g1", "g2"):
        assert order(stack, "/gone", {"n": 1}, key).problem == "service-unreachable"
    assert claimed(stack) == 0


def test_an_unknown_outcome_keeps_others_away(stack):
    assert order(stack, "/twice/unknown", {"n": 1}, "u1", x_way="nothing").status == 504
    assert order(stack, "/twice/unknown", {"n": 1}, "u2").problem == "same-content"
    # loose: the same key may run again when its lease is over
    assert order(stack, "/loose", {"n": 1}, "l1", x_way="nothing").status == 504
    assert order(stack, "/loose", {"n": 1}, "l2").problem == "same-content"
    eventually(lambda: order(stack, "/loose", {"n": 1}, "l1").status == 201)


def test_keys_and_contents_as_keys_see_each_other(stack):
    assert order(stack, "/both/1", {"n": 1}).status == 201
    assert order(stack, "/both/1", {"n": 1}, "b1").problem == "same-content"
    assert order(stack, "/both/2", {"n": 1}, "b2").status == 201
    assert order(stack, "/both/2", {"n": 1}).problem == "same-content"
    assert runs(stack, "/both/1") == runs(stack, "/both/2") == 1


def test_a_worker_that_died_does_not_block_its_content_for_ever():
    location = "idem_mode loose; idem_lease 1s; idem_dedupe_content 1h;"
    with folder() as where, Stack(where, location) as stack:
        first = Working(stack.port, stack.ledger, "d1")
        os.kill(stack.nginx.workers()[0], signal.SIGKILL)
        assert isinstance(first.result(), Exception)
        eventually(lambda: ask(stack.port, "d2").status == 201)
        assert ask(stack.port, "d1").problem == "same-content"


def test_the_launcher_writes_both():
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, "--key", "$http_idempotency_key content", "--ttl", "1h", "--dedupe-content", "10m",
                     store="memory:") as g:
            assert ask(g.port).status == 201 and ask(g.port).replayed
            assert ask(g.port, "k").problem == "same-content" and len(ledger.entries()) == 1
