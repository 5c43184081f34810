"""The stores that the programme breaks, each on machines of its own. A rig has

    urls        the store's URL, for one engine after the other
    primary()   the server that a fault hits: it answers the clients, or leads the others
    fail_over(victim)   what an operator does meanwhile, if the store does not do it alone
    recover(victim)     the fault is over: start it again, or make it one of the others; returns when all is well

and says what its row in docs/stores.md promises: it `holds`, so no acknowledged record is lost, or it does not, and the servers have an
epoch-file to notice that. A `planted` one does not hold and has no epoch-file: the checker must find that.
"""
import os
import shutil
import subprocess

import servers
from lib import IDEM, wait_until

NETWORK = ("clean", "one-way", "flapping", "delay")


class Rig:
    holds, planted = True, False
    faults = (*NETWORK, "kill", "pause")
    engines_have_the_clock = False
    hold = 0  # seconds that a fault lasts at least

    @classmethod
    def prepare(cls):
        """What needs the host's network: the namespaces have no way out."""

    def flags(self, where):
        """Of an engine whose folder this is."""
        return () if self.holds or self.planted else ("--epoch-file", os.path.join(where, "epoch"))

    def fail_over(self, victim):
        pass

    def recover(self, victim):
        if victim.process.poll() is not None:
            victim.start()

    def save(self):
        """Keep a copy of the primary's files. It is stopped meanwhile; and the other one for good, so that only one goes back."""
        self.new.kill()
        self.old.kill()
        subprocess.run(["cp", "-a", self.old.folder, self.old.folder + ".old"], check=True)
        self.old.start()

    def go_back(self):
        self.old.kill()
        shutil.rmtree(self.old.folder)
        os.rename(self.old.folder + ".old", self.old.folder)
        self.old.start()

    def init(self):
        subprocess.run([IDEM, "store", "init", self.urls[0]], check=True, stdout=subprocess.DEVNULL, timeout=60)


class Sentinel(Rig):
    """Two replicas; every write waits for both, so whichever takes over has it."""
    version = "installed"
    faults = (*Rig.faults, "full")

    def __init__(self, dice):
        self.all = servers.RedisWithSentinels(self.version)
        self.urls = [self.all.url + "?replicas=2"]

    def primary(self):
        return wait_until(self.all.primary, 60, 0.2)

    def recover(self, victim):
        """The Sentinels make replicas of all the others."""
        for server in self.all.nodes + self.all.sentinels:
            if server.process.poll() is not None:
                server.start()
        assert wait_until(self.is_whole, 90, 0.2), "the replicas do not come back"

    def is_whole(self):
        primary = self.all.primary()
        told = primary.ask("info", "replication") if primary else ""
        return "role:master" in told and told.count("state=online") == 2


class Sentinel8(Sentinel):
    version = "redis-8"

    @classmethod
    def prepare(cls):
        servers.redis_program(cls.version)


class Redis(Rig):
    """A primary and a replica that nothing waits for."""
    holds = False
    faults = ("lag", "rollback")

    def __init__(self, dice):
        self.old, self.new = servers.Redis(), servers.Redis()
        self.new.follow(self.old)
        self.urls = ["redis://%s:%d,%s:%d?replicas=0" % (self.old.host, self.old.port, self.new.host, self.new.port)]

    def primary(self):
        return self.old

    def fail_over(self, victim):
        self.new.promote()

    def recover(self, victim):
        pass


class RedisPlanted(Redis):
    planted = True


class Cluster(Rig):
    """Three shards with a replica each; every write waits for the replica."""

    def __init__(self, dice):
        self.dice = dice
        self.all = servers.RedisCluster(replicas=1, node_timeout=3000)
        self.urls = [self.all.url + "?replicas=1"]

    def primary(self):
        return self.all.owner(self.dice.randrange(16384))

    def recover(self, victim):
        super().recover(victim)
        assert wait_until(self.is_whole, 90, 0.2), "the cluster does not become whole"

    def is_whole(self):
        told = [node.ask("info", "replication", check=False) for node in self.all.nodes]
        return sum("role:master" in text and text.count("state=online") == 1 for text in told) == 3 and all(
            "cluster_state:ok" in node.ask("cluster", "info", check=False) for node in self.all.nodes)


class Members(Rig):
    """Three servers that elect a leader."""
    faults = (*Rig.faults, "full", "clock")

    def __init__(self, dice):
        self.all = self.cluster()
        self.urls = [self.all.url]

    def primary(self):
        return wait_until(self.all.leader, 60, 0.2)

    def recover(self, victim):
        for node in self.all.nodes:
            if node.process.poll() is not None:
                self.start(node)
        self.wait_for_all()

    def wait_for_all(self):
        for node in self.all.nodes:
            node.wait_until(lambda: self.serves(node))


