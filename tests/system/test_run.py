"""`idem run`: any command at most once, over a server and on a store of its own; and the command line against a server."""
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from lib import IDEM, SANITIZED, Server, folder, serve_each, wait_until


class Cli:
    """The idem command with one place for its records."""

    def __init__(self, where, **env):
        self.where = where
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
        self.env.update({"IDEM_SANITIZED": os.environ.get("IDEM_SANITIZED", "")}, **env)

    def __call__(self, *args, input=None, timeout=60):
        r = subprocess.run([IDEM, *map(str, args)], capture_output=True, input=input, env=self.env, timeout=timeout)
        assert b"Sanitizer" not in r.stderr and b"runtime error:" not in r.stderr, r.stderr.decode(errors="replace")
        return r

    def start(self, *args, **kwargs):
        return subprocess.Popen([IDEM, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.env, **kwargs)

    def json(self, *args):
        return json.loads(self(*args, "--json").stdout)


@pytest.fixture(scope="module")
def server():
    with folder() as where, Server(where, listen=True) as s:
        s.where = where
        yield s


@pytest.fixture(params=["server", "sqlite"])
def idem(request, server):
    """Over a server, and with a store that many processes may open."""
    if request.param == "server":
        yield Cli(server.where, IDEM_SERVER="unix:" + server.socket)
    else:
        with folder() as where:
            cli = Cli(where, IDEM_STORE="sqlite:" + os.path.join(where, "records.db"))
            assert cli("store", "init", cli.env["IDEM_STORE"]).returncode == 0
            yield cli


@pytest.fixture
def cli(server):
    return Cli(server.where, IDEM_SERVER="unix:" + server.socket)


def script(where, text):
    path = os.path.join(where, "job-%d.sh" % time.monotonic_ns())
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def name():
    return "n%d" % time.monotonic_ns()


# ---- idem run ------------------------------------------------------------------

def test_a_repeat_gets_the_same_bytes_and_the_same_status(idem):
    id, ran = name(), os.path.join(idem.where, name())
    job = script(idem.where, r"printf 'out\n\000\377x'; printf 'err\n' >&2; echo ran >> %s; exit 7" % ran)
    first = idem("run", "job", id, "--", job)
    assert (first.returncode, first.stdout, first.stderr) == (7, b"out\n\0\xffx", b"err\n")
    for _ in range(2):
        again = idem("run", "job", id, "--", job)
        assert (again.returncode, again.stdout, again.stderr) == (first.returncode, first.stdout, first.stderr)
    with open(ran) as f:
        assert f.read() == "ran\n"
    record = idem.json("get", "job", id)
    assert record["state"] == "failed" and record["kind"] == "exec"


def test_output_that_cannot_be_passed_on_is_told_and_kept(idem):
    id = name()
    with open("/dev/full", "wb") as full:
        done = subprocess.run([IDEM, "run", "job", id, "--", "sh", "-c", "echo one; sleep 0.1; echo two"], stdout=full, stderr=subprocess.PIPE, env=idem.env)
    assert done.returncode == 0 and done.stderr.count(b"cannot pass on the output of the command: No space left on device\n") == 1, done.stderr
    assert idem("run", "job", id, "--", "sh", "-c", "echo one; sleep 0.1; echo two").stdout == b"one\ntwo\n"


def test_success_is_kept_and_an_operator_may_forget_it(idem):
    id = name()
    assert idem("run", "job", id, "--", "echo", "a b", "c").stdout == b"a b c\n"
    assert idem.json("get", "job", id)["state"] == "succeeded"
    assert idem("forget", "job", id).returncode == 0
    assert idem("run", "job", id, "--", "echo", "again").stdout == b"again\n"


def test_another_command_under_the_same_id_is_a_mismatch(idem):
    id = name()
    idem("run", "job", id, "--", "echo", "1")
    other = idem("run", "job", id, "--", "echo", "2")
    assert other.returncode == 13 and other.stdout == b"" and b"with a new id it could run twice" in other.stderr
    assert idem("run", "job", id, "--any-command", "--", "echo", "2").stdout == b"1\n"


def test_loose_runs_until_it_succeeds(idem):
    id, mark = name(), os.path.join(idem.where, name())
    job = script(idem.where, "echo try >> %s; test $(wc -l < %s) -ge 3" % (mark, mark))
    codes = [idem("run", "job", id, "--loose", "--", job).returncode for _ in range(5)]
    assert codes == [1, 1, 0, 0, 0]
    with open(mark) as f:
        assert f.read() == "try\n" * 3


def test_a_signal_is_an_outcome_too(idem):
    id = name()
    for _ in range(2):
        assert idem("run", "job", id, "--", "sh", "-c", "echo x; kill -9 $$").returncode == 137


def test_what_cannot_be_started_was_not_run(idem):
    id = name()
    missing = idem("run", "job", id, "--", "/no/such/command")
    assert missing.returncode == 127 and b"No such file" in missing.stderr
    noexec = os.path.join(idem.where, name())
    open(noexec, "w").close()
    assert idem("run", "job", id, "--", noexec).returncode == 126
    assert idem("run", "job", id, "--", "echo", "now").stdout == b"now\n"


def test_the_command_knows_its_claim(idem):
    id = name()
    out = idem("run", "my scope", id, "--", "sh", "-c", 'echo "$IDEM_SCOPE/$IDEM_ID/$IDEM_FENCE"').stdout.decode()
    match = re.match(r"my scope/%s/(\d+)\n$" % id, out)
    assert match and int(match[1]) == idem.json("get", "my scope", id)["fence"]


def test_output_is_passed_on_while_it_runs(idem):
    run = idem.start("run", "job", name(), "--", "sh", "-c", "echo early; read x; echo $x", stdin=subprocess.PIPE)
    assert run.stdout.readline() == b"early\n"  # long before its end
    run.stdin.write(b"late\n")
    run.stdin.close()
    assert run.stdout.read() == b"late\n" and run.wait(30) == 0
    run.stdout.close()
    run.stderr.close()


def test_output_over_the_limit_is_cut_for_repeats_and_says_so(idem):
    id = name()
    first = idem("run", "job", id, "--keep", "10", "--", "seq", "1", "1000")
    assert len(first.stdout) == 3893
    again = idem("run", "job", id, "--keep", "10", "--", "seq", "1", "1000")
    assert again.stdout == first.stdout[:10] and again.returncode == 0
    assert b"3883 bytes of output were not kept" in again.stderr


def test_output_over_the_servers_limit_is_cut_and_the_status_stays():
    with folder() as where, Server(where, "--max-result", "4k") as s:
        cli = Cli(where, IDEM_SERVER="unix:" + s.socket)
        command = "run", "job", "1", "--keep", "10m", "--", "sh", "-c", "seq 1 100000; exit 7"
        first, again = cli(*command), cli(*command)
        assert first.returncode == again.returncode == 7, again.stderr
        assert len(first.stdout) > len(again.stdout) > 3000 and first.stdout.startswith(again.stdout)
        assert b"bytes of output were not kept" in again.stderr


def test_the_command_has_the_files_that_idem_was_given_and_no_others(idem):
    """An open connection to the server would be as good as the credentials."""
    for command in ("run", "job", name()), ("lock", name()):
        r = subprocess.run(["sh", "-c", 'exec 9</dev/null; "$@"', "sh", IDEM, *command, "--",
                            "sh", "-c", "ls -l /proc/$$/fd"], capture_output=True, env=idem.env, timeout=60)
        files = dict(re.findall(r" (\d+) -> (\S+)", r.stdout.decode()))
        assert files.get("9") == "/dev/null", (r.stdout, r.stderr)
        assert not [name for name in files.values() if name.startswith("socket:") or "records.db" in name], files


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_to_a_closed_stream_does_not_go_to_the_server(idem, closed):
    id, text = name(), "FORGET job x"
    r = subprocess.run(["sh", "-c", '"$@" ' + closed, "sh", IDEM, "run", "job", id, "--", "sh", "-c",
                        "echo %s; echo %s >&2" % (text, text)], capture_output=True, env=idem.env, timeout=60)
    assert r.returncode == 0, r.stderr
    again = idem("run", "job", id, "--", "sh", "-c", "echo %s; echo %s >&2" % (text, text))
    assert again.stdout == again.stderr == text.encode() + b"\n"


def test_the_lease_is_kept_alive(idem):
    id = name()
    run = idem.start("run", "job", id, "--lease", "5s", "--", "sh", "-c", "sleep 6; echo done")
    assert wait_until(lambda: idem.json("get", "job", id).get("state") == "executing", 20)
    seen = set()
    while run.poll() is None:
        seen.add(idem("begin", "job", id).returncode)
        time.sleep(0.1)
    out, _ = run.communicate(timeout=30)
    assert out == b"done\n" and run.returncode == 0 and seen <= {11, 10} and 11 in seen


def test_ten_at_once_run_it_once(idem):
    id, ran = name(), os.path.join(idem.where, name())
    job = script(idem.where, "echo ran >> %s; sleep 1; echo result" % ran)
    args = ("run", "cron", id, "--wait", "50s", "--", job)
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        runs = list(pool.map(lambda _: idem(*args, timeout=100), range(10)))
    assert [(r.returncode, r.stdout) for r in runs] == [(0, b"result\n")] * 10, runs
    with open(ran) as f:
        assert f.read() == "ran\n"


def test_without_waiting_the_others_are_busy(idem):
    id, go = name(), os.path.join(idem.where, name())
    run = idem.start("run", "job", id, "--", "sh", "-c", "until test -e %s; do sleep 0.05; done" % go)
    assert wait_until(lambda: idem.json("get", "job", id).get("state") == "executing", 20)
    busy = idem("run", "job", id, "--", "sh", "-c", "until test -e %s; do sleep 0.05; done" % go)
    assert busy.returncode == 11 and b"right now" in busy.stderr
    open(go, "w").close()
    run.communicate(timeout=30)
    assert run.returncode == 0


def test_killed_in_the_middle_strict_is_in_doubt_and_loose_runs_again(idem):
    for mode, verdict in ((), 12), (("--loose",), 0):
        id, ran = name(), os.path.join(idem.where, name())
        job = script(idem.where, "echo ran >> %s; test $(wc -l < %s) -gt 1 || sleep 60" % (ran, ran))
        run = idem.start("run", "job", id, "--lease", "300ms", *mode, "--", job)
        assert wait_until(lambda: os.path.exists(ran) and os.path.getsize(ran), 20)
        run.kill()
        run.communicate(timeout=30)
        assert wait_until(lambda: idem("run", "job", id, *mode, "--lease", "5s", "--wait", "2s", "--", job,
                                       timeout=90).returncode == verdict, 40, 0.2)
        with open(ran) as f:
            assert f.read().count("ran") == (1 if verdict else 2)
        if verdict:
            assert idem("settle", "job", id, "--as", "succeeded", "--wait", "20s").returncode == 0
            assert idem("run", "job", id, "--", job).returncode == 10  # settled, without output
    # the command was told to stop when its keeper died
    assert wait_until(lambda: not any("job-" in line for line in sleeping_jobs(idem.where)), 20)


def sleeping_jobs(where):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid) as f:
                line = f.read()
            if where in line and "run\0" not in line:
                yield line
        except OSError:
            pass


