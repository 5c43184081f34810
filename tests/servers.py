"""Real servers for tests, started on loopback as children and stopped by pid.

Each start_X() returns an object with .url, .pid, .stop(), .kill() and .start()
again on the same data. Databases refuse to run as root, so they run as the user
that their Debian package made.
"""
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A child process with a data folder of its own."""

    def __init__(self, name, user=None):
        self.name = name
        self.folder = tempfile.mkdtemp(prefix="idem-" + name + "-", dir="/tmp")
        self.port = free_port()
        self.process = None
        self.user = pwd.getpwnam(user) if user and os.getuid() == 0 else None
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)

    def run_as(self):
        if not self.user:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid,
                "extra_groups": []}

    def tool(self, *command):
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, **self.run_as())
        assert done.returncode == 0, " ".join(command) + ":\n" + done.stdout
        return done.stdout

    def spawn(self, *command):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL,
                                            **self.run_as())

    def wait_until(self, ready, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
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

    def stop(self):
        if self.process and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(self.stop_signal)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    stop_signal = signal.SIGTERM


class Postgres(Server):
    stop_signal = signal.SIGINT  # fast shutdown

    def __init__(self, *settings):
        super().__init__("postgres", "postgres")
        bins = sorted(os.listdir("/usr/lib/postgresql"), key=float)[-1]
        self.bin = "/usr/lib/postgresql/" + bins + "/bin/"
        self.data = os.path.join(self.folder, "data")
        self.tool(self.bin + "initdb", "-D", self.data, "-A", "trust", "-U", "idem",
                  "-N", "--locale=C", "-E", "UTF8")
        self.settings = settings
        self.url = "postgres://idem:secret@127.0.0.1:%d/postgres" % self.port
        self.start()

    def start(self):
        options = ["port=%d" % self.port, "listen_addresses=127.0.0.1",
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
        end = time.time() + 20
        while time.time() < end:  # until no backend holds the shared memory
            left = subprocess.run(["/usr/bin/pgrep", "-f", "^postgres: .*"],
                                  stdout=subprocess.PIPE, text=True).stdout.split()
            if not any(self.is_mine(pid) for pid in left):
                break
            time.sleep(0.05)
        if os.path.exists(pid_file):
            os.remove(pid_file)

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


class MariaDB(Server):
    def __init__(self, *settings):
        super().__init__("mariadb", "mysql")
        self.data = os.path.join(self.folder, "data")
        self.socket = os.path.join(self.folder, "s")
        self.tool("mariadb-install-db", "--no-defaults", "--datadir=" + self.data,
                  "--auth-root-authentication-method=normal", "--skip-test-db")
        self.settings = settings
        self.url = "mysql://idem:secret@127.0.0.1:%d/shop" % self.port
        self.start()
        self.sql("create database shop; create user idem@'127.0.0.1' identified by "
                 "'secret'; grant all on shop.* to idem@'127.0.0.1'; "
                 "grant process, connection admin on *.* to idem@'127.0.0.1'",
                 database="")

    def start(self):
        self.spawn("/usr/sbin/mariadbd", "--no-defaults", "--datadir=" + self.data,
                   "--port=%d" % self.port, "--bind-address=127.0.0.1",
                   "--socket=" + self.socket, "--innodb-buffer-pool-size=64M",
                   "--innodb-log-file-size=64M", "--max-connections=150",
                   "--skip-name-resolve", "--pid-file=" + self.folder + "/pid",
                   *["--" + s for s in self.settings])
        return self.wait_until(lambda: subprocess.run(
            ["mariadb", "--no-defaults", "-uroot", "-S", self.socket, "-e", "select 1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0)

    def sql(self, text, database="shop"):
        done = subprocess.run(["mariadb", "--no-defaults", "-uroot", "-S", self.socket,
                               "-N", "-B", *([database] if database else [])],
                              input=text, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()


class RabbitMQ(Server):
    """With an epmd of its own, so that no daemon is left behind."""

    def __init__(self):
        super().__init__("rabbitmq")
        self.url = "amqp://guest:guest@127.0.0.1:%d" % self.port
        self.epmd_port, self.dist_port = free_port(), free_port()
        self.env = {**os.environ, "HOME": self.folder, "ERL_EPMD_PORT": str(self.epmd_port),
                    "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_MNESIA_BASE": self.folder + "/data",
                    "RABBITMQ_LOG_BASE": self.folder + "/logs", "RABBITMQ_NODENAME": "idem%d@localhost" % self.port,
                    "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                    "RABBITMQ_DIST_PORT": str(self.dist_port), "RABBITMQ_PID_FILE": self.folder + "/pid",
                    "RABBITMQ_CONFIG_FILE": self.folder + "/none",
                    "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder + "/plugins"}
        with open(self.folder + "/plugins", "w") as f:
            f.write("[].")
        self.epmd = subprocess.Popen(["epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.start()

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(["/usr/lib/rabbitmq/bin/rabbitmq-server"], cwd=self.folder, stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL, env=self.env,
                                            start_new_session=True)
        return self.wait_until(self.listens)

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def send(self, number):
        os.killpg(self.process.pid, number)

    def stop(self):
        super().stop()
        self.epmd.terminate()
        self.epmd.wait()
