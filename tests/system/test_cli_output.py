"""What commands print for people, for programs and on a terminal, about records of each kind, journals, backups and ids."""
import glob
import json
import os
import pty
import re
import subprocess

import pytest

from lib import IDEM, Process, Server, folder, on_a_terminal, wait_until


class Cli:
    """idem on a journal in the folder."""

    def __init__(self, where):
        self.where, self.journal = where, where + "/j"

    def __call__(self, *args, code=0, store=True, data=None, **env):
        """Standard output; what it said is in .said"""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
        if store:
            clean["IDEM_STORE"] = "journal:" + self.journal
        done = subprocess.run([IDEM, *map(str, args)], input=data, env={**clean, **env}, text=True, capture_output=True, timeout=60)
        self.said = done.stderr
        assert done.returncode == code, (args, done)
        return done.stdout

    def begun(self, id, *flags):
        return self("begin", "s", id, "--print", "fence", *flags).strip()


@pytest.fixture
def idem():
    with folder() as where:
        yield Cli(where)


# ---- records --------------------------------------------------------------------------------------------------------------------

def test_get_shows_what_is_special_about_a_record(idem):
    idem("finish", "s", "left", idem.begun("left"), "succeeded", "secret", "--no-replay")
    assert "\nresult: was too large to keep\n" in idem("get", "s", "left")
    assert idem("get", "s", "left", "--print", "replayable") == "false\n" and idem("get", "s", "left", "--print", "settled") == "false\n"
    idem("finish", "s", "long", idem.begun("long", "--subject", "for ann"), "succeeded", "x" * 5000)
    shown = idem("get", "s", "long")
    assert "\nresult: %s... (5000 bytes; --print result writes them all)\n" % ("x" * 4096) in shown and "\nsubject: for ann\n" in shown
    assert idem("get", "s", "long", "--print", "result") == "x" * 5000 and idem("get", "s", "long", "--print", "replayable") == "true\n"
    idem("finish", "s", "empty", idem.begun("empty"), "succeeded")
    assert "result:" not in idem("get", "s", "empty") and "subject:" not in idem("get", "s", "empty")
    idem("settle", "s", "gone", "--as", "failed", "--absent")
    assert "\nsettled: yes\n" in idem("get", "s", "gone") and idem("get", "s", "gone", "--print", "settled") == "true\n"
    assert idem("get", "s", "none", "--print", "fence", code=16) == "", "a field that this verdict does not have"


def test_a_doubt_says_since_when(idem):
    idem.begun("slow", "--lease", "1ms")
    told = json.loads(idem("begin", "s", "slow", "--wait", "3s", "--json", code=12))
    assert set(told) == {"verdict", "since"} and told["since"] > 1600000000000
    assert int(idem("begin", "s", "slow", "--wait", "3s", "--print", "since", code=12)) == told["since"]


def test_what_follows_from_an_option_alone_is_refused(idem):
    source = "redis-stream://127.0.0.1:1?stream=s&group=g"
    for args, text in ((("begin", "s", "i", "--fingerprint", "ab" * 32, "--payload", "x"), "give --fingerprint or --payload, not both"),
                       (("finish", "s", "i", "1", "failed", "r", "--kind", "xml"), '"xml" is not a kind'),
                       (("audit", "--count", "1001"), "--count"), (("audit", "--count", "0"), "--count"),
                       (("bench", "--clients", "4097"), "1 to 4096 clients"), (("bench", "--pipeline", "100000"), "a pipeline of 1 to"),
                       (("bench", "--server", "nonsense"), "is not an address"), (("top", "--server", "nonsense"), "is not an address"),
                       (("consume", source), "no handler is given"), (("consume", source, "--to", "http://h", "--", "true"), "not both"),
                       (("consume", source, "--to", "ftp://h/"), "ftp://h/"), (("consume", source, "--to", "http://"), "http://"),
                       *((("consume", source, option, "0", "--", "true"), "must be at least 1")
                         for option in ("--concurrency", "--attempts", "--backoff", "--timeout")),
                       (("backup", "memory:", idem.where + "/to"), "journal"), (("backup", "journal:x?clock=trust", idem.where + "/to"), "journal"),
                       (("playground", "--listen", "nonsense"), "nonsense")):
        out = idem(*args, code=2)
        assert out == "" and text in idem.said, (args, idem.said)
    assert idem("consume", source, "--", "true", code=2, store=False) == "" and "no store is given for the records" in idem.said
    assert not os.path.exists(idem.where + "/to") and not os.path.exists(idem.journal)


