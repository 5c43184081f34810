"""Files and tables that idem 0.1 made, tests/data/0.1, are used by this version: nothing is missing, nothing runs again."""
import contextlib
import json
import os
import shutil
import subprocess
import time

import pytest

from lib import IDEM, ROOT, Server, folder, wait_until
from servers import MariaDB, Postgres, Redis

OLD = os.path.join(ROOT, "tests/data/0.1")
with open(os.path.join(OLD, "told.json")) as told:
    TOLD = json.load(told)
STORES = ["journal", "sqlite", "postgres", "mariadb", "redis"]


def idem(*args):
    done = subprocess.run([IDEM, *args], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout


@contextlib.contextmanager
def opened(store, where):
    """The URL of a store as 0.1 left it."""
    if store == "journal":
        shutil.copytree(OLD + "/journal", where + "/j")
        yield "journal:%s/j" % where
    elif store == "sqlite":
        shutil.copyfile(OLD + "/sqlite.db", where + "/db")
        yield "sqlite:%s/db" % where
    elif store == "redis":
        db = Redis()
        try:
            db.halt()
            shutil.rmtree(db.folder + "/appendonlydir")
            shutil.copyfile(OLD + "/redis.aof", db.folder + "/appendonly.aof")
            db.start()
            yield db.url
        finally:
            db.stop()
    else:
        db = Postgres() if store == "postgres" else MariaDB()
        try:
            with open("%s/%s.sql" % (OLD, store)) as f:
                load(db, f)
            yield db.url
        finally:
            db.stop()


def load(db, file):
    if isinstance(db, MariaDB):
        db.sql(file.read())
    else:
        subprocess.run([db.bin + "psql", "-q", "-v", "ON_ERROR_STOP=1", db.url], stdin=file, check=True,
                       stdout=subprocess.DEVNULL)


@pytest.fixture(params=STORES, scope="module")
def old(request):
    """(what 0.1 told, a server of this version)"""
    with folder() as where, opened(request.param, where) as url, Server(where, store=url) as server:
        server.store = url
        yield TOLD[request.param], server


def of(told, type, state=None):
    return [r for r in told["records"] if r["type"] == type and state in (None, r["state"])]


def records(server):
    found = {}
    for line in idem("scan", "--json", "--server", "unix:" + server.socket).splitlines():
        record = json.loads(line)
        found[record["type"], record["scope"], record["id"]] = record
    return found


def test_every_record_of_0_1_is_there_with_the_same_answer(old):
    told, server = old
    soon = (time.time() + 600) * 1000  # a lock that was given back is kept for 30 days
    found = records(server)
    for record in told["records"]:
        if record["state"] != "executing" and record.get("expires", soon + 1) <= soon:
            continue
        if record["type"] in ("request", "token"):
            now = json.loads(idem("get", record["scope"], record["id"], "--json", "--server", "unix:" + server.socket))
        else:
            now = found[record["type"], record["scope"], record["id"]]
        assert record == {name: now.get(name) for name in record}


def test_what_0_1_left_open_goes_on_under_this_version(old):
    told, server = old
    newest = max(r["fence"] for r in told["records"])
    tokens = told["tokens"]
    fence_of = {r["id"]: r["fence"] for r in of(told, "request") + of(told, "lock")}
    with server.client() as c:
        for r in of(told, "request", "succeeded") + of(told, "request", "failed"):
            answer = c("BEGIN", r["scope"], r["id"])
            assert answer[:4] == ["replay", r["state"], r["kind"], r["expires"]], answer
        assert c("BEGIN", "shop", "succeeded", "FP", "00" * 32)[0] == "mismatch"
        # Strict: in doubt, and so until somebody settles it. A lease counts from the start of this engine too.
        assert wait_until(lambda: c("BEGIN", "shop", "doubt")[0] == "doubt")
        assert c("BEGIN", "shop", "running")[0] in ("busy", "doubt")
        assert c("FINISH", "shop", "running", fence_of["running"], "SUCCEEDED", "late")[0] == "ok"
        assert c("SETTLE", "shop", "doubt", "AS", "FAILED", "no")[0] == "settled"
        for id in ("loose", "released", "forgotten", "new"):
            answer = wait_until(lambda: next((a for a in [c("BEGIN", "shop", id)] if a[0] != "busy"), None))
            assert answer[0] == "started" and answer[1] > newest, (id, answer)
        assert c("REDEEM", tokens["issued"], "user-1")[0] == "redeemed"
        assert c("REDEEM", tokens["redeemed"], "user-1")[0] == "duplicate"
        assert c("REDEEM", tokens["issued"], "user-2")[0] == "unknown"
        assert "form stored" in c("BEGIN", "user-1", tokens["done"], "TOKEN")
        assert wait_until(lambda: c("BEGIN", "user-1", tokens["doubt"], "TOKEN")[0] == "doubt")
        assert c("UNLOCK", "held", fence_of["held"])[0] == "ok"
        for name in ("held", "over", "given-back"):
            assert wait_until(lambda: (answer := c("LOCK", name, "owner-2", 1000))[0] == "started" and answer[1] > newest)


def test_ids_of_0_1_are_never_given_out_again(old):
    told, server = old
    with server.client() as c:
        for kind, given in told["ids"].items():
            # The killed server's worker number may be leased for half a minute more.
            now = wait_until(lambda: next((a for a in [c("ID", kind, 1000)] if a[0] == "ids"), ["none"]))
            assert min(int(n) for n in now[1:]) > max(given), kind


@pytest.mark.parametrize("old", ["postgres", "mariadb"], indirect=True)
def test_store_init_brings_the_tables_and_functions_of_0_1_up_to_date(old):
    told, server = old
    idem("store", "init", server.store)
    assert set(records(server)) >= {(r["type"], r["scope"], r["id"]) for r in of(told, "request", "succeeded")}
    with server.client() as c:
        assert '{"order":7}' in c("BEGIN", "shop", "succeeded")
