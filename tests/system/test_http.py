"""HTTP/JSON of `idem serve`: every verdict, waiting, rights, bad input of every kind, the description, figures."""
import base64
import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from urllib.parse import quote

import pytest

import servers
from lib import IDEM, ROOT, SANITIZED, Process, Server, encode, folder, free_port, wait_until

PROBLEM = "/problems/"


SCHEMAS = {}  # of /openapi.json


def assert_described(said, name):
    """What was answered has what the description promises, and nothing else."""
    schema = SCHEMAS[name]
    assert set(schema["required"]) <= said.keys() <= schema["properties"].keys(), (name, said)
    kinds = {"integer": int, "string": str, "boolean": bool, "array": list, "object": dict}
    for key, value in said.items():
        wanted = schema["properties"][key]
        assert "$ref" in wanted or isinstance(value, kinds[wanted["type"]]) or (value is None and wanted["nullable"]), key
    for record in [said["record"]] if name == "record" else said.get("records", []):
        assert_described(record, "Record")


class Http:
    """One connection that is used again and again, as a client library would."""

    def __init__(self, port, auth=None, timeout=60):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self.auth = auth

    def raw(self, method, path, body=None, headers=None):
        headers = dict(headers or {})
        if self.auth:
            headers.setdefault("Authorization", self.auth)
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        return answer, answer.read()

    def __call__(self, method, path, **fields):
        body = json.dumps(fields) if fields else None
        answer, data = self.raw(method, path, body, {"Content-Type": "application/json"} if body else {})
        self.status, self.headers = answer.status, answer.headers
        said = json.loads(data)
        if "verdict" in said:
            if not SCHEMAS:
                SCHEMAS.update(json.loads(self.raw("GET", "/openapi.json")[1])["components"]["schemas"])
            assert_described(said, said["verdict"])
        return said

    def problem(self, method, path, **fields):
        """The problem's name; asserts that it is one."""
        said = self(method, path, **fields)
        assert self.headers["Content-Type"] == "application/problem+json", said
        assert said["status"] == self.status and said["type"].startswith(PROBLEM)
        assert isinstance(said["retryable"], bool) and said["title"]
        self.said = said
        return said["type"][len(PROBLEM):]


def rec(scope, id, verb=None):
    path = "/v1/records/%s/%s" % (quote(scope, safe=""), quote(id, safe=""))
    return path + "/" + verb if verb else path


@pytest.fixture(scope="module")
def server():
    with folder() as where, Server(where, http=True, listen=True) as s:
        yield s


@pytest.fixture
def api(server):
    return Http(server.http)


@pytest.fixture
def operator(guarded):
    return Http(guarded.http, auth="Bearer ops:ops-secret-12345678")


def begin(api, scope, id, **fields):
    return api("POST", rec(scope, id, "begin"), **fields)


# ---- verdicts --------------------------------------------------------------

def tell_the_story(api):
    """Every verdict of a request, a token and a lock; returns what must still hold after a crash."""
    fp, other = "aa" * 32, "bb" * 32
    first = begin(api, "pay", "1", fingerprint=fp, lease_ms=60000)
    assert first["verdict"] == "started" and first["fence"] > 0 and api.status == 200
    fence = first["fence"]
    busy = begin(api, "pay", "1", fingerprint=fp)
    assert busy["verdict"] == "busy" and busy["retry_after_ms"] > 0 and api.headers["Retry-After"]
    assert begin(api, "pay", "1", fingerprint=other) == {"verdict": "mismatch"}
    assert api("POST", rec("pay", "1", "finish"), fence=fence - 1, outcome="succeeded") == {"verdict": "stale"}
    assert api("POST", rec("pay", "1", "renew"), fence=fence, lease_ms=90000)["lease_until"] > first["lease_until"]
    assert api("POST", rec("pay", "1", "renew"), fence=fence - 1) == {"verdict": "stale"}
    done = api("POST", rec("pay", "1", "finish"), fence=fence, outcome="succeeded", result="yes")
    assert done["verdict"] == "ok" and done["expires"] > 0
    assert api("POST", rec("pay", "1", "finish"), fence=fence, outcome="succeeded", result="yes")["verdict"] == "ok"
    differs = api("POST", rec("pay", "1", "finish"), fence=fence, outcome="failed", result="no")
    assert differs["verdict"] == "finished" and differs["state"] == "succeeded" and differs["result"] == "yes"
    replay = begin(api, "pay", "1", fingerprint=fp)
    assert (replay["verdict"], replay["state"], replay["result"], replay["replayable"]) == \
        ("replay", "succeeded", "yes", True)
    assert base64.b64decode(replay["result_base64"]) == b"yes"

    again = begin(api, "pay", "n", nonce="0102030405060708")
    assert begin(api, "pay", "n", nonce="0102030405060708")["fence"] == again["fence"]
    assert api("POST", rec("pay", "n", "release"), fence=again["fence"]) == {"verdict": "ok"}
    assert api("POST", rec("pay", "n", "release"), fence=again["fence"]) == {"verdict": "stale"}
    assert begin(api, "pay", "n", nonce="0102030405060708") == {"verdict": "stale"}

    assert api("POST", rec("pay", "2", "settle"), reason="asked in time")["state"] == "failed"
    assert begin(api, "pay", "2")["verdict"] == "replay"
    assert begin(api, "pay", "2")["result"] == "asked in time"
    assert api("POST", rec("pay", "1", "settle"))["verdict"] == "replay"

    begin(api, "pay", "3", lease_ms=50)
    time.sleep(0.15)
    doubt = wait_until(lambda: (lambda a: a if a["verdict"] == "doubt" else None)(begin(api, "pay", "3")))
    assert doubt["since"] > 0
    assert api("POST", rec("pay", "3", "settle"))["verdict"] == "doubt"
    late = begin(api, "pay", "4", lease_ms=50, mode="loose")
    time.sleep(0.15)
    over = wait_until(lambda: (lambda a: a if a["verdict"] == "started" else None)(
        begin(api, "pay", "4", mode="loose", lease_ms=60000)))
    assert over["fence"] > late["fence"]
    assert api("POST", rec("pay", "4", "finish"), fence=late["fence"], outcome="succeeded") == {"verdict": "stale"}
    assert api("POST", rec("pay", "4", "settle"))["verdict"] == "busy"

    assert api("GET", rec("pay", "nobody")) == {"verdict": "absent"} and api.status == 200
    return fp


