"""The gateway's behaviour: real nginx, real engine, a service whose ledger says what was executed."""
import collections
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import time

import pytest

from gateway import *
from lib import IDEM, folder, wait_until


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, location="idem_unbuffer_events on;", more="""
        location /loose { idem on; idem_mode loose; idem_lease 5s; proxy_pass http://service; }
        location /leased { idem on; idem_lease 5s; proxy_pass http://service; }
        location /close { idem on; idem_close_delimited on; proxy_pass http://service; }
        location /wait { idem on; idem_wait 10s; proxy_pass http://service; }
        location /required { idem on; idem_required on; proxy_pass http://service; }
        location /quoted { idem on; idem_key_quoted on; idem_required on; proxy_pass http://service; }
        location /refuse { idem on; idem_duplicate refuse; proxy_pass http://service; }
        location /fixed { idem on; idem_duplicate answer 200 "重复调用"; proxy_pass http://service; }
        location /small { idem on; idem_max_body 1000; idem_max_answer 5000; proxy_pass http://service; }
        location /body-pages { idem on; idem_max_body 1000; error_page 413 /large.html; error_page 400 /broken.html;
                               proxy_pass http://service; }
        location = /large.html { internal; return 413 "too much"; }
        location = /broken.html { internal; return 400 "broken"; }
        location /json { idem on; idem_fingerprint json; proxy_pass http://service; }
        location /fields { idem on; idem_fingerprint json amount to.name; proxy_pass http://service; }
        location /body { idem on; idem_key json:order.id form:seq xml:MessageID; idem_required on;
                         proxy_pass http://service; }
        location /maybe { idem on; idem_key json:order.id form:seq xml:MessageID; proxy_pass http://service; }
        location /source { idem on; idem_key "$http_source:$http_seq"; idem_scope "$arg_tenant"; proxy_pass http://service; }
        location /named { idem on; idem_anonymous off; proxy_pass http://service; }
        location /put { idem on; idem_methods POST PUT DELETE; proxy_pass http://service; }
        location /cookies { idem on; idem_keep_header Set-Cookie; idem_drop_header X-Order; proxy_pass http://service; }
        location /short { idem on; idem_ttl 1s; proxy_pass http://service; }
        location /slow { idem on; idem_lease 1s; proxy_read_timeout 1s; proxy_pass http://service; }
        location /dead { idem on; proxy_pass http://127.0.0.1:1; }
        location /release { idem on; idem_release 500-503 404; proxy_pass http://service; }
        location /never { idem on; idem_release off; proxy_pass http://service; }
        location /pages { idem on; proxy_intercept_errors on; error_page 500 502 504 /page.html;
                          proxy_pass http://service; }
        location = /page.html { internal; return 503 "a page\\n"; }
        location /twice { idem on; proxy_intercept_errors on; error_page 502 504 = @other; proxy_pass http://service; }
        location /kept { idem on; idem_max_body 1000; error_page 400 413 = @other; proxy_pass http://service; }
        location @other { proxy_pass http://service; proxy_method POST; }
        location /sorry { internal; proxy_pass http://service; }
        location /asked { idem on; proxy_intercept_errors on; error_page 500 502 504 /sorry; proxy_pass http://service; }
        location /unasked { idem on; error_page 502 504 /sorry; proxy_pass http://127.0.0.1:1; }
        location /files { idem on; try_files /nowhere @app; }
        location @app { proxy_pass http://service; }
        location /badfiles { idem on; try_files /nowhere @bad; }
        location @bad { proxy_pass http://service; proxy_ignore_client_abort off; }
        location /gzip { idem on; gzip on; gzip_types application/json; gzip_min_length 10; proxy_pass http://service; }
        location /header { idem on; add_header X-Added yes; proxy_pass http://service; }
        location /unbuffered { idem on; proxy_buffering off; proxy_set_header Upgrade $http_upgrade;
                               proxy_set_header Connection upgrade; proxy_pass http://service; }
        location /plain { proxy_pass http://service; idem_unbuffer_events on; }
        location /accel { idem on; proxy_pass http://service; }
        location /inner/ { internal; alias %s/; }
        location = /token { idem_issue_token; }
        location /tokens { idem on; idem_key off; idem_token $http_token form:token $cookie_tok; idem_required on;
                           proxy_pass http://service; }
        location /dedup { idem on; idem_key off; idem_token $http_token; idem_duplicate refuse; proxy_pass http://service; }
        """ % where) as s:
        with open(os.path.join(where, "file.txt"), "w") as f:
            f.write("from a file\n")
        yield s


@pytest.fixture
def key(request):
    key.n = getattr(key, "n", 0) + 1
    return "%s-%d" % (re.sub(r"[^a-z0-9]+", "-", request.node.name)[:60], key.n)


def first_and_again(stack, key, **named):
    first = ask(stack.port, key, **named)
    again = ask(stack.port, key, **named)
    return first, again


# ---- the plain story --------------------------------------------------------------------------------------------


def test_a_repeat_gets_the_first_answer_and_runs_nothing(stack, key):
    first, again = first_and_again(stack, key)
    assert first.status == again.status == 201 and first.body == again.body
    assert not first.replayed and again.replayed
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["content-type"] == "application/json"
    assert again.headers["cache-control"] == "no-store"
    assert first.headers["idempotency-expires"] and first.headers["idempotency-expires"] == \
        again.headers["idempotency-expires"]
    assert stack.ledger.executions(key) == 1
    assert stack.record(key)["state"] == "succeeded" and stack.record(key)["kind"] == "http"


