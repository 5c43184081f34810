"""What `idem serve` does with what systemd hands to it: sockets, a place to notify, a watchdog, credentials."""
import os
import signal
import socket
import subprocess
import time

import pytest

from lib import IDEM, Process, Resp, Server, folder, free_port, wait_until
from servers import Redis, authority

# systemd names the process in LISTEN_PID before it starts the program in it, and counts descriptors from 3 on.
STARTER = 'export LISTEN_PID=$$ LISTEN_FDS=$#; n=3; for fd; do eval "exec $n<&$fd"; n=$((n + 1)); done; exec $COMMAND'


def activated(sockets, *args):
    """`idem serve` on sockets that somebody else opened and keeps."""
    high = [os.dup2(s.fileno(), 50 + i, inheritable=True) for i, s in enumerate(sockets)]  # none is overwritten
    try:
        return Process(["bash", "-c", STARTER, "bash", *map(str, high)], env={"COMMAND": " ".join([IDEM, "serve", *args])},
                       pass_fds=high)
    finally:
        for fd in high:
            os.close(fd)


def listener(where):
    s = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(where if isinstance(where, str) else ("127.0.0.1", where))
    s.listen(64)
    return s


def test_a_client_that_connects_while_no_server_runs_is_answered_by_the_next_one():
    with folder() as where:
        path, port = where + "/s", free_port()
        http = free_port(also=[1])
        args = ["--store", "journal:%s/j" % where, "--socket", path, "--listen", "127.0.0.1:%d" % port,
                "--http", "127.0.0.1:%d" % http]
        sockets = [listener(path), listener(port), listener(http)]
        early = Resp(path)
        early.send("BEGIN", "shop", "order-7")
        with activated(sockets, *args):
            assert "started" in str(early.read())
            assert Resp(port)("PING") == "PONG"
        between = [Resp(path), Resp(port)]
        for client in between:
            client.send("GET", "shop", "order-7")
        with activated(sockets, *args):
            for client in between:
                assert "executing" in client.read()
            web = socket.create_connection(("127.0.0.1", http))
            web.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert web.recv(100).startswith(b"HTTP/1.1 200")


def test_a_socket_of_systemd_that_the_configuration_does_not_name_is_refused():
    with folder() as where:
        server = activated([listener(where + "/other")], "--store", "journal:%s/j" % where, "--socket", where + "/s")
        assert server.wait() == 1
        assert "ListenStream=" in server.output()


def test_more_sockets_of_systemd_than_idem_takes_are_refused():
    """The 17th is one that the configuration does not name."""
    with folder() as where:
        named = [listener(0) for _ in range(15)]
        listen = ",".join("127.0.0.1:%d" % s.getsockname()[1] for s in named)
        server = activated([listener(where + "/s"), *named, listener(where + "/other")], "--store", "journal:%s/j" % where,
                           "--socket", where + "/s", "--listen", listen)
        with server:
            assert wait_until(lambda: server.process.poll() is not None, 20), "it serves 16 of them and says nothing"
            assert server.wait() == 1
            assert "systemd handed over 17 sockets" in server.output() and "ListenStream=" in server.output()


def test_commands_that_the_server_starts_get_no_sockets_of_systemd():
    """Nor does a server take descriptors that were meant for its parent."""
    with folder() as where:
        with Server(where, env={"LISTEN_PID": "1", "LISTEN_FDS": "1"}) as server:
            assert server.client()("PING") == "PONG"


class Ear:
    """The socket that a service notifies systemd on."""

    def __init__(self, where):
        self.path = where + "/notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)

    def heard(self, word, seconds=60):
        """Wait for a message with this word in it."""
        end = time.monotonic() + seconds
        while True:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                if word in self.socket.recv(4096).decode():
                    return True
            except TimeoutError:
                return False

    def forget(self):
        self.socket.setblocking(False)
        try:
            while self.socket.recv(4096):
                pass
        except BlockingIOError:
            pass


def test_systemd_hears_of_the_start_a_reload_and_the_end():
    with folder() as where:
        ear = Ear(where)
        with Server(where, env={"NOTIFY_SOCKET": ear.path}) as server:
            assert ear.heard("READY=1")
            server.send(signal.SIGHUP)
            assert ear.heard("RELOADING=1\nMONOTONIC_USEC=")
            assert ear.heard("READY=1")
            ear.forget()
            assert not ear.heard("WATCHDOG=1", 1)  # nobody asked for it
        assert ear.heard("STOPPING=1")


