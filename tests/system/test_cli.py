"""The command line: verbs on a store, exit codes, output for people and programs, bad input."""
import base64
import json
import os
import pty
import re
import subprocess
import threading
import time

import pytest

from lib import IDEM, ROOT, Error, Server, folder, open_files, wait_until


class Cli:
    """idem on one store. Called, it gives (exit code, standard output); what was said is in .said"""

    def __init__(self, url, where):
        self.url, self.where = url, where

    def __call__(self, *args, data=b"", store=True, env=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
        if store:
            clean["IDEM_STORE"] = self.url
        args = [a if isinstance(a, bytes) else str(a) for a in args]
        result = subprocess.run([IDEM, *args], input=data, env={**clean, **(env or {})},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.raw, self.said = result.stdout, result.stderr.decode(errors="replace")
        return result.returncode, result.stdout.decode(errors="replace")

    def json(self, *args, **more):
        code, out = self(*args, "--json", **more)
        return code, json.loads(out)


@pytest.fixture(params=["journal", "sqlite"])
def idem(request):
    with folder() as where:
        os.mkdir(where + "/j")
        os.close(os.open(where + "/db", os.O_CREAT, 0o600))
        yield Cli({"journal": "journal:" + where + "/j", "sqlite": "sqlite:" + where + "/db"}[request.param], where)


@pytest.fixture
def bare():
    with folder() as where:
        os.mkdir(where + "/j")
        yield Cli("journal:" + where + "/j", where)


def fields(out):
    return dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)


def test_a_request_from_begin_to_replay(idem):
    code, out = idem("begin", "shop", "order-7")
    assert code == 0 and out.startswith("started\n")
    fence = fields(out)["fence"]
    code, out = idem("begin", "shop", "order-7")
    assert code == 11 and out.startswith("busy\nretry after: ")
    code, out = idem("finish", "shop", "order-7", fence, "succeeded", '{"order":7}')
    assert code == 0 and out.startswith("ok\n")
    code, out = idem("begin", "shop", "order-7")
    assert code == 10 and out.startswith("replay\n") and fields(out)["result"] == '{"order":7}'
    assert idem("finish", "shop", "order-7", fence, "succeeded", '{"order":7}')[0] == 0
    assert idem("finish", "shop", "order-7", fence, "failed", "no")[0] == 14
    assert idem("finish", "shop", "order-7", int(fence) - 1, "failed", "no")[0] == 15
    code, out = idem("get", "shop", "order-7")
    assert code == 0 and out.startswith("record\n") and fields(out)["attempt"] == "1"
    assert idem("get", "shop", "order-8")[0] == 16


def test_release_renew_forget_and_settle(idem):
    fence = idem("begin", "s", "1", "-p", "fence")[1].strip()
    assert idem("renew", "s", "1", fence, "10m")[0] == 0
    assert idem("renew", "s", "1", fence, "0")[0] == 2
    assert idem("release", "s", "1", fence)[0] == 0
    assert idem("release", "s", "1", fence)[0] == 15
    again = idem("begin", "s", "1", "-p", "fence")[1].strip()
    assert int(again) > int(fence)
    assert idem("forget", "s", "1")[0] == 0
    assert "idem: s 1 was executing, and its lease had not ended" in idem.said
    assert idem("finish", "s", "1", again, "succeeded")[0] == 15
    fence = idem("begin", "s", "1", "-p", "fence")[1].strip()
    assert idem("forget", "s", "1", "--fence", again)[0] == 15 and "lease had not ended" not in idem.said
    assert idem("finish", "s", "1", fence, "succeeded")[0] == 0
    assert idem("forget", "s", "1")[0] == 0 and "lease had not ended" not in idem.said

    assert idem("settle", "s", "never", "--reason", "no such order")[0] == 0
    code, out = idem("begin", "s", "never")
    assert code == 10 and fields(out)["state"] == "failed" and fields(out)["result"] == "no such order"


def test_a_doubt_is_listed_and_settled(idem):
    assert idem("begin", "s", "slow", "--lease", "200ms")[0] == 0
    time.sleep(0.4)
    code, out = idem("scan", "--doubt")
    assert code == 0 and out.split()[-2:] == ["s", "slow"]
    code, out = idem("settle", "s", "slow", "--wait", "10s")
    assert code == 12 and out.startswith("doubt\nsince: ")
    code, _ = idem("settle", "s", "slow", "--as", "succeeded", "--result", "paid", "--wait", "10s")
    assert code == 0
    assert idem("begin", "s", "slow", "--print", "result") == (10, "paid")
    assert idem("scan", "--doubt") == (0, "")


def test_an_empty_list_names_what_was_asked(idem):
    """It may be the wrong server, and "nothing" would then be believed."""
    idem("scan")  # makes the journal, and says so
    for args, code, what in ((("doubts",), 0, "doubts"), (("doubts", "--scope", "s"), 0, "such doubts"), (("doubts", "--json"), 0, "doubts"),
                             (("scan",), 0, "such records"), (("find", "i"), 16, "record with this id in any scope")):
        assert idem(*args) == (code, "") and idem.said == "idem: no %s at %s\n" % (what, idem.url), args
    idem("begin", "s", "i", "--lease", "1ms")
    for args in (("doubts",), ("scan",), ("find", "i")):
        assert idem(*args)[1] != "" and idem.said == "", args
    with folder() as where, Server(where) as server:
        done = subprocess.run([IDEM, "doubts", "--server", server.socket], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "idem: no doubts at unix:%s\n" % server.socket)
        done = subprocess.run([IDEM, "doubts", "--store", "idem+unix:" + server.socket], capture_output=True, text=True, timeout=60)
        assert done.stderr == "idem: no doubts at unix:%s\n" % server.socket


WITH_A_FENCE = [("finish", "s", "i", "5", "succeeded", "r"), ("release", "s", "i", "5"), ("renew", "s", "i", "5", "1h"), ("unlock", "i", "5"),
                ("settle", "s", "i", "--as", "failed", "--fence", "5")]  # only a record that is there can have it


def test_looking_into_a_folder_that_is_missing_does_not_create_it(bare):
    """A mistyped name would look like a journal without records and without doubts."""
    wrong = bare.where + "/mistyped"
    for args in (("doubts",), ("scan",), ("find", "i"), ("get", "s", "i"), ("forget", "s", "i"), ("settle", "--all", "--as", "failed", "--yes"), *WITH_A_FENCE):
        for options in ("", "?clock=trust"):
            code, out = bare(*args, "--store", "journal:" + wrong + options)
            assert code == 2 and out == "" and "there is no folder %s: correct the name" % wrong in bare.said, (args, bare.said)
    assert not os.path.exists(wrong)
    os.mkdir(wrong)
    with open(wrong + "/notes", "w"):
        for args in (("doubts",), ("get", "s", "i"), ("finish", "s", "i", "5", "succeeded", "r")):
            code, out = bare(*args, "--store", "journal:" + wrong)
            assert code == 2 and out == "" and "there is no journal in the folder %s: correct the name" % wrong in bare.said, (args, bare.said)
    assert os.listdir(wrong) == ["notes"]
    assert bare("begin", "s", "i", "--store", "journal:" + wrong)[0] == 0 and bare("get", "s", "i", "--store", "journal:" + wrong)[0] == 0


def test_looking_into_an_empty_folder_says_that_it_was_empty(bare):
    """It may be a volume that is not mounted, and then nobody knows whether something is in doubt."""
    for n, args in enumerate((("doubts",), ("doubts", "--json"), ("scan",), ("find", "i"), ("get", "s", "i"), WITH_A_FENCE[0])):
        where = "%s/empty-%d" % (bare.where, n)
        os.mkdir(where)
        note = "idem: note: the folder %s was empty, and a new journal was created in it; is this the right folder" % where
        code, out = bare(*args, "--store", "journal:" + where)
        assert code != 2 and note in bare.said, (args, bare.said)
        again = bare(*args, "--store", "journal:" + where)
        assert again == (code, out) and "was empty" not in bare.said, (args, bare.said)


def test_looking_into_a_file_that_is_missing_does_not_create_it(bare):
    wrong = bare.where + "/mistyped"
    for args in (("doubts",), ("scan",), ("find", "i"), ("get", "s", "i"), ("forget", "s", "i"), ("settle", "--all", "--as", "failed", "--yes"),
                 ("settle", "s", "i", "--as", "failed"), *WITH_A_FENCE):
        for options in ("", "?mode=wal"):
            code, out = bare(*args, "--store", "sqlite:" + wrong + options)
            assert code == 2 and out == "" and "sqlite: there is no file %s: correct the name" % wrong in bare.said, (args, bare.said)
    assert not os.path.exists(wrong)
    assert bare("begin", "s", "i", "--store", "sqlite:" + wrong)[0] == 0 and bare("get", "s", "i", "--store", "sqlite:" + wrong)[0] == 0


@pytest.mark.parametrize("kind,options", [("journal", "?clock=trust"), ("sqlite", "?mode=wal")])
def test_checking_or_copying_a_store_that_is_missing_does_not_create_it(bare, kind, options):
    """A mistyped name would be "ready to use"."""
    wrong = bare.where + "/mistyped"
    said = "%s: there is no %s %s: correct the name" % (kind, "folder" if kind == "journal" else "file", wrong)
    for more in ("", options):
        code, out = bare("store", "check", kind + ":" + wrong + more)
        assert code == 2 and out == "" and said in bare.said, bare.said
        code, out = bare.json("store", "check", kind + ":" + wrong + more)
        assert code == 2 and out["error"] == "invalid" and said in out["text"], out
        code, out = bare("store", "copy", kind + ":" + wrong + more, "sqlite:" + bare.where + "/copy")
        assert code == 2 and out == "" and said in bare.said, bare.said
    assert not os.path.exists(wrong) and not os.path.exists(bare.where + "/copy")
    assert bare("begin", "s", "i", "--store", kind + ":" + wrong)[0] == 0
    code, out = bare("store", "check", kind + ":" + wrong)
    assert code == 0 and "is ready to use" in out, bare.said


def test_a_folder_without_a_journal_does_not_become_one_by_checking_or_copying_it(bare):
    """It may be a mistyped name too, or a disk that is not mounted."""
    empty = bare.where + "/j"
    with open(empty + "/x", "w"):
        pass
    for args in (("check", "journal:" + empty), ("copy", "journal:" + empty, "sqlite:" + bare.where + "/copy")):
        code, out = bare("store", *args)
        assert code == 2 and out == "" and "journal: there is no journal in the folder %s: correct the name" % empty in bare.said, (args, bare.said)
    assert os.listdir(empty) == ["x"] and not os.path.exists(bare.where + "/copy")
    assert bare("store", "init", "journal:" + empty)[0] == 0
    for args in (("check", "journal:" + empty), ("copy", "journal:" + empty, "sqlite:" + bare.where + "/copy")):
        assert bare("store", *args)[0] == 0, (args, bare.said)


def test_the_name_of_a_journal_may_have_a_question_mark(bare):
    url = "journal:" + bare.where + "/what?"
    for options in ("?clock=trust", "?damage=accept"):
        assert bare("begin", "s", options, "--store", url + options)[0] == 0
        assert bare("get", "s", options, "--store", url + options)[0] == 0
        assert bare("store", "check", url + options)[0] == 0, bare.said


def test_a_record_in_progress_or_in_doubt_does_not_expire(idem):
    idem("begin", "s", "strict", "--lease", "100ms")
    idem("begin", "s", "loose", "--loose")
    never = "never while it is in progress"
    assert fields(idem("get", "s", "strict")[1])["expires"] == never + " or in doubt"
    assert fields(idem("get", "s", "loose")[1])["expires"] == never
    time.sleep(0.2)
    code, out = idem("get", "s", "strict")
    assert "DOUBT: the lease ended" in out and fields(out)["expires"] == never + " or in doubt"
    assert idem.json("get", "s", "strict")[1]["expires"] > 0
    assert idem("settle", "s", "strict", "--as", "failed", "--wait", "10s")[0] == 0
    assert re.match(r"\d{4}-", fields(idem("get", "s", "strict")[1])["expires"])


def test_settle_says_that_there_was_no_such_request(idem):
    with folder() as where, Server(where) as server:
        for at in ({}, {"IDEM_SERVER": "unix:" + server.socket}):
            for refused in (["--as", "succeeded"], ["--as", "failed", "--result", "no", "--reason", "r"]):
                assert idem("settle", "shop", "typo", *refused, env=at) == (16, "absent\n"), "a mistyped key gets no outcome"
                assert "shop typo has no record, and nothing was stored: did you mistype it?" in idem.said and "add --absent\n" in idem.said
                assert idem("get", "shop", "typo", env=at)[0] == 16
            assert idem("settle", "shop", "typo", "--as", "failed", "--fence", "1", env=at)[0] == 15
            code, out = idem("settle", "shop", "typo", "--as", "succeeded", "--absent", env=at)
            assert code == 0 and out.startswith("settled\n")
            assert "there was no record of shop typo: this outcome is stored for a request that has not come; " \
                   "idem forget shop typo removes it\n" in idem.said
            assert idem("forget", "shop", "typo", env=at)[0] == 0
            assert idem.json("settle", "shop", "typo", env=at)[1]["was_absent"] is True
            assert idem("settle", "shop", "typo", "--print", "was_absent", env=at)[0] == 10 and idem.said == "", "it is there now"
            fence = idem("begin", "shop", "known", "--print", "fence", env=at)[1].strip()
            assert idem("release", "shop", "known", fence, env=at)[0] == 0
            code, told = idem.json("settle", "shop", "known", "--as", "failed", env=at)
            assert code == 0 and told["was_absent"] is False and idem.said == ""
    assert "\n  idem settle shop order-7 --as " in idem("help", "settle")[1].split("Examples:")[1]


def test_settle_stores_nothing_if_it_cannot_see_whether_there_is_a_record(idem):
    """Clients use up the rate of the scope, and the look before the outcome is refused."""
    with folder() as where, Server(where, "--scope-rate", "1") as server, server.client() as loud:
        over = threading.Event()

        def shout():
            while not over.is_set():
                loud("GET", "shop", "other")
        thread = threading.Thread(target=shout)
        thread.start()
        try:
            code, out = idem("settle", "shop", "typo", "--as", "succeeded", env={"IDEM_SERVER": "unix:" + server.socket})
        finally:
            over.set()
            thread.join()
        assert code not in (0, 16) and out == "" and "scope-rate" in idem.said, (code, out, idem.said)
        assert wait_until(lambda: (lambda got: not isinstance(got, Error) and got)(loud("GET", "shop", "typo"))) == ["absent"]


def test_get_says_doubt_as_scan_does(idem):
    with folder() as where, Server(where) as server:
        for at in ({}, {"IDEM_SERVER": "unix:" + server.socket}):
            fence = idem("begin", "s", "slow", "--lease", "100ms", "--print", "fence", env=at)[1].strip()
            assert idem("begin", "s", "work", env=at)[0] == 0
            # An idle server looks at the clock every few seconds.
            wait_until(lambda: "DOUBT" in idem("get", "s", "slow", env=at)[1])
            code, out = idem("get", "s", "slow", env=at)
            assert code == 0 and re.search(r"^state: executing\nDOUBT: the lease ended \d+s ago, and the outcome is unknown$", out, re.M)
            assert idem.json("get", "s", "slow", env=at)[1]["doubt_ms"] >= 0
            assert int(idem("get", "s", "slow", "--print", "doubt_ms", env=at)[1]) >= 0
            assert "DOUBT" not in idem("get", "s", "work", env=at)[1]
            for command in (["scan"], ["find", "slow"]):
                told = [json.loads(line) for line in idem(*command, "--json", env=at)[1].splitlines()]
                assert {r["id"] for r in told if "doubt_ms" in r} == {"slow"}
            assert idem("finish", "s", "slow", fence, "succeeded", env=at)[0] == 0
            assert "DOUBT" not in idem("get", "s", "slow", env=at)[1]


def test_settle_waits_by_itself_for_a_lease_that_is_over(idem):
    assert idem("begin", "s", "slow", "--lease", "1s")[0] == 0
    time.sleep(1.2)
    code, _ = idem("begin", "s", "slow")
    assert code == 11 and "give --wait 2s" in idem.said
    code, out = idem("settle", "s", "slow", "--as", "failed")
    assert code == 0 and out.startswith("settled\n") and "watches the record for 2 s" in idem.said
    assert idem("begin", "s", "work", "--lease", "60s")[0] == 0
    assert idem("settle", "s", "work")[0] == 11 and idem.said == ""  # somebody may be at work
    assert idem("settle", "s", "work", "--as", "failed")[0] == 11 and "s work is still executing: its lease has not ended" in idem.said


def test_modes_and_fingerprints(idem):
    fence = idem("begin", "s", "1", "--loose", "--payload", "a", "-p", "fence")[1].strip()
    assert idem("begin", "s", "1", "--payload", "b")[0] == 13
    assert idem("finish", "s", "1", fence, "failed")[0] == 0
    assert idem("begin", "s", "1", "--payload", "b")[0] == 0  # a loose failure forgets all
    assert idem("begin", "s", "2", "--fingerprint", "ab" * 32)[0] == 0
    assert idem("begin", "s", "2", "--fingerprint", "AB" * 32)[0] == 11
    assert idem("begin", "s", "3", "--nonce", "0102030405060708")[0] == 0
    assert idem("begin", "s", "3", "--nonce", "0102030405060708")[0] == 0


def test_results_are_any_bytes_from_anywhere(idem):
    data = bytes(range(256)) * 40
    with open(idem.where + "/result", "wb") as f:
        f.write(data)
    for name, value, sent in (("file", "@" + idem.where + "/result", b""), ("stdin", "-", data)):
        fence = idem("begin", "s", name, "-p", "fence")[1].strip()
        assert idem("finish", "s", name, fence, "succeeded", value, data=sent)[0] == 0
        idem("get", "s", name, "--print", "result")
        assert idem.raw == data
        code, out = idem.json("get", "s", name)
        assert base64.b64decode(out["result_base64"]) == data and "result" not in out
    fence = idem("begin", "s", "text", "-p", "fence")[1].strip()
    idem("finish", "s", "text", fence, "succeeded", "grün 你好")
    assert idem.json("get", "s", "text")[1]["result"] == "grün 你好"


def test_a_terminal_is_never_handed_control_characters(idem):
    evil = b"\x1b]0;owned\x07\x1b[2J\r\x9b31m\xff\xe2\x80\xae\x7f\\x"
    fence = idem("begin", "s", b"evil\x1b[31m", "-p", "fence")[1].strip()
    idem("finish", "s", b"evil\x1b[31m", fence, "succeeded", "-", data=evil)
    for args in (("get", "s", b"evil\x1b[31m"), ("begin", "s", b"evil\x1b[31m"), ("scan",)):
        idem(*args)
        assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f\x9b\xff]|\xe2\x80\xae", idem.raw), idem.raw
    idem("get", "s", b"evil\x1b[31m")
    assert rb"\x1b]0;owned\x07" in idem.raw and rb"\\x" in idem.raw


