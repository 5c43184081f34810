"""Quotas: how many records and bytes one scope may have. A scope at its limit is refused by the name of the limit, the others go on."""
import json
import subprocess
import urllib.error
import urllib.request

import pytest

import servers
from gateway import Stack, ask
from lib import IDEM, Server, folder, wait_until
from servers import Redis


def post(port, path, **body):
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (port, path), json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply), reply.headers
    except urllib.error.HTTPError as e:
        return e.code, json.load(e), e.headers


def is_refused(answer, limit):
    return isinstance(answer, Exception) and str(answer).startswith("OVERLOADED %s: " % limit)


@pytest.mark.parametrize("store", ["memory:", "journal"])
def test_a_scope_has_so_many_records_and_the_others_go_on(store):
    with folder() as where, Server(where, "--scope-records", "3", http=True, store=store if ":" in store else None) as s, \
            s.client() as c:
        fences = [c("BEGIN", "loud", str(i), "TTL", "60000")[1] for i in range(3)]
        assert is_refused(c("BEGIN", "loud", "3"), "scope-records")
        assert is_refused(c("ISSUE", "loud"), "scope-records")
        assert is_refused(c("SETTLE", "loud", "3"), "scope-records")
        status, said, headers = post(s.http, "/v1/records/loud/3/begin")
        assert status == 429 and said["type"].endswith("/over-quota") and said["detail"].startswith("scope-records:"), said
        assert said["retryable"] and said["class"] == "not executed" and int(headers["Retry-After"]) == 5
        # A request that is known is answered, a claim ends, an operator decides.
        assert c("BEGIN", "loud", "0")[0] == "busy"
        assert c("FINISH", "loud", "0", fences[0], "SUCCEEDED", "x", "TTL", "60000")[0] == "ok"
        assert c("BEGIN", "loud", "0")[0] == "replay"
        assert c("SETTLE", "loud", "by-hand", "AS", "FAILED", "no")[0] == "settled"
        assert c("BEGIN", "quiet", "1")[0] == "started" and c("ID", "snowflake")[0] == "ids"
        assert "over_quota:4" in c("INFO") and c("GET", "loud", "3")[0] == "absent"


def test_records_that_expired_make_room_and_a_restart_counts_what_is_there():
    with folder() as where:
        with Server(where, "--scope-records", "2") as s, s.client() as c:
            for i in range(2):
                assert c("SETTLE", "s", str(i), "TTL", "1500")[0] == "settled"
            assert is_refused(c("BEGIN", "s", "2"), "scope-records")
            for id in ("2", "3"):
                assert wait_until(lambda: c("BEGIN", "s", id) and c("GET", "s", id)[0] == "record", step=0.2)
        with Server(where, "--scope-records", "2") as s, s.client() as c:
            # A new server knows how many there are when it has looked through the store once.
            numbers = iter(range(4, 1000))
            assert wait_until(lambda: is_refused(c("BEGIN", "s", str(next(numbers))), "scope-records"), step=0.2)
            assert c("BEGIN", "s", "3")[0] in ("busy", "doubt")


def test_bytes_are_limited_and_an_open_claim_counts_2_kib_more():
    with folder() as where, Server(where, "--scope-bytes", "50k") as s, s.client() as c:
        fence = c("BEGIN", "big", "1")[1]
        assert c("FINISH", "big", "1", fence, "SUCCEEDED", "x" * 60000)[0] == "ok", "what was claimed can be finished"
        assert is_refused(c("BEGIN", "big", "2"), "scope-bytes")
        begun = 0
        while not is_refused(c("BEGIN", "many", str(begun)), "scope-bytes"):
            begun += 1
        assert 15 <= begun <= 25, begun
        for i in range(begun):
            c("SETTLE", "many", str(i), "AS", "SUCCEEDED", "")
        assert c("BEGIN", "small", "1")[0] == "started"


def test_a_server_counts_the_records_of_others_on_a_shared_store():
    db = Redis()
    try:
        with folder() as one, folder() as two:
            with Server(one, store=db.url) as s, s.client() as c:
                for i in range(5):
                    assert c("BEGIN", "s", str(i))[0] == "started"
                with Server(two, "--scope-records", "5", "--scope-bytes", "1g", store=db.url) as other, other.client() as d:
                    numbers = iter(range(5, 1000))
                    assert wait_until(lambda: is_refused(d("BEGIN", "s", str(next(numbers))), "scope-records"), step=0.2)
                    assert d("BEGIN", "s", "0")[0] == "busy"
    finally:
        db.stop()


@pytest.mark.parametrize("store", ["sqlite", "Postgres", "MariaDB"])
def test_a_new_server_on_an_sql_store_counts_bytes_that_another_wrote(store):
    """A list of records does not bring their results along, but their lengths."""
    db = getattr(servers, store)() if store[0].isupper() else None
    try:
        with folder() as where:
            url = db.url if db else "sqlite:%s/db" % where
            subprocess.run([IDEM, "store", "init", url], check=True, stdout=subprocess.DEVNULL)
            with Server(where, store=url) as s, s.client() as c:
                fence = c("BEGIN", "big", "1")[1]
                assert c("FINISH", "big", "1", fence, "SUCCEEDED", "x" * 600000)[0] == "ok"
                s.kill()
            with Server(where, "--scope-bytes", "500k", store=url) as s, s.client() as c:
                numbers = iter(range(2, 1000))
                assert wait_until(lambda: is_refused(c("BEGIN", "big", str(next(numbers))), "scope-bytes"), step=0.2)
                assert c("BEGIN", "small", "1")[0] == "started" and c("BEGIN", "big", "1")[0] == "replay"
                assert next(numbers) < 150, "it is refused for the result, not for the claims that followed"
    finally:
        if db:
            db.stop()


@pytest.mark.parametrize("limit, retry", [("scope-records", "5"), ("scope-rate", "1")])
def test_the_gateway_answers_429_with_the_name_of_the_limit(tmp_path, limit, retry):
    with Stack(str(tmp_path), location="idem_mode loose; idem_fail_open on;", engine=("--" + limit, "1")) as s:
        first = ask(s.port, "first")
        assert first.status == 201
        for i in range(1000):  # a rate lets a few pass
            refused = ask(s.port, "another-%d" % i)
            if refused.status != 201:
                break
        said = json.loads(refused.body)
        assert refused.status == 429 and refused.headers["retry-after"] == retry, (refused.status, said)
        assert said["type"].endswith("/over-quota") and said["detail"].startswith(limit + ":") and said["retryable"]
        if limit == "scope-records":
            again = ask(s.port, "first")
            assert again.status == 201 and again.replayed and again.body == first.body


def test_tokens_and_content_over_the_quota_are_429_too(tmp_path):
    with Stack(str(tmp_path), more="""location = /token { idem_issue_token; }
            location /twice { idem on; idem_dedupe_content 1h; proxy_pass http://service; }""",
               engine=("--scope-records", "1")) as s:
        twice = ask(s.port, "k1", path="/twice")  # a record for the key, and none is left for its content
        assert twice.status == 429 and json.loads(twice.body)["detail"].startswith("scope-records:"), twice.body
        assert wait_until(lambda: s.record("k1")["state"] == "free")  # nothing ran, and the key can be used again
        token = ask(s.port, path="/token")
        assert token.status == 429 and json.loads(token.body)["type"].endswith("/over-quota"), token.body