def test_quoted_and_bare_are_the_same_key(stack, key):
    first = ask(stack.port, '"%s"' % key)
    again = ask(stack.port, key)
    assert again.replayed and again.body == first.body
    escaped = ask(stack.port, '"a\\"b\\\\c%s"' % key)
    assert not escaped.replayed and stack.record('a"b\\c' + key)["state"] == "succeeded"


@pytest.mark.parametrize("value", ['"open', '"a"b', '"a\\x"', '""', "a b", '"a" "b"', '"a";p=1', "a\x7fb", "\xe9", "x" * 256,
                                   '"' + "x" * 256 + '"', '"tab\there"', '" lead"'])
def test_a_malformed_key_is_refused_before_anything(stack, value, key):
    before = len(stack.ledger.entries())
    got = ask(stack.port, headers={"Idempotency-Key": value.encode("latin-1")})
    assert got.status == 400 and got.problem == "key-malformed" and not got.json()["retryable"]
    assert len(stack.ledger.entries()) == before


@pytest.mark.parametrize("value", ["abc", "123", "?1", ":YQ==:", "('a' 'b')"])
def test_a_strict_route_takes_strings_only(stack, value, key):
    got = ask(stack.port, value, path="/quoted")
    assert got.status == 400 and got.problem == "key-malformed"
    assert ask(stack.port, '"%s%s"' % (key, value), path="/quoted").status == 201


def test_a_key_sent_twice_is_refused(stack, key):
    got = raw(stack.port, b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n"
              b"Content-Length: 0\r\nConnection: close\r\n\r\n")
    assert b" 400 " in got and b"key-malformed" in got


def test_a_missing_key_passes_unless_required(stack, key):
    one, two = ask(stack.port), ask(stack.port)
    assert one.status == two.status == 201 and one.body != two.body
    assert "idempotency-expires" not in one.headers
    got = ask(stack.port, path="/required")
    assert got.status == 400 and got.problem == "key-missing" and "describedby" in got.headers["link"]


def test_another_content_under_the_same_key_is_refused(stack, key):
    first = ask(stack.port, key, path="/orders?x=1")
    for change in ({"body": b"other"}, {"path": "/orders?x=2"}, {"path": "/others?x=1"}, {"method": "PATCH"},
                   {"headers": {"Host": "other.example"}}):
        got = ask(stack.port, key, **{"path": "/orders?x=1", **change})
        assert got.status == 422 and got.problem == "mismatch", change
        assert "another method, host, path, query or body" in got.json()["detail"], "it names what may differ"
        assert "a retry, send exactly the first request again: with a new key it could run twice" in got.json()["detail"]
    assert ask(stack.port, key, path="/orders?x=1").body == first.body
    assert stack.ledger.executions(key) == 1


def test_a_retry_under_another_name_of_the_service_never_runs_again(stack, key):
    """By its credential it is the same caller; what the name in Host changes is the request."""
    me = {"Authorization": "Bearer " + key}
    first = ask(stack.port, key, headers=me)
    for name in ("other.example", "localhost", "127.0.0.1"):
        got = ask(stack.port, key, headers={**me, "Host": name})
        assert got.body == first.body if got.replayed else got.problem == "mismatch", name
    assert first.status == 201 and stack.ledger.executions(key) == 1


def test_a_mismatch_outranks_in_progress(stack, key):
    slow = Working(stack.port, stack.ledger, key)
    assert ask(stack.port, key, body=b"other").problem == "mismatch"
    assert slow.result().status == 201


def test_in_progress_is_a_conflict_with_retry_after(stack, key):
    slow = Working(stack.port, stack.ledger, key)
    got = ask(stack.port, key)
    assert got.status == 409 and got.problem == "in-progress" and got.json()["retryable"]
    assert int(got.headers["retry-after"]) >= 1 and got.json()["class"] == "in progress"
    assert slow.result().status == 201
    assert ask(stack.port, key).replayed


def test_a_duplicate_may_wait_for_the_first(stack, key):
    slow = Working(stack.port, stack.ledger, key, path="/wait")
    second = Later(ask, stack.port, key, path="/wait")
    eventually(lambda: stack.waiting() == 1)
    slow.go_on()
    got = second.result()
    assert got.replayed and got.body == slow.result().body and stack.ledger.executions(key) == 1


def test_a_storm_of_duplicates_runs_once(stack, key):
    answers = storm(200, lambda i: ask(stack.port, key, path="/wait", x_sleep=0.3))
    assert {a.status for a in answers} == {201} and len({a.body for a in answers}) == 1
    assert sum(not a.replayed for a in answers) == 1 and stack.ledger.executions(key) == 1


def test_a_storm_without_waiting_conflicts(stack, key):
    answers = storm(100, lambda i: ask(stack.port, key, x_sleep=1))
    assert stack.ledger.executions(key) == 1
    for a in answers:
        assert a.status == 201 or (a.problem == "in-progress" and "retry-after" in a.headers)


