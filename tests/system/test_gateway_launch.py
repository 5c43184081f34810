"""`idem gateway` as people start it: flags, a file with routes, signals, TLS and HTTP/2, and what is said when a part dies."""
import contextlib
from concurrent.futures import ThreadPoolExecutor
import http.server
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest

from gateway import *
from lib import IDEM, ROOT, Process, folder, listens, runs


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(p) for p in f.read().split()]


def command(pid):
    """Empty if it has ended."""
    with contextlib.suppress(OSError), open("/proc/%d/cmdline" % pid, "rb") as f:
        return f.read().replace(b"\0", b" ").decode()
    return ""


def parts(gateway):
    kids = children(gateway.pid)
    engine = [k for k in kids if " serve " in command(k)]
    nginx = [k for k in kids if "nginx" in command(k) and k not in engine]
    assert len(engine) == 1 and len(nginx) == 1, [command(k) for k in kids]
    return engine[0], nginx[0]


def user(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Uid:"))



def private_folder(gateway):
    """Where its socket and its nginx.conf are."""
    engine, _ = parts(gateway)
    path = os.path.dirname(re.search(r" --socket (\S+)", command(engine)).group(1))
    assert os.path.isdir(path) and os.path.basename(path).startswith("idem-gateway-"), path
    return path


def ordinary_user():
    """What makes root's command an ordinary user's, whose gateway has its folder in XDG_RUNTIME_DIR."""
    return ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"] if os.geteuid() == 0 else []


def test_help_says_what_happens_to_requests_without_a_scope():
    """test_gateway_scope.py tests that it is so."""
    text = subprocess.run([IDEM, "help", "gateway"], capture_output=True, text=True).stdout
    about = " ".join(text[text.index("--anonymous"):text.index("--key-quoted")].split())
    assert "callers without a credential share a scope; off: they are refused (default on)" in about, about
    assert "With --scope and without this option, requests that have no scope pass unprotected" in about, about


def test_one_command_and_a_clean_end():
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port) as g:
            assert ask(g.port, "k").status == 201 and ask(g.port, "k").replayed
            text = eventually(lambda: g.output() if "metrics at" in g.output() else None)
            assert "listening on http://127.0.0.1:%d" % g.port in text and "anonymous" in text
            where_http = re.search(r"http://(127\.0\.0\.1:\d+)/", text.split("metrics at", 1)[1]).group(1)
            host, port = where_http.split(":")
            assert ask(int(port), method="GET", path="/healthz", body=None).status == 200
            pids, private = [g.pid, *parts(g)], private_folder(g)
            assert g.stop(signal.SIGTERM) == 0
        assert not any(runs(p) for p in pids) and not os.path.exists(private)
        with Gateway(where, ledger.port) as g:
            assert ask(g.port, "k").replayed, "what was recorded is still there"
        assert ledger.executions("k") == 1


def test_localhost_has_two_addresses_and_the_service_one():
    with folder() as where, Ledger(where) as ledger:
        port = free_port()
        with Process([IDEM, "gateway", "--upstream", "http://localhost:%d" % ledger.port, "--listen",
                      "127.0.0.1:%d" % port, "--store", "memory:", "--access-log", "log"], ready=port, cwd=where) as g:
            for i in range(10):
                assert ask(port, "k%d" % i).status == 201
            eventually(lambda: "idem=started" in open(os.path.join(where, "log")).read())
        assert len(ledger.entries()) == 10


def test_children_keep_their_memory_unless_the_operator_says_otherwise(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        engine, _ = parts(g)  # nginx writes its title over its environment
        with open("/proc/%d/environ" % engine, "rb") as f:
            settings = f.read().split(b"\0")
        assert b"MALLOC_TRIM_THRESHOLD_=33554432" in settings and b"MALLOC_TOP_PAD_=4096" in settings


def test_a_stores_url_from_a_file_is_on_no_command_line():
    """It may hold a password, and every user of the machine may run ps."""
    with folder() as where, Ledger(where) as ledger:
        port = free_port()
        with open(where + "/conf", "w") as f:
            f.write("upstream = http://127.0.0.1:%d\nlisten = 127.0.0.1:%d\nstore = journal:%s/s3cret\n"
                    % (ledger.port, port, where))
        with Process([IDEM, "gateway", "--config", where + "/conf"], ready=port) as g:
            assert ask(port, "k").status == 201 and ask(port, "k").replayed and os.listdir(where + "/s3cret")
            assert not [k for k in (g.pid, *children(g.pid)) if "s3cret" in command(k)]


def test_credentials_in_the_environment_do_not_lock_out_the_gateway_itself(monkeypatch):
    with folder() as where, Ledger(where) as ledger:
        with open(where + "/who", "w") as f:
            f.write("ops secretsecret operate\n")
        os.chmod(where + "/who", 0o600)
        monkeypatch.setenv("IDEM_CREDENTIALS", where + "/who")
        with Gateway(where, ledger.port) as g:
            assert ask(g.port, "k").status == 201 and ask(g.port, "k").replayed


def test_what_runs_is_finished_before_it_ends():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        one = Later(ask, g.port, "k", x_sleep=1)
        eventually(lambda: ledger.executions("k") == 1)
        g.send(signal.SIGTERM)
        assert one.result().status == 201 and g.wait() == 0
        with Gateway(where, ledger.port) as g:
            assert ask(g.port, "k", x_sleep=1).replayed


@pytest.mark.parametrize("which", ["engine", "nginx"])
def test_a_part_that_dies_for_good_is_told_and_ends_the_rest(which):
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--engine-restarts", "0") as g:
        engine, nginx = parts(g)
        private = private_folder(g)
        workers = eventually(lambda: children(nginx))
        one = Working(g.port, ledger, "k")
        os.kill(engine if which == "engine" else nginx, signal.SIGKILL)
        one.go_on()
        assert g.wait() == 1
        assert ("the engine was killed" if which == "engine" else "nginx was killed") in g.output()
        assert workers and not any(runs(p) for p in [engine, nginx, *workers])
        assert one.result().status == (504 if which == "engine" else 201)  # unknown; finished
    assert not os.path.exists(private)


def test_a_launcher_that_is_killed_leaves_nothing_running():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        pids, private = parts(g), private_folder(g)
        os.kill(g.pid, signal.SIGKILL)
        eventually(lambda: not any(runs(p) for p in pids))
        shutil.rmtree(private)


def test_workers_end_when_gateway_and_master_are_killed_together():
    """They would go on to hold the port and to answer 503, and nothing could be started in their place."""
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--workers", "2", "--drain-timeout", "3s") as g:
        engine, nginx = parts(g)
        private = private_folder(g)
        eventually(lambda: len(children(nginx)) == 2)
        workers = children(nginx)
        assert ask(g.port, "k").status == 201
        one = Working(g.port, ledger, "running")
        try:
            for pid in (g.pid, nginx):
                os.kill(pid, signal.SIGSTOP)  # neither can react to the end of the other
            for pid in (nginx, g.pid):
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: not listens(g.port), 20)
            one.result()
            eventually(lambda: not any(runs(pid) for pid in (engine, nginx, *workers)))
        finally:
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(private)
        with Gateway(where, ledger.port, port=g.port) as g2:
            assert ask(g2.port, "k").replayed and ledger.executions("k") == 1