@contextlib.contextmanager
def handled(number):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_signals_go_on_to_the_command(cli, number):
    id, ready = name(), os.path.join(cli.where, name())
    job = script(cli.where, "trap 'echo caught; exit 3' TERM HUP USR1 INT\n: > %s\nwhile :; do sleep 0.05; done" % ready)
    with handled(number):  # a command started with it ignored, as under nohup, would go on ignoring it
        run = cli.start("run", "job", id, "--", job)
    assert wait_until(lambda: os.path.exists(ready), 20)
    run.send_signal(number)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out) == (3, b"caught\n"), err
    again = cli("run", "job", id, "--", job)
    assert (again.returncode, again.stdout) == (3, b"caught\n")


def test_a_lost_claim_is_said(cli):
    id = name()
    go = os.path.join(cli.where, id)
    run = cli.start("run", "job", id, "--lease", "3s", "--", "sh", "-c", "until test -e %s; do sleep 0.05; done" % go)
    assert wait_until(lambda: cli.json("get", "job", id).get("state") == "executing", 20)
    assert cli("forget", "job", id).returncode == 0
    assert b"claim is lost" in run.stderr.readline()
    open(go, "w").close()
    run.communicate(timeout=30)
    assert run.returncode == 15


def test_something_left_behind_does_not_hold_it_up(cli):
    start = time.monotonic()
    r = cli("run", "job", name(), "--", "sh", "-c", "sleep 15 & echo main")
    assert (r.returncode, r.stdout) == (0, b"main\n") and time.monotonic() - start < 10


