"""What the gateway's tests share: a ledger service, nginx with our module, the whole `idem gateway`, an HTTP client."""
import concurrent.futures
import glob
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from lib import IDEM, ROOT, Process, Resp, Server, free_port, wait_until

# IDEM_MODULE: the module with the sanitizers in it, which Debian's nginx loads after their library.
ASAN_MODULE = os.environ.get("IDEM_MODULE")
MODULE = ASAN_MODULE or os.path.join(ROOT, "build/ngx_http_idem_module.so")
STEPS_MODULE = ASAN_MODULE or os.path.join(ROOT, "build/steps/ngx_http_idem_module.so")


def nginx_env(where):
    """What nginx needs in its environment; a sanitizer writes its reports into the folder."""
    if not ASAN_MODULE:
        return {}
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    return {"LD_PRELOAD": library.strip(), "ASAN_OPTIONS": "detect_leaks=0:log_path=%s/sanitizer" % where,
            "UBSAN_OPTIONS": "print_stacktrace=1:log_path=%s/sanitizer" % where}


def nothing_found(where):
    """Neither in a sanitizer's own files nor in nginx's log, where UBSan writes."""
    for name in glob.glob(where + "/sanitizer*") + glob.glob(where + "/error.log"):
        with open(name, errors="replace") as f:
            text = f.read()
        at = max(text.find("Sanitizer"), text.find("runtime error:"))
        assert at < 0, text[max(0, at - 200):at + 6000]


def nginx_version():
    said = subprocess.run(["/usr/sbin/nginx", "-v"], capture_output=True, text=True).stderr
    return tuple(int(n) for n in re.search(r"nginx/([\d.]+)", said).group(1).split("."))


def nginx_test(where, conf):
    """What `nginx -t` says of a configuration."""
    return subprocess.run(["/usr/sbin/nginx", "-t", "-p", where, "-c", conf], capture_output=True, text=True,
                          env={**os.environ, **nginx_env(where)})


class Ledger(Process):
    """tests/support/ledger.py; entries() is what it executed, as the disk has it."""

    def __init__(self, where, port=None):
        self.port = port or free_port()
        self.file = os.path.join(where, "ledger")
        super().__init__([sys.executable, os.path.join(ROOT, "tests/support/ledger.py"), str(self.port), self.file],
                         ready=self.port)

    def entries(self):
        try:
            with open(self.file) as f:
                whole = f.read().rpartition("\n")[0]  # the last line may be half written
            return [json.loads(line) for line in whole.splitlines()]
        except FileNotFoundError:
            return []

    def executions(self, key):
        return sum(1 for e in self.entries() if e["key"] in (key, '"%s"' % key))


