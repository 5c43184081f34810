"""A store that went back to an older state is noticed; nothing strict runs twice because of it, unless an operator accepts that."""
import contextlib
import json
import os
import shutil
import subprocess
import urllib.request

import pytest

from lib import IDEM, Error, Server, folder, patient, wait_until
from servers import Postgres, Redis
from test_rights import call

LEASE = 600000


@contextlib.contextmanager
def stopping(server):
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def redis():
    """(its URL, save its state, put that state back)"""
    with stopping(Redis()) as db:
        def save():
            shutil.copytree(db.folder + "/appendonlydir", db.folder + "/saved")

        def put_back():
            db.kill()
            shutil.rmtree(db.folder + "/appendonlydir")
            shutil.copytree(db.folder + "/saved", db.folder + "/appendonlydir")
            db.start()
        yield db.url, save, put_back


@contextlib.contextmanager
def postgres():
    with stopping(Postgres()) as db:
        subprocess.run([IDEM, "store", "init", db.url], check=True, stdout=subprocess.DEVNULL)

        def save():
            db.sql("create table saved as select * from idem_record")

        def put_back():
            db.sql("begin; delete from idem_record; insert into idem_record select * from saved; commit")
        yield db.url, save, put_back


def answered(c, *command):
    """The store may be away for a moment after it was put back."""
    return wait_until(lambda: next((a for a in [c(*command)] if not is_away(a)), None))


def is_away(answer):
    return isinstance(answer, Error) and (answer.word == "LOST" or answer.word == "UNAVAILABLE" and not is_refused(answer))


def is_refused(answer):
    return isinstance(answer, Error) and answer.word == "UNAVAILABLE" and "accept-rollback" in str(answer)


def done(c, id):
    fence = c("BEGIN", "pay", id, "LEASE", LEASE)[1]
    assert c("FINISH", "pay", id, fence, "SUCCEEDED", "paid " + id)[0] == "ok"


def marked(c):
    """The server has left a mark after what it wrote last."""
    newest = lambda: max((dict(zip(r[::2], r[1::2])) for r in c("SCAN", "0", "TYPE", "worker", "SCOPE", "epoch")[2:]),  # noqa: E731
                         key=lambda r: int(r["fence"]))["fence"]
    before = newest()
    c("BEGIN", "other", before)
    assert wait_until(lambda: newest() != before)


