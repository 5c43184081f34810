"""The programmes of `make soak`: what each one does, how much of it the release gate wants, and one slice of it.

A slice takes about a minute and returns how much it did. It raises an error if a promise was broken. The same seed makes
the same choices.
"""
import collections
import os
import random
import re
import signal
import subprocess
import threading
import time

import servers
from chaos import Chaos, resp_replies
from crowd import Crowd, engines
from lib import IDEM, ROOT, Error, Resp, Server, folder, patient, wait_until
from programs import run_fuzz_target, run_pytest

# A store by its name in the table: what starts it. None: a URL in a new folder.
STORES = collections.OrderedDict(
    [("journal", None), ("sqlite", None), ("Redis", servers.Redis), ("Redis Cluster", servers.RedisCluster),
     ("PostgreSQL", servers.Postgres), ("MariaDB", servers.MariaDB), ("MySQL", servers.MySQL),
     ("ZooKeeper", servers.ZooKeeper), ("etcd", servers.Etcd)])
running = {}  # the servers of the stores, started when a slice needs them


class Broken(Exception):
    """A promise was broken, or a program failed; the text says how."""


def store_url(name, where):
    """The URL of a store. Its server goes on until stop_all()."""
    if STORES[name] is None:
        return "%s:%s/store" % (name, where)
    if name not in running:
        running[name] = STORES[name]()
        if name in ("PostgreSQL", "MariaDB", "MySQL"):
            program([IDEM, "store", "init", running[name].url])
    return patient(running[name].url)


def stop_all():
    while running:
        running.popitem()[1].stop()


def program(argv, seconds=1800, **env):
    """Run it to its end; what it said."""
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **{k: str(v) for k, v in env.items()}}, text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
    if done.returncode != 0:
        raise Broken("%s ended with %d:\n%s" % (" ".join(argv), done.returncode, done.stdout[-6000:]))
    return done.stdout


def c_test(name, pattern, **env):
    """A C test at the size of the environment; the number that it prints before `pattern`."""
    said = program([os.path.join(ROOT, "build", name)], **env)
    return sum(int(n) for n in re.findall(r"(\d+) " + pattern, said))


# ---- the journal ------------------------------------------------------------------------------------------------------

def journal_kills(_, seed, left):
    return c_test("src/store/journal/kill_test", "kills", IDEM_TEST_SEED=seed, IDEM_TEST_SIZE=min(left, 1000))


def crash_images(_, seed, left):
    return c_test("src/store/journal/crash_test", "images", IDEM_TEST_SEED=seed, IDEM_TEST_SIZE=min(left, 5000))


def fault_points(_, seed, left):
    return c_test("src/store/journal/journal_fault_test", "calls failed in turn", IDEM_TEST_SEED=seed)


# ---- the server -------------------------------------------------------------------------------------------------------

def server_kills(_, seed, left):
    """Eight clients; the server is killed at random moments and started again on its journal."""
    kills, dice = min(left, 200), random.Random(seed)
    with folder() as where:
        store, servers_ = "journal:%s/store" % where, []

        def start():
            servers_.append(Server(where, store=store))

        def kill_often():
            for _ in range(kills):
                time.sleep(dice.uniform(0.0, 0.25))
                servers_[-1].kill()
                start()

        start()
        try:
            os.environ["IDEM_TEST_SEED"] = str(seed)
            crowd = Crowd(servers_[:1], threads=8)
            crowd.run(ops=2000, seconds=600, meanwhile=kill_often)
            flaws = crowd.flaws()
        finally:
            del os.environ["IDEM_TEST_SEED"]
            servers_[-1].stop()
        if flaws:
            raise Broken("%d flaws: %s" % (len(flaws), "\n".join(flaws[:10])))
        if crowd.counts()["ok"] < kills:
            raise Broken("only %s: there was no load" % dict(crowd.counts()))
    return kills


def storm(name, seed, left):
    """Keys that a hundred callers want at once, at two engines: one starts, all the others get its answer."""
    keys, callers = min(left, 200), 100
    with folder() as where:
        url = store_url(name, where)
        single = STORES[name] is None and name == "journal"  # one process opens a journal
        with engines(url, 1 if single else 2) as both:
            lines = [Resp(both[i % len(both)].socket, 120) for i in range(callers)]
            for key in range(keys):
                one_key(lines, "storm-%d-%d" % (seed, os.getpid()), str(key))
    return keys


