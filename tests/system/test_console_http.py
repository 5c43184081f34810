"""What the server gives the console: its files, logins, figures of the last hour and live ones, doubts by age, routes; and
what it refuses to other pages."""
import base64
import contextlib
import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from gateway import Gateway, Ledger, ask
from lib import IDEM, ROOT, Server, folder, free_port, wait_until
from test_http import Http, begin, described, manual, rec

SECRETS = {name: name + "-secret-123456" for name in ("ops", "boss", "desk", "eu", "shop", "graphs")}
CREDENTIALS = "".join("%s %s %s\n" % (n, SECRETS[n], r) for n, r in (
    ("ops", "operate"), ("boss", "operate"), ("desk", "view"), ("eu", "view eu"), ("shop", "use"), ("graphs", "monitor")))
PAGE = {"X-Idem-Console": "1"}


class Console(Http):
    """A browser that has the page open: sends its header, and the cookie once it is logged in."""

    def __init__(self, port, name=None):
        super().__init__(port)
        self.cookie, self.more = "", {}
        if name:
            assert self.login(name, SECRETS[name])["name"] == name

    def raw(self, method, path, body=None, headers=None):
        headers = {**(headers or {}), **PAGE, **self.more, **({"Cookie": self.cookie} if self.cookie else {})}
        return super().raw(method, path, body, headers)

    def login(self, name, secret):
        said = self("POST", "/v1/session", name=name, secret=secret)
        if self.headers["Set-Cookie"]:
            self.cookie = self.headers["Set-Cookie"].split(";")[0]
        return said


def authorized(port, name="ops"):
    return Http(port, "Bearer %s:%s" % (name, SECRETS[name]))


@contextlib.contextmanager
def console_server(*flags):
    with folder() as f:
        with open(f + "/credentials", "w") as file:
            file.write(CREDENTIALS)
        os.chmod(f + "/credentials", 0o600)
        with Server(f, "--console", "--credentials", f + "/credentials", *flags, http=True) as server:
            server.credentials = f + "/credentials"
            yield server


@pytest.fixture(scope="module")
def server():
    with console_server() as server:
        yield server


@pytest.fixture
def ops(server):
    return Console(server.http, "ops")


def test_there_is_no_console_unless_asked_for():
    with folder() as f, Server(f, http=True) as server:
        api = Http(server.http)
        for path in ("/console", "/console/app.js", "/v1/stats", "/v1/events", "/v1/routes", "/v1/session"):
            assert api.problem("GET", path) == "not-found"
        answer, _ = api.raw("GET", "/healthz")
        assert not answer.headers["Content-Security-Policy"]
        described = json.loads(api.raw("GET", "/openapi.json")[1])["paths"]
        assert not [p for p in described if "console" in p or "session" in p or p in ("/v1/stats", "/v1/events")]
        assert "/v1/doubts" in described
    with folder() as f:
        ran = subprocess.run([IDEM, "serve", "--store", "memory:", "--socket", f + "/s", "--console"], capture_output=True, text=True)
        assert ran.returncode == 2 and "give http, too" in ran.stderr


def test_the_description_has_what_the_manual_lists(server):
    everywhere, console = manual()
    assert described(json.loads(Http(server.http).raw("GET", "/openapi.json")[1])) == everywhere | console
    assert ("GET", "/v1/stats") in console and ("GET", "/console") in console


def test_the_files_are_in_the_program_and_small(server):
    api, total = Http(server.http), 0
    for path, kind in (("/console", "text/html"), ("/console/app.js", "text/javascript"), ("/console/app.css", "text/css"),
                       ("/console/icon.svg", "image/svg+xml")):
        answer, data = api.raw("GET", path)
        assert answer.status == 200 and answer.headers["Content-Type"].startswith(kind)
        assert answer.headers["Content-Encoding"] == "gzip" and data[:2] == b"\x1f\x8b"
        total += len(data)
    licenses = gzip.decompress(api.raw("GET", "/console/licenses.txt")[1]).decode()
    assert total < 150_000 and licenses.count("Permission is hereby granted") == 2 and "Jason Miller" in licenses and "Leon Sorokin" in licenses
    assert api.problem("GET", "/console/app.jsx") == "not-found"


