"""redis+sentinel:// against real Sentinels, and several hosts without them: who is believed to be the primary.
Waits more than it works.
"""
import os
import subprocess
import time

import pytest

from crowd import Crowd, engines
from lib import IDEM, Server, folder, free_port, patient, run_c_test, wait_until
from servers import Redis, RedisWithSentinels


@pytest.fixture(scope="module")
def watched():
    servers = RedisWithSentinels()
    yield servers
    servers.stop()


def said(url):
    return subprocess.run([IDEM, "get", "a", "b", "--store", url], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60).stdout


def finish_one(url, scope):
    with folder() as where, Server(where, store=patient(url)) as idem:
        client = idem.client()
        fence = client("BEGIN", scope, "order")[1]
        assert client("FINISH", scope, "order", fence, "SUCCEEDED", "paid")[0] == "ok"


def test_the_contract_holds(watched):
    run_c_test("contract_test", watched.url + "?wait_ms=10000")


@pytest.mark.parametrize("sentinel, words", [
    (False, "this is a Sentinel: use redis+sentinel://"),
    (True, "this is not a Sentinel"),
])
def test_the_wrong_port_is_explained(watched, sentinel, words):
    url = ("redis+sentinel://127.0.0.1:%d/mymaster" % watched.nodes[0].port if sentinel
           else "redis://127.0.0.1:%d" % watched.sentinels[0].port)
    assert words in said(url)


def test_what_the_url_must_say(watched):
    ports = [s.port for s in watched.sentinels]
    at = "redis+sentinel://" + ",".join("127.0.0.1:%d" % p for p in ports)
    assert "name the primary" in said(at)
    assert 'no primary named "other"' in said(at + "/other")
    assert "set replicas= to the number of replicas" in said(at + "/mymaster?replicas=0")
    alone = "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/mymaster" % (ports[0], free_port(), free_port())
    gone = alone.split(",")[1]
    assert 'name a primary "mymaster", and more than half must name the same one; start the others (%s: ' % gone in said(alone)
    away = "redis+sentinel://%s,%s,%s/mymaster" % (gone, gone.split(":")[0] + ":1", gone.split(":")[0] + ":2")
    assert "redis: none of the 3 Sentinels could be reached (%s: Connection refused); start them, or correct the addresses" % gone in said(away)
    assert "is that server running" not in said(away)


def test_a_replica_that_is_missing_is_named_each_time(watched):
    lost = watched.nodes[2]
    with folder() as where, Server(where, store=watched.url + "?replicas=2") as idem:
        client = idem.client()
        assert client("BEGIN", "missing", "0")[0] == "started"
        lost.kill()
        try:
            said, end = [], time.monotonic() + 2
            while time.monotonic() < end:
                said.append(str(client("BEGIN", "missing", str(len(said) + 1))))
                time.sleep(0.02)
        finally:
            lost.start()
            lost.follow(watched.nodes[0])
    primary = "redis 127.0.0.1:%d: 1 " % watched.nodes[0].port
    assert len(said) > 3 and all(primary in one for one in said), set(said)
    assert any("1 replica(s) connected, 2 must have every write" in one for one in said), set(said)


def test_an_old_primary_that_comes_back_is_not_believed():
    """The issue's case: hosts are named, no replicas=, and nobody has demoted the old primary yet."""
    old, new, third = [Redis() for _ in range(3)]
    scope = os.urandom(4).hex()
    try:
        new.follow(old)
        third.follow(old)
        hosts = "redis://" + ",".join("127.0.0.1:%d" % s.port for s in (old, new, third))
        with folder() as where, Server(where, store=patient(hosts)) as idem:
            fence = idem.client()("BEGIN", scope, "order", "LEASE", 600000)[1]
        assert wait_until(lambda: new.ask("DBSIZE") == old.ask("DBSIZE"))  # one of the two has confirmed it, perhaps the third
        old.kill()
        new.promote()
        third.follow(new)
        with folder() as where, Server(where, store=patient(hosts)) as idem:
            assert idem.client()("FINISH", scope, "order", fence, "SUCCEEDED", "paid")[0] == "ok"
            other = idem.client()("BEGIN", scope, "other")[1]
            assert idem.client()("FINISH", scope, "other", other, "SUCCEEDED", "paid")[0] == "ok"
        old.start()
        with folder() as where, Server(where, store=patient(hosts)) as idem:
            for id in ("other", "order"):
                assert idem.client()("BEGIN", scope, id)[0] == "replay"
    finally:
        for server in (old, new, third):
            server.stop()


def test_a_failover_is_followed_and_the_old_primary_not_believed():
    servers = RedisWithSentinels()
    scope = os.urandom(4).hex()
    try:
        old = servers.nodes[0]
        finish_one(servers.url, scope)

        def fail_over():
            time.sleep(0.7)
            old.kill()
            assert wait_until(lambda: servers.primary() not in (None, old), 120, 0.2)
            time.sleep(0.5)

        with engines(servers.url) as both:
            crowd = Crowd(both, patience=120).run(1000, meanwhile=fail_over)
            crowd.check()
            assert 1 < crowd.longest_pause() < 100
            finish_one(servers.url, scope + "-new")
            old.start()  # as a primary: nobody has told it yet
            with folder() as where, Server(where, store=patient(servers.url)) as idem:
                assert idem.client()("BEGIN", scope, "order")[0] == "replay"
                assert idem.client()("BEGIN", scope + "-new", "order")[0] == "replay"
    finally:
        servers.stop()
