"""What the gateway counts by route: how requests ended, how long the service took, repeats waited and claims lasted."""
import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request

import pytest

from gateway import *
from lib import IDEM, ROOT, Resp, Server, folder

FIGURES = os.path.join(ROOT, "src/base/figures.h")


def verdicts():
    with open(FIGURES) as f:
        return re.findall(r'"([a-z-]+)"', re.search(r"verdicts\[\] = \{(.*?)\};", f.read(), re.S).group(1))


def metrics(port):
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=60) as answer:
        return answer.read().decode()


def value(text, name, **labels):
    """Of one series; 0 if there is none."""
    wanted = ",".join('%s="%s"' % (k, v) for k, v in labels.items())
    found = re.search(r"^%s\{%s\} (\S+)$" % (re.escape(name), re.escape(wanted)), text, re.M)
    return float(found.group(1)) if found else 0


def counts(text, route):
    """How many requests of this route ended how."""
    rows = re.findall(r'^idem_gateway_requests_total\{route="%s",verdict="([a-z-]+)"\} (\d+)$' % re.escape(route), text, re.M)
    return {verdict: int(n) for verdict, n in rows if n != "0"}


def test_the_table_has_every_verdict_that_a_request_can_end_with():
    said = set()
    for name in os.listdir(os.path.join(ROOT, "src/gateway/module")):
        with open(os.path.join(ROOT, "src/gateway/module", name)) as f:
            said |= set(re.findall(r'ngx_str_set\(&ctx->verdict, "([a-z-]+)"\)', f.read()))
    begin = {"started", "replay", "busy", "doubt", "mismatch", "duplicate", "unknown"}  # ngx_http_idem_begun
    assert len(said) > 8 and set(verdicts()) == said | begin | {"refused", "passed"}


@pytest.fixture(scope="module")
def gateway():
    port = free_port()
    with folder() as where, Ledger(where) as ledger:
        config = os.path.join(where, "conf")
        with open(config, "w") as f:
            f.write("[route /orders]\nwait = 30s\n[route /strict]\nrequired = on\n[route /plain]\ngated = off\n[route /pay]\nhost = shop.example\n[route /]\n")
        with Gateway(where, ledger.port, "--config", config, "--http", "127.0.0.1:%d" % port, "--workers", "2", store="memory:",
                     socket=os.path.join(where, "s")) as g:
            g.http, g.ledger, g.socket = port, ledger, os.path.join(where, "s")
            yield g


def ended(gateway, route, **expected):
    """The route's requests, once they are all counted: a request is over a moment after its answer."""
    expected = {k.replace("_", "-"): v for k, v in expected.items()}
    try:
        eventually(lambda: counts(metrics(gateway.http), route) == expected, 20)
    except AssertionError:
        assert counts(metrics(gateway.http), route) == expected
    return metrics(gateway.http)


def test_verdicts_and_times_are_counted_by_route(gateway):
    first = Working(gateway.port, gateway.ledger, "a")
    waits = Later(ask, gateway.port, "a")  # held until the first one is done
    with Resp(gateway.socket) as resp:
        eventually(lambda: int(re.search(r"^parked:(\d+)", resp("INFO"), re.M).group(1)) == 1)
    time.sleep(0.2)
    assert first.result().status == 201 and waits.result().replayed
    for key, named in (("a", {}), ("b", {"x_sleep": 0.3}), ("c", {"x_code": 429}), ("d", {"x_way": "nothing"})):
        ask(gateway.port, key, **named)
    assert ask(gateway.port, "a", body=b"other").problem == "mismatch"
    assert ask(gateway.port, "x" * 300).status == 400 and ask(gateway.port).status == 201
    text = ended(gateway, "/orders", started=2, replay=2, released=1, outcome_unknown=1, mismatch=1, refused=1, passed=1)

    def count(name):
        return value(text, "idem_gateway_%s_seconds_count" % name, route="/orders")
    assert count("upstream") == 5 and count("hold") == 3 and count("claim") == 2
    assert value(text, "idem_gateway_upstream_seconds_sum", route="/orders") >= 0.3
    assert value(text, "idem_gateway_claim_seconds_sum", route="/orders") >= 0.3
    assert value(text, "idem_gateway_claim_seconds_bucket", route="/orders", le="+Inf") == 2
    assert value(text, "idem_gateway_claim_seconds_bucket", route="/orders", le="0.001") <= 1
    assert 0.1 <= value(text, "idem_gateway_hold_seconds_sum", route="/orders") < 60


def test_each_location_is_a_route_and_a_host_has_its_own(gateway):
    ask(gateway.port, path="/strict")
    ask(gateway.port, "r", path="/plain")
    ask(gateway.port, "r", path="/pay", headers={"Host": "shop.example"})
    ask(gateway.port, "r", path="/elsewhere")
    ended(gateway, "shop.example/pay", started=1)
    ended(gateway, "/", started=1)
    text = ended(gateway, "/strict", refused=1)
    assert 'route="/plain"' not in text and counts(text, "other") == {}
    for route in ("/", "/orders", "shop.example/pay"):
        assert len(re.findall(r'^idem_gateway_requests_total\{route="%s",' % re.escape(route), text, re.M)) == len(verdicts())


