"""idem journal: the files of a journal, running, dead and damaged; and docs/journal-format.md, followed to the byte."""
import hashlib
import json
import os
import struct
import subprocess

import pytest
from lib import IDEM, Server, folder


def idem(*args):
    done = subprocess.run([IDEM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
    assert code != 0 and "in use by process %d" % server.pid in err


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
    assert (magic, version, row_len, number, end, rows) == (b"idemidx\n", 1, 40, 1, len(data), 2)
    assert len(saved) == 64 + 40 * rows + 8
    tag, rev, prev, place, size, drop_s, kind = struct.unpack("<3Q4I", saved[64:104])
    head = data[place * 8:place * 8 + 88]
    assert kind == 1 and struct.pack(">Q", tag) == head[56:64] and struct.unpack("<Q", head[32:40])[0] == rev
    assert (rev, prev) == (seen[1][2], seen[1][3]) and drop_s * 1000 >= struct.unpack("<Q", head[48:56])[0]