def test_a_build_without_npm_works_and_says_what_is_missing():
    with folder() as f:
        os.mkdir(f + "/bin")
        for tool in ("make", "sh", "mkdir", "printf", "test", "sed", "cc", "pkg-config", "cmp", "find", "grep", "echo", "true"):
            found = subprocess.run(["which", tool], capture_output=True, text=True).stdout.strip()
            if found:
                os.symlink(found, f + "/bin/" + tool)
        ran = subprocess.run(["make", "-s", "-C", ROOT, "B=" + f, f + "/console/files.c"], capture_output=True, text=True,
                             env={**os.environ, "PATH": f + "/bin"})
        assert ran.returncode == 0 and "built without the console" in ran.stderr, ran.stderr
        assert "{{0, 0, 0, 0}}" in open(f + "/console/files.c").read()


def test_every_answer_keeps_other_pages_away(server, ops):
    for path in ("/console", "/console/app.js", "/v1/session", "/v1/stats?seconds=1", "/nothing"):
        headers = ops.raw("GET", path)[0].headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
        assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store" and not headers["Access-Control-Allow-Origin"]


def test_a_login_is_a_cookie_that_scripts_cannot_read_and_other_pages_cannot_use(server):
    page = Console(server.http)
    assert page("GET", "/v1/session")["name"] == ""
    assert page.problem("POST", "/v1/session", name="ops", secret="wrong") == "unauthorized"
    assert "Basic" not in page.headers["WWW-Authenticate"] and not page.headers["Set-Cookie"]
    assert page.problem("GET", "/v1/doubts") == "unauthorized"
    assert page.login("ops", SECRETS["ops"])["rights"] == ["measure", "look", "list", "use", "operate"]
    attributes = page.headers["Set-Cookie"].split("; ")[1:]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert page("GET", "/v1/doubts")["verdict"] == "doubts" and page("GET", "/v1/session")["name"] == "ops"
    # the cookie alone, as a browser would send it for another page, is nobody's
    plain = Http(server.http)
    answer, _ = plain.raw("GET", "/v1/doubts", headers={"Cookie": page.cookie})
    assert answer.status == 401
    answer, _ = plain.raw("GET", "/v1/doubts", headers={**PAGE, "Cookie": page.cookie[:-1] + "!"})
    assert answer.status == 401
    # another page that does send the header is asked for first, and that is refused
    answer, _ = plain.raw("OPTIONS", "/v1/doubts", headers={"Origin": "http://evil.example", "Cookie": page.cookie,
                          "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-idem-console"})
    assert answer.status in (403, 405) and not [h for h in answer.headers if h.lower().startswith("access-control")]
    for more in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        page.more = more
        assert page.problem("POST", rec("shop", "1", "begin")) == "foreign-origin"
    page.more = {}
    assert page("DELETE", "/v1/session")["name"] == "" and "Max-Age=0" in page.headers["Set-Cookie"]
    assert page.problem("GET", "/v1/doubts") == "unauthorized"


def test_a_session_ends_when_idle_and_with_its_credential():
    with console_server("--console-idle", "2s") as server:
        ops, desk = Console(server.http, "ops"), Console(server.http, "desk")
        for _ in range(6):  # used again and again
            time.sleep(0.5)
            assert ops("GET", "/v1/session")["name"] == "ops"
        assert desk("GET", "/v1/session")["name"] == ""
        desk = Console(server.http, "desk")
        with open(server.credentials, "w") as file:
            file.write(CREDENTIALS.replace(SECRETS["desk"], "another-secret-123456"))
        server.send(signal.SIGHUP)
        assert wait_until(lambda: desk("GET", "/v1/session")["name"] == "", 10)


def test_one_credential_cannot_take_the_sessions_of_others(server, ops):
    first = Console(server.http, "graphs")
    for _ in range(64):
        last = Console(server.http, "graphs")
    assert first("GET", "/v1/session")["name"] == "" and last("GET", "/v1/session")["name"] == "graphs"
    assert ops("GET", "/v1/session")["name"] == "ops"


def test_when_all_sessions_are_taken_the_one_that_rested_longest_ends():
    names = ["n%d" % n for n in range(9)]
    with console_server() as server:
        with open(server.credentials, "a") as file:
            file.write("".join("%s secret-of-%s view\n" % (n, n) for n in names))
        server.send(signal.SIGHUP)
        assert wait_until(lambda: "event=reread" in server.output())
        sessions = []
        for name in names[:8] * 8 + names[8:]:
            sessions.append(Console(server.http))
            assert sessions[-1].login(name, "secret-of-" + name)["name"] == name
            time.sleep(0.002)  # the server counts in milliseconds
        assert [s("GET", "/v1/session")["name"] for s in (sessions[0], sessions[1], sessions[-1])] == ["", "n1", "n8"]