def test_a_server_that_restarts_meanwhile_gets_the_outcome():
    with folder() as where:
        first = Server(where)
        cli = Cli(where, IDEM_SERVER="unix:" + first.socket)
        run = cli.start("run", "job", "1", "--lease", "2s", "--", "sh", "-c", "sleep 1; echo over")
        assert wait_until(lambda: cli.json("get", "job", "1").get("state") == "executing", 20)
        first.kill()
        time.sleep(1.5)
        with Server(where):
            out, err = run.communicate(timeout=60)
            assert (run.returncode, out) == (0, b"over\n"), err
            assert cli("run", "job", "1", "--", "sh", "-c", "sleep 1; echo over").stdout == b"over\n"


def test_a_store_that_is_not_there_runs_nothing():
    with folder() as where:
        cli = Cli(where, IDEM_SERVER="unix:" + os.path.join(where, "none"))
        ran = os.path.join(where, "ran")
        r = cli("run", "job", "1", "--", "touch", ran)
        assert r.returncode == 20 and b"idem serve" in r.stderr and not os.path.exists(ran)


@pytest.mark.parametrize("args", [
    ("run",), ("run", "a"), ("run", "a", "b"), ("run", "a", "b", "--lease", "0", "--", "true"),
    ("run", "a", "b", "--lease", "50ms", "--", "true"), ("run", "a", "b", "--nonsense", "--", "true"),
    ("run", "a", "b", "--keep", "1g", "--", "true"), ("run", "a", "b", "--server", "nowhere", "--", "true"),
    ("run", "a", "b", "--server", "http://me:hidden-word@127.0.0.1:7399", "--", "true"),
    ("run", "a", "b", "--server", "x:1", "--store", "memory:", "--", "true"),
    ("run", "x" * 201, "b", "--", "true"), ("run", "", "b", "--", "true"),
    ("issue",), ("issue", "me", "--count", "0"), ("issue", "me", "--ttl", "0"), ("redeem", "t"),
    ("redeem", "t", "me", "--nonce", "x"), ("top", "x"), ("top", "--every", "1ms")])
