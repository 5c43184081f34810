"""Wrong replies of a store's server: each must become an error, and never an answer that is not true. Waits more than it works."""
import binascii
import re
import subprocess

import pytest

from lib import IDEM, SOAK, THOROUGH, Server, folder, run_c_test, wait_until, without_advice
from liar import Http, Liar, Resp, ScriptedRedis, ZooKeeperLiar, array, bulk
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


ABSENT, UNAVAILABLE, LOST, FULL, CORRUPT, UNSUPPORTED = 16, 20, 21, 23, 25, 26  # exit codes


def at_leisure(url):
    """No error is due to a machine that is busy."""
    return url + ("&" if "?" in url else "?") + "connect_ms=20000&timeout_ms=20000"


def said(url, *words):
    """The exit code of a command, and what it printed, without the parts that many errors have."""
    done = subprocess.run([IDEM, *words, "--store", at_leisure(url)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    text = without_advice(done.stdout.strip()).removeprefix("idem: ").removeprefix("cannot tell whether it was stored: ")
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
                                             (Z.SYNC, ("find", "b"), "zookeeper: %s"),
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


# ---- one reply of Redis -----------------------------------------------------

def scripted(*words, options="", kind="redis", **replies):
    """What `said` says of a Redis with these replies; its own address is HERE in the text."""
    redis = ScriptedRedis(**replies)
    try:
        code, text = said(redis.url.replace("redis", kind, 1) + options, *words)
        return code, text.replace("127.0.0.1:%d" % redis.port, "HERE")
    finally:
        redis.stop()


@pytest.mark.parametrize("reply", [b":7\r\n", b"*0\r\n", array(b":1\r\n", b":2\r\n"), array(bulk("1"), b":2\r\n"), array(b":1\r\n", bulk("2"))])
def test_a_redis_that_does_not_tell_its_time_is_unavailable(reply):
    assert scripted("get", "a", "b", TIME=reply) == (UNAVAILABLE, "redis HERE: no reply to TIME")


@pytest.mark.parametrize("replies,text", [
    (dict(INFO=b":7\r\n"), "INFO says nothing: is this Redis, and may this user call INFO?"),
    (dict(INFO=ScriptedRedis.info(redis_version="7")), "version 0.0 is too old: 7.0 or newer"),
    (dict(INFO=ScriptedRedis.info(redis_mode="sentinel")), "this is a Sentinel: use redis+sentinel://HOST:PORT/NAME, with the name of the primary that it monitors"),
    (dict(CONFIG=b":7\r\n"), 'CONFIG GET appendfsync is not allowed here; allow it, or vouch for "always" with ?unsafe=unseen'),
    (dict(CONFIG=array(bulk("appendfsync"), b":1\r\n")), 'CONFIG GET appendfsync is not allowed here; allow it, or vouch for "always" with ?unsafe=unseen')])
def test_a_redis_that_says_too_little_about_itself_is_refused(replies, text):
    assert scripted("get", "a", "b", **replies) == (UNSUPPORTED, "redis HERE: " + text)


def test_the_first_error_of_several_names_the_flaw():
    assert scripted("get", "a", "b", SCRIPT=b"-NOPERM no scripts here\r\n", INFO=b"-NOPERM no facts here\r\n") == \
        (UNAVAILABLE, "redis HERE: NOPERM no scripts here")


NAMES = array(bulk("0"), array(bulk("idem:" + "0" * 64)))


@pytest.mark.parametrize("replies", [
    dict(SCAN=b":7\r\n"), dict(SCAN=b"*0\r\n"), dict(SCAN=array(b":0\r\n", b"*0\r\n")), dict(SCAN=array(bulk("0"), bulk("x"))),
    dict(SCAN=NAMES, GET=b"-LOADING Redis is loading the dataset in memory\r\n"), dict(SCAN=NAMES, GET=b":7\r\n"), dict(SCAN=NAMES, GET=b"-BUSY\r\n")])
def test_a_search_that_cannot_see_all_of_redis_says_so(replies):
    assert scripted("find", "b", **replies) == (UNAVAILABLE, "redis HERE: no reply to SCAN")


@pytest.mark.parametrize("replies,code", [
    (dict(SCAN=array(bulk("0"), array(b":7\r\n", bulk("idem:"), bulk("idem:xyz"), bulk("other:" + "0" * 64)))), ABSENT),  # keys of other programs
    (dict(SCAN=NAMES, GET=b"-MOVED 1 127.0.0.1:1\r\n"), ABSENT), (dict(SCAN=NAMES, GET=b"-ASK 1 127.0.0.1:1\r\n"), ABSENT),
    (dict(SCAN=NAMES, GET=b"$-1\r\n"), ABSENT), (dict(SCAN=NAMES, GET=bulk("no record")), CORRUPT)])
def test_a_search_passes_over_what_is_no_record_or_has_gone(replies, code):
    assert scripted("find", "b", **replies)[0] == code


@pytest.mark.parametrize("reply,code,text", [
    (b"-MOVED 1 127.0.0.1:1\r\n", UNAVAILABLE, "redis HERE: MOVED 1 127.0.0.1:1"), (b"-TRYAGAIN later\r\n", UNAVAILABLE, "redis: sent from server to server, too often"),
    (b"-NOSCRIPT none\r\n", UNAVAILABLE, "redis HERE: NOSCRIPT none"), (b"-MISCONF disk\r\n", UNAVAILABLE, "redis HERE: MISCONF disk"),
    (b"-NEWS of tomorrow\r\n", LOST, "redis HERE: NEWS of tomorrow")])
def test_a_claim_that_redis_refuses_is_not_started_and_an_unknown_error_may_mean_anything(reply, code, text):
    assert scripted("begin", "a", "b", SET=reply, EVAL=reply) == (code, text)


def test_a_redis_without_memory_is_full_whichever_way_it_says_so():
    for reply in (b"-OOM command not allowed\r\n", array(b"-OOM command not allowed\r\n"), b"-ERR Error running script: -OOM command not allowed\r\n"):
        code, text = scripted("begin", "a", "b", SET=b"-OOM command not allowed\r\n", EVALSHA=reply)
        assert text.startswith("redis HERE: ") and "OOM command not allowed" in text and code == FULL


def test_a_redis_that_is_nearly_full_takes_no_claims_and_one_that_does_not_say_how_full_it_is_does():
    facts = dict(maxmemory="1000", used_memory="950")
    code, text = scripted("begin", "a", "b", INFO=ScriptedRedis.info(**facts), EVALSHA=array(b":0\r\n"))
    assert code == FULL and text.startswith("redis HERE: 950 of maxmemory's 1000 bytes are used, so it takes no new records; raise maxmemory, or delete data of other programs")
    facts["used_memory"] = "10"
    for reply in (b":7\r\n", b"-NOPERM no\r\n", bulk("nothing")):
        assert scripted("begin", "a", "b", INFO=lambda words: reply if "memory" in words else ScriptedRedis.info(**facts))[0] == 0


def test_a_redis_that_became_a_replica_is_asked_again_and_not_used():
    redis = ScriptedRedis()

    def refuse(words):
        redis.replies["INFO"] = redis.info(role="slave")
        return b"-READONLY You can't write against a read only replica.\r\n"
    redis.replies["SET"] = refuse
    try:
        assert said(redis.url, "begin", "a", "b") == (UNAVAILABLE, "redis 127.0.0.1:%d: a replica replied, not the primary; name the primary in the URL, or all hosts" % redis.port)
        assert [words[0] for words in redis.asked].count(b"SET") == 1
    finally:
        redis.stop()


# ---- a cluster of Redis -----------------------------------------------------

SLOTS = 16384


class ScriptedCluster:
    """Nodes of which each says the same about the slots: ranges of them, with the number of the node."""

    def __init__(self, *ranges, nodes=1):
        self.nodes = [ScriptedRedis(INFO=ScriptedRedis.info(cluster_enabled="1"), ASKING=b"+OK\r\n") for _ in range(nodes)]
        self.url = "redis+cluster://127.0.0.1:%d" % self.nodes[0].port
        for node in self.nodes:
            node.replies["CLUSTER"] = array(*[self.range(first, last, "127.0.0.1", self.nodes[at].port) for first, last, at in ranges])

    @staticmethod
    def range(first, last, host, port):
        return array(b":%d\r\n" % first, b":%d\r\n" % last, array(b"$-1\r\n" if host is None else bulk(host), b":%d\r\n" % port))

    def said(self, *words):
        code, text = said(self.url, *words)
        for at, node in enumerate(self.nodes):
            text = text.replace("127.0.0.1:%d" % node.port, "NODE%d" % at)
        return code, text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.stop()


@pytest.mark.parametrize("reply", [
    b":7\r\n", b"*0\r\n", b"-ERR This instance has cluster support disabled\r\n", array(b"*0\r\n"), array(array(b":0\r\n", b":9\r\n")), array(array(b":0\r\n", b":9\r\n", bulk("x"))),
    array(array(b":0\r\n", b":9\r\n", array(bulk("127.0.0.1")))), array(ScriptedCluster.range(-1, 9, "127.0.0.1", 1)), array(ScriptedCluster.range(0, SLOTS, "127.0.0.1", 1)),
    array(*[ScriptedCluster.range(i, i, "127.0.0.1", 1 + i) for i in range(600)])], ids=lambda reply: reply[:12].decode().split("\r")[0])
def test_a_cluster_whose_slots_cannot_be_read_is_unavailable(reply):
    with ScriptedCluster() as cluster:
        cluster.nodes[0].replies["CLUSTER"] = reply
        assert cluster.said("get", "a", "b") == (UNAVAILABLE, "redis: no node returned the slots of the cluster; are the nodes running?")


@pytest.mark.parametrize("host", [None, "", "?"])
def test_a_node_that_does_not_know_its_host_has_that_of_the_url(host):
    with ScriptedCluster() as cluster:
        cluster.nodes[0].replies["CLUSTER"] = array(cluster.range(0, SLOTS - 1, host, cluster.nodes[0].port))
        assert cluster.said("begin", "a", "b")[0] == 0 and b"SET" in [words[0] for words in cluster.nodes[0].asked]


def test_slots_that_nobody_owns_are_unavailable_and_the_others_are_not():
    with ScriptedCluster((0, 0, 0)) as cluster:
        code, text = cluster.said("get", "a", "b")
        assert code == UNAVAILABLE and re.fullmatch(r"redis: no node owns slot \d+ of the cluster", text)
    with ScriptedCluster((1, SLOTS - 1, 0)) as cluster:  # the owner of slot 0 has the clock
        assert cluster.said("get", "a", "b") == (UNAVAILABLE, "redis: no node owns slot 0 of the cluster")
        assert cluster.said("find", "b")[0] == UNAVAILABLE


def test_nodes_whose_clocks_differ_are_not_trusted_with_a_record():
    with ScriptedCluster((0, 0, 0), (1, SLOTS - 1, 1), nodes=2) as cluster:
        assert cluster.said("get", "a", "b")[0] == ABSENT
        cluster.nodes[1].replies["TIME"] = lambda words: ScriptedRedis.time(words, 40)
        assert cluster.said("get", "a", "b") == \
            (UNAVAILABLE, "redis: the clocks of NODE1 and NODE0 differ by more than 30 s: records would be dropped early")


def to(kind, host, node):
    """The reply that a key's slot is elsewhere."""
    return lambda words: b"-%s %d %s:%d\r\n" % (kind.encode(), binascii.crc_hqx(words[1], 0) % SLOTS, host.encode(), node.port)


def test_a_claim_follows_its_slot_to_another_node():
    for kind, host, last in (("MOVED", "127.0.0.1", [b"TIME", b"SET"]), ("MOVED", "", [b"TIME", b"SET"]), ("ASK", "127.0.0.1", [b"ASKING", b"SET"])):
        with ScriptedCluster((0, SLOTS - 1, 0), nodes=2) as cluster:
            cluster.nodes[0].replies["SET"] = to(kind, host, cluster.nodes[1])
            assert cluster.said("begin", "a", "b")[0] == 0
            assert [words[0] for words in cluster.nodes[1].asked][-2:] == last


def test_a_claim_that_is_sent_in_circles_or_nowhere_is_unavailable():
    with ScriptedCluster((0, SLOTS - 1, 0), nodes=2) as cluster:
        for at in (0, 1):
            cluster.nodes[at].replies["SET"] = to("MOVED", "127.0.0.1", cluster.nodes[1 - at])
        assert cluster.said("begin", "a", "b") == (UNAVAILABLE, "redis: sent from server to server, too often")
        for flaw in ("MOVED 1", "MOVED 1 here", "MOVED x 127.0.0.1:1", "MOVED 16384 127.0.0.1:1", "ASK 1", "MOVED 1 %s:1" % ("a" * 256)):
            cluster.nodes[0].replies["SET"] = b"-%s\r\n" % flaw.encode()
            code, text = cluster.said("begin", "a", "b")
            assert code == UNAVAILABLE and text[:200] == ("redis NODE0: " + flaw)[:200]


def test_a_replica_of_a_cluster_knows_the_slots_and_holds_no_records():
    with ScriptedCluster((0, SLOTS - 1, 1), nodes=2) as cluster:
        cluster.nodes[0].replies["INFO"] = ScriptedRedis.info(cluster_enabled="1", role="slave")
        assert cluster.said("begin", "a", "b")[0] == 0
        assert b"SET" not in [words[0] for words in cluster.nodes[0].asked] and b"SET" in [words[0] for words in cluster.nodes[1].asked]


# ---- Sentinels --------------------------------------------------------------

@pytest.mark.parametrize("reply,code,text", [
    (b"-ERR unknown command\r\n", UNSUPPORTED, "redis HERE: this is not a Sentinel: name the Sentinels' port (often 26379), or use redis://"),
    (b"$-1\r\n", UNSUPPORTED, 'redis HERE: this Sentinel monitors no primary named "m": name it as in its configuration'),
    (b"*0\r\n", UNSUPPORTED, 'redis HERE: this Sentinel monitors no primary named "m": name it as in its configuration'),
    (b"-NOAUTH Authentication required\r\n", UNAVAILABLE, "redis HERE: NOAUTH Authentication required; correct the user and password in the store's URL"),
    *[(reply, UNAVAILABLE, 'redis: 0 of 1 Sentinels name a primary "m", and more than half must name the same one; wait until they agree')
      for reply in (b":7\r\n", array(bulk("127.0.0.1")), array(b":1\r\n", b":1\r\n"), array(bulk("127.0.0.1"), b":1\r\n"), array(bulk("127.0.0.1"), bulk("0")))]])
def test_a_sentinel_that_names_no_primary_is_not_believed(reply, code, text):
    assert scripted("get", "a", "b", kind="redis+sentinel", options="/m", SENTINEL=reply) == (code, text)


def test_more_than_half_of_the_sentinels_must_name_the_same_primary():
    primary, other, *sentinels = [ScriptedRedis(INFO=ScriptedRedis.info(connected_slaves="1"), WAIT=b":1\r\n", AUTH=b"+OK\r\n", EVALSHA=array(b"$-1\r\n")) for _ in range(5)]
    url = "redis+sentinel://%s/m?sentinel_password=open" % ",".join("127.0.0.1:%d" % s.port for s in sentinels)
    names = lambda redis: array(bulk("127.0.0.1"), bulk(str(redis.port)))  # noqa: E731
    try:
        for sentinel, named in zip(sentinels, (primary, primary, other)):
            sentinel.replies["SENTINEL"] = names(named)
        assert said(url, "get", "a", "b")[0] == ABSENT
        assert b"EVALSHA" in [words[0] for words in primary.asked] and other.asked == []
        assert [b"AUTH", b"open"] in sentinels[0].asked and [b"AUTH", b"open"] not in primary.asked
        sentinels[1].replies["SENTINEL"] = b":7\r\n"
        assert said(url, "get", "a", "b") == (UNAVAILABLE, 'redis: 2 of 3 Sentinels name a primary "m", and more than half must name the same one; wait until they agree')
        sentinels[1].replies["AUTH"] = b"-WRONGPASS invalid username-password pair\r\n"
        assert said(url, "get", "a", "b")[0] == UNAVAILABLE
        sentinels[1].replies.update(AUTH=b"+OK\r\n", SENTINEL=names(primary))
        primary.replies["INFO"] = primary.info(role="slave")
        assert said(url, "get", "a", "b") == (UNAVAILABLE, "redis 127.0.0.1:%d: a replica replied, not the primary; name the primary in the URL, or all hosts" % primary.port)
    finally:
        for redis in (primary, other, *sentinels):
            redis.stop()