def test_a_word_in_the_wrong_place_shows_the_usage(idem):
    idem("begin", "s", "i", "--wiat", "1s", code=2)
    assert "begin has no option --wiat; did you mean --wait?\n" in idem.said and "usage: idem begin" in idem.said
    assert idem("-V") == idem("--version") == idem("version") and idem("-h") == idem("--help") == idem("help")
    idem("help", "nonsense", code=2)
    assert "there is no command" in idem.said


# ---- many records ---------------------------------------------------------------------------------------------------------------

def test_a_record_is_found_by_the_digits_of_a_log(idem):
    with Server(idem.where) as server, server.client() as c:
        ask = lambda *args, **more: idem(*args, "--server", server.socket, store=False, **more)  # noqa: E731
        for id in ("one", "other"):
            assert c("BEGIN", "shop", id)[0] == "started"
        ask("forget", "shop", "one")
        key = wait_until(lambda: re.search(r"event=operator .*verb=forget.* key=([0-9a-f]{16})", server.output())).group(1)
        assert c("BEGIN", "shop", "one")[0] == "started"
        urn = "%s-%s-8%s-0000-000000000000" % (key[:8], key[8:12], key[12:15])
        for word in ("key=" + key, "key=" + key.upper(), urn, "urn:uuid:" + urn, "URN:UUID:" + urn.upper()):
            assert re.fullmatch(r"request executing \S+ \d+ shop one\n", ask("find", word)), word
        for word in ("key=" + key[:15], "key=" + key[:15] + "g", "key=" + "0" * 16, urn.replace("-8", "-4", 1), urn[:-1] + "x"):
            assert ask("find", word, code=16) == "", word
            assert idem.said.endswith("no record with this id in any scope at unix:%s\n" % server.socket)


def test_many_doubts_are_settled_with_a_verdict_each(idem):
    with Server(idem.where) as server, server.client() as c:
        ask = lambda *args, **more: idem(*args, "--server", server.socket, store=False, **more)  # noqa: E731
        for id in ("a", "b\x1b"):
            assert c("BEGIN", "shop", id, "LEASE", 20)[0] == "started"
            assert wait_until(lambda: c("BEGIN", "shop", id)[0] == "doubt")
        shown = on_a_terminal("doubts", "--server", server.socket)
        assert re.search(r"\x1b\[1mAGE +TYPE +ATTEMPT +BEGUN +SCOPE ID \(LABEL\)\x1b\[0m\n", shown) and "shop b\\x1b\n" in shown, shown
        ask("settle", "--as", "failed", "--all", code=2, data="y\n")
        assert "this would settle 2 doubts as failed; look at them with --dry-run, then give --yes" in idem.said
        for said in (b"\x04", b"n\n", b"x\n"):
            ours, theirs = pty.openpty()
            os.write(ours, said)
            done = subprocess.run([IDEM, "settle", "--as", "failed", "--all", "--server", server.socket], stdin=theirs, text=True, capture_output=True, timeout=60)
            os.close(ours), os.close(theirs)
            assert done.returncode != 0 and "Settle these 2 as failed?" in done.stderr, done
        assert c("GET", "shop", "a")[8] == "executing"
        told = [json.loads(line) for line in ask("settle", "--as", "failed", "--older", "1ms", "--yes", "--json").splitlines()]
        assert [t for t in told if "verdict" in t] == [{"verdict": "settled", "scope": "shop", "id": id} for id in ("a", "b\x1b")], told
        assert ask("doubts") == "" and ask("settle", "--as", "failed", "--all", "--dry-run") == ""