def test_reads_and_other_methods_pass(stack, key):
    for method in ("GET", "OPTIONS", "PUT", "DELETE"):
        for _ in range(2):
            got = ask(stack.port, key, method=method, body=None)
            assert got.status == 201 and not got.replayed
    assert stack.ledger.executions(key) == 8
    for method in ("PUT", "DELETE"):
        first = ask(stack.port, key + method, method=method, path="/put/1")
        assert ask(stack.port, key + method, method=method, path="/put/1").replayed and not first.replayed


def test_keys_expire(stack, key):
    assert ask(stack.port, key, path="/short").status == 201
    time.sleep(1.3)
    assert not ask(stack.port, key, path="/short").replayed and stack.ledger.executions(key) == 2


# ---- who asks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key", "Cookie"])
def test_callers_do_not_see_each_others_answers(stack, key, header):
    alice = ask(stack.port, key, headers={header: "Bearer alice"})
    bob = ask(stack.port, key, headers={header: "Bearer bob"})
    nobody = ask(stack.port, key)
    assert len({alice.body, bob.body, nobody.body}) == 3 and not bob.replayed and not nobody.replayed
    assert ask(stack.port, key, headers={header: "Bearer alice"}).body == alice.body
    scopes = {e["idem"]["idem-scope"] for e in stack.ledger.entries() if e["key"] == key}
    assert len(scopes) == 3 and "anonymous" in scopes and not any("alice" in s for s in scopes)


def test_a_route_can_refuse_callers_without_a_credential(stack, key):
    got = ask(stack.port, key, path="/named")
    assert got.status == 403 and got.problem == "caller-unknown"
    assert ask(stack.port, key, path="/named", headers={"Authorization": "x"}).status == 201


def test_key_and_scope_come_from_any_variable(stack, key):
    def post(tenant, seq):
        return ask(stack.port, path="/source?tenant=" + tenant, headers={"Source": "shop", "Seq": key + seq})
    one = post("a", "1")
    assert post("a", "1").body == one.body and post("a", "2").body != one.body and post("b", "1").body != one.body
    assert stack.record("shop:" + key + "1", "a")["state"] == "succeeded"


@pytest.mark.parametrize("tenant", ["idem.gateway", "x" * 201, "%00", "a%0ab"])
def test_a_scope_that_cannot_be_is_refused(stack, key, tenant):
    got = ask(stack.port, path="/source?tenant=" + tenant, headers={"Source": "digest", "Seq": "key"})
    assert got.status in (201, 403)
    if tenant in ("idem.gateway", "x" * 201):
        assert got.problem == "scope-refused"


def test_idem_headers_of_a_client_never_reach_the_service(stack, key):
    forged = {"Idem-Fence": "1", "idem-scope": "evil", "IDEM-ID": "evil", "Idem-Anything": "1", "X-Probe": key}
    ask(stack.port, key, headers=forged)
    ask(stack.port, method="GET", headers=forged, body=None)
    ask(stack.port, path="/plain", headers=forged)
    seen = [e for e in stack.ledger.entries() if e["headers"].get("x-probe") == key]
    assert len(seen) == 3
    assert seen[0]["idem"]["idem-scope"] == "anonymous" and seen[0]["idem"]["idem-id"] == key
    assert int(seen[0]["idem"]["idem-fence"]) > 1 and "idem-anything" not in seen[0]["idem"]
    assert seen[1]["idem"] == {} and seen[2]["idem"] == {}


# ---- keys and fingerprints from bodies ----------------------------------------------------------------------------


FILES = (b'--xyz\r\nContent-Disposition: form-data; name="f"; filename="seq"\r\n\r\nseq=1&a\r\n'
         b'--xyz\r\nContent-Disposition: form-data; name="seq"\r\n\r\nID\r\n--xyz--\r\n')


@pytest.mark.parametrize("one,two,other", [
    (b'{"order":{"id":"ID","a":1}}', b'{"order":{"id":"ID","a":1}}', b'{"order":{"id":"OTHER","a":1}}'),
    (b"a=1&seq=ID", b"a=1&seq=ID", b"a=1&seq=OTHER"),
    (FILES, FILES, FILES.replace(b"ID", b"OTHER")),
    (b"<e:Envelope xmlns:e='u'><e:Header><w:MessageID a='>'>ID</w:MessageID></e:Header></e:Envelope>",
     b"<e:Envelope xmlns:e='u'><e:Header><w:MessageID a='>'>ID</w:MessageID></e:Header></e:Envelope>",
     b"<x><MessageID>OTHER</MessageID></x>")])
def test_the_key_may_stand_in_the_body(stack, key, one, two, other):
    def post(body):
        return ask(stack.port, path="/body", body=body.replace(b"ID", key.encode(), 1) if b">ID<" not in body
                   else body.replace(b">ID<", b">" + key.encode() + b"<"))
    first = post(one)
    assert first.status == 201, first
    assert post(two).body == first.body and post(two).replayed
    assert not post(other.replace(b"OTHER", b"other-" + key.encode())).replayed
    assert stack.record(key)["state"] == "succeeded"


def test_a_body_without_the_key_is_refused_where_it_is_required(stack, key):
    assert ask(stack.port, path="/body", body=b'{"order":{}}').problem == "key-missing"
    assert ask(stack.port, path="/body", body=b'{"order":{"id":{}}}').problem == "key-malformed"
    assert ask(stack.port, path="/body", body=b"").problem == "key-missing"