def test_a_wrong_command_line_does_nothing(cli, args):
    r = cli(*args)
    assert r.returncode == 2 and r.stderr.startswith(b"idem: ") and r.stdout == b""
    assert b"hidden-word" not in r.stderr


# ---- the other commands against a server ------------------------------------------

def test_every_verb_over_a_server(cli, server):
    begin = lambda *a: cli("begin", "shop", *a)
    id = name()
    fence = begin(id, "--print", "fence", "--payload", "a").stdout.decode().strip()
    assert begin(id).returncode == 11 and begin(id, "--payload", "b").returncode == 13
    assert cli("renew", "shop", id, fence, "60s").returncode == 0
    assert cli("finish", "shop", id, int(fence) + 1, "succeeded").returncode == 15
    assert cli("finish", "shop", id, fence, "succeeded", "-", input=b"\0\xff").returncode == 0
    assert cli("finish", "shop", id, fence, "failed", "x").returncode == 14
    assert begin(id, "--print", "result").stdout == b"\0\xff"
    assert begin(id).returncode == 10 and cli("get", "shop", "none").returncode == 16
    assert cli("settle", "shop", id).returncode == 10
    other = name()
    fence = begin(other, "--print", "fence").stdout.decode().strip()
    assert cli("release", "shop", other, fence).returncode == 0
    assert cli("release", "shop", other, fence).returncode == 15
    assert cli("settle", "shop", other, "--reason", "too late").returncode == 0
    record = cli.json("get", "shop", other)
    assert record["state"] == "failed" and record["result"] == "too late" and record["fence"] > int(fence)
    assert cli("forget", "shop", other).returncode == 0 and begin(other).returncode == 0
    doubt = name()
    begin(doubt, "--lease", "50ms")
    assert wait_until(lambda: begin(doubt).returncode == 12, 20)
    assert cli("settle", "shop", doubt).returncode == 12
    assert doubt in cli("scan", "--doubt").stdout.decode()
    assert cli("settle", "shop", doubt, "--as", "succeeded").returncode == 0
    assert begin(doubt).returncode == 10
    waiter = cli.start("begin", "shop", other, "--wait", "40s", "--print", "result")
    time.sleep(0.3)
    cli("finish", "shop", other, cli.json("get", "shop", other)["fence"], "succeeded", "worth it")
    assert waiter.communicate(timeout=60)[0] == b"worth it"


