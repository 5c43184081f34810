"""Wrong replies of a store's server: each must become an error, and never an answer that is not true. Waits more than it works."""
import pytest

from lib import SOAK, THOROUGH, run_c_test
from liar import Http, Liar, Resp
from servers import Etcd, Redis

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
