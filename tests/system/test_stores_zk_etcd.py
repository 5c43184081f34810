"""zookeeper:// and etcd:// against real servers: the contract, two engines on one
store, locks, faults, credentials, and how long records are kept. Waits more than it works."""
import base64
import hashlib
import os
import re
import signal
import subprocess
import time

import pytest

from chaos import Chaos, chunk_replies, frame_replies
from crowd import (Crowd, check_expiry_race, check_lease_ends, check_locks_and_scan, check_lost_is_lost,
                   check_waiting_is_woken, engines, wake_times)
from lib import IDEM, SOAK, Error, Server, check_store_in_trouble, folder, patient, run_c_test, wait_until
from servers import ETCD_VERSIONS, Etcd, Etcds, ZooKeeper, ZooKeepers

OPS = 50000 if SOAK else 1000
DIFFERENTIAL_OPS = 100000 if SOAK else 20000
START = {"zookeeper": ZooKeeper, "etcd": Etcd}
REPLIES = {"zookeeper": frame_replies, "etcd": chunk_replies}


@pytest.fixture(scope="module", params=["zookeeper", "etcd"])
def store(request):
    server = START[request.param]()
    server.kind = request.param
    yield server
    server.stop()


@pytest.fixture(scope="module", params=ETCD_VERSIONS)
def etcd(request):
    server = Etcd(version=request.param)
    yield server
    server.stop()


def through(store, chaos, options=""):
    return "%s://127.0.0.1:%d%s" % (store.kind, chaos.port, options)


# ---- the contract ----------------------------------------------------------

def test_contract(store):
    run_c_test("contract_test", store.url)


def test_the_newer_etcd_keeps_the_contract():
    server = Etcd(version="etcd-3.5")
    try:
        run_c_test("contract_test", server.url)
        run_c_test("differential_test", server.url, IDEM_TEST_OPS=2000)
    finally:
        server.stop()


def test_differential(store):
    run_c_test("differential_test", store.url, IDEM_TEST_OPS=DIFFERENTIAL_OPS)


def test_what_expired_long_ago_is_swept_and_executing_is_not(store):
    run_c_test("sweep_test", store.url + "/sweep-" + os.urandom(3).hex())


def test_memory_and_calls_of_the_kernel_fail(store):
    """ZooKeeper's library ends the process when the kernel gives it no file, so that its calls are only interrupted or cut short."""
    check_store_in_trouble(store.url, kinds={"zookeeper": "34", "etcd": "234"}[store.kind])


# ---- several engines -------------------------------------------------------

def test_zookeeper_rests_after_a_pass_over_its_shards():
    """Also if the last shard has a record: an engine then went on without a rest."""
    def calm():
        received = lambda: int(re.search(r"Received: (\d+)", server.says("srvr")).group(1))
        before = received()
        time.sleep(1)
        return received() - before < 20

    name = next(n for n in map(str, range(9999)) if hashlib.sha256(b"\1\0\1s\0%c%s" % (len(n), n.encode())).digest()[0] == 0xff)
    server = ZooKeeper()
    try:
        with engines(server.url, 1) as (one,):
            client = one.client()
            fence = client("BEGIN", "s", name)[1]
            assert client("FINISH", "s", name, fence, "SUCCEEDED", "done")[0] == "ok"
            time.sleep(1)
            assert wait_until(calm, 25)
    finally:
        server.stop()


def test_two_engines_behave_as_one(store):
    with engines(store.url) as servers:
        Crowd(servers).run(OPS).check()


def test_a_duplicate_that_waits_at_another_engine_is_woken(store):
    with engines(patient(store.url)) as servers:
        check_waiting_is_woken(*servers)


def test_locks_and_scan_work_across_engines(store):
    with engines(patient(store.url)) as servers:
        check_locks_and_scan(*servers)


def test_leases_and_expiry_are_the_same_for_every_engine(store):
    with engines(patient(store.url)) as servers:
        check_lease_ends(*servers)
        if store.kind != "etcd":  # there everything expires a minute late
            check_expiry_race(*servers)