@pytest.mark.parametrize("store", [redis, postgres])
def test_a_running_server_refuses_until_the_loss_is_accepted(store):
    with folder() as where, store() as (url, save, put_back), \
            Server(where, "--epoch-file", where + "/epoch", store=url) as s, s.client() as c:
        done(c, "before")
        token = c("ISSUE", "me")[1]
        save()
        done(c, "lost")
        done(c, "looked-up")
        fence = c("BEGIN", "pay", "running", "LEASE", LEASE)[1]
        assert c("REDEEM", token, "me")[0] == "redeemed"
        marked(c)
        put_back()
        assert is_refused(answered(c, "BEGIN", "pay", "lost")), "it was paid already"
        assert is_refused(answered(c, "BEGIN", "pay", "new")) and is_refused(c("REDEEM", token, "me"))
        assert is_refused(answered(c, "FINISH", "pay", "running", fence, "SUCCEEDED", "x")), "and may be sent again later"
        assert is_refused(c("SETTLE", "pay", "unheard-of")), "it may have been done in the lost time"
        tried = subprocess.run([IDEM, "begin", "pay", "unheard-of", "--server", "unix:" + s.socket], text=True, capture_output=True)
        assert tried.returncode == 20 and tried.stderr.endswith("accept the loss with idem store accept-rollback\n") and "failed" not in tried.stderr, tried
        assert "went back" in s.output() and "rolled_back:1" in c("INFO")
        # The operator may know what became of a lost request, and settle it before the loss is accepted.
        known = subprocess.run([IDEM, "settle", "pay", "looked-up", "--absent", "--as", "succeeded", "--result", "found at the bank", "--server",
                                "unix:" + s.socket], text=True, capture_output=True)
        assert known.returncode == 0, known
        assert "found at the bank" in c("BEGIN", "pay", "looked-up")
        # All the rest goes on.
        assert "paid before" in c("BEGIN", "pay", "before")
        assert c("BEGIN", "pay", "loose", "LOOSE")[0] == "started" and c("LOCK", "l", "me", "1000")[0] == "started"
        told = subprocess.run([IDEM, "store", "accept-rollback", "--reason", "drill", "--server", "unix:" + s.socket], text=True,
                              timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert told.returncode == 0 and "operator verb=rollback" in s.output(), told.stdout
        # The server knows what it did: that comes into doubt, and whoever works on it may finish.
        assert c("BEGIN", "pay", "lost")[0] == "doubt" and c("REDEEM", token, "me")[0] == "duplicate"
        assert c("FINISH", "pay", "running", fence, "SUCCEEDED", "at last")[0] == "ok"
        assert "found at the bank" in c("BEGIN", "pay", "looked-up")
        assert "at last" in c("BEGIN", "pay", "running") and c("BEGIN", "pay", "new")[0] == "started"
        doubts = subprocess.run([IDEM, "doubts", "--server", "unix:" + s.socket], text=True, stdout=subprocess.PIPE).stdout
        assert "lost" in doubts and "rolled_back:0" in c("INFO")
        assert c("SETTLE", "pay", "lost", "AS", "SUCCEEDED", "paid lost")[0] == "settled"
        assert "nothing to accept" in str(c("ROLLBACK", "ACCEPT"))


def test_a_failover_that_lost_less_than_a_second_is_noticed():
    """The server's mark is there, and what it claimed after that is not. Rounds, because a mark may come in between."""
    with folder() as where, stopping(Redis()) as db, Server(where, "--epoch-file", where + "/epoch", store=patient(db.url)) as s, \
            s.client() as c:
        for i in range(3):
            marked(c)
            shutil.rmtree(db.folder + "/saved", ignore_errors=True)
            shutil.copytree(db.folder + "/appendonlydir", db.folder + "/saved")
            running = c("BEGIN", "pay", "running %d" % i, "LEASE", LEASE)[1]
            done(c, "lost %d" % i)
            db.kill()
            shutil.rmtree(db.folder + "/appendonlydir")
            shutil.copytree(db.folder + "/saved", db.folder + "/appendonlydir")
            db.start()
            assert is_refused(answered(c, "BEGIN", "pay", "lost %d" % i)), "it was paid already"
            assert is_refused(answered(c, "BEGIN", "pay", "new")) and "rolled_back:1" in c("INFO")
            assert c("ROLLBACK", "ACCEPT", "REASON", "drill") == "OK"
            assert answered(c, "BEGIN", "pay", "lost %d" % i)[0] == "doubt"
            assert answered(c, "FINISH", "pay", "running %d" % i, running, "SUCCEEDED", "at last")[0] == "ok"
            assert "rolled_back:0" in c("INFO")


@pytest.mark.parametrize("store", [redis, postgres])
def test_a_restarted_server_notices_by_its_epoch_file(store):
    with folder() as where, store() as (url, save, put_back):
        flags = ("--epoch-file", where + "/epoch")
        with Server(where, *flags, store=url) as s, s.client() as c:
            done(c, "before")
            save()
            done(c, "lost")
            marked(c)
        with Server(where, *flags, store=url) as s, s.client() as c:
            assert "paid lost" in c("BEGIN", "pay", "lost"), "no false alarm"
        put_back()
        with Server(where, *flags, store=url) as s, s.client() as c:
            assert is_refused(answered(c, "BEGIN", "pay", "lost")) and "paid before" in c("BEGIN", "pay", "before")
        with Server(where, *flags, "--accept-rollback", store=url) as s, s.client() as c:
            assert answered(c, "BEGIN", "pay", "new")[0] == "started" and "went back" in s.output()
        with Server(where, *flags, store=url) as s, s.client() as c:
            assert answered(c, "BEGIN", "pay", "newer")[0] == "started" and "went back" not in s.output()


def test_an_old_backup_in_the_place_of_a_journal_is_noticed(tmp_path):
    live, copy, old = (str(tmp_path / n) for n in ("journal", "copy", "old"))
    flags = ("--epoch-file", str(tmp_path / "epoch"))
    with Server(str(tmp_path), *flags) as s, s.client() as c:
        done(c, "before")
        assert subprocess.run([IDEM, "backup", live, copy], stdout=subprocess.DEVNULL).returncode == 0
        done(c, "lost")
        marked(c)
    os.rename(live, old)
    assert subprocess.run([IDEM, "restore", copy, live], stdout=subprocess.DEVNULL).returncode == 0
    with Server(str(tmp_path), *flags) as s, s.client() as c:
        assert is_refused(c("BEGIN", "pay", "lost")) and "paid before" in c("BEGIN", "pay", "before")
    shutil.rmtree(live)
    os.rename(old, live)  # the right one is found again
    with Server(str(tmp_path), *flags) as s, s.client() as c:
        assert "paid lost" in c("BEGIN", "pay", "lost") and c("BEGIN", "pay", "new")[0] == "started"


def test_accept_rollback_goes_on_at_once_and_what_is_known_comes_into_doubt():
    with folder() as where, redis() as (url, save, put_back), \
            Server(where, "--epoch-file", where + "/epoch", "--accept-rollback", store=url) as s, s.client() as c:
        save()
        done(c, "lost")
        marked(c)
        put_back()
        assert answered(c, "BEGIN", "pay", "lost")[0] == "doubt" and c("BEGIN", "pay", "new")[0] == "started"
        assert "went back" in s.output()


def went_back(where, *flags):
    """A server, over HTTP too, whose journal is an old one."""
    live, copy = where + "/journal", where + "/copy"
    with Server(where, *flags) as s, s.client() as c:
        c("AUTH", "ops", "other")
        assert subprocess.run([IDEM, "backup", live, copy], stdout=subprocess.DEVNULL).returncode == 0
        done(c, "lost")
        marked(c)
    shutil.rmtree(live)
    assert subprocess.run([IDEM, "restore", copy, live], stdout=subprocess.DEVNULL).returncode == 0
    return Server(where, *flags, http=True)


def test_accepting_is_an_operators_action_and_audited(tmp_path):
    file = str(tmp_path / "credentials")
    with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
        f.write("shop secret use\nops other operate\neu part operate eu\n")
    flags = ("--epoch-file", str(tmp_path / "epoch"), "--credentials", file, "--require-reason")
    with went_back(str(tmp_path), *flags) as s, s.client() as c:
        def accept(auth, **fields):
            status, said = call(s.http, "POST", "/v1/rollback/accept", auth=auth, **fields)
            return status, said.get("verdict") or said["type"].rsplit("/")[-1]
        assert c("AUTH", "ops", "other") == "OK" and "rolled_back:1" in c("INFO")
        cli = [IDEM, "store", "accept-rollback", "--server", "unix:" + s.socket]
        told = subprocess.run(cli, text=True, capture_output=True, env={**os.environ, "IDEM_AUTH": "ops:other"})
        assert told.returncode != 0 and "--reason" in told.stderr, "require-reason"
        assert "requires a reason" in str(c("ROLLBACK", "ACCEPT")) and accept("ops:other") == (400, "invalid")
        assert c("ROLLBACK", "ACCEPT", "REASON").word == "ERR" and c("ROLLBACK", "ACCEPT", "WHY", "x").word == "ERR"
        assert accept("shop:secret", reason="x") == accept("eu:part", reason="x") == (403, "forbidden")
        assert accept(None, reason="x")[0] == 401 and "rolled_back:1" in c("INFO")
        assert accept("ops:other", reason="the bank has the list") == (200, "ok")
        assert c("BEGIN", "pay", "new")[0] == "started"
        assert accept("ops:other", reason="again") == (400, "invalid"), "nothing to accept"
        entry = json.loads(c("AUDIT")[-1])
        assert {k: entry[k] for k in ("who", "surface", "verb", "scope", "id", "verdict", "before", "after", "reason")} == {
            "who": "ops", "surface": "http", "verb": "rollback", "scope": "", "id": "", "verdict": "ok", "before": "rolled-back",
            "after": "accepted", "reason": "the bank has the list"} and entry["time"] and entry["from"] == "127.0.0.1"
        assert len(c("AUDIT")) == 2 and "operator-refused verb=rollback who=shop" in s.output()
        listed = subprocess.run([IDEM, "audit", "--server", "unix:" + s.socket], text=True, capture_output=True,
                                env={**os.environ, "IDEM_AUTH": "ops:other"}).stdout
        assert 'ops rollback - - ok: rolled-back -> accepted "the bank has the list"' in listed
        paths = json.loads(urllib.request.urlopen("http://127.0.0.1:%d/openapi.json" % s.http).read())["paths"]
        assert "/v1/rollback/accept" in paths


def test_only_who_may_operate_accepts_and_one_file_is_for_one_server(tmp_path):
    file = str(tmp_path / "credentials")
    with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
        f.write("shop secret use\nops other operate\n")
    flags = ("--epoch-file", str(tmp_path / "epoch"), "--credentials", file, "--socket", str(tmp_path / "s"))
    with Server(str(tmp_path), *flags) as s, s.client() as c:
        assert c("AUTH", "shop", "secret") == "OK" and c("ROLLBACK", "ACCEPT").word == "NOPERM"
        assert c("AUTH", "ops", "other") == "OK" and c("ROLLBACK", "ACCEPT").word == "ERR"
        told = subprocess.run([IDEM, "serve", "--store", "journal:%s/other" % tmp_path, "--socket", "%s/t" % tmp_path,
                               "--epoch-file", str(tmp_path / "epoch")], text=True, timeout=60, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        assert told.returncode != 0 and "another server uses it" in told.stdout


def test_a_store_that_is_killed_and_keeps_everything_did_not_go_back():
    with folder() as where, stopping(Redis()) as db, \
            Server(where, "--epoch-file", where + "/epoch", store=db.url) as s, s.client() as c:
        for n in range(4):
            for i in range(50):
                assert answered(c, "BEGIN", "pay", "%d-%d" % (n, i), "NONCE", "%016x" % (n * 100 + i + 1))[0] == "started"
            db.kill()
            assert isinstance(c("BEGIN", "pay", "while it is away %d" % n), Error)
            db.start()
        assert answered(c, "BEGIN", "pay", "0-0")[0] in ("busy", "doubt")
        assert "went back" not in s.output() and "rolled_back:0" in c("INFO")