@pytest.mark.parametrize("body", [
    b'{"order":{"id":"KEY","id":"KEY"}}', b'{"a":1,"a":1,"order":{"id":"KEY"}}',
    b'{"order":{"id":"KEY"},"deep":' + b"[" * 99 + b"]" * 99 + b"}", b'{"order":{"id":"KEY"},}',
    b"<!DOCTYPE a><a><MessageID>KEY</MessageID></a>", FILES[:-9].replace(b"ID", b"KEY")])
def test_a_body_in_which_the_service_may_find_a_key_does_not_pass_without_one(stack, key, body):
    """Readers differ in what they take; what the gateway cannot read must not run once for every retry."""
    got = ask(stack.port, path="/maybe", body=body.replace(b"KEY", key.encode()), x_probe=key)
    assert got.status == 400 and got.problem == "key-malformed"
    assert not [e for e in stack.ledger.entries() if e["headers"].get("x-probe") == key]


def test_a_byte_order_mark_hides_no_key(stack, key):
    body = b'\xef\xbb\xbf{"order":{"id":"%s"}}' % key.encode()
    assert ask(stack.port, path="/maybe", body=body).status == 201 and ask(stack.port, path="/maybe", body=body).replayed


def test_canonical_json_ignores_order_and_spaces(stack, key):
    first = ask(stack.port, key, path="/json", body=b'{"a":1,"b":[1,{"c":"\\u00e9","d":null}]}')
    again = ask(stack.port, key, path="/json", body='{ "b" : [1, {"d":null, "c":"é"}],\n "a":1}'.encode())
    assert again.replayed and again.body == first.body
    assert ask(stack.port, key, path="/json", body=b'{"a":1,"b":[{"c":"\\u00e9","d":null},1]}').problem == "mismatch"
    assert ask(stack.port, key, path="/json", body=b"not json").problem == "mismatch"


def test_chosen_fields_make_the_fingerprint(stack, key):
    body = b'{"amount":1,"to":{"name":"bob"},"time":%d}'
    assert ask(stack.port, key, path="/fields", body=body % 1).status == 201
    assert ask(stack.port, key, path="/fields", body=body % 2).replayed
    assert ask(stack.port, key, path="/fields", body=(body % 2).replace(b"bob", b"eve")).problem == "mismatch"


# ---- what a repeat gets --------------------------------------------------------------------------------------------


def test_a_route_may_refuse_duplicates(stack, key):
    first, again = first_and_again(stack, key, path="/refuse")
    assert first.status == 201 and again.status == 409 and again.problem == "duplicate"
    assert again.json()["class"] == "done" and stack.ledger.executions(key) == 1
    assert again.headers["idempotency-expires"] == first.headers["idempotency-expires"]


def test_a_route_may_give_duplicates_a_fixed_answer(stack, key):
    first, again = first_and_again(stack, key, path="/fixed")
    assert first.status == 201 and again.status == 200 and again.body.decode() == "重复调用"
    assert again.headers["idempotency-expires"] == first.headers["idempotency-expires"] and \
        again.headers["cache-control"] == "no-store"
    assert stack.ledger.executions(key) == 1


def test_tokens_are_used_once(stack, key):
    token = ask(stack.port, path="/token", method="GET", body=None).json()["token"]
    assert len(token) >= 22
    first = ask(stack.port, path="/tokens", headers={"token": token})
    again = ask(stack.port, path="/tokens", headers={"token": token})
    assert first.status == 201 and again.replayed and again.body == first.body
    assert ask(stack.port, path="/tokens", headers={"token": "no-such-token"}).problem == "token-unknown"
    assert ask(stack.port, path="/tokens", headers={"token": "x"}).status == 403
    assert ask(stack.port, path="/tokens").problem == "key-missing"


def test_a_token_belongs_to_who_asked_for_it(stack, key):
    token = ask(stack.port, path="/token", headers={"Authorization": "alice"}).json()["token"]
    assert ask(stack.port, path="/tokens", headers={"token": token, "Authorization": "bob"}).status == 403
    assert ask(stack.port, path="/tokens", headers={"token": token}).status == 403
    assert ask(stack.port, path="/tokens", headers={"token": token, "Authorization": "alice"}).status == 201


def test_a_token_in_a_form_or_a_cookie(stack, key):
    token = ask(stack.port, path="/token").json()["token"]
    assert ask(stack.port, path="/tokens", body=b"a=1&token=" + token.encode()).status == 201
    token = ask(stack.port, path="/token", headers={"Cookie": "user=1"}).json()["token"]
    got = ask(stack.port, path="/tokens", headers={"Cookie": "user=1; tok=" + token})
    assert got.status == 403  # another cookie is another credential
    with stack.resp() as r:
        r("REDEEM", token, "nobody")


def test_a_token_for_dedup_refuses_the_second(stack, key):
    token = ask(stack.port, path="/token").json()["token"]
    answers = storm(20, lambda i: ask(stack.port, path="/dedup", headers={"token": token}))
    assert sorted({a.status for a in answers}) == [201, 409] and sum(a.status == 201 for a in answers) == 1
    assert ask(stack.port, path="/dedup", headers={"token": token}).problem == "duplicate"


