"""nginx and its engine on another machine: TLS between them, checked in both directions."""
import contextlib
import os
import subprocess
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

import servers
from chaos import Chaos
from gateway import Ledger, Nginx, ask, nginx_env
from lib import Server, folder, wait_until


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