def test_flags_say_what_a_route_does():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--required", "--mode", "loose", "--wait", "5s", "--token-path", "/token",
                    "--key", "$http_x_key", "--scope", "$http_x_user", "--max-body", "2k", "--workers", "2") as g:
        assert ask(g.port).problem == "key-missing"
        first = ask(g.port, x_key="a", x_user="u", x_code=500)
        assert first.status == 500 and ask(g.port, x_key="a", x_user="u").status == 201
        assert ask(g.port, x_key="a", x_user="u").replayed and not ask(g.port, x_key="a", x_user="v").replayed
        assert ask(g.port, x_key="b", x_user="u", body=b"x" * 2049).problem == "body-too-large"
        token = ask(g.port, path="/token", x_user="u").json()["token"]
        assert ask(g.port, token=token, x_user="u").status == 201 and ask(g.port, token=token, x_user="u").replayed
        assert ask(g.port, token=token, x_user="v").problem == "token-unknown"
        answers = storm(30, lambda i: ask(g.port, x_key="c", x_user="u", x_sleep=0.3))
        assert {a.status for a in answers} == {201} and len({a.body for a in answers}) == 1
        _, nginx = parts(g)
        assert len(children(nginx)) == 2


def test_a_key_of_several_parts_needs_all_of_them():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--key", '"$http_x_source:$http_x_seq" $http_x_id', "--scope", "$http_x_user@$host",
                    "--anonymous", "off", "--required") as g:
        assert ask(g.port, x_source="s", x_seq="1", x_user="u").status == 201
        assert ask(g.port, x_source="s", x_seq="1", x_user="u").replayed
        for half in ({}, {"x_source": "s"}, {"x_seq": "1"}, {"x_source": "", "x_seq": "1"}):
            assert ask(g.port, x_user="u", **half).problem == "key-missing", half
        assert ask(g.port, x_seq="1", x_id="other", x_user="u").status == 201, "the next source is asked"
        assert ask(g.port, x_source="s", x_seq="2").problem == "scope-missing"
        assert len(ledger.entries()) == 2


def test_token_then_test_as_in_the_seeds():
    """GET /token, then /test with it: the first call is executed, every other one is told that it is a repeat."""
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--token-path", "/token", "--duplicate", 'answer 200 "重复调用"') as g:
        token = ask(g.port, path="/token", method="GET", body=None).json()["token"]
        answers = storm(30, lambda i: ask(g.port, path="/test", token=token))
        told = sorted((a.status, a.body.decode()) for a in answers)
        assert told.count((200, "重复调用")) + sum(s == 409 for s, _ in told) == 29, told
        assert sum(a.status == 201 for a in answers) == 1
        assert ask(g.port, path="/test", token=token).body.decode() == "重复调用"
        assert ask(g.port, path="/test", token="never-issued").status == 403
        assert len(ledger.entries()) == 1


def test_the_gateway_serves_the_page_script():
    with open(os.path.join(ROOT, "clients/js/idem.js"), "rb") as f:
        script = f.read()
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--token-path", "/token", "--page-script", "/static/idem.js") as g:
        got = ask(g.port, method="GET", path="/static/idem.js", body=None)
        assert got.status == 200 and got.body == script and got.headers["content-type"] == "text/javascript; charset=utf-8"
        assert ask(g.port, method="GET", path="/idem.js", body=None).status == 201, "the service's"


def test_a_service_with_a_path_of_its_own():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--upstream",
                                                                  "http://127.0.0.1:%d/shop/v1" % ledger.port) as g:
        assert ask(g.port, "k", path="/orders/7?a=1").status == 201 and ask(g.port, "k", path="/orders/7?a=1").replayed
        assert [e["path"] for e in ledger.entries()] == ["/shop/v1/orders/7?a=1"]