# ---- what the service did decides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [200, 201, 202, 301, 400, 404, 409, 422, 500, 502, 503, 504])
def test_strict_replays_every_complete_answer(stack, key, code):
    first, again = first_and_again(stack, key, x_code=code)
    assert first.status == again.status == code and again.replayed and again.body == first.body
    assert stack.ledger.executions(key) == 1
    assert stack.record(key)["state"] == ("failed" if code >= 400 else "succeeded")


@pytest.mark.parametrize("code", [425, 429])
def test_too_early_and_too_many_release_in_strict(stack, key, code):
    first, again = first_and_again(stack, key, x_code=code)
    assert first.status == again.status == code and not again.replayed and stack.ledger.executions(key) == 2


@pytest.mark.parametrize("code", [400, 404, 429, 500, 503])
def test_loose_lets_a_failure_be_retried(stack, key, code):
    first = ask(stack.port, key, path="/loose", x_code=code)
    assert first.status == code
    good = ask(stack.port, key, path="/loose")
    assert good.status == 201 and not good.replayed
    assert ask(stack.port, key, path="/loose").replayed and stack.ledger.executions(key) == 2


def test_which_statuses_release_can_be_chosen(stack, key):
    for code, runs in ((500, 2), (404, 2), (400, 1), (504, 1)):
        first_and_again(stack, key + str(code), path="/release", x_code=code)
        assert stack.ledger.executions(key + str(code)) == runs
    first_and_again(stack, key, path="/never", x_code=429)
    assert stack.ledger.executions(key) == 1


@pytest.mark.parametrize("path", ["/dead", "/dead?loose"])
def test_a_refused_connection_releases(stack, key, path):
    for _ in range(3):
        got = ask(stack.port, key, path="/dead")
        assert got.status == 502 and got.problem == "service-unreachable" and got.json()["retryable"]
        assert stack.record(key)["state"] == "free"


CUTS = ["nothing", "reset", "half-header", "half-body", "half-chunk", "bad-chunk", "garbage", "two-lengths"]


@pytest.mark.parametrize("way", CUTS)
def test_a_cut_answer_is_unknown_and_never_stored(stack, key, way):
    got = ask(stack.port, key, x_way=way)
    assert got.status == 504 and got.problem == "outcome-unknown" and not got.json()["retryable"]
    assert stack.record(key)["state"] == "executing"
    # Nobody will ever tell the outcome, so a repeat is not told to wait for the lease of 30 s.
    eventually(lambda: ask(stack.port, key, x_way=way).problem == "outcome-unknown", 10)
    assert stack.ledger.executions(key) == 1


EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
NO_ANSWERS = [b"\x00 no HTTP\r\n\r\n", EARLY_HINTS,
              b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
              b"HTTP/1.1 600 Odd\r\nContent-Length: 100\r\n\r\nx",
              b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Length: 9\r\n\r\nx"]


@pytest.mark.parametrize("path", ["/orders", "/unbuffered"])
@pytest.mark.parametrize("sent", NO_ANSWERS, ids=["garbage", "early-hints", "upgrade", "odd-status", "two-lengths"])
def test_a_service_that_stays_after_no_answer_does_not_hold_the_client(stack, key, sent, path):
    """The client's connection is for its next request, not for what a service may still say."""
    head = "POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nUpgrade: x\r\nConnection: %s\r\nX-Way: open:%s\r\n" \
           "Content-Length: 1\r\n\r\nx"
    for how, until in (("close", None), ("upgrade", b"HTTP/1.1 201 ")):
        k = key + how
        post = (head % (path, k, how, sent.hex())).encode()
        start = time.time()
        got = raw(stack.port, post + (b"" if how == "close" else b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n"), 8, until=until)
        if how == "close" or "two-lengths" not in key:
            assert time.time() - start < 5, got
        assert stack.ledger.executions(k) == 1
        if sent is EARLY_HINTS and nginx_version() >= (1, 29):  # which skips them and takes the answer
            assert got.startswith(b"HTTP/1.1 200") and stack.record(k)["state"] == "succeeded", got
            continue
        assert got.startswith(b"HTTP/1.1 504") and b"outcome-unknown" in got and b"Odd" not in got
        assert stack.record(k)["state"] == "executing"


def test_an_unknown_outcome_comes_to_doubt_and_can_be_settled(stack, key):
    assert ask(stack.port, key, x_way="half-body", path="/slow").status == 504
    doubt = eventually(lambda: (lambda a: a if a.problem == "outcome-unknown" else None)(
        ask(stack.port, key, x_way="half-body", path="/slow")))
    assert doubt.status == 409 and "retry-after" not in doubt.headers and not doubt.json()["retryable"]
    with stack.resp() as r:
        assert r("SETTLE", "anonymous", key, "AS", "SUCCEEDED", "200\n\ndone", "KIND", "http")[0] == "settled"
    got = ask(stack.port, key, x_way="half-body", path="/slow")
    assert got.status == 200 and got.body == b"done" and got.replayed and stack.ledger.executions(key) == 1


def test_a_service_that_is_silent_too_long_is_unknown(stack, key):
    slow = Working(stack.port, stack.ledger, key, path="/slow")
    got = Later.result(slow)  # which does not tell it to go on
    assert got.status == 504 and got.problem == "outcome-unknown" and stack.ledger.executions(key) == 1
    slow.go_on()


def test_loose_may_run_again_when_the_lease_is_over(stack, key):
    assert ask(stack.port, key, path="/loose", x_way="half-body").status == 504
    assert ask(stack.port, key, path="/loose").problem == "in-progress"
    eventually(lambda: ask(stack.port, key, path="/loose").status == 201)
    assert stack.ledger.executions(key) == 2


def test_a_lease_is_renewed_while_the_service_works(stack, key):
    slow = Working(stack.port, stack.ledger, key, path="/leased")
    time.sleep(5.4)  # the lease is 5 s
    assert ask(stack.port, key, path="/leased").problem == "in-progress"
    assert slow.result().status == 201 and ask(stack.port, key, path="/leased").replayed


def test_a_service_that_finishes_the_record_itself(stack, key):
    first = ask(stack.port, key, x_finish=stack.engine.socket)
    assert first.status == 201 and first.json()["by"] == "service" and first.headers["x-by"] == "service"
    assert not first.replayed
    again = ask(stack.port, key, x_finish=stack.engine.socket)
    assert again.replayed and again.body == first.body
    cut = ask(stack.port, key + "cut", x_finish=stack.engine.socket, x_way="nothing")
    assert cut.status == 504
    assert ask(stack.port, key + "cut", x_finish=stack.engine.socket, x_way="nothing").json()["by"] == "service"


# ---- answers of every shape -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["", "chunked", "trailers", "close", "early-close", "odd", "no-content", "redirect"])
@pytest.mark.parametrize("size", [None, 0, 1, 20000, 900000])
def test_answers_of_every_shape_are_replayed_as_they_were(stack, key, way, size):
    named = {"x_way": way, "path": "/close" if way == "close" else "/orders", **({"x_size": size} if size is not None else {})}
    first, again = first_and_again(stack, key, **named)
    assert again.replayed and first.status == again.status and first.body == again.body
    if size and way not in ("no-content", "redirect"):
        assert len(first.body) == size
    for name in ("location", "content-type", "x-odd", "x-empty", "x-order"):
        assert first.headers.get(name) == again.headers.get(name)
    assert stack.ledger.executions(key) == 1


def test_headers_that_are_not_for_others_are_not_replayed(stack, key):
    first, again = first_and_again(stack, key, x_way="cookie")
    assert first.headers["set-cookie"] and first.headers["www-authenticate"]
    assert "set-cookie" not in again.headers and "www-authenticate" not in again.headers
    assert again.headers["etag"] == first.headers["etag"] and again.headers["x-twice"] == "1,2"
    assert again.headers["cache-control"] == "no-store" and "keep-alive" not in again.headers
    first, again = first_and_again(stack, key + "k", x_way="cookie", path="/cookies")
    assert again.headers["set-cookie"] == first.headers["set-cookie"] and "x-order" not in again.headers


def test_a_304_has_no_length_of_a_body_that_it_does_not_have(stack, key):
    first, again = first_and_again(stack, key, x_way="open:" + b'HTTP/1.1 304 Not Modified\r\nETag: "e"\r\n\r\n'.hex())
    assert first.status == again.status == 304 and again.replayed and again.headers["etag"] == '"e"'
    assert "content-length" not in first.headers and "content-length" not in again.headers


def test_only_the_gateway_says_when_its_record_expires(stack, key):
    way = b"HTTP/1.1 200 OK\r\nIdempotency-Expires: tomorrow\r\nContent-Length: 2\r\nidempotency-expires: never\r\n\r\nok"
    for got in first_and_again(stack, key, x_way="open:" + way.hex()):
        assert got.status == 200 and re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT", got.headers["idempotency-expires"])


def test_a_1xx_that_nginx_takes_for_an_answer_is_unknown(stack, key):
    got = ask(stack.port, key, x_way="continue")
    assert got.status == 504 and got.problem == "outcome-unknown" and stack.ledger.executions(key) == 1


def test_an_answer_over_the_limit_reaches_the_client_and_is_done(stack, key):
    for way in ("", "chunked"):
        first = ask(stack.port, key + way, path="/small", x_size=300000, x_way=way)
        assert first.status == 201 and len(first.body) == 300000
        again = ask(stack.port, key + way, path="/small", x_size=300000, x_way=way)
        assert again.status == 410 and again.problem == "not-replayable" and again.json()["class"] == "done"
        assert stack.ledger.executions(key + way) == 1


def test_a_body_over_the_limit_is_refused_before_the_claim(stack, key):
    got = ask(stack.port, key, path="/small", body=b"x" * 1001)
    assert got.status == 413 and got.problem == "body-too-large"
    limit = "The body is over 1000 bytes, the limit for requests with an idempotency key: send a smaller one, or have the limit raised (--max-body)."
    assert got.json()["detail"] == limit
    got = ask(stack.port, key, path="/small", body=iter([b"x" * 600, b"x" * 600]))
    assert got.json()["detail"] == limit
    assert got.status == 413 and stack.record(key) is None and stack.ledger.executions(key) == 0
    assert ask(stack.port, key, path="/small", body=b"x" * 1000).status == 201


def test_a_body_without_a_length_is_refused_when_it_is_over_the_limit(stack, key):
    """Not at its end: it may have none, and lies on the disk meanwhile."""
    head = "POST %%s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % key
    for path, status, word in (("/small", b"413", b"body-too-large"), ("/body-pages", b"413", b"too much")):
        got = raw(stack.port, (head % path).encode() + b"400\r\n" + b"x" * 1024 + b"\r\n", 5, until=word)
        assert got.startswith(b"HTTP/1.1 " + status) and word in got, got
    got = raw(stack.port, (head % "/body-pages").encode() + b"zz\r\n", 5, until=b"broken")
    assert got.startswith(b"HTTP/1.1 400") and b"broken" in got, got
    assert stack.record(key) is None and stack.ledger.executions(key) == 0


def test_bodies_in_files_and_in_chunks(stack, key):
    big = os.urandom(699999) + b"!"
    first = ask(stack.port, key, body=big)
    again = ask(stack.port, key, body=iter([big[:5], big[5:300000], big[300000:]]))
    assert first.status == 201 and again.replayed and again.body == first.body
    assert ask(stack.port, key, body=big[:-1] + b"?").problem in ("mismatch",)
    assert [e["body"] for e in stack.ledger.entries() if e["key"] == key] == [700000]


def test_gzip_and_added_headers_are_made_anew(stack, key):
    import gzip
    for i, compressed in ((0, True), (1, False), (2, True)):
        got = ask(stack.port, key, path="/gzip", x_size=5000, x_code=200, headers={"Accept-Encoding": "gzip"} if compressed else {})
        assert (got.headers.get("content-encoding") == "gzip") == compressed
        assert len(gzip.decompress(got.body) if compressed else got.body) == 5000 and got.replayed == (i > 0)
    first, again = first_and_again(stack, key + "h", path="/header")
    assert first.headers["x-added"] == again.headers["x-added"] == "yes"


def test_expect_100_continue(stack, key):
    got = raw(stack.port, b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nExpect: 100-continue\r\n"
              b"Content-Length: 0\r\nConnection: close\r\n\r\n" % key.encode())
    assert b" 201 " in got
    import socket
    s = socket.create_connection(("127.0.0.1", stack.port), 10)
    s.sendall(b"POST /small HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s2\r\nExpect: 100-continue\r\n"
              b"Content-Length: 3\r\nConnection: close\r\n\r\n" % key.encode())
    assert s.recv(1000).startswith(b"HTTP/1.1 100 Continue")
    s.sendall(b"abc")
    assert b" 201 " in s.recv(10000)
    s.close()
    got = raw(stack.port, b"POST /small HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s3\r\nExpect: 100-continue\r\n"
              b"Content-Length: 99999\r\nConnection: close\r\n\r\n" % key.encode())
    assert b" 413 " in got and b"100 Continue" not in got


def test_pipelined_requests_and_a_client_that_closes_its_side(stack, key):
    one = b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nContent-Length: 2\r\n%s\r\nab"
    got = raw(stack.port, one % (key.encode(), b"") * 4 + one % (key.encode(), b"Connection: close\r\n"))
    assert got.count(b"HTTP/1.1 201") == 5 and got.count(b"Idempotent-Replayed: true") == 4
    assert stack.ledger.executions(key) == 1
    got = raw(stack.port, one % (key.encode() + b"half", b"X-Sleep: 0.3\r\nConnection: close\r\n"), half_close=True)
    assert b" 201 " in got


def test_a_client_that_leaves_does_not_stop_the_execution(stack, key):
    import socket
    s = socket.create_connection(("127.0.0.1", stack.port), 10)
    s.sendall(b"POST /orders HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nIdempotency-Key: %s\r\nX-Sleep: 0.5\r\n"
              b"Content-Length: 7\r\n\r\n{\"a\":1}" % (stack.port, key.encode()))
    eventually(lambda: stack.ledger.executions(key) == 1)
    s.close()
    eventually(lambda: stack.record(key)["state"] == "succeeded")
    assert ask(stack.port, key, x_sleep=0.5).replayed


def test_a_waiter_that_leaves_runs_nothing(stack, key):
    import socket
    slow = Working(stack.port, stack.ledger, key, path="/wait", x_code=429)
    s = socket.create_connection(("127.0.0.1", stack.port), 10)
    s.sendall(b"POST /wait HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nIdempotency-Key: %s\r\nContent-Length: 7\r\n\r\n{\"a\":1}"
              % (stack.port, key.encode()))
    eventually(lambda: stack.waiting() == 1)
    s.close()
    assert slow.result().status == 429
    eventually(lambda: stack.record(key)["state"] == "free")
    assert stack.ledger.executions(key) == 1


# ---- the operator's nginx ---------------------------------------------------------------------------------------------


def test_error_pages_of_the_operator(stack, key):
    first, again = first_and_again(stack, key, path="/pages", x_code=500)
    assert first.body == again.body == b"a page\n" and again.replayed and stack.ledger.executions(key) == 1
    got = ask(stack.port, key + "cut", path="/pages", x_way="nothing")
    assert got.body == b"a page\n" and stack.record(key + "cut")["state"] == "executing"


def test_an_error_page_never_asks_a_service_again(stack, key):
    got = ask(stack.port, key, path="/twice", x_way="nothing")
    assert got.status == 504 and stack.ledger.executions(key) == 1


@pytest.mark.parametrize("body", [b"zz\r\nhello\r\n0\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n"])
def test_an_error_page_never_runs_a_request_without_a_claim(stack, key, body):
    head = b"POST /kept HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % key.encode()
    assert raw(stack.port, head + body, 5, until=b"</html>").startswith(b"HTTP/1.1 500")
    assert stack.record(key) is None and stack.ledger.executions(key) == 0


def test_what_a_proxied_error_page_says_is_not_the_outcome(stack, key):
    assert ask(stack.port, key + "500", path="/asked", x_code=500).status >= 500
    assert stack.record(key + "500")["state"] == "failed"
    assert ask(stack.port, key + "cut", path="/asked", x_way="nothing").status == 504
    assert stack.record(key + "cut")["state"] == "executing"
    assert ask(stack.port, key + "none", path="/unasked").status == 502
    assert stack.record(key + "none")["state"] == "free"


def test_a_location_that_is_come_to_has_to_be_safe_too(stack, key):
    first, again = first_and_again(stack, key, path="/files")
    assert first.status == 201 and again.replayed and stack.ledger.executions(key) == 1
    assert ask(stack.port, key + "bad", path="/badfiles").status >= 500
    assert stack.ledger.executions(key + "bad") == 0 and stack.record(key + "bad")["state"] == "free"


def test_internal_redirects_of_the_service(stack, key):
    first, again = first_and_again(stack, key, path="/accel", x_way="accel:/inner/file.txt", x_code=200)
    assert first.body == again.body == b"from a file\n" and again.replayed and stack.ledger.executions(key) == 1


def test_events_and_upgrades_stream_where_nothing_is_gated(stack, key):
    import socket
    until = os.path.join(stack.where, key + "-until")
    s = socket.create_connection(("127.0.0.1", stack.port), 30)
    s.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\nX-Until: %s\r\n\r\n" % until.encode())
    data = b""
    while b"data: 0" not in data:
        data += s.recv(1000)
    assert b"data: 2" not in data
    open(until, "w").close()
    while b"data: 2" not in data:
        data += s.recv(1000)
    s.close()


def test_the_verdict_is_in_the_access_log(stack, key):
    ask(stack.port, key)
    ask(stack.port, key)
    ask(stack.port, key, body=b"other")
    ask(stack.port, key + "cut", x_way="nothing")
    ask(stack.port, key + "rel", x_code=429)
    ask(stack.port)

    def lines(k):
        with open(os.path.join(stack.where, "access.log")) as f:
            return [line for line in f if "id=%s " % k in line]
    eventually(lambda: len(lines(key)) == 3 and lines(key + "cut") and lines(key + "rel"))  # after the answer
    verdicts = [re.search(r"idem=(\S+) scope=anonymous", line).group(1) for line in lines(key)]
    assert verdicts == ["started", "replay", "mismatch"]
    assert "fence=-" not in lines(key)[0]
    assert "idem=outcome-unknown" in lines(key + "cut")[0] and "idem=released" in lines(key + "rel")[0]
    eventually(lambda: "POST /orders HTTP/1.1 201 idem=- scope=- id=-" in
               open(os.path.join(stack.where, "access.log")).read())


def test_a_redirect_is_replayed_to_the_letter(stack, key):
    for target in ("/x/1", "http://127.0.0.1:%d/x/1" % stack.ledger.port, "http://elsewhere.example/1"):
        data = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % target.encode()
        first, again = first_and_again(stack, key + target, x_way="bytes:" + data.hex())
        assert first.status == again.status == 302 and again.replayed
        assert first.headers["location"] == again.headers["location"]


def test_an_answer_waits_while_its_row_is_locked(key):
    """Nothing is told before it is recorded, also when somebody's transaction stands in the way of the finish."""
    with folder() as where:
        database = os.path.join(where, "records.db")
        subprocess.run([IDEM, "store", "init", "sqlite:" + database], check=True, stdout=subprocess.DEVNULL)
        with Stack(where, store="sqlite:" + database) as stack, \
                contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
            asking = Working(stack.port, stack.ledger, key)
            other.execute("begin immediate")
            asking.go_on()
            time.sleep(1)
            assert asking.thread.is_alive()
            other.execute("rollback")
            assert asking.result().status == 201
            assert stack.record(key)["state"] == "succeeded"
            assert ask(stack.port, key).replayed and stack.ledger.executions(key) == 1


def test_a_worker_sleeps_until_there_is_something_to_do():
    """A unix socket reports that it can be written whenever its other side reads: nobody waits for that."""
    with folder() as where, Stack(where) as stack:
        trace, count = os.path.join(where, "trace"), 20
        strace = Process(["strace", "-qq", "-o", trace, "-p", str(wait_until(stack.nginx.workers)[0])])
        try:
            assert wait_until(lambda: open(trace).read() if os.path.exists(trace) else ask(stack.port, method="GET") and None)
            for i in range(count):
                assert ask(stack.port, "wake-%d" % i).status == 201
        finally:
            strace.stop(signal.SIGINT)
        with open(trace) as f:
            calls = f.read().splitlines()
        waits = [bool(re.match(r"epoll_\w+\(", call)) for call in calls]
        in_vain = [call for call, this, following in zip(calls, waits, waits[1:]) if this and following]
        of_a_socket = collections.Counter(re.findall(r"\[{events=EPOLLOUT, data={u32=\d+, u64=(\d+)}}\]", "\n".join(in_vain)))
        # nginx itself has one for each new connection to a service
        assert sum(waits) > 2 * count and max(of_a_socket.values(), default=0) <= count, of_a_socket