def one_key(lines, scope, key):
    for line in lines:
        line.send("BEGIN", scope, key, "LEASE", 600000, "WAIT", 60000)
    answers = {}

    def read(line):
        answers[line] = line.read()
        if not isinstance(answers[line], Error) and answers[line][0] == "started":
            fence = answers[line][1]
            for _ in range(500):
                answers[line] = ("started", line("FINISH", scope, key, fence, "SUCCEEDED", "done by " + str(id(line))))
                if answers[line][1][0] != "busy":  # while another engine's transaction holds the record
                    break

    threads = [threading.Thread(target=read, args=(line,)) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(130)
    started = [line for line in lines if isinstance(answers.get(line), tuple)]
    if len(started) != 1:
        raise Broken("%s/%s: %d callers started: %s" % (scope, key, len(started), list(answers.values())[:5]))
    if answers[started[0]][1][0] != "ok":
        raise Broken("%s/%s: FINISH said %s" % (scope, key, answers[started[0]][1]))
    for line in lines:
        answer = answers.get(line)
        if line is not started[0] and (isinstance(answer, Error) or answer is None or answer[0] != "replay" or
                                       answer[4] != "done by " + str(id(started[0]))):
            raise Broken("%s/%s: a duplicate got %s" % (scope, key, answer))


def checked_operations(name, seed, left):
    """Random operations; each answer is compared with the model in memory."""
    slow = name in ("ZooKeeper", "etcd", "MySQL")
    ops = min(left, 20000 if slow else 100000)
    with folder() as where:
        url = store_url(name, where)
        program([os.path.join(ROOT, "build/tests/c/differential_test")], IDEM_TEST_STORE=url, IDEM_TEST_SEED=seed,
                IDEM_TEST_OPS=ops)
    return ops


# ---- the gateway, system tests, fuzzing, simulator ------------------------------------------------------------------------

def pytest(file, *args, **env):
    """Run a file of tests/system; how many tests passed. A failed or skipped test is an error."""
    good, bad, said = run_pytest("tests/system/" + file, "soak-" + file, env, 4 * 3600, *args)
    if bad:
        raise Broken("%s: %d of %d failed:\n%s" % (file, bad, good + bad, said[-6000:]))
    return good


def gateway_kills(_, seed, left):
    return pytest("test_gateway_faults.py", "-k", "whatever_dies")


def whole_file(file, seed, left):
    pytest(file, IDEM_SOAK="1")
    return 1


def hostile(_, seed, left):
    program([os.path.join(ROOT, "tests/run"), "--only", "hostile"], seconds=7200, IDEM_TEST_SEED=seed, IDEM_TEST_SECONDS=600)
    return 1


def fuzz(target, seed, left):
    code, runs, said = run_fuzz_target(target, 7200, "-runs=%d" % min(left, 1000000), "-seed=%d" % (seed % 2**31 + 1),
                                       "-timeout=60")
    if code != 0:
        raise Broken("%s ended with %d:\n%s" % (target, code, said[-6000:]))
    return runs


def simulate(_, seed, left):
    seconds = min(left, 300)
    program([os.path.join(ROOT, "build/tests/sim/simulate"), "--seconds", str(seconds), "--seed", str(seed)])
    return seconds


# ---- mixed load --------------------------------------------------------------------------------------------------------

def mixed(_, seed, left):
    """Requests, duplicates, locks, tokens and ids over connections that break, at a server that is stopped now and then.
    Records expire after seconds, so the memory has to stay where it is after the first third."""
    seconds, problems = min(left, 900), []
    with folder() as where, Server(where, listen=True, store="journal:%s/store" % where) as server:
        lines = Chaos(server.port, replies=resp_replies)
        try:
            end = time.monotonic() + seconds
            threads = [threading.Thread(target=customer, args=(server, lines, "%d-%d" % (seed, i), end, problems))
                       for i in range(6)]
            for thread in threads:
                thread.start()
            sizes, dice = [], random.Random(seed)
            while time.monotonic() < end and not problems:
                time.sleep(min(5, max(0.1, end - time.monotonic())))
                fault = dice.choice(("cut", "cut", "stop", "delay"))
                if fault == "cut":
                    lines.cut_at(dice.randint(1, 20))
                elif fault == "stop":
                    server.send(signal.SIGSTOP)
                    time.sleep(dice.uniform(0.05, 0.5))
                    server.send(signal.SIGCONT)
                else:
                    lines.delay(0.01)
                    time.sleep(0.5)
                    lines.heal()
                sizes.append(server.rss_kib())
            for thread in threads:
                thread.join(120)
        finally:
            lines.stop()
    if problems:
        raise Broken("\n".join(problems[:10]))
    third = max(sizes[:max(1, len(sizes) // 3)])
    if max(sizes) > third * 1.1 + 8192:
        raise Broken("memory grew from %d to %d KiB: %s" % (third, max(sizes), sizes))
    return seconds


def customer(server, lines, name, end, problems):
    """One client: its own connection and one that breaks. It looks at every answer."""
    dice, number, broken = random.Random(name), 0, None
    safe = server.client(60)
    try:
        while time.monotonic() < end and not problems:
            number += 1
            key = "%s-%d" % (name, number)
            try:
                broken = broken or Resp(lines.port, 30)
                errand(dice.random(), safe, broken, key, problems)
            except (OSError, EOFError):
                broken = None
    except Exception as error:  # noqa: BLE001 - whatever it is, the slice has failed
        problems.append("%s: %r" % (name, error))


def errand(choice, safe, broken, key, problems):
    def expect(answer, *words):
        word = answer.word if isinstance(answer, Error) else answer[0] if isinstance(answer, list) else str(answer)
        if word not in words:
            problems.append("%s: %s instead of %s" % (key, answer, "/".join(words)))
        return answer

    if choice < 0.6:  # a request and its duplicates; the first reply may be lost
        nonce = "%016x" % random.getrandbits(64)
        try:
            answer = broken("BEGIN", "mixed", key, "NONCE", nonce, "LEASE", 60000)
        except (OSError, EOFError):
            answer = safe("BEGIN", "mixed", key, "NONCE", nonce, "LEASE", 60000)
        expect(answer, "started")
        expect(safe("BEGIN", "mixed", key), "busy")
        expect(safe("FINISH", "mixed", key, answer[1], "SUCCEEDED", "x" * 200, "TTL", 3000), "ok")
        expect(safe("BEGIN", "mixed", key), "replay")
    elif choice < 0.8:
        lock = "lock-" + key.rsplit("-", 1)[0]  # one for each client, because a free lock is kept for a month
        fence = expect(safe("LOCK", lock, "me", 60000), "started")[1]
        expect(safe("UNLOCK", lock, fence), "ok")
    else:
        token = expect(safe("ISSUE", "mixed", "TTL", 3000), "issued")[1]
        expect(safe("REDEEM", token, "mixed"), "redeemed")
        expect(safe("REDEEM", token, "mixed"), "duplicate")


# ---- the list ----------------------------------------------------------------------------------------------------------

FILES = ["test_consume.py", "test_faults.py", "test_gateway_security.py", "test_services.py", "test_sql.py", "test_stores_galera.py",
         "test_stores_redis.py", "test_stores_sql.py", "test_stores_zk_etcd.py"]

# The code that a programme executes: a slice counts until it changes.
BASE = ("include", "src/base", "src/record", "src/builtin")
JOURNAL = (*BASE, ":(glob)src/store/*.[ch]", "src/store/journal")
ENGINE = (*BASE, "src/store", "src/engine")
SERVER = (*ENGINE, "src/wire", "src/serve", "src/token", "src/id", "src/lock", "src/cli/cmd_serve.c")
GATEWAY = (*SERVER, "src/gateway")
WHOLE = ("src", "include", "sql")

Programme = collections.namedtuple("Programme", "name slice goal subjects english chinese code")
ONE = ("",)


def always(code):
    return lambda subject: code


def of_fuzzer(target):
    return (*BASE, "/".join(target.split("/")[:2]))


def programmes(fuzzers):
    return [
        Programme("server-kills", server_kills, 10000, ONE, "random kills of the server under load", "有负载时随机杀死服务器", always(SERVER)),
        Programme("journal-kills", journal_kills, 10000, ONE, "random kills of a process that writes to the journal",
                  "随机杀死正在写 journal 的进程", always(JOURNAL)),
        Programme("crash-images", crash_images, 25000, ONE, "disks as a power cut would leave them", "断电后的磁盘映像", always(JOURNAL)),
        Programme("fault-points", fault_points, 3600, ONE, "system calls of the journal that fail", "journal 的系统调用失败", always(JOURNAL)),
        Programme("gateway-kills", gateway_kills, 1425, ONE, "kills at named steps of a gateway request", "在网关请求的指定步骤杀死进程", always(GATEWAY)),
        Programme("storms", storm, 1000, tuple(STORES), "keys with 100 callers at once, on each store", "每种存储：每个键同时 100 个调用方", always(SERVER)),
        Programme("operations", checked_operations, 1000000, tuple(STORES), "random operations, each reply compared, on each store",
                  "每种存储：随机操作，逐个比较回复", always(ENGINE)),
        Programme("fuzz", fuzz, 5000000, tuple(fuzzers), "inputs for each fuzz target", "每个模糊测试目标的输入", of_fuzzer),
        Programme("simulator", simulate, 7200, ONE, "seconds of simulated worlds", "模拟世界的秒数", always((*SERVER, "src/remote"))),
        Programme("mixed", mixed, 7200, ONE, "seconds of mixed load with faults, memory flat", "带故障的混合负载的秒数，内存不增长", always(SERVER)),
        Programme("hostile", hostile, 1, ONE, "runs of `make hostile`, ten minutes for each surface", "`make hostile`，每种接入方式十分钟", always(GATEWAY)),
        Programme("files", whole_file, 1, tuple(FILES), "files of system tests at full size", "按最大规模运行的系统测试文件", always(WHOLE)),
    ]