def test_every_verdict_of_a_request(api):
    tell_the_story(api)


def test_http_answers_as_soon_as_the_socket_accepts():
    """The gateway, and many a script, waits for the socket alone."""
    for _ in range(5):
        with folder() as f:
            path, port = os.path.join(f, "s"), free_port()
            with Process([IDEM, "serve", "--store", "memory:", "--socket", path, "--http", "127.0.0.1:%d" % port]) as server:
                until = time.monotonic() + 60
                while socket.socket(socket.AF_UNIX).connect_ex(path) != 0:
                    assert time.monotonic() < until, server.output()
                socket.create_connection(("127.0.0.1", port), 60).close()


def test_verdicts_hold_after_kill_and_restart():
    with folder() as where:
        with Server(where, http=True) as s:
            api = Http(s.http)
            fp = tell_the_story(api)
            held = begin(api, "pay", "held", lease_ms=600000)
            token = api("POST", "/v1/tokens", subject="me", ttl_ms=600000)["token"]
            used = api("POST", "/v1/tokens", subject="me", ttl_ms=600000)["token"]
            assert api("POST", "/v1/tokens/%s/redeem" % used, subject="me")["verdict"] == "redeemed"
            lock = api("PUT", "/v1/locks/door", owner="a", lease_ms=600000)
            s.kill()
        with Server(where, http=True) as s:
            api = Http(s.http)
            assert begin(api, "pay", "1", fingerprint=fp)["result"] == "yes"
            assert begin(api, "pay", "1", fingerprint="cc" * 32)["verdict"] == "mismatch"
            assert begin(api, "pay", "2")["state"] == "failed"
            # an engine takes no lease for over before it has watched that long
            assert wait_until(lambda: begin(api, "pay", "3")["verdict"] == "doubt")
            with s.client() as owner:  # without credentials HTTP gives nobody the right to operate
                assert owner("SETTLE", "pay", "3", "AS", "SUCCEEDED", "looked it up")[0] == "settled"
            assert begin(api, "pay", "3")["result"] == "looked it up"
            assert begin(api, "pay", "held")["verdict"] == "busy"
            assert api("POST", rec("pay", "held", "finish"), fence=held["fence"], outcome="failed",
                       result="at last")["verdict"] == "ok"
            assert begin(api, "pay", "held")["result"] == "at last"
            assert api("POST", "/v1/tokens/%s/redeem" % used, subject="me") == {"verdict": "duplicate"}
            assert api("POST", "/v1/tokens/%s/redeem" % token, subject="me")["verdict"] == "redeemed"
            assert api("PUT", "/v1/locks/door", owner="b", lease_ms=1000)["verdict"] == "busy"
            assert api("DELETE", "/v1/locks/door?fence=%d" % lock["fence"])["verdict"] == "ok"


def test_tokens_and_tickets(api):
    tokens = api("POST", "/v1/tokens", subject="me", count=5)
    assert tokens["verdict"] == "issued" and len(set(tokens["tokens"])) == 5
    assert tokens["token"] == tokens["tokens"][0] and len(tokens["token"]) >= 22
    first, second, third = tokens["tokens"][:3]
    redeem = lambda token, **f: api("POST", "/v1/tokens/%s/redeem" % token, **f)
    assert redeem(first, subject="you") == {"verdict": "unknown"}
    assert redeem(first, subject="me", nonce="11" * 8) == {"verdict": "redeemed"}
    assert redeem(first, subject="me", nonce="11" * 8) == {"verdict": "redeemed"}
    assert redeem(first, subject="me") == {"verdict": "duplicate"}
    assert redeem("never-issued", subject="me") == {"verdict": "unknown"}
    fresh = redeem(second, subject="me", next=True)
    assert fresh["verdict"] == "redeemed" and fresh["token"] not in tokens["tokens"]
    assert redeem(fresh["token"], subject="me") == {"verdict": "redeemed"}

    # the idempotent form: the token is the id of the work
    assert begin(api, "you", third, token=True) == {"verdict": "unknown"}
    work = begin(api, "me", third, token=True)
    assert work["verdict"] == "started"
    assert api("GET", rec("me", third))["record"]["type"] == "token"
    assert api("POST", rec("me", third, "finish"), fence=work["fence"], outcome="succeeded", result="paid")["verdict"] == "ok"
    assert begin(api, "me", third, token=True)["result"] == "paid"
    assert begin(api, "me", first, token=True) == {"verdict": "duplicate"}

    ticket = api("POST", "/v1/tickets", subject="me")["token"]
    assert api("POST", "/v1/tickets/%s/redeem" % ticket, subject="me") == {"verdict": "redeemed"}
    assert api("POST", "/v1/tickets/%s/redeem" % ticket, subject="me") == {"verdict": "duplicate"}


def test_a_token_is_settled_where_it_is(api):
    token = api("POST", "/v1/tokens", subject="me")["token"]
    assert api("POST", rec("me", token, "settle"))["verdict"] == "settled"
    assert begin(api, "me", token, token=True)["verdict"] == "replay"
    assert api("GET", rec("me", token))["record"]["type"] == "token"


def test_locks(api):
    held = api("PUT", "/v1/locks/report", owner="a", lease_ms=60000)
    assert held["verdict"] == "started"
    assert api("PUT", "/v1/locks/report", owner="a", lease_ms=60000)["fence"] == held["fence"]
    assert api("POST", "/v1/locks/report", owner="b")["verdict"] == "busy"
    assert api("GET", "/v1/locks/report")["record"]["subject"] == "a"
    assert api("DELETE", "/v1/locks/report?fence=%d" % (held["fence"] + 1)) == {"verdict": "stale"}
    waited = []
    thread = threading.Thread(target=lambda: waited.append(
        Http(api.connection.port)("PUT", "/v1/locks/report", owner="b", wait_ms=15000)))
    thread.start()
    time.sleep(0.2)
    assert api("DELETE", "/v1/locks/report?fence=%d" % held["fence"]) == {"verdict": "ok"}
    thread.join(15)
    assert waited[0]["verdict"] == "started" and waited[0]["fence"] > held["fence"]
    assert api("GET", "/v1/locks/nobody") == {"verdict": "absent"}