def test_who_asks_for_tokens_too_fast_is_told_so_as_a_problem():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--token-path", "/token", "--token-rate", "1r/s", "--docs", "https://shop.example/idem") as g:
        answers = [ask(g.port, path="/token") for _ in range(110)]
        refused = next(a for a in answers if a.status != 200)
        assert refused.status == 429 and refused.problem == "too-many-tokens" and refused.headers["retry-after"] == "1"
        problem = refused.json()
        assert problem["retryable"] is True and problem["class"] == "not executed" and problem["status"] == 429
        assert problem["documentation"] == "https://shop.example/idem#too-many-tokens"
        assert refused.headers["link"] == '<%s>; rel="describedby"' % problem["documentation"]
        assert refused.headers["content-type"] == "application/problem+json"


def test_a_path_without_a_route_is_not_found_and_the_start_says_so():
    with folder() as where, Ledger(where) as ledger:
        conf, port = os.path.join(where, "gateway.conf"), free_port()
        for routes, status in (("[route /pay]\n", 404), ("[route /pay]\n[route /]\n", 201)):
            with open(conf, "w") as f:
                f.write("listen = 127.0.0.1:%d\nstore = journal:%s/journal\nupstream = http://127.0.0.1:%d\n%s" % (port, where, ledger.port, routes))
            with Process([IDEM, "gateway", "--config", conf], ready=port) as g:
                assert ask(port, "k", path="/pay").status == 201 and ask(port, "o", path="/orders").status == status
                assert ("there is no route /: a path that no route names gets 404" in g.output()) == (status == 404), g.output()
                assert "No such file or directory" not in g.output(), "nginx looks for a file; nobody else does"


def test_a_file_with_routes_and_a_reload():
    with folder() as where, Ledger(where) as ledger:
        conf = os.path.join(where, "gateway.conf")
        port = free_port()
        text = """# a shop
listen = 127.0.0.1:%d
store = journal:%s/journal
upstream = http://127.0.0.1:%d

[route /]
[route /pay]
required = on
duplicate = refuse
[route /free]
gated = off
[route /b]
host = b.example
mode = loose
""" % (port, where, ledger.port)
        with open(conf, "w") as f:
            f.write(text)
        with Process([IDEM, "gateway", "--config", conf, "--wait", "1s"], ready=port) as g:
            assert ask(port, "k").status == 201 and ask(port, "k").replayed
            assert ask(port, path="/pay").problem == "key-missing"
            assert ask(port, "p", path="/pay").status == 201 and ask(port, "p", path="/pay").problem == "duplicate"
            assert ask(port, "f", path="/free").status == 201 and not ask(port, "f", path="/free").replayed
            # The same key at two hosts: two services, two executions.
            one = ask(port, "h", path="/b")
            two = ask(port, "h", path="/b", headers={"Host": "b.example"})
            assert one.status == two.status == 201 and not two.replayed and one.body != two.body
            with open(conf, "w") as f:
                f.write(text.replace("duplicate = refuse", "duplicate = answer 200 done"))
            g.send(signal.SIGHUP)
            eventually(lambda: ask(port, "p", path="/pay").body == b"done")
            with open(conf, "w") as f:
                f.write(text.replace("/journal", "/elsewhere"))
            g.send(signal.SIGHUP)
            eventually(lambda: 'not reloaded: changing "store" requires a restart' in g.output())
            with open(conf, "w") as f:
                f.write("nonsense")
            g.send(signal.SIGHUP)
            eventually(lambda: "not reloaded: %s" % conf in g.output())
            # An old worker may still take a connection or two.
            eventually(lambda: all(ask(port, "p", path="/pay").body == b"done" for _ in range(5)))


