"""Wrong replies of a store's server: each must become an error, and never an answer that is not true. Waits more than it works."""
import subprocess

import pytest

from lib import IDEM, SOAK, THOROUGH, Server, folder, run_c_test, wait_until
from liar import Http, Liar, Resp, ZooKeeperLiar
from servers import Etcd, Redis, ZooKeeper

TURNS = 1200 if SOAK else 240 if THOROUGH else 48

# Not here: replies that the server might have given, such as "no such record". Nobody can see that they are wrong.
ETCD = [b"200 {}", b"200 []", b"200 null", b"200 not JSON", b"200 ", b'200 {"responses":[]}', b'200 {"responses":{}}',
        b'200 {"responses":[1,2,3,4,5,6,7,8,9,10,11,12]}', b'200 {"responses":[' + b",".join([b"{}"] * 12) + b"]}",
        b'200 {"responses":[' + b",".join([b'{"response_txn":{}}'] * 12) + b"]}",
        b'200 {"responses":[' + b",".join([b'{"response_txn":{"succeeded":false}}'] * 12) + b"]}",
        b'200 {"responses":[' + b",".join([b'{"response_range":{"kvs":[{"key":"aaaa"}]}}'] * 12) + b"]}",
        b'200 {"responses":[' + b",".join([b'{"response_range":{"kvs":[{"value":7}]}}'] * 12) + b"]}",
        b'200 {"responses":[' + b",".join([b'{"response_range":{"kvs":[{"value":"!"}]}}'] * 12) + b"]}",
        b'200 {"responses":[' + b",".join([b'{"response_txn":{"responses":[{"response_range":{"kvs":[{"value":"AAAA"}]}}]}}'] * 12) + b"]}",
        b'200 {"kvs":[{"value":"AAAA"},{"key":7},{"key":"!"},{"key":"aWRlbS8="}],"more":true}',
        b'200 {"ID":7}', b'200 {"ID":"0"}', b'200 {"ID":"none"}', b'200 {"version":"3"}', b'200 {"version":"2.3.8","leader":"1"}',
        b'200 {"version":"3.4.23"}',
        b"404 not found", b"500 {}", b'503 {"code":14,"message":"etcdserver: leader changed"}', b'503 {"code":14,"error":"no leader"}',
        b'400 {"code":3,"message":"duplicate key"}', b'403 {"code":7,"message":"permission denied"}',
        b'401 {"code":16,"message":"invalid auth token"}', b'429 {"code":8,"message":"etcdserver: too many requests"}',
        b'429 {"code":8,"message":"something else"}', b'500 {"code":8,"message":"mvcc: database space exceeded"}',
        b'400 {"code":11,"message":"received message larger than max"}', b'404 {"code":5,"message":"requested lease not found"}',
        b'404 {"code":5,"message":"not found"}', b'500 {"message":7}']

REDIS = [b":7\r\n", b"*0\r\n", b"*1\r\n*0\r\n", b"*2\r\n:7\r\n:8\r\n", b"*2\r\n$3\r\nabc\r\n$1\r\nx\r\n", b"*3\r\n:7\r\n:8\r\n:9\r\n", b"$3\r\nabc\r\n",
         b"$0\r\n\r\n", b"*2\r\n$1\r\n0\r\n:7\r\n", b"*2\r\n$1\r\n0\r\n*2\r\n:7\r\n$3\r\nabc\r\n", b"*2\r\n:0\r\n*0\r\n",
         b"-ERR something new\r\n", b"-ERR\r\n", b"-\r\n", b"-LOADING Redis is loading the dataset in memory\r\n", b"-OOM command not allowed\r\n",
         b"-ERR Error running script: -OOM command not allowed\r\n", b"-READONLY You can't write against a read only replica.\r\n",
         b"-MISCONF Errors writing to disk\r\n", b"-NOSCRIPT No matching script.\r\n", b"-TRYAGAIN Multiple keys request\r\n",
         b"-CLUSTERDOWN The cluster is down\r\n", b"-MOVED 1 127.0.0.1:1\r\n", b"-MOVED\r\n", b"-MOVED x\r\n", b"-MOVED 99999 127.0.0.1:1\r\n", b"-ASK 1 127.0.0.1:1\r\n",
         b"-WRONGTYPE Operation against a key\r\n", b"-NOPERM no permissions\r\n", b"-NOAUTH Authentication required.\r\n",
         b"-BUSY Redis is busy running a script\r\n", b"?what\r\n", b"$99999999999999999999\r\n"]


# Each of them makes the client log in again, or spoils that.
LOGIN = [b'401 {"code":16,"message":"etcdserver: invalid auth token"}', b"200 {}", b'401 {"code":16,"error":"etcdserver: invalid auth token"}', b'200 {"token":7}',
         b'401 {"code":16,"message":"etcdserver: invalid auth token"}', b'400 {"code":3,"message":"authentication failed"}', b"200 not JSON"]