def test_without_credentials_nobody_logs_in_or_out():
    with folder() as f, Server(f, "--console", http=True, store="memory:") as server:
        page = Console(server.http)
        for method, fields in (("POST", {"name": "ops", "secret": "any"}), ("DELETE", {}), ("GET", {})):
            said = page(method, "/v1/session", **fields)
            assert (said["login"], said["cookie"]) == (False, False) and not page.headers["Set-Cookie"]
        assert page("GET", "/v1/stats?seconds=3600")["verdict"] == "stats"


def doubt(port, scope, key, lease_ms=30):
    api = authorized(port)
    assert begin(api, scope, key, lease_ms=lease_ms, subject="till 4")["verdict"] == "started"
    assert wait_until(lambda: begin(api, scope, key)["verdict"] == "doubt")


def fence_of(api, scope, key):
    return api("GET", rec(scope, key))["record"]["fence"]


def test_who_settles_or_forgets_gives_the_secret_again(server, ops):
    doubt(server.http, "shop", "again")
    settle = lambda: ops.problem("POST", rec("shop", "again", "settle"), outcome="succeeded", result="paid", reason="bank says so")
    assert settle() == "forbidden"
    ops.more = {"X-Idem-Secret": base64.b64encode(b"wrong").decode()}
    assert settle() == "unauthorized"
    ops.more = {"X-Idem-Secret": "!!!"}
    assert settle() == "unauthorized"
    assert ops.problem("POST", rec("shop", "again", "forget"), reason="test") == "unauthorized"
    ops.more = {"X-Idem-Secret": base64.b64encode(SECRETS["ops"].encode()).decode()}
    assert ops("POST", rec("shop", "again", "settle"), outcome="succeeded", result="paid", reason="bank says so")["verdict"] == "settled"
    assert begin(authorized(server.http), "shop", "again")["result"] == "paid"
    last = ops("GET", "/v1/audit?scope=shop&id=again")["entries"][-1]
    assert (last["who"], last["verb"], last["before"], last["after"], last["reason"]) == ("ops", "settle", "doubt", "succeeded", "bank says so")


@pytest.mark.parametrize("size", [6, 200_000])
def test_a_result_is_masked_until_asked_for_and_asking_is_audited(server, ops, size):
    api, key = authorized(server.http), "masked-%d" % size
    fence = begin(api, "shop", key)["fence"]
    api("POST", rec("shop", key, "finish"), fence=fence, outcome="succeeded", result="x" * size)
    for said in (ops("GET", rec("shop", key))["record"], begin(ops, "shop", key)):
        assert said["masked_bytes"] == size and "result" not in said and "result_base64" not in said
    assert not ops("GET", "/v1/audit?scope=shop&id=" + key)["entries"]
    assert ops("POST", rec("shop", key, "reveal"), reason="the customer asks")["record"]["result"] == "x" * size
    entry, = ops("GET", "/v1/audit?scope=shop&id=" + key)["entries"]
    assert (entry["who"], entry["verb"], entry["reason"]) == ("ops", "get", "the customer asks")
    # who may not see results does not see them this way either
    assert Console(server.http, "desk")("POST", rec("shop", key, "reveal"))["record"]["result"] is None


