"""idem serve over RESP: verdicts, order, waiting, clients that vanish, rights, lifecycle."""
import json
import os
import selectors
import signal
import subprocess
import threading
import time

import pytest
import redis

import servers
from lib import IDEM, SANITIZED, Process, Resp, Server, encode, folder, free_port, patient, wait_until

NONCE = "0102030405060708"


@pytest.fixture(scope="module")
def server():
    with folder() as where, Server(where, listen=True) as s:
        yield s


@pytest.fixture
def c(server):
    with server.client() as client:
        yield client


names = iter(range(10 ** 9))


@pytest.fixture
def key():
    """A scope and id that no other test uses."""
    return "test-%d" % next(names), "id"


def begin(c, key, *more):
    answer = c("BEGIN", *key, *more)
    assert answer[0] == "started", answer
    return answer[1]


# ---- every verdict of the state machine ------------------------------------

def test_a_started_record_is_busy_then_replayed(c, key):
    fence = begin(c, key)
    busy = c("BEGIN", *key)
    assert busy[0] == "busy" and 0 < busy[1] <= 30000
    ok = c("FINISH", *key, fence, "SUCCEEDED", b"\x00\xffresult")
    assert ok[0] == "ok" and ok[1] > time.time() * 1000
    assert c("BEGIN", *key) == ["replay", "succeeded", "raw", ok[1], b"\x00\xffresult"]
    assert c("FINISH", *key, fence, "SUCCEEDED", b"\x00\xffresult") == ok
    assert c("FINISH", *key, fence, "FAILED", "other")[:3] == ["finished", "succeeded", "raw"]
    assert c("FINISH", *key, fence - 1, "FAILED", "other") == ["stale"]


def test_a_strict_failure_is_an_answer_and_a_loose_one_is_not(c, key):
    assert c("FINISH", *key, begin(c, key), "FAILED", "no")[0] == "ok"
    assert c("BEGIN", *key)[:3] == ["replay", "failed", "raw"]
    loose = (key[0], "loose")
    first = begin(c, loose, "LOOSE")
    assert c("FINISH", *loose, first, "FAILED", "no")[0] == "ok"
    assert begin(c, loose, "LOOSE") > first


def test_another_fingerprint_outranks_busy(c, key):
    begin(c, key, "FP", "aa" * 32)
    assert c("BEGIN", *key, "FP", "AA" * 32)[0] == "busy"
    assert c("BEGIN", *key, "FP", "bb" * 32) == ["mismatch"]


def test_a_resent_begin_finds_itself(c, key):
    fence = begin(c, key, "NONCE", NONCE)
    assert begin(c, key, "NONCE", NONCE) == fence
    assert c("RELEASE", *key, fence) == ["ok"]
    assert c("BEGIN", *key, "NONCE", NONCE) == ["stale"]
    assert begin(c, key) > fence


def test_a_lease_that_is_over_means_doubt_when_strict(c, key):
    fence = begin(c, key, "LEASE", 40)
    time.sleep(0.1)
    doubt = c("BEGIN", *key)
    assert doubt[0] == "doubt" and abs(doubt[1] - time.time() * 1000) < 60000
    assert c("SETTLE", *key)[0] == "doubt"
    assert c("FINISH", *key, fence, "SUCCEEDED", "late")[0] == "ok"


def test_a_lease_that_is_over_is_taken_over_when_loose(c, key):
    fence = begin(c, key, "LEASE", 40, "LOOSE")
    time.sleep(0.1)
    assert begin(c, key, "LOOSE") > fence
    assert c("FINISH", *key, fence, "SUCCEEDED", "zombie") == ["stale"]


def test_renew_keeps_a_lease(c, key):
    fence = begin(c, key, "LEASE", 100)
    ok = c("RENEW", *key, fence, 60000)
    assert ok[0] == "ok" and ok[1] > time.time() * 1000 + 30000
    time.sleep(0.15)
    assert c("BEGIN", *key)[0] == "busy"
    assert c("RENEW", *key, fence + 1, 60000) == ["stale"]


def test_settle_plants_a_tombstone_and_decides_a_doubt(c, key):
    settled = c("SETTLE", *key, "REASON", "gone")
    assert settled[:2] == ["settled", "failed"] and settled[2] > time.time() * 1000
    assert c("BEGIN", *key)[:3] == ["replay", "failed", "raw"] and c("BEGIN", *key)[4] == "gone"
    other = (key[0], "doubtful")
    fence = begin(c, other, "LEASE", 4000)
    assert c("SETTLE", *other, "AS", "SUCCEEDED", "it was")[0] == "busy"
    settled = wait_until(lambda: (lambda a: a[0] != "busy" and a)(
        c("SETTLE", *other, "AS", "SUCCEEDED", "it was", "REASON", "looked")))
    assert settled[:2] == ["settled", "succeeded"]
    assert c("FINISH", *other, fence, "FAILED", "") == ["stale"]
    assert c("BEGIN", *other)[-1] == "it was"


