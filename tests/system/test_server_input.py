"""idem serve and bad input: malformed RESP, limits, slow and silent clients, credentials and rights. Waits more than it works."""
import contextlib
import hashlib
import http.client
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from lib import IDEM, SANITIZED, Process, Resp, Server, encode, folder, free_port, wait_until


@pytest.fixture(scope="module")
def server():
    with folder() as where, Server(where, listen=True) as s:
        yield s


@pytest.fixture
def hasty():
    """Soon tired of clients that are slow."""
    with folder() as where, Server(where, "--stall-timeout", "2s", listen=True) as s:
        yield s


@pytest.fixture
def c(server):
    with server.client() as client:
        yield client


# ---- what is not RESP ------------------------------------------------------

@pytest.mark.parametrize("bytes_, told", [
    (b"*2\r\n+PING\r\n", "expected '$', got '+'"),
    (b"*1\r\n\xff\r\n", "expected '$', got ' '"),
    (b"*abc\r\n", "invalid multibulk length"),
    (b"*99999999999999999999999\r\n", "invalid multibulk length"),
    (b"*2000000\r\n", "invalid multibulk length"),
    (b"*65\r\n", "more than 64 arguments"),
    (b"*1\n$4\nPING\n$4\nPING\n     ", "invalid multibulk length"),
    (b"*1\r\n$-1\r\n", "invalid bulk length"),
    (b"*1\r\n$x\r\n", "invalid bulk length"),
    (b"*1\r\n$ 4\r\nPING\r\n", "invalid bulk length"),
    (b"*1\r\n$4\rXPING\r\n", "invalid bulk length"),
    (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
    (b"*1\r\n$4\r\nPINGxx", "does not end in CRLF"),
    (b"*1\r\n$104857600\r\n", "longer than the limit"),
    (b"*3\r\n$3\r\nGET\r\n$1100000\r\n" + b"x" * 1100000 + b"\r\n$1100000\r\n", "longer than the limit"),
    (b"x" * 20000, "too big inline request"),
    (b'PING "unbalanced\r\n', "unbalanced quotes"),
    (b'PING "a"b\r\n', "unbalanced quotes"),
    (b"PING" + b" x" * 70 + b"\r\n", "more than 64 arguments"),
    (b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n", "this is HTTP"),
    (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\nBEGIN web page\r\n", "this is HTTP"),
])
def test_a_protocol_error_is_told_and_closes(c, bytes_, told):
    c.raw(encode("PING", "before") + bytes_)
    assert c.read() == "before"
    error = c.read()
    assert error.word == "ERR" and told in str(error) and "Protocol error" in str(error)
    assert c.ended()


def test_http_gets_an_answer_that_http_clients_show(server):
    with server.client() as web:
        web.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = web.file.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"Content-Length: %d\r\n" % len(body) in head, head
    assert body == b"Protocol error: this is HTTP, and this port speaks RESP; idem serve --http takes HTTP\n"


def test_a_web_page_cannot_send_commands(server, c):
    """A browser lets any page send a POST to any port, and its body could be lines of commands."""
    with server.client() as page, contextlib.suppress(ConnectionResetError):
        page.raw(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\r\nBEGIN web page\r\n")
        page.file.read()
    assert c("GET", "web", "page") == ["absent"]
    assert c("BEGIN", "web", "HTTP/1.1")[0] == "started"  # in an array, any word is a word


@pytest.mark.parametrize("command, told", [
    (["NOSUCH"], "unknown command 'NOSUCH'"),
    (["SET", "a", "b"], "unknown command 'SET': this is idem, not Redis"),
    (["GET", "a"], "wrong number of arguments for 'GET' command of idem"),
    (["\r\n\x01bad"], "unknown command '???bad'"),
    ([""], "unknown command ''"),
    (["BEGIN"], "wrong number of arguments for 'BEGIN'"),
    (["BEGIN", "s"], "wrong number of arguments"),
    (["GET", "s", "i", "more"], "no option \"more\""),
    (["BEGIN", "", "i"], "scope"),
    (["BEGIN", "s", ""], "id"),
    (["BEGIN", "s" * 201, "i"], "scope"),
    (["BEGIN", "s", "i" * 256], "id"),
    (["BEGIN", "s\0", "i"], "scope"),
    (["BEGIN", "s", "i", "SOON"], 'BEGIN has no option "SOON"'),
    (["BEGIN", "s", "i", "LEASE"], "LEASE lacks its value"),
    (["BEGIN", "s", "i", "LEASE", "1", "LEASE", "2"], "LEASE is given twice"),
    (["BEGIN", "s", "i", "STRICT", "LOOSE"], "given twice"),
    (["BEGIN", "s", "i", "LEASE", "-1"], "milliseconds"),
    (["BEGIN", "s", "i", "LEASE", "1.5"], "milliseconds"),
    (["BEGIN", "s", "i", "LEASE", "9" * 19], "milliseconds"),
    (["BEGIN", "s", "i", "LEASE", "9" * 17], "out of range"),
    (["BEGIN", "s", "i", "TTL", "x"], "milliseconds"),
    (["BEGIN", "s", "i", "FP", "aa"], "FP has 64 hex digits"),
    (["BEGIN", "s", "i", "FP", "zz" * 32], "FP has 64 hex digits"),
    (["BEGIN", "s", "i", "NONCE", "12"], "NONCE has 16 hex digits"),
    (["FINISH", "s", "i", "0", "SUCCEEDED", ""], "fence"),
    (["FINISH", "s", "i", "x", "SUCCEEDED", ""], "fence"),
    (["FINISH", "s", "i", str(2 ** 53), "SUCCEEDED", ""], "fence"),
    (["FINISH", "s", "i", "1", "MAYBE", ""], "SUCCEEDED or FAILED"),
    (["FINISH", "s", "i", "1", "SUCCEEDED", "", "KIND", "pdf"], "KIND is"),
    (["SETTLE", "s", "i", "AS", "SUCCEEDED"], "AS lacks its value"),
    (["SETTLE", "s", "i", "REASON", "x" * 300, "AS", "FAILED", ""], "subject"),
    (["ISSUE", "s", "COUNT", "0"], "count"),
    (["ISSUE", "s", "COUNT", "1001"], "count"),
    (["ISSUE", "s" * 201], "scope"),
    (["LOCK", "n", "", "1000"], "owner"),
    (["LOCK", "n", "o", "soon"], "milliseconds"),
    (["SCAN", ""], "cursor"),
    (["SCAN", "x" * 200], "cursor"),
    (["SCAN", "0", "STATE", "odd"], "STATE is"),
    (["SCAN", "0", "SCOPE", ""], "SCOPE is empty"),
    (["PING", "a", "b"], "wrong number of arguments"),
    (["HELLO", "2", "BAD"], "syntax error in HELLO"),
    (["HELLO", "2", "AUTH", "x"], "syntax error in HELLO"),
    (["HELLO", "2", "SETNAME"], "syntax error in HELLO"),
    (["CLIENT", "KILL"], "CLIENT knows ID"),
    (["CONFIG", "SET", "save"], "only CONFIG GET is supported"),
    (["CONFIG", "GET"], "only CONFIG GET is supported"),
    (["ID", "uuid7", "x"], "the count is 1 to 1000"),
    (["ID", "uuid7", "0"], "the count is 1 to 1000"),
    (["ID", "uuid7", "1001"], "the count is 1 to 1000"),
    (["CANCEL", "x"], "CANCEL needs a tag"),
    (["ROLLBACK", "REFUSE"], "give ROLLBACK ACCEPT"),
    (["ROLLBACK", "ACCEPT", "REASON"], "give ROLLBACK ACCEPT"),
    (["ROLLBACK", "ACCEPT", "WHY", "x"], "give ROLLBACK ACCEPT"),
    (["AUDIT", "WHO"], "syntax error: AUDIT"),
    (["AUDIT", "WHO", "me"], "syntax error: AUDIT"),
    (["AUDIT", "COUNT", "x"], "syntax error: AUDIT"),
    (["AUDIT", "COUNT", "0"], "syntax error: AUDIT"),
    (["AUDIT", "COUNT", "1001"], "syntax error: AUDIT"),
])
def test_a_wrong_command_is_told_and_the_connection_goes_on(c, command, told):
    error = c(*command)
    assert error.word == "ERR" and told in str(error)
    tagged = c(*command, "TAG", 5)
    if "arguments" not in told:
        assert tagged[:4] == ["tag", 5, "error", "ERR"]
        assert told in str(tagged[4]) or "unknown command" in str(tagged[4])
    elif len(command) > 1:  # what is missing cannot be told from the tag, but it is an error all the same
        assert tagged[:4] == ["tag", 5, "error", "ERR"]
    assert c("PING") == "PONG"


def test_a_scope_can_require_a_fingerprint():
    """Without it, another payload under the same id could be taken for a repeat."""
    one, two = "1" * 64, "2" * 64
    port = free_port()
    with folder() as where, Server(where, "--require-fingerprint", "pay, shop-*", "--http", "127.0.0.1:%d" % port,
                                   store="memory:") as server, server.client() as c:
        for scope in ("pay", "shop-", "shop-eu"):
            for rest in ((), ("WAIT", 1000), ("TOKEN",)):
                told = c("BEGIN", scope, "x", *rest)
                assert told.word == "ERR" and "fingerprint" in str(told) and scope in str(told)
            assert c("BEGIN", scope, "x", "FP", one)[0] == "started"
            assert c("BEGIN", scope, "x", "FP", two)[0] == "mismatch"
            assert c("GET", scope, "x")[0] == "record"
        for scope in ("payment", "shop", "Pay"):
            assert c("BEGIN", scope, "x")[0] == "started"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for body, status in (("{}", 400), (json.dumps({"fingerprint": one}), 200)):
            connection.request("POST", "/v1/records/pay/http/begin", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == status and ("fingerprint" in text) == (status == 400), text
        connection.close()


def test_a_tag_out_of_range_is_an_error(c):
    for tag in "-1", str(2 ** 53), "x", "":
        assert "TAG" in str(c("GET", "s", "i", "TAG", tag))


def test_keys_and_results_may_be_any_bytes(c):
    scope, id_ = bytes(range(1, 201)), bytes(range(1, 256))
    fence = c("BEGIN", scope, id_)[1]
    result = bytes(range(256)) * 16 + b"\r\n$5\r\n*3\r\n"
    assert c("FINISH", scope, id_, fence, "SUCCEEDED", result)[0] == "ok"
    assert c("BEGIN", scope, id_)[4] == result


def test_a_result_of_the_limit_fits_and_one_over_it_does_not(c):
    fence = c("BEGIN", "limit", "fits")[1]
    assert c("FINISH", "limit", "fits", fence, "SUCCEEDED", b"r" * 1048576)[0] == "ok"
    assert len(c("BEGIN", "limit", "fits")[4]) == 1048576
    fence = c("BEGIN", "limit", "over")[1]
    answer = c("FINISH", "limit", "over", fence, "SUCCEEDED", b"r" * (1048576 + 1000))
    assert answer[0] == "ok" or answer.word in ("ERR", "FULL")


def test_a_bulk_of_100_mb_is_refused_without_being_kept(server):
    with server.client() as c, server.client() as other:
        other("PING")
        before = server.rss_kib()
        c.raw(b"*6\r\n$6\r\nFINISH\r\n$1\r\ns\r\n$1\r\ni\r\n$1\r\n1\r\n$9\r\nSUCCEEDED\r\n$104857600\r\n")

        def pour():
            try:
                for _ in range(100):
                    c.raw(b"x" * 1048576)
            except OSError:
                pass  # the server closed: as it should

        thread = threading.Thread(target=pour)
        thread.start()
        assert "longer than the limit" in str(c.read())
        assert other("PING") == "PONG"
        thread.join(20)
        assert not thread.is_alive()
        if not SANITIZED:
            assert server.rss_kib() - before < 20 * 1024


def test_commands_may_arrive_byte_by_byte(c):
    for byte in encode("BEGIN", "slow", "typist") + b"PING\r\n":
        c.raw(bytes([byte]))
    assert c.read()[0] == "started"
    assert c.read() == "PONG"


def test_a_large_command_may_arrive_in_pieces(c):
    fence = c("BEGIN", "pieces", "1")[1]
    whole = encode("FINISH", "pieces", "1", fence, "SUCCEEDED", os.urandom(700000)) + encode("PING")
    for at in range(0, len(whole), 50001):
        c.raw(whole[at:at + 50001])
    assert c.read()[0] == "ok"
    assert c.read() == "PONG"


# ---- slow and silent clients -----------------------------------------------

def test_a_half_sent_command_is_closed_in_time(hasty):
    with hasty.client() as c, hasty.client() as other:
        c.raw(b"*2\r\n$4\r\nPING\r\n$100\r\nhalf")
        assert other("PING") == "PONG"
        assert "did not come" in str(c.read())
        assert c.ended()


def test_an_idle_client_is_left_alone_or_closed_as_configured(hasty):
    with hasty.client() as c:
        time.sleep(2.5)  # longer than the stall-timeout of this server
        assert c("PING") == "PONG"
    with folder() as where, Server(where, "--idle-timeout", "4s", store="memory:") as s, s.client() as idle:
        assert idle("PING") == "PONG"
        assert idle.ended()


def test_a_client_that_waited_for_its_answer_was_not_idle():
    with folder() as where, Server(where, "--idle-timeout", "4s", store="memory:") as s, s.client() as waiter:
        with s.client() as holder:
            assert holder("BEGIN", "idle", "1", "LEASE", "60000")[0] == "started"
            assert waiter("BEGIN", "idle", "1", "WAIT", "5000")[0] == "busy"
        time.sleep(0.5)
        assert waiter("PING") == "PONG"
        assert waiter.ended()


def test_clients_that_rested_are_all_answered(hasty):
    """One after another they wake the server, so that each of its rounds that looks for stalled clients has a
    reply to send to one that wrote nothing for longer than the stall-timeout."""
    clients = [hasty.client() for _ in range(300)]
    time.sleep(2.5)
    end = time.monotonic() + 1
    for i, client in enumerate(clients):
        assert client("PING", str(i)) == str(i)
        time.sleep(max(0, end - time.monotonic()) / (len(clients) - i))
    for client in clients:
        client.close()


def keep_a_long_result(c, *key):
    assert c("FINISH", *key, c("BEGIN", *key)[1], "SUCCEEDED", b"x" * 900000)[0] == "ok"


def test_a_reader_that_does_not_read_is_closed_and_harms_nobody(hasty):
    with hasty.client() as c, hasty.client() as slow:
        keep_a_long_result(c, "slow", "reader")
        slow.raw(encode("GET", "slow", "reader") * 10)
        answered, end = 0, time.monotonic() + 60
        while "not read" not in hasty.output() and time.monotonic() < end:
            assert c("PING") == "PONG"
            answered += 1
        assert "not read" in hasty.output() and answered > 5  # who waits until the other is closed gets one


def test_a_reader_that_asks_on_and_on_is_closed_in_bounded_memory(hasty):
    with hasty.client() as c, hasty.client() as slow:
        keep_a_long_result(c, "slow", "reader")
        before = hasty.rss_kib()

        def ask():
            try:
                for _ in range(200):
                    slow.raw(encode("GET", "slow", "reader") * 20)
            except OSError:
                pass

        thread = threading.Thread(target=ask)
        thread.start()
        assert wait_until(lambda: "not read" in hasty.output() or "max-output" in hasty.output())
        thread.join(20)
        assert not thread.is_alive() and c("PING") == "PONG"
        if not SANITIZED:
            assert hasty.rss_kib() - before < 120 * 1024


def test_a_server_that_was_away_does_not_blame_its_clients(hasty):
    """The client read all that was sent while the server stood still, which is longer than the stall-timeout."""
    with hasty.client() as c, hasty.client() as late:
        keep_a_long_result(c, "away", "1")
        late.raw(encode("GET", "away", "1") * 10)
        assert wait_until(lambda: has_more(late))
        hasty.send(signal.SIGSTOP)
        try:
            time.sleep(2.5)
            got = 0
            while has_more(late):
                got += len(late.socket.recv(1 << 20))
        finally:
            hasty.send(signal.SIGCONT)
        while got < 9000000:
            part = late.socket.recv(1 << 20)
            assert part, "closed after %d bytes" % got
            got += len(part)


def has_more(client):
    return bool(select.select([client.socket], [], [], 0)[0])


SLOW_DISK = """#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int fdatasync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    while (access(getenv("SLOW_DISK"), F_OK) == 0)
        usleep(10000);
    return real(fd);
}
"""


def test_a_slow_commit_is_not_held_against_who_waits_for_it():
    with folder() as where:
        library, slow = where + "/slow.so", where + "/slow"
        subprocess.run(["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=SLOW_DISK,
                       text=True, check=True)
        asan = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        with Server(where, "--stall-timeout", "2s", env={"LD_PRELOAD": library, "SLOW_DISK": slow,
                                                         "ASAN_OPTIONS": asan}) as s, s.client() as c:
            keep_a_long_result(c, "s", "1")
            open(slow, "w").close()
            c.raw(encode("BEGIN", "s", "2") + encode("GET", "s", "1") * 10)
            time.sleep(2.5)
            os.unlink(slow)
            time.sleep(0.3)  # it may take a breath, too
            assert c.read()[0] == "started"
            assert [c.read()[0] for _ in range(10)] == ["record"] * 10


def test_beyond_max_output_of_unread_replies_a_client_waits_and_loses_nothing():
    with folder() as where, Server(where, "--max-output", "1m", store="memory:") as s, s.client() as c:
        fence = c("BEGIN", "k", "1")[1]
        c("FINISH", "k", "1", fence, "SUCCEEDED", b"x" * 300000)
        with s.client() as slow:
            slow.raw(encode("GET", "k", "1") * 60)
            time.sleep(0.5)
            assert c("PING") == "PONG"
            assert [len(slow.read()[-1]) for _ in range(60)] == [300000] * 60
        assert "client-closed" not in s.output()


def test_one_reply_longer_than_max_output_closes():
    with folder() as where, Server(where, "--max-output", "64k", store="memory:") as s, s.client() as c:
        for i in range(1000):
            c("BEGIN", "k", "x" * 250 + str(i))
        with s.client() as eager:
            eager.send("SCAN", "0", "COUNT", 1000)
            assert eager.ended()
        assert "max-output" in s.output() and c("PING") == "PONG"


def test_buffers_of_all_clients_together_are_bounded():
    """Half-sent large commands of many clients: some are closed, nobody else suffers."""
    with folder() as where, Server(where, "--max-buffered", "4m", store="memory:") as s, s.client() as c:
        half = b"*2\r\n$4\r\nECHO\r\n$1000000\r\n" + b"x" * 900000
        clients = [s.client() for _ in range(20)]
        for client in clients:
            try:
                client.raw(half)
            except OSError:
                pass
        assert wait_until(lambda: s.output().count("max-buffered is reached") >= 10)
        assert c("PING") == "PONG"
        buffered = next(line for line in c("INFO").splitlines() if line.startswith("buffered_bytes"))
        assert int(buffered.split(":")[1]) < 8 * 1048576
        for client in clients:
            client.close()


def test_more_clients_than_the_limit_are_told():
    with folder() as where, Server(where, "--max-clients", "5", store="memory:") as s:
        clients = [s.client()]
        assert wait_until(lambda: "connected_clients:1\r" in clients[0]("INFO"))  # who looked whether it listens has gone
        clients += [s.client() for _ in range(4)]
        assert [c("PING") for c in clients] == ["PONG"] * 5
        with s.client() as extra:
            assert "max number of clients" in str(extra.read())
        clients.pop().close()
        assert wait_until(lambda: not isinstance(ping_fresh(s), Exception))


def ping_fresh(server):
    with server.client() as c:
        try:
            return c("PING")
        except (OSError, EOFError) as e:
            return e


def test_a_server_out_of_file_descriptors_recovers():
    with folder() as where:
        argv = ["prlimit", "--nofile=40:40", IDEM, "serve", "--store", "memory:", "--socket", where + "/s"]
        if os.getuid() == 0:  # root could raise the limit again
            os.chmod(where, 0o755)
            os.chown(where, 65534, 65534)
            argv = ["prlimit", "--nofile=40:40", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv[2:]]
        with Process(argv, ready=where + "/s") as s:
            assert "few-files" in s.output()
            clients = []
            for _ in range(60):
                try:
                    clients.append(Resp(where + "/s", 2))
                except OSError:
                    break
            served = 0
            for client in clients:
                try:
                    served += client("PING") == "PONG"
                except (OSError, EOFError):
                    pass
            assert 5 <= served <= 40
            for client in clients:
                client.close()
            assert wait_until(lambda: pong(where + "/s"))


def pong(where):
    try:
        with Resp(where, 2) as c:
            return c("PING") == "PONG"
    except (OSError, EOFError):
        return False


def test_resets_and_rubbish_do_not_disturb_others(server, c):
    for i in range(150):
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall([b"", b"*3\r\n$5\r\nBEG", os.urandom(200), encode("BEGIN", "rst", i), b"GET / HTTP/1.1\r\n\r\n"][i % 5])
        if i % 2:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    assert c("PING") == "PONG"
    assert wait_until(lambda: "connected_clients:1\r" in c("INFO"))


# ---- credentials and rights ------------------------------------------------

SECRET, OPS_SECRET, HASHED = "shop-secret-0123456789", "ops-secret-0123456789", "hashed-secret-0123456789"


def blake2b(text):
    return "{blake2b}" + hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def write_credentials(where, *lines, mode=0o600):
    path = os.path.join(where, "credentials")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    os.chmod(path, mode)
    return path


LINES = ("# name secret right scopes", "shop %s use shop refunds" % SECRET, "any %s use" % blake2b(HASHED),
         "ops %s operate" % OPS_SECRET, "tenant %s operate shop" % ("t" + SECRET), "default %s use" % ("d" + SECRET))


@pytest.fixture(scope="module")
def guarded():
    with folder() as where:
        with Server(where, "--credentials", write_credentials(where, *LINES), "--log-level", "debug", listen=True,
                    store="memory:") as s:
            s.where = where
            yield s


def log_in(s, name, secret):
    c = s.client()
    assert c("AUTH", name, secret) == "OK"
    return c


def test_without_auth_nothing_is_answered(guarded):
    with guarded.client() as c:
        for command in (["PING"], ["BEGIN", "shop", "1"], ["GET", "shop", "1"], ["INFO"], ["SCAN", "0"], ["HELLO", "2"]):
            assert c(*command).word == "NOAUTH"
        assert c("HELLO", 2, "AUTH", "shop", "wrong").word == "WRONGPASS"
        assert c("HELLO", 2, "AUTH", "shop", SECRET)[0] == "server"
        assert c("PING") == "PONG"
        assert c("RESET") == "RESET" and c("PING").word == "NOAUTH"
        assert c("QUIT") == "OK"


def test_before_auth_commands_are_small(guarded):
    with guarded.client() as c:
        c.raw(b"*2\r\n$4\r\nPING\r\n$20000\r\n")
        assert "longer than the limit" in str(c.read())


def test_a_wrong_secret_is_slow_and_the_fifth_closes(guarded):
    with guarded.client() as c:
        start = time.monotonic()
        assert c("AUTH", "shop", "wrong").word == "WRONGPASS"
        assert c("AUTH", "nobody", SECRET).word == "WRONGPASS"
        assert time.monotonic() - start > 0.5
    with guarded.client(timeout=30) as c, guarded.client() as other:
        c.raw(encode("AUTH", "ops", "wrong") * 5 + encode("PING"))
        assert other("AUTH", "ops", OPS_SECRET) == "OK"  # nobody else waits
        for _ in range(5):
            assert c.read().word == "WRONGPASS"
        assert c.ended()


def test_guessing_on_many_connections_is_slow_and_holds_up_nobody(guarded):
    guessers = [guarded.client(timeout=30) for _ in range(60)]
    start = time.monotonic()
    for i, c in enumerate(guessers):
        c.send("AUTH", "ops", "guess-%d" % i)
    with guarded.client() as c:
        assert c("AUTH", "ops", OPS_SECRET) == "OK"
        assert not all(has_more(guesser) for guesser in guessers)
    for c in guessers:
        assert c.read().word == "WRONGPASS"
        c.close()
    assert 3 < time.monotonic() - start < 40


RIGHTS = [  # command, shop, any, ops, tenant (operates the scope shop only)
    (["BEGIN", "shop", "r{}"], "yes", "yes", "yes", "yes"),
    (["BEGIN", "other", "r{}"], "no", "yes", "yes", "no"),
    (["GET", "other", "x"], "no", "yes", "yes", "no"),
    (["SETTLE", "other", "x{}"], "no", "yes", "yes", "no"),
    (["SETTLE", "shop", "x{}", "AS", "FAILED", ""], "no", "no", "yes", "yes"),
    (["FORGET", "shop", "x"], "no", "no", "yes", "yes"),
    (["FORGET", "other", "x"], "no", "no", "yes", "no"),
    (["SCAN", "0"], "no", "no", "yes", "no"),
    (["SCAN", "0", "SCOPE", "shop"], "no", "no", "yes", "yes"),
    (["ISSUE", "shop"], "yes", "yes", "yes", "yes"),
    (["REDEEM", "t", "other"], "no", "yes", "yes", "no"),
    (["LOCK", "l{}", "me", "1000"], "no", "yes", "yes", "no"),
    (["INFO"], "yes", "yes", "yes", "yes"),
]


def test_rights_and_scopes(guarded):
    who = [("shop", SECRET), ("any", HASHED), ("ops", OPS_SECRET), ("tenant", "t" + SECRET)]
    for column, (name, secret) in enumerate(who):
        with log_in(guarded, name, secret) as c:
            for row, (command, *expected) in enumerate(RIGHTS):
                answer = c(*[a.format("%d-%d" % (column, row)) for a in command])
                refused = isinstance(answer, Exception) and answer.word == "NOPERM"
                assert refused == (expected[column] == "no"), (name, command, answer)
    with guarded.client() as c:
        assert c("AUTH", "d" + SECRET) == "OK"  # without a name: "default"


def test_secrets_and_keys_are_not_in_the_log(guarded):
    with log_in(guarded, "ops", OPS_SECRET) as c, guarded.client() as wrong:
        c("FORGET", "confidential-scope", "confidential-id")
        wrong("AUTH", "shop", "a-wrong-secret")
    log = guarded.output()
    assert "event=operator verb=forget who=ops first=- key=" in log and "auth-failed" in log
    for word in (SECRET, OPS_SECRET, HASHED, "a-wrong-secret", "confidential", blake2b(HASHED)):
        assert word not in log


def test_keys_are_logged_when_asked_for():
    with folder() as where, Server(where, "--log-keys", "--log-format", "json", store="memory:") as s, s.client() as c:
        c("FORGET", 'sco"pe', b"\x1b[31mid\xff")
        assert wait_until(lambda: '"scope":"sco\\"pe","id":"\\u001b[31mid\\u00ff"' in s.output()), s.output()


def test_sighup_rereads_credentials():
    with folder() as where:
        path = write_credentials(where, "a secret-a use", "b secret-b use")
        with Server(where, "--credentials", path, store="memory:") as s:
            a, b = log_in(s, "a", "secret-a"), log_in(s, "b", "secret-b")
            write_credentials(where, "b secret-b use", "new secret-new operate")
            s.send(signal.SIGHUP)
            assert wait_until(lambda: "event=reread " in s.output())
            assert a("PING").word == "NOAUTH"
            assert b("PING") == "PONG"
            with log_in(s, "new", "secret-new") as c:
                assert c("SCAN", "0")[0] == "records"
            write_credentials(where, "broken")
            s.send(signal.SIGHUP)
            assert wait_until(lambda: "reread-failed" in s.output())
            assert b("PING") == "PONG"
            a.close(), b.close()


def test_the_socket_may_be_trusted():
    with folder() as where:
        path = write_credentials(where, "a secret-a use")
        with Server(where, "--credentials", path, "--trust-socket", listen=True, store="memory:") as s:
            with s.client() as c:
                assert c("FORGET", "x", "y") == ["absent"]
            with s.client(tcp=True) as c:
                assert c("PING").word == "NOAUTH"


@pytest.mark.parametrize("lines, mode, told", [
    (["a secret use"], 0o644, "every user can read it"),
    (["a secret"], 0o600, "line 1: the third word is a right"),
    (["", "a secret rule"], 0o600, "line 2: the third word is a right"),
    (["a {blake2b}12 use"], 0o600, "64 hex digits"),
    (["a s use", "a t use"], 0o600, "line 2: this name is on two lines"),
    (["# nothing"], 0o600, "holds no credential"),
    (["a:b s use"], 0o600, "no colon"),
    (["n" * 65 + " s use"], 0o600, "1 to 64 visible"),
    (["a"], 0o600, "give: name"),
    (["a cert: use"], 0o600, "a common name of 1 to 64"),
    (["a cert:%s use" % ("c" * 65)], 0o600, "a common name of 1 to 64"),
    (["a cert:c use", "b cert:c use"], 0o600, "this certificate is on two lines"),
    (["a s use " + " ".join(map(str, range(65)))], 0o600, "more than 64 scopes"),
    (["a s use " + "x" * 201], 0o600, "a scope has 1 to 200 bytes"),
    (["a s use a\0b"], 0o600, "a scope has 1 to 200 bytes"),
    (["# " + "x" * 1048576], 0o600, "over 1 MiB"),
])
def test_a_wrong_credentials_file_is_refused(lines, mode, told):
    with folder() as where:
        path = write_credentials(where, *lines, mode=mode)
        run = subprocess.run([IDEM, "serve", "--credentials", path, "--store", "memory:", "--check"],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode == 2 and told in run.stderr and "secret" not in run.stderr.replace("name secret", "")


def test_listening_wider_needs_credentials():
    with folder() as where:
        argv = [IDEM, "serve", "--store", "memory:", "--socket", where + "/s", "--listen"]
        run = subprocess.run([*argv, "0.0.0.0:%d" % free_port()], capture_output=True, text=True, timeout=60)
        assert run.returncode == 2 and "--credentials FILE" in run.stderr and "chmod 600" in run.stderr
        path = write_credentials(where, "a secret-a use")
        port = free_port()
        with Process([*argv, "0.0.0.0:%d" % port, "--credentials", path], ready=port), Resp(port) as c:
            assert c("PING").word == "NOAUTH"