def test_scan_and_forget(operator):
    api = operator
    for i in range(25):
        begin(api, "listed", "n%d" % i)
    seen, cursor, calls = [], "0", 0
    while calls < 100:
        page = api("GET", "/v1/records?scope=listed&state=executing&count=7&cursor=" + quote(cursor, safe=""))
        assert page["verdict"] == "records"
        seen += [r["id"] for r in page["records"]]
        assert all("result" not in r for r in page["records"])
        cursor, calls = page["cursor"], calls + 1
        if cursor == "0":
            break
    assert cursor == "0" and set(seen) == {"n%d" % i for i in range(25)}
    assert api("GET", "/v1/records?scope=nobody")["records"] == []
    assert api("DELETE", rec("listed", "n1")) == {"verdict": "ok"}
    assert api("POST", rec("listed", "n2", "forget")) == {"verdict": "ok"}
    assert begin(api, "listed", "n1")["verdict"] == "started"
    assert api("DELETE", rec("listed", "never")) == {"verdict": "absent"}


@pytest.mark.parametrize("result", [b"", b"plain", b"\x00\xff\xfe", "h\u00e9\u4e2d".encode(), bytes(range(256)) * 8],
                         ids=["empty", "ascii", "binary", "utf-8", "every byte"])
def test_results_are_bytes(api, result):
    id = "bytes-%d-%s" % (len(result), base64.b16encode(result[:8]).decode())
    fence = begin(api, "bytes", id)["fence"]
    assert api("POST", rec("bytes", id, "finish"), fence=fence, outcome="succeeded", kind="raw",
               result_base64=base64.b64encode(result).decode())["verdict"] == "ok"
    for answer in (begin(api, "bytes", id), api("GET", rec("bytes", id))["record"]):
        assert base64.b64decode(answer["result_base64"]) == result
        try:
            text = result.decode()
        except UnicodeDecodeError:
            text = None
        assert answer.get("result") == text


def test_a_result_that_is_not_kept(api):
    fence = begin(api, "bytes", "large")["fence"]
    api("POST", rec("bytes", "large", "finish"), fence=fence, outcome="succeeded", replayable=False)
    replay = begin(api, "bytes", "large")
    assert replay["verdict"] == "replay" and replay["replayable"] is False and replay["result"] is None


def test_names_may_hold_any_byte_but_nul(api, server):
    for value in range(1, 256):
        name = "%%%02X" % value
        path = "/v1/records/%s/x%s%%2Fy" % (name, name)
        assert api("POST", path + "/begin")["verdict"] == "started", name
        assert api("GET", path)["verdict"] == "record"
    with server.client() as resp:  # the same record over the other protocol
        resp.send("GET", b"\xff", b"x\xff/y")
        assert resp.read()[0] == "record"
    assert api.problem("GET", "/v1/records/a%00/b") == "invalid"


# ---- waiting ----------------------------------------------------------------

def wait_in_threads(server, count, scope, id, **fields):
    answers, threads = [], []
    for _ in range(count):
        threads.append(threading.Thread(target=lambda: answers.append(
            begin(Http(server.http, timeout=40), scope, id, wait_ms=30000, **fields))))
    for t in threads:
        t.start()
    parked = lambda: metric(server, "idem_parked") >= count
    assert wait_until(parked), "not all of them wait"
    return answers, threads


def metrics(server):
    answer, data = Http(server.http).raw("GET", "/metrics")
    assert answer.status == 200
    figures = {}
    for line in data.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            figures[name] = float(value)
    return figures


def metric(server, name):
    return metrics(server)[name]


def test_a_thousand_waiting_duplicates_get_the_first_result(server, api):
    count = 200 if SANITIZED else 1000
    fence = begin(api, "wait", "one", lease_ms=60000)["fence"]
    body = b'{"wait_ms": 60000}'
    ask = b"POST /v1/records/wait/one/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
          b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    waiters = [socket.create_connection(("127.0.0.1", server.http), timeout=30) for _ in range(count)]
    for s in waiters:
        s.sendall(ask)
    assert wait_until(lambda: metric(server, "idem_parked") >= count), "not all of them wait"
    assert api("GET", rec("wait", "other")) == {"verdict": "absent"}  # nobody is held up
    api("POST", rec("wait", "one", "finish"), fence=fence, outcome="succeeded", result="once")
    start = time.monotonic()
    answers = []
    for s in waiters:
        answers.append(json.loads(s.makefile("rb").read().split(b"\r\n\r\n", 1)[1]))
        s.close()
    print("%d answers after %.2f s" % (count, time.monotonic() - start))
    assert time.monotonic() - start < 10
    assert [a["verdict"] for a in answers] == ["replay"] * count
    assert {a["result"] for a in answers} == {"once"}


def test_a_wait_ends_with_busy(api):
    begin(api, "wait", "long", lease_ms=60000)
    start = time.monotonic()
    assert begin(api, "wait", "long", wait_ms=300)["verdict"] == "busy"
    assert time.monotonic() - start >= 0.29


def test_waiting_ends_in_doubt_with_the_lease(server, api):
    begin(api, "wait", "doubt", lease_ms=4000)
    answers, threads = wait_in_threads(server, 5, "wait", "doubt")
    for t in threads:
        t.join(60)
    assert [a["verdict"] for a in answers] == ["doubt"] * 5


