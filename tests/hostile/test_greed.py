"""Clients that want too much: connections that do nothing, crowds that wait, guesses at other people's answers, keys that
are chosen to hurt. Each test is a size of its own; the server must stay quick for others and bounded in memory."""
import hashlib
import os
import random
import re
import resource
import socket
import time

import pytest

from lib import Error, Resp, Server, encode, folder, wait_until

SANITIZED = os.environ.get("IDEM_SANITIZED")


@pytest.fixture(autouse=True, scope="module")
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(60000, hard), hard))


def figure(client, name):
    return int(re.search(r"^%s:(\d+)" % name, client("INFO"), re.M).group(1))


def test_ten_thousand_idle_connections():
    with folder() as where, Server(where, "--max-clients", "11000", listen=True, store="journal:%s/j" % where) as server:
        idle = []
        try:
            for number in range(10000):
                s = socket.create_connection(("127.0.0.1", server.port), 60)
                s.sendall((b"", b"*", b"*3\r\n$5\r\nBEGIN\r\n")[number % 3])  # nothing, or the beginning of a command
                idle.append(s)
            client = server.client(60)
            start = time.monotonic()
            for number in range(300):
                fence = client("BEGIN", "shop", number)[1]
                assert client("FINISH", "shop", number, fence, "SUCCEEDED", "x")[0] == "ok"
            assert time.monotonic() - start < 60
            assert server.rss_kib() < (3 << 20 if SANITIZED else 300 << 10)
        finally:
            for s in idle:
                s.close()
        assert wait_until(lambda: figure(client, "connected_clients") < 10)


def test_a_hundred_thousand_waiting_duplicates():
    """All of them get the one answer. Beyond the limit a duplicate is told so at once."""
    count, lines = 100000, 50
    with folder() as where, Server(where, "--max-parked", str(count), "--max-parked-key", str(count), "--max-parked-scope", str(count),
                                   "--max-queue", "200000", store="journal:%s/j" % where) as server:
        owner = server.client(120)
        fence = owner("BEGIN", "shop", "wanted", "LEASE", 600000)[1]
        waiting = [Resp(server.socket, 300) for _ in range(lines)]
        for line in waiting:
            line.raw(b"".join(encode("BEGIN", "shop", "wanted", "WAIT", 600000, "TAG", n) for n in range(count // lines)))
        assert wait_until(lambda: figure(owner, "parked") == count, 300), figure(owner, "parked")
        extra = server.client(60)("BEGIN", "shop", "wanted", "WAIT", 600000)
        assert not isinstance(extra, list) or extra[0] == "busy", extra
        assert owner("FINISH", "shop", "wanted", fence, "SUCCEEDED", "for all")[0] == "ok"
        for line in waiting:
            tags = set()
            for _ in range(count // lines):
                answer = line.read()
                assert "for all" in str(answer), answer
                tags.add(str(answer)[:40])
            assert len(tags) > 1
        assert figure(owner, "parked") == 0


def test_two_million_probes_bring_no_foreign_byte():
    """Each client may use its own scope. Whatever it asks for, no answer has another one's result in it."""
    people, keys, probes = 16, 50, 20000 if SANITIZED else 2000000
    with folder() as where:
        with open(where + "/credentials", "w") as f:
            os.fchmod(f.fileno(), 0o600)
            for p in range(people):
                f.write("p%d secret-of-%d use p%d\n" % (p, p, p))
            f.write("root secret-of-root operate\n")
        with Server(where, "--credentials", where + "/credentials", store="journal:%s/j" % where) as server:
            lines = []
            for p in range(people):
                line = server.client(120)
                assert line("AUTH", "p%d" % p, "secret-of-%d" % p) == "OK"
                lines.append(line)
                for k in range(keys):
                    fence = line("BEGIN", "p%d" % p, "k%d" % k)
                    assert fence[0] == "started", fence
                    assert line("FINISH", "p%d" % p, "k%d" % k, fence[1], "SUCCEEDED", "private-of-%d-" % p)[0] == "ok"
            dice, own = random.Random(11), 0
            twins = lambda p: ("p%d" % p, "P%d" % p, "p%d " % p, "p%d\x00" % p, "p0%d" % p, "p%d*" % p, "*", "", "../p%d" % p)  # noqa: E731
            for _ in range(probes // 100):
                me = dice.randrange(people)
                asked = []
                for _ in range(100):
                    verb = dice.choice(("GET", "BEGIN", "GET", "FORGET" if dice.random() < 0.1 else "GET"))
                    scope = dice.choice(twins(dice.randrange(people)))
                    asked.append(encode(verb, scope, "k%d" % dice.randrange(keys), *(("WAIT", 1) if verb == "BEGIN" else ())))
                lines[me].raw(b"".join(asked))
                for _ in asked:
                    answer = str(lines[me].read())
                    for found in re.findall(r"private-of-(\d+)-", answer):
                        assert int(found) == me, answer
                        own += 1
            assert own > probes / 1000  # its own it does get


def test_keys_of_one_place_are_as_quick_as_others():
    """Ids whose SHA-256 begins alike: a table that trusted the caller's bits would be slow for them."""
    count, scope = 1000, "shop"

    def cpu(pid):
        with open("/proc/%d/stat" % pid) as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))

    def key(id):
        """As src/record/key.c makes it."""
        part = lambda text: len(text).to_bytes(2, "big") + text  # noqa: E731
        return hashlib.sha256(b"\1" + part(scope.encode()) + part(id.encode())).digest()

    def chosen():
        number = 0
        while True:
            number += 1
            if key("%d" % number)[0] == 0 and key("%d" % number)[1] < 16:  # the same shard of the journal's index
                yield "%d" % number

    with folder() as where, Server(where, store="journal:%s/j" % where) as server:
        client, took = server.client(120), {}
        for kind, ids in (("others", ("other-%d" % n for n in range(count))), ("chosen", chosen())):
            ids = [next(ids) for _ in range(count)]
            before = cpu(server.pid)
            for _ in range(4):
                client.raw(b"".join(encode("BEGIN", scope, i) for i in ids))
                for _ in ids:
                    assert not isinstance(client.read(), Error)
            took[kind] = cpu(server.pid) - before
        assert took["chosen"] < 3 * took["others"] + 20, took


ENDLESS = {
    "chunked body": ("http", b"POST /v1/records/s/k/begin HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
                     b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "header": ("http", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", b"x" * 65536),
    "headers": ("http", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n" * 8000),
    "bulk": ("resp", b"*2\r\n$4\r\nECHO\r\n$999999999\r\n", b"x" * 65536),
    "array": ("resp", b"*99999999\r\n$4\r\nECHO\r\n", b"$1\r\nx\r\n" * 8000),
    "line": ("resp", b"PING ", b"x" * 65536),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_cut_off(name):
    """A request that goes on and on: the server closes the line soon, and its memory does not grow."""
    surface, head, piece = ENDLESS[name]

    with folder() as where, Server(where, http=True, store="journal:%s/j" % where) as server:
        before, end, closed = server.rss_kib(), time.monotonic() + 60, False
        with socket.socket(socket.AF_INET if surface == "http" else socket.AF_UNIX) as line:
            line.settimeout(60)
            line.connect(("127.0.0.1", server.http) if surface == "http" else server.socket)
            try:
                line.sendall(head)
                while time.monotonic() < end:
                    line.sendall(piece)
            except OSError:
                closed = True
        assert closed
        assert server.rss_kib() - before < (400 if SANITIZED else 100) << 10
        assert server.client()("PING") == "PONG"
