"""Many duplicates that wait, and large answers for all of them: neither holds up anybody else, and memory stays
bounded. Waits more than it works."""
import contextlib
import selectors
import socket
import time

import pytest

from gateway import *
from lib import SANITIZED, Resp, Server, encode, folder
from servers import Redis

BIG = 1024 * 1024 - 1000  # an answer with its headers is still kept
FEW = 200 if SANITIZED else 500


def peak_kib(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))


def figure(client, name):
    return int(next(line.split(":")[1] for line in client("INFO").splitlines() if line.startswith(name + ":")))


class Tagged(Resp):
    """One connection on which every command has a tag."""

    def ask(self, tag, *args):
        self.send(*args, "TAG", tag)

    def answers(self, count):
        """The next answers: tag to the rest."""
        got = {}
        for _ in range(count):
            answer = self.read()
            assert answer[0] == "tag" and answer[1] not in got, answer[:3]
            got[answer[1]] = answer[2:]
        return got


# ---- waiting duplicates do not count as commands in flight


def test_more_waits_than_commands_in_flight_hold_up_nobody_on_the_same_connection():
    with folder() as where, Server(where) as s, Tagged(s.socket) as c, s.client() as other:
        c.ask(1, "BEGIN", "s", "1", "LEASE", 60000)
        c.ask(2, "BEGIN", "s", "before", "LEASE", 60000)
        first = c.answers(2)
        for i in range(1100):
            c.ask(1000 + i, "BEGIN", "s", "1", "WAIT", 60000)
        refused = c.answers(1100 - 1024)  # beyond max-parked-key
        assert {a[0] for a in refused.values()} == {"busy"} and all(a[1] >= 1 for a in refused.values())
        assert figure(other, "parked") == 1024
        began = time.monotonic()
        c.ask(3, "RENEW", "s", "1", first[1][1], 60000)
        c.ask(4, "FINISH", "s", "before", first[2][1], "SUCCEEDED", "x")
        c.ask(5, "BEGIN", "s", "after")
        assert {t: a[0] for t, a in c.answers(3).items()} == {3: "ok", 4: "ok", 5: "started"}
        c.ask(6, "FINISH", "s", "1", first[1][1], "SUCCEEDED", "done")
        rest = c.answers(1025)
        assert rest.pop(6)[0] == "ok"
        assert {(a[0], a[4]) for a in rest.values()} == {("replay", "done")}
        assert time.monotonic() - began < 20  # the waits last a minute
        assert figure(other, "parked") == 0


def test_waits_are_bounded_for_a_key_a_scope_and_all_and_the_next_is_busy():
    flags = "--max-parked-key", "3", "--max-parked-scope", "5", "--max-parked", "7"
    with folder() as where, Server(where, *flags, store="memory:") as s, Tagged(s.socket) as c, s.client() as other:
        for i, (scope, id) in enumerate([("a", "1"), ("a", "2"), ("b", "1")]):
            c.ask(i, "BEGIN", scope, id)
        fence = c.answers(3)[0][1]
        waits = [("a", "1")] * 4 + [("a", "2")] * 3 + [("b", "1")] * 3
        busy = []
        for i, key in enumerate(waits):
            c.ask(100 + i, "BEGIN", *key, "WAIT", 60000)
            c.ask(200 + i, "PING")
            while True:
                (tag, answer), = c.answers(1).items()
                if tag == 200 + i:
                    break
                busy.append(tag - 100)
                assert answer[0] == "busy"
            wait_until(lambda: figure(other, "queued") == 0)
        c.ask(300, "GET", "b", "none")
        more = c.answers(1 if busy == [3, 6, 9] else 2)
        busy += [t - 100 for t in more if t != 300]
        assert busy == [3, 6, 9] and figure(other, "parked") == 7
        c.ask(301, "FINISH", "a", "1", fence, "SUCCEEDED", "x")
        assert sorted(a[0] for a in c.answers(4).values()) == ["ok", "replay", "replay", "replay"]


