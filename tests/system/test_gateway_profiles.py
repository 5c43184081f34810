"""Profiles: clients that were written for other APIs find the header names, statuses and markers that they know."""
import email.utils
import os
import time
import uuid

import pytest
from gateway import *
from lib import *
from test_gateway_scope import nginx_says, said


@pytest.fixture(scope="module")
def stack():
    with folder() as where:
        more = "".join("location /%s { idem on; %s proxy_pass http://service; }\n" % one for one in (
            ("ietf", "idem_profile ietf;"), ("stripe", "idem_profile stripe;"), ("paypal", "idem_profile paypal;"),
            ("oasis", "idem_profile oasis; idem_ttl 10m;"), ("must", "idem_profile oasis; idem_required on;"),
            ("large", "idem_profile oasis; idem_max_answer 5000;"),
            ("own", "idem_profile stripe; idem_key $http_x_own;"),
            ("alias", "idem_replayed_header X-Idempotency-Replay Original-Request;")))
        with Stack(where, more=more) as stack:
            yield stack


def post(stack, path, body=b'{"a":1}', **named):
    return ask(stack.port, path=path, body=body, **named)


@pytest.mark.parametrize("path,name,mismatch", [
    ("/ietf", "idempotency_key", 422), ("/stripe", "idempotency_key", 400), ("/paypal", "paypal_request_id", 422)])
def test_names_statuses_and_markers(stack, path, name, mismatch):
    key = {name: str(uuid.uuid4())}
    first = post(stack, path, **key)
    again = post(stack, path, **key)
    assert first.status == again.status == 201 and not first.replayed and again.replayed and again.body == first.body
    got = post(stack, path, b'{"a":2}', **key)
    assert (got.status, got.problem, got.json()["class"]) == (mismatch, "mismatch", "not executed")
    assert "repeatability-result" not in first.headers


@pytest.mark.parametrize("path,name", [("/ietf", "Idempotency-Key"), ("/stripe", "Idempotency-Key"), ("/paypal", "PayPal-Request-Id")])
def test_a_repeat_while_the_first_one_runs_is_a_conflict(stack, path, name):
    key = {name: str(uuid.uuid4())}
    until = os.path.join(stack.where, "go-" + path[1:])
    before = len(stack.ledger.entries())
    first = Later(ask, stack.port, path=path, headers=key, x_until=until)
    eventually(lambda: len(stack.ledger.entries()) > before)
    assert ask(stack.port, path=path, headers=key).problem == "in-progress"
    open(until, "w").close()
    assert first.result().status == 201


def test_another_profiles_header_is_no_key(stack):
    assert not post(stack, "/paypal", idempotency_key="x").replayed and not post(stack, "/paypal", idempotency_key="x").replayed


def test_a_key_of_ones_own_goes_before_the_profiles(stack):
    assert not post(stack, "/own", x_own="o1").replayed and post(stack, "/own", x_own="o1").replayed
    assert post(stack, "/own", b"other", x_own="o1").status == 400


def test_other_markers_of_a_replay(stack):
    first, again = (ask(stack.port, "alias", path="/alias") for _ in range(2))
    assert again.headers["x-idempotency-replay"] == again.headers["original-request"] == "true" and again.replayed
    assert "x-idempotency-replay" not in first.headers
    with folder() as where:
        assert "not the name of a header" in nginx_says(where, 'idem_replayed_header "a b";')[1]


# ---- OASIS -----------------------------------------------------------------


def sent(ago=0):
    return email.utils.formatdate(time.time() - ago, usegmt=True)


def repeatable(stack, path="/oasis", request_id=None, first_sent=None, **named):
    got = post(stack, path, repeatability_request_id=request_id or str(uuid.uuid4()),
               repeatability_first_sent=first_sent or sent(), **named)
    return got, got.headers.get("repeatability-result")


def test_every_answer_says_whether_it_was_accepted(stack):
    one, when = str(uuid.uuid4()), sent()
    first, again = (repeatable(stack, request_id=one, first_sent=when) for _ in range(2))
    assert first[0].status == 201 and first[1] == again[1] == "accepted" and again[0].replayed
    assert again[0].body == first[0].body
    got, result = repeatable(stack, request_id=one, first_sent=when, body=b"other")
    assert (got.status, got.problem, result) == (400, "mismatch", "rejected")
    got, result = repeatable(stack, x_code=422)
    assert (got.status, result) == (422, "accepted")
    got, result = repeatable(stack, "/large", x_size=300000)
    assert (got.status, len(got.body), result) == (201, 300000, "accepted")
    assert "repeatability-result" not in post(stack, "/oasis").headers


def test_what_was_sent_too_long_ago_is_not_run(stack):
    before = len(stack.ledger.entries())
    got, result = repeatable(stack, first_sent=sent(3600))
    assert (got.status, got.problem, got.json()["class"], result) == (412, "first-sent-expired", "not executed", "rejected")
    assert len(stack.ledger.entries()) == before
    assert repeatable(stack, first_sent=sent(300))[0].status == 201


@pytest.mark.parametrize("headers", [
    {"repeatability_request_id": "r-1"}, {"repeatability_first_sent": sent()},
    {"repeatability_request_id": "r-2", "repeatability_first_sent": "yesterday"}])
def test_half_a_pair_of_headers_is_refused(stack, headers):
    got = post(stack, "/oasis", **headers)
    assert (got.status, got.problem, got.headers["repeatability-result"]) == (400, "key-malformed", "rejected")


def test_without_any_of_them_a_request_passes_unless_they_are_required(stack):
    assert post(stack, "/oasis").status == 201
    assert post(stack, "/must").problem == "key-missing"


def test_a_client_id_is_a_part_of_the_key(stack):
    one = str(uuid.uuid4())
    assert not repeatable(stack, request_id=one, repeatability_client_id="c1")[0].replayed
    assert not repeatable(stack, request_id=one, repeatability_client_id="c2")[0].replayed
    assert repeatable(stack, request_id=one, repeatability_client_id="c1")[0].replayed


def test_a_method_that_is_not_gated_cannot_be_repeated(stack):
    got, result = repeatable(stack, method="PUT")
    assert (got.status, got.problem, result) == (501, "not-repeatable", "rejected")
    assert ask(stack.port, method="PUT", path="/oasis").status == 201
    assert repeatable(stack, method="GET", body=None)[0].status == 201


def test_two_request_ids_are_refused(stack):
    head = "POST /oasis HTTP/1.1\r\nHost: a\r\nRepeatability-Request-ID: a\r\nRepeatability-Request-ID: b\r\n" \
           "Repeatability-First-Sent: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % sent()
    assert b" 400 " in raw(stack.port, head.encode())


def test_the_launcher_knows_profiles():
    with folder() as where:
        assert "not one of ietf|stripe|oasis|paypal" in said(where, "--profile", "visa")
        with Ledger(where) as ledger, Gateway(where, ledger.port, "--profile", "paypal", "--status-path", "/requests",
                                              "--policy-path", "/policy", store="memory:") as g:
            assert ask(g.port, paypal_request_id="p1").status == 201 and ask(g.port, paypal_request_id="p1").replayed
            assert ask(g.port, method="GET", path="/requests", body=None, paypal_request_id="p1").replayed
            assert "paypal_request_id" in ask(g.port, method="GET", path="/policy", body=None).json()["routes"][0]["key"]
