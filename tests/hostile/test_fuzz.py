"""The running programs under a stream of nearly right input, while an honest client works beside it.

The programs have the sanitizers in them. Whatever is sent: the program lives, what it answers is well-formed, no sanitizer
reports anything, and the honest client's requests run once and get their own answers. IDEM_TEST_SECONDS: how long each.
"""
import contextlib
import os
import re
import socket
import threading
import time

from chaos import resp_end
from gateway import Stack, ask
from lib import Server, folder
from wire import Dice, command, http_request

SECONDS = float(os.environ.get("IDEM_TEST_SECONDS") or 20)
SEED = int(os.environ.get("IDEM_TEST_SEED") or time.time_ns() % 2**32)


class Stream:
    """Several connections of one seed each; each sends until the time is over."""

    def __init__(self, connect, make, look, lines=4):
        print("IDEM_TEST_SEED=%d" % SEED)
        self.connect, self.make, self.look = connect, make, look
        self.until, self.flaws, self.sent = time.monotonic() + SECONDS, [], 0
        self.threads = [threading.Thread(target=self.run, args=(Dice("%d-%d" % (SEED, i)),)) for i in range(lines)]
        for thread in self.threads:
            thread.start()

    def run(self, dice):
        while time.monotonic() < self.until and not self.flaws:
            with contextlib.suppress(OSError):
                self.conversation(dice)

    def conversation(self, dice):
        """Some input on one connection; what comes back is looked at as a whole."""
        with self.connect() as s:
            got = b""
            s.settimeout(0.3)
            for _ in range(dice.randint(1, 30)):
                for piece in dice.pieces(self.make(dice)):
                    s.sendall(piece)
                self.sent += 1
                if dice.maybe(0.2):
                    got += receive(s)
            if dice.maybe(0.5):
                s.shutdown(socket.SHUT_WR)
                s.settimeout(5)
            got += receive(s)
            flaw = self.look(got)
            if flaw:
                self.flaws.append(flaw)

    def end(self):
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not self.flaws, self.flaws[:3]
        assert self.sent > 20


def receive(s):
    got = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while part := s.recv(65536):
            got += part
            if len(got) > 1 << 22:
                break
    return got


def honest(client, until):
    """Requests of a scope that nobody else uses. Each one runs once and is answered as it should be."""
    number = 0
    while time.monotonic() < until:
        number += 1
        fence = client("BEGIN", "honest", number)
        assert fence[0] == "started", fence
        assert client("FINISH", "honest", number, fence[1], "SUCCEEDED", "r%d" % number)[0] == "ok"
        assert client("BEGIN", "honest", number)[4] == "r%d" % number
    assert number > 3


def resp_is_well_formed(got):
    at = 0
    while at < len(got):
        try:
            end = resp_end(got, at)
        except ValueError:
            return "not RESP: %r" % got[at:at + 200]
        if got[at:at + 1] not in b"+-:$*_%~#,(=>|":
            return "not RESP: %r" % got[at:at + 200]
        if end < 0:
            return None  # the last one is cut off
        at = end
    return None


def test_resp():
    with folder() as where, Server(where, "--stall-timeout", "2s", listen=True, store="journal:%s/j" % where) as server:
        stream = Stream(lambda: socket.create_connection(("127.0.0.1", server.port), 10), command, resp_is_well_formed)
        honest(server.client(60), stream.until)
        stream.end()
        assert server.client(60)("PING") in ("PONG", ["PONG"])
        server.stop()
        assert "Sanitizer" not in server.output() and "runtime error" not in server.output(), server.output()[-5000:]


def http_is_well_formed(got):
    if got and not got.startswith(b"HTTP/1."):
        return "not HTTP: %r" % got[:200]
    for status, kind in re.findall(rb"HTTP/1\.[01] (\d{3}) ([^\r\n]*)\r\n", got):
        if status in (b"500", b"502"):
            return "answered %s %s: %r" % (status, kind, got[:1000])
    return None


def test_http():
    with folder() as where, Server(where, http=True, store="journal:%s/j" % where) as server:
        stream = Stream(lambda: socket.create_connection(("127.0.0.1", server.http), 10), http_request, http_is_well_formed)
        honest(server.client(60), stream.until)
        stream.end()
        server.stop()
        assert "Sanitizer" not in server.output() and "runtime error" not in server.output(), server.output()[-5000:]


def gated_request(dice):
    key = dice.choice((b'"%s"', b"%s", b'"%s', b"%s;a=1", b'"\\"%s"', b"a, %s")) % dice.word().replace(b"\r\n", b"")
    headers = [b"Idempotency-Key: " + key] * dice.choice((1, 1, 1, 2, 0))
    return http_request(dice, dice.choice((b"/orders", b"/orders?x=1", b"/o%2frders", b"//orders", b"/orders/../x", b"*")), headers)


def test_gateway():
    with folder() as where, Stack(where, location="idem_wait 1s;", workers=2) as stack:
        stream = Stream(lambda: socket.create_connection(("127.0.0.1", stack.port), 10), gated_request,
                        lambda got: "not HTTP: %r" % got[:200] if got and not got.startswith((b"HTTP/1.", b"<")) else None)
        number = 0
        while time.monotonic() < stream.until:
            number += 1
            first = ask(stack.port, "honest-%d" % number)
            again = ask(stack.port, "honest-%d" % number)
            assert first.status == 201 and again.body == first.body and again.replayed and not first.replayed
        stream.end()
        assert number > 3
        done = [e["key"] for e in stack.ledger.entries() if (e["key"] or "").startswith("honest-")]
        assert len(done) == len(set(done)) == number
        assert "exited on signal" not in stack.nginx.errors()
