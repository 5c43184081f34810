"""An operator's day, played from its page, on a journal and on PostgreSQL: a payment in doubt is found by the customer's key and by
the instance of the problem, settled, told to the client, and in the audit; a backup taken under load is restored elsewhere, and
nothing that was acknowledged is missing or runs again."""
import json
import os
import re
import subprocess
import threading
import time
import urllib.request

import pytest

import servers
from gateway import *
from lib import IDEM, ROOT, Process, folder, free_port, wait_until

PAGES = ["docs/operators-day.md", "docs/operators-day.zh-CN.md"]


def lines(page):
    with open(os.path.join(ROOT, page)) as f:
        return re.findall(r"^    \$ (.*)$", f.read(), re.M)


def test_both_pages_have_the_same_commands():
    one, two = (["idem" if "--reason" in line else line for line in lines(page)] for page in PAGES)
    assert one == two and len(one) == 7


class Day:
    """The page's gateway with this test's places."""

    def __init__(self, where, ledger, store):
        self.where, self.store, self.ledger = where, store, ledger
        self.http, self.socket, self.log = free_port(), where + "/s", where + "/access.log"
        self.gateway = Gateway(where, ledger.port, "--http", "127.0.0.1:%d" % self.http, "--access-log", self.log, "--log-keys", "on",
                               "--lease", "1s", store=store, socket=self.socket)

    def run(self, line, **words):
        """A line of the page; what it said."""
        line = line.replace("/run/pay/idem.sock", self.socket).replace("/var/log/pay/access.log", self.log)
        for place in ("/var/lib/pay-new", "/var/lib/pay", "/backup/pay"):
            line = line.replace(place, self.where + "/" + place.replace("/", "-")[1:])
        for word, value in words.items():
            line = line.replace(word, value)
        env = {**os.environ, "PATH": os.path.dirname(IDEM) + ":" + os.environ["PATH"]}
        done = subprocess.run(["sh", "-c", line], env=env, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout


def alert_fires(day):
    """The shipped rules in a real Prometheus, looking more often."""
    port, text = free_port(), {}
    for name in ("prometheus.yml", "idem.rules.yml"):
        with open(os.path.join(ROOT, "monitoring", name)) as f:
            text[name] = f.read().replace("127.0.0.1:7399", "127.0.0.1:%d" % day.http).replace("15s", "1s").replace(
                "idem_oldest_doubt_seconds > 60", "idem_oldest_doubt_seconds > 1")
        with open(os.path.join(day.where, name), "w") as f:
            f.write(text[name])
    with Process(["prometheus", "--config.file", day.where + "/prometheus.yml", "--storage.tsdb.path", day.where + "/tsdb",
                  "--web.listen-address", "127.0.0.1:%d" % port], ready=port):
        def firing():
            time.sleep(0.3)
            with urllib.request.urlopen("http://127.0.0.1:%d/api/v1/alerts" % port, timeout=10) as answer:
                alerts = json.load(answer)["data"]["alerts"]
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
    with folder() as where, Ledger(where) as ledger:
        if database:
            subprocess.run([IDEM, "store", "init", database.url], check=True, stdout=subprocess.DEVNULL)
        day = Day(where, ledger, database.url if database else "journal:%s/var-lib-pay" % where)
        day.database = database
        try:
            with day.gateway:
                yield day
        finally:
            if database:
                database.stop()


def back_up(day, backup, restore):
    """By the page for a journal, by the database's own tool for PostgreSQL: the URL of what was restored, and a way to stop it."""
    if not day.database:
        day.run(backup)
        return lambda: (day.run(restore), "journal:%s/var-lib-pay-new" % day.where)[1], lambda: None
    dump = day.where + "/pay.dump"
    subprocess.run([day.database.bin + "pg_dump", "-Fc", "-f", dump, day.database.url], check=True)
    other = servers.Postgres()

    def load():
        subprocess.run([other.bin + "pg_restore", "--no-owner", "--exit-on-error", "-d", other.url, dump], check=True)
        return other.url
    return load, other.stop


def test_the_day(day):
    doubts, find, grep, settle, audit, backup, restore = lines(PAGES[0])
    port = day.gateway.port
    first = ask(port, "pay-7", x_way="half-body")  # the service is cut off in the middle of its answer
    assert first.status == 504 and first.problem == "outcome-unknown"
    instance = first.json()["instance"]
    assert first.json()["idempotency_key"] == "pay-7" and re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", instance)

    assert alert_fires(day)
    assert "pay-7" in day.run(doubts)
    scope = day.run(find).split()[-2]
    assert 'id="pay-7"' in day.run(grep, **{"urn:uuid:INSTANCE": instance}) and scope in day.run(grep, **{"urn:uuid:INSTANCE": instance})
    assert day.run(settle, SCOPE=scope).startswith("settled")
    again = ask(port, "pay-7", x_way="half-body")
    assert again.status == 201 and again.json() == {"paid": 7} and again.replayed
    assert day.ledger.executions("pay-7") == 1
    told = day.run(audit)
    assert "pay-7" in told and "doubt -> succeeded" in told and "ticket 4711: on the bank statement" in told

    with Customers(port) as customers:
        assert wait_until(lambda: len(customers.told) > 100)
        before = dict(customers.told)
        load, end = back_up(day, backup, restore)
    day.gateway.stop()
    try:
        with folder() as elsewhere, Gateway(elsewhere, day.ledger.port, store=load()) as gateway:
            for key, body in before.items():
                got = ask(gateway.port, key)
                assert got.status == 201 and got.body == body and got.replayed, (key, got)
                assert day.ledger.executions(key) == 1
            assert ask(gateway.port, "pay-7", x_way="half-body").json() == {"paid": 7}
    finally:
        end()
