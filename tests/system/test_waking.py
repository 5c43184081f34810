"""Who waits at another engine than the first is woken by the store's notification: soon, without polling, and also
when the notification is lost or forbidden."""
import os
import re
import subprocess
import time
import urllib.request

import pytest

from chaos import Chaos
from crowd import engines, wake_times
from lib import IDEM, ROOT, patient, wait_until
from servers import Etcd, Postgres, Redis, RedisCluster, ZooKeeper

# Who is told is woken within milliseconds. Who is not polls every 50 ms, after 25 ms on the mean; a wait of 3 s then
# makes 60 reads. The safety net of who should be told looks once a second.
WOKEN, POLLED, READS = 0.02, 0.3, 60


class OnRedis:
    """How often records were read, how many are subscribed to, and how to cut that, on one server or several."""

    def __init__(self, server):
        self.server, self.url = server, patient(server.url)
        self.nodes = getattr(server, "nodes", [server])

    def reads(self):
        lines = [line for node in self.nodes for line in node.ask("info", "commandstats").splitlines()]
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_get:"))

    def subscribed(self):
        return sum(len(node.ask("pubsub", "shardchannels").split()) for node in self.nodes)

    def cut(self):
        for node in self.nodes:
            node.ask("client", "kill", "type", "pubsub")


class OnPostgres:
    LOCKS = "from pg_locks where locktype = 'advisory' and mode = 'ShareLock'"

    def __init__(self):
        self.server = Postgres()
        self.url = patient(self.server.url)
        subprocess.run([IDEM, "store", "init", self.server.url], check=True, stdout=subprocess.DEVNULL)

    def reads(self):
        time.sleep(2)  # a server counts with a delay
        return int(self.server.sql("select idx_scan from pg_stat_user_indexes where indexrelname = 'idem_record_pkey'"))

    def subscribed(self):
        return int(self.server.sql("select count(*) " + self.LOCKS))

    def cut(self):
        self.server.sql("select pg_terminate_backend(pid) " + self.LOCKS)


class ThroughProxy:
    """A store whose connections can be cut, those of the watch among them."""

    def __init__(self, server):
        self.server = server
        self.proxy = Chaos(server.port)
        self.url = patient(server.url.replace(str(server.port), str(self.proxy.port)))

    def cut(self):
        self.proxy.close_pairs()

    def stop(self):
        self.proxy.stop()
        self.server.stop()


class OnEtcd(ThroughProxy):
    def figure(self, name):
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % self.server.port, timeout=20) as page:
            return float(re.search(r"^%s (\S+)" % name, page.read().decode(), re.M).group(1))

    def reads(self):
        return self.figure("etcd_mvcc_range_total")

    def subscribed(self):
        return self.figure("etcd_debugging_mvcc_watcher_total")


class OnZooKeeper(ThroughProxy):
    def received(self):
        return int(re.search(r"Received: (\d+)", self.server.says("srvr")).group(1))

    def reads(self):
        """A quarter of all that it receives: a look is a sync and a read, and there are pings and questions of the time.
        First the engines end the pass over all shards that they make when they start."""
        def calm():
            before = self.received()
            time.sleep(1)
            return self.received() - before < READS / 3
        assert wait_until(calm, 60), "%d watches" % self.subscribed()
        return self.received() / 4

    def subscribed(self):
        return int(re.search(r"Total watches:(\d+)", self.server.says("wchs")).group(1))


@pytest.fixture(scope="module")
def etcd():
    store = OnEtcd(Etcd())
    yield store
    store.stop()


@pytest.fixture(scope="module")
def zookeeper():
    store = OnZooKeeper(ZooKeeper())
    yield store
    store.stop()


@pytest.fixture(scope="module")
def redis():
    server = Redis()
    yield OnRedis(server)
    server.stop()


@pytest.fixture(scope="module")
def cluster():
    servers = RedisCluster()
    yield OnRedis(servers)
    servers.stop()


@pytest.fixture(scope="module")
def postgres():
    store = OnPostgres()
    yield store
    store.server.stop()


@pytest.fixture(params=["redis", "cluster", "postgres", "etcd", "zookeeper"])
def store(request):
    return request.getfixturevalue(request.param)