def test_an_untagged_wait_holds_up_only_its_own_connection_and_what_is_read_of_it():
    with folder() as where, Server(where, store="memory:") as s, s.client() as c, s.client() as other:
        fence = other("BEGIN", "s", "1", "LEASE", 60000)[1]
        done = other("BEGIN", "s", "big")[1]
        other("FINISH", "s", "big", done, "SUCCEEDED", b"x" * BIG)
        c.raw(encode("BEGIN", "s", "1", "WAIT", 60000) + encode("GET", "s", "big") * 400)
        assert wait_until(lambda: figure(other, "parked") == 1)
        assert other("BEGIN", "s", "2")[0] == "started"
        if not SANITIZED:
            assert peak_kib(s.pid) < 100 * 1024  # 400 replies of 1 MB wait behind the first
        assert other("FINISH", "s", "1", fence, "SUCCEEDED", "x")[0] == "ok"
        assert c.read()[0] == "replay"
        for _ in range(400):
            got = c.read()
            assert got[0] == "record" and len(got[-1]) == BIG


# ---- large answers


def large_crowd(s, count, connections):
    """So many wait for one key on so many connections; then it is finished with a large result."""
    clients = [Tagged(s.socket, 120) for _ in range(connections)]
    with s.client() as first:
        fence = first("BEGIN", "s", "big", "LEASE", 60000)[1]
        for i in range(count):
            clients[i % connections].ask(i, "BEGIN", "s", "big", "WAIT", 60000)
        assert wait_until(lambda: figure(first, "parked") == count)
        assert first("FINISH", "s", "big", fence, "SUCCEEDED", b"x" * BIG)[0] == "ok"
    return clients


@pytest.fixture(scope="module")
def redis():
    server = Redis()
    yield server
    server.stop()


# On Redis the engine has a thread of its own, which only leaves answers for the server's.
@pytest.mark.parametrize("store, connections", [("journal", 1), ("journal", FEW), ("redis", 1), ("redis", FEW)])
def test_large_replays_for_many_stay_in_bounded_memory_and_hold_up_nobody(store, connections, redis):
    with folder() as where, Server(where, "--max-buffered", "64m", store=redis.url if store == "redis" else None) as s, \
            s.client() as other:
        other("FORGET", "s", "big"), other("FORGET", "s", "unrelated"), other("FORGET", "s", "another")
        clients = large_crowd(s, FEW, connections)
        try:
            clients[0].ask(FEW, "BEGIN", "s", "unrelated")  # nobody has read anything yet
            assert other("BEGIN", "s", "another")[0] == "started"
            assert wait_until(lambda: figure(other, "verdict_started") == 3)
            if connections == 1:
                got, began = {}, time.monotonic()
                while FEW not in got:
                    got.update(clients[0].answers(1))
                assert got[FEW][0] == "started"
                assert len(got) < 20, "it was answered behind %d large ones" % len(got)
                got.update(clients[0].answers(FEW + 1 - len(got)))
                assert time.monotonic() - began < 30
                del got[FEW]
            else:
                got = {i: c.answers(1)[i] for i, c in list(enumerate(clients))[1:]}
                zero = clients[0].answers(2)
                assert zero[FEW][0] == "started"
                got[0] = zero[0]
            assert len(got) == FEW and all(a[0] == "replay" and len(a[4]) == BIG for a in got.values())
            assert figure(other, "closed_by_limit") == 0
            if not SANITIZED:
                assert peak_kib(s.pid) < 64 * 1024 + 64 * 1024
        finally:
            for c in clients:
                c.close()


