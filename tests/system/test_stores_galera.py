"""mysql:// on a Galera cluster of three MariaDBs, with an engine on each node. Waits more than it works."""
import os
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from crowd import Crowd, check_expiry_race, check_lease_ends, check_locks_and_scan, check_waiting_is_woken, engines
from lib import IDEM, SOAK, Error, encode, patient, wait_until
from servers import Galera

ROUNDS = 2000 if SOAK else 60


@pytest.fixture(scope="module")
def cluster():
    cluster = Galera()
    try:
        subprocess.run([IDEM, "store", "init", cluster.url], check=True, stdout=subprocess.DEVNULL, timeout=60)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def idems(cluster):
    with engines([patient(node.url) for node in cluster.nodes]) as servers:
        yield servers


def conflicts(cluster):
    """How many transactions the cluster has rolled back because of another node's."""
    return sum(int(node.status(name)) for node in cluster.nodes for name in ("local_cert_failures", "local_bf_aborts"))


def connections(cluster):
    """Of engines, on every node."""
    return [set(node.sql("select id from information_schema.processlist where user = 'idem'").split()) for node in cluster.nodes]


def records(node):
    return node.sql("set wsrep_sync_wait = 15; select hex(key_hash), rev, state, hex(result) from idem_record order by 1")


def test_the_same_request_at_three_nodes_starts_once_and_nobody_is_told_lost(cluster, idems):
    clients = [server.client() for server in idems]
    before, links = conflicts(cluster), connections(cluster)
    for i in range(ROUNDS):
        scope = "same-%d-%s" % (i, os.urandom(4).hex())
        for client in clients:
            client.raw(b"".join(encode("BEGIN", scope, id) for id in range(20)))
        answers = [[client.read() for _ in range(20)] for client in clients]
        for told in zip(*answers):
            assert not [a for a in told if isinstance(a, Error)], told
            assert sorted(a[0] for a in told) == ["busy", "busy", "started"], told
    assert conflicts(cluster) > before  # or this has tested nothing
    # After a commit with an unknown outcome an engine connects again: none had one.
    assert all(old and old <= new for old, new in zip(links, connections(cluster)))


def test_locks_that_three_nodes_fight_for_have_one_holder_each(cluster, idems):
    """Locks change, begin and end in one batch, so that nodes break each other's transactions off at any point. An UNLOCK is LOST if
    its commit was reported as refused and the lock has a new holder since. It must not be stale: nobody may take what is held."""
    scope, holders, wrong = "fight-" + os.urandom(4).hex(), {}, []
    names = ["%s-%d" % (scope, i) for i in range(30)]

    def fight(client, who):
        rolls = random.Random(who)
        for _ in range(ROUNDS):
            wanted = rolls.sample(names, 12)
            client.raw(b"".join(encode("LOCK", name, who, 600000) for name in wanted))
            mine = {}
            for name, told in zip(wanted, [client.read() for _ in wanted]):
                if isinstance(told, Error) or told[0] not in ("started", "busy"):
                    wrong.append((name, told))
                elif told[0] == "started":
                    wrong.extend([(name, "a second holder")] if holders.setdefault(name, who) != who else [])
                    mine[name] = told[1]
            for name in mine:
                holders.pop(name, None)
            client.raw(b"".join(encode("UNLOCK", name, fence) for name, fence in mine.items()))
            for name, told in zip(mine, [client.read() for _ in mine]):
                if told[0] != "ok" if not isinstance(told, Error) else told.word != "LOST":
                    there = "set wsrep_sync_wait = 15; select state, fence, subject, attempt from idem_record where id = '%s'" % name
                    wrong.append((name, told, mine[name], cluster.nodes[0].sql(there)))

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(fight, idems[i % 3].client(), str(i)) for i in range(6)]:
            done.result()
    assert not wrong, wrong[:5]


def test_a_node_that_is_behind_does_not_answer_from_what_it_has(cluster, idems):
    one, three = idems[0].client(), idems[2].client()
    scope, behind = "behind-" + os.urandom(4).hex(), Held(cluster.nodes[2], "flush tables with read lock; select 1")
    try:
        assert one("BEGIN", scope, "x")[0] == "started"
        three.send("GET", scope, "x")
        time.sleep(1)  # long enough to answer from what it has
    finally:
        behind.close()
    assert dict(zip(*[iter(three.read()[1:])] * 2))["state"] == "executing"
    assert three("BEGIN", scope, "x")[0] == "busy"


def test_a_cluster_whose_parts_may_go_on_alone_is_refused(cluster):
    node = cluster.nodes[1]
    newer = node.sql("show variables like 'wsrep_provider_pc_ignore_sb'")
    turn = "set global " + ("wsrep_provider_pc_ignore_sb = %s" if newer else "wsrep_provider_options = 'pc.ignore_sb=%s'")
    try:
        node.sql(turn % ("ON" if newer else "YES"))
        said = subprocess.run([IDEM, "get", "a", "b", "--store", node.url], text=True, stderr=subprocess.PIPE, timeout=60).stderr
        assert "pc.ignore_sb" in said and "unsafe=quorum" in said, said
    finally:
        node.sql(turn % ("OFF" if newer else "NO"))


class Held:
    """A session that has run a statement, and stays open with what it holds."""

    def __init__(self, node, statement):
        self.process = subprocess.Popen(["mariadb", "--no-defaults", "-uroot", "-S", node.socket, "-NBn"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdin.write(statement + ";\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def close(self):
        self.process.communicate(timeout=60)


@pytest.mark.parametrize("check", [check_waiting_is_woken, check_locks_and_scan, check_lease_ends, check_expiry_race],
                         ids=lambda check: check.__name__)
def test_engines_on_two_nodes_are_one(idems, check):
    check(*idems[:2])


def test_a_killed_node_loses_nothing_and_catches_up(cluster):
    victim, other = cluster.nodes[2], cluster.nodes[0]
    with engines([node.url for node in cluster.nodes]) as servers:
        crowd = Crowd(servers, threads=9)

        def fault():
            enough(crowd, 300)
            victim.kill()
            enough(crowd, 300)  # the other two go on
            assert other.status("cluster_size") == "2" and other.status("cluster_status") == "Primary"
            victim.rejoin()
            enough(crowd, 100)

        counts = crowd.run(1500 if not SOAK else 50000, meanwhile=fault).check()
        assert counts["started"] > 100, counts
    assert records(victim) == records(other) == records(cluster.nodes[1])


def enough(crowd, answers):
    before = crowd.answers
    assert wait_until(lambda: crowd.answers >= before + answers, 60)