def median(times):
    return times[len(times) // 2]


def begin(one, two, scope):
    """A request that runs at one engine and is waited for at the other."""
    a, b = one.client(), two.client()
    fence = a("BEGIN", scope, "x")[1]
    b.send("BEGIN", scope, "x", "WAIT", 60000)
    return a, b, fence


def finish(a, b, scope, fence):
    """How long the other one waits for the answer, once this one has it."""
    assert a("FINISH", scope, "x", fence, "SUCCEEDED", "for both")[0] == "ok"
    start = time.monotonic()
    assert b.read()[4] == "for both"
    return time.monotonic() - start


def test_who_waits_at_another_engine_is_woken_and_does_not_poll(store):
    with engines(store.url) as (one, two):
        times = wake_times(one, two)
        print("woken after %.1f ms (median), %.1f ms (longest)" % (median(times) * 1000, times[-1] * 1000))
        assert median(times) < WOKEN
        a, b, fence = begin(one, two, "still")
        assert wait_until(lambda: store.subscribed() == 1)
        time.sleep(1)
        before = store.reads()
        time.sleep(3)
        assert store.reads() - before < READS / 5
        finish(a, b, "still", fence)
        assert wait_until(lambda: store.subscribed() == 0)


ENDS = {"finish": "idem.finish('%s', 'x', %d, 'succeeded', 'done')", "release": "idem.release('%s', 'x', %d)"}


@pytest.mark.parametrize("how", ENDS)
def test_a_service_notifies_in_its_transaction_if_somebody_waits(how, postgres):
    def end(scope, fence):
        return postgres.server.sql("listen idem_wake; select " + ENDS[how] % (scope, fence))

    with engines(postgres.url) as (one, two):
        fence = one.client()("BEGIN", "nobody-" + how, "x")[1]
        assert end("nobody-" + how, fence) == "ok"
        a, b, fence = begin(one, two, "somebody-" + how)
        assert wait_until(lambda: postgres.subscribed() == 1)
        assert "notification \"idem_wake\"" in end("somebody-" + how, fence)
        assert b.read()[0] == ("replay" if how == "finish" else "started")


def test_a_subscription_that_is_cut_is_made_again(store):
    with engines(store.url) as (one, two):
        a, b, fence = begin(one, two, "cut")
        assert wait_until(lambda: store.subscribed() == 1)
        store.cut()
        finish(a, b, "cut", fence)
        a, b, fence = begin(one, two, "cut again")
        assert wait_until(lambda: store.subscribed() == 1)
        store.cut()
        assert wait_until(lambda: store.subscribed() == 1)
        finish(a, b, "cut again", fence)
        assert median(wake_times(one, two, rounds=9)) < WOKEN


ACL = ("on", ">s3cret", "~idem:*", "+@all")


def as_user(redis, name):
    return patient(redis.server.url.replace("://", "://%s:s3cret@" % name))


def test_the_account_of_the_docs_is_woken(redis):
    with open(os.path.join(ROOT, "docs/stores.md")) as f:
        rights = re.search(r"ACL SETUSER idem on >\S+ (.*)", f.read()).group(1)
    redis.server.ask("acl", "setuser", "idem", "on", ">s3cret", *rights.split())
    with engines(as_user(redis, "idem")) as servers:
        assert median(wake_times(*servers, rounds=9)) < WOKEN
        assert not any("may not publish" in server.output() for server in servers)


def test_an_account_that_may_not_publish_polls(redis):
    redis.server.ask("acl", "setuser", "quiet", *ACL)
    with engines(as_user(redis, "quiet")) as servers:
        assert median(wake_times(*servers)) < POLLED
        assert redis.subscribed() == 0
        for server in servers:
            assert wait_until(lambda: "may not publish and subscribe" in server.output())
            assert server.output().count("may not publish") == 1


def test_a_notification_that_never_comes_is_not_needed(redis):
    redis.server.ask("acl", "setuser", "quiet", *ACL)
    with engines(as_user(redis, "quiet"), 1) as (one,), engines(redis.url, 1) as (two,):
        a, b, fence = begin(one, two, "never")
        assert wait_until(lambda: redis.subscribed() == 1)
        assert finish(a, b, "never", fence) < 30