def test_a_doubt_that_cannot_be_settled_says_why(idem):
    with open(os.open(idem.where + "/credentials", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write("ann s3cret view\nops s3cret operate\n")
    with Server(idem.where, "--credentials", idem.where + "/credentials") as server, server.client() as c:
        assert c("AUTH", "ops", "s3cret") == "OK" and c("BEGIN", "shop", "a", "LEASE", 20)[0] == "started"
        assert wait_until(lambda: c("BEGIN", "shop", "a")[0] == "doubt")
        settle = ["settle", "--as", "failed", "--all", "--yes", "--server", "idem+unix:" + server.socket]
        told = json.loads(idem(*settle, "--json", code=1, store=False, IDEM_AUTH="ann:s3cret"))
        assert (told["scope"], told["id"]) == ("shop", "a") and told["verdict"] != "settled" and "operate" in told["text"], told
        assert idem(*settle, code=1, store=False, IDEM_AUTH="ann:s3cret") == "%s shop a: %s\n" % (told["verdict"], told["text"])
        assert idem.said == "idem: 0 of 1 doubts settled\n" and c("GET", "shop", "a")[8] == "executing"


def test_a_list_on_a_terminal_has_ages_and_colours(idem):
    idem.begun("work", "--lease", "10m")
    idem("settle", "s", "over")
    shown = on_a_terminal("scan", "--store", "journal:" + idem.journal)
    assert re.search(r"\x1b\[1mTYPE +STATE +AGE +FENCE +SCOPE ID\x1b\[0m\n", shown) and re.search(r"^request +executing +\d+s +\d+ +s work$", shown, re.M), shown
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[1m" not in on_a_terminal("scan", "--store", "journal:" + idem.journal, **env)
    assert "\x1b[1m" in on_a_terminal("scan", "--store", "journal:" + idem.journal, NO_COLOR="")


# ---- journals and backups -------------------------------------------------------------------------------------------------------

def segment_with(journal, text):
    """The file, and all of its bytes."""
    for path in glob.glob(journal + "/*"):
        with open(path, "rb") as f:
            data = f.read()
        if text in data:
            return path, data
    raise AssertionError("no segment has " + repr(text))


def test_a_dump_shows_deletes_and_results(idem):
    idem("finish", "s", "kept", idem.begun("kept"), "succeeded", "the\x1bresult")
    idem.begun("gone")
    idem("forget", "s", "gone")
    lines = idem("journal", "dump", idem.journal, "--all", "--results").splitlines()
    assert sum(line.endswith(" s kept the\\x1bresult") for line in lines) == 1
    assert any(" record (replaced) request executing " in line and line.endswith(" s gone") for line in lines), lines
    assert any(re.search(r"Z mark$", line) for line in lines), lines
    told = [json.loads(line) for line in idem("journal", "dump", idem.journal, "--all", "--results", "--json").splitlines()]
    assert {t["entry"] for t in told} >= {"record"} and [t["result"] for t in told if t.get("result")] == ["the\x1bresult"]
    plain = idem("journal", "dump", idem.journal)
    assert [line.split()[4:6] + line.split()[7:] for line in plain.splitlines()] == [["request", "succeeded", "s", "kept"], ["request", "free", "s", "gone"]]


def test_damage_is_an_error_of_a_dump_and_of_a_checked_backup(idem):
    idem("finish", "s", "kept", idem.begun("kept"), "succeeded", "a result that is long enough to be hit")
    idem.begun("behind", "--lease", "1h")
    path, data = segment_with(idem.journal, b"long enough to be hit")
    with open(path, "r+b") as f:
        f.seek(data.index(b"long enough to be hit"))
        f.write(b"LONG")
    out = idem("journal", "check", idem.journal, code=1)
    assert out.endswith("damage was found\n")
    idem("journal", "dump", idem.journal, code=1)
    assert re.search(r"idem: \d+ damaged places: run idem journal check\n", idem.said)
    with open(path, "r+b") as f:
        f.write(data)
    assert idem("backup", "journal:" + idem.journal, idem.where + "/copy", "--check").endswith("checked: 2 records, no damage\n")
    told = json.loads(idem("restore", idem.where + "/copy", idem.where + "/again", "--check", "--json"))
    assert told["records"] == 2 and told["folder"] == idem.where + "/again"
    assert "result: a result that is long enough" in idem("get", "s", "kept", "--store", "journal:" + idem.where + "/again")


# ---- ids ------------------------------------------------------------------------------------------------------------------------

def test_an_id_is_explained_to_people_and_programs(idem):
    id = idem("id", "snowflake").strip()
    out = idem("id", "explain", id)
    assert re.fullmatch(r"kind: snowflake\ntime: \d{4}-\S+Z\nworker: \d+\nsequence: \d+\nepoch ends: \d{4}-\S+Z\n", out), out
    told = json.loads(idem("id", "explain", id, "--json"))
    assert told["kind"] == "snowflake" and "worker" in told
    uuid = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"  # of RFC 9562
    assert idem("id", "explain", uuid) == "kind: uuid, version 7\ntime: 2022-02-22T19:22:22.000Z\n"
    assert json.loads(idem("id", "explain", uuid, "--json")) == {"kind": "uuid", "version": 7, "time_ms": 1645557742000}
    assert idem("id", "explain", idem("id", "uuid4").strip()) == "kind: uuid, version 4\n"
    for wrong in ("", "7x", "99999999999999999999", "017f22e2-79b0-7cc3-98c4"):
        assert idem("id", "explain", wrong, code=2) == "" and idem.said, wrong
    assert idem("id", "explain", "7", "--kind", "uuid4", code=2) == "" and "has no parts" in idem.said
    assert idem("id", "snowflake", "--config", "/nowhere", code=2) == "" and "/nowhere" in idem.said


# ---- commands -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("command,code", [("/no/such/command", 127), ("/etc/passwd", 126)])
def test_a_lock_is_given_back_if_its_command_cannot_be_run(idem, command, code):
    assert idem("lock", "nightly", "--", command, code=code) == "" and "cannot run %s: " % command in idem.said
    assert idem("lock", "nightly", "--owner", "other", "--print", "fence").strip().isdigit(), "it is free"


def test_a_lock_is_not_taken_without_a_server(idem):
    assert idem("lock", "n", "--server", "unix:/nowhere/s", "--", "true", code=20, store=False) == "" and "no server at" in idem.said


def test_all_output_of_a_command_passes_a_slow_pipe(idem):
    """The pipe takes no more for a while, and whoever made it said that nobody waits."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    script = "head -c 1000000 /dev/zero | tr '\\0' x; echo; touch %s/done" % idem.where
    run = subprocess.Popen([IDEM, "run", "s", "i", "--keep", "10", "--store", "journal:" + idem.journal, "--", "sh", "-c", script], stdout=theirs,
                           stderr=subprocess.PIPE)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        got = pipe.read(1)
        assert not os.path.exists(idem.where + "/done")
        got += pipe.read()
    assert run.wait(60) == 0 and got == b"x" * 1000000 + b"\n" and run.stderr.read() == b""


def test_a_reader_that_is_gone_does_not_stop_a_command(idem):
    ours, theirs = os.pipe()
    os.close(ours)
    run = subprocess.run([IDEM, "run", "s", "i", "--store", "journal:" + idem.journal, "--", "sh", "-c", "echo one; echo two; exit 3"], stdout=theirs,
                         stderr=subprocess.PIPE, timeout=60)
    os.close(theirs)
    assert run.returncode == 3 and run.stderr == b"", run
    assert idem("run", "s", "i", "--", "sh", "-c", "echo one; echo two; exit 3", code=3) == "one\ntwo\n"


# ---- what a command finds ---------------------------------------------------------------------------------------------------------

def test_a_run_of_what_was_done_otherwise_says_so(idem):
    for id, more in (("left", ["--no-replay", "--kind", "exec"]), ("odd", ["--kind", "exec"]), ("raw", [])):
        idem("finish", "s", id, idem.begun(id), "succeeded", "no output of a command", *more)
        assert idem("run", "s", id, "--any-command", "--", "touch", idem.where + "/ran", code=10) == ""
        assert idem.said == "idem: this request was finished before, and no output of a command is stored\n", id
    idem("settle", "s", "settled", "--as", "succeeded", "--result", "paid", "--absent")
    assert idem("run", "s", "settled", "--any-command", "--", "touch", idem.where + "/ran", code=10) == ""
    assert idem.said == "idem: this request was settled before, and no output of a command is stored\n"
    idem("run", "s", "once", "--", "true")
    idem("run", "s", "once", "--", "touch", idem.where + "/ran", code=13)
    assert "s once was used for another command" in idem.said
    idem.begun("busy", "--lease", "1h")
    told = json.loads(idem("run", "s", "busy", "--any-command", "--json", "--", "touch", idem.where + "/ran", code=11))
    assert told["verdict"] == "busy" and "is running right now; give --wait TIME" in idem.said
    for flags, text in ((["--lease", "99ms"], "--lease must be at least 100ms"), (["--ttl", "0s"], "--ttl must be at least 1ms"), (["--keep", "1g"], "--keep must be at most")):
        assert idem("run", "s", "new", *flags, "--", "touch", idem.where + "/ran", code=2) == "" and text in idem.said
    assert not os.path.exists(idem.where + "/ran")


def test_a_command_that_does_not_stop_is_killed_when_its_lock_is_lost(idem):
    store = "sqlite:" + idem.where + "/db"
    script = "trap '' TERM; touch %s/up; while :; do sleep 0.05; done" % idem.where
    holder = subprocess.Popen([IDEM, "lock", "job", "--lease", "300ms", "--grace", "100ms", "--store", store, "--", "sh", "-c", script], stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: os.path.exists(idem.where + "/up"))
        fence = json.loads(idem("get", "locks", "job", "--type", "lock", "--json", "--store", store))["fence"]
        idem("unlock", "job", fence, "--store", store)
        assert holder.wait(30) == 76 and 'lock "job" was lost; stopping the command' in holder.stderr.read()
    finally:
        holder.kill()
        holder.wait()


def test_a_token_says_what_became_of_it(idem):
    token = idem("issue", "ann").strip()
    assert idem("redeem", token, "ann", "--next", "--print", "verdict") == "redeemed\n"
    assert idem("redeem", token, "ann", "--next", "--print", "verdict", code=17) == "duplicate\n"
    assert idem("redeem", token, "ann", "--nonce", "xyz", code=2) == "" and "a nonce is 16 hex digits" in idem.said


# ---- where it looks ---------------------------------------------------------------------------------------------------------------

def test_an_address_may_be_a_port_and_a_file_may_have_any_name(idem):
    name = idem.where + "/a file, 100% & more?.txt"
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write("# mine\nops s3cret\n")
    with open(os.open(idem.where + "/credentials", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write("ops s3cret operate\n")
    with Server(idem.where, "--credentials", idem.where + "/credentials", listen=True) as server:
        for address in (":%d" % server.port, "127.0.0.1:%d" % server.port, "[::ffff:127.0.0.1]:%d" % server.port, "idem://127.0.0.1:%d" % server.port):
            assert idem("doubts", "--server", address, "--credentials", name, store=False) == "" and "no doubts at idem" in idem.said, address
            assert name not in idem.said
        assert idem("doubts", "--server", ":%d" % server.port, code=2, store=False) == ""
    for wrong in ("localhost", "ftp://h:1", "127.0.0.1:0", "h:99999", "[::1", "relative/socket"):
        assert idem("doubts", "--server", wrong, code=2, store=False) == "" and '"%s" is not an address: give unix:PATH' % wrong in idem.said, wrong
    for wrong in ("name:top-secret@localhost", "name:top-secret@h:99999", "top-secret@h", "idem://top-secret@h", "ftp://name:top-secret@h",
                  "idem://top-secret@h?foo=1", "idem://top-secret@127.0.0.1:99999", "idems://top-secret@h?foo=1"):
        assert idem("doubts", "--server", wrong, code=2, store=False) == "" and "***@" in idem.said and "top-secret" not in idem.said, wrong
    for wrong in ("redis://top-secret@h?foo=1", "rediss+cluster://top-secret@h:99999", "redi://top-secret@h"):
        assert idem("store", "check", wrong, code=2, store=False) == "" and "://***@h" in idem.said and "top-secret" not in idem.said, wrong
    assert idem("doubts", IDEM_SERVER="", code=2) == "" and "there is no folder" in idem.said, "an empty variable names no server"


def test_a_sealed_store_needs_its_key_and_an_empty_variable_is_none(idem):
    idem("begin", "s", "open", IDEM_SEAL_KEY="")
    assert idem("get", "s", "open", code=0, IDEM_SEAL_KEY="").startswith("record\n")
    assert idem("get", "s", "open", code=2, IDEM_SEAL_KEY="/nowhere/key") == "" and "/nowhere/key" in idem.said


def test_who_has_a_journal_open_is_named(idem):
    with Server(idem.where, store="journal:" + idem.journal) as server:
        assert idem("get", "s", "i", code=20) == "" and ": ask that server: --server unix:%s" % server.socket in idem.said, idem.said
        assert idem("id", "snowflake", "--store", "journal:" + idem.journal, code=20) == "" and "--server unix:" + server.socket in idem.said
    other = ["serve", "--store", "journal:" + idem.journal, "--socket=" + idem.where + "/equals"]
    with Process([IDEM, *other], ready=idem.where + "/equals"):
        assert idem("get", "s", "i", code=20) == "" and "--server unix:%s/equals" % idem.where in idem.said, idem.said

# ---- manuals and completion -----------------------------------------------------------------------------------------------------

def commands_of(idem):
    return [c for c in re.findall(r"^  ([a-z]+) ", idem("--help"), re.M) if c != "help"]


@pytest.mark.parametrize("page,section,names", [("settle", 1, ["as", "http", "reason"]), ("gateway", 1, ["upstream", "auth-request"]),
                                                ("idem.conf", 5, ["store", "max-result"]), ("idem-gateway.conf", 5, ["upstream", "host"])])
def test_a_manual_is_a_page_that_man_can_show(idem, page, section, names):
    text = idem("help", "--man", page)
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-P-c"], input=text, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    plain = re.sub(r".\x08", "", done.stdout)
    assert re.match(r"(?i)%s\(%d\)" % (re.escape(page if section == 5 else "idem-" + page), section), plain), plain[:200]
    for name in names:
        assert re.search(r"^ +%s%s " % ("(?:-., )?--" if section == 1 else "", name), plain, re.M), name
    for flag in ("config", "check", "print-config"):
        assert section == 1 or not re.search(r"^ +%s = " % flag, plain, re.M), "it is no line of the file"
    assert idem("help", "--man", "nonsense", code=2) == "" and "there is no command" in idem.said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_every_command_and_option(idem, shell):
    script = idem("completion", shell)
    flag = "--no-execute" if shell == "fish" else "-n"
    done = subprocess.run([shell, flag], input=script, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert all(re.search(r"\b%s\b" % command, script) for command in commands_of(idem))
    if shell == "fish":
        part = "\n".join(line for line in script.splitlines() if "from consume'" in line)
        offered = re.findall(r" -l (\S+)", part)
        assert "-s n " in part and re.search(r" -l metrics -r -F ", part) and re.search(r"from lock' -l permits -s n -x ", script)
    elif shell == "zsh":
        part = re.search(r"^    consume\)\n(.*?);;", script, re.M | re.S).group(1)
        offered = re.findall(r"--([a-z-]+)\[", part)
        assert "'-n[" in part and re.search(r"'--metrics\[.*\]:FILE:_files'", part) and re.search(r"'\*--header\[", script)
    else:
        part = re.search(r"^ *consume\)(.*?);;", script, re.M | re.S).group(1)
        offered = re.findall(r"--([a-z-]+)", part)
    assert set(re.findall(r"^ +(?:-., )?--([a-z-]+)", idem("consume", "--help"), re.M)) - {"json", "help"} <= set(offered), offered
