"""The audit trail: what operators did, who did it, and what it changed."""
import json
import os
import resource
import subprocess

import pytest

from lib import IDEM, Server, folder, wait_until
from test_rights import call, write_credentials

CREDENTIALS = ["ops ops-secret-123456 operate", "desk desk-secret-123456 view", "shop shop-secret-123456 use",
               "eu eu-secret-123456 view eu"]


def idem(server, *argv, **env):
    done = subprocess.run([IDEM, *argv, "--server", "unix:" + server.socket], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **env})
    return done


def entries(server, *argv):
    auth = {"IDEM_AUTH": "ops:ops-secret-123456"} if "--credentials" in server.argv else {}
    done = idem(server, "audit", "--json", *argv, **auth)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def doubt(c, scope, id):
    """A strict request whose holder is gone; the server watched its lease end."""
    assert c("BEGIN", scope, id, "LEASE", "100")[0] == "started"
    assert wait_until(lambda: c("BEGIN", scope, id)[0] == "doubt")


@pytest.fixture(scope="module")
def served():
    with folder() as where:
        with Server(where, "--credentials", write_credentials(where, *CREDENTIALS), http=True,
                    store="journal:" + where + "/j") as s:
            s.where = where
            with s.client() as c:
                c("AUTH", "ops", "ops-secret-123456")
                doubt(c, "shop", "order-7")
                doubt(c, "eu", "order-8")
                c("FINISH", "shop", "done", c("BEGIN", "shop", "done")[1], "SUCCEEDED", "x")
                s.lock_fence = c("LOCK", "nightly", "a host", "600000")[1]
                assert c("SETTLE", "shop", "order-7", "REASON", "the bank says no", "AS", "FAILED", "no")[0] == "settled"
                assert c("SETTLE", "shop", "order-7", "AS", "SUCCEEDED", "x")[0] == "replay"
                assert c("FORGET", "shop", "done", "REASON", "a drill")[0] == "ok"
                assert c("FORGET", "shop", "never-there")[0] == "absent"
                assert c("UNLOCK", "nightly", s.lock_fence, "REASON", "its host burned")[0] == "ok"
                c("FINISH", "shop", "quiet", c("BEGIN", "shop", "quiet")[1], "SUCCEEDED", "x")
            status, said = call(s.http, "POST", "/v1/records/eu/order-8/settle", auth="ops:ops-secret-123456",
                                outcome="succeeded", result="paid", reason="ticket 8")
            assert said["verdict"] == "settled", said
            yield s


def test_the_trail_tells_who_did_what_and_what_it_changed(served):
    told = [(e["verb"], e["scope"], e["id"], e["outcome"], e["verdict"], e["before"], e["after"], e["reason"])
            for e in entries(served)]
    assert told == [
        ("settle", "shop", "order-7", "failed", "settled", "doubt", "failed", "the bank says no"),
        ("settle", "shop", "order-7", "succeeded", "replay", "failed", "failed", ""),
        ("forget", "shop", "done", "-", "ok", "succeeded", "free", "a drill"),
        ("forget", "shop", "never-there", "-", "absent", "absent", "absent", ""),
        ("unlock", "locks", "nightly", "-", "ok", "executing", "free", "its host burned"),
        ("settle", "eu", "order-8", "succeeded", "settled", "doubt", "succeeded", "ticket 8")]
    first, last = entries(served)[0], entries(served)[-1]
    assert first["who"] == last["who"] == "ops" and first["from"].startswith("uid=") and last["from"] == "127.0.0.1"
    assert first["surface"] == "resp" and last["surface"] == "http" and first["time"] <= last["time"]