def test_json_tells_everything(idem):
    code, out = idem.json("begin", "shop", "1", "--subject", "label", "--fingerprint", "cd" * 32)
    assert code == 0 and out["verdict"] == "started" and out["state"] == "executing"
    assert out["fence"] > 0 and out["expires"] > out["lease_until"] > out["created"]
    code, busy = idem.json("begin", "shop", "1")
    assert busy["verdict"] == "busy" and busy["retry_after_ms"] > 0 and "fence" not in busy
    code, record = idem.json("get", "shop", "1")
    assert record["fingerprint"] == "cd" * 32 and record["subject"] == "label" and record["scope"] == "shop"
    code, out = idem.json("get", "shop", "none")
    assert (code, out) == (16, {"verdict": "absent"})
    code, out = idem("scan", "--json")
    assert code == 0 and [json.loads(line)["id"] for line in out.splitlines()] == ["1"]


def test_scan_filters(idem):
    for i in range(5):
        idem("begin", "a", i)
    idem("settle", "b", "x")
    lines = lambda *args: idem("scan", *args)[1].splitlines()
    assert len(lines()) == 6
    assert len(lines("--scope", "a")) == 5
    assert len(lines("--state", "failed")) == 1
    assert len(lines("--type", "lock")) == 0
    assert len(lines("--limit", "3")) == 3
    assert len(lines("--older", "1h")) == 0
    assert idem("scan", "--state", "dreaming")[0] == 2


