"""Each allocation and each system call of `idem gateway` itself fails once (tests/faults), while it starts, prints its configuration, and
reads it again: it works, or says why not, ends, and leaves nothing behind. Then: what may be wrong with its parts.

Some points here, more under scripts/coverage, all of them with IDEM_SOAK=1. Waits more than it works."""
import contextlib
import glob
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from gateway import *
from lib import COVERAGE, IDEM, ROOT, SOAK, Process, folder, runs, wait_until

sys.path.insert(0, os.path.join(ROOT, "tests/faults"))

import faults  # noqa: E402

KINDS = ["alloc", "error", "interrupted", "short", "setup"]
POINTS = 0 if SOAK else 25 if COVERAGE else 2  # of each kind; 0: all


@pytest.fixture(scope="module", autouse=True)
def injector():
    subprocess.run(["make", "-s", "build/tests/faults.so"], cwd=ROOT, check=True)


class Launcher:
    """A gateway that has most of what a gateway can have."""

    def __init__(self, where, ledger, own_folder):
        self.where, self.port, self.fault = where, free_port(), faults.Fault(where)
        self.service = "http://127.0.0.1:%d" % ledger.port
        self.socket = os.path.join(where, "commands.sock")
        with open(os.open(where + "/who", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("ops secretsecret operate\n")
        self.conf = os.path.join(where, "conf")
        self.write()
        os.mkdir(where + "/run")
        self.argv = [IDEM, "gateway", "--config", self.conf, "--access-log", "log", *([] if own_folder else ["--folder", where + "/run"])]
        self.env = {**self.fault.env, "IDEM_FAULTS_ALONE": "1"}

    def write(self, more=""):
        with open(self.conf, "w") as f:
            f.write("""upstream = %s\nlisten = 127.0.0.1:%d,unix:%s/clients.sock\nstore = memory:\nsocket = %s
token-path = /token\nstatus-path = /status\npage-script = /idem.js\npolicy-path = /policy\nauth-request = off
console = on\ncredentials = %s/who\n%s[route /]\nfail-open = on\nmode = loose\nfingerprint = off
[route = /other]\nhost = b.example\n""" % (self.service, self.port, self.where, self.socket, self.where, more))

    def start(self, *more):
        return Process([*self.argv, *more], env=self.env, cwd=self.where)

    def children(self, process):
        with open("/proc/%d/task/%d/children" % (process.pid, process.pid)) as f:
            return [int(p) for p in f.read().split()]


def ready(process):
    return "for idem doubts" in process.output() or "idem doubts, idem settle" in process.output()


def points(most):
    return range(1, most + 1, max(1, most // POINTS) if POINTS else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gateway_starts_or_says_why_not(kind):
    with folder() as where, Ledger(where) as ledger:
        launcher, number = Launcher(where, ledger, False), 0

        def once(left):
            launcher.fault.arm(kind, left)
            process = launcher.start()
            ended = lambda: process.process.poll() is not None  # noqa: E731
            settled = wait_until(lambda: ended() or ready(process), 60)
            fired = launcher.fault.disarm()
            assert settled, (left, fired, process.output())
            if not ended():
                key = "%s-%d" % (kind, left)
                children = launcher.children(process)
                assert ask(launcher.port, key).status == 201 and ledger.executions(key) == 1, (left, fired)
                assert process.stop() == 0, (left, fired, process.output())
                assert not any(runs(pid) for pid in children)
            else:
                assert process.stop() in (1, 2) and process.output().strip(), (left, fired, process.output())
            assert not os.path.lexists(launcher.socket), (left, fired)
            assert "Sanitizer" not in process.output()
            return fired
        assert once(1 << 30) is None
        most = launcher.fault.seen()
        for left in points(most):
            number += bool(once(left))
        print("%s: %d calls, %d failed" % (kind, most, number))
        assert number > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_gateway_reads_its_configuration_again_or_goes_on_with_the_old_one(kind):
    with folder() as where, Ledger(where) as ledger:
        launcher, number = Launcher(where, ledger, False), 0
        with launcher.start() as process:
            eventually(lambda: ready(process))

            def once(left):
                count = process.output().count("reloaded")
                launcher.write("docs = https://docs.example/%d\n" % left)
                launcher.fault.arm(kind, left)
                process.send(signal.SIGHUP)
                told = wait_until(lambda: process.output().count("reloaded") > count or process.process.poll() is not None, 60)
                fired = launcher.fault.disarm()
                assert told and process.process.poll() is None, (left, fired, process.output()[-1000:])
                key = "%s-again-%d" % (kind, left)
                assert ask(launcher.port, key).status == 201 and ledger.executions(key) == 1, (left, fired)
                return fired
            once(1 << 30)
            most = launcher.fault.seen()
            for left in points(most):
                number += bool(once(left))
            print("%s: %d calls, %d failed" % (kind, most, number))
            assert number > 0
            launcher.write("docs = https://docs.example/last\n")
            count = len(re.findall(": reloaded", process.output()))
            process.send(signal.SIGHUP)
            eventually(lambda: len(re.findall(": reloaded", process.output())) > count)
            assert process.stop() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_is_printed_whole_or_there_is_an_error(kind):
    with folder() as where, Ledger(where) as ledger:
        launcher, number = Launcher(where, ledger, False), 0

        def once(left):
            launcher.fault.arm(kind, left)
            done = subprocess.run([*launcher.argv, "--print-config"], cwd=where, text=True, capture_output=True, timeout=60,
                                  env={**os.environ, **launcher.env})
            return launcher.fault.disarm(), done
        _, whole = once(1 << 30)
        assert whole.returncode == 0
        most = launcher.fault.seen()
        for left in points(most):
            fired, done = once(left)
            number += bool(fired)
            if COVERAGE and done.returncode == -signal.SIGSEGV:  # gcov has no memory for its counters
                continue
            if done.returncode == 0:
                same = re.sub("(?m)^load_module .*|.*idem.js.*|.*worker_connections.*", "", done.stdout)
                assert same == re.sub("(?m)^load_module .*|.*idem.js.*|.*worker_connections.*", "", whole.stdout), (left, fired)
            else:
                assert done.returncode in (1, 2, 27) and done.stderr.strip(), (left, fired, done)
        print("%s: %d calls, %d failed" % (kind, most, number))
        assert most == 0 or number > 0


def text_of(path):
    """Empty if it is gone by now."""
    with contextlib.suppress(FileNotFoundError), open(path) as f:
        return f.read()
    return ""


def test_a_folder_of_its_own_is_removed_whatever_fails():
    with folder() as where, Ledger(where) as ledger:
        launcher = Launcher(where, ledger, True)
        launcher.fault.arm("setup", 1 << 30)
        process = launcher.start()
        eventually(lambda: ready(process))
        place = re.search(r"/tmp/idem-gateway-\w+", " ".join(text_of("/proc/%d/cmdline" % pid) for pid in launcher.children(process))).group()
        assert os.path.isdir(place) and process.stop() == 0 and not os.path.exists(place)
        for left in points(launcher.fault.seen()):
            launcher.fault.arm("setup", left)
            process = launcher.start()
            assert wait_until(lambda: ready(process) or process.process.poll() is not None)
            fired = launcher.fault.disarm()
            process.stop()
            assert not [p for p in glob.glob("/tmp/idem-gateway-*/nginx.conf") if launcher.service in text_of(p)], (left, fired)


# ---- what may be wrong with its parts ----------------------------------------


def said(argv, seconds=60, **more):
    """What a gateway says that cannot start."""
    done = subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, **more)
    assert done.returncode in (1, 2), done
    return done.stdout


def script(path, text):
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def gateway(where, *more):
    return [IDEM, "gateway", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:%d" % free_port(), "--store", "memory:",
            "--socket", "off", *more]


@pytest.mark.parametrize("flags,text", [
    (["--nginx", "/nonexistent"], "there is no nginx at /nonexistent"),
    (["--module", "/nonexistent.so"], "there is no module at /nonexistent.so"),
    (["--folder", "/nonexistent"], "folder /nonexistent: No such file or directory"),
    (["--listen", "nowhere.invalid:80"], "--listen nowhere.invalid:80: the host \"nowhere.invalid\" cannot be found"),
    (["--upstream", "http://nowhere.invalid"], "--upstream http://nowhere.invalid: the host \"nowhere.invalid\" cannot be found"),
    (["--auth-request", "http://nowhere.invalid"], "--auth-request http://nowhere.invalid: the host"),
    (["--store", "journal:/proc/nonexistent/j"], "the engine ended with status"),
    (["--seal-key", "/nonexistent"], "the engine ended with status"),
    (["--socket", "/nonexistent/s"], "/nonexistent/s: "),
    (["--config", "/nonexistent"], "cannot read the configuration file /nonexistent"),
])
def test_what_is_missing_is_named(flags, text):
    with folder() as where:
        assert text in said(gateway(where, *flags)), flags


def test_a_folder_with_too_long_a_name_is_refused():
    with folder() as where:
        long = os.path.join(where, "x" * 80)
        os.mkdir(long)
        assert "a socket in it needs a path of at most 80 bytes" in said(gateway(where, "--folder", long))


def test_an_address_in_use_is_named_also_before_a_reload():
    with folder() as where, socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        port = taken.getsockname()[1]
        assert "127.0.0.1:%d is in use" % port in said(gateway(where, "--listen", "127.0.0.1:%d" % port))
        conf, own = os.path.join(where, "conf"), free_port()

        def write(listen):
            with open(conf, "w") as f:
                f.write("upstream = http://127.0.0.1:1\nstore = memory:\nsocket = off\nlisten = %s\n" % listen)
        write("127.0.0.1:%d" % own)
        with Process([IDEM, "gateway", "--config", conf], ready=own) as process:
            for listen in ("127.0.0.1:%d" % port, "[::1]:%d" % six.getsockname()[1], "127.0.0.1:%d,:%d" % (own, port)):
                write(listen)
                count = process.output().count("not reloaded")
                process.send(signal.SIGHUP)
                eventually(lambda: process.output().count("not reloaded") > count)
                refusals = [line for line in process.output().splitlines() if "not reloaded" in line]
                assert "is in use: stop the other program" in refusals[-1]
            write("localhost:%d,unix:%s/c" % (own, where))
            process.send(signal.SIGHUP)
            assert eventually(lambda: ": reloaded" in process.output())


@pytest.mark.parametrize("name,value", [("store", "journal:/x"), ("seal-key", "/x"), ("http", "off"), ("credentials", "/x"), ("console", "on"),
                                        ("folder", "/x"), ("socket", "/x"), ("nginx", "/x"), ("module", "/x"), ("engine", "idem://127.0.0.1:1")])
def test_a_reload_does_not_change_the_engine(name, value):
    with folder() as where:
        conf, port = os.path.join(where, "conf"), free_port()
        text = "upstream = http://127.0.0.1:1\nlisten = 127.0.0.1:%d\ncredentials = %s/who\nstore = memory:\nsocket = off\n" % (port, where)
        with open(os.open(where + "/who", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("ops secretsecret operate\n")
        with open(conf, "w") as f:
            f.write(text)
        with Process([IDEM, "gateway", "--config", conf], ready=port) as process:
            eventually(lambda: ready(process) or "export" in process.output())
            with open(conf, "a") as f:
                f.write("%s = %s\n" % (name, value))
                if name == "engine":
                    f.seek(0)
                    f.truncate()
                    f.write("upstream = http://127.0.0.1:1\nlisten = 127.0.0.1:%d\nengine = %s\n" % (port, value))
            process.send(signal.SIGHUP)
            line = eventually(lambda: next((x for x in process.output().splitlines() if "not reloaded" in x), None))
            assert re.search(r'changing "(%s|store)" requires a restart' % name, line), line


def test_an_nginx_that_ends_at_once_or_refuses_a_reload_is_told():
    with folder() as where, Ledger(where) as ledger:
        ends = script(where + "/ends", "exit 3\n")
        assert "nginx ended with status 3 and said why above" in said(gateway(where, "--nginx", ends))
        dies = script(where + "/dies", "kill -9 $$\n")
        assert "nginx was killed by signal 9" in said(gateway(where, "--nginx", dies))
        broken = script(where + "/broken", "")
        with open(broken, "w") as f:
            f.write("#!/nonexistent\n")
        assert "cannot run %s" % broken in said(gateway(where, "--nginx", broken))
        refuses = script(where + "/refuses", 'case "$*" in *-t*) kill -9 $$;; esac\nexec /usr/sbin/nginx "$@"\n')
        with Gateway(where, ledger.port, "--nginx", refuses) as g:
            g.send(signal.SIGHUP)
            eventually(lambda: "not reloaded: nginx refuses the configuration" in g.output())
            assert ask(g.port, "k").status == 201


def test_a_stop_signal_ends_a_gateway_that_still_starts():
    with folder() as where:
        slow = script(where + "/slow", "exec sleep 60\n")
        for wait_for in ("serve", "sleep"):
            process = Process(gateway(where, "--nginx", slow))

            def names():
                with open("/proc/%d/task/%d/children" % (process.pid, process.pid)) as f:
                    return [text_of("/proc/%s/cmdline" % p) for p in f.read().split()]
            eventually(lambda: any(wait_for in name for name in names()))
            process.send(signal.SIGTERM)
            assert process.wait(30) == 0, process.output()


def test_json_lines_and_everything_that_is_announced():
    with folder() as where, Ledger(where) as ledger:
        with open(os.open(where + "/who", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("ops secretsecret operate\n")
        with open(where + "/seal", "w") as f:
            f.write("ab" * 32 + "\n")
        os.chmod(where + "/seal", 0o600)
        conf = where + "/conf"
        with open(conf, "w", encoding="latin-1") as f:  # one value is not UTF-8
            f.write("[route /x]\nupstream = http://127.0.0.1:%d\nkey = $http_x_key\nduplicate = answer 200 d\xe9j\xe0\n"
                    "[route /y]\nhost = b.example\nscope = ${http_a}-b-\n" % ledger.port)
        with Gateway(where, ledger.port, "--config", conf, "--json", "--console", "--credentials", where + "/who", "--seal-key", where + "/seal",
                     "--token-path", "/token", env={"IDEM_LOG_LEVEL": "info"}) as g:
            text = eventually(lambda: g.output() if "console at" in g.output() else None)
            lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            told = [x["text"] for x in lines if x.get("event") == "gateway"]
            assert any("/x -> http://127.0.0.1:%d" % ledger.port in x for x in told), told
            assert any("the route /y: requests without a scope" in x for x in told) and any("tokens at /token" in x for x in told)
            assert any("b.example/y -> " in x for x in told)
            g.send(signal.SIGUSR1)
            assert ask(g.port, "k", path="/x").status == 201


def test_an_engine_whose_port_was_taken_gets_another_one():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        text = eventually(lambda: g.output() if "metrics at" in g.output() else None)
        port = int(re.search(r"metrics at http://127\.0\.0\.1:(\d+)/", text).group(1))
        with open("/proc/%d/task/%d/children" % (g.pid, g.pid)) as f:
            engine = next(int(p) for p in f.read().split() if " serve " in text_of("/proc/%s/cmdline" % p).replace("\0", " "))
        os.kill(engine, signal.SIGKILL)
        taken = None
        while taken is None:
            try:
                taken = socket.create_server(("127.0.0.1", port))
            except OSError:
                time.sleep(0.001)
        with taken:
            line = eventually(lambda: next((x for x in g.output().splitlines() if "another program uses the old port" in x), None))
            assert int(re.search(r":(\d+)/$", line).group(1)) != port
            eventually(lambda: ask(g.port, "k").status == 201)  # nginx connects again in a moment
