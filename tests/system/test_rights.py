"""Who may do what without a credential, which scopes a credential opens, and to whom the command line tells a secret."""
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from gateway import *
from lib import *

NOBODY = 65534


def someone_else():
    """A Popen argument: another user than ours. The tests of several users need root, as in every container."""
    assert os.geteuid() == 0, "run this test as root: it plays a second user of the machine"
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def call(port, method, path, auth=None, **fields):
    """Status and JSON (or text) of an HTTP call."""
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (port, path), method=method,
                                     data=json.dumps(fields).encode() if fields else None,
                                     headers={**({"Content-Type": "application/json"} if fields else {}),
                                              **({"Authorization": "Bearer " + auth} if auth else {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, data = answer.status, answer.read()
    except urllib.error.HTTPError as e:
        status, data = e.code, e.read()
    try:
        return status, json.loads(data)
    except ValueError:
        return status, data.decode()


def write_credentials(where, *lines):
    path = os.path.join(where, "credentials")
    with open(path, "w") as f:
        f.write("".join(line + "\n" for line in lines))
    os.chmod(path, 0o600)
    return path


# ---- serve without credentials --------------------------------------------------------------------------------------------

OPERATORS = [["FORGET", "shop", "1"], ["SCAN", "0"], ["SCAN", "0", "SCOPE", "shop"], ["SETTLE", "shop", "1", "AS", "FAILED", ""]]


@pytest.fixture(scope="module")
def server():
    with folder() as where:
        os.chmod(where, 0o711)
        with Server(where, "--socket-mode", "0666", listen=True, http=True, store="memory:") as s:
            yield s


@pytest.mark.parametrize("command", OPERATORS, ids=lambda c: " ".join(c))
def test_a_port_of_loopback_gives_nobody_the_right_to_operate(server, command):
    with server.client(tcp=True) as c:
        got = c(*command)
        assert isinstance(got, Exception) and got.word == "NOPERM" and "socket" in str(got) and "credentials" in str(got), got
    with server.client() as c:
        assert not isinstance(c(*command), Exception), "the server's own user may, on the unix socket"


def test_everything_else_works_without_a_credential(server):
    with server.client(tcp=True) as c:
        fence = c("BEGIN", "open", "1")[1]
        assert c("RENEW", "open", "1", fence, 5000)[0] == "ok" and c("FINISH", "open", "1", fence, "SUCCEEDED", "x")[0] == "ok"
        assert c("GET", "open", "1")[0] == "record" and c("SETTLE", "open", "2")[0] == "settled"
        assert c("RELEASE", "open", "3", c("BEGIN", "open", "3")[1])[0] == "ok"
        token = c("ISSUE", "me")[1]
        assert c("REDEEM", token, "me")[0] == "redeemed"
        assert c("UNLOCK", "l", c("LOCK", "l", "me", 1000)[1])[0] == "ok"
        assert c("ID", "snowflake") and "parked" in c("INFO")


@pytest.mark.parametrize("method,path,fields", [
    ("GET", "/v1/records", {}), ("GET", "/v1/records?scope=shop", {}), ("DELETE", "/v1/records/shop/1", {}),
    ("POST", "/v1/records/shop/1/forget", {}), ("POST", "/v1/records/shop/1/settle", {"outcome": "failed"})])
def test_nor_does_http(server, method, path, fields):
    status, said = call(server.http, method, path, **fields)
    assert status == 403 and said["type"].endswith("/forbidden") and "credentials" in said["detail"], said
    assert call(server.http, "POST", "/v1/records/http/%s/begin" % time.monotonic_ns(), lease_ms=1000)[1]["verdict"] == "started"


PEER = """import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
s.sendall(b"SCAN 0\\r\\nBEGIN other 1\\r\\nRESET\\r\\nFORGET other 1\\r\\nQUIT\\r\\n")
while True:
    part = s.recv(4096)
    if not part: break
    sys.stdout.write(part.decode())
"""


def test_another_user_on_the_socket_may_use_but_not_operate(server):
    done = subprocess.run([sys.executable, "-c", PEER, server.socket], capture_output=True, text=True, timeout=60,
                          **someone_else())
    assert done.returncode == 0 and done.stdout.startswith("-NOPERM") and "started" in done.stdout, done
    assert done.stdout.count("-NOPERM") == 2, done.stdout


def test_a_trusted_socket_gives_its_other_users_no_right_to_operate():
    with folder() as where:
        os.chmod(where, 0o711)
        path = write_credentials(where, "a secret-a use")
        with Server(where, "--credentials", path, "--trust-socket", "--socket-mode", "0666", store="memory:") as s:
            done = subprocess.run([sys.executable, "-c", PEER, s.socket], capture_output=True, text=True, timeout=60,
                                  **someone_else())
            assert done.stdout.count("-NOPERM") == 2 and "started" in done.stdout, done


def test_in_a_container_where_other_users_look_like_the_servers_they_may_not_operate():
    """Users that a user namespace does not know are all shown as nobody, and here the server is nobody."""
    with folder() as where:
        os.chmod(where, 0o711)
        server = subprocess.Popen(["unshare", "--user", "--map-user=%d" % NOBODY, "--map-group=%d" % NOBODY, IDEM, "serve", "--store",
                                   "memory:", "--socket", where + "/s", "--socket-mode", "0666"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert wait_until(lambda: listens(where + "/s"))
            done = subprocess.run([sys.executable, "-c", PEER, where + "/s"], capture_output=True, text=True, timeout=60,
                                  **someone_else())
            assert done.stdout.count("-NOPERM") == 2 and "started" in done.stdout, done
        finally:
            server.terminate()
            server.wait()


# ---- the gateway's port -----------------------------------------------------------------------------------------------------

API = [("GET", "/v1/records", {}), ("GET", "/v1/records/anonymous/k", {}), ("DELETE", "/v1/records/anonymous/k", {}),
       ("GET", "/v1/records/idem.gateway/digest", {}), ("POST", "/v1/records/a/b/begin", {"lease_ms": 1000}),
       ("POST", "/v1/tokens", {"subject": "me"}), ("GET", "/v1/ids/snowflake", {}), ("PUT", "/v1/locks/l", {"owner": "me"})]


def test_the_gateways_port_tells_health_and_figures_only():
    """Any user of the machine can connect to it: no record is read, listed or deleted without a credential."""
    with folder() as where, Ledger(where) as ledger:
        port = free_port()
        with Gateway(where, ledger.port, "--http", "127.0.0.1:%d" % port) as g:
            assert ask(g.port, "k").status == 201
            for method, path, fields in API:
                status, said = call(port, method, path, **fields)
                assert status == 401 and said["type"].endswith("/unauthorized"), (path, said)
                assert "--credentials" in said["detail"], said
            assert ask(g.port, "k").replayed and ledger.executions("k") == 1
            for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
                assert call(port, "GET", path)[0] == 200, path
            assert "health and metrics at http://127.0.0.1:%d/" % port in g.output()


def test_with_credentials_the_gateways_port_is_the_whole_api():
    with folder() as where, Ledger(where) as ledger:
        port = free_port()
        path = write_credentials(where, "ops s3cret-of-the-ops operate")
        with Gateway(where, ledger.port, "--http", "127.0.0.1:%d" % port, "--credentials", path) as g:
            assert ask(g.port, "k").status == 201
            assert call(port, "GET", "/v1/records")[0] == 401
            assert call(port, "GET", "/v1/records", auth="ops:s3cret-of-the-ops")[1]["verdict"] == "records"
            assert call(port, "DELETE", "/v1/records/anonymous/k", auth="ops:s3cret-of-the-ops")[1]["verdict"] == "ok"
            assert "HTTP API and metrics at" in g.output()


# ---- ids --------------------------------------------------------------------------------------------------------------------

def test_a_segment_is_a_scope_of_its_name():
    with folder() as where:
        path = write_credentials(where, "shop shop-secret-1234567 use shop", "all all-secret-1234567 use")
        with Server(where, "--credentials", path, listen=True, http=True, store="memory:") as s, s.client() as c:
            assert c("AUTH", "shop", "shop-secret-1234567") == "OK"
            assert c("ID", "segment:shop")[0] and c("ID", "snowflake") and c("ID", "uuid7")
            got = c("ID", "segment:other")
            assert isinstance(got, Exception) and got.word == "NOPERM" and "scope" in str(got), got
            got = c("ID", "SEGMENT:other")
            assert isinstance(got, Exception) and got.word == "NOPERM", got
            auth = "shop:shop-secret-1234567"
            status, said = call(s.http, "GET", "/v1/ids/segment:other", auth=auth)
            assert status == 403 and said["type"].endswith("/forbidden"), said
            assert call(s.http, "GET", "/v1/ids/segment:shop", auth=auth)[0] == 200
            assert call(s.http, "GET", "/v1/ids/segment:other", auth="all:all-secret-1234567")[0] == 200


def test_names_of_segments_do_not_fill_up_for_ever():
    with folder() as where, Server(where, store="memory:") as s, s.client() as c:
        def ids(name):
            got = None

            def ask_again():
                nonlocal got
                got = c("ID", "segment:" + name)
                return not isinstance(got, Exception) or got.word != "OVERLOADED"
            assert wait_until(ask_again)
            assert not isinstance(got, Exception), (name, got)
            return int(got[-1] if isinstance(got, list) else got)
        first = ids("mine")
        for i in range(1100):
            ids("name-%d" % i)
        assert ids("mine") > first, "a name that comes back goes on above what it gave out"


# ---- the command line -----------------------------------------------------------------------------------------------------------

def listener(path, heard):
    """A server that somebody else made: it hears what it is told and says nothing."""
    program = """import os, socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); s.listen(8)
print("ready", flush=True)
while True:
    c, _ = s.accept(); c.settimeout(2)
    try: print(repr(c.recv(4096)), flush=True)
    except OSError: pass
    c.close()
"""
    process = subprocess.Popen([sys.executable, "-c", program, path], stdout=heard, **someone_else())
    assert wait_until(lambda: "ready" in open(heard.name).read())
    return process


def test_a_secret_is_not_told_to_a_socket_that_somebody_else_made():
    with folder() as where, open(where + "/heard", "w") as heard:
        place = where + "/place"
        os.mkdir(place)
        os.chmod(where, 0o711)
        os.chown(place, NOBODY, NOBODY)
        process = listener(place + "/idem.sock", heard)
        try:
            for command in (["get", "s", "i"], ["bench", "--time", "1s"], ["top"]):
                done = subprocess.run([IDEM, *command, "--server", "unix:" + place + "/idem.sock"], capture_output=True,
                                      text=True, timeout=60, env={**os.environ, "IDEM_AUTH": "shop:s3cret"})
                assert done.returncode != 0 and "user" in done.stderr and "idem.sock" in done.stderr, done
        finally:
            process.kill()
            process.wait()
        assert "s3cret" not in open(where + "/heard").read()


def test_a_secret_is_told_to_our_own_server_and_to_roots():
    with folder() as where:
        os.chmod(where, 0o711)
        path = write_credentials(where, "shop s3cret-s3cret use")
        with Server(where, "--credentials", path, "--socket-mode", "0666", store="memory:") as s:
            argv = [IDEM, "get", "s", "i", "--server", "unix:" + s.socket]
            env = {**os.environ, "IDEM_AUTH": "shop:s3cret-s3cret"}
            for user in ({}, someone_else()):
                done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, **user)
                assert "absent" in done.stdout, done


def test_a_user_can_be_named_whose_server_is_trusted():
    """A service user's server: --server-user, IDEM_SERVER_USER."""
    with folder() as where:
        os.chmod(where, 0o777)
        socket_path = where + "/s"
        server = subprocess.Popen([IDEM, "serve", "--store", "memory:", "--socket", socket_path, "--socket-mode", "0666"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **someone_else())
        try:
            assert wait_until(lambda: listens(socket_path))
            argv = [IDEM, "get", "s", "i", "--server", "unix:" + socket_path]
            env = {**os.environ, "IDEM_AUTH": "shop:s3cret"}
            refused = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
            assert "IDEM_SERVER_USER" in refused.stderr, refused
            told = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**env, "IDEM_SERVER_USER": "nobody"})
            assert "AUTH is not needed" in told.stderr, told
        finally:
            server.terminate()
            server.wait()


# ---- the four rights --------------------------------------------------------------------------------------------------------

FOUR = ["graphs graphs-secret-123456 monitor", "desk desk-secret-123456 view", "shop shop-secret-123456 use",
        "ops ops-secret-123456 operate", "eu eu-secret-123456 view shop"]
ASKED = {  # a command: who may
    ("INFO",): "graphs desk shop ops eu",
    ("GET", "shop", "1"): "desk shop ops eu",
    ("GET", "other", "1"): "desk shop ops",
    ("SCAN", "0"): "desk ops",
    ("SCAN", "0", "SCOPE", "shop"): "desk ops eu",
    ("BEGIN", "shop", "1"): "shop ops",
    ("SETTLE", "shop", "1"): "shop ops",
    ("ISSUE", "shop"): "shop ops",
    ("LOCK", "l", "me", "100"): "shop ops",
    ("ID", "snowflake"): "shop ops",
    ("FORGET", "shop", "nothing", "REASON", "cleaning up"): "ops",
    ("SETTLE", "shop", "1", "AS", "FAILED", "", "REASON", "why"): "ops",
    ("UNLOCK", "l", "1", "REASON", "its holder is gone"): "ops",
    ("UNLOCK", "l", "1"): "shop ops",
}
OVER_HTTP = {
    ("GET", "/metrics"): "graphs desk shop ops eu",
    ("GET", "/v1/records/shop/1"): "desk shop ops eu",
    ("GET", "/v1/records/other/1"): "desk shop ops",
    ("GET", "/v1/records"): "desk ops",
    ("GET", "/v1/records?scope=shop"): "desk ops eu",
    ("POST", "/v1/records/shop/1/begin"): "shop ops",
    ("GET", "/v1/ids/snowflake"): "shop ops",
    ("DELETE", "/v1/records/shop/nothing?reason=cleaning"): "ops",
    ("POST", "/v1/records/shop/nothing/forget", "reason"): "ops",
    ("DELETE", "/v1/locks/l?fence=1"): "shop ops",
    ("DELETE", "/v1/locks/l?fence=1&reason=gone"): "ops",
}


@pytest.fixture(scope="module")
def four():
    with folder() as where:
        with Server(where, "--credentials", write_credentials(where, *FOUR), http=True, store="memory:") as s:
            with s.client() as c:
                c("AUTH", "ops", "ops-secret-123456")
                assert c("FINISH", "shop", "1", c("BEGIN", "shop", "1")[1], "SUCCEEDED", "card 4711")[0] == "ok"
            yield s


@pytest.mark.parametrize("command", ASKED, ids=" ".join)
def test_each_right_allows_what_its_row_says(four, command):
    for line in FOUR:
        name, secret = line.split()[:2]
        with four.client() as c:
            assert c("AUTH", name, secret) == "OK"
            got = c(*command)
            refused = isinstance(got, Exception) and got.word == "NOPERM"
            assert refused == (name not in ASKED[command].split()), (name, got)


@pytest.mark.parametrize("asked", OVER_HTTP, ids=" ".join)
def test_http_has_the_same_rights(four, asked):
    for line in FOUR:
        name, secret = line.split()[:2]
        status, said = call(four.http, *asked[:2], auth=name + ":" + secret, **{f: "a reason" for f in asked[2:]})
        assert (status == 403) == (name not in OVER_HTTP[asked].split()) and status in (200, 403), (name, status, said)


def test_view_shows_a_record_without_its_result(four):
    with four.client() as c:
        c("AUTH", "desk", "desk-secret-123456")
        for command in (["GET", "shop", "1"], ["GET", "shop", "1", "FULL"]):
            got = c(*command)
            assert got[0] == "record" and "4711" not in str(got), got
        c("AUTH", "shop", "shop-secret-123456")
        assert "card 4711" in c("GET", "shop", "1")
    said = call(four.http, "GET", "/v1/records/shop/1", auth="desk:desk-secret-123456")[1]
    assert said["record"]["state"] == "succeeded" and said["record"]["result"] is None, said
    assert call(four.http, "GET", "/v1/records/shop/1", auth="shop:shop-secret-123456")[1]["record"]["result"] == "card 4711"


def test_a_reason_can_be_required():
    with folder() as where, Server(where, "--require-reason", http=True, store="memory:") as s, s.client() as c:
        for command in (["FORGET", "shop", "1"], ["SETTLE", "shop", "1", "AS", "FAILED", ""]):
            got = c(*command)
            assert isinstance(got, Exception) and "REASON" in str(got) and "--reason" in str(got), got
            assert not isinstance(c(*command, "REASON", "ticket 7"), Exception)
        assert c("SETTLE", "shop", "2")[0] == "settled", "asks and decides nothing over others: no reason"
        idem = lambda *argv: subprocess.run([IDEM, *argv, "--server", "unix:" + s.socket], capture_output=True, text=True,
                                            timeout=60)  # noqa: E731
        assert "--reason" in idem("forget", "shop", "2").stderr
        assert idem("forget", "shop", "2", "--reason", "ticket 8").returncode == 0
        c("BEGIN", "many", "1", "LEASE", "1")
        time.sleep(0.1)
        done = idem("settle", "--scope", "many", "--as", "failed", "--yes", "--json")
        told = json.loads(done.stdout)
        assert done.returncode == 1 and told["verdict"] == "invalid" and "--reason" in told["text"], told
        fence = str(c("LOCK", "l", "me", "60000")[1])
        assert idem("unlock", "l", fence, "--reason", "its host is gone").stdout.startswith("ok")


# ---- quotas -----------------------------------------------------------------------------------------------------------------

def test_one_scope_cannot_take_the_server_from_the_others():
    with folder() as where, Server(where, "--scope-rate", "1", http=True, store="memory:") as s, s.client() as c:
        fence = c("BEGIN", "loud", "1")[1]

        def refused():
            got = c("GET", "loud", "1")
            return got if isinstance(got, Exception) else None
        got = wait_until(refused, step=0)
        assert got.word == "OVERLOADED" and "scope-rate" in str(got) and " ms" in str(got), got
        status = None
        for _ in range(200):
            status, said = call(s.http, "POST", "/v1/records/loud/2/begin")
            if status != 200:
                break
        assert status == 429 and said["type"].endswith("/over-quota") and said["retryable"] and \
            said["class"] == "not executed" and said["detail"].startswith("scope-rate"), said
        assert c("FINISH", "loud", "1", fence, "SUCCEEDED", "x")[0] == "ok", "what ends a claim is never refused"
        assert c("FORGET", "loud", "1")[0] == "ok" and c("BEGIN", "quiet", "1")[0] == "started"


def test_too_many_tokens_are_told_by_the_name_of_the_limit():
    with folder() as where, Server(where, "--token-rate", "1", http=True, store="memory:") as s, s.client() as c:
        assert c("ISSUE", "me", "COUNT", "2")[0] == "issued"
        got = c("ISSUE", "me", "COUNT", "1000")
        assert got.word == "OVERLOADED" and str(got).startswith("OVERLOADED token-rate: "), got
        status, said = call(s.http, "POST", "/v1/tokens", subject="me", count=1000)
        assert status == 429 and said["detail"].startswith("token-rate: "), said


# ---- who was refused -----------------------------------------------------------------------------------------------------------

def events(process, name):
    return [line for line in process.output().splitlines() if "event=%s " % name in line]


def test_a_refused_operator_is_in_the_log_whatever_its_level():
    with folder() as where:
        path = write_credentials(where, "shop shop-secret-1234567 use shop", "ops ops-secret-1234567 operate")
        with Server(where, "--credentials", path, "--log-level", "error", "--require-reason", listen=True, http=True,
                    store="memory:") as s:
            with s.client(tcp=True) as c:
                assert c("FORGET", "shop", "1").word == "NOAUTH"
                assert c("AUTH", "shop", "shop-secret-1234567") == "OK"
                assert c("FORGET", "shop", "1").word == "NOPERM" and c("SCAN", "0").word == "NOPERM"
                assert c("BEGIN", "elsewhere", "1").word == "NOPERM"  # no operator's wish: not told
                assert c("AUTH", "ops", "ops-secret-1234567") == "OK" and c("FORGET", "shop", "1").word == "ERR"
            assert call(s.http, "DELETE", "/v1/records/shop/1")[0] == 401
            assert call(s.http, "POST", "/v1/records/shop/1/settle", "shop:shop-secret-1234567",
                        outcome="failed", reason="r")[0] == 403
            assert call(s.http, "GET", "/v1/audit", "shop:shop-secret-1234567")[0] == 403
            lines = events(s, "operator-refused")
            said = [re.search(r"verb=(\S+) who=(\S+) .*surface=(\S+) from=(\S+) why=", line) for line in lines]
            assert [m and m.groups() for m in said] == [
                ("forget", "-", "resp", "127.0.0.1"), ("forget", "shop", "resp", "127.0.0.1"),
                ("scan", "shop", "resp", "127.0.0.1"), ("forget", "ops", "resp", "127.0.0.1"),
                ("forget", "-", "http", "127.0.0.1"), ("settle", "shop", "http", "127.0.0.1"),
                ("audit", "shop", "http", "127.0.0.1")], "\n".join(lines)
            assert all("key=" in line for line in lines if "verb=forget" in line and "http" not in line)
            assert "shop-secret" not in s.output() and "ops-secret" not in s.output()


def test_refusals_cannot_fill_the_log():
    with folder() as where, Server(where, listen=True, store="memory:") as s:
        with s.client(tcp=True) as c:
            for _ in range(200):
                assert c("FORGET", "shop", "1").word == "NOPERM"
            few = len(events(s, "operator-refused"))
            assert 10 <= few <= 50, few

            def told():
                c("FORGET", "shop", "1")
                return any(re.search(" more=[1-9]", line) for line in events(s, "operator-refused"))
            wait_until(told, step=0.5)
        more = [int(n) for n in re.findall(r" more=(\d+)", s.output())]
        assert sum(more) >= 200 - few, more


def test_a_wrong_secret_is_logged_with_where_it_came_from():
    with folder() as where:
        path = write_credentials(where, "shop shop-secret-1234567 use shop")
        with Server(where, "--credentials", path, listen=True, http=True, store="memory:") as s:
            with s.client(tcp=True) as c:
                assert c("AUTH", "shop", "wrong").word == "WRONGPASS"
            assert call(s.http, "GET", "/v1/records/shop/1", "shop:wrong")[0] == 401
            lines = events(s, "auth-failed")
            assert len(lines) == 2 and all("from=127.0.0.1" in line for line in lines), lines
            assert "surface=resp" in lines[0] and "surface=http" in lines[1], lines