class Etcd(Members):
    """Without a clock of its own: the engines' machines have it."""
    engines_have_the_clock = True
    cluster = servers.Etcds

    def start(self, node):
        node.start(wait=False)

    def serves(self, node):
        return node.is_ok()


class EtcdBackup(Etcd):
    """All three go back to the same moment, as a restored snapshot does."""
    holds = False
    faults = ("rollback",)

    def save(self):
        self.swap_files(lambda node: subprocess.run(["cp", "-a", node.folder, node.folder + ".old"], check=True))

    def go_back(self):
        def put_back(node):
            shutil.rmtree(node.folder)
            os.rename(node.folder + ".old", node.folder)
        self.swap_files(put_back)

    def swap_files(self, change):
        for node in self.all.nodes:
            node.kill()
        for node in self.all.nodes:
            change(node)
            self.start(node)
        self.wait_for_all()


class ZooKeeper(Members):
    cluster = servers.ZooKeepers

    def start(self, node):
        node.start()

    def serves(self, node):
        return "Mode: " in node.says("srvr")


class Postgres(Rig):
    """A standby that the primary waits for. The server that takes over from a primary which may still run stops it before it comes back."""
    synchronous = True
    faults = (*Rig.faults, "full", "clock")

    def __init__(self, dice):
        self.old = servers.Postgres()
        self.new = servers.PostgresStandby(self.old, self.synchronous)
        self.promoted = False
        self.urls = ["postgres://idem:secret@%s:%d,%s:%d/postgres?target_session_attrs=read-write"
                     % (self.old.host, self.old.port, self.new.host, self.new.port)]
        self.init()

    def primary(self):
        return self.old

    def fail_over(self, victim):
        self.new.promote()
        self.promoted = True

    def recover(self, victim):
        if not self.promoted:
            return super().recover(victim)
        victim.machine.kill()
        victim.process.wait()
        victim.follow(self.new, self.synchronous)
        self.old, self.new, self.promoted = self.new, self.old, False


class PostgresAsync(Postgres):
    holds, synchronous = False, False
    faults = ("lag", "rollback")


class PostgresPlanted(PostgresAsync):
    planted = True
    faults = ("lag",)


class MariaDB(Rig):
    """A primary with a replica. The clients know one address, which moves at a failover."""
    holds = False
    address = "10.77.0.200"
    faults = ("lag", "rollback")

    def __init__(self, dice):
        log = ("log-bin", "sync-binlog=1", "binlog-format=ROW", "log-bin-trust-function-creators=1", "bind-address=0.0.0.0")
        self.old, self.new = (servers.MariaDB("server-id=%d" % i, "port=3306", *log) for i in (1, 2))
        self.old.sql("grant replication slave on *.* to idem@'%'")
        self.new.sql("change master to master_host='%s', master_port=3306, master_user='idem', master_password='secret', "
                     "master_use_gtid=slave_pos; set global gtid_slave_pos = '%s'; start slave"
                     % (self.old.host, self.old.sql("select @@gtid_current_pos")))
        self.old.machine.take(self.address)
        self.urls = ["mysql://idem:secret@%s:3306/shop" % self.address]
        self.init()
        self.new.wait_until(lambda: self.new.sql("show tables like 'idem_record'"))

    def primary(self):
        return self.old

    def fail_over(self, victim):
        self.new.sql("stop slave; reset slave all")
        victim.machine.give_up(self.address)
        self.new.machine.take(self.address)

    def recover(self, victim):
        pass


class Galera(Rig):
    """Three nodes, an engine on each."""

    def __init__(self, dice):
        self.dice = dice
        self.all = servers.Galera()
        self.urls = [node.url for node in self.all.nodes]
        self.init()

    def primary(self):
        return self.dice.choice(self.all.nodes)

    def recover(self, victim):
        if victim.process.poll() is not None:
            victim.rejoin()
        for node in self.all.nodes:
            node.wait_until(lambda: node.is_ready() and node.status("cluster_size") == "3", 120)


RIGS = {"redis-sentinel": Sentinel, "redis-8-sentinel": Sentinel8, "redis-cluster": Cluster, "redis-async": Redis,
        "redis-planted": RedisPlanted, "postgres": Postgres, "postgres-async": PostgresAsync, "postgres-planted": PostgresPlanted,
        "etcd": Etcd, "etcd-backup": EtcdBackup, "zookeeper": ZooKeeper, "mariadb": MariaDB, "galera": Galera}
