"""How the clients connect: every form of an address, TLS, a server without room for another client, a record that another transaction holds, a name that is not
found. All through the conformance drivers.

Waits more than it works.
"""
import os
import socket
import subprocess
import threading
import time
import types

import pytest

import servers
from lib import IDEM, Server, folder, wait_until
from test_conformance import CLIENTS, DRIVERS, LANGUAGES, driver
from test_rights import write_credentials


@pytest.fixture(scope="module")
def files():
    with folder() as where:
        ca, cert, key = servers.authority(where, "ours")
        made = types.SimpleNamespace(where=where, ca=ca, cert=cert, key=key, other=servers.authority(where, "other")[0])
        made.shop = servers.certificate(where + "/ours-ca", where + "/shop", "shop.example")
        made.elsewhere = servers.certificate(where + "/ours-ca", where + "/elsewhere", host="DNS:elsewhere.example")
        yield made


def once(url, language, key="k", **options):
    """The answer of one call, by a driver of its own."""
    one = driver(language, url)
    try:
        return one.call({"op": "once", "scope": "s", "key": key, "options": {"deadline_ms": 20000, **options}, "work": [{"return": language}]})
    finally:
        one.close()


def url(server, scheme="idems", **options):
    return "%s://127.0.0.1:%d?%s" % (scheme, server.port, "&".join("%s=%s" % one for one in options.items()))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_takes_every_address_that_the_command_line_takes(language, monkeypatch):
    """IDEM_SERVER is the variable of both. What is not an address is told in the same words, without a secret."""
    def begin(address, key="k"):
        return subprocess.run([IDEM, "begin", "s", key, "--server", address], cwd=CLIENTS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)

    def refused(address):
        done = subprocess.run([*DRIVERS[language], address], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0, address
        return (done.stdout + done.stderr).replace('\\"', '"')

    with folder() as where, Server(where, listen=True) as s, folder() as other, \
         Server(other, "--credentials", write_credentials(other, "shop a/long@secret#1 use s", "default no-name-secret use s"), listen=True) as closed:
        path, port = s.socket, s.port
        for n, to in enumerate(("unix:" + path, path, "unix:" + os.path.relpath(path, CLIENTS), "idem+unix:" + path, ":%d" % port, "127.0.0.1:%d" % port,
                                "[::ffff:127.0.0.1]:%d" % port, "idem://127.0.0.1:%d" % port, "idem://127.0.0.1:%d/" % port,
                                "shop:a/long@secret#1@127.0.0.1:%d" % closed.port, ":no-name-secret@127.0.0.1:%d" % closed.port,
                                "idem://shop:a%%2Flong%%40secret%%231@127.0.0.1:%d" % closed.port)):
            told = begin(to, "told-%d" % n)
            assert told.returncode == 0, (to, told.stderr)
            monkeypatch.delenv("IDEM_SERVER", raising=False)
            assert once(to, language, "given-%d" % n)["ran"] is True, to
            monkeypatch.setenv("IDEM_SERVER", to)
            answer = once("", language, "named-%d" % n)
            assert (answer["class"], answer["ran"]) == ("done", True), (to, answer)
    for wrong in ("localhost", "ftp://h:1", "127.0.0.1:0", "h:99999", "[::1", "relative/socket", " unix:/x", "IDEM://h:1", "h:1?ca=/x", "http://127.0.0.1:80"):
        told, said = begin(wrong), refused(wrong)
        assert told.returncode == 2 and told.stderr.startswith('idem: "%s" is ' % wrong), told
        assert told.stderr[6:].strip().replace("commands need", "clients need") in said, (wrong, said)
    for wrong in ("idem://", "idem://h:", "idem://h:99999", "idem://[::1", "idem://a,b", "idem+unix:", "unix://x", "//x", "unix:/x?tiemout_ms=100", "idem://h?auth=1"):
        assert begin(wrong).returncode == 2, wrong
        said = refused(wrong)
        assert "is not an address" in said or "option" in said, (wrong, said)
    assert "top-secret" not in refused("name:top-secret@localhost").split("is not an address")[0]


def test_calls_go_through_tls(files):
    """With a certificate of the client, which is its credential; large results in both directions."""
    with folder() as where:
        path = write_credentials(where, "shop cert:shop.example use s")
        with Server(where, "--tls-cert", files.cert, "--tls-key", files.key, "--tls-client-ca", files.ca, "--credentials", path, listen=True) as server:
            cert, key = files.shop
            to = url(server, ca=files.ca, cert=cert, key=key)
            for language in LANGUAGES:
                one = driver(language, to)
                work = [{"return_text": 900000}]
                answers = [one.call({"op": "once", "scope": "s", "key": "large", "work": work}) for _ in range(2)]
                assert [a["class"] for a in answers] == ["done"] * 2 and answers[0]["value"] == answers[1]["value"], (language, str(answers)[:500])
                started = [one.start({"op": "once", "scope": "s", "key": "many-%d" % (i % 5), "options": {"wait_ms": 30000}, "work": [{"return": i}]}) for i in range(40)]
                assert {one.finish(n)["class"] for n in started} == {"done"}, language
                time.sleep(1.2)  # the connection is asked whether it is alive
                assert one.call({"op": "once", "scope": "s", "key": "later-" + language, "work": [{"return": 1}]})["value"] == 1
                one.close()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_server_that_cannot_be_believed_gets_nothing(files, language):
    """Signed by somebody else, made for another host, or not encrypted at all: the work does not run, and a secret is not sent."""
    with folder() as where, Server(where, "--tls-cert", files.cert, "--tls-key", files.key, listen=True) as server:
        assert once(url(server, ca=files.ca), language)["class"] == "done"
        for options in ({"ca": files.other}, {}):
            answer = once(url(server, **options), language, "other", deadline_ms=500)
            assert (answer["class"], answer["error"], answer["ran"]) == ("not_executed", "Unavailable", False), (options, answer)
        answer = once(url(server, "idem").rstrip("?"), language, "plain", deadline_ms=500)
        assert (answer["class"], answer["ran"]) == ("not_executed", False), answer
    cert, key = files.elsewhere
    with folder() as where, Server(where, "--tls-cert", cert, "--tls-key", key, listen=True) as server:
        answer = once(url(server, ca=files.ca), language, deadline_ms=500)
        assert (answer["class"], answer["error"], answer["ran"]) == ("not_executed", "Unavailable", False), answer
    with socket.create_server(("127.0.0.1", 0)) as plain:
        got = []

        def read():
            with plain.accept()[0] as s:
                got.append(s.recv(65536))
        reader = threading.Thread(target=read)
        reader.start()
        answer = once("idems://name:topsecret@127.0.0.1:%d?ca=%s" % (plain.getsockname()[1], files.ca), language, deadline_ms=500)
        reader.join()
        assert answer["ran"] is False and b"topsecret" not in got[0], answer


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_server_without_room_is_a_server_that_is_away(language):
    with folder() as where, Server(where, "--max-clients", "2", listen=True) as server:
        to = "idem://127.0.0.1:%d" % server.port
        with server.client() as first:
            first("PING")
            with server.client() as second:
                second("PING")
                answer = once(to, language, deadline_ms=500)
                assert (answer["class"], answer["error"], answer["ran"]) == ("not_executed", "Unavailable", False), answer
                assert once(to, language, deadline_ms=500, mode="loose", fail_open=True)["ran"] is True
                one = driver(language, to)
                n = one.start({"op": "once", "scope": "s", "key": "k", "options": {"deadline_ms": 60000}, "work": [{"return": 1}]})
                time.sleep(1)
            assert one.finish(n)["value"] == 1  # there is room now
            one.close()


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_address_that_is_not_of_idem_is_told_with_one_cause_and_one_advice(language):
    """It was reached, so nobody is asked whether idem serve is running there; where nobody listens, that is the question."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        def answer_all():
            while True:
                try:
                    s = other.accept()[0]
                except OSError:
                    return
                with s:
                    s.recv(4096)
                    s.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        threading.Thread(target=answer_all, daemon=True).start()
        port = other.getsockname()[1]
        answer = once("idem://127.0.0.1:%d" % port, language, deadline_ms=500)
        other.shutdown(socket.SHUT_RDWR)
    assert (answer["class"], answer["error"], answer["ran"]) == ("not_executed", "Unavailable", False), answer
    assert answer["message"].endswith("unexpected reply: is this an idem server? give the address of its socket or its RESP port"), answer
    answer = once("idem://127.0.0.1:%d" % port, language, deadline_ms=500)
    assert answer["message"].endswith("; is idem serve running at this address?"), answer


def test_a_record_that_another_transaction_holds_is_tried_again():
    """The server answers "busy" to RENEW and FINISH then. That is neither a lost lease nor a decision of somebody else."""
    database = servers.Postgres()
    try:
        subprocess.run([IDEM, "store", "init", database.url], check=True, stdout=subprocess.DEVNULL)
        with folder() as where, Server(where, listen=True, store=database.url) as server:
            drivers = {language: driver(language, "idem://127.0.0.1:%d" % server.port) for language in LANGUAGES}
            tokens = {language: one.call({"op": "issue", "subject": language})["value"] for language, one in drivers.items()}
            effects = os.path.join(where, "effects")
            work = [{"append": effects}, {"sleep_ms": 4000}, {"return": 7}]
            started = {language: one.start({"op": "once", "scope": "s", "key": language, "options": {"lease_ms": 9000}, "work": work})
                       for language, one in drivers.items()}
            assert wait_until(lambda: os.path.exists(effects) and len(open(effects).readlines()) == len(LANGUAGES), 60)
            holder = subprocess.Popen([database.bin + "psql", "-qAt", database.url, "-c", "begin", "-c",
                                       "select 'held' from idem.idem_record for update", "-c", "select pg_sleep(6)", "-c", "commit"],
                                      stdout=subprocess.PIPE, text=True)
            assert holder.stdout.readline() == "held\n"
            used = {language: one.start({"op": "redeem", "token": tokens[language], "subject": language}) for language, one in drivers.items()}
            for language, one in drivers.items():
                answer, redeemed = one.finish(started[language]), one.finish(used[language])
                assert (answer["class"], answer.get("value")) == ("done", 7), (language, answer)
                assert (redeemed["class"], redeemed.get("value")) == ("done", "redeemed"), (language, redeemed)
                assert one.call({"op": "once", "scope": "s", "key": language, "work": work})["value"] == 7
                one.close()
            holder.communicate()
            assert len(open(effects).readlines()) == len(LANGUAGES)
    finally:
        database.stop()


@pytest.mark.parametrize("language", LANGUAGES)
def test_tries_come_at_growing_distances(language):
    """A server that closes every connection at once is tried a few times in three seconds, not as often as the machine can."""
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        tries = []

        def close_all():
            while True:
                try:
                    refusing.accept()[0].close()
                except OSError:
                    return
                tries.append(time.monotonic())
        threading.Thread(target=close_all, daemon=True).start()
        answer = once("idem://127.0.0.1:%d" % refusing.getsockname()[1], language, deadline_ms=3000)
        refusing.shutdown(socket.SHUT_RDWR)
        assert (answer["class"], answer["error"], answer["ran"]) == ("not_executed", "Unavailable", False), answer
        assert 3 <= len(tries) <= 20, len(tries)


def test_a_server_is_found_by_its_name():
    """localhost may be ::1 first, where nobody listens."""
    with folder() as where, Server(where, listen=True) as server:
        for language in LANGUAGES:
            assert once("idem://localhost:%d" % server.port, language)["class"] == "done", language


STUCK = """
#include <netdb.h>
#include <unistd.h>
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    for (;;)
        pause();
}
"""


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "php"])  # PHP cannot bound it, and its page says so
def test_looking_a_name_up_ends_with_the_deadline(language, monkeypatch):
    """The system's name service hangs, in two calls at once and again in a third."""
    with folder() as where:
        with open(where + "/stuck.c", "w") as f:
            f.write(STUCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", where + "/stuck.so", where + "/stuck.c"], check=True)
        started = driver(language, "idem://nobody.example:6390")  # builds what has to be built
        started.close()
        monkeypatch.setenv("LD_PRELOAD", where + "/stuck.so")
        monkeypatch.setenv("GODEBUG", "netdns=cgo")  # Go's own look-up does not call the C library
        one = driver(language, "idem://nobody.example:6390")
        command = {"op": "once", "scope": "s", "key": "k", "options": {"deadline_ms": 500}, "work": [{"return": 1}]}
        try:
            for calls in (2, 1):
                answers = [one.finish(n, 60) for n in [one.start(command) for _ in range(calls)]]
                for answer in answers:
                    assert (answer["class"], answer["error"], answer["ran"]) == ("not_executed", "Unavailable", False), answer
        finally:
            os.killpg(one.process.pid, 9)  # a thread of it may hang for ever
            one.close()