def test_get_shows_every_field(c, key):
    assert c("GET", *key) == ["absent"]
    fence = begin(c, key, "FP", "ab" * 32, "SUBJECT", "me", "LOOSE")
    answer = c("GET", *key)
    assert answer[0] == "record"
    fields = dict(zip(answer[1::2], answer[2::2]))
    assert list(fields) == ("type scope id state mode kind fence attempt created updated lease_until expires "
                            "subject fingerprint replayable settled redeemed result").split()
    assert (fields["type"], fields["scope"], fields["id"]) == ("request", *key)
    assert (fields["state"], fields["mode"], fields["kind"]) == ("executing", "loose", "raw")
    assert (fields["fence"], fields["attempt"], fields["subject"]) == (fence, 1, "me")
    assert (fields["fingerprint"], fields["replayable"], fields["result"]) == ("ab" * 32, 1, "")
    c("SETTLE", key[0], "settled")
    token = c("ISSUE", key[0])[1]
    c("REDEEM", token, key[0])
    for id_, name in ("settled", "settled"), (token, "redeemed"):
        fields = c("GET", key[0], id_)
        fields = dict(zip(fields[1::2], fields[2::2]))
        assert {n: fields[n] for n in ("settled", "redeemed")} == {"settled": 0, "redeemed": 0, name: 1}


def test_a_result_too_large_to_keep_is_null(c, key):
    fence = begin(c, key)
    assert c("FINISH", *key, fence, "SUCCEEDED", "ignored", "NOREPLAY", "KIND", "http")[0] == "ok"
    assert c("BEGIN", *key)[1:3] == ["succeeded", "http"] and c("BEGIN", *key)[4] is None


def test_forget_lets_it_run_again(c, key):
    fence = begin(c, key)
    c("FINISH", *key, fence, "SUCCEEDED", "x")
    assert c("FORGET", *key) == ["ok"]
    assert begin(c, key) > fence
    assert c("FORGET", key[0], "never") == ["absent"]


def test_tokens_are_redeemed_once(c, key):
    issued = c("ISSUE", key[0], "COUNT", 3, "TTL", 60000)
    assert issued[0] == "issued" and len(set(issued[1:])) == 3
    assert all(len(t) == 32 for t in issued[1:])
    token = issued[1]
    assert c("REDEEM", token, "somebody else") == ["unknown"]
    assert c("REDEEM", token, key[0], "NONCE", NONCE) == ["redeemed"]
    assert c("REDEEM", token, key[0], "NONCE", NONCE) == ["redeemed"]
    assert c("REDEEM", token, key[0]) == ["duplicate"]
    fresh = c("REDEEM", issued[2], key[0], "NEXT")
    assert fresh[0] == "redeemed" and len(fresh[1]) == 32
    assert c("REDEEM", fresh[1], key[0]) == ["redeemed"]
    assert c("REDEEM", "nonsense", key[0], "NEXT") == ["unknown"]


def test_an_idempotent_token_carries_a_whole_request(c, key):
    """FINISH, GET and the others find the token's record by the same scope and id."""
    subject = key[0]
    token, other, third = c("ISSUE", subject, "COUNT", 3)[1:]
    assert c("BEGIN", subject, "no-such-token", "TOKEN") == ["unknown"]
    fence = begin(c, (subject, token), "TOKEN")
    assert c("BEGIN", subject, token, "TOKEN")[0] == "busy"
    assert c("RENEW", subject, token, fence, 30000)[0] == "ok"
    assert c("FINISH", subject, token, fence, "SUCCEEDED", "done")[0] == "ok"
    assert c("BEGIN", subject, token, "TOKEN")[0] == "replay"
    assert c("GET", subject, token)[2] == "token"
    assert c("RELEASE", subject, token, fence) == ["stale"]
    assert c("SETTLE", subject, other)[:2] == ["settled", "failed"]
    assert c("BEGIN", subject, other, "TOKEN")[:2] == ["replay", "failed"]
    assert c("GET", subject, other)[2] == "token"
    assert c("FORGET", subject, third) == ["ok"]
    assert c("BEGIN", subject, third, "TOKEN") == ["unknown"]


def test_locks(c, key):
    name = key[0]
    fence = c("LOCK", name, "a", 30000)[1]
    assert c("LOCK", name, "a", 30000)[:2] == ["started", fence]
    assert c("LOCK", name, "b", 30000)[0] == "busy"
    assert c("UNLOCK", name, fence + 1) == ["stale"]
    assert c("UNLOCK", name, fence) == ["ok"]
    assert c("LOCK", name, "b", 30000)[1] > fence