class Nginx(Process):
    """nginx with our module in front of a ledger; `location` goes into the gated location, `more` beside it."""

    def __init__(self, where, engine, upstream, location="", more="", http="", workers=1, module=MODULE, env=None,
                 engine_options="timeout=10s away=10s", proxy=None, listen="", port=None):
        self.port = port or free_port()
        self.where = where
        self.conf = os.path.join(where, "nginx.conf")
        self.pid_file = os.path.join(where, "nginx.pid")
        temp = "".join("%s_temp_path %s/t-%s;\n" % (n, where, n)
                       for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;\n" if os.geteuid() == 0 else ""
        self.text = """%sload_module %s;
worker_processes %d; daemon off; error_log %s/error.log info; pid %s;
env IDEM_STEPS; env LD_PRELOAD; env ASAN_OPTIONS; env UBSAN_OPTIONS;
events { worker_connections 2048; }
http {
    log_format verdict '$request $status idem=$idem_verdict scope=$idem_scope id=$idem_id fence=$idem_fence';
    access_log %s/access.log verdict; %s
    idem_engine %s %s;
    upstream service { server 127.0.0.1:%d; keepalive 64; }
    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host;
    proxy_next_upstream off; proxy_ignore_client_abort on; proxy_read_timeout 10s; keepalive_requests 100000;
    client_max_body_size 0;
    %s
    server {
        listen 127.0.0.1:%d%s;
        location / { idem on; %s %s }
        %s
    }
}
""" % (user, module, workers, where, self.pid_file, where, temp,
            engine if ":" in engine else "unix:" + engine, engine_options, upstream, http, self.port,
            listen, location, proxy or "proxy_pass http://service;", more)
        with open(self.conf, "w") as f:
            f.write(self.text)
        super().__init__(["/usr/sbin/nginx", "-p", where, "-c", self.conf], ready=self.port,
                         env={**nginx_env(where), **(env or {})})
        wait_until(lambda: len(self.workers()) == workers)  # the port is open before the master has started them

    def workers(self):
        with open("/proc/%d/task/%d/children" % (self.pid, self.pid)) as f:
            return [int(p) for p in f.read().split()]

    def errors(self):
        with open(os.path.join(self.where, "error.log"), errors="replace") as f:
            return f.read()

    def stop(self, number=signal.SIGQUIT, seconds=60):
        return super().stop(number, seconds)

    def __exit__(self, *_):
        super().__exit__(*_)
        nothing_found(self.where)


class Stack:
    """Engine, nginx and ledger; the engine and the ledger can be killed and started again."""

    def __init__(self, where, location="", steps=False, store=None, engine=(), **more):
        self.where = where
        self.store = store
        self.steps = os.path.join(where, "steps")
        os.makedirs(self.steps, exist_ok=True)
        self.ledger = Ledger(where)
        self.engine = Server(where, *engine, store=store)
        self.nginx = Nginx(where, self.engine.socket, self.ledger.port, location,
                           module=STEPS_MODULE if steps else MODULE,
                           env={"IDEM_STEPS": self.steps} if steps else None, **more)
        self.port = self.nginx.port

    def restart_engine(self):
        self.engine = Server(self.where, store=self.store)

    def restart_ledger(self):
        self.ledger = Ledger(self.where, self.ledger.port)

    def resp(self):
        return Resp(self.engine.socket)

    def waiting(self):
        """How many duplicates wait in the engine."""
        with self.resp() as r:
            return int(re.search(r"^parked:(\d+)", r("INFO"), re.M).group(1))

    def record(self, key, scope="anonymous"):
        with self.resp() as r:
            got = r("GET", scope, key)
        return dict(zip(got[1::2], got[2::2])) if got[0] == "record" else None

    # A worker of the steps module stops where the test has laid out a file, until the test takes it away again.
    def stop_at(self, step):
        open(os.path.join(self.steps, step), "w").close()

    def reached(self, step):
        return wait_until(lambda: os.path.exists(os.path.join(self.steps, step + ".hit")))

    def go_on(self, step):
        for name in (step, step + ".hit"):
            try:
                os.unlink(os.path.join(self.steps, name))
            except FileNotFoundError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            print(self.nginx.errors()[-3000:])
        for p in (self.nginx, self.engine, self.ledger):
            p.stop()
        nothing_found(self.where)


class Gateway(Process):
    """The whole of `idem gateway`."""

    def __init__(self, where, upstream, *flags, port=None, store=None, socket="off", engine=None, env=None, **more):
        self.port = port or free_port()
        self.where = where
        argv = [IDEM, "gateway", "--upstream", "http://127.0.0.1:%d" % upstream, "--listen",
                "127.0.0.1:%d" % self.port, "--socket", socket,
                *(["--engine", engine] if engine else ["--store", store or "journal:" + os.path.join(where, "journal")]),
                *(["--module", MODULE] if ASAN_MODULE else []), *flags]
        super().__init__(argv, ready=self.port, env={**nginx_env(where), **(env or {})}, **more)

    def __exit__(self, *_):
        super().__exit__(*_)
        nothing_found(self.where)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body
        self.replayed = headers.get("idempotent-replayed") == "true"

    def json(self):
        return json.loads(self.body)

    @property
    def problem(self):
        """The last part of a problem's type, or None."""
        if self.headers.get("content-type") != "application/problem+json":
            return None
        got = self.json()
        assert got["status"] == self.status, got
        assert isinstance(got["retryable"], bool) and got["title"] and got["detail"], got
        assert "<%s>" % got["documentation"] in self.headers["link"], self.headers
        return got["type"].rsplit("/", 1)[1]

    def __repr__(self):
        return "%s %s %r" % (self.status, self.headers, self.body[:300])


def ask(port, key=None, method="POST", path="/orders", headers=None, body=b'{"a":1}', timeout=60, **named):
    """One request on a connection of its own; named: x_code=500 becomes X-Code: 500."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        all_headers = {**({"Idempotency-Key": key} if key is not None else {}), **(headers or {}),
                       **{n.replace("_", "-"): str(v) for n, v in named.items()}}
        c.request(method, path, body, all_headers)
        r = c.getresponse()
        data = r.read()
        found = {}
        for k, v in r.getheaders():
            found[k.lower()] = found[k.lower()] + "," + v if k.lower() in found else v
        return Answer(r.status, found, data)
    finally:
        c.close()


def raw(port, data, timeout=10, half_close=False, until=None):
    """Bytes to a connection of its own; everything that comes back until it is closed, or until a moment of silence."""
    s = socket.create_connection(("127.0.0.1", port), timeout)
    got = b""
    try:
        s.sendall(data)
        if half_close:
            s.shutdown(socket.SHUT_WR)
        while True:
            part = s.recv(65536)
            if not part:
                break
            got += part
            if until and until in got:
                break
    except (socket.timeout, ConnectionResetError):
        pass
    finally:
        s.close()
    return got


def storm(n, one, threads=None):
    """n calls of one(i) at once; what they returned."""
    gate = threading.Barrier(min(n, threads or n))
    with concurrent.futures.ThreadPoolExecutor(threads or n) as pool:
        def run(i):
            if i < (threads or n):
                gate.wait()
            return one(i)
        return list(pool.map(run, range(n)))


class Later:
    """A call in a thread of its own; result() waits for it."""

    def __init__(self, fn, *args, **named):
        self.value = self.error = None

        def run():
            try:
                self.value = fn(*args, **named)
            except Exception as e:  # an answer that did not come is a result too
                self.error = e
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def result(self, seconds=60):
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "no answer"
        return self.value if self.error is None else self.error


class Working(Later):
    """A request on which the service works until it is told to go on, which asking for the result does too."""

    def __init__(self, port, ledger, key, **named):
        self.until = "%s-until-%d" % (ledger.file, time.monotonic_ns())
        super().__init__(ask, port, key, x_until=self.until, **named)
        eventually(lambda: ledger.executions(key) == 1)

    def go_on(self):
        open(self.until, "w").close()

    def result(self, seconds=60):
        self.go_on()
        return super().result(seconds)


def eventually(check, seconds=60):
    """The check's answer once it is true."""
    got = wait_until(check, seconds)
    assert got, "it did not become true in time"
    return got


__all__ = [n for n in dir() if not n.startswith("_")]