def test_who_only_looks_cannot_push_operators_out_of_the_trail():
    """1,000 entries are kept: more looks than that, and a file that is full of them, leave what an operator did."""
    with console_server("--audit-size", "64k") as server:
        ops, shop, desk = (authorized(server.http, name) for name in ("ops", "shop", "desk"))
        fence = begin(ops, "shop", "seen")["fence"]
        ops("POST", rec("shop", "seen", "finish"), fence=fence, outcome="succeeded", result="secret")
        begin(ops, "shop", "open")
        assert ops("POST", rec("shop", "gone", "forget"), reason="an operator did this")["verdict"] == "absent"
        # what was not shown is not in the trail: the caller may not see it, there is no such record, it has no result
        assert desk("POST", rec("shop", "seen", "reveal"))["record"]["result"] is None
        assert shop("POST", rec("shop", "none", "reveal"))["verdict"] == "absent"
        assert shop("POST", rec("shop", "open", "reveal"))["verdict"] == "record"
        assert [e["verb"] for e in ops("GET", "/v1/audit")["entries"]] == ["forget"]
        for n in range(1010):
            assert shop("POST", rec("shop", "seen", "reveal"))["record"]["result"] == "secret"
        entries = ops("GET", "/v1/audit?count=1000")["entries"]
        assert [e["reason"] for e in entries if e["verb"] == "forget"] == ["an operator did this"]
        assert len([e for e in entries if e["who"] == "shop" and e["verb"] == "get"]) == 1000
        ops("POST", rec("shop", "gone", "forget"), reason="later")
        assert [e["verb"] for e in ops("GET", "/v1/audit?count=3")["entries"]] == ["forget", "get", "get", "get", "forget"]
        server.stop()
        kept = open(os.path.dirname(server.credentials) + "/journal/audit.jsonl").read()
        assert "an operator did this" in kept and '"shop","' not in kept.replace('"scope":"shop"', "")