def test_an_answer_tells_what_is_known_and_nothing_else(idem):
    """A server's answer has less than a record: what it does not say is not made up."""
    id = name()
    begun = idem.json("begin", "shop", id, "--loose", "--lease", "50s")
    assert begun["verdict"] == "started" and begun["lease_until"] < begun["expires"] and "settled" not in begun
    renewed = idem.json("renew", "shop", id, begun["fence"], "90s")
    assert renewed["verdict"] == "ok" and renewed["lease_until"] > begun["lease_until"]
    assert b"lease until: 20" in idem("renew", "shop", id, begun["fence"], "90s").stdout
    done = idem.json("finish", "shop", id, begun["fence"], "succeeded", "yes")
    assert done["verdict"] == "ok" and done["expires"] > 0
    replay = idem.json("begin", "shop", id)
    assert (replay["state"], replay["kind"], replay["result"]) == ("succeeded", "raw", "yes") and "mode" not in replay
    assert idem.json("get", "shop", id)["mode"] == "loose"
    other = name()
    assert idem.json("settle", "shop", other)["state"] == "failed"
    assert idem.json("get", "shop", other)["settled"] is True and idem.json("get", "shop", id)["settled"] is False


def test_scan_over_a_server_sees_everything(cli, server):
    with server.client() as c:
        for i in range(250):
            c("BEGIN", "many", "id-%d" % i)
    out = cli("scan", "--scope", "many", "--json").stdout.decode()
    assert {r["id"] for r in map(json.loads, out.splitlines()) if "id" in r} == {"id-%d" % i for i in range(250)}


def test_tokens_over_a_server_and_on_a_store(idem):
    token = idem("issue", "me").stdout.decode().strip()
    assert idem("redeem", token, "you").returncode == 18
    nonce = "0123456789abcdef"
    assert idem("redeem", token, "me", "--nonce", nonce).returncode == 0
    assert idem("redeem", token, "me", "--nonce", nonce).returncode == 0
    assert idem("redeem", token, "me").returncode == 17
    tokens = idem.json("issue", "me", "--count", 3, "--ttl", "1h")["tokens"]
    assert len(set(tokens)) == 3
    assert idem("begin", "me", tokens[0], "--token").returncode == 0
    assert idem("begin", "me", tokens[0], "--token").returncode == 11
    assert idem("begin", "me", "never-issued", "--token").returncode == 18


def test_a_lock_over_a_server_is_kept_and_given_back(cli):
    lock = name()
    held = os.path.join(cli.where, lock)
    first = cli.start("lock", lock, "--lease", "5s", "--", "sh", "-c", ": > %s; sleep 6; echo held" % held)
    assert wait_until(lambda: os.path.exists(held), 20)
    second = cli("lock", lock, "--wait", "40s", "--", "echo", "mine", timeout=80)
    assert second.stdout == b"mine\n" and second.returncode == 0
    assert first.poll() == 0 or first.wait(20) == 0
    assert first.communicate()[0] == b"held\n"


