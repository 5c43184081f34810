"""idem serve over TLS, idems://, client certificates; what is refused, and how it is said."""
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import types

import pytest

import servers
from lib import IDEM, ROOT, Resp, Server, connect, encode, folder, free_port, wait_until


@pytest.fixture(scope="module")
def files():
    """Two authorities, certificates of ours for servers, for clients and for another host."""
    with folder() as where:
        ca, cert, key = servers.authority(where, "ours")
        made = types.SimpleNamespace(where=where, ca=ca, cert=cert, key=key, other=servers.authority(where, "other"))
        made.shop = servers.certificate(where + "/ours-ca", where + "/shop", "shop.example")
        made.stranger = servers.certificate(where + "/ours-ca", where + "/stranger", "stranger.example")
        made.elsewhere = servers.certificate(where + "/ours-ca", where + "/elsewhere", host="DNS:elsewhere.example")
        yield made


def tls_flags(files, *more):
    return ("--tls-cert", files.cert, "--tls-key", files.key, *more)


@pytest.fixture(scope="module")
def server(files):
    with folder() as where, Server(where, *tls_flags(files), "--stall-timeout", "2s", listen=True, http=True) as s:
        yield s


def url(server, files, **more):
    """idems:// of a server; more: options, None for none of that name."""
    options = {"ca": files.ca, **more}
    return "idems://127.0.0.1:%d?%s" % (server.port, "&".join("%s=%s" % o for o in options.items() if o[1]))


def idem(*args, **env):
    """Exit status, and all that it says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
    done = subprocess.run([IDEM, *args], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          env={**clean, **env})
    return done.returncode, done.stdout


def encrypted(server, files, timeout=60, cert=None):
    """A RESP client that speaks TLS."""
    context = ssl.create_default_context(cafile=files.ca)
    if cert:
        context.load_cert_chain(*cert)
    client = Resp.__new__(Resp)
    client.socket = context.wrap_socket(connect(server.port, timeout), server_hostname="127.0.0.1")
    client.file = client.socket.makefile("rb")
    return client


def logged(server, *words):
    """A line of the log with all these words."""
    return wait_until(lambda: [line for line in server.output().splitlines() if all(w in line for w in words)])


# ---- those who may ---------------------------------------------------------

def test_redis_cli_and_every_way_of_the_command_line(server, files):
    done = subprocess.run(["redis-cli", "--tls", "--cacert", files.ca, "-p", str(server.port), "BEGIN", "cli", "1"],
                          text=True, capture_output=True, timeout=60)
    assert done.stdout.startswith("started"), done
    to = url(server, files)
    assert idem("get", "cli", "1", "--server", to)[0] == 0
    assert idem("get", "cli", "1", "--store", to)[0] == 0
    assert idem("get", "cli", "1", IDEM_SERVER=to)[0] == 0
    ran = [idem("run", "cli", "2", "--server", to, "--", "date", "+%s.%N") for _ in range(2)]
    assert ran[0][0] == 0 and ran[0] == ran[1]
    code, said = idem("id", "snowflake", "--server", to)
    assert code == 0 and said.strip().isdigit()
    code, said = idem("bench", "--server", to, "--clients", "4", "--time", "200ms")
    assert code == 0, said


def test_the_unix_socket_stays_plain(server):
    with server.client() as c:
        assert c("PING") == "PONG"


def test_large_results_both_ways_and_pipelines(server, files):
    """Longer than a record of TLS, a read and the socket's buffers."""
    with encrypted(server, files) as c:
        for size in (16383, 16384, 16385, 65536, 1000000):
            fence = c("BEGIN", "large", size)[1]
            c("FINISH", "large", size, fence, "SUCCEEDED", b"x" * size)
            assert c("BEGIN", "large", size)[4] == "x" * size
        threading.Thread(target=c.raw, args=(encode("GET", "large", 1000000, "FULL") * 20 + encode("PING") * 20000,)).start()
        time.sleep(0.2)  # let it pile up
        for _ in range(20):
            assert "x" * 1000000 in c.read()
        assert all(c.read() == "PONG" for _ in range(20000))