@pytest.mark.parametrize("path", ["/v1/audit?count=1000", "/v1/records?count=1000"])
def test_lists_that_nobody_reads_count_in_max_buffered(path):
    """Each is over 3 MB, since every byte of a name is escaped. Clients ask again and again and do not read: the kernel takes some of it,
    and then the server has to keep what it made."""
    name = "\x01" * 190
    with console_server("--max-buffered", "16m") as server:
        ops = authorized(server.http)
        for n in range(1000):
            if "audit" in path:
                ops("POST", rec(name, name + "%d" % n, "forget"), reason=name)
            else:
                begin(ops, name, name + "%d" % n, subject=name)
        buffered = lambda: [float(line.split()[1]) for line in authorized(server.http, "graphs").raw("GET", "/metrics")[1].decode().splitlines()
                            if line.startswith('idem_buffered_bytes{surface="http"}')][0]
        ask = "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops:%s\r\n\r\n" % (path, SECRETS["ops"])
        clients = []
        try:
            for n in range(4):
                clients.append(socket.socket())
                clients[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                clients[-1].connect(("127.0.0.1", server.http))
                clients[-1].sendall(6 * ask.encode())
            assert wait_until(lambda: buffered() > 3_000_000, 60)
            assert wait_until(lambda: ops("GET", path).get("type", "").endswith("overloaded"), 60)
            for _ in range(10):
                assert buffered() <= 16 * 1024 * 1024
            # one credential does not take the room of others
            boss = authorized(server.http, "boss")
            assert wait_until(lambda: boss("GET", path).get("verdict") in ("entries", "records"), 60)
        finally:
            for client in clients:
                client.close()
        # a reply counts until it is sent, that of /metrics itself, too
        assert wait_until(lambda: buffered() < 1_000_000, 60) is not None
        assert wait_until(lambda: ops("GET", path).get("verdict") in ("entries", "records"), 60)


def test_one_list_is_sent_however_low_max_buffered_is():
    """What it holds itself, its records, must not keep it from being written down: that would be so at every try."""
    name = "\x01" * 190
    with console_server("--max-buffered", "1m") as server:
        ops = authorized(server.http)
        for n in range(400):
            begin(ops, name, name + "%d" % n, subject=name)
        assert len(ops("GET", "/v1/records?count=1000")["records"]) == 400


def test_figures_of_the_last_hour_and_live_ones(server, ops):
    assert wait_until(lambda: len(ops("GET", "/v1/stats")["samples"]) >= 2, 20)
    stats = ops("GET", "/v1/stats?seconds=2")
    assert len(stats["samples"]) == 2 and all(len(row) == len(stats["names"]) for row in stats["samples"])
    assert stats["facts"]["store"].startswith("journal:")
    at = {name: i for i, name in enumerate(stats["names"])}
    rows = []
    listener = threading.Thread(target=lambda: rows.extend(listen(ops, 6)))
    listener.start()
    api, until = authorized(server.http), time.monotonic() + 4
    while time.monotonic() < until:
        begin(api, "shop", "load-%f" % time.monotonic())
    listener.join(60)
    assert len(rows) == 6 and max(row[at["first"]] for row in rows) > 10
    assert any(row[at["p99_begin"]] and row[at["p50_begin"]] <= row[at["p99_begin"]] for row in rows)
    assert all(b[0] - a[0] > 500 for a, b in zip(rows, rows[1:])) and rows[-1][at["store_answers"]] == 1
    assert wait_until(lambda: ops("GET", "/v1/stats?seconds=1")["samples"][0][at["used_bytes"]], 20) > 0
    assert Console(server.http, "graphs")("GET", "/v1/stats?seconds=1")["verdict"] == "stats"
    assert Console(server.http, "graphs").problem("GET", "/v1/doubts") == "forbidden"


def events(console):
    connection = http.client.HTTPConnection("127.0.0.1", console.connection.port, timeout=60)
    connection.request("GET", "/v1/events", headers={**PAGE, "Cookie": console.cookie})
    return connection, connection.getresponse()


def joined(console):
    """A stream, as soon as there is room for it."""
    def one():
        connection, answer = events(console)
        return (connection, answer) if answer.status == 200 else connection.close()
    return wait_until(one, 30, step=0.5)


def listen(console, count):
    connection, answer = events(console)
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream"
    rows = []
    while len(rows) < count:
        line = answer.readline()
        assert line, rows
        if line.startswith(b"data: "):
            rows.append(json.loads(line[6:]))
    connection.close()
    return rows


def test_listeners_are_bounded_go_when_they_leave_and_do_not_hold_up_a_stop():
    with console_server("--console-idle", "5s") as server:
        ops = Console(server.http, "ops")
        all = [events(ops) for _ in range(8)]
        assert all[-1][1].status == 200 and events(ops)[1].status == 503
        for name in ("boss", "shop", "graphs"):  # one credential leaves room for the others, up to a limit for all
            console = Console(server.http, name)
            all += [events(console) for _ in range(8)]
            assert all[-1][1].status == 200
        assert events(Console(server.http, "desk"))[1].status == 503
        for connection, answer in all:
            answer.close()
            connection.close()
        # the session ends although its stream goes on: then the stream ends, too
        _, answer = joined(Console(server.http, "desk"))
        assert answer.read().count(b"data: ") >= 2
        _, answer = joined(Console(server.http, "ops"))
        before = time.monotonic()
        server.send(signal.SIGTERM)
        assert b"rows" in answer.read() and server.wait(30) == 0 and time.monotonic() - before < 4.5


def test_doubts_come_oldest_first_and_by_scope():
    with console_server() as server:
        for n, scope in enumerate(("shop", "eu", "shop")):
            doubt(server.http, scope, "d%d" % n)
        ops = Console(server.http, "ops")
        said = wait_until(lambda: next((a for a in [ops("GET", "/v1/doubts")] if a["count"] == 3), None))
        assert [r["id"] for r in said["records"]] == ["d0", "d1", "d2"] and said["looked"]
        assert said["records"][0]["subject"] == "till 4"
        assert [r["id"] for r in ops("GET", "/v1/doubts?count=1")["records"]] == ["d0"]
        eu = Console(server.http, "eu")("GET", "/v1/doubts")
        assert [r["id"] for r in eu["records"]] == ["d1"] and eu["count"] == 1


def test_with_second_person_two_operators_have_to_ask_for_the_same():
    with console_server("--second-person", "--trust-socket") as server:
        ops, boss = authorized(server.http), authorized(server.http, "boss")
        doubt(server.http, "shop", "two")
        settle = {"outcome": "succeeded", "result": "paid", "reason": "bank"}
        assert ops.problem("POST", rec("shop", "two", "settle"), **settle) == "invalid" and "fence" in ops.said["detail"]
        settle["fence"] = fence_of(ops, "shop", "two")
        for _ in range(2):  # the same person twice is one
            assert ops.problem("POST", rec("shop", "two", "settle"), **settle) == "forbidden"
            assert "another operator" in ops.said["detail"]
        # a session that does not give its secret again is not counted
        assert Console(server.http, "boss").problem("POST", rec("shop", "two", "settle"), **settle) == "forbidden"
        assert boss.problem("POST", rec("shop", "two", "settle"), **{**settle, "result": "not paid"}) == "forbidden"
        waits = boss("GET", "/v1/proposals")["proposals"]
        assert [(p["who"], p["verb"], p["id"], p["outcome"], p["result"]) for p in waits] == [
            ("ops", "settle", "two", "succeeded", "paid"), ("boss", "settle", "two", "succeeded", "not paid")]
        assert "result" not in Console(server.http, "desk")("GET", "/v1/proposals")["proposals"][0]
        assert not Console(server.http, "eu")("GET", "/v1/proposals")["proposals"]
        assert boss("POST", rec("shop", "two", "settle"), **{**settle, "reason": "I asked the bank, too"})["verdict"] == "settled"
        assert begin(ops, "shop", "two")["result"] == "paid"
        assert [p["who"] for p in ops("GET", "/v1/proposals")["proposals"]] == ["boss"]
        # the same on the Redis protocol, and for forgetting
        fence = fence_of(ops, "shop", "two")
        with server.client() as owner:
            assert owner("FORGET", "shop", "two").word == "ERR"
            assert owner("FORGET", "shop", "two", "FENCE", fence).word == "NOPERM"
            assert owner("ROLLBACK", "ACCEPT").word == "ERR"  # nothing to accept; it is about no record
        assert boss("POST", rec("shop", "two", "forget"), fence=fence)["verdict"] == "ok"
        did = [(e["verb"], e["who"], e["proposed_by"]) for e in ops("GET", "/v1/audit?scope=shop&id=two")["entries"]]
        assert did == [("settle", "boss", "ops"), ("forget", "boss", "owner")]
        ran = subprocess.run([IDEM, "audit", "--server", "unix:" + server.socket], capture_output=True, text=True, check=True)
        assert "boss (proposed by ops) settle shop two settled" in ran.stdout
        # what waits is bounded, and one credential leaves room for others
        for n in range(20):
            boss.problem("POST", rec("shop", "n%d" % n, "forget"), fence=7)
        assert "too many operations wait" in boss.said["detail"] and len(boss("GET", "/v1/proposals")["proposals"]) == 16
        assert ops.problem("POST", rec("shop", "more", "forget"), fence=7) == "forbidden" and "another operator" in ops.said["detail"]
    with folder() as f:
        ran = subprocess.run([IDEM, "serve", "--store", "memory:", "--socket", f + "/s", "--second-person"], capture_output=True, text=True)
        assert ran.returncode == 2 and "give credentials, too" in ran.stderr


def test_an_approval_is_for_what_the_first_person_saw_and_for_once():
    """The proposal names a fence: an execution that came later under the same key is another one."""
    with console_server("--second-person") as server:
        ops, boss = authorized(server.http), authorized(server.http, "boss")
        first = begin(ops, "shop", "k")["fence"]
        ops("POST", rec("shop", "k", "finish"), fence=first, outcome="succeeded", result="first")
        forget = lambda who: who("POST", rec("shop", "k", "forget"), fence=first)
        assert ops.problem("POST", rec("shop", "k", "forget"), fence=first) == "forbidden"
        assert forget(boss)["verdict"] == "ok"
        # it is used up: the same again is a new proposal
        assert boss.problem("POST", rec("shop", "k", "forget"), fence=first) == "forbidden"
        second = begin(ops, "shop", "k")["fence"]
        ops("POST", rec("shop", "k", "finish"), fence=second, outcome="succeeded", result="second")
        assert second > first and forget(ops)["verdict"] == "stale"
        assert ops("GET", rec("shop", "k"))["record"]["result"] == "second"
        # whose credential is changed or taken away has proposed nothing
        assert ops.problem("POST", rec("shop", "k", "forget"), fence=second) == "forbidden"
        assert [p["fence"] for p in boss("GET", "/v1/proposals")["proposals"]] == [second]
        with open(server.credentials, "w") as file:
            file.write(CREDENTIALS.replace(SECRETS["ops"], "another-secret-123456"))
        server.send(signal.SIGHUP)
        assert wait_until(lambda: not boss("GET", "/v1/proposals")["proposals"], 10)
        assert boss.problem("POST", rec("shop", "k", "forget"), fence=second) == "forbidden"
        assert ops("GET", rec("shop", "k"))["status"] == 401 and boss("GET", rec("shop", "k"))["record"]["result"] == "second"


def test_who_waits_for_a_lock_is_listed_in_order_and_by_scope(server, ops):
    api = authorized(server.http)
    api("PUT", "/v1/locks/report", owner="host-1", lease_ms=600000)
    waiting = []
    for n in (2, 3):
        waiting.append(authorized(server.http))
        waiting[-1].connection.request("PUT", "/v1/locks/report", json.dumps({"owner": "host-%d" % n, "wait_ms": 60000}),
                                       {"Content-Type": "application/json", "Authorization": waiting[-1].auth})
        assert wait_until(lambda: ops("GET", "/v1/waiters")["count"] == n - 1, 20)
    said = ops("GET", "/v1/waiters")["waiters"]
    assert [(w["scope"], w["id"], w["owner"]) for w in said] == [("locks", "report", "host-2"), ("locks", "report", "host-3")]
    assert all(w["until"] - w["since"] == 60000 and abs(w["since"] / 1000 - time.time()) < 60 for w in said)
    assert len(ops("GET", "/v1/waiters?count=1")["waiters"]) == 1
    eu = Console(server.http, "eu")("GET", "/v1/waiters")
    assert eu["waiters"] == [] and eu["count"] == 0
    assert Console(server.http, "shop").problem("GET", "/v1/waiters") == "forbidden"
    for client in waiting:
        client.connection.close()
    assert wait_until(lambda: ops("GET", "/v1/waiters")["count"] == 0 and not ops("GET", "/v1/waiters")["waiters"], 20)


def test_the_segments_of_ids_are_listed_with_what_is_left_and_by_scope(server, ops):
    api = authorized(server.http)
    for name, count in (("orders", 700), ("eu", 5)):
        api("GET", "/v1/ids/segment:%s?count=%d" % (name, count))
    said = {s["name"]: s for s in ops("GET", "/v1/segments")["segments"]}
    assert said["orders"]["given"] == 700 and said["eu"]["given"] == 5
    assert said["orders"]["step"] > 0 and said["orders"]["left"] + said["orders"]["spare"] > 0
    before = said["orders"]["left"] + said["orders"]["spare"]
    if said["orders"]["left"] > 1:
        api("GET", "/v1/ids/segment:orders")
        after = {s["name"]: s for s in ops("GET", "/v1/segments")["segments"]}["orders"]
        assert after["given"] == 701 and (after["left"] + after["spare"] == before - 1 or after["spare"] > said["orders"]["spare"])
    assert [s["name"] for s in Console(server.http, "eu")("GET", "/v1/segments")["segments"]] == ["eu"]


PROM = '''# TYPE idem_consume_messages_total counter
idem_consume_messages_total{scope="%s",what="handled"} 41
idem_consume_messages_total{scope="%s",what="dead_letter"} 2
idem_consume_in_flight{scope="%s"} 3
idem_consume_lag_messages{scope="%s"} 1234
'''


def test_consumers_are_shown_as_they_report_and_nothing_else_of_the_folder():
    with folder() as f:
        for name, text in (("mail.prom", PROM.replace("%s", "orders/mail")), ("eu.prom", PROM.replace("%s", "eu")), ("node.prom", "node_load1 0.5\n"),
                           ("mail.prom.tmp", PROM.replace("%s", "half")), ("large.prom", "x" * 200_000), ("notes.txt", "secret")):
            with open(f + "/" + name, "w") as file:
                file.write(text)
        os.symlink("/etc/passwd", f + "/link.prom")
        os.mkfifo(f + "/pipe.prom")
        os.utime(f + "/eu.prom", (time.time() - 3600, time.time() - 3600))
        with console_server("--consumers", f) as server:
            said = Console(server.http, "desk")("GET", "/v1/consumers")
            found = {c["scope"]: c for c in said["consumers"]}
            assert said["watched"] and found.keys() == {"orders/mail", "eu"}
            mail = found["orders/mail"]
            assert (mail["handled"], mail["dead_letter"], mail["in_flight"], mail["lag_messages"], mail["file"]) == (41, 2, 3, 1234, "mail.prom")
            assert mail["silent_s"] < 600 and found["eu"]["silent_s"] >= 3600
            assert [c["scope"] for c in Console(server.http, "eu")("GET", "/v1/consumers")["consumers"]] == ["eu"]
            assert Console(server.http, "graphs").problem("GET", "/v1/consumers") == "forbidden"
    with console_server() as server:
        assert authorized(server.http)("GET", "/v1/consumers") == {"verdict": "consumers", "watched": False, "consumers": []}


def test_an_id_is_explained(server, ops):
    made = authorized(server.http)("GET", "/v1/ids/snowflake")["ids"][0]
    said = ops("GET", "/v1/ids/snowflake/" + made)
    assert abs(said["time"] / 1000 - time.time()) < 60 and said["worker"] >= 0 and said["version"] == -1
    uuid = authorized(server.http)("GET", "/v1/ids/uuid7")["ids"][0]
    assert ops("GET", "/v1/ids/uuid7/" + uuid)["version"] == 7
    for path in ("snowflake/x7", "segment:a/7", "uuid4/7", "snowflake/99999999999999999999"):
        assert ops.problem("GET", "/v1/ids/" + path) == "invalid"


def test_the_routes_of_a_gateway_with_what_holds_and_what_to_know():
    with folder() as f, Ledger(f) as ledger:
        upstream = "http://127.0.0.1:%d" % ledger.port
        ran = subprocess.run([IDEM, "gateway", "--upstream", upstream, "--console"], capture_output=True, text=True,
                             env={k: v for k, v in os.environ.items() if k != "IDEM_CREDENTIALS"})
        assert ran.returncode == 2 and "--credentials" in ran.stderr
        with open(f + "/credentials", "w") as file:
            file.write(CREDENTIALS)
        os.chmod(f + "/credentials", 0o600)
        with open(f + "/gateway.conf", "w") as file:
            file.write("ttl = 1h\n[route /orders]\nrequired = on\n[route /named]\nscope = $remote_user\nfingerprint = off\n")
        port = free_port()
        with Gateway(f, ledger.port, "--console", "--credentials", f + "/credentials", "--http", "127.0.0.1:%d" % port,
                     "--config", f + "/gateway.conf") as gateway:
            assert wait_until(lambda: "console at http://127.0.0.1:%d/console" % port in gateway.output(), 20)
            ops = Console(port, "ops")
            assert ask(gateway.port, key="r1").status == 201
            said = ops("GET", "/v1/routes")
            orders, named = said["routes"]
            assert orders["route"] == "/orders" and orders["upstream"] == upstream
            assert orders["options"]["ttl"] == "3600000ms" and orders["options"]["mode"] == "strict" and orders["options"]["required"] == "on"
            assert orders["warnings"] == ["credential-scope", "anonymous-scope"] and named["warnings"] == ["no-fingerprint"]
            counted = lambda: {r["route"]: r["verdicts"] for r in ops("GET", "/v1/routes")["figures"]}
            assert wait_until(lambda: counted().get("/orders", {}).get("started") == 1, 20)
            with open(f + "/gateway.conf", "a") as file:
                file.write("[route /more]\n")
            gateway.send(signal.SIGHUP)
            assert wait_until(lambda: len(ops("GET", "/v1/routes")["routes"]) == 3, 20)
            assert Console(port, "graphs").problem("GET", "/v1/routes") == "forbidden"


def test_without_credentials_the_page_of_loopback_sees_what_anyone_may():
    with folder() as f, Server(f, "--console", http=True) as server:
        page = Console(server.http)
        assert page("GET", "/v1/session") == {"verdict": "session", "login": False, "name": "anyone", "cookie": False,
                                              "rights": ["measure", "look", "use"], "reason": False, "playground": False,
                                              "version": page("GET", "/healthz")["version"]}
        assert page("GET", "/v1/stats")["verdict"] == "stats" and page.problem("GET", "/v1/doubts") == "forbidden"
        answer, _ = page.raw("GET", "/console", headers={"Host": "evil.example"})
        assert answer.status == 421


def test_a_foreign_page_cannot_even_read_blindly_where_no_credentials_are_needed():
    """It would not see the answers, but it could make the server work and hold its connections open."""
    with folder() as f, Server(f, "--console", http=True) as server:
        api = Http(server.http)
        paths = ["/v1/stats", "/v1/events", "/v1/records/shop/1", "/v1/locks/1", "/v1/ids/snowflake", "/v1/session", "/metrics", "/readyz", "/openapi.json"]
        for path in paths:
            for site in ("cross-site", "same-site", "something new"):
                answer, data = api.raw("GET", path, headers={"Sec-Fetch-Site": site})
                assert answer.status == 403 and json.loads(data)["type"].endswith("foreign-origin"), path
        for site in ("same-origin", "none"):  # the console itself, and a person who typed the address
            assert api.raw("GET", "/v1/stats", headers={"Sec-Fetch-Site": site})[0].status == 200
        # a link on another page may lead to the console, which asks for the rest itself, and to the page about a problem
        for path in ("/console", "/problems/invalid"):
            assert api.raw("GET", path, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0].status == 200, path
        assert api.raw("GET", "/v1/stats", headers={"Host": "rebound.example", "Sec-Fetch-Site": "same-origin"})[0].status == 421

