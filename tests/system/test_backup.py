"""idem backup, idem restore and idem store copy: nothing that was acknowledged is missing, and nothing runs again."""
import json
import subprocess
import threading

from lib import IDEM, Process, Resp, wait_until
from servers import Postgres


def idem(*argv, code=0):
    done = subprocess.run([IDEM, *map(str, argv)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == code, (argv, done.stdout, done.stderr)
    return done.stdout + done.stderr


class Load:
    """Clients that begin and finish orders until they are stopped; what was acknowledged, in order."""

    def __init__(self, socket, clients=4):
        self.socket, self.told, self.stopping = socket, [], False
        self.threads = [threading.Thread(target=self.work, args=(n,)) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def work(self, n):
        resp = Resp(self.socket)
        for i in range(1000000):
            if self.stopping:
                return
            key = "order-%d-%d" % (n, i)
            begun = resp("BEGIN", "shop", key)
            if i % 5 == 0:
                self.told.append((key, "busy"))
                continue
            resp("FINISH", "shop", key, begun[1], "SUCCEEDED", key)
            self.told.append((key, "replay"))

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()


def test_a_backup_of_a_running_server_has_all_that_was_acknowledged(tmp_path):
    live, copy, restored, sock = (str(tmp_path / n) for n in ("live", "copy", "restored", "s"))
    with Process([IDEM, "serve", "--store", "journal:" + live, "--socket", sock], ready=sock):
        load = Load(sock)
        try:
            for _ in range(4):
                more = len(load.told) + 400
                assert wait_until(lambda: len(load.told) >= more)
                before = list(load.told)
                told = json.loads(idem("backup", "journal:" + live, copy, "--json", "--check"))
                assert told["segments"] >= 1 and told["records"] > 0
        finally:
            load.stop()
    assert "; the newest change in it is of " + told["time"] in idem("restore", copy, restored)
    with Process([IDEM, "serve", "--store", "journal:" + restored, "--socket", sock], ready=sock):
        resp = Resp(sock)
        for key, verdict in before:
            answer = resp("BEGIN", "shop", key)
            assert answer[0] in ((verdict, "doubt") if verdict == "busy" else (verdict,)), (key, answer)
            assert verdict == "busy" or key in answer


def test_what_cannot_be_right_is_refused_with_what_to_do(tmp_path):
    live, other, copy = (str(tmp_path / n) for n in ("live", "other", "copy"))
    idem("begin", "shop", "a", "--store", "journal:" + live)
    idem("begin", "shop", "b", "--store", "journal:" + other)
    idem("backup", live, copy)
    assert "holds another journal, or a copy that was opened since: name an empty folder" in idem("backup", other, copy, code=2)
    assert "already holds a journal" in idem("restore", copy, live, code=2)
    for wrong in ("backup", "restore"):
        told = idem(wrong, tmp_path, tmp_path / "x", code=2)
        assert "there is no journal in %s: name the folder" % tmp_path in told and not (tmp_path / "x").exists()
        told = idem(wrong, "/nonexistent", tmp_path / "x", code=2)
        assert {"backup": "there is no folder /nonexistent: name the folder of a journal",
                "restore": "there is no backup at /nonexistent: name the folder that idem backup wrote"}[wrong] in told, told
        assert not (tmp_path / "x").exists()
    assert "there is no folder /nonexistent" in idem("journal", "check", "/nonexistent", code=2)
    assert "there is no folder /nonexistent" in idem("journal", "dump", "/nonexistent", code=2)
    assert "idem store copy" in idem("backup", "postgres://db/x", copy, code=2)
    assert "executing" in idem("get", "shop", "a", "--store", "journal:" + copy)  # none of that harmed the copy
    idem("begin", "shop", "c", "--store", "journal:" + live)
    assert "a copy that was opened since" in idem("backup", live, copy, code=2)


def test_records_move_from_a_journal_to_postgres_and_back(tmp_path):
    first, last = "journal:%s" % (tmp_path / "a"), "journal:%s" % (tmp_path / "b")
    for n in range(30):
        said = idem("begin", "shop", "order-%d" % n, "--store", first, "--json")
        if n % 3:
            idem("finish", "shop", "order-%d" % n, json.loads(said)["fence"], "succeeded", "answer %d" % n, "--store", first)
    db = Postgres()
    try:
        idem("store", "init", db.url)
        assert "30 records" in idem("store", "copy", first, db.url)
        assert "30 records" in idem("store", "copy", first, db.url)  # again: they are there
        assert "30 records" in idem("store", "copy", db.url, last)
        idem("forget", "shop", "order-1", "--store", first)
        idem("begin", "shop", "order-1", "--store", first)
        told = idem("store", "copy", first, db.url, code=1)
        assert "1 keys were not copied" in told
    finally:
        db.stop()
    records = lambda url: sorted(idem("scan", "--store", url, "--json").splitlines())  # noqa: E731
    for n in (0, 2, 28):
        one, two = (json.loads(idem("get", "shop", "order-%d" % n, "--store", url, "--json")) for url in (first, last))
        assert one == two and (n % 3 == 0 or "answer %d" % n in json.dumps(two))
    assert len(records(last)) == 30