def test_two_hundred_calls_of_one_key_run_once(server, files):
    """All over TLS, all waiting for the one that runs."""
    runs, answers, start = [], [], threading.Barrier(200)

    def call():
        with encrypted(server, files) as c:
            start.wait(60)
            said = c("BEGIN", "storm", "1", "WAIT", "50000")
            if said[0] == "started":
                runs.append(1)
                time.sleep(0.2)
                c("FINISH", "storm", "1", said[1], "SUCCEEDED", "done")
                said = c("BEGIN", "storm", "1")
            answers.append((said[0], said[4]))

    threads = [threading.Thread(target=call) for _ in range(200)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert len(runs) == 1 and answers == [("replay", "done")] * 200


def test_idem_open_in_c(server, files):
    with folder() as where:
        source = where + "/c.c"
        with open(source, "w") as f:
            f.write("""
                #include <idem/idem.h>
                #include <stdio.h>
                int main(int argc, char **argv)
                {
                    struct idem_engine *engine;
                    struct idem_error err = {0};
                    struct idem_op op = {.verb = IDEM_BEGIN, .scope = idem_text("c"), .id = idem_text("1")};
                    struct idem_answer answer;
                    if (idem_open(argv[argc - 1], NULL, &engine, &err) || idem_do(engine, &op, &answer, &err))
                        return puts(err.text), 1;
                    puts(answer.verdict == IDEM_V_STARTED ? "started" : "another verdict");
                    idem_answer_clear(&answer);
                    idem_close(engine);
                    return 0;
                }""")
        libs = subprocess.run(["pkg-config", "--libs", "libsodium", "libxxhash", "jansson", "openssl"], text=True,
                              capture_output=True, check=True).stdout.split()
        subprocess.run(["gcc", "-I" + ROOT + "/include", source, "-o", where + "/c", "-L" + ROOT + "/build", "-lidem", *libs],
                       check=True)
        run = lambda to: subprocess.run([where + "/c", to], text=True, capture_output=True, timeout=60,  # noqa: E731
                                        env={**os.environ, "LD_LIBRARY_PATH": ROOT + "/build"}).stdout
        assert run(url(server, files)) == "started\n"
        assert "certificate" in run(url(server, files, ca=files.other[0]))


def test_quit_ends_the_encryption_too(server, files):
    """A client can tell the end from a connection that somebody cut."""
    context = ssl.create_default_context(cafile=files.ca)
    with context.wrap_socket(connect(server.port), server_hostname="127.0.0.1", suppress_ragged_eofs=False) as s:
        s.sendall(encode("PING") + encode("QUIT"))
        said = b""
        while data := s.recv(100):
            said += data
        assert said == b"+PONG\r\n+OK\r\n"


def test_who_looks_whether_the_port_is_open_is_no_refused_client(server, files):
    refused = server.output().count("event=tls-refused")
    for _ in range(5):
        connect(server.port).close()
    with encrypted(server, files) as c:
        assert c("PING") == "PONG"
        assert wait_until(lambda: "connected_clients:1\r\n" in c("INFO"))
    assert server.output().count("event=tls-refused") == refused


# ---- those who may not -------------------------------------------------------

def test_a_wrong_authority_or_host_is_refused(server, files):
    for _ in range(20):  # a reset of the client can overtake its alert
        code, said = idem("get", "s", "i", "--server", url(server, files, ca=files.other[0]))
        assert code != 0 and "the server's certificate: unable to get local issuer" in said, said
        if wait_until(lambda: "unknown ca" in server.output(), 2):
            break
    assert logged(server, "tls-refused", "unknown ca")
    code, said = idem("get", "s", "i", "--server", url(server, files).replace("127.0.0.1", "localhost"))
    assert code != 0 and "the server's certificate: hostname mismatch" in said, said
    code, said = idem("get", "s", "i", "--server", url(server, files, ca=None))
    assert code != 0 and "the server's certificate:" in said, said
    with folder() as where, Server(where, "--tls-cert", files.elsewhere[0], "--tls-key", files.elsewhere[1],
                                   listen=True) as wrong:
        code, said = idem("get", "s", "i", "--server", url(wrong, files))
        assert code != 0 and "the server's certificate: IP address mismatch" in said, said


def test_plain_to_tls_and_tls_to_plain_fail_at_once(server, files):
    with Resp(server.port) as c:
        assert "this port speaks TLS" in str(c("PING")) and c.ended()
    code, said = idem("get", "s", "i", "--server", "127.0.0.1:%d" % server.port)
    assert code != 0 and "this port speaks TLS: connect with idems://" in said, said
    with folder() as where, Server(where, listen=True) as plain:
        start = time.monotonic()
        code, said = idem("get", "s", "i", "--server", url(plain, files))
        assert code != 0 and "is TLS spoken on that port?" in said, said
        assert time.monotonic() - start < 4  # not after the 5 s of a connection attempt
        assert logged(plain, "protocol-error", "does not speak TLS")


def test_old_versions_of_tls_are_refused(server, files):
    context = ssl.create_default_context(cafile=files.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError), connect(server.port) as s:
        context.wrap_socket(s, server_hostname="127.0.0.1")
    assert logged(server, "tls-refused", "unsupported protocol")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=files.ca)
        context.minimum_version = context.maximum_version = version
        with connect(server.port) as s, context.wrap_socket(s, server_hostname="127.0.0.1") as t:
            t.sendall(b"PING\r\n")
            assert t.recv(100) == b"+PONG\r\n"


