"""idem top, bench and id with a server that answers what a test wants, or that goes away."""
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading

import pytest

from lib import IDEM, Server, folder, serve_each, wait_until

HEAD = ["idem_version:9.9.9", "max_result:1000000", "now_ms:1700000000000"]


def bulk(text):
    return b"$%d\r\n%s\r\n" % (len(text.encode()), text.encode())


def info(*lines):
    return bulk("\r\n".join([*HEAD, *lines, ""]))


class Fake:
    """A server on a unix socket. say(words) is the reply to a command, in bytes; None: it hangs up."""

    def __init__(self, where, say):
        self.path, self.say, self.asked, self.lock = where + "/s", say, [], threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        serve_each(self.listener, self.serve)

    def serve(self, client):
        with client, client.makefile("rb") as lines:
            while line := lines.readline():
                words = []
                for _ in range(int(line[1:])):
                    words.append(lines.read(int(lines.readline()[1:]) + 2)[:-2].decode())
                with self.lock:
                    self.asked.append(words)
                    reply = self.say(words)
                if reply is None:
                    return
                try:
                    client.sendall(reply)
                except OSError:
                    return

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def fake():
    made = []
    with folder() as where:
        def make(say):
            made.append(Fake(where, say))
            return made[-1]
        yield make
        for server in made:
            server.stop()