def test_scan_goes_round(c, key):
    for i in range(25):
        begin(c, (key[0], "r%d" % i), "LEASE", 60 if i < 5 else 60000)
    seen, cursor, calls = set(), "0", 0
    while True:
        answer = c("SCAN", cursor, "SCOPE", key[0], "COUNT", 7)
        assert answer[0] == "records"
        for record in answer[2:]:
            fields = dict(zip(record[::2], record[1::2]))
            assert fields["state"] == "executing" and "result" not in fields
            seen.add(fields["id"])
        cursor, calls = answer[1], calls + 1
        if cursor == "0":
            break
        assert calls < 10000
    assert len(seen) == 25
    time.sleep(0.1)
    doubts = [a for a in c("SCAN", "0", "SCOPE", key[0], "DOUBT", "TYPE", "request", "STATE", "executing",
                           "COUNT", 1000)[2:]]
    assert len(doubts) <= 5  # a page; the rest may stand behind the cursor
    assert c("SCAN", "0", "SCOPE", key[0], "STATE", "succeeded", "COUNT", 1000)[2:] == []


def test_every_verdict_survives_kill_and_restart():
    with folder() as where:
        with Server(where) as s, s.client() as c:
            done = begin(c, ("k", "done"))
            c("FINISH", "k", "done", done, "SUCCEEDED", "result")
            c("FINISH", "k", "failed", begin(c, ("k", "failed")), "FAILED", "why")
            held = begin(c, ("k", "held"), "NONCE", NONCE)
            freed = begin(c, ("k", "freed"))
            c("RELEASE", "k", "freed", freed)
            c("SETTLE", "k", "settled")
            token, redeemed = c("ISSUE", "k", "COUNT", 2)[1:]
            c("REDEEM", redeemed, "k")
            lock = c("LOCK", "name", "me", 60000)[1]
            begin(c, ("k", "doubt"), "LEASE", 50)
            s.kill()
        with Server(where) as s, s.client() as c:
            assert c("BEGIN", "k", "done")[:2] == ["replay", "succeeded"]
            assert c("BEGIN", "k", "done")[4] == "result"
            assert c("FINISH", "k", "done", done, "SUCCEEDED", "result")[0] == "ok"
            assert c("FINISH", "k", "done", done, "SUCCEEDED", "other")[0] == "finished"
            assert c("BEGIN", "k", "failed")[:2] == ["replay", "failed"]
            assert c("BEGIN", "k", "held")[0] == "busy"
            assert begin(c, ("k", "held"), "NONCE", NONCE) == held
            assert c("FINISH", "k", "held", held, "SUCCEEDED", "")[0] == "ok"
            assert begin(c, ("k", "freed")) > freed
            assert c("BEGIN", "k", "settled")[:2] == ["replay", "failed"]
            assert c("REDEEM", redeemed, "k") == ["duplicate"]
            assert c("REDEEM", token, "k") == ["redeemed"]
            assert c("LOCK", "name", "you", 1000)[0] == "busy"
            assert c("UNLOCK", "name", lock) == ["ok"]
            assert wait_until(lambda: c("BEGIN", "k", "doubt")[0] == "doubt")


# ---- order, tags, pipelines ------------------------------------------------

