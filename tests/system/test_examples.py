"""The examples in other languages do what their pages say: claim, ask the bank, finish, replay; and whatever breaks, the
bank is asked to pay once. Waits more than it works."""
import collections
import concurrent.futures
import http.server
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

import pytest

from chaos import Chaos
from lib import ROOT, Process, Server, build_go, folder, free_port, wait_until

EXAMPLES = os.path.join(ROOT, "examples")


class Bank:
    """The service that is paid with: a payment counts as soon as it is asked for, as a bank's would. An order named
    slow-… is paid and not answered, cut-… paid and its connection closed, declined-… refused."""

    def __init__(self):
        self.asked = collections.Counter()
        self.over = threading.Event()
        bank = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                order = form["order"]
                bank.asked[order] += 1
                if order.startswith("slow"):
                    bank.over.wait(60)
                if order.startswith(("slow", "cut")):
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(402 if order.startswith("declined") else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # programs are killed here

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


class CutOnce(Chaos):
    """The first answer that has one of these words in it never arrives."""

    def __init__(self, port, *words):
        self.words = list(words)
        super().__init__(port)

    def answer(self, client, data):
        for word in self.words:
            if word in data:
                self.words.remove(word)
                return None
        client.sendall(data)
        return b""


@pytest.fixture(scope="module")
def place():
    with folder() as where, Server(where, listen=True, http=True) as s:
        s.where, s.bank = where, Bank()
        yield s
        s.bank.close()


@pytest.fixture(scope="module")
def programs(place):
    """What to run for each language: the words before the server's address, and which of its ports it speaks to."""
    path = lambda name: os.path.join(EXAMPLES, name)
    classes = os.path.join(place.where, "classes")
    subprocess.run(["javac", "-d", classes, path("java/PayHttp.java")], check=True, timeout=120)
    go = build_go(shutil.copy(path("go/pay_redis.go"), place.where))
    resp, http = place.port, place.http
    return {"python, redis-py": (["/usr/bin/python3", path("python/pay_redis.py")], resp),
            "python, http": (["/usr/bin/python3", path("python/pay_http.py")], http),
            "node, redis": (["node", path("node/pay_redis.cjs")], resp),
            "node, http": (["node", path("node/pay_http.mjs")], http),
            "java, http": (["java", "-Xshare:auto", "-cp", classes, "PayHttp"], http),
            "shell, redis-cli": ([path("shell/pay.sh")], resp),
            "php, phpredis": (["php", path("php/pay_redis.php")], resp),
            "go, redigo": ([go], resp)}


LANGUAGES = ["python, redis-py", "python, http", "node, redis", "node, http", "java, http", "shell, redis-cli",
             "php, phpredis", "go, redigo"]


class Pay:
    def __init__(self, programs, language):
        self.words, self.port = programs[language]
        self.name = re.sub(r"\W+", "-", language)

    def order(self, what):
        return "%s-%s-%d" % (what, self.name, time.monotonic_ns())

    def start(self, order, amount, bank, port=None):
        # Debian's node-redis lies where Debian's own nodejs looks by itself
        return subprocess.Popen([*self.words, "127.0.0.1:%d" % (port or self.port), order, amount, bank], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                env={**os.environ, "NODE_PATH": "/usr/share/nodejs"}, start_new_session=True)

    def __call__(self, *args, **named):
        process = self.start(*args, **named)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(params=LANGUAGES)
def pay(request, programs):
    return Pay(programs, request.param)


def test_paid_once_and_replayed(pay, place):
    order = "order %d/1" % time.monotonic_ns()
    first = pay(order, "12.50", place.bank.url)
    assert (first.returncode, first.stdout) == (0, "paid 12.50 for %s\n" % order), first.stderr
    second = pay(order, "12.50", place.bank.url)
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    other = pay(order, "99.00", place.bank.url)
    assert other.returncode == 1 and "mismatch" in other.stderr and other.stdout == ""
    assert place.bank.asked[order] == 1


def test_four_at_once_pay_once(pay, place):
    order = pay.order("crowd")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: pay(order, "1", place.bank.url), range(4)))
    assert [r.stdout for r in runs] == ["paid 1 for %s\n" % order] * 4, [r.stderr for r in runs]
    assert place.bank.asked[order] == 1