def test_a_reload_that_nginx_refuses_is_not_called_reloaded():
    with folder() as where, Ledger(where) as ledger:
        conf, cert, key = (os.path.join(where, name) for name in ("gateway.conf", "c.pem", "k.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                        "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
        port, other = free_port(), free_port()
        text = "listen = 127.0.0.1:%%d\nstore = memory:\nupstream = http://127.0.0.1:%d\n" % ledger.port
        with open(conf, "w") as f:
            f.write(text % port)
        with Process([IDEM, "gateway", "--config", conf], ready=port) as g, socket.socket() as taken:
            def reload_with(new, *words):
                with open(conf, "w") as f:
                    f.write(new)
                before = len(g.output())
                g.send(signal.SIGHUP)
                assert wait_until(lambda: "reloaded" in g.output()[before:], 60), g.output()
                said = g.output()[before:]
                assert all(word in said for word in words), said
                return said

            with open(cert, "w") as f:
                f.write("not a certificate")
            said = reload_with(text % port + "tls-cert = %s\ntls-key = %s\n" % (cert, key), "not reloaded: nginx refuses", "c.pem", "; the old configuration stays in use")
            assert "gateway: reloaded" not in said
            assert ask(port, "a").status == 201
            taken.bind(("127.0.0.1", other))
            taken.listen()
            reload_with(text % other, "not reloaded: 127.0.0.1:%d is in use" % other)
            assert ask(port, "b").status == 201
            reload_with(text % port + "required = on\n", "gateway: reloaded")
            eventually(lambda: ask(port).problem == "key-missing")
            # nginx has this address already, under another name.
            reload_with(text.replace("127.0.0.1:%d", "127.1:%d", 1) % port, "gateway: reloaded")
            eventually(lambda: ask(port).status == 201)


def test_print_config_is_a_configuration_for_an_nginx_of_ones_own():
    with folder() as where:
        got = subprocess.run([IDEM, "gateway", "--upstream", "http://127.0.0.1:9", "--token-path", "/token",
                              "--page-script", "/idem.js", "--print-config"], capture_output=True, text=True, check=True).stdout
        assert "idem_engine" in got and "proxy_pass http://idem_0" in got
        conf = os.path.join(where, "n.conf")
        with open(conf, "w") as f:
            f.write(got.replace("/var/lib/nginx", where))
        test = nginx_test(where, conf)
        assert test.returncode == 0, test.stderr


@pytest.mark.parametrize("status,flags,word", [
    (2, [], "no service is given"), (2, ["--upstream", "ftp://x"], "http://"),
    (2, ["--upstream", "http://x", "--mode"], "mode"), (2, ["--upstream", "http://x", "--mode", "fuzzy"], "strict|loose"),
    (2, ["--upstream", "http://x", "--wait", "soon"], "time"),
    (2, ["--upstream", "http://x", "--config", "/nowhere"], "nowhere"),
    (2, ["--upstream", "http://x", "--tls-cert", "/x"], "both"),
    (2, ["--upstream", "http://x", "--listen", "bogus"], "127.0.0.1:8080"),
    (2, ["--upstream", "http://x", "--auth-request", "check"], "auth-request"),
    (2, ["--upstream", "http://x", "--listen", "127.0.0.1:1,127.0.0.1:99999"], "127.0.0.1:99999"),
    (2, ["--upstream", "http://x", "--forwarded", "perhaps"], "on or off"),
    (2, ["--upstream", "http://x", "--key", ""], "single quotes"), (2, ["--upstream", "http://x", "--scope", ""], "scope"),
    (1, ["--upstream", "http://x", "--module", "/x"], "no module"), (1, ["--upstream", "http://x", "--nginx", "/nowhere"], "nginx"),
    (1, ["--upstream", "http://127.0.0.1:9", "--store", "nosuch:x"], "nosuch"),
    (2, ["--upstream", "http://127.0.0.1:9", "--listen", "30081"],
     "listen: \"30081\" is not an address: write 127.0.0.1:30081, or *:30081 for all interfaces"),
    (2, ["--upstream", "http://127.0.0.1:9", "--key", "http_x_seq"], "no $variable"),
    (2, ["--upstream", "http://127.0.0.1:9", "--key", "$http_idempotency_key $http_x-request-id"], "did you mean \"$http_x_request_id\"?"),
    (2, ["--upstream", "http://127.0.0.1:9", "--token", "json:t token"], "no $variable"),
    (2, ["--upstream", "http://x", "--inject-token", "a>b"], "inject-token: \"a>b\" is not the name of a field"),
    (2, ["--upstream", "http://x", "--replayed-header", "X-A a:b"], "replayed-header: \"a:b\" is not the name of a header"),
    (2, ["--upstream", "http://x", "--credential", "a:b"], "credential: \"a:b\""),
    (2, ["--upstream", "http://x", "--keep-header", "a:b"], "keep-header: \"a:b\""),
    (2, ["--upstream", "http://x", "--drop-header", "a(b"], "drop-header: \"a(b\""),
    (2, ["--upstream", "http://x", "--methods", "POST BUY"], "methods: \"BUY\""),
    (2, ["--upstream", "http://x", "--release", "500-599 700"], "release: \"700\""),
    (2, ["--upstream", "http://x", "--duplicate", "shout"], "duplicate: \"shout\""),
    (2, ["--upstream", "http://x", "--fingerprint", "all"], "fingerprint: \"all\""),
    (1, ["--upstream", "http://x", "--folder", "/nowhere/x"], "mkdir"),
    (2, ["--upstream", "http://127.0.0.1:9", "--fail-open"], "the route /: --fail-open needs --mode loose"),
    (2, ["--upstream", "https://127.0.0.1:9", "--verify"], "the route /: --verify needs --ca FILE"),
    (2, ["--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:8,127.0.0.1:9,127.0.0.1:8"],
     "listen: \"127.0.0.1:8\" is given twice"),
    (2, ["--upstream", "http://localhost:9/x", "--listen", "127.0.0.1:8,127.0.0.1:9"],
     "the route /: the gateway itself listens on the address of the upstream \"http://localhost:9/x\"; give the address of your service"),
    (2, ["--upstream", "http://127.0.0.1:9", "--lease", "10ms"], "lease of 10ms is out of range: give 100ms to 7d"),
    (2, ["--upstream", "http://127.0.0.1:9", "--wait", "2h"], "wait of 2h is out of range: give 0 to 1h"),
    (2, ["--upstream", "http://127.0.0.1:9", "--ttl", "0"], "ttl of 0 is out of range: give 1ms to 3660d"),
    (2, ["--upstream", "http://127.0.0.1:9", "--token-rate", "fast"], "token-rate: \"fast\" is not a rate such as 50r/s"),
    (2, ["--upstream", "http://127.0.0.1:9", "--status-rate", "0r/s"], "status-rate: \"0r/s\" is not a rate"),
    (1, ["--upstream", "http://nosuch.invalid/x"], "--upstream http://nosuch.invalid/x: the host \"nosuch.invalid\" cannot be found"),
    (1, ["--upstream", "http://127.0.0.1:9", "--auth-request", "http://nosuch.invalid:8"],
     "--auth-request http://nosuch.invalid:8: the host \"nosuch.invalid\" cannot be found"),
    (1, ["--upstream", "http://127.0.0.1:9", "--listen", "nosuch.invalid:8080"],
     "--listen nosuch.invalid:8080: the host \"nosuch.invalid\" cannot be found")])
def test_what_cannot_be_is_refused(status, flags, word):
    with folder() as where:
        os.chmod(where, 0o777)
        listen = [] if "--listen" in flags else ["--listen", "127.0.0.1:%d" % free_port()]
        got = subprocess.run([*ordinary_user(), IDEM, "gateway", *listen, *flags], capture_output=True, text=True,
                             timeout=60, env={**os.environ, "HOME": where, "XDG_RUNTIME_DIR": where})
        assert got.returncode == status and word in got.stderr, got
        assert "nginx.conf" not in got.stderr and "idem_" not in got.stderr, "files and directives that the user did not write"
        assert not [n for n in os.listdir(where) if n.startswith("idem-gateway-")]


@pytest.mark.parametrize("flags,told", [([], False), (["--forwarded", "off"], False), (["--forwarded", "on"], True)])
def test_the_service_is_told_who_asked_only_on_request(flags, told):
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, *flags) as g:
        assert ask(g.port, "k").status == 201
        names = {n.lower() for n in ledger.entries()[0]["names"]}
        assert ({"x-forwarded-for", "x-forwarded-proto"} <= names) == told and \
            told == bool({"x-forwarded-for", "x-forwarded-proto"} & names), names


def test_it_listens_on_every_form_of_an_address():
    """A port with a colon is loopback, as for `idem serve`."""
    with folder() as where, Ledger(where) as ledger:
        loopback, everywhere, six, named = (free_port() for _ in range(4))
        conf, path = os.path.join(where, "gateway.conf"), os.path.join(where, "c.sock")
        with open(conf, "w") as f:
            f.write("upstream = http://127.0.0.1:%d\nstore = memory:\nsocket = off\nlisten = :%d, *:%d,[::]:%d , localhost:%d,unix:%s\n"
                    % (ledger.port, loopback, everywhere, six, named, path))
        with Process([IDEM, "gateway", "--config", conf], ready=loopback) as g:
            eventually(lambda: "listening on http://127.0.0.1:%d,*:%d,[::]:%d,localhost:%d,unix:%s\n"
                       % (loopback, everywhere, six, named, path) in g.output())
            assert [ask(port, "k").status for port in (loopback, everywhere, named)] == [201] * 3
            for family, host, port, reached in ((socket.AF_INET, "127.0.0.2", loopback, False), (socket.AF_INET, "127.0.0.2", everywhere, True),
                                                (socket.AF_INET6, "::1", six, True)):
                with socket.socket(family) as s:
                    assert (s.connect_ex((host, port)) == 0) == reached, (host, port)
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
            with open(conf, "a") as f:
                f.write("listen = %d\n" % loopback)
            g.send(signal.SIGHUP)
            eventually(lambda: 'not reloaded: listen: "%d" is not an address: write 127.0.0.1:%d, or *:%d' % ((loopback,) * 3) in g.output())


def test_a_configuration_is_checked_beside_a_running_gateway():
    with folder() as where, Ledger(where) as ledger:
        conf, run = os.path.join(where, "gateway.conf"), os.path.join(where, "run")
        os.mkdir(run)
        os.chmod(where, 0o777)
        os.chmod(run, 0o777)
        port = free_port()
        text = "upstream = http://127.0.0.1:%d\nlisten = 127.0.0.1:%d\nstore = memory:\nsocket = off\nfolder = %s\n" % (ledger.port, port, run)

        def check(more="", *flags):
            with open(conf, "w") as f:
                f.write(text + more)
            done = subprocess.run([*ordinary_user(), IDEM, "gateway", "--config", conf, "--check", *flags], capture_output=True, text=True,
                                  timeout=60, env={**os.environ, "HOME": where, "XDG_RUNTIME_DIR": where})
            assert not [name for name in os.listdir(where) if name.startswith("idem-gateway-")]
            return done.returncode, done.stdout, done.stderr

        unchecked = "not checked: whether the store can be opened (idem store check), and whether the addresses are free\n"
        assert check() == (0, "the configuration is fine\n" + unchecked, "")
        assert os.listdir(run) == [], "nothing of it was started"
        with Process([IDEM, "gateway", "--config", conf], ready=port) as g:
            eventually(lambda: "for idem doubts" in g.output())
            files = {name: os.stat(os.path.join(run, name)).st_mtime_ns for name in os.listdir(run) if name in ("nginx.conf", "figures", "engine.sock")}
            assert check("wait = 5s\n", "--json") == (0, '{"fine":true,"unchecked":["store","addresses"]}\n', "")
            for more, said in (("wait = soon\n", "%s:6: wait" % conf), ("tls-cert = /nowhere/c\ntls-key = /nowhere/k\n", "/nowhere/c"),
                               ("auth-request = http://nosuch.invalid\n", "the host \"nosuch.invalid\" cannot be found"), ("nginx = /nowhere\n", "nginx")):
                code, out, err = check(more)
                assert code == 2 and out == "" and said in err, (more, err)
            assert files and files == {name: os.stat(os.path.join(run, name)).st_mtime_ns for name in files}
            assert ask(port, "k").status == 201


@pytest.mark.parametrize("flags,said", [
    (("--store", "bogus://x"), 'idem: "bogus://x" is not the URL of a store'),
    (("--store", "redis://127.0.0.1:1?foo=1"), 'there is no option "foo"'),
    (("--store", "sqlite:FOLDER/db?mode=fast"), "use mode=rollback"),
    (("--http", "127.0.0.1:99999"), 'http: "127.0.0.1:99999" is not an address'),
    (("--credentials", "FOLDER/missing"), "cannot read the credentials file FOLDER/missing"),
    (("--seal-key", "FOLDER/missing"), "seal-key FOLDER/missing: No such file"),
    (("--folder", "FOLDER/missing"), "folder FOLDER/missing: No such file"),
    (("--folder", "FOLDER/file"), "folder FOLDER/file: Not a directory"),
    (("--socket", "FOLDER/missing/s"), "socket FOLDER/missing/s: FOLDER/missing: No such file"),
    (("--socket", "FOLDER/file"), "FOLDER/file exists and is not a socket"),
])
def test_a_check_refuses_a_gateway_that_could_not_start(flags, said):
    with folder() as where:
        open(where + "/file", "w").close()
        flags = [flag.replace("FOLDER", where) for flag in flags]
        line = [IDEM, "gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:%d" % free_port(), *flags]
        more = ["--socket", "off"] if "--socket" not in flags else []
        for check in (["--check"], []):
            done = subprocess.run([*line, *more, *check], capture_output=True, text=True, timeout=60)
            assert done.returncode == (2 if check else 1) and done.stdout == "", done
        done = subprocess.run([*line, *more, "--check"], capture_output=True, text=True, timeout=60)
        assert said.replace("FOLDER", where) in done.stderr, done


def test_a_check_says_what_it_did_not_check():
    with folder() as where:
        def check(*flags):
            return subprocess.run([IDEM, "gateway", "--upstream", "http://127.0.0.1:9", "--check", *flags], capture_output=True, text=True, timeout=60)

        done = check("--store", "journal:%s/j" % where, "--socket", "%s/s" % where)
        assert done.returncode == 0 and "not checked: whether the store can be opened" in done.stdout, done
        assert os.listdir(where) == []
        done = check("--engine", "idem://127.0.0.1:1")
        assert done.returncode == 0 and "not checked: whether the engine can be reached" in done.stdout, done


def test_a_port_that_is_taken_is_told():
    with folder() as where, Ledger(where) as ledger:
        for address in ("127.0.0.1:%d", "*:%d"):
            got = subprocess.run([IDEM, "gateway", "--upstream", "http://127.0.0.1:9", "--listen", address % ledger.port,
                                  "--store", "memory:"], capture_output=True, text=True, timeout=60)
            assert got.returncode == 1, got
            assert got.stderr == "idem gateway: %s is in use: stop the other program or choose another --listen\n" \
                % (address % ledger.port)


def test_tls_and_http2():
    with folder() as where, Ledger(where) as ledger:
        cert, key = os.path.join(where, "c.pem"), os.path.join(where, "k.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                        "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
        with Gateway(where, ledger.port, "--tls-cert", cert, "--tls-key", key, "--wait", "5s") as g:
            def h2(*args, path="/orders"):
                return subprocess.run(["nghttp", "-v", "--no-dep", *args, "https://127.0.0.1:%d%s" % (g.port, path)],
                                      capture_output=True, text=True, timeout=30).stdout
            body = os.path.join(where, "body")
            with open(body, "w") as f:
                f.write("x" * 50000)
            one = h2("-d", body, "-H", 'idempotency-key: "h2"')
            two = h2("-d", body, "-H", "idempotency-key: h2")
            assert ":status: 201" in one and "idempotent-replayed" not in one
            assert ":status: 201" in two and "idempotent-replayed: true" in two
            # Many streams of one connection with one key, and a large answer.
            many = h2("-m", "20", "-d", body, "-H", "idempotency-key: many", "-H", "x-size: 200000", "-H", "x-sleep: 0.3")
            assert many.count(":status: 201") == 20 and many.count("idempotent-replayed: true") == 19
            assert ledger.executions("h2") + ledger.executions("many") == 2
            context = ssl._create_unverified_context()
            with context.wrap_socket(socket.create_connection(("127.0.0.1", g.port), 30)) as s:
                s.sendall(b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: h1\r\nContent-Length: 0\r\n"
                          b"Connection: close\r\n\r\n")
                data = b""
                while part := s.recv(10000):
                    data += part
            assert b" 201 " in data


def test_a_service_behind_tls_and_whom_it_is():
    with folder() as where, Ledger(where) as ledger:
        cert, key = os.path.join(where, "c.pem"), os.path.join(where, "k.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                        "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True,
                       capture_output=True)
        with Gateway(where, ledger.port, "--tls-cert", cert, "--tls-key", key, "--gated", "off") as inner:
            for name, status in (("localhost", 201), ("127.0.0.1", 502)):
                port = free_port()
                with Process([IDEM, "gateway", "--upstream", "https://%s:%d" % (name, inner.port), "--verify", "--ca",
                              cert, "--listen", "127.0.0.1:%d" % port, "--store", "memory:"], ready=port):
                    assert ask(port, "k").status == status
            assert ledger.executions("k") == 1


def test_an_ordinary_user_can_run_it():
    with folder() as where, Ledger(where) as ledger:
        os.chmod(where, 0o777)
        port = free_port()
        argv = [*ordinary_user(), IDEM, "gateway", "--upstream", "http://127.0.0.1:%d" % ledger.port, "--listen",
                "127.0.0.1:%d" % port, "--store", "journal:%s/j" % where]
        with Process(argv, ready=port, env={"HOME": where, "XDG_RUNTIME_DIR": ""}) as g:
            assert user(g.pid) != 0 and len(children(g.pid)) == 2
            assert ask(port, "k").status == 201 and ask(port, "k").replayed
            for pid in children(g.pid):
                assert user(pid) != 0


def test_started_by_root_the_workers_are_somebody_else():
    assert os.geteuid() == 0, "this one needs root: sudo make check ONLY=launch"
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        engine, nginx = parts(g)
        eventually(lambda: children(nginx) and all(user(w) != 0 for w in children(nginx)))
        assert ask(g.port, "k", body=b"x" * 500000).status == 201, "and they can write large bodies to their folder"


@pytest.mark.parametrize("word", ["none", "off"])
def test_a_gateway_without_a_socket_and_http(word):
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--http", word, socket=word, cwd=where) as g:
        assert not os.path.lexists(os.path.join(where, word)) and "metrics at" not in g.output()


def test_websockets_and_events_pass():
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port) as g:
        s = socket.create_connection(("127.0.0.1", g.port), 30)
        s.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 101")
        for word in (b"hello", b"again"):
            s.sendall(word)
            assert s.recv(1000) == word.upper()
        s.close()
        s = socket.create_connection(("127.0.0.1", g.port), 30)
        s.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\nX-Until: %s/until\r\n\r\n" % where.encode())
        data = b""
        while b"data: 0" not in data:
            data += s.recv(1000)
        assert b"data: 2" not in data, "an event is sent when it happens"
        open(where + "/until", "w").close()
        s.close()


@pytest.mark.parametrize("flags", [[], ["--gated", "off"]])
@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket, h2c", b"echo"])
def test_no_other_protocol_passes_as_a_tunnel(flags, upgrade):
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, *flags) as g:
        got = raw(g.port, b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
                  b"Connection: Upgrade, HTTP2-Settings, close\r\n\r\n" % upgrade, until=b"}")
        assert got.startswith(b"HTTP/1.1 201"), got
        assert not {"upgrade", "connection"} & {n.lower() for n in ledger.entries()[0]["names"]}