def test_a_result_that_is_too_large_is_done_but_not_replayable(store):
    with folder() as where, Server(where, "--max-result", str(2 << 20), store=patient(store.url)) as idem:
        client = idem.client()
        name = os.urandom(4).hex()
        fence = client("BEGIN", "large", name)[1]
        done = client("FINISH", "large", name, fence, "SUCCEEDED", "x" * (3 << 19))
        assert done[0] == "ok", done
        again = client("BEGIN", "large", name)
        assert again[0] == "replay" and again[4] is None


# ---- faults ----------------------------------------------------------------

@pytest.mark.parametrize("kind", ["zookeeper", "etcd"])
def test_killed_and_restarted_and_stopped_under_load(kind):
    server = START[kind]()

    def trouble():
        time.sleep(0.7)
        server.kill()
        time.sleep(0.3)
        server.start()
        time.sleep(0.7)
        server.send(signal.SIGSTOP)
        time.sleep(2.5)
        server.send(signal.SIGCONT)
        time.sleep(0.5)

    try:
        with engines(server.url) as servers:
            crowd = Crowd(servers, patience=60).run(OPS, meanwhile=trouble)
            crowd.check()
            assert 1 < crowd.longest_pause() < 30  # it was away, and came back
    finally:
        server.stop()


@pytest.mark.parametrize("kind", ["zookeeper", "etcd"])
def test_the_leader_of_three_is_killed_under_load(kind):
    cluster = {"zookeeper": ZooKeepers, "etcd": Etcds}[kind]()

    def fail_over():
        time.sleep(0.7)
        leader = wait_until(cluster.leader, 60, 0.1)  # they may be choosing one
        leader.kill()
        assert wait_until(cluster.leader, 60, 0.1)
        time.sleep(0.5)

    try:
        with engines(cluster.url) as servers:
            crowd = Crowd(servers, patience=60).run(OPS // 2, meanwhile=fail_over)
            crowd.check()
            assert crowd.longest_pause() < 30
    finally:
        cluster.stop()


def test_away_is_said_at_once_and_it_comes_back(store):
    chaos = Chaos(store.port, REPLIES[store.kind])
    try:
        with folder() as where, Server(where, store=through(store, chaos)) as idem:
            client = idem.client()
            name = os.urandom(4).hex()
            assert client("BEGIN", name, "1", "LEASE", 600000)[0] == "started"
            chaos.refuse()
            chaos.close_pairs()
            assert wait_until(lambda: getattr(client("BEGIN", name, "2"), "word", "")
                              == "UNAVAILABLE")
            start = time.monotonic()
            answers = [client("BEGIN", name, "away-%d" % i) for i in range(100)]
            assert {getattr(a, "word", "an answer") for a in answers} == {"UNAVAILABLE"}
            assert time.monotonic() - start < 20
            chaos.heal()
            assert wait_until(lambda: not isinstance(client("BEGIN", name, "3"), Error))
            assert client("BEGIN", name, "1")[0] == "busy"
    finally:
        chaos.stop()


def test_cut_at_the_nth_reply_whatever_n_is(store):
    chaos = Chaos(store.port, REPLIES[store.kind])

    def sure(client, *words):
        """As a client does: again, while it is an error."""
        found = wait_until(lambda: [a for a in [client(*words)] if not isinstance(a, Error)])
        assert found, words
        return found[0]

    try:
        with folder() as where, Server(where, store=through(store, chaos)) as idem:
            client = idem.client()
            scope = os.urandom(4).hex()
            for n in range(1, 11):
                chaos.cut_at(n)
                for i in range(2):
                    id, nonce = "%d-%d" % (n, i), os.urandom(8).hex()
                    answer = sure(client, "BEGIN", scope, id, "NONCE", nonce)
                    assert answer[0] == "started", (n, i, answer)
                    done = sure(client, "FINISH", scope, id, answer[1], "SUCCEEDED", id)
                    assert done[0] == "ok", (n, i, done)
                    again = sure(client, "BEGIN", scope, id)
                    assert again[0] == "replay" and again[4] == id
            assert chaos.cuts >= 5
    finally:
        chaos.stop()


def test_what_may_have_been_stored_is_never_said_not_to_be(store):
    chaos = Chaos(store.port, REPLIES[store.kind])
    try:
        with folder() as where, Server(where, store=through(store, chaos)) as idem:
            check_lost_is_lost(idem, chaos)
    finally:
        chaos.stop()


def test_replies_lost_after_they_took_effect(store):
    chaos = Chaos(store.port, REPLIES[store.kind])

    def lose():
        for _ in range(2):
            time.sleep(0.5)
            before = chaos.swallowed
            chaos.swallow()
            wait_until(lambda: chaos.swallowed > before, 10)  # it may be between two attempts to connect
            time.sleep(0.8)
            chaos.heal()

    try:
        with engines(through(store, chaos, "?timeout_ms=500")) as servers:
            Crowd(servers, patience=60).run(OPS, meanwhile=lose).check()
            assert chaos.swallowed > 0
    finally:
        chaos.stop()


# ---- credentials -----------------------------------------------------------

def test_zookeeper_nodes_belong_to_who_made_them():
    server = ZooKeeper()
    try:
        mine = "zookeeper://ann:s3cret@127.0.0.1:%d/mine" % server.port
        with folder() as where, Server(where, store=patient(mine)) as idem:
            assert idem.client()("BEGIN", "a", "b")[0] == "started"
        other = subprocess.run([IDEM, "begin", "a", "b", "--store",
                                "zookeeper://bob:hunter2@127.0.0.1:%d/mine" % server.port],
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert "not authenticated" in other.stdout and "hunter2" not in other.stdout
        run_c_test("store_alloc_test", mine, IDEM_TEST_RUNS=10)  # also without memory for the password
    finally:
        server.stop()


@pytest.mark.parametrize("version", ETCD_VERSIONS)
def test_an_etcd_without_space_takes_no_new_claims_and_finishes_what_it_has(version):
    etcd = Etcd("--quota-backend-bytes=4000000", version=version)
    word = lambda answer: answer.word if isinstance(answer, Error) else answer[0]  # noqa: E731
    try:
        with folder() as where, Server(where, store=patient(etcd.url)) as idem:
            c = idem.client()
            fences = [c("BEGIN", "a", str(i))[1] for i in range(40)]
            assert c("FINISH", "a", "39", fences[39], "SUCCEEDED", "kept")[0] == "ok"
            with pytest.raises(OSError):  # HTTP says that it is refused
                for i in range(1000):
                    etcd.post("/v3/kv/put", {"key": base64.b64encode(b"filler%d" % i).decode(),
                                             "value": base64.b64encode(b"x" * 200000).decode()})
            assert wait_until(lambda: etcd.post("/v3/maintenance/alarm", {"action": "GET"}).get("alarms"))
            for i in range(10):
                assert word(c("RENEW", "a", str(i), fences[i], 60000)) == "ok"
                assert word(c("FINISH", "a", str(i), fences[i], "SUCCEEDED", "x" * 1000)) == "ok"
                assert word(c("RELEASE", "a", str(i + 20), fences[i + 20])) == "ok"
            assert {word(c("BEGIN", "new", str(i))) for i in range(50)} == {"FULL"}
            assert c("BEGIN", "a", "39")[4] == "kept" and word(c("BEGIN", "a", "38")) == "busy"
            assert "can still finish" in idem.output()
            done = etcd.post("/v3/kv/deleterange", {"key": base64.b64encode(b"filler").decode(),
                                                    "range_end": base64.b64encode(b"filles").decode()})
            etcd.post("/v3/kv/compaction", {"revision": done["header"]["revision"], "physical": True})
            etcd.post("/v3/maintenance/defragment", {})
            for alarm in etcd.post("/v3/maintenance/alarm", {"action": "GET"})["alarms"]:
                etcd.post("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
            assert wait_until(lambda: word(c("BEGIN", "new", os.urandom(8).hex())) == "started")
    finally:
        etcd.stop()


@pytest.mark.parametrize("version", ETCD_VERSIONS)
def test_etcd_with_users_and_passwords(version):
    server = Etcd(version=version)
    try:
        server.post("/v3/auth/user/add", {"name": "root", "password": "r00t"})
        server.post("/v3/auth/role/add", {"name": "root"})
        server.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        server.post("/v3/auth/enable", {})
        with engines(patient("etcd://root:r00t@127.0.0.1:%d" % server.port)) as idems:
            times = wake_times(*idems, rounds=9)
            assert times[4] < 0.02, times  # the watch logs in too
        wrong = subprocess.run([IDEM, "get", "a", "b", "--store",
                                "etcd://root:hunter2@127.0.0.1:%d" % server.port],
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert wrong.returncode != 0 and "authentication failed" in wrong.stdout
        assert "hunter2" not in wrong.stdout
    finally:
        server.stop()


def test_etcd_over_tls_trusts_only_its_authority():
    with folder() as where:
        ca, key = os.path.join(where, "cert.pem"), os.path.join(where, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-keyout", key, "-out", ca], check=True, stderr=subprocess.DEVNULL)
        server = Etcd("--cert-file", ca, "--key-file", key, scheme="https")
        try:
            url = "etcd://127.0.0.1:%d" % server.port
            with engines(patient(url + "?ca=" + ca)) as idems:
                times = wake_times(*idems, rounds=9)
                assert times[4] < 0.02, times  # the watch is encrypted too
            for options in ("", "?tls=1"):
                refused = subprocess.run([IDEM, "get", "a", "b", "--store", url + options],
                                         text=True, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT)
                assert refused.returncode not in (0, 1), refused.stdout
        finally:
            server.stop()


@pytest.mark.parametrize("names", [
    ["+settings/%d" % i for i in range(150)],  # before every key of a record
    ["8/%064x" % i for i in range(150)] + ["81/%d" % i for i in range(150)],  # two idems with the prefixes idem/8 and idem/81
    ["8\x7f", "8f", "9z%s" % ("x" * 500)] + ["ff/%d" % i for i in range(150)] + ["zz-%d" % i for i in range(150)],  # up to the last
    ["%064x/%d" % (0x10 << 248, i) for i in range(150)] + ["%s-%d" % ("f" * 64, i) for i in range(150)]])  # the name of a record goes on
def test_a_scan_of_etcd_goes_past_the_keys_of_other_programs(names):
    """More of them in a row than a page has: the scan then began at the same key again, without end."""
    server = Etcd()
    put = lambda name: server.post("/v3/kv/put", {"key": base64.b64encode(b"idem/" + name.encode()).decode(), "value": "eA=="})  # noqa: E731
    try:
        with folder() as where, Server(where, store=patient(server.url)) as idem, idem.client() as client:
            for i in range(40):
                assert client("BEGIN", "s", str(i))[0] == "started"
            for name in names:
                put(name)
            found = {}
            for count in (7, 1000):
                cursor, calls, found[count] = "0", 0, []
                while calls == 0 or cursor != "0":
                    answer = client("SCAN", cursor, "COUNT", count)
                    cursor, calls = answer[1], calls + 1
                    found[count] += [r[r.index("id") + 1] for r in answer[2:]]
                    assert calls < 200
                assert sorted(found[count]) == sorted(map(str, range(40))), (count, calls)
            done = subprocess.run([IDEM, "store", "copy", server.url, "journal:" + where + "/copy"], text=True, capture_output=True, timeout=30)
            assert done.returncode == 0 and "40 records" in done.stdout + done.stderr, done
            for cursor in (".", ".g", ".A", ".0x", "." + 65 * "0", "8", "x"):
                assert client("SCAN", cursor).word == "ERR", cursor
    finally:
        server.stop()


# ---- how long etcd keeps a record ------------------------------------------

def test_etcd_keeps_what_executes_and_leases_the_rest(etcd):
    import base64
    with folder() as where, Server(where, store=patient(etcd.url + "/leased")) as idem:
        client = idem.client()
        fence = client("BEGIN", "a", "b", "TTL", 120000)[1]
        whole = {"key": base64.b64encode(b"leased/").decode(),
                 "range_end": base64.b64encode(b"leased0").decode()}
        assert "lease" not in etcd.post("/v3/kv/range", whole)["kvs"][0]
        client("FINISH", "a", "b", fence, "SUCCEEDED", "x")
        lease = etcd.post("/v3/kv/range", whole)["kvs"][0]["lease"]
        ttl = int(etcd.post("/v3/lease/timetolive", {"ID": lease})["TTL"])
        assert 120 + 50 < ttl <= 120 + 60 + 24  # a minute of margin, and a span
        etcd.post("/v3/lease/revoke", {"ID": lease})  # an operator's mistake
        fence = client("BEGIN", "a", "c", "TTL", 120000)[1]
        assert client("FINISH", "a", "c", fence, "SUCCEEDED", "x")[0] == "ok"