def test_top_shows_what_happens(cli, server):
    with server.client() as c:
        c("BEGIN", "top", name())
        look = json.loads(cli("top", "--once", "--every", "100ms", "--json").stdout)
        assert look["connected_clients"] >= 1 and set(look["verdicts_per_second"]) >= {"started", "replay", "doubt"}
        text = cli("top", "--count", "2", "--every", "50ms").stdout.decode()
        assert text.count("idem ") == 2 and "started" in text and "\033" not in text


def test_credentials_of_a_client():
    with folder() as where:
        path, mine, bad = (os.path.join(where, n) for n in ("credentials", "mine", "bad"))
        for file, text in ((path, "shop shop-secret-1234567 use shop\nops ops-secret-12345678 operate\n"),
                           (mine, "# for scripts\nshop shop-secret-1234567\n"), (bad, "shop\n")):
            with open(file, "w") as f:
                f.write(text)
            os.chmod(file, 0o600)
        with Server(where, "--credentials", path, listen=True) as s:
            tcp = "127.0.0.1:%d" % s.port
            cli = Cli(where)
            assert cli("begin", "shop", "1", "--server", tcp).returncode != 0
            assert cli("begin", "shop", "1", "--server", tcp, "--credentials", mine).returncode == 0
            assert cli("begin", "bank", "1", "--server", tcp, "--credentials", mine).returncode == 2
            assert cli("scan", "--server", tcp, "--credentials", mine).returncode == 2
            assert cli("begin", "shop", "1", "--server", tcp, "--credentials", bad).returncode == 2
            ops = Cli(where, IDEM_AUTH="ops:ops-secret-12345678", IDEM_SERVER=tcp)
            assert ops("scan").returncode == 0 and ops("top", "--once", "--every", "20ms").returncode == 0
            wrong = Cli(where, IDEM_AUTH="ops:not-its-secret", IDEM_SERVER=tcp)("scan")
            assert wrong.returncode == 2 and b"WRONGPASS" in wrong.stderr and b"not-its-secret" not in wrong.stderr
            os.chmod(mine, 0o644)
            open_file = cli("begin", "shop", "1", "--server", tcp, "--credentials", mine)
            assert open_file.returncode == 2 and b"chmod 600" in open_file.stderr


class LossyProxy:
    """Hands commands on to a server, but swallows the reply to the first command that has this word, and hangs up. instead: the
    server reads the second of these for the first."""

    def __init__(self, port, word, instead=(b"", b"")):
        self.target, self.word, self.instead, self.lost, self.asked = port, word, instead, 0, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        serve_each(self.listener, self.serve)

    def serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            while True:
                data = client.recv(65536)
                if not data:
                    return
                self.asked.append(data.split(b"\r\n")[2].lower())
                server.sendall(data.replace(*self.instead))
                reply = server.recv(65536)
                if self.word and self.word in data.lower() and not self.lost:
                    self.lost += 1
                    return
                client.sendall(reply)

    def close(self):
        self.listener.close()


@pytest.mark.parametrize("word", [b"begin", b"finish", b"release"])
def test_a_lost_reply_runs_nothing_twice(server, word):
    id, ran = name(), os.path.join(server.where, name())
    proxy = LossyProxy(server.port, word)
    cli = Cli(server.where, IDEM_SERVER="127.0.0.1:%d" % proxy.port)
    try:
        if word == b"release":
            assert cli("run", "lossy", id, "--", "/no/such/command").returncode == 127
            assert cli("run", "lossy", id, "--", "echo", "once").stdout == b"once\n"
        else:
            job = script(server.where, "echo ran >> %s; echo out" % ran)
            first = cli("run", "lossy", id, "--", job)
            assert (first.returncode, first.stdout) == (0, b"out\n"), first.stderr
            assert cli("run", "lossy", id, "--", job).stdout == b"out\n"
            with open(ran) as f:
                assert f.read() == "ran\n"
    finally:
        proxy.close()
    assert proxy.lost == 1


STAYS = rb"the command was not run, but its claim may not have been released: before a retry, run idem (release .*)\n"