def test_a_pipeline_is_answered_in_order(c, key):
    count = 3000
    out = b"".join(encode("BEGIN", key[0], "p%d" % (i // 2)) + encode("PING", i) for i in range(count))
    threading.Thread(target=c.raw, args=(out,), daemon=True).start()
    for i in range(count):
        assert c.read()[0] == ("busy" if i % 2 else "started")
        assert c.read() == str(i)


def test_long_answers_in_a_pipeline_come_whole_to_a_late_reader(c, key):
    text = "".join(chr(97 + i % 26) for i in range(100000))
    for i in range(4):
        fence = begin(c, (key[0], "l%d" % i))
        c("FINISH", key[0], "l%d" % i, fence, "SUCCEEDED", text[i:])
    for turn in range(3):
        tagged = [i for i in range(60) if i % 3 == 0]
        c.raw(b"".join(encode("BEGIN", key[0], "l%d" % (i % 4), *(("TAG", i) if i in tagged else ())) for i in range(60)))
        time.sleep(0.2 * turn)  # so that the socket is full by then
        in_order = iter([i for i in range(60) if i not in tagged])
        for _ in range(60):
            answer = c.read()
            i = answer[1] if answer[0] == "tag" else next(in_order)
            if answer[0] == "tag":
                tagged.remove(i)
                answer = answer[2:]
            assert answer[0] == "replay" and answer[4] == text[i % 4:]
        assert not tagged and c("PING") == "PONG"


def test_tagged_answers_overtake_and_untagged_keep_their_order(c, key):
    fence = begin(c, key)
    c.send("BEGIN", *key, "WAIT", 20000, "TAG", 7)
    c.send("PING", "first")
    c.send("GET", *key, "TAG", 2 ** 53 - 1)
    c.send("PING", "second", "TAG", 0)
    c.send("BEGIN", key[0], "", "TAG", 9)
    answers = [c.read() for _ in range(4)]
    assert "first" in answers
    assert ["tag", 0, "second"] in answers
    assert [a[:3] for a in answers if a[:2] == ["tag", 2 ** 53 - 1]] == [["tag", 2 ** 53 - 1, "record"]]
    assert [a[:4] for a in answers if a[:2] == ["tag", 9]] == [["tag", 9, "error", "ERR"]]
    c.send("FINISH", *key, fence, "SUCCEEDED", "r")
    answers = [c.read(), c.read()]
    assert ["ok"] in [a[:1] for a in answers]
    assert ["tag", 7, "replay", "succeeded", "raw"] in [a[:5] for a in answers]


def test_a_waiting_begin_holds_up_only_its_own_connection(server, c, key):
    fence = begin(c, key)
    with server.client() as other:
        other.send("BEGIN", *key, "WAIT", 20000)
        other.send("PING")
        assert c("PING") == "PONG"
        assert c("FINISH", *key, fence, "SUCCEEDED", "r")[0] == "ok"
        assert other.read()[0] == "replay"
        assert other.read() == "PONG"


def test_a_wait_that_ends_is_busy(c, key):
    begin(c, key)
    start = time.monotonic()
    assert c("BEGIN", *key, "WAIT", 150)[0] == "busy"
    assert 0.1 < time.monotonic() - start < 5


def test_words_in_any_case_and_inline_commands(c):
    c.raw(b"ping\r\nPiNg \"two words\"\r\n\r\n*0\r\n*-1\r\nbegin inline \"id 1\" strict\n")
    assert c.read() == "PONG"
    assert c.read() == "two words"
    assert c.read()[0] == "started"


# ---- clients that vanish ---------------------------------------------------

def test_a_waiter_that_left_takes_no_start(server, c, key):
    fence = begin(c, key)
    with server.client() as gone:
        gone.send("BEGIN", *key, "WAIT", 60000)
        assert wait_until(lambda: "parked:1" in c("INFO"))
    assert wait_until(lambda: "parked:0" in c("INFO"))
    assert c("RELEASE", *key, fence) == ["ok"]
    assert begin(c, key) > fence


def test_starts_are_given_back_even_while_the_queue_is_full():
    """More of them at once than the engine takes: the rest goes back a moment later, and nothing comes into doubt."""
    with folder() as where, Server(where, "--max-queue", "16") as s, s.client() as c:
        assert c("BEGIN", "s", "held")[0] == "started"
        one = s.client()
        one.send("BEGIN", "s", "held", "WAIT", 60000)  # its answer comes before those of all that follow
        for i in range(0, 200, 8):
            one.raw(b"".join(encode("BEGIN", "s", "k%d" % k, "LEASE", 1000) for k in range(i, i + 8)))
            assert wait_until(lambda: c("GET", "s", "k%d" % (i + 7))[0] == "record")
        one.close()
        assert wait_until(lambda: "returned_starts:200" in c("INFO"))
        states = [dict(zip(got[1::2], got[2::2]))["state"] for got in (c("GET", "s", "k%d" % k) for k in range(200))]
        assert set(states) == {"free"}


def test_a_start_that_could_not_be_delivered_is_given_back(server, c, key):
    """The client's window is full of unread replies; then it resets the connection."""
    big = (key[0], "big")
    c("FINISH", *big, begin(c, big), "SUCCEEDED", b"x" * 900000)
    gone = server.client()
    gone.raw(encode("GET", *big) * 12 + encode("BEGIN", *key))
    assert wait_until(lambda: c("GET", *key)[0] == "record")
    assert c("BEGIN", *key)[0] == "busy"
    gone.close()
    assert wait_until(lambda: c("BEGIN", *key)[0] == "started")


def test_a_start_with_a_nonce_is_kept_for_its_owner(server, c, key):
    big = (key[0], "big")
    c("FINISH", *big, begin(c, big), "SUCCEEDED", b"x" * 900000)
    gone = server.client()
    gone.raw(encode("GET", *big) * 12 + encode("BEGIN", *key, "NONCE", NONCE))
    assert wait_until(lambda: c("GET", *key)[0] == "record")
    gone.close()
    time.sleep(0.3)
    assert c("BEGIN", *key)[0] == "busy"
    assert c("BEGIN", *key, "NONCE", NONCE)[0] == "started"


# ---- a thousand duplicates -------------------------------------------------

def crowd(server, count, *args):
    """So many connections, each having sent the same command."""
    clients = [server.client(timeout=60) for _ in range(count)]
    send_all(clients, *args)
    return clients


def send_all(clients, *args):
    for client in clients:
        client.send(*args)


def parked(c, count):
    return wait_until(lambda: "parked:%d\r" % count in c("INFO"), 30)


CROWD = 200 if SANITIZED else 1000


def test_a_thousand_duplicates_get_the_same_bytes(server, c, key):
    clients = crowd(server, CROWD, "BEGIN", *key, "WAIT", 60000)
    try:
        assert parked(c, CROWD - 1)
        started = [s for s in clients if select_ready(s)]
        assert len(started) == 1
        fence = started[0].read()[1]
        result = os.urandom(300)
        began = time.monotonic()
        started[0].send("FINISH", *key, fence, "SUCCEEDED", result)
        others = [s.read() for s in clients if s is not started[0]]
        took = time.monotonic() - began
        assert started[0].read()[0] == "ok"
        assert len(others) == CROWD - 1
        assert all(a[:3] == ["replay", "succeeded", "raw"] and a[4] == result for a in others)
        assert took < 10, took
    finally:
        for s in clients:
            s.close()


def select_ready(client):
    with selectors.DefaultSelector() as s:
        s.register(client.socket, selectors.EVENT_READ)
        return bool(s.select(0))


def test_when_the_holder_dies_a_strict_crowd_is_in_doubt(server, c, key):
    clients = [server.client(timeout=60) for _ in range(CROWD // 2)]
    with server.client() as holder:
        begin(holder, key, "LEASE", 6000)
        send_all(clients, "BEGIN", *key, "WAIT", 60000)
        assert parked(c, CROWD // 2)
    try:
        assert [s.read()[0] for s in clients] == ["doubt"] * len(clients)
    finally:
        for s in clients:
            s.close()


def test_when_the_holder_dies_one_of_a_loose_crowd_starts(server, c, key):
    clients = [server.client(timeout=60) for _ in range(CROWD // 2)]
    with server.client() as holder:
        begin(holder, key, "LEASE", 6000, "LOOSE")
        send_all(clients, "BEGIN", *key, "LOOSE", "WAIT", 60000)
        assert parked(c, CROWD // 2)
    try:
        assert wait_until(lambda: any(select_ready(s) for s in clients))
        time.sleep(0.2)
        started = [s for s in clients if select_ready(s)]
        assert len(started) == 1
        fence = started[0].read()[1]
        assert c("FINISH", *key, fence, "SUCCEEDED", "second")[0] == "ok"
        assert {s.read()[4] for s in clients if s is not started[0]} == {"second"}
    finally:
        for s in clients:
            s.close()


# ---- ordinary Redis tools --------------------------------------------------

def test_redis_cli_works(server):
    def cli(*args):
        return subprocess.run(["redis-cli", "-s", server.socket, *args], capture_output=True, text=True, timeout=60)

    assert cli("PING").stdout == "PONG\n"
    assert cli("BEGIN", "cli", "1").stdout.startswith("started\n")
    assert cli("-p", str(server.port), "GET", "cli", "1").stdout.startswith("record\ntype\nrequest\n")
    out = subprocess.run(["redis-cli", "-s", server.socket], input="BEGIN cli 2\nINFO\nhello 3\n", text=True,
                         capture_output=True, timeout=60).stdout
    assert "started" in out and "idem_version" in out and "NOPROTO" in out
    assert "unknown command" in cli("FLUSHALL").stdout


def test_redis_benchmark_works(server):
    for pipeline in "1", "16":
        run = subprocess.run(["redis-benchmark", "-p", str(server.port), "-n", "2000", "-c", "20", "-P", pipeline,
                              "-r", "100000000", "--csv", "BEGIN", "bench", "__rand_int__"],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode == 0 and "WARNING" not in run.stderr + run.stdout, run
        assert float(run.stdout.splitlines()[-1].split('","')[1]) > 0


def test_the_python_redis_client_drives_it(server, key):
    r = redis.Redis(unix_socket_path=server.socket, decode_responses=True, client_name="tests")
    assert r.ping()
    started = r.execute_command("BEGIN", *key, "LEASE", 60000)
    assert started[0] == "started"
    assert r.execute_command("FINISH", *key, started[1], "SUCCEEDED", "py")[0] == "ok"
    assert r.execute_command("BEGIN", *key)[4] == "py"
    pipe = r.pipeline(transaction=False)
    for i in range(50):
        pipe.execute_command("BEGIN", key[0], "pipe-%d" % i)
    assert {a[0] for a in pipe.execute()} == {"started"}
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        r.execute_command("BEGIN", "only-a-scope")
    assert r.info()["connected_clients"] >= 1


def test_what_clients_say_at_the_start(c):
    hello = c("HELLO", 2, "SETNAME", "x")
    assert dict(zip(hello[::2], hello[1::2]))["server"] == "idem"
    assert c("HELLO")[:2] == ["server", "idem"]
    assert c("HELLO", 3).word == "NOPROTO"
    assert c("CLIENT", "SETINFO", "LIB-NAME", "x") == "OK"
    for words in (("SETNAME", "x"), ("NO-EVICT", "on"), ("NO-TOUCH", "on")):
        assert c("CLIENT", *words) == "OK"
    assert c("CLIENT", "GETNAME") == "" and c("CLIENT", "INFO") == "id=%d" % c("CLIENT", "ID")
    assert c("CONFIG", "GET", "save") == ["save", ""] and c("HELLO", 2, "AUTH", "any", "secret")[:2] == ["server", "idem"]
    assert isinstance(c("CLIENT", "ID"), int)
    assert c("SELECT", 0) == "OK" and c("SELECT", 1).word == "ERR"
    assert c("CONFIG", "GET", "appendonly") == ["appendonly", "yes"]
    assert c("COMMAND", "DOCS") == [] and c("COMMAND", "COUNT") == len(c("COMMAND"))
    assert c("ECHO", "x") == "x"
    assert c("RESET") == "RESET" and c("PING") == "PONG"
    assert c("AUTH", "x").word == "ERR"
    assert c("ID", "no-such-kind").word in ("UNSUPPORTED", "ERR")
    assert c("QUIT") == "OK" and c.ended()


# ---- many clients ----------------------------------------------------------

def test_two_thousand_idle_and_64_busy_clients_in_bounded_memory():
    idle_count = 500 if SANITIZED else 2000
    with folder() as where, Server(where, listen=True) as s, s.client() as c:
        c("PING")
        before = s.rss_kib()
        idle = [s.client(tcp=i % 2 == 0) for i in range(idle_count)]
        for i in idle:
            i.send("PING")
        for i in idle:
            assert i.read() == "PONG"
        run = subprocess.run(["redis-benchmark", "-p", str(s.port), "-n", "6000", "-c", "64", "-P", "4", "-r",
                              "100000000", "--csv", "BEGIN", "b", "__rand_int__"],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        assert "connected_clients:%d" % (idle_count + 1) in c("INFO")
        grown = s.rss_kib() - before
        if not SANITIZED:
            assert grown < 48 * 1024, "%d KiB" % grown
        for i in idle:
            assert i("PING") == "PONG"
            i.close()


# ---- lifecycle -------------------------------------------------------------

def test_sigterm_answers_what_is_in_flight_and_leaves():
    with folder() as where, Server(where) as s, s.client() as c, s.client() as waiter:
        fence = begin(c, ("k", "1"))
        waiter.send("BEGIN", "k", "1", "WAIT", 60000)
        assert wait_until(lambda: "parked:1" in c("INFO"))
        c.send("FINISH", "k", "2", 1, "SUCCEEDED", "x")
        assert c.read() == ["stale"]
        start = time.monotonic()
        s.send(signal.SIGTERM)
        assert waiter.read().word == "CLOSED"
        assert waiter.ended() and c.ended()
        assert s.wait() == 0
        assert time.monotonic() - start < 10
        assert not os.path.exists(s.socket)
        log = s.output()
        assert "event=ready" in log and "event=draining" in log and "event=stopped" in log
        with Server(where) as again, again.client() as c2:
            assert c2("FINISH", "k", "1", fence, "SUCCEEDED", "")[0] == "ok"


@pytest.mark.parametrize("url", ["redis://127.0.0.1:%d", "postgres://127.0.0.1:%d/x", "mysql://127.0.0.1:%d/x", "etcd://127.0.0.1:%d"])
def test_a_store_that_does_not_answer_is_named_with_what_to_check(url):
    run = subprocess.run([IDEM, "store", "check", url % free_port()], capture_output=True, text=True, timeout=60)
    assert run.returncode == 20 and "127.0.0.1" in run.stderr and "password in the store's URL right?" in run.stderr


def test_a_second_server_does_not_take_the_socket_or_the_data():
    with folder() as where, Server(where, listen=True) as s:
        run = subprocess.run([IDEM, "serve", "--store", "memory:", "--socket", s.socket], capture_output=True,
                             text=True, timeout=60)
        assert run.returncode == 1 and "another server listens" in run.stderr and "give another path with --socket" in run.stderr
        run = subprocess.run([IDEM, "serve", "--store", "journal:" + where + "/journal", "--socket", where + "/t"],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and "cannot-start" in run.stderr and "stop it, or name another folder" in run.stderr
        run = subprocess.run([IDEM, "serve", "--store", "memory:", "--socket", where + "/t", "--listen", "127.0.0.1:%d" % s.port],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and "choose another port" in run.stderr
        with s.client() as c:
            assert c("PING") == "PONG"


def test_a_taken_address_is_noticed_before_a_journal_is_made():
    with folder() as where, Server(where, listen=True, http=True) as s:
        for flags, said in ((["--listen", "127.0.0.1:%d" % s.port], "127.0.0.1:%d: Address already in use; stop the program" % s.port),
                            (["--listen", "127.0.0.1:%d,127.0.0.1:%d" % (free_port(), s.port)], "127.0.0.1:%d" % s.port),
                            (["--http", "127.0.0.1:%d" % s.http], "127.0.0.1:%d" % s.http),
                            (["--socket", s.socket], "another server listens on " + s.socket)):
            run = subprocess.run([IDEM, "serve", "--store", "journal:" + where + "/fresh", "--socket", where + "/t", *flags],
                                 capture_output=True, text=True, timeout=60)
            assert run.returncode == 1 and said in run.stderr and run.stderr.count("\n") == 1, run.stderr
            assert not os.path.exists(where + "/fresh") and not os.path.exists(where + "/t"), flags
        with s.client() as c:
            assert c("PING") == "PONG"


@pytest.mark.parametrize("word", ["none", "off"])
def test_a_server_without_a_socket(word):
    port = free_port()
    with folder() as where, Process([IDEM, "serve", "--store", "memory:", "--socket", word, "--audit", word, "--listen",
                                     "127.0.0.1:%d" % port], ready=port, cwd=where) as server:
        assert os.listdir(where) == [] and "socket=none" in server.output()


def test_an_abandoned_socket_file_is_taken_over():
    with folder() as where:
        with Server(where) as s:
            s.kill()
            assert os.path.exists(s.socket)
        with Server(where) as s, s.client() as c:
            assert c("PING") == "PONG"
            assert os.stat(s.socket).st_mode & 0o777 == 0o600


def test_flags_outrank_variables_outrank_the_file():
    with folder() as where:
        file = os.path.join(where, "idem.conf")
        with open(file, "w") as f:
            f.write("# a test\nmax-clients = 11   # few\nstore = memory:\nsocket-mode = 0640\nlog-format = json\n")
        env = {"IDEM_MAX_CLIENTS": "22", "IDEM_SOCKET_MODE": "0644"}
        with Server(where, "--config", file, "--socket-mode", "0666", store="memory:", env=env) as s, s.client() as c:
            assert "maxclients:22" in c("INFO") and "store:memory:" in c("INFO")
            assert os.stat(s.socket).st_mode & 0o777 == 0o666
            assert '"event":"ready"' in s.output()


@pytest.mark.parametrize("text, told", [
    ("max-clients = many", "line 1: max-clients is a number"),
    ("\n\nmax-clients = 0", "line 3: max-clients of 0 is out of range"),
    ("colour = blue", 'line 1: there is no option "colour"'),
    ("store", "line 1: \"store\" is not a line of the form: name = value"),
    ("store = memory:\nstore = memory:", "line 2: store is already set on line 1"),
    ("listen = 0.0.0.0:7000", "--credentials FILE"),
    ("http = [::]:7000", "--credentials FILE"),
    ("listen = 127.0.0.1", "is not an address"),
    ("credentials = /nonexistent", "/nonexistent: No such file"),
    ("store = paper:/var/lib", '"paper:/var/lib" is not the URL of a store'),
    ("store = /var/lib/idem", "is not the URL of a store"),
    ("socket = /" + "x" * 108, "longer than 107 bytes"),
    ("socket-group = nobody-has-this-one", 'there is no group "nobody-has-this-one"'),
    ("max-command = 100", "max-command of 100 is out of range"),
    ("socket = none", "nothing to listen on"),
    ("log-level = loud", "log-level is debug or info or warning or error"),
    ("drain-timeout = 1 fortnight", "is not a time"),
])
def test_check_says_what_is_wrong(text, told):
    with folder() as where:
        file = os.path.join(where, "idem.conf")
        with open(file, "w") as f:
            f.write(text + "\n")
        run = subprocess.run([IDEM, "serve", "--config", file, "--check"], capture_output=True, text=True, timeout=60)
        assert run.returncode == 2 and run.stderr.startswith("idem: ") and told in run.stderr, run.stderr


def test_check_accepts_what_is_right():
    with folder() as where:
        run = subprocess.run([IDEM, "serve", "--store", "journal:" + where, "--check"], capture_output=True,
                             text=True, timeout=60)
        assert run.returncode == 0 and "fine" in run.stdout, run.stderr
        assert os.listdir(where) == []


def test_serve_alone_works_and_names_its_places():
    """As an ordinary user would start it, in a home of its own."""
    with folder() as where:
        argv, env = [IDEM, "serve"], {"HOME": where, "XDG_RUNTIME_DIR": where, "XDG_STATE_HOME": where + "/state"}
        if os.getuid() == 0:
            os.chmod(where, 0o755)
            os.chown(where, 65534, 65534)
            argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv]
        with Process(argv, ready=where + "/idem.sock", env=env) as s, Resp(where + "/idem.sock") as c:
            assert c("BEGIN", "a", "b")[0] == "started"
            assert "store=journal:%s/state/idem" % where in s.output()
            assert "socket=%s/idem.sock" % where in s.output()
            assert os.stat(where + "/idem.sock").st_mode & 0o777 == 0o600


def test_a_remote_store_is_served_by_the_engines_own_thread():
    """redis: needs a network, so the loop must not wait for it."""
    port = free_port()
    with folder() as where, Process(["redis-server", "--port", str(port), "--dir", where, "--appendonly", "yes",
                                     "--appendfsync", "always", "--save", ""], ready=port):
        with Server(where, store=patient("redis://127.0.0.1:%d" % port)) as s, s.client() as c:
            clients = [s.client(timeout=60) for _ in range(8)]
            out = b"".join(encode("BEGIN", "r", "%d-{}" % i) + encode("PING", i) for i in range(300))
            for n, client in enumerate(clients):
                client.raw(out.replace(b"-{}", b"-%02d" % n))
            for client in clients:
                for i in range(300):
                    assert client.read()[0] == "started"
                    assert client.read() == str(i)
                client.close()
            token, other = c("ISSUE", "sub", "COUNT", 2)[1:]
            assert c("REDEEM", token, "sub", "NEXT")[0] == "redeemed"
            fence = begin(c, ("sub", other), "TOKEN")
            assert c("FINISH", "sub", other, fence, "SUCCEEDED", "x" * 5000)[0] == "ok"
            assert c("GET", "sub", other)[-1] == "x" * 5000
            assert c("SETTLE", "sub", "absent")[0] == "settled"
            assert c("SCAN", "0", "COUNT", 10)[0] == "records"
            held = begin(c, ("r", "w"))
            with s.client() as waiter, s.client() as gone:
                waiter.send("BEGIN", "r", "w", "WAIT", 20000, "TAG", 1)
                gone.send("BEGIN", "r", "w", "WAIT", 20000)
                assert wait_until(lambda: "parked:2" in c("INFO"))
                gone.close()
                assert wait_until(lambda: "parked:1" in c("INFO"))
                assert c("FINISH", "r", "w", held, "SUCCEEDED", "y")[0] == "ok"
                assert waiter.read()[:3] == ["tag", 1, "replay"]


# ---- idem bench ------------------------------------------------------------

def bench(address, what, *more):
    run = subprocess.run([IDEM, "bench", "-S", address, "-w", what, "-c", "4", "-P", "3", "-t", "100ms", "--json", *more],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["operations"] >= 12 and result["errors"] == 0 and result["per_second"] > 0
    assert 0 < result["p50_ms"] <= result["p99_ms"]


@pytest.mark.parametrize("what", ["begin", "pair", "replay", "ping"])
def test_bench_measures(server, c, what):
    bench("unix:" + server.socket, what)


def test_bench_takes_the_addresses_of_the_other_commands(server, c):
    for address in ("idem+unix:" + server.socket, "127.0.0.1:%d" % server.port, "idem://127.0.0.1:%d" % server.port):
        bench(address, "pair")


def test_bench_measures_a_redis_with_the_same_client():
    peer = servers.Redis()
    try:
        for what in ("begin", "pair", "replay", "ping"):
            bench("127.0.0.1:%d" % peer.port, what, "--redis")
    finally:
        peer.stop()


def test_a_client_that_hangs_up_with_a_full_pipeline_costs_nothing():
    with folder() as f, Server(f) as server:
        with server.client() as holder:
            holder("BEGIN", "s", "held", "LEASE", 60000)
            gone = server.client()
            gone.raw(encode("BEGIN", "s", "held", "WAIT", 30000) * 1500)
            assert wait_until(lambda: "parked:1" in holder("INFO"))
            time.sleep(0.3)
            gone.close()
            assert wait_until(lambda: "parked:0" in holder("INFO"))
            time.sleep(0.3)
            before = cpu_seconds(server.pid)
            time.sleep(1.5)
            assert cpu_seconds(server.pid) - before < 0.4
            assert holder("PING") == "PONG"


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- looking for the next command without sleeping ----------------------------

def processor_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def test_a_server_that_looked_for_commands_sleeps_when_none_come():
    with folder() as where, Server(where) as s, s.client() as client:
        for n in range(2000):  # one after the other, so the server does not sleep in between
            begin(client, ("look", str(n)))
        before = processor_seconds(s.pid)
        time.sleep(1)
        assert processor_seconds(s.pid) - before < (0.5 if SANITIZED else 0.1)


def test_a_server_sleeps_between_commands_that_come_seldom():
    with folder() as where, Server(where) as s, s.client() as client:
        before = processor_seconds(s.pid)
        start = time.monotonic()
        while time.monotonic() - start < 2:
            assert client("PING") == "PONG"
            time.sleep(0.002)
        assert processor_seconds(s.pid) - before < (1 if SANITIZED else 0.4)
