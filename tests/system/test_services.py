"""Tokens, ids and locks on every shared store and over the wire: crowds, kill -9, clocks that go back, a holder
that was paused. Waits more than it works."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import servers
from lib import IDEM, ROOT, SOAK, Error, Process, Server, dice, folder, patient, run_c_test, runs, wait_until

def clock(offset):
    """A wall clock that is wrong by so much; the clocks that nobody sets stay as they are."""
    return {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "FAKETIME": offset,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}


@pytest.fixture(scope="module", params=["Redis", "Postgres", "MariaDB", "ZooKeeper", "Etcd", "Idem"])
def shared(request):
    """Each store that several machines may share."""
    server = getattr(servers, request.param)()
    try:
        if request.param in ("Postgres", "MariaDB"):
            subprocess.run([IDEM, "store", "init", server.url], check=True, stdout=subprocess.DEVNULL)
        yield server
    finally:
        server.stop()


def test_a_crowd_on_two_engines_of_one_store(shared):
    run_c_test("services_test", shared.url, 3600 if SOAK else 300, **({} if SOAK else {"IDEM_TEST_ROUNDS": 4}))


def test_a_store_is_killed_while_locks_are_held(shared):
    """A long lease outlives it, the holder of a brief one is told, nobody holds one together with another, fences
    grow, and who comes later gets it."""
    subprocess.run(["make", "-s", "-j2", "build/tests/c/restart_test"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    program = subprocess.Popen([ROOT + "/build/tests/c/restart_test"], text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, "IDEM_TEST_STORE": patient(shared.url, 6000), "IDEM_TEST_DOWN": "1"})
    try:
        assert "held\n" in iter(program.stdout.readline, "")
        for _ in range(10 if SOAK else 1):
            time.sleep(1)
            shared.kill()
            time.sleep(1.2)
            shared.start()
        time.sleep(1)
        said, _ = program.communicate(timeout=180)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0 and "[  PASSED  ]" in said, said[-3000:]


def test_token_words_over_resp_and_a_fresh_one_in_the_answer():
    with folder() as f, Server(f) as server, server.client() as c:
        token = c("ISSUE", "ann")[1]
        assert c("REDEEM", token, "bob") == ["unknown"]
        assert c("REDEEM", "never-issued", "ann") == ["unknown"]
        word, fresh = c("REDEEM", token, "ann", "NEXT")
        assert word == "redeemed" and fresh != token
        assert c("REDEEM", token, "ann") == ["duplicate"]
        assert c("REDEEM", fresh, "ann") == ["redeemed"]
        brief = c("ISSUE", "ann", "TTL", 50)[1]
        time.sleep(0.2)
        assert c("REDEEM", brief, "ann") == ["unknown"]
        many = c("ISSUE", "ann", "COUNT", 100)[1:]
        assert len(set(many)) == 100
        # the idempotent use: a repeat gets the first answer
        fence = c("BEGIN", "ann", many[0], "TOKEN")[1]
        assert c("FINISH", "ann", many[0], fence, "SUCCEEDED", "paid")[0] == "ok"
        assert c("BEGIN", "ann", many[0], "TOKEN")[::4] == ["replay", "paid"]


def test_a_subject_that_asks_for_tokens_too_fast_is_told_when_to_come_back():
    with folder() as f, Server(f, "--token-rate", "1") as server, server.client() as c:
        assert len(c("ISSUE", "ann", "COUNT", 10)) == 11
        # One more a second: whoever asks at once is refused, however slowly it came this far.
        refused = wait_until(lambda: [a for a in [c("ISSUE", "ann")] if isinstance(a, Error)], step=0)[0]
        assert refused.word == "OVERLOADED" and "try again in" in str(refused)
        assert c("ISSUE", "bob")[0] == "issued"


def all_ids(client, kind, calls, count):
    return [int(i) for _ in range(calls) for i in client("ID", kind, count)[1:]]


@pytest.mark.parametrize("kind", ["snowflake", "uid", "segment:orders"])
def test_ids_survive_kill_9_and_clocks_that_go_back(kind):
    calls = 1000 if SOAK else 40
    seen, last = set(), 0
    with folder() as f:
        for offset in ["+0", "-3600s", "+0", "-2d", "+30s"]:
            server = Server(f, env=clock(offset))
            with server.client() as c:
                ids = all_ids(c, kind, calls, 1000)
            server.kill()
            server.__exit__()
            assert len(set(ids)) == len(ids) and not seen & set(ids)
            assert all(a < b for a, b in zip(ids, ids[1:]))
            seen |= set(ids)


@contextlib.contextmanager
def clocks_that_are_stepped(where, count):
    """The environments of so many processes whose wall clocks leap, each by itself, every half second."""
    files, over, random = ["%s/clock-%d" % (where, i) for i in range(count)], threading.Event(), dice()

    def step():
        for name in files:
            with open(name + ".new", "w") as out:
                out.write(random.choice(["+0", "-1s", "-3600s", "+20s", "-2d", "+4h"]))
            os.rename(name + ".new", name)

    def go_on():
        while not over.wait(0.5):
            step()

    step()
    thread = threading.Thread(target=go_on)
    thread.start()
    env = {**clock(""), "FAKETIME_CACHE_DURATION": "1"}
    del env["FAKETIME"]
    try:
        yield [{**os.environ, **env, "FAKETIME_TIMESTAMP_FILE": name} for name in files]
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["snowflake", "uid", "segment:orders", "uuid7"])
def test_processes_on_one_store_never_make_the_same_id(kind):
    """Eight at a time, half of them killed in the middle, on clocks that go back and forth."""
    count, random = 5000000 if SOAK else 100000, dice()
    subprocess.run(["make", "-s", "build/tests/tools/ids_check"], cwd=ROOT, check=True)
    store = servers.Redis()
    try:
        with folder() as f, clocks_that_are_stepped(f, 8) as clocks:
            files = []
            for round in range(2):
                running = []
                for i, env in enumerate(clocks):
                    files.append("%s/%d-%d" % (f, round, i))
                    with open(files[-1], "wb") as out:
                        running.append(subprocess.Popen([IDEM, "id", kind, "-n", str(count), "--store",
                                                         patient(store.url)], stdout=out, env=env))
                time.sleep(random.uniform(0.2, 8 if SOAK else 0.4))
                [p.kill() for p in running[::2]]
                assert all(p.wait(600) == 0 for p in running[1::2])
                [p.wait() for p in running]
            checked = subprocess.run([ROOT + "/build/tests/tools/ids_check", "increasing", *files], text=True,
                                     stdout=subprocess.PIPE)
    finally:
        store.stop()
    assert checked.returncode == 0, checked.stdout
    assert int(checked.stdout) >= 8 * count


def test_two_servers_on_one_store_never_hold_the_same_worker_number():
    store = servers.Redis()
    try:
        url = patient(store.url)
        with folder() as a, folder() as b, Server(a, store=url) as one, Server(b, store=url) as two:
            with one.client() as c, two.client() as d:
                first, second = (int(x("ID", "snowflake")[1]) for x in (c, d))
        assert first >> 12 & 1023 != second >> 12 & 1023
    finally:
        store.stop()


def test_explain_takes_an_id_apart():
    done = subprocess.run([IDEM, "id", "explain", "380278288381116416"], cwd=ROOT, text=True, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "worker: 0" in done.stdout and "2026-11-15" in done.stdout
    done = subprocess.run([IDEM, "id", "explain", "what"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 2 and "neither a number nor a UUID" in done.stdout


GUARD = r'''
# The guarded resource: refuses a fence lower than the highest it has seen.
exec 9>"$1/guard"; flock 9
high=$(cat "$1/high" 2>/dev/null || echo 0)
if [ "$IDEM_FENCE" -lt "$high" ]; then echo "$2 refused" >> "$1/log"; exit 0; fi
echo "$IDEM_FENCE" > "$1/high"; echo "$2 accepted" >> "$1/log"
'''


def lock_command(server, *words):
    return [IDEM, "lock", "job", "--server", "unix:" + server.socket, "--lease", "3s", *words]


def test_a_paused_holder_is_refused_by_the_resource_and_learns_that_it_lost():
    with folder() as f, Server(f) as server:
        open(f + "/guard.sh", "w").write(GUARD)
        log = lambda: open(f + "/log").read().split("\n")[:-1] if os.path.exists(f + "/log") else []
        holder = Process(lock_command(server, "--", "sh", "-c",
                                      "sh %s/guard.sh %s a; while [ ! -e %s/go ]; do sleep 0.02; done; "
                                      "sh %s/guard.sh %s a; sleep 20" % (f, f, f, f, f)))
        assert wait_until(lambda: log() == ["a accepted"])
        os.kill(holder.pid, signal.SIGSTOP)  # idem cannot renew; the command itself goes on
        subprocess.run(lock_command(server, "--wait", "20s", "--", "sh", f + "/guard.sh", f, "b"), check=True)
        open(f + "/go", "w").close()
        assert wait_until(lambda: len(log()) == 3)
        assert log() == ["a accepted", "b accepted", "a refused"]
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.wait() == 76 and "was lost" in holder.output()


def test_a_lock_outlives_a_restart_of_the_server_and_its_fence_grows():
    with folder() as f:
        server = Server(f)
        with server.client() as c:
            first = c("LOCK", "job", "a", 60000)[1]
        server.kill()
        with Server(f) as server, server.client() as c:
            assert c("LOCK", "job", "b", 1000)[0] == "busy"
            assert c("LOCK", "job", "a", 60000)[:2] == ["started", first]
            assert c("UNLOCK", "job", first) == ["ok"]
            second = c("LOCK", "job", "b", 100)[1]
            time.sleep(0.3)
            third = c("LOCK", "job", "c", 1000)[1]
            assert first < second < third
            assert c("UNLOCK", "job", second) == ["stale"]


def test_idem_lock_gives_the_commands_own_status_and_says_when_it_is_held():
    with folder() as f, Server(f) as server:
        assert subprocess.run(lock_command(server, "--", "sh", "-c", "exit 7")).returncode == 7
        with server.client() as c:
            c("LOCK", "job", "other", 60000)
        done = subprocess.run(lock_command(server, "--", "true"), stderr=subprocess.PIPE, text=True)
        assert done.returncode not in (0, 7) and "held by another" in done.stderr


def test_permits_readers_writers_and_several_locks_on_the_command_line():
    lock = lambda server, name, *words: [IDEM, "lock", name, "--server", "unix:" + server.socket, *words]  # noqa: E731
    code = lambda *argv: subprocess.run(argv, stderr=subprocess.DEVNULL).returncode  # noqa: E731
    hold = ["--", "sh", "-c", 'touch "$0"; exec sleep 60']
    with folder() as f, Server(f) as server:
        def holding(name, *words):
            mark = "%s/held-%d" % (f, len(os.listdir(f)))
            process = Process(lock(server, name, *words, *hold, mark))
            assert wait_until(lambda: os.path.exists(mark)), process.output()
            return process

        with holding("pool", "--permits", "2"), holding("pool", "--permits", "2") as second:
            assert code(*lock(server, "pool", "--permits", "2", "--", "true")) == 11
            second.stop()
            assert code(*lock(server, "pool", "--permits", "2", "--wait", "20s", "--", "true")) == 0
        with holding("file", "--read"):
            assert code(*lock(server, "file", "--read", "--", "true")) == 0
            assert code(*lock(server, "file", "--write", "--", "true")) == 11
        assert code(*lock(server, "file", "--write", "--wait", "40s", "--", "true")) == 0
        with holding("b", "--also", "a"):
            assert code(*lock(server, "a", "--", "true")) == 11
            assert code(*lock(server, "c", "--also", "b", "--", "true")) == 11
            assert code(*lock(server, "c", "--", "true")) == 0
        assert code(*lock(server, "x", "--read", "--write", "--", "true")) == 2
        assert code(*lock(server, "x", "--permits", "2")) == 2
        for number in ("0", "65"):
            assert code(*lock(server, "x", "--permits", number, "--", "true")) == 2


def test_a_command_ends_with_the_idem_that_held_its_lock():
    with folder() as f, Server(f) as server:
        holder = Process(lock_command(server, "--", "sh", "-c", "echo $$ > %s/pid; exec sleep 60" % f))
        assert wait_until(lambda: os.path.exists(f + "/pid") and open(f + "/pid").read().strip())
        command = int(open(f + "/pid").read())
        assert runs(command)
        holder.send(signal.SIGKILL)
        holder.wait()
        assert wait_until(lambda: not runs(command))


def test_the_guarded_example_shows_the_fence_at_work():
    done = subprocess.run([os.path.join(os.path.dirname(IDEM), "examples/guarded")], text=True, stdout=subprocess.PIPE)
    assert done.stdout == "ann writes: accepted\nbob writes: accepted\nann writes: REFUSED\n"