@pytest.mark.parametrize("place", ["variable", "server", "store"])
@pytest.mark.parametrize("more", ["", "-it's $HOME \\ \"a\" `b`", "a\tb\x1b[2J'c"])
def test_a_claim_that_stays_without_a_run_is_told(server, place, more):
    """The server refuses the release: it reads an empty scope."""
    id = more + name()
    proxy = LossyProxy(server.port, None, (b"RELEASE\r\n$4\r\nkept", b"RELEASE\r\n$0\r\n"))
    to = "idem://127.0.0.1:%d" % proxy.port
    cli = Cli(server.where, **({"IDEM_SERVER": to} if place == "variable" else {}))
    try:
        said = cli("run", *([] if place == "variable" else ["--" + place, to]), "--lease", "1s", "--", "kept", id, "/no/such/command")
    finally:
        proxy.close()
    advice = re.search(STAYS, said.stderr)
    assert said.returncode == 127 and b"cannot run /no/such/command" in said.stderr and advice, said.stderr
    words = subprocess.run(["bash", "-c", "printf '%s\\0' " + advice[1].decode()], stdout=subprocess.PIPE, text=True).stdout.split("\0")[:-1]
    assert words[-3:-1] == ["kept", id] and all(" " <= c for c in advice[1].decode()), advice[1]
    assert words[1:-3] == ([] if place == "variable" else ["--" + place, to]) + (["--"] if id[0] == "-" else [])
    words = [word.replace(str(proxy.port), str(server.port)) for word in words]
    cli = Cli(server.where, IDEM_SERVER="127.0.0.1:%d" % server.port)
    assert wait_until(lambda: cli("run", "--any-command", "--", "kept", id, "true").returncode == 12)
    assert Cli(server.where, **({"IDEM_SERVER": "127.0.0.1:%d" % server.port} if place == "variable" else {}))(*words).returncode == 0
    assert cli("run", "--", "kept", id, "true").returncode == 0


def test_the_advice_for_a_claim_that_stays_shows_no_secret():
    with folder() as where:
        with open(os.open(where + "/credentials", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("ops top-secret operate\n")
        with Server(where, "--credentials", where + "/credentials", listen=True) as server:
            proxy = LossyProxy(server.port, None, (b"RELEASE\r\n$4\r\nkept", b"RELEASE\r\n$0\r\n"))
            try:
                for address in ("ops:top-secret@127.0.0.1:%d", "idem://ops:top-secret@127.0.0.1:%d"):
                    said = Cli(where)("run", "kept", name(), "--server", address % proxy.port, "--", "/no/such/command").stderr
                    assert re.search(STAYS, said) and b"***@127.0.0.1" in said and b"top-secret" not in said, said
            finally:
                proxy.close()


@pytest.mark.parametrize("args", [("forget", "s", "i"), ("settle", "s", "i", "--as", "failed", "--absent", "--result", "x")])
def test_what_an_operator_changes_is_not_sent_if_nobody_answers_a_look_at_it(server, args):
    """It would wait for its own time limit, too."""
    def serve(client):
        with client, socket.create_connection(("127.0.0.1", server.port)) as to:
            while data := client.recv(65536):
                asked.append(data.split(b"\r\n")[2].lower())
                if asked[-1] != b"get":
                    to.sendall(data)
                    client.sendall(to.recv(65536))

    asked, listener = [], socket.create_server(("127.0.0.1", 0))
    serve_each(listener, serve)
    try:
        said = Cli(server.where)(*args, "--server", "idem://127.0.0.1:%d?timeout_ms=500" % listener.getsockname()[1])
    finally:
        listener.close()
    assert said.returncode == 20 and b"get" in asked and args[0].encode() not in asked, (said, asked)


def test_nothing_is_asked_between_a_claim_and_its_command(server):
    """Nobody keeps the claim alive yet: an answer that takes its time would cost it."""
    proxy = LossyProxy(server.port, None)
    cli = Cli(server.where, IDEM_SERVER="127.0.0.1:%d" % proxy.port)
    try:
        assert cli("run", "asked", name(), "--", "true").returncode == 0
    finally:
        proxy.close()
    assert proxy.asked[-2:] == [b"begin", b"finish"], proxy.asked
