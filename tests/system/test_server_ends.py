"""How connections to a server end: without descriptors, without a login, behind a wait, and when the server stops. Waits more than it works."""
import os
import resource
import signal
import time

import pytest

from lib import Resp, Server, connect, encode, folder, wait_until


@pytest.fixture
def where():
    with folder() as path:
        yield path


def test_without_descriptors_a_client_is_turned_away_and_others_are_served(where):
    with Server(where, store="memory:") as server, server.client() as first:
        assert first("PING") == "PONG"
        limit = len(os.listdir("/proc/%d/fd" % server.pid)) + 20
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
        crowd = [connect(server.socket) for _ in range(60)]
        assert wait_until(lambda: "event=cannot-accept" in server.output()), server.output()
        assert first("BEGIN", "s", "1")[0] == "started"
        gone = 0
        for s in crowd:
            s.settimeout(0.05)
            try:
                gone += s.recv(1) == b""
            except TimeoutError:
                pass
        assert 0 < gone < 60
        for s in crowd:
            s.close()

        def answered():
            try:
                with Resp(server.socket, 5) as c:
                    return c("BEGIN", "s", "1")[0] == "busy"
            except (OSError, EOFError):
                return False
        assert wait_until(answered), "when they are gone, new clients are served"


def test_who_does_not_log_in_is_closed(where):
    with open(where + "/credentials", "w") as f:
        f.write("ann s3cret use\n")
    os.chmod(where + "/credentials", 0o600)
    with Server(where, "--credentials", where + "/credentials", "--stall-timeout", "400ms", listen=True, store="memory:") as server:
        with server.client(tcp=True) as silent, server.client(tcp=True) as ann:
            assert ann("AUTH", "ann", "s3cret") == "OK"
            assert silent.ended()
            assert wait_until(lambda: 'why="it did not authenticate"' in server.output()), server.output()
            assert ann("BEGIN", "s", "1")[0] == "started", "who did stays"


def test_who_leaves_before_a_wrong_login_is_answered_harms_nobody(where):
    with open(where + "/credentials", "w") as f:
        f.write("ann s3cret use\n")
    os.chmod(where + "/credentials", 0o600)
    with Server(where, "--credentials", where + "/credentials", listen=True, store="memory:") as server:
        for _ in range(10):
            c = server.client(tcp=True)
            c.send("AUTH", "ann", "wrong")
            c.close()
        with server.client(tcp=True) as wrong, server.client(tcp=True) as ann:
            assert ann("AUTH", "ann", "s3cret") == "OK" and ann("BEGIN", "s", "1")[0] == "started"
            assert wrong("AUTH", "ann", "wrong").word == "WRONGPASS"
            wrong.send("AUTH", "ann", "wrong")
            assert server.stop() == 0, "also while an answer is held back"


def test_quit_waits_for_the_answers_before_it(where):
    with Server(where, store="memory:") as server, server.client() as waits, server.client() as works:
        fence = works("BEGIN", "s", "1")[1]
        waits.raw(encode("BEGIN", "s", "1", "WAIT", "60000") + encode("QUIT") + encode("BEGIN", "s", "never"))
        assert wait_until(lambda: "parked:1" in works("INFO"))
        assert works("FINISH", "s", "1", fence, "SUCCEEDED", "done")[0] == "ok"
        assert waits.read()[0] == "replay" and waits.read() == "OK" and waits.ended()
        assert works("GET", "s", "never") == ["absent"], "nothing after QUIT is read"


@pytest.mark.parametrize("wrong", [b"*x\r\n", b"*1\r\n$999999999\r\n"])
def test_the_error_that_closes_comes_after_the_answers_before_it(where, wrong):
    with Server(where, store="memory:") as server, server.client() as waits, server.client() as works:
        fence = works("BEGIN", "s", "1")[1]
        waits.raw(encode("BEGIN", "s", "1", "WAIT", "60000") + wrong + encode("BEGIN", "s", "never"))
        assert wait_until(lambda: "parked:1" in works("INFO"))
        assert works("FINISH", "s", "1", fence, "SUCCEEDED", "done")[0] == "ok"
        assert waits.read()[0] == "replay"
        assert waits.read().word == "ERR" and waits.ended()
        assert works("GET", "s", "never") == ["absent"]


def test_a_second_signal_ends_a_server_that_still_has_something_to_send(where):
    with Server(where, "--drain-timeout", "60s", "--stall-timeout", "60s", store="memory:") as server, server.client() as works:
        fence = works("BEGIN", "s", "1")[1]
        assert works("FINISH", "s", "1", fence, "SUCCEEDED", "x" * 900000)[0] == "ok"
        lazy = server.client()
        before = figure(works, "total_commands_processed")
        lazy.raw(encode("GET", "s", "1", "FULL") * 8)
        assert wait_until(lambda: figure(works, "total_commands_processed") >= before + 8)
        server.send(signal.SIGTERM)
        assert wait_until(lambda: "event=draining" in server.output())
        start = time.monotonic()
        with pytest.raises(OSError):
            connect(server.socket).close()
        assert server.process.poll() is None
        server.send(signal.SIGTERM)
        assert server.wait(30) == 0 and time.monotonic() - start < 30
        lazy.close()


def figure(client, name):
    return next(int(line.split(":")[1]) for line in client("INFO").splitlines() if line.startswith(name + ":"))


def test_a_waiting_client_is_answered_when_the_server_stops(where):
    with Server(where, store="memory:") as server, server.client() as waits, server.client() as works:
        works("BEGIN", "s", "1")
        waits.raw(encode("BEGIN", "s", "1", "WAIT", "60000", "TAG", "7") + encode("PING"))
        assert wait_until(lambda: "parked:1" in works("INFO"))
        assert server.stop() == 0
        told = [waits.read(), waits.read()]
        assert "PONG" in told and any("CLOSED" in str(t) for t in told), told
        assert waits.ended()


def test_a_second_signal_does_not_wait_for_a_delayed_answer(where):
    with open(os.open(where + "/credentials", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write("ann s3cret use\n")
    with Server(where, "--credentials", where + "/credentials", listen=True, store="memory:") as server, server.client(tcp=True) as wrong:
        assert wrong("AUTH", "ann", "wrong").word == "WRONGPASS"
        wrong.send("AUTH", "ann", "wrong")
        assert wait_until(lambda: server.output().count("event=auth-failed") == 2), server.output()
        server.send(signal.SIGTERM)
        assert wait_until(lambda: "event=draining" in server.output())
        server.send(signal.SIGTERM)
        assert server.wait(30) == 0


def test_only_the_wait_with_this_tag_is_cancelled(where):
    with Server(where, store="memory:") as server, server.client() as waits, server.client() as works:
        fence = works("BEGIN", "s", "1")[1]
        for tag in (1, 2):
            waits.send("BEGIN", "s", "1", "WAIT", "60000", "TAG", tag)
        assert wait_until(lambda: figure(works, "parked") == 2)
        waits.send("CANCEL", "2")
        told = [waits.read(), waits.read()]
        assert "OK" in told and any("CLOSED" in str(t) for t in told) and figure(works, "parked") == 1, told
        assert waits("CANCEL", "2") == "OK" and waits("CANCEL", "7") == "OK", "there is no such wait, and that is fine"
        assert works("FINISH", "s", "1", fence, "SUCCEEDED", "done")[0] == "ok"
        assert "replay" in str(waits.read())