def test_a_handshake_that_does_not_end_is_cut(server, files):
    """Nothing sent, a part sent: after stall-timeout they are closed, and others are served meanwhile."""
    slow = [connect(server.port) for _ in range(50)]
    for s in slow[25:]:
        s.sendall(b"\x16\x03\x01\x02\x00\x01")
    with encrypted(server, files) as c:
        assert c("PING") == "PONG"
        for s in slow:
            s.settimeout(30)
            assert s.recv(100) == b""
            s.close()
        assert c("PING") == "PONG"
    assert logged(server, "client-closed", "TLS handshake")


def test_bad_settings_are_named(files):
    serve = lambda *flags: idem("serve", "--check", "--store", "memory:", *flags)  # noqa: E731
    listen = ("--listen", "127.0.0.1:1")
    assert serve(*tls_flags(files), *listen) == (0, "the configuration is fine\n")
    assert "need each other" in serve("--tls-cert", files.cert, *listen)[1]
    assert "need each other" in serve("--tls-client-ca", files.ca, *listen)[1]
    assert "give listen or http" in serve(*tls_flags(files))[1]
    assert "tls-cert=/nowhere: No such file" in serve("--tls-cert", "/nowhere", "--tls-key", files.key, *listen)[1]
    assert "tls-key=%s:" % files.other[2] in serve("--tls-cert", files.cert, "--tls-key", files.other[2], *listen)[1]
    assert "tls-client-ca=/nowhere:" in serve(*tls_flags(files, "--tls-client-ca", "/nowhere"), *listen)[1]
    assert "no credentials" in serve(*tls_flags(files), "--listen", "*:1")[1]
    with folder() as where:
        shutil.copy(files.key, where + "/key")
        os.chmod(where + "/key", 0o644)
        assert "every user can read it" in serve("--tls-cert", files.cert, "--tls-key", where + "/key", *listen)[1]
    assert "ca=/nowhere" in idem("get", "s", "i", "--server", "idems://127.0.0.1:1?ca=/nowhere")[1]
    assert "cert=" in idem("get", "s", "i", "--server", "idems://127.0.0.1:1?ca=%s&key=%s" % (files.ca, files.key))[1]
    assert "ca" in idem("get", "s", "i", "--server", "idem://127.0.0.1:1?ca=" + files.ca)[1]


# ---- client certificates ------------------------------------------------------