def test_a_body_that_is_not_gated_goes_on_as_it_comes_and_lies_on_no_disk():
    """It may be endless."""
    taken = []

    def serve(listener):
        c, _ = listener.accept()
        with c:
            while data := c.recv(1 << 20):
                taken.append(len(data))
    with folder() as where, socket.create_server(("127.0.0.1", 0)) as listener:
        os.mkdir(where + "/gateway")
        os.chmod(where, 0o755)
        Later(serve, listener)
        with Gateway(where, listener.getsockname()[1], "--folder", where + "/gateway") as g, \
                socket.create_connection(("127.0.0.1", g.port), 60) as s:
            s.sendall(b"PUT /file HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(64):
                s.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
            eventually(lambda: sum(taken) > 64 << 20)
            spooled = [os.path.join(at, n) for at, _, names in os.walk(where + "/gateway/client_body") for n in names]
            assert not spooled
            got = raw(g.port, b"POST /file HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n"
                      + b"200000\r\n" + bytes(2 << 20), until=b"body-too-large")
            assert got.startswith(b"HTTP/1.1 413"), got


class Guard:
    """A service's own check of credentials."""

    def __init__(self):
        self.allowed, self.seen, self.stopped = {"Bearer a", "Bearer b"}, [], False
        guard = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if guard.stopped:
                    self.close_connection = True
                    return
                guard.seen.append((self.path, self.headers["X-Original-URI"], self.headers["X-Original-Method"],
                                   self.headers["Content-Length"], self.headers["Transfer-Encoding"]))
                self.send_response(204 if self.headers["Authorization"] in guard.allowed else 401)
                self.send_header("WWW-Authenticate", "Bearer")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d/check" % self.server.server_port
        Later(self.server.serve_forever, 0.05)

    def stop(self):
        self.stopped = True
        self.server.shutdown()
        self.server.server_close()


def test_a_revoked_credential_gets_no_replay_where_the_service_is_asked_first():
    guard = Guard()
    a, b = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
    with folder() as where, Ledger(where) as ledger:
        conf = os.path.join(where, "conf")
        with open(conf, "w") as f:
            f.write("auth-request = %s\ntoken-path = /token\n[route /]\nwait = 1s\n[route /public]\nauth-request = off\n"
                    % guard.url)
        with Gateway(where, ledger.port, "--config", conf) as g:
            assert ask(g.port, "k", headers=a).status == 201 and ask(g.port, "k", headers=a).replayed
            assert guard.seen[0] == ("/check", "/orders", "POST", None, None)
            assert ask(g.port, "k", headers=a, body=iter([b'{"a"', b":1}"])).replayed
            assert ask(g.port, headers=a, path="/token", method="GET").status == 200
            guard.allowed.discard("Bearer a")
            got = ask(g.port, "k", headers=a)
            assert got.status == 401 and not got.replayed and got.headers["www-authenticate"] == "Bearer"
            assert ask(g.port, "new", headers=a).status == 401 and ask(g.port, headers=a, path="/token", method="GET").status == 401
            assert ask(g.port, "p", headers=a, path="/public").status == 201
            assert ask(g.port, "new", headers=b).status == 201
            assert ask(g.port, path="/.idem/auth/0", method="GET", headers=b).status == 404
            guard.stop()
            assert ask(g.port, "gone", headers=b).status == 500
            assert ledger.executions("k") == 1 and ledger.executions("gone") == 0 and ledger.executions("new") == 1


def test_an_agreed_answer_to_repeats_is_given_at_once_while_the_first_one_still_runs():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--duplicate", 'answer 200 "重复调用"', "--wait", "20s") as g:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(ask, g.port, "k", x_sleep=5)
            eventually(lambda: ledger.executions("k") == 1)
            repeat = ask(g.port, "k", x_sleep=5)
            assert (repeat.status, repeat.body.decode()) == (200, "重复调用") and not first.done()
            assert first.result().status == 201
        assert ask(g.port, "k", x_sleep=5).body.decode() == "重复调用" and ledger.executions("k") == 1


def test_every_answer_to_a_request_with_a_token_brings_the_next_token():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--token-path", "/token", "--next-token", "--max-answer", "4k") as g:
        token = ask(g.port, path="/token").headers["idempotency-token"]
        seen = [token]
        for more in ({}, {"x_size": 100000}, {"x_code": 500}):
            first, repeat = ask(g.port, token=token, **more), ask(g.port, token=token, **more)
            assert first.status == int(more.get("x_code", 201)) and repeat.status == (410 if "x_size" in more else first.status)
            seen += [first.headers["idempotency-token"], repeat.headers["idempotency-token"]]
            token = first.headers["idempotency-token"]
        assert len(set(seen)) == 7 and len(ledger.entries()) == 3
        assert "idempotency-token" not in ask(g.port, "a-key").headers, "a key is not a token"


def test_a_service_gets_a_token_for_the_form_that_it_renders():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--token-path", "/token", "--page-token", "--token", "form:token",
                    "--scope", "$http_x_user") as g:
        def page(**more):
            ask(g.port, method="GET", path="/form", body=None, **more)
            return {k.lower(): v for k, v in ledger.entries()[-1]["headers"].items()}.get("idem-token")

        def submit(user):
            return ask(g.port, body=b"item=book&token=" + token.encode(), x_user=user,
                       content_type="application/x-www-form-urlencoded")

        token = page(x_user="ann", idem_token="made-up")
        assert len(token) == 32 and page(x_user="ann") != token
        assert page() is None, "nobody asked: there is no one to issue it to"
        assert submit("bob").problem == "token-unknown"
        assert submit("ann").status == 201 and submit("ann").replayed


