"""Two gateways on one store, behind the load balancer of docs/install.md: they are restarted one after the other, and clients go on.

Waits more than it works.
"""
import collections
import contextlib
import os
import re
import urllib.request

import pytest

from gateway import *
from lib import ROOT, folder, listens
from servers import Redis
from test_gateway_restart import Load


def balancer_of(page):
    """The page's nginx configuration."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        return re.search(r"```nginx\n(.*?)```", f.read(), re.S).group(1)


class Balancer(Process):
    def __init__(self, where, ports, page="docs/install.md"):
        self.port = free_port()
        block = balancer_of(page)
        for old, new in (("10.0.0.11:8080", "127.0.0.1:%d" % ports[0]), ("10.0.0.12:8080", "127.0.0.1:%d" % ports[1]),
                         ("listen 80;", "listen 127.0.0.1:%d;" % self.port)):
            assert old in block
            block = block.replace(old, new)
        conf, temp = os.path.join(where, "balancer.conf"), os.path.join(where, "balancer-")
        with open(conf, "w") as f:
            f.write("daemon off; pid %sp; error_log stderr;\nevents {}\nhttp {\naccess_log off; %s\n%s}\n" % (
                temp, " ".join("%s_temp_path %s%s;" % (n, temp, n) for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")), block))
        super().__init__(["/usr/sbin/nginx", "-p", where, "-c", conf], ready=self.port)


@pytest.fixture
def two():
    """A ledger, the folders and ports of two gateways (listen, http), the store's URL."""
    redis = Redis()
    try:
        with folder() as where, folder() as a, folder() as b, Ledger(where) as ledger:
            places = [(home, free_port(), free_port()) for home in (a, b)]
            yield where, ledger, lambda n: gateway(places[n], ledger, redis.url), places
    finally:
        redis.stop()


def gateway(place, ledger, store):
    home, port, http = place
    return Gateway(home, ledger.port, "--http", "127.0.0.1:%d" % http, port=port, store=store)


def is_ready(http):
    try:
        return urllib.request.urlopen("http://127.0.0.1:%d/readyz" % http, timeout=10).status == 200
    except OSError:
        return False


def test_two_gateways_are_restarted_one_after_the_other_while_clients_go_on(two):
    where, ledger, start, places = two
    with contextlib.ExitStack() as end:
        gateways = [end.enter_context(start(n)) for n in range(2)]
        balancer = end.enter_context(Balancer(where, [port for _, port, _ in places]))
        load = Load(lambda key: ask(balancer.port, key), 2)
        for n, (_, port, http) in enumerate(places):
            slow = Working(balancer.port, ledger, "slow-%d" % n)
            done = len(load.answers)
            gateways[n].send(15)
            eventually(lambda: not listens(port))
            eventually(lambda: len(load.answers) > done + 20)
            assert slow.result().status == 201  # whichever of the two has it
            assert gateways[n].wait() == 0
            gateways[n] = end.enter_context(start(n))
            eventually(lambda: is_ready(http))
            done = len(load.answers)
            eventually(lambda: len(load.answers) > done + 20)
        answers = load.stop()
        cut = [key for key, status in answers if status != 201]  # connected in the instant at which the port was closed
        assert len(cut) <= 2 and collections.Counter(status for _, status in answers).keys() <= {201, 502}, answers
        assert all(ask(balancer.port, key).status == 201 for key in cut)
        assert ask(balancer.port, answers[0][0]).replayed and ask(balancer.port, answers[-1][0]).replayed
        assert set(collections.Counter(e["key"] for e in ledger.entries()).values()) == {1}


def test_the_load_balancer_does_not_send_a_post_again(two):
    """Not even one without a key, which nothing else would stop."""
    where, ledger, start, places = two
    with start(0) as a, Balancer(where, [port for _, port, _ in places]) as balancer:
        one = Working(balancer.port, ledger, None, path="/plain")
        with start(1):
            a.kill()
            assert one.thread.join(60) is None and one.result().status == 502
            assert ask(balancer.port, "next").status == 201  # the other gateway
            assert len([e for e in ledger.entries() if e["path"] == "/plain"]) == 1


def test_the_page_has_the_same_load_balancer_in_chinese():
    english, chinese = (re.sub(r" *#.*", "", balancer_of(page)) for page in ("docs/install.md", "docs/install.zh-CN.md"))
    assert english == chinese
