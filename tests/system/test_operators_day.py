"""An operator's day, played from its page, on a journal and on PostgreSQL: a payment in doubt is found by the customer's key and by
the instance of the problem, settled, told to the client, and in the audit; a backup taken under load is restored elsewhere, and
nothing that was acknowledged is missing or runs again."""
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

import servers
from gateway import *
from lib import ROOT, Process, folder, free_port, listens, wait_until

PAGES = ["docs/operators-day.md", "docs/operators-day.zh-CN.md"]


def lines(page):
    with open(os.path.join(ROOT, page)) as f:
        return re.findall(r"^    \$ (.*)$", f.read(), re.M)


def test_both_pages_have_the_same_commands():
    one, two = (["idem settle" if "--reason" in line else line for line in lines(page)] for page in PAGES)
    assert one == two and len(one) == 16


class Shell:
    """One bash that the page's lines are typed into, in the clone, with a home of its own."""

    def __init__(self, home, ports):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("IDEM_", "XDG_"))}
        self.bash = subprocess.Popen(["bash", "--noprofile", "--norc"], cwd=ROOT, env={**env, "HOME": home}, text=True, bufsize=1,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        self.ports = ports

    def run(self, line, code=0, **words):
        """A line of the page; what it said."""
        for old, new in {**self.ports, **words}.items():
            line = line.replace(old, str(new))
        self.bash.stdin.write(line + "; code=$?; echo; echo END $code\n")
        said = []
        while not (said and said[-1].startswith("END ")):
            said.append(self.bash.stdout.readline())
            assert said[-1], (line, said)
        assert int(said.pop()[4:]) == code, (line, said)
        return "".join(said).removesuffix("\n")

    def close(self):
        """And what it started."""
        self.bash.stdin.write("kill -CONT $service; kill $gateway $service; wait $gateway; exit\n")
        self.bash.communicate(timeout=60)


class Day:
    """The page, until the payment has been sent; with this test's ports, and its store if it is not the page's."""

    def __init__(self, where, store=None):
        self.home, self.http, self.port, self.service = where, free_port(), free_port(), free_port()
        self.shell = Shell(where, {":7399": ":%d" % self.http, ":8080": ":%d" % self.port, "9000": self.service})
        self.pay, self.run, self.lines = where + "/pay", self.shell.run, lines(PAGES[0])
        self.run(self.next("export PATH="))
        self.run(self.next("export STORE="))
        if store:
            self.run("export STORE='%s'; idem store init $STORE" % store)
        self.run(self.next("mkdir"))
        self.run(self.next("examples/shop.py"))
        assert wait_until(lambda: listens(self.service))
        self.run(self.next("idem gateway"))
        assert wait_until(lambda: "listening" in self.read("gateway.log")), self.read("gateway.log")

    def next(self, begins):
        assert self.lines[0].startswith(begins), self.lines[0]
        return self.lines.pop(0)

    def read(self, name):
        path = os.path.join(self.pay, name)
        if not os.path.exists(path):
            return ""  # the gateway has just been started
        with open(path) as f:
            return f.read()

    def executed(self):
        with urllib.request.urlopen("http://127.0.0.1:%d/orders" % self.service, timeout=60) as answer:
            return json.load(answer)["orders"]


def alert_fires(day):
    """The shipped rules in a real Prometheus, looking more often."""
    port, text = free_port(), {}
    for name in ("prometheus.yml", "idem.rules.yml"):
        with open(os.path.join(ROOT, "monitoring", name)) as f:
            text[name] = f.read().replace("127.0.0.1:7399", "127.0.0.1:%d" % day.http).replace("15s", "1s").replace(
                "idem_oldest_doubt_seconds > 60", "idem_oldest_doubt_seconds > 1")
        with open(os.path.join(day.home, name), "w") as f:
            f.write(text[name])
    with Process(["prometheus", "--config.file", day.home + "/prometheus.yml", "--storage.tsdb.path", day.home + "/tsdb",
                  "--web.listen-address", "127.0.0.1:%d" % port], ready=port):
        def firing():
            time.sleep(0.3)
            try:
                with urllib.request.urlopen("http://127.0.0.1:%d/api/v1/alerts" % port, timeout=10) as answer:
                    alerts = json.load(answer)["data"]["alerts"]
            except urllib.error.HTTPError as error:
                assert error.code == 503  # it listens, but is not ready yet
                return []
            return [a for a in alerts if a["labels"]["alertname"] == "IdemDoubt" and a["state"] == "firing"]
        return wait_until(firing, 90)


class Customers:
    """They order until they are stopped: which keys were acknowledged, with what."""

    def __init__(self, port):
        self.port, self.told, self.over = port, {}, False
        self.threads = [threading.Thread(target=self.order, args=(n,)) for n in range(3)]
        for thread in self.threads:
            thread.start()

    def order(self, n):
        for i in range(100000):
            if self.over:
                return
            got = ask(self.port, "order-%d-%d" % (n, i))
            if got.status == 201:
                self.told["order-%d-%d" % (n, i)] = got.body

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = True
        for thread in self.threads:
            thread.join()


@pytest.fixture(params=["journal", "postgres"])
def day(request):
    database = servers.Postgres() if request.param == "postgres" else None
    try:
        with folder() as where:
            day = Day(where, database.url if database else None)
            day.database = database
            try:
                yield day
            finally:
                day.shell.close()
    finally:
        if database:
            database.stop()


def back_up(day):
    """By the page for a journal, by the database's own tool for PostgreSQL: a way to restore it, which gives the URL; and its end."""
    backup, restore = day.next("idem backup"), day.next("idem restore")
    if not day.database:
        day.run(backup)
        return lambda: (day.run(restore), "journal:%s/restored" % day.pay)[1], lambda: None
    dump = day.pay + "/pay.dump"
    subprocess.run([day.database.bin + "pg_dump", "-Fc", "-f", dump, day.database.url], check=True)
    other = servers.Postgres()

    def load():
        subprocess.run([other.bin + "pg_restore", "--no-owner", "--exit-on-error", "-d", other.url, dump], check=True)
        return other.url
    return load, other.stop


def test_the_day(day):
    problem = json.loads(day.run(day.next("kill -STOP")))
    assert problem["status"] == 504 and problem["class"] == "outcome unknown" and problem["idempotency_key"] == "pay-7"
    instance = problem["instance"]
    assert alert_fires(day)
    assert re.match(r"\d+\w +request +1  \S+Z  anonymous pay-7  \(POST /orders\)\n$", day.run(day.next("idem doubts")))
    found = day.run(day.next("idem find pay-7"))
    assert re.fullmatch(r"request executing \S+Z \d+ anonymous pay-7\n", found)
    assert day.run(day.next("idem find urn:"), **{"urn:uuid:INSTANCE": instance}) == found
    assert 'id="pay-7"' in day.run(day.next("grep"), **{"urn:uuid:INSTANCE": instance})
    assert day.run(day.next("idem settle")).startswith("settled")
    day.run(day.next("examples/shop.py"))
    assert wait_until(lambda: listens(day.service))
    assert json.loads(day.run(day.next("curl"))) == {"paid": 7} and day.executed() == 0
    told = day.run(day.next("idem audit"))
    assert re.fullmatch(r'\S+Z owner settle anonymous pay-7 settled: doubt -> succeeded "ticket 4711: on the bank statement"\n', told), told

    with Customers(day.port) as customers:
        assert wait_until(lambda: len(customers.told) > 100)
        before = dict(customers.told)
        load, end = back_up(day)
    executed = day.executed()
    day.run("kill $gateway; wait $gateway", code=0)
    try:
        with folder() as elsewhere, Gateway(elsewhere, day.service, store=load()) as gateway:
            for key, body in before.items():
                got = ask(gateway.port, key)
                assert got.status == 201 and got.body == body and got.replayed, (key, got)
            assert ask(gateway.port, "pay-7", body=b"amount=10", headers={"Content-Type": "application/x-www-form-urlencoded"}).json() == {"paid": 7}
            assert day.executed() == executed, "nothing ran again"
    finally:
        end()