def test_promtool_finds_nothing_to_complain_about(gateway):
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics(gateway.http), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def top(socket, *flags):
    done = subprocess.run([IDEM, "top", "--server", "unix:" + socket, "--once", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_top_shows_what_the_routes_do(gateway):
    look = subprocess.Popen([IDEM, "top", "--server", "unix:" + gateway.socket, "--every", "100ms", "--json"], text=True,
                            stdout=subprocess.PIPE)
    try:
        look.stdout.readline()  # what comes from now on is between two looks
        for i in range(5):
            assert ask(gateway.port, "top-%d" % i, x_sleep=0.1).status == 201
        assert ask(gateway.port, "top-0", x_sleep=0.1).status == 201
        seen = set()
        while not seen >= {"started", "replay", "upstream_ms"}:
            route = json.loads(look.stdout.readline())["routes"]["/orders"]
            rates = route["verdicts_per_second"]
            assert abs(route["requests_per_second"] - sum(rates.values())) < 1e-6
            seen |= {word for word, rate in {**rates, "upstream_ms": route["upstream_ms"]}.items() if rate > 0}
        assert "doubt" not in seen and "mismatch" not in seen
    finally:
        look.kill()
        look.wait()
    text = top(gateway.socket, "--every", "100ms")
    assert re.search(r"^route +all/s +started/s +replays/s +doubts/s +others/s +service$", text, re.M), text
    assert re.search(r"^/orders +\d+\.\d +\d+\.\d ", text, re.M), text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_top_shows_routes_and_the_store_without_a_port():
    with folder() as where, Ledger(where) as ledger:
        socket = os.path.join(where, "s")
        with Gateway(where, ledger.port, "--http", "off", store="journal:" + where + "/j", socket=socket) as g:
            assert ask(g.port, "one").status == 201
            look = json.loads(top(socket, "--every", "50ms", "--json"))
            assert "/" in look["routes"] and look["store"]["journal_records"] >= 1, look
            assert re.search(r"^journal_records +[1-9]", top(socket, "--every", "50ms"), re.M)
            with Resp(socket) as c:
                assert re.search(r"^route_\d+:/ started=1 ", c("INFO"), re.M)


def test_figures_outlive_the_engine_and_a_reload(gateway):
    before = counts(metrics(gateway.http), "/orders")
    engine = int(subprocess.run(["pgrep", "-P", str(gateway.pid), "-f", "idem serve"], capture_output=True, text=True, check=True).stdout)
    os.kill(engine, signal.SIGKILL)

    def again():
        try:
            return counts(metrics(gateway.http), "/orders") == before
        except OSError:
            return False
    eventually(again)
    os.kill(gateway.pid, signal.SIGHUP)
    eventually(lambda: ask(gateway.port, "after", path="/strict").status == 201)
    assert counts(metrics(gateway.http), "/orders") == before


# ---- with an nginx of one's own ----------------------------------------------------------------------------------


@contextlib.contextmanager
def own(more):
    """nginx and a server that shows what nginx counts; yields the two ports."""
    port = free_port()
    with folder() as where:
        file = os.path.join(where, "figures")
        with Stack(where, http="idem_figures %s;" % file, more=more,
                   engine=("--gateway-figures", file, "--http", "127.0.0.1:%d" % port)) as s:
            yield s.port, port


def test_more_routes_than_fit_are_counted_as_other():
    with own("".join("location /r%02d { idem on; proxy_pass http://service; }\n" % i for i in range(80))) as (port, http):
        for i in range(80):
            assert ask(port, "k%d" % i, path="/r%02d" % i).status == 201

        def all_counted():
            text = metrics(http)
            return text if sum(map(int, re.findall(r"^idem_gateway_requests_total\{.*\} (\d+)$", text, re.M))) == 80 else None
        text = eventually(all_counted)
        routes = set(re.findall(r'^idem_gateway_requests_total\{route="([^"]+)"', text, re.M))
        named = sum(1 for i in range(80) if "/r%02d" % i in routes)
        assert len(routes) == 64 and "other" in routes and counts(text, "other") == {"started": 80 - named}


def test_a_route_with_odd_letters_is_written_as_in_a_url():
    with own('location "/a\\"b\\\\ \u00e9" { idem on; proxy_pass http://service; }') as (port, http):
        assert ask(port, "k", path="/a%22b%5C%20%C3%A9").status == 201
        eventually(lambda: counts(metrics(http), "/a%22b%5C%20%C3%A9") == {"started": 1})


@pytest.mark.parametrize("content,good", [(b"precious", False), (b"idem-figures of another version", True), (b"", True)], ids=["other", "version", "empty"])
def test_only_a_file_of_its_own_is_begun_anew(content, good):
    with folder() as where:
        file = os.path.join(where, "figures")
        with open(file, "wb") as f:
            f.write(content)
        conf = os.path.join(where, "conf")
        with open(conf, "w") as f:
            f.write("load_module %s; events {} pid %s/pid; error_log stderr; http { access_log off; idem_figures %s; %s }" % (
                MODULE, where, file, "".join("%s_temp_path %s/%s; " % (n, where, n) for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))))
        told = nginx_test(where, conf)
        with open(file, "rb") as f:
            now = f.read()
        assert (told.returncode == 0) == good, told.stderr
        assert now.startswith(b"idem-figures\0") if good else now == content and "is not a file of idem_figures" in told.stderr


@pytest.mark.parametrize("content", [b"", b"idem-figures", b"idem-figures" + b"\xff" * 100000, None],
                         ids=["empty", "short", "odd", "none"])
def test_a_server_shows_no_figures_of_a_file_that_is_not_right(content):
    with folder() as where:
        file = os.path.join(where, "figures")
        if content is not None:
            with open(file, "wb") as f:
                f.write(content)
        with Server(where, "--gateway-figures", file, http=True) as server:
            text = metrics(server.http)
            assert "# TYPE idem_gateway_requests_total counter" in text and "idem_gateway_requests_total{" not in text