def test_different_large_results_beyond_max_buffered_are_refused_not_kept():
    """A client that asks for much and reads nothing gets no more than the limit; who reads, reads all."""
    with folder() as where, Server(where, "--max-buffered", "16m", "--max-batch", "4", store="memory:") as s, \
            Tagged(s.socket, 120) as c, s.client() as other:
        for i in range(64):
            fence = other("BEGIN", "s", i)[1]
            assert other("FINISH", "s", i, fence, "SUCCEEDED", b"x" * BIG)[0] == "ok"
        before = s.rss_kib()
        for i in range(64):
            c.ask(i, "GET", "s", i)
        assert wait_until(lambda: figure(other, "verdict_record") == 64)
        assert other("GET", "s", "none") == ["absent"]
        if not SANITIZED:
            assert s.rss_kib() - before < 48 * 1024
        got = c.answers(64)
        refused = [t for t, a in got.items() if a[:2] == ["error", "OVERLOADED"]]
        assert 0 < len(refused) < 64 and {a[0] for a in got.values()} == {"error", "record"}
        for i in refused:
            c.ask(1000 + i, "GET", "s", i)
            assert c.answers(1)[1000 + i][0] == "record"


def test_a_client_that_reads_nothing_of_large_answers_is_closed():
    with folder() as where, Server(where, "--stall-timeout", "1s", store="memory:") as s, s.client() as other:
        idle, = large_crowd(s, 50, 1)
        try:
            assert wait_until(lambda: "not read" in s.output())
            assert wait_until(lambda: figure(other, "buffered_bytes") < 1024 * 1024)
        finally:
            idle.close()


def test_replies_that_nobody_reads_are_not_piled_up_however_short_each_is():
    """Each brings the same large result, which is kept once; but there is no end to them."""
    with folder() as where, Server(where, "--max-output", "16m", store="memory:") as s, s.client() as other:
        fence = other("BEGIN", "s", "1")[1]
        assert other("FINISH", "s", "1", fence, "SUCCEEDED", "x" * 200000)[0] == "ok"
        with socket.socket(socket.AF_UNIX) as idle:
            idle.connect(s.socket)
            idle.settimeout(2)
            command, sent = encode("BEGIN", "s", "1", "WAIT", 1000, "TAG", 1) * 50, 0
            with contextlib.suppress(TimeoutError):
                while sent < 100000:
                    idle.sendall(command)
                    sent += 50
            assert 500 < sent < 45000  # what lies in the socket and what is read in one round come on top of max-output
            assert other("GET", "s", "1")[0] == "record"
            assert figure(other, "buffered_bytes") > 4 * 1024 * 1024


# ---- through the gateway


class Waiting:
    """So many HTTP requests at once, each on a connection of its own, read by one thread."""

    def __init__(self, port, count, key, **headers):
        lines = ["POST /orders HTTP/1.1", "Host: 127.0.0.1:%d" % port, "Connection: close", "Idempotency-Key: " + key, "Content-Length: 7"]
        lines += ["%s: %s" % (n.replace("_", "-"), v) for n, v in headers.items()]
        data = ("\r\n".join(lines) + "\r\n\r\n").encode() + b'{"a":1}'
        self.sockets = []
        for _ in range(count):
            s = socket.create_connection(("127.0.0.1", port), 60)
            s.sendall(data)
            self.sockets.append(s)

    def read(self, keep=400, seconds=120):
        """Status, head and length of each."""
        end = time.monotonic() + seconds
        found, parts = [], {s: [b"", 0] for s in self.sockets}
        with selectors.DefaultSelector() as selector:
            for s in self.sockets:
                selector.register(s, selectors.EVENT_READ)
            while selector.get_map():
                assert time.monotonic() < end, "%d answers did not come" % len(selector.get_map())
                for key, _ in selector.select(1):
                    data = key.fileobj.recv(1 << 18)
                    part = parts[key.fileobj]
                    part[1] += len(data)
                    part[0] = part[0] if len(part[0]) > keep else part[0] + data
                    if not data:
                        selector.unregister(key.fileobj)
        for s, (head, length) in parts.items():
            s.close()
            found.append((int(head.split(b" ", 2)[1]), head, length))
        return found


def worker_kib(stack):
    return sum(peak_kib(pid) for pid in stack.nginx.workers())