def test_a_bank_that_was_not_reached_gives_the_claim_back(pay, place):
    order = pay.order("away")
    away = pay(order, "1", "http://127.0.0.1:%d" % free_port())
    assert away.returncode == 1 and away.stdout == "" and "not paid" in away.stderr
    assert pay(order, "1", place.bank.url).stdout == "paid 1 for %s\n" % order


def test_a_declined_payment_is_a_result_too(pay, place):
    order = pay.order("declined")
    for _ in range(2):
        answer = pay(order, "1", place.bank.url)
        assert (answer.returncode, answer.stdout) == (1, "declined: 1 for %s\n" % order), answer.stderr
    assert place.bank.asked[order] == 1


def test_lost_replies_are_asked_for_again(pay, place):
    order = pay.order("lost")
    line = CutOnce(pay.port, b"started", b'"ok"' if pay.port == place.http else b"\r\nok\r\n")
    try:
        answer = pay(order, "1", place.bank.url, port=line.port)
    finally:
        line.stop()
    assert (answer.returncode, answer.stdout) == (0, "paid 1 for %s\n" % order), answer.stderr
    assert line.words == [] and place.bank.asked[order] == 1
    assert pay(order, "1", place.bank.url).stdout == answer.stdout


def play(pay, place, fault):
    """One fault, then a retry at once and one that waits until the lease is over: what they said."""
    order = pay.order({"timeout": "slow", "cut": "cut", "killed": "slow"}[fault])
    first = pay.start(order, "1", place.bank.url)
    if fault == "killed":
        assert wait_until(lambda: place.bank.asked[order]), first.communicate()
        os.killpg(first.pid, signal.SIGKILL)
    out, err = first.communicate(timeout=120)
    said = [(first.returncode, out, err)]
    for _ in range(2):
        again = pay(order, "1", place.bank.url)
        said.append((again.returncode, again.stdout, again.stderr))
    return order, said


def test_what_may_have_been_paid_is_never_paid_again(programs, place):
    """The bank times out, is cut off, or the program is killed while it waits: at once it is busy, later in doubt."""
    faults = ["timeout", "cut", "killed"]
    with concurrent.futures.ThreadPoolExecutor(len(LANGUAGES) * 3) as pool:
        played = {(language, fault): pool.submit(play, Pay(programs, language), place, fault)
                  for language in LANGUAGES for fault in faults}
    for (language, fault), future in played.items():
        order, said = future.result()
        assert place.bank.asked[order] == 1, (language, fault, said)
        assert all(code != 0 and out == "" for code, out, _ in said), (language, fault, said)
        if fault != "killed":
            assert "outcome unknown" in said[0][2], (language, fault, said)
        assert "outcome unknown" in said[2][2] and "idem settle shop" in said[2][2], (language, fault, said)


def test_the_pretend_bank_of_the_pages(programs):
    """It is what the pages tell the reader to start."""
    port = free_port()
    with Process(["/usr/bin/python3", os.path.join(EXAMPLES, "pretend_bank.py"), str(port)], ready=port) as bank:
        pay = Pay(programs, "python, http")
        url = "http://127.0.0.1:%d" % port
        fine, costly = pay.order("fine"), pay.order("costly")
        assert [pay(fine, "12.50", url).returncode for _ in range(2)] == [0, 0]
        assert [pay(costly, "1000.01", url).returncode for _ in range(2)] == [1, 1]
        assert bank.output() == "paid 12.50 for %s\ndeclined 1000.01 for %s\n" % (fine, costly)


def test_every_page_and_program_is_listed():
    with open(os.path.join(EXAMPLES, "README.md")) as f:
        text = f.read()
    for name in set(os.listdir(EXAMPLES)) - {"README.md"}:
        page = os.path.exists(os.path.join(EXAMPLES, name, "README.md"))
        assert "](%s%s" % (name, "/README.md)" if page else "") in text, name
