"""Real servers for tests, started on loopback as children and stopped by pid.

tests/partition starts the same servers in network namespaces: see Loopback. Each start_X() returns an object with .url, .pid, .stop(), .kill() and .start()
again on the same data. Databases refuse to run as root, so they run as the user
that their Debian package made.
"""
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

from lib import IDEM, ROOT, free_port, listens


class Loopback:
    """Where servers run: the address that they listen on, how a program is started there, where their files are, and
    what their environment has beside this one's."""
    address, prefix, disk, env = "127.0.0.1", (), "/tmp", {}


def machines(kind):
    """The machine of the next server of this kind. tests/partition has a function of its own here."""
    return Loopback


class Server:
    """A child process with a data folder of its own."""

    def __init__(self, name, user=None, machine=None):
        self.name = name
        self.machine = machine or machines(name)
        self.host = self.machine.address
        self.folder = tempfile.mkdtemp(prefix="idem-" + name + "-", dir=self.machine.disk)
        self.port = free_port()
        self.process = None
        self.user = pwd.getpwnam(user) if user and os.getuid() == 0 else None
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)

    def run_as(self):
        """Temporary files in its own folder: a MariaDB that starts deletes those of another in the same place."""
        env = {"env": {**os.environ, "TMPDIR": self.folder}}
        if not self.user or self.machine.prefix:
            return env
        return {**env, "user": self.user.pw_uid, "group": self.user.pw_gid,
                "extra_groups": []}

    def there(self, command):
        """The command as it is started on the server's machine; nsenter needs to be root before it changes the user."""
        user = ["--setuid=%d" % self.user.pw_uid, "--setgid=%d" % self.user.pw_gid] if self.user else []
        env = ["env", *["%s=%s" % pair for pair in self.machine.env.items()]]
        return [*self.machine.prefix, *user, *env, *command] if self.machine.prefix else command

    def tool(self, *command):
        done = subprocess.run(self.there(command), cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, **self.run_as())
        assert done.returncode == 0, " ".join(command) + ":\n" + done.stdout
        return done.stdout

    def spawn(self, *command):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(self.there(command), cwd=self.folder, stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL,
                                            **self.run_as())

    def wait_until(self, ready, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            if ready():
                return self
            time.sleep(0.1)
        with open(os.path.join(self.folder, "log"), errors="replace") as log:
            raise AssertionError(self.name + " did not start:\n" + log.read()[-3000:])

    @property
    def pid(self):
        return self.process.pid

    def send(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        """As a power switch for the process; the data folder stays."""
        self.send(signal.SIGKILL)
        self.process.wait()

    def halt(self):
        """As it should be stopped; the data folder stays."""
        if self.process and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(self.stop_signal)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def stop(self):
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    stop_signal = signal.SIGTERM


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def authority(where, name, host="IP:127.0.0.1"):
    """A certificate authority, and a certificate that it signed for that host: the files."""
    at = lambda end: os.path.join(where, name + end)  # noqa: E731
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=idem " + name,
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",  # Python from 3.13 on insists
            "-keyout", at("-ca.key"), "-out", at("-ca.pem"))
    return (at("-ca.pem"), *certificate(at("-ca"), at(""), host=host))


def certificate(ca, to, name="127.0.0.1", host="IP:127.0.0.1"):
    """A certificate and its key, signed by the authority in these files."""
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" + name, "-keyout", to + ".key", "-out", to + ".csr")
    with open(to + ".ext", "w") as f:
        f.write("subjectAltName=%s\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n" % host)
    openssl("x509", "-req", "-in", to + ".csr", "-CA", ca + ".pem", "-CAkey", ca + ".key", "-CAcreateserial",
            "-days", "2", "-extfile", to + ".ext", "-out", to + ".pem")
    return to + ".pem", to + ".key"


def root(suite, *packages):
    """The folder with packages of another Debian suite; see scripts/root."""
    return subprocess.run([os.path.join(ROOT, "scripts/root"), suite, *packages], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()


# This machine's PostgreSQL (15 on Debian 12), and those of newer Debian suites.
POSTGRES_VERSIONS = {"installed": None, "postgres-17": "trixie", "postgres-18": "sid"}


class Postgres(Server):
    stop_signal = signal.SIGINT  # fast shutdown

    def __init__(self, *settings, version="installed"):
        """version: one of POSTGRES_VERSIONS."""
        super().__init__("postgres", "postgres")
        suite = POSTGRES_VERSIONS[version]
        top = (root(suite, "postgresql") if suite else "") + "/usr/lib/postgresql/"
        self.bin = top + sorted(os.listdir(top), key=float)[-1] + "/bin/"
        self.data = os.path.join(self.folder, "data")
        self.tool(self.bin + "initdb", "-D", self.data, "-A", "trust", "-U", "idem",
                  "-N", "--locale=C", "-E", "UTF8")
        if self.host != "127.0.0.1":
            with open(os.path.join(self.data, "pg_hba.conf"), "a") as f:
                f.write("host all all all trust\nhost replication all all trust\n")
        self.settings = settings
        self.url = "postgres://idem:secret@%s:%d/postgres" % (self.host, self.port)
        self.start()

    def start(self):
        options = ["port=%d" % self.port, "listen_addresses=" + self.host,
                   "unix_socket_directories=" + self.folder, "max_connections=120",
                   "shared_buffers=64MB", *self.settings]
        self.spawn(self.bin + "postgres", "-D", self.data,
                   *[part for o in options for part in ("-c", o)])
        return self.wait_until(lambda: subprocess.run(
            [self.bin + "psql", "-qAt", self.url, "-c", "select 1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0)

    def kill(self):
        """The children die too: they notice that the postmaster is gone."""
        super().kill()
        pid_file = os.path.join(self.data, "postmaster.pid")
        end = time.monotonic() + 60
        while time.monotonic() < end:  # until no backend holds the shared memory
            left = subprocess.run(["/usr/bin/pgrep", "-f", "^postgres: .*"],
                                  stdout=subprocess.PIPE, text=True).stdout.split()
            if not any(self.is_mine(pid) for pid in left):
                break
            time.sleep(0.05)
        if os.path.exists(pid_file):
            os.remove(pid_file)

    def follow(self, primary, synchronous=True):
        """Become its standby, with a copy of its files."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.settings = ("wal_retrieve_retry_interval=100ms",)
        self.tool(self.bin + "pg_basebackup", "-h", primary.host, "-p", str(primary.port), "-U", "idem", "-D", self.data,
                  "-R", "-c", "fast", "-X", "stream")
        self.start()
        self.primary = primary
        if synchronous:
            primary.sql("alter system set synchronous_standby_names = '*'")
            primary.sql("select pg_reload_conf()")
        state = "sync" if synchronous else "async"
        self.wait_until(lambda: primary.sql("select sync_state from pg_stat_replication") == state)

    def promote(self):
        self.sql("select pg_promote()")
        self.wait_until(lambda: self.sql("select pg_is_in_recovery()") == "f")

    def is_mine(self, pid):
        try:
            return os.readlink("/proc/%s/cwd" % pid) == self.data
        except OSError:
            return False

    def sql(self, text):
        done = subprocess.run([self.bin + "psql", "-qAt", "-v", "ON_ERROR_STOP=1",
                               self.url, "-c", text], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()


class PostgresStandby(Postgres):
    """A standby of a Postgres; from now on the primary waits for it at every commit."""

    def __init__(self, primary, synchronous=True):
        Server.__init__(self, "standby", "postgres")
        self.bin = primary.bin
        self.data = os.path.join(self.folder, "data")
        self.url = "postgres://idem:secret@%s:%d/postgres" % (self.host, self.port)
        self.follow(primary, synchronous)

    def receiver(self):
        """The process that receives what the primary writes, or None."""
        found = subprocess.run(["/usr/bin/pgrep", "-P", str(self.pid), "-f", "walreceiver"], stdout=subprocess.PIPE,
                               text=True).stdout.split()
        return int(found[0]) if found else None

    def stall(self):
        """Receive nothing any more. The connection to the primary stays."""
        self.wait_until(self.receiver)
        os.kill(self.receiver(), signal.SIGSTOP)

    def resume(self):
        os.kill(self.receiver(), signal.SIGCONT)

    def stop(self):
        if self.process.poll() is None and self.receiver():
            self.resume()
        super().stop()

    def take_over(self):
        """The primary is lost, and with it what this standby has not received: what lies in the sockets too."""
        self.primary.kill()
        receiver = self.receiver()
        self.send(signal.SIGKILL)
        if receiver:
            os.kill(receiver, signal.SIGKILL)
        self.kill()
        self.start()
        self.promote()


# This machine's MariaDB (10.11 on Debian 12), and one whose REPEATABLE READ refuses to lock what has changed.
MARIADB_VERSIONS = ["installed", "mariadb-11.8"]


class MariaDB(Server):
    def __init__(self, *settings, version="installed"):
        """version: one of MARIADB_VERSIONS."""
        super().__init__("mariadb", "mysql")
        self.usr = "/usr" if version == "installed" else root("trixie", "mariadb-server") + "/usr"
        self.data = os.path.join(self.folder, "data")
        self.socket = os.path.join(self.folder, "s")
        self.tool(self.usr + "/bin/mariadb-install-db", "--no-defaults", "--basedir=" + self.usr, "--datadir=" + self.data,
                  "--auth-root-authentication-method=normal", "--skip-test-db")
        self.settings = settings
        self.url = "mysql://idem:secret@%s:%d/shop" % (self.host, self.port)
        self.start()
        self.sql("create database shop; create user {0} identified by 'secret'; grant all on shop.* to {0}; "
                 "grant process, connection admin on *.* to {0}".format(self.account()), database="")

    def account(self):
        return "idem@'%s'" % ("127.0.0.1" if self.host == "127.0.0.1" else "%")

    def command(self, *more):
        return [self.usr + "/sbin/mariadbd", "--no-defaults", "--basedir=" + self.usr, "--datadir=" + self.data,
                "--port=%d" % self.port, "--bind-address=" + self.host,
                "--socket=" + self.socket, "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=64M", "--max-connections=150",
                "--skip-name-resolve", "--pid-file=" + self.folder + "/pid",
                *["--" + s for s in (*self.settings, *more)]]

    def start(self, *more):
        self.spawn(*self.command(*more))
        return self.wait_until(lambda: subprocess.run(
            [*self.client(), "-e", "select 1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0)

    def client(self):
        """Without TLS: MariaDB 11's client verifies certificates on a socket too, and does not know this server's authority."""
        return ["mariadb", "--no-defaults", "--skip-ssl", "-uroot", "-S", self.socket]

    def sql(self, text, database="shop"):
        done = subprocess.run([*self.client(), "-N", "-B", *([database] if database else [])],
                              input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()


class GaleraNode(MariaDB):
    """One of several MariaDBs that replicate to each other, on a copy of a stopped one's files."""

    def __init__(self, origin):
        Server.__init__(self, "galera", "mysql")
        self.usr = origin.usr
        self.data = os.path.join(self.folder, "data")
        self.socket = os.path.join(self.folder, "s")
        self.url = "mysql://idem:secret@%s:%d/shop" % (self.host, self.port)
        self.group = free_port()
        self.tool("cp", "-a", origin.data, self.data)

    def join(self, cluster, *how):
        options = ["gmcast.listen_addr=tcp://%s:%d" % (self.host, self.group),
                   "ist.recv_addr=%s:%d" % (self.host, free_port()), "gcache.size=32M"]
        self.settings = [
            "wsrep-on=ON", "wsrep-provider=/usr/lib/galera/libgalera_smm.so", "binlog-format=ROW",
            "innodb-autoinc-lock-mode=2", "wsrep-node-address=" + self.host, "wsrep-cluster-address=" + cluster,
            "wsrep-provider-options=" + ";".join(options)]
        self.start(*how)
        return self.wait_until(self.is_ready)

    def rejoin(self):
        """After a kill: it knows how far it came, and the others send it the rest."""
        before = os.path.getsize(os.path.join(self.folder, "log"))
        self.spawn(*self.command("wsrep-recover"))
        self.process.wait(60)
        with open(os.path.join(self.folder, "log"), errors="replace") as log:
            log.seek(before)
            self.start("wsrep-start-position=" + re.findall(r"Recovered position: *(\S+)", log.read())[-1])
        return self.wait_until(self.is_ready)

    def is_ready(self):
        try:
            return self.status("ready") == "ON"
        except AssertionError:  # it may break connections off while it joins
            return False

    def status(self, name):
        return self.sql("show status like 'wsrep_%s'" % name, database="").partition("\t")[2]


class Galera:
    """Three nodes, which start from the files of one that was alone, so that none has to send its own to another.
    .url and .sql() are the first one's."""

    def __init__(self):
        origin = MariaDB()
        origin.halt()
        alone = GaleraNode(origin)
        alone.join("gcomm://", "wsrep-new-cluster").halt()
        self.nodes = [alone, GaleraNode(alone), GaleraNode(alone)]
        origin.stop()
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        self.url, self.sql = self.nodes[0].url, self.nodes[0].sql

    def start(self):
        cluster = "gcomm://" + ",".join("%s:%d" % (node.host, node.group) for node in self.nodes)
        self.nodes[0].join(cluster, "wsrep-new-cluster")
        for node in self.nodes[1:]:
            node.join(cluster)
        self.nodes[0].wait_until(lambda: self.nodes[0].status("cluster_size") == "3")

    def stop(self):
        for node in self.nodes:
            node.stop()


class MySQL(Server):
    """Oracle's, which Debian has in sid."""

    def __init__(self, *settings):
        super().__init__("mysql", "mysql")
        self.usr = root("sid", "mysql-server") + "/usr"
        self.data = os.path.join(self.folder, "data")
        self.socket = os.path.join(self.folder, "s")
        self.settings = settings
        self.url = "mysql://idem:secret@%s:%d/shop" % (self.host, self.port)
        self.tool(*self.mysqld("--initialize-insecure"))
        self.start()
        self.sql("create database shop; create user idem@'127.0.0.1' identified by 'secret'; "
                 "grant all on shop.* to idem@'127.0.0.1'; grant process, connection_admin on *.* to idem@'127.0.0.1'",
                 database="")

    def mysqld(self, *more):
        return [self.usr + "/sbin/mysqld", "--no-defaults", "--basedir=" + self.usr, "--datadir=" + self.data,
                "--lc-messages-dir=" + self.usr + "/share/mysql", "--plugin-dir=" + self.usr + "/lib/mysql/plugin",
                "--secure-file-priv=NULL", *more]

    def start(self):
        self.spawn(*self.mysqld("--port=%d" % self.port, "--bind-address=127.0.0.1", "--socket=" + self.socket,
                                "--mysqlx=0", "--innodb-buffer-pool-size=64M", "--max-connections=150",
                                "--skip-name-resolve", "--pid-file=" + self.folder + "/pid",
                                "--log-bin-trust-function-creators=1", *["--" + s for s in self.settings]))
        return self.wait_until(lambda: subprocess.run([self.usr + "/bin/mysql", *self.client(), "-e", "select 1"],
                                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0, 120)

    def client(self):
        return ["--no-defaults", "-uroot", "-S", self.socket]

    def sql(self, text, database="shop"):
        done = subprocess.run([self.usr + "/bin/mysql", *self.client(), "-N", "-B", *([database] if database else [])],
                              input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()


class RabbitMQ(Server):
    """With an epmd of its own, so that no daemon is left behind. tls: an authority, a certificate and its key;
    .tls_port then speaks it, and asks for the client's certificate too."""

    def __init__(self, tls=None):
        super().__init__("rabbitmq")
        self.url = "amqp://guest:guest@%s:%d" % (self.host, self.port)
        self.epmd_port, self.dist_port = free_port(), free_port()
        self.env = {**os.environ, "HOME": self.folder, "ERL_EPMD_PORT": str(self.epmd_port),
                    "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_MNESIA_BASE": self.folder + "/data",
                    "RABBITMQ_LOG_BASE": self.folder + "/logs", "RABBITMQ_NODENAME": "idem%d@localhost" % self.port,
                    "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_NODE_IP_ADDRESS": self.host,
                    "RABBITMQ_DIST_PORT": str(self.dist_port), "RABBITMQ_PID_FILE": self.folder + "/pid",
                    "RABBITMQ_CONFIG_FILE": self.folder + "/rabbitmq",
                    "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder + "/plugins"}
        with open(self.folder + "/plugins", "w") as f:
            f.write("[].")
        if tls:
            self.tls_port = free_port()
            with open(self.folder + "/rabbitmq.conf", "w") as f:
                f.write("listeners.ssl.1 = 127.0.0.1:%d\nssl_options.cacertfile = %s\nssl_options.certfile = %s\n"
                        "ssl_options.keyfile = %s\nssl_options.verify = verify_peer\n"
                        "ssl_options.fail_if_no_peer_cert = true\n" % (self.tls_port, *tls))
        if self.host != "127.0.0.1":
            with open(self.folder + "/rabbitmq.conf", "w") as f:
                f.write("loopback_users = none\n")
        self.epmd = subprocess.Popen(self.there(["epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"]),
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.start()

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(self.there(["/usr/lib/rabbitmq/bin/rabbitmq-server"]), cwd=self.folder, stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL, env=self.env,
                                            start_new_session=True)
        return self.wait_until(self.listens, 180)

    def listens(self):
        try:
            socket.create_connection((self.host, self.port), 1).close()
            return True
        except OSError:
            return False

    def send(self, number):
        os.killpg(self.process.pid, number)

    def messages(self, queue):
        """In a queue, delivered to somebody or not."""
        said = subprocess.run(self.there(["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", "list_queues", "--no-table-headers",
                                          "name", "messages"]),
                              env=self.env, text=True, stdout=subprocess.PIPE, check=True, timeout=120)
        return int(dict(line.split("\t") for line in said.stdout.splitlines())[queue])

    def stop(self):
        super().stop()
        self.epmd.terminate()
        self.epmd.wait()


# This machine's Redis (7.0 on Debian 12), and newer ones, which differ in what WAIT means; `make compat` has one more.
REDIS_VERSIONS = ["installed", "redis-8", "valkey-8"]
REDIS_NEWEST = "valkey-9"


def redis_program(version):
    if version == "installed":
        return "redis-server"
    suite = "sid" if version == REDIS_NEWEST else "trixie"
    return root(suite, "redis-server", "valkey-server") + "/usr/bin/%s-server" % version.partition("-")[0]


class Idem(Server):
    """`idem serve` on a journal, reached through idem://."""

    def __init__(self):
        super().__init__("serve")
        self.url = "idem://127.0.0.1:%d" % self.port
        self.start()

    def start(self):
        self.spawn(IDEM, "serve", "--store", "journal:" + self.folder + "/journal", "--socket", "none",
                   "--listen", "127.0.0.1:%d" % self.port)
        return self.wait_until(lambda: listens(self.port))


class Redis(Server):
    """A Redis that keeps what it is told, unless `settings` say otherwise. version: one of REDIS_VERSIONS."""
    safe = {"appendonly": "yes", "appendfsync": "always", "save": "",
            "maxmemory-policy": "noeviction", "repl-diskless-sync-delay": "0",
            "repl-timeout": "5"}

    def __init__(self, tls=None, version="installed", **settings):
        """tls: an authority, a certificate and its key; .tls_url then speaks it."""
        super().__init__("redis")
        self.program = redis_program(version)
        self.settings = {**self.safe, **{k.replace("_", "-"): v for k, v in settings.items()}}
        if tls:
            self.tls_port = free_port(also=[10000])
            self.tls_url = "rediss://127.0.0.1:%d" % self.tls_port
            self.settings = {"tls-port": str(self.tls_port), "tls-ca-cert-file": tls[0], "tls-cert-file": tls[1],
                             "tls-key-file": tls[2], "tls-auth-clients": "no", **self.settings}
        if "cluster-enabled" in self.settings:
            self.port = free_port(also=[10000])  # the cluster's bus
        self.url = "redis://%s:%d" % (self.host, self.port)
        self.start()

    def start(self):
        self.spawn(self.program, "--port", str(self.port), "--bind", self.host, "--protected-mode", "no",
                   "--dir", self.folder, "--daemonize", "no",
                   *[part for k, v in self.settings.items() for part in ("--" + k, v)])
        return self.wait_until(lambda: self.ask("ping", check=False) == "PONG")

    def ask(self, *words, check=True):
        done = subprocess.run(["redis-cli", "-h", self.host, "-p", str(self.port), *words], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        assert not check or done.returncode == 0, done.stdout
        return done.stdout.strip()

    def set(self, name, value):
        assert self.ask("config", "set", name, value) == "OK"

    def follow(self, primary):
        """Become its replica (or of what stands behind a proxy), and wait until
        everything is copied."""
        self.ask("replicaof", getattr(primary, "host", "127.0.0.1"), str(primary.port))
        return self.wait_until(lambda: "master_link_status:up" in
                               self.ask("info", "replication"), 30)

    def promote(self):
        self.ask("replicaof", "no", "one")


class RedisCluster:
    """Three primaries that share the slots; replicas=1 gives each a replica. A node counts as dead when it was silent
    for `node_timeout` ms, so that a machine that stands still has no failover unless a test wants one."""

    def __init__(self, replicas=0, node_timeout=15000, **settings):
        self.nodes = [Redis(cluster_enabled="yes", cluster_node_timeout=str(node_timeout), **settings)
                      for _ in range(3 * (1 + replicas))]
        self.url = "redis+cluster://" + ",".join(
            "%s:%d" % (n.host, n.port) for n in self.nodes)
        self.nodes[0].tool("redis-cli", "--cluster", "create",
                           *["%s:%d" % (n.host, n.port) for n in self.nodes],
                           "--cluster-replicas", str(replicas), "--cluster-yes")
        for node in self.nodes:
            node.wait_until(lambda: "cluster_state:ok" in node.ask("cluster", "info"))

    def owner(self, slot):
        """The node that answers for this slot now."""
        for node in self.nodes:
            if node.process.poll() is None and any(
                    self.covers(part, slot) for part in self.own_line(node)):
                return node
        raise AssertionError("nobody owns slot %d" % slot)

    @staticmethod
    def own_line(node):
        lines = node.ask("cluster", "nodes", check=False).splitlines()
        mine = [line.split() for line in lines if "myself" in line]
        return mine[0][8:] if mine else []

    @staticmethod
    def covers(part, slot):
        first, _, last = part.partition("-")
        return first.isdigit() and int(first) <= slot <= int(last or first)

    def stop(self):
        for node in self.nodes:
            node.stop()


class Sentinel(Server):
    """One Sentinel that monitors a Redis under the name mymaster; two must agree that it is down."""

    def __init__(self, primary, version="installed"):
        super().__init__("sentinel")
        self.program = redis_program(version)
        self.config = os.path.join(self.folder, "sentinel.conf")
        with open(self.config, "w") as f:
            f.write("port %d\nbind %s\nprotected-mode no\ndir %s\nsentinel monitor mymaster %s %d 2\n"
                    "sentinel down-after-milliseconds mymaster 2000\nsentinel failover-timeout mymaster 6000\n"
                    % (self.port, self.host, self.folder, primary.host, primary.port))
        self.start()

    def start(self):
        self.spawn(self.program, self.config, "--sentinel")
        return self.wait_until(lambda: self.ask("ping") == "PONG")

    def ask(self, *words):
        return subprocess.run(["redis-cli", "-h", self.host, "-p", str(self.port), *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60).stdout.strip()

    def primary(self):
        """The port of the server that it takes for the primary."""
        return int(self.ask("sentinel", "get-master-addr-by-name", "mymaster").split()[1])

    def sees(self, replicas, others):
        told = self.ask("sentinel", "master", "mymaster").split("\n")
        facts = dict(zip(told[::2], told[1::2]))
        return (facts.get("num-slaves"), facts.get("num-other-sentinels")) == (str(replicas), str(others))


class RedisWithSentinels:
    """A primary, two replicas, and three Sentinels that watch them."""

    def __init__(self, version="installed"):
        self.nodes = [Redis(version=version) for _ in range(3)]
        for node in self.nodes[1:]:
            node.follow(self.nodes[0])
        self.sentinels = [Sentinel(self.nodes[0], version) for _ in range(3)]
        self.url = "redis+sentinel://%s/mymaster" % ",".join("%s:%d" % (s.host, s.port) for s in self.sentinels)
        for sentinel in self.sentinels:
            sentinel.wait_until(lambda: sentinel.sees(replicas=2, others=2), 120)

    def primary(self):
        """The node that every Sentinel names, or None."""
        named = {s.primary() for s in self.sentinels}
        return next((n for n in self.nodes if named == {n.port}), None)

    def stop(self):
        for server in self.sentinels + self.nodes:
            server.stop()


class ZooKeeper(Server):
    def __init__(self, number=0, ensemble="", machine=None):
        """Alone, or one of an ensemble: its number, and the lines that name all."""
        super().__init__("zookeeper", machine=machine)
        self.url = "zookeeper://%s:%d" % (self.host, self.port)
        os.mkdir(os.path.join(self.folder, "data"))
        with open(os.path.join(self.folder, "data/myid"), "w") as myid:
            myid.write(str(number))
        with open(os.path.join(self.folder, "zoo.cfg"), "w") as config:
            config.write("tickTime=500\ninitLimit=20\nsyncLimit=8\ndataDir=%s/data\n"
                         "clientPort=%d\nclientPortAddress=%s\n"
                         "admin.enableServer=false\nmaxClientCnxns=0\n"
                         "4lw.commands.whitelist=ruok,srvr,wchs\n%s"
                         % (self.folder, self.port, self.host, ensemble))
        self.ensemble = bool(ensemble)
        self.start()

    def start(self):
        self.spawn("java", "-Xmx256m", "-XX:TieredStopAtLevel=1",
                   "-Dzookeeper.jmx.log4j.disable=true", "-cp",
                   "/usr/share/java/zookeeper.jar",
                   "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                   os.path.join(self.folder, "zoo.cfg"))
        return self if self.ensemble else self.wait_until(self.is_ok)

    def is_ok(self):
        return self.says("ruok") == "imok"

    def says(self, word):
        try:
            with socket.create_connection((self.host, self.port), 2) as s:
                s.sendall(word.encode())
                return s.makefile("rb").read().decode(errors="replace")
        except OSError:
            return ""

    def make(self, path, data):
        """Make a node, in a session of its own."""
        text = lambda value: struct.pack(">i", len(value)) + value  # noqa: E731
        hello = struct.pack(">iqiq", 0, 0, 4000, 0) + text(bytes(16))
        order = struct.pack(">ii", 1, 1) + text(path.encode()) + text(data) + struct.pack(">ii", 1, 31) + text(b"world") + text(b"anyone") + bytes(4)
        with socket.create_connection((self.host, self.port), 10) as s, s.makefile("rb") as replies:
            for message in (hello, order):
                s.sendall(text(message))
                reply = replies.read(int.from_bytes(replies.read(4), "big"))
        assert reply[12:16] == bytes(4), reply

    def leads(self):
        return self.process.poll() is None and "Mode: leader" in self.says("srvr")


class ZooKeepers:
    """An ensemble of three."""

    def __init__(self):
        hosts = [machines("zookeeper") for _ in range(3)]
        lines = "".join("server.%d=%s:%d:%d\n" % (i, host.address, free_port(), free_port())
                        for i, host in enumerate(hosts, 1))
        self.nodes = [ZooKeeper(i, lines, host) for i, host in enumerate(hosts, 1)]
        self.url = "zookeeper://" + ",".join("%s:%d" % (n.host, n.port) for n in self.nodes)
        for node in self.nodes:
            node.wait_until(lambda: "Mode: " in node.says("srvr"))

    def leader(self):
        return next((n for n in self.nodes if n.leads()), None)

    def stop(self):
        for node in self.nodes:
            node.stop()


# This machine's etcd (3.4 on Debian 12), and one whose errors look different.
ETCD_VERSIONS = ["installed", "etcd-3.5"]


class Etcd(Server):
    def __init__(self, *flags, scheme="http", name="default", peer=None, all=None, version="installed", machine=None):
        """Alone, or one of several: its name, its peers' port, and all of them. version: one of ETCD_VERSIONS."""
        super().__init__("etcd", machine=machine)
        self.program = "etcd" if version == "installed" else root("trixie", "etcd-server") + "/usr/bin/etcd"
        self.peer = peer or free_port()
        self.flags = flags
        self.scheme, self.member = scheme, name
        self.all = all or "default=http://%s:%d" % (self.host, self.peer)
        self.url = "etcd://%s:%d" % (self.host, self.port)
        self.start(wait=all is None)

    def start(self, wait=True):
        mine = "%s://%s:%d" % (self.scheme, self.host, self.port)
        peer = "http://%s:%d" % (self.host, self.peer)
        self.spawn(self.program, "--name", self.member, "--data-dir", os.path.join(self.folder, "data"),
                   "--listen-client-urls", mine, "--advertise-client-urls", mine,
                   "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                   "--initial-cluster", self.all, "--log-level", "error", *self.flags)
        return self.wait_until(self.is_ok) if wait else self

    def status(self):
        try:
            return self.post("/v3/maintenance/status", {})
        except OSError:
            return {}

    def is_ok(self):
        if self.scheme == "https":
            return subprocess.run(["curl", "-sk", "https://127.0.0.1:%d/health" % self.port],
                                  stdout=subprocess.PIPE).stdout.find(b"true") > 0
        return self.status().get("leader", "0") != "0"

    def leads(self):
        status = self.status() if self.process.poll() is None else {}
        return bool(status) and status.get("leader") == status["header"]["member_id"]

    def post(self, path, body):
        request = urllib.request.Request("http://%s:%d%s" % (self.host, self.port, path),
                                         json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.load(reply)


class Etcds:
    """A cluster of three, on these machines or on machines of their own."""

    def __init__(self, hosts=None, flags=()):
        peers = [(host, free_port()) for host in hosts or [machines("etcd") for _ in range(3)]]
        all = ",".join("e%d=http://%s:%d" % (i, host.address, port) for i, (host, port) in enumerate(peers))
        self.nodes = [Etcd(*flags, name="e%d" % i, peer=port, all=all, machine=host) for i, (host, port) in enumerate(peers)]
        self.url = "etcd://" + ",".join("%s:%d" % (n.host, n.port) for n in self.nodes)
        for node in self.nodes:
            node.wait_until(node.is_ok)

    def leader(self):
        return next((n for n in self.nodes if n.leads()), None)

    def stop(self):
        for node in self.nodes:
            node.stop()
