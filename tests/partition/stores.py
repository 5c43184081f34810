"""The stores that the programme breaks, each on machines of its own. A rig has

    urls        the store's URL, for one engine after the other
    servers     its servers; .machine says where each runs
    primary()   the server that a fault hits: it answers the clients, or leads the others
    fail_over(victim)   what an operator does meanwhile, if the store does not do it alone
    recover(victim)     start it again, or make it one of the others; returns when all is well

and `holds`: its row in docs/stores.md says that no acknowledged record is lost.
"""
import os
import subprocess

import servers
from lib import IDEM, wait_until


class Rig:
    holds = True
    disk_mib = None
    faults = ("clean", "one-way", "flapping", "delay", "kill", "pause")

    def flags(self, where):
        """Of an engine whose folder this is."""
        return () if self.holds else ("--epoch-file", os.path.join(where, "epoch"))

    def primary(self):
        return self.servers[0]

    def fail_over(self, victim):
        pass

    def recover(self, victim):
        if victim.process.poll() is not None:
            victim.start()

    def stop(self):
        for server in self.servers:
            server.stop()


class Sentinel(Rig):
    """Two replicas; every write waits for both, so whichever takes over has it."""
    version, options = "installed", "?replicas=2"

    def __init__(self, place):
        self.all = servers.RedisWithSentinels(self.version)
        self.servers = self.all.nodes
        self.urls = [self.all.url + self.options]

    def primary(self):
        return wait_until(self.all.primary, 60, 0.2)

    def recover(self, victim):
        """The Sentinels make replicas of all the others."""
        for server in self.all.nodes + self.all.sentinels:
            if server.process.poll() is not None:
                server.start()
        assert wait_until(lambda: self.all.primary() and "connected_slaves:2" in
                          self.all.primary().ask("info", "replication"), 90, 0.2), "the replicas do not come back"

    def stop(self):
        self.all.stop()


class Sentinel8(Sentinel):
    version = "redis-8"


class Etcd(Rig):
    faults = (*Rig.faults, "clock")

    def __init__(self, place):
        self.all = servers.Etcds()
        self.servers, self.urls = self.all.nodes, [self.all.url]

    def primary(self):
        return wait_until(self.all.leader, 60, 0.2)

    def recover(self, victim):
        if victim.process.poll() is not None:
            victim.start(wait=False)
        victim.wait_until(victim.is_ok)


RIGS = {"redis-sentinel": Sentinel, "redis-8-sentinel": Sentinel8, "etcd": Etcd}