def test_a_caller_can_ask_what_became_of_a_key_of_its_own():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--status-path", "/requests", "--token-path", "/token", "--scope", "$http_x_user") as g:
        def status(key, method="GET", **named):
            return ask(g.port, method=method, path="/requests?key=" + key, body=None, **{"x_user": "ann", **named})

        assert status("k").status == 404 and status("k").problem == "key-unused"
        first = ask(g.port, "k", x_user="ann")
        told = status("k")
        assert (told.status, told.body, told.replayed) == (201, first.body, True)
        assert ask(g.port, "k", method="GET", path="/requests", body=None, x_user="ann").body == first.body, "in its header"
        assert status("k", x_user="bob").problem == "key-unused", "not its own"
        assert ask(g.port, path="/requests?key=k", method="GET", body=None).problem == "scope-missing"
        assert ask(g.port, path="/requests", method="GET", body=None, x_user="ann").problem == "key-missing"
        with ThreadPoolExecutor() as pool:
            slow = pool.submit(ask, g.port, "slow", x_user="ann", x_sleep=3)
            eventually(lambda: ledger.executions("slow") == 1)
            running = status("slow")
            assert running.problem == "in-progress" and running.headers["retry-after"] == "1", "not the whole lease"
            assert status("slow", "POST").problem == "in-progress"
            assert slow.result().status == 201
        assert ask(g.port, "lost", x_user="ann", x_way="half-body").status == 504
        eventually(lambda: status("lost").problem == "outcome-unknown", 10)
        token = ask(g.port, path="/token", x_user="ann").json()["token"]
        assert ask(g.port, path="/requests", method="GET", body=None, x_user="ann", token=token).problem == "key-unused"
        done = ask(g.port, token=token, x_user="ann")
        assert ask(g.port, path="/requests", method="GET", body=None, x_user="ann", token=token).body == done.body
        assert len(ledger.entries()) == 4, "asking executes nothing"