def with_users(server):
    """The URL of an etcd that has users and passwords now."""
    server.post("/v3/auth/user/add", {"name": "root", "password": "r00t"})
    server.post("/v3/auth/role/add", {"name": "root"})
    server.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
    server.post("/v3/auth/enable", {})
    return "etcd://root:r00t@127.0.0.1:%d"


def check(kind, every, replies, turns=TURNS, users=False, **env):
    server, talk = {"etcd": (Etcd, Http), "redis": (Redis, Resp)}[kind]
    server = server()
    url = with_users(server) if users else kind + "://127.0.0.1:%d"
    liar = Liar(server.port, talk, replies, every)
    try:
        run_c_test("store_replies_test", server.url, IDEM_TEST_STORE=url % liar.port, IDEM_TEST_TRUTH=url % server.port,
                   IDEM_TEST_TURNS=turns, **env)
        assert liar.told > 10
    finally:
        liar.stop()
        server.stop()


@pytest.mark.parametrize("every", [3, 7])
@pytest.mark.parametrize("kind,replies", [("etcd", ETCD), ("redis", REDIS)])
def test_wrong_replies_become_errors_and_never_answers(kind, replies, every):
    check(kind, every, replies)


@pytest.mark.parametrize("kind,replies", [("etcd", [r for r in ETCD if not r.startswith(b"200")]),
                                          ("redis", [r for r in REDIS if r.startswith(b"-") and b"MOVED" not in r and b"ASK" not in r])])
def test_a_scan_that_meets_an_error_leaves_no_record_out(kind, replies):
    check(kind, 11, replies, IDEM_TEST_NO_LIES=1)


