"""What the tests of the running system share: processes, ports, a RESP client, `idem serve`."""
import contextlib
import fcntl
import os
import pty
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IDEM = os.environ.get("IDEM_BIN") or os.path.join(ROOT, "build/idem")
SOAK = bool(os.environ.get("IDEM_SOAK"))
COVERAGE = bool(os.environ.get("IDEM_COVERAGE"))  # scripts/coverage
FULL = SOAK or COVERAGE
SANITIZED = bool(os.environ.get("IDEM_SANITIZED"))
THOROUGH = SOAK or bool(os.environ.get("IDEM_COVERAGE"))  # more of the points at which something fails


PORTS = range(10000, 20000)  # below those that the kernel gives to whoever connects, or asks for any


def free_port(also=()):
    """A port that nobody listens on, nor on those so many above it. Every process of every run on this machine takes
    the next one, so that none is given to two while one of them has yet to listen."""
    with open(os.path.join(tempfile.gettempdir(), "idem-ports-%d" % os.getuid()), "a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        at = int(last.read() or random.choice(PORTS))
        for _ in PORTS:
            at = at + 1 if at + 1 in PORTS else PORTS[0]
            if all(is_free(at + n) for n in (0, *also)):
                break
        last.truncate(0)
        last.write(str(at))
        return at


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


@contextlib.contextmanager
def folder(where=None):
    """A folder of its own, short enough for a unix socket in it."""
    path = tempfile.mkdtemp(prefix="idem-", dir=where)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def connect(where, timeout=60):
    """where: a TCP port on loopback, or the path of a unix socket."""
    if isinstance(where, int):
        return socket.create_connection(("127.0.0.1", where), timeout)
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(timeout)
    s.connect(where)
    return s


def without_advice(text):
    """An error of a store as the store says it, without what the command line adds about the next step."""
    return re.sub(r'; (((nothing was stored, )?try again)|(run the same command again(; if it says "busy", that may be this claim: wait until its lease is over)?))$', "", text.rstrip("\n"))


def wait_until(what, seconds=60, step=0.02):
    """Ask until it says yes; the answer, or None when time is up."""
    end = time.monotonic() + seconds
    while True:
        answer = what()
        if answer or time.monotonic() > end:
            return answer
        time.sleep(step)


def listens(where):
    try:
        connect(where, 5).close()
        return True
    except OSError:
        return False


def dice():
    """Random numbers that can be had again: the seed is printed, which pytest shows of a test that failed."""
    seed = os.environ.get("IDEM_TEST_SEED") or str(random.getrandbits(32))
    print("IDEM_TEST_SEED=" + seed)
    return random.Random(seed)


def serve_each(listener, serve):
    """Call serve(connection) in a thread for each connection, until the listener is closed."""
    def accept():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()


def runs(pid):
    """Is it there, and no zombie that nobody has waited for? Not everywhere is there an init that does."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def open_files(pid):
    """What a process has open; it may open and close while we look."""
    names = []
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                names.append(os.readlink("/proc/%d/fd/%s" % (pid, entry)))
    return names


FAKETIME = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}


class Clock:
    """A wall clock that the test sets, for whoever is started with `env`; the clocks that nobody sets go on."""

    def __init__(self, where):
        self.file = os.path.join(where, "clock")
        self.env = {**FAKETIME, "FAKETIME_TIMESTAMP_FILE": self.file}
        self.set("+0")

    def set(self, offset):
        with open(self.file + ".new", "w") as out:
            out.write(offset + "\n")
        os.chmod(self.file + ".new", 0o644)
        os.rename(self.file + ".new", self.file)


class Error(Exception):
    """A RESP error; str() is "WORD text"."""

    @property
    def word(self):
        return str(self).split()[0]


def encode(*args):
    out = [b"*%d\r\n" % len(args)]
    for a in args:
        a = a if isinstance(a, bytes) else str(a).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(a), a))
    return b"".join(out)


class Resp:
    """A RESP client that hides nothing: c("PING"), or c.send(...) and c.read() apart. Bulk strings come as
    str where they are UTF-8, errors are returned as Error, not raised."""

    def __init__(self, where, timeout=60):
        self.socket = connect(where, timeout)
        self.file = self.socket.makefile("rb")

    def __call__(self, *args):
        self.send(*args)
        return self.read()

    def send(self, *args):
        self.raw(encode(*args))

    def raw(self, data):
        self.socket.sendall(data)

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the connection ended: %r" % line)
        mark, value = line[:1], line[1:-2]
        if mark == b"+":
            return value.decode()
        if mark == b"-":
            return Error(value.decode())
        if mark == b":":
            return int(value)
        if mark == b"$":
            if value == b"-1":
                return None
            data = self.file.read(int(value) + 2)
            assert data.endswith(b"\r\n"), data[-20:]
            try:
                return data[:-2].decode()
            except UnicodeDecodeError:
                return data[:-2]
        if mark == b"*":
            return None if value == b"-1" else [self.read() for _ in range(int(value))]
        raise AssertionError("not RESP: %r" % line)

    def ended(self):
        """Has the server closed? Waits for it."""
        return self.file.read(1) == b""

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Process:
    """A child process in a session of its own, its output in a file; stopped by its pid."""

    def __init__(self, argv, ready=None, seconds=60, env=None, cwd=None, pass_fds=()):
        self.argv = argv
        self.log = tempfile.NamedTemporaryFile(prefix="idem-log-")
        self.process = subprocess.Popen(argv, stdout=self.log, stderr=subprocess.STDOUT, cwd=cwd or ROOT,
                                        stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=pass_fds,
                                        env={**os.environ, **(env or {})})
        self.pid = self.process.pid
        if ready is not None:
            ok = wait_until(lambda: listens(ready) or self.process.poll() is not None, seconds)
            if not ok or self.process.poll() is not None:
                text = self.output()
                self.stop(signal.SIGKILL)
                raise AssertionError("%s does not listen on %s: %s" % (argv[0], ready, text[-2000:]))

    def output(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def kill(self):
        """As a crash would."""
        self.stop(signal.SIGKILL)

    def stop(self, number=signal.SIGTERM, seconds=60):
        """The exit status."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
                os.killpg(self.pid, signal.SIGCONT)  # a test may have left it stopped
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self.process.wait(5)
        return self.process.returncode

    def rss_kib(self):
        with open("/proc/%d/status" % self.pid) as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        code = self.stop()
        # A sanitizer's report fails the test that caused it.
        if "Sanitizer" in self.output() or "runtime error:" in self.output():
            raise AssertionError("sanitizer report (exit %s): %s" % (code, self.output()[-6000:]))


class Server(Process):
    """`idem serve` on a socket, and on TCP and HTTP where asked for; the store is a journal in the folder."""

    def __init__(self, where, *flags, listen=False, http=False, store=None, env=None, prefix=()):
        """prefix: the words of a command that starts it elsewhere."""
        self.socket = os.path.join(where, "s")
        self.port = free_port() if listen else None
        self.http = free_port() if http else None
        argv = [*prefix, IDEM, "serve", "--store", store or "journal:" + os.path.join(where, "journal"),
                "--socket", self.socket]
        argv += ["--listen", "127.0.0.1:%d" % self.port] if listen else []
        argv += ["--http", "127.0.0.1:%d" % self.http] if http else []
        super().__init__([*argv, *flags], ready=self.socket, env=env)
        for port in filter(None, (self.port, self.http)):
            assert wait_until(lambda: listens(port)), self.output()[-2000:]

    def client(self, timeout=60, tcp=False):
        return Resp(self.port if tcp else self.socket, timeout)


def on_a_terminal(*args, **env):
    """What a person sees."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_") and k != "NO_COLOR"}
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(IDEM, [IDEM, *args], {**clean, "TERM": "xterm", **env})
    out = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(fd, 65536):
            out += chunk
    os.close(fd)
    os.waitpid(pid, 0)
    return out.decode().replace("\r\n", "\n")


def build_go(source):
    """A program beside its source. Packages are Debian's."""
    out = source[:-len(".go")]
    done = subprocess.run(["go", "build", "-o", out, source], text=True, stdout=subprocess.PIPE, timeout=300,
                          stderr=subprocess.STDOUT, env={**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode",
                                                         "GOCACHE": os.path.join(ROOT, "build/gocache")})
    assert done.returncode == 0, done.stdout
    return out


def patient(url, ms=20000):
    """A remote store may answer late: its disk may stand still for seconds. For tests where that is no fault to see."""
    if url.split(":")[0] not in ("redis", "redis+cluster", "rediss", "rediss+cluster", "postgres", "mysql", "zookeeper", "etcd", "idem"):
        return url
    return url + ("&" if "?" in url else "?") + "timeout_ms=%d" % ms


def run_c_test(program, store, seconds=300, **env):
    """Run a cmocka program of tests/c on a store by its URL; its output. It must pass."""
    subprocess.run(["make", "-s", "-j2", "build/tests/c/" + program], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    done = subprocess.run([os.path.join(ROOT, "build/tests/c", program)], text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
                          env={**os.environ, "IDEM_TEST_STORE": patient(store),
                               **{k: str(v) for k, v in env.items()}})
    assert done.returncode == 0 and "[  PASSED  ]" in done.stdout, done.stdout[-3000:]
    return done.stdout


def check_store_in_trouble(store, kinds="234", **env):
    """Allocations of the store's client fail, then calls of the kernel: kinds as in tests/faults/faults.c. All of them with IDEM_SOAK=1."""
    env = {"IDEM_TEST_RUNS": 1000000 if SOAK else 100 if THOROUGH else 14, "IDEM_TEST_STORE": store, **env}
    run_c_test("store_alloc_test", store, **env)
    subprocess.run(["make", "-s", "-j2", "build/tests/faults.so"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with folder() as where:
        path = os.path.join(where, "faults")
        with open(path, "wb") as f:
            f.write(bytes(64))
        said = run_c_test("store_fault_test", store, LD_PRELOAD=os.path.join(ROOT, "build/tests/faults.so"), IDEM_FAULTS=path,
                          IDEM_TEST_KINDS=kinds, **env)
    assert all("kind %s: " % kind in said for kind in kinds), said
