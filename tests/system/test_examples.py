"""The examples in other languages do what their pages say: claim, work, finish, replay."""
import concurrent.futures
import os
import shutil
import subprocess
import time

import pytest

from lib import ROOT, Server, build_go, folder

EXAMPLES = os.path.join(ROOT, "examples")


@pytest.fixture(scope="module")
def place():
    with folder() as where, Server(where, listen=True, http=True) as s:
        s.where = where
        yield s


@pytest.fixture(scope="module")
def classes(place):
    out = os.path.join(place.where, "classes")
    subprocess.run(["javac", "-d", out, os.path.join(EXAMPLES, "java/PayHttp.java")], check=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def go_program(place):
    return build_go(shutil.copy(os.path.join(EXAMPLES, "go/pay_redis.go"), place.where))


LANGUAGES = ["python, redis-py", "python, http", "node, redis", "node, http", "java, http", "shell, redis-cli",
             "php, phpredis", "go, redigo"]


@pytest.fixture(params=LANGUAGES)
def pay(request, place):
    path = lambda name: os.path.join(EXAMPLES, name)
    resp, http = "127.0.0.1:%d" % place.port, "127.0.0.1:%d" % place.http
    argv = {"python, redis-py": lambda: ["/usr/bin/python3", path("python/pay_redis.py"), resp],
            "python, http": lambda: ["/usr/bin/python3", path("python/pay_http.py"), http],
            "node, redis": lambda: ["node", path("node/pay_redis.cjs"), resp],
            "node, http": lambda: ["node", path("node/pay_http.mjs"), http],
            "java, http": lambda: ["java", "-Xshare:auto", "-cp", request.getfixturevalue("classes"), "PayHttp", http],
            "shell, redis-cli": lambda: [path("shell/pay.sh"), resp],
            "php, phpredis": lambda: ["php", path("php/pay_redis.php"), resp],
            "go, redigo": lambda: [request.getfixturevalue("go_program"), resp]}[request.param]()
    # Debian's node-redis lies where Debian's own nodejs looks by itself
    env = {**os.environ, "NODE_PATH": "/usr/share/nodejs"}

    def run(order, amount, ledger):
        return subprocess.run([*argv, order, amount, ledger], capture_output=True, text=True, timeout=120, env=env)
    return run


def test_paid_once_and_replayed(pay, place):
    order, ledger = "order %d/1" % time.monotonic_ns(), os.path.join(place.where, "ledger-%d" % time.monotonic_ns())
    first = pay(order, "12.50", ledger)
    assert (first.returncode, first.stdout) == (0, "paid 12.50 for %s\n" % order), first.stderr
    second = pay(order, "12.50", ledger)
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    other = pay(order, "99.00", ledger)
    assert other.returncode == 1 and "mismatch" in other.stderr and other.stdout == ""
    with open(ledger) as f:
        assert f.read() == "%s 12.50\n" % order


def test_four_at_once_pay_once(pay, place):
    order, ledger = "crowd-%d" % time.monotonic_ns(), os.path.join(place.where, "ledger-%d" % time.monotonic_ns())
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: pay(order, "1", ledger), range(4)))
    assert [r.stdout for r in runs] == ["paid 1 for %s\n" % order] * 4, [r.stderr for r in runs]
    with open(ledger) as f:
        assert f.read() == "%s 1\n" % order


def test_a_failure_gives_the_claim_back(pay, place):
    order = "fails-%d" % time.monotonic_ns()
    assert pay(order, "1", "/no/such/folder/ledger").returncode != 0
    ledger = os.path.join(place.where, "ledger-%d" % time.monotonic_ns())
    assert pay(order, "1", ledger).stdout == "paid 1 for %s\n" % order


def test_every_page_and_program_is_listed():
    with open(os.path.join(EXAMPLES, "README.md")) as f:
        text = f.read()
    for name in set(os.listdir(EXAMPLES)) - {"README.md"}:
        page = os.path.exists(os.path.join(EXAMPLES, name, "README.md"))
        assert "](%s%s" % (name, "/README.md)" if page else "") in text, name