def test_more_waiting_duplicates_than_fit_hold_up_no_request_of_the_worker():
    """The first one's lease is short, so that its RENEW must get through, too."""
    with folder() as where, Stack(where, "idem_wait 60s; idem_lease 3s; proxy_read_timeout 60s;") as stack:
        before = Working(stack.port, stack.ledger, "before")
        first = Working(stack.port, stack.ledger, "first")
        crowd = Waiting(stack.port, 1150, "first", x_until=first.until)
        eventually(lambda: stack.waiting() == 1024)
        began = time.monotonic()
        assert before.result().status == 201
        assert ask(stack.port, "after").status == 201
        assert time.monotonic() - began < 20, time.monotonic() - began
        time.sleep(max(0, began + 5 - time.monotonic()))  # longer than the lease
        assert stack.record("first")["state"] == "executing"
        assert first.result().status == 201
        answers = crowd.read()
        by_status = {status: [head for s, head, _ in answers if s == status] for status in {s for s, _, _ in answers}}
        assert sorted(by_status) == [201, 409], {k: len(v) for k, v in by_status.items()}
        assert len(by_status[201]) == 1024 and all(b"Idempotent-Replayed: true" in h for h in by_status[201])
        assert all(b"Retry-After: " in h for h in by_status[409])
        assert stack.ledger.executions("first") == 1


def test_large_replays_to_many_do_not_cut_the_gateway_off_its_engine():
    count = 100 if SANITIZED or ASAN_MODULE else 400
    with folder() as where, Stack(where, "idem_wait 60s; proxy_read_timeout 60s;") as stack:
        before = Working(stack.port, stack.ledger, "before")
        first = Working(stack.port, stack.ledger, "first", x_size=BIG)
        crowd = Waiting(stack.port, count, "first", x_size=BIG, x_until=first.until)
        eventually(lambda: stack.waiting() == count)
        assert first.result().status == 201  # nobody of the crowd has read anything
        began = time.monotonic()
        assert ask(stack.port, "after").status == 201
        assert before.result().status == 201
        assert time.monotonic() - began < 10
        answers = crowd.read()
        assert {s for s, _, _ in answers} == {201} and all(length > BIG for _, _, length in answers)
        with stack.resp() as r:
            assert figure(r, "closed_by_limit") == 0
        assert "connection lost" not in stack.nginx.errors()
        if not SANITIZED and not ASAN_MODULE:
            assert peak_kib(stack.engine.pid) < 100 * 1024
            assert worker_kib(stack) < 200 * 1024


# ---- on HTTP


def test_large_replays_on_http_stay_in_bounded_memory():
    with folder() as where, Server(where, "--max-buffered", "16m", http=True, store="memory:") as s, \
            s.client() as other:
        fence = other("BEGIN", "s", "big", "LEASE", 60000)[1]
        body = b'{"wait_ms": 60000}'
        head = (b"POST /v1/records/s/big/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)) + body
        crowd = Waiting.__new__(Waiting)
        crowd.sockets = [socket.create_connection(("127.0.0.1", s.http), 60) for _ in range(60)]
        for c in crowd.sockets:
            c.sendall(head)
        assert wait_until(lambda: figure(other, "parked") == 60)
        assert other("FINISH", "s", "big", fence, "SUCCEEDED", b"x" * BIG)[0] == "ok"
        assert other("BEGIN", "s", "another")[0] == "started"
        assert wait_until(lambda: figure(other, "parked") == 0)
        time.sleep(0.5)  # so that all of them are answered before anybody reads
        answers = crowd.read()
        assert {status for status, _, _ in answers} <= {200, 503}
        assert sum(status == 200 for status, _, _ in answers) >= 5
        assert all(length > 2 * BIG for status, _, length in answers if status == 200)
        assert all(b"Retry-After" in head for status, head, _ in answers if status == 503)
        if not SANITIZED:
            assert peak_kib(s.pid) < 16 * 1024 + 64 * 1024
