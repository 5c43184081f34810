"""PostgreSQL under Patroni, which promotes a standby by itself: three machines, each with a PostgreSQL, a Patroni and an etcd, as
most people have it."""
import contextlib
import json
import os
import pwd
import re
import subprocess
import urllib.request

import servers
from lib import wait_until
from stores import RIGS, Rig

TTL = 20  # the shortest that Patroni documents


def dcs_of_this_version():
    """Its section of the configuration, and etcd's flags. With etcd's API v3 Patroni before 3.0.3 loses writes: a leader that was
    paused takes the key back from the one that was promoted meanwhile."""
    said = subprocess.run(["patroni", "--version"], text=True, stdout=subprocess.PIPE, check=True).stdout
    old = tuple(map(int, re.findall(r"\d+", said)[:3])) < (3, 0, 3)
    return ("etcd", ["--enable-v2=true"]) if old else ("etcd3", [])


class Patroni(servers.Server):
    """And the PostgreSQL that it starts. Both are in a process namespace as in a container: there Patroni is process 1, and reaps."""

    def __init__(self, name, machine, section, etcds, dcs):
        super().__init__("patroni", machine=machine)
        self.owner = pwd.getpwnam("postgres")
        os.chown(self.folder, self.owner.pw_uid, self.owner.pw_gid)
        top = "/usr/lib/postgresql/"
        self.bin = top + sorted(os.listdir(top), key=float)[-1] + "/bin/"
        self.member, self.rest = name, servers.free_port()
        self.url = "postgres://idem:secret@%s:%d/postgres" % (self.host, self.port)
        user = {"username": "idem", "password": "secret"}
        self.config = os.path.join(self.folder, "patroni.yml")
        with open(self.config, "w") as f:  # YAML knows JSON
            json.dump({
                "scope": "idem", "name": name,
                "restapi": dict.fromkeys(("listen", "connect_address"), "%s:%d" % (self.host, self.rest)),
                section: {"hosts": ["%s:%d" % (e.host, e.port) for e in etcds]},
                "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"]},
                "postgresql": {
                    **dict.fromkeys(("listen", "connect_address"), "%s:%d" % (self.host, self.port)),
                    "data_dir": os.path.join(self.folder, "data"), "bin_dir": self.bin, "pgpass": os.path.join(self.folder, "pgpass"),
                    "authentication": {"superuser": user, "replication": user, "rewind": user},
                    "pg_hba": ["local all all trust", "host all all all trust", "host replication all all trust"],
                    "parameters": {"unix_socket_directories": self.folder}},
            }, f)
        self.start()

    def start(self):
        self.spawn("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "setpriv", "--reuid=%d" % self.owner.pw_uid,
                   "--regid=%d" % self.owner.pw_gid, "--clear-groups", "/usr/bin/patroni", self.config)

    def says(self, role):
        """Whether it has this role: "primary", "replica", "sync"."""
        with contextlib.suppress(OSError), urllib.request.urlopen("http://%s:%d/%s" % (self.host, self.rest, role), timeout=2) as answer:
            return answer.status == 200
        return False

    def watchers(self):
        """Patroni's own processes."""
        def command(pid):
            with contextlib.suppress(OSError), open("/proc/%d/cmdline" % pid) as f:
                return f.read()
            return ""
        return [pid for pid in self.machine.pids() if "/usr/bin/patroni\0" in command(pid)]

    def is_writable(self):
        return self.sql("select pg_is_in_recovery()") == "f"

    def sql(self, text):
        done = subprocess.run([self.bin + "psql", "-qAt", self.url + "?connect_timeout=2", "-c", text], text=True, timeout=20,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout.strip() if done.returncode == 0 else ""


class PostgresPatroni(Rig):
    """Every commit waits for a standby, and Patroni promotes no other one."""
    faults = (*Rig.faults, "hang")
    hold = 2 * TTL  # at least; a standby takes over after TTL
    dcs = {"synchronous_mode": True, "synchronous_mode_strict": True}

    def __init__(self, dice):
        hosts = [servers.machines("patroni") for _ in range(3)]
        section, flags = dcs_of_this_version()
        self.etcds = servers.Etcds(hosts, flags)
        dcs = {"ttl": TTL, "loop_wait": 2, "retry_timeout": 5, **self.dcs,
               "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 120, "shared_buffers": "64MB"}}}
        self.nodes = [Patroni("p%d" % (i + 1), host, section, self.etcds.nodes, dcs) for i, host in enumerate(hosts)]
        self.wait_for_all()
        self.urls = ["postgres://idem:secret@%s/postgres?target_session_attrs=read-write"
                     % ",".join("%s:%d" % (node.host, node.port) for node in self.nodes)]
        self.init()

    def primary(self):
        return wait_until(lambda: next((node for node in self.nodes if node.says("primary")), None), 60, 0.2)

    def recover(self, victim):
        for server in (*self.etcds.nodes, *self.nodes):
            if server.process.poll() is not None:
                server.start(*([False] if server in self.etcds.nodes else []))
        self.wait_for_all()

    def wait_for_all(self):
        assert wait_until(self.is_whole, 120, 0.5), "the standbys do not come: " + ", ".join(
            "%s: %s" % (node.member, open(os.path.join(node.folder, "log"), errors="replace").read()[-1500:]) for node in self.nodes)

    def is_whole(self):
        primary = next((node for node in self.nodes if node.says("primary")), None)
        streaming = primary and primary.sql("select count(*) from pg_stat_replication where state = 'streaming'") == "2"
        return streaming and (not self.dcs or any(node.says("sync") for node in self.nodes))  # it may take over


class PostgresPatroniAsync(PostgresPatroni):
    """As Patroni is when nothing is set."""
    holds = False
    faults = ("lag",)
    dcs = {}


RIGS["postgres-patroni"] = PostgresPatroni
RIGS["postgres-patroni-async"] = PostgresPatroniAsync