def idem(server, *args):
    done = subprocess.run([IDEM, *args, "--server", "unix:" + server.path], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def samples(*looks):
    """INFO for the greeting, then one look after the other; the last one stays."""
    left = list(looks)

    def say(words):
        assert words == ["INFO"], words
        return info() if len(left) == len(looks) and not say.greeted else info(*(left.pop(0) if len(left) > 1 else left[0]))
    say.greeted = False

    def first(words):
        reply = say(words)
        say.greeted = True
        return reply
    return first


# ---- top ------------------------------------------------------------------------------------------------------------------------

ROUTES = (["store:journal", "route_0:/orders started=10 replay=5 upstream=10 upstream_ms=100", "route_1:/gone started=900"],
          ["store:journal", "route_0:/orders started=30 replay=15 doubt=4 outcome-unknown=2 busy=6 upstream=30 upstream_ms=500", "route_1:/new started=7",
           "route_2:/idle"])


def test_top_counts_what_came_between_two_looks(fake):
    server = fake(samples(*ROUTES))
    code, out, said = idem(server, "top", "--once", "--every", "100ms", "--json")
    assert code == 0 and said == "", said
    routes = json.loads(out)["routes"]
    orders, new, idle = routes["/orders"], routes["/new"], routes["/idle"]
    rate = orders["verdicts_per_second"]
    assert rate["started"] == pytest.approx(2 * rate["replay"]) == pytest.approx(10 * rate["outcome-unknown"]) and rate["started"] > 0
    assert orders["upstream_ms"] == 20 and orders["requests_per_second"] == pytest.approx(sum(rate.values()))
    assert new["verdicts_per_second"]["started"] == pytest.approx(rate["started"] * 7 / 20), "the route of another process is not subtracted"
    assert idle["requests_per_second"] == 0 and idle["upstream_ms"] == 0


def test_top_shows_what_it_knows_and_a_dash_for_the_rest(fake):
    code, out, _ = idem(fake(samples(*ROUTES)), "top", "--once", "--every", "100ms")
    assert code == 0 and re.search(r"^idem 9\.9\.9  store journal  up 0 s$", out, re.M) and re.search(r"^doubts +- +oldest +-$", out, re.M)
    assert re.search(r"^route +all/s +started/s +replays/s +doubts/s +others/s +service$", out, re.M)
    assert re.search(r"^/orders +(?:[\d.]+ +){5}20\.0 ms$", out, re.M) and re.search(r"^/idle +(?:0\.0 +){6}ms$", out, re.M), out
    assert "\nstore\n" not in out


def test_top_shows_latency_batches_and_doubts(fake):
    before = ["store:sqlite", "batches:10", "batched:10", "latency_begin:0,0,100", "verdict_started:1", "doubts:0", "oldest_doubt_seconds:0"]
    after = ["batches:20", "batched:50", "latency_begin:0,90,110,0,10", "verdict_started:8", "doubts:3", "oldest_doubt_seconds:75", "# Store",
             "sqlite_connected:1", "no figure", "never:7"]
    code, out, _ = idem(fake(samples(before, after)), "top", "--once", "--every", "100ms")
    assert code == 0 and re.search(r"^begin +0\.03 ms +0\.26 ms$", out, re.M), out
    assert re.search(r"^queued +0 +batch size +4\.0$", out, re.M) and re.search(r"^doubts +3 +oldest +75 s$", out, re.M), out
    assert "  store   up 0 s" in out and re.search(r"^started +\d+ +8$", out, re.M)
    assert re.search(r"^store\nsqlite_connected +1\n\Z", out, re.M), "what follows no figure is none"


@pytest.mark.parametrize("reply,code,text", [(b":7\r\n", 27, "out of memory"), (b"-ERR not now\r\n", 2, "not now"), (None, 20, "it closed the connection"),
                                             (b"-NOPERM no right to monitor\r\n", 26, "no right to monitor")])
def test_top_ends_when_it_gets_no_look(fake, reply, code, text):
    """The second look, so after one was taken."""
    said = [info(), info(), reply]
    got, out, err = idem(fake(lambda words: said.pop(0) if len(said) > 1 else said[0]), "top", "--every", "20ms")
    assert got in (code, 2) and text in err and out == "", (got, out, err)


def test_top_overwrites_a_terminal_until_it_is_interrupted(fake):
    server = fake(lambda words: info("store:memory"))
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(IDEM, [IDEM, "top", "--every", "20ms", "--server", "unix:" + server.path])
    out = b""
    while out.count(b"\x1b[H\x1b[2Jidem 9.9.9") < 3:
        out += os.read(fd, 65536)
    os.kill(pid, signal.SIGINT)
    try:
        while os.read(fd, 65536):
            pass
    except OSError:
        pass
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_top_stops_after_so_many(fake):
    code, out, _ = idem(fake(lambda words: info("store:memory", "doubts:1")), "top", "--every", "20ms", "--count", "3", "--json")
    assert code == 0 and [json.loads(line)["doubts"] for line in out.splitlines()] == [1, 1, 1]
    assert idem(fake_path("/nowhere/s"), "top", "--every", "9ms")[0] == 2
    assert idem(fake_path("/nowhere/s"), "top", "--once")[0] == 20


class fake_path:
    def __init__(self, path):
        self.path = path


# ---- bench ----------------------------------------------------------------------------------------------------------------------

BENCH = ("bench", "--clients", "2", "--pipeline", "2", "--time", "50ms")


@pytest.mark.parametrize("what", ["begin", "pair", "ping"])
def test_bench_says_which_error_came_first(fake, what):
    server = fake(lambda words: b"-FULL the store is full\r\n")
    code, out, said = idem(server, *BENCH, "--what", what)
    assert code == 1 and re.search(r"^idem: \d+ errors, the first: FULL the store is full$", said, re.M), said
    assert " CPU" not in out
    code, out, _ = idem(server, *BENCH, "--what", what, "--json")
    assert code == 1 and json.loads(out)["errors"] > 0 and "server_cpu_us" not in json.loads(out)


def test_bench_needs_the_record_that_all_replay(fake):
    code, out, said = idem(fake(lambda words: b"-FULL the store is full\r\n"), *BENCH, "--what", "replay")
    assert code == 23 and "the store is full" in said and out == "", said


@pytest.mark.parametrize("at", [1, 3, 6])
def test_bench_ends_when_the_server_hangs_up(fake, at):
    server = fake(lambda words: None if len(server.asked) >= at + 1 else b"+PONG\r\n")
    code, out, said = idem(server, *BENCH, "--what", "ping")
    assert code == 20 and "the server closed a connection, or was silent for 10 seconds" in said and out == "", said


def test_bench_takes_replies_in_pieces(fake):
    """A reply that comes with the rest of it later is one reply."""
    with folder() as where:
        pings, path = [0], where + "/pieces"

        def serve(client):
            with client:
                while data := client.recv(65536):
                    for _ in range(data.count(b"PING")):
                        pings[0] += 1
                        for piece in (b"+PO", b"NG\r", b"\n"):
                            client.sendall(piece)
                    if b"INFO" in data:
                        client.sendall(bulk("process_id:0\r\n"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(8)
            serve_each(listener, serve)
            code, out, said = idem(fake_path(path), *BENCH, "--what", "ping", "--json")
            listener.shutdown(socket.SHUT_RDWR)
    told = json.loads(out)
    assert code == 0 and told["errors"] == 0 and told["operations"] == pings[0] and "server_cpu_us" not in told, (said, told, pings)


# ---- id -------------------------------------------------------------------------------------------------------------------------

def test_id_tells_why_it_got_none(fake):
    assert idem(fake_path("/nowhere/s"), "id", "snowflake")[0] == 20
    refusing = fake(lambda words: info() if words == ["INFO"] else b"-UNAVAILABLE no worker number is free\r\n")
    code, out, said = idem(refusing, "id", "snowflake", "-n", "3")
    assert code == 20 and "no worker number is free" in said and out == "", said


def test_id_goes_on_with_a_server_that_was_restarted():
    with folder() as where:
        with Server(where) as server:
            first = subprocess.run([IDEM, "id", "segment:orders", "--server", server.socket], capture_output=True, text=True, timeout=60)
        with Server(where) as server:
            second = subprocess.run([IDEM, "id", "segment:orders", "--server", server.socket], capture_output=True, text=True, timeout=60)
    assert first.returncode == second.returncode == 0 and int(second.stdout) > int(first.stdout), (first, second)


def test_fewer_ids_than_were_asked_for_are_an_error(fake):
    """A script would go on without an id."""
    for reply, printed in ((b"+OK\r\n", ""), (b"*1\r\n$3\r\nids\r\n", ""), (b"*2\r\n$3\r\nids\r\n$1\r\n7\r\n", "7\n"), (b":7\r\n", "")):
        server = fake(lambda words: info() if words == ["INFO"] else reply)
        code, out, said = idem(server, "id", "uid", "-n", "2")
        assert code == 26 and out == printed and "unexpected reply" in said, (reply, code, out, said)
        os.unlink(server.path)


# ---- audit ----------------------------------------------------------------------------------------------------------------------

def test_audit_shows_what_a_trail_says_and_a_dash_for_the_rest(fake):
    lines = ['{"time":"t1","who":"ann","proposed_by":"bob","verb":"settle","scope":"s","id":"a","verdict":"settled","before":"doubt","after":"failed","reason":"r"}',
             '{"time":"t2","who":"\\u001b[2J","verb":"rollback"}', "edited by hand"]
    server = fake(lambda words: info() if words == ["INFO"] else b"*4\r\n" + bulk("entries") + b"".join(map(bulk, lines)))
    code, out, said = idem(server, "audit", "--scope", "s", "--id", "a", "--count", "7")
    assert code == 0 and said == "" and server.asked[-1] == ["AUDIT", "SCOPE", "s", "ID", "a", "COUNT", "7"], (server.asked, said)
    assert out.splitlines() == ['t1 ann (proposed by bob) settle s a settled: doubt -> failed "r"', "t2 \\x1b[2J rollback - - -: - -> -", "- - - - - -: - -> -"], out
    os.unlink(server.path)
    refusing = fake(lambda words: info() if words == ["INFO"] else b"-NOPERM no right to operate\r\n")
    code, out, said = idem(refusing, "audit")
    assert code != 0 and out == "" and "no right to operate" in said, (code, said)