def test_it_can_be_narrowed_by_scope_id_and_count(served):
    assert [e["id"] for e in entries(served, "--scope", "eu")] == ["order-8"]
    assert [e["verdict"] for e in entries(served, "--id", "order-7")] == ["settled", "replay"]
    assert [e["id"] for e in entries(served, "--count", "2")] == ["nightly", "order-8"]
    assert idem(served, "audit", "--count", "0").returncode == 2
    line = idem(served, "audit", "--id", "order-8", IDEM_AUTH="ops:ops-secret-123456").stdout
    assert line.endswith(' ops settle eu order-8 settled: doubt -> succeeded "ticket 8"\n'), line


def test_http_lists_the_same(served):
    status, said = call(served.http, "GET", "/v1/audit", auth="desk:desk-secret-123456")
    assert status == 200 and said == {"verdict": "entries", "entries": entries(served)}
    assert len(call(served.http, "GET", "/v1/audit?scope=shop&id=done&count=1", auth="desk:desk-secret-123456")[1]["entries"]) == 1
    assert call(served.http, "GET", "/v1/audit", auth="shop:shop-secret-123456")[0] == 403
    assert call(served.http, "GET", "/v1/audit", auth="eu:eu-secret-123456")[0] == 403
    assert call(served.http, "GET", "/v1/audit?scope=eu", auth="eu:eu-secret-123456")[0] == 200


@pytest.mark.parametrize("words", [["COUNT"], ["COUNT", "0"], ["COUNT", "1001"], ["SCOPE", "x", "ID"], ["NONSENSE", "x"]])
def test_a_wrong_question_is_refused(served, words):
    with served.client() as c:
        c("AUTH", "ops", "ops-secret-123456")
        assert "AUDIT [SCOPE s]" in str(c("AUDIT", *words))


def test_the_file_has_a_line_each_and_only_its_owner_reads_it(served):
    path = served.where + "/j/audit.jsonl"
    with open(path) as f:
        assert [json.loads(line) for line in f] == entries(served)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_trail_survives_a_kill_and_a_torn_line():
    with folder() as where:
        start = lambda: Server(where, store="journal:" + where + "/j")  # noqa: E731
        with start() as s, s.client() as c:
            c("FORGET", "shop", "1", "REASON", "first")
            s.kill()
        with open(where + "/j/audit.jsonl", "a") as f:
            f.write('{"time":"torn')
        with start() as s, s.client() as c:
            c("FORGET", "shop", "2", "REASON", "second")
        with start() as s:
            assert [e["reason"] for e in entries(s)] == ["first", "second"]


def test_the_file_is_rotated_and_memory_is_bounded():
    with folder() as where:
        file = where + "/trail"
        with Server(where, "--audit", file, "--audit-size", "64k", store="memory:") as s, s.client() as c:
            for i in range(1500):
                assert c("FORGET", "shop", "order-%d" % i, "REASON", "x" * 200)[0] == "absent"
            kept = entries(s, "--count", "1000")
            assert [e["id"] for e in kept] == ["order-%d" % i for i in range(500, 1500)]
            assert sorted(os.listdir(where)) == ["s", "trail", "trail.1"]
            assert os.path.getsize(file) <= 65536 and os.path.getsize(file + ".1") <= 65536


def test_without_a_file_the_trail_is_in_memory():
    with folder() as where:
        with Server(where, "--audit", "none", store="journal:" + where + "/j") as s, s.client() as c:
            c("FORGET", "shop", "1")
            assert len(entries(s)) == 1 and not os.path.exists(where + "/j/audit.jsonl")
        with Server(where, store="memory:") as s:
            assert entries(s) == []


