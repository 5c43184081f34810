"""nginx and its engine on another machine: TLS between them, checked in both directions."""
import contextlib
import os
import signal
import subprocess
import types
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest

import servers
from chaos import Chaos
from gateway import Gateway, Ledger, Nginx, ask, nginx_env
from lib import IDEM, Process, Server, folder, wait_until


@pytest.fixture(scope="module")
def files():
    with folder() as where:
        ca, cert, key = servers.authority(where, "ours")
        made = types.SimpleNamespace(ca=ca, cert=cert, key=key, other=servers.authority(where, "other"))
        made.shop = servers.certificate(where + "/ours-ca", where + "/shop", "shop.example")
        made.named = servers.certificate(where + "/ours-ca", where + "/named", host="DNS:engine.example")
        yield made


@contextlib.contextmanager
def stack(files, options, *flags, cert=None, port=None):
    """A server that speaks TLS, and nginx that reaches it with these options of idem_engine."""
    cert, key = cert or (files.cert, files.key)
    with folder() as where:
        os.chmod(where, 0o755)
        with Server(where, "--tls-cert", cert, "--tls-key", key, *flags, listen=True) as engine, Ledger(where) as ledger:
            with Nginx(where, "127.0.0.1:%d" % (port(engine.port) if port else engine.port), ledger.port,
                       engine_options=options) as nginx:
                yield types.SimpleNamespace(engine=engine, ledger=ledger, nginx=nginx, port=nginx.port)


def tls(files, *more):
    return " ".join(["tls=on", "ca=" + files.ca, "timeout=10s", "away=10s", *more])


def test_requests_run_once_over_tls_short_and_long(files):
    with stack(files, tls(files)) as s:
        first = ask(s.port, "a", x_size=700000, body=b"x" * 200000)
        again = ask(s.port, "a", x_size=1, body=b"x" * 200000)
        assert first.status == again.status == 201 and first.body == again.body and len(first.body) == 700000
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda n: ask(s.port, "k%d" % n, x_size=70000), range(200)))
        assert {a.status for a in answers} == {201}
        assert s.ledger.executions("a") == 1 and len(s.ledger.entries()) == 201