def test_no_sign_of_life_comes_while_the_engine_hangs():
    """The disk hangs for a minute: strace holds the call. A timer would go on."""
    with folder() as where:
        ear = Ear(where)
        with Server(where, http=True, env={"NOTIFY_SOCKET": ear.path, "WATCHDOG_USEC": "2000000", "IDEM_CORE_DUMPS": "1"}) as server:
            assert ear.heard("WATCHDOG=1") and ear.heard("WATCHDOG=1")  # also when nobody asks the server anything
            disk = Process(["strace", "-f", "-p", str(server.pid), "-e", "trace=fsync,fdatasync", "-e", "quiet=none",
                            "-e", "inject=fsync,fdatasync:delay_enter=60s"])
            try:
                assert wait_until(lambda: "attached" in disk.output()), disk.output()
                client = server.client()
                client.send("BEGIN", "shop", "order-7")
                assert wait_until(lambda: "sync(" in disk.output()), disk.output()
                ear.forget()
                assert not ear.heard("WATCHDOG=1", 3)
            finally:
                disk.stop(signal.SIGKILL)
            assert "started" in str(client.read())
            assert ear.heard("WATCHDOG=1")


def test_signs_of_life_go_on_while_the_store_is_away():
    """To start the server again would not bring the store back."""
    redis = Redis()
    try:
        with folder() as where:
            ear = Ear(where)
            with Server(where, store=redis.url, env={"NOTIFY_SOCKET": ear.path, "WATCHDOG_USEC": "4000000"}):
                assert ear.heard("WATCHDOG=1")
                redis.process.send_signal(signal.SIGSTOP)
                try:
                    assert all(ear.heard("WATCHDOG=1") for _ in range(2))
                finally:
                    redis.process.send_signal(signal.SIGCONT)
    finally:
        redis.stop()


def test_a_credential_of_systemd_stands_for_a_variable():
    """And appears neither in the environment that others see nor in the log."""
    def serve(where, store, **kept):
        with open(where + "/IDEM_STORE", "w") as f:
            f.write(store + "\n")
        return Process([IDEM, "serve", "--socket", where + "/s"], env={"CREDENTIALS_DIRECTORY": where}, **kept)

    with folder() as where:
        server = serve(where, "redis://:hunter2@127.0.0.1:%d" % free_port())
        assert server.wait() == 1
        assert "redis" in server.output() and "hunter2" not in server.output()
        with serve(where, "journal:%s/secret-place" % where, ready=where + "/s") as server:
            assert os.path.isdir(where + "/secret-place")
            with open("/proc/%d/environ" % server.pid) as f:
                assert "secret-place" not in f.read()


def test_an_unreadable_credential_of_systemd_is_an_error():
    with folder() as where:
        open(where + "/IDEM_STORE", "w").close()
        done = subprocess.run([IDEM, "scan"], text=True, stderr=subprocess.PIPE, env={**os.environ, "CREDENTIALS_DIRECTORY": where})
        assert done.returncode == 1
        assert done.stderr == "idem: the credential %s/IDEM_STORE is not a text of 1 to 65535 bytes that can be read\n" % where


@pytest.mark.parametrize("allowed", [False, True])
def test_core_dumps_hold_no_secrets(allowed):
    """There are none, and no process of the same user can read the memory."""
    env = {k: v for k, v in os.environ.items() if k != "IDEM_CORE_DUMPS"}
    said = subprocess.run(["strace", "-f", "-e", "trace=prctl", IDEM, "--version"], text=True, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, check=True, env={**env, **({"IDEM_CORE_DUMPS": "1"} if allowed else {})}).stderr
    assert ("prctl(PR_SET_DUMPABLE, SUID_DUMP_DISABLE) = 0" in said) == (not allowed)


def test_the_text_of_a_private_key_is_locked_in_memory():
    with folder() as where:
        _, cert, key = authority(where, "ours")
        port = free_port()
        with Process(["strace", "-f", "-e", "trace=mlock", IDEM, "serve", "--store", "memory:", "--socket", where + "/s", "--http",
                      "127.0.0.1:%d" % port, "--tls-cert", cert, "--tls-key", key], ready=port) as server:
            assert "mlock(" in server.output()
            for line in server.output().splitlines():
                assert "mlock(" not in line or line.endswith(" = 0"), line