BAD = [
    (("begin", "", "i"), "the scope is empty"),
    (("begin", "s", ""), "the id (key) is empty"),
    (("begin", "s" * 201, "i"), "the limit is 200"),
    (("begin", "s", "i" * 256), "the limit is 255"),
    (("begin", "s"), "too few arguments: ID is missing"),
    (("begin",), "too few arguments: SCOPE is missing"),
    (("finish", "s", "i", "1"), "too few arguments: succeeded|failed is missing"),
    (("begin", "s", "i", "more", "and", "more"), 'begin: "more" is one argument too many\n'),
    (("begin", "s", "--strict", "i", "more"), 'begin: "more" is one argument too many\n'),
    (("begin", "s", "i", "--strict", "more"), 'begin: "more" is one argument too many; --strict takes no value\n'),
    (("begin", "--strict", "yes", "s", "i"), 'begin: "yes" is one argument too many; --strict takes no value\n'),
    (("begin", "s", "i", "--", "more"), 'begin: "more" is one argument too many\n'),
    (("gateway", "--required", "on"), 'gateway: "on" is one argument too many; --required takes no value\n'),
    (("serve", "--json", "yes"), 'serve: "yes" is one argument too many; --json takes no value\n'),
    (("begin", "s", "i", "--colour"), "no option --colour"),
    (("begin", "s", "i", "-x"), "no option -x"),
    (("begin", "s", "i", "--lease"), "--lease needs a value"),
    (("begin", "s", "i", "--lease", "soon"), "is not a time"),
    (("begin", "s", "i", "--lease", "0"), "at least 1ms"),
    (("begin", "s", "i", "--lease", "-5s"), "is not a time"),
    (("begin", "s", "i", "--lease", "8d"), "out of range"),
    (("begin", "s", "i", "--ttl", "0ms"), "at least 1ms"),
    (("begin", "s", "i", "--ttl", "7"), '--ttl "7" has no unit: 7h or 7d?'),
    (("begin", "s", "i", "--ttl", "99999999999999999999d"), "is not a time"),
    (("begin", "s", "i", "--ttl", "9999999999999d"), "is not a time"),
    (("begin", "s", "i", "--strict", "--loose"), "not both"),
    (("begin", "s", "i", "--loose=yes"), "takes no value"),
    (("begin", "s", "i", "--fingerprint", "abc"), "64 hex digits"),
    (("begin", "s", "i", "--nonce", "zz" * 8), "16 hex digits"),
    (("begin", "s", "i", "--nonce", "00" * 8), "nonce of zeros"),
    (("begin", "s", "i", "--print", "colour"), "not a field"),
    (("begin", "s", "i", "--payload", "@/no/such/file"), "/no/such/file"),
    (("finish", "s", "i", "0", "succeeded"), "not a fence"),
    (("finish", "s", "i", "x", "succeeded"), "not a fence"),
    (("finish", "s", "i", "99999999999999999999", "succeeded"), "not a fence"),
    (("finish", "s", "i", "1", "done"), "not an outcome"),
    (("finish", "s", "i", "1", "failed", "r", "--kind", "xml"), "not a kind"),
    (("settle", "s", "i", "--result", "r"), "needs --as"),
    (("settle", "i"), "idem find i searches all scopes for this id"),
    (("get", "s", "i", "--type", "thing"), "not a type"),
    (("finish", "s", "i", "1", "failed", "--type", "lock"), "does not work on"),
    (("finish", "s", "i", "5x", "succeeded"), "not a fence"),
    (("finish", "s", "i", "1", "executing"), "not an outcome"),
    (("finish", "s", "i", "1", "failed", "@/no/such/file"), "cannot read /no/such/file"),
    (("renew", "s", "i", "1", "soon"), 'the lease "soon"'),
    (("renew", "s", "i", "1", "0s"), "a lease is at least 1ms"),
    (("forget", "s", "i", "--fence", "x"), "not a fence"),
    (("settle", "--as", "failed"), "give SCOPE ID, or which doubts"),
    (("settle", "--all"), "needs --as"),
    (("settle", "--as", "failed", "--all", "--fence", "3"), "--fence is for one request"),
    (("settle", "--as", "failed", "--all", "--absent"), "--absent is for one request"),
    (("settle", "s", "i", "--absent"), "--absent needs --as"),
    (("settle", "s", "i", "--as", "failed", "--absent", "--fence", "3"), "leave out --absent"),
    (("settle", "s", "i", "--all"), "--scope, --older, --all, --dry-run and --yes"),
    (("settle", "s", "i", "--older", "1h"), "--scope, --older, --all, --dry-run and --yes"),
    (("settle", "s", "i", "--yes"), "--scope, --older, --all, --dry-run and --yes"),
    (("settle", "s", "i", "--fence", "0"), "not a fence"),
    (("settle", "s", "i", "--http", "200"), "needs --as"),
    (("settle", "s", "i", "--as", "done"), "not an outcome"),
    (("settle", "s", "i", "--as", "failed", "--result", "@/no/such/file"), "cannot read /no/such/file"),
    (("settle", "s", "i", "--as", "failed", "--http", "200", "--body", "@/no/such/file"), "cannot read /no/such/file"),
    (("settle", "s", "i", "--as", "failed", "--http", "200", "--result", "r"), "--result"),
    (("settle", "s", "i", "--as", "failed", "--http", "200", "--kind", "raw"), "--kind"),
    (("settle", "s", "i", "--as", "failed", "--body", "b"), "need --http STATUS"),
    (("settle", "s", "i", "--as", "failed", "--header", "A: b"), "need --http STATUS"),
    (("settle", "s", "i", "--as", "failed", "--http", "200", "--header", "no colon"), "is not a header"),
    (("settle", "s", "i", "--as", "failed", "--http", "200", "--header", ": b"), "is not a header"),
    (("settle", "s", "i", "--as", "failed", "--http", "200", "--header", "A:"), "is not a header"),
    (("settle", "s", "i", "--as", "failed", "--http", "200", "--header", "Connection: close"), "idem sends this header"),
    (("settle", "s", "i", "--as", "failed", "--http", "99"), "is not a status"),
    (("settle", "s", "i", "--as", "failed", "--http", "1000"), "is not a status"),
    (("scan", "--type", "thing"), "not a type"),
    (("scan", "--state", "done"), "not a state"),
    (("scan", "--doubt", "--state", "failed"), "only records that are executing can be in doubt"),
    (("find", "i", "--type", "thing"), "not a type"),
    (("issue", "ann", "--count", "0"), "--count must be 1 to"),
    (("issue", "ann", "--count", "1000001"), "--count must be 1 to"),
    (("redeem", "t", "ann", "--nonce", "zz"), "a nonce is 16 hex digits"),
    (("audit", "--limit", "0"), "--limit"),
    (("id", "explain"), "no id is given"),
    (("id", "explain", "x"), "neither a number nor a UUID"),
    (("id", "explain", ""), "neither a number nor a UUID"),
    (("id", "explain", "99999999999999999999"), "neither a number nor a UUID"),
    (("id", "explain", "00000000-0000-0000"), "UUID"),
    (("id", "explain", "1", "--kind", "colour"), "colour"),
    (("id", "snowflake", "uid"), "give one kind"),
    (("id", "snowflake", "--count", "0"), "must be 1 to 100000000"),
    (("id", "uuid4", "--count", "100000001"), "must be 1 to 100000000"),
    (("id", "colour"), "colour"),
    (("lock", "n", "--read", "--write", "--", "true"), "not both"),
    (("lock", "n", "--permits", "0", "--", "true"), "--permits must be a number"),
    (("lock", "n", "--permits", "100000", "--", "true"), "--permits must be a number"),
    (("lock", "n", "--lease", "10ms", "--", "true"), "at least 100ms"),
    (("lock", "n", "--permits", "2"), "need a command"),
    (("lock", "n", "--read"), "need a command"),
    (("lock", "n", "--write"), "need a command"),
    (("lock", "n", "--fair"), "need a command"),
    (("lock", "n", "--also", "m"), "need a command"),
    (("run", "s", "i"), "COMMAND"),
    (("run", "s", "i", "--lease", "0", "--", "true"), "at least 1ms"),
    (("store", "init"), "an argument is missing"),
    (("store", "check", "memory:", "memory:"), "takes one argument"),
    (("store", "copy", "memory:"), "give the URLs of two stores"),
    (("store", "copy", "nowhere:", "memory:"), "is not the URL of a store"),
    (("store", "sql", "oracle"), "oracle"),
    (("store", "frob", "x"), 'unknown command "frob"'),
    (("journal", "frob", "x"), "frob"),
    (("backup", "sqlite:x", "y"), "journal"),
    (("backup", "", "y"), "journal"),
    (("restore", "/no/such/folder", "/no/such/other"), "/no/such/folder"),
    (("bench", "--what", "colour"), "--what must be begin, pair, replay or ping"),
    (("bench", "--clients", "0"), "1 to 4096 clients"),
    (("bench", "--pipeline", "0"), "1 to 4096 clients"),
    (("bench", "--size", "2m"), "1 to 4096 clients"),
    (("completion", "tcsh"), "tcsh"),
    (("get", "s", "i", "--server", "unix:/x", "--store", "memory:"), "--server or --store, not both"),
    (("get", "s", "i", "--server", "nonsense"), "is not an address"),
    (("get", "s", "i", "--server", "http://127.0.0.1:80"), "is the HTTP address of a server; commands need"),
    (("begn", "s", "i"), 'did you mean "begin"'),
    (("frobnicate",), "idem --help"),
    (("help", "scna"), 'did you mean "scan"'),
]