def test_a_waiter_that_left_is_dropped_and_gets_no_claim(server, api):
    fence = begin(api, "wait", "left", lease_ms=60000)["fence"]
    body = b'{"wait_ms": 60000}'
    head = b"POST /v1/records/wait/left/begin HTTP/1.1\r\nHost: localhost\r\n" \
           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    before = metric(server, "idem_parked")
    with socket.create_connection(("127.0.0.1", server.http)) as s:
        s.sendall(head + body)
        assert wait_until(lambda: metric(server, "idem_parked") == before + 1)
    assert wait_until(lambda: metric(server, "idem_parked") == before), "it still waits"
    assert api("POST", rec("wait", "left", "release"), fence=fence)["verdict"] == "ok"
    assert begin(api, "wait", "left")["verdict"] == "started"


def test_a_start_that_nobody_heard_of_is_given_back(server, api):
    """The holder releases in the very moment in which the waiting client leaves."""
    for i in range(10):
        id = "gone%d" % i
        fence = begin(api, "wait", id, lease_ms=60000)["fence"]
        body = b'{"wait_ms": 60000}'
        s = socket.create_connection(("127.0.0.1", server.http))
        s.sendall(b"POST /v1/records/wait/%s/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                  b"\r\nContent-Length: %d\r\n\r\n" % (id.encode(), len(body)) + body)
        time.sleep(0.05)
        s.close()
        api("POST", rec("wait", id, "release"), fence=fence)
    for i in range(10):
        assert wait_until(lambda: begin(api, "wait", "gone%d" % i, lease_ms=60000)["verdict"] == "started"), i


# ---- who and from where -------------------------------------------------------

@pytest.fixture(scope="module")
def guarded():
    with folder() as where:
        path = os.path.join(where, "credentials")
        with open(path, "w") as f:
            f.write("shop  shop-secret-1234567  use  shop\nops  ops-secret-12345678  operate\n")
        os.chmod(path, 0o600)
        with Server(where, "--credentials", path, http=True) as s:
            yield s


def test_credentials_and_rights(guarded):
    nobody = Http(guarded.http)
    assert nobody.problem("GET", rec("shop", "1")) == "unauthorized" and nobody.status == 401
    assert "Basic" in nobody.headers["WWW-Authenticate"]
    assert nobody("GET", "/healthz")["status"] == "ok"
    assert nobody.problem("GET", "/metrics") == "unauthorized"
    for auth in ("Bearer shop:wrong", "Bearer shop-secret-1234567", "Bearer", "Basic !!!", "Digest x", "Bearer " + "x" * 5000):
        assert Http(guarded.http, auth).problem("GET", rec("shop", "1")) == "unauthorized", auth
    basic = "Basic " + base64.b64encode(b"shop:shop-secret-1234567").decode()
    for auth in ("Bearer shop:shop-secret-1234567", basic):
        shop = Http(guarded.http, auth)
        assert shop("GET", rec("shop", "none"))["verdict"] == "absent"
        assert shop.problem("GET", rec("bank", "1")) == "forbidden" and shop.status == 403
        assert shop.problem("DELETE", rec("shop", "1")) == "forbidden"
        assert shop.problem("GET", "/v1/records?scope=shop") == "forbidden"
        assert shop.problem("POST", rec("shop", "1", "settle"), outcome="failed") == "forbidden"
        assert shop("POST", rec("shop", "1", "settle"))["verdict"] in ("settled", "replay")
        assert shop.problem("POST", "/v1/tokens", subject="bank") == "forbidden"
    ops = Http(guarded.http, "Bearer ops:ops-secret-12345678")
    assert ops("GET", "/v1/records?scope=shop")["verdict"] == "records"
    assert ops.problem("POST", "/v1/rollback/accept", reason="a drill") == "invalid" and "nothing to accept" in ops.said["detail"]
    assert ops("DELETE", rec("shop", "1"))["verdict"] == "ok"
    # a secret tells enough about who asks: any name of this machine will do
    answer, _ = ops.raw("GET", rec("shop", "1"), headers={"Host": "idem.example"})
    assert answer.status == 200
    log = guarded.output()
    assert "secret" not in log and "event=operator" in log and "who=ops" in log and "event=auth-failed" in log
    assert not re.search(r"scope=|id=1\b", log)  # digests, not keys


def test_without_a_credential_nothing_is_done_and_attempts_to_operate_are_logged(guarded):
    nobody = Http(guarded.http)
    for method, path in (("POST", rec("shop", "1", "settle")), ("DELETE", rec("shop", "1")), ("GET", "/v1/audit"), ("GET", "/v1/records"),
                         ("POST", "/v1/rollback/accept"), ("GET", "/v1/nothing"), ("GET", "/v1/ids/uuid7")):
        assert nobody.problem(method, path) == "unauthorized", path
    refused = re.findall(r"event=operator-refused verb=(\S+) who=-", guarded.output())
    assert {"settle", "forget", "audit", "scan", "rollback"} <= set(refused)


def test_a_page_of_another_site_is_refused(server):
    api = Http(server.http)
    own = "http://127.0.0.1:%d" % server.http
    json_type = {"Content-Type": "application/json"}
    path = rec("browser", "1", "begin")
    cases = [({"Origin": "http://evil.example", **json_type}, 403), ({"Origin": "null", **json_type}, 403),
             ({"Origin": own, **json_type}, 200), ({"Sec-Fetch-Site": "cross-site", **json_type}, 403),
             ({"Sec-Fetch-Site": "same-origin", **json_type}, 200), ({"Host": "evil.example"}, 421),
             ({"Host": "127.0.0.1.evil.example"}, 421), ({"Host": "[::1"}, 421), ({"Host": "h" * 70 + ":80"}, 421),
             ({"Origin": "https://evil.example", **json_type}, 403), ({"Origin": own.replace("http:", "https:"), **json_type}, 200),
             ({"Content-Type": "application/jsox"}, 415), ({"Sec-Fetch-Site": "none"}, 200), ({"Host": "localhost"}, 200), ({"Host": "[::1]:80"}, 200),
             ({"Content-Type": "text/plain"}, 415), ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
             ({"Content-Type": "application/json; charset=utf-8"}, 200), ({"Content-Type": "application/jsonx"}, 415)]
    for headers, wanted in cases:
        answer, data = api.raw("POST", path, "{}", {"Content-Type": "application/json", **headers})
        assert answer.status == wanted, (headers, data)
    answer, _ = api.raw("POST", path, "{}", {})  # a body of no type
    assert answer.status == 415
    for head, wanted in ((b"GET /healthz HTTP/1.1\r\n", b" 400 "), (b"GET /healthz HTTP/1.0\r\n", b" 200 "),
                         (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", b" 400 ")):
        assert wanted in send_raw(server.http, head + b"Connection: close\r\n\r\n").split(b"\r\n")[0], head
    assert send_raw(server.http, b"GET /healthz HTTP/1.0\r\nOrigin: http://localhost\r\nConnection: close\r\n\r\n").split()[1] == b"403"
    answer, _ = api.raw("GET", "/healthz", headers={"Host": "evil.example"})
    assert answer.status == 421


# ---- bad input ------------------------------------------------------------------

BAD_BODIES = [
    ("begin", b'{"lease": 1}', "lease"), ("begin", b'{"lease_ms": "1"}', "lease_ms"),
    ("begin", b'{"lease_ms": 0}', "lease_ms"), ("begin", b'{"lease_ms": -5}', "lease_ms"),
    ("begin", b'{"lease_ms": 1e3}', "lease_ms"), ("begin", b'{"lease_ms": 604800001}', "lease_ms"),
    ("begin", b'{"ttl_ms": 99999999999999999999}', "JSON"), ("begin", b'{"wait_ms": 3600001}', "wait_ms"),
    ("begin", b'{"mode": "Strict"}', "mode"), ("begin", b'{"nonce": "zz"}', "nonce"),
    ("begin", b'{"fingerprint": "aa"}', "fingerprint"), ("begin", b'{"token": "yes"}', "token"),
    ("begin", b'{"subject": "%s"}' % (b"x" * 256), "subject"), ("begin", b'{"subject": "a\\u0000b"}', "subject"),
    ("begin", b'{', "JSON"), ("begin", b'[]', "object"), ("begin", b'"x"', "JSON"), ("begin", b'null', "JSON"),
    ("begin", b'{"mode":"loose","mode":"strict"}', "JSON"), ("begin", b'{} {}', "JSON"), ("begin", b'\xff\xfe', "JSON"),
    ("begin", b'{"subject": "\xc3\x28"}', "JSON"), ("begin", b'[' * 100000, "JSON"),
    ("finish", b'{"outcome": "succeeded"}', "fence"), ("finish", b'{"fence": 1}', "outcome"),
    ("finish", b'{"fence": 9007199254740992, "outcome": "failed"}', "fence"),
    ("finish", b'{"fence": 0, "outcome": "failed"}', "fence"),
    ("finish", b'{"fence": 1, "outcome": "done"}', "outcome"),
    ("finish", b'{"fence": 1, "outcome": "failed", "result": 7}', "result"),
    ("finish", b'{"fence": 1, "outcome": "failed", "result_base64": "a"}', "result_base64"),
    ("finish", b'{"fence": 1, "outcome": "failed", "result": "", "result_base64": ""}', "result_base64"),
    ("finish", b'{"fence": 1, "outcome": "failed", "kind": "xml"}', "kind"),
    ("release", b'{}', "fence"), ("release", b'', "fence"), ("renew", b'{"fence": null}', "fence"),
    ("finish", b'{"fence": 1, "outcome": "succeeded", "replayable": false, "result": "x"}', "replayable"),
    ("finish", b'{"fence": 1, "outcome": "failed", "result_base64": "YQ==YQ=="}', "result_base64"), ("begin", b'{"token": null}', "token"),
    ("settle", b'{"outcome": "executing"}', "outcome"), ("settle", b'{"result": "x"}', "result"),
]


@pytest.mark.parametrize("verb,body,named", BAD_BODIES)
def test_a_bad_body_is_told_what_is_wrong(api, verb, body, named):
    answer, data = api.raw("POST", rec("bad", "1", verb), body, {"Content-Type": "application/json"})
    said = json.loads(data)
    assert answer.status == 400 and said["type"] == PROBLEM + "invalid", said
    assert named in said["detail"] and said["retryable"] is False


def test_bad_paths_and_queries(api, operator):
    cases = [("GET", "/", "not-found"), ("GET", "/v2/records/a/b", "not-found"), ("GET", "/v1/records/a", "not-found"),
             ("GET", "/v1/records/a/b/c/d", "not-found"), ("GET", "/v1/records/a/b%2", "invalid"),
             ("GET", "/v1/records/a/b%gg", "invalid"), ("GET", "/v1/records//b", "invalid"),
             ("GET", "/v1/records/a/b/", "invalid"), ("GET", "/1/2/3/4/5/6/7/8/9/10", "invalid"),
             ("GET", "/v1/records/a/" + "x" * 256, "invalid"), ("GET", "/v1/records/" + "x" * 201 + "/a", "invalid"),
             ("GET", "/v1/records/a/b?x=1", "invalid"), ("GET", "/v1/records?count=0", "invalid"),
             ("GET", "/v1/records?count=1001", "invalid"), ("GET", "/v1/records?count=%31x", "invalid"),
             ("GET", "/v1/records?state=lost", "invalid"), ("GET", "/v1/records?doubt=maybe", "invalid"),
             ("GET", "/v1/records?count=1&count=1", "invalid"), ("GET", "/v1/records?count=99999999999999999999", "invalid"),
             ("GET", "/v1/records?count=/", "invalid"), ("GET", "/v1/records?type=paper", "invalid"), ("GET", "/console", "not-found"), ("GET", "/v1/records?scope=%", "invalid"),
             ("DELETE", "/v1/locks/x", "invalid"), ("DELETE", "/v1/locks/x?fence=-1", "invalid"),
             ("PATCH", "/v1/locks/x", "method-not-allowed"), ("POST", "/healthz", "method-not-allowed"),
             ("DELETE", "/v1/records", "method-not-allowed"), ("GET", "/v1/records/a/b/begin", "method-not-allowed")]
    for method, path, problem in cases:
        assert api.problem(method, path) == problem, (method, path[:60])
    assert api.problem("PATCH", "/v1/locks/x") and "PUT" in api.headers["Allow"]
    assert api.problem("GET", "/v1/records/a/b", count=1) == "invalid"  # a body where none belongs
    assert operator.problem("GET", "/v1/records?cursor=no-such-place") in ("invalid",), operator.said


def send_raw(port, data, seconds=5):
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as s:
        got = b""
        try:
            s.sendall(data)
            while True:
                part = s.recv(65536)
                if not part:
                    break
                got += part
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        return got


def test_malformed_http_is_answered_or_closed_and_disturbs_nobody(server, api):
    cases = [b"\r\n\r\n\r\n\r\n", b"GARBAGE\r\n\r\n", b"GET\r\n\r\n", b"GET /healthz\r\n\r\n", b"\x00\xff" * 100 + b"\r\n\r\n",
             b"GET /healthz HTTP/9.9\r\nConnection: close\r\n\r\n", b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
             b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n",
             b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\nConnection: close\r\n\r\n",
             b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n"
             b"Connection: close\r\n\r\nabcde",
             b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\nConnection: close\r\n\r\n",
             b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
             b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
             b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
             b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]
    for data in cases:
        got = send_raw(server.http, data, 3)
        assert not got or re.match(rb"HTTP/1\.[01] [45]\d\d ", got), (data[:60], got[:200])
        assert api("GET", "/healthz")["status"] == "ok"


@pytest.mark.parametrize("header", [
    b"Transfer-Encoding: chunked\r\nContent-Length: 2", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding : chunked\r\nContent-Length: 2"])
def test_a_body_whose_end_is_in_dispute_is_refused(server, api, header):
    """libmicrohttpd 1.0 (Debian 13) refuses most of these before it asks us, with a page of its own."""
    got = send_raw(server.http, b"POST /v1/records/disputed/1/begin HTTP/1.1\r\nHost: localhost\r\n"
                                b"Content-Type: application/json\r\nConnection: close\r\n%s\r\n\r\n"
                                b"2\r\n{}\r\n0\r\n\r\n" % header, 5)
    assert got.startswith(b"HTTP/1.1 400 ") and (b"problems/invalid" in got or b"Connection: close" in got and b"<html>" in got), got
    assert api("GET", rec("disputed", "1")) == {"verdict": "absent"}


def test_a_body_over_the_limit_is_refused(server, api):
    big = b'{"subject": "' + b"x" * 3000000 + b'"}'
    answer = None
    try:
        answer, data = Http(server.http).raw("POST", "/v1/tokens", big, {"Content-Type": "application/json"})
    except (BrokenPipeError, ConnectionResetError):
        pass  # it may be cut while it still sends
    assert answer is None or (answer.status == 413 and json.loads(data)["type"] == PROBLEM + "too-large")
    got = send_raw(server.http, b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                b"Content-Length: 104857600\r\nExpect: 100-continue\r\n\r\n", 5)
    assert got.startswith(b"HTTP/1.1 413 ")
    chunks = b"".join(b"%x\r\n%s\r\n" % (100000, b"x" * 100000) for _ in range(20)) + b"0\r\n\r\n"
    got = send_raw(server.http, b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks, 5)
    assert got.startswith(b"HTTP/1.1 413 ")
    assert api("GET", "/healthz")["status"] == "ok"
    assert wait_until(lambda: metric(server, 'idem_buffered_bytes{surface="http"}') == 0)


def test_chunked_bodies_and_pipelined_requests_work(server):
    one = b'POST /v1/records/chunk/%d/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n' \
          b'Transfer-Encoding: chunked\r\n%s\r\n5\r\n{"lea\r\n11\r\nse_ms": 60000   }\r\n0\r\n\r\n'
    got = send_raw(server.http, one % (1, b"") + one % (2, b"") + one % (1, b"Connection: close\r\n"), 10)
    assert re.findall(rb'"verdict":"(\w+)"', got) == [b"started", b"started", b"busy"]


def test_a_client_that_leaves_in_the_middle_of_a_body_disturbs_nobody(server, api):
    """On every route with a body. The server has read a part of the body when the connection ends or is reset."""
    spec = json.loads(api.raw("GET", "/openapi.json")[1])
    routes = [(method.upper(), re.sub(r"{\w+}", "left", path)) for path, methods in spec["paths"].items()
              for method, route in methods.items() if "requestBody" in route]
    assert ("POST", "/v1/records/left/left/begin") in routes and ("PUT", "/v1/locks/left") in routes
    held = lambda: metric(server, 'idem_buffered_bytes{surface="http"}')  # noqa: E731
    for method, path in routes:
        for linger in (False, True):
            with socket.create_connection(("127.0.0.1", server.http), timeout=30) as s:
                s.sendall(b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
                          % (method.encode(), path.encode()))
                assert wait_until(lambda: held() > 0), path
                if linger:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
            assert wait_until(lambda: held() == 0), path
    assert api("GET", rec("left", "left")) == {"verdict": "absent"}


def test_dawdlers_are_cut_off():
    with folder() as where, Server(where, "--stall-timeout", "1500ms", http=True) as s:
        head = b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        slow = socket.create_connection(("127.0.0.1", s.http), timeout=10)
        slow.sendall(head)
        closed = False
        start = time.monotonic()
        while not closed and time.monotonic() - start < 15:
            try:
                slow.sendall(b" ")  # a byte now and then keeps an idle timer away
                time.sleep(0.3)
            except OSError:
                closed = True
        slow.close()
        assert closed
        assert Http(s.http)("GET", "/healthz")["status"] == "ok"


def test_a_server_that_stood_still_reads_before_it_judges():
    body = b'{"subject": "me"}'
    head = b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with folder() as where, Server(where, "--stall-timeout", "2s", http=True) as s:
        for _ in range(3):
            slow = [socket.create_connection(("127.0.0.1", s.http), timeout=10) for _ in range(20)]
            for one in slow:
                one.sendall(head % len(body))
            assert wait_until(lambda: metric(s, 'idem_clients{surface="http"}') >= 20)
            s.send(signal.SIGSTOP)
            for one in slow:
                one.sendall(body)
            time.sleep(2.5)
            s.send(signal.SIGCONT)
            for one in slow:
                assert one.recv(100).startswith(b"HTTP/1.1 200 ")
                one.close()


def test_many_idle_connections_do_no_harm(server, api):
    count = 100 if SANITIZED else 300
    idle = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(count)]
    half = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(20)]
    for s in half:
        s.sendall(b"POST /v1/tok")
    assert begin(api, "idle", "x", lease_ms=60000)["verdict"] == "started"
    assert wait_until(lambda: metric(server, 'idem_clients{surface="http"}') >= count)
    for s in idle + half:
        s.close()
    assert wait_until(lambda: metric(server, 'idem_clients{surface="http"}') < 20)


# ---- description, figures, health ------------------------------------------------

def described(spec):
    return {(m.upper(), p) for p, item in spec["paths"].items() for m in item}


def manual():
    """What docs/http.md lists: without the console, and for the console."""
    with open(os.path.join(ROOT, "docs/http.md")) as f:
        return [set(re.findall(r"^\| `(GET|PUT|POST|DELETE) (/[^`?]*)", part, re.M)) for part in f.read().split("With `--console`")]


def test_the_description_and_the_server_agree(server, api):
    spec = api("GET", "/openapi.json")
    methods = ("GET", "PUT", "POST", "DELETE", "PATCH")
    for path, item in spec["paths"].items():
        real = re.sub(r"\{\w+\}", "x", path.replace("{problem}", "lost"))
        for method in methods:
            answer, data = api.raw(method, real)
            text = data.decode()
            if method.lower() in item:
                assert answer.status not in (404, 405), (method, path, text)
            else:
                assert answer.status == 405, (method, path, answer.status)
                allowed = {m for m in answer.headers["Allow"].replace(" ", "").split(",") if m != "HEAD"}
                assert allowed == {m.upper() for m in item}
    # and what the manual lists is what the description lists; the console's are in test_console_http.py
    assert manual()[0] == described(spec)


def walk(node, path=""):
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from walk(value, path + "/" + key)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from walk(value, "%s/%d" % (path, i))


def test_the_description_is_valid_openapi(api):
    spec = api("GET", "/openapi.json")
    assert re.match(r"3\.0\.\d+$", spec["openapi"]) and spec["info"]["title"] and spec["info"]["version"]
    ids = []
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            ids.append(operation["operationId"])
            named = {(p["name"], p["in"]) for p in operation["parameters"]}
            assert len(named) == len(operation["parameters"])
            assert {n for n, where in named if where == "path"} == set(re.findall(r"\{(\w+)\}", path))
            assert all(p["required"] for p in operation["parameters"] if p["in"] == "path")
            assert operation["summary"] and {"200", "400", "421", "503", "default"} <= set(operation["responses"])
            assert all("description" in r or r["$ref"] for r in operation["responses"].values())
            assert ("requestBody" in operation) == (method in ("post", "put"))
    assert len(ids) == len(set(ids))
    for path, node in walk(spec):
        if "$ref" in node:
            target = spec
            for part in node["$ref"][2:].split("/"):
                target = target[part]
        if isinstance(node.get("type"), str) and "/properties" not in path[-11:]:
            assert node["type"] in ("object", "string", "integer", "number", "boolean", "array", "http"), path
            assert node["type"] != "array" or "items" in node
    types = spec["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    with open(os.path.join(ROOT, "docs/problems.md")) as f:
        headings = set(re.findall(r"^### (\S+)$", f.read(), re.M))
    assert {t[len(PROBLEM):] for t in types} <= headings


def test_figures_for_prometheus(server, api):
    before = metrics(server)
    fence = begin(api, "figures", "1")["fence"]
    begin(api, "figures", "1")
    api("POST", rec("figures", "1", "finish"), fence=fence, outcome="succeeded")
    begin(api, "figures", "doubt", lease_ms=50)
    after = metrics(server)
    grew = lambda name: after[name] - before[name]
    assert grew('idem_verdicts_total{verdict="started"}') >= 2
    assert grew('idem_verdicts_total{verdict="busy"}') >= 1
    assert grew('idem_operation_seconds_count{verb="begin"}') >= 3
    assert grew('idem_operations_total{surface="http"}') >= 4
    assert after["idem_journal_segments"] >= 1 and any("journal" in n and "bytes" in n for n in after)
    sizes = [v for n, v in after.items() if n.startswith("idem_batch_writes_bucket")]
    assert sizes == sorted(sizes) and sizes[0] > 0 and sizes[-1] == after["idem_batch_writes_count"]
    assert after["idem_batch_writes_sum"] >= sizes[-1]
    assert after["idem_store_errors_total"] == 0
    for verb in ("begin", "finish"):
        buckets = [v for n, v in after.items() if n.startswith('idem_operation_seconds_bucket{verb="%s"' % verb)]
        assert buckets == sorted(buckets) and buckets[-1] == after['idem_operation_seconds_count{verb="%s"}' % verb]
    wait_until(lambda: begin(api, "figures", "doubt")["verdict"] == "doubt")
    oldest = wait_until(lambda: metric(server, "idem_oldest_doubt_seconds"), 15)
    assert oldest > 0 and metric(server, "idem_doubts") >= 1
    # the format: every sample belongs to a family that was declared before it
    _, data = api.raw("GET", "/metrics")
    declared = set()
    for line in data.decode().splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in declared and kind in ("counter", "gauge", "histogram")
            declared.add(name)
        elif not line.startswith("#"):
            match = re.match(r'([a-z_]+?)(_bucket|_sum|_count)?(\{(\w+="[^"]*",?)+\})? ([-+.\deinfINF]+|NaN)$', line)
            assert match, line
            assert match[1] in declared or match[1] + (match[2] or "") in declared, line


def test_the_first_look_at_the_figures_sees_a_doubt():
    with folder() as where, Server(where, http=True) as s:
        api = Http(s.http)
        assert begin(api, "a", "b", lease_ms=50)["verdict"] == "started"
        assert wait_until(lambda: begin(api, "a", "b")["verdict"] == "doubt")
        first = metrics(s)
        if not first["idem_doubts"] > 0:  # on a machine that stalls: not known yet, but never none
            assert str(first["idem_doubts"]) == "nan" == str(first["idem_oldest_doubt_seconds"])
            assert wait_until(lambda: metric(s, "idem_doubts") > 0)


def test_health_and_readiness(server, api):
    assert api("GET", "/healthz")["version"] and api.status == 200
    assert api("GET", "/readyz") == {"status": "ready"} and api.headers["Cache-Control"] == "no-store"
    answer, data = api.raw("HEAD", "/healthz")
    assert answer.status == 200 and data == b""


def test_ids(api):
    first = api("GET", "/v1/ids/snowflake?count=100")
    assert first["verdict"] == "ids" and len(set(first["ids"])) == 100
    assert all(re.match(r"\d+$", i) for i in first["ids"])
    for version, kind in (("7", "uuid7"), ("7", "UUIDv7"), ("4", "uuid4"), ("4", "uuidv4")):
        assert re.match(r"[0-9a-f]{8}-[0-9a-f]{4}-" + version, api("GET", "/v1/ids/" + kind)["ids"][0])
    assert api.problem("GET", "/v1/ids/nonsense") in ("invalid", "unsupported")
    assert api.problem("GET", "/v1/ids/snowflake?count=1001") == "invalid"


# ---- stopping ----------------------------------------------------------------------

def test_ids_do_not_wait_for_a_look_through_a_large_store():
    with folder() as where, Server(where, http=True) as s:
        with s.client() as c:
            for first in range(0, 100000 if SANITIZED else 400000, 2000):
                c.raw(b"".join(encode("BEGIN", "large", i) for i in range(first, first + 2000)))
                assert [c.read()[0] for _ in range(2000)] == ["started"] * 2000
        api, waited = Http(s.http), []
        start = time.monotonic()
        metrics(s)
        look = time.monotonic() - start
        for _ in range(10):  # the best of them, for a machine may stall
            reader = threading.Thread(target=metrics, args=(s,))
            reader.start()
            time.sleep(look / 10)
            start = time.monotonic()
            api("GET", "/v1/ids/uuid7")
            waited.append(time.monotonic() - start)
            reader.join()
        assert min(waited) < look / 4, (look, waited)


def test_stopping_answers_who_waits():
    with folder() as where, Server(where, http=True) as s:
        api = Http(s.http)
        begin(api, "stop", "1", lease_ms=60000)
        answers = []

        def wait():
            answers.append(Http(s.http).problem("POST", rec("stop", "1", "begin"), wait_ms=60000))
        threads = [threading.Thread(target=wait) for _ in range(5)]
        for t in threads:
            t.start()
        assert wait_until(lambda: metric(s, "idem_parked") == 5)
        start = time.monotonic()
        assert s.stop() == 0
        assert time.monotonic() - start < 15
        for t in threads:
            t.join(60)
        assert answers == ["closed"] * 5


def test_a_claim_without_a_store_says_that_an_earlier_one_may_have_run():
    store = servers.Redis()
    try:
        with folder() as where, Server(where, http=True, store=store.url) as s:
            api = Http(s.http, timeout=60)
            fence = begin(api, "shop", "1")["fence"]
            assert api("POST", rec("shop", "1", "finish"), fence=fence, outcome="succeeded")["verdict"] == "ok"
            store.kill()
            # the reply to the first one may be lost on the connection that broke
            assert wait_until(lambda: api.problem("POST", rec("shop", "1", "begin")) == "unavailable", 30)
            assert "an earlier one with the same key may have been executed: keep the key" in api.said["detail"], api.said
            assert "Connection refused" in api.said["detail"] and api.said["retryable"]
            assert api.problem("GET", rec("shop", "1")) in ("unavailable", "timeout") and "key" not in api.said["detail"]
    finally:
        store.stop()


def test_a_store_that_hangs_holds_up_nobody_else():
    store = servers.Redis()
    try:
        with folder() as where, Server(where, http=True, store=store.url + "?timeout_ms=6000") as s:
            api = Http(s.http)
            assert api("GET", "/readyz") == {"status": "ready"}
            fence = begin(api, "hang", "1", lease_ms=600000)["fence"]
            os.kill(store.process.pid, signal.SIGSTOP)
            try:
                said = {}

                def ask(method, path, **fields):
                    client = Http(s.http, timeout=60)
                    said[path] = client.problem(method, path, **fields), client.said["retryable"]
                paths = [("GET", "/readyz", {}), ("POST", rec("hang", "2", "begin"), {}),
                         ("POST", rec("hang", "1", "finish"), {"fence": fence, "outcome": "succeeded"})]
                threads = [threading.Thread(target=ask, args=(m, p), kwargs=f) for m, p, f in paths]
                for t in threads:
                    t.start()
                time.sleep(0.5)
                assert api("GET", "/healthz")["status"] == "ok"
                assert all(t.is_alive() for t in threads)
                for t in threads:
                    t.join(50)
            finally:
                os.kill(store.process.pid, signal.SIGCONT)
            assert said["/readyz"][0] in ("timeout", "unavailable", "lost")
            # an error is never a verdict, and only `lost` may have been stored
            problem, retryable = said[rec("hang", "2", "begin")]
            assert problem in ("lost", "unavailable", "timeout") and retryable == (problem != "lost")
            assert said[rec("hang", "1", "finish")][0] in ("lost", "unavailable", "timeout")
            assert said[rec("hang", "1", "finish")][1] is True
            assert wait_until(lambda: api("GET", "/readyz").get("status") == "ready", 30)
            assert wait_until(lambda: api("POST", rec("hang", "1", "finish"), fence=fence,
                                          outcome="succeeded").get("verdict") == "ok", 30)
            assert metric(s, "idem_store_errors_total") >= 0
    finally:
        store.stop()