@pytest.fixture(scope="module")
def strict(files):
    """A server that wants client certificates, and knows shop by its certificate and ops by a secret."""
    with folder() as where:
        with open(os.open(where + "/credentials", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("shop cert:shop.example use shop\nops s3cret operate\n")
        with Server(where, *tls_flags(files, "--tls-client-ca", files.ca), "--credentials", where + "/credentials",
                    listen=True) as s:
            s.where = where
            yield s


def own(certificate):
    return {"cert": certificate[0], "key": certificate[1]}


def test_a_client_certificate_stands_for_a_credential(strict, files):
    with encrypted(strict, files, cert=files.shop) as c:
        assert c("BEGIN", "shop", "1")[0] == "started"
        assert c("BEGIN", "bank", "1").word == "NOPERM"
        assert c("AUTH", "ops", "s3cret") == "OK" and c("BEGIN", "bank", "1")[0] == "started"
        c("RESET")
        assert c("BEGIN", "bank", "2").word == "NOPERM" and c("BEGIN", "shop", "2")[0] == "started"
    assert idem("get", "shop", "1", "--server", url(strict, files, **own(files.shop)))[0] == 0
    with encrypted(strict, files, cert=files.stranger) as c:
        assert c("BEGIN", "shop", "3").word == "NOAUTH"
        for secret in ("", "cert:shop.example", "shop.example"):
            assert c("AUTH", "shop", secret).word == "WRONGPASS"
        assert c("AUTH", "ops", "s3cret") == "OK" and c("BEGIN", "shop", "3")[0] == "started"
    credentials = os.path.join(strict.where, "ops")
    with open(os.open(credentials, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write("ops s3cret\n")
    code, said = idem("get", "bank", "1", "--credentials", credentials, "--server", url(strict, files, **own(files.stranger)))
    assert code == 0, said


def test_no_certificate_or_a_foreign_one_is_refused(strict, files):
    code, said = idem("get", "shop", "1", "--server", url(strict, files))
    assert code != 0 and "certificate required: give cert=FILE and key=FILE" in said, said
    assert logged(strict, "tls-refused", "peer did not return a certificate")
    foreign = {"cert": files.other[1], "key": files.other[2]}
    code, said = idem("get", "shop", "1", "--server", url(strict, files, **foreign))
    assert code != 0 and "unknown ca" in said, said
    assert logged(strict, "tls-refused", "the client's certificate: unable to get local issuer")


def test_a_certificate_named_twice_is_an_error(files):
    with folder() as where:
        with open(os.open(where + "/c", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("a cert:same use\nb cert:same use\n")
        assert "line 2: this certificate is on two lines" in idem("serve", "--check", "--credentials", where + "/c")[1]
        with open(where + "/c", "w") as f:
            f.write("a cert: use\n")
        assert "line 1: cert: is followed by" in idem("serve", "--check", "--credentials", where + "/c")[1]


# ---- reload, faults -------------------------------------------------------------

def shown(port):
    """The certificate that a server shows, without a look at who signed it."""
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_sighup_rereads_the_certificate_and_a_bad_one_changes_nothing(files):
    with folder() as where:
        use = lambda cert, key: (shutil.copy(cert, where + "/cert"), shutil.copy(key, where + "/key"))  # noqa: E731
        use(files.cert, files.key)
        with Server(where, "--tls-cert", where + "/cert", "--tls-key", where + "/key", listen=True) as s, \
                encrypted(s, files) as old:
            before = shown(s.port)
            use(files.other[1], files.other[2])
            s.send(signal.SIGHUP)
            assert logged(s, "reread", "tls=" + where) and shown(s.port) != before
            with open(where + "/cert", "w") as f:
                f.write("no certificate")
            now = shown(s.port)
            s.send(signal.SIGHUP)
            assert logged(s, "reread-failed", "tls-cert=" + where) and shown(s.port) == now
            assert old("PING") == "PONG"  # who is connected stays so


class Cut(threading.Thread):
    """A proxy that closes each connection after so many bytes of the server's; None: never."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to, self.after, self.cuts = to, None, 0
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                one = self.listener.accept()[0]
            except OSError:
                return
            other = connect(self.to)
            threading.Thread(target=self.pump, args=(one, other, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(other, one, True), daemon=True).start()

    def pump(self, source, sink, replies):
        limit, self.after = (self.after, None) if replies else (None, self.after)
        try:
            while data := source.recv(65536):
                if limit is not None and len(data) >= limit:
                    sink.sendall(data[:limit])
                    self.cuts += 1
                    break
                limit = limit - len(data) if limit is not None else None
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_a_connection_cut_anywhere_repeats_nothing(server, files):
    """In the handshake, in the greeting and in the middle of a reply: a command runs once, whatever its client saw."""
    proxy = Cut(server.port)
    to = "idems://127.0.0.1:%d?ca=%s&timeout_ms=10000" % (proxy.port, files.ca)
    with folder() as where:
        for i, after in enumerate([1, 100, 1500, 2200, 2500, 2800, 3200, 3600, 4000, 5000, 7000]):
            proxy.after = after
            for _ in range(3):
                code, said = idem("run", "cut", str(i), "--server", to, "--", "sh", "-c", "echo x >> %s/%d" % (where, i))
                if code == 0:
                    break
            assert code == 0, said
            with open("%s/%d" % (where, i)) as f:
                assert f.read() == "x\n", after
    assert proxy.cuts >= 5
    proxy.listener.close()


# ---- HTTP -------------------------------------------------------------------------

def curl(port, path, *more):
    """The status, and what curl says: the body, or why there is none."""
    done = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", *more, "https://127.0.0.1:%d%s" % (port, path)],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    body, _, status = done.stdout.strip().rpartition("\n")
    return int(status), body


def test_http_speaks_tls(server, files):
    assert curl(server.http, "/healthz", "--cacert", files.ca)[0] == 200
    big = '{"result":"%s"}' % ("x" * 300000)
    status, body = curl(server.http, "/v1/records/https/1/begin", "--cacert", files.ca, "-H", "Content-Type: application/json",
                        "-d", '{"wait_ms":100}')
    assert status in (200, 201) and "started" in body, (status, body)
    assert curl(server.http, "/healthz", "--cacert", files.other[0])[0] == 0
    assert curl(server.http, "/healthz", "--cacert", files.ca, "--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0")[0] == 0
    assert curl(server.http, "/healthz", "--cacert", files.ca, "--tls-max", "1.2")[0] == 200
    with connect(server.http) as s:
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in s.recv(100)
    slow = connect(server.http)  # a handshake that does not end: stall-timeout is 2 s
    slow.sendall(b"\x16\x03\x01\x02\x00\x01")
    slow.settimeout(30)
    assert slow.recv(100) == b""
    slow.close()
    with encrypted(types.SimpleNamespace(port=server.http), files) as c:
        c.raw(b"POST /v1/records/https/2/begin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(big))
        c.raw(big.encode())
        assert b"HTTP/1.1 400" in c.file.readline()  # begin takes no result; all of the body was read


def test_http_and_client_certificates(files):
    with folder() as where:
        with open(os.open(where + "/credentials", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("shop cert:shop.example use shop\nops s3cret operate\n")
        with Server(where, *tls_flags(files, "--tls-client-ca", files.ca), "--credentials", where + "/credentials",
                    http=True) as s:
            def ask(path, cert, *more):
                shown = ("--cert", cert[0], "--key", cert[1]) if cert else ()
                return curl(s.http, path, "--cacert", files.ca, *shown, *more)
            begin = ("-X", "POST", "-H", "Content-Type: application/json", "-d", "{}")
            assert "started" in ask("/v1/records/shop/1/begin", files.shop, *begin)[1]
            assert ask("/v1/records/bank/1/begin", files.shop, *begin)[0] == 403
            assert ask("/v1/records/bank/1/begin", files.stranger, *begin)[0] == 401
            assert "started" in ask("/v1/records/bank/1/begin", files.stranger, "-H", "Authorization: Bearer ops:s3cret", *begin)[1]
            for cert in (None, files.other[1:]):
                status, body = ask("/healthz", cert)
                assert status in (0, 401), body
                status, body = ask("/v1/records/bank/2/begin", cert, "-H", "Authorization: Bearer ops:s3cret", *begin)
                assert status == 0 or (status == 401 and "client certificate" in body), body


def test_sighup_rereads_the_certificate_of_http(files):
    with folder() as where:
        use = lambda cert, key: (shutil.copy(cert, where + "/cert"), shutil.copy(key, where + "/key"))  # noqa: E731
        use(files.cert, files.key)
        with Server(where, "--tls-cert", where + "/cert", "--tls-key", where + "/key", http=True) as s:
            before = shown(s.http)
            use(files.other[1], files.other[2])
            s.send(signal.SIGHUP)
            assert logged(s, "reread", "tls=" + where) and shown(s.http) != before
            with open(where + "/key", "w") as f:
                f.write("no key")
            now = shown(s.http)
            s.send(signal.SIGHUP)
            assert logged(s, "reread-failed", "tls-key=" + where) and shown(s.http) == now
            assert curl(s.http, "/healthz", "--cacert", files.other[0])[0] == 200