def test_wrong_replies_while_a_client_logs_in():
    check("etcd", 4, LOGIN, turns=TURNS // 2, users=True)


ABSENT, UNAVAILABLE, LOST, CORRUPT = 16, 20, 21, 25  # exit codes


def at_leisure(url):
    """No error is due to a machine that is busy."""
    return url + ("&" if "?" in url else "?") + "connect_ms=20000&timeout_ms=20000"


def said(url, *words):
    """The exit code of a command, and what it printed, without the parts that many errors have."""
    done = subprocess.run([IDEM, *words, "--store", at_leisure(url)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    text = done.stdout.strip().removeprefix("idem: ").removeprefix("cannot tell whether it was stored: ")
    return done.returncode, text.removesuffix("; is that server running, and are host, port, user and password in the store's URL right?")


# ---- one reply of ZooKeeper -------------------------------------------------

Z = ZooKeeperLiar
# The errors of ZooKeeper, as it numbers them.
BROKEN, MARSHALLING, NO_NODE, NO_AUTH, BAD_VERSION, EXISTS_ALREADY, EXPIRED, MOVED = -2, -5, -101, -102, -103, -110, -112, -118
OPENED = [None, None]  # the first two nodes are the root and the clock


@pytest.fixture(scope="module")
def zookeeper():
    server = ZooKeeper()
    liar = ZooKeeperLiar(server.port)
    liar.url, liar.make = "zookeeper://127.0.0.1:%d" % liar.port, server.make
    assert said(liar.url, "begin", "wrong", "first")[0] == 0  # makes the root, and the shard of this record
    yield liar
    liar.stop()
    server.stop()


@pytest.mark.parametrize("kind,words,text", [(Z.SYNC, ("get", "a", "b"), "zookeeper: %s"), (Z.GET, ("get", "a", "b"), "zookeeper: %s"),
                                             (Z.SET, ("get", "a", "b"), "zookeeper: clock: %s"), (Z.LIST, ("find", "b"), "zookeeper: %s"),
                                             (Z.CREATE, ("get", "a", "b"), "zookeeper: cannot make /idem: %s")])
def test_an_error_of_zookeeper_is_told_by_its_name_and_the_call_is_unavailable(zookeeper, kind, words, text):
    for error, name in ((MARSHALLING, "marshalling error"), (NO_AUTH, "not authenticated"), (MOVED, "session moved to another server, so operation is ignored")):
        zookeeper.errors = {kind: error}
        assert said(zookeeper.url, *words) == (UNAVAILABLE, text % name)


def begin(liar, id, **errors):
    liar.errors = {getattr(Z, kind): list(error) for kind, error in errors.items()}
    return said(liar.url, "begin", "wrong", id)


def is_there(liar, id):
    liar.errors = {}
    return said(liar.url, "get", "wrong", id)[0] == 0


@pytest.mark.parametrize("errors,text", [(dict(CREATE=[*OPENED, NO_AUTH]), "not authenticated"),
                                         (dict(CREATE=[*OPENED, NO_NODE, NO_AUTH]), "not authenticated"),  # of the shard
                                         (dict(CREATE=[*OPENED, EXISTS_ALREADY], SYNC=[MARSHALLING] * 9), "marshalling error"),
                                         (dict(CREATE=[*OPENED, EXISTS_ALREADY], GET=[NO_AUTH] * 99), "not authenticated"),
                                         (dict(CREATE=[*OPENED, *[EXISTS_ALREADY] * 9]), "others write all the time")])
def test_a_claim_that_zookeeper_refuses_is_not_stored(zookeeper, errors, text):
    assert begin(zookeeper, "refused", **errors) == (UNAVAILABLE, "zookeeper: " + text)
    assert not is_there(zookeeper, "refused")


@pytest.mark.parametrize("error", [BROKEN, EXPIRED, MOVED, EXISTS_ALREADY, BAD_VERSION, NO_NODE])
def test_a_claim_whose_reply_says_nothing_about_it_is_looked_for_and_stored_once(zookeeper, error):
    id = "again%d" % error
    code, text = begin(zookeeper, id, CREATE=[*OPENED, error])
    assert code == 0 and text.startswith("started"), text
    assert is_there(zookeeper, id) and "attempt: 1" in said(zookeeper.url, "get", "wrong", id)[1]


def test_a_result_that_zookeeper_refuses_is_not_stored_and_can_be_given_again(zookeeper):
    # Without the shard's version the claim is stored, and not taken for one whose version is known.
    code, text = begin(zookeeper, "result", EXISTS=[MARSHALLING] * 9)
    fence = text.split("fence: ")[1].split()[0]
    finish = lambda: said(zookeeper.url, "finish", "wrong", "result", fence, "succeeded", "done")  # noqa: E731
    for kind, error, code, text in ((Z.EXISTS, MARSHALLING, UNAVAILABLE, "marshalling error"), (Z.EXISTS, NO_NODE, UNAVAILABLE, "no node"),
                                    (Z.MULTI, NO_AUTH, UNAVAILABLE, "not authenticated"), (Z.MULTI, NO_NODE, UNAVAILABLE, "others write all the time"),
                                    (Z.MULTI, BAD_VERSION, UNAVAILABLE, "others write all the time"), (Z.MULTI, BROKEN, LOST, "run time inconsistency")):
        zookeeper.errors = {kind: error}
        assert finish() == (code, "zookeeper: " + text)
        zookeeper.errors = {}
        assert "state: executing" in said(zookeeper.url, "get", "wrong", "result")[1]
    zookeeper.errors = {Z.MULTI: [BAD_VERSION, NO_NODE]}  # somebody else writes, twice
    assert finish()[0] == 0 and zookeeper.errors == {Z.MULTI: []}
    assert said(zookeeper.url, "get", "wrong", "result", "--json")[1].count("done")


def test_a_search_leaves_out_only_what_zookeeper_says_is_gone(zookeeper):
    zookeeper.errors = {Z.GET: NO_AUTH}
    assert said(zookeeper.url, "find", "first") == (UNAVAILABLE, "zookeeper: not authenticated")
    zookeeper.errors = {Z.GET: NO_NODE}
    assert said(zookeeper.url, "find", "first")[0] == ABSENT
    zookeeper.errors = {Z.LIST: [None] * 40 + [NO_AUTH] * 999}  # not in the first part of the search
    assert said(zookeeper.url, "find", "nowhere") == (UNAVAILABLE, "zookeeper: not authenticated")
    zookeeper.errors = {}
    assert said(zookeeper.url, "find", "first")[0] == 0


def test_what_is_no_record_in_zookeeper_is_passed_over_or_damage(zookeeper):
    zookeeper.errors = {}
    url = zookeeper.url + "/of/others"
    assert said(url, "get", "a", "b")[0] == ABSENT  # makes the root and its parent
    zookeeper.make("/of/others/00", b"")
    for name in ("notes", "00" * 31, "ab" * 33):
        zookeeper.make("/of/others/00/" + name, b"of somebody else")
    assert said(url, "find", "b")[0] == ABSENT
    zookeeper.make("/of/others/00/" + "00" * 32, b"")
    assert said(url, "find", "b") == (CORRUPT, "a record of 0 bytes is too short")


def test_a_root_whose_parent_cannot_be_made_is_named(zookeeper):
    zookeeper.errors = {Z.CREATE: NO_AUTH}
    assert said(zookeeper.url + "/their/idem", "get", "a", "b") == (UNAVAILABLE, "zookeeper: cannot make /their: not authenticated")


def test_a_duplicate_that_zookeeper_does_not_let_watch_looks_by_itself(zookeeper):
    zookeeper.errors = {}
    with folder() as where, folder() as beside, Server(where, store=at_leisure(zookeeper.url)) as one, Server(beside, store=at_leisure(zookeeper.url)) as two:
        owner, waiter = one.client(), two.client()
        fence = owner("BEGIN", "watch", "1")[1]
        before = zookeeper.told
        zookeeper.errors = {Z.WATCH: NO_AUTH}
        waiter.send("BEGIN", "watch", "1", "WAIT", 60000)
        assert wait_until(lambda: zookeeper.told > before)
        assert owner("FINISH", "watch", "1", fence, "SUCCEEDED", "done")[0] == "ok"
        answer = waiter.read()
        assert answer[0] == "replay" and answer[4] == "done"