def test_a_certificate_of_ours_is_the_credential(files):
    with folder() as where:
        with open(os.open(where + "/credentials", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("billing cert:shop.example use\n")
        flags = ("--tls-client-ca", files.ca, "--credentials", where + "/credentials")
        with stack(files, tls(files, "cert=" + files.shop[0], "key=" + files.shop[1]), *flags) as s:
            assert ask(s.port, "a").status == 201
        with stack(files, tls(files, "away=1s").replace("away=10s ", ""), *flags) as s:
            assert ask(s.port, "a").status == 503 and not s.ledger.entries()


def test_the_name_in_the_certificate_may_be_given(files):
    with stack(files, tls(files, "name=engine.example"), cert=files.named) as s:
        assert ask(s.port, "a").status == 201


@pytest.mark.parametrize("why", ["authority", "name", "no tls here", "no tls there"])
def test_an_engine_that_cannot_prove_itself_gets_no_command(files, why):
    """503, not executed; and the log says why."""
    options = {"authority": "tls=on ca=" + files.other[0], "no tls here": ""}.get(why, "tls=on ca=" + files.ca) + " timeout=5s away=1s"
    with folder() as where, contextlib.ExitStack() as both:
        os.chmod(where, 0o755)
        flags = [] if why == "no tls there" else ["--tls-cert", files.named[0] if why == "name" else files.cert,
                                                  "--tls-key", files.named[1] if why == "name" else files.key]
        engine = both.enter_context(Server(where, *flags, listen=True))
        ledger = both.enter_context(Ledger(where))
        nginx = both.enter_context(Nginx(where, "127.0.0.1:%d" % engine.port, ledger.port, engine_options=options))
        assert ask(nginx.port, "a").status == 503 and not ledger.entries()
        said = {"authority": "unable to get local issuer certificate", "name": "IP address mismatch", "no tls here": "connection lost",
                "no tls there": "the handshake failed"}[why]
        assert wait_until(lambda: said in nginx.errors(), 10), nginx.errors()


def test_a_connection_that_is_cut_again_and_again_repeats_nothing(files):
    lines = []

    def through(port):
        lines.append(Chaos(port))
        return lines[0].port
    try:
        with stack(files, tls(files), port=through) as s:
            with ThreadPoolExecutor(8) as pool:
                calls = [pool.submit(ask, s.port, "c%d" % n, x_size=20000) for n in range(60)]
                while not all(call.done() for call in calls):
                    lines[0].close_pairs()
                    wait_until(lambda: all(call.done() for call in calls), 0.1)
            assert {call.result().status for call in calls} == {201}
            assert sorted(e["key"] for e in s.ledger.entries()) == sorted("c%d" % n for n in range(60))
    finally:
        for line in lines:
            line.stop()


@pytest.mark.parametrize("options, said", [
    ("ca=CA", "need tls=on"), ("tls=on cert=CA", "belong together"), ("tls=maybe", "invalid parameter"),
    ("tls=on ca=/nonexistent.pem", "/nonexistent.pem")])
def test_wrong_options_are_refused_when_nginx_starts(files, options, said):
    with folder() as where, Ledger(where) as ledger, Server(where) as engine:
        with Nginx(where, engine.socket, ledger.port) as nginx:
            with open(nginx.conf) as f:
                text = f.read().replace("timeout=10s away=10s", options.replace("CA", files.ca))
        with open(nginx.conf, "w") as f:
            f.write(text)
        done = subprocess.run(["/usr/sbin/nginx", "-t", "-p", where, "-c", nginx.conf], text=True, env={**os.environ, **nginx_env(where)},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode != 0 and said in done.stdout, done.stdout


# ---- idem gateway --engine ---------------------------------------------------

SECRET = "s3cr3t-of-${shop}\\\"1234"  # with all that nginx.conf could misread


def write(path, text):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write(text)
    return path


@contextlib.contextmanager
def apart(files, url, env=None, ca=None, secret=SECRET):
    """A server with TLS and a credential, and a gateway that uses it; in the URL: PORT, CA, SECRET and AUTH, a file."""
    with folder() as where, folder() as other, Ledger(where) as ledger, contextlib.ExitStack() as left:
        os.mkdir(where + "/run")
        os.chmod(other, 0o755)  # nginx's workers have another user
        auth = write(where + "/auth", "shop %s\n" % secret)
        write(other + "/credentials", "shop %s use\n" % SECRET)
        engine = left.enter_context(Server(other, "--tls-cert", files.cert, "--tls-key", files.key, "--credentials", other + "/credentials",
                                           "--socket-mode", "0666", listen=True))
        for word, value in (("PORT", str(engine.port)), ("CA", ca or files.ca), ("AUTH", auth), ("SOCKET", engine.socket),
                            ("SECRET", urllib.parse.quote(secret, ""))):
            url = url.replace(word, value)
        gateway = left.enter_context(Gateway(where, ledger.port, "--folder", where + "/run", engine=url, env=env))
        yield types.SimpleNamespace(engine=engine, ledger=ledger, gateway=gateway, port=gateway.port, where=where, auth=auth, url=url,
                                    left=left)


@pytest.mark.parametrize("how", ["url", "file", "variable"])
def test_a_gateway_uses_an_engine_elsewhere_and_starts_none(files, how):
    url = {"url": "idems://shop:SECRET@127.0.0.1:PORT?ca=CA", "file": "idems://127.0.0.1:PORT?ca=CA&auth-file=AUTH",
           "variable": "idems://127.0.0.1:PORT?ca=CA&timeout_ms=10000"}[how]
    env = {"IDEM_AUTH": "shop:" + SECRET, "IDEM_STORE": "journal:/nonexistent"} if how == "variable" else {}
    with apart(files, url, env) as s:
        first, again = ask(s.port, "a", x_size=300000), ask(s.port, "a")
        assert first.status == again.status == 201 and again.replayed and first.body == again.body and s.ledger.executions("a") == 1
        with open("/proc/%d/task/%d/children" % (s.gateway.pid, s.gateway.pid)) as f:
            children = [int(pid) for pid in f.read().split()]
        assert len(children) == 1 and not os.path.exists(s.where + "/journal")
        for pid in (s.gateway.pid, children[0]):  # what every user can see
            with open("/proc/%d/cmdline" % pid) as f:
                assert "s3cr3t" not in f.read()
        assert os.stat(s.where + "/run/nginx.conf").st_mode & 0o077 == 0
        said = s.gateway.output()
        assert "s3cr3t" not in said and "figures by route are not counted" in said and "cannot be reached" not in said, said
        shown = subprocess.run([IDEM, "gateway", "--upstream", "http://127.0.0.1:1", "--engine", s.url, "--print-config"], text=True,
                               env={**os.environ, **env}, stdout=subprocess.PIPE, check=True).stdout
        assert "s3cr3t" not in shown and "tls=on" in shown and "# Add user=NAME password=SECRET here" in shown, shown


def test_an_engine_elsewhere_dies_and_comes_back(files):
    with apart(files, "idems://shop:SECRET@127.0.0.1:PORT?ca=CA") as s:
        assert ask(s.port, "a").status == 201
        s.engine.kill()
        away = ask(s.port, "b")
        assert away.status == 503 and away.problem == "not-executed" and s.ledger.executions("b") == 0
        assert ask(s.port, method="GET").status == 201  # not gated
        s.left.enter_context(Process(s.engine.argv, ready=s.engine.port))
        assert wait_until(lambda: ask(s.port, "b").status == 201, 30)
        assert ask(s.port, "a").replayed and s.ledger.executions("a") == s.ledger.executions("b") == 1


@pytest.mark.parametrize("why", ["authority", "secret"])
def test_a_gateway_says_why_its_engine_cannot_be_used(files, why):
    """Nothing is executed meanwhile; after a repair and SIGHUP it goes on."""
    with folder() as where:
        ca = write(where + "/ca.pem", open(files.other[0] if why == "authority" else files.ca).read())
        with apart(files, "idems://127.0.0.1:PORT?ca=CA&auth-file=AUTH", ca=ca, secret="wrong" if why == "secret" else SECRET) as s:
            answer = ask(s.port, "a")
            assert answer.status == 503 and not s.ledger.entries(), answer
            said = {"authority": "unable to get local issuer certificate", "secret": "the name or the secret is wrong"}[why]
            assert wait_until(lambda: said in s.gateway.output() and "protected requests are refused until" in s.gateway.output(), 30)
            write(ca, open(files.ca).read())
            write(s.auth, "shop %s\n" % SECRET)
            s.gateway.send(signal.SIGHUP)
            assert wait_until(lambda: ask(s.port, "a").status == 201, 30), s.gateway.output()


def test_an_engine_may_be_a_socket_of_this_machine(files):
    with apart(files, "idem+unix:SOCKET?auth-file=AUTH") as s:
        assert ask(s.port, "a").status == 201 and ask(s.port, "a").replayed
        assert "idem+unix:%s" % s.engine.socket in s.gateway.output()


@pytest.mark.parametrize("flags, said", [
    (["--store", "memory:"], "--store and --engine exclude each other: with --engine, the records are where that server keeps them"),
    (["--console"], "console"),
    (["--seal-key", "/nonexistent"], "--seal-key and --engine exclude each other"), (["--http", "127.0.0.1:1"], "--http and --engine exclude each other"),
    (["--socket", "/nonexistent"], "--socket and --engine exclude each other"), (["--credentials", "/nonexistent"], "--credentials and --engine exclude each other"),
    (["--engine", "redis://127.0.0.1"], "not the URL of a server"), (["--engine", "name:secret@h:1"], "not the URL of a server"), (["--engine", "idems://h?ca=/nonexistent.pem"], "/nonexistent.pem"),
    (["--engine", "idem://a:secret@h?auth-fil=x"], "auth-fil"), (["--engine", "idem://h?auth-file=/nonexistent"], "/nonexistent")])
def test_an_engine_elsewhere_has_its_own_settings(flags, said):
    done = subprocess.run([IDEM, "gateway", "--upstream", "http://127.0.0.1:1", "--engine", "idem://127.0.0.1:1", "--print-config", *flags],
                          text=True, stderr=subprocess.PIPE)
    assert done.returncode == 2 and said in done.stderr and "secret" not in done.stderr, done.stderr
