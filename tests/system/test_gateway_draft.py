"""The checklist of draft-ietf-httpapi-idempotency-key-header-07, requirement by requirement, and the four classes of
answers that a client has to tell apart."""
from concurrent.futures import ThreadPoolExecutor
import json
import time

import pytest

from gateway import *
from lib import folder


@pytest.fixture(scope="module")
def world():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--policy-path", "/policy", "--required", "--ttl", "1h", "--key-quoted",
                    "--docs", "https://shop.example/idempotency") as g:
        yield ledger, g


def key(name):
    return '"%s-%d"' % (name, time.time_ns())


def test_2_1_the_field_is_a_structured_string(world):
    ledger, g = world
    assert ask(g.port, '"8e03978e-40d5-43e8-bc93-6894a57f9324"').status == 201
    for wrong in ("bare", "42", "?1", '"a", "b"', '"a"; q=1', "'a'", "*a*"):
        assert ask(g.port, wrong).problem == "key-malformed"


def test_2_3_keys_expire_and_the_policy_is_published(world):
    """2.3, 2.5.2: the resource publishes its rules, and expiry is among them."""
    ledger, g = world
    policy = ask(g.port, method="GET", path="/policy", body=None)
    assert policy.headers["content-type"] == "application/json"
    route = json.loads(policy.body)["routes"][0]
    assert route["ttl"] == "3600000ms" and route["required"] == "on" and route["methods"] == "POST PATCH"
    assert route["key"] == "http_idempotency_key"
    assert "GMT" in ask(g.port, key("expiry")).headers["idempotency-expires"]


def test_2_4_a_fingerprint_guards_the_key(world):
    ledger, g = world
    k = key("fp")
    assert ask(g.port, k).status == 201 and ask(g.port, k, body=b"{}").status == 422


def test_2_6_first_request_retry_and_concurrent_request(world):
    ledger, g = world
    k = key("first")
    first = ask(g.port, k)
    assert first.status == 201 and not first.replayed
    again = ask(g.port, k)
    assert again.status == 201 and again.body == first.body and again.replayed
    k = key("error")
    assert ask(g.port, k, x_code=422).status == 422
    assert ask(g.port, k, x_code=422).replayed, "an error is a result too"
    k = key("slow")
    slow = Working(g.port, ledger, k)
    assert ask(g.port, k).status == 409
    assert slow.result().status == 201


@pytest.mark.parametrize("case", ["missing", "reused", "running"])
def test_2_7_errors_are_problems_with_a_link(world, case):
    ledger, g = world
    k = key(case)
    if case == "missing":
        got, status, name = ask(g.port), 400, "key-missing"
    elif case == "reused":
        ask(g.port, k)
        got, status, name = ask(g.port, k, body=b"other"), 422, "mismatch"
    else:
        slow = Working(g.port, ledger, k)
        got, status, name = ask(g.port, k), 409, "in-progress"
        slow.result()
    problem = json.loads(got.body)
    assert got.status == status and got.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "/.idem/problems/" + name and problem["status"] == status
    assert got.headers["link"] == '<https://shop.example/idempotency#%s>; rel="describedby"' % name
    assert problem["documentation"] == "https://shop.example/idempotency#" + name
    # 2.7: failing again fails in the same way; only the name of this one answer differs.
    if case != "running":
        again = ask(g.port) if case == "missing" else ask(g.port, k, body=b"other")
        assert again.status == status and {**json.loads(again.body), "instance": problem["instance"]} == problem


def test_5_validated_before_any_lookup_and_bound_to_the_caller(world):
    ledger, g = world
    before = len(ledger.entries())
    for evil in ('"a\x01"', '"\x7f"', "' OR 1=1 --", '"' + "k" * 300 + '"', '"\\u0041"'):
        assert ask(g.port, headers={"Idempotency-Key": evil.encode("latin-1")}).status == 400
    assert len(ledger.entries()) == before
    k = key("tenant")
    one = ask(g.port, k, headers={"Authorization": "a"})
    two = ask(g.port, k, headers={"Authorization": "b"})
    assert not two.replayed and one.body != two.body


def test_the_four_classes_are_told_apart():
    """done, not executed, in progress, outcome unknown: from the answer alone, without reading a text."""
    with folder() as where, Stack(where, location="idem_lease 4s;", engine_options="timeout=3s",
                                  more="location /dead { idem on; proxy_pass http://127.0.0.1:1; }") as s:
        done, again = ask(s.port, "done"), ask(s.port, "done")
        assert done.status == again.status == 201 and again.replayed
        unknown = ask(s.port, "unknown", x_way="half-body")
        assert unknown.json()["class"] == "outcome unknown" and unknown.json()["retryable"] is False
        assert "retry-after" not in unknown.headers
        with ThreadPoolExecutor() as pool:
            first = pool.submit(ask, s.port, "slow", x_sleep=2)
            eventually(lambda: s.ledger.executions("slow") == 1)
            progress = ask(s.port, "slow", x_sleep=2)
            assert first.result().status == 201
        assert progress.json()["class"] == "in progress" and progress.json()["retryable"] is True
        assert "retry-after" in progress.headers
        doubt = eventually(lambda: (lambda a: a if a.problem != "in-progress" else None)(
            ask(s.port, "unknown", x_way="half-body")))
        assert doubt.status == 409 and doubt.json()["class"] == "outcome unknown" and doubt.json()["retryable"] is False
        assert doubt.json()["type"] == unknown.json()["type"] != progress.json()["type"]
        refused = ask(s.port, "refused", path="/dead")
        assert refused.json()["class"] == "not executed" and refused.json()["retryable"] is True
        s.engine.kill()
        away = ask(s.port, "away")
        assert away.status == 503 and away.json()["class"] == "not executed" and away.json()["retryable"] is True
        assert "retry-after" in away.headers
        s.restart_engine()
