"""Results sealed at rest (--seal-key): no store has them as they are, and a key that is missing is an error, never a second run."""
import contextlib
import http.client
import json
import os
import subprocess

import pytest

from gateway import Gateway, Ledger, ask
from lib import IDEM, Error, Process, Server, folder
from servers import MariaDB, Postgres, Redis

LEASE = 600000
RESULT, SUBJECT = "a result nobody else may read", "subject-of-ann"


def key_file(where, *keys, name="key"):
    """A file of keys, each of them one hex digit repeated."""
    path = os.path.join(where, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write("".join(k * 64 + "\n" for k in keys))
    return path


def idem(*args, code=0, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
    done = subprocess.run([IDEM, *args], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, env={**clean, **env})
    assert code is None or done.returncode == code, (args, done.returncode, done.stdout)
    return done.stdout


def do(c, id, result=RESULT):
    fence = c("BEGIN", "shop", id, "LEASE", LEASE, "SUBJECT", SUBJECT)[1]
    assert c("FINISH", "shop", id, fence, "SUCCEEDED", result)[0] == "ok"
    return fence


def bytes_below(place):
    """All bytes of all files below a folder."""
    return b"".join(open(os.path.join(top, name), "rb").read() for top, _, names in os.walk(place) for name in names
                    if os.path.isfile(os.path.join(top, name)))


def is_sealed_away(answer):
    return isinstance(answer, Error) and answer.word == "UNAVAILABLE" and "sealed with key " in str(answer)


def result_of(c, id):
    answer = c("BEGIN", "shop", id)
    return answer[4] if answer[0] == "replay" else answer


@contextlib.contextmanager
def stopping(server):
    try:
        yield server
    finally:
        server.stop()


# ---- what the store has ------------------------------------------------------


@contextlib.contextmanager
def journal(where):
    yield "journal:" + where + "/journal", lambda: bytes_below(where + "/journal")


@contextlib.contextmanager
def redis(where):
    with stopping(Redis()) as db:
        def dump():
            db.ask("bgrewriteaof")
            return bytes_below(db.folder)
        yield db.url, dump


@contextlib.contextmanager
def postgres(where):
    with stopping(Postgres()) as db:
        idem("store", "init", db.url)

        def dump():
            db.sql("checkpoint")
            return bytes_below(db.folder)
        yield db.url, dump


@pytest.mark.parametrize("store", [journal, redis, postgres])
def test_results_and_subjects_are_in_no_file_of_the_store(store):
    with folder() as where, store(where) as (url, dump):
        with Server(where, store=url) as s, s.client() as c:
            do(c, "plain", "plain " + RESULT)
        seen = dump()
        assert b"plain " + RESULT.encode() in seen and SUBJECT.encode() in seen, "the search would find it"
    with folder() as where, store(where) as (url, dump):
        with Server(where, "--seal-key", key_file(where, "a"), store=url) as s, s.client() as c:
            for i in range(50):
                do(c, "sealed-%d" % i)
            assert c("LOCK", "door", SUBJECT, LEASE)[0] == "started"
        seen = dump()
        assert b"sealed-49" in seen, "ids stay readable"
        assert RESULT.encode() not in seen and SUBJECT.encode() not in seen
        with Server(where, "--seal-key", key_file(where, "a"), store=url) as s, s.client() as c:
            assert all(result_of(c, "sealed-%d" % i) == RESULT for i in range(50))
            assert c("LOCK", "door", "eve", LEASE)[0] == "busy"
            found = dict(zip((r := c("SCAN", "0", "SCOPE", "shop", "COUNT", 100)[2])[::2], r[1::2]))
            assert found["subject"] == SUBJECT


def test_a_crash_loses_nothing_that_was_sealed():
    with folder() as where:
        key = key_file(where, "a")
        with Server(where, "--seal-key", key) as s, s.client() as c:
            do(c, "a")
            s.kill()
        with Server(where, "--seal-key", key) as s, s.client() as c:
            assert result_of(c, "a") == RESULT


def test_a_copy_and_a_backup_have_the_sealed_bytes_as_they_are():
    with folder() as where:
        key = key_file(where, "a")
        with Server(where, "--seal-key", key) as s, s.client() as c:
            do(c, "a")
            idem("backup", "journal:" + where + "/journal", where + "/backup")
        idem("store", "copy", "journal:" + where + "/journal", "sqlite:" + where + "/db")
        for name in ("backup", "db"):
            seen = bytes_below(where + "/" + name) or open(where + "/" + name, "rb").read()
            assert b"shop" in seen and RESULT.encode() not in seen, name
        with Server(where, "--seal-key", key, store="sqlite:" + where + "/db") as s, s.client() as c:
            assert result_of(c, "a") == RESULT


# ---- keys --------------------------------------------------------------------


def test_a_key_is_replaced_without_losing_a_result():
    with folder() as where:
        with Server(where, "--seal-key", key_file(where, "a")) as s, s.client() as c:
            do(c, "old", "sealed with a")
        with Server(where, "--seal-key", key_file(where, "a", "b")) as s, s.client() as c:
            do(c, "between", "sealed with a, still")
        with Server(where, "--seal-key", key_file(where, "b", "a")) as s, s.client() as c:
            do(c, "new", "sealed with b")
            assert [result_of(c, id) for id in ("old", "between")] == ["sealed with a", "sealed with a, still"]
        with Server(where, "--seal-key", key_file(where, "b")) as s, s.client() as c:
            assert result_of(c, "new") == "sealed with b"
            assert is_sealed_away(c("BEGIN", "shop", "old"))


@pytest.mark.parametrize("keys", ["b", ""])
def test_a_missing_key_is_an_error_that_names_it_and_nothing_runs_again(keys):
    with folder() as where:
        with Server(where, "--seal-key", key_file(where, "a")) as s, s.client() as c:
            fence = do(c, "a")
            lost = c("BEGIN", "shop", "running", "LEASE", LEASE, "SUBJECT", SUBJECT)[1]
            line = next(x for x in s.output().splitlines() if "are sealed with key" in x)
        id = line.split("sealed with key ")[1][:8]
        with Server(where, *(["--seal-key", key_file(where, keys)] if keys else []), http=True) as s, s.client() as c:
            for command in (("BEGIN", "shop", "a"), ("GET", "shop", "a"), ("FINISH", "shop", "a", fence, "SUCCEEDED", "x"),
                            ("SETTLE", "shop", "a"), ("BEGIN", "shop", "running", "WAIT", 60000),
                            ("RENEW", "shop", "running", lost, LEASE)):
                answer = c(*command)
                assert is_sealed_away(answer) and id in str(answer), (command, answer)
            assert c("BEGIN", "shop", "another")[0] == "started", "the others go on"
            web = http.client.HTTPConnection("127.0.0.1", s.http, timeout=60)
            web.request("POST", "/v1/records/shop/a/begin")
            reply = web.getresponse()
            assert reply.status == 503 and id in json.loads(reply.read())["detail"]
            assert len([x for x in s.output().splitlines() if "event=alarm" in x and id in x]) == 1, "logged once"
            assert c("FORGET", "shop", "running", "REASON", "its key is lost")[0] == "ok"
        with Server(where, "--seal-key", key_file(where, "a")) as s, s.client() as c:
            assert result_of(c, "a") == RESULT, "it was not touched"


def test_the_key_is_in_no_log_and_no_command_line():
    with folder() as where, Server(where, "--seal-key", key_file(where, "a"), "--log-level", "debug") as s, s.client() as c:
        do(c, "a")
        assert "a" * 64 not in s.output()
        with open("/proc/%d/cmdline" % s.pid) as f:
            assert "a" * 64 not in f.read()


def test_the_keys_are_locked_in_memory():
    with folder() as where:
        with Process(["strace", "-f", "-e", "trace=mlock", IDEM, "serve", "--store", "memory:", "--socket", where + "/s",
                      "--seal-key", key_file(where, "a")], ready=where + "/s") as s:
            calls = [x for x in s.output().splitlines() if "mlock(" in x]
            assert calls and all(x.endswith(" = 0") for x in calls), calls


@pytest.mark.parametrize("text, mode, why", [
    ("a" * 64, 0o604, "other users may read or change it"), ("a" * 63, 0o600, "line 1: a key is 64 hex digits"),
    ("", 0o600, "there is no key in it")])
def test_a_bad_key_file_keeps_a_server_from_starting(text, mode, why):
    with folder() as where:
        with open(where + "/key", "w") as f:
            f.write(text)
        os.chmod(where + "/key", mode)
        serve = ("serve", "--store", "journal:" + where + "/j", "--socket", where + "/s", "--seal-key", where + "/key")
        assert why in idem(*serve, "--check", code=2)
        said = idem(*serve, code=1)
        assert why in said and "aaaa" not in said


# ---- every command that opens a store ------------------------------------------


def test_commands_take_the_key_from_an_option_a_variable_and_a_credential():
    with folder() as where:
        store, key = ("--store", "journal:" + where + "/j"), key_file(where, "a", name="IDEM_SEAL_KEY")
        idem("run", "shop", "a", *store, "--seal-key", key, "--", "echo", RESULT)
        assert RESULT.encode() not in bytes_below(where + "/j")
        assert RESULT in idem("get", "shop", "a", *store, "--json", IDEM_SEAL_KEY=key)
        assert RESULT in idem("run", "shop", "a", *store, "--", "echo", RESULT, CREDENTIALS_DIRECTORY=where)
        assert "is sealed with key" in idem("get", "shop", "a", *store, code=None)
        assert idem("id", "segment:orders", *store, IDEM_SEAL_KEY=key).strip() == "1"
        assert "not the key itself" in (said := idem("get", "shop", "a", *store, "--seal-key", "a" * 64, code=None))
        assert "aaaa" not in said


def test_a_client_of_a_server_needs_no_key_and_may_not_have_one():
    with folder() as where, Server(where, "--seal-key", key_file(where, "a")) as s, s.client() as c:
        do(c, "a")
        assert RESULT in idem("get", "shop", "a", "--server", s.socket, IDEM_SEAL_KEY="/nowhere")
        said = idem("get", "shop", "a", "--server", s.socket, "--seal-key", where + "/key", code=None)
        assert "give the key to that one" in said


def test_a_config_file_names_the_key():
    with folder() as where:
        with open(where + "/conf", "w") as f:
            f.write("seal-key = %s\n" % key_file(where, "a"))
        with Server(where, "--config", where + "/conf") as s, s.client() as c:
            do(c, "a")
            assert RESULT.encode() not in bytes_below(where + "/journal")


def test_a_gateway_seals_and_without_the_key_executes_nothing():
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, "--seal-key", key_file(where, "a")) as g:
            first = ask(g.port, "one", body=b"something to find")
            assert first.status == 201
        assert first.body not in bytes_below(where + "/journal")
        with Gateway(where, ledger.port, "--seal-key", key_file(where, "a")) as g:
            again = ask(g.port, "one", body=b"something to find")
            assert again.replayed and again.body == first.body
        with Gateway(where, ledger.port, "--seal-key", key_file(where, "b")) as g:
            answer = ask(g.port, "one", body=b"something to find")
            assert answer.status == 503, answer
        assert ledger.executions("one") == 1


# ---- SQL -----------------------------------------------------------------------


def test_functions_in_the_database_refuse_a_sealed_result_and_finish_a_sealed_claim():
    with folder() as where, stopping(Postgres()) as db:
        idem("store", "init", db.url)
        with Server(where, "--seal-key", key_file(where, "a"), store=db.url) as s, s.client() as c:
            fence = do(c, "a")
            for call in ("begin('shop', 'a')", "join('shop', 'a', %s)" % fence, "settle('shop', 'a')", "get('shop', 'a')",
                         "try_finish('shop', 'a', %s, 'succeeded', 'x')" % fence):
                with pytest.raises(AssertionError, match="does not open in the database"):
                    db.sql("select * from idem." + call)
            fence = c("BEGIN", "shop", "b", "LEASE", LEASE, "SUBJECT", SUBJECT)[1]
            assert db.sql("select idem.finish('shop', 'b', %s, 'succeeded', 'from the database')" % fence) == "ok"
            assert result_of(c, "b") == "from the database"
            assert "subject" in c("GET", "shop", "b") and SUBJECT in c("GET", "shop", "b")


def test_procedures_refuse_a_sealed_result_and_finish_a_sealed_claim():
    with folder() as where, stopping(MariaDB()) as db:
        idem("store", "init", db.url)
        with Server(where, "--seal-key", key_file(where, "a"), store=db.url) as s, s.client() as c:
            fence = do(c, "a")
            for call in ("idem_begin('shop', 'a', null, 'strict', 1000, 1000, @v, @f, @k, @r)", "idem_join('shop', 'a', %s, @v, @k, @r)" % fence,
                         "idem_settle('shop', 'a', null, null, 1000, @v, @s, @k, @r)", "idem_get('shop', 'a', @v, @s, @f, @k, @r)",
                         "idem_try_finish('shop', 'a', %s, 'succeeded', 'x', 1000, 'raw', @v)" % fence):
                with pytest.raises(AssertionError, match="does not open here"):
                    db.sql("start transaction; call %s" % call)
            fence = c("BEGIN", "shop", "b", "LEASE", LEASE, "SUBJECT", SUBJECT)[1]
            db.sql("start transaction; call idem_finish('shop', 'b', %s, 'succeeded', 'from the database', 60000); commit" % fence)
            assert result_of(c, "b") == "from the database"