def test_a_caller_that_gives_up_makes_sure_that_a_late_request_does_not_run():
    with folder() as where, Ledger(where) as ledger, \
            Gateway(where, ledger.port, "--status-path", "/requests", "--status-rate", "1r/s") as g:
        def settle(key):
            return ask(g.port, key, path="/requests", body=None)

        assert (settle("k").status, settle("k").problem) == (200, "settled")
        late = ask(g.port, "k")
        assert late.status == 409 and late.problem == "settled" and ledger.entries() == []
        first = ask(g.port, "done")
        assert settle("done").body == first.body and len(ledger.entries()) == 1
        refused = next(a for a in (settle("k") for _ in range(2000)) if a.status == 429)  # a slow machine is refused later
        assert refused.problem == "too-many-questions" and refused.json()["retryable"] is True


def test_a_store_that_may_forget_is_for_loose_routes_only():
    url = "redis://127.0.0.1:1?unsafe=unseen,forget"
    args = [IDEM, "gateway", "--upstream", "http://127.0.0.1:1", "--print-config", "--store", url]
    refused = subprocess.run(args, capture_output=True, text=True)
    assert refused.returncode == 2 and "the route / is strict" in refused.stderr, refused.stderr
    assert subprocess.run([*args, "--mode", "loose"], capture_output=True).returncode == 0