@pytest.mark.parametrize("args,text", BAD, ids=lambda x: " ".join(x)[:40] if isinstance(x, tuple) else None)
def test_what_is_wrong_is_said_and_nothing_happens(bare, args, text):
    code, out = bare(*args)
    assert code == 2 and text in bare.said and out == "", (out, bare.said)
    assert "\x1b" not in bare.said
    code, out = bare("scan")
    assert (code, out) == (0, "")


def on_a_terminal(cli, *args):
    """What a person sees whose shell runs in a terminal."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
    done = subprocess.run([IDEM, *args], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env={**env, "IDEM_STORE": cli.url}, timeout=60)
    os.close(theirs)
    said = os.read(ours, 65536).decode()
    os.close(ours)
    return done.returncode, said


def test_a_terminal_is_told_what_to_do_next(bare):
    bare("begin", "s", "i", "--payload", "a", "--lease", "10m")
    bare("begin", "s", "short", "--lease", "1s")
    for code, hint, args in ((11, "--wait 30s", ("begin", "s", "i", "--payload", "a")), (13, "exactly the first content again, because with a new id it could run twice", ("begin", "s", "i", "--payload", "b")),
                             (15, "idem get shows it", ("finish", "s", "i", "7", "succeeded")), (16, "idem find", ("get", "s", "j")),
                             (18, "mistyped", ("redeem", "x" * 32, "me"))):
        got, said = on_a_terminal(bare, *args)
        assert got == code and hint in said, (args, said)
        assert bare(*args)[0] == code and hint not in bare.raw.decode(), "a script gets the word alone"
        assert (hint in bare.said and bare.said.startswith("idem: ")) == (code in (13, 15)), (args, bare.said)
        for silent in ("--json", "--print=verdict"):
            assert bare(*args, silent)[0] == code and bare.said == "", (args, bare.said)
    code, said = on_a_terminal(bare, "begin", "s", "short", "--wait", "30s")
    assert code == 12 and "idem settle" in said, said


def test_a_server_that_is_missing_is_told_with_the_variable_that_named_it(bare):
    gone = "unix:" + bare.where + "/gone"
    for args, env, said, not_said in ((["--server", gone], {}, "name another with --server", "IDEM_SERVER"),
                                      ([], {"IDEM_SERVER": gone}, "this address comes from IDEM_SERVER: correct", "IDEM_STORE"),
                                      ([], {"IDEM_SERVER": gone, "IDEM_STORE": bare.url}, "comes from IDEM_SERVER, so IDEM_STORE was not used", "--store")):
        assert bare("get", "s", "i", *args, store=False, env=env)[0] == 20
        assert "no server at" in bare.said and said in bare.said and not_said not in bare.said, bare.said
    for command in (["top", "--once"], ["bench"], ["id", "snowflake"], ["audit"], ["store", "accept-rollback"]):
        for args, env, said in ((["--server", gone], {}, "name another with --server"), ([], {"IDEM_SERVER": gone}, "this address comes from IDEM_SERVER: correct")):
            assert bare(*command, *args, store=False, env=env)[0] == 20
            assert "no server at" in bare.said and said in bare.said and "--store" not in bare.said, (command, bare.said)
    assert bare("bench", "--redis", "--server", gone)[0] == 20 and "idem serve" not in bare.said, bare.said


def test_an_instance_that_is_no_uuid_is_told(bare):
    whole = "urn:uuid:3f2a9c01-d4e5-4a7b-8c9d-000000000000"
    for wrong in ("urn:uuid:", whole[:-1], whole[:-1] + "g", whole.replace("-", "_"), whole + "0"):
        assert bare("find", wrong) == (2, "") and "not a UUID" in bare.said and "had no record" not in bare.said, (wrong, bare.said)
    assert bare("find", whole) == (16, "") and "that request had no record" in bare.said and "not a UUID" not in bare.said


def test_settling_what_is_decided_says_that_nothing_changes(bare):
    bare("settle", "s", "i")
    code, out = bare("settle", "s", "i", "--as", "succeeded")
    assert code == 10 and "state: failed" in out and "s i already has the outcome failed; nothing was changed. An outcome is final." in bare.said
    assert bare.said.endswith("then run idem forget and idem settle --absent --as succeeded\n"), bare.said
    assert bare("forget", "s", "i")[0] == 0 and bare("settle", "s", "i", "--absent", "--as", "succeeded")[0] == 0
    assert bare("settle", "s", "i", "--as", "succeeded")[0] == 10
    assert bare.said == "idem: s i already has the outcome succeeded; nothing was changed\n"


def test_settling_a_doubt_without_an_outcome_says_how_to_decide_it(bare):
    bare("begin", "s", "i", "--lease", "50ms")
    code, out = bare("settle", "s", "i", "--wait", "10s")
    assert code == 12 and out.startswith("doubt\n") and "decide it with --as succeeded or --as failed" in bare.said, (out, bare.said)
    assert bare("settle", "s", "i", "--as", "succeeded")[0] == 0 and "decide it" not in bare.said


def test_a_result_over_the_limit_is_refused(bare):
    fence = bare("begin", "s", "i", "-p", "fence")[1].strip()
    code, _ = bare("finish", "s", "i", fence, "succeeded", "-", data=b"x" * (64 * 1024 * 1024 + 1))
    assert code == 2 and "over the limit" in bare.said
    assert bare("begin", "s", "i")[0] == 11  # nothing was recorded


def test_stores_that_cannot_be_opened(bare):
    for url, code, text in (("nowhere:", 2, "is not the URL of a store"), ("", 2, "--store is empty"), ("journal", 2, "is not the URL of a store"),
                            ("memory:x", 2, "nothing follows memory:")):
        assert bare("get", "s", "i", "--store", url)[0] in (code, 20), url
        assert text in bare.said
    with open(bare.where + "/file", "w") as f:
        f.write("I am not a folder")
    code, _ = bare("get", "s", "i", "--store", "journal:" + bare.where + "/file")
    assert code not in (0, 16) and "file" in bare.said
    code, _ = bare("get", "s", "i", "--store", "journal:/proc/nowhere")
    assert code not in (0, 16) and "/proc/nowhere" in bare.said
    code, _ = bare("begin", "s", "i", "--store", "sqlite:/proc/nowhere/db")
    assert code == 20 and "folder that is there" in bare.said
    code, out = bare.json("get", "s", "i", "--store", "nowhere:")
    assert code == 2 and out["error"] == "invalid" and "is not the URL of a store" in out["text"]


def test_a_password_is_never_printed(bare):
    code, out = bare("get", "s", "i", "--store", "nowhere://user:hunter2@host/")
    assert code == 2 and "hunter2" not in bare.said + out and "***" in bare.said


def test_an_error_is_safe_to_print_too(bare):
    evil = b"x\x1b[2J\x9b\xff"
    for args in (("get", "s", "i", "--store", evil), (evil,), ("begin", "s", "i", "--lease", evil),
                 ("finish", "s", "i", evil, "succeeded"), ("begin", "s", "i", b"--" + evil)):
        assert bare(*args)[0] == 2
        assert "\x1b" not in bare.said and "\\x1b[2J" in bare.said, args
    code, out = bare.json("get", "s", "i", "--store", evil)
    assert code == 2 and out["error"] == "invalid" and "text_base64" in out


def test_help_of_every_command(bare):
    code, out = bare("--help", store=False)
    assert code == 0
    commands = re.findall(r"^  ([a-z][a-z-]*) ", out, re.M)
    assert {"begin", "finish", "scan", "help"} <= set(commands)
    for command in commands:
        if command != "help":
            code, out = bare("help", command, store=False)
            assert code == 0 and out.startswith("usage: idem " + command), command
            assert bare(command, "--help", store=False) == (0, out)
            assert max(len(line) for line in out.splitlines()) <= 80, command
    assert bare(store=False)[0] == 2
    code, out = bare("--version", store=False)
    assert code == 0 and re.match(r"idem \d+\.\d+\.\d+$", out)


def test_the_exit_codes_are_documented_three_times_alike(bare):
    _, out = bare("help", "exit-codes", store=False)
    told = dict(re.findall(r"^ +(\d+)  (\w+) ", out, re.M))
    assert told["10"] == "replay" and told["29"] == "internal" and len(told) >= 19
    with open(os.path.join(ROOT, "docs/cli.md")) as f:
        markdown = dict(re.findall(r"^\| (\d+) \| `(\w+)`:", f.read(), re.M))
    with open(os.path.join(ROOT, "docs/man/idem.1")) as f:
        man = dict(re.findall(r"^(\d+)\|(\w+):", f.read(), re.M))
    listed = {code: word for code, word in told.items() if int(code) >= 10}
    assert markdown == listed
    assert {code: word for code, word in man.items() if int(code) >= 10} == listed


def test_every_command_is_in_the_manual(bare):
    _, out = bare("--help", store=False)
    commands = re.findall(r"^  ([a-z]+) ", out, re.M)
    assert len(commands) > 20
    with open(os.path.join(ROOT, "docs/man/idem.1")) as f:
        man = f.read()
    with open(os.path.join(ROOT, "docs/cli.md")) as f:
        page = f.read()
    for command in commands:
        assert re.search(r"^\.B[IR]? \"?%s\b|, \" %s$" % (command, command), man, re.M), command
        assert command == "help" or re.search(r"`(idem )?%s\b" % command, page), command
        code, help = bare(command, "--help", store=False)
        assert code == 0 and ("usage: idem " + command if command != "help" else "usage: idem") in help, command


def test_a_full_pipe_or_disk_is_an_error(bare):
    bare("settle", "s", "i")
    with open("/dev/full", "w") as full:
        result = subprocess.run([IDEM, "get", "s", "i", "--store", bare.url], stdout=full,
                                stderr=subprocess.PIPE, timeout=60)
    assert result.returncode == 1 and b"cannot write" in result.stderr


def test_a_journal_has_one_user_at_a_time(bare):
    bare("settle", "s", "i")
    holder = subprocess.Popen([IDEM, "begin", "s", "waits", "--store", bare.url, "--lease", "60s"],
                              stdout=subprocess.PIPE)
    holder.wait()
    waiter = subprocess.Popen([IDEM, "begin", "s", "waits", "--store", bare.url, "--wait", "20s"],
                              stdout=subprocess.PIPE)
    try:
        assert wait_until(lambda: any(bare.where in name for name in open_files(waiter.pid)))
        time.sleep(0.3)
        code, _ = bare("get", "s", "i")
        assert code not in (0, 16) and str(waiter.pid) in bare.said
    finally:
        waiter.kill()
        waiter.wait()


def test_unlock_takes_a_lock_from_its_holder(bare):
    bare.url = "sqlite:" + bare.where + "/db"
    holder = subprocess.Popen([IDEM, "lock", "job", "--lease", "3s", "--store", bare.url, "--", "sleep", "60"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        held = wait_until(lambda: re.search(r"^lock +executing \S+ (\d+) locks job$", bare("scan")[1], re.M))
        fence = held.group(1)
        assert bare("unlock", "job", int(fence) - 1)[0] == 15
        assert bare("unlock", "job", fence)[0] == 0
        assert bare("unlock", "job", fence)[0] == 15
        assert holder.wait(30) == 76  # its next renewal tells
    finally:
        holder.kill()
        holder.wait()


def test_a_lock_taken_by_hand_is_held_until_its_fence_gives_it_back(idem):
    code, fence = idem("lock", "nightly", "--owner", "me", "--lease", "1m", "--print", "fence")
    assert code == 0 and idem("lock", "nightly", "--owner", "you")[0] == 11
    assert idem("lock", "nightly", "--owner", "you", "--", "true")[0] == 11
    assert idem("lock", "nightly", "--owner", "me", "--print", "fence") == (0, fence), "extended"
    assert idem("unlock", "nightly", fence.strip())[0] == 0
    code, out = idem("lock", "nightly", "--owner", "you")
    assert code == 0 and int(fields(out)["fence"]) > int(fence)
    assert idem("lock", "weekly", "--")[0] == 2 and "no command is given" in idem.said
    assert idem("get", "locks", "weekly", "--type", "lock")[0] == 16, "nothing was taken"


def test_a_redeemed_token_brings_the_next_one(idem):
    first = idem("issue", "ann")[1].strip()
    code, out = idem("redeem", first, "ann", "--next")
    assert code == 0 and out.startswith("redeemed\n")
    assert idem("redeem", first, "ann", "--next") == (17, "duplicate\n")
    code, second = idem.json("redeem", fields(out)["token"], "ann", "--next")
    assert code == 0 and second["verdict"] == "redeemed"
    assert idem("redeem", second["token"], "bob", "--next") == (18, "unknown\n")
    code, third = idem("redeem", second["token"], "ann", "--next", "--print", "token")
    assert code == 0 and idem("redeem", third.strip(), "ann")[0] == 0


def test_a_token_is_found_by_its_subject_as_on_a_server(idem):
    token = idem("issue", "ann")[1].strip()
    code, fence = idem("begin", "ann", token, "--token", "--print", "fence")
    fence = fence.strip()
    assert code == 0 and idem("get", "ann", token, "--print", "type") == (0, "token\n")
    assert idem("renew", "ann", token, fence, "1m")[0] == 0
    assert idem("settle", "ann", token)[0] == 11, "it is being done"
    assert idem("finish", "ann", token, fence, "succeeded", "done")[0] == 0
    assert idem("begin", "ann", token, "--token", "--print", "result") == (10, "done")
    unused = idem("issue", "ann")[1].strip()
    assert idem("settle", "ann", unused, "--print", "type") == (0, "token\n"), "no tombstone beside it"
    assert idem("redeem", unused, "ann")[0] == 17
    assert idem("finish", "ann", "nobody", fence, "succeeded")[0] == 15
    assert idem("settle", "ann", "nobody", "--print", "type") == (0, "request\n")
    assert idem("forget", "ann", token)[0] == 0 and idem("release", "ann", unused, fence)[0] == 15


def test_ready_is_said_only_of_a_store_that_answers(bare):
    assert bare("store", "init", "redis://127.0.0.1:1")[0] == 20 and "refused" in bare.said
    assert bare("store", "init", bare.url) == (0, bare.url + " is ready\n")


def test_looking_at_a_journal_that_is_not_there_does_not_ask_to_make_it(bare):
    for what in ("check", "dump"):
        assert bare("journal", what, bare.where + "/none")[0] == 2 and "no folder" in bare.said


# ---- finding ------------------------------------------------------------------------------------------------------------------

def test_an_id_is_found_in_whatever_scope():
    """A customer gives an order number. Nobody knows its scope: it may be a digest."""
    with folder() as where, Server(where, http=True) as s, s.client() as c:
        for scope in ("shop", "3f2a9c01d4e5b6a7"):
            assert c("SETTLE", scope, "order-7")[0] == "settled"
        for i in range(50):
            c("SETTLE", "shop", "other-%d" % i)
        find = lambda *argv: subprocess.run([IDEM, *argv, "--server", s.socket], capture_output=True, text=True, timeout=60)  # noqa: E731
        done = find("find", "order-7")
        assert done.returncode == 0 and done.stderr == ""
        assert sorted(line.split()[-2:] for line in done.stdout.splitlines()) == [["3f2a9c01d4e5b6a7", "order-7"], ["shop", "order-7"]]
        assert {json.loads(line)["scope"] for line in find("find", "order-7", "--json").stdout.splitlines()} == \
            {"shop", "3f2a9c01d4e5b6a7"}
        assert find("find", "order-8").returncode == 16 and find("find", "order-7", "--type", "lock").returncode == 16
        assert len(find("scan", "--id", "order-7", "--scope", "shop").stdout.splitlines()) == 1
        assert find("find", "").returncode == 2
        assert "ID is empty" in str(c("SCAN", "0", "ID", ""))


@pytest.mark.parametrize("args", [["settle", "--as", "failed", "--yes", "--scope", ""], ["doubts", "--scope", ""], ["scan", "--scope", ""],
                                  ["scan", "--id="], ["audit", "--scope", ""], ["audit", "--id", ""]], ids=" ".join)
def test_an_empty_filter_is_refused_and_not_taken_for_none(bare, args):
    """As --scope "$SCOPE" is, when the variable is not set."""
    bare("begin", "shop", "a", "--lease", "50ms")
    code, out = bare(*args)
    assert code == 2 and out == "" and "is empty" in bare.said, (code, out, bare.said)
    assert "state: executing" in bare("get", "shop", "a")[1]


def test_a_result_that_is_too_large_to_keep_is_told_to_its_finisher(bare):
    with folder() as where, Server(where, "--max-result", "1k") as server:
        call = lambda *args: bare(*args, "--server", server.socket, store=False)  # noqa: E731
        for name, result, options, told in (("small", "x" * 1024, [], ""), ("large", "x" * 1025, [], "result is larger than max-result"),
                                            ("json", "x" * 1025, ["--json"], "result is larger than max-result"),
                                            ("left", "x" * 1025, ["--no-replay"], "")):
            fence = call("begin", "s", name, "--print", "fence")[1].strip()
            code, out = call("finish", "s", name, fence, "succeeded", result, *options)
            assert code == 0 and "larger" not in out, out
            assert (bare.said.startswith("idem: s %s has its outcome" % name) and told in bare.said) if told else bare.said == "", bare.said
        assert call("settle", "s", "new", "--absent", "--as", "succeeded", "--result", "x" * 1025)[0] == 0
        assert "s new has its outcome, but the result is larger" in bare.said
        for name in ("one", "two"):
            call("begin", "many", name, "--lease", "50ms")
        time.sleep(0.2)
        assert call("settle", "--scope", "many", "--as", "succeeded", "--result", "x" * 1025, "--yes")[0] == 0
        for name in ("one", "two"):
            assert "many %s has its outcome, but the result is larger" % name in bare.said, bare.said


def test_an_http_response_for_a_record_of_no_gateway_is_told(bare):
    for name, subject, options, told in (("plain", "", ["--reason", "PUT it"], True),
                                         ("name", "POST", [], True), ("lower", "post /orders", [], True), ("gateway", "POST /orders", [], False)):
        bare("begin", "s", name, "--lease", "50ms", "--subject", subject)
        code, out = bare("settle", "s", name, "--as", "succeeded", "--http", "201", "--body", "x", "--wait", "10s", *options)
        assert code == 0 and out.startswith("settled\n") and ("was not started by a gateway" in bare.said) == told, (name, bare.said)
    assert bare("settle", "s", "never", "--absent", "--as", "succeeded", "--http", "201")[0] == 0 and "gateway" not in bare.said
    for name, subject in (("plain", ""), ("gateway", "POST /orders")):
        bare("begin", "many", name, "--lease", "50ms", "--subject", subject)
    time.sleep(0.2)
    code, out = bare("settle", "--scope", "many", "--as", "succeeded", "--http", "201", "--yes", "--wait", "10s")
    assert code == 0 and "many plain was not started by a gateway" in bare.said and "many gateway was" not in bare.said, (out, bare.said)
    bare("begin", "s", "bytes", "--lease", "50ms")
    assert bare("settle", "s", "bytes", "--as", "succeeded", "--result", "x", "--wait", "10s")[0] == 0 and "gateway" not in bare.said
    bare("begin", "s", "theirs", "--lease", "50ms", "--subject", "POST /orders")
    assert bare("settle", "s", "theirs", "--as", "succeeded", "--result", "x", "--kind", "raw", "--wait", "10s")[0] == 0
    assert "s theirs was started by a gateway" in bare.said and "--http STATUS --body VALUE" in bare.said


@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["text", "json"])
def test_a_bare_result_for_a_gateways_request_is_refused_before_it_is_stored(bare, json_too):
    for name, subject in (("o-11", "POST /orders"), ("o-12", "PUT /orders"), ("own", "pay 7")):
        bare("begin", "s", name, "--lease", "50ms", "--subject", subject)
    time.sleep(0.2)
    code, out = bare("settle", "s", "o-11", "--as", "succeeded", "--result", "x", "--wait", "10s", *json_too)
    assert (code, out) == (2, "") and bare.said == (
        'idem: "o-11" was started by a gateway: give the response with --http STATUS --header ... --body ..., or add --kind raw to '
        'store the bare result\n'), (code, out, bare.said)
    assert "state: executing" in bare("get", "s", "o-11")[1]
    many = ["settle", "--scope", "s", "--as", "succeeded", "--result", "x", "--wait", "10s", *json_too]
    for how in ("--yes", "--dry-run"):
        code, out = bare(*many, how)
        assert code == 2 and ("own" in out) == (how == "--dry-run") and 'idem: 2 of these 3 doubts, first "o-1' in bare.said and \
            "--kind raw" in bare.said and "nothing was settled" in bare.said, (code, out, bare.said)
    assert len(bare("doubts")[1].splitlines()) == 3
    # Without a result, and for a record that is decided, nothing is refused.
    assert bare("settle", "s", "o-12", "--as", "failed", "--wait", "10s")[0] == 0
    assert bare("settle", "s", "o-12", "--as", "failed", "--result", "x")[0] == 10
    assert bare(*many, "--kind", "raw", "--yes")[0] == 0 and len(bare("doubts")[1].splitlines()) == 0


def test_a_json_body_without_a_type_is_told(bare):
    settle = lambda name, *args: bare("settle", "s", name, "--absent", "--as", "succeeded", "--http", "201", *args)[0]  # noqa: E731
    for i, (told, args) in enumerate(((True, ["--body", ' {"order": 7}']), (True, ["--body", "[1]", "--header", "X-Type: json"]),
                                      (False, ["--body", "paid"]), (False, ["--body", "{paid}"]), (False, []),
                                      (False, ["--body", "[1]", "--header", "content-type: text/plain"]))):
        assert settle("k%d" % i, *args) == 0
        assert ("looks like JSON, and no --header 'Content-Type: application/json'" in bare.said) == told, (args, bare.said)


@pytest.mark.parametrize("status", ["204", "205", "304"])
def test_an_answer_without_a_body_gets_none(bare, status):
    code, _ = bare("settle", "shop", "a", "--as", "succeeded", "--http", status, "--body", "x")
    assert code == 2 and "has no body" in bare.said
    assert bare("settle", "shop", "a", "--as", "succeeded", "--http", status, "--absent")[0] == 0
