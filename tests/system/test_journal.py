"""idem journal: the files of a journal, running, dead and damaged; and docs/journal-format.md, followed to the byte."""
import contextlib
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess

import pytest
from gateway import Gateway
from lib import IDEM, ROOT, Process, Server, folder, free_port, wait_until


def idem(*args):
    done = subprocess.run([IDEM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def fingerprint(where):
    return {name: hashlib.sha256(open(os.path.join(where, name), "rb").read()).hexdigest()
            for name in os.listdir(where)}


@pytest.fixture
def served():
    """A server that has answered, and its folder; killed at the end."""
    with folder() as f, Server(f) as server, server.client() as c:
        fence = c("BEGIN", "shop", "order-1")[1]
        assert c("FINISH", "shop", "order-1", fence, "SUCCEEDED", "done")[0] == "ok"
        c("BEGIN", "shop", "order-2")
        yield server, os.path.join(f, "journal")


def test_check_and_dump_work_on_a_running_journal(served):
    _, where = served
    code, out, _ = idem("journal", "check", where, "--json")
    report = json.loads(out)
    assert code == 0 and report["records"] == 2 and report["executing"] == 1 and report["damage"] == []
    code, out, _ = idem("journal", "dump", where)
    assert code == 0 and out.count("\n") == 2
    assert "request executing" in out and "shop order-2" in out
    code, out, _ = idem("journal", "dump", where, "--all", "--results", "--json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert [e["live"] for e in entries if e.get("id") == "order-1"] == [False, True]
    assert [e["result"] for e in entries if e.get("id") == "order-1" and e["live"]] == ["done"]


def test_check_and_dump_change_nothing_in_a_dead_journal(served):
    server, where = served
    server.kill()
    before = fingerprint(where)
    assert idem("journal", "check", where)[0] == 0
    assert idem("journal", "check", "journal:" + where) == idem("journal", "check", where)
    assert idem("journal", "dump", "journal:" + where) == idem("journal", "dump", where)
    assert idem("journal", "dump", where, "--all")[0] == 0
    assert fingerprint(where) == before


def test_a_damaged_place_is_named_and_the_journal_stays_shut(served):
    server, where = served
    server.stop()
    segment = os.path.join(where, "0000000000000001.seg")
    with open(segment, "r+b") as f:
        at = f.read().index(b"order-1")
        f.seek(at)
        f.write(b"ORDER")
    code, out, _ = idem("journal", "check", where)
    assert code == 1 and "damaged: segment 0000000000000001 at offset 64" in out
    code, out, _ = idem("journal", "check", where, "--json")
    assert code == 1 and json.loads(out)["damage"][0]["offset"] == 64
    os.remove(os.path.join(where, "0000000000000001.idx"))
    url = "journal:" + where
    code, _, err = idem("get", "shop", "order-2", "--store", url)
    assert code != 0 and "is damaged at offset 64" in err and "damage=accept" in err
    code, out, err = idem("get", "shop", "order-2", "--store", url + "?damage=accept")
    assert "executing" in out and "going on without" in err


def test_what_is_no_journal_is_said_to_be_none():
    with folder() as f:
        code, _, err = idem("journal", "check", f)
        assert code == 2 and "no journal in" in err
        assert idem("journal", "check", f + "/nowhere")[0] != 0
        assert idem("journal", "look", f)[0] == 2
        assert idem("journal", "check")[0] == 2


def test_a_second_process_is_told_who_has_the_folder(served):
    server, where = served
    code, _, err = idem("get", "shop", "order-1", "--store", "journal:" + where)
    ask = "in use by process %d: ask that server: --server unix:%s" % (server.pid, server.socket)
    assert code == 20 and ask in err and "stop it" not in err
    for command in (["doubts"], ["find", "order-1"], ["scan"], ["id", "segment:orders"]):
        assert ask in idem(*command, "--store", "journal:" + where)[2], command
    code, out, _ = idem("get", "shop", "order-1", "--server", "unix:" + server.socket)
    assert code == 0 and "succeeded" in out
    with folder() as other:
        code, _, err = idem("serve", "--store", "journal:" + where, "--socket", other + "/s")
        assert code == 1 and "process %d: stop it, or name another folder" % server.pid in err


def test_a_holder_that_is_no_server_is_named_without_a_socket():
    with folder() as f:
        url = "journal:" + f + "/j"
        with Process([IDEM, "run", "shop", "slow", "--store", url, "--", "sh", "-c", "touch %s/on; sleep 60" % f]) as holder:
            assert wait_until(lambda: os.path.exists(f + "/on"))
            code, _, err = idem("get", "shop", "slow", "--store", url)
            assert code == 20 and "process %d: if it is a server, ask it: --server unix:PATH\n" % holder.pid in err


def test_a_consumer_that_holds_the_journal_is_named():
    with folder() as f:
        url, lock = "journal:" + f + "/j", f + "/j/lock"
        source = "redis-stream://127.0.0.1:%d?stream=s&group=g" % free_port()  # it tries again
        with Process([IDEM, "consume", source, "--store", url, "--to", "http://127.0.0.1:1/"]) as holder:
            assert wait_until(lambda: os.path.exists(lock) and open(lock).read().startswith(str(holder.pid)))
            code, _, err = idem("get", "shop", "slow", "--store", url)
            assert code == 20 and "process %d, which is idem consume: stop the consumer, or let both use a server\n" % holder.pid in err, err


def test_the_engine_of_a_gateway_is_named_as_such():
    with folder() as f, Gateway(f, free_port()) as gateway:
        code, _, err = idem("get", "shop", "slow", "--store", "journal:" + f + "/journal")
        assert code == 20, gateway.output()
        address = re.search(r": ask that server: --server (unix:\S+/engine.sock) \(a gateway started it\)\n", err).group(1)
        assert idem("get", "shop", "slow", "--server", address)[0] == 16


def test_a_removed_lock_file_lets_nobody_in(served):
    server, where = served
    os.remove(os.path.join(where, "lock"))
    code, out, err = idem("begin", "shop", "order-9", "--store", "journal:" + where)
    assert code != 0 and out == "" and "is in use by" in err
    server.stop()
    code, out, _ = idem("get", "shop", "order-1", "--store", "journal:" + where)
    assert code == 0 and "succeeded" in out


def test_a_folder_moved_while_in_use_and_the_new_one_in_its_place_stay_apart():
    """Each server keeps to the folder that it opened: names of files are looked up there, not by the path."""
    def fill(client, name):
        for i in range(12):  # 12 MiB: the journal goes on to a second segment
            fence = client("BEGIN", "shop", "%s-%d" % (name, i))[1]
            assert client("FINISH", "shop", "%s-%d" % (name, i), fence, "SUCCEEDED", "x" * 1000000)[0] == "ok"

    with folder() as f, folder() as other, Server(f) as first:
        where, moved = os.path.join(f, "journal"), os.path.join(f, "moved")
        with first.client() as c:
            c("BEGIN", "shop", "before")
            os.rename(where, moved)
            with Server(other, store="journal:" + where) as second, second.client() as d:
                fill(c, "first")
                fill(d, "second")
        first.stop()
        for path, name, count in ((moved, "first", 13), (where, "second", 12)):
            code, out, _ = idem("journal", "check", path, "--json")
            report = json.loads(out)
            assert code == 0 and report["records"] == count and report["segments"] > 1, (path, report)
            code, out, _ = idem("get", "shop", name + "-11", "--store", "journal:" + path, "--json")
            assert code == 0 and json.loads(out)["state"] == "succeeded"


@contextlib.contextmanager
def somebody_elses():
    """A folder that belongs to another user than the one who runs the test."""
    with folder() as f:
        if os.geteuid() == 0:
            os.chown(f, 65534, 65534)
            yield f
        else:
            yield "/usr/share"


def test_a_folder_of_another_user_is_refused():
    with somebody_elses() as f:
        before = os.listdir(f)
        code, _, err = idem("begin", "shop", "order-1", "--store", "journal:" + f)
        assert code != 0 and "belongs to user" in err and "name another folder" in err
        assert os.listdir(f) == before


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_can_write_is_refused(mode):
    with folder() as f:
        os.chmod(f, mode)
        code, _, err = idem("begin", "shop", "order-1", "--store", "journal:" + f)
        assert code != 0 and "other users can write" in err and "chmod go-w" in err
        assert os.listdir(f) == []
        os.chmod(f, mode & ~0o022)
        assert idem("begin", "shop", "order-1", "--store", "journal:" + f)[0] == 0


def test_a_link_made_by_another_user_is_refused_and_ones_own_is_followed():
    with folder() as f:
        os.mkdir(f + "/j", 0o700)
        os.symlink(f + "/j", f + "/link")
        assert idem("begin", "shop", "order-1", "--store", "journal:" + f + "/link")[0] == 0
        if os.geteuid() == 0:
            os.lchown(f + "/link", 65534, 65534)
            code, _, err = idem("get", "shop", "order-1", "--store", "journal:" + f + "/link")
            assert code != 0 and "symbolic link" in err


@pytest.mark.parametrize("name", ["lock", "clock", "spare", "reserve", "0000000000000001.seg", "0000000000000001.idx"])
@pytest.mark.parametrize("what", ["link", "fifo"])
def test_what_is_no_regular_file_is_never_followed(name, what):
    with folder() as f:
        where, victim = f + "/j", f + "/victim"
        assert idem("begin", "shop", "order-1", "--store", "journal:" + where)[0] == 0
        with open(victim, "w") as v:
            v.write("precious")
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(where, name))
        if what == "link":
            os.symlink(victim, os.path.join(where, name))
        else:
            os.mkfifo(os.path.join(where, name))
        idem("begin", "shop", "order-2", "--store", "journal:" + where)
        idem("journal", "check", where)
        with Server(f, store="journal:" + where) if name in ("spare", "reserve") else contextlib.nullcontext():
            pass  # its helper makes both
        with open(victim) as v:
            assert v.read() == "precious"
        if name in ("lock", "0000000000000001.seg"):
            code, _, err = idem("begin", "shop", "order-3", "--store", "journal:" + where)
            assert code != 0 and ("symbolic link" if what == "link" else "not a regular file") in err, err


def test_root_may_look_at_a_journal_of_a_service_and_not_open_it(served):
    """Opened by root, it would get files that the service cannot read."""
    server, where = served
    server.stop()
    if os.geteuid() != 0:
        return  # only root can make this folder; test_a_folder_of_another_user_is_refused says the rest
    for name in [where, *(os.path.join(where, n) for n in os.listdir(where))]:
        os.chown(name, 65534, 65534)
    assert idem("journal", "check", where)[0] == 0
    assert idem("journal", "check", "journal:" + where) == idem("journal", "check", where)
    assert idem("journal", "dump", "journal:" + where) == idem("journal", "dump", where)
    code, _, err = idem("get", "shop", "order-1", "--store", "journal:" + where)
    assert code != 0 and "belongs to user" in err


def test_the_format_is_as_documented(served):
    """A reader made from docs/journal-format.md alone (its checksums apart)."""
    server, where = served
    server.stop()
    data = open(os.path.join(where, "0000000000000001.seg"), "rb").read()
    magic, version, length, number, _, prev_end, time_us, first_batch, _ = struct.unpack("<8sII6Q", data[:64])
    assert (magic, version, length, number, prev_end) == (b"idemlog\n", 1, 64, 1, 0)
    assert time_us > 1.6e15
    at, batch, last_flag, seen = 64, first_batch, 0, []
    while at < len(data):
        _, body_len, kind, flags, _, number, time_us, rev, prev, drop, key = struct.unpack("<QIBBH5Q32s", data[at:at + 88])
        batch += last_flag
        assert number == batch and kind in (1, 2, 3) and flags < 4
        body = data[at + 88:at + 88 + body_len]
        if kind == 1:
            scope_len, id_len = body[6], body[7]
            assert struct.unpack("<Q", body[32:40])[0] == rev
            start = 80 + (32 if body[5] & 1 else 0)
            scope = body[start:start + scope_len]
            name = body[start + scope_len:start + scope_len + id_len]
            assert key == hashlib.sha256(bytes([body[1]]) + struct.pack(">H", scope_len) + scope +
                                         struct.pack(">H", id_len) + name).digest()
            assert bool(flags & 2) == (body[2] == 2) and (drop == 0) == (body[2] == 2)
            seen.append((name, body[2], rev, prev))
        last_flag = flags & 1
        at += (88 + body_len + 7) // 8 * 8
    assert at == len(data) and kind == 3
    assert [(s[0], s[1]) for s in seen] == [(b"order-1", 2), (b"order-1", 3), (b"order-2", 2)]
    assert seen[1][3] == seen[0][2] and seen[0][3] == 0

    saved = open(os.path.join(where, "0000000000000001.idx"), "rb").read()
    magic, version, row_len, number, _, end, _, _, rows = struct.unpack("<8sII6Q", saved[:64])
    assert (magic, version, row_len, number, end, rows) == (b"idemidx\n", 3, 28, 1, len(data), 2)
    assert struct.unpack("<II", saved[72:80]) == (0, 0) and struct.unpack("<Q", saved[88:96])[0] == 0  # one slice, from row 0 on
    assert len(saved) == 88 + 16 + 28 * rows
    tag, place, size, drop_s, back, old = struct.unpack("<Q5I", saved[104:132])
    head = data[place * 8:place * 8 + 88]
    assert struct.pack(">Q", tag) == head[56:64] and struct.unpack("<Q", head[32:40])[0] == seen[1][2]
    assert size == (88 + struct.unpack("<I", head[8:12])[0] + 7) // 8 and drop_s * 1000 >= struct.unpack("<Q", head[48:56])[0]
    assert (back, old) == (2 ** 32 - 1, 0)  # the claim that it replaced is in the same segment and has no row
    _, _, size, drop_s, back, _ = struct.unpack("<Q5I", saved[132:160])
    assert size >> 31 and drop_s == 0 and back == 2 ** 32 - 1


def written_by_0_1(where):
    """Its server wrote this and was stopped with shop order-8 running. The records expire in 2036."""
    return shutil.copytree(ROOT + "/tests/support/journal-0.1", where + "/journal")


def test_a_journal_of_0_1_opens_and_keeps_its_time():
    with folder() as f:
        where = written_by_0_1(f)
        code, out, _ = idem("journal", "check", where)
        assert code == 0 and "no damage" in out
        for _ in range(2):  # the second time with a clock file
            code, out, _ = idem("begin", "shop", "order-7", "--store", "journal:" + where)
            assert code == 10 and "replay" in out and 'result: {"order":7}' in out, out
            assert os.path.exists(os.path.join(where, "clock"))
        # its saved index has the form of 0.1, so the segment was read, and its index saved in today's form
        code, out, _ = idem("journal", "check", where)
        assert code == 0 and re.search(r"[1-9] saved, 0 not usable", out), out
        assert version_of_saved(written_by_0_1(f + "/old")) == 1 and version_of_saved(where) == 3


def test_saved_indexes_of_version_2_are_made_again():
    """Written before 0.9.0 was released: order-7 and order-9 are finished, each in a later segment than its claim."""
    with folder() as f:
        where = shutil.copytree(ROOT + "/tests/support/journal-0.9-index-2", f + "/journal")
        assert [version_of_saved(where, n) for n in range(2, 8)] == 6 * [2]
        with Server(f) as server, server.client() as c:
            answer = c("BEGIN", "shop", "order-7")
            assert (answer[0], answer[-1]) == ("replay", '{"order":7}')
            assert c("BEGIN", "shop", "order-8")[0] in ("busy", "doubt")
            assert c("BEGIN", "shop", "order-9")[0] == "replay" and "failed" in c("GET", "shop", "order-9")
            assert c("BEGIN", "shop", "order-11")[0] == "started"
            assert "journal_index_loading:0" in c("INFO")
        assert [version_of_saved(where, n) for n in range(2, 9)] == 7 * [3]
        code, out, _ = idem("journal", "check", where)
        assert code == 0 and re.search(r"[1-9] saved, 0 not usable", out), out


def version_of_saved(where, number=1):
    with open(os.path.join(where, "%016x.idx" % number), "rb") as file:
        return struct.unpack("<8sI", file.read(12))[1]


def test_a_journal_of_0_1_is_served_on():
    with folder() as f:
        written_by_0_1(f)
        with Server(f) as server, server.client() as c:
            answer = c("BEGIN", "shop", "order-7")
            assert (answer[0], answer[-1]) == ("replay", '{"order":7}')
            assert c("BEGIN", "shop", "order-9")[0] == "replay" and "failed" in c("GET", "shop", "order-9")
            assert c("BEGIN", "shop", "order-8")[0] in ("busy", "doubt")
            assert c("REDEEM", "lJ3yoyaurdLDxvBGfyMMrFUdiQ6FxdnD", "pay")[0] == "redeemed"
            assert c("REDEEM", "lJ3yoyaurdLDxvBGfyMMrFUdiQ6FxdnD", "pay")[0] == "duplicate"