def test_a_file_that_cannot_be_written_is_told():
    with folder() as where:
        refused = subprocess.run([IDEM, "serve", "--store", "memory:", "--socket", where + "/s", "--audit", where + "/no/f"],
                                 capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "/no/f" in refused.stderr and "--audit" in refused.stderr
        with Server(where, "--audit", "/dev/full", store="memory:") as s, s.client() as c:
            assert c("FORGET", "shop", "1")[0] == "absent"
            assert wait_until(lambda: "event=audit-failed" in s.output())
            assert len(entries(s)) == 1


def test_a_command_that_opens_a_journal_itself_leaves_its_line_there():
    with folder() as where:
        store = "journal:" + where + "/j"
        run = lambda *argv: subprocess.run([IDEM, *argv, "--store", store], capture_output=True, text=True, timeout=60)  # noqa: E731
        assert run("begin", "shop", "1").returncode == 0
        assert run("forget", "shop", "1", "--reason", "by hand").returncode == 0
        with Server(where, store=store) as s:
            entry, = entries(s)
        assert (entry["surface"], entry["verb"], entry["before"], entry["after"], entry["reason"]) == \
            ("cli", "forget", "executing", "free", "by hand")


def limit_files(pid, size):
    """As a disk that is full does: a write goes as far as the limit, the next one fails."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_line_that_was_cut_by_a_full_disk_does_not_spoil_the_next_one():
    with folder() as where:
        file = where + "/trail"
        with Server(where, "--audit", file, store="memory:") as s, s.client() as c:
            c("FORGET", "shop", "1", "REASON", "first")
            limit_files(s.pid, os.path.getsize(file) + 50)
            c("FORGET", "shop", "2", "REASON", "cut")
            limit_files(s.pid, resource.RLIM_INFINITY)
            c("FORGET", "shop", "3", "REASON", "third")
            assert [e["reason"] for e in entries(s)] == ["first", "cut", "third"]
        with open(file) as f:
            assert len(f.read().splitlines()) == 3, "the cut line stays where it is"
        with Server(where, "--audit", file, store="memory:") as s:
            assert [e["reason"] for e in entries(s)] == ["first", "third"]


def test_a_file_that_somebody_moved_or_deleted_is_begun_anew():
    with folder() as where:
        file = where + "/trail"
        with Server(where, "--audit", file, store="memory:") as s, s.client() as c:
            for n, away in enumerate((os.unlink, lambda f: os.rename(f, f + ".moved"))):
                c("FORGET", "shop", "1")
                away(file)
                c("FORGET", "shop", "2", "REASON", "after %d" % n)
                with open(file) as f:
                    assert [json.loads(line)["reason"] for line in f] == ["after %d" % n]
            assert os.stat(file).st_mode & 0o777 == 0o600 and "audit-failed" not in s.output()


def test_a_file_that_cannot_be_rotated_is_told_and_loses_nothing():
    with folder() as where:
        file = where + "/trail"
        os.makedirs(file + ".1/in-the-way")
        with Server(where, "--audit", file, "--audit-size", "64k", store="memory:") as s, s.client() as c:
            for i in range(200):
                c("FORGET", "shop", str(i), "REASON", "x" * 250)
            assert "event=audit-failed" in s.output() and "trail" in s.output()
            with open(file) as f:
                assert [json.loads(line)["id"] for line in f] == [str(i) for i in range(200)]


def test_a_device_is_never_rotated():
    with folder() as where:
        subprocess.run(["mknod", where + "/null", "c", "1", "3"], check=True)
        with Server(where, "--audit", where + "/null", "--audit-size", "64k", store="memory:") as s, s.client() as c:
            for i in range(300):
                c("FORGET", "shop", str(i), "REASON", "x" * 250)
            assert os.listdir(where).count("null") == 1 and not os.path.exists(where + "/null.1")
            assert len(entries(s, "--count", "1000")) == 300


def test_a_trail_that_somebody_edited_cannot_talk_to_a_terminal():
    with folder() as where:
        file = where + "/trail"
        with open(file, "w") as f:
            f.write('{}\n[]\n7\n{"time":5,"who":"\\u001b[2Jmallory\\n","verb":"\\u001b]0;x","scope":["x"],"reason":null}\n')
        with Server(where, "--audit", file, store="memory:") as s:
            done = idem(s, "audit")
            assert done.returncode == 0 and "\x1b" not in done.stdout and done.stdout.count("\n") == 2, done
            assert "mallory" in done.stdout and len(entries(s)) == 2
